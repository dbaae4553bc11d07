"""Clocks: the machine's, which may jump, and those of namespaces, which can be moved."""

import asyncio
import time

import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock, VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.moving import Fired, Moved, Pace
from posthouse.broker.payload import entries
from posthouse.core.commands import (
    SETTLED,
    AcceptSession,
    Attach,
    Complete,
    CreateQueue,
    DeleteQueue,
    Detach,
    GetQueue,
    Granted,
    QueueInfo,
    Send,
)
from posthouse.core.errors import InvalidArgument, NotFound, SessionLockLost
from posthouse.core.message import ACTIVE, Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace
from posthouse.core.records import ClockStepped
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.inside import state_of
from tests.waiting import turn, until_async

SECOND_NS = 1_000_000_000
HOUR_MS = 3_600_000


class Hands:
    """What the machine's two clocks say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns, self.steady_ns = 1_700_000_000 * SECOND_NS, 5 * SECOND_NS
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.steady_ns)

    def pass_time(self, seconds: float) -> None:
        self.wall_ns += int(seconds * SECOND_NS)
        self.steady_ns += int(seconds * SECOND_NS)

    def set(self, seconds: float) -> None:
        """Somebody sets the wall clock, forward or back."""
        self.wall_ns += int(seconds * SECOND_NS)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


def test_the_system_clock_follows_the_machine(hands: Hands) -> None:
    clock = SystemClock()
    start_ms = clock.now_ms()
    for _ in range(100):
        hands.pass_time(7.5)
        clock.now_ms()
    assert clock.now_ms() == start_ms + 750_000
    assert clock.take_step_ms() == 0


def test_a_jump_forward_is_a_step_unless_it_is_small(hands: Hands) -> None:
    clock = SystemClock()
    hands.pass_time(100)
    hands.set(4)
    clock.now_ms()
    assert clock.take_step_ms() == 0
    hands.pass_time(0.1)
    hands.set(3_600)
    clock.now_ms()
    assert clock.take_step_ms() == HOUR_MS
    assert clock.take_step_ms() == 0


def test_when_the_machine_is_set_back_time_goes_on_slowly_until_they_agree(hands: Hands) -> None:
    clock = SystemClock()
    start_ms = clock.now_ms()
    hands.set(-60)
    last_ms, ahead = start_ms, []
    for _ in range(130):
        hands.pass_time(1)
        now_ms = clock.now_ms()
        assert now_ms >= last_ms, "time went back"
        last_ms = now_ms
        ahead.append(now_ms - hands.wall_ns // 1_000_000)
    assert last_ms > start_ms
    assert ahead[0] > 59_000
    assert ahead == sorted(ahead, reverse=True)
    assert ahead[-1] == 0
    assert clock.take_step_ms() == 0


def test_nobody_loses_a_lock_when_the_clock_jumps(hands: Hands) -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await Desk.open(store, SystemClock(), lock_ms=30_000)
        await desk.send("a", "b")
        first, second = await desk.receive(2)
        hands.set(3_600)
        await desk.do(Complete("q", [first.token]))
        lock = state_of(desk.engine, NS).locks[second.token]
        assert lock.until_ms == second.until_ms + HOUR_MS
        await desk.engine.close()
        again = await Desk.open(MemoryStore(store.frames), SystemClock())
        state = state_of(again.engine, NS)
        assert state.locks[second.token].until_ms == lock.until_ms
        records = [record for frame in store.frames for _, _, record in entries(frame)]
        assert sum(isinstance(record, ClockStepped) for record in records) == 1

    asyncio.run(main())


def test_a_virtual_clock_runs_stands_and_moves(hands: Hands) -> None:
    clock = VirtualClock(1_000, SystemClock())
    hands.pass_time(2)
    assert clock.now_ms() == 3_000
    assert clock.seconds_until(4_000) == 1
    clock.freeze()
    hands.pass_time(2)
    assert clock.now_ms() == 3_000
    assert clock.seconds_until(4_000) is None
    clock.move_to(10_000)
    clock.move_to(9_000)
    assert clock.now_ms() == 10_000
    clock.resume()
    hands.pass_time(1)
    assert clock.now_ms() == 11_000
    assert clock.seconds_until(5) == 0


def test_a_clock_without_a_base_does_not_run() -> None:
    clock = VirtualClock(5)
    clock.resume()
    assert clock.now_ms() == 5
    assert clock.seconds_until(6) is None


async def two_namespaces(store: MemoryStore) -> Desk:
    desk = await Desk.open(store, SystemClock(), lock_ms=60_000)
    await desk.engine.ask(BROKER, "other", CreateNamespace("other", desk.engine.epoch, 5))
    await desk.engine.ask(BROKER, "other", CreateQueue("q", QueueProperties()))
    return desk


def test_advancing_a_namespace_fires_what_is_due_in_it_and_says_what() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        engine = desk.engine
        now_ms = engine.time_ms()
        await desk.send("later", "later too", due_ms=now_ms + HOUR_MS)
        await desk.send("soon gone", ttl_ms=1_000)
        await desk.send("held")
        (_, held) = await desk.receive(2)
        assert bodies([held]) == ["held"]
        engine.clock(NS).freeze()
        fired = (await engine.advance(2 * HOUR_MS, NS)).fired
        assert fired == [
            Fired("abandoned", "q", 1),
            Fired("activated", "q", 2),
            Fired("expired", "q", 1),
        ]
        assert engine.clock(NS).now_ms() >= now_ms + 2 * HOUR_MS
        assert engine.time_ms() < now_ms + HOUR_MS, "the others' time did not move"
        assert bodies(await desk.receive(9)) == ["held", "later", "later too"]
        assert await engine.advance(0, NS) == Moved([])
        await engine.close()

    asyncio.run(main())


def test_time_is_set_forward_never_back() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        moment_ms = desk.engine.time_ms() + HOUR_MS
        await desk.engine.set_time(NS, moment_ms)
        assert desk.engine.clock(NS).now_ms() >= moment_ms
        with pytest.raises(InvalidArgument):
            await desk.engine.set_time(NS, moment_ms - 1)
        with pytest.raises(NotFound):
            await desk.engine.advance(5, "none")
        with pytest.raises(InvalidArgument):
            await desk.engine.advance(5)
        await desk.engine.close()

    asyncio.run(main())


def test_a_clock_that_was_moved_does_not_go_back_with_a_restart() -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await two_namespaces(store)
        moment_ms = desk.engine.time_ms() + 24 * HOUR_MS
        await desk.engine.set_time(NS, moment_ms)
        await desk.engine.close()
        again = await Desk.open(MemoryStore(store.frames), SystemClock())
        await again.do(CreateQueue("new"))
        info = await again.do(GetQueue("new"))
        assert isinstance(info, QueueInfo)
        assert info.created_ms >= moment_ms
        await again.engine.close()

    asyncio.run(main())


def test_when_everything_is_idle_time_moves_on_by_itself() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        now_ms = desk.engine.time_ms()
        await desk.send("tomorrow", due_ms=now_ms + 24 * HOUR_MS)
        desk.engine.clock(NS).auto = True
        assert bodies(await desk.receive(deadline_ms=now_ms + 48 * HOUR_MS)) == ["tomorrow"]
        assert desk.engine.clock(NS).now_ms() >= now_ms + 24 * HOUR_MS
        assert desk.engine.time_ms() < now_ms + HOUR_MS
        await desk.engine.close()

    asyncio.run(main())


async def auto_desk(*, locks: bool = False, **properties: object) -> Desk:
    desk = await Desk.open(MemoryStore(), SystemClock(), None, None, **properties)
    await desk.do(CreateQueue("later"))
    desk.engine.clock(NS).auto = "locks" if locks else True
    return desk


async def skipped(desk: Desk) -> None:
    """Until the message that is due in `later` is there: the clock has moved a day on."""
    messages = state_of(desk.engine, NS).queues["later"].counts
    await until_async(lambda: messages[ACTIVE] == 1, "the clock has moved by itself")


async def send_for_tomorrow(desk: Desk) -> None:
    due_ms = desk.engine.clock_ms(NS) + 24 * HOUR_MS
    await desk.send("tomorrow", queue="later", due_ms=due_ms)


def test_a_clock_does_not_move_by_itself_while_a_message_is_being_handled() -> None:
    async def main() -> None:
        desk = await auto_desk()
        await send_for_tomorrow(desk)
        await desk.send("a")
        [held] = await desk.receive()
        await asyncio.sleep(0.2)  # slept: nothing is to happen
        assert desk.engine.clock_ms(NS) < desk.engine.time_ms() + HOUR_MS
        assert await desk.do(Complete("q", [held.token])) == SETTLED
        await skipped(desk)
        await desk.engine.close()

    asyncio.run(main())


def test_a_wait_ends_in_real_time_though_the_clock_moves_by_itself() -> None:
    async def main() -> None:
        desk = await auto_desk()
        start_ms = desk.engine.clock_ms(NS)
        polling = asyncio.create_task(desk.receive(deadline_ms=start_ms + 20_000))
        await asyncio.sleep(0.1)  # slept: nothing is to happen
        assert not polling.done()
        assert desk.engine.clock_ms(NS) < start_ms + 20_000
        await send_for_tomorrow(desk)
        await skipped(desk)
        assert not polling.done()
        await desk.send("a")
        assert bodies(await polling) == ["a"]
        soon_ms = desk.engine.clock_ms(NS) + 50
        assert await desk.receive(deadline_ms=soon_ms) == []
        await desk.engine.close()

    asyncio.run(main())


def test_a_wait_goes_on_though_the_clock_is_advanced() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), SystemClock())
        polling = asyncio.create_task(desk.receive(deadline_ms=desk.engine.time_ms() + 20_000))
        await turn()
        await desk.engine.advance(24 * HOUR_MS, NS)
        assert not polling.done()
        await desk.send("a")
        assert bodies(await polling) == ["a"]
        await desk.engine.close()

    asyncio.run(main())


def test_a_lock_runs_out_by_itself_when_its_receiver_is_gone() -> None:
    async def main() -> None:
        desk = await auto_desk()
        given: list[object] = []
        number = desk.engine.new_receiver(given.extend)
        await desk.do(Attach("q", number, credit=1))
        await desk.send("a")
        await until_async(lambda: len(given) == 1, "the message was pushed")
        await asyncio.sleep(0.1)  # slept: nothing is to happen
        lock = next(iter(state_of(desk.engine, NS).locks.values()))
        assert lock.until_ms > desk.engine.clock_ms(NS)
        await desk.do(Detach(number))
        await until_async(lambda: not state_of(desk.engine, NS).locks, "the lock has run out")
        assert desk.engine.clock_ms(NS) >= lock.until_ms
        assert bodies(await desk.receive()) == ["a"]
        await desk.engine.close()

    asyncio.run(main())


def test_a_clock_that_is_told_so_lets_locks_of_live_receivers_run_out() -> None:
    async def main() -> None:
        desk = await auto_desk(locks=True)
        await desk.send("a")
        await desk.receive()
        await until_async(lambda: not state_of(desk.engine, NS).locks, "the lock has run out")
        assert desk.engine.clock_ms(NS) > desk.engine.time_ms() + 50_000
        await desk.engine.close()

    asyncio.run(main())


def test_who_holds_a_session_and_waits_does_not_lose_it_when_the_clock_moves_by_itself() -> None:
    async def main() -> None:
        desk = await auto_desk(grouping="session")
        held = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        assert isinstance(held, Granted)
        await send_for_tomorrow(desk)
        await skipped(desk)
        await desk.send("a", group="s")
        assert bodies(await desk.receive(session=held.token)) == ["a"]
        await desk.engine.close()

    asyncio.run(main())


def test_a_clock_does_not_move_by_itself_to_the_end_of_a_window_for_duplicates() -> None:
    async def main() -> None:
        desk = await auto_desk(duplicate_detection=True)
        start_ms = desk.engine.clock_ms(NS)
        await desk.do(Send("q", [NewMessage(encode_envelope(Envelope(id="1")), b"a")]))
        assert state_of(desk.engine, NS).forget_timers.first is not None
        await asyncio.sleep(0.1)  # slept: nothing is to happen
        assert desk.engine.clock_ms(NS) < start_ms + 60_000
        await desk.engine.close()

    asyncio.run(main())


def test_a_session_of_a_receiver_that_is_gone_runs_out_by_itself() -> None:
    async def main() -> None:
        desk = await auto_desk(grouping="session")
        held = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        assert isinstance(held, Granted)
        given: list[object] = []
        number = desk.engine.new_receiver(given.extend)
        await desk.do(Attach("q", number, credit=1, session=held.token))
        await desk.send("a", group="s")
        await until_async(lambda: len(given) == 1, "the message was pushed")
        await desk.do(Detach(number))
        await until_async(lambda: not state_of(desk.engine, NS).sessions, "the session is over")
        assert state_of(desk.engine, NS).queues["q"].counts[ACTIVE] == 1
        await desk.engine.close()

    asyncio.run(main())


def test_a_clock_does_not_run_away_from_a_queue_that_is_in_use_and_never_idle() -> None:
    async def main() -> None:
        desk = await auto_desk(idle_delete_ms=300_000)
        number = desk.engine.new_receiver(lambda _: None)
        await desk.do(Attach("q", number, credit=1))
        await asyncio.sleep(0.2)  # slept: nothing is to happen
        assert desk.engine.clock_ms(NS) < desk.engine.time_ms() + 300_000
        await desk.do(Detach(number))
        await until_async(lambda: "q" not in state_of(desk.engine, NS).queues, "it was deleted")
        await desk.engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("wait_ms", [0, 5])
def test_receives_that_find_nothing_do_not_hold_up_a_clock(wait_ms: int) -> None:
    async def main() -> None:
        desk = await auto_desk()

        async def poll() -> None:
            while True:
                deadline_ms = desk.engine.clock_ms(NS) + wait_ms if wait_ms else 0
                assert await desk.receive(deadline_ms=deadline_ms) == []
                await asyncio.sleep(0.001)  # slept: the pace of a client that polls

        polling = asyncio.create_task(poll())
        await send_for_tomorrow(desk)
        await skipped(desk)
        polling.cancel()
        await asyncio.wait([polling])
        await desk.engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("pace", [None, Pace(0.02, 60.0)])
def test_a_held_session_outlasts_a_clock_that_is_moved_with_clients_alone(
    pace: Pace | None,
) -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), SystemClock(), grouping="session")
        held = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        assert isinstance(held, Granted)
        await desk.send("later", group="s", due_ms=desk.engine.time_ms() + HOUR_MS)
        moved = await desk.engine.advance(3 * HOUR_MS, NS, pace)
        assert Fired("activated", "q", 1) in moved.fired
        if pace is None:
            with pytest.raises(SessionLockLost):
                await desk.receive(session=held.token)
        else:
            assert bodies(await desk.receive(session=held.token)) == ["later"]
        await desk.engine.close()

    asyncio.run(main())


def test_a_step_with_clients_passes_over_what_they_hold() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), SystemClock(), grouping="session")
        start_ms, pace = desk.engine.time_ms(), Pace(0.02, 60.0)
        await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        await desk.send("later", group="s", due_ms=start_ms + HOUR_MS)
        await desk.send("last", group="s", due_ms=start_ms + 2 * HOUR_MS)
        for hours in (1, 2, 2):
            await desk.engine.step(NS, pace)
            now_ms = desk.engine.clock_ms(NS)
            assert hours * HOUR_MS <= now_ms - start_ms < hours * HOUR_MS + HOUR_MS // 2
        await desk.engine.close()

    asyncio.run(main())


def test_who_waits_for_clients_does_not_keep_others_from_moving_their_clocks() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        await desk.send("a")
        [held] = await desk.receive()
        await desk.send("later", due_ms=desk.engine.time_ms() + 1_000)
        moving = asyncio.create_task(desk.engine.advance(5_000, NS, Pace(0.02, 60.0)))
        await until_async(lambda: NS in desk.engine._due.fired, "it is being moved")
        await desk.engine.advance(HOUR_MS, "other")
        assert not moving.done()
        await desk.do(Complete("q", [held.token]))
        assert not (await moving).busy
        await desk.engine.close()

    asyncio.run(main())


def test_a_clock_that_is_moved_with_clients_stops_when_its_namespace_is_deleted() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        await desk.send("a")
        await desk.receive()
        moving = asyncio.create_task(desk.engine.advance(5_000, NS, Pace(0.02, 60.0)))
        await until_async(lambda: NS in desk.engine._due.fired, "it is being moved")
        await desk.engine.ask(BROKER, "", DeleteNamespace(NS))
        with pytest.raises(NotFound):
            await moving
        await desk.engine.close()

    asyncio.run(main())


def test_a_busy_namespace_does_not_hold_up_the_clock_of_another() -> None:
    async def main() -> None:
        desk = await auto_desk()
        await desk.engine.ask(BROKER, "other", CreateNamespace("other", desk.engine.epoch, 5))

        async def ask_again_and_again() -> None:
            while True:
                await desk.engine.ask(BROKER, "other", CreateQueue("q", QueueProperties()))
                await desk.engine.ask(BROKER, "other", DeleteQueue("q"))
                await asyncio.sleep(0.001)  # slept: the pace of a client

        asking = asyncio.create_task(ask_again_and_again())
        await send_for_tomorrow(desk)
        await skipped(desk)
        asking.cancel()
        await asyncio.wait([asking])
        await desk.engine.close()

    asyncio.run(main())


def test_a_frozen_clock_holds_everything_where_it_is() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        desk.engine.clock(NS).freeze()
        now_ms = desk.engine.clock(NS).now_ms()
        await desk.send("soon", due_ms=now_ms + 1)
        await until_async(
            lambda: desk.engine.time_ms() > now_ms + 1, "the message is due by the machine's clock"
        )
        assert await desk.receive() == []
        desk.engine.clock(NS).resume()
        assert bodies(await desk.receive(deadline_ms=now_ms + HOUR_MS)) == ["soon"]
        await desk.engine.close()

    asyncio.run(main())


def test_the_broker_s_own_clock_can_be_virtual() -> None:
    async def main() -> None:
        engine = await Engine.open(MemoryStore(), VirtualClock(1_000), 5)
        assert await engine.advance(500) == Moved([])
        assert engine.time_ms() == 1_500
        with pytest.raises(InvalidArgument):
            await engine.advance(-1)

    asyncio.run(main())


def test_a_clock_that_ran_on_after_it_was_moved_does_not_go_back_either(hands: Hands) -> None:
    async def main() -> None:
        store = MemoryStore()
        desk = await two_namespaces(store)
        await desk.engine.advance(HOUR_MS, NS)
        hands.pass_time(1_800)
        await desk.send("half an hour later")
        now_ms = desk.engine.clock(NS).now_ms()
        await desk.engine.close()
        again = await Desk.open(MemoryStore(store.frames), SystemClock())
        assert again.engine.clock(NS).now_ms() >= now_ms
        await again.engine.close()

    asyncio.run(main())


def test_a_new_namespace_does_not_inherit_the_clock_of_an_old_one() -> None:
    async def main() -> None:
        desk = await two_namespaces(MemoryStore())
        desk.engine.clock(NS).freeze()
        await desk.engine.advance(HOUR_MS, NS)
        await desk.engine.ask(BROKER, "", DeleteNamespace(NS))
        await desk.engine.ask(BROKER, "", CreateNamespace(NS, desk.engine.epoch, 5))
        assert desk.engine.clock(NS).now_ms() - desk.engine.time_ms() < HOUR_MS // 2
        assert desk.engine.clock(NS).runs
        await desk.engine.close()

    asyncio.run(main())


def test_the_broker_s_clock_moves_though_a_namespace_stands_still_by_its_own() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        desk.engine.clock(NS).freeze()
        await desk.send("a")
        await desk.receive()
        assert await asyncio.wait_for(desk.engine.advance(100_000), 30) == Moved([])
        both = await asyncio.gather(desk.engine.advance(10, NS), desk.engine.advance(70_000, NS))
        assert [moved.fired for moved in both] == [[], [Fired("abandoned", "q", 1)]]
        with pytest.raises(InvalidArgument):
            await desk.engine.advance(1 << 60, NS)

    asyncio.run(main())


def test_advancing_a_namespace_that_is_deleted_meanwhile_ends_there() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        await desk.send("later", due_ms=100_000)
        advancing = asyncio.create_task(desk.engine.advance(HOUR_MS, NS))
        await desk.engine.ask(BROKER, "", DeleteNamespace(NS))
        await desk.engine.ask(BROKER, "", CreateNamespace(NS))
        with pytest.raises(NotFound):
            await advancing
        assert state_of(desk.engine, NS).clock_ms == 0

    asyncio.run(main())


class Hurried(SystemClock):
    """A millisecond passes with every look at it."""

    def __init__(self) -> None:
        super().__init__()
        self._ms = 1_000_000

    def now_ms(self) -> int:
        self._ms += 1
        return self._ms


def test_a_running_clock_can_be_advanced_though_time_passes_meanwhile() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), Hurried())
        for _ in range(5):
            await desk.engine.advance(0, NS)
        await desk.engine.close()

    asyncio.run(main())
