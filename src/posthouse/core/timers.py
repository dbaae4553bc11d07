"""Timers: keys, and the times at which they are due.

Keys are filed by the exact millisecond they are due; the distinct milliseconds form a heap.
Removing a key is one dictionary operation, so a message that is settled long before its time leaves
nothing behind. Most milliseconds hold one key, so a bucket is the key itself until a second one
joins it.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from posthouse.core.heaps import walk


def earliest(timers: "Iterable[Timers]") -> int | None:
    """The earliest time that has a key in one of them, or None."""
    return min([each._order[0] for each in timers if each._order], default=None)


class Timers:
    """Integer keys by due time. `first` is always the earliest time that has a key, or None."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        self._buckets: dict[int, int | dict[int, None]] = {}
        # A heap; the top has a bucket, deeper entries may have lost theirs.
        self._order: list[int] = []

    @property
    def first(self) -> int | None:
        return self._order[0] if self._order else None

    def add(self, due_ms: int, key: int) -> None:
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            self._buckets[due_ms] = key
            heappush(self._order, due_ms)
        elif isinstance(bucket, int):
            self._buckets[due_ms] = {bucket: None, key: None}
        else:
            bucket[key] = None

    def add_all(self, due_ms: int, keys: Sequence[int]) -> None:
        """Several, none of which is there."""
        for key in keys[:2]:
            self.add(due_ms, key)
        bucket = self._buckets.get(due_ms)
        if isinstance(bucket, dict):
            bucket.update(dict.fromkeys(keys))

    def remove(self, due_ms: int, key: int) -> None:
        bucket = self._buckets[due_ms]
        if type(bucket) is dict:
            del bucket[key]
            if bucket:
                return
        self._drop(due_ms)

    def remove_all(self, due_ms: int, keys: Sequence[int]) -> None:
        """Several, all of which are there."""
        bucket = self._buckets[due_ms]
        if type(bucket) is dict and len(bucket) > len(keys):
            for key in keys:
                del bucket[key]
        else:
            self._drop(due_ms)

    def _drop(self, due_ms: int) -> None:
        buckets, order = self._buckets, self._order
        del buckets[due_ms]
        if order[0] == due_ms:
            while order and order[0] not in buckets:
                heappop(order)
        elif len(order) > 2 * len(buckets) + 64:
            self._order = list(buckets)
            heapify(self._order)

    def shift(self, step_ms: int) -> None:
        """Everything is due that much later."""
        self._buckets = {due_ms + step_ms: keys for due_ms, keys in self._buckets.items()}
        self._order = [due_ms + step_ms for due_ms in self._order]

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Returns at most `limit` keys that are due by `now_ms`, the earliest first."""
        keys: list[int] = []
        last = -1
        for due_ms in walk(self._order):
            if due_ms > now_ms or len(keys) >= limit:
                break
            bucket = self._buckets.get(due_ms)
            if due_ms == last or bucket is None:
                continue
            last = due_ms
            some = (bucket,) if isinstance(bucket, int) else bucket
            keys.extend(islice(some, limit - len(keys)))
        return keys

    def items(self) -> list[tuple[int, int]]:
        """Every (due, key), sorted."""
        return sorted(
            (due_ms, key)
            for due_ms, bucket in self._buckets.items()
            for key in ((bucket,) if isinstance(bucket, int) else bucket)
        )
