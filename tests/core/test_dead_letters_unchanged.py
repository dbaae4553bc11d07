"""Dead letters that another queue gets as they are: with their counts and times."""

import pytest

from posthouse.core.commands import Abandon, Delivery, UpdateQueue
from posthouse.core.dump import dump
from posthouse.core.fit_record import fit_record
from posthouse.core.message import decode_envelope
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import Routed, head
from posthouse.core.snapshot import restore, take
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message
from tests.invariants import check


def a_forwarded_dead_letter(
    world: World, *, unchanged: bool = True, **target: object
) -> tuple[int, int]:
    """Returns when the message was sent, and when it was first delivered."""
    world.queue("target", **target)
    world.queue(max_delivery=2, forward_dead_to="target", forward_dead_unchanged=unchanged)
    world.send("orders", a_message("a", id="m", n=5))
    sent_ms = world.now_ms
    world.now_ms += 100
    first_ms = world.now_ms
    for _ in range(2):
        [delivery] = world.receive("orders")
        world.now_ms += 100
        world.do(Abandon("orders", [delivery.token]))
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    return sent_ms, first_ms


@pytest.mark.parametrize("unchanged", [False, True])
def test_a_forwarded_dead_letter_keeps_its_count_and_its_times_where_asked(unchanged: bool) -> None:
    world = World()
    sent_ms, first_ms = a_forwarded_dead_letter(world, unchanged=unchanged)
    [delivery] = world.receive("target")
    assert delivery.count == (3 if unchanged else 1)
    assert delivery.first_delivered_ms == (first_ms if unchanged else world.now_ms)
    assert delivery.message.enqueued_ms == (sent_ms if unchanged else world.now_ms)
    assert decode_envelope(delivery.message.envelope).id == "m"
    assert delivery.note is not None
    assert (delivery.note.source, delivery.note.reason) == ("orders", "MaxDeliveryCountExceeded")
    needed = version_needed([each for _, each in world.journal if isinstance(each, Routed)])
    assert needed == (2 if unchanged else 1)


def test_who_waits_for_it_is_told_the_same() -> None:
    world = World()
    world.queue("target")
    world.attach("target", 1)
    world.queue(max_delivery=1, forward_dead_to="target", forward_dead_unchanged=True)
    world.send("orders", "a")
    sent_ms = world.now_ms
    [delivery] = world.receive("orders")
    world.now_ms += 100
    world.do(Abandon("orders", [delivery.token]))
    [given] = [each for each in world.deliveries if isinstance(each, Delivery)]
    assert (given.count, given.first_delivered_ms) == (2, sent_ms)
    assert given.message.enqueued_ms == sent_ms


def test_its_life_in_the_target_counts_from_when_it_was_sent() -> None:
    world = World()
    sent_ms, _ = a_forwarded_dead_letter(world, ttl_ms=1_000)
    world.advance(sent_ms + 1_000 - world.now_ms - 1)
    assert world.peek("target") == [(1, "active")]
    world.advance(1)
    assert world.peek("target") == []


def test_one_that_has_outlived_the_target_is_dropped_there() -> None:
    world = World()
    a_forwarded_dead_letter(world, ttl_ms=200)
    world.advance(0)
    assert world.peek("target") == []


def test_dead_letters_that_were_there_before_are_handed_on_alike() -> None:
    world = World()
    world.queue(max_delivery=1)
    world.queue("target")
    world.send("orders", "a")
    [delivery] = world.receive("orders")
    world.do(Abandon("orders", [delivery.token]))
    properties = QueueProperties(forward_dead_to="target", forward_dead_unchanged=True)
    world.do(UpdateQueue("orders", properties))
    world.advance(0)
    assert [each.count for each in world.receive("target")] == [2]
    assert world.peek(dead_letter_queue("orders")) == []


def test_ordinary_forwarding_makes_new_messages() -> None:
    world = World()
    world.queue("target")
    world.queue(forward_to="target", forward_dead_unchanged=True)
    world.send("orders", "a")
    assert [each.count for each in world.receive("target")] == [1]


def test_parts_of_the_record_say_so_too_and_snapshots_keep_it() -> None:
    world = World()
    _, first_ms = a_forwarded_dead_letter(world)
    [(at, routed)] = [each for each in world.journal if isinstance(each[1], Routed)]
    assert isinstance(routed, Routed)
    part = head(routed, 1)
    assert isinstance(part, Routed)
    assert part.copies[0].same
    before = World()
    before.state = before.replayed()
    for position, record in world.journal:
        if position == at:
            break
        before.journal.append((position, record))
    [copy, _] = fit_record(before.replayed(), routed)
    assert isinstance(copy, Routed)
    assert copy.copies[0].same
    (state,) = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert state.queues["target"].firsts == {1: first_ms}


def test_one_that_was_never_delivered_is_delivered_first_in_the_target() -> None:
    world = World()
    world.queue("target")
    world.attach("target", 1)
    world.queue(
        forward_dead_to="target", forward_dead_unchanged=True, dead_letter_expired=True, ttl_ms=50
    )
    world.send("orders", "a")
    sent_ms = world.now_ms
    [given] = [each for each in world.advance(50) if isinstance(each, Delivery)]
    assert (given.count, given.first_delivered_ms) == (1, world.now_ms)
    assert given.message.enqueued_ms == sent_ms
    assert not world.state.queues["target"].firsts
