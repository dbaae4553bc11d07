"""Every byte of a journal changed, and its files cut off at every byte: told, or nothing is lost.

What each place may lead to is worked out from docs/journal-format.md, by a reader of its own, and
from what the engine's state was after each frame. TORTURE=1 takes every byte of the journal.
"""

import asyncio
import os
import re
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

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
    Granted,
    Receive,
    Received,
    ReleaseSession,
    Send,
)
from posthouse.core.dump import Dump, dump
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.errors import StoreError
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from tests.store.faulty_disk import FaultyDisk, File

TORTURE = os.environ.get("TORTURE") == "1"
PLACES = 500  # in the short form, for each way to stop and each way to damage

FOLDER = Path("journal")
SEGMENT_BYTES = 26 << 10
HEADER_BYTES = 64  # of a segment; it is there twice
FRAMES_BEGIN = 2 * HEADER_BYTES
NS = "bytes"
PLAIN, SESSIONS = "plain", "sessions"

States = dict[int, Dump | None]  # the namespace after the frame of each number


class Written(NamedTuple):
    """A frame, and where it stands."""

    file: str
    begin: int
    end: int
    number: int
    first: int  # its first position
    after: int  # the position after its last


class Journal(NamedTuple):
    files: dict[str, bytes]
    frames: list[Written]
    states: States
    clean: bool

    @property
    def segments(self) -> list[str]:
        return sorted(name for name in self.files if name.endswith(".journal"))

    def disk(self) -> FaultyDisk:
        disk = FaultyDisk()
        for name, content in self.files.items():
            disk.names_now[name] = disk.names_durable[name] = File(content)
        return disk


# A journal, written by a real engine into real files.


class NotingStore(FileStore):
    number = 0  # of the last frame
    bytes = 0  # of all frames

    def append(self, frame: Frame) -> None:
        super().append(frame)
        self.number = frame.number
        self.bytes += frame.size_bytes


class Writer:
    """One client after the other, and a look at the state after each frame."""

    def __init__(
        self, store: NotingStore, engine: Engine, clock: VirtualClock, states: States
    ) -> None:
        self.store, self.engine, self.clock = store, engine, clock
        self.random = Random(engine.epoch)
        self.states = states

    def note(self) -> None:
        self.states[self.store.number] = deepcopy(state_of(self.engine))  # a dump may share

    async def ask(self, command: Command) -> Answer:
        answer = await self.engine.ask(BROKER, NS, command)
        self.note()
        return answer

    async def make_queues(self) -> None:
        await self.engine.ask(BROKER, "", CreateNamespace(NS, self.engine.epoch, 1))
        self.note()
        await self.ask(CreateQueue(PLAIN))
        await self.ask(CreateQueue(SESSIONS, QueueProperties(grouping="session")))

    async def work(self) -> None:
        choice = self.random.random
        await self.send(self.random.choice([PLAIN, SESSIONS]))
        if choice() < 0.2:
            await self.receive_and_settle(PLAIN)
        if choice() < 0.2:
            granted = await self.ask(AcceptSession(SESSIONS, self.engine.new_receiver()))
            if isinstance(granted, Granted):
                await self.receive_and_settle(SESSIONS, granted.token)
                await self.ask(ReleaseSession(SESSIONS, granted.token))
        if choice() < 0.1:
            await self.send(PLAIN, due_ms=self.clock.now_ms() + 100)
            await self.engine.advance(100)
            self.note()

    async def send(
        self, queue: str, due_ms: int = 0, sizes: Sequence[int] = (200, 1_500, 2_500)
    ) -> None:
        messages = []
        for number in range(self.random.choice([1, 1, 3])):
            group = f"s{number}" if queue == SESSIONS else None
            envelope = encode_envelope(Envelope(id=f"{self.store.number}-{number}"))
            body = self.random.randbytes(self.random.choice(sizes))
            messages.append(NewMessage(envelope, body, group=group, due_ms=due_ms))
        await self.ask(Send(queue, messages))

    async def receive_and_settle(self, queue: str, session: int = 0) -> None:
        answer = await self.ask(Receive(queue, self.engine.new_receiver(), 6, session=session))
        assert isinstance(answer, Received)
        tokens = [delivery.token for delivery in answer.deliveries]
        if tokens:
            await self.ask(DeadLetter(queue, tokens[:1], reason="why"))
        if tokens[1:]:
            await self.ask(Abandon(queue, tokens[1:2]))
        if tokens[2:]:
            await self.ask(Complete(queue, tokens[2:]))


async def write(folder: Path, start: int, states: States, *, clean: bool) -> None:
    """One start that fills most of a segment."""
    clock = VirtualClock(1_000_000 + start * 10_000)
    store = NotingStore(folder, segment_bytes=SEGMENT_BYTES)
    engine = await Engine.open(store, clock, salt=start)
    writer = Writer(store, engine, clock, states)
    if start == 0:
        await writer.make_queues()
    writer.note()
    while store.bytes < 22 << 10:
        await writer.work()
    await writer.send(PLAIN, due_ms=clock.now_ms() + 100_000, sizes=[400])
    if clean:
        await engine.close()
        writer.note()
    else:
        await store.close()


@cache
def a_journal(*, clean: bool) -> Journal:
    """Of three segments and three starts: one after a clean stop, and one after a crash."""
    states: States = {}
    with TemporaryDirectory() as folder:
        for start, stops_clean in enumerate((True, False, clean)):
            asyncio.run(write(Path(folder), start, states, clean=stops_clean))
        files = {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.name != "lock"}
    frames = [frame for name in sorted(files) for frame in frames_of(name, files[name])]
    journal = Journal(files, frames, states, clean)
    assert sorted(states) == [frame.number for frame in frames] == [*range(1, len(frames) + 1)]
    assert len(journal.segments) == 3
    assert sum(frame.end - frame.begin for frame in frames) >= 64 << 10
    assert set(files) == {*journal.segments, "next", "reserve", *(("closed",) if clean else ())}
    return journal


def frames_of(name: str, content: bytes) -> Iterator[Written]:
    header = struct.Struct(">4sIIB3xIIQQQQ")
    at = FRAMES_BEGIN
    while name.endswith(".journal") and content[at : at + 4] == b"PHF1":
        _, _, length, _, _, count, number, first, _, _ = header.unpack_from(content, at)
        yield Written(name, at, at + header.size + length, number, first, first + count)
        at += header.size + length


def state_of(engine: Engine) -> Dump | None:
    """All that lasts; a start gives tokens a new beginning, and notes its time."""
    state = engine.world.states.get(NS)
    if state is None:
        return None
    return {key: value for key, value in dump(state).items() if key not in ("era", "started_ms")}


# Opening, and what may come of it.


class Outcome(NamedTuple):
    """An error that names a place, or a state and from which position on a tail was cut."""

    error: str | None
    state: Dump | None = None
    cut_at: int | None = None


async def opened(disk: FaultyDisk) -> Outcome:
    try:
        store = FileStore(FOLDER, segment_bytes=SEGMENT_BYTES, disk=disk)
    except StoreError as error:
        return Outcome(str(error))
    # At this time nothing is due, so the engine does nothing but start.
    engine = await Engine.open(store, VirtualClock(), salt=9)
    await store.close()
    return Outcome(None, state_of(engine), store.cut_at)


class Allowed(NamedTuple):
    """What one damage may lead to: `named` there, or all that was known after `frame` is back."""

    named: tuple[str, int] | None = None
    frame: int | None = None
    cut_at: int | None = None


def allowed_after_change(journal: Journal, file: str, at: int) -> Allowed:
    last = journal.frames[-1]
    if not file.endswith(".journal"):  # nothing is lost with it, so it may pass or be named
        return Allowed(_end_of(journal), last.number)
    if at < FRAMES_BEGIN:
        return Allowed(named=(file, at // HEADER_BYTES * HEADER_BYTES))
    for frame in journal.frames:
        if frame.file == file and frame.begin <= at < frame.end:
            if frame is last and not journal.clean:
                # No later frame says that this one was durable: it looks like an unsynced tail.
                return Allowed(frame=frame.number - 1, cut_at=frame.first)
            return Allowed(named=(file, frame.begin))
    if file != last.file:
        return Allowed(frame=last.number)  # between the last frame of a segment and the next
    return Allowed(frame=last.number, cut_at=last.after)


def allowed_after_truncation(journal: Journal, file: str, length: int) -> Allowed:
    last = journal.frames[-1]
    if not file.endswith(".journal"):
        return Allowed(_end_of(journal), last.number)
    if length < FRAMES_BEGIN:
        return Allowed(named=(file, length // HEADER_BYTES * HEADER_BYTES))
    return Allowed(named=(file, length))  # the header says how long the file is


def _end_of(journal: Journal) -> tuple[str, int]:
    return journal.frames[-1].file, journal.frames[-1].end


async def check(journal: Journal, file: str, content: bytes, allowed: Allowed) -> None:
    """Opens a journal with one file changed, twice."""
    disk = journal.disk()
    disk.names_now[file] = disk.names_durable[file] = File(content)
    before = {name: each.now() for name, each in disk.names_now.items()}
    outcome = await opened(disk)
    again = await opened(disk)
    if outcome.error is not None:
        assert allowed.named is not None, f"refused for nothing: {outcome.error}"
        place = re.match(r"(\S+) is damaged at byte (\d+): ", outcome.error)
        assert place is not None, outcome.error
        assert (Path(place[1]), int(place[2])) == (FOLDER / allowed.named[0], allowed.named[1])
        assert again == outcome
        assert {name: each.now() for name, each in disk.names_now.items()} == before
        return
    assert allowed.frame is not None, f"damage at {allowed.named} was passed over"
    assert outcome.state == journal.states.get(allowed.frame), "not the state that was acknowledged"
    assert outcome.cut_at == allowed.cut_at
    assert again == Outcome(None, outcome.state), "a second start does not find the same"


def places(journal: Journal) -> list[tuple[str, int]]:
    """Files and offsets: all, or some, and then more of them where the journal ends."""
    files = [name for name in journal.files if name not in ("next", "reserve")]
    every = [(name, at) for name in sorted(files) for at in range(len(journal.files[name]))]
    if TORTURE:
        return every
    random, last = Random(11), journal.frames[-1]
    near = [(f, at) for f, at in every if f == "closed" or (f == last.file and at >= last.begin)]
    heads = [(f, at) for f, at in every if f != "closed" and at < FRAMES_BEGIN]
    some = random.sample(every, PLACES * 3 // 5)
    return some + random.sample(near, PLACES // 5) + random.sample(heads, PLACES // 5)


async def change_bytes(journal: Journal, some: list[tuple[str, int]]) -> None:
    for file, at in some:
        content = bytearray(journal.files[file])
        content[at] ^= Random(f"{file} {at}").randrange(1, 256)
        try:
            await check(journal, file, bytes(content), allowed_after_change(journal, file, at))
        except BaseException as error:
            error.add_note(f"{file}, byte {at}: {journal.files[file][at]} is {content[at]} now")
            raise


async def cut_files_off(journal: Journal, some: list[tuple[str, int]]) -> None:
    for file, length in some:
        content = journal.files[file][:length]
        try:
            await check(journal, file, content, allowed_after_truncation(journal, file, length))
        except BaseException as error:
            error.add_note(f"{file}, cut off at {length}")
            raise


Work = Callable[[Journal, list[tuple[str, int]]], Coroutine[None, None, None]]


def share(work: Work, clean: bool, number: int, shares: int) -> None:
    """One share of the work. Each process has a journal of its own, alike but for its salts."""
    journal = a_journal(clean=clean)
    asyncio.run(work(journal, places(journal)[number::shares]))


def do_all(work: Work, *, clean: bool) -> None:
    """In the long form by all processors."""
    shares = (os.cpu_count() or 1) if TORTURE else 1
    if shares == 1:
        share(work, clean, 0, 1)
        return
    with ProcessPoolExecutor(shares, get_context("spawn")) as pool:
        done = [pool.submit(share, work, clean, number, shares) for number in range(shares)]
        for each in done:
            each.result()


def test_the_journal_that_is_damaged_here_is_whole_before() -> None:
    for clean in (True, False):
        journal = a_journal(clean=clean)
        last = journal.frames[-1].number
        outcome = asyncio.run(opened(journal.disk()))
        assert outcome == Outcome(None, journal.states[last])
        assert journal.states[last] != journal.states[last - 2]


@pytest.mark.parametrize("clean", [True, False])
def test_a_changed_byte_is_named_or_lies_in_what_nothing_vouches_for(clean: bool) -> None:
    do_all(change_bytes, clean=clean)


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_cut_off_is_named_or_ends_in_what_nothing_vouches_for(clean: bool) -> None:
    do_all(cut_files_off, clean=clean)


@pytest.mark.parametrize("file", ["next", "reserve"])
def test_damage_in_space_claimed_for_later_costs_nothing(file: str) -> None:
    """Nothing reads these files, so a few bytes are enough, in the long form too."""
    random = Random(13)
    for clean in (True, False):
        journal = a_journal(clean=clean)
        whole = Allowed(frame=journal.frames[-1].number)
        for at in random.sample(range(SEGMENT_BYTES), 20):
            content = bytearray(journal.files[file])
            content[at] ^= random.randrange(1, 256)
            asyncio.run(check(journal, file, bytes(content), whole))
            asyncio.run(check(journal, file, bytes(content[:at]), whole))
