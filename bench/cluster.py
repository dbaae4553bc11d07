"""The journal on three NATS servers, beside the journal in files, in the same run.

    python -m bench.cluster [engine] [latency] [nodes] [relay] [--rounds N]

Servers, brokers and clients are all on this machine, so three times the work shares its processors
and its disk: figures are a floor. Every message of NATS is on the disks of two servers before it is
acknowledged.

engine: sends of 1 KiB, single with 256 outstanding and in batches of 100 with 8 outstanding, to an
engine on the replicated store and to one on the file store, turn about.

latency: one send after the other, beside bare publishes of as many bytes to the same stream.

nodes: three nodes as processes. A client sends half of what it can. How long after the leader has
written a frame a follower has applied it (p99), and what CPU time a follower takes beside the
leader's.

relay: a client of a follower, which hands it to the leader, beside a client of the leader.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import nats
from nats.js import JetStreamContext

from bench.limit import BODY, CASES, rate
from bench.nats_servers import NatsServers, nats_servers
from bench.servicebus import KEY, KEY_NAME, cpu_seconds
from bench.start import a_free_port
from posthouse import Message, NoRetry, QueueClient, QueueError, create_client
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.log import Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers
from posthouse.store.replicated import ReplicatedStore

NS, QUEUE = "bench", "q"
ROUNDS = 9
GOALS = {(100, 8): 0.3, (1, 256): 0.5}  # by messages in a send, and sends outstanding
GOAL_LATENCY = 4.0
GOAL_LAG_MS = 50.0
GOAL_STANDBY = 0.4
GOAL_RELAY = 0.7
SINGLE_SENDS = 200  # one by one, in a round
OUTSTANDING = 256
LOAD_SECONDS = 3.0
HALF_SECONDS = 5.0
PACE_SECONDS = 0.02
WINDOW_BYTES = 2 << 30
HEAD_BYTES = 45  # of a message of the log, before its part of a frame
LAGS = "BENCH_CLUSTER_LAGS"  # the variable that names the file of a node's lags


def told(what: str, found: float, goal: float, rounds: int, form: str, *, least: bool) -> None:
    is_reached = found >= goal if least else found <= goal
    bound = "at least" if least else "at most"
    print(
        f"{what}: {form.format(found)} in the middle of {rounds}; goal {bound}"
        f" {form.format(goal)} {'reached' if is_reached else 'MISSED'}",
        flush=True,
    )


# Engines in this process.


async def begin(engine: Engine) -> Callable[[int], Send]:
    """Makes a queue; returns what makes a send of so many messages."""
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    await engine.ask(BROKER, NS, CreateQueue(QUEUE))
    message = NewMessage(encode_envelope(Envelope(id="a" * 32)), BODY)
    return lambda count: Send(QUEUE, [message] * count)


@asynccontextmanager
async def on_files(folder: Path) -> AsyncIterator[Engine]:
    engine = await Engine.open(FileStore(folder / "file"), SystemClock(), salt=1)
    try:
        yield engine
    finally:
        await engine.close()
        shutil.rmtree(folder / "file")


class Streams:
    """Streams for one round each, on three servers."""

    def __init__(self, servers: NatsServers, folder: Path) -> None:
        self._servers, self._folder = servers, folder
        self._made = 0

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[tuple[Engine, str]]:
        """An engine that leads on a new stream, and the stream's subject."""
        self._made += 1
        name = f"bench{self._made}"
        nodes = await Nats.connect(Servers(tuple(self._servers.urls), name=name))
        log = await self._log(nodes, name)
        data = self._folder / name
        store = ReplicatedStore(FileStore(data, durability="interval"), log)
        engine = await Engine.follow(store, SystemClock(), 1)
        await store.lead(1, engine.apply)
        await engine.promote(1)
        try:
            yield engine, f"phj.{name}.0"
        finally:
            await engine.close()
            await nodes.close()
            async with self.jetstream() as stream:
                await stream.delete_stream(f"PHJ_{name}_0")
            shutil.rmtree(data)

    async def _log(self, nodes: Nats, name: str) -> NatsLog:
        while True:
            try:
                return await nodes.log(f"PHJ_{name}_0", f"phj.{name}.0", 3, WINDOW_BYTES)
            except Unanswered:
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(self._servers.urls)
        try:
            yield client.jetstream(timeout=5)
        finally:
            await client.close()


async def engine_rate(engine: Engine, messages: int, outstanding: int) -> float:
    send = (await begin(engine))(messages)
    return await rate(partial(engine.ask, BROKER, NS, send), messages, outstanding)


async def measure_engine(servers: NatsServers, folder: Path, rounds: int) -> None:
    streams = Streams(servers, folder)
    for messages, outstanding in CASES:
        pairs = []
        for _ in range(rounds):
            async with on_files(folder) as engine:
                filed = await engine_rate(engine, messages, outstanding)
            async with streams.engine() as (engine, _):
                replicated = await engine_rate(engine, messages, outstanding)
            pairs.append((replicated, filed))
        rates = [median(rates) for rates in zip(*pairs, strict=True)]
        told(
            f"{messages} in a send, {outstanding} outstanding: {rates[0]:,.0f} messages a second"
            f" on three servers, {rates[1]:,.0f} in files",
            median(a / b for a, b in pairs), GOALS[messages, outstanding], rounds, "{:.2f}",
            least=True,
        )  # fmt: skip


async def _p50_ms(once: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(SINGLE_SENDS):
        begun = time.perf_counter()
        await once()
        times.append(time.perf_counter() - begun)
    return median(times) * 1e3


async def measure_latency(servers: NatsServers, folder: Path, rounds: int) -> None:
    streams, pairs = Streams(servers, folder), []
    for _ in range(rounds):
        async with streams.engine() as (engine, subject):
            send = (await begin(engine))(1)
            before, written = engine.last.number, engine.figures.frame_bytes.sum
            sent = await _p50_ms(partial(engine.ask, BROKER, NS, send))
            frames = engine.last.number - before
            size = round((engine.figures.frame_bytes.sum - written) / frames) + HEAD_BYTES
            # The engine writes no more, so foreign messages in its stream do no harm.
            async with streams.jetstream() as stream:
                bare = await _p50_ms(partial(stream.publish, subject, bytes(size)))
        pairs.append((sent, bare))
    sent_ms, bare_ms = (median(times) for times in zip(*pairs, strict=True))
    told(
        f"one send after the other: p50 {sent_ms:.2f} ms, a bare publish {bare_ms:.2f} ms",
        median(a / b for a, b in pairs), GOAL_LATENCY, rounds, "{:.1f} times", least=False,
    )  # fmt: skip


# Nodes, each a process of its own.


def run_node(arguments: list[str]) -> int:
    """Runs `posthouse serve`, and notes how long after its writing each frame is applied."""
    from posthouse.cli import main

    lags: list[int] = []
    apply = Engine.apply

    def noted(engine: Engine, frame: Frame) -> None:
        apply(engine, frame)
        lags.append(time.time_ns() // 1_000_000 - frame.time_ms)

    def write(*_: object) -> None:
        path = Path(os.environ[LAGS])
        path.with_suffix(".new").write_text(json.dumps(lags))
        path.with_suffix(".new").rename(path)
        lags.clear()

    setattr(Engine, "apply", noted)  # noqa: B010 (no other name is to be had for it)
    signal.signal(signal.SIGUSR1, write)
    sys.argv = ["posthouse", "serve", *arguments]
    return main()


class Node:
    def __init__(self, name: str, servers: NatsServers, folder: Path) -> None:
        self.name, self.port = name, a_free_port()
        self._lags = folder / f"{name}.lags"
        hosts = ",".join(url.removeprefix("nats://") for url in servers.urls)
        flags = [
            "--dev", "--auto-create", "--store", f"nats://{hosts}", "--cluster", "bench",
            "--node", name, "--data", str(folder / name), "--port", str(self.port),
            "--advertise", f"localhost:{self.port}",
            *(word for url in servers.monitors for word in ("--nats-monitor", url)),
        ]  # fmt: skip
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.cluster", "--node", *flags],
                env={**os.environ, LAGS: str(self._lags)}, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    @property
    def url(self) -> str:
        return f"posthouse://{KEY_NAME}:{KEY}@localhost:{self.port}"

    def lags_ms(self) -> list[int]:
        """The lags since the last call."""
        self._lags.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        while not self._lags.exists():
            time.sleep(0.01)
        found: list[int] = json.loads(self._lags.read_text())
        return found

    @property
    def leads(self) -> bool:
        """A node that does not know /health/leader is ready only if it leads."""
        if self._process.poll() is not None:
            raise SystemExit(f"The node {self.name} has ended: {self._log.read_text()[-2_000:]}")
        found = self._health("leader")
        return (self._health("ready") if found == 404 else found) == 200

    def _health(self, what: str) -> int:
        try:
            with urlopen(f"http://localhost:{self.port}/health/{what}", timeout=2) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except (URLError, OSError):
            return 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def cluster(servers: NatsServers, folder: Path) -> Iterator[tuple[Node, list[Node]]]:
    """The leader, and the others."""
    nodes = [Node(name, servers, folder) for name in "abc"]
    try:
        while not any(node.leads for node in nodes):
            time.sleep(0.1)
        leader = next(node for node in nodes if node.leads)
        yield leader, [node for node in nodes if node is not leader]
    finally:
        for node in nodes:
            node.close()


async def client_rate(client: QueueClient) -> float:
    async def send() -> None:
        await client.send_message(QUEUE, Message(BODY))

    return await rate(send, 1, OUTSTANDING)


async def send_at(client: QueueClient, each_second: float) -> int:
    """Sends for a while at this rate; returns how many."""
    loop = asyncio.get_running_loop()
    begun, sent = loop.time(), 0
    pending: set[asyncio.Task[object]] = set()
    while (passed := loop.time() - begun) < HALF_SECONDS:
        while sent < passed * each_second:
            task = asyncio.ensure_future(client.send_message(QUEUE, Message(BODY)))
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent += 1
        await asyncio.sleep(PACE_SECONDS)
    await asyncio.gather(*pending)
    return sent


def p99(values: list[int]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("nan")


async def measure_nodes(servers: NatsServers, folder: Path, rounds: int) -> None:
    with cluster(servers, folder) as (leader, followers):
        async with create_client(leader.url) as client:
            await client_rate(client)  # everything is imported, and the queue is there
            full = await client_rate(client)
            lags, parts = [], []
            for _ in range(rounds):
                for node in followers:
                    node.lags_ms()
                before = [node.cpu_seconds for node in (leader, *followers)]
                await send_at(client, full / 2)
                used = [
                    node.cpu_seconds - taken
                    for node, taken in zip((leader, *followers), before, strict=True)
                ]
                lags.append(max(p99(node.lags_ms()) for node in followers))
                parts.append(max(used[1:]) / used[0])
    told(
        f"a follower's lag at {full / 2:,.0f} messages a second, p99 of the slower one",
        median(lags), GOAL_LAG_MS, rounds, "{:.0f} ms", least=False,
    )  # fmt: skip
    told(
        "the CPU time of the busier follower, of the leader's", median(parts), GOAL_STANDBY,
        rounds, "{:.0%}", least=False,
    )  # fmt: skip


async def measure_relay(servers: NatsServers, folder: Path, rounds: int) -> None:
    with cluster(servers, folder) as (leader, followers):
        async with (
            create_client(leader.url) as direct,
            create_client(followers[0].url, retry=NoRetry()) as relayed,
        ):
            await client_rate(direct)
            try:
                await relayed.send_message(QUEUE, Message(BODY))
            except QueueError as error:
                print(f"relayed connections: not measured, a follower does not relay ({error})")
                return
            await client_rate(relayed)
            pairs = []
            for at in range(rounds):
                first, second = (relayed, direct) if at % 2 else (direct, relayed)
                rates = {client: await client_rate(client) for client in (first, second)}
                pairs.append((rates[relayed], rates[direct]))
    through, straight = (median(rates) for rates in zip(*pairs, strict=True))
    told(
        f"through a follower {through:,.0f} messages a second, to the leader {straight:,.0f}",
        median(a / b for a, b in pairs), GOAL_RELAY, rounds, "{:.2f}", least=True,
    )  # fmt: skip


PARTS = {
    "engine": measure_engine, "latency": measure_latency, "nodes": measure_nodes,
    "relay": measure_relay,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}")
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(dir=".") as name:
            folder = Path(name)
            with nats_servers(folder) as servers, contextlib.suppress(KeyboardInterrupt):
                asyncio.run(PARTS[part](servers, folder, options.rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        sys.exit(run_node(sys.argv[2:]))
    main()
