"""Values as bodies, and back. Nothing that is read ever says what is to be run or imported.

How a value is written follows from its type alone:

    bytes, bytearray, memoryview    as they are
    str                             UTF-8
    a type with a codec of its own  as that says; also its subclasses, unless they have one too
    a model of pydantic's           as pydantic says, in JSON
    anything else                   JSON: None, bool, numbers, lists, dicts, dataclasses, msgspec's
                                    structs, enums, moments, UUIDs, decimals

It is read as the type that is asked for, whatever was sent. How deep a value may be nested is up to
the interpreter (its recursion limit), how long it may be to the provider's largest message.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from posthouse.client.errors import SerializationError

T = TypeVar("T")
TEXT, JSON = "text/plain; charset=utf-8", "application/json"

_CHARSET = re.compile(r';\s*charset="?([\w-]+)', re.IGNORECASE)
_CHARSETS = frozenset(("utf-8", "us-ascii", "iso-8859-1", "utf-16"))  # others are no plain tables
# What codecs raise. RecursionError: too deep, or a value that holds itself.
_FAILURES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError,
             msgspec.MsgspecError)  # fmt: skip


class Codec(NamedTuple, Generic[T]):
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    content_type: str | None


_codecs: dict[type, Codec[Any]] = {}


def register_codec(
    kind: type[T],
    encode: Callable[[T], bytes],
    decode: Callable[[bytes], T],
    content_type: str | None = None,
) -> None:
    """Registers the codec for values of a type, for every client of the process.

    `kind` is the type; `encode` writes a value as bytes and `decode` reads it, each raising
    ValueError for what it cannot; `content_type` is told with the body.

    Example:
        register_codec(Path, lambda path: str(path).encode(), lambda body: Path(body.decode()))
    """
    _codecs[kind] = Codec(encode, decode, content_type)


def encode(value: object) -> tuple[bytes, str | None]:
    """A body and its content type. Raises SerializationError."""
    try:
        return _encode(value)
    except _FAILURES as error:
        raise _failed(f"A {type(value).__name__} cannot be written", error) from error


def _encode(value: Any) -> tuple[bytes, str | None]:
    codec = _codec(type(value))
    if codec is not None:
        return codec.encode(value), codec.content_type
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str) and not isinstance(value, Enum):
        return value.encode(), TEXT
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump()).encode(), JSON
    return msgspec.json.encode(value), JSON


def decode(body: bytes, kind: type[T], content_type: str | None = None) -> T:
    """Raises SerializationError."""
    try:
        return cast(T, _decode(body, kind, content_type))
    except _FAILURES as error:
        name = getattr(kind, "__name__", str(kind))
        raise _failed(f"The body cannot be read as {name}", error) from error


def _decode(body: bytes, kind: Any, content_type: str | None) -> object:
    codec = _codec(kind)
    if codec is not None:
        return codec.decode(body)
    if kind in (bytes, bytearray, memoryview):
        return kind(body)
    if kind is str:
        return body.decode(_charset(content_type))
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(body)
    return msgspec.json.decode(body, type=kind)


def _codec(kind: Any) -> Codec[Any] | None:
    """The nearest among a type and those that it is made of."""
    if _codecs:
        for each in getattr(kind, "__mro__", ()):
            if each in _codecs:
                return _codecs[each]
    return None


def _charset(content_type: str | None) -> str:
    said = _CHARSET.search(content_type or "")
    name = "utf-8" if said is None else said[1].lower()
    if name not in _CHARSETS:
        raise LookupError(name)
    return name


def _failed(what: str, error: Exception) -> SerializationError:
    """Returns the error. Only msgspec's reason is told: others might show the body."""
    told = isinstance(error, msgspec.MsgspecError | RecursionError)
    return SerializationError(f"{what}: {error if told else type(error).__name__}.")
