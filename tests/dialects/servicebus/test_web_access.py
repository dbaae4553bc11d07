"""The routes of Service Bus over HTTP, and tokens that are not for them."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from posthouse.dialects.servicebus import admin, rest
from tests.dialects.servicebus.rest import CONNECT
from tests.dialects.servicebus.sas import token
from tests.server.running import Running, running

NO_LOCK = "00000000-0000-4000-8000-000000000000"


class Route(NamedTuple):
    table: str
    method: str
    path: str
    right: str
    body: bytes = b""


def described(kind: str) -> bytes:
    return f'<{kind} xmlns="{CONNECT}"/>'.encode()


# Every route there is, for tests/security/test_matrix.py. A new one that is missing here fails the
# test below.
ROUTES = [
    Route("namespace", "GET", "/$namespaceinfo", "manage all"),
    Route("entities", "GET", "/$Resources/queues", "manage all"),
    Route("entity", "GET", "/orders", "manage"),
    Route("entity", "PUT", "/orders", "manage", described("QueueDescription")),
    Route("entity", "DELETE", "/orders/nowhere", "manage"),
    Route("subscriptions", "GET", "/orders/subscriptions", "manage"),
    Route("rules", "GET", "/orders/subscriptions/s/rules", "manage"),
    Route("rule", "GET", "/orders/subscriptions/s/rules/r", "manage"),
    Route("rule", "PUT", "/orders/subscriptions/s/rules/r", "manage", described("RuleDescription")),
    Route("rule", "DELETE", "/orders/subscriptions/s/rules/r", "manage"),
    Route("messages", "POST", "/orders/messages", "send", b"x"),
    Route("head", "POST", "/orders/messages/head?timeout=0", "listen"),
    Route("head", "DELETE", "/orders/messages/head?timeout=0", "listen"),
    Route("lock", "DELETE", f"/orders/messages/1/{NO_LOCK}", "listen"),
    Route("lock", "PUT", f"/orders/messages/1/{NO_LOCK}", "listen"),
    Route("lock", "POST", f"/orders/messages/1/{NO_LOCK}", "listen"),
]
by_route = pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path[:40]}")


def test_every_route_is_here() -> None:
    there = {
        (name, method)
        for table in (admin.ROUTES, rest.ROUTES)
        for name, routes in table.items()
        for method in routes
    }
    assert {(each.table, each.method) for each in ROUTES} == there


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Not for development: there is no open door."""
    folder = tmp_path_factory.mktemp("web") / "data"
    with running("--data", str(folder), "--auth-failures-max", "0") as broker:
        root = f"RootManageSharedAccessKey:{(folder / 'root-key').read_text().strip()}"
        for queue in ("orders", "other"):
            path = f"/api/v1/namespaces/default/queues/{queue}"
            assert broker.call("PUT", path, {}, key=root).status == 201
            for right in ("send", "listen", "manage"):
                name = f"{right}-{queue}"
                grants = [{"namespace": "default", "entity": f"{queue}*", "rights": [right]}]
                form = {"name": name, "grants": grants}
                made = broker.call("POST", "/api/v1/principals", form, key=root)
                KEYS[name] = made.json["key"]
        yield broker


KEYS: dict[str, str] = {}


def signed(name: str, path: str = "", seconds: int = 600, key: str = "") -> str:
    return token(f"http://localhost{path}", name, key or KEYS.get(name, "x"), seconds)


def status(broker: Running, route: Route, authorization: str | None) -> int:
    headers = {} if authorization is None else {"authorization": authorization}
    separator = "&" if "?" in route.path else "?"
    path = f"{route.path}{separator}api-version=2021-05"
    return broker.call(route.method, path, raw=route.body, headers=headers).status


@by_route
def test_credentials_that_are_not_right_open_nothing(broker: Running, route: Route) -> None:
    name = f"{route.right.split()[0]}-orders"
    for given in (
        None,
        "SharedAccessSignature",
        signed(name, key="another key"),
        signed("nobody"),
        signed(name, seconds=-10),
        signed(name, "/order"),
        signed(name, "/orders2"),
        signed(name, "/other"),
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "Basic c2VuZC1vcmRlcnM6eA==",
    ):
        assert status(broker, route, given) == 401, given
