"""Fixtures of pytest's: a client in memory, and a real broker in a thread of the test's process.

Nothing of Posthouse is imported before a test asks for one of them.
"""

import asyncio
import http.client
import json
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from posthouse.client.client import QueueClient

START_S = 30.0  # to wait for a broker; it takes a tenth of a second
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"  # of every broker for development


@dataclass(frozen=True)
class Address:
    """A namespace of a broker, as each kind of client is told of it."""

    port: int
    namespace: str = "default"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/namespaces/{self.namespace}"

    @property
    def azure_connection_string(self) -> str:
        # The key's name says which namespace. A host label (`t1.localhost`) would too, but only
        # machines with a resolver of their own know such names.
        name = KEY_NAME if self.namespace == "default" else self.namespace
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={name};"
            f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )

    @property
    def client_url(self) -> str:
        return f"posthouse://{KEY_NAME}:{KEY}@localhost:{self.port}/{self.namespace}"

    def ask(self, method: str, path: str = "", form: object = None) -> Any:
        """Asks the HTTP API, below the namespace, as in `ask("PUT", "queues/orders", {})`."""
        where = f"/api/v1/namespaces/{self.namespace}" + (f"/{path}" if path else "")
        status, answer = self._request(method, where, form)
        if status >= 300:
            raise AssertionError(f"{method} {where}: {status} {answer.decode()}")
        return json.loads(answer) if answer else None

    def remove(self) -> None:
        """Deletes the namespace with all that is in it, unless that was done already."""
        self._request("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def _request(self, method: str, where: str, form: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            body = None if form is None else json.dumps(form)
            connection.request(method, where, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def posthouse_memory() -> "QueueClient":
    """A client with a broker of its own in memory, whose queues come into being when used."""
    from posthouse.client.create import create_test_client

    return create_test_client()


@pytest.fixture(scope="session")
def posthouse_broker() -> Iterator[Address]:
    """A broker for all tests, on a free port of this machine; all is gone with it."""
    ready = threading.Event()
    told: list[int] = []
    stop: list[Callable[[], object]] = []

    async def serve(folder: Path) -> None:
        import posthouse.server.api  # noqa: F401 (else the first namespace would wait for it)
        from posthouse.broker.clock import SystemClock
        from posthouse.broker.libc_time import unfrozen
        from posthouse.server.config import load
        from posthouse.server.serve import Server

        settings = {
            "memory": True, "dev": True, "host": "127.0.0.1", "port": 0,
            "servicebus_namespace": "key", "stop_limit": 1,
        }  # fmt: skip
        config = load(settings, {})

        def say(_: str) -> None:
            told.extend(server.ports)
            ready.set()

        # A test that freezes its own time does not move that of the broker.
        server = Server(config, folder, say, clock=SystemClock(unfrozen()))
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(server.stop))
        await server.run()

    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:

        def run() -> None:
            from posthouse.server.serve import new_runner

            try:
                # uvloop's timers are not asyncio's, which freezegun stops.
                with new_runner() as runner:
                    runner.run(serve(Path(folder)))
            finally:
                ready.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait(START_S)
        if not told:
            raise RuntimeError("The broker did not start.")
        try:
            yield Address(told[0])
        finally:
            stop[0]()
            thread.join(START_S)


@pytest.fixture
def posthouse_namespace(posthouse_broker: Address) -> Iterator[Address]:
    """A namespace of the broker for this test alone, removed after it."""
    address = Address(posthouse_broker.port, f"t{uuid.uuid4().hex[:12]}")
    address.ask("PUT")
    yield address
    address.remove()


@pytest.fixture
def posthouse_clock(posthouse_namespace: Address) -> Callable[[float], None]:
    """Moves the clock of the test's namespace: `posthouse_clock(30)` lets 30 s pass."""

    def advance(seconds: float) -> None:
        posthouse_namespace.ask("POST", "clock", {"advance_ms": round(seconds * 1_000)})

    return advance
