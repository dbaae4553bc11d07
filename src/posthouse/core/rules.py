"""Rules: which messages of a topic go into a subscription, and what is changed of them on the way.

These are the rules as they are kept; `routing` makes them work.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from posthouse.core.message import Properties

DEFAULT_RULE = "$Default"
Style = Literal["amqp", "nats"]  # of patterns: * and #, or * and >


# In the journal an array that begins with its kind. Fields are only ever added at the end.
class _Filter(msgspec.Struct, array_like=True, frozen=True):
    pass


class TrueFilter(_Filter, frozen=True, tag=0):
    pass


class FalseFilter(_Filter, frozen=True, tag=1):
    pass


class SqlFilter(_Filter, frozen=True, tag=2):
    expression: str
    parameters: Properties = {}
    loose: bool = False  # texts are compared with numbers and truths by what they say


class CorrelationFilter(_Filter, frozen=True, tag=3):
    """All of them have to be equal. `fields` are called as in the envelope."""

    fields: dict[str, str] = {}
    properties: Properties = {}


class PatternFilter(_Filter, frozen=True, tag=4):
    """Looks at the subject, whose levels are separated by dots."""

    pattern: str
    style: Style = "amqp"


Filter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter | PatternFilter


class Rule(msgspec.Struct, array_like=True, frozen=True):
    """`action`: what is changed of a message, in SQL; empty: nothing."""

    name: str
    filter: Filter = TrueFilter()
    action: str = ""
    parameters: Properties = {}  # of the action
    created_ms: int = 0


def sql_chars(rule: Rule) -> int:
    """How much of it has to be parsed."""
    said = len(rule.filter.expression) if isinstance(rule.filter, SqlFilter) else 0
    return said + len(rule.action)


def bytes_of(rules: Iterable[Rule]) -> int:
    """The memory that rules take, compiled, about."""
    return sum(map(_bytes_of, rules))


def _bytes_of(rule: Rule) -> int:
    said = len(msgspec.msgpack.encode(rule))
    return _RULE_BYTES + _PARSED_BYTES * sql_chars(rule) + _SAID_BYTES * said


_RULE_BYTES = 2_000
_PARSED_BYTES, _SAID_BYTES = 40, 4  # for each character of SQL, and for each byte of all it says
