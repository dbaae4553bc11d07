"""Plays scenarios on one cluster, one after the other, and judges each of them."""

import asyncio
import json
import traceback
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median

from tests.cluster import azure
from tests.cluster.azure import AzureClient
from tests.cluster.folders import check_agree, copy_of
from tests.cluster.load import FLAGS, QUEUES, Load, running
from tests.cluster.machines import Machines
from tests.cluster.scenarios import ALL, Round

Gaps = dict[str, list[float]]  # by scenario: the longest time without an acknowledgement, each time
# For the median, in seconds; the stream is led on another machine than the broker.
GOALS = {"kill-broker": 2.0, "kill-machine": 2.0, "kill-stream-leader": 12.0, "step-down": 0.5}
QUEUES_URL = "/api/v1/namespaces/default/queues"


class Cluster:
    """Three machines, and clients whose histories go on over all that is played."""

    def __init__(self, folder: Path, random: Random, keep: bool = False) -> None:
        """`keep`: the journals are kept, so that what has happened to a message can be told."""
        self._folder = folder
        self._random = random
        self.machines = Machines(folder, *FLAGS, keep=keep)
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
        self.raised.setdefault(name, []).extend(client.judge.raised)
        client.judge.raised.clear()
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
        counts = [history.counts for history in self._load.histories]
        if self._azure is not None:
            counts.append(self._azure.judge.counts)
        for word, count in chain.from_iterable(each.items() for each in counts):
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

    def leave(self, folder: Path) -> None:
        """Copies what tells how a failure came about: folders, logs, what the Azure SDK said."""
        folder.mkdir(parents=True)
        for machine in self.machines:
            machine.heal()
            copy_of(machine, folder)
            (folder / f"{machine.name}-nats.log").write_bytes(
                (machine.folder / "nats.log").read_bytes()
            )
            if machine.broker is not None:
                lines = (f"{json.dumps(event)}\n" for event in machine.broker.log)
                (folder / f"{machine.name}.log").write_text("".join(lines))
        if self._azure is not None:
            (folder / "azure.log").write_text("".join(self._azure.lines))
        (folder / "failure.txt").write_text(traceback.format_exc())

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
