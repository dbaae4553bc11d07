"""Everything that a client can make is held against the memory limit, and refused at its mark."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, get_args

import pytest

from posthouse.broker import memory
from posthouse.broker.access import BROKER
from posthouse.broker.admission import ROOMY
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core import commands as c
from posthouse.core import namespaces as n
from posthouse.core.errors import Busy, QuotaExceeded, Refused
from posthouse.core.message import NewMessage, Properties
from posthouse.core.model import Grant, QueueProperties, subscription_queue
from posthouse.core.rules import CorrelationFilter, Rule, SqlFilter
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies

LIMIT = 4 << 20
SMALL = Limits(memory_bytes=LIMIT)
# Commands that make nothing which stays, or without which nothing could be received or deleted.
NOT_ROOMY = {
    c.Start, c.Tick, c.StepClock, c.TurnClockBack, c.SetClock, c.SetFanout, c.Move, c.DeleteQueue,
    c.GetQueue, c.Look,
    c.ListQueues, c.ListSubscriptions, c.RemoveRule, c.ListRules, c.Pause, c.Resume, c.Purge,
    c.Cancel, c.Credit, c.Detach, c.ReceiveDeferred, c.Peek, c.Complete, c.Release, c.Renew,
    c.RenewSession, c.ReleaseSession, c.GetSessionState, c.ListSessions, c.PauseSchedule,
    c.ResumeSchedule, c.CancelSchedule, c.ListSchedules, c.CancelJob, c.ListJobs,
    c.Work, c.Commit, c.RollBack,
    n.DeleteNamespace, n.ListNamespaces, n.RevokeAccount, n.ListAccounts, n.RemoveReader,
    n.ListReaders,
}  # fmt: skip


def test_every_command_is_known_to_need_room_or_not() -> None:
    every = set(get_args(c.Command)) | set(get_args(n.SpaceCommand))
    assert every == ROOMY | NOT_ROOMY
    assert not ROOMY & NOT_ROOMY


def message(size: int, **fields: Any) -> NewMessage:
    return NewMessage(b"\x80", b"x" * size, **fields)


def name(number: int, size: int) -> str:
    return f"{number}-".ljust(size, "x")


SUBSCRIPTION = subscription_queue("topic", "s{}")
MANY: Properties = {f"property-{number}": number for number in range(3_000)}
Made = c.Command | n.SpaceCommand
MAKE: dict[str, Callable[[int, Engine], Made]] = {
    "messages": lambda i, _: c.Send("q", [message(10)]),
    "envelopes": lambda i, _: c.Send("q", [NewMessage(b"\x80" + b"x" * 5_000, b"")]),
    "scheduled messages": lambda i, _: c.Send("q", [message(10, due_ms=1 << 40)]),
    "keys": lambda i, _: c.Send("unique", [message(1)], keys=[name(i, 250)]),
    "sessions": lambda i, e: c.AcceptSession("sessions", e.new_receiver(), name(i, 100)),
    "queues": lambda i, _: c.CreateQueue(f"new{i}"),
    "queues that say much": lambda i, _: c.CreateQueue(
        f"new{i}", QueueProperties(metadata="x" * 4_000, extras={"a": "x" * 4_000})),
    "updates": lambda i, _: c.UpdateQueue(
        f"one{i}", QueueProperties(metadata="x" * 4_000, extras={"a": "x" * 4_000})),
    "subscriptions": lambda i, _: c.CreateSubscription(subscription_queue("topic", f"s{i}")),
    "rules": lambda i, _: c.SetRule(
        SUBSCRIPTION.format(i % 50), Rule(f"r{i}", SqlFilter("a = @b", {"b": "x" * 60_000}))),
    "correlations": lambda i, _: c.SetRule(
        SUBSCRIPTION.format(i % 50), Rule(f"r{i}", CorrelationFilter({}, {**MANY}))),
    "schedules": lambda i, _: c.SetSchedule("q", f"s{i}", "every hour", message(200_000)),
    "small schedules": lambda i, _: c.SetSchedule("q", f"s{i}", "every hour", message(1)),
    "transactions": lambda i, _: c.Begin(),
    "namespaces": lambda i, _: n.CreateNamespace(f"space{i}"),
    "principals": lambda i, _: n.SetAccount(
        f"p{i}", [Grant("*", "*", ["send"])], [b"k"], new=True, extras={"a": "x" * 60_000}),
}  # fmt: skip


async def a_desk() -> Desk:
    desk = await Desk.open(MemoryStore(), limits=SMALL)
    await desk.do(c.CreateQueue("unique", QueueProperties(duplicate_detection=True)))
    await desk.do(c.CreateQueue("sessions", QueueProperties(grouping="session")))
    await desk.do(c.CreateQueue("topic", QueueProperties(delivery="topic")))
    await desk.send("mine", queue="sessions", group="there")
    return desk


async def prepare(desk: Desk, what: str) -> None:
    if what in ("rules", "correlations"):
        for number in range(50):
            await desk.do(c.CreateSubscription(SUBSCRIPTION.format(number), rules=[]))
    if what == "updates":
        for number in range(300):
            await desk.do(c.CreateQueue(f"one{number}"))


async def until_refused(desk: Desk, made: Iterable[Made]) -> Refused:
    for command in made:
        try:
            await desk.engine.ask(BROKER, NS, command)
        except Refused as refused:
            return refused
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize("what", MAKE)
def test_what_clients_make_is_refused_where_it_takes_too_much_memory(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SLOW_MS_MAX", 0)

    async def main() -> None:
        desk = await a_desk()
        await prepare(desk, what)
        before = desk.engine.now().held_bytes
        made = (MAKE[what](i, desk.engine) for i in range(40_000))
        refused = await until_refused(desk, made)
        assert isinstance(refused, Busy), refused
        assert "memory" in str(refused)
        held = desk.engine.now().held_bytes
        assert before < held < 1.3 * LIMIT
        # Others can still receive, and so make room.
        number = desk.engine.new_receiver()
        granted = await desk.do(c.AcceptSession("sessions", number, "there"))
        assert isinstance(granted, c.Granted)
        [delivery] = await desk.receive(queue="sessions", session=granted.token)
        assert bodies([delivery]) == ["mine"]
        await desk.do(c.Complete("sessions", [delivery.token], session=granted.token))
        desk.engine.dismiss()
        await desk.engine.close()

    asyncio.run(main())


def test_receivers_are_refused_where_they_take_much_of_what_is_short() -> None:
    async def main() -> None:
        desk = await a_desk()
        new = desk.engine.new_receiver
        made = (c.Attach("q", new(), 1) for _ in range(40_000))
        refused = await until_refused(desk, made)
        assert isinstance(refused, Busy)
        assert desk.engine.now().held_bytes < 1.3 * LIMIT
        await desk.engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["properties", "state"])
def test_what_is_noted_is_refused_and_what_makes_room_is_not(what: str) -> None:
    async def main() -> None:
        desk = await a_desk()
        for _ in range(3):
            await desk.send(*["x"] * 1_000)
        deliveries = await desk.receive(3_000)
        large: Properties = {"a": "x" * 60_000}
        tokens = iter(deliveries)
        granted = await desk.do(c.AcceptSession("sessions", desk.engine.new_receiver(), "there"))
        assert isinstance(granted, c.Granted)
        defers = (c.Defer("q", [each.token], properties=large) for each in tokens)
        assert isinstance(await until_refused(desk, defers), Busy)
        assert desk.engine.now().held_bytes < 1.3 * LIMIT
        if what == "state":
            state = c.SetSessionState("sessions", granted.token, b"x")
            with pytest.raises(Busy):
                await desk.do(state)
            await desk.do(c.SetSessionState("sessions", granted.token, None))
        for command in (c.Abandon, c.Defer, c.DeadLetter):
            delivery = next(tokens)
            with pytest.raises(Busy):
                await desk.do(command("q", [delivery.token], properties=large))
            await desk.do(command("q", [delivery.token]))
        await desk.engine.close()

    asyncio.run(main())


def test_what_is_deleted_is_not_held_any_more() -> None:
    async def main() -> None:
        desk = await a_desk()
        engine = desk.engine
        await desk.send("x")
        before = engine.now().held_bytes
        queue = subscription_queue("topic", "s")
        large = Rule("r", SqlFilter("a = @b", {"b": "x" * 60_000}))
        for _ in range(300):  # what was not given back would add up
            await desk.do(c.CreateSubscription(queue, rules=[]))
            await desk.do(c.SetRule(queue, large))
            await desk.do(c.SetRule(queue, large, new=False))
            await desk.do(c.RemoveRule(queue, "r"))
            await desk.do(c.SetRule(queue, large))
            await desk.do(c.DeleteQueue(queue))
            await desk.do(c.SetSchedule("q", "s", "every hour", message(200_000)))
            await desk.do(c.SetSchedule("q", "s", "every hour", message(200_000), new=False))
            await desk.do(c.CancelSchedule("s"))
            await engine.ask(BROKER, "", MAKE["principals"](1, engine))
            await engine.ask(BROKER, "", n.RevokeAccount("p1"))
            begun = await desk.do(c.Begin())
            assert isinstance(begun, c.Begun)
            await desk.do(c.Work(begun.transaction, c.Send("q", [message(100_000)])))
            await desk.do(c.RollBack(begun.transaction))
        engine._memory._count()  # exactly, not as guessed since the last time
        assert engine.now().held_bytes <= before + 10_000
        await engine.close()

    asyncio.run(main())


def test_there_are_so_many_namespaces_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(n, "NAMESPACES_MAX", 3)

    async def main() -> None:
        desk = await a_desk()
        refused = await until_refused(desk, map(n.CreateNamespace, map(str, count())))
        assert isinstance(refused, QuotaExceeded)
        assert "namespaces" in str(refused)
        await desk.engine.close()

    asyncio.run(main())
