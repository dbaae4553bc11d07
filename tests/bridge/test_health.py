"""How a bridge is told to be, for people, programs and monitoring."""

import json
import re
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, Event
from tests.bridge.shop import Service, ship


async def test_a_bridge_that_works_is_healthy(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)

    async with worker.bridge.testing() as t:
        await t.deliver("order.created", {"id": 1})
        await t.settle()
        health = await worker.bridge.health(fresh=True)
        told = health.as_dict()
    assert health.healthy, health.problems
    assert told["connection"]["connected"] is True
    assert told["outbox"]["pending"] == 0
    assert len(told["outbox"]["relays"]) == 1
    assert told["inbox"] == {"rows": 1, "processing": 0, "failed": 0}
    assert told["handling"]["outcomes"] == {"done": 1}
    config = told["config"]
    assert (config["app_name"], config["use_outbox"], config["use_dlq"]) == ("worker", True, True)
    assert told["performance"]["message_processing_time_ms"] > 0
    assert json.loads(json.dumps(told)) == told


def test_the_settings_are_told_without_secrets() -> None:
    bridge = Bridge(
        "nats://ann:s3cret@n1,bob:s3cret@n2", app="api", destination="worker", password="s3cret"
    )
    told = json.dumps(bridge.settings.shown())
    assert "s3cret" not in told + repr(bridge.settings)
    assert "nats://n1,n2" in told


async def test_rows_that_nobody_relays_are_a_problem(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api", relay_overdue=60.0, health_seconds=30.0)
    await worker.bridge.create_tables()
    worker.publish("shipment.planned", {"id": 1})
    assert (await worker.bridge.health()).healthy
    with worker.engine.begin() as connection:
        connection.execute(
            sql.text("update posthouse_outbox set enqueued_at = datetime('now', '-2 hours')")
        )
    assert (await worker.bridge.health()).healthy  # it is kept for a while
    health = await worker.bridge.health(fresh=True)
    assert not health.healthy
    assert "Nobody relays" in health.problems[0]
    assert "bridge_outbox_pending 1\n" in worker.bridge.metrics()
    assert re.search(r"bridge_outbox_oldest_seconds 7\d\d\d", worker.bridge.metrics())
    await worker.bridge.close()


async def test_what_cannot_be_reached_is_a_problem_and_no_error(tmp_path: Path) -> None:
    bridge = Bridge(
        "posthouse://localhost:1?operation_timeout=1", app="worker", destination="api",
        database=f"sqlite:///{tmp_path / 'none.db'}", connect_attempts=1,
    )  # fmt: skip
    health = await bridge.health()
    assert not health.healthy
    assert len(health.problems) == 2
    assert "database" in health.problems[1]
    assert health.connection["connected"] is False
    await bridge.close()


async def test_a_check_names_what_does_not_fit(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api", keep_seen=60.0)
    problems = await worker.bridge.check()
    assert len([each for each in problems if "There is no table" in each]) == 4
    await worker.bridge.create_tables()
    [problem] = await worker.bridge.check()
    assert "keep_seen=60 s" in problem
    assert await Service(tmp_path, "api", "worker").bridge.check()
    await worker.bridge.close()


def test_a_pool_that_is_too_small_for_the_handlers_is_known() -> None:
    url = "postgresql+psycopg://nobody@localhost/none"
    bridge = Bridge("memory://", app="api", destination="worker", database=url)
    assert bridge.storage.connections_max == 15
