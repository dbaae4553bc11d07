"""Queues that are full: what gives way, and what is told of it."""

import pytest

from posthouse.core.commands import Enqueued, Peek, Peeked, Send
from posthouse.core.dump import dump
from posthouse.core.errors import QuotaExceeded
from posthouse.core.model import dead_letter_queue
from tests.core.world import World, a_message, bodies
from tests.invariants import check, check_positions


def held(world: World, queue: str) -> list[str]:
    answer = world.do(Peek(queue, limit=100)).answer
    assert isinstance(answer, Peeked)
    return [bytes(seen.message.body).decode() for seen in answer.messages]


def enqueued(world: World, queue: str, *messages: str) -> Enqueued:
    answer = world.do(Send(queue, [a_message(each) for each in messages])).answer
    assert isinstance(answer, Enqueued)
    return answer


def sound(world: World) -> None:
    check(world.state, world.now_ms)
    check_positions(world.state, world.journal)
    assert dump(world.replayed()) == dump(world.state)


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
    assert world.do(Send(queue, new)).answer == Enqueued([1, 0], 1, 1)
    world.receive(queue, delete=True)
    assert world.do(Send(queue, new)).answer == Enqueued([1, 4], 1)
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
    assert enqueued(world, queue, "a", "b", "c") == Enqueued(range(1, 4))
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
