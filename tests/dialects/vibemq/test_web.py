"""VibeMQ over HTTP: health, metrics, and what its web pages ask for."""

from collections.abc import Iterator

import pytest

from tests.dialects.vibemq.broker import Vibe, started
from tests.dialects.vibemq.client import PING

BOSS, READER = "boss:the boss's own", "reader:pw"
ENVIRONMENT = {
    "POSTHOUSE_VIBEMQ_SUPERUSER": "boss",
    "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": "the boss's own",
}
METRICS = [
    "total_messages_published", "total_messages_delivered", "total_messages_acknowledged",
    "total_retries", "total_dead_lettered", "total_errors", "total_connections_accepted",
    "total_connections_rejected", "active_connections", "active_queues", "in_flight_messages",
    "memory_usage_bytes", "average_delivery_latency_ms", "timestamp", "uptime",
]  # fmt: skip


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vibe]:
    folder = tmp_path_factory.mktemp("posthouse")
    with started("--data", str(folder / "data"), **ENVIRONMENT) as found:
        with found.client(authUsername="boss", authPassword="the boss's own") as boss:
            boss.ask(50, payload={"username": "reader", "password": "pw"})
            form = {"username": "reader", "queuePattern": "seen*"}
            boss.ask(53, payload=form | {"operations": ["ListQueues", "GetQueueInfo", "Subscribe"]})
        yield found


def test_health_is_open_and_in_both_styles(guarded: Vibe) -> None:
    for path in ("/health/", "/health"):
        reply = guarded.call("GET", path)
        assert reply.status == 200
        found = reply.json
        assert found["is_healthy"] is found["isHealthy"] is True
        assert found["status"] == "healthy"
        for name in ("active_connections", "queue_count", "in_flight_messages", "memory_usage_mb",
                     "total_messages_published", "total_messages_delivered"):  # fmt: skip
            assert found[name] == found[camel(name)] >= 0
        assert found["timestamp"].endswith("Z")
    assert guarded.call("POST", "/health/").status == 405


def test_metrics_ask_who_it_is_and_count(guarded: Vibe) -> None:
    assert guarded.call("GET", "/metrics/").status == 401
    with guarded.client(authUsername="boss", authPassword="the boss's own") as boss:
        before = guarded.call("GET", "/metrics/", user=BOSS).json
        boss.subscribe("counted")
        boss.publish("counted", 1)
        got = boss.delivery()
        during = guarded.call("GET", "/metrics/", user=BOSS).json
        boss.ack(got)
        assert boss.ask(PING).id
        boss.ask(41, "nowhere")
        after = guarded.call("GET", "/metrics/", user=READER).json
    for found in (before, during, after):
        for name in METRICS:
            assert found[name] == found[camel(name)]
    assert during["in_flight_messages"] == before["in_flight_messages"] + 1
    for name in ("published", "delivered", "acknowledged"):
        name = f"total_messages_{name}"
        assert after[name] == before[name] + 1
    assert after["total_errors"] == before["total_errors"] + 1
    assert after["active_connections"] >= 1
    assert after["memory_usage_bytes"] > 1 << 20
    assert after["uptime"].count(":") == 2
    assert set(guarded.call("GET", "/api/metrics", user=BOSS).json) == set(METRICS)


def test_the_api_asks_who_it_is(guarded: Vibe) -> None:
    for path in ("version", "health", "metrics", "queues", "queues/q", "queues/q/messages",
                 "queues/q/messages/1", "nothing"):  # fmt: skip
        wrong = ("boss:wrong", "nobody:x") if path == "queues" else ()  # each takes its time
        for user in (None, "boss", *wrong):
            reply = guarded.call("GET", f"/api/{path}", user=user)
            assert reply.status == 401, (path, user)
            assert reply.headers["www-authenticate"].startswith("Basic")
    for method, path in (("DELETE", "queues/q"), ("DELETE", "queues/q/messages")):
        assert guarded.call(method, f"/api/{path}").status == 401
    assert set(guarded.call("GET", "/api/version", user=READER).json) == {
        "server_version", "webui_version",
    }  # fmt: skip
    assert guarded.call("GET", "/api/health", user=READER).json["status"] == "ok"


def test_queues_and_messages_are_seen_and_removed(guarded: Vibe) -> None:
    with guarded.client(authUsername="boss", authPassword="the boss's own") as boss:
        for number in range(120):
            boss.publish("seen", number, f"id {number}", colour="red")
        boss.publish("unseen", 1)
    names = [each["name"] for each in guarded.call("GET", "/api/queues", user=READER).json]
    assert names == ["seen"]
    info = guarded.call("GET", "/api/queues/seen", user=READER).json
    assert (info["message_count"], info["delivery_mode"], info["max_size"]) == (120, 0, 10_000)
    page = guarded.call("GET", "/api/queues/seen/messages", user=READER).json
    assert [each["payload"] for each in page] == list(range(50))
    assert page[0]["headers"] == {"colour": "red"}
    assert page[0]["id"] == "id 0"
    page = guarded.call("GET", "/api/queues/seen/messages?limit=200&offset=10", user=READER).json
    assert [each["payload"] for each in page] == list(range(10, 110))
    assert guarded.call("GET", "/api/queues/seen/messages?offset=500", user=READER).json == []
    one = guarded.call("GET", "/api/queues/seen/messages/id%207", user=READER).json
    assert (one["payload"], one["queue"], one["delivery_attempts"]) == (7, "seen", 0)
    for path, user, status in [
        ("seen/messages/id%207", READER, 403),
        ("seen/messages/id%207", BOSS, 204),
        ("seen/messages/id%207", BOSS, 404),
        ("seen/messages", READER, 403),
        ("seen", READER, 403),
        ("seen/messages", BOSS, 204),
        ("nowhere/messages", BOSS, 404),
        ("seen", BOSS, 204),
        ("seen", BOSS, 404),
    ]:
        assert guarded.call("DELETE", f"/api/queues/{path}", user=user).status == status, path
        if path == "seen/messages" and status == 204:
            info = guarded.call("GET", "/api/queues/seen", user=BOSS).json
            assert info["message_count"] == 0
    for path in ("unseen", "unseen/messages", "unseen/messages/1"):
        assert guarded.call("GET", f"/api/queues/{path}", user=READER).status == 403


def test_what_makes_no_sense_is_told_so(guarded: Vibe) -> None:
    for method, path, status in [
        ("GET", "/", 404), ("GET", "/api", 404), ("GET", "/api/queues/a/b/c/d", 404),
        ("POST", "/api/queues", 405), ("PUT", "/api/queues/q", 405), ("DELETE", "/metrics/", 405),
        ("GET", "/api/queues/%FF", 400), ("GET", "/api/queues/unseen/messages?limit=x", 400),
        ("GET", "/api/queues/..%2F", 404), ("GET", "/api/queues/unseen%2F$dead", 404),
    ]:  # fmt: skip
        reply = guarded.call(method, path, user=BOSS)
        assert reply.status == status, (method, path, reply)
        assert reply.json["error"]


def test_other_ports_have_our_own_paths(guarded: Vibe) -> None:
    assert guarded.broker.call("GET", "/health").json == {"status": "healthy"}
    with guarded.client(authUsername="boss", authPassword="the boss's own"):
        assert guarded.call("GET", "/health/").json["active_connections"] == 1
