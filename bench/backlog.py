"""A backlog larger than the budget for bodies: memory, and the rates of sending and draining.

python -m bench.backlog [--messages 2000000]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.commands import Complete, CreateQueue, Receive, Received, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

BUDGET = 256_000_000
MEMORY_GOAL = 1_200_000_000
RATE_GOAL = 0.5
BATCH = 100
SMALL = 20_000


def resident_bytes() -> int:
    """The most this process has held so far."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmHWM" in line)


async def run(folder: Path, messages: int) -> dict[str, float]:
    """Sends so many, then receives and completes them all; messages a second."""
    limits = Limits(bodies_bytes=BUDGET, memory_bytes=8 << 30)
    engine = await Engine.open(FileStore(folder), SystemClock(), salt=1, limits=limits)
    await engine.ask(BROKER, "", CreateNamespace("bench", engine.epoch, 1))
    await engine.ask(BROKER, "bench", CreateQueue("q"))
    start = time.perf_counter()
    await asyncio.gather(*(send(engine, messages // BATCH // 8) for _ in range(8)))
    sent = time.perf_counter()
    most = resident_bytes()
    done = sum(await asyncio.gather(*(drain(engine) for _ in range(4))))
    end = time.perf_counter()
    assert done == messages, f"{done} came back"
    await engine.close()
    return {
        "send": messages / (sent - start),
        "drain": messages / (end - sent),
        "memory": max(most, resident_bytes()),
    }


async def send(engine: Engine, batches: int) -> None:
    for number in range(batches):
        new = [
            NewMessage(encode_envelope(Envelope(id=f"{number:027}{at:05}")), bytes(1024))
            for at in range(BATCH)
        ]
        await engine.ask(BROKER, "bench", Send("q", new))


async def drain(engine: Engine) -> int:
    done = 0
    while True:
        answer = await engine.ask(BROKER, "bench", Receive("q", engine.new_receiver(), BATCH))
        assert isinstance(answer, Received)
        if not answer.deliveries:
            return done
        assert all(len(each.message.body) == 1024 for each in answer.deliveries)  # type: ignore[arg-type]
        await engine.ask(BROKER, "bench", Complete("q", [d.token for d in answer.deliveries]))
        done += len(answer.deliveries)


def in_a_process(messages: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [sys.executable, "-m", "bench.backlog", "--folder", folder]
        done = subprocess.run(
            [*command, "--messages", str(messages)], capture_output=True, check=True
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(asyncio.run(run(options.folder, options.messages))))
        return
    small = [in_a_process(SMALL) for _ in range(3)]
    large = in_a_process(options.messages)
    verdict = "reached" if large["memory"] < MEMORY_GOAL else "MISSED"
    print(
        f"{options.messages:,} messages of 1 KiB with a budget of {BUDGET // 1_000_000} MB:"
        f" {large['memory'] / 1e6:,.0f} MB resident; goal {MEMORY_GOAL / 1e6:,.0f} {verdict}"
    )
    for word in ("send", "drain"):
        best = max(each[word] for each in small)
        part = large[word] / best
        verdict = "reached" if part >= RATE_GOAL else "MISSED"
        print(
            f"{word}: {large[word]:,.0f} a second against {best:,.0f} with {SMALL:,}: {part:.0%};"
            f" goal {RATE_GOAL:.0%} {verdict}"
        )


if __name__ == "__main__":
    main()
