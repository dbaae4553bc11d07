"""Drives an HTTP server with wrk, where it is installed: a client in C, which takes less than it.

A client in Python takes as much CPU time as a server in Python, so the two measure each other. On
Debian: `apt-get install wrk`.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

SECONDS = 2
_SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = {body}

function done(summary, latency, requests)
    local failed = summary.errors
    print(string.format("\\n%d %d %d %d %d %d",
        summary.requests, summary.duration,
        failed.connect + failed.read + failed.write + failed.timeout + failed.status,
        latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""


class Driven(NamedTuple):
    """The requests a second, and how long one took, in milliseconds."""

    rate: float
    p50: float
    p95: float
    p99: float


def is_there() -> bool:
    return shutil.which("wrk") is not None


def drive(port: int, path: str, body: bytes, connections: int, seconds: int = SECONDS) -> Driven:
    """Posts the same body over so many connections, each with one request at a time."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "post.lua")
        script.write_text(_SCRIPT.format(body=json.dumps(body.decode())))
        told = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script),
             f"http://127.0.0.1:{port}{path}"],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
    requests, micros, failed, *times = map(int, told.split("\n")[-2].split())
    assert not failed, told
    return Driven(requests / micros * 1e6, *(each / 1e3 for each in times))
