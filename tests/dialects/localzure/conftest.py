"""One broker for each module; every test in both spellings of the paths."""

from collections.abc import Iterator

import pytest

from tests.dialects.localzure.zure import Zure
from tests.server.running import Running, running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("posthouse")
    with running("--data", str(folder / "data"), "--dev") as broker:
        yield broker
    assert not [each for each in broker.log if each["level"] in ("error", "critical")]


@pytest.fixture(params=["named", "plain"])
def zure(broker: Running, request: pytest.FixtureRequest) -> Zure:
    return Zure(broker, request.param)


@pytest.fixture(params=["queue", "subscription"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of what is received from."""
    found: str = request.param
    return found
