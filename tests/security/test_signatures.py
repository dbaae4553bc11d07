"""Shared access signatures: each opens what it names and what is below, and nothing else."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from posthouse.dialects.servicebus import sas as signatures
from tests.security.amqp import UNAUTHORIZED, Amqp, AmqpOverWebSocket, sas
from tests.server.running import Running, running

ROOT = "RootManageSharedAccessKey"
DESCRIPTION = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns='
    '"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{inside}</{kind}>'
    "</content></entry>"
)


class Place(NamedTuple):
    """Something that a token may open: how it is come to over AMQP and over HTTP."""

    address: str
    sends: bool
    method: str = ""
    path: str = ""


SEND = Place("q", True, "POST", "/q/messages")
RECEIVE = Place("q", False, "POST", "/q/messages/head?timeout=0")
DEAD = Place("q/$DeadLetterQueue", False, "POST", "/q/$DeadLetterQueue/messages/head?timeout=0")
MANAGEMENT = Place("q/$management", True)
DEAD_MANAGEMENT = Place("q/$DeadLetterQueue/$management", True)
TRANSFER = Place("f/$Transfer/$DeadLetterQueue", False)
LONGER = Place("q10", True, "POST", "/q10/messages")
SPACED = Place("a b", True, "POST", "/a%20b/messages")
SUBSCRIPTION = Place(
    "t/Subscriptions/s", False, "POST", "/t/Subscriptions/s/messages/head?timeout=0"
)
TOPIC = Place("t", True, "POST", "/t/messages")
ADMINISTRATION = Place("", False, "GET", "/q")
PLACES = [
    SEND, RECEIVE, DEAD, MANAGEMENT, DEAD_MANAGEMENT, TRANSFER, LONGER, SPACED, SUBSCRIPTION, TOPIC,
    ADMINISTRATION,
]  # fmt: skip
OF_Q = {SEND, RECEIVE, DEAD, MANAGEMENT, DEAD_MANAGEMENT, ADMINISTRATION}

# What a token is for, and what it opens.
SCOPES: list[tuple[str, set[Place]]] = [
    ("", set(PLACES)),
    ("q", OF_Q),
    ("Q", OF_Q),
    ("q/", OF_Q),
    ("%71", OF_Q),
    ("q1", set()),
    ("q10", {LONGER}),
    ("q/$management", {MANAGEMENT}),
    ("q/$Management", {MANAGEMENT}),
    ("q/%24management", {MANAGEMENT}),
    ("q/$DeadLetterQueue", {DEAD, DEAD_MANAGEMENT}),
    ("Q/$deadletterqueue", {DEAD, DEAD_MANAGEMENT}),
    ("q/$DeadLetterQueue/$management", {DEAD_MANAGEMENT}),
    ("q/$DeadLetterQueu", set()),
    ("f", {TRANSFER}),
    ("f/$Transfer", {TRANSFER}),
    ("f/$DeadLetterQueue", set()),
    ("a b", {SPACED}),
    ("a%20b", {SPACED}),
    ("a", set()),
    ("t", {SUBSCRIPTION, TOPIC}),
    ("t/subscriptions/s", {SUBSCRIPTION}),
    ("t/subscriptions/s2", set()),
    ("q/../q10", set()),
    ("q%2F..%2Fq10", set()),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("signatures") / "data"
    with running("--data", str(folder), "--auth-failures-max", "0") as broker:
        KEYS[ROOT] = (folder / "root-key").read_text().strip()
        for path in (
            "queues/q",
            "queues/q10",
            "queues/a%20b",
            "topics/t",
            "topics/t/subscriptions/s",
        ):
            made(broker, path)
        made(broker, "queues/f", {"forward_to": "q10"})
        yield broker


KEYS: dict[str, str] = {}


def made(broker: Running, path: str, form: object = None) -> None:
    path = f"/api/v1/namespaces/default/{path}"
    assert broker.call("PUT", path, form or {}, key=f"{ROOT}:{KEYS[ROOT]}").status == 201


def opens_link(client: Amqp, place: Place) -> bool:
    found = client.why(client.link(place.address, sends=place.sends))
    assert found in (None, UNAUTHORIZED), found
    return found is None


def opens_path(broker: Running, place: Place, token: str) -> bool:
    separator = "&" if "?" in place.path else "?"
    headers = {"authorization": token}
    path = f"{place.path}{separator}api-version=2021-05"
    reply = broker.call(place.method, path, raw=b"x", headers=headers)
    assert reply.status in (200, 201, 204, 401), reply
    return reply.status != 401


@pytest.mark.parametrize("name", [ROOT, "all"])
@pytest.mark.parametrize(("scope", "opened"), SCOPES, ids=[each[0] or "all" for each in SCOPES])
def test_a_token_opens_what_it_names_and_what_is_below(
    broker: Running, scope: str, opened: set[Place], name: str
) -> None:
    if name not in KEYS:
        form = {"name": name, "grants": [{"rights": ["manage", "send", "listen"]}]}
        reply = broker.call("POST", "/api/v1/principals", form, key=f"{ROOT}:{KEYS[ROOT]}")
        KEYS[name] = reply.json["key"]
    resource = f"sb://localhost/{scope}"
    token = sas(resource, name, KEYS[name])
    with Amqp(broker.port) as client:
        assert client.put_token(resource, token) == 202
        assert {p for p in PLACES if p.address and opens_link(client, p)} == {
            p for p in opened if p.address
        }
    assert {p for p in PLACES if p.path and opens_path(broker, p, token)} == {
        p for p in opened if p.path
    }


def test_management_is_no_place_for_messages(broker: Running) -> None:
    token = sas("http://localhost/q/$management", ROOT, KEYS[ROOT])
    for method, path in [
        ("POST", "/q/$management/messages"), ("POST", "/q/$management/messages/head?timeout=0"),
        ("DELETE", "/q/$management/messages/head?timeout=0"),
    ]:  # fmt: skip
        headers = {"authorization": token}
        assert broker.call(method, path, raw=b"x", headers=headers).status == 404


def test_a_signature_has_to_be_one(broker: Running) -> None:
    resource, key = "sb://localhost/q", KEYS[ROOT]
    good = sas(resource, ROOT, key)
    for token in (
        sas(resource, ROOT, key, signature=b""),
        sas(resource, ROOT, key, signature=b"none"),
        sas(resource, ROOT, ""),
        sas(resource, "", key),
        sas(resource, "", ""),
        good.replace("&sig=", "&sig=AAAA"),
        good.replace(quote(resource, safe=""), quote("sb://localhost/", safe="")),
        good.replace("&se=", "&se=9"),
        sas(resource, ROOT, key, 0),  # there is no grace: the broker's clock says when it ends
        sas(resource, ROOT, key, -1),
    ):
        with Amqp(broker.port) as client:
            assert client.put_token(resource, token) in (400, 401), token
        assert not opens_path(broker, SEND, token), token
    for broken in (good + "&se=99999999999", good.replace("&se=", "&Se="), good + "&sr=x"):
        with Amqp(broker.port) as client:
            assert client.put_token(resource, broken) in (400, 401), broken
        assert not opens_path(broker, SEND, broken), broken


def test_every_form_of_a_resource_is_folded_alike() -> None:
    forms = ["sb://h/a b/C", "sb://h/a%20b/c", "SB://H/A%20B/C/", "amqps://h:5671/a b/c", "//a b/c"]
    found = {signatures.resource_of(each)[1] for each in forms}
    assert found == {("a b", "c")}


# Keys of entities.


def test_a_key_of_an_entity_opens_that_entity(broker: Running) -> None:
    root = KEYS[ROOT]
    keys = {"ent": "the key of ent, which is long", "ent/sub": "the key of ent/sub, another one"}
    for name, key in keys.items():
        rule = (
            '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule" xmlns:i='
            '"http://www.w3.org/2001/XMLSchema-instance"><ClaimType>SharedAccessKey</ClaimType>'
            "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights>"
            f"<KeyName>rule</KeyName><PrimaryKey>{key}</PrimaryKey></AuthorizationRule>"
            "</AuthorizationRules>"
        )
        document = DESCRIPTION.format(kind="QueueDescription", inside=rule).encode()
        headers = {"authorization": sas("http://localhost/", ROOT, root)}
        path = f"/{name}?api-version=2021-05"
        assert broker.call("PUT", path, raw=document, headers=headers).status == 201
    for signer, target, is_open in [
        ("ent", "ent", True), ("ent/sub", "ent/sub", True), ("ent", "ent/sub", False),
        ("ent/sub", "ent", False), ("ent", "q", False),
    ]:  # fmt: skip
        for scope in (signer, target, ""):
            token = sas(f"sb://localhost/{scope}", "rule", keys[signer])
            place = Place(target, True, "POST", f"/{target}/messages")
            covered = target == scope or not scope or target.startswith(f"{scope}/")
            assert opens_path(broker, place, token) == (is_open and covered), (signer, target)
            with Amqp(broker.port) as client:
                client.put_token(f"sb://localhost/{target}", token)
                assert opens_link(client, place) == (is_open and covered), (signer, target)


# Which namespace a token is for.


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    folder = tmp_path_factory.mktemp("hosts") / "data"
    with running(
        "--data", str(folder), "--servicebus-namespace", "host", "--auth-failures-max", "0"
    ) as broker:
        root = Path(folder / "root-key").read_text().strip()
        key = f"{ROOT}:{root}"
        for space in ("one", "two"):
            assert broker.call("PUT", f"/api/v1/namespaces/{space}", key=key).status == 201
        for space in ("one", "two", "default"):
            path = f"/api/v1/namespaces/{space}/queues/q"
            assert broker.call("PUT", path, {}, key=key).status == 201
        yield broker, root


def signed(audience: str, root: str) -> str:
    return sas(f"http://{audience}/", ROOT, root)


HOSTS = {"one": "one.localhost", "two": "two.localhost", "default": "localhost"}


@pytest.mark.parametrize("audience", HOSTS)
@pytest.mark.parametrize("wanted", HOSTS)
def test_a_token_is_for_the_namespace_of_its_host_on_every_way_in(
    hosts: tuple[Running, str], audience: str, wanted: str
) -> None:
    broker, root = hosts
    token, fits = signed(HOSTS[audience], root), audience == wanted

    def status(method: str, path: str, host: str = HOSTS[wanted]) -> int:
        headers = {"authorization": token, "host": host, "content-type": "application/json"}
        return broker.call(method, path, raw=b'{"body": "x"}', headers=headers).status

    assert (status("POST", "/q/messages") == 201) == fits
    assert (status("GET", "/q?api-version=2021-05") == 200) == fits
    for path in (
        f"/servicebus/{wanted}/queues/q",
        f"/servicebus/{wanted}/q",
        "/servicebus/queues/q",
    ):
        found = {
            status("POST", f"{path}/messages"), status("GET", path),
            status("POST", f"{path}/messages/receive"),
        }  # fmt: skip
        assert (401 not in found) == fits, (path, found)
        assert (found == {401}) != fits, (path, found)
    # The host it was signed for, and the path of another.
    other = status("POST", f"/servicebus/{wanted}/queues/q/messages", HOSTS[audience])
    assert (other == 401) != fits
    for kind in (Amqp, AmqpOverWebSocket):
        with ExitStack() as stack:
            client = stack.enter_context(kind(broker.port, host=HOSTS[wanted]))
            put = client.put_token(f"sb://{HOSTS[wanted]}/q", token)
            assert put == (202 if fits else 401)
            assert opens_link(client, SEND) == fits


def test_a_path_without_a_namespace_is_of_the_token_s_own(hosts: tuple[Running, str]) -> None:
    broker, root = hosts
    key = f"{ROOT}:{root}"
    headers = {"authorization": signed("two.localhost", root), "host": "two.localhost"}

    def count(space: str) -> int:
        reply = broker.call("GET", f"/api/v1/namespaces/{space}/queues/q", key=key)
        active: int = reply.json["counts"]["active"]
        return active

    before = {space: count(space) for space in HOSTS}
    reply = broker.call("POST", "/servicebus/queues/q/messages", {"body": "x"}, headers=headers)
    assert reply.status in (200, 201)
    after = {space: count(space) for space in HOSTS}
    assert after == before | {"two": before["two"] + 1}
