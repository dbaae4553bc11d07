import os
from collections.abc import Iterator

import pytest

from tests.server.clustered import SERVER
from tests.store.clustered_store import NatsServers, nats_servers
from tests.store.redis_server import RedisServer, a_server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that syncs before it answers."""
    with a_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def one_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    if SERVER is None:
        pytest.skip("there is no nats-server here")
    with nats_servers(tmp_path_factory.mktemp("nats"), 1) as servers:
        yield servers


@pytest.fixture(scope="session")
def three_nats_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    if SERVER is None or os.environ.get("TORTURE") != "1":
        pytest.skip("three servers take long: TORTURE=1, make torture")
    with nats_servers(tmp_path_factory.mktemp("nats"), 3) as servers:
        yield servers
