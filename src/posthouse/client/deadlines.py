"""Time limits for many calls, with one timer: a timer for each would cost more than a call."""

import asyncio


class Deadlines:
    """Cancels tasks that are late. `late` tells whose cancellation that was."""

    def __init__(self) -> None:
        self._due: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, task: "asyncio.Task[object]", seconds: float) -> float | None:
        """Sets a task's deadline, `seconds` from now, unless an earlier one is set.

        Returns the deadline it had, to be restored after the call: calls may be nested.
        """
        loop = asyncio.get_running_loop()
        before, due = self._due.get(task), loop.time() + seconds
        self._due[task] = due if before is None else min(before, due)
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._look, loop)
        return before

    def clear(self, task: "asyncio.Task[object]", before: float | None) -> None:
        if before is None:
            del self._due[task]
        else:
            self._due[task] = before

    def late(self, task: "asyncio.Task[object]") -> bool:
        """Whether it was cancelled for being late; then it is not cancelled any more."""
        if task not in self._late:
            return False
        self._late.discard(task)
        task.uncancel()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, due in self._due.items():
            if due <= now and task not in self._late:
                self._late.add(task)
                task.cancel()
        rest = [due for task, due in self._due.items() if task not in self._late]
        self._timer = loop.call_at(min(rest), self._look, loop) if rest else None
