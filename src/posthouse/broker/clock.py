"""The broker's clock: milliseconds since 1970 that never go back."""

import asyncio
import time
from typing import Protocol

STEP_MS = 5_000  # a forward jump larger than this is a step, and locks are extended by it
_COMPARE_NS = 1_000_000_000


class Clock(Protocol):
    def now_ms(self) -> int:
        """The time now, never less than before."""

    def machine_ms(self) -> int:
        """The machine's clock as it is now; it may have gone back."""

    def take_step_ms(self) -> int:
        """The milliseconds of forward jumps since the last call; 0 unless there was a real jump."""

    def seconds_until(self, moment_ms: int) -> float | None:
        """The seconds to wait in real time; None where time does not pass by itself."""


class Machine(Protocol):
    """The two clocks of a machine, as the module `time` reads them."""

    def time_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class SystemClock:
    """The machine's clock. Where that goes back, time passes at half its speed until they agree."""

    def __init__(self, machine: Machine = time) -> None:
        self._machine = machine
        self._step_ns = 0
        self._last_ns = self._wall_ns = machine.time_ns()
        self._steady_ns = machine.monotonic_ns()  # when it was `_wall_ns`

    def now_ms(self) -> int:
        wall_ns = self._machine.time_ns()
        if wall_ns < self._last_ns or wall_ns - self._wall_ns > _COMPARE_NS:
            wall_ns = self._compare(wall_ns)
        self._last_ns = wall_ns
        return wall_ns // 1_000_000

    def _compare(self, wall_ns: int) -> int:
        """Compares the machine's clock with a steady one, once a second and when it looks odd."""
        steady_ns = self._machine.monotonic_ns()
        passed_ns = steady_ns - self._steady_ns
        expected_ns = self._wall_ns + passed_ns
        if wall_ns < expected_ns:
            wall_ns = max(wall_ns, self._last_ns, self._wall_ns + passed_ns // 2)
        elif wall_ns - expected_ns > STEP_MS * 1_000_000:
            self._step_ns += wall_ns - expected_ns
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        return wall_ns

    def machine_ms(self) -> int:
        return self._machine.time_ns() // 1_000_000

    def take_step_ms(self) -> int:
        if not self._step_ns:
            return 0
        step_ms, self._step_ns = self._step_ns // 1_000_000, 0
        return step_ms

    def seconds_until(self, moment_ms: int) -> float | None:
        return max(0, moment_ms - self.now_ms()) / 1000


class VirtualClock:
    """A clock that can be moved forward. It runs with another one, or stands still without one."""

    def __init__(self, now_ms: int = 0, base: Clock | None = None) -> None:
        self._base = base
        self._now_ms = now_ms
        self._base_ms = 0 if base is None else base.now_ms()  # the base's time then
        self._frozen = base is None
        self.moving = asyncio.Lock()  # of who moves it step by step

    @property
    def runs(self) -> bool:
        return not self._frozen

    def now_ms(self) -> int:
        if self._frozen or self._base is None:
            return self._now_ms
        return self._now_ms + self._base.now_ms() - self._base_ms

    def machine_ms(self) -> int:
        return self._now_ms if self._base is None else self._base.machine_ms()

    def take_step_ms(self) -> int:
        return 0  # the base is asked for itself

    def seconds_until(self, moment_ms: int) -> float | None:
        now_ms = self.now_ms()
        if moment_ms <= now_ms:
            return 0
        return None if self._frozen else (moment_ms - now_ms) / 1000

    def move_to(self, moment_ms: int) -> None:
        """Moves the clock forward; it goes on from there as it did."""
        self._now_ms = max(self.now_ms(), moment_ms)
        self._base_ms = 0 if self._base is None else self._base.now_ms()

    def freeze(self) -> None:
        self.move_to(0)
        self._frozen = True

    def resume(self) -> None:
        """Runs on from where it stands, if it has something to run with."""
        self.move_to(0)
        self._frozen = self._base is None
