"""Nodes of a cluster as processes, on a real NATS server: stopped, killed and started again."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from socket import create_server

import pytest

from posthouse.server.config import BadConfig, load
from tests.server.running import Reply, Running
from tests.waiting import until

SERVER = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
    "nats-server"
)
pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no nats-server here")
QUEUE = "/api/v1/namespaces/default/queues/q"


def a_free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Nats:
    """One server, which syncs every message unless it is told not to."""

    def __init__(self, folder: Path, *, synced: bool = True) -> None:
        self.port, self.monitor = a_free_port(), a_free_port()
        folder.mkdir()
        self._config = folder / "nats.conf"
        self._config.write_text(
            f"listen: 127.0.0.1:{self.port}\nhttp: 127.0.0.1:{self.monitor}\n"
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))}"
            f"{', sync_interval: always' if synced else ''} }}\n"
        )
        self.start()

    def start(self) -> None:
        assert SERVER is not None
        self._process = subprocess.Popen(
            [SERVER, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def flags(self, node: str, data: Path) -> list[str]:
        return [
            "--dev", "--store", f"nats://127.0.0.1:{self.port}", "--cluster", "shop",
            "--node", node, "--data", str(data), "--replicas", "1",
            "--nats-monitor", f"http://127.0.0.1:{self.monitor}", "--failover-after", "0.5",
        ]  # fmt: skip

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path / "nats")
    yield server
    server.close()


class Cluster:
    def __init__(self, nats: Nats, folder: Path) -> None:
        self._nats, self._folder = nats, folder
        self.nodes = {name: self.start(name) for name in "abc"}

    def start(self, name: str) -> Running:
        return Running(*self._nats.flags(name, self._folder / name))

    def leader(self, but: str = "") -> str:
        def found() -> str:
            for name, node in self.nodes.items():
                if name != but and call(node, "GET", "/health/ready").status == 200:
                    return name
            return ""

        return until(found, "a node leads")

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()


@pytest.fixture
def cluster(nats: Nats, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(nats, tmp_path)
        stack.callback(made.close)
        yield made


def call(node: Running, method: str, path: str, body: object = None) -> Reply:
    """Its answer; of one that is just starting anew, 503."""
    try:
        return node.call(method, path, body)
    except (OSError, HTTPException):
        return Reply(503, {}, b"{}")


def send(node: Running, count: int) -> None:
    for number in range(count):
        sent = call(node, "POST", f"{QUEUE}/messages", {"messages": [{"body": str(number)}]})
        assert sent.status == 201


def active(node: Running) -> int:
    return int(call(node, "GET", QUEUE).json["counts"]["active"])


def test_nothing_acknowledged_is_lost_when_leaders_are_killed_and_stopped(cluster: Cluster) -> None:
    first = cluster.leader()
    assert call(cluster.nodes[first], "PUT", QUEUE, {}).status == 201
    send(cluster.nodes[first], 20)
    follower = next(name for name in "abc" if name != first)
    message = {"messages": [{"body": "no"}]}
    refused = call(cluster.nodes[follower], "POST", f"{QUEUE}/messages", message)
    assert refused.json["code"] == "not-leader"

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
    # What it tries to write is void, and it is started anew in the same process.
    until(
        lambda: (
            call(sleeper, "POST", f"{QUEUE}/messages", {"messages": [{"body": "late"}]}).status
            != 201
        ),
        "it takes no messages",
    )
    until(lambda: sum(e["event"] == "broker.ready" for e in sleeper.log) == 2, "it starts anew")
    assert active(cluster.nodes[second]) == 10


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
