"""What not every provider has: it works, or `Unsupported` says so; the table in the docs agrees."""

from datetime import timedelta
from pathlib import Path

import pytest

from posthouse.client.errors import MessageNotFound, Unsupported, ValidationError
from posthouse.client.messages import Message, utc_now
from posthouse.client.provider import ProviderType
from tests.client.conformance.rigs import MemoryRig, Rig
from tests.client.conformance.table import COLUMNS, TABLE, can

DOCS = Path(__file__).parents[3] / "docs" / "client.md"


def test_the_docs_have_this_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in DOCS.read_text().splitlines()
        if line.startswith("|")
    ]
    first = next(place for place, row in enumerate(rows) if row[1:] == _names())
    found = {row[0]: tuple(row[1:]) for row in rows[first + 2 : first + 2 + len(TABLE)]}
    assert found == TABLE


def _names() -> list[str]:
    return ["Posthouse", "In memory", "Azure Service Bus", "Amazon SQS"]


@pytest.mark.parametrize("kind", COLUMNS)
def test_capabilities_say_the_same(kind: ProviderType) -> None:
    told = kind.capabilities
    place = COLUMNS.index(kind)
    assert TABLE["Sessions"][place] == told.sessions.value
    assert TABLE["Messages in one send"][place] == f"{told.batch_max:,}"
    assert TABLE["Messages in one receive"][place] == f"{told.receive_max:,}"
    assert TABLE["Bytes of a message"][place] == f"{told.message_bytes_max:,}"
    assert can(kind, "State of a session") == told.session_state
    assert can(kind, "Scheduling") == told.scheduling
    assert can(kind, "Deferring") == told.deferring
    assert can(kind, "Peeking") == told.peeking
    assert can(kind, "Transactions") == told.transactions


async def test_scheduling(rig: Rig) -> None:
    queue = await rig.queue()
    now = rig.provider.now() if isinstance(rig, MemoryRig) else utc_now()
    later = now + timedelta(hours=1)
    if not can(rig.type, "Scheduling"):
        with pytest.raises(Unsupported):
            await rig.client.schedule_message(queue, Message(b"x"), later)
        with pytest.raises(Unsupported):
            await rig.client.cancel_scheduled_message(queue, 1)
        return
    number = await rig.client.schedule_message(queue, Message(b"x"), later)
    assert await rig.client.receive_message(queue, 0.3) is None
    await rig.client.cancel_scheduled_message(queue, number)
    with pytest.raises(MessageNotFound):
        await rig.client.cancel_scheduled_message(queue, number)


async def test_deferring(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_message(queue, Message(b"x"))
    found = await rig.client.receive_message(queue, 5.0)
    assert found is not None
    if not can(rig.type, "Deferring"):
        with pytest.raises(Unsupported):
            await rig.client.defer_message(found)
        with pytest.raises(Unsupported):
            await rig.client.receive_deferred_messages(queue, [1])
        await rig.client.complete_message(found)
        return
    await rig.client.defer_message(found)
    assert await rig.client.receive_message(queue, 0.3) is None
    [again] = await rig.client.receive_deferred_messages(queue, [found.sequence_number])
    assert again.body == b"x"
    await rig.client.complete_message(again)
    with pytest.raises(MessageNotFound):
        await rig.client.receive_deferred_messages(queue, [found.sequence_number])


async def test_peeking(rig: Rig) -> None:
    queue = await rig.queue()
    await rig.client.send_messages(queue, [Message(b"x"), Message(b"y")])
    if not can(rig.type, "Peeking"):
        with pytest.raises(Unsupported):
            await rig.client.peek_messages(queue, 2)
        return
    seen = await rig.client.peek_messages(queue, 10)
    assert [each.body for each in seen] == [b"x", b"y"]
    after = await rig.client.peek_messages(queue, 10, first=seen[1].sequence_number)
    assert [each.body for each in after] == [b"y"]
    with pytest.raises(MessageNotFound):
        await rig.client.complete_message(seen[0])


async def test_transactions(rig: Rig) -> None:
    queue = await rig.queue()
    if not can(rig.type, "Transactions"):
        with pytest.raises(Unsupported):
            async with rig.client.transaction():
                raise AssertionError("it began")
        return
    async with rig.client.transaction() as together:
        await together.send_message(queue, Message(b"x"))
    assert await rig.client.receive_message(queue, 5.0) is not None


async def test_a_time_to_live(rig: Rig) -> None:
    queue = await rig.queue()
    message = Message(b"x").with_ttl(30)
    if not can(rig.type, "Time to live of a message"):
        with pytest.raises(Unsupported):
            await rig.client.send_message(queue, message)
        return
    await rig.client.send_message(queue, message)
    await rig.pass_time(31)
    assert await rig.client.receive_message(queue, 0.3) is None


async def test_an_empty_body(rig: Rig) -> None:
    queue = await rig.queue()
    if not can(rig.type, "Empty bodies"):
        with pytest.raises(ValidationError):
            await rig.client.send_message(queue, Message(b""))
        return
    await rig.client.send_message(queue, Message(b""))
    found = await rig.client.receive_message(queue, 5.0)
    assert found is not None
    assert found.body == b""
