"""Hostile clients of a running broker, and how long they have held its event loop."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from struct import pack
from typing import Any

from posthouse.amqp.connection import AMQP, SASL
from posthouse.amqp.encode import described, encode
from posthouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Open,
    Performative,
    SaslInit,
    Transfer,
    write,
)
from posthouse.amqp.types import Described, ULong
from tests.server.running import Running

DEV_NAME, DEV_KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
FLOOD_SECONDS = 0.25  # what one row of the table takes, unless the broker hangs up
PING_SECONDS = 0.01
_HELD = re.compile(r"^posthouse_event_loop_held_seconds ([0-9.e+-]+)$", re.MULTILINE)


def held_seconds(broker: Running) -> float:
    """The longest time that one turn of the broker's loop took, since this was last asked."""
    reply = broker.call("GET", "/metrics")
    found = _HELD.search(reply.body.decode())
    assert found is not None, reply
    return float(found[1])


@contextmanager
def pinged(broker: Running) -> Iterator[list[float]]:
    """Another client asks for a PONG every few milliseconds; how long it has waited each time."""
    waited: list[float] = []
    stopped = threading.Event()

    def ping() -> None:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as made:
            while not stopped.is_set():
                begun = time.monotonic()
                made.sendall(b"PING 0 ")
                assert made.recv(100).endswith(b"PONG")
                waited.append(time.monotonic() - begun)
                stopped.wait(PING_SECONDS)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield waited
    finally:
        stopped.set()
        thread.join()


@dataclass(frozen=True)
class Flood:
    """Bytes that are said once, and bytes that are said again and again behind them."""

    first: bytes
    again: bytes = b""
    reads: bool = True  # what the broker says
    hello: bytes = b""  # to be answered before all else

    def __call__(self, broker: Running, seconds: float = FLOOD_SECONDS) -> None:
        """Until the time is over, or the broker has hung up."""
        end = time.monotonic() + seconds
        with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as made:
            if self.hello:
                made.sendall(self.hello)
                assert made.recv(1 << 16)
            reader = threading.Thread(target=_read_all, args=(made,), daemon=True)
            if self.reads:
                reader.start()
            with suppress(OSError):  # it may hang up any time
                made.sendall(self.first)
                block = memoryview(self.again * max(1, (1 << 20) // max(1, len(self.again))))
                made.settimeout(0.05)
                at = 0
                while block and time.monotonic() < end:
                    with suppress(TimeoutError):
                        at = (at + made.send(block[at:])) % len(block)
            if not self.again and self.reads:
                reader.join(max(0.0, end - time.monotonic()))
            with suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)


def _read_all(made: socket.socket) -> None:
    with suppress(OSError):
        while made.recv(1 << 16):
            pass


# AMQP.


def frame(performative: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    content = write(performative) + payload
    return pack(">IBBH", 8 + len(content), 2, 0, channel) + content


def _sasl(mechanism: str, response: bytes) -> bytes:
    content = write(SaslInit(mechanism, response, "localhost"))
    return SASL + pack(">IBBH", 8 + len(content), 2, 1, 0) + content + AMQP


OPEN = frame(Open("hostile", "localhost", 1 << 20, 4_095))
BEGIN = frame(Begin(None, 0, 1 << 30, 1 << 30, 1_023))
STRANGER = _sasl("ANONYMOUS", b"") + OPEN + BEGIN
KNOWN = _sasl("PLAIN", f"\0{DEV_NAME}\0{DEV_KEY}".encode()) + OPEN + BEGIN


def terminus(address: str, *, source: bool = False) -> Described:
    return Described(ULong(0x28 if source else 0x29), [address])


def attach(handle: int, address: str, *, sends: bool, name: str = "") -> bytes:
    """A link as the client sees it."""
    role = SENDER if sends else RECEIVER
    ends = terminus(address, source=True), terminus(address)
    return frame(
        Attach(name or f"link-{handle}", handle, role, None, None, *ends,
               initial_delivery_count=0 if sends else None)
    )  # fmt: skip


def transfer(payload: bytes, handle: int = 0, number: int = 0, **fields: Any) -> bytes:
    return frame(Transfer(handle, number, b"t", 0, **fields), payload=payload)


def request(operation: str, body: bytes, handle: int = 0) -> bytes:
    """On $management; the body is encoded. In as many frames as it takes."""
    payload = (
        described(0x73, encode(["id", None, None, None, "replies"]))
        + described(0x74, encode({"operation": f"com.microsoft:{operation}"}))
        + described(0x77, body)
    )
    return in_parts(payload, handle)


def in_parts(payload: bytes, handle: int = 0) -> bytes:
    size = 1_000_000
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    return b"".join(
        transfer(part, handle, more=at + 1 < len(parts), settled=True)
        for at, part in enumerate(parts)
    )
