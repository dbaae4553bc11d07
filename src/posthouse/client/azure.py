"""Azure Service Bus, through its official SDK.

The SDK's senders and receivers are for one caller at a time, and lose their place on the wire when
a call is cancelled in the middle. So each call runs to its end in a task of its own, whoever waits
for it; what it then brings for nobody is given back.

A receiver that asked for more than came has told the service so, and may be sent a message while
nobody is waiting. It is closed a moment after, which gives back what was on its way.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from posthouse.client.asking import Asking
from posthouse.client.azure_words import (
    RAISED,
    TYPE,
    Doing,
    again,
    error_of,
    incoming,
    outgoing,
    size_of,
)
from posthouse.client.config import AzureServiceBusConfig
from posthouse.client.errors import (
    ConfigurationError,
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    SessionLockLost,
    Timeout,
    Unsupported,
    check_went,
    client_closed,
)
from posthouse.client.held import Held
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, QueueName, SessionId
from posthouse.client.provider import ProviderType, Settlement, Source, Transacting
from posthouse.client.secret import reveal
from posthouse.client.under_way import UnderWay

if TYPE_CHECKING:
    from posthouse.client.azure_admin import AzureAdmin

KEPT_MAX = 100  # senders, and receivers, each a connection of its own
LINGER_S = 0.5  # that a receiver which could be sent something waits for its next use
SLICE_S = 1.0  # of waiting, after which a call that was cancelled ends
SHORTEST_S = 0.1  # the SDK waits no shorter
CLOSE_S = 5.0  # for what is still under way
_FOREVER = datetime.max.replace(tzinfo=UTC)

T = TypeVar("T")


class _Lock(NamedTuple):
    """A message that was received, and by whom it is settled."""

    inbox: "_Inbox"
    message: ServiceBusReceivedMessage


class _Part(NamedTuple):
    """The messages that go to the service in one transfer."""

    places: list[int]  # in what is sent
    batch: ServiceBusMessageBatch | ServiceBusMessage
    limit: int  # bytes


class _Outbox:
    """A sender of the SDK; who sends, waits for the one before."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self.sender = sender
        self.turn = asyncio.Lock()


class _Inbox:
    """A receiver of the SDK; who receives, waits for the one before."""

    def __init__(
        self, provider: "AzureProvider", source: Source, sdk: ServiceBusReceiver, session: str = ""
    ) -> None:
        self.source = source
        self.session = session
        self.sdk = sdk
        self.tokens: set[str] = set()  # received with it, and perhaps not settled
        self.closed = False
        self._provider = provider
        self._opening = asyncio.Lock()
        self._opened = bool(session)
        self._turn = asyncio.Lock()
        self._users = 0
        self._resting: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        doing = Doing("receive", self.source.queue)
        async with self._opening:
            if not self._opened:
                await self._provider.whole(self.sdk.__aenter__(), doing)
                self._opened = True

    async def call(self, work: Coroutine[Any, Any, T], doing: Doing) -> T:
        self.busy(1)
        try:
            return await self._provider.whole(work, doing)
        finally:
            self.busy(-1)

    async def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        self.busy(1)
        try:
            end = time.monotonic() + timeout
            await self.open()
            while True:
                left = max(0.0, end - time.monotonic())
                try:
                    async with asyncio.timeout(left):
                        await self._turn.acquire()
                except TimeoutError:
                    return []
                found = await self._slice(most, min(SLICE_S, end - time.monotonic()))
                if found or time.monotonic() >= end - SHORTEST_S:
                    return found
        finally:
            self.busy(-1)

    async def _slice(self, most: int, wait: float) -> list[ReceivedMessage]:
        """Receives once, in the caller's turn, and ends the turn."""
        try:
            room = self._provider.held.room(most)
        except QueueError:
            self._turn.release()
            raise
        # It looks at the time every 0.2 s: on the average so it is right.
        asked = self._provider.start(self._take(room, max(SHORTEST_S, wait - SHORTEST_S)))
        asked.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._provider.start(self._give_back(asked))
            raise

    async def _take(self, most: int, wait: float) -> list[ReceivedMessage]:
        doing = Doing("receive", self.source.queue, session=self.session)
        try:
            found = await self.sdk.receive_messages(max_message_count=most, max_wait_time=wait)
        except RAISED as error:
            raise error_of(error, doing) from error
        return self.keep(found)

    def keep(self, found: Sequence[ServiceBusReceivedMessage]) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        for each in found:
            until = self.until if self.session else each.locked_until_utc
            message = incoming(each, until or utc_now())
            handle = message.receipt_handle.handle
            self.tokens.add(handle)
            # The SDK itself knows how long a session is held.
            self._provider.held.put(
                handle, _Lock(self, each), _FOREVER if self.session else until or utc_now()
            )
            received.append(message)
        return received

    async def _give_back(self, asked: "asyncio.Future[list[ReceivedMessage]]") -> None:
        await asyncio.wait([asked])
        if not asked.cancelled() and asked.exception() is None and asked.result():
            receipts = [each.receipt_handle for each in asked.result()]
            await self._provider.settle(receipts, Settlement("abandon"))

    @property
    def until(self) -> datetime:
        return self.sdk.session.locked_until_utc or utc_now()

    def busy(self, more: int) -> None:
        """One more who uses it, or one less: then it may have to go."""
        self._users += more
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if not self._users and not self.closed and self in self._provider.inboxes.values():
            loop = asyncio.get_running_loop()
            self._resting = loop.call_later(LINGER_S, self._rest)

    def _rest(self) -> None:
        self.tokens = {each for each in self.tokens if self._provider.held.knows(each)}
        if not self.tokens and not self._turn.locked():
            self._provider.retire(self.source, self)

    async def close(self) -> None:
        """Closes the receiver. The SDK can then no longer settle the messages it received."""
        self.closed = True
        if self._resting is not None:
            self._resting.cancel()
        for each in self.tokens:
            self._provider.held.drop(each)
        await self._provider.whole(self.sdk.close(), Doing("close"))


class AzureProvider:
    """The whole of `Provider` but transactions, which the SDK does not have."""

    def __init__(self, config: AzureServiceBusConfig) -> None:
        """Raises ConfigurationError."""
        self._config = config
        self.held: Held[_Lock] = Held(TYPE)
        self.inboxes: OrderedDict[Source, _Inbox] = OrderedDict()
        self._outboxes: OrderedDict[QueueName, _Outbox] = OrderedDict()
        self._client = _client(config)
        self._under_way = UnderWay()
        self.start = self._under_way.start
        self._sessions: set[AzureSession] = set()
        self._closed = False
        self._admin: AzureAdmin | None = None

    @property
    def type(self) -> ProviderType:
        return TYPE

    async def open(self) -> None:
        """Nothing: there is no connection but for a queue."""

    async def close(self) -> None:
        self._closed = True
        closing = [self._quietly(each.close()) for each in list(self.inboxes.values())]
        closing += [self._quietly(each.close()) for each in list(self._sessions)]
        closing += [self._quietly(each.sender.close()) for each in self._outboxes.values()]
        await asyncio.gather(*closing)
        await self._under_way.settle_down(CLOSE_S)
        await self._client.close()
        if self._admin is not None:
            await self._quietly(self._admin.close())

    # Calls, to their end.

    async def whole(self, work: Coroutine[Any, Any, T], doing: Doing) -> T:
        """Raises QueueError."""
        try:
            return await asyncio.shield(self.start(work))
        except QueueError:
            raise
        except RAISED as error:
            raise error_of(error, doing) from error

    async def _quietly(self, closing: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(QueueError):  # what cannot be closed any more is closed
            await self.whole(closing, Doing("close"))

    # Senders and receivers.

    def _outbox(self, queue: QueueName) -> _Outbox:
        self._check_open()
        found = self._outboxes.get(queue)
        if found is None:
            found = _Outbox(self._client.get_queue_sender(str(queue)))
            self._outboxes[queue] = found
            for name in [n for n, each in self._outboxes.items() if not each.turn.locked()]:
                if len(self._outboxes) <= KEPT_MAX or name == queue:
                    break
                self.start(self._quietly(self._outboxes.pop(name).sender.close()))
        self._outboxes.move_to_end(queue)
        return found

    def _inbox(self, source: Source) -> _Inbox:
        self._check_open()
        found = self.inboxes.get(source)
        if found is None:
            found = self.inboxes[source] = self.new_inbox(source)
            if len(self.inboxes) > KEPT_MAX:
                next(iter(self.inboxes.values()))._rest()
        self.inboxes.move_to_end(source)
        return found

    def new_inbox(self, source: Source, prefetch: int = 0) -> _Inbox:
        sub_queue = ServiceBusSubQueue.DEAD_LETTER if source.dead_letter else None
        sdk = self._receiver(source.queue, sub_queue=sub_queue, prefetch_count=prefetch)
        return _Inbox(self, source, sdk)

    def _receiver(self, queue: QueueName, **options: Any) -> ServiceBusReceiver:
        """Returns a receiver of the SDK for a queue or a subscription."""
        topic, subscription = queue.topic, queue.subscription
        if topic is None or subscription is None:
            return self._client.get_queue_receiver(str(queue), **options)
        return self._client.get_subscription_receiver(topic, subscription, **options)

    def retire(self, source: Source, inbox: _Inbox) -> None:
        if self.inboxes.get(source) is inbox:
            del self.inboxes[source]
            self.start(self._quietly(inbox.close()))

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    # Sending.

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> list[MessageId]:
        for each in messages:
            if size_of(each) > TYPE.max_message_size():
                raise MessageTooLarge(size_of(each), TYPE.max_message_size())
        ids = [each.message_id or MessageId() for each in messages]
        failures = await self.whole(self._send(queue, messages), Doing("send", queue))
        check_went(failures, ids)
        return ids

    async def _send(self, queue: QueueName, messages: Sequence[Message]) -> dict[int, QueueError]:
        """Sends messages in as few batches as possible. Returns the errors by place."""
        outbox = self._outbox(queue)
        failures: dict[int, QueueError] = {}
        async with outbox.turn:
            parts = await _parts(outbox.sender, messages)
            for number, (places, batch, limit) in enumerate(parts):
                try:
                    await outbox.sender.send_messages(batch)
                except RAISED as error:
                    size = size_of(messages[places[0]])
                    found = error_of(error, Doing("send", queue, size=size, limit=limit))
                    found.__cause__ = error
                    if found.is_transient:  # those behind it would fare no better
                        places = [place for part in parts[number:] for place in part.places]
                        return failures | dict.fromkeys(places, found)
                    failures |= dict.fromkeys(places, found)
        return failures

    async def schedule(
        self, queue: QueueName, messages: Sequence[Message], at: datetime
    ) -> list[int]:
        ready: list[ServiceBusMessage] = [outgoing(each) for each in messages]

        async def work() -> list[int]:
            outbox = self._outbox(queue)
            async with outbox.turn:
                return list(await outbox.sender.schedule_messages(ready, at.astimezone(UTC)))

        return await self.whole(work(), Doing("schedule", queue))

    async def cancel_scheduled(self, queue: QueueName, numbers: Sequence[int]) -> None:
        async def work() -> None:
            outbox = self._outbox(queue)
            async with outbox.turn:
                await outbox.sender.cancel_scheduled_messages(list(numbers))

        await self.whole(work(), Doing("cancel", queue, receipt=str(numbers[0])))

    # Receiving.

    async def receive(self, source: Source, most: int, timeout: float) -> list[ReceivedMessage]:
        inbox = self._inbox(source)
        try:
            return await inbox.receive(most, timeout)
        except QueueError:
            if not inbox.tokens:  # a new one is made for the next try
                self.retire(source, inbox)
            raise

    def deliveries(self, source: Source, prefetch: int) -> Asking:
        inbox = self.new_inbox(source, prefetch or self._config.prefetch)
        return Asking(inbox.receive, inbox.close)

    async def receive_deferred(
        self, source: Source, numbers: Sequence[int]
    ) -> list[ReceivedMessage]:
        inbox = self._inbox(source)
        await inbox.open()
        doing = Doing("receive", source.queue, receipt=str(numbers[0]) if numbers else "")
        found = await inbox.call(inbox.sdk.receive_deferred_messages(list(numbers)), doing)
        return inbox.keep(found)

    async def peek(self, source: Source, most: int, first: int) -> list[ReceivedMessage]:
        inbox = self._inbox(source)
        await inbox.open()
        work = inbox.sdk.peek_messages(most, sequence_number=max(1, first))
        found = await inbox.call(work, Doing("peek", source.queue))
        return [incoming(each, utc_now()) for each in found]

    # Settling.

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        done = await asyncio.gather(
            *(self._settle(each, how) for each in receipts), return_exceptions=True
        )
        failed = [each for each in done if isinstance(each, BaseException)]
        for each in sorted(failed, key=lambda error: not isinstance(error, MessageNotFound)):
            raise each

    async def _settle(self, receipt: ReceiptHandle, how: Settlement) -> None:
        handle = receipt.handle
        lock, until = self.held.take(handle)
        inbox, message = lock
        doing = Doing(how.ending, inbox.source.queue, handle, inbox.session)
        try:
            await inbox.call(_settling(inbox.sdk, message, how), doing)
        except QueueError as error:
            if error.is_transient:
                self.held.put(handle, lock, until)
            raise

    async def renew(self, receipt: ReceiptHandle) -> datetime:
        inbox, message = self.held.get(receipt.handle)
        doing = Doing("renew", inbox.source.queue, receipt.handle, inbox.session)
        if inbox.session:
            return await inbox.call(inbox.sdk.session.renew_lock(), doing)
        until = await inbox.call(inbox.sdk.renew_message_lock(message), doing)
        self.held.extend(receipt.handle, until)
        return until

    async def resubmit(
        self, queue: QueueName, receipts: Sequence[ReceiptHandle], target: QueueName | None
    ) -> None:
        """First sent, then completed: after a failure between them it is there twice, not lost."""
        dead = Source(queue, True)
        if target is None and queue.topic is not None:
            raise Unsupported(
                TYPE.value,
                f"send to a subscription; with target={queue.topic!r} all subscriptions of the"
                " topic get the message",
            )
        for each in receipts:
            inbox, message = self.held.get(each.handle)
            if inbox.source != dead:
                raise MessageNotFound(each.handle)
            await self.whole(self._again(target or queue, message), Doing("send", target or queue))
            await self._settle(each, Settlement("complete"))

    async def _again(self, queue: QueueName, message: ServiceBusReceivedMessage) -> None:
        outbox = self._outbox(queue)
        async with outbox.turn:
            await outbox.sender.send_messages(again(message))

    # Sessions.

    async def accept_session(
        self, queue: QueueName, session_id: SessionId | None, timeout: float
    ) -> "AzureSession | None":
        self._check_open()
        if not self._config.use_sessions:
            raise Unsupported(TYPE.value, "hold sessions: use_sessions is off")
        sdk = self._receiver(
            queue,
            session_id=NEXT_AVAILABLE_SESSION if session_id is None else str(session_id),
            max_wait_time=max(SHORTEST_S, timeout),
        )
        doing = Doing("accept-session", queue, session=session_id or "", seconds=timeout)
        opening = self.start(sdk.__aenter__())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda _: self.start(self._quietly(sdk.close())))
            raise
        except RAISED as error:
            self.start(self._quietly(sdk.close()))
            found = error_of(error, doing)
            if isinstance(found, Timeout) and session_id is None:
                return None
            raise found from error
        held = AzureSession(self, queue, sdk, self._config.session_timeout)
        self._sessions.add(held)
        return held

    def forget(self, session: "AzureSession") -> None:
        self._sessions.discard(session)

    def admin(self) -> "AzureAdmin":
        self._check_open()
        if self._admin is None:
            from posthouse.client.azure_admin import AzureAdmin

            self._admin = AzureAdmin(self, self._config)
        return self._admin

    def transaction(self) -> AbstractAsyncContextManager[Transacting]:
        raise Unsupported(TYPE.value, "do several things in one transaction")


class AzureSession:
    """One session. Its lock is renewed while it is received from, for `session_timeout` at most."""

    def __init__(
        self, provider: AzureProvider, queue: QueueName, sdk: ServiceBusReceiver, most_s: float
    ) -> None:
        self._provider = provider
        self._id = SessionId(sdk.session.session_id)
        self._inbox = _Inbox(provider, Source(queue), sdk, self._id)
        self._accepted = time.monotonic()
        self._lock_s = max(1.0, (self.expires_at - utc_now()).total_seconds())
        self._most_s = most_s

    @property
    def session_id(self) -> SessionId:
        return self._id

    @property
    def expires_at(self) -> datetime:
        return self._inbox.until

    async def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        end = time.monotonic() + timeout
        while True:
            self._check_held()
            left = (self.expires_at - utc_now()).total_seconds()
            young = time.monotonic() - self._accepted < self._most_s
            if young and 0 < left < self._lock_s / 2:
                await self.renew()
            wait = max(0.0, min(end - time.monotonic(), self._lock_s / 4))
            found = await self._inbox.receive(most, wait)
            if found or time.monotonic() >= end - SHORTEST_S:
                return found

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        self._check_held()
        await self._provider.settle(receipts, how)

    async def renew(self) -> datetime:
        return await self._ask(self._inbox.sdk.session.renew_lock(), "renew")

    async def get_state(self) -> bytes | None:
        return await self._ask(self._inbox.sdk.session.get_state(), "read the state")

    async def set_state(self, state: bytes | None) -> None:
        await self._ask(self._inbox.sdk.session.set_state(state), "write the state")

    async def _ask(self, work: Coroutine[Any, Any, T], operation: str) -> T:
        doing = Doing(operation, self._inbox.source.queue, session=self._id)
        return await self._provider.whole(work, doing)

    def _check_held(self) -> None:
        if self._inbox.closed:
            raise SessionLockLost(self._id)

    async def close(self) -> None:
        if not self._inbox.closed:
            self._provider.forget(self)
            await self._provider._quietly(self._inbox.close())


def _client(config: AzureServiceBusConfig) -> ServiceBusClient:
    """Raises ConfigurationError. It tries nothing again: that is done for every provider alike."""
    kind = TransportType.AmqpOverWebsocket if config.websocket else TransportType.Amqp
    trust = config.ca_file or None
    try:
        if config.connection_string:
            return ServiceBusClient.from_connection_string(
                reveal(config.connection_string), retry_total=0, transport_type=kind,
                connection_verify=trust,
            )  # fmt: skip
        credential: Any = reveal(config.credential)
        return ServiceBusClient(
            config.namespace, credential, retry_total=0, transport_type=kind,
            connection_verify=trust,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigurationError("connection_string", f"is none: {error}") from None


async def _parts(sender: ServiceBusSender, messages: Sequence[Message]) -> list[_Part]:
    """Splits messages into as few transfers as possible.

    A message that fits into no batch goes alone, for the service to refuse.
    """
    if len(messages) == 1:
        return [_Part([0], outgoing(messages[0]), TYPE.max_message_size())]
    parts: list[_Part] = []
    batch: ServiceBusMessageBatch | None = None
    for place, message in enumerate(map(outgoing, messages)):
        try:
            if batch is not None:
                batch.add_message(message)
                parts[-1].places.append(place)
                continue
        except MessageSizeExceededError:
            pass
        batch = await sender.create_message_batch()
        most = batch.max_size_in_bytes
        try:
            batch.add_message(message)
            parts.append(_Part([place], batch, most))
        except MessageSizeExceededError:
            batch = None
            parts.append(_Part([place], message, most))
    return parts


def _settling(
    sdk: ServiceBusReceiver, message: ServiceBusReceivedMessage, how: Settlement
) -> Coroutine[Any, Any, None]:
    match how.ending:
        case "complete":
            return sdk.complete_message(message)
        case "abandon" | "release":
            return sdk.abandon_message(message)
        case "defer":
            return sdk.defer_message(message)
        case "dead-letter":
            return sdk.dead_letter_message(message, how.reason, how.description)
