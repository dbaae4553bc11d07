"""Clients of the HTTP API under whom the broker is killed: they tell a history what they hear."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from tests.crash.history import History
from tests.crash.killing import Connect, Killed, Streams, messages_in, now_ms, to_port, until_killed
from tests.server.running import Running

PLAIN, SESSIONS = "plain", "sessions"
BACKLOG_MAX = 300
CLIENTS = 12


class Client:
    """One connection, kept open; tells the history every word as it is said and heard."""

    def __init__(self, connect: Connect, history: History) -> None:
        self._connect = connect
        self._history = history
        self._streams: Streams | None = None

    async def ask(self, where: str, form: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON. Raises Killed."""
        body = json.dumps(form).encode()
        path = f"/api/v1/namespaces/default/queues/{where}"
        try:
            if self._streams is None:
                self._streams = await self._connect()
            reader, writer = self._streams
            writer.write(
                f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            answer = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            raise Killed from None
        return int(head[9:12]), json.loads(answer) if answer else None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def send(self, queue: str, names: list[str], session: str | None, due_ms: int) -> None:
        self._history.sending(names, session, due_ms)
        fields = {"session_id": session, "due_ms": due_ms}
        form = {"messages": [{"id": name, "body": name * 3, **fields} for name in names]}
        status, answer = await self.ask(f"{queue}/messages", form)
        assert status == 201, answer
        self._history.sent(names)

    async def receive(self, queue: str, **form: Any) -> list[dict[str, Any]]:
        status, answer = await self.ask(f"{queue}/receive", form)
        assert status in (200, 410), answer
        given: list[dict[str, Any]] = answer["messages"] if status == 200 else []
        for each in given:
            assert each["body"] == each["id"] * 3
            self._history.delivered(
                each["id"], each["token"], each["until_ms"], now_ms(), under=form.get("session")
            )
        return given

    async def settle(self, queue: str, message: dict[str, Any], how: str) -> None:
        name, token, history = message["id"], message["token"], self._history
        asking = {"complete": history.completing, "dead-letter": history.burying,
                  "abandon": history.abandoning}  # fmt: skip
        done = {"complete": history.completed, "dead-letter": history.buried,
                "abandon": history.abandoned}  # fmt: skip
        asking[how](name, token)
        status, answer = await self.ask(f"{queue}/{how}", {"locks": [token]})
        if status == 410:
            history.refused(token, now_ms(), name)
        else:
            assert status == 200, answer
            done[how](name, token)

    async def accept(self) -> str:
        status, answer = await self.ask(f"{SESSIONS}/sessions/accept", {"wait_ms": 100})
        if status == 408:
            return ""
        assert status == 200, answer
        self._history.held(answer["session"], answer["token"], answer["until_ms"], now_ms())
        return str(answer["token"])

    async def release(self, token: str) -> None:
        self._history.leaving(token)
        status, _ = await self.ask(f"{SESSIONS}/sessions/release", {"token": token})
        if status == 410:
            self._history.refused(token, now_ms())
        else:
            self._history.left(token)


class Load:
    def __init__(
        self, random: Random, history: History, lock_ms: tuple[int, ...] = (0, 0, 1_500)
    ) -> None:
        """`lock_ms`: for how long messages are received, each time one of these."""
        self._random = random
        self._history = history
        self._lock_ms = lock_ms
        self._sent = self._backlog = 0
        self._over = False

    async def run(self, port: int, backlog: int) -> None:
        """Until the broker is killed."""
        clients = [Client(to_port(port), self._history) for _ in range(CLIENTS)]
        await until_killed(self.work(clients, backlog), self.end)
        for client in clients:
            client.close()

    def work(self, clients: Sequence[Client], backlog: int) -> list[Coroutine[None, None, None]]:
        """What the clients do, until it is to end, or the broker is killed."""
        self._backlog, self._over = backlog, False
        return [
            *(self._send(client, PLAIN) for client in clients[:3]),
            *(self._send(client, SESSIONS) for client in clients[3:5]),
            *(self._pull(client) for client in clients[5:9]),
            *(self._pull_sessions(client) for client in clients[9:]),
        ]

    def end(self) -> None:
        """Each does what it is about, and ends."""
        self._over = True

    async def _send(self, client: Client, queue: str) -> None:
        random = self._random
        while not self._over:
            if self._backlog > BACKLOG_MAX:
                await asyncio.sleep(0.005)  # slept: others have to receive first
                continue
            count = random.choice([1, 1, 5])
            names = [f"{queue}-{self._sent + number:07}" for number in range(count)]
            self._sent += count
            self._backlog += count
            session = f"s{random.randrange(12)}" if queue == SESSIONS else None
            due_ms = now_ms() + random.choice([20, 500]) if random.random() < 0.1 else 0
            await client.send(queue, names, session, due_ms)

    async def _pull(self, client: Client) -> None:
        while not self._over:
            lock_ms = self._random.choice(self._lock_ms)
            for each in await client.receive(PLAIN, limit=4, wait_ms=100, lock_ms=lock_ms):
                await self._settle(client, PLAIN, each)

    async def _pull_sessions(self, client: Client) -> None:
        while not self._over:
            token = await client.accept()
            if token:
                for _ in range(self._random.randrange(1, 4)):
                    form = {"limit": 4, "wait_ms": 20, "session": token}
                    for each in await client.receive(SESSIONS, **form):
                        await self._settle(client, SESSIONS, each)
                await client.release(token)

    async def _settle(self, client: Client, queue: str, message: dict[str, Any]) -> None:
        how = self._random.choices(
            ["complete", "dead-letter", "abandon", ""], [0.8, 0.03, 0.1, 0.07]
        )[0]
        if how:
            await client.settle(queue, message, how)
            self._backlog -= how != "abandon"


def look(broker: Running, history: History) -> int:
    """Everything that is there; how much that is."""
    live, dead = (
        [each["id"] for queue in (PLAIN, SESSIONS) for each in messages_in(broker, queue + end)]
        for end in ("", "%2F$dead")
    )
    history.check(live, dead)
    return len(live)
