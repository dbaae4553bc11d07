"""Zeros ahead of the journal's end: written while nobody waits, and never where frames are."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from posthouse.store.disk import Disk
from posthouse.store.errors import Lost
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.look import NEXT
from tests.store.test_conformance import read_all
from tests.store.test_durability import eventually

SEGMENT_BYTES = 32 << 10


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.store.file.PREZERO_BYTES", 1_000)
    monkeypatch.setattr("posthouse.store.file.PREZERO_SECONDS", 0.001)


class Watched(Disk):
    """Notes where it was prezeroed, and that nothing was there."""

    def __init__(self) -> None:
        super().__init__()
        self.prezeroed: dict[str, list[range]] = {}
        self.fails = False

    def prezero(self, path: Path, offset: int, length: int) -> None:
        if self.fails:
            raise OSError(5, "injected")
        place = path.read_bytes()[offset : offset + length]
        assert place == bytes(length)
        super().prezero(path, offset, length)
        self.prezeroed.setdefault(path.name, []).append(range(offset, offset + length))


def a_frame(number: int, size: int) -> Frame:
    return Frame(1, number, number, 1, 1, 1_000, bytes([number % 255 + 1]) * size)


async def write(store: FileStore, frame: Frame) -> None:
    store.append(frame)
    await store.sync()


def test_what_lies_ahead_is_prezeroed_as_far_as_was_written_once_nobody_writes(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = Watched()
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES, disk=disk)
        await write(store, a_frame(1, 5_000))
        segment = store._segments[-1]
        begin = segment.offset
        await eventually(lambda: bool(disk.prezeroed))
        await eventually(lambda: store._idle is None)
        places = [at for each in disk.prezeroed[segment.path.name] for at in each]
        assert places == list(range(begin, begin + segment.offset - 128))
        before = len(places)
        await write(store, a_frame(2, 100))  # which was prezeroed already
        await eventually(lambda: store._idle is None)
        places = [at for each in disk.prezeroed[segment.path.name] for at in each]
        assert before < len(places) < before + 500
        assert len(set(places)) == len(places)
        await store.close()

    asyncio.run(main())


def test_the_next_segment_is_prezeroed_too_and_need_not_be_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Watched()
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES, disk=disk)
        await write(store, a_frame(1, 20_000))
        await eventually(lambda: NEXT in disk.prezeroed)
        await eventually(lambda: store._idle is None)
        ahead = store._next_prezeroed_to
        assert ahead == sum(map(len, disk.prezeroed[NEXT])) > 1_000
        await write(store, a_frame(2, 20_000))  # it does not fit any more
        await eventually(lambda: store._idle is None)
        places = [at for each in disk.prezeroed[store._segments[-1].path.name] for at in each]
        assert places[0] == max(ahead, store._segments[-1].offset)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_written_when_it_is_all_there(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    async def main() -> list[Frame]:
        disk = Watched()
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES, disk=disk)
        made = [a_frame(n, random.choice((10, 900, 7_000, 40_000))) for n in range(1, 60)]
        for frame in made:
            await write(store, frame)
            await asyncio.sleep(random.choice((0, 0, 0.002, 0.006)))  # slept: the pace of the load
        await store.close()
        assert disk.prezeroed
        return made

    async def found() -> list[Frame]:
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES)
        found = await read_all(store)
        await store.close()
        return found

    made = asyncio.run(main())
    assert [each.payload for each in asyncio.run(found())] == [each.payload for each in made]


def test_a_disk_that_fails_at_it_is_not_written_to_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Watched()
        disk.fails = True
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES, disk=disk)
        await write(store, a_frame(1, 100))
        await eventually(lambda: store._lost is not None)
        with pytest.raises(Lost, match="injected"):
            await write(store, a_frame(2, 100))
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_nothing_is_prezeroed_where_nobody_waits_for_a_sync(
    tmp_path: Path, durability: str
) -> None:
    async def main() -> None:
        disk = Watched()
        store = FileStore(tmp_path, disk=disk, durability=durability)  # type: ignore[arg-type]
        await write(store, a_frame(1, 100))
        await asyncio.sleep(0.02)  # slept: within which a thread would begin
        assert not disk.prezeroed
        await store.close()

    asyncio.run(main())


def test_where_there_is_no_room_for_a_next_segment_it_ends_with_the_last(tmp_path: Path) -> None:
    class Full(Watched):
        def claim(self, path: Path, size: int) -> None:
            if path.name != NEXT:
                raise OSError(28, "no space left")
            super().claim(path, size)

    async def main() -> None:
        disk = Full()
        store = FileStore(tmp_path, segment_bytes=SEGMENT_BYTES, disk=disk)
        await write(store, a_frame(1, 30_000))
        await eventually(lambda: bool(disk.prezeroed) and store._idle is None)
        assert list(disk.prezeroed) == [store._segments[-1].path.name]
        await store.close()

    asyncio.run(main())
