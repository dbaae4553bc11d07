"""Folding: snapshots made by another process, and starts that use them."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import msgspec
import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.fold import SCRUBBED, fold
from posthouse.broker.replay import recover
from posthouse.broker.retention import Retention, retain, run_arrow_segments, run_fold
from posthouse.core.commands import Abandon, Complete, CreateQueue, DeadLetter
from posthouse.core.dump import dump
from posthouse.core.namespaces import Namespaces
from posthouse.store import Snapshot
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, InUse, NotThere, Unknown
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.look import segment_paths
from posthouse.store.snapshots import SUFFIX, UNFINISHED, FileSnapshots
from tests.broker.desk import NS, Desk, bodies
from tests.inside import state_of
from tests.store.faulty_disk import FaultyDisk, PowerCut
from tests.store.test_durability import eventually

SEGMENT_BYTES = 16 << 10


def a_store(folder: Path, disk: Disk | None = None) -> FileStore:
    return FileStore(folder, segment_bytes=SEGMENT_BYTES, disk=disk)


async def work(desk: Desk, rounds: int, seed: int = 1) -> None:
    """Sends, locks, completes, returns and buries; leaves something of each."""
    random = Random(seed)
    for number in range(rounds):
        await desk.send(*(f"{seed}-{number}-{n} " + "x" * random.randrange(300) for n in range(5)))
        for each in await desk.receive(4):
            token = [each.token]
            choice = random.randrange(5)
            if choice < 2:
                await desk.do(Complete("q", token))
            elif choice == 2:
                await desk.do(Abandon("q", token, delay_ms=random.choice([0, 50])))
            elif choice == 3:
                await desk.do(DeadLetter("q", token, reason="why"))
        await desk.engine.advance(7)


def a_journal(folder: Path, disk: Disk | None = None, rounds: int = 60) -> dict[str, object]:
    """A folder as a crash leaves it, and the state it stands for."""

    async def main() -> dict[str, object]:
        desk = await Desk.open(a_store(folder, disk))
        await work(desk, rounds)
        await desk.engine.store.close()
        return dump(state_of(desk.engine, NS), bodies=False)

    return asyncio.run(main())


def found(folder: Path, disk: Disk | None = None) -> dict[str, object]:
    """The state that a start recovers, before it changes anything."""

    async def main() -> Namespaces:
        store = a_store(folder, disk)
        world = await recover(store, store.snapshots)
        await store.close()
        return world

    return dump(asyncio.run(main()).states[NS], bodies=False)


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_a_start_from_a_snapshot_gives_the_same_state(tmp_path: Path) -> None:
    expected = a_journal(tmp_path)
    folded = fold(tmp_path)
    assert folded.frames > 100
    (path,) = snapshots(tmp_path)
    assert path.name == f"{folded.position:020}{SUFFIX}"
    assert path.stat().st_mode & 0o777 == 0o600
    assert found(tmp_path) == expected


def test_a_start_does_not_read_what_a_snapshot_holds(tmp_path: Path) -> None:
    expected = a_journal(tmp_path)
    fold(tmp_path)
    first = segment_paths(Disk(), tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[200] ^= 1
    first.write_bytes(data)
    assert found(tmp_path) == expected
    snapshots(tmp_path)[0].unlink()
    with pytest.raises(Damaged, match=first.name):
        found(tmp_path)


def test_bodies_are_read_back_from_segments_that_the_start_did_not_read(tmp_path: Path) -> None:
    async def fill() -> None:
        desk = await Desk.open(a_store(tmp_path))
        for at in range(0, 300, 10):
            await desk.send(*(f"{n} " + "x" * 400 for n in range(at, at + 10)))
        await desk.engine.close()

    async def drain() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store, snapshots=store.snapshots)
        queue = state_of(desk.engine, NS).queues["q"]
        assert queue.evicted_bytes > queue.body_bytes // 2
        got = bodies(await desk.receive(300))
        assert [body.split()[0] for body in got] == [str(n) for n in range(300)]
        await desk.engine.close()

    asyncio.run(fill())
    fold(tmp_path)
    asyncio.run(drain())


def test_words_of_a_later_version_are_named_and_not_passed_over(tmp_path: Path) -> None:
    a_journal(tmp_path / "plain", rounds=2)

    async def append() -> None:
        store = a_store(tmp_path / "plain")
        assert store.last is not None
        last, unknown = store.last, msgspec.msgpack.encode([[NS, [[99, "what is this"]]]])
        store.append(Frame(last.epoch, last.number + 1, last.end, 1, last.end, 0, unknown))
        await store.sync()
        await store.close()

    asyncio.run(append())
    with pytest.raises(Unknown, match="use the version that wrote it"):
        found(tmp_path / "plain")
    a_journal(tmp_path / "folded")
    fold(tmp_path / "folded")
    kept = FileSnapshots(tmp_path / "folded")
    last = kept.newest()
    assert last is not None
    asyncio.run(kept.save(Snapshot(last, [msgspec.msgpack.encode([99, "what is this"])])))
    with pytest.raises(Unknown, match="The snapshot up to"):
        found(tmp_path / "folded")


def test_folding_goes_on_from_the_last_snapshot_and_keeps_two(tmp_path: Path) -> None:
    async def main() -> None:
        for part in range(4):
            store = a_store(tmp_path)
            desk = await Desk.open(store, snapshots=store.snapshots)
            await work(desk, 20, seed=part)
            await desk.engine.close()

    for _ in range(3):
        asyncio.run(main())
        first = fold(tmp_path)
        assert first.frames > 0
        again = fold(tmp_path)
        assert (again.position, again.frames) == (first.position, 0)
    assert len(snapshots(tmp_path)) == 2


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    a_journal(tmp_path, rounds=40)
    fold(tmp_path)

    async def more() -> dict[str, object]:
        store = a_store(tmp_path)
        desk = await Desk.open(store, snapshots=store.snapshots)
        await work(desk, 40)
        await store.close()
        return dump(state_of(desk.engine, NS), bodies=False)

    expected = asyncio.run(more())
    fold(tmp_path)
    newest = snapshots(tmp_path)[-1]
    whole = newest.read_bytes()
    random = Random(3)
    for at in [*range(80), *(random.randrange(len(whole)) for _ in range(60))]:
        data = bytearray(whole)
        data[at] ^= 1 << random.randrange(8)
        newest.write_bytes(data)
        assert found(tmp_path) == expected
    for cut in (0, 10, 64, 70, len(whole) // 2, len(whole) - 1):
        newest.write_bytes(whole[:cut])
        assert found(tmp_path) == expected


def test_with_the_journal_trimmed_and_no_snapshot_the_start_says_what_is_missing(
    tmp_path: Path,
) -> None:
    a_journal(tmp_path)
    fold(tmp_path)
    segment_paths(Disk(), tmp_path)[0].unlink()
    snapshots(tmp_path)[0].unlink()
    with pytest.raises(NotThere, match="positions from 1 up to"):
        found(tmp_path)
    with pytest.raises(NotThere, match="the journal begins at"):
        fold(tmp_path)


def test_a_journal_that_ends_before_its_snapshot_is_damaged(tmp_path: Path) -> None:
    a_journal(tmp_path)
    fold(tmp_path)
    for path in segment_paths(Disk(), tmp_path)[2:]:
        path.unlink()
    with pytest.raises(Damaged, match="a snapshot holds all up to"):
        a_store(tmp_path)


def test_folding_that_is_cut_short_at_any_operation_changes_nothing() -> None:
    folder = Path("journal")
    disk = FaultyDisk()
    expected = a_journal(folder, disk, rounds=25)
    counting = disk.copy()
    fold(folder, counting)
    assert counting.operations > 5
    random = Random(1)
    for cut_at in range(1, counting.operations + 1):
        second = disk.copy()
        second._cut_at = cut_at
        with pytest.raises(PowerCut):
            fold(folder, second)
        for left in (second.copy(), second.after_power_cut(random)):
            assert found(folder, left.copy()) == expected
            fold(folder, left)
            assert found(folder, left) == expected


def test_folding_that_fails_at_any_operation_says_so_and_changes_nothing() -> None:
    folder = Path("journal")
    disk = FaultyDisk()
    expected = a_journal(folder, disk, rounds=25)
    counting = disk.copy()
    fold(folder, counting)
    for fail_at in range(1, counting.operations + 1):
        second = disk.copy()
        second._fail_at = fail_at
        with pytest.raises(OSError, match="injected"):
            fold(folder, second)
        assert found(folder, second.copy()) == expected


def test_a_folding_process_can_be_killed_at_any_moment(tmp_path: Path) -> None:
    expected = a_journal(tmp_path, rounds=80)
    command = [sys.executable, "-m", "posthouse.broker.fold_process", str(tmp_path), "soon"]
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    lasts = time.monotonic() - start
    for path in snapshots(tmp_path):
        path.unlink()
    for number in range(12):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            time.sleep(lasts * (number + 1) / 12)  # slept: each is killed at a moment of its own
            process.kill()
        assert found(tmp_path) == expected
    fold(tmp_path)
    assert found(tmp_path) == expected
    assert not (tmp_path / UNFINISHED).exists()


def test_only_one_process_folds_at_a_time(tmp_path: Path) -> None:
    a_journal(tmp_path)
    lock = Disk().lock(tmp_path / "fold-lock")
    with pytest.raises(InUse):
        fold(tmp_path)
    Disk().close(lock)
    fold(tmp_path)


def test_old_segments_are_read_again_bit_by_bit_and_damage_is_named(tmp_path: Path) -> None:
    a_journal(tmp_path)
    fold(tmp_path)
    paths = segment_paths(Disk(), tmp_path)
    assert len(paths) > 3
    assert [fold(tmp_path, scrub_bytes=1).scrubbed for _ in range(3)] == [1, 1, 1]
    assert (tmp_path / SCRUBBED).read_text().strip() == str(int(paths[2].stem))
    data = bytearray(paths[1].read_bytes())
    data[300] ^= 1
    paths[1].write_bytes(data)
    while int((tmp_path / SCRUBBED).read_text()) != int(paths[0].stem):
        fold(tmp_path, scrub_bytes=1)
    with pytest.raises(Damaged, match=paths[1].name):
        fold(tmp_path, scrub_bytes=1)


def test_a_running_broker_is_folded_beside_its_work(tmp_path: Path) -> None:
    async def main() -> dict[str, object]:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        retention = Retention(fold_bytes=2 * SEGMENT_BYTES)
        retaining = asyncio.create_task(retain(desk.engine, store, retention))
        while not store.snapshots.positions():
            await work(desk, 5)
        retaining.cancel()
        await asyncio.gather(retaining, return_exceptions=True)
        await store.close()
        return dump(state_of(desk.engine, NS), bodies=False)

    assert asyncio.run(main()) == found(tmp_path)


def test_a_snapshot_does_not_wait_for_arrow_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[asyncio.Task[None] | None] = []

    async def never_made(_: FileStore) -> None:
        begun.append(asyncio.current_task())
        await asyncio.Event().wait()

    monkeypatch.setattr("posthouse.broker.retention.run_arrow_segments", never_made)

    async def main() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        retention = Retention(fold_bytes=3 * SEGMENT_BYTES)
        retaining = asyncio.create_task(retain(desk.engine, store, retention))
        while not begun:
            await work(desk, 1)
        while not store.snapshots.positions():
            await work(desk, 5)
        assert begun[0] is not None
        assert begun[0].cancelled()
        retaining.cancel()
        await asyncio.gather(retaining, return_exceptions=True)
        await desk.engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_every_segment_gets_its_arrow_segment_also_what_is_complete_while_others_are_made(
    tmp_path: Path,
) -> None:
    def arrow_segments() -> int:
        return sum(each.endswith(".arrow") for each in Disk().names(tmp_path))

    async def main() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        retaining = asyncio.create_task(retain(desk.engine, store, Retention()))
        for _ in range(20):
            await work(desk, 4)
            await asyncio.sleep(0.02)  # slept: meanwhile another process makes Arrow segments
        assert len(store.extents()) > 3
        await eventually(lambda: arrow_segments() == len(store.extents()) - 1)
        retaining.cancel()
        await asyncio.gather(retaining, return_exceptions=True)
        await desk.engine.close()

    asyncio.run(main())


def test_a_broker_survives_a_folding_process_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        await work(desk, 60)
        first = segment_paths(Disk(), tmp_path)[0]
        data = bytearray(first.read_bytes())
        data[200] ^= 1
        first.write_bytes(data)
        assert not await run_fold(store)
        assert first.name in caplog.text
        await desk.send("goes on")
        await desk.engine.close()

    asyncio.run(main())


def test_a_folding_process_ends_with_who_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        await work(desk, 60)
        folding = asyncio.create_task(run_fold(store))
        await asyncio.sleep(0.05)  # slept: the process is at some point of its work
        folding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await folding
        lock = Disk().lock(tmp_path / "fold-lock")  # it is gone, and its lock with it
        Disk().close(lock)
        await desk.engine.close()

    asyncio.run(main())


def test_arrow_segments_that_nobody_has_time_for_are_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store = a_store(tmp_path)
        desk = await Desk.open(store)
        await work(desk, 60)
        monkeypatch.setattr("posthouse.broker.retention.PATIENCE_SECONDS", 0.01)
        await run_arrow_segments(store)
        await desk.engine.close()

    asyncio.run(main())
    assert list(tmp_path.glob("*.arrow"))


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has it")
@pytest.mark.parametrize("soon", [True, False])
def test_the_folding_process_gives_way_to_others(soon: bool) -> None:
    code = (
        f"import os; from posthouse.broker.fold_process import give_way; give_way(soon={soon})\n"
        "print(os.nice(0), os.sched_getscheduler(0))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.split() == ["19", str(os.SCHED_OTHER if soon else os.SCHED_IDLE)]


def test_the_newest_snapshot_that_is_old_enough_serves_the_past(tmp_path: Path) -> None:
    a_journal(tmp_path, rounds=30)
    first = fold(tmp_path)

    async def main() -> None:
        store = a_store(tmp_path)
        engine = await Engine.open(store, _clock(), 1, snapshots=store.snapshots)
        await engine.ask(BROKER, NS, CreateQueue("later"))
        await work(Desk(engine), 30)
        await engine.close()

    asyncio.run(main())
    second = fold(tmp_path)
    kept = FileSnapshots(tmp_path)
    assert kept.positions() == [second.position, first.position]
    loaded = asyncio.run(kept.load(second.position - 1))
    assert loaded is not None
    assert loaded.last.end == first.position
    assert asyncio.run(kept.load(first.position - 1)) is None
    assert kept.verify() == 2


def _clock() -> VirtualClock:
    return VirtualClock(1_000_000)
