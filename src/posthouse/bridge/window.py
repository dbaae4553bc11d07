"""The bound on deliveries that a consumer has and has not settled."""

import asyncio
import math
from collections.abc import Hashable


class Window:
    """Counts deliveries from when they come until they are settled, or belong to nobody.

    A delivery that is neither settled nor extended for `lifetime` seconds is delivered again by the
    transport, to anybody. It takes no more room then: a consumer that forgets one does not stand
    still.
    """

    def __init__(self, size: int, lifetime: float) -> None:
        self._size = size
        self._lifetime = lifetime
        self._ends: dict[Hashable, float] = {}
        self._changed = asyncio.Event()

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
        self._changed.set()

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

    async def changed(self) -> None:
        """Returns when one has left, or the time of the first is over."""
        self._changed.clear()
        if self.room <= 0:
            first = next(iter(self._ends.values()), math.inf)
            now = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(0.0, first - now)):
                    await self._changed.wait()
            except TimeoutError:
                pass
        else:
            await self._changed.wait()
