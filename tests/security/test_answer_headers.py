"""What a message says of itself in the headers of an answer: clients can read all of it."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.dialects.servicebus.rest import Answer, Rest
from tests.dialects.servicebus.sas import token as signed
from tests.server.running import Running, development
from tests.waiting import until

NODE_BYTES = 16 << 10  # of all headers; what Node takes
AIOHTTP_BYTES = 8_190  # of one header

HOSTILE = ["a\r\nSet-Cookie: x=1", "b\nX: y", "c\0d", "\u2028line", "é", "名前", "\ud7ff", "a b:c",
           "\x7f\x1b[31m"]  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("headers")) as broker:
        yield broker


@pytest.fixture
def queue(broker: Running, request: pytest.FixtureRequest) -> str:
    name: str = "q" + str(abs(hash(request.node.name)))
    assert broker.queue("PUT", name, {}).status < 300
    return name


def properties(count: int, size: int) -> dict[str, str]:
    return {f"p{number}": "x" * size for number in range(count)}


TOO_LARGE: list[dict[str, Any]] = [
    {"subject": "s" * 70_000},
    {"subject": "s" * 8_200},
    {"subject": "é" * 2_000},  # which is six times as long in a header
    {"properties": properties(1, 20_000)},
    {"properties": properties(150, 1)},
    {"properties": properties(20, 1_000)},
    {"properties": {f"{number}{'名' * 200}": "x" for number in range(10)}},
]


def head(broker: Running, method: str, queue: str, prefix: str = "") -> Answer:
    """With http.client, which raises where it cannot read the headers."""
    return Rest(broker.port)(method, f"{prefix}/{queue}/messages/head?timeout=0")


@pytest.mark.parametrize("fields", TOO_LARGE)
@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_a_message_that_does_not_fit_into_headers_is_kept(
    broker: Running, queue: str, method: str, fields: dict[str, Any]
) -> None:
    broker.send(queue, "kept", **fields)
    for _ in range(12):  # more often than a message may be delivered
        refused = head(broker, method, queue)
        assert refused.status == 413
        assert b"AMQP" in refused.body
    [message] = broker.receive(queue)
    assert message["body"] == "kept"
    assert message["deliveries"] == 1
    for name, value in fields.items():
        assert message[name] == value


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_as_much_as_common_clients_take_is_told(broker: Running, queue: str, method: str) -> None:
    broker.send(queue, "told", subject="s" * 7_000, properties=properties(60, 80))
    answer = head(broker, method, queue)
    assert answer.status in (200, 201)
    assert answer.broker["Label"] == "s" * 7_000
    sizes = [len(name) + len(value) + 4 for name, value in answer.headers]
    assert sum(sizes) < NODE_BYTES
    assert max(sizes) < AIOHTTP_BYTES
    assert len(answer.headers) <= 100
    if method == "DELETE":
        assert broker.receive(queue) == []


def test_a_message_is_removed_once_though_many_take_it(broker: Running, queue: str) -> None:
    broker.send(queue, *map(str, range(50)))
    taken = [head(broker, "DELETE", queue).body for _ in range(50)]
    assert taken == [str(number).encode() for number in range(50)]
    assert head(broker, "DELETE", queue).status == 204


def test_who_goes_away_while_waiting_loses_nothing(broker: Running, queue: str) -> None:
    rest = Rest(broker.port)
    path = f"/{queue}/messages/head?timeout=30"
    waiting = HTTPConnection("localhost", broker.port, timeout=30)
    waiting.request("DELETE", path, headers={"Authorization": signed(f"{rest.url}/")})
    until(lambda: broker.queue("GET", queue).json["receivers"], "it waits")
    waiting.close()
    until(lambda: not broker.queue("GET", queue).json["receivers"], "it is known to have left")
    broker.send(queue, "still there")
    assert head(broker, "DELETE", queue).body == b"still there"


def test_the_same_over_localzure_s_routes(broker: Running, queue: str) -> None:
    broker.send(queue, "kept", subject="s" * 70_000)
    where = f"/servicebus/default/queues/{queue}/messages/head"
    for _ in range(12):
        assert broker.call("DELETE", where).status == 413
    reply = broker.call("POST", f"{where}?mode=ReceiveAndDelete")  # its JSON has room for it
    assert reply.status == 200, reply
    assert "s" * 70_000 in reply.body.decode()
    assert "brokerproperties" not in reply.headers


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_or_value_ends_a_header(broker: Running, queue: str, text: str) -> None:
    """Nor is a header there that nobody wrote."""
    fields = {"subject": text, "content_type": text, "to": text, "correlation_id": text}
    broker.send(queue, "body", properties={text: text, "p": text}, **fields)
    path = f"/{queue}/messages/head?timeout=0"
    with socket.create_connection(("127.0.0.1", broker.port)) as raw:
        token = signed(f"http://localhost:{broker.port}/")
        raw.sendall(
            f"DELETE {path} HTTP/1.1\r\nHost: localhost:{broker.port}\r\nAuthorization: {token}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        data = b"".join(iter(lambda: raw.recv(65_536), b""))
    lines, _, body = data.partition(b"\r\n\r\n")
    assert body == b"body"
    assert lines.isascii()
    assert not any(byte < 32 and byte not in b"\r\n" for byte in lines)
    assert lines.count(b"\n") == lines.count(b"\r\n") == lines.count(b"\r")
    names = [line.partition(b":")[0].lower() for line in lines.split(b"\r\n")[1:]]
    assert b"set-cookie" not in names
    assert b"x" not in names
    said = next(line for line in lines.split(b"\r\n") if line.lower().startswith(b"brokerprop"))
    assert json.loads(said.partition(b":")[2])["Label"] == text


def test_what_topics_are_told_in_a_header_is_ascii(broker: Running) -> None:
    assert broker.call("PUT", "/api/v1/namespaces/default/topics/tops", {}).status < 300
    sent = {"body": "x", "message_id": "é\r\n名"}
    reply = broker.call("POST", "/servicebus/default/topics/tops/messages", sent)
    assert reply.status == 201, reply
    assert json.loads(reply.headers["brokerproperties"])["MessageId"] == "é\r\n名"
