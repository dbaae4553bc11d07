"""What every transport must do, on NATS JetStream, in memory, and on a real Posthouse."""

import asyncio
import itertools
import time

import pytest

from posthouse.bridge.dead_letters import CONTEXT_CHARS_MAX
from posthouse.bridge.errors import ConfigurationError, PublishFailed, TooLarge
from posthouse.bridge.names import Names
from posthouse.bridge.transport import Ack, Bury, Extend, Nak, Stored
from posthouse.bridge.transports import transport_of
from tests.bridge.rigs import API, WORKER, Rig, an_event, ids, run

_numbers = itertools.count()


@pytest.fixture(params=["pull", "push", "memory", "posthouse"])
def rig(request: pytest.FixtureRequest) -> Rig:
    match request.param:
        case "pull" | "push" as how:
            return Rig(request.getfixturevalue("posthouse_nats").url, push=how == "push")
        case "memory":
            return Rig(f"memory://test{next(_numbers)}")
        case _:
            return Rig(request.getfixturevalue("posthouse_namespace").client_url)


def test_an_event_arrives_as_it_was_published(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish(
                "e1", body=b'{"a":1}', key="Köln 7",
                headers={"content-type": "application/json", "x-tenant": "shop"},
            )  # fmt: skip
            async with pair.deliveries() as taking:
                got = await taking.one()
                assert (got.id, got.body, got.number) == ("e1", b'{"a":1}', 1)
                assert (got.key, got.subject) == ("Köln 7", "api.sync.worker")
                assert got.consumer == "worker-workers"
                assert got.sequence > 0
                assert got.stream
                lower = {name.lower(): text for name, text in got.headers.items()}
                assert lower["content-type"] == "application/json"
                assert lower["x-tenant"] == "shop"
                await pair.worker.settle(got, Ack())
                assert await taking.within(0.2) is None

    run(use())


def test_an_id_that_is_published_twice_is_one_event(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            first = await pair.api.publish([an_event("e1", key="k"), an_event("e1", key="k")])
            again = await pair.api.publish([an_event("e1", key="k"), an_event("e2", key="k")])
            assert all(isinstance(answer, Stored) for answer in (*first, *again))
            if rig.is_nats:  # queues do not tell
                told = [isinstance(each, Stored) and each.duplicate for each in (*first, *again)]
                assert told == [False, True, True, False]
            async with pair.deliveries() as taking:
                assert ids(await taking.acked(pair.worker, 2)) == ["e1", "e2"]
                assert await taking.within(0.2) is None

    run(use())


def test_events_of_a_key_arrive_in_their_order(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            sent = [an_event(f"{key}{at}", key=key) for at in range(40) for key in ("a", "b")]
            assert all(isinstance(each, Stored) for each in await pair.api.publish(sent))
            async with pair.deliveries(window=4) as taking:
                got = ids(await taking.acked(pair.worker, 80))
            for key in ("a", "b"):
                assert [id for id in got if id[0] == key] == [f"{key}{at}" for at in range(40)]

    run(use())


def test_a_failed_event_comes_again_not_before_its_delay(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1")
            async with pair.deliveries() as taking:
                await pair.worker.settle(await taking.one(), Nak(0.3))
                begun = time.monotonic()
                again = await taking.one()
                assert time.monotonic() - begun > 0.25
                assert (again.id, again.number) == ("e1", 2)
                await pair.worker.settle(again, Nak(0.0))
                third = await taking.one()
                assert (third.id, third.number) == ("e1", 3)
                await pair.worker.settle(third, Ack())
                assert await taking.within(0.2) is None

    run(use())


def test_an_event_that_waits_does_not_hold_up_those_of_other_keys(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("a1", key="a")
            async with pair.deliveries(window=2) as taking:
                await pair.worker.settle(await taking.one(), Nak(30.0))
                await pair.publish("b1", "b2", key="b")
                assert ids(await taking.acked(pair.worker, 2)) == ["b1", "b2"]

    run(use())


def test_an_event_that_nobody_settles_comes_again(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair(ack_wait=1.0) as pair:
            await pair.publish("e1")
            async with rig.open(WORKER) as other, pair.deliveries(by=other) as taking:
                assert (await taking.one()).number == 1
            async with pair.deliveries() as taking:
                again = await taking.one()
                assert again.id == "e1"
                await pair.worker.settle(again, Ack())

    run(use())


def test_an_event_that_is_extended_stays_with_its_consumer(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair(ack_wait=1.0) as pair:
            await pair.publish("e1")
            async with pair.deliveries() as taking:
                held = await taking.one()
                for _ in range(8):
                    await pair.worker.settle(held, Extend())
                    assert await taking.within(0.3) is None
                await pair.worker.settle(held, Ack())
                assert await taking.within(1.2) is None

    run(use())


def test_a_dead_letter_is_kept_though_its_event_has_the_same_id(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1", body=b"[1]", key="k", headers={"x-tenant": "shop"})
            async with pair.deliveries() as taking:
                await pair.worker.settle(await taking.one(), Nak(0.0))
                context = {
                    "event_id": "e1",
                    "error_class": "ValueError",
                    "error_message": "ü" * 2000,
                }
                await pair.worker.settle(await taking.one(), Bury("unrecoverable", context))
                assert await taking.within(0.2) is None
            [letter] = await pair.dead()
            assert (letter.body, letter.reason, letter.deliveries) == (b"[1]", "unrecoverable", 2)
            assert letter.subject == "api.sync.worker"
            assert letter.headers["x-tenant"] == "shop"
            assert letter.context["event_id"] == "e1"
            assert letter.context["error_class"] == "ValueError"
            assert len(str(letter.context["error_message"])) < CONTEXT_CHARS_MAX

    run(use())


def test_a_dead_letter_is_replayed_to_where_it_came_from(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1", "e2", "e3", key="k")
            async with pair.deliveries() as taking:
                for _ in range(3):
                    got = await taking.one()
                    await pair.worker.settle(got, Bury("unrecoverable", {"event_id": got.id}))
                first, second, third = await pair.dead()
                await pair.worker.drop(second)
                await pair.worker.replay(third, "e3-again")
                again = await taking.one()
                assert (again.id, again.number, again.key) == ("e3-again", 1, "k")
                lower = {name.lower() for name in again.headers}
                assert "x-replayed" in lower
                assert "x-dead-letter" not in lower
                await pair.worker.settle(again, Ack())
            assert [letter.place for letter in await pair.dead()] == [first.place]
            with pytest.raises(Exception, match="not there any more"):
                await pair.worker.drop(second)

    run(use())


def test_no_more_than_the_window_is_unsettled(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish(*(f"e{at}" for at in range(10)))
            async with pair.deliveries(window=3) as taking:
                held = [await taking.one() for _ in range(3)]
                assert await taking.within(0.3) is None
                await pair.worker.settle(held[0], Ack())
                held[0] = await taking.one()
                assert await taking.within(0.2) is None
                for delivery in held:
                    await pair.worker.settle(delivery, Ack())
                await taking.acked(pair.worker, 6)

    run(use())


def test_consumers_of_one_name_share_the_events(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair, rig.open(WORKER) as other:
            got: list[str] = []

            async def take(by: object) -> None:
                transport = pair.worker if by is None else other
                async with pair.deliveries(4, transport) as taking:
                    while len(got) < 60:
                        delivery = await taking.within(0.2)
                        if delivery is not None:
                            got.append(delivery.id)
                            await transport.settle(delivery, Ack())

            taking = [asyncio.ensure_future(take(each)) for each in (None, other)]
            await pair.publish(*(f"e{at}" for at in range(60)))
            await asyncio.gather(*taking)
            assert sorted(got) == sorted(f"e{at}" for at in range(60))

    run(use())


def test_what_was_not_handed_out_goes_to_another_at_once(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair, rig.open(WORKER) as other:
            await pair.publish(*(f"e{at}" for at in range(6)))
            async with pair.deliveries(6, other) as taking:
                held = await taking.one()
            # It can still be settled, and nobody has to wait for the others' locks.
            await other.settle(held, Ack())
            async with pair.deliveries() as taking:
                got = await taking.acked(pair.worker, 5)
                assert sorted([*ids(got), held.id]) == [f"e{at}" for at in range(6)]
                assert max(each.number for each in got) <= 2  # given back once

    run(use())


def test_an_event_that_is_too_large_is_refused_alone(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            answers = await pair.api.publish([
                an_event("e1"), an_event("large", body=bytes(pair.api.body_bytes_max + 1)),
                an_event("e2"),
            ])  # fmt: skip
            assert isinstance(answers[0], Stored)
            assert isinstance(answers[1], TooLarge)
            assert not answers[1].transient
            assert isinstance(answers[2], Stored)

    run(use())


def test_an_event_for_nobody_is_refused_and_the_others_are_stored(rig: Rig) -> None:
    if rig.url.startswith("memory:"):
        pytest.skip("in memory queues come into being when they are used")

    async def use() -> None:
        async with rig.pair() as pair:
            answers = await pair.api.publish([an_event("e1", "no.such.queue"), an_event("e2")])
            assert isinstance(answers[0], PublishFailed)
            assert "bridge provision" in str(answers[0])
            assert isinstance(answers[1], Stored)

    run(use())


def test_an_event_that_is_delayed_does_not_come_before(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair, pair.deliveries() as taking:
            begun = time.monotonic()
            await pair.publish("late", delay=0.5)
            await pair.publish("e1")
            [first, second] = await taking.acked(pair.worker, 2)
            assert ids([first, second]) == ["e1", "late"]
            assert time.monotonic() - begun > 0.4
            assert (first.number, second.number) == (1, 1)

    run(use())


def test_a_plan_is_applied_once_and_differs_no_more(rig: Rig) -> None:
    async def use() -> None:
        wanted = rig.wanted(WORKER, both_sides=True)
        async with rig.open(WORKER) as worker:
            plan = await worker.plan(wanted)
            assert {step.act for step in plan.steps} == {"create"}
            assert all(step.reason for step in plan.steps)
            await worker.apply(plan)
            assert (await worker.plan(wanted)).changes == []
            async with rig.open(API) as api:
                assert (await api.plan(rig.wanted(API, both_sides=True))).changes == []

    run(use())


def test_a_hint_wakes_those_who_wait_for_its_channel(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            woken = asyncio.Event()

            async def wait() -> None:
                async for _ in pair.worker.woken("api.outbox"):
                    woken.set()

            waiting = asyncio.ensure_future(wait())
            while not woken.is_set():
                await pair.api.wake("api.other")
                await pair.api.wake("api.outbox")
                await asyncio.sleep(0.01)  # slept: a hint is lost on who does not listen yet
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    run(use())


def test_each_service_gets_the_events_of_a_topic(rig: Rig) -> None:
    shop = Names("shop", topics=True)
    readers = [Names(name, ("shop",), topics=True) for name in ("mail", "billing")]

    async def use() -> None:
        async with rig.open(shop) as publisher:
            opened = []
            for names in readers:
                transport = rig.transport(names)
                await transport.open()
                wanted = rig.wanted(names)
                await transport.apply(await transport.plan(wanted))
                opened.append((transport, wanted))
            types = ["order.created", "order.paid"]
            sent = [an_event(f"e-{each}", shop.subject_to("", each)) for each in types]
            assert all(isinstance(each, Stored) for each in await publisher.publish(sent))
            for transport, wanted in opened:
                got = []
                async for delivery in transport.deliveries(wanted.sources[0], 4):
                    got.append((delivery.id, delivery.subject))
                    if len(got) == 1:
                        await transport.settle(delivery, Bury("unrecoverable", {}))
                    else:
                        await transport.settle(delivery, Ack())
                        break
                assert sorted(got) == [
                    ("e-order.created", "shop.events.order.created"),
                    ("e-order.paid", "shop.events.order.paid"),
                ]
                dead = [letter async for letter in transport.dead_letters(wanted)]
                assert [letter.subject for letter in dead] == [got[0][1]]
                await transport.close()

    run(use())


def test_the_health_tells_what_waits(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1", "e2")
            health = await pair.worker.health(pair.wanted)
            assert (health.connected, health.state, health.problem) == (True, "connected", "")
            assert health.since <= time.time()
            assert float(str(health.facts["rtt_ms"])) >= 0
            assert "'pending': 2" in str(health.facts)
        after = await pair.worker.health(pair.wanted)
        assert (after.connected, after.state) == (False, "disconnected")

    run(use())


def test_a_transport_that_is_closed_ends_its_deliveries(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:

            async def consume() -> int:
                return len([each async for each in pair.worker.deliveries(pair.source, 4)])

            consuming = asyncio.ensure_future(consume())
            await pair.worker.health(pair.wanted)
            await pair.worker.close()
            assert await consuming == 0

    run(use())


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("http://localhost", {}, "begins with one of nats://"),
        ("nats://", {}, "no host"),
        ("nats://a:b:c", {}, "no host"),
        ("nats://n1,http://n2", {}, "no host"),
        (["nats://n1", "tls://n2"], {}, "begin alike"),
        ("nats://n1", {"sessions": True}, "sessions are of queues"),
        ("nats://n1", {"monitor": "n1:8222"}, "monitor must be a URL"),
        ("memory://", {"monitor": "x"}, "monitor: only a NATS transport"),
        ("posthouse://host:99999", {}, "url"),
    ],
)  # fmt: skip
def test_a_url_or_setting_that_cannot_be_is_refused(
    url: str, options: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        transport_of(url, stream="shop", dead_letters=API.dead_letters, **options)  # type: ignore[arg-type]
