"""What is around the messages: errors, correlation ids, health, metrics, documents, restarts."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse.core.errors import REFUSALS
from posthouse.dialects.known import DIALECTS
from posthouse.dialects.servicebus.localzure.errors import CODES
from tests.dialects.localzure.zure import Entity, Zure, bodies, fresh, refused, sql
from tests.dialects.servicebus.sas import token
from tests.server.running import Reply, Running, running

DETAILS = {
    "entity_type", "entity_name", "message_id", "session_id", "correlation_id", "operation",
    "reason", "quota_type", "current_value", "max_value", "timeout_seconds", "actual_size",
    "max_size",
}  # fmt: skip
COUNTERS = [
    f"servicebus_messages_{done}_total"
    for done in ("sent", "received", "completed", "abandoned", "deadlettered")
]
HISTOGRAMS = [f"servicebus_{done}_duration_seconds" for done in ("send", "receive", "complete")]


# Errors.


def test_every_refusal_has_its_code() -> None:
    assert set(CODES) == set(REFUSALS)


def test_an_error_names_its_code_and_every_detail(zure: Zure) -> None:
    queue = zure.queue_at(fresh("queue"))
    reply = queue.ask("GET")
    assert reply.status == 404
    assert reply.headers["content-type"].startswith("application/json")
    assert set(reply.json) == {"error"}
    error = reply.json["error"]
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == "EntityNotFound"
    assert queue.name in error["message"]
    details = error["details"]
    assert set(details) >= DETAILS
    assert (details["entity_type"], details["entity_name"]) == ("queue", queue.name)
    for unused in ("session_id", "quota_type", "actual_size", "timeout_seconds"):
        assert details[unused] is None


def test_a_lost_lock_names_the_message_and_the_lock(zure: Zure) -> None:
    queue, token = zure.queue(), str(uuid4())
    reply = queue.complete({"MessageId": "m", "LockToken": token})
    assert refused(reply) == (410, "MessageLockLost")
    assert set(reply.json["error"]["details"]) >= DETAILS
    assert reply.json["error"]["details"]["message_id"] == "m"
    assert f"lock {token}" in reply.json["error"]["message"].lower()


def test_a_missing_subscription_is_named(zure: Zure) -> None:
    reply = zure.subscription_at(zure.topic(), "lost").ask("GET")
    assert refused(reply) == (404, "EntityNotFound")
    details = reply.json["error"]["details"]
    assert (details["entity_type"], details["entity_name"]) == ("subscription", "lost")
    assert "{" not in reply.json["error"]["message"]


@pytest.mark.parametrize("path", ["/servicebus", "/servicebus/a/b/c/d/e/f", "/servicebus/any"])
def test_a_path_that_is_none_is_not_found(broker: Running, path: str) -> None:
    reply = broker.call("GET", path)
    assert reply.status == 404
    assert reply.json["error"]["message"]


# Correlation ids.


@pytest.mark.parametrize("header", ["x-correlation-id", "correlation-id"])
def test_a_correlation_id_is_echoed_and_told_in_errors(zure: Zure, header: str) -> None:
    headers = {header: "abc-1"}
    queue = zure.queue()
    good = zure.broker.call("GET", queue.path, headers=headers)
    assert (good.status, good.headers["x-correlation-id"]) == (200, "abc-1")
    lost = zure.broker.call("GET", f"{queue.path}-not", headers=headers)
    assert (lost.status, lost.headers["x-correlation-id"]) == (404, "abc-1")
    assert lost.json["error"]["details"]["correlation_id"] == "abc-1"


def test_a_correlation_id_is_made_where_none_was_given(zure: Zure) -> None:
    queue = zure.queue()
    first, second = queue.ask("GET"), queue.ask("GET")
    ids = [each.headers["x-correlation-id"] for each in (first, second)]
    assert ids == [str(UUID(each)) for each in ids]
    assert ids[0] != ids[1]
    lost = zure.queue_at(fresh("queue")).ask("GET")
    assert lost.json["error"]["details"]["correlation_id"] == lost.headers["x-correlation-id"]


# Health.


def test_the_health_at_the_root_names_the_version_and_the_services(broker: Running) -> None:
    told = broker.call("GET", "/health").json
    assert told["status"] == "healthy"
    assert told["services"] == {each.name: "running" for each in DIALECTS}
    assert "servicebus" in told["services"]
    assert told["version"] == version("posthouse")


def test_health_is_told_with_counts(broker: Running) -> None:
    before = broker.call("GET", "/servicebus/health")
    assert before.status == 200
    assert before.json["status"] == "healthy"
    zure = Zure(broker, "plain")
    queue = zure.queue()
    zure.topic()
    queue.send()
    queue.send()
    after = broker.call("GET", "/servicebus/health").json
    more = {name: after[name] - before.json[name] for name in ("queues", "topics")}
    assert more == {"queues": 1, "topics": 1}
    assert after["active_messages"] == before.json["active_messages"] + 2


@pytest.mark.parametrize(("probe", "word"), [("ready", b"Ready"), ("live", b"Alive")])
def test_probes_say_one_word(broker: Running, probe: str, word: bytes) -> None:
    reply = broker.call("GET", f"/servicebus/health/{probe}")
    assert reply.status == 200
    assert word in reply.body


# Metrics.


def sums(broker: Running) -> Callable[..., float]:
    """What a sample has, over all that have these labels."""
    reply = broker.call("GET", "/servicebus/metrics")
    assert reply.status == 200, reply
    assert reply.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(reply.body.decode()))
    samples = [each for family in families for each in family.samples]

    def total(name: str, **labels: str) -> float:
        found = [
            each.value
            for each in samples
            if each.name == name and labels.items() <= each.labels.items()
        ]
        assert found, (name, labels)
        return sum(found)

    return total


def test_metrics_count_what_happens_to_messages(zure: Zure) -> None:
    queue = zure.queue()
    for body in "abcd":
        queue.send(body)
    a, b, c = queue.receive(3)
    queue.complete(a)
    queue.abandon(b)
    queue.dead_letter(c)
    total = sums(zure.broker)
    mine = {"entity_type": "queue", "entity_name": queue.name}
    assert [total(name, **mine) for name in COUNTERS] == [4, 3, 1, 1, 1]
    assert total("servicebus_active_messages", **mine) == 2
    assert total("servicebus_deadletter_messages", **mine) == 1
    for name in HISTOGRAMS:
        assert total(f"{name}_count", **mine) >= 1
        assert total(f"{name}_sum", **mine) > 0


def test_metrics_count_topics_and_what_is_there(zure: Zure) -> None:
    names = [f"servicebus_{each}_count" for each in ("queues", "topics", "subscriptions")]
    zure.subscription()  # each has a number by now
    queue = zure.queue()
    before = [sums(zure.broker)(name) for name in names]
    topic = zure.topic()
    for _ in range(2):
        zure.subscription(topic).rule("some", sql("colour = 'red'"))
    zure.queue()
    topic.send()
    total = sums(zure.broker)
    after = [total(name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 2]
    mine = {"entity_type": "topic", "entity_name": topic.name}
    assert total("servicebus_messages_sent_total", **mine) == 1
    took = "servicebus_filter_evaluation_duration_seconds_count"
    assert total(took, topic_name=topic.name) >= 1
    locks = total("servicebus_active_locks")
    queue.send()
    queue.one()
    assert sums(zure.broker)("servicebus_active_locks") == locks + 1


def test_metrics_count_errors(zure: Zure) -> None:
    lost = zure.queue_at(fresh("queue"))
    lost.try_send()
    before = sums(zure.broker)("servicebus_errors_total")
    lost.try_send()
    assert sums(zure.broker)("servicebus_errors_total") == before + 1


# Documents.


def document(broker: Running) -> Reply:
    for path in ("/servicebus/docs/openapi.json", "/servicebus/openapi.json"):
        reply = broker.call("GET", path)
        if reply.status == 200:
            return reply
    raise AssertionError("there is no OpenAPI document")


def test_the_documents_are_there_without_anything_from_elsewhere(broker: Running) -> None:
    page = broker.call("GET", "/servicebus/docs")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert b"http://" not in page.body
    assert b"https://" not in page.body


@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("put", "/topics/{}"), ("get", "/topics"), ("post", "/messages"),
        ("post", "/messages/head"),
        ("post", "/messages/receive"), ("post", "/messages/batch"), ("delete", "/messages/{}/{}"),
        ("put", "/messages/{}/{}/abandon"), ("put", "/messages/{}/{}/deadletter"),
        ("put", "/messages/{}/{}/defer"), ("post", "/messages/{}/{}/renewlock"),
        ("put", "/subscriptions/{}"), ("get", "/subscriptions"), ("put", "/rules/{}"),
        ("get", "/rules"), ("delete", "/rules/{}"), ("post", "/sessions/accept"),
        ("get", "/sessions/{}/state"), ("put", "/sessions/{}/state"), ("post", "/transactions"),
        ("post", "/transactions/{}/commit"), ("get", "/health"), ("get", "/metrics"),
    ],
)  # fmt: skip
def test_the_openapi_document_has_every_route(broker: Running, method: str, end: str) -> None:
    found = document(broker).json
    assert found["openapi"].startswith("3.")

    def shape(path: str) -> str:
        parts = ["{}" if part.startswith("{") else part for part in path.split("/")]
        return "/".join(parts)

    assert any(shape(path).endswith(end) for path, has in found["paths"].items() if method in has)


# Processes of their own.


def test_who_asks_too_much_is_told_how_long_to_wait(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev", "--rate-entity", "10")
    with running(*flags) as broker:
        zure = Zure(broker, "plain")
        queue, other = zure.queue(), zure.queue()
        replies = [queue.try_send() for _ in range(40)]
        assert replies[0].status == 200
        late = [each for each in replies if each.status != 200]
        assert {refused(each) for each in late} == {(429, "QuotaExceeded")}
        assert int(late[0].headers["retry-after"]) >= 1
        assert other.try_send().status == 200


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    with running(*flags) as broker:
        zure = Zure(broker, "plain")
        queue, subscription = zure.queue(LockDuration="PT90S"), zure.subscription()
        subscription.only(sql("colour = 'red'"))
        for body in "abc":
            queue.send(body)
        done, dead = queue.receive(2)
        queue.complete(done)
        queue.dead_letter(dead, reason="r")
        subscription.send("red", user_properties={"colour": "red"})
        broker.kill()
    with running(*flags) as broker:
        again = Entity(broker, queue.path)
        assert b"PT90S" in again.ask("GET").body
        assert bodies(again.peek()) == ["c"]
        assert again.dead.one()["DeadLetterReason"] == "r"
        place = Entity(broker, subscription.path, subscription.inlet)
        place.send("blue", user_properties={"colour": "blue"})
        assert place.take() == ["red"]
        assert again.send("d")["SequenceNumber"] == 4


def test_without_dev_credentials_are_asked_for(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data")) as broker:
        for path in ("/servicebus/any/orders", "/servicebus/queues"):
            reply = broker.call("GET", path)
            assert reply.status == 401
            assert json.loads(reply.body)
        assert broker.call("GET", "/servicebus/health/live").status == 200
        health = broker.call("GET", "/servicebus/health")
        assert health.json == {"status": "healthy", "service": "servicebus"}
        refused = {"authorization": "SharedAccessSignature sr=x&sig=x&se=1&skn=x"}
        assert broker.call("GET", "/servicebus/health", headers=refused).status == 401
        key = (tmp_path / "data" / "root-key").read_text().strip().rpartition(":")[2]
        signed = {"authorization": token("http://localhost/", key=key)}
        assert "queues" in broker.call("GET", "/servicebus/health", headers=signed).json
