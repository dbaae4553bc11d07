"""Fan-out: everybody who is attached gets everything."""

from typing import Any

import pytest

from posthouse.core import receiving
from posthouse.core.commands import (
    Abandon,
    Complete,
    CreateSubscription,
    DeleteQueue,
    Detach,
    ListSubscriptions,
    Notice,
    Resubmit,
)
from posthouse.core.errors import Disabled, InvalidArgument, NotAllowed, NotFound, QuotaExceeded
from posthouse.core.model import dead_letter_queue
from tests.core.sound import held, sound
from tests.core.world import World, a_message, given


def test_everybody_gets_everything_and_acknowledges_it() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    first, second = world.attach(queue, 5), world.attach(queue, 5)
    world.send(queue, "a")
    assert given(world.deliveries) == [(first, "a"), (second, "a")]
    mine, other = (each.token for each in world.deliveries)  # type: ignore[union-attr]
    world.do(Complete(queue, [mine]))
    world.do(Abandon(queue, [other]))
    assert given(world.deliveries) == [(second, "a")]
    assert world.counts(queue).active == 0
    sound(world)


def test_without_acknowledgement_it_is_gone_with_the_delivery() -> None:
    world = World()
    queue = world.queue(delivery="fan-out-unacknowledged")
    receivers = [world.attach(queue, 5) for _ in range(3)]
    world.send(queue, "a")
    assert given(world.deliveries) == [(each, "a") for each in receivers]
    assert {each.token for each in world.deliveries} == {0}  # type: ignore[union-attr]
    assert world.info(queue).size_bytes == 0
    sound(world)


def test_what_comes_while_nobody_is_there_waits_for_the_first() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    world.send(queue, "a", "b")
    assert held(world, queue) == ["a", "b"]
    sound(world)
    first = world.attach(queue, 5)
    world.send(queue, "c")  # it does not overtake
    got = world.advance(1)
    assert given(got) == [(first, "a"), (first, "b"), (first, "c")]
    second = world.attach(queue, 5)
    world.send(queue, "d")
    assert given(world.deliveries) == [(first, "d"), (second, "d")]
    sound(world)


def test_who_leaves_takes_what_was_his_along() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    first, second = world.attach(queue, 1), world.attach(queue, 1)
    world.send(queue, "a", "b")
    world.do(Detach(first))
    world.advance(1)
    assert world.info(queue).subscriptions == 1
    world.do(Detach(second))
    world.advance(1)
    world.send(queue, "c")
    assert held(world, queue) == ["c"]
    assert set(world.state.queues) == {queue, dead_letter_queue(queue)}
    sound(world)


def test_a_restart_is_the_end_of_all_who_were_attached() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    world.attach(queue, 1)
    world.send(queue, "a", "b")
    again = world.restarted()
    again.advance(1)
    assert set(again.state.queues) == {queue, dead_letter_queue(queue)}
    again.send(queue, "c")
    assert held(again, queue) == ["c"]
    sound(again)


def test_what_one_cannot_handle_is_among_the_dead_letters_of_the_queue() -> None:
    world = World()
    queue = world.queue(delivery="fan-out", max_delivery=1)
    first, _ = world.attach(queue, 5), world.attach(queue, 5)
    world.send(queue, "bad")
    [token] = [each.token for each in world.deliveries if each.receiver == first]  # type: ignore[union-attr]
    world.do(Abandon(queue, [token]))
    dead = dead_letter_queue(queue)
    assert held(world, dead) == ["bad"]
    sound(world)
    world.do(Resubmit(dead))
    assert [each.receiver for each in world.deliveries] == list(world.state.receivers)
    sound(world)


def test_scheduled_messages_are_given_to_who_is_there_then() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    world.send(queue, a_message("later", due_ms=5_000))
    receiver = world.attach(queue, 1)
    assert given(world.advance(5_000)) == [(receiver, "later")]
    sound(world)


def test_a_fan_out_queue_is_attached_to_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    with pytest.raises(NotAllowed, match="attach a receiver"):
        world.receive(queue)
    with pytest.raises(NotFound):
        world.do(CreateSubscription(f"{queue}/$sub/a"))
    closed = world.queue("closed", delivery="fan-out", status="receive-disabled")
    with pytest.raises(Disabled):
        world.attach(closed)
    receiver = world.attach(queue)
    assert len(world.do(ListSubscriptions(queue)).answer) == 1  # type: ignore[arg-type]
    monkeypatch.setattr(receiving, "SUBSCRIPTIONS_MAX", 1)
    with pytest.raises(QuotaExceeded):
        world.attach(queue)
    world.do(DeleteQueue(queue))
    assert world.deliveries == [Notice(receiver, "deleted")]
    sound(world)


@pytest.mark.parametrize(
    "properties", [{"grouping": "session"}, {"requires_session": True}, {"forward_to": "x"}]
)
def test_some_properties_do_not_go_with_it(properties: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        World().queue(delivery="fan-out", **properties)
