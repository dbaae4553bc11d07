"""Waiting in tests: for the loop to be idle, or until something is true.

A test that sleeps for a while is slow on a machine that is idle, and wrong on one that is busy. So
tests wait for what they mean. `tests/test_waiting.py` counts the sleeps that are left: each of them
has its reason behind it, in a comment that begins with `slept:`.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

PATIENCE_SECONDS = 60.0  # far more than anything takes, also where the machine is busy
LOOK_SECONDS = 0.005  # how long to wait before a condition is looked at again
TURNS_MAX = 100_000  # of a loop that is to become idle

T = TypeVar("T")


async def turn() -> None:
    """Runs what is ready now, once: tasks that were just made take their first step."""
    await asyncio.sleep(0)  # slept: a turn of the loop, no time


async def idle() -> None:
    """Runs the loop until nothing is ready: all that could be done without waiting is done.

    What waits for a timer, a socket or a thread is left waiting.
    """
    # The loop of the standard library runs what is in `_ready` in order, so when this task has its
    # turn all that is still to run stands behind it. There is no public way to ask.
    loop = asyncio.get_running_loop()
    for _ in range(TURNS_MAX):
        await turn()
        if not loop._ready:  # type: ignore[attr-defined]
            return
    raise AssertionError(f"the loop is still busy after {TURNS_MAX} turns")


def until(
    condition: Callable[[], T],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    look_seconds: float = LOOK_SECONDS,
) -> T:
    """Returns what the condition does when that is true for the first time.

    Fails, and says what was waited for, when it does not become true.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in {seconds:.0f} s it did not come that {what}"
        time.sleep(look_seconds)  # slept: between two looks
    return found


@overload
async def until_async(
    condition: Callable[[], Coroutine[Any, Any, T]], what: str, seconds: float = ...
) -> T: ...
@overload
async def until_async(condition: Callable[[], T], what: str, seconds: float = ...) -> T: ...
async def until_async(
    condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS
) -> Any:
    """As `until`, while the loop runs; the condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        asked = condition()
        found = await asked if inspect.isawaitable(asked) else asked
        if found:
            return found
        assert time.monotonic() < deadline, f"in {seconds:.0f} s it did not come that {what}"
        await asyncio.sleep(LOOK_SECONDS)  # slept: between two looks


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved forward."""

    _skipped = 0.0

    def time(self) -> float:
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds
