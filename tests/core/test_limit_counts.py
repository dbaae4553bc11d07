"""A limit that counts only the messages that wait: a locked message leaves room for another."""

from typing import Any

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    Abandon,
    Admitted,
    Begin,
    Begun,
    Commit,
    Committed,
    Complete,
    DeadLetter,
    Defer,
    Detach,
    Enqueued,
    Pause,
    ReceiveDeferred,
    Release,
    Resubmit,
    Resume,
    RolledBack,
    Send,
    UpdateQueue,
    Work,
)
from posthouse.core.errors import QuotaExceeded
from posthouse.core.model import QueueProperties, dead_letter_queue
from tests.core.sound import held, sound
from tests.core.test_overflow import blocked, enqueued
from tests.core.world import World, a_message, bodies

KINDS = ["reject", "block", "drop-oldest", "drop-newest", "to-dead-letter"]


def a_queue(world: World, most: int, **properties: Any) -> str:
    return world.queue(max_messages=most, limit_counts="waiting", **properties)


@pytest.mark.parametrize("overflow", KINDS)
def test_a_locked_message_leaves_room_for_another(overflow: str) -> None:
    world = World()
    queue = a_queue(world, 2, overflow=overflow)
    world.send(queue, "a", "b")
    world.receive(queue)
    assert enqueued(world, queue, "c") == Enqueued(range(3, 4))
    assert held(world, queue) == ["a", "b", "c"]
    sound(world)


@pytest.mark.parametrize("how", [Abandon, Release])
@pytest.mark.parametrize("overflow", KINDS)
def test_a_message_that_comes_back_above_the_limit_is_kept(
    overflow: str, how: type[Abandon | Release]
) -> None:
    world = World()
    queue = a_queue(world, 2, overflow=overflow)
    world.send(queue, "a", "b")
    [first] = world.receive(queue)
    world.send(queue, "c")
    world.do(how(queue, [first.token]))
    world.advance(0)
    assert held(world, queue) == ["a", "b", "c"]
    assert bodies(world.receive(queue, 3)) == ["a", "b", "c"]
    world.advance(60_000)  # the locks expire
    assert held(world, queue) == ["a", "b", "c"]
    assert held(world, dead_letter_queue(queue)) == []
    sound(world)


def a_queue_above_its_limit(world: World, overflow: str) -> str:
    queue = a_queue(world, 2, overflow=overflow)
    world.send(queue, "a", "b")
    deliveries = world.receive(queue, 2)
    world.send(queue, "c", "d")
    world.do(Release(queue, [delivery.token for delivery in deliveries]))
    assert world.info(queue).counts.active == 4
    return queue


def test_a_queue_above_its_limit_refuses_until_it_is_below() -> None:
    world = World()
    queue = a_queue_above_its_limit(world, "reject")
    for left in (3, 2):
        with pytest.raises(QuotaExceeded) as refusal:
            world.send(queue, "no")
        assert refusal.value.current == left + 1
        world.receive(queue)
    with pytest.raises(QuotaExceeded):
        world.send(queue, "no")
    world.receive(queue)
    world.send(queue, "yes")
    sound(world)


def test_a_send_that_waits_is_admitted_when_the_queue_is_below_its_limit_again() -> None:
    world = World()
    queue = a_queue_above_its_limit(world, "block")
    sender = blocked(world, queue, "e")
    for _ in range(2):
        world.receive(queue)
        assert next_deadline_ms(world.state) != 0
    world.receive(queue)
    assert next_deadline_ms(world.state) == 0
    assert world.advance(0) == [Admitted(sender, Enqueued(range(5, 6)))]
    sound(world)


def test_the_oldest_that_wait_give_way_to_what_is_sent_above_the_limit() -> None:
    world = World()
    queue = a_queue_above_its_limit(world, "drop-oldest")
    [first] = world.receive(queue)
    world.send(queue, "e")  # b and c give way: two are left, and the locked one
    assert held(world, queue) == ["a", "d", "e"]
    world.do(Complete(queue, [first.token]))
    sound(world)


def test_the_newest_are_dropped_or_buried_above_the_limit() -> None:
    world = World()
    queue = a_queue_above_its_limit(world, "drop-newest")
    assert enqueued(world, queue, "e") == Enqueued([0], dropped=1)
    sound(world)
    world = World()
    queue = a_queue_above_its_limit(world, "to-dead-letter")
    assert enqueued(world, queue, "e") == Enqueued(range(5, 6), buried=1)
    assert held(world, dead_letter_queue(queue)) == ["e"]
    sound(world)


def test_only_messages_that_wait_are_dropped_for_new_ones() -> None:
    world = World()
    queue = a_queue(world, 2, overflow="drop-oldest")
    world.send(queue, "a", "b")
    world.receive(queue, 2)
    world.send(queue, "c", "d")
    world.send(queue, "e")
    assert held(world, queue) == ["a", "b", "d", "e"]
    with pytest.raises(QuotaExceeded):
        world.send(queue, "f", "g", "h")
    assert held(world, queue) == ["a", "b", "d", "e"]
    sound(world)


def test_a_lock_admits_a_send_that_waits_for_room() -> None:
    world = World()
    queue = a_queue(world, 1, overflow="block")
    world.send(queue, "a")
    first, second = blocked(world, queue, "b"), blocked(world, queue, "c")
    [delivery] = world.receive(queue)
    assert next_deadline_ms(world.state) == 0
    assert world.advance(0) == [Admitted(first, Enqueued(range(2, 3)))]
    world.do(Complete(queue, [delivery.token]))  # makes no room: it did not count any more
    assert world.advance(0) == []
    world.receive(queue)
    assert world.advance(0) == [Admitted(second, Enqueued(range(3, 4)))]
    sound(world)


def test_a_send_that_waits_is_admitted_when_the_limit_counts_less() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    world.receive(queue)
    sender = blocked(world, queue, "b")
    assert world.advance(0) == []
    properties = QueueProperties(max_messages=1, overflow="block", limit_counts="waiting")
    world.do(UpdateQueue(queue, properties))
    assert world.advance(0) == [Admitted(sender, Enqueued(range(2, 3)))]
    sound(world)


def test_locks_that_end_in_a_tick_are_counted_before_somebody_is_admitted() -> None:
    world = World()
    queue = a_queue(world, 2, overflow="block", lock_ms=1_000)
    world.send(queue, "a")
    world.receive(queue)
    world.send(queue, "b", "c")
    sender = blocked(world, queue, "d", ms=5_000)
    world.receive(queue, lock_ms=60_000)
    world.now_ms += 1_000
    world.tick()  # the first lock ends in the tick that would admit
    assert world.deliveries == []
    world.receive(queue)
    assert world.advance(0) == [Admitted(sender, Enqueued(range(4, 5)))]
    sound(world)


def test_who_gets_a_message_in_a_tick_leaves_room_in_the_same_tick() -> None:
    world = World()
    queue = a_queue(world, 1, overflow="block")
    world.attach(queue, 1)
    world.do(Pause(queue, sending=False, receiving=True))
    world.send(queue, "a")
    sender = blocked(world, queue, "b")
    world.do(Resume(queue, sending=False, receiving=True))
    world.tick()
    assert [getattr(each, "receiver", 0) for each in world.deliveries][-1] == sender
    assert held(world, queue) == ["a", "b"]
    sound(world)


def test_a_deferred_message_waits() -> None:
    world = World()
    queue = a_queue(world, 1)
    [sequence] = world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    with pytest.raises(QuotaExceeded):
        world.send(queue, "b")
    world.do(ReceiveDeferred(queue, [sequence]))
    world.send(queue, "b")
    sound(world)


def test_scheduled_and_delayed_messages_wait() -> None:
    world = World()
    queue = a_queue(world, 2)
    world.send(queue, a_message("a", due_ms=90_000), "b")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=5_000))
    with pytest.raises(QuotaExceeded):
        world.send(queue, "c")
    sound(world)


def test_bytes_of_locked_messages_count() -> None:
    world = World()
    queue = world.queue(max_bytes=100, limit_counts="waiting")
    world.send(queue, "x" * 80)
    world.receive(queue)
    with pytest.raises(QuotaExceeded):
        world.send(queue, "y" * 50)


def test_a_dead_letter_is_sent_again_while_another_message_is_locked() -> None:
    world = World()
    queue = a_queue(world, 1)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token]))
    world.send(queue, "b")
    with pytest.raises(QuotaExceeded):
        world.do(Resubmit(dead_letter_queue(queue)))
    world.receive(queue)
    world.do(Resubmit(dead_letter_queue(queue)))
    assert held(world, queue) == ["b", "a"]
    sound(world)


# In a transaction what ends comes before what is sent.


def committed(world: World, *work: Any) -> bool:
    begun = world.do(Begin(1_000)).answer
    assert isinstance(begun, Begun)
    for command in work:
        world.do(Work(begun.transaction, command))
    answer = world.do(Commit(begun.transaction)).answer
    assert isinstance(answer, Committed | RolledBack)
    return isinstance(answer, Committed)


@pytest.mark.parametrize("topic", [False, True])
@pytest.mark.parametrize(
    ("how", "fits"),
    [(Complete, True), (DeadLetter, True), (Abandon, False), (Release, False), (Defer, False)],
)
def test_a_message_that_comes_back_in_a_transaction_takes_room_from_what_is_sent(
    how: Any, fits: bool, topic: bool
) -> None:
    world = World()
    kind = "topic" if topic else "competing"
    entity = a_queue(world, 1, delivery=kind)
    queue = world.subscribe(entity, "a") if topic else entity
    world.send(entity, "a")
    [delivery] = world.receive(queue)
    send = Send(entity, [a_message("b")])
    assert committed(world, how(queue, [delivery.token]), send) is fits
    sound(world)


def test_what_a_transaction_completes_makes_no_room() -> None:
    world = World()
    queue = a_queue(world, 1)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    two = Send(queue, [a_message("b"), a_message("c")])
    assert not committed(world, Complete(queue, [delivery.token]), two)
    sound(world)


# Topics, and queues with a copy for each receiver.


def test_a_topic_counts_what_waits_in_its_subscriptions_whatever_they_count() -> None:
    world = World()
    topic = world.topic(max_messages=2, limit_counts="waiting")
    first, second = world.subscribe(topic, "a"), world.subscribe(topic, "b")
    world.send(topic, "one")
    with pytest.raises(QuotaExceeded):
        world.send(topic, "two")
    for queue in (first, second):
        world.receive(queue)
    world.send(topic, "two")
    sound(world)
    other = world.topic("other", max_messages=1)
    queue = world.subscribe(other, "a", limit_counts="waiting")
    world.send(other, "one")
    world.receive(queue)
    with pytest.raises(QuotaExceeded):
        world.send(other, "two")


def test_a_subscription_gets_another_copy_while_one_is_locked() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_messages=1, limit_counts="waiting")
    world.send(topic, "one")
    world.receive(queue)
    world.send(topic, "two")
    with pytest.raises(QuotaExceeded):
        world.send(topic, "three")
    assert held(world, queue) == ["one", "two"]
    sound(world)


def test_what_a_receiver_of_a_fan_out_queue_leaves_behind_does_not_count() -> None:
    world = World()
    queue = a_queue(world, 2, delivery="fan-out", overflow="block")
    receiver = world.attach(queue, 1)
    world.send(queue, "a")
    world.send(queue, "b", "c")  # a is locked
    sender = blocked(world, queue, "d")
    assert world.advance(0) == []
    world.do(Detach(receiver))
    assert world.advance(0) == [Admitted(sender, Enqueued(range(4, 5)))]
    sound(world)


def test_what_was_locked_by_who_was_attached_before_a_start_is_not_counted_twice() -> None:
    world = World()
    target = world.queue("target", delivery="fan-out", max_messages=1, limit_counts="waiting")
    queue = world.queue("orders")
    world.send(queue, "x", "y")
    tokens = [delivery.token for delivery in world.receive(queue, 2)]
    world.do(DeadLetter(queue, tokens))
    dead = dead_letter_queue(queue)
    world.attach(dead, 2, bound=True)
    world.do(UpdateQueue(queue, QueueProperties(forward_dead_to=target)))
    world.attach(target, 1)
    world.send(target, "a")  # which is locked
    world = world.restarted()  # both dead letters are let go, and there is room for one
    world.advance(0)
    assert (held(world, target), held(world, dead)) == (["x"], ["y"])
    sound(world)
