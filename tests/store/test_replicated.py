"""The journal on a replicated log: one leads, others follow, and a folder has what is confirmed."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic

import pytest

from posthouse.store.errors import Behind, Deposed, Lost, Spoilt
from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.lane import BEGINNING
from posthouse.store.log import MemoryLog, Message, Unanswered
from posthouse.store.replicated import ReplicatedStore
from tests.store.test_conformance import read_all
from tests.waiting import turn, until_async


class BadLog(MemoryLog):
    """Does what it is asked, and does not always say so; or does not do it, either."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.mute = 0  # so many messages are taken without an answer
        self.stale = 0  # so many reads find nothing

    async def publish(self, expected: int, data: bytes) -> int | None:
        await turn()
        if self.is_down:
            raise Unanswered
        sequence = await super().publish(expected, data)
        if self.mute:
            self.mute -= 1
            raise Unanswered
        return sequence

    async def read(self, after: int) -> list[Message]:
        if self.is_down:
            raise Unanswered
        if self.stale:
            self.stale -= 1
            return []
        return (await super().read(after))[:3]


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.store.lane.SILENCE_SECONDS", 0.02)
    monkeypatch.setattr("posthouse.store.replicated.SILENCE_SECONDS", 0.02)
    monkeypatch.setattr("posthouse.store.lane.LOOK_SECONDS", 0.002)
    monkeypatch.setattr("posthouse.store.replicated.LOOK_SECONDS", 0.002)


def a_frame(number: int, epoch: int = 1, size: int = 20) -> Frame:
    return Frame(epoch, number, number, 1, number, 0, b"%d" % number * size)


def a_store(folder: Path, log: MemoryLog) -> ReplicatedStore:
    return ReplicatedStore(FileStore(folder, durability="interval", segment_bytes=1 << 16), log)


async def a_leader(
    folder: Path, log: MemoryLog, epoch: int = 1, applied: list[Frame] | None = None
) -> ReplicatedStore:
    store = a_store(folder, log)
    await store.lead(epoch, ([] if applied is None else applied).append)
    return store


async def write(store: ReplicatedStore, *frames: Frame) -> None:
    for frame in frames:
        store.append(frame)
    await store.sync()


async def follow(store: ReplicatedStore) -> list[Frame]:
    frames: list[Frame] = []
    while found := await store.read_on():
        frames += found
    return frames


def ignore(_: Frame) -> None:
    """Nobody is to be told of it."""


def numbers(frames: list[Frame]) -> list[int]:
    return [frame.number for frame in frames]


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def test_what_is_synced_is_in_the_log_and_in_the_folder(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", MemoryLog())
        assert (store.durable, store.last, store.number) == (1, None, 0)
        await write(store, a_frame(1), a_frame(2, size=200_000))
        await store.sync()
        assert numbers(await read_all(store)) == [1, 2]
        assert (store.durable, store.readable, store.number, store.epoch) == (3, 3, 2, 1)
        assert numbers(await store.get([2])) == [2]
        assert store.is_fresh
        assert not store.is_stalled
        assert not store.full
        assert not store.pressed
        assert store.spare_bytes > 0
        assert len(store.extents()) == 1 or len(store.extents()) == 2
        assert store.segments.folder == tmp_path / "a"
        assert store.snapshots.positions() == []
        await store.trim(1)
        await store.close()
        await store.close()

    run(main)


def test_a_follower_has_the_same_frames_and_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()
        leader = await a_leader(tmp_path / "a", log)
        follower = a_store(tmp_path / "b", log)
        await write(leader, *map(a_frame, range(1, 8)))
        assert numbers(await follow(follower)) == [1, 2, 3, 4, 5, 6, 7]
        await write(leader, a_frame(8))
        applied: list[Frame] = []
        await follower.lead(2, applied.append)
        assert numbers(applied) == [8]
        assert await read_all(follower) == await read_all(leader)
        leader.append(a_frame(9))
        with pytest.raises(Deposed):
            await leader.sync()
        with pytest.raises(Deposed):
            await leader.sync()
        assert numbers(await read_all(leader)) == [*range(1, 9)]
        await write(follower, a_frame(9, epoch=2))
        assert follower.void == 0
        await leader.close()
        await follower.close()

    run(main)


def test_who_is_behind_another_who_has_won_does_not_lead(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log, epoch=3)
        late = a_store(tmp_path / "b", log)
        with pytest.raises(Deposed) as deposed:
            await late.lead(3, ignore)
        assert deposed.value.epoch == 3
        await leader.close()
        await late.close()

    run(main)


def test_an_answer_that_was_read_late_does_not_make_a_store_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was asleep finds old answers when it wakes, and another leads since long."""
    monkeypatch.setattr("posthouse.store.replicated.FRESH_SECONDS", 0.1)
    monkeypatch.setattr("posthouse.store.lane.SILENCE_SECONDS", 60)  # no look finds it before

    class LateLog(MemoryLog):
        is_late = False

        async def publish(self, expected: int, data: bytes) -> int | None:
            sequence = await super().publish(expected, data)
            if self.is_late:
                asked = monotonic()
                await until_async(lambda: monotonic() > asked + 0.1, "time has passed")
            return sequence

    async def main() -> None:
        log = LateLog()
        store = await a_leader(tmp_path / "a", log)
        log.is_late = True
        await write(store, a_frame(1))
        assert not store.is_fresh
        await store.close()

    run(main)


def test_syncs_wait_while_the_log_is_away_and_go_on_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 0.05)
    monkeypatch.setattr("posthouse.store.replicated.FRESH_SECONDS", 0.05)

    async def main() -> None:
        log = BadLog()
        store = await a_leader(tmp_path / "a", log)
        log.is_down = True
        store.append(a_frame(1))
        syncing = asyncio.create_task(store.sync())
        await until_async(lambda: store.is_stalled and not store.is_fresh, "it is stalled")
        assert not syncing.done()
        log.is_down = False
        await syncing
        monkeypatch.setattr("posthouse.store.replicated.FRESH_SECONDS", 60)
        assert store.is_fresh
        assert not store.is_stalled
        assert numbers(await read_all(store)) == [1]
        await store.close()

    run(main)


def test_what_was_confirmed_in_time_is_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.STALLED_SECONDS", 0.3)

    async def main() -> None:
        store = await a_leader(tmp_path / "a", MemoryLog())
        await write(store, a_frame(1))
        assert store.waits_seconds == 0
        await asyncio.sleep(0.6)  # slept: the timer that the sync has set is due
        assert not store.is_stalled
        await store.close()

    run(main)


def test_answers_that_are_lost_lose_and_double_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()
        store = await a_leader(tmp_path / "a", log)
        for number in range(1, 20):
            log.mute = number % 3
            store.append(a_frame(number))
            store.mark()
            await store.sync()
        other = a_store(tmp_path / "b", log)
        assert numbers(await follow(other)) == [*range(1, 20)]
        await store.close()
        await other.close()

    run(main)


def test_a_fence_whose_answer_is_lost_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()
        log.mute = 1
        store = await a_leader(tmp_path / "a", log)
        await write(store, a_frame(1))
        await store.close()

    run(main)


def test_a_candidate_that_reads_what_was_a_while_ago_tries_until_it_has_all(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        log = BadLog()
        old = await a_leader(tmp_path / "a", log)
        await write(old, a_frame(1))
        log.stale = 3
        applied: list[Frame] = []
        new = await a_leader(tmp_path / "b", log, 2, applied)
        assert numbers(applied) == [1]
        await old.close()
        await new.close()

    run(main)


def test_several_syncs_at_a_time_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", BadLog())
        syncs = []
        for number in range(1, 10):
            store.append(a_frame(number))
            syncs.append(asyncio.create_task(store.sync()))
            await turn()
        await asyncio.gather(*syncs)
        assert numbers(await read_all(store)) == [*range(1, 10)]
        await store.close()

    run(main)


def test_a_clean_stop_writes_no_closing_frame(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        store = await a_leader(tmp_path / "a", log)
        closing = Frame(1, 2, 2, 0, 2, 0, b"", CLOSING)
        await write(store, a_frame(1), closing)
        await write(store, closing)
        assert not store.sync_at_once()
        await store.close()
        again = a_store(tmp_path / "a", log)
        assert again.last is not None
        assert again.last.number == 1
        assert await follow(again) == []
        await again.lead(2, ignore)
        await write(again, a_frame(2, epoch=2))
        await again.close()

    run(main)


def test_a_folder_that_ends_before_the_log_begins_is_behind(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        store = await a_leader(tmp_path / "a", log)
        await write(store, a_frame(1), a_frame(2))
        store.mark()
        await write(store, a_frame(3))
        await log.purge(4)
        newcomer = a_store(tmp_path / "b", log)
        with pytest.raises(Behind, match="ends at frame 0, and the log begins at frame 3"):
            await newcomer.read_on()
        known = a_store(tmp_path / "c", log)
        known._local.append(a_frame(1))
        known._local.append(a_frame(2))
        await known._local.sync()
        known._last = a_frame(2)
        assert numbers(await follow(known)) == [3]
        for each in (store, newcomer, known):
            await each.close()

    run(main)


def test_a_log_is_purged_up_to_a_mark_that_disks_have(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        store = await a_leader(tmp_path / "a", log)
        await write(store, a_frame(1))
        store.mark()
        await write(store, a_frame(2))
        await store.purge(0)
        assert log.first == 1
        await until_async(lambda: store.synced == 2, "the disk has both")
        await store.purge(store.synced)
        assert log.first == 3  # the mark
        await store.purge(store.synced)  # there is no newer one
        other = a_store(tmp_path / "b", log)
        with pytest.raises(Behind):
            await other.read_on()
        await store.close()
        await other.close()

    run(main)


def test_a_log_that_is_purged_while_it_is_read_leaves_no_hole(tmp_path: Path) -> None:
    class Purged(MemoryLog):
        async def read(self, after: int) -> list[Message]:
            messages = await super().read(after)
            return [message for message in messages if message[0] not in (3, 4)]

    async def main() -> None:
        log = Purged()
        store = await a_leader(tmp_path / "a", log)
        await write(store, a_frame(1), a_frame(2), a_frame(3))
        store.mark()
        await write(store, a_frame(4))
        follower = a_store(tmp_path / "b", log)
        with pytest.raises(Behind, match="ends at frame 1, and the log begins at frame 4"):
            await follower.read_on()
        candidate = a_store(tmp_path / "c", log)
        with pytest.raises(Behind, match="ends at frame 1, and the log begins at frame 4"):
            await candidate.lead(2, ignore)
        for each in (store, follower, candidate):
            await each.close()

    run(main)


def test_a_restarted_node_reads_on_behind_all_that_its_folder_has(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()  # three messages a read
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, *map(a_frame, range(1, 20)))
        follower = a_store(tmp_path / "b", log)
        await follow(follower)
        await follower.close()
        await write(leader, a_frame(20))
        again = a_store(tmp_path / "b", log)
        assert numbers(await again.read_on()) == [20]
        await leader.close()
        await again.close()

    run(main)


def test_who_writes_nothing_finds_out_that_it_is_deposed(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()
        old = await a_leader(tmp_path / "a", log)
        new = await a_leader(tmp_path / "b", log, 2)
        assert [store.failure for store in (old, new)] == [None, None]
        log.mute = log.stale = 2
        old.mark()
        await until_async(lambda: isinstance(old.failure, Deposed), "it has noticed")
        assert new.failure is None
        await old.close()
        await new.close()

    run(main)


def test_an_answer_that_was_long_under_way_does_not_say_who_leads_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.lane.SILENCE_SECONDS", 60)

    async def main() -> None:
        answers = asyncio.Event()

        class Slow(MemoryLog):
            async def publish(self, expected: int, data: bytes) -> int | None:
                sequence = await super().publish(expected, data)
                await answers.wait()
                return sequence

        answers.set()
        store = await a_leader(tmp_path / "a", Slow())
        answers.clear()
        store.append(a_frame(1))
        syncing = asyncio.create_task(store.sync())
        await until_async(lambda: not store.is_fresh, "a while has passed")
        answers.set()
        await syncing
        freshness = [store.is_fresh]
        await write(store, a_frame(2))
        monkeypatch.setattr("posthouse.store.replicated.FRESH_SECONDS", 60)
        freshness.append(store.is_fresh)
        assert freshness == [False, True]
        await store.close()

    run(main)


def test_a_log_that_has_lost_what_was_confirmed_is_not_led(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", MemoryLog())
        await write(store, a_frame(1), a_frame(2))
        await store.close()
        again = a_store(tmp_path / "a", MemoryLog())
        with pytest.raises(Spoilt, match="ends at frame 0, and frame 2 was confirmed and is in"):
            await again.lead(2, ignore)
        await again.close()

    run(main)


def test_a_log_with_something_unreadable_stops_the_leader(tmp_path: Path) -> None:
    class Broken(BadLog):
        async def read(self, after: int) -> list[Message]:
            return [(after + 7, b"noise")]

    async def main() -> None:
        log = Broken()
        store = a_store(tmp_path / "a", log)
        await store.lead(1, ignore)
        log.mute = 1
        store.append(a_frame(1))
        with pytest.raises(Spoilt):
            await store.sync()
        log.is_down = True
        await store.close()

    run(main)


def test_a_folder_that_cannot_be_written_loses_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", MemoryLog())
        store._local._lose(OSError(5, "injected"))
        store.append(a_frame(1))
        with pytest.raises(Lost):
            await store.sync()
        await store.close()

    run(main)


def test_a_follower_whose_folder_cannot_be_written_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        follower = a_store(tmp_path / "b", log)
        await write(leader, a_frame(1))
        follower._local._lose(OSError(5, "injected"))
        with pytest.raises(Lost):
            await follower.read_on()
        await leader.close()
        await follower.close()

    run(main)


def test_a_sync_without_frames_waits_for_those_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", BadLog())
        store.append(a_frame(1))
        first = asyncio.create_task(store.sync())
        await turn()
        await store.sync()
        assert store.durable == 2
        assert numbers(await read_all(store)) == [1]
        await first
        await store.close()

    run(main)


def test_what_is_under_way_ends_with_the_store(tmp_path: Path) -> None:
    class Slow(MemoryLog):
        async def publish(self, expected: int, data: bytes) -> int | None:
            if len(self.messages) > 0:
                await asyncio.sleep(60)  # slept: longer than anybody waits
            return await super().publish(expected, data)

    async def main() -> None:
        store = await a_leader(tmp_path / "a", Slow())
        store.mark()
        await turn()
        await store.close()

    run(main)


class CountingLog(MemoryLog):
    """Remembers from where it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_after: list[int] = []

    async def read(self, after: int) -> list[Message]:
        self.read_after.append(after)
        return await super().read(after)


def test_a_start_goes_on_where_reading_stood(tmp_path: Path) -> None:
    async def main() -> None:
        log = CountingLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, *map(a_frame, range(1, 6)), a_frame(6, size=400_000))
        follower = a_store(tmp_path / "b", log)
        await follow(follower)
        await follower.close()
        await write(leader, a_frame(7, size=300_000))
        log.read_after.clear()
        again = a_store(tmp_path / "b", log)
        assert numbers(await follow(again)) == [7]
        assert log.read_after[0] == 8  # the fence, five frames of one part, one of two
        assert again.epoch == 1
        await again.lead(2, ignore)
        await write(again, a_frame(8, epoch=2))
        assert again.void == 0
        # So does one that has led.
        await again.close()
        log.read_after.clear()
        once_more = a_store(tmp_path / "b", log)
        assert await follow(once_more) == []
        assert log.read_after == [log.end]
        assert numbers(await read_all(once_more)) == [*range(1, 9)]
        await once_more.close()
        await leader.close()

    run(main)


def test_a_note_is_written_while_it_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.store.replicated.NOTE_SECONDS", 0)

    async def main() -> None:
        log = CountingLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, a_frame(1), a_frame(2))
        follower = a_store(tmp_path / "b", log)
        await follow(follower)
        await until_async((tmp_path / "b" / "lanes").exists, "there is a note")
        # As after kill -9: what it has is copied while it runs.
        await until_async(lambda: follower.synced == 2, "the disk has all")
        shutil.copytree(tmp_path / "b", tmp_path / "c")
        log.read_after.clear()
        copied = a_store(tmp_path / "c", log)
        assert await follow(copied) == []
        assert log.read_after == [3]
        for each in (leader, follower, copied):
            await each.close()

    run(main)


def test_a_note_that_is_ahead_of_the_folder_skips_nothing(tmp_path: Path) -> None:
    """A power cut may take the folder's end and leave the note."""

    async def main() -> None:
        log = CountingLog()
        leader = await a_leader(tmp_path / "a", log)
        follower = a_store(tmp_path / "b", log)
        await write(leader, a_frame(1), a_frame(2))
        await follow(follower)
        await until_async(lambda: follower.synced == 2, "the disk has both")
        shutil.copytree(tmp_path / "b", tmp_path / "c")  # all that the disk has
        await write(leader, a_frame(3), a_frame(4))
        await follow(follower)
        await follower.close()
        shutil.copy(tmp_path / "b" / "lanes", tmp_path / "c" / "lanes")
        await write(leader, a_frame(5))
        log.read_after.clear()
        after_the_cut = a_store(tmp_path / "c", log)
        assert numbers(await follow(after_the_cut)) == [3, 4, 5]
        assert log.read_after[0] == 0
        assert numbers(await read_all(after_the_cut)) == [1, 2, 3, 4, 5]
        await after_the_cut.close()
        await leader.close()

    run(main)


@pytest.mark.parametrize("content", [
    b"", b"noise", b"00000000 []\n", b"zz [1]\n", bytes(10_000), b"\xff" * 50,
])  # fmt: skip
def test_a_note_that_cannot_be_read_skips_nothing(tmp_path: Path, content: bytes) -> None:
    async def main() -> None:
        log = CountingLog()
        leader = await a_leader(tmp_path / "a", log)
        follower = a_store(tmp_path / "b", log)
        await write(leader, a_frame(1), a_frame(2))
        await follow(follower)
        await follower.close()
        (tmp_path / "b" / "lanes").write_bytes(content)
        await write(leader, a_frame(3))
        again = a_store(tmp_path / "b", log)
        assert again._reading.place == BEGINNING
        assert numbers(await follow(again)) == [3]
        await again.close()
        await leader.close()

    run(main)


def test_a_note_of_another_log_does_not_count(tmp_path: Path) -> None:
    async def main() -> None:
        log, other = MemoryLog(), MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, *map(a_frame, range(1, 9)))
        await leader.close()
        folder = a_store(tmp_path / "a", other)
        assert folder._reading.place == BEGINNING
        await folder.close()
        shorter = MemoryLog()  # the same one, which has lost its end
        shorter.identity, shorter.messages = log.identity, log.messages[:3]
        folder = a_store(tmp_path / "a", shorter)
        assert folder._reading.place == BEGINNING
        with pytest.raises(Spoilt, match="ends at frame 2, and frame 8"):
            await folder.lead(2, ignore)
        await folder.close()

    run(main)


def test_a_log_is_founded_behind_the_frames_of_a_folder(tmp_path: Path) -> None:
    async def main() -> None:
        old = FileStore(tmp_path / "a", segment_bytes=1 << 16)
        for number in range(1, 6):
            old.append(a_frame(number, epoch=3))
        await old.sync()
        await old.close()
        log = MemoryLog()
        founder = a_store(tmp_path / "a", log)
        assert await founder.found(claim=7)
        assert await founder.found(claim=7)  # once more, where the answer was lost
        assert not await founder.found(claim=8)
        assert await follow(founder) == []
        assert founder.epoch == 4
        await founder.lead(5, ignore)
        await write(founder, a_frame(6, epoch=5))
        newcomer = a_store(tmp_path / "b", log)
        with pytest.raises(Behind, match="ends at frame 0, and the log begins at frame 6"):
            await newcomer.check_reach()
        with pytest.raises(Behind, match="ends at frame 0, and the log begins at frame 6"):
            await newcomer.read_on()
        shutil.copytree(tmp_path / "a", tmp_path / "c")
        (tmp_path / "c" / "lanes").unlink(missing_ok=True)
        follower = a_store(tmp_path / "c", log)
        await follower.check_reach()
        await follow(follower)
        assert numbers(await read_all(follower)) == [1, 2, 3, 4, 5, 6]
        for each in (founder, newcomer, follower):
            await each.close()

    run(main)


def test_a_folder_that_has_gone_another_way_than_the_log_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, a_frame(1), a_frame(2))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        alone = FileStore(tmp_path / "b", segment_bytes=1 << 16)
        alone.append(a_frame(3, epoch=2))
        await alone.sync()
        await alone.close()
        await write(leader, a_frame(3), a_frame(4))
        back = a_store(tmp_path / "b", log)
        with pytest.raises(Spoilt, match="served alone"):
            await follow(back)
        await back.close()
        await leader.close()

    run(main)


def test_a_folder_of_another_journal_is_noticed_at_once_and_not_noted(tmp_path: Path) -> None:
    """A folder that is noted may be replaced when the log has gone on without it."""

    async def main() -> None:
        log, other = MemoryLog(), MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, *map(a_frame, range(1, 4)))
        foreign = await a_leader(tmp_path / "b", other, epoch=2)
        await write(foreign, *(a_frame(number, epoch=2) for number in range(1, 9)))
        await foreign.close()
        (tmp_path / "b" / "lanes").unlink()
        strange = a_store(tmp_path / "b", log)
        with pytest.raises(Spoilt, match="of another cluster"):
            await strange.read_on()
        await strange.close()
        assert not (tmp_path / "b" / "lanes").exists()
        # So is one that ends where the log begins.
        founded = MemoryLog()
        assert await leader.found(1) is False
        begun = a_store(tmp_path / "b", founded)
        assert await begun.found(1)
        await begun.lead(9, ignore)
        await write(begun, Frame(9, 9, 9, 1, 9, 0, b"x"))
        await begun.close()
        third = FileStore(tmp_path / "c", segment_bytes=1 << 16)
        for number in range(1, 9):
            third.append(Frame(1, number, 2 * number - 1, 2, number, 0, b"x"))
        await third.sync()
        await third.close()
        strange = a_store(tmp_path / "c", founded)
        with pytest.raises(Spoilt, match="of another cluster"):
            await strange.read_on()
        await strange.close()
        assert not (tmp_path / "c" / "lanes").exists()
        await leader.close()

    run(main)


def test_a_note_that_was_lost_is_written_again_when_the_folder_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, *map(a_frame, range(1, 4)))
        follower = a_store(tmp_path / "b", log)
        await follow(follower)
        await follower.close()
        note = tmp_path / "b" / "lanes"
        note.unlink()
        again = a_store(tmp_path / "b", log)
        await again.close()
        assert not note.exists()
        again = a_store(tmp_path / "b", log)
        assert await follow(again) == []
        await again.close()
        assert note.exists()
        await leader.close()

    run(main)


def test_the_marks_and_fences_of_others_are_purged_up_to(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        old = await a_leader(tmp_path / "a", log)
        await write(old, a_frame(1))
        old.mark()
        await write(old, a_frame(2))
        new = await a_leader(tmp_path / "b", log, 2)
        await write(new, a_frame(3, epoch=2))
        await new.purge(1)
        assert log.first == 3  # the old one's mark
        await new.purge(2)
        assert log.first == 5  # its own fence
        await new.purge(3)
        assert log.first == 5
        await old.close()
        await new.close()

    run(main)


def test_a_purge_without_an_answer_is_tried_again(tmp_path: Path) -> None:
    class Deaf(MemoryLog):
        is_deaf = True

        async def purge(self, before: int) -> None:
            if self.is_deaf:
                raise Unanswered
            await super().purge(before)

    async def main() -> None:
        log = Deaf()
        store = await a_leader(tmp_path / "a", log)
        await write(store, a_frame(1))
        store.mark()
        await write(store, a_frame(2))
        with pytest.raises(Unanswered):
            await store.purge(2)
        log.is_deaf = False
        await store.purge(2)
        assert log.first == 3
        await store.close()

    run(main)


def test_how_long_something_waits_is_told_and_a_wait_can_be_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        log = BadLog()
        store = await a_leader(tmp_path / "a", log)
        assert store.waits_seconds == 0
        log.is_down = True
        store.append(a_frame(1))
        syncing = asyncio.create_task(store.sync())
        await until_async(lambda: store.waits_seconds > 0.03, "it waits")
        store.give_up()
        with pytest.raises(Lost, match="has not confirmed"):
            await syncing
        await until_async(lambda: store._timer is None, "nothing is looked after any more")
        await store.close()

    run(main)


def test_a_sync_asks_a_full_disk_for_room(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_leader(tmp_path / "a", MemoryLog())
        store.segments.full = True
        await store.sync()
        await store.close()

    run(main)


def test_a_log_that_holds_what_comes_next_is_in_reach(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        follower = a_store(tmp_path / "b", log)
        await follower.check_reach()  # it is empty
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, a_frame(1))
        assert numbers(await follow(follower)) == [1]
        await write(leader, a_frame(2))
        await follower.check_reach()
        await leader.close()
        await follower.close()

    run(main)


def test_a_log_that_begins_with_a_mark_behind_the_folder_is_out_of_reach(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, a_frame(1), a_frame(2))
        leader.mark()
        await until_async(lambda: len(log.messages) == 4, "the mark is there")
        await log.purge(4)
        follower = a_store(tmp_path / "b", log)
        with pytest.raises(Behind):
            await follower.read_on()
        await leader.close()
        await follower.close()

    run(main)


def test_a_folder_whose_last_frame_is_another_one_is_not_followed_with(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryLog()
        leader = await a_leader(tmp_path / "a", log)
        await write(leader, a_frame(1))
        other = FileStore(tmp_path / "b", segment_bytes=1 << 16)
        other.append(Frame(1, 1, 1, 1, 1, 99, b"of another cluster"))
        await other.sync()
        await other.close()
        follower = a_store(tmp_path / "b", log)
        with pytest.raises(Spoilt, match="of another cluster"):
            await follower.read_on()
        await leader.close()
        await follower.close()

    run(main)
