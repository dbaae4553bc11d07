"""Transports of each kind, so that one suite can be run on all of them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from posthouse.bridge.names import Names
from posthouse.bridge.transport import (
    Ack,
    DeadLetter,
    Delivery,
    Outgoing,
    Source,
    Stored,
    Topology,
    Transport,
)
from posthouse.bridge.transports import transport_of

T = TypeVar("T")
LIMIT_SECONDS = 60.0  # for a test; no figure of speed
API, WORKER = Names("api", ("worker",)), Names("worker", ("api",))


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await work

    return asyncio.run(limited())


@dataclass(frozen=True)
class Rig:
    """A kind of transport: where it is, and how its consumers are fed."""

    url: str
    push: bool = False

    @property
    def is_nats(self) -> bool:
        return self.url.startswith("nats:")

    def transport(self, names: Names, **options: Any) -> Transport:
        return transport_of(self.url, stream="shop", dead_letters=names.dead_letters, **options)

    def wanted(self, names: Names, ack_wait: float = 30.0, **options: Any) -> Topology:
        return names.topology("shop", push=self.push, ack_wait=ack_wait, **options)

    @asynccontextmanager
    async def open(
        self, names: Names, wanted: Topology | None = None, **options: Any
    ) -> AsyncIterator[Transport]:
        """A transport that is open, and has the topology if one is given."""
        transport = self.transport(names, **options)
        await transport.open()
        try:
            if wanted is not None:
                await transport.apply(await transport.plan(wanted))
            yield transport
        finally:
            await transport.close()

    @asynccontextmanager
    async def pair(self, ack_wait: float = 30.0) -> AsyncIterator["Pair"]:
        """Both services: `api` publishes, `worker` consumes."""
        wanted = self.wanted(WORKER, ack_wait)
        async with self.open(API) as api, self.open(WORKER, wanted) as worker:
            yield Pair(api, worker, wanted)


@dataclass(frozen=True)
class Pair:
    api: Transport
    worker: Transport
    wanted: Topology

    @property
    def source(self) -> Source:
        return self.wanted.sources[0]

    async def publish(self, *ids: str, **fields: Any) -> None:
        answers = await self.api.publish([an_event(id, **fields) for id in ids])
        assert all(isinstance(answer, Stored) for answer in answers), answers

    def deliveries(self, window: int = 16, by: Transport | None = None) -> "Taking":
        return Taking((by or self.worker).deliveries(self.source, window))

    async def dead(self) -> list[DeadLetter]:
        return [letter async for letter in self.worker.dead_letters(self.wanted)]


class Taking:
    """Deliveries one by one, for as long as a block lasts."""

    def __init__(self, deliveries: AsyncIterator[Delivery]) -> None:
        self._deliveries = cast(AsyncGenerator[Delivery, None], deliveries)
        self._next: asyncio.Future[Delivery] | None = None

    async def __aenter__(self) -> "Taking":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        async with aclosing(self._deliveries):
            pass

    async def one(self) -> Delivery:
        delivery = await self.within(LIMIT_SECONDS)
        assert delivery is not None
        return delivery

    async def within(self, seconds: float) -> Delivery | None:
        """Returns the next delivery; None if none has come by then."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._deliveries))
        done, _ = await asyncio.wait((self._next,), timeout=seconds)
        if not done:
            return None
        coming, self._next = self._next, None
        return coming.result()

    async def acked(self, transport: Transport, count: int) -> list[Delivery]:
        """Takes so many, and acknowledges each."""
        taken = []
        for _ in range(count):
            delivery = await self.one()
            await transport.settle(delivery, Ack())
            taken.append(delivery)
        return taken


def an_event(id: str, subject: str = "api.sync.worker", **fields: Any) -> Outgoing:
    return Outgoing(subject, fields.pop("body", b"{}"), id, fields.pop("headers", {}), **fields)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [each.id for each in deliveries]
