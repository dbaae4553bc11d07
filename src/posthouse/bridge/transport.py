"""Transports of a bridge's events: NATS JetStream, or a queue that a `QueueClient` reaches.

Outbox, relay, consumers, inbox and dead letters know these few methods and no more, so the same
service runs over NATS, over a Posthouse broker, and in a unit test. One conformance suite holds
every transport to them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from posthouse.bridge.errors import PublishFailed


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An encoded event, as it is published."""

    subject: str
    body: bytes
    id: str  # what is published twice under one id within the transport's window is stored once
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # events of one key belong in order; "": of none
    delay: float = 0.0  # seconds until it may be delivered


@dataclass(frozen=True, slots=True)
class Stored:
    """The transport has stored an event."""

    sequence: int  # its place in the stream; 0 where the transport has none
    duplicate: bool  # an event with this id was there before


Failure = PublishFailed  # told for one event of many; `transient`: all may be tried again


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a consumer's events."""

    subject: str
    consumer: str  # the durable name; consumers of one name share the events
    push: bool = False
    ack_wait: float = 30.0  # seconds after which an event that nobody settled is delivered again
    max_pending: int = 0  # unsettled events of all who share the consumer; 0: as is recommended


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of an event. `native` is the transport's own handle to settle it by."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    id: str  # the message id, or "" where the sender gave none
    number: int  # 1 for the first delivery
    stream: str
    sequence: int
    consumer: str
    key: str
    native: object = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """The event is done. Settling returns when the transport has confirmed it."""


@dataclass(frozen=True, slots=True)
class Nak:
    """The event is delivered again, not before `delay` seconds have passed."""

    delay: float


@dataclass(frozen=True, slots=True)
class Bury:
    """The event goes to the dead letters, then it is done; if that fails it is delivered again.

    `context` is told with it: event id, error, sequences. It holds no secrets.
    """

    reason: str
    context: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Extend:
    """The event is still being handled: the time until its next delivery begins anew."""


Settlement = Ack | Nak | Bury | Extend


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event among the dead letters. `place` names it to the transport that listed it."""

    place: str
    body: bytes
    headers: Mapping[str, str]
    reason: str
    context: Mapping[str, str | int]
    subject: str  # the subject it came from
    deliveries: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The stream and consumers that a bridge needs, for one service or both sides of a pair."""

    stream: str
    subjects: Sequence[str]
    sources: Sequence[Source]
    dead_letters: str  # the subject of dead letters
    replicas: int = 0  # 0: as many as the transport recommends
    duplicate_window: float = 600.0
    max_deliver: int = -1
    # Each event for one consumer ("workqueue"), or for each that there is ("interest").
    retention: Literal["workqueue", "interest"] = "workqueue"


Act = Literal["create", "update", "leave", "conflict"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a plan creates, updates, leaves, or cannot have."""

    act: Act
    kind: Literal["stream", "consumer", "queue"]
    name: str
    reason: str  # why, in one sentence; for a conflict also what to do
    detail: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from what is there to what is wanted."""

    steps: Sequence[Step]

    @property
    def changes(self) -> list[Step]:
        """The steps that change something."""
        return [step for step in self.steps if step.act in ("create", "update")]

    @property
    def conflicts(self) -> list[Step]:
        """The steps that cannot be taken."""
        return [step for step in self.steps if step.act == "conflict"]


State = Literal["disconnected", "connecting", "connected", "reconnecting", "failed"]


@dataclass(frozen=True, slots=True)
class TransportHealth:
    """How a transport is. `facts` are for people and programs: round trip, stream, consumer."""

    connected: bool
    state: State
    server: str
    since: float  # seconds since 1970 at which the state began
    problem: str  # "": there is none
    facts: Mapping[str, object]


class Transport(Protocol):
    """A carrier of events. Methods raise BridgeError; a lost connection heals by itself."""

    name: str
    wakes: bool  # whether `wake` reaches other processes

    @property
    def body_bytes_max(self) -> int: ...  # of one event with its headers; known once it is open

    async def open(self) -> None: ...  # raises BridgeError where nobody can be reached
    async def close(self) -> None: ...

    # Answers in the events' order. Those without a failure are stored for good.
    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]: ...

    # Goes on over every outage until it is closed; at most `window` deliveries are unsettled.
    def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]: ...
    async def settle(self, delivery: Delivery, how: Settlement) -> None: ...

    async def plan(self, wanted: Topology) -> Plan: ...
    async def apply(self, plan: Plan, *, recreate: bool = False) -> None: ...

    # A hint to relays and consumers elsewhere; it may be lost.
    async def wake(self, channel: str) -> None: ...
    def woken(self, channel: str) -> AsyncIterator[None]: ...

    def dead_letters(self, wanted: Topology) -> AsyncIterator[DeadLetter]: ...  # looks; takes none
    async def replay(self, letter: DeadLetter, id: str) -> None: ...  # then it is dead no longer
    async def drop(self, letter: DeadLetter) -> None: ...

    async def health(self, wanted: Topology) -> TransportHealth: ...
