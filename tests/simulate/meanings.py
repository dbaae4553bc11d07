"""What the rules that the simulator uses mean, each said in Python beside its expression."""

from collections.abc import Callable
from typing import Any

from posthouse.core.message import Properties
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    SqlFilter,
    TrueFilter,
)


class Unclear(Exception):
    """The rule cannot be evaluated for this message."""


def _divided_by_nothing(properties: Properties) -> bool:
    if "n" in properties:
        raise Unclear
    return False


def _n(properties: Properties) -> Any:
    return properties.get("n", -1)


# What is not there is neither more nor less than anything.
SQL: dict[str, Callable[[Properties], bool]] = {
    "n > 5": lambda properties: _n(properties) > 5,
    "n <= 5": lambda properties: 0 <= _n(properties) <= 5,
    "colour = 'red'": lambda properties: properties.get("colour") == "red",
    "n > 5 OR colour = 'red'": lambda properties: (
        _n(properties) > 5 or properties.get("colour") == "red"
    ),
    "n / 0 = 1": _divided_by_nothing,
}

# What an action makes of properties, subject and group.
Changed = tuple[Properties, str, str | None]
ACTIONS: dict[str, Callable[[Properties, str, str | None], Changed]] = {
    "SET n = 9": lambda properties, subject, group: ({**properties, "n": 9}, subject, group),
    "REMOVE colour": lambda properties, subject, group: (
        {name: value for name, value in properties.items() if name != "colour"}, subject, group
    ),
    "SET sys.Label = 'changed'": lambda properties, _, group: (properties, "changed", group),
    "SET sys.SessionId = 's2'": lambda properties, subject, _: (properties, subject, "s2"),
}  # fmt: skip

FILTERS: list[Filter] = [
    TrueFilter(),
    TrueFilter(),
    FalseFilter(),
    CorrelationFilter({"subject": "events"}),
    CorrelationFilter({}, {"colour": "red"}),
    CorrelationFilter({"subject": "events.red"}, {"n": 3}),
    *(SqlFilter(expression) for expression in SQL),
]
PATTERNS: list[Filter] = [
    PatternFilter("events.*"),
    PatternFilter("events.#"),
    PatternFilter("#.red"),
    PatternFilter("events.>", "nats"),
    PatternFilter("*", "nats"),
]


def fits(wanted: Filter, properties: Properties, subject: str) -> bool:
    """Raises Unclear."""
    match wanted:
        case TrueFilter():
            return True
        case FalseFilter():
            return False
        case SqlFilter():
            return SQL[wanted.expression](properties)
        case CorrelationFilter():
            same = all(properties.get(name) == value for name, value in wanted.properties.items())
            return same and wanted.fields.get("subject", subject) == subject
        case PatternFilter():
            levels = subject.split(".") if subject else []
            return _follows(wanted.pattern.split("."), levels)


def _follows(pattern: list[str], levels: list[str]) -> bool:
    if not pattern:
        return not levels
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_follows(rest, levels[at:]) for at in range(len(levels) + 1))
    if first == ">":
        return len(levels) > 0
    return len(levels) > 0 and first in ("*", levels[0]) and _follows(rest, levels[1:])
