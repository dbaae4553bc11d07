"""Three nodes of a cluster on one replicated log, from one seed and by one virtual clock.

Each node is an engine with a replicated store and a folder, which follows, tries to lead when its
standby says so, and is started anew when it was deposed. Messages to the log and between nodes are
lost, late, and have no answer; reads are stale, and the log is purged while they go on; the log
stands still for a while. Nodes are killed, lose power and with it the end of their folders, are
stopped for a while and cut off, at any moment; their clocks are apart by up to an hour.

Whatever has happened: every node is as every other was at the same frame, and as a broker that
reads the log. What was acknowledged is in the journal. What was completed is never delivered again.
A deposed node answers nothing that was asked half a second after another's fence, or later, and
delivers nothing then whose lock is not confirmed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from posthouse.broker import payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.broker.standby import Beat, Hello, Role, Standby
from posthouse.core import commands as c
from posthouse.core.errors import Busy, NotLeader, Refused
from posthouse.core.message import Envelope, NewMessage, decode_envelope, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.core.plan import Delivered
from posthouse.store.errors import Behind, Deposed, StoreError
from posthouse.store.frames import Frame
from posthouse.store.lane import FENCE, Reading, decode
from posthouse.store.log import MemoryLog, Message, Unanswered
from posthouse.store.memory import MemoryStore
from posthouse.store.replicated import FRESH_SECONDS, ReplicatedStore
from tests.broker.cluster import whole
from tests.invariants import check
from tests.simulate.clients import SPACES, UNIQUE, Asked, Clients
from tests.simulate.cluster import differences
from tests.simulate.moments import MORNINGS
from tests.simulate.virtual import Process, VirtualLoop

NAMES = ("a", "b", "c")
LEDGER = "ledger"  # a namespace, and its queue, in which every message is followed
ANSWER_SECONDS = 0.5
READ_SECONDS = 0.2
BEAT_SECONDS = 0.2
START_SECONDS = 0.3
DISK_SECONDS = 0.1  # until a disk has what was written
MARK_SECONDS = 1.0
PURGE_SECONDS = 3.0
HEAL_SECONDS = 120.0  # in which a cluster without faults must come together
COMPARED = 4  # at each frame whose number is a multiple of it

Answer = object


class Broken(AssertionError):
    """A promise of a cluster was not kept."""


class Folder(MemoryStore):
    """A folder on a node's disk, which has what was written a little later."""

    folder = Path("nowhere")

    def __init__(self, frames: Sequence[Frame], random: Random) -> None:
        super().__init__(frames)
        self._random = random
        self.synced = len(frames)  # so many frames are on the disk

    @property
    def durable(self) -> int:
        return self.frames[self.synced - 1].end if self.synced else 1

    @property
    def readable(self) -> int:
        return self.frames[-1].end if self.frames else 1

    def _add(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if self.frames and not frame.follows(self.frames[-1]):
                raise Broken(f"frame {frame.number} does not follow in a folder")
            self.frames.append(frame)
        seconds = self._random.random() * 2 * DISK_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._note_synced, len(self.frames))

    def _note_synced(self, count: int) -> None:
        self.synced = max(self.synced, count)


class _Machine:
    """The clocks of a node's machine."""

    def __init__(self, loop: VirtualLoop, begun_ms: int) -> None:
        self._loop = loop
        self._begun_ns = begun_ms * 1_000_000

    def time_ns(self) -> int:
        return self._begun_ns + self.monotonic_ns()

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1e9)


class NodeLog:
    """The log, as a node reaches it."""

    def __init__(self, world: "Nodes", node: "Node") -> None:
        self._world = world
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.log, name)

    async def publish(self, expected: int, data: bytes) -> int | None:
        do = lambda: self._world.publish(expected, data)  # noqa: E731
        return await self._ask(do, ANSWER_SECONDS)  # type: ignore[no-any-return]

    async def read(self, after: int) -> list[Message]:
        """Reads in two steps: the log may be purged between them."""
        world, random = self._world, self._world.random
        stale = random.randrange(4) if random.random() < world.bad else 0
        most = random.choice((2, 30, 30))
        found: list[Message] = []

        def look(most: int) -> list[Message]:
            behind = found[-1][0] if found else after
            messages = world.log.behind(behind)
            return messages[: max(0, min(most, len(messages) - stale))]

        found += await self._ask(lambda: look(most), READ_SECONDS)
        if found and random.random() < world.bad:
            found += await self._ask(lambda: look(most), READ_SECONDS)
        return found

    async def purge(self, before: int) -> None:
        await self._ask(lambda: self._world.log.cut(before), ANSWER_SECONDS)

    async def measure(self) -> None: ...

    async def close(self) -> None: ...

    async def _ask(self, do: Callable[[], Any], seconds: float) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._world.send(self._node, lambda: self._world.take(self._node, do, answer))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise Unanswered("it was lost") from None


class SharedLog(MemoryLog):
    """Does at once what it is asked."""

    def behind(self, after: int) -> list[Message]:
        begin = max(after + 1, self.first)
        return list(enumerate(self.messages[begin - self.first :], begin))

    def cut(self, before: int) -> None:
        count = min(max(0, before - self.first), len(self.messages))
        self.messages = self.messages[count:]
        self.first += count

    def add(self, expected: int, data: bytes) -> int | None:
        if expected != self.first + len(self.messages) - 1:
            return None
        self.messages.append(data)
        return expected + 1


class Node:
    """A node of the cluster; one life after the other."""

    def __init__(self, world: "Nodes", name: str, begun_ms: int) -> None:
        self._world = world
        self.name = name
        self._machine = _Machine(world.loop, begun_ms)
        self.folder = Folder((), world.random)
        self.process = Process()
        self.process.is_alive = False
        self.cut_until = 0.0
        self.standby: Standby
        self.store: ReplicatedStore
        self.engine: Engine | None = None
        self.leads = False

    @property
    def answers(self) -> bool:
        return self.process.runs and self.engine is not None

    def start(self) -> None:
        assert not self.process.is_alive
        self.process = Process()
        self.leads, self.engine = False, None
        self.folder = Folder(self.folder.frames, self._world.random)
        self._world.loop.create_task(self._live(), context=self.process.context)

    def stop_for_good(self) -> None:
        """Its end, of which nobody else knows; it may be started again."""
        self.process.is_alive = False

    def lose_power(self) -> None:
        self.stop_for_good()
        synced = self.folder.synced
        kept = self._world.random.randint(synced, len(self.folder.frames))
        self.folder = Folder(self.folder.frames[:kept], self._world.random)

    async def _live(self) -> None:
        world = self._world
        log: Any = NodeLog(world, self)
        folder: Any = self.folder
        self.store = ReplicatedStore(folder, log, now=asyncio.get_running_loop().time)
        clock = SystemClock(self._machine)
        self.standby = Standby(self.name, world.loop.time())
        self.engine = engine = await Engine.follow(
            self.store, clock, world.random.getrandbits(32), limits=world.limits
        )
        saying = asyncio.create_task(self._say_hello())
        try:
            while not self.leads:
                await self._follow(engine)
            await self._lead(engine)
        except Behind:
            self._copy_folder()
        except StoreError as error:
            engine.stop_for(error)
        finally:
            saying.cancel()
        failure = engine.failure
        if failure is not None and not isinstance(failure, Deposed):
            raise failure
        self.stop_for_good()
        world.later(START_SECONDS, self.start)

    def _copy_folder(self) -> None:
        """Takes what another node has on its disk, as a newcomer does."""
        other = max(self._world.nodes, key=lambda node: node.folder.synced)
        self._world.copies += 1
        self.folder = Folder(other.folder.frames[: other.folder.synced], self._world.random)

    # Following, as `server/cluster.py` does it.

    async def _follow(self, engine: Engine) -> None:
        world = self._world
        try:
            frames = await self.store.read_on()
        except Unanswered:
            frames = []
        for frame in frames:
            engine.apply(frame)
            world.compare(engine)
        if frames:
            return
        now = world.loop.time()
        match self.standby.step(self.store.number, now):
            case "ask":
                world.say(self, None)
            case "lead":
                await self._try_to_lead(engine)
                return
            case "wait":
                pass
        await asyncio.sleep(world.random.random() * 0.1)  # slept: by a clock that takes no time

    async def _try_to_lead(self, engine: Engine) -> None:
        world = self._world
        epoch = max(self.store.epoch, self.standby.epoch) + 1
        before = self.standby.leader
        beating = asyncio.create_task(self._beat(engine, "candidate", epoch))

        def apply(frame: Frame) -> None:
            engine.apply(frame)
            world.compare(engine)

        try:
            await self.store.lead(epoch, apply, lambda: self.standby.leader is before)
        except Deposed:
            self.standby.wait_again(world.loop.time())
            return
        finally:
            beating.cancel()
        await engine.promote(epoch)
        self.leads = True
        world.takeovers += 1

    # Leading.

    async def _lead(self, engine: Engine) -> None:
        loop, store = self._world.loop, self.store
        beating = asyncio.create_task(self._beat(engine, "leader", engine.epoch))
        marked = purged = loop.time()
        is_stalled = False
        try:
            while not engine.failed.is_set():
                now = loop.time()
                if store.is_stalled != is_stalled:
                    is_stalled = store.is_stalled
                    engine.block(Busy("the log is silent", "stalled") if is_stalled else None)
                if store.failure is not None:
                    raise store.failure
                if now - marked >= MARK_SECONDS:
                    marked = now
                    store.mark()
                if now - purged >= PURGE_SECONDS:
                    purged = now
                    await self._purge(now)
                await asyncio.sleep(0.02)  # slept: by a clock that takes no time
        finally:
            beating.cancel()

    async def _purge(self, now: float) -> None:
        others = [hello.synced for hello in self.standby.nodes(now)]
        if others:
            try:
                await self.store.purge(min(self.store.synced, *others))
            except Unanswered:
                return

    # What it says.

    async def _beat(self, engine: Engine, role: Role, epoch: int) -> None:
        while True:
            beat = Beat(
                self.name, self.name, role, epoch, self.store.number, self.store.durable,
                engine.time_ms(),
            )  # fmt: skip
            self._world.say(self, beat)
            await asyncio.sleep(BEAT_SECONDS)  # slept: by a clock that takes no time

    def hello(self) -> Hello:
        now = self._world.loop.time()
        heard_ms = 0 if self.leads else self.standby.heard_ms(now)
        return Hello(
            self.name, self.name, self.store.number, self.store.synced, "1", 0, heard_ms=heard_ms
        )

    async def _say_hello(self) -> None:
        while True:
            self._world.say(self, self.hello())
            await asyncio.sleep(1.0)  # slept: by a clock that takes no time

    def hear(self, what: Beat | Hello | None) -> None:
        now = self._world.loop.time()
        if isinstance(what, Beat):
            self.standby.hear_beat(what, now)
        elif isinstance(what, Hello):
            self.standby.hear_hello(what, now)
        else:
            self._world.say(self, self.hello())


class Nodes:
    """One seed's world."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.random = random = Random(seed)
        self.loop = loop
        self.log = SharedLog()
        self.bad = random.choice((0.01, 0.1, 0.25))  # how bad the network is
        self._faulty = True
        self.limits = Limits(bodies_bytes=2_000) if random.random() < 0.3 else Limits()
        morning = random.choice(MORNINGS)
        apart_ms = random.choice((0, 1_000, 3_600_000))
        self.nodes = [Node(self, name, morning + random.randint(0, apart_ms)) for name in NAMES]
        self.takeovers = self.copies = self.crashes = self.answered = self.acknowledged = 0
        self._stalled_until = 0.0
        self._fences: list[tuple[int, float]] = []  # epochs, and when their fences were taken
        self._clients = Clients(random, self._delivered)
        self._ledger = Ledger(self)
        self._sent: set[bytes] = set()  # bodies that were acknowledged
        self._reading = Reading()  # of the truth
        self.frames: list[Frame] = []
        self._dumps: dict[int, dict[str, Any]] = {}
        self._outside = copy_context()  # where nothing belongs to a node
        self._failure: BaseException | None = None

    @property
    def steps(self) -> int:
        return self._clients.steps

    async def run(self, steps: int) -> None:
        for node in self.nodes:
            node.start()
        await self._until(lambda: any(node.leads for node in self.nodes), "a node leads")
        await self._found()
        for _ in range(steps):
            seconds = self.random.choice((0.0, 0.01, 0.05, 0.3))
            await asyncio.sleep(seconds)  # slept: by a clock that takes no time
            self._raise_failures()
            for node in self.nodes:
                if node.leads:
                    self._ask_something(node)
            self._do_harm()
        await self._heal()
        self._check()

    async def _found(self) -> None:
        wanted: list[tuple[str, Asked]] = [("", CreateNamespace(name)) for name in SPACES]
        wanted += [
            ("", CreateNamespace(LEDGER)),
            (LEDGER, c.CreateQueue(LEDGER, QueueProperties(lock_ms=1_000, max_delivery=1_000))),
        ]
        is_there = [False] * len(wanted)

        def ask(node: Node, number: int) -> None:
            def reply(answer: Answer) -> None:
                is_there[number] |= not isinstance(answer, StoreError | NotLeader | Busy)

            assert node.engine is not None
            node.engine.submit(BROKER, *wanted[number], reply)

        deadline = self.loop.time() + HEAL_SECONDS
        while not all(is_there):
            if self.loop.time() > deadline:
                raise Broken("the cluster does not begin")
            for node in self.nodes:
                if node.leads:
                    number = is_there.index(False)
                    self.loop.call_soon(ask, node, number, context=node.process.context)
            await asyncio.sleep(0.05)  # slept: by a clock that takes no time

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self.loop.time() + HEAL_SECONDS
        while not condition():
            self._raise_failures()
            if self.loop.time() > deadline:
                raise Broken(f"it did not come that {what}")
            await asyncio.sleep(0.05)  # slept: by a clock that takes no time

    def _raise_failures(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.loop.failures:
            raise self.loop.failures[0]

    def break_promise(self, why: str) -> None:
        self._failure = self._failure or Broken(why)

    # The network.

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Does it, whoever lives then."""
        self.loop.call_at(self.loop.time() + seconds, do, context=self._outside)

    def send(self, node: Node, do: Callable[[], object]) -> None:
        """A message of a node or to it arrives, at some time or never."""
        random = self.random
        if self._faulty and (random.random() < self.bad or self.loop.time() < node.cut_until):
            return
        seconds = random.expovariate(1 / 0.003)
        if self._faulty and random.random() < self.bad:
            seconds = random.random() * random.choice((0.4, 2))
        self.later(seconds, do)

    def take(self, node: Node, do: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        """The log does what it is asked, and answers."""
        if self._faulty and self.loop.time() < self._stalled_until:
            return
        result = do()

        def arrive() -> None:
            if not answer.done():
                answer.set_result(result)

        self.send(node, arrive)

    def say(self, node: Node, what: Beat | Hello | None) -> None:
        for other in self.nodes:
            if other is not node and self.loop.time() >= other.cut_until:
                self.send(node, lambda other=other: self._hear(other, what))  # type: ignore[misc]

    def _hear(self, node: Node, what: Beat | Hello | None) -> None:
        if node.answers:
            self.loop.call_soon(node.hear, what, context=node.process.context)

    def publish(self, expected: int, data: bytes) -> int | None:
        sequence = self.log.add(expected, data)
        if sequence is not None:
            entry = decode(data)
            if entry is not None and entry.kind == FENCE:
                self._fences.append((entry.epoch, self.loop.time()))
            frame = self._reading.take(sequence, data)
            if frame is not None:
                self.frames.append(frame)
        return sequence

    # What goes wrong.

    def _do_harm(self) -> None:
        random, now = self.random, self.loop.time()
        node = random.choice(self.nodes)
        chance = random.random()
        if chance < 0.02 and node.process.is_alive:
            self.crashes += 1
            (node.lose_power if random.random() < 0.5 else node.stop_for_good)()
            self.later(random.choice((0.1, 1, 6)), node.start)
        elif chance < 0.03 and node.process.runs:
            process = node.process
            process.is_stopped = True
            self.later(random.random() * 4, process.go_on)
        elif chance < 0.04:
            node.cut_until = now + random.random() * 4
        elif chance < 0.05:
            self._stalled_until = now + random.random() * 4

    async def _heal(self) -> None:
        """No more faults: all nodes come to have all that is in the log."""
        self._faulty = False
        self._stalled_until = 0.0
        for node in self.nodes:
            node.cut_until = 0.0
            self.later(0, node.process.go_on)
        await self._until(self._is_quiet, "all nodes have what is in the log")

    def _is_quiet(self) -> bool:
        number = self.frames[-1].number
        leaders = 0
        for node in self.nodes:
            if not node.answers or node.engine is None or node.engine.last.number != number:
                return False
            leaders += node.leads
            if node.leads and (node.engine._work is not None or node.engine._batch):
                return False
        return leaders == 1

    # What clients do, and are told.

    def _ask_something(self, node: Node) -> None:
        count = self.random.choice((0, 1, 3, 8))
        for _ in range(count):
            self.loop.call_soon(self._submit, node, context=node.process.context)
        self.loop.call_soon(self._ledger.act, node, context=node.process.context)

    def _submit(self, node: Node) -> None:
        engine = node.engine
        if engine is None or engine.follows or engine.failure is not None:
            return
        namespace, command = self._clients.command(engine, engine.time_ms())
        bodies: set[bytes] = set()
        if isinstance(command, c.Send) and command.queue != UNIQUE:
            bodies = {message.body for message in command.messages}

        def told(answer: Answer) -> None:
            if isinstance(answer, c.Enqueued):
                self._sent |= bodies
            elif isinstance(answer, c.Received):
                self._clients.tokens += [each.token for each in answer.deliveries]
            elif isinstance(answer, c.Granted):
                self._clients.tokens.append(answer.token)

        self.submit(engine, namespace, command, told)

    def submit(
        self, engine: Engine, namespace: str, command: Asked, told: Callable[[Answer], None]
    ) -> None:
        """`told` is called with an answer that is neither a failure nor a refusal to serve."""
        asked = self.loop.time()

        def reply(answer: Answer) -> None:
            if isinstance(answer, StoreError | NotLeader | Busy):
                return
            self.answered += 1
            if asked > self._deposed_at(engine) + FRESH_SECONDS:
                self.break_promise(f"{type(command).__name__} was answered by a deposed node")
            if not isinstance(answer, Refused):
                told(answer)

        engine.submit(BROKER, namespace, command, reply)

    def _deposed_at(self, engine: Engine) -> float:
        """When the fence of a later epoch was taken."""
        later = [at for epoch, at in self._fences if epoch > engine.epoch]
        return min(later, default=float("inf"))

    def _delivered(self, engine: Engine, deliveries: Sequence[Delivered]) -> None:
        tokens = [each.token for each in deliveries if isinstance(each, c.Delivery | c.Granted)]
        self._clients.tokens += tokens
        self.check_deliveries(engine, tokens)

    def check_deliveries(self, engine: Engine, tokens: Sequence[int]) -> None:
        if self.loop.time() > self._deposed_at(engine) + FRESH_SECONDS:
            unconfirmed = repr((engine._batch.entries, engine._writing.entries))
            if any(str(token) in unconfirmed for token in tokens if token):
                self.break_promise("a deposed node has delivered what is not locked for sure")

    # Comparing.

    def compare(self, engine: Engine) -> None:
        """A node that follows is as every other was at this frame."""
        number = engine.last.number
        if number % COMPARED:
            return
        dump = whole(engine, bodies=False)
        self._same(f"two nodes at frame {number}", self._dumps.setdefault(number, dump), dump)

    def _same(self, what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
        if one != other:
            raise Broken(f"{what} differ:\n" + "\n".join(differences(one, other)))

    def _check(self) -> None:
        self._raise_failures()
        [leader] = [node.engine for node in self.nodes if node.leads]
        assert leader is not None
        dump = whole(leader, bodies=False)
        for node in self.nodes:
            assert node.engine is not None
            self._same(f"the leader and {node.name}", dump, whole(node.engine, bodies=False))
            if node.folder.frames != self._as_kept(node.folder.frames):
                raise Broken(f"the folder of {node.name} has other frames than the log")
        for name, state in leader.world.states.items():
            check(state, leader.clock_ms(name))
        located = (entry for frame in self.frames for entry in payload.entries(frame))
        written = {each.message.body for each in payload.contents(located)}
        if lost := self._sent - written:
            raise Broken(f"{len(lost)} acknowledged messages are lost")
        self.acknowledged = len(self._sent) + len(self._ledger.sent)
        self._ledger.check(leader)

    def _as_kept(self, frames: Sequence[Frame]) -> list[Frame]:
        """The frames of the log, with what a disk had of those before them."""
        return [
            replace(frame, durable=kept.durable)
            for frame, kept in zip(self.frames, frames, strict=True)
        ]


class Ledger:
    """A client that sends, receives and completes, and knows what has become of each message."""

    def __init__(self, world: Nodes) -> None:
        self._world = world
        self._count = 0
        self.sent: set[str] = set()  # the ids of messages that were acknowledged
        self._locked: deque[tuple[int, str]] = deque(maxlen=20)
        self._completing: set[str] = set()  # perhaps it was done
        self._completed: dict[str, float] = {}  # when it was acknowledged

    def act(self, node: Node) -> None:
        engine, random = node.engine, self._world.random
        if engine is None or engine.follows or engine.failure is not None:
            return
        chance = random.random()
        if chance < 0.4:
            self._send(engine)
        elif chance < 0.7:
            self._receive(engine)
        elif self._locked:
            self._complete(engine, *random.choice(self._locked))

    def _send(self, engine: Engine) -> None:
        self._count += 1
        name = f"ledger {self._count}"
        envelope = encode_envelope(Envelope(id=name))
        message = NewMessage(envelope, name.encode(), None, None, 0, None, 0)
        self._world.submit(engine, LEDGER, c.Send(LEDGER, [message]), lambda _: self.sent.add(name))

    def _receive(self, engine: Engine) -> None:
        asked = self._world.loop.time()

        def told(answer: Answer) -> None:
            assert isinstance(answer, c.Received)
            self._world.check_deliveries(engine, [each.token for each in answer.deliveries])
            for each in answer.deliveries:
                name = decode_envelope(each.message.envelope).id
                assert name is not None
                if asked > self._completed.get(name, asked) + FRESH_SECONDS:
                    self._world.break_promise(f"{name} was completed, and is delivered again")
                self._locked.append((each.token, name))

        receiver = engine.new_receiver()
        self._world.submit(engine, LEDGER, c.Receive(LEDGER, receiver, 2, 0), told)

    def _complete(self, engine: Engine, token: int, name: str) -> None:
        def told(_: Answer) -> None:
            self._completed.setdefault(name, self._world.loop.time())

        self._completing.add(name)
        self._world.submit(engine, LEDGER, c.Complete(None, [token]), told)

    def check(self, leader: Engine) -> None:
        queue = leader.world.states[LEDGER].queues[LEDGER]
        there = {decode_envelope(message.envelope).id for message in queue.messages.walk(0)}
        if lost := self.sent - there - self._completing:
            raise Broken(f"{len(lost)} messages of the ledger are lost: {sorted(lost)[:3]}")
        if again := there & self._completed.keys():
            raise Broken(f"{len(again)} messages that were completed are there")


def simulate(seed: int, steps: int) -> Nodes:
    logging.disable(logging.ERROR)  # each broker that is deposed says so
    loop = VirtualLoop()
    try:
        world = Nodes(seed, loop)
        loop.run_until_complete(world.run(steps))
    finally:
        loop.close()
        logging.disable(logging.NOTSET)
    return world
