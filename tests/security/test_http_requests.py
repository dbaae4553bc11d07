"""Requests as no client of ours writes them: each is answered, or its connection is closed."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.security.figures import open_connections, wait_for_connections
from tests.server.running import Running, development
from tests.server.wire import connect
from tests.waiting import until

ANSWER_SECONDS = 20  # far more than the limits of the broker here
AT_A_TIME = 50

METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PUT", b"BREW")
TARGETS = (
    b"/health/live", b"/", b"//", b"/%", b"/%zz", b"/a#b", b"/\xff", b"/\0", b"*", b"**", b"?x=1",
    b"a:1", b"a:99999", b"http://x", b"http://x?y=1", b"http://x/", b"http://x/health/live",
    b"http://", b"http:/x", b"http://u:p@x/", b"http://x:99999/", b"https://[::1]", b"ftp://x/y",
    b"x", b"/servicebus", b"/api/v1", b"/feed?after=%00", b"/$servicebus/websocket", b"/docs/",
)  # fmt: skip
VERSIONS = (b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b" HTTP/0.9", b" HTTP/1.1 x", b"")
HEADERS = (
    b"",
    b"host: localhost\r\nhost: elsewhere\r\n",
    b"host: localhost\r\nhost: localhost\r\n",
    b"host: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n",
    b"host: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n",
    b"host: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n",
    b"host: localhost\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
    b"host: localhost\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    b"host: localhost\r\ncontent-length: -1\r\n",
    b"host: localhost\r\ncontent-length: 5\r\n",
    b"host: localhost\r\nexpect: 100-continue\r\ncontent-length: 5\r\n",
    b"host: localhost\r\nexpect: tea\r\n",
    b"host: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n",
    b"host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
    b"host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 5\r\n",
    b"host: localhost\r\nx: a\rb\r\n",
    b"host: localhost\r\nx: a\0b\r\n",
    b"host: localhost\n",
    b"host: localhost\r\nx : y\r\n",
    b"host: localhost\r\n x: y\r\n",
    b"host: localhost\r\nauthorization: Basic !\r\n",
    b": nameless\r\n",
)
BODIES = (
    (b"transfer-encoding: chunked\r\n\r\n", b"ffffffffffffffff\r\nx"),
    (b"transfer-encoding: chunked\r\n\r\n", b"8000000000000000\r\nx"),
    (b"transfer-encoding: chunked\r\n\r\n", b"7fffffffffffffff\r\nx"),
    (b"transfer-encoding: chunked\r\n\r\n", b"-1\r\nx"),
    (b"transfer-encoding: chunked\r\n\r\n", b"5\r\nhelloworld\r\n"),
    (b"transfer-encoding: chunked\r\n\r\n", b"0\r\ncontent-length: 5\r\n\r\n"),
    (b"transfer-encoding: chunked\r\n\r\n", b"1;" + b"x" * 1_000_000),
    (b"content-length: 9223372036854775807\r\n\r\n", b"x"),
    (b"content-length: 18446744073709551616\r\n\r\n", b"x"),
    (b"x: " + b"y" * 1_000_000 + b"\r\n\r\n", b""),
    (b"x: y\r\n" * 10_000 + b"\r\n", b""),
)
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With limits of time that a test can wait for."""
    folder: Path = tmp_path_factory.mktemp("requests")
    with development(folder, "--handshake-limit", "1", module=["tests.server.hurried"]) as made:
        yield made


async def outcomes(broker: Running, requests: list[bytes]) -> list[bytes | None]:
    """What each is answered, to its end; None where there is neither an answer nor an end."""
    turn = asyncio.Semaphore(AT_A_TIME)

    async def outcome(data: bytes) -> bytes | None:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            answer = b""
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    with contextlib.suppress(ConnectionError):
                        writer.write(data)
                        while piece := await reader.read(65_536):
                            answer += piece
            except TimeoutError:
                return None
            finally:
                writer.transport.abort()
            return answer

    return await asyncio.gather(*map(outcome, requests))


def check_all_end(broker: Running, requests: list[bytes]) -> list[bytes]:
    """Each is answered or closed, and nothing is left of it. Returns the answers."""
    answers = asyncio.run(outcomes(broker, requests))
    left = [data[:200] for data, answer in zip(requests, answers, strict=True) if answer is None]
    assert left == []
    assert wait_for_connections(broker, 0) == 0
    return [answer for answer in answers if answer is not None]


def test_every_request_line_is_answered_or_closed(broker: Running) -> None:
    requests = [
        method + b" " + target + version + b"\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        for method, target, version in product(METHODS, TARGETS, VERSIONS)
    ]
    check_all_end(broker, requests)


@pytest.mark.parametrize("behind", [b"", b"hello", b"0\r\n\r\n", LIVE])
def test_every_head_is_answered_or_closed(broker: Running, behind: bytes) -> None:
    requests = [
        method + b" " + target + version + b"\r\n" + headers + b"\r\n" + behind
        for method, target, version, headers in product(
            (b"GET", b"POST"), (b"/health/live", b"http://x"), VERSIONS[:2], HEADERS
        )
    ]
    check_all_end(broker, requests)


@pytest.mark.parametrize("before", [b"", LIVE])
def test_every_body_is_answered_or_closed(broker: Running, before: bytes) -> None:
    """Also behind a request that is sound, and in the same piece or the next."""
    post = b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
    check_all_end(broker, [before + post + head + body for head, body in BODIES])


def test_a_target_without_a_path_is_one_with_the_shortest_path(broker: Running) -> None:
    """RFC 9112, 3.2.2."""
    heads = (b"GET http://localhost HTTP/1.1", b"GET http://localhost/ HTTP/1.1",
             b"GET http://localhost?x=1 HTTP/1.1")  # fmt: skip
    ends = b"\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for answer in check_all_end(broker, [head + ends for head in heads]):
        assert answer.startswith(b"HTTP/1.1 404"), answer


def test_the_authority_of_a_target_counts_and_not_the_host(broker: Running) -> None:
    """RFC 9112, 3.2.2. With --dev requests by a name elsewhere are turned away."""
    path, end = b"/api/v1/namespaces", b"\r\nconnection: close\r\n\r\n"
    ours, others = check_all_end(broker, [
        b"GET http://localhost" + path + b" HTTP/1.1\r\nhost: elsewhere.example" + end,
        b"GET http://elsewhere.example" + path + b" HTTP/1.1\r\nhost: localhost" + end,
    ])  # fmt: skip
    assert ours.startswith(b"HTTP/1.1 200")
    assert others.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"OPTIONS * HTTP/1.1", 204),
        (b"GET * HTTP/1.1", 400),
        (b"CONNECT localhost:80 HTTP/1.1", 400),
        (b"CONNECT / HTTP/1.1", 400),
        (b"GET ftp://localhost/ HTTP/1.1", 400),
        (b"GET http://name:key@localhost/ HTTP/1.1", 400),
        (b"GET /health/live", 505),
    ],
)
def test_a_target_is_taken_in_the_form_that_its_method_has(
    broker: Running, request_line: bytes, status: int
) -> None:
    """RFC 9112, 3.2."""
    request = request_line + b"\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    [answer] = check_all_end(broker, [request])
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer


@pytest.mark.parametrize(
    "headers",
    [
        b"",  # of 1.1 a host is asked for
        b"host: localhost\r\nhost: localhost\r\n",
        b"host: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n",
        b"host: localhost\r\ncontent-length: 5\r\ncontent-length: 5\r\n",
        b"host: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"host: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"host: localhost\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
        b"host: localhost\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"host: localhost\r\nauthorization: Basic eDp5\r\nauthorization: Basic eDp6\r\n",
    ],
)
def test_a_head_that_two_readers_could_read_differently_ends_its_connection(
    broker: Running, headers: bytes
) -> None:
    """Else what is one request to a proxy is two to the broker."""
    head = b"POST /health/live HTTP/1.1\r\n" + headers + b"\r\n"
    [answer] = check_all_end(broker, [head + b"0\r\n\r\n" + LIVE])
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_in_chunks_is_not_taken_from_who_speaks_1_0(broker: Running) -> None:
    """RFC 9112, 6.1: its framing is faulty."""
    head = b"POST /health/live HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    [answer] = check_all_end(broker, [head + b"0\r\n\r\n" + LIVE])
    assert answer.startswith(b"HTTP/1.1 400"), answer


def test_a_request_behind_an_upgrade_that_is_not_made_is_answered(broker: Running) -> None:
    """RFC 9110, 7.8: who does not know the other protocol goes on with this one."""
    asks = LIVE[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    [answer] = check_all_end(broker, [asks + LIVE + LIVE])
    assert answer.count(b"HTTP/1.1 200") == 3


def test_10000_requests_at_once_end(broker: Running) -> None:
    [answer] = check_all_end(broker, [LIVE * 10_000])
    assert answer.startswith(b"HTTP/1.1 200")


POLL = b'{"wait_ms": 50000}'
RECEIVE = (
    b"POST /api/v1/namespaces/default/queues/silent/receive HTTP/1.1\r\nhost: localhost\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(POLL), POLL)
)


@pytest.mark.parametrize(
    "behind",
    [b"", LIVE, LIVE * 100, b"\0", RECEIVE[:-1], b"x" * 60_000],
    ids=["nothing", "one request", "too many", "no request", "half of one", "much"],
)
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_goes_away_while_it_waits_is_gone(
    broker: Running, behind: bytes, is_reset: bool
) -> None:
    """Whatever it has sent behind its request, which may be why it is not read from."""
    broker.queue("PUT", "silent", {})
    with connect(broker) as made:
        made.sendall(RECEIVE)
        until(lambda: broker.queue("GET", "silent").json["receivers"], "it waits")
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.send(behind)
        broker.until_idle()
        if is_reset:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert wait_for_connections(broker, 0) == 0
    assert broker.queue("GET", "silent").json["receivers"] == 0


def test_who_says_no_more_and_takes_nothing_is_cut_off(broker: Running) -> None:
    """He has closed his side, and what is to be sent to him is less than would be noticed."""
    broker.send("large", *("x" * 10_000 for _ in range(4)))
    path = b"/api/v1/namespaces/default/queues/large/messages?limit=4"
    asks = b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(20)
    with made:
        made.connect(("127.0.0.1", broker.port))
        deadline = time.monotonic() + 3
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while time.monotonic() < deadline:
                made.send(asks)
                time.sleep(0.01)  # slept: the pace at which it asks
        with contextlib.suppress(OSError):
            made.shutdown(socket.SHUT_WR)
        assert wait_for_connections(broker, 0) == 0


def test_the_count_of_connections_is_right(broker: Running) -> None:
    """What the tests here rely on."""
    with connect(broker) as one, connect(broker) as other:
        for made in (one, other):
            made.sendall(LIVE)
            made.recv(1_000)
        assert open_connections(broker) == 2
    assert wait_for_connections(broker, 0) == 0
