"""Snapshots in files, and their twin in memory.

A snapshot is called `<the position after its last, 20 digits>.snapshot`:

     0   8  magic, "PHSNAPSH"
     8   4  checksum: CRC-32 of bytes 12 to 63
    12   4  version of the format
    16   8  position: it holds everything below
    24   8  number of the last frame in it
    32   8  time of that frame, milliseconds since 1970
    40   4  epoch of that frame
    44  20  zero
    64      parts: length (4), CRC-32 of the content (4), content
            the end: length 0, CRC-32 of all the parts' checksums

Numbers are unsigned and big-endian. It is written under another name and renamed when it is
durable, so that a name that is there stands for a whole snapshot. The last two are kept: where
one is damaged, the other and more of the journal give the same state.
"""

import contextlib
import logging
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from posthouse.store import Snapshot
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, TooNew
from posthouse.store.frames import Frame

_log = logging.getLogger(__name__)

MAGIC = b"PHSNAPSH"
VERSION = 1
HEADER_BYTES = 64
SUFFIX = ".snapshot"
NAME = re.compile(r"\d{20}\.snapshot")
UNFINISHED = "folding"
KEPT = 2
PART_BYTES_MAX = 64 << 20
_WRITE_BYTES = 4 << 20

_HEADER = struct.Struct(">IQQQI20x")
_PART = struct.Struct(">II")


class FileSnapshots:
    """The snapshots in a data folder. The writer and the fold process share the files."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()

    def paths(self) -> list[Path]:
        """The newest first."""
        names = filter(NAME.fullmatch, self._disk.names(self._folder))
        return [self._folder / name for name in reversed(list(names))]

    def positions(self) -> list[int]:
        return [int(path.name.removesuffix(SUFFIX)) for path in self.paths()]

    def whole(self) -> list[int]:
        found: list[int] = []
        for path in self.paths():
            with contextlib.suppress(Damaged):
                found.append(self._check(path).end)
            if len(found) == KEPT:
                break
        return found

    def newest(self) -> Frame | None:
        """The last frame in the newest snapshot, by its header alone."""
        for path in self.paths():
            try:
                return self._header(path)
            except Damaged:
                continue
        return None

    async def save(self, snapshot: Snapshot) -> None:
        disk, folder = self._disk, self._folder
        unfinished = folder / UNFINISHED
        file = disk.create(unfinished)
        try:
            self._write(file, snapshot)
            disk.sync(file)
        except OSError:  # the disk may be full, and others need the room
            with contextlib.suppress(OSError):
                disk.remove(unfinished)
            raise
        finally:
            disk.close(file)
        disk.rename(unfinished, folder / f"{snapshot.last.end:020}{SUFFIX}")
        disk.sync_folder(folder)
        whole = self.whole()
        for old, end in zip(self.paths(), self.positions(), strict=True):
            if len(whole) >= KEPT and end < whole[KEPT - 1]:
                disk.remove(old)
        disk.sync_folder(folder)

    def _write(self, file: int, snapshot: Snapshot) -> None:
        last = snapshot.last
        rest = _HEADER.pack(VERSION, last.end, last.number, last.time_ms, last.epoch)
        chunks, offset, size = [MAGIC, zlib.crc32(rest).to_bytes(4, "big"), rest], 0, HEADER_BYTES
        whole = 0
        for part in snapshot.parts:
            checksum = zlib.crc32(part)
            whole = zlib.crc32(checksum.to_bytes(4, "big"), whole)
            chunks += [_PART.pack(len(part), checksum), part]
            size += _PART.size + len(part)
            if size > _WRITE_BYTES:
                self._disk.write(file, offset, chunks)
                chunks, offset, size = [], offset + size, 0
        self._disk.write(file, offset, [*chunks, _PART.pack(0, whole)])

    async def load(self, end: int) -> Snapshot | None:
        for path in self.paths():
            try:
                if self._header(path).end > end:
                    continue
                last = self._check(path)
            except Damaged as damaged:
                _log.warning("%s An older snapshot serves, with more of the journal.", damaged)
            else:
                return Snapshot(last, _Parts(self, path))
        return None

    def verify(self) -> int:
        """Returns the number of snapshots. Raises Damaged or TooNew where one is not whole."""
        return len([self._check(path) for path in self.paths()])

    def _check(self, path: Path) -> Frame:
        """Reads all of it. Raises Damaged or TooNew."""
        last = self._header(path)
        for _ in self.parts(path):
            pass
        return last

    def _header(self, path: Path) -> Frame:
        data = self._disk.read(path, 0, HEADER_BYTES)
        rest = data[12:]
        checksum = int.from_bytes(data[8:12], "big")
        if len(data) < HEADER_BYTES or data[:8] != MAGIC or zlib.crc32(rest) != checksum:
            raise Damaged(path, 0, "its header is not that of a snapshot")
        version, end, number, time_ms, epoch = _HEADER.unpack(rest)
        if version > VERSION:
            raise TooNew(path, version, VERSION)
        if path.name != f"{end:020}{SUFFIX}":
            raise Damaged(path, 0, f"its name does not fit its position, {end}")
        return Frame(epoch, number, end, 0, end, time_ms, b"")

    def parts(self, path: Path) -> Iterator[bytes]:
        """Raises Damaged."""
        offset, whole = HEADER_BYTES, 0
        while True:
            head = self._disk.read(path, offset, _PART.size)
            length, checksum = _PART.unpack(head) if len(head) == _PART.size else (0, -1)
            if length == 0:
                if checksum != whole:
                    raise Damaged(path, offset, "the snapshot ends too early")
                return
            part = b""
            if length <= PART_BYTES_MAX:
                part = self._disk.read(path, offset + _PART.size, length)
            if len(part) != length or zlib.crc32(part) != checksum:
                raise Damaged(path, offset, "this part is not what was written")
            yield part
            whole = zlib.crc32(checksum.to_bytes(4, "big"), whole)
            offset += _PART.size + length


class _Parts:
    """The parts of a snapshot, read from its file each time they are iterated."""

    def __init__(self, keeper: FileSnapshots, path: Path) -> None:
        self._keeper, self._path = keeper, path

    def __iter__(self) -> Iterator[bytes]:
        return self._keeper.parts(self._path)


class MemorySnapshots:
    """Snapshots in memory."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []  # the newest first

    async def save(self, snapshot: Snapshot) -> None:
        self.kept = [Snapshot(snapshot.last, list(snapshot.parts)), *self.kept[: KEPT - 1]]

    async def load(self, end: int) -> Snapshot | None:
        return next((each for each in self.kept if each.last.end <= end), None)

    def positions(self) -> list[int]:
        return [each.last.end for each in self.kept]

    def whole(self) -> list[int]:
        return self.positions()
