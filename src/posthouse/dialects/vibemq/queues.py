"""The properties of a VibeMQ queue, in the terms of the protocol and of the core."""

import re
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from posthouse.broker.view import Entity, View
from posthouse.core.model import (
    DEAD,
    Overflow,
    QueueProperties,
    Spread,
    dead_letter_queue,
    entity_of,
)
from posthouse.dialects.vibemq.answers import INVALID_PAYLOAD, Wrong
from posthouse.dialects.vibemq.codec import Frame
from posthouse.dialects.vibemq.message import is_name

QUEUE_SIZE = 10_000
ACK_MS = 30_000  # what a subscriber has to acknowledge
ATTEMPTS = 3  # the first delivery is one
BACKOFF_MS = [0] + [2_000 * 2**n for n in range(1, 6)] + [120_000]  # before each retry
DEAD_LETTERS = "-dlq"  # behind a queue's name: its dead letters
NAMED = "vibemq.deadLetterQueueName"  # that was given and is not used

ROUND_ROBIN, FAN_OUT, FAN_OUT_UNACKNOWLEDGED, PRIORITY = range(4)
_MODES = ("roundrobin", "fanoutwithack", "fanoutwithoutack", "prioritybased")
_OVERFLOWS = ("dropoldest", "dropnewest", "blockpublisher", "redirecttodlq")
_OURS: tuple[Overflow, ...] = ("drop-oldest", "drop-newest", "block", "to-dead-letter")
_SPREAD: dict[int, Spread] = {FAN_OUT: "fan-out", FAN_OUT_UNACKNOWLEDGED: "fan-out-unacknowledged"}
_DURATION = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,7}))?", re.ASCII)
Word: TypeAlias = int | str


class Options(msgspec.Struct, rename="camel"):
    """The options of a queue that a client declares. Modes and strategies are numbers, or names."""

    mode: Word = 0
    max_queue_size: int = QUEUE_SIZE
    message_ttl: str | None = None
    enable_dead_letter_queue: bool = False
    dead_letter_queue_name: str | None = None
    overflow_strategy: Word = 0
    max_retry_attempts: int = ATTEMPTS
    delivery_mode: Word | None = None  # as documents call the mode


class Info(msgspec.Struct, rename="camel", omit_defaults=True):
    """The information about a queue. The client compares it exactly with what it has declared."""

    name: str
    message_count: int
    subscriber_count: int
    delivery_mode: int
    max_size: int
    created_at: str
    enable_dead_letter_queue: bool
    overflow_strategy: int
    max_retry_attempts: int
    message_ttl: str | None = None
    dead_letter_queue_name: str | None = None


_options = msgspec.json.Decoder(Options).decode


def options_of(frame: Frame) -> Options | None:
    """Parses a queue's options from the payload, or from headers, as documented; None if none.

    Raises Wrong.
    """
    try:
        if frame.payload:
            return _options(frame.payload)
        given: dict[str, Any] = {
            name: frame.headers[name]
            for name in ("deliveryMode", "maxQueueSize", "messageTtl", "overflowStrategy")
            if name in frame.headers
        }
        return msgspec.convert(given, Options, strict=False) if given else None
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Wrong(INVALID_PAYLOAD, f"The options of the queue are not valid: {error}.") from None


def properties_of(options: Options | None) -> QueueProperties:
    """Raises Wrong."""
    if options is None:
        options = Options()
    given = options.mode if options.delivery_mode is None else options.delivery_mode
    mode = _word("mode", given, _MODES)
    overflow = _word("overflowStrategy", options.overflow_strategy, _OVERFLOWS)
    for name, number in (
        ("maxQueueSize", options.max_queue_size), ("maxRetryAttempts", options.max_retry_attempts),
    ):  # fmt: skip
        if not 1 <= number < 1 << 31:
            raise Wrong(INVALID_PAYLOAD, f"{name} must be from 1 to {(1 << 31) - 1}.")
    named = options.dead_letter_queue_name
    if named is not None and not is_name(named):
        raise Wrong(INVALID_PAYLOAD, "deadLetterQueueName must be the name of a queue.")
    buries = options.enable_dead_letter_queue
    return QueueProperties(
        lock_ms=ACK_MS, max_delivery=options.max_retry_attempts, backoff_ms=list(BACKOFF_MS),
        ttl_ms=None if options.message_ttl is None else milliseconds(options.message_ttl),
        max_messages=options.max_queue_size, dead_letter_expired=buries,
        forward_dead_to=named if buries else None, overflow=_OURS[overflow],
        order="priority" if mode == PRIORITY else "arrival",
        delivery=_SPREAD.get(mode, "competing"),
        extras={NAMED: named} if named and not buries else {},
    )  # fmt: skip


def _word(name: str, given: Word, words: tuple[str, ...]) -> int:
    """Raises Wrong."""
    if isinstance(given, str):
        if given.isascii() and given.isdigit():
            given = int(given[:3])
        elif given.lower() in words:
            given = words.index(given.lower())
    if not isinstance(given, int) or not 0 <= given < len(words):
        raise Wrong(INVALID_PAYLOAD, f"{name} must be from 0 to {len(words) - 1}.")
    return given


def info_of(name: str, view: View, queue: Entity) -> Info:
    """The name is as the client has it."""
    properties = queue.properties
    there = queue.namespace, queue.name
    extras = properties.extras
    if properties.delivery == "competing":
        mode = PRIORITY if properties.order == "priority" else ROUND_ROBIN
    else:
        unacknowledged = properties.delivery == "fan-out-unacknowledged"
        mode = FAN_OUT_UNACKNOWLEDGED if unacknowledged else FAN_OUT
    overflow = "drop-newest" if properties.overflow == "reject" else properties.overflow
    return Info(
        name, view.used(*there).messages, view.messages.receivers(*there),
        mode, properties.max_messages or (1 << 31) - 1, iso_time(queue.created_ms),
        properties.dead_letter_expired, _OURS.index(overflow), properties.max_delivery,
        None if properties.ttl_ms is None else duration(properties.ttl_ms),
        properties.forward_dead_to or extras.get(NAMED),
    )  # fmt: skip


def resolve(view: View, namespace: str, name: str) -> str:
    """Returns the broker's name of a queue, or of its dead-letter queue. Case is ignored."""
    found = view.find(namespace, name)
    if found is not None:
        return found
    if name.endswith(DEAD_LETTERS):
        owner = view.find(namespace, name.removesuffix(DEAD_LETTERS))
        if owner is not None:
            return dead_letter_queue(owner)
    return name


def owner(view: View, namespace: str, name: str) -> str:
    """Returns the queue whose rights count: for a dead-letter queue, the queue it belongs to."""
    return entity_of(resolve(view, namespace, name))


def told_name(queue: str) -> str:
    """A queue's name as clients know it."""
    return queue.removesuffix(DEAD) + DEAD_LETTERS if queue.endswith(DEAD) else queue


def milliseconds(text: str) -> int:
    """Parses a .NET duration, [d.]hh:mm:ss[.fffffff], into milliseconds. Raises Wrong."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise Wrong(INVALID_PAYLOAD, "messageTtl must be as in 00:05:00 or 1.12:00:00.")
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:4])
    ticks = int((found[5] or "").ljust(7, "0"))
    ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + ticks // 10_000
    if hours > 23 or minutes > 59 or seconds > 59 or ms < 1:
        raise Wrong(INVALID_PAYLOAD, "messageTtl must be a duration of 1 ms or more.")
    return ms


def duration(ms: int) -> str:
    seconds, rest = divmod(ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours:02}:{minutes:02}:{seconds:02}" + (f".{rest * 10_000:07}" if rest else "")
    return f"{days}.{text}" if days else text


def iso_time(ms: int) -> str:
    try:
        found = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that was moved far
        return "9999-12-31T23:59:59.999Z"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
