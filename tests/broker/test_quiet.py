"""Waiting for quiet: it comes when the last client has done its work, and not before."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from posthouse.broker.clock import SystemClock
from posthouse.core.commands import Abandon, Attach, Complete, Credit, Delivery, Detach
from posthouse.core.plan import Delivered
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk


class Consumer:
    """Handles what it is pushed, for a while each; what it does may make more work for others."""

    def __init__(self, desk: Desk, random: Random, work: list[int]) -> None:
        self._desk, self._random, self._work = desk, random, work
        self._number = desk.engine.new_receiver(self._deliver)
        self._handling: set[asyncio.Task[None]] = set()
        self.is_busy = 0

    async def start(self) -> None:
        await self._desk.do(Attach("q", self._number, credit=2))

    async def stop(self) -> None:
        await self._desk.do(Detach(self._number))

    def _deliver(self, deliveries: Sequence[Delivered]) -> None:
        for delivery in deliveries:
            assert isinstance(delivery, Delivery)
            self.is_busy += 1
            task = asyncio.create_task(self._handle(delivery))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _handle(self, delivery: Delivery) -> None:
        desk, random = self._desk, self._random
        await asyncio.sleep(random.choice([0, 0.005, 0.03]))  # slept: as long as it takes
        if self._work[0] and random.random() < 0.5:
            self._work[0] -= 1
            if random.random() < 0.5:
                await desk.send("more")
            else:
                await desk.send("later", due_ms=desk.engine.clock_ms(NS) + 3_600_000)
        if self._work[0] and random.random() < 0.3:
            self._work[0] -= 1
            await desk.do(Abandon("q", [delivery.token], delay_ms=random.choice([0, 60_000])))
        else:
            await desk.do(Complete("q", [delivery.token]))
        self.is_busy -= 1
        await desk.do(Credit(self._number, 2))


@pytest.mark.parametrize("seed", range(10))
def test_there_is_quiet_when_all_is_done_and_not_before(seed: int) -> None:
    async def main() -> None:
        random, work = Random(seed), [30]
        desk = await Desk.open(MemoryStore(), SystemClock(), lock_ms=5_000, max_delivery=1_000)
        desk.engine.clock(NS).auto = True
        consumers = [Consumer(desk, random, work) for _ in range(3)]
        for consumer in consumers:
            await consumer.start()
        for _ in range(3):
            await desk.send(*"abcde")
            assert await desk.engine.quiet(NS, timeout_ms=60_000, quiet_ms=20) == []
            assert not any(consumer.is_busy for consumer in consumers)
            assert desk.engine.view.used(NS, "q").messages == 0, "nothing is left to be handled"
        for consumer in consumers:
            await consumer.stop()
        await desk.engine.close()

    asyncio.run(main())
