"""The connection of a bridge to its transport, opened when it is first used.

The transport lives on the loop of a thread that all bridges of the process share, so that it goes
on while a handler computes: fetching, telling progress, settling. Whoever uses it from another
loop, or from none, goes through a `Connection`. A forked child has neither the thread nor the
connection of its parent: there, the first use begins anew.
"""

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from posthouse.bridge.errors import BridgeError, ConfigurationError, NotPermitted, TopologyConflict
from posthouse.bridge.tracing import find_tracing
from posthouse.bridge.transport import (
    DeadLetter,
    Delivery,
    Failure,
    Outgoing,
    Plan,
    Settlement,
    Source,
    Stored,
    Topology,
    Transport,
    TransportHealth,
)
from posthouse.client.loop_thread import LoopThread

_log = logging.getLogger("posthouse.bridge")

T = TypeVar("T")
# Who begins with one of these would not get further by waiting.
HOPELESS = (ConfigurationError, NotPermitted, TopologyConflict)
WAIT_SECONDS_MAX = 5.0  # between two attempts of who waits for a server


class Connection:
    """The transport of a bridge, for users on any loop and thread."""

    def __init__(
        self, make: Callable[[], Transport], attempts: int, delay: float,
        provision: Callable[[Transport], Awaitable[None]] | None,
    ) -> None:  # fmt: skip
        """`provision` is awaited after the transport was opened; it may raise BridgeError."""
        self._make = make
        self._attempts = attempts
        self._delay = delay
        self._provision = provision
        self._begin()
        _connections.add(self)

    def _begin(self) -> None:
        self._lock: asyncio.Lock | None = None
        self._transport: Transport | None = None
        self._is_open = False

    def forget(self) -> None:
        """Drops the parent's connection in a forked child, without touching it."""
        _parents.extend((self._lock, self._transport))
        self._begin()

    @property
    def loop_thread(self) -> LoopThread:
        """The thread with the transport's loop."""
        return threads.transports

    @property
    def hands(self) -> LoopThread:
        """A thread with another loop, for the async handlers of a program without one."""
        return threads.hands

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def body_bytes_max(self) -> int | None:
        """The largest event, in bytes; None until the transport was opened."""
        return self._transport.body_bytes_max if self._is_open and self._transport else None

    def leave_topology(self) -> None:
        """Has the transport opened without providing anything, for who only looks."""
        self._provision = None

    async def call(self, use: Callable[[Transport], Awaitable[T]]) -> T:
        """Uses the open transport, from any loop. Raises BridgeError."""

        async def there() -> T:
            return await use(await self._opened(self._attempts))

        return await self.loop_thread.call(there())

    async def opened(self, *, patiently: bool = False) -> Transport:
        """Returns the open transport, for use on the loop thread alone. Raises BridgeError.

        With `patiently`, a server that is not there yet is waited for.
        """
        return await self.loop_thread.call(self._opened(None if patiently else self._attempts))

    async def _opened(self, attempts: int | None) -> Transport:
        if self._lock is None:
            self._lock = asyncio.Lock()
        tries, delay = 0, self._delay
        while True:
            async with self._lock:
                if self._transport is not None and self._is_open:
                    return self._transport
                tries += 1
                try:
                    return await self._open()
                except HOPELESS:
                    raise
                except BridgeError as error:
                    if attempts is not None and tries >= attempts:
                        raise
                    _log.warning(
                        "There is no connection yet, and it is tried again in %.1f s: %s", delay,
                        error, extra={"event": "bridge.connecting"},
                    )  # fmt: skip
            await asyncio.sleep(delay)
            if attempts is None:
                delay = min(WAIT_SECONDS_MAX, max(0.1, delay * 1.5))

    async def _open(self) -> Transport:
        transport = self._make()
        try:
            await transport.open()
            if self._provision is not None:
                await self._provision(transport)
        except BaseException:
            await transport.close()
            raise
        self._transport, self._is_open = transport, True
        return transport

    async def close(self) -> None:
        async def there() -> None:
            transport, self._transport, self._is_open = self._transport, None, False
            if transport is not None:
                await transport.close()

        if self._transport is not None:
            await self.loop_thread.call(there())


class _Threads:
    """The threads that the bridges of this process share."""

    def __init__(self) -> None:
        self.transports = LoopThread()
        self.hands = LoopThread()


threads = _Threads()
_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()
_parents: list[object] = []  # of a forked child: what is its parent's, and is never touched


def _forget_all() -> None:
    global threads
    _parents.append(threads)
    threads = _Threads()
    for connection in list(_connections):
        connection.forget()


os.register_at_fork(after_in_child=_forget_all)


class FarTransport:
    """The transport of a connection for a relay, whose loop is not the transport's own."""

    def __init__(self, connection: Connection, transport: Transport) -> None:
        self._connection = connection
        self._near = transport
        self.name = transport.name
        self.body_bytes_max = transport.body_bytes_max
        self.wakes = transport.wakes

    async def open(self) -> None:
        """Does nothing: the connection has opened it."""

    async def close(self) -> None:
        """Does nothing: the connection closes it."""

    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        tracing = find_tracing()
        if tracing is None or not tracing.is_on:
            return await self._there(self._near.publish(events))
        with tracing.relaying([event.headers for event in events]):
            return await self._there(self._near.publish(events))

    def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]:
        return self._iterate(lambda: self._near.deliveries(source, window))

    async def settle(self, delivery: Delivery, how: Settlement) -> None:
        await self._there(self._near.settle(delivery, how))

    async def plan(self, wanted: Topology) -> Plan:
        return await self._there(self._near.plan(wanted))

    async def apply(self, plan: Plan, *, recreate: bool = False) -> None:
        await self._there(self._near.apply(plan, recreate=recreate))

    async def wake(self, channel: str) -> None:
        await self._there(self._near.wake(channel))

    def woken(self, channel: str) -> AsyncIterator[None]:
        return self._iterate(lambda: self._near.woken(channel))

    def dead_letters(self, wanted: Topology) -> AsyncIterator[DeadLetter]:
        return self._iterate(lambda: self._near.dead_letters(wanted))

    async def replay(self, letter: DeadLetter, id: str) -> None:
        await self._there(self._near.replay(letter, id))

    async def drop(self, letter: DeadLetter) -> None:
        await self._there(self._near.drop(letter))

    async def health(self, wanted: Topology) -> TransportHealth:
        return await self._there(self._near.health(wanted))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._connection.loop_thread.call(work)

    async def _iterate(self, begin: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        async def first() -> AsyncIterator[T]:
            return begin()

        thread = self._connection.loop_thread
        found = await thread.call(first())
        stepping: asyncio.Task[Any] | None = None

        async def step() -> T:
            nonlocal stepping
            stepping = asyncio.current_task()
            return await anext(found)

        async def end() -> None:
            if stepping is not None and not stepping.done():  # it was cancelled, and is ending
                await asyncio.wait([stepping])
            close = getattr(found, "aclose", None)
            if close is not None:
                await close()

        try:
            while True:
                try:
                    value = await thread.call(step())
                except StopAsyncIteration:
                    return
                yield value
        finally:
            await thread.call(end())
