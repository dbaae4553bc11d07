"""REST messaging: send, receive, settle, one request each.

    POST    /ENTITY/messages                  send one, or a JSON array of them
    POST    /QUEUE/messages/head?timeout=S    receive with a lock; DELETE: without
    DELETE  /QUEUE/messages/ID/LOCK           complete; PUT: unlock; POST: renew

QUEUE may be a queue, a subscription, or the dead-letter queue of either; ID is a message's id or
its sequence number. What is said of a message beside its body is in the header BrokerProperties,
and its own properties are headers by themselves.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec.msgpack import Ext

from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.types import Described, Malformed
from posthouse.broker.access import BROKER
from posthouse.broker.waiting import take, until_gone
from posthouse.core.checks import check_properties
from posthouse.core.commands import (
    BATCH_MAX,
    Abandon,
    Complete,
    Delivery,
    Receive,
    Received,
    Release,
    Renew,
    Send,
    Settle,
    Settled,
)
from posthouse.core.errors import InvalidArgument, MessageTooLarge
from posthouse.core.filters.texts import as_text
from posthouse.core.message import (
    TIMESTAMP,
    Envelope,
    Message,
    NewMessage,
    Note,
    Properties,
    Value,
    decode_envelope,
    encode_envelope,
    message_id,
    timestamp,
)
from posthouse.dialects.http import Answer, Header, HttpError, Request
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.servicebus.address import at, queue_of, told_name
from posthouse.dialects.servicebus.guids import guid, number_of
from posthouse.dialects.servicebus.message import DATA, ID_CHARS_MAX, SECTIONS_FORM, VALUE
from posthouse.dialects.servicebus.times import moment_ms
from posthouse.dialects.servicebus.web import Call, Route, by_method, names_in, wait_ms_of
from posthouse.uuids import new_uuid

WAIT_SECONDS = 60  # that a receive waits, where it is not told otherwise, and at most
# What clients take of an answer's headers: Node 16 KiB in all, aiohttp 8 KiB of one, Python's
# http.client 100 of them. Some are left for those that every answer has.
HEADERS_MAX = 90
_OTHER_HEADERS_BYTES = 1 << 10
BATCH_TYPE = b"application/vnd.microsoft.servicebus.json"
_FOREVER_SECONDS = 922337203685.47754  # .NET's longest
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECONDS = 253_402_300_799  # the end of the year 9999

# Headers that are not a message's own properties.
_STANDARD = frozenset((
    b"accept", b"accept-charset", b"accept-encoding", b"accept-language", b"authorization",
    b"brokerproperties", b"cache-control", b"client-request-id", b"connection", b"content-encoding",
    b"content-length", b"content-type", b"cookie", b"date", b"expect", b"forwarded", b"from",
    b"host", b"if-match", b"if-modified-since", b"if-none-match", b"keep-alive", b"max-forwards",
    b"origin", b"pragma", b"proxy-authorization", b"referer", b"return-client-request-id", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"user-agent", b"via",
    b"servicebussupplementaryauthorization", b"servicebusdlqsupplementaryauthorization",
    b"x-correlation-id", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
    b"x-ms-client-request-id", b"x-ms-date", b"x-ms-retrypolicy", b"x-ms-version",
))  # fmt: skip
# Nor may a property come to be one of these.
_OF_ANSWERS = frozenset((
    b"age", b"allow", b"alt-svc", b"clear-site-data", b"content-disposition", b"content-language",
    b"content-location", b"content-range", b"content-security-policy", b"etag", b"expires",
    b"last-modified", b"link", b"location", b"proxy-authenticate", b"proxy-connection", b"refresh",
    b"retry-after", b"server", b"set-cookie", b"strict-transport-security", b"vary", b"warning",
    b"www-authenticate", b"x-content-type-options", b"x-frame-options",
))  # fmt: skip
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NUMBER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FRACTION = re.compile(r"[+-]?(\d{1,40}\.\d{0,40}|\.?\d{1,40})([eE][+-]?\d{1,3})?", re.ASCII)


def find(call: Call) -> Route | None:
    """Returns the route of a path, if it is for messages. Raises HttpError."""
    kind = _kind_of([part.casefold() for part in call.parts])
    if kind is None or call.request.method == "GET":  # it may be an entity that is called so
        return None
    return by_method(ROUTES[kind], call.request.method)


def _kind_of(words: list[str]) -> str | None:
    match words:
        case [_, *_, "messages"]:
            return "messages"
        case [_, *_, "messages", "head"]:
            return "head"
        case [_, *_, "messages", _, _]:
            return "lock"
        case _:
            return None


def _queue(call: Call, names: Sequence[str]) -> str:
    """The core's name for what is at a path: the one that the token was looked at for.

    Raises HttpError.
    """
    try:
        address = at("/".join(names))
    except ValueError as error:
        raise HttpError(400, f"SubCode=40000. The path cannot be read: {error}.") from None
    if address.kind != "entity":
        raise HttpError(404, "SubCode=40400. Messages are in queues, topics and subscriptions.")
    return queue_of(call.exact(address.entity), address)


# Sending.

Text: TypeAlias = str | int | None
Id: TypeAlias = Annotated[str, msgspec.Meta(max_length=ID_CHARS_MAX)] | int | None


class Said(msgspec.Struct, rename="pascal"):
    """BrokerProperties of what is sent."""

    message_id: Id = None
    session_id: Id = None
    partition_key: Id = None
    correlation_id: Id = None
    reply_to_session_id: Id = None
    label: Text = None
    subject: Text = None
    to: Text = None
    reply_to: Text = None
    content_type: Text = None
    time_to_live: Any = None
    time_to_live_time_span: Any = None
    scheduled_enqueue_time_utc: Any = None


class OfBatch(msgspec.Struct, rename="pascal"):
    """One message of several."""

    body: str = ""
    broker_properties: Said | msgspec.UnsetType = msgspec.UNSET
    user_properties: dict[str, str | int | float | bool | None] = {}  # a part of Properties
    is_body_base64: Any = False
    content_type: Text = None


_decode_said = msgspec.json.Decoder(Said).decode
_decode_batch = msgspec.json.Decoder(list[OfBatch]).decode


async def _send(call: Call) -> Answer:
    queue, request = _queue(call, call.path[:-1]), call.request
    body = await request.body()
    kind = request.headers.get(b"content-type", b"")
    if kind.partition(b";")[0].strip().lower() == BATCH_TYPE:
        messages = _batch(body)
    else:
        said = _broker_properties(request.headers.get(b"brokerproperties", b"{}"))
        content_type = kind.decode("latin-1")[:256]
        messages = [new_message(body, said, properties_in(_own(request)), content_type)]
    properties = call.engine.view.properties(call.namespace, queue)
    most = None if properties is None else properties.max_message_bytes
    most = call.credentials.settings.message_bytes if most is None else most
    size = sum(len(each.body) + len(each.envelope) for each in messages)  # of the batch
    if size > most:
        raise MessageTooLarge(queue, size, most)
    call.charge(len(messages))
    await call.make_namespace("send", queue)
    await call.ask(Send(queue, messages))
    return Answer(b"", 201)


def _own(request: Request) -> Iterable[tuple[str, str]]:
    """The headers that are properties, as they were spelled."""
    if request.headers.keys() <= _STANDARD:
        return
    for name, value in request.spelled:
        if name.lower() not in _STANDARD and not name.lower().startswith((b"sec-", b":")):
            yield name.decode("latin-1"), value.decode("utf-8", "replace")


def properties_in(headers: Iterable[tuple[str, str]]) -> Properties:
    """Raises InvalidArgument."""
    found: Properties = {name: _value_in(text.strip()) for name, text in headers}
    check_properties(found)
    return found


def _value_in(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 64:
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            said = json.loads(text)
        except ValueError:
            said = text[1:-1]
        date_ms = _date_ms(said)
        return said if date_ms is None else timestamp(date_ms)
    return text


_DATE = re.compile(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT", re.ASCII)


def _date_ms(text: str) -> int | None:
    """Returns the time of a date as HTTP writes it; None for anything else."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return round((parsedate_to_datetime(text) - _EPOCH).total_seconds() * 1000)
    except ValueError:
        return None


def _batch(body: bytes) -> list[NewMessage]:
    try:
        given = _decode_batch(bounded(body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise HttpError(400, "SubCode=40000. The messages must be a JSON array of objects like"
                    ' {"Body": "...", "BrokerProperties": {...}, "UserProperties": {...}}:'
                    f" {error}.") from None  # fmt: skip
    if not 0 < len(given) <= BATCH_MAX:
        raise HttpError(400, f"SubCode=40000. A batch has from 1 to {BATCH_MAX} messages.")
    return [_of_batch(each) for each in given]


def _of_batch(given: OfBatch) -> NewMessage:
    if given.is_body_base64 is True:
        try:
            body = b64decode(given.body, validate=True)
        except (Base64Error, ValueError):
            raise HttpError(400, "SubCode=40000. A body is not base64.") from None
    else:
        body = given.body.encode()
    own: Properties = {**given.user_properties}
    if own:
        check_properties(own)
    said, content_type = given.broker_properties, _text(given.content_type)[:256]
    if said is msgspec.UNSET:
        envelope = Envelope(_new_id(), content_type, properties=own)
        return NewMessage(encode_envelope(envelope), body)
    return new_message(body, said, own, _text(said.content_type)[:256] or content_type)


def _broker_properties(given: bytes) -> Said:
    try:
        return _decode_said(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HttpError(400, f"SubCode=40000. BrokerProperties cannot be read: {error}.") from None


def new_message(body: bytes, said: Said, own: Properties, content_type: str) -> NewMessage:
    """Raises InvalidArgument."""
    session, partition = _text(said.session_id) or None, _text(said.partition_key) or None
    if session is not None and partition is not None and session != partition:
        raise InvalidArgument("PartitionKey", "must be the session id where a message has both")
    envelope = Envelope(
        _text(said.message_id) or _new_id(), content_type,
        _text(said.label) or _text(said.subject), _text(said.correlation_id), session, partition,
        _text(said.to), _text(said.reply_to), _text(said.reply_to_session_id), "", own,
    )  # fmt: skip
    return NewMessage(
        encode_envelope(envelope), body, None, session or partition, ttl_ms=_life_ms(said),
        due_ms=_due_ms(said.scheduled_enqueue_time_utc),
    )  # fmt: skip


def _new_id() -> str:
    return new_uuid().replace("-", "")


def _text(value: Text) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _life_ms(said: Said) -> int | None:
    seconds, span = said.time_to_live, said.time_to_live_time_span
    if seconds is None and isinstance(span, str):
        found = re.fullmatch(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,7})?)", span)
        if found is None:
            raise InvalidArgument("TimeToLiveTimeSpan", "must be like hh:mm:ss")
        days, hours, minutes, rest = (float(each or 0) for each in found.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not seconds > 0:
        raise InvalidArgument("TimeToLive", "must be a number of seconds above 0")
    if seconds >= _FOREVER_SECONDS / 10:
        return None
    return max(1, round(float(seconds) * 1000))


def _due_ms(said: Any) -> int:
    if said is None:
        return 0
    try:
        if not isinstance(said, str):
            raise TypeError  # noqa: TRY301 (told below like the others)
        found = _date_ms(said)
        found = moment_ms(said) if found is None else found
    except (TypeError, ValueError):
        raise InvalidArgument(
            "ScheduledEnqueueTimeUtc", "must be a moment like Sun, 06 Nov 2026 08:49:37 GMT"
        ) from None
    return max(0, found)


# Receiving.


async def _peek_lock(call: Call) -> Answer:
    queue = _queue(call, call.path[:-2])
    delivery = await _receive_one(call, queue)
    if delivery is None:
        return Answer(b"", 204)
    path = b"/".join([part for part in call.request.parts if part][:-1]).decode("latin-1")
    place = f"{call.url}/{path}/{delivery.message.sequence}/{guid(delivery.token)}"
    try:
        answer = told(delivery, 201, (b"location", place.encode("latin-1")))
        check_headers(answer, delivery, call.credentials.settings.header_bytes)
    except HttpError:
        back = Release(queue, [delivery.token])
        call.engine.submit(BROKER, call.namespace, back, lambda _: None)
        raise
    return answer


async def _take(call: Call) -> Answer:
    """The message is removed when it is certain that it can be told."""

    def compose(delivery: Delivery) -> Answer:
        answer = told(delivery)
        check_headers(answer, delivery, call.credentials.settings.header_bytes)
        return answer

    queue, wait_ms = _queue(call, call.path[:-2]), _wait_ms(call)
    answer = await take(
        call.engine, call.principal, call.namespace, _one_from(call, queue, wait_ms), wait_ms,
        call.request.gone, compose,
    )  # fmt: skip
    return answer or Answer(b"", 204)


def _wait_ms(call: Call) -> int:
    said = call.request.query.get("timeout", "")
    if said and (not said.isascii() or not said.isdigit() or len(said) > 6):
        raise HttpError(400, "SubCode=40000. timeout must be a whole number of seconds.")
    wanted_ms = 1_000 * min(WAIT_SECONDS, int(said) if said else WAIT_SECONDS)
    return wait_ms_of(call.request, wanted_ms)


def _one_from(call: Call, queue: str, wait_ms: int) -> Receive:
    engine = call.engine
    deadline_ms = engine.clock_ms(call.namespace) + wait_ms if wait_ms else 0
    return Receive(queue, engine.new_receiver(), 1, deadline_ms)


async def _receive_one(call: Call, queue: str) -> Delivery | None:
    """Raises Refused."""
    engine, wait_ms = call.engine, _wait_ms(call)
    command = _one_from(call, queue, wait_ms)
    if not wait_ms:
        answer = await call.ask(command)
    else:
        answer = await until_gone(
            engine, call.principal, call.namespace, command, wait_ms, call.request.gone
        )
    assert isinstance(answer, Received)
    return answer.deliveries[0] if answer.deliveries else None


def told(delivery: Delivery, status: int = 200, *more: Header) -> Answer:
    """A message as an answer."""
    message, note = delivery.message, delivery.note
    envelope = envelope_of(message, note)
    headers: list[Header] = []
    if envelope.content_type and envelope.content_type.isascii():
        headers.append((b"content-type", _line(envelope.content_type)))
    said = broker_properties(envelope, message, note, delivery)
    headers.append((b"brokerproperties", as_header(said)))
    own = dict(envelope.properties)
    if note is not None and note.reason is not None:
        own["DeadLetterReason"] = note.reason
    if note is not None and note.description is not None:
        own["DeadLetterErrorDescription"] = note.description
    for name, value in own.items():
        if name:
            headers.append((_header(name), _value_out(value)))
    return Answer(body_of(envelope, message), status, (*headers, *more))


def check_headers(answer: Answer, delivery: Delivery, most: int) -> None:
    """Raises HttpError where clients could not read them."""
    most -= _OTHER_HEADERS_BYTES
    sizes = [len(name) + len(value) + 4 for name, value in answer.headers]
    if len(sizes) <= HEADERS_MAX and sum(sizes) <= most and max(sizes, default=0) <= most // 2:
        return
    raise HttpError(
        413, f"SubCode=41300. Message {delivery.message.sequence} cannot be told in the headers of"
        f" an answer: they would be {len(sizes)} with {sum(sizes)} bytes, the longest with"
        f" {max(sizes)}; at most {HEADERS_MAX} with {most} bytes can be, {most // 2} each. It stays"
        " in the queue. Receive it over AMQP or /api/v1, or raise servicebus_header_size.",
    )  # fmt: skip


def as_header(said: dict[str, Any]) -> bytes:
    """A header is ASCII."""
    written = msgspec.json.encode(said)
    return written if written.isascii() else json.dumps(said).encode()


def _header(name: str) -> bytes:
    """A name that no header of the answer has: one of those would change what the answer is."""
    if not _TOKEN.fullmatch(name):
        return quote(name).encode()
    plain = name.lower().encode()
    if plain in _STANDARD or plain in _OF_ANSWERS or plain.startswith(b"access-control-"):
        return b"%%%02X%s" % (ord(name[0]), name[1:].encode())
    return name.encode()


def _line(text: str) -> bytes:
    """Nothing in it can end a header."""
    return "".join(c for c in text if c.isprintable()).encode()


def envelope_of(message: Message, note: Note | None) -> Envelope:
    envelope = decode_envelope(message.envelope) if message.envelope else Envelope()
    return envelope if note is None else note.apply_to(envelope)


def body_of(envelope: Envelope, message: Message) -> bytes:
    """Returns AMQP values and sequences as JSON; any other body as it was sent."""
    body = message.body
    assert isinstance(body, bytes)
    if envelope.form != SECTIONS_FORM:
        return body
    found: list[Any] = []
    try:
        for code, _, at, end in sections(body):
            value = Reader(body, at, end).value()
            if code == DATA:
                found.append(bytes(value))
            elif code == VALUE:
                return value.encode() if isinstance(value, str) else _json(value)
            else:
                found.append(value)
    except Malformed:
        return body
    if found and all(isinstance(each, bytes) for each in found):
        return b"".join(found)
    return _json(found[0] if len(found) == 1 else found)


def _json(value: Any) -> bytes:
    return json.dumps(_sayable(value)).encode()


def _sayable(value: Any) -> Any:
    """In JSON, of which a key is a text."""
    match value:
        case Described(value=inner):
            return _sayable(inner)
        case dict():
            return {_as_text(_sayable(key)): _sayable(each) for key, each in value.items()}
        case list() | tuple():
            return [_sayable(each) for each in value]
        case bytes():
            return value.decode("latin-1")
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def broker_properties(
    envelope: Envelope, message: Message, note: Note | None, delivery: Delivery | None = None
) -> dict[str, Any]:
    life_ms = message.expires_ms - message.enqueued_ms if message.expires_ms else None
    source = None if note is None else note.source
    first = message.sequence if note is None or note.source is None else note.source_sequence
    said: dict[str, Any] = {
        "CorrelationId": envelope.correlation_id, "Label": envelope.subject,
        "MessageId": envelope.id, "PartitionKey": envelope.partition_key,
        "ReplyTo": envelope.reply_to, "ReplyToSessionId": envelope.reply_to_session_id,
        "SessionId": envelope.session_id, "To": envelope.to,
        "DeadLetterSource": None if source is None else told_name(source),
    }  # fmt: skip
    said = {name: value for name, value in said.items() if value}
    said |= {
        "EnqueuedSequenceNumber": first, "EnqueuedTimeUtc": date(message.enqueued_ms),
        "SequenceNumber": message.sequence, "State": "Active",
        "TimeToLive": _FOREVER_SECONDS if life_ms is None else life_ms / 1000,
    }  # fmt: skip
    if delivery is not None:
        said["DeliveryCount"] = delivery.count
        if delivery.token:
            said["LockToken"] = guid(delivery.token)
            said["LockedUntilUtc"] = date(delivery.until_ms)
    return said


def date(unix_ms: int) -> str:
    """Writes a time as HTTP does (RFC 9110, 5.6.7)."""
    return _date(unix_ms // 1000)


@lru_cache(1_000)
def _date(seconds: int) -> str:
    when = _EPOCH + timedelta(seconds=min(seconds, _LAST_SECONDS))
    return format_datetime(when, usegmt=True)


def _value_out(value: Value) -> bytes:
    match value:
        case bool():
            return b"true" if value else b"false"
        case int() | float():
            return repr(value).encode()
        case None:
            return b'""'
        case bytes():
            said = value.decode("latin-1")
        case Ext(code=code, data=data):
            if code == TIMESTAMP:
                said = date(max(0, int.from_bytes(bytes(data), "big", signed=True)))
            else:
                said = as_text(value) or ""
        case _:
            said = str(value)
    return json.dumps(said).encode()


# Settling.


def lock_in(call: Call, queue: str, id: str, lock: str) -> int:
    """The token of a lock on the message of that id or sequence number. Raises HttpError."""
    call.check("listen", queue)
    token = number_of(lock)
    held = call.engine.view.messages.lock(call.namespace, token)
    if held is None or held.queue != queue:
        raise HttpError(
            404, "SubCode=40400. The lock has expired, was settled already, or never was."
        )
    if id not in (str(held.message.sequence), message_id(held.message.envelope)):
        raise HttpError(404, "SubCode=40400. The lock is on another message.")
    return token


async def _settle(call: Call, make: type[Settle]) -> Answer:
    *entity, _, id, lock = call.parts
    queue = _queue(call, names_in(entity))
    answer = await call.ask(make(queue, [lock_in(call, queue, id, lock)]))
    assert isinstance(answer, Settled)
    return Answer()


async def _complete(call: Call) -> Answer:
    return await _settle(call, Complete)


async def _unlock(call: Call) -> Answer:
    return await _settle(call, Abandon)


async def _renew(call: Call) -> Answer:
    return await _settle(call, Renew)


ROUTES: dict[str, dict[str, Route]] = {
    "messages": {"POST": _send},
    "head": {"POST": _peek_lock, "DELETE": _take},
    "lock": {"DELETE": _complete, "PUT": _unlock, "POST": _renew},
}
