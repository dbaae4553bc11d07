"""However many queues there are, nobody waits while metrics are told."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse.broker.access import BROKER
from posthouse.broker.slices import SLICE_STEPS
from posthouse.core.commands import CreateQueue
from posthouse.core.model import QueueProperties
from posthouse.server.metrics import ENTITIES_MAX
from tests.server.inside import Inside, inside
from tests.turns import Turns

QUEUES = 2_000
PATHS = ("/metrics", "/metrics?entities=1", "/servicebus/metrics", "/servicebus/health")


async def make_queues(broker: Inside) -> None:
    engine = broker.server._broker.engine
    assert engine is not None
    for number in range(QUEUES):
        await engine.ask(BROKER, "default", CreateQueue(f"queue{number}", QueueProperties()))


async def turns_of(broker: Inside, path: str) -> int:
    """The fewest of some tries: the loop also turns while it waits for bytes."""
    counts = []
    for _ in range(4):  # at the first, something may be imported
        with Turns() as turns:
            answer = await broker.call("GET", path)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        counts.append(turns.count)
    return min(counts)


@pytest.mark.parametrize("path", PATHS)
def test_others_have_their_turns_while_metrics_of_many_queues_are_told(
    path: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with inside(tmp_path, dev=True, memory=True) as broker:
            few = await turns_of(broker, path)
            await make_queues(broker)
            many = await turns_of(broker, path)
            # Each queue has a dead-letter queue.
            assert many - few >= 2 * QUEUES // SLICE_STEPS - 1

    asyncio.run(main())


def test_metrics_of_many_queues_are_those_of_each_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with inside(tmp_path, dev=True, memory=True) as broker:
            await make_queues(broker)
            _, _, text = (await broker.call("GET", "/metrics?entities=1")).partition(b"\r\n\r\n")
        families = {
            each.name: each.samples for each in text_string_to_metric_families(text.decode())
        }
        queues = [each.labels["queue"] for each in families["posthouse_queue_bytes"]]
        assert len(queues) == len(set(queues)) == ENTITIES_MAX
        assert len(families["posthouse_queue_messages"]) == 5 * ENTITIES_MAX
        [left_out] = families["posthouse_queues_left_out"]
        assert left_out.value == 2 * QUEUES - ENTITIES_MAX

    asyncio.run(main())
