"""Forwarding: what comes into a queue is handed on to another, and what cannot be is kept."""

import pytest

from posthouse.core.commands import (
    HOPS_MAX,
    STEPS_MAX,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    Notice,
    Peek,
    Peeked,
    Receive,
    Received,
    ReceiveDeferred,
    Resubmit,
    UpdateQueue,
)
from posthouse.core.errors import Disabled, InvalidArgument, NotAllowed, NotFound
from posthouse.core.message import Note
from posthouse.core.model import TRANSFER, QueueProperties, dead_letter_queue, subscription_queue
from tests.core.sound import held, notes, sound
from tests.core.world import World, a_message, bodies


def why(world: World, queue: str) -> list[str | None]:
    answer = world.do(Peek(queue, limit=100)).answer
    assert isinstance(answer, Peeked)
    return [(seen.note or Note()).reason for seen in answer.messages]


def test_what_is_sent_is_handed_on_at_once() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    receiver = world.attach(target, credit=1)
    world.send(source, "a", "b")
    assert bodies(world.deliveries) == ["a"]
    assert [each.receiver for each in world.deliveries] == [receiver]
    assert (held(world, source), held(world, target)) == ([], ["a", "b"])
    sound(world)


def test_a_chain_is_followed_to_its_end_with_topics_in_it() -> None:
    world = World()
    end = world.queue("end")
    topic = world.topic()
    queue = world.subscribe(topic, "a", forward_to=end)
    other = world.subscribe(topic, "b")
    source = world.queue("source", forward_to=topic)
    world.send(source, "a")
    assert (held(world, end), held(world, other)) == (["a"], ["a"])
    assert (held(world, queue), held(world, source)) == ([], [])
    sound(world)


def test_a_scheduled_message_is_forwarded_when_it_is_due() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    world.send(source, a_message("later", due_ms=5_000))
    assert held(world, target) == []
    world.advance(5_000)
    assert held(world, target) == ["later"]
    sound(world)


def test_a_forwarded_message_keeps_its_life_and_what_was_noted() -> None:
    world = World()
    target = world.queue("target", ttl_ms=2_000)
    source = world.queue("source", forward_to=target)
    world.send(source, a_message("brief", ttl_ms=1_000), "long")
    lives = [m.expires_ms - world.now_ms for m in world.state.queues[target].messages.walk(0)]
    assert lives == [1_000, 2_000]
    sound(world)


def test_dead_letters_can_be_forwarded_with_their_reason() -> None:
    world = World()
    target = world.queue("graves")
    queue = world.queue("orders", forward_dead_to=target)
    world.send(queue, "bad")
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token], reason="why"))
    assert (held(world, dead_letter_queue(queue)), held(world, target)) == ([], ["bad"])
    assert why(world, target) == ["why"]
    sound(world)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"status": "disabled"}, "TargetDisabled"),
        ({"grouping": "session"}, "Session id is null."),
        ({"max_message_bytes": 3}, "MessageTooLarge"),
        ({"max_bytes": 3}, "QuotaExceeded"),
    ],
)
def test_what_the_target_does_not_take_is_kept_apart(
    properties: dict[str, object], reason: str
) -> None:
    world = World()
    target = world.queue("target", **properties)
    source = world.queue("source", forward_to=target)
    world.send(source, "refused")
    apart = source + TRANSFER
    assert (held(world, target), held(world, apart)) == ([], ["refused"])
    assert why(world, apart) == [reason]
    assert world.info(source).transfer == 1
    [delivery] = world.receive(apart)
    world.do(Complete(apart, [delivery.token]))
    assert held(world, apart) == []
    sound(world)


def test_what_has_nowhere_to_go_is_kept_apart() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    queue = world.queue("orders", forward_dead_to=target, max_delivery=1)
    world.do(DeleteQueue(target))
    world.send(source, "lost")
    assert why(world, source + TRANSFER) == ["TargetNotFound"]
    world.send(queue, "bad")
    world.receive(queue)
    world.advance(60_000)
    assert held(world, dead_letter_queue(queue)) == ["bad"]  # where it can be read
    [delivery] = world.receive(dead_letter_queue(queue))
    world.do(Complete(dead_letter_queue(queue), [delivery.token]))
    sound(world)


def test_what_is_there_already_follows_bit_by_bit() -> None:
    world = World()
    source, target = world.queue("source"), world.queue("target")
    count = STEPS_MAX + 10
    world.send(source, *(str(number) for number in range(count)))
    receiver = world.attach(source)
    world.do(UpdateQueue(source, QueueProperties(forward_to=target)))
    assert world.deliveries == [Notice(receiver, "paused")]
    world.send(source, "new")
    assert held(world, target) == []  # it does not overtake
    assert world.tick()
    while world.state.dispatch_pending:
        world.tick()
    assert world.counts(source).active == 0
    got = bodies(world.receive(target, count + 1))
    assert got == [*(str(number) for number in range(count)), "new"]
    sound(world)


def test_dead_letters_that_are_there_already_follow_too() -> None:
    world = World()
    queue, target = world.queue("orders", max_delivery=1), world.queue("target")
    world.send(queue, "bad")
    world.receive(queue)
    world.advance(60_000)
    world.do(UpdateQueue(queue, QueueProperties(max_delivery=1, forward_dead_to=target)))
    world.advance(1)
    assert held(world, target) == ["bad"]
    sound(world)


def test_who_forwards_cannot_be_received_from() -> None:
    world = World()
    world.queue("target")
    source = world.queue("source", forward_to="target")
    with pytest.raises(NotAllowed, match="receive from there"):
        world.do(Receive(source, 5))


def test_forwarding_needs_a_target_that_is_there() -> None:
    world = World()
    world.subscribe(world.topic(), "a")
    for name in ("nothing", "news/$sub/a", "$x"):
        for which in ("forward_to", "forward_dead_to"):
            with pytest.raises((NotFound, InvalidArgument)):
                world.queue("source", **{which: name})


def test_a_queue_that_forwards_to_itself_keeps_what_has_made_all_hops() -> None:
    world = World()
    queue = world.queue("first")
    world.do(UpdateQueue(queue, QueueProperties(forward_to=queue)))
    world.tick()
    world.send(queue, "a", "b")
    assert (held(world, queue), held(world, queue + TRANSFER)) == ([], ["a", "b"])
    assert why(world, queue + TRANSFER) == ["MaxTransferHopCountExceeded"] * 2
    sound(world)


def test_a_queue_cannot_be_made_to_forward_to_itself() -> None:
    with pytest.raises(NotFound):
        World().queue("first", forward_to="first")


def test_a_circle_is_left_after_the_last_hop() -> None:
    world = World()
    first = world.queue("first")
    topic = world.topic()
    other, back = world.subscribe(topic, "b"), world.subscribe(topic, "a", forward_to=first)
    world.do(UpdateQueue(first, QueueProperties(forward_to=topic)))
    world.tick()
    world.send(first, "a")
    rounds = HOPS_MAX // 2
    assert held(world, other) == ["a"] * rounds
    assert (held(world, first), held(world, back)) == ([], [])
    assert why(world, first + TRANSFER) == ["MaxTransferHopCountExceeded"]
    sound(world)


def test_what_was_there_before_a_circle_was_made_leaves_it_bit_by_bit() -> None:
    world = World()
    first, second = world.queue("first"), world.queue("second")
    world.send(first, *map(str, range(STEPS_MAX + 10)))
    world.do(UpdateQueue(first, QueueProperties(forward_to=second)))
    world.do(UpdateQueue(second, QueueProperties(forward_to=first)))
    for _ in range(10 * (HOPS_MAX + 1)):
        world.tick()
    assert not world.state.dispatch_pending
    kept = world.counts(first + TRANSFER).active + world.counts(second + TRANSFER).active
    assert kept == STEPS_MAX + 10
    sound(world)


def test_expired_messages_that_come_back_are_dead_letters_after_the_last_hop() -> None:
    world = World()
    queue = world.queue("first")
    form = QueueProperties(forward_dead_to=queue, ttl_ms=1_000, dead_letter_expired=True)
    world.do(UpdateQueue(queue, form))
    world.send(queue, "a")
    for number in range(HOPS_MAX):
        assert world.state.queues[queue].next_sequence == 2 + number
        world.advance(1_000)
    assert held(world, queue) == ["a"]
    world.advance(1_000)
    assert (held(world, queue), held(world, dead_letter_queue(queue))) == ([], ["a"])
    sound(world)


def test_hops_are_counted_over_a_restart() -> None:
    world = World()
    queue = world.queue("first")
    form = QueueProperties(forward_dead_to=queue, ttl_ms=1_000, dead_letter_expired=True)
    world.do(UpdateQueue(queue, form))
    world.send(queue, "a")
    for number in range(HOPS_MAX + 1):
        world.advance(1_000)
        world = world.restarted(epoch=2 + number)
    assert (held(world, queue), held(world, dead_letter_queue(queue))) == ([], ["a"])
    sound(world)


def test_a_message_that_is_sent_again_begins_to_count_anew() -> None:
    world = World()
    queue, end = world.queue("first"), world.queue("end")
    world.do(UpdateQueue(queue, QueueProperties(forward_to=queue)))
    world.tick()
    world.send(queue, "a")
    world.do(UpdateQueue(queue, QueueProperties(forward_to=end)))
    world.tick()
    world.do(Resubmit(queue + TRANSFER, keep_reason=True))
    assert held(world, end) == ["a"]
    sound(world)


def test_two_ways_to_the_same_end_are_no_circle() -> None:
    world = World()
    end = world.queue("end")
    left, right = world.queue("left", forward_to=end), world.queue("right", forward_to=end)
    first = world.queue("first", forward_to=left, forward_dead_to=right)
    source = world.queue("source", forward_to=first)
    world.send(source, "a")
    assert held(world, end) == ["a"]
    sound(world)


def test_a_chain_that_is_too_long_is_not_followed_to_its_end() -> None:
    world = World()
    names = [world.queue("0")]
    for number in range(1, HOPS_MAX + 2):
        names.append(world.queue(str(number), forward_to=names[-1]))
    world.send(names[-2], "far")
    world.send(names[-1], "too far")
    assert (held(world, "0"), held(world, "1" + TRANSFER)) == (["far"], ["too far"])
    assert why(world, "1" + TRANSFER) == ["MaxTransferHopCountExceeded"]
    assert not world.state.queues["0"].notes  # where it does not go on nothing is counted
    sound(world)


def test_what_was_kept_apart_goes_with_its_queue() -> None:
    world = World()
    world.queue("target", status="disabled")
    source = world.queue("source", forward_to="target")
    world.send(source, "refused")
    receiver = world.attach(source + TRANSFER)
    world.do(DeleteQueue(source))
    assert world.deliveries == [Notice(receiver, "deleted")]
    world.advance(1)
    assert list(world.state.queues) == ["target", "target/$dead"]
    sound(world)


def test_deferred_messages_can_still_be_received_from_who_forwards() -> None:
    world = World()
    source, target = world.queue("source"), world.queue("target")
    world.send(source, "a")
    [delivery] = world.receive(source)
    world.do(Defer(source, [delivery.token]))
    world.do(UpdateQueue(source, QueueProperties(forward_to=target)))
    answer = world.do(ReceiveDeferred(source, [1])).answer
    assert isinstance(answer, Received)
    assert bodies(answer.deliveries) == ["a"]
    world.do(UpdateQueue(source, QueueProperties(forward_to=target, status="disabled")))
    with pytest.raises(Disabled):
        world.do(ReceiveDeferred(source, [1]))


def test_other_properties_can_be_changed_when_the_target_is_gone() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    world.do(DeleteQueue(target))
    world.do(UpdateQueue(source, QueueProperties(forward_to=target, lock_ms=5)))
    with pytest.raises(NotFound):
        world.do(UpdateQueue(source, QueueProperties(forward_to="nothing")))


def test_what_comes_back_to_its_own_topic_counts_there_once() -> None:
    """A topic is as full as its subscriptions: a message that goes round takes one place."""
    world = World()
    topic = world.topic(max_messages=2)
    world.subscribe(topic, "round", forward_to=topic)
    world.send(topic, "a", "b")
    world.advance(0)
    reasons = {
        note.reason for note in notes(world, subscription_queue(topic, "round") + TRANSFER) if note
    }
    assert reasons == {"MaxTransferHopCountExceeded"}
    sound(world)
