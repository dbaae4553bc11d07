"""Due work: expired locks and messages, schedules, idle queues. The core says when.

It is done in slices beside traffic, and namespaces take turns.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable

from posthouse.broker.admission import Admission
from posthouse.broker.clocks import Clocks
from posthouse.core import next_deadline_ms
from posthouse.core.commands import DURATION_MS_MAX, LAST_MS, Command, SetClock, SetFanout, Tick
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
        self.fired: Counter[tuple[str, str]] | None = None  # due events, while they are counted

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
                if self.fired is not None:
                    _count(self.fired, outcome)
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
        """Moves the automatic clocks to what is due next, as nothing has happened meanwhile."""
        for name, clock in self._clocks.own.items():
            state = self._world.states.get(name)
            due_ms = None if state is None or not clock.auto else next_deadline_ms(state)
            if state is None or due_ms is None or due_ms > MOVED_MS_MAX:
                continue
            if due_ms > clock.now_ms():
                clock.move_to(due_ms)
                self._do(state, SetClock(clock.now_ms(), self._clocks.time_ms()))

    def seconds_until_next(self) -> float | None:
        """The seconds in real time until something is due; None where nothing will be by itself."""
        waits: list[float] = []
        for state in self._world.states.values():
            due_ms = next_deadline_ms(state)
            seconds = None if due_ms is None else self._clocks.seconds_until(state.name, due_ms)
            if seconds is not None:
                waits.append(seconds)
        return min(waits, default=None)


def _count(fired: Counter[tuple[str, str]], outcome: Outcome) -> None:
    for record in outcome.records:
        if is_kept(record):
            fired[type(record).__name__, getattr(record, "queue", "")] += span(record)
