"""The official SDK receives, settles, defers, peeks and schedules."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
)

from tests.dialects.servicebus.bus import DELETE, HEARS, NOTHING, WAIT, Bus, ids, take, texts

DEAD = ServiceBusSubQueue.DEAD_LETTER

waits_for_outcomes = pytest.mark.skipif(
    not HEARS, reason="before 7.15 the SDK does not wait to hear how settling went"
)


def messages(*bodies: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(each) for each in bodies]


def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """So many, still locked."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=WAIT)
        assert some, f"only {len(found)} of {count} have come"
        found += some
    return found


def is_empty(receiver: ServiceBusReceiver) -> bool:
    return receiver.receive_messages(max_wait_time=NOTHING) == []


# Both modes.


def test_a_locked_message_is_there_until_it_is_completed(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    assert message.lock_token is not None
    assert message.locked_until_utc is not None
    assert message.enqueued_time_utc is not None
    assert message.state == ServiceBusMessageState.ACTIVE
    assert is_empty(receiver)
    assert bus.counts(queue)["locked"] == 1
    receiver.complete_message(message)
    assert bus.counts(queue)["locked"] == bus.counts(queue)["active"] == 0
    bus.advance(61)
    assert is_empty(receiver)


def test_receive_and_delete_takes_a_message_at_once(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, receive_mode=DELETE)
    sender.send_messages(messages("x", "y"))
    first, second = receive(receiver, 2)
    assert texts([first, second]) == ["x", "y"]
    assert first.lock_token is None
    assert first.locked_until_utc is None
    assert bus.counts(queue)["locked"] == bus.counts(queue)["active"] == 0
    with pytest.raises(ValueError, match="not supported"):
        receiver.complete_message(first)


def test_nothing_comes_from_an_empty_queue(bus: Bus) -> None:
    _, _, receiver = bus.ready()
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    assert receiver.receive_messages(max_message_count=50, max_wait_time=NOTHING) == []


def test_a_receiver_that_waits_gets_what_is_sent_meanwhile(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    assert is_empty(receiver)
    sender.send_messages(messages("x"))
    assert texts(take(receiver, 1)) == ["x"]


def test_not_more_are_received_than_are_asked_for(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages(*"abcdef"))
    assert texts(receive(receiver, 4)) == list("abcd")
    assert bus.counts(queue)["locked"] == 4
    assert texts(receive(receiver, 2)) == list("ef")


def test_iterating_goes_on_until_nothing_comes_for_a_while(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, max_wait_time=1)
    sender.send_messages(messages(*"abcdef"))
    found = []
    for message in receiver:
        found.append(str(message))
        receiver.complete_message(message)
    assert found == list("abcdef")
    assert bus.counts(queue)["active"] == 0


def test_next_gives_one_message_at_a_time(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(messages("a", "b"))
    for expected in "ab":
        message = next(receiver)
        assert str(message) == expected
        receiver.complete_message(message)


# Settling.


def test_an_abandoned_message_comes_again_in_its_place(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(messages("a", "b", "c"))
    first, second = receive(receiver, 2)
    receiver.abandon_message(first)
    again, third = receive(receiver, 2)
    assert texts([again, third]) == ["a", "c"]
    assert again.sequence_number == first.sequence_number
    assert (first.delivery_count, again.delivery_count, third.delivery_count) == (0, 1, 0)
    assert again.lock_token != first.lock_token
    for each in (second, again, third):
        receiver.complete_message(each)
    assert is_empty(receiver)


def test_a_deferred_message_is_received_by_its_number_only(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages("a", "b"))
    first, second = receive(receiver, 2)
    for each in (first, second):
        receiver.defer_message(each)
    assert is_empty(receiver)
    numbers = [second.sequence_number or 0, first.sequence_number or 0]
    deferred = receiver.receive_deferred_messages(numbers)
    assert texts(deferred) == ["b", "a"]
    for each in deferred:
        assert each.state == ServiceBusMessageState.DEFERRED
        assert each.lock_token is not None
        receiver.complete_message(each)
    assert bus.counts(queue)["deferred"] == 0


def test_a_deferred_message_can_be_settled_in_every_way(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    number = message.sequence_number or 0
    receiver.defer_message(message)

    def deferred() -> ServiceBusReceivedMessage:
        [found] = receiver.receive_deferred_messages(number)
        return found

    receiver.abandon_message(deferred())
    assert is_empty(receiver)  # it is still deferred
    receiver.defer_message(deferred())
    again = deferred()
    until = again.locked_until_utc
    assert until is not None
    bus.advance(30)
    assert receiver.renew_message_lock(again) > until
    receiver.dead_letter_message(again, reason="late", error_description="far too late")
    assert bus.counts(queue)["deferred"] == 0
    [dead] = take(bus.receiver(queue, sub_queue=DEAD), 1)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("late", "far too late")


def test_deferred_messages_are_deleted_in_the_other_mode(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    receiver.defer_message(message)
    deleting = bus.receiver(queue, receive_mode=DELETE)
    [found] = deleting.receive_deferred_messages(message.sequence_number or 0)
    assert str(found) == "x"
    assert bus.counts(queue)["deferred"] == 0


def test_a_message_that_is_not_deferred_is_not_found_by_its_number(bus: Bus) -> None:
    sender, receiver = bus.pair(bus.queue(), retries=0)
    sender.send_messages(messages("x"))
    [seen] = receiver.peek_messages()
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([seen.sequence_number or 0])
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([123_456_789])


@pytest.mark.parametrize(
    ("reason", "description"),
    [("Unreadable", "It says nothing."), (None, None), ("Only a reason", None)],
)
def test_a_dead_letter_says_why(bus: Bus, reason: str | None, description: str | None) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(
        ServiceBusMessage("x", message_id="id", application_properties={"mine": "kept"})
    )
    [message] = receive(receiver)
    receiver.dead_letter_message(message, reason=reason, error_description=description)
    assert is_empty(receiver)
    [dead] = receive(bus.receiver(queue, sub_queue=DEAD))
    assert str(dead) == "x"
    assert dead.message_id == "id"
    assert dead.dead_letter_reason == reason
    assert dead.dead_letter_error_description == description
    assert dead.application_properties is not None
    assert dead.application_properties[b"mine"] == b"kept"
    if reason is not None:
        assert dead.application_properties[b"DeadLetterReason"] == reason.encode()


def test_a_dead_letter_queue_is_settled_like_another(bus: Bus) -> None:
    queue, sender, receiver = bus.ready(max_delivery=2)
    sender.send_messages(messages("a", "b", "c"))
    for each in receive(receiver, 3):
        receiver.dead_letter_message(each)
    dead = bus.receiver(queue, sub_queue=DEAD)
    assert texts(dead.peek_messages(10)) == ["a", "b", "c"]
    counts = []
    for _ in range(4):  # more often than the queue allows: there is nowhere else to go
        [first] = receive(dead)
        assert str(first) == "a"
        counts.append(first.delivery_count or 0)
        dead.abandon_message(first)
    assert counts == list(range(counts[0], counts[0] + 4))
    [first] = receive(dead)
    dead.defer_message(first)
    [deferred] = dead.receive_deferred_messages(first.sequence_number or 0)
    dead.complete_message(deferred)
    assert texts(take(dead, 2)) == ["b", "c"]
    assert bus.counts(queue)["dead"] == 0


def test_a_message_delivered_too_often_is_dead_lettered(bus: Bus) -> None:
    queue, sender, receiver = bus.ready(max_delivery=3)
    sender.send_messages(messages("x"))
    for count in range(3):
        [message] = receive(receiver)
        assert message.delivery_count == count
        receiver.abandon_message(message)
    assert is_empty(receiver)
    [dead] = take(bus.receiver(queue, sub_queue=DEAD), 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description
    assert dead.delivery_count == 3


# Locks.


def test_an_expired_lock_gives_the_message_back(bus: Bus) -> None:
    _, sender, receiver = bus.ready(lock_ms=30_000)
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    bus.advance(29)
    assert is_empty(receiver)
    bus.advance(2)
    [again] = receive(receiver)
    assert again.sequence_number == message.sequence_number
    assert again.delivery_count == 1
    receiver.complete_message(again)


def test_locks_that_expire_count_as_deliveries(bus: Bus) -> None:
    queue, sender, receiver = bus.ready(lock_ms=30_000, max_delivery=2)
    sender.send_messages(messages("x"))
    for _ in range(2):
        receive(receiver)
        bus.advance(31)
    assert is_empty(receiver)
    [dead] = take(bus.receiver(queue, sub_queue=DEAD), 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_an_expired_lock_cannot_be_renewed(bus: Bus) -> None:
    _, sender, receiver = bus.ready(lock_ms=30_000)
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    bus.advance(31)
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(message)


SETTLING: list[Callable[[ServiceBusReceiver, ServiceBusReceivedMessage], None]] = [
    ServiceBusReceiver.complete_message, ServiceBusReceiver.abandon_message,
    ServiceBusReceiver.defer_message, ServiceBusReceiver.dead_letter_message,
]  # fmt: skip


@waits_for_outcomes
@pytest.mark.parametrize("settle", SETTLING)
def test_what_is_settled_too_late_has_lost_its_lock(
    bus: Bus, settle: Callable[[ServiceBusReceiver, ServiceBusReceivedMessage], None]
) -> None:
    queue, sender, receiver = bus.ready(lock_ms=30_000)
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    bus.advance(31)
    with pytest.raises(MessageLockLostError):
        settle(receiver, message)
    [again] = receive(receiver)
    receiver.complete_message(again)
    assert bus.counts(queue)["dead"] == bus.counts(queue)["deferred"] == 0


def test_a_deferred_message_settled_too_late_has_lost_its_lock(bus: Bus) -> None:
    _, sender, receiver = bus.ready(lock_ms=30_000)
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    receiver.defer_message(message)
    [deferred] = receiver.receive_deferred_messages(message.sequence_number or 0)
    bus.advance(31)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(deferred)
    [again] = receiver.receive_deferred_messages(message.sequence_number or 0)
    receiver.complete_message(again)


def test_a_renewed_lock_holds_on(bus: Bus) -> None:
    queue, sender, receiver = bus.ready(lock_ms=30_000)
    sender.send_messages(messages("x"))
    [message] = receive(receiver)
    assert message.locked_until_utc is not None
    for _ in range(3):
        bus.advance(20)
        before = message.locked_until_utc
        until = receiver.renew_message_lock(message)
        assert until == message.locked_until_utc
        assert until - before >= timedelta(seconds=19)
    assert is_empty(receiver)
    receiver.complete_message(message)
    assert bus.counts(queue)["active"] == bus.counts(queue)["locked"] == 0


def test_a_lock_outlives_its_connection(bus: Bus) -> None:
    queue, sender, _ = bus.ready(lock_ms=30_000)
    with bus.client().get_queue_receiver(queue, prefetch_count=1) as leaving:
        sender.send_messages(messages("x"))
        [held] = receive(leaving)
    receiver = bus.receiver(queue)
    assert held.lock_token
    assert is_empty(receiver)
    bus.advance(31)
    [again] = receive(receiver)
    assert again.delivery_count == 1


# Prefetching.


def test_prefetched_messages_come_in_order(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, prefetch_count=10)
    names = [f"{n:03}" for n in range(60)]
    sender.send_messages(messages(*names))
    found = []
    for _ in names:
        [message] = receive(receiver)
        found.append(str(message))
        receiver.complete_message(message)
    assert found == names
    assert bus.counts(queue)["active"] == bus.counts(queue)["locked"] == 0


def test_a_receiver_prefetches_as_many_as_it_says(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, prefetch_count=10)
    sender.send_messages(messages(*map(str, range(60))))
    receive(receiver)
    assert 1 <= bus.counts(queue)["locked"] <= 12


@pytest.mark.skipif(not HEARS, reason="before 7.15 the SDK gives nothing back when it is closed")
def test_a_receiver_that_is_closed_gives_back_what_it_has_prefetched(bus: Bus) -> None:
    queue = bus.queue()
    with bus.client().get_queue_receiver(queue, prefetch_count=20) as leaving:
        with bus.client().get_queue_sender(queue) as sender:
            sender.send_messages(messages(*map(str, range(15))))
        [message] = receive(leaving)
        leaving.complete_message(message)
    assert bus.counts(queue)["locked"] == 0
    found = take(bus.receiver(queue), 14)
    assert texts(found) == [str(n) for n in range(1, 15)]
    assert {each.delivery_count for each in found} == {0}


def test_what_comes_when_nobody_asks_is_given_back_uncounted(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(messages("first"))
    [first] = receiver.receive_messages(max_message_count=5, max_wait_time=WAIT)  # asks for more
    receiver.complete_message(first)
    sender.send_messages(messages("a", "b", "c"))
    receiver.peek_messages()  # what has come is looked at, and nobody has asked for it
    found = take(receiver, 3)
    assert texts(found) == ["a", "b", "c"]
    assert {each.delivery_count for each in found} == {0}


# Peeking.


def test_peeking_shows_every_state_and_changes_nothing(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(messages("deferred", "locked", "active"))
    deferred, locked = receive(receiver, 2)
    receiver.defer_message(deferred)
    later = datetime.fromtimestamp(bus.clock() / 1000, UTC) + timedelta(hours=1)
    sender.schedule_messages(messages("scheduled"), later)
    before = bus.counts(queue)
    numbers: list[int] = []
    for _ in range(2):
        seen = receiver.peek_messages(10, sequence_number=1)
        assert {str(each): each.state for each in seen} == {
            "deferred": ServiceBusMessageState.DEFERRED,
            "locked": ServiceBusMessageState.ACTIVE,
            "active": ServiceBusMessageState.ACTIVE,
            "scheduled": ServiceBusMessageState.SCHEDULED,
        }
        numbers = [each.sequence_number or 0 for each in seen]
        assert numbers == sorted(numbers)
        assert {each.lock_token for each in seen} == {None}
    assert bus.counts(queue) == before
    receiver.complete_message(locked)
    assert texts(receiver.peek_messages(10, sequence_number=numbers[2])) == [
        "active", "scheduled",
    ]  # fmt: skip


def test_peeking_goes_on_where_it_stopped(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(messages(*"abcde"))
    assert texts(receiver.peek_messages(2)) == ["a", "b"]
    assert texts(receiver.peek_messages(2)) == ["c", "d"]
    assert texts(receiver.peek_messages(2)) == ["e"]
    assert receiver.peek_messages(2) == []


def test_a_peeked_message_has_its_delivery_count(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(messages("x"))
    for _ in range(2):
        [message] = receive(receiver)
        receiver.abandon_message(message)
    [seen] = receiver.peek_messages(sequence_number=1)
    assert seen.delivery_count == 2


# Scheduling.


def test_scheduled_messages_come_when_they_are_due(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    later = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
    numbers = sender.schedule_messages(messages("a", "b"), later)
    assert len(set(numbers)) == 2
    assert is_empty(receiver)
    bus.advance(601)
    found = take(receiver, 2)
    assert texts(found) == ["a", "b"]
    for each in found:
        assert each.scheduled_enqueue_time_utc == later
        assert each.state == ServiceBusMessageState.ACTIVE


def test_a_cancelled_message_never_comes(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, retries=0)
    later = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
    numbers = sender.schedule_messages(messages("a", "b", "c"), later)
    sender.cancel_scheduled_messages(numbers[:2])
    assert bus.counts(queue)["scheduled"] == 1
    bus.advance(601)
    assert texts(take(receiver, 1)) == ["c"]
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled_messages(numbers[2])


def test_messages_are_cancelled_all_or_none(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue, retries=0)
    later = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
    [number] = sender.schedule_messages(messages("a"), later)
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled_messages([number, 123_456_789])
    assert bus.counts(queue)["scheduled"] == 1


# When the queue changes.


def test_a_receiver_of_a_deleted_queue_is_told(bus: Bus) -> None:
    queue, _, receiver = bus.ready()
    assert is_empty(receiver)
    assert bus.broker.queue("DELETE", queue).status == 204
    with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
        receive(receiver)


def test_a_receiver_of_a_disabled_queue_is_told(bus: Bus) -> None:
    queue = bus.queue()
    receiver = bus.receiver(queue, retries=0)
    assert is_empty(receiver)
    bus.update(queue, status="receive-disabled")
    with pytest.raises(MessagingEntityDisabledError):
        receive(receiver)
    with pytest.raises(MessagingEntityDisabledError):
        bus.receiver(queue, retries=0)


def test_competing_receivers_share_what_there_is(bus: Bus) -> None:
    queue, sender, first = bus.ready()
    second = bus.receiver(queue)
    sender.send_messages([ServiceBusMessage("x", message_id=f"{n}") for n in range(20)])
    found = [*take(first, 10), *take(second, 10)]
    assert sorted(ids(found), key=lambda each: int(each or 0)) == [f"{n}" for n in range(20)]
