"""The broker's time, and the clocks of namespaces that have their own."""

from collections.abc import Callable, Iterable
from typing import Literal

from posthouse.broker.clock import STEP_MS, Clock, VirtualClock
from posthouse.broker.idleness import Activity
from posthouse.core.model import State

# Whether a clock moves by itself when nobody has work; "locks": it lets locks run out, too.
Auto = bool | Literal["locks"]


class NamespaceClock(VirtualClock):
    """The clock of one namespace, and what its clients do by it."""

    def __init__(self, now_ms: int, base: Clock) -> None:
        super().__init__(now_ms, base)
        self.auto: Auto = False
        self.activity = Activity()


class Clocks:
    """The broker's time is never before what its journal has seen, wherever the clock is.

    `stepped` is called with the step and the time when the machine's clock has jumped forward.
    """

    def __init__(
        self,
        clock: Clock,
        least_ms: int,
        states: Iterable[State],
        stepped: Callable[[int, int], None],
    ) -> None:
        self.broker = clock
        self.own: dict[str, NamespaceClock] = {}  # of namespaces that have one
        self._least_ms = least_ms
        self._stepped = stepped
        self._seen_ms = clock.now_ms()
        for state in states:
            self.restore(state)

    def restore(self, state: State) -> None:
        """Gives a namespace its own clock, where the journal says that it was ever moved."""
        if state.clock_ms:  # it does not go back behind where it was since
            passed_ms = max(0, self.time_ms() - state.broker_ms) if state.broker_ms else 0
            self.own[state.name] = NamespaceClock(state.clock_ms + passed_ms, self.broker)

    def follow(self, time_ms: int) -> None:
        """Notes the time at which the leader has written a frame."""
        self._least_ms = time_ms

    def begin(self, states: Iterable[State]) -> None:
        """Leads from now on, as at a start: how the clock has jumped before concerns nobody."""
        self.broker.take_step_ms()
        self._seen_ms = self.broker.now_ms()
        for state in states:
            self.restore(state)

    def time_ms(self) -> int:
        now_ms = self.broker.now_ms()
        if now_ms < self._least_ms:
            now_ms = self._least_ms
        if now_ms - self._seen_ms > STEP_MS:  # much time has passed, or the clock has jumped
            step_ms = self.broker.take_step_ms()
            if step_ms:
                self._stepped(step_ms, now_ms)
        self._seen_ms = now_ms
        return now_ms

    def now_ms(self, namespace: str) -> int:
        """The current time in a namespace; where there is no such namespace, the broker's."""
        clock = self.own.get(namespace)
        return self.time_ms() if clock is None else clock.now_ms()

    def ahead_ms(self) -> int:
        """The milliseconds by which the broker's time is ahead of the machine's clock.

        The clock was set back, or was wrong once. Time never goes back by itself, so it stays so
        until the machine has caught up.
        """
        return max(0, self.time_ms() - self.broker.machine_ms())

    def turn_back(self) -> int:
        """Sets the broker's time to the machine's; returns it."""
        self._least_ms = self._seen_ms = self.broker.machine_ms()
        return self._least_ms

    def of(self, namespace: str) -> NamespaceClock:
        """A clock of the namespace's own; until it is moved it goes as the broker's does."""
        clock = self.own.get(namespace)
        if clock is None:
            clock = self.own[namespace] = NamespaceClock(self.time_ms(), self.broker)
        return clock

    def jumps_with_the_broker(self, namespace: str) -> bool:
        clock = self.own.get(namespace)
        return clock is None or clock.runs
