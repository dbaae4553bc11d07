"""The inbox: an event has its effect once, however often it is delivered.

`transactional`: the inbox's row and what the handler writes are one transaction. The row is
inserted first, as `processed`; a concurrent duplicate waits for it at the table's key, and is then
found to be one. `marked`, for handlers that do not use our session: the row is `processing`, with a
lease, before the handler runs, and `processed` after it; a crash between runs the handler again.
`off`: there is no row.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from posthouse.bridge.database import (
    TROUBLE,
    Database,
    first_line,
    is_duplicate,
    later,
    literal,
    now,
)
from posthouse.bridge.errors import BridgeError
from posthouse.bridge.tables import FAILED, PROCESSED, PROCESSING, TEXT_CHARS_MAX, Tables

_log = logging.getLogger("posthouse.bridge")

T = TypeVar("T")
_KEPT = ("consumer", "event_id", "attempts")  # of a row that was there
Mode = Literal["transactional", "marked", "off"]
State = Literal["new", "seen", "busy"]

LEASE_SECONDS = 30.0  # of an event in `marked` mode; it is renewed while the handler runs
LEASE_US = round(LEASE_SECONDS * 1_000_000)
KEEP_SECONDS = 7 * 86_400.0  # for which an event is remembered


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """The facts of a delivery that the inbox notes."""

    event_id: str  # "": it has none, and its place in the stream is its key
    stream: str
    sequence: int
    deliveries: int = 1
    event_type: str = ""
    resource_type: str = ""
    resource_id: str = ""
    subject: str = ""
    payload: bytes | None = None  # these two are kept only where the table has columns for them
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The text that stands for the event in the inbox."""
        return inbox_key(self.event_id, self.stream, self.sequence)


@dataclass(frozen=True, slots=True)
class Work:
    """The states of deliveries, and the session for their effects.

    An entry is `new`: handle it; `seen`: it was handled, acknowledge it; or, in `marked` mode only,
    `busy`: another process is at it, let it be delivered again later.
    """

    states: Sequence[State]
    session: Any  # AsyncSession, Session, or None in `marked` mode

    @property
    def is_new(self) -> bool:
        return self.states[0] == "new"

    @property
    def is_busy(self) -> bool:
        return self.states[0] == "busy"


class Inbox:
    """The inbox of one consumer, whose name (of service and handler) is part of every key."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        consumer: str,
        *,
        mode: Mode = "transactional",
        sessions: Callable[[], AsyncSession | Session] | None = None,
    ) -> None:
        """`sessions` makes the sessions, if they are to be others than SQLAlchemy's plain ones."""
        self._database = database
        self._rows = InboxRows(tables, consumer, mode)
        self._mode = mode
        self._sessions = sessions if sessions is not None else self._new_session

    def _new_session(self) -> AsyncSession | Session:
        engine = self._database.engine
        if isinstance(engine, AsyncEngine):
            return AsyncSession(engine, expire_on_commit=False)
        return Session(engine, expire_on_commit=False)

    @contextlib.asynccontextmanager
    async def handling(self, entry: InboxEntry) -> AsyncIterator[Work]:
        """Encloses the handling of one delivery; commits what was done, with the inbox's row.

        What is raised inside rolls all of it back, is noted with the row, and is raised on. The
        session of a synchronous engine may be used in any one thread at a time. Raises BridgeError
        if the handler has ended the transaction itself, and what the database raises.
        """
        try:
            async with self.handling_many([entry]) as work:
                yield work
        except Exception as error:
            await self._note(entry, error)
            raise

    @contextlib.asynccontextmanager
    async def handling_many(self, entries: Sequence[InboxEntry]) -> AsyncIterator[Work]:
        """As `handling`, for a batch in one transaction; `Work.states` has a state for each.

        What is raised inside rolls all back and is noted nowhere: handle them one by one then.
        """
        if self._mode == "marked":
            async with self._marked(entries) as work:
                yield work
        else:
            async with self._in_transaction(entries) as work:
                yield work

    @contextlib.asynccontextmanager
    async def _in_transaction(self, entries: Sequence[InboxEntry]) -> AsyncIterator[Work]:
        session = self._sessions()
        sync = session.sync_session if isinstance(session, AsyncSession) else session
        run = self._runner(session)
        try:
            states = await run(lambda: self._rows.begin(sync.connection(), entries))
            transaction = sync.get_transaction()
            yield Work(states, session)
            if sync.get_transaction() is not transaction:
                raise BridgeError(
                    "The handler has ended the transaction of its session. Leave commit and"
                    " rollback to the bridge: it commits the event's row with the handler's writes."
                )
            await run(sync.commit)
        finally:
            await self._close(session)

    def _runner(self, session: AsyncSession | Session) -> Callable[[Callable[[], T]], Awaitable[T]]:
        if isinstance(session, AsyncSession):
            return lambda work: session.run_sync(lambda _: work())
        return self._database.in_thread

    async def _close(self, session: AsyncSession | Session) -> None:
        """Rolls back what was not committed, also for a task that is cancelled."""
        if isinstance(session, AsyncSession):
            await asyncio.shield(asyncio.ensure_future(session.close()))
        else:
            await self._database.in_thread(session.close)

    @contextlib.asynccontextmanager
    async def _marked(self, entries: Sequence[InboxEntry]) -> AsyncIterator[Work]:
        states = await self._database.run(lambda c: self._rows.begin(c, entries))
        new = [entry for entry, state in zip(entries, states, strict=True) if state == "new"]
        renewing = asyncio.create_task(self._renew(new)) if new else None
        try:
            yield Work(states, None)
            if new:
                await self._database.run(lambda c: self._rows.end(c, new))
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.wait([renewing])

    async def _renew(self, entries: Sequence[InboxEntry]) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                await self._database.run(lambda c: self._rows.renew(c, entries))
            except TROUBLE as error:
                _log.warning("The lease of an event could not be renewed: %s", first_line(error),
                             extra={"event": "bridge.inbox"})  # fmt: skip

    async def _note(self, entry: InboxEntry, error: Exception) -> None:
        """Notes attempts and error in a transaction of its own. What fails here changes nothing."""
        if self._mode == "off":
            return
        try:
            await self._database.run(lambda c: self._rows.fail(c, entry, first_line(error)))
        except TROUBLE as trouble:
            _log.warning("An error of %s could not be noted in the inbox: %s", entry.key,
                         first_line(trouble), extra={"event": "bridge.inbox"})  # fmt: skip


class InboxRows:
    """The statements of the inbox of one consumer."""

    def __init__(self, tables: Tables, consumer: str, mode: Mode) -> None:
        self._table = tables.inbox
        self._keep_payload = tables.keep_payload
        self._consumer = consumer
        self._mode = mode
        c = self._table.c
        is_over = sql.func.coalesce(c.lease_until, now()) <= now()
        is_begun = c.status == literal(PROCESSING)
        # Nobody has done it, and nobody is at it.
        self._is_free = sql.or_(c.status == literal(FAILED), sql.and_(is_begun, is_over))

    def begin(self, connection: Connection, entries: Sequence[InboxEntry]) -> list[State]:
        """Takes the entries that nobody has handled; returns the state of each."""
        if self._mode == "off":
            return ["new"] * len(entries)
        first = {entry.key: entry for entry in reversed(entries)}
        if self._mode == "transactional":
            how: dict[str, Any] = {"status": literal(PROCESSED), "processed_at": now()}
        else:
            how = {"status": literal(PROCESSING), "lease_until": later(LEASE_US)}
        new = self._take(connection, list(first.values()), how)
        states: dict[str, State] = dict.fromkeys(new, "new")
        if len(new) < len(first):
            states |= self._others(connection, [key for key in first if key not in new])
        found: list[State] = []
        for entry in entries:
            found.append(states[entry.key])
            if states[entry.key] == "new":  # a second delivery in one batch is seen
                states[entry.key] = "seen"
        return found

    def end(self, connection: Connection, entries: Sequence[InboxEntry]) -> None:
        """Marks entries as processed, in `marked` mode."""
        done = {"status": PROCESSED, "processed_at": now(), "lease_until": None, "error": None}
        self._update(connection, entries, self._table.c.status == PROCESSING, done)

    def renew(self, connection: Connection, entries: Sequence[InboxEntry]) -> None:
        """Renews the leases of entries, in `marked` mode."""
        lease = {"lease_until": later(LEASE_US)}
        self._update(connection, entries, self._table.c.status == PROCESSING, lease)

    def fail(self, connection: Connection, entry: InboxEntry, error: str) -> None:
        """Notes that the handling of an entry has failed."""
        how = {"status": FAILED, "failed_at": now(), "error": error, "lease_until": None}
        if self._mode == "marked":  # the attempt is counted
            self._update(connection, [entry], self._table.c.status == PROCESSING, how)
        else:
            self._take(connection, [entry], how)

    def _take(
        self, connection: Connection, entries: Sequence[InboxEntry], how: Mapping[str, Any]
    ) -> set[str]:
        """Inserts entries, or changes the rows of those that are free; returns whose keys."""
        rows = [self._row(entry) for entry in entries]
        if connection.dialect.name == "postgresql":
            return self._upsert(connection, rows, postgresql.insert(self._table), how)
        if connection.dialect.name == "sqlite":
            return self._upsert(connection, rows, sqlite.insert(self._table), how)
        return self._insert_or_update(connection, entries, rows, how)

    def _upsert(
        self,
        connection: Connection,
        rows: Sequence[dict[str, Any]],
        insert: "postgresql.Insert | sqlite.Insert",
        how: Mapping[str, Any],
    ) -> set[str]:
        c, ours = self._table.c, {name for name in (*rows[0], *how) if name not in _KEPT}
        again: dict[str, Any] = {name: insert.excluded[name] for name in sorted(ours)}
        again = {"error": sql.null(), **again, "attempts": c.attempts + sql.literal_column("1")}
        statement = insert.values(received_at=now(), **how).on_conflict_do_update(
            index_elements=[c.consumer, c.event_id], set_=again, where=self._is_free
        )
        return set(connection.scalars(statement.returning(c.event_id), rows))

    def _insert_or_update(
        self,
        connection: Connection,
        entries: Sequence[InboxEntry],
        rows: Sequence[dict[str, Any]],
        how: Mapping[str, Any],
    ) -> set[str]:
        """Does with MySQL what others do in one statement.

        A concurrent duplicate among several rows raises IntegrityError; alone it is waited for.
        """
        insert = self._table.insert().values(received_at=now(), **how)
        there = self._there(connection, [entry.key for entry in entries]) if len(rows) > 1 else {}
        new = [row for row in rows if row["event_id"] not in there]
        taken = {row["event_id"] for row in new}
        try:
            if new:
                connection.execute(insert, new)
        except IntegrityError as error:
            if not is_duplicate(error) or len(rows) > 1:
                raise
            taken = set()
        for entry, row in zip(entries, rows, strict=True):
            if entry.key in taken:
                continue
            again = {name: value for name, value in row.items() if name not in _KEPT}
            again |= {"attempts": self._table.c.attempts + 1, "error": None, **how}
            if self._update(connection, [entry], self._is_free, again):
                taken.add(entry.key)
        return taken

    def _update(
        self,
        connection: Connection,
        entries: Sequence[InboxEntry],
        condition: sql.ColumnElement[bool],
        values: Mapping[str, Any],
    ) -> int:
        c = self._table.c
        keys = [entry.key for entry in entries]
        update = self._table.update().where(
            c.consumer == self._consumer, c.event_id.in_(keys), condition
        )
        return connection.execute(update.values(**values)).rowcount

    def _there(self, connection: Connection, keys: Sequence[str]) -> dict[str, str]:
        """Returns the status of those keys that have a row."""
        c = self._table.c
        asked = sql.select(c.event_id, c.status).where(
            c.consumer == self._consumer, c.event_id.in_(keys)
        )
        return {row.event_id: row.status for row in connection.execute(asked)}

    def _others(self, connection: Connection, keys: Sequence[str]) -> dict[str, State]:
        """Returns the states of entries that could not be taken."""
        there = self._there(connection, keys)
        return {key: "seen" if there.get(key) == PROCESSED else "busy" for key in keys}

    def _row(self, entry: InboxEntry) -> dict[str, Any]:
        row: dict[str, Any] = {
            "consumer": self._consumer, "event_id": entry.key, "stream": entry.stream,
            "stream_sequence": entry.sequence, "attempts": 1, "deliveries": entry.deliveries,
            "event_type": entry.event_type, "resource_type": entry.resource_type,
            "resource_id": entry.resource_id, "subject": entry.subject,
        }  # fmt: skip
        if self._keep_payload:
            row |= {"payload": entry.payload, "headers": dict(entry.headers)}
        return row


def inbox_key(event_id: str, stream: str, sequence: int) -> str:
    """Returns the key of an event: its id, or its place in the stream.

    An id that databases would compare each in its own way is hashed: blanks at the end, letters
    beyond ASCII, more than the column takes.
    """
    key = event_id or f"{stream}:{sequence}"
    if len(key) <= TEXT_CHARS_MAX and key.isascii() and key.isprintable() and " " not in key:
        return key
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def check_retention(keep_seconds: float, late_seconds: float) -> str:
    """Says what is wrong if a duplicate may come after the inbox has forgotten the event.

    `late_seconds` is how late a duplicate may come: the stream's maximal age, or the longest outage
    and all retries. "" says that nothing is wrong.
    """
    if keep_seconds > late_seconds:
        return ""
    return (
        f"The inbox forgets events after {keep_seconds:,.0f} s, and a duplicate may come after"
        f" {late_seconds:,.0f} s; it would be handled again. Keep them longer with `keep_seen`."
    )
