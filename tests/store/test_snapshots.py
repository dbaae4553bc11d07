"""What every keeper of snapshots has to do, and what files make of damage."""

import asyncio
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from posthouse.store import Snapshot, Snapshots
from posthouse.store.backend import Backend
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, NotThere, TooNew
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.look import sealed, sealed_frames, segment_paths
from posthouse.store.redis import RedisBackend
from posthouse.store.snapshots import SUFFIX, UNFINISHED, FileSnapshots, MemorySnapshots
from posthouse.store.sqlite import SqliteBackend
from tests.store.faulty_disk import FaultyDisk, PowerCut
from tests.store.test_conformance import frames, read_all
from tests.store.test_recovery import FOLDER, SEGMENT_BYTES, segments, written

EVER = 1 << 63


@pytest.fixture(params=["memory", "file", "sqlite", "redis"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Snapshots]:
    if request.param in ("sqlite", "redis"):
        backend: Backend = SqliteBackend(tmp_path / "data.db")
        if request.param == "redis":
            url = request.getfixturevalue("redis_server").url
            backend.close()
            backend = RedisBackend(f"{url}?journal={secrets.token_hex(8)}", url)
        yield backend.snapshots
        backend.close()
    else:
        yield MemorySnapshots() if request.param == "memory" else FileSnapshots(tmp_path)


def a_mark(end: int) -> Frame:
    """The last frame of a snapshot, as it comes back."""
    return Frame(3, end // 2, end, 0, end, 1_000 + end, b"")


def save(keeper: Snapshots, end: int, *parts: bytes) -> None:
    asyncio.run(keeper.save(Snapshot(a_mark(end), iter(parts))))


def load(keeper: Snapshots, end: int = EVER) -> tuple[int, list[bytes]] | None:
    snapshot = asyncio.run(keeper.load(end))
    if snapshot is None:
        return None
    assert snapshot.last == a_mark(snapshot.last.end)
    return snapshot.last.end, list(snapshot.parts)


def test_without_a_snapshot_there_is_none(keeper: Snapshots) -> None:
    assert load(keeper) is None


def test_a_snapshot_comes_back_part_by_part(keeper: Snapshots) -> None:
    parts = [b"one", b"two" * 1_000_000, b"three" * 500_000, b"four"]
    save(keeper, 10, *parts)
    assert load(keeper) == (10, parts)


def test_an_empty_snapshot_is_one_too(keeper: Snapshots) -> None:
    save(keeper, 10)
    assert load(keeper) == (10, [])


def test_the_newest_that_is_old_enough_is_loaded_and_two_are_kept(keeper: Snapshots) -> None:
    for end in (10, 20, 30):
        save(keeper, end, b"%d" % end)
    assert load(keeper) == (30, [b"30"])
    assert load(keeper, 30) == (30, [b"30"])
    assert load(keeper, 29) == (20, [b"20"])
    assert load(keeper, 19) is None
    assert keeper.positions() == keeper.whole() == [30, 20]


def test_a_damaged_snapshot_is_passed_over_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = FileSnapshots(tmp_path)
    save(keeper, 10, b"old")
    save(keeper, 20, b"new", b"er")
    newest = keeper.paths()[0]
    whole = newest.read_bytes()
    random = Random(1)
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= random.randrange(1, 256)
        newest.write_bytes(data)
        assert load(keeper) == (10, [b"old"]), f"with byte {at} changed"
        assert f"{newest} is damaged" in caplog.text
        caplog.clear()
        with pytest.raises(Damaged, match=newest.name):
            keeper.verify()
        newest.write_bytes(whole[:at])
        assert load(keeper) == (10, [b"old"]), f"cut at {at}"
    newest.write_bytes(whole)
    assert keeper.verify() == 2
    assert keeper.newest() == a_mark(20)


def test_a_damaged_snapshot_does_not_count_as_one_that_is_kept(tmp_path: Path) -> None:
    keeper = FileSnapshots(tmp_path)
    save(keeper, 10, b"old")
    save(keeper, 20, b"newer")
    flip(keeper.paths()[0], 75)
    save(keeper, 30, b"newest")
    assert keeper.positions() == [30, 20, 10]
    assert keeper.whole() == [30, 10]
    save(keeper, 40, b"newest of all")
    assert keeper.positions() == [40, 30]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    keeper = FileSnapshots(tmp_path)
    for name in ("backup.snapshot", "mine.journal", "1.journal"):
        (tmp_path / name).write_text("not ours")
    save(keeper, 10, b"x")
    assert keeper.positions() == [10]
    assert segment_paths(Disk(), tmp_path) == []
    assert (tmp_path / "backup.snapshot").read_text() == "not ours"


def test_the_newest_with_a_sound_header_says_where_to_look_from(tmp_path: Path) -> None:
    keeper = FileSnapshots(tmp_path)
    assert keeper.newest() is None
    save(keeper, 10, b"old")
    save(keeper, 20, b"new")
    keeper.paths()[0].write_bytes(b"nothing")
    assert keeper.newest() == a_mark(10)
    assert keeper.positions() == [20, 10]


def test_a_snapshot_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    keeper = FileSnapshots(tmp_path)
    save(keeper, 10, b"x")
    path = keeper.paths()[0]
    data = bytearray(path.read_bytes())
    data[15] = 2
    data[8:12] = zlib.crc32(data[12:64]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(TooNew, match=path.name):
        load(keeper)


def test_a_snapshot_under_another_name_is_not_taken(tmp_path: Path) -> None:
    keeper = FileSnapshots(tmp_path)
    save(keeper, 10, b"x")
    keeper.paths()[0].rename(tmp_path / f"{11:020}{SUFFIX}")
    assert load(keeper) is None


def test_saving_that_is_cut_short_leaves_the_one_before() -> None:
    def saved(disk: FaultyDisk) -> None:
        asyncio.run(
            FileSnapshots(FOLDER, disk).save(Snapshot(a_mark(20), [b"a" * 3_000_000, b"b"] * 2))
        )

    disk = FaultyDisk()
    asyncio.run(FileSnapshots(FOLDER, disk).save(Snapshot(a_mark(10), [b"old"])))
    counting = disk.copy()
    saved(counting)
    random = Random(1)
    for cut_at in range(1, counting.operations + 1):
        second = disk.copy()
        second._cut_at = cut_at
        with pytest.raises(PowerCut):
            saved(second)
        for left in (second.copy(), second.after_power_cut(random)):
            found = load(FileSnapshots(FOLDER, left))
            assert found is not None
            assert found[0] in (10, 20)
            saved(left)
            assert UNFINISHED not in left.names(FOLDER)
            assert [p.name for p in FileSnapshots(FOLDER, left).paths()] == [
                f"{20:020}{SUFFIX}",
                f"{10:020}{SUFFIX}",
            ]


# A store beside its snapshots.


def a_folder(folder: Path, count: int = 300) -> list[Frame]:
    made = frames(count)

    async def main() -> None:
        store = FileStore(folder, segment_bytes=4096)
        for frame in made:
            store.append(frame)
        await store.sync()
        await store.close()

    asyncio.run(main())
    return made


def snapshot_at(folder: Path, frame: Frame) -> None:
    asyncio.run(FileSnapshots(folder).save(Snapshot(frame.without_payload(), [b"state"])))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_a_snapshot_holds_is_only_looked_at_when_it_is_read(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    snapshot_at(tmp_path, made[200])

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        assert store.last == made[-1].without_payload()
        assert store.durable == made[-1].end
        extents = store.extents()
        assert [e.first for e in extents[1:]] == [e.end for e in extents[:-1]]
        assert [e.begun_ms for e in extents] == sorted(e.begun_ms for e in extents)
        assert await read_all(store, made[201].first) == made[201:]
        assert await read_all(store) == made
        assert await store.get([made[3].first, made[250].first]) == [made[3], made[250]]
        await store.close()
        again = FileStore(tmp_path, segment_bytes=4096)
        assert await again.get([made[3].first]) == [made[3]]
        await again.close()

    asyncio.run(main())


def test_damage_in_what_was_not_looked_at_is_named_when_it_is_read(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    snapshot_at(tmp_path, made[200])
    second = segment_paths(Disk(), tmp_path)[1]
    flip(second, 300)

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        assert await read_all(store, made[201].first) == made[201:]
        with pytest.raises(Damaged, match=second.name):
            await read_all(store)
        position = store.extents()[1].first
        with pytest.raises(Damaged, match=second.name):
            await store.get([position])
        await store.close()

    asyncio.run(main())


def test_damage_that_comes_while_the_store_is_open_is_named(tmp_path: Path) -> None:
    made = a_folder(tmp_path)

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        second = segment_paths(Disk(), tmp_path)[1]
        flip(second, 140)
        with pytest.raises(Damaged, match=second.name):
            await read_all(store)
        with pytest.raises(Damaged, match=second.name):
            await store.get([store.extents()[1].first])
        second.write_bytes(segment_paths(Disk(), tmp_path)[2].read_bytes())
        await store.close()

    asyncio.run(main())
    assert made


def test_frames_that_were_exchanged_are_named(tmp_path: Path) -> None:
    """Each is sound, but not the next."""
    made = frames(2)
    a_folder(tmp_path, 2)

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        path = segment_paths(Disk(), tmp_path)[0]
        data = path.read_bytes()
        first = made[0].size_bytes
        head, one = data[:128], data[128 : 128 + first]
        path.write_bytes(head + one + one + data[128 + 2 * first :])
        with pytest.raises(Damaged, match="not frame 2"):
            await read_all(store)
        await store.close()

    asyncio.run(main())


def test_a_journal_that_ends_before_its_snapshot_is_damaged(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    snapshot_at(tmp_path, made[200])
    for path in segment_paths(Disk(), tmp_path)[1:]:
        path.unlink()
    with pytest.raises(Damaged, match="a snapshot holds all up to"):
        FileStore(tmp_path)
    for path in segment_paths(Disk(), tmp_path):
        path.unlink()
    with pytest.raises(Damaged, match="a snapshot holds all up to"):
        FileStore(tmp_path)


def test_a_segment_that_was_only_begun_follows_a_snapshot_of_all_before() -> None:
    disk, every = written(8)
    names = segments(disk)
    last = int(names[-1].split(".")[0])
    held = [frame for frame in every if frame.number < last]
    asyncio.run(FileSnapshots(FOLDER, disk).save(Snapshot(held[-1].without_payload(), [b"x"])))
    content = disk.names_now[names[-1]].now()
    disk.names_now[names[-1]].durable = content[:128].ljust(len(content), b"\0")

    async def main() -> None:
        store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
        assert store.last == Frame(
            held[-1].epoch, held[-1].number, held[-1].end, 0, held[-1].end, held[-1].time_ms, b""
        )
        await store.close()

    asyncio.run(main())


def test_sealed_segments_can_be_read_by_another_process(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    complete = sealed(Disk(), tmp_path)
    assert len(complete) == len(segment_paths(Disk(), tmp_path)) - 1
    found = [frame for each in complete for frame in sealed_frames(Disk(), each)]
    assert found == made[: len(found)]
    flip(complete[1].path, 1_000)
    with pytest.raises(Damaged, match=complete[1].path.name):
        list(sealed_frames(Disk(), complete[1]))
    first = complete[0]
    other = first._replace(head=first.head._replace(first=99))
    with pytest.raises(Damaged):
        list(sealed_frames(Disk(), other))


def test_what_was_trimmed_while_somebody_reads_is_said_to_be_gone(tmp_path: Path) -> None:
    made = a_folder(tmp_path)

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        reading = store.read(1, EVER)
        assert await anext(reading) == made[0]
        await store.trim(store.extents()[-1].first)
        with pytest.raises(NotThere):
            async for _ in reading:
                pass
        await store.close()

    asyncio.run(main())
