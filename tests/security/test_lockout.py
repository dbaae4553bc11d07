"""Who guesses keys is not listened to for a while, whichever protocol he speaks."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from posthouse.broker.throttle import FAILURE_SECONDS, SOURCES_MAX, Failures, Throttle, source_of
from posthouse.core.errors import Unauthenticated
from tests.dialects.pyqueue.client import Client
from tests.server.running import Running

MOST = 5
WRONG = "not the key of anybody"


# The counting.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(failures: Failures, address: str = "192.0.2.1", times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(Unauthenticated), failures.login(address):
            raise Unauthenticated


def come(failures: Failures, address: str = "192.0.2.1") -> None:
    with failures.login(address):
        pass


def test_after_too_many_failures_nothing_is_looked_at_until_the_minute_is_over() -> None:
    clock = Clock()
    failures = Failures(MOST, clock)
    fail(failures, times=MOST - 1)
    come(failures)
    clock.now = 30.0
    fail(failures)
    with pytest.raises(Unauthenticated):
        come(failures)  # also the right key
    come(failures, "192.0.2.2")
    clock.now = FAILURE_SECONDS - 1
    with pytest.raises(Unauthenticated):
        come(failures)
    clock.now = FAILURE_SECONDS
    come(failures)
    fail(failures, times=MOST - 1)
    come(failures)
    assert (failures.failed, failures.lockouts, failures.unseen) == (2 * MOST - 1, 1, 2)


def test_a_connection_that_has_come_with_the_right_key_stays() -> None:
    failures = Failures(MOST, Clock())
    mine = failures.login("192.0.2.1")
    with mine:
        pass
    fail(failures, times=MOST)
    with mine:  # a token that is renewed, or the next request
        pass
    with pytest.raises(Unauthenticated), mine:
        raise Unauthenticated
    with pytest.raises(Unauthenticated), mine:  # but it is not to be used for guessing
        pytest.fail("it was looked at")


def test_other_errors_are_no_failures() -> None:
    failures = Failures(1, Clock())
    with pytest.raises(KeyError), failures.login("192.0.2.1"):
        raise KeyError
    come(failures)


def test_0_is_no_limit() -> None:
    failures = Throttle().failures
    fail(failures, times=1_000)
    come(failures)


def test_so_many_addresses_are_counted_and_no_more() -> None:
    failures = Failures(MOST, Clock())
    for number in range(SOURCES_MAX + 100):
        fail(failures, f"host-{number}")
    assert len(failures._counts) == SOURCES_MAX


def test_a_network_of_ipv6_counts_as_one_source() -> None:
    assert source_of("2a00:1450::1") == source_of("2a00:1450::ffff:1") == "2a00:1450::/64"
    assert source_of("2a00:1450:0:1::1") != source_of("2a00:1450::1")
    assert source_of("::ffff:192.0.2.1") == source_of("192.0.2.1") == "192.0.2.1"
    assert (source_of("::1"), source_of("fe80::1%eth0")) == ("::1", "fe80::1%eth0")
    assert source_of("no:address") == "no:address"


# From outside, in every protocol.


class Door(NamedTuple):
    broker: Running
    key: str  # the root's

    def http(self, key: str, path: str = "/api/v1/namespaces") -> int:
        return self.broker.call("GET", path, key=f"RootManageSharedAccessKey:{key}").status

    def pyqueue(self, key: str) -> str:
        with Client(self.broker.port) as client:
            return client.call("AUTH", {"type": "apikey", "value": key}).text

    def amqp(self, key: str) -> bytes:
        """What is answered to SASL PLAIN: its last byte is the outcome."""
        response = b"\0RootManageSharedAccessKey\0" + key.encode()
        init = (
            b"\x00\x53\x41\xd0" + (4 + 7 + 5 + len(response)).to_bytes(4, "big")
            + (2).to_bytes(4, "big") + b"\xa3\x05PLAIN" + b"\xb0"
            + len(response).to_bytes(4, "big") + response
        )  # fmt: skip
        frame = (8 + len(init)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + init
        with socket.create_connection(("127.0.0.1", self.broker.port), 10) as connection:
            connection.sendall(b"AMQP\x03\x01\x00\x00" + frame)
            told = b""
            while b"\x00\x53\x44" not in told:
                part = connection.recv(4_096)
                assert part
                told += part
        return told[told.index(b"\x00\x53\x44") :][:9]

    def vibemq(self, key: str) -> bytes:
        body = json.dumps({
            "id": "1", "type": "connect", "version": 1,
            "headers": {"authUsername": "RootManageSharedAccessKey", "authPassword": key},
        }).encode()  # fmt: skip
        with socket.create_connection(("127.0.0.1", self.broker.port), 10) as connection:
            connection.sendall(len(body).to_bytes(4, "big") + body)
            return connection.recv(4_096)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    broker = Running("--data", str(tmp_path / "data"), "--auth-failures-max", str(MOST))
    try:
        yield Door(broker, (tmp_path / "data" / "root-key").read_text().strip())
    finally:
        broker.stop()


WAYS: dict[str, Callable[[Door, str], Any]] = {
    "http": Door.http, "pyqueue": Door.pyqueue, "amqp": Door.amqp, "vibemq": Door.vibemq,
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_who_guesses_in_one_protocol_is_locked_out_of_all(name: str, door: Door) -> None:
    way = WAYS[name]
    right = {each: ask(door, door.key) for each, ask in WAYS.items()}
    wrong = {way(door, WRONG) for _ in range(MOST)}
    assert len(wrong) == 1
    assert right[name] not in wrong
    assert way(door, door.key) in wrong  # told the same, though it is the right one
    for other, ask in WAYS.items():
        assert ask(door, door.key) != right[other]
    [told] = door.broker.events("access.locked-out")
    assert told["address"] == "127.0.0.1"
    assert len(door.broker.events("access.unknown")) == MOST  # no line for what is not looked at
    with socket.socket(socket.AF_INET6) as elsewhere:
        elsewhere.connect(("::1", door.broker.port))
        credentials = f"Bearer RootManageSharedAccessKey:{door.key}"
        elsewhere.sendall(
            f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: {credentials}\r\n"
            "connection: close\r\n\r\n".encode()
        )
        metrics = b""
        while part := elsewhere.recv(65_536):
            metrics += part
    assert f"posthouse_auth_failures_total {MOST:.1f}".encode() in metrics
    assert b"posthouse_auth_lockouts_total 1.0" in metrics


def test_a_connection_that_was_open_before_works_on(door: Door) -> None:
    with Client(door.broker.port) as client:
        client.ok("AUTH", {"type": "apikey", "value": door.key})
        for _ in range(MOST):
            assert door.http(WRONG) == 401
        assert door.http(door.key) == 401
        client.push("x")
        client.ok("AUTH", {"type": "apikey", "value": door.key})


def test_a_flood_of_passwords_is_not_hashed(door: Door) -> None:
    """Each would take 100 ms of a processor and 32 MiB."""
    for _ in range(MOST):
        door.vibemq(WRONG)
    before = door.broker.cpu_seconds
    for _ in range(30):
        door.vibemq(WRONG)
    assert door.broker.cpu_seconds - before < 1.0  # 30 hashes take three


def test_requests_without_credentials_are_no_guesses(door: Door) -> None:
    for _ in range(3 * MOST):
        assert door.broker.call("GET", "/api/v1/namespaces").status == 401
    assert door.http(door.key) == 200
