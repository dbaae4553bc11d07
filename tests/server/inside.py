"""A whole server in this process and loop, on a port of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from posthouse.server.config import Config, Port
from posthouse.server.serve import Server


class Inside(NamedTuple):
    server: Server
    port: int
    folder: Path

    async def say(self, data: bytes) -> bytes:
        """On a new connection: all that is answered until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def call(self, method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
        """The answer to a request, with its head."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        if key:
            head += f"Authorization: Bearer {key}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self.say(head.encode() + b"\r\n" + body)


@asynccontextmanager
async def inside(folder: Path, **settings: Any) -> AsyncIterator[Inside]:
    """Its data, keys and certificates are in the folder."""
    config = Config(data=folder / "data", host=("127.0.0.1",), port=(Port(0),), **settings)
    ready = asyncio.Event()
    server = Server(config, folder / "tls", lambda _: ready.set())
    serving = asyncio.create_task(server.run())
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not serving.done(), "it did not start"
    try:
        yield Inside(server, server.ports[0], config.data)
    finally:
        server.stop()
        assert await serving == 0
