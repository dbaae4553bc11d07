"""Messages that are received for no time: delivered, counted, and at once back in their places."""

import pytest

from posthouse.core.commands import Attach, Complete, Receive, Received, Renew
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, LockLost
from posthouse.core.message import Attempt
from posthouse.core.model import LOCK_MS, dead_letter_queue
from posthouse.core.records import DeadLettered, Locked, Returned
from tests.core.world import World, a_message, bodies, given
from tests.invariants import check


def same_after_a_restart(world: World) -> bool:
    check(world.state, world.now_ms)
    return dump(world.replayed()) == dump(world.state)


def test_a_message_received_for_no_time_is_counted_and_at_once_back() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    outcome = world.do(Receive(queue, 1, 2, lock_ms=0))
    assert [type(each) for each in outcome.records] == [Locked, Returned]
    assert isinstance(outcome.answer, Received)
    assert [(each.count, each.until_ms) for each in outcome.answer.deliveries] == [
        (1, world.now_ms), (1, world.now_ms)
    ]  # fmt: skip
    assert world.counts(queue).active == 2
    assert [(each.count, each.message.sequence) for each in world.receive(queue, 2)] == [
        (2, 1), (2, 2)
    ]  # fmt: skip
    assert same_after_a_restart(world)


def test_the_lock_time_of_a_queue_can_be_none_too() -> None:
    world = World()
    queue = world.queue(lock_ms=0)
    world.send(queue, "a")
    assert [world.receive(queue)[0].count for _ in range(3)] == [1, 2, 3]
    [held] = world.receive(queue, lock_ms=500)
    assert held.until_ms == world.now_ms + 500
    assert world.receive(queue) == []


def test_its_lock_is_lost_and_it_can_be_settled_late() -> None:
    world = World()
    queue = world.queue(lock_ms=0, late_settling=True)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))
    world.do(Renew(queue, [Attempt(1, 1)]))
    assert world.receive(queue) == []
    world.advance(LOCK_MS)
    [again] = world.receive(queue, lock_ms=1)
    assert again.count == 2
    world.do(Complete(queue, [Attempt(1, 2)]))
    assert world.peek(queue) == []
    assert same_after_a_restart(world)


def test_the_last_delivery_dead_letters_it_at_once() -> None:
    world = World()
    queue = world.queue(max_delivery=2, lock_ms=0)
    world.send(queue, "a", "b")
    world.receive(queue)
    outcome = world.do(Receive(queue, 1, 2))
    assert [type(each) for each in outcome.records] == [Locked, Returned, DeadLettered]
    assert isinstance(outcome.answer, Received)
    assert bodies(outcome.answer.deliveries) == ["a", "b"]
    assert world.peek(queue) == [(2, "active")]
    [dead] = world.receive(dead_letter_queue(queue), lock_ms=50)
    assert dead.count == 3
    assert same_after_a_restart(world)


def test_it_is_held_back_where_the_queue_says_so() -> None:
    world = World()
    queue = world.queue(lock_ms=0, backoff_ms=[700])
    world.send(queue, "a")
    assert bodies(world.receive(queue)) == ["a"]
    assert world.receive(queue) == []
    world.advance(700)
    assert bodies(world.receive(queue)) == ["a"]


def test_what_does_not_count_does_not_count_for_no_time_either() -> None:
    world = World()
    queue = world.queue(lock_ms=0, counting="abandon")
    world.send(queue, "a")
    assert [world.receive(queue)[0].count for _ in range(2)] == [1, 1]


def test_who_waits_gets_it_for_no_time_and_the_next_gets_it_then() -> None:
    world = World()
    queue = world.queue(lock_ms=0)
    first, second = world.wait(queue), world.wait(queue)
    world.send(queue, "a")
    assert given(world.deliveries) == [(first, "a")]
    assert given(world.advance(0)) == [(second, "a")]
    world.advance(0)
    assert world.receive(queue)[0].count == 3
    assert same_after_a_restart(world)


def test_in_a_group_the_next_waits_behind_it() -> None:
    world = World()
    queue = world.queue(grouping="group", lock_ms=0)
    world.send(queue, a_message("a", group="g"), a_message("b", group="g"))
    assert [bodies(world.receive(queue, 2)) for _ in range(2)] == [["a"], ["a"]]
    assert same_after_a_restart(world)


def test_a_receiver_with_credit_and_a_session_hold_what_they_get() -> None:
    world = World()
    queue = world.queue(lock_ms=0)
    world.send(queue, "a")
    world.attach(queue, 1)
    [delivery] = world.deliveries
    assert world.state.lock_timers.first == world.now_ms + LOCK_MS
    assert given([delivery])[0][1] == "a"
    sessions = world.queue("sessions", requires_session=True, lock_ms=0)
    world.send(sessions, a_message("b", group="s"))
    held = world.hold(sessions, "s")
    assert held.until_ms == world.now_ms + LOCK_MS
    [in_session] = world.receive(sessions, session=held.token, lock_ms=0)
    world.do(Complete(sessions, [in_session.token], session=held.token))


def test_what_is_taken_out_for_good_is_gone() -> None:
    world = World()
    queue = world.queue(lock_ms=0)
    world.send(queue, "a")
    assert bodies(world.receive(queue, delete=True)) == ["a"]
    assert world.receive(queue) == []


def test_no_time_less_than_none_can_be_asked_for() -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument, match="lock_ms"):
        world.do(Receive(queue, 1, lock_ms=-1))
    world.do(Attach(queue, 2, lock_ms=0))
    assert world.state.receivers[2].lock_ms is None
