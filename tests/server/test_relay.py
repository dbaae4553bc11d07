"""Clients of a node that does not lead: served by the leader as if they had come to it."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

import posthouse
from posthouse import Message
from posthouse.server.cluster_secret import derive
from posthouse.server.node_link import MAGIC, NodeEnd, RelayedClient, Verdict, frame
from tests.dialects.blackbox import pyqueue, vibemq
from tests.dialects.servicebus.bus import KEY, ROOT, Bus, take, texts
from tests.server.clustered import QUEUE, Cluster, Nats, call, nats, needs_nats
from tests.server.running import Running, running
from tests.server.wire import connect_narrowly, trusting_all
from tests.waiting import until

__all__ = ["nats"]  # a fixture
pytestmark = needs_nats
_numbers = count(1)
LINK_KEY = derive(b"the cluster shop for development", "node link")
MORE_BYTES_MAX = 12 << 20  # that a node may take of memory for a client that does not read


class Pair:
    """Two nodes for development, of which one leads."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.leading = cluster.leader()
        self.following = cluster.follower(self.leading)
        self.leader, self.follower = cluster.nodes[self.leading], cluster.nodes[self.following]
        self.folder = folder

    def ca_file(self) -> str:
        """The authority as the leader has it: a follower's certificate is trusted by it too."""
        return str(self.folder / self.leading / "tls" / "ca.pem")


@contextmanager
def a_pair(folder: Path, *flags: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        nats = Nats(folder / "nats")
        stack.callback(nats.close)
        cluster = Cluster(nats, folder, *flags, names="ab")
        stack.callback(cluster.close)
        yield Pair(cluster, folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("relay")
    flags = (
        "--servicebus-tier", "premium", "--follower-reads", "--handshake-limit", "3",
        "--strangers-per-address", "20",
    )  # fmt: skip
    with a_pair(folder, *flags) as made:
        yield made


@pytest.fixture
def queue(pair: Pair) -> str:
    name = f"queue-{next(_numbers)}"
    assert pair.follower.queue("PUT", name, {"max_message_bytes": 20 << 20}).status == 201
    return name


def metric(node: Running, name: str) -> float:
    text = node.call("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


RELAYED_IN = 'posthouse_cluster_relayed_connections{direction="in"}'
RELAYED_OUT = 'posthouse_cluster_relayed_connections{direction="out"}'


def refused(node: Running, why: str) -> float:
    return metric(node, f'posthouse_connections_refused_total{{why="{why}"}}')


# Every dialect.


def azure(pair: Pair, *, plain: bool, **options: Any) -> ServiceBusClient:
    where = f"localhost:{pair.follower.port}"
    text = f"SharedAccessKeyName={ROOT};SharedAccessKey={KEY};"
    text += "UseDevelopmentEmulator=true;" if plain else ""
    if plain and options["transport_type"] == TransportType.Amqp:
        text = f"Endpoint=sb://{where};{text}"
    else:
        text = f"Endpoint=sb://localhost/;{text}"
        options["custom_endpoint_address"] = f"sb://{where}"
    return ServiceBusClient.from_connection_string(
        text, connection_verify=pair.ca_file(), **options
    )


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "tls"])
@pytest.mark.parametrize("transport", list(TransportType), ids=["tcp", "websocket"])
def test_the_azure_sdk_is_served_through_a_follower(
    pair: Pair, queue: str, transport: TransportType, *, plain: bool
) -> None:
    with (
        azure(pair, plain=plain, transport_type=transport) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        sender.send_messages([ServiceBusMessage(f"{number}") for number in range(50)])
        assert metric(pair.leader, RELAYED_IN) >= 1
        assert metric(pair.follower, RELAYED_OUT) >= 1
        assert texts(take(receiver, 50)) == [f"{number}" for number in range(50)]
        body = os.urandom(10 << 20)
        sender.send_messages(ServiceBusMessage(body))
        [large] = take(receiver, 1)
        assert b"".join(large.body) == body
    assert Bus(pair.leader).counts(queue)["active"] == 0


def test_pyqueue_is_served_through_a_follower(pair: Pair, queue: str) -> None:
    with pyqueue.Client(pair.follower) as client:
        task = client.push("a parcel", queue)
        assert client.pull(queue)["task_id"] == task
        client.ok("ACK", task)


def test_a_client_that_has_said_all_still_gets_its_answers(pair: Pair, queue: str) -> None:
    """As PyQueue's clients may: they close their direction, and read until the other is closed."""
    with pyqueue.Client(pair.follower) as client:
        form = {"payload": "a parcel", "queue": queue}
        client.write(pyqueue.frame("PUSH", form) * 3)
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.read().word for _ in range(3)] == ["OK"] * 3
        assert client.is_ended()
    assert Bus(pair.leader).counts(queue)["active"] == 3


def test_vibemq_is_served_through_a_follower(pair: Pair, queue: str) -> None:
    with vibemq.Client(pair.follower) as client:
        client.publish(queue, {"parcel": 7})
        assert client.info(queue)["messageCount"] == 1


def test_requests_of_one_connection_go_to_the_leader_one_by_one(pair: Pair, queue: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", pair.follower.port, timeout=30)
    path = f"/api/v1/namespaces/default/queues/{queue}/messages"
    for number in range(20):
        connection.request("POST", path, json.dumps({"messages": [{"body": f"{number}"}]}))
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection")) == (201, None)
        answer.read()
    connection.close()
    assert len(pair.leader.receive(queue, 50)) == 20


def test_a_large_body_goes_both_ways(pair: Pair, queue: str) -> None:
    body = "x" * (10 << 20)
    pair.follower.send(queue, body)
    [message] = pair.follower.receive(queue)
    assert message["body"] == body
    assert pair.follower.complete(queue, message).status == 200


# What a node answers itself.


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/docs"])
def test_a_node_answers_for_itself_once_on_a_connection(pair: Pair, path: str) -> None:
    before = metric(pair.leader, "posthouse_connections_accepted_total")
    for target in (path, f"http://localhost:{pair.follower.port}{path}"):
        answer = pair.follower.call("GET", target)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
    # One of these two is this question itself; readiness asks the leader, once.
    asked = metric(pair.leader, "posthouse_connections_accepted_total") - before
    assert asked <= (2 if path == "/health/ready" else 1)


def test_balancers_can_tell_who_leads_and_who_can_be_used(pair: Pair) -> None:
    assert pair.leader.call("GET", "/health/leader").status == 200
    assert pair.follower.call("GET", "/health/leader").status == 503
    for node in (pair.leader, pair.follower):
        for path in ("/health", "/health/ready", "/health/ready/receive"):
            assert node.call("GET", path).status == 200


def test_a_follower_serves_the_feed_and_lives_from_its_own_folder(pair: Pair, queue: str) -> None:
    [sequence] = pair.follower.send(queue, "a parcel", id="parcel-7")
    last = pair.leader.call("GET", "/feed/status").json["last"]
    until(lambda: pair.follower.call("GET", "/feed/status").json["last"] >= last, "it has all")
    rows = pair.follower.call("GET", f"/feed?after={last - 1}&limit=1")
    assert int(rows.headers["posthouse-next"]) == last
    assert rows.headers["connection"] == "close"
    life = f"/api/v1/namespaces/default/queues/{queue}/messages/{sequence}/life"
    ours, theirs = pair.follower.call("GET", life), pair.leader.call("GET", life)
    assert ours.headers["connection"] == "close"
    assert ours.json == theirs.json
    by_id = pair.follower.call("GET", "/api/v1/namespaces/default/messages/parcel-7/life")
    assert by_id.status == 200


def test_who_waits_for_the_feed_of_a_follower_is_told_of_what_comes(pair: Pair, queue: str) -> None:
    last = pair.leader.call("GET", "/feed/status").json["last"]
    connection = http.client.HTTPConnection("127.0.0.1", pair.follower.port, timeout=60)
    connection.request("GET", f"/feed?after={last}&wait_ms=30000")
    pair.leader.send(queue, "a parcel")
    assert int(connection.getresponse().headers["posthouse-next"]) > last
    connection.close()


# Back-pressure.


def memory_bytes(node: Running) -> int:
    text = Path(f"/proc/{node.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


def send_until_stuck(sender: socket.socket, size: int) -> int:
    """Sends until nobody takes more; how much was taken."""
    sender.settimeout(2)
    taken = 0
    with suppress(TimeoutError):
        while taken < size:
            taken += sender.send(bytes(min(1 << 16, size - taken)))
    return taken


def test_a_client_that_does_not_read_takes_no_memory_of_the_node(pair: Pair, queue: str) -> None:
    body = "x" * (1 << 20)
    for _ in range(40):
        pair.leader.send(queue, body)
    head = (
        "GET /api/v1/namespaces/default/queues/{}/messages?limit=40 HTTP/1.1\r\n"
        "host: localhost\r\n\r\n"
    )
    pair.follower.until_idle()
    before = memory_bytes(pair.follower)
    with connect_narrowly(pair.follower) as reader:
        reader.sendall(head.format(queue).encode())
        come = b""
        while b"\r\n\r\n" not in come:
            come += reader.recv(64)
        length = int(re.search(rb"content-length: (\d+)", come)[1])  # type: ignore[index]
        assert length > 30 << 20
        pair.leader.until_idle()
        pair.follower.until_idle()
        assert memory_bytes(pair.follower) - before < MORE_BYTES_MAX
        left = length - len(come.partition(b"\r\n\r\n")[2])
        while left:
            left -= len(reader.recv(1 << 20))


# Links that are none.


class Linking:
    """A link that the test makes by itself, as a node would."""

    def __init__(
        self, node: Running, client: RelayedClient, key: bytes = LINK_KEY, *, tls: bool = True
    ) -> None:
        raw = socket.create_connection(("127.0.0.1", node.port), timeout=30)
        self.socket = trusting_all().wrap_socket(raw) if tls else raw
        self.end = NodeEnd(key, client, os.urandom(32))

    def __enter__(self) -> "Linking":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def begin(self) -> "Linking":
        """Shakes hands. Fails where the leader closes."""
        self.socket.sendall(self.end.begin())
        while self.end.verdict is None:
            self.socket.sendall(self.end.receive(self.read()))
        return self

    def read(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        return data

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


def told(pair: Pair, address: str = "127.0.0.1", **more: Any) -> RelayedClient:
    return RelayedClient(address, more.pop("tls", False), f"127.0.0.1:{pair.leader.port}", **more)


def test_a_link_with_another_secret_is_closed_and_counted(pair: Pair) -> None:
    before = refused(pair.leader, "link")
    with Linking(pair.leader, told(pair), b"o" * 32) as link, pytest.raises(ConnectionError):
        link.begin()
    assert refused(pair.leader, "link") == before + 1


def test_a_link_without_tls_is_closed(pair: Pair) -> None:
    before = refused(pair.leader, "link")
    with Linking(pair.leader, told(pair), tls=False) as link, pytest.raises(ConnectionError):
        link.begin()
    assert refused(pair.leader, "link") == before + 1


def test_a_proof_that_was_overheard_opens_no_second_link(pair: Pair) -> None:
    with Linking(pair.leader, told(pair)) as link:
        link.socket.sendall(link.end.begin())
        proof = link.end.receive(link.read())
        link.socket.sendall(proof)
        assert link.read()
        with Linking(pair.leader, told(pair)) as again:
            again.socket.sendall(link.end.begin())
            again.read()
            again.socket.sendall(proof)
            assert again.is_closed()


def test_a_link_that_says_too_much_or_nothing_is_closed(pair: Pair) -> None:
    before = refused(pair.leader, "link")
    with Linking(pair.leader, told(pair)) as link:
        link.socket.sendall(MAGIC + bytes(32))
        link.read()
        link.socket.sendall(bytes(32) + b"\xff\xff")
        assert link.is_closed()
    with Linking(pair.leader, told(pair)) as link:
        link.socket.sendall(MAGIC)
        assert link.is_closed()
    assert refused(pair.leader, "link") == before + 2


def test_a_link_that_was_meant_for_another_address_is_not_taken(pair: Pair) -> None:
    """Who stands between a node and the leader could else pass the node's proof on."""
    client = RelayedClient("127.0.0.1", False, "elsewhere.test:5671")
    with Linking(pair.leader, client) as link:
        assert link.begin().end.verdict == Verdict.NOT_LEADER
        assert link.is_closed()


def test_a_node_that_follows_takes_no_links(pair: Pair) -> None:
    client = RelayedClient("127.0.0.1", False, f"127.0.0.1:{pair.follower.port}")
    with Linking(pair.follower, client) as link:
        assert link.begin().end.verdict == Verdict.NOT_LEADER


def test_a_link_cannot_carry_another_link(pair: Pair) -> None:
    with Linking(pair.leader, told(pair)) as link:
        link.begin()
        link.socket.sendall(frame(MAGIC + bytes(32)))
        assert link.is_closed()


def test_frames_that_are_too_large_end_the_link(pair: Pair) -> None:
    with Linking(pair.leader, told(pair)) as link:
        link.begin()
        link.socket.sendall(b"\xff\xff\xff\xff")
        assert link.is_closed()


# The client's own address.


def test_a_development_leader_lets_in_no_clients_from_elsewhere(pair: Pair) -> None:
    before = refused(pair.leader, "address")
    with Linking(pair.leader, told(pair, "203.0.113.7")) as link:
        assert link.begin().end.verdict == Verdict.FULL
    assert refused(pair.leader, "address") == before + 1


def test_strangers_are_counted_by_the_clients_address(pair: Pair) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            link = stack.enter_context(Linking(pair.leader, told(pair, "127.0.0.9"))).begin()
            assert link.end.verdict == Verdict.WELCOME
        one_more = stack.enter_context(Linking(pair.leader, told(pair, "127.0.0.9"))).begin()
        assert one_more.end.verdict == Verdict.FULL
        another = stack.enter_context(Linking(pair.leader, told(pair, "127.0.0.10"))).begin()
        assert another.end.verdict == Verdict.WELCOME


def test_the_profile_of_a_clients_port_is_kept(pair: Pair) -> None:
    with Linking(pair.leader, told(pair, http_profile="pyqueue-http")) as link:
        link.begin()
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        link.socket.sendall(frame(head))
        answer = b""
        while data := link.socket.recv(1 << 16):
            answer += data
        assert b"broker_running" in answer  # as PyQueue's own server answers


def test_a_client_without_tls_from_elsewhere_is_told_to_use_it(tmp_path: Path) -> None:
    nats = Nats(tmp_path / "nats")
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    flags = [each for each in nats.flags("a", tmp_path / "a") if each != "--dev"]
    with ExitStack() as stack:
        stack.callback(nats.close)
        node = Running(*flags, "--cluster-secret", str(secret))
        stack.callback(node.kill)
        until(lambda: call(node, "GET", "/health/leader").status == 200, "it leads")
        key = derive(b"s" * 40, "node link")
        to = f"127.0.0.1:{node.port}"
        for address, tls, answer in (
            ("203.0.113.7", False, b"AMQP\x02\x01\x00\x00"),  # TLS is demanded
            ("203.0.113.7", True, b"AMQP\x03\x01\x00\x00"),
            ("127.0.0.1", False, b"AMQP\x03\x01\x00\x00"),
        ):
            with Linking(node, RelayedClient(address, tls, to), key) as link:
                link.begin().socket.sendall(frame(b"AMQP\x03\x01\x00\x00"))
                assert link.read()[:8] == answer
        root = derive(b"s" * 40, "root key").hex()
        assert node.call("PUT", QUEUE, {}, key=f"{ROOT}:{root}").status == 201


def test_credentials_that_fail_are_counted_by_the_clients_address(pair: Pair) -> None:
    head = (
        b"GET /api/v1/namespaces HTTP/1.1\r\nhost: localhost\r\n"
        b"authorization: Basic bm86bm8=\r\n\r\n"
    )
    for address, unseen in [*[("127.0.0.77", 0)] * 100, ("127.0.0.78", 0), ("127.0.0.77", 1)]:
        with Linking(pair.leader, told(pair, address)) as link:
            link.begin().socket.sendall(frame(head))
            assert b" 401 " in link.read().partition(b"\r\n")[0]
        assert metric(pair.leader, "posthouse_auth_unseen_total") == unseen


# Several nodes, of which one is killed.


def hosts(cluster: Cluster, first: str) -> str:
    names = [first, *(name for name in cluster.nodes if name != first)]
    return ",".join(f"127.0.0.1:{cluster.nodes[name].port}" for name in names)


def test_a_client_of_a_follower_goes_on_when_the_leader_is_killed(
    nats: Nats, tmp_path: Path
) -> None:
    """It has one address: what it asks for while nobody leads waits, and is not refused."""
    with ExitStack() as stack:
        cluster = Cluster(nats, tmp_path)
        stack.callback(cluster.close)
        leading = cluster.leader()
        following = cluster.follower(leading)
        follower = cluster.nodes[following]
        assert follower.call("PUT", QUEUE, {}).status == 201
        url = f"posthouse://{ROOT}:{KEY}@127.0.0.1:{follower.port}"
        client = stack.enter_context(posthouse.create_sync_client(url))
        client.send_message("q", Message("first"))
        raw = stack.enter_context(pyqueue.Client(follower))
        raw.push("second", "q")

        cluster.nodes[leading].kill()
        assert raw.is_ended()
        # Right now nobody leads: neither of these is refused.
        assert follower.queue("POST", "q/messages", {"messages": [{"body": "third"}]}).status == 201
        client.send_message("q", Message("fourth"))
        with pyqueue.Client(follower) as again:
            again.push("fifth", "q")
        bodies = [client.receive_message("q", timeout=30) for _ in range(5)]
        assert all(bodies)


def test_the_client_of_a_cluster_takes_the_next_node(nats: Nats, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(nats, tmp_path)
        stack.callback(cluster.close)
        leading = cluster.leader()
        following = cluster.follower(leading)
        url = f"posthouse://{ROOT}:{KEY}@{hosts(cluster, following)}/default"
        client = stack.enter_context(posthouse.create_sync_client(url))
        client.admin.ensure_queue("q")
        client.send_message("q", Message("first"))
        assert metric(cluster.nodes[leading], RELAYED_IN) == 1

        # The node that it is connected to goes: it goes on with the leader, of which it was told.
        cluster.nodes[following].kill()
        client.send_message("q", Message("second"))
        assert metric(cluster.nodes[leading], RELAYED_IN) == 0

        # The leader goes, too, and takes the first node's place.
        cluster.nodes[following] = cluster.start(following)
        cluster.nodes[leading].kill()
        client.send_message("q", Message("third"))
        assert client.admin.counts("q").active == 3


def test_what_a_client_sends_waits_where_the_leader_does_not_take_it(tmp_path: Path) -> None:
    with a_pair(tmp_path, "--failover-after", "8") as pair:
        assert pair.follower.queue("PUT", "q", {}).status == 201
        head = (
            b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: 40000000\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", pair.follower.port), timeout=20) as sender:
            sender.sendall(head)
            until(lambda: metric(pair.leader, RELAYED_IN) == 1, "it is handed to the leader")
            pair.leader.process.send_signal(signal.SIGSTOP)
            before = memory_bytes(pair.follower)
            assert send_until_stuck(sender, 40_000_000) < 30_000_000
            assert memory_bytes(pair.follower) - before < MORE_BYTES_MAX
            pair.leader.process.send_signal(signal.SIGCONT)


def test_a_leader_that_hangs_loses_its_clients_to_the_next(nats: Nats, tmp_path: Path) -> None:
    """It closes nothing, so the nodes that handed clients to it do, when they hear another."""
    with ExitStack() as stack:
        cluster = Cluster(nats, tmp_path)
        stack.callback(cluster.close)
        leading = cluster.leader()
        follower = cluster.nodes[cluster.follower(leading)]
        client = stack.enter_context(pyqueue.Client(follower))
        client.push("first", "q")
        cluster.nodes[leading].process.send_signal(signal.SIGSTOP)
        assert client.is_ended()
        with pyqueue.Client(follower) as again:
            again.push("second", "q")
        cluster.nodes[leading].process.send_signal(signal.SIGCONT)


def test_while_nobody_leads_requests_wait_and_are_then_told_so(nats: Nats, tmp_path: Path) -> None:
    flags = nats.flags("a", tmp_path / "a")
    flags[flags.index("--failover-after") + 1] = "60"
    with running(*flags) as node:
        assert node.call("GET", "/health/live").status == 200
        assert "no node is known to lead" in node.call("GET", "/health/ready").json["status"]
        told = node.call("PUT", QUEUE, {})
        assert (told.status, told.json["code"]) == (503, "not-leader")
        assert told.headers["connection"] == "close"
        with pyqueue.Client(node) as client:
            client.write(pyqueue.frame("PING"))
            assert client.is_ended()
        assert refused(node, "leader") == 1
