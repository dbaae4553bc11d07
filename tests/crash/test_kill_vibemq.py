"""kill -9 of `posthouse serve` under the load of VibeMQ clients: it keeps what it promised.

With the same history as test_kill.py. An acknowledgement has no answer in this protocol; what was
acknowledged before a publish that is answered is durable with it, so each subscriber publishes now
and then, and takes that for the answer.
"""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from random import Random

import pytest

from tests.crash.history import History
from tests.crash.killing import Killed, Lives, messages_in, now_ms, until_killed
from tests.dialects.vibemq.client import (
    ACK,
    CONNECT,
    CREATE,
    DELIVER,
    ERROR,
    GENERATIONS,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    Said,
    cut,
    written,
)
from tests.server.running import Running

pytestmark = pytest.mark.alone

KILLS = int(os.environ.get("KILLS", "10")) // 3
QUEUES = {"plain": {"maxRetryAttempts": 50}, "urgent": {"mode": 3, "maxRetryAttempts": 50}}
MARKS = "marks"  # where subscribers publish to
BACKLOG_MAX = 300
SURE_MS = 20_000  # of the 30 s that a lock lasts, from when its delivery arrives
LOAD = ("sent", "delivered", "redelivered", "completed", "leaving", "attached")


class Client:
    """One connection. What is heard is told to the history at once."""

    def __init__(self, port: int, history: History, generation: str) -> None:
        self._port, self._generation = port, generation
        self._history = history
        self._answers: dict[str, asyncio.Future[Said]] = {}
        self._ids = 0
        self._reading: asyncio.Task[None] | None = None
        self.name = ""  # as a receiver
        self.given: asyncio.Queue[tuple[str, str]] = asyncio.Queue()  # names and tokens
        self._marked: dict[str, list[tuple[str, str]]] = {}  # by marks: what was acknowledged

    async def open(self) -> None:
        try:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            raise Killed from None
        self._reading = asyncio.create_task(self._read())
        await self.ask(Said(CONNECT, "connect"))

    async def close(self) -> None:
        if self._reading is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading  # a promise that was broken is told here

    async def _read(self) -> None:
        data = b""
        try:
            with contextlib.suppress(OSError):
                while more := await self._reader.read(1 << 16):
                    found, data = cut(data + more, self._generation)
                    for said in found:
                        self._hear(said)
        finally:
            for each in self._answers.values():
                if not each.done():
                    each.set_exception(Killed())
            self.given.put_nowait(("", ""))

    def _hear(self, said: Said) -> None:
        if said.type == DELIVER:
            assert said.json == said.id * 3
            self._ids += 1
            token = f"{self.name} {self._ids}"
            self._history.delivered(said.id, token, now_ms() + SURE_MS, now_ms(), under=self.name)
            self.given.put_nowait((said.id, token))
            return
        assert said.type != ERROR, said
        for name, token in self._marked.pop(said.id, ()):
            self._history.completed(name, token)
        if said.type == PUBLISH_ACK and said.queue != MARKS:
            self._history.sent([said.id])
        answer = self._answers.pop(said.id)
        if not answer.done():
            answer.set_result(said)

    async def ask(self, said: Said) -> Said:
        answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        self._answers[said.id] = answer
        self._writer.write(written(said, self._generation))
        return await answer

    async def publish(self, queue: str, name: str, priority: str) -> None:
        self._history.sending([name])
        payload = json.dumps(name * 3).encode()
        await self.ask(Said(PUBLISH, name, queue, payload, {"priority": priority}))

    async def subscribe(self, queue: str) -> None:
        self.name = f"receiver {self._history.counts['attached'] + 1}"
        self._history.attached(self.name)
        await self.ask(Said(SUBSCRIBE, "subscribe", queue))

    async def acknowledge(self, given: list[tuple[str, str]]) -> None:
        """And a mark behind it, by whose answer it is known."""
        said = b""
        for name, token in given:
            self._history.completing(name, token)
            said += written(Said(ACK, name), self._generation)
        self._ids += 1
        mark = f"{self.name} mark {self._ids}"
        self._marked[mark] = given
        self._writer.write(said)
        await self.ask(Said(PUBLISH, mark, MARKS, b"1"))

    async def leave(self) -> None:
        """With what it has."""
        self._history.leaving(self.name)
        await self.close()


class Load:
    def __init__(self, random: Random, history: History) -> None:
        self._random = random
        self._history = history
        self._sent = self._backlog = 0
        self._over = False

    async def run(self, port: int, backlog: int) -> None:
        """Until the broker is killed."""
        self._port, self._backlog, self._over = port, backlog, False
        work = [self._publish(queue) for queue in QUEUES for _ in range(3)]
        work += [self._take(queue) for queue in QUEUES for _ in range(3)]
        await until_killed(work, self._end)

    def _end(self) -> None:
        self._over = True

    async def _client(self) -> Client:
        client = Client(self._port, self._history, self._random.choice(GENERATIONS))
        try:
            await client.open()
        except Killed:
            await client.close()
            raise
        return client

    async def _publish(self, queue: str) -> None:
        client = await self._client()
        try:
            while not self._over:
                if self._backlog > BACKLOG_MAX:
                    await asyncio.sleep(0.005)  # slept: others have to receive first
                    continue
                self._sent += 1
                self._backlog += 1
                priority = self._random.choice(["low", "normal", "high", "critical"])
                await client.publish(queue, f"{queue}-{self._sent:07}", priority)
        finally:
            await client.close()

    async def _take(self, queue: str) -> None:
        while True:
            client = await self._client()
            try:
                await client.subscribe(queue)
                for _ in range(self._random.randrange(5, 40)):
                    given = [await client.given.get()]
                    while not client.given.empty() and len(given) < 8:
                        given.append(client.given.get_nowait())
                    if ("", "") in given:
                        raise Killed
                    await client.acknowledge(given)
                    self._backlog -= len(given)
                await client.leave()
            finally:
                await client.close()


def look(broker: Running, history: History) -> int:
    """Everything that is there; how much that is."""
    live, dead = (
        [each["id"] for queue in QUEUES for each in messages_in(broker, queue + end)]
        for end in ("", "%2F$dead")
    )
    history.check(live, dead)
    return len(live)


async def declare(port: int, history: History) -> None:
    client = Client(port, history, GENERATIONS[0])
    await client.open()
    for queue, options in QUEUES.items():
        await client.ask(Said(CREATE, queue, queue, json.dumps(options).encode()))
    await client.close()


def test_what_vibemq_clients_were_told_survives_kill_9(tmp_path: Path) -> None:
    random, history = Random(12), History()
    lives = Lives(tmp_path / "data", random=random, history=history)
    asyncio.run(declare(lives.broker.port, history))
    lives.kill(KILLS, Load(random, history), lambda broker: look(broker, history), 2)
    for word in LOAD:
        assert history.counts[word], (word, history.counts)
