"""Compiled filters against a slow evaluator that does only what the rules say, one by one.

Expressions are made as nested tuples, written down as text, and evaluated both ways.
"""

import math
import operator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from posthouse.core.filters.problems import EvaluationProblem
from posthouse.core.filters.sql import compile_filter
from posthouse.core.filters.texts import as_text
from posthouse.core.message import Properties, Value, span, timestamp, uuid
from tests.core.filters.test_like import plainly_fits
from tests.core.filters.views import a_view

pytestmark = pytest.mark.untraced

Tree = tuple[Any, ...]
PARAMETERS: Properties = {
    "t": timestamp(5),
    "i": uuid(bytes(16)),
    "l": span(5),
    "n": None,
    "d": b"a",
    "s": "a%",
}


# --- expressions

names = st.sampled_from(["a", "b", "c", "A", "nowhere"])
constants = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1 << 62, (1 << 63) - 1]),
    st.sampled_from([0.0, 0.5, 2.0, 1e300]), st.text("ab%_'", max_size=3),
).map(lambda value: ("constant", value))  # fmt: skip
leaves = st.one_of(
    names.map(lambda name: ("property", name)),
    names.map(lambda name: ("property", name)),
    constants,
    st.sampled_from(sorted(PARAMETERS)).map(lambda name: ("parameter", name)),
)


def larger_values(values: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/%"), values, values),
        st.tuples(st.just("sign"), st.sampled_from("+-"), values),
        st.tuples(st.just("lookup"), values),
    )


values = st.recursive(leaves, larger_values, max_leaves=4)
predicates = st.one_of(
    st.tuples(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), leaves, leaves),
    st.tuples(st.sampled_from(["=", "<>", "<", ">="]), values, values),
    st.tuples(st.just("in"), values, st.lists(leaves, min_size=1, max_size=4)),
    st.tuples(st.just("like"), values, values),
    st.tuples(st.just("escape"), values, values, st.just(("constant", "!"))),
    st.tuples(st.just("null"), values),
    st.tuples(st.just("exists"), names),
    names.map(lambda name: ("property", name)),
    st.sampled_from([("constant", True), ("constant", False), ("constant", None)]),
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["=", "<>"]), inner, inner),
    ),
    max_leaves=6,
)
messages = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 64) - 1]),
        st.sampled_from([0.5, 2.0, math.nan, math.inf]), st.text("ab%_!", max_size=4),
        st.just(b"a"), st.sampled_from([timestamp(4), timestamp(5), uuid(bytes(16)), span(5)]),
    ),
)  # fmt: skip


# --- as text


def written(tree: Tree) -> str:  # every part in parentheses
    match tree:
        case ("constant", value):
            return written_constant(value)
        case ("property", name):
            return str(name)
        case ("parameter", name):
            return f"@{name}"
        case ("sign", symbol, inner):
            return f"{symbol} ({written(inner)})"
        case ("lookup", inner):
            return f"p({written(inner)})"
        case ("and" | "or" as word, parts):
            return f" {word} ".join(f"({written(part)})" for part in parts)
        case ("not", inner):
            return f"NOT ({written(inner)})"
        case ("in", value, items):
            return f"({written(value)}) IN ({', '.join(map(written, items))})"
        case ("like", value, pattern):
            return f"({written(value)}) LIKE {written_operand(pattern)}"
        case ("escape", value, pattern, mark):
            return f"({written(value)}) LIKE {written_operand(pattern)} ESCAPE {written(mark)}"
        case ("null", value):
            return f"({written(value)}) IS NULL"
        case ("exists", name):
            return f"EXISTS({name})"
        case _:
            symbol, left, right = tree
            return f"{written_operand(left)} {symbol} {written_operand(right)}"


def written_operand(tree: Tree) -> str:
    bare = tree[0] in ("constant", "property", "parameter")
    return written(tree) if bare else f"({written(tree)})"


def written_constant(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else repr(value).upper()


# --- evaluated


class Failed(Exception):
    pass


def evaluated(tree: Tree, message: Properties) -> Value:
    match tree:
        case ("constant", value):
            return value  # type: ignore[no-any-return]
        case ("property", name):
            return found(name, message)
        case ("parameter", name):
            return PARAMETERS[name]
        case ("sign", symbol, inner):
            value = evaluated(inner, message)
            if value is not None and kind(value) != "number":
                raise Failed
            return value if symbol == "+" else reckoned("-", 0, value)
        case ("lookup", inner):
            name = evaluated(inner, message)
            if name is not None and not isinstance(name, str):
                raise Failed
            return None if name is None else found(name, message)
        case ("and", parts):
            return every(parts, message)
        case ("or", parts):
            return negated(every([("not", part) for part in parts], message))
        case ("not", inner):
            return negated(condition(inner, message))
        case ("in", value, items):
            left = evaluated(value, message)
            if left is None:
                return None
            return any(compared("=", left, evaluated(item, message)) is True for item in items)
        case ("like", value, pattern):
            return liked(evaluated(value, message), evaluated(pattern, message), None)
        case ("escape", value, pattern, (_, mark)):
            return liked(evaluated(value, message), evaluated(pattern, message), mark)
        case ("null", value):
            return evaluated(value, message) is None
        case ("exists", name):
            return name in message or name.lower() in message
        case ("+" | "-" | "*" | "/" | "%" as symbol, left, right):
            return reckoned(symbol, evaluated(left, message), evaluated(right, message))
        case _:
            symbol, left, right = tree
            return compared(symbol, evaluated(left, message), evaluated(right, message))


def found(name: str, message: Properties) -> Value:
    return message.get(name, message.get(name.lower()))


def condition(tree: Tree, message: Properties) -> bool | None:
    value = evaluated(tree, message)
    return value if isinstance(value, bool) else None


def every(parts: list[Tree], message: Properties) -> bool | None:
    unknown = False
    for part in parts:
        truth = condition(part, message)
        if truth is False:
            return False
        unknown = unknown or truth is None
    return None if unknown else True


def negated(truth: bool | None) -> bool | None:
    return {True: False, False: True, None: None}[truth]


def kind(value: Value) -> str:
    if isinstance(value, Ext):
        return f"ext {value.code}"
    return "number" if type(value) in (int, float) else type(value).__name__


def compared(symbol: str, left: Value, right: Value) -> bool | None:
    if left is None or right is None or kind(left) != kind(right):
        return None
    if symbol in ("=", "<>", "!="):
        return (left == right) is (symbol == "=")
    if kind(left) not in ("number", "str", "ext 1"):
        return None
    order = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[symbol]
    if isinstance(left, Ext) and isinstance(right, Ext):
        return bool(order(bytes(left.data), bytes(right.data)))  # none is before 1970
    return bool(order(left, right))  # type: ignore[arg-type]


def liked(text: Value, pattern: Value, mark: str | None) -> bool | None:
    if not isinstance(text, str) or not isinstance(pattern, str):
        return None
    if mark is not None and pattern.replace(mark * 2, "").endswith(mark):
        raise Failed
    return plainly_fits(text, pattern, mark)


def reckoned(symbol: str, left: Any, right: Any) -> Value:
    if left is None or right is None:
        return None
    if symbol == "+" and (isinstance(left, str) or isinstance(right, str)):
        return joined(left) + joined(right)
    if kind(left) != "number" or kind(right) != "number":
        raise Failed
    if symbol in "/%" and right == 0:
        raise Failed
    if isinstance(left, int) and isinstance(right, int) and symbol in "/%":
        whole = abs(left) // abs(right) * (1 if left * right > 0 else -1)
        return checked(whole if symbol == "/" else left - whole * right)
    if symbol == "%":
        return math.nan if math.isinf(left) else math.fmod(left, right)
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[symbol]
    return checked(apply(left, right))


def joined(value: Value) -> str:
    if isinstance(value, bytes):
        raise Failed
    if isinstance(value, Ext):
        return str(as_text(value))  # which is tried by itself
    return str(value)


def checked(value: Any) -> Value:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise Failed
    return value  # type: ignore[no-any-return]


@given(conditions, messages)
@example(("=", ("constant", 0.5), ("property", "a")), {"a": 0.5})
def test_a_compiled_filter_says_what_the_rules_say(tree: Tree, message: Properties) -> None:
    predicate = compile_filter(written(tree), PARAMETERS)
    try:
        expected = condition(tree, message)
    except Failed:
        with pytest.raises(EvaluationProblem):
            predicate(a_view(**message))
    else:
        assert predicate(a_view(**message)) is expected
