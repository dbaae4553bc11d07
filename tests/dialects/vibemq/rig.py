"""VibeMQ peers on an engine in memory, in this process, without a network."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.namespaces import CreateNamespace
from posthouse.dialects.vibemq.peer import Peer, Peers
from posthouse.dialects.vibemq.users import Settings, Users
from posthouse.store.memory import MemoryStore
from tests.dialects.vibemq.client import CONNECT, FLAGGED, Said, cut, written

KEY = "the root key"


class Transport:
    """What a peer writes goes to a list."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Line:
    handshake_seconds = 10.0
    address = "127.0.0.1"
    is_tls = False

    def identified(self, principal: str) -> bool:
        return True

    def gone(self) -> None:
        pass


class Failures(logging.Handler):
    """What a peer did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


class Wire:
    """One connection to the rig."""

    def __init__(self, rig: "Rig", generation: str) -> None:
        self.generation = generation
        self.peer: Peer = rig.peers.make(Line())
        self.transport = Transport()
        self.peer.connection_made(self.transport)
        self._rig = rig
        self._data = b""

    async def say(self, *said: Said) -> list[Said]:
        """All in one piece; what is answered at once."""
        self.peer.data_received(b"".join(written(each, self.generation) for each in said))
        return await self.hear()

    async def hear(self) -> list[Said]:
        await self._rig.settle()
        data, self.transport.written = b"".join(self.transport.written), []
        found, self._data = cut(self._data + data, self.generation)
        return found

    def lose(self) -> None:
        self.peer.connection_lost(None)


class Rig:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine: Engine | None = engine
        self.peers = Peers(Users(self, Guard(KEY, bytes(32)), settings))
        self.failures = Failures()
        logging.getLogger("posthouse").addHandler(self.failures)

    @classmethod
    async def open(cls, memory_bytes: int = 1 << 30, **settings: Any) -> "Rig":
        store = MemoryStore(keep_bytes=1 << 20)
        limits = Limits(1 << 30, memory_bytes)
        engine = await Engine.open(store, SystemClock(), 1, Guard(KEY, bytes(32)), limits=limits)
        await engine.ask(BROKER, "", CreateNamespace("default"))
        return cls(engine, Settings("default", **{"dev": True, **settings}))

    async def close(self) -> None:
        logging.getLogger("posthouse").removeHandler(self.failures)
        assert self.engine is not None
        await self.engine.close()

    async def connect(self, generation: str = FLAGGED) -> Wire:
        wire = Wire(self, generation)
        await wire.say(Said(CONNECT, "c"))
        return wire

    async def settle(self) -> None:
        """Until the engine has nothing more to do at once."""
        for _ in range(20):
            await asyncio.sleep(0)


def kinds(said: Sequence[Said]) -> list[int]:
    return [each.type for each in said]
