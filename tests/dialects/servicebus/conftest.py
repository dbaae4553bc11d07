"""One broker for each module, as `posthouse serve --dev` starts it."""

from collections.abc import Iterator

import pytest

from tests.dialects.servicebus.bus import Bus
from tests.server.running import running


@pytest.fixture(scope="module")
def tier() -> str:
    """The tier of the module's broker; a module that sends large messages has another."""
    return "standard"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory, tier: str) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("posthouse")
    with running("--data", str(folder / "data"), "--dev", "--servicebus-tier", tier) as broker:
        made = Bus(broker)
        yield made
        made.close()
