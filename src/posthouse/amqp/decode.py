"""Reading AMQP's encodings (1.6): every type, in every encoding, of bytes that may be hostile.

No size or count is believed before it is compared with the bytes that are there. What a few bytes
may become is bounded as well: nesting, and the number of values, so that an array of two thousand
million nulls costs nothing. A value takes at most about forty times the memory that it had bytes.

Nor can a sender choose keys that make a map slow. The hash of a number is known, so numbers can be
chosen that a dict finds behind one another only; the hash of a text is salted. A map has few keys
that are numbers, and so has everything that is read together.
"""

from collections.abc import Callable
from struct import Struct, error
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
    Malformed,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

DEPTH_MAX = 16
VALUES_SPARE = 1_024  # values that there may be beside one for each byte,
VALUES_MAX = 400_000  # and in all; to read so many takes some hundredths of a second
KEYS_MAX = 1_000  # of one map
NUMBER_KEYS_MAX = 64  # of them, those that are no text,
ALL_NUMBER_KEYS_MAX = 1_000  # and those of all maps that are read together
_COMPOUND_COST = 8  # values that a list, map or array counts as
_ENTRY_COST = 4  # an entry of a map

_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")
_F32, _F64 = Struct(">f"), Struct(">d")
_PAIR8, _PAIR32 = Struct(">BB"), Struct(">II")
_u32, _u64, _i64 = _U32.unpack_from, _U64.unpack_from, _I64.unpack_from


class Reader:
    """Goes through bytes, value by value. Raises Malformed, whatever they are."""

    __slots__ = ("_depth", "_left", "_number_keys", "data", "end", "pos")

    def __init__(
        self, data: bytes, pos: int = 0, end: int | None = None, values_max: int = VALUES_MAX
    ) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data) if end is None else end
        self._left = min(VALUES_SPARE + self.end - pos, values_max)
        self._depth = 0
        self._number_keys = 0

    def value(self) -> Value:
        """The next one."""
        try:
            found = self._next()
        except (IndexError, error, UnicodeDecodeError, ValueError, OverflowError) as problem:
            raise Malformed(f"a value cannot be read: {problem}") from None
        if self.pos > self.end:
            raise Malformed("a value goes beyond its end")
        return found

    def _next(self) -> Value:
        code = self.data[self.pos]
        self.pos += 1
        return _READ[code](self)

    def _charge(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise Malformed("there are too many values")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Malformed(f"values are nested deeper than {DEPTH_MAX}")
        self._charge(_COMPOUND_COST)

    def take(self, size: int) -> bytes:
        pos = self.pos
        self.pos = pos + size
        if self.pos > self.end:
            raise Malformed("a value goes beyond its end")
        return self.data[pos : self.pos]

    def number(self, form: Struct) -> Value:
        pos = self.pos
        self.pos = pos + form.size
        return form.unpack_from(self.data, pos)[0]

    def described(self) -> Described:
        self._deeper()
        descriptor = self._next()
        value = self._next()
        self._depth -= 1
        return Described(descriptor, value)

    def head(self, *, wide: bool) -> tuple[int, int]:
        """Reads the head of a compound value: how many values it has, and where they end."""
        form = _PAIR32 if wide else _PAIR8
        size, count = form.unpack_from(self.data, self.pos)
        end = self.pos + form.size // 2 + size
        self.pos += form.size
        if end > self.end or end < self.pos:
            raise Malformed("a compound value goes beyond its end")
        return count, end

    def list_(self, *, wide: bool) -> list[Value]:
        self._deeper()
        count, end = self.head(wide=wide)
        self._charge(count)
        found = [self._next() for _ in range(count)]
        self._ends(end)
        return found

    def map_(self, *, wide: bool) -> dict[Value, Value]:
        self._deeper()
        count, end = self.head(wide=wide)
        if count % 2:
            raise Malformed("a map has a key without a value")
        if count > 2 * KEYS_MAX:
            raise Malformed(f"a map has more than {KEYS_MAX} keys")
        self._charge(count * (_ENTRY_COST // 2))
        found = {}
        numbers = 0
        for _ in range(count // 2):
            key = self._next()
            if type(key) not in _TEXT_KEYS:
                numbers += 1
                self._count_number_key(key, numbers)
            found[key] = self._next()
        self._ends(end)
        return found

    def _count_number_key(self, key: Value, in_map: int) -> None:
        self._number_keys += 1
        if type(key) not in _NUMBER_KEYS:
            raise Malformed("a map has a key that is neither text nor a whole number")
        if in_map > NUMBER_KEYS_MAX or self._number_keys > ALL_NUMBER_KEYS_MAX:
            raise Malformed(
                f"a map has more than {NUMBER_KEYS_MAX} keys that are no text, or all maps together"
                f" more than {ALL_NUMBER_KEYS_MAX}"
            )

    def array(self, *, wide: bool) -> Array:
        self._deeper()
        count, end = self.head(wide=wide)
        self._charge(count)
        code = self.data[self.pos]
        self.pos += 1
        descriptor = None
        if code == 0:
            descriptor = self._next()
            code = self.data[self.pos]
            self.pos += 1
        read = _READ[code]
        found = Array(code, [read(self) for _ in range(count)])
        if descriptor is not None:
            self._charge(count * _COMPOUND_COST)
            found = Array(0, [Described(descriptor, each) for each in found])
        self._ends(end)
        return found

    def empty_list(self) -> list[Value]:
        self._charge(_COMPOUND_COST)
        return []

    def _ends(self, end: int) -> None:
        self._depth -= 1
        if self.pos != end:
            raise Malformed("a compound value is not as long as it says")


# The types of a map's keys: text, whose hash a sender does not know, and some numbers.
_TEXT_KEYS = frozenset((str, bytes, Symbol, Char))
_NUMBER_KEYS = frozenset((
    type(None), bool, int, UByte, UShort, UInt, ULong, Byte, Short, Int, Timestamp,
))  # fmt: skip


def _unknown(reader: Reader) -> Value:
    raise Malformed(f"there is no type with the code {reader.data[reader.pos - 1]:#04x}")


def _boolean(reader: Reader) -> bool:
    found = reader.take(1)[0]
    if found > 1:
        raise Malformed("a boolean is neither true nor false")
    return found == 1


# Small numbers, made once: what takes a byte to send must not take thirty to keep.
_UBYTES = [UByte(number) for number in range(256)]
_UINTS = [UInt(number) for number in range(256)]
_ULONGS = [ULong(number) for number in range(256)]
_BYTES = [Byte((number ^ 0x80) - 0x80) for number in range(256)]
_INTS = [Int((number ^ 0x80) - 0x80) for number in range(256)]
_LONGS = [(number ^ 0x80) - 0x80 for number in range(256)]
_SYMBOLS = [Symbol(chr(number)) for number in range(128)]
_NO_SYMBOL = Symbol("")


def _symbol(text: bytes) -> Symbol:
    if len(text) > 1:
        return Symbol(text.decode("ascii"))
    return _SYMBOLS[text[0]] if text else _NO_SYMBOL


def _char(number: int) -> Char:
    if 0xD800 <= number < 0xE000:
        raise Malformed("a character is half of one")
    return Char(chr(number))


_READ: list[Callable[[Reader], Value]] = [_unknown] * 256
_READ[0x00] = Reader.described
_READ[0x40] = lambda reader: None
_READ[0x41] = lambda reader: True
_READ[0x42] = lambda reader: False
_READ[0x43] = lambda reader: _UINTS[0]
_READ[0x44] = lambda reader: _ULONGS[0]
_READ[0x45] = Reader.empty_list
_READ[0x50] = lambda reader: _UBYTES[reader.take(1)[0]]
_READ[0x51] = lambda reader: _BYTES[reader.take(1)[0]]
_READ[0x52] = lambda reader: _UINTS[reader.take(1)[0]]
_READ[0x53] = lambda reader: _ULONGS[reader.take(1)[0]]
_READ[0x54] = lambda reader: _INTS[reader.take(1)[0]]
_READ[0x55] = lambda reader: _LONGS[reader.take(1)[0]]
_READ[0x56] = _boolean
_READ[0x60] = lambda reader: UShort(reader.number(_U16))
_READ[0x61] = lambda reader: Short(reader.number(_I16))
_READ[0x70] = lambda reader: UInt(reader.number(_U32))
_READ[0x71] = lambda reader: Int(reader.number(_I32))
_READ[0x72] = lambda reader: Float(reader.number(_F32))
_READ[0x73] = lambda reader: _char(reader.number(_U32))
_READ[0x74] = lambda reader: Decimal(0x74, reader.take(4))
_READ[0x80] = lambda reader: ULong(reader.number(_U64))
_READ[0x81] = lambda reader: reader.number(_I64)
_READ[0x82] = lambda reader: reader.number(_F64)
_READ[0x83] = lambda reader: Timestamp(reader.number(_I64))
_READ[0x84] = lambda reader: Decimal(0x84, reader.take(8))
_READ[0x94] = lambda reader: Decimal(0x94, reader.take(16))
_READ[0x98] = lambda reader: UUID(bytes=reader.take(16))
_READ[0xA0] = lambda reader: reader.take(reader.take(1)[0])
_READ[0xA1] = lambda reader: reader.take(reader.take(1)[0]).decode()
_READ[0xA3] = lambda reader: _symbol(reader.take(reader.take(1)[0]))
_READ[0xB0] = lambda reader: reader.take(reader.number(_U32))
_READ[0xB1] = lambda reader: reader.take(reader.number(_U32)).decode()
_READ[0xB3] = lambda reader: _symbol(reader.take(reader.number(_U32)))
_READ[0xC0] = lambda reader: reader.list_(wide=False)
_READ[0xD0] = lambda reader: reader.list_(wide=True)
_READ[0xC1] = lambda reader: reader.map_(wide=False)
_READ[0xD1] = lambda reader: reader.map_(wide=True)
_READ[0xE0] = lambda reader: reader.array(wide=False)
_READ[0xF0] = lambda reader: reader.array(wide=True)


def decode(data: bytes) -> Value:
    """The one value that these bytes are. Raises Malformed."""
    reader = Reader(data)
    found = reader.value()
    if reader.pos != len(data):
        raise Malformed("there is more behind the value")
    return found


def read_fields(data: bytes, pos: int, end: int) -> tuple[list[Value], int]:
    """The fields of a performative or section, and where they end. Raises Malformed.

    As `Reader` does it, but unsigned numbers of up to 32 bits are plain, and no others are; and the
    common types are read in line: there is one of these for each message.
    """
    try:
        return _read_fields(data, pos, end)
    except (IndexError, error, UnicodeDecodeError) as problem:
        raise Malformed(f"fields cannot be read: {problem}") from None


def _read_fields(data: bytes, pos: int, end: int) -> tuple[list[Value], int]:
    code = data[pos]
    if code == 0xC0:
        stop, count, pos = pos + 2 + data[pos + 1], data[pos + 2], pos + 3
    elif code == 0xD0:
        size, count = _PAIR32.unpack_from(data, pos + 1)
        stop, pos = pos + 5 + size, pos + 9
    elif code == 0x45:
        return [], pos + 1
    else:
        raise Malformed("fields are not in a list")
    if stop > end or count > stop - pos:
        raise Malformed("fields go beyond their end")
    fields: list[Value] = []
    add = fields.append
    reader = None
    while count:
        count -= 1
        code = data[pos]
        if code == 0x40:
            add(None)
            pos += 1
        elif code == 0x52 or code == 0x53 or code == 0x50:
            add(data[pos + 1])
            pos += 2
        elif code == 0x43 or code == 0x44:
            add(0)
            pos += 1
        elif code == 0x41 or code == 0x42:
            add(code == 0x41)
            pos += 1
        elif code == 0x70:
            add(_u32(data, pos + 1)[0])
            pos += 5
        elif code == 0xA0:
            size = data[pos + 1]
            pos += 2
            add(data[pos : pos + size])
            pos += size
        elif code == 0xA1 or code == 0xA3:
            size = data[pos + 1]
            pos += 2
            add(data[pos : pos + size].decode())
            pos += size
        elif code == 0x80:
            number = _u64(data, pos + 1)[0]
            add(number if number <= 0xFFFFFFFF else ULong(number))
            pos += 9
        elif code == 0x56 and data[pos + 1] < 2:
            add(data[pos + 1] == 1)
            pos += 2
        elif code == 0 and data[pos + 1] == 0x53 and data[pos + 3] == 0x45:
            add(Described(ULong(data[pos + 2]), []))  # as most outcomes are
            pos += 4
        elif code == 0 and data[pos + 1] == 0x53 and data[pos + 3 : pos + 6] == b"\xc0\x01\x00":
            add(Described(ULong(data[pos + 2]), []))  # the same, longer
            pos += 6
        else:
            if reader is None:
                reader = Reader(data, pos, stop)
            reader.pos = pos
            add(_plain(reader.value()))
            pos = reader.pos
    if pos != stop:
        raise Malformed("fields are not as long as they say")
    return fields, pos


_PLAIN = {UShort: int, Symbol: str, int: Long}


def _plain(value: Value) -> Value:
    to = _PLAIN.get(type(value))
    return value if to is None else to(value)


_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def skip(data: bytes, pos: int) -> int:
    """Returns the end of the value that begins here, perhaps beyond the data. Raises Malformed."""
    try:
        code = data[pos]
        while code == 0:
            pos = _skip_descriptor(data, pos + 1)
            code = data[pos]
        kind = code >> 4
        if kind in (0xA, 0xC, 0xE):
            return pos + 2 + data[pos + 1]
        if kind in (0xB, 0xD, 0xF):
            return pos + 5 + int(_u32(data, pos + 1)[0])
        return pos + 1 + _WIDTHS[kind]
    except (IndexError, KeyError, error) as problem:
        raise Malformed(f"a value cannot be read: {problem}") from None


def _skip_descriptor(data: bytes, pos: int) -> int:
    """A number or a symbol."""
    code = data[pos]
    if code in (0x44, 0x53, 0x80, 0xA3, 0xB3):
        return skip(data, pos)
    raise Malformed("a descriptor is neither a number nor a symbol")


def sections(data: bytes) -> list[tuple[int, int, int, int]]:
    """The sections of a message (3.2): code, where it begins, where its value does, its end.

    Raises Malformed.
    """
    found = []
    pos, end = 0, len(data)
    while pos < end:
        if end - pos > 3 and data[pos] == 0 and data[pos + 1] == 0x53:
            code, at = data[pos + 2], pos + 3
        else:
            code, at = _section_code(data, pos, end)
        if not 0x70 <= code <= 0x78:
            raise Malformed(f"a message has no section {code:#x}")
        stop = skip(data, at)
        if stop > end:
            raise Malformed("a section goes beyond the message")
        found.append((code, pos, at, stop))
        if len(found) > SECTIONS_MAX:
            raise Malformed(f"a message has more than {SECTIONS_MAX} sections")
        pos = stop
    return found


SECTIONS_MAX = 100_000  # a batch has one for each of its messages


_SECTION_NAMES = {
    "amqp:header:list": 0x70, "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72, "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74, "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76, "amqp:amqp-value:*": 0x77, "amqp:footer:map": 0x78,
}  # fmt: skip


def _section_code(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if data[pos] != 0:
        raise Malformed("a message is not made of sections")
    reader = Reader(data, pos + 1, end)
    found = reader.value()
    code = _SECTION_NAMES.get(found, -1) if isinstance(found, Symbol) else found
    return (code if isinstance(code, int) else -1), reader.pos
