"""Repair: whatever happened to the files, what can be read is kept and what is lost is named."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.fold import fold
from posthouse.broker.past import state_at
from posthouse.broker.repair import OLD, WORKSHOP, Report, repair
from posthouse.core.commands import Complete, CreateQueue, DeleteQueue, Delivery
from posthouse.core.dump import dump
from posthouse.core.model import dead_letter_queue
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, InUse, NotThere, StoreError, Unfinished, Unknown
from posthouse.store.file import LOCK, FileStore
from posthouse.store.look import REPAIRED, look, segment_paths
from tests.broker.desk import NS, Desk, bodies
from tests.broker.test_fold import work
from tests.inside import state_of
from tests.invariants import check

SEGMENT_BYTES = 16 << 10
DLQ = dead_letter_queue("q")


def a_store(folder: Path) -> FileStore:
    return FileStore(folder, segment_bytes=SEGMENT_BYTES)


async def opened(folder: Path) -> Desk:
    store = a_store(folder)
    return await Desk.open(store, snapshots=store.snapshots)


def a_journal(folder: Path, rounds: int = 60, seed: int = 1) -> dict[str, object]:
    async def main() -> dict[str, object]:
        desk = await opened(folder)
        await work(desk, rounds, seed)
        state = dump(state_of(desk.engine, NS), bodies=False)
        await desk.engine.close()
        return state

    return asyncio.run(main())


def a_backlog(folder: Path) -> None:
    """Fifty messages in four segments."""

    async def main() -> None:
        desk = await opened(folder)
        for number in range(50):
            await desk.send(f"{number} " + "x" * 900)
        await desk.engine.close()

    asyncio.run(main())


def found(folder: Path) -> tuple[dict[str, object], set[str]]:
    """A sound state, and the bodies of all its messages."""

    async def main() -> tuple[dict[str, object], set[str]]:
        desk = await opened(folder)
        state = state_of(desk.engine, NS)
        check(state, 1 << 50)
        seen = dump(state, bodies=False)
        del seen["era"]  # of this look
        await desk.engine.advance(1 << 32)
        names: set[str] = set()
        for queue in ("q", DLQ):
            got: list[Delivery] = []
            while some := await desk.receive(500, queue, delete=True):
                got += some
            texts = bodies(got)
            assert len(set(texts)) == len(texts)
            names |= set(texts)
        await desk.engine.store.close()
        return seen, names

    before = folder.with_name("look")
    shutil.copytree(folder, before)
    try:
        return asyncio.run(main())
    finally:
        shutil.rmtree(folder)
        before.rename(folder)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def repaired(folder: Path) -> Report:
    return repair(folder, SEGMENT_BYTES)


def test_a_sound_journal_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder)
    before = found(folder)
    report = repaired(folder)
    assert (report.missing, report.holes, report.messages, report.queues) == (0, [], [], [])
    assert found(folder) == before
    assert look(Disk(), folder).closed
    assert sorted(p.name for p in folder.glob(f"{OLD}*")) == [report.old_files]


@pytest.mark.parametrize("seed", range(12))
def test_after_any_damage_the_rest_is_there_and_sound(tmp_path: Path, seed: int) -> None:
    folder, random = tmp_path / "data", Random(seed)
    a_journal(folder)
    if seed % 3 == 0:
        fold(folder)
        a_journal(folder, 20, seed=100)
    _, every = found(folder)
    paths = segment_paths(Disk(), folder)
    for _ in range(random.randrange(1, 4)):
        path = random.choice(paths)
        kind = random.randrange(4)
        if kind == 0 and len(paths) > 2:
            path.unlink(missing_ok=True)
            paths.remove(path)
        elif kind == 1:
            data = path.read_bytes()
            path.write_bytes(data[: random.randrange(len(data))])
        else:
            flip(path, random.randrange(path.stat().st_size // 2))
    try:
        asyncio.run(_open_and_close(folder))
        sound = True
    except StoreError:
        sound = False
    report = repaired(folder)
    _, left = found(folder)
    assert sound or report.missing > 0 or report.holes
    assert left
    assert len(every - left) <= report.missing + 5 * len(report.holes)


async def _open_and_close(folder: Path) -> None:
    store = a_store(folder)
    try:
        await Desk.open(store, snapshots=store.snapshots)
    finally:
        await store.close()


def test_messages_behind_the_damage_are_kept_and_positions_stay(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_backlog(folder)
    end = look(Disk(), folder).end
    second = segment_paths(Disk(), folder)[1]
    flip(second, 2_000)
    with pytest.raises(Damaged, match="posthouse store repair"):
        a_store(folder)
    report = repaired(folder)
    assert report.missing == 1
    assert len(report.holes) == 1
    assert second.name in report.holes[0]
    _, left = found(folder)
    assert len(left) == 49
    assert look(Disk(), folder).end == end


def test_a_queue_whose_creation_is_lost_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def fill() -> None:
        desk = await opened(folder)
        await desk.do(CreateQueue("late"))
        await desk.send("x" * 10_000)
        await desk.send("x" * 10_000)
        await desk.send("y", "z", queue="late")
        await desk.engine.close()

    asyncio.run(fill())
    segment_paths(Disk(), folder)[0].unlink()
    report = repaired(folder)
    assert report.queues == [f"{NS}/q", f"{NS}/late"]

    async def drain() -> None:
        desk = await opened(folder)
        assert bodies(await desk.receive(5, "late")) == ["y", "z"]
        await desk.engine.close()

    asyncio.run(drain())


def test_messages_that_a_snapshot_holds_without_their_content_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_backlog(folder)
    fold(folder)
    first = segment_paths(Disk(), folder)[0]
    flip(first, 5_000)
    report = repaired(folder)
    (lost,) = report.messages
    assert lost.startswith(f"{NS}/q, message ")
    _, left = found(folder)
    assert len(left) == 49
    assert len(list(folder.glob("*.snapshot"))) == 2


def test_one_of_two_headers_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder)
    before = found(folder)
    flip(segment_paths(Disk(), folder)[0], 20)
    flip(segment_paths(Disk(), folder)[1], 64 + 20)
    with pytest.raises(Damaged):
        a_store(folder)
    report = repaired(folder)
    assert report.missing == 0
    assert found(folder) == before


def test_a_segment_without_a_header_is_lost_and_said_so(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder)
    second = segment_paths(Disk(), folder)[1]
    flip(second, 20)
    flip(second, 64 + 20)
    report = repaired(folder)
    assert report.missing > 10
    assert any("headers" in hole and second.name in hole for hole in report.holes)
    found(folder)


def test_a_journal_of_which_nothing_is_left_becomes_an_empty_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder)
    end = look(Disk(), folder).end
    for path in segment_paths(Disk(), folder):
        path.write_bytes(b"gone")
    report = repaired(folder)
    assert report.frames == 0
    assert look(Disk(), folder).end == end


def test_a_folder_in_use_is_not_repaired(tmp_path: Path) -> None:
    a_journal(tmp_path)
    lock = Disk().lock(tmp_path / LOCK)
    with pytest.raises(InUse):
        repaired(tmp_path)
    Disk().close(lock)


def test_a_repair_can_be_killed_at_any_moment_and_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder, 100)
    flip(segment_paths(Disk(), folder)[1], 3_000)
    spoiled = tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    repaired(folder)
    expected = found(folder)
    program = f"""
import os, sys, time
from pathlib import Path
from posthouse.broker.repair import repair
from tests.inside import state_of
import posthouse.broker.repair as room
slow = Path.rename
def rename(self, target):
    time.sleep(0.01)
    return slow(self, target)
Path.rename = rename
print("go", flush=True)
repair(Path(sys.argv[1]), {SEGMENT_BYTES})
"""
    interrupted = 0
    for number in range(12):
        shutil.rmtree(folder)
        shutil.copytree(spoiled, folder)
        command = [sys.executable, "-c", program, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.06 * number)  # slept: each is killed at a moment of its own
            process.kill()
        if (folder / REPAIRED).exists():
            interrupted += 1
            with pytest.raises(Unfinished):
                a_store(folder)
        repaired(folder)
        assert found(folder) == expected
        assert not (folder / WORKSHOP).exists()
    assert interrupted > 0


def spoil(folder: Path, body: str) -> None:
    """Damages the frame that holds this text."""
    for path in segment_paths(Disk(), folder):
        at = path.read_bytes().find(body.encode())
        if at >= 0:
            flip(path, at)
            return
    raise AssertionError(f"{body} is nowhere")


def test_a_queue_that_was_created_again_is_so_though_its_deletion_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def main() -> None:
        desk = await opened(folder)
        await desk.send("old")
        await asyncio.gather(desk.do(DeleteQueue("q")), desk.do(CreateQueue("spoiled")))
        await desk.do(CreateQueue("q"))
        await desk.send("new")
        await desk.engine.close()

    asyncio.run(main())
    spoil(folder, "spoiled")
    report = repaired(folder)
    assert report.missing == 2
    assert found(folder)[1] == {"new"}


def test_a_namespace_that_was_created_again_is_so_though_its_deletion_is_lost(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"

    async def main() -> None:
        desk = await opened(folder)
        await desk.send("old")
        engine = desk.engine
        await asyncio.gather(
            engine.ask(BROKER, "", DeleteNamespace(NS)),
            engine.ask(BROKER, "", CreateNamespace("spoiled")),
        )
        await engine.ask(BROKER, "", CreateNamespace(NS))
        await desk.do(CreateQueue("q"))
        await desk.send("new")
        await engine.close()

    asyncio.run(main())
    spoil(folder, "spoiled")
    repaired(folder)
    assert found(folder)[1] == {"new"}


def test_a_folder_of_which_only_a_snapshot_is_left_is_damaged_not_foreign(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder)
    fold(folder)
    for path in folder.iterdir():
        if path.suffix != ".snapshot":
            path.unlink()
    with pytest.raises(Damaged):
        a_store(folder)
    report = repaired(folder)
    assert report.messages
    found(folder)


def test_content_that_went_with_the_first_segment_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_backlog(folder)
    fold(folder)
    segment_paths(Disk(), folder)[0].unlink()
    report = repaired(folder)
    assert len(report.messages) > 5
    assert len(found(folder)[1]) == 50 - len(report.messages)


def test_only_the_journal_s_own_files_are_touched(tmp_path: Path) -> None:
    with pytest.raises(NotThere, match="holds no journal"):
        repaired(tmp_path)
    folder = tmp_path / "data"
    a_journal(folder, 5)
    (folder / "letter.txt").write_text("mine")
    (folder / "damaged-old").mkdir()
    report = repaired(folder)
    assert (folder / "letter.txt").read_text() == "mine"
    assert report.old_files == "damaged-1"
    (folder / REPAIRED).write_text("{")
    with pytest.raises(Unknown):
        repaired(folder)


def test_a_spoiled_mark_of_a_clean_stop_does_not_lead_a_repair_astray(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    a_journal(folder, 5)
    (folder / "closed").write_text("9" * 30 + " 5")
    assert repaired(folder).missing == 0


def test_the_past_of_a_repaired_journal_can_be_looked_at(tmp_path: Path) -> None:
    """Before its snapshot there may be records of what is missing."""
    folder = tmp_path / "data"

    async def main() -> None:
        desk = await opened(folder)
        await desk.do(CreateQueue("spoiled"))
        for number in range(40):
            await desk.send(f"{number} " + "x" * 900, queue="spoiled")
            for each in await desk.receive(1, "spoiled"):
                await desk.do(Complete("spoiled", [each.token]))
        await desk.engine.close()

    asyncio.run(main())
    fold(folder)
    spoil(folder, "spoiled")
    repaired(folder)

    async def look_back() -> None:
        store = a_store(folder)
        for position in range(1, store.durable, 7):
            world = await state_at(store, store.snapshots, position)
            for state in world.states.values():
                check(state, 1 << 50)
        await store.close()

    asyncio.run(look_back())
