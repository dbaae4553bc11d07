"""Requests are answered alike in whatever pieces they come: one by one, cut, or many at a time."""

import http.client
import random
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.server.running import Running, development
from tests.server.wire import connect

QUEUE = "/api/v1/namespaces/default/queues/pieces"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("pieces") / "data") as broker:
        broker.queue("PUT", "pieces", {})
        yield broker


class Exchange(NamedTuple):
    method: str
    path: str
    headers: tuple[str, ...]
    body: bytes
    status: int

    @property
    def request(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", *self.headers]
        return "\r\n".join((*lines, "", "")).encode() + self.body


def with_length(body: bytes, *headers: str) -> tuple[tuple[str, ...], bytes]:
    return (*headers, f"Content-Length: {len(body)}"), body


JSON = "Content-Type: application/json"
CHUNKED = b'5\r\n{"mes\r\n1c\r\nsages":[{"body":"chunked"}]}\r\n0\r\n\r\n'
EXCHANGES = [
    Exchange("POST", f"{QUEUE}/messages", *with_length(b'{"messages":[{"body":"x"}]}', JSON), 201),
    Exchange("POST", f"{QUEUE}/messages", *with_length(b"y" * 70_000, "Content-Type: a/b"), 201),
    Exchange("POST", f"{QUEUE}/messages", (JSON, "Transfer-Encoding: chunked"), CHUNKED, 201),
    Exchange("POST", f"{QUEUE}/receive", *with_length(b'{"limit":3,"delete":true}', JSON), 200),
    Exchange("POST", f"{QUEUE}/receive", *with_length(b"[", JSON), 400),
    Exchange("GET", QUEUE, (), b"", 200),
    Exchange("GET", "/docs/swagger-ui-bundle.js", (), b"", 200),  # large: sent in slices
    Exchange("GET", "/feed?limit=10", (), b"", 200),  # sent as it comes
    Exchange("HEAD", "/health/live", (), b"", 200),
    Exchange("GET", "/health/live", (), b"", 200),
    Exchange("GET", "/docs/%6eowhere%2F?a=%20b", (), b"", 404),
]  # fmt: skip
LAST = Exchange("GET", "/health/live", ("Connection: close",), b"", 200)


def statuses(made: socket.socket, exchanges: list[Exchange]) -> list[int]:
    """Of all answers, read one after the other as a client would."""
    file = made.makefile("rb")
    found = []
    for each in exchanges:
        answer = http.client.HTTPResponse(_Given(file), method=each.method)  # type: ignore[arg-type]
        answer.begin()
        answer.read()
        found.append(answer.status)
    assert file.read() == b""  # and then it is closed
    return found


class _Given:
    """A socket's file that is used again."""

    def __init__(self, file: object) -> None:
        self._file = file

    def makefile(self, *_: object) -> "_Given":
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(12))
def test_it_does_not_matter_how_requests_are_cut(broker: Running, seed: int) -> None:
    chance = random.Random(seed)
    exchanges = [*chance.choices(EXCHANGES, k=12), LAST]
    data = b"".join(each.request for each in exchanges)
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.choice((0, 3, 20))))
    made = connect(broker)
    with made:
        for begin, end in pairwise((0, *cuts, len(data))):
            made.sendall(data[begin:end])
            if chance.random() < 0.3:
                time.sleep(0.01)  # slept: so that a piece comes by itself
        assert statuses(made, exchanges) == [each.status for each in exchanges]


def test_a_request_is_asked_for_when_the_client_waits_for_that(broker: Running) -> None:
    headers, body = with_length(b'{"messages":[{"body":"x"}]}', JSON, "Expect: 100-continue")
    with connect(broker) as made:
        made.sendall(Exchange("POST", f"{QUEUE}/messages", headers, b"", 201).request)
        assert made.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.sendall(body)
        assert made.recv(1_000).startswith(b"HTTP/1.1 201 ")


def test_one_that_comes_with_rubbish_behind_it_is_answered(broker: Running) -> None:
    with connect(broker) as made:
        made.sendall(EXCHANGES[0].request + b"rubbish\r\n\r\n")
        answer = b"".join(iter(lambda: made.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize("path", ["/servicebus/queues", QUEUE])
def test_an_id_is_echoed_once_whoever_answers(broker: Running, path: str) -> None:
    asked = Exchange("GET", path, ("X-Correlation-Id: abc", "Connection: close"), b"", 200)
    with connect(broker) as made:
        made.sendall(asked.request)
        answer = b"".join(iter(lambda: made.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"x-correlation-id: abc") == 1


def test_the_last_answer_is_given_when_the_broker_stops(broker: Running) -> None:
    """A long poll is under way then; it ends with nothing, and the connection is closed."""
    headers, body = with_length(b'{"wait_ms":60000}', JSON)
    waiting = Exchange("POST", f"{QUEUE}-empty/receive", headers, body, 200)
    with connect(broker) as made:
        made.sendall(waiting.request)
        deadline = time.monotonic() + 30
        while not broker.queue("GET", "pieces-empty").json.get("receivers"):
            assert time.monotonic() < deadline
        broker.stop()
        answer = b"".join(iter(lambda: made.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"messages":[]}')
