"""Names that a broker takes are good for everything that the client and the worker do."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

import posthouse
from posthouse import Message, SessionId, Worker
from tests.server.running import Running, development

KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"
NAMES = ["orders.created", "team/orders", "Käse & Brot", "100%25", "-a--b-"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("names") / "data") as running:
        yield running


@pytest.fixture(params=["memory", "posthouse"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://?auto_create=true"
    running: Running = request.getfixturevalue("broker")
    return f"posthouse://{KEY}@127.0.0.1:{running.port}"


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_of_any_name_is_sent_to_received_from_and_settled(url: str, name: str) -> None:
    async def run() -> None:
        async with posthouse.create_client(url) as client:
            await client.send_message(name, Message(b"1"))
            [seen] = await client.peek_messages(name, 1)
            got = await client.receive_message(name, 5)
            assert got is not None
            assert (seen.body, got.body) == (b"1", b"1")
            await client.renew_message_lock(got)
            await client.dead_letter_message(got, "wrong")
            dead = await client.receive_message(name, 5, dead_letter=True)
            assert dead is not None
            assert dead.body == b"1"
            await client.complete_message(dead)
            at = datetime.now(UTC) + timedelta(hours=1)
            await client.cancel_scheduled_message(
                name, await client.schedule_message(name, Message(b"2"), at)
            )
            async with client.transaction() as transaction:
                await transaction.send_message(name, Message(b"3"))
            async with client.receiver(name) as receiver:
                [last] = await receiver.next_batch(1)
                assert last.body == b"3"
                await client.complete_message(last)

    asyncio.run(run())


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_of_any_name_can_have_sessions(broker: Running, name: str) -> None:
    name = f"sessions of {name}"
    path = f"/api/v1/namespaces/default/queues/{quote(name, safe='')}"
    assert broker.call("PUT", path, {"grouping": "session"}).status < 300

    async def run() -> None:
        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as client:
            await client.send_message(name, Message(b"1", session_id=SessionId("s")))
            session = await client.accept_session(name, SessionId("s"))
            assert session is not None
            await session.set_state(b"half")
            got = await session.receive_message(5)
            assert got is not None
            await session.complete_message(got)
            await session.close_session()

    asyncio.run(run())


def test_the_broker_calls_the_queue_as_the_client_does(broker: Running) -> None:
    async def run() -> None:
        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as client:
            for name in NAMES:
                await client.send_message(f"called {name}", Message(b"x"))

    asyncio.run(run())
    found = broker.call("GET", "/api/v1/namespaces/default/queues").json["queues"]
    assert {f"called {name}" for name in NAMES} <= {each["name"] for each in found}


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_handles_a_queue_of_any_name(name: str) -> None:
    worker = Worker()
    worker.handler(name)(lambda message: None)
    assert worker.queues == [name]
