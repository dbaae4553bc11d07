"""Checks of what callers give, before it is believed. What passes can be written to the journal."""

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.commands import (
    NAME_CHARS_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CHARS_MAX,
    TEXT_CHARS_MAX,
    TIME_MS_MAX,
)
from posthouse.core.errors import InvalidArgument
from posthouse.core.message import TIMESTAMP, UUID, Properties
from posthouse.core.model import QueueProperties


def check_count(argument: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(argument, f"must be a whole number from {least} to {most}")


def check_duration(argument: str, value_ms: int) -> None:
    check_count(argument, value_ms, 0, TIME_MS_MAX)


def check_start(epoch: int, salt: int) -> None:
    check_count("epoch", epoch, 0, (1 << 32) - 1)
    check_count("salt", salt, 0, (1 << 32) - 1)


def check_text(argument: str, text: object, most: int) -> None:
    if type(text) is not str or len(text) > most:  # what is more than a str cannot be written
        raise InvalidArgument(argument, f"must be text of at most {most} characters")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(argument, "must be text that UTF-8 can carry") from None


def check_name(argument: str, name: str) -> None:
    check_text(argument, name, NAME_CHARS_MAX)
    if not name or not name.isprintable() or name != name.strip():
        raise InvalidArgument(argument, "must be a name of printable characters")
    parts = name.split("/")
    if "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidArgument(argument, "must have no empty parts, no . or .. and no backslash")
    if any(part.startswith("$") for part in parts):
        raise InvalidArgument(argument, "must not have parts that begin with $: they are reserved")


def check_properties(properties: Properties) -> None:
    for name, value in properties.items():
        check_text("properties", name, PROPERTY_CHARS_MAX)
        known = type(value) in _VALUES
        if isinstance(value, Ext):
            known = _EXT_BYTES.get(value.code) == len(bytes(value.data))
        if not known:
            raise InvalidArgument("properties", f"cannot have such a value: {type(value).__name__}")
        if isinstance(value, str):
            check_text("properties", value, PROPERTIES_BYTES_MAX)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgument("properties", "can have integers of 64 bits only")
    if properties and len(msgspec.msgpack.encode(properties)) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument("properties", f"must be at most {PROPERTIES_BYTES_MAX} bytes")


_EXT_BYTES = {TIMESTAMP: 8, UUID: 16}
_VALUES = frozenset((type(None), bool, int, float, str, bytes))

_LEAST = {
    "lock_ms": 1,
    "max_delivery": 1,
    "ttl_ms": 1,
    "max_bytes": 1,
    "max_messages": 1,
    "max_message_bytes": 1,
    "duplicate_window_ms": 1,
    "idle_delete_ms": 1,
}
_FIXED = ("requires_session", "duplicate_detection", "order", "grouping")


def check_queue_properties(properties: QueueProperties) -> QueueProperties:
    """What a queue will have: sessions are required where it groups by session, and the reverse."""
    for name, least in _LEAST.items():
        value = getattr(properties, name)
        if value is not None:
            check_count(name, value, least, TIME_MS_MAX)
    check_text("metadata", properties.metadata, TEXT_CHARS_MAX)
    try:  # the words among them
        msgspec.convert(msgspec.structs.asdict(properties), QueueProperties)
    except (msgspec.ValidationError, UnicodeEncodeError):
        words = "status, order, grouping or counting"
        raise InvalidArgument(words, "is not one of the words there are") from None
    if properties.grouping == "session":
        return msgspec.structs.replace(properties, requires_session=True)
    if properties.grouping == "none" and properties.requires_session:
        return msgspec.structs.replace(properties, grouping="session")
    return properties


def check_update(old: QueueProperties, new: QueueProperties) -> None:
    for name in _FIXED:
        if getattr(old, name) != getattr(new, name):
            raise InvalidArgument(name, "cannot be changed after a queue was created")
