"""Who has not shown who it is gets little: so many frames, and then the protocol's own error."""

import socket
from collections.abc import Iterator

import pytest

from posthouse.amqp.connection import Limits
from posthouse.amqp.encode import described, encode
from posthouse.dialects.vibemq.peer import STRANGER_FRAMES_MAX
from tests.dialects.vibemq.client import ERROR, PING, PONG, Said, cut, written
from tests.security.hostile import ECHO, EMPTY, TO_TOKENS
from tests.security.wire import KNOWN, STRANGER, transfer
from tests.server.running import Running, running

# Until they have shown who they are the Service Bus SDKs for Python and JavaScript send 9 frames
# and 1,106 bytes at most, Qpid Proton and rhea one.
CLIENTS_NEED_FRAMES, CLIENTS_NEED_BYTES = 9, 1_106


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running("--memory", "--dev") as broker:
        yield broker


def heard(broker: Running, said: bytes) -> bytes:
    """All that the broker answers before it hangs up."""
    found = b""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as made:
        made.sendall(said)
        while data := made.recv(1 << 16):
            found += data
    return found


def test_clients_need_far_less_than_strangers_have() -> None:
    limits = Limits()
    assert limits.first_frames >= 10 * CLIENTS_NEED_FRAMES
    assert limits.first_bytes >= 100 * CLIENTS_NEED_BYTES


@pytest.mark.parametrize("again", [ECHO, EMPTY], ids=["flows", "empty frames"])
def test_a_stranger_has_so_many_frames_of_amqp(broker: Running, again: bytes) -> None:
    found = heard(broker, STRANGER + again * (Limits().first_frames - 2))
    assert b"amqp:resource-limit-exceeded" in found
    assert b"has to show who it is within 200 frames" in found


def test_a_stranger_has_so_many_bytes_of_amqp(broker: Running) -> None:
    large = transfer(described(0x77, encode("x" * 60_000)), settled=True)
    found = heard(broker, STRANGER + TO_TOKENS + large * (Limits().first_bytes // len(large) + 1))
    assert b"amqp:resource-limit-exceeded" in found


def test_a_client_has_as_many_frames_as_it_likes(broker: Running) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as made:
        made.sendall(KNOWN + ECHO * 5_000)
        found = b""
        while found.count(b"\x00\x53\x13") < 5_000:
            data = made.recv(1 << 16)
            assert data
            found += data
        assert b"\x00\x53\x18" not in found  # a close


def test_a_stranger_has_so_many_frames_of_vibemq(broker: Running) -> None:
    said, rest = cut(heard(broker, written(Said(PING, "p")) * (STRANGER_FRAMES_MAX + 1)))
    assert not rest
    assert [each.type for each in said] == [PONG] * STRANGER_FRAMES_MAX + [ERROR]
    assert said[-1].code == "AUTH_REQUIRED"
