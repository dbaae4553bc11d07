"""The fields of a message: each arrives as it was sent, or `Unsupported` says that it cannot."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from posthouse.client.errors import Unsupported
from posthouse.client.messages import Message, ReceivedMessage
from tests.client.conformance.rigs import Rig
from tests.client.conformance.table import can
from tests.client.conformance.test_messages import is_empty, received

pytestmark = pytest.mark.long

UID = UUID("12345678-1234-5678-1234-567812345678")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
PLAIN: dict[str, Any] = {
    "text": "\u20ac", "int": -7, "large": 1 << 62, "float": 1.5, "whole": 2.0, "yes": True,
    "no": False, "uuid": UID,
}  # fmt: skip


async def test_subject_to_and_reply_to_arrive(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(
        queue, Message("x", subject="an order", to="shop", reply_to="team/answers")
    )
    found = await received(rig, queue)
    assert (found.subject, found.to, found.reply_to) == ("an order", "shop", "team/answers")
    assert found.content_type == "text/plain; charset=utf-8"
    assert (found.priority, found.partition_key) == (4, None)
    await rig.client.complete_message(found)


async def test_messages_that_differ_in_their_fields_alone_keep_them_apart(rig: Rig) -> None:
    queue = await rig.queue()
    sent = [Message(b"same", {"n": n % 3}, subject=f"s{n}", to=f"t{n}") for n in range(10)]
    ids = await rig.client.send_messages(queue, sent)
    found: dict[str, ReceivedMessage] = {}
    while len(found) < len(sent):
        for each in await rig.client.receive_messages(queue, 10, 5):
            found[each.message_id] = each
            await rig.client.complete_message(each)
    for id, message in zip(ids, sent, strict=True):
        came = found[id]
        assert (came.subject, came.to) == (message.subject, message.to)
        assert came.attributes == message.attributes


async def test_attributes_arrive_with_their_types(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x", PLAIN))
    found = await received(rig, queue)
    assert found.attributes == PLAIN
    assert {name: type(value) for name, value in found.attributes.items()} == {
        name: type(value) for name, value in PLAIN.items()
    }
    await rig.client.complete_message(found)


@pytest.mark.parametrize("value", [b"\0\xff", MOMENT], ids=["bytes", "time"])
async def test_attributes_that_are_bytes_or_times(rig: Rig, value: Any) -> None:
    queue = await rig.queue()
    message = Message(b"x", {"value": value, "other value": value})
    if not can(rig.type, "Attributes that are bytes or times"):
        with pytest.raises(Unsupported, match="'value'"):
            await rig.client.send_message(queue, message)
        assert await is_empty(rig, queue)
        return
    await rig.client.send_message(queue, message)
    assert (await received(rig, queue)).attributes == message.attributes


async def test_a_priority_arrives(rig: Rig) -> None:
    queue = await rig.queue()
    if not can(rig.type, "Priority of a message"):
        with pytest.raises(Unsupported, match="priority"):
            await rig.client.send_message(queue, Message(b"x", priority=9))
        assert await is_empty(rig, queue)
        return
    await rig.client.send_messages(queue, [Message(b"x", priority=9), Message(b"y", priority=0)])
    found = [await received(rig, queue) for _ in "xy"]
    assert {each.body: each.priority for each in found} == {b"x": 9, b"y": 0}
    assert {each.message().priority for each in found} == {9, 0}


async def test_a_partition_key_arrives(rig: Rig) -> None:
    queue = await rig.queue()
    message = Message(b"x", partition_key="customer 7")
    if not can(rig.type, "Partition key of a message"):
        with pytest.raises(Unsupported, match="session id"):
            await rig.client.send_message(queue, message)
        return
    await rig.client.send_message(queue, message)
    assert (await received(rig, queue)).partition_key == "customer 7"


async def test_a_delayed_message_comes_later(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"later", delay=3))
    assert await is_empty(rig, queue)
    await rig.pass_time(4)
    assert (await received(rig, queue)).body == b"later"


async def test_a_delay_longer_than_the_provider_has_is_refused(rig: Rig) -> None:
    queue = await rig.queue()
    message = Message(b"later", delay=3_600)
    if rig.type.value == "aws-sqs":
        with pytest.raises(Unsupported, match="900 s"):
            await rig.client.send_message(queue, message)
        return
    await rig.client.send_message(queue, message)
    assert await is_empty(rig, queue)


async def test_a_dead_letter_has_the_fields_that_its_message_had(rig: Rig) -> None:
    queue = await rig.queue()
    sent = Message(b"x", PLAIN, subject="a", to="b", reply_to="c")
    await rig.client.send_message(queue, sent)
    await rig.client.dead_letter_message(await received(rig, queue), "wrong")
    dead = await rig.client.receive_message(queue, 5, dead_letter=True)
    assert dead is not None
    assert (dead.subject, dead.to, dead.reply_to) == ("a", "b", "c")
    assert dead.attributes == PLAIN
    await rig.client.resubmit_messages(queue, [dead])
    back = await received(rig, queue)
    assert (back.subject, back.to, back.reply_to, back.attributes) == ("a", "b", "c", PLAIN)
