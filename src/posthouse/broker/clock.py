"""What time it is, for a namespace: milliseconds since 1970 that never go back."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Never less than before."""

    def seconds_until(self, moment_ms: int) -> float | None:
        """How long to wait in real time; None where time does not pass by itself."""


class SystemClock:
    """The machine's clock, held where it is while that goes back."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
        return self._last_ms

    def seconds_until(self, moment_ms: int) -> float | None:
        return max(0, moment_ms - self.now_ms()) / 1000


class VirtualClock:
    """Stands still until it is moved, which `Engine.advance` does."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def seconds_until(self, moment_ms: int) -> float | None:
        return 0 if moment_ms <= self._now_ms else None

    def move_to(self, moment_ms: int) -> None:
        self._now_ms = max(self._now_ms, moment_ms)
