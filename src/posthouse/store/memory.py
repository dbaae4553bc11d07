"""The journal in memory: for tests, and for brokers that may forget."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from posthouse.store import Extent
from posthouse.store.errors import NotThere
from posthouse.store.frames import Frame
from posthouse.store.snapshots import MemorySnapshots


class MemoryStore:
    """Durable for as long as the object lives. Opening it again is passing its `frames` on.

    With `keep_bytes` only that much is kept, for who reads behind; then it cannot be opened again,
    and bodies must not be evicted.
    """

    segments = None

    def __init__(self, frames: Sequence[Frame] = (), keep_bytes: int | None = None) -> None:
        self.frames = list(frames)  # the durable ones
        self.last = self.frames[-1].without_payload() if self.frames else None
        self.full = self.pressed = False
        self.snapshots = MemorySnapshots()
        self._pending: list[Frame] = []
        self._keep_bytes = keep_bytes
        self._bytes = 0  # that were added since it was last trimmed

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
        self.frames += self._pending
        if self._keep_bytes is not None:
            self._bytes += sum(frame.size_bytes for frame in self._pending)
            if self._bytes > self._keep_bytes:
                self._drop(self._keep_bytes)
        self._pending = []

    def _drop(self, keep_bytes: int) -> None:
        """All but the newest, half of what may be kept at least."""
        at, size = len(self.frames), 0
        while at and size < keep_bytes // 2:
            at -= 1
            size += self.frames[at].size_bytes
        self.frames, self._bytes = self.frames[at:], size

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        for frame in list(self.frames):
            if frame.end > first and frame.first < end:
                yield frame

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        return [self._holding(position) for position in positions]

    def _holding(self, position: int) -> Frame:
        at = bisect_right(self.frames, position, key=lambda frame: frame.first) - 1
        # A closing frame has no positions of its own, so it begins where the next frame does.
        while at >= 0 and self.frames[at].count == 0:
            at -= 1
        if at < 0 or self.frames[at].end <= position:
            raise NotThere(f"position {position} is not in the journal")
        return self.frames[at]

    def extents(self) -> list[Extent]:
        return [Extent(f.first, f.end, f.size_bytes, f.time_ms) for f in self.frames]

    async def trim(self, before: int) -> None:
        keep = [frame for frame in self.frames if frame.end > before]
        self.frames = keep or self.frames[-1:]

    async def close(self) -> None:
        self._pending = []
