"""Locks of messages that are being handled: renewed whatever the handler does, or known as lost.

Time passes in these tests: that it does is what they are about.
"""

import asyncio
import threading
import time

import posthouse
from posthouse import Context, InMemoryConfig, Message, QueueConfig, ReceivedMessage, Worker
from posthouse.client.provider import Provider
from tests.client.test_worker import WAIT_SECONDS, counted, until
from tests.waiting import until as wait_until

LOCK_SECONDS = 1.0
BROKER = QueueConfig(InMemoryConfig(lock_duration=LOCK_SECONDS, auto_create=True))
RENEWALS = 3  # more than a lock lasts without them


def renewed(context: Context) -> int:
    return sum(
        each.count
        for each in context.client.figures.all()
        if (each.operation, each.outcome) == ("renew", "ok")
    )


def compute(context: Context) -> None:
    """Without ever letting go, until the lock would have ended."""
    end = time.monotonic() + WAIT_SECONDS
    while renewed(context) < RENEWALS and time.monotonic() < end:
        sum(range(1_000))


def handled_once(app: Worker) -> None:
    """A message whose handler computes for longer than its lock lasts."""

    @app.on_start
    async def send() -> None:
        await app.client.send_message("orders", Message(b"one"))

    async def run() -> list[ReceivedMessage]:
        async with app.running():
            await until(lambda: bool(counted(app)))
            await until(lambda: settled(app))
            return await app.client.peek_messages("orders", 10)

    assert asyncio.run(run()) == []
    assert counted(app) == {"ok": 1}


def settled(app: Worker) -> bool:
    return any(each.operation == "complete" for each in app.client.figures.all())


def test_a_lock_is_renewed_while_an_async_handler_computes_on_the_loop() -> None:
    app, counts = Worker(BROKER), []

    @app.handler("orders")
    async def on_order(message: ReceivedMessage, context: Context) -> None:
        assert threading.current_thread() is threading.main_thread()
        counts.append(message.delivery_count)
        compute(context)
        counts.append(renewed(context))

    handled_once(app)
    assert counts[0] == 1
    assert counts[1] >= RENEWALS


def test_a_lock_is_renewed_while_a_plain_handler_computes_in_its_thread() -> None:
    app, counts = Worker(BROKER), []

    @app.handler("orders")
    def on_order(message: ReceivedMessage, context: Context) -> None:
        counts.append(message.delivery_count)
        compute(context)
        counts.append(renewed(context))

    handled_once(app)
    assert counts[0] == 1
    assert counts[1] >= RENEWALS


def test_what_is_fetched_and_not_begun_is_renewed_too() -> None:
    app, counts = Worker(BROKER), []

    @app.handler("orders", concurrency=1, prefetch=1)
    def on_order(message: ReceivedMessage, context: Context) -> None:
        counts.append(message.delivery_count)
        if len(counts) == 1:
            wait_until(lambda: renewed(context) >= 2 * RENEWALS, "both are renewed")

    async def run() -> None:
        async with app.running():
            await app.client.send_messages("orders", [Message(b"one"), Message(b"two")])
            await until(lambda: counted(app).get("ok") == 2)

    asyncio.run(run())
    assert counts == [1, 1]


async def lose(client: posthouse.QueueClient, message: ReceivedMessage) -> None:
    """Another has settled it, as happens after a lock has ended."""
    await client.complete_message(message)


def test_an_async_handler_is_cancelled_when_its_lock_is_lost() -> None:
    async def run() -> None:
        async with posthouse.create_client(BROKER) as client:
            app, told = Worker(client), []

            @app.handler("orders")
            async def on_order(message: ReceivedMessage, context: Context) -> None:
                await lose(client, message)
                try:
                    await asyncio.Event().wait()
                finally:
                    told.append(context.lost)

            async with app.running(), asyncio.timeout(WAIT_SECONDS):
                await client.send_message("orders", Message(b"one"))
                await until(lambda: bool(counted(app)))
                await client.send_message("orders", Message(b"two"))  # it goes on
                await until(lambda: counted(app)["lost"] == 2)
            assert told == [True, True]
            settled = [each.operation for each in client.figures.all() if each.outcome != "ok"]
            assert "complete" not in settled  # nobody tried to settle what is not his
            assert "abandon" not in settled

    asyncio.run(run())


def test_a_plain_handler_is_told_that_its_lock_is_lost() -> None:
    async def run() -> None:
        async with posthouse.create_client(BROKER) as client:
            app, told = Worker(client), []

            @app.handler("orders")
            def on_order(message: ReceivedMessage, context: Context) -> None:
                context.sync_client.complete_message(message)
                wait_until(lambda: context.lost, "it is lost")
                told.append(context.lost)

            async with app.running(), asyncio.timeout(WAIT_SECONDS):
                await client.send_message("orders", Message(b"one"))
                await until(lambda: bool(counted(app)))
            assert told == [True]
            assert counted(app) == {"lost": 1}

    asyncio.run(run())


class Flaky:
    """A provider whose connection is lost for the next so many calls of a kind."""

    def __init__(self, provider: Provider, **failures: int) -> None:
        self._provider = provider
        self.failures = failures

    def __getattr__(self, name: str) -> object:
        if self.failures.get(name, 0) > 0:
            self.failures[name] -= 1
            raise posthouse.ConnectionFailed("The broker has gone away.")
        return getattr(self._provider, name)


def flaky(**failures: int) -> tuple[posthouse.QueueClient, Flaky]:
    from posthouse.client.memory import InMemoryProvider

    config = InMemoryConfig(lock_duration=LOCK_SECONDS, auto_create=True)
    provider = Flaky(InMemoryProvider(config), **failures)
    whole = QueueConfig(config, breaker_failures=0)
    return posthouse.QueueClient(provider, whole, retry=posthouse.NoRetry()), provider  # type: ignore[arg-type]


def test_it_goes_on_after_the_connection_was_lost() -> None:
    async def run() -> None:
        client, provider = flaky(open=1, receive=1)
        app, seen = Worker(client), []

        @app.handler("orders")
        async def on_order(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with app.running(), asyncio.timeout(WAIT_SECONDS):
            await client.send_message("orders", Message(b"one"))
            await until(lambda: seen == [b"one"])
            provider.failures["receive"] = 1
            await client.send_message("orders", Message(b"two"))
            await client.send_message("orders", Message(b"three"))
            await until(lambda: seen == [b"one", b"two", b"three"])
        assert provider.failures == {"open": 0, "receive": 0}
        await client.close()

    asyncio.run(run())


def test_a_renewal_that_fails_once_is_tried_again_before_the_lock_ends() -> None:
    async def run() -> None:
        client, provider = flaky(renew=1)
        app, counts = Worker(client), []

        @app.handler("orders")
        async def on_order(message: ReceivedMessage, context: Context) -> None:
            counts.append(message.delivery_count)
            await until(lambda: renewed(context) >= RENEWALS)

        async with app.running(), asyncio.timeout(WAIT_SECONDS):
            await client.send_message("orders", Message(b"one"))
            await until(lambda: bool(counted(app)))
        assert provider.failures == {"renew": 0}
        assert (counts, counted(app)) == ([1], {"ok": 1})
        await client.close()

    asyncio.run(run())
