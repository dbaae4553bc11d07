"""Hostile bytes for Service Bus peers: what a client says, changed a little.

Scenes are recorded from our own client: in each something happens, after a hello. A case is one of
them, or now and then all of them on one connection, with something changed in it: a byte, a few,
one bit, a length; a frame twice, left out, or somewhere else.
"""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any
from uuid import UUID

from posthouse.amqp.encode import described, encode
from posthouse.amqp.performatives import ACCEPTED, MODIFIED, REJECTED, RELEASED
from posthouse.amqp.session import Link
from posthouse.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong
from posthouse.broker.access import ROOT
from tests.dialects.servicebus.rig import KEY, Client, Rig, session_filter
from tests.fuzz.playing import Rigged
from tests.fuzz.playing import run as play

ALL_OF_THEM = 0.02  # of the cases are the whole conversation
PLAIN = described(0x73, encode(["id"])) + described(0x75, encode(b"body"))
RICH = (
    described(0x70, encode([True, None, UInt(60_000)]))
    + described(0x72, encode({Symbol("x-opt-partition-key"): "k", Symbol("a"): Int(1)}))
    + described(0x73, encode([UUID(int=1), None, "to", "subject", None, "corr"]))
    + described(0x74, encode({"n": 1, "s": "x", "t": Timestamp(5)}))
    + described(0x77, encode({"a": [1, None]}))
)
LATER = (
    described(0x72, encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1 << 42)}))
    + described(0x73, encode(["later"])) + described(0x75, encode(b"x"))
)  # fmt: skip
IN_A_SESSION = described(0x73, encode(["id", *[None] * 9, "one"])) + described(0x75, encode(b""))
Scene = Callable[[Client], Awaitable[None]]


async def _show_a_token(client: Client) -> None:
    assert await client.put_token() == 202


async def _open(client: Client, address: str = "q", *, sends: bool = True) -> Link:
    link = client.link(address, sends=sends)
    await client.pump()
    return link


async def _send(client: Client) -> None:
    sender = await _open(client)
    for at, payload in enumerate((PLAIN, RICH, PLAIN, LATER)):
        sender.send(payload, b"%d" % at)
    await client.pump()


async def _send_a_batch(client: Client) -> None:
    sender = await _open(client)
    batch = described(0x75, encode(PLAIN)) + described(0x75, encode(RICH))
    sender.send(batch, b"b", format=0x80013700)
    await client.pump()


async def _send_much(client: Client) -> None:
    sender = await _open(client)
    sender.send(described(0x75, encode(bytes(200_000))), b"large")
    await client.pump()


async def _receive(client: Client) -> None:
    await _send(client)
    receiver = client.link("q", sends=False)
    receiver.grant(5)
    told = await client.pump()
    ids = [each.delivery_id for each in told if hasattr(each, "delivery_id")]
    for number, outcome in zip(ids, (ACCEPTED, RELEASED, MODIFIED, REJECTED), strict=False):
        receiver.settle([number], outcome, settled=False)
    await client.pump()
    receiver.grant(3, drain=True)
    await client.pump()
    receiver.detach()


async def _receive_and_leave(client: Client) -> None:
    receiver = client.link("q", sends=False, settled=True)
    receiver.grant(100)
    await client.pump()
    receiver.session.end()


async def _hold_a_session(client: Client) -> None:
    into = await _open(client, "s")
    into.send(IN_A_SESSION, b"s")
    holder = client.link("s", sends=False, filters=session_filter("one"))
    holder.grant(1)
    await client.pump()
    session = {"session-id": "one"}
    await client.manage("set-session-state", {**session, "session-state": b"x"}, "s")
    await client.manage("get-session-state", session, "s")
    await client.manage("renew-session-lock", session, "s")
    holder.detach()


async def _go_nowhere(client: Client) -> None:
    await _open(client, "nowhere")
    await _open(client, "nowhere", sends=False)


async def _transact(client: Client) -> None:
    sender = await _open(client)
    source, target = Described(ULong(0x28), [None]), Described(ULong(0x30), [None])
    link = client.amqp.begin().attach("tx", sends=True, source=source, target=target, settled=False)
    await client.pump()
    link.send(described(0x77, described(0x31, encode([None]))), b"t")
    await client.pump()
    sender.send(PLAIN, b"in")
    link.send(described(0x77, described(0x32, encode([bytes(16), False]))), b"d")
    await client.pump()


def _manage(operation: str, body: dict[Any, Any], entity: str = "q") -> Scene:
    async def scene(client: Client) -> None:
        await client.manage(operation, body, entity)

    return scene


_TOKENS = Array(0x98, [UUID(int=1)])
SCENES: tuple[Scene, ...] = (
    _show_a_token, _send, _send_a_batch, _send_much, _receive, _receive_and_leave, _hold_a_session,
    _go_nowhere, _transact,
    _manage("peek-message", {"from-sequence-number": 0, "message-count": Int(5)}),
    _manage("schedule-message", {"messages": [{"message-id": "m", "message": LATER}]}),
    _manage("cancel-scheduled-message", {"sequence-numbers": Array(0x81, [1])}),
    _manage("renew-lock", {"lock-tokens": _TOKENS}),
    _manage(
        "update-disposition",
        {"disposition-status": "suspended", "lock-tokens": _TOKENS, "deadletter-reason": "x",
         "properties-to-modify": {"a": 1}}),
    _manage("batch-delete-messages", {"message-count": Int(1)}),
    _manage(
        "get-message-sessions",
        {"last-updated-time": Timestamp(253_402_300_800_000), "skip": Int(0), "top": Int(5)}, "s"),
    _manage(
        "receive-by-sequence-number",
        {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(1)}),
)  # fmt: skip


async def record(*scenes: Scene) -> list[bytes]:
    """What a client says in a connection in which they happen; frame by frame."""
    rig = await Rig.open()
    client = Client(rig, ("PLAIN", f"\0{ROOT}\0{KEY}".encode()))
    await client.pump()
    for scene in scenes:
        await scene(client)
    client.amqp.close()
    await client.pump()
    client.peer.connection_lost(None)
    assert not rig.failures.found
    await rig.close()
    return _frames(b"".join(client.sent))


def _frames(data: bytes) -> list[bytes]:
    """Headers and frames, one by one."""
    found, pos = [], 0
    while pos < len(data):
        size = 8
        if data[pos : pos + 4] != b"AMQP":
            (size,) = struct.unpack_from(">I", data, pos)
        found.append(data[pos : pos + size])
        pos += size
    return found


def changed(frames: list[bytes], chance: random.Random) -> list[bytes]:
    frames = list(frames)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(frames))
        what = chance.randrange(10)
        data = bytearray(frames[at])
        if not data:  # nothing is left of it
            continue
        if what < 5:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif what == 5:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif what == 6:
            begin = chance.randrange(len(data))
            data[begin : begin + 4] = chance.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\x7f\xff\xff\xff")
            )
        elif what == 7:
            frames.insert(chance.randrange(len(frames)), bytes(data))
            continue
        elif what == 8 and len(frames) > 1:
            frames.insert(chance.randrange(len(frames)), frames.pop(at))
            continue
        else:
            begin = chance.randrange(len(data))
            del data[begin : begin + chance.randrange(1, 9)]
        if chance.random() < 0.5 and len(data) >= 8 and data[:4] != b"AMQP":
            data[:4] = len(data).to_bytes(4, "big")  # so that the change is within a frame
        frames[at] = bytes(data)
    return frames


class ServiceBus(Rigged[Rig]):
    name = "servicebus"
    anew_every = 500
    keeps_transactions = False

    @cached_property
    def _whole(self) -> list[bytes]:
        return asyncio.run(record(*SCENES))

    @cached_property
    def _scenes(self) -> list[list[bytes]]:
        return [asyncio.run(record(scene)) for scene in SCENES]

    def prepare(self) -> "ServiceBus":
        """Records what is said, before there is a loop."""
        assert self._whole
        assert self._scenes
        return self

    async def open(self, number: int) -> None:
        self.rig = await Rig.open(auto_create=number % 1_000 == 0, strict=number % 1_500 == 0)

    def connect(self) -> tuple[Any, Any]:
        return self.rig.connect()

    def data(self, chance: random.Random) -> bytes:
        frames = self._whole if chance.random() < ALL_OF_THEM else chance.choice(self._scenes)
        return b"".join(changed(frames, chance))

    def kept(self) -> dict[str, int]:
        return {"connections": len(self.rig.peers._registry.peers)}


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    return play(ServiceBus().prepare(), seed, cases, seconds)
