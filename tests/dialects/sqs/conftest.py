"""One broker for each module, in memory, so that its clock can be moved."""

from collections.abc import Iterator

import pytest

from tests.dialects.sqs.rig import Aws, close_clients
from tests.server.running import running


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    """More of them than --dev, for the module's broker."""
    return ()


@pytest.fixture(scope="module")
def aws(flags: tuple[str, ...]) -> Iterator[Aws]:
    with running("--memory", "--dev", *flags) as broker:
        yield Aws(broker)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """The connections of a module's clients end with it."""
    yield
    close_clients()
