"""The test kit: crashes where a process can die, deliveries again, and the proof of a handler."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, ConfigurationError, Event
from posthouse.bridge.testing import Where, subject_matches
from posthouse.pytest_plugin import NatsServer
from tests.bridge.shop import SHIPMENTS, Service, ship


@pytest.fixture(params=["memory", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """What carries events: the broker in memory, and a real server of NATS."""
    if request.param == "memory":
        return "memory://"
    server: NatsServer = request.getfixturevalue("posthouse_nats")
    return server.url


@pytest.mark.parametrize("where", ["mark", "commit", "ack"])
async def test_an_effect_happens_once_wherever_the_process_dies(
    where: Where, url: str, tmp_path: Path
) -> None:
    api = Service(tmp_path, "api", "worker", url=url)
    worker = Service(tmp_path, "worker", "api", url=url)
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


async def test_an_event_that_is_delivered_again_has_no_second_effect(
    url: str, tmp_path: Path
) -> None:
    worker = Service(tmp_path, "worker", "api", url=url)

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


async def test_a_safe_handler_is_proved(url: str, tmp_path: Path) -> None:
    worker = Service(tmp_path, "worker", "api", url=url)

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


async def test_dead_letters_are_found_replayed_and_removed(url: str, tmp_path: Path) -> None:
    worker, closed = Service(tmp_path, "worker", "api", url=url), [True]

    @worker.bridge.consumer()
    async def on_event(event: Event, session: Session) -> None:
        if closed:
            raise ValueError("closed")
        ship(session, event)

    async with worker.bridge.testing() as t:
        for number in range(3):
            await t.deliver("order.created", {"id": number})
        await t.deliver_bytes(b"no JSON")
        await t.settle()
        letters = await worker.bridge.dead_letters()
        reasons = sorted(letter.reason for letter in letters)
        assert reasons == ["malformed_json", *["unrecoverable"] * 3]
        closed.clear()
        [bytes_] = [letter for letter in letters if letter.reason == "malformed_json"]
        assert bytes_.body == b"no JSON"
        await worker.bridge.drop(bytes_)
        for letter in letters:
            if letter is not bytes_:
                await worker.bridge.replay(letter)
        async with asyncio.timeout(30):
            while len(worker.orders) < 3:  # noqa: ASYNC110 (the kit does not see replays)
                await asyncio.sleep(0.02)  # slept: between two looks
        assert await worker.bridge.dead_letters() == []
    assert sorted(worker.orders) == ["0", "1", "2"]


async def test_events_of_a_key_keep_their_order_over_relay_and_consumer(
    url: str, tmp_path: Path
) -> None:
    api = Service(tmp_path, "api", "worker", url=url)
    worker = Service(tmp_path, "worker", "api", url=url, max_deliver=5)
    failed: set[str] = set()

    @worker.bridge.consumer(concurrency=4, ordered=True)
    async def on_event(event: Event, session: Session) -> None:
        if event.payload["n"] % 7 == 0 and event.id not in failed:
            failed.add(event.id)
            raise ConnectionError
        session.execute(SHIPMENTS.insert().values(order_id=f"{event.key}:{event.payload['n']}"))

    async with api.bridge.testing(worker.bridge) as t:
        for number in range(40):
            api.publish("order.changed", {"n": number}, key=f"k{number % 4}")
        await t.settle()
        assert not t.dead
    for key in range(4):
        mine = [int(each.partition(":")[2]) for each in worker.orders if each[:2] == f"k{key}"]
        assert mine == [number for number in range(40) if number % 4 == key]
