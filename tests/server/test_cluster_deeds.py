"""What nodes of a cluster do beside following and leading, three in one process."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.standby import Beat, Hello
from posthouse.core import versions
from posthouse.core.commands import Complete, Receive, Received, SetSchedule
from posthouse.core.errors import Busy, InvalidArgument, NotFound, NotLeader
from posthouse.core.message import NewMessage
from posthouse.core.records import ScheduleSet
from posthouse.store.frames import Frame
from posthouse.store.frames import encode as encode_frame
from posthouse.store.lane import PART, Entry, decode, encode
from posthouse.store.replicated import ReplicatedStore
from tests.server.test_cluster import NS, Bus, Link, Node, a_node, all_alike, run, the_leader, three
from tests.waiting import until_async


async def knows_all(node: Node, count: int = 2) -> None:
    def heard() -> bool:
        return len(node.part.standby.nodes(asyncio.get_running_loop().time())) == count

    await until_async(heard, "it knows the others")


async def leave(node: Node) -> None:
    """What the server does when its node steps down."""
    await node.part.leaves.wait()
    await node.part.begin_to_leave()
    await node.part.hand_over()
    await node.crash()


def test_a_leader_hands_over_to_the_node_that_was_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            await knows_all(old)
            await old.send("kept")
            heir = next(node for node in reversed(nodes) if node is not old)
            with pytest.raises(InvalidArgument, match="node x is not there"):
                await old.part.step_down("x")
            with pytest.raises(NotLeader):
                await heir.part.step_down()
            leaving = asyncio.create_task(leave(old))
            assert await old.part.step_down(heir.name) == heir.name
            with pytest.raises(NotLeader):
                await old.part.step_down()
            await leaving
            assert await the_leader(nodes, but=old) is heir
            assert heir.engine.view.counts(NS, "q").active == 1

    run(main)


def test_a_leader_that_leaves_is_unknown_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            await knows_all(old)
            watcher = next(node for node in nodes if node is not old)
            await until_async(lambda: watcher.part.leader is not None, "it is heard of")
            await old.part.begin_to_leave()
            assert old.part.leader is None
            await until_async(lambda: watcher.part.leader is None, "it is told")
            await old.send("still confirmed")
            await old.part.hand_over()
            new = await the_leader(nodes, but=old)
            assert new.engine.view.counts(NS, "q").active == 1
            assert old.engine.failure is None

    run(main)


def test_alone_a_leader_cannot_step_down(tmp_path: Path) -> None:
    async def main() -> None:
        node = await a_node(Bus(), "a", tmp_path)
        await the_leader([node])
        with pytest.raises(InvalidArgument, match="no other node can take over"):
            await node.part.step_down()
        assert not node.part.leaves.is_set()
        await node.crash()
        await node.engine.close()

    run(main)


def test_a_held_cluster_writes_nothing_and_nobody_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            leader = await the_leader(nodes)
            await leader.send("before")
            follower = next(node for node in nodes if node is not leader)
            with pytest.raises(NotLeader):
                await follower.part.hold()
            with pytest.raises(InvalidArgument):
                await leader.part.hold(0)
            assert await leader.part.hold(60)
            with pytest.raises(Busy, match="held by an operator"):
                await leader.send("refused")
            with pytest.raises(Busy, match="held by an operator"):
                await leader.engine.prove()
            await until_async(lambda: follower.part.status().held_seconds > 0, "others know it")
            written = len(bus.log.messages)
            await leader.crash()
            await until_async(lambda: follower.part.leader is None, "the leader is silent")
            assert len(bus.log.messages) == written
            await follower.part.release()  # the leader is gone, and cannot
            await the_leader(nodes, but=leader)

    run(main)


def test_a_hold_ends_by_release_and_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            leader = await the_leader(nodes)
            await leader.part.hold(60)
            await leader.part.release()
            await leader.send("one")
            await leader.part.hold(1)
            with pytest.raises(Busy):
                await leader.send("refused")
            await until_async(lambda: leader.part.status().held_seconds == 0, "it is over")
            await leader.send("two")
            await all_alike(nodes)

    run(main)


def test_a_node_that_is_gone_can_be_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            leader = await the_leader(nodes)
            await knows_all(leader)
            gone = next(node for node in nodes if node is not leader)
            with pytest.raises(InvalidArgument, match="stop it first"):
                leader.part.forget(gone.name)
            with pytest.raises(NotFound):
                leader.part.forget("x")
            await gone.crash()
            monkeypatch.setattr("posthouse.broker.standby.ALIVE_SECONDS", 0.0)
            leader.part.forget(gone.name)
            assert gone.name not in [each.hello.node for each in leader.part.status().nodes]

    run(main)


def test_an_idle_leader_that_was_deposed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.server.cluster.MARK_SECONDS", 3_600)  # a beat is what tells

    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            old = await the_leader(nodes)
            await old.send("one")
            bus.cut.add(old.name)
            new = await the_leader(nodes, but=old)
            assert not old.engine.failed.is_set()
            bus.cut.clear()
            await until_async(old.engine.failed.is_set, "it is deposed, and nobody asked")
            await new.send("two")

    run(main)


def test_a_leader_whose_disk_is_full_hands_over_to_one_that_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.server.cluster.FULL_LOOK_SECONDS", 0.01)
    monkeypatch.setattr("posthouse.server.cluster.FULL_SECONDS", 0.05)
    full: set[str] = set()
    monkeypatch.setattr(
        ReplicatedStore, "full", property(lambda store: store.segments.folder.name in full)
    )

    async def main() -> None:
        async with three(tmp_path) as (_, nodes):
            old = await the_leader(nodes)
            await knows_all(old)
            full.update("abc")  # the other two have no room, either
            await until_async(
                lambda: all(each.hello.trouble for each in old.part.status().nodes), "all say so"
            )
            assert not old.part.leaves.is_set()
            heir = next(node for node in nodes if node is not old)
            full.remove(heir.name)
            await until_async(old.part.leaves.is_set, "it steps down")
            await leave(old)
            assert await the_leader(nodes, but=old) is heir

    run(main)


# Clocks.


class OtherClock(SystemClock):
    """A machine whose clock is off."""

    def __init__(self, off_ms: int) -> None:
        super().__init__()
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._off_ms

    def machine_ms(self) -> int:
        return super().machine_ms() + self._off_ms

    def seconds_until(self, moment_ms: int) -> float | None:
        return max(0, moment_ms - self.now_ms()) / 1_000


@pytest.mark.parametrize("off_ms", [-40_000, 3_000, 40_000])
def test_a_new_leader_goes_on_with_the_old_ones_time(tmp_path: Path, off_ms: int) -> None:
    async def main() -> None:
        bus = Bus()
        old = await a_node(bus, "a", tmp_path)
        await the_leader([old])
        new = await a_node(bus, "b", tmp_path, OtherClock(off_ms))
        nodes = [old, new]
        try:
            await old.send("one")
            received = await old.engine.ask(BROKER, NS, Receive("q", old.engine.new_receiver(), 1))
            assert isinstance(received, Received)
            await until_async(lambda: new.part.status().nodes[0].hello.offset_ms, "it measures")
            offset_ms = new.part.status().nodes[0].hello.offset_ms
            assert offset_ms is not None
            assert -off_ms - 1_000 < offset_ms <= -off_ms
            before_ms, begun = old.engine.time_ms(), _now()
            await old.crash()
            await the_leader(nodes, but=old)
            ahead_ms = new.engine.time_ms() - before_ms
            passed_ms = (_now() - begun) * 1_000
            if off_ms > 5_000:  # it has jumped, and its locks with it
                assert ahead_ms >= off_ms
            else:
                assert 0 <= ahead_ms < 1.1 * passed_ms + 100
            await new.engine.ask(BROKER, NS, Complete("q", [received.deliveries[0].token]))
        finally:
            for node in nodes:
                await node.crash()
                await node.engine.close()

    run(main)


def test_a_node_whose_clock_is_a_minute_off_is_no_candidate(tmp_path: Path) -> None:
    async def main() -> None:
        bus = Bus()
        old = await a_node(bus, "c", tmp_path)
        await the_leader([old])
        off = await a_node(bus, "a", tmp_path, OtherClock(90_000))
        good = await a_node(bus, "b", tmp_path)
        nodes = [old, off, good]
        try:
            await until_async(lambda: off.part.status().nodes[0].hello.trouble, "it says so")
            assert "its clock is" in off.part.status().nodes[0].hello.trouble
            await knows_all(off)
            await knows_all(good)
            await until_async(lambda: old.part.standby.unfit("a", 0, _now()), "it was heard")
            with pytest.raises(InvalidArgument, match="node a cannot lead: its clock is"):
                await old.part.step_down("a")
            await old.crash()
            assert await the_leader(nodes, but=old) is good
        finally:
            for node in nodes:
                await node.crash()
                await node.engine.close()

    run(main)


def _now() -> float:
    return asyncio.get_running_loop().time()


# Releases.


async def an_old_node(bus: Bus, name: str, records: int = 1) -> asyncio.Task[None]:
    """A node of another release, as far as others hear of it."""
    link = Link(bus, name)

    async def speak() -> None:
        while True:
            hello = Hello(name, f"posthouse://{name}", 0, 0, "0", 0, records=records)
            await link.say("ph.test.hello", msgspec.json.encode(hello))
            await asyncio.sleep(0.05)  # slept: as a node does between two hellos

    return asyncio.create_task(speak())


def test_a_leader_writes_nothing_that_an_older_node_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "VERSION", 2)
    monkeypatch.setitem(versions.KINDS, ScheduleSet, 2)
    monkeypatch.setattr("posthouse.server.cluster.ALIVE_SECONDS", 0.3)
    monkeypatch.setattr("posthouse.broker.standby.ALIVE_SECONDS", 0.3)
    monkeypatch.setattr("posthouse.server.cluster.HELLO_SECONDS", 0.05)
    newer = SetSchedule("q", "nightly", "0 3 * * *", NewMessage(b"\x80", b""))

    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            old = await an_old_node(bus, "old")
            leader = await the_leader(nodes)
            await knows_all(leader, 3)
            with pytest.raises(Busy, match="node old is at version 1; upgrade it"):
                await leader.engine.ask(BROKER, NS, newer)
            await leader.send("goes on")
            assert leader.part.status().records == 1
            old.cancel()
            await until_async(lambda: leader.part.status().records == 2, "all know it")
            await leader.engine.ask(BROKER, NS, newer)
            await all_alike(nodes)
            await until_async(
                lambda: all(node.part.status().records == 2 for node in nodes), "all note it"
            )
            old = await an_old_node(bus, "old")
            await knows_all(leader, 3)
            assert leader.part.status().records == 2  # it never falls
            old.cancel()

    run(main)


def test_a_node_that_cannot_read_a_record_follows_no_longer_and_says_what_it_needs(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with three(tmp_path) as (bus, nodes):
            leader = await the_leader(nodes)
            await leader.send("one")
            await all_alike(nodes)
            before = {node.name: node.engine.last for node in nodes}
            # The leader is of a newer release from here on: it writes a kind that nobody knows.
            await leader.crash()
            epoch, last = leader.engine.epoch, leader.engine.last
            stranger = Link(bus, "stranger")
            beat = Beat(
                leader.name, "posthouse://x", "leader", epoch, last.number, last.end, 0, records=7
            )
            await stranger.say("ph.test.beat", msgspec.json.encode(beat))
            payload = msgspec.msgpack.encode([("", [[999, "new"]])])
            frame = Frame(epoch, last.number + 1, last.end, 1, last.end, 0, payload)
            fences = [decode(data) for data in bus.log.messages]
            claim = next(each.claim for each in reversed(fences) if each is not None)
            entry = Entry(PART, epoch, claim, 99, 0, frame.number, 0, 1, encode_frame(frame))
            bus.log.messages.append(encode(entry))
            others = [node for node in nodes if node is not leader]
            await until_async(
                lambda: all("upgrade it" in node.part._unreadable for node in others), "both stop"
            )
            for node in others:
                trouble = node.part.status().nodes[0].hello.trouble
                assert (
                    f"records of version 7, and this node knows up to {versions.VERSION}" in trouble
                )
                assert node.engine.last == before[node.name]
                assert node.engine.follows
                assert not node.part.leads

    run(main)
