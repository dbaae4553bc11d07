"""A ready list: the sequence numbers of messages that are ready, in order.

New messages come with rising numbers, so they are appended to a flat array (8 bytes each, invisible
to the garbage collector) and taken from its head. A message that comes back goes to its place, not
to the tail: the few that do are kept in a heap of their own, and the lower of the two heads goes
first. One that leaves from the middle is only marked as gone, until the head reaches it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import islice

from posthouse.core.heaps import walk

_TRIM_AT = 1024  # taken numbers at the front of the array before it is cut


class ReadyList:
    """Ready sequence numbers. The heads of array and heap are never gone, so `first` is O(1)."""

    __slots__ = ("_fresh", "_gone", "_head", "_returned")

    def __init__(self) -> None:
        self._fresh = array("q")
        self._head = 0
        self._returned: list[int] = []
        self._gone: set[int] = set()

    def first(self) -> int | None:
        fresh = self._fresh[self._head] if self._head < len(self._fresh) else None
        if self._returned and (fresh is None or self._returned[0] < fresh):
            return self._returned[0]
        return fresh

    def append(self, sequence: int) -> None:
        """Adds a new number, higher than any before."""
        self._fresh.append(sequence)

    def extend(self, sequences: Iterable[int]) -> None:
        """Adds new numbers, each higher than any before."""
        self._fresh.extend(sequences)

    def give_back(self, sequence: int) -> None:
        """Returns a number that was taken to its place."""
        if sequence in self._gone:
            self._gone.remove(sequence)
        else:
            heappush(self._returned, sequence)

    def take(self, sequences: list[int]) -> None:
        """Removes these numbers, wherever they are."""
        fresh, head = self._fresh, self._head
        end = head + len(sequences)
        if len(sequences) > 1 and not self._returned and fresh[head:end].tolist() == sequences:
            self._head = end
        else:
            for sequence in sequences:
                if self._head < len(fresh) and fresh[self._head] == sequence:
                    self._head += 1
                elif self._returned and self._returned[0] == sequence:
                    heappop(self._returned)
                else:
                    self._gone.add(sequence)
        if self._gone:
            self._skip_gone()
            if 2 * len(self._gone) > len(fresh) - self._head + len(self._returned) + 128:
                self._drop_gone()
        taken = self._head
        if taken == len(self._fresh) or (taken >= _TRIM_AT and 2 * taken >= len(self._fresh)):
            del self._fresh[: self._head]
            self._head = 0

    def _skip_gone(self) -> None:
        gone = self._gone
        while self._head < len(self._fresh) and self._fresh[self._head] in gone:
            gone.remove(self._fresh[self._head])
            self._head += 1
        while self._returned and self._returned[0] in gone:
            gone.remove(heappop(self._returned))

    def _drop_gone(self) -> None:
        """Drops gone numbers. Rare: much has left from behind a head that stays."""
        self._fresh = array("q", (s for s in self._fresh[self._head :] if s not in self._gone))
        self._head = 0
        self._returned = sorted(s for s in self._returned if s not in self._gone)
        self._gone.clear()

    def head(self, count: int) -> Sequence[int]:
        """The first `count` numbers."""
        if self._returned or self._gone:
            return list(islice(self.walk(), count))
        return self._fresh[self._head : self._head + count]

    def walk(self) -> Iterator[int]:
        """Every number in order."""
        fresh = map(self._fresh.__getitem__, range(self._head, len(self._fresh)))
        all_of_them = merge(walk(self._returned), fresh) if self._returned else fresh
        return (sequence for sequence in all_of_them if sequence not in self._gone)
