"""Who asked once and does not wait longer."""

import asyncio

import pytest

from posthouse.broker.access import BROKER
from posthouse.core.commands import AcceptSession, Command, CreateQueue, Enqueued, Receive, Send
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.broker.test_engine import GatedStore
from tests.inside import state_of
from tests.waiting import idle, turn

LATE = 1 << 40


async def asking(desk: Desk, command: Command) -> "asyncio.Task[object]":
    """Of one who waits."""
    task = asyncio.create_task(desk.do(command))
    await turn()
    await desk.engine.flush()
    assert not task.done()
    return task


async def told(task: "asyncio.Task[object]") -> object:
    return await asyncio.wait_for(task, 5)


def test_who_gives_up_is_told_at_once_and_what_comes_then_is_for_others() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        first, second = desk.engine.new_receiver(), desk.engine.new_receiver()
        waiting = await asking(desk, Receive("q", first, 1, LATE))
        other = await asking(desk, Receive("q", second, 1, LATE))
        desk.engine.give_up(first)
        assert getattr(await told(waiting), "deliveries", None) == []
        await desk.send("a")
        [delivery] = (await told(other)).deliveries  # type: ignore[attr-defined]
        assert (bodies([delivery]), delivery.count) == (["a"], 1)

    asyncio.run(main())


def test_who_gives_up_is_told_once() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        number, answers = desk.engine.new_receiver(), list[object]()
        desk.engine.submit(BROKER, NS, Receive("q", number, 1, LATE), answers.append)
        for _ in range(2):
            desk.engine.give_up(number)
        await desk.engine.close()
        assert len(answers) == 1

    asyncio.run(main())


def test_who_gives_up_waiting_for_a_session_accepts_none() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), grouping="session")
        number = desk.engine.new_receiver()
        waiting = await asking(desk, AcceptSession("q", number, deadline_ms=LATE))
        desk.engine.give_up(number)
        assert await told(waiting) is None
        await desk.send("a", group="s")
        assert state_of(desk.engine, NS).sessions == {}

    asyncio.run(main())


def test_who_gives_up_waiting_for_room_has_sent_nothing() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        await desk.do(CreateQueue("full", QueueProperties(max_messages=1, overflow="block")))
        await desk.send("a", queue="full")
        number = desk.engine.new_receiver()
        late = Send("full", [NewMessage(b"\x80", b"b")], sender=number, deadline_ms=LATE)
        waiting = await asking(desk, late)
        desk.engine.give_up(number)
        with pytest.raises(QuotaExceeded):
            await told(waiting)
        assert bodies(await desk.receive(5, "full", delete=True)) == ["a"]
        await desk.engine.flush()
        assert await desk.receive(5, "full") == []

    asyncio.run(main())


def test_who_gives_up_while_a_message_is_under_way_to_him_gets_it() -> None:
    """It is locked for him: told that there is nothing, he would keep it from everybody."""

    async def main() -> None:
        store = GatedStore()
        desk = await Desk.open(store)
        number = desk.engine.new_receiver()
        waiting = await asking(desk, Receive("q", number, 1, LATE))
        store.gate.clear()
        sending = asyncio.create_task(desk.send("a"))
        await idle()
        desk.engine.give_up(number)
        await idle()
        assert not waiting.done()
        store.gate.set()
        await sending
        assert bodies((await told(waiting)).deliveries) == ["a"]  # type: ignore[attr-defined]

    asyncio.run(main())


def test_who_gives_up_while_his_send_is_under_way_has_sent_it() -> None:
    async def main() -> None:
        store = GatedStore()
        desk = await Desk.open(store)
        await desk.do(CreateQueue("full", QueueProperties(max_messages=1, overflow="block")))
        await desk.send("a", queue="full")
        number = desk.engine.new_receiver()
        late = Send("full", [NewMessage(b"\x80", b"b")], sender=number, deadline_ms=LATE)
        waiting = await asking(desk, late)
        store.gate.clear()
        taking = asyncio.create_task(desk.receive(1, "full", delete=True))
        await idle()
        assert state_of(desk.engine, NS).blocked == {}
        desk.engine.give_up(number)
        await idle()
        assert not waiting.done()
        store.gate.set()
        assert isinstance(await told(waiting), Enqueued)
        assert bodies(await taking) == ["a"]
        assert bodies(await desk.receive(5, "full")) == ["b"]

    asyncio.run(main())
