"""How long the server waits for peers that take what they asked for slowly, or not at all.

The limits are a second here; see `hurried.py`.
"""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.server.running import Running, development
from tests.server.test_listener import POST
from tests.server.wire import FOREVER_SECONDS, connect, connect_narrowly, is_let_go, on_the_way

pytestmark = pytest.mark.alone

MESSAGES, BODY_BYTES = 100, 100_000
SMALL_BYTES = 40_000  # an answer that stays below the mark at which writing pauses
PEEK = (
    b"GET /api/v1/namespaces/default/queues/%s/messages?limit=100 HTTP/1.1\r\nhost: localhost\r\n"
)
LARGE, SMALL, CLOSE, END = PEEK % b"large", PEEK % b"small", b"connection: close\r\n", b"\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("patience") / "data"
    with development(folder, module=["tests.server.hurried"]) as broker:
        broker.send("large", *("x" * BODY_BYTES for _ in range(MESSAGES)))
        broker.send("small", "x" * SMALL_BYTES)
        assert broker.queue("GET", "small/messages").status == 200
        yield broker
    assert not [each for each in broker.log if each["level"] in ("error", "critical")]


def fill(broker: Running, made: socket.socket) -> None:
    """Asks for small answers until the kernel takes no more, and reads none of them."""
    grown = SMALL_BYTES
    while grown >= SMALL_BYTES // 2:
        had, grown = on_the_way(broker, made), 0
        made.sendall(SMALL + END)
        deadline = time.monotonic() + 0.3
        while grown < SMALL_BYTES // 2 and time.monotonic() < deadline:
            grown = on_the_way(broker, made) - had


def test_who_leaves_a_little_unread_is_not_waited_for_for_ever(broker: Running) -> None:
    """Too little for writing to pause: then the next request is awaited, or a close goes on."""
    waiting = [connect_narrowly(broker) for _ in range(2)]
    for each, last in zip(waiting, (b"", SMALL + CLOSE + END), strict=True):
        fill(broker, each)
        each.sendall(last)
    for each in waiting:
        assert is_let_go(broker, each)
        each.close()


def test_slow_but_steady_readers_get_the_whole_of_a_long_answer(broker: Running) -> None:
    readers = [connect_narrowly(broker) for _ in range(2)]
    for each, rest in zip(readers, (END, CLOSE + END), strict=True):
        each.sendall(LARGE + rest)
    got, begun = [0, 0], time.monotonic()
    while time.monotonic() < begun + 3:  # three times what a stall may last
        for at, each in enumerate(readers):
            got[at] += len(each.recv(4_096))
        time.sleep(0.02)  # slept: the pace of a slow reader
    for at, each in enumerate(readers):
        assert got[at] < MESSAGES * BODY_BYTES / 2
        while got[at] < MESSAGES * BODY_BYTES:
            chunk = each.recv(1 << 20)
            assert chunk
            got[at] += len(chunk)
        each.close()


def test_who_reads_nothing_of_a_long_answer_is_cut_off(broker: Running) -> None:
    with connect_narrowly(broker) as made:
        made.sendall(LARGE + END)
        assert made.recv(12) == b"HTTP/1.1 200"
        assert is_let_go(broker, made)


def test_a_body_that_does_not_come_is_not_waited_for(broker: Running) -> None:
    waiting = [connect(broker) for _ in range(4)]
    length, chunked = b"content-length: 5\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"
    begun = (length, length + b"half", chunked, chunked + b"1\r\n")
    for each, head in zip(waiting, begun, strict=True):
        each.sendall(POST + b"content-type: text/plain\r\n" + head)
    for each in waiting:
        answer = b""
        while chunk := each.recv(1_000):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not come within 1 s" in answer
        each.close()


def test_answers_that_nobody_reads_are_bounded_over_all_connections(broker: Running) -> None:
    """Four of ten megabytes are held, and what is asked for beyond that is refused."""
    waiting = [connect_narrowly(broker) for _ in range(8)]
    for each in waiting:
        each.sendall(LARGE + END)
    said = [each.recv(12) for each in waiting]
    assert said.count(b"HTTP/1.1 200") == 4
    assert said.count(b"HTTP/1.1 503") == 4
    assert broker.queue("GET", "large/messages?limit=100").status == 503
    assert broker.queue("GET", "small/messages").status == 200
    for each in waiting:
        each.close()
    deadline = time.monotonic() + FOREVER_SECONDS
    while broker.queue("GET", "large/messages?limit=100").status != 200:
        assert time.monotonic() < deadline


def test_small_answers_that_nobody_reads_are_bounded_too(broker: Running) -> None:
    """Of a quarter of a megabyte each, several on every connection."""
    head = LARGE.replace(b"limit=100", b"limit=2")
    waiting = [connect_narrowly(broker) for _ in range(300)]
    for each in waiting:
        each.sendall((head + END) * 16)
    deadline = time.monotonic() + FOREVER_SECONDS
    while broker.queue("GET", "small/messages").status != 503:
        assert time.monotonic() < deadline
    for each in waiting:
        each.close()
    while broker.queue("GET", "small/messages").status != 200:
        assert time.monotonic() < deadline
