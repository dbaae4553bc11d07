"""Connections whose clients have not shown who they are do not keep out those that have."""

import contextlib
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from posthouse.amqp.connection import Connection
from posthouse.amqp.events import Closed
from tests.dialects.pyqueue.client import Client as PyQueueClient
from tests.dialects.pyqueue.client import frame
from tests.dialects.vibemq.client import Client as VibemqClient
from tests.security.figures import metric, wait_for_connections
from tests.server.running import Running, running

NAME, KEY = "api_key_user", "a key of some length"
USER, PASSWORD = "chief", "a password of some length"
BASIC = b64encode(f"{NAME}:{KEY}".encode())
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
PER_ADDRESS, ALL = 30, 50
PER_PRINCIPAL = 12
# What a stranger may say and stay: nothing, hello, or what anybody may ask for.
SAYINGS = (b"", b"GET /", LIVE, b"AMQP\0\1\0\0", b"AMQP\3\1\0\0", b"PUSH 5 h", b"\0\0\0\x20")


@pytest.fixture
def broker() -> Iterator[Running]:
    flags = [
        "--memory", "--handshake-limit", "60", "--strangers-per-address", str(PER_ADDRESS),
        "--strangers-max", str(ALL), "--connections-per-principal", str(PER_PRINCIPAL),
        "--pyqueue-connections", "5", "--vibemq-superuser", USER,
    ]  # fmt: skip
    secrets = {
        "POSTHOUSE_PYQUEUE_API_KEY": KEY, "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": PASSWORD,
    }  # fmt: skip
    with running(*flags, environment=secrets) as made:
        yield made


def connect(broker: Running, address: str, saying: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", broker.port), 20, (address, 0))
    made.sendall(saying)
    return made


def is_closed(made: socket.socket, seconds: float = 5) -> bool:
    """By the broker, whatever it has said before."""
    made.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        try:
            while made.recv(65_536):
                pass
        except TimeoutError:
            return False
    return True


def gets_in(broker: Running, address: str) -> bool:
    with connect(broker, address, LIVE) as made:
        try:
            return made.recv(1_000).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return False


def strangers(broker: Running) -> int:
    """Without the one that asks, which has a key."""
    return int(metric(broker, "posthouse_connections_strangers", f"{NAME}:{KEY}")[""])


def refused(broker: Running, why: str) -> int:
    found = metric(broker, "posthouse_connections_refused_total", f"{NAME}:{KEY}")
    return int(found.get(f'why="{why}"', 0))


@pytest.mark.parametrize("saying", SAYINGS)
def test_an_address_has_so_many_strangers_and_others_still_get_in(
    broker: Running, saying: bytes
) -> None:
    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            stack.enter_context(connect(broker, "127.0.0.2", saying))
        assert gets_in(broker, "127.0.0.3")  # by now all before it were accepted
        assert not gets_in(broker, "127.0.0.2")
        assert refused(broker, "strangers") == 1
        assert strangers(broker) == PER_ADDRESS
        assert broker.events("listener.strangers")[0]["address"] == "127.0.0.2"
        assert gets_in(broker, "127.0.0.3")
    assert wait_for_connections(broker, 0, f"{NAME}:{KEY}") == 0
    assert strangers(broker) == 0
    assert gets_in(broker, "127.0.0.2")


def test_where_strangers_are_too_many_the_oldest_of_the_address_with_most_goes(
    broker: Running,
) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(connect(broker, "127.0.0.2", LIVE)) for _ in range(PER_ADDRESS)]
        few = [
            stack.enter_context(connect(broker, "127.0.0.3", LIVE))
            for _ in range(ALL - PER_ADDRESS)
        ]
        for made in (*many, *few):
            assert made.recv(1_000).startswith(b"HTTP/1.1 200")
        late = stack.enter_context(connect(broker, "127.0.0.4", LIVE))
        assert late.recv(1_000).startswith(b"HTTP/1.1 200")
        assert is_closed(many[0])
        assert not any(is_closed(made, 0.01) for made in (*many[1:], *few, late))
        assert len(broker.events("listener.strangers")) == 1  # in a minute


def test_strangers_that_say_nothing_make_room_too(broker: Running) -> None:
    with ExitStack() as stack:
        for number in range(4):
            for _ in range(PER_ADDRESS - 1):
                stack.enter_context(connect(broker, f"127.0.0.{number + 2}"))
        assert gets_in(broker, "127.0.0.9")
        assert strangers(broker) <= ALL
    assert wait_for_connections(broker, 0, f"{NAME}:{KEY}") == 0


def log_in(broker: Running) -> PyQueueClient:
    client = PyQueueClient(broker.port)
    client.send(frame("AUTH", {"type": "apikey", "value": KEY}))
    return client


def test_strangers_do_not_take_the_places_of_pyqueue_workers(broker: Running) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(broker, "127.0.0.2", b"STATS 5 h"))
        for _ in range(5):
            client = stack.enter_context(log_in(broker))
            assert client.read().word == "OK"
        client = stack.enter_context(log_in(broker))
        told = client.read()
        assert (told.word, told.text) == ("ERROR", "Server connection limit reached")
        assert is_closed(client.socket)
        assert strangers(broker) == 20


def ask(broker: Running) -> socket.socket:
    """Keeps its connection."""
    head = b"GET /api/v1/namespaces HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic %s\r\n\r\n"
    return connect(broker, "127.0.0.1", head % BASIC)


def open_amqp(broker: Running) -> tuple[socket.socket, str]:
    """And what goes wrong, if something does."""
    response = b"\0" + NAME.encode() + b"\0" + KEY.encode()
    amqp = Connection("test", hostname="localhost", sasl=("PLAIN", response))
    made = connect(broker, "127.0.0.1")
    while amqp.open is None:
        made.sendall(amqp.take())
        data = made.recv(65_536)
        assert data
        for event in amqp.receive(data):
            if isinstance(event, Closed):
                return made, "" if event.problem is None else event.problem.text
    return made, ""


def test_a_principal_has_so_many_connections_over_all_protocols(broker: Running) -> None:
    """And is told so in each of them."""
    with ExitStack() as stack:
        for _ in range(4):
            assert stack.enter_context(ask(broker)).recv(1_000).startswith(b"HTTP/1.1 ")
            assert stack.enter_context(log_in(broker)).read().word == "OK"
            made, problem = open_amqp(broker)
            stack.enter_context(made)
            assert problem == ""
        with ask(broker) as made:
            answer = made.recv(2_000)
            assert answer.startswith(b"HTTP/1.1 503"), answer
            assert b"too many connections" in answer
        with log_in(broker) as client:
            assert client.read() == ("ERROR", b"Server connection limit reached")
        made, problem = open_amqp(broker)
        with made:
            assert "too many connections" in problem
        assert strangers_of_root(broker) == 0


def strangers_of_root(broker: Running) -> int:
    """Where the principal has no connection left to ask with, somebody else asks."""
    key = next(
        line.partition("=")[2].strip() for line in welcome(broker) if "POSTHOUSE_KEY=" in line
    )
    assert metric(broker, "posthouse_connections_refused_total", key)['why="principal"'] == 3
    return int(metric(broker, "posthouse_connections_strangers", key)[""])


def welcome(broker: Running) -> Iterator[str]:
    assert broker.process.stdout is not None
    yield from broker.process.stdout


def test_a_vibemq_user_with_too_many_connections_is_told_so(broker: Running) -> None:
    with ExitStack() as stack:
        for _ in range(PER_PRINCIPAL):
            client = stack.enter_context(VibemqClient(broker.port))
            assert client.log_in(USER, PASSWORD).code == ""
        client = stack.enter_context(VibemqClient(broker.port))
        assert client.log_in(USER, PASSWORD).code == "CONNECTION_LIMIT"
        assert client.is_closed()
