"""Hostile bytes on a real port: others go on working, nothing grows, nothing burns."""

import contextlib
import os
import random
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.dialects.known import DIALECTS
from posthouse.server.listener import is_http
from tests.server.running import Running, development
from tests.server.wire import FOREVER_SECONDS, connect, is_let_go, trusting_all
from tests.waiting import until

pytestmark = pytest.mark.alone

HANDSHAKE_SECONDS = 2
GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("listener") / "data"
    flags = (
        "--handshake-limit", str(HANDSHAKE_SECONDS), "--connections-max", "900",
        "--strangers-max", "900", "--strangers-per-address", "900",
    )  # fmt: skip
    with development(folder, *flags) as broker:
        yield broker
    assert not [each for each in broker.log if each["level"] in ("error", "critical")]


def say(broker: Running, data: bytes) -> bytes:
    """What is answered before the connection is closed, or goes silent after an answer."""
    answer = b""
    with connect(broker) as made:
        try:
            made.sendall(data)
            while chunk := made.recv(65_536):
                answer += chunk
                made.settimeout(0.5)
        except (ConnectionError, TimeoutError):
            pass
    return answer


def resident_bytes(broker: Running) -> int:
    pages = int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def files(broker: Running) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def works(broker: Running) -> bool:
    broker.send("works", "x")
    return bool(broker.receive("works", delete=True))


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (b"AMQP\x03\x01\x00\x00", "amqp"), (b"AMQP", "amqp"), (b"\0\0\0\x10", "vibemq"),
        (b"PUSH 5 hello", "pyqueue"), (b"PING 0 ", "pyqueue"), (b"HEALTH_CHECK 0 ", "pyqueue"),
        (b"GET / HTTP/1.1\r\n", "http"), (b"POST /1 HTTP/1.1", "http"), (b"M-SEARCH *", "http"),
        (b"A", None), (b"GET ", None), (b"AMQ", None), (b"\xff\xfe", ""), (b"{", ""), (b" x", ""),
        (b"A1 x", ""),
    ],
)  # fmt: skip
def test_dialects_are_told_apart(data: bytes, dialect: str | None) -> None:
    tests = {each.wire.name: each.wire.recognise for each in DIALECTS if each.wire is not None}
    tests["http"] = is_http
    said = {name: test(data) for name, test in tests.items()}
    sure = [name for name, known in said.items() if known]
    if dialect is None:
        assert not sure
        assert None in said.values()
    else:
        assert sure[:1] == ([dialect] if dialect else [])
        assert dialect or None not in said.values()


def test_a_request_may_come_byte_by_byte(broker: Running) -> None:
    with connect(broker) as made:
        for byte in GET:
            made.sendall(bytes([byte]))
        assert made.recv(100).startswith(b"HTTP/1.1 200")


def test_random_bytes_harm_nobody(broker: Running) -> None:
    dice = random.Random(5)
    for _ in range(200):
        say(broker, dice.randbytes(dice.randrange(1, 300)) + b" \r\n\r\n" + b"\xff" * 64)
    assert works(broker)


def least_cpu_seconds(broker: Running, times: int) -> float:
    """Of some spans of a third of a second: who goes round and round is busy in all of them."""
    used = []
    for _ in range(times):
        before = broker.cpu_seconds
        time.sleep(0.33)  # slept: the span whose processor time is measured
        used.append(broker.cpu_seconds - before)
    return min(used)


def test_silence_is_ended_and_costs_nothing(broker: Running) -> None:
    """Silent ones, and ones that have said half of something, on 500 sockets."""
    before_files = files(broker)
    begun = [b"", b"G", b"GET / HTTP/1.1\r\nx: ", b"\x16\x03\x01\x02\x00\x01\x00", b"AM"]
    sockets = [connect(broker) for _ in range(500)]
    for at, each in enumerate(sockets):
        each.sendall(begun[at % len(begun)])
    broker.until_idle()
    assert works(broker)
    assert least_cpu_seconds(broker, 3) < 0.04
    for each in sockets:
        while True:  # it ends by itself
            try:
                if not each.recv(1000):
                    break
            except ConnectionError:
                break
        each.close()
    until(lambda: files(broker) <= before_files + 5, "the files are closed")
    assert works(broker)


def test_500_that_drip_are_ended_and_cost_little(broker: Running) -> None:
    """A byte now and then: of a word, of the head of a request, of a TLS hello."""
    begun = [b"G", b"GET / HTTP/1.1\r\nx: ", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    before = resident_bytes(broker)
    dripping = [connect(broker) for _ in range(500)]
    for at, each in enumerate(dripping):
        each.sendall(begun[at % len(begun)])
        each.setblocking(False)
    broker.until_idle()
    assert works(broker)
    assert resident_bytes(broker) - before < 40 << 20
    assert least_cpu_seconds(broker, 2) < 0.04
    deadline = time.monotonic() + FOREVER_SECONDS
    while dripping and time.monotonic() < deadline:
        dripping = [each for each in dripping if drips_on(each)]
        time.sleep(0.3)  # slept: the pace at which they drip
    assert not dripping
    assert works(broker)


def drips_on(made: socket.socket) -> bool:
    """One byte more, where it is not closed."""
    try:
        made.send(b"E")
        if made.recv(1_000):
            return True
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    made.close()
    return False


def test_who_is_silent_behind_a_tls_handshake_is_ended(broker: Running) -> None:
    silent = [trusting_all().wrap_socket(connect(broker)) for _ in range(3)]
    for each, begun in zip(silent, (b"", b"GE", b"GET / HTTP/1.1\r\nx: "), strict=True):
        each.sendall(begun)
    for each in silent:
        assert is_let_go(broker, each)
        each.close()


def test_a_head_that_drips_is_ended(broker: Running) -> None:
    with connect(broker) as made:
        made.sendall(b"GET / HTTP/1.1\r\n")
        begun = time.monotonic()
        try:
            for _ in range(100):
                made.sendall(b"x: y\r\n")
                time.sleep(0.1)  # slept: the pace at which it drips
        except ConnectionError:
            pass
        assert time.monotonic() - begun < HANDSHAKE_SECONDS + 5


def test_more_connections_than_there_may_be_are_turned_away(broker: Running) -> None:
    sockets = [connect(broker) for _ in range(890)]
    for each in sockets:
        each.sendall(GET)
    broker.until_idle()
    more = [connect(broker) for _ in range(50)]
    turned = 0
    for each in more:
        try:
            each.sendall(GET)
            turned += each.recv(100) == b""
        except ConnectionError:
            turned += 1
    for each in (*sockets, *more):
        each.close()
    assert turned >= 30
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert works(broker)
        except (OSError, AssertionError):
            continue
        return
    raise AssertionError("it does not work any more")


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", b"HTTP/1.1 400"),
        (
            POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 400",
        ),
        (POST + b"content-length: -1\r\n\r\n", b"HTTP/1.1 400"),
        (POST + b"content-length: 4294967296\r\n\r\n", b"HTTP/1.1 413"),
        (POST + b"content-length: 99999999999999999999\r\n\r\n", b"HTTP/1.1 400"),
        (POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", b"HTTP/1.1 400"),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", b"HTTP/1.1 400"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (GET * 10_000, b"HTTP/1.1"),
        (b"GET /%ff%fe HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /api/v1/namespaces/%ff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 4"),
        (b"GET http://localhost/health/live HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 200"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 4"),
        (b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 204"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
        (b"GET /health/live\r\n\r\n", b""),
        (b"GET /feed?after=%00&limit=%ff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 400"),
    ],
    ids=range(19),
)
def test_hostile_requests_are_refused(broker: Running, data: bytes, answers: bytes) -> None:
    assert say(broker, data).startswith(answers)
    assert works(broker)


def test_bodies_do_not_grow_the_process_before_they_are_believed(broker: Running) -> None:
    """Requests with a wrong key and 40 MB to come; all that is read of them is refused."""
    before = resident_bytes(broker)
    head = POST + b"authorization: Bearer a:b\r\ncontent-length: 40000000\r\n\r\n"
    sockets = []
    for _ in range(20):
        made = connect(broker)
        made.setblocking(False)
        try:
            made.send(head + b"x" * 1_000_000)
            for _ in range(20):
                made.send(b"x" * 1_000_000)
        except (BlockingIOError, ConnectionError):
            pass
        sockets.append(made)
    broker.until_idle()
    assert resident_bytes(broker) - before < 40 << 20
    for each in sockets:
        each.close()
    assert works(broker)


def test_who_does_not_read_is_not_read_from(broker: Running) -> None:
    """Large answers that nobody takes: what is held for each is bounded."""
    broker.send("large", *("x" * 100_000 for _ in range(100)))
    path = b"/api/v1/namespaces/default/queues/large/messages?limit=100"
    ask = b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
    say(broker, ask)
    before = resident_bytes(broker)
    sockets = []
    for _ in range(10):
        made = connect(broker)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        try:
            for _ in range(200):
                made.send(ask)
        except (BlockingIOError, ConnectionError):
            pass
        sockets.append(made)
    broker.until_idle()
    grown = resident_bytes(broker) - before
    assert grown < 10 * 40 << 20  # an answer or two for each, not two hundred
    for each in sockets:
        each.close()
    assert works(broker)


def test_half_a_tls_hello_and_junk_behind_a_whole_one(broker: Running) -> None:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        wrapped.do_handshake()
    hello = outgoing.read()
    for data in (hello[: len(hello) // 2], hello + b"\xff" * 500, b"\x16" * 1000):
        with connect(broker) as made:
            made.sendall(data)
            made.settimeout(HANDSHAKE_SECONDS + 10)
            with contextlib.suppress(ConnectionError):
                while made.recv(65_536):  # it ends by itself
                    pass
    assert works(broker)


def takes(made: socket.socket, data: bytes, more: int) -> bool:
    """Whether all of it is taken."""
    try:
        made.sendall(data)
        for _ in range(more >> 20):
            made.sendall(b"a" * (1 << 20))
    except ConnectionError:
        return False
    return True


def test_what_comes_behind_a_request_is_bounded(broker: Running) -> None:
    """A trailer that never ends, and chunks that are all extension."""
    head = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    before = resident_bytes(broker)
    for start in (b"0\r\nx: ", b"1;", POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx: "):
        data = start if start.startswith(b"POST") else head + start
        with connect(broker) as made:
            assert not takes(made, data, 200 << 20)
    assert resident_bytes(broker) - before < 20 << 20


def test_a_body_that_nobody_reads_ends_the_connection(broker: Running) -> None:
    with connect(broker) as made:
        made.sendall(b"GET /health/live HTTP/1.1\r\nhost: l\r\ncontent-length: 1000000\r\n\r\n")
        answer = made.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200")
        assert made.recv(1000) == b""


def test_requests_that_come_together_are_answered_in_turn(broker: Running) -> None:
    broker.queue("PUT", "together", {})
    one = (
        b"POST /api/v1/namespaces/default/queues/together/messages HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: text/plain\r\ncontent-length: 1\r\n\r\nx"
    )
    answer = say(broker, one * 10)
    assert answer.count(b"HTTP/1.1 201") == 10
    answer = say(broker, one * 60)  # more than are taken at a time
    stored = broker.queue("GET", "together").json["counts"]["active"] - 10
    assert answer.count(b"HTTP/1.1 201") == stored
    assert stored > 10


def test_who_has_gone_receives_nothing_whatever_he_has_sent_behind(broker: Running) -> None:
    broker.queue("PUT", "behind", {})
    body = b'{"wait_ms": 20000, "delete": true}'
    with connect(broker) as made:
        made.sendall(
            b"POST /api/v1/namespaces/default/queues/behind/receive HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body) + GET
        )
        until(lambda: broker.queue("GET", "behind").json["receivers"], "somebody waits")
    until(lambda: not broker.queue("GET", "behind").json["receivers"], "he is known to have gone")
    broker.send("behind", "x")
    assert len(broker.receive("behind")) == 1


def test_a_wait_ends_though_the_clock_stands_still(broker: Running) -> None:
    broker.call("PUT", "/api/v1/namespaces/still")
    broker.call("POST", "/api/v1/namespaces/still/clock", {"frozen": True})
    where = "/api/v1/namespaces/still/queues/q/receive"
    assert broker.call("POST", where, {"wait_ms": 100}).json == {"messages": []}
