"""Messages: to be sent, received, and the receipts by which they are settled."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import force_setattr

from posthouse.client.errors import ValidationError
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

if TYPE_CHECKING:
    from posthouse.client.attributes import AttributeValue

T = TypeVar("T")
TEXT = "text/plain; charset=utf-8"
PRIORITY = 4  # of a message whose sender gives none
KEY_CHARS_MAX = 128  # of a partition key


def utc_now() -> datetime:
    return datetime.now(UTC)


def _duration(what: str, given: object) -> timedelta:
    """Returns a duration that may be given as seconds. Raises ValidationError."""
    if isinstance(given, timedelta):
        return given
    if type(given) in (int, float):
        try:
            return timedelta(seconds=given)  # type: ignore[arg-type]
        except (OverflowError, ValueError):
            pass
    raise ValidationError(what, f"must be a timedelta, or seconds, not {given!r}")


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send: `Message(b"...")`, or `Message.of(value)` for other values."""

    body: bytes
    attributes: "dict[str, AttributeValue]" = {}
    session_id: SessionId | None = None
    correlation_id: str | None = None
    time_to_live: timedelta | None = None
    message_id: MessageId | None = None  # without one it gets a new one when it is sent
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    priority: int | None = None  # 0 to 9; 4 unless it is given
    partition_key: str | None = None
    delay: timedelta | None = None  # from when it is sent until it can be received

    if TYPE_CHECKING:  # it takes more than it holds: texts and numbers where they are plain

        def __init__(
            self,
            body: bytes | bytearray | memoryview | str,
            attributes: Mapping[str, AttributeValue] = ...,
            session_id: str | None = None,
            correlation_id: str | None = None,
            time_to_live: timedelta | float | None = None,
            message_id: str | None = None,
            content_type: str | None = None,
            subject: str | None = None,
            to: str | None = None,
            reply_to: str | None = None,
            priority: int | None = None,
            partition_key: str | None = None,
            delay: timedelta | float | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Raises ValidationError."""
        if type(self.body) is not bytes:
            self._take_body(self.body)
        if type(self.attributes) is not dict:
            force_setattr(self, "attributes", dict(self.attributes))
        if self.session_id is not None and type(self.session_id) is not SessionId:
            force_setattr(self, "session_id", SessionId(self.session_id))
        if self.message_id is not None and type(self.message_id) is not MessageId:
            force_setattr(self, "message_id", MessageId(self.message_id))
        if self.time_to_live is not None:
            life = _duration("time to live", self.time_to_live)
            if life <= timedelta(0):
                raise ValidationError("time to live", "must be more than nothing")
            force_setattr(self, "time_to_live", life)
        if self.delay is not None:
            delay = _duration("delay", self.delay)
            if delay < timedelta(0):
                raise ValidationError("delay", "must not be negative")
            force_setattr(self, "delay", delay)
        if self.priority is not None and (
            type(self.priority) is not int or not 0 <= self.priority <= 9
        ):
            raise ValidationError("priority", f"must be from 0 to 9, not {self.priority!r}")
        if self.partition_key is not None and not 1 <= len(self.partition_key) <= KEY_CHARS_MAX:
            raise ValidationError("partition key", f"must have 1 to {KEY_CHARS_MAX} characters")

    def _take_body(self, given: object) -> None:
        if isinstance(given, str):
            force_setattr(self, "body", given.encode())
            if self.content_type is None:
                force_setattr(self, "content_type", TEXT)
        elif isinstance(given, bytes | bytearray | memoryview):
            force_setattr(self, "body", bytes(given))
        else:
            raise ValidationError(
                "body",
                f"must be bytes or text, not {type(given).__name__}; Message.of(value) writes"
                " other values as JSON",
            )

    @classmethod
    def of(cls, value: object) -> "Message":
        """Makes a message of a value, encoded by its type's codec. Raises SerializationError."""
        from posthouse.client.codecs import encode

        body, content_type = encode(value)
        return cls(body, content_type=content_type)

    def with_session_id(self, session_id: str) -> "Message":
        return msgspec.structs.replace(self, session_id=SessionId(session_id))

    def with_attribute(self, key: str, value: "AttributeValue") -> "Message":
        """Raises ValidationError."""
        if not key:
            raise ValidationError("attribute", "must have a name")
        return msgspec.structs.replace(self, attributes={**self.attributes, key: value})

    def with_correlation_id(self, correlation_id: str) -> "Message":
        return msgspec.structs.replace(self, correlation_id=correlation_id)

    def with_ttl(self, ttl: timedelta | float) -> "Message":
        """A duration, or seconds. Raises ValidationError."""
        return msgspec.structs.replace(self, time_to_live=ttl)

    def with_message_id(self, message_id: str) -> "Message":
        return msgspec.structs.replace(self, message_id=MessageId(message_id))

    def with_content_type(self, content_type: str) -> "Message":
        return msgspec.structs.replace(self, content_type=content_type)

    def with_subject(self, subject: str) -> "Message":
        return msgspec.structs.replace(self, subject=subject)

    def with_to(self, to: str) -> "Message":
        return msgspec.structs.replace(self, to=to)

    def with_reply_to(self, reply_to: str) -> "Message":
        return msgspec.structs.replace(self, reply_to=reply_to)

    def with_priority(self, priority: int) -> "Message":
        return msgspec.structs.replace(self, priority=priority)

    def with_partition_key(self, partition_key: str) -> "Message":
        return msgspec.structs.replace(self, partition_key=partition_key)

    def with_delay(self, delay: timedelta | float) -> "Message":
        return msgspec.structs.replace(self, delay=delay)


class ReceiptHandle(msgspec.Struct, frozen=True, gc=False):
    """The handle by which a delivery is settled. Its content is defined by the provider."""

    handle: str
    expires_at: datetime
    provider: ProviderType
    _now: Callable[[], datetime] = utc_now

    def is_expired(self) -> bool:
        return self.expires_at <= self._now()

    def time_until_expiry(self) -> timedelta:
        """Nothing, once it has expired."""
        return max(timedelta(0), self.expires_at - self._now())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ReceiptHandle)
            and self.handle == other.handle
            and self.provider is other.provider
        )

    def __hash__(self) -> int:
        return hash(self.handle)


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, and the delivery with which it came."""

    message_id: MessageId
    body: bytes
    receipt_handle: ReceiptHandle
    delivery_count: int  # 1 the first time
    delivered_at: datetime
    attributes: "dict[str, AttributeValue]" = {}
    session_id: SessionId | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    first_delivered_at: datetime | None = None  # None where the provider does not tell
    time_to_live: timedelta | None = None
    sequence_number: int = 0  # 0 where the provider has none
    enqueued_at: datetime | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    priority: int = PRIORITY  # also where the sender gave none
    partition_key: str | None = None

    def message(self) -> Message:
        """Returns a message with the same content and id, to be sent again."""
        return Message(
            self.body, self.attributes, self.session_id, self.correlation_id, self.time_to_live,
            self.message_id, self.content_type, self.subject, self.to, self.reply_to,
            None if self.priority == PRIORITY else self.priority, self.partition_key,
        )  # fmt: skip

    def has_exceeded_max_delivery_count(self, max_count: int) -> bool:
        return self.delivery_count > max_count

    def value(self, kind: type[T]) -> T:
        """The body, read as that type's codec does. Raises SerializationError."""
        from posthouse.client.codecs import decode

        return decode(self.body, kind, self.content_type)
