"""Bodies that are evicted and read back, and what happens when memory runs short."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.fold import fold
from posthouse.broker.memory import FINE, OVERFLOW, REFUSE, SLOW, Limits, machine_bytes
from posthouse.core.commands import (
    FANOUT_LIMITED_MAX,
    HAND_ON_MAX,
    Abandon,
    AcceptSession,
    Attach,
    Command,
    Complete,
    Content,
    CreateQueue,
    CreateSubscription,
    Credit,
    DeadLetter,
    Delivery,
    Detach,
    Enqueued,
    GetQueue,
    Granted,
    Move,
    Peek,
    Peeked,
    Purge,
    QueueInfo,
    Receive,
    Received,
    ReleaseSession,
    Resubmit,
    Send,
    SetSessionState,
    UpdateQueue,
)
from posthouse.core.errors import Busy, Refused
from posthouse.core.message import ACTIVE, NewMessage
from posthouse.core.model import QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.plan import Delivered
from posthouse.core.rules import Rule
from posthouse.store.errors import NotThere, StoreError
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies, text
from tests.broker.test_engine import GatedStore
from tests.inside import state_of
from tests.invariants import check
from tests.waiting import idle, turn, until_async

SMALL = Limits(bodies_bytes=64 << 10)


def padded(number: int) -> str:
    return f"{number:04}" + "x" * 1_000


async def a_backlog(desk: Desk, count: int = 400) -> None:
    for at in range(0, count, 20):
        await desk.send(*(padded(n) for n in range(at, at + 20)))


def evicted_bytes(desk: Desk, queue: str = "q") -> int:
    return state_of(desk.engine, NS).queues[queue].evicted_bytes


def test_above_the_budget_bodies_are_evicted_and_come_back_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path, segment_bytes=128 << 10), limits=SMALL)
        await a_backlog(desk)
        figures = desk.engine.now()
        assert figures.bodies_bytes < 100 << 10
        assert evicted_bytes(desk) > 250 << 10
        check(state_of(desk.engine, NS), 1_000)
        for at in range(0, 400, 25):
            got = await desk.receive(25)
            assert bodies(got) == [padded(n) for n in range(at, at + 25)]
            await desk.do(Complete("q", [each.token for each in got]))
            assert desk.engine.now().bodies_bytes < 120 << 10
        check(state_of(desk.engine, NS), 1_000)
        assert evicted_bytes(desk) == 0
        await desk.engine.close()

    asyncio.run(main())


def test_reading_back_brings_what_comes_next_too() -> None:
    class Counting(MemoryStore):
        gets = 0

        async def get(self, positions: object) -> list[Frame]:
            self.gets += 1
            return await super().get(positions)  # type: ignore[arg-type]

    async def main() -> None:
        store = Counting()
        desk = await Desk.open(store, limits=SMALL)
        await a_backlog(desk)
        got = 0
        while deliveries := await desk.receive(1):
            got += 1
            await desk.do(Complete("q", [deliveries[0].token]))
        assert got == 400
        assert 0 < store.gets < 60

    asyncio.run(main())


def test_pushed_peeked_and_waiting_receivers_get_whole_messages() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=SMALL)
        await a_backlog(desk, 200)
        pushed: list[Delivered] = []
        receiver = desk.engine.new_receiver(pushed.extend)
        await desk.do(Attach("q", receiver, 120))
        assert bodies([d for d in pushed if isinstance(d, Delivery)]) == [
            padded(n) for n in range(120)
        ]
        peeked = await desk.do(Peek("q", 0, 200))
        assert isinstance(peeked, Peeked)
        assert [text(seen.message.body) for seen in peeked.messages] == [
            padded(n) for n in range(200)
        ]
        assert bodies(await desk.receive(100, delete=True)) == [padded(n) for n in range(120, 200)]
        check(state_of(desk.engine, NS), 1_000)

    asyncio.run(main())


def test_a_body_that_was_evicted_follows_its_message_to_other_queues() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=SMALL)
        await desk.do(CreateQueue("other"))
        await a_backlog(desk, 200)
        held = await desk.receive(200)
        await desk.do(DeadLetter("q", [each.token for each in held]))
        assert evicted_bytes(desk) == 0
        assert evicted_bytes(desk, dead_letter_queue("q")) > 0
        await desk.do(Resubmit(dead_letter_queue("q"), target="other"))
        assert bodies(await desk.receive(200, queue="other")) == [padded(n) for n in range(200)]
        await desk.do(Purge("other", frozenset({ACTIVE})))
        check(state_of(desk.engine, NS), 1_000)

    asyncio.run(main())


def test_after_a_restart_bodies_beyond_the_budget_stay_in_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path))
        await a_backlog(desk, 200)
        await desk.engine.close()
        desk = await Desk.open(FileStore(tmp_path), limits=SMALL)
        assert desk.engine.now().bodies_bytes <= 64 << 10
        assert evicted_bytes(desk) > 100 << 10
        assert bodies(await desk.receive(200)) == [padded(n) for n in range(200)]
        await desk.engine.close()

    asyncio.run(main())


def test_a_body_is_read_from_where_it_was_though_it_is_moved_meanwhile() -> None:
    """The new place is in a frame that is not written yet."""

    async def main() -> None:
        store = GatedStore()
        desk = await Desk.open(store, limits=SMALL)
        await a_backlog(desk, 200)
        message = next(state_of(desk.engine, NS).queues["q"].messages.walk(150))
        assert isinstance(message.body, int)
        store.gate.clear()
        receiving = asyncio.create_task(desk.receive(200))
        await idle()
        content = Content(message.sequence, message.position, NewMessage(b"\x80", b"moved"))
        moving = asyncio.create_task(desk.do(Move("q", [content])))
        await idle()
        store.gate.set()
        assert bodies(await receiving) == [padded(n) for n in range(200)]
        await moving

    asyncio.run(main())


def test_what_somebody_was_given_keeps_its_body() -> None:
    """Though the queue's own message is evicted at the same moment."""

    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(bodies_bytes=100))
        pushed: list[Delivered] = []
        await desk.do(Attach("q", desk.engine.new_receiver(pushed.extend), 5))
        await desk.send(*(padded(n) for n in range(100)))
        peeking = asyncio.create_task(desk.do(Peek("q", 0, 100)))
        got = await desk.receive(20)
        peeked = await peeking
        await desk.send(*(padded(n) for n in range(100, 130)))
        assert bodies(got) == [padded(n) for n in range(5, 25)]
        assert bodies([d for d in pushed if isinstance(d, Delivery)]) == [
            padded(n) for n in range(5)
        ]
        assert isinstance(peeked, Peeked)
        assert all(isinstance(seen.message.body, bytes) for seen in peeked.messages)
        check(state_of(desk.engine, NS), 1_000)

    asyncio.run(main())


def test_an_empty_body_is_never_evicted(tmp_path: Path) -> None:
    async def fill() -> None:
        desk = await Desk.open(FileStore(tmp_path, segment_bytes=8 << 10))
        await desk.send("", "")
        for number in range(40):
            await desk.send("x" * 500 if number % 2 else "")
        await desk.engine.close()

    async def look() -> None:
        store = FileStore(tmp_path, segment_bytes=8 << 10)
        desk = await Desk.open(store, snapshots=store.snapshots, limits=Limits(bodies_bytes=0))
        assert bodies(await desk.receive(3)) == ["", "", ""]
        await desk.engine.close()

    asyncio.run(fill())
    fold(tmp_path)
    asyncio.run(look())


def test_looking_through_a_backlog_does_not_bring_it_all_into_memory() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=SMALL)
        await a_backlog(desk, 1_000)
        first = 0
        while True:
            peeked = await desk.do(Peek("q", first, 50))
            assert isinstance(peeked, Peeked)
            assert all(isinstance(seen.message.body, bytes) for seen in peeked.messages)
            if peeked.next is None:
                break
            first = peeked.next
        queue = state_of(desk.engine, NS).queues["q"]
        assert queue.body_bytes - queue.evicted_bytes < 150 << 10

    asyncio.run(main())


def test_nothing_that_is_pushed_overtakes() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=SMALL)
        await a_backlog(desk, 300)
        order: list[str] = []

        def deliver(deliveries: Sequence[Delivered]) -> None:
            for each in deliveries:
                assert isinstance(each, Delivery)
                order.append(text(each.message.body))
                desk.engine.submit(BROKER, NS, Credit(receiver, 3), lambda _: None)

        receiver = desk.engine.new_receiver(deliver)
        await desk.do(Attach("q", receiver, 1))
        for _ in range(300):
            await desk.engine.flush()
        assert order == [padded(n) for n in range(300)]

    asyncio.run(main())


def test_session_states_and_queues_count_too() -> None:
    async def main() -> None:
        limits = Limits(memory_bytes=4 << 20)
        desk = await Desk.open(MemoryStore(), limits=limits, grouping="session")
        refused, held = 0, []
        for number in range(40):
            granted = await desk.do(AcceptSession("q", desk.engine.new_receiver(), f"{number}"))
            assert isinstance(granted, Granted)
            held.append(granted)
        for granted in held:
            try:
                await desk.do(SetSessionState("q", granted.token, bytes(200_000)))
            except Busy:
                refused += 1
        assert 10 < refused < 30
        assert desk.engine.now().level == OVERFLOW
        with pytest.raises(Busy):
            await desk.do(AcceptSession("q", desk.engine.new_receiver(), "more"))
        await desk.do(ReleaseSession("q", held[0].token))
        granted = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "0"))
        assert isinstance(granted, Granted)  # it is there already

    asyncio.run(main())


def test_what_actions_write_counts_too() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(memory_bytes=8 << 20))
        engine = desk.engine
        await desk.do(CreateQueue("t", QueueProperties(delivery="topic")))
        grows = Rule("r", action="SET a = 'xxxx'; " + "; ".join(["SET a = a + a"] * 13))
        queue = subscription_queue("t", "s")
        await desk.do(CreateSubscription(queue, rules=[grows]))
        refused = 0
        for _ in range(400):
            try:
                await desk.do(Send("t", [NewMessage(b"\x80", b"x")]))
            except Busy:
                refused += 1
        assert refused
        held = state_of(engine, NS).queues[queue]
        assert 200 < sum(held.counts) < 300
        await desk.do(Purge(queue, frozenset((ACTIVE,))))
        assert held.notes.size_bytes == 0

    asyncio.run(main())


def test_a_short_queue_keeps_its_bodies_in_memory_though_a_long_one_fills_it() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(bodies_bytes=256 << 10))
        await desk.do(CreateQueue("short"))
        await a_backlog(desk, 600)
        await desk.send(padded(1), padded(2), queue="short")
        assert evicted_bytes(desk, "short") == 0
        assert evicted_bytes(desk) > 0

    asyncio.run(main())


def test_a_body_that_cannot_be_read_back_stops_the_engine_with_the_reason() -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await Desk.open(store, limits=SMALL)
        await a_backlog(desk, 200)
        del store.frames[10:-1]
        with pytest.raises(NotThere):
            await desk.receive(200)
        assert desk.engine.failed.is_set()

    asyncio.run(main())


# Too much of it.


def a_limit(messages: int) -> Limits:
    """Room for about so many small messages."""
    return Limits(memory_bytes=messages * 351 + 18_000)


def test_publishers_are_slowed_down_then_refused_and_receivers_are_not() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=a_limit(1_000))
        engine = desk.engine
        levels, answers = [], []
        for at in range(110):
            try:
                answers.append(await desk.do(Send("q", [NewMessage(b"\x80", b"")] * 10)))
            except Busy as busy:
                answers.append(busy)
            levels.append(engine.now().level)
            if at == 84:
                assert levels[-1] == SLOW
        assert levels[70] == FINE
        assert levels == sorted(levels)
        assert levels[-1] == REFUSE
        assert engine.figures.crowded == sum(isinstance(each, Busy) for each in answers) > 0
        assert engine.figures.slowed > 0
        assert engine.now().held_bytes < 1_000 * 351
        got = await desk.receive(500)
        await desk.do(Complete("q", [each.token for each in got]))
        await desk.send("there is room again")
        assert engine.now().level == FINE

    asyncio.run(main())


def test_a_slowed_publisher_is_told_later_than_its_messages_are_there() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=a_limit(1_000))
        await desk.do(Send("q", [NewMessage(b"\x80", b"")] * 880))
        sending = asyncio.create_task(desk.do(Send("q", [NewMessage(b"\x80", b"last")])))
        await idle()
        info = await desk.do(GetQueue("q"))
        assert isinstance(info, QueueInfo)
        assert info.counts.active == 881
        assert not sending.done()
        assert isinstance(await sending, Enqueued)

    asyncio.run(main())


def test_in_dire_need_nothing_that_grows_is_accepted() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=a_limit(1_000))
        await desk.do(Send("q", [NewMessage(b"\x80", b"")] * 990))
        assert desk.engine.now().level == OVERFLOW
        for command in (CreateQueue("more"), Resubmit(dead_letter_queue("q"))):
            with pytest.raises(Busy):
                await desk.do(command)
        assert len(await desk.receive(5)) == 5

    asyncio.run(main())


async def messages_in(desk: Desk) -> int:
    return (await desk.engine.view.overview(NS)).messages


async def drained(desk: Desk, queues: Sequence[str]) -> dict[str, list[str]]:
    """Receives and settles until nothing is left."""
    got: dict[str, list[str]] = {queue: [] for queue in queues}
    more = True
    while more:
        more = False
        for queue in queues:
            taken = await desk.receive(500, queue)
            if taken:
                await desk.do(Complete(queue, [each.token for each in taken]))
                got[queue] += bodies(taken)
                more = True
            await desk.engine.flush()
    return got


def is_idle(desk: Desk) -> bool:
    return desk.engine._work is None and desk.engine._timer is None


async def until_idle(desk: Desk) -> None:
    await until_async(lambda: is_idle(desk), "the engine has nothing to do")


def test_what_one_send_becomes_waits_for_room_and_all_of_it_arrives() -> None:
    """Eight copies of each copy, five times over."""

    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(memory_bytes=1_500_000))
        for at in range(5):
            await desk.do(CreateQueue(f"t{at}", QueueProperties(delivery="topic")))
        ends = [subscription_queue("t4", f"{n}") for n in range(8)]
        for at in range(5):
            to = QueueProperties(forward_to=f"t{at + 1}" if at < 4 else None)
            for n in range(8):
                await desk.do(CreateSubscription(subscription_queue(f"t{at}", f"{n}"), to))
        await desk.send("x", queue="t0")
        await until_idle(desk)
        assert desk.engine.now().level == OVERFLOW
        assert (
            await messages_in(desk) <= 2 * HAND_ON_MAX
        )  # the send, and a tick before it was counted
        position = desk.engine.now().position
        await idle()
        assert is_idle(desk)
        assert desk.engine.now().position == position
        got = await drained(desk, ends)
        assert {queue: len(each) for queue, each in got.items()} == dict.fromkeys(ends, 8**4)
        assert await messages_in(desk) == 0
        assert desk.engine.now().level == FINE
        check(state_of(desk.engine, NS), 1_000)

    asyncio.run(main())


def test_where_all_memory_is_taken_by_what_waits_to_be_handed_on_it_still_goes_on() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=a_limit(1_100))
        await desk.do(CreateQueue("t", QueueProperties(delivery="topic")))
        ends = [subscription_queue("t", f"{n}") for n in range(3)]
        for end in ends:
            await desk.do(CreateSubscription(end))
        await desk.send(*(f"{n}" for n in range(1_100)))
        await desk.do(UpdateQueue("q", QueueProperties(forward_to="t")))
        await until_idle(desk)
        assert desk.engine.now().level == OVERFLOW
        assert await messages_in(desk) < 1_100 + 4 * FANOUT_LIMITED_MAX
        got = await drained(desk, ends)
        assert list(got.values()) == 3 * [[f"{n}" for n in range(1_100)]]

    asyncio.run(main())


def test_what_is_handed_on_waits_through_a_restart_too() -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await Desk.open(store)
        await desk.do(CreateQueue("t", QueueProperties(delivery="topic")))
        ends = [subscription_queue("t", f"{n}") for n in range(3)]
        for end in ends:
            await desk.do(CreateSubscription(end))
        await desk.send(*(f"{n}" for n in range(1_000)))
        store.full = True
        await desk.do(UpdateQueue("q", QueueProperties(forward_to="t")))
        await desk.engine.close()
        desk = await Desk.open(MemoryStore(store.frames), limits=a_limit(1_000))
        await until_idle(desk)
        assert await messages_in(desk) < 1_000 + 4 * FANOUT_LIMITED_MAX
        got = await drained(desk, ends)
        assert list(got.values()) == 3 * [[f"{n}" for n in range(1_000)]]

    asyncio.run(main())


def test_while_the_disk_is_full_nothing_is_handed_on_and_then_it_is_by_itself() -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await Desk.open(store)
        await desk.do(CreateQueue("target"))
        await desk.send("a", "b")
        store.full = True
        await desk.do(UpdateQueue("q", QueueProperties(forward_to="target")))
        await desk.engine.flush()
        frames = len(store.frames)
        assert await desk.receive(5, "target") == []
        assert len(store.frames) == frames
        store.full = False
        await until_async(lambda: len(store.frames) > frames, "the engine goes on by itself")
        assert bodies(await desk.receive(5, "target")) == ["a", "b"]

    asyncio.run(main())


def test_more_than_may_wait_is_refused_at_once() -> None:
    async def main() -> None:
        store = GatedStore()
        limits = Limits(pending_commands=50, pending_bytes=30 << 20)
        desk = await Desk.open(store, limits=limits)
        store.gate.clear()
        answers: list[object] = []
        large = Send("q", [NewMessage(b"\x80", bytes(5 << 20))])
        small = Receive("q", 99)
        commands: list[Command] = [*[large] * 12, *[small] * 60]
        for command in commands:
            desk.engine.submit(BROKER, NS, command, answers.append)
            await turn()
        busy = [each for each in answers if isinstance(each, Busy)]
        assert len(busy) > 10
        assert len(busy) == len(answers)
        figures = desk.engine.now()
        assert figures.pending_commands == 50
        assert figures.pending_bytes <= 30 << 20
        store.gate.set()
        await desk.engine.close()
        assert len(answers) == 72
        assert sum(isinstance(each, Enqueued) for each in answers) > 6
        assert any(isinstance(each, Received | Refused) for each in answers)
        assert not any(isinstance(each, StoreError) for each in answers)

    asyncio.run(main())


def test_who_is_gone_leaves_however_much_waits() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(pending_commands=0))
        number = desk.engine.new_receiver(lambda _: None)
        await desk.do(Attach("q", number, 1))
        sent = NewMessage(b"", bytes(9 << 20))
        full = asyncio.gather(*(desk.do(Send("q", [sent])) for _ in range(3)),
                              return_exceptions=True)  # fmt: skip
        await turn()
        left = await desk.do(Detach(number))
        assert left is None
        assert [type(each) for each in await full].count(Busy) > 0

    asyncio.run(main())


def test_session_states_and_properties_that_wait_are_counted_too() -> None:
    async def main() -> None:
        store = GatedStore()
        desk = await Desk.open(store, limits=Limits(pending_bytes=2 << 20), grouping="session")
        await desk.send("x", group="s")
        granted = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        assert isinstance(granted, Granted)
        store.gate.clear()
        answers: list[object] = []
        state = SetSessionState("q", granted.token, bytes(256 << 10))
        abandon = Abandon("q", [1], properties={"x": "y" * 60_000})
        commands: list[Command] = [*[state] * 60, *[abandon] * 60]
        for command in commands:
            desk.engine.submit(BROKER, NS, command, answers.append)
        assert desk.engine.now().pending_bytes <= 2 << 20
        assert any(isinstance(each, Busy) for each in answers)
        store.gate.set()
        await desk.engine.close()
        assert len(answers) == 120

    asyncio.run(main())


def test_the_limits_follow_the_machine() -> None:
    assert Limits().bodies_bytes == machine_bytes() // 4
    assert machine_bytes() > 64 << 20
