"""Users, their permissions, and what administration does to connections that are open."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.vibemq.broker import Vibe, started
from tests.dialects.vibemq.client import (
    CONNECT_ACK,
    CREATE,
    DELETE,
    ERROR,
    GENERATIONS,
    INFO,
    LIST,
    PING,
    PUBLISH_ACK,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    Client,
    Said,
)

(NEW_USER, DROP_USER, NEW_PASSWORD, GRANT, REVOKE, USERS, PERMISSIONS) = range(50, 57)
BOSS = ("boss", "the boss's own")
ENVIRONMENT = {
    "POSTHOUSE_VIBEMQ_SUPERUSER": BOSS[0],
    "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": BOSS[1],
    "POSTHOUSE_VIBEMQ_TOKEN": "shared by all",
}
OPERATIONS = [
    "Publish", "Subscribe", "CreateQueue", "DeleteQueue", "PurgeQueue", "GetQueueInfo",
    "ListQueues",
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vibe]:
    folder = tmp_path_factory.mktemp("posthouse")
    with started("--data", str(folder / "data"), **ENVIRONMENT) as found:
        yield found
    said = str(found.broker.log)
    assert BOSS[1] not in said
    assert "shared by all" not in said


@pytest.fixture
def boss(guarded: Vibe) -> Iterator[Client]:
    with guarded.client(authUsername=BOSS[0], authPassword=BOSS[1]) as client:
        yield client


class _Users:
    def __init__(self, vibe: Vibe, boss: Client) -> None:
        self._vibe, self._boss, self._count = vibe, boss, 0

    def add(self, **permissions: list[Any]) -> tuple[str, str]:
        name = f"u{time.monotonic_ns()}"
        assert self._boss.ask(NEW_USER, payload={"username": name, "password": "pw"}).json == {
            "username": name
        }
        for pattern, operations in permissions.items():
            self.grant(name, pattern, operations)
        return name, "pw"

    def grant(self, name: str, pattern: str, operations: list[Any]) -> None:
        form = {"username": name, "queuePattern": pattern, "operations": operations}
        assert self._boss.ask(GRANT, payload=form).json == form

    def revoke(self, name: str, pattern: str) -> None:
        form = {"username": name, "queuePattern": pattern}
        assert self._boss.ask(REVOKE, payload=form).json == form

    def client(self, name: str, password: str) -> Any:
        return self._vibe.client(authUsername=name, authPassword=password)


@pytest.fixture
def users(guarded: Vibe, boss: Client) -> _Users:
    return _Users(guarded, boss)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_who_has_no_credentials_or_wrong_ones_is_told_and_closed(
    guarded: Vibe, generation: str
) -> None:
    for headers, code in [
        ({}, "AUTH_REQUIRED"),
        ({"authUsername": BOSS[0], "authPassword": "wrong"}, "AUTH_FAILED"),
        ({"authUsername": BOSS[0]}, "AUTH_FAILED"),
        ({"authUsername": "nobody", "authPassword": BOSS[1]}, "AUTH_FAILED"),
        ({"authUsername": "x" * 4_000, "authPassword": "x"}, "AUTH_FAILED"),
        ({"authToken": "wrong"}, "AUTH_FAILED"),
    ]:
        client = guarded.bare(generation)
        said = client.connect(**headers)
        assert (said.type, said.code) == (ERROR, code)
        assert client.is_closed()
    with guarded.client(generation, authUsername=BOSS[0], authPassword=BOSS[1]) as client:
        assert client.publish("q", 1).type == PUBLISH_ACK


def test_the_root_key_is_a_password_and_so_are_keys_of_others(tmp_path: Path) -> None:
    with started("--data", str(tmp_path / "data")) as vibe:
        key = (tmp_path / "data" / "root-key").read_text().strip()
        root = "RootManageSharedAccessKey"
        with vibe.client(authUsername=root, authPassword=key) as client:
            assert client.ask(USERS).json == []
        form = {"name": "web", "grants": [{"rights": ["send"], "entity": "orders*"}]}
        made = vibe.broker.call("POST", "/api/v1/principals", form, key=f"{root}:{key}").json
        with vibe.client(authUsername="web", authPassword=made["key"]) as client:
            assert client.publish("orders.eu", 1).type == PUBLISH_ACK
            assert client.publish("other", 1).code == "NOT_AUTHORIZED"
            assert client.subscribe("orders.eu").code == "NOT_AUTHORIZED"
            assert client.ask(LIST).json == ["orders.eu"]


def test_what_a_user_may_do_in_other_namespaces_stays(guarded: Vibe, users: _Users) -> None:
    root = _root_key(guarded)
    other = {"rights": ["send", "listen"], "namespace": "other", "entity": "orders"}
    both = {"rights": ["send"], "namespace": "*", "entity": "both"}
    form = {"name": "traveller", "grants": [other, both]}
    assert guarded.broker.call("POST", "/api/v1/principals", form, key=root).status == 201

    def granted() -> list[Any]:
        listed = guarded.broker.call("GET", "/api/v1/principals", key=root).json["principals"]
        [mine] = [each["grants"] for each in listed if each["name"] == "traveller"]
        return list(mine)

    users.grant("traveller", "here", ["Publish"])
    here = {"rights": ["send"], "namespace": "default", "entity": "here"}
    assert granted() == [other, both, here]
    users.revoke("traveller", "here")
    assert granted() == [other, both]


def test_a_right_in_several_namespaces_is_not_taken_in_one(
    guarded: Vibe, users: _Users, boss: Client
) -> None:
    root = _root_key(guarded)
    grant = {"rights": ["send"], "namespace": "*", "entity": "all"}
    form = {"name": "everywhere", "grants": [grant]}
    assert guarded.broker.call("POST", "/api/v1/principals", form, key=root).status == 201
    for kind, more in ((REVOKE, {}), (GRANT, {"operations": ["Subscribe"]})):
        said = boss.ask(kind, payload={"username": "everywhere", "queuePattern": "all", **more})
        assert said.code == "INVALID_PAYLOAD"
        assert "other namespaces" in said.text


def test_the_shared_token_of_older_versions(guarded: Vibe) -> None:
    with guarded.client(authToken="shared by all") as client:
        assert client.publish("shared", 1).type == PUBLISH_ACK
        assert client.ask(USERS).code == "FORBIDDEN"


def test_only_a_superuser_sees_to_users(users: _Users) -> None:
    with users.client(*users.add(**{"*": OPERATIONS})) as client:
        for kind in range(50, 57):
            form = {"username": "x", "password": "x", "newPassword": "x", "queuePattern": "*",
                    "operations": ["Publish"]}  # fmt: skip
            said = client.ask(kind, payload=form)
            assert (said.type, said.code) == (ERROR, "FORBIDDEN")


def test_users_are_made_listed_and_deleted(users: _Users, boss: Client) -> None:
    name, password = users.add()
    assert boss.ask(NEW_USER, payload={"username": name, "password": "x"}).code == "USER_EXISTS"
    listed = {each["username"]: each for each in boss.ask(USERS).json}
    assert listed["boss"]["isSuperuser"] is True
    assert listed[name]["isSuperuser"] is False
    assert abs(listed[name]["createdAt"] - time.time()) < 60
    assert boss.ask(DROP_USER, payload={"username": name}).json == {"username": name}
    for kind in (DROP_USER, PERMISSIONS):
        assert boss.ask(kind, payload={"username": name}).code == "USER_NOT_FOUND"
    form = {"username": name, "queuePattern": "*", "operations": ["Publish"]}
    for kind in (GRANT, REVOKE):
        assert boss.ask(kind, payload=form).code == "USER_NOT_FOUND"
    form = {"username": name, "newPassword": "x"}
    assert boss.ask(NEW_PASSWORD, payload=form).code == "USER_NOT_FOUND"
    for wrong in ("", "a:b", "a/b", "$x", "RootManageSharedAccessKey", "x" * 65, "a@b"):
        form = {"username": wrong, "password": "x"}
        assert boss.ask(NEW_USER, payload=form).code == "INVALID_PAYLOAD"
    assert boss.ask(NEW_USER, payload={"username": "z", "password": ""}).code == "INVALID_PAYLOAD"
    wrong_ones: list[list[Any]] = [[], ["Fly"], [7], [True], [{}]]
    for wrong_one in wrong_ones:
        given: dict[str, Any] = {"username": "boss", "queuePattern": "*"}
        assert boss.ask(GRANT, payload=given | {"operations": wrong_one}).code == "INVALID_PAYLOAD"
    assert password


def test_a_new_password_is_the_only_one(users: _Users, boss: Client, guarded: Vibe) -> None:
    name, old = users.add()
    form = {"username": name, "newPassword": "new"}
    assert boss.ask(NEW_PASSWORD, payload=form).json == {"username": name}
    client = guarded.bare()
    assert client.log_in(name, old).code == "AUTH_FAILED"
    assert client.is_closed()
    with users.client(name, "new") as client:
        assert client.ask(PING).id


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_allows_its_own_and_nothing_else(
    users: _Users, boss: Client, operation: str
) -> None:
    boss.publish("shop.orders", 1)
    user = users.add(**{"SHOP.*": [operation]})

    def allowed(said: Said) -> bool:
        assert said.type != ERROR or said.code == "NOT_AUTHORIZED", said
        return said.type != ERROR

    with users.client(*user) as client:
        found = {
            "Publish": allowed(client.publish("shop.orders", 1)),
            "Subscribe": allowed(client.ask(SUBSCRIBE, "shop.orders")),
            "CreateQueue": allowed(client.ask(CREATE, f"shop.{operation}")),
            "GetQueueInfo": allowed(client.ask(INFO, "shop.orders")),
            "ListQueues": client.ask(LIST).json != [],
            "DeleteQueue": allowed(client.ask(DELETE, "shop.orders")),
        }
        assert {name for name, may in found.items() if may} == {operation} - {"PurgeQueue"}
        assert client.publish("elsewhere", 1).code == "NOT_AUTHORIZED"


def test_patterns_add_up_and_are_listed(users: _Users, boss: Client) -> None:
    name, password = users.add()
    users.grant(name, "a*", ["Publish"])
    users.grant(name, "*.eu", ["subscribe", 0])
    assert boss.ask(PERMISSIONS, payload={"username": name}).json == [
        {"queuePattern": "a*", "operations": ["Publish"]},
        {"queuePattern": "*.eu", "operations": ["Subscribe", "Publish"]},
    ]
    with users.client(name, password) as client:
        assert client.publish("A.x", 1).type == PUBLISH_ACK
        assert client.publish("b.eu", 1).type == PUBLISH_ACK
        assert client.subscribe("a.b.EU").type == SUBSCRIBE_ACK
        assert client.subscribe("a.b").code == "NOT_AUTHORIZED"
        users.grant(name, "a*", ["Subscribe"])  # in place of what was there
        assert client.subscribe("a.b").type == SUBSCRIBE_ACK
        assert client.publish("a.b", 1).code == "NOT_AUTHORIZED"


def test_dead_letters_are_those_of_their_queue(users: _Users, boss: Client) -> None:
    options = {"maxQueueSize": 1, "overflowStrategy": 3}
    assert boss.ask(CREATE, "full", options).type == CREATE
    for number in range(2):
        boss.publish("full", number)
    name, password = users.add(full=["Subscribe"])
    stranger = users.add(**{"*-dlq": ["Subscribe"]})
    with users.client(name, password) as client, users.client(*stranger) as other:
        assert other.subscribe("full-dlq").code == "NOT_AUTHORIZED"
        assert client.subscribe("full-dlq").type == SUBSCRIBE_ACK
        assert client.take() == 1
        assert client.publish("full-dlq", 1).code == "NOT_AUTHORIZED"
        assert boss.publish("full-dlq", 1).code == "INVALID_QUEUE"


def test_changes_count_at_once_on_open_connections(users: _Users, boss: Client) -> None:
    name, password = users.add(live=["Publish", "Subscribe"])
    with users.client(name, password) as client:
        asked = client.subscribe("live")
        assert client.publish("live", 1).type == PUBLISH_ACK
        held = client.delivery()
        users.revoke(name, "live")
        told = client.until(lambda said: said.type == ERROR)
        assert (told.id, told.code) == (asked.id, "NOT_AUTHORIZED")
        assert client.publish("live", 2).code == "NOT_AUTHORIZED"
        boss.subscribe("live")  # what it had is there for others
        assert boss.delivery().id == held.id
        boss.ack(held)
        assert client.has_nothing()
        users.grant(name, "live", ["Publish"])
        assert client.publish("live", 3).type == PUBLISH_ACK
        boss.ask(DROP_USER, payload={"username": name})
        assert client.next().code == "NOT_AUTHENTICATED"
        assert client.is_closed()


def test_a_user_is_a_principal_for_other_dialects_too(users: _Users, guarded: Vibe) -> None:
    name, _ = users.add(**{"everywhere*": ["Publish"], "half*": ["CreateQueue"]})
    reply = guarded.broker.call("GET", "/api/v1/principals", key=f"{BOSS[0]}:{BOSS[1]}")
    assert reply.status == 401  # a password is no key
    root = _root_key(guarded)
    listed = guarded.broker.call("GET", "/api/v1/principals", key=root).json["principals"]
    [mine] = [each for each in listed if each["name"] == name]
    assert mine["grants"] == [{"rights": ["send"], "namespace": "default", "entity": "everywhere*"}]
    key = guarded.broker.call("POST", f"/api/v1/principals/{name}/rotate", key=root).json["key"]
    with users.client(name, "pw") as client:  # the password is still there
        assert client.publish("everywhere", 1).type == PUBLISH_ACK
    form = {"messages": [{"body": "x"}]}
    for queue, status in (("everywhere", 201), ("half", 403)):
        path = f"/api/v1/namespaces/default/queues/{queue}/messages"
        assert guarded.broker.call("POST", path, form, key=f"{name}:{key}").status == status


def _root_key(vibe: Vibe) -> str:
    flags = vibe.broker.process.args
    assert isinstance(flags, list)
    folder = Path(flags[flags.index("--data") + 1])
    return f"RootManageSharedAccessKey:{(folder / 'root-key').read_text().strip()}"


def test_an_unknown_name_takes_as_long_as_a_wrong_password(guarded: Vibe) -> None:
    def seconds(name: str) -> float:
        client = guarded.bare()
        begun = time.perf_counter()
        assert client.log_in(name, f"wrong {begun}").code == "AUTH_FAILED"
        taken = time.perf_counter() - begun
        client.close()
        return taken

    known, unknown = [], []
    for number in range(7):
        known.append(seconds(BOSS[0]))
        unknown.append(seconds(f"nobody{number}"))
    quick, slow = sorted((statistics.median(known), statistics.median(unknown)))
    assert quick > slow / 2


def test_users_survive_a_restart(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"))
    with (
        started(*flags, **ENVIRONMENT) as vibe,
        vibe.client(authUsername=BOSS[0], authPassword=BOSS[1]) as boss,
    ):
        name, _ = _Users(vibe, boss).add(kept=["Publish"])
    journal = b"".join(each.read_bytes() for each in (tmp_path / "data").glob("*.journal"))
    assert b"scrypt" not in journal  # it is sealed
    with started(*flags, **{**ENVIRONMENT, "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": "other"}) as vibe:
        with vibe.client(authUsername=name, authPassword="pw") as client:
            assert client.publish("kept", 1).type == PUBLISH_ACK
        with vibe.client(authUsername=BOSS[0], authPassword=BOSS[1]) as boss:  # made once
            assert boss.connect().code == "INVALID_MESSAGE"


def test_with_dev_who_says_nothing_is_let_in_and_who_lies_is_not(vibe: Vibe) -> None:
    with vibe.client() as client:
        assert client.ask(USERS).type == USERS
    client = vibe.bare()
    assert client.log_in("nobody", "x").code == "AUTH_FAILED"
    assert client.is_closed()
    with vibe.bare() as client:
        assert client.log_in("RootManageSharedAccessKey", "SAS_KEY_VALUE").type == CONNECT_ACK
