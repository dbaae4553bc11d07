"""One broker for each module, as `posthouse serve --dev` starts it."""

from collections.abc import Iterator

import pytest

from tests.dialects.servicebus.bus import Bus
from tests.server.running import running


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("posthouse")
    with running("--data", str(folder / "data"), "--dev") as broker:
        made = Bus(broker)
        yield made
        made.close()
