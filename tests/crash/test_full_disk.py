"""A disk that is full, and one that fails, under an engine at work."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock, VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    Abandon,
    Answer,
    Command,
    Complete,
    CreateQueue,
    DeadLetter,
    Delivery,
    GetQueue,
    Receive,
    Received,
    Send,
)
from posthouse.core.dump import dump
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import Envelope, NewMessage, encode_envelope, message_id
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.disk import Disk
from posthouse.store.errors import Lost, StoreError
from posthouse.store.file import FileStore
from tests.crash.history import History
from tests.inside import state_of
from tests.invariants import check
from tests.small_disk import mounted
from tests.store.faulty_disk import FaultyDisk
from tests.waiting import turn, until_async

pytestmark = pytest.mark.alone

NS, QUEUE, EMPTY = "full", "work", "empty"
SEGMENT_BYTES = 256 << 10
DISK_BYTES = 4 << 20
SENDS_AT_ONCE = 20


class Client:
    """Asks, and says what it asked and what was acknowledged."""

    def __init__(self, engine: Engine, said: list[str], name: str) -> None:
        self.engine, self.said, self.name = engine, said, name
        self.sent = 0
        self.refused: list[str] = []

    async def ask(self, command: Command) -> Answer:
        return await self.engine.ask(BROKER, NS, command)

    async def send(self, body_bytes: int = 1_000) -> None:
        self.sent += 1
        name = f"{self.name}-{self.sent:05}"
        envelope = encode_envelope(Envelope(id=name))
        self.said.append(f"sending {name}")
        try:
            await self.ask(Send(QUEUE, [NewMessage(envelope, bytes(body_bytes))]))
        except QuotaExceeded:
            self.refused.append(name)
            raise
        self.said.append(f"sent {name}")

    async def send_until_refused(self) -> None:
        """Several at once: where the disk is short of room each answer comes late."""
        refused: list[BaseException] = []
        while not refused:
            sends = [self.send() for _ in range(SENDS_AT_ONCE)]
            answers = await asyncio.gather(*sends, return_exceptions=True)
            refused = [each for each in answers if each is not None]
        for error in refused:
            if not isinstance(error, QuotaExceeded):
                raise error

    async def receive(self, limit: int) -> list[Delivery]:
        answer = await self.ask(Receive(QUEUE, self.engine.new_receiver(), limit))
        assert isinstance(answer, Received)
        return answer.deliveries

    async def complete(self, delivery: Delivery) -> None:
        name = message_id(delivery.message.envelope)
        self.said.append(f"completing {name}")
        await self.ask(Complete(QUEUE, [delivery.token]))
        self.said.append(f"completed {name}")

    async def bury(self, delivery: Delivery) -> None:
        name = message_id(delivery.message.envelope)
        self.said.append(f"burying {name}")
        await self.ask(DeadLetter(QUEUE, [delivery.token], reason="why"))
        self.said.append(f"buried {name}")

    async def give_back(self, delivery: Delivery) -> None:
        """With much to say about it: this is how settling takes room."""
        await self.ask(Abandon(QUEUE, [delivery.token], properties={"why": "x" * 2_000}))

    async def settle(self, number: int, delivery: Delivery) -> None:
        await (self.complete, self.bury, self.give_back)[number % 3](delivery)


async def with_queues(engine: Engine) -> None:
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    for queue in (QUEUE, EMPTY):
        properties = QueueProperties(lock_ms=3_600_000, max_delivery=1_000)
        await engine.ask(BROKER, NS, CreateQueue(queue, properties))


def found(engine: Engine) -> tuple[list[str], list[str]]:
    """The names of live and of dead messages."""
    queues = state_of(engine, NS).queues
    live, dead = (
        [message_id(message.envelope) for message in queues[queue].messages.walk(0)]
        for queue in (QUEUE, dead_letter_queue(QUEUE))
    )
    return live, dead


def hold_against(said: list[str], live: list[str], dead: list[str]) -> None:
    """What was said against one of the ways in which it may have ended."""
    history = History()
    for line in said:
        history.hear(line)
    history.check(live, dead)


def _sent(said: list[str]) -> int:
    return sum(line.startswith("sent ") for line in said)


def run(main: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))  # only so that a test that hangs ends


# Full.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, so small that it is soon full."""
    with mounted(tmp_path, DISK_BYTES) as disk:
        yield disk


async def started(disk: Path) -> tuple[FileStore, Engine]:
    store = FileStore(disk / "data", segment_bytes=SEGMENT_BYTES)
    return store, await Engine.open(store, SystemClock(), salt=1)


async def filled(disk: Path, said: list[str]) -> tuple[FileStore, Engine, list[Client]]:
    """An engine whose senders have all been refused, for the disk is full."""
    (disk / "ballast").write_bytes(bytes(DISK_BYTES // 2))
    store, engine = await started(disk)
    await with_queues(engine)
    clients = [Client(engine, said, f"sender{number}") for number in range(4)]
    await asyncio.gather(*(client.send_until_refused() for client in clients))
    assert _sent(said) > 500
    return store, engine, clients


async def settle_out_of_the_reserve(disk: Path, client: Client) -> None:
    """Settles until the reserve is in use, and then some more."""
    for number, delivery in enumerate(await client.receive(300)):
        await client.settle(number, delivery)
    while (disk / "data" / "reserve").exists():
        for delivery in await client.receive(10):
            await client.give_back(delivery)
    for number, delivery in enumerate(await client.receive(30)):
        await client.settle(number, delivery)


def is_full(store: FileStore) -> bool:
    return store.full


async def until_there_is_room(store: FileStore) -> None:
    """Nobody asks the engine for anything meanwhile: it finds out by itself."""
    await until_async(lambda: not is_full(store), "there is room")


def compare(engine: Engine, said: list[str], clients: Sequence[Client]) -> None:
    check(state_of(engine, NS), SystemClock().now_ms())
    live, dead = found(engine)
    hold_against(said, live, dead)
    refused = {name for client in clients for name in client.refused}
    assert refused
    assert not refused & {*live, *dead}, "refused, and there"


def test_on_a_full_disk_sends_are_refused_settling_goes_on_and_service_resumes(
    small_disk: Path,
) -> None:
    async def main() -> None:
        said: list[str] = []
        store, engine, clients = await filled(small_disk, said)
        await settle_out_of_the_reserve(small_disk, clients[0])
        assert is_full(store)
        for client in clients:
            with pytest.raises(QuotaExceeded) as refused:
                await client.send()
            assert refused.value.limit == "disk space"
        assert not engine.failed.is_set()

        (small_disk / "ballast").unlink()
        await until_there_is_room(store)
        assert {"next", "reserve"} <= {path.name for path in (small_disk / "data").iterdir()}
        for _ in range(100):
            await asyncio.gather(*(client.send() for client in clients))
        before = found(engine)
        await store.close()  # a crash: nothing that was not durable may matter

        _, engine = await started(small_disk)
        assert found(engine) == before
        compare(engine, said, clients)
        await engine.close()

    run(main())


def test_a_start_on_a_full_disk_serves_what_a_full_disk_can(small_disk: Path) -> None:
    async def main() -> None:
        said: list[str] = []
        store, engine, clients = await filled(small_disk, said)
        await settle_out_of_the_reserve(small_disk, clients[0])
        before = found(engine)
        await store.close()

        store, engine = await started(small_disk)
        assert is_full(store)
        assert found(engine) == before
        client = Client(engine, said, "later")
        with pytest.raises(QuotaExceeded):
            await client.send()
        for number, delivery in enumerate(await client.receive(30)):
            await client.settle(number, delivery)
        (small_disk / "ballast").unlink()
        await until_there_is_room(store)
        await client.send()
        await store.close()

        _, engine = await started(small_disk)
        compare(engine, said, [*clients, client])
        await engine.close()

    run(main())


# Failing.

Failing = Literal["sync", "write"]


class FailingDisk(FaultyDisk):
    """One sync or write fails, and the next would succeed, as it does on real disks.

    What a failed sync did not write is forgotten; what a failed write has begun stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._failing: Failing | None = None

    def fail_once(self, failing: Failing) -> None:
        self._failing = failing

    def has_failed(self) -> bool:
        return self._failing is None

    def write(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        if self._failing == "write":
            self._failing = None
            data = b"".join(chunks)
            super().write(file, offset, [data[: len(data) // 2]])
            raise OSError(errno.EIO, "half of it was written")
        super().write(file, offset, chunks)

    def sync(self, file: int) -> None:
        if self._failing == "sync":
            self._failing = None
            self.open_files[file].pending.clear()
            raise OSError(errno.EIO, "nobody knows what was written")
        super().sync(file)


def on(disk: Disk) -> FileStore:
    return FileStore(Path("journal"), segment_bytes=32 << 10, disk=disk)


@pytest.mark.parametrize("failing", ["sync", "write"])
@pytest.mark.parametrize("body_bytes", [100, 5_000])  # in a segment, or where the next begins
def test_after_a_failure_everybody_is_told_and_what_was_acknowledged_is_there(
    failing: Failing, body_bytes: int
) -> None:
    disk, said = FailingDisk(), list[str]()

    async def main() -> None:
        store = on(disk)
        engine = await Engine.open(store, VirtualClock(1_000), salt=1)
        await with_queues(engine)
        client = Client(engine, said, "client")
        for _ in range(20):
            await client.send()
        first, *some = await client.receive(10)
        for number, delivery in enumerate(some):
            await client.settle(number, delivery)
        waiting = asyncio.create_task(
            client.ask(Receive(EMPTY, engine.new_receiver(), 1, 1_000_000))
        )
        await turn()

        disk.fail_once(failing)
        everybody = [
            *(client.send(body_bytes) for _ in range(5)),
            client.complete(first),
            client.ask(GetQueue(QUEUE)),
        ]
        for answer in await asyncio.gather(*everybody, return_exceptions=True):
            assert isinstance(answer, StoreError)
        with pytest.raises(StoreError):
            await waiting
        assert disk.has_failed()
        assert engine.failed.is_set()

        operations = disk.operations
        later: list[Callable[[], Coroutine[None, None, object]]] = [
            client.send,
            lambda: client.receive(1),
            lambda: client.complete(first),
            lambda: client.ask(GetQueue(QUEUE)),
            lambda: engine.ask(BROKER, "", CreateNamespace("other", engine.epoch, 1)),
        ]
        for ask in later:
            with pytest.raises(StoreError):
                await ask()
        with pytest.raises(Lost):
            await store.sync()
        await engine.close()
        assert disk.operations == operations, "a disk that failed was written to"
        assert "closed" not in disk.names_now

    run(main())
    assert _sent(said) == 20
    restart_and_compare(disk.copy(), said)
    for seed in range(10):
        restart_and_compare(disk.after_power_cut(Random(seed)), said)


def restart_and_compare(disk: FaultyDisk, said: list[str]) -> None:
    """Twice: what the first start finds and makes of it, the second finds too."""

    async def main() -> None:
        store = on(disk)
        engine = await Engine.open(store, VirtualClock(1_000), salt=2)
        check(state_of(engine, NS), 1_000)
        hold_against(said, *found(engine))
        await Client(engine, [], "after").send()
        before = dump(state_of(engine, NS))
        await store.close()
        store = on(disk)
        assert store.cut_at is None
        engine = await Engine.open(store, VirtualClock(1_000), salt=2)
        after = dump(state_of(engine, NS))
        assert after == {**before, "era": after["era"], "started_ms": after["started_ms"]}
        await engine.close()

    run(main())
