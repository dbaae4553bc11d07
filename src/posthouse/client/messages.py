"""Messages: to be sent, received, and the receipts by which they are settled."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from posthouse.client.errors import ValidationError
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send: `Message(b"...")`, or `Message.of(value)` for other values."""

    body: bytes
    attributes: dict[str, str] = {}
    session_id: SessionId | None = None
    correlation_id: str | None = None
    time_to_live: timedelta | None = None
    message_id: MessageId | None = None  # without one it gets a new one when it is sent
    content_type: str | None = None

    @classmethod
    def of(cls, value: object) -> "Message":
        """Makes a message of a value, encoded by its type's codec. Raises SerializationError."""
        from posthouse.client.codecs import encode

        body, content_type = encode(value)
        return cls(body, content_type=content_type)

    def with_session_id(self, session_id: str) -> "Message":
        return msgspec.structs.replace(self, session_id=SessionId(session_id))

    def with_attribute(self, key: str, value: str) -> "Message":
        """Raises ValidationError."""
        if not key:
            raise ValidationError("attribute", "must have a name")
        return msgspec.structs.replace(self, attributes={**self.attributes, key: value})

    def with_correlation_id(self, correlation_id: str) -> "Message":
        return msgspec.structs.replace(self, correlation_id=correlation_id)

    def with_ttl(self, ttl: timedelta | float) -> "Message":
        """A duration, or seconds. Raises ValidationError."""
        life = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
        if life <= timedelta(0):
            raise ValidationError("time to live", "must be more than nothing")
        return msgspec.structs.replace(self, time_to_live=life)

    def with_message_id(self, message_id: str) -> "Message":
        return msgspec.structs.replace(self, message_id=MessageId(message_id))

    def with_content_type(self, content_type: str) -> "Message":
        return msgspec.structs.replace(self, content_type=content_type)


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
    attributes: dict[str, str] = {}
    session_id: SessionId | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    first_delivered_at: datetime | None = None  # None where the provider does not tell
    time_to_live: timedelta | None = None
    sequence_number: int = 0  # 0 where the provider has none
    enqueued_at: datetime | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None

    def message(self) -> Message:
        """Returns a message with the same content and id, to be sent again."""
        return Message(
            self.body, self.attributes, self.session_id, self.correlation_id, self.time_to_live,
            self.message_id, self.content_type,
        )  # fmt: skip

    def has_exceeded_max_delivery_count(self, max_count: int) -> bool:
        return self.delivery_count > max_count

    def value(self, kind: type[T]) -> T:
        """The body, read as that type's codec does. Raises SerializationError."""
        from posthouse.client.codecs import decode

        return decode(self.body, kind, self.content_type)
