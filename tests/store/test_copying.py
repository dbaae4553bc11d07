"""Journals copied from any store into any other, and as lines of JSON."""

import asyncio
import io
from pathlib import Path

import msgspec
import pytest

from posthouse.store import Snapshot, Store
from posthouse.store import redis as redis_module
from posthouse.store.copying import NotEmpty, copy, export, import_lines
from posthouse.store.errors import Damaged
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryStore
from posthouse.store.opening import (
    Opening,
    StoreUrl,
    is_there,
    open_frames,
    open_store,
    open_verifiable,
    parse_url,
)
from posthouse.store.redis import CannotKeep
from tests.store.redis_server import RedisServer
from tests.store.test_conformance import closing, frames, read_all

LARGE = 9 << 20


def a_journal() -> MemoryStore:
    """A journal that was trimmed, stopped and begun again, with a snapshot."""
    made = frames(30, first=100, number=50)
    made.append(closing(made[-1]))
    made.append(Frame(2, made[-1].number + 1, made[-1].end, 1, made[-1].end, 5, bytes(LARGE)))
    made.append(closing(made[-1]))
    made.append(Frame(3, made[-1].number + 1, made[-1].end, 1, made[-1].end, 5, bytes(LARGE)))
    return MemoryStore(made)


async def with_snapshot(store: MemoryStore) -> MemoryStore:
    last = store.frames[9].without_payload()
    mark = msgspec.structs.replace(last, first=last.end, count=0, durable=last.end)
    await store.snapshots.save(Snapshot(mark, [b"one", b"two"]))
    return store


async def snapshots_of(store: Store) -> list[tuple[int, list[bytes]]]:
    found = []
    for end in store.snapshots.whole():
        snapshot = await store.snapshots.load(end)
        assert snapshot is not None
        found.append((snapshot.last.number, list(snapshot.parts)))
    return found


@pytest.fixture(params=["on this machine", "with redis"])
def urls(tmp_path: Path, request: pytest.FixtureRequest) -> list[StoreUrl]:
    words = [f"{kind}:{tmp_path / kind}" for kind in ("file", "sqlite", "jsonl")]
    if request.param == "with redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        words.append(f"{server.url}?journal={tmp_path.name}")
    return [parse_url(word) for word in words]


def test_a_copy_of_a_copy_is_the_same_whatever_the_stores_are(urls: list[StoreUrl]) -> None:
    async def main() -> None:
        source: Store = await with_snapshot(a_journal())
        expected = await read_all(source)
        told: list[tuple[int, int]] = []
        for url in urls:
            assert not is_there(url)
            target = open_store(url)
            copied = await copy(source, target, str(url), lambda *at: told.append(at))
            assert (copied.frames, copied.first, copied.snapshots) == (33 + 1, 100, 1)
            assert await read_all(target) == expected
            await target.close()
            await source.close()
            assert is_there(url)
            source = open_store(url, Opening(read_only=True))
            assert await read_all(source) == expected
            assert await snapshots_of(source) == [(59, [b"one", b"two"])]
            if source.segments is None:
                frames_of = open_frames(url)
                assert list(frames_of.all_frames(0, 1 << 60)) == expected
                frames_of.backend.close()  # type: ignore[attr-defined]
                verifiable = open_verifiable(url, Opening(read_only=True))
                assert await verifiable.verify(lambda _: None) == len(expected)
                await verifiable.close()
            again = open_store(url, Opening(read_only=True)) if source.segments is None else source
            with pytest.raises(NotEmpty, match="holds a journal already"):
                await copy(source, again, str(url), lambda *_: None)
            if again is not source:
                await again.close()
        await source.close()
        assert all(0 < done <= whole for done, whole in told)
        assert told

    asyncio.run(main())


def test_an_exported_journal_is_imported_as_it_was() -> None:
    async def main() -> None:
        source, file, target = await with_snapshot(a_journal()), io.BytesIO(), MemoryStore()
        told = await export(source, file, lambda *_: None)
        file.seek(0)
        assert await import_lines(file, "f", target, "there", lambda _: None) == told
        assert target.frames == source.frames
        assert await snapshots_of(target) == await snapshots_of(source)
        file.seek(0)
        with pytest.raises(NotEmpty):
            await import_lines(file, "f", target, "there", lambda _: None)
        empty = io.BytesIO()
        assert (await export(MemoryStore(), empty, lambda *_: None)).frames == 0

    asyncio.run(main())


def test_a_snapshot_that_is_gone_meanwhile_is_left_out() -> None:
    class Vanishing(MemoryStore):
        def __init__(self) -> None:
            super().__init__(frames(3))
            self.snapshots.whole = lambda: [7]  # type: ignore[method-assign]

    async def main() -> None:
        assert (await copy(Vanishing(), MemoryStore(), "t", lambda *_: None)).snapshots == 0
        assert (await export(Vanishing(), io.BytesIO(), lambda *_: None)).snapshots == 0

    asyncio.run(main())


@pytest.mark.parametrize(("line", "old", "new", "said"), [
    (0, b"journal", b"novel", "does not know"),
    (0, b"{", b"[", "not the first line"),
    (2, b'"count":2', b'"count":3', "line 3: this frame is not what"),
    (2, None, b"", "does not follow"),
    (4, b'"snapshot"', b'"snappy"', "ends too early"),
    (5, b'"part":0', b'"part":7', "line 6: this part"),
    (6, b'"content"', b'"conten"', "line 7: this is not a part"),
    (7, None, b"", "ends too early"),
    (7, b"7", b"8", "ends too early"),
])  # fmt: skip
def test_a_changed_line_is_named(line: int, old: bytes | None, new: bytes, said: str) -> None:
    async def main() -> None:
        source, file = MemoryStore(frames(3)), io.BytesIO()
        mark = Frame(1, 3, 7, 0, 7, 1, b"")
        await source.snapshots.save(Snapshot(mark, [b"one", b"two"]))
        await export(source, file, lambda *_: None)
        lines = file.getvalue().splitlines(keepends=True)
        assert old is None or old in lines[line]
        lines[line] = new if old is None else lines[line].replace(old, new, 1)
        changed = io.BytesIO(b"".join(lines))
        with pytest.raises(Damaged, match=said):
            await import_lines(changed, "file", MemoryStore(), "there", lambda _: None)

    asyncio.run(main())


def test_a_word_that_names_no_store_is_refused_without_repeating_it() -> None:
    for word in ("", "sqlite:", "sqlite", "mongodb:x", "redis://", "redis://u:geheim@h:x",
                 "redis://:geheim@", "redis:geheim", "file:a\0b", 5):  # fmt: skip
        with pytest.raises(ValueError, match="must") as refused:
            parse_url(word)
        assert "geheim" not in str(refused.value)


def test_the_text_of_a_store_has_no_secrets() -> None:
    url = parse_url("rediss://user:geheim@host:6380/2?journal=a&password=geheim")
    assert str(url) == "rediss://host:6380/2"
    assert "geheim" not in repr(url)
    assert "geheim" in url.full
    assert str(parse_url("sqlite:a.db")) == "sqlite:a.db"


def test_a_redis_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_module, "AWAY_SECONDS", 0.0)
    url = parse_url("redis://:geheim@127.0.0.1:1")
    for ask in (is_there, open_store):
        with pytest.raises((OSError, CannotKeep), match="cannot be reached") as refused:
            ask(url)
        assert "geheim" not in str(refused.value)


def test_a_store_that_does_not_open_leaves_nothing_open(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:{tmp_path / 'a.db'}")

    async def main() -> None:
        store = open_store(url)
        await store.snapshots.save(Snapshot(Frame(1, 3, 7, 0, 7, 1, b""), [b"one"]))
        await store.close()

    asyncio.run(main())
    for _ in range(2):
        with pytest.raises(Damaged, match="a snapshot holds"):
            open_store(url)
