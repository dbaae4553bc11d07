"""What is NATS's alone: outages, permissions, streams of others, and the gem's own messages."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.bridge.envelope import decode, encode, outgoing
from posthouse.bridge.errors import BridgeError, NotPermitted, PublishFailed, TopologyConflict
from posthouse.bridge.jetstream import pulling, pushing, topology
from posthouse.bridge.jetstream.overlap import conflict, covers, overlaps, told
from posthouse.bridge.jetstream.permissions import permissions
from posthouse.bridge.jetstream.words import read_ack_subject, read_denied
from posthouse.bridge.names import Names
from posthouse.bridge.transport import Ack, Bury, Nak, Stored, Topology, Transport
from posthouse.bridge.transports import transport_of
from posthouse.pytest_plugin import NatsServer, find_nats_server
from tests.bridge.rigs import API, WORKER, Rig, an_event, ids, run
from tests.bridge.test_envelope import RUBY
from tests.client.proxy import Proxy

GEM_DEAD_CONTEXT = {
    "event_id": "e1", "reason": "max_deliver_exceeded", "error_class": "StandardError",
    "error_message": "no", "deliveries": 5, "original_subject": "api.sync.worker",
    "sequence": 4, "consumer": "worker-workers", "stream": "shop",
    "published_at": "2024-01-01T00:00:00Z",
}  # fmt: skip


@pytest.fixture
def rig(posthouse_nats: NatsServer) -> Rig:
    return Rig(posthouse_nats.url)


@pytest.fixture(params=["pull", "push"])
def fed(request: pytest.FixtureRequest, posthouse_nats: NatsServer) -> Rig:
    return Rig(posthouse_nats.url, push=request.param == "push")


async def api_of(client: Any, what: str, form: object = None) -> dict[str, Any]:
    body = b"" if form is None else json.dumps(form).encode()
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{what}", body)).data)
    return answer


# Outages.


def test_a_consumer_goes_on_after_the_server_was_killed(
    fed: Rig, posthouse_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "posthouse.bridge")

    async def use() -> None:
        async with fed.pair() as pair, pair.deliveries() as taking:
            await pair.publish("before")
            await taking.acked(pair.worker, 1)
            for at in range(2):
                assert await taking.within(0.05) is None  # it waits for events
                posthouse_nats.restart()
                after = [an_event(f"after{at}")]
                while not isinstance((await pair.api.publish(after))[0], Stored):
                    pass  # it may not have noticed yet
                [got] = await taking.acked(pair.worker, 1)
                assert (got.id, got.number) == (f"after{at}", 1)
            health = await pair.worker.health(pair.wanted)
            assert health.connected

    run(use())
    assert "was lost; it is made again" in caplog.text
    assert "connected again" in caplog.text


def test_while_the_server_is_gone_publishing_fails_for_a_while_and_the_id_is_safe(
    rig: Rig, posthouse_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.bridge.jetstream.transport.ANSWER_SECONDS", 0.2)

    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1")
            posthouse_nats.kill()
            [answer] = await pair.api.publish([an_event("e2")])
            assert isinstance(answer, PublishFailed)
            assert answer.transient
            health = await pair.api.health(pair.wanted)
            assert (health.connected, health.state) == (False, "reconnecting")
            assert health.problem
            posthouse_nats.start()
            while not isinstance((await pair.api.publish([an_event("e2")]))[0], Stored):
                pass
            [one] = await pair.api.publish([an_event("e1")])
            assert isinstance(one, Stored)
            assert one.duplicate

    run(use())


def test_what_is_in_flight_when_the_connection_is_cut_is_told_at_once_and_in_order(
    posthouse_nats: NatsServer,
) -> None:
    async def use() -> None:
        proxy = await Proxy.open(posthouse_nats.port)
        cut = Rig(f"nats://127.0.0.1:{proxy.port}")
        direct = Rig(posthouse_nats.url)
        async with direct.pair() as pair, cut.open(API) as api:
            proxy.late_s = 0.2
            publishing = asyncio.ensure_future(
                api.publish([an_event(f"e{at}") for at in range(600)])
            )
            while not (await pair.worker.health(pair.wanted)).facts["stream"]["messages"]:  # type: ignore[index]
                pass
            proxy.cut()
            proxy.late_s = 0.0
            answers = await publishing
            assert len(answers) == 600
            lost = [each for each in answers if isinstance(each, PublishFailed)]
            assert lost
            assert all(each.transient for each in lost)
            again = await api.publish([an_event(f"e{at}") for at in range(600)])
            assert all(isinstance(each, Stored) for each in again)
            async with pair.deliveries(600) as taking:
                got = ids(await taking.acked(pair.worker, 600))
                assert sorted(got) == sorted({f"e{at}" for at in range(600)})
                assert await taking.within(0.1) is None
        await proxy.close()

    run(use())


def test_a_consumer_whose_connection_is_cut_again_and_again_gets_all(
    posthouse_nats: NatsServer,
) -> None:
    async def use() -> None:
        proxy = await Proxy.open(posthouse_nats.port)
        cut = Rig(f"nats://127.0.0.1:{proxy.port}")
        direct = Rig(posthouse_nats.url)
        async with direct.pair(ack_wait=1.0) as pair, cut.open(WORKER) as worker:
            await pair.publish(*(f"e{at}" for at in range(30)))
            got: set[str] = set()
            async with pair.deliveries(4, worker) as taking:
                while len(got) < 30:
                    delivery = await taking.one()
                    if len(got) in (5, 15) and delivery.id not in got:
                        proxy.cut()
                    try:
                        await worker.settle(delivery, Ack())
                    except BridgeError:
                        continue  # it comes again
                    got.add(delivery.id)
        await proxy.close()

    run(use())


def test_a_pull_is_asked_again_when_heartbeats_are_missed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that a server has forgotten, as after a leader's change, is not waited for."""
    monkeypatch.setattr(pulling, "SILENCE_SECONDS", 0.3)  # less than to the first heartbeat

    async def use() -> None:
        async with rig.pair() as pair, pair.deliveries() as taking:
            assert await taking.within(1.0) is None
            await pair.publish("e1")
            await taking.acked(pair.worker, 1)

    run(use())
    assert "was silent" in caplog.text


def test_a_pull_is_renewed_before_it_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "EXPIRES_SECONDS", 0.6)
    monkeypatch.setattr(pulling, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(pulling, "RENEW_SECONDS", 0.3)

    async def use() -> None:
        async with rig.pair() as pair, pair.deliveries(window=2) as taking:
            assert await taking.within(1.5) is None
            await pair.publish("e1", "e2", "e3")
            held = [await taking.one() for _ in range(2)]
            assert await taking.within(0.8) is None  # though there are two requests now
            for delivery in held:
                await pair.worker.settle(delivery, Ack())
            await taking.acked(pair.worker, 1)

    run(use())


def test_a_consumer_that_is_missing_is_told_and_waited_for(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> None:
        wanted = rig.wanted(WORKER)
        async with rig.open(WORKER) as worker, rig.open(API) as api:
            consuming = worker.deliveries(wanted.sources[0], 1)
            first = asyncio.ensure_future(anext(consuming))
            while "gives no events" not in caplog.text:
                await asyncio.wait((first,), timeout=0.02)
            assert "not there" in (await worker.health(wanted)).problem
            await worker.apply(await worker.plan(wanted))
            await api.publish([an_event("e1")])
            await worker.settle(await first, Ack())

    run(use())


# Streams and consumers.


def test_nothing_is_sent_where_nothing_differs(posthouse_nats: NatsServer, tmp_path: Path) -> None:
    """A user who may only look can apply such a plan."""
    looks = (
        'publish: ["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.LIST", "$JS.API.CONSUMER.INFO.>"],'
        ' subscribe: ["_INBOX.>"]'
    )

    async def use(server: NatsServer) -> None:
        wanted = WORKER.topology("shop", both_sides=True)
        async with Rig(server.url.replace("//", "//admin:x@")).open(WORKER, wanted):
            pass
        async with Rig(server.url.replace("//", "//user:x@")).open(WORKER) as looking:
            plan = await looking.plan(wanted)
            assert {step.act for step in plan.steps} == {"leave"}
            await looking.apply(plan)
            await looking.apply(plan, recreate=True)
            another = await looking.plan(Names("x", ("y",)).topology("another"))
            with pytest.raises(NotPermitted):
                await looking.apply(another)

    with a_server(tmp_path, looks) as server:
        run(use(server))


def test_a_stream_gets_what_it_lacks_and_loses_nothing(rig: Rig) -> None:
    async def use() -> None:
        client = await nats.connect(rig.url)
        await api_of(client, "STREAM.CREATE.shop", {
            "name": "shop", "subjects": ["other.things", "api.sync.*"], "retention": "limits",
            "storage": "memory", "max_age": 60 * 10**9, "description": "ours",
            "duplicate_window": 10**9,
        })  # fmt: skip
        async with rig.open(WORKER) as worker:
            plan = await worker.plan(rig.wanted(WORKER))
            [stream] = [step for step in plan.steps if step.kind == "stream"]
            assert stream.act == "update"
            assert "worker.sync.api" in stream.reason
            assert "retention limits is kept" in stream.reason
            assert "memory is kept" in stream.reason
            await worker.apply(plan)
            assert (await worker.plan(rig.wanted(WORKER))).changes == []
        config = (await api_of(client, "STREAM.INFO.shop"))["config"]
        assert config["subjects"] == [
            "other.things", "api.sync.*", "worker.sync.api", "worker.sync.dlq",
        ]  # fmt: skip
        assert (config["retention"], config["storage"]) == ("limits", "memory")
        assert (config["description"], config["discard"]) == ("ours", "new")
        assert config["duplicate_window"] == config["max_age"] == 60 * 10**9
        await client.close()

    run(use())


def test_the_consumer_of_the_gem_is_freed_from_its_backoff(rig: Rig) -> None:
    """It asks for 1 to 60 nanoseconds, which is no time, and gives up after five deliveries."""

    async def use() -> None:
        client = await nats.connect(rig.url)
        await api_of(client, "STREAM.CREATE.shop", {
            "name": "shop", "retention": "workqueue", "storage": "file",
            "subjects": ["api.sync.worker", "worker.sync.api", "api.sync.dlq", "worker.sync.dlq"],
        })  # fmt: skip
        made = await api_of(client, "CONSUMER.CREATE.shop.worker-workers.api.sync.worker", {
            "stream_name": "shop", "config": {
                "name": "worker-workers", "durable_name": "worker-workers", "max_deliver": 5,
                "deliver_policy": "all", "ack_policy": "explicit", "ack_wait": 30 * 10**9,
                "filter_subject": "api.sync.worker", "backoff": [1, 5, 15, 30, 60],
            },
        })  # fmt: skip
        assert "error" not in made
        async with rig.pair() as pair:
            config = (await api_of(client, "CONSUMER.INFO.shop.worker-workers"))["config"]
            assert (config["max_deliver"], config["ack_wait"]) == (-1, 30 * 10**9)
            assert not config.get("backoff")
            await pair.publish("e1")
            async with pair.deliveries() as taking:
                for number in range(1, 8):  # it never becomes undeliverable
                    got = await taking.one()
                    assert got.number == number
                    await pair.worker.settle(got, Nak(0.0))
                await taking.acked(pair.worker, 1)
        await client.close()

    run(use())


def test_a_consumer_that_cannot_be_changed_is_made_anew_where_it_was(rig: Rig) -> None:
    async def use() -> None:
        pushed = Rig(rig.url, push=True)
        async with pushed.pair() as pair:
            await pair.publish(*(f"e{at}" for at in range(6)))
            async with pair.deliveries(2) as taking:
                await taking.acked(pair.worker, 4)
            wanted = rig.wanted(WORKER)
            plan = await pair.worker.plan(wanted)
            [step] = plan.conflicts
            assert "push instead of pull" in step.reason
            assert "--recreate" in step.reason
            with pytest.raises(TopologyConflict, match="push instead of pull"):
                await pair.worker.apply(plan)
            await pair.worker.apply(plan, recreate=True)
            assert (await pair.worker.plan(wanted)).changes == []
            got = []
            async for delivery in pair.worker.deliveries(wanted.sources[0], 4):
                got.append(delivery.id)
                await pair.worker.settle(delivery, Ack())
                if len(got) == 2:
                    break
            assert sorted(got) == ["e4", "e5"]

    run(use())


def test_a_consumer_of_a_topic_keeps_its_place_when_it_is_made_anew(rig: Rig) -> None:
    """While it is not there, nobody but it is interested in what it has not seen."""
    shop, mail = Names("shop", topics=True), Names("mail", ("shop",), topics=True)

    async def use() -> None:
        pushed = Rig(rig.url, push=True).wanted(mail)
        async with rig.open(shop) as publisher, rig.open(mail, pushed) as transport:
            sent = [an_event(f"e{at}", "shop.events.a") for at in range(6)]
            await publisher.publish(sent)
            consuming = transport.deliveries(pushed.sources[0], 1)
            for _ in range(3):
                await transport.settle(await anext(consuming), Ack())
            await consuming.aclose()  # type: ignore[attr-defined]
            pulled = rig.wanted(mail)
            await transport.apply(await transport.plan(pulled), recreate=True)
            assert {step.act for step in (await transport.plan(pulled)).steps} == {"leave"}
            got = []
            async for delivery in transport.deliveries(pulled.sources[0], 4):
                got.append(delivery.id)
                await transport.settle(delivery, Ack())
                if len(got) == 3:
                    break
            assert sorted(got) == ["e3", "e4", "e5"]
            health = await transport.health(pulled)
            client = await nats.connect(rig.url)
            names = (await api_of(client, "CONSUMER.NAMES.shop"))["consumers"]
            assert sorted(names) == ["mail-sync-dlq", "mail-workers", "shop-sync-dlq"]
            await client.close()
            assert health.problem == ""

    run(use())


def test_a_stream_that_takes_a_subject_is_named_before_anything_is_made(rig: Rig) -> None:
    """Also where it is far down the list, which comes in pages."""

    async def use() -> None:
        client = await nats.connect(rig.url)
        for at in range(300):
            await api_of(client, f"STREAM.CREATE.S{at:03}", {
                "name": f"S{at:03}", "subjects": [f"s{at}.>"], "storage": "memory",
            })  # fmt: skip
        await api_of(client, "STREAM.CREATE.TAKEN", {"name": "TAKEN", "subjects": ["worker.*.dlq"]})
        async with rig.open(WORKER) as worker:
            plan = await worker.plan(rig.wanted(WORKER))
            assert [step.reason.split(". ")[0] for step in plan.conflicts] == [
                "worker.sync.dlq is taken by stream TAKEN (worker.*.dlq)"
            ]
            with pytest.raises(TopologyConflict, match="is taken by stream TAKEN"):
                await worker.apply(plan)
        assert "error" in await api_of(client, "STREAM.INFO.shop")
        for at in range(300):
            await api_of(client, f"STREAM.DELETE.S{at:03}")
        await client.close()

    run(use())


def test_a_stream_that_was_taken_meanwhile_is_named_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of other streams is a minute old; the server has the last word."""
    monkeypatch.setattr(topology, "RETRY_SECONDS", (0.0,))

    async def use() -> None:
        client = await nats.connect(rig.url)
        async with rig.open(WORKER) as worker:
            plan = await worker.plan(rig.wanted(WORKER))
            await api_of(client, "STREAM.CREATE.LATE", {"name": "LATE", "subjects": ["api.>"]})
            with pytest.raises(TopologyConflict, match=r"is taken by stream LATE \(api.>\)"):
                await worker.apply(plan)
        await client.close()

    run(use())


def test_several_that_provision_at_once_all_succeed(rig: Rig) -> None:
    async def use() -> None:
        async def provision(names: Names) -> None:
            async with rig.open(names) as transport:
                wanted = rig.wanted(names, both_sides=True)
                await transport.apply(await transport.plan(wanted))
                assert (await transport.plan(wanted)).changes == []

        await asyncio.gather(*(provision(names) for names in [API, WORKER] * 4))

    run(use())


def test_a_subject_of_another_stream_is_not_published_to(rig: Rig) -> None:
    async def use() -> None:
        client = await nats.connect(rig.url)
        await api_of(client, "STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["orders.>"]})
        async with rig.pair() as pair:
            [answer] = await pair.api.publish([an_event("e1", "orders.created")])
            assert isinstance(answer, PublishFailed)
            assert not answer.transient
            assert "another stream than 'shop'" in str(answer)
        await client.close()

    run(use())


def test_a_topic_cannot_share_a_work_queue(rig: Rig) -> None:
    async def use() -> None:
        topics = Names("worker", ("api",), topics=True)
        async with rig.pair() as pair:
            plan = await pair.worker.plan(rig.wanted(topics))
            assert "work queue" in plan.conflicts[0].reason

    run(use())


tokens = st.sampled_from(["a", "b", "*"])
wild = st.lists(tokens, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([".".join(parts), ".".join([*parts, ">"])])
)
plain = [
    ".".join(parts)
    for one in ("a", "b")
    for parts in (
        [one], *([one, two] for two in "ab"), *([one, two, x] for two in "ab" for x in "ab"),
        *([one, two, x, "a"] for two in "ab" for x in "ab"),
    )
]  # fmt: skip


def matches(pattern: str, subject: str) -> bool:
    parts, found = pattern.split("."), subject.split(".")
    if parts[-1] == ">":
        return len(found) >= len(parts) and matches(
            ".".join(parts[:-1]), ".".join(found[: len(parts) - 1])
        )
    return len(parts) == len(found) and all(
        part in ("*", token) for part, token in zip(parts, found, strict=True)
    )


@given(wild, wild)
def test_patterns_overlap_if_a_subject_matches_both(one: str, other: str) -> None:
    assert overlaps(one, other) == overlaps(other, one)
    assert overlaps(one, other) == any(matches(one, s) and matches(other, s) for s in plain)
    assert covers(one, other) == all(matches(one, s) for s in plain if matches(other, s))


def test_a_conflict_is_told_with_both_subjects() -> None:
    there = {"ORDERS": ["orders.>"], "mine": ["orders.created"]}
    assert conflict("mine", ["orders.created"], there) == ("orders.created", "ORDERS", "orders.>")
    assert told("orders.created", "ORDERS", "orders.>").startswith(
        "orders.created is taken by stream ORDERS (orders.>)."
    )
    assert conflict("mine", ["order.created"], there) is None


# Dead letters.


def test_with_the_id_of_its_event_a_dead_letter_would_be_dropped(rig: Rig) -> None:
    """As the original's is: the stream takes it for a duplicate. This is why it has its own."""

    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1")
            [answer] = await pair.worker.publish([an_event("e1", "worker.sync.dlq")])
            assert isinstance(answer, Stored)
            assert answer.duplicate
            assert await pair.dead() == []
            async with pair.deliveries() as taking:
                await pair.worker.settle(await taking.one(), Bury("unrecoverable", {}))
            [letter] = await pair.dead()
            assert letter.context["event_id"] == "e1"

    run(use())


def test_a_dead_letter_that_was_stored_twice_is_one(rig: Rig) -> None:
    """Its acknowledgment was lost: it is buried again, and dropped by its id."""

    async def use() -> None:
        async with rig.pair(ack_wait=0.5) as pair:
            await pair.publish("e1")
            client = await nats.connect(rig.url)
            async with pair.deliveries() as taking:
                got = await taking.one()
                await client.jetstream().publish(
                    "worker.sync.dlq", got.body,
                    headers={"Nats-Msg-Id": "worker-workers:e1:dead"},
                )  # fmt: skip
                await client.flush()
                await pair.worker.settle(got, Bury("unrecoverable", {"event_id": "e1"}))
            assert len(await pair.dead()) == 1
            await client.close()

    run(use())


def test_an_event_whose_dead_letter_cannot_be_stored_comes_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.bridge.jetstream.transport.BURY_PAUSE_SECONDS", 0.05)

    async def use() -> None:
        async with rig.pair() as pair:
            await pair.publish("e1")
            lost = transport_of(rig.url, stream="shop", dead_letters="nobody.sync.dlq")
            await lost.open()
            async with pair.deliveries(by=lost) as taking:
                got = await taking.one()
                with pytest.raises(BridgeError, match=r"nobody\.sync\.dlq"):
                    await lost.settle(got, Bury("unrecoverable", {}))
                again = await taking.one()
                assert (again.id, again.number) == ("e1", 2)
                await lost.settle(again, Ack())
            await lost.close()

    run(use())


def test_the_largest_event_can_be_buried(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            size = pair.api.body_bytes_max
            event = an_event("e1", headers={"x-a": "b" * 500}, key="k" * 255)
            answers = await pair.api.publish([an_event("e0", body=bytes(size - 200)), event])
            assert all(isinstance(each, Stored) for each in answers), answers
            client = await nats.connect(rig.url)  # another's, which leaves no room
            await client.jetstream().publish(
                "api.sync.worker", bytes(client.max_payload - 1_100), headers={"a": "b" * 1_000}
            )
            await client.flush()
            async with pair.deliveries() as taking:
                for _ in range(2):
                    got = await taking.one()
                    await pair.worker.settle(got, Bury("unrecoverable", {"error_message": "x" * 9}))
            assert [len(letter.body) for letter in await pair.dead()] == [size - 200, 2]
            await client.close()

    run(use())


def test_a_dead_letter_that_names_a_subject_of_the_servers_is_not_replayed(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            client = await nats.connect(rig.url)
            context = json.dumps({"original_subject": "$JS.API.STREAM.DELETE.shop"})
            await client.jetstream().publish(
                "worker.sync.dlq", b"{}", headers={"x-dlq-context": context, "x-deliveries": "x"}
            )
            await client.jetstream().publish(
                "worker.sync.dlq", b"{}", headers={"x-dlq-context": "[" * 9_000}
            )
            await client.flush()
            hostile, nowhere = await pair.dead()
            assert (hostile.deliveries, hostile.reason) == (0, "unknown")
            with pytest.raises(PublishFailed, match=r"begins with \$"):
                await pair.worker.replay(hostile, "again")
            with pytest.raises(BridgeError, match="does not say where it came from"):
                await pair.worker.replay(nowhere, "again")
            assert len(await pair.dead()) == 2
            await client.close()

    run(use())


# The gem.


def test_an_event_of_the_gem_is_read_and_its_lower_case_id_is_known(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            client = await nats.connect(rig.url)
            id = "3f1c9a52-2b7e-4f4e-9f0e-0d6a3c1f9b11"
            await client.jetstream().publish("api.sync.worker", RUBY, headers={"nats-msg-id": id})
            await client.flush()
            async with pair.deliveries() as taking:
                [got] = await taking.acked(pair.worker, 1)
            assert got.id == id
            event = decode(got.body, got.headers)
            assert (event.id, event.type, event.resource_id) == (id, "user.created", "1")
            await client.close()

    run(use())


def test_the_gem_gets_an_event_as_it_expects_it(rig: Rig) -> None:
    """By its own requests: a batch without waiting, then one that waits."""

    async def use() -> None:
        async with rig.pair() as pair:
            event = decode(RUBY)
            await pair.api.publish([outgoing(event, "api.sync.worker")])
            client = await nats.connect(rig.url)
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox)
            await client.publish(
                "$JS.API.CONSUMER.MSG.NEXT.shop.worker-workers", b'{"batch":25,"no_wait":true}',
                reply=inbox,
            )  # fmt: skip
            message = await answers.next_msg(10)
            assert message.subject == "api.sync.worker"
            assert json.loads(message.data) == json.loads(RUBY)
            assert message.headers is not None
            assert message.headers["Nats-Msg-Id"] == event.id
            assert message.reply.startswith("$JS.ACK.shop.worker-workers.1.")
            await client.publish(message.reply, b"+ACK")
            await client.close()

    run(use())


@pytest.mark.parametrize("reason", ["max_deliver_exceeded", "max_deliveries_exceeded"])
def test_a_dead_letter_of_the_gem_is_read_and_replayed(rig: Rig, reason: str) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            client = await nats.connect(rig.url)
            headers = {
                "nats-msg-id": "e1", "x-dead-letter": "true", "x-dlq-reason": reason,
                "x-deliveries": "5", "x-dlq-context": json.dumps(GEM_DEAD_CONTEXT),
            }  # fmt: skip
            await client.jetstream().publish("worker.sync.dlq", RUBY, headers=headers)
            await client.flush()
            [letter] = await pair.dead()
            assert (letter.reason, letter.deliveries) == ("max_deliver_exceeded", 5)
            assert letter.subject == "api.sync.worker"
            assert letter.context == GEM_DEAD_CONTEXT
            await pair.worker.replay(letter, "e1-again")
            async with pair.deliveries() as taking:
                assert ids(await taking.acked(pair.worker, 1)) == ["e1-again"]
            await client.close()

    run(use())


def test_a_dead_letter_has_the_headers_that_the_gem_writes(rig: Rig) -> None:
    async def use() -> None:
        async with rig.pair() as pair:
            await pair.api.publish([outgoing(decode(RUBY), "api.sync.worker")])
            client = await nats.connect(rig.url)
            async with pair.deliveries() as taking:
                got = await taking.one()
                context = {"error_class": "ValueError", "error_message": "no"}
                await pair.worker.settle(got, Bury("unrecoverable", context))
            dead = await client.jetstream().get_last_msg("shop", "worker.sync.dlq")
            assert dead.data == encode(decode(RUBY))
            headers = dict(dead.headers or {})
            assert (headers["x-dead-letter"], headers["x-deliveries"]) == ("true", "1")
            assert headers["x-dlq-reason"] == "unrecoverable"
            told = json.loads(headers["x-dlq-context"])
            assert told["error_class"] == "ValueError"
            assert told["original_subject"] == "api.sync.worker"
            assert (told["stream"], told["consumer"]) == ("shop", "worker-workers")
            assert told["sequence"] == 1
            await client.close()

    run(use())


# Permissions.


class a_server:
    """A server with an `admin` and a `user`, who may do what `allowed` says."""

    def __init__(self, folder: Path, allowed: str, settings: str = "") -> None:
        program = find_nats_server()
        if program is None:
            pytest.skip("nats-server is missing")
        users = (
            "authorization { users = [\n"
            '  { user: admin, password: "x" }\n'
            f'  {{ user: user, password: "x", permissions: {{ {allowed} }} }}\n'
            "] }\n"
        )
        self._server = NatsServer(program, folder, users + settings)

    def __enter__(self) -> NatsServer:
        self._server.start()
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.kill()


def block(names: Names, *, push: bool = False, without: str = "", **options: Any) -> str:
    needed = permissions(names, "shop", push=push, **options)
    publish = [each for each in needed.publish if each != without]
    subscribe = [each for each in needed.subscribe if each != without]
    return f"publish: {json.dumps(publish)}, subscribe: {json.dumps(subscribe)}"


async def use_everything(
    server: NatsServer, *, push: bool = False, restricted: bool = True
) -> Transport:
    """What a service does at run time, by a user with few rights; an admin has provisioned."""
    wanted = WORKER.topology("shop", push=push, both_sides=True)
    async with Rig(server.url.replace("//", "//admin:x@")).open(WORKER, wanted) as admin:
        await admin.publish([an_event("e1"), an_event("e2"), an_event("e3")])
    user = Rig(server.url.replace("//", "//user:x@"), push)
    async with user.open(WORKER, restricted=restricted) as worker:
        begun = asyncio.get_running_loop().time()
        try:
            consuming = worker.deliveries(wanted.sources[0], 4)
            await worker.settle(await anext(consuming), Ack())
            await worker.settle(await anext(consuming), Nak(60.0))
            await worker.settle(await anext(consuming), Bury("unrecoverable", {}))
            [answer] = await worker.publish([an_event("e4", "worker.sync.api")])
            if isinstance(answer, PublishFailed):
                raise answer
            await worker.wake("worker.outbox")
            health = await worker.health(wanted)
            assert health.connected
            assert health.problem == ""
        except NotPermitted:
            assert asyncio.get_running_loop().time() - begun < 1.0  # a time-out takes five
            raise
    return worker


@pytest.mark.parametrize("push", [False, True])
def test_a_service_runs_with_exactly_the_rights_that_are_printed(
    tmp_path: Path, push: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with a_server(tmp_path, block(WORKER, push=push)) as server:
        run(use_everything(server, push=push))
    assert "iolation" not in caplog.text


@pytest.mark.parametrize(
    ("denied", "push"),
    [
        ("worker.sync.api", False), ("worker.sync.dlq", False),
        ("$JS.API.CONSUMER.MSG.NEXT.shop.worker-workers", False),
        ("$JS.ACK.shop.worker-workers.>", False), ("_INBOX.>", False),
        ("api.sync.worker.worker worker-workers", True), ("$JS.ACK.shop.worker-workers.>", True),
    ],
)  # fmt: skip
def test_what_is_denied_is_named_at_once(tmp_path: Path, denied: str, push: bool) -> None:
    name = denied.split(" ")[0].removesuffix(">")
    with (
        a_server(tmp_path, block(WORKER, push=push, without=denied)) as server,
        pytest.raises(NotPermitted) as refused,
    ):
        run(use_everything(server, push=push))
    assert name in str(refused.value)
    assert "bridge permissions" in str(refused.value)


def test_a_service_that_provisions_and_operates_has_the_rights_for_it(tmp_path: Path) -> None:
    async def use(server: NatsServer) -> None:
        user = Rig(server.url.replace("//", "//user:x@"))
        wanted = user.wanted(WORKER)
        async with user.open(WORKER, wanted) as worker:
            admin = Rig(server.url.replace("//", "//admin:x@"))
            async with admin.open(API) as api:
                await api.publish([an_event("e1")])
            consuming = worker.deliveries(wanted.sources[0], 1)
            await worker.settle(await anext(consuming), Bury("unrecoverable", {}))
            assert (await worker.health(wanted)).problem == ""
            [letter] = [each async for each in worker.dead_letters(wanted)]
            await worker.replay(letter, "again")
            await worker.settle(await anext(consuming), Bury("unrecoverable", {}))
            [letter] = [each async for each in worker.dead_letters(wanted)]
            await worker.drop(letter)

    rights = block(WORKER, provision=True, operate=True)
    with a_server(tmp_path, rights) as server:
        run(use(server))


def test_the_permissions_are_printed_as_a_servers_file_has_them(tmp_path: Path) -> None:
    text = permissions(WORKER, "shop").text("worker").replace("CHANGE-ME", "x")
    program = find_nats_server()
    if program is None:
        pytest.skip("nats-server is missing")
    server = NatsServer(program, tmp_path, f"authorization {{ users = [ {text} ] }}\n")
    server.start()

    async def use() -> None:
        async with Rig(server.url.replace("//", "//worker:x@")).open(WORKER) as worker:
            [answer] = await worker.publish([an_event("e1", "api.other")])
            assert isinstance(answer, NotPermitted)

    try:
        run(use())
    finally:
        server.kill()


def test_wrong_credentials_are_told_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(server: NatsServer) -> None:
        wrong = transport_of(
            server.url.replace("//", "//user:s3cret@"), stream="shop", dead_letters="a.sync.dlq"
        )
        with pytest.raises(NotPermitted, match="does not accept the credentials") as refused:
            await wrong.open()
        assert "s3cret" not in str(refused.value)
        assert (await wrong.health(Topology("shop", [], [], ""))).state == "failed"
        await wrong.close()

    with a_server(tmp_path, "publish: [], subscribe: []") as server:
        run(use(server))
    assert "s3cret" not in caplog.text


def test_nobody_at_the_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.bridge.jetstream.connection.OPEN_SECONDS", 0.3)

    async def use() -> None:
        nobody = transport_of("nats://127.0.0.1:1", stream="shop", dead_letters="a.sync.dlq")
        with pytest.raises(BridgeError, match=r"No NATS server answers at 127\.0\.0\.1:1"):
            await nobody.open()
        await nobody.close()

    run(use())


# Other things.


def test_a_message_that_is_no_delivery_is_dropped(
    posthouse_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(posthouse_nats.url, push=True)

    async def use() -> None:
        async with rig.pair() as pair, pair.deliveries() as taking:
            assert await taking.within(0.05) is None
            client = await nats.connect(rig.url)
            await client.publish("api.sync.worker.worker", b"x")
            await client.publish("api.sync.worker.worker", b"x", reply="$JS.ACK.a.b.c")
            await client.flush()
            await pair.publish("e1")
            assert ids(await taking.acked(pair.worker, 1)) == ["e1"]
            await client.close()

    run(use())
    assert "no delivery of JetStream" in caplog.text


def test_flow_control_is_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for the answer sends nothing more."""
    pushed = Rig(rig.url, push=True)
    wanted = pushed.wanted(WORKER, max_pending=2_000)

    async def use() -> None:
        async with pushed.open(API) as api, pushed.open(WORKER, wanted) as worker:
            large = [an_event(f"e{at}", body=bytes(100_000)) for at in range(400)]
            assert all(isinstance(each, Stored) for each in await api.publish(large))
            count = 0
            async for delivery in worker.deliveries(wanted.sources[0], 500):
                await worker.settle(delivery, Ack())
                count += 1
                if count == 400:
                    break

    run(use())


def test_a_push_that_is_silent_is_subscribed_to_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pushing, "SILENCE_SECONDS", 0.2)
    caplog.set_level(logging.INFO, "posthouse.bridge")
    pushed = Rig(rig.url, push=True)

    async def use() -> None:
        async with pushed.pair() as pair, pair.deliveries() as taking:
            assert await taking.within(0.7) is None
            await pair.publish(*(f"e{at}" for at in range(20)))
            got = ids(await taking.acked(pair.worker, 20))
            assert sorted(got) == sorted(f"e{at}" for at in range(20))

    run(use())
    assert "subscribed to again" in caplog.text


def test_the_health_says_whether_the_server_syncs_always(tmp_path: Path) -> None:
    program = find_nats_server()
    if program is None:
        pytest.skip("nats-server is missing")
    server = NatsServer(program, tmp_path, "http: 127.0.0.1:-1\n")
    text = server._config.read_text()
    server._config.write_text(text.replace("store_dir", "sync_interval: always, store_dir"))

    async def use(monitor: str) -> None:
        async with Rig(server.url).open(WORKER, monitor=monitor) as worker:
            health = await worker.health(WORKER.topology("shop"))
            assert health.facts["sync_interval"] == "always"
            assert "provision" in health.problem

    server._config.write_text(server._config.read_text().replace("-1", str(server.port + 1)))
    server.start()
    try:
        run(use(f"http://127.0.0.1:{server.port + 1}"))
    finally:
        server.kill()


def test_the_subject_of_an_acknowledgment_is_read_in_both_forms() -> None:
    old = read_ack_subject("$JS.ACK.shop.worker-workers.3.7.9.1700000000000000000.5")
    new = read_ack_subject("$JS.ACK._.ACC.shop.worker-workers.3.7.9.1700000000000000000.5.rnd")
    assert old == new
    assert old is not None
    assert (old.stream, old.consumer, old.delivered, old.sequence) == (
        "shop", "worker-workers", 3, 7,
    )  # fmt: skip
    for text in ("", "_INBOX.a", "$JS.ACK.a.b.c.d.e.f.g", "$JS.ACK.a.b.1.2", "$JS.ACK" + ".x" * 9):
        assert read_ack_subject(text) is None


def test_a_denied_subject_is_read_from_the_servers_text() -> None:
    publish = 'nats: permissions violation for publish to "api.sync.worker"'
    subscribe = 'permissions violation for subscription to "a.b" using queue "q"'
    assert read_denied(publish) == ("publish to", "api.sync.worker")
    assert read_denied(subscribe) == ("subscribe to", "a.b")
    assert read_denied("stale connection") == read_denied("permissions violation for x") == ("", "")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[str]]:
    import os

    from tests.store.clustered_store import nats_servers

    if os.environ.get("TORTURE") != "1" or find_nats_server() is None:
        pytest.skip("three servers take long: TORTURE=1, make torture")
    with nats_servers(tmp_path, 3) as servers:
        yield [f"127.0.0.1:{port}" for port in servers.ports]


def test_three_servers_keep_three_replicas_and_one_may_go(three: list[str]) -> None:
    async def use() -> None:
        rig = Rig(f"nats://{','.join(three)}")
        replicas = 0
        while replicas != 3:
            try:
                async with rig.pair() as pair:
                    [answer] = await pair.api.publish([an_event("e1")])
                    stream: Any = (await pair.worker.health(pair.wanted)).facts["stream"]
                    if stream and isinstance(answer, Stored):
                        replicas = stream["replicas"]
            except BridgeError:  # they have not found each other yet
                await asyncio.sleep(0.1)  # slept: until they elect a leader
        async with rig.pair() as pair, pair.deliveries() as taking:
            await taking.acked(pair.worker, 1)

    run(use())
