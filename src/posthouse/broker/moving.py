"""Moving a virtual clock: everything that falls due on the way is done, in its order."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.clock import VirtualClock
from posthouse.broker.clocks import Clocks
from posthouse.broker.due import MOVED_MS_MAX, DueWork, next_due_ms
from posthouse.core.commands import Answer, Command, SetClock
from posthouse.core.errors import InvalidArgument, NotFound
from posthouse.core.namespaces import ListNamespaces, Namespaces, SpaceCommand

Ask = Callable[[Principal, str, Command | SpaceCommand], Awaitable[Answer]]


class Fired(msgspec.Struct, frozen=True):
    """The count of one kind of event that fell due when a clock was moved."""

    kind: str  # the name of the record
    queue: str
    count: int


class ClockMover:
    """Moves one clock at a time. `ask` is the engine's."""

    def __init__(self, clocks: Clocks, due: DueWork, world: Namespaces, ask: Ask) -> None:
        self._clocks = clocks
        self._due = due
        self._world = world
        self._ask = ask
        self._one_at_a_time = asyncio.Lock()

    async def move(self, namespace: str | None, end_of: Callable[[int], int]) -> list[Fired]:
        """Moves a namespace's own clock, or the broker's, to `end_of` the present time.

        Returns what fell due meanwhile, when all of it is durable. Raises Refused.
        """
        async with self._one_at_a_time:
            if namespace is not None and namespace not in self._world.states:
                raise NotFound("namespace", namespace)
            clock = self._clocks.broker if namespace is None else self._clocks.of(namespace)
            if not isinstance(clock, VirtualClock):
                raise InvalidArgument("namespace", "must be named: the broker's clock is real")
            now_ms = clock.now_ms()
            end_ms = end_of(now_ms)
            if not now_ms <= end_ms <= MOVED_MS_MAX:
                raise InvalidArgument("time", f"must not go back, nor lead beyond {MOVED_MS_MAX}")
            fired = self._due.fired = Counter()
            try:
                await self._move_to(namespace, clock, end_ms)
            finally:
                self._due.fired = None
        return [Fired(kind, queue, count) for (kind, queue), count in sorted(fired.items())]

    async def _move_to(self, namespace: str | None, clock: VirtualClock, end_ms: int) -> None:
        while (due_ms := self._next_due_ms(namespace)) is not None and due_ms <= end_ms:
            clock.move_to(due_ms)
            await self._flush()
            if namespace is not None and self._clocks.own.get(namespace) is not clock:
                raise NotFound("namespace", namespace)  # it was deleted meanwhile
        clock.move_to(end_ms)
        if namespace is not None:  # so that a start knows where it was
            await self._ask(BROKER, namespace, SetClock(clock.now_ms(), self._clocks.time_ms()))
        await self._flush()

    def _next_due_ms(self, namespace: str | None) -> int | None:
        """The next deadline in a namespace, or in those that go by the broker's clock."""
        states = self._world.states
        if namespace is not None:
            return next_due_ms([states[namespace]] if namespace in states else [])
        return next_due_ms(s for name, s in states.items() if name not in self._clocks.own)

    async def _flush(self) -> None:
        await self._ask(BROKER, "", ListNamespaces(limit=1))
