"""Calls that run to their end, whoever still waits for them.

A call that is cancelled in the middle may leave a connection between two frames, or a message that
was on its way locked for nobody. So it is let run, and what it brings is given back.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class UnderWay:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has had it

    async def settle_down(self, seconds: float) -> None:
        """Waits up to `seconds` for the tasks, then cancels those that are not done."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for each in late:
                each.cancel()
