"""The test kit: crashes where a process can die, deliveries again, and the proof of a handler."""

from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, ConfigurationError, Event
from posthouse.bridge.testing import Where, subject_matches
from tests.bridge.shop import Service, ship


@pytest.mark.parametrize("where", ["mark", "commit", "ack"])
async def test_an_effect_happens_once_wherever_the_process_dies(
    where: Where, tmp_path: Path
) -> None:
    api, worker = Service(tmp_path, "api", "worker"), Service(tmp_path, "worker", "api")
    numbers: list[int] = []

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        numbers.append(1)
        ship(session, event)
        worker.bridge.publish("shipment.planned", {"id": event.resource_id}, session=session)

    async with api.bridge.testing(worker.bridge) as t:
        t.crash_before(where)
        api.publish("order.created", {"id": 1})
        await t.settle()
        assert len(t.published(type="shipment.planned")) == 1
        assert not t.dead
    assert worker.orders == ["1"]
    assert len(numbers) == (2 if where == "commit" else 1)


async def test_an_event_that_is_delivered_again_has_no_second_effect(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")

    @worker.bridge.consumer(concurrency=4)
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)

    async with worker.bridge.testing() as t:
        event = await t.deliver("order.created", {"id": 1})
        for _ in range(4):
            await t.redeliver(event)
        await t.settle()
    assert worker.orders == ["1"]
    assert worker.bridge.figures.value("bridge_inbox_duplicates_total") == 4


async def test_two_consumers_on_one_database_do_not_take_each_others_events_for_seen(
    tmp_path: Path,
) -> None:
    worker = Service(tmp_path, "worker", "api")
    mailer = Bridge(
        "memory://", app="mailer", destination="api", database=worker.engine, preset="test"
    )

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)

    @mailer.consumer()
    async def on_mail(event: Event, session: Session) -> None:
        ship(session, event)

    async with worker.bridge.testing(mailer) as t:
        await t.deliver("order.created", {"id": 1}, event_id="one", bridge=worker.bridge)
        await t.deliver("order.created", {"id": 1}, event_id="one", bridge=mailer)
        await t.settle()
    assert worker.orders == ["1", "1"]


async def test_a_safe_handler_is_proved(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        ship(session, event)
        worker.bridge.publish("shipment.planned", {}, session=session)

    async with worker.bridge.testing() as t:
        assert await t.prove(on_event, payload={"id": 1}) == []
    assert worker.orders == []  # the database is as it was


async def test_a_handler_that_sends_mails_is_found_to_send_them_twice(tmp_path: Path) -> None:
    worker, mails = Service(tmp_path, "worker", "api"), list[str]()

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        mails.append(event.id)
        ship(session, event)

    async with worker.bridge.testing() as t:
        [finding] = await t.prove(on_event, payload={"id": 1}, watch=lambda: mails)
    assert (finding.scenario, finding.times) == ("a crash before the commit", 2)
    assert "watched" in str(finding)


async def test_a_handler_with_a_transaction_of_its_own_is_found_to_write_twice(
    tmp_path: Path,
) -> None:
    worker = Service(tmp_path, "worker", "api", inbox="off")

    @worker.bridge.consumer()
    async def on_event(event: Event) -> None:
        with Session(worker.engine) as session, session.begin():
            ship(session, event)
        await worker.bridge.publish("shipment.planned", {})

    async with worker.bridge.testing() as t:
        findings = await t.prove(on_event, payload={"id": 1})
    assert {finding.scenario for finding in findings} == {
        "delivered twice", "a crash before the commit", "a crash before the acknowledgement"
    }  # fmt: skip
    assert {"the event shipment.planned"} < {finding.effect for finding in findings}


async def test_the_kit_tells_what_is_left_when_a_handler_does_not_end() -> None:
    bridge = Bridge("memory://", app="worker", destination="api", preset="test", drain_seconds=0.0)

    @bridge.consumer()
    async def on_event(event: Event) -> None:
        import asyncio

        await asyncio.Event().wait()

    async with bridge.testing() as t:
        event = await t.deliver("order.created", {})
        with pytest.raises(TimeoutError, match=event.id):
            await t.settle(within=0.1)


async def test_a_mistake_in_a_test_is_told(tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api")
    async with worker.bridge.testing() as t:
        with pytest.raises(ConfigurationError, match="crash"):
            t.crash_before("lunch")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="no handler"):
            await t.prove(test_a_mistake_in_a_test_is_told)
        with pytest.raises(ConfigurationError, match="close it"):
            async with worker.bridge.testing():
                pass


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True), ("a.*", "a.b", True), ("a.>", "a.b.c", True), ("a.>", "a", False),
        ("a.b", "a.b.c", False), ("a.b.c", "a.b", False), ("*.b", "a.b", True), ("b", "a", False),
    ],
)  # fmt: skip
def test_subjects_match_as_in_nats(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern, subject) is matches
