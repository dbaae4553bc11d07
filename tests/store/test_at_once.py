"""Syncs in the event loop's own thread: of small frames, while the disk is quick."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path

import pytest

from posthouse.store.disk import Disk
from posthouse.store.errors import Lost
from posthouse.store.file import LONE_BYTES, LONE_POSITIONS, Durability, FileStore
from posthouse.store.frames import CLOSING, Frame
from tests.store.test_conformance import closing, read_all
from tests.waiting import turn

SEGMENT_BYTES = 256 << 10


class NotingDisk(Disk):
    """Notes which threads have written; can be slow and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def write_durably(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        self.threads.append(threading.current_thread().name)
        self.gate.wait()
        if self.fails:
            raise OSError(5, "injected")
        super().write_durably(file, offset, chunks)


@pytest.fixture(autouse=True)
def _quick_from_the_first_sync_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.store.file.QUICK_SYNCS", 1)
    monkeypatch.setattr("posthouse.store.file.QUICK_SECONDS", 60.0)


def a_frame(number: int, positions: int = 1, size: int = 100) -> Frame:
    return Frame(1, number, (number - 1) * positions + 1, positions, 1, 1_000, b"x" * size)


async def a_store(
    folder: Path, disk: NotingDisk, durability: Durability = "fsync", positions: int = 1
) -> FileStore:
    """With one frame, which the thread has written."""
    store = FileStore(folder, segment_bytes=SEGMENT_BYTES, disk=disk, durability=durability)
    store.append(a_frame(1, positions))
    assert not store.sync_at_once()  # there is no segment yet
    await store.sync()
    return store


def run(main: Coroutine[None, None, None]) -> None:
    asyncio.run(main)


def test_a_small_frame_is_durable_when_the_call_returns(tmp_path: Path) -> None:
    async def main() -> None:
        disk = NotingDisk()
        store = await a_store(tmp_path, disk)
        store.append(a_frame(2))
        assert store.sync_at_once()
        assert store.durable == store.readable == 3
        assert disk.threads[-1] == threading.current_thread().name
        assert [frame.number for frame in await read_all(store)] == [1, 2]
        await store.close()

    run(main())


@pytest.mark.parametrize(
    ("positions", "size"), [(LONE_POSITIONS + 1, 100), (1, LONE_BYTES + 1), (1, SEGMENT_BYTES)]
)
def test_a_large_frame_is_left_to_the_thread(tmp_path: Path, positions: int, size: int) -> None:
    async def main() -> None:
        store = await a_store(tmp_path, NotingDisk(), positions=positions)
        store.append(a_frame(2, positions, size))
        assert not store.sync_at_once()
        await store.sync()
        assert [frame.number for frame in await read_all(store)] == [1, 2]
        await store.close()

    run(main())


def test_several_frames_and_a_closing_one_are_left_to_the_thread(tmp_path: Path) -> None:
    async def main() -> None:
        store = await a_store(tmp_path, NotingDisk())
        store.append(a_frame(2))
        store.append(a_frame(3))
        assert not store.sync_at_once()
        await store.sync()
        store.append(closing(a_frame(3)))
        assert not store.sync_at_once()
        await store.sync()
        assert [frame.kind for frame in await read_all(store, 4)] in ([], [CLOSING])
        await store.close()

    run(main())


def test_it_waits_its_turn_behind_what_the_thread_does(tmp_path: Path) -> None:
    async def main() -> None:
        disk = NotingDisk()
        store = await a_store(tmp_path, disk)
        disk.gate.clear()
        store.append(a_frame(2))
        syncing = asyncio.create_task(_sync_by_thread(store))
        await turn()
        store.append(a_frame(3))
        assert not store.sync_at_once()
        disk.gate.set()
        await syncing
        await store.sync()
        assert [frame.number for frame in await read_all(store)] == [1, 2, 3]
        await store.close()

    run(main())


async def _sync_by_thread(store: FileStore) -> None:
    await store.sync()


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_only_a_store_that_syncs_each_commit_does(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        store = await a_store(tmp_path, NotingDisk(), durability)
        await asyncio.sleep(0.01)  # slept: the thread is done with the first frame by then
        store.append(a_frame(2))
        assert not store.sync_at_once()
        await store.sync()
        await store.close()

    run(main())


def test_a_slow_sync_leaves_the_next_ones_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store = await a_store(tmp_path, NotingDisk())
        monkeypatch.setattr("posthouse.store.file.QUICK_SECONDS", 0.0)
        store.append(a_frame(2))
        assert store.sync_at_once()
        store.append(a_frame(3))
        assert not store.sync_at_once()
        await store.sync()
        await store.close()

    run(main())


def test_a_failed_write_loses_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        disk = NotingDisk()
        store = await a_store(tmp_path, disk)
        disk.fails = True
        store.append(a_frame(2))
        with pytest.raises(Lost):
            store.sync_at_once()
        with pytest.raises(Lost):
            store.sync_at_once()
        with pytest.raises(Lost):
            await store.sync()
        await store.close()

    run(main())
