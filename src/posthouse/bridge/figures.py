"""The figures of a bridge, counted, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

# Upper ends of the classes in which durations are counted, in seconds; there is one more above.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

HELP = {
    "bridge_outbox_pending": ("gauge", "Rows of the outbox that are not sent yet."),
    "bridge_outbox_oldest_seconds": ("gauge", "Age of the oldest row that is not sent yet."),
    "bridge_outbox_failed": ("gauge", "Rows of the outbox that the transport refuses."),
    "bridge_relayed_total": ("counter", "Rows of the outbox that were sent."),
    "bridge_relay_seconds": ("histogram", "From the commit of an event to its acknowledgement."),
    "bridge_published_total": ("counter", "Events that were published without an outbox."),
    "bridge_events_total": ("counter", "Deliveries that were handled, by outcome."),
    "bridge_handler_seconds": ("histogram", "How long handlers took."),
    "bridge_inbox_duplicates_total": ("counter", "Deliveries that the inbox had seen before."),
    "bridge_dead_letters_total": ("counter", "Events that went to the dead letters, by reason."),
}


class Figures:
    """Counters, gauges and histograms. Threads may share them; names and labels are few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._classes: dict[str, list[int]] = {name: [0] * (len(BOUNDS) + 1) for name in _SPANS}
        self._sums: dict[str, float] = dict.fromkeys(_SPANS, 0.0)

    def count(self, name: str, label: str = "", number: float = 1) -> None:
        with self._lock:
            key = name, label
            self._values[key] = self._values.get(key, 0) + number

    def put(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def observe(self, name: str, seconds: float) -> None:
        with self._lock:
            self._classes[name][bisect_left(BOUNDS, seconds)] += 1
            self._sums[name] += seconds

    def value(self, name: str, label: str = "") -> float:
        """Returns a counter or gauge; 0 where it was never counted."""
        with self._lock:
            return self._values.get((name, label), 0)

    def by_label(self, name: str) -> Mapping[str, float]:
        """Returns a counter by its label."""
        with self._lock:
            return {label: value for (key, label), value in self._values.items() if key == name}

    def observed(self, name: str) -> tuple[int, float]:
        """Returns how many durations were observed, and their sum in seconds."""
        with self._lock:
            return sum(self._classes[name]), self._sums[name]

    def prometheus(self) -> str:
        """Returns all figures in the text format of Prometheus."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, help) in HELP.items():
                lines += (f"# HELP {name} {help}", f"# TYPE {name} {kind}")
                if kind == "histogram":
                    lines += self._histogram(name)
                    continue
                labelled = _LABELS.get(name)
                found = {
                    label: value for (key, label), value in self._values.items() if key == name
                }
                if labelled is None:
                    lines.append(f"{name} {found.get('', 0):g}")
                else:
                    lines += (
                        f'{name}{{{labelled}="{label}"}} {value:g}'
                        for label, value in sorted(found.items())
                    )
        return "".join(f"{line}\n" for line in lines)

    def _histogram(self, name: str) -> list[str]:
        classes = self._classes[name]
        lines = [
            f'{name}_bucket{{le="{bound}"}} {below}'
            for bound, below in zip((*BOUNDS, "+Inf"), accumulate(classes), strict=True)
        ]
        return [*lines, f"{name}_sum {self._sums[name]:g}", f"{name}_count {sum(classes)}"]


_SPANS = tuple(name for name, (kind, _) in HELP.items() if kind == "histogram")
_LABELS = {"bridge_events_total": "outcome", "bridge_dead_letters_total": "reason"}
