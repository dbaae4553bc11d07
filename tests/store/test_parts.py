"""Snapshots made of parts, and what becomes of damage in them."""

import asyncio
import zlib

import pytest

from posthouse.store import Snapshot
from posthouse.store.errors import TooNew
from posthouse.store.frames import Frame
from posthouse.store.parts import PartSnapshots


class Shelf:
    """Parts in memory."""

    def __init__(self) -> None:
        self.heads: dict[int, bytes] = {}
        self.all: dict[tuple[int, int], bytes] = {}

    def headers(self) -> dict[int, bytes]:
        return dict(self.heads)

    def put_header(self, end: int, header: bytes) -> None:
        self.heads[end] = header

    def part(self, end: int, number: int) -> bytes | None:
        return self.all.get((end, number))

    def put_part(self, end: int, number: int, part: bytes) -> None:
        self.all[end, number] = part

    def remove(self, keep: set[int]) -> None:
        self.heads = {end: head for end, head in self.heads.items() if end in keep}
        self.all = {place: part for place, part in self.all.items() if place[0] in keep}


def saved(shelf: Shelf, *ends: int) -> PartSnapshots:
    keeper = PartSnapshots("there", shelf)
    for end in ends:
        parts = [b"one %d" % end, b"two"]
        asyncio.run(keeper.save(Snapshot(Frame(1, end, end, 0, end, 9, b""), parts)))
    return keeper


def loaded(keeper: PartSnapshots) -> int:
    snapshot = asyncio.run(keeper.load(1 << 63))
    if snapshot is None:
        return 0
    list(snapshot.parts)
    return snapshot.last.end


def test_a_damaged_snapshot_is_passed_over_and_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf = Shelf()
    keeper = saved(shelf, 10, 20)
    heads, parts = dict(shelf.heads), dict(shelf.all)

    def check() -> None:
        assert loaded(keeper) == 10
        assert keeper.whole() == [10]
        assert "there is damaged at the snapshot up to 20" in caplog.text
        caplog.clear()
        shelf.heads, shelf.all = dict(heads), dict(parts)
        assert loaded(keeper) == 20

    shelf.heads[20] = b"nothing"
    check()
    shelf.heads[20] = heads[10]
    check()
    del shelf.all[20, 1]
    check()
    shelf.all[20, 0] = shelf.all[10, 0]
    check()
    shelf.all[20, 0] = shelf.all[20, 0][:-1]
    check()
    del shelf.all[20, 0]
    saved(shelf, 30)
    assert sorted(shelf.heads) == [10, 20, 30]
    saved(shelf, 40)
    assert sorted(shelf.heads) == [30, 40]


def test_what_was_not_finished_goes_with_the_next() -> None:
    shelf = Shelf()
    shelf.all[5, 0] = b"unfinished"
    keeper = saved(shelf, 10)
    assert {end for end, _ in shelf.all} == {10}
    assert loaded(keeper) == 10


def test_a_newer_format_of_a_snapshot_is_told() -> None:
    shelf = Shelf()
    keeper = saved(shelf, 10)
    rest = (9).to_bytes(4, "big") + shelf.heads[10][8:]
    shelf.heads[10] = zlib.crc32(rest).to_bytes(4, "big") + rest
    with pytest.raises(TooNew, match="format 9"):
        loaded(keeper)
