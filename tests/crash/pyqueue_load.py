"""PyQueue clients under whom the broker is killed: they tell a history what they hear.

PyQueue's clients know no tokens and no times: a task's lock is told by its id and how often it
came, and lasts for as long as the broker was told to hide a task, counted from before it was asked
for. Two copies of one task are never under way to one client, so what is settled by id is what that
client holds.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from tests.crash.history import History
from tests.crash.killing import Connect, Killed, Streams, messages_in, now_ms, to_port, until_killed
from tests.server.running import Running

QUEUE, OTHER = "tasks", "moved"
BACKLOG_MAX = 300
CLIENTS = 8
Reply = tuple[str, bytes]


class Client:
    """One connection, kept open; requests may be sent several at a time."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._streams: Streams | None = None

    async def ask(self, *requests: tuple[str, Any]) -> list[Reply]:
        """Raises Killed, with what was heard before."""
        heard: list[Reply] = []
        try:
            if self._streams is None:
                self._streams = await self._connect()
            reader, writer = self._streams
            for word, form in requests:
                data = form.encode() if isinstance(form, str) else json.dumps(form).encode()
                writer.write(b"%s %d %s" % (word.encode(), len(data), data))
            for _ in requests:
                word = (await reader.readuntil(b" ")).decode().strip()
                length = int(await reader.readuntil(b" "))
                heard.append((word, await reader.readexactly(length)))
        except (OSError, asyncio.IncompleteReadError):
            raise Killed(heard) from None
        return heard

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Load:
    def __init__(self, random: Random, history: History, lock_seconds: int) -> None:
        self._random = random
        self._history = history
        self._lock_ms = lock_seconds * 1_000
        self._sent = self._came = self._backlog = 0
        self._over = False

    async def run(self, port: int, backlog: int) -> None:
        """Until the broker is killed."""
        clients = [Client(to_port(port)) for _ in range(CLIENTS)]
        await until_killed(self.work(clients, backlog), self.end)
        for client in clients:
            client.close()

    def work(self, clients: Sequence[Client], backlog: int) -> list[Coroutine[None, None, None]]:
        """What the clients do, until it is to end, or the broker is killed."""
        self._backlog, self._over = backlog, False
        return [
            *(self._push(client) for client in clients[:3]),
            *(self._pull(client) for client in clients[3:]),
        ]

    def end(self) -> None:
        """Each does what it is about, and ends."""
        self._over = True

    def _new(self, count: int) -> list[str]:
        self._sent += count
        self._backlog += count
        return [f"m-{self._sent - count + number:07}" for number in range(count)]

    async def _push(self, client: Client) -> None:
        """Some by themselves in a pipeline, some as a batch."""
        random, history = self._random, self._history
        while not self._over:
            if self._backlog > BACKLOG_MAX:
                await asyncio.sleep(0.005)  # slept: others have to receive first
                continue
            names = self._new(random.choice([1, 1, 8]))
            tasks = [
                {"payload": name * 3, "queue": QUEUE, "idempotency_key": name,
                 "priority": random.choice(["HIGH", "NORMAL", "LOW"])} for name in names
            ]  # fmt: skip
            if random.random() < 0.3:
                history.sending(names)
                [(word, payload)] = await client.ask(("PUSH_BATCH", {"tasks": tasks}))
                assert (word, json.loads(payload)["count"]) == ("OK", len(names)), payload
                history.sent(names)
                continue
            for name in names:
                history.sending([name])
            try:
                heard = await client.ask(*(("PUSH", task) for task in tasks))
            except Killed as killed:
                self._heard(names, killed.args[0])
                raise
            self._heard(names, heard)

    def _heard(self, names: list[str], replies: list[Reply]) -> None:
        for name, (word, payload) in zip(names, replies, strict=False):
            assert word == "OK", payload
            self._history.sent([name])

    async def _pull(self, client: Client) -> None:
        while not self._over:
            count = self._random.choice([1, 4])
            asked_ms = now_ms()
            [(word, payload)] = await client.ask(("PULL_BATCH", {"queue": QUEUE, "count": count}))
            if word == "NO_JOB":
                await asyncio.sleep(0.01)  # slept: others have to send first
                continue
            assert word == "JOB_BATCH", payload
            held = []
            for job in json.loads(payload)["jobs"]:
                name = job["payload"][: len(job["payload"]) // 3]
                assert job["payload"] == name * 3
                self._came += 1
                token = f"{job['task_id']}#{self._came}"
                until_ms = asked_ms + self._lock_ms
                self._history.delivered(name, token, until_ms, now_ms())
                held.append((job["task_id"], name, token, until_ms))
            for each in held:
                await self._settle(client, *each)

    async def _settle(self, client: Client, id: str, name: str, token: str, until_ms: int) -> None:
        """What has run out is left alone: by its id alone it might be another's by now."""
        history = self._history
        how = self._random.choices(["ack", "nack", "move", ""], [0.7, 0.15, 0.1, 0.05])[0]
        if not how or now_ms() > until_ms - 300:
            return
        if how == "ack":
            history.completing(name, token)
            [(word, payload)] = await client.ask(("ACK", id))
            if word == "OK":
                history.completed(name, token)
                self._backlog -= 1
            else:
                assert payload == b"Task not found", payload
                history.refused(token, now_ms(), name)
        elif how == "nack":
            history.abandoning(name, token)
            [(word, payload)] = await client.ask(("NACK", {"task_id": id, "error": "chance"}))
            if payload == b"Task moved to DLQ":
                history.buried(name, token)
                self._backlog -= 1
            elif word == "OK":
                history.abandoned(name, token)
            else:
                assert payload == b"Task not found", payload
                history.refused(token, now_ms(), name)
        else:
            await self._move(client, id, name, token)

    async def _move(self, client: Client, id: str, name: str, token: str) -> None:
        """It is acknowledged, and two others are pushed, in one transaction."""
        [(word, begun)] = await client.ask(("BEGIN_TX", ""))
        assert word == "OK", begun
        tx = json.loads(begun)["transaction_id"]
        others = [f"{name}+{number}-{self._came}" for number in (1, 2)]
        pushes = [("PUSH", {"payload": each * 3, "queue": queue, "idempotency_key": each,
                            "transaction_id": tx})
                  for each, queue in zip(others, (QUEUE, OTHER), strict=True)]  # fmt: skip
        self._history.moving(name, token, others)
        replies = await client.ask(*pushes, ("ACK", {"task_id": id, "transaction_id": tx}))
        assert [word for word, _ in replies[:2]] == ["OK", "OK"], replies
        end = "COMMIT_TX" if replies[2][0] == "OK" else "ROLLBACK_TX"
        [(word, _)] = await client.ask((end, {"transaction_id": tx}))
        if end == "COMMIT_TX" and word == "OK":
            self._history.moved(name, token, others)
        else:
            self._history.not_moved(name, token, now_ms())


def look(broker: Running, history: History) -> int:
    """Everything that is there, by the payloads; how much of it can be pulled."""
    found = {
        name: [each["body"][: len(each["body"]) // 3] for each in messages_in(broker, name)]
        for name in (QUEUE, OTHER, f"{QUEUE}%2F$dead", f"{OTHER}%2F$dead")
    }
    live = found[QUEUE] + found[OTHER]
    history.check(live, found[f"{QUEUE}%2F$dead"] + found[f"{OTHER}%2F$dead"])
    return len(found[QUEUE])
