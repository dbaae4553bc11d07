"""Records: what has happened.

Kept records are what goes to disk, so their encoding is a promise. Each is a MessagePack array: its
kind, then its fields in order. To change one later: add fields at the end, with a default that
means what their absence meant; anything else is a new kind with a new number, and the old one stays
readable. A kind's number is never used again. docs/records.md lists them.

Records carry results, not questions: `evolve` looks nothing up but the state, and has no clock.

What a record says beyond its results is for who reads along: how often messages had been delivered
(`counts`; none where each was once), how long they had waited by then (`waited_ms`), and how long
after their delivery they were settled (`settled_ms`). None: it was not noted.

A position numbers one change to one message or entity. A record about several messages of a queue
covers a run of positions, one for each, in order; `span` tells how many.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard, get_args

import msgspec

from posthouse.core.message import NO_NOTE, NewMessage, Note, Properties, size_bytes
from posthouse.core.model import Blocked, Fanout, Grant, QueueProperties, Receiver
from posthouse.core.recurrence import Recurrence
from posthouse.core.rules import Rule
from posthouse.core.shares import NOBODY, Holder


class _Kept(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class Started(_Kept, frozen=True, tag=1):
    """The broker has started: tokens from here on are made with this key."""

    epoch: int
    salt: int
    time_ms: int
    key: bytes = b""


class QueueCreated(_Kept, frozen=True, tag=2):
    queue: str
    time_ms: int
    properties: QueueProperties
    by: str = ""  # the principal for whom it counts; nobody in particular


class QueueUpdated(_Kept, frozen=True, tag=3):
    queue: str
    time_ms: int
    properties: QueueProperties


class QueueDeleted(_Kept, frozen=True, tag=4):
    """A queue was deleted, with its dead-letter queue and all their messages."""

    queue: str
    time_ms: int
    idle: bool = False


class Sent(_Kept, frozen=True, tag=5):
    """Messages with rising sequence numbers. `keys` are there where duplicates are detected."""

    queue: str
    time_ms: int
    first_sequence: int
    size_bytes: int
    messages: list[NewMessage]
    keys: list[str | None] | None = None
    keys_until_ms: int = 0


class Activated(_Kept, frozen=True, tag=6):
    """Scheduled messages have become active, with new sequence numbers."""

    queue: str
    time_ms: int
    sequences: list[int]
    first_sequence: int


class Woken(_Kept, frozen=True, tag=7):
    """Delayed messages are active again, in their old places."""

    queue: str
    sequences: list[int]


class Cancelled(_Kept, frozen=True, tag=8):
    """Scheduled messages will not be sent."""

    queue: str
    sequences: list[int]


class Locked(_Kept, frozen=True, tag=9):
    """Messages were delivered and are held, with rising lock numbers."""

    queue: str
    time_ms: int
    sequences: list[int]
    first_lock: int
    until_ms: int
    receiver: int = 0
    bound: int = 0  # the receiver with which the locks end
    ids: list[str] | None = None
    waited_ms: list[int] | None = None
    counts: list[int] | None = None


class Taken(_Kept, frozen=True, tag=10):
    """Messages were delivered and are gone (receive-and-delete)."""

    queue: str
    time_ms: int
    sequences: list[int]
    receiver: int = 0
    waited_ms: list[int] | None = None
    counts: list[int] | None = None


class Completed(_Kept, frozen=True, tag=11):
    queue: str
    sequences: list[int]
    settled_ms: list[int | None] | None = None
    counts: list[int] | None = None
    late: bool = False  # none of them was locked any more


class Returned(_Kept, frozen=True, tag=12):
    """Deliveries ended unsettled. `until_ms`: ready only then; `uncounted`: as if never made."""

    queue: str
    sequences: list[int]
    uncounted: bool = False
    until_ms: int = 0
    properties: Properties = {}
    settled_ms: list[int | None] | None = None
    counts: list[int] | None = None


class Deferred(_Kept, frozen=True, tag=13):
    queue: str
    sequences: list[int]
    properties: Properties = {}
    settled_ms: list[int | None] | None = None
    counts: list[int] | None = None


class DeadLettered(_Kept, frozen=True, tag=14):
    """Moved to the queue's dead-letter queue, contents by reference."""

    queue: str
    time_ms: int
    sequences: list[int]
    first_sequence: int
    reason: str | None = None
    description: str | None = None
    properties: Properties = {}
    settled_ms: list[int | None] | None = None
    counts: list[int] | None = None


def epitaph(
    queue: str, sequence: int, note: Note | None, ttl_ms: int | None, record: DeadLettered
) -> Note:
    """Returns the note of a message that is dead-lettered."""
    changed = (note or NO_NOTE).amended(record.properties)
    return Note(
        changed.properties, record.reason, record.description, queue, sequence, record.time_ms,
        ttl_ms, changed.removed, changed.fields, changed.hops,
    )  # fmt: skip


class Expired(_Kept, frozen=True, tag=15):
    """Dropped, because their time to live had passed."""

    queue: str
    sequences: list[int]


class Renewed(_Kept, frozen=True, tag=16):
    queue: str
    sequences: list[int]
    until_ms: int


class SessionAccepted(_Kept, frozen=True, tag=17):
    queue: str
    time_ms: int
    session: str
    lock: int
    until_ms: int
    receiver: int = 0
    bound: bool = False


class SessionRenewed(_Kept, frozen=True, tag=18):
    queue: str
    session: str
    until_ms: int


class SessionReleased(_Kept, frozen=True, tag=19):
    """Given up or expired. Its messages in flight have been returned before."""

    queue: str
    session: str
    expired: bool = False


class SessionStateSet(_Kept, frozen=True, tag=20):
    queue: str
    session: str
    time_ms: int
    state: bytes | None


class Resubmitted(_Kept, frozen=True, tag=21):
    """Moved out of a dead-letter queue into `target`, contents by reference."""

    queue: str
    time_ms: int
    sequences: list[int]
    target: str
    first_sequence: int
    expires_ms: list[int]
    noted: bool = False  # the reason stays with them


class Purged(_Kept, frozen=True, tag=22):
    queue: str
    sequences: list[int]


class Forgotten(_Kept, frozen=True, tag=23):
    """The oldest duplicate-detection keys have left the window, or were removed by hand."""

    queue: str
    time_ms: int
    count: int


class NamespaceCreated(_Kept, frozen=True, tag=24):
    name: str
    time_ms: int
    epoch: int
    salt: int
    key: bytes = b""
    by: str = ""


class NamespaceDeleted(_Kept, frozen=True, tag=25):
    name: str


class Moved(_Kept, frozen=True, tag=26):
    """The content of these messages is here from now on; where it was may be trimmed."""

    queue: str
    sequences: list[int]
    messages: list[NewMessage]


class ClockStepped(_Kept, frozen=True, tag=27):
    """The clock has jumped forward, and every lock lasts that much longer."""

    time_ms: int
    step_ms: int


class ClockSet(_Kept, frozen=True, tag=28):
    """The namespace's own clock was moved to `time_ms`, when the broker's was at `broker_ms`."""

    time_ms: int
    broker_ms: int = 0


class Missing(_Kept, frozen=True, tag=29):
    """A repair found these positions unreadable, or without what they refer to."""

    count: int


class AccountSet(_Kept, frozen=True, tag=30):
    """An account: the principal's grants, and its keys, sealed, the newest first."""

    name: str
    time_ms: int
    grants: list[Grant]
    keys: list[bytes]
    password: bytes = b""  # its hash, sealed; empty: there is none
    extras: dict[str, str] = {}
    by: str = ""  # who made it, where it is new


class AccountRevoked(_Kept, frozen=True, tag=31):
    name: str
    time_ms: int


class ReaderSet(_Kept, frozen=True, tag=32):
    """A reader of the feed has everything up to this position."""

    name: str
    time_ms: int
    position: int
    by: str = ""  # who made it, where it is new


class ReaderRemoved(_Kept, frozen=True, tag=33):
    name: str
    time_ms: int


class Copies(msgspec.Struct, array_like=True, frozen=True):
    """The copies of messages that one queue gets, with rising sequence numbers."""

    queue: str
    first_sequence: int
    sequences: list[int]  # where they come from
    expires_ms: list[int] | None = None  # None: never
    notes: list[Note | None] | None = None  # what is different about them
    same: bool = False  # they are the same messages: they keep their delivery counts and times


class Routed(_Kept, frozen=True, tag=34):
    """Messages were handed on: copies of them, by reference, to others, and out of `queue`.

    A position for each copy, first those of `alike`, and then one for each message that leaves.
    A message that stays was handed on in part; the rest follows with later records.
    """

    queue: str
    time_ms: int
    sequences: list[int]
    copies: list[Copies] = []
    alike: dict[str, int] = {}  # who gets all that leave, as they are, and from which number on
    # Messages that stay: the number of the last subscription that has had its copies, by sequence.
    partly: dict[int, int] = {}

    def every(self) -> list[Copies]:
        """All copies, in the order of their positions."""
        if not self.alike:
            return self.copies
        alike = [Copies(queue, first, self.sequences) for queue, first in self.alike.items()]
        return alike + self.copies


class SubscriptionCreated(_Kept, frozen=True, tag=35):
    queue: str
    time_ms: int
    properties: QueueProperties
    rules: list[Rule]
    temporary: bool = False  # it ends with its receiver
    by: str = ""


class RuleSet(_Kept, frozen=True, tag=36):
    """A rule was set, in place of any other of that name."""

    queue: str
    time_ms: int
    rule: Rule


class RuleRemoved(_Kept, frozen=True, tag=37):
    queue: str
    time_ms: int
    rule: str


class Dropped(_Kept, frozen=True, tag=38):
    """Out of a full queue, to make room."""

    queue: str
    sequences: list[int]


class ScheduleSet(_Kept, frozen=True, tag=39):
    """A schedule was set, in place of any other of that name."""

    name: str
    time_ms: int
    queue: str
    when: Recurrence
    message: NewMessage
    next_ms: int
    by: str = ""  # who made it, where it is new
    # Of one that was copied from another journal; a new one has not fired yet.
    fired: int = 0
    last_ms: int = 0
    problem: str = ""
    paused: bool = False


class ScheduleFired(_Kept, frozen=True, tag=40):
    """It was due; what was sent stands beside this, unless there was a problem."""

    name: str
    time_ms: int
    due_ms: int
    next_ms: int
    problem: str = ""


class SchedulePaused(_Kept, frozen=True, tag=41):
    name: str
    time_ms: int


class ScheduleResumed(_Kept, frozen=True, tag=42):
    name: str
    time_ms: int
    next_ms: int


class ScheduleCancelled(_Kept, frozen=True, tag=43):
    name: str
    time_ms: int


class ClockTurnedBack(_Kept, frozen=True, tag=44):
    """The broker's clock was ahead by `step_ms` before, and is at `time_ms` now.

    `schedules`: when each is due next. `scheduled`: scheduled messages are due that much earlier.
    """

    time_ms: int
    step_ms: int
    schedules: list[tuple[str, int]] = []
    scheduled: bool = False


class QueueRestored(_Kept, frozen=True, tag=45):
    """A queue that was copied from another journal has what belongs to no message of it.

    It has been created before. There are several of these where there is much of it.
    """

    queue: str
    created_ms: int
    updated_ms: int
    accessed_ms: int
    next_sequence: int
    transfer: bool = False  # it has a transfer queue
    groups: list[tuple[str, bytes | None, int]] = []  # in order: key, state, when that was set
    # Duplicate-detection keys: until when, of which message; 0: it was sent again since.
    keys: list[tuple[str, int, int]] = []
    ids: list[tuple[str, str]] = []  # by key: the id of its message, where that is not the key
    # Where it gives runs: for each group the highest number that it waits behind, and its turn.
    turns: list[tuple[int, int]] = []


class MessagesRestored(_Kept, frozen=True, tag=46):
    """Messages that were copied from another journal, as they stood in their queue.

    None of them is locked: the locks of another journal end when it is copied.
    """

    queue: str
    sequences: list[int]
    messages: list[NewMessage]  # due_ms is 0; ttl_ms is what the sender gave
    states: list[int]
    enqueued_ms: list[int]
    counts: list[int]  # how often each was delivered
    # When each wakes that is delayed; of a message that its topic has handed on in part, the number
    # of the last subscription that has had its copy; 0 for the others.
    marks: list[int]
    notes: list[Note | None]
    # When each was first delivered; 0 where that is not known. None: that of none is known.
    firsts: list[int] | None = None


class Relocked(_Kept, frozen=True, tag=47):
    """Deliveries whose locks had ended go on, with new locks; their counts stay."""

    queue: str
    time_ms: int
    sequences: list[int]
    first_lock: int
    until_ms: int


Kept: TypeAlias = (
    Started
    | QueueCreated
    | QueueUpdated
    | QueueDeleted
    | Sent
    | Activated
    | Woken
    | Cancelled
    | Locked
    | Taken
    | Completed
    | Returned
    | Deferred
    | DeadLettered
    | Expired
    | Renewed
    | SessionAccepted
    | SessionRenewed
    | SessionReleased
    | SessionStateSet
    | Resubmitted
    | Purged
    | Forgotten
    | Moved
    | ClockStepped
    | ClockSet
    | Routed
    | SubscriptionCreated
    | RuleSet
    | RuleRemoved
    | Dropped
    | ScheduleSet
    | ScheduleFired
    | SchedulePaused
    | ScheduleResumed
    | ScheduleCancelled
    | ClockTurnedBack
    | QueueRestored
    | MessagesRestored
    | Relocked
)


# Not of one of them.
OfNamespaces: TypeAlias = (
    NamespaceCreated
    | NamespaceDeleted
    | Missing
    | AccountSet
    | AccountRevoked
    | ReaderSet
    | ReaderRemoved
)


class _Passing(msgspec.Struct, frozen=True):
    pass


class ReceiverAttached(_Passing, frozen=True):
    """It waits from now on, if it has credit. `accepting`: for a session."""

    receiver: Receiver
    accepting: bool = False


class CreditSet(_Passing, frozen=True):
    receiver: int
    credit: int


class ReceiverDetached(_Passing, frozen=True):
    receiver: int


class SendBlocked(_Passing, frozen=True):
    """It waits for room from now on."""

    blocked: Blocked


class Unblocked(_Passing, frozen=True):
    """It has been sent just now, or will not be."""

    sender: int


class Stuck(_Passing, frozen=True):
    """The first who waits for room would be refused, until the queue changes or he leaves."""

    queue: str


class TransactionBegun(_Passing, frozen=True):
    transaction: int
    until_ms: int
    by: Holder = NOBODY


class Enlisted(_Passing, frozen=True):
    """Something is asked for in a transaction."""

    transaction: int
    command: Any
    messages: int
    size_bytes: int
    locks: list[int]


class TransactionEnded(_Passing, frozen=True):
    """A transaction has ended: its commands have been carried out just now, or never will be."""

    transaction: int


class Touched(_Passing, frozen=True):
    """A receiver left, or found nothing: use of a queue that no kept record tells of."""

    queue: str
    time_ms: int


class IdleChecked(_Passing, frozen=True):
    """The queue was not idle; look again then."""

    queue: str
    due_ms: int


class DispatchPending(_Passing, frozen=True):
    """Whether ticks go on to give what is ready in the queue to receivers, or to hand it on."""

    queue: str
    more: bool


class DispatchBlocked(_Passing, frozen=True):
    """These hand on no more before something kept happens, or the fanout is set anew."""

    queues: list[str]


class FanoutSet(_Passing, frozen=True):
    fanout: Fanout


class Swept(_Passing, frozen=True):
    """This much of deleted queues was freed; no more than that to it."""

    count: int


Passing: TypeAlias = (
    ReceiverAttached
    | CreditSet
    | ReceiverDetached
    | SendBlocked
    | Unblocked
    | Stuck
    | TransactionBegun
    | Enlisted
    | TransactionEnded
    | Touched
    | IdleChecked
    | DispatchPending
    | DispatchBlocked
    | FanoutSet
    | Swept
)
Record: TypeAlias = Kept | Passing

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Kept | OfNamespaces] = msgspec.msgpack.Decoder(
    Kept | OfNamespaces
)


def is_kept(record: Record) -> TypeGuard[Kept]:
    """Whether a record goes into the journal."""
    return isinstance(record, _Kept)


encode: Callable[[Kept | OfNamespaces], bytes] = _encoder.encode


def decode(data: bytes) -> Kept | OfNamespaces:
    """Raises msgspec.DecodeError for bytes that are not a record this version knows."""
    return _decoder.decode(data)


def span(record: Kept | OfNamespaces) -> int:
    """How many positions a record covers."""
    if isinstance(record, Sent):
        return len(record.messages)
    if isinstance(record, Routed):
        copies = sum(len(each.sequences) for each in record.copies) if record.copies else 0
        return len(record.sequences) * (1 + len(record.alike)) + copies
    if type(record) in _SEVERAL:
        return len(record.sequences)  # type: ignore[union-attr]
    return record.count if isinstance(record, Forgotten | Missing) else 1


_SEVERAL = frozenset(
    each for each in get_args(Kept | OfNamespaces) if "sequences" in each.__struct_fields__
)


def head(record: Kept | OfNamespaces, count: int) -> Kept | OfNamespaces:
    """The first `count` of the changes that a record stands for, as a record of their own."""
    if count >= span(record):
        return record
    if isinstance(record, Forgotten | Missing):
        return msgspec.structs.replace(record, count=count)
    if isinstance(record, Routed):
        return _head_of_routed(record, count)
    changes: dict[str, object] = {
        name: value[:count]
        for name in record.__struct_fields__
        if isinstance(value := getattr(record, name), list)
    }
    if isinstance(record, Sent):
        changes["size_bytes"] = sum(map(size_bytes, record.messages[:count]))
    return msgspec.structs.replace(record, **changes)


def _head_of_routed(record: Routed, count: int) -> Routed:
    copies = []
    for each in record.every():
        some = min(count, len(each.sequences))
        count -= some
        if some:
            copies.append(first_copies(each, some))
    return Routed(record.queue, record.time_ms, record.sequences[:count], copies)


def first_copies(copies: Copies, count: int) -> Copies:
    """The first `count` of them."""
    return Copies(
        copies.queue, copies.first_sequence, copies.sequences[:count],
        None if copies.expires_ms is None else copies.expires_ms[:count],
        None if copies.notes is None else copies.notes[:count],
        copies.same,
    )  # fmt: skip
