"""The interface of the client to a provider of queues, with four implementations.

A provider does what it is asked once: trying again, time limits, figures and traces are the
client's. It raises nothing but `QueueError`s, and where it cannot do a thing `Unsupported`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from posthouse.client.admin import AdminProvider
    from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage
    from posthouse.client.names import MessageId, QueueName, SessionId


class SessionSupport(Enum):
    NATIVE = "native"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"


class ProviderType(Enum):
    """The service that keeps the queues."""

    POSTHOUSE = "posthouse"
    AZURE_SERVICE_BUS = "azure-service-bus"
    AWS_SQS = "aws-sqs"
    IN_MEMORY = "in-memory"

    @property
    def capabilities(self) -> "Capabilities":
        return _CAPABILITIES[self]

    def supports_sessions(self) -> SessionSupport:
        return self.capabilities.sessions

    def supports_batching(self) -> bool:
        return self.capabilities.batch_max > 1

    def max_batch_size(self) -> int:
        return self.capabilities.batch_max

    def max_message_size(self) -> int:
        return self.capabilities.message_bytes_max


class Capabilities(NamedTuple):
    """The features and limits of a provider."""

    sessions: SessionSupport
    batch_max: int  # messages in one send
    receive_max: int  # messages in one receive
    message_bytes_max: int
    session_state: bool
    scheduling: bool
    deferring: bool
    peeking: bool
    transactions: bool


_CAPABILITIES = {
    ProviderType.POSTHOUSE: Capabilities(
        SessionSupport.NATIVE, 10_000, 10_000, 1 << 20, True, True, True, True, True
    ),
    ProviderType.AZURE_SERVICE_BUS: Capabilities(
        SessionSupport.NATIVE, 100, 100, 1 << 20, True, True, True, True, False
    ),
    ProviderType.AWS_SQS: Capabilities(
        SessionSupport.EMULATED, 10, 10, 256 << 10, False, False, False, False, False
    ),
    ProviderType.IN_MEMORY: Capabilities(
        SessionSupport.NATIVE, 10_000, 10_000, 10 << 20, True, True, True, True, True
    ),
}

Ending = Literal["complete", "abandon", "release", "defer", "dead-letter"]


class Settlement(NamedTuple):
    """The way in which a message is settled."""

    ending: Ending
    reason: str | None = None
    description: str | None = None
    attributes: Mapping[str, str] = {}  # that it has from now on, where the provider can


COMPLETE, ABANDON, RELEASE = Settlement("complete"), Settlement("abandon"), Settlement("release")


class Source(NamedTuple):
    """A queue, or its dead-letter queue, from which messages are received."""

    queue: "QueueName"
    dead_letter: bool = False  # its dead-letter queue


class HeldSession(Protocol):
    """One session, held by one client."""

    @property
    def session_id(self) -> "SessionId": ...

    @property
    def expires_at(self) -> datetime: ...

    async def receive(self, most: int, timeout: float) -> "list[ReceivedMessage]": ...

    async def settle(self, receipts: "Sequence[ReceiptHandle]", how: Settlement) -> None: ...

    async def renew(self) -> datetime: ...

    async def get_state(self) -> bytes | None: ...

    async def set_state(self, state: bytes | None) -> None: ...

    async def close(self) -> None: ...


class Deliveries(Protocol):
    """Messages as they come, fetched ahead."""

    async def next(self, most: int) -> "list[ReceivedMessage]":
        """Up to so many that are there, or the first that come. Empty only once it is closed."""
        ...

    async def close(self) -> None:
        """Releases the messages that were fetched and not handed out."""
        ...


class Transacting(Protocol):
    """A transaction: all its operations are committed, or none is."""

    async def send(self, queue: "QueueName", messages: "Sequence[Message]") -> None: ...

    async def settle(self, receipts: "Sequence[ReceiptHandle]", how: Settlement) -> None: ...

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...


@runtime_checkable
class OwnClock(Protocol):
    """A provider whose time can be moved: the broker in memory."""

    async def advance(self, seconds: float) -> None: ...

    def now(self) -> datetime: ...


class Provider(Protocol):
    """Queues of one kind. Everything may be called by many at a time, and may be cancelled."""

    @property
    def type(self) -> ProviderType: ...

    async def open(self) -> None:
        """Makes ready, as far as that can be done ahead."""
        ...

    async def close(self) -> None: ...

    async def send(self, queue: "QueueName", messages: "Sequence[Message]") -> "list[MessageId]":
        """Sends at most `batch_max` messages with ids. Raises PartialFailure if some were sent."""
        ...

    async def receive(self, source: Source, most: int, timeout: float) -> "list[ReceivedMessage]":
        """Returns up to `most` available messages, else the first that arrive within the time."""
        ...

    def deliveries(self, source: Source, prefetch: int) -> Deliveries: ...

    async def settle(self, receipts: "Sequence[ReceiptHandle]", how: Settlement) -> None:
        """Raises MessageNotFound for the first that is not there any more; the others are done."""
        ...

    async def renew(self, receipt: "ReceiptHandle") -> datetime:
        """Renews a lock, and returns the time when it expires."""
        ...

    async def accept_session(
        self, queue: "QueueName", session_id: "SessionId | None", timeout: float
    ) -> HeldSession | None:
        """Locks the session of that id, or the next that has messages; None if the time is up.

        Raises SessionLocked if another client holds the session of that id.
        """
        ...

    async def schedule(
        self, queue: "QueueName", messages: "Sequence[Message]", at: datetime
    ) -> list[int]:
        """Returns numbers by which they can be cancelled."""
        ...

    async def cancel_scheduled(self, queue: "QueueName", numbers: Sequence[int]) -> None: ...

    async def receive_deferred(
        self, source: Source, numbers: Sequence[int]
    ) -> "list[ReceivedMessage]": ...

    async def peek(self, source: Source, most: int, first: int) -> "list[ReceivedMessage]":
        """Returns messages in any state, from the sequence number `first` on, without receipts."""
        ...

    async def resubmit(
        self, queue: "QueueName", receipts: "Sequence[ReceiptHandle]", target: "QueueName | None"
    ) -> None:
        """Dead letters that were received are sent again, each as itself, and completed."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transacting]: ...

    def admin(self) -> "AdminProvider": ...


Messages = AsyncIterator["ReceivedMessage"]
