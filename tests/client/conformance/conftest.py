"""Each test runs on each provider, in one loop with one server and one client of it."""

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from posthouse.client.provider import ProviderType
from tests.client.conformance.rigs import SERVED_SQS, Rig, opened
from tests.client.conformance.table import PROVIDERS

LIMIT_S = 60  # a test that hangs is stopped, and not the whole suite


@pytest.fixture(
    scope="package",
    params=(*PROVIDERS, SERVED_SQS),
    ids=lambda kind: str(getattr(kind, "value", kind)),
)
def _opened(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, asyncio.Runner]]:
    kind: ProviderType | str = request.param
    with opened(kind) as found:
        yield found


@pytest.fixture
def rig(_opened: tuple[Rig, asyncio.Runner]) -> Rig:
    return _opened[0]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner: asyncio.Runner = pyfuncitem.funcargs["_opened"][1]  # type: ignore[index]
    asked = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await pyfuncitem.obj(**asked)

    runner.run(limited())
    return True
