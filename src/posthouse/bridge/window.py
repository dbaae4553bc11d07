"""The bound on deliveries that a consumer has and has not settled."""

import asyncio
import contextlib
import math
from collections.abc import Hashable


class Window:
    """Counts deliveries from when they come until they are settled, or belong to nobody.

    A delivery that is neither settled nor extended for `lifetime` seconds is delivered again by the
    transport, to anybody. It takes no more room then: a consumer that forgets one does not stand
    still.
    """

    def __init__(self, size: int, lifetime: float, left: asyncio.Event | None = None) -> None:
        """`left` is set whenever a delivery leaves."""
        self._size = size
        self._lifetime = lifetime
        self._ends: dict[Hashable, float] = {}
        self.left = left or asyncio.Event()

    def enter(self, key: Hashable) -> None:
        """Counts a delivery, or counts it anew."""
        self._ends.pop(key, None)  # they stay in the order in which they end
        self._ends[key] = asyncio.get_running_loop().time() + self._lifetime

    def extend(self, key: Hashable) -> None:
        """Begins the time of a delivery anew, if it is counted."""
        if key in self._ends:
            self.enter(key)

    def leave(self, key: Hashable) -> None:
        self._ends.pop(key, None)
        self.left.set()

    @property
    def room(self) -> int:
        """How many more there may be."""
        now = asyncio.get_running_loop().time()
        while self._ends:
            first = next(iter(self._ends))
            if self._ends[first] > now:
                break
            del self._ends[first]
        return self._size - len(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def next_end(self) -> float:
        """When the time of the first is over, by the clock of the loop."""
        return next(iter(self._ends.values()), math.inf)

    async def changed(self) -> None:
        """Returns when one has left, or the time of the first is over."""
        self.left.clear()
        if self.room > 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.next_end):
                await self.left.wait()
