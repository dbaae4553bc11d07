"""Queues that are full: what gives way, and what is told of it."""

import sys

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    Admitted,
    Complete,
    DeleteQueue,
    Detach,
    Enqueued,
    Notice,
    Send,
    StepClock,
    UpdateQueue,
    Waiting,
)
from posthouse.core.dump import dump
from posthouse.core.errors import Busy, InvalidArgument, QuotaExceeded
from posthouse.core.model import QueueProperties, dead_letter_queue
from tests.core.sound import held, sound
from tests.core.world import World, a_message, bodies


def enqueued(world: World, queue: str, *messages: str) -> Enqueued:
    answer = world.do(Send(queue, [a_message(each) for each in messages])).answer
    assert isinstance(answer, Enqueued)
    return answer


def test_a_full_queue_refuses_if_nothing_else_is_said() -> None:
    world = World()
    queue = world.queue(max_messages=2)
    with pytest.raises(QuotaExceeded):
        world.send(queue, "a", "b", "c")
    assert held(world, queue) == []


def test_the_newest_may_be_dropped_and_that_is_told() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="drop-newest")
    assert enqueued(world, queue, "a", "b", "c") == Enqueued([1, 2, 0], dropped=1)
    assert enqueued(world, queue, "d") == Enqueued([0], dropped=1)
    assert held(world, queue) == ["a", "b"]
    assert bodies(world.receive(queue, 5)) == ["a", "b"]
    sound(world)


def test_what_was_dropped_may_be_sent_again() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="drop-newest", duplicate_detection=True)
    new = [a_message("a", id="1"), a_message("b", id="2")]
    assert world.do(Send(queue, new)).answer == Enqueued([1, 0], dropped=1)
    assert world.do(Send(queue, new)).answer == Enqueued([1, 0], 1, 1, first_ids={0: "1"})
    world.receive(queue, delete=True)
    assert world.do(Send(queue, new)).answer == Enqueued([1, 4], 1, first_ids={0: "1"})
    sound(world)


def test_the_oldest_may_be_dropped() -> None:
    world = World()
    queue = world.queue(max_messages=3, overflow="drop-oldest")
    world.send(queue, "a", "b", "c")
    world.receive(queue)  # who holds a message keeps it
    assert enqueued(world, queue, "d", "e") == Enqueued(range(4, 6))
    assert held(world, queue) == ["a", "d", "e"]
    sound(world)


def test_as_few_of_the_oldest_are_dropped_as_make_room() -> None:
    world = World()
    size = len(a_message("x" * 10).envelope) + 10
    queue = world.queue(max_bytes=3 * size, overflow="drop-oldest")
    world.send(queue, "a" * 10, "b" * 10, "c" * 10)
    world.send(queue, "d" * 10)
    assert held(world, queue) == ["b" * 10, "c" * 10, "d" * 10]
    sound(world)


def test_what_nothing_can_make_room_for_is_refused() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="drop-oldest")
    world.send(queue, "a", "b")
    with pytest.raises(QuotaExceeded):
        world.send(queue, "c", "d", "e")
    world.receive(queue, 2)
    with pytest.raises(QuotaExceeded):
        world.send(queue, "c")
    sound(world)


def test_what_does_not_fit_may_go_to_the_dead_letters() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="to-dead-letter")
    receiver = world.attach(dead_letter_queue(queue), credit=5)
    assert enqueued(world, queue, "a", "b", "c") == Enqueued(range(1, 4), buried=1)
    assert bodies(world.deliveries) == ["c"]
    assert [each.receiver for each in world.deliveries] == [receiver]
    assert (held(world, queue), held(world, dead_letter_queue(queue))) == (["a", "b"], ["c"])
    sound(world)


def test_dropping_from_a_group_sets_the_rest_of_it_free() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="drop-oldest", grouping="group")
    world.send(queue, a_message("a", group="g"), a_message("b", group="g"))
    world.send(queue, a_message("c", group="g"))
    assert bodies(world.receive(queue, 5)) == ["b"]
    sound(world)


# Waiting for room.


def blocked(world: World, queue: str, *messages: str, ms: int = 1_000) -> int:
    """A sender that waits."""
    sender = world.new_receiver()
    new = [a_message(each) for each in messages]
    command = Send(queue, new, deadline_ms=world.now_ms + ms, sender=sender)
    assert world.do(command).answer == Waiting(sender)
    return sender


def test_a_send_may_wait_for_room() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="block")
    world.send(queue, "a", "b")
    with pytest.raises(QuotaExceeded):
        world.send(queue, "nobody waits")
    first, second = blocked(world, queue, "c"), blocked(world, queue, "d", ms=5_000)
    assert next_deadline_ms(world.state) == world.now_ms + 1_000
    world.receive(queue, delete=True)
    assert next_deadline_ms(world.state) == 0
    world.advance(0)
    assert world.deliveries == [Admitted(first, Enqueued(range(3, 4)))]
    assert held(world, queue) == ["b", "c"]
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    world.advance(0)
    assert world.deliveries == [Admitted(second, Enqueued(range(4, 5)))]
    assert not world.state.crowded
    sound(world)


def test_who_comes_later_waits_behind_those_who_wait() -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow="block")
    world.send(queue, "a")
    first = blocked(world, queue, "b", "c")
    second = blocked(world, queue, "d")  # there would be room for it
    world.receive(queue, delete=True)
    world.advance(0)
    assert [each.receiver for each in world.deliveries] == [first]
    world.receive(queue, 2, delete=True)
    world.advance(0)
    assert [each.receiver for each in world.deliveries] == [second]
    assert held(world, queue) == ["d"]
    sound(world)


def test_a_send_waits_until_its_deadline() -> None:
    world = World()
    queue = world.queue(max_bytes=100, overflow="block")
    world.send(queue, "x" * 80)
    sender = blocked(world, queue, "y" * 50)
    world.do(StepClock(5_000))
    world.now_ms += 5_000
    assert world.advance(999) == []
    assert world.advance(1) == [Notice(sender, "timed-out")]
    assert not world.state.blocked
    sound(world)


def test_a_waiting_send_ends_with_its_queue_or_when_it_is_given_up() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    first, second = blocked(world, queue, "b"), blocked(world, queue, "c")
    world.do(Detach(first))
    assert list(world.state.blocked) == [second]
    world.do(DeleteQueue(queue))
    assert world.deliveries == [Notice(second, "deleted")]
    assert not world.state.blocked
    assert "blocked" in dump(world.state, passing=True)["passing"]


def test_a_waiting_send_is_not_admitted_where_it_would_be_refused() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    sender = blocked(world, queue, "b")
    world.do(UpdateQueue(queue, QueueProperties(max_messages=5, overflow="block",
                                                max_message_bytes=1)))  # fmt: skip
    world.tick()
    assert world.deliveries == []
    world.do(UpdateQueue(queue, QueueProperties(max_messages=5, status="send-disabled")))
    assert next_deadline_ms(world.state) == world.now_ms + 1_000
    assert world.advance(1_000) == [Notice(sender, "timed-out")]


def test_what_never_fits_does_not_wait() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    sender, deadline_ms = world.new_receiver(), world.now_ms + 1_000
    two = [a_message("a"), a_message("b")]
    with pytest.raises(QuotaExceeded):
        world.do(Send(queue, two, deadline_ms=deadline_ms, sender=sender))
    assert world.do(
        Send(queue, two[:1], deadline_ms=deadline_ms, sender=sender)
    ).answer == Enqueued(range(1, 2))
    with pytest.raises(QuotaExceeded):
        world.do(Send(queue, two[:1], deadline_ms=world.now_ms, sender=sender))
    waiting = blocked(world, queue, "c")
    for number in (waiting, -1):
        with pytest.raises(InvalidArgument, match="sender"):
            world.do(Send(queue, two[:1], deadline_ms=deadline_ms, sender=number))


def test_there_is_an_end_to_who_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["posthouse.core.sending"], "BLOCKED_MAX", 1)
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    blocked(world, queue, "b")
    with pytest.raises(Busy):
        blocked(world, queue, "c")


def test_what_gives_way_to_many_copies_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["posthouse.core.room"], "LOOK_MAX", 10)
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "s", max_messages=100, overflow="drop-oldest")
    world.send(topic, *(f"{n}" for n in range(100)))
    world.send(topic, *(f"{n}" for n in range(100, 200)))  # one by one, from the last on
    assert held(world, queue) == [f"{n}" for n in range(100, 200)]
    sound(world)
