"""Two peers of ours, one in each role: connections, sessions, links."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.amqp.connection import AMQP, SASL, Connection, Limits
from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import (
    Arrived,
    Attached,
    Begun,
    Closed,
    Detached,
    Disposed,
    Ended,
    Event,
    Flowed,
    Opened,
)
from posthouse.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    Transfer,
    error,
    read,
    rejected,
    write,
)
from posthouse.amqp.session import EMPTY_MAX, MASK, WINDOW
from posthouse.amqp.types import Described, Symbol, ULong, Value
from tests.amqp.pair import Pair, source, target


def kinds(events: list[Event]) -> list[type]:
    return [type(each) for each in events]


def payloads(events: list[Event]) -> list[bytes | None]:
    return [each.payload for each in events if isinstance(each, Arrived)]


def test_both_say_who_they_are() -> None:
    pair = Pair()
    (opened,) = pair.at_server
    assert isinstance(opened, Opened)
    assert (opened.open.container_id, opened.open.hostname) == ("client", "host")
    (answer,) = pair.at_client
    assert isinstance(answer, Opened)
    assert (answer.open.container_id, answer.open.idle_time_out) == ("server", 120_000)
    assert pair.client.idle_seconds == 60
    assert pair.server.idle_seconds is None


@pytest.mark.parametrize(("key", "fine"), [(b"key", True), (b"other", False)])
def test_sasl_lets_in_who_is_known(key: bytes, fine: bool) -> None:
    asked = []

    def authenticate(mechanism: str, response: bytes) -> bool:
        asked.append(mechanism)
        return response == b"\0name\0key"

    pair = Pair(authenticate=authenticate, sasl=("PLAIN", b"\0name\0" + key))
    assert asked == ["PLAIN"]
    assert kinds(pair.at_client) == [Opened if fine else Closed]
    assert kinds(pair.at_server) == [Opened if fine else Closed]


def test_a_mechanism_that_is_not_offered_is_not_asked_for() -> None:
    pair = Pair(sasl=("EXTERNAL", b""))
    assert kinds(pair.at_client) == [Closed]


def test_sasl_can_be_left_out() -> None:
    pair = Pair(sasl=None)
    assert kinds(pair.at_server) == kinds(pair.at_client) == [Opened]
    refusing = Pair(sasl=None, authenticate=lambda mechanism, response: False)
    assert kinds(refusing.at_server) == [Closed]


def test_another_protocol_is_told_which_one_is_spoken() -> None:
    server = Connection("s", authenticate=lambda mechanism, response: True)
    assert kinds(list(server.receive(b"AMQP\x01\x00\x09\x01"))) == [Closed]
    assert server.take() == SASL
    assert server.closed
    assert list(server.receive(b"more")) == []


def test_a_message_goes_there_and_is_settled() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=True)
    theirs.grant(10)
    pair.take()
    assert mine.credit == 10
    number = mine.send(b"hello", b"tag")
    (arrived,), _ = pair.take()
    assert isinstance(arrived, Arrived)
    assert (arrived.payload, arrived.tag, arrived.delivery_id) == (b"hello", b"tag", number)
    assert (arrived.settled, arrived.format, arrived.link) == (False, 0, theirs)
    theirs.settle([number], ACCEPTED)
    _, (disposed,) = pair.take()
    assert isinstance(disposed, Disposed)
    assert (disposed.delivery_ids, disposed.settled) == ([number], True)
    assert disposed.state == Described(ULong(0x24), [])
    assert not mine.session.unsettled
    assert (mine.credit, theirs.credit) == (9, 9)


def test_a_message_comes_back_and_is_settled() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    mine.grant(2)
    (flowed,), _ = pair.take()
    assert isinstance(flowed, Flowed)
    assert theirs.credit == 2
    number = theirs.send(b"hello", b"tag")
    _, (arrived,) = pair.take()
    assert isinstance(arrived, Arrived)
    mine.settle([number], ACCEPTED, settled=False)
    (disposed,), _ = pair.take()
    assert isinstance(disposed, Disposed)
    assert not disposed.settled
    assert not theirs.session.unsettled
    theirs.settle([number], ACCEPTED)
    _, (answered,) = pair.take()
    assert isinstance(answered, Disposed)
    assert answered.settled


def test_what_is_settled_at_once_is_not_remembered() -> None:
    pair = Pair()
    mine, _ = pair.attach(sends=True)
    mine.send(b"hello", b"", settled=True)
    (arrived,), _ = pair.take()
    assert isinstance(arrived, Arrived)
    assert arrived.settled
    assert not mine.session.unsettled


@pytest.mark.parametrize("size", [0, 400, 480, 512, 513, 5_000, 100_000])
@pytest.mark.parametrize("sends", [True, False])
def test_messages_larger_than_a_frame_go_in_parts(size: int, sends: bool) -> None:
    small = Limits(frame_bytes=512, first_frame_bytes=512)
    pair = Pair(small, small)
    mine, theirs = pair.attach(sends=sends)
    body = bytes(at % 251 for at in range(size))
    (mine if sends else theirs).send(body, b"tag", format=0x80013700)
    at_server, at_client = pair.take()
    (arrived,) = at_server if sends else at_client
    assert isinstance(arrived, Arrived)
    assert (arrived.payload, arrived.format) == (body, 0x80013700)


def test_a_message_that_is_too_large_is_told_without_its_content() -> None:
    small = Limits(frame_bytes=512, first_frame_bytes=512)
    pair = Pair(small, small)
    mine, _ = pair.attach(sends=True, most_bytes=1_000)
    for size in (1_001, 100_000, 300, 1_000):
        mine.send(bytes(size), b"")
    at_server, _ = pair.take()
    assert payloads(at_server) == [None, None, bytes(300), bytes(1_000)]


def test_each_part_of_a_delivery_may_say_whose_it_is() -> None:
    pair = Pair()
    mine, _ = pair.attach(sends=True)
    session = mine.session
    for more in (True, True, False):
        transfer = Transfer(mine.handle, 7, b"a", 0, False, more or None)
        session.send(mine, 7, session.framed(write(transfer) + b"x"))
    (arrived,), _ = pair.take()
    assert isinstance(arrived, Arrived)
    assert (arrived.delivery_id, arrived.payload) == (7, b"xxx")


def test_a_link_that_ends_within_a_delivery_leaves_nothing_unfinished() -> None:
    pair = Pair(Limits(unfinished=4))
    session = pair.client.begin()
    for at in range(10):
        mine, theirs = pair.attach(sends=True, session=session, name=f"l{at}")
        begun = Transfer(mine.handle, at, b"a", 0, False, True)
        session.send(mine, 7, session.framed(write(begun)))
        pair.pump()
        (theirs if at % 2 else mine).detach()
        pair.take()
    assert not pair.server.closed


def test_an_aborted_delivery_never_was() -> None:
    pair = Pair()
    mine, _ = pair.attach(sends=True)
    session = mine.session
    for transfer in (
        Transfer(mine.handle, 7, b"a", 0, False, True),
        Transfer(mine.handle, None, None, None, None, False, aborted=True),
        Transfer(mine.handle, 8, b"b", 0, False, False),
    ):
        session.send(mine, 7, session.framed(write(transfer) + b"x"))
    (flowed, arrived), _ = pair.take()
    assert isinstance(flowed, Flowed)  # credit was used
    assert isinstance(arrived, Arrived)
    assert arrived.delivery_id == 8


def test_a_drain_is_answered_with_what_was_not_used() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    mine.grant(5, drain=True)
    pair.take()
    assert theirs.drain
    theirs.send(b"one", b"1", settled=True)
    theirs.drained()
    _, (arrived, flowed) = pair.take()
    assert isinstance(arrived, Arrived)
    assert isinstance(flowed, Flowed)
    assert (mine.credit, mine.drain) == (0, False)
    mine.grant(3)
    pair.take()
    assert theirs.credit == 3


def test_credit_is_counted_from_where_the_receiver_was() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    mine.grant(3)
    pair.pump()
    theirs.send(b"under way", b"1", settled=True)
    mine.grant(3)  # it has not seen that one yet
    pair.take()
    assert theirs.credit == 2


def test_an_echo_is_answered() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=True)
    theirs.grant(5)
    pair.take()
    theirs.tell(echo=True)
    at_server, _ = pair.take()
    assert kinds(at_server) == [Flowed]
    mine.session.flow(echo=True)
    pair.pump()


def test_transfers_wait_for_the_window() -> None:
    pair = Pair()
    mine, _ = pair.attach(sends=True)
    mine.session.remote_window = 2
    for number in range(5):
        mine.send(b"%d" % number, b"%d" % number, settled=True)
    told = list(pair.server.receive(pair.client.take()))  # with the question how it stands
    assert payloads(told) == [b"0", b"1"]
    at_server, _ = pair.take()
    assert payloads(at_server) == [b"2", b"3", b"4"]


def test_what_waits_for_the_window_is_bounded() -> None:
    pair = Pair(Limits(pending_bytes=10_000))
    mine, theirs = pair.attach(sends=False)
    theirs.session.remote_window = 0
    for number in range(20):
        theirs.send(bytes(1_000), b"%d" % number, settled=True)
    assert pair.server.closed
    assert not theirs.session.pending
    _, told = pair.take()
    assert kinds(told) == [Detached, Closed]
    assert kinds(pair.server.lose()) == [Detached, Closed]
    assert mine.is_gone


def test_who_waited_for_the_window_is_told_when_it_opens() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    theirs.session.remote_window = 0
    theirs.send(b"", b"1", settled=True)
    held_up = [theirs.is_held_up]
    at_server, _ = pair.take()  # the client is asked how it stands
    assert kinds(at_server) == [Flowed]
    assert [*held_up, theirs.is_held_up] == [True, False]
    assert not mine.is_gone


def test_the_window_is_opened_again_before_it_is_used_up() -> None:
    pair = Pair()
    mine, _ = pair.attach(sends=True)
    for number in range(WINDOW + 100):
        mine.send(b"", b"%d" % number, settled=True)
        if number % 20_000 == 0:
            pair.pump()
    at_server, _ = pair.take()
    assert len(payloads(at_server)) == WINDOW + 100


def test_numbers_go_round() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=True)
    session = mine.session
    session.next_delivery_id = MASK - 1
    session.next_outgoing_id = theirs.session.next_incoming_id = MASK - 1
    ids = [mine.send(b"", b"%d" % at) for at in range(4)]
    assert ids == [MASK - 1, MASK, 0, 1]
    pair.take()
    theirs.settle(ids, ACCEPTED)
    _, (disposed,) = pair.take()
    assert isinstance(disposed, Disposed)
    assert disposed.delivery_ids == ids


def test_a_range_is_settled_in_one_go_over_several_links() -> None:
    pair = Pair()
    session = pair.client.begin()
    one, _ = pair.attach(sends=True, session=session, name="one")
    two, theirs = pair.attach(sends=True, session=session, name="two")
    ids = [one.send(b"", b"1"), two.send(b"", b"2"), one.send(b"", b"3")]
    pair.take()
    theirs.session.write(Disposition(RECEIVER, ids[0], ids[-1], True, ACCEPTED))
    _, told = pair.take()
    found = {each.link: each.delivery_ids for each in told if isinstance(each, Disposed)}
    assert found == {one: [ids[0], ids[2]], two: [ids[1]]}


def test_a_hostile_range_costs_no_more_than_what_there_is() -> None:
    pair = Pair()
    _, theirs = pair.attach(sends=False)
    ids = [theirs.send(b"", b"1") for _ in range(3)]
    pair.take()
    session = pair.client._sessions[0]
    session.write(Disposition(RECEIVER, 0, MASK // 2, True, ACCEPTED))
    (disposed,), _ = pair.take()
    assert isinstance(disposed, Disposed)
    assert disposed.delivery_ids == ids
    session.write(Disposition(RECEIVER, 5, 3, True, ACCEPTED))
    assert pair.take() == ([], [])


def test_links_end_from_either_side() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=True)
    theirs.detach(error("amqp:not-found", "gone"))
    _, (detached,) = pair.take()
    assert isinstance(detached, Detached)
    assert detached.problem is not None
    assert (detached.problem.condition, detached.problem.text) == ("amqp:not-found", "gone")
    assert mine.is_gone
    again, _ = pair.attach(sends=True, session=mine.session, name="again")
    again.send(b"", b"1")
    again.detach()
    (arrived, gone), at_client = pair.take()
    assert isinstance(arrived, Arrived)
    assert isinstance(gone, Detached)
    assert gone.closed
    assert not at_client


def test_a_link_can_be_refused() -> None:
    pair = Pair()
    mine = pair.client.begin().attach("link", sends=False, source=source("nowhere"))
    pair.pump()
    (attached,) = [each for each in pair.at_server if isinstance(each, Attached)]
    attached.link.refuse(error("amqp:not-found", "there is none"))
    _, told = pair.take()
    assert kinds(told)[-2:] == [Attached, Detached]
    assert mine.attach is not None
    assert mine.attach.source is None


def test_sessions_end_with_their_links() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=True)
    mine.session.end()
    at_server, at_client = pair.take()
    assert kinds(at_server) == [Detached, Ended]
    assert kinds(at_client) == [Detached, Ended]
    assert theirs.is_gone
    assert not pair.server._incoming
    assert kinds(pair.take()[0]) == []


def test_what_is_said_in_one_go_is_answered_in_order() -> None:
    """A link that comes and goes, on a session that comes and goes, all in one write."""
    pair = Pair()
    for _ in range(2):
        session = pair.client.begin()
        link = session.attach("l", sends=True, source=source("q"), target=target("q"))
        link.detach()
        session.end()
    data = pair.client.take()
    for event in pair.server.receive(data):
        if isinstance(event, Attached):
            wanted = event.link.attach
            assert wanted is not None
            event.link.accept(source=wanted.source, target=wanted.target)
    pair.client._sessions.clear()
    said = pair.server.take()
    codes, pos = [], 0
    while pos < len(said):
        size, _, _, _ = struct.unpack_from(">IBBH", said, pos)
        codes.append(said[pos + 10])
        pos += size
    assert codes == [0x11, 0x12, 0x16, 0x17] * 2


def test_a_drain_ends_behind_what_waits_for_the_window() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    mine.grant(5, drain=True)
    pair.pump()
    theirs.session.remote_window = 0
    theirs.send(b"x", b"1", settled=True)
    theirs.drained()
    _, told = pair.take()
    assert [kind for kind in kinds(told) if kind in (Arrived, Flowed)][-2:] == [Arrived, Flowed]
    assert mine.credit == 0


def test_what_is_said_of_the_deliveries_of_two_links_is_told_to_each() -> None:
    pair = Pair()
    mine, theirs = pair.attach(sends=False)
    _, others = pair.attach(sends=False, session=mine.session, name="other")
    ids = [link.send(b"x", b"1", keep=at) for at, link in enumerate((theirs, others) * 2)]
    pair.take()
    mine.settle(ids, ACCEPTED)
    told, _ = pair.take()
    found = [(each.link, each.delivery_ids, each.kept) for each in told if type(each) is Disposed]
    assert found == [(theirs, ids[::2], [0, 2]), (others, ids[1::2], [1, 3])]
    assert not theirs.unsettled
    assert not theirs.session.unsettled


def test_what_was_not_sent_before_a_detach_is_known() -> None:
    pair = Pair()
    _, theirs = pair.attach(sends=False)
    theirs.session.remote_window = 0
    theirs.send(b"x", b"1", keep=7)
    theirs.detach()
    assert theirs.unsent == {7}
    assert not theirs.session.pending


def test_a_peer_with_small_frames_is_told_no_more_than_fits() -> None:
    pair = Pair(client_limits=Limits(frame_bytes=512))
    long = Described(ULong(0x28), ["q", *[None] * 6, {Symbol("x"): "y" * 600}])
    pair.client.begin().attach("link", sends=False, source=long, target=target("q"))
    pair.pump()
    (attached,) = [each for each in pair.at_server if isinstance(each, Attached)]
    attached.link.accept(source=long, target=target("q"))
    pair.take()
    assert not pair.client.closed


def test_a_channel_can_be_used_again() -> None:
    pair = Pair()
    for _ in range(3):
        mine, _ = pair.attach(sends=True)
        mine.session.end()
        pair.take()
    assert not pair.server._sessions


def test_closing_ends_everything() -> None:
    pair = Pair()
    pair.attach(sends=True)
    pair.server.close(error("amqp:connection:forced", "bye"))
    at_server, at_client = pair.take()
    assert kinds(at_client) == [Detached, Closed]
    closed = at_client[-1]
    assert isinstance(closed, Closed)
    assert closed.problem is not None
    assert closed.problem.condition == "amqp:connection:forced"
    assert kinds(at_server) == [Detached, Closed]
    assert pair.server.closed
    assert pair.client.closed


def test_a_broken_connection_ends_its_links() -> None:
    pair = Pair()
    pair.attach(sends=True)
    assert kinds(pair.server.lose()) == [Detached, Closed]
    assert pair.server.lose() == []


def test_empty_frames_keep_it_alive() -> None:
    pair = Pair()
    pair.take()
    pair.client.keep_alive()
    assert pair.take() == ([], [])
    assert not pair.server.closed


def test_many_links_and_sessions_on_one_connection() -> None:
    pair = Pair()
    for at in range(100):
        session = pair.client.begin()
        for name in ("a", "b", "c"):
            mine, theirs = pair.attach(sends=name != "b", session=session, name=f"{name}{at}")
            (mine if name != "b" else theirs).send(name.encode(), b"")
    at_server, at_client = pair.take()
    assert len(payloads(at_server)) + len(payloads(at_client)) <= 300
    assert pair.server._links == 300


# What the other side must not do.


def frame(performative: Performative, channel: int = 0, kind: int = 0, rest: bytes = b"") -> bytes:
    return framed(write(performative) + rest, channel, kind)


def framed(content: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(content), 2, kind, channel) + content


BEGUN = AMQP + frame(Open("c")) + frame(Begin(None, 0, 100, 100))
ATTACHED = BEGUN + frame(Attach("l", 0, SENDER, source=source("q"), target=target("q")))
FIRST = Transfer(0, 0, b"t", 0, False, True)

HOSTILE = {
    "a frame of seven bytes": AMQP + b"\0\0\0\x07\x02\0\0\0",
    "a frame of four gigabytes": AMQP + b"\xff\xff\xff\xff\x02\0\0\0",
    "a data offset of nothing": AMQP + b"\0\0\0\x08\0\0\0\0",
    "a data offset of one": AMQP + b"\0\0\0\x08\x01\0\0\0",
    "a data offset beyond the frame": AMQP + b"\0\0\0\x08\xff\0\0\0",
    "a frame of a kind there is none of": AMQP + b"\0\0\0\x08\x02\x05\0\0",
    "a begin before open": AMQP + frame(Begin(None, 0, 1, 1)),
    "an attach before begin": AMQP + frame(Open("c")) + frame(Attach("l", 0, SENDER)),
    "a close before open": AMQP + frame(Close()),
    "two opens": AMQP + frame(Open("c")) * 2,
    "a second begin on a channel": BEGUN + frame(Begin(None, 0, 1, 1)),
    "a channel beyond the last": AMQP + frame(Open("c")) + frame(Begin(None, 0, 1, 1), 65_535),
    "a handle beyond the last": BEGUN + frame(Attach("l", MASK, SENDER)),
    "a handle of more than 32 bits": BEGUN + framed(
        described(0x12, encode_list((encode("l"), encode(ULong(1 << 33)), b"\x42")))
    ),
    "a handle below nothing": BEGUN + framed(
        described(0x12, encode_list((encode("l"), encode(-5), b"\x42")))
    ),
    "a settlement mode there is none of": BEGUN + frame(Attach("l", 0, SENDER, 200)),
    "a handle twice": ATTACHED + frame(Attach("m", 0, SENDER)),
    "a transfer for no link": BEGUN + frame(Transfer(5, 0, b"", 0)),
    "a transfer without an id": ATTACHED + frame(Transfer(0)),
    "a huge delivery tag": ATTACHED + frame(Transfer(0, 0, bytes(33))),
    "a delivery within another": ATTACHED + frame(FIRST) + frame(Transfer(0, 1, b"u", 0)),
    "a delivery without end": ATTACHED + frame(FIRST) * (EMPTY_MAX + 1),
    "a flow for no link": BEGUN + frame(Flow(0, 1, 0, 1, 9)),
    "a detach of no link": BEGUN + frame(Detach(9)),
    "an end of no session": AMQP + frame(Open("c")) + frame(End(), 3),
    "SASL within AMQP": AMQP + frame(Open("c")) + frame(SaslInit("PLAIN"), 0, 1),
    "AMQP within SASL": SASL + frame(Open("c")),
    "a SASL frame that is too large": SASL + frame(SaslInit("PLAIN", bytes(9_000)), 0, 1),
    "SASL of a mechanism that is not there": SASL + frame(SaslInit("SCRAM"), 0, 1),
    "SASL again": SASL + frame(SaslInit("ANONYMOUS"), 0, 1) + SASL,
    "a transfer that ends in its tag": ATTACHED + framed(
        b"\x00\x53\x14\xc0\x0c\x0b\x70\0\0\0\0\x70\0\0\0\0\xa0"
    ),
    "a transfer whose tag is behind its end": ATTACHED + framed(
        b"\x00\x53\x14\xc0\x0c\x0b\x43\x43\xa0\x20" + bytes(40)
    ),
    "a performative there is none of": AMQP + b"\0\0\0\x0d\x02\0\0\0\x00\x53\x99\xc0\x00",
    "no performative": AMQP + b"\0\0\0\x09\x02\0\0\0\x40",
    "an open without a name": AMQP + b"\0\0\0\x0e\x02\0\0\0" + described(0x10, b"\xc0\x01\x00"),
    "an open whose name is a number": AMQP + b"\0\0\0\x10\x02\0\0\0"
    + described(0x10, encode_list((encode(5),))),
    "too many fields": AMQP + b"\0\0\0\x18\x02\0\0\0"
    + described(0x18, encode_list([b"\x40"] * 10)),
    "more unfinished deliveries than may be": BEGUN + b"".join(
        frame(Attach(f"l{at}", at, SENDER)) + frame(Transfer(at, at, b"", 0, False, True))
        for at in range(5)
    ),
    "more links than may be before it is trusted": BEGUN + b"".join(
        frame(Attach(f"l{at}", at, SENDER)) for at in range(50)
    ),
    "more sessions than may be before it is trusted": AMQP + frame(Open("c")) + b"".join(
        frame(Begin(None, 0, 1, 1), at) for at in range(50)
    ),
    "an attach larger than may be before it is trusted": BEGUN + frame(
        Attach("l", 0, SENDER, properties={Symbol("x"): bytes(9_000)})
    ),
    "a frame larger than may be before it is trusted": BEGUN + frame(
        Attach("l", 0, SENDER, properties={Symbol("x"): bytes(70_000)})
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_who_breaks_the_protocol_is_told_and_closed(data: bytes) -> None:
    server = Connection("s", authenticate=lambda mechanism, response: mechanism != "PLAIN",
                        mechanisms=("ANONYMOUS", "PLAIN"))  # fmt: skip
    events = list(server.receive(data))
    assert kinds(events)[-1] is Closed
    assert server.closed
    assert list(server.receive(b"\0" * 100)) == []


def test_descriptors_are_known_in_every_form() -> None:
    def named(name: Value, fields: bytes) -> bytes:
        content = b"\x00" + encode(name) + fields
        return struct.pack(">IBBH", 8 + len(content), 2, 0, 0) + content

    server = Connection("s", authenticate=lambda mechanism, response: True)
    long_form = b"\x00\x80" + (0x11).to_bytes(8, "big")
    begin = long_form + encode_list((b"\x40", b"\x43", b"\x52\x05", b"\x52\x05"))
    events = server.receive(
        AMQP
        + named(Symbol("amqp:open:list"), encode_list((encode("c"),)))
        + struct.pack(">IBBH", 8 + len(begin), 2, 0, 0)
        + begin
    )
    assert kinds(list(events)) == [Opened, Begun]


# Whatever the network does to the bytes.


def conversation() -> bytes:
    """What a client says in a connection where everything happens once."""
    pair = Pair()
    mine, theirs = pair.attach(sends=True, name="out")
    back, _ = pair.attach(sends=False, name="in", session=mine.session)
    theirs.grant(10)
    back.grant(10, drain=True)
    pair.pump()
    mine.send(b"hello", b"1")
    mine.send(bytes(3_000_000), b"2")
    mine.send(b"settled", b"3", settled=True)
    back.settle([5], ACCEPTED)
    mine.detach()
    back.session.end()
    pair.client.close()
    pair.pump()
    return pair.sent


CONVERSATION = conversation()


def listened(pieces: list[bytes]) -> list[tuple[type, object]]:
    server = Connection("s", authenticate=lambda mechanism, response: True)
    server.trust()
    events = [event for piece in pieces for event in server.receive(piece)]
    return [(type(each), each.payload if isinstance(each, Arrived) else None) for each in events]


WHOLE = listened([CONVERSATION])


def test_everything_happens_once() -> None:
    found = [kind for kind, _ in WHOLE]
    assert set(found) >= {Opened, Begun, Attached, Flowed, Arrived, Detached, Ended, Closed}


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=20))
def test_frames_do_not_depend_on_how_the_network_cut_them(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[a:b] for a, b in pairwise(at)]
    assert listened(pieces) == WHOLE


def test_byte_by_byte_it_is_the_same() -> None:
    head = CONVERSATION[:800]
    assert listened([head[at : at + 1] for at in range(800)]) == listened([head])


@given(st.integers(0, 800), st.integers(0, 255))
def test_a_changed_byte_gives_events_or_an_end(at: int, value: int) -> None:
    data = bytearray(CONVERSATION[:2_000])
    data[at] = value
    listened([bytes(data)])


@given(
    st.booleans(), st.integers(0, MASK), st.integers(0, MASK), st.booleans(),
    st.sampled_from([ACCEPTED, RELEASED, rejected("amqp:not-found", "x"),
                     rejected("amqp:not-found", "x" * 300)]),
)  # fmt: skip
def test_a_disposition_says_what_it_is_given(
    role: bool, first: int, last: int, settled: bool, state: bytes
) -> None:
    connection = Connection("client")
    session = connection.begin()
    connection.take()
    session.dispose(role, first, last, state, settled=settled)
    frame = connection.take()
    size, offset, kind, channel = struct.unpack_from(">IBBH", frame)
    assert (size, offset, kind, channel) == (len(frame), 2, 0, session.channel)
    said, end = read(frame, 8, len(frame))
    wanted, _ = read(write(Disposition(role, first, last, settled, state, False)), 0, 1 << 20)
    assert (said, end) == (wanted, len(frame))
