"""A broker under load, killed again and again: what every such test does, whatever it speaks."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.crash.history import History
from tests.server.running import Running

# Segments are small and kept no longer than needed: folding and trimming go on all the time.
FLAGS = ("--dev", "--segment-size", "256K", "--fold-size", "256K", "--keep", "0s", "--keep-size",
         "0", "--bodies-limit", "16K")  # fmt: skip


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]  # raises OSError


class Killed(Exception):
    """The broker is gone, and all that it has said is heard."""


class Load(Protocol):
    async def run(self, port: int, backlog: int) -> None:
        """Until the broker is killed. Tells the history what is said and heard."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def to_port(port: int) -> Connect:
    return lambda: asyncio.open_connection("127.0.0.1", port)


async def until_killed(
    work: Iterable[Coroutine[None, None, None]], over: Callable[[], None]
) -> None:
    """Does all of it; calls `over` when the first notices that the broker is gone."""

    async def one(each: Coroutine[None, None, None]) -> None:
        try:
            with contextlib.suppress(Killed):
                await each
        finally:
            over()

    found = await asyncio.gather(*map(one, work), return_exceptions=True)
    for each in found:
        if each is not None:
            raise each


def messages_in(broker: Running, queue: str) -> list[dict[str, Any]]:
    """Of a queue or, with %2F$dead behind its name, of its dead-letter queue; none if it is not."""
    found: list[dict[str, Any]] = []
    first: int | None = 0
    while first is not None:
        reply = broker.queue("GET", f"{queue}/messages?limit=1000&first={first}")
        page = reply.json if reply.status == 200 else {"messages": [], "next": None}
        found += page["messages"]
        first = page["next"]
    return found


class Lives:
    """Brokers one after the other on one folder, each of them killed under load."""

    def __init__(self, folder: Path, *flags: str, random: Random, history: History) -> None:
        self._flags = ("--data", str(folder), *FLAGS, *flags)
        self._random = random
        self._history = history
        self.broker = Running(*self._flags)

    def kill(
        self, times: int, load: Load, look: Callable[[Running], int], longest_seconds: float
    ) -> None:
        """`look` holds what is there against the history, and says how much there is to receive."""
        for _ in range(times):
            asyncio.run(self._live(load, look(self.broker), longest_seconds))
            self.broker.kill()
            self._history.killed(now_ms())
            self.broker = Running(*self._flags)
            look(self.broker)
        assert self.broker.stop() == 0

    async def _live(self, load: Load, backlog: int, longest_seconds: float) -> None:
        running = asyncio.create_task(load.run(self.broker.port, backlog))
        await asyncio.wait([running], timeout=self._random.uniform(0.3, longest_seconds))
        self.broker.process.kill()
        await running
