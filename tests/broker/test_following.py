"""Brokers that follow another one's journal, and take over from it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.commands import (
    Attach,
    Complete,
    CreateQueue,
    CreateSubscription,
    GetQueue,
    SetSchedule,
    Settled,
)
from posthouse.core.errors import Busy, LockLost, NotLeader, Unauthenticated
from posthouse.core.message import LOCKED, NewMessage
from posthouse.core.model import Grant, QueueProperties, subscription_queue
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    RevokeAccount,
    SetAccount,
    SetReader,
)
from posthouse.store.errors import Deposed, Lost, OutOfTurn, Unknown
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryJournal, MemoryStore
from tests.broker.cluster import a_follower, catch_up, whole
from tests.broker.desk import NS, Desk, bodies
from tests.broker.test_engine import GatedStore
from tests.store.twins import SlowStore
from tests.waiting import idle, turn

SMALL = Limits(bodies_bytes=64 << 10)


async def a_leader(journal: MemoryJournal, clock: VirtualClock | None = None) -> Desk:
    return await Desk.open(MemoryStore(journal=journal), clock or VirtualClock(1_000))


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


async def some_history(desk: Desk) -> None:
    """Something of most that an engine keeps beside the state."""
    engine = desk.engine
    topic = QueueProperties(delivery="topic")
    await desk.do(CreateQueue("news", topic))
    await desk.do(CreateSubscription(subscription_queue("news", "all")))
    await desk.send("one", "two", "three")
    await desk.send("to many", queue="news")
    await desk.receive(2)
    grants = [Grant("*", "*", ["listen"])]
    await engine.ask(BROKER, "", SetAccount("ann", grants, [b"sealed"], new=True))
    await engine.ask(BROKER, "", SetReader("spark", 3))
    await engine.ask(BROKER, "", CreateNamespace("brief"))
    await engine.advance(500, NS)
    await engine.advance(500, "brief")
    await engine.ask(BROKER, "", DeleteNamespace("brief"))
    await engine.prove()


def test_a_follower_is_as_the_leader_was_at_every_frame() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal)
        assert follower.follows
        assert not desk.engine.follows
        await some_history(desk)
        frames = journal.frames
        for at in range(follower.last.number, len(frames)):
            follower.apply(frames[at])
            recovered = await Engine.follow(MemoryStore(frames[: at + 1]), VirtualClock(), 9)
            assert whole(follower) == whole(recovered)
        assert whole(follower) == whole(desk.engine)
        assert follower.now().position == desk.engine.now().position
        assert follower.view.names(NS) == desk.engine.view.names(NS)
        own = desk.engine.own_clock(NS), follower.own_clock(NS)
        assert [clock.now_ms() for clock in own if clock is not None] == [1_500, 1_500]
        assert follower.own_clock("brief") is None

    run(main)


def test_a_follower_refuses_commands_and_says_who_leads() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        follower = await a_follower(journal)
        with pytest.raises(NotLeader) as refused:
            await follower.ask(BROKER, NS, GetQueue("q"))
        assert refused.value.leader == ""
        follower.note_leader("b.example:5672")
        for asking in (
            follower.ask(BROKER, "", CreateNamespace("more")),
            follower.flush(),
            follower.prove(),
            follower.advance(1_000),
            follower.set_time(NS, 50_000),
            follower.turn_back(),
        ):
            with pytest.raises(NotLeader, match=r"follows b\.example:5672"):
                await asking
        with pytest.raises(NotLeader):
            follower.clock(NS)
        number = follower.new_receiver(lambda _: None)
        answers: list[object] = []
        assert not follower.submit(BROKER, NS, Attach("q", number, 1), answers.append)
        assert isinstance(answers[0], NotLeader)
        assert follower.time_ms() == 1_000

    run(main)


def test_a_frame_that_is_not_the_next_is_refused_and_changes_nothing() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal)
        await desk.send("one")
        await desk.send("two")
        first, second = journal.frames[-2:]
        before = whole(follower)
        replace = msgspec.structs.replace
        for wrong in (
            second,
            journal.frames[-3],
            replace(first, epoch=0),
            replace(first, first=first.first + 1),
        ):
            with pytest.raises(OutOfTurn, match=f"frame {wrong.number} of epoch {wrong.epoch}"):
                follower.apply(wrong)
            assert whole(follower) == before
        follower.apply(first)
        with pytest.raises(OutOfTurn):
            follower.apply(first)
        follower.apply(second)
        assert whole(follower) == whole(desk.engine)
        assert not follower.failed.is_set()

    run(main)


def test_nothing_falls_due_while_it_follows() -> None:
    async def main() -> None:
        journal, clock = MemoryJournal(), VirtualClock(1_000)
        desk = await a_leader(journal)
        await desk.send("held")
        await desk.do(SetSchedule("q", "each", "every 1 second", NewMessage(b"\x80", b"tick")))
        await desk.receive()
        await desk.engine.flush()
        follower = await a_follower(journal, clock)
        before = whole(follower), len(journal.frames)
        clock.move_to(10_000_000)
        assert follower.time_ms() == 10_000_000
        await idle()
        assert (whole(follower), len(journal.frames)) == before
        assert follower._timer is None
        await follower.promote()
        await follower.flush()
        assert follower.world.states[NS].queues["q"].counts[LOCKED] == 0
        await follower.close()

    run(main)


def test_a_jump_of_a_followers_clock_concerns_nobody() -> None:
    class Jumping(VirtualClock):
        jumped = 0

        def take_step_ms(self) -> int:
            step_ms, self.jumped = self.jumped, 0
            return step_ms

    async def main() -> None:
        journal, clock = MemoryJournal(), Jumping(1_000)
        desk = await a_leader(journal)
        await desk.send("held")
        await desk.receive()
        await desk.engine.flush()
        follower = await a_follower(journal, clock)
        before = whole(follower)
        clock.move_to(9_000)
        clock.jumped = 8_000
        follower.time_ms()
        assert whole(follower) == before
        clock.jumped = 8_000
        clock.move_to(18_000)
        await follower.promote()
        [lock] = follower.world.states[NS].locks.values()
        [old] = desk.engine.world.states[NS].locks.values()
        assert lock.until_ms == old.until_ms  # as a start leaves it

    run(main)


def test_closing_a_follower_writes_nothing() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal)
        frames = len(journal.frames)
        await follower.close()
        with pytest.raises(Busy, match="being stopped"):
            await follower.ask(BROKER, NS, GetQueue("q"))
        assert len(journal.frames) == frames
        await desk.send("the leader goes on")
        await desk.engine.close()

    run(main)


def test_a_promoted_follower_deposes_the_leader_which_tells_everybody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        engine = desk.engine
        await desk.send("kept")
        await desk.do(CreateQueue("empty"))
        follower = await a_follower(journal)
        later = asyncio.create_task(desk.receive(1, "empty", deadline_ms=1 << 40))
        await turn()
        await engine.flush()
        await follower.promote()
        assert follower.epoch == 2
        assert not follower.follows
        ends = [asyncio.create_task(desk.send(each)) for each in ("void", "void too")]
        for waiting in (*ends, later):
            with pytest.raises(Deposed, match=r"another broker has taken over .* epoch 2"):
                await waiting
        assert engine.failed.is_set()
        assert isinstance(engine.failure, Deposed)
        with pytest.raises(Deposed):
            await desk.send("later")
        frames = len(journal.frames)
        await engine.close()
        assert len(journal.frames) == frames
        new = Desk(follower)
        assert bodies(await new.receive(5)) == ["kept"]
        await follower.close()

    run(main)
    [line] = [each.message for each in caplog.records if "writes no more" in each.message]
    assert line == (
        "This broker writes no more: another broker has taken over this journal, with epoch 2."
    )


def test_of_two_that_are_promoted_one_fails() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        one, other = await a_follower(journal), await a_follower(journal)
        await one.promote()
        with pytest.raises(Deposed):
            await other.promote()
        assert other.failed.is_set()
        with pytest.raises(Deposed):
            await other.ask(BROKER, NS, GetQueue("q"))
        await one.ask(BROKER, NS, GetQueue("q"))

    run(main)


def test_an_epoch_that_was_won_is_used_as_it_is() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        follower = await a_follower(journal)
        await follower.promote(epoch=41)
        assert follower.epoch == journal.frames[-1].epoch == 41
        await follower.ask(BROKER, "", CreateNamespace("new"))
        other = await a_follower(journal)
        assert whole(other) == whole(follower)

    run(main)


def test_who_asks_while_it_takes_over_is_told_to_try_again() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        follower = await Engine.follow(SlowStore(journal=journal), VirtualClock(1_000), 6)
        promoting = asyncio.create_task(follower.promote())
        await turn()
        with pytest.raises(Busy, match="taking over"):
            await follower.ask(BROKER, NS, GetQueue("q"))
        await promoting
        await follower.ask(BROKER, NS, GetQueue("q"))

    run(main)


def test_a_stop_while_it_takes_over_leaves_it_stopped() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        follower = await Engine.follow(SlowStore(journal=journal), VirtualClock(1_000), 6)
        promoting = asyncio.create_task(follower.promote())
        await turn()
        await follower.close()
        await asyncio.gather(promoting, return_exceptions=True)
        with pytest.raises((Busy, Deposed, Lost)):
            await follower.ask(BROKER, NS, GetQueue("q"))

    run(main)


def test_locks_live_on_and_tokens_that_were_not_written_are_lost() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        store = GatedStore(journal)
        desk = await Desk.open(store)
        await desk.send("one", "two", "three")
        written = (await desk.receive())[0].token
        await desk.engine.flush()
        follower = await a_follower(journal)
        store.gate.clear()
        token = (await desk.receive())[0].token  # it may leave before its lock is durable
        await follower.promote()
        new = Desk(follower)
        with pytest.raises(LockLost):
            await new.do(Complete("q", [token]))
        assert isinstance(await new.do(Complete("q", [written])), Settled)
        assert bodies(await new.receive(5)) == ["two", "three"]

    run(main)


def test_an_account_that_changes_is_looked_at_anew_by_followers() -> None:
    async def main() -> None:
        journal, guard = MemoryJournal(), Guard("root's own key", b"s" * 32)
        desk = await a_leader(journal)
        follower = await a_follower(journal, access=guard)
        told: list[object] = []
        follower.access_watchers.add(told.append)
        sealed = guard.seal("ann", "her key, which is long enough")
        grants = [Grant("*", "*", ["listen"])]
        await desk.engine.ask(BROKER, "", SetAccount("ann", grants, [sealed], new=True))
        catch_up(follower, journal)
        await turn()
        accounts = follower.view.accounts
        assert guard.identify(accounts, "ann", "her key, which is long enough").name == "ann"
        await desk.engine.ask(BROKER, "", RevokeAccount("ann"))
        catch_up(follower, journal)
        await turn()
        with pytest.raises(Unauthenticated):
            guard.identify(accounts, "ann", "her key, which is long enough")
        assert told == [{"ann"}, {"ann"}]

    run(main)


def test_bodies_are_evicted_by_a_follower_too_and_read_back_when_it_leads() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal, limits=SMALL)
        sent = [f"{number:04}" + "x" * 1_000 for number in range(400)]
        for at in range(0, 400, 10):
            await desk.send(*sent[at : at + 10])
            catch_up(follower, journal)
        assert follower.now().bodies_bytes < 2 * SMALL.bodies_bytes
        assert whole(follower, bodies=False) == whole(desk.engine, bodies=False)
        await follower.promote()
        new, got = Desk(follower), list[str]()
        while deliveries := await new.receive(50):
            got += bodies(deliveries)
        assert got == sent

    run(main)


def test_a_follower_may_keep_what_it_follows_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As on another machine: a frame is written there, then applied."""

    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        store = FileStore(tmp_path, segment_bytes=4_096)
        follower = await Engine.follow(store, VirtualClock(1_000), 6)
        await some_history(desk)
        sent = [f"{number} " + "x" * 300 for number in range(40)]
        for body in sent:
            await desk.send(body)
        for frame in journal.frames:
            store.append(frame)
            await store.sync()
            follower.apply(frame)
        assert whole(follower) == whole(desk.engine)
        await follower.promote()
        new = Desk(follower)
        await new.send("of the new epoch")
        assert bodies(await new.receive(50))[-1] == "of the new epoch"
        before = whole(follower)
        await follower.close()
        again = await Engine.follow(FileStore(tmp_path), VirtualClock(1_000), 7)
        assert whole(again) == before
        assert again.epoch == follower.epoch == 2
        await again.close()

    run(main)


def test_who_waits_for_a_position_is_told_when_a_follower_has_it() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal)
        waiting = asyncio.create_task(follower.beyond(follower.now().position - 1))
        await turn()
        assert not waiting.done()
        await desk.send("one")
        catch_up(follower, journal)
        await asyncio.wait_for(waiting, 5)

    run(main)


def test_a_follower_that_cannot_read_a_frame_is_as_it_was() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await a_leader(journal)
        follower = await a_follower(journal)
        last = journal.frames[-1]
        frame = Frame(last.epoch, last.number + 1, last.end, 1, last.end, 2_000, b"\x93nothing")
        before = whole(follower)
        with pytest.raises(Unknown):
            follower.apply(frame)
        assert follower.follows
        assert follower.last == last.without_payload()
        assert whole(follower) == before

    run(main)


def test_a_bug_while_a_frame_is_applied_stops_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        follower = await a_follower(journal)
        await desk.send("one")

        def broken(*_: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr("posthouse.broker.replay.evolve", broken)
        with pytest.raises(KeyError):
            catch_up(follower, journal)
        assert isinstance(follower.failure, Lost)

    run(main)


def test_a_follower_that_comes_late_begins_where_the_journal_was_when_it_was_opened() -> None:
    """The leader goes on while a follower recovers; it is handed the rest."""

    async def main() -> None:
        journal = MemoryJournal()
        desk = await a_leader(journal)
        await desk.send("one")
        store = MemoryStore(journal=journal)
        await desk.send("two")
        follower = await Engine.follow(store, VirtualClock(1_000), 6)
        assert catch_up(follower, journal) == 1
        assert whole(follower) == whole(desk.engine)

    run(main)
