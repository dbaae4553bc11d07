"""Stopping, and what must not stop an engine."""

import asyncio
from pathlib import Path

import pytest

from posthouse.broker.access import BROKER, Principal
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Attach,
    Content,
    CreateQueue,
    Delivery,
    Detach,
    Enqueued,
    Granted,
    Move,
    Send,
    SetClock,
    SetSessionState,
    Start,
    StepClock,
    Tick,
)
from posthouse.core.errors import Busy, InvalidArgument, NotFound, Unauthorized
from posthouse.core.message import NewMessage
from posthouse.store.errors import Deposed, StoreError
from posthouse.store.file import FileStore
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk, bodies
from tests.broker.test_engine import GatedStore
from tests.inside import state_of
from tests.waiting import idle, turn, until_async


def a_send(body: str) -> Send:
    return Send("q", [NewMessage(b"\x80", body.encode())])


def test_what_comes_while_it_is_closed_is_refused_and_not_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path))
        await desk.send("first")
        closing = asyncio.create_task(desk.engine.close())
        await turn()
        with pytest.raises(Busy, match="being stopped") as caught:
            await desk.send("second")
        assert caught.value.facts["state"] == "stopping"
        await closing
        await desk.engine.close()  # once more does no harm
        desk = await Desk.open(FileStore(tmp_path))
        assert bodies(await desk.receive(5)) == ["first"]
        await desk.engine.close()

    asyncio.run(main())


def test_closing_ends_though_clients_go_on_and_who_waits_is_told() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        engine = desk.engine

        async def client() -> None:
            while True:
                await desk.send("x")

        await desk.do(CreateQueue("other"))
        waiting = asyncio.create_task(desk.receive(1, "other", deadline_ms=1 << 40))
        clients = [asyncio.create_task(client()) for _ in range(3)]
        await until_async(lambda: engine.now().position > 100, "clients send")
        await asyncio.wait_for(engine.advance(5), 30)
        await asyncio.wait_for(engine.close(), 30)
        assert await waiting == []
        answers = await asyncio.gather(*clients, return_exceptions=True)
        assert all(isinstance(each, Busy) for each in answers)

    asyncio.run(main())


def test_a_callback_that_fails_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())

        def fail(_: object) -> None:
            raise RuntimeError("this connection is gone")

        answers: list[object] = []
        for number in range(4):
            reply = fail if number == 1 else answers.append
            desk.engine.submit(BROKER, NS, a_send(f"{number}"), reply)
        receiver = desk.engine.new_receiver(fail)
        await desk.do(Attach("q", receiver, 2))
        await desk.send("more")
        assert len(answers) == 3
        assert not desk.engine.failed.is_set()
        assert "this connection is gone" in caplog.text

    asyncio.run(main())


def test_a_bug_while_a_sync_runs_stops_the_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = GatedStore()
        desk = await Desk.open(store)
        store.gate.clear()
        answers: list[object] = []
        desk.engine.submit(BROKER, NS, a_send("first"), answers.append)
        await idle()
        desk.engine.submit(BROKER, NS, a_send("second"), answers.append)

        def broken(*_: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr("posthouse.broker.engine.evolve", broken)
        with pytest.raises(KeyError):
            desk.engine.submit(BROKER, NS, a_send("third"), answers.append)
        assert len(answers) == 3
        assert all(isinstance(each, StoreError) for each in answers)
        frames = len(store.frames)
        store.gate.set()
        await idle()
        assert len(answers) == 3, "told twice"
        assert len(store.frames) == frames + 1, "nothing more is written"
        with pytest.raises(StoreError):
            await desk.send("fourth")

    asyncio.run(main())


def test_a_writer_that_was_deposed_tells_everybody_and_stops() -> None:
    class Taken(GatedStore):
        async def sync(self) -> None:
            if self.syncs >= 2:
                raise Deposed(9)
            await super().sync()

    async def main() -> None:
        desk = await Desk.open(Taken())
        with pytest.raises(Deposed):
            await desk.send("void")
        assert desk.engine.failed.is_set()

    asyncio.run(main())


def test_a_receiver_that_was_refused_is_forgotten() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        for _ in range(3):
            number = desk.engine.new_receiver(lambda _: None)
            with pytest.raises(NotFound):
                await desk.do(Attach("nowhere", number, 1))
        number = desk.engine.new_receiver(lambda _: None)
        with pytest.raises(NotFound):
            await desk.do(Detach(number))
        assert not desk.engine._receivers._pushed

    asyncio.run(main())


def test_a_receiver_that_lives_is_not_forgotten_by_a_refusal() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        pushed: list[object] = []
        number = desk.engine.new_receiver(pushed.extend)
        await desk.do(Attach("q", number, 5))
        with pytest.raises(InvalidArgument):
            await desk.do(Attach("q", number, 5))
        await desk.send("x")
        assert len(pushed) == 1

    asyncio.run(main())


def test_a_receiver_that_leaves_is_told_what_was_under_way_to_it() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        pushed: list[object] = []
        number = desk.engine.new_receiver(pushed.extend)
        await desk.do(Attach("q", number, 5))
        desk.engine.submit(BROKER, NS, Send("q", [NewMessage(b"", b"x")]), lambda _: None)
        await desk.do(Detach(number))
        assert [type(each) for each in pushed] == [Delivery]
        assert not desk.engine._receivers._pushed
        assert not desk.engine._receivers._leaving

    asyncio.run(main())


def test_closing_lets_go_of_the_folder_also_after_a_bug(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path))
        await desk.send("a")
        position = state_of(desk.engine, NS).queues["q"].messages[1].position
        broken = Content(1, position, NewMessage(b"", b"", None, "\ud800"))  # cannot be written
        moving = asyncio.create_task(desk.do(Move("q", [broken])))
        await turn()
        await desk.engine.close()
        assert isinstance((await asyncio.gather(moving, return_exceptions=True))[0], Exception)
        await FileStore(tmp_path).close()

    asyncio.run(main())


def test_however_much_is_asked_at_once_a_frame_fits_a_segment(tmp_path: Path) -> None:
    async def main() -> None:
        desk = await Desk.open(FileStore(tmp_path), grouping="session")
        granted = await desk.do(AcceptSession("q", desk.engine.new_receiver(), "s"))
        assert isinstance(granted, Granted)
        state = SetSessionState("q", granted.token, bytes(256 << 10))
        await asyncio.gather(*(desk.do(state) for _ in range(250)))
        answer = await desk.do(Send("q", [NewMessage(b"", b"", None, "\U0001f600" * 128)] * 10_000))
        assert isinstance(answer, Enqueued)
        await desk.engine.close()

    asyncio.run(main())


def test_a_callback_may_detach_other_receivers() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        numbers: list[int] = []

        def break_down(_: object) -> None:
            for number in numbers:
                desk.engine.submit(BROKER, NS, Detach(number), lambda _: None)

        numbers += [desk.engine.new_receiver(break_down) for _ in range(3)]
        await desk.send("a", "b", "c")
        held = await desk.receive(3)
        for number in numbers:
            await desk.do(Attach("q", number, 1))
        await desk.do(Abandon("q", [each.token for each in held]))
        await desk.engine.flush()
        assert not desk.engine.failed.is_set()

    asyncio.run(main())


def test_what_only_the_broker_does_is_not_for_others() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        for command in (Tick(), SetClock(5), StepClock(5), Move("q", [])):
            with pytest.raises(Unauthorized):
                await desk.engine.ask(Principal("ann"), NS, command)
        with pytest.raises(Unauthorized):
            await desk.engine.ask(Principal("ann"), NS, Start((1 << 32) - 1, 1))

    asyncio.run(main())


def test_one_command_does_not_write_more_than_can_be_read() -> None:
    """Each queue it touches gets a record with all of its properties."""

    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        tokens = []
        for number in range(600):
            await desk.do(CreateQueue(f"q{number}"))
            await desk.send("x", queue=f"q{number}")
            tokens += [each.token for each in await desk.receive(1, f"q{number}")]
        with pytest.raises(InvalidArgument, match="do it in parts"):
            await desk.do(Abandon(None, tokens, properties={"x": "y" * 60_000}))
        await desk.do(Abandon(None, tokens[:50], properties={"x": "y" * 60_000}))

    asyncio.run(main())
