"""PyQueue peers on an engine in memory, in this process, with a clock of the test's own."""

import json
from typing import Any

from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.model import Grant, Right
from posthouse.core.namespaces import SetAccount
from posthouse.dialects.pyqueue.codec import Decoder, Frame
from posthouse.dialects.pyqueue.context import PyQueueContext, Settings
from posthouse.dialects.pyqueue.peer import Peer
from tests.dialects.pyqueue.client import frame
from tests.dialects.rig import EngineRig, StubConnectionInfo, Transport, an_engine

ROOT_KEY = "the key of the root"
START_MS = 1_800_000_000_000


class Rig(EngineRig):
    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        super().__init__(engine, guard)
        self.context = PyQueueContext(self, guard, settings)

    @classmethod
    async def open(cls, **settings: Any) -> "Rig":
        guard = Guard(ROOT_KEY, bytes(32))
        engine = await an_engine(guard, VirtualClock(START_MS), keep_bytes=1 << 24)
        return cls(engine, guard, Settings(**{"is_open": True, **settings}))

    def connect(self, address: str = "127.0.0.1", *, is_tls: bool = False) -> "Client":
        return Client(self, address, is_tls=is_tls)

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
        self.info, self.transport = StubConnectionInfo(address, is_tls=is_tls), Transport()
        self.peer = Peer(rig.context, self.info)
        self.peer.connection_made(self.transport)
        self._decoder = Decoder()

    async def say(self, data: bytes) -> list[Frame]:
        """What is answered to it."""
        self.peer.data_received(data)
        await self.rig.settle()
        return self.heard()

    def heard(self) -> list[Frame]:
        self._decoder.feed(self.transport.take())
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
