"""Who may do what, on a real process: the routes there are, keys, and what is written down."""

import json
import socket
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.server.running import Running, development, running

ROOT = "RootManageSharedAccessKey"
NS = "/api/v1/namespaces/shop"
Q = f"{NS}/queues/orders"
A_TOKEN = "0" * 32


class Route(NamedTuple):
    method: str
    path: str
    right: str  # that it takes; "any": some key; "all ...": on everything
    body: Any = None


# Every route there is, for tests/security/test_matrix.py. A new one that is missing here fails the
# test below.
SCHEDULE = {"when": "at 14:30", "queue": "orders", "message": {"body": "x"}}
TOPIC = f"{NS}/topics/news"
S = f"{TOPIC}/subscriptions/s"
ROUTES = [
    Route("GET", "/api/v1/namespaces", "all manage"),
    Route("PUT", NS, "manage"),
    Route("DELETE", "/api/v1/namespaces/other", "other manage"),
    Route("GET", f"{NS}/queues", "manage"),
    Route("GET", Q, "manage"),
    Route("PUT", Q, "manage", {}),
    Route("PATCH", Q, "manage", {"lock_ms": 1_000}),
    Route("DELETE", f"{NS}/queues/gone", "manage"),
    Route("POST", f"{Q}/pause", "manage", {"sending": False, "receiving": False}),
    Route("POST", f"{Q}/resume", "manage", {}),
    Route("POST", f"{Q}/purge", "manage", {}),
    Route("POST", f"{NS}/queues/orders%2F$dead/resubmit", "manage", {}),
    Route("POST", f"{NS}/queues/orders%2F$dead/jobs", "manage", {}),
    Route("GET", f"{Q}/jobs", "manage"),
    Route("GET", f"{NS}/jobs", "manage"),
    Route("DELETE", f"{Q}/jobs/1", "manage"),
    Route("GET", f"{Q}/messages", "listen"),
    Route("POST", f"{Q}/messages", "send", {"messages": [{"body": "x"}]}),
    Route("POST", f"{Q}/cancel", "send", {"sequences": [999]}),
    Route("POST", f"{Q}/receive", "listen", {}),
    Route("GET", f"{NS}/queues/nowhere/deliveries", "listen"),
    Route("POST", f"{Q}/receive-deferred", "listen", {"sequences": [999]}),
    Route("POST", f"{Q}/complete", "listen", {"locks": [A_TOKEN]}),
    Route("POST", f"{Q}/release", "listen", {"locks": [A_TOKEN]}),
    Route("POST", f"{Q}/abandon", "listen", {"locks": [A_TOKEN]}),
    Route("POST", f"{Q}/defer", "listen", {"locks": [A_TOKEN]}),
    Route("POST", f"{Q}/dead-letter", "listen", {"locks": [A_TOKEN]}),
    Route("POST", f"{Q}/renew", "listen", {"locks": [A_TOKEN]}),
    Route("GET", f"{Q}/sessions", "listen"),
    Route("POST", f"{Q}/sessions/accept", "listen", {}),
    Route("POST", f"{Q}/sessions/renew", "listen", {"token": A_TOKEN}),
    Route("POST", f"{Q}/sessions/release", "listen", {"token": A_TOKEN}),
    Route("GET", f"{Q}/sessions/held/{A_TOKEN}/state", "listen"),
    Route("PUT", f"{Q}/sessions/held/{A_TOKEN}/state", "listen", {"state_base64": None}),
    Route("GET", f"{NS}/topics", "manage"),
    Route("GET", TOPIC, "manage"),
    Route("PUT", TOPIC, "manage", {}),
    Route("PATCH", TOPIC, "manage", {}),
    Route("POST", f"{TOPIC}/messages", "send", {"messages": [{"body": "x"}]}),
    Route("GET", f"{TOPIC}/subscriptions", "manage"),
    Route("GET", S, "manage"),
    Route("PUT", S, "manage", {}),
    Route("PATCH", S, "manage", {}),
    Route("POST", f"{S}/receive", "listen", {}),
    Route("POST", f"{S}/purge", "manage", {}),
    Route("GET", f"{S}/rules", "listen"),
    Route("GET", f"{S}/rules/$Default", "listen"),
    Route("PUT", f"{S}/rules/r", "listen", {}),
    Route("PATCH", f"{S}/rules/r", "listen", {}),
    Route("DELETE", f"{S}/rules/r", "listen"),
    Route("DELETE", f"{TOPIC}/subscriptions/gone", "manage"),
    Route("DELETE", f"{NS}/topics/gone-too", "manage"),
    Route("GET", f"{NS}/schedules", "manage"),
    Route("PUT", f"{NS}/schedules/beat", "send", SCHEDULE),
    Route("PATCH", f"{NS}/schedules/beat", "send", SCHEDULE),
    Route("POST", f"{NS}/schedules/beat/pause", "manage"),
    Route("POST", f"{NS}/schedules/beat/resume", "manage"),
    Route("DELETE", f"{NS}/schedules/beat", "manage"),
    Route("POST", f"{NS}/transactions", "some", {}),
    Route("POST", f"{NS}/transactions/{A_TOKEN}/commit", "some"),
    Route("POST", f"{NS}/transactions/{A_TOKEN}/rollback", "some"),
    Route("POST", f"{Q}/messages", "send", {"messages": [{"body": "x"}], "transaction": A_TOKEN}),
    Route("POST", f"{Q}/complete", "listen", {"locks": [A_TOKEN], "transaction": A_TOKEN}),
    Route("GET", f"{NS}/messages/m/life", "manage"),
    Route("GET", f"{Q}/messages/1/life", "manage"),
    Route("POST", f"{NS}/replay", "listen send", {"first": 1, "last": 1, "into": "orders"}),
    Route("GET", f"{NS}/clock", "manage"),
    Route("POST", f"{NS}/clock", "manage", {}),
    Route("GET", f"{NS}/quiet", "manage"),
    Route("GET", "/api/v1/principals", "all manage"),
    Route("POST", "/api/v1/principals", "all manage",
          {"name": "x", "grants": [{"rights": ["send"]}]}),
    Route("POST", "/api/v1/principals/x/rotate", "all manage"),
    Route("DELETE", "/api/v1/principals/x", "all manage"),
    Route("GET", "/api/v1/readers", "all listen"),
    Route("PUT", "/api/v1/readers/r", "all listen", {"position": 1}),
    Route("DELETE", "/api/v1/readers/r", "all listen"),
    Route("GET", "/api/v1/store", "all manage"),
    Route("POST", "/api/v1/store/snapshot", "all manage"),
    Route("GET", "/cluster/folder", "all manage"),
    Route("GET", "/cluster/folder/x", "all manage"),
    Route("DELETE", "/cluster/folder", "all manage"),
    Route("GET", "/feed", "all listen"),
    Route("GET", "/feed?namespace=shop", "listen"),
    Route("GET", "/feed?namespace=shop&entity=orders", "listen"),
    Route("GET", "/feed/status", "all listen"),
    Route("GET", "/feed/status?namespace=shop", "listen"),
    Route("GET", "/feed/status?namespace=shop&entity=orders", "listen"),
    Route("GET", "/metrics", "any"),
    Route("GET", "/metrics?entities=1", "all manage"),
]  # fmt: skip


class Caller(NamedTuple):
    name: str
    rights: frozenset[str]
    namespace: str
    key: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = str(tmp_path_factory.mktemp("access") / "data")
    # Every route is tried with every kind of wrong key: that is more than an address may fail.
    with running("--data", folder, "--auth-failures-max", "0") as broker:
        yield broker


def root(broker: Running) -> str:
    folder = next(Path(line) for line in broker_folder(broker))
    return f"{ROOT}:{(folder / 'root-key').read_text().strip()}"


def broker_folder(broker: Running) -> list[str]:
    arguments = broker.process.args
    assert isinstance(arguments, list)
    return [arguments[arguments.index("--data") + 1]]


@pytest.fixture(scope="module")
def callers(broker: Running) -> list[Caller]:
    key = root(broker)
    broker.call("PUT", NS, key=key)
    broker.call("PUT", "/api/v1/namespaces/other", key=key)
    for name in ("orders", "gone"):
        broker.call("PUT", f"{NS}/queues/{name}", {}, key=key)
    broker.call("PUT", TOPIC, {}, key=key)
    broker.call("PUT", S, {}, key=key)
    made = []
    for name, rights, namespace in [
        ("sender", "send", "shop"),
        ("listener", "listen", "shop"),
        ("manager", "manage", "shop"),
        ("both", "send listen", "shop"),
        ("stranger", "send listen manage", "other"),
        ("chief", "send listen manage", "*"),
    ]:
        grants = [{"rights": rights.split(), "namespace": namespace}]
        reply = broker.call("POST", "/api/v1/principals", {"name": name, "grants": grants}, key=key)
        assert reply.status == 201, reply
        full = f"{name}:{reply.json['key']}"
        made.append(Caller(name, frozenset(rights.split()), namespace, full))
    return made


def test_the_matrix_has_every_route(broker: Running) -> None:
    paths = broker.call("GET", "/docs/openapi.json").json["paths"]
    documented = {(method.upper(), path) for path, some in paths.items() for method in some}

    def fits(route: Route, method: str, path: str) -> bool:
        ours, theirs = route.path.split("?")[0].split("/"), path.split("/")
        return (
            route.method == method
            and len(ours) == len(theirs)
            and all(b.startswith("{") or a == b for a, b in zip(ours, theirs, strict=True))
        )

    missing = [each for each in documented if not any(fits(route, *each) for route in ROUTES)]
    assert not missing


def test_rights_end_at_the_entities_that_fit(broker: Running, callers: list[Caller]) -> None:
    assert callers
    key = root(broker)
    grants = [{"rights": ["send", "listen"], "namespace": "shop", "entity": "orders"}]
    made = broker.call("POST", "/api/v1/principals", {"name": "one", "grants": grants}, key=key)
    one = f"one:{made.json['key']}"
    message = {"messages": [{"body": "x"}]}
    broker.call("PUT", f"{NS}/queues/orders2", {}, key=key)
    assert broker.call("POST", f"{Q}/messages", message, key=one).status == 201
    for name in ("orders2", "Orders", "orders%2F..%2Forders2", "order", "%6frders2"):
        reply = broker.call("POST", f"{NS}/queues/{name}/messages", message, key=one)
        assert reply.status == 403, name
    assert broker.call("GET", "/feed?namespace=shop&entity=orders", key=one).status == 200
    for query in ("namespace=shop", "entity=orders", "namespace=shop&entity=orders2", ""):
        assert broker.call("GET", f"/feed?{query}", key=one).status == 403, query


def two_with_a_queue_each(broker: Running) -> list[str]:
    keys = []
    for name in ("ann", "ben"):
        broker.call("PUT", f"{NS}/queues/of-{name}", {}, key=root(broker))
        grants = [{"rights": ["send", "listen"], "namespace": "shop", "entity": f"of-{name}"}]
        form = {"name": name, "grants": grants}
        made = broker.call("POST", "/api/v1/principals", form, key=root(broker))
        keys.append(f"{name}:{made.json['key']}")
    return keys


def test_what_is_anothers_is_left_alone(broker: Running, callers: list[Caller]) -> None:
    assert callers
    ann, ben = two_with_a_queue_each(broker)
    number = broker.call("POST", f"{NS}/transactions", {}, key=ann).json["transaction"]
    for who, where, status in [(ann, "of-ann", 201), (ben, "of-ben", 410)]:
        form = {"messages": [{"body": "x"}], "transaction": number}
        assert broker.call("POST", f"{NS}/queues/{where}/messages", form, key=who).status == status
    for way in ("rollback", "commit"):
        reply = broker.call("POST", f"{NS}/transactions/{number}/{way}", key=ben)
        assert (reply.status, reply.json["type"]) == (410, "urn:posthouse:problem:transaction-lost")
    assert broker.call("POST", f"{NS}/transactions/{number}/commit", key=ann).status == 200
    beat = f"{NS}/schedules/anns"
    assert broker.call("PUT", beat, SCHEDULE | {"queue": "of-ann"}, key=ann).status == 204
    assert broker.call("PATCH", beat, SCHEDULE | {"queue": "of-ben"}, key=ben).status == 403
    assert broker.call("PATCH", beat, SCHEDULE | {"queue": "of-ann"}, key=ann).status == 204


def test_a_bearer_token_is_a_name_and_a_key(broker: Running) -> None:
    def status(authorization: str) -> int:
        headers = {"authorization": authorization}
        return broker.call("GET", "/metrics", headers=headers).status

    key = root(broker)
    assert status(f"Bearer {key}") == 200
    assert status(f"basic {b64encode(key.encode()).decode()}") == 200
    for bad in (
        f"Bearer {key}x",
        "Bearer",
        "Basic",
        "Basic ????",
        f"Digest {key}",
        key,
        "Basic /w==",
    ):
        assert status(bad) == 401, bad


def test_revoking_and_rotating_take_effect_at_once(broker: Running) -> None:
    import http.client

    key = root(broker)
    form = {"name": "temp", "grants": [{"rights": ["send"]}]}
    first = broker.call("POST", "/api/v1/principals", form, key=key).json["key"]
    second = broker.call("POST", "/api/v1/principals/temp/rotate", key=key).json["key"]
    third = broker.call("POST", "/api/v1/principals/temp/rotate", key=key).json["key"]
    codes = [
        broker.call("GET", "/metrics", key=f"temp:{each}").status for each in (first, second, third)
    ]
    assert codes == [401, 200, 200]
    open_connection = http.client.HTTPConnection("127.0.0.1", broker.port)
    headers = {"authorization": "Bearer temp:" + third}
    open_connection.request("GET", "/metrics", headers=headers)
    assert open_connection.getresponse().read()
    assert broker.call("DELETE", "/api/v1/principals/temp", key=key).status == 204
    open_connection.request("GET", "/metrics", headers=headers)
    assert open_connection.getresponse().status == 401
    open_connection.close()


def test_a_first_start_shows_the_root_key_once_and_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running("--data", str(folder)) as broker:
        assert broker.process.stdout is not None
        key = root(broker)
        form = {"name": "ann", "grants": [{"rights": ["listen"]}]}
        ann = "ann:" + broker.call("POST", "/api/v1/principals", form, key=key).json["key"]
        broker.process.terminate()
        said = broker.process.stdout.read()
        assert key in said
    for name in ("root-key", "seal-key", "lock"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with running("--data", str(folder)) as broker:
        assert broker.process.stdout is not None
        assert broker.call("GET", "/metrics", key=key).status == 200
        assert broker.call("GET", "/metrics", key=ann).status == 200
        broker.process.terminate()
        assert key.partition(":")[2] not in broker.process.stdout.read()
        secrets = [key.partition(":")[2], ann.partition(":")[2]]
        assert not any(secret in json.dumps(broker.log) for secret in secrets)
    journal = b"".join(each.read_bytes() for each in folder.glob("*.journal"))
    assert not any(secret.encode() in journal for secret in secrets)


def test_another_seal_key_opens_nothing(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data")) as broker:
        key = root(broker)
        form = {"name": "ann", "grants": [{"rights": ["listen"]}]}
        ann = "ann:" + broker.call("POST", "/api/v1/principals", form, key=key).json["key"]
    (tmp_path / "data" / "seal-key").unlink()
    with running("--data", str(tmp_path / "data")) as broker:
        assert broker.call("GET", "/metrics", key=ann).status == 401
        assert broker.call("GET", "/metrics", key=key).status == 200
        assert broker.events("access.sealed")


def test_every_change_and_refusal_is_in_the_log(broker: Running, callers: list[Caller]) -> None:
    sender = next(each for each in callers if each.name == "sender")
    before = len(broker.log)
    headers = {"x-correlation-id": "trace-me"}
    broker.call("PUT", f"{NS}/queues/audited", {}, key=root(broker), headers=headers)
    broker.call("GET", f"{NS}/queues/audited", key=sender.key)
    broker.call("GET", "/metrics", key="nobody:nothing")
    assert broker.events("access.unknown", before)  # the last of them
    events = [(e["event"], e.get("principal"), e.get("subject")) for e in broker.log[before:]]
    assert ("access.changed", ROOT, "audited") in events
    assert ("access.refused", "sender", "audited") in events
    assert ("access.unknown", None, None) in events
    changed = next(e for e in broker.log[before:] if e["event"] == "access.changed")
    assert changed["correlation_id"] == "trace-me"
    assert "nothing" not in json.dumps(broker.log[before:])


def test_with_dev_a_page_elsewhere_cannot_use_the_browser_on_this_machine(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:

        def status(**headers: str) -> int:
            return broker.call("GET", "/api/v1/namespaces", headers=headers).status

        assert status() == 200
        assert status(host="localhost") == 200
        assert status(host="broker") == 200
        assert status(origin=broker.url) == 200
        assert status(origin="http://evil.example") == 401
        assert status(origin="null") == 401
        assert status(host="evil.example") == 401
        assert status(host="evil.example:5300") == 401
        dev_key = "Bearer RootManageSharedAccessKey:SAS_KEY_VALUE"
        assert status(authorization=dev_key) == 200
        assert status(host="evil.example", authorization=dev_key) == 401
        assert status(origin="http://evil.example", authorization=dev_key) == 401
        assert status(**{"sec-fetch-site": "cross-site"}) == 401
        assert status(authorization="Bearer x:y") == 401


def test_with_dev_only_this_machine_is_let_in(tmp_path: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but the loopback's")
    with (
        development(tmp_path / "data", "--host", "0.0.0.0") as broker,
        socket.create_connection((address, broker.port)) as outside,
    ):
        assert turned_away(outside)
    assert broker.events("access.address")
    allowed = ("--host", "0.0.0.0", "--dev-allow", f"{address}/32")
    with (
        development(tmp_path / "data", *allowed) as broker,
        socket.create_connection((address, broker.port)) as outside,
    ):
        outside.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert outside.recv(100).startswith(b"HTTP/1.1 200")


def turned_away(outside: socket.socket) -> bool:
    try:
        outside.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        return outside.recv(100) == b""
    except ConnectionError:
        return True


def own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def test_clocks_stand_still_without_dev(broker: Running, callers: list[Caller]) -> None:
    assert callers
    reply = broker.call("POST", f"{NS}/clock", {"advance_ms": 1}, key=root(broker))
    assert reply.json["type"] == "urn:posthouse:problem:not-allowed"
