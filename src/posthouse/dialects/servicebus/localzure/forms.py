"""Requests in JSON, in either style of keys, and messages as they are told."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from posthouse.core.commands import Delivery, Seen
from posthouse.core.message import Envelope, Message, NewMessage, Note, Value, encode_envelope
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.servicebus.guids import guid
from posthouse.dialects.servicebus.localzure.errors import Failed, Unprocessable
from posthouse.dialects.servicebus.rest import body_of, envelope_of
from posthouse.dialects.servicebus.times import moment, moment_ms
from posthouse.uuids import new_uuid

PROPERTIES_MAX = 64  # of one message
PROPERTY_CHARS_MAX, VALUE_BYTES_MAX = 128, 32 << 10
BATCH_MAX = 1_000
FIELDS_MAX, FIELD_CHARS_MAX = 64, 64  # of a form: more than any has
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Form = TypeVar("Form", bound=msgspec.Struct)


class SendForm(msgspec.Struct, forbid_unknown_fields=True):
    body: str
    message_id: str | None = None
    session_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    time_to_live: float | None = None
    scheduled_enqueue_time_utc: str | None = None
    user_properties: dict[str, str | int | float | bool] | None = None


class BatchForm(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[dict[str, Any]]


class ReceiveForm(msgspec.Struct, forbid_unknown_fields=True):
    max_count: int = 1
    receive_mode: Literal["PeekLock", "ReceiveAndDelete"] = "PeekLock"
    session_id: str | None = None
    timeout: float = 0


class SettleForm(msgspec.Struct, forbid_unknown_fields=True):
    lock_token: str
    message_id: str | None = None
    reason: str | None = None
    description: str | None = None


class DeferredForm(msgspec.Struct, forbid_unknown_fields=True):
    sequence_numbers: list[int]
    session_id: str | None = None


class AcceptForm(msgspec.Struct, forbid_unknown_fields=True):
    session_id: str | None = None
    timeout: float = 0


class BeginForm(msgspec.Struct, forbid_unknown_fields=True):
    timeout_seconds: float = 120


def read(kind: type[Form], body: bytes, *, optional: bool = False) -> Form:
    """Raises Unprocessable."""
    if optional and not body.strip():
        body = b"{}"
    try:
        bounded(body)
    except msgspec.DecodeError as error:
        raise Unprocessable("", f"The body cannot be read: {error}") from None
    decoder: msgspec.json.Decoder[Form] = _decoder(kind)
    try:
        return decoder.decode(body)  # as the names are spelled here
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass  # it may be in the other style, or it is said below what is wrong
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unprocessable("", f"The body is not JSON: {error}") from None
    return converted(kind, given)


@cache
def _decoder(kind: type[Form]) -> msgspec.json.Decoder[Form]:
    return msgspec.json.Decoder(kind)


def converted(kind: type[Form], given: object) -> Form:
    """Raises Unprocessable."""
    if not isinstance(given, dict):
        raise Unprocessable("", "The body must be an object.")
    if len(given) > FIELDS_MAX or any(len(name) > FIELD_CHARS_MAX for name in given):
        raise Unprocessable("", "The body has fields that there are not.")
    try:
        return msgspec.convert({_HUMP.sub(r"_\1", name).lower(): v for name, v in given.items()},
                               kind)  # fmt: skip
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise Unprocessable("", str(error)) from None


def new_message(form: SendForm, most_bytes: int, name: str) -> tuple[str, NewMessage]:
    """Its id and itself. Raises Failed or Unprocessable."""
    own, body = form.user_properties or {}, form.body.encode()
    size = len(body)
    if own:
        _check_own(own)
        size += sum(len(name.encode()) + len(str(value).encode()) for name, value in own.items())
    if size > most_bytes:
        raise Failed(
            413, "MessageSizeExceeded", f"The message has {size} bytes; {most_bytes} are allowed.",
            actual_size=size, max_size=most_bytes, entity_name=name,
        )  # fmt: skip
    if form.time_to_live is not None and not 0 < form.time_to_live < 1e10:
        raise Unprocessable("time_to_live", "time_to_live must be a number of seconds above 0")
    due_ms = 0
    if form.scheduled_enqueue_time_utc is not None:
        try:
            due_ms = max(0, moment_ms(form.scheduled_enqueue_time_utc))
        except ValueError:
            raise Unprocessable(
                "scheduled_enqueue_time_utc", "scheduled_enqueue_time_utc must be an ISO 8601 time"
            ) from None
    id = form.message_id or new_uuid()
    envelope = Envelope(
        id, form.content_type or "", form.label or "",
        form.correlation_id or "", form.session_id, None, form.to or "", form.reply_to or "", "",
        "", dict(own),
    )  # fmt: skip
    ttl_ms = None if form.time_to_live is None else max(1, round(form.time_to_live * 1000))
    return id, NewMessage(
        encode_envelope(envelope), body, None, form.session_id, ttl_ms=ttl_ms, due_ms=due_ms
    )


def _check_own(own: Mapping[str, Value]) -> None:
    why = ""
    if len(own) > PROPERTIES_MAX:
        why = f"A message has at most {PROPERTIES_MAX} user properties."
    for name, value in own.items():
        if len(name) > PROPERTY_CHARS_MAX or not _NAME.fullmatch(name):
            why = (f"The name of a user property is of letters, digits and _, begins with no digit,"
                   f" and has at most {PROPERTY_CHARS_MAX} characters.")  # fmt: skip
        elif isinstance(value, str) and len(value.encode()) > VALUE_BYTES_MAX:
            why = f"A user property has at most {VALUE_BYTES_MAX} bytes."
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            why = "A user property that is a whole number has at most 64 bits."
    if why:
        raise Failed(400, "InvalidOperation", why, reason=why)


# Out.


class Told(msgspec.Struct, rename="pascal"):
    """A message, with all that there is to be said of one."""

    message_id: str
    session_id: str | None
    correlation_id: str | None
    content_type: str | None
    label: str | None
    to: str | None
    reply_to: str | None
    time_to_live: float | int | None
    scheduled_enqueue_time_utc: str | None
    user_properties: dict[str, Any]
    body: str
    enqueued_time_utc: str
    sequence_number: int | None
    delivery_count: int = 0
    lock_token: str | None = None
    locked_until_utc: str | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    is_locked: bool = False
    is_dead_lettered: bool = False


def _told(message: Message, note: Note | None, dead: bool) -> Told:
    envelope = envelope_of(message, note)
    life_ms = message.expires_ms - message.enqueued_ms if message.expires_ms else None
    if note is not None and note.ttl_ms is not None:
        life_ms = note.ttl_ms
    told = Told(
        envelope.id, envelope.session_id, envelope.correlation_id or None,
        envelope.content_type or None, envelope.subject or None, envelope.to or None,
        envelope.reply_to or None, None if life_ms is None else _seconds(life_ms), None,
        {name: _plain(value) for name, value in envelope.properties.items()},
        body_of(envelope, message).decode(errors="replace"), moment(message.enqueued_ms),
        message.sequence, message.count, is_dead_lettered=dead,
    )  # fmt: skip
    if note is not None:
        told.dead_letter_reason, told.dead_letter_description = note.reason, note.description
    return told


def _seconds(ms: int) -> float | int:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def delivered(delivery: Delivery, *, dead: bool = False) -> Told:
    told = _told(delivery.message, delivery.note, dead)
    told.delivery_count = delivery.count
    if delivery.token:
        told.lock_token, told.is_locked = guid(delivery.token), True
        told.locked_until_utc = moment(delivery.until_ms)
    return told


def seen(peeked: Seen, *, dead: bool = False) -> Told:
    told = _told(peeked.message, peeked.note, dead)
    if peeked.state == "scheduled":
        told.scheduled_enqueue_time_utc = moment(peeked.message.enqueued_ms)
    return told


def sent(
    form: SendForm, new: NewMessage, now_ms: int, sequence: int | None, id: str, ttl_ms: int | None
) -> Told:
    """A message as whoever sent it is told of it. `ttl_ms`: what its queue allows."""
    lives = [each for each in (new.ttl_ms, ttl_ms) if each is not None]
    return Told(
        id, form.session_id, form.correlation_id, form.content_type, form.label, form.to,
        form.reply_to, _seconds(min(lives)) if lives else None,
        moment(new.due_ms) if new.due_ms > now_ms else None,
        dict(form.user_properties or {}), form.body, moment(now_ms), sequence,
    )  # fmt: skip
