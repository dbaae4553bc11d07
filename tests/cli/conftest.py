"""One broker for the commands of a module."""

from collections.abc import Iterator

import pytest

from tests.server.running import Running, development


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("commands") / "data") as running:
        yield running
