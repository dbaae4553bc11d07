"""Trimming: what is past retention goes, and what is still needed of it is written again."""

import asyncio
import errno
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.clock import VirtualClock
from posthouse.broker.fold import LOCK, fold
from posthouse.broker.retention import Retention, fitted, retain, trim
from posthouse.core.commands import (
    Answer,
    Command,
    Complete,
    DeadLetter,
    DeleteQueue,
    Delivery,
    Move,
)
from posthouse.core.dump import dump
from posthouse.core.errors import Busy
from posthouse.core.model import dead_letter_queue
from posthouse.core.namespaces import SetReader
from posthouse.store import Room
from posthouse.store.disk import Disk
from posthouse.store.errors import NotThere
from posthouse.store.file import FileStore
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.inside import state_of
from tests.waiting import turn, until_async

SEGMENT_BYTES = 64 << 10
NOTHING = Retention(keep_ms=0, keep_bytes=0)
AT_ONCE = Retention(keep_ms=0, keep_bytes=0, fold_bytes=1)
HOUR_MS = 3_600_000


def a_store(folder: Path) -> FileStore:
    return FileStore(folder, segment_bytes=SEGMENT_BYTES)


async def opened(folder: Path, now_ms: int = 1_000) -> tuple[FileStore, Desk]:
    store = a_store(folder)
    return store, await Desk.open(store, VirtualClock(now_ms), snapshots=store.snapshots)


async def fill(desk: Desk, count: int, keep: int) -> list[Delivery]:
    """Sends and completes all but every `keep`th, which stays locked."""
    kept: list[Delivery] = []
    for at in range(0, count, 20):
        await desk.send(*(f"{n} " + "x" * 400 for n in range(at, at + 20)))
        got = await desk.receive(20)
        kept += [each for at, each in enumerate(got) if at % keep == 0]
        done = [each.token for at, each in enumerate(got) if at % keep]
        if done:
            await desk.do(Complete("q", done))
    return kept


def a_folder(folder: Path, count: int = 1_200, keep: int = 10) -> list[Delivery]:
    """Closed and folded."""

    async def main() -> list[Delivery]:
        _, desk = await opened(folder)
        kept = await fill(desk, count, keep)
        await desk.engine.close()
        return kept

    kept = asyncio.run(main())
    fold(folder)
    return kept


def test_what_is_past_retention_goes_and_messages_stay(tmp_path: Path) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        before = len(store.extents())
        end = await trim(desk.engine, store.snapshots.positions(), NOTHING)
        assert end > 1
        assert len(store.extents()) < before / 2
        with pytest.raises(NotThere):
            await store.get([1])
        queue = state_of(desk.engine, NS).queues["q"]
        assert all(message.position >= end for message in queue.messages.walk(0))
        await desk.engine.advance(60_000)  # the locks end
        assert [b.split()[0] for b in bodies(await desk.receive(500))] == [
            str(n) for n in range(0, 1_200, 10)
        ]
        await desk.engine.close()

    asyncio.run(main())

    async def again() -> None:
        _, desk = await opened(tmp_path, 100_000)
        await desk.engine.advance(60_000)
        assert len(bodies(await desk.receive(500))) == 120
        await desk.engine.close()

    asyncio.run(again())


def test_nothing_goes_that_no_snapshot_holds(tmp_path: Path) -> None:
    async def main() -> None:
        _, desk = await opened(tmp_path)
        await fill(desk, 1_200, 10)
        assert await trim(desk.engine, [], NOTHING) == 0
        await desk.engine.close()

    asyncio.run(main())


def test_the_older_of_two_snapshots_can_still_be_started_from(tmp_path: Path) -> None:
    a_folder(tmp_path)
    kept = a_folder(tmp_path)
    assert kept

    async def main() -> dict[str, object]:
        store, desk = await opened(tmp_path)
        assert len(store.snapshots.positions()) == 2
        await trim(desk.engine, store.snapshots.positions(), NOTHING)
        state = dump(state_of(desk.engine, NS), bodies=False)
        await store.close()
        return state

    async def again() -> dict[str, object]:
        store = a_store(tmp_path)
        store.snapshots.paths()[0].unlink()
        await store.close()
        store, desk = await opened(tmp_path)
        state = dump(state_of(desk.engine, NS), bodies=False)
        await store.close()
        return state

    first, second = asyncio.run(main()), asyncio.run(again())
    for each in (first, second):
        for word in ("era", "started_ms"):
            del each[word]
    assert first == second


def test_frames_are_kept_for_their_time(tmp_path: Path) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        policy = Retention(keep_ms=HOUR_MS)
        assert await trim(desk.engine, store.snapshots.positions(), policy) == 0
        await desk.engine.advance(HOUR_MS + 1)
        assert await trim(desk.engine, store.snapshots.positions(), policy) > 0
        await desk.engine.close()

    asyncio.run(main())


def test_frames_are_kept_up_to_a_size(tmp_path: Path) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        size = sum(extent.size_bytes for extent in store.extents())
        policy = Retention(keep_bytes=size - 2 * SEGMENT_BYTES)
        before = store.extents()
        end = await trim(desk.engine, store.snapshots.positions(), policy)
        assert end == before[1].end
        await desk.engine.close()

    asyncio.run(main())


def test_what_a_reader_has_not_acknowledged_stays_up_to_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        kept = store.snapshots.positions()
        second = store.extents()[1]
        await desk.engine.ask(BROKER, "", SetReader("spark", second.first))
        assert await trim(desk.engine, kept, NOTHING) == second.first
        assert store.extents()[0].first == second.first
        assert "lags" not in caplog.text
        little = Retention(keep_ms=0, keep_bytes=0, reader_bytes=3 * SEGMENT_BYTES)
        assert await trim(desk.engine, kept, little) > second.end
        assert "lags so far behind" in caplog.text
        await desk.engine.close()

    asyncio.run(main())


def test_what_is_mostly_still_needed_is_not_written_again(tmp_path: Path) -> None:
    a_folder(tmp_path, keep=1)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        assert await trim(desk.engine, store.snapshots.positions(), NOTHING) == 0
        await desk.engine.close()

    asyncio.run(main())


def test_messages_that_change_queues_meanwhile_are_not_forgotten(tmp_path: Path) -> None:
    """Into a queue that was looked at before, out of one that was not."""
    kept = a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)

        async def bury() -> None:
            for each in kept:
                await desk.do(DeadLetter("q", [each.token]))
                await turn()

        burying = asyncio.create_task(bury())
        end = await trim(desk.engine, store.snapshots.positions(), NOTHING)
        await burying
        assert end > 1
        state = state_of(desk.engine, NS)
        for queue in state.queues.values():
            assert all(message.position >= end for message in queue.messages.walk(0))
        assert len(bodies(await desk.receive(500, dead_letter_queue("q")))) == len(kept)
        await desk.engine.close()

    asyncio.run(main())


def test_a_queue_may_be_deleted_meanwhile(tmp_path: Path) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        trimming = asyncio.create_task(trim(desk.engine, store.snapshots.positions(), NOTHING))
        await turn()
        await desk.do(DeleteQueue("q"))
        assert await trimming > 1
        await desk.engine.close()

    asyncio.run(main())


def test_on_a_full_disk_only_that_goes_which_needs_no_room() -> None:
    class Full(MemoryStore):
        full = False

    async def main() -> None:
        store = Full()
        desk = await Desk.open(store)
        await fill(desk, 100, 10)
        store.full = True
        frames = len(store.frames)
        assert await trim(desk.engine, [store.durable], NOTHING) > 0
        assert len(store.frames) < frames
        held = [m.position for m in state_of(desk.engine, NS).queues["q"].messages.walk(0)]
        assert store.frames[0].first <= min(held)
        assert await store.get(held)

    asyncio.run(main())


def test_what_is_taken_out_while_its_segment_goes_is_read_before(tmp_path: Path) -> None:
    """Receive-and-delete: nobody has the message any more but who is getting it."""
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        await desk.engine.advance(60_000)
        trimming = asyncio.create_task(trim(desk.engine, store.snapshots.positions(), NOTHING))
        taken = asyncio.create_task(desk.receive(500, delete=True))
        assert len(bodies(await taken)) == 120
        assert await trimming > 1
        await desk.engine.close()

    asyncio.run(main())


def test_trimming_waits_while_the_broker_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_folder(tmp_path)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        ask, refused = desk.engine.ask, 0

        async def busy(principal: Principal, namespace: str, command: Command) -> Answer:
            nonlocal refused
            if isinstance(command, Move) and refused < 2:
                refused += 1
                raise Busy("more is waiting than it can write")
            return await ask(principal, namespace, command)

        monkeypatch.setattr(desk.engine, "ask", busy)
        assert await trim(desk.engine, store.snapshots.positions(), NOTHING) > 1
        assert refused == 2
        await desk.engine.close()

    asyncio.run(main())


async def while_retaining(
    retaining: "asyncio.Task[None]", condition: Callable[[], bool], what: str
) -> None:
    """Until it is so; the retaining is not to end before."""

    def holds() -> bool:
        assert not retaining.done()
        return condition()

    await until_async(holds, what)


async def until_trimmed(store: FileStore, desk: Desk, retaining: "asyncio.Task[None]") -> None:
    await fill(desk, 300, 10)
    await while_retaining(retaining, lambda: store.extents()[0].first > 1, "a segment is trimmed")
    retaining.cancel()
    await asyncio.wait([retaining])
    await desk.engine.close()


def test_tidying_goes_on_after_a_fold_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else holds the lock for folding, and lets it go."""

    async def main() -> None:
        store, desk = await opened(tmp_path)
        retaining = asyncio.create_task(retain(desk.engine, store, AT_ONCE))
        disk = Disk()
        held = disk.lock(tmp_path / LOCK)
        await fill(desk, 300, 10)
        await while_retaining(retaining, lambda: "was not folded" in caplog.text, "it is told")
        assert store.extents()[0].first == 1
        disk.close(held)
        await until_trimmed(store, desk, retaining)

    asyncio.run(main())


def test_tidying_goes_on_after_a_fold_that_could_not_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no file left for the pipes to its process."""

    async def main() -> None:
        store, desk = await opened(tmp_path)
        await fill(desk, 300, 10)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            retaining = asyncio.create_task(retain(desk.engine, store, AT_ONCE))
            await while_retaining(retaining, lambda: "was not trimmed" in caplog.text, "it is told")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until_trimmed(store, desk, retaining)

    asyncio.run(main())


def test_what_is_kept_takes_a_share_of_the_disk_with_its_arrow_segments() -> None:
    asked = Retention(keep_bytes=1_000_000, fold_bytes=500_000, reader_bytes=2_000_000)
    plenty = Room(free=10_000_000, journal=1_000_000, arrow=1_000_000)
    assert fitted(asked, plenty, 1_000) == asked
    little = fitted(asked, Room(free=200_000, journal=600_000, arrow=200_000), 1_000)
    assert (little.keep_bytes, little.reader_bytes, little.fold_bytes) == (375_000, 375_000, 93_750)
    assert fitted(replace(asked, share=10), plenty, 1_000).keep_bytes == 600_000
    tiny = fitted(asked, Room(free=100, journal=8_000, arrow=0), 1_000)
    assert tiny.keep_bytes == 4_050
    assert fitted(asked, Room(free=100, journal=2_000, arrow=0), 1_000).keep_bytes == 0


def test_on_a_full_disk_little_that_is_needed_is_written_into_what_is_left_for_settling() -> None:
    class Full(MemoryStore):
        full = False
        spare_bytes = 10_000

    async def main() -> None:
        store = Full()
        desk = await Desk.open(store)
        await fill(desk, 100, 50)  # two messages of 400 bytes stay
        store.full = True
        end = await trim(desk.engine, [store.durable], NOTHING)
        held = [m.position for m in state_of(desk.engine, NS).queues["q"].messages.walk(0)]
        assert len(held) == 5
        assert min(held) >= end

    asyncio.run(main())


def test_on_a_full_disk_what_only_the_older_snapshot_needs_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folding fails there, too: what snapshots there are is found without it."""
    a_folder(tmp_path, keep=10_000)
    a_folder(tmp_path, keep=10_000)

    async def main() -> None:
        store, desk = await opened(tmp_path)
        newest, older = store.snapshots.positions()
        claim = Disk.claim

        def refuse(disk: Disk, path: Path, size: int) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        monkeypatch.setattr(Disk, "claim", refuse)
        (tmp_path / "reserve").unlink()
        store._wants_space = True
        await store.sync()
        held = Disk().lock(tmp_path / LOCK)
        retaining = asyncio.create_task(retain(desk.engine, store, NOTHING))
        await while_retaining(
            retaining, lambda: store.extents()[0].first > older, "what is older is trimmed"
        )
        assert store.extents()[0].first <= newest
        await until_async(lambda: not store.pressed, "the store has room")
        monkeypatch.setattr(Disk, "claim", claim)
        Disk().close(held)
        retaining.cancel()
        await asyncio.wait([retaining])
        await desk.engine.close()

    asyncio.run(main())


def test_answers_to_senders_come_later_while_room_is_made() -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await Desk.open(store)
        store.pressed = True
        await desk.send("late")
        assert desk.engine.figures.slowed == 1
        store.pressed = False
        await desk.send("at once")
        assert desk.engine.figures.slowed == 1

    asyncio.run(main())
