"""Messages of SQS: what a sender gives becomes a message of ours, and a delivery what is received.

For all other clients the attributes are typed properties of the envelope. Types with labels, and
numbers as they were written, are kept in the native form beside it, with the digests:

    ["sqs", sent_ms, sender, MD5 of the body, MD5 of the attributes, attributes, trace, id]

as a MessagePack array, where the id is the one by which a duplicate is known.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b, md5, sha256
from struct import Struct
from typing import Any
from uuid import UUID as Uuid

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.commands import Delivery
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    UUID,
    Envelope,
    NewMessage,
    Note,
    Properties,
    Value,
    decode_envelope,
    encode_envelope,
    group_of,
)
from posthouse.core.message import Message as Stored
from posthouse.dialects.sqs.attributes import ALL
from posthouse.dialects.sqs.errors import (
    ATTRIBUTE_NAME,
    CONTENTS,
    UNSUPPORTED,
    VALUE,
    Failed,
    invalid,
    missing,
)
from posthouse.dialects.sqs.shapes import Message, MessageAttributeValue

ATTRIBUTES_MAX = 10
NAME_CHARS_MAX, TYPE_CHARS_MAX = 256, 256
ID_CHARS_MAX = 128  # of a group, a duplicate, an attempt
DIGITS_MAX = 38
BIGGEST, SMALLEST = Decimal("1e126"), Decimal("1e-128")
TRACE_CHARS_MAX = 1_024
TRACE = "AWSTraceHeader"
ENCODING = "posthouse.encoding"  # the attribute that says how a body that is no text is written
SEQUENCE_DIGITS = 20

Attributes = Mapping[str, MessageAttributeValue]

_TEXT = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_ID = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_RESERVED = re.compile(r"(?:aws|amazon)\.", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_W3C = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_LENGTH = Struct(">I").pack
_STRING, _BINARY = b"\x01", b"\x02"
_SIMPLE = {"String", "Number", "Binary"}


class Native(msgspec.Struct, array_like=True, tag="sqs", frozen=True, gc=False):
    """Values of a sender that have no place in an envelope. Fields are added at the end."""

    sent_ms: int
    sender: str
    body_md5: bytes
    attributes_md5: bytes | None = None
    attributes: dict[str, tuple[str, Any]] | None = None  # type, and text or bytes
    trace: str | None = None
    duplicate_id: str | None = None


_encode_native = msgspec.msgpack.Encoder().encode
_native_decoder = msgspec.msgpack.Decoder(Native)
_BEGIN = _encode_native(Native(0, "", b""))[:5]


def native_of(data: bytes | None) -> Native | None:
    """None for the native form of another dialect."""
    if data is None or not data.startswith(_BEGIN):
        return None
    try:
        return _native_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# Digests.


def body_digest(body: bytes) -> bytes:
    return md5(body, usedforsecurity=False).digest()


def attributes_digest(attributes: Attributes) -> bytes:
    """MD5 of the attributes in the order of their names, each part with its length before it."""
    parts: list[bytes] = []
    for name in sorted(attributes):
        given = attributes[name]
        is_binary = given.binary_value is not None
        value = given.binary_value if is_binary else (given.string_value or "").encode()
        for text in (name.encode(), (given.data_type or "").encode()):
            parts += (_LENGTH(len(text)), text)
        assert value is not None
        parts += (_BINARY if is_binary else _STRING, _LENGTH(len(value)), value)
    return md5(b"".join(parts), usedforsecurity=False).digest()


# What is sent.


def check_body(text: str | None) -> bytes:
    """The bytes of a body. Raises Failed."""
    if not text:
        raise missing("MessageBody")
    if not _TEXT.fullmatch(text):
        raise Failed(
            CONTENTS,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD |"
            " #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    return text.encode()


def check_attributes(given: Attributes) -> int:
    """The bytes that attributes count for. Raises Failed."""
    if len(given) > ATTRIBUTES_MAX:
        raise Failed(
            VALUE,
            f"Number of message attributes [{len(given)}] exceeds the allowed"
            f" maximum [{ATTRIBUTES_MAX}].",
        )
    return sum(_check_attribute(name, value) for name, value in given.items())


def _check_attribute(name: str, given: MessageAttributeValue) -> int:
    if not 1 <= len(name) <= NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise Failed(
            VALUE,
            "Message (user) attribute name can contain letters, digits, '_', '-' and"
            f" single dots inside, 1 to {NAME_CHARS_MAX} characters: '{name}'.",
        )
    if _RESERVED.match(name):
        raise Failed(
            VALUE,
            f"Message (user) attribute name '{name}' is invalid: names that begin"
            " with AWS. or Amazon. are reserved.",
        )
    if given.string_list_values or given.binary_list_values:
        raise Failed(
            UNSUPPORTED, "Message attribute list values in SendMessage operation are not supported."
        )
    kind = given.data_type or ""
    simple = kind.partition(".")[0]
    if simple not in _SIMPLE or len(kind) > TYPE_CHARS_MAX or not _TEXT.fullmatch(kind):
        raise Failed(
            VALUE,
            f"The type of message (user) attribute '{name}' is invalid. You must use"
            " only the following supported type prefixes: Binary, Number, String.",
        )
    if simple == "Binary":
        if not given.binary_value or given.string_value is not None:
            raise _empty(name, "Binary")
        return len(name.encode()) + len(kind.encode()) + len(given.binary_value)
    text = given.string_value
    if not text or given.binary_value is not None:
        raise _empty(name, "String")
    if not _TEXT.fullmatch(text):
        raise Failed(
            VALUE,
            f"Message (user) attribute '{name}' has characters that are not valid:"
            " those of a body are.",
        )
    if simple == "Number":
        _check_number(name, text)
    return len(name.encode()) + len(kind.encode()) + len(text.encode())


def _empty(name: str, kind: str) -> Failed:
    return Failed(
        VALUE, f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."
    )


def _check_number(name: str, text: str) -> None:
    if not _NUMBER.fullmatch(text.strip()):
        raise Failed(
            VALUE, f"Can't cast the value of message (user) attribute '{name}' to a number."
        )
    value = Decimal(text.strip())
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    if len(digits) > DIGITS_MAX or (value and not SMALLEST <= abs(value) <= BIGGEST):
        raise Failed(
            VALUE,
            f"The number in message (user) attribute '{name}' has at most"
            f" {DIGITS_MAX} digits, and is between 1e-128 and 1e+126.",
        )


def check_id(parameter: str, text: str) -> str:
    """Raises Failed."""
    if not _ID.fullmatch(text):
        raise invalid(
            text,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation"
            f" characters. 1 to {ID_CHARS_MAX} in length.",
        )
    return text


def trace_in(given: Attributes | None) -> str | None:
    """The trace that a sender gave as a system attribute. Raises Failed."""
    if not given:
        return None
    for name, value in given.items():
        if name != TRACE:
            raise Failed(
                VALUE,
                f"Message system attribute name '{name}' is invalid: only {TRACE} can be sent.",
            )
        text = value.string_value
        if value.data_type != "String" or not text or len(text) > TRACE_CHARS_MAX:
            raise Failed(
                VALUE,
                f"Message system attribute '{TRACE}' must contain a non-empty value"
                " of type 'String'.",
            )
        if not _TEXT.fullmatch(text):
            raise Failed(VALUE, f"Message system attribute '{TRACE}' has invalid characters.")
    return given[TRACE].string_value


def new_message(
    id: str,
    body: bytes,
    native: Native,
    attributes: Attributes,
    group: str | None,
    due_ms: int,
    *,
    session: bool,
) -> NewMessage:
    """`session`: the queue takes its messages by sessions, and the group is one."""
    trace = native.trace or ""
    envelope = Envelope(
        id=id, session_id=group if session else None, partition_key=None if session else group,
        trace=trace if _W3C.fullmatch(trace) else "",
        properties={name: _neutral(value) for name, value in attributes.items()},
    )  # fmt: skip
    return NewMessage(encode_envelope(envelope), body, _encode_native(native), group, due_ms=due_ms)


def kept(attributes: Attributes) -> dict[str, tuple[str, Any]] | None:
    """Attributes as the native form holds them."""
    return {
        name: (
            each.data_type or "",
            each.string_value if each.binary_value is None else each.binary_value,
        )
        for name, each in attributes.items()
    } or None


def _neutral(given: MessageAttributeValue) -> Value:
    """A number as an integer or a float where that is the same number, else as text."""
    if given.binary_value is not None:
        return given.binary_value
    text = given.string_value or ""
    if not (given.data_type or "").startswith("Number"):
        return text
    value = Decimal(text.strip())
    if value == value.to_integral_value() and abs(value) < 1 << 63 and value.adjusted() < 19:
        return int(value)
    found = float(value)
    return found if Decimal(repr(found)) == value else text


def content_id(body: bytes) -> str:
    """The id by which a duplicate is known where the content tells it."""
    return sha256(body).hexdigest()


def group_digest(group: str) -> str:
    """A name of a group that is short enough to stand before an id."""
    return blake2b(group.encode(), digest_size=16).hexdigest()


def sequence_number(sequence: int) -> str:
    return f"{sequence:0{SEQUENCE_DIGITS}}"


# What is received.


class Wanted:
    """The attributes that a receiver asks for."""

    def __init__(self, system: Iterable[str], attributes: Sequence[str]) -> None:
        """Raises Failed."""
        names = {_SYSTEM_FOLDED.get(name.lower(), name) for name in system}
        for name in names:
            if name not in SYSTEM and name not in _ACCEPTED:
                raise Failed(ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        self.system = tuple(SYSTEM) if ALL in names else tuple(names & SYSTEM.keys())
        self._all = any(name in ("*", ".*") or name.lower() == "all" for name in attributes)
        self._names = frozenset(attributes)
        self._prefixes = tuple(name[:-2] for name in attributes if name.endswith(".*"))
        self.nothing = not attributes

    @property
    def all(self) -> bool:
        return self._all

    def fits(self, name: str) -> bool:
        return self._all or name in self._names or name.startswith(self._prefixes)


class Found:
    """A delivery, of which everything is read once, and what is not asked for not at all."""

    def __init__(self, delivery: Delivery, queue: str, arn_of: Callable[[str], str]) -> None:
        self.delivery = delivery
        self.stored: Stored = delivery.message
        self.note: Note | None = delivery.note
        self.native = native_of(self.stored.native)
        self.arn_of = arn_of
        self.fifo = queue.endswith(".fifo")
        self._envelope: Envelope | None = None

    @property
    def envelope(self) -> Envelope:
        if self._envelope is None:
            found = _envelope_in(self.stored.envelope)
            self._envelope = found if self.note is None else self.note.apply_to(found)
        return self._envelope

    @property
    def has_changed(self) -> bool:
        """Whether somebody has changed its properties since it was sent."""
        return self.note is not None and bool(self.note.properties or self.note.removed)

    def attributes(self) -> dict[str, MessageAttributeValue]:
        native = self.native
        if native is None:
            return _foreign(self.envelope.properties)
        given = {
            name: MessageAttributeValue(kind, value)
            if isinstance(value, str)
            else MessageAttributeValue(kind, None, value)
            for name, (kind, value) in (native.attributes or {}).items()
        }
        if not self.has_changed:
            return given
        assert self.note is not None
        given |= _foreign(self.note.properties)
        return {name: value for name, value in given.items() if name not in self.note.removed}


def _envelope_in(data: bytes) -> Envelope:
    try:
        return decode_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Envelope()


def received(found: Found, handle: str, wanted: Wanted) -> Message:
    """A delivery as its receiver is told of it."""
    stored, native = found.stored, found.native
    body = stored.body
    assert isinstance(body, bytes)  # the engine has read it back
    encoding = ""
    if native is not None:
        text, digest = body.decode(), native.body_md5
    else:
        text, encoding = _as_text(body, found.envelope.form)
        digest = body_digest(text.encode())
    told = Message(found.envelope.id or str(stored.sequence), handle, digest.hex(), text)
    for name in wanted.system:
        value = SYSTEM[name](found)
        if value is not None:
            if not told.attributes:
                told.attributes = {}
            told.attributes[name] = value
    if wanted.nothing and not encoding:
        return told
    every = found.attributes()
    if encoding:
        every[ENCODING] = MessageAttributeValue("String", encoding)
    shown = {name: value for name, value in every.items() if wanted.fits(name) or name == ENCODING}
    if shown:
        told.message_attributes = shown
        whole = len(shown) == len(every) and native is not None and not found.has_changed
        known = native.attributes_md5 if whole and native is not None else None
        told.md5_of_message_attributes = (known or attributes_digest(shown)).hex()
    return told


def _as_text(body: bytes, form: str) -> tuple[str, str]:
    """A body as text, and how that is written where the body is none."""
    if not form:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if _TEXT.fullmatch(text):
            return text, ""
    return b64encode(body).decode(), "base64"


def _foreign(properties: Properties) -> dict[str, MessageAttributeValue]:
    """Properties of another dialect's message as attributes; one without a value is left out."""
    return {name: value for name, each in properties.items() if (value := _attribute(each))}


def _attribute(value: Value) -> MessageAttributeValue | None:
    match value:
        case None:
            return None
        case bool():
            return MessageAttributeValue("String.bool", "true" if value else "false")
        case int() | float():
            return MessageAttributeValue("Number", repr(value))
        case str():
            if _TEXT.fullmatch(value):
                return MessageAttributeValue("String", value)
            return MessageAttributeValue("Binary", None, value.encode())
        case bytes():
            return MessageAttributeValue("Binary", None, value)
        case Ext():
            return MessageAttributeValue(*_of_ext(value))


def _of_ext(value: Ext) -> tuple[str, str]:
    data = bytes(value.data)
    number = int.from_bytes(data, "big", signed=True)
    match value.code:
        case code if code == TIMESTAMP:
            try:
                moment = datetime.fromtimestamp(number / 1_000, UTC)
            except (ValueError, OverflowError, OSError):
                return "Number", str(number)
            return "String.datetime", moment.isoformat(timespec="milliseconds")
        case code if code == UUID and len(data) == 16:
            return "String.uuid", str(Uuid(bytes=data))
        case code if code == SPAN:
            return "Number", repr(number / 10_000_000)
    return "Binary", b64encode(data).decode()


# System attributes, each told of a delivery; None: the message has none.


def _sender(found: Found) -> str | None:
    return None if found.native is None else found.native.sender


def _sent(found: Found) -> str | None:
    return str(found.stored.enqueued_ms if found.native is None else found.native.sent_ms)


def _count(found: Found) -> str | None:
    return str(found.delivery.count)


def _first(found: Found) -> str | None:
    return str(found.delivery.first_delivered_ms)


def _trace(found: Found) -> str | None:
    return None if found.native is None else found.native.trace


def _group(found: Found) -> str | None:
    return group_of(found.stored, found.note)


def _duplicate(found: Found) -> str | None:
    if not found.fifo:
        return None
    if _source(found) is not None:  # a dead letter is known by its own id
        return found.envelope.id
    native = found.native
    return found.envelope.id if native is None else native.duplicate_id


def _sequence(found: Found) -> str | None:
    return sequence_number(found.stored.sequence) if found.fifo else None


def _source(found: Found) -> str | None:
    note = found.note
    return None if note is None or note.source is None else found.arn_of(note.source)


SYSTEM: dict[str, Callable[[Found], str | None]] = {
    "SenderId": _sender,
    "SentTimestamp": _sent,
    "ApproximateReceiveCount": _count,
    "ApproximateFirstReceiveTimestamp": _first,
    TRACE: _trace,
    "MessageGroupId": _group,
    "MessageDeduplicationId": _duplicate,
    "SequenceNumber": _sequence,
    "DeadLetterQueueSourceArn": _source,
}
# Names of a queue's attributes, which `AttributeNames` of a receive may have and are told nowhere.
_ACCEPTED = frozenset((
    ALL, "Policy", "VisibilityTimeout", "MaximumMessageSize", "MessageRetentionPeriod",
    "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "CreatedTimestamp",
    "LastModifiedTimestamp", "QueueArn", "ApproximateNumberOfMessagesDelayed", "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds", "RedrivePolicy", "FifoQueue", "ContentBasedDeduplication",
    "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "DeduplicationScope", "FifoThroughputLimit",
    "RedriveAllowPolicy", "SqsManagedSseEnabled",
))  # fmt: skip
_SYSTEM_FOLDED = {name.lower(): name for name in (*SYSTEM, ALL)}
