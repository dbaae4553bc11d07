"""Many clients doing everything at random, from one seed, against the core and the reference.

After every command the two are compared: refusals, answers, deliveries, every message's state. The
invariants are checked, and that a replay of the journal gives the state that lives. Now and then
the broker crashes, losing the last few commands and everything that passes, or in the middle of
what ticks had still to do.
"""

import hashlib
from collections.abc import Callable
from random import Random

from msgspec import structs

from posthouse.core import Outcome, State, decide, evolve, next_deadline_ms
from posthouse.core import commands as c
from posthouse.core.dump import dump
from posthouse.core.errors import Refused
from posthouse.core.message import (
    Attempt,
    Envelope,
    NewMessage,
    Note,
    Properties,
    decode_envelope,
    encode_envelope,
)
from posthouse.core.model import (
    DEAD,
    SUBSCRIPTION,
    TRANSFER,
    Grouping,
    LimitCounts,
    Order,
    Overflow,
    QueueProperties,
    Schedule,
    dead_letter_queue,
    subscription_queue,
)
from posthouse.core.plan import Delivered
from posthouse.core.records import Kept, Locked, Taken, decode, encode, is_kept, span
from posthouse.core.rules import Rule
from tests.invariants import check, check_delivery, check_positions
from tests.simulate.meanings import ACTIONS, FILTERS, PATTERNS
from tests.simulate.moments import MORNINGS, WHENS, ZONES
from tests.simulate.reference import Given, Msg, Q, Reference, View

QUEUES = ("orders", "sessions", "groups", "urgent", "brief", "desk", "shelf", "runs")
FORWARDING = ("desk", "shelf")  # most often
TOPICS = ("news", "alerts")
FAN_OUTS = ("bell", "flag")  # what comes from the flag is not acknowledged
SUBSCRIPTIONS = (
    subscription_queue("news", "all"),
    subscription_queue("news", "some"),
    subscription_queue("news", "sessions"),
    subscription_queue("alerts", "some"),
)
WITH_SESSIONS = ("sessions", subscription_queue("news", "sessions"))
SESSIONS = ("s1", "s2", "s3")
GROUPINGS: dict[str, Grouping] = {"groups": "group", "runs": "run"}
LIMIT_COUNTS: tuple[LimitCounts, ...] = ("all", "waiting")
OVERFLOWS: tuple[Overflow, ...] = (
    "reject", "block", "block", "drop-oldest", "drop-newest", "to-dead-letter"
)  # fmt: skip


class Mismatch(AssertionError):
    """The core and the reference disagree."""


class Simulator:
    """One seed's world. `history` is a digest of everything that was seen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = State("sim")
        self.reference = Reference()
        self.journal: list[tuple[int, Kept]] = []
        self.position = 1
        self.now_ms = self.started_ms = self.random.choice(MORNINGS)
        self.epoch = 0
        self.steps = 0
        self.history = hashlib.sha256()
        self._receiver = 0
        self._body = 0
        self._old_tokens: list[int] = [1, 2, 3]
        self._old_transactions: list[int] = [1]
        # What most queues do with groups: in some worlds they give runs.
        self._grouping: Grouping = self.random.choice(["none", "none", "run"])
        self._start()
        for name in (*TOPICS, *FAN_OUTS, *QUEUES, *SUBSCRIPTIONS):
            if self.random.random() < 0.9:
                self._do(self._create(name))

    def run(self, steps: int) -> None:
        for number in range(steps):
            self._step()
            if number % 20 == 19:
                self._check_replay()
            if self.random.random() < 0.01:
                self._crash()

    # One step.

    def _step(self) -> None:
        random = self.random
        if random.random() < 0.35:
            self._pass_time()
        actions = self._actions()
        action = random.choices([a for a, _ in actions], [w for _, w in actions])[0]
        command = action()
        if command is not None:
            self._do(command)

    def _pass_time(self) -> None:
        """Ticks happen when due; now and then the engine is late."""
        random = self.random
        end_ms = self.now_ms + random.choice([1, 10, 100, 100, 500, 1_000, 5_000, 20_000])
        if random.random() < 0.1:
            self.now_ms = end_ms
            return
        ticks = 0  # at the same moment
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= end_ms:
            ticks = ticks + 1 if due_ms <= self.now_ms else 0
            if ticks > 100:
                raise Mismatch(f"ticks go on for ever at {self.now_ms}")
            self.now_ms = max(self.now_ms, due_ms)
            self._do(c.Tick())
        self.now_ms = end_ms

    def _do(self, command: c.Command) -> None:
        self.steps += 1
        before = dump(self.state, passing=True) if self.random.random() < 0.05 else None
        expected = self.reference.run(command, self.now_ms)
        refused: type[Refused] | None = None
        outcome = Outcome([])
        try:
            outcome = decide(self.state, command, self.now_ms)
        except Refused as error:
            refused = type(error)
        if before is not None and before != dump(self.state, passing=True):
            raise Mismatch(f"decide changed the state: {command}")
        self._apply(outcome)
        deliveries = list(outcome.deliveries)
        ticks = 0
        forwards = [self.state.queues[name].relays for name in self.state.dispatch_pending]
        crash = len(forwards) > 0 and all(forwards) and self.random.random() < 0.1
        while (
            len(self.state.dispatch_pending) > len(self.state.dispatch_blocked) and not crash
        ):  # what the reference hands out at once, the core does in ticks
            more = decide(self.state, c.Tick(), self.now_ms)
            self._apply(more)
            deliveries += more.deliveries
            self._tick_reference()
            ticks += 1
            if ticks > 100:
                raise Mismatch(f"ticks go on for ever after {command}")
        self._note(command, refused, outcome)
        if refused is not expected:
            raise Mismatch(f"{command} at {self.now_ms}: {refused}, the reference says {expected}")
        self._compare(command, outcome.answer, deliveries)
        check(self.state, self.now_ms)
        if crash:
            self._recover()

    def _tick_reference(self) -> None:
        """A tick that belongs to the command before: what came of that is kept."""
        reference = self.reference
        given, granted, notices = reference.given, reference.granted, reference.notices
        answered, answer, admitted = reference.answered, reference.answer, reference.admitted
        results, late, first_ids = reference.results, reference.late, reference.first_ids
        reference.run(c.Tick(), self.now_ms)
        reference.admitted = admitted + reference.admitted
        reference.given = given + reference.given
        reference.granted = granted + reference.granted
        reference.notices = notices + reference.notices
        reference.answered, reference.answer = answered, answer
        reference.results, reference.late, reference.first_ids = results, late, first_ids

    def _apply(self, outcome: Outcome) -> None:
        for record in outcome.records:
            if is_kept(record):
                data = encode(record)
                self.history.update(data)
                record = decode(data)  # type: ignore[assignment]
                assert is_kept(record)
                if isinstance(record, Locked | Taken):
                    check_delivery(self.state, record)
                self.journal.append((self.position, record))
                evolve(self.state, record, self.position)
                self.position += span(record)
            else:
                evolve(self.state, record, 0)

    def _note(self, command: c.Command, refused: object, outcome: Outcome) -> None:
        seen = (self.now_ms, command, refused, outcome.answer, outcome.deliveries)
        self.history.update(repr(seen).encode())

    # Comparing.

    def _compare(
        self,
        command: c.Command,
        answer: c.Answer,
        deliveries: list[Delivered],
    ) -> None:
        reference = self.reference
        answered = answer.deliveries if isinstance(answer, c.Received) else []
        given = [d for d in deliveries if isinstance(d, c.Delivery)]
        granted = [d for d in deliveries if isinstance(d, c.Granted)]
        if isinstance(answer, c.Granted):
            granted.insert(0, answer)
        notices = [(d.receiver, d.kind) for d in deliveries if isinstance(d, c.Notice)]
        self._same(command, "answer", _plain(answered), [_short(g) for g in reference.answered])
        # What each receiver got, in its order; between receivers there is no order to compare.
        expected = sorted(reference.given, key=lambda g: g[0])
        given.sort(key=lambda d: d.receiver)
        self._same(command, "deliveries", _plain(given), [_short(g) for g in expected])
        reference.given = expected
        grants = [(d.receiver, d.session) for d in granted]
        self._same(command, "grants", sorted(grants), sorted(reference.granted))
        reference.granted = grants
        self._same(command, "notices", sorted(notices), sorted(reference.notices))
        admitted = [
            (d.receiver, list(d.enqueued.sequences))
            for d in deliveries
            if isinstance(d, c.Admitted)
        ]
        self._same(command, "admitted", sorted(admitted), sorted(reference.admitted, key=_first))
        locked = {(k.queue.name, k.message.sequence): t for t, k in self.state.locks.items()}
        reference.learn([d.token for d in answered + given], [d.token for d in granted], locked)
        self._old_tokens += [d.token for d in answered + given] + [d.token for d in granted]
        del self._old_tokens[:-40]
        if isinstance(answer, c.Enqueued):
            self._same(command, "sequences", list(answer.sequences), reference.answer)
            self._same(command, "first ids", answer.first_ids, reference.first_ids)
        if isinstance(command, c.Send) and isinstance(answer, c.Waiting):
            self._same(command, "wait", "waiting", reference.answer)
        if isinstance(answer, c.Settled):
            self._same(command, "lost", list(answer.lost), reference.answer)
            if answer.results:
                self._same(command, "results", list(answer.results), reference.results)
        if isinstance(answer, c.Begun):
            reference.transactions[-1].number = answer.transaction
            self._old_transactions = [*self._old_transactions[-5:], answer.transaction]
        if isinstance(answer, c.Committed):
            committed = ([list(each.sequences) for each in answer.sent], answer.settled)
            self._same(command, "committed", committed, reference.answer)
        if isinstance(answer, c.RolledBack):
            self._same(command, "committed", "rolled back", reference.answer)
        if isinstance(command, c.ListSessions) and isinstance(answer, list):
            self._same(command, "sessions", set(answer), reference.answer)
        if isinstance(command, c.GetSessionState):
            self._same(command, "session state", answer, reference.answer)
        if isinstance(command, c.ListSchedules) and isinstance(answer, list):
            schedules = [
                (s.name, s.queue, s.next_ms, s.paused, s.fired, s.last_ms, s.problem != "")
                for s in answer
                if isinstance(s, Schedule)
            ]
            self._same(command, "schedules", schedules, reference.answer)
        if isinstance(command, c.ListRules) and isinstance(answer, list):
            rules = [Rule(r.name, r.filter, r.action) for r in answer if isinstance(r, Rule)]
            self._same(command, "rules", rules, reference.answer)
        if isinstance(command, c.ListSubscriptions) and isinstance(answer, list):
            names = [each.name for each in answer if isinstance(each, c.QueueInfo)]
            self._same(command, "subscriptions", names, reference.answer)
        if isinstance(answer, c.QueueInfo):
            counts = (answer.subscriptions, answer.rules, answer.transfer)
            self._same(command, "information", counts, reference.answer)
        seen, wanted = self._view(), reference.view()
        if seen != wanted:
            seen, wanted = _differing(seen, wanted), _differing(wanted, seen)
            raise _mismatch(f"messages after {command} at {self.now_ms}", seen, wanted)

    def _same(self, command: c.Command, what: str, core: object, reference: object) -> None:
        if core != reference:
            raise _mismatch(f"{what} after {command} at {self.now_ms}", core, reference)

    def _view(self) -> View:
        view: View = {}
        for name in self.state.queues:
            answer = decide(self.state, c.Peek(name, limit=c.PAGE_MAX), self.now_ms).answer
            assert isinstance(answer, c.Peeked)
            view[name] = [_seen(each) for each in answer.messages]
        return view

    # Crashing.

    def _replay(self, journal: list[tuple[int, Kept]]) -> State:
        state = State("sim")
        for position, record in journal:
            evolve(state, record, position)
        return state

    def _check_replay(self) -> None:
        if dump(self._replay(self.journal)) != dump(self.state):
            raise Mismatch("a replay of the journal differs from the live state")
        check_positions(self.state, self.journal)

    def _crash(self) -> None:
        """Goes on for a few commands that are then lost, and recovers from what came before."""
        kept, position, reference = len(self.journal), self.position, self.reference.copy()
        for _ in range(self.random.randrange(6)):
            self._step()
        cut = self.random.randrange(kept, len(self.journal) + 1)
        # Any prefix is a sound state.
        check(self._replay(self.journal[:cut]), self.now_ms, handed_on=False)
        del self.journal[kept:]
        self.position = position
        self.reference = reference
        self._recover()

    def _recover(self) -> None:
        """After a while; what falls due meanwhile is late."""
        self.now_ms += self.random.choice([0, 0, 3_000, 150_000])
        self.state = self._replay(self.journal)
        self.reference.restart()
        self._start()

    def _start(self) -> None:
        self.epoch += 1
        self._do(c.Start(self.epoch, self.random.getrandbits(32)))

    # What clients do.

    def _actions(self) -> list[tuple[Callable[[], c.Command | None], int]]:
        return [
            (self._create, 5),
            (self._send, 40),
            (self._receive, 20),
            (self._attach, 8),
            (self._credit, 8),
            (self._detach, 3),
            (self._settle, 50),
            (self._settle_late, 12),
            (self._accept, 8),
            (self._in_session, 10),
            (self._by_number, 6),
            (self._manage, 8),
            (self._redirect, 4),
            (self._rule, 3),
            (self._transact, 40),
            (self._schedule, 8),
            (self._step_clock, 2),
        ]

    def _queue(self) -> str:
        """Most often one with something to receive."""
        random, models = self.random, self.reference.queues.values()
        crowded = [blocked.queue for blocked in self.reference.blocked]
        if crowded and random.random() < 0.4:
            return random.choice(crowded)
        if random.random() < 0.6:
            full = [q.name for q in models if any(m.state == "active" for m in q.messages)]
            if full:
                return random.choice(full)
        name = random.choice([*QUEUES, *SUBSCRIPTIONS])
        return name + random.choice(["", "", "", "", "", DEAD, TRANSFER])

    def _there(self, *names: str) -> list[str]:
        """Those of them that there are, most often."""
        there = [name for name in names if name in self.reference.queues]
        return there if there and self.random.random() < 0.9 else list(names)

    def _number(self) -> int:
        """Of a receiver or a sender; now and then one in use."""
        in_use = [*self.state.receivers, *self.state.blocked]
        if in_use and self.random.random() < 0.01:
            return self.random.choice(in_use)
        self._receiver += 1
        return self._receiver

    def _create(self, name: str = "") -> c.Command:
        random = self.random
        every = [*QUEUES, *TOPICS, *FAN_OUTS, *SUBSCRIPTIONS]
        missing = [each for each in every if each not in self.reference.queues]
        if not missing or random.random() < 0.1:
            missing = every
        name = name or random.choice(missing)
        if name in TOPICS:
            return c.CreateQueue(name, self._topic_properties(name))
        if name in FAN_OUTS:
            return c.CreateQueue(name, self._fan_out_properties(name))
        order: Order = "priority" if name == "urgent" or random.random() < 0.2 else "arrival"
        subscribes = SUBSCRIPTION in name
        sessions = name in WITH_SESSIONS
        overflow = random.choice(OVERFLOWS)
        most = [None, 2, 4] if overflow == "block" else [None, None, None, 4, 30]
        forwards = 0.7 if name in FORWARDING else 0.3 if subscribes else 0.05
        grouping: Grouping = "session" if sessions else GROUPINGS.get(name, self._grouping)
        properties = QueueProperties(
            lock_ms=random.choice([0, 500, 2_000, 2_000, 10_000]),
            max_delivery=random.choice([1, 2, 3, 10]),
            ttl_ms=random.choice([None, 3_000]) if name == "brief" or subscribes else None,
            max_messages=random.choice(most),
            max_bytes=random.choice([None, None, None, 400, 3_000]),
            max_message_bytes=None if subscribes else random.choice([None, None, 150]),
            requires_session=sessions,
            grouping=grouping,
            duplicate_detection=not subscribes and random.random() < 0.3,
            duplicate_window_ms=random.choice([100, 5_000]),
            dead_letter_expired=random.random() < 0.5,
            idle_delete_ms=60_000 if "alerts" not in name and random.random() < 0.1 else None,
            order=order,
            counting=random.choice(["all", "abandon"]),
            dead_letter_filter_errors=random.random() < 0.5,
            forward_to=self._target(forwards),
            forward_dead_to=self._target(0.15),
            backoff_ms=random.choice([[], [], [200], [100, 2_000]]),
            overflow=overflow,
            limit_counts=random.choice(LIMIT_COUNTS),
            late_settling=grouping == "none" and random.random() < 0.5,
            forward_dead_unchanged=random.random() < 0.5,
            max_locked=random.choice([None, None, 1, 3]),
        )
        if not subscribes:
            return c.CreateQueue(name, properties)
        rules = [self._a_rule(name, f"r{n}") for n in range(random.choice([1, 1, 2, 3]))]
        return c.CreateSubscription(name, properties, rules)

    def _topic_properties(self, name: str) -> QueueProperties:
        random = self.random
        return QueueProperties(
            delivery="topic",
            ttl_ms=random.choice([None, None, 4_000]),
            max_messages=random.choice([None, None, None, 40]),
            limit_counts=random.choice(LIMIT_COUNTS),
            duplicate_detection=random.random() < 0.3,
            duplicate_window_ms=random.choice([100, 5_000]),
            idle_delete_ms=random.choice([None, 60_000]) if name == "alerts" else None,
        )

    def _fan_out_properties(self, name: str) -> QueueProperties:
        random = self.random
        return QueueProperties(
            delivery="fan-out" if name == "bell" else "fan-out-unacknowledged",
            lock_ms=random.choice([500, 2_000, 10_000]),
            max_delivery=random.choice([1, 2, 10]),
            max_messages=random.choice([None, None, 3]),
            duplicate_detection=random.random() < 0.3,
            dead_letter_expired=random.random() < 0.5,
            idle_delete_ms=random.choice([None, None, 20_000]),
            order=random.choice(["arrival", "priority"]),
            counting=random.choice(["all", "abandon"]),
            forward_dead_to=self._target(0.2),
            backoff_ms=random.choice([[], [], [200]]),
            overflow=random.choice(OVERFLOWS),
            limit_counts=random.choice(LIMIT_COUNTS),
        )

    def _target(self, chance: float) -> str | None:
        random = self.random
        if random.random() >= chance:
            return None
        return random.choice(self._there(*QUEUES, *TOPICS, *FAN_OUTS))

    def _a_rule(self, subscription: str, name: str) -> Rule:
        """Only one subscription of a topic asks for patterns, so that the order is known."""
        random = self.random
        wanted = random.choice(FILTERS)
        if subscription == SUBSCRIPTIONS[1] and random.random() < 0.4:
            wanted = random.choice(PATTERNS)
        return Rule(name, wanted, random.choice(list(ACTIONS)) if random.random() < 0.3 else "")

    def _send(self, queue: str = "") -> c.Send:
        random = self.random
        messages = []
        for _ in range(random.choice([1, 1, 1, 2, 5])):
            self._body += 1
            ttl_ms = random.choice([None, None, None, 0, 50, 5_000])
            name = random.choice(["", f"id{random.randrange(20)}", f"unique{self._body}"])
            properties: Properties = {"n": random.randrange(10)} if random.random() < 0.5 else {}
            if random.random() < 0.5:
                properties["colour"] = random.choice(["red", "blue"])
            subject = random.choice(["", "events", "events.red", "events.a.red"])
            envelope = Envelope(id=name, subject=subject, properties=properties)
            due_ms = self.now_ms + random.choice([-5, 20, 3_000]) if random.random() < 0.15 else 0
            messages.append(
                NewMessage(
                    encode_envelope(envelope),
                    b"body %d" % self._body + bytes(random.choice([0, 0, 0, 60])),
                    random.choice([None, None, b"native"]),
                    random.choice([*SESSIONS, None]) if random.random() < 0.9 else None,
                    random.randrange(10),
                    ttl_ms,
                    due_ms,
                )
            )
        keys = None
        if random.random() < 0.2:
            keys = [random.choice([None, f"key{random.randrange(10)}"]) for _ in messages]
        queue = queue or random.choice(self._there(*QUEUES, *TOPICS, *TOPICS, *FAN_OUTS))
        if random.random() < 0.03:
            queue = self._queue()
        sender = self._number() if random.random() < 0.5 else 0
        deadline_ms = self.now_ms + random.choice([-1, 500, 5_000, 30_000]) if sender else 0
        return c.Send(queue, messages, keys, random.random() < 0.3, deadline_ms, sender)

    def _session_token(self, queue: str) -> int:
        """Most often a held one where one is needed."""
        random = self.random
        if queue not in WITH_SESSIONS:
            return random.choice(self._old_tokens) if random.random() < 0.03 else 0
        held = [s.token for s in self._model(queue).sessions.values() if s.token]
        if held and random.random() < 0.9:
            return random.choice(held)
        return random.choice([0, *self._old_tokens])

    def _model(self, queue: str) -> Q:
        return self.reference.queues.get(queue) or Q(queue, QueueProperties(), 0)

    def _deadline(self) -> int:
        return self.random.choice([0, self.now_ms - 1, self.now_ms + 50, self.now_ms + 5_000])

    def _bound(self, queue: str, session: int) -> int:
        """Sometimes a receiver; most often one that fits."""
        random = self.random
        if random.random() < 0.6:
            return 0
        if random.random() < 0.05:
            return random.choice([*self.state.receivers, 999_999])
        mine = [
            r for r in self.state.receivers.values() if (r.queue, r.session) == (queue, session)
        ]
        return random.choice([r.receiver for r in mine] or [0])

    def _receive(self) -> c.Command:
        random = self.random
        queue = self._queue()
        session = self._session_token(queue)
        return c.Receive(
            queue,
            self._number(),
            random.choice([1, 1, 2, 10]),
            self._deadline(),
            random.random() < 0.2,
            random.choice([None, None, None, 700, 0]),
            self._bound(queue, session),
            random.random() < 0.3,
            session,
        )

    def _attach(self) -> c.Command:
        random = self.random
        queue = random.choice(FAN_OUTS) if random.random() < 0.3 else self._queue()
        return c.Attach(
            queue,
            self._number(),
            random.choice([0, 1, 3, 50]),
            random.random() < 0.1,
            random.choice([0, 0, 700]),
            random.random() < 0.5,
            random.random() < 0.3,
            self._session_token(queue),
        )

    def _some_receiver(self) -> int:
        return self.random.choice([*self.state.receivers, *self.state.blocked, 999_999])

    def _credit(self) -> c.Command:
        random = self.random
        drain = random.random() < 0.3
        return c.Credit(self._some_receiver(), random.choice([0, 1, 5]), drain)

    def _detach(self) -> c.Command:
        return c.Detach(self._some_receiver())

    def _settle(self) -> c.Command | None:
        random = self.random
        held = [(q, m) for q in self.reference.queues.values() for m in q.messages if m.token]
        free = [(q, m) for q, m in held if not self.reference.settling(m.token)]
        if random.random() < 0.9:
            held = free
        if not held:
            return None
        queue, message = random.choice(held)
        others = [m for q, m in held if q is queue]
        names: list[c.LockName] = [self._lock_name(message)]
        more = random.choice([0, 0, 0, 1, 2])
        names += [self._lock_name(random.choice(others)) for _ in range(more)]
        if random.random() < 0.1:
            names += random.choice([[random.choice(self._old_tokens)], ["id1"]])
        if random.random() < 0.1:
            names.append(self._attempt(random.choice(others)))
        random.shuffle(names)
        partial = random.random() < 0.3
        session = self._session_token(queue.name) if random.random() < 0.3 else 0
        numbered = any(isinstance(each, Attempt) for each in names)
        name = queue.name if session or numbered or random.random() < 0.9 else None
        if queue.temporary and random.random() < 0.8:
            name = queue.name.partition(SUBSCRIPTION)[0]
        if random.random() < 0.02:
            name = self._queue()
        properties: Properties = {"changed": self.steps} if random.random() < 0.3 else {}
        commands: list[c.Command] = [
            c.Complete(name, names, partial, session),
            c.Abandon(name, names, partial, session, properties, random.choice([0, 0, 0, 300])),
            c.Release(name, names, partial, session),
            c.Defer(name, names, partial, session, properties),
            c.DeadLetter(name, names, partial, session, "why", "because", properties),
            c.Renew(name, names, partial, session, random.choice([0, 5_000])),
        ]
        return random.choices(commands, [4, 4, 2, 2, 2, 2])[0]

    def _settle_late(self) -> c.Command | None:
        """Deliveries by their numbers, most often those whose locks have ended."""
        random, models = self.random, list(self.reference.queues.values())
        back = [
            q
            for q in models
            if any(m.count and m.state in ("active", "delayed") for m in q.messages)
        ]
        late = [q for q in back if q.props.late_settling]
        queue = random.choice(late if late and random.random() < 0.8 else back or models)
        names: list[c.LockName] = [
            Attempt(random.randrange(queue.next + 2), random.choice([1, 2]))
            for _ in range(random.choice([0, 0, 0, 1]))
        ]
        delivered = [m for m in queue.messages if m.count]
        if delivered:
            more = random.choice([1, 1, 2, 3])
            names += [self._attempt(random.choice(delivered)) for _ in range(more)]
        if not names:
            return None
        random.shuffle(names)
        partial = random.random() < 0.5
        commands: list[c.Command] = [
            c.Complete(queue.name, names, partial),
            c.Abandon(queue.name, names, partial),
            c.Renew(queue.name, names, partial, lock_ms=random.choice([0, 5_000])),
            c.DeadLetter(queue.name, names, partial),
        ]
        return random.choices(commands, [4, 2, 4, 1])[0]

    def _attempt(self, message: Msg) -> Attempt:
        """Its last one, most often."""
        return Attempt(message.sequence, message.count + self.random.choice([0, 0, 0, 0, -1, 1]))

    def _transact(self) -> c.Command | None:
        random = self.random
        transactions = self.reference.transactions
        if not transactions or (len(transactions) < 4 and random.random() < 0.1):
            return c.Begin(random.choice([300, 5_000, 60_000, 60_000]))
        chosen = random.choice(transactions)
        number, end = chosen.number, random.random()
        if random.random() < 0.02:
            number = random.choice(self._old_transactions)
        if chosen.work and end < 0.35:
            return c.Commit(number) if end < 0.28 else c.RollBack(number)
        asked = self._settle()
        if asked is None or random.random() < 0.4:
            asked = self._send(self._settled_in(number))
        if isinstance(asked, c.Send | c.Complete | c.Abandon | c.Release | c.Defer | c.DeadLetter):
            return c.Work(number, asked)
        return asked

    def _schedule(self) -> c.Command:
        random = self.random
        name = random.choice(["beat", "hourly", "nightly"])
        send = self._send()
        message = structs.replace(send.messages[0], due_ms=0)
        when, zone = random.choice(WHENS), random.choice(ZONES)
        new = (name not in self.reference.schedules) == (random.random() < 0.9)
        commands: list[c.Command] = [
            c.SetSchedule(send.queue, name, when, message, zone, new),
            c.PauseSchedule(name),
            c.ResumeSchedule(name),
            c.CancelSchedule(name),
            c.ListSchedules(),
        ]
        return random.choices(commands, [4, 1, 2, 1, 3])[0]

    def _step_clock(self) -> c.Command:
        step_ms = self.random.choice([1, 700, 30_000])
        self.now_ms += step_ms
        return c.StepClock(step_ms)

    def _settled_in(self, number: int) -> str:
        """Half the time, where what a transaction sends may need the room that it leaves."""
        of = [each for each in self.reference.transactions if each.number == number]
        tokens = {token for each in of for token in each.tokens}
        queues = self.reference.queues.values()
        names = [q.name.partition("/")[0] for q in queues for m in q.messages if m.token in tokens]
        return self.random.choice(names) if names and self.random.random() < 0.5 else ""

    def _lock_name(self, message: Msg) -> int | str:
        name = message.id
        return name if message.by_id and name and self.random.random() < 0.5 else message.token

    def _accept(self) -> c.Command:
        random = self.random
        return c.AcceptSession(
            random.choice(self._there(*WITH_SESSIONS)) if random.random() < 0.97 else self._queue(),
            self._number(),
            random.choice([None, *SESSIONS, "empty"]),
            self._deadline(),
            random.choice([0, 0, 900]),
            random.random() < 0.3,
        )

    def _in_session(self) -> c.Command:
        random = self.random
        queue = random.choice(self._there(*WITH_SESSIONS))
        if random.random() < 0.03:
            queue = self._queue()
        token = self._session_token(queue)
        commands: list[c.Command] = [
            c.RenewSession(queue, token, random.choice([0, 3_000])),
            c.ReleaseSession(queue, token),
            c.GetSessionState(queue, token),
            c.SetSessionState(queue, token, random.choice([None, b"state", b""])),
            c.ListSessions(queue),
            c.ListSessions(queue, self.now_ms - random.choice([0, 500, 5_000])),
        ]
        return random.choice(commands)

    def _by_number(self) -> c.Command | None:
        """Deferred and scheduled messages, by their sequence numbers."""
        random = self.random
        queue = self._model(self._queue())
        state = random.choice(["deferred", "scheduled"])
        states = ["scheduled", "delayed"] if state == "scheduled" else [state]
        numbers = [m.sequence for m in queue.messages if m.state in states]
        if random.random() < 0.1:
            numbers.append(random.randrange(1, 50))
        if not numbers:
            return None
        chosen = [random.choice(numbers) for _ in range(random.choice([1, 1, 2]))]
        if state == "scheduled":
            return c.Cancel(queue.name, chosen)
        session = self._session_token(queue.name)
        return c.ReceiveDeferred(
            queue.name,
            chosen,
            random.random() < 0.2,
            random.choice([0, 700]),
            self._bound(queue.name, session),
            random.random() < 0.3,
            session,
        )

    def _rule(self) -> c.Command:
        random = self.random
        queue = random.choice(self._there(*SUBSCRIPTIONS))
        if random.random() < 0.05:
            queue = self._queue()
        name = random.choice(["r0", "r1", "R1", "r5"])
        commands: list[c.Command] = [
            c.SetRule(queue, self._a_rule(queue, name), new=random.random() < 0.5),
            c.RemoveRule(queue, name),
            c.ListRules(queue),
            c.ListSubscriptions(random.choice([*TOPICS, *FAN_OUTS, "orders"])),
        ]
        return random.choices(commands, [5, 2, 1, 1])[0]

    def _changed(self, name: str, **changes: object) -> QueueProperties:
        model = self._model(name)
        values = {f: getattr(model.props, f) for f in model.props.__struct_fields__}
        return QueueProperties(**values | changes)

    def _redirect(self) -> c.Command:
        """Forwarding begins, ends or goes elsewhere; what is there already has to follow."""
        random = self.random
        name = random.choice(self._there(*QUEUES, *FORWARDING, *SUBSCRIPTIONS))
        changes: dict[str, str | None] = random.choice(
            [
                {"forward_to": None},
                {"forward_to": None, "forward_dead_to": None},
                {"forward_to": self._target(1)},
                {"forward_dead_to": self._target(0.8)},
                {"forward_to": self._target(1), "forward_dead_to": self._target(1)},
            ]
        )
        return c.UpdateQueue(name, self._changed(name, **changes))

    def _manage(self) -> c.Command | None:
        random = self.random
        name = random.choice(self._there(*QUEUES, *SUBSCRIPTIONS, *TOPICS, *FAN_OUTS))
        if random.random() < 0.3:
            name = self._queue()
        model = self._model(name)
        sending, receiving = random.random() < 0.5, random.random() < 0.5
        changes: dict[str, object] = {
            "max_delivery": random.choice([1, 5]),
            "lock_ms": random.choice([0, 500, 2_000]),
            "status": random.choice(["active", "active", "disabled", "receive-disabled"]),
        }
        if "alerts" not in name:
            changes["idle_delete_ms"] = random.choice([None, None, None, 60_000])
        changes["limit_counts"] = random.choice(LIMIT_COUNTS)
        changes["forward_dead_unchanged"] = random.random() < 0.5
        if model.props.delivery == "competing":
            changes["max_locked"] = random.choice([None, None, 2])
        if model.props.grouping == "none" and model.props.delivery == "competing":
            changes["late_settling"] = random.random() < 0.5
        if name not in TOPICS:
            changes["backoff_ms"] = random.choice([[], [300]])
            changes["overflow"] = random.choice(OVERFLOWS)
        if name in TOPICS:
            changes["idle_delete_ms"] = model.props.idle_delete_ms
        dead = [m.sequence for m in model.messages if m.state == "active"]
        number = random.choice([*dead, 77])
        parts = [q.name for q in self.reference.queues.values() if q.is_part and q.messages]
        grave = random.choice([*parts, dead_letter_queue("orders")])
        target = random.choice(self._there(*QUEUES, *TOPICS, *FAN_OUTS, *SUBSCRIPTIONS))
        keep_reason = random.random() < 0.5
        delete = random.random() < 0.2 and not name.startswith("alerts/")
        commands: list[c.Command] = [
            c.Pause(name, sending, receiving),
            c.Resume(name, sending=True, receiving=True),
            c.Resume(name, sending=True, receiving=True),
            c.UpdateQueue(name, self._changed(name, **changes)),
            c.Purge(name, frozenset({random.randrange(5)})),
            c.Purge(name, frozenset(range(5)), before_ms=self.now_ms - 3_000, keys=keep_reason),
            c.Resubmit(grave),
            c.Resubmit(name, [number, number + 1][: random.choice([1, 1, 2])]),
            c.Resubmit(grave, target=target, keep_reason=keep_reason),
            c.DeleteQueue(name) if delete else c.GetQueue(name),
        ]
        return random.choice(commands)


def _seen(seen: c.Seen) -> tuple[object, ...]:
    message, note = seen.message, seen.note or Note()
    envelope = note.apply_to(decode_envelope(message.envelope))
    return (
        message.sequence, envelope.id, message.body, seen.state, message.count, note.reason,
        envelope.properties, envelope.subject, message.group, message.expires_ms or None,
    )  # fmt: skip


def _mismatch(what: str, core: object, reference: object) -> Mismatch:
    return Mismatch(f"{what}:\n core      {core}\n reference {reference}")


def _differing(some: View, others: View) -> View:
    """What is in the first only."""
    return {
        name: [each for each in messages if each not in others.get(name, [])]
        for name, messages in some.items()
        if others.get(name) != messages
    }


def _first(pair: tuple[int, object]) -> int:
    return pair[0]


def _short(given: Given) -> tuple[int, int, int]:
    return given[0], given[2], given[3]


def _plain(deliveries: list[c.Delivery]) -> list[tuple[int, int, int]]:
    return [(d.receiver, d.message.sequence, d.count) for d in deliveries]
