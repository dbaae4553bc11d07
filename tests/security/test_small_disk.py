"""A broker on a disk smaller than what it would keep for readers of the feed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Running, development
from tests.small_disk import mounted
from tests.waiting import until

pytestmark = pytest.mark.alone

DISK_BYTES = (300 << 20) if os.environ.get("SOAK") else (64 << 20)
SEGMENT_BYTES = (4 << 20) if os.environ.get("SOAK") else (1 << 20)
BODY_BYTES = SEGMENT_BYTES // 8
ROUNDS = 3  # how often the disk's size is sent


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own. Its fold process is Python, and writes no bytecode there."""
    with mounted(tmp_path, DISK_BYTES) as disk:
        yield disk


def send_and_complete(broker: Running, total_bytes: int, queue: str = "q") -> list[int]:
    """The statuses of all sends; what arrives is completed, so that the queue is empty."""
    statuses = []
    for _ in range(total_bytes // BODY_BYTES):
        form = {"messages": [{"body": "x" * BODY_BYTES}]}
        statuses.append(broker.queue("POST", f"{queue}/messages", form).status)
        if statuses[-1] == 201:
            broker.complete(queue, *broker.receive(queue))
    return statuses


def fill(path: Path) -> None:
    """Takes all that is left of the disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4_096)):
            pass


def metrics(broker: Running) -> dict[str, float]:
    lines = broker.call("GET", "/metrics").body.decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def test_with_empty_queues_no_send_is_refused_however_much_is_sent(small_disk: Path) -> None:
    """With a reader that never acknowledges, Arrow segments, and a restart in between."""
    flags = ("--segment-size", str(SEGMENT_BYTES))
    with development(small_disk / "data", *flags) as broker:
        assert broker.call("PUT", "/api/v1/readers/never", {"position": 0}).status == 204
        statuses = send_and_complete(broker, DISK_BYTES * ROUNDS // 2)
        assert set(statuses) == {201}
        lost = broker.events("feed.reader_lost")
        assert [each["reader"] for each in lost] == ["never"]
        assert broker.call("GET", "/feed?reader=never").status == 410
        assert metrics(broker)["posthouse_feed_readers_lost"] == 1
        until(lambda: any((small_disk / "data").glob("*.arrow")), "Arrow segments are made")
    with development(small_disk / "data", *flags) as broker:
        statuses = send_and_complete(broker, DISK_BYTES * ROUNDS // 2)
        assert set(statuses) == {201}
        assert broker.call("GET", "/health/ready").status == 200
        found = metrics(broker)
        assert found["posthouse_store_full"] == 0
        assert found["posthouse_refused_for_space_total"] == 0
        assert 0 < found["posthouse_store_free_bytes"] < DISK_BYTES
        until(
            lambda: metrics(broker)["posthouse_store_free_bytes"] > 0.2 * DISK_BYTES,
            "there is room again",
        )


def test_what_others_leave_of_a_disk_is_enough(small_disk: Path) -> None:
    """One old message is still there; what came behind it goes, and it stays."""
    flags = ("--segment-size", str(SEGMENT_BYTES))
    with development(small_disk / "data", *flags) as broker:
        broker.send("kept", "the oldest")
        assert set(send_and_complete(broker, DISK_BYTES)) == {201}
        free = int(metrics(broker)["posthouse_store_free_bytes"])
        (small_disk / "ballast").write_bytes(bytes(free - 2 * SEGMENT_BYTES))
        assert set(send_and_complete(broker, DISK_BYTES)) == {201}
        assert [each["body"] for each in broker.receive("kept")] == ["the oldest"]


def test_a_disk_that_others_fill_is_told_of_everywhere_and_service_resumes(
    small_disk: Path,
) -> None:
    flags = ("--segment-size", str(SEGMENT_BYTES))
    with development(small_disk / "data", *flags) as broker:
        form = {"messages": [{"body": "x" * BODY_BYTES}]}
        broker.send("q", "a message to receive meanwhile")
        fill(small_disk / "ballast")
        until(
            lambda: broker.queue("POST", "full/messages", form).status != 201, "a send is refused"
        )
        refused = broker.queue("POST", "full/messages", form)
        assert refused.status in (403, 409, 413, 429, 507), refused

        ready = broker.call("GET", "/health/ready")
        assert ready.status == 503
        assert "full" in ready.json["status"]
        assert broker.call("GET", "/health/ready/receive").status == 200
        assert broker.call("GET", "/health/live").status == 200
        [told] = broker.events("store.full")
        assert told["free_bytes"] < SEGMENT_BYTES
        assert "Free space" in told["message"]
        found = metrics(broker)
        assert found["posthouse_store_full"] == 1
        assert found["posthouse_refused_for_space_total"] >= 2
        assert broker.complete("q", *broker.receive("q")).status == 200

        (small_disk / "ballast").unlink()
        until(
            lambda: broker.queue("POST", "full/messages", form).status == 201, "a send is accepted"
        )
        assert broker.events("store.has_room")[0]["refused"] >= 2
        assert broker.call("GET", "/health/ready").status == 200
        assert metrics(broker)["posthouse_store_full"] == 0
