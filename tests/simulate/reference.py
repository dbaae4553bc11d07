"""A small broker that is obviously right, to compare the core with.

Written from the description of the model, not from the core: everything is a list that is searched,
nothing is indexed, and what is ready is worked out anew each time. It shares with the core only the
words of the commands. Where the core chooses (lock tokens), it is told.
"""

from dataclasses import dataclass, field

from posthouse.core import commands as c
from posthouse.core import errors
from posthouse.core.message import STATES, NewMessage, decode_envelope
from posthouse.core.model import QueueProperties

DEAD = "/$dead"


@dataclass
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
    deferred: bool = False  # the lock is on a deferred message
    reason: str | None = None
    properties: dict[str, object] = field(default_factory=dict)

    @property
    def group(self) -> str | None:
        return self.new.group

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
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_dead(self) -> bool:
        return self.name.endswith(DEAD)

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
    lock_ms: int = 0
    bound: int = 0
    by_id: bool = False
    session: int = 0
    once: bool = False
    deadline: int = 0
    accepting: bool = False
    bound_session: bool = False


Given = tuple[int, str, int, int]  # receiver, queue, sequence, delivery count
Grant = tuple[int, str]  # receiver, session


class Reference:
    """Predicts, for each command, the refusal or what is delivered, and the state after it."""

    def __init__(self) -> None:
        self.queues: dict[str, Q] = {}
        self.receivers: list[Rcv] = []  # in turn: who was served last is last
        self.started = 0
        self.now = 0
        self.given: list[Given] = []
        self.granted: list[Grant] = []
        self.notices: list[tuple[int, str]] = []
        self.answered: list[Given] = []  # to the caller
        self.answer: object = None
        self._stamp = 0

    # Running.

    def run(self, command: c.Command, now: int) -> type[errors.Refused] | None:
        self.now = now
        self.given, self.granted, self.notices, self.answered = [], [], [], []
        self.answer = None
        for receiver in self.receivers:
            self.queues[receiver.queue].touched = now
        try:
            getattr(self, "_" + type(command).__name__.lower())(command)
        except errors.Refused as refused:
            return type(refused)
        self._hand_out()
        return None

    def learn(self, tokens: list[int], sessions: list[int]) -> None:
        """The tokens the core chose, in the order of what was answered, given and granted."""
        given = zip(self.answered + self.given, tokens, strict=True)
        for (_, name, sequence, _), token in sorted(given, key=lambda pair: pair[1]):
            for message in self.queues[name].messages:
                if message.sequence == sequence and message.token == -1:
                    message.token, message.stamp = token, self._tick_stamp()
        pending = [s for q in self.queues.values() for s in q.sessions.values() if s.token == -1]
        assert len(pending) == len(sessions)
        for (_, key), token in zip(self.granted, sessions, strict=True):
            for queue in self.queues.values():
                if key in queue.sessions and queue.sessions[key].token == -1:
                    queue.sessions[key].token = token
                    break

    def restart(self) -> None:
        """The connections are gone; `Start` follows."""
        self.receivers = []
        for queue in self.queues.values():
            queue.touched = 0

    def view(self) -> dict[str, list[tuple[object, ...]]]:
        """Every message of every queue, comparable with a peek of the core."""
        return {
            name: [
                (m.sequence, m.new.body, m.state, m.count, m.reason, m.properties)
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
        if queue.is_dead:
            raise errors.NotAllowed(name, "")
        return queue

    def _receivable(self, name: str) -> Q:
        queue = self._queue(name)
        if not queue.receives:
            raise errors.Disabled(name, "")
        return queue

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
            if queue.receives:
                self._hand_out_of(queue)

    def _hand_out_of(self, queue: Q) -> None:
        in_session = queue.props.grouping == "session"
        while True:
            pair = next(
                (
                    (receiver, ready[0])
                    for receiver in self.receivers
                    if receiver.queue == queue.name
                    and receiver.credit > 0
                    and not receiver.accepting
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
        message.until = self.now + (to.lock_ms or queue.props.lock_ms)
        message.stamp = self._tick_stamp()
        return given

    def _grant(self, queue: Q, to: Rcv, key: str) -> None:
        session = queue.sessions.setdefault(key, Session())
        session.token, session.bound = -1, to.bound_session
        session.until = self.now + (to.lock_ms or queue.props.lock_ms)
        session.stamp = self._tick_stamp()
        queue.used = self.now
        self.granted.append((to.number, key))

    def _drop_session(self, queue: Q, key: str | None) -> None:
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
        properties: dict[str, object] | None = None,
        delay: int = 0,
    ) -> None:
        if messages and (queue.props.idle_delete_ms is not None or queue.is_dead):
            queue.touched = self.now
        worn = [
            m
            for m in messages
            if counted and not queue.is_dead and m.count >= queue.props.max_delivery
        ]
        for message in messages:
            message.token = message.bound = 0
            if message in worn or not self._fresh(message):
                continue
            message.count -= not counted
            message.properties = {**message.properties, **(properties or {})}
            message.expiry_stamp = self._tick_stamp()
            message.state = "active"
            if message.deferred:
                message.state = "deferred"
            elif delay:
                message.state, message.until = "delayed", self.now + delay
                message.stamp = self._tick_stamp()
        for message in worn:
            self._bury(queue, message, "MaxDeliveryCountExceeded", properties)
        self._expire(queue, [m for m in messages if m not in worn and not self._fresh(m)])

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
        properties: dict[str, object] | None = None,
    ) -> None:
        queue.messages.remove(message)
        self._drop_session(queue, message.group)
        dead = self.queues[queue.name + DEAD]
        message.sequence, message.state, message.token = dead.next, "active", 0
        message.expires, message.reason = None, reason
        message.properties = {**message.properties, **(properties or {})}
        dead.next += 1
        dead.messages.append(message)

    def _end_session(self, queue: Q, key: str) -> None:
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
        for queue in self.queues.values():
            for key in sorted(queue.sessions, key=lambda k: queue.sessions[k].token):
                session = queue.sessions.get(key)
                if session is not None and session.token and session.bound:
                    self._end_session(queue, key)
            bound = [m for m in queue.messages if m.state == "locked" and m.bound]
            self._end(queue, sorted(bound, key=lambda m: m.token), queue.props.counting == "all")

    def _tick(self, command: c.Tick) -> None:
        now = self.now
        for receiver in [r for r in self.receivers if r.deadline and r.deadline <= now]:
            self.notices.append((receiver.number, "timed-out"))
            self.receivers.remove(receiver)
        ended = [
            (session.until, session.stamp, queue, key)
            for queue in self.queues.values()
            for key, session in queue.sessions.items()
            if session.token and session.until <= now
        ]
        for _, _, queue, key in sorted(ended, key=lambda e: e[:2]):
            self._end_session(queue, key)
        for queue in self.queues.values():
            if queue.props.grouping != "session":
                lost = [m for m in queue.messages if m.state == "locked" and m.until <= now]
                lost.sort(key=lambda m: (m.until, m.stamp))
                self._end(queue, lost, queue.props.counting == "all")
        for queue in self.queues.values():
            living = [m for m in queue.messages if m.state in ("active", "delayed", "deferred")]
            stale = [m for m in living if not self._fresh(m)]
            stale.sort(key=lambda m: (m.expires, m.expiry_stamp))
            self._expire(queue, stale)
        for queue in self.queues.values():
            due = [
                m
                for m in queue.messages
                if (m.state == "scheduled" and m.enqueued <= now)
                or (m.state == "delayed" and m.until <= now)
            ]
            due.sort(key=lambda m: (m.until, m.stamp))
            for message in due:
                if message.state == "scheduled":
                    message.sequence, message.enqueued = queue.next, now
                    message.expiry_stamp = self._tick_stamp()
                    queue.next += 1
                    queue.used = now
                message.state = "active"
        for queue in self.queues.values():
            queue.seen = {k: v for k, v in queue.seen.items() if v[0] > now}
        for name in [q.name for q in self.queues.values() if not q.is_dead]:
            queue, dead = self.queues[name], self.queues[name + DEAD]
            idle = queue.props.idle_delete_ms
            used = max(queue.used, queue.touched, dead.used, dead.touched, self.started)
            in_use = any(r.queue in (name, dead.name) for r in self.receivers) or any(
                m.state == "locked" for m in queue.messages + dead.messages
            )
            if idle is not None and not in_use and used + idle <= now:
                del self.queues[name], self.queues[dead.name]

    def _createqueue(self, command: c.CreateQueue) -> None:
        if command.queue.casefold() in [name.casefold() for name in self.queues]:
            raise errors.AlreadyExists("queue", command.queue)
        self.queues[command.queue] = Q(command.queue, command.properties, self.now)
        name = command.queue + DEAD
        self.queues[name] = Q(name, self._dead(command.properties), self.now)

    def _dead(self, props: QueueProperties) -> QueueProperties:
        return QueueProperties(lock_ms=props.lock_ms, counting=props.counting)

    def _deletequeue(self, command: c.DeleteQueue) -> None:
        queue = self._own(command.queue)
        names = (queue.name, queue.name + DEAD)
        self.notices += [
            (r.number, "deleted") for n in names for r in self.receivers if r.queue == n
        ]
        self.receivers = [r for r in self.receivers if r.queue not in names]
        del self.queues[names[0]], self.queues[names[1]]

    def _updatequeue(self, command: c.UpdateQueue) -> None:
        self._update(self._own(command.queue), command.properties)

    def _update(self, queue: Q, props: QueueProperties) -> None:
        before = queue.receives
        queue.props, queue.used = props, self.now
        self.queues[queue.name + DEAD].props = self._dead(props)
        if before and not queue.receives:
            mine = [r for r in self.receivers if r.queue == queue.name]
            self.notices += [(r.number, "paused") for r in mine]

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
        self._queue(command.queue)

    def _purge(self, command: c.Purge) -> None:
        queue = self._queue(command.queue)
        states = {STATES[number] for number in command.states}
        for message in list(queue.messages):
            old = message.enqueued < command.before_ms
            if message.state in states and message.sequence >= command.first and old:
                queue.messages.remove(message)
                self._drop_session(queue, message.group)

    def _resubmit(self, command: c.Resubmit) -> None:
        queue = self._queue(command.queue)
        if not queue.is_dead:
            raise errors.NotAllowed(queue.name, "")
        target = self._own(command.target or queue.name.removesuffix(DEAD))
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
            if not command.keep_reason:
                message.reason = None
            target.next += 1
            target.messages.append(message)
            target.used = self.now

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

    def _check_room(self, queue: Q, messages: list[Msg]) -> None:
        props, size = queue.props, sum(m.size for m in queue.messages + messages)
        if not messages:
            return
        count = len(queue.messages) + len(messages)
        if props.max_messages is not None and count > props.max_messages:
            raise errors.QuotaExceeded(queue.name, "", 0, 0)
        if props.max_bytes is not None and size > props.max_bytes:
            raise errors.QuotaExceeded(queue.name, "", 0, 0)

    def _life(self, queue: Q, ttl: int | None) -> int | None:
        lives = [t for t in (ttl, queue.props.ttl_ms) if t is not None]
        return min(lives) if lives else None

    def _send(self, command: c.Send) -> None:
        queue = self._own(command.queue)
        if not queue.sends:
            raise errors.Disabled(queue.name, "")
        messages: list[Msg] = []
        keys: dict[str, int] = {}
        answer = []
        sequence = queue.next
        for new in command.messages:
            self._check_fit(queue, Msg(0, new, "", 0, None, None).size, new.group)
        for at, new in enumerate(command.messages):
            key = command.keys[at] if command.keys else None
            key = key if key is not None else decode_envelope(new.envelope).id
            if queue.props.duplicate_detection and key:
                until, before = queue.seen.get(key, (0, 0))
                before = keys.get(key, before if until > self.now else 0)
                if before:
                    if command.refuse_duplicates:
                        raise errors.Duplicate(queue.name, key, before)
                    answer.append(before)
                    continue
                keys[key] = sequence
            due = new.due_ms if new.due_ms > self.now else 0
            ttl = self._life(queue, new.ttl_ms)
            expires = None if ttl is None else (due or self.now) + ttl
            state = "scheduled" if due else "active"
            message = Msg(sequence, new, state, due or self.now, expires, ttl, until=due)
            messages.append(message)
            answer.append(sequence)
            sequence += 1
        self._check_room(queue, messages)
        for message in messages:
            message.stamp = message.expiry_stamp = self._tick_stamp()
        for key, number in keys.items():
            queue.seen[key] = (self.now + queue.props.duplicate_window_ms, number)
        if messages:
            queue.used = self.now
        queue.messages += messages
        queue.next = sequence
        self.answer = answer

    def _cancel(self, command: c.Cancel) -> None:
        queue = self._queue(command.queue)
        scheduled = {m.sequence: m for m in queue.messages if m.state == "scheduled"}
        for at, sequence in enumerate(command.sequences):
            message = scheduled.get(sequence)
            if message is None or sequence in command.sequences[:at]:
                raise errors.MessageNotFound(queue.name, sequence, "scheduled")
        for sequence in command.sequences:
            queue.messages.remove(scheduled[sequence])
            self._drop_session(queue, scheduled[sequence].group)

    def _receive(self, command: c.Receive) -> None:
        queue = self._receivable(command.queue)
        self._check_bound(command)
        self._check_session(queue, command.session)
        to = Rcv(
            command.receiver, queue.name, command.limit, command.delete, command.lock_ms,
            command.bound, command.by_id, command.session, True, command.deadline_ms,
        )  # fmt: skip
        for _ in range(command.limit):
            if ready := self._ready(queue, command.session):
                self.answered.append(self._deliver(queue, to, ready[0]))
        if not self.answered:
            queue.touched = self.now
            if command.deadline_ms > self.now:
                self.receivers.append(to)

    def _attach(self, command: c.Attach) -> None:
        queue = self._receivable(command.queue)
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
        to = self._find(command.receiver)
        if to is None:
            raise errors.NotFound("receiver", "")
        waits = [r for r in self.receivers if r is not to and r.bound == to.number]
        self.notices += [(r.number, "timed-out") for r in waits]
        self.receivers = [r for r in self.receivers if r is not to and r not in waits]
        queue = self.queues[to.queue]
        if to.session and not to.once:
            key = next(k for k, s in queue.sessions.items() if s.token == to.session)
            if queue.sessions[key].bound:
                self._end_session(queue, key)
        for each in self.queues.values():
            held = [m for m in each.messages if m.state == "locked" and m.bound == to.number]
            held.sort(key=lambda m: m.token)
            self._end(each, held, each.props.counting == "all")

    def _receivedeferred(self, command: c.ReceiveDeferred) -> None:
        queue = self._receivable(command.queue)
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
        to = Rcv(
            0, queue.name, 0, command.delete, command.lock_ms, command.bound, command.by_id,
            command.session,
        )  # fmt: skip
        for sequence in command.sequences:
            self.answered.append(self._deliver(queue, to, deferred[sequence]))

    def _peek(self, command: c.Peek) -> None:
        self._queue(command.queue)

    def _held(self, command: c.Settle) -> list[tuple[Q, Msg]]:
        queue = None if command.queue is None else self._queue(command.queue)
        session = None
        if command.session and queue is not None:
            session = self._session_of(queue, command.session)
        held: list[tuple[Q, Msg]] = []
        lost: list[int | str] = []
        for name in command.locks:
            found = [
                (q, m)
                for q in self.queues.values()
                for m in q.messages
                if m.state == "locked"
                and (m.token == name or (m.by_id and name == decode_envelope(m.new.envelope).id))
                and not any(m is other for _, other in held)
            ]
            holding = [
                (q, m)
                for q, m in sorted(found, key=lambda pair: pair[1].token)
                if (queue is None or q is queue)
                and self._until(q, m) > self.now
                and (session is None or m.group == session)
            ]
            if holding:
                held.append(holding[0])
            elif command.partial:
                lost.append(name)
            else:
                raise errors.LockLost(command.queue, name)
        self.answer = lost
        for settled_in, _ in held:
            if settled_in.props.idle_delete_ms is not None or settled_in.is_dead:
                settled_in.touched = self.now
        return held

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
        for queue, message in self._held(command):
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
        if any(queue.is_dead for queue, _ in held):
            raise errors.NotAllowed("", "")
        for queue, message in held:
            self._bury(queue, message, command.reason, dict(command.properties))

    def _renew(self, command: c.Renew) -> None:
        held = self._held(command)
        if any(queue.props.grouping == "session" for queue, _ in held):
            raise errors.NotAllowed("", "")
        for queue, message in held:
            message.until = self.now + (command.lock_ms or queue.props.lock_ms)
            message.stamp = self._tick_stamp()

    def _acceptsession(self, command: c.AcceptSession) -> None:
        queue = self._receivable(command.queue)
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
        session.until = self.now + (command.lock_ms or queue.props.lock_ms)
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
