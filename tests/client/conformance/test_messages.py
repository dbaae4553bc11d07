"""Sending, receiving and settling, on every provider alike."""

import asyncio
import time
from datetime import timedelta

import pytest

from posthouse.client.errors import (
    BatchTooLarge,
    ConfigurationError,
    MessageNotFound,
    MessageTooLarge,
    QueueNotFound,
)
from posthouse.client.messages import Message, ReceivedMessage
from tests.client.conformance.rigs import Rig
from tests.client.conformance.table import AZURE, SQS, can

pytestmark = pytest.mark.long


async def received(rig: Rig, queue: str, seconds: float = 5.0) -> ReceivedMessage:
    found = await rig.client.receive_message(queue, seconds)
    assert found is not None
    return found


async def is_empty(rig: Rig, queue: str, *, dead_letter: bool = False) -> bool:
    return await rig.client.receive_message(queue, 0.3, dead_letter=dead_letter) is None


async def test_what_is_sent_comes_back_with_its_id(rig: Rig) -> None:
    queue = await rig.queue()
    sent = [
        Message(b"text", {"a": "1", "b": "\u20ac"}, correlation_id="c", content_type="text/plain"),
        Message(bytes(range(256))),
        Message(b"many", {f"name {n}": f"{n}" for n in range(15)} | {"empty": "", "zero": "\0"}),
        Message(b"<&>\r\n\t \xc3\xa9"),
    ]
    ids = await rig.client.send_messages(queue, sent)
    assert len(set(ids)) == 4
    assert all(ids)
    found: dict[str, ReceivedMessage] = {}
    while len(found) < 4:
        for each in await rig.client.receive_messages(queue, 10, 5):
            found[each.message_id] = each
            await rig.client.complete_message(each)
    for id, message in zip(ids, sent, strict=True):
        came = found[id]
        assert (came.body, came.attributes) == (message.body, message.attributes)
        assert came.correlation_id == message.correlation_id
        assert came.content_type == message.content_type
        assert came.delivery_count == 1
        assert came.session_id is None


async def test_an_id_that_is_given_is_kept(rig: Rig) -> None:
    queue = await rig.queue()
    assert await rig.client.send_message(queue, Message(b"x").with_message_id("mine")) == "mine"
    assert (await received(rig, queue)).message_id == "mine"


async def test_what_was_received_can_be_sent_again(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x", {"a": "b"}, correlation_id="c"))
    first = await received(rig, queue)
    await rig.client.complete_message(first)
    await rig.client.send_message(queue, first.message())
    assert (await received(rig, queue)).message() == first.message()


async def test_a_queue_that_is_not_there_is_named(rig: Rig) -> None:
    async def expect(asked: object) -> None:
        with pytest.raises(QueueNotFound) as caught:
            await asked  # type: ignore[misc]
        assert caught.value.queue_name == "nowhere"

    await asyncio.gather(
        expect(rig.client.send_message("nowhere", Message(b"x"))),
        expect(rig.client.receive_message("nowhere", 1.0)),
    )


async def test_the_lock_runs_from_when_it_was_received(rig: Rig) -> None:
    queue = await rig.queue(lock_s=30)
    await rig.client.send_message(queue, Message(b"x"))
    found = await received(rig, queue)
    left = found.receipt_handle.time_until_expiry()
    assert timedelta(seconds=20) < left
    assert found.delivered_at <= found.receipt_handle.expires_at
    await rig.client.complete_message(found)


async def test_an_empty_queue_is_left_at_the_time_out(rig: Rig) -> None:
    queue = await rig.queue()
    assert await is_empty(rig, queue)  # connects
    begun, used = time.monotonic(), time.process_time()
    assert await rig.client.receive_messages(queue, 5, 1.0) == []
    assert 0.85 <= time.monotonic() - begun < 5  # 0.1 s, and what a busy machine adds
    assert time.process_time() - used < 0.5, "it waits busily"


async def test_waiting_ends_with_the_first_message(rig: Rig) -> None:
    queue = await rig.queue()
    assert await is_empty(rig, queue)
    waiting = asyncio.ensure_future(rig.client.receive_message(queue, 20.0))
    await asyncio.sleep(0.1)  # slept: no provider tells that somebody waits; earlier is as good
    begun = time.monotonic()
    await rig.client.send_message(queue, Message(b"x"))
    found = await waiting
    assert found is not None
    assert time.monotonic() - begun < 10


async def test_who_is_cancelled_leaves_nothing_locked(rig: Rig) -> None:
    queue = await rig.queue()
    assert await is_empty(rig, queue)
    waiting = asyncio.ensure_future(rig.client.receive_message(queue, 10.0))
    await asyncio.sleep(0.1)  # slept: no provider tells that somebody waits; earlier is as good
    begun = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - begun < 5
    await rig.client.send_message(queue, Message(b"x"))
    assert (await received(rig, queue, 8.0)).body == b"x"  # long before its lock would be over


async def test_a_completed_message_is_gone_and_its_receipt_dead(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    found = await received(rig, queue)
    await rig.client.complete_message(found)
    for again in (rig.client.complete_message, rig.client.abandon_message):
        with pytest.raises(MessageNotFound) as caught:
            await again(found)
        assert caught.value.receipt == found.receipt_handle.handle
    with pytest.raises(MessageNotFound):
        await rig.client.renew_message_lock(found)
    assert await is_empty(rig, queue)


async def test_of_two_completions_the_first_wins(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    found = await received(rig, queue)
    done = await asyncio.gather(
        *(rig.client.complete_message(found) for _ in range(3)), return_exceptions=True
    )
    assert done.count(None) == 1
    assert sum(isinstance(each, MessageNotFound) for each in done) == 2


async def test_a_receipt_that_never_was_changes_nothing(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    good = (await received(rig, queue)).receipt_handle
    bad = type(good)("0" * 32 + queue, good.expires_at, good.provider)
    with pytest.raises(MessageNotFound) as caught:
        await rig.client.complete_message(bad)
    assert caught.value.receipt == bad.handle
    await rig.client.complete_message(good)


async def test_one_bad_receipt_among_many_does_not_stop_the_others(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_messages(queue, [Message(b"x"), Message(b"y")])
    found: list[ReceivedMessage] = []
    while len(found) < 2:
        found += await rig.client.receive_messages(queue, 2, 5)
    await rig.client.complete_message(found[0])
    with pytest.raises(MessageNotFound):
        await rig.client.complete_messages(found)
    assert await is_empty(rig, queue)


async def test_an_expired_lock_makes_it_visible_again(rig: Rig) -> None:
    queue = await rig.queue(lock_s=rig.lock_s)
    await rig.client.send_message(queue, Message(b"x"))
    first = await received(rig, queue)
    await rig.pass_time(rig.lock_s + 0.2)
    second = await received(rig, queue)
    assert second.message_id == first.message_id
    assert second.receipt_handle != first.receipt_handle
    assert second.delivery_count == 2
    with pytest.raises(MessageNotFound) as caught:
        await rig.client.complete_message(first)
    assert caught.value.receipt == first.receipt_handle.handle
    await rig.client.complete_message(second)


async def test_long_handling_keeps_its_lock_by_renewal(rig: Rig) -> None:
    lock_s = max(2.0, rig.lock_s)
    queue = await rig.queue(lock_s=lock_s)
    await rig.client.send_message(queue, Message(b"x"))
    found = await received(rig, queue)
    before = found.receipt_handle.expires_at
    for _ in range(2):
        await rig.pass_time(lock_s * 0.6)
        assert await rig.client.renew_message_lock(found) > before
    assert await is_empty(rig, queue)
    await rig.client.complete_message(found)


async def test_the_count_rises_with_each_delivery(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    for count in (1, 2, 3):
        found = await received(rig, queue)
        assert found.delivery_count == count
        assert found.has_exceeded_max_delivery_count(2) == (count > 2)
        await rig.client.abandon_message(found)


async def test_what_is_released_comes_again(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    await rig.client.release_message(await received(rig, queue))
    counted = not can(rig.type, "Release without counting")
    assert (await received(rig, queue)).delivery_count == (2 if counted else 1)


async def test_what_keeps_failing_becomes_a_dead_letter(rig: Rig) -> None:
    queue = await rig.queue(max_delivery=2)
    await rig.client.send_message(queue, Message(b"x", {"a": "b"}))
    for _ in range(2):
        await rig.client.abandon_message(await received(rig, queue))
    assert await is_empty(rig, queue)
    dead = await rig.client.receive_message(queue, 5.0, dead_letter=True)
    assert dead is not None
    assert (dead.body, dead.attributes) == (b"x", {"a": "b"})
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_a_dead_letter_has_a_reason_and_can_be_resubmitted(rig: Rig) -> None:
    queue = await rig.queue()
    sent = Message(b"x", {"a": "b"}, correlation_id="c")
    id = await rig.client.send_message(queue, sent)
    await rig.client.dead_letter_message(await received(rig, queue), "broken", "no such order")
    assert await is_empty(rig, queue)
    dead = await rig.client.receive_message(queue, 5.0, dead_letter=True)
    assert dead is not None
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("broken", "no such order")
    assert (dead.message_id, dead.body, dead.attributes) == (id, sent.body, sent.attributes)
    await rig.client.resubmit_messages(queue, [dead])
    back = await received(rig, queue)
    assert (back.message_id, back.attributes, back.correlation_id) == (id, {"a": "b"}, "c")
    assert back.dead_letter_reason is None
    assert await is_empty(rig, queue, dead_letter=True)


async def test_a_dead_letter_can_be_resubmitted_elsewhere(rig: Rig) -> None:
    queue, target = await rig.queue(), await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    await rig.client.dead_letter_message(await received(rig, queue), "broken")
    dead = await rig.client.receive_message(queue, 5.0, dead_letter=True)
    assert dead is not None
    await rig.client.resubmit_messages(queue, [dead], target=target)
    assert (await received(rig, target)).body == b"x"


async def test_what_no_dead_letter_queue_takes_stays(rig: Rig) -> None:
    if rig.type is not SQS:
        return  # elsewhere each queue has its own
    queue = await rig.queue(dead_letters=False)
    await rig.client.send_message(queue, Message(b"x"))
    found = await received(rig, queue)
    with pytest.raises(ConfigurationError, match="RedrivePolicy"):
        await rig.client.dead_letter_message(found, "broken")
    await rig.client.abandon_message(found)
    assert (await received(rig, queue)).body == b"x"


async def test_equal_ids_are_two_messages(rig: Rig) -> None:
    queue = await rig.queue()
    for body in (b"x", b"y"):
        await rig.client.send_message(queue, Message(body).with_message_id("same"))
    assert {(await received(rig, queue)).body for _ in range(2)} == {b"x", b"y"}


async def test_equal_ids_are_one_message_where_duplicates_are_detected(rig: Rig) -> None:
    queue = await rig.queue(duplicates=True)
    client = rig.sessions
    for body in (b"x", b"y"):
        await client.send_message(queue, Message(body).with_message_id("same"))
    found = await client.receive_message(queue, 5.0)
    assert found is not None
    assert found.body == b"x"
    await client.complete_message(found)
    assert await client.receive_message(queue, 0.3) is None


async def test_what_is_too_large_is_refused_with_both_sizes(rig: Rig) -> None:
    queue, most = await rig.queue(), rig.client.max_message_size()
    with pytest.raises(MessageTooLarge) as caught:
        await rig.client.send_message(queue, Message(b"x" * (most + 1)))
    assert caught.value.size > caught.value.max_size
    assert caught.value.max_size <= most
    with pytest.raises(MessageTooLarge):
        await rig.client.send_messages(queue, [Message(b"x"), Message(b"y" * (most + 1))])
    assert await is_empty(rig, queue)


async def test_a_batch_has_a_size(rig: Rig) -> None:
    queue, most = await rig.queue(), rig.client.max_batch_size()
    with pytest.raises(BatchTooLarge) as caught:
        await rig.client.send_messages(queue, [Message(b"x")] * (most + 1))
    assert (caught.value.size, caught.value.max_size) == (most + 1, most)
    count = min(most, 100)
    ids = await rig.client.send_messages(queue, [Message(b"%d" % n) for n in range(count)])
    assert len(set(ids)) == count
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await rig.client.receive_messages(queue, count, 5.0)
    assert {each.message_id for each in found} == set(ids)
    await rig.client.complete_messages(found)


async def test_a_batch_of_large_messages_goes_whole(rig: Rig) -> None:
    queue = await rig.queue()
    each = min(rig.client.max_message_size() // 2, 300_000)
    sent = [Message(b"%d" % n * each) for n in range(5)]
    ids = await rig.client.send_messages(queue, sent)
    found: list[ReceivedMessage] = []
    while len(found) < 5:
        some = await rig.client.receive_messages(queue, 10, 5.0)
        assert some
        found += some
    assert {message.message_id for message in found} == set(ids)


async def test_messages_come_as_they_are_sent_to_a_receiver(rig: Rig) -> None:
    queue = await rig.queue()
    async with rig.client.receiver(queue) as receiver:
        waiting = asyncio.ensure_future(receiver.next_batch())
        await asyncio.sleep(0.1)  # slept: no provider tells that somebody waits; earlier is as good
        await rig.client.send_messages(queue, [Message(b"%d" % n) for n in range(10)])
        bodies = {each.body for each in await waiting}
        while len(bodies) < 10:
            found = await anext(receiver)
            bodies.add(found.body)
            await rig.client.complete_message(found)
        assert bodies == {b"%d" % n for n in range(10)}
        idle = asyncio.ensure_future(receiver.next_batch())
        await asyncio.sleep(0.1)  # slept: no provider tells that somebody waits; earlier is as good
    assert await idle == []


async def test_what_was_not_settled_when_its_receiver_was_closed(rig: Rig) -> None:
    queue = await rig.queue(lock_s=rig.lock_s)
    await rig.client.send_messages(queue, [Message(b"0"), Message(b"1")])
    async with rig.client.receiver(queue) as receiver:
        first = await anext(receiver)
    if rig.type is AZURE:
        with pytest.raises(MessageNotFound):
            await rig.client.complete_message(first)
        await rig.pass_time(rig.lock_s)
    else:
        await rig.client.complete_message(first)
    bodies: set[bytes] = set()
    while len(bodies) < (2 if rig.type is AZURE else 1):
        [found] = await rig.client.receive_messages(queue, 1, 5.0)
        bodies.add(found.body)
        await rig.client.complete_message(found)
    assert await is_empty(rig, queue)
    assert len(bodies - {first.body}) == 1


async def test_when_it_was_first_delivered_is_told_as_far_as_it_is_known(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    first = await rig.client.receive_message(queue, 5.0)
    assert first is not None
    assert first.first_delivered_at is not None
    assert abs(first.first_delivered_at - first.delivered_at) < timedelta(seconds=5)
    await rig.client.abandon_message(first)
    again = await rig.client.receive_message(queue, 5.0)
    assert again is not None
    assert (again.first_delivered_at is None) == (rig.type is not SQS)
    if again.first_delivered_at is not None:
        assert again.first_delivered_at == first.first_delivered_at
    await rig.client.complete_message(again)


async def test_many_at_a_time_do_not_disturb_each_other(rig: Rig) -> None:
    queues = [await rig.queue() for _ in range(3)]

    async def one(queue: str, number: int) -> None:
        await rig.client.send_message(queue, Message(b"%d" % number))

    async def taken(queue: str) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < 20:
            for each in await rig.client.receive_messages(queue, 5, 10.0):
                await rig.client.complete_message(each)
                bodies.append(each.body)
        return bodies

    takers = [asyncio.ensure_future(taken(queue)) for queue in queues]
    await asyncio.gather(*(one(queue, n) for n in range(20) for queue in queues))
    for each in takers:
        assert sorted(await each) == sorted(b"%d" % n for n in range(20))


async def test_a_burst_is_taken_whole(rig: Rig) -> None:
    queue, size = await rig.queue(), min(rig.client.max_batch_size(), 50)
    batches = [[Message(b"x")] * size for _ in range(20)]
    sent = await asyncio.gather(*(rig.client.send_messages(queue, each) for each in batches))
    ids = {id for each in sent for id in each}
    assert len(ids) == 20 * size
    came: list[str] = []

    async def take() -> None:
        while set(came) != ids:
            found = await rig.client.receive_messages(queue, 100, 0.5)
            came.extend(each.message_id for each in found)
            if found:
                await rig.client.complete_messages(found)

    await asyncio.gather(*(take() for _ in range(3)))
    if rig.type is not SQS:  # it may deliver one twice, as Moto does under many hands
        assert len(came) == len(ids)
