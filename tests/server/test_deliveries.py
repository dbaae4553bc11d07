"""Messages as they come, to who stays connected."""

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import INTERRUPTIBLE
from tests.server.running import Running, development

POSTHOUSE = str(Path(sys.executable).with_name("posthouse"))
QUEUES = "/api/v1/namespaces/default/queues"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("deliveries") / "data") as broker:
        yield broker


class Lines:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def __next__(self) -> Any:
        while True:
            line = self._answer.readline()
            if not line:
                raise StopIteration
            if line.strip():
                return json.loads(line)


@contextmanager
def attached(broker: Running, queue: str, query: str = "") -> Iterator[Lines]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=30)
    connection.request("GET", f"{QUEUES}/{queue}/deliveries{query}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.headers["content-type"] == "application/x-ndjson"
    try:
        yield Lines(answer)
    finally:
        connection.close()


def until_nobody_is_attached(broker: Running, queue: str) -> None:
    deadline = time.monotonic() + 30
    while broker.queue("GET", queue).json["receivers"]:
        assert time.monotonic() < deadline


def test_everybody_attached_to_a_fan_out_queue_gets_everything(broker: Running) -> None:
    assert broker.queue("PUT", "news", {"delivery": "fan-out"}).status == 201
    with attached(broker, "news") as first, attached(broker, "news") as second:
        broker.send("news", "a", "b")
        for lines in (first, second):
            got = [next(lines), next(lines)]
            assert [each["body"] for each in got] == ["a", "b"]
            form = {"locks": [each["token"] for each in got]}
            assert broker.queue("POST", "news/complete", form).status == 200


def test_what_is_not_settled_goes_back_when_the_connection_ends(broker: Running) -> None:
    broker.queue("PUT", "orders", {})
    broker.send("orders", *"abcde")
    with attached(broker, "orders", "?credit=2") as lines:
        first, second = next(lines), next(lines)
        done = broker.queue("POST", "orders/complete", {"locks": [first["token"]]})
        assert done.status == 200
        assert (second["body"], next(lines)["body"]) == ("b", "c")
    until_nobody_is_attached(broker, "orders")
    assert [each["body"] for each in broker.receive("orders", limit=9)] == ["b", "c", "d", "e"]


def test_a_queue_that_is_deleted_ends_it(broker: Running) -> None:
    broker.queue("PUT", "short", {})
    with attached(broker, "short", "?delete=1") as lines:
        broker.send("short", "x")
        assert "token" not in next(lines)
        broker.queue("DELETE", "short")
        with pytest.raises(StopIteration):
            next(lines)


@pytest.mark.parametrize("credit", ["0", "1001", "x", "-1"])
def test_credit_has_bounds(broker: Running, credit: str) -> None:
    broker.queue("PUT", "orders", {})
    assert broker.call("GET", f"{QUEUES}/orders/deliveries?credit={credit}").status == 400


def test_a_stop_ends_it_and_loses_nothing(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("orders", "a")
        with attached(broker, "orders") as lines:
            assert next(lines)["body"] == "a"
            broker.process.send_signal(signal.SIGTERM)
            with pytest.raises(StopIteration):
                next(lines)
            assert broker.process.wait(30) == 0
    with development(tmp_path / "data") as broker:
        assert [each["body"] for each in broker.receive("orders")] == ["a"]


def test_the_command_line_follows(broker: Running) -> None:
    broker.queue("PUT", "told", {"delivery": "fan-out"})
    command = [*INTERRUPTIBLE, POSTHOUSE, "receive", "told", "--follow", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        broker.send("told", "heard")
        assert process.stdout is not None
        assert "heard" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
