"""Performatives (2.7) and SASL frames (5.3.3): what the frames say.

They are always written with all of their fields and with the short form of their descriptor: some
clients read fields by their place, and know no other form. They are read in every form there is.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import msgspec

from posthouse.amqp.decode import Reader, read_fields
from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.types import Array, Described, Malformed, Symbol, UInt, ULong, UShort, Value

SENDER, RECEIVER = False, True  # 2.8.1, role
TEXT_CHARS_MAX = 350
TAG_BYTES_MAX = 32  # 2.8.7
_u32 = Struct(">I").unpack_from


class _Kind(NamedTuple):
    """A type of field: the Python types it may have when it is read, and how it is written."""

    types: frozenset[type]
    write: Callable[[Any], bytes]


def _symbols(value: list[str]) -> bytes:
    return encode(Array(0xA3, map(Symbol, value)))


def _state(value: bytes | Described) -> bytes:
    """Writes a delivery state; most are kept encoded."""
    return value if isinstance(value, bytes) else encode(value)


_none = type(None)
_bool = _Kind(frozenset((bool, _none)), lambda value: b"\x41" if value else b"\x42")
_uint = _Kind(frozenset((int, _none)), lambda value: encode(UInt(value)))
_ulong = _Kind(frozenset((int, ULong, _none)), lambda value: encode(ULong(value)))
_ushort = _Kind(frozenset((int, _none)), lambda value: encode(UShort(value)))
_ubyte = _Kind(frozenset((int, _none)), lambda value: b"\x50%c" % value)
_str = _Kind(frozenset((str, _none)), encode)
_symbol = _Kind(frozenset((str, _none)), lambda value: encode(Symbol(value)))
_many = _Kind(frozenset((Array, list, str, _none)), _symbols)
_bytes = _Kind(frozenset((bytes, _none)), encode)
_map = _Kind(frozenset((dict, _none)), encode)
_described = _Kind(frozenset((Described, _none)), _state)


class Performative(msgspec.Struct, gc=False):
    CODE: ClassVar[int]
    KINDS: ClassVar[tuple[_Kind, ...]]
    NEEDED: ClassVar[int] = 0  # the first so many fields cannot be null


class Open(Performative, gc=False):
    CODE = 0x10
    KINDS = (_str, _str, _uint, _ushort, _uint, _many, _many, _many, _many, _map)
    NEEDED = 1
    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None  # milliseconds
    outgoing_locales: list[str] | None = None
    incoming_locales: list[str] | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[Value, Value] | None = None


class Begin(Performative, gc=False):
    CODE = 0x11
    KINDS = (_ushort, _uint, _uint, _uint, _uint, _many, _many, _map)
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[Value, Value] | None = None


class Attach(Performative, gc=False):
    CODE = 0x12
    KINDS = (
        _str, _uint, _bool, _ubyte, _ubyte, _described, _described, _map, _bool, _uint, _ulong,
        _many, _many, _map,
    )  # fmt: skip
    NEEDED = 3
    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Described | None = None
    target: Described | None = None
    unsettled: dict[Value, Value] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[Value, Value] | None = None


class Flow(Performative, gc=False):
    CODE = 0x13
    KINDS = (
        _uint, _uint, _uint, _uint, _uint, _uint, _uint, _uint, _bool, _bool, _map,
    )  # fmt: skip
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Value, Value] | None = None


class Transfer(Performative, gc=False):
    CODE = 0x14
    KINDS = (
        _uint, _uint, _bytes, _uint, _bool, _bool, _ubyte, _described, _bool, _bool, _bool,
    )  # fmt: skip
    NEEDED = 1
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Described | None = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(Performative, gc=False):
    CODE = 0x15
    KINDS = (_bool, _uint, _uint, _bool, _described, _bool)
    NEEDED = 2
    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Described | bytes | None = None
    batchable: bool | None = None


class Detach(Performative, gc=False):
    CODE = 0x16
    KINDS = (_uint, _bool, _described)
    NEEDED = 1
    handle: int
    closed: bool | None = None
    error: Described | bytes | None = None


class End(Performative, gc=False):
    CODE = 0x17
    KINDS = (_described,)
    error: Described | bytes | None = None


class Close(Performative, gc=False):
    CODE = 0x18
    KINDS = (_described,)
    error: Described | bytes | None = None


class SaslMechanisms(Performative, gc=False):
    CODE = 0x40
    KINDS = (_many,)
    NEEDED = 1
    mechanisms: list[str] | str


class SaslInit(Performative, gc=False):
    CODE = 0x41
    KINDS = (_symbol, _bytes, _str)
    NEEDED = 1
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslChallenge(Performative, gc=False):
    CODE = 0x42
    KINDS = (_bytes,)
    NEEDED = 1
    challenge: bytes


class SaslResponse(Performative, gc=False):
    CODE = 0x43
    KINDS = (_bytes,)
    NEEDED = 1
    response: bytes


class SaslOutcome(Performative, gc=False):
    CODE = 0x44
    KINDS = (_ubyte, _bytes)
    NEEDED = 1
    outcome: int
    additional_data: bytes | None = None


_BY_CODE: dict[int, type[Performative]] = {
    each.CODE: each
    for each in (
        Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close, SaslMechanisms,
        SaslInit, SaslChallenge, SaslResponse, SaslOutcome,
    )
}  # fmt: skip
_NAMES = {
    0x10: "open", 0x11: "begin", 0x12: "attach", 0x13: "flow", 0x14: "transfer",
    0x15: "disposition", 0x16: "detach", 0x17: "end", 0x18: "close", 0x40: "sasl-mechanisms",
    0x41: "sasl-init", 0x42: "sasl-challenge", 0x43: "sasl-response", 0x44: "sasl-outcome",
}  # fmt: skip
_BY_NAME = {f"amqp:{name}:list": code for code, name in _NAMES.items()}
_good: dict[int, set[tuple[type, ...]]] = {code: set() for code in _BY_CODE}
_GOOD_MAX = 256  # kinds of fields that were seen to be right, for each performative


def write(performative: Performative) -> bytes:
    fields = msgspec.structs.astuple(performative)
    return described(
        performative.CODE,
        encode_list(
            b"\x40" if value is None else kind.write(value)
            for value, kind in zip(fields, performative.KINDS, strict=True)
        ),
    )


def read(data: bytes, pos: int, end: int) -> tuple[Performative, int]:
    """The performative at the beginning of a frame, and where it ends. Raises Malformed."""
    if end - pos > 3 and data[pos] == 0 and data[pos + 1] == 0x53:
        code = data[pos + 2]
        pos += 3
    else:
        code, pos = _descriptor(data, pos, end)
    kind = _BY_CODE.get(code)
    if kind is None:
        raise Malformed(f"there is no performative {code:#x}", "amqp:not-implemented")
    fields, pos = read_fields(data, pos, end)
    types = tuple(map(type, fields))
    if types not in _good[code]:
        _check(kind, fields, types)
    return kind(*fields), pos


class Whole(NamedTuple):
    """The fields behind the tag of a transfer that is a whole delivery."""

    fields: int  # how many there are in all
    format: int
    settled: bool


_wholes: dict[bytes, Whole] = {}  # by how they are encoded: clients write the same each time
_WHOLES_MAX, _WHOLE_BYTES_MAX = 256, 16
_WHOLE_BYTES_MIN = 12  # so that handle, id and the tag's head are within the list, however written
TRANSFER_HEAD = b"\x00\x53\x14\xc0"


def read_whole(data: bytes, pos: int, end: int) -> tuple[int, int, bytes, Whole, int] | None:
    """Reads handle, id, tag and the rest of a transfer that is a whole delivery, and its end.

    There is one for each message, so this looks at the bytes of the first three fields, and at
    those of the others all at once. None: it is to be read like any other performative.
    """
    stop, at = pos + 2 + data[pos + 1], pos + 3
    if stop > end or stop - at < _WHOLE_BYTES_MIN:
        return None
    code = data[at]
    if code == 0x43:
        handle, at = 0, at + 1
    elif code == 0x52:
        handle, at = data[at + 1], at + 2
    elif code == 0x70:
        handle, at = _u32(data, at + 1)[0], at + 5
    else:
        return None
    code = data[at]
    if code == 0x70:
        number, at = _u32(data, at + 1)[0], at + 5
    elif code == 0x52:
        number, at = data[at + 1], at + 2
    elif code == 0x43:
        number, at = 0, at + 1
    else:
        return None
    size = data[at + 1]
    if data[at] != 0xA0 or size > TAG_BYTES_MAX:
        return None
    at += 2
    tag = data[at : at + size]
    at += size
    if at > stop:
        return None
    whole = _wholes.get(data[at:stop])
    if whole is None:
        whole = _note_whole(data, pos, at, stop)
    if whole is None or whole.fields != data[pos + 2]:
        return None
    return handle, number, tag, whole, stop


def _note_whole(data: bytes, pos: int, at: int, stop: int) -> Whole | None:
    """Remembers how a client writes transfers, if this one is a whole delivery."""
    if not at <= stop <= at + _WHOLE_BYTES_MAX:
        return None
    fields, _ = read_fields(data, pos, stop)
    _check(Transfer, fields, tuple(map(type, fields)))
    read = Transfer(*fields)
    if read.more or read.aborted or read.state is not None:
        return None
    whole = Whole(len(fields), read.message_format or 0, bool(read.settled))
    if len(_wholes) >= _WHOLES_MAX:
        _wholes.clear()
    _wholes[data[at:stop]] = whole
    return whole


def _descriptor(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Reads a descriptor that is in its long form, or a name."""
    if end <= pos or data[pos] != 0:
        raise Malformed("a frame does not begin with a performative")
    reader = Reader(data, pos + 1, end)
    found = reader.value()
    code = _BY_NAME.get(found, -1) if isinstance(found, Symbol) else found
    return (code if isinstance(code, ULong | int) else -1), reader.pos


def _check(kind: type[Performative], fields: list[Value], types: tuple[type, ...]) -> None:
    name = _NAMES[kind.CODE]
    if len(fields) > len(kind.KINDS):
        raise Malformed(f"{name} has more than {len(kind.KINDS)} fields")
    for at, (each, wanted) in enumerate(zip(types, kind.KINDS, strict=False)):
        if each not in wanted.types:
            raise Malformed(f"field {at} of {name} has the wrong type")
    needed = 4 if kind in (Begin, Flow) else kind.NEEDED
    first = 1 if kind in (Begin, Flow) else 0  # their first field is null in the first of them
    if len(fields) < needed or None in fields[first:needed]:
        raise Malformed(f"{name} lacks a field that it needs", "amqp:invalid-field")
    if len(_good[kind.CODE]) < _GOOD_MAX:
        _good[kind.CODE].add(types)


# Delivery states (3.4), encoded.

ACCEPTED = described(0x24, b"\xc0\x01\x00")
RELEASED = described(0x26, b"\xc0\x01\x00")
MODIFIED = described(0x27, b"\xc0\x04\x03\x40\x40\x40")
REJECTED = described(0x25, b"\xc0\x02\x01\x40")


def error(condition: str, text: str, info: dict[Value, Value] | None = None) -> bytes:
    """Encodes an error (2.8.14). A text that is too long for the smallest frame is cut."""
    text = text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."
    return described(0x1D, encode_list((encode(Symbol(condition)), encode(text), encode(info))))


def rejected(condition: str, text: str, info: dict[Value, Value] | None = None) -> bytes:
    return described(0x25, encode_list((error(condition, text, info),)))


class Problem(NamedTuple):
    """An error as the other side told it."""

    condition: str
    text: str
    info: dict[Value, Value]


def problem_in(told: Described | bytes | None) -> Problem | None:
    """The error in an end, a detach, a close or a rejection."""
    if not isinstance(told, Described) or not isinstance(told.value, list):
        return None
    condition, text, info = (*told.value, None, None, None)[:3]
    return Problem(
        str(condition) if isinstance(condition, str) else "",
        text if isinstance(text, str) else "",
        info if isinstance(info, dict) else {},
    )


def code_of(value: Described) -> int:
    """The numeric descriptor of a described value; -1 where it is not known."""
    descriptor = value.descriptor
    if isinstance(descriptor, Symbol):
        return _STATES.get(descriptor, -1)
    return descriptor if isinstance(descriptor, int) and descriptor < 1 << 63 else -1


_STATES = {
    "amqp:received:list": 0x23, "amqp:accepted:list": 0x24, "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26, "amqp:modified:list": 0x27, "amqp:source:list": 0x28,
    "amqp:target:list": 0x29, "amqp:coordinator:list": 0x30, "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32, "amqp:declared:list": 0x33, "amqp:transactional-state:list": 0x34,
    "amqp:error:list": 0x1D,
}  # fmt: skip
