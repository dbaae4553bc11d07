"""Stores and disks that are slow, for tests that must not depend on how fast a store is."""

import time
from collections.abc import Sequence
from itertools import cycle

from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryJournal, MemoryStore
from tests.store.faulty_disk import FaultyDisk
from tests.waiting import turn


class SlowStore(MemoryStore):
    """Each sync takes some turns of the loop, so one that was begun later may return earlier."""

    def __init__(
        self, frames: Sequence[Frame] = (), *, journal: MemoryJournal | None = None
    ) -> None:
        super().__init__(frames, journal=journal)
        self._turns = cycle((5, 1, 3, 0))
        self._appended = self._added = 0  # frames, since it was opened

    def append(self, frame: Frame) -> None:
        self._appended += 1
        super().append(frame)

    def sync_at_once(self) -> bool:
        return False

    async def sync(self) -> None:
        wanted = self._appended  # what comes from now on is the next sync's
        for _ in range(next(self._turns)):
            await turn()
        count = wanted - self._added
        if count >= 0:  # else one that was begun later has been here
            frames, self._pending = self._pending[:count], self._pending[count:]
            self._added = wanted
            self._add(frames)


class SlowDisk(FaultyDisk):
    """Every write and sync takes a millisecond or two, in the thread that asks for it."""

    def _operate(self) -> None:
        time.sleep(0.001)  # slept: so slow is this disk
        super()._operate()
