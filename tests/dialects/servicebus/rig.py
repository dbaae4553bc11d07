"""Service Bus peers on an engine in memory, in this process, without a network."""

import hmac
import time
from base64 import b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus

from posthouse.amqp.connection import Connection
from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.encode import described, encode
from posthouse.amqp.events import Arrived, Event
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Symbol, ULong, Value
from posthouse.broker.access import BROKER, ROOT, Guard
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue
from posthouse.core.model import QueueProperties
from posthouse.dialects.servicebus.credentials import Credentials, Settings
from posthouse.dialects.servicebus.peer import Peer, Peers
from tests.dialects.rig import EngineRig, StubConnectionInfo, Transport, an_engine

KEY = "SAS_KEY_VALUE"


class Rig(EngineRig):
    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        super().__init__(engine, guard)
        self.peers = Peers(Credentials(self, guard, settings))

    @classmethod
    async def open(cls, **settings: Any) -> "Rig":
        """With the queue `q`, and `s`, which has sessions."""
        guard = Guard(KEY, bytes(32))
        engine = await an_engine(guard, auto_create=bool(settings.get("auto_create")))
        for name, properties in (
            ("q", QueueProperties()), ("s", QueueProperties(requires_session=True)),
        ):  # fmt: skip
            await engine.ask(BROKER, "default", CreateQueue(name, properties))
        return cls(engine, guard, Settings("default", **settings))

    def connect(self) -> tuple[Peer, Transport]:
        peer, transport = self.peers.make(StubConnectionInfo()), Transport()
        peer.connection_made(transport)
        return peer, transport


def sas(resource: str, seconds: float = 3_600, key: str = KEY, name: str = ROOT) -> str:
    encoded, end = quote_plus(resource), str(int(time.time() + seconds))
    digest = hmac.new(key.encode(), f"{encoded}\n{end}".encode(), sha256).digest()
    return (
        f"SharedAccessSignature sr={encoded}&sig={quote_plus(b64encode(digest))}"
        f"&se={end}&skn={name}"
    )


class Client:
    """Our own peer, talking to one of the rig's. Keeps what it sent, piece by piece."""

    def __init__(
        self,
        rig: Rig,
        sasl: tuple[str, bytes] = ("ANONYMOUS", b""),
        host: str = "localhost",
    ) -> None:
        self.rig = rig
        self.peer, self.transport = rig.connect()
        self.amqp = Connection("client", hostname=host, sasl=sasl)
        self.sent: list[bytes] = []
        self.events: list[Event] = []
        self._requests = 0

    async def pump(self) -> list[Event]:
        """Until both have nothing more to say; what was told meanwhile."""
        quiet = 0
        while quiet < 3:
            out = self.amqp.take()
            if out:
                self.sent.append(out)
                self.peer.data_received(out)
            await self.rig.settle()
            back = self.transport.take()
            if back:
                self.events += self.amqp.receive(back)
            quiet = 0 if out or back else quiet + 1
        told, self.events = self.events, []
        return told

    def link(
        self, address: str, *, sends: bool, filters: Value = None, settled: bool | None = False
    ) -> Link:
        source = Described(ULong(0x28), [address, None, None, None, None, None, None, filters])
        target = Described(ULong(0x29), [address])
        return self.amqp.begin().attach(
            f"{address}-{sends}", sends=sends, source=source, target=target, settled=settled
        )

    async def ask(
        self, node: str, properties: dict[Value, Value], body: Value
    ) -> tuple[dict[Value, Value], Value]:
        """A request and its reply's properties and body."""
        asks, hears = self.link(node, sends=True), self.link(node, sends=False)
        hears.grant(10)
        await self.pump()
        self._requests += 1
        asks.send(
            described(0x73, encode([f"r{self._requests}", None, None, None, node]))
            + described(0x74, encode(properties)) + described(0x77, encode(body)), b"r"
        )  # fmt: skip
        (reply,) = [each for each in await self.pump() if isinstance(each, Arrived)]
        assert reply.payload is not None
        found = {
            code: Reader(reply.payload, at, end).value()
            for code, _, at, end in sections(reply.payload)
        }
        asks.session.end()
        hears.session.end()
        await self.pump()
        return found[0x74], found[0x77]

    async def put_token(self, entity: str = "", token: str | None = None) -> int:
        audience = f"sb://localhost/{entity}"
        properties, _ = await self.ask(
            "$cbs",
            {"operation": "put-token", "type": "jwt", "name": audience},
            sas(audience) if token is None else token,
        )
        return int(properties["status-code"])

    async def manage(
        self, operation: str, body: dict[Value, Value], entity: str = "q"
    ) -> tuple[int, dict[Value, Value]]:
        properties, found = await self.ask(
            f"{entity}/$management", {"operation": f"com.microsoft:{operation}"}, body
        )
        return int(properties["statusCode"]), found


def session_filter(session: Value) -> dict[Value, Value]:
    return {Symbol("com.microsoft:session-filter"): session}
