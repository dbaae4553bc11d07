"""The keys of an entity go with it, however it goes, and open no other of its name."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from posthouse.broker import payload
from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, DeleteQueue
from posthouse.core.model import Grant, QueueProperties
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace, SetAccount
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    NamespaceCreated,
    QueueCreated,
    QueueDeleted,
)
from posthouse.store.frames import Frame
from posthouse.store.memory import MemoryStore
from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.vibemq.broker import a_free_port
from tests.dialects.vibemq.client import DELETE, connected
from tests.security.amqp import UNAUTHORIZED, Amqp, sas
from tests.server.running import Running, running

ROOT, ROOT_KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
KEY = "the key of one queue, and of no other"
NS = "/api/v1/namespaces/default"
RULE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns='
    '"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><AuthorizationRules>'
    '<AuthorizationRule i:type="SharedAccessAuthorizationRule" xmlns:i='
    '"http://www.w3.org/2001/XMLSchema-instance"><ClaimType>SharedAccessKey</ClaimType>'
    "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights>"
    "<AccessRights>Listen</AccessRights></Rights><KeyName>rule</KeyName>"
    f"<PrimaryKey>{KEY}</PrimaryKey></AuthorizationRule></AuthorizationRules></{{kind}}>"
    "</content></entry>"
)


class World(NamedTuple):
    broker: Running
    door: int  # of VibeMQ's own HTTP

    def status(self, method: str, path: str, body: bytes = b"", token: str = "") -> int:
        token = token or sas("http://localhost/", ROOT, ROOT_KEY)
        headers = {"authorization": token}
        return self.broker.call(method, path, raw=body, headers=headers).status

    def make(self, name: str, kind: str = "QueueDescription") -> None:
        """With a key of its own."""
        document = RULE.format(kind=kind).encode()
        assert self.status("PUT", f"/{name}?api-version=2021-05", document) == 201


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    door = a_free_port()
    folder = tmp_path_factory.mktemp("keys") / "data"
    flags = ("--data", str(folder), "--dev", "--port", f"{door}=vibemq-http")
    with running(*flags) as broker:
        ports = broker.events("broker.ready")[0]["ports"]
        broker.port = next(each for each in ports if each != door)
        yield World(broker, door)


def over_api(world: World, name: str) -> None:
    assert world.broker.call("DELETE", f"{NS}/queues/{name}").status == 204


def over_atom(world: World, name: str) -> None:
    assert world.status("DELETE", f"/{name}?api-version=2021-05") == 200


def over_localzure(world: World, name: str) -> None:
    assert world.broker.call("DELETE", f"/servicebus/default/queues/{name}").status < 300


def over_pyqueue(world: World, name: str) -> None:
    with PyQueue(world.broker.port) as client:
        client.ok("ADMIN_PURGE_QUEUE", name)
        client.ok("ADMIN_DELETE_QUEUE", name)


def over_vibemq(world: World, name: str) -> None:
    with connected(world.broker.port) as client:
        assert client.ask(DELETE, name).type == DELETE


def over_vibemq_http(world: World, name: str) -> None:
    port, world.broker.port = world.broker.port, world.door
    try:
        assert world.broker.call("DELETE", f"/api/queues/{name}").status == 204
    finally:
        world.broker.port = port


def by_idleness(world: World, name: str) -> None:
    assert world.broker.queue("PATCH", name, {"idle_delete_ms": 300_000}).status == 200
    world.broker.call("POST", f"{NS}/clock", {"advance_ms": 400_000})
    assert world.broker.queue("GET", name).status == 404


WAYS = [
    over_api, over_atom, over_localzure, over_pyqueue, over_vibemq, over_vibemq_http, by_idleness,
]  # fmt: skip


def opens(world: World, name: str) -> dict[str, bool]:
    """Whether the key opens the queue of that name, by each way in."""
    account = f"rule@default/{name}"
    found = {}
    for what, signer in (("by its name", "rule"), ("by its account", account)):
        token = sas(f"http://localhost/{name}", signer, KEY)
        found[f"REST {what}"] = world.status("POST", f"/{name}/messages", b"x", token) != 401
        with Amqp(world.broker.port) as client:
            client.put_token(f"sb://localhost/{name}", token)
            found[f"AMQP {what}"] = client.why(client.link(name, sends=True)) is None
    form = {"messages": [{"body": "x"}]}
    reply = world.broker.queue("POST", f"{name}/messages", form, key=f"{account}:{KEY}")
    found["HTTP"] = reply.status not in (401, 403)
    return found


def accounts(world: World) -> list[str]:
    principals = world.broker.call("GET", "/api/v1/principals").json["principals"]
    return [each["name"] for each in principals]


@pytest.mark.parametrize("delete", WAYS, ids=lambda way: way.__name__)
def test_the_key_of_a_queue_goes_with_it(
    world: World, delete: Callable[[World, str], None]
) -> None:
    name = f"q{time.monotonic_ns()}"
    world.make(name)
    with ExitStack() as stack:
        client = stack.enter_context(Amqp(world.broker.port))
        token = sas(f"sb://localhost/{name}", "rule", KEY)
        assert client.put_token(f"sb://localhost/{name}", token) == 202
        link = client.opened(name, sends=True)
        assert all(opens(world, name).values())
        delete(world, name)
        assert f"rule@default/{name}" not in accounts(world)
        assert world.broker.queue("PUT", name, {}).status == 201
        assert client.detached(link) in (UNAUTHORIZED, "amqp:not-found")
        assert client.why(client.link(name, sends=True)) == UNAUTHORIZED
        assert not any(opens(world, name).values())
        assert world.broker.receive(name) == []


def test_the_key_of_a_topic_goes_with_it(world: World) -> None:
    name = f"t{time.monotonic_ns()}"
    world.make(name, "TopicDescription")
    assert all(opens(world, name).values())
    assert world.broker.call("DELETE", f"{NS}/topics/{name}").status == 204
    assert f"rule@default/{name}" not in accounts(world)
    assert world.broker.call("PUT", f"{NS}/topics/{name}", {}).status == 201
    assert not any(opens(world, name).values())


def test_a_key_for_what_is_not_there_cannot_be_made(world: World) -> None:
    grants = [{"rights": ["send"], "namespace": "default", "entity": "nothing"}]
    form = {"name": "rule@default/nothing", "grants": grants}
    assert world.broker.call("POST", "/api/v1/principals", form).status == 404


# What is in the journal.


def account(guard: Guard, namespace: str, queue: str) -> SetAccount:
    name = f"rule@{namespace}/{queue}"
    grants = [Grant(namespace, queue, ["send"])]
    return SetAccount(name, grants, [guard.seal(name, KEY)], new=True)


def test_keys_are_revoked_in_the_frame_in_which_their_entity_goes() -> None:
    async def run() -> None:
        guard, store, clock = (
            Guard("root", bytes(32)),
            MemoryStore(keep_bytes=1 << 20),
            VirtualClock(1_000),
        )
        engine = await Engine.open(store, clock, 1, guard)
        for space in ("one", "two"):
            await engine.ask(BROKER, "", CreateNamespace(space))
            for queue, idle_ms in (("a", None), ("b", None), ("idle", 400_000)):
                await engine.ask(
                    BROKER, space, CreateQueue(queue, QueueProperties(idle_delete_ms=idle_ms))
                )
                await engine.ask(BROKER, "", account(guard, space, queue))
        await engine.ask(BROKER, "one", DeleteQueue("a"))
        await engine.advance(500_000)
        await engine.ask(BROKER, "", DeleteNamespace("two"))
        assert set(engine.view.accounts) == {"rule@one/b"}
        frames = [frame async for frame in store.read(1, engine.now().position)]
        by_frame = [
            [record for _, _, record in payload.entries(frame)]
            for frame in frames
        ]  # fmt: skip
        revoked = [
            [each.name for each in records if isinstance(each, AccountRevoked)]
            for records in by_frame
        ]
        deleted = [sum(isinstance(each, QueueDeleted) for each in records) for records in by_frame]
        ends = [(names, number) for names, number in zip(revoked, deleted, strict=True) if names]
        assert ends[0] == (["rule@one/a"], 1)
        assert sorted(name for names, _ in ends[1:-1] for name in names) == [
            "rule@one/idle",
            "rule@two/idle",
        ]
        assert sum(number for _, number in ends[1:-1]) == 2
        assert ends[-1] == (["rule@two/a", "rule@two/b"], 0)  # with its namespace
        await engine.close()

    asyncio.run(run())


def test_keys_that_an_older_broker_left_behind_are_gone_after_a_start() -> None:
    async def run() -> None:
        guard = Guard("root", bytes(32))
        of_a, of_b = account(guard, "one", "a"), account(guard, "one", "b")

        def kept(command: SetAccount) -> AccountSet:
            return AccountSet(command.name, 1, list(command.grants), list(command.keys), b"", {})

        records: list[payload.Entry] = [
            ("", NamespaceCreated("one", 1, 1, 1)),
            ("one", QueueCreated("a", 1, QueueProperties())),
            ("one", QueueCreated("b", 1, QueueProperties())),
            ("", kept(of_a)),
            ("", kept(of_b)),
            ("one", QueueDeleted("a", 1)),
            ("one", QueueCreated("a", 1, QueueProperties())),
        ]
        store = MemoryStore([Frame(1, 1, 1, len(records), 1, 1, payload.encode(records))])
        engine = await Engine.open(store, VirtualClock(1_000), 1, guard)
        assert set(engine.view.accounts) == {of_b.name}
        assert guard.identify_by_key(engine.view.accounts, KEY).name == of_b.name
        frames = [frame async for frame in store.read(1, engine.now().position)]
        last = [record for frame in frames for _, _, record in payload.entries(frame)]
        assert AccountRevoked(of_a.name, engine.time_ms()) in last
        await engine.close()

    asyncio.run(run())
