"""Figures about the engine, for metrics: counted as it works, read when somebody asks."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from posthouse.core.message import ACTIVE
from posthouse.core.model import Queue

_NEAR = 1_000  # messages of a queue with groups that are looked at from the head on


class Histogram:
    """A histogram: how often a value was at most each of some bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all of them
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def oldest_ms(queue: Queue) -> int | None:
    """The time of the oldest receivable message.

    Messages of sessions and groups stand in many lists: of them the first few of the queue are
    looked at, and None is returned where no other is receivable.
    """
    if not queue.counts[ACTIVE]:
        return None
    heads = [head for ready in queue.ready_lists if (head := ready.first()) is not None]
    times_ms = [queue.messages[head].enqueued_ms for head in heads]
    if queue.groups:
        near = islice(queue.messages.walk(0), _NEAR)
        times_ms += islice((each.enqueued_ms for each in near if each.state == ACTIVE), 1)
    return min(times_ms, default=None)


def steps_to_oldest(queue: Queue) -> int:
    """The cost of `oldest_ms`, counted as the core counts its work."""
    return 1 + _NEAR // 20 * bool(queue.groups)


class Figures:
    """The engine's counters since the start."""

    def __init__(self) -> None:
        self.records: Counter[type] = Counter()  # positions, by kind of record
        self.refused: Counter[str] = Counter()  # commands, by kind of refusal
        self.crowded = 0  # commands that were refused for want of room
        self.no_space = 0  # those of them for want of room on the disk
        self.slowed = 0  # answers that were held back
        self.sync_seconds = Histogram([0.0005 * 2**n for n in range(14)])
        self.frame_bytes = Histogram([256 * 4.0**n for n in range(10)])
