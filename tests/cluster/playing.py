"""Plays scenarios on one cluster, one after the other, and judges each of them."""

import asyncio
from pathlib import Path
from random import Random
from statistics import median

from tests.cluster.folders import check_agree
from tests.cluster.load import FLAGS, QUEUES, Load, running
from tests.cluster.machines import Machines
from tests.cluster.scenarios import SCENARIOS, Round

Gaps = dict[str, list[float]]  # by scenario: the longest time without an acknowledgement, each time
QUEUES_URL = "/api/v1/namespaces/default/queues"


class Cluster:
    """Three machines, and clients whose histories go on over all that is played."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder = folder
        self._random = random
        self.machines = Machines(folder, *FLAGS)
        self._load: Load | None = None
        self.gaps: Gaps = {}

    async def open(self) -> None:
        leader = await asyncio.to_thread(self.machines.leader)
        for name, properties in QUEUES.items():
            reply = await asyncio.to_thread(leader.ask, "PUT", f"{QUEUES_URL}/{name}", properties)
            assert reply.status == 201, reply
        self._load = Load([machine.address for machine in self.machines], self._random)

    async def play(self, name: str) -> float:
        """Plays one scenario under load; returns its longest gap in seconds. Raises Broken."""
        load = self._load
        assert load is not None
        async with running(load) as check:
            play = Round(self.machines, self._random, load.acknowledged, check)
            await asyncio.to_thread(SCENARIOS[name], play)
            gap = play.gap_seconds()
            await asyncio.to_thread(self.machines.until_settled)
        leader = await asyncio.to_thread(self.machines.leader)
        assert leader.broker is not None
        await asyncio.to_thread(load.look, leader.broker)
        await check_agree(list(self.machines), leader, self._folder / "copies")
        self.gaps.setdefault(name, []).append(gap)
        load.acknowledged.clear()
        return gap

    @property
    def counts(self) -> dict[str, int]:
        assert self._load is not None
        found: dict[str, int] = {}
        for history in self._load.histories:
            for word, count in history.counts.items():
                found[word] = found.get(word, 0) + count
        return found

    def tell(self) -> str:
        """What was logged, for who looks for the cause of a failure."""
        return "\n".join(
            f"{machine.name} {event['event']}: {event.get('message', '')}"
            for machine in self.machines
            if machine.broker is not None
            for event in machine.broker.log[-30:]
        )

    def close(self) -> None:
        self.machines.close()


def table(gaps: Gaps) -> str:
    lines = [f"{'scenario':<20} {'rounds':>6} {'median':>8} {'worst':>8}"]
    lines += [
        f"{name:<20} {len(each):>6} {median(each):>6.2f} s {max(each):>6.2f} s"
        for name, each in gaps.items()
    ]
    return "\n".join(lines)
