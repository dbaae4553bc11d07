"""Reading a folder that another writes, and what a memory store keeps for readers."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, NotThere
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryStore
from posthouse.store.reading import Reading
from posthouse.store.segments import SEGMENT_HEADER_BYTES
from tests.store.test_conformance import frames


async def append(store: FileStore, some: list[Frame]) -> None:
    for frame in some:
        store.append(frame)
        await store.sync()


def test_all_that_is_durable_is_read_while_more_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        some = frames(300)
        await append(store, some[:150])
        reading = Reading(tmp_path)
        assert list(reading.all_frames(0, store.durable)) == some[:150]
        await append(store, some[150:])
        assert len(store.extents()) > 3
        assert list(reading.all_frames(0, store.durable)) == some
        for first in (1, 7, 100, 333, some[-1].first):
            there = [frame for frame in some if frame.end > first]
            assert list(reading.all_frames(first, store.durable)) == there
        end = some[200].first + 1
        assert list(reading.all_frames(some[140].first, end)) == some[140:201]
        assert list(reading.all_frames(some[140].first, some[150].first)) == some[140:150]
        assert list(reading.all_frames(7, 7)) == []
        await store.close()

    asyncio.run(main())


def test_a_frame_larger_than_what_is_read_at_a_time_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=64 << 10)
        large = Frame(1, 1, 1, 1, 1, 0, b"x" * (3 << 20))
        small = Frame(1, 2, 2, 1, 1, 0, b"y")
        await append(store, [large, small])
        assert list(Reading(tmp_path).all_frames(0, store.durable)) == [large, small]
        await store.close()

    asyncio.run(main())


def test_what_is_trimmed_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        some = frames(300)
        await append(store, some)
        reading = Reading(tmp_path)
        lines = reading.all_frames(0, store.durable)
        assert next(lines) == some[0]
        segments = reading.segments()
        await store.trim(segments[-1].first)
        with pytest.raises(NotThere):
            list(reading.frames(segments[1], 0, segments[2].first))
        left = list(reading.all_frames(0, store.durable))
        assert left[0].first == segments[-1].first
        await store.close()

    asyncio.run(main())


def test_a_segment_that_goes_between_being_listed_and_opened_is_passed_over(tmp_path: Path) -> None:
    class Going(Disk):
        def names(self, folder: Path) -> list[str]:
            return ["00000000000000000000.journal", *super().names(folder)]

    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        await append(store, frames(50))
        assert len(Reading(tmp_path, Going()).segments()) == len(store.extents())
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("offset", [0, 20, 57, 58, 70, 130])
def test_damage_is_named(tmp_path: Path, offset: int) -> None:
    async def write() -> int:
        store = FileStore(tmp_path, segment_bytes=64 << 10)
        await append(store, frames(20))
        await store.close()
        return store.durable

    durable = asyncio.run(write())
    path = next(tmp_path.glob("*.journal"))
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES + offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        list(Reading(tmp_path).all_frames(0, durable))


def test_frames_that_do_not_follow_are_damage(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=64 << 10)
        first, _, third = frames(3)
        await append(store, [first, msgspec.structs.replace(third, number=7)])
        with pytest.raises(Damaged):
            list(Reading(tmp_path).all_frames(0, 1 << 60))
        await store.close()

    asyncio.run(main())


def test_a_store_in_memory_keeps_as_much_as_it_is_told_to() -> None:
    async def main() -> None:
        store = MemoryStore(keep_bytes=10_000)
        some = frames(1_000)
        for frame in some:
            store.append(frame)
            await store.sync()
            assert sum(each.size_bytes for each in store.frames) < 10_500
        assert store.frames == some[-len(store.frames) :]
        assert len(store.frames) > 20
        assert store.readable == store.durable == some[-1].end

    asyncio.run(main())


def test_what_is_sealed_is_all_but_the_last(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileStore(tmp_path, segment_bytes=4096)
        await append(store, frames(200))
        assert [each.first for each in store.sealed()] == [
            each.first for each in store.extents()[:-1]
        ]
        await store.close()

    asyncio.run(main())
