"""The state of one namespace: queues, the locks on their messages, and who waits for what.

Everything here is changed by `evolve` alone. Fields marked *passing* are not journaled: they
concern connections, and a restart begins without them.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import Any, Literal

import msgspec

from posthouse.core.index import Index
from posthouse.core.message import DELAYED, LOCKED, Message, NewMessage, Notes
from posthouse.core.ready_list import ReadyList
from posthouse.core.recurrence import Recurrence
from posthouse.core.rules import Rule
from posthouse.core.shares import NOBODY, Held, Holder
from posthouse.core.timers import Timers, earliest
from posthouse.core.tokens import Tokens

Order = Literal["arrival", "priority"]
Grouping = Literal["none", "session", "group", "run"]
Counting = Literal["all", "abandon"]
Spread = Literal["competing", "topic", "fan-out", "fan-out-unacknowledged"]
FAN_OUT = ("fan-out", "fan-out-unacknowledged")
Overflow = Literal["reject", "block", "drop-oldest", "drop-newest", "to-dead-letter"]
LimitCounts = Literal["all", "waiting"]  # waiting: all but the locked ones
Right = Literal["manage", "send", "listen"]
Fanout = Literal["open", "limited", "stopped"]  # limited: only into queues that have few messages
Status = Literal["active", "disabled", "send-disabled", "receive-disabled"]

PRIORITIES = 10
LOCK_MS = 60_000  # of what somebody is to settle, where the queue's own lock time is 0
DEAD = "/$dead"  # what follows a queue's name in the name of its dead-letter queue


SUBSCRIPTION = "/$sub/"  # what stands between the names of a topic and of its subscription
TRANSFER = "/$transfer"  # what follows the name of a queue in that of what it could not forward


def dead_letter_queue(queue: str) -> str:
    """The name of the dead-letter queue that belongs to `queue`."""
    return queue + DEAD


def subscription_queue(topic: str, subscription: str) -> str:
    """The name of the queue that a subscription is."""
    return topic + SUBSCRIPTION + subscription


def entity_of(queue: str) -> str:
    """The queue, topic or subscription that a queue of any kind belongs to."""
    return queue.removesuffix(DEAD).removesuffix(TRANSFER)


def topic_of(queue: str) -> str:
    """The topic of a subscription; any other queue is its own."""
    return queue.partition(SUBSCRIPTION)[0]


# Written to the journal as a map with every field: a default that changes later must not change
# what an old journal says.
class QueueProperties(msgspec.Struct, frozen=True, gc=False):
    """Properties of a queue. None means: no limit."""

    lock_ms: int = 60_000  # 0: what is received by asking once is at once back in its place
    max_delivery: int = 10
    ttl_ms: int | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    max_message_bytes: int | None = None
    requires_session: bool = False  # every message needs a group
    duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    dead_letter_expired: bool = False
    idle_delete_ms: int | None = None
    status: Status = "active"
    metadata: str = ""
    order: Order = "arrival"
    grouping: Grouping = "none"
    counting: Counting = "all"  # which endings of a delivery keep its count
    # A topic hands copies to its subscriptions; a fan-out queue to each who is attached to it.
    delivery: Spread = "competing"
    dead_letter_filter_errors: bool = True  # where a rule of a subscription cannot be evaluated
    forward_to: str | None = None  # the queue or topic that what comes is handed on to,
    forward_dead_to: str | None = None  # and what is dead-lettered
    backoff_ms: list[int] = []  # how long after each attempt a message is held back; the last again
    overflow: Overflow = "reject"  # where there is no room
    limit_counts: LimitCounts = "all"  # the messages that max_messages counts
    extras: dict[str, str] = {}  # what a dialect is to be told again; nobody else looks at it
    # A delivery that is named by its number can be settled after its lock has ended, too.
    late_settling: bool = False
    # What forward_dead_to hands on keeps its delivery count and its times.
    forward_dead_unchanged: bool = False
    max_locked: int | None = None  # messages that are locked at a time

    @property
    def hold_ms(self) -> int:
        """How long a session, or a delivery that somebody is to settle, is locked."""
        return self.lock_ms or LOCK_MS


class Group(msgspec.Struct):
    """The messages of one session or group, and the session's lock and state."""

    key: str
    ready: ReadyList
    messages: int = 0  # in any state
    delayed: int = 0  # those that will come back to their places, and hold the rest back until then
    locks: dict[int, None] = {}  # tokens of its messages in flight
    token: int = 0  # of the session lock; 0: nobody holds it
    until_ms: int = 0
    bound: bool = False  # it ends with the receiver that reads it
    state: bytes | None = None
    state_ms: int = 0  # when the state was last set
    offered: int = 0  # the head under which it was last put among the queue's heads
    # Where the queue gives runs:
    held: list[int] = []  # a heap: numbers of locked and delayed messages, the first one truly so
    since: int = 0  # it waits behind messages with numbers up to this,
    turn: int = 0  # and behind groups with lower turns; 0: nothing of it was delivered yet
    head: tuple[int, int, str] | None = None  # what `offered` is elsewhere
    readers: dict[int, None] = {}  # passing: receivers that read this session


class Receiver(msgspec.Struct):
    """Passing. One that holds credit (push), or asks once until a deadline (pull)."""

    receiver: int  # its id
    queue: str
    credit: int = 0
    delete: bool = False  # receive-and-delete
    lock_ms: int | None = None  # None: as the queue says
    bound: int = 0  # the receiver with which its locks end, most often itself; 0: they live on
    bound_session: bool = False  # the session it waits for is to end with who reads it
    by_id: bool = False  # its locks can be settled by message id
    session: int = 0  # the token of the session it reads
    once: bool = False
    deadline_ms: int = 0
    locks: dict[int, None] = {}  # those that end with it
    waits: dict[int, None] = {}  # receivers that ask once on its behalf
    given: int = 0  # messages so far
    by: str = ""  # for whom it counts, where it stays attached
    client: str = ""  # its name for people


class Blocked(msgspec.Struct, gc=False):
    """Passing. A send that waits for room."""

    sender: int  # its id
    queue: str
    command: Any
    size_bytes: int
    deadline_ms: int

    @property
    def by(self) -> str:
        """The name of the principal against whose share it counts."""
        name: str = self.command.by.name
        return name


class Queue(msgspec.Struct):
    name: str
    number: int  # never used again, even if the name is
    origin: str | None  # the owner of a dead-letter queue, or of what was not forwarded
    properties: QueueProperties
    created_ms: int
    updated_ms: int
    accessed_ms: int
    ready_lists: list[ReadyList]  # outside groups; one, or one a priority, highest first
    messages: Index = msgspec.field(default_factory=Index)
    next_sequence: int = 1
    counts: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0, 0, 0])  # by state
    size_bytes: int = 0
    body_bytes: int = 0  # the bodies' part of it
    state_bytes: int = 0  # of its sessions' states
    notes: Notes = msgspec.field(default_factory=Notes)
    lives: dict[int, int] = {}  # the time to live that the sender gave, where it did
    firsts: dict[int, int] = {}  # when a message was first delivered, where a delivery has ended
    groups: dict[str, Group] = {}
    # A heap of groups free to be taken: (level, head, key), or (level, place, key) for runs.
    heads: list[tuple[int, int, str]] = []
    turns: int = 0  # messages that were delivered as parts of runs
    seen: dict[str, tuple[int, int]] = {}  # duplicate-detection key: (until when, sequence)
    seen_ids: dict[str, str] = {}  # by key: the message's id, where that is not the key
    seen_order: deque[tuple[str, int]] = msgspec.field(default_factory=deque)  # key, until when
    dead: "Queue | None" = None
    transfer: "Queue | None" = None  # what it could not forward, where it forwards
    topic: str | None = None  # of a subscription
    temporary: bool = False  # a subscription that ends with the receiver attached to it
    subscriptions: "dict[str, Queue]" = {}  # of a topic, by their names
    rules: dict[str, Rule] = {}  # of a subscription; another dictionary after each change
    rule_bytes: int = 0  # that they take in memory
    is_plain: bool = False  # it takes every message as it comes, without a limit
    relays: bool = False  # what comes is handed on: it is a topic, or forwards
    router: object = None  # rules that are ready to be used; see routing
    by: str = ""  # for whom it counts; nobody in particular
    evicted_bytes: int = 0  # of bodies that were evicted: not state, but the engine's cache
    # Passing:
    touched_ms: int = 0  # when a receiver last left or found nothing
    idle_due_ms: int = 0  # when its idleness is next looked at; 0: never
    attached: dict[int, None] = {}
    waiting: OrderedDict[int, Receiver] = msgspec.field(default_factory=OrderedDict)  # in turn
    accepting: OrderedDict[int, Receiver] = msgspec.field(default_factory=OrderedDict)
    blocked: dict[int, Blocked] = {}  # who waits for room, in turn

    @property
    def has_room_again(self) -> bool:
        """Whether there is room for the first send that waits."""
        first = next(iter(self.blocked.values()))
        properties, count = self.properties, len(first.command.messages)
        most, most_bytes = properties.max_messages, properties.max_bytes
        if properties.status not in ("active", "receive-disabled"):
            return False
        full, counts = (self, *self.subscriptions.values()), properties.limit_counts
        return (most is None or sum(each.counted(counts) for each in full) + count <= most) and (
            most_bytes is None
            or sum(each.size_bytes for each in full) + first.size_bytes <= most_bytes
        )

    def lock_room(self, locked: int = 0) -> int | None:
        """How many more messages may be locked, beside so many; None: there is no limit."""
        most = self.properties.max_locked
        return None if most is None else max(0, most - self.counts[LOCKED] - locked)

    def counted(self, counts: LimitCounts) -> int:
        """Counts its own messages, without the locked ones where a limit is for those that wait."""
        return sum(self.counts) - (self.counts[LOCKED] if counts == "waiting" else 0)

    @property
    def is_in_use(self) -> bool:
        """Whether somebody is attached, waits for room, or holds a message."""
        return bool(self.attached or self.blocked or self.counts[LOCKED])

    def parts(self) -> "list[Queue]":
        """The queue and its subscriptions, with the dead-letter and transfer queues of each."""
        every = [self, *self.subscriptions.values()]
        return every + [q for each in every for q in (each.dead, each.transfer) if q is not None]

    def level(self, message: Message | NewMessage) -> int:
        """Returns the index of a message's ready list. List 0 is delivered first."""
        return PRIORITIES - 1 - message.priority if len(self.ready_lists) > 1 else 0

    def group(self, message: Message) -> Group | None:
        """The group a message stands in, if this queue groups it."""
        return None if message.group is None else self.groups.get(message.group)

    @property
    def gives_runs(self) -> bool:
        """Whether a message in flight holds back only those behind it in its group."""
        return self.properties.grouping == "run"

    def busy(self, group: Group) -> bool:
        """Whether nobody new may take from this group, in which something is ready."""
        grouping = self.properties.grouping
        if grouping == "run":
            first = group.ready.first()
            return len(group.held) > 0 and first is not None and group.held[0] < first
        if group.delayed:
            return True
        if grouping == "session":
            return group.token != 0
        return len(group.locks) > 0

    def holds_back(self, sequence: int) -> bool:
        """Whether what stands behind this message in its group has to wait for it."""
        message = self.messages.get(sequence)
        return message is not None and message.state in (LOCKED, DELAYED)


class Schedule(msgspec.Struct, array_like=True):
    """Something that is sent again and again. Fields are added at the end, for snapshots."""

    name: str
    number: int  # the position at which it was made
    queue: str
    when: Recurrence
    message: NewMessage
    created_ms: int
    next_ms: int  # 0: it is over, or paused
    paused: bool = False
    fired: int = 0  # how often
    last_ms: int = 0  # when last
    problem: str = ""  # why nothing was sent then
    by: str = ""  # for whom it counts


class Lock(msgspec.Struct, gc=False):
    """A delivery held by a receiver, known by its token.

    A token is a number of 128 bits that cannot be guessed, and no later lock has it (tokens.py).
    """

    message: Message
    queue: Queue
    until_ms: int  # unused where `session` is set: such a lock lasts as long as the session's
    bound: int  # the receiver with which it ends, or 0
    deferred: bool  # it returns to deferred
    session: Group | None
    id: str | None  # by which it may be settled
    since_ms: int = 0  # 0: that was not noted


class Transaction(msgspec.Struct):
    """Passing. What was asked for together, and is to happen together or not at all."""

    number: int  # by which it is known: as a lock's token
    until_ms: int
    work: list[Any] = []  # commands
    messages: int = 0  # sent or settled
    size_bytes: int = 0
    locks: dict[int, None] = {}  # that it settles
    by: Holder = NOBODY


class State(msgspec.Struct):
    """One namespace's world."""

    name: str
    number: int = 0  # the position at which the namespace was created
    era: int = 0  # epoch (32 bits) and salt (32) of this start, and 64 bits of nothing
    tokens: Tokens = msgspec.field(default_factory=lambda: Tokens(0, b"", 0))  # of this start
    started_ms: int = 0
    clock_ms: int = 0  # where its own clock was last moved to,
    broker_ms: int = 0  # and where the broker's was then
    next_lock: int = 1
    turned_back: int = 0  # the position at which the clock was last turned back; 0: never
    by: str = ""  # for whom the namespace counts
    held: Held = {}  # what principals have made, of what is limited in number; some of it passing
    queues: dict[str, Queue] = {}  # dead-letter queues too
    names: list[str] = []  # sorted, of queues and topics
    topics: int = 0  # how many of them are topics
    folded: dict[str, str] = {}  # case-folded name: name
    numbered: dict[int, Queue] = {}
    locks: dict[int, Lock] = {}
    ids: dict[str, dict[int, None]] = {}  # message id: tokens that can be settled by it
    sessions: dict[int, tuple[Queue, Group]] = {}  # by the session lock's token
    lock_timers: Timers = msgspec.field(default_factory=Timers)  # tokens
    session_timers: Timers = msgspec.field(default_factory=Timers)  # tokens
    expiry_timers: Timers = msgspec.field(default_factory=Timers)  # message keys
    due_timers: Timers = msgspec.field(default_factory=Timers)  # message keys
    forget_timers: Timers = msgspec.field(default_factory=Timers)  # queue numbers
    schedules: dict[str, Schedule] = {}
    scheduled: dict[int, Schedule] = {}  # by their numbers
    schedule_bytes: int = 0  # of their messages
    schedule_timers: Timers = msgspec.field(default_factory=Timers)  # numbers of schedules
    # Passing:
    idle_timers: Timers = msgspec.field(default_factory=Timers)  # queue numbers
    wait_timers: Timers = msgspec.field(default_factory=Timers)  # receiver ids
    receivers: dict[int, Receiver] = {}
    transactions: dict[int, Transaction] = {}
    transaction_bytes: int = 0  # of messages in them
    next_transaction: int = 1
    enlisted: dict[int, int] = {}  # tokens of locks that a transaction settles: which one
    transaction_timers: Timers = msgspec.field(default_factory=Timers)  # transactions
    blocked: dict[int, Blocked] = {}  # sends that wait for room, by their ids
    blocked_bytes: int = 0
    crowded: dict[str, None] = {}  # the queues they wait for, where room would help
    block_timers: Timers = msgspec.field(default_factory=Timers)  # sender ids
    dispatch_pending: dict[str, None] = {}  # queues whose ready messages ticks give out or hand on
    dispatch_blocked: set[str] = set()  # those that cannot hand on before something changes
    fanout: Fanout = "open"
    orphans: dict[int, dict[int, None]] = {}  # locks of receivers that are gone, ended by ticks
    doomed: list[Queue] = []  # deleted, and freed bit by bit


# Beside the namespaces.


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Rights on what fits; a pattern is a name, in which * stands for anything."""

    namespace: str
    entity: str
    rights: list[Right]


class Account(msgspec.Struct, array_like=True, frozen=True):
    """A principal as it is kept. Keys and password are sealed. Fields are added at the end."""

    name: str
    number: int  # the position at which it came into being
    created_ms: int
    updated_ms: int
    grants: list[Grant]
    keys: list[bytes]
    password: bytes = b""  # its hash; empty: there is none
    extras: dict[str, str] = {}  # what a dialect is to be told again; nobody else looks at it
    by: str = ""  # who made it


class Reader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A reader of the feed. It has everything up to its position, and that too."""

    name: str
    position: int
    updated_ms: int
    by: str = ""  # who made it


def before(moment_ms: int, now_ms: int, step_ms: int) -> int:
    """A moment that has passed, by a clock that was turned back by a step to `now_ms`.

    One that would be to come was noted when the clock was ahead. Others were noted before that.
    """
    return max(1, moment_ms - step_ms) if moment_ms > now_ms else moment_ms


def era(epoch: int, salt: int) -> int:
    """The base of the numbers of one start, so that no other start has them."""
    return (epoch << 32 | salt & 0xFFFFFFFF) << 64


def page(names: list[str], after: str, limit: int) -> list[str]:
    """Returns at most `limit` of the sorted names that come after `after`."""
    at = bisect_right(names, after)
    return names[at : at + limit]


_TURN_BITS = 64


def place_alone(sequence: int) -> int:
    """The place in line of a message outside groups, where a queue gives runs."""
    return sequence << _TURN_BITS


def place_of(group: Group) -> int:
    """The place in line of a group: where it came, or behind all that was there when served."""
    return group.since << _TURN_BITS | group.turn


def find(state: State, name: str) -> str | None:
    """The exact name of the queue whose name is this one but for the case of its letters."""
    if name in state.queues:
        return name
    base = entity_of(name)
    exact = state.folded.get(base.casefold())
    return None if exact is None else exact + name[len(base) :]


def sent_life_ms(queue: Queue, sequence: int) -> int | None:
    """The time to live that the sender gave a message, which a note has where it is dead."""
    life_ms, note = queue.lives.get(sequence), queue.notes.get(sequence)
    return life_ms if life_ms is not None or note is None else note.ttl_ms


SEQUENCE_BITS = 64


def message_key(queue: Queue, sequence: int) -> int:
    """The key of a message among the timers."""
    return queue.number << SEQUENCE_BITS | sequence


def next_deadline_ms(state: State) -> int | None:
    """When a tick is next due; a moment in the past means now, None means never."""
    if len(state.dispatch_pending) > len(state.dispatch_blocked) or state.doomed or state.orphans:
        return 0
    if state.crowded and any(state.queues[name].has_room_again for name in state.crowded):
        return 0
    return earliest((
        state.lock_timers, state.session_timers, state.expiry_timers, state.due_timers,
        state.forget_timers, state.schedule_timers, state.idle_timers, state.wait_timers,
        state.transaction_timers, state.block_timers,
    ))  # fmt: skip
