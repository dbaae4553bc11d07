"""Looking back: states as they were, the life of a message, and sending again."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.fold import fold
from posthouse.broker.past import Place, Range, find, life, resend, state_at
from posthouse.broker.replay import END
from posthouse.core.commands import (
    Abandon,
    Complete,
    CreateQueue,
    DeadLetter,
    Defer,
    DeleteQueue,
    Renew,
    Resubmit,
    Send,
)
from posthouse.core.dump import dump
from posthouse.core.errors import NotFound
from posthouse.core.message import Attempt, Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.namespaces import DeleteNamespace
from posthouse.store.errors import NotThere
from posthouse.store.file import FileStore
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.broker.test_fold import work
from tests.inside import state_of

DLQ = dead_letter_queue("q")


def on_memory(main: Callable[[Desk], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        await main(await Desk.open(MemoryStore()))

    asyncio.run(run())


def a_message(body: str, id: str) -> NewMessage:
    return NewMessage(encode_envelope(Envelope(id=id)), body.encode())


def test_the_state_can_be_seen_as_it_was_at_any_position(tmp_path: Path) -> None:
    then: dict[int, dict[str, object]] = {}

    async def live() -> None:
        desk = await Desk.open(FileStore(tmp_path, segment_bytes=16 << 10))
        for _ in range(40):
            await work(desk, 2)
            state = state_of(desk.engine, NS)
            then[desk.engine.now().position - 1] = dump(state, bodies=False)
        await desk.engine.close()

    async def look() -> None:
        store = FileStore(tmp_path, segment_bytes=16 << 10, read_only=True)
        for position, expected in then.items():
            world = await state_at(store, store.snapshots, position)
            assert dump(world.states[NS], bodies=False) == expected
        await store.close()

    asyncio.run(live())
    asyncio.run(look())
    fold(tmp_path)
    asyncio.run(look())  # through a snapshot, where it is old enough


def test_a_position_in_the_middle_of_a_batch_is_one_too() -> None:
    async def main(desk: Desk) -> None:
        before = desk.engine.now().position
        await desk.send(*"abcdef")
        await desk.receive(4)
        await desk.engine.flush()
        locked = desk.engine.now().position - 4
        for count in range(1, 7):
            world = await state_at(desk.engine.store, None, before + count - 1)
            queue = world.states[NS].queues["q"]
            assert queue.counts[0] == count
            assert queue.size_bytes == 2 * count
        world = await state_at(desk.engine.store, None, locked + 1)
        assert world.states[NS].queues["q"].counts[:2] == [4, 2]

    on_memory(main)


def test_what_was_trimmed_cannot_be_seen_any_more() -> None:
    async def main(desk: Desk) -> None:
        await desk.send("a")
        await desk.send("b")
        await desk.engine.store.trim(3)
        with pytest.raises(NotThere):
            await state_at(desk.engine.store, None, 4)
        for position in (-1, 1, 1 << 40):
            with pytest.raises(NotThere):
                await state_at(desk.engine.store, None, position)
        with pytest.raises(NotThere, match="check the numbers"):
            await life(desk.engine.store, NS, Place("q", 77))

    on_memory(main)


def test_the_life_of_a_message_is_told_through_all_the_queues_it_was_in() -> None:
    async def main(desk: Desk) -> None:
        store = desk.engine.store
        await desk.do(CreateQueue("other"))
        await desk.send("before")
        await desk.do(
            Send("q", [NewMessage(b"\x80", b"x", due_ms=5_000), NewMessage(b"\x80", b"after")])
        )
        await desk.engine.advance(4_000)
        first, second, third = await desk.receive(3)
        assert bodies([third]) == ["x"]
        await desk.do(Complete("q", [first.token]))
        await desk.do(Renew("q", [third.token]))
        await desk.do(Abandon("q", [third.token], delay_ms=50))
        await desk.engine.advance(100)
        (again,) = await desk.receive(1)
        await desk.do(DeadLetter("q", [second.token, again.token], reason="no colour"))
        (dead, _) = await desk.receive(2, DLQ)
        await desk.do(Abandon(DLQ, [dead.token]))
        await desk.engine.advance(60_000)
        await desk.do(Resubmit(DLQ, target="other"))
        got = await desk.receive(2, "other")
        await desk.do(Defer("other", [got[1].token]))
        events = await life(store, NS, Place("other", 2))
        assert [(event.kind, event.queue, event.sequence) for event in events] == [
            ("Sent", "q", 2),
            ("Activated", "q", 2),
            ("Locked", "q", 4),
            ("Renewed", "q", 4),
            ("Returned", "q", 4),
            ("Woken", "q", 4),
            ("Locked", "q", 4),
            ("DeadLettered", "q", 4),
            ("Locked", DLQ, 2),
            ("Returned", DLQ, 2),
            ("Resubmitted", DLQ, 2),
            ("Locked", "other", 2),
            ("Deferred", "other", 2),
        ]
        assert events[0].text == "sent to 'q' as 2, scheduled for 1970-01-01 00:00:05.000Z"
        assert events[7].text == "dead-lettered as 2: no colour"
        assert events[10].text == "sent again to 'other' as 2"
        assert [e.position for e in events] == sorted({e.position for e in events})
        assert await life(store, NS, Place("q", 4)) == events
        assert await life(store, NS, Place("q", 2)) == events

    on_memory(main)


def test_a_message_that_was_locked_again_tells_so() -> None:
    async def main(desk: Desk) -> None:
        await desk.do(CreateQueue("late", QueueProperties(lock_ms=1_000, late_settling=True)))
        await desk.send("a", queue="late")
        await desk.receive(1, "late")
        await desk.engine.advance(1_000)
        await desk.do(Renew("late", [Attempt(1, 1)]))
        events = await life(desk.engine.store, NS, Place("late", 1))
        assert events[-1].kind == "Relocked"
        assert events[-1].text.startswith("locked again until 1970-01-01 00:00:0")

    on_memory(main)


def test_a_life_ends_when_the_message_is_gone() -> None:
    async def main(desk: Desk) -> None:
        await desk.send("a", "b", "c")
        await desk.receive(1, delete=True)
        (b,) = await desk.receive(1)
        await desk.do(Complete("q", [b.token]))
        store = desk.engine.store
        taken = await life(store, NS, Place("q", 1))
        assert [event.kind for event in taken] == ["Sent", "Taken"]
        done = await life(store, NS, Place("q", 2))
        assert [event.text for event in done][-1] == "completed"
        await desk.do(DeleteQueue("q"))
        with_queue = await life(store, NS, Place("q", 3))
        assert [event.kind for event in with_queue] == ["Sent", "QueueDeleted"]
        await desk.do(CreateQueue("q"))
        await desk.send("new")
        assert [event.kind for event in await life(store, NS, Place("q", 1))] == ["Sent"]
        await desk.engine.ask(BROKER, NS, DeleteNamespace(NS))
        gone = await life(store, NS, Place("q", 1))
        assert [event.kind for event in gone] == ["Sent", "NamespaceDeleted"]

    on_memory(main)


def test_messages_are_found_by_their_id() -> None:
    async def main(desk: Desk) -> None:
        await desk.do(Send("q", [a_message("x", "one"), a_message("y", "two")]))
        await desk.do(Send("q", [a_message("z", "one")]))
        assert await find(desk.engine.store, NS, "one") == [Place("q", 1), Place("q", 3)]
        assert await find(desk.engine.store, NS, "none") == []
        assert await find(desk.engine.store, "other", "one") == []

    on_memory(main)


def test_a_range_can_be_sent_again() -> None:
    async def main(desk: Desk) -> None:
        await desk.do(CreateQueue("replayed"))
        await desk.do(CreateQueue("other"))
        first = desk.engine.now().position
        await desk.send("a", "b", due_ms=900_000)
        await desk.send("not me", queue="other")
        await desk.send("c", "d")
        end = desk.engine.now().position
        await desk.send("too late")
        what = Range(first + 1, end, "q")
        assert await resend(desk.engine, BROKER, NS, what, "replayed") == 3
        assert bodies(await desk.receive(9, "replayed")) == ["b", "c", "d"]
        with pytest.raises(NotFound):
            await resend(desk.engine, BROKER, NS, what, "none")
        assert await resend(desk.engine, BROKER, NS, Range(0, END), "q") == 9

    on_memory(main)


def test_a_long_range_is_sent_in_parts() -> None:
    async def main(desk: Desk) -> None:
        await desk.do(CreateQueue("replayed"))
        for _ in range(5):
            await desk.send(*(f"{n}" for n in range(500)))
        assert await resend(desk.engine, BROKER, NS, Range(0, END, "q"), "replayed") == 2_500
        assert bodies(await desk.receive(5_000, "replayed")) == [f"{n}" for n in range(500)] * 5

    on_memory(main)
