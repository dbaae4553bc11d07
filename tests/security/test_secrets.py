"""Secrets are compared in a time that tells nothing; strangers learn nothing from refusals."""

import ast
import hmac
import re
import statistics
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import blake2b, sha256
from typing import Any

import pytest

from posthouse.broker import access
from posthouse.broker.access import ROOT, Guard
from posthouse.core.errors import Unauthenticated
from posthouse.core.model import Account, Grant
from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.vibemq.client import Client as Vibe
from tests.house.tree import modules
from tests.security.amqp import Amqp, plain, sas
from tests.server.running import Running, running

GRANTS = [Grant("*", "*", ["send"])]


def guarded(count: int) -> tuple[Guard, dict[str, Account]]:
    """So many principals; p0 has two keys, p1 one, p2 only a password."""
    guard, accounts = Guard("the root's", bytes(32)), {}
    for number in range(count):
        name = f"p{number}"
        keys = [guard.seal(name, f"key {number}")]
        if number == 0:
            keys.append(guard.seal(name, "the key before"))
        password = guard.seal(name, "hash") if number == 2 else b""
        account = Account(name, number, 0, 0, GRANTS, [] if number == 2 else keys, password)
        accounts[name] = account
        guard.note(name, account)
    return guard, accounts


class Counted:
    """How many secrets were compared, and how many digests were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compare, digest, keyed = hmac.compare_digest, sha256, blake2b

        def comparing(one: Any, two: Any) -> bool:
            self.count += 1
            return compare(one, two)

        def digesting(data: bytes) -> Any:
            self.count += 1
            return digest(data)

        def keying(data: bytes, **options: Any) -> Any:
            self.count += 1
            return keyed(data, **options)

        monkeypatch.setattr(hmac, "compare_digest", comparing)
        monkeypatch.setattr(access, "sha256", digesting)
        monkeypatch.setattr(access, "blake2b", keying)

    def of(self, guard: Guard, accounts: dict[str, Account], key: str, name: str = "") -> int:
        """What it takes to refuse a key."""
        before = self.count
        try:
            if name:
                guard.identify(accounts, name, key)
            else:
                guard.identify_by_key(accounts, key)
        except Unauthenticated:
            return self.count - before
        raise AssertionError(f"{key!r} opens something")


def test_a_wrong_key_takes_the_same_steps_whatever_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = guarded(10), guarded(10_000)
    counted = Counted(monkeypatch)
    keys = ["", "wrong", "key 1x", "x" * 256, "\ud800"]
    by_key = {counted.of(*some, key) for some in (few, many) for key in keys}
    assert len(by_key) == 1
    names = ["p0", "p1", "p2", "nobody", ROOT]
    by_name = {
        counted.of(*some, key, name) for some in (few, many) for key in keys for name in names
    }
    assert len(by_name) == 1


def test_a_key_is_found_as_soon_among_ten_thousand_principals_as_among_ten() -> None:
    def seconds(guard: Guard, accounts: dict[str, Account], key: str) -> float:
        begun = time.process_time()
        for _ in range(100):
            try:
                guard.identify_by_key(accounts, key)
            except Unauthenticated:
                continue
        return time.process_time() - begun

    few, many = guarded(10), guarded(10_000)
    for key in ("wrong", "key 7"):
        times = [(seconds(*few, key), seconds(*many, key)) for _ in range(15)]
        of_few, of_many = (statistics.median(each) for each in zip(*times, strict=True))
        assert of_many < 5 * of_few + 0.001, (key, of_few, of_many)


# What a stranger is told.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("strangers") / "data"
    with running("--data", str(folder)) as broker:
        root = f"{ROOT}:{(folder / 'root-key').read_text().strip()}"
        assert broker.queue("PUT", "q", {}, key=root).status == 201
        form = {"name": "ann", "grants": [{"rights": ["send", "listen", "manage"]}]}
        reply = broker.call("POST", "/api/v1/principals", form, key=root)
        KEYS["ann"] = reply.json["key"]
        yield broker


KEYS: dict[str, str] = {}


def over_http(broker: Running, name: str, key: str) -> object:
    return broker.queue("GET", "q", key=f"{name}:{key}")


def over_rest(broker: Running, name: str, key: str) -> object:
    headers = {"authorization": sas("http://localhost/q", name, key)}
    return broker.call("POST", "/q/messages", raw=b"x", headers=headers)


def over_localzure(broker: Running, name: str, key: str) -> object:
    headers = {
        "authorization": sas("http://localhost/", name, key),
        "x-correlation-id": "the same",
    }
    reply = broker.call("GET", "/servicebus/default/queues/q", headers=headers)
    return reply.status, re.sub(rb'"timestamp":"[^"]*"', b"", reply.body)


def over_cbs(broker: Running, name: str, key: str) -> object:
    with Amqp(broker.port) as client:
        properties, _ = client.ask(
            "$cbs", {"operation": "put-token", "name": "sb://localhost/q"},
            sas("sb://localhost/q", name, key),
        )  # fmt: skip
        return properties


def over_sasl(broker: Running, name: str, key: str) -> object:
    with Amqp(broker.port, plain(name, key)) as client:
        return client.is_refused


def over_pyqueue(broker: Running, name: str, key: str) -> object:
    with PyQueue(broker.port) as client:
        return client.call("AUTH", {"type": "apikey", "value": key}).word


def over_vibemq(broker: Running, name: str, key: str) -> object:
    with Vibe(broker.port) as client:
        said = client.log_in(name, key)
        return said.type, said.code, said.text


WAYS = [
    over_http, over_rest, over_localzure, over_cbs, over_sasl, over_pyqueue, over_vibemq,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_unknown_name_is_told_what_a_wrong_key_is(broker: Running, way: Any) -> None:
    good = KEYS["ann"]
    wrong = [("ann", "x" * 43), ("nobody", "x" * 43), (ROOT, "x" * 43), ("ann", good[:-1] + "!")]
    if way is not over_pyqueue:  # which knows no names
        wrong += [("nobody", good), (ROOT, good)]
    told = [way(broker, *each) for each in wrong]
    assert all(each == told[0] for each in told), told
    assert way(broker, "ann", good) != told[0]


def test_a_bearer_of_nothing_is_told_the_same(broker: Running) -> None:
    told = set()
    for given in ("Basic", "Basic !", "Bearer x", "Basic " + b64encode(b"ann").decode(), "x y"):
        reply = broker.queue("GET", "q", headers={"authorization": given})
        told.add((reply.status, reply.body))
    assert len(told) == 1


# The code.

_SECRET = re.compile(r"(^|_)(keys?|secrets?|passwords?|signatures?|digests?|proofs?|sig|hash|mac)$")
# Comparisons of what is called so and is no secret of anybody's, or is not given by a stranger.
_ALLOWED = {
    "broker/access.py: sealed in self._keys": "what is sealed is in the journal",
    "broker/access.py: principal.proof not in self._proofs_of(account)": "made here, not given",
    "dialects/servicebus/identity.py: each.principal.proof != principal.proof": "made here",
    "client/encryption.py: encrypt_with not in keys": "the names of keys",
    "client/wire/messages.py: key != _SEQUENCE_KEY": "the name of an annotation",
    "client/wire/messages.py: until_key != _UNTIL": "the name of an annotation",
    "client/worker.py: key in self._routes": "the name of a route",
    "client/memory.py: group != key": "a partition's name",
    "client/azure_words.py: session != key": "a partition's name",
    "pipeline/outcomes.py: key not in self._known": "the place of a message",
    "pipeline/outcomes.py: key not in self._begun": "the place of a message",
    "pipeline/outcomes.py: key[0] == step.namespace": "the place of a message",
    "core/dispatch.py: key not in overlay.released": "a session's name",
    "core/evolve.py: key in queue.groups": "a session's name",
    "core/receiving.py: message.group != group.key": "a session's name",
    "dialects/servicebus/message.py: key == name": "the name of an annotation",
    "dialects/servicebus/message.py: group != partition_key": "a partition's name",
    "dialects/servicebus/message.py: key == 'x-opt-scheduled-enqueue-time'": "an annotation's name",
    "dialects/servicebus/message.py: key == 'x-opt-partition-key'": "the name of an annotation",
    "pipeline/jobs/reconcile.py: name not in keys": "the names of columns",
    "bridge/consuming.py: held.key in held_up": "a key of events",
    "bridge/consuming.py: held.key in self._behind": "a key of events",
    "bridge/consuming.py: other.key == held.key": "a key of events",
    "bridge/envelope.py: '\\x00' not in key": "the name of a header",
    "bridge/figures.py: key == name": "the name of a figure",
    "bridge/inbox.py: ' ' not in key": "a key of events",
    "bridge/inbox.py: entry.key in taken": "a key of events",
    "bridge/inbox.py: key not in new": "a key of events",
    "bridge/jetstream/topology.py: key not in _PUSH_FIELDS": "the name of a field",
    "bridge/outbox.py: key not in self._cursor_inserts": "the name of a statement",
    "bridge/outbox_rows.py: o.key != ''": "a key of events",
    "bridge/sending.py: row.key in self._behind": "a key of events",
    "bridge/sending.py: row.key in self._held": "a key of events",
    "bridge/testing.py: key in (None, event.key)": "a key of events",
    "bridge/window.py: key in self._ends": "a key of events",
    "core/evolve.py: id != key": "the id of a message",
    "core/plan.py: key in self.holding": "the name of a group",
    "server/declared.py: form.key != form.key.strip()": "with itself",
    "server/tls.py: found.public_key() == key.public_key()": "it is public",
    "server/tls.py: found.public_key() != authority.key.public_key()": "it is public",
}


def _names(side: ast.expr) -> Iterator[str]:
    """What a side of a comparison is called."""
    match side:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Call(func=func):
            yield from _names(func)
        case ast.Subscript(value=value):
            yield from _names(value)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _names(part)
        case _:
            pass


def test_no_secret_is_compared_with_the_operators_that_stop_at_the_first_difference() -> None:
    found = set()
    for module in modules():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Compare):
                continue
            if not any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
                continue
            sides = (node.left, *node.comparators)
            if any(_SECRET.search(name) for side in sides for name in _names(side)):
                found.add(f"{module.path}: {ast.unparse(node)}")
    assert found - set(_ALLOWED) == set(), "compare secrets with hmac.compare_digest"
    assert set(_ALLOWED) - found == set(), "these are not there any more"
