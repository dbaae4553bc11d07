"""A worker: functions that handle the messages of queues.

    app = posthouse.Worker("posthouse://localhost")

    @app.handler("orders")
    async def on_order(order: Order) -> None: ...

`posthouse worker module:app` runs it, or `await app.run()`.
"""

import asyncio
import inspect
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from posthouse.client.client import QueueClient
from posthouse.client.config import QueueConfig
from posthouse.client.create import create_client
from posthouse.client.cross_loop import cross_loop
from posthouse.client.errors import ConfigurationError, QueueError
from posthouse.client.figures import Figures
from posthouse.client.handling import Context, Middleware, Options, Outcome, Route
from posthouse.client.intake import Intake, SessionIntake
from posthouse.client.loop_thread import SHARED, LoopThread
from posthouse.client.messages import PRIORITY, Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, QueueName
from posthouse.client.provider import ProviderType
from posthouse.client.retry import RetryPolicy
from posthouse.client.running import HOPELESS, Run
from posthouse.client.sync import SyncQueueClient

_log = logging.getLogger("posthouse.worker")

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Any]
DRAIN_SECONDS = 30.0
LATE_SECONDS = 5.0  # after which a process ends whose loop does not come back to be told
_ALONE = ConfigurationError("The worker", "is not running; it has a client while it is")


class Worker:
    """A worker: receives messages from queues and passes them to handlers."""

    def __init__(
        self,
        config: QueueConfig | QueueClient | str | None = None,
        *,
        retry: RetryPolicy | None = None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """Takes a configuration, a URL or a client; without one, the environment configures it.

        A client of yours is used where you use it, on your loop, and is not closed; then a handler
        that computes for long holds up the renewal of locks.
        """
        self._config = config
        self._retry = retry
        self._drain_seconds = drain_seconds
        self._routes: dict[tuple[str, bool], Route] = {}
        self._middleware: list[Middleware] = []
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._run: Run | None = None
        self._last: Run | None = None  # its figures can be read when it is over
        self._is_drained = True
        self._is_stopped = False

    # What it is made of.

    def handler(
        self,
        queue: str,
        *,
        concurrency: int = 10,
        prefetch: int = 0,
        retry: RetryPolicy | None = None,
        sessions: bool = False,
        max_sessions: int = 8,
        session_idle: float = 5.0,
        dead_letter: bool = False,
    ) -> Callable[[F], F]:
        """Decorates the function that handles a queue's messages. Raises QueueError."""
        options = Options(
            QueueName(queue), max_sessions if sessions else concurrency, prefetch,
            sessions=sessions, session_idle=session_idle, dead_letter=dead_letter,
        )  # fmt: skip
        policy = retry or self._retry
        if policy is not None:
            options = replace(options, retry=policy)
        key = queue, dead_letter
        if key in self._routes:
            raise ConfigurationError(queue, "has a handler already")

        def register(function: F) -> F:
            self._routes[key] = Route(function, options)
            return function

        return register

    def middleware(self, layer: F) -> F:
        """Registers middleware: `async def layer(context, call_next)`. The first is outermost."""
        if not inspect.iscoroutinefunction(layer):
            raise ConfigurationError("Middleware", "must be an async function")
        self._middleware.append(layer)
        return layer

    def on_start(self, hook: F) -> F:
        """Registers a hook that runs before the first message is fetched. It can use `client`."""
        self._on_start.append(hook)
        return hook

    def on_stop(self, hook: F) -> F:
        """Registers a hook that runs after the last message is settled. It can use `client`."""
        self._on_stop.append(hook)
        return hook

    @property
    def queues(self) -> list[str]:
        return [queue for queue, _ in self._routes]

    @property
    def config(self) -> QueueConfig | QueueClient | str | None:
        """The configuration, URL or client that the worker was made with."""
        return self._config

    # While it runs.

    @property
    def client(self) -> QueueClient:
        """The client for `async` handlers and hooks.

        Raises ConfigurationError if the worker does not run.
        """
        if self._run is None:
            raise _ALONE
        return cross_loop(self._run.client, self._run.loop_thread)

    @property
    def sync_client(self) -> SyncQueueClient:
        """The client for handlers that are plain functions.

        Raises ConfigurationError if the worker does not run.
        """
        if self._run is None:
            raise _ALONE
        return SyncQueueClient(self._run.client, self._run.loop_thread)

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures of handling, by queue: the count and the time of each outcome."""
        return {} if self._last is None else self._last.figures

    async def run(
        self, config: QueueConfig | str | None = None, *, concurrency: int | None = None
    ) -> bool:
        """Runs the worker until it is stopped. Returns whether every handler came to its end.

        SIGTERM and SIGINT stop it; a second signal ends the process at once. `config` and
        `concurrency` override the worker's own. Raises QueueError if a queue does not exist, or
        may not be read from.
        """
        with self._signals():
            async with self.running(config, concurrency=concurrency):
                assert self._run is not None
                await self._run.loop_thread.call(_wait(self._run.stop))
        return self._is_drained

    def stop(self) -> None:
        """Stops the worker: nothing more is fetched, and `run` returns when all is drained.

        It may be called from any thread.
        """
        self._is_stopped, run = True, self._run
        if run is not None:
            run.loop_thread.loop.call_soon_threadsafe(run.stop.set)

    @asynccontextmanager
    async def running(
        self, config: QueueConfig | str | None = None, *, concurrency: int | None = None
    ) -> "AsyncIterator[Worker]":
        """Runs the worker for the length of an `async with` block, and drains it at the end."""
        if self._run is not None:
            raise ConfigurationError("The worker", "is running already")
        routes = list(self._routes.values())
        if not routes:
            raise ConfigurationError("The worker", "has no handler")
        if concurrency is not None:
            routes = [
                Route(each.function, replace(each.options, concurrency=concurrency))
                for each in routes
            ]
        for each in routes:
            each.check()
        given = config or self._config
        hands = asyncio.get_running_loop()
        is_mine = not isinstance(given, QueueClient)
        loop_thread = SHARED if is_mine else LoopThread(hands)
        client = given if isinstance(given, QueueClient) else await loop_thread.call(_make(given))
        plain = sum(each.options.concurrency for each in routes if not each.is_async)
        pool = ThreadPoolExecutor(max(1, plain), "posthouse-handler")
        run = self._run = self._last = Run(
            client, loop_thread, hands, self.queues, self._middleware, pool
        )
        if self._is_stopped:
            self.stop()
        try:
            await loop_thread.call(run.unless_stopped(_open(client)))
            for hook in self._on_start:
                await _call(hook)
            try:
                async with self._fetching(run, routes):
                    yield self
            finally:
                for hook in self._on_stop:
                    await _call(hook)
        finally:
            run.is_over = True
            self._is_stopped = False
            if is_mine:
                await loop_thread.call(client.close())
            pool.shutdown(wait=self._is_drained, cancel_futures=True)
            self._run = None

    @asynccontextmanager
    async def _fetching(self, run: Run, routes: list[Route]) -> AsyncIterator[None]:
        intakes: list[Intake | SessionIntake] = [
            SessionIntake(self, run, each) if each.options.sessions else Intake(self, run, each)
            for each in routes
        ]

        started = asyncio.Event()
        draining: list[asyncio.Task[bool]] = []

        async def drain() -> bool:
            await run.stop.wait()
            await started.wait()
            ends = await asyncio.gather(*[each.drain(self._drain_seconds) for each in intakes])
            return all(ends)

        async def start() -> None:
            # It is drained from the client's loop, also while a handler computes on the other loop.
            draining.append(asyncio.create_task(drain()))
            try:
                for each in intakes:
                    await each.start()
            finally:
                started.set()

        async def end() -> bool:
            run.stop.set()
            return await draining[0]

        self._is_drained = False
        try:
            await run.loop_thread.call(start())
            queues = [each.options.queue for each in routes]
            _log.info("Handling messages of %s.", ", ".join(queues),
                      extra={"event": "worker.ready", "queues": queues})  # fmt: skip
            yield
        finally:
            self._is_drained = await run.loop_thread.call(end())
            _log.info("Every handler came to its end." if self._is_drained else
                      "Some handlers did not come to their end.",
                      extra={"event": "worker.stopped", "drained": self._is_drained})  # fmt: skip

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """They are noticed also while a handler computes on the loop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        late = threading.Timer(self._drain_seconds + LATE_SECONDS, os._exit, (1,))
        late.daemon = True
        told: list[int] = []

        def tell(number: int, _: object) -> None:
            if told:
                os._exit(128 + number)
            told.append(number)
            late.start()
            self.stop()

        before = {each: signal.signal(each, tell) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            late.cancel()
            for number, was in before.items():
                signal.signal(number, was)

    # In a test.

    async def process(
        self, queue: str, message: Message | ReceivedMessage, *, attempt: int = 1
    ) -> Outcome:
        """Passes a message through middleware and handler, without a broker; for tests.

        Returns the outcome that the message would have.
        """
        route = self._routes.get((queue, False))
        if route is None:
            raise ConfigurationError(queue, "has no handler")
        if isinstance(message, Message):
            message = _received(message, attempt)
        context = Context(self, queue, message, attempt)
        with ThreadPoolExecutor(1) as pool:
            work = route.handle(context, self._middleware, pool)
            return await asyncio.create_task(work)


def _received(message: Message, attempt: int) -> ReceivedMessage:
    now = utc_now()
    receipt = ReceiptHandle("", now + timedelta(minutes=1), ProviderType.IN_MEMORY)
    priority = PRIORITY if message.priority is None else message.priority
    return ReceivedMessage(
        message.message_id or MessageId(), message.body, receipt, attempt, now, message.attributes,
        message.session_id, message.correlation_id, message.content_type,
        time_to_live=message.time_to_live, subject=message.subject, to=message.to,
        reply_to=message.reply_to, priority=priority, partition_key=message.partition_key,
    )  # fmt: skip


async def _make(config: QueueConfig | str | None) -> QueueClient:
    return create_client(config)


async def _open(client: QueueClient) -> None:
    """Raises QueueError where there is no hope; a broker that is not up yet is waited for."""
    try:
        await client.__aenter__()
    except HOPELESS:
        raise
    except QueueError as error:
        _log.warning("There is no connection yet: %s", error, extra={"event": "worker.waiting"})


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _call(hook: Hook) -> None:
    done = hook()
    if inspect.isawaitable(done):
        await done
