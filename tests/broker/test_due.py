"""When something is due, in many namespaces: only those that have changed are looked at."""

import asyncio

import pytest

from posthouse.broker import due
from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.due import Agenda
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import NewMessage
from posthouse.core.model import State
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace
from posthouse.store.memory import MemoryStore


async def an_engine(clock: VirtualClock, *namespaces: str) -> Engine:
    engine = await Engine.open(MemoryStore(), clock, 5)
    for name in namespaces:
        await engine.ask(BROKER, "", CreateNamespace(name))
        await engine.ask(BROKER, name, CreateQueue("q"))
    return engine


async def schedule(engine: Engine, namespace: str, at_ms: int) -> None:
    message = NewMessage(b"\x80", b"", due_ms=at_ms)
    await engine.ask(BROKER, namespace, Send("q", [message]))


def test_what_is_due_in_other_namespaces_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock = VirtualClock(1_000)
        engine = await an_engine(clock, *(f"n{number}" for number in range(50)))
        for number in range(50):
            await schedule(engine, f"n{number}", 60_000 + number)
        looked: list[str] = []
        real = due.next_deadline_ms

        def noting(state: State) -> int | None:
            looked.append(state.name)
            return real(state)

        monkeypatch.setattr(due, "next_deadline_ms", noting)
        for _ in range(5):
            await engine.ask(BROKER, "n7", Send("q", [NewMessage(b"\x80", b"")]))
        assert set(looked) == {"n7"}

    asyncio.run(main())


def test_each_namespace_has_its_turn_when_something_is_due_there() -> None:
    async def main() -> None:
        clock = VirtualClock(1_000)
        engine = await an_engine(clock, "a", "b", "c")
        await schedule(engine, "c", 5_000)
        await schedule(engine, "a", 6_000)
        await schedule(engine, "b", 9_000)
        clock.move_to(6_000)
        await engine.flush()
        active = {name: engine.view.counts(name, "q").active for name in "abc"}
        assert active == {"a": 1, "b": 0, "c": 1}
        clock.move_to(9_000)
        await engine.flush()
        assert engine.view.counts("b", "q").active == 1

    asyncio.run(main())


def test_a_namespace_that_is_deleted_and_made_again_is_looked_at_anew() -> None:
    async def main() -> None:
        clock = VirtualClock(1_000)
        engine = await an_engine(clock, "a")
        await schedule(engine, "a", 5_000)
        await engine.ask(BROKER, "", DeleteNamespace("a"))
        assert engine._due.seconds_until_next() is None
        clock.move_to(6_000)
        await engine.flush()
        await engine.ask(BROKER, "", CreateNamespace("a"))
        await engine.ask(BROKER, "a", CreateQueue("q"))
        await schedule(engine, "a", 7_000)
        clock.move_to(7_000)
        await engine.flush()
        assert engine.view.counts("a", "q").active == 1

    asyncio.run(main())


def test_moments_that_hold_no_longer_do_not_pile_up() -> None:
    async def main() -> None:
        engine = await an_engine(VirtualClock(1_000), "a", "b")
        agenda = Agenda(engine.world)
        moments = iter(range(1, 10_000))
        for at_ms in moments:
            agenda._due_ms["a"] = -at_ms  # it is another one each time
            agenda.note("a")
            agenda.take_changed()
        assert len(agenda._heap) < 200

    asyncio.run(main())
