"""A worker's client is used from the loop of its handlers, and lives on another."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from posthouse import Context, Message, QueueClient, Reject, Worker
from tests.server.running import running

WAIT_S = 20


@pytest.fixture(params=["memory", "posthouse"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://?auto_create=true"
        return
    with running("--memory", "--dev", "--auto-create") as broker:
        yield f"posthouse://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{broker.port}"


def use(url: str, work: Callable[[QueueClient], Awaitable[None]]) -> None:
    """The client of a worker that runs."""
    app = Worker(url)

    @app.handler("unused")
    async def on_nothing(context: Context) -> None: ...

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), app.running():
            await work(app.client)

    asyncio.run(main())


def test_a_transaction_happens_as_a_whole_or_not_at_all(url: str) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_messages("orders", [Message(b"a"), Message(b"b")])
        first, second = await client.receive_messages("orders", 2, 5)
        async with client.transaction() as together:
            await together.complete_message(first)
            [id] = await together.send_messages("invoices", [Message(b"for a")])
            assert await client.peek_messages("invoices") == []
        [invoice] = await client.receive_messages("invoices", 9, 5)
        assert (invoice.body, invoice.message_id) == (b"for a", id)
        with pytest.raises(Reject):  # noqa: PT012
            async with client.transaction() as together:
                await together.send_message("invoices", Message(b"for b"))
                await together.complete_message(second)
                raise Reject("no")
        assert len(await client.peek_messages("invoices", 9)) == 1  # that is still locked
        await client.complete_message(second)  # so it was not
        left = await client.peek_messages("orders", 9)
        assert left == []

    use(url, work)


def test_a_transaction_of_a_handler_that_is_cancelled_does_not_happen(url: str) -> None:
    async def work(client: QueueClient) -> None:
        begun = asyncio.Event()

        async def begin() -> None:
            async with client.transaction() as together:
                await together.send_message("invoices", Message(b"x"))
                begun.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(begin())
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await client.send_message("invoices", Message(b"y"))
        assert [each.body for each in await client.peek_messages("invoices", 9)] == [b"y"]

    use(url, work)


def test_all_of_the_client_can_be_used(url: str) -> None:
    async def work(client: QueueClient) -> None:
        assert client.max_batch_size() == client.capabilities.batch_max
        await client.send_messages("orders", [Message(b"a"), Message(b"b")])
        async with client.receiver("orders") as receiver:
            bodies = []
            async for each in receiver:
                await client.complete_message(each)
                bodies.append(each.body)
                if len(bodies) == 2:
                    await receiver.close()
        assert bodies == [b"a", b"b"]
        with pytest.raises(TypeError, match="worker"):
            await client.close()
        await client.send_message("orders", Message(b"c"))  # it is still open
        assert client.figures.messages["sent"] == 3

    use(url, work)


def test_a_session_is_held_from_another_loop(url: str) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("sessions", Message(b"x").with_session_id("s"))
        session = await client.accept_session("sessions", "s", 5)
        assert session is not None
        async with session:
            found = await session.receive_message(5)
            assert found is not None
            await session.complete_message(found)
            assert session.session_id == "s"

    use(url, work)


def test_administration_is_the_clients_own(url: str) -> None:
    async def work(client: QueueClient) -> None:
        assert await client.admin.ensure_queue("made")
        assert "made" in await client.admin.queues()
        await client.admin.delete_queue("made")

    use(url, work)
