"""The relay: sends what the outbox holds, and marks what was stored.

Relays divide the lanes of the outbox, and of each lane one relay at a time sends the events.
Rows are found by their state, not behind the last one seen: ids are given before the commit, and
the row of a late transaction would never be found. Of a key, an event is sent when the one before
it was stored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from posthouse.bridge.database import Database
from posthouse.bridge.tables import LANES, Tables
from posthouse.bridge.transport import Transport


@dataclass(frozen=True)
class RelaySettings:
    """The settings of a relay. Times are in seconds."""

    lanes: int = LANES  # of the outbox; its writers are told the same number
    lease_seconds: float = 10.0  # for which lanes are taken
    renew_seconds: float = 3.0
    margin_seconds: float = 2.0  # before the end of its lease the relay stops sending
    batch_rows: int = 500  # that are read at a time
    in_flight: int = 256  # rows that are sent and not acknowledged
    poll_seconds: float = 0.05  # between two looks while rows come
    poll_seconds_max: float = 1.0  # when none come
    retry_seconds: float = 0.05  # before the first retry while the transport is away
    retry_seconds_max: float = 5.0
    attempts_max: int = 10  # of a row that the transport refuses, after which it is failed
    strict_order: bool = False  # a refused row holds up the later rows of its key
    delete_sent: bool = False  # sent rows are deleted instead of marked
    keep_sent_seconds: float = 3 * 86_400.0  # after which sent rows are pruned
    keep_seen_seconds: float = 7 * 86_400.0  # after which rows of the inbox are pruned
    prune_seconds: float = 60.0  # between two rounds of pruning
    prune_rows: int = 5_000  # that one statement deletes at most


@dataclass
class RelayFigures:
    """What a relay has done since it started."""

    relayed: int = 0  # rows that were stored and marked
    duplicates: int = 0  # of these the transport had stored before
    refused: int = 0  # refusals of single rows
    failed: int = 0  # rows that were refused for the last time
    retried: int = 0  # rows that are sent again because the transport was away
    reads: int = 0  # looks at the outbox
    pruned: int = 0  # rows
    lanes: tuple[int, ...] = ()  # that the relay has now
    transport_down_since: float | None = None  # seconds since 1970
    database_down_since: float | None = None
    last_error: str = field(default="", repr=False)


class Relay:
    """Sends the rows of one outbox over a transport, beside other relays."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        transport: Transport,
        settings: RelaySettings | None = None,
        *,
        name: str = "",
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`observe` is told the seconds from each row's insert to its acknowledgement."""
        self.figures = RelayFigures()

    async def run(self) -> None:
        """Relays until it is cancelled, or `stop` is called; outages are waited for."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Waits for what is in flight, marks it, and gives the lanes back."""

    def wake(self) -> None:
        """Lets the relay look at once. May be called from any thread."""

    async def settle(self) -> None:
        """Returns when nothing is left to be sent now. For tests."""
