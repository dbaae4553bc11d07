"""A cluster of real processes on three NATS servers that are stopped, or may not do something."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.request import urlopen

import pytest

from posthouse.amqp.connection import Connection
from posthouse.amqp.events import Closed, Event, Opened
from posthouse.core.errors import InvalidArgument
from posthouse.server.cluster import ClusterNode
from posthouse.server.config import load
from posthouse.server.serve import DEPOSED, OK
from posthouse.server.serve import Server as Serving
from tests.server.clustered import QUEUE, SERVER, Nats, a_free_port, active, call, nats, send
from tests.server.running import Running
from tests.waiting import until, until_async

pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no nats-server here")
STREAM = "PHJ_shop_0"
__all__ = ["nats"]  # a fixture


class Server:
    """One NATS server of several."""

    def __init__(self, folder: Path, name: str, route: int, routes: list[int], more: str) -> None:
        self.name, self.port, self.monitor = name, a_free_port(), a_free_port()
        folder.mkdir()
        config = folder / "nats.conf"
        urls = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        config.write_text(
            f"server_name: {name}\nlisten: 127.0.0.1:{self.port}\nhttp: 127.0.0.1:{self.monitor}\n"
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))}, sync_interval: always }}\n"
            f"cluster {{ name: c, listen: 127.0.0.1:{route}, routes: [{urls}],"
            f" ping_interval: 500ms, ping_max: 2 }}\n{more}"
        )
        assert SERVER is not None
        self.process = subprocess.Popen(
            [SERVER, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Servers:
    """Three NATS servers, and nodes beside them, each with its own server first."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self._folder = folder
        routes = [a_free_port() for _ in range(3)]
        self.servers = [
            Server(folder / f"n{at + 1}", f"n{at + 1}", routes[at], routes, more) for at in range(3)
        ]
        self.nodes: dict[str, Running] = {}

    def start(self, name: str, *flags: str, replicas: int = 3) -> Running:
        first = "abc".index(name)
        ordered = [*self.servers[first:], *self.servers[:first]]
        urls = ",".join(f"127.0.0.1:{server.port}" for server in ordered)
        monitors = [
            flag for server in self.servers
            for flag in ("--nats-monitor", f"http://127.0.0.1:{server.monitor}")
        ]  # fmt: skip
        self.nodes[name] = Running(
            "--dev", "--store", f"nats://{urls}", "--cluster", "shop", "--node", name,
            "--data", str(self._folder / name), "--replicas", str(replicas),
            *monitors, "--failover-after", "0.5", *flags,
        )  # fmt: skip
        return self.nodes[name]

    def leader(self, but: str = "") -> str:
        def found() -> str:
            for name, node in self.nodes.items():
                if name != but and call(node, "GET", "/health/leader").status == 200:
                    return name
            return ""

        return until(found, "a node leads")

    def stream_leader(self) -> str:
        """The server that leads the stream, as the first that knows it says."""
        for server in self.servers:
            try:
                url = f"http://127.0.0.1:{server.monitor}/jsz?streams=1&accounts=1"
                with urlopen(url, timeout=5) as answer:
                    found: dict[str, Any] = json.load(answer)
            except OSError:
                continue
            for account in found.get("account_details", []):
                for stream in account.get("stream_detail", []):
                    leader = (stream.get("cluster") or {}).get("leader", "")
                    if stream["name"] == STREAM and leader:
                        return str(leader)
        return ""

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for server in self.servers:
            server.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        made = Servers(tmp_path)
        stack.callback(made.close)
        yield made


def test_the_stream_is_led_on_another_machine_than_the_brokers(servers: Servers) -> None:
    servers.start("a")
    assert servers.leader() == "a"
    until(lambda: servers.stream_leader() not in ("", "n1"), "the stream is led elsewhere")
    servers.start("b")
    servers.start("c")
    # The next leader of the brokers is on the machine that leads the stream: it moves again.
    heir = {"n2": "b", "n3": "c"}[servers.stream_leader()]
    other = "b" if heir == "c" else "c"
    servers.nodes[other].stop()
    until(lambda: servers.nodes[heir].events("cluster.leader"), "it follows")
    assert servers.nodes["a"].stop() == 0
    assert servers.leader(but="a") == heir
    own = f"n{'abc'.index(heir) + 1}"
    until(lambda: servers.stream_leader() not in ("", own), "the stream is led elsewhere")
    assert servers.nodes[heir].events("cluster.placed")


def test_while_most_servers_are_away_the_broker_is_stalled_and_goes_on_by_itself(
    servers: Servers,
) -> None:
    node = servers.start("a")
    assert servers.leader() == "a"
    assert call(node, "PUT", QUEUE, {}).status == 201
    send(node, 3)
    for server in servers.servers[1:]:
        server.signal(signal.SIGSTOP)
    answers: list[int] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            node.call("POST", f"{QUEUE}/messages", {"messages": [{"body": "waits"}]}).status
        )
    )
    waiting.start()
    assert node.events("cluster.stalled")
    refused = call(node, "POST", f"{QUEUE}/messages", {"messages": [{"body": "no"}]})
    assert refused.status == 503
    assert "most servers of the replicated log do not answer" in refused.json["detail"]
    ready = call(node, "GET", "/health/ready")
    assert ready.status == 503
    assert "goes on by itself" in ready.json["status"]
    assert not answers  # it waits, on its connection
    for server in servers.servers[1:]:
        server.signal(signal.SIGCONT)
    waiting.join(60)
    assert answers == [201]
    until(lambda: call(node, "GET", "/health/leader").status == 200, "it is ready again")
    send(node, 1)
    assert active(node) == 5
    assert node.events("cluster.goes_on")


def test_a_node_starts_while_one_of_three_servers_is_down(servers: Servers) -> None:
    node = servers.start("a")
    assert servers.leader() == "a"
    assert call(node, "PUT", QUEUE, {}).status == 201
    send(node, 1)
    assert node.stop() == 0
    servers.servers[2].close()
    again = servers.start("a")
    until(lambda: call(again, "GET", "/health/leader").status == 200, "it leads")
    assert active(again) == 1


def test_a_start_without_most_servers_says_what_it_waits_for(
    servers: Servers, tmp_path: Path
) -> None:
    servers.start("a")
    assert servers.leader() == "a"
    servers.nodes.pop("a").stop()
    for server in servers.servers[1:]:
        server.signal(signal.SIGSTOP)
    port = a_free_port()
    flags = [
        "--dev", "--store", f"nats://127.0.0.1:{servers.servers[0].port}", "--cluster", "shop",
        "--node", "a", "--data", str(tmp_path / "a"), "--replicas", "3", "--port", str(port),
        "--nats-monitor", f"http://127.0.0.1:{servers.servers[0].monitor}",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "posthouse.cli", "serve", *flags],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:

        def startup() -> dict[str, Any]:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("GET", "/health/startup")
                found: dict[str, Any] = json.load(connection.getresponse())
            except OSError:
                return {"status": ""}
            finally:
                connection.close()
            return found

        until(lambda: "does not answer" in startup()["status"], "it says what it waits for")
        assert "waiting for the cluster's servers: " in startup()["status"]
        for server in servers.servers[1:]:
            server.signal(signal.SIGCONT)
        until(lambda: startup()["status"] == "following", "it goes on by itself")
    finally:
        process.kill()
        process.wait()


def test_a_missing_permission_is_told_in_the_log_and_to_clients(nats: Nats, tmp_path: Path) -> None:
    """The server tells it beside the answer, which never comes."""
    node = Running(*nats.flags("a", tmp_path / "a"))
    try:
        until(lambda: call(node, "GET", "/health/leader").status == 200, "it leads")
        assert call(node, "PUT", QUEUE, {}).status == 201
        config = tmp_path / "nats" / "nats.conf"
        config.write_text(
            config.read_text() + "authorization { users: [ { user: x, password: y, permissions:"
            ' { publish: { deny: ["phj.shop.0"] } } } ] }\nno_auth_user: x\n'
        )
        nats.close()
        nats.start()
        until(
            lambda: "phj.shop.0" in call(node, "GET", "/health/ready").json.get("status", ""),
            "readiness names the permission",
        )
        refused = call(node, "POST", f"{QUEUE}/messages", {"messages": [{"body": "no"}]})
        assert refused.status == 503
        assert "permissions violation" in refused.json["detail"].lower()
        assert any("phj.shop.0" in each["message"].lower() for each in node.events("nats.error"))
    finally:
        node.kill()


def test_a_stop_of_the_leader_hands_over_without_waiting_for_silence(
    nats: Nats, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        old = Running(*nats.flags("a", tmp_path / "a"))
        stack.callback(old.kill)
        until(lambda: call(old, "GET", "/health/leader").status == 200, "it leads")
        new = Running(*nats.flags("b", tmp_path / "b"), "--failover-after", "60")
        stack.callback(new.kill)
        assert call(old, "PUT", QUEUE, {}).status == 201
        send(old, 5)
        assert new.events("cluster.leader")
        idle = create_connection(("127.0.0.1", old.port))  # nobody waits for a peer that hangs
        assert old.stop() == 0
        until(lambda: call(new, "GET", "/health/leader").status == 200, "it leads", 30)
        assert active(new) == 5
        idle.close()


class Amqp:
    """A client that has opened an AMQP connection, and waits for what the broker says."""

    def __init__(self, node: Running) -> None:
        self._socket = create_connection(("127.0.0.1", node.port), timeout=60)
        self._amqp = Connection("client", hostname="localhost", sasl=("ANONYMOUS", b""))
        self.hear(Opened)

    def hear(self, kind: type[Event]) -> Event:
        """The next event of this kind; fails where the connection ends before."""
        while True:
            self._socket.sendall(self._amqp.take())
            data = self._socket.recv(1 << 16)
            assert data, "it was ended without a word"
            for event in self._amqp.receive(data):
                if isinstance(event, kind):
                    return event

    def close(self) -> None:
        self._socket.close()


def test_a_deposed_leader_tells_its_clients_and_follows(nats: Nats, tmp_path: Path) -> None:
    with ExitStack() as stack:
        old = Running(*nats.flags("a", tmp_path / "a"))
        stack.callback(old.kill)
        until(lambda: call(old, "GET", "/health/leader").status == 200, "it leads")
        new = Running(*nats.flags("b", tmp_path / "b"))
        stack.callback(new.kill)
        assert new.events("cluster.leader")
        client = Amqp(old)
        old.process.send_signal(signal.SIGSTOP)
        until(lambda: call(new, "GET", "/health/leader").status == 200, "the other leads")
        old.process.send_signal(signal.SIGCONT)  # nobody asks it for anything: a beat tells it
        closed = client.hear(Closed)
        assert isinstance(closed, Closed)
        assert closed.problem is not None
        assert closed.problem.condition == "amqp:connection:forced"
        client.close()
        until(lambda: sum(e["event"] == "broker.ready" for e in old.log) == 2, "it starts anew")
        until(lambda: old.events("cluster.leader"), "it follows")


def test_after_a_step_down_the_process_is_to_be_started_anew(nats: Nats, tmp_path: Path) -> None:
    def a_server(name: str) -> Serving:
        flags = {
            "dev": True, "store": f"nats://127.0.0.1:{nats.port}", "cluster": "shop",
            "node": name, "data": str(tmp_path / name), "replicas": 1, "port": ["0"],
            "nats_monitor": [f"http://127.0.0.1:{nats.monitor}"], "failover_after": 0.3,
        }  # fmt: skip
        return Serving(load(flags, {}), tmp_path / name / "tls", lambda _: None)

    async def main() -> None:
        servers = {name: a_server(name) for name in "ab"}
        running = {name: asyncio.create_task(each.run()) for name, each in servers.items()}

        def node_of(name: str) -> ClusterNode | None:
            return servers[name]._broker.node

        def leader() -> str:
            for name in "ab":
                node = node_of(name)
                if node is not None and node.leads and not running[name].done():
                    return name
            return ""

        old = await until_async(leader, "a node leads")
        new = "b" if old == "a" else "a"
        node = node_of(old)
        assert node is not None
        await until_async(lambda: len(node.status().nodes) == 2, "it knows the other")
        with pytest.raises(InvalidArgument, match="node x is not there"):
            await node.step_down("x")
        assert await node.step_down(new) == new
        assert await running[old] == DEPOSED
        await until_async(lambda: leader() == new, "the other leads")
        servers[new].stop()
        assert await running[new] == OK

    asyncio.run(main())
