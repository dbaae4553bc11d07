"""A durable journal of frames. It does not know what is in them.

`append` is in memory and cannot fail; what was appended is durable when `sync` has returned, and
not before. Stores may be remote and slow, and a writer may be deposed, so nothing assumes a file.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from posthouse.store.frames import Frame


class Store(Protocol):
    """Where frames go. One writer; positions and frame numbers have no gaps."""

    @property
    def last(self) -> Frame | None:
        """The last frame found when the store was opened, without its payload."""

    @property
    def full(self) -> bool:
        """Whether only the reserve is left: nothing that takes much room may be appended."""

    def append(self, frame: Frame) -> None:
        """In memory; cannot fail."""

    async def sync(self) -> None:
        """All that was appended is durable. Raises Lost or Deposed: then the state is void."""

    def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        """The frames that hold positions from `first` up to, not including, `end`."""

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        """For each position the frame that holds it. Raises NotThere."""

    async def trim(self, before: int) -> None:
        """Frames that end at or before a position may go. It may keep more than it must."""

    async def close(self) -> None:
        """Lets go of everything. Syncs nothing: a clean stop has synced its closing frame."""
