"""What a log is purged of, and who keeps it from that."""

import asyncio
import re
from pathlib import Path

import pytest

from posthouse.broker.standby import Hello, Standby
from posthouse.server.log_window import FORGOTTEN_SECONDS, Holder, LogWindow, purge_limit
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.log import MemoryLog, Unanswered
from posthouse.store.replicated import ReplicatedStore
from tests.waiting import until_async

pytestmark = pytest.mark.traced  # it covers what the store and the core do for this

DAY = FORGOTTEN_SECONDS


@pytest.mark.parametrize(
    ("others", "share", "limit"),
    [
        ([], 0.1, 0),  # the others may not have said hello yet
        ([], 0.8, 100),  # it is alone
        ([("b", 0.5, 90), ("c", 0.5, 70)], 0.1, 70),
        ([("b", 0.5, 120), ("c", 0.5, 130)], 0.1, 100),  # what this node has not synced stays
        ([("b", 0.5, 90), ("c", DAY - 1, 70)], 0.1, 70),
        ([("b", 0.5, 90), ("c", DAY + 1, 70)], 0.1, 90),
        ([("b", 0.5, 90), ("c", 60, 70)], 0.8, 90),  # only those who are there
        ([("b", 0.5, 90), ("c", 0.5, 70)], 0.89, 70),
        ([("b", 0.5, 90), ("c", 0.5, 70)], 0.9, 90),  # two at least
        ([("b", DAY + 1, 60), ("c", DAY + 1, 70)], 0.95, 70),  # and never one
        ([("b", DAY + 1, 60)], 0.1, 60),
    ],
)
def test_who_holds_the_log(others: list[tuple[str, float, int]], share: float, limit: int) -> None:
    assert purge_limit(100, [Holder(*other) for other in others], share) == limit


def a_hello(node: str, synced: int) -> Hello:
    return Hello(node, node, synced, synced, "1", 0)


async def a_leader(folder: Path, log: MemoryLog) -> ReplicatedStore:
    store = ReplicatedStore(FileStore(folder, durability="interval", segment_bytes=1 << 16), log)
    await store.lead(1, lambda _: None)
    return store


async def write(store: ReplicatedStore, number: int, size: int) -> None:
    store.append(Frame(1, number, number, 1, number, 0, bytes(size)))
    await store.sync()


def test_a_log_that_fills_up_is_purged_when_a_second_node_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("posthouse.server.log_window.LOOK_SECONDS", 0.01)

    async def main() -> None:
        log = MemoryLog(bytes_max=100_000)
        store = await a_leader(tmp_path, log)
        standby = Standby("a", 0.0)
        standby.hear_hello(a_hello("b", 0), asyncio.get_running_loop().time())
        window = asyncio.create_task(LogWindow(store, standby, lambda: True).run())
        for number in range(1, 10):
            await write(store, number, 10_000)
            store.mark()
        was_full = store.full
        await until_async(lambda: "is used to 9" in caplog.text, "it is told")
        assert re.search(r"b \(\d frames behind", caplog.text)
        assert log.first == 1
        await write(store, 10, 100)  # a settle still fits
        standby.hear_hello(a_hello("b", 8), asyncio.get_running_loop().time())
        await until_async(lambda: log.first > 8, "it is purged")
        await until_async(lambda: "has room again" in caplog.text, "that is told")
        assert (was_full, store.full) == (True, False)
        window.cancel()
        await store.close()

    asyncio.run(main())


def test_a_node_that_cannot_put_its_fence_into_a_full_log_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.server.log_window.LOOK_SECONDS", 0.01)

    async def main() -> None:
        log = MemoryLog(bytes_max=100_000)
        old = await a_leader(tmp_path / "a", log)
        await write(old, 1, 50_000)
        old.mark()
        await write(old, 2, 49_000)
        log.bytes_max = log.size_bytes  # not one message more
        local = FileStore(tmp_path / "b", durability="interval")
        candidate = ReplicatedStore(local, log)
        while await candidate.read_on():
            pass
        standby = Standby("b", 0.0)
        standby.hear_hello(a_hello("a", 2), asyncio.get_running_loop().time())
        window = asyncio.create_task(LogWindow(candidate, standby, lambda: False).run())
        await candidate.lead(2, lambda _: None)
        assert log.first == 3
        window.cancel()
        await old.close()
        await candidate.close()

    asyncio.run(main())


def test_a_purge_that_has_no_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("posthouse.server.log_window.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("posthouse.server.log_window.PURGE_SECONDS", 0.01)
    monkeypatch.setattr("posthouse.server.log_window.MEASURE_SECONDS", 0.01)

    class Deaf(MemoryLog):
        async def measure(self) -> None:
            raise Unanswered("nobody is there")

    async def main() -> None:
        store = await a_leader(tmp_path, Deaf())
        window = asyncio.create_task(LogWindow(store, Standby("a", 0.0), lambda: True).run())
        await until_async(lambda: "was not purged: nobody is there" in caplog.text, "it is told")
        window.cancel()
        await store.close()

    asyncio.run(main())
