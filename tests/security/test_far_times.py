"""Numbers that become times are bounded, and an answer that cannot be told ends its connection."""

import asyncio
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient

from posthouse.core.commands import DURATION_MS_MAX, LAST_MS, CreateQueue, Receive
from posthouse.core.errors import InvalidArgument
from posthouse.core.model import QueueProperties
from tests.core.world import World, a_message
from tests.dialects.pyqueue.rig import Rig
from tests.server.running import Running, development

DEV = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"


def connection_string(broker: Running) -> str:
    return f"Endpoint=sb://localhost:{broker.port};{DEV};UseDevelopmentEmulator=true;"


@pytest.mark.parametrize("name", ["lock_ms", "duplicate_window_ms", "idle_delete_ms"])
def test_a_queue_has_no_duration_longer_than_a_century(name: str) -> None:
    world = World()
    world.do(CreateQueue("fits", QueueProperties(**{name: DURATION_MS_MAX})))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        world.do(CreateQueue("q", QueueProperties(**{name: DURATION_MS_MAX + 1})))  # type: ignore[arg-type]


def test_no_lock_lasts_longer_than_a_century() -> None:
    world = World()
    world.queue("q")
    world.send("q", a_message())
    with pytest.raises(InvalidArgument):
        world.do(Receive("q", 1, lock_ms=DURATION_MS_MAX + 1))


def test_a_life_without_end_ends_with_the_year_9999() -> None:
    world = World()
    world.queue("q", ttl_ms=1 << 53)
    world.send("q", a_message(ttl_ms=1 << 52))
    assert world.state.queues["q"].messages[1].expires_ms == LAST_MS


def test_a_session_with_the_longest_lock_is_accepted_over_amqp(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        properties = {"lock_ms": DURATION_MS_MAX, "grouping": "session"}
        assert broker.queue("PUT", "held", properties).status == 201
        broker.send("held", "x", session_id="ann")
        with (
            ServiceBusClient.from_connection_string(connection_string(broker)) as client,
            client.get_queue_receiver("held", session_id="ann") as receiver,
        ):
            [message] = receiver.receive_messages(max_wait_time=10)
            assert receiver.session.locked_until_utc.year > 2100  # type: ignore[union-attr]
            receiver.complete_message(message)


def test_times_that_are_too_far_are_refused_over_http(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        assert broker.queue("PUT", "q", {"lock_ms": 1 << 53}).status == 400
        broker.queue("PUT", "q", {})
        far = {"messages": [{"body": "x", "due_ms": LAST_MS + 1}]}
        assert broker.queue("POST", "q/messages", far).status == 400
        broker.send("q", "x", ttl_ms=1 << 53)
        assert broker.queue("POST", "q/receive", {"lock_ms": 1 << 53}).status == 400
        assert [each["expires_ms"] for each in broker.receive("q")] == [LAST_MS]


def test_an_answer_that_cannot_be_told_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise OverflowError("it cannot be written")

    async def main() -> None:
        async with await Rig.open() as rig:
            client, other = rig.connect(), rig.connect()
            await client.push("x", queue="q")
            await client.ok("HEARTBEAT", {"worker_id": "w"})
            monkeypatch.setattr("posthouse.dialects.pyqueue.peer.job_of", broken)
            monkeypatch.setattr("posthouse.dialects.pyqueue.reply_batches.job_of", broken)
            assert await client.say(b'PULL 13 {"queue":"q"}') == []
            assert client.transport.closed
            client.leave()
            await rig.settle()
            monkeypatch.undo()
            assert (await other.pull("q"))["payload"] == "x"
            assert [each.event for each in rig.failures.found] == ["connection.failed"]  # type: ignore[attr-defined]
            rig.failures.found.clear()

    asyncio.run(main())
