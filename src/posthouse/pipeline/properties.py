"""Typed properties: the values of a message's properties, with the types that they were sent with.

The feed has them as JSON. A type that JSON lacks is an object with one member there:
{"bytes": BASE64}, {"timestamp_ms": NUMBER}, {"ticks": NUMBER} and {"uuid": TEXT}.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.types import VariantVal

from posthouse.pipeline.bodies import Fit, fit_to

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = 10  # of a microsecond


def converter(kind: pa.DataType) -> Fit:
    """Returns a function that converts properties in JSON to a struct's fields, or to a variant."""
    if is_variant(kind):
        return _variant
    fields = [(each.name, each.type, fit_to(each.type)) for each in kind]
    return lambda text: _struct(text, fields)


def _struct(text: str, fields: list[tuple[str, pa.DataType, Fit]]) -> dict[str, Any]:
    given = json.loads(text)
    return {name: _fitted(given.get(name), kind, fit) for name, kind, fit in fields}


def _fitted(value: Any, kind: pa.DataType, fit: Fit) -> Any:
    form, inner = _unwrapped(value)
    try:
        if form == "timestamp_ms" and not pa.types.is_integer(kind):
            return fit(_moment(inner))
        if form == "ticks" and pa.types.is_duration(kind):
            return timedelta(microseconds=inner / _TICKS)
    except OverflowError:
        return None
    return fit(inner)


def _variant(text: str) -> dict[str, bytes]:
    """A variant of plain JSON values: moments are texts in ISO 8601, as are bytes in Base64."""
    plain = {name: _plain(value) for name, value in json.loads(text).items()}
    made = VariantVal.parseJson(json.dumps(plain))
    return {"value": made.value, "metadata": made.metadata}


def _plain(value: Any) -> Any:
    form, inner = _unwrapped(value)
    try:
        return _moment(inner) if form == "timestamp_ms" else inner
    except OverflowError:
        return inner


def _unwrapped(value: Any) -> tuple[str, Any]:
    """The name of a type that JSON lacks, or "", and the value itself."""
    if isinstance(value, dict) and len(value) == 1:
        [(form, inner)] = value.items()
        return form, inner
    return "", value


def _moment(unix_ms: int) -> str:
    """Raises OverflowError."""
    return (_EPOCH + timedelta(milliseconds=unix_ms)).isoformat()
