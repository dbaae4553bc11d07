"""What many queues and namespaces cost whoever is not asking for them.

    python -m bench.queues

Making a queue among 5,000, beside making one in a namespace that has none, turn about. Then how
long the event loop is held at most while metrics are told of them, as the broker itself measures it
(`posthouse_event_loop_held_seconds`), with other clients connected. At last, in the engine alone,
the CPU time of a commit among 5,000 namespaces, beside one in the only namespace.
"""

import asyncio
import http.client
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.limit import BODY
from bench.start import POSTHOUSE, a_free_port
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import NewMessage
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.memory import MemoryStore

QUEUES = 5_000
ROUNDS = 9
EACH = 50  # queues that are made in a round
SCRAPES = 40
RATIO_GOAL, HELD_GOAL_MS = 1.5, 5.0
NAMESPACES, COMMITS, COMMIT_GOAL = 5_000, 1_000, 1.2
_HELD = re.compile(r"^posthouse_event_loop_held_seconds (\S+)$", re.MULTILINE)


class Broker:
    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str, path: str) -> bytes:
        body = b"{}" if method == "PUT" else None
        self._connection.request(method, path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status in (200, 201), data
        return data

    def make(self, namespace: str, name: str) -> float:
        """Makes a queue. Returns the seconds it took."""
        begun = time.perf_counter()
        self.call("PUT", f"/api/v1/namespaces/{namespace}/queues/{name}")
        return time.perf_counter() - begun

    def held_ms(self, path: str) -> float:
        """The longest hold of the loop while metrics are told, from one answer to the next."""
        self.call("GET", "/metrics")
        self.call("GET", path)
        time.sleep(0.05)  # until the timer that measures has fired
        found = _HELD.search(self.call("GET", "/metrics").decode())
        assert found is not None
        return float(found[1]) * 1e3


@contextmanager
def served() -> Iterator[Broker]:
    folder, port = tempfile.mkdtemp(dir="."), a_free_port()
    command = [POSTHOUSE, "serve", "--data", f"{folder}/data", "--dev", "--port", str(port),
               "--log-level", "error"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            broker = Broker(port)
            while True:
                try:
                    broker.call("GET", "/health/ready")
                    break
                except (OSError, AssertionError, http.client.HTTPException):
                    broker = Broker(port)
                    time.sleep(0.05)
            yield broker
        finally:
            process.terminate()
    shutil.rmtree(folder)


async def engine_with(namespaces: int) -> Engine:
    engine = await Engine.open(MemoryStore(keep_bytes=1 << 20), SystemClock(), salt=1)
    for number in range(namespaces):
        await engine.ask(BROKER, "", CreateNamespace(f"n{number}", engine.epoch, 1))
        await engine.ask(BROKER, f"n{number}", CreateQueue("q"))
        message = NewMessage(b"\x80", b"", ttl_ms=3_600_000)
        await engine.ask(BROKER, f"n{number}", Send("q", [message]))
    return engine


async def commit_us(engine: Engine) -> float:
    begun = time.process_time()
    for _ in range(COMMITS):
        await engine.ask(BROKER, "n0", Send("q", [NewMessage(b"\x80", BODY)]))
    return (time.process_time() - begun) / COMMITS * 1e6


async def measure_namespaces() -> None:
    many, one = await engine_with(NAMESPACES), await engine_with(1)
    pairs = [(await commit_us(many), await commit_us(one)) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    verdict = "reached" if ratio <= COMMIT_GOAL else "MISSED"
    print(f"a commit among {NAMESPACES:,} namespaces: {statistics.median(a for a, _ in pairs):.0f}"
          f" us of CPU, in the only one {statistics.median(b for _, b in pairs):.0f}: {ratio:.2f}"
          f" times, the middle of {ROUNDS}; goal {COMMIT_GOAL} {verdict}")  # fmt: skip
    await many.close()
    await one.close()


def main() -> None:
    asyncio.run(measure_namespaces())
    with served() as broker:
        for namespace in ("many", "few"):
            broker.call("PUT", f"/api/v1/namespaces/{namespace}")
        for number in range(QUEUES):
            broker.make("many", f"queue{number}")
        times: dict[str, list[float]] = {"many": [], "few": []}
        for round in range(ROUNDS):
            for namespace, found in times.items():
                some = [broker.make(namespace, f"more{round}-{n}") for n in range(EACH)]
                found.append(statistics.median(some))
        ratio = statistics.median(a / b for a, b in zip(times["many"], times["few"], strict=True))
        verdict = "reached" if ratio <= RATIO_GOAL else "MISSED"
        many, few = (statistics.median(found) * 1e3 for found in times.values())
        # fmt: off
        print(f"making a queue among {QUEUES:,}: {many:.2f} ms, in an empty namespace {few:.2f}:"
              f" {ratio:.2f} times, the middle of {ROUNDS}; goal {RATIO_GOAL} {verdict}")
        # fmt: on
        for path in ("/metrics", "/metrics?entities=1", "/servicebus/metrics"):
            broker.call("GET", path)  # what is imported at the first time
            begun = time.perf_counter()
            broker.call("GET", path)
            took_ms = (time.perf_counter() - begun) * 1e3
            held = sorted(broker.held_ms(path) for _ in range(SCRAPES))
            middle = statistics.median(held)
            verdict = "reached" if middle <= HELD_GOAL_MS else "MISSED"
            print(f"{path} holds the event loop for {middle:.1f} ms in the middle of {SCRAPES};"
                  f" goal {HELD_GOAL_MS:g} ms {verdict}; {held[-1]:.1f} ms at most, which may be a"
                  f" garbage collection; an answer takes {took_ms:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
