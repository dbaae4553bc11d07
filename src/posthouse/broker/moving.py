"""Moving a virtual clock: everything that falls due on the way is done, in its order."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.clock import VirtualClock
from posthouse.broker.clocks import Clocks, NamespaceClock
from posthouse.broker.due import MOVED_MS_MAX, DueWork, next_due_ms
from posthouse.broker.idleness import Happened, Unfinished, next_skip_ms, next_step_ms
from posthouse.broker.quiet import LOOK_SECONDS, Quiet
from posthouse.core.commands import Answer, Command, SetClock
from posthouse.core.errors import InvalidArgument, NotFound
from posthouse.core.namespaces import Namespaces, SpaceCommand

Ask = Callable[[Principal, str, Command | SpaceCommand], Awaitable[Answer]]


class Fired(msgspec.Struct, frozen=True):
    """The count of one kind of event that fell due when a clock was moved."""

    kind: str  # the name of the record
    queue: str
    count: int


class Until(msgspec.Struct, frozen=True):
    """An event to wait for, by the word that its rows have in the feed."""

    kind: str
    queue: str = ""  # empty: any
    count: int = 1


class Pace(msgspec.Struct, frozen=True):
    """How clients take part: after each step, until nothing has come from them for a while."""

    quiet_seconds: float
    seconds: float  # that all of it may take in real time
    until: Until | None = None
    steps: int | None = None  # None: as many as there are

    def missing(self, happened: Happened) -> int:
        """How many of the events that are waited for have not happened."""
        if self.until is None:
            return 0
        kind, queue = self.until.kind, self.until.queue
        counts = (n for (k, q), n in happened.items() if k == kind and queue in ("", q))
        return max(0, self.until.count - sum(counts))


class Moved(msgspec.Struct, frozen=True):
    """What fell due as a clock was moved, and what kept it from being moved as was asked."""

    fired: list[Fired]
    busy: Sequence[Unfinished] = ()  # there was no quiet in time
    missing: int = 0  # events that were waited for, and have not happened


class ClockMover:
    """Moves clocks, each for one caller at a time. `ask` and `flush` are the engine's."""

    def __init__(
        self,
        clocks: Clocks,
        due: DueWork,
        world: Namespaces,
        ask: Ask,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._clocks = clocks
        self._due = due
        self._world = world
        self._ask = ask
        self._flush = flush
        self._quiet = Quiet(clocks, world, due, flush)

    async def quiet(
        self, namespace: str, seconds: float, quiet_seconds: float, *, locks: bool
    ) -> list[Unfinished]:
        """Waits for quiet; returns what is unfinished after `seconds`. Raises NotFound."""
        now = asyncio.get_running_loop().time()
        return await self._quiet.wait(namespace, now + seconds, now, quiet_seconds, locks=locks)

    async def move(
        self, namespace: str | None, end_of: Callable[[int], int], pace: Pace | None = None
    ) -> Moved:
        """Moves a namespace's own clock, or the broker's, to `end_of` the present time.

        Returns what fell due meanwhile, when all of it is durable. With a pace, clients take part;
        then a namespace has to be named. Raises Refused.
        """
        clock = self._clocks.broker if namespace is None else self._clocks.own.get(namespace)
        if not isinstance(clock, VirtualClock):
            raise InvalidArgument("namespace", "must be named: the broker's clock is real")
        async with clock.moving:
            now_ms = clock.now_ms()
            end_ms = end_of(now_ms)
            if not now_ms <= end_ms <= MOVED_MS_MAX:
                raise InvalidArgument("time", f"must not go back, nor lead beyond {MOVED_MS_MAX}")
            if pace is not None:
                assert namespace is not None
                assert isinstance(clock, NamespaceClock)
                return await self._move_with_clients(namespace, clock, end_ms, pace)
            with self._counted(namespace) as fired:
                while (due_ms := self._next_due_ms(namespace)) is not None and due_ms <= end_ms:
                    await self._step(namespace, clock, due_ms)
                clock.move_to(end_ms)
                await self._note(namespace, clock)
        return Moved(_events(fired))

    async def step(self, namespace: str, pace: Pace | None = None) -> Moved:
        """Moves a namespace's own clock to what is due next, if anything is; see `move`."""
        if pace is not None:
            return await self.move(
                namespace, lambda _: MOVED_MS_MAX, msgspec.structs.replace(pace, steps=1)
            )
        next_ms = next_step_ms(self._world.states[namespace])

        def end_of(now_ms: int) -> int:
            return now_ms if next_ms is None or next_ms > MOVED_MS_MAX else max(now_ms, next_ms)

        return await self.move(namespace, end_of)

    async def _move_with_clients(
        self, namespace: str, clock: NamespaceClock, end_ms: int, pace: Pace
    ) -> Moved:
        """Goes from timer to timer, and waits after each until clients have done their part.

        Sessions whose holders wait for messages are not lost meanwhile.
        """
        happened = clock.activity.count()
        try:
            with self._counted(namespace) as fired:
                busy, has_arrived = await self._follow(namespace, clock, end_ms, pace, happened)
                if has_arrived:
                    self._skip(namespace, clock, end_ms)
                await self._note(namespace, clock)
        finally:
            clock.activity.stop_counting(happened)
        return Moved(_events(fired), busy, pace.missing(happened))

    async def _follow(
        self, namespace: str, clock: NamespaceClock, end_ms: int, pace: Pace, happened: Happened
    ) -> tuple[Sequence[Unfinished], bool]:
        """Returns who is busy when the time is over, and whether the clock may go to the end.

        It may not where what was waited for has happened, or has not; it is waited for also when
        nothing more is due.
        """
        loop, steps = asyncio.get_running_loop(), pace.steps
        begun = loop.time()
        end = begun + pace.seconds

        def is_enough() -> bool:
            return pace.until is not None and not pace.missing(happened)

        while True:
            busy = await self._quiet.wait(
                namespace, end, begun, pace.quiet_seconds, is_enough=is_enough
            )
            if busy or is_enough() or steps == 0:
                return busy, False
            state = self._world.states[namespace]
            due_ms, is_late = next_skip_ms(state, clock.activity, clock.now_ms()), loop.time() > end
            if due_ms is not None and due_ms <= end_ms:
                if is_late:
                    return (Unfinished("steps"),), False
                self._skip(namespace, clock, due_ms)
                await self._flush()
                steps = None if steps is None else steps - 1
            elif pace.until is None or is_late:
                return (), pace.until is None and steps is None
            else:
                await asyncio.sleep(LOOK_SECONDS)

    def _skip(self, namespace: str, clock: NamespaceClock, moment_ms: int) -> None:
        self._due.hold_sessions(self._world.states[namespace], clock.now_ms(), moment_ms)
        clock.move_to(moment_ms)

    async def _note(self, namespace: str | None, clock: VirtualClock) -> None:
        """Writes down where the clock is now, so that a start knows."""
        if namespace is not None:
            await self._ask(BROKER, namespace, SetClock(clock.now_ms(), self._clocks.time_ms()))
        await self._flush()

    @contextmanager
    def _counted(self, namespace: str | None) -> Iterator[Counter[tuple[str, str]]]:
        """Counts what falls due."""
        fired = self._due.fired[namespace] = Counter()
        try:
            yield fired
        finally:
            del self._due.fired[namespace]

    async def _step(self, namespace: str | None, clock: VirtualClock, due_ms: int) -> None:
        clock.move_to(due_ms)
        await self._flush()
        if namespace is not None and self._clocks.own.get(namespace) is not clock:
            raise NotFound("namespace", namespace)  # it was deleted meanwhile

    def _next_due_ms(self, namespace: str | None) -> int | None:
        """The next deadline in a namespace, or in those that go by the broker's clock."""
        states = self._world.states
        if namespace is not None:
            return next_due_ms([states[namespace]] if namespace in states else [])
        return next_due_ms(s for name, s in states.items() if name not in self._clocks.own)


def _events(fired: Counter[tuple[str, str]]) -> list[Fired]:
    return [Fired(kind, queue, count) for (kind, queue), count in sorted(fired.items())]
