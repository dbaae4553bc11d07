"""However much is due, a start is ready at once, and everybody else is served beside it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from posthouse.broker import due
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock, VirtualClock
from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    SCHEDULES_MAX,
    STEPS_MAX,
    CreateQueue,
    SetSchedule,
    Tick,
    UpdateQueue,
)
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.core.world import World, a_message
from tests.inside import state_of

TICK = NewMessage(b"\x80", b"tick")
HOUR_MS = 3_600_000


class Hurried(SystemClock):
    """Two seconds pass with every look at it, so that what recurs is always due."""

    def __init__(self) -> None:
        super().__init__()
        self._ms = 1_000_000

    def now_ms(self) -> int:
        self._ms += 2_000
        return self._ms


async def schedule(desk: Desk, count: int, queue: str = "q") -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(count):
            group.create_task(desk.do(SetSchedule(queue, f"s{n}", "every second", TICK)))


def is_due(desk: Desk, now_ms: int) -> bool:
    due_ms = next_deadline_ms(state_of(desk.engine, NS))
    return due_ms is not None and due_ms <= now_ms


def test_a_start_is_ready_though_there_is_always_something_due(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path))
        await schedule(desk, 100)
        await desk.engine.close()
        async with asyncio.timeout(20):
            desk = await Desk.open(FileStore(tmp_path), Hurried())
            await desk.do(CreateQueue("other"))
            await desk.send("mine", queue="other")
            assert bodies(await desk.receive(queue="other")) == ["mine"]
            await desk.engine.close()

    asyncio.run(main())


def test_others_are_served_while_all_schedules_there_can_be_are_due(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path), VirtualClock(1_000))
        await desk.do(CreateQueue("other"))
        await schedule(desk, SCHEDULES_MAX)
        await desk.engine.close()
        now_ms = 1_000 + HOUR_MS
        desk = await Desk.open(FileStore(tmp_path), VirtualClock(now_ms))
        assert is_due(desk, now_ms)
        await desk.send("mine", queue="other")
        assert bodies(await desk.receive(queue="other")) == ["mine"]
        assert is_due(desk, now_ms)  # that was not behind all of it
        while is_due(desk, now_ms):
            await desk.engine.flush()
        assert len(await desk.receive(SCHEDULES_MAX)) == SCHEDULES_MAX  # once each
        await desk.engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("fields", [{"due_ms": 2_000}, {"ttl_ms": 1_000}])
def test_others_are_served_while_a_hundred_thousand_messages_are_due(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path), VirtualClock(1_000))
        await desk.do(CreateQueue("other"))
        for _ in range(10):
            await desk.send(*["x"] * 10_000, **fields)
        await desk.engine.close()
        now_ms = 1_000 + HOUR_MS
        desk = await Desk.open(FileStore(tmp_path), VirtualClock(now_ms))
        await desk.send("mine", queue="other")
        assert bodies(await desk.receive(queue="other")) == ["mine"]
        assert is_due(desk, now_ms)
        while is_due(desk, now_ms):
            await desk.engine.flush()
        left = desk.engine.view.size(NS, "q").messages
        assert left == (100_000 if "due_ms" in fields else 0)
        await desk.engine.close()

    asyncio.run(main())


def test_namespaces_in_which_much_is_due_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "_SLICE_SECONDS", 0.0)  # each tick uses it up

    async def main() -> None:
        desk = await Desk.open(MemoryStore(), clock := VirtualClock(1_000))
        engine = desk.engine
        names = ["a", "b", "c"]
        for name in names:
            await engine.ask(BROKER, name, CreateNamespace(name, engine.epoch, 5))
            await engine.ask(BROKER, name, CreateQueue("q"))
            for n in range(3):
                schedule = SetSchedule("q", f"s{n}", "every second", TICK)
                await engine.ask(BROKER, name, schedule)
        for n in range(1, 4):
            clock.move_to(1_000 + 10_000 * n)
            for _ in names:
                await engine.flush()
            await engine.flush()
            counts = [engine.view.size(name, "q").messages for name in names]
            assert counts == [3 * n] * 3
        await engine.close()

    asyncio.run(main())


def test_schedules_do_not_keep_other_work_from_being_done() -> None:
    world = World()
    target, first = world.queue("target"), world.queue("first")
    world.send(first, *map(str, range(STEPS_MAX // 2)))
    for n in range(2 * STEPS_MAX):
        world.do(SetSchedule(target, f"s{n}", "every second", a_message("tick")))
    world.do(UpdateQueue(first, QueueProperties(forward_to=target)))
    for _ in range(STEPS_MAX):  # more schedules are due than a tick can send, at every tick
        world.now_ms += 2_000
        world.do(Tick())
        if not world.counts(first).active:
            break
    assert not world.counts(first).active
