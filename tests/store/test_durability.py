"""How durable a sync makes things: as it was chosen, and never less than a frame says."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from posthouse.store.errors import Lost
from posthouse.store.file import BEHIND_BYTES_MAX, Durability, FileStore
from posthouse.store.frames import Frame
from posthouse.store.look import CLOSED
from tests.store.faulty_disk import FaultyDisk
from tests.store.test_conformance import closing, frames, read_all
from tests.store.test_recovery import FOLDER, recovered
from tests.waiting import turn, until_async

SEGMENT_BYTES = 2048


def opened(disk: FaultyDisk, durability: Durability, interval_ms: int = 5) -> FileStore:
    return FileStore(
        FOLDER,
        segment_bytes=SEGMENT_BYTES,
        disk=disk,
        durability=durability,
        interval_ms=interval_ms,
    )


def in_truth(frame: Frame, store: FileStore) -> Frame:
    return Frame(
        frame.epoch, frame.number, frame.first, frame.count, store.durable, frame.time_ms,
        frame.payload,
    )  # fmt: skip


def kept(disk: FaultyDisk) -> list[Frame]:
    """What the disk has said it has."""
    left = FaultyDisk()
    for name, file in disk.names_durable.items():
        left.names_now[name] = left.names_durable[name] = type(file)(file.durable)
    return recovered(left)


async def eventually(is_so: Callable[[], bool]) -> None:
    await until_async(is_so, "it is so")


def test_by_default_a_sync_returns_when_the_disk_has_it() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk, "fsync")
        made = frames(5)
        for frame in made:
            store.append(frame)
        assert store.durable == 1
        await store.sync()
        assert store.durable == made[-1].end
        await store.close()
        assert len(await asyncio.to_thread(kept, disk)) == 5

    asyncio.run(main())


def test_with_an_interval_the_kernel_has_it_at_once_and_the_disk_soon() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk, "interval", interval_ms=3_600_000)
        made = frames(5)
        for frame in made:
            store.append(frame)
            await store.sync()
        assert store.durable == 1
        assert await read_all(store) == made
        assert len(await asyncio.to_thread(recovered, disk.copy())) == 5
        assert await asyncio.to_thread(kept, disk) == []
        await store.close()

    asyncio.run(main())


def test_with_an_interval_the_disk_has_it_though_nothing_more_comes() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk, "interval", interval_ms=1)
        for frame in frames(2):
            store.append(frame)
            await store.sync()
        await eventually(lambda: store.durable == frame.end)
        assert len(await asyncio.to_thread(kept, disk)) == 2
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["fsync", "interval", "memory"])
def test_what_is_readable_is_in_the_files(durability: Durability) -> None:
    async def main() -> None:
        store = opened(FaultyDisk(), durability, interval_ms=10_000)
        assert store.readable == 1
        some = frames(20)
        for frame in some:
            store.append(in_truth(frame, store))
            await store.sync()
            readable = store.readable
            read = await read_all(store, 0, readable)
            assert (read[-1].end if read else 1) == readable
        await eventually(lambda: store.readable == some[-1].end)
        await store.close()

    asyncio.run(main())


def test_with_memory_a_sync_does_not_wait() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk, "memory")
        made = frames(60)
        for frame in made:
            store.append(frame)
            await store.sync()
        end = closing(made[-1])
        store.append(end)
        await store.sync()
        assert store.durable == end.end
        await store.close()
        assert CLOSED in disk.names_durable
        assert len(await asyncio.to_thread(kept, disk)) == 61

    asyncio.run(main())


def test_what_is_not_written_yet_can_be_read() -> None:
    async def main() -> None:
        store = opened(FaultyDisk(), "memory")
        made = frames(200)
        for frame in made:
            store.append(frame)
            await store.sync()
            assert await store.get([frame.first]) == [frame]
        await store.close()

    asyncio.run(main())


def test_what_is_not_written_yet_is_bounded() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        large = 40 << 20
        store = FileStore(FOLDER, segment_bytes=2 * large, disk=disk, durability="memory")
        for number in (1, 2, 3):
            store.append(Frame(1, number, number, 1, 1, 0, bytes(large)))
            await store.sync()
            assert store._behind_bytes <= BEHIND_BYTES_MAX
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_a_power_cut_leaves_a_beginning_and_is_not_taken_for_damage(
    durability: Durability,
) -> None:
    """What a frame says was durable was, so a lost tail is a tail."""
    random = Random(4)
    made = frames(80)

    async def main(stop_at: int) -> tuple[FaultyDisk, int]:
        disk = FaultyDisk()
        store = opened(disk, durability, interval_ms=1)
        for frame in made[:stop_at]:
            store.append(in_truth(frame, store))
            await store.sync()
            if random.random() < 0.1:
                await asyncio.sleep(0.002)  # slept: an interval ends
        await turn()
        durable = store.durable
        left = disk.after_power_cut(random)
        await store.close()
        return left, durable

    for stop_at in range(1, 80):
        left, durable = asyncio.run(main(stop_at))
        found = recovered(left)
        assert [f.number for f in found] == [f.number for f in made[: len(found)]]
        assert not found or found[-1].end >= durable


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_a_failure_behind_somebody_s_back_is_told_by_the_next_sync(durability: Durability) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = opened(disk, durability, interval_ms=1)
        made = frames(3)
        store.append(made[0])
        await store.sync()
        if durability == "interval":
            await eventually(lambda: store.durable == made[0].end)
        else:
            await eventually(lambda: store._behind_bytes == 0)
        disk._fail_at = disk.operations + (2 if durability == "interval" else 1)
        store.append(made[1])
        await store.sync()
        await eventually(lambda: store._lost is not None)
        store.append(made[2])
        operations = disk.operations
        store.begin_sync()  # begins nothing
        with pytest.raises(Lost):
            await store.sync()
        await store.close()
        assert disk.operations == operations

    asyncio.run(main())


def test_a_store_tells_that_a_segment_was_begun() -> None:
    async def main(durability: Durability) -> None:
        store = opened(FaultyDisk(), durability)
        made = frames(60)
        store.append(made[0])
        await store.sync()
        await asyncio.wait_for(store.rolled.wait(), 5)
        store.rolled.clear()
        for frame in made[1:]:
            store.append(frame)
        await store.sync()
        await asyncio.wait_for(store.rolled.wait(), 5)
        await store.close()

    for durability in ("fsync", "interval", "memory"):
        asyncio.run(main(durability))
