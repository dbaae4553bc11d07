"""Deliveries that are named by their number, and settled when their lock has ended already."""

from typing import Any

import pytest

from posthouse.core.commands import (
    Abandon,
    Begin,
    Begun,
    Command,
    Commit,
    Committed,
    Complete,
    CreateQueue,
    DeadLetter,
    Defer,
    Delivery,
    Purge,
    Release,
    Renew,
    Settled,
    SettleResult,
    UpdateQueue,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, LockLost, MessageNotFound
from posthouse.core.message import ACTIVE, Attempt
from posthouse.core.model import QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.records import Completed, Relocked
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message, bodies
from tests.invariants import check


def attempt(delivery: Delivery) -> Attempt:
    return Attempt(delivery.message.sequence, delivery.count)


def late_world(**properties: Any) -> tuple[World, str]:
    world = World()
    return world, world.queue(lock_ms=100, late_settling=True, **properties)


def an_ended_delivery(world: World, queue: str) -> Attempt:
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.advance(100)
    return attempt(delivery)


def result(world: World, command: Command) -> Settled:
    answer = world.do(command).answer
    assert isinstance(answer, Settled)
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    return answer


@pytest.mark.parametrize("late", [False, True])
def test_a_delivery_can_be_named_by_its_number_while_it_is_locked(late: bool) -> None:
    world = World()
    queue = world.queue(late_settling=late)
    world.send(queue, "a", "b", "c", "d", "e", "f")
    a, b, c, d, e, f = map(attempt, world.receive(queue, 6))
    assert result(world, Renew(queue, [a], lock_ms=70_000)).until_ms == [world.now_ms + 70_000]
    for command in (
        Complete(queue, [a]), Abandon(queue, [b]), Release(queue, [c]), Defer(queue, [d]),
        DeadLetter(queue, [e]), Complete(queue, [f]),
    ):  # fmt: skip
        assert result(world, command) == Settled()
    counts = [each.count for each in world.state.queues[queue].messages.walk(0)]
    assert world.peek(queue) == [(2, "active"), (3, "active"), (4, "deferred")]
    assert counts == [1, 0, 1]
    assert bodies(world.receive(dead_letter_queue(queue))) == ["e"]


def test_several_are_completed_by_one_command_and_none_twice() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    first, second, third = world.receive(queue, 3)
    outcome = world.do(Complete(queue, [attempt(first), second.token]))
    assert [type(each) for each in outcome.records] == [Completed]
    with pytest.raises(LockLost):
        world.do(Complete(queue, [third.token, attempt(third)]))
    answer = result(world, Complete(queue, [third.token, attempt(third)], partial=True))
    assert answer == Settled([attempt(third)], (), ["settled", "lost"])


def test_without_late_settling_a_delivery_that_has_ended_is_lost() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    old = an_ended_delivery(world, queue)
    for command in (Complete(queue, [old]), Abandon(queue, [old]), Renew(queue, [old])):
        with pytest.raises(LockLost):
            world.do(command)
    [newer] = world.receive(queue)
    with pytest.raises(LockLost):
        world.do(Complete(queue, [old]))
    assert result(world, Complete(queue, [old], partial=True)) == Settled([old], (), ["lost"])
    world.do(Complete(queue, [attempt(newer)]))
    with pytest.raises(MessageNotFound, match="no delivered message with sequence 1"):
        world.do(Complete(queue, [old]))
    assert result(world, Complete(queue, [old], partial=True)).results == ["removed"]


def test_a_lock_that_has_ended_is_lost_before_a_tick_has_noticed_but_for_who_may_be_late() -> None:
    for late in (False, True):
        world = World()
        queue = world.queue(lock_ms=100, late_settling=late)
        world.send(queue, "a")
        [delivery] = world.receive(queue)
        world.now_ms += 100
        if late:
            assert result(world, Complete(queue, [attempt(delivery)])) == Settled()
        else:
            with pytest.raises(LockLost):
                world.do(Complete(queue, [attempt(delivery)]))


def test_a_message_is_completed_though_its_lock_has_ended() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    outcome = world.do(Complete(queue, [old]))
    assert outcome.records == [Completed(queue, [1], None, [], late=True)]
    assert version_needed(outcome.records) == 2
    assert world.peek(queue) == []
    assert world.info(queue).counts.active == 0
    assert dump(world.replayed()) == dump(world.state)


def test_a_message_is_locked_again_for_the_new_time_with_the_same_count() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    assert result(world, Renew(queue, [old])).until_ms == [world.now_ms + 100]
    assert world.receive(queue) == []
    assert world.info(queue).counts.locked == 1
    assert result(world, Renew(queue, [old], lock_ms=500)).until_ms == [world.now_ms + 500]
    world.advance(499)
    assert world.receive(queue) == []
    world.advance(1)
    [again] = world.receive(queue)
    assert (again.count, again.message.sequence) == (2, 1)
    assert version_needed([each for _, each in world.journal if isinstance(each, Relocked)]) == 2


def test_a_renewed_lock_ends_as_any_other() -> None:
    world, queue = late_world(max_delivery=1)
    world.do(UpdateQueue(queue, QueueProperties(lock_ms=100, max_delivery=2, late_settling=True)))
    old = an_ended_delivery(world, queue)
    world.do(Renew(queue, [old]))
    world.advance(100)
    assert world.peek(queue) == [(1, "active")]
    world.receive(queue)
    world.advance(100)
    assert world.peek(queue) == []
    assert len(world.peek(dead_letter_queue(queue))) == 1


def test_abandoning_what_has_come_back_changes_nothing() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    before = dump(world.state)
    assert result(world, Abandon(queue, [old])) == Settled()
    assert dump(world.state) == before


def test_the_lock_of_a_newer_delivery_is_meant_by_the_name_of_an_older() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    world.receive(queue)
    until_ms = world.now_ms + 900
    assert result(world, Renew(queue, [old], lock_ms=900)).until_ms == [until_ms]
    assert result(world, Abandon(queue, [old])) == Settled()
    [third] = world.receive(queue)
    assert third.count == 3
    assert result(world, Complete(queue, [old])) == Settled()
    assert world.peek(queue) == []


def test_what_is_named_twice_is_settled_once() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    world.send(queue, "b")
    held = [attempt(each) for each in world.receive(queue, 2)][1]
    names = [old, held, held]
    assert len(result(world, Renew(queue, names)).until_ms) == 3
    world.advance(100)
    assert len(result(world, Renew(queue, [old, old])).until_ms) == 2
    assert result(world, Complete(queue, [old, held, old, held])) == Settled()
    assert world.peek(queue) == []


def test_a_delivery_that_never_was_is_lost() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    wrong = [Attempt(1, 2), Attempt(1, 0), Attempt(1, -1), Attempt(2, 1), Attempt(0, 1)]
    answer = result(world, Complete(queue, [*wrong, old], partial=True))
    lost: list[SettleResult] = ["lost"] * len(wrong)
    assert answer == Settled(wrong, (), [*lost, "settled"])


def test_each_result_is_told_of_what_was_renewed_in_part() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    world.send(queue, "b")
    [_, other] = world.receive(queue, 2)
    world.do(Complete(queue, [other.token]))
    gone = attempt(other)
    answer = result(world, Renew(queue, [gone, old], partial=True))
    assert answer == Settled([gone], [world.now_ms + 100], ["removed", "settled"])
    with pytest.raises(MessageNotFound):
        world.do(Renew(queue, [old, gone]))


def test_a_message_that_was_moved_purged_or_has_expired_is_told_as_removed() -> None:
    for end in ("expire", "purge", "bury"):
        world, queue = late_world(ttl_ms=150)
        old = an_ended_delivery(world, queue)
        if end == "expire":
            world.now_ms += 50
        elif end == "purge":
            world.do(Purge(queue, frozenset({ACTIVE})))
        else:
            [delivery] = world.receive(queue)
            world.do(DeadLetter(queue, [delivery.token]))
        for kind in (Complete, Abandon, Renew):
            assert result(world, kind(queue, [old], partial=True)).results == ["removed"]


def test_a_delayed_message_can_be_completed_or_locked_again() -> None:
    world, queue = late_world()
    world.send(queue, "a", "b")
    a, b = world.receive(queue, 2)
    world.do(Abandon(queue, [a.token, b.token], delay_ms=1_000))
    assert result(world, Complete(queue, [attempt(a)])) == Settled()
    assert result(world, Renew(queue, [attempt(b)])).until_ms == [world.now_ms + 100]
    world.advance(100)
    assert bodies(world.receive(queue, 2)) == ["b"]


def test_what_was_deferred_is_settled_by_that() -> None:
    world, queue = late_world()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    for kind in (Complete, Abandon, Renew):
        assert result(world, kind(queue, [attempt(delivery)], partial=True)).results == ["lost"]


def test_the_other_ways_to_settle_want_a_lock_that_holds() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    for kind in (Release, Defer, DeadLetter):
        with pytest.raises(LockLost):
            world.do(kind(queue, [old]))
    world.receive(queue)
    for kind in (Release, Defer, DeadLetter):
        with pytest.raises(LockLost):
            world.do(kind(queue, [old]))


def test_dead_letters_are_settled_late_as_the_messages_of_their_queue() -> None:
    world, queue = late_world(max_delivery=1)
    an_ended_delivery(world, queue)
    dead = dead_letter_queue(queue)
    [delivery] = world.receive(dead)
    world.advance(100)
    assert result(world, Complete(dead, [attempt(delivery)])) == Settled()
    assert world.peek(dead) == []


def test_what_a_transaction_settles_is_not_settled_late_by_others() -> None:
    world, queue = late_world()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    begun = world.do(Begin()).answer
    assert isinstance(begun, Begun)
    world.do(Work(begun.transaction, Complete(queue, [attempt(delivery)])))
    world.advance(100)
    for kind in (Complete, Abandon, Renew):
        with pytest.raises(LockLost):
            world.do(kind(queue, [attempt(delivery)]))
    assert world.do(Commit(begun.transaction)).answer == Committed([], 1)
    assert world.peek(queue) == []


def test_a_transaction_takes_only_deliveries_that_are_still_held() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    begun = world.do(Begin()).answer
    assert isinstance(begun, Begun)
    with pytest.raises(LockLost):
        world.do(Work(begun.transaction, Complete(queue, [old])))


def test_in_a_session_a_delivery_is_named_by_its_number_while_the_session_is_held() -> None:
    world = World()
    queue = world.queue(requires_session=True)
    world.send(queue, a_message("a", group="s"))
    granted = world.hold(queue, "s")
    [delivery] = world.receive(queue, session=granted.token)
    with pytest.raises(LockLost):
        world.do(Complete(queue, [Attempt(1, 2)], session=granted.token))
    world.do(Complete(queue, [attempt(delivery)], session=granted.token))
    assert world.peek(queue) == []


def test_a_number_means_nothing_without_its_queue() -> None:
    world, queue = late_world()
    old = an_ended_delivery(world, queue)
    with pytest.raises(InvalidArgument, match="queue is needed where a delivery is named"):
        world.do(Complete(None, [old]))


def test_late_settling_goes_not_with_groups_topics_or_fan_out() -> None:
    world = World()
    for other in (
        {"grouping": "group"}, {"requires_session": True}, {"delivery": "topic"},
        {"delivery": "fan-out"},
    ):  # fmt: skip
        properties = QueueProperties(late_settling=True, **other)
        with pytest.raises(InvalidArgument, match="late_settling"):
            world.do(CreateQueue("q", properties))
    world.topic("news")
    world.subscribe("news", "s", late_settling=True, lock_ms=100)
    world.send("news", "a")
    queue = subscription_queue("news", "s")
    [delivery] = world.receive(queue)
    world.advance(100)
    assert result(world, Complete(queue, [attempt(delivery)])) == Settled()
