"""What a few hostile bytes may cost AMQP's decoder, in steps, in memory, and in hashing."""

import struct
import tracemalloc
from contextlib import suppress
from functools import cache

import pytest

from posthouse.amqp.decode import (
    ALL_NUMBER_KEYS_MAX,
    DEPTH_MAX,
    KEYS_MAX,
    NUMBER_KEYS_MAX,
    VALUES_MAX,
    Reader,
    decode,
    read_fields,
)
from posthouse.amqp.encode import encode
from posthouse.amqp.types import Malformed, Value
from posthouse.core.commands import BATCH_MAX, Progress, Purge
from posthouse.core.message import ACTIVE
from tests.core.world import World
from tests.security.cost import steps_of

pytestmark = pytest.mark.alone

STEPS_MAX = 1_000_000  # that one input may cost: some 30 ms; most cost a thousandth of it


def list32(count: int, items: bytes) -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + len(items), count) + items


def map32(count: int, items: bytes) -> bytes:
    return b"\xd1" + struct.pack(">II", 4 + len(items), count) + items


def array32(count: int, items: bytes) -> bytes:
    return b"\xf0" + struct.pack(">II", 4 + len(items), count) + items


@cache
def colliding() -> list[int]:
    """Whole numbers that a dict finds at the end of a long walk only, each of the last of them.

    A dict of 2^16 places looks at h % 2^16, then at i * 5 + 1 plus what is left of h, of which five
    bits are dropped at each step. The first numbers lie on one such walk. The last ones begin
    elsewhere, and come to it before they come to a place that is free.
    """
    mask, at, walk = 0xFFFF, 0, dict[int, None]()
    for _ in range(40_000):
        walk[at] = None
        at = at * 5 + 1 & mask
    found = [*walk]
    for number in range(mask + 1, 32 * mask):
        at, left = number & mask, number
        while left and at in walk:
            left >>= 5
            at = at * 5 + left + 1 & mask
        if at in walk:
            found.append(number)
            if len(found) == 43_000:
                break
    return found


def number_map(numbers: list[int]) -> bytes:
    return map32(2 * len(numbers), b"".join(encode(n) + b"\x40" for n in numbers))


def cost_of(data: bytes) -> float:
    """In steps, until the decoder has read it, or found it to be malformed."""

    def read() -> None:
        with suppress(Malformed):
            decode(data)

    return steps_of(read)[0]


@pytest.mark.parametrize(
    "data",
    [
        number_map(colliding()),
        list32(700, b"".join(number_map(colliding()[-64:]) for _ in range(700))),
        map32(2_000_000, b"\xa1\x01k\x40" * 1_000_000),  # equal keys
        *(array32(1 << 31, code) for code in (b"\x40", b"\x41", b"\x45", b"\x43", b"\x44")),
        list32(10_000, array32(10_000, b"\x40") * 10_000),
        list32(1_000_000, b"\x40" * 1_000_000),
        list32(4_000_000, b"\x40" * 4_000_000),
        list32(500_000, b"\xa3\x00" * 500_000),
        b"\x00" * 10_000,
        b"\x00\x53\x10" * 10_000,
        list32(1, b"\xd0") * 3_000,
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd0\x00\x00\x00\x04\x00\x00\x00\x09",
    ],
)  # fmt: skip
def test_hostile_bytes_are_read_or_refused_at_once(data: bytes) -> None:
    assert cost_of(data) < STEPS_MAX


def test_keys_that_are_numbers_are_few() -> None:
    few = number_map(colliding()[-NUMBER_KEYS_MAX:])
    assert len(decode(few)) == NUMBER_KEYS_MAX
    with pytest.raises(Malformed, match="keys that are no text"):
        decode(number_map(colliding()[-NUMBER_KEYS_MAX - 1 :]))
    count = ALL_NUMBER_KEYS_MAX // NUMBER_KEYS_MAX
    assert len(decode(list32(count, few * count))) == count
    with pytest.raises(Malformed, match="all maps together"):
        decode(list32(count + 1, few * (count + 1)))


def test_keys_that_are_text_are_bounded_too() -> None:
    most: dict[Value, Value] = {f"key-{n}": n for n in range(KEYS_MAX)}
    assert decode(encode(most)) == most
    with pytest.raises(Malformed, match="more than 1000 keys"):
        decode(encode({**most, "one more": 1}))


def test_a_performative_is_held_to_it_as_well() -> None:
    fields = list32(1, number_map(colliding()[-NUMBER_KEYS_MAX - 1 :]))
    with pytest.raises(Malformed, match="keys that are no text"):
        read_fields(fields, 0, len(fields))


def test_values_are_counted_whatever_their_width() -> None:
    with pytest.raises(Malformed, match="too many values"):
        decode(list32(VALUES_MAX + 1, b"\x40" * (VALUES_MAX + 1)))
    many = list32(VALUES_MAX + 1, b"\x40" * (VALUES_MAX + 1))
    assert len(Reader(many, values_max=1 << 30).value()) == VALUES_MAX + 1


def test_nesting_ends() -> None:
    nested = b"\x45"
    for _ in range(DEPTH_MAX):
        nested = list32(1, nested)
    assert decode(nested) is not None
    with pytest.raises(Malformed, match="nested deeper"):
        decode(list32(1, nested))


@pytest.mark.parametrize(
    "item",
    [
        b"\x40", b"\x51\x81", b"\x54\x81", b"\x55\x81", b"\x60\xff\x07", b"\x61\x87\x07",
        b"\x71\x7f\x01\x01\x01", b"\x73\x00\x01\x01\x01", b"\x74abcd", b"\x81" + b"\x7f" * 8,
        b"\x98" + b"\x7f" * 16, b"\xa0\x02xy", b"\xa1\x02xy", b"\xa3\x00", b"\xa3\x01x",
        b"\xa3\x02xy",
    ],
)  # fmt: skip
def test_decoded_values_take_a_bounded_part_of_memory(item: bytes) -> None:
    many = list32(20_000, item * 20_000)
    packed = array32(20_000, item[:1] + item[1:] * 20_000) if len(item) > 1 else many
    for data in (many, packed):
        tracemalloc.start()
        kept = decode(data)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(kept) == 20_000
        assert taken < 40 * len(data)


def test_these_numbers_do_make_a_dict_slow() -> None:
    """Else what is tested here is worth nothing."""
    numbers = colliding()
    plain, _ = steps_of(lambda: dict.fromkeys(range(len(numbers))))
    slow, _ = steps_of(lambda: dict.fromkeys(numbers))
    assert slow > max(20 * plain, STEPS_MAX)


def test_sequences_of_messages_that_are_not_there_are_no_keys() -> None:
    """However they are chosen."""

    class Colliding(int):
        compared = 0

        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            Colliding.compared += 1
            return self is other

    world = World()
    queue = world.queue()
    world.send(queue, "one")
    numbers = [Colliding(n) for n in range(2, 2_002)]
    purge = Purge(queue, frozenset((ACTIVE,)), limit=BATCH_MAX, sequences=[1, 1, *numbers])
    assert world.do(purge).answer == Progress(1, None)
    assert Colliding.compared < 2 * len(numbers)
