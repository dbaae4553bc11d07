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
        self._held: set[str] = set()  # keys that a refused row holds up
        self._held_there: set[str] = set()  # of these: those whose row is marked as refused
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

    def begin_read(self) -> frozenset[str]:
        """Returns the keys that the database knows to be held up, for `end_read`."""
        return frozenset(self._held_there)

    def end_read(self, held: frozenset[str]) -> None:
        """What is read from now on has no rows behind those refusals."""
        self._held -= held
        self._held_there -= held

    def add(self, rows: Iterable[Pending]) -> None:
        """Adds rows, but for those behind a refusal that was not marked when they were read."""
        for row in rows:
            if row.key in self._held:
                continue
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
            self._held.add(row.key)
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
        marked = list(rows)
        self._known -= {row.id for row in marked}
        self._held_there |= self._held & {row.key for row in marked}

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
