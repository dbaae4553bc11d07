"""Folders with the same frames have the same checksums, however their files are cut."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from posthouse.server import checksums as module
from posthouse.server.checksums import ChecksumsForm, checksums
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame


def frame(number: int, payload: bytes, durable: int = 0) -> Frame:
    return Frame(1, number, number, 1, durable, 7, payload)


async def a_store(folder: Path, frames: list[Frame], segment_bytes: int = 1 << 20) -> FileStore:
    store = FileStore(folder, segment_bytes=segment_bytes)
    for each in frames:
        store.append(each)
        await store.sync()
    return store


async def of(store: FileStore, first: int, end: int, *, each: bool = False) -> ChecksumsForm:
    return await checksums("a", store, first, end, each=each)


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def test_the_same_frames_in_other_segments_have_the_same_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_FRAMES", 16)
    frames = [frame(number, b"x" * number) for number in range(1, 60)]

    async def main() -> None:
        one = await a_store(tmp_path / "a", frames)
        two = await a_store(
            tmp_path / "b", [frame(f.number, f.payload, f.number) for f in frames], 8_192
        )
        found = await of(one, 5, 55)
        assert found.chunks == (await of(two, 5, 55)).chunks
        assert [(each.first_number, each.last_number) for each in found.chunks] == [
            (5, 16), (17, 32), (33, 48), (49, 54)
        ]  # fmt: skip
        single = await of(one, 5, 55, each=True)
        assert [each.last_number for each in single.chunks] == list(range(5, 55))
        assert (found.first, found.end) == (1, 60)
        for store in (one, two):
            await store.close()

    run(main)


def test_one_other_byte_is_another_checksum(tmp_path: Path) -> None:
    async def main() -> None:
        one = await a_store(tmp_path / "a", [frame(n, b"same") for n in (1, 2, 3)])
        two = await a_store(tmp_path / "b", [frame(n, b"samf" if n == 2 else b"same")
                                             for n in (1, 2, 3)])  # fmt: skip
        first, second = [(await of(store, 0, 9, each=True)).chunks for store in (one, two)]
        assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
        for store in (one, two):
            await store.close()

    run(main)


def test_an_answer_is_bounded_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 1_000)
    monkeypatch.setattr(module, "CHUNK_FRAMES", 4)

    async def main() -> None:
        store = await a_store(tmp_path / "a", [frame(n, b"x" * 300) for n in range(1, 20)])
        at, numbers = 1, []
        while chunks := (await of(store, at, 20)).chunks:
            assert len(chunks) <= 2
            numbers += [each.last_number for each in chunks]
            at = chunks[-1].end
        assert numbers == [4, 8, 12, 16, 19]
        await store.close()

    run(main)
