"""The feed from sealed segments, against reading the same rows from Parquet; and what senders feel.

    python -m bench.feed

First: rows a second of the whole feed as Arrow over HTTP, against PyArrow reading a Parquet file of
the same rows. Then: requests a second of senders while one reader reads flat out on the other core,
against the same without a reader. The broker and its senders share one core in both.
"""

import asyncio
import contextlib
import http.client
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from bench.start import POSTHOUSE, a_free_port
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.fold import make_arrow_segments
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

MESSAGES = 400_000
BATCH = 1_000
BODY_BYTES = 300
ROUNDS = 7
ROWS_GOAL, SENDERS_GOAL = 0.5, 0.85
ARROW = {"accept": "application/vnd.apache.arrow.stream"}


def a_body() -> bytes:
    """Text, and none like another."""
    return os.urandom(BODY_BYTES // 2).hex().encode()


async def fill(folder: Path) -> None:
    engine = await Engine.open(FileStore(folder), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace("default"))
    await engine.ask(BROKER, "default", CreateQueue("history"))
    for first in range(0, MESSAGES, BATCH):
        some = [
            NewMessage(encode_envelope(Envelope(id=f"m{n}", properties={"n": n})), a_body())
            for n in range(first, first + BATCH)
        ]
        await engine.ask(BROKER, "default", Send("history", some))
    await engine.close()


def read_feed(port: int, last: int) -> int:
    """All rows up to a position, as a table; how many."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/feed?limit={last}", headers=ARROW)
    response = connection.getresponse()
    rows = sum(batch.num_rows for batch in pa.ipc.open_stream(response))
    connection.close()
    return int(rows)


def sealed_end(port: int) -> int:
    import json

    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/feed/status")
    parts = json.loads(connection.getresponse().read())["parts"]
    connection.close()
    return max(int(part["last"]) for part in parts if part["sealed"])


def fetch_whole(port: int, last: int) -> pa.Table:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/feed?limit={last}", headers=ARROW)
    table = pa.ipc.open_stream(io.BytesIO(connection.getresponse().read())).read_all()
    connection.close()
    return table


@contextlib.contextmanager
def broker(folder: Path):  # type: ignore[no-untyped-def]
    port = a_free_port()
    command = [POSTHOUSE, "serve", "--data", str(folder), "--dev", "--auto-create", "--port",
               str(port), "--log-level", "error"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while True:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health/ready")
                status = connection.getresponse().status
                connection.close()
                if status == 200:
                    break
            time.sleep(0.02)
        try:
            yield port, process.pid
        finally:
            process.terminate()


def against_parquet(port: int, last: int, folder: Path) -> None:
    pq.write_table(fetch_whole(port, last), folder / "rows.parquet")
    pairs = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        rows = pq.read_table(folder / "rows.parquet").num_rows
        parquet = rows / (time.perf_counter() - begun)
        begun = time.perf_counter()
        assert read_feed(port, last) == rows
        pairs.append((rows / (time.perf_counter() - begun), parquet))
        print(f"  {pairs[-1][0]:,.0f} against {parquet:,.0f} rows a second")
    part = median(feed / parquet for feed, parquet in pairs)
    verdict = "reached" if part >= ROWS_GOAL else "MISSED"
    print(f"feed against Parquet: {part:.0%} of its rows a second, in the middle of {ROUNDS}; goal"
          f" {ROWS_GOAL:.0%} {verdict}")  # fmt: skip


# Senders beside a reader.


def send_rate(port: int) -> float:
    command = [sys.executable, "-m", "bench.feed", "send", str(port)]
    done = subprocess.run(
        ["taskset", "-c", "0", *command], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def threads(pid: int) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()}


def beside_a_reader(port: int, pid: int, last: int) -> None:
    os.sched_setaffinity(pid, {0})
    command = [sys.executable, "-m", "bench.feed", "read", str(port), str(last)]
    pairs = []
    for _ in range(ROUNDS):
        mine = threads(pid)
        alone = send_rate(port)
        with subprocess.Popen(["taskset", "-c", "1", *command]) as reader:
            time.sleep(1)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            # Feed workers, and the threads that send files.
            for each in (*map(int, children), *threads(pid) - mine):
                os.sched_setaffinity(each, {1})
            beside = send_rate(port)
            reader.kill()
        pairs.append((beside, alone))
        print(f"  {beside:,.0f} beside a reader, {alone:,.0f} requests a second without")
    part = median(beside / alone for beside, alone in pairs)
    verdict = "reached" if part >= SENDERS_GOAL else "MISSED"
    print(f"senders beside a reader: {part:.0%} of what they have without, in the middle of"
          f" {ROUNDS}; goal {SENDERS_GOAL:.0%} {verdict}")  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        asyncio.run(fill(folder / "data"))
        make_arrow_segments(folder / "data")
        with broker(folder / "data") as (port, pid):
            last = sealed_end(port)
            print(f"{last:,} rows in sealed segments")
            against_parquet(port, last, folder)
            beside_a_reader(port, pid, last)


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        import uvloop

        from bench.http import APIS, load

        print(uvloop.run(load(int(sys.argv[2]), APIS[0], bare=False)))
    elif sys.argv[1:2] == ["read"]:
        while True:
            read_feed(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
