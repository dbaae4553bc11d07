"""Records: their bytes are a promise.

`golden_records.txt` holds one line a kind: its name and its bytes in hex. The test fails when the
encoding of a record changes, on purpose or not; then old journals could not be read.
"""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from posthouse.core.message import NewMessage, Note, Properties, size_bytes, timestamp, uuid
from posthouse.core.model import Grant, QueueProperties, Receiver
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    Activated,
    Cancelled,
    ClockSet,
    ClockStepped,
    ClockTurnedBack,
    Completed,
    Copies,
    DeadLettered,
    Deferred,
    Dropped,
    Expired,
    Forgotten,
    Kept,
    Locked,
    MessagesRestored,
    Missing,
    Moved,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueRestored,
    QueueUpdated,
    ReaderRemoved,
    ReaderSet,
    ReceiverAttached,
    ReceiverDetached,
    Relocked,
    Renewed,
    Resubmitted,
    Returned,
    Routed,
    RuleRemoved,
    RuleSet,
    ScheduleCancelled,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    SubscriptionCreated,
    Taken,
    Woken,
    decode,
    encode,
    head,
    is_kept,
    span,
)
from posthouse.core.recurrence import Cron
from posthouse.core.rules import CorrelationFilter, FalseFilter, PatternFilter, Rule, SqlFilter

GOLDEN = Path(__file__).with_name("golden_records.txt")
DOCUMENT = Path(__file__).parents[2] / "docs" / "records.md"

PROPERTIES = QueueProperties(
    lock_ms=30_000,
    max_delivery=5,
    ttl_ms=86_400_000,
    max_bytes=1 << 30,
    max_messages=1_000,
    max_message_bytes=262_144,
    requires_session=True,
    duplicate_detection=True,
    duplicate_window_ms=60_000,
    dead_letter_expired=True,
    idle_delete_ms=3_600_000,
    status="receive-disabled",
    metadata="owner: ann",
    order="priority",
    grouping="session",
    counting="abandon",
)
MESSAGES = [
    NewMessage(b"\x81\xa2id\xa1m", b"body", b"native", "x", 9, 60_000, 2_000, 62_000),
    NewMessage(b"\x80", b""),
]
CHANGES: Properties = {
    "nothing": None,
    "yes": True,
    "number": -5,
    "fraction": 0.5,
    "text": "größe",
    "bytes": b"\x00\xff",
    "time": timestamp(1_700_000_000_000),
    "uuid": uuid(bytes(range(16))),
}

NOTE = Note(
    CHANGES, "bad", "no colour", "orders", 3, 1_000, 60_000, removed=["colour"],
    fields={"subject": "new"},
)  # fmt: skip
COPIES = Copies("news/$sub/a", 7, [4, 5], [0, 61_014], [None, NOTE])
RULES = [
    Rule("$Default", created_ms=1_000),
    Rule("sql", SqlFilter("colour = @c", {"c": "red"}), "SET n = @n", {"n": 5}, 1_001),
    Rule("correlation", CorrelationFilter({"subject": "s"}, CHANGES)),
    Rule("pattern", PatternFilter("a.>", "nats")),
    Rule("nothing", FalseFilter()),
]

EVERY: list[Kept | OfNamespaces] = [
    Started(3, 0xDEADBEEF, 1_700_000_000_000),
    QueueCreated("orders", 1_000, PROPERTIES),
    QueueUpdated("orders", 1_001, QueueProperties()),
    QueueDeleted("orders", 1_002, idle=True),
    Sent("orders", 1_003, 7, 42, MESSAGES, ["k", None], 601_003),
    Activated("orders", 2_000, [7, 9], 12),
    Woken("orders", [3, 1]),
    Cancelled("orders", [7]),
    Locked("orders", 1_004, [1, 2], 5, 61_004, 8, 8, ["m", ""]),
    Taken("orders", 1_005, [3], 8),
    Completed("orders", [1, 2]),
    Returned("orders", [4], uncounted=True, until_ms=5_000, properties=CHANGES),
    Deferred("orders", [5], CHANGES),
    DeadLettered("orders", 1_006, [6], 1, "bad", "no colour", CHANGES),
    Expired("orders", [8]),
    Renewed("orders", [2], 99_000),
    SessionAccepted("orders", 1_006, "x", 9, 61_006, 8, bound=True),
    SessionRenewed("orders", "x", 70_000),
    SessionReleased("orders", "x", expired=True),
    SessionStateSet("orders", "x", 1_007, b"half way"),
    Resubmitted("orders/$dead", 1_008, [1, 2], "orders", 20, [0, 61_008], noted=True),
    Purged("orders", [20]),
    Forgotten("orders", 601_003, 2),
    Moved("orders", [21, 22], MESSAGES),
    ClockStepped(1_008, 7_000),
    ClockSet(9_000_000, 8_000_000),
    Routed("news", 1_014, [4, 5], [COPIES, Copies("news/$sub/b", 1, [5])]),
    SubscriptionCreated("news/$sub/a", 1_015, QueueProperties(forward_to="orders"), RULES),
    RuleSet("news/$sub/a", 1_016, RULES[1]),
    RuleRemoved("news/$sub/a", 1_017, "$Default"),
    Dropped("orders", [23]),
    ScheduleSet("beat", 1_018, "orders", Cron("30 14 * * *", "Europe/Berlin"), MESSAGES[0], 2_000),
    ScheduleFired("beat", 2_001, 2_000, 3_000, "It was full."),
    SchedulePaused("beat", 2_002),
    ScheduleResumed("beat", 2_003, 4_000),
    ScheduleCancelled("beat", 2_004),
    ClockTurnedBack(2_005, 9_000, [("beat", 3_000)], scheduled=True),
    QueueRestored("orders", 1, 2, 3, 24, True, [("x", b"half way", 1_007)], [("k", 601_003, 7)]),
    MessagesRestored("orders", [21, 23], MESSAGES, [0, 3], [5, 6], [1, 2], [0, 7], [NOTE, None]),
    Relocked("orders", 1_019, [2], 6, 99_000),
    NamespaceCreated("shop", 1_009, 3, 5),
    NamespaceDeleted("shop"),
    Missing(7),
    AccountSet("ann", 1_010, [Grant("shop", "orders*", ["send", "listen"])], [b"sealed", b"old"]),
    AccountRevoked("ann", 1_011),
    ReaderSet("spark", 1_012, 42),
    ReaderRemoved("spark", 1_013),
]
by_kind = pytest.mark.parametrize("record", EVERY, ids=lambda each: type(each).__name__)


def fields(record: Kept | OfNamespaces) -> list[object]:
    """A record's encoding as a list: its kind's number, then its fields."""
    decoded = msgspec.msgpack.decode(encode(record))
    assert isinstance(decoded, list)
    return decoded


def test_every_kind_is_here() -> None:
    assert [type(each) for each in EVERY] == list(get_args(Kept) + get_args(OfNamespaces))


@by_kind
def test_a_record_is_encoded_and_decoded_to_itself(record: Kept | OfNamespaces) -> None:
    assert decode(encode(record)) == record


@by_kind
def test_the_bytes_of_a_record_do_not_change(record: Kept | OfNamespaces) -> None:
    """The last line of a kind is what is written now; those before it are read for ever."""
    golden = [line.split() for line in GOLDEN.read_text().splitlines()]
    written = [bytes.fromhex(data) for name, data in golden if name == type(record).__name__]
    assert [decode(data) for data in written] == [record] * len(written)
    assert encode(record) == written[-1]


def test_every_golden_record_is_of_a_kind() -> None:
    names = [line.split()[0] for line in GOLDEN.read_text().splitlines()]
    assert list(dict.fromkeys(names)) == [type(each).__name__ for each in EVERY]


@by_kind
def test_an_old_record_without_its_optional_fields_is_read(record: Kept | OfNamespaces) -> None:
    required = len(record.__struct_fields__) - len(record.__struct_defaults__)
    short = msgspec.msgpack.encode(fields(record)[: 1 + required])
    assert decode(short) == type(record)(*msgspec.structs.astuple(record)[:required])


@by_kind
def test_a_new_record_with_fields_unknown_yet_is_read(record: Kept | OfNamespaces) -> None:
    assert decode(msgspec.msgpack.encode([*fields(record), "new", 5])) == record


def test_an_old_message_without_its_optional_fields_is_read() -> None:
    data = msgspec.msgpack.encode([5, "orders", 1_003, 7, 42, [[b"\x80", b"body"]]])
    assert decode(data) == Sent("orders", 1_003, 7, 42, [NewMessage(b"\x80", b"body")])


def test_a_new_message_with_fields_unknown_yet_is_read() -> None:
    message = [b"\x80", b"body", None, None, 4, None, 0, 0, "new"]
    data = msgspec.msgpack.encode([5, "orders", 1_003, 7, 42, [message]])
    assert decode(data) == Sent("orders", 1_003, 7, 42, [NewMessage(b"\x80", b"body")])


def test_queue_properties_may_lack_fields_or_have_new_ones() -> None:
    data = msgspec.msgpack.encode([2, "orders", 1_000, {"lock_ms": 5, "colour": "red"}])
    assert decode(data) == QueueCreated("orders", 1_000, QueueProperties(lock_ms=5))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x92\x63\x01", b"\x91\x01", b"\xff" * 9])
def test_other_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


@by_kind
def test_a_record_covers_a_position_for_each_of_its_messages(record: Kept | OfNamespaces) -> None:
    expected = {
        Sent: 2, Activated: 2, Woken: 2, Locked: 2, Completed: 2, Resubmitted: 2, Forgotten: 2,
        Moved: 2, MessagesRestored: 2, Missing: 7, Routed: 5,
    }  # fmt: skip
    assert span(record) == expected.get(type(record), 1)


@by_kind
def test_a_record_can_be_cut_at_each_of_its_positions(record: Kept | OfNamespaces) -> None:
    for count in range(1, span(record)):
        part = head(record, count)
        assert span(part) == count
        if isinstance(record, Routed):
            continue
        lists = [len(each) for each in msgspec.structs.astuple(part) if isinstance(each, list)]
        assert all(each == count for each in lists)
        if isinstance(record, Sent) and isinstance(part, Sent):
            assert part.size_bytes == sum(map(size_bytes, record.messages[:count]))
    assert head(record, span(record)) is record


def test_what_concerns_connections_is_not_kept() -> None:
    assert not is_kept(ReceiverAttached(Receiver(1, "orders")))
    assert not is_kept(ReceiverDetached(1))
    assert is_kept(Started(1, 2, 3))


@by_kind
def test_the_document_lists_every_kind_with_its_fields(record: Kept | OfNamespaces) -> None:
    kind = type(record)
    fields = ", ".join(kind.__struct_fields__)
    assert f"| {kind.__struct_config__.tag} | {kind.__name__} | {fields} |" in DOCUMENT.read_text()


def test_copies_that_are_alike_are_said_once() -> None:
    """They come before the others, and can be told apart from them nowhere but here."""
    other = Copies("news/$sub/b", 1, [5])
    short = Routed("news", 1, [4, 5], [other], {"news/$sub/a": 7})
    long = Routed("news", 1, [4, 5], [Copies("news/$sub/a", 7, [4, 5]), other])
    assert short.every() == long.copies
    assert decode(encode(short)) == short
    assert [head(short, count) for count in range(span(short))] == [
        head(long, count) for count in range(span(long))
    ]
