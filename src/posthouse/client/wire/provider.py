"""The provider for a Posthouse broker: one connection, which is made again when it was lost."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.session import Link
from posthouse.amqp.types import Array, Int, Symbol, UInt, Value
from posthouse.client.addresses import Turns
from posthouse.client.config import PosthouseConfig
from posthouse.client.errors import (
    ConnectionFailed,
    MessageNotFound,
    PartialFailure,
    QueueError,
    QueueNotFound,
    SessionLockLost,
    Timeout,
    Unsupported,
    client_closed,
)
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage
from posthouse.client.names import SUBSCRIPTION, MessageId, QueueName, SessionId
from posthouse.client.namespace_map import located
from posthouse.client.provider import COMPLETE, RELEASE, ProviderType, Settlement, Source
from posthouse.client.retry import ExponentialRetry
from posthouse.client.wire.asking import Coordinator, ManagementClient
from posthouse.client.wire.connection import Wire, connect, node
from posthouse.client.wire.messages import LinkReceipt, Place, read, write
from posthouse.client.wire.receiving import DeadLetters, Receiving, outcome
from posthouse.client.wire.sending import Sending, sending

if TYPE_CHECKING:
    from posthouse.client.wire.admin import PosthouseAdmin

_log = logging.getLogger("posthouse.client")

LINKS_MAX = 500  # of each kind, before the one that was used least lately is given up
RECONNECT_SECONDS = 30.0  # how long a receiver tries before it says that it cannot
# Between tries to connect. All calls of a client share them, so that many do not become a storm.
_BETWEEN = ExponentialRetry(attempts=1 << 30, base=0.05, most=1.0)
_LOOK_AGAIN_SECONDS = 5.0  # after which a receiver to which nothing comes asks once more
_DEAD = "/$DeadLetterQueue"
_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_TIMEOUT = Symbol("com.microsoft:timeout")
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TICKS_1970 = 621_355_968_000_000_000
_STATUS = {
    "complete": "completed", "abandon": "abandoned", "defer": "defered", "dead-letter": "suspended",
}  # fmt: skip


class _End(Protocol):
    @property
    def is_lost(self) -> bool: ...


E = TypeVar("E", bound=_End)


class _Links:
    """Links of one kind on the present connection, by what they are to; made when needed."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()

    def ready(self, name: str) -> Any:
        """The one to that name, if it is there and good."""
        made = self._links.get(name)
        if made is None or not made.done() or made.cancelled() or made.exception() is not None:
            return None
        link = made.result()
        return None if link.is_lost else link

    async def get(self, name: str, make: Callable[[], Awaitable[E]]) -> E:
        """Raises QueueError."""
        found: E | None = self.ready(name)
        if found is not None:
            self._links.move_to_end(name)
            return found
        made = self._links.get(name)
        if made is None or made.done():
            made = self._links[name] = asyncio.ensure_future(make())
            made.add_done_callback(_look_at)  # who waited for it may be gone
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)
        return await asyncio.shield(made)


class PosthouseProvider:
    """The whole of `Provider` over AMQP 1.0."""

    def __init__(self, config: PosthouseConfig) -> None:
        self._config = config
        self._turns = Turns(config.addresses)
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[Wire] | None = None
        self._failed = 0  # tries to connect, in a row
        self._not_before = 0.0  # the loop's time of the next try
        self._senders, self._receivers, self._managements = _Links(), _Links(), _Links()
        self._coordinators = _Links()
        self._letters = DeadLetters()
        self._receiving: WeakValueDictionary[int, Receiving] = WeakValueDictionary()  # by number
        self._streams: set[WireDeliveries] = set()
        self._closed = asyncio.Event()
        self._admin: PosthouseAdmin | None = None

    @property
    def type(self) -> ProviderType:
        return ProviderType.POSTHOUSE

    # The connection.

    async def open(self) -> None:
        await self.wire()

    async def wire(self) -> Wire:
        """The present connection, or a new one. Raises QueueError."""
        if self._wire is not None and not self._wire.is_lost:
            return self._wire
        if self._closed.is_set():
            raise client_closed()
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(_look_at)
        connecting = self._connecting
        try:
            wire = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and self._closed.is_set():
                raise client_closed() from None  # the connecting was cancelled, not the caller
            raise
        if self._closed.is_set():
            await wire.close()
            raise client_closed()
        self._wire = wire
        return wire

    def _locate(self) -> PosthouseConfig:
        """The settings of the namespace's broker now. Raises ConfigurationError."""
        config = located(self._config)
        self._turns.replace(config.addresses)
        return config

    async def _connect(self) -> Wire:
        """Connects, not too soon after a try that failed. Raises QueueError."""
        loop = asyncio.get_running_loop()
        if self._wire is not None:  # which was lost
            self._turns.lose(self._wire.address)
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            wire = await connect(self._locate(), self._turns)
        except QueueError as error:
            self._failed += 1
            self._not_before = loop.time() + (_BETWEEN.delay(self._failed, error) or 0.0)
            raise
        self._failed = 0
        return wire

    async def close(self) -> None:
        self._closed.set()
        for stream in list(self._streams):
            await stream.close()
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        if self._wire is not None:
            await self._wire.close()

    async def _sender(self, queue: str) -> Sending:
        async def make() -> Sending:
            return await sending(await self.wire(), _node(queue), queue).attached()

        return await self._senders.get(queue, make)

    async def _receiver(self, source: Source) -> Receiving:
        async def make() -> Receiving:
            return await self.receiving(await self.wire(), source, 0).attached()

        return await self._receivers.get(_address(source), make)

    def receiving(self, wire: Wire, source: Source, window: int) -> Receiving:
        address, place = _address(source), _place(source)
        end = wire.attach(
            lambda link: Receiving(wire, link, source.queue, place, self._letters, window),
            sends=False, source=node(address, sends=False),
        )  # fmt: skip
        assert isinstance(end, Receiving)
        self._receiving[end.number] = end
        return end

    async def _management(self, source: Source) -> ManagementClient:
        address = f"{_address(source)}/$management"

        async def make() -> ManagementClient:
            return await ManagementClient(await self.wire(), address, source.queue).attached()

        return await self._managements.get(address, make)

    async def _management_of(self, source: Source, handle: str) -> ManagementClient:
        """Returns the management client of a receipt's queue.

        Raises MessageNotFound if there is no such queue.
        """
        try:
            return await self._management(source)
        except QueueNotFound as missing:
            raise MessageNotFound(handle) from missing

    async def coordinator(self) -> Coordinator:
        async def make() -> Coordinator:
            return await Coordinator(await self.wire()).attached()

        return await self._coordinators.get("", make)

    def admin(self) -> "PosthouseAdmin":
        if self._admin is None or self._config.map:  # which may say another broker by now
            from posthouse.client.wire.admin import PosthouseAdmin

            self._admin = PosthouseAdmin(self._locate(), self._turns)
        return self._admin

    # Sending.

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> list[MessageId]:
        sender = self._senders.ready(queue) or await self._sender(queue)
        assert self._wire is not None
        if not self._wire.has_room:
            await self._wire.room()
        ids = [each.message_id for each in messages if each.message_id is not None]
        try:
            await sender.send([write(each) for each in messages])
        except PartialFailure as partly:
            partly.ids = {at: ids[at] for at in partly.ids}
            raise
        return ids

    async def schedule(
        self, queue: QueueName, messages: Sequence[Message], at: datetime
    ) -> list[int]:
        due_ms = max(1, round(at.timestamp() * 1_000))
        management = await self._management(Source(queue))
        asked: list[Value] = [
            {"message-id": str(each.message_id), "message": write(each, due_ms)}
            for each in messages
        ]
        answer = await management.ask("schedule-message", {"messages": asked})
        return [int(each) for each in answer["sequence-numbers"]]

    async def cancel_scheduled(self, queue: QueueName, numbers: Sequence[int]) -> None:
        management = await self._management(Source(queue))
        asked = {"sequence-numbers": Array(0x81, numbers)}
        await management.ask("cancel-scheduled-message", asked, ", ".join(map(str, numbers)))

    # Receiving.

    async def receive(self, source: Source, most: int, timeout: float) -> list[ReceivedMessage]:
        receiver = await self._receiver(source)
        return await receiver.take(most, timeout)

    def deliveries(self, source: Source, prefetch: int) -> "WireDeliveries":
        stream = WireDeliveries(self, source, prefetch or self._config.prefetch)
        self._streams.add(stream)
        return stream

    def forget_stream(self, stream: "WireDeliveries") -> None:
        self._streams.discard(stream)

    async def receive_deferred(
        self, source: Source, numbers: Sequence[int]
    ) -> list[ReceivedMessage]:
        management = await self._management(source)
        asked = {"sequence-numbers": Array(0x81, numbers), "receiver-settle-mode": UInt(1)}
        about = ", ".join(map(str, numbers))
        answer = await management.ask("receive-by-sequence-number", asked, about)
        now, place = datetime.now(UTC), _place(source)
        return [
            read(each["message"], each["lock-token"].bytes_le, now, place)
            for each in answer.get("messages", [])
        ]

    async def peek(self, source: Source, most: int, first: int) -> list[ReceivedMessage]:
        management = await self._management(source)
        asked = {"from-sequence-number": first, "message-count": Int(most)}
        answer = await management.ask("peek-message", asked)
        now, place = datetime.now(UTC), _place(source)
        return [read(each["message"], b"", now, place) for each in answer.get("messages", [])]

    # Settling.

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        await self._settle(receipts, how, None)

    async def _settle(
        self, receipts: Sequence[ReceiptHandle], how: Settlement, session: SessionId | None
    ) -> None:
        state = outcome(how)
        by_link: dict[int, list[LinkReceipt]] = {}
        elsewhere: list[ReceiptHandle] = []
        for receipt in receipts:
            if isinstance(receipt, LinkReceipt):
                by_link.setdefault(receipt.link, []).append(receipt)
            else:
                elsewhere.append(receipt)
        self._letters.drop(receipts)
        work: list[Awaitable[None]] = []
        for number, of_it in by_link.items():
            link = self._receiving.get(number)
            if link is None:
                elsewhere += of_it
                continue
            mine, others = link.claim(of_it)
            elsewhere += others
            if mine:
                work.append(link.settle(mine, state))
        if len(work) == 1 and not elsewhere:
            await work[0]
            return
        work += [self._settle_by_lock(each.handle, how, session) for each in elsewhere]
        failed = [
            each for each in await asyncio.gather(*work, return_exceptions=True) if each is not None
        ]
        if failed:
            raise failed[0]

    async def _settle_by_lock(
        self, handle: str, how: Settlement, session: SessionId | None
    ) -> None:
        """Settles a message by its lock token, for deliveries whose link is gone."""
        source, token = _lock(handle)
        if how.ending == "release":
            raise Unsupported(
                "posthouse", "release what came on a connection that was lost, or was in a"
                " transaction that was rolled back",
            )  # fmt: skip
        asked: dict[Value, Value] = {
            "disposition-status": _STATUS[how.ending], "lock-tokens": Array(0x98, [token]),
        }  # fmt: skip
        if how.reason is not None:
            asked["deadletter-reason"] = str(how.reason)
        if how.description is not None:
            asked["deadletter-description"] = str(how.description)
        if how.attributes:
            asked["properties-to-modify"] = {str(k): str(v) for k, v in how.attributes.items()}
        if session is not None:
            asked["session-id"] = str(session)
        await (await self._management_of(source, handle)).ask("update-disposition", asked, handle)

    async def renew(self, receipt: ReceiptHandle) -> datetime:
        source, token = _lock(receipt.handle)
        management = await self._management_of(source, receipt.handle)
        asked = {"lock-tokens": Array(0x98, [token])}
        answer = await management.ask("renew-lock", asked, receipt.handle)
        return _moment(int(answer["expirations"][0]))

    async def resubmit(
        self, queue: QueueName, receipts: Sequence[ReceiptHandle], target: QueueName | None
    ) -> None:
        found = [self._letters.find(each.handle) for each in receipts]
        if target is None and queue.topic is not None:
            await self.settle(receipts, RELEASE)
            await self.admin().resubmit(queue, [each.sequence_number for each in found])
            return
        letters = [each.message() for each in found]
        async with self.transaction() as together:
            try:
                await together.send(target or queue, letters)
                await together.settle(receipts, COMPLETE)
            except BaseException:
                await together.roll_back()
                raise
            await together.commit()

    # Sessions.

    async def accept_session(
        self, queue: QueueName, session_id: SessionId | None, timeout: float
    ) -> "WireSession | None":
        wire = await self.wire()
        name = None if session_id is None else str(session_id)
        wanted = node(_node(queue), {_SESSION_FILTER: name}, sends=False)
        what = name or queue
        place = Place("q" + queue, False)

        def make(link: Link) -> Receiving:
            return Receiving(wire, link, what, place, self._letters, 0)

        end = wire.attach(
            make, sends=False, source=wanted,
            properties={_TIMEOUT: UInt(min(3_600_000, max(0, round(timeout * 1_000))))},
        )  # fmt: skip
        assert isinstance(end, Receiving)
        self._receiving[end.number] = end
        try:
            await end.attached()
        except Timeout:
            return None
        except asyncio.CancelledError:
            wire.detach(end)
            raise
        return WireSession(self, queue, end)

    async def session_management(self, queue: QueueName) -> ManagementClient:
        return await self._management(Source(queue))

    async def settle_in_session(
        self, receipts: Sequence[ReceiptHandle], how: Settlement, session: SessionId
    ) -> None:
        await self._settle(receipts, how, session)

    # Transactions.

    def transaction(self) -> "AbstractAsyncContextManager[WireTransaction]":
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> "AsyncIterator[WireTransaction]":
        coordinator = await self.coordinator()
        id = await coordinator.declare()
        yield WireTransaction(self, coordinator, id)

    async def send_within(
        self, queue: QueueName, messages: Sequence[Message], state: bytes
    ) -> None:
        sender = await self._sender(queue)
        await sender.send_within([write(each) for each in messages], state)

    async def settle_within(
        self, receipts: Sequence[ReceiptHandle], how: Settlement, id: bytes
    ) -> None:
        """Settles messages in a transaction. They must have come on its connection.

        Raises MessageNotFound.
        """
        state = _within(id, outcome(how))
        for each in receipts:
            link = self._receiving.get(each.link) if isinstance(each, LinkReceipt) else None
            if link is None or not isinstance(each, LinkReceipt) or not link.holds(each):
                raise MessageNotFound(each.handle)
            await link.settle([each], state)
            link.claim([each])  # its delivery is over; its lock is not, until the commit


class WireDeliveries:
    """Messages fetched ahead, over as many connections as it takes."""

    def __init__(self, provider: PosthouseProvider, source: Source, window: int) -> None:
        self._provider = provider
        self._source = source
        self._window = window
        self._receiving: Receiving | None = None
        self._closed = asyncio.Event()

    async def next(self, most: int) -> list[ReceivedMessage]:
        """Goes on after an outage. Raises QueueError if it lasts too long, or for a refusal."""
        loop = asyncio.get_running_loop()
        failed, end = 0, 0.0  # tries in a row; until when it is tried
        while not self._closed.is_set():
            try:
                receiving = await self._attached()
                taken = await receiving.take(most, _LOOK_AGAIN_SECONDS)
            except QueueError as error:
                if self._closed.is_set():
                    break
                failed += 1
                end = end if failed > 1 else loop.time() + RECONNECT_SECONDS
                wait = _BETWEEN.delay(failed, error) if error.is_unavailable else None
                if wait is None or loop.time() + wait > end:
                    raise
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), wait)
                continue
            if taken:
                return taken
            failed = 0
            receiving.ask_again()
        return []

    async def _attached(self) -> Receiving:
        """The present link, or a new one. Raises QueueError."""
        if self._receiving is not None and not self._receiving.is_lost:
            return self._receiving
        wire = await self._provider.wire()
        self._receiving = self._provider.receiving(wire, self._source, self._window)
        return await self._receiving.attached()

    async def close(self) -> None:
        self._closed.set()
        self._provider.forget_stream(self)
        if self._receiving is not None:
            await self._receiving.close()


class WireSession:
    """A session, held as long as its link is."""

    def __init__(self, provider: PosthouseProvider, queue: QueueName, receiving: Receiving) -> None:
        self._provider = provider
        self._queue = queue
        self._receiving = receiving
        attach = receiving.link.attach
        assert attach is not None
        self._id, ticks = SessionId(_granted(attach.source)), 0
        for name, value in (attach.properties or {}).items():
            if name == _LOCKED_UNTIL:
                ticks = int(value)
        receiving.what = self._id
        self._until = _moment((ticks - _TICKS_1970) // 10_000) if ticks else datetime.now(UTC)

    @property
    def session_id(self) -> SessionId:
        return self._id

    @property
    def expires_at(self) -> datetime:
        return self._until

    async def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        try:
            return await self._receiving.take(most, timeout)
        except ConnectionFailed as lost:
            raise SessionLockLost(self._id) from lost

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        if self._receiving.is_lost:
            raise SessionLockLost(self._id)
        await self._provider.settle_in_session(receipts, how, self._id)

    async def _ask(self, operation: str, **more: Value) -> dict[Value, Value]:
        if self._receiving.is_lost:
            raise SessionLockLost(self._id)
        management = await self._provider.session_management(self._queue)
        asked = {"session-id": str(self._id)} | {n.replace("_", "-"): v for n, v in more.items()}
        return await management.ask(operation, asked, self._id)

    async def renew(self) -> datetime:
        answer = await self._ask("renew-session-lock")
        self._until = _moment(int(answer["expiration"]))
        return self._until

    async def get_state(self) -> bytes | None:
        state: bytes | None = (await self._ask("get-session-state")).get("session-state")
        return state

    async def set_state(self, state: bytes | None) -> None:
        await self._ask("set-session-state", session_state=state)

    async def close(self) -> None:
        await self._receiving.close()


class WireTransaction:
    def __init__(self, provider: PosthouseProvider, coordinator: Coordinator, id: bytes) -> None:
        self._provider = provider
        self._coordinator = coordinator
        self._id = id

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> None:
        state = described(0x34, encode_list((encode(self._id),)))
        await self._provider.send_within(queue, messages, state)

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        await self._provider.settle_within(receipts, how, self._id)

    async def commit(self) -> None:
        await self._coordinator.discharge(self._id, fail=False)

    async def roll_back(self) -> None:
        with contextlib.suppress(QueueError):  # it is over already
            await self._coordinator.discharge(self._id, fail=True)


def _look_at(made: "asyncio.Future[Any]") -> None:
    if not made.cancelled():
        made.exception()


def _address(source: Source) -> str:
    name = _node(source.queue)
    return name + _DEAD if source.dead_letter else name


def _node(queue: str) -> str:
    """The address of a queue: the broker decodes %XX in addresses, as Service Bus does."""
    return queue.replace("%", "%25").replace(SUBSCRIPTION, "/Subscriptions/")


def _place(source: Source) -> Place:
    return Place(("d" if source.dead_letter else "q") + source.queue, source.dead_letter)


def _lock(handle: str) -> tuple[Source, UUID]:
    """Returns the source and the lock token in a receipt. Raises MessageNotFound."""
    try:
        token = UUID(bytes_le=bytes.fromhex(handle[:32]))
        return Source(QueueName(handle[33:]), {"q": False, "d": True}[handle[32]]), token
    except (ValueError, LookupError):
        raise MessageNotFound(handle) from None


def _within(id: bytes, state: bytes) -> bytes:
    """An outcome as part of a transaction (4.4.2)."""
    return described(0x34, encode_list((encode(id), state)))


def _granted(source: Value) -> str:
    """The session that the broker has given."""
    filters = source.value[7]
    found = filters[_SESSION_FILTER]
    return str(getattr(found, "value", found))


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)
