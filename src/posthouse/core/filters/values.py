"""Comparing and reckoning with property values.

Nothing here fails for a value that is unknown or of another type, as far as the language has an
answer for it: None, which is unknown. Values compare with values of their own kind only. A whole
number and one with a fraction are of one kind, and compare by value; a truth is no number.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from msgspec.msgpack import Ext

from posthouse.core.filters.problems import EvaluationProblem
from posthouse.core.filters.texts import INTEGER_MAX, INTEGER_MIN, as_number, as_text
from posthouse.core.message import SPAN, TIMESTAMP, UUID, Value

BUILT_CHARS_MAX = 65_536  # of a text made by +

NUMBER, TEXT, TRUTH, BYTES, TIME, ID = "number", "text", "truth", "bytes", "time", "id"
DURATION = "duration"
_KINDS = {bool: TRUTH, int: NUMBER, float: NUMBER, str: TEXT, bytes: BYTES}
_EXT_KINDS = {TIMESTAMP: TIME, UUID: ID, SPAN: DURATION}
_ORDERED = frozenset((NUMBER, TEXT, TIME, DURATION))

TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}  # with left and right exchanged


def kind_of(value: Value) -> str | None:
    """Returns the kind of a value. Only values of one kind can be compared.

    None for null, and for types that the language cannot compare.
    """
    if isinstance(value, Ext):
        return _EXT_KINDS.get(value.code)
    return _KINDS.get(type(value))


def plain(value: Value) -> Value:
    """A value of a kind as what can be hashed and ordered among those of its kind."""
    if isinstance(value, Ext):
        data = bytes(value.data)
        return data if value.code == UUID else int.from_bytes(data, "big", signed=True)
    return value


def compare(symbol: str, left: Value, right: Value) -> bool | None:
    kind = kind_of(left)
    if kind is None or kind_of(right) != kind or not is_comparable(kind, symbol):
        return None
    return TESTS[symbol](plain(left), plain(right))


def compare_loosely(symbol: str, left: Value, right: Value) -> bool | None:
    """A text is taken for the number or the truth that it says, where the other side is one."""
    return compare(symbol, _as_other(left, right), _as_other(right, left))


def _as_other(value: Value, other: Value) -> Value:
    if type(value) is not str or type(other) is str:
        return value
    if type(other) is bool:
        return _TRUTHS.get(value.lower(), value) if len(value) <= _TRUTH_CHARS else value
    return as_number(value) if type(other) in (int, float) else value


_TRUTHS = {"true": True, "false": False}
_TRUTH_CHARS = 5  # of a text that may say one


def is_comparable(kind: str, symbol: str) -> bool:
    """Whether two values of a kind can be compared so; some are equal or not, and that is all."""
    return kind in _ORDERED or symbol not in MIRRORED


def _are_numbers(left: Value, right: Value) -> bool:
    return kind_of(left) == NUMBER == kind_of(right)


def _fitting(number: Value) -> Value:
    if type(number) is int and not INTEGER_MIN <= number <= INTEGER_MAX:
        raise EvaluationProblem("A whole number does not fit into 64 bits.")
    return number


def _unfit(verb: str, *values: Value) -> EvaluationProblem:
    kinds = " and ".join(kind_of(value) or type(value).__name__ for value in values)
    return EvaluationProblem(f"Values of these kinds cannot be {verb}: {kinds}.")


def _add(left: Value, right: Value) -> Value:
    if type(left) is str or type(right) is str:
        first, second = as_text(left), as_text(right)
        if first is None or second is None:
            raise _unfit("added", left, right)
        if len(first) + len(second) > BUILT_CHARS_MAX:
            raise EvaluationProblem(f"A text of more than {BUILT_CHARS_MAX} characters was built.")
        return first + second
    if not _are_numbers(left, right):
        raise _unfit("added", left, right)
    return _fitting(left + right)  # type: ignore[operator] # both are numbers


def _subtract(left: Value, right: Value) -> Value:
    if not _are_numbers(left, right):
        raise _unfit("subtracted", left, right)
    return _fitting(left - right)  # type: ignore[operator] # both are numbers


def _multiply(left: Value, right: Value) -> Value:
    if not _are_numbers(left, right):
        raise _unfit("multiplied", left, right)
    return _fitting(left * right)  # type: ignore[operator] # both are numbers


def _divide(left: Value, right: Value) -> Value:
    if not _are_numbers(left, right):
        raise _unfit("divided", left, right)
    if not right:
        raise EvaluationProblem("A number was divided by zero.")
    if type(left) is int and type(right) is int:  # towards zero
        quotient = abs(left) // abs(right)
        return _fitting(quotient if (left < 0) == (right < 0) else -quotient)
    return left / right  # type: ignore[operator] # both are numbers


def _remainder(left: Value, right: Value) -> Value:
    if not _are_numbers(left, right):
        raise _unfit("divided", left, right)
    if not right:
        raise EvaluationProblem("A number was divided by zero.")
    if type(left) is int and type(right) is int:  # with the sign of the left one
        rest = abs(left) % abs(right)
        return _fitting(-rest if left < 0 else rest)
    if math.isinf(left):  # type: ignore[arg-type] # a number
        return math.nan
    return math.fmod(left, right)  # type: ignore[arg-type] # both are numbers


_OPERATORS = {"+": _add, "-": _subtract, "*": _multiply, "/": _divide, "%": _remainder}


def reckon(symbol: str, left: Value, right: Value) -> Value:
    """Unknown where one side is. Raises EvaluationProblem."""
    if left is None or right is None:
        return None
    return _OPERATORS[symbol](left, right)


def signed(symbol: str, value: Value) -> Value:
    """Unknown where the value is. Raises EvaluationProblem."""
    if value is None:
        return None
    if type(value) is not int and type(value) is not float:
        raise _unfit("given a sign", value)
    return value if symbol == "+" else _fitting(-value)
