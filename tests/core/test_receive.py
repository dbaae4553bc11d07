"""Receiving: asking once, peeking, and deferred messages by number."""

import pytest

from posthouse.core.commands import (
    ANSWER_BYTES_MAX,
    BATCH_MAX,
    PAGE_MAX,
    Abandon,
    Complete,
    Counts,
    Defer,
    Detach,
    Peek,
    Peeked,
    Receive,
    Received,
    ReceiveDeferred,
)
from posthouse.core.errors import InvalidArgument, LockLost, MessageNotFound, NotAllowed, NotFound
from posthouse.core.records import encode, is_kept
from tests.core.world import World, a_message, bodies, given, text


def deferred(world: World, queue: str, *messages: str) -> list[int]:
    """The numbers of new messages that were deferred."""
    sequences = list(world.send(queue, *messages))
    tokens = [each.token for each in world.receive(queue, len(messages))]
    world.do(Defer(queue, tokens))
    return sequences


def received(world: World, command: ReceiveDeferred) -> list[str]:
    answer = world.do(command).answer
    assert isinstance(answer, Received)
    return bodies(answer.deliveries)


def peeked(world: World, command: Peek) -> Peeked:
    answer = world.do(command).answer
    assert isinstance(answer, Peeked)
    return answer


def test_a_received_message_is_locked() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a", "b")
    [delivery] = world.receive(queue)
    assert (delivery.count, delivery.until_ms) == (1, 1_100)
    assert bodies(world.receive(queue, 5)) == ["b"]
    assert world.counts(queue) == Counts(0, 2, 0, 0, 0, 0)


def test_as_many_are_received_as_there_are_up_to_the_limit() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    assert bodies(world.receive(queue, 2)) == ["a", "b"]
    assert bodies(world.receive(queue, 2)) == ["c"]
    assert world.receive(queue, 2) == []


def test_a_receiver_may_choose_its_lock_duration() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue, lock_ms=5)
    assert delivery.until_ms == 1_005


def test_an_expired_lock_returns_its_message_to_its_place() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a", "b")
    world.receive(queue)
    world.advance(100)
    first, second = world.receive(queue, 2)
    assert (text(first), text(second)) == ("a", "b")
    assert (first.count, second.count) == (2, 1)


def test_receive_and_delete_leaves_nothing() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    [delivery] = world.receive(queue, delete=True)
    assert (text(delivery), delivery.token, delivery.count) == ("a", 0, 1)
    assert world.peek(queue) == [(2, "active")]


def test_a_waiting_receiver_is_answered_by_a_send() -> None:
    world = World()
    queue = world.queue()
    receiver = world.wait(queue, 2)
    world.send(queue, "a")
    assert given(world.deliveries) == [(receiver, "a")]
    world.send(queue, "b")
    assert world.deliveries == []


def test_a_waiting_receiver_gets_what_it_asked_for_at_most() -> None:
    world = World()
    queue = world.queue()
    world.wait(queue, 2)
    world.send(queue, "a", "b", "c")
    assert bodies(world.deliveries) == ["a", "b"]


@pytest.mark.parametrize("delete", [False, True])
def test_a_wait_ends_at_its_deadline(delete: bool) -> None:
    world = World()
    queue = world.queue()
    receiver = world.wait(queue, ms=500, delete=delete)
    assert world.advance(499) == []
    assert given(world.advance(1)) == [(receiver, "timed-out")]
    world.send(queue, "a")
    assert world.deliveries == []


def test_a_deadline_that_has_passed_is_no_wait() -> None:
    world = World()
    queue = world.queue()
    assert world.receive(queue, deadline_ms=1_000) == []


def test_a_wait_can_be_given_up() -> None:
    world = World()
    queue = world.queue()
    receiver = world.wait(queue)
    world.do(Detach(receiver))
    world.send(queue, "a")
    assert world.deliveries == []
    with pytest.raises(NotFound):
        world.do(Detach(receiver))


def test_those_who_wait_are_served_in_turn() -> None:
    world = World()
    queue = world.queue()
    one, two, three = world.wait(queue), world.wait(queue), world.wait(queue)
    world.send(queue, "a", "b")
    assert given(world.deliveries) == [(one, "a"), (two, "b")]
    world.send(queue, "c")
    assert given(world.deliveries) == [(three, "c")]


@pytest.mark.parametrize(
    "event", ["abandoned", "expired", "scheduled", "delayed", "dead-lettered", "detached"]
)
def test_a_waiting_receiver_is_answered_however_a_message_becomes_available(event: str) -> None:
    world = World()
    queue = world.queue(lock_ms=100, max_delivery=1 if event == "dead-lettered" else 10)
    bound = world.attach(queue)
    due_ms = 1_100 if event == "scheduled" else 0
    world.send(queue, a_message("a", due_ms=due_ms))
    held = world.receive(queue, bound=bound)
    if event == "delayed":
        world.do(Abandon(queue, [held[0].token], delay_ms=100))
    source = f"{queue}/$dead" if event == "dead-lettered" else queue
    receiver = world.wait(source)
    if event == "abandoned":
        world.do(Abandon(queue, [held[0].token]))
    elif event == "detached":
        world.do(Detach(bound))
    else:
        world.advance(100)
    assert given(world.deliveries) == [(receiver, "a")]


def test_a_receiver_must_be_new() -> None:
    world = World()
    queue = world.queue()
    receiver = world.wait(queue)
    for number in (receiver, 0, -1):
        with pytest.raises(InvalidArgument):
            world.do(Receive(queue, number))


def test_what_is_accepted_can_be_written_down() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    try:
        outcome = world.do(Receive(queue, 1 << 64))
    except InvalidArgument:
        return
    for record in outcome.records:
        assert not is_kept(record) or encode(record)


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"limit": BATCH_MAX + 1}, {"lock_ms": -1}, {"deadline_ms": -1}, {"bound": 99}],
)
def test_a_receive_that_makes_no_sense_is_refused(options: dict[str, int]) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(Receive(queue, 1, **options))  # type: ignore[arg-type]


def test_locks_can_end_with_another_receiver() -> None:
    world = World()
    queue = world.queue()
    connection = world.attach(queue)
    world.send(queue, "x")
    [delivery] = world.receive(queue, bound=connection)
    world.do(Detach(connection))
    assert world.peek(queue) == [(1, "active")]
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))


def test_sessions_are_not_for_every_queue() -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(NotAllowed):
        world.receive(queue, session=5)


# Peeking.


def test_peeking_shows_messages_in_any_state() -> None:
    world = World()
    queue = world.queue()
    deferred(world, queue, "a")
    world.send(queue, "b", "c", "d", a_message(due_ms=5_000))
    one, _ = world.receive(queue, 2)
    world.do(Abandon(queue, [one.token], delay_ms=10, properties={"n": 1}))
    messages = peeked(world, Peek(queue, limit=10)).messages
    assert [each.state for each in messages] == [
        "deferred",
        "delayed",
        "locked",
        "active",
        "scheduled",
    ]
    assert [each.deferred for each in messages] == [True, False, False, False, False]
    note = messages[1].note
    assert note is not None
    assert note.properties == {"n": 1}


def test_peeking_has_no_effect_at_all() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    outcome = world.do(Peek(queue))
    assert (outcome.records, outcome.deliveries) == ([], ())
    [delivery] = world.receive(queue)
    assert delivery.count == 1


def test_what_was_peeked_does_not_change_afterwards() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [seen] = peeked(world, Peek(queue)).messages
    world.receive(queue)
    assert seen.message.count == 0


def test_peeking_goes_on_from_a_number() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    first = peeked(world, Peek(queue, limit=2))
    assert ([each.message.sequence for each in first.messages], first.next) == ([1, 2], 3)
    second = peeked(world, Peek(queue, first=3, limit=2))
    assert ([each.message.sequence for each in second.messages], second.next) == ([3], None)


def test_peeking_can_be_about_one_group() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message(group="x"), a_message(group="y"), a_message(group="x"))
    messages = peeked(world, Peek(queue, limit=10, group="x")).messages
    assert [each.message.sequence for each in messages] == [1, 3]


def test_a_peek_looks_at_a_limited_number_of_messages() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, *["a"] * BATCH_MAX)
    world.send(queue, a_message(group="x"))
    page = peeked(world, Peek(queue, group="x"))
    assert (page.messages, page.next) == ([], BATCH_MAX + 1)


@pytest.mark.parametrize("limit", [0, PAGE_MAX + 1])
def test_a_peek_has_a_limit(limit: int) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(Peek(queue, limit=limit))


# Deferred messages.


def test_deferred_messages_are_received_by_number() -> None:
    world = World()
    queue = world.queue()
    first, second = deferred(world, queue, "a", "b")
    world.send(queue, "c")
    assert received(world, ReceiveDeferred(queue, [second, first])) == ["b", "a"]
    assert bodies(world.receive(queue)) == ["c"]
    assert world.counts(queue) == Counts(0, 3, 0, 0, 0, 0)


def test_all_deferred_messages_are_received_or_none() -> None:
    world = World()
    queue = world.queue()
    [first] = deferred(world, queue, "a")
    world.send(queue, "b")
    for sequences in ([first, 2], [first, 9], [first, first]):
        with pytest.raises(MessageNotFound):
            world.do(ReceiveDeferred(queue, sequences))
    assert world.counts(queue).deferred == 1
    with pytest.raises(InvalidArgument):
        world.do(ReceiveDeferred(queue, []))


def test_a_deferred_message_stays_deferred_when_it_comes_back() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    [sequence] = deferred(world, queue, "a")
    received(world, ReceiveDeferred(queue, [sequence]))
    [seen] = peeked(world, Peek(queue)).messages
    assert (seen.state, seen.deferred) == ("locked", True)
    world.advance(100)
    assert world.receive(queue) == []
    assert world.peek(queue) == [(sequence, "deferred")]


def test_a_deferred_message_can_be_received_and_deleted() -> None:
    world = World()
    queue = world.queue()
    [sequence] = deferred(world, queue, "a")
    assert received(world, ReceiveDeferred(queue, [sequence], delete=True)) == ["a"]
    assert world.peek(queue) == []


def test_a_deferred_message_can_be_locked_for_another_receiver_and_settled_by_id() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    world.send(queue, a_message("a", id="m"))
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    world.do(ReceiveDeferred(queue, [1], lock_ms=50, bound=receiver, by_id=True))
    world.do(Complete(None, ["m"]))
    assert world.peek(queue) == []


def test_receiving_deferred_messages_takes_no_credit() -> None:
    world = World()
    queue = world.queue()
    [sequence] = deferred(world, queue, "a")
    receiver = world.attach(queue, 1)
    world.do(ReceiveDeferred(queue, [sequence], bound=receiver))
    world.send(queue, "b")
    assert given(world.deliveries) == [(receiver, "b")]


def test_an_answer_holds_no_more_bytes_than_a_send() -> None:
    world = World()
    world.queue()
    for _ in range(5):
        world.send("orders", a_message("x" * (10 << 20)))
    world.send("orders", *("small" for _ in range(3)))
    assert len(world.receive("orders", 8)) == 3
    page = peeked(world, Peek("orders", limit=8))
    assert (len(page.messages), page.next) == (3, 4)
    assert len(world.receive("orders", 8)) == 5
    large = World()
    large.queue()
    large.send("orders", "x" * (ANSWER_BYTES_MAX - 100))
    large.send("orders", "y" * 200)
    large.send("orders", "y")
    assert len(large.receive("orders", 2)) == 1  # a single one comes, however large


def test_deferred_messages_are_too_many_when_they_are_too_large() -> None:
    world = World()
    world.queue()
    for _ in range(4):
        world.send("orders", a_message("x" * (10 << 20)))
    tokens = [each.token for _ in range(2) for each in world.receive("orders", 4)]
    world.do(Defer("orders", tokens))
    with pytest.raises(NotAllowed):
        world.do(ReceiveDeferred("orders", [1, 2, 3, 4]))
    world.do(ReceiveDeferred("orders", [1, 2, 3]))
