"""A power cut at any operation on the disk: what the engine acknowledged is there afterwards.

A story has chapters: a start, some work of clients, and a clean stop or none. Each begins with the
disk that the one before has left, so a cut late in the story costs hardly more than an early one,
and the operations of starts and of clean stops are cut as well. TORTURE=1 cuts at every operation.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import NamedTuple

from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Answer,
    Command,
    Complete,
    CreateQueue,
    DeadLetter,
    Delivery,
    Granted,
    Receive,
    Received,
    ReleaseSession,
    Send,
)
from posthouse.core.dump import dump
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import Envelope, NewMessage, encode_envelope, message_id
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.errors import Lost
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame, encode
from tests.crash.history import History
from tests.inside import state_of
from tests.invariants import check
from tests.store.faulty_disk import SECTOR, FaultyDisk, File, PowerCut
from tests.waiting import turn

TORTURE = os.environ.get("TORTURE") == "1"
CUTS = 60  # in the short form
WAYS = 3  # in which a cut may leave the disk

FOLDER = Path("journal")
SEGMENT_BYTES = 32 << 10
NS = "power"
PLAIN, SESSIONS = "plain", "sessions"
PROPERTIES = {
    PLAIN: QueueProperties(lock_ms=5_000, max_delivery=1_000),
    SESSIONS: QueueProperties(lock_ms=5_000, max_delivery=1_000, grouping="session"),
}
STORIES, CHAPTERS = 3, 4
ROUNDS = 78  # of work in a chapter
HOUR_MS = 3_600_000


class Load:
    """Clients that do the same each time, and say what they are about to do and what was done."""

    def __init__(
        self, engine: Engine, clock: VirtualClock, chapter: "Chapter", said: list[str]
    ) -> None:
        self.engine, self.clock = engine, clock
        self.random = Random(f"{chapter.story} {chapter.number}")
        self.chapter = chapter.number
        self.said = said
        self.sent = 0

    async def work(self) -> None:
        if self.chapter == 0:
            await self.engine.ask(BROKER, "", CreateNamespace(NS, self.engine.epoch, 1))
            for queue, properties in PROPERTIES.items():
                await self.ask(CreateQueue(queue, properties))
                self.said.append(f"created {queue}")
        for _ in range(ROUNDS):
            choice = self.random.random()
            if choice < 0.35:
                senders = self.random.choice([1, 1, 3])  # together they make one frame
                await asyncio.gather(*(self.send() for _ in range(senders)))
            elif choice < 0.6:
                await self.receive(PLAIN, self.random.choice([1, 4, 10]))
            elif choice < 0.85:
                await self.take_a_session()
            elif choice < 0.93:
                await self.wait_for_a_message()
            else:
                await self.engine.advance(self.random.choice([100, 2_000, 6_000]))

    async def ask(self, command: Command) -> Answer:
        return await self.engine.ask(BROKER, NS, command)

    async def send(self, queue: str | None = None) -> None:
        queue = queue or self.random.choice([PLAIN, SESSIONS])
        names, messages = [], []
        for _ in range(self.random.choice([1, 2, 6])):
            self.sent += 1
            group = f"s{self.random.randrange(4)}" if queue == SESSIONS else None
            name = f"{self.chapter}-{self.sent:04}-{group}"
            later = queue == PLAIN and self.random.random() < 0.2
            due_ms = self.clock.now_ms() + 3_000 if later else 0
            names.append(name)
            messages.append(
                NewMessage(_envelope(name), _body(name), group=group, due_ms=due_ms),
            )
        self.said += [f"sending {name}" for name in names]
        self.said.append("together " + " ".join(names))
        try:
            await self.ask(Send(queue, messages))
        except QuotaExceeded:
            self.said += [f"refused {name}" for name in names]
        else:
            self.said += [f"sent {name}" for name in names]

    async def receive(self, queue: str, limit: int, session: int = 0) -> None:
        receiver = self.engine.new_receiver()
        await self.settle_all(
            queue, await self.ask(Receive(queue, receiver, limit, session=session))
        )

    async def wait_for_a_message(self) -> None:
        deadline_ms = self.clock.now_ms() + 4_000
        receiver = self.engine.new_receiver()
        waiting = asyncio.create_task(self.ask(Receive(PLAIN, receiver, 5, deadline_ms)))
        await turn()
        await self.send(PLAIN)
        await turn()
        if not waiting.done():  # it was refused, or is due later
            await self.engine.advance(4_000)
        await self.settle_all(PLAIN, await waiting)

    async def settle_all(self, queue: str, answer: Answer) -> None:
        assert isinstance(answer, Received)
        await asyncio.gather(*(self.settle(queue, each) for each in answer.deliveries))

    async def settle(self, queue: str, delivery: Delivery) -> None:
        name, token = message_id(delivery.message.envelope), delivery.token
        choice = self.random.random()
        if choice < 0.65:
            self.said.append(f"completing {name}")
            await self.ask(Complete(queue, [token]))
            self.said.append(f"completed {name}")
        elif choice < 0.8:
            await self.ask(Abandon(queue, [token]))
        elif choice < 0.95:
            self.said.append(f"burying {name}")
            await self.ask(DeadLetter(queue, [token], reason="why"))
            self.said.append(f"buried {name}")
        # Of the rest the locks expire, or the session's end gives them back.

    async def take_a_session(self) -> None:
        granted = await self.ask(AcceptSession(SESSIONS, self.engine.new_receiver()))
        if not isinstance(granted, Granted):
            return
        await self.receive(SESSIONS, 5, granted.token)
        if self.random.random() < 0.8:
            await self.ask(ReleaseSession(SESSIONS, granted.token))


def _envelope(name: str) -> bytes:
    return encode_envelope(Envelope(id=name))


# Sent by one who wants a torn frame to look like damage: a frame of a later time, to which all that
# was ever written was durable.
DECOY = bytes(SECTOR) + encode(Frame(1 << 20, 1 << 40, 1 << 40, 1, 1 << 40, 0, b""))


def _body(name: str) -> bytes:
    """Some are longer than a sector, so that a cut can tear their frames."""
    random = Random(name)
    return random.choice([b"", random.randbytes(100), random.randbytes(900), DECOY])


class Chapter(NamedTuple):
    story: int
    number: int
    disk: FaultyDisk  # at its beginning
    said: list[str]  # before it
    operations: int = 0  # that it makes
    changes: frozenset[int] = frozenset()  # those about which names of files changed

    @property
    def begins_ms(self) -> int:
        return (self.number + 1) * HOUR_MS


def run(main: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))  # only so that a test that hangs ends


class NotingDisk(FaultyDisk):
    """Notes when its files change: a segment is begun, claimed or closed."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__()
        self.names_now, self.names_durable = dict(disk.names_now), dict(disk.names_durable)
        self.changes: set[int] = set()
        self._names = set(self.names_now)

    def _operate(self) -> None:
        super()._operate()
        if self._names != set(self.names_now):
            self._names = set(self.names_now)
            self.changes.update(range(self.operations - 4, self.operations + 4))


def a_story(story: int) -> list[Chapter]:
    """Its chapters, each played to its end."""
    chapters: list[Chapter] = []
    left, said = FaultyDisk(), list[str]()
    for number in range(CHAPTERS):
        chapter = Chapter(story, number, left.copy(), list(said))
        disk = NotingDisk(left)
        run(play(chapter, disk, said))
        changes = frozenset(disk.changes)
        chapters.append(chapter._replace(operations=disk.operations, changes=changes))
        left = disk.after_power_cut(Random(number))
    assert any(line.startswith("refused ") for line in said), "the disk was never full"
    return chapters


async def play(chapter: Chapter, disk: FaultyDisk, said: list[str]) -> None:
    """A start, work, and in every second chapter a clean stop. Raises PowerCut."""
    _quiet_about_cuts()
    clock = VirtualClock(chapter.begins_ms)
    if chapter.number == CHAPTERS - 1:
        disk.room = SEGMENT_BYTES // 2  # it is full when the next segment has been begun
    store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
    try:
        # Locks are written with what follows: when would be chance, if time had a part in it.
        engine = await Engine.open(store, clock, salt=chapter.number, lock_sync_ms=60_000)
        await Load(engine, clock, chapter, said).work()
        if chapter.number % 2:
            await engine.close()
            return
    except (PowerCut, Lost) as stopped:
        await store.close()
        if disk.operations == disk._cut_at:  # who asked the engine was told Lost
            raise PowerCut from stopped
        raise
    await store.close()


def _quiet_about_cuts() -> None:
    """A cut ends tasks that nobody asks for their results any more."""

    def heard(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if not isinstance(context.get("exception"), PowerCut | Lost):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(heard)


def cuts() -> list[tuple[Chapter, int]]:
    chapters = [chapter for story in range(STORIES) for chapter in a_story(story)]
    every = [(chapter, at) for chapter in chapters for at in range(1, chapter.operations + 1)]
    assert len(every) >= 2_000
    if TORTURE:
        return every
    random = Random(3)
    rare = [(chapter, at) for chapter, at in every if at in chapter.changes]
    return random.sample(every, CUTS // 2) + random.sample(rare, CUTS // 2)


def test_a_power_cut_at_any_operation_breaks_no_promise() -> None:
    for chapter, cut_at in cuts():
        disk, said = chapter.disk.copy(), list(chapter.said)
        disk._cut_at = cut_at
        with contextlib.suppress(PowerCut):
            run(play(chapter, disk, said))
        assert disk.operations == cut_at, "the disk was touched after the cut, or never cut"
        for way in range(WAYS):
            random = Random(f"{chapter.story} {chapter.number} {cut_at} {way}")
            left = _torn(disk, random) if way == 2 else disk.after_power_cut(random)
            if way == 1:
                left = _cut_again(left, random)
            try:
                run(look(left, chapter, said, twice=way == 2))
            except Exception as error:
                error.add_note(f"{chapter.story=} {chapter.number=} {cut_at=} {way=}")
                raise


def _torn(disk: FaultyDisk, random: Random) -> FaultyDisk:
    """Of what no sync has covered, any sectors have reached the platter."""
    left = FaultyDisk()
    for name, file in disk.names_now.items():
        now = file.now()
        content = bytearray(file.durable.ljust(len(now), b"\0"))
        for at in range(0, len(content), SECTOR):
            if random.random() < 0.5:
                content[at : at + SECTOR] = now[at : at + SECTOR]
        left.names_now[name] = left.names_durable[name] = File(bytes(content))
    return left


def _cut_again(disk: FaultyDisk, random: Random) -> FaultyDisk:
    """The power comes back, and goes while the next start recovers."""
    disk._cut_at = random.randrange(1, 9)

    async def start() -> None:
        _quiet_about_cuts()
        store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
        try:
            await Engine.open(store, VirtualClock(), salt=0)
        finally:
            await store.close()

    with contextlib.suppress(PowerCut):
        run(start())
    return disk.after_power_cut(random)


async def look(disk: FaultyDisk, chapter: Chapter, said: list[str], *, twice: bool) -> None:
    """Starts an engine on what a cut has left, and receives all there is."""
    clock = VirtualClock(chapter.begins_ms + HOUR_MS)  # when all locks are over
    store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
    if twice:
        await store.close()
        store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
        assert store.cut_at is None, "the tail was left for the next start"
    engine = await Engine.open(store, clock, salt=99)
    state = engine.world.states.get(NS)
    queues = [queue for queue in PROPERTIES if engine.view.exists(NS, queue)]
    assert {f"created {queue}" for queue in queues} >= {each for each in said if "created" in each}
    await engine.advance(0)
    live: list[str] = []
    dead: list[str] = []
    if state is not None:
        check(state, clock.now_ms())
        for queue in queues:
            live += await (_all_of_sessions if queue == SESSIONS else _all_of)(engine, queue)
            dead += await _all_of(engine, dead_letter_queue(queue))
        check(state, clock.now_ms())
    compare(said, live, dead)
    await engine.close()
    if twice and state is not None:
        store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
        engine = await Engine.open(store, clock, salt=99)
        after = dump(state_of(engine, NS))
        assert after == dump(state) | {key: after[key] for key in ("era", "started_ms")}
        await engine.close()


async def _all_of(engine: Engine, queue: str, session: int = 0) -> list[str]:
    """The names of all that can be received, and a look at what they carry."""
    command = Receive(queue, engine.new_receiver(), 10_000, session=session)
    answer = await engine.ask(BROKER, NS, command)
    assert isinstance(answer, Received)
    names = [message_id(each.message.envelope) for each in answer.deliveries]
    assert [each.message.body for each in answer.deliveries] == [_body(name) for name in names]
    return names


async def _all_of_sessions(engine: Engine, queue: str) -> list[str]:
    every: list[str] = []
    while granted := await engine.ask(BROKER, NS, AcceptSession(queue, engine.new_receiver())):
        assert isinstance(granted, Granted)
        names = await _all_of(engine, queue, granted.token)
        assert all(name.endswith(f"-{granted.session}") for name in names)
        assert names == sorted(names), f"out of order in {granted.session}"
        every += names
    return every


def compare(said: list[str], live: list[str], dead: list[str]) -> None:
    """What is found against what clients saw."""
    history = History()
    for line in said:
        history.hear(line)
    history.check(live, dead)
    assert set(dead) <= history.said["burying"]
    found = Counter(live + dead)
    assert not any(found[line.removeprefix("refused ")] for line in said), "refused, and there"
    for line in said:
        word, *names = line.split(" ")
        if word == "together" and names[0] not in history.said["sent"]:
            assert len({found[name] for name in names}) == 1, f"half a send: {names}"
