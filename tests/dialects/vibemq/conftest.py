"""One broker for each module, with a port for VibeMQ's own HTTP."""

from collections.abc import Iterator

import pytest

from tests.dialects.vibemq.broker import Vibe, started


@pytest.fixture(scope="module")
def vibe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vibe]:
    folder = tmp_path_factory.mktemp("posthouse")
    with started("--data", str(folder / "data"), "--dev") as found:
        yield found
    assert not [each for each in found.broker.log if each["level"] in ("error", "critical")]
