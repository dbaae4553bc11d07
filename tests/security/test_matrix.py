"""Who may do what: every operation of every protocol, with every kind of credentials.

The operations are those of the code's own tables (routes, links, commands, frames): one that is
new and is not here fails a test below. For each it is tried who gets through: nobody without
credentials, with a wrong key, with credentials that have expired or were taken back; of the
principals those that have the right, on that entity, in that namespace. Where it is refused nothing
is written.
"""

import ast
import inspect
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, get_args

import jwt
import pytest

from posthouse.amqp.encode import described, encode_list
from posthouse.broker.access import ROOT, Guard
from posthouse.core.commands import Command, Send
from posthouse.core.errors import Unauthorized
from posthouse.core.model import Account, Grant, QueueProperties, Right
from posthouse.core.namespaces import SpaceCommand
from posthouse.dialects.pyqueue import peer as pyqueue_peer
from posthouse.dialects.pyqueue import web as pyqueue_web
from posthouse.dialects.servicebus import management
from posthouse.dialects.servicebus.localzure import documents, entities, messages
from posthouse.dialects.servicebus.localzure import service as localzure
from posthouse.dialects.vibemq import requests as vibemq_requests
from posthouse.dialects.vibemq import web as vibemq_web
from posthouse.dialects.vibemq.codec import Type
from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.servicebus import test_peer, test_web_access
from tests.dialects.servicebus.rest import CONNECT
from tests.dialects.vibemq.broker import a_free_port
from tests.dialects.vibemq.client import Client as Vibe
from tests.security.amqp import UNAUTHORIZED, Amqp, plain, sas
from tests.server import test_access
from tests.server.clustered import Nats, needs_nats
from tests.server.running import Reply, Running, running
from tests.waiting import until

NS = "/api/v1/namespaces/default"
RIGHTS: tuple[Right, ...] = ("send", "listen", "manage")
SECRET = "a secret that tokens are signed with, which is long enough"
NO_LOCK = test_web_access.NO_LOCK
LOCK_MS = 300_000
UNKNOWN, REFUSED, ALLOWED = "unknown", "refused", "allowed"


# Who comes.


class Who(NamedTuple):
    """Credentials, and what they should be good for."""

    label: str
    name: str = ""
    key: str = ""
    rights: frozenset[str] = frozenset()
    namespace: str = ""
    entity: str = ""
    is_known: bool = False
    seconds: float = 3_600  # until a token of his ends
    happens: Callable[[], object] | None = None  # when a connection knows him, before he asks

    def is_let_in(self) -> None:
        if self.happens is not None:
            self.happens()

    @property
    def basic(self) -> str:
        return "Basic " + b64encode(f"{self.name}:{self.key}".encode()).decode()

    def signed(self, resource: str = "http://localhost/") -> str:
        return sas(resource, self.name, self.key, self.seconds)

    def jwt(self) -> str:
        end = time.time() + self.seconds
        return jwt.encode({"principal": self.name, "exp": end}, SECRET, "HS256")


class Operation(NamedTuple):
    protocol: str
    name: str
    rights: frozenset[str]  # all of them are needed
    reach: str  # on an "entity", "all" of the broker, "some" or "any" right, "open"; see allows
    ask: "Callable[[World, Who], str]"

    def allows(self, who: Who) -> bool:
        if self.reach == "open":
            return True
        if not who.is_known:
            return False
        if self.reach == "any":
            return True
        if self.reach == "all":
            return who.namespace == "*" and self.rights <= who.rights
        if self.reach == "superuser":
            return who.namespace == "*" and len(who.rights) == len(RIGHTS)
        if self.reach == "other":
            return who.namespace in ("other", "*") and self.rights <= who.rights
        here = who.namespace in ("default", "*")
        return here and (self.reach == "some" or (who.entity == "*" and self.rights <= who.rights))


def operation(protocol: str, name: str, needs: str, ask: Any) -> Operation:
    """`needs`: rights, and before them on what, where that is not an entity."""
    words = needs.split()
    reach = "entity"
    if words[0] in ("all", "some", "any", "open", "other", "superuser"):
        reach = words.pop(0)
    return Operation(protocol, name, frozenset(words), reach, ask)


class World:
    def __init__(self, broker: Running, root: str, doors: dict[str, int], stack: ExitStack) -> None:
        self.broker, self.root, self.doors, self.stack = broker, root, doors, stack
        self.everybody: list[Who] = []
        self._open: dict[Any, Any] = {}
        self.revoked_at = 0
        self._make()

    def do(self, method: str, path: str, body: Any = None) -> Reply:
        reply = self.broker.call(method, path, body, key=f"{ROOT}:{self.root}")
        assert reply.status < 300, (path, reply)
        return reply

    def _make(self) -> None:
        plain_queue = {"lock_ms": LOCK_MS}
        for queue in ("orders", "gone", "unrelated"):
            self.do("PUT", f"{NS}/queues/{queue}", plain_queue)
        sessions = plain_queue | {"requires_session": True, "grouping": "session"}
        self.do("PUT", f"{NS}/queues/grouped", sessions)
        self.do("PUT", f"{NS}/queues/onward", plain_queue | {"forward_to": "unrelated"})
        self.do("PUT", f"{NS}/topics/news", {})
        self.do("PUT", f"{NS}/topics/news/subscriptions/s", plain_queue)
        self.do("PUT", "/api/v1/namespaces/other")
        self.everybody = [Who("no credentials")]
        for right in RIGHTS:
            for kind, namespace, entity in (
                ("here", "default", "*"), ("other entity", "default", "unrelated"),
                ("other namespace", "other", "*"),
            ):  # fmt: skip
                label = f"{kind}, {right}"
                self.everybody.append(self._principal(label, [right], namespace, entity))
        chief = self._principal("everything", list(RIGHTS), "*", "*")
        former = self._principal("rotated away", list(RIGHTS), "*", "*")
        for _ in range(2):
            self.do("POST", f"/api/v1/principals/{former.name}/rotate")
        revoked = self._principal("revoked", list(RIGHTS), "*", "*")
        self.do("DELETE", f"/api/v1/principals/{revoked.name}")
        self.everybody += [
            chief, former._replace(is_known=False), revoked._replace(is_known=False),
            chief._replace(label="wrong key", key="x" * 43, is_known=False),
            Who("nobody", "nobody", chief.key + "x"),
        ]  # fmt: skip
        self.expired = chief._replace(label="expired", seconds=-5, is_known=False)

    def _principal(self, label: str, rights: list[str], namespace: str, entity: str) -> Who:
        name = label.replace(", ", "-").replace(" ", "-")
        grants = [{"rights": rights, "namespace": namespace, "entity": entity}]
        reply = self.do("POST", "/api/v1/principals", {"name": name, "grants": grants})
        key = reply.json["key"]
        return Who(label, name, key, frozenset(rights), namespace, entity, is_known=True)

    def going(self, number: int) -> Who:
        """Somebody who may do everything, and is revoked when he is let in."""
        who = self._principal(f"going {number}", list(RIGHTS), "*", "*")

        def revoke() -> None:
            self.do("DELETE", f"/api/v1/principals/{who.name}")
            self.revoked_at = self.position()

        return who._replace(is_known=False, happens=revoke)

    def position(self) -> int:
        """Of what is written next."""
        end: int = self.do("GET", "/api/v1/store").json["end"]
        return end

    def opened(self, what: Any, make: Callable[[], Any]) -> Any:
        """A connection that is kept for the next who needs the same."""
        if what not in self._open:
            self._open[what] = self.stack.enter_context(make())
        return self._open[what]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    doors = {"pyqueue-http": a_free_port(), "vibemq-http": a_free_port()}
    folder = tmp_path_factory.mktemp("matrix") / "data"
    flags = [each for name, port in doors.items() for each in ("--port", f"{port}={name}")]
    environment = {
        "POSTHOUSE_JWT_SECRET": SECRET,
        "POSTHOUSE_PYQUEUE_RATE": "0",
        "POSTHOUSE_AUTH_FAILURES_MAX": "0",
    }
    with ExitStack() as stack:
        broker = stack.enter_context(
            running("--data", str(folder), *flags, environment=environment)
        )
        ports = broker.events("broker.ready")[0]["ports"]
        broker.port = next(port for port in ports if port not in doors.values())
        yield World(broker, (folder / "root-key").read_text().strip(), doors, stack)


# Our own API.


def ask_http(method: str, path: str, body: Any, world: World, who: Who) -> str:
    key = f"{who.name}:{who.key}" if who.name else None
    if method == "GET" and path.endswith("/deliveries"):
        return _ask_for_a_stream(path, world, who)
    reply = world.broker.call(method, path, body, key=key)
    if reply.status in (401, 403):
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["status"] == reply.status
    assert reply.status < 500, reply
    return {401: UNKNOWN, 403: REFUSED}.get(reply.status, ALLOWED)


def _ask_for_a_stream(path: str, world: World, who: Who) -> str:
    with socket.create_connection(("127.0.0.1", world.broker.port), timeout=10) as made:
        given = f"authorization: {who.basic}\r\n" if who.name else ""
        made.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n{given}\r\n".encode())
        status = int(made.recv(12)[9:])
    return {401: UNKNOWN, 403: REFUSED}.get(status, ALLOWED)


DEAD = f"{NS}/queues/orders%2F$dead"
OF_SUBSCRIPTION = f"{NS}/topics/news/subscriptions/s"
DEAD_OF_SUBSCRIPTION = f"{NS}/queues/news%2F$sub%2Fs%2F$dead"


def http_operations() -> Iterator[Operation]:
    for route in test_access.ROUTES:
        path = route.path.replace("/namespaces/shop", "/namespaces/default")
        path = path.replace("namespace=shop", "namespace=default")
        needs = route.right
        paths = [path]
        if path.startswith(f"{NS}/queues/orders/") and "send" not in needs:
            rest = path.removeprefix(f"{NS}/queues/orders")
            paths += [place + rest for place in (DEAD, OF_SUBSCRIPTION, DEAD_OF_SUBSCRIPTION)]
        for each in paths:
            ask = partial(ask_http, route.method, each, route.body)
            yield operation("HTTP", f"{route.method} {each} {bool(route.body)}", needs, ask)
    for path in ("/docs", "/docs/openapi.json", "/health/live", "/health/ready"):
        yield operation("HTTP", f"GET {path}", "open", partial(ask_http, "GET", path, None))


# Service Bus over HTTP.


def ask_rest(method: str, path: str, body: bytes, world: World, who: Who) -> str:
    separator = "&" if "?" in path else "?"
    headers = {"authorization": who.signed()} if who.name else {}
    path = f"{path}{separator}api-version=2021-05"
    reply = world.broker.call(method, path, raw=body, headers=headers)
    assert reply.status not in (403, 500), reply
    if reply.status != 401:
        return ALLOWED
    assert reply.headers["www-authenticate"].startswith("SharedAccessSignature")
    return UNKNOWN if b"40103" in reply.body else REFUSED


RECEIVED_FROM = (
    "/orders/$DeadLetterQueue", "/news/subscriptions/s", "/news/subscriptions/s/$DeadLetterQueue",
)  # fmt: skip


def rest_operations() -> Iterator[Operation]:
    for route in test_web_access.ROUTES:
        paths = [route.path]
        if route.table in ("head", "lock"):
            paths += [route.path.replace("/orders", place, 1) for place in RECEIVED_FROM]
        elif route.table == "messages":
            paths.append("/news/messages")
        elif route.table == "entity" and route.method == "GET":
            paths += ["/news", "/news/subscriptions/s"]
        for path in paths:
            ask = partial(ask_rest, route.method, path, route.body)
            yield operation("Service Bus HTTP", f"{route.method} {path}", route.right.replace(
                "manage all", "manage"), ask)  # fmt: skip


# LocalZure's API.

RULE = f'<RuleDescription xmlns="{CONNECT}"/>'.encode()
# What each needs, by who answers; and what is said to it.
LOCALZURE: dict[Any, tuple[str, Any]] = {
    entities.get: ("manage", b""),
    entities.put: ("manage", b""),
    entities.delete: ("manage", b""),
    entities.get_rule: ("manage listen", b""),
    entities.put_rule: ("manage listen", RULE),
    entities.delete_rule: ("manage listen", b""),
    entities.list_rules: ("manage listen", b""),
    entities.list_all: ("manage", b""),
    messages.send: ("send", {"body": "x"}),
    messages.send_batch: ("send", {"messages": [{"body": "x"}]}),
    messages.cancel: ("send", b""),
    messages.head: ("listen", b""),
    messages.take_head: ("listen", b""),
    messages.receive: ("listen", {}),
    messages.deferred: ("listen", {"sequence_numbers": [999]}),
    messages.settle_by_path: ("listen", b""),
    messages.settle_by_token: ("listen", {"lock_token": NO_LOCK}),
    messages.accept: ("listen", {}),
    messages.release_session: ("listen", b""),
    messages.renew_session: ("listen", b""),
    messages.get_state: ("listen", b""),
    messages.set_state: ("listen", b"state"),
    messages.begin: ("some", {}),
    messages.commit: ("some", b""),
    messages.roll_back: ("some", b""),
}
_LISTS: dict[Any, Any] = {
    localzure._list_queues: entities.list_all, localzure._list_topics: entities.list_all,
    localzure._list_subscriptions: entities.list_all,
}  # fmt: skip


def ask_localzure(method: str, path: str, body: Any, world: World, who: Who) -> str:
    headers = {"authorization": who.signed()} if who.name and "/health" not in path else {}
    given = {"raw": body} if isinstance(body, bytes) else {"body": body}
    reply = world.broker.call(method, path, headers=headers, **given)
    assert reply.status != 500, reply
    if reply.status in (401, 403):
        assert "error" in reply.json
    return {401: UNKNOWN, 403: REFUSED}.get(reply.status, ALLOWED)


def localzure_path(path: str) -> str:
    names = {
        "{queue}": "orders", "{topic}": "news", "{subscription}": "s", "{message}": "m",
        "{lock}": NO_LOCK, "{sequence}": "5", "{rule}": "r", "{session}": "s",
        "{transaction}": NO_LOCK,
    }  # fmt: skip
    return "/".join(names.get(part, part) for part in path.split("/"))


def localzure_route(method: str, path: str) -> Any:
    """Who answers it."""
    parts = tuple(localzure_path(path).split("/")[2:])
    found = localzure._found(parts)[1].get(method.upper())
    return _LISTS.get(found, found)


def localzure_operations() -> Iterator[Operation]:
    for method, path, _, _ in documents.PATHS:
        last = path.rpartition("/")[2]
        if path.startswith("/servicebus/health"):
            needs, body = "open", b""
        elif last == "metrics":
            needs, body = "all manage", b""
        else:
            needs, body = LOCALZURE[localzure_route(method, path)]
        where = localzure_path(path)
        if method == "delete" and where.count("/") in (3, 5) and last in (
            "{queue}", "{topic}", "{subscription}"
        ):  # fmt: skip
            where = where.replace("orders", "nowhere").replace("news", "nowhere")
        ask = partial(ask_localzure, method.upper(), where, body)
        yield operation("LocalZure", f"{method.upper()} {where}", needs, ask)


# Service Bus over AMQP.


@contextmanager
def connected(world: World, who: Who) -> Iterator[Amqp]:
    """One that has shown what it has. A stranger has little time, and is not kept."""

    def make() -> Amqp:
        client = Amqp(world.broker.port)
        if who.name:
            status = client.put_token("sb://localhost/", who.signed("sb://localhost/"))
            assert (status == 202) == (who.is_known or who.happens is not None)
            who.is_let_in()
        return client

    if who.is_known:
        yield world.opened(("amqp", who.label), make)
    else:
        with make() as client:
            yield client


def ask_link(address: str, sends: bool, session: str | None, world: World, who: Who) -> str:
    with connected(world, who) as client:
        link = client.link(address, sends=sends, session=session)
        found = client.why(link)
        link.session.end()
        client.flush()
        if found != UNAUTHORIZED:
            return ALLOWED
        return REFUSED if who.is_known else UNKNOWN


def ask_management(address: str, name: str, body: Any, world: World, who: Who) -> str:
    with connected(world, who) as client:
        node = f"{address}/$management"
        asks, hears = client.link(node, sends=True), client.link(node, sends=False)
        found = {client.why(asks), client.why(hears)}
        if found == {None}:
            hears.grant(10)
            client.request(asks, node, {"operation": f"com.microsoft:{name}"}, body)
            status = int(client.reply(hears)[0]["statusCode"])
            assert status not in (500, 501), (name, status)
        else:
            assert found == {UNAUTHORIZED}
            status = 401
        for link in (asks, hears):
            link.session.end()
        client.flush()
        if status != 401:
            return ALLOWED
        return REFUSED if who.is_known else UNKNOWN


def ask_cbs(world: World, who: Who) -> str:
    with Amqp(world.broker.port) as client:
        token = who.signed("sb://localhost/orders") if who.name else "nothing"
        return ALLOWED if client.put_token("sb://localhost/orders", token) == 202 else UNKNOWN


def ask_sasl(world: World, who: Who) -> str:
    with Amqp(world.broker.port, plain(who.name, who.key)) as client:
        return UNKNOWN if client.is_refused else ALLOWED


def ask_coordinator(world: World, who: Who) -> str:
    with connected(world, who) as client:
        link = client.coordinator()
        found = client.why(link)
        if found is None:
            declare = described(0x77, described(0x31, encode_list(())))
            found = None if client.send(link, declare) == "accepted" else UNAUTHORIZED
        link.session.end()
        client.flush()
        if found is None:
            return ALLOWED
        assert found == UNAUTHORIZED
        return REFUSED if who.is_known else UNKNOWN


OF_SESSIONS: dict[str, tuple[dict[Any, Any], str]] = {
    "renew-session-lock": ({"session-id": "s"}, "listen"),
    "get-session-state": ({"session-id": "s"}, "listen"),
    "set-session-state": ({"session-id": "s", "session-state": b"x"}, "listen"),
}
MANAGEMENT = test_peer.OPERATIONS | OF_SESSIONS
OF_RULES = ("add-rule", "remove-rule", "enumerate-rules")
LINKS = [
    ("orders", True, None, "send"), ("news", True, None, "send"),
    ("orders", False, None, "listen"), ("orders/$DeadLetterQueue", False, None, "listen"),
    ("news/Subscriptions/s", False, None, "listen"),
    ("news/Subscriptions/s/$DeadLetterQueue", False, None, "listen"),
    ("onward/$Transfer/$DeadLetterQueue", False, None, "listen"),
    ("grouped", False, "s", "listen"),
]  # fmt: skip


def amqp_operations() -> Iterator[Operation]:
    for address, sends, session, right in LINKS:
        name = f"{'send to' if sends else 'receive from'} {address}"
        yield operation("AMQP", name, right, partial(ask_link, address, sends, session))
    for name, (body, right) in MANAGEMENT.items():
        places = ["orders", "orders/$DeadLetterQueue", "news/Subscriptions/s"]
        if name in OF_RULES:
            places = ["news/Subscriptions/s"]
        elif right == "send":
            places = ["orders", "news"]
        for place in places:
            ask = partial(ask_management, place, name, body)
            yield operation("AMQP", f"{name} of {place}", right, ask)
    yield operation("AMQP", "put-token", "any", ask_cbs)
    yield operation("AMQP", "SASL PLAIN", "any", ask_sasl)
    yield operation("AMQP", "declare", "some", ask_coordinator)


# PyQueue.


def held_task(world: World) -> str:
    """The id of a task in `orders` that somebody works on."""
    with PyQueue(world.broker.port) as client:
        client.ok("AUTH", {"type": "apikey", "value": world.root})
        client.ok("PUSH", {"payload": "x", "queue": "orders", "priority": "HIGH"})
        while True:
            job = client.pull("orders")
            if job is not None:
                id: str = job["task_id"]
                return id


PYQUEUE: dict[str, tuple[str, Any]] = {
    "PUSH": ("send", {"payload": "x", "queue": "orders"}),
    "PUSH_BATCH": ("send", {"tasks": [{"payload": "x", "queue": "orders"}]}),
    "SCHEDULE": ("send", {"payload": "x", "queue": "orders", "schedule": "every 5 hours"}),
    "PUBLISH": ("send", {"topic": "orders", "message": "x"}),
    "SUBSCRIBE": ("listen send", {"topic": "orders", "queue": "orders"}),
    "UNSUBSCRIBE": ("listen send", {"topic": "orders", "queue": "orders"}),
    "PULL": ("listen", {"queue": "orders"}),
    "PULL_BATCH": ("listen", {"queue": "orders", "count": 1}),
    "ACK": ("listen", held_task),
    "NACK": ("listen", held_task),
    "ADMIN_QUEUE_INFO": ("listen", b"orders"),
    "ADMIN_PURGE_QUEUE": ("manage", b"orders"),
    "ADMIN_DELETE_QUEUE": ("manage", b"orders"),
    "ADMIN_GET_TASK": ("listen", held_task),
    "ADMIN_CANCEL_TASK": ("manage", held_task),
    "ADMIN_LIST_TASKS": ("listen", {"queue": "orders"}),
    "ADMIN_GET_DLQ": ("listen", {"queue": "orders"}),
    "ADMIN_REQUEUE_DLQ": ("manage", {"queue": "orders"}),
    "ADMIN_PURGE_DLQ": ("manage", {"queue": "orders"}),
    "ADMIN_SET_QUEUE_TTL": ("manage", {"queue": "orders", "ttl": 5_000}),
    "ADMIN_SET_QUEUE_LIMIT": ("manage", {"queue": "orders", "max_depth": 5_000}),
    "ADMIN_REPLAY": ("manage send", {}),
    "BEGIN_TX": ("some", b""),
    "COMMIT_TX": ("some", {"transaction_id": "x"}),
    "ROLLBACK_TX": ("some", {"transaction_id": "x"}),
    "AUTH": ("any", None),
    "PING": ("any", b""),
    "HEARTBEAT": ("any", {"worker_id": "w"}),
    "STATS": ("any", b""),
    "ADMIN_LIST_QUEUES": ("any", b""),
    "ADMIN_LIST_WORKERS": ("any", b""),
    "ADMIN_HEALTH": ("any", b""),
    "ADMIN_QUEUE_METRICS": ("any", b"unrelated"),
}
NEEDS_AUTH = "Authentication required. Send AUTH command first."


def ask_pyqueue(word: str, payload: Any, world: World, who: Who) -> str:
    if callable(payload):
        payload = world.opened(("payload", word), lambda: _Kept(payload(world))).value
    with PyQueue(world.broker.port) as client:
        if who.name:
            as_jwt = who.label == "expired"
            value = {"type": "jwt", "value": who.jwt()} if as_jwt else {
                "type": "apikey", "value": who.key,
            }  # fmt: skip
            reply = client.call("AUTH", value)
            if reply.word != "OK":
                assert reply.text == "Authentication failed"
                return UNKNOWN
            if word == "AUTH":
                return ALLOWED
            who.is_let_in()
        reply = client.call(word, b"" if payload is None else payload)
    if reply.word != "ERROR":
        return ALLOWED
    if reply.text == NEEDS_AUTH or word == "AUTH":
        return UNKNOWN
    if reply.text.startswith("Unauthorized:"):
        assert reply.text.startswith(f"Unauthorized: {who.name} cannot {word} on ")
        return REFUSED
    return ALLOWED


class _Kept:
    """A value that is made once."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> "_Kept":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def pyqueue_operations() -> Iterator[Operation]:
    for word, (needs, payload) in PYQUEUE.items():
        yield operation("PyQueue", word, needs, partial(ask_pyqueue, word, payload))


# By the patterns that the code matches requests with.
PYQUEUE_HTTP: dict[str, list[tuple[str, str, str, Any]]] = {
    "['GET', b'']": [("GET", "/", "any", None)],
    "['GET', b'docs']": [("GET", "/docs", "any", None)],
    "['GET', b'metrics']": [("GET", "/metrics", "any", None)],
    "['POST', b'api', b'tasks']": [
        ("POST", "/api/tasks", "send", {"payload": "x", "queue": "orders"})
    ],
    "['POST', b'api', b'tasks', b'batch']": [
        ("POST", "/api/tasks/batch", "send", {"tasks": [{"payload": "x", "queue": "orders"}]})
    ],
    "['GET', b'api', b'queues', _]": [("GET", "/api/queues/orders", "listen", None)],
    "['GET', b'api', _]": [
        ("GET", "/api/queues", "any", None), ("GET", "/api/metrics", "any", None),
        ("GET", "/api/workers", "any", None), ("GET", "/api/dlq", "any", None),
    ],
    "_": [],
}  # fmt: skip


def ask_door(door: str, method: str, path: str, body: Any, world: World, who: Who) -> str:
    port, world.broker.port = world.broker.port, world.doors[door]
    headers = {}
    if who.name:
        headers["authorization"] = who.basic if door == "vibemq-http" else f"ApiKey {who.key}"
        if who.label == "expired":
            headers["authorization"] = f"Bearer {who.jwt()}"
    try:
        reply = world.broker.call(method, path, body, headers=headers)
    finally:
        world.broker.port = port
    assert reply.status < 500, reply
    return {401: UNKNOWN, 403: REFUSED}.get(reply.status, ALLOWED)


def pyqueue_http_operations() -> Iterator[Operation]:
    for method, path, needs, body in chain(*PYQUEUE_HTTP.values()):
        ask = partial(ask_door, "pyqueue-http", method, path, body)
        yield operation("PyQueue HTTP", f"{method} {path}", needs, ask)
    ask = partial(ask_door, "pyqueue-http", "GET", "/health", None)
    yield operation("PyQueue HTTP", "GET /health", "open", ask)


# VibeMQ.

VIBEMQ: dict[int, tuple[str, str, Any]] = {
    Type.CONNECT: ("any", "", None),
    Type.DISCONNECT: ("open", "", None),
    Type.PING: ("open", "", None),
    Type.PUBLISH: ("send", "orders", "x"),
    Type.SUBSCRIBE: ("listen", "orders", None),
    Type.UNSUBSCRIBE: ("any", "orders", None),
    Type.CREATE_QUEUE: ("manage", "orders", None),
    Type.DELETE_QUEUE: ("manage", "nowhere", None),
    Type.QUEUE_INFO: ("info", "orders", None),
    Type.LIST_QUEUES: ("any", "", None),
    Type.ADMIN_CREATE_USER: ("superuser", "", {"username": "u", "password": "p"}),
    Type.ADMIN_DELETE_USER: ("superuser", "", {"username": "u"}),
    Type.ADMIN_CHANGE_PASSWORD: ("superuser", "", {"username": "u", "newPassword": "q"}),
    Type.ADMIN_GRANT_PERMISSION: (
        "superuser", "", {"username": "u", "queuePattern": "*", "operations": ["Publish"]}
    ),
    Type.ADMIN_REVOKE_PERMISSION: ("superuser", "", {"username": "u", "queuePattern": "*"}),
    Type.ADMIN_LIST_USERS: ("superuser", "", None),
    Type.ADMIN_GET_USER_PERMISSIONS: ("superuser", "", {"username": "u"}),
}  # fmt: skip


def ask_vibemq(kind: int, queue: str, payload: Any, world: World, who: Who) -> str:
    with Vibe(world.broker.port) as client:
        if who.name or kind == Type.CONNECT:
            said = client.log_in(who.name, who.key)
            if said.code:
                assert said.code in ("AUTH_FAILED", "AUTH_REQUIRED")
                return UNKNOWN if kind not in _OPEN_FRAMES else ALLOWED
            if kind == Type.CONNECT:
                return ALLOWED
            who.is_let_in()
        if kind == Type.DISCONNECT:
            return ALLOWED
        said = client.ask(kind, queue, payload)
    if said.code == "NOT_AUTHENTICATED":
        return UNKNOWN
    return REFUSED if said.code in ("NOT_AUTHORIZED", "FORBIDDEN") else ALLOWED


_OPEN_FRAMES = (Type.PING, Type.DISCONNECT)


def vibemq_operations() -> Iterator[Operation]:
    for kind, (needs, queue, payload) in VIBEMQ.items():
        ask = partial(ask_vibemq, kind, queue, payload)
        made = operation("VibeMQ", Type(kind).name, "any" if needs == "info" else needs, ask)
        if needs == "info":  # which any right on the queue gives
            made = made._replace(reach="entity", rights=frozenset())
        yield made


VIBEMQ_HTTP: dict[str, list[tuple[str, str, str]]] = {
    "['metrics']": [("GET", "/metrics/", "any")],
    "['api', 'version']": [("GET", "/api/version", "any")],
    "['api', 'health']": [("GET", "/api/health", "any")],
    "['api', 'metrics']": [("GET", "/api/metrics", "any")],
    "['api', 'queues']": [("GET", "/api/queues", "any")],
    "['api', 'queues', queue]": [
        ("GET", "/api/queues/orders", "info"), ("DELETE", "/api/queues/nowhere", "manage"),
    ],
    "['api', 'queues', queue, 'messages']": [
        ("GET", "/api/queues/orders/messages", "listen"),
        ("DELETE", "/api/queues/orders/messages", "manage"),
    ],
    "['api', 'queues', queue, 'messages', id]": [
        ("GET", "/api/queues/orders/messages/m", "listen"),
        ("DELETE", "/api/queues/orders/messages/m", "manage"),
    ],
    "_": [],
}  # fmt: skip


def vibemq_http_operations() -> Iterator[Operation]:
    for method, path, needs in chain(*VIBEMQ_HTTP.values()):
        ask = partial(ask_door, "vibemq-http", method, path, None)
        name = f"{method} {path}"
        made = operation("VibeMQ HTTP", name, "any" if needs == "info" else needs, ask)
        if needs == "info":
            made = made._replace(reach="entity", rights=frozenset())
        yield made
    ask = partial(ask_door, "vibemq-http", "GET", "/health/", None)
    yield operation("VibeMQ HTTP", "GET /health/", "open", ask)


OPERATIONS = [
    *http_operations(), *rest_operations(), *localzure_operations(), *amqp_operations(),
    *pyqueue_operations(), *pyqueue_http_operations(), *vibemq_operations(),
    *vibemq_http_operations(),
]  # fmt: skip


def has_time(asked: Operation) -> bool:
    """Whether what one comes with may expire."""
    tokens = ("Service Bus HTTP", "LocalZure", "AMQP", "PyQueue", "PyQueue HTTP")
    return asked.protocol in tokens and asked.ask is not ask_sasl


# That every operation is here.


def cases(module: Any) -> set[str]:
    """What a module matches requests with in its `_answer`."""
    tree = ast.parse(inspect.getsource(module))
    return {
        ast.unparse(case.pattern)
        for function in ast.walk(tree)
        if isinstance(function, ast.AsyncFunctionDef) and function.name == "_answer"
        for node in ast.walk(function)
        if isinstance(node, ast.Match)
        for case in node.cases
    }


def test_every_operation_of_the_code_is_in_the_matrix() -> None:
    """The routes of `/api/v1` are held to their document by `tests/server/test_access.py`, those of
    Service Bus over HTTP to their table by `tests/dialects/servicebus/test_web_access.py`."""
    assert set(MANAGEMENT) == set(management._OPERATIONS)
    hot = {word.decode() for word in (*pyqueue_peer._HOT, *pyqueue_peer._GATHERED)}
    assert set(PYQUEUE) == hot | set(pyqueue_peer._SLOW)
    assert cases(pyqueue_web) == set(PYQUEUE_HTTP)
    looked = {path.split("/")[2].encode() for _, path, _, _ in PYQUEUE_HTTP["['GET', b'api', _]"]}
    assert looked == set(pyqueue_web._LOOKS)
    assert set(VIBEMQ) == set(vibemq_requests.ROUTES)
    assert cases(vibemq_web) == set(VIBEMQ_HTTP)
    served = {localzure_route(method, path) for method, path, _, _ in documents.PATHS} - {None}
    assert served == set(LOCALZURE)
    for module in (entities, messages):
        for name, made in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(made)
            answers = list(signature.parameters) == ["call"] and name[0] != "_"
            if answers and "Answer" in str(signature.return_annotation):
                assert made in LOCALZURE, name


def test_the_size_of_the_matrix(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    count = sum(len(world.everybody) + has_time(operation) for operation in OPERATIONS)
    count += len(ON_CONNECTIONS)
    with capsys.disabled():
        print(f"\nthe matrix: {len(OPERATIONS)} operations, {count} combinations")  # noqa: T201
    assert count > 4_000


# The matrix.


@pytest.mark.parametrize("asked", OPERATIONS, ids=lambda each: f"{each.protocol}: {each.name}")
def test_an_operation_is_for_who_has_the_right(world: World, asked: Operation) -> None:
    everybody = list(world.everybody)
    if has_time(asked):
        everybody.append(world.expired)
    others = [who for who in everybody if not asked.allows(who)]
    for tries in range(3):
        before = world.position()
        found = {who.label: asked.ask(world, who) for who in others}
        wanted = {who.label: REFUSED if who.is_known else UNKNOWN for who in others}
        assert found == wanted
        if world.position() == before:
            break
        assert tries < 2, "what is refused has written something"
    allowed = [who for who in everybody if asked.allows(who)]
    assert allowed
    for who in allowed:
        assert asked.ask(world, who) == ALLOWED, who.label


ON_CONNECTIONS = [
    asked
    for asked in OPERATIONS
    if asked.protocol in ("AMQP", "PyQueue", "VibeMQ")
    and asked.reach != "open"
    and asked.name not in ("AUTH", "CONNECT", "put-token", "SASL PLAIN")
]


@pytest.mark.parametrize("asked", ON_CONNECTIONS, ids=lambda each: f"{each.protocol}: {each.name}")
def test_who_is_revoked_while_he_is_connected_gets_nothing_more(
    world: World, asked: Operation
) -> None:
    who = world.going(ON_CONNECTIONS.index(asked))
    with suppress(EOFError, ConnectionError):  # the broker may have hung up
        assert asked.ask(world, who) == UNKNOWN
    assert world.position() == world.revoked_at


# A node of a cluster.

CLUSTER: dict[tuple[str, str], Any] = {
    ("GET", "/cluster"): None,
    ("GET", "/cluster/checksums"): None,
    ("POST", "/cluster/step-down"): {"to": "nobody"},
    ("POST", "/cluster/forget"): {"node": "nobody"},
    ("POST", "/cluster/hold"): {"seconds": 0},
    ("DELETE", "/cluster/hold"): None,
    ("GET", "/cluster/folder"): None,
    ("GET", "/cluster/folder/{name}"): None,
    ("DELETE", "/cluster/folder"): None,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The one node of a cluster, which leads."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "secret").write_text("a secret of the cluster that nobody can guess")
    with ExitStack() as stack:
        nats = Nats(folder / "nats")
        stack.callback(nats.close)
        flags = [flag for flag in nats.flags("a", folder / "data") if flag != "--dev"]
        broker = stack.enter_context(
            running(
                *flags, "--cluster-secret", str(folder / "secret"),
                environment={"POSTHOUSE_AUTH_FAILURES_MAX": "0"},
            )
        )  # fmt: skip
        until(lambda: broker.call("GET", "/health/leader").status == 200, "it leads")
        yield World(broker, (folder / "data" / "root-key").read_text().strip(), {}, stack)


@needs_nats
@pytest.mark.parametrize(("method", "path"), CLUSTER)
def test_a_cluster_is_for_who_manages_all(node: World, method: str, path: str) -> None:
    body = CLUSTER[method, path]
    ask = partial(ask_http, method, path.replace("{name}", "x"), body)
    test_an_operation_is_for_who_has_the_right(
        node, operation("HTTP", f"{method} {path}", "all manage", ask)
    )


@needs_nats
def test_every_operation_on_a_cluster_is_in_the_matrix(node: World) -> None:
    paths = node.broker.call("GET", "/docs/openapi.json").json["paths"]
    documented = {(m.upper(), path) for path, methods in paths.items() for m in methods}
    assert {each for each in documented if each[1].startswith("/cluster")} == set(CLUSTER)
    names = [each["operationId"] for methods in paths.values() for each in methods.values()]
    assert len(names) == len(set(names))


# Commands, below all protocols.


def sample(command: type) -> Any:
    """One of a kind, about `orders` or `default`."""
    fields = inspect.signature(command).parameters
    given: dict[str, Any] = {"queue": "orders", "name": "default", "messages": [], "rules": ()}
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name == "command":
            values[name] = Send("orders", [])
        elif name in given or field.default is inspect.Parameter.empty:
            values[name] = given.get(name, 0)
    if "properties" in fields and fields["properties"].default is inspect.Parameter.empty:
        values["properties"] = QueueProperties()
    return command(**values)


COMMANDS: Sequence[type] = [
    each for each in (*get_args(Command), *get_args(SpaceCommand)) if each.right != "broker"
]


@cache
def guard() -> Guard:
    return Guard("root", bytes(32))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.__name__)
def test_a_command_is_for_who_has_the_right_it_declares(command: Any) -> None:
    made = sample(command)
    several: list[list[Right]] = [[], ["send"], ["listen"], ["manage"], [*RIGHTS]]
    for rights in several:
        for namespace in ("default", "other", "*"):
            for entity in ("orders", "unrelated", "*"):
                grants = [Grant(namespace, entity, rights)] if rights else []
                sealed = guard().seal("ann", "key")
                accounts = {"ann": Account("ann", 7, 0, 0, grants, [sealed])}
                principal = guard().identify(accounts, "ann", "key")
                right = made.command.right if command.__name__ == "Work" else command.right
                has_right = right in rights or (right == "any" and bool(rights))
                reach = "queue" if command.__name__ == "Work" else command.reach
                on = {
                    "queue": namespace != "other" and entity in ("orders", "*"),
                    "namespace": namespace != "other" and entity == "*",
                    "broker": namespace == entity == "*",
                    "receiver": namespace != "other",
                }[reach]
                try:
                    guard().check(accounts, principal, "default", made)
                except Unauthorized:
                    assert not (has_right and on), (rights, namespace, entity)
                else:
                    assert has_right, (rights, namespace, entity)
                    assert on, (rights, namespace, entity)
                gone = {"ann": Account("ann", 8, 0, 0, grants, [sealed])}
                rotated = [guard().seal("ann", "another")]
                other_key = {"ann": Account("ann", 7, 0, 0, grants, rotated)}
                for none in ({}, gone, other_key):
                    with pytest.raises(Unauthorized):
                        guard().check(none, principal, "default", made)
