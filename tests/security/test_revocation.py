"""What lasts longer than a request ends when its principal's rights do, in every protocol.

Each thing is opened with a principal's key, the principal's account is changed, a message is sent
behind that, and the thing ends with its protocol's own error without having seen the message.
"""

import http.client
import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from posthouse.amqp.encode import described, encode_list
from posthouse.amqp.events import Arrived, Run
from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.vibemq.client import DELIVER, ERROR
from tests.dialects.vibemq.client import Client as Vibe
from tests.security.amqp import UNAUTHORIZED, Amqp, plain, sas
from tests.server.running import Reply, Running, running

ROOT = "RootManageSharedAccessKey"
BOSS = ("boss", "the boss's own")
NEW_USER, NEW_PASSWORD, GRANT, REVOKE = 50, 52, 53, 54  # VibeMQ's frames
END_SECONDS = 5.0
WAIT_MS = 20_000
NEEDS_AUTH = "Authentication required. Send AUTH command first."


class World:
    """A broker, and who sees to accounts there."""

    def __init__(self, broker: Running, root: str, stack: ExitStack) -> None:
        self.broker, self.root = broker, root
        self.boss = stack.enter_context(Vibe(broker.port))
        assert self.boss.log_in(*BOSS).code == ""
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def call(self, method: str, path: str, body: Any = None) -> Reply:
        reply = self.broker.call(method, path, body, key=self.root)
        assert reply.status < 300, reply
        return reply

    def queue(self, **properties: Any) -> str:
        name = self.name()
        self.call("PUT", f"{NS}/queues/{name}", properties)
        return name

    def send(self, queue: str, body: str, **fields: Any) -> None:
        messages = [{"body": body, **fields}]
        self.call("POST", f"{NS}/queues/{queue}/messages", {"messages": messages})

    def bodies(self, queue: str) -> list[str]:
        """Of what can be received from a queue now."""
        reply = self.call("POST", f"{NS}/queues/{queue}/receive", {"limit": 10})
        return [each["body"] for each in reply.json["messages"]]


NS = "/api/v1/namespaces/default"


class User:
    """A principal with every right on one queue, or on all, and one right elsewhere."""

    def __init__(self, world: World, entity: str) -> None:
        self.world, self.name = world, world.name()
        self._form = {"name": self.name, "grants": [
            {"rights": ["send", "listen", "manage"], "namespace": "default", "entity": entity},
            {"rights": ["listen"], "namespace": "default", "entity": "elsewhere"},
        ]}  # fmt: skip
        self.entity = entity
        self.key: str = self._make()

    def _make(self) -> str:
        key: str = self.world.call("POST", "/api/v1/principals", self._form).json["key"]
        return key

    @property
    def both(self) -> str:
        return f"{self.name}:{self.key}"

    def revoke(self) -> None:
        self.world.call("DELETE", f"/api/v1/principals/{self.name}")

    def rotate(self) -> None:
        self.world.call("POST", f"/api/v1/principals/{self.name}/rotate")

    def rotate_twice(self) -> None:
        self.rotate()
        self.rotate()

    def make_anew(self) -> None:
        self.revoke()
        self._make()

    def narrow(self) -> None:
        form = {"username": self.name, "queuePattern": self.entity}
        assert self.world.boss.ask(REVOKE, payload=form).json == form


class Cause(NamedTuple):
    name: str
    happens: Callable[[User], None]
    on_all: bool = False  # the grant is on all of the namespace
    is_known: bool = False  # the principal is somebody still, with fewer rights


CAUSES = [
    Cause("revoked", User.revoke),
    Cause("grant narrowed", User.narrow, is_known=True),
    Cause("key rotated twice", User.rotate_twice),
    Cause("namespace grant removed", User.narrow, on_all=True, is_known=True),
    Cause("made anew", User.make_anew),
]

# A thing is opened, and says what has come of it: that is called when the account has changed.
Ended = Callable[[Cause], None]
Thing = Callable[[World, User, str, ExitStack], Ended]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("revocation") / "data"
    environment = {
        "POSTHOUSE_VIBEMQ_SUPERUSER": BOSS[0],
        "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": BOSS[1],
        "POSTHOUSE_PYQUEUE_RATE": "0",
    }
    with ExitStack() as stack:
        broker = stack.enter_context(running("--data", str(folder), environment=environment))
        root = f"{ROOT}:{(folder / 'root-key').read_text().strip()}"
        yield World(broker, root, stack)


# HTTP.


class Request:
    """A request under way."""

    def __init__(
        self, world: World, stack: ExitStack, method: str, path: str, body: Any, authorization: str
    ) -> None:
        port = world.broker.port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SECONDS)
        stack.callback(self.connection.close)
        headers = {"authorization": authorization, "content-type": "application/json"}
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        self.connection.request(method, path, data, headers)

    def status(self) -> int:
        response = self.connection.getresponse()
        response.read()
        return response.status


def basic(user: User) -> str:
    return "Basic " + b64encode(user.both.encode()).decode()


def asking(method: str, path: str, body: Any, status: int = 403, *, signed: bool = False) -> Thing:
    """A long poll, which is refused."""

    def begin(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
        token = sas("http://localhost/", user.name, user.key) if signed else basic(user)
        request = Request(world, stack, method, path.format(q=queue), body, token)
        world.broker.until_idle()  # it waits

        def ended(_: Cause) -> None:
            assert request.status() == status

        return ended

    return begin


def deliveries(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    path = f"{NS}/queues/{queue}/deliveries"
    world.send(queue, "before")
    request = Request(world, stack, "GET", path, None, basic(user))
    response = request.connection.getresponse()
    assert json.loads(response.readline())["body"] == "before"

    def ended(cause: Cause) -> None:
        assert response.read().strip() == b""
        again = world.broker.call("GET", path, key=user.both)
        assert again.status == (403 if cause.is_known else 401)

    return ended


def blocked_send(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    full = queue
    world.call("PATCH", f"{NS}/queues/{full}", {"max_messages": 1, "overflow": "block"})
    world.send(full, "first")
    form = {"messages": [{"body": "late"}], "wait_ms": WAIT_MS}
    path = f"{NS}/queues/{full}/messages"
    request = Request(world, stack, "POST", path, form, basic(user))
    world.broker.until_idle()

    def ended(_: Cause) -> None:
        assert request.status() == 403
        world.call("PATCH", f"{NS}/queues/{full}", {"max_messages": 5})
        world.broker.until_idle()
        assert world.bodies(full) == ["first"]

    return ended


def held_session(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    sessions = with_sessions(world, user, queue)
    path = f"{NS}/queues/{sessions}/sessions/accept"
    reply = world.broker.call("POST", path, {"session": "s"}, key=user.both)
    assert reply.status == 200, reply

    def ended(_: Cause) -> None:
        world.call("POST", path, {"session": "s"})  # it is free

    return ended


def with_sessions(world: World, user: User, queue: str) -> str:
    """A queue with sessions that the user may use, in the place of the one that is there."""
    world.call("DELETE", f"{NS}/queues/{queue}")
    world.call("PUT", f"{NS}/queues/{queue}", {"requires_session": True, "grouping": "session"})
    world.send(queue, "before", session_id="s")
    return queue


def transaction(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    call = world.broker.call
    id = call("POST", f"{NS}/transactions", {}, key=user.both).json["transaction"]
    form = {"messages": [{"body": "late"}], "transaction": id}
    assert call("POST", f"{NS}/queues/{queue}/messages", form, key=user.both).status == 201

    def ended(cause: Cause) -> None:
        reply = call("POST", f"{NS}/transactions/{id}/commit", key=user.both)
        assert reply.status == (410 if cause.is_known else 401), reply
        assert call("POST", f"{NS}/transactions/{id}/commit", key=world.root).status == 410
        assert world.bodies(queue) == ["after"]

    return ended


def feed_poll(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    path = f"/feed?namespace=default&entity={queue}&after=last&wait_ms={WAIT_MS}"
    request = Request(world, stack, "GET", path, None, basic(user))
    world.broker.until_idle()

    def ended(cause: Cause) -> None:
        response = request.connection.getresponse()
        rows = response.read()
        if cause.happens is User.rotate_twice:  # the first of them is news, which may end the poll
            assert (response.status, rows) == (200, b"") or response.status == 403
            assert world.broker.call("GET", path, key=user.both).status == 401
        else:
            assert response.status == 403

    return ended


# AMQP.


def by_token(world: World, user: User, stack: ExitStack) -> Amqp:
    client = stack.enter_context(Amqp(world.broker.port))
    token = sas("sb://localhost/", user.name, user.key)
    assert client.put_token("sb://localhost/", token) == 202
    return client


def by_plain(world: World, user: User, stack: ExitStack) -> Amqp:
    return stack.enter_context(Amqp(world.broker.port, plain(user.name, user.key)))


def receiving(connect: Callable[[World, User, ExitStack], Amqp]) -> Thing:
    def begin(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
        client = connect(world, user, stack)
        link = client.opened(queue, sends=False)
        link.grant(10)
        client.flush()
        world.send(queue, "before")
        client.until(lambda event: isinstance(event, Arrived | Run))

        def ended(_: Cause) -> None:
            assert client.detached(link) == UNAUTHORIZED
            assert not client.told(Arrived)
            assert not client.told(Run)

        return ended

    return begin


def sending_link(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    client = by_token(world, user, stack)
    link = client.opened(queue, sends=True)
    assert client.send(link) == "accepted"

    def ended(_: Cause) -> None:
        assert client.detached(link) == UNAUTHORIZED

    return ended


def session_link(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    sessions = with_sessions(world, user, queue)
    client = by_token(world, user, stack)
    link = client.opened(sessions, sends=False, session="s")

    def ended(_: Cause) -> None:
        assert client.detached(link) == UNAUTHORIZED
        world.call("POST", f"{NS}/queues/{sessions}/sessions/accept", {"session": "s"})

    return ended


def waiting_for_a_session(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    sessions = with_sessions(world, user, queue)
    world.call("POST", f"{NS}/queues/{sessions}/purge", {})
    client = by_token(world, user, stack)
    link = client.link(sessions, sends=False, any_session=True)
    world.broker.until_idle()

    def ended(_: Cause) -> None:
        assert client.detached(link) == UNAUTHORIZED

    return ended


def management(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    client = by_token(world, user, stack)
    asks = client.opened(f"{queue}/$management", sends=True)
    hears = client.opened(f"{queue}/$management", sends=False)

    def ended(_: Cause) -> None:
        assert client.detached(asks) == UNAUTHORIZED
        assert client.detached(hears) == UNAUTHORIZED

    return ended


def coordinator(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    client = by_token(world, user, stack)
    link = client.coordinator()
    assert client.why(link) is None
    declare = described(0x77, described(0x31, encode_list(())))
    assert client.send(link, declare) == "accepted"

    def ended(cause: Cause) -> None:
        if cause.is_known:  # it may be for what is left
            assert client.send(link, declare) == "accepted"
        else:
            assert client.detached(link) == UNAUTHORIZED

    return ended


# PyQueue and VibeMQ.


def pyqueue(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    client = stack.enter_context(PyQueue(world.broker.port))
    client.ok("AUTH", {"type": "apikey", "value": user.key})
    client.ok("HEARTBEAT", {"worker_id": world.name()})
    world.send(queue, "before")
    reply = client.call("PULL", {"queue": queue})
    assert reply.word == "JOB"

    def ended(cause: Cause) -> None:
        if cause.is_known:
            wanted = f"Unauthorized: {user.name} cannot PULL on {queue}"
            assert client.error("PULL", {"queue": queue}) == wanted
        else:
            client.socket.settimeout(END_SECONDS)
            reply = client.read()
            assert (reply.word, reply.text) == ("ERROR", NEEDS_AUTH)
            assert client.is_closed()
        assert sorted(world.bodies(queue)) == ["after", "before"]  # what it held is free

    return ended


def vibemq(world: World, user: User, queue: str, stack: ExitStack) -> Ended:
    client = stack.enter_context(Vibe(world.broker.port))
    assert client.log_in(user.name, user.key).code == ""
    asked = client.subscribe(queue)
    client.socket.settimeout(END_SECONDS)

    def ended(cause: Cause) -> None:
        said = client.until(lambda said: said.type == ERROR)
        wanted = "NOT_AUTHORIZED" if cause.is_known else "NOT_AUTHENTICATED"
        assert said.code == wanted
        if cause.is_known:
            assert said.id == asked.id
            assert client.has_nothing()
        else:
            assert client.is_closed()
        assert not [each for each in client.heard if each.type == DELIVER]

    return ended


THINGS: dict[str, Thing] = {
    "HTTP stream of deliveries": deliveries,
    "HTTP receive": asking("POST", NS + "/queues/{q}/receive", {"wait_ms": WAIT_MS}),
    "HTTP blocked send": blocked_send,
    "HTTP session": held_session,
    "HTTP transaction": transaction,
    "feed long poll": feed_poll,
    "REST receive": asking("POST", "/{q}/messages/head?timeout=20", b"", 401, signed=True),
    "LocalZure receive": asking(
        "POST", "/servicebus/default/queues/{q}/messages/receive", {"timeout": 20}, signed=True
    ),
    "AMQP receiver by token": receiving(by_token),
    "AMQP receiver by SASL": receiving(by_plain),
    "AMQP sender": sending_link,
    "AMQP session": session_link,
    "AMQP wait for a session": waiting_for_a_session,
    "AMQP $management": management,
    "AMQP coordinator": coordinator,
    "PyQueue connection": pyqueue,
    "VibeMQ subscription": vibemq,
}
SELF_SENT = ("HTTP blocked send", "HTTP session", "AMQP session", "AMQP wait for a session")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("thing", THINGS)
def test_it_ends_with_the_rights_of_who_opened_it(world: World, thing: str, cause: Cause) -> None:
    queue = world.queue(lock_ms=300_000)
    user = User(world, "*" if cause.on_all else queue)
    with ExitStack() as stack:
        ended = THINGS[thing](world, user, queue, stack)
        cause.happens(user)
        if thing not in SELF_SENT:
            world.send(queue, "after")
        ended(cause)


@pytest.mark.parametrize("thing", THINGS)
def test_it_goes_on_while_one_of_two_keys_is_rotated_and_others_are_revoked(
    world: World, thing: str
) -> None:
    """Else what ends would prove nothing."""
    queue = world.queue(lock_ms=300_000)
    user, other = User(world, queue), User(world, queue)
    with ExitStack() as stack:
        ended = THINGS[thing](world, user, queue, stack)
        user.rotate()
        other.revoke()
        done = threading.Event()

        def wait() -> None:
            try:
                ended(CAUSES[0])
            except (AssertionError, OSError, EOFError, TimeoutError, http.client.HTTPException):
                pass
            else:
                done.set()

        watching = threading.Thread(target=wait, daemon=True)
        watching.start()
        watching.join(0.5)
        assert not done.is_set()


def test_a_feed_that_is_being_read_is_cut_off(world: World) -> None:
    queue = world.queue()
    user = User(world, queue)
    for _ in range(24):
        world.send(queue, "x" * (1 << 20))
    address = ("127.0.0.1", world.broker.port)
    with socket.create_connection(address, timeout=END_SECONDS) as reading:
        path = f"/feed?namespace=default&entity={queue}&limit=100000"
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: {basic(user)}\r\n\r\n"
        reading.sendall(head.encode())
        seen = reading.recv(1 << 16)
        assert seen.startswith(b"HTTP/1.1 200")
        user.revoke()
        try:
            while more := reading.recv(1 << 20):
                seen = (seen + more)[-64:]
        except ConnectionResetError:
            pass
    assert not seen.endswith(b"0\r\n\r\n")


def test_a_connection_ends_when_its_password_is_changed(world: World) -> None:
    name, queue = world.name(), world.queue()
    world.boss.ask(NEW_USER, payload={"username": name, "password": "first"})
    form = {"username": name, "queuePattern": queue, "operations": ["Subscribe"]}
    world.boss.ask(GRANT, payload=form)
    with Vibe(world.broker.port, seconds=END_SECONDS) as client:
        assert client.log_in(name, "first").code == ""
        client.subscribe(queue)
        world.boss.ask(NEW_PASSWORD, payload={"username": name, "newPassword": "second"})
        assert client.next().code == "NOT_AUTHENTICATED"
        assert client.is_closed()
    with Vibe(world.broker.port) as client:
        assert client.log_in(name, "second").code == ""


def test_a_link_stays_whose_token_was_renewed_with_the_other_key(world: World) -> None:
    """As keys are rotated: clients go over to the second, and the first is made anew."""
    queue = world.queue()
    user = User(world, queue)
    second = world.call("POST", f"/api/v1/principals/{user.name}/rotate").json["key"]
    audience = f"sb://localhost/{queue}"
    with ExitStack() as stack:
        client = stack.enter_context(Amqp(world.broker.port))
        assert client.put_token(audience, sas(audience, user.name, user.key)) == 202
        link = client.opened(queue, sends=True)
        assert client.put_token(audience, sas(audience, user.name, second)) == 202
        user.rotate()  # the first key is gone
        assert client.send(link) == "accepted"
        user.rotate()  # and the second
        assert client.detached(link) == UNAUTHORIZED


def test_a_link_ends_with_its_token_unless_that_is_renewed(world: World) -> None:
    queue, other = world.queue(), world.queue()
    user = User(world, "*")
    with ExitStack() as stack:
        client = stack.enter_context(Amqp(world.broker.port))
        links = {}
        for name in (queue, other):
            audience = f"sb://localhost/{name}"
            assert client.put_token(audience, sas(audience, user.name, user.key, 2)) == 202
            links[name] = client.opened(name, sends=True)
        audience = f"sb://localhost/{other}"
        assert client.put_token(audience, sas(audience, user.name, user.key)) == 202
        begun = time.monotonic()
        assert client.detached(links[queue], 2 + END_SECONDS) == UNAUTHORIZED
        assert time.monotonic() - begun < 2 + END_SECONDS
        assert client.send(links[other]) == "accepted"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/{q}/messages/head?timeout=30", b"", 204),
        ("/servicebus/default/queues/{q}/messages/receive", {"timeout": 30}, 200),
    ],
)
def test_a_request_does_not_wait_longer_than_its_token_is_good(
    world: World, path: str, body: Any, status: int
) -> None:
    queue = world.queue()
    user = User(world, queue)
    with ExitStack() as stack:
        token = sas("http://localhost/", user.name, user.key, 2)
        request = Request(world, stack, "POST", path.format(q=queue), body, token)
        assert request.connection.sock is not None
        request.connection.sock.settimeout(2 + END_SECONDS)
        assert request.status() == status
    world.send(queue, "after")
    assert world.bodies(queue) == ["after"]
