"""A disk that has little room, or none: what gives way, and what is told of it."""

import asyncio
import errno
from pathlib import Path

import pytest

from posthouse.store import Room, Snapshot
from posthouse.store.disk import Disk
from posthouse.store.file import MARK_SEGMENTS, FileStore
from posthouse.store.frames import Frame
from posthouse.store.look import NEXT, RESERVE
from posthouse.store.memory import MemoryStore
from posthouse.store.snapshots import UNFINISHED, FileSnapshots
from tests.store.faulty_disk import FaultyDisk, File
from tests.store.test_recovery import FOLDER, SEGMENT_BYTES, batches, opened


def with_arrow_segments(*sizes: int) -> FaultyDisk:
    disk = FaultyDisk()
    for number, size in enumerate(sizes, 1):
        disk.names_now[f"{number:020}.arrow"] = File(bytes(size))
    return disk


def arrow_segments(disk: FaultyDisk) -> list[int]:
    return [int(each.removesuffix(".arrow")) for each in disk.names(FOLDER) if ".arrow" in each]


def test_the_oldest_arrow_segments_give_way_to_the_next_segment() -> None:
    disk = with_arrow_segments(SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES)
    disk.room = 0
    store = opened(disk)
    assert arrow_segments(disk) == [3]
    assert not store.full
    assert {NEXT, RESERVE} <= set(disk.names_now)


def test_arrow_segments_do_not_give_way_to_another_failure() -> None:
    disk = with_arrow_segments(SEGMENT_BYTES)
    disk._fail_at, disk._failure = 1, errno.EIO
    assert opened(disk).full
    assert arrow_segments(disk) == [1]


def test_arrow_segments_are_dropped_up_to_what_is_to_be_free() -> None:
    async def main() -> None:
        disk = with_arrow_segments(*[SEGMENT_BYTES] * 4)
        disk.room = 3 * SEGMENT_BYTES
        store = opened(disk)
        assert store.room() == Room(SEGMENT_BYTES, 0, 4 * SEGMENT_BYTES)
        assert _is_short(store)
        await store.drop_arrow_segments(MARK_SEGMENTS * SEGMENT_BYTES)
        assert arrow_segments(disk) == [3, 4]
        assert not _is_short(store)
        await store.drop_arrow_segments(100 * SEGMENT_BYTES)
        assert arrow_segments(disk) == []
        assert store.segment_bytes == SEGMENT_BYTES
        await store.close()

    asyncio.run(main())


def test_what_can_be_written_for_sure_is_known() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk)
        assert store.spare_bytes == 2 * SEGMENT_BYTES
        disk.room = 0
        for frame in batches(1)[0]:
            store.append(frame)
        await store.sync()
        assert store.full
        left = store.spare_bytes - SEGMENT_BYTES  # in the segment, beside the reserve
        assert 0 < left < SEGMENT_BYTES
        await store.close()

    asyncio.run(main())
    memory = MemoryStore()
    assert memory.spare_bytes > 1 << 60
    memory.full = True
    assert memory.spare_bytes == 0


def test_a_full_disk_is_told_of_until_a_trim_has_made_room() -> None:
    """The Arrow segment goes with its segment."""

    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk)
        for batch in batches(20):
            for frame in batch:
                store.append(frame)
            await store.sync()
        first = store.extents()[0]
        assert not store.filled.is_set()
        assert not _is_pressed(store)
        disk.names_now[store.sealed()[0].path.with_suffix(".arrow").name] = File(b"rows")
        disk.room = 0
        disk.names_now.pop(RESERVE)
        store._wants_space = True
        await _synced(store)
        assert store.filled.is_set()
        assert _is_pressed(store)
        assert arrow_segments(disk) == []
        assert store.rolled.is_set()

        disk.names_now[store.sealed()[0].path.with_suffix(".arrow").name] = File(b"rows")
        await store.trim(first.end)
        assert arrow_segments(disk) == []
        assert not store.full
        assert not store.filled.is_set()
        assert store.extents()[0].first == first.end
        await store.close()

    asyncio.run(main())


def test_senders_are_slowed_down_until_what_could_give_way_has() -> None:
    disk = FaultyDisk()
    disk.room = 3 * SEGMENT_BYTES
    store = opened(disk)
    assert _is_pressed(store)
    store.segments.note_trimmed()
    assert not _is_pressed(store)


def _is_short(store: FileStore) -> bool:
    return store.is_short


def _is_pressed(store: FileStore) -> bool:
    return store.pressed


async def _synced(store: FileStore) -> None:
    await store.sync()
    assert store.full


def test_an_arrow_segment_that_goes_while_it_is_measured_counts_for_nothing(
    tmp_path: Path,
) -> None:
    class Vanishing(Disk):
        def size(self, path: Path) -> int:
            if path.suffix == ".arrow":
                raise FileNotFoundError(path)
            return super().size(path)

    store = FileStore(tmp_path, segment_bytes=4096, disk=Vanishing())
    (tmp_path / f"{1:020}.arrow").write_bytes(b"rows")
    assert store.room().arrow == 0
    assert 0 < store.room().free <= Disk().free(tmp_path) + (1 << 30)


@pytest.mark.parametrize("removable", [True, False])
def test_a_snapshot_that_does_not_fit_leaves_its_room_to_others(removable: bool) -> None:
    class Full(FaultyDisk):
        def write(self, file: int, offset: int, chunks: object) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        def remove(self, path: Path) -> None:
            if not removable:
                raise OSError(errno.EIO, "nor that")
            super().remove(path)

    disk = Full()
    snapshots = FileSnapshots(FOLDER, disk)
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(snapshots.save(Snapshot(Frame(1, 1, 1, 0, 1, 0, b""), [b"part"])))
    assert (UNFINISHED in disk.names_now) != removable
