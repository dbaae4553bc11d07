"""Hints within a process: somebody has committed an event, so look for it now."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Rings on the loop of the one who waits, from whichever thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # its loop is closed
            return

    async def rung(self) -> bool:
        """Returns True once it has rung since it was asked last."""
        await self._event.wait()
        self._event.clear()
        return True


_bells: dict[tuple[str, str], set[Bell]] = {}
_guard = threading.Lock()


class Wakes:
    """The hints of those in this process that share a place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def wake(self, channel: str) -> None:
        with _guard:
            bells = list(_bells.get((self._place, channel), ()))
        for bell in bells:
            bell.ring()

    @contextmanager
    def listening(self, channel: str) -> Iterator[Bell]:
        where, bell = (self._place, channel), Bell()
        with _guard:
            _bells.setdefault(where, set()).add(bell)
        try:
            yield bell
        finally:
            with _guard:
                _bells[where].discard(bell)
                if not _bells[where]:
                    del _bells[where]
