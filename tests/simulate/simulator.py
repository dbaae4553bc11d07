"""Many clients doing everything at random, from one seed, against the core and the reference.

After every command the two are compared: refusals, answers, deliveries, every message's state. The
invariants are checked, and that a replay of the journal gives the state that lives. Now and then
the broker crashes, losing the last few commands and everything that passes.
"""

import hashlib
from collections.abc import Callable
from copy import deepcopy
from random import Random

from posthouse.core import Outcome, State, decide, evolve, next_deadline_ms
from posthouse.core import commands as c
from posthouse.core.dump import dump
from posthouse.core.errors import Refused
from posthouse.core.message import (
    Envelope,
    NewMessage,
    Properties,
    decode_envelope,
    encode_envelope,
)
from posthouse.core.model import Order, QueueProperties, dead_letter_queue
from posthouse.core.plan import Delivered
from posthouse.core.records import Kept, decode, encode, is_kept, span
from tests.invariants import check, check_positions
from tests.simulate.reference import Given, Msg, Q, Reference

QUEUES = ("orders", "sessions", "groups", "urgent", "brief")
SESSIONS = ("s1", "s2", "s3")


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
        self.now_ms = self.started_ms = 1_000_000
        self.epoch = 0
        self.steps = 0
        self.history = hashlib.sha256()
        self._receiver = 0
        self._body = 0
        self._old_tokens: list[int] = [1, 2, 3]
        self._start()

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
        end_ms = self.now_ms + random.choice([1, 10, 100, 1_000, 5_000, 20_000])
        if random.random() < 0.1:
            self.now_ms = end_ms
            return
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= end_ms:
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
        while self.state.hungry:  # what the reference hands out at once, the core does in ticks
            more = decide(self.state, c.Tick(), self.now_ms)
            self._apply(more)
            deliveries += more.deliveries
            self._tick_reference()
        self._note(command, refused, outcome)
        if refused is not expected:
            raise Mismatch(f"{command} at {self.now_ms}: {refused}, the reference says {expected}")
        self._compare(command, outcome.answer, deliveries)
        check(self.state, self.now_ms)

    def _tick_reference(self) -> None:
        """A tick that belongs to the command before: what came of that is kept."""
        reference = self.reference
        given, granted, notices = reference.given, reference.granted, reference.notices
        answered, answer = reference.answered, reference.answer
        reference.run(c.Tick(), self.now_ms)
        reference.given = given + reference.given
        reference.granted = granted + reference.granted
        reference.notices = notices + reference.notices
        reference.answered, reference.answer = answered, answer

    def _apply(self, outcome: Outcome) -> None:
        for record in outcome.records:
            if is_kept(record):
                data = encode(record)
                self.history.update(data)
                record = decode(data)  # type: ignore[assignment]
                assert is_kept(record)
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
        reference.learn([d.token for d in answered + given], [d.token for d in granted])
        self._old_tokens += [d.token for d in answered + given] + [d.token for d in granted]
        del self._old_tokens[:-40]
        if isinstance(answer, c.Enqueued):
            self._same(command, "sequences", list(answer.sequences), reference.answer)
        if isinstance(answer, c.Settled):
            self._same(command, "lost", list(answer.lost), reference.answer)
        if isinstance(command, c.ListSessions) and isinstance(answer, list):
            self._same(command, "sessions", set(answer), reference.answer)
        if isinstance(command, c.GetSessionState):
            self._same(command, "session state", answer, reference.answer)
        self._same(command, "messages", self._view(), reference.view())

    def _same(self, command: c.Command, what: str, core: object, reference: object) -> None:
        if core != reference:
            raise Mismatch(
                f"{what} after {command} at {self.now_ms}:\n"
                f" core      {core}\n reference {reference}"
            )

    def _view(self) -> dict[str, list[tuple[object, ...]]]:
        view: dict[str, list[tuple[object, ...]]] = {}
        for name in self.state.queues:
            answer = decide(self.state, c.Peek(name, limit=c.PAGE_MAX), self.now_ms).answer
            assert isinstance(answer, c.Peeked)
            view[name] = [
                (
                    seen.message.sequence,
                    seen.message.body,
                    seen.state,
                    seen.message.count,
                    seen.note.reason if seen.note else None,
                    seen.note.properties if seen.note else {},
                )
                for seen in answer.messages
            ]
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
        kept, position, reference = len(self.journal), self.position, deepcopy(self.reference)
        for _ in range(self.random.randrange(6)):
            self._step()
        cut = self.random.randrange(kept, len(self.journal) + 1)
        check(self._replay(self.journal[:cut]), self.now_ms)  # any prefix is a sound state
        del self.journal[kept:]
        self.position = position
        self.state = self._replay(self.journal)
        self.reference = reference
        self.reference.restart()
        self._start()

    def _start(self) -> None:
        self.epoch += 1
        self._do(c.Start(self.epoch, self.random.getrandbits(32)))

    # What clients do.

    def _actions(self) -> list[tuple[Callable[[], c.Command | None], int]]:
        return [
            (self._create, 6 if len(self.state.names) < len(QUEUES) else 1),
            (self._send, 30),
            (self._receive, 20),
            (self._attach, 8),
            (self._credit, 8),
            (self._detach, 3),
            (self._settle, 40),
            (self._accept, 8),
            (self._in_session, 10),
            (self._by_number, 6),
            (self._manage, 4),
        ]

    def _queue(self) -> str:
        name = self.random.choice(QUEUES)
        return dead_letter_queue(name) if self.random.random() < 0.15 else name

    def _number(self) -> int:
        self._receiver += 1
        return self._receiver

    def _create(self) -> c.Command:
        random = self.random
        name = random.choice(QUEUES)
        order: Order = "priority" if name == "urgent" or random.random() < 0.2 else "arrival"
        properties = QueueProperties(
            lock_ms=random.choice([500, 2_000, 10_000]),
            max_delivery=random.choice([1, 2, 3, 10]),
            ttl_ms=random.choice([None, 3_000]) if name == "brief" else None,
            max_messages=random.choice([None, None, 30]),
            max_bytes=random.choice([None, None, 3_000]),
            max_message_bytes=random.choice([None, None, 80]),
            requires_session=name == "sessions",
            grouping={"sessions": "session", "groups": "group"}.get(name, "none"),  # type: ignore[arg-type]
            duplicate_detection=random.random() < 0.3,
            duplicate_window_ms=random.choice([100, 5_000]),
            dead_letter_expired=random.random() < 0.5,
            idle_delete_ms=random.choice([None, None, None, 60_000]),
            order=order,
            counting=random.choice(["all", "abandon"]),
        )
        return c.CreateQueue(name, properties)

    def _send(self) -> c.Command:
        random = self.random
        messages = []
        for _ in range(random.choice([1, 1, 1, 2, 5])):
            self._body += 1
            ttl_ms = random.choice([None, None, None, 0, 50, 5_000])
            name = random.choice(["", f"id{random.randrange(20)}", f"unique{self._body}"])
            properties: Properties = {"n": self._body} if random.random() < 0.3 else {}
            envelope = Envelope(id=name, properties=properties)
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
        return c.Send(self._queue(), messages, keys, random.random() < 0.3)

    def _session_token(self, queue: str) -> int:
        """Most often a held one where one is needed."""
        random = self.random
        if queue != "sessions":
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
            random.choice([0, 0, 700]),
            self._bound(queue, session),
            random.random() < 0.3,
            session,
        )

    def _attach(self) -> c.Command:
        random = self.random
        queue = self._queue()
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
        return self.random.choice([*self.state.receivers, 999_999])

    def _credit(self) -> c.Command:
        random = self.random
        drain = random.random() < 0.3
        return c.Credit(self._some_receiver(), random.choice([0, 1, 5]), drain)

    def _detach(self) -> c.Command:
        return c.Detach(self._some_receiver())

    def _settle(self) -> c.Command | None:
        random = self.random
        held = [(q, m) for q in self.reference.queues.values() for m in q.messages if m.token]
        if not held:
            return None
        queue, message = random.choice(held)
        others = [m for q, m in held if q is queue]
        names: list[int | str] = [self._lock_name(message)]
        more = random.choice([0, 0, 0, 1, 2])
        names += [self._lock_name(random.choice(others)) for _ in range(more)]
        if random.random() < 0.1:
            names += random.choice([[random.choice(self._old_tokens)], ["id1"]])
        random.shuffle(names)
        partial = random.random() < 0.3
        session = self._session_token(queue.name) if random.random() < 0.3 else 0
        name = queue.name if session or random.random() < 0.9 else None
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

    def _lock_name(self, message: Msg) -> int | str:
        name = decode_envelope(message.new.envelope).id
        return name if message.by_id and name and self.random.random() < 0.5 else message.token

    def _accept(self) -> c.Command:
        random = self.random
        return c.AcceptSession(
            "sessions" if random.random() < 0.97 else self._queue(),
            self._number(),
            random.choice([None, *SESSIONS, "empty"]),
            self._deadline(),
            random.choice([0, 0, 900]),
            random.random() < 0.3,
        )

    def _in_session(self) -> c.Command:
        random = self.random
        queue = "sessions" if random.random() < 0.97 else self._queue()
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
        numbers = [m.sequence for m in queue.messages if m.state == state]
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

    def _manage(self) -> c.Command | None:
        random = self.random
        name = self._queue()
        model = self._model(name)
        sending, receiving = random.random() < 0.5, random.random() < 0.5
        properties = QueueProperties()
        if name in self.reference.queues:
            values = {f: getattr(model.props, f) for f in model.props.__struct_fields__}
            values |= {
                "max_delivery": random.choice([1, 5]),
                "status": random.choice(["active", "active", "disabled", "receive-disabled"]),
                "idle_delete_ms": random.choice([None, 60_000]),
            }
            properties = QueueProperties(**values)
        dead = [m.sequence for m in model.messages if m.state == "active"]
        number = random.choice([*dead, 77])
        grave = dead_letter_queue(random.choice(QUEUES))
        keep_reason = random.random() < 0.5
        commands: list[c.Command] = [
            c.Pause(name, sending, receiving),
            c.Resume(name, sending=True, receiving=True),
            c.Resume(name, sending=True, receiving=True),
            c.UpdateQueue(name, properties),
            c.Purge(name, frozenset({random.randrange(5)})),
            c.Purge(name, frozenset(range(5)), before_ms=self.now_ms - 3_000),
            c.Resubmit(grave),
            c.Resubmit(name, [number, number + 1][: random.choice([1, 1, 2])]),
            c.Resubmit(grave, target=random.choice(QUEUES), keep_reason=keep_reason),
            c.DeleteQueue(name) if random.random() < 0.2 else c.GetQueue(name),
        ]
        return random.choice(commands)


def _short(given: Given) -> tuple[int, int, int]:
    return given[0], given[2], given[3]


def _plain(deliveries: list[c.Delivery]) -> list[tuple[int, int, int]]:
    return [(d.receiver, d.message.sequence, d.count) for d in deliveries]
