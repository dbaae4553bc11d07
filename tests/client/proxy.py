"""A wire that can be cut: what comes is handed on, and connections are counted."""

import asyncio
import contextlib


class Proxy:
    def __init__(self, to: int) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0  # connections, in all
        self.late_s = 0.0  # how long what comes is on its way

    @classmethod
    async def open(cls, to: int) -> "Proxy":
        proxy = cls(to)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        return proxy

    @property
    def port(self) -> int:
        assert self._server is not None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, far_writer}
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await asyncio.sleep(self.late_s)  # slept: so long is the way
                target.write(data)
                await target.drain()
        target.close()
        self._open.discard(target)

    def cut(self) -> None:
        """All that are open; new ones are taken."""
        for each in list(self._open):
            each.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
