"""Copying the files of a journal's folder, while a broker writes it: for newcomers and backups.

A **hold** is a folder `held-<word>` with links to the segments and the newest snapshot. What is in
it stays as long as it does, whatever is trimmed or folded meanwhile. Only the last segment is still
written; it is copied up to the frames that were there when the hold was made.

A copy is made file by file, each under another name until it is whole, synced and compared with its
checksum. What was copied by an attempt that was interrupted is not copied again. A node's folder is
replaced in steps, so that a crash at any moment leaves the old one or the new one:

    arriving         files come here
    arrived          all are here, and were checked; from now on it is finished at each start
    arrived/cleared  the old journal is gone, and what is here is moved to its place
    arrived-done     nothing is left to do but to remove this
"""

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import msgspec

from posthouse.store.copying import NotEmpty
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, HalfArrived, StoreError
from posthouse.store.look import ARRIVED, frames_of, is_part, look, segment_paths
from posthouse.store.place_note import NOTE
from posthouse.store.segments import NAME as SEGMENT_NAME
from posthouse.store.segments import SEGMENT_HEADER_BYTES, Segment, decode_header
from posthouse.store.snapshots import NAME as SNAPSHOT_NAME
from posthouse.store.snapshots import FileSnapshots

HELD = re.compile(r"held-[0-9a-f]{16}")
ARRIVING, CLEARED, DONE = "arriving", "cleared", "arrived-done"
MANIFEST = "backup.json"
FILES_MAX = 100_000
PIECE_BYTES = 1 << 20
SEGMENT_BYTES_MAX = 4 << 30  # that the last segment may claim to have
MANIFEST_BYTES_MAX = 64 << 20
_PART = ".part"

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Progress = Callable[[int, int], None]  # bytes done, of so many


class Interrupted(StoreError):
    """A copy was ended before it was whole. What was copied is used by the next attempt."""


class FolderFile(msgspec.Struct, frozen=True):
    """A file of a journal: its name, and as many of its bytes as do not change any more."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    size: Count
    checksum: Count | None = None  # CRC-32, where it is known before it was read

    @property
    def is_sound(self) -> bool:
        """Whether it is the name of such a file, and leads nowhere else."""
        return bool(SEGMENT_NAME.fullmatch(self.name) or SNAPSHOT_NAME.fullmatch(self.name))


class Listing(msgspec.Struct, frozen=True):
    """The files of a journal, and the last frame that is in them."""

    number: Count
    end: Count  # the position behind it
    files: list[FolderFile]


class ListHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a list that is handed out, of which each file is a line."""

    posthouse: str = "folder"
    version: int = 1
    hold: str
    number: int  # of the last frame in the files
    end: int  # the position behind it
    size: int  # of all files


class ListEnd(msgspec.Struct, frozen=True):
    """The last line of a list."""

    files: int


class Source(Protocol):
    """A source of files to copy. Its methods block."""

    def read(self, file: FolderFile) -> Iterator[bytes]:
        """The bytes of a file, in pieces. Raises OSError or StoreError."""


# Holds.


class Hold(NamedTuple):
    """Files that stay while they are copied."""

    folder: Path
    listing: Listing

    def read(self, file: FolderFile) -> Iterator[bytes]:
        with (self.folder / file.name).open("rb") as opened:
            left = file.size
            while left:
                piece = opened.read(min(PIECE_BYTES, left))
                if not piece:
                    raise Damaged(self.folder / file.name, file.size - left, "the file ends here")
                left -= len(piece)
                yield piece

    def checked(self, file: FolderFile) -> FolderFile:
        """The same with its checksum, for which all of it is read."""
        checksum = 0
        for piece in self.read(file):
            checksum = zlib.crc32(piece, checksum)
        return FolderFile(file.name, file.size, checksum)

    def release(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def hold_files(disk: Disk, folder: Path, word: str) -> Hold:
    """Makes a hold of a folder that a broker may be writing. Raises StoreError or OSError.

    `word`: 16 hexadecimal digits. Trimming goes on meanwhile, so what is gone is left out; it takes
    from the front alone.
    """
    if ARRIVED in disk.names(folder):
        raise HalfArrived(folder)
    held = folder / f"held-{word}"
    disk.make_folder(held)
    try:
        whole = FileSnapshots(folder, disk).whole()
        names = [f"{end:020}.snapshot" for end in whole[:1]]
        names += [path.name for path in segment_paths(disk, folder)]
        for name in names:
            with suppress(FileNotFoundError):  # trimmed, or folded once more
                os.link(folder / name, held / name, follow_symlinks=False)
        return Hold(held, _listing(disk, held))
    except BaseException:
        shutil.rmtree(held, ignore_errors=True)
        raise


def _listing(disk: Disk, folder: Path) -> Listing:
    """The files of a hold. Raises StoreError."""
    snapshots = FileSnapshots(folder, disk)
    newest = snapshots.newest()
    number, end = (0, 1) if newest is None else (newest.number, newest.end)
    files = [FolderFile(path.name, disk.size(path)) for path in snapshots.paths()]
    paths = segment_paths(disk, folder)
    files += [FolderFile(path.name, disk.size(path)) for path in paths[:-1]]
    if paths:
        size, last_number, last_end = _good_part(disk, paths[-1])
        files.append(FolderFile(paths[-1].name, size))
        number, end = max(number, last_number), max(end, last_end)
    return Listing(number, end, files)


def _good_part(disk: Disk, path: Path) -> tuple[int, int, int]:
    """The length of the frames in the last segment, and the number and end of the last one."""
    data = disk.read(path, 0, disk.size(path))
    segment = Segment(path, decode_header(path, data[:SEGMENT_HEADER_BYTES]), len(data))
    number = segment.head.number - 1
    for frame in frames_of(segment, data):
        number = frame.number
    return segment.offset, number, segment.end


def drop_holds(folder: Path) -> None:
    """Removes the holds that a process has left, which was killed."""
    for path in folder.iterdir():
        if HELD.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


# Copies.


def copy_files(
    source: Source,
    listing: Listing,
    target: Path,
    progress: Progress,
    *,
    known: Path | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[FolderFile]:
    """Copies all files into a folder, and checks that they are a journal; returns them.

    `known`: a folder of which files are taken that are the same. Raises StoreError, OSError, or
    Interrupted when it `is_over`.
    """
    disk = Disk()
    check_listing(listing)
    disk.make_folder(target)
    whole = sum(file.size for file in listing.files)
    done, copied = 0, []
    for file in listing.files:
        found = _same(target, file) or _linked(known, target, file)
        if found is None:
            _check_room(disk, target, whole - done)
            (target / file.name).unlink(missing_ok=True)
            found = _copy(source, file, target, partial(_add, progress, done, whole), is_over)
        copied.append(found)
        done += file.size
        progress(done, whole)
        if is_over():
            raise Interrupted("the copy was interrupted")
    _remove_others(disk, target, {file.name for file in copied})
    disk.sync_folder(target)
    check_copy(disk, target, listing)
    return copied


def _add(progress: Progress, before: int, whole: int, more: int) -> None:
    progress(before + more, whole)


def check_listing(listing: Listing) -> None:
    """Raises StoreError: names are never taken for paths, and there are only so many."""
    names = [file.name for file in listing.files]
    unsound = [file.name for file in listing.files if not file.is_sound]
    if unsound or len(names) > FILES_MAX or len(set(names)) < len(names):
        raise StoreError(f"a list of files is not that of a journal: {unsound[:1]!a}")


def check_copy(disk: Disk, folder: Path, listing: Listing) -> None:
    """Reads every frame and snapshot of a copy. Raises StoreError."""
    found = look(disk, folder)
    FileSnapshots(folder, disk).verify()
    newest = FileSnapshots(folder, disk).newest()
    snapshot = 0 if newest is None else newest.number
    if found.segments and found.segments[0].head.number > snapshot + 1:
        first = found.segments[0].head.number
        raise Damaged(folder, 0, f"frames {snapshot + 1} to {first - 1} are missing", unit="")
    number = max(snapshot, 0 if found.last is None else found.last.number)
    if number < listing.number:
        what = f"it ends at frame {number}, and should at {listing.number}"
        raise Damaged(folder, 0, what, unit="")


def _check_room(disk: Disk, target: Path, needed: int) -> None:
    free = disk.free(target)
    if free < needed:
        raise OSError(f"the disk of {target} has {free} bytes free, and the copy needs {needed}")


def _same(folder: Path, file: FolderFile) -> FolderFile | None:
    """The file, where an attempt before has copied it already."""
    path = folder / file.name
    if file.checksum is None or not path.is_file():
        return None
    return file if _checksum(path, file.size) == file.checksum else None


def _linked(known: Path | None, target: Path, file: FolderFile) -> FolderFile | None:
    """The file, where the folder that is replaced has the same; only of one that is complete."""
    if known is None or file.checksum is None:
        return None
    path = known / file.name
    is_same = path.is_file() and path.stat().st_size == file.size
    if not is_same or _checksum(path, file.size) != file.checksum:
        return None
    (target / file.name).unlink(missing_ok=True)
    os.link(path, target / file.name, follow_symlinks=False)
    return file


def _checksum(path: Path, size: int) -> int | None:
    """The checksum of so many bytes from the beginning; None where there are fewer."""
    checksum = 0
    with path.open("rb") as opened:
        while size:
            piece = opened.read(min(PIECE_BYTES, size))
            if not piece:
                return None
            checksum = zlib.crc32(piece, checksum)
            size -= len(piece)
    return checksum


def _copy(
    source: Source,
    file: FolderFile,
    target: Path,
    progress: Callable[[int], None],
    is_over: Callable[[], bool],
) -> FolderFile:
    unfinished, size, checksum = target / (file.name + _PART), 0, 0
    number = os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    with os.fdopen(number, "w+b") as opened:
        for piece in source.read(file):
            size += len(piece)
            if size > file.size:
                break
            opened.write(piece)
            checksum = zlib.crc32(piece, checksum)
            progress(size)
            if is_over():
                raise Interrupted("the copy was interrupted")
        if size != file.size or file.checksum not in (None, checksum):
            raise StoreError(f"{file.name} did not arrive as it was sent; it is asked for again")
        opened.flush()
        if SEGMENT_NAME.fullmatch(file.name):
            _claim_rest(number, target / file.name, size)
        os.fsync(number)
    unfinished.rename(target / file.name)
    return FolderFile(file.name, size, checksum)


def _claim_rest(opened: int, path: Path, size: int) -> None:
    """Gives the last segment the space that it was made with. Raises Damaged or OSError."""
    head = decode_header(path, os.pread(opened, SEGMENT_HEADER_BYTES, 0))
    if head.size > max(size, SEGMENT_BYTES_MAX):
        raise Damaged(path, 0, f"it says that it has {head.size} bytes")
    if head.size > size:
        os.posix_fallocate(opened, 0, head.size)


def _remove_others(disk: Disk, folder: Path, names: set[str]) -> None:
    for name in disk.names(folder):
        if name not in names:
            disk.remove(folder / name)


# Putting a copy in the place of a folder.


def replace_journal(disk: Disk, folder: Path) -> None:
    """Puts what has come to `arriving` in the place of the folder's journal. Raises OSError."""
    disk.rename(folder / ARRIVING, folder / ARRIVED)
    disk.sync_folder(folder)
    finish_arrival(disk, folder)


def finish_arrival(disk: Disk, folder: Path) -> bool:
    """Goes on where a crash has left `replace_journal`; whether it has. Raises OSError."""
    arrived = folder / ARRIVED
    is_left = ARRIVED in disk.names(folder)
    if is_left:
        if CLEARED not in disk.names(arrived):
            for name in disk.names(folder):
                if is_part(name) or name == NOTE:
                    disk.remove(folder / name)
            disk.sync_folder(folder)
            disk.close(disk.create(arrived / CLEARED))
            disk.sync_folder(arrived)
        for name in disk.names(arrived):
            if name != CLEARED:
                disk.rename(arrived / name, folder / name)
        disk.sync_folder(folder)
        disk.rename(arrived, folder / DONE)
        disk.sync_folder(folder)
    if DONE in disk.names(folder):
        shutil.rmtree(folder / DONE, ignore_errors=True)
    return is_left


# Backups.


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a backup. It is written last: without it a backup is not whole."""

    posthouse: str
    version: int
    listing: Listing
    keys: list[FolderFile]


class Backup(NamedTuple):
    """A backup, as a source of files."""

    folder: Path
    manifest: Manifest

    def read(self, file: FolderFile) -> Iterator[bytes]:
        return Hold(self.folder, self.manifest.listing).read(file)


def write_manifest(
    folder: Path, listing: Listing, files: Sequence[FolderFile], keys: Sequence[FolderFile]
) -> None:
    """Raises OSError."""
    listing = Listing(listing.number, listing.end, list(files))
    content = msgspec.json.format(msgspec.json.encode(Manifest("backup", 1, listing, list(keys))))
    unfinished = folder / (MANIFEST + _PART)
    with unfinished.open("wb") as opened:
        opened.write(content + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.rename(folder / MANIFEST)
    Disk().sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Raises StoreError or OSError."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as opened:
            manifest = msgspec.json.decode(opened.read(MANIFEST_BYTES_MAX), type=Manifest)
    except FileNotFoundError:
        raise StoreError(
            f"{folder} is no backup, or was not completed: it has no {MANIFEST}"
        ) from None
    except msgspec.MsgspecError as error:
        raise Damaged(str(path), 0, str(error), unit="") from None
    if (manifest.posthouse, manifest.version) != ("backup", 1):
        raise StoreError(f"{path} is of a version that this one does not know")
    check_listing(manifest.listing)
    return manifest


def check_unused(disk: Disk, folder: Path) -> None:
    """Raises NotEmpty where a folder holds a journal, or part of one."""
    if folder.is_dir() and any(is_part(name) or name == ARRIVED for name in disk.names(folder)):
        raise NotEmpty(str(folder))
