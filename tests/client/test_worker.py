"""Handlers and what becomes of their messages, on a broker in memory."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import posthouse
from posthouse import (
    ConfigurationError,
    Context,
    FixedRetry,
    Message,
    NoRetry,
    QueueClient,
    QueueNotFound,
    ReceivedMessage,
    Reject,
    Requeue,
    Worker,
)
from posthouse.client.handling import DESCRIPTION_CHARS_MAX
from tests.waiting import until_async

WAIT_SECONDS = 20  # for what comes at once

AT_ONCE = FixedRetry(attempts=3, wait=0.0)


def with_a_broker(test: Callable[[QueueClient], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test on a client in memory, whose clock stands still."""

    def run() -> None:
        async def inside() -> None:
            async with posthouse.create_test_client(virtual_clock=True) as client:
                async with asyncio.timeout(WAIT_SECONDS):
                    await test(client)

        asyncio.run(inside())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until(condition: Callable[[], bool]) -> None:
    await until_async(condition, "the worker has come so far")


async def left_in(client: QueueClient, queue: str = "orders") -> list[ReceivedMessage]:
    return await client.peek_messages(queue, 100)


async def dead_in(client: QueueClient, queue: str = "orders") -> list[ReceivedMessage]:
    return await client.receive_messages(queue, 100, 0, dead_letter=True)


def counted(app: Worker, queue: str = "orders") -> dict[str, int]:
    return {each.outcome: each.count for each in app.figures[queue].all()}


@with_a_broker
async def test_a_message_that_was_handled_is_gone(client: QueueClient) -> None:
    app, seen = Worker(client), []

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with app.running():
        for body in (b"one", b"two"):
            await client.send_message("orders", Message(body))
        await until(lambda: len(seen) == 2)
    assert seen == [b"one", b"two"]
    assert await left_in(client) == []
    assert counted(app) == {"ok": 2}
    [total] = [each for each in client.figures.all() if each.operation == "handle"]
    assert (total.outcome, total.count) == ("ok", 2)


@with_a_broker
async def test_a_plain_function_runs_in_a_thread_and_the_loop_goes_on(client: QueueClient) -> None:
    app, threads = Worker(client), []
    may_end = threading.Event()

    @app.handler("orders")
    def on_order(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())
        assert may_end.wait(WAIT_SECONDS)

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: bool(threads))
        may_end.set()
    assert threads[0] is not threading.main_thread()
    assert await left_in(client) == []


@with_a_broker
async def test_as_many_at_a_time_as_was_said(client: QueueClient) -> None:
    app, at_once, most = Worker(client), 0, 0
    may_end = asyncio.Event()

    @app.handler("orders", concurrency=3)
    async def on_order() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await may_end.wait()
        at_once -= 1

    await client.send_messages("orders", [Message(b"x")] * 8)
    async with app.running():
        await until(lambda: at_once == 3)
        others = await client.receive_messages("orders", 100, 0)
        assert len(others) == 5  # it holds no more than it handles
        for each in others:
            await client.release_message(each)
        may_end.set()
        await until(lambda: counted(app).get("ok") == 8)
    assert most == 3
    assert await left_in(client) == []


@with_a_broker
async def test_a_failed_message_is_tried_again_and_then_dead_lettered(client: QueueClient) -> None:
    app, attempts = Worker(client, retry=AT_ONCE), []

    @app.handler("orders")
    async def on_order(context: Context) -> None:
        attempts.append(context.attempt)
        raise ValueError("amount is below 0")

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: "dead-lettered" in counted(app))
    assert attempts == [1, 2, 3]
    [dead] = await dead_in(client)
    assert dead.body == b"one"
    assert (dead.dead_letter_reason, dead.dead_letter_description) == (
        "ValueError", "amount is below 0",
    )  # fmt: skip
    assert counted(app) == {"dead-lettered": 1, "retried": 2}


@with_a_broker
async def test_a_retry_waits_and_others_are_handled_meanwhile(client: QueueClient) -> None:
    app, seen = Worker(client), []

    @app.handler("orders", concurrency=1, retry=FixedRetry(attempts=2, wait=0.05))
    async def on_order(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if seen == [b"one"]:
            raise ValueError

    await client.send_messages("orders", [Message(b"one"), Message(b"two")])
    async with app.running():
        await until(lambda: counted(app).get("ok") == 2)
    assert seen == [b"one", b"two", b"one"]


@with_a_broker
async def test_a_retry_that_is_due_late_is_left_to_the_broker(client: QueueClient) -> None:
    app, counts = Worker(client), []

    @app.handler("orders", retry=FixedRetry(attempts=2, wait=3_600))
    async def on_order(message: ReceivedMessage) -> None:
        counts.append(message.delivery_count)
        raise ValueError

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: len(counts) == 2)
    assert counts == [1, 2]


@with_a_broker
async def test_who_rejects_has_it_dead_lettered_at_once(client: QueueClient) -> None:
    app = Worker(client, retry=AT_ONCE)

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        raise Reject("unknown-customer", "there is no customer 7")

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: bool(counted(app)))
    [dead] = await dead_in(client)
    assert dead.dead_letter_reason == "unknown-customer"
    assert dead.dead_letter_description == "there is no customer 7"
    assert counted(app) == {"dead-lettered": 1}


@with_a_broker
async def test_what_is_requeued_is_delivered_again(client: QueueClient) -> None:
    app, counts = Worker(client), []

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        counts.append(message.delivery_count)
        if len(counts) == 1:
            raise Requeue

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: counted(app).get("ok") == 1)
    assert counts == [1, 2]
    assert counted(app) == {"ok": 1, "requeued": 1}


@with_a_broker
async def test_middleware_is_around_each_handling_in_its_order(client: QueueClient) -> None:
    app, seen = Worker(client, retry=NoRetry()), []
    tenant = contextvars.ContextVar("tenant", default="")

    @app.middleware
    async def outer(context: Context, call_next: Any) -> None:
        seen.append(f"outer {context.queue} {context.attempt}")
        try:
            await call_next(context)
        except ValueError as error:
            seen.append("failed")
            raise Reject("found-by-middleware") from error
        finally:
            seen.append("outer ends")

    @app.middleware
    async def inner(context: Context, call_next: Any) -> None:
        tenant.set("acme")
        await call_next(context)

    @app.handler("orders")
    def on_order(message: ReceivedMessage) -> None:
        seen.append(f"handler {tenant.get()}")
        raise ValueError

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: bool(counted(app)))
    assert seen == ["outer orders 1", "handler acme", "failed", "outer ends"]
    [dead] = await dead_in(client)
    assert dead.dead_letter_reason == "found-by-middleware"


@with_a_broker
async def test_hooks_run_before_the_first_and_after_the_last(client: QueueClient) -> None:
    app, seen = Worker(client), []

    @app.on_start
    async def prepare() -> None:
        await app.client.send_message("orders", Message(b"one"))
        seen.append("start")

    @app.on_stop
    def finish() -> None:
        seen.append("stop")

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        seen.append("handled")

    async with app.running():
        await until(lambda: "handled" in seen)
    assert seen == ["start", "handled", "stop"]


@with_a_broker
async def test_who_stops_lets_handlers_end_and_gives_back_the_others(client: QueueClient) -> None:
    app, begun = Worker(client), []
    may_end = asyncio.Event()

    @app.handler("orders", concurrency=1, prefetch=5)
    async def on_order(message: ReceivedMessage) -> None:
        begun.append(message.body)
        await may_end.wait()

    await client.send_messages("orders", [Message(str(n).encode()) for n in range(4)])
    running = asyncio.create_task(app.run())
    await until(lambda: bool(begun))
    app.stop()
    assert await client.receive_messages("orders", 1, WAIT_SECONDS)
    assert not running.done()
    may_end.set()
    assert await running
    assert begun == [b"0"]
    left = await left_in(client)
    assert [each.body for each in left] == [b"1", b"2", b"3"]
    # The first was received above; the others are as if they had never been delivered.
    assert [each.delivery_count for each in left] == [1, 0, 0]


@with_a_broker
async def test_a_handler_that_does_not_end_in_time_is_cancelled(client: QueueClient) -> None:
    app, cancelled = Worker(client, drain_seconds=0.01), []
    begun = asyncio.Event()

    @app.handler("orders")
    async def on_order(context: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(context.stopped)
            raise

    running = asyncio.create_task(app.run())
    await client.send_message("orders", Message(b"one"))
    await begun.wait()
    app.stop()
    assert not await running  # it says that not all was drained
    assert cancelled == [True]
    [again] = await client.receive_messages("orders", 1, 0)
    assert again.delivery_count == 2


@with_a_broker
async def test_what_waits_for_a_retry_is_given_back_when_it_stops(client: QueueClient) -> None:
    app = Worker(client, retry=FixedRetry(attempts=5, wait=60))

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        raise ValueError

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: bool(counted(app)))
    [again] = await client.receive_messages("orders", 1, 0)
    assert again.delivery_count == 2


def test_a_queue_that_is_not_there_is_said_at_the_start() -> None:
    async def run() -> None:
        async with posthouse.create_test_client(auto_create=False) as client:
            app = Worker(client)

            @app.handler("orders")
            async def on_order(message: ReceivedMessage) -> None: ...

            with pytest.raises(QueueNotFound, match="orders"):
                await app.run()

    asyncio.run(run())


@with_a_broker
async def test_dead_letters_have_a_handler_of_their_own(client: QueueClient) -> None:
    app, seen = Worker(client), []

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        raise Reject("bad")

    @app.handler("orders", dead_letter=True)
    async def on_dead(message: ReceivedMessage) -> None:
        seen.append(message.dead_letter_reason)

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        await until(lambda: bool(seen))
    assert seen == ["bad"]
    assert await dead_in(client) == []


@with_a_broker
async def test_a_plain_handler_sends_with_the_workers_client(client: QueueClient) -> None:
    app = Worker(client)

    @app.handler("orders")
    def on_order(message: ReceivedMessage, context: Context) -> None:
        context.sync_client.send_message("invoices", Message(b"for " + message.body))

    async with app.running():
        await client.send_message("orders", Message(b"one"))
        invoice = await client.receive_message("invoices", WAIT_SECONDS)
    assert invoice is not None
    assert invoice.body == b"for one"


# Without a broker.


def outcome(app: Worker, message: Message | None = None, attempt: int = 1) -> posthouse.Outcome:
    return asyncio.run(app.process("orders", message or Message(b"one"), attempt=attempt))


def test_one_message_can_be_tried_without_a_broker() -> None:
    app = Worker(retry=FixedRetry(attempts=3, wait=7.0))

    @app.handler("orders")
    async def on_order(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise ValueError("it is bad")

    assert outcome(app).ending == "complete"
    failed = outcome(app, Message(b"bad"))
    assert (failed.ending, failed.delay, failed.reason) == ("retry", 7.0, "ValueError")
    assert outcome(app, Message(b"bad"), attempt=3).ending == "dead-letter"


def test_the_text_of_an_error_is_bounded_and_without_secrets() -> None:
    app = Worker(retry=NoRetry())

    @app.handler("orders")
    def on_order(message: ReceivedMessage) -> None:
        raise ValueError(message.body.decode())

    def told(text: str) -> str:
        return outcome(app, Message(text.encode())).description or ""

    for text in (
        "GET https://web:hunter2@example.com failed", "password=hunter2; retry", "token: 'hunter2'",
        "Authorization: Bearer hunter2", "SharedAccessKey=hunter2;x", "api_key = hunter2 is wrong",
    ):  # fmt: skip
        assert "hunter2" not in told(text)
        assert "***" in told(text)
    harmless = "order 7: key 4711 is unknown, token missing"
    assert told(harmless) == harmless
    assert told("x" * 100_000) == "x" * DESCRIPTION_CHARS_MAX


def test_a_handler_is_given_what_its_annotations_say() -> None:
    app, seen = Worker(), []

    @app.handler("orders")
    def on_order(context, message, unit="kg"):  # type: ignore[no-untyped-def]
        seen.append((context.attempt, message.body, unit))

    assert outcome(app, attempt=4).ending == "complete"
    assert seen == [(4, b"one", "kg")]


def test_a_function_that_cannot_be_a_handler_is_refused() -> None:
    def two(message: ReceivedMessage, other: ReceivedMessage) -> None: ...

    def named(message: ReceivedMessage, *, other: int) -> None: ...

    def unread(message: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, why in (
        (two, "other beside the message"), (named, "nobody gives"), (unread, "Nowhere"),
    ):  # fmt: skip
        app = Worker("memory://")
        app.handler("orders")(function)
        with pytest.raises(ConfigurationError, match=why):
            asyncio.run(app.run())


def test_a_queue_has_one_handler() -> None:
    app = Worker()
    app.handler("orders")(print)
    with pytest.raises(ConfigurationError, match="already"):
        app.handler("orders")
    with pytest.raises(ConfigurationError, match="max_sessions"):
        app.handler("others", sessions=True, max_sessions=0)
    with pytest.raises(ConfigurationError, match="no handler"):
        asyncio.run(Worker("memory://").run())


def test_failures_are_logged_with_the_message_id_and_never_its_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with posthouse.create_test_client(virtual_clock=True) as client:
            app = Worker(client, retry=NoRetry())

            @app.handler("orders")
            async def on_order(message: ReceivedMessage) -> None:
                raise ValueError("no such thing")

            async with app.running():
                await client.send_message("orders", Message(b"body").with_message_id("m1"))
                await until(lambda: bool(counted(app)))

    with caplog.at_level(logging.INFO, "posthouse.worker"):
        asyncio.run(run())
    [line] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "m1 of orders, attempt 1, is dead-lettered: ValueError: no such thing" in line.message
    assert line.exc_info is not None
    assert "b'body'" not in caplog.text
