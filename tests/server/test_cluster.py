"""Three nodes of a cluster in one process: real engines and folders, a log and a bus in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import Clock, SystemClock
from posthouse.broker.cluster_clock import ClusterClock
from posthouse.broker.engine import Engine
from posthouse.broker.record_level import RecordLevel
from posthouse.core.commands import Complete, CreateQueue, Receive, Received, Send
from posthouse.core.errors import Busy, NotLeader
from posthouse.core.message import NewMessage
from posthouse.core.namespaces import CreateNamespace
from posthouse.server.cluster import ClusterNode, Joined, Membership
from posthouse.store.errors import Deposed
from posthouse.store.file import FileStore
from posthouse.store.log import MemoryLog, Message, Unanswered
from posthouse.store.replicated import ReplicatedStore
from tests.broker.cluster import whole
from tests.waiting import PATIENCE_SECONDS, turn, until_async

pytestmark = pytest.mark.traced  # it covers what the store and the core do for this

NS = "test"
FAILOVER_SECONDS = 0.2
Heard = Callable[[str, bytes], None]


class Bus:
    """What the nodes say to each other, and their log; a node can be cut off from both."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.heard: dict[str, list[tuple[str, Heard]]] = {}
        self.cut: set[str] = set()
        self.refused: set[str] = set()  # nodes whose messages the log does not take


class Link:
    """One node's connection."""

    trouble = ""

    def __init__(self, bus: Bus, node: str) -> None:
        self._bus, self._node = bus, node
        bus.heard[node] = []

    def _check(self) -> None:
        if self._node in self._bus.cut:
            raise Unanswered

    async def say(self, subject: str, data: bytes) -> None:
        if self._node in self._bus.cut:
            return
        for node, heard in self._bus.heard.items():
            if node not in self._bus.cut:
                for wanted, tell in heard:
                    if wanted == subject:
                        asyncio.get_running_loop().call_soon(tell, subject, data)

    async def hear(self, subject: str, heard: Heard) -> None:
        self._bus.heard[self._node].append((subject, heard))

    def leave(self) -> None:
        """It hears nothing any more."""
        self._bus.heard[self._node].clear()

    @property
    def identity(self) -> str:
        return self._bus.log.identity

    @property
    def end(self) -> int:
        return self._bus.log.end

    @property
    def size_bytes(self) -> int:
        return self._bus.log.size_bytes

    @property
    def bytes_max(self) -> int:
        return self._bus.log.bytes_max

    @property
    def is_full(self) -> bool:
        return self._bus.log.is_full

    async def measure(self) -> None:
        self._check()

    async def publish(self, expected: int, data: bytes) -> int | None:
        await turn()
        self._check()
        if self._node in self._bus.refused:
            raise Unanswered
        return await self._bus.log.publish(expected, data)

    async def read(self, after: int) -> list[Message]:
        self._check()
        return await self._bus.log.read(after)

    async def purge(self, before: int) -> None:
        self._check()
        await self._bus.log.purge(before)

    async def close(self) -> None: ...


class Node:
    def __init__(
        self, name: str, engine: Engine, store: ReplicatedStore, part: ClusterNode, link: Link
    ) -> None:
        self.name, self.engine, self.store, self.part = name, engine, store, part
        self.link = link
        self.running = asyncio.create_task(part.run())

    async def send(self, body: str) -> None:
        await self.engine.ask(BROKER, NS, Send("q", [NewMessage(b"\x80", body.encode())]))

    async def crash(self) -> None:
        """It says and writes nothing more; its folder is left as it is."""
        self.running.cancel()
        await asyncio.wait([self.running])
        self.link.leave()


async def a_node(
    bus: Bus,
    name: str,
    folder: Path,
    machine: Clock | None = None,
    failover_seconds: float = FAILOVER_SECONDS,
) -> Node:
    link = Link(bus, name)
    local = FileStore(folder / name, durability="interval", segment_bytes=1 << 20)
    store = ReplicatedStore(local, link)
    clock = ClusterClock(machine or SystemClock())
    engine = await Engine.follow(store, clock, salt=1, snapshots=store.snapshots)

    async def led() -> None:
        if NS not in engine.view.namespaces():
            await engine.ask(BROKER, "", CreateNamespace(NS))
        if engine.view.find(NS, "q") is None:  # a leader before it may have been deposed between
            await engine.ask(BROKER, NS, CreateQueue("q"))

    membership = Membership("test", name, f"posthouse://{name}", failover_seconds)
    joined = Joined(membership, store, link, RecordLevel(folder / name))  # type: ignore[arg-type]
    return Node(name, engine, store, ClusterNode(joined, engine, clock, led), link)


@asynccontextmanager
async def three(folder: Path, **failover_seconds: float) -> AsyncIterator[tuple[Bus, list[Node]]]:
    """`failover_seconds`: by the name of a node, where its own are others."""
    bus = Bus()
    nodes = [
        await a_node(
            bus, name, folder, failover_seconds=failover_seconds.get(name, FAILOVER_SECONDS)
        )
        for name in "abc"
    ]
    try:
        yield bus, nodes
    finally:
        bus.cut.clear()  # else what was not confirmed is waited for
        for node in nodes:
            node.running.cancel()
        await asyncio.wait([node.running for node in nodes])
        for node in nodes:
            await node.engine.close()


async def the_leader(nodes: list[Node], but: Node | None = None) -> Node:
    def leader() -> Node | None:
        leading = [n for n in nodes if n.part.leads and n is not but and not n.engine.follows]
        is_ready = leading and leading[0].engine.view.find(NS, "q") is not None
        return leading[0] if is_ready else None

    found = await until_async(leader, "a node leads")
    assert found is not None
    return found


async def all_alike(nodes: list[Node]) -> None:
    await until_async(lambda: len({node.store.number for node in nodes}) == 1, "all have all")
    first, *others = [whole(node.engine) for node in nodes]
    assert all(other == first for other in others)


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def test_one_leads_and_the_others_have_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            leader = await the_leader(nodes)
            for number in range(20):
                await leader.send(f"message {number}")
            received = await leader.engine.ask(
                BROKER, NS, Receive("q", leader.engine.new_receiver(), 5)
            )
            assert isinstance(received, Received)
            tokens = [delivery.token for delivery in received.deliveries]
            await leader.engine.ask(BROKER, NS, Complete("q", tokens[:3]))
            await leader.engine.flush()
            await all_alike(nodes)
            follower = next(node for node in nodes if node is not leader)
            await until_async(lambda: follower.part.standby.leader is not None, "it is heard of")
            with pytest.raises(NotLeader, match=f"posthouse://{leader.name}"):
                await follower.send("no")

    run(main)


def test_who_leads_is_told_to_those_who_want_to_know(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            watcher = next(node for node in nodes if node is not old)
            await until_async(lambda: watcher.part.leader is not None, "it is heard of")
            told: list[tuple[str, int] | None] = []
            watcher.part.on_leader(
                lambda beat: told.append(None if beat is None else (beat.node, beat.epoch))
            )
            first = old.part.leader
            assert first is not None
            assert (first.node, first.epoch) == (old.name, old.engine.epoch)
            await old.crash()
            new = await the_leader(nodes, but=old)
            await until_async(lambda: len(told) == 2, "silence and the new leader are told")
            assert told == [None, (new.name, new.engine.epoch)]
            status = watcher.part.status()
            assert status.leader == watcher.part.leader
            assert status.nodes[0].hello.node == watcher.name
            assert {each.hello.node for each in status.nodes} == {"a", "b", "c"}

    run(main)


@pytest.mark.parametrize("is_leader", [False, True])
def test_a_node_ends_though_a_cancellation_was_lost(tmp_path: Path, is_leader: bool) -> None:
    """As nats-py loses one that comes in the same moment as what was waited for."""

    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            leader = await the_leader(nodes)
            node = next(each for each in nodes if (each is leader) is is_leader)
            node.part.end()
            await asyncio.wait([node.running], timeout=PATIENCE_SECONDS)
            assert node.running.done()
            assert not node.running.cancelled()

    run(main)


def test_when_the_leader_is_gone_another_goes_on_with_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            for number in range(10):
                await old.send(f"message {number}")
            await old.crash()
            new = await the_leader(nodes, but=old)
            assert new.engine.epoch > old.engine.epoch
            assert new.engine.view.counts(NS, "q").active == 10
            await new.send("one more")
            with pytest.raises(Deposed):
                await old.send("too late")
            assert old.engine.failed.is_set()
            await all_alike([node for node in nodes if node is not old])

    run(main)


def test_a_candidate_that_cannot_write_keeps_the_others_from_leading_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.broker.standby.CANDIDATE_SECONDS", 0.2)

    async def main() -> None:
        async with three(tmp_path, c=2.0) as (bus, nodes):
            old, last = await the_leader(nodes), nodes[2]
            assert old is not last
            await old.send("kept")
            bus.refused |= {node.name for node in nodes if node is not last}
            await old.crash()
            assert await the_leader(nodes, but=old) is last
            await last.send("one more")
            assert last.engine.view.counts(NS, "q").active == 2

    run(main)


def test_a_leader_that_is_cut_off_stalls_and_is_deposed_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 0.1)

    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            old = await the_leader(nodes)
            await old.send("kept")
            bus.cut.add(old.name)
            waiting = asyncio.create_task(old.send("in doubt"))
            await until_async(lambda: isinstance(old.engine._gate, Busy), "it is stalled")
            monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 60)
            with pytest.raises(Busy, match="goes on by itself"):
                await old.send("refused")
            new = await the_leader(nodes, but=old)
            await new.send("meanwhile")
            bus.cut.clear()
            with pytest.raises(Deposed):
                await waiting
            assert new.engine.view.counts(NS, "q").active == 2

    run(main)


def test_a_takeover_waits_for_a_log_that_stalls_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 0.05)

    async def main() -> None:
        bus = Bus()
        node = await a_node(bus, "a", tmp_path)
        await until_async(lambda: node.part.leads, "it has won the log")
        bus.cut.add("a")  # before it has made what is to exist
        if node.engine.view.find(NS, "q") is None:
            await until_async(lambda: node.store.is_stalled, "it is stalled")
        monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 60)
        bus.cut.clear()
        await the_leader([node])
        await node.send("one")
        await node.crash()
        await node.engine.close()

    run(main)


def test_a_stalled_leader_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 0.1)

    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            leader = await the_leader(nodes)
            bus.cut |= {"a", "b", "c"}
            waiting = asyncio.create_task(leader.send("waits"))
            await until_async(lambda: leader.store.is_stalled, "it is stalled")
            monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 60)
            bus.cut.clear()
            await waiting
            await until_async(lambda: leader.engine._gate is None, "it goes on")
            await leader.send("goes on")
            await all_alike(nodes)

    run(main)


def test_a_leader_that_leaves_hands_over_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            await old.send("kept")
            await until_async(
                lambda: len(old.part.standby.nodes(asyncio.get_running_loop().time())) == 2,
                "it knows the others",
            )
            await old.part.begin_to_leave()
            await old.part.hand_over()
            with pytest.raises(Busy, match="takes over"):
                await old.send("refused")
            new = await the_leader(nodes, but=old)
            assert new.engine.view.counts(NS, "q").active == 1

    run(main)


def test_what_all_nodes_have_is_purged_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.server.cluster.MARK_SECONDS", 0.05)
    monkeypatch.setattr("posthouse.server.log_window.PURGE_SECONDS", 0.05)
    monkeypatch.setattr("posthouse.server.log_window.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("posthouse.server.cluster.HELLO_SECONDS", 0.05)

    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            leader = await the_leader(nodes)
            await leader.send("kept")
            await until_async(lambda: bus.log.first > 5, "the log is purged")
            await leader.crash()
            new = await the_leader(nodes, but=leader)
            await new.send("on a log whose beginning is gone")
            assert new.engine.view.counts(NS, "q").active == 2

    run(main)


def test_what_cannot_be_read_is_not_listened_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            leader = await the_leader(nodes)
            stranger = Link(bus, "stranger")
            for word in ("beat", "hello"):
                await stranger.say(f"ph.test.{word}", b"noise")
                await stranger.say(f"ph.test.{word}", b"{}")
            await leader.send("still here")

    run(main)
