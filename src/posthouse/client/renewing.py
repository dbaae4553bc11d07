"""Locks that are renewed for as long as somebody works on what they hold."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from posthouse.client.errors import MessageNotFound, QueueError, SessionNotFound

_log = logging.getLogger("posthouse.worker")

PART = 0.5  # of the time that is left, until a lock is renewed
SECONDS_MIN = 0.2  # between two renewals, whatever clocks say
GONE = (MessageNotFound, SessionNotFound)


class Renewal:
    """The renewal of one lock, on the loop where it is made, until `stop` or the lock is lost."""

    def __init__(
        self,
        what: str,
        seconds_left: float,
        renew: Callable[[], Awaitable[float]],
        lost: Callable[[], None],
    ) -> None:
        """`renew` returns how many seconds it is held for then."""
        self._what = what
        self._renew = renew
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._end = self._loop.time() + seconds_left
        self._timer = self._later(seconds_left)

    def _later(self, seconds_left: float) -> asyncio.TimerHandle:
        return self._loop.call_later(max(SECONDS_MIN, PART * seconds_left), self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._once())

    async def _once(self) -> None:
        try:
            left = await self._renew()
        except GONE:
            self._lost()
            return
        except QueueError as error:
            left = self._end - self._loop.time()
            _log.warning(
                "The lock of %s could not be renewed, and ends in %.1f s: %s", self._what, left,
                error, extra={"event": "worker.renewal-failed"},
            )  # fmt: skip
            if left <= 0:
                self._lost()
                return
        else:
            self._end = self._loop.time() + left
        self._timer = self._later(left)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
