"""The same client for programs without a loop: each method waits for that of its twin.

Nothing is written twice. `_waits` makes of an async method one that runs it on the loop of a thread
that all clients of the process share, with the same name, parameters and types.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from posthouse.client.admin import Admin
from posthouse.client.client import QueueClient, Receiver, SessionClient, Transaction
from posthouse.client.config import QueueConfig
from posthouse.client.create import create_client
from posthouse.client.figures import Figures
from posthouse.client.loop_thread import SHARED, LoopThread
from posthouse.client.messages import ReceivedMessage
from posthouse.client.names import SessionId
from posthouse.client.provider import Capabilities, ProviderType
from posthouse.client.retry import CircuitBreaker, RetryPolicy

if TYPE_CHECKING:
    from posthouse.client.compression import Compression
    from posthouse.client.encryption import Encryption

P = ParamSpec("P")
T = TypeVar("T")
Twin = TypeVar("Twin")


class _Sync:
    """The base of the sync classes: it holds the async object that does the work."""

    def __init__(self, twin: Any, loop_thread: LoopThread = SHARED) -> None:
        self._twin = twin
        self._loop_thread = loop_thread


def _waits(
    method: Callable[Concatenate[Twin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop_thread: LoopThread = self._loop_thread
        return loop_thread.run(method(self._twin, *args, **kwargs))

    update_wrapper(wait, method)
    if method.__doc__ is not None:  # its example is for this one, too
        wait.__doc__ = method.__doc__.replace("await ", "")
    return wait


class SyncReceiver(_Sync):
    """Iterates over the messages of a queue as they arrive, for programs without an event loop.

    Example:
        with client.receiver("orders") as receiver:
            for message in receiver:
                client.complete_message(message)
    """

    _twin: Receiver

    next_batch = _waits(Receiver.next_batch)
    close = _waits(Receiver.close)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while batch := self.next_batch(1):
            yield from batch

    def __enter__(self) -> "SyncReceiver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncSessionClient(_Sync):
    """`SessionClient` for programs without an event loop: each method blocks until it is done.

    Example:
        session = client.accept_session("orders")
        if session is not None:
            with session:
                print(session.session_id, session.receive_message())
    """

    _twin: SessionClient

    receive_message = _waits(SessionClient.receive_message)
    receive_messages = _waits(SessionClient.receive_messages)
    complete_message = _waits(SessionClient.complete_message)
    complete_messages = _waits(SessionClient.complete_messages)
    abandon_message = _waits(SessionClient.abandon_message)
    defer_message = _waits(SessionClient.defer_message)
    dead_letter_message = _waits(SessionClient.dead_letter_message)
    renew_session_lock = _waits(SessionClient.renew_session_lock)
    get_state = _waits(SessionClient.get_state)
    set_state = _waits(SessionClient.set_state)
    close_session = _waits(SessionClient.close_session)

    @property
    def session_id(self) -> SessionId:
        """The id of the session."""
        return self._twin.session_id

    @property
    def session_expires_at(self) -> datetime:
        """The time when the lock of the session expires."""
        return self._twin.session_expires_at

    def __enter__(self) -> "SyncSessionClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_session()


class SyncTransaction(_Sync):
    """`Transaction` for programs without an event loop: each method blocks until it is done.

    Example:
        with client.transaction() as transaction:
            transaction.send_message("bills", Message("a bill"))
    """

    _twin: Transaction

    send_message = _waits(Transaction.send_message)
    send_messages = _waits(Transaction.send_messages)
    complete_message = _waits(Transaction.complete_message)
    abandon_message = _waits(Transaction.abandon_message)
    defer_message = _waits(Transaction.defer_message)
    dead_letter_message = _waits(Transaction.dead_letter_message)


class SyncAdmin(_Sync):
    """`Admin` for programs without an event loop: each method blocks until it is done.

    Example:
        client.admin.ensure_queue("orders", max_delivery_count=5)
    """

    _twin: Admin

    ensure_queue = _waits(Admin.ensure_queue)
    update_queue = _waits(Admin.update_queue)
    delete_queue = _waits(Admin.delete_queue)
    ensure_topic = _waits(Admin.ensure_topic)
    update_topic = _waits(Admin.update_topic)
    delete_topic = _waits(Admin.delete_topic)
    queues = _waits(Admin.queues)
    topics = _waits(Admin.topics)
    ensure_subscription = _waits(Admin.ensure_subscription)
    update_subscription = _waits(Admin.update_subscription)
    delete_subscription = _waits(Admin.delete_subscription)
    subscriptions = _waits(Admin.subscriptions)
    ensure_rule = _waits(Admin.ensure_rule)
    delete_rule = _waits(Admin.delete_rule)
    rules = _waits(Admin.rules)
    purge = _waits(Admin.purge)
    counts = _waits(Admin.counts)


class SyncQueueClient(_Sync):
    """`QueueClient` for programs without an event loop: each method blocks until it is done.

    Example:
        with create_sync_client("posthouse://web:key@localhost") as client:
            client.send_message("orders", Message("a book"))
    """

    _twin: QueueClient

    send_message = _waits(QueueClient.send_message)
    send_messages = _waits(QueueClient.send_messages)
    schedule_message = _waits(QueueClient.schedule_message)
    schedule_messages = _waits(QueueClient.schedule_messages)
    cancel_scheduled_message = _waits(QueueClient.cancel_scheduled_message)
    receive_message = _waits(QueueClient.receive_message)
    receive_messages = _waits(QueueClient.receive_messages)
    receive_deferred_messages = _waits(QueueClient.receive_deferred_messages)
    peek_messages = _waits(QueueClient.peek_messages)
    complete_message = _waits(QueueClient.complete_message)
    complete_messages = _waits(QueueClient.complete_messages)
    abandon_message = _waits(QueueClient.abandon_message)
    release_message = _waits(QueueClient.release_message)
    defer_message = _waits(QueueClient.defer_message)
    dead_letter_message = _waits(QueueClient.dead_letter_message)
    renew_message_lock = _waits(QueueClient.renew_message_lock)
    resubmit_messages = _waits(QueueClient.resubmit_messages)
    advance = _waits(QueueClient.advance)
    close = _waits(QueueClient.close)
    _accept = _waits(QueueClient.accept_session)

    def now(self) -> datetime:
        """Returns the time of the broker in memory. Raises Unsupported elsewhere.

        Example:
            print(client.now())
        """
        return self._twin.now()

    @property
    def admin(self) -> SyncAdmin:
        """Creates, changes and deletes queues, topics, subscriptions and rules."""
        return SyncAdmin(self._twin.admin, self._loop_thread)

    @property
    def provider_type(self) -> ProviderType:
        """The service that keeps the queues."""
        return self._twin.provider_type

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of the provider."""
        return self._twin.capabilities

    @property
    def figures(self) -> Figures:
        """Counts and durations of the operations of this client."""
        return self._twin.figures

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker, which stops calls once too many have failed."""
        return self._twin.breaker

    def supports_sessions(self) -> bool:
        """Returns whether the provider has sessions, natively or emulated.

        Example:
            if client.supports_sessions():
                session = client.accept_session("orders")
        """
        return self._twin.supports_sessions()

    def supports_batching(self) -> bool:
        """Returns whether several messages can be sent in one call.

        Example:
            assert client.supports_batching()
        """
        return self._twin.supports_batching()

    def max_batch_size(self) -> int:
        """Returns the largest number of messages in one send.

        Example:
            batch = messages[: client.max_batch_size()]
        """
        return self._twin.max_batch_size()

    def max_message_size(self) -> int:
        """Returns the size of the largest message, in bytes.

        Example:
            print(client.max_message_size())
        """
        return self._twin.max_message_size()

    def accept_session(
        self, queue: str, session_id: str | None = None, timeout: float | None = None
    ) -> SyncSessionClient | None:
        """Locks a session and returns it; None if there is none within `timeout` seconds.

        `queue` is a queue or subscription. Without `session_id`, takes the next session that has
        messages. Without `timeout`, the configured `default_timeout` applies. Raises SessionLocked
        if another client holds the session of that id.

        Example:
            session = client.accept_session("orders", "customer-7")
            if session is not None:
                message = session.receive_message()
        """
        held = self._accept(queue, session_id, timeout)
        return None if held is None else SyncSessionClient(held, self._loop_thread)

    def receiver(
        self, queue: str, *, prefetch: int | None = None, dead_letter: bool = False
    ) -> SyncReceiver:
        """Returns a receiver, which iterates over messages as they arrive.

        `queue` is a queue or subscription; with `dead_letter`, its dead-letter queue. `prefetch` is
        the number of messages to fetch ahead; without it, the provider's setting applies.

        Example:
            with client.receiver("orders") as receiver:
                for message in receiver:
                    client.complete_message(message)
        """
        twin = self._twin.receiver(queue, prefetch=prefetch, dead_letter=dead_letter)
        return SyncReceiver(twin, self._loop_thread)

    @contextmanager
    def transaction(self) -> Iterator[SyncTransaction]:
        """Begins a transaction: all its operations are committed when the block ends.

        If the block raises, none is. Raises Unsupported if the provider has no transactions.

        Example:
            with client.transaction() as transaction:
                transaction.complete_message(message)
                transaction.send_message("bills", Message("a bill"))
        """
        twin = self._twin.transaction()
        begun = self._loop_thread.run(twin.__aenter__())
        try:
            yield SyncTransaction(begun, self._loop_thread)
        except BaseException as error:
            self._loop_thread.run(twin.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop_thread.run(twin.__aexit__(None, None, None))

    def __enter__(self) -> "SyncQueueClient":
        self._loop_thread.run(self._twin.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def create_sync_client(
    config: QueueConfig | str | None = None,
    *,
    retry: RetryPolicy | None = None,
    compression: "Compression | None" = None,
    encryption: "Encryption | None" = None,
    environment: Mapping[str, str] | None = None,
) -> SyncQueueClient:
    """Creates a client for programs without an event loop. Threads may share it.

    `config` is a configuration or a URL; without it, `POSTHOUSE_CLIENT_URL` of the `environment`
    (`os.environ`) is read. `retry` is the retry policy; `compression` and `encryption` are done to
    bodies. Raises ConfigurationError.

    Example:
        with create_sync_client("posthouse://web:key@localhost") as client:
            client.send_message("orders", Message("a book"))
    """

    async def make() -> QueueClient:
        return create_client(
            config, retry=retry, compression=compression, encryption=encryption,
            environment=environment,
        )  # fmt: skip

    return SyncQueueClient(SHARED.run(make()))
