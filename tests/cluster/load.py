"""The mixed load of the kill tests, by clients who know the addresses of all nodes.

Clients live in generations. A generation ends as soon as one of its clients loses its connection,
or learns that another node leads: all others drop theirs at that moment and hear nothing more, so
all that the old leader has said was heard before anything that the new one says. That is what a
history calls a kill. The next generation begins when a node says that it is ready.

A refusal because the broker is busy, or its disk full, has changed nothing; the same request is
made again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

from tests.cluster.machines import PORT
from tests.crash import http_load, pyqueue_load
from tests.crash.history import History
from tests.crash.killing import Connect, Killed, Streams, now_ms
from tests.server.running import Running

REQUEST_SECONDS = 20.0  # longer than any gap: a leader that hangs is noticed by asking the others
BUSY_SECONDS = 0.05  # before a request is made again
WATCH_SECONDS = 0.2
HEALTH_SECONDS = 0.5
OTHERS_SECONDS = 0.05  # for other nodes to say that they are ready, too, when one is
PYQUEUE_LOCK_SECONDS = 5
LOCK_MS = (0, 0, 15_000)
QUEUES: dict[str, dict[str, Any]] = {
    http_load.PLAIN: {"lock_ms": 2_000, "max_delivery": 8},
    http_load.SESSIONS: {"lock_ms": 2_000, "max_delivery": 8, "grouping": "session"},
}
_TRY_AGAIN = (b"The broker is busy", b"This broker follows", b"no disk space left")
FLAGS = ("--pyqueue-lock", f"{PYQUEUE_LOCK_SECONDS}s")


class Timed(History):
    """A history that notes when something was acknowledged."""

    def __init__(self, acknowledged: list[float]) -> None:
        super().__init__()
        self._acknowledged = acknowledged

    def _say(self, word: str, *names: str) -> int:
        if word in ("sent", "completed"):
            self._acknowledged.append(time.monotonic())
        return super()._say(word, *names)


class HttpClient(http_load.Client):
    async def ask(self, where: str, form: dict[str, Any]) -> tuple[int, Any]:
        while True:
            status, answer = await _in_time(super().ask(where, form))
            code = answer["code"] if status >= 400 else ""
            if code in ("not-leader", "journal-lost"):  # another leads; it may be done or not
                raise Killed
            if code not in ("busy", "quota-exceeded"):
                return status, answer
            await asyncio.sleep(BUSY_SECONDS)  # slept: it is to be tried again


class PyQueueClient(pyqueue_load.Client):
    async def ask(self, *requests: tuple[str, Any]) -> list[pyqueue_load.Reply]:
        done: list[pyqueue_load.Reply] = []
        while len(done) < len(requests):
            try:
                replies = await _in_time(super().ask(*requests[len(done) :]))
            except Killed as killed:
                heard = killed.args[0] if killed.args else []
                raise Killed([*done, *_before_refusal(heard)]) from None
            good = _before_refusal(replies)
            done += good
            if len(good) == len(replies):
                continue
            if b"follows" in replies[len(good)][1] or any(
                _is_done(r) for r in replies[len(good) :]
            ):
                raise Killed(done)
            await asyncio.sleep(BUSY_SECONDS)  # slept: it is to be tried again
        return done


def _is_done(reply: pyqueue_load.Reply) -> bool:
    return not any(words in reply[1] for words in _TRY_AGAIN)


def _before_refusal(replies: Sequence[pyqueue_load.Reply]) -> list[pyqueue_load.Reply]:
    """The replies of a pipeline up to the first that says to try again."""
    count = next((at for at, reply in enumerate(replies) if not _is_done(reply)), len(replies))
    return list(replies[:count])


async def _in_time(asked: Any) -> Any:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await asked
    except TimeoutError:
        raise Killed from None


async def is_ready(address: str) -> bool:
    """Whether a node says that clients can work with it."""
    writer = None
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            reader, writer = await asyncio.open_connection(address, PORT)
            writer.write(b"GET /health/ready HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
            return (await reader.readexactly(12)).endswith(b"200")
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


class Load:
    """HTTP and PyQueue clients, each kind with a history of its own."""

    def __init__(self, addresses: Sequence[str], random: Random) -> None:
        self._addresses = list(addresses)
        self._random = random
        self.acknowledged: list[float] = []  # when, by the monotonic clock
        self._http_history = Timed(self.acknowledged)
        self._pyqueue_history = Timed(self.acknowledged)
        self._http = http_load.Load(random, self._http_history, LOCK_MS)
        self._pyqueue = pyqueue_load.Load(random, self._pyqueue_history, PYQUEUE_LOCK_SECONDS)
        self._backlogs = 0, 0
        self._ends = False
        self.generations = 0

    @property
    def histories(self) -> tuple[History, History]:
        return self._http_history, self._pyqueue_history

    def look(self, broker: Running) -> None:
        """Holds what is there against the histories. Nothing may be under way."""
        self._backlogs = (
            http_load.look(broker, self._http_history),
            pyqueue_load.look(broker, self._pyqueue_history),
        )

    def end(self) -> None:
        """All do what they are about, and end."""
        self._ends = True
        self._http.end()
        self._pyqueue.end()

    async def run(self) -> None:
        """One generation after the other, until it is to end. Raises Broken."""
        self._ends = False
        while not self._ends:
            ready = await self._find()
            self.generations += 1
            try:
                await self._live(ready)
            except* Killed:
                for history in self.histories:
                    history.killed(now_ms())

    async def _find(self) -> list[str]:
        """The addresses of nodes that are ready, when there is one."""
        while True:
            asking = {asyncio.create_task(is_ready(at)): at for at in self._addresses}
            for answered in asyncio.as_completed(list(asking)):
                if await answered:
                    await asyncio.wait(asking, timeout=OTHERS_SECONDS)
                    break
            ready = [at for task, at in asking.items() if task.done() and task.result()]
            for task in asking:
                task.cancel()
            if ready:
                return ready
            await asyncio.sleep(BUSY_SECONDS)  # slept: between two looks

    async def _live(self, ready: list[str]) -> None:
        http = [
            HttpClient(self._to_one_of(ready), self._http_history) for _ in range(http_load.CLIENTS)
        ]
        pyqueue = [PyQueueClient(self._to_one_of(ready)) for _ in range(pyqueue_load.CLIENTS)]
        work = [
            *self._http.work(http, self._backlogs[0]),
            *self._pyqueue.work(pyqueue, self._backlogs[1]),
        ]
        if self._ends:
            self.end()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in work]
                watching = group.create_task(self._watch(ready))
                await asyncio.wait(tasks)
                watching.cancel()
        finally:
            for client in http:
                client.close()
            for worker in pyqueue:
                worker.close()

    def _to_one_of(self, ready: list[str]) -> Connect:
        address = self._random.choice(ready)

        async def connect() -> Streams:
            return await asyncio.open_connection(address, PORT)

        return connect

    async def _watch(self, used: list[str]) -> None:
        """Raises Killed when a node that is used is not ready any more, and another one is."""
        is_well = dict.fromkeys(used, True)

        async def watch(address: str) -> None:
            while True:
                await asyncio.sleep(WATCH_SECONDS)  # slept: between two looks
                is_well[address] = await is_ready(address)
                if any(is_well.values()) and not all(is_well[at] for at in used):
                    raise Killed

        await asyncio.gather(*map(watch, self._addresses))


@contextlib.asynccontextmanager
async def running(load: Load) -> AsyncIterator[Callable[[], None]]:
    """The load runs inside, and has ended in good order behind it.

    Gives a function that raises what has gone wrong with the load so far.
    """
    task = asyncio.create_task(load.run())

    def check() -> None:
        if task.done():
            task.result()

    try:
        yield check
    except BaseException:
        task.cancel()
        await asyncio.wait([task])
        raise
    load.end()
    await task
