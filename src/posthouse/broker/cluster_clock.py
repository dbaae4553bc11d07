"""Time in a cluster: a node that takes over goes on with the time of the leader before it.

Each follower measures by the leader's beats how far the leader's time is ahead of its own clock. A
beat is under way for a while, so what is measured is too little, never too much: the most of the
last beats is nearest to the truth.

A node that begins to lead shows the old leader's time first. Then its time comes to its own clock:

    the difference is            its time
    up to 5 s                    runs a tenth faster or slower until they agree
    more, its clock is ahead     jumps, and every lock is extended by that (as when the clock of a
                                 single machine is set forward)
    more, its clock is behind    runs at half its speed until they agree

So a takeover by itself ends no lock, and makes nothing due that is not due by the new leader's
clock either.
"""

import logging
import time
from collections import deque

from posthouse.broker.clock import STEP_MS, Clock
from posthouse.broker.standby import Beat

_log = logging.getLogger(__name__)

WINDOW = 50  # beats: ten seconds of an idle leader
WARN_MS = 1_000
WARN_SECONDS = 3_600.0  # between two warnings
_WORN_PART = 10  # of the time that passes


class ClockOffset:
    """How far the leader's time is ahead of this node's clock."""

    def __init__(self) -> None:
        self._leader: tuple[str, int] | None = None
        self._samples: deque[int] = deque(maxlen=WINDOW)

    def hear(self, leader: tuple[str, int], leader_ms: int, own_ms: int) -> None:
        """Takes a beat that came just now: who leads with which epoch, its time, and one's own."""
        if leader != self._leader:
            self._leader = leader
            self._samples.clear()
        self._samples.append(leader_ms - own_ms)

    @property
    def ms(self) -> int | None:
        """None where no leader was heard yet."""
        return max(self._samples, default=None)


class ClusterClock:
    """A clock that goes on from another's time, and comes to the time of its base by and by."""

    def __init__(self, base: Clock) -> None:
        self.base = base
        self._shift_ms = 0.0  # by which this one is ahead
        self._base_ms = base.now_ms()  # when `_shift_ms` was computed
        self._last_ms = 0
        self._step_ms = 0
        self._is_half_speed = False

    def go_on(self, offset_ms: int) -> None:
        """Shows the time of one that is ahead by this. `settle` is to follow."""
        self._base_ms = self.base.now_ms()
        self._last_ms = 0  # what followers have shown binds nobody
        self._shift_ms = offset_ms
        self._is_half_speed = offset_ms > STEP_MS

    def settle(self) -> None:
        """Jumps to the time of the base where that is far ahead; `take_step_ms` tells of it."""
        if self._shift_ms < -STEP_MS:
            self._step_ms += round(-self._shift_ms)
            self._shift_ms = 0.0

    def now_ms(self) -> int:
        base_ms = self.base.now_ms()
        if not self._shift_ms:
            self._last_ms = max(self._last_ms, base_ms)
            return self._last_ms
        if self._shift_ms >= -STEP_MS:  # else it is about to jump
            worn_ms = (base_ms - self._base_ms) / (2 if self._is_half_speed else _WORN_PART)
            if self._shift_ms > 0:
                self._shift_ms = max(0.0, self._shift_ms - worn_ms)
            else:
                self._shift_ms = min(0.0, self._shift_ms + worn_ms)
        self._base_ms = base_ms
        self._last_ms = max(self._last_ms, base_ms + round(self._shift_ms))
        return self._last_ms

    def machine_ms(self) -> int:
        return self.base.machine_ms()

    def take_step_ms(self) -> int:
        step_ms, self._step_ms = self._step_ms, 0
        return step_ms + self.base.take_step_ms()

    def seconds_until(self, moment_ms: int) -> float | None:
        """One that is slower than its base wakes early, and is asked again."""
        left_ms = moment_ms - self.now_ms()
        if self._shift_ms < 0:
            left_ms = left_ms * _WORN_PART // (_WORN_PART + 1)
        return self.base.seconds_until(self.base.now_ms() + max(0, left_ms))


class LeaderTime:
    """The leader's time as a node measures it while it follows, and goes on with when it leads."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._offset = ClockOffset()
        self._warned: float | None = None

    @property
    def offset_ms(self) -> int | None:
        """By how much the leader's time is ahead; None where no leader was heard yet."""
        return self._offset.ms

    def hear(self, beat: Beat) -> None:
        """Measures, and warns of a clock that is off."""
        self._offset.hear((beat.node, beat.epoch), beat.time_ms, self._clock.base.now_ms())
        offset_ms, now = self._offset.ms or 0, time.monotonic()
        if abs(offset_ms) <= WARN_MS:
            return
        if self._warned is None or now - self._warned >= WARN_SECONDS:
            self._warned = now
            _log.warning(
                "The clock of this node is %.1f seconds %s the leader's time. Set the clocks of all"
                " machines, by NTP for one.", abs(offset_ms) / 1_000,
                "behind" if offset_ms > 0 else "ahead of",
                extra={"event": "cluster.clock", "offset_ms": offset_ms},
            )  # fmt: skip

    def take_over(self) -> None:
        """Goes on with the leader's time, if it was heard. `settle` is to follow."""
        if self._offset.ms is not None:
            self._clock.go_on(self._offset.ms)

    def settle(self) -> None:
        """The engine leads: its time may jump now, where its clock is far ahead."""
        self._clock.settle()
