"""JSON as values of declared types. What does not fit is null, as Spark's own from_json has it."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

Fit = Callable[[Any], Any]


def from_json(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bodies, each read by itself: one that is odd does not keep others from being read."""
    fit = fit_to(kind)
    return pa.array([_read(body, fit) for body in column.to_pylist()], kind)


def _read(body: bytes | None, fit: Fit) -> Any:
    if body is None:
        return None
    try:
        return fit(json.loads(body))
    except ValueError:
        return None


def fit_to(kind: pa.DataType) -> Fit:
    """Returns a function that converts a JSON value to a type, or to None where it does not fit."""
    if pa.types.is_struct(kind):
        fields = [(each.name, fit_to(each.type)) for each in kind]
        return lambda value: (
            {name: fit(value.get(name)) for name, fit in fields}
            if isinstance(value, dict) else None
        )  # fmt: skip
    if pa.types.is_list(kind):
        item = fit_to(kind.value_type)
        return lambda value: (
            [item(each) for each in value] if isinstance(value, list) else None
        )  # fmt: skip
    if pa.types.is_map(kind):
        item = fit_to(kind.item_type)
        return lambda value: (
            [(name, item(each)) for name, each in value.items()]
            if isinstance(value, dict) else None
        )  # fmt: skip
    return lambda value: None if value is None else _plain(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value)
    if pa.types.is_boolean(kind) or isinstance(value, bool):
        return value if pa.types.is_boolean(kind) and isinstance(value, bool) else None
    try:
        if isinstance(value, str):
            value = _meant(value, kind)
        elif pa.types.is_decimal(kind):
            value = Decimal(str(value))
        elif pa.types.is_integer(kind):
            value = value if isinstance(value, int) else None
        elif not pa.types.is_floating(kind):
            return None
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
        return None


def _meant(text: str, kind: pa.DataType) -> Any:
    """Parses text of a type that JSON lacks: a timestamp, a date, bytes. Raises ValueError."""
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    raise ValueError(text)
