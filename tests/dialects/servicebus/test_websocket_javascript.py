"""AMQP over WebSockets, with the official JavaScript client and with rhea."""

from collections.abc import Iterator

import pytest

from tests.dialects.servicebus.javascript import Json, connection_string, need_node, run_script
from tests.server.running import development
from tests.server.test_tls import certificate


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Json]:
    need_node()
    folder = tmp_path_factory.mktemp("data")
    with development(folder, "--servicebus-tier", "premium") as broker:
        certificate(folder)
        trust = {"NODE_EXTRA_CA_CERTS": str(folder / "tls" / "ca.pem")}
        yield run_script("websocket", connection_string(broker.port), environment=trust)
    assert not broker.events("amqp.failed")


def test_the_official_client_sends_and_receives_by_websocket(told: Json) -> None:
    assert told["secure"] == {"returned": ["by WebSocket", True]}


def test_the_path_may_end_in_a_slash_and_have_any_case(told: Json) -> None:
    assert told["plain"] == ["accepted"] * 3


def test_another_subprotocol_or_path_is_refused(told: Json) -> None:
    assert "returned" not in told["otherProtocol"]
    assert "returned" not in told["otherPath"]
