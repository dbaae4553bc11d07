"""Copying a journal: from one store into another, and as lines of JSON into a file and back.

Frames are the same byte for byte, closing frames and what they say of durability too. Snapshots
follow them: a journal that was trimmed is of no use without.

An exported file begins with {"posthouse": "journal", "version": 1}. Then come the frames (lines.py)
and the snapshots, each as a line {"snapshot": POSITION, ...} that says how many parts follow. The
last line is {"end": COUNT}, the count of the lines before it.
"""

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from typing import IO, NamedTuple

import msgspec

from posthouse.store import Snapshot, Store
from posthouse.store.errors import Damaged, StoreError
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.lines import LINE_BYTES_MAX, decode_line, encode_line

SYNC_BYTES = 16 << 20
END = 1 << 63

Progress = Callable[[int, int], None]  # bytes done, of so many


class NotEmpty(StoreError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} holds a journal already; name a store that is empty.")


class Copied(NamedTuple):
    frames: int
    first: int  # position
    end: int
    size_bytes: int
    snapshots: int


class _Head(msgspec.Struct):
    posthouse: str
    version: int


class _SnapshotLine(msgspec.Struct):
    snapshot: int
    number: int
    epoch: int
    time_ms: int
    parts: int


class _PartLine(msgspec.Struct):
    part: int
    checksum: int
    content: bytes


class _EndLine(msgspec.Struct):
    end: int


_HEAD = _Head("journal", 1)


async def copy(source: Store, target: Store, name: str, progress: Progress) -> Copied:
    """Copies all of a journal into a store that is empty. Raises NotEmpty or StoreError."""
    check_empty(target, name)
    whole = sum(extent.size_bytes for extent in source.extents())
    frames = source.read(0, END)
    copied = await _write(frames, target, lambda done: progress(done, max(done, whole)))
    count = 0
    for end in sorted(source.snapshots.whole()):
        snapshot = await source.snapshots.load(end)
        if snapshot is not None:
            await target.snapshots.save(snapshot)
            count += 1
    return copied._replace(snapshots=count)


def check_empty(store: Store, name: str) -> None:
    """Raises NotEmpty."""
    if store.last is not None or store.extents() or store.snapshots.positions():
        raise NotEmpty(name)


async def _write(
    frames: AsyncIterable[Frame], target: Store, progress: Callable[[int], None]
) -> Copied:
    count = size = unsynced = first = 0
    last: Frame | None = None
    async for frame in frames:
        if last is None:
            first = frame.first
        target.append(frame)
        last, count, size = frame, count + 1, size + frame.size_bytes
        unsynced += frame.size_bytes
        if unsynced >= SYNC_BYTES and frame.kind != CLOSING:  # that ends a journal, if it is last
            await target.sync()
            progress(size)
            unsynced = 0
    await target.sync()
    return Copied(count, first, 1 if last is None else last.end, size, 0)


async def export(source: Store, file: IO[bytes], progress: Progress) -> Copied:
    """Writes all of a journal as lines. Raises StoreError or OSError."""
    whole = sum(extent.size_bytes for extent in source.extents())
    encode = msgspec.json.encode
    file.write(encode(_HEAD) + b"\n")
    lines, count, size, first, end, snapshots = 1, 0, 0, 0, 1, 0
    async for frame in source.read(0, END):
        file.write(encode_line(frame))
        first, end = first or frame.first, frame.end
        count, size, lines = count + 1, size + frame.size_bytes, lines + 1
        progress(size, max(size, whole))
    for position in sorted(source.snapshots.whole()):
        snapshot = await source.snapshots.load(position)
        if snapshot is None:
            continue
        last, parts = snapshot.last, sum(1 for _ in snapshot.parts)
        head = _SnapshotLine(position, last.number, last.epoch, last.time_ms, parts)
        file.write(encode(head) + b"\n")
        for number, part in enumerate(snapshot.parts):
            file.write(encode(_PartLine(number, zlib.crc32(part), part)) + b"\n")
        lines, snapshots = lines + 1 + parts, snapshots + 1
    file.write(encode(_EndLine(lines)) + b"\n")
    return Copied(count, first, end, size, snapshots)


async def import_lines(
    file: IO[bytes], file_name: str, target: Store, name: str, progress: Callable[[int], None]
) -> Copied:
    """Reads a file of lines into a store that is empty. Raises NotEmpty or Damaged.

    Nothing is written before the first line is known to be that of a journal.
    """
    lines = _Lines(file, file_name)
    try:
        head = msgspec.json.decode(lines.take(), type=_Head)
    except msgspec.DecodeError:
        raise lines.damaged("this is not the first line of an exported journal") from None
    if head != _HEAD:
        raise lines.damaged("this version does not know such a file")
    check_empty(target, name)
    copied = await _write(_frames(lines), target, progress)
    count = 0
    while (snapshot := _snapshot(lines)) is not None:
        await target.snapshots.save(snapshot)
        count += 1
    try:
        is_end = msgspec.json.decode(lines.line, type=_EndLine).end == lines.number - 1
    except msgspec.DecodeError:
        is_end = False
    if not is_end:
        raise lines.damaged("the file ends too early, or is not what was exported")
    return copied._replace(snapshots=count)


class _Lines:
    """The lines of a file, one after the other, each within bounds."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self.line, self.number = b"", 0

    def take(self) -> bytes:
        self.line = self._file.readline(LINE_BYTES_MAX)
        self.number += 1
        return self.line

    def damaged(self, what: str) -> Damaged:
        return Damaged(self._name, self.number, what, unit="line")


async def _frames(lines: _Lines) -> AsyncIterator[Frame]:
    """The frames of a file, up to the first line that is none. Raises Damaged."""
    last: Frame | None = None
    while lines.take().startswith(b'{"frame":'):
        frame = decode_line(lines.line)
        if frame is None:
            raise lines.damaged("this frame is not what was exported")
        if last is not None and not frame.follows(last):
            raise lines.damaged(f"this frame does not follow frame {last.number}")
        last = frame
        yield frame


def _snapshot(lines: _Lines) -> Snapshot | None:
    """The snapshot that begins with the present line; None where none does."""
    try:
        head = msgspec.json.decode(lines.line, type=_SnapshotLine)
    except msgspec.DecodeError:
        return None
    last = Frame(head.epoch, head.number, head.snapshot, 0, head.snapshot, head.time_ms, b"")
    return Snapshot(last, _parts(lines, head.parts))


def _parts(lines: _Lines, count: int) -> Iterator[bytes]:
    """Raises Damaged. When it is done the line behind the parts is the present one."""
    for number in range(count):
        try:
            part = msgspec.json.decode(lines.take(), type=_PartLine)
        except msgspec.DecodeError:
            raise lines.damaged("this is not a part of the snapshot") from None
        if part.part != number or part.checksum != zlib.crc32(part.content):
            raise lines.damaged("this part of the snapshot is not what was exported")
        yield part.content
    lines.take()
