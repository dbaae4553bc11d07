"""The outbox: events are rows that the user's own transaction writes, and a relay sends them.

A row is written through whatever the transaction is in: a Session or an AsyncSession, where it is
added and goes with the flush; a Connection or a DB-API cursor, where it is inserted at once; an
AsyncConnection, where it is inserted at the commit, since nothing is awaited here.
"""

import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, registry

from posthouse.bridge.database import later, now
from posthouse.bridge.errors import ConfigurationError, PublishFailed
from posthouse.bridge.tables import LANES, PENDING, TEXT_CHARS_MAX, Tables

Wake = Callable[[], None]  # is called in any thread, and must not block

_SESSION_WROTE = "posthouse.bridge wrote"  # in a session's info: its transaction has rows
DELAY_SECONDS_MAX = 10 * 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An encoded event, as it is written to the outbox."""

    event_id: str
    subject: str
    payload: bytes  # the envelope
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # events of one key are sent in order
    event_type: str = ""
    resource_type: str = ""
    resource_id: str = ""
    delay: float = 0.0  # seconds until it may be sent


def lane_of(key: str, event_id: str, lanes: int) -> int:
    """Returns the lane of a key, the same in every process; without a key, that of the event."""
    return zlib.crc32((key or event_id).encode()) % lanes


class Outbox:
    """Writes rows. `wake` is called when a transaction that wrote some is committed."""

    def __init__(self, tables: Tables, *, lanes: int = LANES, wake: Wake | None = None) -> None:
        self._tables = tables
        self._lanes = lanes
        self._wake = wake
        self._model = _mapped(tables.outbox)
        self._waiting: WeakKeyDictionary[Connection, _AtCommit] = WeakKeyDictionary()
        self._cursor_inserts: dict[tuple[str, str], tuple[str, Any]] = {}

    def write(self, target: object, rows: Sequence[OutboxRow]) -> None:
        """Writes rows in the transaction of a session, connection or cursor.

        Nothing is to be awaited. Raises PublishFailed for a row that does not fit the table, and
        ConfigurationError for a target that is none of these.
        """
        for row in rows:
            _check(row)
        if not rows:
            return
        if hasattr(target, "registry") and callable(target):  # a scoped session
            target = target()
        if isinstance(target, AsyncSession):
            target = target.sync_session
        if isinstance(target, Session):
            self._add(target, rows)
        elif isinstance(target, Connection):
            self.insert(target, rows)
            self._wake_at_commit(target)
        elif isinstance(target, AsyncConnection):
            self._insert_at_commit(target, rows)
        elif hasattr(target, "executemany"):
            self._execute(target, rows)
        else:
            raise ConfigurationError(
                f"An event cannot be written through a {type(target).__name__}. Give the Session,"
                " AsyncSession, Connection, AsyncConnection or DB-API cursor of your transaction."
            )

    def _values(self, row: OutboxRow) -> dict[str, Any]:
        return {
            "event_id": row.event_id, "lane": lane_of(row.key, row.event_id, self._lanes),
            "key": row.key, "subject": row.subject, "payload": row.payload,
            "headers": dict(row.headers), "event_type": row.event_type,
            "resource_type": row.resource_type, "resource_id": row.resource_id,
            "status": PENDING, "attempts": 0,
        }  # fmt: skip

    # A session.

    def _add(self, session: Session, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            made = self._model()
            for name, value in self._values(row).items():
                setattr(made, name, value)
            if row.delay > 0:
                made.next_at = later(_micros(row.delay))
            session.add(made)
        session.info[_SESSION_WROTE] = True
        if self._wake is not None and not event.contains(session, "after_commit", self._woke):
            event.listen(session, "after_commit", self._woke)

    def _woke(self, session: Session) -> None:
        # The end of a savepoint is told as a commit too, and nobody sees its rows yet.
        if session.in_nested_transaction() or not session.info.pop(_SESSION_WROTE, False):
            return
        self.call_wake()

    # A connection.

    def insert(self, connection: Connection, rows: Sequence[OutboxRow]) -> None:
        """Inserts rows through a connection, without a call of `wake`."""
        at_once = [self._values(row) for row in rows if row.delay <= 0]
        if at_once:
            connection.execute(self._tables.outbox.insert(), at_once)
        delayed = [
            self._values(row) | {"delay_us": _micros(row.delay)} for row in rows if row.delay > 0
        ]
        if delayed:
            insert = self._tables.outbox.insert().values(next_at=later("delay_us"))
            connection.execute(insert, delayed)

    def _wake_at_commit(self, connection: Connection) -> None:
        if self._wake is not None and not event.contains(connection, "commit", self._committing):
            event.listen(connection, "commit", self._committing)

    def _committing(self, connection: Connection) -> None:
        # Told just before the commit. The relay looks again shortly after it was woken.
        self.call_wake()

    def call_wake(self) -> None:
        if self._wake is not None:
            self._wake()

    def _insert_at_commit(self, target: AsyncConnection, rows: Sequence[OutboxRow]) -> None:
        connection = target.sync_connection
        if connection is None or not connection.in_transaction():
            raise ConfigurationError(
                "The AsyncConnection is in no transaction, whose commit would write the events."
                " Write them inside `async with connection.begin()`."
            )
        waiting = self._waiting.get(connection)
        if waiting is None:
            waiting = self._waiting[connection] = _AtCommit(self)
            waiting.listen(connection)
        waiting.rows += rows

    # A cursor.

    def _execute(self, cursor: Any, rows: Sequence[OutboxRow]) -> None:
        dialect = _dialect_of(cursor)
        text, names = self._cursor_insert(dialect)
        values = []
        for row in rows:
            given = self._values(row) | {"delay_us": _micros(max(0.0, row.delay))}
            given["headers"] = json.dumps(given["headers"])
            values.append({name: given[name] for name in names} if isinstance(names, dict)
                          else tuple(given[name] for name in names))  # fmt: skip
        cursor.executemany(text, values)
        on_commit = getattr(getattr(cursor, "db", None), "on_commit", None)  # of Django
        if self._wake is not None and on_commit is not None:
            on_commit(self._wake)

    def _cursor_insert(self, dialect: Dialect) -> tuple[str, Sequence[str] | dict[str, None]]:
        """Returns the text of the insert, and the parameters in their order, or by their names."""
        key = (dialect.name, dialect.paramstyle)
        if key not in self._cursor_inserts:
            table = self._tables.outbox
            values = {name: sql.bindparam(name, type_=table.c[name].type) for name in _COLUMNS}
            insert = table.insert().values(**values, next_at=later("delay_us"), enqueued_at=now())
            compiled = insert.compile(dialect=dialect)
            named = dict.fromkeys([*_COLUMNS, "delay_us"])
            self._cursor_inserts[key] = (str(compiled), compiled.positiontup or named)
        return self._cursor_inserts[key]


_COLUMNS = (
    "event_id", "lane", "key", "subject", "payload", "headers", "event_type", "resource_type",
    "resource_id", "status", "attempts",
)  # fmt: skip


class _AtCommit:
    """The rows that an asynchronous connection inserts when it commits."""

    def __init__(self, outbox: Outbox) -> None:
        self.rows: list[OutboxRow] = []
        self._outbox = outbox
        self._savepoints: list[int] = []  # how many rows there were at each

    def listen(self, connection: Connection) -> None:
        for name, heard in (
            ("commit", self._commit), ("rollback", self._rollback),
            ("savepoint", self._savepoint), ("release_savepoint", self._release),
            ("rollback_savepoint", self._back_to_savepoint),
        ):  # fmt: skip
            event.listen(connection, name, heard)

    def _commit(self, connection: Connection) -> None:
        rows, self.rows, self._savepoints = self.rows, [], []
        if rows:
            self._outbox.insert(connection, rows)
            self._outbox.call_wake()

    def _rollback(self, connection: Connection) -> None:
        self.rows, self._savepoints = [], []

    def _savepoint(self, connection: Connection, name: str | None) -> None:
        self._savepoints.append(len(self.rows))

    def _release(self, connection: Connection, name: str, context: object) -> None:
        self._savepoints.pop()

    def _back_to_savepoint(self, connection: Connection, name: str, context: object) -> None:
        del self.rows[self._savepoints.pop() :]


# The drivers whose cursors are known, by the first part of their module's name.
_DRIVERS = {
    "psycopg": "postgresql", "psycopg2": "postgresql", "pg8000": "postgresql",
    "pymysql": "mysql", "MySQLdb": "mysql", "mysql": "mysql", "mariadb": "mysql",
    "sqlite3": "sqlite", "_sqlite3": "sqlite",
}  # fmt: skip
_PARAMETERS = ("qmark", "format", "pyformat", "named", "numeric")


def _dialect_of(cursor: Any) -> Dialect:
    """Returns the dialect of a cursor, with the style of its parameters."""
    vendor = getattr(getattr(cursor, "db", None), "vendor", None)
    for kind in type(cursor).__mro__:
        driver = kind.__module__.partition(".")[0]
        if vendor is not None or driver in _DRIVERS:
            name = str(_DRIVERS.get(driver, vendor))
            style = "format" if vendor else getattr(sys.modules.get(driver), "paramstyle", "qmark")
            if name in _DRIVERS.values() and style in _PARAMETERS:
                found: Any = sql.make_url(f"{name}://").get_dialect()
                made: Dialect = found(paramstyle=style)
                return made
            break
    raise ConfigurationError(
        f"The database of a {type(cursor).__module__}.{type(cursor).__name__} is not known. Cursors"
        " of psycopg, psycopg2, pg8000, PyMySQL, mysqlclient, sqlite3 and Django are."
    )


def _mapped(outbox: sql.Table) -> Any:
    """Makes a class of the outbox's rows, for sessions.

    It knows only the columns that are written, and the event's id as their key. So nothing is asked
    back for a row, and the rows of a flush go in one statement.
    """

    class PosthouseOutboxRow:
        pass

    written = [outbox.c[name] for name in (*_COLUMNS, "next_at", "enqueued_at")]
    table = sql.Table(
        outbox.name, sql.MetaData(),
        *(
            sql.Column(
                column.name, column.type, default=column.default,
                primary_key=column.name == "event_id",
            )
            for column in written
        ),
        schema=outbox.schema,
    )  # fmt: skip
    registry().map_imperatively(PosthouseOutboxRow, table, eager_defaults=False)
    return PosthouseOutboxRow


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _check(row: OutboxRow) -> None:
    for name in ("event_id", "subject", "key", "event_type", "resource_type", "resource_id"):
        text = getattr(row, name)
        if len(text) > TEXT_CHARS_MAX or "\0" in text:
            raise PublishFailed(
                f"The event {row.event_id[:TEXT_CHARS_MAX]!r} cannot be written: its {name} must be"
                f" a text of at most {TEXT_CHARS_MAX} characters without a character of code 0.",
                transient=False,
            )
    if not row.event_id or not row.subject:
        raise PublishFailed("An event must have an id and a subject.", transient=False)
    if not 0 <= row.delay <= DELAY_SECONDS_MAX:
        raise PublishFailed(
            f"The event {row.event_id} cannot be written: its delay must be from 0 to"
            f" {DELAY_SECONDS_MAX:,.0f} seconds.",
            transient=False,
        )
