"""Checks of what callers give, before it is believed. What passes can be written to the journal."""

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.commands import (
    BACKOFF_MAX,
    DURATION_MS_MAX,
    NAME_CHARS_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CHARS_MAX,
    QUEUE_EXTRAS_BYTES_MAX,
    RULE_CHARS_MAX,
    TEXT_CHARS_MAX,
    TIME_MS_MAX,
)
from posthouse.core.errors import InvalidArgument, NotFound
from posthouse.core.filters.problems import SyntaxProblem
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    TIMESTAMP_BYTES,
    UUID,
    ZONELESS_BYTES,
    Properties,
)
from posthouse.core.model import SUBSCRIPTION, QueueProperties, State, entity_of
from posthouse.core.routing import compile_rule
from posthouse.core.rules import CorrelationFilter, Rule
from posthouse.core.tokens import KEY_BYTES


def check_count(argument: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(argument, f"must be a whole number from {least} to {most}")


def check_duration(argument: str, value_ms: int) -> None:
    check_count(argument, value_ms, 0, DURATION_MS_MAX)


def check_moment(argument: str, value_ms: int) -> None:
    check_count(argument, value_ms, 0, TIME_MS_MAX)


def check_start(epoch: int, salt: int, key: bytes) -> None:
    check_count("epoch", epoch, 0, (1 << 32) - 1)
    check_count("salt", salt, 0, (1 << 32) - 1)
    check_count("the bytes of key", len(key), 0, KEY_BYTES)


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
            known = len(bytes(value.data)) in _EXT_BYTES.get(value.code, ())
        if not known:
            raise InvalidArgument("properties", f"cannot have such a value: {type(value).__name__}")
        if isinstance(value, str):
            check_text("properties", value, PROPERTIES_BYTES_MAX)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgument("properties", "can have integers of 64 bits only")
    if properties and len(msgspec.msgpack.encode(properties)) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument("properties", f"must be at most {PROPERTIES_BYTES_MAX} bytes")


_EXT_BYTES = {TIMESTAMP: (TIMESTAMP_BYTES, ZONELESS_BYTES), UUID: (16,), SPAN: (8,)}
_VALUES = frozenset((type(None), bool, int, float, str, bytes))

_MOST = {
    "lock_ms": DURATION_MS_MAX,
    "max_delivery": 1 << 53,
    "ttl_ms": TIME_MS_MAX,
    "max_bytes": 1 << 53,
    "max_messages": 1 << 53,
    "max_message_bytes": 1 << 53,
    "max_locked": 1 << 53,
    "duplicate_window_ms": DURATION_MS_MAX,
    "idle_delete_ms": DURATION_MS_MAX,
}
_FIXED = ("requires_session", "duplicate_detection", "order", "grouping", "delivery")


def check_queue_properties(properties: QueueProperties) -> QueueProperties:
    """Returns the properties a queue gets: sessions are required where it groups by session."""
    for name, most in _MOST.items():
        value = getattr(properties, name)
        if value is not None:
            check_count(name, value, 0 if name == "lock_ms" else 1, most)
    check_text("metadata", properties.metadata, TEXT_CHARS_MAX)
    size = 0
    for name, text in properties.extras.items():
        check_text("extras", name, QUEUE_EXTRAS_BYTES_MAX)
        check_text("extras", text, QUEUE_EXTRAS_BYTES_MAX)
        size += len(name.encode()) + len(text.encode())
    if size > QUEUE_EXTRAS_BYTES_MAX:
        raise InvalidArgument("extras", f"must be at most {QUEUE_EXTRAS_BYTES_MAX} bytes in all")
    for name in ("forward_to", "forward_dead_to"):
        if getattr(properties, name) is not None:
            check_name(name, getattr(properties, name))
    if len(properties.backoff_ms) > BACKOFF_MAX:
        raise InvalidArgument("backoff_ms", f"must be at most {BACKOFF_MAX} delays")
    for wait_ms in properties.backoff_ms:
        check_duration("backoff_ms", wait_ms)
    try:  # the words among them
        msgspec.convert(msgspec.structs.asdict(properties), QueueProperties)
    except (msgspec.ValidationError, UnicodeEncodeError):
        words = "status, order, grouping, counting, delivery, overflow or limit_counts"
        raise InvalidArgument(words, "is not one of the words there are") from None
    grouped = properties.grouping != "none" or properties.requires_session
    if properties.late_settling and grouped:
        raise InvalidArgument("late_settling", "goes not with sessions or groups")
    if properties.delivery == "topic":
        _check_topic(properties)
    elif properties.delivery != "competing":
        _check_fan_out(properties)
    if properties.grouping == "session":
        return msgspec.structs.replace(properties, requires_session=True)
    if properties.grouping == "none" and properties.requires_session:
        return msgspec.structs.replace(properties, grouping="session")
    return properties


def check_update(old: QueueProperties, new: QueueProperties) -> None:
    for name in _FIXED:
        if getattr(old, name) != getattr(new, name):
            raise InvalidArgument(name, "cannot be changed after a queue was created")


def _check_topic(properties: QueueProperties) -> None:
    """A topic keeps nothing for receivers; what concerns them is for its subscriptions to say."""
    plain = QueueProperties()
    for name in (
        "grouping", "requires_session", "order", "forward_to", "overflow", "backoff_ms",
        "late_settling", "max_locked",
    ):  # fmt: skip
        if getattr(properties, name) != getattr(plain, name):
            raise InvalidArgument(name, "is for subscriptions, not for their topic")


def _check_fan_out(properties: QueueProperties) -> None:
    plain = QueueProperties()
    for name in ("grouping", "requires_session", "forward_to", "late_settling", "max_locked"):
        if getattr(properties, name) != getattr(plain, name):
            raise InvalidArgument(name, "goes not with fan-out")


def check_forwarding(state: State, properties: QueueProperties) -> None:
    """Whether a queue may forward as it wants to. Raises NotFound.

    It may forward in a circle, or to itself: each message counts its hops, and is forwarded
    HOPS_MAX times at most.
    """
    for target in (properties.forward_to, properties.forward_dead_to):
        if target is None:
            continue
        if entity_of(target) not in state.queues or SUBSCRIPTION in target:
            raise NotFound("queue or topic", target)


def check_rule(rule: Rule) -> None:
    """Raises InvalidArgument, which says where an expression goes wrong."""
    check_text("rule", rule.name, RULE_CHARS_MAX)
    if not rule.name or not rule.name.isprintable() or "/" in rule.name:
        raise InvalidArgument("rule", "must be a name of printable characters without a /")
    wanted = rule.filter
    for given in (rule.parameters, getattr(wanted, "parameters", {})):
        check_properties(given)
    if isinstance(wanted, CorrelationFilter):
        check_properties(wanted.properties)
        if not wanted.fields and not wanted.properties:
            raise InvalidArgument("filter", "must name something to compare")
        unknown = sorted(wanted.fields.keys() - CORRELATED)
        if unknown:
            raise InvalidArgument("filter", f"cannot compare {unknown[0]!r}")
        for text in wanted.fields.values():
            check_text("filter", text, TEXT_CHARS_MAX)
    try:
        compile_rule(rule)
    except SyntaxProblem as problem:
        what = "filter" if not rule.action else "filter or action"
        text = str(problem).removesuffix(".")
        raise InvalidArgument(what, f"is not well-formed: {text}") from None


CORRELATED = frozenset((
    "id", "correlation_id", "to", "reply_to", "subject", "session_id", "reply_to_session_id",
    "content_type",
))  # fmt: skip
