"""What a file store makes of a folder after anything that can happen to it."""

import asyncio
import contextlib
import errno
import zlib
from pathlib import Path
from random import Random

import msgspec
import pytest

from posthouse.store.errors import Damaged, Lost, TooNew
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame, encode
from posthouse.store.look import CLOSED, NEXT, RESERVE
from posthouse.store.segments import (
    SEGMENT_HEADER_BYTES,
    SUFFIX,
    Header,
    decode_header,
    encode_header,
    name,
)
from tests.store.faulty_disk import FaultyDisk, File, PowerCut
from tests.store.test_conformance import closing, frames, read_all

FOLDER = Path("journal")
SEGMENT_BYTES = 2048


def opened(disk: FaultyDisk) -> FileStore:
    return FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)


def batches(count: int, size: int = 4) -> list[list[Frame]]:
    """What is synced together. Each frame says what was durable when it was made."""
    made: list[list[Frame]] = []
    first = number = 1
    for batch in range(count):
        new = frames(size, first=first, number=number)
        made.append([msgspec.structs.replace(f, durable=first, time_ms=batch) for f in new])
        first, number = new[-1].end, new[-1].number + 1
    return made


async def write(disk: FaultyDisk, work: list[list[Frame]], acknowledged: list[Frame]) -> FileStore:
    """Writes batch by batch; what was synced is in `acknowledged`, whatever happens."""
    store = opened(disk)
    for batch in work:
        for frame in batch:
            store.append(frame)
        await store.sync()
        acknowledged += batch
    return store


def recovered(disk: FaultyDisk) -> list[Frame]:
    """Every frame that an opened store gives. Raises what opening raises."""

    async def main() -> list[Frame]:
        store = opened(disk)
        found = await read_all(store)
        await store.close()
        return found

    return asyncio.run(main())


def written(count: int, *, clean: bool = False) -> tuple[FaultyDisk, list[Frame]]:
    """A disk with a journal of `count` batches on it."""
    disk, made = FaultyDisk(), batches(count)
    if clean:
        made[-1].append(closing(made[-1][-1]))

    async def main() -> None:
        await (await write(disk, made, [])).close()

    asyncio.run(main())
    return disk, [frame for batch in made for frame in batch]


def segments(disk: FaultyDisk) -> list[str]:
    return [each for each in disk.names(FOLDER) if each.endswith(SUFFIX)]


def salt(disk: FaultyDisk) -> int:
    """Of the last segment."""
    path = FOLDER / segments(disk)[-1]
    return decode_header(path, disk.read(path, 0, SEGMENT_HEADER_BYTES)).salt


async def until_cut(disk: FaultyDisk, work: list[list[Frame]], done: list[Frame]) -> None:
    with contextlib.suppress(PowerCut):
        await write(disk, work, done)


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC])
def test_a_failed_operation_is_told_and_nothing_acknowledged_is_lost(failure: int) -> None:
    work = batches(30)
    every = [frame for batch in work for frame in batch]
    counting = FaultyDisk()
    asyncio.run(until_cut(counting, work, []))
    for fail_at in range(1, counting.operations + 1):
        disk = FaultyDisk(fail_at=fail_at, failure=failure)
        acknowledged: list[Frame] = []

        async def main(disk: FaultyDisk = disk, done: list[Frame] = acknowledged) -> None:
            try:
                store = await write(disk, work, done)
            except (Lost, OSError):
                return
            await store.close()

        asyncio.run(main())
        found = recovered(disk.copy())
        assert found == every[: len(found)]
        assert len(found) >= len(acknowledged)


def test_after_a_failed_sync_the_store_stays_lost() -> None:
    disk = FaultyDisk()

    async def main() -> None:
        store = opened(disk)
        first, second = batches(2, 1)
        disk._fail_at = disk.operations + 3
        store.append(first[0])
        with pytest.raises(Lost):
            await store.sync()
        store.append(second[0])
        with pytest.raises(Lost):
            await store.sync()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("at", [0, SEGMENT_HEADER_BYTES // 2])
def test_damage_to_either_copy_of_a_header_is_named(at: int) -> None:
    disk, _ = written(1)
    [only] = segments(disk)
    content = bytearray(disk.names_now[only].now())
    content[at] ^= 1
    disk.names_now[only] = File(bytes(content))
    with pytest.raises(Damaged, match="header"):
        recovered(disk)


def test_a_missing_segment_is_damage() -> None:
    disk, _ = written(30)
    first, second, *_ = segments(disk)
    del disk.names_now[second]
    with pytest.raises(Damaged) as damaged:
        recovered(disk)
    assert damaged.value.path.name == first


def test_a_missing_last_segment_is_damage_after_a_clean_stop() -> None:
    disk, _ = written(30, clean=True)
    del disk.names_now[segments(disk)[-1]]
    with pytest.raises(Damaged):
        recovered(disk)


def test_damage_to_a_closing_frame_is_named_though_it_has_no_positions() -> None:
    """Else all that was acknowledged behind it would look like a tail."""
    disk, every = written(1, clean=True)
    start = Frame(2, every[-1].number + 1, every[-1].end, 1, every[-1].end, 9, b"another start")

    async def again() -> None:
        store = opened(disk)
        store.append(start)
        await store.sync()
        await store.close()

    asyncio.run(again())
    assert recovered(disk.copy()) == [*every, start]
    name = segments(disk)[-1]
    content = bytearray(disk.names_now[name].now())
    at = len(bytes(content).rstrip(b"\0")) - start.size_bytes
    content[at - 5] ^= 1
    disk.names_now[name] = File(bytes(content))
    with pytest.raises(Damaged) as damaged:
        recovered(disk)
    assert damaged.value.offset == at - every[-1].size_bytes


def test_a_byte_changed_in_space_that_was_claimed_does_no_harm() -> None:
    disk, every = written(1)
    del disk.names_now[NEXT]
    disk.names_now[NEXT] = File(bytes(1_500) + b"x" + bytes(SEGMENT_BYTES - 1_501))
    more = batches(12)[1:]
    more[-1].append(closing(more[-1][-1]))

    async def again() -> None:
        store = opened(disk)
        for frame in [frame for batch in more for frame in batch]:
            store.append(frame)
            await store.sync()
        await store.close()

    asyncio.run(again())
    assert CLOSED in disk.names_now
    assert len(recovered(disk)) == len(every) + sum(map(len, more))


def test_a_file_that_was_cut_off_is_damaged_also_after_a_crash() -> None:
    disk, _ = written(3)
    name = segments(disk)[-1]
    content = disk.names_now[name].now()
    disk.names_now[name] = File(content[: len(content.rstrip(b"\0")) // 2])
    with pytest.raises(Damaged, match="the file ends here"):
        recovered(disk)


def test_a_clean_stop_without_room_for_its_mark_is_one_all_the_same() -> None:
    class Full(FaultyDisk):
        def create(self, path: Path) -> int:
            raise OSError(errno.ENOSPC, "no space left")

    disk = Full()
    made = batches(2)
    made[-1].append(closing(made[-1][-1]))

    async def main() -> None:
        await (await write(disk, made, [])).close()

    asyncio.run(main())
    assert CLOSED not in disk.names_now
    assert len(recovered(disk.copy())) == 9


@pytest.mark.parametrize("left_over", [False, True])
def test_a_frame_larger_than_a_segment_gets_one_of_its_own(left_over: bool) -> None:
    disk = FaultyDisk()
    small, large = batches(2, 1)
    big = msgspec.structs.replace(large[0], payload=b"x" * 3 * SEGMENT_BYTES)
    (more,) = frames(1, first=big.end, number=big.number + 1)
    if left_over:
        disk.names_now["large"] = File(b"left over")

    async def main() -> None:
        store = opened(disk)
        for frame in (small[0], big, more):
            store.append(frame)
            await store.sync()
        await store.close()

    asyncio.run(main())
    assert recovered(disk) == [small[0], big, more]
    assert len(segments(disk)) == 3


def test_a_tail_that_was_cut_is_told(caplog: pytest.LogCaptureFixture) -> None:
    disk, every = written(3)
    last = segments(disk)[-1]
    content = disk.names_now[last].now()
    (new,) = frames(1, first=every[-1].end, number=every[-1].number + 1)
    torn = encode(new, salt(disk))[:-3]
    end = len(content.rstrip(b"\0"))
    disk.names_now[last] = File((content[:end] + torn).ljust(len(content), b"\0"))
    store = opened(disk)
    assert store.cut_at == every[-1].end
    assert f"cut off at position {every[-1].end}" in caplog.text
    assert disk.names_now[last].now() == content
    asyncio.run(store.close())


def test_frames_of_a_lower_epoch_do_not_count() -> None:
    disk, every = written(2)
    last = segments(disk)[-1]
    content = disk.names_now[last].now()
    end = len(content.rstrip(b"\0"))
    stale = Frame(0, every[-1].number + 1, every[-1].end, 1, 1, 0, b"of one who was deposed")
    disk.names_now[last] = File(
        (content[:end] + encode(stale, salt(disk))).ljust(len(content), b"\0")
    )
    assert recovered(disk) == every


def test_what_a_sender_made_to_look_like_a_frame_is_not_taken_for_one() -> None:
    """In a torn tail it would vouch for what was never durable, and the start would be refused."""
    disk, every = written(2)
    last = segments(disk)[-1]
    content = disk.names_now[last].now()
    end = len(content.rstrip(b"\0"))
    forged = Frame(9, every[-1].number + 2, every[-1].end + 1, 1, 1 << 40, 0, b"forged")
    body = b"".join(encode(forged, guess) for guess in (0, 1, 0xFFFFFFFF))
    torn = Frame(1, every[-1].number + 1, every[-1].end, 1, 1, 0, body + b"rest")
    data = encode(torn, salt(disk))[:-2]
    disk.names_now[last] = File((content[:end] + data).ljust(len(content), b"\0"))
    assert recovered(disk) == every


def test_a_newer_format_is_refused() -> None:
    disk = FaultyDisk()
    header = bytearray(encode_header(Header(1, 1, 0, 0)))
    header[12:16] = (9).to_bytes(4, "big")
    header[8:12] = zlib.crc32(bytes(header[12:64])).to_bytes(4, "big")
    disk.names_now[name(1)] = File(bytes(header))
    with pytest.raises(TooNew, match="newer version"):
        recovered(disk)


def test_a_segment_must_be_what_its_name_says() -> None:
    disk, _ = written(1)
    disk.names_now[name(7)] = disk.names_now.pop(name(1))
    with pytest.raises(Damaged):
        recovered(disk)


def test_when_the_disk_is_full_the_reserve_is_left_and_space_that_returns_is_used() -> None:
    disk = FaultyDisk()
    disk.room = 3 * SEGMENT_BYTES
    work = [frame for batch in batches(100, 1) for frame in batch]
    assert asyncio.run(_fill(disk, work)) > 5
    assert recovered(disk)[-1].number > 5


async def _fill(disk: FaultyDisk, work: list[Frame]) -> int:
    store, todo = opened(disk), iter(work)
    done = 0

    async def one() -> None:
        nonlocal done
        store.append(next(todo))
        await store.sync()
        done += 1

    def is_full() -> bool:
        return store.full

    while not is_full():
        await one()
    assert RESERVE in disk.names_now
    while RESERVE in disk.names_now:  # what must go on does
        await one()
    assert is_full()
    disk.room = 10 * SEGMENT_BYTES
    await store.sync()
    assert not is_full()
    assert {NEXT, RESERVE} <= set(disk.names_now)
    await store.close()
    return done


def test_the_mark_of_a_clean_stop_is_taken_away_at_the_next_start() -> None:
    disk, _ = written(2, clean=True)
    assert CLOSED in disk.names_now
    recovered(disk)
    assert CLOSED not in disk.names_now


def test_a_power_cut_while_the_disk_is_full_loses_nothing_acknowledged() -> None:
    work = batches(60)
    for seed in range(20):
        disk, acknowledged = FaultyDisk(), list[Frame]()
        disk.room = 2 * SEGMENT_BYTES
        with pytest.raises(Lost):  # in the end the reserve is used up too
            asyncio.run(write(disk, work, acknowledged))
        assert len(acknowledged) > 8
        found = recovered(disk.after_power_cut(Random(seed)))
        assert found[: len(acknowledged)] == acknowledged
