"""The client: one API, whoever keeps the queues.

A provider does a thing once. Here is what all of them have in common: names are checked, messages
get ids, are compressed and encrypted where that is wanted, calls are tried again, counted and
traced, and have an end.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from posthouse.client.config import QueueConfig
from posthouse.client.deadlines import Deadlines
from posthouse.client.errors import (
    BatchTooLarge,
    CircuitOpen,
    PartialFailure,
    QueueError,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.figures import Fate, Figures
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage
from posthouse.client.names import MessageId, QueueName, SessionId, new_message_ids, target_name
from posthouse.client.provider import (
    ABANDON,
    COMPLETE,
    RELEASE,
    Capabilities,
    Deliveries,
    Ending,
    HeldSession,
    OwnClock,
    Provider,
    ProviderType,
    SessionSupport,
    Settlement,
    Source,
    Transacting,
)
from posthouse.client.retry import CircuitBreaker, ExponentialRetry, NoRetry, RetryPolicy, Tries
from posthouse.client.telemetry import Telemetry, find_telemetry
from posthouse.client.wrapping import PLAIN, Wrapping

if TYPE_CHECKING:
    from posthouse.client.admin import Admin

_log = logging.getLogger("posthouse.client")

T = TypeVar("T")
Receipt: TypeAlias = ReceiptHandle | ReceivedMessage
_FATES: dict[Ending, Fate] = {
    "complete": "acknowledged", "abandon": "rejected", "release": "released", "defer": "deferred",
    "dead-letter": "dead_lettered",
}  # fmt: skip


def _policy(config: QueueConfig) -> RetryPolicy:
    if not config.max_retry_attempts:
        return NoRetry()
    return ExponentialRetry(
        config.max_retry_attempts + 1, config.retry_base_delay, most=config.retry_max_delay
    )


class Calls:
    """Makes the client's calls: with time limits, retries, figures and the circuit breaker."""

    def __init__(
        self, config: QueueConfig, retry: RetryPolicy | None, telemetry: Telemetry | None = None
    ) -> None:
        self.config = config
        self.figures = Figures(None if telemetry is None else telemetry.record)
        self.breaker = CircuitBreaker(config.breaker_failures, config.breaker_seconds)
        self._deadlines = Deadlines()
        self._retry = retry or _policy(config)

    async def make(
        self,
        operation: str,
        where: str,
        attempt: Callable[[], Awaitable[T]],
        limit: float | None = None,
        *,
        patient: bool = False,
    ) -> T:
        """Makes a call with its retries. Raises QueueError.

        Who is patient waits by himself until the provider is back: that is one try, which the
        breaker neither stops nor counts as a failure.
        """
        try:
            is_probe = not patient and self.breaker.check()
        except CircuitOpen:
            self.figures.note(operation, "CircuitOpen", 0.0)
            raise
        seconds = self.config.operation_timeout if limit is None else limit
        task = asyncio.current_task()
        assert task is not None  # asyncio's own: this is awaited in one
        before, begun = self._deadlines.set(task, seconds), time.monotonic()
        outcome = "cancelled"
        tries: Tries | None = None  # of a call that has failed once; most never do
        try:
            while True:
                try:
                    done = await attempt()
                except QueueError as error:
                    if patient:
                        raise
                    tries = tries or Tries(self._retry, operation, begun, seconds)
                    wait = tries.wait_after(error)
                    if wait is None:
                        raise tries.told(error) from error.__cause__
                    _log.info(
                        "To %s %s failed and is tried again in %.2f s: %s",
                        operation, where, wait, error,
                        extra={"operation": operation, "queue": where, "tries": tries.made},
                    )  # fmt: skip
                    await asyncio.sleep(wait)
                else:
                    self.breaker.note(None)
                    outcome = "ok"
                    return done
        except asyncio.CancelledError:
            if not self._deadlines.late(task):
                if is_probe:
                    self.breaker.give_up()
                raise
            late = Timeout(seconds, f"To {operation}") if tries is None else tries.late()
            self.breaker.note(late, is_probe=is_probe)
            outcome = "Timeout"
            raise late from None if tries is None else tries.last
        except QueueError as error:
            if not patient:
                self.breaker.note(error, is_probe=is_probe)
            outcome = type(error).__name__
            raise
        finally:
            self._deadlines.clear(task, before)
            self.figures.note(operation, outcome, time.monotonic() - begun)


class QueueClient:
    """A client for the queues of one provider; `create_client` makes one.

    Tasks may share a client. Close it when done, or use `async with`. `provider` does what it is
    asked; `config`, `retry` and `wrapping` say how.

    Example:
        async with create_client("posthouse://web:key@localhost") as client:
            await client.send_message("orders", Message("a book"))
    """

    def __init__(
        self,
        provider: Provider,
        config: QueueConfig,
        *,
        retry: RetryPolicy | None = None,
        wrapping: Wrapping = PLAIN,
    ) -> None:
        self._provider = provider
        self._capabilities = provider.type.capabilities
        self._telemetry = find_telemetry(provider.type)
        self._calls = Calls(config, retry, self._telemetry)
        self._wrapping = wrapping
        self._admin: Admin | None = None

    async def __aenter__(self) -> "QueueClient":
        await self._calls.make("connect", "", self._provider.open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client: releases the messages it has fetched, and closes its connections.

        Example:
            await client.close()
        """
        await self._provider.close()

    # What there is.

    @property
    def admin(self) -> "Admin":
        """Creates, changes and deletes queues, topics, subscriptions and rules."""
        if self._admin is None:
            from posthouse.client.admin import Admin

            self._admin = Admin(self._provider, self._calls)
        return self._admin

    @property
    def provider_type(self) -> ProviderType:
        """The service that keeps the queues."""
        return self._provider.type

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the provider."""
        return self._capabilities

    def supports_sessions(self) -> bool:
        """Returns whether the provider has sessions, natively or emulated.

        Example:
            if client.supports_sessions():
                session = await client.accept_session("orders")
        """
        return self.capabilities.sessions is not SessionSupport.UNSUPPORTED

    def supports_batching(self) -> bool:
        """Returns whether several messages can be sent in one call.

        Example:
            assert client.supports_batching()
        """
        return self._provider.type.supports_batching()

    def max_batch_size(self) -> int:
        """Returns the largest number of messages in one send.

        Example:
            batch = messages[: client.max_batch_size()]
        """
        return self.capabilities.batch_max

    def max_message_size(self) -> int:
        """Returns the size of the largest message, in bytes.

        Example:
            print(client.max_message_size())
        """
        return self.capabilities.message_bytes_max

    @property
    def figures(self) -> Figures:
        """Counts and durations of the operations of this client."""
        return self._calls.figures

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker, which stops calls once too many have failed."""
        return self._calls.breaker

    # Sending.

    async def send_message(self, queue: str, message: Message) -> MessageId:
        """Sends a message and returns its id, once the provider has taken it. Raises QueueError.

        `queue` is a queue or topic, `message` the message.

        Example:
            await client.send_message("orders", Message("a book"))
        """
        return (await self.send_messages(queue, [message]))[0]

    async def send_messages(self, queue: str, messages: Iterable[Message]) -> list[MessageId]:
        """Sends up to `max_batch_size()` messages and returns their ids, in order.

        `queue` is a queue or topic, `messages` are the messages. Raises QueueError, BatchTooLarge
        if there are too many, or PartialFailure if only some were sent.

        Example:
            await client.send_messages("orders", [Message("a book"), Message("a pen")])
        """
        name = target_name(queue)
        ready = self._made_ready(messages)
        self._check_batch(ready)
        if not ready:
            return []
        telemetry = self._telemetry
        if telemetry is None or not telemetry.is_tracing:
            sent = await self._send(name, ready)
        else:
            with telemetry.sending("send", name, ready) as carrying:
                sent = await self._send(name, carrying)
        self.figures.count("sent", len(sent))
        return sent

    def _send(self, name: QueueName, messages: list[Message]) -> Awaitable[list[MessageId]]:
        """Sends messages with retries. After a partial failure, only the others are sent again."""
        if len(messages) == 1:
            return self._calls.make("send", name, partial(self._provider.send, name, messages))
        ids: dict[int, MessageId] = {}
        left: Sequence[int] = range(len(messages))  # places of those that are to go

        async def attempt() -> list[MessageId]:
            nonlocal left
            part = [messages[place] for place in left] if ids else messages
            failures: dict[int, QueueError] = {}
            try:
                sent = await self._provider.send(name, part)
                if not ids:
                    return sent
                ids.update(zip(left, sent, strict=True))
            except PartialFailure as partial:
                ids.update((left[at], MessageId(each)) for at, each in partial.ids.items())
                failures = {left[at]: error for at, error in partial.failures.items()}
            except QueueError as error:
                if not ids:
                    raise
                failures = dict.fromkeys(left, error)
            if failures:
                left = sorted(failures)
                raise PartialFailure(failures, dict(ids))
            return [ids[place] for place in range(len(messages))]

        return self._calls.make("send", name, attempt)

    async def schedule_message(self, queue: str, message: Message, at: datetime) -> int:
        """Sends a message that becomes available at a later moment.

        `queue` is a queue or topic, `message` the message, `at` the moment, with a time zone.
        Returns the number that `cancel_scheduled_message` takes. Raises QueueError.

        Example:
            at = datetime.now(UTC) + timedelta(hours=1)
            number = await client.schedule_message("orders", Message("a book"), at)
        """
        return (await self.schedule_messages(queue, [message], at))[0]

    async def schedule_messages(
        self, queue: str, messages: Iterable[Message], at: datetime
    ) -> list[int]:
        """Sends messages that become available at a later moment, and returns their numbers.

        `queue` is a queue or topic, `messages` are the messages, `at` is the moment, with a time
        zone. Raises QueueError.

        Example:
            numbers = await client.schedule_messages("orders", [Message("a book")], at)
        """
        name, ready = target_name(queue), self._made_ready(messages)
        self._check_batch(ready)
        if at.tzinfo is None:
            raise ValidationError("scheduled time", "must say its time zone")
        if any(each.delay is not None for each in ready):
            raise ValidationError("message", "has a delay; give that, or a scheduled time")
        if not ready:
            return []
        telemetry = self._telemetry
        if telemetry is None or not telemetry.is_tracing:
            numbers = await self._schedule(name, ready, at)
        else:
            with telemetry.sending("schedule", name, ready) as carrying:
                numbers = await self._schedule(name, carrying, at)
        self.figures.count("sent", len(numbers))
        return numbers

    async def _schedule(self, name: QueueName, messages: list[Message], at: datetime) -> list[int]:
        return await self._calls.make(
            "schedule", name, lambda: self._provider.schedule(name, messages, at)
        )

    async def cancel_scheduled_message(self, queue: str, *numbers: int) -> None:
        """Cancels scheduled messages of `queue` by their `numbers`.

        Raises MessageNotFound if one is gone.

        Example:
            await client.cancel_scheduled_message("orders", number)
        """
        name = target_name(queue)
        await self._calls.make(
            "cancel", name, lambda: self._provider.cancel_scheduled(name, numbers)
        )

    def _made_ready(self, messages: Iterable[Message]) -> list[Message]:
        """Returns the messages as sent: compressed or encrypted as configured, with ids."""
        if self._wrapping is not PLAIN:
            messages = map(self._wrapping.wrap, messages)
        ready = list(messages)
        if len(ready) == 1:
            return ready if ready[0].message_id is not None else [_with_id(ready[0], MessageId())]
        without = [at for at, each in enumerate(ready) if each.message_id is None]
        for at, id in zip(without, new_message_ids(len(without)), strict=True):
            ready[at] = _with_id(ready[at], id)
        return ready

    def _check_batch(self, messages: Sequence[Message]) -> None:
        if len(messages) > self.capabilities.batch_max:
            raise BatchTooLarge(len(messages), self.capabilities.batch_max)

    # Receiving.

    async def receive_message(
        self, queue: str, timeout: float | None = None, *, dead_letter: bool = False
    ) -> ReceivedMessage | None:
        """Receives the next message; returns None if none arrives within `timeout` seconds.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue. Without
        `timeout`, the configured `default_timeout` applies. The message is locked until it is
        settled or its lock expires. Raises QueueError.

        Example:
            message = await client.receive_message("orders", timeout=5)
            if message is not None:
                await client.complete_message(message)
        """
        received = await self.receive_messages(queue, 1, timeout, dead_letter=dead_letter)
        return received[0] if received else None

    async def receive_messages(
        self,
        queue: str,
        max_messages: int,
        timeout: float | None = None,
        *,
        dead_letter: bool = False,
    ) -> list[ReceivedMessage]:
        """Receives up to `max_messages` messages. Raises QueueError.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue. Returns the
        messages that are available, at most as many as the provider's `receive_max`. If there are
        none, waits up to `timeout` seconds for the first to arrive, and returns an empty list if
        none does. Without `timeout`, the configured `default_timeout` applies.

        Example:
            for message in await client.receive_messages("orders", 10, timeout=5):
                await client.complete_message(message)
        """
        return await self._fetch(Source(QueueName(queue), dead_letter), max_messages, timeout)

    async def _fetch(
        self, source: Source, max_messages: int, timeout: float | None, *, patient: bool = False
    ) -> list[ReceivedMessage]:
        most = self._most(max_messages)
        seconds = self._calls.config.default_timeout if timeout is None else timeout
        end = time.monotonic() + seconds

        def attempt() -> Awaitable[list[ReceivedMessage]]:
            return self._provider.receive(source, most, max(0.0, end - time.monotonic()))

        limit = seconds + self._calls.config.operation_timeout
        asking = self._calls.make("receive", source.queue, attempt, limit, patient=patient)
        return await self._received(source.queue, asking)

    def _most(self, messages: int) -> int:
        if messages < 1:
            raise ValidationError("number of messages", "must be 1 or more")
        return min(messages, self.capabilities.receive_max)

    async def _received(
        self,
        queue: str,
        asking: Awaitable[list[ReceivedMessage]],
        abandon: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
    ) -> list[ReceivedMessage]:
        begun = time.time_ns()
        try:
            received = await asking
        except QueueError as error:
            if self._telemetry is not None:
                self._telemetry.received(queue, (), begun, error)
            raise
        return await self._arrived(queue, received, begun, abandon)

    async def _arrived(
        self,
        queue: str,
        received: list[ReceivedMessage],
        begun: int,
        abandon: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
    ) -> list[ReceivedMessage]:
        if self._telemetry is not None:
            self._telemetry.received(queue, received, begun)
        good = await self._unwrapped(received, abandon)
        self.figures.count("received", len(good))
        return good

    def receiver(
        self, queue: str, *, prefetch: int | None = None, dead_letter: bool = False
    ) -> "Receiver":
        """Returns a receiver, which iterates over messages as they arrive.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue. `prefetch` is
        the number of messages to fetch ahead; without it, the provider's setting applies.

        Example:
            async with client.receiver("orders") as receiver:
                async for message in receiver:
                    await client.complete_message(message)
        """
        return Receiver(self, Source(QueueName(queue), dead_letter), prefetch or 0)

    async def receive_deferred_messages(
        self, queue: str, sequence_numbers: Sequence[int], *, dead_letter: bool = False
    ) -> list[ReceivedMessage]:
        """Receives deferred messages: all of them, or raises MessageNotFound.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue.
        `sequence_numbers` are those of the messages.

        Example:
            [message] = await client.receive_deferred_messages("orders", [number])
        """
        source = Source(QueueName(queue), dead_letter)
        asking = self._calls.make(
            "receive", queue, lambda: self._provider.receive_deferred(source, sequence_numbers)
        )
        return await self._received(queue, asking)

    async def peek_messages(
        self, queue: str, max_messages: int = 1, *, first: int = 0, dead_letter: bool = False
    ) -> list[ReceivedMessage]:
        """Returns up to `max_messages` messages without locking or removing them.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue. Starts at the
        sequence number `first`. A peeked message cannot be settled.

        Example:
            for message in await client.peek_messages("orders", 10):
                print(message.body)
        """
        source, most = Source(QueueName(queue), dead_letter), self._most(max_messages)
        received = await self._calls.make(
            "peek", queue, lambda: self._provider.peek(source, most, first)
        )
        return await self._unwrapped(received)

    async def _unwrapped(
        self,
        received: list[ReceivedMessage],
        abandon: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
    ) -> list[ReceivedMessage]:
        """Those that can be read. The others are abandoned; if there are no more, it is raised."""
        wrapping = self._wrapping
        if not wrapping.concerns(received):
            return received
        good: list[ReceivedMessage] = []
        failed: QueueError | None = None
        for each in received:
            try:
                good.append(wrapping.unwrap(each))
            except QueueError as error:
                failed = failed or error
                self.figures.note("unwrap", type(error).__name__, 0.0)
                _log.warning(
                    "A message cannot be read and is abandoned: %s", error,
                    extra={"operation": "unwrap", "message_id": each.message_id},
                )  # fmt: skip
                if each.receipt_handle.handle:
                    with suppress(QueueError):  # its lock ends by itself
                        await (abandon or self.abandon_message)(each)
        if failed is not None and not good:
            raise failed
        return good

    # Settling.

    async def complete_message(self, receipt: Receipt) -> None:
        """Completes a message: removes it from its queue. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await client.complete_message(message)
        """
        await self._settle((receipt,), COMPLETE)

    async def complete_messages(self, receipts: Iterable[Receipt]) -> None:
        """Completes several messages at once.

        `receipts` are the messages, or their receipt handles. Raises MessageNotFound for the first
        that is not locked any more; the others are completed.

        Example:
            await client.complete_messages(messages)
        """
        await self._settle(tuple(receipts), COMPLETE)

    async def abandon_message(self, receipt: Receipt) -> None:
        """Abandons a message: returns it to its queue, to be delivered again.

        The delivery counts as an attempt. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await client.abandon_message(message)
        """
        await self._settle((receipt,), ABANDON)

    async def release_message(self, receipt: Receipt) -> None:
        """Releases a message: returns it to its queue as if it had never been delivered.

        `receipt` is the message, or its receipt handle. A provider that cannot do so abandons the
        message. Raises MessageNotFound; Unsupported if the message came over a connection to
        Posthouse that was lost.

        Example:
            await client.release_message(message)
        """
        await self._settle((receipt,), RELEASE)

    async def defer_message(self, receipt: Receipt) -> None:
        """Defers a message: it stays in the queue until it is received by its sequence number.

        See `QueueClient.receive_deferred_messages`. Raises MessageNotFound, or Unsupported.

        `receipt` is the message, or its receipt handle.

        Example:
            await client.defer_message(message)
        """
        await self._settle((receipt,), Settlement("defer"))

    async def dead_letter_message(
        self, receipt: Receipt, reason: str, description: str | None = None
    ) -> None:
        """Moves a message to the dead-letter queue.

        `reason` and `description` are told with it. Raises MessageNotFound, or Unsupported if the
        setting `enable_dead_letter` is off.

        `receipt` is the message, or its receipt handle.

        Example:
            await client.dead_letter_message(message, "unknown customer")
        """
        await self._settle((receipt,), self._dead_letter(reason, description))

    def _dead_letter(self, reason: str, description: str | None) -> Settlement:
        if not self._calls.config.enable_dead_letter:
            raise Unsupported("This client", "dead-letter: enable_dead_letter is off")
        return Settlement("dead-letter", reason, description)

    async def renew_message_lock(self, receipt: Receipt) -> datetime:
        """Renews the lock of a message. Returns when it expires. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            until = await client.renew_message_lock(message)
        """
        [handle] = _handles((receipt,), self._provider.type)
        return await self._calls.make("renew", "", lambda: self._provider.renew(handle))

    async def _settle(self, receipts: Sequence[Receipt], how: Settlement) -> None:
        handles = _handles(receipts, self._provider.type)
        await self._calls.make(how.ending, "", lambda: self._provider.settle(handles, how))
        self.figures.count(_FATES[how.ending], len(handles))

    async def resubmit_messages(
        self, queue: str, receipts: Iterable[Receipt], *, target: str | None = None
    ) -> None:
        """Sends dead letters of `queue` again: to `target`, or without it to `queue` itself.

        `receipts` are the messages, or their receipt handles; receive them first, with
        `dead_letter=True`.

        Example:
            dead = await client.receive_messages("orders", 10, dead_letter=True)
            await client.resubmit_messages("orders", dead)
        """
        name, to = QueueName(queue), None if target is None else target_name(target)
        handles = _handles(receipts, self._provider.type)
        await self._calls.make("resubmit", name, lambda: self._provider.resubmit(name, handles, to))

    # Sessions.

    async def accept_session(
        self, queue: str, session_id: str | None = None, timeout: float | None = None
    ) -> "SessionClient | None":
        """Locks a session and returns it; None if there is none within `timeout` seconds.

        `queue` is a queue or subscription. Without `session_id`, takes the next session that has
        messages. Without `timeout`, the configured `default_timeout` applies. Raises SessionLocked
        if another client holds the session of that id.

        Example:
            session = await client.accept_session("orders", "customer-7")
            if session is not None:
                message = await session.receive_message()
        """
        return await self._accept(queue, session_id, timeout)

    async def _accept(
        self,
        queue: str,
        session_id: str | None,
        timeout: float | None,
        *,
        patient: bool = False,
    ) -> "SessionClient | None":
        name = QueueName(queue)
        session = None if session_id is None else SessionId(session_id)
        if not self.supports_sessions():
            raise Unsupported(self._provider.type.value, "hold sessions")
        seconds = self._calls.config.default_timeout if timeout is None else timeout
        end = time.monotonic() + seconds

        def attempt() -> Awaitable[HeldSession | None]:
            left = max(0.0, end - time.monotonic())
            return self._provider.accept_session(name, session, left)

        limit = seconds + self._calls.config.operation_timeout
        held = await self._calls.make("accept-session", name, attempt, limit, patient=patient)
        return None if held is None else SessionClient(self, held, name)

    # Time, in tests.

    async def advance(self, by: timedelta | float) -> None:
        """Moves the clock of a broker in memory.

        `by` is a duration, or a number of seconds. Returns when all that falls due meanwhile is
        done: locks run out, messages expire, scheduled ones are there. Raises ConfigurationError
        without `virtual_clock`, Unsupported elsewhere.

        Example:
            await client.advance(timedelta(minutes=10))
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValidationError("by", "must not be negative: time does not go back")
        await self._own_clock().advance(seconds)

    def now(self) -> datetime:
        """Returns the time of the broker in memory. Raises Unsupported elsewhere.

        Example:
            print(client.now())
        """
        return self._own_clock().now()

    def _own_clock(self) -> OwnClock:
        if not isinstance(self._provider, OwnClock):
            raise Unsupported(self._provider.type.value, "tell or move its time")
        return self._provider

    # Transactions.

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[Transaction]":
        """Begins a transaction: all its operations are committed when the block ends.

        If the block raises, none is. Raises Unsupported if the provider has no transactions.

        Example:
            async with client.transaction() as transaction:
                await transaction.complete_message(message)
                await transaction.send_message("bills", Message("a bill"))
        """
        if not self.capabilities.transactions:
            raise Unsupported(self._provider.type.value, "do several things in one transaction")
        async with self._provider.transaction() as begun:
            transaction = Transaction(self, begun)
            try:
                yield transaction
            except BaseException:
                await begun.roll_back()
                raise
            await self._calls.make("commit", "", begun.commit)
            for fate, messages in transaction._done.items():
                self.figures.count(fate, messages)


class Receiver:
    """Iterates over the messages of a queue as they arrive; `QueueClient.receiver` makes one.

    After the loss of a connection it goes on with the next one. `client` is the client, `source`
    the queue, `prefetch` the number of messages to fetch ahead.

    Example:
        async with client.receiver("orders") as receiver:
            async for message in receiver:
                await client.complete_message(message)
    """

    def __init__(self, client: QueueClient, source: Source, prefetch: int) -> None:
        self._client = client
        self._source = source
        self._prefetch = prefetch
        self._deliveries: Deliveries | None = None
        self._ahead: list[ReceivedMessage] = []  # in reverse
        self._closed = False

    async def __aenter__(self) -> "Receiver":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> "Receiver":
        return self

    async def __anext__(self) -> ReceivedMessage:
        if not self._ahead:
            self._ahead = (await self.next_batch(self._client.capabilities.receive_max))[::-1]
            if not self._ahead:
                raise StopAsyncIteration
        return self._ahead.pop()

    async def next_batch(self, most: int = 100) -> list[ReceivedMessage]:
        """Returns up to `most` messages: those available, else the first to arrive.

        The list is empty only once the receiver is closed.

        Example:
            messages = await receiver.next_batch(10)
        """
        if self._ahead:
            return [self._ahead.pop() for _ in range(min(most, len(self._ahead)))]
        if self._closed:
            return []
        if self._deliveries is None:
            self._deliveries = self._client._provider.deliveries(self._source, self._prefetch)
        received = await self._deliveries.next(most)
        return await self._client._arrived(self._source.queue, received, time.time_ns())

    async def close(self) -> None:
        """Closes the receiver, and releases the messages that it has not handed out.

        Example:
            await receiver.close()
        """
        self._closed = True
        ahead, self._ahead = self._ahead, []
        if ahead:
            await self._client._settle(ahead, RELEASE)
        if self._deliveries is not None:
            await self._deliveries.close()


class SessionClient:
    """A session that this client alone holds, until it is closed or its lock expires.

    `QueueClient.accept_session` makes one: `client` is the client, `held` the session, `queue` its
    queue.

    Example:
        session = await client.accept_session("orders")
        if session is not None:
            async with session:
                print(session.session_id, await session.receive_message())
    """

    def __init__(self, client: QueueClient, held: HeldSession, queue: QueueName) -> None:
        self._client = client
        self._held = held
        self._queue = queue

    async def __aenter__(self) -> "SessionClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_session()

    @property
    def session_id(self) -> SessionId:
        """The id of the session."""
        return self._held.session_id

    @property
    def session_expires_at(self) -> datetime:
        """The time when the lock of the session expires."""
        return self._held.expires_at

    async def receive_message(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Receives the next message of the session; None if none arrives within `timeout` seconds.

        Raises SessionLockLost.

        Example:
            message = await session.receive_message(timeout=5)
        """
        received = await self.receive_messages(1, timeout)
        return received[0] if received else None

    async def receive_messages(
        self, max_messages: int, timeout: float | None = None
    ) -> list[ReceivedMessage]:
        """Receives up to `max_messages` messages of the session, in order.

        If there are none, waits up to `timeout` seconds for the first. Raises SessionLockLost.

        Example:
            messages = await session.receive_messages(10, timeout=5)
        """
        calls = self._client._calls
        seconds = calls.config.default_timeout if timeout is None else timeout
        most = self._client._most(max_messages)
        end = time.monotonic() + seconds

        def attempt() -> Awaitable[list[ReceivedMessage]]:
            return self._held.receive(most, max(0.0, end - time.monotonic()))

        limit = seconds + calls.config.operation_timeout
        asking = calls.make("receive", self.session_id, attempt, limit)
        return await self._client._received(self._queue, asking, self.abandon_message)

    async def complete_message(self, receipt: Receipt) -> None:
        """Completes a message: removes it from its queue. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await session.complete_message(message)
        """
        await self._settle((receipt,), COMPLETE)

    async def complete_messages(self, receipts: Iterable[Receipt]) -> None:
        """Completes several messages at once.

        `receipts` are the messages, or their receipt handles. Raises MessageNotFound for the first
        that is not locked any more; the others are completed.

        Example:
            await session.complete_messages(messages)
        """
        await self._settle(tuple(receipts), COMPLETE)

    async def abandon_message(self, receipt: Receipt) -> None:
        """Abandons a message: returns it to its queue, to be delivered again.

        The delivery counts as an attempt. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await session.abandon_message(message)
        """
        await self._settle((receipt,), ABANDON)

    async def defer_message(self, receipt: Receipt) -> None:
        """Defers a message: it stays in the queue until it is received by its sequence number.

        See `QueueClient.receive_deferred_messages`. Raises MessageNotFound, or Unsupported.

        `receipt` is the message, or its receipt handle.

        Example:
            await session.defer_message(message)
        """
        await self._settle((receipt,), Settlement("defer"))

    async def dead_letter_message(
        self, receipt: Receipt, reason: str, description: str | None = None
    ) -> None:
        """Moves a message to the dead-letter queue.

        `reason` and `description` are told with it. Raises MessageNotFound, or Unsupported if the
        setting `enable_dead_letter` is off.

        `receipt` is the message, or its receipt handle.

        Example:
            await session.dead_letter_message(message, "unknown customer")
        """
        await self._settle((receipt,), self._client._dead_letter(reason, description))

    async def renew_session_lock(self) -> datetime:
        """Renews the lock of the session. Returns when it expires. Raises SessionLockLost.

        Example:
            until = await session.renew_session_lock()
        """
        return await self._client._calls.make("renew", self.session_id, self._held.renew)

    async def get_state(self) -> bytes | None:
        """Returns the state of the session; None if it has none. Raises SessionLockLost.

        Example:
            state = await session.get_state()
        """
        return await self._client._calls.make("state", self.session_id, self._held.get_state)

    async def set_state(self, state: bytes | None) -> None:
        """Sets the state of the session; a `state` of None removes it. Raises SessionLockLost.

        Example:
            await session.set_state(b"half")
        """
        await self._client._calls.make(
            "state", self.session_id, lambda: self._held.set_state(state)
        )

    async def close_session(self) -> None:
        """Closes the session, so that another client may accept it. Unsettled messages go back.

        Example:
            await session.close_session()
        """
        await self._held.close()

    async def _settle(self, receipts: Sequence[Receipt], how: Settlement) -> None:
        kind = self._client.provider_type
        handles = _handles(receipts, kind)
        await self._client._calls.make(
            how.ending, self.session_id, lambda: self._held.settle(handles, how)
        )
        self._client.figures.count(_FATES[how.ending], len(handles))


class Transaction:
    """Sends and settlements that are committed together; `QueueClient.transaction` makes one.

    `client` is the client, `begun` the transaction of its provider.

    Example:
        async with client.transaction() as transaction:
            await transaction.send_message("bills", Message("a bill"))
    """

    def __init__(self, client: QueueClient, begun: Transacting) -> None:
        self._client = client
        self._begun = begun
        self._done: dict[Fate, int] = {}  # messages, once it is committed

    async def send_message(self, queue: str, message: Message) -> MessageId:
        """Sends a message when the transaction is committed. Returns its id. Raises QueueError.

        `queue` is a queue or topic, `message` the message.

        Example:
            await transaction.send_message("bills", Message("a bill"))
        """
        return (await self.send_messages(queue, [message]))[0]

    async def send_messages(self, queue: str, messages: Iterable[Message]) -> list[MessageId]:
        """Sends messages when the transaction is committed. Returns their ids. Raises QueueError.

        `queue` is a queue or topic, `messages` are the messages.

        Example:
            await transaction.send_messages("bills", [Message("a bill")])
        """
        name = target_name(queue)
        ready = self._client._made_ready(messages)
        telemetry = self._client._telemetry
        if telemetry is None or not telemetry.is_tracing:
            await self._begun.send(name, ready)
        else:
            with telemetry.sending("send", name, ready) as carrying:
                await self._begun.send(name, carrying)
        self._note("sent", len(ready))
        return [each.message_id for each in ready if each.message_id is not None]

    async def complete_message(self, receipt: Receipt) -> None:
        """Completes a message: removes it from its queue. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await transaction.complete_message(message)
        """
        await self._settle(receipt, COMPLETE)

    async def abandon_message(self, receipt: Receipt) -> None:
        """Abandons a message: returns it to its queue, to be delivered again.

        The delivery counts as an attempt. Raises MessageNotFound.

        `receipt` is the message, or its receipt handle.

        Example:
            await transaction.abandon_message(message)
        """
        await self._settle(receipt, ABANDON)

    async def defer_message(self, receipt: Receipt) -> None:
        """Defers a message: it stays in the queue until it is received by its sequence number.

        See `QueueClient.receive_deferred_messages`. Raises MessageNotFound, or Unsupported.

        `receipt` is the message, or its receipt handle.

        Example:
            await transaction.defer_message(message)
        """
        await self._settle(receipt, Settlement("defer"))

    async def dead_letter_message(
        self, receipt: Receipt, reason: str, description: str | None = None
    ) -> None:
        """Moves a message to the dead-letter queue.

        `reason` and `description` are told with it. Raises MessageNotFound, or Unsupported if the
        setting `enable_dead_letter` is off.

        `receipt` is the message, or its receipt handle.

        Example:
            await transaction.dead_letter_message(message, "unknown customer")
        """
        await self._settle(receipt, self._client._dead_letter(reason, description))

    async def _settle(self, receipt: Receipt, how: Settlement) -> None:
        await self._begun.settle(_handles((receipt,), self._client.provider_type), how)
        self._note(_FATES[how.ending], 1)

    def _note(self, fate: Fate, messages: int) -> None:
        self._done[fate] = self._done.get(fate, 0) + messages


def _with_id(message: Message, id: MessageId) -> Message:
    return Message(
        message.body, message.attributes, message.session_id, message.correlation_id,
        message.time_to_live, id, message.content_type, message.subject, message.to,
        message.reply_to, message.priority, message.partition_key, message.delay,
    )  # fmt: skip


def _handles(receipts: Iterable[Receipt], kind: ProviderType) -> list[ReceiptHandle]:
    """Raises ValidationError where one is another provider's."""
    handles = [
        each.receipt_handle if isinstance(each, ReceivedMessage) else each for each in receipts
    ]
    for each in handles:
        if each.provider is not kind:
            raise ValidationError("receipt", f"is of {each.provider.value}, not of {kind.value}")
    return handles
