"""Commands: what callers ask for, and the answers they get.

The right a command needs is declared on its class. A queue is named exactly; the dead-letter queue
of `orders` is `dead_letter_queue("orders")` and takes every command a queue takes, but for sends.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from posthouse.core.message import Attempt, Message, NewMessage, Note, Properties
from posthouse.core.model import Account, Fanout, QueueProperties, Reader, Right, Schedule
from posthouse.core.rules import DEFAULT_RULE, Rule
from posthouse.core.shares import NOBODY, Holder

# What it takes to give a command: a right, any of them, or to be the broker itself.
Need = Right | Literal["any", "broker"]
# On what: a queue that the command names, all of a namespace, all of the broker, or nothing that
# was not granted before, because it speaks of a receiver of the caller's own.
Reach = Literal["queue", "namespace", "broker", "receiver"]

# How a lock is named: by its token, by the id of its message, or as an attempt at that.
LockName: TypeAlias = int | str | Attempt

# Limits on one command, so that none does unbounded work.
BATCH_MAX = 10_000
SEND_BYTES_MAX = 32 << 20  # all messages of one send
ANSWER_BYTES_MAX = SEND_BYTES_MAX  # all messages of one answer, unless it is a single one
PAGE_MAX = 1_000
STEPS_MAX = 1_000  # of a tick, a purge, a resubmit, the end of a receiver
LOOK_MAX = 20_000  # messages passed over to find those that have not expired
CREDIT_MAX = BATCH_MAX
CLIENT_CHARS_MAX = 200  # of a receiver's name for people; more is cut off

# Limits on what is written down.
NAME_CHARS_MAX = 260
GROUP_CHARS_MAX = 128
KEY_CHARS_MAX = 256
TEXT_CHARS_MAX = 4_096  # a dead-letter reason, a description, a queue's metadata
QUEUE_EXTRAS_BYTES_MAX = 64 << 10  # what dialects keep with a queue, names and texts in UTF-8
PROPERTY_CHARS_MAX = 260  # the name of a property
PROPERTIES_BYTES_MAX = 65_536  # all that was changed of one message
SESSION_STATE_BYTES_MAX = 1 << 20
TIME_MS_MAX = 1 << 53  # what is given as a moment, or as how long a message lives
LAST_MS = 253_402_300_799_999  # the end of the year 9999: no client can read a later moment
DURATION_MS_MAX = 36_525 * 86_400_000  # 100 years: of locks, delays, windows and idleness
RECEIVER_MAX = (1 << 63) - 1  # receiver ids
SUBSCRIPTIONS_MAX = 10_000  # of one topic
RULES_MAX = 1_000  # of one subscription
RULES_EFFORT_MAX = 10_000  # that the rules of one subscription take with a message
RULES_SQL_MAX = 8_192  # characters of SQL that a subscription is created with,
RULE_SQL_LEAST = 32  # each rule with as many more
RULE_PATTERNS_MAX = 4_096  # characters of all patterns of LIKE in one rule
RULE_CHARS_MAX = 50  # the name of a rule
BACKOFF_MAX = 100  # delays in a queue's list
HOPS_MAX = 4  # that a message is forwarded
HAND_ON_MAX = 10_000  # copies, and rules looked at, in one command; ticks go on with the rest
HAND_ON_BYTES_MAX = SEND_BYTES_MAX  # of what is noted with the copies
FANOUT_LIMITED_MAX = 10  # messages in a queue, from which on it gets no more while that is limited
SCHEDULES_MAX = 10_000  # of a namespace
SCHEDULED_BYTES_MAX = 256 << 10  # of the message of one
FIRE_BYTES_MAX = 1 << 20  # what schedules send in one tick; one message more may be in it
BLOCKED_MAX = 1_000  # sends that wait for room in one queue,
BLOCKED_BYTES_MAX = 64 << 20  # and what they are in a namespace
TRANSACTIONS_MAX = 10_000  # open at a time
TRANSACTION_MS = 120_000  # how long one may be open, where nothing else is said
TRANSACTION_MS_MAX = 3_600_000
TRANSACTIONS_BYTES_MAX = 256 << 20  # of messages that wait for a commit


class _Command(msgspec.Struct, frozen=True, gc=False):
    """The engine fills in a command's field `by`, where it has one: for whom the result counts."""

    right: ClassVar[Need]
    reach: ClassVar[Reach] = "queue"


class Start(_Command, frozen=True):
    """The first command of a start. What was bound to connections is given back."""

    right = "broker"
    reach = "namespace"
    epoch: int
    salt: int
    key: bytes = b""  # of the tokens; without one they can be guessed


class Tick(_Command, frozen=True):
    """Do what is due: about STEPS_MAX steps at most. The answer is `Ticked`."""

    right = "broker"
    reach = "namespace"


class StepClock(_Command, frozen=True):
    """The clock has jumped forward; nobody loses a lock by it."""

    right = "broker"
    reach = "namespace"
    step_ms: int


class SetClock(_Command, frozen=True):
    """The namespace's own clock is here now, or later if it is past that; the broker's there."""

    right = "broker"
    reach = "namespace"
    time_ms: int
    broker_ms: int = 0


class TurnClockBack(_Command, frozen=True):
    """The broker's clock was ahead by this much until now, and is right from now on.

    What lasts a while lasts as long as before. Messages that are scheduled keep their moments,
    which their senders gave, unless they were given by a clock that was ahead as well.
    """

    right = "broker"
    reach = "namespace"
    step_ms: int
    scheduled: bool = False  # the moments of scheduled messages were given by that clock


class SetFanout(_Command, frozen=True):
    """How freely messages are handed on from now on, which takes room that may be short."""

    right = "broker"
    reach = "namespace"
    fanout: Fanout


class Move(_Command, frozen=True):
    """Write the contents of these messages again, so that their old places can be trimmed.

    Each with the position where its content was; those that are gone since are passed over.
    """

    right = "broker"
    queue: str
    contents: "Sequence[Content]"


class Content(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    position: int
    message: NewMessage


# Queues.


class CreateQueue(_Command, frozen=True):
    """Or a topic, if its properties say so."""

    right = "manage"
    queue: str
    properties: QueueProperties = QueueProperties()
    by: Holder = NOBODY


class UpdateQueue(_Command, frozen=True):
    """Or a topic, or a subscription.

    Order, grouping, requires_session, duplicate_detection and delivery cannot be changed.
    """

    right = "manage"
    queue: str
    properties: QueueProperties


class DeleteQueue(_Command, frozen=True):
    """Or a topic with its subscriptions, or a subscription."""

    right = "manage"
    queue: str


class GetQueue(_Command, frozen=True):
    """The answer is a `QueueInfo`."""

    right = "manage"
    queue: str


class Look(_Command, frozen=True):
    """As `GetQueue`, for whoever has any right on the queue, where a protocol has it so."""

    right = "any"
    queue: str


class ListQueues(_Command, frozen=True):
    """The answer is a page of `QueueInfo`, by name; go on after the last name of a page."""

    right = "manage"
    reach = "namespace"
    after: str = ""
    limit: int = 100
    kind: Literal["queue", "topic"] | None = None  # None: both


class CreateSubscription(_Command, frozen=True):
    """`queue` is `subscription_queue(topic, name)`. Without rules given it gets every message."""

    right = "manage"
    queue: str
    properties: QueueProperties = QueueProperties()
    rules: Sequence[Rule] = (Rule(DEFAULT_RULE),)
    by: Holder = NOBODY


class ListSubscriptions(_Command, frozen=True):
    """Lists a topic's subscriptions: a page of `QueueInfo`, by name, as for `ListQueues`."""

    right = "manage"
    queue: str
    after: str = ""
    limit: int = 100


class SetRule(_Command, frozen=True):
    """Sets a rule of a subscription. `new`: none may have that name; else one must have it."""

    right = "listen"
    queue: str
    rule: Rule
    new: bool = True


class RemoveRule(_Command, frozen=True):
    right = "listen"
    queue: str
    rule: str


class ListRules(_Command, frozen=True):
    """Lists a subscription's rules: a page of `Rule`, by name; go on after the last of them."""

    right = "listen"
    queue: str
    after: str = ""
    limit: int = 100


class Pause(_Command, frozen=True):
    """Refuse sends, or hold deliveries back, or both, until `Resume`."""

    right = "manage"
    queue: str
    sending: bool = False
    receiving: bool = False


class Resume(_Command, frozen=True):
    right = "manage"
    queue: str
    sending: bool = False
    receiving: bool = False


class Purge(_Command, frozen=True):
    """Remove messages in these states, enqueued before a moment, looking at `limit` from `first`.

    The answer is a `Progress`; go on from its `next` until that is None. With `sequences` it looks
    at those alone; what is not there any more is not missed. With `keys` the keys of duplicate
    detection go too, as many at a time; `done` does not count them.
    """

    right = "manage"
    queue: str
    states: frozenset[int]
    first: int = 0
    before_ms: int = TIME_MS_MAX
    limit: int = STEPS_MAX
    sequences: Sequence[int] | None = None
    keys: bool = False


class Resubmit(_Command, frozen=True):
    """Send dead letters again: these, or all from `first` on, to their origin or to `target`.

    Of all, those go that the target takes, as far as it has room; these go together or not at all.
    The answer is a `Progress`, as for `Purge`.
    """

    right = "manage"
    queue: str
    sequences: Sequence[int] | None = None
    first: int = 0
    target: str | None = None
    keep_reason: bool = False


# Sending.


class Send(_Command, frozen=True):
    """All of them or none. The answer is `Enqueued`.

    `keys` are duplicate-detection keys, None where the message's id is to serve.
    """

    right = "send"
    queue: str
    messages: Sequence[NewMessage]
    keys: Sequence[str | None] | None = None
    refuse_duplicates: bool = False
    # Where the queue is full and blocks: until when to wait for room, and under which id, chosen as
    # a receiver's is. Then the answer is `Waiting`, and `Admitted` or a notice comes.
    deadline_ms: int = 0
    sender: int = 0
    by: Holder = NOBODY


class Cancel(_Command, frozen=True):
    """Scheduled messages, all of them or none."""

    right = "send"
    queue: str
    sequences: Sequence[int]


# Receiving. A receiver's id is chosen by the caller and must be new.


class Receive(_Command, frozen=True):
    """Up to `limit` messages at once, or the first that come before the deadline.

    The answer is `Received`, or `Waiting`: then deliveries or a notice will come for the receiver.
    Where the locks last no time, the messages are delivered, which counts, and are back at once.
    """

    right = "listen"
    once: ClassVar[bool] = True
    queue: str
    receiver: int
    limit: int = 1
    deadline_ms: int = 0
    delete: bool = False
    lock_ms: int | None = None  # None: as long as the queue says
    bound: int = 0  # a receiver attached to the same queue and session, with which the locks end
    by_id: bool = False
    session: int = 0


class Attach(_Command, frozen=True):
    """A receiver that is given messages as long as it has credit."""

    right = "listen"
    queue: str
    receiver: int
    credit: int = 0
    delete: bool = False
    lock_ms: int = 0
    bound: bool = False  # its locks end with it
    by_id: bool = False
    session: int = 0
    by: Holder = NOBODY
    client: str = ""  # a name for people, where it is told who holds a message


class Credit(_Command, frozen=True):
    """Sets a receiver's credit. `drain`: deliver what there is, drop the rest of the credit.

    `given`: it is counted from when the receiver had been given so many messages, and what is under
    way since uses it up; None: from now.
    """

    right = "listen"
    reach = "receiver"
    receiver: int
    credit: int
    drain: bool = False
    given: int | None = None


class Detach(_Command, frozen=True):
    """The receiver is gone, with its wait; if bound, its locks and its session too."""

    right = "listen"
    reach = "receiver"
    receiver: int


class ReceiveDeferred(_Command, frozen=True):
    """All of them or none. The answer is `Received`."""

    right = "listen"
    receiver: ClassVar[int] = 0  # the answer is the caller's alone
    once: ClassVar[bool] = False
    queue: str
    sequences: Sequence[int]
    delete: bool = False
    lock_ms: int = 0
    bound: int = 0
    by_id: bool = False
    session: int = 0


class Peek(_Command, frozen=True):
    """Messages in any state from a sequence number on, with no effect. The answer is `Peeked`."""

    right = "listen"
    queue: str
    first: int = 0
    limit: int = 1
    group: str | None = None


# Settling. A lock is named by its token, or by message id where its receiver asked for that; then
# the queue may be left out. Or it is named as an attempt at a message of the queue. Where the queue
# has late_settling, Complete, Abandon and Renew take an attempt after its lock has ended, too: it
# stands for the message as it is now, also where a newer delivery holds it. All of them or none,
# unless `partial`. The answer is `Settled`.


class _Settle(_Command, frozen=True):
    right = "listen"
    queue: str | None
    locks: Sequence[LockName]
    partial: bool = False
    session: int = 0


class Complete(_Settle, frozen=True):
    pass


class Abandon(_Settle, frozen=True):
    properties: Properties = {}
    delay_ms: int = 0


class Release(_Settle, frozen=True):
    """Returns a message as if it had never been delivered."""


class Defer(_Settle, frozen=True):
    properties: Properties = {}


class DeadLetter(_Settle, frozen=True):
    reason: str | None = None
    description: str | None = None
    properties: Properties = {}


class Renew(_Settle, frozen=True):
    """Renews locks for `lock_ms`, or without it for the queue's lock duration."""

    lock_ms: int = 0


# Sessions.


class AcceptSession(_Command, frozen=True):
    """One by its id, or the next that has messages, waiting for it until the deadline.

    The answer is `Granted`; or `Waiting`, and then `Granted` or a notice comes for the receiver; or
    None where there is no session and no time to wait.
    """

    right = "listen"
    queue: str
    receiver: int
    session: str | None = None
    deadline_ms: int = 0
    lock_ms: int = 0
    bound: bool = False


class RenewSession(_Command, frozen=True):
    """The answer is the time until which it is held now."""

    right = "listen"
    queue: str
    session: int
    lock_ms: int = 0


class ReleaseSession(_Command, frozen=True):
    """Its messages in flight go back."""

    right = "listen"
    queue: str
    session: int


class GetSessionState(_Command, frozen=True):
    """The answer is the state's bytes or None. `session` is the token of the lock."""

    right = "listen"
    queue: str
    session: int


class SetSessionState(_Command, frozen=True):
    right = "listen"
    queue: str
    session: int
    state: bytes | None


class ListSessions(_Command, frozen=True):
    """The ids of sessions with messages or state; or those whose state was set since a moment."""

    right = "listen"
    queue: str
    since_ms: int | None = None
    skip: int = 0
    limit: int = 100


# Schedules.


class SetSchedule(_Command, frozen=True):
    """Send this message to a queue or topic again and again. `new`: none of that name is there.

    Its id is made each time, of the one that is given, or else the schedule's name, and the moment.
    """

    right = "send"
    queue: str
    name: str
    when: str  # as `recurrence.parse` has it
    message: NewMessage
    zone: str = "UTC"
    new: bool = True
    by: Holder = NOBODY


class PauseSchedule(_Command, frozen=True):
    right = "manage"
    reach = "namespace"
    name: str


class ResumeSchedule(_Command, frozen=True):
    """Resumes a schedule from its next time on. The runs missed meanwhile are not sent."""

    right = "manage"
    reach = "namespace"
    name: str


class CancelSchedule(_Command, frozen=True):
    right = "manage"
    reach = "namespace"
    name: str


class ListSchedules(_Command, frozen=True):
    """The answer is a page of `Schedule`, by name; go on after the last name of a page."""

    right = "manage"
    reach = "namespace"
    after: str = ""
    limit: int = 100


# Transactions.


class Begin(_Command, frozen=True):
    """The answer is a `Begun`. Unless it is committed in time it is rolled back."""

    right = "any"
    reach = "receiver"
    timeout_ms: int = TRANSACTION_MS
    by: Holder = NOBODY


class Work(_Command, frozen=True):
    """Part of a transaction: nothing happens before it is committed, but what cannot be is refused.

    Locks that are settled in it do not expire before it ends. The answer to a settlement is a
    `Settled`, to a send None.
    """

    right = "any"  # and what its command needs
    reach = "receiver"
    transaction: int
    command: "Send | Complete | Abandon | Release | Defer | DeadLetter"


class Commit(_Command, frozen=True):
    """All that was asked in a transaction, or nothing: `Committed`, or `RolledBack`."""

    right = "any"
    reach = "receiver"
    transaction: int


class RollBack(_Command, frozen=True):
    """Ends a transaction without effect. The messages that were settled in it stay locked."""

    right = "any"
    reach = "receiver"
    transaction: int


Settle: TypeAlias = Complete | Abandon | Release | Defer | DeadLetter | Renew
Command: TypeAlias = (
    Start
    | Tick
    | StepClock
    | SetClock
    | TurnClockBack
    | SetFanout
    | Move
    | CreateQueue
    | UpdateQueue
    | DeleteQueue
    | GetQueue
    | Look
    | ListQueues
    | CreateSubscription
    | ListSubscriptions
    | SetRule
    | RemoveRule
    | ListRules
    | Pause
    | Resume
    | Purge
    | Resubmit
    | Send
    | Cancel
    | Receive
    | Attach
    | Credit
    | Detach
    | ReceiveDeferred
    | Peek
    | Settle
    | AcceptSession
    | RenewSession
    | ReleaseSession
    | GetSessionState
    | SetSessionState
    | ListSessions
    | SetSchedule
    | PauseSchedule
    | ResumeSchedule
    | CancelSchedule
    | ListSchedules
    | Begin
    | Work
    | Commit
    | RollBack
)


# Answers.


class Ticked(msgspec.Struct, frozen=True, gc=False):
    more: bool  # there is more to do now


class Counts(msgspec.Struct, frozen=True, gc=False):
    active: int
    locked: int
    scheduled: int
    delayed: int
    deferred: int
    dead: int  # in the dead-letter queue, in any state


class QueueInfo(msgspec.Struct, frozen=True, gc=False):
    name: str
    properties: QueueProperties
    counts: Counts
    size_bytes: int
    dead_size_bytes: int
    created_ms: int
    updated_ms: int
    accessed_ms: int
    receivers: int
    subscriptions: int = 0  # of a topic
    rules: int = 0  # of a subscription
    transfer: int = 0  # messages that it could not forward
    waiting: int = 0  # receivers that wait for a message, or for a session


class Progress(msgspec.Struct, frozen=True, gc=False):
    done: int
    next: int | None  # the sequence number to go on from


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """A sequence number for each message; a duplicate has that of the message it repeats."""

    sequences: Sequence[int]
    duplicates: int = 0
    dropped: int = 0  # for which there was no room; their sequence number is 0
    buried: int = 0  # for which there was none either, and which are dead letters now
    # The ids of the messages that duplicates repeat, by the index of the duplicate.
    first_ids: dict[int, str] = {}


class Waiting(msgspec.Struct, frozen=True, gc=False):
    receiver: int


class Received(msgspec.Struct, frozen=True, gc=False):
    deliveries: "list[Delivery]"


class Peeked(msgspec.Struct, frozen=True, gc=False):
    messages: "list[Seen]"
    next: int | None  # the sequence number to go on from


# What became of a lock that was named. Removed: its message is not in the queue any more.
SettleResult: TypeAlias = Literal["settled", "removed", "lost"]


class Settled(msgspec.Struct, frozen=True, gc=False):
    lost: Sequence[LockName] = ()  # locks that were not settled, where `partial` was asked for
    until_ms: Sequence[int] = ()  # of renewed locks, in the order in which they were named
    # For each name, in order, where an attempt was named; none where all were settled.
    results: Sequence[SettleResult] = ()


SETTLED = Settled()


class Begun(msgspec.Struct, frozen=True, gc=False):
    transaction: int
    until_ms: int


class Committed(msgspec.Struct, frozen=True, gc=False):
    sent: Sequence[Enqueued]  # for each send, in their order
    settled: int  # locks


class RolledBack(msgspec.Struct, frozen=True, gc=False):
    """It could not be committed, and is over."""

    reason: str


# Deliveries: what receivers get because of a command, their own or another's.


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message for one receiver; `token` is 0 where it was deleted.

    `message` may be the queue's own: only what never changes is to be read from it, its sequence
    number, times and content.
    """

    receiver: int
    token: int
    until_ms: int
    count: int
    message: Message
    note: Note | None = None
    first_delivered_ms: int = 0  # of the first delivery that is known


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A peeked message."""

    message: Message
    state: str
    deferred: bool  # also while it is locked
    note: Note | None


class Granted(msgspec.Struct, frozen=True, gc=False):
    """A session for one receiver."""

    receiver: int
    session: str
    token: int
    until_ms: int


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to a sender that waited, once there was room for its messages."""

    receiver: int  # the sender's id
    enqueued: Enqueued


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something a receiver has to know. All but `drained` and `paused` end it."""

    receiver: int
    kind: Literal["drained", "paused", "timed-out", "session-lost", "deleted"]


Answer: TypeAlias = (
    bytes
    | int
    | list[str]
    | list[QueueInfo]
    | list[Rule]
    | list[Schedule]
    | list[Account]
    | list[Reader]
    | Ticked
    | QueueInfo
    | Progress
    | Enqueued
    | Waiting
    | Received
    | Peeked
    | Settled
    | Begun
    | Committed
    | RolledBack
    | Granted
    | None
)
