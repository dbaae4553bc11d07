"""Rows in columns: the same, whichever way they are made."""

from posthouse.broker import payload
from posthouse.broker.arrow_segments import BATCH_ROWS, SCHEMA, batches
from posthouse.broker.rows import rows
from posthouse.core.message import Envelope, NewMessage, encode_envelope, timestamp
from posthouse.core.records import Completed, Locked, Sent
from posthouse.store.frames import Frame

FULL = Envelope(
    id="m", content_type="text/plain", subject="s", correlation_id="c", to="t", reply_to="r",
    reply_to_session_id="two", trace="00-1", session_id="one", partition_key="one",
    properties={"n": 1, "at": timestamp(5)},
)  # fmt: skip


def a_frame(first: int, messages: list[NewMessage]) -> Frame:
    size = sum(len(each.body) for each in messages)
    sent = Sent("orders", 1_000, 7, size, messages)
    done = Completed("orders", [3], [15], [2])
    entries: list[payload.Entry] = [("shop", sent), ("shop", done), ("shop", sent)]
    count = 2 * len(messages) + 1
    return Frame(1, 1, first, count, first, 1_005, payload.encode(entries))


def same_by_columns(frame: Frame) -> None:
    [batch] = batches([frame])
    expected = [
        {name: getattr(row, name) for name in SCHEMA.names}
        for row in rows(payload.entries(frame), frame.time_ms)
    ]
    plain = batch
    for at, name in enumerate(SCHEMA.names):
        if name in ("time", "due", "expires", "until"):
            plain = plain.set_column(at, name, batch.column(name).cast("int64"))
    assert plain.to_pylist() == expected


def test_what_was_sent_together_is_the_same_column_by_column() -> None:
    kinds = [
        NewMessage(encode_envelope(FULL), b"body", b"native", "one", 9, 60_000, 2_000, 62_000),
        NewMessage(encode_envelope(Envelope()), b""),
        NewMessage(b"\xff", b"of which nothing is known"),
    ]
    for many in (1, 3, 400):
        same_by_columns(a_frame(50, kinds * many))


def test_what_was_delivered_and_completed_together_is_the_same_column_by_column() -> None:
    for many in (1, 8, 1_300):
        numbers, small = list(range(20, 20 + many)), [each % 100 for each in range(many)]
        records: list[payload.Record] = [
            Locked("orders", 1_000, numbers, 5, 31_000, 4, 0, ["m"] * many, small, [2] * many),
            Locked("orders", 1_000, numbers, 5, 31_000, counts=[]),
            Completed("orders", numbers, [*small[1:], None], []),
            Completed("orders", numbers),
        ]
        entries = [("shop", each) for each in records]
        same_by_columns(Frame(1, 1, 50, 4 * many, 50, 1_005, payload.encode(entries)))


def test_batches_are_neither_long_nor_large() -> None:
    small = [NewMessage(encode_envelope(Envelope()), b"x")] * 10_000
    found = list(batches([a_frame(1, small), a_frame(20_002, small)]))
    assert [each.num_rows <= BATCH_ROWS + 512 for each in found] == [True] * len(found)
    positions = [at for each in found for at in each.column("position").to_pylist()]
    assert positions == list(range(1, 40_003))
    large = [NewMessage(encode_envelope(Envelope()), b"x" * 100_000)] * 200
    assert max(each.nbytes for each in batches([a_frame(1, large)])) < 9 << 20
