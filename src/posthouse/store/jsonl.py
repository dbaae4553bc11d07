"""The journal as lines of JSON in a folder: `jsonl:DIR`. For looking at it, and for bug reports.

A file holds a run of frames, one a line (lines.py), and is called `<number of its first frame, 20
digits>.jsonl`. A file is only begun when all before it is durable. Snapshots are files as those of
a data folder (snapshots.py); `lock` keeps a second writer away.

Opening looks at every line behind the newest snapshot. Where a line is not the next good frame, all
from there on is a tail that no sync had covered, and is cut, unless that cannot be: in a file that
another follows; where a later line says that this place was durable; or where `closed`, the mark of
a clean stop, says that the journal went further. Then it is damage, and the store does not open.
"""

import contextlib
import logging
import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from posthouse.store.backend import Extents, Mark
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged
from posthouse.store.file import LOCK, SEGMENT_BYTES
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.lines import (
    HEAD_BYTES_MAX,
    LINE_BYTES_MAX,
    decode_head,
    decode_line,
    encode_line,
)
from posthouse.store.look import CLOSED, CLOSING_NAME
from posthouse.store.snapshots import FileSnapshots

_log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
NAME = re.compile(r"\d{20}\.jsonl")
_SCAN_BYTES = 1 << 20
_REMEMBERED = 8  # files whose lines are known to who reads


class _File:
    """The lines of a file: where each begins, as far as the file was looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = _number(path)  # of the first line
        self.offsets = array("Q")
        self.end = 0  # behind the last whole line that was looked at

    def note(self, size: int) -> None:
        self.offsets.append(self.end)
        self.end += size

    def scan(self, disk: Disk) -> None:
        """Looks for the lines that were added. Raises FileNotFoundError."""
        at = self.end
        while data := disk.read(self.path, at, _SCAN_BYTES):
            begin = 0
            while (newline := data.find(b"\n", begin)) >= 0:
                self.note(at + newline + 1 - self.end)
                begin = newline + 1
            at += len(data)

    def cut(self, line: int) -> None:
        self.end = self.offsets[line]
        del self.offsets[line:]

    def head(self, disk: Disk, line: int) -> bytes:
        return disk.read(self.path, self.offsets[line], HEAD_BYTES_MAX)

    def lines(self, disk: Disk, line: int, size_bytes: int = 1) -> list[bytes]:
        """Some lines from one on: so many bytes, at least one line. Of a long one, a part."""
        begin = self.offsets[line]
        ends = self.offsets[line + 1 :]
        ends.append(self.end)
        count = max(1, bisect_right(ends, begin + size_bytes))
        size = ends[count - 1] - begin
        return disk.read(self.path, begin, min(size, LINE_BYTES_MAX)).splitlines(keepends=True)


class JsonlBackend:
    """Opens a folder, or makes one. Raises InUse, Damaged or OSError."""

    is_shared = False

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        read_only: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self.snapshots = FileSnapshots(folder, self._disk)
        self._numbers: list[int] = []  # of the files; another list when some are removed
        self._read: dict[int, _File] = {}  # files whose lines are remembered for reading
        self._written: tuple[_File, int] | None = None  # the file that is written to, open
        self._lock: int | None = None
        if not read_only:
            self._disk.make_folder(folder)
            self._lock = self._disk.lock(folder / LOCK)
        try:
            self.extents = self.find() if read_only else self._recover()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return f"jsonl:{self._folder}"

    # Opening.

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}{SUFFIX}"

    def _files(self) -> list[_File]:
        names = filter(NAME.fullmatch, self._disk.names(self._folder))
        return [_File(self._folder / each) for each in names]

    def _found(self, files: Sequence[_File], last: Frame | None) -> Extents:
        """Raises Damaged."""
        marks: list[Mark] = []
        size = 0
        for file in files:
            head = decode_head(self._disk.read(file.path, 0, HEAD_BYTES_MAX))
            if head is None or head[0] != file.number:
                raise _damaged(file.path, 0, "the file does not begin with the frame of its name")
            marks.append(Mark(*head, size))
            size += self._disk.size(file.path)
        self._numbers = [file.number for file in files]
        return Extents(self._segment_bytes, marks, last, size)

    def find(self) -> Extents:
        while True:
            try:
                return self._find()
            except FileNotFoundError:
                continue  # trimmed meanwhile

    def _find(self) -> Extents:
        """As another process leaves it: its last lines may not be whole yet."""
        files = self._files()
        while files:
            file = self._reading(files[-1].number)
            file.scan(self._disk)
            for line in reversed(range(len(file.offsets))):
                last = decode_line(file.lines(self._disk, line)[0])
                if last is not None:
                    return self._found(files, last.without_payload())
            files.pop()
        return self._found([], None)

    def _recover(self) -> Extents:
        """Cuts a tail, and takes `closed` away. Raises Damaged, with nothing changed."""
        files, newest = self._files(), self.snapshots.newest()
        known = (
            0 if newest is None else newest.number
        )  # that frame and those before are not looked at
        first = 0
        while first + 1 < len(files) and files[first + 1].number <= known + 1:
            first += 1
        last: Frame | None = None
        if newest is not None and files[first:] and files[first].number == known + 1:
            last = newest
        for at in range(first, len(files)):
            last = self._look(files[at], last, is_last=at == len(files) - 1)
        end = 1 if last is None else last.end
        if newest is not None and end < newest.end:
            raise Damaged(
                self.name, known, f"the journal ends at {end}, and a snapshot holds all up to"
                f" {newest.end}", unit="frame",
            )  # fmt: skip
        self._check_closed(last)
        self._cut(files)
        if CLOSED in self._disk.names(self._folder):
            self._disk.remove(self._folder / CLOSED)
            self._disk.sync_folder(self._folder)
        return self._found(files, last)

    def _look(self, file: _File, last: Frame | None, *, is_last: bool) -> Frame | None:
        """Reads all lines of a file; returns the last good frame. Raises Damaged."""
        file.scan(self._disk)
        for line in range(len(file.offsets)):
            frame = decode_line(file.lines(self._disk, line)[0])
            begins = frame is not None and frame.number == file.number + line
            if frame is None or not begins or (last is not None and not frame.follows(last)):
                self._check_tail(file, line, last)
                file.cut(line)
                break
            last = frame.without_payload()
        if not is_last and (not file.end or file.end < self._disk.size(file.path)):
            line = len(file.offsets)
            raise _damaged(file.path, line, "this is not the next frame, and a file follows")
        return last

    def _check_tail(self, file: _File, line: int, last: Frame | None) -> None:
        """Raises Damaged where a later line proves that this one was durable once."""
        end = 1 if last is None else last.end
        for later in range(line + 1, len(file.offsets)):
            frame = decode_line(file.lines(self._disk, later)[0])
            if frame is not None and frame.durable > end:
                raise _damaged(
                    file.path, line, f"frame {frame.number} was written when this was durable"
                )

    def _cut(self, files: list[_File]) -> None:
        """Cuts what is behind the last good line. A file without one goes."""
        tail = self._disk.size(files[-1].path) - files[-1].end if files else 0
        if not files or (files[-1].end and not tail):
            return
        file = files[-1]
        _log.warning(
            "%s ended in %d bytes that were never synced; they were cut off behind line %d.",
            file.path, tail, len(file.offsets),
        )  # fmt: skip
        if file.end:
            self._disk.truncate(file.path, file.end)
        else:
            files.pop()
            self._disk.remove(file.path)
            self._disk.sync_folder(self._folder)

    def _check_closed(self, last: Frame | None) -> None:
        """Checks the journal against the mark of a clean stop, after which nothing is missing."""
        if CLOSED not in self._disk.names(self._folder):
            return
        words = self._disk.read(self._folder / CLOSED, 0, 64).split()
        end, number = (1, 0) if last is None else (last.end, last.number)
        if words != [b"%d" % end, b"%d" % number]:
            raise Damaged(
                self.name, number, f"the journal was closed at {b' '.join(words)!r} (position,"
                f" frame), and is found to end at {end}, {number}", unit="frame",
            )  # fmt: skip

    # Writing.

    def write(self, frames: Sequence[Frame]) -> None:
        lines = [encode_line(frame) for frame in frames]
        marks = self.extents.begun_by(frames, [len(line) for line in lines])
        begins = [mark.number - frames[0].number for mark in marks]
        for begin, end in pairwise([*sorted({0, *begins}), len(frames)]):
            if begin in begins:
                self._begin(frames[begin].number)
            self._append(lines[begin:end])
        self.extents.grow(marks, frames, sum(map(len, lines)))
        if frames and frames[-1].kind == CLOSING:
            self.sync()
            self._mark_closed(frames[-1])

    def _begin(self, number: int) -> None:
        """Begins the next file, when all before it is durable."""
        if self._written is not None:
            self.sync()
            self._disk.close(self._written[1])
            self._written = None
        path = self._path(number)
        self._written = _File(path), self._disk.create(path)
        self._disk.sync_folder(self._folder)
        self._numbers.append(number)

    def _append(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        if self._written is None:
            path = self._path(self._numbers[-1])
            self._written = _File(path), self._disk.open(path)
            self._written[0].scan(self._disk)
        file, opened = self._written
        self._disk.write(opened, file.end, lines)
        file.end += sum(map(len, lines))

    def sync(self) -> None:
        if self._written is not None:
            self._disk.sync(self._written[1])

    def _mark_closed(self, frame: Frame) -> None:
        """Writes `closed`. The frame is durable: a disk without room for this fails no stop."""
        disk, unfinished = self._disk, self._folder / CLOSING_NAME
        with contextlib.suppress(OSError):
            file = disk.create(unfinished)
            try:
                disk.write(file, 0, [f"{frame.end} {frame.number}\n".encode()])
                disk.sync(file)
            finally:
                disk.close(file)
            disk.rename(unfinished, self._folder / CLOSED)
            disk.sync_folder(self._folder)

    def remove(self, before: int) -> bool:
        """Removes whole files."""
        old = [number for number in self._numbers if number < before]
        self._numbers = self._numbers[len(old) :]
        for number in old:
            self._disk.remove(self._path(number))
        self._disk.sync_folder(self._folder)
        return False

    def free_bytes(self) -> int:
        return self._disk.free(self._folder)

    # Reading.

    def _reading(self, number: int) -> _File:
        """The lines of the file that begins with a frame, as far as they are known."""
        file = self._read.pop(number, None) or _File(self._path(number))
        self._read[number] = file  # the last one used is the last to go
        for old in list(self._read)[:-_REMEMBERED]:
            del self._read[old]
        return file

    def _place(self, number: int) -> tuple[_File, int] | None:
        """The file with a frame, and its line there. Raises FileNotFoundError."""
        at = bisect_right(self._numbers, number) - 1
        if at < 0:
            return None
        file = self._reading(self._numbers[at])
        line = number - file.number
        if line >= len(file.offsets):
            file.scan(self._disk)
        return (file, line) if line < len(file.offsets) else None

    def first_of(self, number: int) -> int | None:
        try:
            if (place := self._place(number)) is None:
                return None
            file, line = place
            head = decode_head(file.head(self._disk, line))
        except FileNotFoundError:
            return None  # trimmed meanwhile
        if head is None or head[0] != number:
            raise _damaged(file.path, line, f"this is not frame {number}")
        return head[1]

    def frames(self, number: int, size_bytes: int) -> list[Frame]:
        try:
            if (place := self._place(number)) is None:
                return []
            file, line = place
            lines = file.lines(self._disk, line, size_bytes)
        except FileNotFoundError:
            return []  # trimmed meanwhile
        found = [decode_line(each) for each in lines]
        good = list(takewhile(lambda frame: frame is not None, found))
        if not good:
            raise _damaged(file.path, line, "this is not the frame that was written")
        return good  # type: ignore[return-value]  # those before one that is not

    def check(self) -> None:
        """There is nothing beside the lines, which are checked when they are read."""

    def close(self) -> None:
        if self._written is not None:
            self._disk.close(self._written[1])
            self._written = None
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None


def is_there(folder: Path) -> bool:
    return folder.is_dir() and any(NAME.fullmatch(each.name) for each in folder.iterdir())


def _number(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))


def _damaged(path: Path, line: int, what: str) -> Damaged:
    return Damaged(str(path), line + 1, what, unit="line")
