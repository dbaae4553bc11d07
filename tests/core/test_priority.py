"""Priorities: 9 comes first where the queue's order says so."""

import pytest

from posthouse.core.commands import Abandon, Complete, DeadLetter
from posthouse.core.model import dead_letter_queue
from tests.core.world import World, a_message, bodies, given


def numbered(*priorities: int) -> list[str]:
    return [f"{priority}" for priority in priorities]


def send(world: World, queue: str, *priorities: int) -> None:
    world.send(queue, *[a_message(str(each), priority=each) for each in priorities])


def test_the_highest_priority_comes_first() -> None:
    world = World()
    queue = world.queue(order="priority")
    send(world, queue, 4, 0, 9, 5)
    assert bodies(world.receive(queue, 5)) == numbered(9, 5, 4, 0)


def test_inside_one_priority_the_first_comes_first() -> None:
    world = World()
    queue = world.queue(order="priority")
    world.send(queue, "a", a_message("b", priority=9), "c", a_message("d", priority=9))
    assert bodies(world.receive(queue, 5)) == ["b", "d", "a", "c"]


def test_in_order_of_arrival_priority_means_nothing() -> None:
    world = World()
    queue = world.queue()
    send(world, queue, 4, 0, 9)
    assert bodies(world.receive(queue, 5)) == numbered(4, 0, 9)


@pytest.mark.parametrize("delay_ms", [0, 50])
def test_a_message_returns_to_its_place_among_priorities(delay_ms: int) -> None:
    world = World()
    queue = world.queue(order="priority")
    send(world, queue, 5, 9, 4)
    nine, five = world.receive(queue, 2)
    world.do(Abandon(queue, [nine.token, five.token], delay_ms=delay_ms))
    world.advance(delay_ms)
    assert bodies(world.receive(queue, 5)) == numbered(9, 5, 4)


def test_a_batch_is_dealt_out_by_priority() -> None:
    world = World()
    queue = world.queue(order="priority")
    one, two = world.wait(queue), world.wait(queue)
    send(world, queue, 1, 9, 5)
    assert given(world.deliveries) == [(one, "9"), (two, "5")]


def test_a_scheduled_message_takes_its_place_by_priority() -> None:
    world = World()
    queue = world.queue(order="priority")
    world.send(queue, "a", a_message("b", priority=9, due_ms=1_010))
    world.advance(10)
    assert bodies(world.receive(queue, 2)) == ["b", "a"]


def test_completed_messages_leave_their_priorities() -> None:
    world = World()
    queue = world.queue(order="priority")
    send(world, queue, 1, 9)
    world.do(Complete(queue, [each.token for each in world.receive(queue, 2)]))
    assert world.receive(queue, 2) == []


def test_dead_letters_stand_in_order_of_arrival() -> None:
    world = World()
    queue = world.queue(order="priority")
    send(world, queue, 1, 9)
    nine, one = world.receive(queue, 2)
    world.do(DeadLetter(queue, [one.token]))
    world.do(DeadLetter(queue, [nine.token]))
    assert bodies(world.receive(dead_letter_queue(queue), 2)) == numbered(1, 9)


def test_the_expired_are_passed_over_in_every_priority() -> None:
    world = World()
    queue = world.queue(order="priority")
    world.send(
        queue, a_message("late", priority=5, ttl_ms=10), a_message("low", priority=1),
        a_message("high", priority=9), a_message("middle", priority=5),
    )  # fmt: skip
    world.now_ms += 10
    assert bodies(world.receive(queue, 2)) == ["high", "middle"]
    assert bodies(world.receive(queue, 2)) == ["low"]
