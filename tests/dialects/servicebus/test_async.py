"""The asynchronous half of the official SDK: it has a transport and links of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.dialects.servicebus.bus import DELETE, HEARS, NOTHING, WAIT, Bus, eventually, texts

DEAD = ServiceBusSubQueue.DEAD_LETTER


def client(bus: Bus, retries: int = 0, key: str | None = None) -> ServiceBusClient:
    text = bus.connection_string() if key is None else bus.connection_string(key=key)
    return ServiceBusClient.from_connection_string(text, retry_total=retries)


async def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        left = count - len(found)
        some = await receiver.receive_messages(max_message_count=left, max_wait_time=WAIT)
        assert some, f"only {len(found)} of {count} have come"
        found += some
    return found


async def take(receiver: ServiceBusReceiver, count: int) -> list[str]:
    found = await receive(receiver, count)
    for each in found:
        await receiver.complete_message(each)
    return texts(found)


Body = Callable[[ServiceBusSender, ServiceBusReceiver], Awaitable[None]]


def between(bus: Bus, queue: str, body: Body, **options: Any) -> None:
    """Runs it with a sender and a receiver of a queue."""

    async def run() -> None:
        async with client(bus) as made:
            sender = made.get_queue_sender(queue)
            receiver = made.get_queue_receiver(queue, **options)
            await asyncio.gather(sender.__aenter__(), receiver.__aenter__())
            try:
                await body(sender, receiver)
            finally:
                await asyncio.gather(sender.close(), receiver.close())

    asyncio.run(run())


def test_one_several_and_many_messages_are_sent_and_received(bus: Bus) -> None:
    queue = bus.queue()

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages(ServiceBusMessage("one"))
        await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
        batch = await sender.create_message_batch()
        for n in range(100):
            batch.add_message(ServiceBusMessage(f"{n}"))
        await sender.send_messages(batch)
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * (2 << 20)))
        expected = ["one", "two", "three", *(f"{n}" for n in range(100))]
        assert await take(receiver, 103) == expected
        assert await receiver.receive_messages(max_wait_time=NOTHING) == []

    between(bus, queue, body)
    assert bus.counts(queue)["active"] == bus.counts(queue)["locked"] == 0


def test_messages_are_settled_in_every_way(bus: Bus) -> None:
    queue = bus.queue()

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages([ServiceBusMessage(each) for each in "acdx"])
        abandoned, completed, deferred, dead = await receive(receiver, 4)
        await receiver.abandon_message(abandoned)
        await receiver.complete_message(completed)
        await receiver.defer_message(deferred)
        await receiver.dead_letter_message(dead, reason="a reason", error_description="a text")
        [again] = await receive(receiver)
        assert (str(again), again.delivery_count) == ("a", 1)
        await receiver.complete_message(again)
        [found] = await receiver.receive_deferred_messages(deferred.sequence_number or 0)
        assert found.state == ServiceBusMessageState.DEFERRED
        await receiver.complete_message(found)

    async def dead(_: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        [found] = await receive(receiver)
        assert str(found) == "x"
        assert found.dead_letter_reason == "a reason"
        assert found.dead_letter_error_description == "a text"
        await receiver.complete_message(found)

    between(bus, queue, body)
    between(bus, queue, dead, sub_queue=DEAD)
    assert set(bus.counts(queue).values()) == {0}


def test_receive_and_delete_and_iterating(bus: Bus) -> None:
    queue = bus.queue()

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages([ServiceBusMessage(each) for each in "abcdef"])
        assert [str(each) async for each in receiver] == list("abcdef")

    between(bus, queue, body, receive_mode=DELETE, max_wait_time=1, prefetch_count=3)
    assert set(bus.counts(queue).values()) == {0}


def test_locks_expire_and_are_renewed(bus: Bus) -> None:
    queue = bus.queue(lock_ms=30_000)

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages(ServiceBusMessage("x"))
        [message] = await receive(receiver)
        for _ in range(2):
            bus.advance(20)
            await receiver.renew_message_lock(message)
        bus.advance(31)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(message)
        if HEARS:
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)
        [again] = await receive(receiver)
        assert again.delivery_count == 1
        await receiver.complete_message(again)

    between(bus, queue, body)
    assert set(bus.counts(queue).values()) == {0}


def test_messages_are_peeked_scheduled_and_cancelled(bus: Bus) -> None:
    queue = bus.queue()

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        later = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
        first, second = await sender.schedule_messages(
            [ServiceBusMessage("a"), ServiceBusMessage("b")], later
        )
        seen = await receiver.peek_messages(5)
        assert {each.state for each in seen} == {ServiceBusMessageState.SCHEDULED}
        assert [each.sequence_number for each in seen] == [first, second]
        await sender.cancel_scheduled_messages(first)
        bus.advance(601)
        assert await take(receiver, 1) == ["b"]

    between(bus, queue, body)
    assert set(bus.counts(queue).values()) == {0}


@pytest.mark.skipif(not HEARS, reason="before 7.15 the SDK gives nothing back when it is closed")
def test_a_closed_receiver_gives_back_what_it_has_prefetched(bus: Bus) -> None:
    queue = bus.queue()

    async def first(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])
        assert await take(receiver, 1) == ["0"]

    async def second(_: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        found = await receive(receiver, 9)
        assert texts(found) == [f"{n}" for n in range(1, 10)]
        assert {each.delivery_count for each in found} == {0}

    between(bus, queue, first, prefetch_count=20)
    between(bus, queue, second)


def test_a_session_is_received_in_order_with_its_state(bus: Bus) -> None:
    queue = bus.sessions(lock_ms=30_000)

    async def body(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        await sender.send_messages([ServiceBusMessage(each, session_id="s") for each in "abc"])
        assert await take(receiver, 2) == ["a", "b"]
        assert await receiver.session.get_state() is None
        await receiver.session.set_state("half")
        assert await receiver.session.get_state() == b"half"
        with pytest.raises(SessionCannotBeLockedError):
            async with client(bus) as other, other.get_queue_receiver(queue, session_id="s"):
                pass
        bus.advance(20)
        await receiver.session.renew_lock()
        bus.advance(20)
        assert await receiver.session.get_state() == b"half"
        bus.advance(31)
        with pytest.raises(SessionLockLostError):
            await receiver.session.get_state()

    async def rest(_: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
        assert receiver.session.session_id == "s"
        assert await receiver.session.get_state() == b"half"
        assert await take(receiver, 1) == ["c"]

    between(bus, queue, body, session_id="s")
    between(bus, queue, rest, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT)


def test_an_attach_is_held_until_a_message_comes(bus: Bus) -> None:
    queue = bus.sessions()

    async def run() -> None:
        async with client(bus) as made:
            sender = made.get_queue_sender(queue)
            receiver = made.get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT
            )
            await sender.__aenter__()
            waiting = asyncio.create_task(receiver.__aenter__())
            await asyncio.to_thread(eventually, lambda: bus.receivers(queue) > 0)
            assert not waiting.done()
            await sender.send_messages(ServiceBusMessage("x", session_id="late"))
            await waiting
            assert receiver.session.session_id == "late"
            assert await take(receiver, 1) == ["x"]

    asyncio.run(run())


def refused(bus: Bus, error: type[ServiceBusError], key: str | None = None, **options: Any) -> None:
    async def run() -> None:
        async with client(bus, key=key) as made:
            with pytest.raises(error):
                async with made.get_queue_receiver(**options):
                    pass

    asyncio.run(run())


def test_refusals_have_their_classes(bus: Bus) -> None:
    refused(bus, MessagingEntityNotFoundError, queue_name="not-there")
    refused(bus, ServiceBusAuthenticationError, queue_name=bus.queue(), key="WRONG_KEY")
    sessions = bus.sessions()
    refused(
        bus, OperationTimeoutError, queue_name=sessions, session_id=NEXT_AVAILABLE_SESSION,
        max_wait_time=1,
    )  # fmt: skip
