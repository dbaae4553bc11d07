"""What a client has done: how often, how long it took, and what went wrong."""

from bisect import bisect_left
from typing import NamedTuple

# Upper ends of the classes in which durations are counted, in seconds; there is one more above.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Figure(NamedTuple):
    """Of one operation with one outcome: `ok`, or the name of an error."""

    operation: str
    outcome: str
    calls: int
    seconds: float  # all together
    classes: tuple[int, ...]  # how many fell into each, by BOUNDS


class Figures:
    def __init__(self) -> None:
        self._classes: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def note(self, operation: str, outcome: str, seconds: float) -> None:
        key = operation, outcome
        classes = self._classes.get(key)
        if classes is None:
            classes = self._classes[key] = [0] * (len(BOUNDS) + 1)
            self._seconds[key] = 0.0
        classes[bisect_left(BOUNDS, seconds)] += 1
        self._seconds[key] += seconds

    def all(self) -> list[Figure]:
        return [
            Figure(*key, sum(classes), self._seconds[key], tuple(classes))
            for key, classes in sorted(self._classes.items())
        ]
