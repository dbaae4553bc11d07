"""Messages and errors of Amazon SQS, in the client's words and back.

A body of SQS is text of the characters that XML has, and a message has ten attributes at most. What
does not go into them so goes into one attribute of our own, `posthouse`, as JSON: the message's id
and other fields, that its body is base64, and attributes that SQS would not take as they are.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from posthouse.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    MessageNotFound,
    MessageTooLarge,
    PermissionDenied,
    ProviderError,
    QueueError,
    QueueNotFound,
    Throttled,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

TYPE = ProviderType.AWS_SQS
NATIVE_MAX = 9  # attributes of a message, beside our own
THROTTLED_S = 5.0  # how long to wait; SQS does not say
OURS = "posthouse"
REDRIVEN = "MaxDeliveryCountExceeded"  # why SQS itself moves a message

_NAME = re.compile(r"(?!AWS\.|Amazon\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
_TEXT = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_PLAIN = re.compile(r"[\x21-\x7e]{1,128}")

# By what an error of SQS's says.
_MISSING = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently"}
_GONE = {
    "ReceiptHandleIsInvalid",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
}
_UNKNOWN = {
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "AuthFailure",
    "ExpiredToken", "ExpiredTokenException", "MissingAuthenticationToken", "IncompleteSignature",
    "InvalidAccessKeyId", "RequestExpired", "InvalidSecurity", "InvalidToken",
}  # fmt: skip
_DENIED = {
    "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "KmsAccessDenied",
    "NotAuthorized", "OptInRequired",
}  # fmt: skip
_BUSY = {
    "Throttling", "ThrottlingException", "RequestThrottled", "RequestThrottledException",
    "RequestLimitExceeded", "TooManyRequestsException", "OverLimit", "SlowDown", "KmsThrottled",
    "AWS.SimpleQueueService.OverLimit",
}  # fmt: skip
_REFUSED = {
    "InvalidMessageContents", "InvalidAttributeName", "InvalidAttributeValue",
    "InvalidParameterValue", "MissingParameter", "BatchRequestTooLong",
    "AWS.SimpleQueueService.BatchRequestTooLong",
}  # fmt: skip
RAISED = (ClientError, BotoCoreError, OSError)


class Doing(NamedTuple):
    """The operation that failed, with the details that its error names."""

    operation: str
    queue: str = ""
    receipt: str = ""


def error_of(error: BaseException, doing: Doing) -> QueueError:
    """Returns the client's error for an SDK error, for the caller to raise from it."""
    match error:
        case ClientError():
            about = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code, told = str(about.get("Code", "Unknown")), str(about.get("Message", error))
            return error_by_code(code, told, status >= 500, doing)
        case ConnectTimeoutError() | ReadTimeoutError() | TimeoutError():
            return Timeout(0.0, f"To {doing.operation}")
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return AuthenticationFailed(str(error))
        case HTTPClientError() | BotoConnectionError() | OSError():
            return ConnectionFailed(str(error))
        case _:
            kind = type(error).__name__
            return ProviderError(TYPE.value, kind, str(error), is_transient=False)


def error_by_code(code: str, told: str, transient: bool, doing: Doing) -> QueueError:
    if code in _MISSING:
        return QueueNotFound(doing.queue)
    if code in _GONE or (code == "InvalidParameterValue" and doing.receipt):
        return MessageNotFound(doing.receipt)
    if code in _UNKNOWN:
        return AuthenticationFailed(f"{code}: {told}")
    if code in _DENIED:
        return PermissionDenied(doing.operation, f"{code}: {told}")
    if code in _BUSY:
        return Throttled(TYPE.value, code, told, THROTTLED_S)
    if code in _REFUSED:
        return ValidationError("message", f"is refused ({code}): {told}")
    return ProviderError(TYPE.value, code, told, is_transient=transient)


Entry = dict[str, Any]  # of SendMessage and SendMessageBatch


def entry_of(message: Message, *, fifo: bool, more: Mapping[str, str] | None = None) -> Entry:
    """Raises MessageTooLarge, Unsupported, ValidationError."""
    if message.time_to_live is not None:
        raise Unsupported(TYPE.value, "let a message expire: its queues do, all alike")
    if message.session_id is not None and not fifo:
        raise Unsupported(TYPE.value, "keep sessions in order without use_fifo_queues")
    if not message.body:
        raise ValidationError("body", "must not be empty: SQS takes no empty one")
    id = str(message.message_id or MessageId())
    ours: dict[str, Any] = {"id": id, **(more or {})}
    try:
        body = message.body.decode()
    except UnicodeDecodeError:
        body = ""
    if _TEXT.fullmatch(body) is None:
        body, ours["base64"] = b64encode(message.body).decode(), True
    if message.correlation_id is not None:
        ours["correlation"] = message.correlation_id
    if message.content_type is not None:
        ours["type"] = message.content_type
    native, packed = _divided(message.attributes)
    if packed:
        ours["attributes"] = packed
    attributes = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in [*native.items(), (OURS, "")]
    }
    entry: Entry = {"MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        # Without a session nothing is to be in order with it: it is a group of its own.
        entry["MessageGroupId"] = plain(message.session_id or id)
        entry["MessageDeduplicationId"] = plain(id)
        ours["session"] = message.session_id
    attributes[OURS]["StringValue"] = json.dumps(ours, separators=(",", ":"))
    size = size_of(entry)
    if size > TYPE.max_message_size():
        raise MessageTooLarge(size, TYPE.max_message_size())
    return entry


def _divided(attributes: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Those that SQS takes as they are, and the others."""
    native = {
        name: value
        for name, value in attributes.items()
        if len(name) <= 256 and name.lower() != OURS and _NAME.fullmatch(name)
        and _TEXT.fullmatch(value)
    }  # fmt: skip
    if len(native) > NATIVE_MAX:
        native = dict(list(native.items())[:NATIVE_MAX])
    return native, {name: value for name, value in attributes.items() if name not in native}


def plain(id: str) -> str:
    """Returns an id that SQS accepts as group or deduplication id: the id itself, or its hash."""
    return id if _PLAIN.fullmatch(id) else sha256(id.encode()).hexdigest()


def size_of(entry: Entry) -> int:
    """Returns the size that SQS counts: the body, and each attribute's name, type and value."""
    return len(entry["MessageBody"].encode()) + sum(
        len(name) + len(each["DataType"]) + len(each["StringValue"].encode())
        for name, each in entry["MessageAttributes"].items()
    )


def incoming(found: Mapping[str, Any], handle: str, until: datetime, dead: bool) -> ReceivedMessage:
    """Also of a message that another kind of client has sent."""
    given: dict[str, Any] = found.get("Attributes", {})
    attributes = {
        name: str(each.get("StringValue", ""))
        for name, each in found.get("MessageAttributes", {}).items()
    }
    ours = _read(attributes.pop(OURS, None))
    attributes |= ours.get("attributes", {})
    text = str(found.get("Body", ""))
    body = b64decode(text) if ours.get("base64") else text.encode()
    session = ours["session"] if "session" in ours else given.get("MessageGroupId")
    reason = ours.get("reason") or (REDRIVEN if dead else None)
    return ReceivedMessage(
        MessageId(ours.get("id") or found["MessageId"]), body, ReceiptHandle(handle, until, TYPE),
        int(given.get("ApproximateReceiveCount", 1)), utc_now(), attributes,
        None if session is None else SessionId(session),
        ours.get("correlation"), ours.get("type"),
        _moment(given.get("ApproximateFirstReceiveTimestamp")),
        sequence_number=int(given.get("SequenceNumber", 0)),
        enqueued_at=_moment(given.get("SentTimestamp")),
        dead_letter_reason=reason, dead_letter_description=ours.get("description"),
    )  # fmt: skip


def _read(text: str | None) -> dict[str, Any]:
    """Parses the client's own attribute. Text that is not a JSON object gives an empty dict."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _moment(ms: str | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(int(ms) / 1_000, UTC)
