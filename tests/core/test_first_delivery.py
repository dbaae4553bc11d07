"""When a message was first delivered, which every later delivery tells."""

from posthouse.core import State, evolve
from posthouse.core.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Receive,
    Received,
    ReceiveDeferred,
    Release,
    Resubmit,
    TurnClockBack,
)
from posthouse.core.dump import dump
from posthouse.core.model import dead_letter_queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import Kept, MessagesRestored, QueueCreated, Started
from posthouse.core.snapshot import restore, take
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message
from tests.invariants import check


def firsts(deliveries: list[Delivery]) -> list[int]:
    return [each.first_delivered_ms for each in deliveries]


def a_returned_message(world: World) -> tuple[str, int]:
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    assert delivery.first_delivered_ms == world.now_ms
    world.now_ms += 100
    world.do(Abandon(queue, [delivery.token]))
    return queue, world.now_ms - 100


def test_every_delivery_tells_when_the_message_was_first_delivered() -> None:
    world = World()
    queue, first_ms = a_returned_message(world)
    world.send(queue, "b")
    world.now_ms += 50
    deliveries = world.receive(queue, 2)
    assert firsts(deliveries) == [first_ms, world.now_ms]
    world.do(Abandon(queue, [deliveries[0].token]))
    assert firsts(world.receive(queue)) == [first_ms]
    assert world.state.queues[queue].firsts == {1: first_ms}
    assert dump(world.replayed()) == dump(world.state)


def test_it_is_forgotten_with_the_message() -> None:
    for delete in (False, True):
        world = World()
        queue, _ = a_returned_message(world)
        [delivery] = world.receive(queue, delete=delete)
        if not delete:
            world.do(Complete(queue, [delivery.token]))
        assert not world.state.queues[queue].firsts
        check(world.state, world.now_ms)


def test_a_release_is_as_if_it_had_never_been_delivered() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Release(queue, [delivery.token]))
    world.now_ms += 70
    assert firsts(world.receive(queue)) == [world.now_ms]


def test_a_deferred_message_tells_it_too() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    first_ms = world.now_ms
    world.now_ms += 70
    world.do(Defer(queue, [delivery.token]))
    answer = world.do(ReceiveDeferred(queue, [1])).answer
    assert isinstance(answer, Received)
    assert firsts(answer.deliveries) == [first_ms]


def test_who_waits_is_told_it_of_what_comes_back_in_the_same_command() -> None:
    world = World()
    queue = world.queue(max_delivery=2)
    dead = dead_letter_queue(queue)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    first_ms = world.now_ms
    world.attach(queue, 1)
    world.attach(dead, 1)
    world.now_ms += 70
    world.do(Abandon(queue, [delivery.token]))
    [again] = [each for each in world.deliveries if isinstance(each, Delivery)]
    assert again.first_delivered_ms == first_ms
    world.now_ms += 70
    world.do(Abandon(queue, [again.token]))
    assert firsts([each for each in world.deliveries if isinstance(each, Delivery)]) == [first_ms]


def test_a_dead_letter_keeps_it_and_one_that_is_sent_again_does_not() -> None:
    world = World()
    queue, first_ms = a_returned_message(world)
    world.send(queue, "b")
    held = world.receive(queue, 2)
    locked_ms = world.now_ms
    world.now_ms += 70
    world.do(DeadLetter(queue, [each.token for each in held]))
    dead = dead_letter_queue(queue)
    assert firsts(world.receive(dead, 2)) == [first_ms, locked_ms]
    world.advance(60_000)
    world.do(Resubmit(dead))
    assert firsts(world.receive(queue, 2)) == [world.now_ms] * 2
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)


def test_what_was_never_delivered_has_no_first_delivery_among_the_dead() -> None:
    world = World()
    queue = world.queue(dead_letter_expired=True)
    world.send(queue, a_message("a", ttl_ms=10))
    world.advance(10)
    assert firsts(world.receive(dead_letter_queue(queue))) == [world.now_ms]


def test_a_snapshot_and_a_copy_have_it() -> None:
    world = World()
    queue, first_ms = a_returned_message(world)
    (state,) = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert state.queues[queue].firsts == {1: first_ms}
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
    copied = State("copy")
    properties = world.info(queue).properties
    records: list[Kept] = [
        Started(1, 1, 1), QueueCreated(queue, 1, properties),
        MessagesRestored(
            queue, [1, 2], [a_message("a"), a_message("b")], [0, 0], [1, 1], [1, 0], [0, 0],
            [None, None], [first_ms, 0],
        ),
    ]  # fmt: skip
    for position, record in enumerate(records, 1):
        evolve(copied, record, position)
    assert copied.queues[queue].firsts == {1: first_ms}
    assert version_needed(records) == 2


def test_it_is_turned_back_with_the_clock() -> None:
    world = World()
    world.now_ms = 50_000
    queue, first_ms = a_returned_message(world)
    world.now_ms -= 40_000
    world.do(TurnClockBack(40_000))
    assert world.state.queues[queue].firsts == {1: first_ms - 40_000}
    assert isinstance(world.do(Receive(queue, 1)).answer, Received)


def test_of_a_lock_of_an_old_journal_the_time_is_not_known() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.state.locks[delivery.token].since_ms = 0  # as those that were made before it was noted
    world.do(Defer(queue, [delivery.token]))
    assert not world.state.queues[queue].firsts
