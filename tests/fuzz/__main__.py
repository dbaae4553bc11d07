"""Hostile bytes for Service Bus peers: what a client says, changed a little; then other things.

    python -m tests.fuzz [--seconds N] [--cases N] [--seed S] [--surface NAME ...]

A conversation in which everything happens is recorded from our own client. Each case plays it to a
new peer with something changed in it: a byte, a few, one bit, a length; a frame twice, left out, or
somewhere else. Whatever comes, the peer goes on or closes that connection, says nothing that is
larger than what it was told deserves, and the engine goes on.

So it is done for PyQueue's peers (pyqueue.py), VibeMQ's (vibemq.py), a running broker's HTTP
(http.py), the texts of filters and actions (filters.py), SAS tokens and XML (texts.py). How many
cases of each were played is told. A million of one surface: --surface xml --cases 1000000
--seconds 1e9.
"""

import argparse
import asyncio
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from uuid import UUID

from posthouse.amqp.encode import described, encode
from posthouse.amqp.performatives import ACCEPTED, MODIFIED, REJECTED, RELEASED
from posthouse.amqp.types import Array, Int, Symbol, Timestamp, UInt
from tests.dialects.servicebus.rig import Client, Rig, session_filter
from tests.fuzz import filters, http, pyqueue, texts, vibemq

PEAK_BYTES = 64 << 20  # that one case may take of memory
MEASURE_EVERY = 10  # cases: to measure memory takes several times as long as to play one
SAY_BYTES = 16 << 20  # that a peer may say in one case


async def record() -> list[bytes]:
    """What a client says in a connection where everything happens; frame by frame."""
    rig = await Rig.open()
    client = Client(rig)
    await client.pump()
    assert await client.put_token() == 202
    sender = client.link("q", sends=True)
    await client.pump()
    plain = described(0x73, encode(["id"])) + described(0x75, encode(b"body"))
    rich = (
        described(0x70, encode([True, None, UInt(60_000)]))
        + described(0x72, encode({Symbol("x-opt-partition-key"): "k", Symbol("a"): Int(1)}))
        + described(0x73, encode([UUID(int=1), None, "to", "subject", None, "corr"]))
        + described(0x74, encode({"n": 1, "s": "x", "t": Timestamp(5)}))
        + described(0x77, encode({"a": [1, None]}))
    )
    later = (
        described(0x72, encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1 << 42)}))
        + described(0x73, encode(["later"])) + described(0x75, encode(b"x"))
    )  # fmt: skip
    for at, payload in enumerate((plain, rich, plain, plain, plain, later)):
        sender.send(payload, b"%d" % at)
    batch = described(0x75, encode(plain)) + described(0x75, encode(rich))
    sender.send(batch, b"b", format=0x80013700)
    sender.send(described(0x75, encode(bytes(200_000))), b"large")
    await client.pump()
    receiver = client.link("q", sends=False)
    receiver.grant(5)
    told = await client.pump()
    ids = [each.delivery_id for each in told if hasattr(each, "delivery_id")]
    for number, outcome in zip(ids, (ACCEPTED, RELEASED, MODIFIED, REJECTED), strict=False):
        receiver.settle([number], outcome, settled=False)
    await client.pump()
    receiver.grant(3, drain=True)
    await client.pump()
    await client.manage("peek-message", {"from-sequence-number": 0, "message-count": Int(5)})
    entry = {"message-id": "m", "message": later}
    _, found = await client.manage("schedule-message", {"messages": [entry]})
    await client.manage("cancel-scheduled-message", {"sequence-numbers": found["sequence-numbers"]})
    await client.manage("renew-lock", {"lock-tokens": Array(0x98, [UUID(int=1)])})
    await client.manage(
        "update-disposition",
        {"disposition-status": "suspended", "lock-tokens": Array(0x98, [UUID(int=1)]),
         "deadletter-reason": "x", "properties-to-modify": {"a": 1}},
    )  # fmt: skip
    await client.manage("batch-delete-messages", {"message-count": Int(1)})
    with_session = described(0x73, encode(["id", *[None] * 9, "one"])) + described(
        0x75, encode(b"")
    )
    into = client.link("s", sends=True)
    await client.pump()
    into.send(with_session, b"s")
    holder = client.link("s", sends=False, filters=session_filter("one"))
    holder.grant(1)
    await client.pump()
    session = {"session-id": "one"}
    await client.manage("set-session-state", {**session, "session-state": b"x"}, "s")
    await client.manage("get-session-state", session, "s")
    await client.manage("renew-session-lock", session, "s")
    await client.manage(
        "get-message-sessions",
        {"last-updated-time": Timestamp(253_402_300_800_000), "skip": Int(0), "top": Int(5)}, "s",
    )  # fmt: skip
    await client.manage(
        "receive-by-sequence-number",
        {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(1)},
    )
    client.link("nowhere", sends=True)
    await client.pump()
    holder.detach()
    sender.session.end()
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
        if what < 5 and data:
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


async def play(rig: Rig, frames: list[bytes], chance: random.Random) -> None:
    peer, transport = rig.connect()
    said = 0
    data = b"".join(frames)
    pos = 0
    while pos < len(data) and not transport.closed:
        size = chance.choice((7, 100, 1_000, 100_000))
        peer.data_received(data[pos : pos + size])
        pos += size
        await rig.settle()
        said += len(transport.take())
    assert said < SAY_BYTES, f"a peer said {said} bytes"
    peer.check(time.time())
    peer.connection_lost(None)
    await rig.settle()
    assert not rig.failures.found, rig.failures.found[0]
    assert rig.engine is not None
    assert not rig.engine.failed.is_set()


async def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    frames = await record()
    end = time.monotonic() + seconds
    number = 0
    rig = await Rig.open(auto_create=seed % 2 == 0, strict=seed % 3 == 0)
    try:
        while number < cases and time.monotonic() < end:
            number += 1
            chance = random.Random(f"{seed}-{number}")
            case = changed(frames, chance)
            is_measured = number % MEASURE_EVERY == 1
            if is_measured:
                tracemalloc.start()
            try:
                await play(rig, case, chance)
            except BaseException:
                sys.stderr.write(f"case {number} of seed {seed}\n")
                raise
            peak = tracemalloc.get_traced_memory()[1] if is_measured else 0
            tracemalloc.stop()
            assert peak < PEAK_BYTES, f"case {number} of seed {seed} took {peak} bytes"
            if number % 500 == 0:
                await rig.close()
                rig = await Rig.open(auto_create=number % 1000 == 0)
    finally:
        tracemalloc.stop()
        await rig.close()
    return number


# By name: what is played, and its part of the time.
SURFACES: dict[str, tuple[Callable[[int, int, float], int], float]] = {
    "servicebus": (lambda *given: asyncio.run(run(*given)), 0.35),
    "pyqueue": (pyqueue.main, 0.15),
    "vibemq": (lambda *given: asyncio.run(vibemq.run(*given)), 0.15),
    "http": (http.run, 0.15),
    "filters": (filters.run, 0.1),
    "sas": (texts.run_tokens, 0.05),
    "xml": (texts.run_xml, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=1 << 62, help="of each surface, at most")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--surface", choices=SURFACES, action="append", help="these alone")
    given = parser.parse_args()
    chosen = given.surface or list(SURFACES)
    whole = sum(SURFACES[name][1] for name in chosen)
    for name in chosen:
        play, part = SURFACES[name]
        begun = time.monotonic()
        count = play(given.seed, given.cases, given.seconds * part / whole)
        took = time.monotonic() - begun
        sys.stdout.write(f"{name:12}{count:>10,} cases of seed {given.seed} in {took:,.0f} s\n")


if __name__ == "__main__":
    main()
