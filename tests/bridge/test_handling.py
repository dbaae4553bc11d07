"""What a handler is given, and what becomes of an event by how the handler ends."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from sqlalchemy.orm import Session

from posthouse.bridge import (
    Bridge,
    ConfigurationError,
    DeadLetter,
    Delays,
    Delivery,
    Drop,
    Event,
    Exponential,
    Retry,
    Unrecoverable,
    middleware,
)
from posthouse.bridge.handling import Handler, Options
from posthouse.bridge.tracing import Tracing
from tests.bridge.shop import Service, ship


class AsStruct(msgspec.Struct):
    id: int


class AsModel(pydantic.BaseModel):
    id: int


@dataclass
class AsDataclass:
    id: int


def a_bridge(**given: Any) -> Bridge:
    return Bridge("memory://", app="worker", destination="api", preset="test", **given)


# Arguments.


@pytest.mark.parametrize("kind", [AsStruct, AsModel, AsDataclass, dict[str, int]])
async def test_a_payload_is_read_as_the_type_of_the_parameter(kind: Any) -> None:
    bridge, got = a_bridge(), []

    async def on_order(order: Any, delivery: Delivery) -> None:
        got.append((order, delivery.number))

    on_order.__annotations__["order"] = kind
    bridge.consumer()(on_order)
    async with bridge.testing() as t:
        await t.deliver("order.created", {"id": 7})
        await t.deliver("order.created", {"id": "none"})
        await t.settle()
        [dead] = t.dead
    [(order, number)] = got
    assert isinstance(order, dict if kind == dict[str, int] else kind)
    assert number == 1
    assert dead.reason == "unrecoverable"
    assert "none" not in str(dead.context["error_message"])  # the payload is not told


async def test_a_plain_function_runs_in_a_thread_with_the_session_of_its_transaction(
    tmp_path: Path,
) -> None:
    worker, threads = Service(tmp_path, "worker", "api"), []

    @worker.bridge.consumer()
    def on_event(event: Event, session: Session) -> None:
        threads.append(threading.current_thread())
        ship(session, event)
        if event.payload["fails"]:
            raise RuntimeError

    async with worker.bridge.testing() as t:
        await t.deliver("order.created", {"id": 1, "fails": False})
        await t.deliver("order.created", {"id": 2, "fails": True})
        await t.settle()
    assert worker.orders == ["1"]
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (lambda event, other: None, "beside the event"),
        (lambda event, *, other: None, "other"),
        (lambda event, session: None, "database"),
    ],
)
async def test_a_handler_whose_parameters_nobody_gives_is_refused(
    handler: Callable[..., None], told: str
) -> None:
    bridge = a_bridge()
    bridge.consumer()(handler)
    with pytest.raises(ConfigurationError, match=told):
        async with bridge.running():
            pass


async def test_a_batch_is_a_list_in_one_transaction(tmp_path: Path) -> None:
    worker, sizes = Service(tmp_path, "worker", "api"), []
    free = asyncio.Event()

    @worker.bridge.consumer(batch=50)
    async def on_events(events: list[Event], session: Session) -> None:
        await free.wait()
        sizes.append(len(events))
        for event in events:
            if event.payload["id"] == 13:
                raise RuntimeError
            ship(session, event)

    async with worker.bridge.testing() as t:
        for number in range(20):
            await t.deliver("order.created", {"id": number})
        free.set()
        await t.settle()
        assert [dead.event.payload["id"] for dead in t.dead if dead.event] == [13]
    assert sorted(worker.orders, key=int) == [str(n) for n in range(20) if n != 13]
    assert max(sizes) > 1


# Endings.


@pytest.mark.parametrize(
    ("error", "reason", "deliveries"),
    [
        (Unrecoverable("never"), "unrecoverable", 1),
        (ValueError("bad"), "unrecoverable", 1),
        (NameError("bad"), "unrecoverable", 1),
        (DeadLetter("unknown customer"), "unknown customer", 1),
        (RuntimeError("password=hunter2"), "max_deliver_exceeded", 2),
        (Retry(3), "max_deliver_exceeded", 2),
    ],
)
async def test_an_event_that_fails_goes_to_the_dead_letters(
    error: Exception, reason: str, deliveries: int
) -> None:
    bridge, numbers = a_bridge(), []

    @bridge.consumer()
    async def on_event(event: Event, delivery: Delivery) -> None:
        numbers.append(delivery.number)
        raise error

    async with bridge.testing() as t:
        event = await t.deliver("order.created", {"id": 1})
        await t.settle()
        [dead] = t.dead
    assert (dead.reason, numbers) == (reason, list(range(1, deliveries + 1)))
    assert dead.event is not None
    assert (dead.event.id, dead.event.payload) == (event.id, {"id": 1})
    assert dead.context["event_id"] == event.id
    assert dead.context["error_class"] == type(error).__name__
    assert dead.context["deliveries"] == deliveries
    assert dead.context["original_subject"] == "api.sync.worker"
    assert "hunter2" not in str(dead.context)
    assert f'bridge_events_total{{outcome="dead"}} {1}' in bridge.metrics()


async def test_a_dropped_event_is_done_without_its_effects(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        raise Drop("cancelled")

    async with worker.bridge.testing() as t:
        await t.deliver("order.created", {"id": 1})
        await t.settle()
        assert not t.dead
    assert worker.orders == []


async def test_what_is_no_event_is_a_dead_letter() -> None:
    bridge = a_bridge()
    bridge.consumer()(lambda event: None)
    async with bridge.testing() as t:
        await t.deliver_bytes(b"no JSON")
        await t.deliver_bytes(b'{"event_id": "x"}')
        await t.settle()
        assert [dead.reason for dead in t.dead] == ["malformed_json"] * 2


async def test_an_event_that_kills_the_process_does_so_only_as_often_as_it_is_delivered() -> None:
    bridge, runs = a_bridge(), []

    @bridge.consumer()
    async def on_event(event: Event) -> None:
        runs.append(event)

    async with bridge.testing() as t:
        for _ in range(bridge.settings.max_deliver):
            t.crash_before("commit")
        await t.deliver("order.created", {"id": 1})
        await t.settle()
        [dead] = t.dead
    assert (dead.reason, len(runs)) == ("max_deliver_exceeded", bridge.settings.max_deliver)


async def test_a_retry_is_delayed_as_the_schedule_or_the_handler_says() -> None:
    bridge = a_bridge(max_deliver=5)

    @bridge.consumer(retry=Delays(7, 9))
    async def on_event(event: Event, delivery: Delivery) -> None:
        if delivery.number == 2:
            raise Retry(30)
        if delivery.number < 5:
            raise ConnectionError

    async with bridge.testing() as t:
        await t.deliver("order.created", {"id": 1})
        await t.settle()
        assert t.delays == [7, 30, 9, 9]
        assert not t.dead


@pytest.mark.parametrize(
    ("number", "error", "least", "most"),
    [
        (1, ConnectionError(), 1, 1),
        (4, TimeoutError(), 4, 4),
        (1, KeyError(), 2, 2),
        (3, KeyError(), 8, 8),
        (40, KeyError(), 60, 60),
    ],
)
def test_exponential_delays_are_shorter_for_transient_errors(
    number: int, error: Exception, least: float, most: float
) -> None:
    assert least * 0.9 <= Exponential().delay(number, error) <= most * 1.1
    caused = RuntimeError()
    caused.__cause__ = ConnectionError()
    assert Exponential(jitter=0).delay(1, caused) == 1


async def test_a_handler_that_takes_too_long_is_ended_and_tried_again(tmp_path: Path) -> None:
    worker, ended = Service(tmp_path, "worker", "api", max_deliver=9), list[Event]()

    @worker.bridge.consumer(timeout=0.5)
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        if not ended:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(event)

    async with worker.bridge.testing() as t:
        await t.deliver("order.created", {"id": 1})
        await t.settle()
    assert (worker.orders, len(ended)) == (["1"], 1)


async def test_nothing_of_a_plain_function_that_took_too_long_is_committed(tmp_path: Path) -> None:
    worker, late = Service(tmp_path, "worker", "api", max_deliver=9), list[Event]()

    @worker.bridge.consumer(timeout=0.5)
    def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        if not late:
            late.append(event)
            threading.Event().wait(0.6)  # slept: a function that computes cannot be ended

    async with worker.bridge.testing() as t:
        await t.deliver("order.created", {"id": 1})
        await t.settle()
    assert worker.orders == ["1"]


def test_only_a_handler_within_its_limits_is_made() -> None:
    for given in ({"concurrency": 0}, {"batch": -1}, {"timeout": 0.0}):
        with pytest.raises(ConfigurationError, match=next(iter(given))):
            Options("api", Delays(1), **given)
    handler = Handler(lambda missing_kind: None, Options("api", Delays(1)))
    handler.check()


# Middleware.


async def test_middleware_runs_around_the_handler_in_its_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bridge, order, told = a_bridge(max_deliver=2), [], []

    @bridge.use
    async def outer(event: Event, call_next: Callable[[Event], Any]) -> object:
        order.append("outer")
        return await call_next(event)

    bridge.use(middleware.logging())
    bridge.use(middleware.metrics(lambda *given: told.append(given)))
    bridge.use(middleware.map_errors({KeyError: Drop("known"), OSError: Retry(0)}))

    @bridge.consumer()
    async def on_event(event: Event, delivery: Delivery) -> None:
        order.append("handler")
        if event.type == "a.dropped":
            raise KeyError
        if delivery.number == 1:
            raise OSError

    caplog.set_level(logging.INFO, "posthouse.bridge.events")
    async with bridge.testing() as t:
        await t.deliver("a.dropped", {})
        await t.settle()
        await t.deliver("b.retried", {})
        await t.settle()
        assert not t.dead
    assert order == ["outer", "handler"] * 3
    assert [(type, outcome) for type, outcome, _ in told] == [
        ("a.dropped", "Drop"), ("b.retried", "Retry"), ("b.retried", "ok")
    ]  # fmt: skip
    assert "b.retried" in caplog.text


async def test_middleware_may_decide_by_what_it_returns() -> None:
    bridge, ran = a_bridge(), []

    @bridge.use
    async def gate(event: Event, call_next: Callable[[Event], Any]) -> object:
        return DeadLetter("closed") if event.type == "a.closed" else await call_next(event)

    bridge.use(middleware.timeout(0.01))

    @bridge.consumer()
    async def on_event(event: Event) -> None:
        ran.append(event.type)
        await asyncio.Event().wait()

    async with bridge.testing() as t:
        await t.deliver("a.closed", {})
        await t.deliver("b.slow", {})
        await t.settle()
        assert sorted(dead.reason for dead in t.dead) == ["closed", "max_deliver_exceeded"]
        slow = next(dead for dead in t.dead if dead.reason != "closed")
    assert slow.context["error_class"] == "TimeoutError"
    assert ran == ["b.slow"] * 2


async def test_a_span_of_handling_is_linked_to_that_of_the_publish(tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    carried: dict[str, str] = {}
    spans = Tracing(provider)
    with spans.publishing("order.created", "api.sync.worker", carried, "e1"):
        pass
    bridge = a_bridge()
    bridge.use(middleware.tracing(provider))
    bridge.consumer()(lambda event: None)
    async with bridge.testing() as t:
        await t.deliver("order.created", {}, headers=carried)
        await t.settle()
    published, processed = exporter.get_finished_spans()
    assert published.context is not None
    assert [link.context.span_id for link in processed.links] == [published.context.span_id]
    assert processed.context is not None
    assert processed.context.trace_id == published.context.trace_id
    with spans.relaying([carried]):
        pass
    relayed = exporter.get_finished_spans()[-1]
    assert [link.context.span_id for link in relayed.links] == [published.context.span_id]
