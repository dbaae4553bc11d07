"""Servers that want fewer calls: the client says so, waits as its policy does, and goes on."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from posthouse.client.errors import QueueError, Throttled
from posthouse.client.messages import Message
from posthouse.client.retry import ExponentialRetry, FixedRetry
from tests.client.conformance.rigs import Rig, SqsRig, opened
from tests.client.conformance.table import AZURE, POSTHOUSE, SQS
from tests.client.gate import Gate, Refusal

BURST = 5  # messages and requests that a server takes in a second
BUSY = (400, "ThrottlingException", "Rate exceeded")
Opened = tuple[Rig, asyncio.Runner]


class Watched:
    """A policy that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, QueueError]] = []

    def delay(self, tries: int, error: QueueError) -> float | None:
        self.asked.append((tries, error))
        return FixedRetry(attempts=20, wait=0.1).delay(tries, error)


@pytest.fixture(
    scope="module",
    params=[(kind, flag) for kind in (POSTHOUSE, AZURE) for flag in ("entity", "principal")],
    ids=lambda param: f"{param[0].value}-{param[1]}",
)
def served(request: pytest.FixtureRequest) -> Iterator[Opened]:
    kind, flag = request.param
    with opened(kind, f"--rate-{flag}", str(BURST)) as found:
        yield found


def test_a_busy_server_is_told_with_how_long_to_wait(served: Opened) -> None:
    rig, runner = served

    async def work() -> None:
        queue = await rig.queue()

        async def send_many() -> None:
            for _ in range(5 * BURST):
                await rig.client.send_messages(queue, [Message(b"x")] * BURST)

        with pytest.raises(Throttled) as caught:
            await send_many()
        error = caught.value
        assert error.code == "com.microsoft:server-busy"
        assert error.is_transient
        assert error.retry_after is not None
        assert f"wait {error.retry_after * 1_000:.0f} ms" in str(error)
        wait = ExponentialRetry(base=0.001).delay(1, error)
        assert wait is not None
        assert wait >= error.retry_after

    runner.run(work())


def test_what_was_held_up_goes_when_its_time_has_come(served: Opened) -> None:
    rig, runner = served

    async def work() -> None:
        queue, policy = await rig.queue(), Watched()
        client = rig.made(rig.config(), policy, breaker_failures=0)
        for _ in range(BURST + 3):
            await client.send_message(queue, Message(b"x"))
        held_up = {type(error) for _, error in policy.asked}
        assert held_up == {Throttled}
        assert max(tries for tries, _ in policy.asked) < 20
        assert client.figures.messages["sent"] == BURST + 3

    runner.run(work())


@pytest.fixture(scope="module")
def sqs() -> Iterator[tuple[Any, asyncio.Runner, Gate]]:
    with opened(SQS) as (rig, runner):
        assert isinstance(rig, SqsRig)
        with Gate(rig.port).open() as gate:
            yield rig, runner, gate


def busy(times: int, at: str) -> Any:
    left = [BUSY] * times

    def refuse(operation: str, form: Any) -> Refusal | None:
        return left.pop() if left and operation == at else None

    return refuse


Gated = tuple[Any, asyncio.Runner, Gate]


def test_sqs_that_is_busy_is_told_and_tried_again_as_the_policy_says(sqs: Gated) -> None:
    rig, runner, gate = sqs

    async def work() -> None:
        queue, policy = await rig.queue(), Waiting()
        client = rig.made(rig.config(port=gate.port), policy)
        gate.refuse = busy(2, "SendMessage")
        await client.send_message(queue, Message(b"x"))
        assert policy.asked == [(1, 5.0), (2, 5.0)]
        gate.refuse = busy(1, "ReceiveMessage")
        found = await client.receive_message(queue, 5.0)
        assert found is not None
        gate.refuse = busy(1, "DeleteMessageBatch")
        await client.complete_message(found)
        assert len(policy.asked) == 4
        await client.close()

    runner.run(work())


class Waiting:
    """SQS does not say how long: what is usual is noted, and not waited for. Four tries."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float | None]] = []

    def delay(self, tries: int, error: QueueError) -> float | None:
        self.asked.append((tries, error.retry_after))
        told = ExponentialRetry(attempts=3, base=0.001).delay(tries, error)
        assert told is None or told >= 5.0
        return None if told is None else 0.0


def test_sqs_that_stays_busy_ends_the_tries(sqs: Gated) -> None:
    rig, runner, gate = sqs

    async def work() -> None:
        queue, policy = await rig.queue(), Waiting()
        client = rig.made(rig.config(port=gate.port), policy)
        gate.refuse = busy(100, "SendMessage")
        before = len(gate.asked)
        with pytest.raises(Throttled) as caught:
            await client.send_message(queue, Message(b"x"))
        assert caught.value.code == "ThrottlingException"
        assert [each for each, _ in gate.asked[before:]].count("SendMessage") == 3
        await client.close()

    runner.run(work())
