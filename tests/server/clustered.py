"""A rig for tests of clusters: a NATS server and nodes, each a process of its own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from socket import create_server

import pytest

from tests.server.running import Reply, Running
from tests.waiting import until

SERVER = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
    "nats-server"
)
needs_nats = pytest.mark.skipif(SERVER is None, reason="there is no nats-server here")
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
    """Nodes on one server, each with these flags beside its own."""

    def __init__(self, nats: Nats, folder: Path, *flags: str, names: str = "abc") -> None:
        self._nats, self._folder, self._flags = nats, folder, flags
        self.nodes = {name: self.start(name) for name in names}

    def start(self, name: str) -> Running:
        return Running(*self._nats.flags(name, self._folder / name), *self._flags)

    def follower(self, leader: str) -> str:
        """Another node, which hears the leader and can hand clients to it."""
        name = next(each for each in self.nodes if each != leader)
        until(lambda: call(self.nodes[name], "GET", "/health/ready").status == 200, "it is ready")
        return name

    def leader(self, but: str = "") -> str:
        def found() -> str:
            for name, node in self.nodes.items():
                if name != but and call(node, "GET", "/health/leader").status == 200:
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
