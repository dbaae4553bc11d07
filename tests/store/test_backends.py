"""What stores in SQLite, lines of JSON and Redis make of damage, cuts and others who write."""

import asyncio
import contextlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from redis import ConnectionError

from posthouse.store import Snapshot
from posthouse.store import jsonl as jsonl_module
from posthouse.store import redis as redis_module
from posthouse.store.backend import Backend, BackendReading, BackendStore
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, Deposed, InUse, Lost, NotThere, TooNew
from posthouse.store.file import Durability
from posthouse.store.frames import Frame
from posthouse.store.jsonl import JsonlBackend
from posthouse.store.lines import decode_line, encode_line
from posthouse.store.redis import CannotKeep, RedisBackend
from posthouse.store.sqlite import NotOurs, SqliteBackend
from tests.store.faulty_disk import FaultyDisk, PowerCut
from tests.store.redis_server import RedisServer, a_server
from tests.store.test_conformance import append_all, closing, frames, read_all
from tests.store.test_recovery import batches
from tests.waiting import until_async

SEGMENT_BYTES = 4096
FOLDER = Path("journal")


def write(backend: Backend, some: list[Frame], **options: Any) -> None:
    """Writes frames, and closes the store."""

    async def main() -> None:
        store = BackendStore(backend, segment_bytes=SEGMENT_BYTES, **options)
        append_all(store, some)
        await store.sync()
        await store.close()

    asyncio.run(main())


def read(backend: Backend) -> list[Frame]:
    async def main() -> list[Frame]:
        store = BackendStore(backend, segment_bytes=SEGMENT_BYTES, read_only=True)
        try:
            await store.verify(lambda _: None)
            return await read_all(store)
        finally:
            await store.close()

    return asyncio.run(main())


def save(backend: Backend, last: Frame) -> None:
    asyncio.run(backend.snapshots.save(Snapshot(last.without_payload(), [b"state"])))
    backend.close()


def is_full(store: BackendStore) -> bool:
    return store.full


# SQLite.


def sqlite(path: Path, **options: Any) -> SqliteBackend:
    return SqliteBackend(path, segment_bytes=SEGMENT_BYTES, **options)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A journal of 60 frames."""
    write(sqlite(tmp_path / "journal.db"), frames(60))
    return tmp_path / "journal.db"


def change(path: Path, words: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(words)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("words", [
    "update frames set payload = x'00' where number = 30",
    "update frames set epoch = -1 where number = 30",
    "update frames set first = 5 where number = 30",
    "delete from frames where number = 30",
])  # fmt: skip
def test_a_changed_row_of_sqlite_is_damage_with_its_number(database: Path, words: str) -> None:
    change(database, words)
    with pytest.raises(Damaged, match=r"sqlite:.*journal\.db is damaged at frame 30: "):
        read(sqlite(database, read_only=True))


def test_frames_of_sqlite_without_their_extents_are_damage(database: Path) -> None:
    change(database, "delete from extents")
    with pytest.raises(Damaged, match="no extent begins"):
        sqlite(database)
    change(database, "insert into extents values (1000, 1, 1, 1)")
    with pytest.raises(Damaged, match="no extent begins"):
        sqlite(database)


def test_frames_that_do_not_follow_each_other_are_damage(database: Path) -> None:
    odd = sqlite(database)
    made = msgspec.structs.replace(frames(1, number=61)[0], first=900)
    odd.write([made])
    odd.close()
    with pytest.raises(Damaged, match="frame 61: behind frame 60 comes frame 61, which does"):
        read(sqlite(database, read_only=True))


def test_a_position_that_no_frame_holds_is_not_there(database: Path) -> None:
    odd = sqlite(database)
    odd.write([msgspec.structs.replace(frames(1, number=61)[0], first=900)])
    with pytest.raises(NotThere, match="position 500"):
        BackendReading(odd).holding(500)
    odd.close()


def test_a_first_row_that_is_missing_is_damage(database: Path) -> None:
    change(database, "delete from frames where number = 1")
    with pytest.raises(Damaged, match="frame 1: it is missing"):
        read(sqlite(database, read_only=True))


def test_a_damaged_page_of_sqlite_is_damage(database: Path) -> None:
    data = bytearray(database.read_bytes())
    data[4096 * 3 : 4096 * 6] = os.urandom(4096 * 3)
    database.write_bytes(data)
    with pytest.raises(Damaged, match="SQLite"):
        read(sqlite(database, read_only=True))


def test_a_check_of_sqlite_itself_is_told(database: Path) -> None:
    backend = sqlite(database, read_only=True)
    backend.check()

    class Complaining:
        def execute(self, _: str) -> Any:
            return self

        def fetchall(self) -> list[tuple[str]]:
            return [("row 3 missing",)]

    whole, backend._reading = backend._reading, Complaining()  # type: ignore[assignment]
    with pytest.raises(Damaged, match="row 3 missing"):
        backend.check()
    backend._reading = whole
    backend.close()


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    change(other, "create table t (a)")
    before = other.read_bytes()
    with pytest.raises(NotOurs):
        sqlite(other)
    assert other.read_bytes() == before
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(Damaged, match="not a database"):
        sqlite(tmp_path / "text")


def test_a_newer_format_of_sqlite_is_told(database: Path) -> None:
    change(database, "pragma user_version = 9")
    with pytest.raises(TooNew, match="format 9"):
        sqlite(database)


def test_a_second_process_is_kept_away_from_a_file_of_sqlite(database: Path) -> None:
    first = sqlite(database)
    with pytest.raises(InUse, match=r"journal\.db is in use"):
        sqlite(database)
    first.close()
    assert oct(database.stat().st_mode)[-3:] == "600"


def test_a_writer_that_the_lock_did_not_keep_away_deposes(database: Path, tmp_path: Path) -> None:
    class Lockless(Disk):
        def lock(self, path: Path) -> int:
            return os.open(tmp_path, os.O_RDONLY)

    older, newer = sqlite(database, disk=Lockless()), sqlite(database, disk=Lockless())
    first = frames(60)[-1].end
    newer.write(frames(1, first=first, number=61, epoch=2))
    with pytest.raises(Deposed, match="epoch 2"):
        older.write(frames(1, first=first, number=61))
    older.close()
    newer.close()


def test_what_sqlite_cannot_write_is_lost_and_stays_so(database: Path) -> None:
    async def main() -> None:
        backend = sqlite(database)
        store = BackendStore(backend, segment_bytes=SEGMENT_BYTES)
        backend._writing.execute("pragma query_only = on")
        store.append(frames(1, first=119, number=61)[0])
        for _ in range(2):
            with pytest.raises(Lost, match="SQLite"):
                await store.sync()
        await store.close()

    asyncio.run(main())


def test_trimming_gives_the_room_of_sqlite_back(tmp_path: Path) -> None:
    large = [msgspec.structs.replace(f, payload=bytes(20_000)) for f in frames(200)]

    async def main() -> None:
        store = BackendStore(sqlite(tmp_path / "journal.db"), segment_bytes=SEGMENT_BYTES)
        await store.sync()
        append_all(store, large)
        await store.sync()
        await store.trim(large[-2].end)
        await store.close()

    asyncio.run(main())
    assert (tmp_path / "journal.db").stat().st_size < 200_000
    assert read(sqlite(tmp_path / "journal.db", read_only=True)) == large[-1:]


# Lines of JSON.


def jsonl(folder: Path, **options: Any) -> JsonlBackend:
    return JsonlBackend(folder, segment_bytes=SEGMENT_BYTES, **options)


@pytest.mark.parametrize("payload", [
    b"", b"\xc1\x01compressed", b"\x93\x01\xc4\x02hi\xc4\x02\xff\xfe", b"\xcb\x7f\xf8" + bytes(6),
    b"\x81\x01\x02", b"\x81\xa2$a\x01", b"\x81\xa1a\xc0", b"\xc0", b"\xcb?\xf0" + bytes(6),
    b"\xd4\x01\x01", b"\xcd\x00\x01", bytes(2 << 20),
])  # fmt: skip
def test_any_payload_is_the_same_after_it_was_a_line(payload: bytes) -> None:
    frame = Frame(3, 7, 9, 2, 9, 1_790_000_000_000, payload)
    line = encode_line(frame)
    assert decode_line(line) == frame
    assert line.count(b"\n") == 1


def test_a_message_in_a_line_can_be_read() -> None:
    line = encode_line(Frame(1, 1, 1, 1, 1, 1, msgspec.msgpack.encode([["q", b"hello"]])))
    assert b'"records":[["q",{"$utf8":"hello"}]]' in line


def test_a_line_with_a_changed_byte_is_no_frame() -> None:
    line = encode_line(Frame(1, 1, 1, 1, 1, 1, msgspec.msgpack.encode([b"hello", b"\xff"])))
    random = Random(1)
    for at in range(len(line) - 1):
        data = bytearray(line)
        data[at] ^= random.randrange(1, 128)
        found = decode_line(bytes(data))
        assert found is None or found == decode_line(line), at
    bad = line.replace(b'{"$base64":"/w=="}', b'{"$base64":"%%%%"}')
    assert bad != line
    assert decode_line(bad) is None


def test_a_cut_anywhere_in_the_last_file_leaves_a_prefix(tmp_path: Path) -> None:
    made = [msgspec.structs.replace(f, durable=1) for f in frames(12)]
    write(jsonl(tmp_path / "a"), made)
    [path] = (tmp_path / "a").glob("*.jsonl")
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 23), len(whole) - 1]:
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / path.name).write_bytes(whole[:length])
        expected = made[: whole[:length].count(b"\n")]
        write(jsonl(folder), [])
        assert read(jsonl(folder, read_only=True)) == expected


def test_a_changed_line_that_was_durable_is_damage_with_its_place(tmp_path: Path) -> None:
    made = frames(120)
    write(jsonl(tmp_path), made)
    first, *_, last = sorted(tmp_path.glob("*.jsonl"))
    for path, what in ((first, "a file follows|was durable"), (last, "was durable")):
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b'"count":', b'"couNt":', 1).replace(b"1", b"1", 1))
        with pytest.raises(Damaged, match=rf"{path.name} is damaged at line \d+: .*({what})"):
            jsonl(tmp_path)
        path.write_bytes(whole)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(Damaged, match="line"):
        jsonl(tmp_path)


def test_damage_in_lines_that_a_start_does_not_look_at_is_found_when_they_are_read(
    tmp_path: Path,
) -> None:
    made = frames(200)
    write(jsonl(tmp_path), made)
    save(jsonl(tmp_path), made[-1])
    first, *_ = sorted(tmp_path.glob("*.jsonl"))
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([lines[0], lines[1].replace(b'"kind":0', b'"kind":1'), *lines[2:]]))
    jsonl(tmp_path).close()
    with pytest.raises(Damaged, match=f"{first.name} is damaged at line 2"):
        read(jsonl(tmp_path, read_only=True))
    reading = BackendReading(jsonl(tmp_path, read_only=True))
    first.write_bytes(b"".join([lines[0], b"x" * len(lines[1]), *lines[1:]]))
    with pytest.raises(Damaged, match=first.name):
        list(reading.all_frames(3, 5))
    first.write_bytes(b"not a frame\n")
    with pytest.raises(Damaged, match="frame of its name"):
        jsonl(tmp_path)


def test_after_a_clean_stop_lines_that_are_missing_are_damage(tmp_path: Path) -> None:
    made = frames(5)
    write(jsonl(tmp_path), [*made, closing(made[-1])])
    [path] = tmp_path.glob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(Damaged, match="was closed at"):
        jsonl(tmp_path)
    path.unlink()
    with pytest.raises(Damaged, match="was closed at"):
        jsonl(tmp_path)
    path.write_bytes(whole)
    jsonl(tmp_path).close()


@pytest.mark.parametrize("make", [jsonl, lambda folder, **o: sqlite(folder / "j.db", **o)])
def test_a_journal_that_ends_before_its_snapshot_is_damage(
    tmp_path: Path, make: Callable[..., Backend]
) -> None:
    made = frames(5)
    write(make(tmp_path), made)
    save(make(tmp_path), frames(9)[-1])
    with pytest.raises(Damaged, match="a snapshot holds all up to"):
        BackendStore(make(tmp_path))


def test_a_start_goes_on_behind_a_snapshot_at_the_end_of_a_file(tmp_path: Path) -> None:
    made = frames(200)
    write(jsonl(tmp_path), made)
    *_, last = sorted(tmp_path.glob("*.jsonl"))
    number = int(last.stem)
    save(jsonl(tmp_path), made[number - 2])
    write(jsonl(tmp_path), frames(3, first=made[-1].end, number=201))
    assert len(read(jsonl(tmp_path, read_only=True))) == 203


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_leaves_all_lines_that_were_synced(seed: int) -> None:
    random = Random(seed)
    for cut_at in range(1, 60, 3):
        disk, acknowledged = FaultyDisk(cut_at=cut_at), list[Frame]()

        async def main(disk: FaultyDisk, acknowledged: list[Frame]) -> None:
            store = BackendStore(JsonlBackend(FOLDER, segment_bytes=2048, disk=disk))
            for batch in batches(6):
                append_all(store, batch)
                await store.sync()
                acknowledged += batch

        with contextlib.suppress(PowerCut):
            asyncio.run(main(disk, acknowledged))
        after = disk.after_power_cut(random)
        backend = JsonlBackend(FOLDER, segment_bytes=2048, disk=after)
        found = list(BackendReading(backend, others_write=False).all_frames(0, 1 << 60))
        assert found[: len(acknowledged)] == acknowledged
        assert found == [frame for batch in batches(6) for frame in batch][: len(found)]
        backend.close()


def test_a_clean_stop_does_not_fail_for_the_mark_of_it() -> None:
    made = frames(2)
    disk = FaultyDisk(fail_at=8)
    write(JsonlBackend(FOLDER, disk=disk), [*made, closing(made[-1])])
    assert "closed" not in disk.names_now
    assert len(read(JsonlBackend(FOLDER, read_only=True, disk=disk))) == 3


def test_who_reads_beside_a_writer_sees_what_is_added_and_what_is_gone(tmp_path: Path) -> None:
    made = frames(400)
    for make in (jsonl, lambda folder, **o: sqlite(folder / "j.db", **o)):
        folder = tmp_path / make.__name__.strip("<>")
        folder.mkdir()
        write(make(folder), made[:200])
        reading = BackendReading(make(folder, read_only=True))
        assert list(reading.all_frames(0, 1 << 60)) == made[:200]
        chunks = reading.chunks(0, 1 << 60)
        next(chunks)
        write(make(folder), made[200:])
        assert list(reading.all_frames(300, 1 << 60))[-1] == made[-1]

        async def trim(backend: Backend) -> None:
            store = BackendStore(backend)
            await store.trim(made[-5].first)
            await store.close()

        asyncio.run(trim(make(folder)))
        with pytest.raises(NotThere):
            reading._from(1)
        with pytest.raises(NotThere):
            reading._first_of(1)
        assert list(reading.all_frames(0, 1 << 60))[-1] == made[-1]
        reading.backend.close()


def test_a_file_that_goes_while_the_folder_is_looked_at_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(jsonl(tmp_path), frames(200))
    backend = jsonl(tmp_path, read_only=True)
    first, *_ = sorted(tmp_path.glob("*.jsonl"))
    listed, gone = backend._files, list[Path]()

    def files() -> Any:
        found = listed()
        if not gone:
            gone.append(first)
            first.unlink()
        return found

    monkeypatch.setattr(backend, "_files", files)
    assert backend.find().marks[0].number > 1
    assert backend.frames(1, 1) == []
    assert backend.first_of(1) is None
    (tmp_path / "empty").mkdir()
    assert jsonl_module.is_there(tmp_path)
    assert not jsonl_module.is_there(tmp_path / "empty")
    backend.close()


def test_files_that_are_gone_hold_nothing(tmp_path: Path) -> None:
    write(jsonl(tmp_path), frames(200))
    backend = jsonl(tmp_path, read_only=True)
    first, *_ = sorted(tmp_path.glob("*.jsonl"))
    first.unlink()
    assert backend.first_of(1) is None
    assert backend.frames(1, 1) == []
    backend.close()


def test_a_last_line_that_is_no_frame_is_passed_over_by_who_reads(tmp_path: Path) -> None:
    made = frames(3)
    write(jsonl(tmp_path), made)
    [path] = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b"nothing\n")
    assert read(jsonl(tmp_path, read_only=True)) == made


def test_a_file_that_was_only_begun_is_not_seen_by_who_reads(tmp_path: Path) -> None:
    made = frames(3)
    write(jsonl(tmp_path), made)
    (tmp_path / f"{4:020}.jsonl").write_bytes(b'{"frame":4,"fi')
    assert read(jsonl(tmp_path, read_only=True)) == made
    write(jsonl(tmp_path), frames(1, first=made[-1].end, number=4))
    assert len(read(jsonl(tmp_path, read_only=True))) == 4


# Durability.


@pytest.mark.parametrize("durability", ["interval", "memory"])
@pytest.mark.parametrize("make", [jsonl, lambda folder, **o: sqlite(folder / "j.db", **o)])
def test_with_a_weaker_durability_the_disk_has_it_later(
    tmp_path: Path, make: Callable[..., Backend], durability: Durability
) -> None:
    async def main() -> None:
        more = {} if make is jsonl else {"durability": durability}
        store = BackendStore(make(tmp_path, **more), durability=durability, interval_ms=5)
        made = frames(10)
        append_all(store, made)
        await store.sync()
        assert store.readable == made[-1].end
        assert await read_all(store) == made
        if durability == "interval":
            await until_async(lambda: store.durable == made[-1].end, "it is synced by the clock")
        store.append(closing(made[-1]))
        await store.sync()
        assert store.durable == made[-1].end
        await store.close()

    asyncio.run(main())


def test_a_late_sync_that_fails_is_told_by_the_next() -> None:
    async def main() -> None:
        disk = FaultyDisk(fail_at=4)
        store = BackendStore(JsonlBackend(FOLDER, disk=disk), durability="interval", interval_ms=1)
        append_all(store, frames(2))
        await store.sync()
        await until_async(lambda: store._failed is not None, "the sync has failed")
        with pytest.raises(Lost, match="injected"):
            await store.sync()
        await store.close()

    asyncio.run(main())


def test_sends_are_refused_before_there_is_no_room() -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = BackendStore(JsonlBackend(FOLDER, disk=disk), segment_bytes=SEGMENT_BYTES)
        assert not is_full(store)
        disk.room = 2 * SEGMENT_BYTES - 1
        await store.sync()
        assert is_full(store)
        assert store.spare_bytes == disk.room
        disk.room = 2 * SEGMENT_BYTES
        await store.sync()
        assert not is_full(store)
        store.append(frames(1)[0])
        await store.sync()
        store._late = asyncio.get_running_loop().call_later(100, print)
        await store.close()

    asyncio.run(main())


def test_verifying_tells_how_far_it_is(tmp_path: Path) -> None:
    small = [Frame(1, n, n, 1, n, 1, b"x") for n in range(1, 2_101)]
    write(sqlite(tmp_path / "j.db"), small)
    told: list[int] = []

    async def main() -> None:
        store = BackendStore(sqlite(tmp_path / "j.db", read_only=True), read_only=True)
        assert await store.verify(told.append) == 2_100
        await store.close()

    asyncio.run(main())
    assert told == [1_000, 2_000]


# Redis.


def redis(server: RedisServer, journal: str, **options: Any) -> RedisBackend:
    return RedisBackend(
        f"{server.url}?journal={journal}", server.url, segment_bytes=SEGMENT_BYTES, **options
    )


@pytest.fixture
def journal() -> str:
    return secrets.token_hex(8)


def test_a_changed_entry_of_redis_is_damage_with_its_number(
    redis_server: RedisServer, journal: str
) -> None:
    write(redis(redis_server, journal), frames(3))
    backend = redis(redis_server, journal)
    backend._redis.xadd(backend._frames, {"f": b"nothing"}, id="4-0")
    with pytest.raises(Damaged, match=r"is damaged at frame 4: it is not what was written"):
        redis(redis_server, journal)
    backend._redis.xdel(backend._frames, "4-0")
    backend._redis.lpush(backend._extents, "what")
    with pytest.raises(Damaged, match="no extent"):
        redis(redis_server, journal)
    backend.close()


def test_an_empty_journal_in_redis_has_no_frames(redis_server: RedisServer, journal: str) -> None:
    backend = redis(redis_server, journal, read_only=True)
    assert backend.frames(1, 1) == []
    assert read(backend) == []


def test_a_script_that_is_sent_twice_is_done_once(redis_server: RedisServer, journal: str) -> None:
    """As where its answer was lost."""
    backend = redis(redis_server, journal)
    add, answers = backend._add, []

    def twice(**words: Any) -> Any:
        answers.append(add(**words))
        if len(answers) == 1:
            raise ConnectionError("the answer is lost")
        return answers[-1]

    backend._add = twice  # type: ignore[assignment]
    made = frames(3)
    backend.write(made)
    assert len(answers) == 2
    assert read(redis(redis_server, journal, read_only=True)) == made
    backend.close()


def test_a_redis_that_has_forgotten_frames_is_lost(redis_server: RedisServer, journal: str) -> None:
    async def main() -> None:
        backend = redis(redis_server, journal)
        store = BackendStore(backend, segment_bytes=SEGMENT_BYTES)
        append_all(store, frames(3))
        await store.sync()
        backend._redis.delete(backend._frames, backend._extents, backend._head)
        store.append(frames(1, first=7, number=4)[0])
        with pytest.raises(Lost, match="has lost frames: it ended with 3"):
            await store.sync()
        await store.close()

    asyncio.run(main())


def test_what_was_acknowledged_survives_kill_9_of_redis(tmp_path: Path, journal: str) -> None:
    """And the broker goes on by itself when it is back."""

    async def main(server: RedisServer) -> None:
        store = BackendStore(redis(server, journal), segment_bytes=SEGMENT_BYTES)
        made = frames(40)
        for at in range(0, 40, 10):
            append_all(store, made[at : at + 10])
            await store.sync()
            server.kill()
            server.start()
        assert await read_all(store) == made
        await store.close()

    with a_server(tmp_path) as server:
        asyncio.run(main(server))


def test_large_syncs_go_to_redis_in_parts(
    redis_server: RedisServer, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "WRITE_BYTES", 10_000)
    made = [msgspec.structs.replace(f, payload=bytes(3_000)) for f in frames(20)]
    write(redis(redis_server, journal), made)
    assert read(redis(redis_server, journal, read_only=True)) == made


def test_old_frames_go_from_redis_in_parts(
    redis_server: RedisServer, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "REMOVE_FRAMES", 20)

    async def main() -> None:
        backend = redis(redis_server, journal)
        store = BackendStore(backend, segment_bytes=SEGMENT_BYTES)
        await store.trim(5)  # there is nothing
        made = frames(200)
        append_all(store, made)
        await store.sync()
        await store.trim(made[-1].first)
        left = await read_all(store)
        assert left == made[-len(left) :]
        assert backend._redis.xlen(backend._frames) == len(left) < 100
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(("flags", "durability", "interval_ms", "said"), [
    (["--appendonly", "no"], "fsync", 100, "syncs nothing"),
    (["--appendfsync", "everysec"], "fsync", 100, "--interval-ms 2000"),
    (["--appendfsync", "everysec"], "interval", 100, "does not keep"),
    (["--appendfsync", "everysec"], "interval", 2_000, None),
    (["--appendonly", "no"], "interval", 9_000, "--durability memory"),
    (["--appendonly", "no"], "memory", 100, None),
    (["--maxmemory-policy", "allkeys-lru"], "memory", 100, "noeviction"),
    (["--rename-command", "CONFIG", ""], "fsync", 100, "Nobody knows"),
    (["--rename-command", "CONFIG", ""], "memory", 100, None),
])  # fmt: skip
def test_a_start_that_redis_cannot_keep_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flags: list[str], durability: Durability,
    interval_ms: int, said: str | None,
) -> None:  # fmt: skip
    with a_server(tmp_path, *flags) as server:
        options = {"durability": durability, "interval_ms": interval_ms}
        if said is None:
            redis(server, "j", **options).close()
            assert "what was acknowledged may be lost" in caplog.text
        else:
            with pytest.raises(CannotKeep, match=said):
                redis(server, "j", **options)


def test_the_room_of_redis_is_the_memory_that_it_may_use(tmp_path: Path) -> None:
    with a_server(tmp_path, "--maxmemory", "100mb") as server:
        backend = redis(server, "j")
        assert 0 < backend.free_bytes() < 100 << 20
        backend.close()


def test_no_password_of_redis_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_module, "AWAY_SECONDS", 0.1)
    with a_server(tmp_path, "--requirepass", "geheim") as server:
        at = f"127.0.0.1:{server.port}"
        RedisBackend(f"redis://:geheim@{at}", server.url).close()
        with pytest.raises(OSError, match=f"{at} cannot be reached") as refused:
            RedisBackend(f"redis://:wrong-word@{at}", server.url, read_only=True)
        assert "wrong-word" not in str(refused.value)
    with pytest.raises(OSError, match="cannot be reached") as away:
        RedisBackend(f"redis://:geheim@{at}", f"redis://{at}", read_only=True)
    assert "geheim" not in repr(away.value)
    for url in (f"redis://:geheim@{at}?journal=a%7Bb", f"redis://:geheim@{at}?socket_timeout=x"):
        with pytest.raises(OSError, match="Redis") as odd:
            RedisBackend(url, f"redis://{at}")
        assert "geheim" not in repr(odd.value)


@pytest.fixture(autouse=True)
def no_folder_is_left() -> Any:
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)
