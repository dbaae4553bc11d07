"""Everything a client can make is refused at some point, takes no more memory than it may, and is
given back when it is deleted: seen from outside, on a broker that has little memory.

`TORTURE=1` makes all kinds of things, `SOAK=1` with more memory and more rounds. A command, a word
of PyQueue, a frame of VibeMQ or AMQP that is new has to be named at the end of this file, with the
kind of things that it makes, or why it makes none.
"""

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from posthouse.amqp import performatives
from posthouse.amqp.events import Attached, Begun, Closed, Detached
from posthouse.amqp.types import Described, ULong
from posthouse.core import commands, namespaces
from posthouse.dialects.pyqueue import peer as pyqueue_peer
from posthouse.dialects.pyqueue.workers import ID_CHARS_MAX, WORKERS_MAX
from posthouse.dialects.vibemq import requests as vibemq_requests
from posthouse.dialects.vibemq.codec import Type
from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.pyqueue.client import frame
from tests.dialects.vibemq.client import CONNECT_ACK, ERROR
from tests.dialects.vibemq.client import Client as VibeMq
from tests.security.amqp import Amqp, plain, sas
from tests.security.figures import wait_for_connections
from tests.server.running import Running

ALL = bool(os.environ.get("TORTURE"))
SOAK = bool(os.environ.get("SOAK"))
LIMIT_MB = 64 if SOAK else 4
LIMIT = LIMIT_MB << 20
ROUNDS = 5 if SOAK else 2
MANY = 1_000_000 if SOAK else 30_000
NS = "/api/v1/namespaces/default"
SUB = f"{NS}/topics/news/subscriptions"
GRANTS = [{"namespace": "*", "entity": "*", "rights": ["manage", "send", "listen"]}]
LARGE = "x" * 100_000
ROOT, DEV_KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
GIVEN_BACK_SECONDS = 120  # at most, where the machine is busy
JOURNAL_BYTES = 6 << 20  # segments of 1 MiB: the open one, the next, and what is folded next


class Broker:
    """With little memory and a journal of small files, of which it keeps no more than it needs."""

    def __init__(self, folder: Path) -> None:
        self.running = Running(
            "--data", str(folder), "--dev", "--durability", "memory", "--principal-share", "100",
            "--memory-limit", f"{LIMIT_MB}M", "--segment-size", "1M", "--keep", "0",
            "--keep-size", "0", "--fold-size", "1M",
        )  # fmt: skip
        self._http = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=60)
        self._amqp: Amqp | None = None
        self._pyqueue: PyQueue | None = None
        self._vibemq: VibeMq | None = None

    @property
    def amqp(self) -> Amqp:
        if self._amqp is None:
            self._amqp = Amqp(self.running.port, plain(ROOT, DEV_KEY))
        return self._amqp

    @property
    def pyqueue(self) -> PyQueue:
        if self._pyqueue is None:
            self._pyqueue = PyQueue(self.running.port)
        return self._pyqueue

    @property
    def vibemq(self) -> VibeMq:
        if self._vibemq is None:
            self._vibemq = VibeMq(self.running.port)
            assert self._vibemq.connect().type == CONNECT_ACK
        return self._vibemq

    def hang_up(self) -> None:
        """All connections but the one that asks; until the broker has noticed."""
        for client in (self._amqp, self._pyqueue, self._vibemq):
            if client is not None:
                client.socket.close()
        self._amqp = self._pyqueue = self._vibemq = None
        assert wait_for_connections(self.running, 1) <= 1

    def ask(self, method: str, path: str, form: object = None) -> tuple[int, Any]:
        data = None if form is None else json.dumps(form)
        self._http.request(method, path, data, {"content-type": "application/json"})
        response = self._http.getresponse()
        said = response.read()
        return response.status, json.loads(said) if said else None

    def done(self, method: str, path: str, form: object = None) -> Any:
        status, said = self.ask(method, path, form)
        assert status < 300, (status, said)
        return said

    def close(self) -> None:
        self.hang_up()
        self._http.close()
        self.running.stop()

    def pass_time(self, ms: int) -> None:
        self.done("POST", f"{NS}/clock", {"advance_ms": ms})

    @property
    def held_bytes(self) -> int:
        self._http.request("GET", "/metrics")
        lines = self._http.getresponse().read().decode().splitlines()
        [held] = [line for line in lines if line.startswith("posthouse_memory_held_bytes")]
        return round(float(held.split()[-1]))

    @property
    def rss_bytes(self) -> int:
        fields = Path(f"/proc/{self.running.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def journal_bytes(self) -> int:
        return int(self.done("GET", "/api/v1/store")["size_bytes"])


@contextmanager
def a_broker(folder: Path) -> Iterator[Broker]:
    broker = Broker(folder)
    try:
        broker.done("PUT", f"{NS}/queues/q", {})
        broker.done("PUT", f"{NS}/queues/held", {"grouping": "session"})
        broker.done("PUT", f"{NS}/queues/unique", {"duplicate_detection": True})
        broker.done("PUT", f"{NS}/queues/other", {})
        broker.done("PUT", f"{NS}/topics/news", {})
        for n in range(40):
            broker.done("PUT", f"{SUB}/rules{n}", {})
        yield broker
    finally:
        broker.close()


Refusal = str  # what was said
Make = Callable[[Broker, int], tuple[int, Any]]  # the n-th of them


def _all(path: str) -> Callable[[Broker, int], None]:
    """Deletes them one by one, by their numbers."""

    def delete(broker: Broker, made: int) -> None:
        for n in range(made):
            status, said = broker.ask("DELETE", path.format(n))
            assert status in (200, 204, 404), said

    return delete


def _drained(queue: str) -> Callable[[Broker, int], None]:
    def delete(broker: Broker, _: int) -> None:
        states = ["active", "scheduled", "deferred", "delayed"]
        first = 0
        while first is not None:
            form = {"states": states, "first": first}
            first = broker.done("POST", f"{NS}/queues/{queue}/purge", form)["next"]

    return delete


def _recreated(queue: str, form: object) -> Callable[[Broker, int], None]:
    def delete(broker: Broker, _: int) -> None:
        broker.done("DELETE", f"{NS}/queues/{queue}")
        broker.done("PUT", f"{NS}/queues/{queue}", form)

    return delete


def _send(queue: str, **fields: object) -> Make:
    def send(broker: Broker, n: int) -> tuple[int, Any]:
        message = {"body": "x", "id": f"{n}-".ljust(200, "x"), **fields}
        return broker.ask("POST", f"{NS}/queues/{queue}/messages", {"messages": [message] * 20})

    return send


def _deferred(broker: Broker, n: int) -> tuple[int, Any]:
    """Messages with much that is noted of them."""
    status, said = broker.ask("POST", f"{NS}/queues/q/messages", {"messages": [{"body": "x"}]})
    if status != 201:
        return status, said
    received = broker.done("POST", f"{NS}/queues/q/receive", {"limit": 1})
    token = received["messages"][0]["token"]
    form = {"locks": [token], "properties": {"a": "x" * 30_000}}
    return broker.ask("POST", f"{NS}/queues/q/defer", form)


def _dead(broker: Broker, n: int) -> tuple[int, Any]:
    status, said = broker.ask("POST", f"{NS}/queues/q/messages", {"messages": [{"body": "x"}]})
    if status != 201:
        return status, said
    received = broker.done("POST", f"{NS}/queues/q/receive", {"limit": 1})
    form = {"locks": [received["messages"][0]["token"]], "reason": "x" * 4_000}
    return broker.ask("POST", f"{NS}/queues/q/dead-letter", form)


def _session(broker: Broker, n: int) -> tuple[int, Any]:
    form = {"session": f"{n}-".ljust(100, "x"), "lock_ms": 60_000}
    return broker.ask("POST", f"{NS}/queues/held/sessions/accept", form)


def _session_state(broker: Broker, n: int) -> tuple[int, Any]:
    status, said = _session(broker, n)
    if status >= 300:
        return status, said
    return broker.ask(
        "PUT", f"{NS}/queues/held/sessions/held/{said['token']}/state", {"state_base64": LARGE}
    )


def _rule(broker: Broker, n: int) -> tuple[int, Any]:
    form = {"filter": {"kind": "sql", "expression": "a = @b", "parameters": {"b": "x" * 60_000}}}
    return broker.ask("PUT", f"{SUB}/rules{n % 40}/rules/r{n}", form)


def _no_rules(broker: Broker, made: int) -> None:
    for n in range(made):
        broker.ask("DELETE", f"{SUB}/rules{n % 40}/rules/r{n}")


class Kind(NamedTuple):
    make: Make
    delete: Callable[[Broker, int], None]
    says: str = "memory"  # what the refusal is about


def _schedule(broker: Broker, n: int) -> tuple[int, Any]:
    form = {"when": "every 1 hour", "queue": "q", "message": {"body": LARGE}}
    return broker.ask("PUT", f"{NS}/schedules/s{n}", form)


def _transaction(broker: Broker, n: int) -> tuple[int, Any]:
    return broker.ask("POST", f"{NS}/transactions", {"timeout_ms": 60_000})


def _send_in_a_transaction(broker: Broker, n: int) -> tuple[int, Any]:
    status, said = broker.ask("POST", f"{NS}/transactions", {"timeout_ms": 60_000})
    if status != 201:
        return status, said
    TRANSACTIONS.append(said["transaction"])
    form = {"messages": [{"body": LARGE}], "transaction": said["transaction"]}
    return broker.ask("POST", f"{NS}/queues/q/messages", form)


TRANSACTIONS: list[str] = []


def _roll_back(broker: Broker, _: int) -> None:
    for transaction in TRANSACTIONS:
        broker.ask("POST", f"{NS}/transactions/{transaction}/rollback")
    TRANSACTIONS.clear()


def _amqp_session(broker: Broker, n: int) -> tuple[int, Any]:
    """A connection has so many; with one more it is closed."""
    client = broker.amqp
    client.amqp.begin()
    return _told(client.until(lambda event: isinstance(event, Begun | Closed)))


def _amqp_link(*, sends: bool) -> Make:
    def attach(broker: Broker, n: int) -> tuple[int, Any]:
        client = broker.amqp
        if n % 1_000 == 0:
            client.last_session = client.amqp.begin()  # type: ignore[attr-defined]
        source, target = (Described(ULong(code), ["q"]) for code in (0x28, 0x29))
        link = client.last_session.attach(  # type: ignore[attr-defined]
            f"n{n}", sends=sends, source=source, target=target, settled=False
        )
        told = client.until(lambda event: isinstance(event, Attached | Closed))
        if isinstance(told, Attached) and client._is_refused(link):
            told = client.until(lambda event: isinstance(event, Detached) and event.link is link)
        return _told(told)

    return attach


def _told(event: object) -> tuple[int, Any]:
    """In the words of the others."""
    if not isinstance(event, Detached | Closed):
        return 201, None
    assert event.problem is not None
    assert event.problem.condition in (
        "amqp:resource-limit-exceeded", "amqp:connection:framing-error", "com.microsoft:server-busy"
    ), event.problem  # fmt: skip
    return 503, {"detail": str(event.problem)}


def _hang_up(broker: Broker, _: int) -> None:
    broker.hang_up()


def _binding(broker: Broker, n: int) -> tuple[int, Any]:
    pattern = f"{n}.".ljust(190, "x") + ".*"
    reply = broker.pyqueue.call("SUBSCRIBE", {"topic": pattern, "queue": "q"})
    return (201, None) if reply.word == "OK" else (503, {"detail": reply.text})


def _unbind(broker: Broker, made: int) -> None:
    for n in range(made):
        broker.pyqueue.ok("UNSUBSCRIBE", {"topic": f"{n}.".ljust(190, "x") + ".*", "queue": "q"})


def _task(word: str, form: dict[str, Any]) -> Make:
    def push(broker: Broker, n: int) -> tuple[int, Any]:
        reply = broker.pyqueue.call(word, form)
        return (201, None) if reply.word == "OK" else (503, {"detail": reply.text})

    return push


def _no_schedules(broker: Broker, _: int) -> None:
    while listed := broker.done("GET", f"{NS}/schedules")["schedules"]:
        for schedule in listed:
            broker.done("DELETE", f"{NS}/schedules/{schedule['name']}")


PERMISSIONS_OF_ONE = 40  # for one name: to make a user takes long, for its password is hashed


def _user(broker: Broker, n: int) -> tuple[int, Any]:
    """One more user, or one more permission of the last."""
    name = f"u{n // PERMISSIONS_OF_ONE}"
    if n % PERMISSIONS_OF_ONE == 0:
        form: Any = {"username": name, "password": "p"}
        said = broker.vibemq.ask(Type.ADMIN_CREATE_USER, payload=form)
    else:
        pattern = f"{n}-".ljust(200, "x")
        form = {"username": name, "queuePattern": pattern, "operations": ["Publish", "Subscribe"]}
        said = broker.vibemq.ask(Type.ADMIN_GRANT_PERMISSION, payload=form)
    return (503, {"detail": said.text}) if said.type == ERROR else (201, None)


def _no_users(broker: Broker, made: int) -> None:
    for n in range(made // PERMISSIONS_OF_ONE + 1):
        broker.vibemq.ask(Type.ADMIN_DELETE_USER, payload={"username": f"u{n}"})


RULE = (
    '<AuthorizationRule i:type="SharedAccessAuthorizationRule" xmlns:i='
    '"http://www.w3.org/2001/XMLSchema-instance"><ClaimType>SharedAccessKey</ClaimType>'
    "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights>"
    "<KeyName>rule{}</KeyName><PrimaryKey>{}</PrimaryKey></AuthorizationRule>"
)
RULED = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription'
    ' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<AuthorizationRules>{}</AuthorizationRules></QueueDescription></content></entry>"
)


def _queue_with_keys(broker: Broker, n: int) -> tuple[int, Any]:
    document = RULED.format("".join(RULE.format(at, "k" * 200) for at in range(12)))
    headers = {"authorization": sas("http://localhost/", ROOT, DEV_KEY)}
    reply = broker.running.call(
        "PUT", f"/n{n}?api-version=2021-05", raw=document.encode(), headers=headers
    )
    return reply.status, {"detail": reply.body.decode()}


HELD = {"grouping": "session"}
KINDS: dict[str, Kind] = {
    "messages": Kind(_send("q"), _drained("q")),
    "scheduled messages": Kind(_send("q", due_ms=4_000_000_000_000), _drained("q")),
    "deferred messages": Kind(_deferred, _drained("q")),
    "dead letters": Kind(_dead, _drained("q%2F$dead")),
    "ids of duplicate detection": Kind(
        _send("unique"), _recreated("unique", {"duplicate_detection": True})),
    "sessions": Kind(_session, _recreated("held", HELD)),
    "states of sessions": Kind(_session_state, _recreated("held", HELD)),
    "queues": Kind(lambda b, n: b.ask("PUT", f"{NS}/queues/n{n}", {}), _all(NS + "/queues/n{}")),
    "queues that say much": Kind(
        lambda b, n: b.ask("PUT", f"{NS}/queues/n{n}", {"metadata": "x" * 4_000}),
        _all(NS + "/queues/n{}")),
    "topics": Kind(lambda b, n: b.ask("PUT", f"{NS}/topics/n{n}", {}), _all(NS + "/topics/n{}")),
    "subscriptions": Kind(lambda b, n: b.ask("PUT", f"{SUB}/n{n}", {}), _all(SUB + "/n{}")),
    "rules": Kind(_rule, _no_rules),
    "schedules": Kind(_schedule, _all(NS + "/schedules/s{}")),
    "namespaces": Kind(
        lambda b, n: b.ask("PUT", f"/api/v1/namespaces/n{n}"), _all("/api/v1/namespaces/n{}")),
    "principals": Kind(
        lambda b, n: b.ask("POST", "/api/v1/principals", {"name": f"p{n}", "grants": GRANTS * 50}),
        _all("/api/v1/principals/p{}")),
    "readers": Kind(
        lambda b, n: b.ask("PUT", f"/api/v1/readers/n{n}", {"position": 0}),
        _all("/api/v1/readers/n{}"), "readers"),
    "transactions": Kind(_transaction, lambda b, _: b.pass_time(61_000)),
    "messages in transactions": Kind(_send_in_a_transaction, _roll_back),
    "AMQP sessions": Kind(_amqp_session, _hang_up, "channel"),
    "AMQP links that send": Kind(_amqp_link(sends=True), _hang_up, "links"),
    "AMQP links that receive": Kind(_amqp_link(sends=False), _hang_up, "too many receivers"),
    "tasks of PyQueue": Kind(
        _task("PUSH", {"payload": LARGE[:2_000], "queue": "q"}), _drained("q")),
    "schedules of PyQueue": Kind(
        _task("SCHEDULE", {"payload": LARGE, "schedule": "every 1 hours", "queue": "q"}),
        _no_schedules),
    "bindings of PyQueue": Kind(_binding, _unbind, ""),
    "users of VibeMQ": Kind(_user, _no_users),
    "keys of queues": Kind(_queue_with_keys, _all(NS + "/queues/n{}")),
}  # fmt: skip
QUICK = (
    "messages", "sessions", "rules", "schedules", "queues", "principals", "AMQP sessions",
    "AMQP links that receive", "bindings of PyQueue", "keys of queues",
)  # fmt: skip


def make_until_refused(broker: Broker, kind: Kind) -> int:
    """How many there can be; what the refusal says is that which is documented."""
    for n in range(MANY):
        status, said = kind.make(broker, n)
        if status >= 300:
            assert status in (429, 503, 507), said
            assert kind.says in said["detail"], said
            return n
    raise AssertionError("there is no end of it")


@pytest.mark.parametrize("name", KINDS if SOAK or ALL else QUICK)
def test_what_clients_make_ends_somewhere_and_is_given_back(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    with a_broker(tmp_path / "data") as broker:
        broker.running.send("other", "mine")
        rss, held = broker.rss_bytes, broker.held_bytes
        counts = []
        for n in range(ROUNDS):
            counts.append(make_until_refused(broker, kind))
            assert broker.held_bytes < 1.3 * LIMIT
            assert broker.rss_bytes - rss < 8 * LIMIT + (48 << 20)  # with what is under way
            if n == 0:  # others are served meanwhile
                [message] = broker.running.receive("other", delete=True)
                assert message["body"] == "mine"
            kind.delete(broker, counts[-1])
            # What is deleted is freed bit by bit, and counted again when others have sent enough.
            deadline = time.monotonic() + GIVEN_BACK_SECONDS
            while (left := broker.held_bytes - held) > 0.1 * LIMIT:
                assert time.monotonic() < deadline, f"{left} bytes are held"
                broker.running.send("other", *["x"] * 100)
                broker.running.receive("other", 100, delete=True)
        # What was given back can be used again, each time.
        assert min(counts) > 0.7 * counts[0] > 0
        # The journal is trimmed up to the older of two snapshots, which are of whole segments.
        deadline = time.monotonic() + GIVEN_BACK_SECONDS
        while (left := broker.journal_bytes) > max(JOURNAL_BYTES, LIMIT):
            assert time.monotonic() < deadline, f"the journal has {left} bytes"
            broker.running.send("other", *[LARGE] * 12)
            broker.running.receive("other", 12, delete=True)
            broker.done("POST", "/api/v1/store/snapshot")


def test_workers_of_pyqueue_are_forgotten_where_there_are_too_many(tmp_path: Path) -> None:
    """A heartbeat is never refused: the worker that was heard of longest ago gives way."""
    more = 2_000
    with a_broker(tmp_path / "data") as broker:
        rss = broker.rss_bytes
        for first in range(0, WORKERS_MAX + more, 500):
            ids = [f"{n}-".ljust(ID_CHARS_MAX, "x") for n in range(first, first + 500)]
            broker.pyqueue.send(b"".join(frame("HEARTBEAT", {"worker_id": id}) for id in ids))
            for _ in ids:
                assert broker.pyqueue.read().word == "OK"
        listed = broker.pyqueue.ok("ADMIN_LIST_WORKERS")
        assert 0 < len(json.dumps(listed)) < WORKERS_MAX * (ID_CHARS_MAX + 200)
        assert broker.rss_bytes - rss < 48 << 20
        assert broker.held_bytes < LIMIT


# That nothing is missing.

BROKERS_OWN = "only the broker itself gives it"
LOOKS = "it changes nothing"
ENDS = "it ends or deletes something"
CHANGES = "it changes what is there, within the bounds in which that could be made"
OF_COMMANDS: dict[str, str] = {
    **dict.fromkeys((
        "Start", "Tick", "StepClock", "SetClock", "TurnClockBack", "SetFanout", "Move"),
        BROKERS_OWN),
    **dict.fromkeys((
        "GetQueue", "Look", "ListQueues", "ListSubscriptions", "ListRules", "Peek",
        "GetSessionState",
        "ListSessions", "ListSchedules", "ListNamespaces", "ListAccounts", "ListReaders"), LOOKS),
    **dict.fromkeys((
        "DeleteQueue", "RemoveRule", "Purge", "Cancel", "Detach", "Complete", "Release",
        "ReleaseSession", "CancelSchedule", "RollBack", "DeleteNamespace", "RevokeAccount",
        "RemoveReader"), ENDS),
    **dict.fromkeys((
        "Pause", "Resume", "Renew", "RenewSession", "PauseSchedule", "ResumeSchedule", "Credit"),
        CHANGES),
    "Commit": "what it makes counts in its transaction already",
    "ReceiveDeferred": "a lock on each message that is there, which counts with it",
    "Receive": "the same; who waits is bounded by connections, as links are",
    "Abandon": "what is noted of a message, as for one that is deferred",
    "Resubmit": "messages, in the place of dead letters",
    "UpdateQueue": "what a queue says of itself, as when it is made",
    "Send": "messages", "CreateQueue": "queues", "CreateSubscription": "subscriptions",
    "SetRule": "rules", "Attach": "AMQP links that receive", "Defer": "deferred messages",
    "DeadLetter": "dead letters", "AcceptSession": "sessions",
    "SetSessionState": "states of sessions", "SetSchedule": "schedules", "Begin": "transactions",
    "Work": "messages in transactions", "CreateNamespace": "namespaces", "SetAccount": "principals",
    "SetReader": "readers",
}  # fmt: skip
OF_PYQUEUE: dict[str, str] = {
    **dict.fromkeys((
        "PING", "STATS", "ADMIN_LIST_QUEUES", "ADMIN_QUEUE_INFO", "ADMIN_GET_TASK",
        "ADMIN_LIST_TASKS", "ADMIN_LIST_WORKERS", "ADMIN_GET_DLQ", "ADMIN_HEALTH",
        "ADMIN_QUEUE_METRICS"), LOOKS),
    **dict.fromkeys((
        "ACK", "UNSUBSCRIBE", "ROLLBACK_TX", "ADMIN_PURGE_QUEUE", "ADMIN_DELETE_QUEUE",
        "ADMIN_CANCEL_TASK", "ADMIN_PURGE_DLQ"), ENDS),
    **dict.fromkeys((
        "NACK", "ADMIN_SET_QUEUE_TTL", "ADMIN_SET_QUEUE_LIMIT", "ADMIN_REQUEUE_DLQ", "COMMIT_TX"),
        CHANGES),
    "AUTH": "of connections, which are bounded by themselves",
    "HEARTBEAT": "workers: they are forgotten, and have a test of their own",
    "PULL": "a lock on a message that is there", "PULL_BATCH": "a lock on each message",
    "PUSH": "tasks of PyQueue", "PUSH_BATCH": "tasks of PyQueue", "PUBLISH": "tasks of PyQueue",
    "ADMIN_REPLAY": "tasks of PyQueue", "SCHEDULE": "schedules of PyQueue",
    "SUBSCRIBE": "bindings of PyQueue", "BEGIN_TX": "transactions",
}  # fmt: skip
OF_VIBEMQ: dict[str, str] = {
    **dict.fromkeys((
        "PING", "QUEUE_INFO", "LIST_QUEUES", "ADMIN_LIST_USERS", "ADMIN_GET_USER_PERMISSIONS"),
        LOOKS),
    **dict.fromkeys((
        "DISCONNECT", "UNSUBSCRIBE", "DELETE_QUEUE", "ADMIN_DELETE_USER",
        "ADMIN_REVOKE_PERMISSION"), ENDS),
    "ADMIN_CHANGE_PASSWORD": CHANGES,
    "CONNECT": "of connections, which are bounded by themselves",
    "SUBSCRIBE": "AMQP links that receive", "PUBLISH": "messages", "CREATE_QUEUE": "queues",
    "ADMIN_CREATE_USER": "users of VibeMQ", "ADMIN_GRANT_PERMISSION": "users of VibeMQ",
}  # fmt: skip
OF_AMQP: dict[str, str] = {
    **dict.fromkeys(("Detach", "End", "Close"), ENDS),
    **dict.fromkeys(("Flow", "Disposition"), CHANGES),
    **dict.fromkeys((
        "Open", "SaslMechanisms", "SaslInit", "SaslChallenge", "SaslResponse", "SaslOutcome"),
        "of connections, which are bounded by themselves"),
    "Begin": "AMQP sessions", "Attach": "AMQP links that send", "Transfer": "messages",
}  # fmt: skip


def _names(union: object) -> set[str]:
    return {kind.__name__ for kind in get_args(union)}


@pytest.mark.parametrize(
    ("named", "there"),
    [
        (OF_COMMANDS, _names(commands.Command) | _names(namespaces.SpaceCommand)),
        (
            OF_PYQUEUE,
            {word.decode() for word in (*pyqueue_peer._HOT, *pyqueue_peer._GATHERED)}
            | set(pyqueue_peer._SLOW),
        ),
        (OF_VIBEMQ, {Type(kind).name for kind in vibemq_requests.ROUTES}),
        (OF_AMQP, {kind.__name__ for kind in performatives.Performative.__subclasses__()}),
    ],
    ids=["commands", "PyQueue", "VibeMQ", "AMQP"],
)
def test_whatever_can_be_asked_for_is_in_the_table_or_says_why_not(
    named: dict[str, str], there: set[str]
) -> None:
    assert set(named) == there
    for name, kind in named.items():
        assert kind in KINDS or " " in kind, name


def test_no_kind_of_things_is_in_the_table_for_nothing() -> None:
    """Each is made by something, or is a form of such a thing."""
    made = {*OF_COMMANDS.values(), *OF_PYQUEUE.values(), *OF_VIBEMQ.values(), *OF_AMQP.values()}
    forms = {
        "scheduled messages", "ids of duplicate detection", "queues that say much", "topics",
        "keys of queues",
    }  # fmt: skip
    assert set(KINDS) - made == forms
