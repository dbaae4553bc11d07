"""Nodes of a cluster as processes, on a real NATS server: stopped, killed and started again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.server.config import BadConfig, load
from tests.server.clustered import (
    QUEUE,
    Cluster,
    Nats,
    active,
    call,
    cluster,
    nats,
    needs_nats,
    send,
)
from tests.waiting import until

__all__ = ["cluster", "nats"]  # fixtures
pytestmark = needs_nats


def test_nothing_acknowledged_is_lost_when_leaders_are_killed_and_stopped(cluster: Cluster) -> None:
    first = cluster.leader()
    assert call(cluster.nodes[first], "PUT", QUEUE, {}).status == 201
    send(cluster.nodes[first], 20)
    cluster.nodes[first].kill()
    second = cluster.leader(but=first)
    assert active(cluster.nodes[second]) == 20
    send(cluster.nodes[second], 20)

    cluster.nodes[first] = cluster.start(first)  # it comes back, and follows
    until(
        lambda: any(e["event"] == "cluster.leader" for e in cluster.nodes[first].log),
        "it has heard who leads",
    )
    assert cluster.nodes[second].stop() == 0
    third = cluster.leader(but=second)
    assert active(cluster.nodes[third]) == 40


def test_a_leader_that_slept_is_deposed_and_follows_when_it_wakes(cluster: Cluster) -> None:
    first = cluster.leader()
    assert call(cluster.nodes[first], "PUT", QUEUE, {}).status == 201
    send(cluster.nodes[first], 5)
    sleeper = cluster.nodes[first]
    sleeper.process.send_signal(signal.SIGSTOP)
    second = cluster.leader(but=first)
    send(cluster.nodes[second], 5)
    sleeper.process.send_signal(signal.SIGCONT)
    # What it tries to write is void, and it is started anew in the same process. Where it knows
    # that already, it hands the message to the leader.
    late = call(sleeper, "POST", f"{QUEUE}/messages", {"messages": [{"body": "late"}]})
    until(lambda: sum(e["event"] == "broker.ready" for e in sleeper.log) == 2, "it starts anew")
    assert active(cluster.nodes[second]) == (11 if late.status == 201 else 10)


def test_servers_that_do_not_sync_are_refused_for_durability_fsync(tmp_path: Path) -> None:
    server = Nats(tmp_path / "nats", synced=False)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "posthouse.cli", "serve", "--port", "0", "--log", "json",
             *server.flags("a", tmp_path / "a")],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        server.close()
    assert process.returncode == 1
    assert "set sync_interval: always" in process.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"store": "nats://h"}, "give cluster and node"),
        ({"cluster": "c"}, "its journal on NATS"),
        ({"store": "nats://h", "cluster": "c", "node": "a"}, "share a secret"),
        ({"store": "nats://h", "cluster": "c", "node": "a", "dev": True}, "nats_monitor"),
        ({"store": "nats://h", "cluster": "no.dots", "node": "a"}, "letters, digits"),
        ({"failover_after": "0"}, "0.2 to 60 seconds"),
    ],
)
def test_settings_that_do_not_go_together_are_named(flags: dict[str, object], text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        load(flags, {})
