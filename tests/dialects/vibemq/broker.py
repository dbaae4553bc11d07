"""A broker as a process of its own, with what VibeMQ's tests ask of it."""

import contextlib
import http.client
import socket
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from tests.dialects.vibemq.client import CREATE, FLAGGED, INFO, Client, connected
from tests.server.running import Reply, Running, running


class Vibe:
    def __init__(self, broker: Running, http_port: int) -> None:
        self.broker = broker
        self.http_port = http_port
        ports = broker.events("broker.ready")[0]["ports"]
        broker.port = self.port = next(each for each in ports if each != http_port)
        self._queues = 0

    def client(self, generation: str = FLAGGED, **headers: str) -> Any:
        return connected(self.port, generation, **headers)

    def bare(self, generation: str = FLAGGED) -> Client:
        return Client(self.port, generation)

    def queue(self, client: Client, **options: Any) -> str:
        """A new one, made by a client with these options."""
        self._queues += 1
        name = f"q.{self._queues}"
        said = client.ask(CREATE, name, options)
        assert said.type == CREATE, said
        return name

    def count(self, client: Client, queue: str) -> int:
        found: int = client.ask(INFO, queue).json["messageCount"]
        return found

    def advance(self, seconds: float) -> None:
        reply = self.broker.call(
            "POST", "/api/v1/namespaces/default/clock", {"advance_ms": int(seconds * 1_000)}
        )
        assert reply.status == 200, reply

    def call(self, method: str, path: str, *, user: str | None = None) -> Reply:
        """Over VibeMQ's own HTTP."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        headers = {}
        if user is not None:
            headers["authorization"] = "Basic " + b64encode(user.encode()).decode()
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()


def a_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def started(*flags: str, **environment: str) -> Iterator[Vibe]:
    http_port = a_free_port()
    with running("--port", f"{http_port}=vibemq-http", *flags, environment=environment) as broker:
        yield Vibe(broker, http_port)
