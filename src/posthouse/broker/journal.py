"""The engine's end of the store: positions, and the frames that records become."""

import time
from collections.abc import Sequence

import msgspec

from posthouse.broker import payload
from posthouse.broker.figures import Figures
from posthouse.broker.tail import Tail
from posthouse.core.records import span
from posthouse.store import Store
from posthouse.store.errors import OutOfTurn
from posthouse.store.frames import CLOSING, Frame


class Journal:
    """The journal as the engine writes or follows it. The engine advances `position` by records."""

    def __init__(
        self,
        store: Store,
        last: Frame,
        figures: Figures,
        compression: payload.Compression | None,
    ) -> None:
        self.store = store
        self.position = last.end  # of the next record
        self.safe = last.end  # everything below is as durable as was asked for
        self.synced = 0.0  # when the last sync had returned, by `perf_counter`
        self.tail = Tail()
        self._last = last  # the last frame, without its payload
        self._figures = figures
        self._compression = compression

    @property
    def leaves_below(self) -> int:
        """The end of the positions whose messages may be delivered before their locks are durable.

        None may where the store does not know for sure that nobody else leads.
        """
        return self.safe if self.store.is_fresh else 0

    @property
    def epoch(self) -> int:
        return self._last.epoch

    @property
    def last(self) -> Frame:
        """The last frame that was appended or followed, without its payload."""
        return self._last

    def begin(self, epoch: int) -> None:
        """Frames are of this epoch from now on."""
        self._last = msgspec.structs.replace(self._last, epoch=epoch)

    def check_next(self, frame: Frame) -> None:
        """Whether a frame that another broker has written is the next. Raises OutOfTurn."""
        last = self._last
        if not frame.follows(last):
            raise OutOfTurn(
                f"frame {frame.number} of epoch {frame.epoch} at position {frame.first} does not"
                f" follow frame {last.number} of epoch {last.epoch}, which ends at {last.end}"
            )

    def follow(self, frame: Frame) -> None:
        """A frame that another broker has written was made so here."""
        self._last = frame.without_payload()
        self.position = self.safe = frame.end
        if self.tail:
            self.tail.tell(frame.end)

    def append(self, entries: Sequence[payload.Entry], now_ms: int) -> None:
        """Appends a frame as soon as the batch is closed: later records come behind it."""
        last = self._last
        frame = Frame(
            last.epoch, last.number + 1, last.end, self.position - last.end, self.store.durable,
            now_ms, payload.encode(entries, self._compression),
        )  # fmt: skip
        self.store.append(frame)
        self._last = frame.without_payload()
        self._figures.frame_bytes.add(frame.size_bytes)
        counts = self._figures.records
        for _, record in entries:
            counts[type(record)] += span(record)

    def begin_sync(self) -> None:
        self.store.begin_sync()

    async def sync(self) -> None:
        """Raises StoreError."""
        end = self._last.end
        begun = time.perf_counter()
        await self.store.sync()
        self._note_synced(begun, end)

    def sync_at_once(self) -> bool:
        """Syncs if the store can do so in this turn; returns whether it did. Raises StoreError."""
        begun = time.perf_counter()
        if not self.store.sync_at_once():
            return False
        self._note_synced(begun, self._last.end)
        return True

    def _note_synced(self, begun: float, end: int) -> None:
        self.synced = time.perf_counter()
        self._figures.sync_seconds.add(self.synced - begun)
        self.safe = end
        if self.tail:
            self.tail.tell(end)

    async def end(self, now_ms: int) -> None:
        """A clean stop: a closing frame, behind which every damage is named. Raises StoreError."""
        last, end = self._last, self._last.end
        self.store.append(Frame(last.epoch, last.number + 1, end, 0, end, now_ms, b"", CLOSING))
        await self.store.sync()
