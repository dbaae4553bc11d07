"""Short words for trying an engine."""

from posthouse.broker.access import BROKER
from posthouse.broker.clock import Clock, VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.commands import (
    Command,
    CreateQueue,
    Delivery,
    Enqueued,
    Receive,
    Received,
    Send,
)
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.store import Snapshots, Store

NS = "test"


class Desk:
    """An engine with a namespace and, if new, the queue `q`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    async def open(
        cls,
        store: Store,
        clock: Clock | None = None,
        limits: Limits | None = None,
        snapshots: Snapshots | None = None,
        **properties: object,
    ) -> "Desk":
        clock = clock or VirtualClock(1_000)
        engine = await Engine.open(store, clock, 5, snapshots=snapshots, limits=limits)
        desk = cls(engine)
        if not engine.view.has_namespace(NS):
            await engine.ask(BROKER, NS, CreateNamespace(NS, engine.epoch, 5))
            await desk.do(CreateQueue("q", QueueProperties(**properties)))  # type: ignore[arg-type]
        return desk

    async def do(self, command: Command) -> object:
        return await self.engine.ask(BROKER, NS, command)

    async def send(self, *bodies: str, queue: str = "q", **fields: object) -> None:
        messages = [NewMessage(b"\x80", body.encode(), **fields) for body in bodies]  # type: ignore[arg-type]
        assert isinstance(await self.do(Send(queue, messages)), Enqueued)

    async def receive(self, limit: int = 1, queue: str = "q", **options: object) -> list[Delivery]:
        number = self.engine.new_receiver()
        answer = await self.do(Receive(queue, number, limit, **options))  # type: ignore[arg-type]
        assert isinstance(answer, Received)
        return answer.deliveries


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [text(each.message.body) for each in deliveries]


def text(body: bytes | int) -> str:
    assert isinstance(body, bytes)
    return body.decode()
