"""Events as bytes: the envelope of JetStream Bridge, or CloudEvents.

What arrives may come from anybody. It is bounded before and after it is read, and whatever is wrong
with it is one error, MalformedEvent, whose text says where.
"""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec

from posthouse.bridge.errors import MalformedEvent, PublishFailed, TooLarge
from posthouse.bridge.event import Event
from posthouse.bridge.transport import Outgoing

Style = Literal["bridge", "cloudevents"]
BODY_BYTES_MAX = 8 << 20  # of an event that is read or written, whatever a transport would take
DEPTH_MAX = 64  # of objects and lists in each other
TEXT_CHARS_MAX = 255  # of an id, a type, a name or a key
HEADERS_MAX = 64
HEADER_CHARS_MAX = 4_096  # of a header's value
UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # when an event occurred whose sender did not say

CONTENT_TYPE, TRACE_PARENT = "content-type", "traceparent"
KEY_HEADER = "x-event-key"  # percent-encoded: headers are ASCII
SEQUENCE_HEADER = "x-event-sequence"  # its number in the outbox, which its body cannot know
_CONTENT_TYPES: dict[Style, str] = {
    "bridge": "application/json", "cloudevents": "application/cloudevents+json",
}  # fmt: skip
_OWN_HEADERS = frozenset((CONTENT_TYPE, TRACE_PARENT, KEY_HEADER, SEQUENCE_HEADER))
_HEADER_SIGNS = frozenset(
    "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()

# Ids.


def new_event_id() -> str:
    """Returns a UUID of version 7 (RFC 9562), whose text sorts by time."""
    now_ms = time.time_ns() // 1_000_000
    chance = bytearray(os.urandom(10))
    chance[0] = chance[0] & 0x0F | 0x70
    chance[2] = chance[2] & 0x3F | 0x80
    text = now_ms.to_bytes(6, "big").hex() + chance.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_trace_id() -> str:
    """Returns 16 hexadecimal digits."""
    return os.urandom(8).hex()


def traceparent_of(trace_id: str) -> str:
    """Returns the header of W3C Trace Context for a trace id of 16 or 32 digits; "" for another."""
    try:
        is_trace = len(trace_id) in (16, 32) and int(trace_id, 16) > 0
    except ValueError:
        is_trace = False
    return f"00-{trace_id.lower():0>32}-{os.urandom(8).hex()}-01" if is_trace else ""


def trace_id_of(traceparent: str) -> str:
    """Returns the last 16 digits of the trace of such a header; "" if it is none."""
    parts = traceparent.split("-")
    if len(parts) < 4 or len(parts[1]) != 32:
        return ""
    try:
        int(parts[1], 16)
    except ValueError:
        return ""
    return parts[1][16:].lower()


# Encoding.


def encode(event: Event, style: Style = "bridge") -> bytes:
    """Returns the envelope of an event. Raises TooLarge, PublishFailed."""
    for what, text in _texts(event):
        if len(text) > TEXT_CHARS_MAX:
            raise _unfit(event, f"{what} must be a text of at most {TEXT_CHARS_MAX} characters")
        if "\0" in text:
            raise _unfit(event, f"{what} must not have a character of code 0")
    if not event.id or not event.type:
        raise _unfit(event, "it must have an id and a type")
    if event.occurred_at.tzinfo is None:
        raise _unfit(event, "occurred_at must say its time zone")
    form = _bridge_form(event) if style == "bridge" else _cloud_form(event)
    try:
        body = _encoder.encode(form)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unfit(event, f"its payload cannot be written as JSON: {error}") from error
    check_size(event.id, len(body), BODY_BYTES_MAX, "an envelope")
    try:
        is_too_deep = _is_too_deep(body)
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        raise _unfit(event, f"its payload is nested more than {DEPTH_MAX - 1} deep")
    return body


def _texts(event: Event) -> list[tuple[str, str]]:
    return [
        ("its id", event.id), ("its type", event.type), ("producer", event.producer),
        ("resource_type", event.resource_type), ("resource_id", event.resource_id),
        ("trace_id", event.trace_id), ("its key", event.key),
    ]  # fmt: skip


def _unfit(event: Event, why: str) -> PublishFailed:
    return PublishFailed(f"The event {event.id} cannot be published: {why}.", transient=False)


def check_size(id: str, size: int, most: int, who: str) -> None:
    """Checks the size of an event, for one whose name `who` is. Raises TooLarge."""
    if size > most:
        raise TooLarge(
            f"The event {id} has {size:,} bytes; {who} takes {most:,}. Send a reference to what is"
            " large, or raise the limit."
        )


def _bridge_form(event: Event) -> dict[str, Any]:
    form: dict[str, Any] = {
        "event_id": event.id, "schema_version": event.schema_version, "event_type": event.type,
        "producer": event.producer, "resource_type": event.resource_type,
        "resource_id": event.resource_id, "occurred_at": _iso(event.occurred_at),
        "trace_id": event.trace_id, "payload": event.payload,
    }  # fmt: skip
    return form | _optional(event, "key", "sequence")


def _cloud_form(event: Event) -> dict[str, Any]:
    form: dict[str, Any] = {
        "specversion": "1.0", "id": event.id, "source": event.producer, "type": event.type,
        "time": _iso(event.occurred_at), "datacontenttype": "application/json",
        "subject": event.resource_id, "resourcetype": event.resource_type,
        "schemaversion": event.schema_version, "traceid": event.trace_id, "data": event.payload,
    }  # fmt: skip
    if not event.resource_id:
        del form["subject"]  # which must not be empty
    return form | _optional(event, "partitionkey", "eventsequence")


def _optional(event: Event, key: str, sequence: str) -> dict[str, Any]:
    form: dict[str, Any] = {key: event.key} if event.key else {}
    return form | {sequence: event.sequence} if event.sequence else form


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def headers_of(event: Event, style: Style = "bridge") -> dict[str, str]:
    """Returns the headers that go with an event. Raises PublishFailed for one that cannot."""
    check_headers(event.id, event.headers)
    headers = {CONTENT_TYPE: _CONTENT_TYPES[style]}
    given = {name.lower() for name in event.headers}
    trace = "" if TRACE_PARENT in given else traceparent_of(event.trace_id)
    if trace:
        headers[TRACE_PARENT] = trace
    if event.key:
        headers[KEY_HEADER] = key_text(event.key)
    if event.sequence:
        headers[SEQUENCE_HEADER] = str(event.sequence)
    return headers | {name: text for name, text in event.headers.items() if name not in headers}


def key_text(key: str) -> str:
    """Returns a key as a header has it."""
    return quote(key, safe="")


def check_headers(id: str, headers: Mapping[str, str]) -> None:
    """Checks headers that a user gives. Raises PublishFailed."""
    if len(headers) > HEADERS_MAX:
        raise PublishFailed(
            f"The event {id} has {len(headers)} headers; {HEADERS_MAX} are the most.",
            transient=False,
        )
    for name, text in headers.items():
        why = ""
        if not name or not _HEADER_SIGNS.issuperset(name) or len(name) > TEXT_CHARS_MAX:
            why = "is no name of a header: use letters, digits, hyphens and underscores"
        elif name.lower().startswith("nats-"):
            why = "is one that NATS itself reads; choose another name"
        elif not (text.isascii() and text.isprintable()):
            why = "must be printable ASCII; encode other text, as with urllib.parse.quote"
        elif text != text.strip() or len(text) > HEADER_CHARS_MAX:
            why = f"must have no blanks at its ends and at most {HEADER_CHARS_MAX} characters"
        if why:
            raise PublishFailed(f"The event {id}: the header {name!r} {why}.", transient=False)


def outgoing(
    event: Event, subject: str, style: Style = "bridge", *, delay: float = 0.0
) -> Outgoing:
    """Returns an event as it is published. Raises TooLarge, PublishFailed."""
    return Outgoing(
        subject, encode(event, style), event.id, headers_of(event, style), event.key, delay
    )


# Decoding.


def decode(body: bytes, headers: Mapping[str, str] | None = None) -> Event:
    """Returns the event of an envelope of either kind. Raises MalformedEvent, and nothing else.

    `headers` are those it came with. An event without an id has "" for it.
    """
    if len(body) > BODY_BYTES_MAX:
        raise MalformedEvent(f"It has {len(body):,} bytes; {BODY_BYTES_MAX:,} are the most.")
    try:
        form = _decoder.decode(body)
    except RecursionError:
        raise MalformedEvent(f"It is nested more than {DEPTH_MAX} deep.") from None
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: it is not UTF-8
        raise MalformedEvent(f"It is no JSON: {error}.") from None
    if not isinstance(form, dict):
        raise MalformedEvent("It is no JSON object.")
    if _is_too_deep(body, form):
        raise MalformedEvent(f"It is nested more than {DEPTH_MAX} deep.")
    given = {name.lower(): text for name, text in (headers or {}).items()}
    event = _read_cloud(form, given) if "specversion" in form else _read_bridge(form, given)
    if not event.type:
        raise MalformedEvent("It has no event_type.")
    return event


def _read_bridge(form: dict[str, Any], headers: dict[str, str]) -> Event:
    type = _text(form, "event_type") or _text(form, "type")
    payload = form.get("payload")
    resource_id = _text(form, "resource_id")
    if not resource_id and isinstance(payload, dict):
        resource_id = resource_id_of(payload)
    return Event(
        id=_text(form, "event_id"), type=type, payload=payload, producer=_text(form, "producer"),
        resource_type=_text(form, "resource_type") or resource_type_of(type),
        resource_id=resource_id,
        occurred_at=_moment(form, "occurred_at", "produced_at"),
        trace_id=_text(form, "trace_id") or trace_id_of(headers.get(TRACE_PARENT, "")),
        schema_version=_version(form.get("schema_version")),
        key=_text(form, "key") or _key(headers),
        sequence=_sequence(form.get("sequence"), headers), headers=_others(headers),
    )  # fmt: skip


def _read_cloud(form: dict[str, Any], headers: dict[str, str]) -> Event:
    if not _text(form, "specversion").startswith("1."):
        raise MalformedEvent("It is of another version of CloudEvents; 1.0 can be read.")
    if "data_base64" in form:
        raise MalformedEvent("Its data is binary; only JSON can be read.")
    type = _text(form, "type")
    trace = _text(form, "traceid") or trace_id_of(
        headers.get(TRACE_PARENT, "") or _text(form, "traceparent")
    )
    return Event(
        id=_text(form, "id"), type=type, payload=form.get("data"), producer=_text(form, "source"),
        resource_type=_text(form, "resourcetype") or resource_type_of(type),
        resource_id=_text(form, "subject"), occurred_at=_moment(form, "time"), trace_id=trace,
        schema_version=_version(form.get("schemaversion")),
        key=_text(form, "partitionkey") or _key(headers),
        sequence=_sequence(form.get("eventsequence"), headers), headers=_others(headers),
    )  # fmt: skip


def resource_type_of(event_type: str) -> str:
    """Returns the part before the first dot, as in `order.created`."""
    return event_type.partition(".")[0]


def resource_id_of(payload: Mapping[str, Any]) -> str:
    """Returns the `id` or `resource_id` of a payload as text; "" if it has none."""
    for name in ("id", "resource_id"):
        value = payload.get(name)
        if isinstance(value, str) or _is_number(value):
            text = str(value)
            if text and len(text) <= TEXT_CHARS_MAX and "\0" not in text:
                return text
    return ""


def _is_number(value: Any) -> bool:
    """Says whether it is a whole number of 64 bits; JSON's may have any number of digits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _text(form: dict[str, Any], name: str) -> str:
    """Returns a field as text: a number as it is written, "" where it is absent or null."""
    value = form.get(name)
    if value is None:
        return ""
    if not (isinstance(value, str | float) or _is_number(value)):
        raise MalformedEvent(f"{name} is no text.")
    text = str(value)
    if len(text) > TEXT_CHARS_MAX:
        raise MalformedEvent(f"{name} has {len(text):,} characters; {TEXT_CHARS_MAX} are the most.")
    if "\0" in text:  # which a database could not keep
        raise MalformedEvent(f"{name} has a character of code 0.")
    return text


def _moment(form: dict[str, Any], *names: str) -> datetime:
    for name in names:
        text = _text(form, name)
        if not text:
            continue
        try:
            moment = datetime.fromisoformat(text)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise MalformedEvent(f"{name} is no time, as in 2026-01-31T12:00:00Z.") from None
    return UNKNOWN_TIME


def _version(value: Any) -> int:
    """Returns 1 for 1, "1", 1.0 and "1.0", the number before the dot for others."""
    if value is None:
        return 1
    if isinstance(value, str | float) or _is_number(value):
        text = str(value).partition(".")[0]
        if text.isascii() and text.isdigit() and len(text) < 8 and int(text):
            return int(text)
    raise MalformedEvent("schema_version is no number from 1 on.")


def _key(headers: dict[str, str]) -> str:
    key = unquote(headers.get(KEY_HEADER, ""))
    return key if len(key) <= TEXT_CHARS_MAX and "\0" not in key else ""


def _sequence(value: Any, headers: dict[str, str]) -> int:
    if value is None:
        text = headers.get(SEQUENCE_HEADER, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    if not _is_number(value) or value < 0:
        raise MalformedEvent("sequence is no number from 0 on.")
    return int(value)


def _others(headers: dict[str, str]) -> dict[str, str]:
    """Returns the headers that a user gave: neither those of events nor of NATS."""
    return {
        name: text
        for name, text in headers.items()
        if name not in _OWN_HEADERS - {TRACE_PARENT} and not name.startswith("nats-")
    }


def _is_too_deep(body: bytes, form: Any = None) -> bool:
    """Says whether JSON is nested too deep; `form` is what it says, if it was read already."""
    if body.count(b"{") + body.count(b"[") <= DEPTH_MAX:
        return False
    level: list[Any] = [_decoder.decode(body) if form is None else form]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
