"""Send, receive and complete over HTTP, against a bare uvicorn application in the same run.

    python -m bench.http

The bare one is as little as an HTTP service that keeps what it is told can be: uvicorn's httptools
protocol on uvloop, a body that is read, appended to a file and synced together with all that came
meanwhile, and an answer of the same size as ours. Both get the same requests over 32 connections
that are kept open, from a process of its own.
"""

import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench.start import POSTHOUSE, a_free_port

CONNECTIONS = 32
SECONDS = 4.0
ROUNDS = 5
GOAL = 0.55
QUEUE = "/api/v1/namespaces/default/queues/q"
MESSAGE = {"body": "x" * 1024, "id": "a" * 32}
TOKEN = b'"token":"'


# The load.


class Caller(asyncio.Protocol):
    """One connection: sends, receives what it can, completes it, and begins again."""

    def __init__(self) -> None:
        self.answers = 0
        self._buffer = b""
        self._step = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask(b"messages", json.dumps({"messages": [MESSAGE]}).encode())

    def _ask(self, what: bytes, body: bytes) -> None:
        head = b"POST %s/%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        path = QUEUE.encode()
        self._transport.write(
            head % (path, what) + b"content-length: %d\r\n\r\n" % len(body) + body
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.index(b"content-length: ") + 16
        length = int(head[at:].split(b"\r\n", 1)[0])
        if len(rest) < length:
            return
        assert head.startswith(b"HTTP/1.1 20"), self._buffer
        self._buffer = b""
        self.answers += 1
        self._step = (self._step + 1) % 3
        if self._step == 0:
            self._ask(b"messages", json.dumps({"messages": [MESSAGE]}).encode())
        elif self._step == 1:
            self._ask(b"receive", b"{}")
        else:
            at = rest.index(TOKEN) + len(TOKEN)
            self._ask(b"complete", b'{"locks":["%s"]}' % rest[at : at + 32])


async def load(port: int) -> float:
    """Answers a second."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []

    def make() -> Caller:
        callers.append(Caller())
        return callers[-1]

    for _ in range(CONNECTIONS):
        await loop.create_connection(make, "127.0.0.1", port)
    await asyncio.sleep(1)
    before, begun = sum(each.answers for each in callers), time.perf_counter()
    await asyncio.sleep(SECONDS)
    return (sum(each.answers for each in callers) - before) / (time.perf_counter() - begun)


# The bare application.


class Bare:
    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(self._file, 0, 1 << 30)
        os.fsync(self._file)
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._syncing: asyncio.Task[None] | None = None
        received = {"messages": [{**MESSAGE, "sequence": 1, "enqueued_ms": 1, "token": "0" * 32,
                                  "deliveries": 1, "until_ms": 1 << 40}]}  # fmt: skip
        encoded = json.dumps(received, separators=(",", ":")).encode()
        self._answers = {"messages": b'{"sequences":[1],"duplicates":0}', "receive": encoded,
                         "complete": b"{}"}  # fmt: skip

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        body = (await receive())["body"]
        done = asyncio.get_running_loop().create_future()
        self._pending.append((body, done))
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        await done
        answer = self._answers[scope["path"].rpartition("/")[2]]
        headers = [(b"content-type", b"application/json"),
                   (b"content-length", b"%d" % len(answer))]  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            await loop.run_in_executor(None, self._write, b"".join(body for body, _ in batch))
            for _, done in batch:
                done.set_result(None)
        self._syncing = None

    def _write(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)


def serve_bare(port: int, folder: Path) -> None:
    import uvicorn

    uvicorn.run(
        Bare(folder), port=port, log_level="critical", access_log=False, loop="uvloop",
        http="httptools", lifespan="off",
    )  # fmt: skip


def measure(command: list[str], port: int) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("POST", f"{QUEUE}/receive", b"{}",
                                   {"content-type": "application/json"})  # fmt: skip
                if connection.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.05)
            finally:
                connection.close()
        found = uvloop.run(load(port))
        process.terminate()
    return found


def main() -> None:
    pairs = []
    for _ in range(ROUNDS):
        folder = tempfile.mkdtemp(dir=".")
        port = a_free_port()
        bare = measure([sys.executable, "-m", "bench.http", str(port), folder], port)
        port = a_free_port()
        ours = measure(
            [POSTHOUSE, "serve", "--data", f"{folder}/data", "--dev", "--auto-create", "--port",
             str(port), "--log-level", "error"], port,
        )  # fmt: skip
        shutil.rmtree(folder)
        pairs.append((ours, bare))
        print(f"  {ours:,.0f} against {bare:,.0f} requests a second, {ours / bare:.0%}")
    part = median(ours / bare for ours, bare in pairs)
    verdict = "reached" if part >= GOAL else "MISSED"
    print(f"send, receive, complete over {CONNECTIONS} connections: {part:.0%} in the middle of"
          f" {ROUNDS} pairs; goal {GOAL:.0%} {verdict}")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_bare(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
