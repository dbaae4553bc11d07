"""An answer that cannot be told ends the connection that it was for, and nothing else.

The fault is put where an answer is made into bytes, in each protocol. There is a line in the log,
other clients go on, and the message that was not told is delivered again: when its lock ends, which
is with the connection in VibeMQ and PyQueue (for that see test_far_times.py).
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from posthouse.amqp.encode import described, encode
from posthouse.amqp.events import Arrived, Disposed
from posthouse.amqp.types import Int
from posthouse.broker.access import BROKER, ROOT
from posthouse.core.commands import CreateQueue
from posthouse.core.model import QueueProperties
from tests.dialects.servicebus.rig import KEY, Client, Rig
from tests.dialects.vibemq.client import DELIVER, PUBLISH_ACK, Said
from tests.dialects.vibemq.rig import Rig as VibeMqRig
from tests.dialects.vibemq.rig import kinds
from tests.inside import state_of
from tests.server.inside import Inside, inside

LOCK_MS = 300
PLAIN = ("PLAIN", f"\0{ROOT}\0{KEY}".encode())
MESSAGE = described(0x73, encode(["id"])) + described(0x75, encode(b"body"))


def broken(*_: object, **__: object) -> Any:
    raise OverflowError("it cannot be written")


async def opened() -> Rig:
    rig = await Rig.open()
    assert rig.engine is not None
    await rig.engine.ask(BROKER, "default", CreateQueue("short", QueueProperties(lock_ms=LOCK_MS)))
    return rig


def events(rig: Rig | VibeMqRig) -> list[str]:
    """Of what was logged as an error, which is forgotten then."""
    found = [str(each.__dict__["event"]) for each in rig.failures.found]
    rig.failures.found.clear()
    return found


def check_nothing_is_left(rig: Rig | VibeMqRig) -> None:
    assert rig.engine is not None
    state = state_of(rig.engine, "default")
    assert not state.receivers
    assert not state.transactions
    assert not rig.engine._receivers._pushed
    assert not rig.engine._receivers.waits


def test_a_delivery_over_amqp_that_cannot_be_told_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig = await opened()
        client, other = Client(rig, PLAIN), Client(rig, PLAIN)
        await client.pump()
        await other.pump()
        sender = other.link("short", sends=True)
        await other.pump()
        receiver = client.link("short", sends=False)
        receiver.grant(5)
        await client.pump()
        monkeypatch.setattr("posthouse.dialects.servicebus.links.write_deliveries", broken)
        sender.send(MESSAGE, b"1")
        told = await other.pump()
        assert [type(each) for each in told].count(Disposed) == 1  # who sent is told
        assert client.transport.closed
        assert not other.transport.closed
        assert events(rig) == ["connection.failed"]
        client.peer.connection_lost(None)
        await rig.settle()
        monkeypatch.undo()
        check_nothing_is_left(rig)
        second = other.link("short", sends=False)
        second.grant(5)
        arrived: list[Arrived] = []
        for _ in range(100):
            arrived = [each for each in await other.pump() if isinstance(each, Arrived)]
            if arrived:
                break
            await asyncio.sleep(LOCK_MS / 3_000)  # slept: until the lock ends
        [delivery] = arrived
        assert delivery.payload is not None
        assert b"body" in delivery.payload
        other.peer.connection_lost(None)
        await rig.settle()
        check_nothing_is_left(rig)
        await rig.close()

    asyncio.run(main())


def test_a_message_over_amqp_whose_sender_cannot_be_told_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig = await opened()
        client, other = Client(rig, PLAIN), Client(rig, PLAIN)
        await client.pump()
        await other.pump()
        sender = client.link("short", sends=True)
        await client.pump()
        monkeypatch.setattr("posthouse.amqp.session.Link.settle", broken)
        sender.send(MESSAGE, b"1")
        await client.pump()
        monkeypatch.undo()
        assert client.transport.closed
        assert events(rig) == ["connection.failed"]
        client.peer.connection_lost(None)
        await rig.settle()
        assert rig.engine is not None
        assert sum(state_of(rig.engine, "default").queues["short"].counts) == 1
        check_nothing_is_left(rig)
        assert not other.transport.closed
        other.peer.connection_lost(None)
        await rig.close()

    asyncio.run(main())


@pytest.mark.parametrize("which", [0, 1])
def test_a_reply_of_management_that_cannot_be_told_ends_its_connection(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that to a request which has waited for the one before it, and is answered at once."""
    calls = 0

    async def main() -> None:
        rig = await opened()
        client, other = Client(rig, PLAIN), Client(rig, PLAIN)
        await client.pump()
        await other.pump()
        node = "short/$management"
        asks, hears = client.link(node, sends=True), client.link(node, sends=False)
        hears.grant(10)
        await client.pump()
        as_it_is = encode

        def sometimes(value: Any) -> bytes:
            nonlocal calls
            if isinstance(value, dict) and "statusCode" in value:
                calls += 1
                if calls > which:
                    raise OverflowError("it cannot be written")
            return as_it_is(value)

        monkeypatch.setattr("posthouse.dialects.servicebus.requests.encode", sometimes)
        form = {"from-sequence-number": 0, "message-count": Int(5)}
        for number, operation in enumerate(("peek-message", "there-is-none")):
            asks.send(
                described(0x73, as_it_is([f"r{number}", None, None, None, node]))
                + described(0x74, as_it_is({"operation": f"com.microsoft:{operation}"}))
                + described(0x77, as_it_is(form)), b"%d" % number
            )  # fmt: skip
        await client.pump()
        monkeypatch.undo()
        assert calls == which + 1
        assert client.transport.closed
        assert len(events(rig)) == 1
        client.peer.connection_lost(None)
        await rig.settle()
        check_nothing_is_left(rig)
        status, _ = await other.manage("peek-message", form, "short")
        assert status in (200, 204)
        other.peer.connection_lost(None)
        await rig.close()

    asyncio.run(main())


def test_a_delivery_over_vibemq_that_cannot_be_told_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig = await VibeMqRig.open()
        client, other = await rig.connect(), await rig.connect()
        await client.say(Said(22, "s", "q"))
        monkeypatch.setattr("posthouse.dialects.vibemq.subscription.delivery", broken)
        said = await other.say(Said(20, "m", "q", b'"x"'))
        assert kinds(said) == [PUBLISH_ACK]
        assert client.transport.closed
        assert events(rig) == ["connection.failed"]
        client.lose()
        await rig.settle()
        monkeypatch.undo()
        check_nothing_is_left(rig)
        said = await other.say(Said(22, "s", "q"))
        assert DELIVER in kinds(said)
        other.lose()
        await rig.settle()
        check_nothing_is_left(rig)
        await rig.close()

    asyncio.run(main())


def test_an_answer_over_vibemq_that_cannot_be_told_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig = await VibeMqRig.open()
        client, other = await rig.connect(), await rig.connect()
        monkeypatch.setattr("posthouse.dialects.vibemq.peer.Peer.answer", broken)
        assert await client.say(Said(40, "k", "made")) == []
        monkeypatch.undo()
        assert client.transport.closed
        assert len(events(rig)) == 1
        client.lose()
        await rig.settle()
        check_nothing_is_left(rig)
        assert kinds(await other.say(Said(42, "i", "made"))) == [42]  # it was done
        other.lose()
        await rig.close()

    asyncio.run(main())


QUEUE = "/api/v1/namespaces/default/queues/q"


async def receive(broker: Inside) -> tuple[int, Any]:
    answer = await broker.call("POST", f"{QUEUE}/receive", b'{"limit": 1}')
    return int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


def test_an_answer_over_http_that_cannot_be_told_is_an_error_and_the_message_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with inside(tmp_path, memory=True, dev=True) as broker:
            form = json.dumps({"lock_ms": LOCK_MS}).encode()
            assert b" 201 " in (await broker.call("PUT", QUEUE, form))[:20]
            sent = b'{"messages": [{"body": "x"}]}'
            assert b" 201 " in (await broker.call("POST", f"{QUEUE}/messages", sent))[:20]
            monkeypatch.setattr("posthouse.server.hot.delivered", broken)
            status, problem = await receive(broker)
            assert status == 500
            assert "log" in problem["detail"]
            assert "cannot be written" not in str(problem)
            monkeypatch.undo()
            failed = [each for each in caplog.records if each.levelno >= logging.ERROR]
            assert [each.__dict__["event"] for each in failed] == ["http.failed"]
            caplog.clear()
            found: dict[str, Any] = {}
            for _ in range(100):
                status, found = await receive(broker)
                assert status == 200
                if found["messages"]:
                    break
                await asyncio.sleep(LOCK_MS / 3_000)  # slept: until the lock ends
            assert [each["body"] for each in found["messages"]] == ["x"]

    asyncio.run(main())


def test_a_stream_of_deliveries_that_cannot_be_told_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sees that it is not whole, and what was on its way is given back."""

    async def main() -> None:
        async with inside(tmp_path, memory=True, dev=True) as broker:
            assert b" 201 " in (await broker.call("PUT", QUEUE, b"{}"))[:20]
            monkeypatch.setattr("posthouse.server.deliveries.delivered", broken)
            stream = asyncio.create_task(broker.call("GET", f"{QUEUE}/deliveries?credit=5"))
            await asyncio.sleep(0.1)  # slept: the stream is open by then
            sent = b'{"messages": [{"body": "x"}]}'
            assert b" 201 " in (await broker.call("POST", f"{QUEUE}/messages", sent))[:20]
            answer = await asyncio.wait_for(stream, 10)
            assert not answer.endswith(b"0\r\n\r\n")
            monkeypatch.undo()
            status, found = await receive(broker)
            assert status == 200
            assert [each["body"] for each in found["messages"]] == ["x"]
            engine = broker.server._broker.engine
            assert engine is not None
            assert not state_of(engine, "default").receivers

    asyncio.run(main())
