"""How long a start takes, against reading and decoding the same records alone.

python -m bench.recovery [--messages 1000000]
"""

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from posthouse.broker import payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

GOAL = 4.0
BODY = bytes(200)


async def fill(folder: Path, messages: int) -> None:
    engine = await Engine.open(FileStore(folder), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace("bench", engine.epoch, 1))
    await engine.ask(BROKER, "bench", CreateQueue("q"))
    for at in range(0, messages, 100):
        new = [
            NewMessage(encode_envelope(Envelope(id=f"{number:032}")), BODY)
            for number in range(at, at + 100)
        ]
        await engine.ask(BROKER, "bench", Send("q", new))
    await engine.close()


async def decode_alone(folder: Path) -> float:
    """Seconds to read every frame and decode its records."""
    store = FileStore(folder, read_only=True)
    start = time.perf_counter()
    async for frame in store.read(0, 1 << 63):
        for _ in payload.entries(frame):
            pass
    seconds = time.perf_counter() - start
    await store.close()
    return seconds


async def recover(folder: Path, messages: int) -> float:
    """Seconds from opening the files to an engine that takes commands."""
    start = time.perf_counter()
    store = FileStore(folder)
    engine = await Engine.open(store, SystemClock(), salt=2, snapshots=store.snapshots)
    seconds = time.perf_counter() - start
    found = engine.view.counts("bench", "q").active
    assert found == messages, f"{found} messages"
    await store.close()
    return seconds


def in_a_process(what: str, folder: Path, messages: int) -> float:
    command = [sys.executable, "-m", "bench.recovery", "--messages", str(messages)]
    done = subprocess.run(
        [*command, "--do", what, "--folder", str(folder)], capture_output=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--do", choices=["decode", "recover"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.do == "decode":
        gc.disable()
        print(asyncio.run(decode_alone(options.folder)))
    elif options.do == "recover":
        print(asyncio.run(recover(options.folder, options.messages)))
    else:
        measure(options.messages)


def measure(messages: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        asyncio.run(fill(folder, messages))
        whole = in_a_process("recover", folder, messages)
        subprocess.run([sys.executable, "-m", "posthouse.broker.fold_process", name], check=True)
        decode = min(in_a_process("decode", folder, messages) for _ in range(3))
        snapshot = min(in_a_process("recover", folder, messages) for _ in range(3))
    ratio = snapshot / decode
    print(
        f"{messages:,} messages of {len(BODY)} bytes: a start from snapshot and journal takes"
        f" {snapshot:.2f} s, reading and decoding alone {decode:.2f} s: {ratio:.1f} times;"
        f" goal {GOAL:.0f} {'reached' if ratio <= GOAL else 'MISSED'}"
    )
    print(f"a start from the journal alone takes {whole:.2f} s: {whole / decode:.1f} times")


if __name__ == "__main__":
    main()
