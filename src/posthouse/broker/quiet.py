"""Quiet: nobody in a namespace has anything left to do. Tests wait for it instead of sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

from posthouse.broker.clocks import Clocks, NamespaceClock
from posthouse.broker.due import DueWork
from posthouse.broker.idleness import Unfinished, unfinished
from posthouse.core.errors import NotFound
from posthouse.core.namespaces import Namespaces

LOOK_SECONDS = 0.005  # between two looks
TOLD_MAX = 20  # unfinished things that are listed after a wait in vain


class Quiet:
    """Waits for quiet. `flush` returns when all that was decided is durable, and answered."""

    def __init__(
        self, clocks: Clocks, world: Namespaces, due: DueWork, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self._clocks = clocks
        self._world = world
        self._due = due
        self._flush = flush

    async def wait(
        self,
        namespace: str,
        end: float,
        since: float,
        seconds: float,
        *,
        locks: bool = True,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> list[Unfinished]:
        """Waits until nobody has work and nothing has come for `seconds`, `since` at the earliest.

        Returns what is unfinished at `end`; nothing where it is quiet, or `is_enough` has become
        true. With `locks` those that live receivers hold are work. `end` and `since` are by the
        event loop's clock. Raises NotFound.
        """
        loop, clock = asyncio.get_running_loop(), self._clocks.own.get(namespace)
        while clock is not None and self._clocks.own.get(namespace) is clock:
            found = self._unfinished(namespace, clock, locks=locks)
            last, now = clock.activity.last, loop.time()
            rest = max(since, last) + seconds - now
            if not found and rest <= 0:
                await self._flush()
                if clock.activity.last == last:
                    return []
            elif is_enough():
                return []
            elif now >= end:
                return found or [Unfinished("command")]
            else:
                pause = LOOK_SECONDS if found else min(rest, LOOK_SECONDS)
                await asyncio.sleep(min(pause, end - now))
        raise NotFound("namespace", namespace)

    def _unfinished(
        self, namespace: str, clock: NamespaceClock, *, locks: bool
    ) -> list[Unfinished]:
        state = self._world.states[namespace]
        every = unfinished(state, clock.activity, clock.now_ms(), locks=locks)
        found = list(islice(every, TOLD_MAX))
        if not found and self._due.skip_ms(state, clock) is not None:
            found.append(Unfinished("clock"))
        return found
