"""Three engines on one journal, from one seed: one leads, two follow, and one may take over.

Clients do at random what they do to a broker. Followers lag by some frames. A leader is killed,
with a sync under way or without, or lives on and learns from its next sync that another has taken
over. Whatever has happened, a follower is as the leader was at the same frame, one that was
promoted is as a broker that was started again, and what was acknowledged is in the journal.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from posthouse.broker import payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core import commands as c
from posthouse.core.errors import NotLeader, Refused
from posthouse.core.namespaces import CreateNamespace, SetReader
from posthouse.core.plan import Delivered
from posthouse.core.snapshot import take
from posthouse.store import Snapshot
from posthouse.store.errors import Deposed, OutOfTurn, StoreError
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryJournal
from tests.broker.cluster import catch_up, whole
from tests.invariants import check
from tests.simulate.clients import SPACES, UNIQUE, Asked, Clients
from tests.simulate.moments import MORNINGS
from tests.store.twins import SlowStore
from tests.waiting import turn

WAIT_TURNS = 200  # of the loop, for something that must come


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
        self.takeovers = 0
        small = self.random.random() < 0.3
        self._limits = Limits(bodies_bytes=2_000) if small else Limits()
        self._leader: Engine
        self._followers: list[Engine] = []
        self._clients = Clients(self.random, self._delivered)
        self._acknowledged: set[bytes] = set()  # bodies
        self._void: set[bytes] = set()  # bodies of sends that were told of a takeover
        self._unanswered: Counter[Engine] = Counter()

    @property
    def steps(self) -> int:
        return self._clients.steps

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
            name = random.choice([*self._leader.world.states])
            await self._leader.advance(random.choice([10, 3_000]), name)
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
                self._clients.tokens += [each.token for each in answer.deliveries]
            elif isinstance(answer, c.Granted):
                self._clients.tokens.append(answer.token)
            else:
                assert not isinstance(answer, StoreError | NotLeader)

        self._unanswered[leader] += 1
        leader.submit(BROKER, namespace, command, reply)

    def _command(self) -> tuple[str, Asked]:
        return self._clients.command(self._leader, self.clock.now_ms())

    def _delivered(self, _: Engine, deliveries: Sequence[Delivered]) -> None:
        self._clients.tokens += [
            each.token for each in deliveries if isinstance(each, c.Delivery | c.Granted)
        ]

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
        self._clients.attached.clear()  # its receivers have numbers of their own
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
        for token in self.random.sample(self._clients.tokens, min(8, len(self._clients.tokens))):
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
