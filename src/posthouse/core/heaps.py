"""Reading a heap in order without changing it, which is what a pure `decide` needs."""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeVar

T = TypeVar("T", int, tuple[int, int, str])


def walk(heap: list[T]) -> Iterator[T]:
    """The heap's items in order; the first k of them cost O(k log k)."""
    frontier = [(heap[0], 0)] if heap else []
    while frontier:
        item, at = heappop(frontier)
        yield item
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
