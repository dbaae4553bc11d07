"""One namespace of a journal is copied into another: nothing of it differs but its positions."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from posthouse.broker import namespace_copy, payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.namespace_copy import CopiedNamespace, copy_namespace
from posthouse.broker.past import Place, find, life
from posthouse.broker.replay import bodies_of, make_so, recover
from posthouse.broker.rows import rows
from posthouse.core import commands as c
from posthouse.core.dump import dump
from posthouse.core.endings import let_go
from posthouse.core.errors import AlreadyExists, LockLost, NotFound
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import Grant, dead_letter_queue
from posthouse.core.namespaces import CreateNamespace, SetAccount
from posthouse.core.records import is_kept
from posthouse.store.errors import Lost
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.invariants import check
from tests.simulate.cluster import differences, simulate

pytestmark = pytest.mark.traced  # it covers what the store and the core do for this

SEEDS = 200 if os.environ.get("TORTURE") else 8
NOW_MS = 100_000


def plain(dumped: dict[str, Any]) -> dict[str, Any]:
    """A dump without what belongs to a journal: positions, numbers, and this start's tokens."""
    for name in ("number", "era", "started_ms", "next_lock"):
        del dumped[name]
    dumped["clock"] = dumped["clock"][:2]
    for queue in dumped["queues"].values():
        del queue["number"]
        for message in queue["messages"]:
            del message["position"]
            if message["state"] == 0:  # the number of a subscription, where it is anything
                message["lock"] = int(message["lock"], 16) > 0
    for schedule in dumped["schedules"]:
        del schedule[1]
    dumped["timers"] = {
        name: sorted(due for due, _ in timers) for name, timers in dumped["timers"].items()
    }
    return dumped


async def as_expected(store: MemoryStore, name: str, now_ms: int) -> dict[str, Any]:
    """The namespace as the journal tells it, after all deliveries have ended."""
    world = await recover(store, store.snapshots)
    state = world.states[name]
    for record in let_go(state, state.clock_ms or now_ms):
        if is_kept(record):
            make_so(world, name, record, 0)
    for queue in state.queues.values():
        messages = list(queue.messages.walk(0))
        for message, body in zip(messages, await bodies_of(store, messages), strict=True):
            message.body = body  # it was evicted, if a snapshot was taken
    return plain(dump(state))


async def as_copied(store: MemoryStore, name: str) -> dict[str, Any]:
    world = await recover(MemoryStore(store.journal.frames), None)  # from its frames alone
    state = world.states[name]
    check(state, NOW_MS)
    return plain(dump(state))


def no_progress(done: int, whole: int) -> None:
    assert done <= whole


async def copied(
    name: str, source: MemoryStore, target: MemoryStore, *, moves: bool = False
) -> CopiedNamespace:
    return await copy_namespace(name, source, target, NOW_MS, no_progress, moves=moves)


def again(store: MemoryStore) -> MemoryStore:
    return MemoryStore(journal=store.journal)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_has_happened_the_copy_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_copy, "PART", 1 + seed % 3)  # so that there are many parts
    monkeypatch.setattr(namespace_copy, "FRAME_BYTES", 100 * seed)
    journal = simulate(1_000 + seed, 150).journal

    async def run() -> None:
        target = await a_store_with("other")
        there = (await recover(MemoryStore(journal=journal), journal.snapshots)).names
        for name in there:
            expected = await as_expected(MemoryStore(journal=journal), name, NOW_MS)
            await copied(name, MemoryStore(journal=journal), again(target))
            found = await as_copied(target, name)
            assert found == expected, "\n".join(differences(found, expected))
        engine = await Engine.open(again(target), VirtualClock(NOW_MS), 7)
        assert set(engine.view.namespaces()) == {"other", *there}
        await engine.close()

    asyncio.run(run())


async def a_store_with(name: str) -> MemoryStore:
    store = MemoryStore()
    engine = await Engine.open(store, VirtualClock(50), 3)
    await engine.ask(BROKER, "", CreateNamespace(name))
    await engine.ask(BROKER, name, c.CreateQueue("q"))
    await engine.ask(BROKER, name, c.Send("q", [NewMessage(b"\x80", b"already here")]))
    await engine.close()
    return again(store)


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


# What a client sees.


async def opened(store: MemoryStore) -> Desk:
    return await Desk.open(again(store), VirtualClock(NOW_MS))


@in_a_loop
async def test_messages_keep_their_numbers_and_counts_and_new_ones_come_behind_them() -> None:
    source, target = MemoryStore(), await a_store_with("other")
    desk = await Desk.open(source)
    await desk.send("a", "b", "c")
    first, second = await desk.receive(2)
    await desk.do(c.Complete("q", [first.token]))
    await desk.do(c.Abandon("q", [second.token]))
    await desk.engine.close()
    assert (await copied(NS, again(source), target)).messages == 2
    desk = await opened(target)
    await desk.send("d")
    found = await desk.receive(9)
    assert bodies(found) == ["b", "c", "d"]
    assert [each.message.sequence for each in found] == [2, 3, 4]
    assert [each.message.count for each in found] == [2, 1, 1]
    await desk.engine.close()


@in_a_loop
async def test_a_lock_ends_as_if_it_had_expired_and_its_token_opens_nothing() -> None:
    source, target = MemoryStore(), MemoryStore()
    desk = await Desk.open(source, max_delivery=2)
    await desk.send("worn", "locked")
    (worn,) = await desk.receive()
    await desk.do(c.Abandon("q", [worn.token]))
    held = await desk.receive(2)
    await desk.engine.close()
    await copied(NS, again(source), target)
    desk = await opened(target)
    for lock in held:
        with pytest.raises(LockLost):
            await desk.do(c.Complete("q", [lock.token]))
    assert [each.message.count for each in await desk.receive(9)] == [2]  # once before
    assert bodies(await desk.receive(9, queue=dead_letter_queue("q"))) == ["worn"]
    await desk.engine.close()


@in_a_loop
async def test_a_session_is_free_and_keeps_its_state() -> None:
    source, target = MemoryStore(), MemoryStore()
    desk = await Desk.open(source, grouping="session", requires_session=True)
    await desk.send("one", "two", group="s")
    session = await desk.do(c.AcceptSession("q", desk.engine.new_receiver(), "s"))
    assert isinstance(session, c.Granted)
    await desk.do(c.SetSessionState("q", session.token, b"half way"))
    await desk.receive(1, session=session.token)
    await desk.engine.close()
    await copied(NS, again(source), target)
    desk = await opened(target)
    again_ = await desk.do(c.AcceptSession("q", desk.engine.new_receiver(), "s"))
    assert isinstance(again_, c.Granted)
    assert again_.token != session.token
    assert await desk.do(c.GetSessionState("q", again_.token)) == b"half way"
    assert bodies(await desk.receive(9, session=again_.token)) == ["one", "two"]
    await desk.engine.close()


@in_a_loop
async def test_a_duplicate_is_known_after_the_copy() -> None:
    source, target = MemoryStore(), MemoryStore()
    desk = await Desk.open(source, duplicate_detection=True, duplicate_window_ms=10_000_000)
    message = NewMessage(encode_envelope(Envelope(id="one")), b"x")
    await desk.do(c.Send("q", [message]))
    await desk.engine.close()
    await copied(NS, again(source), target)
    desk = await opened(target)
    answer = await desk.do(c.Send("q", [message]))
    assert isinstance(answer, c.Enqueued)
    assert answer.duplicates == 1
    await desk.engine.close()


@in_a_loop
async def test_scheduled_messages_and_schedules_go_on() -> None:
    source, target = MemoryStore(), MemoryStore()
    desk = await Desk.open(source)
    await desk.send("later", due_ms=NOW_MS + 500)
    every = c.SetSchedule("q", "beat", "every second", NewMessage(b"\x80", b"tick"))
    await desk.do(every)
    await desk.engine.close()
    assert (await copied(NS, again(source), target)).schedules == 1
    clock = VirtualClock(NOW_MS)
    desk = await Desk.open(again(target), clock)
    clock.move_to(NOW_MS + 5_000)
    await desk.engine.flush()
    found = bodies(await desk.receive(99))
    assert "later" in found
    assert "tick" in found
    await desk.engine.close()


# What can be read of it.


@in_a_loop
async def test_the_feed_and_the_past_tell_of_the_copy() -> None:
    source, target = MemoryStore(), await a_store_with("other")
    desk = await Desk.open(source)
    message = NewMessage(encode_envelope(Envelope(id="one")), b"x")
    await desk.do(c.Send("q", [message]))
    await desk.engine.close()
    done = await copied(NS, again(source), target)
    frames = [frame for frame in target.journal.frames if frame.first >= done.first]
    told = [row for frame in frames for row in rows(payload.entries(frame), 0)]
    assert [row.position for row in told] == list(range(done.first, done.end))
    assert [row.kind for row in told] == [
        "namespace-created", "queue-created", "queue-restored", "restored", "queue-restored",
    ]  # fmt: skip
    (restored,) = [row for row in told if row.kind == "restored"]
    assert (restored.message_id, restored.body, restored.sequence_number) == ("one", b"x", 1)
    assert await find(target, NS, "one") == [Place("q", 1)]
    (event,) = await life(target, NS, Place("q", 1))
    assert event.text == "copied from another journal, as 1 in 'q'"


# What is refused, and what goes wrong.


@in_a_loop
async def test_a_namespace_that_is_not_there_is_refused_and_nothing_is_written() -> None:
    target = await a_store_with("other")
    before = list(target.journal.frames)
    with pytest.raises(NotFound, match="none"):
        await copied("none", await a_store_with("x"), target)
    assert target.journal.frames == before


@in_a_loop
async def test_a_namespace_that_is_there_already_is_not_overwritten() -> None:
    target = await a_store_with("SHOP")
    before = list(target.journal.frames)
    with pytest.raises(AlreadyExists, match="SHOP"):
        await copied("shop", await a_store_with("shop"), target)
    assert target.journal.frames == before


@in_a_loop
async def test_a_copy_that_fails_leaves_no_part_of_the_namespace() -> None:
    source, target = await a_store_with("shop"), await a_store_with("other")

    def fail(_: int, __: int) -> None:
        raise Lost("the disk is gone")

    with pytest.raises(Lost):
        await copy_namespace("shop", source, target, NOW_MS, fail, moves=True)
    assert (await recover(again(target), None)).names == ["other"]
    assert (await recover(again(source), None)).names == ["shop"]


@in_a_loop
async def test_a_namespace_that_is_moved_is_gone_from_where_it_was() -> None:
    source, target = await a_store_with("shop"), await a_store_with("other")
    engine = await Engine.open(source, VirtualClock(60), 3)
    for name, namespace in (("ann", "shop"), ("bob", "*")):
        grants = [Grant(namespace, "*", ["send"])]
        await engine.ask(BROKER, "", SetAccount(name, grants, [b"sealed"], new=True))
    await engine.close()
    expected = await as_expected(again(source), "shop", NOW_MS)
    done = await copied("shop", again(source), target, moves=True)
    assert done.accounts == ["ann"]
    assert await as_copied(target, "shop") == expected
    assert (await recover(again(source), None)).names == []
    assert (await recover(again(target), None)).names == ["other", "shop"]
