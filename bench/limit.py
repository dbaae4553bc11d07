"""This machine's limit: messages appended to a file and synced in groups before they are answered.

Length-prefixed, with a dedicated thread for writing and syncing, and no broker logic at all. What
the engine does is measured against it, in the same run:

    python -m bench.limit            the limit alone, in process and over a socket
    python -m bench.engine           the engine beside it

Over a socket a request is a length (4 bytes) and that many bytes of length-prefixed messages; they
are written as they came, and the answer is 4 bytes.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

BODY = bytes(1024)
FILE_BYTES = 512 << 20


class Limit:
    """Appends and syncs. One batch gathers while the other is being synced."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.posix_fallocate(self._file, 0, FILE_BYTES)
        self._offset = 0
        self._pending: list[tuple[list[bytes], Callable[[None], None]]] = []
        self._thread = ThreadPoolExecutor(1)
        self._work: asyncio.Task[None] | None = None

    def submit(self, messages: list[bytes], reply: Callable[[None], None]) -> None:
        self._pending.append((messages, reply))
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run())

    async def send(self, messages: list[bytes]) -> None:
        answered = asyncio.get_running_loop().create_future()
        self.submit(messages, answered.set_result)
        await answered

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            parts = []
            for messages, _ in batch:
                for message in messages:
                    parts += [len(message).to_bytes(4, "big"), message]
            await loop.run_in_executor(self._thread, self._write, b"".join(parts))
            for _, reply in batch:
                reply(None)
        self._work = None

    def _write(self, data: bytes) -> None:
        if self._offset + len(data) > FILE_BYTES:
            self._offset = 0
        os.pwrite(self._file, data, self._offset)
        os.fdatasync(self._file)
        self._offset += len(data)

    def close(self) -> None:
        self._thread.shutdown()
        os.close(self._file)


async def rate(send: Callable[[], Awaitable[object]], messages: int, outstanding: int) -> float:
    """Messages a second, with so many sends of so many messages outstanding, for about a second."""
    end = time.perf_counter() + 1
    done = 0

    async def sender() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await send()
            done += messages

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(outstanding)))
    return done / (time.perf_counter() - start)


CASES = ((100, 8), (1, 256))  # messages in a send, sends outstanding


async def limit_rate(folder: Path, messages: int, outstanding: int) -> float:
    limit = Limit(folder / "limit")
    found = await rate(partial(limit.send, [BODY] * messages), messages, outstanding)
    limit.close()
    return found


# Over a socket.


class Server(asyncio.Protocol):
    """Cuts what comes into requests, and answers each when it is synced."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._data = bytearray()
        self._answers = 0  # that were not written yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            if len(self._data) < end:
                break
            self._limit.submit([bytes(self._data[4:end])], self._answer)
            del self._data[:end]

    def _answer(self, _: None) -> None:
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._write)
        self._answers += 1

    def _write(self) -> None:
        self._transport.write(bytes(4 * self._answers))
        self._answers = 0


class Client(asyncio.Protocol):
    """Keeps so many requests outstanding, and counts the answers."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.answers = self._bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, count: int) -> None:
        self._transport.write(self._request * count)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        count = self._bytes // 4
        self._bytes -= 4 * count
        self.answers += count
        self.ask(count)


async def serve(folder: Path) -> None:
    limit = Limit(folder / "limit")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(limit), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def socket_rate(folder: Path, messages: int, outstanding: int) -> float:
    """Messages a second from another process."""
    command = [sys.executable, "-m", "bench.limit", "--serve", str(folder)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(await server.stdout.readline())
        content = (len(BODY).to_bytes(4, "big") + BODY) * messages
        request = len(content).to_bytes(4, "big") + content
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
        client.ask(outstanding)
        await asyncio.sleep(0.2)
        start, before = time.perf_counter(), client.answers
        await asyncio.sleep(1)
        return (client.answers - before) * messages / (time.perf_counter() - start)
    finally:
        server.kill()
        await server.wait()


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(serve(Path(sys.argv[2])))
    for messages, outstanding in CASES:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            inside = asyncio.run(limit_rate(Path(folder), messages, outstanding))
            outside = asyncio.run(socket_rate(Path(folder), messages, outstanding))
        print(
            f"{messages} in a send, {outstanding} outstanding: {inside:,.0f} messages a second in"
            f" process, {outside:,.0f} over a socket"
        )


if __name__ == "__main__":
    main()
