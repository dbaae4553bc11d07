"""VibeMQ's own load test, against Posthouse: in memory and durable, beside this machine's limit.

    python -m bench.vibemq [--publishers 4] [--subscribers 2] [--duration 10] [--payload-size 128]

Publishers wait for each acknowledgement before they publish the next message; subscribers
acknowledge what they get; the queue goes round-robin and takes a million messages. VibeMQ claims
10,000 messages a second, without durability. Where every publish waits for its answer, a message a
publisher and sync is the most there can be: the limit is `bench.limit` over a socket, with as many
requests outstanding as there are publishers. What the machine and Python take by themselves is seen
in a bare server: it answers and passes on the same frames, keeps nothing and knows nothing else.
"""

import argparse
import asyncio
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar, cast

import uvloop

from bench.limit import socket_rate
from bench.servicebus import broker, cpu_seconds

CLAIM = 10_000
QUEUE = b"load"
OPTIONS = json.dumps({"mode": 0, "maxQueueSize": 1_000_000}).encode()


def frame(kind: int, id: bytes, queue: bytes = b"", payload: bytes = b"") -> bytes:
    body = b"\x01%c%b%b%b%b%b%b\0\0" % (
        kind, struct.pack(">H", len(id)), id, struct.pack(">H", len(queue)), queue,
        struct.pack(">I", len(payload)), payload,
    )  # fmt: skip
    return struct.pack(">I", len(body)) + b"\0" + body


class Client(asyncio.Protocol):
    """Publishes one after the other, or acknowledges what it is given."""

    def __init__(self, payload: bytes | None) -> None:
        self._payload = payload  # None: a subscriber
        self._data = b""
        self.done = self._sent = 0
        self._over = False
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(frame(0, b"c") + frame(40, b"k", QUEUE, OPTIONS))
        if self._payload is None:
            self._transport.write(frame(22, b"s", QUEUE))

    def publish(self) -> None:
        assert self._payload is not None
        self._sent += 1
        self._transport.write(frame(20, b"%032x" % self._sent, QUEUE, self._payload))

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        at, answers = 0, []
        while len(data) - at >= 7:
            (size,) = struct.unpack_from(">I", data, at)
            if len(data) - at < 5 + size:
                break
            kind = data[at + 6]
            if kind == 26:
                (length,) = struct.unpack_from(">H", data, at + 7)
                answers.append(frame(30, data[at + 9 : at + 9 + length]))
                self.done += 1
            elif kind == 21:
                self.done += 1
                if not self._over:
                    self.publish()
            elif kind in (23, 40) and not self.ready.done():
                if (kind == 23) == (self._payload is None):
                    self.ready.set_result(None)
            elif kind == 99:
                raise AssertionError(data[at:])
            at += 5 + size
        self._data = data[at:]
        if answers:
            self._transport.write(b"".join(answers))

    def stop(self) -> None:
        self._over = True


async def load(port: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Published and delivered in a second, and the time that a publish took, in the middle."""
    loop = asyncio.get_running_loop()
    payload = json.dumps("x" * options.payload_size).encode()
    clients = []
    for at in range(options.subscribers + options.publishers):
        wanted = None if at < options.subscribers else payload
        _, client = await loop.create_connection(
            lambda wanted=wanted: Client(wanted), "127.0.0.1", port  # type: ignore[misc]
        )  # fmt: skip
        await client.ready
        clients.append(client)
    subscribers, publishers = clients[: options.subscribers], clients[options.subscribers :]
    begun = time.perf_counter()
    for each in publishers:
        each.publish()
    await asyncio.sleep(options.duration)
    seconds = time.perf_counter() - begun
    sent, got = (sum(each.done for each in some) for some in (publishers, subscribers))
    for each in publishers:
        each.stop()
    return sent / seconds, got / seconds, options.publishers / (sent / seconds)


class Bare(asyncio.Protocol):
    """Answers each publish, and gives it to the subscribers in turn."""

    subscribers: ClassVar[list["Bare"]] = []
    turn = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        at, answers = 0, []
        while len(data) - at >= 7:
            (size,) = struct.unpack_from(">I", data, at)
            end = at + 5 + size
            if len(data) < end:
                break
            kind = data[at + 6]
            if kind == 20:
                (length,) = struct.unpack_from(">H", data, at + 7)
                answers.append(frame(21, data[at + 9 : at + 9 + length], QUEUE))
                Bare.turn += 1
                to = Bare.subscribers[Bare.turn % len(Bare.subscribers)]
                to._transport.write(data[at : at + 6] + b"\x1a" + data[at + 7 : end])
            elif kind in (22, 40):
                answers.append(frame(23 if kind == 22 else 40, b"s", QUEUE))
                Bare.subscribers += [self] if kind == 22 else []
            at = end
        self._data = data[at:]
        if answers:
            self._transport.write(b"".join(answers))


async def serve_bare() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure_bare(options: argparse.Namespace) -> tuple[float, float]:
    """Published in a second, and the server's CPU time a message, in microseconds."""
    command = [sys.executable, "-m", "bench.vibemq", "--bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port, before = int(server.stdout.readline()), cpu_seconds(server.pid)
            sent, _, _ = uvloop.run(load(port, options))
            spent = cpu_seconds(server.pid) - before
        finally:
            server.kill()
    return sent, spent / max(1, sent * options.duration) * 1e6


def measure(options: argparse.Namespace, *flags: str) -> tuple[float, float, float, float]:
    """As `load`, and the server's CPU time a message, in microseconds."""
    with broker(*flags) as (port, pid):
        before = cpu_seconds(pid)
        sent, got, wait = uvloop.run(load(port, options))
        spent = cpu_seconds(pid) - before
        return sent, got, wait, spent / max(1, sent * options.duration) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--subscribers", type=int, default=2)
    parser.add_argument("--duration", type=float, default=10)
    parser.add_argument("--payload-size", type=int, default=128)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        uvloop.run(serve_bare())
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        limit = asyncio.run(socket_rate(folder, 1, options.publishers))
        bare, bare_us = measure_bare(options)
        found = {
            "in memory": measure(options, "--memory"),
            "durable": measure(options, "--data", str(folder / "data")),
        }
    print(
        f"{options.publishers} publishers that wait for each answer, {options.subscribers}"
        f" subscribers, {options.payload_size} bytes, {options.duration:g} s:"
    )
    for name, (sent, got, wait, spent) in found.items():
        print(
            f"  {name}: {sent:,.0f} published and {got:,.0f} received a second,"
            f" {wait * 1e3:.2f} ms for a publish, {spent:.0f} us of the server a message"
        )
    claim, durable = found["in memory"][0] / CLAIM, found["durable"][0] / limit
    print(f"  a bare server, with no broker: {bare:,.0f} a second, {bare_us:.0f} us a message")
    print(f"  the limit, synced, over a socket: {limit:,.0f} a second")
    print(f"  in memory, beside the claim of {CLAIM:,}: {claim:.2f}")
    print(f"  in memory, beside the bare server: {found['in memory'][0] / bare:.2f}")
    print(f"  durable, beside the limit: {durable:.2f}")


if __name__ == "__main__":
    main()
