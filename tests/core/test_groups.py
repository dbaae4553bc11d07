"""Groups: nothing more of a group while one of its messages is in flight."""

import pytest

from posthouse.core.commands import (
    Abandon,
    Complete,
    Credit,
    Defer,
    Delivery,
    Pause,
    Purge,
    Received,
    ReceiveDeferred,
    Release,
    Resume,
)
from posthouse.core.message import ACTIVE, DELAYED, LOCKED
from tests.core.sound import sound
from tests.core.world import World, a_message, bodies, given, text


def a_group_queue(world: World, *messages: str, **properties: object) -> str:
    """Messages are given as group:body, or a body alone."""
    queue = world.queue("orders", grouping="group", lock_ms=100, **properties)
    send(world, queue, *messages)
    return queue


def send(world: World, queue: str, *messages: str) -> None:
    new = []
    for each in messages:
        group, _, body = each.rpartition(":")
        new.append(a_message(body, group=group or None))
    world.send(queue, *new)


def test_one_message_of_a_group_is_in_flight() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2", "y:3", "4")
    assert bodies(world.receive(queue, 5)) == ["1", "3", "4"]
    assert world.receive(queue, 5) == []


@pytest.mark.parametrize("settle", [Complete, Defer])
def test_the_next_of_a_group_comes_when_the_one_before_is_settled(
    settle: type[Complete | Defer],
) -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [one] = world.receive(queue, 5)
    world.do(settle(queue, [one.token]))
    assert bodies(world.receive(queue, 5)) == ["2"]


@pytest.mark.parametrize("settle", [Abandon, Release])
def test_a_message_that_comes_back_is_first_in_its_group(settle: type[Abandon | Release]) -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    for _ in range(2):
        [one] = world.receive(queue, 5)
        assert text(one) == "1"
        world.do(settle(queue, [one.token]))


def test_a_waiting_receiver_gets_the_next_of_a_group() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [one] = world.receive(queue)
    receiver = world.wait(queue)
    send(world, queue, "x:3")
    assert world.deliveries == []
    world.do(Complete(queue, [one.token]))
    assert given(world.deliveries) == [(receiver, "2")]


def test_a_waiting_receiver_gets_back_what_was_abandoned_before_what_follows() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [one] = world.receive(queue)
    receiver = world.wait(queue, 5)
    world.do(Abandon(queue, [one.token]))
    assert given(world.deliveries) == [(receiver, "1")]


def test_waiting_receivers_get_one_of_each_group() -> None:
    world = World()
    queue = a_group_queue(world)
    one, two = world.attach(queue, 5), world.attach(queue, 5)
    send(world, queue, "x:1", "x:2", "y:3", "4")
    assert sorted(given(world.deliveries)) == [(one, "1"), (one, "4"), (two, "3")]


def test_the_next_of_a_group_comes_when_the_lock_of_its_head_expires_for_good() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2", max_delivery=1)
    world.receive(queue)
    receiver = world.attach(queue, 5)
    assert given(world.advance(100)) == [(receiver, "2")]


def test_the_next_of_a_group_comes_when_its_head_has_expired() -> None:
    world = World()
    queue = a_group_queue(world)
    world.send(queue, a_message("1", group="x", ttl_ms=50), a_message("2", group="x"))
    world.advance(50)
    assert bodies(world.receive(queue)) == ["2"]


def test_the_next_of_a_group_comes_when_the_one_in_flight_is_purged() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    world.receive(queue)
    receiver = world.attach(queue, 5)
    world.do(Purge(queue, frozenset({LOCKED})))
    assert given(world.deliveries) == [(receiver, "2")]


def test_nothing_comes_of_a_group_while_a_deferred_message_of_it_is_in_flight() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [one] = world.receive(queue)
    world.do(Defer(queue, [one.token]))
    answer = world.do(ReceiveDeferred(queue, [1])).answer
    assert isinstance(answer, Received)
    receiver = world.attach(queue, 5)
    assert world.deliveries == []
    world.do(Complete(queue, [answer.deliveries[0].token]))
    assert given(world.deliveries) == [(receiver, "2")]


def test_order_inside_a_group_beats_priority_and_priority_chooses_among_heads() -> None:
    world = World()
    queue = a_group_queue(world, order="priority")
    world.send(
        queue,
        a_message("x-low", group="x", priority=1),
        a_message("x-high", group="x", priority=9),
        a_message("y", group="y", priority=5),
        a_message("alone", priority=7),
    )
    assert bodies(world.receive(queue, 5)) == ["alone", "y", "x-low"]


def test_priority_chooses_among_heads_that_come_back_too() -> None:
    world = World()
    queue = a_group_queue(world, order="priority")
    world.send(
        queue,
        a_message("x", group="x", priority=1),
        a_message("y", group="y", priority=5),
    )
    one, two = world.receive(queue, 2)
    receiver = world.wait(queue)
    world.do(Abandon(queue, [one.token, two.token]))
    assert given(world.deliveries) == [(receiver, "y")]
    assert bodies(world.receive(queue)) == ["x"]


def test_a_receiver_that_deletes_is_given_a_group_as_long_as_it_has_credit() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2", "x:3")
    receiver = world.attach(queue, 2, delete=True)
    got = given(world.deliveries) + given(world.advance(0))
    assert got == [(receiver, "1"), (receiver, "2")]
    world.do(Credit(receiver, 5))
    got = given(world.deliveries) + given(world.advance(0))
    assert got == [(receiver, "3")]


def test_a_waiting_receiver_that_deletes_is_given_a_whole_batch_of_a_group() -> None:
    world = World()
    queue = a_group_queue(world)
    receiver = world.attach(queue, 5, delete=True)
    send(world, queue, "x:1", "x:2")
    got = given(world.deliveries) + given(world.advance(0))
    assert got == [(receiver, "1"), (receiver, "2")]


def test_groups_go_on_after_a_pause() -> None:
    world = World()
    queue = a_group_queue(world)
    receiver = world.attach(queue, 5)
    world.do(Pause(queue, receiving=True))
    send(world, queue, "x:1", "x:2", "3")
    world.do(Resume(queue, receiving=True))
    assert given(world.advance(0)) == [(receiver, "1"), (receiver, "3")]


def test_a_group_that_lies_idle_does_not_gather_what_others_leave() -> None:
    world = World()
    queue = a_group_queue(world, "idle:1", "busy:2")
    world.do(Purge(queue, frozenset({ACTIVE}), first=2))
    for _ in range(100):
        send(world, queue, "y:n", "z:n")
        world.do(Purge(queue, frozenset({ACTIVE}), first=2))
    send(world, queue, "y:last")
    assert bodies(world.receive(queue, 5)) == ["1", "last"]


def test_groups_in_every_condition_outlive_a_clearing_of_heads() -> None:
    world = World()
    queue = a_group_queue(world, "locked:1", "locked:2", "deferred:3")
    one, three = world.receive(queue, 5)
    world.do(Defer(queue, [three.token]))
    send(world, queue, "idle:4")
    for _ in range(150):
        [sequence] = world.send(queue, a_message(group="y"))
        world.do(Purge(queue, frozenset({ACTIVE}), first=sequence))
    world.do(Complete(queue, [one.token]))
    assert bodies(world.receive(queue, 5)) == ["2", "4"]


def test_messages_may_stand_outside_groups() -> None:
    world = World()
    queue = a_group_queue(world, "1", "2")
    one, two = world.receive(queue, 5)
    world.do(Abandon(queue, [one.token, two.token]))
    receiver = world.attach(queue, 5)
    assert given(world.deliveries) == [(receiver, "1"), (receiver, "2")]
    for delivery in world.deliveries:
        assert isinstance(delivery, Delivery)
        assert delivery.count == 2


def test_a_receive_that_deletes_takes_whole_groups_and_what_stands_outside() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "2", "x:3", "y:4")
    assert bodies(world.receive(queue, 3, delete=True)) == ["1", "2", "3"]
    assert bodies(world.receive(queue, 3, delete=True)) == ["4"]


def test_a_message_outside_groups_comes_back_while_groups_are_in_flight() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "2", "x:3")
    _, two = world.receive(queue, 5)
    receiver = world.attach(queue, 5)
    world.do(Abandon(queue, [two.token]))
    assert given(world.deliveries) == [(receiver, "2")]


def test_a_delayed_message_holds_the_rest_of_its_group_back() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2", "y:3")
    [first] = world.receive(queue)
    world.do(Abandon(queue, [first.token], delay_ms=50))
    assert bodies(world.receive(queue, 5)) == ["3"]
    waiting = world.attach(queue, 5)
    assert given(world.advance(50)) == [(waiting, "1")]


def test_a_group_goes_on_when_its_delayed_message_is_purged() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [first] = world.receive(queue)
    world.do(Abandon(queue, [first.token], delay_ms=50))
    waiting = world.attach(queue, 5)
    world.do(Purge(queue, frozenset({DELAYED})))
    assert given(world.deliveries) == [(waiting, "2")]


def test_a_group_goes_on_when_a_deferred_message_is_abandoned() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    [first] = world.receive(queue)
    world.do(Defer(queue, [first.token]))
    answer = world.do(ReceiveDeferred(queue, [1])).answer
    assert isinstance(answer, Received)
    assert world.receive(queue) == []
    world.do(Abandon(queue, [answer.deliveries[0].token]))
    assert bodies(world.receive(queue)) == ["2"]


def test_a_group_is_held_back_at_once_when_its_message_is_delayed() -> None:
    world = World()
    queue = a_group_queue(world, "x:1", "x:2")
    world.attach(queue, 5)
    [delivery] = [each for each in world.deliveries if isinstance(each, Delivery)]
    world.do(Abandon(queue, [delivery.token], delay_ms=50))
    assert world.deliveries == []


def test_an_expired_message_in_a_group_stops_those_behind_it_until_the_tick() -> None:
    world = World()
    queue = a_group_queue(world)
    for body, ttl_ms in (("1", None), ("2", 10), ("3", None)):
        world.send(queue, a_message(body, group="x", ttl_ms=ttl_ms))
    world.now_ms += 10
    assert bodies(world.receive(queue, 5, delete=True)) == ["1"]
    world.advance(0)
    assert bodies(world.receive(queue, 5, delete=True)) == ["3"]


def test_a_snapshot_keeps_that_a_delayed_message_holds_its_group_back() -> None:
    world = World()
    queue = world.queue(grouping="group")
    world.send(queue, a_message("a", group="x"), a_message("b", group="x"))
    [held] = world.receive(queue)
    world.do(Abandon(queue, [held.token], delay_ms=500))
    sound(world)
    assert world.receive(queue) == []
