"""Hostile bytes for VibeMQ peers: what clients say in each generation, changed a little.

Whatever comes, the peer goes on or closes that connection, says nothing that is larger than what it
was told deserves, and the engine goes on.
"""

import asyncio
import random
import sys
import time
import tracemalloc

from tests.dialects.vibemq.client import FLAGGED, GENERATIONS, Said, written
from tests.dialects.vibemq.rig import Rig, Wire

PEAK_BYTES = 64 << 20  # that one case may take of memory
MEASURE_EVERY = 10  # cases: to measure memory takes several times as long as to play one
SAY_BYTES = 16 << 20  # that a peer may say in one case

TALK = [
    Said(10, "before"),
    Said(0, "c", headers={"supported-compression": "gzip"}),
    Said(22, "s", "q"),
    Said(20, "m1", "q", b'{"a": [1, null, "x"]}', {"priority": "high", "correlationId": "c"}),
    Said(20, "m2", "q", b'"' + b"x" * 3_000 + b'"'),
    Said(30, "m1"),
    Said(30, "", headers={"messageId": "m2"}),
    Said(10, "p"),
    Said(40, "k1", "fan", b'{"mode": 1, "maxQueueSize": 5, "messageTtl": "00:01:00"}'),
    Said(40, "k2", "d", b'{"enableDeadLetterQueue": true, "deadLetterQueueName": "dead"}'),
    Said(40, "k3", "h", headers={"deliveryMode": "PriorityBased", "maxQueueSize": "9"}),
    Said(22, "s2", "fan"),
    *(Said(20, f"f{n}", "fan", b"[]") for n in range(8)),
    Said(22, "s3", "q-dlq"),
    Said(42, "i", "q"),
    Said(43, "l"),
    Said(53, "g", "", b'{"username": "u", "queuePattern": "*", "operations": ["Publish", 1]}'),
    Said(54, "r", "", b'{"username": "u", "queuePattern": "*"}'),
    Said(51, "x", "", b'{"username": "u"}'),
    Said(55, "ul"),
    Said(56, "up", "", b'{"username": "u"}'),
    Said(24, "u", "q"),
    Said(41, "dq", "fan"),
    Said(20, "m3", "q", b"1"),
    Said(2, "bye"),
]


def changed(frames: list[bytes], head: int, chance: random.Random) -> list[bytes]:
    """`head`: the bytes in front of a body."""
    frames = list(frames)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(frames))
        what = chance.randrange(10)
        data = bytearray(frames[at])
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
        elif what == 8:
            frames.insert(chance.randrange(len(frames)), frames.pop(at))
            continue
        else:
            begin = chance.randrange(len(data))
            del data[begin : begin + chance.randrange(1, 9)]
        if chance.random() < 0.7 and len(data) > head:
            data[:4] = (len(data) - head).to_bytes(4, "big")  # so that it is within a frame
        frames[at] = bytes(data)
    return frames


async def play(rig: Rig, generation: str, chance: random.Random) -> None:
    squeezes = generation == FLAGGED and chance.random() < 0.3
    frames = [
        written(each, generation, squeeze=squeezes and at > 1) for at, each in enumerate(TALK)
    ]
    data = b"".join(changed(frames, 5 if generation == FLAGGED else 4, chance))
    wire = Wire(rig, generation)
    said = pos = 0
    while pos < len(data) and not wire.transport.closed:
        size = chance.choice((7, 100, 1_000, 100_000))
        wire.peer.data_received(data[pos : pos + size])
        pos += size
        await rig.settle()
        said += sum(map(len, wire.transport.written))
        wire.transport.written.clear()
    assert said < SAY_BYTES, f"a peer said {said} bytes"
    wire.peer.check()
    wire.lose()
    await rig.settle()
    assert not rig.failures.found, rig.failures.found[0]
    assert rig.engine is not None
    assert not rig.engine.failed.is_set()


async def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    end = time.monotonic() + seconds
    number = 0
    rig = await Rig.open()
    try:
        while number < cases and time.monotonic() < end:
            number += 1
            chance = random.Random(f"{seed}-{number}")
            is_measured = number % MEASURE_EVERY == 1
            if is_measured:
                tracemalloc.start()
            try:
                await play(rig, chance.choice(GENERATIONS), chance)
            except BaseException:
                sys.stderr.write(f"VibeMQ: case {number} of seed {seed}\n")
                raise
            peak = tracemalloc.get_traced_memory()[1] if is_measured else 0
            tracemalloc.stop()
            assert peak < PEAK_BYTES, f"case {number} of seed {seed} took {peak} bytes"
            if number % 500 == 0:
                await rig.close()
                rig = await Rig.open()
        await asyncio.sleep(0)
    finally:
        tracemalloc.stop()
        await rig.close()
    return number
