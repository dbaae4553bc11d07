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
from math import ceil, isfinite
from typing import Any, NamedTuple
from uuid import UUID

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
    Throttled,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

TYPE = ProviderType.AWS_SQS
DELAY_S_MAX = 900  # of a message
NATIVE_MAX = 9  # attributes of a message, beside our own
THROTTLED_S = 5.0  # how long to wait; SQS does not say
OURS = "posthouse"
REDRIVEN = "MaxDeliveryCountExceeded"  # why SQS itself moves a message

_NAME = re.compile(r"(?!AWS\.|Amazon\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
_TEXT = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_INT = re.compile(r"[+-]?\d+", re.ASCII)
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
    "AWS.SimpleQueueService.OverLimit", "PurgeQueueInProgress",
    "AWS.SimpleQueueService.PurgeQueueInProgress",
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
        about = f"to {doing.operation} {doing.queue!r} is refused ({code}): {told}"
        return ValidationError("request", about)
    return ProviderError(TYPE.value, code, told, is_transient=transient)


Entry = dict[str, Any]  # of SendMessage and SendMessageBatch


def entry_of(message: Message, *, fifo: bool, more: Mapping[str, str] | None = None) -> Entry:
    """Raises MessageTooLarge, Unsupported, ValidationError."""
    _check_carried(message, fifo=fifo)
    id = str(message.message_id or MessageId())
    ours: dict[str, Any] = {"id": id, **(more or {})}
    try:
        body = message.body.decode()
    except UnicodeDecodeError:
        body = ""
    if _TEXT.fullmatch(body) is None:
        body, ours["base64"] = b64encode(message.body).decode(), True
    texts = {
        "correlation": message.correlation_id, "type": message.content_type,
        "subject": message.subject, "to": message.to, "reply": message.reply_to,
    }  # fmt: skip
    ours |= {name: text for name, text in texts.items() if text is not None}
    native, packed = _divided(message.attributes)
    if packed:
        ours["attributes"] = packed
    attributes = {**native, OURS: {"DataType": "String", "StringValue": ""}}
    entry: Entry = {"MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        # Without a session nothing is to be in order with it: it is a group of its own.
        entry["MessageGroupId"] = plain(message.session_id or id)
        entry["MessageDeduplicationId"] = plain(id)
        ours["session"] = message.session_id
    elif message.delay is not None:
        entry["DelaySeconds"] = ceil(message.delay.total_seconds())
    attributes[OURS]["StringValue"] = json.dumps(ours, separators=(",", ":"))
    size = size_of(entry)
    if size > TYPE.max_message_size():
        raise MessageTooLarge(size, TYPE.max_message_size())
    return entry


def _check_carried(message: Message, *, fifo: bool) -> None:
    """Raises Unsupported, ValidationError."""
    if message.time_to_live is not None:
        raise Unsupported(TYPE.value, "let a message expire: its queues do, all alike")
    if message.session_id is not None and not fifo:
        raise Unsupported(TYPE.value, "keep sessions in order without use_fifo_queues")
    if message.priority is not None:
        raise Unsupported(TYPE.value, "order messages by priority; use a queue for each")
    if message.partition_key is not None:
        raise Unsupported(TYPE.value, "partition messages by a key; use a session id")
    if message.delay is not None:
        if fifo:
            raise Unsupported(TYPE.value, "delay one message of a FIFO queue, only all of them")
        if message.delay.total_seconds() > DELAY_S_MAX:
            raise Unsupported(TYPE.value, f"delay a message for more than {DELAY_S_MAX} s")
    if not message.body:
        raise ValidationError("body", "must not be empty: SQS takes no empty one")
    check_attributes(message.attributes, TYPE)


def _divided(
    attributes: Mapping[str, AttributeValue],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Those that SQS takes as they are, and the others."""
    native: dict[str, dict[str, Any]] = {}
    packed: dict[str, Any] = {}
    for name, value in attributes.items():
        label, text = _labelled(value)
        named = len(name) <= 256 and name.lower() != OURS and _NAME.fullmatch(name)
        if isinstance(value, bytes):
            form: dict[str, Any] = {"DataType": label, "BinaryValue": value}
        else:
            form = {"DataType": label, "StringValue": text}
        fits = named and _TEXT.fullmatch(text) and not _is_odd(value)
        if fits and len(native) < NATIVE_MAX:
            native[name] = form
        else:
            packed[name] = text if label == "String" else [label, text]
    return native, packed


def _is_odd(value: AttributeValue) -> bool:
    """A number that is none to SQS."""
    return isinstance(value, float) and not (isfinite(value) and (abs(value) < 1e100))


def _labelled(value: AttributeValue) -> tuple[str, str]:
    """A value as SQS's type, with a label where the type alone would not tell, and its text."""
    match value:
        case bool():
            return "String.bool", "true" if value else "false"
        case int():
            return "Number.int", str(int(value))
        case float():
            return "Number.float", repr(float(value))
        case bytes():
            return "Binary", b64encode(value).decode()
        case datetime():
            return "String.datetime", value.isoformat()
        case UUID():
            return "String.uuid", str(value)
        case _:
            return "String", str(value)


def _unlabelled(label: str, text: str) -> AttributeValue:
    """The reverse; text where it cannot be read as its label says."""
    try:
        match label.partition("."):
            case "Binary", _, _:
                return b64decode(text)
            case "Number", _, "float":
                return float(text)
            case "Number", _, _:
                return int(text) if _INT.fullmatch(text) else float(text)
            case _, _, "bool":
                return text == "true"
            case _, _, "datetime":
                return datetime.fromisoformat(text)
            case _, _, "uuid":
                return UUID(text)
            case _:
                return text
    except ValueError:
        return text


def plain(id: str) -> str:
    """Returns an id that SQS accepts as group or deduplication id: the id itself, or its hash."""
    return id if _PLAIN.fullmatch(id) else sha256(id.encode()).hexdigest()


def size_of(entry: Entry) -> int:
    """Returns the size that SQS counts: the body, and each attribute's name, type and value."""
    return len(entry["MessageBody"].encode()) + sum(
        len(name)
        + len(each["DataType"])
        + len(each["BinaryValue"] if "BinaryValue" in each else each["StringValue"].encode())
        for name, each in entry["MessageAttributes"].items()
    )


def incoming(found: Mapping[str, Any], handle: str, until: datetime, dead: bool) -> ReceivedMessage:
    """Also of a message that another kind of client has sent."""
    given: dict[str, Any] = found.get("Attributes", {})
    native: dict[str, Any] = dict(found.get("MessageAttributes", {}))
    ours = _read(native.pop(OURS, {}).get("StringValue"))
    attributes = {name: _native_value(each) for name, each in native.items()}
    for name, packed in ours.get("attributes", {}).items():
        attributes[name] = _unlabelled(*packed) if isinstance(packed, list) else str(packed)
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
        subject=ours.get("subject"), to=ours.get("to"), reply_to=ours.get("reply"),
    )  # fmt: skip


def _native_value(given: Mapping[str, Any]) -> AttributeValue:
    binary = given.get("BinaryValue")
    if binary is not None:
        return bytes(binary)
    return _unlabelled(str(given.get("DataType", "String")), str(given.get("StringValue", "")))


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
