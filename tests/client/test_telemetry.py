"""Traces and metrics, as a program that uses OpenTelemetry sees them."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from posthouse import (
    FixedRetry,
    InMemoryConfig,
    Message,
    ProviderType,
    QueueClient,
    QueueConfig,
    QueueNotFound,
    ReceivedMessage,
    Worker,
    processing,
)
from posthouse.client import client as module
from posthouse.client import telemetry as telemetry_module
from posthouse.client.memory import InMemoryProvider
from posthouse.client.telemetry import LINKS_MAX, Telemetry


class Observed:
    """A client, and what it has told OpenTelemetry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        found = Telemetry(ProviderType.IN_MEMORY, self.tracers, meters)
        for each in (module, telemetry_module):
            monkeypatch.setattr(each, "find_telemetry", lambda kind: found)

    def run(self, work: Callable[[QueueClient], Awaitable[None]], *, create: bool = True) -> None:
        async def main() -> None:
            provider = InMemoryConfig(auto_create=create)
            config = QueueConfig(provider, default_timeout=0.0)
            async with QueueClient(InMemoryProvider(provider), config) as client:
                await work(client)

        asyncio.run(main())

    def span(self, name: str) -> ReadableSpan:
        [found] = [each for each in self.spans.get_finished_spans() if each.name == name]
        return found

    def durations(self) -> dict[tuple[object, object], int]:
        data = self._reader.get_metrics_data()
        assert data is not None
        [metric] = data.resource_metrics[0].scope_metrics[0].metrics
        assert metric.name == "messaging.client.operation.duration"
        found: dict[tuple[object, object], int] = {}
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint)
            about = point.attributes or {}
            found[about["messaging.operation.name"], about.get("error.type")] = point.count
        return found


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(monkeypatch)


def test_the_trace_travels_with_the_message(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        with observed.tracers.get_tracer("test").start_as_current_span("shop"):
            await client.send_message("orders", Message(b"abc", correlation_id="c"))
        received = await client.receive_message("orders")
        assert received is not None
        assert str(received.attributes["traceparent"]).startswith("00-")
        with processing(received, "orders"):
            await client.send_message("bills", Message(b"x"))

    observed.run(work)
    shop, send = observed.span("shop"), observed.span("send orders")
    receive, process = observed.span("receive orders"), observed.span("process orders")
    bill = observed.span("send bills")
    assert send.context is not None
    assert shop.context is not None
    assert process.context is not None
    assert send.kind is SpanKind.PRODUCER
    assert send.parent is not None
    assert send.parent.span_id == shop.context.span_id
    assert receive.kind is SpanKind.CLIENT
    assert [each.context.span_id for each in receive.links] == [send.context.span_id]
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert [each.context.span_id for each in process.links] == [send.context.span_id]
    assert bill.parent is not None
    assert bill.parent.span_id == process.context.span_id
    about = dict(send.attributes or {})
    assert about.pop("messaging.message.id")
    assert about == {
        "messaging.system": "in_memory",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 3,
        "messaging.message.conversation_id": "c",
    }


def test_a_batch_is_one_span_with_its_number_of_messages(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_messages("orders", [Message(b"x")] * 200)
        assert len(await client.receive_messages("orders", 200)) == 200

    observed.run(work)
    for name in ("send orders", "receive orders"):
        assert (observed.span(name).attributes or {})["messaging.batch.message_count"] == 200
    assert len(observed.span("receive orders").links) == LINKS_MAX


def test_a_message_that_is_sent_on_keeps_its_trace_and_links_to_it(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("orders", Message(b"x"))
        received = await client.receive_message("orders")
        assert received is not None
        await client.send_message("later", received.message())
        again = await client.receive_message("later")
        assert again is not None
        assert again.attributes["traceparent"] == received.attributes["traceparent"]

    observed.run(work)
    first = observed.span("send orders").context
    assert first is not None
    [link] = observed.span("send later").links
    assert link.context.span_id == first.span_id


def test_sessions_transactions_schedules_and_receivers_are_traced(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        async with client.transaction() as together:
            await together.send_message("sessions", Message(b"x").with_session_id("s"))
        session = await client.accept_session("sessions", "s")
        assert session is not None
        assert await session.receive_message() is not None
        at = datetime.now(UTC) - timedelta(seconds=1)
        await client.schedule_message("due", Message(b"x"), at)
        async with client.receiver("due") as receiver:
            assert "traceparent" in (await anext(receiver)).attributes

    observed.run(work)
    sent, received = observed.span("send sessions"), observed.span("receive sessions")
    assert sent.context is not None
    assert [each.context.span_id for each in received.links] == [sent.context.span_id]
    assert observed.span("schedule due").kind is SpanKind.PRODUCER
    assert len(observed.span("receive due").links) == 1


def test_what_fails_is_an_error_of_its_kind(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        with pytest.raises(QueueNotFound):
            await client.send_message("orders", Message(b"x"))
        with pytest.raises(QueueNotFound):
            await client.receive_message("orders")

    observed.run(work, create=False)
    for name in ("send orders", "receive orders"):
        span = observed.span(name)
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "QueueNotFound"
    assert observed.durations() == {
        ("connect", None): 1,
        ("send", "QueueNotFound"): 1,
        ("receive", "QueueNotFound"): 1,
    }


def test_a_receive_that_finds_nothing_is_counted_and_not_traced(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        assert await client.receive_message("orders") is None

    observed.run(work)
    assert not observed.spans.get_finished_spans()
    assert observed.durations()["receive", None] == 1


def test_a_handling_that_fails_is_an_error(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("orders", Message(b"x"))
        received = await client.receive_message("orders")
        assert received is not None
        with pytest.raises(LookupError), processing(received):
            raise LookupError

    observed.run(work)
    assert (observed.span("process").attributes or {})["error.type"] == "LookupError"


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_worker_handles_messages_in_the_trace_of_their_sender(
    observed: Observed, kind: str
) -> None:
    async def work(client: QueueClient) -> None:
        app, seen = Worker(client), asyncio.Event()
        loop = asyncio.get_running_loop()

        def handle(message: ReceivedMessage) -> None:
            with observed.tracers.get_tracer("test").start_as_current_span("inside"):
                loop.call_soon_threadsafe(seen.set)

        async def handle_async(message: ReceivedMessage) -> None:
            handle(message)

        app.handler("orders")(handle if kind == "plain" else handle_async)
        async with app.running():
            await client.send_message("orders", Message(b"x"))
            await seen.wait()

    observed.run(work)
    send, process = observed.span("send orders"), observed.span("process orders")
    inside = observed.span("inside")
    assert send.context is not None
    assert process.context is not None
    assert inside.parent is not None
    assert inside.context is not None
    assert process.kind is SpanKind.CONSUMER
    assert inside.parent.span_id == process.context.span_id
    assert inside.context.trace_id == send.context.trace_id
    assert [each.context.span_id for each in process.links] == [send.context.span_id]


def test_each_try_of_a_worker_is_a_span_with_its_error(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        app, tries = Worker(client, retry=FixedRetry(attempts=3, wait=0.0)), []

        @app.handler("orders")
        async def fail(message: ReceivedMessage) -> None:
            tries.append(message)
            raise LookupError

        async with app.running():
            await client.send_message("orders", Message(b"x"))
            while await client.receive_message("orders", 0.05, dead_letter=True) is None:
                pass
        assert len(tries) == 3

    observed.run(work)
    spans = [each for each in observed.spans.get_finished_spans() if each.name == "process orders"]
    assert [(each.attributes or {})["error.type"] for each in spans] == ["LookupError"] * 3
    assert all(each.status.status_code is StatusCode.ERROR for each in spans)


def test_a_span_of_a_subscription_names_it_and_its_topic(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        assert await client.receive_message("events/$sub/bills") is None  # it is there now
        await client.send_message("events", Message(b"x"))
        assert await client.receive_message("events/$sub/bills") is not None

    observed.run(work)
    about = observed.span("receive events/$sub/bills").attributes or {}
    assert about["messaging.destination.name"] == "events"
    assert about["messaging.destination.subscription.name"] == "bills"


def test_a_bad_trace_in_a_message_is_passed_over(observed: Observed) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("orders", Message(b"x", {"traceparent": "nonsense"}))
        received = await client.receive_message("orders")
        assert received is not None
        with processing(received, "orders"):
            pass

    observed.run(work)
    assert not observed.span("receive orders").links
    assert observed.span("process orders").parent is None


def test_without_opentelemetry_all_goes_on() -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import posthouse\n"
        "async def main():\n"
        "    async with posthouse.create_test_client() as client:\n"
        "        await client.send_message('q', posthouse.Message(b'x'))\n"
        "        received = await client.receive_message('q')\n"
        "        with posthouse.processing(received):\n"
        "            assert client._telemetry is None\n"
        "        print(received.attributes)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"{}"
