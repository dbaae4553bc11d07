"""What every store has to do, tried on each of them."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from posthouse.store import Store
from posthouse.store.backend import Backend, BackendStore
from posthouse.store.disk import Disk
from posthouse.store.errors import Deposed, InUse, NotThere
from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.jsonl import JsonlBackend
from posthouse.store.memory import MemoryJournal, MemoryStore
from posthouse.store.redis import RedisBackend
from posthouse.store.sqlite import SqliteBackend
from tests.store.clustered_store import ClusteredStore, NatsServers
from tests.store.faulty_disk import FaultyDisk
from tests.store.redis_server import RedisServer
from tests.store.twins import SlowDisk, SlowStore
from tests.waiting import turn

SEGMENT_BYTES = 4096
KINDS = (
    "memory", "slow memory", "file", "file on a faulty disk", "slow file", "sqlite", "jsonl",
    "jsonl on a faulty disk", "redis", "one_nats_server", "three_nats_servers",
)  # fmt: skip


class Kind(NamedTuple):
    """How a kind of store is opened: with segments of a size, where it has some."""

    open: Callable[[int], Store]  # anew, or beside one that is open, as another process does

    def __call__(self, old: Store | None = None, segment_bytes: int = SEGMENT_BYTES) -> Store:
        return self.open(segment_bytes)


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """Opens the store, anew where one is given."""
    journal, faulty = MemoryJournal(), FaultyDisk()
    disks: dict[str, Callable[[], Disk]] = {
        "file": Disk, "file on a faulty disk": FaultyDisk, "slow file": SlowDisk,
    }  # fmt: skip
    if request.param in disks:
        disk = disks[request.param]()
        return Kind(lambda size: FileStore(tmp_path / "data", segment_bytes=size, disk=disk))
    backends: dict[str, Callable[[int], Backend]] = {
        "sqlite": lambda size: SqliteBackend(tmp_path / "data.db", segment_bytes=size),
        "jsonl": lambda size: JsonlBackend(tmp_path / "data", segment_bytes=size),
        "jsonl on a faulty disk": lambda size: JsonlBackend(
            tmp_path / "data", segment_bytes=size, disk=faulty
        ),
    }
    if request.param in ("one_nats_server", "three_nats_servers"):
        if "closing_frame" in request.node.name or "closed_journal" in request.node.name:
            pytest.skip("a clean stop of a node is a hand-over: it writes no closing frame")
        servers: NatsServers = request.getfixturevalue(request.param)
        stream, told = f"T{secrets.token_hex(8)}", dict[int, int]()
        return Kind(lambda size: ClusteredStore(servers, stream, tmp_path / "data", size, told))
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        url = f"{server.url}?journal={secrets.token_hex(8)}"
        backends["redis"] = lambda size: RedisBackend(url, server.url, segment_bytes=size)
    if request.param in backends:
        make = backends[request.param]
        return Kind(lambda size: BackendStore(make(size), segment_bytes=size))
    if request.param == "slow memory":
        return Kind(lambda _: SlowStore(journal=journal))
    return Kind(lambda _: MemoryStore(journal=journal))


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


def test_a_store_may_sync_in_the_turn_it_is_asked(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None)
        written = frames(5)
        for frame in written:
            store.append(frame)
            if not store.sync_at_once():
                await store.sync()
            assert store.readable == frame.end
        assert store.is_fresh
        assert await read_all(store) == written
        await store.close()

    run(main())


def test_a_sync_waits_for_what_was_begun_and_for_what_was_appended_behind_it(
    open_store: Kind,
) -> None:
    async def main() -> None:
        store = open_store(None)
        first, second, third = frames(3)
        store.append(first)
        store.begin_sync()
        await store.sync()
        assert store.readable == first.end
        store.append(second)
        store.begin_sync()
        store.append(third)
        await store.sync()
        assert store.readable == third.end
        assert await read_all(store) == [first, second, third]
        await store.close()

    run(main())


def test_a_new_store_is_empty(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None)
        assert store.last is None
        assert await read_all(store) == []
        await store.close()

    run(main())


def test_a_store_says_what_it_holds_and_up_to_where_it_is_durable(open_store: Kind) -> None:
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


def test_what_was_synced_is_there_when_it_is_opened_again(open_store: Kind) -> None:
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


def test_what_was_not_synced_is_not_read(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None)
        store.append(frames(1)[0])
        assert await read_all(store) == []
        await store.close()

    run(main())


def test_a_range_of_positions_gives_the_frames_that_hold_them(open_store: Kind) -> None:
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


def test_positions_give_the_frames_that_hold_them(open_store: Kind) -> None:
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


def test_a_closed_journal_goes_on_at_the_next_start(open_store: Kind) -> None:
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


def test_old_frames_may_go(open_store: Kind) -> None:
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


def test_a_store_offers_its_segments_where_it_has_a_folder(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store()
        append_all(store, frames(200))
        await store.sync()
        assert store.readable == store.durable
        assert store.snapshots.positions() == []
        if store.segments is not None:
            sealed = [(each.first, each.end) for each in store.segments.sealed()]
            assert sealed == [(each.first, each.end) for each in store.extents()[:-1]]
            assert store.segments.folder.name == "data"
            assert store.segments.segment_bytes == SEGMENT_BYTES
            assert store.segments.rolled.is_set()
            assert not store.segments.filled.is_set()
        await store.close()

    run(main())


def test_there_is_room_at_first(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None)
        assert not store.full
        await store.close()

    run(main())


def test_a_closing_frame_may_stand_anywhere(open_store: Kind) -> None:
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


def test_a_frame_may_be_large(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None, 8 << 20)
        large = Frame(1, 1, 1, 1, 1, 1, bytes(3 << 20))
        store.append(large)
        await store.sync()
        assert await read_all(store) == [large]
        assert await store.get([1]) == [large]
        await store.close()

    run(main())


def test_closing_twice_is_closing_once(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store(None)
        await store.close()
        await store.close()

    run(main())


def append_all(store: Store, some: Sequence[Frame]) -> None:
    for frame in some:
        store.append(frame)


def runs_of(made: Sequence[Frame], length: int) -> list[Sequence[Frame]]:
    return [made[at : at + length] for at in range(0, len(made), length)]


def test_a_sync_makes_durable_what_was_appended_before_it_also_beside_another(
    open_store: Kind,
) -> None:
    """Whichever returns first: behind it stands all that was there when it was begun."""

    async def main() -> None:
        store = open_store()
        made = frames(200)

        async def synced(end: int) -> None:
            await store.sync()
            assert store.durable >= end

        under_way: list[asyncio.Task[None]] = []
        for some in runs_of(made, 5):
            append_all(store, some)
            under_way.append(asyncio.create_task(synced(some[-1].end)))
            await turn()
            if len(under_way) == 2:
                await asyncio.gather(*under_way)
                assert store.durable == some[-1].end
                under_way = []
        assert await read_all(store) == made
        await store.close()

    run(main())


def test_the_slow_twin_returns_from_syncs_out_of_turn() -> None:
    async def main() -> None:
        store, order = SlowStore(), list[int]()

        async def synced(number: int) -> None:
            await store.sync()
            order.append(number)

        under_way = []
        for number, frame in enumerate(frames(2)):
            store.append(frame)
            under_way.append(asyncio.create_task(synced(number)))
            await turn()
        await asyncio.gather(*under_way)
        assert order == [1, 0]

    run(main())


def test_what_is_read_while_more_is_written_has_no_gap_and_is_durable(open_store: Kind) -> None:
    async def main() -> None:
        store = open_store()
        made = frames(600)
        reads = 0

        async def write() -> None:
            for some in runs_of(made, 7):
                append_all(store, some)
                await store.sync()
                await turn()

        writing = asyncio.create_task(write())
        while not writing.done():
            durable = store.durable
            found = []
            async for frame in store.read(0, 1 << 60):
                assert frame.end <= store.durable, "it was read before it was durable"
                found.append(frame)
            assert found == made[: len(found)]
            assert (found[-1].end if found else 1) >= durable
            reads += 1
            await turn()
        await writing
        assert reads > 1
        assert await read_all(store) == made
        await store.close()

    run(main())


def test_positions_are_found_while_more_is_written(open_store: Kind) -> None:
    async def main() -> None:
        store, random = open_store(), Random(1)
        made = frames(600)
        by_position = {at: frame for frame in made for at in range(frame.first, frame.end)}

        async def write() -> None:
            for some in runs_of(made, 7):
                append_all(store, some)
                await store.sync()
                await turn()

        writing = asyncio.create_task(write())
        while not writing.done():
            if store.durable > 1:
                wanted = [random.randrange(1, store.durable) for _ in range(5)]
                wanted.append(store.durable - 1)
                assert await store.get(wanted) == [by_position[each] for each in wanted]
            await turn()
        await writing
        await store.close()

    run(main())


def test_a_reader_is_told_where_what_it_reads_is_trimmed(open_store: Kind) -> None:
    """It gets all of it, or what comes first and then NotThere: never a gap."""

    async def main() -> None:
        store = open_store()
        made = frames(600)
        append_all(store, made)
        await store.sync()
        for before in (200, 500, 900, 1_150):
            left = await read_all(store)
            found: list[Frame] = []
            trimmed = False
            try:
                async for frame in store.read(0, 1 << 60):
                    found.append(frame)
                    if len(found) == 3:
                        await store.trim(before)
            except NotThere:
                trimmed = True
            assert found == left[: len(found)]
            assert trimmed or found == left
        await store.close()

    run(main())


def test_a_writer_that_another_has_deposed_writes_nothing_more(open_store: Kind) -> None:
    """Or there cannot be a second one: a folder is refused while a process has it."""

    async def main() -> None:
        older = open_store()
        made = frames(10)
        append_all(older, made)
        await older.sync()
        try:
            newer = open_store()
        except InUse:
            await older.close()
            return
        first, number = made[-1].end, made[-1].number + 1
        void = frames(3, first=first, number=number)
        taken = frames(2, first=first, number=number, epoch=2)
        older.append(void[0])
        append_all(newer, taken[:1])
        await newer.sync()
        with pytest.raises(Deposed, match="epoch 2"):
            await older.sync()
        append_all(older, void[1:])
        with pytest.raises(Deposed):
            await older.sync()
        append_all(newer, taken[1:])
        await newer.sync()
        assert await read_all(older) == await read_all(newer) == made + taken
        assert older.durable == newer.durable == taken[-1].end
        await older.close()
        await newer.close()

    run(main())


def test_of_two_writers_with_the_same_epoch_the_first_one_wins(open_store: Kind) -> None:
    async def main() -> None:
        one = open_store()
        try:
            other = open_store()
        except InUse:
            await one.close()
            return
        mine, others = frames(4), frames(4)
        append_all(one, mine[:1])
        append_all(other, others[:1])
        await one.sync()
        with pytest.raises(Deposed):
            await other.sync()
        # It would fit, if what came before it had not been void.
        append_all(other, others[1:2])
        with pytest.raises(Deposed):
            await other.sync()
        append_all(one, mine[1:])
        await one.sync()
        assert await read_all(other) == mine
        await one.close()
        await other.close()

    run(main())


def test_a_deposed_writer_is_told_even_where_it_has_nothing_to_write(open_store: Kind) -> None:
    async def main() -> None:
        older = open_store()
        append_all(older, frames(1))
        await older.sync()
        try:
            newer = open_store()
        except InUse:
            await older.close()
            return
        await newer.sync()  # who only reads takes nothing over
        await older.sync()
        append_all(newer, frames(1, first=2, number=2, epoch=2))
        await newer.sync()
        with pytest.raises(Deposed):
            await older.sync()
        await older.close()
        await newer.close()

    run(main())
