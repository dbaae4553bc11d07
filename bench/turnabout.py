"""Whether this clone is slower than another one: the CPU time of both for the same work.

    git worktree add ../before COMMIT
    python -m bench.turnabout ../before [--pairs N]

A broker of each clone runs, both in their default durability, and they are given the same load turn
about. The clients are this clone's, and the wire is the same for both. The engine alone is measured
in a process of its own, on a store in memory. A ratio is the other's time by this one's, so one
below 1 means that this clone is slower; the middle of all pairs is told.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.dialects import PYQUEUE, SECONDS, WARM_SECONDS, rate
from bench.http import APIS, load
from bench.http import SECONDS as HTTP_SECONDS
from bench.limit import BODY
from bench.servicebus import MESSAGES, broker, cpu_seconds, wait_until_idle
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import Complete, CreateQueue, Receive, Received, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.memory import MemoryStore

PAIRS = 9
LEAST = 0.95
COMMANDS = 3_000  # of the engine, in a round
ENGINE_ROUNDS = 6  # the quickest counts
NS = "bench"

Load = Callable[[int], float]  # given a port: how many messages it has sent, or received


def _amqp(port: int, *, sends: bool) -> float:
    command = [sys.executable, "-m", "bench.servicebus", "drive", str(port), str(int(sends))]
    subprocess.run(command, check=True)
    return MESSAGES


def _http(port: int) -> float:
    """A third of the answers is for a message that was sent, received and completed."""
    answers = asyncio.run(load(port, APIS[0], bare=False))
    return answers * (HTTP_SECONDS + 0.5) / 3


def _pyqueue(port: int, name: str) -> float:
    (case,) = (case for case in PYQUEUE.cases if case.name == name)
    found = asyncio.run(rate(port, case.make, case.outstanding, SECONDS))
    return found * (SECONDS + WARM_SECONDS)


LOADS: dict[str, Load] = {
    "AMQP, send": lambda port: _amqp(port, sends=True),
    "AMQP, receive and complete": lambda port: _amqp(port, sends=False),
    "HTTP, send, receive and complete": _http,
    "PyQueue, PUSH": lambda port: _pyqueue(port, "PUSH, pipelined"),
    "PyQueue, PULL and ACK": lambda port: _pyqueue(port, "PULL and ACK, pipelined"),
}


def microseconds(work: Load, port: int, pid: int) -> float:
    wait_until_idle(pid)
    before = cpu_seconds(pid)
    messages = work(port)
    wait_until_idle(pid)
    return (cpu_seconds(pid) - before) / messages * 1e6


async def engine() -> dict[str, float]:
    """Microseconds for each message, on a store in memory."""
    engine = await Engine.open(MemoryStore(keep_bytes=1 << 20), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    await engine.ask(BROKER, NS, CreateQueue("q"))
    message = NewMessage(encode_envelope(Envelope(id="a" * 32)), BODY)
    least: dict[str, float] = {}

    async def send(count: int) -> None:
        await engine.ask(BROKER, NS, Send("q", [message] * count))

    async def take(count: int) -> None:
        received = await engine.ask(BROKER, NS, Receive("q", engine.new_receiver(), count))
        assert isinstance(received, Received)
        tokens = [delivery.token for delivery in received.deliveries]
        await engine.ask(BROKER, NS, Complete("q", tokens))

    for _ in range(ENGINE_ROUNDS):
        for count in (1, 100):
            for name, work in (("send", send), ("receive and complete", take)):
                begun = time.process_time()
                for _ in range(COMMANDS // count):
                    await work(count)
                taken = (time.process_time() - begun) / COMMANDS * 1e6
                name = f"engine, {name}, {count} at a time"
                least[name] = min(taken, least.get(name, taken))
    await engine.close()
    return least


def engine_of(source: Path) -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "bench.turnabout", "--engine"],
        env={**os.environ, "PYTHONPATH": str(source / "src")},
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    lines = (line.rpartition(": ") for line in told.splitlines())
    return {name: float(taken) for name, _, taken in lines}


def measure(other: Path, pairs: int) -> dict[str, list[tuple[float, float]]]:
    """For each kind of work, the microseconds of the other and of this one, in pairs."""
    this = Path(__file__).parent.parent
    found: dict[str, list[tuple[float, float]]] = {}
    flags = PYQUEUE.flags
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        broker("--data", f"{folder}/other", *flags, source=other) as (other_port, other_pid),
        broker("--data", f"{folder}/this", *flags, source=this) as (port, pid),
    ):
        for at in range(pairs):
            for name, work in LOADS.items():
                if at % 2:
                    mine = microseconds(work, port, pid)
                    others = microseconds(work, other_port, other_pid)
                else:
                    others = microseconds(work, other_port, other_pid)
                    mine = microseconds(work, port, pid)
                found.setdefault(name, []).append((others, mine))
            first, second = (engine_of(each) for each in (other, this))
            for name, taken in first.items():
                found.setdefault(name, []).append((taken, second[name]))
            print(f"  {at + 1} of {pairs} pairs", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        for name, taken in asyncio.run(engine()).items():
            print(f"{name}: {taken}")
        return
    if options.other is None:
        parser.error("name the other clone")
    for name, pairs in measure(options.other.resolve(), options.pairs).items():
        ratio = median(others / mine for others, mine in pairs)
        verdict = "reached" if ratio >= LEAST else "MISSED"
        print(
            f"{name}: {median(mine for _, mine in pairs):.1f} us, the other"
            f" {median(others for others, _ in pairs):.1f}; ratio {ratio:.2f} in the middle of"
            f" {len(pairs)} pairs, at least {LEAST} {verdict}"
        )


if __name__ == "__main__":
    main()
