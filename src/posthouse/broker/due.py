"""Due work: expired locks and messages, schedules, idle queues. The core says when.

It is done in slices beside traffic, and namespaces take turns. A commit asks only the namespaces
that it has changed when something is due there, however many there are.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from posthouse.broker.admission import Admission
from posthouse.broker.clocks import Clocks, NamespaceClock
from posthouse.broker.idleness import QUIET_SECONDS, next_skip_ms
from posthouse.broker.rows import kind_of
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


def next_due_ms(states: Iterable[State]) -> int | None:
    """The earliest moment at which something is due in one of them."""
    due = (next_deadline_ms(state) for state in states)
    return min((due_ms for due_ms in due if due_ms is not None), default=None)


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
        self._fanout = ""  # that all namespaces have
        self.changed: set[str] = set()  # the namespaces in which something else may be due now
        # When something is due, by namespace, where that is by the broker's clock; and a heap of
        # the same, in which entries may be out of date.
        self._dues: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []
        # Due events of a namespace, or of all (None), while they are counted.
        self.fired: dict[str | None, Counter[tuple[str, str]]] = {}

    def do_some(self) -> bool:
        """A slice of it, which does not take long. Returns whether there was something."""
        self._set_fanout(self._admission.fanout())
        due = self._take_due()
        begun = time.perf_counter()
        for name in due:
            outcome = self._do(self._world.states[name], Tick())
            for counted in self.fired.keys() & {name, None}:
                _count(self.fired[counted], outcome)
            if time.perf_counter() - begun > _SLICE_SECONDS:
                self._last = name
                break
        return bool(due)

    def look_at_all(self) -> None:
        """Every namespace may have changed."""
        self._fanout = ""
        self.changed.update(self._world.states)

    def _set_fanout(self, fanout: Fanout) -> None:
        if fanout == self._fanout == "open":  # which new namespaces have, too
            return
        self._fanout = fanout
        for state in self._world.states.values():
            if state.fanout != fanout:
                self._do(state, SetFanout(fanout))

    def _refresh(self) -> None:
        """Asks the namespaces that have changed, and brings the heap's first entry up to date."""
        dues, order, own = self._dues, self._order, self._clocks.own
        for name in self.changed:
            state = self._world.states.get(name)
            due_ms = None if state is None or name in own else next_deadline_ms(state)
            if due_ms is None:
                dues.pop(name, None)
            elif dues.get(name) != due_ms:
                dues[name] = due_ms
                heappush(order, (due_ms, name))
        self.changed.clear()
        while order and dues.get(order[0][1]) != order[0][0]:
            heappop(order)
        if len(order) > 2 * len(dues) + 64:
            self._order = [(due_ms, name) for name, due_ms in dues.items()]
            heapify(self._order)

    def _take_due(self) -> list[str]:
        """The namespaces in which something is due, behind the one that used up the last slice.

        They are asked again next time, whatever is done of it.
        """
        self._refresh()
        due, states = [], self._world.states
        if self._order and self._order[0][0] <= (now_ms := self._clocks.time_ms()):
            while self._order and self._order[0][0] <= now_ms:
                due_ms, name = heappop(self._order)
                if self._dues.get(name) == due_ms:
                    del self._dues[name]
                    self.changed.add(name)
                    if name in states and name not in self._clocks.own:
                        due.append(name)
        for name, clock in self._clocks.own.items():
            moment_ms = next_deadline_ms(states[name]) if name in states else None
            if moment_ms is not None and moment_ms <= clock.now_ms():
                due.append(name)
        if self._last in due:
            at = due.index(self._last) + 1
            return due[at:] + due[:at]
        return due

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
        self._refresh()
        waits: list[float | None] = []
        if self._order:
            waits.append(self._clocks.broker.seconds_until(self._order[0][0]))
        for name, clock in self._clocks.own.items():
            state = self._world.states.get(name)
            if state is None:
                continue
            due_ms = next_deadline_ms(state)
            if due_ms is not None:
                waits.append(clock.seconds_until(due_ms))
            if self.skip_ms(state, clock):
                waits.append(max(0.0, _seconds_until_quiet(clock)))
        return min((seconds for seconds in waits if seconds is not None), default=None)


def _seconds_until_quiet(clock: NamespaceClock) -> float:
    return clock.activity.last + QUIET_SECONDS - asyncio.get_running_loop().time()


def _count(fired: Counter[tuple[str, str]], outcome: Outcome) -> None:
    for record in outcome.records:
        if is_kept(record):
            fired[kind_of(record), getattr(record, "queue", "")] += span(record)
