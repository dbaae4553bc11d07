"""What must hold after any history. Hypothesis writes the histories, and shortens what fails."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from posthouse.core import Outcome, decide, evolve
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Attach,
    Begin,
    Begun,
    Cancel,
    CancelSchedule,
    Command,
    Commit,
    Complete,
    Content,
    CreateSubscription,
    Credit,
    DeadLetter,
    Defer,
    DeleteQueue,
    Delivery,
    Detach,
    Granted,
    Move,
    Pause,
    PauseSchedule,
    Purge,
    Receive,
    Received,
    ReceiveDeferred,
    Release,
    ReleaseSession,
    RemoveRule,
    Renew,
    RenewSession,
    Resubmit,
    Resume,
    ResumeSchedule,
    RollBack,
    Send,
    SetRule,
    SetSchedule,
    Start,
    StepClock,
    Tick,
    UpdateQueue,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.errors import Refused
from posthouse.core.message import ACTIVE, DEFERRED, SCHEDULED, NewMessage
from posthouse.core.model import TRANSFER, QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import decode, encode
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from posthouse.core.snapshot import restore, take
from tests.core.world import World, a_message
from tests.invariants import check, check_positions

pytestmark = [pytest.mark.untraced, pytest.mark.long]

QUEUES = ("plain", "urgent", "sessions", "groups", "desk")
TOPIC = "news"
FAN_OUT = "to-all"
SUBSCRIPTIONS = (subscription_queue(TOPIC, "a"), subscription_queue(TOPIC, "sessions"))
WITH_SESSIONS = ("sessions", SUBSCRIPTIONS[1])
RECEIVED = (*QUEUES, *SUBSCRIPTIONS)
sendable = st.sampled_from([*QUEUES, TOPIC, TOPIC, FAN_OUT])
queues = st.sampled_from(RECEIVED)
everywhere = st.sampled_from([*RECEIVED, *map(dead_letter_queue, RECEIVED), "desk" + TRANSFER])
groups = st.sampled_from(["a", "b", "c"])
rules = st.builds(
    Rule,
    st.sampled_from(["one", "two"]),
    st.sampled_from(
        [
            TrueFilter(),
            FalseFilter(),
            SqlFilter("n > 5"),
            SqlFilter("n / 0 = 1"),
            CorrelationFilter({}, {"n": 3}),
            PatternFilter("events.#"),
        ]
    ),
    st.sampled_from(["", "", "SET n = 9; REMOVE m", "SET sys.SessionId = 'b'"]),
)


@dataclass
class Held:
    """A delivery that has not ended, as its receiver sees it."""

    queue: str
    token: int
    until_ms: int
    bound: int
    session: int


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.held: dict[tuple[str, int], Held] = {}  # by queue and sequence number
        self.readers: dict[int, str] = {}  # who receives from where
        self.sessions: dict[int, str] = {}
        self.numbers = 0
        self.epoch = 1
        self.snapshot: tuple[list[bytes], int] = ([], 0)

    @initialize(
        counting=st.sampled_from(["all", "abandon"]),
        max_delivery=st.integers(1, 4),
        dead_letter_expired=st.booleans(),
        max_messages=st.sampled_from([None, None, 3]),
        overflow=st.sampled_from(
            ["reject", "block", "drop-oldest", "drop-newest", "to-dead-letter"]
        ),
        limit_counts=st.sampled_from(["all", "waiting"]),
        backoff_ms=st.sampled_from([[], [], [300, 900]]),
        detect=st.booleans(),
    )
    def create(self, detect: bool, **options: object) -> None:
        options["lock_ms"] = 1_000
        self.properties = QueueProperties(**options)  # type: ignore[arg-type]
        self.world.topic(TOPIC, duplicate_detection=detect)
        self.subscribe(SUBSCRIPTIONS[0], [Rule("one")])
        self.subscribe(SUBSCRIPTIONS[1], [Rule("one")])
        options["duplicate_detection"] = detect
        self.world.queue("plain", **options)
        self.world.queue("urgent", order="priority", **options)
        self.world.queue("sessions", grouping="session", **options)
        self.world.queue("groups", grouping="group", **options)
        self.world.queue("desk", forward_to="plain", forward_dead_to=TOPIC, **options)
        self.world.queue(FAN_OUT, delivery="fan-out", lock_ms=1_000)

    # Every command goes through here.

    def do(self, command: Command) -> Outcome | None:
        world = self.world
        before = dump(world.state, passing=True)
        try:
            decide(world.state, command, world.now_ms)
        except Refused:
            assert dump(world.state, passing=True) == before
            return None
        assert dump(world.state, passing=True) == before, "decide has changed the state"
        journal = len(world.journal)
        if isinstance(command, Attach | Receive | ReceiveDeferred):
            self.readers[command.receiver] = command.queue
            if command.queue == FAN_OUT:
                temporary = subscription_queue(FAN_OUT, f"~{command.receiver}")
                self.readers[command.receiver] = temporary
        outcome = world.do(command)
        for _, record in world.journal[journal:]:
            assert decode(encode(record)) == record
        self.note_endings(command)
        if isinstance(outcome.answer, Received):
            self.note_deliveries(outcome.answer.deliveries)
        if isinstance(outcome.answer, Granted):
            self.sessions[outcome.answer.token] = outcome.answer.session
        self.note_deliveries([d for d in outcome.deliveries if isinstance(d, Delivery)])
        self.sessions |= {d.token: d.session for d in outcome.deliveries if isinstance(d, Granted)}
        return outcome

    def note_deliveries(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            name = (self.readers[delivery.receiver], delivery.message.sequence)
            if name in self.held:
                held = self.held[name]
                assert held.until_ms <= self.world.now_ms, "delivered twice without a cause"
            assert not 0 < delivery.message.expires_ms <= self.world.now_ms, "delivered expired"
            self.held.pop(name, None)
            lock = self.world.state.locks.get(delivery.token)
            if lock is not None:
                session = 0 if lock.session is None else lock.session.token
                assert lock.queue.name == name[0]
                self.held[name] = Held(
                    name[0], delivery.token, delivery.until_ms, lock.bound, session
                )
                self.check_order(delivery)

    def check_order(self, delivery: Delivery) -> None:
        """Nothing of the same group that could have come first is left behind."""
        lock = self.world.state.locks[delivery.token]
        message, queue = lock.message, lock.queue
        if queue.properties.grouping == "none" or lock.deferred or message.group is None:
            return
        for other in queue.messages.walk(0):
            if other.group == message.group and other.state == ACTIVE:
                expired = 0 < other.expires_ms <= self.world.now_ms
                assert expired or other.sequence > message.sequence

    def note_endings(self, command: Command) -> None:
        """What the command itself gives back."""
        match command:
            case Complete() | Abandon() | Release() | Defer() | DeadLetter():
                self.end(lambda held: held.token in command.locks)
            case Renew():
                for held in self.held.values():
                    if held.token in command.locks:
                        held.until_ms = self.world.now_ms + 1_000
            case RenewSession():
                for held in self.held.values():
                    if held.session == command.session:
                        held.until_ms = self.world.now_ms + 1_000
            case Detach():
                gone = self.world.state.sessions
                self.end(lambda held: held.bound == command.receiver)
                self.end(lambda held: held.session != 0 and held.session not in gone)
            case ReleaseSession():
                self.end(lambda held: held.session == command.session)
            case Purge() | DeleteQueue() | Commit():
                live = self.world.state.locks
                self.end(lambda held: held.token not in live)
            case Start():
                self.end(lambda held: held.token not in self.world.state.locks)
            case _:
                pass

    def end(self, ends: Callable[[Held], bool]) -> None:
        self.held = {name: held for name, held in self.held.items() if not ends(held)}

    # Histories.

    @rule(
        queue=sendable,
        count=st.integers(1, 3),
        group=groups,
        priority=st.integers(0, 9),
        ttl_ms=st.sampled_from([None, None, 0, 500, 3_000]),
        wait_ms=st.sampled_from([0, 0, 0, 700]),
        name=st.sampled_from(["", "same", "other"]),
        n=st.sampled_from([None, 3, 8]),
    )
    def send(
        self,
        queue: str,
        count: int,
        group: str,
        priority: int,
        ttl_ms: int | None,
        wait_ms: int,
        name: str,
        n: int | None,
    ) -> None:
        messages = []
        properties: dict[str, Any] = {} if n is None else {"n": n}
        for _ in range(count):
            self.numbers += 1
            due_ms = self.world.now_ms + wait_ms if wait_ms else 0
            messages.append(
                a_message(
                    str(self.numbers), id=name, group=group, priority=priority, ttl_ms=ttl_ms,
                    due_ms=due_ms, subject="events", **properties,
                )
            )  # fmt: skip
        sender = self.world.new_receiver() if priority > 6 else 0
        self.do(Send(queue, messages, deadline_ms=self.world.now_ms + 500, sender=sender))

    @rule(credit=st.integers(0, 3))
    def join(self, credit: int) -> None:
        self.do(Attach(FAN_OUT, self.world.new_receiver(), credit))

    @rule(
        data=st.data(),
        queues=st.lists(sendable, max_size=3),
        timeout_ms=st.sampled_from([400, 5_000]),
        end=st.sampled_from(["commit", "roll back", "leave it open"]),
    )
    def transact(self, data: st.DataObject, queues: list[str], timeout_ms: int, end: str) -> None:
        begun = self.do(Begin(timeout_ms))
        assert begun is not None
        assert isinstance(begun.answer, Begun)
        number = begun.answer.transaction
        for queue in queues:
            self.numbers += 1
            message = a_message(str(self.numbers), id="same", group="a")
            self.do(Work(number, Send(queue, [message])))
        some = st.lists(st.sampled_from(list(self.held.values())), max_size=2)
        for held in data.draw(some) if self.held else []:
            kind = data.draw(st.sampled_from([Complete, Abandon, Release, Defer, DeadLetter]))
            self.do(Work(number, kind(held.queue, [held.token], session=held.session)))
        if end != "leave it open":
            self.do(Commit(number) if end == "commit" else RollBack(number))

    @precondition(lambda self: self.world.state.transactions)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        number = data.draw(st.sampled_from(list(self.world.state.transactions)))
        self.do(Commit(number) if commit else RollBack(number))

    @rule(
        queue=sendable, when=st.sampled_from(["every 1 second", "*/5 * * * *"]), new=st.booleans()
    )
    def schedule(self, queue: str, when: str, new: bool) -> None:
        self.numbers += 1
        message = a_message(str(self.numbers), group="a")
        self.do(SetSchedule(queue, "beat", when, message, new=new))

    @rule(kind=st.sampled_from([PauseSchedule, ResumeSchedule, CancelSchedule]))
    def change_schedule(self, kind: type[Any]) -> None:
        self.do(kind("beat"))

    @rule(queue=everywhere, limit=st.integers(1, 3), wait=st.booleans(), delete=st.booleans())
    def receive(self, queue: str, limit: int, wait: bool, delete: bool) -> None:
        deadline_ms = self.world.now_ms + 400 if wait else 0
        number = self.world.new_receiver()
        session = self.a_session() if queue in WITH_SESSIONS else 0
        self.do(Receive(queue, number, limit, deadline_ms, delete, session=session))

    def a_session(self) -> int:
        return next(reversed(self.sessions), 0)

    @rule(queue=everywhere, credit=st.integers(0, 3), bound=st.booleans(), delete=st.booleans())
    def attach(self, queue: str, credit: int, bound: bool, delete: bool) -> None:
        session = self.a_session() if queue in WITH_SESSIONS else 0
        number = self.world.new_receiver()
        self.do(Attach(queue, number, credit, delete, bound=bound, session=session))

    @precondition(lambda self: self.world.state.receivers)
    @rule(data=st.data(), credit=st.integers(0, 3), drain=st.booleans())
    def credit(self, data: st.DataObject, credit: int, drain: bool) -> None:
        number = data.draw(st.sampled_from(list(self.world.state.receivers)))
        self.do(Credit(number, credit, drain))

    @precondition(lambda self: self.world.state.receivers)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        self.do(Detach(data.draw(st.sampled_from(list(self.world.state.receivers)))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), partial=st.booleans(), delay_ms=st.sampled_from([0, 0, 600]))
    def settle(self, data: st.DataObject, partial: bool, delay_ms: int) -> None:
        held = data.draw(st.sampled_from(list(self.held.values())))
        queue, tokens = held.queue, [held.token]
        commands: list[Command] = [
            Complete(queue, tokens, partial),
            Abandon(queue, tokens, partial, delay_ms=delay_ms, properties={"seen": delay_ms}),
            Release(queue, tokens, partial),
            Defer(queue, tokens, partial),
            DeadLetter(queue, tokens, partial, reason="bad"),
            Renew(queue, tokens, partial),
        ]
        self.do(data.draw(st.sampled_from(commands)))

    @rule(
        queue=st.sampled_from(WITH_SESSIONS),
        name=st.one_of(st.none(), groups),
        wait=st.booleans(),
        bound=st.booleans(),
    )
    def accept(self, queue: str, name: str | None, wait: bool, bound: bool) -> None:
        deadline_ms = self.world.now_ms + 400 if wait else 0
        number = self.world.new_receiver()
        self.do(AcceptSession(queue, number, name, deadline_ms, bound=bound))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), renew=st.booleans())
    def leave(self, data: st.DataObject, renew: bool) -> None:
        token = data.draw(st.sampled_from(list(self.sessions)))
        queue, _ = self.world.state.sessions.get(token, (self.world.state.queues["sessions"], None))
        kind = RenewSession if renew else ReleaseSession
        self.do(kind(queue.name, token))

    @rule(queue=everywhere, state=st.sampled_from([SCHEDULED, DEFERRED]))
    def by_number(self, queue: str, state: int) -> None:
        there = self.world.state.queues.get(queue)
        messages = [] if there is None else there.messages.walk(0)
        numbers = [m.sequence for m in messages if m.state == state]
        if numbers and state == SCHEDULED:
            self.do(Cancel(queue, numbers[:1]))
        elif numbers:
            session = self.a_session() if queue in WITH_SESSIONS else 0
            self.do(ReceiveDeferred(queue, numbers[:2], session=session))

    @rule(queue=everywhere, to=st.one_of(st.none(), queues, sendable), keep=st.booleans())
    def resubmit(self, queue: str, to: str | None, keep: bool) -> None:
        self.do(Resubmit(queue, target=to, keep_reason=keep))

    # Topics and forwarding.

    def subscribe(self, queue: str, given: list[Rule]) -> None:
        sessions = queue in WITH_SESSIONS
        properties = msgspec.structs.replace(
            self.properties, grouping="session" if sessions else "none", requires_session=sessions
        )
        self.do(CreateSubscription(queue, properties, given))

    @rule(
        queue=st.sampled_from(SUBSCRIPTIONS),
        given=st.lists(rules, max_size=2, unique_by=lambda each: each.name),
    )
    def subscribe_anew(self, queue: str, given: list[Rule]) -> None:
        self.do(DeleteQueue(queue))
        self.subscribe(queue, given)

    @rule(queue=st.sampled_from(SUBSCRIPTIONS), given=rules, new=st.booleans())
    def set_rule(self, queue: str, given: Rule, new: bool) -> None:
        self.do(SetRule(queue, given, new))

    @rule(queue=st.sampled_from(SUBSCRIPTIONS), name=st.sampled_from(["one", "two"]))
    def remove_rule(self, queue: str, name: str) -> None:
        self.do(RemoveRule(queue, name))

    @rule(
        queue=queues,
        to=st.one_of(st.none(), sendable),
        of_the_dead=st.booleans(),
        at_once=st.booleans(),
    )
    def redirect(self, queue: str, to: str | None, of_the_dead: bool, at_once: bool) -> None:
        there = self.world.state.queues.get(queue)
        if there is not None:
            change: dict[str, Any] = {"forward_dead_to" if of_the_dead else "forward_to": to}
            self.do(UpdateQueue(queue, msgspec.structs.replace(there.properties, **change)))
            if at_once:  # else it goes on when ticks come, or after a restart
                self.tick()

    @rule(queue=everywhere, state=st.integers(0, 4))
    def purge(self, queue: str, state: int) -> None:
        self.do(Purge(queue, frozenset({state})))

    @rule(queue=queues, pause=st.booleans())
    def pause(self, queue: str, pause: bool) -> None:
        kind = Pause if pause else Resume
        self.do(kind(queue, receiving=True))
        self.tick()

    @rule(ms=st.sampled_from([1, 100, 600, 1_500]))
    def pass_time(self, ms: int) -> None:
        self.world.now_ms += ms
        self.tick()

    def tick(self) -> None:
        self.do(Tick())
        while self.world.state.dispatch_pending:
            self.do(Tick())

    @rule()
    def fold(self) -> None:
        parts = list(take(Namespaces({"test": self.world.state}, ["test"])))
        self.snapshot = (parts, len(self.world.journal))

    @precondition(lambda self: self.world.state.locks)
    @rule()
    def step_clock(self) -> None:
        self.world.now_ms += 10_000
        self.do(StepClock(10_000))
        for held in self.held.values():
            held.until_ms += 10_000

    @rule(queue=everywhere)
    def move(self, queue: str) -> None:
        """Their contents are written again, as a trim would have it."""
        there = self.world.state.queues.get(queue)
        messages = () if there is None else islice(there.messages.walk(0), 3)
        contents = [
            Content(m.sequence, m.position, NewMessage(m.envelope, m.body))
            for m in messages
            if isinstance(m.body, bytes)
        ]
        self.do(Move(queue, contents))

    @rule()
    def restart(self) -> None:
        self.world.state = self.world.replayed()
        self.epoch += 1
        self.sessions.clear()
        self.do(Start(self.epoch, 7))

    # What holds after each.

    @invariant()
    def the_state_is_sound(self) -> None:
        check(self.world.state, self.world.now_ms)

    @invariant()
    def a_replay_gives_the_same_state(self) -> None:
        assert dump(self.world.replayed()) == dump(self.world.state)
        check_positions(self.world.state, self.world.journal)

    @invariant()
    def a_snapshot_and_the_rest_of_the_journal_give_the_same_state(self) -> None:
        parts, at = self.snapshot
        if parts:
            state = restore(parts).states["test"]
            check(state, self.world.now_ms, handed_on=False)
            for position, record in self.world.journal[at:]:
                evolve(state, record, position)
            assert dump(state, bodies=False) == dump(self.world.state, bodies=False)


TestHistories = Histories.TestCase
