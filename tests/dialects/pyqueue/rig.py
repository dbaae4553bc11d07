"""PyQueue peers on an engine in memory, in this process, with a clock of the test's own."""

import asyncio
import json
import logging
from typing import Any

from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.model import Grant, Right
from posthouse.core.namespaces import CreateNamespace, SetAccount
from posthouse.dialects.pyqueue.codec import Decoder, Frame
from posthouse.dialects.pyqueue.desk import Desk, Settings
from posthouse.dialects.pyqueue.peer import Peer
from posthouse.store.memory import MemoryStore
from tests.dialects.pyqueue.client import frame

ROOT_KEY = "the key of the root"
START_MS = 1_800_000_000_000


class Transport:
    """What a peer writes goes to a list."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self._reads = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True


class Line:
    handshake_seconds = 10.0

    def __init__(self, address: str, *, is_tls: bool) -> None:
        self.address, self.is_tls = address, is_tls
        self.over = False

    def identified(self, principal: str) -> bool:
        return True

    def gone(self) -> None:
        self.over = True


class Failures(logging.Handler):
    """What a peer did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


class Rig:
    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        self.engine: Engine | None = engine
        self.guard = guard
        self.desk = Desk(self, guard, settings)
        self.failures = Failures()
        logging.getLogger("posthouse").addHandler(self.failures)

    @classmethod
    async def open(cls, **settings: Any) -> "Rig":
        guard = Guard(ROOT_KEY, bytes(32))
        store = MemoryStore(keep_bytes=1 << 24)
        engine = await Engine.open(store, VirtualClock(START_MS), 1, guard)
        await engine.ask(BROKER, "", CreateNamespace("default"))
        return cls(engine, guard, Settings(**{"is_open": True, **settings}))

    async def __aenter__(self) -> "Rig":
        return self

    async def __aexit__(self, *_: object) -> None:
        logging.getLogger("posthouse").removeHandler(self.failures)
        if self.engine is not None:
            await self.engine.close()
        assert not self.failures.found, self.failures.found[0].getMessage()

    def connect(self, address: str = "127.0.0.1", *, is_tls: bool = False) -> "Client":
        return Client(self, address, is_tls=is_tls)

    async def settle(self) -> None:
        """Until the engine has nothing more to do at once."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        assert self.engine is not None
        await self.engine.advance(round(seconds * 1_000))

    async def add(self, name: str, key: str, *grants: tuple[str, list[Right]]) -> None:
        """A principal."""
        assert self.engine is not None
        given = [Grant("default", entity, rights) for entity, rights in grants]
        command = SetAccount(name, given, [self.guard.seal(name, key)], new=True)
        await self.engine.ask(BROKER, "", command)


class Client:
    def __init__(self, rig: Rig, address: str, *, is_tls: bool) -> None:
        self.rig = rig
        self.line, self.transport = Line(address, is_tls=is_tls), Transport()
        self.peer = Peer(rig.desk, self.line)
        self.peer.connection_made(self.transport)
        self._decoder = Decoder()

    async def say(self, data: bytes) -> list[Frame]:
        """What is answered to it."""
        self.peer.data_received(data)
        await self.rig.settle()
        return self.heard()

    def heard(self) -> list[Frame]:
        self._decoder.feed(b"".join(self.transport.written))
        self.transport.written.clear()
        found = []
        while (each := self._decoder.take()) is not None:
            found.append(each)
        return found

    async def call(self, word: str, payload: Any = b"") -> Frame:
        [answer] = await self.say(frame(word, payload))
        return answer

    async def ok(self, word: str, payload: Any = b"") -> Any:
        answer = await self.call(word, payload)
        assert answer.word in (b"OK", b"STATS"), answer
        text = answer.payload.decode()
        return json.loads(text) if text.startswith("{") else text

    async def error(self, word: str, payload: Any = b"") -> str:
        answer = await self.call(word, payload)
        assert answer.word == b"ERROR", answer
        return answer.payload.decode()

    async def push(self, payload: str, **fields: Any) -> str:
        id: str = await self.ok("PUSH", {"payload": payload, **fields})
        return id

    async def pull(self, queue: str = "default") -> Any:
        answer = await self.call("PULL", {"queue": queue})
        assert answer.word in (b"JOB", b"NO_JOB"), answer
        return json.loads(answer.payload) if answer.word == b"JOB" else None

    def leave(self) -> None:
        self.transport.closed = True
        self.peer.connection_lost(None)
