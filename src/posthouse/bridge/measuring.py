"""Measures how fast events go: from a commit, over the relay and the transport, to a handler."""

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from posthouse.bridge.bridge import Bridge
from posthouse.bridge.errors import BridgeError
from posthouse.bridge.event import Event
from posthouse.bridge.publishing import NewEvent

PREFIX = "posthouse_bench_"
SINGLES = 200  # events whose time from commit to handler is taken, one at a time
WRITE_EVENTS = 50  # of one transaction
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Measured:
    """Measured figures. Rates are events a second, of many; times are those of single events."""

    transport: str
    events: int
    size: int
    written_rate: float
    relayed_rate: float
    handled_rate: float
    p50_ms: float
    p99_ms: float


async def measure(
    url: str,
    database: str | None,
    *,
    events: int,
    size: int,
    concurrency: int,
    batch: int,
    told: Callable[[int, int], object] = lambda done, whole: None,
) -> Measured:
    """Measures with tables and a stream of its own. Raises BridgeError, and what databases raise.

    On a NATS server the stream stays behind, empty: the name begins with `posthouse-bench`.
    """
    if url == "memory://":
        url = f"memory://{uuid.uuid4()}"
    with tempfile.TemporaryDirectory(prefix="posthouse-bench-") as folder:
        where = database or f"sqlite:///{Path(folder) / 'bench.db'}"
        settings: dict[str, Any] = {
            "stream": "posthouse-bench", "prefix": PREFIX, "poll_seconds": 1.0, "delays": (0.1,),
        }  # fmt: skip
        left = Bridge(url, app="bench-left", destination="bench-right", database=where, **settings)
        right = Bridge(url, app="bench-right", destination="bench-left", database=where, **settings)
        async with _tables(left), contextlib.aclosing(_Closing(left, right)):
            return await _Bench(left, right, events, size, told).run(concurrency, batch)


class _Closing:
    def __init__(self, *bridges: Bridge) -> None:
        self._bridges = bridges

    async def aclose(self) -> None:
        for bridge in self._bridges:
            await bridge.close()


class _Bench:
    def __init__(
        self, left: Bridge, right: Bridge, events: int, size: int,
        told: Callable[[int, int], object],
    ) -> None:  # fmt: skip
        self._left, self._right = left, right
        self._events = events
        self._payload = {"text": "x" * max(0, size - len('{"text":""}'))}
        self._size = size
        self._told = told
        self._handled: dict[str, float] = {}
        self._changed = asyncio.Event()

    async def run(self, concurrency: int, batch: int) -> Measured:
        right = self._right
        if batch:

            @right.consumer(concurrency=concurrency, batch=batch)
            async def on_events(events: list[Event]) -> None:
                for event in events:
                    self._note(event)

        else:

            @right.consumer(concurrency=concurrency)
            async def on_event(event: Event) -> None:
                self._note(event)

        begun = time.monotonic()
        ids = [id for count in self._parts() for id in await self._write(count)]
        written = time.monotonic() - begun
        begun = time.monotonic()
        async with self._left.relaying():
            await self._until(lambda: self._relayed() >= self._events)
            relayed = time.monotonic() - begun
            begun = time.monotonic()
            async with right.consuming():
                await self._until(lambda: len(self._handled) >= len(ids))
                handled = max(self._handled.values()) - begun
                times = [await self._single() for _ in range(SINGLES)]
        times.sort()
        return Measured(
            self._left.settings.shown()["url"].__str__().partition("://")[0], self._events,
            self._size, self._events / written, self._events / relayed, self._events / handled,
            1_000 * times[len(times) // 2], 1_000 * times[len(times) * 99 // 100],
        )  # fmt: skip

    def _parts(self) -> list[int]:
        whole, rest = divmod(self._events, WRITE_EVENTS)
        return [WRITE_EVENTS] * whole + ([rest] if rest else [])

    def _relayed(self) -> float:
        return self._left.figures.value("bridge_relayed_total")

    def _note(self, event: Event) -> None:
        self._handled[event.id] = time.monotonic()
        self._told(len(self._handled), self._events)
        self._changed.set()

    async def _single(self) -> float:
        [id] = await self._write(1)
        committed = time.monotonic()
        await self._until(lambda: id in self._handled)
        return self._handled[id] - committed

    async def _write(self, count: int) -> list[str]:
        """Writes events in one transaction, and returns their ids after its commit."""
        new = [
            NewEvent("bench.event", self._payload, key=str(number % 100)) for number in range(count)
        ]
        engine = self._left.storage.engine
        if isinstance(engine, AsyncEngine):
            async with engine.begin() as connection:
                return self._left.publish_many(new, session=connection)
        return await asyncio.to_thread(self._write_plainly, engine, new)

    def _write_plainly(self, engine: Engine, new: list[NewEvent]) -> list[str]:
        with engine.begin() as connection:
            return self._left.publish_many(new, session=connection)

    async def _until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not condition():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.005):  # of the relay's progress nobody tells
                            await self._changed.wait()
        except TimeoutError:
            raise BridgeError(
                f"After {WAIT_SECONDS:g} s the events were not through; see the log."
            ) from None


@asynccontextmanager
async def _tables(bridge: Bridge) -> AsyncIterator[None]:
    storage = bridge.storage
    await bridge.create_tables()
    try:
        yield
    finally:
        await storage.database.run(storage.metadata.drop_all)
