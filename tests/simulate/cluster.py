"""Three engines on one journal, from one seed: one leads, two follow, and one may take over.

Clients do at random what they do to a broker. Followers lag by some frames. A leader is killed,
with a sync under way or without, or lives on and learns from its next sync that another has taken
over. Whatever has happened, a follower is as the leader was at the same frame, one that was
promoted is as a broker that was started again, and what was acknowledged is in the journal.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from msgspec import structs

from posthouse.broker import payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core import commands as c
from posthouse.core.errors import NotLeader, Refused
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
from posthouse.core.snapshot import take
from posthouse.store import Snapshot
from posthouse.store.errors import Deposed, OutOfTurn, StoreError
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryJournal
from tests.broker.cluster import catch_up, whole
from tests.invariants import check
from tests.simulate.meanings import ACTIONS, FILTERS
from tests.simulate.moments import MORNINGS
from tests.store.twins import SlowStore
from tests.waiting import turn

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
WAIT_TURNS = 200  # of the loop, for something that must come

Asked = c.Command | SpaceCommand


class NodeStore(SlowStore):
    """Of a node that can be killed: then no sync returns any more."""

    is_dead = False

    async def sync(self) -> None:
        await super().sync()
        if self.is_dead:
            await asyncio.Event().wait()

    def _add(self, frames: object) -> None:
        if not self.is_dead:
            super()._add(frames)  # type: ignore[arg-type]


class Cluster:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.journal = MemoryJournal()
        self.clock = VirtualClock(self.random.choice(MORNINGS))
        self.steps = self.takeovers = 0
        small = self.random.random() < 0.3
        self._limits = Limits(bodies_bytes=2_000) if small else Limits()
        self._leader: Engine
        self._followers: list[Engine] = []
        self._tokens: list[int] = []  # of locks and sessions, that anybody was ever given
        self._attached: set[int] = set()  # receivers
        self._bodies = 0
        self._acknowledged: set[bytes] = set()  # bodies
        self._void: set[bytes] = set()  # bodies of sends that were told of a takeover
        self._unanswered: Counter[Engine] = Counter()

    async def run(self, steps: int) -> None:
        self._leader = await self._a_node()
        await self._leader.promote()
        self._followers = [await self._a_node(), await self._a_node()]
        for name in SPACES:
            await self._leader.ask(BROKER, "", CreateNamespace(name))
        for number in range(steps):
            await self._step()
            if number % 10 == 9:
                await self._quiet(self._leader)
                self._compare()
            if self.random.random() < 0.03:
                await self._take_over()
        await self._quiet(self._leader)
        self._compare()
        self._check_bodies()
        for engine in (self._leader, *self._followers):
            await engine.close()

    async def _a_node(self) -> Engine:
        store, salt = NodeStore(journal=self.journal), self.random.getrandbits(32)
        return await Engine.follow(
            store, self.clock, salt, snapshots=store.snapshots, limits=self._limits
        )

    # One step.

    async def _step(self) -> None:
        random = self.random
        if random.random() < 0.3:
            self.clock.move_to(self.clock.now_ms() + random.choice([1, 100, 1_000, 5_000, 30_000]))
        if random.random() < 0.03:
            await self._leader.advance(random.choice([10, 3_000]), self._space())
        for _ in range(random.choice([1, 1, 3, 10])):
            self._submit(*self._command())
        await self._turn(random.choice([0, 1, 5, 20]))
        for follower in self._followers:
            await self._catch_up(follower, random.choice([0, 1, 3, 1 << 60]))
        if random.random() < 0.02:
            await self._take_snapshot()

    async def _catch_up(self, follower: Engine, most: int) -> None:
        catch_up(follower, self.journal, most)
        if self.random.random() < 0.05:
            at = follower.last.number
            before = NodeStore([frame for frame in self.journal.frames if frame.number <= at])
            recovered = await Engine.follow(before, self.clock, 0, limits=self._limits)
            self._same("a follower and a recovery", follower, recovered)
        if self.random.random() < 0.05:
            self._refuse(follower)

    def _refuse(self, follower: Engine) -> None:
        """What a follower turns down: frames out of turn, and commands."""
        before = whole(follower)
        at = follower.last.number
        wrong = [frame for frame in self.journal.frames if frame.number != at + 1]
        try:
            follower.apply(self.random.choice(wrong))
        except OutOfTurn:
            pass
        else:
            raise AssertionError("a frame was applied out of turn")
        answers: list[object] = []
        follower.submit(BROKER, *self._command(), answers.append)
        assert isinstance(answers[0], NotLeader)
        assert whole(follower) == before

    async def _take_snapshot(self) -> None:
        await self._quiet(self._leader)
        last, world = self._leader.last, self._leader.world
        mark = Frame(last.epoch, last.number, last.end, 0, last.end, last.time_ms, b"")
        await self.journal.snapshots.save(Snapshot(mark, take(world)))

    async def _turn(self, times: int) -> None:
        for _ in range(times):
            await turn()

    async def _quiet(self, leader: Engine) -> None:
        """Until it has written all that was decided, and what is due."""
        await leader.flush()
        for _ in range(100 * WAIT_TURNS):
            if leader._work is None:
                return
            await turn()
        raise AssertionError("the leader does not come to an end")

    def _submit(self, namespace: str, command: Asked) -> None:
        self.steps += 1
        bodies = set()
        if isinstance(command, c.Send) and command.queue != UNIQUE:
            bodies = {message.body for message in command.messages}
        leader, store = self._leader, self._leader.store
        assert isinstance(store, NodeStore)

        def reply(answer: object) -> None:
            self._unanswered[leader] -= 1
            if store.is_dead:
                pass  # nobody hears of it
            elif isinstance(answer, Deposed):
                self._void |= bodies
            elif isinstance(answer, c.Enqueued):
                self._acknowledged |= bodies
            elif isinstance(answer, c.Received):
                self._tokens += [each.token for each in answer.deliveries]
            elif isinstance(answer, c.Granted):
                self._tokens.append(answer.token)
            else:
                assert not isinstance(answer, StoreError | NotLeader)

        self._unanswered[leader] += 1
        leader.submit(BROKER, namespace, command, reply)

    # Taking over.

    async def _take_over(self) -> None:
        random, old = self.random, self._leader
        self.takeovers += 1
        for _ in range(random.randrange(6)):
            self._submit(*self._command())
        await self._turn(random.randrange(8))
        killed = random.random() < 0.5
        store = old.store
        assert isinstance(store, NodeStore)
        store.is_dead = killed
        new, *others = random.sample(self._followers, 2)
        if random.random() < 0.2 and others[0].last.number < self.journal.frames[-1].number:
            await self._fail_to_take_over(others)
        catch_up(new, self.journal)
        before = list(self.journal.frames)
        twin = await Engine.follow(NodeStore(before), VirtualClock(self.clock.now_ms()), 0,
                                   limits=self._limits)  # fmt: skip
        twin._start = new._start
        self._same("a follower and a recovery", new, twin)
        if random.random() < 0.5:  # the clock of the other machine is ahead
            self.clock.move_to(self.clock.now_ms() + random.choice([700, 3_600_000]))
            twin._clocks.broker.move_to(self.clock.now_ms())  # type: ignore[attr-defined]
        try:
            await new.promote()
        except Deposed:  # the old one was quicker by a sync
            assert not killed
            assert len(self.journal.frames) > len(before)
            self._followers = [*others, await self._a_node()]
            return
        promoted = whole(new, bodies=False)  # before what is due is done
        await twin.promote()
        self._leader = new
        self._attached.clear()  # its receivers have numbers of their own
        self._equal(
            "one that was promoted and one that was started", promoted, whole(twin, bodies=False)
        )
        await self._try_tokens(new, twin)
        await self._end(old, killed)
        self._followers = [*others, await self._a_node()]

    async def _fail_to_take_over(self, others: list[Engine]) -> None:
        """One that has not read all of the journal cannot lead."""
        try:
            await others[0].promote()
        except Deposed:
            assert others[0].failed.is_set()
        else:
            raise AssertionError("one that lags has taken over")
        others[0] = await self._a_node()

    async def _try_tokens(self, new: Engine, twin: Engine) -> None:
        """What the old leader gave is as good as after a start; what it had not written is lost."""
        await self._quiet(new)
        await self._quiet(twin)
        for token in self.random.sample(self._tokens, min(8, len(self._tokens))):
            for name in new.world.states:
                seen = [await self._settled(each, name, token) for each in (new, twin)]
                assert seen[0] == seen[1], f"{token:x}: {seen}"
        await self._quiet(new)
        await self._quiet(twin)
        self._same("the two behind it", new, twin)

    async def _settled(self, engine: Engine, namespace: str, token: int) -> str:
        try:
            answer = await engine.ask(BROKER, namespace, c.Complete(None, [token]))
        except Refused as refused:
            return type(refused).__name__
        return repr(answer)

    async def _end(self, old: Engine, killed: bool) -> None:
        """The old leader is gone, or finds out: whoever waits is told, and nothing is written."""
        if not killed:
            self_told: list[object] = []
            old.submit(BROKER, SPACES[0], c.Purge("orders", frozenset({0})), self_told.append)
            old.submit(BROKER, "", SetReader("late", 1), self_told.append)
            for _ in range(WAIT_TURNS):
                if old.failed.is_set():
                    break
                await turn()
            assert isinstance(old.failure, Deposed)
            assert self_told
            assert all(isinstance(each, Deposed) for each in self_told), self_told
            await old.close()
            assert self._unanswered[old] == 0, "somebody was not told"
        else:
            for each in (old._work, old._lock_timer):
                if each is not None:
                    each.cancel()
            if isinstance(old._work, asyncio.Task):
                await asyncio.wait([old._work])

    # Comparing.

    def _compare(self) -> None:
        """The leader is quiet."""
        leader = self._leader
        assert leader.last.end == leader.now().position == self.journal.frames[-1].end
        for follower in self._followers:
            catch_up(follower, self.journal)
            assert follower.last == leader.last
            self._same("leader and follower", leader, follower)
        for name, state in leader.world.states.items():
            check(state, leader.clock_ms(name))

    def _same(self, what: str, one: Engine, other: Engine) -> None:
        # What is evicted differs: that is a matter of memory, not of the state.
        self._equal(what, whole(one, bodies=False), whole(other, bodies=False))

    def _equal(self, what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
        assert one == other, f"{what} differ:\n" + "\n".join(differences(one, other))

    def _check_bodies(self) -> None:
        """What was acknowledged is there, and what was told of a takeover is not."""
        located = (entry for frame in self.journal.frames for entry in payload.entries(frame))
        written = {each.message.body for each in payload.contents(located)}
        assert written >= self._acknowledged
        assert not written & self._void

    # What clients do.

    def _command(self) -> tuple[str, Asked]:
        random = self.random
        if random.random() < 0.04:
            return "", self._beside()
        states = self._leader.world.states
        name = random.choice([*states])
        actions: list[tuple[Callable[[State], c.Command], int]] = [
            (self._create, 6), (self._send, 30), (self._receive, 20), (self._settle, 25),
            (self._session, 8), (self._manage, 8), (self._transact, 8), (self._schedule, 3),
        ]  # fmt: skip
        action = random.choices([a for a, _ in actions], [w for _, w in actions])[0]
        return name, action(states[name])

    def _beside(self) -> SpaceCommand:
        random = self.random
        name = random.choice(["ann", "ben"])
        new = name not in self._leader.world.accounts
        grants = [Grant("*", random.choice(["*", "orders"]), ["listen"])]
        commands: list[SpaceCommand] = [
            CreateNamespace(SPACES[1]), DeleteNamespace(SPACES[1]), CreateNamespace(SPACES[1]),
            SetAccount(name, grants, [b"sealed"], new=new), RevokeAccount(name),
            SetReader("spark", random.randrange(1, self._leader.now().position)),
        ]  # fmt: skip
        return random.choice(commands)

    def _space(self) -> str:
        return self.random.choice([*self._leader.world.states])

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
        due_ms = self.clock.now_ms() + random.choice([50, 3_000]) if random.random() < 0.1 else 0
        return NewMessage(
            encode_envelope(envelope), b"%d " % self._bodies + bytes(random.choice([0, 0, 300])),
            None, random.choice(["s1", "s2", "s3", None]), random.randrange(10),
            random.choice([None, None, 2_000]), due_ms,
        )  # fmt: skip

    def _send(self, state: State) -> c.Command:
        messages = [self._message() for _ in range(self.random.choice([1, 1, 2, 5]))]
        return c.Send(self.random.choice([self._queue(state), *QUEUES]), messages)

    def _receive(self, state: State) -> c.Command:
        random, engine = self.random, self._leader
        queue = self._queue(state)
        held = [token for token, (of, _) in state.sessions.items() if of.name == queue]
        session = random.choice(held) if held else 0
        if random.random() < 0.2:
            number = engine.new_receiver(self._delivered)
            self._attached.add(number)
            return c.Attach(queue, number, random.choice([1, 5]), bound=random.random() < 0.3,
                            session=session)  # fmt: skip
        attached = [number for number in state.receivers if number in self._attached]
        if random.random() < 0.1 and attached:  # who asked once and leaves gets no answer
            return c.Detach(random.choice(attached))
        deadline_ms = self.clock.now_ms() + 5_000 if random.random() < 0.2 else 0
        return c.Receive(
            queue, engine.new_receiver(), random.choice([1, 3]), deadline_ms,
            random.random() < 0.2, session=session,
        )  # fmt: skip

    def _delivered(self, deliveries: object) -> None:
        for each in deliveries:  # type: ignore[attr-defined]
            self._note_delivery(each)

    def _note_delivery(self, delivery: Delivered) -> None:
        if isinstance(delivery, c.Delivery | c.Granted):
            self._tokens.append(delivery.token)

    def _settle(self, state: State) -> c.Command:
        random = self.random
        tokens = [*state.locks][-20:] or self._tokens[-5:] or [1]
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
            c.AcceptSession("sessions", self._leader.new_receiver(), lock_ms=2_000),
            c.AcceptSession("sessions", self._leader.new_receiver(), "s1"),
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


def differences(one: object, other: object, at: str = "") -> Iterator[str]:
    """Where two trees of plain values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{at}/{key}")
    elif one != other:
        yield f"{at}: {one} and {other}"


def simulate(seed: int, steps: int) -> Cluster:
    cluster = Cluster(seed)
    asyncio.run(cluster.run(steps))
    return cluster
