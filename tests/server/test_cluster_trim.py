"""Nodes of a cluster that keep their folders small, each its own, and none more than the leader."""

import asyncio
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.cluster_clock import ClusterClock
from posthouse.broker.engine import Engine
from posthouse.broker.fold import fold
from posthouse.broker.memory import Limits
from posthouse.broker.record_level import RecordLevel
from posthouse.broker.retention import Retention, retain, trim, trim_follower
from posthouse.core.commands import CreateQueue, Receive, Received, Send
from posthouse.core.message import NewMessage
from posthouse.core.namespaces import CreateNamespace
from posthouse.server.cluster import ClusterNode, Joined, Membership
from posthouse.store.errors import NotThere
from posthouse.store.file import FileStore
from posthouse.store.replicated import ReplicatedStore
from tests.server.test_cluster import NS, Bus, Link, Node, all_alike, run, the_leader
from tests.waiting import until_async

pytestmark = pytest.mark.traced  # it covers what the store and the core do for this

NOTHING = Retention(keep_ms=0, keep_bytes=0, fold_bytes=1, reader_bytes=0)
SEGMENT_BYTES = 1 << 15
FIRST = b"first " * 1_000


async def a_node(bus: Bus, name: str, folder: Path) -> Node:
    """One that evicts bodies, so that they are read from its folder."""
    link = Link(bus, name)
    local = FileStore(folder / name, durability="interval", segment_bytes=SEGMENT_BYTES)
    store = ReplicatedStore(local, link)
    clock = ClusterClock(SystemClock())
    engine = await Engine.follow(
        store, clock, salt=1, snapshots=store.snapshots, limits=Limits(bodies_bytes=1)
    )

    async def led() -> None:
        if NS not in engine.view.namespaces():
            await engine.ask(BROKER, "", CreateNamespace(NS))
            await engine.ask(BROKER, NS, CreateQueue("q"))

    membership = Membership("test", name, f"posthouse://{name}", failover_seconds=0.2)
    joined = Joined(membership, store, link, RecordLevel(folder / name))  # type: ignore[arg-type]
    return Node(name, engine, store, ClusterNode(joined, engine, clock, led), link)


async def a_pair(bus: Bus, folder: Path) -> tuple[Node, Node]:
    """A leader and a follower, with one live message at the beginning of many segments."""
    nodes = [await a_node(bus, name, folder) for name in "ab"]
    leader = await the_leader(nodes)
    [follower] = [node for node in nodes if node is not leader]
    await leader.engine.ask(BROKER, NS, CreateQueue("stays"))
    await leader.engine.ask(BROKER, NS, Send("stays", [NewMessage(b"\x80", FIRST)]))
    receiver = leader.engine.new_receiver()
    for _ in range(12):
        await send(leader, bytes(15_000))
        await leader.engine.ask(BROKER, NS, Receive("q", receiver, 1, delete=True))
    return leader, follower


async def send(node: Node, body: bytes) -> None:
    await node.engine.ask(BROKER, NS, Send("q", [NewMessage(b"\x80", body)]))
    await node.engine.flush()


async def close(*nodes: Node) -> None:
    for node in nodes:
        await node.crash()
    for node in nodes:
        await node.engine.close()


async def folded(node: Node) -> list[int]:
    return (await asyncio.to_thread(fold, node.store.segments.folder)).kept


def test_a_follower_trims_its_folder_when_the_leader_has_and_not_further(tmp_path: Path) -> None:
    async def main() -> None:
        leader, follower = await a_pair(Bus(), tmp_path)
        await all_alike([leader, follower])
        kept = await folded(follower)
        assert len(follower.store.extents()) > 5
        # The leader keeps everything: so does who follows, whatever its own retention says.
        assert follower.part.trim_limit <= 1
        assert await trim_follower(follower.engine, kept, NOTHING, follower.part.trim_limit) == 0
        number = follower.store.number
        trimmed = await trim(leader.engine, await folded(leader), NOTHING)
        assert trimmed > 1
        await until_async(lambda: follower.part.trim_limit >= trimmed, "it is told")
        assert follower.store.number > number  # what the leader has written again
        ended = await trim_follower(
            follower.engine, await folded(follower), NOTHING, follower.part.trim_limit
        )
        assert 1 < ended <= follower.part.trim_limit
        assert follower.store.segments.first == ended
        # What is left is whole: it leads, and has the contents.
        await leader.crash()
        new = await the_leader([follower])
        found = await new.engine.ask(BROKER, NS, Receive("stays", new.engine.new_receiver(), 10))
        assert isinstance(found, Received)
        [delivery] = found.deliveries
        assert delivery.message.body == FIRST
        await close(new)
        await leader.engine.close()

    run(main)


def test_a_follower_that_lags_does_not_trim_what_its_state_refers_to(tmp_path: Path) -> None:
    async def main() -> None:
        bus = Bus()
        leader, follower = await a_pair(bus, tmp_path)
        await all_alike([leader, follower])
        follower.part.end()  # it applies nothing more; beats still come
        await asyncio.wait([follower.running])
        trimmed = await trim(leader.engine, await folded(leader), NOTHING)
        assert trimmed > 1
        await until_async(lambda: follower.part._trimmed[0] >= trimmed, "it is told")
        assert follower.part.trim_limit <= 1
        await close(leader)
        await follower.engine.close()

    run(main)


def test_the_retention_of_a_follower_goes_on_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        leader, follower = await a_pair(Bus(), tmp_path)
        segments = follower.store.segments
        retaining = asyncio.create_task(
            retain(follower.engine, segments, NOTHING, None, lambda: follower.part.trim_limit)
        )
        await until_async(lambda: bool(segments.snapshots.positions()), "it has folded")
        assert segments.first == 1
        trimmed = await trim(leader.engine, await folded(leader), NOTHING)
        assert trimmed > 1
        receiver = leader.engine.new_receiver()

        async def has_trimmed() -> bool:
            await send(leader, bytes(15_000))
            await leader.engine.ask(BROKER, NS, Receive("q", receiver, 1, delete=True))
            return segments.first > 1

        await until_async(has_trimmed, "it trims, too")
        assert segments.first <= follower.part.trim_limit
        assert not retaining.done()
        retaining.cancel()
        try:
            await follower.store.get([1])
        except NotThere:
            pass
        else:
            raise AssertionError("it was not trimmed")
        await close(leader, follower)

    run(main)


def test_a_follower_whose_disk_is_full_waits_and_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        bus = Bus()
        nodes = [await a_node(bus, name, tmp_path) for name in "ab"]
        leader = await the_leader(nodes)
        [follower] = [node for node in nodes if node is not leader]
        await send(leader, b"x")
        await all_alike(nodes)
        local = follower.store.segments
        claim = local._claim

        def no_room() -> None:
            local.full = local._wants_space = True

        local._claim = no_room  # type: ignore[method-assign]
        no_room()
        await until_async(lambda: follower.part._hello().full, "it says so")
        number = follower.store.number
        await until_async(lambda: follower.part.is_out_of_room, "it has stopped")
        for _ in range(5):
            await send(leader, b"x")
        assert follower.store.number <= number + 1
        assert not follower.running.done()
        local._claim = claim  # type: ignore[method-assign]
        await all_alike(nodes)
        assert not local.full
        await close(*nodes)

    run(main)
