"""Messages and errors of Azure Service Bus, in the client's words and back."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus import exceptions as azure

from posthouse.client.attributes import AttributeValue, check_attributes
from posthouse.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    MessageNotFound,
    MessageTooLarge,
    PermissionDenied,
    ProviderError,
    QueueError,
    QueueNotFound,
    SessionLocked,
    SessionLockLost,
    Throttled,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

TYPE = ProviderType.AZURE_SERVICE_BUS
BUSY_S = 10.0  # how long to wait where the service is busy, and does not say it
_WAIT = re.compile(r"\bwait (\d{1,6}) (ms|seconds?)\b", re.ASCII)


class Doing(NamedTuple):
    """The operation that failed, with the details that its error names."""

    operation: str
    queue: str = ""
    receipt: str = ""
    session: str = ""
    size: int = 0  # of a message
    limit: int = 0  # of messages
    seconds: float = 0.0


def _code(error: BaseException) -> str:
    """AMQP's condition where there is one, else the name of the class."""
    return str(getattr(error, "_condition", None) or type(error).__name__)


def _other(transient: bool) -> "Callable[[BaseException, Doing], QueueError]":
    return lambda error, doing: ProviderError(
        TYPE.value, _code(error), str(error), is_transient=transient
    )


def _gone(error: BaseException, doing: Doing) -> QueueError:
    return MessageNotFound(doing.receipt)


def _unconnected(error: BaseException, doing: Doing) -> QueueError:
    return ConnectionFailed(str(error))


def _too_large(error: BaseException, doing: Doing) -> QueueError:
    return MessageTooLarge(doing.size, doing.limit or TYPE.max_message_size())


def _wait_told(error: BaseException) -> float:
    """Seconds that a busy service asks for: "wait 2 seconds" of Azure, "wait 250 ms" of our broker.

    It is read out of the text: the SDK's exception has no field for it, and drops the info of the
    AMQP error.
    """
    found = _WAIT.search(str(error))
    return BUSY_S if found is None else int(found[1]) / (1_000 if found[2] == "ms" else 1)


# Every class of azure.servicebus.exceptions, and what else its calls raise.
ERRORS: dict[type[BaseException], Callable[[BaseException, Doing], QueueError]] = {
    azure.ServiceBusError: _other(True),
    azure.ServiceBusConnectionError: _unconnected,
    azure.ServiceBusCommunicationError: _unconnected,
    azure.ServiceBusAuthenticationError: lambda error, doing: AuthenticationFailed(str(error)),
    azure.ServiceBusAuthorizationError: lambda error, doing: PermissionDenied(
        doing.operation, str(error)
    ),
    azure.OperationTimeoutError: lambda error, doing: Timeout(
        doing.seconds, f"To {doing.operation}"
    ),
    azure.MessageSizeExceededError: _too_large,
    azure.MessageAlreadySettled: _gone,
    azure.MessageLockLostError: _gone,
    azure.MessageNotFoundError: _gone,
    azure.SessionLockLostError: lambda error, doing: SessionLockLost(doing.session),
    azure.SessionCannotBeLockedError: lambda error, doing: SessionLocked(doing.session),
    azure.MessagingEntityNotFoundError: lambda error, doing: QueueNotFound(doing.queue),
    azure.MessagingEntityDisabledError: _other(False),
    azure.MessagingEntityAlreadyExistsError: _other(False),
    azure.ServiceBusQuotaExceededError: _other(True),
    azure.ServiceBusServerBusyError: lambda error, doing: Throttled(
        TYPE.value, _code(error), str(error), _wait_told(error)
    ),
    azure.AutoLockRenewFailed: _other(False),
    azure.AutoLockRenewTimeout: _other(False),
    ClientAuthenticationError: lambda error, doing: AuthenticationFailed(str(error)),
    AzureError: _other(True),
    ValueError: _unconnected,  # a sender or receiver that has been shut down meanwhile
    OSError: _unconnected,
}
RAISED = (AzureError, ValueError, OSError)


def error_of(error: BaseException, doing: Doing) -> QueueError:
    """Returns the client's error for an SDK error, by its most specific known class.

    The caller raises it from the SDK error. Raises the SDK error itself if no class is known.
    """
    for kind in type(error).__mro__:
        known = ERRORS.get(kind)
        if known is not None:
            return known(error, doing)
    raise error


def size_of(message: Message) -> int:
    """Returns the size of a message, without what the protocol adds."""
    named = sum(
        len(name.encode()) + len(str(value).encode()) for name, value in message.attributes.items()
    )
    return len(message.body) + named


# The SDK hands text out as bytes, and times as numbers: what these were is not known any more.
_CARRIED = (str, bool, int, float, UUID)


def outgoing(message: Message) -> ServiceBusMessage:
    """Raises Unsupported, ValidationError."""
    if message.priority is not None:
        raise Unsupported(TYPE.value, "order messages by priority; use a queue for each")
    check_attributes(message.attributes, TYPE, _CARRIED)
    session, key = message.session_id, message.partition_key
    if session is not None and key is not None and session != key:
        raise ValidationError("partition key", "must be the session id where a message has both")
    return ServiceBusMessage(
        message.body, message_id=message.message_id and str(message.message_id),
        session_id=session and str(session), partition_key=key, subject=message.subject,
        to=message.to, reply_to=message.reply_to, correlation_id=message.correlation_id,
        content_type=message.content_type, time_to_live=message.time_to_live,
        scheduled_enqueue_time_utc=None if message.delay is None else utc_now() + message.delay,
        application_properties={
            name: _property(value) for name, value in message.attributes.items()
        },
    )  # fmt: skip


def _property(value: Any) -> Any:
    """The SDK takes every number for one of 32 bits, unless it is told the type."""
    is_long = type(value) is int and not -(1 << 31) <= value < 1 << 31
    return {"TYPE": "LONG", "VALUE": value} if is_long else value


def incoming(found: ServiceBusReceivedMessage, until: datetime) -> ReceivedMessage:
    """Converts a message of the SDK. A locked message gets a receipt that can be settled."""
    token = found.lock_token
    receipt = ReceiptHandle("" if token is None else str(token), until, TYPE)
    count = (found.delivery_count or 0) + (1 if token is not None else 0)
    now = utc_now()
    life = found.time_to_live
    return ReceivedMessage(
        MessageId(found.message_id or str(found.sequence_number)), _body(found), receipt, count,
        now, _attributes(found), None if found.session_id is None else SessionId(found.session_id),
        found.correlation_id, found.content_type, now if count <= 1 else None,
        None if life is None or life > timedelta(days=365_000) else life,
        found.sequence_number or 0, _utc(found.enqueued_time_utc), found.dead_letter_reason,
        found.dead_letter_error_description, found.subject, found.to, found.reply_to,
        partition_key=found.partition_key,
    )  # fmt: skip


def again(found: ServiceBusReceivedMessage) -> ServiceBusMessage:
    """A dead letter as it was, without what made it one."""
    properties = {
        name: _property(value)
        for name, value in (found.application_properties or {}).items()
        if _text(name) not in ("DeadLetterReason", "DeadLetterErrorDescription")
    }
    return ServiceBusMessage(
        _body(found), message_id=found.message_id, session_id=found.session_id,
        correlation_id=found.correlation_id, content_type=found.content_type,
        subject=found.subject, to=found.to, reply_to=found.reply_to,
        reply_to_session_id=found.reply_to_session_id, partition_key=found.partition_key,
        time_to_live=found.time_to_live,
        application_properties=properties,
    )  # fmt: skip


def _body(found: ServiceBusReceivedMessage) -> bytes:
    """Returns the body. A value or a sequence, which other clients may send, becomes its text."""
    if found.body_type.value == "data":
        body: Any = found.body
        return body if isinstance(body, bytes) else b"".join(body)
    return str(found).encode()


def _attributes(found: ServiceBusReceivedMessage) -> dict[str, AttributeValue]:
    given = found.application_properties or {}
    return {
        name: value if isinstance(value, bool | int | float | UUID) else _text(value)
        for name, value in ((_text(name), value) for name, value in given.items())
        if name not in ("DeadLetterReason", "DeadLetterErrorDescription")
    }


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)
