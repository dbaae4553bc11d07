"""A durable journal of frames. It does not know what is in them.

`append` is in memory and cannot fail; what was appended is durable when `sync` has returned, and
not before. Stores may be remote and slow, and a writer may be deposed, so nothing assumes a file.

`Store` is frames in order. `Segments` is the same frames as files of a local folder, for those who
need files: Arrow segments, processes that read the journal, retention, figures of the disk. A store
that is not a folder may keep such a folder beside it, or have none.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from posthouse.store.frames import Frame
from posthouse.store.segments import Segment


class Extent(NamedTuple):
    """A run of positions that is stored, and trimmed, as one piece."""

    first: int
    end: int
    size_bytes: int
    begun_ms: int  # when its first frame was written


class Room(NamedTuple):
    """The use of the disk under a journal, in bytes."""

    free: int
    journal: int  # segments
    arrow: int  # Arrow segments, which can be made again


class Readable(Protocol):
    """The frames of a journal, to be read."""

    def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        """The frames that hold positions from `first` up to, not including, `end`.

        Raises Damaged where one of them cannot be read.
        """


class Store(Readable, Protocol):
    """An append-only journal with one writer: positions and frame numbers have no gaps."""

    @property
    def last(self) -> Frame | None:
        """The last frame found when the store was opened, without its payload."""

    @property
    def full(self) -> bool:
        """Whether only the reserve is left: nothing that takes much room may be appended."""

    @property
    def pressed(self) -> bool:
        """Whether room is short, and is being made: senders are to be slowed down meanwhile."""

    @property
    def spare_bytes(self) -> int:
        """The bytes that can certainly be appended, even while it is full; settling needs some."""

    @property
    def durable(self) -> int:
        """The end of the durable positions: those below are still there after a power cut."""

    @property
    def is_fresh(self) -> bool:
        """Whether nobody else can have taken over this journal and delivered from it yet."""

    @property
    def readable(self) -> int:
        """The end of the readable positions: those below are as durable as was asked for."""

    @property
    def segments(self) -> "Segments | None":
        """The frames as files, where the store keeps them in a folder of this machine."""

    @property
    def snapshots(self) -> "Snapshots":
        """The snapshots of this journal."""

    def append(self, frame: Frame) -> None:
        """Appends a frame in memory; cannot fail."""

    async def sync(self) -> None:
        """Makes everything that was appended as durable as this store was asked to.

        Raises Lost or Deposed: then the state is void.
        """

    def begin_sync(self) -> None:
        """Begins to write what was appended, where that is done beside the event loop.

        The next `sync` waits for it. Until then nothing more is begun.
        """

    def sync_at_once(self) -> bool:
        """Does what `sync` does, where that takes no longer than to wait for it.

        Returns whether it did; if not, nothing has changed. Raises Lost or Deposed.
        """

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        """Returns for each position the frame that holds it. Raises NotThere or Damaged."""

    def extents(self) -> list[Extent]:
        """The extents of the journal, the oldest first. The last one is still being written."""

    async def trim(self, before: int) -> None:
        """Frames that end at or before a position may go. It may keep more than it must."""

    async def close(self) -> None:
        """Lets go of everything. Syncs nothing: a clean stop has synced its closing frame."""


class Segments(Protocol):
    """A journal's frames as files in a local folder, each segment with its Arrow segment."""

    @property
    def folder(self) -> Path:
        """The folder of the files; other processes may read them there."""

    @property
    def segment_bytes(self) -> int:
        """The bytes that a new segment takes on disk."""

    @property
    def rolled(self) -> asyncio.Event:
        """Set when a segment was begun or the disk became full; cleared by who tidies then."""

    @property
    def filled(self) -> asyncio.Event:
        """Set while the store is `full`."""

    @property
    def is_short(self) -> bool:
        """Whether the disk has little room left, or none."""

    def sealed(self) -> list[Segment]:
        """Segments that do not change any more, the oldest first."""

    def room(self) -> Room:
        """Asks the disk: not for the event loop's thread where there may be many files."""

    async def drop_arrow_segments(self, free: int) -> None:
        """Removes Arrow segments, the oldest first, until so many bytes are free."""

    def note_trimmed(self) -> None:
        """Notes that retention has trimmed what it could: senders are no longer slowed down."""


class Snapshot(NamedTuple):
    """The state after all frames up to and including `last`, in parts."""

    last: Frame  # without its payload
    parts: Iterable[bytes]


class Snapshots(Protocol):
    """The stored snapshots: the newest and the one before it, and none that is incomplete."""

    async def save(self, snapshot: Snapshot) -> None:
        """Saves a snapshot completely or not at all, whatever happens meanwhile."""

    async def load(self, end: int) -> Snapshot | None:
        """The newest that is whole and holds no position from `end` on."""

    def positions(self) -> list[int]:
        """The position at which each snapshot ends, the newest first."""

    def whole(self) -> list[int]:
        """The positions of the snapshots that are not damaged. Reads all of them."""
