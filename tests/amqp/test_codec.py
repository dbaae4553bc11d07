"""Every type there and back, in every encoding, and what hostile bytes come to."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.amqp.decode import DEPTH_MAX, Reader, decode, read_fields, sections, skip
from posthouse.amqp.encode import encode
from posthouse.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
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

# Every encoding of 1.6, and what it is.
ENCODINGS: list[tuple[str, Value]] = [
    ("40", None), ("41", True), ("42", False), ("5601", True), ("5600", False),
    ("50ff", UByte(255)), ("60ffff", UShort(65_535)),
    ("43", UInt(0)), ("52ff", UInt(255)), ("70ffffffff", UInt(2**32 - 1)),
    ("44", ULong(0)), ("53ff", ULong(255)), ("80ffffffffffffffff", ULong(2**64 - 1)),
    ("5180", Byte(-128)), ("617fff", Short(32_767)),
    ("5480", Int(-128)), ("7180000000", Int(-(2**31))),
    ("5580", -128), ("818000000000000000", -(2**63)),
    ("723f800000", Float(1)), ("823ff0000000000000", 1.0),
    ("7400000001", Decimal(0x74, b"\0\0\0\x01")),
    ("840000000000000001", Decimal(0x84, bytes(7) + b"\x01")),
    ("94" + "00" * 15 + "01", Decimal(0x94, bytes(15) + b"\x01")),
    ("730001f600", Char("\U0001f600")), ("83ffffffffffffffff", Timestamp(-1)),
    ("98" + "01" * 16, UUID(bytes=b"\x01" * 16)),
    ("a00161", b"a"), ("b00000000161", b"a"),
    ("a102c3a9", "é"), ("b100000002c3a9", "é"),
    ("a30161", Symbol("a")), ("b30000000161", Symbol("a")),
    ("45", []), ("c0020140", [None]), ("d0000000050000000140", [None]),
    ("c104025500" "40", {0: None}), ("d1000000070000000255" "0040", {0: None}),
    ("e00402550102", Array(0x55, [1, 2])), ("f000000007000000025501" "02", Array(0x55, [1, 2])),
    ("00532440", Described(ULong(0x24), None)),
    ("00a3016140", Described(Symbol("a"), None)),
]  # fmt: skip


@pytest.mark.parametrize(("data", "value"), ENCODINGS)
def test_every_encoding_is_read(data: str, value: Value) -> None:
    found = decode(bytes.fromhex(data))
    assert found == value
    assert type(found) is type(value)
    assert skip(bytes.fromhex(data), 0) == len(data) // 2


SIMPLE = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.text(), st.binary(), st.uuids(), st.text("abc:-").map(Symbol),
    st.integers(0, 255).map(UByte), st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt), st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte), st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int), st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(width=32, allow_nan=False).map(Float), st.characters().map(Char),
    st.binary(min_size=8, max_size=8).map(lambda data: Decimal(0x84, data)),
)  # fmt: skip
VALUES = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.builds(Described, st.integers(0, 2**64 - 1).map(ULong), inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_as_it_was(value: Value) -> None:
    data = encode(value)
    assert decode(data) == value
    assert skip(data, 0) == len(data)
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (0x81, [-(2**63), 5]), (0x55, [-1]), (0x71, [7]), (0x54, [-7]), (0x61, [-300]),
        (0x51, [-3]), (0x50, [3]), (0x60, [300]), (0x70, [1 << 31]), (0x52, [9]), (0x53, [9]),
        (0x80, [1 << 63]), (0x83, [0]), (0x82, [0.5]), (0x72, [0.5]), (0x56, [True, False]),
        (0x98, [UUID(int=5)]), (0xB1, ["é", ""]), (0xA1, ["é"]), (0xA3, [Symbol("a")]),
        (0xB3, [Symbol("a")]), (0xA0, [b"x"]), (0xB0, [b"x"]), (0x73, ["a"]), (0x40, [None, None]),
        (0x74, [Decimal(0x74, b"abcd")]), (0x84, [Decimal(0x84, b"abcdefgh")]),
        (0x94, [Decimal(0x94, b"abcdefgh" * 2)]), (0x81, []), (0x81, range(1000)),
    ],
)  # fmt: skip
def test_arrays_are_of_one_type(code: int, values: list[Value]) -> None:
    found = decode(encode(Array(code, values)))
    assert isinstance(found, Array)
    assert (found.code, list(found)) == (code, list(values))


def test_arrays_of_described_values_are_read() -> None:
    found = decode(bytes.fromhex("e00702005324550102"))
    assert found == [Described(ULong(0x24), 1), Described(ULong(0x24), 2)]
    assert decode(encode(found)) == list(found)


HOSTILE = [
    "f0" + "00000005" + "80000000" + "40",  # two thousand million nulls
    "f0" + "00000005" + "00ffffff" + "41",
    "f0" + "00000005" + "00ffffff" + "45",
    "f0" + "00000005" + "00ffffff" + "43",
    "d0" + "00000004" + "ffffffff",
    "d0" + "ffffffff" + "00000001" + "40",
    "d0" + "00000002" + "00000001" + "4040",
    "c0" + "00" + "01" + "40",
    "c1" + "03" + "01" + "4040",  # a key without a value
    "c1" + "05" + "02" + "c00100" + "40",  # a list for a key
    "a0ff", "b0ffffffff", "730000d800",
    "a1", "a102c328", "a301ff", "5602", "73ffffffff", "7300110000",
    "00", "0000", "00" * 10_000, "00" * 10_000 + "40", "3f", "ff", "", "70000000",
    "c002" + "02" + "40",
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_bytes_are_malformed(data: str) -> None:
    with pytest.raises(Malformed):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize("key", [UUID(int=1), 0.5, Decimal(0x74, bytes(4)), Described(1, 2)])
def test_keys_whose_hash_a_sender_could_choose_are_malformed(key: Value) -> None:
    with pytest.raises(Malformed, match="key"):
        decode(encode({key: None}))


def test_nesting_has_an_end() -> None:
    def nested(depth: int) -> bytes:
        data = b"\x40"
        for _ in range(depth):
            data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
        return data

    decode(nested(DEPTH_MAX))
    with pytest.raises(Malformed, match="nested"):
        decode(nested(DEPTH_MAX + 1))


def test_many_small_arrays_do_not_become_much() -> None:
    """Each of ten thousand arrays says that it has ten thousand nulls."""
    one = b"\xf0" + struct.pack(">II", 5, 10_000) + b"\x40"
    many = b"\xd0" + struct.pack(">II", 4 + 10_000 * len(one), 10_000) + one * 10_000
    with pytest.raises(Malformed, match="too many"):
        decode(many)


@given(VALUES, st.data())
def test_a_changed_byte_gives_a_value_or_malformed(value: Value, draw: st.DataObject) -> None:
    data = bytearray(encode([value, value]))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for read in (decode, lambda each: read_fields(each, 0, len(each)), sections):
        try:
            read(bytes(data))
        except Malformed:
            continue


def test_fields_are_read_as_values_are_however_they_are_written() -> None:
    """Truths in a byte, and outcomes, which are read in line: there is one for each message."""
    content = "5600 5601 00532445 005326c00100 00532345 41"
    data = bytes.fromhex(content)
    fields, end = read_fields(b"\xc0" + bytes((len(data) + 1, 6)) + data, 0, len(data) + 3)
    reader = Reader(data, 0, len(data))
    assert fields == [reader.value() for _ in range(6)]
    assert (end, reader.pos) == (len(data) + 3, len(data))
    described = [each for each in fields if isinstance(each, Described)]
    assert [type(each.descriptor) for each in described] == [ULong] * 3
    assert described[0].value is not described[1].value


@pytest.mark.parametrize("content", ["5602", "56", "005324", "00532445ff", "005326c001", "0053"])
def test_a_field_that_is_cut_short_or_none_is_malformed(content: str) -> None:
    data = bytes.fromhex(content)
    with pytest.raises(Malformed):
        read_fields(b"\xc0" + bytes((len(data) + 1, 1)) + data, 0, len(data) + 3)
    behind = b"\xc0" + bytes((len(data) + 1, 1)) + data + b"\x45\x01\x00"  # it ends before that
    with pytest.raises(Malformed):
        read_fields(behind, 0, len(behind))


def test_fields_are_plain() -> None:
    data = encode([UInt(5), ULong(7), UByte(1), Symbol("a"), "b", b"c", None, True, UShort(3), 4])
    assert read_fields(data, 0, len(data)) == (
        [5, 7, 1, "a", "b", b"c", None, True, 3, 4],
        len(data),
    )
    fields, _ = read_fields(data, 0, len(data))
    assert type(fields[0]) is int
    assert type(fields[-1]) is not int  # it has a sign
    wide = encode([ULong(1 << 32), Int(5)])
    assert int not in map(type, read_fields(wide, 0, len(wide))[0])


@pytest.mark.parametrize("data", ["c10100", "c002ff40", "c0ff0140", "d000000004ffffffff", "c004"
                                  "02a105", "40", "c0030270", ""])  # fmt: skip
def test_fields_that_are_none_are_malformed(data: str) -> None:
    with pytest.raises(Malformed):
        read_fields(bytes.fromhex(data), 0, len(data) // 2)


def test_a_reader_stays_within_its_bounds() -> None:
    reader = Reader(bytes.fromhex("a00461626364"), 0, 4)
    with pytest.raises(Malformed):
        reader.value()
