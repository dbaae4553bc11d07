"""A bridge as a service uses it: over memory, with an SQLite database."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from posthouse import bridge as module
from posthouse.bridge import (
    Bridge,
    ConfigurationError,
    Event,
    NewEvent,
    PartialFailure,
    PublishFailed,
    TooLarge,
    current_event,
)
from posthouse.bridge import default as default_module
from posthouse.bridge.settings import PRESETS
from posthouse.bridge.transport import Plan, Stored, Transport
from tests.bridge.shop import SHIPMENTS, TABLES, Service, ship


def a_bridge(**given: Any) -> Bridge:
    return Bridge(**{"url": "memory://", "app": "api", "destination": "worker", **given})


async def test_an_event_is_sent_when_its_transaction_is_committed(tmp_path: Path) -> None:
    api, worker = Service(tmp_path, "api", "worker"), Service(tmp_path, "worker", "api")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        worker.bridge.publish("shipment.planned", {"id": event.resource_id}, session=session)

    async with api.bridge.testing(worker.bridge) as t:
        with Session(api.engine) as session:
            api.bridge.publish("order.created", {"id": 1}, session=session)
            session.rollback()
        with Session(api.engine) as session, session.begin():
            id = api.bridge.publish("order.created", {"id": 2}, session=session)
        await t.settle()
        [sent] = t.published(type="order.created")
        assert (sent.id, sent.payload, sent.resource_type, sent.key) == (
            id, {"id": 2}, "order", "order/2"
        )  # fmt: skip
        assert len(t.published(type="shipment.planned", payload={"id": "2"})) == 1
    assert worker.orders == ["2"]


async def test_a_cursor_of_the_db_api_writes_events_too(tmp_path: Path) -> None:
    api = Service(tmp_path, "api", "worker")
    async with api.bridge.testing() as t:
        connection = sqlite3.connect(tmp_path / "api.db")
        cursor = connection.cursor()
        api.bridge.publish("order.created", {"id": 1}, session=cursor)
        connection.rollback()
        api.bridge.publish("order.created", {"id": 2}, session=cursor)
        connection.commit()
        connection.close()
        await t.settle()
        assert [event.payload for event in t.published()] == [{"id": 2}]


async def test_an_asynchronous_session_is_committed_with_the_event(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'worker.db'}")
    worker = Bridge("memory://", app="worker", destination="api", database=engine, preset="test")

    @worker.consumer(concurrency=4)
    async def on_event(event: Event, session: AsyncSession) -> None:
        await session.execute(SHIPMENTS.insert().values(order_id=event.resource_id))
        worker.publish("shipment.planned", {"id": event.resource_id}, session=session)

    async with engine.begin() as connection:
        await connection.run_sync(TABLES.create_all)
    async with worker.testing() as t:
        event = await t.deliver("order.created", {"id": 1})
        await t.redeliver(event)
        await t.settle()
        assert len(t.published(type="shipment.planned")) == 1
        async with AsyncSession(engine) as session:
            assert len((await session.execute(SHIPMENTS.select())).all()) == 1
    await engine.dispose()


async def test_an_event_without_an_outbox_is_stored_when_publish_returns() -> None:
    bridge = a_bridge()
    async with bridge.testing() as t:
        published = await bridge.publish("order.created", {"id": 1}, event_id="one")
        assert (published.event_id, published.subject) == ("one", "api.sync.worker")
        many = await bridge.publish_many([NewEvent("order.paid", {"id": n}) for n in range(3)])
        assert [each.event_id for each in many] == [e.id for e in t.published(type="order.paid")]


async def test_an_event_that_cannot_be_published_is_refused_at_once(tmp_path: Path) -> None:
    api = Service(tmp_path, "api", "worker", payload_bytes_max=1_000)
    with Session(api.engine) as session:
        with pytest.raises(TooLarge, match="reference"):
            api.bridge.publish("order.created", {"text": "x" * 2_000}, session=session)
        with pytest.raises(PublishFailed, match="JSON"):
            api.bridge.publish("order.created", {"text": object()}, session=session)
    with pytest.raises(ConfigurationError, match="database"):
        a_bridge().publish("order.created", {}, session=object())


async def test_of_many_events_those_that_fail_are_told() -> None:
    bridge = a_bridge()
    async with bridge.testing():
        good, bad = NewEvent("order.created", {}), NewEvent("order.created", {}, subject="q" * 250)
        failing = Bridge(
            "memory://", app="api", destination="worker", transport=cast(Transport, _Refusing())
        )
        with pytest.raises(PartialFailure) as caught:
            await failing.publish_many([good, bad])
        assert (list(caught.value.failures), list(caught.value.ids)) == ([1], [0])
        with pytest.raises(PublishFailed):
            await failing.publish("order.created", {}, subject="q" * 250)
        await failing.close()


class _Refusing:
    """A transport that refuses subjects that begin with q."""

    name, body_bytes_max, wakes = "refusing", 1_000_000, False

    async def publish(self, events: Any) -> list[Any]:
        return [
            PublishFailed("no", transient=False) if event.subject[0] == "q" else Stored(1, False)
            for event in events
        ]

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def plan(self, wanted: object) -> Any:
        return Plan([])


def test_of_several_destinations_one_must_be_named() -> None:
    bridge = a_bridge(destination=["worker", "mailer"])
    with pytest.raises(ConfigurationError, match="several destinations"):
        asyncio.run(_publish(bridge))
    with pytest.raises(ConfigurationError, match="mailer"):
        asyncio.run(_publish(bridge, destination="nobody"))


async def _publish(bridge: Bridge, **how: Any) -> None:
    await bridge.publish("order.created", {"id": 1}, **how)


async def test_topics_reach_all_who_want_to_know(tmp_path: Path) -> None:
    def a_service(app: str, destination: list[str]) -> Bridge:
        return Bridge("memory://", app=app, destination=destination, topics=True, preset="test")

    orders, mails, bills = (
        a_service("orders", []), a_service("mails", ["orders"]), a_service("bills", ["orders"])
    )  # fmt: skip
    got: list[tuple[str, str]] = []

    @mails.consumer()
    async def on_mail(event: Event) -> None:
        got.append(("mails", event.type))

    @bills.consumer("orders")
    async def on_bill(event: Event) -> None:
        got.append(("bills", event.type))

    async with orders.testing(mails, bills) as t:
        await orders.publish("order.created", {"id": 1})
        await t.settle()
    assert sorted(got) == [("bills", "order.created"), ("mails", "order.created")]


async def test_a_trace_goes_on_through_a_handler(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        assert current_event() is event
        worker.bridge.publish("shipment.planned", {}, session=session)

    async with worker.bridge.testing() as t:
        event = await t.deliver("order.created", {"id": 1})
        await t.settle()
        assert [each.trace_id for each in t.published()] == [event.trace_id]
    assert current_event() is None


# Settings.


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"app": "a.b"}, "app"),
        ({"destination": ""}, "destination"),
        ({"destination": ["w", "w"]}, "destination"),
        ({"url": "localhost"}, "url"),
        ({"max_deliver": 0}, "max_deliver"),
        ({"max_deliver": 2.5}, "max_deliver"),
        ({"delays": ()}, "delays"),
        ({"delays": (-1.0,)}, "delays"),
        ({"mode": "both"}, "mode"),
        ({"inbox": "sometimes"}, "inbox"),
        ({"ack_wait": float("nan")}, "ack_wait"),
        ({"lanes": 0}, "lanes"),
        ({"preset": "prod"}, "preset"),
        ({"max_delivery": 3}, "max_delivery"),
        ({"tables": object()}, "tables"),
        ({"password": "secret"}, "password"),
        ({"url": "nats://n1", "sessions": True}, "sessions"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        a_bridge(**given)


def test_the_url_is_not_told_when_it_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        a_bridge(url="user:s3cret@localhost")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_bridge(preset: str) -> None:
    settings = a_bridge(preset=preset).settings
    assert {name: getattr(settings, name) for name in PRESETS[preset]} == dict(PRESETS[preset])


def test_a_bridge_is_made_from_the_environment() -> None:
    environment = {
        "POSTHOUSE_BRIDGE_URL": "nats://u:p@n1:4222,nats://n2:4222",
        "POSTHOUSE_BRIDGE_APP": "api", "POSTHOUSE_BRIDGE_DESTINATION": "worker, mailer",
        "POSTHOUSE_BRIDGE_PRESET": "staging", "POSTHOUSE_BRIDGE_AUTO_PROVISION": "no",
        "POSTHOUSE_BRIDGE_DELAYS": "1,2", "PATH": "/bin",
    }  # fmt: skip
    settings = Bridge.from_env(environment, ack_wait=7.0).settings
    assert (settings.app, settings.destination) == ("api", ("worker", "mailer"))
    assert (settings.max_deliver, settings.delays, settings.ack_wait) == (3, (1.0, 2.0), 7.0)
    assert settings.auto_provision is False
    assert "u:p" not in str(settings.shown())
    for name, value in (("LANES", "many"), ("LANE", "3")):
        with pytest.raises(ConfigurationError, match=f"POSTHOUSE_BRIDGE_{name}"):
            Bridge.from_env({**environment, f"POSTHOUSE_BRIDGE_{name}": value})


async def test_a_program_with_one_bridge_need_not_pass_it_around(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(default_module, "_bridge", None)
    with pytest.raises(ConfigurationError, match="configure"):
        module.publish("order.created", {})
    made = module.configure("memory://", app="api", destination="worker")
    got: list[str] = []

    @module.consumer(concurrency=2)
    async def on_event(event: Event) -> None:
        got.append(event.type)

    async with made.testing() as t:
        await module.publish("order.created", {})
        await t.deliver("shipment.planned", {})
        await t.settle()
        assert len(t.published()) == 1
    assert got == ["shipment.planned"]


def test_a_source_has_one_handler() -> None:
    bridge = a_bridge()
    bridge.consumer()(lambda event: None)
    with pytest.raises(ConfigurationError, match="handler already"):
        bridge.consumer("worker")
    with pytest.raises(ConfigurationError, match="no destination"):
        bridge.consumer("nobody")


# How it is run.


async def test_a_web_app_has_a_bridge_as_its_lifespan(tmp_path: Path) -> None:
    api = Service(tmp_path, "api", "worker")
    await api.bridge.create_tables()
    async with api.bridge.lifespan(object()):
        api.publish("order.created", {"id": 1})
        await api.bridge.storage.settle()
        assert (await api.bridge.storage.state())[0].pending == 0


def test_a_program_without_a_loop_has_a_twin(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api", url=f"memory://{tmp_path.name}-twin")
    api = Bridge(f"memory://{tmp_path.name}-twin", app="api", destination="worker")
    done = threading.Event()

    @worker.bridge.consumer()
    def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        done.set()

    worker.bridge.sync.create_tables()
    with worker.bridge.sync.running():
        assert api.sync.publish("order.created", {"id": 1}).subject == "api.sync.worker"
        assert done.wait(30)
        assert worker.bridge.sync.health(fresh=True).healthy
    api.sync.close()
    assert worker.orders == ["1"]


async def test_run_ends_when_it_is_stopped_and_settles_what_was_begun(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api", url=f"memory://{tmp_path.name}-run")
    api = Bridge(f"memory://{tmp_path.name}-run", app="api", destination="worker")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        worker.bridge.stop()
        ship(session, event)

    await worker.bridge.create_tables()
    await api.publish("order.created", {"id": 1})
    assert await worker.bridge.run() is True
    assert worker.orders == ["1"]
    await api.close()


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    default_module._bridge = None
