"""The features that dead letters share: the kind of error, its text without variables, the body."""

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TEXT_CHARS_MAX = 200
DEPTH_MAX, NAMES_MAX = 3, 20  # of a body's shape
# Patterns of the varying parts of a text, and their replacements, applied in order.
_VARIES = (
    (r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "<id>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<mail>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"\b0x[0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (r"""'[^']*'|"[^"]*\"""", "<text>"),
    (r"[+-]?\d+(?:[.,]\d+)*", "<n>"),
    (r"\s+", " "),
)
_ERROR = r"\b((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Fault|Timeout))\b"


def with_causes(dead: "DataFrame") -> "DataFrame":
    """Adds the columns `error`, `fingerprint` and `shape`."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf

    shape_of = arrow_udf(shapes, "string")  # type: ignore[call-overload]
    error = f.regexp_extract("description", _ERROR, 1)
    return (
        dead.withColumn("error", f.when(error != "", error))
        .withColumn("fingerprint", fingerprint(f.coalesce("description", f.lit(""))))
        .withColumn("shape", shape_of("body"))
    )


def fingerprint(text: "Column") -> "Column":
    """A text without its variable parts: numbers, ids, times, addresses, quoted texts."""
    from pyspark.sql import functions as f

    for pattern, name in _VARIES:
        text = f.regexp_replace(text, pattern, name)
    return f.trim(f.left(text, f.lit(TEXT_CHARS_MAX)))


def shapes(bodies: pa.Array) -> pa.Array:
    return pa.array([shape(each.as_py()) for each in bodies], pa.string())


def shape(body: bytes | None) -> str:
    """Names and types of what is in JSON; what it is, if it is none."""
    if not body:
        return "empty"
    try:
        return _shape(json.loads(body), DEPTH_MAX)
    except ValueError:
        pass
    except RecursionError:
        return "json"
    try:
        body.decode()
    except UnicodeDecodeError:
        return "binary"
    return "text"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        if not depth:
            return "{...}"
        names = sorted(value)[:NAMES_MAX]
        more = ", ..." if len(value) > NAMES_MAX else ""
        return "{" + ", ".join(f"{n}: {_shape(value[n], depth - 1)}" for n in names) + more + "}"
    if isinstance(value, list):
        kinds = sorted({_shape(each, depth - 1) for each in value[:100]}) if depth else ["..."]
        return "[" + " | ".join(kinds) + "]"
    names_of = {bool: "boolean", int: "number", float: "number", str: "string"}
    return names_of.get(type(value), "null")
