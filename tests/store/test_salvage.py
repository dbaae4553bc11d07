"""What can still be read of files that are damaged."""

from pathlib import Path

import pytest

from posthouse.store.disk import Disk
from posthouse.store.errors import Unfinished, Unknown
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame, encode
from posthouse.store.look import (
    CLOSED,
    REPAIRED,
    Hole,
    closed_at,
    holds_journal,
    is_part,
    look,
    salvage,
    segment_paths,
)
from posthouse.store.segments import decode_header
from tests.store.test_snapshots import a_folder, flip


def found(folder: Path) -> tuple[list[Frame], list[Hole]]:
    items = list(salvage(Disk(), folder))
    return (
        [item for item in items if isinstance(item, Frame)],
        [item for item in items if isinstance(item, Hole)],
    )


def test_of_a_sound_journal_everything_is_found(tmp_path: Path) -> None:
    assert found(tmp_path) == ([], [])
    made = a_folder(tmp_path)
    assert found(tmp_path) == (made, [])


def test_frames_behind_damage_are_found_and_the_hole_is_named(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    second = segment_paths(Disk(), tmp_path)[1]
    flip(second, 1_000)
    frames, (hole,) = found(tmp_path)
    assert len(frames) == len(made) - 1
    assert hole.path == second
    assert hole.offset < 1_000
    assert "bytes are not frames" in hole.what


def test_either_header_will_do(tmp_path: Path) -> None:
    made = a_folder(tmp_path)
    first, second, third, *_ = segment_paths(Disk(), tmp_path)
    flip(first, 3)
    flip(second, 64 + 3)
    frames, holes = found(tmp_path)
    assert (frames, holes) == (made, [])
    flip(third, 3)
    flip(third, 64 + 3)
    frames, (hole,) = found(tmp_path)
    assert len(frames) < len(made)
    assert (hole.path, hole.offset) == (third, 0)


def test_a_torn_end_and_old_frames_are_not_taken(tmp_path: Path) -> None:
    made = a_folder(tmp_path, 20)
    path = segment_paths(Disk(), tmp_path)[-1]
    data = path.read_bytes()
    salt = decode_header(path, data[:128]).salt
    end = len(data.rstrip(b"\0"))
    again = encode(made[3], salt)
    deposed = encode(Frame(0, 21, made[-1].end, 1, 1, 0, b"of one who was deposed"), salt)
    path.write_bytes((data[:end] + again + deposed + b"torn").ljust(len(data), b"\0"))
    frames, (hole,) = found(tmp_path)
    assert frames == made
    assert hole == Hole(path, end, f"{len(again + deposed) + 4} bytes at the end are not frames")


def test_a_clean_stop_says_where_the_end_was(tmp_path: Path) -> None:
    assert closed_at(Disk(), tmp_path) is None
    (tmp_path / CLOSED).write_text("57 12\n")
    assert closed_at(Disk(), tmp_path) == 57
    (tmp_path / CLOSED).write_bytes(b"\0\0")
    assert closed_at(Disk(), tmp_path) is None


def test_words_that_this_version_does_not_know_are_told_apart_from_damage() -> None:
    error = Unknown("The frame at position 7", "kind 99")
    assert str(error).startswith("The frame at position 7 holds something that this version")


def test_a_folder_is_ours_or_not(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    assert not holds_journal(Disk(), tmp_path)
    a_folder(tmp_path)
    assert holds_journal(Disk(), tmp_path)
    assert is_part("next")
    assert is_part(f"{7:020}.snapshot")
    assert not is_part("letter.txt")


def test_with_a_repair_half_done_nothing_opens(tmp_path: Path) -> None:
    a_folder(tmp_path)
    (tmp_path / REPAIRED).write_text("{}")
    with pytest.raises(Unfinished, match="posthouse store repair"):
        look(Disk(), tmp_path)
    with pytest.raises(Unfinished):
        FileStore(tmp_path)


def test_a_folder_that_is_only_read_stays_as_it_is(tmp_path: Path) -> None:
    a_folder(tmp_path)
    (tmp_path / "next").unlink()
    path = segment_paths(Disk(), tmp_path)[-1]
    data = path.read_bytes()
    path.write_bytes((data.rstrip(b"\0") + b"torn").ljust(len(data), b"\0"))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    store = FileStore(tmp_path, read_only=True)
    assert store.last is not None
    store._disk.close(store._lock)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
