"""Messages as AMQP has them (3.2), and back.

Messages that come one behind another differ in little: once one was read section by section, those
behind it are compared with it, and only what differs is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import astuple

from posthouse.amqp.decode import Reader, read_fields, sections
from posthouse.amqp.encode import described, encode, encode_list, encode_map
from posthouse.amqp.runs import Alike
from posthouse.amqp.types import Malformed, Symbol, Timestamp, UByte, UInt, Value
from posthouse.client.attributes import AttributeValue, check_attributes
from posthouse.client.messages import PRIORITY, Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, SessionId
from posthouse.client.provider import ProviderType

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
PARTITION_KEY = "x-opt-partition-key"
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
_NULL = b"\x40"
_TYPE = ProviderType.POSTHOUSE
_LONG = Struct(">BI").pack
# What stands before an id of some length, where properties have nothing else (3.2.4).
_ID_HEADS = [b"\x00\x53\x73\xc0%c\x01\xa1%c" % (size + 3, size) for size in range(250)]


# Out.


def write(message: Message, due_ms: int = 0) -> bytes:
    """One that has an id. `due_ms` schedules it, as its own delay does, by this machine's clock.

    Raises Unsupported, ValidationError.
    """
    given, body = message.message_id, message.body
    assert given is not None
    id = given.encode()
    if (
        len(id) < 250
        and not due_ms
        and not message.attributes
        and message.session_id is None
        and message.correlation_id is None
        and message.time_to_live is None
        and message.content_type is None
        and message.subject is None
        and message.to is None
        and message.reply_to is None
        and message.priority is None
        and message.partition_key is None
        and message.delay is None
    ):
        return b"".join((_ID_HEADS[len(id)], id, _data_head(len(body)), body))
    parts = [*_header(message), *_annotations(message, due_ms), *_properties(message)]
    if message.attributes:
        check_attributes(message.attributes, _TYPE)
        values = {str(name): _value(value) for name, value in message.attributes.items()}
        parts.append(described(APPLICATION, encode(values)))
    parts += (_data_head(len(body)), body)
    return b"".join(parts)


def _header(message: Message) -> Iterator[bytes]:
    life, priority = message.time_to_live, message.priority
    if life is not None or priority is not None:
        fields = [_NULL, _NULL if priority is None else encode(UByte(priority))]
        if life is not None:
            ttl_ms = min(0xFFFFFFFF, max(1, round(life.total_seconds() * 1_000)))
            fields.append(encode(UInt(ttl_ms)))
        yield described(HEADER, encode_list(fields))


def _annotations(message: Message, due_ms: int) -> Iterator[bytes]:
    if message.delay is not None:
        due_ms = _ms(datetime.now(UTC) + message.delay)
    pairs: list[bytes] = []
    if due_ms:
        pairs += encode(Symbol("x-opt-scheduled-enqueue-time")), encode(Timestamp(due_ms))
    if message.partition_key is not None:
        pairs += encode(Symbol(PARTITION_KEY)), encode(str(message.partition_key))
    if pairs:
        yield described(ANNOTATIONS, encode_map(len(pairs), b"".join(pairs)))


def _properties(message: Message) -> Iterator[bytes]:
    texts = (
        message.message_id, None, message.to, message.subject, message.reply_to,
        message.correlation_id,
    )  # fmt: skip
    fields = [_NULL if text is None else encode(str(text)) for text in texts]
    kind, session = message.content_type, message.session_id
    fields.append(_NULL if kind is None else encode(Symbol(kind)))
    if session is not None:
        fields += [_NULL, _NULL, _NULL, encode(str(session))]
    yield described(PROPERTIES, encode_list(fields))


def _value(value: AttributeValue) -> Value:
    """An attribute as AMQP has it: of Python's own types, but for times."""
    if isinstance(value, datetime):
        return Timestamp(_ms(value))
    if isinstance(value, bool | bytes | UUID):
        return value
    if isinstance(value, str):  # a subclass is none of AMQP's types
        return str(value)
    return int(value) if isinstance(value, int) else float(value)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


@lru_cache(1_000)  # most are of few sizes
def _data_head(size: int) -> bytes:
    return b"\x00\x53\x75\xa0%c" % size if size < 256 else b"\x00\x53\x75" + _LONG(0xB0, size)


# In.


class LinkReceipt(ReceiptHandle, frozen=True, gc=False):
    """The receipt of a delivery on a link, which is settled there while the link exists."""

    link: int = 0  # its number in this process
    delivery: int = -1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the link's receipt as a plain one: another process does not have the link."""
        return ReceiptHandle, (self.handle, self.expires_at, self.provider)


class Place(NamedTuple):
    """The part that the receipts of one link have in common."""

    suffix: str  # of a receipt's handle
    is_dead: bool


class _Form(NamedTuple):
    """The encoded form of the last message, if it is of the common kind."""

    head: bytes  # up to the lock token, or to the first of the three numbers where there is none
    token: int  # how many bytes it has
    middle: bytes  # from behind it to the first of the three numbers
    before: bytes  # from behind them to the id
    between: bytes  # from behind the id to the body's size
    id_begin: int
    id_end: int
    body_at: int  # where its size stands
    wide: bool  # it takes four bytes
    like: ReceivedMessage  # what is not different


def _key(name: str, code: int) -> bytes:
    return encode(Symbol(name)) + bytes((code,))


_TOKEN = _key("x-opt-lock-token", 0x98)
_TOKEN_BYTES = 16
_ENQUEUED = _key("x-opt-enqueued-time", 0x83)
_SEQUENCE_KEY = _key("x-opt-sequence-number", 0x81)
_UNTIL = _key("x-opt-locked-until", 0x83)
_NUMBERS = Struct(f">q{len(_SEQUENCE_KEY)}sq{len(_UNTIL)}sq")
_numbers = _NUMBERS.unpack_from
_u32 = Struct(">I").unpack_from


@contextmanager
def _of_other_kinds() -> Iterator[None]:
    """Turns errors over values of unexpected types into Malformed. Raises Malformed."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as odd:
        raise Malformed(f"a message that cannot be: {odd}") from odd


class Messages:
    """Reads the messages of one link."""

    def __init__(self, place: Place, link: int) -> None:
        self._place = place
        self._link = link
        self._form: _Form | None = None

    @_of_other_kinds()
    def read_all(
        self, payloads: Sequence[bytes], tags: Sequence[bytes], ids: Sequence[int]
    ) -> list[ReceivedMessage]:
        """Raises Malformed."""
        now = datetime.now(UTC)
        if isinstance(payloads, Alike) and self._form is not None:
            found = self._read_columns(self._form, payloads, tags, ids, now)
            if found is not None:
                return found
        return [self._read(*each, now) for each in zip(payloads, tags, ids, strict=True)]

    def _read_columns(
        self, form: _Form, payloads: Alike, tags: Sequence[bytes], deliveries: Sequence[int],
        now: datetime,
    ) -> list[ReceivedMessage] | None:  # fmt: skip
        """All at once, where all are of the form."""
        head, token, middle, before, between, begin, end, body_at, wide, like = form
        at = body_at + (4 if wide else 1)
        size = payloads.size - at
        if size < 0 or (size > 255 and not wide):
            return None
        (heads, _, middles, enqueued, keys, sequences, until_keys, until, befores, ids, betweens,
         sizes, bodies) = payloads.columns(
            f"{len(head)}s{token}s{len(middle)}sq{len(_SEQUENCE_KEY)}sq{len(_UNTIL)}sq"
            f"{len(before)}s{end - begin}s{len(between)}s{at - body_at}s{size}s"
        )  # fmt: skip
        count = len(payloads)
        if (
            heads.count(head) < count
            or middles.count(middle) < count
            or keys.count(_SEQUENCE_KEY) < count
            or until_keys.count(_UNTIL) < count
            or befores.count(before) < count
            or betweens.count(between) < count
            or sizes.count(size.to_bytes(at - body_at, "big")) < count
        ):
            return None
        moments = {ms: datetime.fromtimestamp(ms / 1_000, UTC) for ms in {*enqueued, *until}}
        (_, _, _, times, _, attributes, session, correlation, kind, first, ttl, _, _, reason,
         description, *rest) = astuple(like)  # fmt: skip
        first, new_id, suffix, link = first and now, str.__new__, self._place.suffix, self._link
        return [
            ReceivedMessage(
                new_id(MessageId, id.decode()), body,
                LinkReceipt(tag.hex() + suffix, moments[ends], _TYPE, utc_now, link, delivery),
                times, now, {**attributes}, session, correlation, kind, first, ttl, sequence,
                moments[came], reason, description, *rest,
            )
            for id, body, tag, delivery, ends, came, sequence in zip(
                ids, bodies, tags, deliveries, until, enqueued, sequences, strict=True
            )
        ]  # fmt: skip

    def _read(self, payload: bytes, tag: bytes, delivery: int, now: datetime) -> ReceivedMessage:
        found = self._read_alike(payload, tag, delivery, now)
        if found is None:
            found = read(payload, tag, now, self._place, self._link, delivery)
            self._form = _form_of(payload, found)
        return found

    def _read_alike(
        self, payload: bytes, tag: bytes, delivery: int, now: datetime
    ) -> ReceivedMessage | None:
        form = self._form
        if form is None or not payload.startswith(form.head):
            return None
        head, token, middle, before, between, begin, end, body_at, wide, like = form
        numbers = len(head) + token + len(middle)
        if len(payload) < numbers + _NUMBERS.size:
            return None
        enqueued, key, sequence, until_key, until = _numbers(payload, numbers)
        size = len(payload) - body_at
        if (
            key != _SEQUENCE_KEY
            or until_key != _UNTIL
            or not payload.startswith(middle, len(head) + token)
            or not payload.startswith(before, begin - len(before))
            or not payload.startswith(between, end)
            or size < (4 if wide else 1)
            or (size - 4 != _u32(payload, body_at)[0] if wide else size - 1 != payload[body_at])
        ):
            return None
        expires = datetime.fromtimestamp(until / 1_000, UTC)
        return ReceivedMessage(
            str.__new__(MessageId, payload[begin:end].decode()),
            payload[body_at + (4 if wide else 1) :],
            LinkReceipt(
                tag.hex() + self._place.suffix, expires, _TYPE, utc_now, self._link, delivery
            ),
            like.delivery_count, now, {**like.attributes}, like.session_id, like.correlation_id,
            like.content_type, None if like.first_delivered_at is None else now, like.time_to_live,
            sequence, datetime.fromtimestamp(enqueued / 1_000, UTC), None, None, like.subject,
            like.to, like.reply_to, like.priority, like.partition_key,
        )  # fmt: skip


@_of_other_kinds()
def read(
    payload: bytes, tag: bytes, now: datetime, place: Place, link: int = 0, delivery: int = -1
) -> ReceivedMessage:
    """A delivery, or, without a tag, one that was looked at. Raises Malformed."""
    count, ttl_ms, priority, partition_key = 0, None, None, None
    enqueued = until = sequence = 0
    fields: list[Value] = []
    user: dict[str, AttributeValue] = {}
    bodies: list[bytes] = []
    for code, _, at, end in sections(payload):
        if code == HEADER:
            header, _ = read_fields(payload, at, end)
            header += [None] * (5 - len(header))
            priority, ttl_ms, count = header[1], header[2], int(header[4] or 0)
        elif code == ANNOTATIONS:
            marks = Reader(payload, at, end).value() or {}
            enqueued = int(marks.get("x-opt-enqueued-time") or 0)
            sequence = int(marks.get("x-opt-sequence-number") or 0)
            until = int(marks.get("x-opt-locked-until") or 0)
            partition_key = marks.get(PARTITION_KEY)
        elif code == PROPERTIES:
            fields, _ = read_fields(payload, at, end)
        elif code == APPLICATION:
            given = Reader(payload, at, end).value() or {}
            user = {str(name): _attribute(value) for name, value in given.items()}
        elif code == DATA:
            bodies.append(Reader(payload, at, end).value())
        elif code in (VALUE, SEQUENCE):
            bodies.append(_body(payload, at, end))
    fields += [None] * (13 - len(fields))
    session, correlation, kind = fields[10], fields[5], fields[6]
    reason, description = user.pop(REASON, None), user.pop(DESCRIPTION, None)
    expires = datetime.fromtimestamp(until / 1_000, UTC) if until else now
    receipt = ReceiptHandle(tag.hex() + place.suffix if tag else "", expires, _TYPE)
    if link:
        receipt = LinkReceipt(receipt.handle, expires, _TYPE, utc_now, link, delivery)
    return ReceivedMessage(
        str.__new__(MessageId, _text(fields[0])), b"".join(bodies), receipt,
        count + 1 if tag else count, now, user,
        None if session is None else str.__new__(SessionId, str(session)),
        None if correlation is None else _text(correlation), _text_or_none(kind),
        now if tag and not count else None,
        None if not ttl_ms else timedelta(milliseconds=int(ttl_ms)), sequence,
        datetime.fromtimestamp(enqueued / 1_000, UTC) if enqueued else None,
        None if reason is None else str(reason), None if description is None else str(description),
        _text_or_none(fields[3]), _text_or_none(fields[2]), _text_or_none(fields[4]),
        PRIORITY if priority is None else int(priority), _text_or_none(partition_key),
    )  # fmt: skip


_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


def _attribute(value: Value) -> AttributeValue:
    """An attribute as Python has it; of types that Python lacks, its text."""
    if isinstance(value, Timestamp):
        try:
            return _FIRST + timedelta(milliseconds=int(value))
        except OverflowError:  # a year that Python does not have
            return int(value)
    if isinstance(value, bool | bytes | UUID):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return _text(value)


def _text_or_none(value: Value) -> str | None:
    return None if value is None else str(value)


def _text(value: Value) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


_TEXTS_OR_BYTES = (0x73, 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)  # how they are encoded


def _body(payload: bytes, at: int, end: int) -> bytes:
    """A body that is not data: text and bytes as such, anything else as it was encoded.

    Raises Malformed.
    """
    if payload[at] not in _TEXTS_OR_BYTES:
        return payload[at:end]
    value = Reader(payload, at, end).value()
    return value if isinstance(value, bytes) else str(value).encode()


def _form_of(payload: bytes, message: ReceivedMessage) -> _Form | None:
    """Returns the form that the next message is compared with; None if this one is uncommon."""
    first = payload.find(_ENQUEUED)
    id = message.message_id.encode()
    found = sections(payload)
    code, section, at, _ = found[-1] if found else (0, 0, 0, 0)
    wide = payload[at : at + 1] == b"\xb0"
    if first < 0 or code != DATA or not id or message.dead_letter_reason is not None:
        return None
    numbers = first + len(_ENQUEUED)
    if len(payload) < numbers + _NUMBERS.size:
        return None
    _, key, _, until_key, _ = _numbers(payload, numbers)
    behind = numbers + _NUMBERS.size
    begin = payload.find(b"\xa1%c%b" % (len(id), id), behind) if len(id) < 256 else -1
    if key != _SEQUENCE_KEY or until_key != _UNTIL or begin < 0 or begin > section:
        return None
    begin += 2
    end, body_at = begin + len(id), at + 1
    if payload[behind : behind + 3] != b"\x00\x53\x73" or end > section:
        return None
    annotated = next((stop for code, _, _, stop in found if code == DELIVERY_ANNOTATIONS), 0)
    token_at = payload.find(_TOKEN, 0, max(0, annotated - _TOKEN_BYTES))
    token = _TOKEN_BYTES if token_at >= 0 else 0
    head = token_at + len(_TOKEN) if token else numbers
    return _Form(
        payload[:head], token, payload[head + token : numbers], payload[behind:begin],
        payload[end:body_at], begin, end, body_at, wide, message,
    )  # fmt: skip
