"""Batches of which a server takes a part: each message is told of by its place."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from posthouse.client.errors import (
    MessageTooLarge,
    PartialFailure,
    ProviderError,
    QueueError,
    ValidationError,
)
from posthouse.client.messages import Message
from posthouse.client.retry import FixedRetry
from tests.client.conformance.rigs import AzureRig, Rig, SqsRig, opened
from tests.client.conformance.table import AZURE, SQS
from tests.client.gate import Gate, Refusal

KIB = 1 << 10
Opened = tuple[Any, asyncio.Runner]


@pytest.fixture(scope="module")
def azure() -> Iterator[Opened]:
    with opened(AZURE) as found:
        yield found


@pytest.fixture(scope="module")
def sqs() -> Iterator[Opened]:
    with opened(SQS) as found:
        yield found


def messages(*sizes: int) -> list[Message]:
    """Each begins with its place."""
    return [Message(b"%d" % place + bytes([120]) * size) for place, size in enumerate(sizes)]


async def there(rig: Rig, queue: str, count: int) -> list[int]:
    """Places of so many messages, and no more, that have come."""
    found: list[int] = []
    while len(found) < count:
        some = await rig.client.receive_messages(queue, 10, 5.0)
        assert some
        found += [int(each.body[:1]) for each in some]
        await rig.client.complete_messages(some)
    assert await rig.client.receive_messages(queue, 10, 0.3) == []
    return sorted(found)


def test_of_azure_the_one_that_is_too_large_fails_and_the_others_go(azure: Opened) -> None:
    rig: AzureRig = azure[0]

    async def work() -> None:
        queue = await rig.queue(max_message_bytes=300 * KIB)
        sizes = (200 * KIB, 200 * KIB, 400 * KIB, 10)
        with pytest.raises(PartialFailure) as caught:
            await rig.client.send_messages(queue, messages(*sizes))
        [(place, error)] = caught.value.failures.items()
        assert place == 2
        assert isinstance(error, MessageTooLarge)
        assert (error.size, error.max_size) == (400 * KIB + 1, 300 * KIB)
        assert not caught.value.is_transient
        assert caught.value.ids.keys() == {0, 1, 3}
        assert await there(rig, queue, 3) == [0, 1, 3]

    azure[1].run(work())


def test_of_azure_what_a_full_queue_refuses_is_told_and_the_rest_is_there(azure: Opened) -> None:
    rig: AzureRig = azure[0]

    async def work() -> None:
        queue = await rig.queue(max_message_bytes=300 * KIB, max_messages=2)
        with pytest.raises(PartialFailure) as caught:
            await rig.client.send_messages(queue, messages(*[200 * KIB] * 4))
        assert caught.value.failures.keys() == {2, 3}
        assert {type(each) for each in caught.value.failures.values()} == {ProviderError}
        assert caught.value.is_transient
        assert await there(rig, queue, 2) == [0, 1]

    azure[1].run(work())


def test_of_azure_only_what_did_not_go_is_sent_again(azure: Opened) -> None:
    rig: AzureRig = azure[0]

    async def work() -> None:
        queue = await rig.queue(max_message_bytes=300 * KIB, max_messages=2)
        client = rig.made(rig.config(), FixedRetry(attempts=100, wait=0.1), breaker_failures=0)
        sending = asyncio.ensure_future(client.send_messages(queue, messages(*[200 * KIB] * 3)))
        assert await there(rig, queue, 3) == [0, 1, 2]
        assert len(await sending) == 3

    azure[1].run(work())


def test_of_sqs_a_request_that_is_refused_leaves_the_others(sqs: Opened) -> None:
    rig: SqsRig = sqs[0]

    async def work() -> None:
        queue = await rig.queue(MaximumMessageSize=16 * KIB)
        sizes = (250 * KIB, 8 * KIB, 8 * KIB)  # the first needs a request of its own
        with pytest.raises(PartialFailure) as caught:
            await rig.client.send_messages(queue, messages(*sizes))
        [(place, error)] = caught.value.failures.items()
        assert place == 0
        assert isinstance(error, ValidationError)
        assert "16384" in str(error)
        assert caught.value.ids.keys() == {1, 2}
        assert await there(rig, queue, 2) == [1, 2]

    sqs[1].run(work())


def test_of_sqs_an_entry_that_is_refused_is_told_by_its_place(sqs: Opened) -> None:
    """Moto refuses no entry but for its delay, which the gate puts in."""
    rig: SqsRig = sqs[0]

    def delay(operation: str, form: Any) -> Refusal | None:
        if operation == "SendMessageBatch":
            form["Entries"][1]["DelaySeconds"] = 901
        return None

    async def work(gate: Gate) -> None:
        gate.refuse = delay
        queue = await rig.queue()
        client = rig.made(rig.config(port=gate.port), FixedRetry(attempts=9, wait=0.0))
        with pytest.raises(PartialFailure) as caught:
            await client.send_messages(queue, messages(1, 1, 1))
        [(place, error)] = caught.value.failures.items()
        assert place == 1
        assert isinstance(error, QueueError)
        assert "DelaySeconds" in str(error)
        assert [each for each, _ in gate.asked].count("SendMessageBatch") == 1
        assert await there(rig, queue, 2) == [0, 2]
        await client.close()

    with Gate(rig.port).open() as gate:
        sqs[1].run(work(gate))
