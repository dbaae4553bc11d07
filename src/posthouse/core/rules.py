"""Rules: which messages of a topic go into a subscription, and what is changed of them on the way.

These are the rules as they are kept; `routing` makes them work.
"""

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
