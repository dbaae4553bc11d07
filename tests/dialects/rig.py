"""The parts that all rigs share: a peer on an engine in memory, in this process, without a network.

A dialect's own `rig.py` makes its peers, and speaks to them in its words.
"""

import logging
from types import TracebackType
from typing import Self

from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import Clock, SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.memory import MemoryStore
from tests.waiting import idle


class Transport:
    """What a peer writes goes to a list."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def take(self) -> bytes:
        """What was written since this was last asked."""
        data = b"".join(self.written)
        self.written = []
        return data


class StubConnectionInfo:
    """What a listener tells a peer of its connection."""

    handshake_seconds = 10.0

    def __init__(self, address: str = "127.0.0.1", *, is_tls: bool = False) -> None:
        self.address, self.is_tls = address, is_tls
        self.over = False

    def identified(self, principal: str) -> bool:
        return True

    def gone(self) -> None:
        self.over = True


class Failures(logging.Handler):
    """Keeps what is logged as an error: what a peer did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


class EngineRig:
    """An engine with the namespace `default`, and what its peers failed in."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine: Engine | None = engine  # as peers ask for it: there may be none
        self.guard = guard
        self.failures = Failures()
        logging.getLogger("posthouse").addHandler(self.failures)

    async def close(self) -> None:
        logging.getLogger("posthouse").removeHandler(self.failures)
        if self.engine is not None:
            await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
        assert not self.failures.found, self.failures.found[0].getMessage()

    async def settle(self) -> None:
        """Until the engine has nothing more to do at once."""
        await idle()


async def an_engine(
    guard: Guard,
    clock: Clock | None = None,
    *,
    keep_bytes: int = 1 << 20,
    limits: Limits | None = None,
    auto_create: bool = False,
) -> Engine:
    engine = await Engine.open(
        MemoryStore(keep_bytes=keep_bytes), clock or SystemClock(), 1, guard,
        limits=limits, auto_create=auto_create,
    )  # fmt: skip
    await engine.ask(BROKER, "", CreateNamespace("default"))
    return engine
