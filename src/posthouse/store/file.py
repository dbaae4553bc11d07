"""The journal in files: the default store.

The folder holds segments, and two files of zeros: `next`, which becomes the next segment, and
`reserve`, which does so when the disk is full. A frame is only ever written into space that was
claimed before, so a full disk is noticed while there still is room to go on. Arrow segments give
way then, the oldest first, because they can be made again; where none is left, `full` says so, and
is false again by itself when a claim succeeds. A write or sync that fails inside claimed space
means that nobody knows what is durable: the store is Lost, and stays so.

Opening looks at every frame behind the newest snapshot. At the first place that is not the next
good frame it looks on: if a later frame was written when this place was durable already, it is
damage, and the store does not open. Otherwise it is the tail that no sync had covered, which is
cut. A clean stop leaves the end of the journal in `closed`; then there is no tail, and all that is
missing is damage. What a snapshot holds is looked at when it is read.

How durable `sync` makes things is chosen when the store is opened:

    fsync       it returns when the disk has said that everything is there
    interval    it returns when the kernel has everything; the disk has it a moment later
    memory      it returns at once; the kernel has everything soon, the disk when the kernel likes

Whatever is chosen, a frame says truthfully what was durable when it was made, and a segment is
only begun when all before it is durable.
"""

import asyncio
import contextlib
import errno
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from posthouse.store import Extent, Room
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, Lost, NotThere
from posthouse.store.frames import CLOSING, HEADER_BYTES, PAYLOAD_BYTES_MAX, Frame, encode_header
from posthouse.store.look import (
    ARROW_NAME,
    ARROW_SUFFIX,
    CLOSED,
    CLOSING_NAME,
    LARGE,
    NEXT,
    RESERVE,
    Found,
    frames_of,
    look,
)
from posthouse.store.segments import SEGMENT_HEADER_BYTES, Header, Segment, frames_from, name
from posthouse.store.segments import encode_header as encode_segment_header
from posthouse.store.snapshots import FileSnapshots
from posthouse.store.writer_thread import WriterThread

_log = logging.getLogger(__name__)

Durability = Literal["fsync", "interval", "memory"]

LOCK = "lock"
SEGMENT_BYTES = 64 << 20
MARK_SEGMENTS = 3  # with room for fewer segments the disk is short of room
INTERVAL_MS = 100
PREZERO_BYTES = 2 << 20  # ahead of the journal's end that are written with zeros at a time,
PREZERO_BYTES_MAX = 32 << 20  # and altogether
PREZERO_SECONDS = 0.1  # after which it is taken to be idle
# A commit of few positions is written by the event loop itself while syncs are quick: to hand it to
# the thread and back takes as long as such a sync.
LONE_POSITIONS = 4
LONE_BYTES = 64 << 10
QUICK_SECONDS = 0.001
QUICK_SYNCS = 100  # that must have been quick, one after the other
BEHIND_BYTES_MAX = 64 << 20  # that may be unwritten with durability `memory`
_READ_BYTES = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class FileStore:
    """Opens a folder, or makes one. Raises InUse, Damaged, TooNew, or OSError.

    With `read_only` it is left as it is, and cannot be written to.
    """

    is_fresh = True  # the folder is locked

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "fsync",
        interval_ms: int = INTERVAL_MS,
        read_only: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self.folder = folder
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._durability = durability
        self._interval_ms = interval_ms
        self.snapshots = FileSnapshots(folder, self._disk)
        self.cut_at: int | None = None  # the position from which an unsynced tail was cut
        self.full = False
        self.pressed = False  # until who makes room has tried to
        self._wants_space = True  # the space claimed ahead was used, or could not be claimed
        self.rolled = asyncio.Event()
        self.filled = asyncio.Event()
        if not read_only:
            self._disk.make_folder(folder)
        self._lock = self._disk.lock(folder / LOCK)
        try:
            self._segments, last = self._look() if read_only else self._recover()
            if not read_only:
                self._claim()
                if self.full:
                    self._tell_whether_full()
        except BaseException:
            self._disk.close(self._lock)
            raise
        self.last = last
        self._file: int | None = None  # of the last segment, once it is written to
        self._pending: list[Frame] = []
        self._lost: str | None = None
        self._closed = False
        self.durable = self._written = last.end if last is not None else 1
        self._unsynced = False
        # A write that nobody waits for yet, and what it writes.
        self._begun_sync: tuple[asyncio.Future[None], list[Frame]] | None = None
        self._behind_bytes = 0
        self._begun = self._told = 0  # segments begun since the start
        self._late: asyncio.TimerHandle | None = None
        self._syncs = self._written_bytes = 0  # since the start
        self._quick_syncs = 0  # since one that was not
        self._idle: asyncio.TimerHandle | None = None  # then it is seen whether it is
        self._prezeroed_to = self._next_prezeroed_to = 0  # in the last segment, and in the next
        self._writer = WriterThread("posthouse-journal")
        self._reader = ThreadPoolExecutor(1, "posthouse-journal-read")

    @property
    def segments(self) -> "FileStore":
        return self

    @property
    def first(self) -> int:
        """The first position that it holds: all before was trimmed."""
        return self._segments[0].first if self._segments else self.durable

    @property
    def readable(self) -> int:
        return self.durable if self._durability == "fsync" else self._written

    # Writing.

    def append(self, frame: Frame) -> None:
        assert len(frame.payload) <= PAYLOAD_BYTES_MAX  # nobody could read it
        self._pending.append(frame)

    def begin_sync(self) -> None:
        assert self._begun_sync is None
        if self._lost is None:
            frames, self._pending = self._pending, []
            now = self._durability == "fsync" or any(frame.kind == CLOSING for frame in frames)
            self._begun_sync = self._writer.do(self._write, frames, now), frames

    async def sync(self) -> None:
        if self._lost is not None:
            self._pending = []
            raise Lost(self._lost)
        if self._begun_sync is not None and self._pending:  # appended behind what was begun
            await self._wait_for_begun()
        if self._begun_sync is None:
            self.begin_sync()
        await self._wait_for_begun()

    async def _wait_for_begun(self) -> None:
        assert self._begun_sync is not None
        (writing, frames), self._begun_sync = self._begun_sync, None
        stopping = any(frame.kind == CLOSING for frame in frames)
        if self._durability == "memory" and not stopping:
            size = sum(frame.size_bytes for frame in frames)
            self._behind_bytes += size
            writing.add_done_callback(lambda done: self._done_behind(done, size))
            if self._behind_bytes <= BEHIND_BYTES_MAX:
                return
        try:
            await writing
        except OSError as error:
            self._lose(error)
            raise Lost(self._lost) from error
        self._tell_of_segments()
        self._note_sync()
        if self._durability == "interval" and self._late is None and not stopping:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._interval_ms / 1000, self._sync_late)

    def sync_at_once(self) -> bool:
        if self._lost is not None:
            raise Lost(self._lost)
        if not self._is_lone():
            return False
        frames, self._pending = self._pending, []
        try:
            self._write(frames, True)
        except OSError as error:
            self._lose(error)
            raise Lost(self._lost) from error
        self._note_sync()
        return True

    def _is_lone(self) -> bool:
        """Whether what is pending is small, the thread idle, and syncs are quick."""
        if self._quick_syncs < QUICK_SYNCS or len(self._pending) != 1 or not self._segments:
            return False
        [frame], segment = self._pending, self._segments[-1]
        return (
            frame.count <= LONE_POSITIONS
            and frame.size_bytes <= LONE_BYTES
            and frame.kind != CLOSING
            and self._durability == "fsync"
            and segment.offset + frame.size_bytes <= segment.size
            and not self._wants_space
            and self._writer.is_idle
        )

    def _note_sync(self) -> None:
        self._syncs += 1
        if self._durability == "fsync" and self._idle is None and self._segments:
            self._prezero_when_idle()

    # A place that was claimed but never written to takes two to three times as long to sync: the
    # file system has to note that it is in use now. So while nobody waits, zeros are written ahead
    # of the end, by the thread that writes the journal, so that it cannot be where frames are.

    def _prezero_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(PREZERO_SECONDS, self._prezero_if_idle, self._syncs)

    def _prezero_if_idle(self, syncs: int) -> None:
        """Prezeroes if nothing was synced since the count was `syncs`; else tries again later."""
        if syncs != self._syncs:
            self._prezero_when_idle()
        else:
            self._writer.do(self._prezero).add_done_callback(self._prezero_done)

    def _prezero_done(self, done: "asyncio.Future[bool]") -> None:
        error = done.exception()
        if error is not None:
            self._lose(error)
        elif done.result() and not self._closed:
            self._prezero_if_idle(self._syncs)
            return
        self._idle = None

    def _prezero(self) -> bool:
        """Prezeroes a part of the space ahead; returns whether there is more to do.

        It goes as far ahead as was written since the start.
        """
        segment = self._segments[-1]
        end = segment.offset + min(PREZERO_BYTES_MAX, max(PREZERO_BYTES, self._written_bytes))
        begin, wanted = max(self._prezeroed_to, segment.offset), min(segment.size, end)
        if begin < wanted:
            self._prezeroed_to = min(wanted, begin + PREZERO_BYTES)
            self._disk.prezero(segment.path, begin, self._prezeroed_to - begin)
            return True
        if self._wants_space:  # there is no next
            return False
        following = self.folder / NEXT
        begin, wanted = self._next_prezeroed_to, min(self._disk.size(following), end - segment.size)
        if begin < wanted:
            self._next_prezeroed_to = min(wanted, begin + PREZERO_BYTES)
            self._disk.prezero(following, begin, self._next_prezeroed_to - begin)
        return begin < wanted

    def _done_behind(self, done: "asyncio.Future[None]", size: int = 0) -> None:
        """Notes the end of a write that nobody waited for: the next sync raises its failure."""
        self._behind_bytes -= size
        self._tell_of_segments()
        error = done.exception()
        if isinstance(error, OSError):
            self._lose(error)

    def _tell_of_segments(self) -> None:
        if self._begun != self._told:
            self._told = self._begun
            self.rolled.set()
        if self.full or self.filled.is_set():
            self._tell_whether_full()

    def _tell_whether_full(self) -> None:
        if self.full:
            self.filled.set()
        else:
            self.filled.clear()
        self.rolled.set()

    def _sync_late(self) -> None:
        self._late = None
        syncing = self._writer.do(self._sync)
        syncing.add_done_callback(self._done_behind)

    def _lose(self, error: BaseException) -> None:
        self._lost = f"the journal could not be written: {error}"

    def _write(self, frames: list[Frame], now: bool) -> None:
        """Writes the frames in one write and one sync, unless a segment ends on the way."""
        begun = time.perf_counter()
        gathered: list[Frame] = []
        size = 0
        for frame in frames:
            length = frame.size_bytes
            segment = self._segments[-1] if self._segments else None
            if segment is None or segment.offset + size + length > segment.size:
                self._flush(gathered, size)
                gathered, size = [], 0
                self._roll(frame)
            gathered.append(frame)
            size += length
        self._flush(gathered, size, now)
        if now:
            self._sync()
        quick = time.perf_counter() - begun < QUICK_SECONDS
        self._quick_syncs = self._quick_syncs + 1 if quick else 0
        if frames and frames[-1].kind == CLOSING:
            self._mark_closed(frames[-1])
        if self._wants_space:
            self._claim()

    def _flush(self, frames: list[Frame], size: int, now: bool = False) -> None:
        """Writes them into the last segment, and only then says that they are there."""
        if not frames:
            return
        segment = self._segments[-1]
        chunks: list[bytes] = []
        for frame in frames:
            chunks += (encode_header(frame, segment.head.salt), frame.payload)
        if self._file is None:
            self._file = self._disk.open(segment.path)
        at_once = now and not self._unsynced
        if at_once:
            self._disk.write_durably(self._file, segment.offset, chunks)
        else:
            self._unsynced = True
            self._disk.write(self._file, segment.offset, chunks)
        for frame in frames:
            segment.note(frame, frame.size_bytes)
        self._written_bytes += size
        self._written = frames[-1].end
        if at_once:
            self.durable = self._written

    def _sync(self) -> None:
        if self._file is not None and self._unsynced:
            self._disk.sync(self._file)
            self._unsynced = False
            self.durable = self._written

    def _roll(self, frame: Frame) -> None:
        """Begins the next segment, from the space that was claimed for it."""
        disk, folder = self._disk, self.folder
        if self._file is not None:
            self._sync()
            disk.close(self._file)
            self._file = None
        claimed = self._claimed_for(frame)
        self._prezeroed_to = 0
        if claimed.name == NEXT:
            self._prezeroed_to, self._next_prezeroed_to = self._next_prezeroed_to, 0
        path = folder / name(frame.number)
        file = disk.open(claimed)
        head = Header(frame.first, frame.number, disk.size(claimed), secrets.randbits(32))
        disk.write(file, 0, [encode_segment_header(head)])
        disk.sync(file)
        disk.rename(claimed, path)
        disk.sync_folder(folder)
        self._file = file
        segment = Segment(path, head, head.size)
        segment.is_known = True  # nothing is in it: who reads need not look
        self._segments.append(segment)
        self._begun += 1
        self._wants_space = True

    def _claimed_for(self, frame: Frame) -> Path:
        """The space that was claimed; for a frame larger than that, its own."""
        disk, folder = self._disk, self.folder
        needed = SEGMENT_HEADER_BYTES + frame.size_bytes
        if needed > self._segment_bytes:
            if LARGE in disk.names(folder):  # of one who did not come to use it
                disk.remove(folder / LARGE)
            disk.claim(folder / LARGE, needed)
            return folder / LARGE
        self._claim()  # one sync may fill several segments
        claims = [each for each in (NEXT, RESERVE) if each in disk.names(folder)]
        if not claims:
            raise OSError(errno.ENOSPC, "the disk is full, and the reserve is used up")
        return folder / claims[0]

    def _claim(self) -> None:
        """Claims space ahead. Where there is none, the store is full until a later try succeeds."""
        try:
            there = self._disk.names(self.folder)
            for each in (NEXT, RESERVE):
                if each not in there:
                    self._claim_file(self.folder / each)
                    self._disk.sync_folder(self.folder)
            self.pressed = self._disk.free(self.folder) < MARK_SEGMENTS * self._segment_bytes
        except OSError:
            self.full = self._wants_space = self.pressed = True
        else:
            self.full = self._wants_space = False

    def _claim_file(self, path: Path) -> None:
        """Raises OSError where no Arrow segment is left that could give way."""
        while True:
            try:
                self._disk.claim(path, self._segment_bytes)
            except OSError as error:
                if error.errno not in _NO_SPACE or not self._drop_arrow_segment():
                    raise
            else:
                return

    def _drop_arrow_segment(self) -> bool:
        """Removes the oldest Arrow segment; False where there is none."""
        names = self._disk.names(self.folder)
        oldest = next((name for name in names if ARROW_NAME.fullmatch(name)), None)
        if oldest is None:
            return False
        self._remove_arrow_segment(oldest)
        return True

    def _remove_arrow_segment(self, name: str) -> None:
        with contextlib.suppress(
            FileNotFoundError
        ):  # there was none, or the fold process was first
            self._disk.remove(self.folder / name)

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def spare_bytes(self) -> int:
        names = self._disk.names(self.folder)
        spare = sum(self._segment_bytes for each in (NEXT, RESERVE) if each in names)
        return spare + sum(segment.size - segment.offset for segment in self._segments[-1:])

    @property
    def is_short(self) -> bool:
        return self.full or self._disk.free(self.folder) < MARK_SEGMENTS * self._segment_bytes

    def room(self) -> Room:
        arrow_segments = 0
        for each in filter(ARROW_NAME.fullmatch, self._disk.names(self.folder)):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                arrow_segments += self._disk.size(self.folder / each)
        journal = sum(segment.size for segment in self._segments)
        return Room(self._disk.free(self.folder), journal, arrow_segments)

    async def drop_arrow_segments(self, free: int) -> None:
        await self._writer.do(self._drop_arrow_segments, free)

    def note_trimmed(self) -> None:
        self.pressed = False

    def _drop_arrow_segments(self, free: int) -> None:
        while self._disk.free(self.folder) < free and self._drop_arrow_segment():
            pass

    def _mark_closed(self, frame: Frame) -> None:
        """Writes `closed` under another name first, so that it always says where the end is.

        The closing frame is durable, so a disk without room for this does not make a stop fail; it
        only leaves less to tell damage by.
        """
        disk, unfinished = self._disk, self.folder / CLOSING_NAME
        with contextlib.suppress(OSError):
            file = disk.create(unfinished)
            try:
                disk.write(file, 0, [f"{frame.end} {frame.number}\n".encode()])
                disk.sync(file)
            finally:
                disk.close(file)
            disk.rename(unfinished, self.folder / CLOSED)
            disk.sync_folder(self.folder)

    # Reading.

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        loop = asyncio.get_running_loop()
        readable = self.readable
        for segment in list(self._segments):
            if segment.end <= first or segment.first >= end:
                continue
            await loop.run_in_executor(self._reader, self._know, segment)
            at, last = segment.offset_before(first), None
            while at < segment.offset:
                found = await loop.run_in_executor(self._reader, self._frames_at, segment, at)
                for frame in found:
                    if last is not None and not frame.follows(last):
                        raise Damaged(segment.path, at, f"this is not frame {last.number + 1}")
                    if frame.end > readable:  # it is written, but not durable yet
                        return
                    at, last = at + frame.size_bytes, frame
                    if frame.end > first and frame.first < end:
                        yield frame
                if found[-1].end >= end:
                    break

    def _bytes(self, segment: Segment, at: int, length: int) -> bytes:
        try:
            return self._disk.read(segment.path, at, length)
        except FileNotFoundError:
            raise NotThere(f"positions before {segment.end} were trimmed") from None

    def _know(self, segment: Segment) -> None:
        """Looks at a segment that the start had no need to look at. Raises Damaged."""
        if not segment.is_known:
            found = Segment(segment.path, segment.head, segment.size)
            data = self._bytes(segment, 0, segment.size)
            for _ in frames_of(found, data):
                pass
            if found.end != segment.end:
                raise Damaged(
                    segment.path,
                    found.offset,
                    f"all up to position {segment.end} was durable, and this is {found.end}",
                )
            segment.take_index(found)

    def _frames_at(self, segment: Segment, at: int) -> list[Frame]:
        """The frames from an offset on, about a megabyte of them, at least one. Raises Damaged."""
        length = _READ_BYTES
        while True:
            data = self._bytes(segment, at, min(length, segment.offset - at))
            frames = [frame for _, frame in frames_from(data, 0, segment.head.salt)]
            if frames:
                return frames
            if length >= HEADER_BYTES + PAYLOAD_BYTES_MAX or length >= segment.offset - at:
                raise Damaged(segment.path, at, "a frame was here, and is not any more")
            length *= 8

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        if self._behind_bytes:
            await self._writer.do(_nothing)  # all before it is written then
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._get, positions)

    def _get(self, positions: Sequence[int]) -> list[Frame]:
        found: dict[int, Frame] = {}
        near: list[Frame] = []
        for position in sorted(set(positions)):
            frame = _holding(near, position)
            if frame is None:
                near = self._frames_near(position)
                frame = _holding(near, position)
            if frame is None:
                raise NotThere(f"position {position} is not in the journal")
            found[position] = frame
        return [found[position] for position in positions]

    def _frames_near(self, position: int) -> list[Frame]:
        """Reads some frames, among them the one that holds a position, if there is one."""
        segments = self._segments  # a trim puts another list in its place
        at = bisect_right(segments, position, key=lambda segment: segment.first) - 1
        if at < 0:
            return []
        segment = segments[at]
        self._know(segment)
        offset = segment.offset_before(position)
        while offset < segment.offset:
            frames = self._frames_at(segment, offset)
            if _holding(frames, position) is not None:
                return frames
            offset += sum(frame.size_bytes for frame in frames)
        return []

    def extents(self) -> list[Extent]:
        return [Extent(s.first, s.end, s.size, s.begun_ms) for s in self._segments]

    def sealed(self) -> list[Segment]:
        return self._segments[:-1]

    async def trim(self, before: int) -> None:
        """Removes whole segments, never the last, and their Arrow segments with them."""
        await self._writer.do(self._trim, before)
        self._tell_of_segments()

    def _trim(self, before: int) -> None:
        while len(self._segments) > 1 and self._segments[0].end <= before:
            first, *rest = self._segments
            self._segments = rest
            self._disk.remove(first.path)
            self._remove_arrow_segment(first.path.with_suffix(ARROW_SUFFIX).name)
        self._disk.sync_folder(self.folder)
        if self._wants_space:
            self._claim()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for timer in (self._late, self._idle):
            if timer is not None:
                timer.cancel()
        self._writer.close()
        self._reader.shutdown()
        if self._file is not None:
            self._disk.close(self._file)
            self._file = None
        self._disk.close(self._lock)

    # Opening.

    def _look(self) -> tuple[list[Segment], Frame | None]:
        found = self._find()
        return found.segments, found.last or self.snapshots.newest()

    def _recover(self) -> tuple[list[Segment], Frame | None]:
        """Cuts an unsynced tail, and takes `closed` away. Raises Damaged, with nothing changed."""
        found = self._find()
        if found.tail:
            last = found.segments[-1]
            self.cut_at = found.end
            _log.warning(
                "%s ended in %d bytes that were never synced; they were cut off at position %d.",
                last.path, found.tail, found.end,
            )  # fmt: skip
            self._disk.clear(last.path, last.offset, found.tail)
        if found.closed:
            self._disk.remove(self.folder / CLOSED)
            self._disk.sync_folder(self.folder)
        return found.segments, found.last or self.snapshots.newest()

    def _find(self) -> Found:
        newest = self.snapshots.newest()
        found = look(self._disk, self.folder, newest.number if newest is not None else 0)
        if newest is not None and found.end < newest.end:
            raise Damaged(
                found.segments[-1].path if found.segments else self.folder,
                found.segments[-1].offset if found.segments else 0,
                f"the journal ends at {found.end}, and a snapshot holds all up to {newest.end}",
            )
        return found


def _nothing() -> None:
    """Does nothing, in turn: when it returns, all work handed in before is done."""


def _holding(frames: Sequence[Frame], position: int) -> Frame | None:
    return next((f for f in frames if f.first <= position < f.end), None)
