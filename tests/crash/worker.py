"""A process to be killed: an engine on a file store under mixed load.

It says on standard output what it is about to do and what was acknowledged, a line each, written at
once: `sending ID`, `sent ID`, `completing ID`, `completed ID`, `burying ID`, `buried ID`.
"""

import asyncio
import os
import sys
from pathlib import Path
from random import Random

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Complete,
    CreateQueue,
    DeadLetter,
    Delivery,
    Granted,
    Receive,
    Received,
    ReleaseSession,
    Send,
)
from posthouse.core.errors import AlreadyExists, LockLost, SessionLocked
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

NS = "crash"
SEGMENT_BYTES = 256 << 10
PLAIN, SESSIONS = "plain", "sessions"


def say(word: str, name: str) -> None:
    os.write(1, f"{word} {name}\n".encode())


class Load:
    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = Random(seed)
        self.seed = seed
        self.sent = 0

    async def send(self, queue: str, sender: int) -> None:
        while True:
            messages, names = [], []
            for _ in range(self.random.choice([1, 1, 5])):
                self.sent += 1
                names.append(f"{self.seed}-{sender}-{self.sent:09}")
                group = f"s{self.random.randrange(5)}" if queue == SESSIONS else None
                later = self.random.random() < 0.1 and queue == PLAIN
                due_ms = SystemClock().now_ms() + 20 if later else 0
                body = names[-1].encode() + bytes(self.random.choice([0, 100, 2_000]))
                messages.append(NewMessage(b"\x80", body, group=group, due_ms=due_ms))
            for name in names:
                say("sending", name)
            await self.engine.ask(BROKER, NS, Send(queue, messages))
            for name in names:
                say("sent", name)

    async def receive(self, queue: str) -> None:
        engine = self.engine
        while True:
            session = 0
            if queue == SESSIONS:
                try:
                    granted = await engine.ask(
                        BROKER, NS, AcceptSession(queue, engine.new_receiver(), None, _soon())
                    )
                except SessionLocked:
                    continue
                if not isinstance(granted, Granted):
                    continue
                session = granted.token
            answer = await engine.ask(
                BROKER, NS, Receive(queue, engine.new_receiver(), 4, _soon(), session=session)
            )
            assert isinstance(answer, Received)
            for delivery in answer.deliveries:
                await self.settle(queue, delivery)
            if session:
                await engine.ask(BROKER, NS, ReleaseSession(queue, session))

    async def settle(self, queue: str, delivery: Delivery) -> None:
        name = name_of(delivery.message.body)
        choice = self.random.random()
        try:
            if choice < 0.7:
                say("completing", name)
                await self.engine.ask(BROKER, NS, Complete(queue, [delivery.token]))
                say("completed", name)
            elif choice < 0.9:
                await self.engine.ask(BROKER, NS, Abandon(queue, [delivery.token]))
            else:
                say("burying", name)
                await self.engine.ask(BROKER, NS, DeadLetter(queue, [delivery.token], reason="why"))
                say("buried", name)
        except LockLost:
            say("lost", name)


def name_of(body: bytes | int) -> str:
    assert isinstance(body, bytes)
    return body.rstrip(b"\0").decode()


def _soon() -> int:
    return SystemClock().now_ms() + 200


async def main(folder: Path, seed: int) -> None:
    store = FileStore(folder, segment_bytes=SEGMENT_BYTES)
    engine = await Engine.open(store, SystemClock(), salt=seed)
    try:
        await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, seed))
        await engine.ask(
            BROKER, NS, CreateQueue(PLAIN, QueueProperties(lock_ms=300, max_delivery=100))
        )
        await engine.ask(BROKER, NS, CreateQueue(SESSIONS, QueueProperties(grouping="session")))
    except AlreadyExists:
        pass
    load = Load(engine, seed)
    say("ready", str(engine.epoch))
    await asyncio.gather(
        *(load.send(queue, number) for number, queue in enumerate((PLAIN, PLAIN, SESSIONS))),
        *(load.receive(queue) for queue in (PLAIN, PLAIN, SESSIONS)),
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
