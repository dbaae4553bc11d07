"""The order in which a relay sends the rows that it has read."""

from hypothesis import given
from hypothesis import strategies as st

from posthouse.bridge.errors import PublishFailed
from posthouse.bridge.sending import Pending, SendQueue

REFUSED = PublishFailed("no", transient=False)


def a_row(id: int, key: str = "", lane: int = 0, token: int = 1) -> Pending:
    return Pending(id, f"e{id}", lane, token, key, "s", b"", {}, 0, 0.0)


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=30), st.data())
def test_whatever_fails_a_key_has_one_event_in_flight_and_keeps_its_order(
    keys: list[str], data: st.DataObject
) -> None:
    queue, flying = SendQueue(), list[Pending]()
    queue.add(a_row(id, key) for id, key in enumerate(keys))
    sent: list[Pending] = []
    failures = data.draw(st.integers(0, 10))
    while queue.is_ready or flying:
        flying += queue.take(data.draw(st.integers(0 if flying else 1, 4)))
        held = [row.key for row in flying if row.key]
        assert len(held) == len(set(held))
        if not flying:
            continue
        row = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
        if failures and data.draw(st.booleans()):
            failures -= 1
            queue.send_again([row])
        else:
            queue.was_stored(row, 1)
            sent.append(row)
    assert sorted(row.id for row in sent) == list(range(len(keys)))
    for key in "abc":
        ids = [row.id for row in sent if row.key == key]
        assert ids == sorted(ids)


def test_a_refused_row_lets_its_key_go_on() -> None:
    queue = SendQueue()
    queue.add([a_row(1, "a"), a_row(2, "a")])
    [first] = queue.take(5)
    queue.was_refused(first, REFUSED, holds_key=False)
    assert [row.id for row in queue.take(5)] == [2]


def test_in_strict_order_a_refused_row_holds_its_key_and_no_other() -> None:
    queue = SendQueue()
    queue.add([a_row(1, "a"), a_row(2, "a"), a_row(3, "b")])
    first, _ = queue.take(5)
    queue.was_refused(first, REFUSED, holds_key=True)
    assert not queue.is_ready
    assert set(queue.known) == {1, 3}, "the rows behind it are read again, when it lets them"


def test_rows_that_were_read_before_a_refusal_was_marked_stay_behind_it() -> None:
    queue = SendQueue()
    queue.add([a_row(1, "a")])
    [first] = queue.take(1)
    reading = queue.begin_read()
    queue.was_refused(first, REFUSED, holds_key=True)
    queue.forget([first])  # it is marked, while the read goes on
    queue.add([a_row(2, "a")])
    queue.end_read(reading)
    assert not queue.known
    reading = queue.begin_read()  # the database leaves out what is held up now
    queue.end_read(reading)
    queue.add([a_row(1, "a")])
    assert set(queue.known) == {1}


def test_rows_of_lanes_that_were_lost_are_forgotten_unless_they_are_in_flight() -> None:
    queue = SendQueue()
    queue.add([a_row(1, "a", lane=1), a_row(2, "a", lane=1), a_row(3, lane=2), a_row(4, lane=1)])
    [flying] = queue.take(1)
    queue.forget_lanes({1: 2, 2: 1})  # another had lane 1 in between
    assert set(queue.known) == {1, 3}
    queue.was_stored(flying, 9)
    assert [row.id for row in queue.take(5)] == [3]


def test_a_row_is_known_until_it_is_marked() -> None:
    queue = SendQueue()
    queue.add([a_row(1)])
    [row] = queue.take(1)
    queue.was_stored(row, 9)
    assert set(queue.known) == {1}
    assert queue.lanes_in_flight == {0}
    queue.stored.clear()
    queue.forget([row])
    assert not queue.known
