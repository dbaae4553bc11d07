"""Receivers that hold credit."""

import pytest

from posthouse.core.commands import (
    CREDIT_MAX,
    Abandon,
    Attach,
    Complete,
    Credit,
    DeleteQueue,
    Delivery,
    Detach,
    Pause,
    Resume,
    Send,
    UpdateQueue,
)
from posthouse.core.errors import InvalidArgument, LockLost, NotFound, Refused
from posthouse.core.model import QueueProperties, dead_letter_queue
from tests.core.world import World, a_message, bodies, given


def test_a_receiver_with_credit_is_given_what_is_there() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    receiver = world.attach(queue, 2)
    assert given(world.deliveries) == [(receiver, "a"), (receiver, "b")]


def test_a_receiver_with_credit_is_given_what_comes() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 2)
    for body in ("a", "b", "c"):
        world.send(queue, body)
        assert given(world.deliveries) == ([] if body == "c" else [(receiver, body)])


def test_without_credit_nothing_comes() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    world.send(queue, "a")
    assert world.deliveries == []
    world.do(Credit(receiver, 1))
    assert bodies(world.deliveries) == ["a"]


def test_credit_can_be_counted_from_what_was_seen() -> None:
    """Two are under way to one who has seen none of them, and asks for three in all."""
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 2)
    world.send(queue, "a", "b", "c", "d")
    world.do(Credit(receiver, 3, given=0))
    assert bodies(world.deliveries) == ["c"]
    world.do(Credit(receiver, 2, given=0))
    assert world.deliveries == []
    world.do(Credit(receiver, 1, given=3))
    assert bodies(world.deliveries) == ["d"]
    with pytest.raises(InvalidArgument):
        world.do(Credit(receiver, 1, given=9))


def test_credit_replaces_the_credit_before() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 5)
    world.do(Credit(receiver, 2))
    world.do(Credit(receiver, 1))
    world.send(queue, "a", "b")
    assert bodies(world.deliveries) == ["a"]


def test_credit_can_be_taken_away() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 5)
    world.do(Credit(receiver, 0))
    world.send(queue, "a")
    assert world.deliveries == []


def test_receivers_take_turns() -> None:
    world = World()
    queue = world.queue()
    one, two = world.attach(queue, 9), world.attach(queue, 9)
    got = []
    for body in ("a", "b", "c", "d"):
        world.send(queue, body)
        got += given(world.deliveries)
    assert got == [(one, "a"), (two, "b"), (one, "c"), (two, "d")]


def test_a_batch_is_dealt_out_in_turns() -> None:
    world = World()
    queue = world.queue()
    one, two = world.attach(queue, 1), world.attach(queue, 9)
    world.send(queue, "a", "b", "c", "d")
    assert sorted(given(world.deliveries)) == [(one, "a"), (two, "b"), (two, "c"), (two, "d")]


def test_the_turn_after_a_batch_is_that_of_the_one_served_longest_ago() -> None:
    world = World()
    queue = world.queue()
    one, two = world.attach(queue, 9), world.attach(queue, 9)
    world.send(queue, "a", "b", "c")
    world.send(queue, "d")
    assert given(world.deliveries) == [(two, "d")]
    world.send(queue, "e")
    assert given(world.deliveries) == [(one, "e")]


def test_a_drained_receiver_gets_what_there_is_and_no_more() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    world.send(queue, "a")
    world.do(Credit(receiver, 5, drain=True))
    assert given(world.deliveries) == [(receiver, "a"), (receiver, "drained")]
    world.send(queue, "b")
    assert world.deliveries == []


def test_a_receiver_can_be_drained_while_it_waits() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 5)
    world.do(Credit(receiver, 5, drain=True))
    assert given(world.deliveries) == [(receiver, "drained")]
    world.send(queue, "b")
    assert world.deliveries == []


def test_a_detached_receiver_gets_nothing() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 5)
    world.do(Detach(receiver))
    world.send(queue, "a")
    assert world.deliveries == []
    assert world.info(queue).receivers == 0


def test_locks_live_on_when_their_receiver_is_gone() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    receiver = world.attach(queue, 1)
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    world.do(Detach(receiver))
    world.do(Complete(queue, [delivery.token]))
    assert world.peek(queue) == []


def test_bound_locks_end_with_their_receiver() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    receiver = world.attach(queue, 2, bound=True)
    one, two = [each for each in world.deliveries if isinstance(each, Delivery)]
    world.do(Complete(queue, [one.token]))
    world.do(Detach(receiver))
    assert world.peek(queue) == [(2, "active")]
    with pytest.raises(LockLost):
        world.do(Complete(queue, [two.token]))
    [again] = world.receive(queue)
    assert again.count == 2


def test_what_a_gone_receiver_held_goes_to_the_others() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    receiver = world.attach(queue, 2, bound=True)
    other = world.attach(queue, 1)
    world.do(Detach(receiver))
    assert given(world.deliveries) == [(other, "a")]


def test_a_detach_counts_only_where_all_endings_do() -> None:
    world = World()
    queue = world.queue(counting="abandon", max_delivery=1)
    world.send(queue, "a")
    for _ in range(3):
        receiver = world.attach(queue, 1, bound=True)
        [delivery] = world.deliveries
        assert isinstance(delivery, Delivery)
        assert delivery.count == 1
        world.do(Detach(receiver))


def test_a_last_delivery_that_ends_with_its_receiver_is_dead_lettered() -> None:
    world = World()
    queue = world.queue(max_delivery=1)
    world.send(queue, "a")
    watcher = world.attach(dead_letter_queue(queue), 1)
    world.do(Detach(world.attach(queue, 1, bound=True)))
    [dead] = world.deliveries
    assert isinstance(dead, Delivery)
    assert dead.receiver == watcher
    assert dead.note is not None
    assert dead.note.reason == "MaxDeliveryCountExceeded"


def test_locks_can_be_bound_only_to_a_receiver_of_the_same_queue() -> None:
    world = World()
    queue, other = world.queue("a"), world.queue("b")
    connection = world.attach(other)
    world.send(queue, "x")
    with pytest.raises(InvalidArgument):
        world.receive(queue, bound=connection)


def test_locks_cannot_be_bound_to_a_receiver_that_asks_once() -> None:
    world = World()
    queue = world.queue()
    waiting = world.wait(queue)
    with pytest.raises(InvalidArgument):
        world.receive(queue, bound=waiting)


def test_a_wait_ends_with_the_receiver_it_is_bound_to() -> None:
    world = World()
    queue = world.queue()
    connection = world.attach(queue)
    world.wait(queue, bound=connection)
    world.do(Detach(connection))
    world.send(queue, "x")
    assert world.deliveries == []
    assert world.peek(queue) == [(1, "active")]


def test_a_receiver_and_its_waits_end_with_their_queue() -> None:
    world = World()
    queue = world.queue()
    connection = world.attach(queue)
    waiting = world.wait(queue, bound=connection)
    world.do(DeleteQueue(queue))
    assert given(world.deliveries) == [(connection, "deleted"), (waiting, "deleted")]


def test_an_answered_wait_leaves_the_receiver_it_was_bound_to() -> None:
    world = World()
    queue = world.queue()
    connection = world.attach(queue)
    waiting = world.wait(queue, bound=connection)
    world.send(queue, "x")
    assert given(world.deliveries) == [(waiting, "x")]
    world.do(Detach(connection))
    assert world.peek(queue) == [(1, "active")]


def test_a_receiver_may_receive_and_delete() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 2, delete=True)
    world.send(queue, "a")
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    assert (delivery.receiver, delivery.token) == (receiver, 0)
    assert world.peek(queue) == []


def test_a_receiver_may_choose_how_long_it_locks() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 1, lock_ms=5)
    world.send(queue, "a")
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    assert delivery.until_ms == 1_005


def test_an_abandoned_message_comes_back_with_what_was_changed() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    world.attach(queue, 3)
    for n in (1, 2):
        [delivery] = world.deliveries
        assert isinstance(delivery, Delivery)
        assert delivery.count == n
        world.do(Abandon(queue, [delivery.token], properties={f"p{n}": n}))
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    assert delivery.note is not None
    assert delivery.note.properties == {"p1": 1, "p2": 2}


def test_credit_is_limited() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    for credit in (-1, CREDIT_MAX + 1):
        with pytest.raises(InvalidArgument):
            world.do(Attach(queue, world.new_receiver(), credit))
        with pytest.raises(InvalidArgument):
            world.do(Credit(receiver, credit))


def test_a_receiver_that_is_not_there_gets_no_credit() -> None:
    with pytest.raises(NotFound):
        World().do(Credit(5, 1))


def test_credit_is_not_for_one_that_waits_for_a_session() -> None:
    world = World()
    queue = world.queue(grouping="session")
    receiver = world.wait_for_session(queue)
    with pytest.raises(Refused):
        world.do(Credit(receiver, 1))


def test_credit_for_one_that_waits_for_a_session_breaks_nothing() -> None:
    world = World()
    queue = world.queue(grouping="session")
    receiver = world.wait_for_session(queue)
    try:
        world.do(Credit(receiver, 1))
    except Refused:
        return
    world.do(Pause(queue, receiving=True))
    world.send(queue, a_message("a", group="x"))
    world.do(Resume(queue, receiving=True))
    assert given(world.advance(0)) == [(receiver, "x")]


def test_only_what_is_due_now_is_pushed() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 5)
    world.do(Send(queue, [a_message("later", due_ms=2_000), a_message("now", ttl_ms=50)]))
    assert bodies(world.deliveries) == ["now"]
    assert bodies(world.advance(1_000)) == ["later"]


def test_who_has_waited_too_long_gets_nothing_that_comes_at_that_moment() -> None:
    world = World()
    queue = world.queue(lock_ms=50)
    world.send(queue, "a")
    world.receive(queue)
    waiting = world.wait(queue, ms=50)
    assert given(world.advance(50)) == [(waiting, "timed-out")]
    assert world.peek(queue) == [(1, "active")]


def test_receivers_are_told_of_a_pause_and_of_nothing_else() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    world.do(UpdateQueue(queue, QueueProperties(lock_ms=5)))
    assert world.deliveries == []
    world.do(Pause(queue, receiving=True))
    assert given(world.deliveries) == [(receiver, "paused")]
    world.do(Pause(queue, sending=True))
    assert world.deliveries == []
