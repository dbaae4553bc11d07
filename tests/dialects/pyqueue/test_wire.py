"""A broker as its users start it: bytes on sockets, TLS, the API over HTTP, and what survives."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.dialects.pyqueue.client import Client, binary_frame, frame
from tests.server.running import Running, running
from tests.server.wire import trusting_all

API_KEY = "a key of PyQueue's own"


def a_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


class HttpApi:
    """PyQueue's API over HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            made.request(method, path, data, names)
            reply = made.getresponse()
            said = reply.read()
            is_json = reply.headers["content-type"] == "application/json"
            return reply.status, json.loads(said) if is_json else said.decode()
        finally:
            made.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, HttpApi]]:
    folder, port = tmp_path_factory.mktemp("posthouse"), a_port()
    flags = ("--data", str(folder / "data"), "--dev", "--port", f"{port}=pyqueue-http")
    with running(*flags) as made:
        [ready] = made.events("broker.ready")
        [made.port] = set(ready["ports"]) - {port}  # where HTTP is everybody's
        yield made, HttpApi(port)


def test_frames_cut_anywhere_are_understood(broker: tuple[Running, HttpApi]) -> None:
    data = frame("PUSH", {"payload": "cut", "queue": "cut"}) + binary_frame("PING")
    with Client(broker[0].port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(1, len(data)):
            client.send(data[:at])
            client.send(data[at:])
            assert client.read().word == "OK"
            assert client.read_binary().payload == b"PONG"
        for each in data:
            client.send(bytes([each]))
        assert client.read().word == "OK"
        assert client.read_binary().payload == b"PONG"


def test_a_first_frame_of_either_form_is_recognised(broker: tuple[Running, HttpApi]) -> None:
    for first in (frame("PING"), frame("PUSH", b"hello"), frame("ADMIN_HEALTH")):
        with Client(broker[0].port) as client:
            client.send(first)
            assert client.read().word == "OK"
    with Client(broker[0].port) as client:
        client.send(binary_frame("PUSH", b"hello"))
        assert client.read_binary().word == "OK"


def test_bad_bytes_close_that_connection_alone(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port) as good:
        good.ok("PING")
        for bad in (b"PUSH 5x", b"PUSH 99999999 ", b"PUSH \0\xff\xff\xff", b"PING 0 PU$H 0 "):
            with Client(broker[0].port) as client:
                client.send(bad)
                while (reply := client.read()).word == "OK":
                    assert reply.text == "PONG"
                assert reply.text == "Invalid message or message too large"
                assert client.is_closed()
        assert good.ok("PING") == "PONG"


def test_it_is_the_same_over_tls(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port, trusting_all()) as client:
        assert client.error("PUSH", b"x").startswith("Authentication required")
        assert client.is_closed()
    with Client(broker[0].port, trusting_all()) as client:
        client.ok("AUTH", {"type": "apikey", "value": "SAS_KEY_VALUE"})
        client.push("x", queue="tls")
        assert client.work_off("tls") == ["x"]


def test_others_see_tasks_and_theirs_are_pulled(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port) as client:
        id = client.push("from here", queue="shared", priority="HIGH")
        [seen] = broker[0].receive("shared")
        assert (seen["id"], seen["body"], seen["priority"]) == (id, "from here", 9)
        broker[0].complete("shared", seen)
        broker[0].send("shared", "from there", id="t-1")
        job = client.pull("shared")
        assert job == {
            "task_id": "t-1", "payload": "from there", "queue": "shared", "priority": 1,
        }  # fmt: skip
        client.ok("ACK", "t-1")


def test_a_stop_closes_connections_and_keeps_everything(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    with running(*flags) as broker, Client(broker.port) as client:
        client.push("x")
        assert broker.stop() == 0
        assert client.is_closed()
        assert not [each for each in broker.log if each["event"] == "broker.cut"]


def test_a_pulled_task_leaves_room_for_another_also_after_kill_9(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev", "--pyqueue-depth", "2")
    full, at_most = {"payload": "no", "queue": "q"}, "Queue 'q' is at capacity (2/2)"
    with running(*flags) as broker, Client(broker.port) as client:
        for payload in ("a", "b"):
            client.push(payload, queue="q")
        assert client.error("PUSH", full) == at_most
        held = client.pull("q")
        client.push("c", queue="q")
        assert client.error("PUSH", full) == at_most
        broker.kill()
    with running(*flags) as broker, Client(broker.port) as client:
        assert client.error("PUSH", full) == at_most
        assert client.ok("ADMIN_QUEUE_METRICS", b"q")["processing"] == 1
        client.ok("NACK", {"task_id": held["task_id"]})
        assert client.ok("ADMIN_QUEUE_METRICS", b"q")["depth"] == 3
        assert client.error("PUSH", full) == "Queue 'q' is at capacity (3/2)"
        assert sorted(client.work_off("q")) == ["a", "b", "c"]
        client.push("d", queue="q")


def test_everything_is_there_after_kill_9(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    with running(*flags) as broker, Client(broker.port) as client:
        for name in ("LOW", "NORMAL", "HIGH"):
            for number in (1, 2):
                client.push(f"{name}{number}", priority=name, queue="q")
        client.push("once", queue="q2", idempotency_key="k")
        client.ok("SUBSCRIBE", {"topic": "events.#", "queue": "events"})
        client.ok("SCHEDULE", {"payload": "s", "schedule": "every 1 hours", "queue": "q3"})
        client.ok("ADMIN_SET_QUEUE_LIMIT", {"queue": "q4", "max_depth": 1})
        tx = client.ok("BEGIN_TX")["transaction_id"]
        client.push("lost", queue="q", transaction_id=tx)
        held = client.pull("q2")
        for _ in range(3):
            client.push("dead", queue="q5")
            for _ in range(3):
                client.ok("NACK", {"task_id": client.pull("q5")["task_id"], "error": "e"})
        broker.kill()
    with running(*flags) as broker, Client(broker.port) as client:
        assert client.work_off("q") == ["HIGH1", "HIGH2", "NORMAL1", "NORMAL2", "LOW1", "LOW2"]
        duplicate = {"payload": "again", "queue": "q2", "idempotency_key": "k"}
        assert client.error("PUSH", duplicate) == "Duplicate task detected"
        assert client.ok("ACK", held["task_id"]) == "Task acknowledged"
        assert client.ok("PUBLISH", {"topic": "events.a", "message": "m"})["published"] == 1
        assert client.ok("ADMIN_LIST_TASKS", {"status": "scheduled"})["count"] == 1
        assert client.ok("ADMIN_QUEUE_METRICS", b"q4")["max_depth"] == 1
        assert client.error("COMMIT_TX", {"transaction_id": tx}) == "Invalid transaction ID"
        assert client.ok("ADMIN_GET_DLQ")["count"] == 3
        assert client.ok("ADMIN_REPLAY", {"queue_name": "q"})["replayed"] == 6
        found = client.work_off("q")
        assert found == ["HIGH1", "HIGH2", "NORMAL1", "NORMAL2", "LOW1", "LOW2"]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_compressed_journal_is_read_by_all_who_read_it(tmp_path: Path, codec: str) -> None:
    data, payload = tmp_path / "data", "a long payload, " * 200
    with running("--data", str(data), "--dev", "--compress", codec) as broker:
        with Client(broker.port) as client:
            client.push(payload, queue="q")
        rows = [json.loads(line) for line in broker.call("GET", "/feed").body.splitlines()]
        assert payload in [row.get("body") for row in rows]
        broker.kill()
    assert not [path for path in data.rglob("*") if path.is_file() and b"a long payload, a long"
                in path.read_bytes()]  # fmt: skip
    with running("--data", str(data), "--dev") as broker, Client(broker.port) as client:
        assert client.ok("ADMIN_REPLAY", {})["replayed"] == 0
        assert client.work_off("q") == [payload]


# The API over HTTP.


def test_tasks_are_pushed_and_told_over_http(broker: tuple[Running, HttpApi]) -> None:
    made, api = broker
    form = {"payload": "web", "priority": "HIGH", "queue": "web", "idempotency_key": "k"}
    status, told = api.call("POST", "/api/tasks", form)
    assert (status, told["status"]) == (200, "created")
    assert api.call("POST", "/api/tasks", form) == (409, {"detail": "Duplicate task detected"})
    status, batch = api.call(
        "POST", "/api/tasks/batch",
        {"tasks": [{"payload": "b", "queue": "web"}, {"payload": "c", "queue": "web2"}]},
    )  # fmt: skip
    assert (status, batch["count"]) == (200, 2)
    assert api.call("GET", "/api/queues")[1]["queues"]["web"] == {
        "depth": 2, "processing": 0, "scheduled": 0,
    }  # fmt: skip
    info = api.call("GET", "/api/queues/web")[1]
    assert [each["payload"] for each in info["tasks"]] == ["web", "b"]
    assert info["tasks"][0] == {"id": told["task_id"], "payload": "web", "priority": 0}
    assert api.call("GET", "/api/queues/none") == (404, {"detail": "Queue 'none' not found"})
    with Client(made.port) as client:
        client.ok("HEARTBEAT", {"worker_id": "w-1"})
        assert client.work_off("web") == ["web", "b"]
    assert api.call("GET", "/api/metrics")[1]["tasks_completed"] >= 2
    assert api.call("GET", "/api/workers")[1]["workers"][0]["worker_id"] == "w-1"
    assert api.call("GET", "/api/dlq")[1] == {"tasks": [], "count": 0}
    assert api.call("GET", "/health") == (200, {"status": "healthy", "broker_running": True})


def test_prometheus_finds_the_names_it_knows(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port) as client:
        client.push("x", queue='odd "name"')
    status, text = broker[1].call("GET", "/metrics")
    assert status == 200
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    assert names == {
        "pyqueue_tasks_pushed_total", "pyqueue_tasks_completed_total", "pyqueue_tasks_failed_total",
        "pyqueue_tasks_expired_total", "pyqueue_queue_depth", "pyqueue_processing_tasks",
        "pyqueue_active_workers", "pyqueue_processing_time_seconds_bucket",
        "pyqueue_processing_time_seconds_sum", "pyqueue_processing_time_seconds_count",
        "pyqueue_throughput_tasks_per_second",
    }  # fmt: skip
    assert 'pyqueue_queue_depth{queue_name="odd \\"name\\""} 1' in text


def test_the_time_that_tasks_take_is_a_histogram(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port) as client:
        client.push("x", queue="timed")
        task = client.pull("timed")
        assert task is not None
        client.ok("ACK", task["task_id"])
    _, text = broker[1].call("GET", "/metrics")
    [family] = [
        each
        for each in text_string_to_metric_families(text)
        if each.name == "pyqueue_processing_time_seconds"
    ]
    assert family.type == "histogram"
    bounds = [each.labels["le"] for each in family.samples if each.name.endswith("_bucket")]
    assert (bounds[0], bounds[-2:]) == ("0.005", ["10.0", "+Inf"])
    values = {each.labels.get("le", each.name): each.value for each in family.samples}
    assert values["+Inf"] == values["pyqueue_processing_time_seconds_count"] >= 1


def test_pages_are_plain_and_names_in_them_are_escaped(broker: tuple[Running, HttpApi]) -> None:
    with Client(broker[0].port) as client:
        client.push("x", queue="<script>alert(1)<-script>")
    status, page = broker[1].call("GET", "/")
    assert status == 200
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "/api/tasks" in broker[1].call("GET", "/docs")[1]


@pytest.mark.parametrize(("method", "path", "body", "status"), [
    ("GET", "/nothing", None, 404), ("DELETE", "/api/queues", None, 404),
    ("POST", "/api/tasks", {"queue": "q"}, 422), ("POST", "/api/tasks", [1], 422),
    ("POST", "/api/tasks", {"payload": "x", "priority": "URGENT"}, 400),
    ("GET", "/api/queues/%ff", None, 404), ("POST", "/api/tasks/batch", {}, 422),
])  # fmt: skip
def test_what_is_wrong_over_http_is_told(
    broker: tuple[Running, HttpApi], method: str, path: str, body: Any, status: int
) -> None:
    said, told = broker[1].call(method, path, body)
    assert said == status
    assert told["detail"]


# With credentials, and PyQueue's own names in the environment.


def test_pyqueue_s_own_settings_are_read(tmp_path: Path) -> None:
    api = HttpApi(a_port())
    environment = {
        "SECURITY_ENABLED": "true", "API_KEY": API_KEY, "QUEUE_MAX_DEPTH": "2",
        "MAX_RETRIES": "1", "VISIBILITY_TIMEOUT": "60", "POSTHOUSE_PYQUEUE_RATE": "1000",
    }  # fmt: skip
    flags = ("--data", str(tmp_path / "data"), "--port", f"{api.port}=pyqueue-http")
    with running(*flags, environment={**os.environ, **environment}) as broker:
        with Client(broker.port) as client:
            assert client.error("PING").startswith("Authentication required")
            assert client.is_closed()
        with Client(broker.port) as client:
            told = client.ok("AUTH", {"type": "apikey", "value": API_KEY})
            assert told == {"authenticated": True, "principal": "api_key_user"}
            client.push("1", queue="q")
            client.push("2", queue="q")
            assert client.error("PUSH", {"payload": "3", "queue": "q"}) == (
                "Queue 'q' is at capacity (2/2)"
            )
            nack = {"task_id": client.pull("q")["task_id"], "error": "no"}
            assert client.ok("NACK", nack) == "Task moved to DLQ"
        for credentials, status in (
            ({}, 401), ({"authorization": f"ApiKey {API_KEY}"}, 200), ({"x_api_key": API_KEY}, 200),
            ({"authorization": "ApiKey wrong"}, 401), ({"authorization": "Bearer x"}, 401),
        ):  # fmt: skip
            assert api.call("GET", "/api/queues", None, **credentials)[0] == status
        assert api.call("GET", "/health")[0] == 200
        assert not [each for each in broker.log if API_KEY in json.dumps(each)]


def test_outside_of_development_an_address_has_its_rate(tmp_path: Path) -> None:
    environment = {**os.environ, "SECURITY_ENABLED": "true", "API_KEY": API_KEY}
    flags = ("--data", str(tmp_path / "data"))
    with running(*flags, environment=environment) as broker, Client(broker.port) as client:
        client.ok("AUTH", f"ApiKey {API_KEY}".encode())
        client.send(frame("PUSH", b"task") * 60)
        said = [client.read() for _ in range(60)]
        assert 20 <= sum(each.word == "OK" for each in said) < 60
        assert said[-1].text == "Rate limit exceeded"
