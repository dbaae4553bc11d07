"""Hostile bytes for PyQueue peers: what a client says, changed a little.

A case is a part of a conversation in which everything happens, or now and then the whole of it,
with something changed in it.
"""

import random
from typing import Any

from tests.dialects.pyqueue.client import binary_frame, frame
from tests.dialects.pyqueue.rig import ROOT_KEY, Rig
from tests.fuzz.playing import Rigged
from tests.fuzz.playing import run as play

WHOLE = 0.02  # of the cases are the whole conversation
PART_MAX = 8  # frames of another


def conversation() -> list[bytes]:
    """Frame by frame. Ids are not known before, so some are of tasks that are not there."""
    id = "0f4c9a51-0000-4000-8000-000000000000"
    return [
        frame("AUTH", {"type": "apikey", "value": ROOT_KEY}), frame("PING"),
        frame("PUSH", b"hello"), binary_frame("PUSH", b'{"payload": "x", "queue": "q"}'),
        frame("PUSH", {"payload": "x", "queue": "q", "priority": "HIGH", "idempotency_key": "k",
                       "ttl": 5, "partition_key": "p"}),
        frame("PUSH_BATCH", {"tasks": [{"payload": "1", "queue": "q"}, {"payload": "2"}]}),
        frame("HEARTBEAT", {"worker_id": "w"}), frame("PULL", {"queue": "q"}), frame("PULL"),
        frame("PULL_BATCH", {"queue": "q", "count": 5}), frame("ACK", id),
        frame("ACK", {"task_id": id}), frame("NACK", {"task_id": id, "error": "e"}),
        frame("ACK", "lock-00000001000000010000000000000001"), frame("BEGIN_TX"),
        frame("PUSH", {"payload": "x", "transaction_id": "00000001-0000-0001-0000-000000000001"}),
        frame("COMMIT_TX", {"transaction_id": "00000001-0000-0001-0000-000000000001"}),
        frame("ROLLBACK_TX", {"transaction_id": "x"}),
        frame("SCHEDULE", {"payload": "s", "schedule": "cron: */5 1-4 * * 1,2", "queue": "q"}),
        frame("SUBSCRIBE", {"topic": "a.*", "queue": "s"}), frame("SUBSCRIBE", {"topic": "a.#"}),
        frame("PUBLISH", {"topic": "a.b", "message": "m"}), frame("PUBLISH", {"topic": "x"}),
        frame("UNSUBSCRIBE", {"topic": "a.*"}), frame("STATS"), frame("ADMIN_LIST_QUEUES"),
        frame("ADMIN_QUEUE_INFO", b"q"), frame("ADMIN_LIST_TASKS", {"status": "all"}),
        frame("ADMIN_GET_TASK", id), frame("ADMIN_CANCEL_TASK", id), frame("ADMIN_LIST_WORKERS"),
        frame("ADMIN_GET_DLQ"), frame("ADMIN_REQUEUE_DLQ", {"task_ids": [id]}),
        frame("ADMIN_PURGE_DLQ", {"queue": "q"}), frame("ADMIN_HEALTH"),
        frame("ADMIN_SET_QUEUE_TTL", {"queue": "q", "ttl": 9}),
        frame("ADMIN_SET_QUEUE_LIMIT", {"queue": "q", "max_depth": 9}),
        frame("ADMIN_QUEUE_METRICS", b"q"), frame("ADMIN_REPLAY", {"from_timestamp": 1}),
        frame("ADMIN_PURGE_QUEUE", b"q"), frame("ADMIN_DELETE_QUEUE", b"q"),
    ]  # fmt: skip


def changed(frames: list[bytes], chance: random.Random) -> list[bytes]:
    frames = list(frames)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, what = chance.randrange(len(frames)), chance.randrange(10)
        data = bytearray(frames[at])
        if not data:  # nothing is left of it
            continue
        place = chance.randrange(len(data))
        if what < 5:
            data[place] = chance.randrange(256)
        elif what == 5:
            data[place] ^= 1 << chance.randrange(8)
        elif what == 6:
            begin = data.find(b" ") + 1
            end = data.find(b" ", begin)
            data[begin : max(begin, end)] = chance.choice(
                (b"0", b"1", b"99", b"99999999", b"10485750", b"-1", b"\0\0\0\1", b"\0\xff\xff\xff")
            )
        elif what == 7:
            frames.insert(chance.randrange(len(frames)), bytes(data))
            continue
        elif what == 8:
            frames.insert(chance.randrange(len(frames)), frames.pop(at))
            continue
        else:
            del data[place : place + chance.randrange(1, 9)]
        if chance.random() < 0.5 and b" " in data:  # so that the change is within a frame
            word, _, rest = bytes(data).partition(b" ")
            payload = rest.partition(b" ")[2]
            data = bytearray(b"%s %d %s" % (word, len(payload), payload))
        frames[at] = bytes(data)
    return frames


class PyQueue(Rigged[Rig]):
    name = "pyqueue"
    anew_every = 100  # ADMIN_REPLAY reads all that was said since
    keeps_transactions = True

    def __init__(self) -> None:
        self._frames = conversation()

    async def open(self, number: int) -> None:
        self.rig = await Rig.open(is_open=number % 200 == 0)

    def connect(self) -> tuple[Any, Any]:
        client = self.rig.connect()
        return client.peer, client.transport

    def data(self, chance: random.Random) -> bytes:
        frames = self._frames
        if chance.random() >= WHOLE:
            at = chance.randrange(1, len(frames))
            frames = [frames[0], *frames[at : at + chance.randint(1, PART_MAX)]]
        return b"".join(changed(frames, chance))

    def kept(self) -> dict[str, int]:
        context = self.rig.context
        return {"connections": len(context._registry.peers), "clients": len(context._clients)}


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    return play(PyQueue(), seed, cases, seconds)
