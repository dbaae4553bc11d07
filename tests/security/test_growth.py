"""Everything a client can make is refused at some point, takes no more memory than it may, and is
given back when it is deleted: seen from outside, on a broker that has little memory.

`TORTURE=1` makes all kinds of things, `SOAK=1` with more memory and more rounds.
"""

import http.client
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.dialects.pyqueue.client import Client as PyQueue
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


class Broker:
    """With little memory and a journal of small files, of which it keeps no more than it needs."""

    def __init__(self, folder: Path) -> None:
        self.running = Running(
            "--data", str(folder), "--dev", "--durability", "memory", "--principal-share", "100",
            "--memory-limit", f"{LIMIT_MB}M", "--segment-size", "1M", "--keep", "0",
            "--keep-size", "0", "--fold-size", "1M",
        )  # fmt: skip
        self._http = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=60)

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
        self._http.close()
        self.running.stop()

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
}  # fmt: skip
QUICK = ("messages", "sessions", "rules", "schedules", "queues", "principals")


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
        rss = broker.rss_bytes
        counts = []
        for n in range(ROUNDS):
            counts.append(make_until_refused(broker, kind))
            assert broker.held_bytes < 1.3 * LIMIT
            assert broker.rss_bytes - rss < 8 * LIMIT + (48 << 20)  # with what is under way
            if n == 0:  # others are served meanwhile
                [message] = broker.running.receive("other")
                assert message["body"] == "mine"
            kind.delete(broker, counts[-1])
        # What was given back can be used again, each time.
        assert min(counts) > 0.7 * counts[0] > 0
        peak = broker.journal_bytes
        for _ in range(20):
            broker.done("PUT", f"{NS}/queues/last", {})
            broker.done("DELETE", f"{NS}/queues/last")
        broker.done("POST", "/api/v1/store/snapshot")
        assert broker.journal_bytes <= max(peak, 4 << 20)


def test_tasks_schedules_and_bindings_of_pyqueue_end_somewhere(tmp_path: Path) -> None:
    with a_broker(tmp_path / "data") as broker:
        with PyQueue(broker.running.port) as client:
            for word, form in (
                ("SCHEDULE", {"payload": LARGE, "schedule": "every 1 hours", "queue": "q"}),
                ("PUSH", {"payload": LARGE[:2_000], "queue": "q"}),
            ):
                replies = (client.call(word, form) for _ in range(MANY))
                refused = next(reply for reply in replies if reply.word != "OK")
                assert b"memory" in refused.payload
        assert broker.held_bytes < 1.3 * LIMIT
        assert broker.ask("GET", "/health")[0] == 200
