"""Handlers of queues with sessions: each session in its order, held by one."""

import asyncio
import time
from typing import Any

import posthouse
from posthouse import (
    Context,
    FixedRetry,
    InMemoryConfig,
    Message,
    QueueClient,
    QueueConfig,
    ReceivedMessage,
    Worker,
)
from tests.client.test_worker import (
    AT_ONCE,
    WAIT_SECONDS,
    counted,
    dead_in,
    left_in,
    until,
    with_a_broker,
)
from tests.client.test_worker_locks import RENEWALS, renewed
from tests.waiting import turn

Seen = list[tuple[str, str]]


async def send(client: QueueClient, *pairs: tuple[str, str]) -> None:
    for session, body in pairs:
        await client.send_message("orders", Message(body.encode()).with_session_id(session))


def note(seen: Seen, message: ReceivedMessage) -> None:
    seen.append((str(message.session_id), message.body.decode()))


@with_a_broker
async def test_each_session_is_handled_in_its_order(client: QueueClient) -> None:
    app = Worker(client)
    seen: Seen = []
    at_once: dict[str, int] = {}

    @app.handler("orders", sessions=True, max_sessions=2, session_idle=0.05)
    async def on_order(message: ReceivedMessage, context: Context) -> None:
        session = str(message.session_id)
        at_once[session] = at_once.get(session, 0) + 1
        assert at_once[session] == 1
        await turn()
        note(seen, message)
        at_once[session] -= 1

    sent = [(f"s{n % 3}", str(n)) for n in range(12)]
    await send(client, *sent)
    async with app.running():
        await until(lambda: len(seen) == 12)
    for session in ("s0", "s1", "s2"):
        assert [each for each in seen if each[0] == session] == [
            each for each in sent if each[0] == session
        ]
    assert await left_in(client) == []


@with_a_broker
async def test_an_idle_session_is_given_up_for_the_next(client: QueueClient) -> None:
    app = Worker(client)
    seen: Seen = []

    @app.handler("orders", sessions=True, max_sessions=1, session_idle=0.02)
    async def on_order(message: ReceivedMessage) -> None:
        note(seen, message)

    await send(client, ("a", "1"), ("b", "2"))
    async with app.running():
        await until(lambda: len(seen) == 2)
        await send(client, ("a", "3"))
        await until(lambda: len(seen) == 3)
    assert seen == [("a", "1"), ("b", "2"), ("a", "3")]


@with_a_broker
async def test_what_fails_is_tried_again_before_those_behind_it(client: QueueClient) -> None:
    app = Worker(client, retry=AT_ONCE)
    seen: Seen = []

    @app.handler("orders", sessions=True, session_idle=0.02)
    async def on_order(message: ReceivedMessage) -> None:
        note(seen, message)
        if message.body == b"bad":
            raise ValueError("no")

    await send(client, ("a", "bad"), ("a", "good"))
    async with app.running():
        await until(lambda: counted(app).get("ok") == 1)
    assert seen == [("a", "bad")] * 3 + [("a", "good")]
    [dead] = await dead_in(client)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("ValueError", "no")


@with_a_broker
async def test_who_stops_keeps_the_order_of_what_waits(client: QueueClient) -> None:
    app = Worker(client, retry=FixedRetry(attempts=5, wait=60))

    @app.handler("orders", sessions=True)
    async def on_order(message: ReceivedMessage) -> None:
        raise ValueError

    await send(client, ("a", "1"), ("a", "2"))
    async with app.running():
        await until(lambda: bool(counted(app)))
    session = await client.accept_session("orders", "a", 0)
    assert session is not None
    received = await session.receive_messages(10, 0)
    assert [(each.body, each.delivery_count) for each in received] == [(b"1", 2), (b"2", 1)]


@with_a_broker
async def test_a_handler_reads_and_writes_the_state_of_its_session(client: QueueClient) -> None:
    app, states = Worker(client), []

    @app.handler("orders", sessions=True)
    async def on_order(message: ReceivedMessage, context: Context) -> None:
        assert context.session is not None
        states.append(await context.session.get_state())
        await context.session.set_state(message.body)

    await send(client, ("a", "1"), ("a", "2"))
    async with app.running():
        await until(lambda: counted(app).get("ok") == 2)
    assert states == [None, b"1"]


BROKER = QueueConfig(InMemoryConfig(session_lock_duration=1.0, auto_create=True))


def test_the_lock_of_a_session_is_renewed_while_a_handler_computes() -> None:
    app, seen = Worker(BROKER), []

    @app.handler("orders", sessions=True, session_idle=0.05)
    async def on_order(message: ReceivedMessage, context: Context) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while renewed(context) < RENEWALS and time.monotonic() < end:
            sum(range(1_000))
        seen.append((message.body, message.delivery_count))

    async def run() -> None:
        async with app.running():
            session: Any = Message(b"1").with_session_id("a")
            await app.client.send_messages("orders", [session])
            await until(lambda: counted(app).get("ok") == 1)

    asyncio.run(run())
    assert seen == [(b"1", 1)]


def test_a_handler_is_cancelled_when_its_session_is_lost() -> None:
    async def run() -> None:
        async with posthouse.create_client(BROKER) as client:
            app, told = Worker(client), []

            @app.handler("orders", sessions=True, session_idle=0.05)
            async def on_order(message: ReceivedMessage, context: Context) -> None:
                try:
                    if message.delivery_count == 1:
                        assert context.session is not None
                        await context.session._twin.close_session()  # another may have it
                        await asyncio.Event().wait()
                finally:
                    told.append((message.delivery_count, context.lost))

            async with app.running(), asyncio.timeout(WAIT_SECONDS):
                await send(client, ("a", "1"))
                await until(lambda: len(told) == 2)
            assert sorted(told) == [(1, True), (2, False)]
            assert counted(app) == {"lost": 1, "ok": 1}

    asyncio.run(run())
