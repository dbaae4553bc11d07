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
        host = "localhost" if self.namespace == "default" else f"{self.namespace}.localhost"
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )

    @property
    def client_url(self) -> str:
        return f"posthouse://{KEY_NAME}:{KEY}@localhost:{self.port}/{self.namespace}"

    def ask(self, method: str, path: str = "", form: object = None) -> Any:
        """Of the API over HTTP, below the namespace, as in `ask("PUT", "queues/orders", {})`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            where = f"/api/v1/namespaces/{self.namespace}" + (f"/{path}" if path else "")
            body = None if form is None else json.dumps(form)
            connection.request(method, where, body, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise AssertionError(f"{method} {where}: {response.status} {answer.decode()}")
        return json.loads(answer) if answer else None


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
        from posthouse.server.config import load
        from posthouse.server.serve import Server

        settings = {
            "memory": True, "dev": True, "host": "127.0.0.1", "port": 0,
            "servicebus_namespace": "host", "stop_limit": 1,
        }  # fmt: skip
        config = load(settings, {})

        def say(_: str) -> None:
            told.extend(server.ports)
            ready.set()

        server = Server(config, folder, say)
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(server.stop))
        await server.run()

    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:

        def run() -> None:
            try:
                asyncio.run(serve(Path(folder)))
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
def posthouse_namespace(posthouse_broker: Address) -> Address:
    """A namespace of the broker for this test alone."""
    address = Address(posthouse_broker.port, f"t{uuid.uuid4().hex[:12]}")
    address.ask("PUT")
    return address


@pytest.fixture
def posthouse_clock(posthouse_namespace: Address) -> Callable[[float], None]:
    """Moves the clock of the test's namespace: `posthouse_clock(30)` lets 30 s pass."""

    def advance(seconds: float) -> None:
        posthouse_namespace.ask("POST", "clock", {"advance_ms": round(seconds * 1_000)})

    return advance
