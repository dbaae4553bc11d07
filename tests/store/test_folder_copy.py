"""Copies of a folder: of a journal that is being written, interrupted at any step, or spoilt."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from posthouse.store import Snapshot, folder_copy
from posthouse.store.copying import NotEmpty
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, HalfArrived, StoreError
from posthouse.store.file import FileStore
from posthouse.store.folder_copy import (
    ARRIVING,
    MANIFEST,
    Backup,
    FolderFile,
    Hold,
    Interrupted,
    Listing,
    check_listing,
    check_unused,
    copy_files,
    drop_holds,
    finish_arrival,
    hold_files,
    read_manifest,
    replace_journal,
    write_manifest,
)
from posthouse.store.frames import Frame
from posthouse.store.look import look
from posthouse.store.place_note import NOTE

WORD = "0123456789abcdef"
SEGMENT_BYTES = 4096


def a_frame(number: int, epoch: int = 1) -> Frame:
    return Frame(epoch, number, number, 1, number, 0, b"%d " % number * 200)


def ignore(_: int, __: int) -> None: ...


async def written(folder: Path, first: int, last: int, *, epoch: int = 1) -> FileStore:
    store = FileStore(folder, segment_bytes=SEGMENT_BYTES)
    for number in range(first, last + 1):
        store.append(a_frame(number, epoch))
        await store.sync()
    return store


def a_journal(folder: Path, last: int = 30, *, epoch: int = 1) -> None:
    async def main() -> None:
        store = await written(folder, 1, last, epoch=epoch)
        await store.snapshots.save(Snapshot(a_frame(5, epoch), [b"a", b"b"]))
        await store.close()

    asyncio.run(main())


def numbers(folder: Path) -> int:
    last = look(Disk(), folder).last
    assert last is not None
    return last.number


def test_a_hold_keeps_what_is_trimmed_and_leaves_out_what_comes_later(tmp_path: Path) -> None:
    async def main() -> None:
        source, copy = tmp_path / "a", tmp_path / "b"
        store = await written(source, 1, 30)
        await store.snapshots.save(Snapshot(a_frame(5), [b"a"]))
        hold = hold_files(Disk(), source, WORD)
        assert (hold.listing.number, hold.listing.end) == (30, 31)
        await store.trim(20)
        await store.snapshots.save(Snapshot(a_frame(25), [b"b"]))
        await store.snapshots.save(Snapshot(a_frame(26), [b"c"]))
        for number in range(31, 40):
            store.append(a_frame(number))
            await store.sync()
        copied = copy_files(hold, hold.listing, copy, ignore)
        assert [hold.checked(file) for file in hold.listing.files] == copied
        assert numbers(copy) == 30
        again = FileStore(copy, segment_bytes=SEGMENT_BYTES)
        again.append(a_frame(31))  # into the space that the last segment was made with
        await again.sync()
        assert [frame.number async for frame in again.read(0, 99)] == [*range(1, 32)]
        assert again.snapshots.positions() == [6]
        await again.close()
        hold.release()
        assert not list(source.glob("held-*"))
        await store.close()

    asyncio.run(main())


def test_an_empty_folder_is_an_empty_list(tmp_path: Path) -> None:
    hold = hold_files(Disk(), tmp_path, WORD)
    assert hold.listing == Listing(0, 1, [])
    drop_holds(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_snapshot_is_not_handed_out(tmp_path: Path) -> None:
    a_journal(tmp_path)
    [snapshot] = tmp_path.glob("*.snapshot")
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    names = [file.name for file in hold_files(Disk(), tmp_path, WORD).listing.files]
    assert names
    assert snapshot.name not in names


@pytest.mark.parametrize("name", [
    "../00000000000000000001.journal", "/etc/passwd", "lock", "00000000000000000001.journal/x",
    "00000000000000000001.arrow", "..", "", "x" * 64, "00000000000000000001.journal\0",
])  # fmt: skip
def test_names_are_never_taken_for_paths(tmp_path: Path, name: str) -> None:
    listing = Listing(1, 2, [FolderFile(name, 1, 1)])
    with pytest.raises(StoreError, match="not that of a journal"):
        copy_files(Hold(tmp_path, listing), listing, tmp_path / "b", ignore)
    assert not (tmp_path / "b").exists()


def test_a_list_is_bounded() -> None:
    file = FolderFile("00000000000000000001.journal", 1, 1)
    with pytest.raises(StoreError):
        check_listing(Listing(1, 2, [file, file]))
    for spoilt in (b'{"name":"x","size":-1}', b'{"name":"%s","size":1}' % (b"1" * 65)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(spoilt, type=FolderFile)


class Counting:
    """A source that counts what is asked of it, and may send something else."""

    def __init__(self, hold: Hold, spoil: bytes | None = None) -> None:
        self._hold, self._spoil = hold, spoil
        self.asked: list[str] = []

    def read(self, file: FolderFile) -> Iterator[bytes]:
        self.asked.append(file.name)
        pieces = self._hold.read(file)
        if self._spoil is not None:
            yield self._spoil
            next(pieces)
        yield from pieces


def checked(hold: Hold) -> Listing:
    listing = hold.listing
    files = [hold.checked(file) for file in listing.files]
    return Listing(listing.number, listing.end, files)


def test_a_copy_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    listing, source = checked(hold), Counting(hold)
    seen = 0

    def is_over() -> bool:
        nonlocal seen
        seen += 1
        return seen > 4

    with pytest.raises(Interrupted):
        copy_files(source, listing, tmp_path / "b", ignore, is_over=is_over)
    before, source.asked = source.asked, []
    assert 1 < len(before) < len(listing.files)
    copy_files(source, listing, tmp_path / "b", ignore)
    assert set(source.asked) | set(before) == {file.name for file in listing.files}
    assert len(set(source.asked) & set(before)) <= 1
    assert numbers(tmp_path / "b") == 30
    # What is in the folder that is replaced is not asked for, either.
    source.asked = []
    copy_files(source, listing, tmp_path / "c", ignore, known=tmp_path / "b")
    assert len(source.asked) <= 1  # the last one, which is still written
    assert numbers(tmp_path / "c") == 30


@pytest.mark.parametrize("spoil", [b"", b"x", bytes(10_000)])
def test_what_does_not_arrive_as_it_was_sent_is_not_taken(tmp_path: Path, spoil: bytes) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    listing = checked(hold)
    with pytest.raises(StoreError, match="did not arrive as it was sent"):
        copy_files(Counting(hold, spoil), listing, tmp_path / "b", ignore)
    assert not [path for path in (tmp_path / "b").iterdir() if path.suffix != ".part"]


def test_a_copy_that_lacks_a_segment_is_not_taken(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    listing = checked(hold)
    for at in range(1, len(listing.files)):
        fewer = Listing(listing.number, listing.end, listing.files[:at] + listing.files[at + 1 :])
        with pytest.raises(StoreError):
            copy_files(hold, fewer, tmp_path / f"b{at}", ignore)


def test_a_copy_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    monkeypatch.setattr(Disk, "free", lambda *_: 1_000)
    with pytest.raises(OSError, match="has 1000 bytes free, and the copy needs"):
        copy_files(hold, hold.listing, tmp_path / "b", ignore)


class Crashing(Disk):
    """A disk whose machine stops at an operation."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def _operate(self) -> None:
        if self.left == 0:
            raise ConnectionAbortedError("the machine has stopped")
        self.left -= 1

    def rename(self, old: Path, new: Path) -> None:
        self._operate()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._operate()
        super().remove(path)

    def create(self, path: Path) -> int:
        self._operate()
        return super().create(path)

    def sync_folder(self, folder: Path) -> None:
        self._operate()
        super().sync_folder(folder)


def test_a_crash_at_any_step_leaves_the_old_journal_or_the_new_one(tmp_path: Path) -> None:
    a_journal(tmp_path / "old", 10)
    (tmp_path / "old" / NOTE).write_bytes(b"of the old one")
    a_journal(tmp_path / "new", 30, epoch=2)
    hold = hold_files(Disk(), tmp_path / "new", WORD)
    copy_files(hold, hold.listing, tmp_path / "old" / ARRIVING, ignore)
    is_over, steps, outcomes = False, 0, set()
    while not is_over:
        folder = tmp_path / f"at {steps}"
        shutil.copytree(tmp_path / "old", folder)
        try:
            replace_journal(Crashing(steps), folder)
            is_over = True
        except ConnectionAbortedError:
            with suppress(ConnectionAbortedError):  # it may stop once more
                finish_arrival(Crashing(min(steps, 2)), folder)
        if not (folder / "arrived").exists():
            finish_arrival(Disk(), folder)
        else:
            with pytest.raises(HalfArrived):
                look(Disk(), folder)
            with pytest.raises(HalfArrived):
                hold_files(Disk(), folder, WORD)
            finish_arrival(Disk(), folder)
        outcomes.add(numbers(folder))
        if numbers(folder) == 30:
            assert not (folder / NOTE).exists()
            assert not [path for path in folder.iterdir() if path.name.startswith("arriv")]
        steps += 1
    assert steps > 10
    assert outcomes == {10, 30}


def test_a_backup_is_whole_when_its_manifest_is_there(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    target = tmp_path / "b"
    copied = copy_files(hold, hold.listing, target, ignore)
    with pytest.raises(StoreError, match="was not completed"):
        read_manifest(target)
    write_manifest(target, hold.listing, copied, [])
    manifest = read_manifest(target)
    assert manifest.listing.number == 30
    copy_files(Backup(target, manifest), manifest.listing, tmp_path / "c", ignore)
    assert numbers(tmp_path / "c") == 30
    for content in (b"", b"{}", b'{"posthouse":"x","version":1,"listing":{"number":1,"end":1,'
                    b'"files":[]},"keys":[]}'):  # fmt: skip
        (target / MANIFEST).write_bytes(content)
        with pytest.raises(StoreError):
            read_manifest(target)


def test_one_changed_byte_of_a_backup_is_found(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    target = tmp_path / "b"
    write_manifest(target, hold.listing, copy_files(hold, hold.listing, target, ignore), [])
    manifest = read_manifest(target)
    changed = sorted(target.glob("*.journal"))[1]
    data = bytearray(changed.read_bytes())
    data[600] ^= 1
    changed.write_bytes(data)
    with pytest.raises(StoreError, match="did not arrive"):
        copy_files(Backup(target, manifest), manifest.listing, tmp_path / "c", ignore)


def test_a_folder_that_is_used_is_not_restored_into(tmp_path: Path) -> None:
    check_unused(Disk(), tmp_path / "none")
    check_unused(Disk(), tmp_path)
    a_journal(tmp_path / "a")
    with pytest.raises(NotEmpty):
        check_unused(Disk(), tmp_path / "a")


def test_a_file_that_became_shorter_is_damaged(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    first = next(file for file in hold.listing.files if file.name.endswith(".journal"))
    (hold.folder / first.name).write_bytes(b"")
    with pytest.raises(Damaged, match="the file ends here"):
        copy_files(hold, hold.listing, tmp_path / "b", ignore)


def test_a_list_that_cannot_be_made_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_journal(tmp_path / "a")

    def fail(*_: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(folder_copy, "_listing", fail)
    with pytest.raises(OSError, match="no disk"):
        hold_files(Disk(), tmp_path / "a", WORD)
    assert not [path for path in (tmp_path / "a").iterdir() if path.is_dir()]


def test_a_copy_that_is_over_behind_its_last_file_is_interrupted(tmp_path: Path) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    listing, source = checked(hold), Counting(hold)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stray").write_text("of nobody")
    copy_files(source, listing, tmp_path / "b", ignore)
    assert not (tmp_path / "b" / "stray").exists()
    with pytest.raises(Interrupted):
        copy_files(source, listing, tmp_path / "b", ignore, is_over=lambda: True)
    hold.release()
    hold_files(Disk(), tmp_path / "a", WORD)
    folder_copy.drop_holds(tmp_path / "a")
    assert numbers(tmp_path / "a") == 30


def test_a_segment_that_claims_more_than_segments_have_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_journal(tmp_path / "a")
    hold = hold_files(Disk(), tmp_path / "a", WORD)
    monkeypatch.setattr(folder_copy, "SEGMENT_BYTES_MAX", 0)
    with pytest.raises(Damaged, match="it says that it has"):
        copy_files(Counting(hold), checked(hold), tmp_path / "b", ignore)


def test_a_file_that_is_too_short_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    assert folder_copy._checksum(tmp_path / "short", 4) is None
