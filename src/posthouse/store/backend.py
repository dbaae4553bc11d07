"""A store whose frames another system keeps: a database, a text format, a server.

A `Backend` writes frames, reads them by their numbers and removes the oldest; it is called by one
thread that writes and one that reads, and may block. `BackendStore` makes a Store of it: group
commit, durability, positions, retention by extents.

An extent is a run of frames of about `segment_bytes`. A backend keeps a `Mark` for the frame that
begins each, so that opening a store reads little more than the marks and the last extent.

No space is claimed ahead as the file store does it. Sends are refused while less than the reserve
is free; a write that finds no room all the same is Lost.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from posthouse.store import Extent, Snapshots
from posthouse.store.errors import Damaged, Deposed, Lost, NotThere
from posthouse.store.file import INTERVAL_MS, SEGMENT_BYTES, Durability
from posthouse.store.frames import CLOSING, PAYLOAD_BYTES_MAX, Frame
from posthouse.store.writer_thread import WriterThread

READ_BYTES = 1 << 20  # of frames that are read at a time
PROGRESS_FRAMES = 1_000  # between two words on how far it is
RESERVE_SEGMENTS = 2  # with room for fewer segments it is full


class Mark(NamedTuple):
    """The frame that begins an extent."""

    number: int
    first: int
    begun_ms: int
    before_bytes: int  # size of all extents before it, since the journal began


class Extents:
    """The extents of a journal and its last frame, as the backend has stored them."""

    def __init__(
        self,
        segment_bytes: int,
        marks: Sequence[Mark] = (),
        last: Frame | None = None,
        end_bytes: int = 0,
    ) -> None:
        self.marks = list(marks)
        self.last = last  # without its payload
        self.end_bytes = end_bytes  # `before_bytes` of an extent that would begin now
        self._segment_bytes = segment_bytes

    @property
    def end(self) -> int:
        return 1 if self.last is None else self.last.end

    def begun_by(self, frames: Sequence[Frame], sizes: Sequence[int]) -> list[Mark]:
        """The marks of those among the next frames that begin an extent."""
        marks, at = self.marks[-1:], self.end_bytes
        known = len(marks)
        for frame, size in zip(frames, sizes, strict=True):
            if not marks or at + size - marks[-1].before_bytes > self._segment_bytes:
                marks.append(Mark(frame.number, frame.first, frame.time_ms, at))
            at += size
        return marks[known:]

    def grow(self, marks: Sequence[Mark], frames: Sequence[Frame], size_bytes: int) -> None:
        """Takes note of frames that are written now."""
        if frames:
            self.marks += marks
            self.end_bytes += size_bytes
            self.last = frames[-1].without_payload()

    def listed(self) -> list[Extent]:
        marks = self.marks  # another thread may put another list in its place
        ends = [
            *((mark.first, mark.before_bytes) for mark in marks[1:]),
            (self.end, self.end_bytes),
        ]
        return [
            Extent(mark.first, end, size - mark.before_bytes, mark.begun_ms)
            for mark, (end, size) in zip(marks, ends, strict=False)
        ]

    def drop(self, before: int) -> int:
        """Forgets extents that end at or before a position; returns the first number that stays."""
        at = 0
        while at + 1 < len(self.marks) and self.marks[at + 1].first <= before:
            at += 1
        self.marks = self.marks[at:]
        return self.marks[0].number if self.marks else 0

    def numbers(self, position: int) -> range:
        """The numbers of the frames in the extent that a position would be in."""
        marks, last = self.marks, self.last
        if last is None or not marks:
            return range(0)
        at = max(0, bisect_right(marks, position, key=lambda mark: mark.first) - 1)
        end = marks[at + 1].number if at + 1 < len(marks) else last.number + 1
        return range(marks[at].number, end)


class Backend(Protocol):
    """A place for frames. It writes them as durably as it was opened to, or when `sync` is called.

    Failures of writing are OSError.
    """

    @property
    def name(self) -> str:
        """The place, as people are told of it: without secrets."""

    @property
    def extents(self) -> Extents:
        """The extents that were found, and those that were written since."""

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots that are kept beside the frames."""

    @property
    def is_shared(self) -> bool:
        """Whether others may write while this one has it open: then `write` tells who was first."""

    def find(self) -> Extents:
        """Looks for the extents there are now, where others write. Raises Damaged."""

    def write(self, frames: Sequence[Frame]) -> None:
        """Appends frames, all or none. Raises Deposed where another writer has come first."""

    def sync(self) -> None:
        """Makes all that was written durable."""

    def first_of(self, number: int) -> int | None:
        """The first position of a frame; None where the frame is not there."""

    def frames(self, number: int, size_bytes: int) -> list[Frame]:
        """Frames from a number on, about so many bytes of them, at least one. Raises Damaged."""

    def remove(self, before: int) -> bool:
        """Removes some frames below a number; returns whether there is more to do."""

    def free_bytes(self) -> int:
        """The bytes that can be written before there is no more room."""

    def check(self) -> None:
        """Has the system that keeps the frames check itself. Raises Damaged."""

    def close(self) -> None:
        """Lets go of everything."""


class BackendReading:
    """The frames of a backend, for a thread that may block."""

    def __init__(self, backend: Backend, *, others_write: bool = True) -> None:
        self.backend = backend
        self.others_write = others_write
        self._seen = backend.extents

    @property
    def extents(self) -> Extents:
        return self._seen if self.others_write else self.backend.extents

    def look(self) -> Extents:
        """The extents, with what others have written by now."""
        if self.others_write:
            self._seen = self.backend.find()
        return self.extents

    def all_frames(self, first: int, end: int) -> Iterator[Frame]:
        """The frames that hold positions from `first` up to `end`. Raises NotThere or Damaged."""
        for frames in self.chunks(first, end):
            yield from frames

    def chunks(self, first: int, end: int) -> Iterator[list[Frame]]:
        """The same, some at a time."""
        self.look()
        last: Frame | None = None
        number = self._number(first)
        while number:
            frames = self._from(number)
            for frame in frames:
                if last is not None and not frame.follows(last):
                    found = f"behind frame {last.number} comes frame {frame.number}"
                    raise self._damaged(last.number + 1, f"{found}, which does not follow it")
                last = frame
            yield [frame for frame in frames if frame.end > first and frame.first < end]
            newest = self.extents.last
            is_end = newest is None or frames[-1].number >= newest.number
            number = 0 if is_end or frames[-1].end >= end else frames[-1].number + 1

    def holding(self, position: int) -> list[Frame]:
        """Some frames, the first of which holds a position. Raises NotThere or Damaged."""
        extents = self.look()
        begin = next(iter(extents.marks), None)
        if begin is not None and begin.first <= position < extents.end:
            frames = self._from(self._number(position))
            if frames[0].first <= position < frames[0].end:
                return frames
        raise NotThere(f"position {position} is not in the journal")

    def _number(self, position: int) -> int:
        """The number of the last frame that begins at or before a position; 0: there is none."""
        numbers = self.extents.numbers(position)
        if not numbers:
            return 0
        return numbers[max(0, bisect_right(numbers, position, key=self._first_of) - 1)]

    def _first_of(self, number: int) -> int:
        found = self.backend.first_of(number)
        if found is None:
            raise self._missing(number)
        return found

    def _from(self, number: int) -> list[Frame]:
        frames = self.backend.frames(number, READ_BYTES)
        if not frames or frames[0].number != number:
            raise self._missing(number)
        return frames

    def _missing(self, number: int) -> NotThere | Damaged:
        marks = self.look().marks
        if marks and number < marks[0].number:
            return NotThere(f"positions before {marks[0].first} were trimmed")
        return self._damaged(number, "it is missing")

    def _damaged(self, number: int, what: str) -> Damaged:
        return Damaged(self.backend.name, number, what, unit="frame")


class BackendStore:
    """Makes a Store of a backend. Raises Damaged.

    With `read_only` nothing but snapshots is written, and what another process writes is seen.
    """

    segments = None
    pressed = False  # nobody is slowed down: what is short of room is full

    is_fresh = True  # who writes to it has locked it, or is refused

    def __init__(
        self,
        backend: Backend,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "fsync",
        interval_ms: int = INTERVAL_MS,
        read_only: bool = False,
    ) -> None:
        self._backend = backend
        self._reserve_bytes = RESERVE_SEGMENTS * segment_bytes
        self._durability = durability
        self._interval_ms = interval_ms
        self.snapshots = backend.snapshots
        self.last = backend.extents.last
        newest = max(self.snapshots.positions(), default=0)
        if newest > backend.extents.end:
            raise Damaged(
                backend.name, 0 if self.last is None else self.last.number,
                f"the journal ends at {backend.extents.end}, and a snapshot holds all up to"
                f" {newest}", unit="frame",
            )  # fmt: skip
        self._durable = self._written = backend.extents.end
        self._reading = BackendReading(backend, others_write=read_only or backend.is_shared)
        self._pending: list[Frame] = []
        self._failed: Lost | Deposed | None = None
        self._closed = False
        self._late: asyncio.TimerHandle | None = None
        self.spare_bytes = 0
        self.full = False
        if not read_only:
            self._look_for_room()
        self._writer = WriterThread("posthouse-journal")
        self._reader = ThreadPoolExecutor(1, "posthouse-journal-read")

    @property
    def durable(self) -> int:
        return max(self._durable, self._seen)

    @property
    def readable(self) -> int:
        return self.durable if self._durability == "fsync" else max(self._written, self._seen)

    @property
    def _seen(self) -> int:
        """The end of what others have written, where they may."""
        return self._reading.extents.end if self._reading.others_write else 0

    # Writing.

    def append(self, frame: Frame) -> None:
        assert len(frame.payload) <= PAYLOAD_BYTES_MAX  # nobody could read it
        self._pending.append(frame)

    def begin_sync(self) -> None:
        """There is nothing that could be begun before somebody waits for it."""

    def sync_at_once(self) -> bool:
        return False

    async def sync(self) -> None:
        frames, self._pending = self._pending, []
        if self._failed is not None:
            raise self._failed
        now = self._durability == "fsync" or any(frame.kind == CLOSING for frame in frames)
        try:
            await self._writer.do(self._write, frames, now)
        except Deposed as deposed:
            self._fail(deposed)
            raise
        except OSError as error:
            self._fail(Lost(f"the journal could not be written: {error}"))
            raise Lost(str(self._failed)) from error
        if self._durability == "interval" and self._late is None and not now:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._interval_ms / 1000, self._sync_late)

    def _fail(self, why: Lost | Deposed) -> None:
        self._failed = why
        self._reading.others_write = True

    def _write(self, frames: list[Frame], now: bool) -> None:
        self._backend.write(frames)
        if frames:
            self._reading.others_write = False  # a newer writer would have been in its way
            self._written = frames[-1].end
        if now:
            self._sync()
        self._look_for_room()

    def _sync(self) -> None:
        end = self._written
        self._backend.sync()
        self._durable = end

    def _sync_late(self) -> None:
        self._late = None
        self._writer.do(self._sync).add_done_callback(self._synced_late)

    def _synced_late(self, done: "asyncio.Future[None]") -> None:
        """Notes the end of a sync that nobody waited for: the next one raises its failure."""
        if (error := done.exception()) is not None:
            self._fail(Lost(f"the journal could not be written: {error}"))

    def _look_for_room(self) -> None:
        self.spare_bytes = self._backend.free_bytes()
        self.full = self.spare_bytes < self._reserve_bytes

    # Reading.

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        chunks = self._reading.chunks(first, end)
        loop = asyncio.get_running_loop()
        while (frames := await loop.run_in_executor(self._reader, next, chunks, None)) is not None:
            readable = self.readable
            for frame in frames:
                if frame.end > readable:  # it is written, but not durable yet
                    return
                yield frame

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._get, positions)

    def _get(self, positions: Sequence[int]) -> list[Frame]:
        found: dict[int, Frame] = {}
        near: list[Frame] = []
        for position in sorted(set(positions)):
            frame = _holding(near, position)
            if frame is None:
                near = self._reading.holding(position)
                frame = near[0]
            found[position] = frame
        return [found[position] for position in positions]

    def extents(self) -> list[Extent]:
        return self._reading.extents.listed()

    async def trim(self, before: int) -> None:
        """Removes whole extents, never the last, some frames at a time: syncs come in between."""
        number = self._backend.extents.drop(before)
        while await self._writer.do(self._backend.remove, number):
            pass

    async def verify(self, progress: Callable[[int], None]) -> int:
        """Reads all of it, and returns the number of frames. Raises Damaged."""
        await asyncio.to_thread(self._backend.check)
        count = 0
        async for _ in self.read(0, 1 << 63):
            count += 1
            if count % PROGRESS_FRAMES == 0:
                progress(count)
        return count

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._late is not None:
            self._late.cancel()
        self._writer.close()
        self._reader.shutdown()
        self._backend.close()


def _holding(frames: Sequence[Frame], position: int) -> Frame | None:
    return next((frame for frame in frames if frame.first <= position < frame.end), None)
