"""Refusals: the command was understood and turned down.

The family is closed. Each refusal carries the facts a dialect needs to say it in its own words; its
text says what happened and what to do. A refused command has changed nothing.
"""

from dataclasses import dataclass


class Refused(Exception):
    """The command was turned down and nothing has changed."""


@dataclass(eq=False)
class NotFound(Refused):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"There is no {self.kind} {self.name!r}; check the name, or create it first."


@dataclass(eq=False)
class AlreadyExists(Refused):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"A {self.kind} {self.name!r} exists already; names that differ only in case clash."


@dataclass(eq=False)
class MessageNotFound(Refused):
    """No message with this sequence number is in the state the command needs."""

    queue: str
    sequence: int
    state: str

    def __str__(self) -> str:
        return f"Queue {self.queue!r} has no {self.state} message with sequence {self.sequence}."


@dataclass(eq=False)
class LockLost(Refused):
    """The lock has expired, was settled before, or never was. `lock` is a token or message id."""

    queue: str | None
    lock: int | str

    def __str__(self) -> str:
        return "The lock has expired or was settled already; receive the message again."


@dataclass(eq=False)
class SessionLocked(Refused):
    queue: str
    session: str

    def __str__(self) -> str:
        return f"Session {self.session!r} of {self.queue!r} is held by another receiver; try later."


@dataclass(eq=False)
class SessionLockLost(Refused):
    queue: str
    session: int

    def __str__(self) -> str:
        return f"The session lock on {self.queue!r} has expired or was released; accept it again."


@dataclass(eq=False)
class QuotaExceeded(Refused):
    """`limit` names the queue property that is full, or what there is too much of.

    `queue` is then what has too much of it: a queue, or "the broker", "the namespace", "the
    transaction". `holder`: only that principal's share of the limit is used up.
    """

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

    queue: str
    key: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.queue!r} has accepted a message with key {self.key!r} already."


@dataclass(eq=False)
class Disabled(Refused):
    queue: str
    status: str

    def __str__(self) -> str:
        return f"Queue {self.queue!r} is {self.status}; resume it or set its status to active."


@dataclass(eq=False)
class InvalidArgument(Refused):
    argument: str
    rule: str

    def __str__(self) -> str:
        return f"{self.argument} {self.rule}."


@dataclass(eq=False)
class NotAllowed(Refused):
    """The command does not fit this kind of queue or message."""

    queue: str
    reason: str

    def __str__(self) -> str:
        return f"Not allowed on {self.queue!r}: {self.reason}."


@dataclass(eq=False)
class TimedOut(Refused):
    """Nothing came before the deadline. The core tells it as a notice; a dialect may raise it."""

    queue: str

    def __str__(self) -> str:
        return f"Nothing came from {self.queue!r} before the deadline."


@dataclass(eq=False)
class TransactionLost(Refused):
    """It has been committed or rolled back, its time was up, or it never was."""

    transaction: int

    def __str__(self) -> str:
        return "The transaction is over, or its time was up; begin another."


@dataclass(eq=False)
class Unauthenticated(Refused):
    """It says the same for a name that is not there and a key that does not fit."""

    def __str__(self) -> str:
        return "The credentials are missing, or not valid; check the name and the key."


@dataclass(eq=False)
class Unauthorized(Refused):
    """It says the same whether the entity is there or not."""

    principal: str
    right: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.principal!r} has no right to {self.right} here; ask who manages the broker."


@dataclass(eq=False)
class Busy(Refused):
    """The broker has too much to do, or too little memory, for this now. It may be sent again."""

    reason: str

    def __str__(self) -> str:
        return f"The broker is busy: {self.reason}. Try again shortly."


@dataclass(eq=False)
class NotLeader(Refused):
    """This broker follows another one, which alone takes commands. `leader` may not be known."""

    leader: str

    def __str__(self) -> str:
        if not self.leader:
            return "This broker follows another, and knows none that leads; try again shortly."
        return f"This broker follows {self.leader}, which leads; ask there, or try again shortly."


@dataclass(eq=False)
class Throttled(Refused):
    """Too much was asked for in too short a time."""

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
