"""A clock that was ten years ahead once: it is told, and can be brought back."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.security.test_small_disk import metrics
from tests.server.running import Json, Running, development

YEARS = 10
AHEAD_SECONDS = YEARS * 365 * 86_400
NAME = "/api/v1/namespaces/default"


@contextmanager
def ahead(folder: Path) -> Iterator[Running]:
    """A broker on a machine whose clock is wrong."""
    module = ("tests.security.ahead", str(AHEAD_SECONDS), "serve")
    with development(folder, module=module) as broker:
        yield broker


def set_clock(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "posthouse.cli", "store", "set-clock", "--data", str(folder)]
    return subprocess.run([*command, *flags], capture_output=True, text=True, check=False)


def age_seconds(message: dict[str, Json]) -> float:
    """How long ago it was enqueued, by this machine's clock."""
    return float(time.time() - message["enqueued_ms"] / 1000)


def filled(folder: Path) -> str:
    """Messages were sent when the clock was right, and when it was not; the lock of one of them."""
    with development(folder) as broker:
        broker.send("q", "before")
    with ahead(folder) as broker:
        broker.queue("PUT", "once", {"duplicate_detection": True})
        broker.send("q", "meanwhile", ttl_ms=3_600_000)
        broker.send("once", "one", id="one")
        schedule = {"when": "every 1 hour", "queue": "q", "message": {"body": "beat"}}
        assert broker.call("PUT", f"{NAME}/schedules/beat", schedule).status < 300
        [locked] = broker.receive("q", lock_ms=300_000)
        assert locked["body"] == "before"
        token: str = locked["token"]
    assert not broker.events("clock.ahead")
    return token


def test_a_clock_that_is_ahead_is_told_of_everywhere(tmp_path: Path) -> None:
    filled(tmp_path)
    for _ in range(2):  # a restart does not mend it
        with development(tmp_path) as broker:
            [told] = broker.events("clock.ahead")
            assert abs(told["ahead_seconds"] - AHEAD_SECONDS) < 600
            assert f"posthouse store set-clock --data {tmp_path}" in told["message"]
            health = broker.call("GET", "/health/ready")
            assert health.status == 200
            assert abs(health.json["clock_ahead_seconds"] - AHEAD_SECONDS) < 600
            assert "clock_ahead_seconds" in broker.call("GET", "/health").json
            assert abs(metrics(broker)["posthouse_clock_ahead_seconds"] - AHEAD_SECONDS) < 600


def test_the_command_brings_it_back_and_keeps_everything(tmp_path: Path) -> None:
    token = filled(tmp_path)
    done = set_clock(tmp_path, "--json")
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert abs(report["now_ms"] / 1000 - time.time()) < 600
    assert (report["messages"], report["locks"]) == (3, 1)
    for again in range(2):
        with development(tmp_path) as broker:
            assert not [each for each in broker.log if each["event"] == "clock.ahead"]
            assert abs(metrics(broker)["posthouse_clock_ahead_seconds"]) < 5
            if again:
                continue
            broker.send("once", "one", id="one")  # known, as before
            [once] = broker.receive("once")
            assert age_seconds(once) < 600
            assert broker.receive("once") == []
            schedule = broker.call("GET", f"{NAME}/schedules").json["schedules"][0]
            assert 0 < schedule["next_ms"] / 1000 - time.time() <= 3_600
            [message] = broker.receive("q", limit=10)  # the lock on the other is held
            assert message["body"] == "meanwhile"
            assert age_seconds(message) < 600
            assert 3_000_000 < message["expires_ms"] - time.time() * 1000 <= 3_600_000
            assert broker.queue("POST", "q/complete", {"locks": [token]}).status == 200
    refused = set_clock(tmp_path)
    assert refused.returncode == 1
    assert "not ahead" in refused.stderr


def test_the_feed_is_found_by_time_on_both_sides(tmp_path: Path) -> None:
    begun_ms = int(time.time() * 1000)
    filled(tmp_path)
    assert set_clock(tmp_path).returncode == 0
    with development(tmp_path) as broker:
        now_ms = int(time.time() * 1000)
        [sequence] = broker.send("q", "after")
        rows = [json.loads(line) for line in
                broker.call("GET", "/feed?after=0").body.splitlines()]  # fmt: skip
        at = broker.call("GET", f"/feed/status?time={now_ms}").json["at"]
        found = next(row for row in rows if row["position"] == at)
        assert found["time"] >= now_ms
        assert all(row["time"] < now_ms for row in rows
                   if row["position"] < at and row["kind"] == "clock-turned-back")  # fmt: skip
        first = broker.call("GET", f"/feed/status?time={begun_ms}").json["at"]
        assert first == rows[0]["position"]
        [turned] = [row for row in rows if row["kind"] == "clock-turned-back"]
        assert turned["detail"]["step_ms"] > AHEAD_SECONDS * 1000 - 600_000
        assert sequence


def test_the_command_is_refused_while_a_broker_runs(tmp_path: Path) -> None:
    with development(tmp_path):
        refused = set_clock(tmp_path)
        assert refused.returncode == 1
        assert "in use" in refused.stderr
