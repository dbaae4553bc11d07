"""What dialects take over a persistent connection, durably, beside this machine's limit.

    python -m bench.dialects [NAME ...]

The limit is `bench.limit` over a socket: as many messages of the same size in a request, as many
requests outstanding, group-synced, with no broker behind it. Each figure is a ratio to that, both
taken one after the other in the same round, and the middle of some rounds is told, with the CPU
time of the server for a message, which is the steadier figure where other programs run beside it.
Messages are counted, also where each takes two requests, one to pull it and one to acknowledge it.
Clients are as cheap as they can be: they count answers, and find what they need by its place.

For PyQueue also how long a PUSH takes, one after another on one connection, beside a bare round
trip over TCP with an fdatasync: the middle of some rounds, in which they take turns.
"""

import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from bench.limit import BODY, socket_rate
from bench.servicebus import bare_times, broker, cpu_seconds

ROUNDS = 5
SECONDS = 1.0
WARM_SECONDS = 0.3
GOAL = 0.35
LATENCY_ROUNDS = 9
LATENCY_GOAL = 1.5  # times the p50 of a bare round trip
PUSHES = 300  # in a round


class Driver(asyncio.Protocol):
    """A client that keeps so many requests outstanding. `done` counts messages."""

    def __init__(self) -> None:
        self.done = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def start(self, outstanding: int) -> None:
        raise NotImplementedError


class Case(NamedTuple):
    name: str
    make: Callable[[], Driver]
    outstanding: int
    limit: tuple[int, int]  # messages in a request, and requests outstanding, of the limit
    goal: float = 0.0
    prepare: Callable[[], Driver] | None = None  # what has to be done first, for as long


class Dialect(NamedTuple):
    flags: tuple[str, ...]
    cases: tuple[Case, ...]


async def rate(port: int, make: Callable[[], Driver], outstanding: int, seconds: float) -> float:
    """Messages a second."""
    loop = asyncio.get_running_loop()
    transport, driver = await loop.create_connection(make, "127.0.0.1", port)
    driver.start(outstanding)
    await asyncio.sleep(WARM_SECONDS)
    begun, before = time.perf_counter(), driver.done
    await asyncio.sleep(seconds)
    found = (driver.done - before) / (time.perf_counter() - begun)
    transport.close()
    return found


# PyQueue.

_TASK = b'{"payload": "%s", "queue": "bench"}' % (b"x" * len(BODY))
_ID_BYTES = 36


def _frame(word: bytes, payload: bytes) -> bytes:
    return b"%s %d %s" % (word, len(payload), payload)


class Pusher(Driver):
    """Its answers all have the same size."""

    def __init__(self, request: bytes, messages: int, answer_bytes: int) -> None:
        super().__init__()
        self._request, self._messages, self._answer_bytes = request, messages, answer_bytes
        self._bytes = 0

    def start(self, outstanding: int) -> None:
        self.transport.write(self._request * outstanding)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        answers, self._bytes = divmod(self._bytes, self._answer_bytes)
        self.done += answers * self._messages
        self.transport.write(self._request * answers)


class Puller(Driver):
    """Pulls, one or ten at a time, and acknowledges each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._pull = _frame(b"PULL", b'{"queue":"bench"}')
        if count > 1:
            self._pull = _frame(b"PULL_BATCH", b'{"queue":"bench","count":%d}' % count)
        self._data = b""

    def start(self, outstanding: int) -> None:
        self.transport.write(self._pull * outstanding)

    def data_received(self, data: bytes) -> None:
        data, at, said = self._data + data, 0, []
        while True:
            space = data.find(b" ", at)
            second = data.find(b" ", space + 1) if space >= 0 else -1
            if second < 0:
                break
            end = second + 1 + int(data[space + 1 : second])
            if end > len(data):
                break
            word = data[at:space]
            if word == b"OK":
                self.done += 1
            elif word == b"ERROR":
                raise RuntimeError(data[second:end])
            else:
                found = data.find(b'"task_id":"', second, end)
                while found >= 0:
                    id = data[found + 11 : found + 11 + _ID_BYTES]
                    said.append(b"ACK %d %s" % (_ID_BYTES, id))
                    found = data.find(b'"task_id":"', found + _ID_BYTES, end)
                said.append(self._pull)
            at = end
        self._data = data[at:]
        if said:
            self.transport.write(b"".join(said))


def _push() -> Driver:
    return Pusher(_frame(b"PUSH", _TASK), 1, len(b"OK 36 ") + _ID_BYTES)


def _push_batch() -> Driver:
    tasks = b'{"tasks": [%s]}' % b", ".join([_TASK] * 100)
    ids = b",".join([b'"%s"' % bytes(_ID_BYTES)] * 100)
    answer = _frame(b"OK", b'{"task_ids":[%s],"count":100}' % ids)
    return Pusher(_frame(b"PUSH_BATCH", tasks), 100, len(answer))


PYQUEUE = Dialect(
    ("--pyqueue-depth", "100000000", "--pyqueue-lock", "1h"),
    (
        Case("PUSH, one by one", _push, 1, (1, 1)),
        Case("PUSH, pipelined", _push, 256, (1, 256), GOAL),
        Case("PUSH_BATCH of 100", _push_batch, 8, (100, 8)),
        Case("PULL and ACK, one by one", lambda: Puller(1), 1, (1, 1), 0.0, _push_batch),
        Case("PULL and ACK, pipelined", lambda: Puller(1), 256, (1, 256), GOAL, _push_batch),
        Case("PULL_BATCH of 10 and ACK", lambda: Puller(10), 26, (1, 256), GOAL, _push_batch),
    ),
)
DIALECTS = {"pyqueue": PYQUEUE}


def push_times(port: int) -> list[float]:
    """The seconds that a PUSH takes, each sent when the one before was answered."""
    request, answer_bytes = _frame(b"PUSH", _TASK), len(b"OK 36 ") + _ID_BYTES
    times = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PUSHES):
            begun = time.perf_counter()
            client.sendall(request)
            assert len(client.recv(4_096)) == answer_bytes
            times.append(time.perf_counter() - begun)
    return times


def measure_latency(port: int, folder: Path) -> None:
    rounds = []
    for _ in range(LATENCY_ROUNDS):
        bare = statistics.quantiles(bare_times(folder, PUSHES), n=100)
        push = statistics.quantiles(push_times(port), n=100)
        rounds.append((push[49] / bare[49], push[49], bare[49], push[98], bare[98]))
    ratio, *cuts = (statistics.median(each) for each in zip(*rounds, strict=True))
    verdict = "reached" if ratio <= LATENCY_GOAL else "MISSED"
    mine, bare_ms, mine_p99, bare_p99 = (seconds * 1e3 for seconds in cuts)
    print(f"  PUSH, one by one: p50 {mine:.3f} ms, {ratio:.2f} times a bare round trip with an"
          f" fdatasync ({bare_ms:.3f}), in the middle of {LATENCY_ROUNDS}; goal {LATENCY_GOAL:g}"
          f" {verdict}; p99 {mine_p99:.2f} and {bare_p99:.2f} ms", flush=True)  # fmt: skip


async def measure(dialect: Dialect, port: int, pid: int, folder: Path) -> None:
    for case in dialect.cases:
        found = []
        for _ in range(ROUNDS):
            if case.prepare is not None:
                await rate(port, case.prepare, 8, 1.5 * SECONDS)
            before = cpu_seconds(pid)
            got = await rate(port, case.make, case.outstanding, SECONDS)
            cpu = (cpu_seconds(pid) - before) / (got * (SECONDS + WARM_SECONDS)) * 1e6
            least = await socket_rate(folder, *case.limit)
            found.append((got / least, got, least, cpu))
        ratio, got, least, cpu = (statistics.median(each) for each in zip(*found, strict=True))
        goal = ""
        if case.goal:
            goal = f", goal {case.goal:.0%} {'reached' if ratio >= case.goal else 'MISSED'}"
        print(
            f"  {case.name}: {got:,.0f} messages a second, {ratio:.0%} of the limit"
            f" ({least:,.0f}){goal}; about {cpu:.0f} us of the server's CPU a message",
            flush=True,
        )


def main() -> None:
    for name in sys.argv[1:] or DIALECTS:
        dialect = DIALECTS[name]
        print(f"{name}:")
        with tempfile.TemporaryDirectory(dir=".") as made:
            folder = Path(made)
            with broker("--data", str(folder / "data"), *dialect.flags) as (port, pid):
                if name == "pyqueue":
                    measure_latency(port, folder)
                asyncio.run(measure(dialect, port, pid, folder))


if __name__ == "__main__":
    main()
