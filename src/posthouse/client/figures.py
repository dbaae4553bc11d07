"""The figures of a client: how often each operation was done, how long it took, and its errors."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

# Upper ends of the classes in which durations are counted, in seconds; there is one more above.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Fate: TypeAlias = Literal[
    "sent", "received", "acknowledged", "rejected", "dead_lettered", "deferred", "released"
]
Record: TypeAlias = Callable[[str, str, float], None]  # what `note` is told


@dataclass(frozen=True)
class Figure:
    """The figures of one operation with one outcome: `ok`, or the name of an error."""

    operation: str
    outcome: str
    count: int
    seconds: float  # all together
    classes: tuple[int, ...]  # how many fell into each, by BOUNDS


class Figures:
    """Operations and outcomes are few and known, so this does not grow."""

    def __init__(self, record: Record | None = None) -> None:
        self._classes: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}
        self._messages: dict[Fate, int] = {}
        self._record = record

    def note(self, operation: str, outcome: str, seconds: float) -> None:
        key = operation, outcome
        classes = self._classes.get(key)
        if classes is None:
            self._seconds[key] = 0.0
            classes = self._classes[key] = [0] * (len(BOUNDS) + 1)
        classes[bisect_left(BOUNDS, seconds)] += 1
        self._seconds[key] += seconds
        if self._record is not None:
            self._record(operation, outcome, seconds)

    def count(self, fate: Fate, messages: int) -> None:
        """Counts messages that were sent, received or settled."""
        self._messages[fate] = self._messages.get(fate, 0) + messages

    @property
    def messages(self) -> dict[Fate, int]:
        """The numbers of messages that were sent, received and settled."""
        return dict(self._messages)

    def all(self) -> list[Figure]:
        found = []
        for key, counted in sorted(self._classes.items()):
            classes = tuple(counted)
            found.append(Figure(*key, sum(classes), self._seconds[key], classes))
        return found

    def prometheus(self) -> str:
        """Returns the figures in the text format of Prometheus, for a program's own metrics."""
        lines: list[str] = []
        for fate, count in sorted(self._messages.items()):
            name = f"queue_messages_{fate}_total"
            lines += (f"# TYPE {name} counter", f"{name} {count}")
        before = ""
        for figure in self.all():
            name = f"queue_{figure.operation.replace('-', '_')}_duration_seconds"
            if name != before:
                lines.append(f"# TYPE {name} histogram")
                before = name
            outcome = f'outcome="{figure.outcome}"'
            for bound, below in zip((*BOUNDS, "+Inf"), accumulate(figure.classes), strict=True):
                lines.append(f'{name}_bucket{{{outcome},le="{bound}"}} {below}')
            lines.append(f"{name}_sum{{{outcome}}} {figure.seconds}")
            lines.append(f"{name}_count{{{outcome}}} {figure.count}")
        return "".join(f"{line}\n" for line in lines)
