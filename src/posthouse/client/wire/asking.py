"""Questions that are messages, and answers that are: a queue's $management, and transactions."""

import asyncio
from typing import Any

from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.performatives import ACCEPTED, Problem, code_of
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Malformed, ULong, Value
from posthouse.client.errors import ConnectionFailed, ProviderError, QueueError, lasting
from posthouse.client.wire.connection import Wire, node
from posthouse.client.wire.messages import APPLICATION, PROPERTIES, VALUE
from posthouse.client.wire.problems import error_of, refusal_in
from posthouse.client.wire.sending import Sending, sending

_PREFIX = "com.microsoft:"
CREDIT = 100


class ManagementClient:
    """The $management of one queue: a link for questions, and one for answers."""

    def __init__(self, wire: Wire, address: str, what: str) -> None:
        self.what = what
        self._wire = wire
        self._address = address
        self._next = 0
        self._asked: dict[str, tuple[asyncio.Future[dict[Value, Value]], str]] = {}
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._out: Sending = sending(wire, address, what)
        self._lost: QueueError | None = None
        source, target = node(address, sends=False), node(f"{address}-reply", sends=True)
        self.link: Link
        wire.attach(self._have, sends=False, source=source, target=target)

    def _have(self, link: Link) -> "ManagementClient":
        self.link = link
        return self

    @property
    def is_lost(self) -> bool:
        return self._lost is not None or self._out.is_lost

    async def attached(self) -> "ManagementClient":
        """Raises QueueError."""
        await asyncio.shield(self._attached)
        await self._out.attached()
        return self

    async def ask(
        self, operation: str, body: dict[Value, Value], about: str = ""
    ) -> dict[Value, Value]:
        """The answer's body, nothing where there was nothing. Raises QueueError."""
        id = str(self._next)
        self._next += 1
        answered: asyncio.Future[dict[Value, Value]] = self._loop.create_future()
        self._asked[id] = answered, about
        fields = [encode(id), b"\x40", b"\x40", b"\x40", encode(f"{self._address}-reply")]
        payload = b"".join((
            described(PROPERTIES, encode_list(fields)),
            described(APPLICATION, encode({"operation": _PREFIX + operation})),
            described(VALUE, encode(body)),
        ))  # fmt: skip
        try:
            await self._out.send([payload])
            return await answered
        finally:
            self._asked.pop(id, None)

    def on_attached(self) -> None:
        if not self._attached.done():
            self._attached.set_result(None)
        self.link.grant(CREDIT)
        self._wire.flush_soon()

    def on_flowed(self) -> None:
        pass

    def on_disposed(self, event: Disposed) -> None:
        pass

    def settle_down(self) -> None:
        if self.link.credit < CREDIT // 2:
            self.link.grant(CREDIT)
            self._wire.flush_soon()

    def on_arrived(self, event: Arrived | Run) -> None:
        payloads = event.payloads if isinstance(event, Run) else [event.payload or b""]
        ids = event.delivery_ids if isinstance(event, Run) else [event.delivery_id]
        for payload in payloads:
            self._answer(payload)
        if not event.settled:
            self.link.settle(ids, ACCEPTED)

    def _answer(self, payload: bytes) -> None:
        id = ""
        said: dict[Value, Value] = {}
        body: Value = {}
        try:
            for code, _, at, end in sections(payload):
                if code == PROPERTIES:
                    fields = Reader(payload, at, end).value()
                    id = str(fields[5]) if len(fields) > 5 else ""
                elif code == APPLICATION:
                    said = Reader(payload, at, end).value() or {}
                elif code == VALUE:
                    body = Reader(payload, at, end).value() or {}
        except Malformed as problem:
            raise AssertionError(f"the broker has answered in another way: {problem}") from problem
        answered, about = self._asked.pop(id, (None, ""))
        if answered is None or answered.done():
            return
        status = int(said.get("statusCode") or 0)
        if status in (200, 202, 204):
            answered.set_result(body if isinstance(body, dict) else {})
        else:
            condition = str(said.get("errorCondition") or "")
            text = str(said.get("statusDescription") or "")
            told = Problem(condition, text, said)  # the facts are among what is said
            answered.set_exception(error_of(told, about or self.what))

    def on_lost(self, error: QueueError) -> None:
        self._lost = error
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()
        asked, self._asked = self._asked, {}
        for answered, _ in asked.values():
            if not answered.done():
                answered.set_exception(error)
                answered.exception()


class Coordinator:
    """Begins and ends transactions (4.2)."""

    def __init__(self, wire: Wire) -> None:
        self.what = "transaction"
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._asked: dict[int, asyncio.Future[Described | None]] = {}
        self._next = 0
        self._lost: QueueError | None = None
        self.link: Link
        target = Described(ULong(0x30), [None])
        wire.attach(self._have, sends=True, target=target)

    def _have(self, link: Link) -> "Coordinator":
        self.link = link
        return self

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def attached(self) -> "Coordinator":
        await asyncio.shield(self._attached)
        return self

    async def declare(self) -> bytes:
        """The transaction's id. Raises QueueError."""
        state = await self._say(Described(ULong(0x31), [None]))
        if state is None or code_of(state) != 0x33:
            raise ProviderError("posthouse", "amqp:transaction", "It was not begun.")
        return bytes(state.value[0])

    async def discharge(self, id: bytes, *, fail: bool) -> None:
        """Raises QueueError, where nothing of it has happened."""
        state = await self._say(Described(ULong(0x32), [id, fail]))
        refusal = refusal_in(state, "transaction")
        if refusal is not None:
            raise refusal

    async def _say(self, what: Described) -> Described | None:
        if self._lost is not None:
            raise _lost_transaction()
        number = self._next
        self._next += 1
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._asked[number] = answered
        self.link.send(described(VALUE, encode(what)), number.to_bytes(8, "big"), keep=number)
        self._wire.flush_soon()
        found: Described | None = await answered
        return found

    def on_attached(self) -> None:
        pass

    def on_flowed(self) -> None:
        if not self._attached.done() and self.link.credit > 0:
            self._attached.set_result(None)

    def on_arrived(self, event: Arrived | Run) -> None:
        pass

    def settle_down(self) -> None:
        pass

    def on_disposed(self, event: Disposed) -> None:
        for number in event.kept:
            answered = self._asked.pop(number, None)
            if answered is not None and not answered.done():
                answered.set_result(event.state)

    def on_lost(self, error: QueueError) -> None:
        self._lost = error
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            if not answered.done():
                answered.set_exception(_lost_transaction())
                answered.exception()


def _lost_transaction() -> ConnectionFailed:
    """It ended with its connection: to ask for it again on another one cannot help."""
    return lasting(ConnectionFailed("The transaction was lost with its connection; begin another."))
