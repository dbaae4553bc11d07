"""Answers that nobody reads: strangers hold little of them, and nothing that clients need."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.server.allowance import Allowance
from tests.security.figures import resident_bytes
from tests.server.running import Running, running
from tests.server.wire import trusting_all

NAME, KEY = "api_key_user", "a key of some length"
BUNDLE = "/docs/swagger-ui-bundle.js"
ASK = f"GET {BUNDLE} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
STRANGERS, TLS_STRANGERS = 400, 100


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    flags = ("--memory", "--auto-create", "--strangers-per-address", str(STRANGERS))
    with running(*flags, environment={"POSTHOUSE_PYQUEUE_API_KEY": KEY}) as made:
        assert send(made) == 201
        yield made


def send(broker: Running) -> int:
    messages = {"messages": [{"body": "x"}]}
    return broker.queue("POST", "q/messages", messages, key=f"{NAME}:{KEY}").status


def ask_and_not_read(broker: Running, context: ssl.SSLContext | None = None) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(20)
    made.bind(("127.0.0.2", 0))
    made.connect(("127.0.0.1", broker.port))
    if context is not None:
        made = context.wrap_socket(made, server_hostname="localhost")
    made.sendall(ASK * 8)  # more than the kernel keeps for a socket
    return made


@pytest.mark.parametrize(
    ("count", "tls"), [(STRANGERS, None), (TLS_STRANGERS, trusting_all())], ids=["plain", "tls"]
)
def test_strangers_that_read_nothing_take_nothing_from_clients(
    broker: Running, count: int, tls: ssl.SSLContext | None
) -> None:
    """Together they ask for more than all answers may take."""
    size = len(broker.call("GET", BUNDLE).body)
    assert size > 1_000_000
    with ExitStack() as stack:
        stack.enter_context(ask_and_not_read(broker, tls))  # what is made once is there
        before = resident_bytes(broker)
        for _ in range(count - 1):
            stack.enter_context(ask_and_not_read(broker, tls))
        broker.until_idle()
        assert send(broker) == 201
        each = (resident_bytes(broker) - before) / count
        assert each < 250_000, each  # a little of the answer, and with TLS what that needs
        assert len(broker.call("GET", BUNDLE).body) == size
        assert broker.queue("GET", "q/messages", key=f"{NAME}:{KEY}").status == 200


def test_a_shared_answer_has_no_body_for_head_and_is_taken_by_who_speaks_1_0(
    broker: Running,
) -> None:
    reply = broker.call("HEAD", BUNDLE)
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 1_000_000
    with socket.create_connection(("127.0.0.1", broker.port), 20) as made:
        made.sendall(ASK.replace(b"1.1", b"1.0"))
        answer = b""
        while piece := made.recv(1 << 20):
            answer += piece
    assert answer.partition(b"\r\n\r\n")[2] == broker.call("GET", BUNDLE).body


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=60))
def test_who_holds_less_than_his_share_has_room(asked: list[tuple[int, int]]) -> None:
    allowance = Allowance(100)
    held = dict.fromkeys(range(6), 0)
    for number, size in asked:
        holder = ("", str(number))
        holders = {each for each, count in held.items() if count} | {number}
        if held[number] + size <= 100 // len(holders):
            assert allowance.has_room(holder, size)
        if allowance.has_room(holder, size):
            allowance.change(holder, size)
            held[number] += size
    for number, count in held.items():
        assert count <= 100
        allowance.change(("", str(number)), -count)
    assert allowance.has_room(("", "0"), 1_000)  # who is alone


def test_one_that_holds_all_leaves_others_their_share() -> None:
    allowance = Allowance(100)
    allowance.change(("greedy", "a"), 100)
    assert not allowance.has_room(("greedy", "a"), 1)
    assert allowance.has_room(("modest", "a"), 50)
    allowance.change(("modest", "a"), 50)
    assert not allowance.has_room(("modest", "a"), 1)
    assert allowance.has_room(("late", "a"), 33)
