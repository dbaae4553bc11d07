from collections.abc import Iterator

import pytest

from tests.store.redis_server import RedisServer, a_server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that syncs before it answers."""
    with a_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
