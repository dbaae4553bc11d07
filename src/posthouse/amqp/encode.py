"""Writing AMQP's encodings (1.6): the shortest that every known client reads.

Booleans are 0x41 and 0x42 (some clients take 0x56 for a number), an empty list is a list8 with
nothing in it (some do not know list0).
"""

from collections.abc import Callable, Iterable
from struct import Struct
from uuid import UUID

from posthouse.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

_U16, _U32, _U64 = Struct(">BH").pack, Struct(">BI").pack, Struct(">BQ").pack
_I16, _I32, _I64 = Struct(">Bh").pack, Struct(">Bi").pack, Struct(">Bq").pack
_F32, _F64 = Struct(">Bf").pack, Struct(">Bd").pack
_COMPOUND8, _COMPOUND32 = Struct(">BBB").pack, Struct(">BII").pack
_LONG = Struct(">BI").pack
_bytes = [bytes((number,)) for number in range(256)]


def encode(value: Value) -> bytes:
    """Raises KeyError for what is not one of AMQP's types."""
    return _WRITE[type(value)](value)


def _of_size(short: int, wide: int, data: bytes) -> bytes:
    if len(data) < 256:
        return b"%c%c%b" % (short, len(data), data)
    return _LONG(wide, len(data)) + data


def _compound(short: int, wide: int, count: int, content: bytes) -> bytes:
    if count < 256 and len(content) < 255:
        return _COMPOUND8(short, len(content) + 1, count) + content
    return _COMPOUND32(wide, len(content) + 4, count) + content


def encode_list(encoded: Iterable[bytes]) -> bytes:
    """Encodes a list of values that are encoded already."""
    values = list(encoded)
    return _compound(0xC0, 0xD0, len(values), b"".join(values))


def encode_map(count: int, content: bytes) -> bytes:
    """Encodes a map of keys and values that are encoded already; `count` counts both."""
    return _compound(0xC1, 0xD1, count, content)


def encode_array(code: int, encoded: Iterable[bytes]) -> bytes:
    """Encodes an array of values that are encoded with this constructor, each without it."""
    values = list(encoded)
    return _compound(0xE0, 0xF0, len(values), b"%c" % code + b"".join(values))


def described(code: int, value: bytes) -> bytes:
    """Puts a descriptor before an encoded value: a number, in the form that every client knows."""
    return b"\x00\x53%c%b" % (code, value)


def _map(value: dict[Value, Value]) -> bytes:
    content = b"".join(encode(key) + encode(each) for key, each in value.items())
    return encode_map(2 * len(value), content)


# How an array's values are written: with their constructor's widest form, but without its code.
_WIDE: dict[int, Callable[[Value], bytes]] = {
    0x40: lambda value: b"",
    0x56: lambda value: _bytes[value],
    0x50: lambda value: _bytes[value],
    0x51: lambda value: _bytes[value & 0xFF],
    0x52: lambda value: _bytes[value],
    0x53: lambda value: _bytes[value],
    0x54: lambda value: _bytes[value & 0xFF],
    0x55: lambda value: _bytes[value & 0xFF],
    0x60: lambda value: _U16(0, value)[1:],
    0x61: lambda value: _I16(0, value)[1:],
    0x70: lambda value: _U32(0, value)[1:],
    0x71: lambda value: _I32(0, value)[1:],
    0x72: lambda value: _F32(0, value)[1:],
    0x73: lambda value: _U32(0, ord(value))[1:],
    0x74: lambda value: bytes(value.data),
    0x80: lambda value: _U64(0, value)[1:],
    0x81: lambda value: _I64(0, value)[1:],
    0x82: lambda value: _F64(0, value)[1:],
    0x83: lambda value: _I64(0, value)[1:],
    0x84: lambda value: bytes(value.data),
    0x94: lambda value: bytes(value.data),
    0x98: lambda value: bytes(value.bytes),
    0xA0: lambda value: b"%c%b" % (len(value), value),
    0xA1: lambda value: b"%c%b" % (len(data := value.encode()), data),
    0xA3: lambda value: b"%c%b" % (len(data := value.encode()), data),
    0xB0: lambda value: _U32(0, len(value))[1:] + value,
    0xB1: lambda value: _U32(0, len(data := value.encode()))[1:] + data,
    0xB3: lambda value: _U32(0, len(data := value.encode()))[1:] + data,
}


def _array(value: Array) -> bytes:
    """Encodes an array of simple values; those of compound values are passed on as they came."""
    if not value.code or value.code not in _WIDE:
        return encode_list(map(encode, value))
    return encode_array(value.code, map(_WIDE[value.code], value))


def _uint(value: int) -> bytes:
    if not value:
        return b"\x43"
    return b"\x52%c" % value if value < 256 else _U32(0x70, value)


def _ulong(value: int) -> bytes:
    if not value:
        return b"\x44"
    return b"\x53%c" % value if value < 256 else _U64(0x80, value)


def _long(value: int) -> bytes:
    return b"\x55%c" % (value & 0xFF) if -128 <= value < 128 else _I64(0x81, value)


_WRITE: dict[type, Callable[[Value], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: lambda value: b"\x50%c" % value,
    UShort: lambda value: _U16(0x60, value),
    UInt: _uint,
    ULong: _ulong,
    Byte: lambda value: b"\x51%c" % (value & 0xFF),
    Short: lambda value: _I16(0x61, value),
    Int: lambda value: b"\x54%c" % (value & 0xFF) if -128 <= value < 128 else _I32(0x71, value),
    int: _long,
    Long: _long,
    Float: lambda value: _F32(0x72, value),
    float: lambda value: _F64(0x82, value),
    Decimal: lambda value: b"%c%b" % value,
    Char: lambda value: _U32(0x73, ord(value)),
    Timestamp: lambda value: _I64(0x83, value),
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _of_size(0xA0, 0xB0, value),
    str: lambda value: _of_size(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _of_size(0xA3, 0xB3, value.encode()),
    list: lambda value: encode_list(map(encode, value)),
    dict: _map,
    Array: _array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}
