"""A small broker that is obviously right, to compare the core with.

Written from the description of the model, not from the core: everything is a list that is searched,
nothing is indexed, and what is ready is worked out anew each time. It shares with the core only the
words of the commands. Where the core chooses (lock tokens), it is told.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace

from msgspec import structs

from posthouse.core import commands as c
from posthouse.core import errors
from posthouse.core.message import (
    STATES,
    Attempt,
    NewMessage,
    Properties,
    decode_envelope,
    encode_envelope,
)
from posthouse.core.model import QueueProperties
from posthouse.core.rules import DEFAULT_RULE, Rule
from tests.simulate.meanings import ACTIONS, Unclear, fits
from tests.simulate.moments import following

DEAD = "/$dead"
TRANSFER = "/$transfer"
SUBSCRIPTION = "/$sub/"
HOPS_MAX = 4


@dataclass(eq=False)
class Msg:
    sequence: int
    new: NewMessage
    state: str
    enqueued: int
    expires: int | None
    ttl: int | None
    count: int = 0
    token: int = 0
    until: int = 0  # of its lock, or when it wakes
    stamp: int = 0  # when its timer was set: orders what falls due in the same millisecond
    expiry_stamp: int = 0
    bound: int = 0
    by_id: bool = False
    id: str = ""
    deferred: bool = False  # the lock is on a deferred message
    reason: str | None = None
    properties: Properties = field(default_factory=dict)
    subject: str = ""
    group: str | None = None
    hops: int = 0  # how often it was forwarded

    @property
    def size(self) -> int:
        return len(self.new.envelope) + len(self.new.body) + len(self.new.native or b"")


@dataclass
class Session:
    token: int = 0
    until: int = 0
    stamp: int = 0
    bound: bool = False
    state: bytes | None = None
    state_at: int = 0


@dataclass
class Q:
    name: str
    props: QueueProperties
    used: int
    touched: int = 0  # by those who left or found nothing; not kept over a restart
    messages: list[Msg] = field(default_factory=list)
    next: int = 1
    sessions: dict[str, Session] = field(default_factory=dict)
    seen: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # until, number, id
    # Where it gives runs: groups, and numbers of messages outside them, as they wait.
    line: list[str | int] = field(default_factory=list)
    rules: dict[str, Rule] = field(default_factory=dict)  # of a subscription
    temporary: bool = False  # the subscription of one who is attached to a fan-out queue
    follows: bool = False  # what was there before it began to forward has to go too

    @property
    def is_part(self) -> bool:
        """It belongs to another: dead letters, or what could not be forwarded."""
        return self.name.endswith((DEAD, TRANSFER))

    @property
    def is_subscription(self) -> bool:
        return SUBSCRIPTION in self.name and not self.is_part

    @property
    def is_topic(self) -> bool:
        return self.props.delivery == "topic"

    @property
    def is_fan_out(self) -> bool:
        return self.props.delivery.startswith("fan-out")

    @property
    def hands_on(self) -> bool:
        return self.is_topic or self.is_fan_out or self.props.forward_to is not None

    @property
    def sends(self) -> bool:
        return self.props.status in ("active", "receive-disabled")

    @property
    def receives(self) -> bool:
        return self.props.status in ("active", "send-disabled")


@dataclass
class Rcv:
    number: int
    queue: str
    credit: int
    delete: bool = False
    lock_ms: int | None = None
    bound: int = 0
    by_id: bool = False
    session: int = 0
    once: bool = False
    deadline: int = 0
    accepting: bool = False
    bound_session: bool = False


@dataclass(eq=False)
class Blocked:
    """A send that waits for room."""

    sender: int
    queue: str
    command: c.Send
    deadline: int


@dataclass(eq=False)
class Schedule:
    name: str
    queue: str
    when: str
    zone: str
    message: NewMessage
    start: int  # when one of that name was first set
    next: int = 0
    stamp: int = 0
    paused: bool = False
    fired: int = 0
    last: int = 0
    failed: bool = False


@dataclass(eq=False)
class Transaction:
    until: int
    number: int = 0
    work: list[c.Command] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of the locks that it settles


Given = tuple[int, str, int, int]  # receiver, queue, sequence, delivery count
Grant = tuple[int, str]  # receiver, session
View = dict[str, list[tuple[object, ...]]]  # by queue, what can be seen of its messages


class Reference:
    """Predicts, for each command, the refusal or what is delivered, and the state after it."""

    def __init__(self) -> None:
        self.queues: dict[str, Q] = {}
        self.receivers: list[Rcv] = []  # in turn: who was served last is last
        self.schedules: dict[str, Schedule] = {}
        self.transactions: list[Transaction] = []
        self.blocked: list[Blocked] = []  # in turn
        self.started = 0
        self.now = 0
        self.given: list[Given] = []
        self.granted: list[Grant] = []
        self.notices: list[tuple[int, str]] = []
        self.admitted: list[tuple[int, object]] = []  # sender, sequences
        self.answered: list[Given] = []  # to the caller
        self.answer: object = None
        self.first_ids: dict[int, str] = {}  # of what the duplicates in a send repeat
        self.results: list[str] = []  # of the locks that a settlement named
        self.late: list[tuple[Q, Msg]] = []  # what it settles though it is not locked
        self._stamp = 0
        # What has become ready in this command, by queue, in the order of their first change.
        self._ready_now: dict[str, list[Msg]] = {}
        self._following: list[str] = []  # queues with which the next tick goes on
        self._committed: list[int] = []  # tokens: they hold until their transaction ends
        self._back: list[Msg] = []  # those among them that were in the queue before, but not ready

    # Running.

    def run(self, command: c.Command, now: int) -> type[errors.Refused] | None:
        self.now = now
        self.given, self.granted, self.notices, self.answered = [], [], [], []
        self.admitted, self.answer = [], None
        self.results, self.late = [], []
        self._ready_now, self._back, self._committed = {}, [], []
        self._following = [queue.name for queue in self.queues.values() if queue.follows]
        for name in [r.queue for r in self.receivers] + [b.queue for b in self.blocked]:
            self.queues[name].touched = now
        before = self._copies() if self._may_fail_late(command) else None
        try:
            getattr(self, "_" + type(command).__name__.lower())(command)
            self._relay(refuse=isinstance(command, c.Send))
        except errors.Refused as refused:
            if before is not None:
                self.queues = before
            return type(refused)
        self._hand_out()
        return None

    def _copies(self) -> dict[str, Q]:
        return {
            name: replace(
                queue,
                messages=[replace(message) for message in queue.messages],
                sessions={key: replace(each) for key, each in queue.sessions.items()},
                seen=dict(queue.seen),
                line=list(queue.line),
                rules=dict(queue.rules),
            )
            for name, queue in self.queues.items()
        }

    def copy(self) -> "Reference":
        """To come back to after a crash."""
        other = copy(self)
        other.queues = self._copies()
        other.receivers = [replace(receiver) for receiver in self.receivers]
        other.schedules = {name: replace(each) for name, each in self.schedules.items()}
        other.transactions, other.blocked = [], []
        return other

    def _may_fail_late(self, command: c.Command) -> bool:
        """A send may be refused by a subscription on the way, also of what does not fit."""
        return isinstance(command, c.Send) and any(
            queue.hands_on or queue.props.overflow == "to-dead-letter"
            for queue in self.queues.values()
            if queue.name == command.queue
        )

    def learn(
        self, tokens: list[int], sessions: list[int], again: dict[tuple[str, int], int]
    ) -> None:
        """The tokens the core chose, in the order of what was answered, given and granted.

        `again`: of all that is locked now, by queue and sequence number.
        """
        given = zip(self.answered + self.given, tokens, strict=True)
        for (_, name, sequence, _), token in sorted(given, key=lambda pair: pair[1]):
            for message in self.queues[name].messages:
                if message.sequence == sequence and message.token == -1:
                    message.token, message.stamp = token, self._tick_stamp()
        for queue, message in self.late:
            if message.state == "locked":  # again, with a token that nobody is told
                message.token = again[queue.name, message.sequence]
        pending = [s for q in self.queues.values() for s in q.sessions.values() if s.token == -1]
        assert len(pending) == len(sessions)
        for (_, key), token in zip(self.granted, sessions, strict=True):
            for queue in self.queues.values():
                if key in queue.sessions and queue.sessions[key].token == -1:
                    queue.sessions[key].token = token
                    break

    def restart(self) -> None:
        """The connections are gone; `Start` follows."""
        self.receivers, self.transactions, self.blocked = [], [], []
        for queue in self.queues.values():
            queue.touched, queue.follows = 0, False

    def view(self) -> View:
        """Every message of every queue, comparable with a peek of the core."""
        return {
            name: [
                (
                    m.sequence,
                    m.id,
                    m.new.body,
                    m.state,
                    m.count,
                    m.reason,
                    m.properties,
                    m.subject,
                    m.group,
                    m.expires,
                )
                for m in sorted(queue.messages, key=lambda m: m.sequence)
            ]
            for name, queue in self.queues.items()
        }

    # Looking things up.

    def _queue(self, name: str) -> Q:
        if name not in self.queues:
            raise errors.NotFound("queue", name)
        return self.queues[name]

    def _own(self, name: str) -> Q:
        queue = self._queue(name)
        if queue.is_part:
            raise errors.NotAllowed(name, "")
        return queue

    def _receivable(self, name: str) -> Q:
        queue = self._queue(name)
        if queue.temporary or (queue.hands_on and not queue.is_part):
            raise errors.NotAllowed(name, "")
        if not queue.receives:
            raise errors.Disabled(name, "")
        return queue

    def _subscription(self, name: str) -> Q:
        if name not in self.queues or not self.queues[name].is_subscription:
            raise errors.NotFound("subscription", name)
        return self.queues[name]

    def _topic(self, name: str) -> Q:
        if name not in self.queues or not self.queues[name].is_topic:
            raise errors.NotFound("topic", name)
        return self.queues[name]

    def _subscriptions(self, topic: Q) -> list[Q]:
        prefix = topic.name + SUBSCRIPTION
        subscriptions = [q for q in self.queues.values() if q.name.startswith(prefix)]
        return [q for q in subscriptions if not q.is_part]

    def _family(self, queue: Q) -> list[Q]:
        """With its subscriptions, the dead letters of all, and what they could not forward."""
        names = [q.name for q in (queue, *self._subscriptions(queue))]
        parts = [name + part for name in names for part in ("", DEAD, TRANSFER)]
        return [self.queues[name] for name in parts if name in self.queues]

    def _check_new(self, what: str, number: int) -> None:
        """An id of a receiver or a sender."""
        if number in [r.number for r in self.receivers] + [b.sender for b in self.blocked]:
            raise errors.InvalidArgument(what, "")

    def _find(self, number: int) -> Rcv | None:
        return next((r for r in self.receivers if r.number == number), None)

    def _session_of(self, queue: Q, token: int) -> str:
        for key, session in queue.sessions.items():
            if session.token == token != 0 and session.until > self.now:
                return key
        raise errors.SessionLockLost(queue.name, token)

    def _check_session(self, queue: Q, token: int) -> None:
        if queue.props.grouping == "session":
            if not token:
                raise errors.NotAllowed(queue.name, "")
            self._session_of(queue, token)
        elif token:
            raise errors.NotAllowed(queue.name, "")

    def _check_bound(self, command: c.Receive | c.ReceiveDeferred) -> None:
        holder = self._find(command.bound)
        if command.bound and (
            holder is None
            or holder.once
            or holder.queue != command.queue
            or holder.session != command.session
        ):
            raise errors.InvalidArgument("bound", "")

    def _tick_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    # What is ready, and for whom.

    def _fresh(self, message: Msg) -> bool:
        return message.expires is None or message.expires > self.now

    def _ready(self, queue: Q, session: int = 0) -> list[Msg]:
        """What a receiver could be given next, best first."""

        def rank(m: Msg) -> tuple[int, int]:
            return (9 - m.new.priority if queue.props.order == "priority" else 0, m.sequence)

        active = sorted((m for m in queue.messages if m.state == "active"), key=rank)
        if queue.props.grouping == "none":
            return [m for m in active if self._fresh(m)]
        if queue.props.grouping == "session":
            in_order = sorted(active, key=lambda m: m.sequence)
            keys = [
                key
                for key, held in queue.sessions.items()
                if held.token == session
                and held.until > self.now
                and not self._has_delayed(queue, key)
            ]
            return [m for m in in_order if m.group in keys and self._fresh(m)]
        if queue.props.grouping == "run":
            return [m for run in self._runs(queue) for m in run]
        ready = []
        for m in active:
            if m.group is None:
                ready.append(m)
                continue
            mine = [o for o in queue.messages if o.group == m.group]
            head = min(o.sequence for o in mine if o.state == "active")
            if m.sequence == head and not any(o.state in ("locked", "delayed") for o in mine):
                ready.append(m)
        return [m for m in ready if self._fresh(m)]

    def _runs(self, queue: Q) -> list[list[Msg]]:
        """What can be given together, as it stands in line: in a group up to what has to wait."""
        runs = []
        for entry in queue.line:
            run: list[Msg] = []
            for m in sorted(queue.messages, key=lambda m: m.sequence):
                if entry not in (m.sequence, m.group) or m.state in ("scheduled", "deferred"):
                    continue
                if m.state in ("locked", "delayed") or not self._fresh(m):
                    break
                run.append(m)
            if run:
                runs.append(run)
        if queue.props.order == "priority":
            runs.sort(key=lambda run: -run[0].new.priority)
        return runs

    def _line_up(self, queue: Q) -> None:
        """Who is new goes to the end."""
        for m in sorted(queue.messages, key=lambda m: m.sequence):
            entry = m.sequence if m.group is None else m.group
            if entry not in queue.line:
                queue.line.append(entry)

    def _served(self, queue: Q, messages: list[Msg]) -> None:
        """Groups go behind all others that wait."""
        for message in messages:
            if message.group in queue.line:
                queue.line.remove(message.group)
                queue.line.append(message.group)

    def _hand_out_runs(self, queue: Q) -> None:
        """A run for each in turn, as far as his credit goes."""
        hands: dict[int, list[Msg]] = {}
        while True:
            waiting = [
                r
                for r in self.receivers
                if r.queue == queue.name and r.credit > 0 and (r.delete or self._may_lock(queue))
            ]
            runs = self._runs(queue)
            if not waiting or not runs:
                break
            to, taken = waiting[0], runs[0][: waiting[0].credit]
            if not to.delete:
                taken = taken[: self._lock_room(queue)]
            self.given += [self._deliver(queue, to, message) for message in taken]
            self._served(queue, taken)
            to.credit -= len(taken)
            hands[to.number] = hands.pop(to.number, []) + taken
            self.receivers.remove(to)
            self.receivers.append(to)
        for hand in hands.values():  # it is noted in this order
            self._served(queue, hand)

    def _has_delayed(self, queue: Q, key: str) -> bool:
        """Such a message will come back to its place, and the rest of its group waits for it."""
        return any(m.group == key and m.state == "delayed" for m in queue.messages)

    def _free_sessions(self, queue: Q) -> list[str]:
        heads: list[tuple[int, int, str]] = []
        for key in {m.group for m in queue.messages if m.state == "active" and m.group is not None}:
            if key in queue.sessions and queue.sessions[key].token:
                continue
            if self._has_delayed(queue, key):
                continue
            mine = [m for m in queue.messages if m.group == key and m.state == "active"]
            head = min(mine, key=lambda m: m.sequence)
            level = 9 - head.new.priority if queue.props.order == "priority" else 0
            if self._fresh(head):
                heads.append((level, head.sequence, key))
        return [key for _, _, key in sorted(heads)]

    def _hand_out(self) -> None:
        for queue in self.queues.values():
            if queue.receives and (queue.is_part or not queue.hands_on):
                self._hand_out_of(queue)

    def _hand_out_of(self, queue: Q) -> None:
        in_session = queue.props.grouping == "session"
        if queue.props.grouping == "run":
            self._hand_out_runs(queue)
        while True:
            pair = next(
                (
                    (receiver, ready[0])
                    for receiver in self.receivers
                    if receiver.queue == queue.name
                    and receiver.credit > 0
                    and not receiver.accepting
                    and (receiver.delete or self._may_lock(queue))
                    and (ready := self._ready(queue, receiver.session))
                ),
                None,
            )
            if pair is None:
                break
            receiver, message = pair
            self.given.append(self._deliver(queue, receiver, message))
            receiver.credit -= 1
            if not in_session:
                self.receivers.remove(receiver)
                self.receivers.append(receiver)
        for receiver in [r for r in self.receivers if r.accepting and r.queue == queue.name]:
            free = self._free_sessions(queue)
            if free:
                self._grant(queue, receiver, free[0])
                self.receivers.remove(receiver)
        served = {number for number, _, _, _ in self.given}
        self.receivers = [r for r in self.receivers if not (r.once and r.number in served)]

    def _deliver(self, queue: Q, to: Rcv, message: Msg) -> Given:
        message.count += 1
        queue.used = self.now
        given = (to.number, queue.name, message.sequence, message.count)
        if to.delete:
            queue.messages.remove(message)
            self._drop_session(queue, message.group)
            return given
        message.deferred = message.state == "deferred"
        message.state, message.token, message.bound = "locked", -1, to.bound
        message.by_id = to.by_id
        message.until = self.now + self._lock_time(queue, to.lock_ms, once=to.once)
        message.stamp = self._tick_stamp()
        return given

    def _may_lock(self, queue: Q, more: int = 1) -> bool:
        room = self._lock_room(queue)
        return room is None or more <= room

    def _lock_room(self, queue: Q) -> int | None:
        locked = sum(m.state == "locked" for m in queue.messages)
        return None if queue.props.max_locked is None else queue.props.max_locked - locked

    def _lock_time(self, queue: Q, asked: int | None, *, once: bool = False) -> int:
        """No time at all only for those who ask once."""
        if once and asked is not None:
            return asked
        return asked or queue.props.lock_ms or (0 if once else 60_000)

    def _grant(self, queue: Q, to: Rcv, key: str) -> None:
        session = queue.sessions.setdefault(key, Session())
        session.token, session.bound = -1, to.bound_session
        session.until = self.now + self._lock_time(queue, to.lock_ms)
        session.stamp = self._tick_stamp()
        queue.used = self.now
        self.granted.append((to.number, key))

    def _drop_session(self, queue: Q, key: str | None) -> None:
        if key in queue.line and not any(m.group == key for m in queue.messages):
            queue.line.remove(key)
        session = queue.sessions.get(key) if key is not None else None
        if session is None or key is None or session.token or session.state is not None:
            return
        if not any(m.group == key for m in queue.messages):
            del queue.sessions[key]

    # How deliveries end.

    def _end(
        self,
        queue: Q,
        messages: list[Msg],
        counted: bool,
        properties: Properties | None = None,
        delay: int = 0,
    ) -> None:
        self._changes(queue)
        if messages:
            self._use(queue)
        worn = [
            m
            for m in messages
            if counted and not queue.is_part and m.count >= queue.props.max_delivery
        ]
        back: dict[int, list[Msg]] = {}  # by how long they are held back
        for message in messages:
            message.token = message.bound = 0
            if message not in worn and self._fresh(message):
                wait = delay
                if counted and not delay and queue.props.backoff_ms:
                    attempt = min(message.count, len(queue.props.backoff_ms))
                    wait = queue.props.backoff_ms[attempt - 1]
                back.setdefault(wait, []).append(message)
        for wait, some in back.items():
            for message in some:
                message.count -= not counted
                message.properties = {**message.properties, **(properties or {})}
                message.expiry_stamp = self._tick_stamp()
                if message.deferred:
                    message.state = "deferred"
                elif wait:
                    message.state, message.until = "delayed", self.now + wait
                    message.stamp = self._tick_stamp()
                else:
                    message.state = "active"
                    self._back.append(message)
                    self._changes(queue, message)
        for message in worn:
            self._bury(queue, message, "MaxDeliveryCountExceeded", properties)
        self._expire(queue, [m for m in messages if m not in worn and not self._fresh(m)])

    def _use(self, queue: Q) -> None:
        """Settling is use of a queue, where that matters."""
        if queue.props.idle_delete_ms is not None or queue.is_part or queue.is_subscription:
            queue.touched = self.now

    def _changes(self, queue: Q, *ready: Msg) -> None:
        self._ready_now.setdefault(queue.name, []).extend(ready)
        if queue.props.grouping == "run":
            self._line_up(queue)

    def _expire(self, queue: Q, messages: list[Msg]) -> None:
        for message in messages:
            if queue.props.dead_letter_expired:
                self._bury(queue, message, "TTLExpiredException")
            else:
                queue.messages.remove(message)
                self._drop_session(queue, message.group)

    def _bury(
        self,
        queue: Q,
        message: Msg,
        reason: str | None,
        properties: Properties | None = None,
    ) -> None:
        queue.messages.remove(message)
        self._drop_session(queue, message.group)
        self._changes(queue)
        dead = self.queues[queue.name + DEAD]
        message.sequence, message.state, message.token = dead.next, "active", 0
        message.expires, message.reason = None, reason
        message.properties = {**message.properties, **(properties or {})}
        dead.next += 1
        dead.messages.append(message)
        self._changes(dead, message)

    def _end_session(self, queue: Q, key: str) -> None:
        self._changes(queue)
        session = queue.sessions[key]
        held = [m for m in queue.messages if m.group == key and m.state == "locked"]
        held.sort(key=lambda m: m.token)
        self._end(queue, held, queue.props.counting == "all")
        readers = [r for r in self.receivers if r.session == session.token]
        self.notices += [(r.number, "session-lost") for r in readers]
        self.receivers = [r for r in self.receivers if r not in readers]
        session.token = 0
        self._drop_session(queue, key)

    # Commands.

    def _start(self, command: c.Start) -> None:
        self.started = self.now
        for queue in [q for q in self.queues.values() if q.temporary]:
            self._remove(queue)
        bound = [
            (session.token, queue, key)
            for queue in self.queues.values()
            for key, session in queue.sessions.items()
            if session.token and session.bound
        ]
        for _, queue, key in sorted(bound, key=lambda each: each[0]):
            self._end_session(queue, key)
        held = self._everywhere(lambda _, m: m.state == "locked" and m.bound > 0)
        held.sort(key=lambda pair: pair[1].token)
        for queue, messages in self._by_queue(held):
            self._end(queue, messages, queue.props.counting == "all")
        for queue in self.queues.values():
            queue.follows = queue.hands_on and any(m.state == "active" for m in queue.messages)

    def _everywhere(self, wanted: Callable[[Q, Msg], bool]) -> list[tuple[Q, Msg]]:
        return [(q, m) for q in self.queues.values() for m in q.messages if wanted(q, m)]

    def _tick(self, command: c.Tick) -> None:
        now = self.now
        for receiver in [r for r in self.receivers if r.deadline and r.deadline <= now]:
            self.notices.append((receiver.number, "timed-out"))
            self.receivers.remove(receiver)
        for blocked in [b for b in self.blocked if b.deadline <= now]:
            self.notices.append((blocked.sender, "timed-out"))
            self.blocked.remove(blocked)
        over = [each for each in self.transactions if each.until <= now]
        self.transactions = [each for each in self.transactions if each not in over]
        self._end_sessions()
        self._end_locks(over)
        stale = self._everywhere(
            lambda _, m: m.state in ("active", "delayed", "deferred") and not self._fresh(m)
        )
        stale.sort(key=lambda pair: (pair[1].expires, pair[1].expiry_stamp))
        for queue, messages in self._by_queue(stale):
            self._changes(queue)
            self._expire(queue, messages)
        due = self._everywhere(lambda _, m: m.state in ("scheduled", "delayed") and m.until <= now)
        due.sort(key=lambda pair: (pair[1].until, pair[1].stamp))
        for queue, messages in self._by_queue(due):
            self._wake(queue, messages)
        self._fire()
        for queue in self.queues.values():
            queue.seen = {k: v for k, v in queue.seen.items() if v[0] > now}
        self._follow()
        self._admit()
        self._relay(refuse=False)
        for queue in list(self.queues.values()):
            if queue.name in self.queues and not queue.is_part and self._is_idle(queue):
                self._remove(queue)

    def _stepclock(self, command: c.StepClock) -> None:
        """Nobody loses by it what he holds or waits for."""
        step = command.step_ms
        for queue in self.queues.values():
            for session in queue.sessions.values():
                session.until += step
            for message in queue.messages:
                if message.state == "locked":
                    message.until += step
        for receiver in self.receivers:
            receiver.deadline += step if receiver.deadline else 0
        for transaction in self.transactions:
            transaction.until += step
        for blocked in self.blocked:
            blocked.deadline += step

    def _end_sessions(self) -> None:
        ended = [
            (session.until, session.stamp, queue, key)
            for queue in self.queues.values()
            for key, session in queue.sessions.items()
            if session.token and session.until <= self.now
        ]
        for _, _, queue, key in sorted(ended, key=lambda e: e[:2]):
            held = [m.token for m in queue.messages if m.group == key and m.state == "locked"]
            ends = [each.until for token in held for each in self.settling(token)]
            if ends:
                session = queue.sessions[key]
                session.until, session.stamp = max(ends), self._tick_stamp()
            else:
                self._end_session(queue, key)

    def _end_locks(self, over: list[Transaction]) -> None:
        """Not those that a transaction settles, and a moment later where it is just over."""
        lost = self._everywhere(
            lambda q, m: (
                m.state == "locked" and m.until <= self.now and q.props.grouping != "session"
            )
        )
        lost.sort(key=lambda pair: (pair[1].until, pair[1].stamp))
        for queue, messages in self._by_queue(lost):
            ended = []
            for message in messages:
                ends = [each.until for each in self.settling(message.token)]
                if any(message.token in each.tokens for each in over):
                    ends = [self.now + 1]
                if ends:
                    message.until, message.stamp = ends[0], self._tick_stamp()
                else:
                    ended.append(message)
            if ended:
                self._end(queue, ended, queue.props.counting == "all")

    def settling(self, token: int) -> list[Transaction]:
        """The transaction that settles a lock, if there is one."""
        return [each for each in self.transactions if token in each.tokens]

    def _wake(self, queue: Q, messages: list[Msg]) -> None:
        self._changes(queue)
        for message in sorted(messages, key=lambda m: m.state == "delayed"):
            if message.state == "scheduled":
                message.sequence, message.enqueued = queue.next, self.now
                message.expiry_stamp = self._tick_stamp()
                queue.next += 1
                queue.used = self.now
            message.state = "active"
            self._back.append(message)
            self._changes(queue, message)

    def _admit(self) -> None:
        """Who waits for room, in turn: nobody overtakes, even who would be refused now."""
        for name in dict.fromkeys(blocked.queue for blocked in self.blocked):
            for blocked in [b for b in self.blocked if b.queue == name]:
                queue, command = self.queues[name], blocked.command
                if not self._has_room(queue, _as_messages(command)):
                    break
                try:
                    self._take(self._sendable(command), command)
                except errors.Refused:
                    break
                self.admitted.append((blocked.sender, self.answer))
                self.blocked.remove(blocked)

    def _is_idle(self, queue: Q) -> bool:
        family = self._family(queue)
        names = [each.name for each in family]
        users = [r.queue for r in self.receivers] + [b.queue for b in self.blocked]
        in_use = any(name in names for name in users) or any(
            m.state == "locked" for each in family for m in each.messages
        )
        used = max(self.started, *(max(each.used, each.touched) for each in family))
        idle = queue.props.idle_delete_ms
        return idle is not None and not in_use and used + idle <= self.now

    # Handing on.

    def _follow(self) -> None:
        """What was there before a queue began to forward. If some can go, all are tried again."""
        for queue in list(self.queues.values()):
            if queue.hands_on and queue.follows:
                there = self._ready(queue)
                if queue.props.grouping != "none" and any(m.group for m in queue.messages):
                    there = sorted(queue.messages, key=lambda m: m.sequence)
                new = self._ready_now.get(queue.name, [])
                waiting = [
                    m for m in there if m.state == "active" and self._fresh(m) and m not in new
                ]
                self._ready_now[queue.name] = []
                count = len(queue.messages)
                self._hand_on(queue, waiting + new, refuse=False)
                queue.follows = len(queue.messages) < count

    def _relay(self, *, refuse: bool) -> None:
        """What has come into topics and queues that forward goes on, until it is at its end."""
        while True:
            names = [
                name
                for name, ready in self._ready_now.items()
                if ready
                and name in self.queues
                and self.queues[name].hands_on
                and not (name in self._following and self.queues[name].follows)
            ]
            if not names:
                return
            for name in names:
                messages, self._ready_now[name] = self._ready_now[name], []
                self._hand_on(self.queues[name], messages, refuse=refuse)

    def _hand_on(self, queue: Q, messages: list[Msg], *, refuse: bool) -> None:
        made: dict[str, list[Msg]] = {}
        copies: list[tuple[Q, Msg]] | None
        if queue.is_fan_out and not self._subscriptions(queue):
            return  # it keeps what comes while nobody is there
        for message in messages:
            if queue.is_topic or queue.is_fan_out:
                copies = self._publish(queue, message, refuse=refuse)
            else:
                copies = self._forward(queue, message)
            if copies is None:
                continue
            for target, each in copies:
                made.setdefault(target.name, []).append(each)
            queue.messages.remove(message)
            self._drop_session(queue, message.group)
        for copies_of_one in made.values():
            for each in copies_of_one:
                each.expiry_stamp = self._tick_stamp()

    def _publish(self, topic: Q, message: Msg, *, refuse: bool) -> list[tuple[Q, Msg]]:
        copies = []
        for queue in self._subscriptions(topic):
            if not queue.sends:
                continue
            wanted, failed = self._evaluate(queue, message)
            for each in wanted:
                if each.group is None and queue.props.requires_session:
                    copies.append(self._put_dead(queue, each, "Session id is null."))
                    continue
                try:
                    copies += self._put(queue, each)
                except errors.QuotaExceeded:
                    if refuse:
                        raise
                    copies.append(self._put_dead(queue, each, "QuotaExceeded"))
            if failed and queue.props.dead_letter_filter_errors:
                copies.append(self._put_dead(queue, message, "FilterException"))
        return copies

    def _evaluate(self, queue: Q, message: Msg) -> tuple[list[Msg], bool]:
        """The copies that the rules of a subscription make, and whether one of them fails."""
        copies, plain, failed = [], False, False
        for rule in queue.rules.values():
            try:
                if not fits(rule.filter, message.properties, message.subject):
                    continue
            except Unclear:
                failed = True
                continue
            if rule.action:
                changed = ACTIONS[rule.action](message.properties, message.subject, message.group)
                properties, subject, group = changed
                properties = {**properties, "RuleName": rule.name}
                copies.append(replace(message, properties=properties, subject=subject, group=group))
            else:
                plain = True
        return copies + [message] * plain, failed

    def _forward(self, queue: Q, message: Msg) -> list[tuple[Q, Msg]] | None:
        name = queue.props.forward_to
        target = self.queues.get(name) if name is not None else None
        most = target.props.max_message_bytes if target is not None else None
        owner = self.queues.get(queue.name.removesuffix(DEAD))
        if owner is None or not owner.temporary:
            message = replace(message, hops=message.hops + 1)
        if message.hops > HOPS_MAX or target is queue:
            why = "MaxTransferHopCountExceeded"
        elif target is None:
            why = "TargetNotFound"
        elif not target.sends:
            why = "TargetDisabled"
        elif target.props.requires_session and message.group is None:
            why = "Session id is null."
        elif most is not None and message.size > most:
            why = "MessageTooLarge"
        else:
            try:
                same = owner is not None and owner.props.forward_dead_unchanged
                return self._put(target, message, same=same and queue.is_part)
            except errors.QuotaExceeded:
                why = "QuotaExceeded"
        if queue.is_part:
            return None  # dead letters stay where they can be read
        return [self._add(self.queues[queue.name + TRANSFER], message, why)]

    def _leads_on(self, queue: Q) -> bool:
        return queue.is_part or queue.hands_on or self.queues[queue.name + DEAD].hands_on

    def _put_dead(
        self, queue: Q, message: Msg, reason: str, *, same: bool = False
    ) -> tuple[Q, Msg]:
        return self._add(self.queues[queue.name + DEAD], message, reason, same=same)

    def _put(self, queue: Q, message: Msg, *, same: bool = False) -> list[tuple[Q, Msg]]:
        """A copy, if there is room for it or something gives way. Raises QuotaExceeded."""
        self._changes(queue)
        overflow = queue.props.overflow
        if not self._has_room(queue, [message]):
            if overflow == "drop-newest":
                queue.next, queue.used = queue.next + 1, self.now
                return []
            if overflow == "to-dead-letter":
                return [self._put_dead(queue, message, "QueueFull", same=same)]
            if overflow == "drop-oldest":
                self._drop_oldest(queue, [message])
            self._check_room(queue, [message])
        return [self._add(queue, message, same=same)]

    def _add(
        self, queue: Q, message: Msg, reason: str | None = None, *, same: bool = False
    ) -> tuple[Q, Msg]:
        lives = [] if message.expires is None else [message.expires]
        if queue.props.ttl_ms is not None:
            lives.append((message.enqueued if same else self.now) + queue.props.ttl_ms)
        new = replace(
            message, sequence=queue.next, state="active",
            enqueued=message.enqueued if same else self.now,
            count=message.count if same else 0, token=0,
            bound=0, deferred=False, reason=reason or message.reason,
            hops=message.hops if self._leads_on(queue) else 0,
            expires=None if queue.is_part else min(lives, default=None),
        )  # fmt: skip
        queue.next, queue.used = queue.next + 1, self.now
        queue.messages.append(new)
        self._changes(queue, new)
        return queue, new

    def _drop_oldest(self, queue: Q, new: list[Msg]) -> None:
        """As few as make room, none of those that have come back in the same command.

        Raises QuotaExceeded, and drops none, where that is not enough.
        """
        oldest = [m for m in queue.messages if m.state == "active" and m not in self._back]
        oldest.sort(key=lambda m: m.sequence)
        for count in range(len(oldest) + 1):
            left = [m for m in queue.messages if m not in oldest[:count]]
            if self._has_room(replace(queue, messages=left), new):
                queue.messages = left
                ready = self._ready_now.get(queue.name, [])
                for message in oldest[:count]:
                    self._drop_session(queue, message.group)
                    if message in ready:
                        ready.remove(message)
                return
        raise errors.QuotaExceeded(queue.name, "", 0, 0)

    # Queues, topics, subscriptions.

    def _createqueue(self, command: c.CreateQueue) -> None:
        if command.queue.casefold() in [name.casefold() for name in self.queues]:
            raise errors.AlreadyExists("queue", command.queue)
        self._check_forwarding(command.properties)
        self._create(command.queue, command.properties)

    def _create(self, name: str, props: QueueProperties) -> Q:
        queue = self.queues[name] = Q(name, props, self.now)
        dead = name + DEAD
        self.queues[dead] = Q(dead, self._dead(props), self.now)
        self._add_transfer(queue)
        return queue

    def _add_transfer(self, queue: Q) -> None:
        name = queue.name + TRANSFER
        if queue.props.forward_to is not None and name not in self.queues:
            self.queues[name] = Q(name, self._transfer(queue.props), self.now)

    def _dead(self, props: QueueProperties) -> QueueProperties:
        return QueueProperties(
            lock_ms=props.lock_ms, counting=props.counting, forward_to=props.forward_dead_to,
            late_settling=props.late_settling,
        )  # fmt: skip

    def _transfer(self, props: QueueProperties) -> QueueProperties:
        return QueueProperties(
            lock_ms=props.lock_ms, counting=props.counting, late_settling=props.late_settling
        )

    def _check_forwarding(self, props: QueueProperties) -> None:
        for target in (props.forward_to, props.forward_dead_to):
            if target is not None and target not in self.queues:
                raise errors.NotFound("queue", target)

    def _createsubscription(self, command: c.CreateSubscription) -> None:
        self._topic(command.queue.partition(SUBSCRIPTION)[0])
        if command.queue.casefold() in [name.casefold() for name in self.queues]:
            raise errors.AlreadyExists("subscription", command.queue)
        self._check_forwarding(command.properties)
        queue = self._create(command.queue, command.properties)
        queue.rules = {rule.name: rule for rule in command.rules}

    def _setrule(self, command: c.SetRule) -> None:
        queue = self._subscription(command.queue)
        rule = command.rule
        same = [name for name in queue.rules if name.casefold() == rule.name.casefold()]
        if command.new and same:
            raise errors.AlreadyExists("rule", rule.name)
        if not command.new and not same:
            raise errors.NotFound("rule", rule.name)
        name = same[0] if same else rule.name
        queue.rules[name] = Rule(name, rule.filter, rule.action)

    def _removerule(self, command: c.RemoveRule) -> None:
        queue = self._subscription(command.queue)
        same = [name for name in queue.rules if name.casefold() == command.rule.casefold()]
        if not same:
            raise errors.NotFound("rule", command.rule)
        del queue.rules[same[0]]

    def _listrules(self, command: c.ListRules) -> None:
        rules = self._subscription(command.queue).rules
        self.answer = [rules[name] for name in sorted(rules) if name > command.after]

    def _listsubscriptions(self, command: c.ListSubscriptions) -> None:
        queue = self.queues.get(command.queue)
        if queue is None or not queue.is_fan_out:
            queue = self._topic(command.queue)
        self.answer = sorted(each.name for each in self._subscriptions(queue))

    def _deletequeue(self, command: c.DeleteQueue) -> None:
        names = [each.name for each in self._family(self._own(command.queue))]
        mine = [r for r in self.receivers if r.queue in names]
        self.notices += [(r.number, "deleted") for r in mine]
        self.receivers = [r for r in self.receivers if r not in mine]
        waiting = [b for b in self.blocked if b.queue in names]
        self.notices += [(b.sender, "deleted") for b in waiting]
        self.blocked = [b for b in self.blocked if b not in waiting]
        self._remove(self.queues[command.queue])

    def _remove(self, queue: Q) -> None:
        for each in self._family(queue):
            del self.queues[each.name]

    def _updatequeue(self, command: c.UpdateQueue) -> None:
        queue, new = self._own(command.queue), command.properties
        old = queue.props
        if queue.temporary:  # where its dead letters go is nothing that can be asked for
            raise errors.InvalidArgument("forward_dead_to", "")
        if (new.forward_to, new.forward_dead_to) != (old.forward_to, old.forward_dead_to):
            self._check_forwarding(new)
        self._update(queue, new)

    def _update(self, queue: Q, props: QueueProperties) -> None:
        before, received = queue.props, queue.receives
        queue.props, queue.used = props, self.now
        dead = self.queues[queue.name + DEAD]
        dead.props = self._dead(props)
        if queue.name + TRANSFER in self.queues:
            self.queues[queue.name + TRANSFER].props = self._transfer(props)
        self._add_transfer(queue)
        redirected = props.forward_to is not None and props.forward_to != before.forward_to
        if (received and not queue.receives) or redirected:
            mine = [r for r in self.receivers if r.queue == queue.name]
            self.notices += [(r.number, "paused") for r in mine]
        for each in self._subscriptions(queue):
            if each.temporary and each.props != self._of_one(queue):
                self._update(each, self._of_one(queue))
        queue.follows = queue.follows or redirected
        if props.forward_dead_to not in (None, before.forward_dead_to):
            dead.follows = True

    def _pause(self, command: c.Pause | c.Resume) -> None:
        queue = self._own(command.queue)
        if not (command.sending or command.receiving):
            raise errors.InvalidArgument("", "")
        on = isinstance(command, c.Resume)
        sends = on if command.sending else queue.sends
        receives = on if command.receiving else queue.receives
        status = {(1, 1): "active", (1, 0): "receive-disabled", (0, 1): "send-disabled"}.get(
            (int(sends), int(receives)), "disabled"
        )
        values = {name: getattr(queue.props, name) for name in queue.props.__struct_fields__}
        self._update(queue, QueueProperties(**{**values, "status": status}))

    _resume = _pause

    def _getqueue(self, command: c.GetQueue) -> None:
        queue = self._queue(command.queue)
        transfer = self.queues.get(queue.name + TRANSFER)
        kept = len(transfer.messages) if transfer is not None else 0
        self.answer = (len(self._subscriptions(queue)), len(queue.rules), kept)

    def _purge(self, command: c.Purge) -> None:
        queue = self._queue(command.queue)
        states = {STATES[number] for number in command.states}
        if command.keys:
            queue.seen = {}
        for message in list(queue.messages):
            old = message.enqueued < command.before_ms
            if message.state in states and message.sequence >= command.first and old:
                queue.messages.remove(message)
                self._drop_session(queue, message.group)

    def _resubmit(self, command: c.Resubmit) -> None:
        queue = self._queue(command.queue)
        if not queue.is_part:
            raise errors.NotAllowed(queue.name, "")
        origin = queue.name.removesuffix(DEAD).removesuffix(TRANSFER)
        target = self._own(command.target or origin)
        if not target.sends:
            raise errors.Disabled(target.name, "")
        chosen = sorted(
            (m for m in queue.messages if m.state == "active"), key=lambda m: m.sequence
        )
        if command.sequences is not None:
            by_number = {m.sequence: m for m in chosen}
            for at, sequence in enumerate(command.sequences):
                if sequence not in by_number or sequence in command.sequences[:at]:
                    raise errors.MessageNotFound(queue.name, sequence, "active")
            chosen = [by_number[sequence] for sequence in command.sequences]
        if command.sequences is None:
            chosen = self._that_fit(target, chosen)
        for message in chosen:
            self._check_fit(target, message.size, message.group)
        self._check_room(target, chosen)
        for message in chosen:
            queue.messages.remove(message)
            ttl = self._life(target, message.new.ttl_ms)
            message.expires = None if ttl is None else self.now + ttl
            message.expiry_stamp = self._tick_stamp()
            message.sequence, message.count, message.enqueued = target.next, 0, self.now
            message.hops = 0
            if not command.keep_reason:
                message.reason = None
            target.next += 1
            target.messages.append(message)
            target.used = self.now
            self._changes(target, message)

    def _that_fit(self, target: Q, messages: list[Msg]) -> list[Msg]:
        chosen: list[Msg] = []
        for message in messages:
            try:
                self._check_fit(target, message.size, message.group)
            except errors.Refused:
                continue
            try:
                self._check_room(target, [*chosen, message])
            except errors.QuotaExceeded:
                if not chosen:
                    raise
                break
            chosen.append(message)
        return chosen

    def _check_fit(self, queue: Q, size: int, group: str | None) -> None:
        most = queue.props.max_message_bytes
        if most is not None and size > most:
            raise errors.MessageTooLarge(queue.name, size, most)
        if group is None and queue.props.requires_session:
            raise errors.InvalidArgument("group", "")

    def _has_room(self, queue: Q, messages: list[Msg]) -> bool:
        """A topic is as full as its subscriptions are together."""
        there = [m for each in (queue, *self._subscriptions(queue)) for m in each.messages]
        most, most_bytes = queue.props.max_messages, queue.props.max_bytes
        size = sum(m.size for m in there + messages)
        if queue.props.limit_counts == "waiting":
            there = [m for m in there if m.state != "locked"]
        return (most is None or len(there) + len(messages) <= most) and (
            most_bytes is None or size <= most_bytes
        )

    def _check_room(self, queue: Q, messages: list[Msg]) -> None:
        if messages and not self._has_room(queue, messages):
            raise errors.QuotaExceeded(queue.name, "", 0, 0)

    def _life(self, queue: Q, ttl: int | None) -> int | None:
        lives = [t for t in (ttl, queue.props.ttl_ms) if t is not None]
        return min(lives) if lives else None

    def _sendable(self, command: c.Send) -> Q:
        """Where to, if it could be taken by an empty queue."""
        queue = self._own(command.queue)
        if queue.is_subscription:
            raise errors.NotAllowed(queue.name, "")
        if not queue.sends:
            raise errors.Disabled(queue.name, "")
        for message in _as_messages(command):
            self._check_fit(queue, message.size, message.new.group)
        return queue

    def _send(self, command: c.Send) -> None:
        queue = self._sendable(command)
        if command.sender and queue.props.overflow == "block":
            self._check_new("sender", command.sender)
            if self._has_to_wait(queue, command):
                sender, deadline = command.sender, command.deadline_ms
                self.blocked.append(Blocked(sender, queue.name, command, deadline))
                self.answer = "waiting"
                return
        self._take(queue, command)

    def _has_to_wait(self, queue: Q, command: c.Send) -> bool:
        """For room, or behind others; not if there is no time for it, or never room enough."""
        new, props = _as_messages(command), queue.props
        some = any(blocked.queue == queue.name for blocked in self.blocked)
        fits = (props.max_messages is None or len(new) <= props.max_messages) and (
            props.max_bytes is None or sum(m.size for m in new) <= props.max_bytes
        )
        full = not self._has_room(queue, new)
        return (some or full) and fits and command.deadline_ms > self.now

    def _take(self, queue: Q, command: c.Send) -> None:
        messages: list[Msg] = []
        keys: dict[str, tuple[int, str]] = {}
        answer = []
        self.first_ids = {}
        sequence = queue.next
        for at, new in enumerate(command.messages):
            envelope = decode_envelope(new.envelope)
            key = command.keys[at] if command.keys else None
            key = key if key is not None else envelope.id
            if queue.props.duplicate_detection and key:
                until, before, first = queue.seen.get(key, (0, 0, ""))
                before, first = keys.get(key, (before if until > self.now else 0, first))
                if before:
                    if command.refuse_duplicates:
                        raise errors.Duplicate(queue.name, key, before)
                    self.first_ids[at] = first
                    answer.append(before)
                    continue
                keys[key] = (sequence, envelope.id)
            due = new.due_ms if new.due_ms > self.now else 0
            ttl = self._life(queue, new.ttl_ms)
            expires = None if ttl is None else (due or self.now) + ttl
            state, enqueued = "active", self.now
            if due and queue.props.grouping == "run":
                state = "delayed"
            elif due:
                state, enqueued = "scheduled", due
            message = Msg(
                sequence, new, state, enqueued, expires, ttl, until=due,
                id=envelope.id, properties=envelope.properties, subject=envelope.subject,
                group=new.group,
            )  # fmt: skip
            messages.append(message)
            answer.append(sequence)
            sequence += 1
        late = self._make_room(queue, messages)
        if queue.props.overflow == "drop-newest" and late:
            gone = late[0].sequence  # this one and all behind it
            answer = [number if number < gone else 0 for number in answer]
            keys = {key: known for key, known in keys.items() if known[0] < gone}
        for message in messages:
            message.stamp = message.expiry_stamp = self._tick_stamp()
        for key, known in keys.items():
            queue.seen[key] = (self.now + queue.props.duplicate_window_ms, *known)
        if messages:
            queue.used = self.now
        queue.messages += messages
        queue.next = sequence
        taken = [m for m in messages if m not in late]
        self._changes(queue, *(m for m in taken if m.state == "active"))
        for message in late:
            if queue.props.overflow == "drop-newest":
                queue.messages.remove(message)
                self._drop_session(queue, message.group)
            else:
                self._bury(queue, message, "QueueFull")
        self.answer = answer

    def _make_room(self, queue: Q, messages: list[Msg]) -> list[Msg]:
        """Lets go what is to be let go, and returns those for which there is no room."""
        if self._has_room(queue, messages) or not messages:
            return []
        if queue.props.overflow == "drop-oldest":
            self._drop_oldest(queue, messages)
        elif queue.props.overflow not in ("reject", "block"):
            for count in range(len(messages), 0, -1):
                if all(self._has_room(queue, messages[:n]) for n in range(1, count + 1)):
                    return messages[count:]
            return messages
        self._check_room(queue, messages)
        return []

    def _cancel(self, command: c.Cancel) -> None:
        queue = self._queue(command.queue)
        scheduled = {m.sequence: m for m in queue.messages if m.state == "scheduled"}
        if queue.props.grouping == "run":  # not what came back with a delay
            delayed = [m for m in queue.messages if m.state == "delayed" and m.count == 0]
            scheduled = {m.sequence: m for m in delayed if self._fresh(m)}
        for at, sequence in enumerate(command.sequences):
            message = scheduled.get(sequence)
            if message is None or sequence in command.sequences[:at]:
                raise errors.MessageNotFound(queue.name, sequence, "scheduled")
        for sequence in command.sequences:
            queue.messages.remove(scheduled[sequence])
            self._drop_session(queue, scheduled[sequence].group)

    def _receive(self, command: c.Receive) -> None:
        queue = self._receivable(command.queue)
        self._check_new("receiver", command.receiver)
        self._check_bound(command)
        self._check_session(queue, command.session)
        to = Rcv(
            command.receiver, queue.name, command.limit, command.delete, command.lock_ms,
            command.bound, command.by_id, command.session, True, command.deadline_ms,
        )  # fmt: skip
        given = []
        if not (command.delete or command.deadline_ms > self.now or self._may_lock(queue)):
            raise errors.QuotaExceeded(queue.name, "", 0, 0)
        runs = queue.props.grouping == "run"
        line = self._ready(queue)[: command.limit] if runs else []
        for at in range(command.limit):
            if not (command.delete or self._may_lock(queue)):
                break
            ready = line[at : at + 1] if runs else self._ready(queue, command.session)
            if ready:
                given.append(ready[0])
                self.answered.append(self._deliver(queue, to, ready[0]))
        if runs:
            self._served(queue, given)
        if not (command.delete or command.session or self._lock_time(queue, to.lock_ms, once=True)):
            self._end(queue, given, queue.props.counting == "all")
        if not self.answered:
            queue.touched = self.now
            if command.deadline_ms > self.now:
                self.receivers.append(to)

    def _join(self, queue: Q, command: c.Attach) -> None:
        """To a fan-out queue: with a subscription of its own, that ends with the receiver."""
        if not queue.receives:
            raise errors.Disabled(queue.name, "")
        self._check_new("receiver", command.receiver)
        self._check_session(queue, command.session)
        first, number = not self._subscriptions(queue), command.receiver
        mine = self._create(f"{queue.name}{SUBSCRIPTION}~{number}", self._of_one(queue))
        mine.temporary, mine.rules = True, {DEFAULT_RULE: Rule(DEFAULT_RULE)}
        delete = command.delete or queue.props.delivery == "fan-out-unacknowledged"
        self.receivers.append(
            Rcv(number, mine.name, command.credit, delete, command.lock_ms, number, command.by_id)
        )
        if first and any(m.state == "active" for m in queue.messages):
            queue.follows = True  # what was kept is for the first

    def _of_one(self, queue: Q) -> QueueProperties:
        """What the subscription of one who is attached has of its fan-out queue."""
        of = queue.props
        return QueueProperties(
            lock_ms=of.lock_ms, max_delivery=of.max_delivery, counting=of.counting, order=of.order,
            backoff_ms=of.backoff_ms, dead_letter_expired=of.dead_letter_expired,
            status="active" if queue.receives else "receive-disabled",
            forward_dead_to=queue.name + DEAD,
        )  # fmt: skip

    def _attach(self, command: c.Attach) -> None:
        found = self._queue(command.queue)
        if found.is_fan_out:
            self._join(found, command)
            return
        queue = self._receivable(command.queue)
        self._check_new("receiver", command.receiver)
        self._check_session(queue, command.session)
        number = command.receiver
        to = Rcv(
            number, queue.name, command.credit, command.delete, command.lock_ms,
            number if command.bound else 0, command.by_id, command.session,
        )  # fmt: skip
        self.receivers.append(to)

    def _credit(self, command: c.Credit) -> None:
        to = self._find(command.receiver)
        if to is None:
            raise errors.NotFound("receiver", "")
        if to.once:
            raise errors.NotAllowed(to.queue, "")
        if to.session:
            self._session_of(self.queues[to.queue], to.session)
        if not to.credit and command.credit:  # it joins the end of the line
            self.receivers.remove(to)
            self.receivers.append(to)
        to.credit = command.credit
        if command.drain:
            self._hand_out()
            to.credit = 0
            self.notices.append((to.number, "drained"))

    def _detach(self, command: c.Detach) -> None:
        for blocked in self.blocked:
            if blocked.sender == command.receiver:
                self.blocked.remove(blocked)
                return
        to = self._find(command.receiver)
        if to is None:
            raise errors.NotFound("receiver", "")
        queue = self.queues[to.queue]
        if queue.temporary:
            self.receivers.remove(to)
            self._remove(queue)
            self.queues[queue.name.partition(SUBSCRIPTION)[0]].touched = self.now
            return
        waits = [r for r in self.receivers if r is not to and r.bound == to.number]
        self.notices += [(r.number, "timed-out") for r in waits]
        self.receivers = [r for r in self.receivers if r is not to and r not in waits]
        if to.session and not to.once:
            key = next(k for k, s in queue.sessions.items() if s.token == to.session)
            if queue.sessions[key].bound:
                self._end_session(queue, key)
        for each in self.queues.values():
            held = [m for m in each.messages if m.state == "locked" and m.bound == to.number]
            held.sort(key=lambda m: m.token)
            self._end(each, held, each.props.counting == "all")

    def _receivedeferred(self, command: c.ReceiveDeferred) -> None:
        queue = self._queue(command.queue)
        if not queue.receives:
            raise errors.Disabled(queue.name, "")
        self._check_bound(command)
        self._check_session(queue, command.session)
        key = self._session_of(queue, command.session) if command.session else None
        deferred = {m.sequence: m for m in queue.messages if m.state == "deferred"}
        for at, sequence in enumerate(command.sequences):
            message = deferred.get(sequence)
            if message is None or sequence in command.sequences[:at] or not self._fresh(message):
                raise errors.MessageNotFound(queue.name, sequence, "deferred")
            if key is not None and message.group != key:
                raise errors.MessageNotFound(queue.name, sequence, "deferred")
        if not (command.delete or self._may_lock(queue, len(command.sequences))):
            raise errors.QuotaExceeded(queue.name, "", 0, 0)
        to = Rcv(
            0, queue.name, 0, command.delete, command.lock_ms, command.bound, command.by_id,
            command.session,
        )  # fmt: skip
        for sequence in command.sequences:
            self.answered.append(self._deliver(queue, to, deferred[sequence]))

    def _peek(self, command: c.Peek) -> None:
        self._queue(command.queue)

    def _held(self, command: c.Settle) -> list[tuple[Q, Msg]]:
        late = isinstance(command, c.Complete | c.Abandon | c.Renew)
        held = self._locked(command, late=late)
        for queue, _ in held + self.late:
            self._use(queue)
        return held

    def _locked(self, command: c.Settle, *, late: bool = False) -> list[tuple[Q, Msg]]:
        queue = None if command.queue is None else self._queue(command.queue)
        session = None
        if command.session and queue is not None:
            session = self._session_of(queue, command.session)
        held: list[tuple[Q, Msg]] = []
        lost: list[c.LockName] = []
        for name in command.locks:
            is_late, is_gone = False, False
            if isinstance(name, Attempt):
                assert queue is not None
                is_late = late and queue.props.late_settling
                meant = next((m for m in queue.messages if m.sequence == name.sequence), None)
                back = meant is not None and meant.state in ("active", "delayed")
                is_gone = meant is None and 0 < name.sequence < queue.next
                is_gone = is_gone or (back and meant is not None and not self._fresh(meant))
                if is_late and meant is not None and not is_gone and self._was(name, meant):
                    same = any(m is meant for _, m in held)
                    if back or same:
                        if back and not any(m is meant for _, m in self.late):
                            self.late.append((queue, meant))
                        self.results.append("settled")
                        continue
            found = [
                (q, m)
                for q in self.queues.values()
                for m in q.messages
                if m.state == "locked"
                and (
                    m.token == name
                    or (m.by_id and name == m.id)
                    or (q is queue and self._names(name, m, late=is_late))
                )
                and not any(m is other for _, other in held)
                and not self.settling(m.token)
            ]
            holding = [
                (q, m)
                for q, m in sorted(found, key=lambda pair: pair[1].token)
                if (queue is None or q is queue or self._is_one_of(q, queue))
                and (is_late or self._until(q, m) > self.now or m.token in self._committed)
                and (session is None or m.group == session)
            ]
            if holding:
                held.append(holding[0])
                self.results.append("settled")
            elif command.partial:
                lost.append(name)
                self.results.append("removed" if is_gone else "lost")
            elif is_gone:
                raise errors.MessageNotFound("", 0, "")
            else:
                raise errors.LockLost(command.queue, name)
        self.answer = lost
        return held

    def _was(self, name: Attempt, message: Msg) -> bool:
        return 0 < name.count <= message.count

    def _names(self, name: c.LockName, message: Msg, *, late: bool) -> bool:
        """Whether an attempt stands for a message that is locked."""
        if not isinstance(name, Attempt) or name.sequence != message.sequence:
            return False
        return self._was(name, message) if late else name.count == message.count

    def _is_one_of(self, queue: Q, fan_out: Q) -> bool:
        return queue.temporary and queue in self._subscriptions(fan_out)

    def _until(self, queue: Q, message: Msg) -> int:
        if queue.props.grouping == "session" and message.group is not None:
            return queue.sessions[message.group].until
        return message.until

    def _by_queue(self, held: list[tuple[Q, Msg]]) -> list[tuple[Q, list[Msg]]]:
        names = list(dict.fromkeys(queue.name for queue, _ in held))
        return [
            (self.queues[name], [message for queue, message in held if queue.name == name])
            for name in names
        ]

    def _complete(self, command: c.Complete) -> None:
        for queue, message in self._held(command) + self.late:
            queue.messages.remove(message)
            self._drop_session(queue, message.group)

    def _abandon(self, command: c.Abandon) -> None:
        for queue, messages in self._by_queue(self._held(command)):
            self._end(queue, messages, True, dict(command.properties), command.delay_ms)

    def _release(self, command: c.Release) -> None:
        for queue, messages in self._by_queue(self._held(command)):
            self._end(queue, messages, False)

    def _defer(self, command: c.Defer) -> None:
        for _, message in self._held(command):
            message.state, message.token, message.bound = "deferred", 0, 0
            message.properties = {**message.properties, **command.properties}
            message.expiry_stamp = self._tick_stamp()

    def _deadletter(self, command: c.DeadLetter) -> None:
        held = self._held(command)
        if any(queue.is_part for queue, _ in held):
            raise errors.NotAllowed("", "")
        for queue, messages in self._by_queue(held):
            for message in messages:
                self._bury(queue, message, command.reason, dict(command.properties))

    # Schedules.

    def _setschedule(self, command: c.SetSchedule) -> None:
        there = self.schedules.get(command.name)
        if command.new and there is not None:
            raise errors.AlreadyExists("schedule", command.name)
        if not command.new and there is None:
            raise errors.NotFound("schedule", command.name)
        self._sendable(c.Send(command.queue, [command.message]))
        start = self.now if there is None else there.start
        schedule = self.schedules[command.name] = Schedule(
            command.name, command.queue, command.when, command.zone, command.message, start
        )
        self._await_next(schedule)

    def _schedule(self, name: str) -> Schedule:
        if name not in self.schedules:
            raise errors.NotFound("schedule", name)
        return self.schedules[name]

    def _pauseschedule(self, command: c.PauseSchedule) -> None:
        self._schedule(command.name).paused = True

    def _resumeschedule(self, command: c.ResumeSchedule) -> None:
        schedule = self._schedule(command.name)
        if schedule.paused:
            schedule.paused = False
            self._await_next(schedule)

    def _cancelschedule(self, command: c.CancelSchedule) -> None:
        del self.schedules[self._schedule(command.name).name]

    def _listschedules(self, command: c.ListSchedules) -> None:
        self.answer = [
            (s.name, s.queue, 0 if s.paused else s.next, s.paused, s.fired, s.last, s.failed)
            for s in sorted(self.schedules.values(), key=lambda s: s.name)
        ]

    def _await_next(self, schedule: Schedule) -> None:
        schedule.next = following(schedule.when, schedule.zone, schedule.start, self.now)
        schedule.stamp = self._tick_stamp()

    def _fire(self) -> None:
        """What is due is sent once, however many times it was missed."""
        due = [s for s in self.schedules.values() if not s.paused and s.next <= self.now]
        for schedule in sorted(due, key=lambda s: (s.next, s.stamp)):
            envelope = decode_envelope(schedule.message.envelope)
            id = f"{envelope.id or schedule.name}@{schedule.next}"
            data = encode_envelope(structs.replace(envelope, id=id))
            message = structs.replace(schedule.message, envelope=data, native=None)
            send = c.Send(schedule.queue, [message])
            schedule.fired, schedule.last = schedule.fired + 1, self.now
            try:
                self._take(self._sendable(send), send)
                schedule.failed = False
            except errors.Refused:
                schedule.failed = True
            self._await_next(schedule)

    # Transactions.

    def _begin(self, command: c.Begin) -> None:
        self.transactions.append(Transaction(self.now + command.timeout_ms))

    def _transaction(self, number: int) -> Transaction:
        for each in self.transactions:
            if each.number == number and each.until > self.now:
                return each
        raise errors.TransactionLost(number)

    def _work(self, command: c.Work) -> None:
        transaction, asked = self._transaction(command.transaction), command.command
        if isinstance(asked, c.Send):
            self._sendable(asked)
            transaction.work.append(asked)
            return
        held = self._locked(asked)
        if isinstance(asked, c.DeadLetter) and any(queue.is_part for queue, _ in held):
            raise errors.NotAllowed("", "")
        tokens = [message.token for _, message in held]
        if tokens:
            # By whatever names, in whatever session: it is these that are to end.
            named = structs.replace(asked, queue=None, locks=tokens, partial=False, session=0)
            transaction.work.append(named)
            transaction.tokens += tokens

    def _commit(self, command: c.Commit) -> None:
        transaction = self._transaction(command.transaction)
        self.transactions.remove(transaction)
        self._committed = transaction.tokens
        before = self._copies()
        try:
            sent = self._do_together(transaction)
            self._relay(refuse=True)
        except errors.Refused:
            self.queues, self._ready_now, self._back = before, {}, []
            self.answer = "rolled back"
        else:
            self.answer = (sent, len(transaction.tokens))

    def _do_together(self, transaction: Transaction) -> list[object]:
        """First what ends, then what is sent; in a queue in the order in which it was asked for.

        Between queues there is no order, but the core has one: first those that may say no.
        """
        for asked in transaction.work:
            if not isinstance(asked, c.Send):
                getattr(self, "_" + type(asked).__name__.lower())(asked)
        sends = [asked for asked in transaction.work if isinstance(asked, c.Send)]
        sent: dict[int, object] = {}
        for at, asked in sorted(enumerate(sends), key=lambda pair: self._is_easy(pair[1])):
            self._take(self._sendable(asked), asked)
            sent[at] = self.answer
        return [sent[at] for at in sorted(sent)]

    def _is_easy(self, command: c.Send) -> bool:
        """It goes to a queue that looks for no duplicates and has no limit."""
        props = self._own(command.queue).props
        limits = (props.max_messages, props.max_bytes)
        return not props.duplicate_detection and limits == (None, None)

    def _rollback(self, command: c.RollBack) -> None:
        self.transactions.remove(self._transaction(command.transaction))

    def _renew(self, command: c.Renew) -> None:
        held = self._held(command)
        if any(queue.props.grouping == "session" for queue, _ in held):
            raise errors.NotAllowed("", "")
        if self.late and not self._may_lock(self.late[0][0], len(self.late)):
            raise errors.QuotaExceeded("", "", 0, 0)
        for queue, message in held:
            message.until = self.now + self._lock_time(queue, command.lock_ms)
            message.stamp = self._tick_stamp()
        for queue, message in self.late:
            message.state, message.token, message.deferred = "locked", -1, False
            message.bound, message.by_id = 0, False
            message.until = self.now + self._lock_time(queue, command.lock_ms)
            message.stamp = self._tick_stamp()
            queue.used = self.now

    def _acceptsession(self, command: c.AcceptSession) -> None:
        queue = self._receivable(command.queue)
        self._check_new("receiver", command.receiver)
        if queue.props.grouping != "session":
            raise errors.NotAllowed(queue.name, "")
        key = command.session
        if key is not None:
            if key in queue.sessions and queue.sessions[key].token:
                raise errors.SessionLocked(queue.name, key)
        elif free := self._free_sessions(queue):
            key = free[0]
        to = Rcv(
            command.receiver, queue.name, 0, lock_ms=command.lock_ms, bound_session=command.bound,
            once=True, deadline=command.deadline_ms, accepting=True,
        )  # fmt: skip
        if key is not None:
            self._grant(queue, to, key)
        elif command.deadline_ms > self.now:
            self.receivers.append(to)
        else:
            queue.touched = self.now

    def _renewsession(self, command: c.RenewSession) -> None:
        queue = self._queue(command.queue)
        session = queue.sessions[self._session_of(queue, command.session)]
        session.until = self.now + self._lock_time(queue, command.lock_ms)
        session.stamp = self._tick_stamp()
        queue.touched = self.now

    def _releasesession(self, command: c.ReleaseSession) -> None:
        queue = self._queue(command.queue)
        self._end_session(queue, self._session_of(queue, command.session))

    def _getsessionstate(self, command: c.GetSessionState) -> None:
        queue = self._queue(command.queue)
        self.answer = queue.sessions[self._session_of(queue, command.session)].state

    def _setsessionstate(self, command: c.SetSessionState) -> None:
        queue = self._queue(command.queue)
        session = queue.sessions[self._session_of(queue, command.session)]
        session.state, session.state_at = command.state, self.now

    def _listsessions(self, command: c.ListSessions) -> None:
        queue = self._queue(command.queue)
        if queue.props.grouping != "session":
            raise errors.NotAllowed(queue.name, "")
        keys = {m.group for m in queue.messages} | {
            k for k, s in queue.sessions.items() if s.state is not None
        }
        if command.since_ms is not None:
            keys = {
                k
                for k, s in queue.sessions.items()
                if s.state is not None and s.state_at > command.since_ms
            }
        self.answer = keys


def _as_messages(command: c.Send) -> list[Msg]:
    """As far as their sizes go."""
    return [Msg(0, new, "", 0, None, None) for new in command.messages]
