"""Our client and broker beside others with their usual Python clients, in one run.

    python -m bench.client [comparison] [specification] [costs]

Comparison: one producer and one consumer, messages of 1 KiB, durable. They take turns; the ratio is
that in the middle of the rounds. Then, in rounds as well, what a single operation takes at 200
messages a second. Redis has its parser in C, hiredis, as its users do; without it nothing is said
of what was reached beside Redis.
Specification: what that of the client wants, for each provider: Azure's is the official SDK with a
Posthouse server, SQS's is Moto's server, which is what limits it. Costs: of `import posthouse`, and
of a client that is idle. Without a word, all three.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.peers import (
    BATCH,
    KEY,
    PEERS,
    Missing,
    Peer,
    has_hiredis,
    posthouse_url,
    process,
    served,
)
from bench.start import a_free_port
from posthouse import Message, QueueClient, create_client
from posthouse.client.memory import InMemoryProvider
from posthouse.client.sqs import SqsProvider

COUNTS = {"Posthouse": 20_480, "Redis": 20_480, "NATS": 10_240, "NATS, synced": 2_560,
          "RabbitMQ": 5_120, "beanstalkd": 2_048}  # fmt: skip
ROUNDS = 9
A_SECOND = 200  # single operations whose latency is measured
OPERATIONS = 400  # of them in a round
WORK = {"send_batches": "batches", "send_singly": "single", "receive": "receive"}
# How many times as fast as another: what, who, least, aim.
GOALS = (
    ("batches", "Redis", 3.5, 3.5),
    ("single", "Redis", 1.3, 1.3),
    ("single", "RabbitMQ", 5.0, 5.0),
    ("receive", "Redis", 1.0, 1.0),
    ("receive", "NATS", 1.5, 3.0),
    ("receive", "RabbitMQ", 12.0, 12.0),
)
# What an operation takes beside Redis, at most: what, p50, p99.
LATENCY_GOALS = (("send", 1.0, 1.0), ("receive and complete", 0.9, 1.0))


async def rates(name: str, peer: Peer) -> dict[str, float]:
    """Messages a second."""
    count = COUNTS[name]
    found = {}
    for method, what in WORK.items():
        many = 2 * count if method == "receive" else count  # both that were sent
        begun = time.perf_counter()
        await getattr(peer, method)(many)
        found[what] = many / (time.perf_counter() - begun)
    return found


class Latency(NamedTuple):
    p50: float
    p99: float


async def latency(peer: Peer) -> dict[str, Latency]:
    """The seconds that a single operation takes, of some that are spread over time."""
    times: dict[str, list[float]] = {what: [] for what, _, _ in LATENCY_GOALS}
    due = time.perf_counter()
    for _ in range(OPERATIONS):
        due += 1 / A_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        for found, seconds in zip(times.values(), await peer.one(), strict=True):
            found.append(seconds)
    cuts = {what: statistics.quantiles(found, n=100) for what, found in times.items()}
    return {what: Latency(cut[49], cut[98]) for what, cut in cuts.items()}


def verdict(other: str, reached: bool) -> str:
    if other == "Redis" and not has_hiredis():
        return "not counted: the package hiredis is not installed"
    return "reached" if reached else "MISSED"


async def compare(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, start in PEERS.items():
            try:
                peers[name] = await stack.enter_async_context(start(folder / name))
            except Missing as missing:
                print(f"{name} is left out: {missing}.")
        if "Redis" in peers and not has_hiredis():
            print("Redis is measured WITHOUT hiredis, and is slower than its users have it.")
        await compare_rates(peers)
        await compare_latencies(peers)


async def compare_rates(peers: dict[str, Peer]) -> None:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, peer in peers.items():
            rounds[name].append(await rates(name, peer))
    for name, found in rounds.items():
        middle = {what: statistics.median(each[what] for each in found) for what in found[0]}
        told = ", ".join(f"{what} {rate:,.0f}" for what, rate in middle.items())
        print(f"{name}: {told} messages a second")
    for what, other, least, aim in GOALS:
        if other in rounds:
            pairs = zip(rounds["Posthouse"], rounds[other], strict=True)
            times = statistics.median(mine[what] / his[what] for mine, his in pairs)
            more = f", aim {aim:g} {'reached' if times >= aim else 'missed'}" * (aim > least)
            print(f"{what}: {times:.2f} times {other}, in the middle of {ROUNDS}; goal {least:g}"
                  f" {verdict(other, times >= least)}{more}", flush=True)  # fmt: skip


async def compare_latencies(peers: dict[str, Peer]) -> None:
    rounds: dict[str, list[dict[str, Latency]]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, peer in peers.items():
            rounds[name].append(await latency(peer))
    print(f"single operations at {A_SECOND} messages a second, p50 / p99 in ms, the middle of"
          f" {ROUNDS}:")  # fmt: skip
    for name, found in rounds.items():
        told = []
        for what, _, _ in LATENCY_GOALS:
            p50, p99 = (
                statistics.median(cuts)
                for cuts in zip(*(each[what] for each in found), strict=True)
            )
            told.append(f"{what} {p50 * 1e3:.2f} / {p99 * 1e3:.2f}")
        print(f"  {name}: {', '.join(told)}")
    if "Redis" not in rounds:
        return
    for what, *goals in LATENCY_GOALS:
        for cut, most in zip(Latency._fields, goals, strict=True):
            pairs = zip(rounds["Posthouse"], rounds["Redis"], strict=True)
            times = statistics.median(
                getattr(mine[what], cut) / getattr(his[what], cut) for mine, his in pairs
            )
            print(f"{what}, {cut}: {times:.2f} times Redis', in the middle of {ROUNDS}; goal: at"
                  f" most {most:g} {verdict('Redis', times <= most)}", flush=True)  # fmt: skip


# What the specification wants.


async def each_second(count: int, one: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        await one()
    return count / (time.perf_counter() - begun)


class Tried(NamedTuple):
    """A provider: clients for queues, and for queues with sessions, and what makes one more."""

    client: QueueClient
    for_sessions: QueueClient
    create: Callable[[], QueueClient]
    tries: int = 1_000  # operations that are tried; Moto takes the longer, the more is there


async def specification(name: str, tried: Tried, queue: str, sessions: str) -> None:
    client, message = tried.client, Message(bytes(1024))

    def tell(what: str, found: float, wanted: float, unit: str, *, most: bool) -> None:
        met = found <= wanted if most else found >= wanted
        print(f"  {name}: {what} {found:,.2f} {unit}, wanted {wanted:,.0f}: "
              f"{'met' if met else 'NOT met'}", flush=True)  # fmt: skip

    async def cycle() -> None:
        await client.send_message(queue, message)

    await cycle()  # it is connected
    tell("single operations", await each_second(tried.tries, cycle), 1_000, "a second", most=False)
    size = min(BATCH, client.max_batch_size())
    batch = [message] * size
    rate = size * await each_second(
        10 * tried.tries // size, lambda: client.send_messages(queue, batch)
    )
    tell("batched messages", rate, 10_000, "a second", most=False)
    times: dict[str, list[float]] = {"send": [], "receive": [], "complete": [], "session": []}
    while found := await client.receive_messages(queue, BATCH, 1):  # all that was sent
        await client.complete_messages(found)
    for _ in range(tried.tries // 5):
        marks = [time.perf_counter()]
        await client.send_message(queue, message)
        marks.append(time.perf_counter())
        received = await client.receive_message(queue, 1)
        marks.append(time.perf_counter())
        assert received is not None
        await client.complete_message(received)
        marks.append(time.perf_counter())
        for what, begin, end in zip(times, marks, marks[1:], strict=False):
            times[what].append(end - begin)
    holder = tried.for_sessions
    for number in range(100):
        await holder.send_message(sessions, message.with_session_id(f"s{number}"))
    begun = time.perf_counter()
    for _ in range(100):
        at = time.perf_counter()
        session = await holder.accept_session(sessions, timeout=5)
        times["session"].append(time.perf_counter() - at)
        assert session is not None
        received = await session.receive_message(1)
        assert received is not None
        await session.complete_message(received)
        await session.close_session()
    tell("sessions", 100 / (time.perf_counter() - begun), 100, "a second", most=False)
    for what, wanted in (("send", 10), ("receive", 50), ("complete", 5), ("session", 100)):
        cut = statistics.quantiles(times[what], n=100)[98] * 1e3
        tell(f"{what}, p99", cut, wanted, "ms", most=True)
    begun = time.perf_counter()
    others = [tried.create() for _ in range(100)]
    tell("switch to it", (time.perf_counter() - begun) * 10, 1, "ms", most=True)
    await asyncio.gather(*(each.close() for each in others))


@asynccontextmanager
async def in_memory(folder: Path) -> AsyncIterator[Tried]:
    async with create_client("memory://?max_queue_size=100000") as client:
        provider = client._provider
        assert isinstance(provider, InMemoryProvider)
        await provider.create_queue("bench")
        await provider.create_queue("sessions", sessions=True)
        yield Tried(client, client, lambda: create_client("memory://"))


@asynccontextmanager
async def on_posthouse(folder: Path) -> AsyncIterator[Tried]:
    async with served(folder) as port, create_client(posthouse_url(port)) as client:
        yield Tried(client, client, lambda: create_client(posthouse_url(port)))


@asynccontextmanager
async def on_azure(folder: Path) -> AsyncIterator[Tried]:
    async with served(folder) as port, create_client(f"sb://{KEY}@localhost:{port}") as client:
        yield Tried(client, client, lambda: create_client(f"sb://{KEY}@localhost:{port}"))


@asynccontextmanager
async def on_sqs(folder: Path) -> AsyncIterator[Tried]:
    port = a_free_port()
    url = f"sqs://key:secret@us-east-1?endpoint_url=http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with process(command, port):
        async with create_client(url) as client, create_client(f"{url}&use_fifo_queues=1") as fifo:
            provider = client._provider
            assert isinstance(provider, SqsProvider)
            sqs = await provider._open()
            await sqs.create_queue(QueueName="bench")
            await sqs.create_queue(QueueName="sessions.fifo", Attributes={"FifoQueue": "true"})
            yield Tried(client, fifo, lambda: create_client(url), 50)


async def specifications(folder: Path) -> None:
    print("what the specification of the client wants:")
    for name, start in (
        ("in memory", in_memory),
        ("Posthouse", on_posthouse),
        ("Azure Service Bus (its SDK, a Posthouse server)", on_azure),
        ("Amazon SQS (Moto's server, which is the limit)", on_sqs),
    ):
        async with start(folder / start.__name__) as tried:
            await specification(name, tried, "bench", "sessions")


# What it costs to have it.

_SIZE = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))"
_IDLE = f"""
import asyncio, posthouse
async def main():
    async with posthouse.create_client("URL") as client:
        await client.receive_message("idle", 0)
        {_SIZE}
asyncio.run(main())
"""


def costs(url: str) -> None:
    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        )  # fmt: skip
        return done.stdout.strip()

    def fastest(code: str) -> float:
        times = []
        for _ in range(10):
            begun = time.perf_counter()
            run(code)
            times.append(time.perf_counter() - begun)
        return min(times) * 1e3

    alone = fastest("pass")
    print(f"import posthouse: {fastest('import posthouse') - alone:.0f} ms over a bare interpreter;"
          f" with its client {fastest('from posthouse import create_client') - alone:.0f} ms;"
          " goal: below 100")  # fmt: skip
    idle = int(run(_IDLE.replace("URL", url))) / 1_024
    bare = int(run(f"import asyncio\nasyncio.run(asyncio.sleep(0))\n{_SIZE}")) / 1_024
    print(
        f"an idle client: {idle - bare:.1f} MB over a bare interpreter with asyncio; goal: below 10"
    )


async def all_costs(folder: Path) -> None:
    async with served(folder / "idle") as port:
        await asyncio.to_thread(costs, posthouse_url(port))


PARTS = {"comparison": compare, "specification": specifications, "costs": all_costs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or PARTS
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        for part in parts:
            uvloop.run(PARTS[part](folder))


if __name__ == "__main__":
    main()
