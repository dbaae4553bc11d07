"""What clients of a broker do at random, whichever node of a cluster they are connected to."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from msgspec import structs

from posthouse.broker.engine import Engine
from posthouse.core import commands as c
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import DEAD, Grant, QueueProperties, State, subscription_queue
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    RevokeAccount,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.core.plan import Delivered
from posthouse.core.rules import Rule
from tests.simulate.meanings import ACTIONS, FILTERS

UNIQUE = "urgent"  # where what was sent twice is acknowledged, and kept once
SPACES = ("shop", "brief")
NEWS = QueueProperties(delivery="topic")
QUEUES = {
    "orders": QueueProperties(lock_ms=2_000, max_delivery=2),
    "sessions": QueueProperties(grouping="session", requires_session=True, lock_ms=2_000),
    "groups": QueueProperties(grouping="group"),
    UNIQUE: QueueProperties(order="priority", duplicate_detection=True),
    "brief": QueueProperties(ttl_ms=3_000, dead_letter_expired=True, max_messages=8),
    "desk": QueueProperties(forward_to="orders"),
    "news": NEWS,
}
SUBSCRIPTIONS = (subscription_queue("news", "all"), subscription_queue("news", "some"))

Asked = c.Command | SpaceCommand
Deliver = Callable[[Engine, Sequence[Delivered]], None]


class Clients:
    """They know what is in the broker, so that much of what they ask for can be done."""

    def __init__(self, random: Random, deliver: Deliver) -> None:
        self.random = random
        self.steps = 0
        self.tokens: list[int] = []  # of locks and sessions, that anybody was ever given
        self.attached: set[int] = set()  # receivers
        self._deliver = deliver  # is told what is pushed to them
        self._bodies = 0
        self._engine: Engine
        self._now_ms = 0

    def command(self, engine: Engine, now_ms: int) -> tuple[str, Asked]:
        """Something that a client asks of this engine, and the namespace where."""
        random = self.random
        self.steps += 1
        self._engine, self._now_ms = engine, now_ms
        if random.random() < 0.04:
            return "", self._beside()
        states = self._engine.world.states
        name = random.choice([name for name in states if name in SPACES] or SPACES)
        actions: list[tuple[Callable[[State], c.Command], int]] = [
            (self._create, 6), (self._send, 30), (self._receive, 20), (self._settle, 25),
            (self._session, 8), (self._manage, 8), (self._transact, 8), (self._schedule, 3),
        ]  # fmt: skip
        action = random.choices([a for a, _ in actions], [w for _, w in actions])[0]
        return name, action(states[name])

    def _beside(self) -> SpaceCommand:
        random = self.random
        name = random.choice(["ann", "ben"])
        new = name not in self._engine.world.accounts
        grants = [Grant("*", random.choice(["*", "orders"]), ["listen"])]
        commands: list[SpaceCommand] = [
            CreateNamespace(SPACES[1]), DeleteNamespace(SPACES[1]), CreateNamespace(SPACES[1]),
            SetAccount(name, grants, [b"sealed"], new=new), RevokeAccount(name),
            SetReader("spark", random.randrange(1, self._engine.now().position)),
        ]  # fmt: skip
        return random.choice(commands)

    def _queue(self, state: State) -> str:
        names = [*state.queues] or ["orders"]
        return self.random.choice(names)

    def _create(self, state: State) -> c.Command:
        random = self.random
        if "news" in state.queues and random.random() < 0.5:
            rules = [Rule("r", random.choice(FILTERS), random.choice(["", *ACTIONS]))]
            return c.CreateSubscription(random.choice(SUBSCRIPTIONS), QueueProperties(), rules)
        name = random.choice([*QUEUES])
        return c.CreateQueue(name, QUEUES[name])

    def _message(self) -> NewMessage:
        random = self.random
        self._bodies += 1
        envelope = Envelope(
            id=f"id{random.randrange(30)}", subject=random.choice(["", "events"]),
            properties={"n": random.randrange(4), "colour": random.choice(["red", "blue"])},
        )  # fmt: skip
        due_ms = self._now_ms + random.choice([50, 3_000]) if random.random() < 0.1 else 0
        return NewMessage(
            encode_envelope(envelope), b"%d " % self._bodies + bytes(random.choice([0, 0, 300])),
            None, random.choice(["s1", "s2", "s3", None]), random.randrange(10),
            random.choice([None, None, 2_000]), due_ms,
        )  # fmt: skip

    def _send(self, state: State) -> c.Command:
        messages = [self._message() for _ in range(self.random.choice([1, 1, 2, 5]))]
        return c.Send(self.random.choice([self._queue(state), *QUEUES]), messages)

    def _receive(self, state: State) -> c.Command:
        random, engine = self.random, self._engine
        queue = self._queue(state)
        held = [token for token, (of, _) in state.sessions.items() if of.name == queue]
        session = random.choice(held) if held else 0
        if random.random() < 0.2:
            number = engine.new_receiver(partial(self._deliver, engine))
            self.attached.add(number)
            return c.Attach(queue, number, random.choice([1, 5]), bound=random.random() < 0.3,
                            session=session)  # fmt: skip
        attached = [number for number in state.receivers if number in self.attached]
        if random.random() < 0.1 and attached:  # who asked once and leaves gets no answer
            return c.Detach(random.choice(attached))
        deadline_ms = self._now_ms + 5_000 if random.random() < 0.2 else 0
        return c.Receive(
            queue, engine.new_receiver(), random.choice([1, 3]), deadline_ms,
            random.random() < 0.2, session=session,
        )  # fmt: skip

    def _settle(self, state: State) -> c.Command:
        random = self.random
        tokens = [*state.locks][-20:] or self.tokens[-5:] or [1]
        locks = [random.choice(tokens) for _ in range(random.choice([1, 1, 2]))]
        commands: list[c.Command] = [
            c.Complete(None, locks, partial=True), c.Complete(None, locks, partial=True),
            c.Abandon(None, locks, partial=True, properties={"changed": self.steps}),
            c.Release(None, locks, partial=True), c.Defer(None, locks, partial=True),
            c.DeadLetter(None, locks, partial=True, reason="why"),
            c.Renew(None, locks, partial=True, lock_ms=5_000),
        ]  # fmt: skip
        return random.choice(commands)

    def _session(self, state: State) -> c.Command:
        random = self.random
        token = random.choice([*state.sessions, 1])
        commands: list[c.Command] = [
            c.AcceptSession("sessions", self._engine.new_receiver(), lock_ms=2_000),
            c.AcceptSession("sessions", self._engine.new_receiver(), "s1"),
            c.SetSessionState("sessions", token, random.choice([None, b"state"])),
            c.ReleaseSession("sessions", token), c.RenewSession("sessions", token),
        ]  # fmt: skip
        return random.choice(commands)

    def _manage(self, state: State) -> c.Command:
        random = self.random
        queue = self._queue(state)
        messages = state.queues[queue].messages.walk(0) if queue in state.queues else ()
        numbers = [message.sequence for message in messages][:10] or [1]
        rule = Rule(random.choice("rst"), random.choice(FILTERS), "")
        changed = structs.replace(QUEUES["orders"], lock_ms=random.choice([500, 5_000]))
        commands: list[c.Command] = [
            c.Pause(queue, sending=True), c.Resume(queue, sending=True, receiving=True),
            c.UpdateQueue("orders", changed), c.Purge(queue, frozenset({random.randrange(5)})),
            c.Resubmit("orders" + DEAD), c.Cancel(queue, [random.choice(numbers)]),
            c.ReceiveDeferred(queue, [random.choice(numbers)]), c.SetRule(SUBSCRIPTIONS[1], rule),
            c.RemoveRule(SUBSCRIPTIONS[1], rule.name), c.StepClock(700),
            c.DeleteQueue(queue) if random.random() < 0.2 else c.GetQueue(queue),
        ]  # fmt: skip
        return random.choice(commands)

    def _transact(self, state: State) -> c.Command:
        random = self.random
        if not state.transactions or random.random() < 0.2:
            return c.Begin()
        number = random.choice([*state.transactions])
        if random.random() < 0.3:
            return c.Commit(number) if random.random() < 0.7 else c.RollBack(number)
        asked = random.choice([self._send, self._settle])(state)
        if isinstance(asked, c.Send | c.Complete | c.Abandon | c.Release | c.Defer | c.DeadLetter):
            return c.Work(number, asked)
        return asked

    def _schedule(self, _: State) -> c.Command:
        random = self.random
        name = random.choice(["beat", "hourly"])
        message = structs.replace(self._message(), due_ms=0)
        when = random.choice(["every 2 seconds", "at 14:30", "5 * * * *"])
        commands: list[c.Command] = [
            c.SetSchedule("orders", name, when, message, new=random.random() < 0.7),
            c.PauseSchedule(name), c.ResumeSchedule(name), c.CancelSchedule(name),
        ]  # fmt: skip
        return random.choice(commands)
