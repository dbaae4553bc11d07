"""Due work: expired locks and messages, schedules, idle queues. The core says when.

It is done in slices beside traffic, and namespaces take turns.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

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
from posthouse.core.model import State
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
        # Due events of a namespace, or of all (None), while they are counted.
        self.fired: dict[str | None, Counter[tuple[str, str]]] = {}

    def do_some(self) -> bool:
        """A slice of it, which does not take long. Returns whether there was something."""
        did, fanout = False, self._admission.fanout()
        begun = time.perf_counter()
        for state in self._in_turn():
            if state.fanout != fanout:
                self._do(state, SetFanout(fanout))
            due_ms = next_deadline_ms(state)
            if due_ms is not None and due_ms <= self._clocks.now_ms(state.name):
                outcome = self._do(state, Tick())
                for name in self.fired.keys() & {state.name, None}:
                    _count(self.fired[name], outcome)
                did = True
                if time.perf_counter() - begun > _SLICE_SECONDS:
                    self._last = state.name
                    break
        return did

    def _in_turn(self) -> list[State]:
        """The namespaces, beginning behind the one that used up the last slice."""
        states = self._world.states
        if len(states) == 1 or self._last not in states:
            return [*states.values()]
        names = [*states]
        at = names.index(self._last) + 1
        return [states[name] for name in names[at:] + names[:at]]

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
        waits: list[float] = []
        for state in self._world.states.values():
            due_ms = next_deadline_ms(state)
            seconds = None if due_ms is None else self._clocks.seconds_until(state.name, due_ms)
            if seconds is not None:
                waits.append(seconds)
        for name, clock in self._clocks.own.items():
            if name in self._world.states and self.skip_ms(self._world.states[name], clock):
                waits.append(max(0.0, _seconds_until_quiet(clock)))
        return min(waits, default=None)


def _seconds_until_quiet(clock: NamespaceClock) -> float:
    return clock.activity.last + QUIET_SECONDS - asyncio.get_running_loop().time()


def _count(fired: Counter[tuple[str, str]], outcome: Outcome) -> None:
    for record in outcome.records:
        if is_kept(record):
            fired[type(record).__name__, getattr(record, "queue", "")] += span(record)
