"""The engine, on the store in memory and a clock that is moved by hand."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from posthouse.broker import payload
from posthouse.broker.access import BROKER, Accounts, Principal
from posthouse.broker.batch import LARGE_COMMANDS, ignore
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import LOCK_SYNC_MS, Engine
from posthouse.core.commands import (
    AcceptSession,
    Attach,
    Command,
    Complete,
    CreateQueue,
    Credit,
    DeleteQueue,
    Delivery,
    Enqueued,
    GetQueue,
    Granted,
    Notice,
    QueueInfo,
    Receive,
    Received,
    ReleaseSession,
    Send,
)
from posthouse.core.dump import dump
from posthouse.core.errors import LockLost, NotFound, QuotaExceeded, SessionLockLost, Unauthorized
from posthouse.core.message import NewMessage
from posthouse.core.model import Account, QueueProperties
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace, ListNamespaces, SpaceCommand
from posthouse.core.plan import Delivered
from posthouse.store.errors import Lost
from posthouse.store.frames import CLOSING
from posthouse.store.memory import MemoryJournal, MemoryStore
from tests.inside import state_of
from tests.waiting import idle, turn, until_async

NS = "test"


class GatedStore(MemoryStore):
    """Syncs when it is let; can be full, and can fail."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        super().__init__(journal=journal)
        self.gate = asyncio.Event()
        self.gate.set()
        self.syncs = 0
        self.failure: Lost | None = None

    def sync_at_once(self) -> bool:
        return False

    async def sync(self) -> None:
        await self.gate.wait()
        self.syncs += 1
        if self.failure is not None:
            raise self.failure
        await super().sync()


def a_message(body: str, **fields: object) -> NewMessage:
    return NewMessage(b"\x80", body.encode(), **fields)  # type: ignore[arg-type]


async def an_engine(
    store: MemoryStore | None = None, lock_sync_ms: int = LOCK_SYNC_MS, **properties: object
) -> Engine:
    """With a namespace and the queue `q`."""
    engine = await Engine.open(
        store or MemoryStore(), VirtualClock(1_000), salt=5, lock_sync_ms=lock_sync_ms
    )
    await engine.ask(BROKER, NS, CreateNamespace(NS, engine.epoch, 5))
    await engine.ask(BROKER, NS, CreateQueue("q", QueueProperties(**properties)))  # type: ignore[arg-type]
    return engine


async def send(engine: Engine, *bodies: str, queue: str = "q", **fields: object) -> None:
    answer = await engine.ask(
        BROKER, NS, Send(queue, [a_message(body, **fields) for body in bodies])
    )
    assert isinstance(answer, Enqueued)


async def receive(engine: Engine, limit: int = 1, wait_ms: int = 0) -> list[Delivery]:
    deadline_ms = engine.time_ms() + wait_ms if wait_ms else 0
    answer = await engine.ask(BROKER, NS, Receive("q", engine.new_receiver(), limit, deadline_ms))
    assert isinstance(answer, Received)
    return answer.deliveries


def bodies(deliveries: list[Delivered] | list[Delivery]) -> list[object]:
    return [each.message.body for each in deliveries if isinstance(each, Delivery)]


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(main(), 30)  # a test that hangs has failed

    asyncio.run(in_time())


def test_a_message_goes_in_and_out() -> None:
    async def main() -> None:
        engine = await an_engine()
        await send(engine, "a")
        [delivery] = await receive(engine)
        assert delivery.message.body == b"a"
        await engine.ask(BROKER, NS, Complete("q", [delivery.token]))
        assert await receive(engine) == []
        await engine.close()

    run(main)


def test_a_delivery_that_is_overtaken_by_the_next_one_cannot_be_settled() -> None:
    """As after a stall that outlasts a lock: the answer to the first receive comes last."""

    async def main() -> None:
        clock = VirtualClock(1_000)
        engine = await Engine.open(MemoryStore(), clock, salt=5)
        await engine.ask(BROKER, NS, CreateNamespace(NS, engine.epoch, 5))
        await engine.ask(BROKER, NS, CreateQueue("q", QueueProperties(lock_ms=200)))
        await send(engine, "a")
        arrived: list[Delivered] = []

        def received(answer: object) -> None:
            assert isinstance(answer, Received)
            arrived.extend(answer.deliveries)

        engine.submit(BROKER, NS, CreateQueue("other"), lambda _: None)
        engine.submit(BROKER, NS, Receive("q", engine.new_receiver()), received)
        number = engine.new_receiver(arrived.extend)
        engine.submit(BROKER, NS, Attach("q", number, credit=1), lambda _: None)
        clock.move_to(1_200)
        await until_async(lambda: len(arrived) == 2, "both deliveries have arrived")
        new, old = arrived
        assert isinstance(new, Delivery)
        assert isinstance(old, Delivery)
        assert old.until_ms < new.until_ms, "the older one came last"
        with pytest.raises(LockLost):
            await engine.ask(BROKER, NS, Complete("q", [old.token]))
        await engine.ask(BROKER, NS, Complete("q", [new.token]))
        await engine.close()

    run(main)


def test_no_answer_leaves_before_the_sync_and_commands_gather_meanwhile() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        store.gate.clear()
        syncs = store.syncs
        sends = [asyncio.create_task(send(engine, str(number))) for number in range(50)]
        await idle()
        late = [asyncio.create_task(send(engine, str(number))) for number in range(50)]
        await idle()
        assert not any(each.done() for each in sends + late)
        store.gate.set()
        await asyncio.gather(*sends, *late)
        assert store.syncs - syncs == 2
        await engine.close()

    run(main)


@pytest.mark.parametrize(
    "command", [GetQueue("q"), GetQueue("other"), Receive("q", 1), Complete("q", [7])]
)
def test_where_another_may_lead_what_is_only_read_waits_for_a_sync(command: Command) -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "a")
        await receive(engine)
        await engine.flush()
        told: list[object] = []
        syncs = store.syncs
        engine.submit(BROKER, NS, command, told.append)
        await idle()
        assert (len(told), store.syncs) == (1, syncs)
        store.is_fresh = False
        store.gate.clear()
        engine.submit(BROKER, NS, command, told.append)
        await idle()
        assert len(told) == 1
        store.gate.set()
        await idle()
        assert (len(told), store.syncs) == (2, syncs + 1)
        await engine.close()

    run(main)


class EagerStore(GatedStore):
    """Notes how many frames it holds when it is told to begin."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def begin_sync(self) -> None:
        self.begun.append(len(self._pending))


def test_a_large_batch_is_given_to_the_disk_before_all_of_a_turn_is_decided() -> None:
    async def main() -> None:
        store = EagerStore()
        engine = await an_engine(store)
        told: list[object] = []
        syncs = store.syncs
        for number in range(LARGE_COMMANDS + 10):
            engine.submit(BROKER, NS, Send("q", [a_message(str(number))]), told.append)
        assert store.begun == [1]
        assert told == []  # nothing is synced yet
        await until_async(lambda: len(told) == LARGE_COMMANDS + 10, "all are answered")
        assert store.syncs == syncs + 2
        assert engine.view.counts(NS, "q").active == LARGE_COMMANDS + 10
        await engine.close()

    run(main)


def test_a_failed_sync_that_was_begun_early_is_told_to_everybody() -> None:
    async def main() -> None:
        store = EagerStore()
        engine = await an_engine(store)
        store.failure = Lost("no disk")
        told: list[object] = []
        for number in range(LARGE_COMMANDS + 10):
            engine.submit(BROKER, NS, Send("q", [a_message(str(number))]), told.append)
        await engine.failed.wait()
        assert told == [store.failure] * (LARGE_COMMANDS + 10)
        await engine.close()

    run(main)


def test_a_restart_gives_the_same_state_and_a_higher_epoch() -> None:
    async def main() -> None:
        store = MemoryStore()
        engine = await an_engine(store)
        await send(engine, "a", "b", "c")
        [first, _] = await receive(engine, 2)
        await engine.ask(BROKER, NS, Complete("q", [first.token]))
        await engine.close()
        assert store.frames[-1].kind == CLOSING
        before = dump(state_of(engine, NS))
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(2_000), salt=6)
        after = dump(state_of(again, NS))
        assert again.epoch == engine.epoch + 1
        for started in ("era", "started_ms"):
            assert before.pop(started) != after.pop(started)
        assert before == after
        await again.close()

    run(main)


def test_what_was_not_synced_is_not_there_after_a_crash() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        store.gate.clear()
        lost = asyncio.create_task(send(engine, "a"))
        await idle()
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(1_000), salt=6)
        assert await receive(again) == []
        lost.cancel()

    run(main)


def test_who_waits_is_answered_when_a_message_comes() -> None:
    async def main() -> None:
        engine = await an_engine()
        waiting = asyncio.create_task(receive(engine, 5, wait_ms=500))
        await idle()
        await send(engine, "a", "b")
        assert bodies(await waiting) == [b"a", b"b"]
        await engine.close()

    run(main)


def test_who_waits_in_vain_is_told_at_the_deadline() -> None:
    async def main() -> None:
        engine = await an_engine()
        waiting = asyncio.create_task(receive(engine, wait_ms=500))
        await idle()
        await engine.advance(499)
        assert not waiting.done()
        await engine.advance(1)
        assert await waiting == []
        await engine.close()

    run(main)


def test_who_gives_up_waiting_takes_no_message() -> None:
    async def main() -> None:
        engine = await an_engine()
        waiting = asyncio.create_task(receive(engine, wait_ms=500))
        await idle()
        await engine.advance(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(engine, "a")
        assert len(await receive(engine)) == 1
        await engine.close()

    run(main)


def test_who_waits_at_a_queue_that_is_deleted_is_told() -> None:
    async def main() -> None:
        engine = await an_engine()
        waiting = asyncio.create_task(receive(engine, wait_ms=500))
        await idle()
        await engine.ask(BROKER, NS, DeleteQueue("q"))
        with pytest.raises(NotFound):
            await waiting
        await engine.close()

    run(main)


def test_sessions_are_waited_for_and_lost() -> None:
    async def main() -> None:
        engine = await an_engine(grouping="session")
        number = engine.new_receiver()
        accept = engine.ask(BROKER, NS, AcceptSession("q", number, None, engine.time_ms() + 500))
        waiting = asyncio.create_task(accept)
        await idle()
        await send(engine, "a", group="x")
        granted = await waiting
        assert isinstance(granted, Granted)
        receiving = [
            asyncio.create_task(
                engine.ask(
                    BROKER, NS, Receive("q", engine.new_receiver(), 1, 9_000, session=granted.token)
                )
            )
            for _ in range(2)
        ]
        await idle()
        await engine.ask(BROKER, NS, ReleaseSession("q", granted.token))
        assert isinstance(await receiving[0], Received)
        with pytest.raises(SessionLockLost):
            await receiving[1]
        nobody = await engine.ask(BROKER, NS, AcceptSession("q", engine.new_receiver(), "x"))
        assert isinstance(nobody, Granted)
        vain = asyncio.create_task(
            engine.ask(BROKER, NS, AcceptSession("q", engine.new_receiver(), None, 9_000))
        )
        await idle()
        await engine.advance(9_000)
        assert await vain is None
        await engine.close()

    run(main)


def test_messages_are_pushed_and_their_receiver_is_told_of_its_end() -> None:
    async def main() -> None:
        engine = await an_engine()
        got: list[Delivered] = []
        receiver = engine.new_receiver(got.extend)
        await engine.ask(BROKER, NS, Attach("q", receiver, 10))
        await send(engine, "a", "b")
        assert bodies(got) == [b"a", b"b"]
        await engine.ask(BROKER, NS, DeleteQueue("q"))
        assert got[-1] == Notice(receiver, "deleted")
        await engine.close()

    run(main)


def test_a_durable_message_is_pushed_before_its_lock_is_synced() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "durable")
        got: list[Delivered] = []
        receiver = engine.new_receiver(got.extend)
        store.gate.clear()
        attaching = asyncio.create_task(engine.ask(BROKER, NS, Attach("q", receiver, 10)))
        await idle()
        assert bodies(got) == [b"durable"]
        assert not attaching.done()
        sending = asyncio.create_task(send(engine, "not yet"))
        await idle()
        assert bodies(got) == [b"durable"]
        store.gate.set()
        await asyncio.gather(attaching, sending)
        assert bodies(got) == [b"durable", b"not yet"]
        await engine.close()

    run(main)


def test_who_asks_for_durable_messages_has_them_before_their_locks_are_synced() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "a", "b")
        store.gate.clear()
        assert bodies(await receive(engine)) == [b"a"]
        taking = Receive("q", engine.new_receiver(), 1, 0, True)
        deleted = asyncio.create_task(engine.ask(BROKER, NS, taking))
        sending = asyncio.create_task(send(engine, "not yet"))
        await idle()
        both = asyncio.create_task(receive(engine, 2))
        await idle()
        assert not deleted.done()  # it is not to come again
        assert not both.done()
        store.gate.set()
        answer = await deleted
        assert isinstance(answer, Received)
        assert bodies(answer.deliveries) == [b"b"]
        await sending
        assert bodies(await both) == [b"not yet"]
        await engine.close()

    run(main)


def test_a_lock_is_written_in_one_frame_with_the_completion_of_its_message() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "a")
        before = store.syncs, engine.last.number
        [delivery] = await receive(engine)
        await idle()
        assert (store.syncs, engine.last.number) == before
        await engine.ask(BROKER, NS, Complete("q", [delivery.token]))
        assert (store.syncs, engine.last.number) == (before[0] + 1, before[1] + 1)
        kinds = [type(record).__name__ for _, _, record in payload.entries(store.frames[-1])]
        assert kinds == ["Locked", "Completed"]
        await engine.close()

    run(main)


@pytest.mark.parametrize("lock_sync_ms", [0, 1])
def test_a_lock_behind_which_nothing_comes_is_written_by_itself(lock_sync_ms: int) -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store, lock_sync_ms=lock_sync_ms)
        await send(engine, "a")
        before = store.syncs
        await receive(engine)
        await until_async(lambda: store.syncs > before, "the lock is written")
        kinds = [type(record).__name__ for _, _, record in payload.entries(store.frames[-1])]
        assert kinds == ["Locked"]
        await engine.close()

    run(main)


def test_a_pushed_message_is_written_as_locked_in_one_frame_with_its_completion() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "a", "b")
        given: list[Delivered] = []
        number = engine.new_receiver(given.extend)
        await engine.ask(BROKER, NS, Attach("q", number))
        before = engine.last.number
        engine.submit(BROKER, NS, Credit(number, 2), ignore)
        await idle()
        assert engine.last.number == before
        tokens = [each.token for each in given if isinstance(each, Delivery)]
        await engine.ask(BROKER, NS, Complete("q", tokens))
        assert engine.last.number == before + 1
        await engine.close()

    run(main)


def test_a_clean_stop_writes_the_locks_that_are_not_written_yet() -> None:
    async def main() -> None:
        store = MemoryStore()
        engine = await an_engine(store)
        await send(engine, "a")
        [delivery] = await receive(engine)
        await engine.close()
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(1_000), salt=6)
        assert await receive(again) == []
        await again.ask(BROKER, NS, Complete("q", [delivery.token]))
        await again.close()

    run(main)


def test_a_crash_before_a_lock_is_written_forgets_it_and_its_token_settles_nothing() -> None:
    async def main() -> None:
        store = MemoryStore()
        engine = await an_engine(store, lock_sync_ms=1_000)
        await send(engine, "a")
        [delivery] = await receive(engine)
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(1_000), salt=6)
        [second] = await receive(again)
        assert second.message.body == b"a"
        with pytest.raises(LockLost):
            await again.ask(BROKER, NS, Complete("q", [delivery.token]))
        await again.close()
        await engine.close()

    run(main)


def test_locks_that_fill_a_batch_are_written_with_the_commands_behind_them() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store, lock_sync_ms=1_000)
        await send(engine, *["a"] * 20)
        before = store.syncs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("posthouse.broker.engine.BATCH_BYTES", 10_000)
            for _ in range(10):
                await receive(engine)
        assert store.syncs > before
        await engine.close()

    run(main)


def test_locks_expire_and_schedules_wake_when_the_clock_is_moved() -> None:
    async def main() -> None:
        engine = await an_engine(lock_ms=1_000)
        await send(engine, "a")
        await send(engine, "later", due_ms=6_000)
        await receive(engine)
        assert await receive(engine) == []
        await engine.advance(1_000)
        assert bodies(await receive(engine)) == [b"a"]
        await engine.advance(4_000)
        assert bodies(await receive(engine, 5)) == [b"a", b"later"]
        await engine.close()

    run(main)


def test_a_failed_sync_stops_the_engine_and_everybody_is_told() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        waiting = asyncio.create_task(receive(engine, wait_ms=500))
        await idle()
        store.failure = Lost("the disk is gone")
        store.gate.clear()
        first = asyncio.create_task(engine.ask(BROKER, NS, CreateQueue("other", QueueProperties())))
        await idle()
        second = asyncio.create_task(engine.ask(BROKER, NS, GetQueue("q")))
        await idle()
        store.gate.set()
        for each in (first, second, waiting):
            with pytest.raises(Lost):
                await each
        assert engine.failed.is_set()
        with pytest.raises(Lost):
            await engine.ask(BROKER, NS, GetQueue("q"))
        await engine.close()

    run(main)


def test_a_full_store_refuses_sends_and_lets_settles_through_until_there_is_room() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        await send(engine, "a")
        store.full = True
        with pytest.raises(QuotaExceeded):
            await send(engine, "b")
        [delivery] = await receive(engine)
        await engine.ask(BROKER, NS, Complete("q", [delivery.token]))
        syncs = store.syncs
        await until_async(lambda: store.syncs > syncs, "the engine tries again by itself")
        store.full = False
        await send(engine, "b")
        await engine.close()

    run(main)


def test_namespaces_are_made_listed_and_deleted() -> None:
    async def main() -> None:
        store = MemoryStore()
        engine = await an_engine(store)
        await engine.ask(BROKER, "", CreateNamespace("other", engine.epoch, 5))
        assert await engine.ask(BROKER, "", ListNamespaces()) == ["other", NS]
        with pytest.raises(NotFound):
            await engine.ask(BROKER, "other", GetQueue("q"))
        with pytest.raises(NotFound):
            await engine.ask(BROKER, "none", GetQueue("q"))
        await engine.ask(BROKER, "", DeleteNamespace(NS))
        await engine.close()
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(), salt=6)
        assert again.view.namespaces() == ("other",)
        await again.close()

    run(main)


def test_looking_at_a_queue_writes_nothing() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        syncs = store.syncs
        assert isinstance(await engine.ask(BROKER, NS, GetQueue("q")), QueueInfo)
        assert store.syncs == syncs
        await engine.close()

    run(main)


def test_a_large_batch_becomes_several_frames() -> None:
    async def main() -> None:
        store = GatedStore()
        engine = await an_engine(store)
        store.gate.clear()
        sends = [asyncio.create_task(send(engine, "x" * (1 << 20))) for _ in range(41)]
        await idle()
        syncs = store.syncs
        store.gate.set()
        await asyncio.gather(*sends)
        assert store.syncs - syncs > 4
        assert max(len(frame.payload) for frame in store.frames) < 10 << 20
        assert len(await receive(engine, 50)) + len(await receive(engine, 50)) == 41
        await engine.close()

    run(main)


def test_a_bug_leaves_nobody_waiting() -> None:
    class Broken(GatedStore):
        async def sync(self) -> None:
            await super().sync()
            if self.failure is None and self.syncs > 3:
                raise ZeroDivisionError

    async def main() -> None:
        engine = await an_engine(Broken())
        await send(engine, "a")
        first = asyncio.create_task(send(engine, "b"))
        await turn()
        second = asyncio.create_task(send(engine, "c"))
        await turn()
        work = engine._work
        assert isinstance(work, asyncio.Task)
        with pytest.raises(ZeroDivisionError):
            await work
        for each in (first, second):
            with pytest.raises(Lost):
                await each
        assert engine.failed.is_set()

    run(main)


def test_a_command_that_cannot_be_carried_out_stops_the_engine() -> None:
    async def main() -> None:
        engine = await an_engine()
        with pytest.raises(AttributeError):
            engine.submit(BROKER, NS, "not a command", lambda _: None)  # type: ignore[arg-type]
        assert engine.failed.is_set()
        with pytest.raises(Lost):
            await send(engine, "a")

    run(main)


def test_time_does_not_go_back_over_a_restart() -> None:
    async def main() -> None:
        store = MemoryStore()
        engine = await an_engine(store)
        await engine.advance(50_000)
        await send(engine, "a")
        await engine.close()
        again = await Engine.open(MemoryStore(store.frames), VirtualClock(5), salt=6)
        await send(again, "b")
        first, second = await receive(again, 2)
        assert first.message.enqueued_ms == second.message.enqueued_ms == 51_000
        await again.close()

    run(main)


def test_every_command_is_asked_for_once_and_a_refusal_of_access_changes_nothing() -> None:
    class Guard:
        def __init__(self) -> None:
            self.asked: list[tuple[str, str, str]] = []

        def check(
            self,
            accounts: Accounts,
            principal: Principal,
            namespace: str,
            command: Command | SpaceCommand,
        ) -> None:
            self.asked.append((principal.name, namespace, type(command).__name__))
            if principal.name == "ann" and command.right != "listen":
                raise Unauthorized(principal.name, command.right, namespace)

        def note(self, name: str, account: Account | None) -> None:
            pass

    async def main() -> None:
        guard, store = Guard(), MemoryStore()
        engine = await Engine.open(store, VirtualClock(1_000), 5, guard)
        ann, bob = Principal("ann"), Principal("bob")
        with pytest.raises(Unauthorized):
            await engine.ask(ann, "", CreateNamespace(NS, engine.epoch, 5))
        assert not store.frames
        await engine.ask(bob, "", CreateNamespace(NS, engine.epoch, 5))
        await engine.ask(bob, NS, CreateQueue("q"))
        with pytest.raises(Unauthorized):
            await engine.ask(ann, NS, Send("q", [a_message("x")]))
        await engine.ask(ann, NS, Receive("q", engine.new_receiver()))
        assert guard.asked == [
            ("ann", "", "CreateNamespace"),
            ("bob", "", "CreateNamespace"),
            ("bob", NS, "CreateQueue"),
            ("ann", NS, "Send"),
            ("ann", NS, "Receive"),
        ]

    asyncio.run(main())


def test_others_have_their_turn_while_much_falls_due() -> None:
    async def main() -> None:
        engine = await an_engine(ttl_ms=10)
        for _ in range(5):
            await send(engine, *["x"] * 1_000)
        engine._clocks.broker.move_to(2_000)  # type: ignore[attr-defined]  # a virtual one
        engine._wake()
        left = set()
        while engine._work is not None:
            await turn()
            left.add(engine.view.size(NS, "q").size_bytes)
        assert len(left) >= 3  # a tick ends a thousand of them
        await engine.close()

    run(main)
