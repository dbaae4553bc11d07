"""The journal in memory: for tests, and for brokers that may forget.

Several stores may share one journal, as brokers on several machines do: one writes, and the others
read behind it until one of them takes over.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from posthouse.store import Extent
from posthouse.store.errors import Deposed, NotThere
from posthouse.store.frames import Frame
from posthouse.store.snapshots import MemorySnapshots


class MemoryJournal:
    """Durable for as long as the object lives.

    A frame is taken only where it follows the last one, so the first frame of a newer epoch deposes
    the older writer. With `keep_bytes` only that much is kept.
    """

    def __init__(self, frames: Sequence[Frame] = (), keep_bytes: int | None = None) -> None:
        self.frames = list(frames)
        self.snapshots = MemorySnapshots()
        self._keep_bytes = keep_bytes
        self._bytes = 0  # that were added since it was last trimmed

    @property
    def last(self) -> Frame | None:
        return self.frames[-1] if self.frames else None

    def add(self, frames: Sequence[Frame], behind: Frame | None) -> None:
        """Takes frames of the writer whose last one was `behind`: all of them, or Deposed."""
        last = self.last
        if last is not None:
            is_next = not frames or frames[0].follows(last)
            if not is_next or (behind is not None and behind is not last):
                raise Deposed(last.epoch)
        self.frames += frames
        if self._keep_bytes is not None:
            self._bytes += sum(frame.size_bytes for frame in frames)
            if self._bytes > self._keep_bytes:
                self._drop(self._keep_bytes)

    def _drop(self, keep_bytes: int) -> None:
        """Drops all but the newest frames; keeps at least half of `keep_bytes`."""
        at, size = len(self.frames), 0
        while at and size < keep_bytes // 2:
            at -= 1
            size += self.frames[at].size_bytes
        self.frames, self._bytes = self.frames[at:], size

    def trim(self, before: int) -> None:
        keep = [frame for frame in self.frames if frame.end > before]
        self.frames = keep or self.frames[-1:]


class MemoryStore:
    """A journal of its own, or one that is shared. Opening it again is passing its `frames` on.

    With `keep_bytes` only that much is kept, for who reads behind; then it cannot be opened again,
    and bodies must not be evicted.
    """

    segments = None
    is_fresh = True

    def __init__(
        self,
        frames: Sequence[Frame] = (),
        keep_bytes: int | None = None,
        *,
        journal: MemoryJournal | None = None,
    ) -> None:
        self.journal = journal or MemoryJournal(frames, keep_bytes)
        self.snapshots = self.journal.snapshots
        last = self.journal.last
        self.last = None if last is None else last.without_payload()
        self.full = self.pressed = False
        self._pending: list[Frame] = []
        self._written: Frame | None = None  # the last one that this store has added
        self._deposed: int | None = None  # the epoch of who has taken over

    @property
    def frames(self) -> list[Frame]:
        """The durable ones."""
        return self.journal.frames

    @property
    def spare_bytes(self) -> int:
        return 0 if self.full else 1 << 62

    @property
    def durable(self) -> int:
        return self.frames[-1].end if self.frames else 1

    @property
    def readable(self) -> int:
        return self.durable

    def append(self, frame: Frame) -> None:
        self._pending.append(frame)

    async def sync(self) -> None:
        self._add_pending()

    def begin_sync(self) -> None:
        """There is nothing that could be begun before somebody waits for it."""

    def sync_at_once(self) -> bool:
        self._add_pending()
        return True

    def _add_pending(self) -> None:
        frames, self._pending = self._pending, []
        self._add(frames)

    def _add(self, frames: Sequence[Frame]) -> None:
        """Raises Deposed, from then on always: frames are missing before those that come."""
        if self._deposed is not None:
            raise Deposed(self._deposed)
        try:
            self.journal.add(frames, self._written)
        except Deposed as deposed:
            self._deposed = deposed.epoch
            raise
        if frames:
            self._written = frames[-1]

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        for frame in list(self.frames):
            if frame.end > first and frame.first < end:
                yield frame

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        return [self._holding(position) for position in positions]

    def _holding(self, position: int) -> Frame:
        frames = self.frames
        at = bisect_right(frames, position, key=lambda frame: frame.first) - 1
        # A closing frame has no positions of its own, so it begins where the next frame does.
        while at >= 0 and frames[at].count == 0:
            at -= 1
        if at < 0 or frames[at].end <= position:
            raise NotThere(f"position {position} is not in the journal")
        return frames[at]

    def extents(self) -> list[Extent]:
        return [Extent(f.first, f.end, f.size_bytes, f.time_ms) for f in self.frames]

    async def trim(self, before: int) -> None:
        self.journal.trim(before)

    async def close(self) -> None:
        self._pending = []
