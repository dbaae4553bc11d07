"""What every store has to do, tried on each of them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from posthouse.store import Store
from posthouse.store.errors import NotThere
from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.memory import MemoryStore

Opener = Callable[[Store | None], Store]


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the store, anew where one is given."""

    def memory(old: Store | None) -> Store:
        return MemoryStore(old.frames if isinstance(old, MemoryStore) else ())

    def file(old: Store | None) -> Store:
        return FileStore(tmp_path / "data", segment_bytes=4096)

    return memory if request.param == "memory" else file


def frames(count: int, *, first: int = 1, number: int = 1, epoch: int = 1) -> list[Frame]:
    """Frames of one to three positions, with payloads of different lengths."""
    made = []
    for at in range(count):
        span = at % 3 + 1
        payload = b"%d " % (number + at) * (at % 40 + 1)
        made.append(Frame(epoch, number + at, first, span, first, 1_000 + at, payload))
        first += span
    return made


def closing(last: Frame) -> Frame:
    return Frame(last.epoch, last.number + 1, last.end, 0, last.end, last.time_ms, b"", CLOSING)


async def read_all(store: Store, first: int = 0, end: int = 1 << 60) -> list[Frame]:
    return [frame async for frame in store.read(first, end)]


def run(main: Coroutine[None, None, None]) -> None:
    asyncio.run(main)


def test_a_new_store_is_empty(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        assert store.last is None
        assert await read_all(store) == []
        await store.close()

    run(main())


def test_a_store_says_what_it_holds_and_up_to_where_it_is_durable(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        assert store.durable == 1
        assert store.extents() == []
        made = frames(200)
        for frame in made:
            store.append(frame)
        assert store.durable == 1
        await store.sync()
        assert store.durable == made[-1].end
        extents = store.extents()
        assert len(extents) > 1
        assert extents[0].first == 1
        assert extents[-1].end == made[-1].end
        assert [each.first for each in extents[1:]] == [each.end for each in extents[:-1]]
        begun = {frame.first: frame.time_ms for frame in made}
        assert all(each.begun_ms == begun[each.first] for each in extents)
        assert sum(e.size_bytes for e in extents) >= sum(frame.size_bytes for frame in made)
        await store.close()

    run(main())


def test_what_was_synced_is_there_when_it_is_opened_again(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        made = frames(200)
        for at in range(0, 200, 10):
            for frame in made[at : at + 10]:
                store.append(frame)
            await store.sync()
        assert await read_all(store) == made
        await store.close()
        again = open_store(store)
        assert again.last == made[-1].without_payload()
        assert await read_all(again) == made
        await again.close()

    run(main())


def test_what_was_not_synced_is_not_read(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        store.append(frames(1)[0])
        assert await read_all(store) == []
        await store.close()

    run(main())


def test_a_range_of_positions_gives_the_frames_that_hold_them(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        made = frames(100)
        for frame in made:
            store.append(frame)
        await store.sync()
        for first, end in ((1, 2), (3, 60), (57, 58), (150, 1 << 60), (5_000, 6_000)):
            expected = [frame for frame in made if frame.end > first and frame.first < end]
            assert await read_all(store, first, end) == expected
        await store.close()

    run(main())


def test_positions_give_the_frames_that_hold_them(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        made = frames(300)
        for frame in made:
            store.append(frame)
        await store.sync()
        positions = [599, 1, 2, 3, 300, 2, 450]
        for position, frame in zip(positions, await store.get(positions), strict=True):
            assert frame.first <= position < frame.end
            assert frame in made
        for missing in (0, 601, 10_000):
            with pytest.raises(NotThere):
                await store.get([1, missing])
        await store.close()

    run(main())


def test_a_closed_journal_goes_on_at_the_next_start(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        old = frames(5)
        for frame in [*old, closing(old[-1])]:
            store.append(frame)
        await store.sync()
        await store.close()
        store = open_store(store)
        assert store.last == closing(old[-1])
        with pytest.raises(NotThere):
            await store.get([old[-1].end])
        new = frames(5, first=old[-1].end, number=7, epoch=2)
        for frame in new:
            store.append(frame)
        await store.sync()
        assert await store.get([old[-1].end]) == new[:1]
        assert await store.get([old[-1].end - 1]) == old[-1:]
        await store.close()
        store = open_store(store)
        assert store.last == new[-1].without_payload()
        await store.close()

    run(main())


def test_old_frames_may_go(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        made = frames(400)
        for frame in made:
            store.append(frame)
        await store.sync()
        await store.trim(500)
        left = await read_all(store)
        assert left == made[-len(left) :]
        assert len(left) < len(made)
        assert left[0].first <= 500
        with pytest.raises(NotThere):
            await store.get([1])
        await store.trim(1 << 60)
        assert (await read_all(store))[-1] == made[-1]
        await store.close()
        store = open_store(store)
        assert store.last == made[-1].without_payload()
        await store.close()

    run(main())


def test_there_is_room_at_first(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        assert not store.full
        await store.close()

    run(main())


def test_a_closing_frame_may_stand_anywhere(open_store: Opener) -> None:
    async def main() -> None:
        store: Store | None = None
        made: list[Frame] = []
        for epoch in range(1, 60):
            store = open_store(store)
            last = made[-1] if made else None
            first, number = (last.end, last.number + 1) if last else (1, 1)
            [new] = frames(1, first=first, number=number, epoch=epoch)
            new = msgspec.structs.replace(new, payload=bytes(1_500 if epoch % 3 else 3_900))
            made += [new, closing(new)]
            for frame in made[-2:]:
                store.append(frame)
                await store.sync()
            await store.close()
        store = open_store(store)
        assert await read_all(store) == made
        for frame in made[::2]:
            assert await store.get([frame.first]) == [frame]
        await store.close()

    run(main())


def test_a_frame_may_be_large(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        if isinstance(store, FileStore):
            await store.close()
            store = FileStore(store.folder / "large", segment_bytes=8 << 20)
        large = Frame(1, 1, 1, 1, 1, 1, bytes(3 << 20))
        store.append(large)
        await store.sync()
        assert await read_all(store) == [large]
        assert await store.get([1]) == [large]
        await store.close()

    run(main())


def test_closing_twice_is_closing_once(open_store: Opener) -> None:
    async def main() -> None:
        store = open_store(None)
        await store.close()
        await store.close()

    run(main())
