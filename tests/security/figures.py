"""What a broker says of itself, and what the kernel says of it."""

import time
from pathlib import Path

from tests.server.running import Running

PATIENCE_SECONDS = 20


def metric(broker: Running, name: str, key: str | None = None) -> dict[str, float]:
    """The samples of a metric, by what stands in braces."""
    reply = broker.call("GET", "/metrics", key=key)
    assert reply.status == 200, reply
    samples: dict[str, float] = {}
    for line in reply.body.decode().splitlines():
        words = line.rpartition(" ")
        if words[0].partition("{")[0] == name:
            samples[words[0].partition("{")[2].rstrip("}")] = float(words[2])
    return samples


def open_connections(broker: Running, key: str | None = None) -> int:
    """As the listener counts them, without the one that asks."""
    return int(sum(metric(broker, "posthouse_connections", key).values())) - 1


def wait_for_connections(broker: Running, count: int, key: str | None = None) -> int:
    """Returns how many there are in the end; fewer are as good."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := open_connections(broker, key)) > count and time.monotonic() < deadline:
        time.sleep(0.02)  # slept: between two looks
    return found


def resident_bytes(broker: Running) -> int:
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def descriptors(broker: Running) -> int:
    return sum(1 for _ in Path(f"/proc/{broker.process.pid}/fd").iterdir())
