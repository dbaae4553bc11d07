"""Hostile bytes for VibeMQ peers: what clients say in each generation, changed a little.

A case is a part of a conversation in which everything happens, or now and then the whole of it,
with something changed in it.
"""

import random
from functools import cached_property
from typing import Any

from tests.dialects.vibemq.client import FLAGGED, GENERATIONS, Said, written
from tests.dialects.vibemq.rig import Rig, Wire
from tests.fuzz.playing import Rigged
from tests.fuzz.playing import run as play

WHOLE = 0.02  # of the cases are the whole conversation
PART_MAX = 8  # frames of another
SQUEEZED = 0.3  # of those of the generation that can

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


class VibeMq(Rigged[Rig]):
    name = "vibemq"
    anew_every = 500
    keeps_transactions = False

    @cached_property
    def _written(self) -> dict[tuple[str, bool], list[bytes]]:
        """By generation, and whether it is squeezed."""
        return {
            (generation, squeezes): [
                written(said, generation, squeeze=squeezes and at > 1)
                for at, said in enumerate(TALK)
            ]
            for generation in GENERATIONS for squeezes in {False, generation == FLAGGED}
        }  # fmt: skip

    async def open(self, number: int) -> None:
        self.rig = await Rig.open()

    def connect(self) -> tuple[Any, Any]:
        wire = Wire(self.rig, FLAGGED)
        return wire.peer, wire.transport

    def data(self, chance: random.Random) -> bytes:
        generation = chance.choice(GENERATIONS)
        squeezes = generation == FLAGGED and chance.random() < SQUEEZED
        frames = self._written[generation, squeezes]
        if chance.random() >= WHOLE:
            at = chance.randrange(2, len(frames))
            first = 1 if chance.random() < 0.95 else 0  # what stands in front of a hello
            frames = [*frames[first:2], *frames[at : at + chance.randint(1, PART_MAX)]]
        return b"".join(changed(frames, 5 if generation == FLAGGED else 4, chance))

    def kept(self) -> dict[str, int]:
        return {"connections": len(self.rig.peers.peers)}


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    return play(VibeMq(), seed, cases, seconds)
