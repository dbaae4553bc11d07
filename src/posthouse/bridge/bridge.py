"""A bridge: what one service publishes to others, and what it does with their events."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from posthouse.bridge import envelope
from posthouse.bridge.connection import Connection, FarTransport
from posthouse.bridge.consuming import WINDOW_PER_SLOT
from posthouse.bridge.errors import BridgeError, ConfigurationError, TopologyConflict
from posthouse.bridge.figures import Figures
from posthouse.bridge.handling import Handler, Middleware, Options
from posthouse.bridge.hooks import Hooks
from posthouse.bridge.names import Names
from posthouse.bridge.processing import Guard, NoInbox
from posthouse.bridge.publishing import NewEvent, Published, Publisher
from posthouse.bridge.retries import UNRECOVERABLE, Delays, RetrySchedule
from posthouse.bridge.running import Consumers, Route
from posthouse.bridge.settings import Settings, make_settings, read_environment
from posthouse.bridge.transport import DeadLetter, Plan, Source, Topology, Transport

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData
    from sqlalchemy.ext.asyncio import AsyncEngine

    from posthouse.bridge.health import Health
    from posthouse.bridge.storage import Storage
    from posthouse.bridge.sync import SyncBridge
    from posthouse.bridge.testing import Testing

_log = logging.getLogger("posthouse.bridge")

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)
LATE_SECONDS = 5.0  # after which a process ends whose loop does not come back to be told


class Bridge:
    """The events that one service publishes to others, and its handlers for theirs.

    Example:
        bridge = Bridge("nats://localhost:4222", app="api", destination="worker", database=engine)

        with Session(engine) as session, session.begin():
            bridge.publish("order.created", {"id": 7}, session=session)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        app: str = "",
        destination: str | Sequence[str] = (),
        database: "Engine | AsyncEngine | str | None" = None,
        preset: str = "",
        transport: Transport | None = None,
        tables: Any = None,
        **settings: Any,
    ) -> None:
        """Makes a bridge; it connects at its first use. Raises ConfigurationError.

        `url` says what carries the events: nats://, posthouse://, sb://, sqs:// or memory://.
        `app` is this service, `destination` the service or services it exchanges events with.
        `database` is the engine of SQLAlchemy, or its URL, whose transactions the outbox and the
        inbox take part in. `preset` is one of development, test, staging, production,
        high_throughput and maximum_reliability. `transport` takes the place of `url`, and `tables`
        those of models of yours. The `settings` are those of `Settings`.
        """
        if url is not None:
            settings["url"] = url
        elif transport is not None:
            settings.setdefault("url", f"{transport.name}://")
        names = (destination,) if isinstance(destination, str) else tuple(destination)
        self.settings: Settings = make_settings(preset, app=app, destination=names, **settings)
        self.names = Names(self.settings.app, self.settings.destination, self.settings.topics)
        self.figures = Figures()
        self._transport = transport
        self._handlers: dict[str, Handler] = {}  # by the service that the events come from
        self._middleware: list[Middleware] = []
        self._connection = Connection(
            self._make_transport, self.settings.connect_attempts, self.settings.connect_delay,
            self._prepare if self.settings.auto_provision else None,
        )  # fmt: skip
        self._publisher = Publisher(self.settings, self.names, self._connection, self.figures)
        self._storage = self._make_storage(database, tables)
        self._running = 0
        self._stopping: list[Callable[[], None]] = []
        self._hooks = Hooks()
        self._is_drained = True
        self._kept_health: tuple[float, Health] | None = None

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **given: Any) -> "Bridge":
        """Makes a bridge from variables: POSTHOUSE_BRIDGE_URL, _APP, _DESTINATION, _DATABASE, ...

        Each setting has a variable; `environment` is `os.environ` unless given, and what is `given`
        overrides it. Raises ConfigurationError.

        Example:
            bridge = Bridge.from_env(database=engine)
        """
        found = read_environment(os.environ if environment is None else environment)
        return cls(**{**found, **given})

    def _make_transport(self) -> Transport:
        if self._transport is not None:
            return self._hooks.wrap(self._transport)
        from posthouse.bridge.transports import transport_of

        url = self.settings.address
        if url.startswith("memory://") and self._hooks.memory:
            url = self._hooks.memory
        made = transport_of(
            url, stream=self.settings.stream_name, dead_letters=self.names.dead_letters,
            **self.settings.transport_options,
        )  # fmt: skip
        return self._hooks.wrap(made)

    def _make_storage(self, database: Any, tables: Any) -> "Storage | None":
        if database is None:
            if tables is not None:
                raise ConfigurationError("tables goes with database; give the engine, too.")
            return None
        from posthouse.bridge.storage import Storage

        return Storage(database, tables, self.settings, self._woken)

    # Publishing.

    @overload
    def publish(
        self, type: str, payload: Any, *, session: None = None, key: str = "",
        resource_type: str = "", resource_id: str = "", event_id: str = "", destination: str = "",
        subject: str = "", headers: Mapping[str, str] | None = None, delay: float = 0.0,
    ) -> Awaitable[Published]: ...  # fmt: skip

    @overload
    def publish(
        self, type: str, payload: Any, *, session: object, key: str = "",
        resource_type: str = "", resource_id: str = "", event_id: str = "", destination: str = "",
        subject: str = "", headers: Mapping[str, str] | None = None, delay: float = 0.0,
    ) -> str: ...  # fmt: skip

    def publish(
        self, type: str, payload: Any, *, session: object = None, key: str = "",
        resource_type: str = "", resource_id: str = "", event_id: str = "", destination: str = "",
        subject: str = "", headers: Mapping[str, str] | None = None, delay: float = 0.0,
    ) -> Awaitable[Published] | str:  # fmt: skip
        """Publishes an event, in the transaction of a `session` or at once.

        With `session` (SQLAlchemy's Session, AsyncSession, Connection or AsyncConnection, or a
        cursor of the DB-API) the event becomes a row of the outbox; returns its id, without an
        await. It is sent if the transaction is committed. Without, it is awaited, and returns a
        Published. `type` and the other parameters are those of NewEvent. Raises PublishFailed,
        TooLarge, NotPermitted.

        Example:
            bridge.publish("order.created", {"id": 7}, session=session)
        """
        new = NewEvent(
            type, payload, key, resource_type, resource_id, event_id, destination, subject,
            headers or {}, delay,
        )  # fmt: skip
        if session is not None:
            [id] = self._write(session, [new])
            return id
        return self._publish_one(new)

    @overload
    def publish_many(
        self, events: Sequence[NewEvent], *, session: None = None
    ) -> Awaitable[list[Published]]: ...

    @overload
    def publish_many(self, events: Sequence[NewEvent], *, session: object) -> list[str]: ...

    def publish_many(
        self, events: Sequence[NewEvent], *, session: object = None
    ) -> Awaitable[list[Published]] | list[str]:
        """Publishes `events`, with one insert in the transaction of a `session`, or at once.

        Returns their ids, or when awaited without a session what became of each. Raises
        PartialFailure if only some could be published, and what `publish` raises.

        Example:
            await bridge.publish_many([NewEvent("order.created", {"id": n}) for n in range(10)])
        """
        if session is not None:
            return self._write(session, events)
        return self.publish_all(events)

    def _write(self, session: object, events: Sequence[NewEvent]) -> list[str]:
        storage = self._needed_storage("publish in a session")
        prepared = [self._publisher.prepare(new) for new in events]
        storage.write(session, prepared)
        return [each.event.id for each in prepared]

    async def _publish_one(self, new: NewEvent) -> Published:
        [published] = await self.publish_all([new])
        return published

    async def publish_all(self, events: Sequence[NewEvent]) -> list[Published]:
        """Publishes `events` to the transport; `publish_many` without a session is this.

        Example:
            await bridge.publish_all([NewEvent("order.created", {"id": 7})])
        """
        prepared = [self._publisher.prepare(new) for new in events]
        return await self._publisher.send(prepared) if prepared else []

    def _woken(self) -> None:
        """Tells relays elsewhere that there are rows to send; from any thread, after a commit."""
        if not self._connection.is_open or self.settings.wake != "transport":
            return
        loop = self._connection.loop_thread.loop

        async def wake() -> None:
            with contextlib.suppress(BridgeError):  # it is only a hint
                transport = await self._connection.opened()
                await transport.wake(self.wake_channel)

        loop.call_soon_threadsafe(lambda: _keep(loop.create_task(wake())))

    @property
    def wake_channel(self) -> str:
        """The channel on which relays of this service are woken."""
        return f"{self.settings.app}.outbox"

    # Consuming.

    def consumer(
        self,
        source: str = "",
        *,
        concurrency: int = 1,
        ordered: bool = False,
        batch: int = 0,
        timeout: float | None = None,
        retry: RetrySchedule | None = None,
        unrecoverable: tuple[type[BaseException], ...] = UNRECOVERABLE,
    ) -> Callable[[F], F]:
        """Decorates the function that handles events. Raises ConfigurationError.

        `source` is the service that they come from; all destinations, if none is named.
        `concurrency` is how many are handled at a time; events of one key stay one behind the
        other. With `ordered`, later events of a key also wait for the retry of an earlier one. With
        `batch`, so many events at most are handled in one transaction, as a list. `timeout` is in
        seconds. `retry` says when a failed event is delivered again; errors of the classes in
        `unrecoverable` never are.

        Example:
            @bridge.consumer(concurrency=8)
            async def on_event(event: Event, session: AsyncSession) -> None:
                session.add(Shipment(order_id=event.resource_id))
        """
        known = self.names.destinations
        if source and source not in known:
            raise ConfigurationError(
                f"There is no destination {source!r} to consume from; there are {', '.join(known)}."
            )
        sources = [source] if source else list(known)
        if not sources:
            raise ConfigurationError("The bridge has no destination to consume from; name one.")
        for each in sources:
            if each in self._handlers:
                raise ConfigurationError(
                    f"The events of {each} have a handler already:"
                    f" {self._handlers[each].name}. Tell types of events apart inside of it."
                )
        schedule = retry or Delays(*self.settings.delays)

        def register(function: F) -> F:
            for each in sources:
                options = Options(
                    each, schedule, concurrency, ordered, batch, timeout, unrecoverable,
                    self.settings.max_deliver,
                )  # fmt: skip
                self._handlers[each] = Handler(function, options)
            return function

        return register

    def use(self, middleware: M) -> M:
        """Adds a `middleware` around all handlers; the first is the outermost.

        It is an async function of the event and of what calls the rest. See
        `posthouse.bridge.middleware` for some.

        Example:
            @bridge.use
            async def logged(event: Event, call_next: CallNext) -> object:
                print(event.type)
                return await call_next(event)
        """
        if not callable(middleware):
            raise ConfigurationError("Middleware must be an async function of (event, call_next).")
        self._middleware.append(middleware)
        return middleware

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers by the service whose events they handle."""
        return self._handlers

    # While it runs.

    def running(self) -> "AbstractAsyncContextManager[Bridge]":
        """Runs the relay, if there is an outbox, and the consumers, for an `async with` block.

        What was begun is drained at the end. Raises BridgeError.

        Example:
            async with bridge.running():
                await stopped.wait()
        """
        return self._run(relay=self._relays, consume=bool(self._handlers))

    def relaying(self) -> "AbstractAsyncContextManager[Bridge]":
        """Runs the relay alone, for the length of an `async with` block. Raises BridgeError.

        Example:
            async with bridge.relaying():
                await stopped.wait()
        """
        self._needed_storage("relay")
        return self._run(relay=True, consume=False)

    def consuming(self) -> "AbstractAsyncContextManager[Bridge]":
        """Runs the consumers alone, for the length of an `async with` block. Raises BridgeError.

        Example:
            async with bridge.consuming():
                await stopped.wait()
        """
        if not self._handlers:
            raise ConfigurationError(
                "The bridge has no handler; decorate a function with bridge.consumer()."
            )
        return self._run(relay=False, consume=True)

    def lifespan(self, app: object) -> "AbstractAsyncContextManager[Bridge]":
        """The lifespan of a web `app` of FastAPI's, Starlette's and the like: `running`.

        Example:
            app = FastAPI(lifespan=bridge.lifespan)
        """
        return self.running()

    @property
    def _relays(self) -> bool:
        return self._storage is not None and self.settings.outbox

    @asynccontextmanager
    async def _run(self, *, relay: bool, consume: bool) -> "AsyncIterator[Bridge]":
        for handler in self._handlers.values():
            handler.check()
        routes = [self._route(handler) for handler in self._handlers.values()] if consume else []
        self._running += 1
        try:
            transport = await self._connection.opened(patiently=not self.settings.connect)
            if routes and self.settings.auto_provision:
                await self._connection.loop_thread.call(self._ensure(transport, self.topology()))
            if self._storage is not None:
                await self._warn(self._storage)
            async with contextlib.AsyncExitStack() as stack:
                if routes and not relay and self._storage is not None:
                    await stack.enter_async_context(self._storage.pruning())
                if relay:
                    storage = self._needed_storage("relay")
                    far = FarTransport(self._connection, transport)
                    await stack.enter_async_context(
                        storage.relaying(far, self.wake_channel, self.figures)
                    )
                if routes:
                    consumers = Consumers(
                        self._connection, transport, routes, self._middleware, self.figures,
                        self._hooks,
                    )  # fmt: skip
                    await consumers.start()
                    stack.push_async_callback(self._drain, consumers)
                yield self
        finally:
            self._running -= 1
            if not self._running:
                await self._connection.close()

    async def _warn(self, storage: "Storage") -> None:
        """Logs what is wrong with the tables; they may be mended while the bridge runs."""
        with contextlib.suppress(*storage.trouble):  # the database is away: relay and inbox tell
            for problem in await self.check():
                _log.warning("%s", problem, extra={"event": "bridge.check"})

    async def _drain(self, consumers: Consumers) -> None:
        self._is_drained = await consumers.drain(self.settings.drain_seconds)

    async def run(self, *, relay: bool = True, consume: bool = True) -> bool:
        """Runs until SIGTERM, SIGINT or `stop`. Returns whether every handler came to its end.

        `relay` and `consume` say what runs. A second signal ends the process at once. Raises
        BridgeError.

        Example:
            asyncio.run(bridge.run())
        """
        what = self._run(relay=relay and self._relays, consume=consume and bool(self._handlers))
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            loop.call_soon_threadsafe(stopped.set)

        self._is_drained = True
        self._stopping.append(stop)
        try:
            with _signals(stop, self.settings.drain_seconds + LATE_SECONDS):
                start = asyncio.ensure_future(what.__aenter__())
                waiting = asyncio.ensure_future(stopped.wait())
                await asyncio.wait((start, waiting), return_when=asyncio.FIRST_COMPLETED)
                if not start.done():  # it still waits for its server
                    waiting.cancel()
                    start.cancel()
                    await asyncio.wait([start])
                    return True
                try:
                    await start
                    await waiting
                finally:
                    waiting.cancel()
                    await what.__aexit__(None, None, None)
        finally:
            self._stopping.remove(stop)
        return self._is_drained

    def stop(self) -> None:
        """Has `run` drain what was begun, and return. It may be called from any thread.

        Example:
            bridge.stop()
        """
        for stop in list(self._stopping):
            stop()

    def _route(self, handler: Handler) -> Route:
        guard: Guard = NoInbox()
        source = self._source(handler)
        if self._storage is not None:
            guard = self._storage.guard(source.consumer)
        guard.check(handler)
        return Route(source, handler, guard)

    def sources(self) -> list[Source]:
        """Returns where the events of all handlers come from.

        Example:
            print([source.subject for source in bridge.sources()])
        """
        return [self._source(handler) for handler in self._handlers.values()]

    def _source(self, handler: Handler) -> Source:
        options, settings = handler.options, self.settings
        is_push = settings.mode == "push"
        slots = options.concurrency * max(1, options.batch)
        return self.names.source(
            options.source, push=is_push, ack_wait=settings.ack_wait,
            max_pending=WINDOW_PER_SLOT * slots if is_push else 0,
        )  # fmt: skip

    async def close(self) -> None:
        """Closes the connection; the next use opens it again.

        Example:
            await bridge.close()
        """
        await self._connection.close()
        if self._storage is not None:
            await self._storage.close()

    async def __aenter__(self) -> "Bridge":
        if self.settings.connect:
            await self._connection.opened()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # What it needs of its transport, and of its database.

    def topology(self, *, both_sides: bool = False) -> Topology:
        """Returns what the bridge needs of its transport; with `both_sides`, the others', too.

        Example:
            print(bridge.topology().subjects)
        """
        settings = self.settings
        wanted = self.names.topology(
            settings.stream_name, push=settings.mode == "push", ack_wait=settings.ack_wait,
            both_sides=both_sides, replicas=settings.replicas,
            duplicate_window=settings.duplicate_window,
        )  # fmt: skip
        mine = {source.consumer: source for source in self.sources()}
        sources = [mine.get(source.consumer, source) for source in wanted.sources]
        return replace(wanted, sources=sources)

    async def plan(self, *, both_sides: bool = False) -> Plan:
        """Returns what `provision` would do, and conflicts. Raises BridgeError.

        With `both_sides`, also what the other services need.

        Example:
            for step in (await bridge.plan()).steps:
                print(step.act, step.name, step.reason)
        """
        wanted = self.topology(both_sides=both_sides)

        return await self._provisionally(lambda transport: transport.plan(wanted))

    async def provision(self, *, both_sides: bool = False, recreate: bool = False) -> Plan:
        """Creates and updates what the bridge needs of its transport. Raises TopologyConflict.

        Returns the plan that was carried out; where nothing differs, nothing is sent. With
        `both_sides`, also what the other services need; with `recreate`, consumers that cannot be
        changed in place are made anew at their position.

        Example:
            await bridge.provision(both_sides=True)
        """
        wanted = self.topology(both_sides=both_sides)

        return await self._provisionally(
            lambda transport: self._ensure(transport, wanted, recreate=recreate)
        )

    async def _provisionally(self, use: Callable[[Transport], Awaitable[Plan]]) -> Plan:
        """Uses the open transport, or one that nothing was provided on before."""
        if self._connection.is_open or self._transport is not None:
            return await self._connection.call(use)

        async def there() -> Plan:
            transport = self._make_transport()
            await transport.open()
            try:
                return await use(transport)
            finally:
                await transport.close()

        return await self._connection.loop_thread.call(there())

    async def _prepare(self, transport: Transport) -> None:
        """Provides what publishing needs; consumers are made where they run."""
        await self._ensure(transport, replace(self.topology(), sources=()))

    async def _ensure(
        self, transport: Transport, wanted: Topology, *, recreate: bool = False
    ) -> Plan:
        plan = await transport.plan(wanted)
        if plan.conflicts and not recreate:
            raise TopologyConflict(" ".join(step.reason for step in plan.conflicts))
        if plan.changes or plan.conflicts:
            await transport.apply(plan, recreate=recreate)
        return plan

    @property
    def metadata(self) -> "MetaData":
        """The tables of the bridge, for Alembic and `create_all`. Raises ConfigurationError."""
        return self._needed_storage("describe its tables").metadata

    @property
    def has_storage(self) -> bool:
        """Whether the bridge has a database."""
        return self._storage is not None

    @property
    def storage(self) -> "Storage":
        """The outbox and the inbox in the database. Raises ConfigurationError without one."""
        return self._needed_storage("look into its database")

    async def create_tables(self) -> None:
        """Creates the tables of the bridge that are not there; for tests and first steps.

        Example:
            await bridge.create_tables()
        """
        await self._needed_storage("create tables").create_tables()

    async def check(self) -> list[str]:
        """Returns what is wrong with the tables and the times, as sentences.

        Example:
            for problem in await bridge.check():
                print(problem)
        """
        storage = self._needed_storage("check its tables")
        problems = await storage.check()
        settings = self.settings
        waits = [settings.delays[min(n, len(settings.delays)) - 1] + settings.ack_wait
                 for n in range(1, settings.max_deliver)]  # fmt: skip
        late = sum(waits) + settings.duplicate_window
        if settings.inbox != "off" and settings.keep_seen < late:
            problems.append(
                f"The inbox forgets an event after keep_seen={settings.keep_seen:g} s, and it may"
                f" be delivered again for {late:g} s; keep it for longer than that and an outage."
            )
        wanted = sum(handler.options.concurrency for handler in self._handlers.values())
        if storage.connections_max is not None and storage.connections_max < wanted + 3:
            problems.append(
                f"The engine's pool has {storage.connections_max} connections at most, and"
                f" {wanted} handlers and a relay may need {wanted + 3}; give create_engine a larger"
                " pool_size, or the consumers less concurrency."
            )
        return problems

    def _needed_storage(self, what: str) -> "Storage":
        if self._storage is None:
            raise ConfigurationError(
                f"The bridge has no database, so it cannot {what}; give one: Bridge(...,"
                " database=engine)."
            )
        return self._storage

    # Dead letters.

    async def dead_letters(
        self,
        wanted: Topology | None = None,
        chosen: Callable[[DeadLetter], bool] = lambda letter: True,
        limit: int | None = None,
        told: Callable[[int], object] = lambda count: None,
    ) -> list[DeadLetter]:
        """Returns the dead letters that are `chosen`, at most `limit`. Raises BridgeError.

        `wanted` is the topology to look in, the bridge's own unless given; `told` is told how many
        were looked at.

        Example:
            print(await bridge.dead_letters(limit=10))
        """
        where = wanted or self.topology()

        async def use(transport: Transport) -> list[DeadLetter]:
            found: list[DeadLetter] = []
            looked = 0
            async with contextlib.aclosing(transport.dead_letters(where)) as letters:  # type: ignore[type-var]
                async for letter in letters:
                    looked += 1
                    told(looked)
                    if chosen(letter):
                        found.append(letter)
                    if limit is not None and len(found) >= limit:
                        break
            return found

        return await self._connection.call(use)

    async def replay(self, letter: DeadLetter) -> None:
        """Publishes the event of a dead `letter` again, to the subject that it came from.

        Example:
            for letter in await bridge.dead_letters():
                await bridge.replay(letter)
        """
        id = envelope.new_event_id()
        await self._connection.call(lambda transport: transport.replay(letter, id))

    async def drop(self, letter: DeadLetter) -> None:
        """Removes a dead `letter` for good.

        Example:
            for letter in await bridge.dead_letters():
                await bridge.drop(letter)
        """
        await self._connection.call(lambda transport: transport.drop(letter))

    # How it is.

    async def health(self, *, fresh: bool = False) -> "Health":
        """Returns how the bridge, its transport and its tables are. It is kept for 30 s.

        With `fresh`, it is looked anew. It never raises: what cannot be reached is a problem in it.

        Example:
            if not (await bridge.health()).healthy:
                print("unwell")
        """
        from posthouse.bridge.health import look

        kept = self._kept_health
        if kept is not None and not fresh:
            at, health = kept
            if time.monotonic() - at < self.settings.health_seconds:
                return health
        health = await look(self)
        self._kept_health = time.monotonic(), health
        return health

    def metrics(self) -> str:
        """Returns the figures of the bridge in the text format of Prometheus.

        Example:
            print(bridge.metrics())
        """
        return self.figures.prometheus()

    @property
    def connection(self) -> Connection:
        """The connection to the transport, for health and for the test kit."""
        return self._connection

    @property
    def sync(self) -> "SyncBridge":
        """The same bridge for programs without an event loop: each method waits."""
        from posthouse.bridge.sync import SyncBridge

        return SyncBridge(self)

    @contextmanager
    def under_test(self, hooks: Hooks) -> Iterator[None]:
        """Puts the test kit's `hooks` into the bridge, for the length of a `with` block.

        Example:
            with bridge.under_test(Hooks(pace=lambda delay: 0.0)):
                pass
        """
        if self._connection.is_open:
            raise ConfigurationError("The bridge is connected; close it before a test uses it.")
        before, self._hooks = self._hooks, hooks
        try:
            yield
        finally:
            self._hooks = before

    def testing(self, *others: "Bridge") -> "AbstractAsyncContextManager[Testing]":
        """The test kit of this bridge, and of `others` that share its transport.

        Example:
            async with bridge.testing() as t:
                await bridge.publish("order.created", {"id": 7})
                assert t.published(type="order.created")
        """
        from posthouse.bridge.testing import testing

        return testing(self, *others)


_tasks: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


@contextmanager
def _signals(stop: Callable[[], None], late_seconds: float) -> Iterator[None]:
    """Has SIGTERM and SIGINT call `stop`, also while a handler computes on the loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late = threading.Timer(late_seconds, os._exit, (1,))
    late.daemon = True
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        if told:
            os._exit(128 + number)
        told.append(number)
        late.start()
        stop()

    before = {each: signal.signal(each, tell) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        late.cancel()
        for number, was in before.items():
            signal.signal(number, was)
