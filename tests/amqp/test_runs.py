"""Deliveries that are told several at a time are the same as those told one by one."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.amqp.connection import Limits
from posthouse.amqp.events import Arrived, Event, Run
from posthouse.amqp.performatives import TRANSFER_HEAD
from posthouse.amqp.runs import Alike, runs_of
from posthouse.amqp.session import MASK, Link, Tags
from tests.amqp.pair import Pair

Told = tuple[str, int, bytes, bytes | None, bool]


def flat(events: Sequence[Event]) -> list[Told]:
    """Each delivery, however it was told: its link, id, tag, payload, whether it is settled."""
    found: list[Told] = []
    for each in events:
        if isinstance(each, Arrived):
            found.append(
                (each.link.name, each.delivery_id, each.tag, each.payload, each.settled)
            )  # fmt: skip
        elif isinstance(each, Run):
            deliveries = zip(each.delivery_ids, each.tags, each.payloads, strict=True)
            found += [(each.link.name, *delivery, each.settled) for delivery in deliveries]
    return found


def runs(events: Sequence[Event]) -> list[int]:
    return [len(each.delivery_ids) for each in events if isinstance(each, Run)]


def joined(*, takes_runs: bool, most_bytes: int = 0, frame_bytes: int = 1 << 20) -> "Joined":
    pair = Pair(Limits(frame_bytes=frame_bytes))
    links = []
    for name in ("a", "b"):
        mine, theirs = pair.attach(sends=True, name=name, most_bytes=most_bytes)
        theirs.takes_runs = takes_runs
        theirs.grant(1_000)
        links.append((mine, theirs))
    pair.take()
    return Joined(pair, [mine for mine, _ in links], [theirs for _, theirs in links])


class Joined:
    """A client with two links, each on a session of its own."""

    def __init__(self, pair: Pair, mine: list[Link], theirs: list[Link]) -> None:
        self.pair, self.mine, self.theirs = pair, mine, theirs

    def arrive(self, cuts: Sequence[int]) -> list[Event]:
        """What has been sent comes in, cut into pieces at these places."""
        data = self.pair.client.take()
        places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        told: list[Event] = []
        for begin, end in pairwise(places):
            told += self.pair.server.receive(data[begin:end])
        return told

    def standing(self) -> list[tuple[int, int, int | None]]:
        return [
            (each.credit, each.delivery_count, each.session.next_incoming_id)
            for each in self.theirs
        ]


def test_what_is_written_alike_is_told_together() -> None:
    both = joined(takes_runs=True)
    numbers = [both.mine[0].send(b"%d" % at, b"tag%d" % at) for at in range(5)]
    told = both.arrive([])
    assert runs(told) == [4]  # all but the first, from which the others are known
    assert flat(told) == [
        ("a", n, b"tag%d" % at, b"%d" % at, False) for at, n in enumerate(numbers)
    ]
    assert both.standing()[0][:2] == (995, 5)


def test_who_does_not_want_it_is_told_one_by_one() -> None:
    both = joined(takes_runs=False)
    for _ in range(5):
        both.mine[0].send(b"x", b"tag")
    assert runs(both.arrive([])) == []


def test_a_delivery_in_parts_is_not_one_of_a_run() -> None:
    both = joined(takes_runs=True, frame_bytes=600)
    for payload in (b"a", b"b", bytes(2_000), b"c", b"d"):
        both.mine[0].send(payload, b"tag")
    told = both.arrive([])
    assert [payload for _, _, _, payload, _ in flat(told)] == [b"a", b"b", bytes(2_000), b"c", b"d"]


def test_what_is_too_large_is_told_as_such() -> None:
    both = joined(takes_runs=True, most_bytes=10)
    for payload in (b"a", b"b", bytes(11), b"c"):
        both.mine[0].send(payload, b"tag")
    assert [payload for _, _, _, payload, _ in flat(both.arrive([]))] == [b"a", b"b", None, b"c"]


def test_a_link_that_is_gone_gets_nothing() -> None:
    both = joined(takes_runs=True)
    for _ in range(3):
        both.mine[0].send(b"x", b"tag")
    assert len(flat(both.arrive([]))) == 3
    both.theirs[0].detach()
    for _ in range(3):
        both.mine[0].send(b"x", b"tag")
    assert flat(both.arrive([])) == []


@pytest.mark.parametrize("at", range(4, 60))
@pytest.mark.parametrize("value", [0x00, 0x40, 0x52, 0x70, 0xFF])
def test_a_byte_that_is_changed_is_seen(at: int, value: int) -> None:
    """Whatever becomes of a frame that is a little different, it is the same with runs."""
    found = []
    for takes_runs in (False, True):
        both = joined(takes_runs=takes_runs)
        for number in range(3):
            both.mine[0].send(b"payload", b"tag%d" % number)
        data = bytearray(both.pair.client.take())
        last = data.rindex(TRANSFER_HEAD) - 8
        if last + at < len(data):
            data[last + at] = value
        told = list(both.pair.server.receive(bytes(data)))
        found.append((flat(told), both.pair.server.closed, both.pair.server.take()))
    assert found[0] == found[1]


sends = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 0, 1)),  # which link
        st.binary(max_size=30) | st.integers(0, 1_500).map(bytes),
        st.binary(min_size=1, max_size=4),
        st.booleans(),
    ),
    max_size=12,
)


@given(sends, st.lists(st.integers(0, 1 << 20), max_size=4), st.sampled_from((0, MASK - 3)))
def test_it_comes_to_the_same(
    sent: list[tuple[int, bytes, bytes, bool]], cuts: list[int], first: int
) -> None:
    found = []
    for takes_runs in (False, True):
        both = joined(takes_runs=takes_runs, most_bytes=1_200, frame_bytes=1_000)
        for link in both.mine:
            link.session.next_delivery_id = first or link.session.next_delivery_id
        for which, payload, tag, settled in sent:
            both.mine[which].send(payload, tag, settled=settled)
        told = both.arrive(cuts)
        found.append((flat(told), both.standing(), both.pair.server.take()))
    assert found[0] == found[1]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from((10, 11, 40)), st.booleans()),
             min_size=1, max_size=6),
    st.lists(st.integers(0, 1 << 20), max_size=3),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
)  # fmt: skip
def test_many_of_one_size_come_to_the_same(
    sent: list[tuple[int, int, bool]], cuts: list[int], changed: list[tuple[int, int]]
) -> None:
    found = []
    for takes_runs in (False, True):
        both = joined(takes_runs=takes_runs, frame_bytes=1_000)
        for count, size, settled in sent:
            for number in range(count):
                payload, tag = b"%0*d" % (size, number), b"%02d" % number
                both.mine[0].send(payload, tag, settled=settled)
        data = bytearray(both.pair.client.take())
        for at, value in changed:
            data[at % len(data)] = value
        both.pair.client.put(bytes(data))
        told = both.arrive(cuts)
        found.append((flat(told), both.pair.server.closed, both.pair.server.take()))
    assert found[0] == found[1]


# The other way.


@given(
    st.lists(st.tuples(st.integers(0, 900).map(bytes), st.integers(0, MASK << 32)),
             min_size=1, max_size=8),
    st.booleans(), st.sampled_from((0, MASK - 3)), st.sampled_from((600, 1 << 20)),
    st.integers(0, 10), st.binary(max_size=24), st.none() | st.integers(0, 900),
)  # fmt: skip
def test_what_is_sent_together_is_what_is_sent_one_by_one(
    deliveries: list[tuple[bytes, int]], settled: bool, first: int, frame_bytes: int, window: int,
    head: bytes, cut: int | None,
) -> None:  # fmt: skip
    found = []
    for together in (False, True):
        pair = Pair(client_limits=Limits(frame_bytes=frame_bytes))
        mine, theirs = pair.attach(sends=False)
        mine.grant(100)
        pair.take()
        session = theirs.session
        session.next_delivery_id = first or session.next_delivery_id
        session.remote_window = window
        if together:
            payloads, numbers = zip(*deliveries, strict=True)
            bodies = None if cut is None else [each[cut:] for each in payloads]
            heads = [each[:cut] for each in payloads]
            keep = None if settled else range(len(numbers))
            theirs.send_run(heads, Tags(head, numbers), keep, bodies)
        else:
            for at, (payload, number) in enumerate(deliveries):
                tag = head + number.to_bytes(8, "big")
                theirs.send(payload, tag, settled=settled, keep=at)
        found.append((
            pair.server.take(), theirs.credit, theirs.delivery_count,
            list(session.unsettled), list(theirs.unsettled.items()), session.remote_window,
            session.next_outgoing_id, session.next_delivery_id, len(session.pending),
        ))  # fmt: skip
    assert found[0] == found[1]


@given(st.lists(st.sampled_from("abc")))
def test_what_stands_several_times_in_a_row_is_a_run(given: list[str]) -> None:
    runs = [given[first:end] for first, end in runs_of(given)]
    assert [each for run in runs for each in run] == given
    assert all(len(set(run)) == 1 for run in runs)
    assert all(one[0] != other[0] for one, other in pairwise(runs))


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=9), st.integers(0, 9))
def test_payloads_of_one_size_are_as_a_list_of_them(payloads: list[bytes], first: int) -> None:
    whole = Alike(memoryview(b"".join(b"head" + each for each in payloads)), 4, 7)
    assert list(whole) == payloads
    assert len(whole) == len(payloads)
    assert [whole[at] for at in range(-len(payloads), len(payloads))] == payloads * 2
    assert whole[first:] == payloads[first:]
    with pytest.raises(IndexError):
        whole[len(payloads)]
    if first < len(payloads):
        assert list(whole.behind(first)) == payloads[first:]
        assert [b"".join(each) for each in zip(*whole.columns("1s2s"), strict=True)] == payloads
