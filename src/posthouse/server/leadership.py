"""The leader of a cluster as one of its nodes knows it, and callbacks for when it changes."""

import asyncio
from collections.abc import Callable

from posthouse.broker.standby import Beat

LeaderChanged = Callable[[Beat | None], None]


class Leadership:
    """The last beat of the leader, for as long as it is not silent. It is told, never polled.

    `silence_seconds` after its last beat a leader is taken to be unknown. One that leaves is
    unknown at once.
    """

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._beat: Beat | None = None
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: list[LeaderChanged] = []

    @property
    def leader(self) -> Beat | None:
        return self._beat

    def on_change(self, told: LeaderChanged) -> None:
        """Calls `told` when another node or epoch leads, and with None when nobody does."""
        self._watchers.append(told)

    def hear(self, beat: Beat) -> None:
        """Notes a beat of the leader, or of one that leaves."""
        if beat.role == "leaving":
            self.lose()
            return
        self._heard = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_seconds, self._look)
        self._set(beat)

    def lead(self, beat: Beat) -> None:
        """This node leads: it need not hear itself."""
        self._stop_timer()
        self._set(beat)

    def lose(self) -> None:
        """Nobody is known to lead."""
        self._stop_timer()
        self._set(None)

    def close(self) -> None:
        self._watchers.clear()
        self._stop_timer()

    def _look(self) -> None:
        """Looks whether the leader was silent; one timer serves many beats."""
        self._timer = None
        left = self._heard + self._silence_seconds - self._loop.time()
        if left <= 0:
            self._set(None)
        else:
            self._timer = self._loop.call_later(left, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, beat: Beat | None) -> None:
        before, self._beat = self._beat, beat
        if _who(before) != _who(beat):
            for told in self._watchers:
                told(beat)


def _who(beat: Beat | None) -> tuple[str, int] | None:
    return None if beat is None else (beat.node, beat.epoch)
