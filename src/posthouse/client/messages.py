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
    """A message to send. It is immutable.

    `body` is bytes, or text, which is sent as UTF-8; `Message.of` writes other values. `attributes`
    has values by name: str, int, float, bool, bytes, datetime or UUID. `message_id` and
    `correlation_id` name it and what it belongs to; without an id it gets a UUID when it is sent.
    `session_id` is its session. `content_type`, `subject`, `to` and `reply_to` are texts for
    receivers and rules. `time_to_live` and `delay` are timedeltas or seconds. `priority` is 0 to 9,
    `partition_key` keeps messages with the same key in order. A field that a provider cannot carry
    raises Unsupported at the send. Raises ValidationError.

    Example:
        message = Message("a book", {"price": 12.5}, subject="order", time_to_live=3_600)
    """

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
        """Makes a message of a `value`, encoded by its type's codec. Raises SerializationError.

        Example:
            message = Message.of({"number": 7})
        """
        from posthouse.client.codecs import encode

        body, content_type = encode(value)
        return cls(body, content_type=content_type)

    def with_session_id(self, session_id: str) -> "Message":
        """Returns a copy with this `session_id`. Raises ValidationError.

        Example:
            message = message.with_session_id("customer-7")
        """
        return msgspec.structs.replace(self, session_id=SessionId(session_id))

    def with_attribute(self, key: str, value: "AttributeValue") -> "Message":
        """Returns a copy with one more attribute: `key` is its name, `value` its value.

        Raises ValidationError.

        Example:
            message = message.with_attribute("price", 12.5)
        """
        if not key:
            raise ValidationError("attribute", "must have a name")
        return msgspec.structs.replace(self, attributes={**self.attributes, key: value})

    def with_correlation_id(self, correlation_id: str) -> "Message":
        """Returns a copy with this `correlation_id`.

        Example:
            message = message.with_correlation_id("order-7")
        """
        return msgspec.structs.replace(self, correlation_id=correlation_id)

    def with_ttl(self, ttl: timedelta | float) -> "Message":
        """Returns a copy that may wait for `ttl`, a timedelta or seconds. Raises ValidationError.

        Example:
            message = message.with_ttl(3_600)
        """
        return msgspec.structs.replace(self, time_to_live=ttl)

    def with_message_id(self, message_id: str) -> "Message":
        """Returns a copy with this `message_id`. Raises ValidationError.

        Example:
            message = message.with_message_id("order-7")
        """
        return msgspec.structs.replace(self, message_id=MessageId(message_id))

    def with_content_type(self, content_type: str) -> "Message":
        """Returns a copy with this `content_type`.

        Example:
            message = message.with_content_type("application/json")
        """
        return msgspec.structs.replace(self, content_type=content_type)

    def with_subject(self, subject: str) -> "Message":
        """Returns a copy with this `subject`.

        Example:
            message = message.with_subject("orders.created")
        """
        return msgspec.structs.replace(self, subject=subject)

    def with_to(self, to: str) -> "Message":
        """Returns a copy with this `to`, the address that it is for.

        Example:
            message = message.with_to("warehouse")
        """
        return msgspec.structs.replace(self, to=to)

    def with_reply_to(self, reply_to: str) -> "Message":
        """Returns a copy with this `reply_to`, the address for an answer.

        Example:
            message = message.with_reply_to("answers")
        """
        return msgspec.structs.replace(self, reply_to=reply_to)

    def with_priority(self, priority: int) -> "Message":
        """Returns a copy with this `priority`, 0 to 9. Raises ValidationError.

        Example:
            message = message.with_priority(9)
        """
        return msgspec.structs.replace(self, priority=priority)

    def with_partition_key(self, partition_key: str) -> "Message":
        """Returns a copy with this `partition_key`. Raises ValidationError.

        Example:
            message = message.with_partition_key("customer-7")
        """
        return msgspec.structs.replace(self, partition_key=partition_key)

    def with_delay(self, delay: timedelta | float) -> "Message":
        """Returns a copy that can be received `delay` after it is sent, a timedelta or seconds.

        Raises ValidationError.

        Example:
            message = message.with_delay(60)
        """
        return msgspec.structs.replace(self, delay=delay)


class ReceiptHandle(msgspec.Struct, frozen=True, gc=False):
    """The handle by which a delivery is settled. Its content is defined by the provider.

    `handle` is the text, `expires_at` when the lock expires, `provider` who gave it.

    Example:
        await client.complete_message(message.receipt_handle)
    """

    handle: str
    expires_at: datetime
    provider: ProviderType
    _now: Callable[[], datetime] = utc_now

    def is_expired(self) -> bool:
        """Returns whether the lock has expired, by the clock of the provider.

        Example:
            if message.receipt_handle.is_expired():
                print("another receiver may have it")
        """
        return self.expires_at <= self._now()

    def time_until_expiry(self) -> timedelta:
        """Returns how long the lock lasts; nothing, once it has expired.

        Example:
            print(message.receipt_handle.time_until_expiry().total_seconds())
        """
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
    """A message, and the delivery with which it came.

    `body`, `attributes`, `message_id`, `session_id`, `correlation_id`, `content_type`, `subject`,
    `to`, `reply_to`, `priority`, `partition_key` and `time_to_live` are those of the message that
    was sent. `receipt_handle` settles the delivery; `delivery_count` is 1 the first time;
    `delivered_at`, `first_delivered_at` and `enqueued_at` are moments, None where the provider does
    not tell. `sequence_number` is the broker's, 0 where there is none. `dead_letter_reason` and
    `dead_letter_description` say why it was dead-lettered.

    Example:
        message = await client.receive_message("orders")
        if message is not None:
            print(message.body, message.subject, message.delivery_count)
    """

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
        """Returns a message with the same content and id, to be sent again.

        Example:
            await client.send_message("archive", received.message())
        """
        return Message(
            self.body, self.attributes, self.session_id, self.correlation_id, self.time_to_live,
            self.message_id, self.content_type, self.subject, self.to, self.reply_to,
            None if self.priority == PRIORITY else self.priority, self.partition_key,
        )  # fmt: skip

    def has_exceeded_max_delivery_count(self, max_count: int) -> bool:
        """Returns whether it was delivered more than `max_count` times.

        Example:
            if received.has_exceeded_max_delivery_count(5):
                await client.dead_letter_message(received, "too many attempts")
        """
        return self.delivery_count > max_count

    def value(self, kind: type[T]) -> T:
        """Returns the body, read as the type `kind` by its codec. Raises SerializationError.

        Example:
            order = received.value(dict)
        """
        from posthouse.client.codecs import decode

        return decode(self.body, kind, self.content_type)
