"""kill -9 of a real process under load: what it acknowledged is there, what it completed is not."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.model import dead_letter_queue
from posthouse.store.file import FileStore
from tests.crash.history import History
from tests.crash.worker import NS, PLAIN, SEGMENT_BYTES, SESSIONS, name_of
from tests.invariants import check

KILLS = int(os.environ.get("KILLS", "10"))


def test_a_killed_broker_keeps_its_word(tmp_path: Path) -> None:
    history, random = History(), Random(7)
    for seed in range(1, KILLS + 1):
        run_and_kill(tmp_path / "data", seed, random.uniform(0.05, 0.8), history)
        live, dead = asyncio.run(found(tmp_path / "data"))
        history.check(live, dead)
    assert len(history.said["completed"]) > 20 * KILLS, "there was hardly any load"


def run_and_kill(folder: Path, seed: int, seconds: float, history: History) -> None:
    """Lets it work for a while after it is ready, then kills it, and hears all that it said."""
    command = [sys.executable, "-m", "tests.crash.worker", str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        os.set_blocking(process.stdout.fileno(), False)
        said, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            said += process.stdout.read() or b""
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.set_blocking(process.stdout.fileno(), True)
        said += process.stdout.read()
    for line in said.decode().splitlines():
        history.hear(line)


async def found(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the messages that a restart finds, in queues and in dead-letter queues."""
    store = FileStore(folder, segment_bytes=SEGMENT_BYTES)
    engine = await Engine.open(store, VirtualClock(1 << 40), salt=0)
    state = engine.namespaces.states[NS]
    check(state, 1 << 40)
    names = []
    for queues in ((PLAIN, SESSIONS), map(dead_letter_queue, (PLAIN, SESSIONS))):
        messages = (m for queue in queues for m in state.queues[queue].messages.walk(0))
        names.append([name_of(message.body) for message in messages])
    await store.close()  # not the engine: this was a look, and the next start is after a crash too
    live, dead = names
    return live, dead
