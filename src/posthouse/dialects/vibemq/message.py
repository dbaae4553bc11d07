"""Published frames as messages of ours, and messages of whatever dialect as frames to be delivered.

The payload is the body, and its type application/json. Headers are properties, as they were given;
two of them are fields as well: `priority` and `correlationId`. Of what others have sent, a body
that is JSON is told as it is, one that is other text as a JSON string, and anything else as a
string in base64, with the header `contentEncoding`. Fields of the envelope are headers where they
say something, unless there is a property of that name.
"""

import re
from base64 import b64encode
from functools import lru_cache

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.checks import check_name
from posthouse.core.errors import InvalidArgument
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    UUID,
    Envelope,
    Message,
    NewMessage,
    Note,
    Value,
    decode_envelope,
    encode_envelope,
)
from posthouse.dialects.vibemq.answers import INVALID_MESSAGE, INVALID_PAYLOAD, INVALID_QUEUE, Wrong
from posthouse.dialects.vibemq.codec import Frame, Type

ID_CHARS_MAX = 256
QUEUE_CHARS_MAX = 256
HEADERS_MAX = 50
HEADER_CHARS_MAX = 256
VALUE_CHARS_MAX = 4_096
JSON = "application/json"
PRIORITIES = {"low": 2, "normal": 4, "high": 6, "critical": 8, "0": 2, "1": 4, "2": 6, "3": 8}
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TEXT_ID_BYTES_MAX = 65_535  # that a frame can say
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_write_json = msgspec.json.Encoder().encode
# Why something is a dead letter, in VibeMQ's words.
REASONS = {
    "MaxDeliveryCountExceeded": "MaxRetriesExceeded",
    "TTLExpiredException": "MessageExpired",
}


@lru_cache(10_000)
def is_name(queue: str) -> bool:
    try:
        check_name("queue", queue)
    except InvalidArgument:
        return False
    return len(queue) <= QUEUE_CHARS_MAX and _NAME.fullmatch(queue) is not None


def check_queue(queue: str) -> None:
    """Raises Wrong."""
    if not is_name(queue):
        raise Wrong(
            INVALID_QUEUE,
            f"A queue's name is 1 to {QUEUE_CHARS_MAX} letters, digits, dots, dashes and"
            " underscores, and not dots alone.",
        )


def check_frame(frame: Frame) -> None:
    """Checks the id and the headers of a request. Raises Wrong."""
    if not frame.id or len(frame.id) > ID_CHARS_MAX:
        raise Wrong(INVALID_MESSAGE, f"An id is needed, of at most {ID_CHARS_MAX} characters.")
    headers = frame.headers
    if headers:
        if len(headers) > HEADERS_MAX:
            raise Wrong(INVALID_MESSAGE, f"There can be {HEADERS_MAX} headers, no more.")
        if max(map(len, headers)) > HEADER_CHARS_MAX or "" in headers:
            raise Wrong(INVALID_MESSAGE, f"A header's name is 1 to {HEADER_CHARS_MAX} characters.")
        if max(map(len, headers.values())) > VALUE_CHARS_MAX:
            raise Wrong(INVALID_MESSAGE, f"A header has {VALUE_CHARS_MAX} characters at most.")


def is_json(data: bytes) -> bool:
    try:
        _check_json(data)
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def published(frame: Frame, most_bytes: int) -> NewMessage:
    """Raises Wrong."""
    payload, headers = frame.payload, frame.headers
    if len(payload) > most_bytes:
        raise Wrong(INVALID_PAYLOAD, f"A payload has {most_bytes} bytes at most.")
    if payload and not is_json(payload):
        raise Wrong(INVALID_PAYLOAD, "The payload is not JSON.")
    if not headers:
        return NewMessage(_bare(frame.id), payload)
    priority, correlation_id = 4, ""
    for name, value in headers.items():
        if len(name) == 8 and name.lower() == "priority":
            priority = PRIORITIES.get(value.lower(), 4)
        elif len(name) == 13 and name.lower() == "correlationid":
            correlation_id = value
    envelope = Envelope(frame.id, JSON, correlation_id=correlation_id, properties=dict(headers))
    return NewMessage(encode_envelope(envelope), payload, priority=priority)


def _bare(id: str) -> bytes:
    return encode_envelope(Envelope(id, JSON))


def delivery(message: Message, note: Note | None, queue: str) -> Frame:
    """A message as a frame, without an id where it has none that can be told."""
    envelope = decode_envelope(message.envelope)
    if note is not None:
        envelope = note.apply_to(envelope)
    body = message.body
    assert isinstance(body, bytes)  # the engine has seen to it
    properties = envelope.properties
    headers = {name: _told(value) for name, value in properties.items() if name}
    if not _is_plain(envelope) or note is not None:
        _add_fields(headers, envelope, note)
    if not body or (envelope.content_type == JSON and not envelope.form and is_json(body)):
        payload = body
    else:
        payload, more = _translated(envelope, body)
        headers |= more
    id = envelope.id
    if len(id) > _TEXT_ID_BYTES_MAX // 4:
        id = ""
    return Frame(Type.DELIVER, id, queue, payload, headers)


def _is_plain(envelope: Envelope) -> bool:
    """It says nothing but what VibeMQ's own messages say."""
    return envelope.content_type == JSON and not (
        envelope.correlation_id or envelope.subject or envelope.reply_to or envelope.to
        or envelope.session_id
    )  # fmt: skip


def _translated(envelope: Envelope, body: bytes) -> tuple[bytes, dict[str, str]]:
    """A body that is not said to be JSON, or is none."""
    kind = envelope.content_type.partition(";")[0].strip().lower()
    if envelope.form:
        return _in_base64(body)
    if (not kind or kind == JSON or kind.endswith("+json")) and is_json(body):
        return body, {}
    return _as_text(body)


def _as_text(body: bytes) -> tuple[bytes, dict[str, str]]:
    try:
        return _write_json(body.decode()), {}
    except UnicodeDecodeError:
        return _in_base64(body)


def _in_base64(body: bytes) -> tuple[bytes, dict[str, str]]:
    return _write_json(b64encode(body).decode()), {"contentEncoding": "base64"}


def _add_fields(headers: dict[str, str], envelope: Envelope, note: Note | None) -> None:
    fields = {
        "correlationId": envelope.correlation_id,
        "contentType": "" if envelope.content_type == JSON else envelope.content_type,
        "subject": envelope.subject,
        "replyTo": envelope.reply_to,
        "to": envelope.to,
        "sessionId": envelope.session_id or "",
    }
    if note is not None and note.reason:
        fields["deadLetterReason"] = REASONS.get(note.reason, note.reason)
        fields["deadLetterDescription"] = note.description or ""
        fields["deadLetterSource"] = note.source or ""
    there = {name.lower() for name in headers}
    headers |= {name: text for name, text in fields.items() if text and name.lower() not in there}


def _told(value: Value) -> str:
    """A typed property as text: numbers and truths as JSON has them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Ext):
        return _told_ext(value)
    return "" if value is None else _write_json(value).decode()


def _told_ext(value: Ext) -> str:
    data = bytes(value.data)
    if value.code == UUID:
        text = data.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    number = int.from_bytes(data, "big", signed=True)
    return {TIMESTAMP: f"{number}", SPAN: f"{number / 1e7:g}"}.get(value.code, data.hex())
