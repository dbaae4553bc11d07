"""A database with the tables of a bridge, reached synchronously and asynchronously."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from posthouse.bridge.database import Database
from posthouse.bridge.outbox import OutboxRow
from posthouse.bridge.tables import Tables
from posthouse.bridge.transport import Failure, Outgoing, Stored
from tests.bridge.database_servers import DatabaseServer


class Place:
    def __init__(self, kind: str, server: DatabaseServer | None, folder: Path) -> None:
        self.kind = kind
        self.server = server
        self.tables = Tables.make(sql.MetaData())
        self._folder = folder
        self._name = ""

    def url(self, *, is_async: bool) -> str:
        if self.server is None:
            driver = "+aiosqlite" if is_async else ""
            return f"sqlite{driver}:///{self._folder / 'shop.db'}"
        server = self.server
        return server.url(server.async_driver if is_async else server.sync_driver, self._name)

    def __enter__(self) -> "Place":
        if self.server is not None:
            self._name = self.server.new_database()
        self.engine = sql.create_engine(self.url(is_async=False))
        with self.engine.begin() as connection:
            if self.kind == "sqlite":
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            self.tables.create(connection)
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.dispose()
        if self.server is not None:
            self.server.drop_database(self._name)

    def cut_connections(self) -> None:
        assert self.server is not None
        self.server.cut_connections(self._name)
        self.engine.dispose()

    @asynccontextmanager
    async def database(self, *, is_async: bool = True) -> AsyncIterator[Database]:
        if not is_async:
            database = Database(self.engine)
            yield database
            database.close()
            return
        engine = create_async_engine(self.url(is_async=True))
        try:
            yield Database(engine)
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def async_engine(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url(is_async=True))
        try:
            yield engine
        finally:
            await engine.dispose()

    # What is in the tables.

    def rows(self, *columns: str) -> list[Any]:
        """The rows of the outbox, in the order of their ids."""
        outbox = self.tables.outbox
        asked = sql.select(*(outbox.c[name] for name in columns)).order_by(outbox.c.id)
        with self.engine.connect() as connection:
            found = connection.execute(asked).all()
        return [row[0] if len(columns) == 1 else tuple(row) for row in found]

    def seen(self, *columns: str) -> list[Any]:
        """The rows of the inbox, in the order of their keys."""
        inbox = self.tables.inbox
        asked = sql.select(*(inbox.c[name] for name in columns)).order_by(
            inbox.c.consumer, inbox.c.event_id
        )
        with self.engine.connect() as connection:
            found = connection.execute(asked).all()
        return [row[0] if len(columns) == 1 else tuple(row) for row in found]

    def do(self, statement: sql.Executable) -> None:
        with self.engine.begin() as connection:
            connection.execute(statement)

    async def change(self, statement: sql.Executable) -> None:
        """Executes a statement in a thread: the loop may be in a transaction that it waits for."""
        await asyncio.to_thread(self.do, statement)


def an_event(id: str, **fields: Any) -> OutboxRow:
    return OutboxRow(**{"event_id": id, "subject": "shop.sync.worker", "payload": b"{}", **fields})


class RecordingTransport:
    """Stores events as a transport does, once for each id; or refuses them."""

    def __init__(self) -> None:
        self.events: list[Outgoing] = []  # that were stored, in their order
        self.calls = 0
        self.refused: set[str] = set()  # ids
        self.is_down = False
        self.gate = asyncio.Event()  # behind which calls wait
        self.gate.set()
        self.at_once = 0  # the largest number of events of one key in flight
        self._in_flight: list[str] = []
        self._places: dict[str, int] = {}

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events]

    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        self.calls += 1
        keys = [event.key for event in events if event.key]
        self._in_flight += keys
        self.at_once = max([self.at_once, *(self._in_flight.count(key) for key in keys)])
        try:
            await asyncio.sleep(0)  # slept: others that publish at once have begun, too
            await self.gate.wait()
            return [self._store(event) for event in events]
        finally:
            for key in keys:
                self._in_flight.remove(key)

    def _store(self, event: Outgoing) -> Stored | Failure:
        if self.is_down:
            return Failure("the server is away", transient=True)
        if event.id in self.refused:
            return Failure("nobody may publish this", transient=False)
        is_known = event.id in self._places
        if not is_known:
            self.events.append(event)
            self._places[event.id] = len(self.events)
        return Stored(self._places[event.id], is_known)
