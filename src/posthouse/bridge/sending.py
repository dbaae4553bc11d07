"""The rows that a relay has read: which of them may be sent, and which are to be marked.

Of each key one row is in flight, and the next becomes ready when it was stored. Rows without a key
are ready at once. Nothing here waits, or knows a database.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from posthouse.bridge.errors import PublishFailed


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A row of the outbox that is to be sent."""

    id: int
    event_id: str
    lane: int
    token: int  # of the lane, when the row was read
    key: str
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    attempts: int
    enqueued: float  # by the monotonic clock


class SendQueue:
    """Rows from their reading until they are marked. They are added in the order of their ids."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._ready: deque[Pending] = deque()
        self._behind: dict[str, deque[Pending]] = {}  # by key; a key in it is ready or in flight
        self._in_flight: dict[int, Pending] = {}
        self.stored: list[tuple[Pending, int]] = []  # to be marked, with the place in the stream
        self.refused: list[tuple[Pending, PublishFailed]] = []  # to be marked as such

    def __len__(self) -> int:
        return len(self._known)

    @property
    def known(self) -> Collection[int]:
        """The ids of all rows here, which need not be read again."""
        return self._known

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def lanes_in_flight(self) -> set[int]:
        """The lanes of rows that are in flight, or not marked yet."""
        return {
            *(row.lane for row in self._in_flight.values()), *(row.lane for row, _ in self.stored),
            *(row.lane for row, _ in self.refused),
        }  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return bool(self._ready)

    def add(self, rows: Iterable[Pending]) -> None:
        for row in rows:
            self._known.add(row.id)
            if not row.key:
                self._ready.append(row)
            elif row.key in self._behind:
                self._behind[row.key].append(row)
            else:
                self._behind[row.key] = deque()
                self._ready.append(row)

    def take(self, count: int) -> list[Pending]:
        """Takes up to so many ready rows, which are in flight then; no two of a key."""
        rows = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self._in_flight |= {row.id: row for row in rows}
        return rows

    def was_stored(self, row: Pending, sequence: int) -> None:
        del self._in_flight[row.id]
        self.stored.append((row, sequence))
        self._go_on(row.key)

    def was_refused(self, row: Pending, failure: PublishFailed, *, holds_key: bool) -> None:
        """Lets the next row of the key go on; or, if the refused one holds it, forgets them."""
        del self._in_flight[row.id]
        self.refused.append((row, failure))
        if holds_key and row.key:
            self._known -= {later.id for later in self._behind.pop(row.key)}
        else:
            self._go_on(row.key)

    def send_again(self, rows: Iterable[Pending]) -> None:
        """Puts rows that were in flight back to the front, in their order."""
        again = list(rows)
        for row in again:
            del self._in_flight[row.id]
        self._ready.extendleft(reversed(again))

    def forget(self, rows: Iterable[Pending]) -> None:
        """Forgets rows that were marked."""
        self._known -= {row.id for row in rows}

    def forget_lanes(self, tokens: Mapping[int, int]) -> None:
        """Forgets what is not in flight of lanes that are held no more."""
        ready, self._ready = self._ready, deque()
        for row in ready:
            if tokens.get(row.lane) == row.token:
                self._ready.append(row)
                continue
            self._known.discard(row.id)
            if row.key:
                self._known -= {later.id for later in self._behind.pop(row.key)}
        for rows in self._behind.values():  # behind one that is in flight
            kept = [row for row in rows if tokens.get(row.lane) == row.token]
            self._known -= {row.id for row in rows} - {row.id for row in kept}
            rows.clear()
            rows.extend(kept)

    def _go_on(self, key: str) -> None:
        behind = self._behind.get(key)
        if behind:
            self._ready.append(behind.popleft())
        elif behind is not None:
            del self._behind[key]
