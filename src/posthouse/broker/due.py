"""Due work: expired locks and messages, schedules, idle queues. The core says when.

It is done in slices beside traffic, and namespaces take turns.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable
from heapq import heapify, heappop, heappush

from posthouse.broker.admission import Admission
from posthouse.broker.clocks import Clocks, NamespaceClock
from posthouse.broker.idleness import QUIET_SECONDS, next_skip_ms
from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    DURATION_MS_MAX,
    LAST_MS,
    Command,
    RenewSession,
    SetClock,
    SetFanout,
    Tick,
)
from posthouse.core.model import Fanout, State
from posthouse.core.namespaces import Namespaces
from posthouse.core.plan import Outcome
from posthouse.core.records import is_kept, span

MOVED_MS_MAX = LAST_MS - DURATION_MS_MAX  # a clock beyond it could not add a duration any more
# After this long no other namespace's tick begins before others have had their turn.
_SLICE_SECONDS = 0.01
_VOID_MAX = 64  # moments that are kept although they hold no longer


def next_due_ms(states: Iterable[State]) -> int | None:
    """The earliest moment at which something is due in one of them."""
    due = (next_deadline_ms(state) for state in states)
    return min((due_ms for due_ms in due if due_ms is not None), default=None)


class Agenda:
    """When something is due in which namespace, by the clock of the broker.

    Only namespaces that have changed are looked at, so that a commit costs the same whether there
    is one namespace or there are thousands. `note` is to be called for each that changes.
    """

    def __init__(self, world: Namespaces) -> None:
        self._world = world
        self._changed = set(world.states)
        self._due_ms: dict[str, int] = {}
        # Moments and namespaces, the earliest first; one that the table knows otherwise is void.
        self._heap: list[tuple[int, str]] = []

    def note(self, namespace: str) -> None:
        self._changed.add(namespace)

    def note_all(self) -> None:
        self._changed.update(self._world.states)

    def take_changed(self) -> list[State]:
        """Looks at the namespaces that have changed since it was called, and returns them."""
        states = []
        while self._changed:
            name = self._changed.pop()
            state = self._world.states.get(name)
            due_ms = None
            if state is not None:
                states.append(state)
                due_ms = next_deadline_ms(state)
            if due_ms is None:
                self._due_ms.pop(name, None)
            elif self._due_ms.get(name) != due_ms:
                self._due_ms[name] = due_ms
                heappush(self._heap, (due_ms, name))
        if len(self._heap) > 2 * len(self._due_ms) + _VOID_MAX:
            self._heap = [(due_ms, name) for name, due_ms in self._due_ms.items()]
            heapify(self._heap)
        return states

    def due_ms(self, namespace: str) -> int | None:
        return self._due_ms.get(namespace)

    def first(self, but: Container[str]) -> tuple[int, str] | None:
        """The namespace where something is due first; of `but`, which have other clocks, none."""
        heap = self._heap
        while heap and (heap[0][1] in but or self._due_ms.get(heap[0][1]) != heap[0][0]):
            heappop(heap)
        return heap[0] if heap else None

    def due(self, now_ms: int, but: Container[str]) -> list[str]:
        """The namespaces where something is due by then."""
        found: list[tuple[int, str]] = []
        while (first := self.first(but)) is not None and first[0] <= now_ms:
            found.append(heappop(self._heap))
        for entry in found:
            heappush(self._heap, entry)
        return list(dict.fromkeys(name for _, name in found))


class DueWork:
    """Does what is due in all namespaces. `do` makes a command part of the engine's batch."""

    def __init__(
        self,
        world: Namespaces,
        clocks: Clocks,
        admission: Admission,
        do: Callable[[State, Command], Outcome],
    ) -> None:
        self._world = world
        self._clocks = clocks
        self._admission = admission
        self._do = do
        self._last = ""  # the namespace that used up the last slice
        self._fanout: Fanout | None = None  # that every namespace was told
        self.agenda = Agenda(world)
        # Due events of a namespace, or of all (None), while they are counted.
        self.fired: dict[str | None, Counter[tuple[str, str]]] = {}

    def do_some(self) -> bool:
        """A slice of it, which does not take long. Returns whether there was something."""
        begun = time.perf_counter()
        self._tell_fanout(self.agenda.take_changed())
        did = False
        for name in self._due_in_turn():
            outcome = self._do(self._world.states[name], Tick())
            for counted in self.fired.keys() & {name, None}:
                _count(self.fired[counted], outcome)
            if time.perf_counter() - begun > _SLICE_SECONDS:
                self._last = name
                return True
            did = True
        return did

    def _tell_fanout(self, changed: list[State]) -> None:
        """Tells namespaces how far topics may copy: all where that has changed, else new ones."""
        fanout = self._admission.fanout()
        if fanout != self._fanout:
            self._fanout, changed = fanout, [*self._world.states.values()]
        for state in changed:
            if state.fanout != fanout:
                self._do(state, SetFanout(fanout))

    def _due_in_turn(self) -> list[str]:
        """Where something is due, beginning behind the namespace that used up the last slice."""
        agenda, own = self.agenda, self._clocks.own
        now_ms = self._clocks.time_ms()  # where the clock has jumped, that changes them all
        agenda.take_changed()
        names = agenda.due(now_ms, own)
        for name, clock in own.items():
            due_ms = agenda.due_ms(name)
            if due_ms is not None and due_ms <= clock.now_ms():
                names.append(name)
        if len(names) < 2:
            return names
        return sorted(names, key=lambda name: (name <= self._last, name))

    def move_clocks_on(self) -> None:
        """Moves the `auto` clocks to what is due next, where nobody has work."""
        for name, clock in self._clocks.own.items():
            state = self._world.states.get(name)
            moment_ms = None if state is None else self.skip_ms(state, clock)
            if state is None or moment_ms is None or _seconds_until_quiet(clock) > 0:
                continue
            if clock.auto != "locks":
                self.hold_sessions(state, clock.now_ms(), moment_ms)
            clock.move_to(moment_ms)
            self._do(state, SetClock(clock.now_ms(), self._clocks.time_ms()))

    def skip_ms(self, state: State, clock: NamespaceClock) -> int | None:
        """The moment that an `auto` clock moves to when no command comes any more."""
        if not clock.auto:
            return None
        locks = clock.auto == "locks"
        moment_ms = next_skip_ms(state, clock.activity, clock.now_ms(), locks=locks)
        return None if moment_ms is None or moment_ms > MOVED_MS_MAX else moment_ms

    def hold_sessions(self, state: State, now_ms: int, moment_ms: int) -> None:
        """Renews sessions whose holders wait for the next message, so that a skip ends none.

        Where messages of a session are locked their receiver is gone, else nothing is skipped.
        """
        for token, (queue, group) in list(state.sessions.items()):
            lasting_ms = group.until_ms - now_ms + moment_ms - now_ms
            if not group.locks and 0 < lasting_ms <= DURATION_MS_MAX:
                self._do(state, RenewSession(queue.name, token, lasting_ms))

    def seconds_until_next(self) -> float | None:
        """The seconds in real time until something is due; None where nothing will be by itself."""
        agenda, own = self.agenda, self._clocks.own
        agenda.take_changed()
        waits: list[float | None] = []
        if (first := agenda.first(own)) is not None:
            waits.append(self._clocks.broker.seconds_until(first[0]))
        for name, clock in own.items():
            state = self._world.states.get(name)
            if state is None:
                continue
            due_ms = agenda.due_ms(name)
            waits.append(None if due_ms is None else clock.seconds_until(due_ms))
            if self.skip_ms(state, clock):
                waits.append(max(0.0, _seconds_until_quiet(clock)))
        return min((seconds for seconds in waits if seconds is not None), default=None)


def _seconds_until_quiet(clock: NamespaceClock) -> float:
    return clock.activity.last + QUIET_SECONDS - asyncio.get_running_loop().time()


def _count(fired: Counter[tuple[str, str]], outcome: Outcome) -> None:
    for record in outcome.records:
        if is_kept(record):
            fired[type(record).__name__, getattr(record, "queue", "")] += span(record)
