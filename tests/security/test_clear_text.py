"""Keys are not taken in clear text from other machines, unless that is asked for."""

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.server.config import BadConfig, load
from posthouse.server.listener import LOOPBACK, is_among
from tests.dialects.pyqueue.client import frame
from tests.dialects.vibemq.client import CONNECT, ERROR, FLAGGED, JSON, PLAIN, Said, cut, written
from tests.security.figures import metric
from tests.server.running import Running, running
from tests.server.wire import trusting_all

NAME, KEY = "api_key_user", "a key of some length"
BASIC = b64encode(f"{NAME}:{KEY}".encode())
MODULE = ("tests.security.nearby",)
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
TEXT = "TLS is required; connect with it."
ASK = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic %s\r\n\r\n" % BASIC
AUTH = frame("AUTH", {"type": "apikey", "value": KEY})
SASL = b"AMQP\3\1\0\0"


def started(*flags: str) -> Any:
    secrets = {"POSTHOUSE_PYQUEUE_API_KEY": KEY}
    return running("--memory", *flags, module=MODULE, environment=secrets)


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with started() as made:
        yield made


def say(
    broker: Running, address: str, data: bytes, tls: ssl.SSLContext | None = None
) -> tuple[bytes, bool]:
    """What is answered within a while, and whether the connection is closed then."""
    made = socket.create_connection(("127.0.0.1", broker.port), 20, (address, 0))
    if tls is not None:
        made = tls.wrap_socket(made, server_hostname="localhost")
    with made:
        made.sendall(data)
        answer = made.recv(65_536)
        made.settimeout(0.3)
        try:
            while piece := made.recv(65_536):
                answer += piece
        except TimeoutError:
            return answer, False
        return answer, True


def test_amqp_is_answered_by_the_header_of_tls_before_a_password_is_said(broker: Running) -> None:
    """AMQP 1.0, part 5, section 5.2.1."""
    for header in (SASL, b"AMQP\0\1\0\0"):
        assert say(broker, ELSEWHERE, header) == (b"AMQP\2\1\0\0", True)
    answer, is_closed = say(broker, HERE, SASL)
    assert answer.startswith(SASL)
    assert not is_closed


def test_pyqueue_is_told_that_tls_is_required(broker: Running) -> None:
    assert say(broker, ELSEWHERE, AUTH) == (frame("ERROR", TEXT), True)
    answer, is_closed = say(broker, HERE, AUTH)
    assert answer.startswith(b"OK ")
    assert not is_closed


@pytest.mark.parametrize("generation", [FLAGGED, PLAIN, JSON])
def test_vibemq_is_told_that_tls_is_required(broker: Running, generation: str) -> None:
    hello = written(Said(CONNECT, "1", headers={"authUsername": "a"}), generation)
    answer, is_closed = say(broker, ELSEWHERE, hello)
    [said], rest = cut(answer, generation)
    assert (said.type, said.id, said.code, said.text) == (ERROR, "1", "AUTH_REQUIRED", TEXT)
    assert rest == b""
    assert is_closed


def test_http_is_told_that_tls_is_required(broker: Running) -> None:
    answer, is_closed = say(broker, ELSEWHERE, ASK)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"urn:posthouse:problem:tls-required" in answer
    assert is_closed
    answer, _ = say(broker, HERE, ASK)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/docs", "/metrics", "/feed", "/servicebus/q", "/q/messages"])
def test_every_path_but_health_asks_for_it(broker: Running, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    assert say(broker, ELSEWHERE, request)[0].startswith(b"HTTP/1.1 403")


def test_health_is_told_to_anybody(broker: Running) -> None:
    request = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert say(broker, ELSEWHERE, request)[0].startswith(b"HTTP/1.1 200")


def test_a_websocket_asks_for_it_too(broker: Running) -> None:
    request = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: AMQPWSB10\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert say(broker, ELSEWHERE, request)[0].startswith(b"HTTP/1.1 403")
    assert say(broker, HERE, request)[0].startswith(b"HTTP/1.1 101")


@pytest.mark.parametrize(("data", "begins"), [(ASK, b"HTTP/1.1 200"), (AUTH, b"OK "), (SASL, SASL)])
def test_with_tls_all_is_as_on_this_machine(broker: Running, data: bytes, begins: bytes) -> None:
    answer, _ = say(broker, ELSEWHERE, data, trusting_all())
    assert answer.startswith(begins)


def test_it_is_counted_and_logged_with_what_to_do(broker: Running) -> None:
    say(broker, ELSEWHERE, SASL)
    refused = metric(broker, "posthouse_connections_refused_total", f"{NAME}:{KEY}")
    assert refused['why="tls"'] > 0
    [warning] = broker.events("listener.tls")
    assert "posthouse tls env" in warning["message"]
    assert warning["address"] == ELSEWHERE


def test_insecure_takes_keys_in_clear_text_and_says_so() -> None:
    with started("--insecure") as broker:
        assert say(broker, ELSEWHERE, AUTH)[0].startswith(b"OK ")
        assert say(broker, ELSEWHERE, SASL)[0].startswith(SASL)
        assert say(broker, ELSEWHERE, ASK)[0].startswith(b"HTTP/1.1 200")
        assert len(broker.events("listener.insecure")) == 1
        broker.process.terminate()
        assert "--insecure: keys are taken in clear text" in broker.process.stdout.read()


def test_with_dev_it_is_required_of_nobody() -> None:
    """There only this machine is let in."""
    with started("--dev", "--dev-allow", ELSEWHERE) as broker:
        assert say(broker, ELSEWHERE, SASL)[0].startswith(SASL)


def test_insecure_and_dev_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="insecure goes without dev"):
        load({"insecure": True, "dev": True}, {})


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("::", False),
    ],
)  # fmt: skip
def test_this_machine_is_told_by_the_address_of_the_peer(address: str, is_here: bool) -> None:
    assert is_among(address, LOOPBACK) == is_here
