"""Figures about a node of a cluster, for its status and its metrics."""

from posthouse.broker.figures import Histogram


class NodeFigures:
    """Since the start of the process. Times are those of the loop."""

    def __init__(self) -> None:
        self.log_seconds = Histogram([0.0005 * 2**n for n in range(14)])
        self.fences = 0  # leaderships that were seen to begin
        self._led_since: float | None = None
        self._behind_since: float | None = None

    def note_led(self, now: float) -> None:
        self._led_since = now

    def leads_ms(self, now: float) -> int:
        """How long this node has led; 0 while it does not."""
        return 0 if self._led_since is None else round((now - self._led_since) * 1_000)

    def behind_ms(self, now: float, *, lacks: bool) -> int:
        """For how long this node has lacked something; it is told whether it does now."""
        if not lacks:
            self._behind_since = None
            return 0
        if self._behind_since is None:
            self._behind_since = now
        return round((now - self._behind_since) * 1_000)
