"""Sessions, as the official SDK uses them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.dialects.servicebus.bus import (
    DELETE,
    HEARS,
    NOTHING,
    WAIT,
    Bus,
    eventually,
    take,
    texts,
    together,
)


def of(session: str, *bodies: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(each, session_id=session) for each in bodies]


def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=WAIT)
        assert some, f"only {len(found)} of {count} have come"
        found += some
    return found


def accept(bus: Bus, queue: str, session: Any, **options: Any) -> ServiceBusReceiver:
    return bus.receiver(queue, retries=0, session_id=session, **options)


@pytest.fixture(scope="module")
def shared(bus: Bus) -> str:
    """A queue for tests that have sessions of their own in it."""
    return bus.sessions(lock_ms=30_000)


@pytest.fixture(scope="module")
def send(bus: Bus, shared: str) -> Any:
    return bus.sender(shared).send_messages


# One session.


def test_the_messages_of_a_session_come_in_order_to_its_holder(
    bus: Bus, shared: str, send: Any
) -> None:
    send(of("order-a", "1", "2"))
    send(of("order-b", "other"))
    send(of("order-a", "3", "4"))
    receiver = accept(bus, shared, "order-a")
    assert receiver.session.session_id == "order-a"
    found = take(receiver, 4)
    assert texts(found) == ["1", "2", "3", "4"]
    assert {each.session_id for each in found} == {"order-a"}
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    bus.leave(receiver, shared)
    assert texts(take(accept(bus, shared, "order-b"), 1)) == ["other"]


def test_messages_of_a_session_are_locked_as_long_as_the_session(
    bus: Bus, shared: str, send: Any
) -> None:
    send(of("until", "x"))
    receiver = accept(bus, shared, "until")
    [message] = receive(receiver)
    until = receiver.session.locked_until_utc
    assert until is not None
    left = until - datetime.fromtimestamp(bus.clock() / 1000, UTC)
    assert timedelta(0) < left <= timedelta(seconds=30)
    annotations = message.raw_amqp_message.annotations
    assert annotations is not None
    assert annotations[b"x-opt-locked-until"] == round(until.timestamp() * 1000)
    receiver.complete_message(message)


def test_an_abandoned_message_comes_back_in_its_place(bus: Bus, shared: str, send: Any) -> None:
    send(of("abandon", "1", "2", "3"))
    receiver = accept(bus, shared, "abandon")
    first, second = receive(receiver, 2)
    receiver.abandon_message(first)
    again, third = receive(receiver, 2)
    assert texts([again, third]) == ["1", "3"]
    assert again.delivery_count == 1
    for each in (second, again, third):
        receiver.complete_message(each)


def test_messages_of_a_session_are_deferred_and_dead_lettered(
    bus: Bus, shared: str, send: Any
) -> None:
    send(of("settle", "deferred", "dead"))
    receiver = accept(bus, shared, "settle")
    deferred, dead = receive(receiver, 2)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead, reason="of a session")
    [again] = receiver.receive_deferred_messages(deferred.sequence_number or 0)
    assert again.state == ServiceBusMessageState.DEFERRED
    assert str(again) == "deferred"
    receiver.complete_message(again)
    # A dead-letter queue has no sessions; what is in it still says which it was of.
    reader = bus.receiver(shared, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    [found] = take(reader, 1)
    assert (str(found), found.session_id) == ("dead", "settle")
    assert found.dead_letter_reason == "of a session"


def test_a_session_is_received_and_deleted_in_the_other_mode(
    bus: Bus, shared: str, send: Any
) -> None:
    send(of("delete", "1", "2"))
    receiver = accept(bus, shared, "delete", receive_mode=DELETE)
    assert texts(take(receiver, 2)) == ["1", "2"]
    bus.leave(receiver, shared)
    again = accept(bus, shared, "delete")
    assert again.receive_messages(max_wait_time=NOTHING) == []


def test_iterating_over_a_session_ends_when_nothing_comes(bus: Bus, shared: str, send: Any) -> None:
    send(of("iterate", "1", "2", "3"))
    receiver = accept(bus, shared, "iterate", max_wait_time=1, prefetch_count=5)
    found = []
    for message in receiver:
        found.append(str(message))
        receiver.complete_message(message)
    assert found == ["1", "2", "3"]


def test_the_empty_session_id_is_a_session(bus: Bus, shared: str, send: Any) -> None:
    send(of("", "x"))
    receiver = accept(bus, shared, "")
    assert texts(take(receiver, 1)) == ["x"]


def test_a_session_without_messages_can_be_held(bus: Bus, shared: str, send: Any) -> None:
    receiver = accept(bus, shared, "nothing yet")
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    send(of("nothing yet", "x"))
    assert texts(take(receiver, 1)) == ["x"]


def test_peeking_in_a_session_shows_its_messages_alone(bus: Bus, shared: str, send: Any) -> None:
    send(of("peek", "1", "2"))
    send(of("peek not", "other"))
    receiver = accept(bus, shared, "peek")
    assert texts(receiver.peek_messages(10)) == ["1", "2"]


def test_scheduled_messages_come_into_their_session(bus: Bus, shared: str) -> None:
    due = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
    sender = bus.sender(shared)
    sender.schedule_messages(of("schedule", "later"), due)
    bus.advance(601)
    assert texts(take(accept(bus, shared, "schedule"), 1)) == ["later"]


# State.


def test_the_state_of_a_session_is_kept(bus: Bus, shared: str) -> None:
    receiver = accept(bus, shared, "state")
    assert receiver.session.get_state() is None
    states: list[bytes | str] = ["text", b"", b"x" * 200_000, b"\x00\xff"]
    for state in states:
        receiver.session.set_state(state)
        expected = state.encode() if isinstance(state, str) else state
        assert receiver.session.get_state() == expected
    bus.leave(receiver, shared)
    again = accept(bus, shared, "state")
    assert again.session.get_state() == b"\x00\xff"
    again.session.set_state(None)
    assert again.session.get_state() is None


# Next available.


def test_the_next_session_is_one_with_messages_that_nobody_holds(bus: Bus) -> None:
    queue = bus.sessions()
    sender = bus.sender(queue)
    for session in ("a", "b", "c"):
        sender.send_messages(of(session, session))

    def next_one() -> ServiceBusReceiver:
        return accept(bus, queue, NEXT_AVAILABLE_SESSION, max_wait_time=WAIT)

    receivers = together(next_one, next_one, next_one)
    assert {each.session.session_id for each in receivers} == {"a", "b", "c"}
    for each in receivers:
        assert texts(take(each, 1)) == [each.session.session_id]


def test_an_attach_is_held_until_a_message_comes(bus: Bus) -> None:
    queue = bus.sessions()
    sender = bus.sender(queue)
    asked = threading.Event()

    def wait() -> ServiceBusReceiver:
        asked.set()
        return accept(bus, queue, NEXT_AVAILABLE_SESSION, max_wait_time=WAIT)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert asked.wait(WAIT)
        eventually(lambda: bus.receivers(queue) > 0 or waiting.done())
        assert not waiting.done()
        sender.send_messages(of("late", "x"))
        receiver = waiting.result(WAIT)
    assert receiver.session.session_id == "late"
    assert texts(take(receiver, 1)) == ["x"]


def test_who_gives_up_waiting_does_not_take_a_session(bus: Bus) -> None:
    queue = bus.sessions()
    with pytest.raises(OperationTimeoutError):
        accept(bus, queue, NEXT_AVAILABLE_SESSION, max_wait_time=1)
    bus.sender(queue).send_messages(of("s", "x"))
    assert texts(take(accept(bus, queue, "s"), 1)) == ["x"]


def test_a_session_with_nothing_but_deferred_messages_is_not_the_next(bus: Bus) -> None:
    queue = bus.sessions()
    sender, receiver = bus.pair(queue, session_id="s")
    sender.send_messages(of("s", "x"))
    [message] = receive(receiver)
    receiver.defer_message(message)
    bus.leave(receiver, queue)
    with pytest.raises(OperationTimeoutError):
        accept(bus, queue, NEXT_AVAILABLE_SESSION, max_wait_time=1)


# Who holds it.


def test_a_held_session_cannot_be_locked_by_another(bus: Bus, shared: str) -> None:
    first = accept(bus, shared, "held")
    with pytest.raises(SessionCannotBeLockedError):
        accept(bus, shared, "held")
    bus.leave(first, shared)
    again = accept(bus, shared, "held")
    assert again.session.session_id == "held"


def test_closing_gives_the_session_and_its_messages_back(bus: Bus, shared: str, send: Any) -> None:
    send(of("give back", "1", "2"))
    first = accept(bus, shared, "give back")
    receive(first, 2)
    bus.leave(first, shared)
    again = accept(bus, shared, "give back")
    assert texts(take(again, 2)) == ["1", "2"]


def test_an_expired_session_lock_is_lost(bus: Bus, shared: str, send: Any) -> None:
    send(of("expire", "x"))
    first = accept(bus, shared, "expire")
    [message] = receive(first)
    bus.advance(31)
    with pytest.raises(SessionLockLostError):
        first.session.renew_lock()
    with pytest.raises(SessionLockLostError):
        first.complete_message(message)
    again = accept(bus, shared, "expire")
    [back] = take(again, 1)
    assert (str(back), back.delivery_count) == ("x", 1)


def test_after_its_lock_has_expired_a_session_gives_nothing(
    bus: Bus, shared: str, send: Any
) -> None:
    names = ["complete", "get state", "set state", "receive"]
    for name in names:
        send(of(name, "x", "y"))
    held = together(*(partial(accept, bus, shared, name) for name in names))
    messages = [receive(each)[0] for each in held]
    bus.advance(31)
    if HEARS:
        with pytest.raises(SessionLockLostError):
            held[0].complete_message(messages[0])
    with pytest.raises(SessionLockLostError):
        held[1].session.get_state()
    with pytest.raises(SessionLockLostError):
        held[2].session.set_state("x")
    with pytest.raises(SessionLockLostError):
        held[3].receive_messages(max_wait_time=WAIT)
    for again in together(*(partial(accept, bus, shared, name) for name in names)):
        assert again.session.get_state() is None
        assert texts(take(again, 2)) == ["x", "y"]


def test_a_renewed_session_lock_holds_on(bus: Bus, shared: str, send: Any) -> None:
    send(of("renew", "x"))
    receiver = accept(bus, shared, "renew")
    [message] = receive(receiver)
    for _ in range(3):
        bus.advance(20)
        before = receiver.session.locked_until_utc
        assert before is not None
        assert receiver.session.renew_lock() - before >= timedelta(seconds=19)
    receiver.complete_message(message)
    with pytest.raises(SessionCannotBeLockedError):
        accept(bus, shared, "renew")


def test_messages_count_up_when_session_locks_expire(bus: Bus) -> None:
    queue = bus.sessions(lock_ms=30_000, max_delivery=2)
    bus.sender(queue).send_messages(of("s", "x"))
    for _ in range(2):
        receive(accept(bus, queue, "s"))
        bus.advance(31)
    assert accept(bus, queue, "s").receive_messages(max_wait_time=NOTHING) == []
    [dead] = take(bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


# What does not fit.


def test_a_queue_with_sessions_is_not_received_from_without_one(bus: Bus, shared: str) -> None:
    with pytest.raises(ServiceBusError, match="not-allowed"):
        bus.receiver(shared, retries=0)


def test_a_queue_without_sessions_has_none(bus: Bus) -> None:
    queue = bus.queue()
    with pytest.raises(ServiceBusError, match="not-allowed"):
        accept(bus, queue, "s")


def test_a_session_id_is_text(bus: Bus, shared: str) -> None:
    with pytest.raises(ServiceBusError):
        accept(bus, shared, 1)
