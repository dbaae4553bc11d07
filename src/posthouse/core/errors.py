"""Refusals: the command was understood and turned down.

The family is closed. Each refusal carries the facts a dialect needs to say it in its own words; its
text says what happened and what to do. A refused command has changed nothing.

Programs never look into the text. They go by `code`, a name that stays, and by the fields, which
`facts` tells; both cross every wire that has a place for them.
"""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from posthouse.core.message import Attempt

ABOVE_NAMESPACES = frozenset(("namespace", "principal", "reader"))  # kinds of things in none
_SECRET = {"secret": True}  # a token: who holds it may settle


@dataclass(eq=False)
class Refused(Exception):
    """The command was turned down and nothing has changed."""

    code: ClassVar[str]

    @property
    def detail(self) -> str:
        """The text for clients that know of namespaces."""
        return str(self)

    @property
    def facts(self) -> dict[str, str | int]:
        """The fields by their names, without tokens and without those that say nothing."""
        told = {e.name: getattr(self, e.name) for e in fields(self) if not e.metadata}
        return {name: value for name, value in told.items() if value not in ("", None)}


@dataclass(eq=False)
class NotFound(Refused):
    code = "not-found"
    kind: str
    name: str
    namespace: str = ""  # where it was looked for; the core does not know it, the engine adds it

    def __str__(self) -> str:
        return self._say("")

    @property
    def detail(self) -> str:
        return self._say(f" in the namespace {self.namespace!r}" if self.namespace else "")

    def _say(self, where: str) -> str:
        return f"There is no {self.kind} {self.name!r}{where}; check the name, or create it first."


@dataclass(eq=False)
class AlreadyExists(Refused):
    code = "already-exists"
    kind: str
    name: str

    def __str__(self) -> str:
        return f"A {self.kind} {self.name!r} exists already; names that differ only in case clash."


@dataclass(eq=False)
class MessageNotFound(Refused):
    """No message with this sequence number is in the state the command needs."""

    code = "message-not-found"
    queue: str
    sequence: int
    state: str

    def __str__(self) -> str:
        return f"Queue {self.queue!r} has no {self.state} message with sequence {self.sequence}."


@dataclass(eq=False)
class LockLost(Refused):
    """The lock has expired, was settled before, or never was. `lock` is as it was named."""

    code = "lock-lost"
    queue: str | None
    lock: int | str | Attempt = field(metadata=_SECRET)

    def __str__(self) -> str:
        return "The lock has expired or was settled already; receive the message again."


@dataclass(eq=False)
class SessionLocked(Refused):
    code = "session-locked"
    queue: str
    session: str

    def __str__(self) -> str:
        return f"Session {self.session!r} of {self.queue!r} is held by another receiver; try later."


@dataclass(eq=False)
class SessionLockLost(Refused):
    code = "session-lock-lost"
    queue: str
    session: int = field(metadata=_SECRET)

    def __str__(self) -> str:
        return f"The session lock on {self.queue!r} has expired or was released; accept it again."


@dataclass(eq=False)
class QuotaExceeded(Refused):
    """`limit` names the queue property that is full, or what there is too much of.

    `queue` is then what has too much of it: a queue, or "the broker", "the namespace", "the
    transaction". `holder`: only that principal's share of the limit is used up.
    """

    code = "quota-exceeded"
    queue: str
    limit: str
    maximum: int
    current: int
    holder: str = ""

    def __str__(self) -> str:
        if self.holder:
            of = f" of {self.queue!r}" if self.queue else ""
            return (
                f"{self.holder!r} has used up its share of {self.limit}{of}: {self.current} of"
                f" {self.maximum}; end or delete some, or raise principal_share."
            )
        if not self.maximum:  # not the queue's own limit
            return f"There is no {self.limit} left for {self.queue!r}; free some, and send again."
        if self.limit == "max_locked":
            return (
                f"In queue {self.queue!r}, {self.current} messages are locked, and max_locked is"
                f" {self.maximum}; settle some, or raise the limit."
            )
        if self.limit not in ("max_messages", "max_bytes"):
            of = self.queue if self.queue.startswith("the ") else repr(self.queue)
            return (
                f"This would be too much for {of}: {self.limit} is {self.maximum} at most, and"
                f" {self.current} now; delete or end some that are not needed, and ask again."
            )
        return (
            f"Queue {self.queue!r} is full: {self.limit} is {self.maximum}, and {self.current} are"
            " used; receive messages or raise the limit."
        )


@dataclass(eq=False)
class MessageTooLarge(Refused):
    code = "message-too-large"
    queue: str
    size_bytes: int
    maximum: int

    def __str__(self) -> str:
        return (
            f"The message has {self.size_bytes} bytes; {self.queue!r} takes at most {self.maximum}."
        )


@dataclass(eq=False)
class Duplicate(Refused):
    """A message with this key was accepted inside the window, under `sequence`."""

    code = "duplicate"
    queue: str
    key: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.queue!r} has accepted a message with key {self.key!r} already."


@dataclass(eq=False)
class Disabled(Refused):
    code = "disabled"
    queue: str
    status: str

    def __str__(self) -> str:
        return f"Queue {self.queue!r} is {self.status}; resume it or set its status to active."


@dataclass(eq=False)
class InvalidArgument(Refused):
    code = "invalid-argument"
    argument: str
    rule: str

    def __str__(self) -> str:
        return f"{self.argument} {self.rule}."


@dataclass(eq=False)
class NotAllowed(Refused):
    """The command does not fit this kind of queue or message."""

    code = "not-allowed"
    queue: str
    reason: str

    def __str__(self) -> str:
        return f"Not allowed on {self.queue!r}: {self.reason}."


@dataclass(eq=False)
class TimedOut(Refused):
    """Nothing came before the deadline. The core tells it as a notice; a dialect may raise it."""

    code = "timed-out"
    queue: str

    def __str__(self) -> str:
        return f"Nothing came from {self.queue!r} before the deadline."


@dataclass(eq=False)
class TransactionLost(Refused):
    """It has been committed or rolled back, its time was up, or it never was."""

    code = "transaction-lost"
    transaction: int = field(metadata=_SECRET)

    def __str__(self) -> str:
        return "The transaction is over, or its time was up; begin another."


@dataclass(eq=False)
class Unauthenticated(Refused):
    """It says the same for a name that is not there and a key that does not fit."""

    code = "unauthenticated"

    def __str__(self) -> str:
        return "The credentials are missing, or not valid; check the name and the key."


@dataclass(eq=False)
class Unauthorized(Refused):
    """It says the same whether the entity is there or not."""

    code = "unauthorized"
    principal: str
    right: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.principal!r} has no right to {self.right} here; ask who manages the broker."


@dataclass(eq=False)
class Busy(Refused):
    """The broker has too much to do, or too little memory, for this now. It may be sent again.

    `state` is set where it serves nobody for a while: starting, stopping or stalled.
    """

    code = "busy"
    reason: str
    state: str = ""

    def __str__(self) -> str:
        return f"The broker is busy: {self.reason}. Try again shortly."


@dataclass(eq=False)
class NotLeader(Refused):
    """This broker follows another one, which alone takes commands. `leader` may not be known."""

    code = "not-leader"
    leader: str

    def __str__(self) -> str:
        if not self.leader:
            return "This broker follows another, and knows none that leads; try again shortly."
        return f"This broker follows {self.leader}, which leads; ask there, or try again shortly."


@dataclass(eq=False)
class Throttled(Refused):
    """Too much was asked for in too short a time."""

    code = "throttled"
    wait_ms: int

    def __str__(self) -> str:
        return f"Too much was asked for at a time; wait {self.wait_ms} ms, and ask again."


REFUSALS: tuple[type[Refused], ...] = (
    NotFound,
    AlreadyExists,
    MessageNotFound,
    LockLost,
    SessionLocked,
    SessionLockLost,
    QuotaExceeded,
    MessageTooLarge,
    Duplicate,
    Disabled,
    InvalidArgument,
    NotAllowed,
    TimedOut,
    TransactionLost,
    Unauthenticated,
    Unauthorized,
    Busy,
    NotLeader,
    Throttled,
)
