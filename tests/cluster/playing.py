"""Plays scenarios on one cluster, one after the other, and judges each of them."""

import asyncio
from pathlib import Path
from random import Random
from statistics import median

from tests.cluster import azure
from tests.cluster.azure import AzureClient
from tests.cluster.folders import check_agree
from tests.cluster.load import FLAGS, QUEUES, Load, running
from tests.cluster.machines import Machines
from tests.cluster.scenarios import ALL, Round

Gaps = dict[str, list[float]]  # by scenario: the longest time without an acknowledgement, each time
# For the median, in seconds; the stream is led on another machine than the broker.
GOALS = {"kill-broker": 2.0, "kill-machine": 2.0, "kill-stream-leader": 12.0, "step-down": 0.5}
QUEUES_URL = "/api/v1/namespaces/default/queues"


class Cluster:
    """Three machines, and clients whose histories go on over all that is played."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder = folder
        self._random = random
        self.machines = Machines(folder, *FLAGS)
        self._load = Load([machine.address for machine in self.machines], random)
        self._azure: AzureClient | None = None
        self.gaps: Gaps = {}
        self.raised: dict[str, list[str]] = {}  # by scenario: what reached users of the Azure SDK

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        leader = self.machines.leader()
        for name, properties in {**QUEUES, azure.QUEUE: azure.PROPERTIES}.items():
            reply = leader.ask("PUT", f"{QUEUES_URL}/{name}", properties)
            assert reply.status == 201, reply
        self._azure = AzureClient(self.machines)

    async def play(self, name: str) -> float:
        """Plays one scenario under load; returns its longest gap in seconds. Raises Broken."""
        load, client = self._load, self._azure
        assert client is not None
        async with running(load) as check:
            client.go()
            play = Round(self.machines, self._random, load.acknowledged, check)
            await asyncio.to_thread(client.goes_on)
            await asyncio.to_thread(ALL[name], play)
            gap = play.gap_seconds()
            await asyncio.to_thread(self.machines.until_settled)
            await asyncio.to_thread(client.goes_on)
        await asyncio.to_thread(client.pause)
        await asyncio.to_thread(self._judge)
        self.gaps.setdefault(name, []).append(gap)
        self.raised.setdefault(name, []).extend(client.raised)
        client.raised.clear()
        load.acknowledged.clear()
        return gap

    def _judge(self) -> None:
        """Holds what is there against what clients have heard, and the folders with each other."""
        assert self._azure is not None
        leader = self.machines.leader()
        assert leader.broker is not None
        self._load.look(leader.broker)
        self._azure.look(leader.broker)
        check_agree(list(self.machines), leader, self._folder / "copies")

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        azure_history = () if self._azure is None else (self._azure.history,)
        for history in (*self._load.histories, *azure_history):
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
        if self._azure is not None:
            self._azure.close()
        self.machines.close()


def table(gaps: Gaps, raised: dict[str, list[str]]) -> str:
    """The longest times without an acknowledgement, and what the Azure SDK let through."""
    lines = [f"{'scenario':<20} {'rounds':>6} {'median':>8} {'worst':>8} {'goal':>6} {'raised':>6}"]
    for name, seconds in gaps.items():
        goal = f"{GOALS[name]:.1f} s" if name in GOALS else ""
        mark = "  over the goal" if median(seconds) > GOALS.get(name, median(seconds)) else ""
        lines.append(
            f"{name:<20} {len(seconds):>6} {median(seconds):>6.2f} s {max(seconds):>6.2f} s"
            f" {goal:>6} {len(raised.get(name, ())):>6}{mark}"
        )
    return "\n".join(lines)
