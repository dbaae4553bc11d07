"""Send, receive and complete over HTTP, against a bare uvicorn application in the same run.

    python -m bench.http

The bare one is as little as an HTTP service that keeps what it is told can be: uvicorn's httptools
protocol on uvloop, a body that is read, appended to a file and synced together with all that came
meanwhile, and an answer of the size that our own API gives. Both get the same requests over 32
connections that are kept open, from a process of its own: those of our own API, of Azure's REST
messaging, and of LocalZure's API. Then a batch over REST, beside sends one by one.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop

from bench.start import POSTHOUSE, a_free_port, signature

CONNECTIONS = 32
SECONDS = 3.0
ROUNDS = 9
GOAL = 0.55
QUEUE = "/api/v1/namespaces/default/queues/q"
MESSAGE = {"body": "x" * 1024, "id": "a" * 32}
BATCH, BATCH_GOAL = 100, 15


# The load.


class Api(NamedTuple):
    """How one API is asked to send, receive, and complete what was received."""

    name: str
    send: bytes
    receive: bytes
    complete: Callable[[bytes, bytes], bytes]  # from head and body of what was received
    done: bytes  # what `complete` looks like, for who answers nothing that could be completed


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        *headers,
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def between(data: bytes, before: bytes, after: bytes) -> bytes:
    at = data.index(before) + len(before)
    return data[at : data.index(after, at)]


BODY = b"x" * 1_024
KIND = "content-type: application/json"
SIGNED = f"authorization: {signature()}"
ZURE = "/servicebus/queues/q/messages"
GUID = "00000000-0000-0000-0000-000000000000"
NAMED, SENT = {"MessageId": "a" * 32}, {"body": "x" * 1_024, "message_id": "a" * 32}


def _complete(head: bytes, body: bytes) -> bytes:
    lock = between(body, b'"token":"', b'"')
    return request("POST", f"{QUEUE}/complete", b'{"locks":["%s"]}' % lock, KIND)


def _complete_rest(head: bytes, body: bytes) -> bytes:
    place = between(head, b"location: ", b"\r\n").decode().partition("localhost")[2]
    return request("DELETE", place, b"", SIGNED)


def _complete_zure(head: bytes, body: bytes) -> bytes:
    lock = between(body, b'"LockToken":"', b'"').decode()
    return request("DELETE", f"{ZURE}/{'a' * 32}/{lock}")


APIS = [
    Api("our API",
        request("POST", f"{QUEUE}/messages", json.dumps({"messages": [MESSAGE]}).encode(), KIND),
        request("POST", f"{QUEUE}/receive", b"{}", KIND), _complete,
        request("POST", f"{QUEUE}/complete", b'{"locks":["%s"]}' % (b"0" * 32), KIND)),
    Api("Azure's REST messaging",
        request("POST", "/q/messages", BODY, SIGNED, f"BrokerProperties: {json.dumps(NAMED)}"),
        request("POST", "/q/messages/head?timeout=0", b"", SIGNED), _complete_rest,
        request("DELETE", f"/q/messages/1/{GUID}", b"", SIGNED)),
    Api("LocalZure's API",
        request("POST", ZURE, json.dumps(SENT).encode(), KIND),
        request("POST", f"{ZURE}/receive", b"{}", KIND), _complete_zure,
        request("DELETE", f"{ZURE}/{'a' * 32}/{GUID}")),
]  # fmt: skip


class Caller(asyncio.Protocol):
    """One connection: sends, receives what it can, completes it, and begins again."""

    def __init__(self, api: Api, *, bare: bool, sends: bool = False) -> None:
        self.answers = 0
        self._api = api
        self._bare = bare
        self._sends = sends  # nothing else
        self._buffer = b""
        self._step = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._api.send)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.find(b"content-length: ")
        length = 0 if at < 0 else int(head[at + 16 :].split(b"\r\n", 1)[0])
        if len(rest) < length:
            return
        assert head.startswith(b"HTTP/1.1 20"), self._buffer
        self._buffer = b""
        self.answers += 1
        self._step = 0 if self._sends else (self._step + 1) % 3
        if self._step == 0:
            self._transport.write(self._api.send)
        elif self._step == 1:
            self._transport.write(self._api.receive)
        elif self._bare:  # it answers nothing that could be completed
            self._transport.write(self._api.done)
        else:
            self._transport.write(self._api.complete(head, rest))


async def load(port: int, api: Api, *, bare: bool, sends: bool = False) -> float:
    """Answers a second."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []

    def make() -> Caller:
        callers.append(Caller(api, bare=bare, sends=sends))
        return callers[-1]

    for _ in range(CONNECTIONS):
        await loop.create_connection(make, "127.0.0.1", port)
    await asyncio.sleep(0.5)
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
        self._answers = {"messages": b'{"sequences":[1],"duplicates":0}', "receive": encoded}

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
        last = scope["path"].rpartition("/")[2]
        answer = self._answers.get("receive" if last == "head" else last, b"{}")
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


@contextmanager
def served(command: list[str], port: int) -> Iterator[None]:
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
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def both() -> Iterator[tuple[int, int]]:
    """Ports of ours and of the bare one."""
    folder = tempfile.mkdtemp(dir=".")
    bare, ours = a_free_port(), a_free_port()
    serve = [POSTHOUSE, "serve", "--data", f"{folder}/data", "--dev", "--auto-create", "--port",
             str(ours), "--log-level", "error"]  # fmt: skip
    try:
        with (
            served([sys.executable, "-m", "bench.http", str(bare), folder], bare),
            served(serve, ours),
        ):
            yield ours, bare
    finally:
        shutil.rmtree(folder)


def batches() -> None:
    """A batch of 100 over REST, in messages a second, beside sends one by one."""
    one = APIS[1]
    batch = json.dumps([{"Body": "x" * 1_024} for _ in range(BATCH)]).encode()
    kind = "content-type: application/vnd.microsoft.servicebus.json"
    many = one._replace(send=request("POST", "/q/messages", batch, SIGNED, kind))
    found = []
    for _ in range(ROUNDS):
        with both() as (port, _):
            rates = [uvloop.run(load(port, each, bare=False, sends=True)) for each in (many, one)]
        found.append(rates[0] * BATCH / rates[1])
    verdict = "reached" if median(found) >= BATCH_GOAL else "MISSED"
    print(f"REST, batches of {BATCH}: {median(found):.0f} times the messages of single sends, in"
          f" the middle of {ROUNDS}; goal {BATCH_GOAL} {verdict}")  # fmt: skip


def main() -> None:
    for api in APIS:
        pairs = []
        for _ in range(ROUNDS):
            with both() as (port, bare_port):
                bare = uvloop.run(load(bare_port, api, bare=True))
                ours = uvloop.run(load(port, api, bare=False))
            pairs.append((ours, bare))
            print(f"  {ours:,.0f} against {bare:,.0f} requests a second, {ours / bare:.0%}")
        part = median(ours / bare for ours, bare in pairs)
        verdict = "reached" if part >= GOAL else "MISSED"
        print(f"{api.name}: send, receive, complete over {CONNECTIONS} connections: {part:.0%} in"
              f" the middle of {ROUNDS} pairs; goal {GOAL:.0%} {verdict}", flush=True)  # fmt: skip
    batches()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_bare(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
