"""A head that comes again, byte for byte, is not read again; for its client nothing changes."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.server.http_peer import KNOWN_HEAD_BYTES_MAX, KNOWN_HEADS_MAX, Head, KnownHeads
from tests.server.running import Running, development, running
from tests.server.wire import connect

ROOT = "RootManageSharedAccessKey"
PATH = "/api/v1/namespaces/default/queues/again"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
    assert not [each for each in broker.log if each["level"] in ("error", "critical")]


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json",
             f"content-length: {len(body)}", *headers, "", ""]  # fmt: skip
    return "\r\n".join(lines).encode() + body


def send(body: str) -> bytes:
    return request(f"{PATH}/messages", json.dumps({"messages": [{"body": body}]}).encode())


RECEIVE = request(f"{PATH}/receive", b'{"delete": true, "limit": 9}')


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The next one, and nothing behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1)
    head = data.lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return int(data.split()[1]), body


def bodies(connection: socket.socket) -> list[str]:
    connection.sendall(RECEIVE)
    status, content = answer(connection)
    assert status == 200
    return [each["body"] for each in json.loads(content)["messages"]]


def test_each_request_has_its_own_body(broker: Running) -> None:
    with connect(broker) as connection:
        for at in range(9):
            connection.sendall(send(f"m{at}"))
            assert answer(connection)[0] == 201
        assert bodies(connection) == [f"m{at}" for at in range(9)]


def test_it_does_not_matter_how_the_bytes_are_cut(broker: Running) -> None:
    with connect(broker) as connection:
        for _ in range(3):
            connection.sendall(send("known"))
            assert answer(connection)[0] == 201
        assert bodies(connection) == ["known"] * 3
        whole = send("part1")
        for at in (1, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
            for part in (whole[:at], whole[at:]):
                connection.sendall(part)
                if part is not whole[at:]:
                    assert broker.call("GET", "/health/live").status == 200  # it has been read
            assert answer(connection)[0] == 201
            assert bodies(connection) == ["part1"]


def test_requests_behind_each_other_are_answered_in_their_order(broker: Running) -> None:
    with connect(broker) as connection:
        for _ in range(3):
            connection.sendall(send("known"))
            assert answer(connection)[0] == 201
        assert bodies(connection) == ["known"] * 3
        connection.sendall(send("one__") + send("two__") + send("three"))
        assert [answer(connection)[0] for _ in range(3)] == [201] * 3
        connection.sendall(b"\r\n" + send("four_"))  # RFC 9112, 2.2: an empty line before it
        assert answer(connection)[0] == 201
        assert bodies(connection) == ["one__", "two__", "three", "four_"]


def test_a_key_that_is_no_more_is_refused_also_in_a_head_that_came_before(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data"), "--auto-create") as broker:
        root = f"{ROOT}:" + (tmp_path / "data" / "root-key").read_text().strip()
        grants = [{"namespace": "default", "entity": "*", "rights": ["listen"]}]
        form = {"name": "worker", "grants": grants}
        key = broker.call("POST", "/api/v1/principals", form, key=root).json["key"]
        asked = request(f"{PATH}/receive", b"{}", f"authorization: Bearer worker:{key}")
        with connect(broker) as connection:
            for _ in range(4):
                connection.sendall(asked)
                assert answer(connection)[0] == 200
            assert broker.call("DELETE", "/api/v1/principals/worker", key=root).status == 204
            connection.sendall(asked)
            assert answer(connection)[0] == 401


# What is remembered.


def noted(heads: KnownHeads, data: bytes, body_bytes: int = 0) -> Head:
    head = Head("GET", b"/", b"", [(b"host", b"x")], [(b"Host", b"x")])
    heads.note(data, head, body_bytes)
    return head


def test_a_head_is_known_when_it_has_come_twice() -> None:
    heads, data = KnownHeads(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    noted(heads, data)
    assert heads.find(data) is None
    head = noted(heads, data)
    assert heads.find(data) == (head, 0)
    assert heads.find(data[:-1]) is None


@pytest.mark.parametrize(
    ("data", "body_bytes"),
    [
        (b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 0),
        (b"GET / HTTP/1.1\nHost: x\n\nab\r\n\r\n", 0),
        (b"GET / HTTP/1.1\nHost: x\n\n\r\n\r\n", 4),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nabc", 2),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nabc", 4),
        (b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % (b"x" * KNOWN_HEAD_BYTES_MAX), 0),
    ],
)
def test_what_does_not_end_where_it_is_looked_for_is_never_known(
    data: bytes, body_bytes: int
) -> None:
    heads = KnownHeads()
    for _ in range(3):
        noted(heads, data, body_bytes)
    assert heads.find(data[: data.find(b"\r\n\r\n") + 4]) is None


def test_there_is_an_end_to_what_is_remembered() -> None:
    heads, data = KnownHeads(), b"GET / HTTP/1.1\r\nHost: x\r\nx-n: %d\r\n\r\n"
    for at in range(KNOWN_HEADS_MAX):
        noted(heads, data % at)
    noted(heads, data % 0)
    assert heads.find(data % 0) is not None
    noted(heads, data % KNOWN_HEADS_MAX)
    assert heads.find(data % 0) is None
