"""What connections cost, and that nothing is left of them. With SOAK=1 there are many more.

The figures are printed; docs/guarantees.md has those of a long run.
"""

import contextlib
import os
import resource
import selectors
import socket
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from posthouse.amqp.connection import Connection
from tests.dialects.pyqueue.client import frame
from tests.dialects.vibemq.client import CONNECT, CONNECT_ACK, Said, cut, written
from tests.security.figures import (
    descriptors,
    metric,
    open_connections,
    resident_bytes,
    wait_for_connections,
)
from tests.server.running import Running, running

pytestmark = pytest.mark.alone

SOAK = bool(os.environ.get("SOAK"))
IDLE, SLOW, VANISHING = (10_000, 2_000, 200_000) if SOAK else (1_000, 200, 2_000)
IDLE_BYTES_MAX = 30_000  # of the broker's memory, for each that is idle,
TLS_BYTES_MAX = 80_000  # and with TLS, whose buffers are most of it
HANDSHAKE_SECONDS = 10 if SOAK else 2
GRACE_SECONDS = 20  # that the machine may be busy
NAME, KEY = "api_key_user", "a key of some length"
BASIC = b64encode(f"{NAME}:{KEY}".encode())
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
ASK = (
    b"POST /api/v1/namespaces/default/queues/none/receive HTTP/1.1\r\nhost: localhost\r\n"
    b"authorization: Basic %s\r\ncontent-length: 2\r\n\r\n{}" % BASIC
)
SASL = b"AMQP\3\1\0\0"


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 2_500:
        pytest.skip("The limit on open files is too low.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def started(handshake_seconds: int) -> contextlib.AbstractContextManager[Running]:
    many = str(IDLE + 1_000)
    flags = [
        "--memory", "--connections-max", many, "--strangers-max", many, "--strangers-per-address",
        many, "--connections-per-principal", many, "--pyqueue-connections", many,
        "--handshake-limit", str(handshake_seconds),
    ]  # fmt: skip
    return running(*flags, environment={"POSTHOUSE_PYQUEUE_API_KEY": KEY})


@pytest.fixture
def broker() -> Iterator[Running]:
    """In which who is silent stays. A new one for each test: what another has used it would use."""
    with started(600) as made:
        yield made


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Running]:
    with started(HANDSHAKE_SECONDS) as made:
        yield made


def tell(figures: str) -> None:
    """With `pytest -s`."""
    sys.stderr.write(f"\n{figures}\n")


def connect(broker: Running, number: int = 0) -> socket.socket:
    """From one of some addresses, each of which has ports for thousands."""
    address = f"127.0.0.{2 + number % 50}"
    made = socket.create_connection(("127.0.0.1", broker.port), 30, (address, 0))
    made.settimeout(30)
    return made


def say_nothing(made: socket.socket) -> None:
    """It is silent."""


def ask_for_health(made: socket.socket) -> None:
    made.sendall(LIVE)
    assert made.recv(2_000).startswith(b"HTTP/1.1 200")


def ask_with_a_key(made: socket.socket) -> None:
    made.sendall(ASK)
    assert made.recv(2_000).startswith(b"HTTP/1.1 404")


def begin_amqp(made: socket.socket) -> None:
    made.sendall(SASL)
    assert made.recv(2_000).startswith(SASL)


def open_amqp(made: socket.socket) -> None:
    response = b"\0" + NAME.encode() + b"\0" + KEY.encode()
    amqp = Connection("test", hostname="localhost", sasl=("PLAIN", response))
    while amqp.open is None:
        made.sendall(amqp.take())
        data = made.recv(65_536)
        assert data
        list(amqp.receive(data))


def log_in(made: socket.socket) -> None:
    made.sendall(frame("AUTH", {"type": "apikey", "value": KEY}))
    assert made.recv(2_000).startswith(b"OK ")


def log_in_to_vibemq(made: socket.socket) -> None:
    headers = {"authUsername": NAME, "authPassword": KEY}
    made.sendall(written(Said(CONNECT, "c", headers=headers)))
    told, _ = cut(made.recv(2_000))
    assert [each.type for each in told] == [CONNECT_ACK]


def with_tls(say: Callable[[socket.socket], None]) -> Callable[[socket.socket], socket.socket]:
    """Who keeps the connection keeps what is returned."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def wrapped(made: socket.socket) -> socket.socket:
        secure = context.wrap_socket(made, server_hostname="localhost")
        say(secure)
        return secure

    wrapped.__name__ = f"{say.__name__}_with_tls"
    return wrapped


PLAIN = [say_nothing, ask_for_health, begin_amqp, ask_with_a_key, open_amqp, log_in,
         log_in_to_vibemq]  # fmt: skip
SECURE = [with_tls(say) for say in (ask_with_a_key, open_amqp, log_in, log_in_to_vibemq)]


@pytest.mark.parametrize("say", [*PLAIN, *(SECURE if SOAK else SECURE[:1])])
def test_an_idle_connection_costs_little(
    broker: Running, say: Callable[[socket.socket], socket.socket | None]
) -> None:
    with connect(broker) as made, say(made) or made:  # what is made once is there
        pass
    wait_for_connections(broker, 0, f"{NAME}:{KEY}")
    before = resident_bytes(broker)
    with ExitStack() as stack:
        for number in range(IDLE):
            made = stack.enter_context(connect(broker, number))
            stack.enter_context(say(made) or made)
        assert open_connections(broker, f"{NAME}:{KEY}") == IDLE
        each = (resident_bytes(broker) - before) / IDLE
        begun, used = time.monotonic(), broker.cpu_seconds
        time.sleep(1)
        share = (broker.cpu_seconds - used) / (time.monotonic() - begun)
        tell(f"{say.__name__}: {IDLE} idle, {each:.0f} bytes each, {share:.1%} of a core")
        assert each <= (TLS_BYTES_MAX if say in SECURE else IDLE_BYTES_MAX)
    assert wait_for_connections(broker, 0, f"{NAME}:{KEY}") == 0


def half_a_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    wrapped = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    wrapped.context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        wrapped.do_handshake()
    hello = outgoing.read()
    return hello[: len(hello) // 2]


def drip(broker: Running, beginning: bytes, seconds: float, count: int) -> float:
    """A byte of each every so often until all are closed; how long the last has stayed."""
    selector = selectors.DefaultSelector()
    begun = time.monotonic()
    at: dict[socket.socket, int] = {}
    with ExitStack() as stack:
        for number in range(count):
            made = stack.enter_context(connect(broker, number))
            made.setblocking(False)
            selector.register(made, selectors.EVENT_READ)
            at[made] = 0
        due = opened = time.monotonic()
        while at and time.monotonic() < opened + HANDSHAKE_SECONDS + GRACE_SECONDS:
            if time.monotonic() >= due:
                due += seconds
                for made, index in at.items():
                    at[made] = index + 1
                    with contextlib.suppress(OSError):
                        made.send(beginning[index : index + 1])
                assert broker.call("GET", "/metrics", key=f"{NAME}:{KEY}").status == 200
            for key, _ in selector.select(0.05):
                made = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    if made.recv(65_536):
                        continue
                selector.unregister(made)
                del at[made]
    assert not at
    selector.close()
    return time.monotonic() - begun


@pytest.mark.parametrize(
    "beginning",
    [LIVE * 10, SASL + bytes(100), frame("AUTH", b"x" * 1_000), b"\0\0\1\0\1\1" + bytes(100)],
    ids=["http", "amqp", "pyqueue", "vibemq"],
)
def test_slow_connections_are_closed_in_their_time_while_others_are_served(
    strict_broker: Running, beginning: bytes
) -> None:
    """A byte in 10 s each, or in a fifth of the limit."""
    seconds = drip(strict_broker, beginning, HANDSHAKE_SECONDS if SOAK else 0.4, SLOW)
    tell(f"{SLOW} slow ones are gone after {seconds:.1f} s")
    assert wait_for_connections(strict_broker, 0, f"{NAME}:{KEY}") == 0


def test_tls_handshakes_that_stay_half_done_are_closed_in_their_time(
    strict_broker: Running,
) -> None:
    with connect(strict_broker) as made:  # the certificate is there
        made.sendall(b"\x16\3\1")
    files = descriptors(strict_broker)
    hello = half_a_hello()
    with ExitStack() as stack:
        opened = [stack.enter_context(connect(strict_broker, number)) for number in range(SLOW)]
        for made in opened:
            made.sendall(hello)
            made.settimeout(HANDSHAKE_SECONDS + GRACE_SECONDS)
        assert strict_broker.call("GET", "/health/live").status == 200
        for made in opened:
            with contextlib.suppress(ConnectionError):
                assert made.recv(1_000) == b""
    assert wait_for_connections(strict_broker, 0, f"{NAME}:{KEY}") == 0
    assert descriptors(strict_broker) <= files + 5


def tasks(broker: Running) -> int:
    return int(metric(broker, "posthouse_event_loop_tasks", f"{NAME}:{KEY}")[""])


WAYS: tuple[tuple[bytes, bool], ...] = tuple(
    (data, is_reset)
    for data in (b"", b"G", LIVE, LIVE[:-1], ASK, SASL, b"\x16\3\1", b"PUSH 10 x", b"\0\0\0\x20")
    for is_reset in (False, True)
)


def vanish(broker: Running, count: int) -> None:
    """Each in another way, without reading what it is told."""
    for number in range(count):
        data, is_reset = WAYS[number % len(WAYS)]
        with connect(broker, number) as made, contextlib.suppress(ConnectionError):
            made.sendall(data)
            if is_reset:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_nothing_is_left_of_connections_that_vanish(broker: Running) -> None:
    key = f"{NAME}:{KEY}"
    vanish(broker, VANISHING // 2)  # what is made once is there
    assert wait_for_connections(broker, 0, key) == 0
    files, before, running_before = descriptors(broker), resident_bytes(broker), tasks(broker)
    begun = time.monotonic()
    vanish(broker, VANISHING)
    seconds = time.monotonic() - begun
    assert wait_for_connections(broker, 0, key) == 0
    grown = resident_bytes(broker) - before
    tell(f"{VANISHING} vanished in {seconds:.0f} s; memory has grown by {grown >> 10} KiB")
    assert descriptors(broker) <= files + 2
    assert tasks(broker) <= running_before + 2
    assert grown < 8 << 20
