"""A broker in this process: the real core and engine, on a journal that is memory.

What a test sees here, it would see of a broker. Nothing is kept when the client is closed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock, VirtualClock
from posthouse.broker.engine import Engine
from posthouse.client.attributes import check_attributes
from posthouse.client.config import InMemoryConfig
from posthouse.client.errors import (
    ConfigurationError,
    ConnectionFailed,
    MessageNotFound,
    MessageTooLarge,
    ProviderError,
    QueueError,
    QueueNotFound,
    SessionLocked,
    SessionLockLost,
    Throttled,
    Timeout,
    ValidationError,
    client_closed,
    lasting,
)
from posthouse.client.memory_words import NAMESPACE, attribute_of, moment_at, ms_of, property_of
from posthouse.client.messages import PRIORITY, Message, ReceiptHandle, ReceivedMessage
from posthouse.client.names import MessageId, QueueName, SessionId
from posthouse.client.provider import ProviderType, Settlement, Source
from posthouse.core import commands as core
from posthouse.core import errors as refusals
from posthouse.core.message import Envelope, NewMessage, decode_envelope, encode_envelope
from posthouse.core.model import (
    SUBSCRIPTION,
    QueueProperties,
    dead_letter_queue,
    entity_of,
    topic_of,
)
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.errors import StoreError
from posthouse.store.memory import MemoryStore

if TYPE_CHECKING:
    from posthouse.client.memory_admin import MemoryAdmin

_TYPE = ProviderType.IN_MEMORY
_ENTITIES = frozenset(("queue", "topic", "subscription", "queue or topic"))


class InMemoryProvider:
    """The whole of `Provider`, without a wire."""

    def __init__(self, config: InMemoryConfig) -> None:
        self._config = config
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._virtual = VirtualClock(1_700_000_000_000) if config.virtual_clock else None
        self._closed = False

    @property
    def type(self) -> ProviderType:
        return _TYPE

    async def open(self) -> None:
        await self._open()

    async def _open(self) -> Engine:
        """Made by who comes first."""
        if self._engine is not None:
            return self._engine
        async with self._opening:
            if self._closed:
                raise client_closed()
            if self._engine is None:
                clock = self._virtual or SystemClock()
                engine = await Engine.open(MemoryStore(), clock, secrets.randbits(32))
                await engine.ask(BROKER, "", CreateNamespace(NAMESPACE))
                self._engine = engine
            return self._engine

    async def close(self) -> None:
        self._closed = True
        if self._engine is not None:
            self._engine.dismiss()
            await self._engine.close()

    # For tests.

    async def create_queue(self, queue: str, *, sessions: bool = False, **properties: Any) -> None:
        """Creates a queue. `properties` override those of the configuration. Raises QueueError."""
        await self._ask(
            core.CreateQueue(str(QueueName(queue)), self._properties(sessions, properties))
        )

    async def advance(self, seconds: float) -> None:
        """Moves a virtual clock, and does what is due meanwhile."""
        if self._virtual is None:
            raise ConfigurationError("virtual_clock", "is off, so time passes by itself")
        engine = await self._open()
        await engine.advance(round(seconds * 1_000))

    def now(self) -> datetime:
        return moment_at(self._virtual.now_ms()) if self._virtual is not None else datetime.now(UTC)

    def _properties(self, sessions: bool, given: dict[str, Any]) -> QueueProperties:
        config = self._config
        lock = config.session_lock_duration if sessions else config.lock_duration
        values: dict[str, Any] = {
            "lock_ms": round(lock * 1_000), "max_delivery": config.max_delivery_count,
            "max_messages": config.max_queue_size,
            "duplicate_detection": config.duplicate_detection,
            "grouping": "session" if sessions else "none",
        }  # fmt: skip
        return QueueProperties(**(values | given))

    def admin(self) -> "MemoryAdmin":
        from posthouse.client.memory_admin import MemoryAdmin

        return MemoryAdmin(self)

    # Asking.

    async def _ask(
        self, command: core.Command, receipt: str = "", session: str = "", *, create: bool = True
    ) -> Any:
        """Raises QueueError. A queue that is missing is created, where that is configured."""
        engine = await self._open()
        try:
            return await engine.ask(BROKER, NAMESPACE, command)
        except refusals.NotFound as refused:
            missing = create and self._config.auto_create and refused.kind != "rule"
            if not missing or not await self._make(command):
                raise _error(refused, receipt, session) from refused
        except refusals.Refused as refused:
            raise _error(refused, receipt, session) from refused
        except StoreError as lost:
            raise lasting(ConnectionFailed(str(lost))) from lost
        return await self._ask(command, receipt, session, create=False)

    async def _make(self, command: Any) -> bool:
        """A queue for what is to be done with it, or a topic with the subscription."""
        if isinstance(command, core.Work):  # in a transaction
            command = command.command
        queue = getattr(command, "queue", None)
        kinds = (core.Send, core.Receive, core.Attach, core.AcceptSession, core.Peek)
        if queue is None or not isinstance(command, kinds):
            return False
        sessions = isinstance(command, core.AcceptSession) or (
            isinstance(command, core.Send) and any(each.group for each in command.messages)
        )
        name = entity_of(queue)
        single = {"duplicate_detection": False} if SUBSCRIPTION in name else {}
        properties = self._properties(sessions, single)
        made: list[core.Command] = [core.CreateQueue(name, properties)]
        if SUBSCRIPTION in name:
            topic = core.CreateQueue(topic_of(name), QueueProperties(delivery="topic"))
            made = [topic, core.CreateSubscription(name, properties)]
        for each in made:
            with contextlib.suppress(QueueError):  # another may have made it meanwhile
                await self._ask(each, create=False)
        return True

    # Sending.

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> list[MessageId]:
        await self._ask(await self._sending(queue, messages))
        return [each.message_id or MessageId() for each in messages]

    async def _sending(self, queue: QueueName, messages: Sequence[Message]) -> core.Send:
        now_ms = (await self._open()).clock_ms(NAMESPACE)
        new: list[NewMessage] = []
        for each in messages:
            delay = each.delay
            due_ms = 0 if delay is None else now_ms + round(delay.total_seconds() * 1_000)
            new.append(_new(each, due_ms))
        return core.Send(str(queue), new)

    async def schedule(
        self, queue: QueueName, messages: Sequence[Message], at: datetime
    ) -> list[int]:
        due_ms = max(1, ms_of(at))
        answer = await self._ask(core.Send(str(queue), [_new(each, due_ms) for each in messages]))
        return list(answer.sequences)

    async def cancel_scheduled(self, queue: QueueName, numbers: Sequence[int]) -> None:
        await self._ask(core.Cancel(str(queue), numbers))

    # Receiving.

    async def receive(self, source: Source, most: int, timeout: float) -> list[ReceivedMessage]:
        queue = _queue(source)
        received = await self._receive(queue, most, timeout, 0)
        return [self._read(queue, each) for each in received]

    async def _receive(
        self, queue: str, most: int, timeout: float, session: int
    ) -> "list[core.Delivery]":
        engine = await self._open()
        number = engine.new_receiver()
        deadline_ms = engine.clock_ms(NAMESPACE) + round(timeout * 1_000) if timeout > 0 else 0
        if self._virtual is not None:  # time stands still: who waits, waits in real time
            deadline_ms = core.TIME_MS_MAX if timeout > 0 else 0
        command = core.Receive(queue, number, most, deadline_ms, session=session)
        answer = await self._wait(engine, number, command, timeout)
        return list(answer.deliveries) if isinstance(answer, core.Received) else []

    async def _wait(
        self,
        engine: Engine,
        number: int,
        command: core.Receive | core.AcceptSession,
        timeout: float,
        session: str = "",
    ) -> Any:
        """Waits for messages or a session, and gives them back if the caller is cancelled."""
        asking = asyncio.ensure_future(self._ask(command, session=session))
        try:
            if self._virtual is not None and timeout > 0:
                await asyncio.wait([asking], timeout=timeout)
                engine.give_up(number)
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            engine.give_up(number)
            asking.add_done_callback(lambda done: _give_back(engine, command, done))
            raise

    def deliveries(self, source: Source, prefetch: int) -> "MemoryDeliveries":
        return MemoryDeliveries(self, source)

    async def receive_deferred(
        self, source: Source, numbers: Sequence[int]
    ) -> list[ReceivedMessage]:
        queue = _queue(source)
        answer = await self._ask(core.ReceiveDeferred(queue, numbers))
        return [self._read(queue, each) for each in answer.deliveries]

    async def peek(self, source: Source, most: int, first: int) -> list[ReceivedMessage]:
        queue = _queue(source)
        answer = await self._ask(core.Peek(queue, first, min(most, core.PAGE_MAX)))
        return [self._shown(each) for each in answer.messages]

    # Settling.

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        await self._settle_in(receipts, how, 0)

    async def _settle_in(
        self, receipts: Sequence[ReceiptHandle], how: Settlement, session: int
    ) -> None:
        by_queue: dict[str, list[int]] = {}
        for each in receipts:
            queue, token = _token(each)
            by_queue.setdefault(queue, []).append(token)
        for queue, tokens in by_queue.items():
            answer = await self._ask(_settling(queue, tokens, how, session), receipts[0].handle)
            if answer.lost:
                raise MessageNotFound(_handle(queue, int(answer.lost[0])))

    async def renew(self, receipt: ReceiptHandle) -> datetime:
        queue, token = _token(receipt)
        answer = await self._ask(core.Renew(queue, [token]), receipt.handle)
        return moment_at(answer.until_ms[0])

    async def resubmit(
        self, queue: QueueName, receipts: Sequence[ReceiptHandle], target: QueueName | None
    ) -> None:
        engine = await self._open()
        dead = dead_letter_queue(queue)
        sequences: list[int] = []
        for each in receipts:
            of, token = _token(each)
            lock = engine.view.messages.lock(NAMESPACE, token)
            if of != dead or lock is None:
                raise MessageNotFound(each.handle)
            sequences.append(lock.message.sequence)
        tokens = [_token(each)[1] for each in receipts]
        await self._ask(core.Release(dead, tokens), receipts[0].handle)
        await self._ask(core.Resubmit(dead, sequences, target=_plain(target)))

    # Sessions.

    async def accept_session(
        self, queue: QueueName, session_id: SessionId | None, timeout: float
    ) -> "MemorySession | None":
        engine = await self._open()
        number = engine.new_receiver()
        deadline_ms = 0
        if timeout > 0 and session_id is None:
            deadline_ms = engine.clock_ms(NAMESPACE) + round(timeout * 1_000)
            if self._virtual is not None:
                deadline_ms = core.TIME_MS_MAX
        command = core.AcceptSession(str(queue), number, _plain(session_id), deadline_ms)
        limit = timeout if deadline_ms else 0.0
        answer = await self._wait(engine, number, command, limit, session_id or "")
        return MemorySession(self, queue, answer) if isinstance(answer, core.Granted) else None

    def transaction(self) -> "AbstractAsyncContextManager[MemoryTransaction]":
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> "AsyncIterator[MemoryTransaction]":
        begun = await self._ask(core.Begin())
        yield MemoryTransaction(self, begun.transaction)

    # Messages.

    def _read(self, queue: str, delivery: core.Delivery) -> ReceivedMessage:
        message, note = delivery.message, delivery.note
        envelope = decode_envelope(message.envelope)
        if note is not None:
            envelope = note.apply_to(envelope)
        now = self.now()
        receipt = ReceiptHandle(
            _handle(queue, delivery.token), moment_at(delivery.until_ms), _TYPE, self.now
        )
        return _received(
            message, envelope, receipt, delivery.count, now,
            note.reason if note is not None else None,
            note.description if note is not None else None,
        )  # fmt: skip

    def _shown(self, seen: core.Seen) -> ReceivedMessage:
        message, note = seen.message, seen.note
        envelope = decode_envelope(message.envelope)
        if note is not None:
            envelope = note.apply_to(envelope)
        now = self.now()
        receipt = ReceiptHandle("", now, _TYPE, self.now)
        return _received(
            message, envelope, receipt, message.count, now,
            note.reason if note is not None else None,
            note.description if note is not None else None,
        )  # fmt: skip


class MemoryDeliveries:
    """Nothing is fetched ahead: it is here already."""

    def __init__(self, provider: InMemoryProvider, source: Source) -> None:
        self._provider = provider
        self._source = source
        self._asking: asyncio.Task[list[ReceivedMessage]] | None = None
        self._closed = asyncio.Event()

    async def next(self, most: int) -> list[ReceivedMessage]:
        while not self._closed.is_set():
            asked = self._provider.receive(self._source, most, 3_600.0)
            self._asking = asyncio.ensure_future(asked)
            try:
                received = await self._asking
            except asyncio.CancelledError:
                if self._closed.is_set():
                    return []
                self._asking.cancel()
                raise
            if received:
                return received
        return []

    async def close(self) -> None:
        self._closed.set()
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()


class MemorySession:
    def __init__(self, provider: InMemoryProvider, queue: QueueName, granted: core.Granted) -> None:
        self._provider = provider
        self._queue = str(queue)
        self._token = granted.token
        self._id = SessionId(granted.session)
        self._until_ms = granted.until_ms

    @property
    def session_id(self) -> SessionId:
        return self._id

    @property
    def expires_at(self) -> datetime:
        return moment_at(self._until_ms)

    async def _ask(self, command: core.Command) -> Any:
        return await self._provider._ask(command, session=self._id)

    async def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        try:
            received = await self._provider._receive(self._queue, most, timeout, self._token)
        except SessionLockLost as lost:
            raise SessionLockLost(self._id) from lost
        return [self._provider._read(self._queue, each) for each in received]

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        try:
            await self._provider._settle_in(receipts, how, self._token)
        except SessionLockLost as lost:
            raise SessionLockLost(self._id) from lost

    async def renew(self) -> datetime:
        self._until_ms = await self._ask(core.RenewSession(self._queue, self._token))
        return self.expires_at

    async def get_state(self) -> bytes | None:
        state: bytes | None = await self._ask(core.GetSessionState(self._queue, self._token))
        return state

    async def set_state(self, state: bytes | None) -> None:
        await self._ask(core.SetSessionState(self._queue, self._token, state))

    async def close(self) -> None:
        with contextlib.suppress(SessionLockLost):  # it is not held any more, as was wanted
            await self._ask(core.ReleaseSession(self._queue, self._token))


class MemoryTransaction:
    def __init__(self, provider: InMemoryProvider, number: int) -> None:
        self._provider = provider
        self._number = number

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> None:
        command = await self._provider._sending(queue, messages)
        await self._provider._ask(core.Work(self._number, command))

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        for each in receipts:
            queue, token = _token(each)
            command = _settling(queue, [token], how, 0, partial=False)
            await self._provider._ask(core.Work(self._number, command), each.handle)

    async def commit(self) -> None:
        answer = await self._provider._ask(core.Commit(self._number))
        if isinstance(answer, core.RolledBack):
            raise ProviderError(_TYPE.value, "rolled-back", answer.reason, is_transient=False)

    async def roll_back(self) -> None:
        with contextlib.suppress(QueueError):  # it is over already
            await self._provider._ask(core.RollBack(self._number))


def _give_back(engine: Engine, command: Any, asked: "asyncio.Future[Any]") -> None:
    """Releases the messages, or the session, that came for a caller that no longer waits."""
    if asked.cancelled() or asked.exception() is not None:
        return
    answer = asked.result()
    back: core.Command | None = None
    if isinstance(answer, core.Received) and answer.deliveries:
        tokens = [each.token for each in answer.deliveries]
        back = core.Release(command.queue, tokens, True, command.session)
    elif isinstance(answer, core.Granted):
        back = core.ReleaseSession(command.queue, answer.token)
    if back is not None:
        engine.submit(BROKER, NAMESPACE, back, lambda _: None)


def _queue(source: Source) -> str:
    return dead_letter_queue(source.queue) if source.dead_letter else str(source.queue)


def _plain(name: str | None) -> str | None:
    """Returns a name as a plain `str`, as the core stores it."""
    return None if name is None else str(name)


def _handle(queue: str, token: int) -> str:
    return f"{token:032x}{queue}"


def _token(receipt: ReceiptHandle) -> tuple[str, int]:
    """Raises MessageNotFound."""
    try:
        return receipt.handle[32:], int(receipt.handle[:32], 16)
    except ValueError:
        raise MessageNotFound(receipt.handle) from None


def _settling(
    queue: str, tokens: list[int], how: Settlement, session: int, *, partial: bool = True
) -> Any:
    changed: dict[str, Any] = dict(how.attributes)
    match how.ending:
        case "complete":
            return core.Complete(queue, tokens, partial, session)
        case "abandon":
            return core.Abandon(queue, tokens, partial, session, changed)
        case "release":
            return core.Release(queue, tokens, partial, session)
        case "defer":
            return core.Defer(queue, tokens, partial, session, changed)
        case "dead-letter":
            return core.DeadLetter(
                queue, tokens, partial, session, how.reason, how.description, changed
            )


def _new(message: Message, due_ms: int) -> NewMessage:
    """Raises MessageTooLarge, Unsupported, ValidationError."""
    if len(message.body) > _TYPE.max_message_size():
        raise MessageTooLarge(len(message.body), _TYPE.max_message_size())
    check_attributes(message.attributes, _TYPE)
    group, key = _plain(message.session_id), _plain(message.partition_key)
    if group is not None and key is not None and group != key:
        raise ValidationError("partition key", "must be the session id where a message has both")
    envelope = Envelope(
        id=str(message.message_id or MessageId()), content_type=message.content_type or "",
        subject=message.subject or "", correlation_id=message.correlation_id or "",
        session_id=group, partition_key=key, to=message.to or "", reply_to=message.reply_to or "",
        properties={str(name): property_of(value) for name, value in message.attributes.items()},
    )  # fmt: skip
    life = message.time_to_live
    return NewMessage(
        encode_envelope(envelope), message.body, group=key if group is None else group,
        priority=PRIORITY if message.priority is None else message.priority,
        ttl_ms=None if life is None else max(1, round(life.total_seconds() * 1_000)), due_ms=due_ms,
    )  # fmt: skip


def _received(
    message: Any,
    envelope: Envelope,
    receipt: ReceiptHandle,
    count: int,
    now: datetime,
    reason: str | None,
    description: str | None,
) -> ReceivedMessage:
    body = message.body
    assert isinstance(body, bytes)  # nothing is evicted where all is in memory
    life = None
    if message.expires_ms:
        life = timedelta(milliseconds=message.expires_ms - message.enqueued_ms)
    session = envelope.session_id
    return ReceivedMessage(
        MessageId(envelope.id), body, receipt, count, now,
        {name: attribute_of(value) for name, value in envelope.properties.items()},
        None if session is None else SessionId(session), envelope.correlation_id or None,
        envelope.content_type or None, now if count <= 1 else None, life, message.sequence,
        moment_at(message.enqueued_ms), reason, description, envelope.subject or None,
        envelope.to or None, envelope.reply_to or None, message.priority, envelope.partition_key,
    )  # fmt: skip


def _error(refused: refusals.Refused, receipt: str, session: str) -> QueueError:
    """A refusal in the client's words."""
    match refused:
        case refusals.NotFound(kind=kind, name=name, namespace=namespace) if kind in _ENTITIES:
            return QueueNotFound(entity_of(name), namespace)
        case refusals.LockLost():
            return MessageNotFound(receipt)
        case refusals.MessageNotFound(sequence=sequence):
            return MessageNotFound(str(sequence))
        case refusals.SessionLocked(session=held):
            return SessionLocked(held)
        case refusals.SessionLockLost():
            return SessionLockLost(session)
        case refusals.MessageTooLarge(size_bytes=size, maximum=most):
            return MessageTooLarge(size, most)
        case refusals.InvalidArgument(argument=argument, rule=rule):
            return ValidationError(argument, rule)
        case refusals.TimedOut():
            return Timeout(0.0)
        case refusals.Throttled(wait_ms=wait_ms):
            return Throttled(_TYPE.value, "throttled", str(refused), wait_ms / 1_000)
        case _:
            busy = isinstance(refused, refusals.Busy | refusals.NotLeader | refusals.QuotaExceeded)
            kind = type(refused).__name__
            return ProviderError(_TYPE.value, kind, str(refused), is_transient=busy)
