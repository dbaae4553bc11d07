"""VibeMQ peers on an engine in memory, in this process, without a network."""

from collections.abc import Sequence
from typing import Any

from posthouse.broker.access import Guard
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.dialects.vibemq.peer import Peer, Peers
from posthouse.dialects.vibemq.users import Settings, Users
from tests.dialects.rig import EngineRig, StubConnectionInfo, Transport, an_engine
from tests.dialects.vibemq.client import CONNECT, FLAGGED, Said, cut, written

KEY = "the root key"


class Wire:
    """One connection to the rig."""

    def __init__(self, rig: "Rig", generation: str) -> None:
        self.generation = generation
        self.peer: Peer = rig.peers.make(StubConnectionInfo())
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
        found, self._data = cut(self._data + self.transport.take(), self.generation)
        return found

    def lose(self) -> None:
        self.peer.connection_lost(None)


class Rig(EngineRig):
    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        super().__init__(engine, guard)
        self.peers = Peers(Users(self, guard, settings))

    @classmethod
    async def open(cls, memory_bytes: int = 1 << 30, **settings: Any) -> "Rig":
        guard = Guard(KEY, bytes(32))
        engine = await an_engine(guard, limits=Limits(1 << 30, memory_bytes))
        return cls(engine, guard, Settings("default", **{"dev": True, **settings}))

    async def connect(self, generation: str = FLAGGED) -> Wire:
        wire = Wire(self, generation)
        await wire.say(Said(CONNECT, "c"))
        return wire


def kinds(said: Sequence[Said]) -> list[int]:
    return [each.type for each in said]
