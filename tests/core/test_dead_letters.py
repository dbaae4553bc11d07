"""The dead-letter queue is a real queue, and a way back."""

import pytest

from posthouse.core.commands import (
    STEPS_MAX,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Pause,
    Progress,
    Purge,
    ReceiveDeferred,
    Release,
    Resubmit,
    UpdateQueue,
)
from posthouse.core.errors import (
    Disabled,
    InvalidArgument,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    QuotaExceeded,
)
from posthouse.core.message import ACTIVE
from posthouse.core.model import QueueProperties, dead_letter_queue
from tests.core.world import World, a_message, bodies, given


def buried(world: World, queue: str, *names: str) -> str:
    """A dead-letter queue with these messages."""
    world.send(queue, *names)
    deliveries = world.receive(queue, len(names))
    command = DeadLetter(queue, [each.token for each in deliveries], reason="bad")
    world.do(command)
    return dead_letter_queue(queue)


def test_dead_letters_are_received_and_settled() -> None:
    world = World()
    dead = buried(world, world.queue(), "a", "b", "c")
    one, two, three = world.receive(dead, 5)
    assert bodies([one, two, three]) == ["a", "b", "c"]
    world.do(Complete(dead, [one.token]))
    world.do(Abandon(dead, [two.token]))
    world.do(Defer(dead, [three.token]))
    assert world.peek(dead) == [(2, "active"), (3, "deferred")]
    world.do(ReceiveDeferred(dead, [3]))


def test_a_dead_letter_keeps_its_count_and_goes_on_counting() -> None:
    world = World()
    queue = world.queue(max_delivery=2)
    dead = buried(world, queue, "a")
    [one] = world.receive(dead)
    assert one.count == 2
    for _ in range(5):
        world.do(Abandon(dead, [one.token]))
        [one] = world.receive(dead)
    assert one.count == 7


def test_a_dead_letter_can_be_released() -> None:
    world = World()
    dead = buried(world, world.queue(), "a")
    [one] = world.receive(dead)
    world.do(Release(dead, [one.token]))
    assert world.peek(dead) == [(1, "active")]


def test_a_dead_letter_cannot_be_dead_lettered() -> None:
    world = World()
    dead = buried(world, world.queue(), "a")
    [one] = world.receive(dead)
    with pytest.raises(NotAllowed):
        world.do(DeadLetter(dead, [one.token]))


def test_dead_letters_are_locked_as_long_as_in_their_queue() -> None:
    world = World()
    dead = buried(world, world.queue(lock_ms=123), "a")
    [one] = world.receive(dead)
    assert one.until_ms == world.now_ms + 123
    world.advance(123)
    assert world.peek(dead) == [(1, "active")]


def test_dead_letters_can_be_received_and_deleted_and_purged() -> None:
    world = World()
    dead = buried(world, world.queue(), "a", "b")
    assert bodies(world.receive(dead, delete=True)) == ["a"]
    assert world.do(Purge(dead, frozenset({ACTIVE}))).answer == Progress(1, None)
    assert world.peek(dead) == []


def test_dead_letters_of_sessions_need_no_session() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.send(queue, a_message("a", group="x"))
    held = world.hold(queue, "x")
    [delivery] = world.receive(queue, session=held.token)
    world.do(DeadLetter(queue, [delivery.token]))
    assert bodies(world.receive(dead_letter_queue(queue))) == ["a"]


def test_one_that_waits_gets_a_dead_letter_with_its_reason() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(dead_letter_queue(queue), 5)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], properties={"n": 1}))
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token], reason="bad", properties={"m": 2}))
    [dead] = world.deliveries
    assert isinstance(dead, Delivery)
    assert dead.note is not None
    assert (dead.receiver, dead.note.reason) == (receiver, "bad")
    assert dead.note.properties == {"n": 1, "m": 2}
    assert (dead.note.source, dead.note.source_sequence) == (queue, 1)


# Resubmitting.


def test_all_dead_letters_are_resubmitted_to_their_origin() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, "a", "b")
    world.send(queue, "c")
    world.now_ms = 2_000
    assert world.do(Resubmit(dead)).answer == Progress(2, None)
    assert world.peek(dead) == []
    deliveries = world.receive(queue, 5)
    assert bodies(deliveries) == ["c", "a", "b"]
    assert [each.count for each in deliveries] == [1, 1, 1]
    assert [each.message.enqueued_ms for each in deliveries] == [1_000, 2_000, 2_000]
    assert [each.note for each in deliveries] == [None, None, None]
    assert world.info(queue).accessed_ms == 2_000


def test_some_dead_letters_are_resubmitted_elsewhere() -> None:
    world = World()
    queue, other = world.queue("a"), world.queue("b")
    dead = buried(world, queue, "1", "2", "3")
    assert world.do(Resubmit(dead, [3, 1], target=other)).answer == Progress(2, None)
    assert bodies(world.receive(other, 5)) == ["3", "1"]
    assert world.peek(dead) == [(2, "active")]


def test_the_reason_can_be_kept() -> None:
    world = World()
    queue = world.queue()
    world.do(Resubmit(buried(world, queue, "a"), keep_reason=True))
    [delivery] = world.receive(queue)
    assert delivery.note is not None
    assert (delivery.note.reason, delivery.note.source) == ("bad", queue)


def test_changed_properties_stay_when_the_reason_goes() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token], reason="bad", properties={"n": 1}))
    world.do(Resubmit(dead_letter_queue(queue)))
    [delivery] = world.receive(queue)
    assert delivery.note is not None
    assert (delivery.note.reason, delivery.note.properties) == (None, {"n": 1})


@pytest.mark.parametrize("keep", [False, True])
def test_one_that_waits_gets_what_is_resubmitted(keep: bool) -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, "a")
    receiver = world.wait(queue)
    world.do(Resubmit(dead, keep_reason=keep))
    assert given(world.deliveries) == [(receiver, "a")]
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    assert delivery.count == 1
    assert (delivery.note is not None and delivery.note.reason == "bad") == keep


def test_what_is_resubmitted_lives_anew() -> None:
    world = World()
    queue = world.queue(ttl_ms=100, dead_letter_expired=True)
    world.send(queue, "a", a_message("b", ttl_ms=50))
    world.advance(100)
    world.do(Resubmit(dead_letter_queue(queue)))
    world.advance(49)
    assert world.counts(queue).active == 2
    world.advance(1)
    assert world.counts(queue).active == 1
    world.advance(50)
    assert world.counts(queue).active == 0


def test_locked_dead_letters_are_left_where_they_are() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, "a", "b")
    world.receive(dead)
    assert world.do(Resubmit(dead)).answer == Progress(1, None)
    assert world.peek(dead) == [(1, "locked")]
    assert world.do(Resubmit(dead)).answer == Progress(0, None)
    with pytest.raises(MessageNotFound):
        world.do(Resubmit(dead, [1]))
    with pytest.raises(InvalidArgument):
        world.do(Resubmit(dead, []))


def test_many_dead_letters_are_resubmitted_step_by_step() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, *["a"] * (STEPS_MAX + 5))
    assert world.do(Resubmit(dead)).answer == Progress(STEPS_MAX, STEPS_MAX + 1)
    assert world.do(Resubmit(dead, first=STEPS_MAX + 1)).answer == Progress(5, None)
    assert world.counts(queue).active == STEPS_MAX + 5


def test_resubmitting_keeps_to_the_limits_of_the_target() -> None:
    world = World()
    queue = world.queue("a")
    dead = buried(world, queue, "x" * 50, "y")
    for refusal, properties in (
        (QuotaExceeded, QueueProperties(max_messages=1)),
        (QuotaExceeded, QueueProperties(max_bytes=10)),
        (MessageTooLarge, QueueProperties(max_message_bytes=40)),
    ):
        world.do(UpdateQueue(queue, properties))
        with pytest.raises(refusal):
            world.do(Resubmit(dead, [1, 2]))
    with pytest.raises(InvalidArgument):
        world.do(Resubmit(dead, [1], target=world.queue("sessions", grouping="session")))
    with pytest.raises(NotFound):
        world.do(Resubmit(dead, target="none"))
    with pytest.raises(NotAllowed):
        world.do(Resubmit(dead, target=dead))
    world.do(Pause(queue, sending=True))
    with pytest.raises(Disabled):
        world.do(Resubmit(dead))
    assert world.counts(queue).dead == 2


def test_resubmitting_all_goes_as_far_as_there_is_room() -> None:
    world = World()
    queue = world.queue("a")
    dead = buried(world, queue, "1", "2", "3")
    world.do(UpdateQueue(queue, QueueProperties(max_messages=2)))
    assert world.do(Resubmit(dead)).answer == Progress(2, 3)
    with pytest.raises(QuotaExceeded):
        world.do(Resubmit(dead, first=3))
    assert bodies(world.receive(queue, 5, delete=True)) == ["1", "2"]
    assert world.do(Resubmit(dead, first=3)).answer == Progress(1, None)


def test_resubmitting_all_leaves_what_the_target_would_never_take() -> None:
    world = World()
    queue = world.queue("a")
    dead = buried(world, queue, "x" * 50, "y")
    world.do(UpdateQueue(queue, QueueProperties(max_message_bytes=40)))
    assert world.do(Resubmit(dead)).answer == Progress(1, None)
    assert world.peek(dead) == [(1, "active")]


def test_a_resubmitted_message_lives_as_long_as_its_sender_said() -> None:
    world = World()
    queue = world.queue("a", ttl_ms=100)
    world.send(queue, a_message("m", ttl_ms=5_000))
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token]))
    other = world.queue("b")
    world.do(Resubmit(dead_letter_queue(queue), target=other))
    world.advance(4_999)
    assert world.peek(other) == [(1, "active")]
    world.advance(1)
    assert world.peek(other) == []


def test_only_dead_letters_are_resubmitted() -> None:
    world = World()
    with pytest.raises(NotAllowed):
        world.do(Resubmit(world.queue()))


def test_dead_letters_go_back_to_their_groups() -> None:
    world = World()
    queue = world.queue(grouping="group", max_delivery=1)
    world.send(queue, a_message("1", group="x"), a_message("2", group="x"), a_message("3"))
    for _ in range(3):
        [delivery] = world.receive(queue)
        world.do(Abandon(queue, [delivery.token]))
    world.do(Resubmit(dead_letter_queue(queue)))
    assert bodies(world.receive(queue, 5)) == ["1", "3"]  # which is in none


def test_what_is_resubmitted_to_a_session_ends_a_wait_for_one() -> None:
    world = World()
    queue = world.queue(grouping="session", ttl_ms=100, dead_letter_expired=True)
    world.send(queue, a_message("1", group="x"))
    world.advance(100)
    receiver = world.wait_for_session(queue)
    world.do(Resubmit(dead_letter_queue(queue)))
    assert given(world.deliveries) == [(receiver, "x")]


def test_resubmitting_is_use_of_the_target() -> None:
    world = World()
    queue = world.queue("a")
    dead = buried(world, queue, "1")
    target = world.queue("b", idle_delete_ms=1_000)
    world.advance(900)
    world.do(Resubmit(dead, target=target))
    world.advance(900)
    assert world.peek(target) == [(1, "active")]
