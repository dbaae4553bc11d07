"""Our client and broker beside others with their usual Python clients, in one run.

    python -m bench.client

One producer and one consumer, messages of 1 KiB, durable. They take turns; the ratio is that in the
middle of the rounds. Then what a single operation takes at 200 messages a second, what the
specification of the client wants of each provider, and what `import posthouse` costs.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from bench.peers import BATCH, PEERS, Missing, Peer, posthouse
from posthouse import Message, QueueClient, create_client
from posthouse.client.memory import InMemoryProvider

COUNTS = {"Posthouse": 20_480, "Redis": 20_480, "NATS": 10_240, "NATS, synced": 2_560,
          "RabbitMQ": 5_120, "beanstalkd": 2_048}  # fmt: skip
ROUNDS = 3
WORK = {"send_batches": "batches", "send_singly": "single", "receive": "receive"}
# How many times as fast as another: what, who, least, aim.
GOALS = (
    ("batches", "Redis", 3.0, 3.0),
    ("single", "Redis", 1.0, 1.0),
    ("single", "RabbitMQ", 5.0, 5.0),
    ("receive", "Redis", 0.5, 0.8),
    ("receive", "NATS", 1.5, 3.0),
    ("receive", "RabbitMQ", 10.0, 10.0),
)


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


async def latency(peer: Peer, count: int = 400) -> tuple[list[float], list[float]]:
    sent, received = [], []
    due = time.perf_counter()
    for _ in range(count):
        due += 1 / 200
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        one, other = await peer.one()
        sent.append(one)
        received.append(other)
    return sent, received


async def compare(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, start in PEERS.items():
            try:
                peers[name] = await stack.enter_async_context(start(folder / name))
            except Missing as missing:
                print(f"{name} is left out: {missing}.")
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
                reached = "reached" if times >= least else "MISSED"
                more = f", aim {aim:g} {'reached' if times >= aim else 'missed'}" * (aim > least)
                print(f"{what}: {times:.2f} times {other}; goal {least:g} {reached}{more}")
        print("single operations at 200 messages a second, p50 / p99 in ms:")
        for name, peer in peers.items():
            parts = [statistics.quantiles(each, n=100) for each in await latency(peer)]
            told = ", ".join(
                f"{what} {cuts[49] * 1e3:.2f} / {cuts[98] * 1e3:.2f}"
                for what, cuts in zip(("send", "receive and complete"), parts, strict=True)
            )
            print(f"  {name}: {told}")


# What the specification wants.


async def each_second(count: int, one: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        await one()
    return count / (time.perf_counter() - begun)


async def specification(name: str, client: QueueClient, queue: str, sessions: str) -> None:
    message = Message(bytes(1024))

    def tell(what: str, found: float, wanted: float, unit: str, *, most: bool) -> None:
        met = found <= wanted if most else found >= wanted
        print(f"  {name}: {what} {found:,.2f} {unit}, wanted {wanted:,.0f}: "
              f"{'met' if met else 'NOT met'}")  # fmt: skip

    async def cycle() -> None:
        await client.send_message(queue, message)

    tell("single operations", await each_second(1_000, cycle), 1_000, "a second", most=False)
    size = min(BATCH, client.max_batch_size())
    batch = [message] * size
    rate = size * await each_second(10_000 // size, lambda: client.send_messages(queue, batch))
    tell("batched messages", rate, 10_000, "a second", most=False)
    got = 0
    times: dict[str, list[float]] = {"send": [], "receive": [], "complete": [], "session": []}
    while got < 11_000:  # what was sent
        found = await client.receive_messages(queue, 256, 1)
        if not found:
            break
        got += len(found)
        await client.complete_messages(found)
    for _ in range(200):
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
    for number in range(100):
        await client.send_message(sessions, message.with_session_id(f"s{number}"))
    begun = time.perf_counter()
    for _ in range(100):
        at = time.perf_counter()
        session = await client.accept_session(sessions, timeout=5)
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


async def specifications(folder: Path) -> None:
    print("what the specification of the client wants:")
    async with create_client("memory://?max_queue_size=100000") as client:
        provider = client._provider
        assert isinstance(provider, InMemoryProvider)
        await provider.create_queue("bench")
        await provider.create_queue("sessions", sessions=True)
        await specification("in memory", client, "bench", "sessions")
    async with posthouse(folder / "again") as peer:
        await specification("Posthouse", peer._client, "single", "sessions")  # type: ignore[attr-defined]
    begun = time.perf_counter()
    for _ in range(100):
        create_client("memory://")
    print(f"  a client of another provider: {(time.perf_counter() - begun) * 10:.2f} ms, wanted 1")


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
    async with posthouse(folder / "idle") as peer:
        config = peer._client._calls.config.provider  # type: ignore[attr-defined]
        await asyncio.to_thread(
            costs, f"posthouse://{config.key_name}:{config.key.open()}@{config.host}:{config.port}"
        )


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        uvloop.run(compare(folder))
        uvloop.run(specifications(folder))
        uvloop.run(all_costs(folder))


if __name__ == "__main__":
    main()
