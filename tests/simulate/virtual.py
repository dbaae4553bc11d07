"""A loop whose time passes at once, and processes in it that can be killed or stopped for a while.

What a process has begun carries its owner in its context: tasks, timers and callbacks. Nothing of
an owner that is dead runs any more, not even what would tidy up; of one that is stopped it runs
when that goes on.
"""

import asyncio
import contextlib
import selectors
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

TASKS_MAX = 10_000
STEPS_MAX = 100_000  # of the loop in which no time passes

_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """One life of a process."""

    def __init__(self) -> None:
        self.is_alive = True
        self.is_stopped = False
        self.context = copy_context()
        self.context.run(_process.set, self)
        self._held: deque[tuple[_Owned, Context, tuple[Any, ...]]] = deque()

    @property
    def runs(self) -> bool:
        return self.is_alive and not self.is_stopped

    def call(self, owned: "_Owned", args: tuple[Any, ...]) -> None:
        if self.runs and not self._held:
            owned.callback(*args)
        elif self.is_alive:
            self._held.append((owned, copy_context(), args))

    def go_on(self) -> None:
        """What was to be done meanwhile is done now, in its order."""
        self.is_stopped = False
        while self._held and self.runs:
            owned, context, args = self._held.popleft()
            if owned.handle is None or not owned.handle.cancelled():
                context.run(owned.callback, *args)


class _Owned:
    """A callback that a process has asked for."""

    __slots__ = ("_process", "callback", "handle")

    def __init__(self, process: Process, callback: Callable[..., object]) -> None:
        self._process = process
        self.callback = callback
        self.handle: asyncio.Handle | None = None

    def __call__(self, *args: Any) -> None:
        self._process.call(self, args)


class _Time(selectors.SelectSelector):
    """Instead of waiting, it lets time pass."""

    now = 0.0
    steps = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        before, self.now = self.now, self.now + max(0.0, timeout)
        self.steps = self.steps + 1 if self.now == before else 0
        assert self.steps < STEPS_MAX, "something is due again and again, and no time passes"
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._time = _Time()
        super().__init__(self._time)
        self.failures: list[BaseException] = []  # of tasks that nobody waited for
        self._tasks: list[asyncio.Task[Any]] = []  # kept: nothing of the dead is tidied up
        self.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "exception" in context:  # else a task of the dead is destroyed
            self.failures.append(context["exception"])

    def time(self) -> float:
        return self._time.now

    def create_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = super().create_task(coroutine, **options)
        self._tasks.append(task)
        if len(self._tasks) > TASKS_MAX:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def close(self) -> None:
        """All that is left comes to an end, also of the dead."""
        if not self.is_closed():
            self.run_until_complete(self._end_tasks())
            super().close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            coroutine = task.get_coro()
            if not task.done() and task is not asyncio.current_task() and coroutine is not None:
                with contextlib.suppress(Exception):  # of who has to be tidy
                    coroutine.close()

    def call_soon(  # type: ignore[override]  # of any arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        owned = _owned(callback, context)
        handle = super().call_soon(owned, *args, context=context)
        if isinstance(owned, _Owned):
            owned.handle = handle
        return handle

    def call_at(  # type: ignore[override]  # of any arguments
        self, when: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        owned = _owned(callback, context)
        handle = super().call_at(when, owned, *args, context=context)
        if isinstance(owned, _Owned):
            owned.handle = handle
        return handle

    def run_in_executor(  # type: ignore[override]  # it is there when it returns
        self, _: object, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        done.set_result(function(*args))
        return done


def _owned(callback: Callable[..., object], context: Context | None) -> Callable[..., object]:
    process = _process.get() if context is None else context.get(_process)
    return callback if process is None else _Owned(process, callback)
