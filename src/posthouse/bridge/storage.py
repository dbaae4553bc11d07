"""The database side of a bridge: its tables, outbox, inbox and relay, as its settings want them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from sqlalchemy import Connection, Engine, MetaData, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from posthouse.bridge.consuming import Held
from posthouse.bridge.database import TROUBLE, Database
from posthouse.bridge.errors import BridgeError, ConfigurationError
from posthouse.bridge.figures import Figures
from posthouse.bridge.handling import Handler
from posthouse.bridge.inbox import Inbox, InboxEntry
from posthouse.bridge.outbox import Outbox, OutboxRow
from posthouse.bridge.processing import Room
from posthouse.bridge.pruning import Pruner
from posthouse.bridge.publishing import Prepared
from posthouse.bridge.relay import Relay, RelaySettings
from posthouse.bridge.settings import Settings
from posthouse.bridge.tables import Tables
from posthouse.bridge.transport import Transport
from posthouse.bridge.views import InboxState, OutboxState, inbox_state, outbox_state

_log = logging.getLogger("posthouse.bridge")

POLL_SECONDS = 0.05  # between two looks of a relay while rows come
GAUGE_SECONDS = 15.0  # between two looks at the outbox for the gauges
PRUNE_SECONDS, PRUNE_ROWS = 600.0, 5_000  # between two rounds; rows of one statement
LISTEN_SECONDS = 1.0  # before hints are asked for again that could not be had
_turns: "WeakValueDictionary[tuple[str, int], asyncio.Lock]" = WeakValueDictionary()
_ASYNC_DRIVERS = frozenset(("asyncpg", "aiosqlite", "aiomysql", "asyncmy", "psycopg_async"))


class Storage:
    """The tables of a bridge in the database of its service."""

    def __init__(
        self,
        database: "Engine | AsyncEngine | str",
        tables: Tables | None,
        settings: Settings,
        woken: Callable[[], None],
    ) -> None:
        """`woken` is called after a transaction with rows was committed, from any thread."""
        self._settings = settings
        self.engine = _engine(database)
        self._is_mine = isinstance(database, str)
        self.database = Database(self.engine)
        self._metadata = MetaData()
        self.tables = tables or Tables.make(
            self._metadata, prefix=settings.prefix, schema=settings.schema or None,
            keep_payload=settings.keep_payload,
        )  # fmt: skip
        self._outbox = Outbox(self.tables, lanes=settings.lanes, wake=self._wake)
        self._woken = woken
        self._relays: list[Relay] = []  # that run in this process

    @property
    def metadata(self) -> MetaData:
        return self.tables.outbox.metadata

    def write(self, session: object, prepared: Sequence[Prepared]) -> None:
        """Writes events to the outbox, in the transaction of a session, connection or cursor."""
        if not self._settings.outbox:
            raise ConfigurationError(
                "The outbox is off (outbox=False); publish without a session, or turn it on."
            )
        rows = [
            OutboxRow(
                each.outgoing.id, each.outgoing.subject, each.outgoing.body, each.outgoing.headers,
                each.outgoing.key, each.event.type, each.event.resource_type,
                each.event.resource_id, each.outgoing.delay,
            )
            for each in prepared
        ]  # fmt: skip
        self._outbox.write(session, rows)

    def guard(self, consumer: str) -> "InboxGuard":
        """Returns what guards the effects of a consumer's handler."""
        mode = self._settings.inbox
        return InboxGuard(Inbox(self.database, self.tables, consumer, mode=mode), self)

    def _wake(self) -> None:
        for relay in list(self._relays):
            relay.wake()
        self._woken()

    @asynccontextmanager
    async def relaying(
        self, transport: Transport, channel: str, figures: Figures
    ) -> AsyncIterator[Relay]:
        """Runs a relay for the length of a block. It is woken by commits here and elsewhere."""
        settings = self._settings

        def observe(seconds: float) -> None:
            figures.count("bridge_relayed_total")
            figures.observe("bridge_relay_seconds", seconds)

        relay = Relay(
            self.database, self.tables, transport,
            RelaySettings(
                lanes=settings.lanes, batch_rows=settings.relay_batch,
                poll_seconds=min(POLL_SECONDS, settings.poll_seconds),
                poll_seconds_max=settings.poll_seconds, attempts_max=settings.outbox_attempts,
                strict_order=settings.strict_order, delete_sent=settings.delete_sent,
                keep_sent_seconds=settings.keep_sent, keep_seen_seconds=settings.keep_seen,
            ),
            observe=observe,
        )  # fmt: skip
        tasks = [
            asyncio.create_task(_keep_running(relay)),
            asyncio.create_task(self._gauge(figures)),
        ]
        if transport.wakes and settings.wake == "transport":
            tasks.append(asyncio.create_task(_listen(transport, channel, relay)))
        await asyncio.sleep(0)  # the relay begins
        self._relays.append(relay)
        try:
            yield relay
        finally:
            self._relays.remove(relay)
            await relay.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def has_one_writer(self) -> bool:
        """Whether the database has one writer at a time, as SQLite does."""
        return self.database.dialect == "sqlite"

    @property
    def connections_max(self) -> int | None:
        """The most connections of the engine's pool; None where it has no such limit."""
        pool = self.engine.pool
        if not isinstance(pool, QueuePool) or self.has_one_writer:
            return None
        overflow = pool._max_overflow  # it has no public name
        return None if overflow < 0 else pool.size() + overflow

    def turn(self) -> asyncio.Lock:
        """The turn of a handler's transaction, where there is one writer.

        SQLite's own waiting has no order and ends after seconds; so those of one loop queue up.
        """
        key = str(self.engine.url.database), id(asyncio.get_running_loop())
        return _turns.setdefault(key, asyncio.Lock())

    async def settle(self) -> None:
        """Returns when the relays of this process have nothing left to send. For tests."""
        for relay in list(self._relays):
            await relay.settle()

    async def _gauge(self, figures: Figures) -> None:
        """Brings the gauges of the outbox up to date, while a relay runs."""
        while True:
            with contextlib.suppress(*self.trouble):  # the relay tells of it
                note_outbox((await self.state())[0], figures)
            await asyncio.sleep(GAUGE_SECONDS)

    @asynccontextmanager
    async def pruning(self) -> AsyncIterator[None]:
        """Prunes the inbox for the length of a block, where no relay runs that would."""
        settings = self._settings
        pruner = Pruner(
            self.database, self.tables, keep_sent=settings.keep_sent, keep_seen=settings.keep_seen,
            rows=PRUNE_ROWS,
        )  # fmt: skip

        async def prune() -> None:
            while True:
                with contextlib.suppress(*self.trouble):  # it is tried again
                    await pruner.prune_inbox()
                await asyncio.sleep(PRUNE_SECONDS)

        task = asyncio.create_task(prune())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def state(self) -> tuple[OutboxState, InboxState]:
        """Returns how the outbox and the inbox are. Raises what is in `trouble`."""

        def look(connection: Connection) -> tuple[OutboxState, InboxState]:
            return outbox_state(connection, self.tables), inbox_state(connection, self.tables)

        return await self.database.run(look)

    @property
    def trouble(self) -> tuple[type[BaseException], ...]:
        """Exceptions of a database that is away, or lacks its tables."""
        return (*TROUBLE, TimeoutError)

    async def close(self) -> None:
        """Closes the engine that was made from a URL; a user's own stays open."""
        self.database.close()
        if self._is_mine:
            if isinstance(self.engine, AsyncEngine):
                await self.engine.dispose()
            else:
                self.engine.dispose()

    async def create_tables(self) -> None:
        await self.database.run(self.tables.create)

    async def check(self) -> list[str]:
        return await self.database.run(self.tables.check)

    @property
    def inbox_mode(self) -> str:
        return self._settings.inbox


class InboxGuard:
    """The inbox around a handler."""

    def __init__(self, inbox: Inbox, storage: Storage) -> None:
        self._inbox = inbox
        self._storage = storage

    def check(self, handler: Handler) -> None:
        """Checks that a handler can work with the database. Raises ConfigurationError."""
        is_async = self._storage.database.is_async
        mode = self._storage.inbox_mode
        if handler.wants_session and mode == "marked":
            raise ConfigurationError(
                f"The handler {handler.name} takes a session, which the inbox mode `marked` has"
                " not; use `transactional`, or begin a transaction of your own."
            )
        if handler.wants_session and is_async and not handler.is_async:
            raise ConfigurationError(
                f"The handler {handler.name} is a plain function, and the database's engine is"
                " asynchronous; make it async, or give the bridge an Engine."
            )

    @asynccontextmanager
    async def handling(self, work: Sequence[Held]) -> AsyncIterator[Room]:
        entries = [_entry(held) for held in work]
        async with contextlib.AsyncExitStack() as stack:
            if self._storage.has_one_writer:
                await stack.enter_async_context(self._storage.turn())
            if len(entries) == 1:
                made = self._inbox.handling(entries[0])
            else:
                made = self._inbox.handling_many(entries)
            yield await stack.enter_async_context(made)


def note_outbox(outbox: OutboxState, figures: Figures) -> None:
    """Brings the gauges of the outbox up to date."""
    figures.put("bridge_outbox_pending", outbox.pending)
    figures.put("bridge_outbox_failed", outbox.failed)
    figures.put("bridge_outbox_oldest_seconds", outbox.oldest_seconds or 0.0)


async def _keep_running(relay: Relay) -> None:
    """Runs a relay; one that ends with an error is begun again, since nobody else would relay."""
    while True:
        try:
            await relay.run()
        except Exception:  # noqa: BLE001 (a mistake of ours; it is told, and others go on)
            _log.exception("The relay has failed, and begins again.",
                           extra={"event": "bridge.relay_failed"})  # fmt: skip
            await asyncio.sleep(LISTEN_SECONDS)
        else:
            return


async def _listen(transport: Transport, channel: str, relay: Relay) -> None:
    """Wakes a relay when another process has committed an event."""
    while True:
        try:
            async with contextlib.aclosing(transport.woken(channel)) as hints:  # type: ignore[type-var]
                async for _ in hints:
                    relay.wake()
        except BridgeError:  # hints may be lost: the relay looks by itself, too
            await asyncio.sleep(LISTEN_SECONDS)


def _entry(held: Held) -> InboxEntry:
    event, delivery = held.event, held.delivery
    assert event is not None
    return InboxEntry(
        event.id or delivery.id, delivery.stream, delivery.sequence, held.attempt, event.type,
        event.resource_type, event.resource_id, delivery.subject, delivery.body, delivery.headers,
    )  # fmt: skip


def _engine(database: "Engine | AsyncEngine | str") -> "Engine | AsyncEngine":
    if not isinstance(database, str):
        return database
    try:
        driver = database.partition("://")[0].partition("+")[2]
        if driver in _ASYNC_DRIVERS:
            return create_async_engine(database)
        return create_engine(database)
    except (SQLAlchemyError, ImportError) as error:
        raise ConfigurationError(
            f"The database cannot be used: {type(error).__name__}. Give a URL as SQLAlchemy has it,"
            " such as sqlite:///shop.db, with its driver installed."
        ) from error
