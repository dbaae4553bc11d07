"""Filters and actions as trees, as they were written. `at` is where in the text a part begins."""

from dataclasses import dataclass
from typing import Literal

from posthouse.core.message import Value

Scope = Literal["sys", "user"]


@dataclass(frozen=True, slots=True)
class Part:
    at: int


@dataclass(frozen=True, slots=True)
class Or(Part):
    conditions: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class And(Part):
    conditions: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Not(Part):
    condition: "Node"


@dataclass(frozen=True, slots=True)
class Comparison(Part):
    symbol: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class In(Part):
    value: "Node"
    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Like(Part):
    value: "Node"
    pattern: "Node"
    escape: "Node | None"


@dataclass(frozen=True, slots=True)
class IsNull(Part):
    value: "Node"


@dataclass(frozen=True, slots=True)
class Exists(Part):
    property: "Property"


@dataclass(frozen=True, slots=True)
class Group(Part):
    """An expression in parentheses."""

    inner: "Node"


@dataclass(frozen=True, slots=True)
class Chain(Part):
    """Operands of operators that bind alike, taken from left to right."""

    first: "Node"
    rest: "tuple[tuple[str, Node], ...]"


@dataclass(frozen=True, slots=True)
class Sign(Part):
    symbol: str
    value: "Node"


@dataclass(frozen=True, slots=True)
class Constant(Part):
    value: Value


@dataclass(frozen=True, slots=True)
class Parameter(Part):
    name: str


@dataclass(frozen=True, slots=True)
class Property(Part):
    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class Lookup(Part):
    """The user property whose name is reckoned."""

    name: "Node"


@dataclass(frozen=True, slots=True)
class NewId(Part):
    pass


@dataclass(frozen=True, slots=True)
class Set(Part):
    property: Property
    value: "Node"


@dataclass(frozen=True, slots=True)
class Remove(Part):
    property: Property


Node = (
    Or | And | Not | Comparison | In | Like | IsNull | Exists
    | Group | Chain | Sign | Constant | Parameter | Property | Lookup | NewId
)  # fmt: skip
Statement = Set | Remove


def parts(node: Node) -> "tuple[Node, ...]":
    """Returns the direct children of a node."""
    match node:
        case Or(conditions=inner) | And(conditions=inner):
            return inner
        case Not(condition=one) | Group(inner=one) | Sign(value=one):
            return (one,)
        case IsNull(value=one) | Exists(property=one) | Lookup(name=one):
            return (one,)
        case Comparison(left=left, right=right):
            return left, right
        case In(value=value, items=items):
            return value, *items
        case Like(value=value, pattern=pattern, escape=escape):
            return (value, pattern) if escape is None else (value, pattern, escape)
        case Chain(first=first, rest=rest):
            return first, *(operand for _, operand in rest)
        case _:  # Constant, Parameter, Property, NewId
            return ()
