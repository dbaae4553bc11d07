"""AMQP messages (3.2) as ours, and back, byte for byte.

What a sender's sections were is kept beside the neutral envelope, as the message's native form:

    kind      1  what the body is: see BODY_*; 0x10 more where delivery annotations are kept
    durable   1  0x40 (not said), 0x41, 0x42
    priority  1  255: not said
    count     2  keys and values among the annotations that are kept
    size      4  of them
    annotations  as they were encoded, without those that a broker sets
    count     2  keys and values among the delivery annotations, where the sender gave some
    size      4  of them
    delivery annotations  likewise
    properties and application properties, as they were encoded

and the body's bytes are the message's own, so that other dialects can read them and the engine can
put them aside. On the way out the header and the annotations are made anew around all this.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.msgpack import Ext

from posthouse.amqp.decode import Reader, read_fields, sections, skip
from posthouse.amqp.encode import described, encode, encode_list, encode_map
from posthouse.amqp.runs import Alike
from posthouse.amqp.types import Decimal, Described, Malformed, Symbol, Timestamp, ULong, Value
from posthouse.core.commands import PROPERTY_CHARS_MAX, Delivery, Seen
from posthouse.core.filters.texts import TICKS
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    Envelope,
    Message,
    NewMessage,
    Note,
    Properties,
    decode_envelope,
    encode_envelope,
    span,
    timestamp,
    uuid,
)
from posthouse.dialects.servicebus.address import told_name

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)
BATCH_FORMAT = 0x80013700  # a message whose data sections are messages

# Bodies: one data section; a value that is text, or bytes; or whatever sections there are.
BODY_DATA, BODY_TEXT, BODY_BYTES, BODY_SECTIONS = range(4)
_HAS_DELIVERY = 0x10  # beside the kind: the sender gave delivery annotations
SECTIONS_FORM = "amqp"  # what such a body is called in the envelope

_NATIVE = Struct(">BBBHI")
_NATIVE_BYTES = _NATIVE.size
_FOREIGN = 0x80  # from here on a first byte is one of another dialect's native form
_COUNTED = Struct(">HI")
_NO_PRIORITY = 255
ID_CHARS_MAX = 128
PAIRS_MAX = 2_000  # keys and values of a message's annotations

_TAKEN_OVER = frozenset((
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-message-state",
    "x-opt-deadletter-source", "x-opt-enqueue-sequence-number", "x-opt-lock-token",
))  # fmt: skip


class Unfit(Exception):
    """A message that is well formed, and says what cannot be. `condition` is told to the sender."""

    def __init__(self, text: str, condition: str = "com.microsoft:argument-error") -> None:
        super().__init__(text)
        self.condition = condition


# In.


class Form(NamedTuple):
    """The common part of messages that differ in their ids and bodies alone.

    A sender's messages are most often like this. Their bytes before the id, and between the id and
    the body, tell that a message is of this form; the rest is what those bytes come to.
    """

    before: bytes
    between: bytes  # with the body's constructor
    id_begin: int
    id_end: int
    body: int  # where its size stands
    envelope: bytes  # before its id, and behind it
    envelope_rest: bytes
    native: bytes
    native_rest: bytes
    group: str | None
    priority: int
    ttl_ms: int | None
    due_ms: int


_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_FORM_BYTES_MAX = 4_096


class Messages:
    """Reads the messages of one sender."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._form: Form | None = None  # of the last

    def read(self, payload: bytes) -> NewMessage:
        """A message as it was sent. Raises Malformed or Unfit."""
        alike = self.read_alike((payload,), 0)
        if alike:
            return alike[0]
        message = read_message(payload, self._new_id)
        self._form = _form_of(payload, message)
        return message

    def read_alike(self, payloads: Sequence[bytes], first: int) -> list[NewMessage]:
        """Those from the first on that are of the last one's form, as far as there are some."""
        found: list[NewMessage] = []
        if self._form is None:
            return found
        (before, between, begin, end, body, head, tail, native, rest, group, priority, ttl_ms,
         due_ms) = self._form  # fmt: skip
        columns = None
        if isinstance(payloads, Alike) and first <= 1:  # behind one of another form: one by one
            columns = _columns(self._form, payloads.behind(first))
        if columns is not None:
            return [
                NewMessage(
                    head + id + tail, content, native + id + rest, group, priority, ttl_ms, due_ms
                )
                for id, content in zip(*columns, strict=True)
            ]
        length, at, size = 0, 0, b""  # of the one before
        for payload in islice(payloads, first, None):
            id = payload[begin:end]
            if not (
                payload.startswith(before) and payload.startswith(between, end) and id.isascii()
            ):
                break
            if len(payload) != length or payload[body:at] != size:
                at = _body_at(payload, body)
                if not at:
                    break
                length, size = len(payload), payload[body:at]
            found.append(
                NewMessage(
                    head + id + tail, payload[at:], native + id + rest, group, priority, ttl_ms,
                    due_ms,
                )
            )  # fmt: skip
        return found


def _columns(form: Form, payloads: Alike) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids and bodies, where all are of the form."""
    first, size, count = payloads[0], payloads.size, len(payloads)
    at = _body_at(first, form.body) if size > form.body else 0
    if not at:
        return None
    befores, ids, betweens, sizes, bodies = payloads.columns(
        f"{form.id_begin}s{form.id_end - form.id_begin}s{form.body - form.id_end}s"
        f"{at - form.body}s{size - at}s"
    )
    if (
        befores.count(form.before) == count
        and betweens.count(form.between) == count
        and sizes.count(first[form.body : at]) == count
        and b"".join(ids).isascii()
    ):
        return ids, bodies
    return None


def _body_at(data: bytes, at: int) -> int:
    """Returns where the body begins whose size is at `at`, if it fills the rest; else 0."""
    size = len(data) - at
    if data[at - 1] == 0xA0:
        return at + 1 if size > 0 and data[at] == size - 1 else 0
    return at + 4 if size >= 260 and _U32(data, at)[0] == size - 4 else 0


_U32 = Struct(">I").unpack_from


def _form_of(payload: bytes, message: NewMessage) -> Form | None:
    """Returns the form that the next message may have; None for an uncommon message."""
    native, envelope = message.native, message.envelope
    assert native is not None
    begin = end = 0
    found = sections(payload)
    for code, _, at, _ in found:
        if code == PROPERTIES and payload[at] == 0xC0 and payload[at + 3] == 0xA1:
            begin, end = at + 5, at + 5 + payload[at + 4]
    if not found:
        return None
    code, section, at, _ = found[-1]
    id, body = payload[begin:end], at + 1
    if not id or code != DATA or payload[section:body] not in (_DATA8, _DATA32):
        return None
    head = envelope[:4] + (b"%c" % (0xA0 + len(id)) if len(id) < 32 else b"\xd9%c" % len(id))
    place, rest = native.find(id), payload[end:section]
    if (
        body > _FORM_BYTES_MAX
        or not _body_at(payload, body)
        or not envelope.startswith(head + id)
        or native.count(id) != 1
        or native[place + len(id) :] != rest
    ):
        return None
    return Form(
        payload[:begin], payload[end:body], begin, end, body, head, envelope[len(head) + len(id) :],
        native[:place], rest, message.group, message.priority, message.ttl_ms, message.due_ms,
    )  # fmt: skip


def read_message(payload: bytes, new_id: Callable[[], str]) -> NewMessage:
    """A message as it was sent. Raises Malformed or Unfit."""
    durable, priority, ttl_ms = 0x40, None, None
    kept, kept_count, due_ms = b"", 0, 0
    partition_key = None
    delivery = properties = application = b""
    fields: list[Value] = []
    user: Properties = {}
    bodies: list[tuple[int, int, int, int]] = []
    seen: list[int] = []
    for section in sections(payload):
        code, begin, at, end = section
        if code < DATA:
            if code in seen:  # 3.2; and each would be decoded
                raise Malformed("a message has a section twice")
            seen.append(code)
        if code == HEADER:
            durable, priority, ttl_ms = _read_header(payload, at, end)
        elif code == ANNOTATIONS:
            kept, kept_count, due_ms, partition_key = _read_annotations(payload, at, end)
        elif code == PROPERTIES:
            fields, stop = read_fields(payload, at, end)
            if stop != end or len(fields) > 13:
                raise Malformed("properties cannot be read")
            properties = payload[begin:end]
        elif code == APPLICATION:
            application = payload[begin:end]
            user = _neutral(_map_in(payload, at, end))
        elif code == DELIVERY_ANNOTATIONS:
            delivery = _read_delivery_annotations(payload, at, end)
        else:
            bodies.append(section)
    fields += [None] * (13 - len(fields))
    id = fields[0]
    if id is None or id == "":
        id = new_id()
        properties = _with_fields(properties, {0: encode(id)})
    kind, body = _read_body(payload, bodies)
    form = SECTIONS_FORM if kind == BODY_SECTIONS else ""
    envelope = _envelope(fields, _text(id), partition_key, user, form)
    group = envelope.session_id
    if partition_key is not None:
        if group is not None and group != partition_key:
            raise Unfit("The partition key must be the session id where a message has both.")
        group = partition_key
    native = b"".join((
        _NATIVE.pack(
            kind | _HAS_DELIVERY if delivery else kind, durable,
            _NO_PRIORITY if priority is None else priority, kept_count, len(kept),
        ),
        kept, delivery, properties, application,
    ))  # fmt: skip
    return NewMessage(
        encode_envelope(envelope), body, native, group,
        4 if priority is None else min(9, priority), ttl_ms, due_ms,
    )  # fmt: skip


def split_batch(payload: bytes, most: int) -> list[bytes]:
    """The messages in a batch. Raises Malformed or Unfit."""
    found = [_bytes_in(payload, at, end) for code, _, at, end in sections(payload) if code == DATA]
    if len(found) > most:
        raise Unfit(f"A batch has at most {most} messages.")
    return found


def _bytes_in(data: bytes, at: int, end: int) -> bytes:
    code = data[at]
    if code == 0xA0:
        return data[at + 2 : end]
    if code == 0xB0:
        return data[at + 5 : end]
    raise Malformed("data is not binary")


def _read_header(data: bytes, at: int, end: int) -> tuple[int, int | None, int | None]:
    fields, stop = read_fields(data, at, end)
    durable, priority, ttl_ms = (*fields, None, None, None)[:3]
    if stop != end or len(fields) > 5:
        raise Malformed("a header cannot be read")
    if durable is not None and type(durable) is not bool:
        raise Malformed("a header's durable is not a boolean")
    for number in (priority, ttl_ms):
        if number is not None and type(number) is not int:
            raise Malformed("a header's priority or ttl is not a number")
    said = 0x40 if durable is None else 0x41 if durable else 0x42
    return said, None if priority is None else min(priority, _NO_PRIORITY - 1), ttl_ms


def _map_in(data: bytes, at: int, end: int) -> dict[Value, Value]:
    reader = Reader(data, at, end)
    found = reader.value()
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Malformed("a section is not a map")
    return found


def _read_annotations(data: bytes, at: int, end: int) -> tuple[bytes, int, int, str | None]:
    """Those that are kept, how many keys and values that is, when it is due, partition key."""
    kept: list[bytes] = []
    due_ms, partition_key = 0, None
    for key, value, encoded in _annotations_in(data, at, end):
        if key == "x-opt-scheduled-enqueue-time" and isinstance(value, int):
            due_ms = max(0, int(value))
        elif key == "x-opt-partition-key" and isinstance(value, str):
            partition_key = str(value)
            if len(partition_key) > ID_CHARS_MAX:
                raise Unfit(f"A partition key has at most {ID_CHARS_MAX} characters.")
        kept.append(encoded)
    return b"".join(kept), 2 * len(kept), due_ms, partition_key


def _read_delivery_annotations(data: bytes, at: int, end: int) -> bytes:
    """Those that are kept, with their count and size; nothing where there are none."""
    kept = b"".join(found := [encoded for _, _, encoded in _annotations_in(data, at, end)])
    return _COUNTED.pack(2 * len(found), len(kept)) + kept if kept else b""


def _annotations_in(data: bytes, at: int, end: int) -> Iterator[tuple[Value, Value, bytes]]:
    """Name, value, and both as they were encoded, but for those that a broker sets."""
    if data[at] == 0x40:
        return
    if data[at] not in (0xC1, 0xD1):
        raise Malformed("annotations are not a map")
    reader = Reader(data, at, end)
    wide = data[at] == 0xD1
    reader.pos += 1
    count, _ = reader.head(wide=wide)
    if count % 2 or count > PAIRS_MAX:
        raise Malformed("annotations cannot be read")
    for _ in range(count // 2):
        begin = reader.pos
        name, value = reader.value(), reader.value()
        if not isinstance(name, str | int):  # 3.2.10
            raise Malformed("an annotation's name is neither a symbol nor a number")
        if name not in _TAKEN_OVER:
            yield name, value, data[begin : reader.pos]
    if reader.pos != end:
        raise Malformed("annotations are not as long as they say")


def _text(id: Value) -> str:
    if type(id) is str:
        text = id
    elif isinstance(id, bytes):
        text = id.hex()
    elif isinstance(id, UUID | int):
        text = str(id)
    else:
        raise Malformed("a message id is none of the types it may have")
    if len(text) > ID_CHARS_MAX:
        raise Unfit(f"A message id has at most {ID_CHARS_MAX} characters.")
    return text


def _with_fields(section: bytes, changes: dict[int, bytes]) -> bytes:
    """The properties section once more, with these of its fields changed; they are encoded."""
    fields: list[bytes] = []
    if section:
        at = section.index(b"\x73") + 1 if section[:2] == b"\x00\x53" else None
        if at is None:
            raise Malformed("properties are described in a way that is not known")
        code = section[at]
        if code != 0x45:
            count = section[at + 2] if code == 0xC0 else _U32(section, at + 5)[0]
            pos = at + (3 if code == 0xC0 else 9)
            for _ in range(count):
                begin, pos = pos, skip(section, pos)
                fields.append(section[begin:pos])
    fields += [b"\x40"] * (max(changes) + 1 - len(fields))
    for at, encoded in changes.items():
        fields[at] = encoded
    return described(PROPERTIES, encode_list(fields))


def _envelope(
    fields: list[Value], id: str, partition_key: str | None, user: Properties, form: str
) -> Envelope:
    session = fields[10]
    for at in (2, 3, 4, 6, 10, 12):
        if fields[at] is not None and type(fields[at]) is not str:
            raise Malformed("a property that is text is not")
    if session is not None and len(session) > ID_CHARS_MAX:
        raise Unfit(f"A session id has at most {ID_CHARS_MAX} characters.")
    correlation = fields[5]
    trace = user.get("traceparent", user.get("Diagnostic-Id"))
    return Envelope(
        id, fields[6] or "", fields[3] or "", "" if correlation is None else _text(correlation),
        session, partition_key, fields[2] or "", fields[4] or "", fields[12] or "",
        trace if isinstance(trace, str) else "", user, form,
    )  # fmt: skip


def _neutral(found: dict[Value, Value]) -> Properties:
    """Application properties for those who do not speak AMQP; simple values, as 3.2.5 wants."""
    user: Properties = {}
    for key, value in found.items():
        if not isinstance(key, str):
            raise Malformed("an application property's name is not text")
        if len(key) > PROPERTY_CHARS_MAX:
            raise Unfit(f"A property's name has at most {PROPERTY_CHARS_MAX} characters.")
        user[str(key)] = neutral_value(value)
    return user


def neutral_value(value: Value) -> Value:
    """Raises Unfit for what is not one value."""
    kind = type(value)
    if kind in (str, int, bool, float, bytes, type(None)):
        return value
    if kind is Timestamp:
        return timestamp(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if kind is UUID:
        return uuid(value.bytes)
    if kind is Decimal:
        return value.data
    if kind is Described and (found := _OF_DOTNET.get(value.descriptor)) is not None:
        wanted, made = found
        if type(value.value) is wanted:
            return made(value.value)
    raise Unfit("A property must have a single value.")


# What .NET's clients say in types of their own. Their moments count from the year 1.
_YEAR_1_MS = -62_135_596_800_000
_TIMESPAN = Symbol("com.microsoft:timespan")
_OF_DOTNET: dict[Value, tuple[type, Callable[[Any], Value]]] = {
    _TIMESPAN: (int, span),
    Symbol("com.microsoft:datetime-offset"): (int, lambda n: timestamp(_YEAR_1_MS + n // TICKS)),
    Symbol("com.microsoft:uri"): (str, str),
}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_body(data: bytes, bodies: list[tuple[int, int, int, int]]) -> tuple[int, bytes]:
    if len(bodies) == 1:
        code, begin, at, end = bodies[0]
        short = data[begin : begin + 2] == b"\x00\x53"
        head = data[at]
        if code == DATA:
            body = _bytes_in(data, at, end)
            if short and (head == 0xA0) == (len(body) < 256):
                return BODY_DATA, body
        elif code == VALUE and short and head in (0xA0, 0xA1, 0xB0, 0xB1):
            body = data[at + (2 if head < 0xB0 else 5) : end]
            if head in (0xA1, 0xB1) and not _is_text(body):
                raise Malformed("a body that is text is not")
            if (head < 0xB0) == (len(body) < 256):
                return (BODY_BYTES if head in (0xA0, 0xB0) else BODY_TEXT), body
        elif code == FOOTER:
            raise Unfit("A message has no body.")
    kinds = [code for code, _, _, _ in bodies if code != FOOTER]
    if len(set(kinds)) > 1 or kinds.count(VALUE) > 1:  # 3.2
        raise Malformed("a message has bodies of several kinds")
    for code, _, at, end in bodies:
        if code == DATA:
            _bytes_in(data, at, end)
    return BODY_SECTIONS, b"".join(data[begin:end] for _, begin, _, end in bodies)


# Out.


class Marks(NamedTuple):
    """Marks that a message gets beside the sender's, where it is not simply delivered."""

    token: bytes | None = None  # the lock's
    state: int | None = None
    locked: bool = True


def _delivery_annotations(count: int, pairs: bytes) -> bytes:
    """The section, of keys and values that are encoded."""
    return described(DELIVERY_ANNOTATIONS, encode_map(count, pairs))


def _key(name: str, code: int) -> bytes:
    """An annotation's name and the constructor of its value."""
    return encode(Symbol(name)) + bytes((code,))


_ENQUEUED = _key("x-opt-enqueued-time", 0x83)
_SEQUENCE = _key("x-opt-sequence-number", 0x81)
_UNTIL = _key("x-opt-locked-until", 0x83)
_STATE = _key("x-opt-message-state", 0x71)
_FIRST_SEQUENCE = _key("x-opt-enqueue-sequence-number", 0x81)
_SOURCE = encode(Symbol("x-opt-deadletter-source"))
_TOKEN = _key("x-opt-lock-token", 0x98)
_TOKEN_HEAD = _delivery_annotations(2, _TOKEN + bytes(16))[:-16]
_TWO = Struct(f">{len(_ENQUEUED)}sq{len(_SEQUENCE)}sq").pack
_THREE_BYTES = len(_ENQUEUED + _SEQUENCE + _UNTIL) + 3 * 8
_THREE = Struct(f">{len(_ENQUEUED)}sq{len(_SEQUENCE)}sq{len(_UNTIL)}sq").pack
_OURS_HEAD = b"\x00\x53\x72\xd1" + Struct(">II").pack(_THREE_BYTES + 4, 6) + _ENQUEUED
_MAP32 = Struct(">4sII").pack
_LONG_BYTES = Struct(">BI").pack
_INT, _INT64 = Struct(">i").pack, Struct(">q").pack
_struct = lru_cache(1_024)(Struct)


def write_deliveries(deliveries: Sequence[Delivery]) -> tuple[list[bytes], list[bytes]]:
    """Messages as they are delivered: 3.2, with the annotations that clients look for.

    Each as its beginning, and its body where that is the rest of it.
    """
    heads: list[bytes] = []
    bodies: list[bytes] = []
    native_head, count, size, rest = b"", 0, -1, -1  # of the one before
    ends, pack = None, _struct("").pack
    for delivery in deliveries:
        message = delivery.message
        native, body = message.native, message.body
        assert isinstance(body, bytes)
        if (
            native is None or delivery.note is not None or not delivery.token
            or message.expires_ms or native[0] >= _FOREIGN
        ):  # fmt: skip
            heads.append(_write_delivery(delivery))
            bodies.append(b"")
            continue
        head = native[:_NATIVE_BYTES]
        if (
            len(body) != size
            or len(native) != rest
            or head != native_head
            or delivery.count != count
        ):
            native_head, count, size, rest = head, delivery.count, len(body), len(native)
            ends = _ends(head, count - 1, size)
            if ends is not None:
                pack = _struct(
                    f">{len(ends[0])}s16s{len(_OURS_HEAD)}sq{len(_SEQUENCE)}sq{len(_UNTIL)}sq"
                    f"{rest - len(head)}s{len(ends[1])}s"
                ).pack
        if ends is None:
            heads.append(_write_delivery(delivery))
            bodies.append(b"")
            continue
        heads.append(
            pack(
                ends[0], delivery.token.to_bytes(16, "big"), _OURS_HEAD, message.enqueued_ms,
                _SEQUENCE, message.sequence, _UNTIL, delivery.until_ms, native[_NATIVE_BYTES:],
                ends[1],
            )
        )  # fmt: skip
        bodies.append(body)
    return heads, bodies


def _write_delivery(delivery: Delivery) -> bytes:
    token = delivery.token
    marks = Marks(token.to_bytes(16, "big")) if token else _TAKEN
    return _write(delivery.message, delivery.note, delivery.count - 1, delivery.until_ms, marks)


_TAKEN = Marks(locked=False)
DEFERRED = 1  # among the states that clients know
_STATES = {"scheduled": 2, "delayed": 0, "active": 0, "locked": 0, "deferred": DEFERRED}


def write_deferred(delivery: Delivery, *, token: bytes | None) -> bytes:
    """A deferred message that was asked for by its number."""
    marks = Marks(token, DEFERRED, delivery.token != 0)
    return _write(delivery.message, delivery.note, delivery.count - 1, delivery.until_ms, marks)


def write_seen(seen: Seen) -> bytes:
    """A peeked message."""
    state = DEFERRED if seen.deferred else _STATES[seen.state]
    return _write(seen.message, seen.note, seen.message.count, 0, Marks(None, state, False))


def _write(message: Message, note: Note | None, count: int, until_ms: int, marks: Marks) -> bytes:
    native, body = message.native, message.body
    if native is None or native[0] >= _FOREIGN:
        native = _native_of(message)
    assert isinstance(body, bytes)
    kind, durable, priority, pairs, size = _NATIVE.unpack_from(native)
    life_ms = message.expires_ms - message.enqueued_ms if message.expires_ms else 0
    if note is not None and note.ttl_ms is not None:
        life_ms = note.ttl_ms
    kept = native[_NATIVE.size : _NATIVE.size + size]
    if marks.locked:
        ours = _THREE(_ENQUEUED, message.enqueued_ms, _SEQUENCE, message.sequence, _UNTIL, until_ms)
        pairs += 6
    else:
        ours = _TWO(_ENQUEUED, message.enqueued_ms, _SEQUENCE, message.sequence)
        pairs += 4
    if marks.state is not None:
        ours += _STATE + _INT(marks.state)
        pairs += 2
    if note is not None and note.source is not None:
        source = encode(told_name(note.source))
        ours += _FIRST_SEQUENCE + _INT64(note.source_sequence) + _SOURCE + source
        pairs += 4
    middle = native[_NATIVE.size + size :]
    delivery, delivery_pairs = b"", 0
    if kind & _HAS_DELIVERY:
        delivery_pairs, size = _COUNTED.unpack_from(middle)
        delivery, middle = middle[_COUNTED.size :][:size], middle[_COUNTED.size + size :]
    if marks.token is not None:
        delivery += _TOKEN + marks.token
        delivery_pairs += 2
    if note is not None:
        if "partition_key" in note.fields:
            kept, dropped = _without(kept, "x-opt-partition-key")
            kept += _PARTITION_KEY + encode(note.fields["partition_key"])
            pairs += 2 - dropped
        middle = _amended(middle, note)
    return b"".join((
        _header(durable, priority, min(life_ms, 0xFFFFFFFF), max(0, count)),
        _delivery_annotations(delivery_pairs, delivery),
        _MAP32(b"\x00\x53\x72\xd1", len(kept) + len(ours) + 4, pairs),
        kept, ours, middle, _body_head(kind & ~_HAS_DELIVERY, len(body)), body,
    ))  # fmt: skip


@lru_cache(1_024)
def _ends(native_head: bytes, count: int, size: int) -> tuple[bytes, bytes] | None:
    """Returns the bytes up to the lock's token, and those from the sender's sections to the body.

    For a message whose sender gave it no annotations.
    """
    kind, durable, priority, _, kept = _NATIVE.unpack(native_head)
    if kept or kind & _HAS_DELIVERY:
        return None
    return _header(durable, priority, 0, max(0, count)) + _TOKEN_HEAD, _body_head(kind, size)


@lru_cache(1_024)
def _header(durable: int, priority: int, ttl_ms: int, count: int) -> bytes:
    return described(HEADER, encode_list((
        bytes((durable,)),
        b"\x40" if priority == _NO_PRIORITY else b"\x50%c" % priority,
        b"\x70" + ttl_ms.to_bytes(4, "big") if ttl_ms > 0 else b"\x40",
        b"\x40",
        b"\x70" + count.to_bytes(4, "big"),
    )))  # fmt: skip


@lru_cache(1_024)
def _body_head(kind: int, size: int) -> bytes:
    if kind == BODY_SECTIONS:
        return b""
    section = b"\x00\x53\x75" if kind == BODY_DATA else b"\x00\x53\x77"
    code = 0xA1 if kind == BODY_TEXT else 0xA0
    return section + (b"%c%c" % (code, size) if size < 256 else _LONG_BYTES(code + 0x10, size))


def _without(annotations: bytes, name: str) -> tuple[bytes, int]:
    """Keys and values without one of them; and how many went."""
    reader, left = Reader(annotations), []
    dropped = 0
    while reader.pos < len(annotations):
        begin = reader.pos
        key, _ = reader.value(), reader.value()
        if key == name:
            dropped += 2
        else:
            left.append(annotations[begin : reader.pos])
    return b"".join(left), dropped


_PARTITION_KEY = encode(Symbol("x-opt-partition-key"))
# Where the envelope's fields stand in the properties (3.2.4).
_FIELDS = {
    "id": 0, "to": 2, "subject": 3, "reply_to": 4, "correlation_id": 5, "content_type": 6,
    "session_id": 10, "reply_to_session_id": 12,
}  # fmt: skip


def _amended(middle: bytes, note: Note) -> bytes:
    """Properties and application properties, with what was changed since it was sent."""
    told = note.reason is not None or note.description is not None
    if not (note.properties or note.removed or note.fields or told):
        return middle
    properties, found = b"", {}
    for code, begin, at, end in sections(middle):
        if code == PROPERTIES:
            properties = middle[begin:end]
        else:
            found = _map_in(middle, at, end)
    changed = {
        _FIELDS[name]: encode(_symbol(text) if text and name == "content_type" else text or None)
        for name, text in note.fields.items()
        if name in _FIELDS
    }
    if changed:
        properties = _with_fields(properties, changed)
    for name, value in note.properties.items():
        found[name] = native_value(value)
    for name in note.removed:
        found.pop(name, None)
    if note.reason is not None:
        found["DeadLetterReason"] = note.reason
    if note.description is not None:
        found["DeadLetterErrorDescription"] = note.description
    return properties + described(APPLICATION, encode(found))


def native_value(value: Value) -> Value:
    """A neutral property's value as one of AMQP's."""
    if isinstance(value, Ext):
        data = bytes(value.data)
        if value.code == TIMESTAMP:
            return Timestamp(int.from_bytes(data, "big", signed=True))
        if value.code == SPAN:
            return Described(_TIMESPAN, int.from_bytes(data, "big", signed=True))
        return UUID(bytes=data)
    if type(value) is int and value >= 1 << 63:
        return ULong(value)
    return value


def _symbol(text: str) -> Symbol:
    """A symbol is ASCII (1.6.21)."""
    return Symbol(text.encode("ascii", "replace").decode())


def _native_of(message: Message) -> bytes:
    """Writes the AMQP sections of a message that another dialect sent."""
    envelope = decode_envelope(message.envelope) if message.envelope else Envelope()
    fields: list[bytes] = [
        encode(each) if each else b"\x40"
        for each in (
            envelope.id, b"", envelope.to, envelope.subject, envelope.reply_to,
            envelope.correlation_id, _symbol(envelope.content_type),
        )
    ]  # fmt: skip
    session = b"\x40" if envelope.session_id is None else encode(envelope.session_id)
    reply = encode(envelope.reply_to_session_id) if envelope.reply_to_session_id else b"\x40"
    fields += [b"\x40", b"\x40", b"\x40", session, b"\x40", reply]
    if not envelope.id:
        fields[0] = encode(f"{message.sequence}")
    kept, pairs = b"", 0
    if envelope.partition_key is not None:
        kept = encode(Symbol("x-opt-partition-key")) + encode(envelope.partition_key)
        pairs = 2
    rest = described(PROPERTIES, encode_list(fields))
    if envelope.properties:
        user = {name: native_value(value) for name, value in envelope.properties.items()}
        rest += described(APPLICATION, encode(user))
    head = _NATIVE.pack(BODY_DATA, 0x40, message.priority, pairs, len(kept))
    return head + kept + rest
