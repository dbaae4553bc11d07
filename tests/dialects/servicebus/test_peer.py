"""One connection of a client that does what the SDKs do not: tokens, namespaces, odd requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from posthouse.amqp.encode import described, encode
from posthouse.amqp.events import Arrived, Attached, Closed, Detached, Disposed, Event, Opened
from posthouse.amqp.performatives import ACCEPTED, RELEASED, Problem, problem_in
from posthouse.amqp.types import Array, Described, Int, Symbol, Value
from posthouse.broker.access import BROKER
from posthouse.core.commands import DeleteQueue, GetQueue, QueueInfo
from posthouse.core.errors import REFUSALS
from posthouse.core.message import message_id
from posthouse.core.model import Grant
from posthouse.core.namespaces import CreateNamespace, RevokeAccount, SetAccount
from posthouse.dialects.servicebus import peer as peers
from posthouse.dialects.servicebus.conditions import CODES
from tests.dialects.servicebus.rig import KEY, Client, Rig, sas, session_filter
from tests.inside import state_of

MESSAGE = described(0x73, encode(["id"])) + described(0x75, encode(b"body"))


def run(work: Callable[[Rig], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        rig = await Rig.open(**settings)
        try:
            await work(rig)
            assert not rig.failures.found
        finally:
            await rig.close()

    asyncio.run(main())


def why(told: list[Event]) -> Problem:
    """The one link that was detached, and what was said of it."""
    (detached,) = [each for each in told if isinstance(each, Detached)]
    assert detached.problem is not None
    return detached.problem


def outcome(told: list[Event]) -> str:
    """accepted, or the condition of a rejection."""
    (disposed,) = [each for each in told if isinstance(each, Disposed)]
    assert disposed.state is not None
    if disposed.state.descriptor == 0x24:
        return "accepted"
    found = problem_in(disposed.state.value[0])
    assert found is not None
    return found.condition


async def client_of(rig: Rig, **options: str) -> Client:
    client = Client(rig, **options)  # type: ignore[arg-type]
    await client.pump()
    return client


def test_every_refusal_has_its_condition() -> None:
    assert set(CODES) == set(REFUSALS)


def test_without_a_token_nothing_is_open() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        for address, sends in (("q", True), ("q", False), ("q/$management", True),
                               ("q/$DeadLetterQueue", False), ("nowhere", True)):  # fmt: skip
            client.link(address, sends=sends)
            assert why(await client.pump()).condition == "amqp:unauthorized-access"

    run(work)


@pytest.mark.parametrize(
    ("resource", "entity", "fits"),
    [
        ("sb://localhost/q", "q", True), ("sb://LOCALHOST/Q", "q", True),
        ("amqps://localhost:5671/q/", "q", True), ("http://x.example.com/q?a=1", "q", True),
        ("sb://localhost/", "q", True), ("localhost:7443", "q", True),
        ("sb://localhost", "q", True),
        ("ns.servicebus.windows.net/q", "q", True), ("sb://localhost/q/$management", "q", False),
        ("sb://localhost/other", "q", False), ("sb://localhost/q", "qq", False),
        ("sb://localhost/qq", "q", False), ("q", "qq", False), ("sb://localhost/q/x", "q", False),
        ("q", "q", True), ("sb://localhost/a/../q", "q", False), ("orders.eu", "q", False),
        ("q1:x", "q", False), ("$management", "q", False),
        ("sb://localhost/$management", "q", False),
        ("sb://localhost/q//", "q", True), ("sb://localhost/q%2f..%2fs", "s", False),
    ],
)  # fmt: skip
def test_a_token_is_for_its_resource_and_what_is_below(
    resource: str, entity: str, fits: bool
) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        assert await client.put_token(entity, sas(resource)) == (202 if fits else 401)

    run(work)


def test_a_token_for_one_queue_opens_no_other() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        assert await client.put_token("q") == 202
        client.link("q", sends=True)
        assert Attached in [type(each) for each in await client.pump()]
        client.link("s", sends=True)
        assert why(await client.pump()).condition == "amqp:unauthorized-access"

    run(work)


@pytest.mark.parametrize(
    ("token", "status"),
    [
        (sas("sb://localhost/q", -10), 401), (sas("sb://localhost/q", key="other"), 401),
        (sas("sb://localhost/q", name="nobody"), 401), ("eyJ.a.b", 401), ("", 401),
        ("SharedAccessSignature ", 401), ("SharedAccessSignature sr=a&sig=!&se=1&skn=x", 400),
        ("SharedAccessSignature sr=a&sr=b&sig=&se=1&skn=x", 400),
        ("SharedAccessSignature sr=a&sig=YQ==&se=soon&skn=x", 400),
        (sas("sb://localhost/q") + "&se=99999999999", 400),
        ("SharedAccessSignature " + "x" * 9_000, 400),
    ],
)  # fmt: skip
def test_bad_tokens_are_refused(token: str, status: int) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        assert await client.put_token("q", token) == status

    run(work)


@pytest.mark.parametrize("sends", [True, False])
def test_a_link_ends_with_its_token_unless_there_is_another(sends: bool) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        assert await client.put_token("q", sas("sb://localhost/q", 100)) == 202
        client.link("q", sends=sends)
        await client.pump()
        client.peer.check(time.time() + 90)
        assert await client.pump() == []
        assert await client.put_token("q", sas("sb://localhost/q", 200)) == 202
        client.peer.check(time.time() + 110)
        assert await client.pump() == []
        client.peer.check(time.time() + 210)
        assert why(await client.pump()).condition == "amqp:unauthorized-access"

    run(work)


async def with_account(rig: Rig, *rights: str, entity: str = "q") -> None:
    assert rig.engine is not None
    keys = [rig.peers.credentials.guard.seal("ann", "ann's key")]
    grant = Grant("default", entity, list(rights))  # type: ignore[arg-type]
    await rig.engine.ask(BROKER, "", SetAccount("ann", [grant], keys, new=True))


@pytest.mark.parametrize("right", ["send", "listen", "manage"])
def test_links_need_their_right(right: str) -> None:
    async def work(rig: Rig) -> None:
        await with_account(rig, right)
        client = await client_of(rig)
        token = sas("sb://localhost/", key="ann's key", name="ann")
        assert await client.put_token("", token) == 202
        for address, sends, needed in (
            ("q", True, ("send",)), ("q", False, ("listen",)), ("s", True, ()), ("s", False, ()),
            ("q/$DeadLetterQueue", False, ("listen",)), ("q/$management", True, ("send", "listen",
                                                                                 "manage")),
        ):  # fmt: skip
            client.link(address, sends=sends)
            told = await client.pump()
            if right in needed:
                assert Attached in [type(each) for each in told]
            else:
                assert why(told).condition == "amqp:unauthorized-access"

    run(work)


OPERATIONS: dict[str, tuple[dict[Value, Value], str]] = {
    "peek-message": ({"from-sequence-number": 0, "message-count": Int(1)}, "listen"),
    "schedule-message": ({"messages": [{"message": MESSAGE}]}, "send"),
    "cancel-scheduled-message": ({"sequence-numbers": Array(0x81, [1])}, "send"),
    "receive-by-sequence-number": ({"sequence-numbers": Array(0x81, [1])}, "listen"),
    "update-disposition": (
        {"disposition-status": "completed", "lock-tokens": Array(0x98, [UUID(int=1)])}, "listen",
    ),
    "renew-lock": ({"lock-tokens": Array(0x98, [UUID(int=1)])}, "listen"),
    "get-message-sessions": ({}, "listen"),
    "batch-delete-messages": ({"message-count": Int(1)}, "manage"),
    "add-rule": (
        {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}}, "listen",
    ),
    "remove-rule": ({"rule-name": "r"}, "listen"),
    "enumerate-rules": ({}, "listen"),
}  # fmt: skip


@pytest.mark.parametrize("right", ["send", "listen", "manage"])
def test_operations_need_their_right(right: str) -> None:
    async def work(rig: Rig) -> None:
        await with_account(rig, right)
        client = await client_of(rig)
        await client.put_token("", sas("sb://localhost/", key="ann's key", name="ann"))
        for name, (body, needed) in OPERATIONS.items():
            status, _ = await client.manage(name, body)
            assert (status == 401) == (right != needed), name

    run(work)


def test_who_names_no_time_waits_for_a_session_as_long_as_the_cloud_lets_one() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        assert rig.engine is not None
        before_ms = rig.engine.clock_ms("default")
        client.link("s", sends=False, filters=session_filter(None))
        await client.pump()
        [waiting] = state_of(rig.engine, "default").queues["s"].accepting.values()
        assert 65_000 <= waiting.deadline_ms - before_ms < 75_000

    run(work)


def test_sessions_are_for_who_holds_them() -> None:
    """The rest of the operations: they speak of a session that this connection has."""

    async def work(rig: Rig) -> None:
        client, other = await client_of(rig), await client_of(rig)
        for each in (client, other):
            await each.put_token()
        client.link("s", sends=False, filters=session_filter("one"))
        await client.pump()
        session = {"session-id": "one"}
        for name, body in (
            ("set-session-state", {**session, "session-state": b"x"}),
            ("get-session-state", session), ("renew-session-lock", session),
        ):  # fmt: skip
            assert (await client.manage(name, body, "s"))[0] == 200
            assert (await other.manage(name, body, "s"))[0] == 410
        known = {"set-session-state", "get-session-state", "renew-session-lock", *OPERATIONS}
        from posthouse.dialects.servicebus.management import _OPERATIONS

        assert known == set(_OPERATIONS)

    run(work)


def test_a_revoked_principal_is_sent_away_and_leaves_nothing_behind() -> None:
    async def work(rig: Rig) -> None:
        await with_account(rig, "listen")
        client = await client_of(rig)
        await client.put_token("", sas("sb://localhost/", key="ann's key", name="ann"))
        client.link("q", sends=False).grant(5)
        await client.pump()
        assert rig.engine is not None
        info = await rig.engine.ask(BROKER, "default", GetQueue("q"))
        assert isinstance(info, QueueInfo)
        assert info.receivers == 1
        await rig.engine.ask(BROKER, "", RevokeAccount("ann"))
        assert why(await client.pump()).condition == "amqp:unauthorized-access"
        info = await rig.engine.ask(BROKER, "default", GetQueue("q"))
        assert isinstance(info, QueueInfo)
        assert info.receivers == 0

    run(work)


@pytest.mark.parametrize(
    ("response", "fine"),
    [
        (f"\0RootManageSharedAccessKey\0{KEY}", True),
        (f"x\0RootManageSharedAccessKey\0{KEY}", True),
        ("\0RootManageSharedAccessKey\0other", False), (f"\0nobody\0{KEY}", False), ("", False),
        (f"\0RootManageSharedAccessKey\0{KEY}\0more", False), ("\0\0", False), ("\0" * 50, False),
    ],
)  # fmt: skip
def test_plain_takes_a_key_name_and_its_key(response: str, fine: bool) -> None:
    async def work(rig: Rig) -> None:
        client = Client(rig, ("PLAIN", response.encode()))
        told = await client.pump()
        assert [type(each) for each in told] == [Opened if fine else Closed]
        if fine:
            client.link("q", sends=True)
            assert Attached in [type(each) for each in await client.pump()]

    run(work)


@pytest.mark.parametrize("session", [Symbol("one"), Int(1), b"one", ["one"]])
def test_a_session_id_is_text(session: Value) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        client.link("s", sends=False, filters=session_filter(session))
        assert why(await client.pump()).condition == "com.microsoft:argument-error"
        wrapped = Described(Symbol("com.microsoft:session-filter"), "one")
        client.link("s", sends=False, filters=session_filter(wrapped))
        assert Detached not in [type(each) for each in await client.pump()]

    run(work)


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("nowhere", "amqp:not-found"), ("", "amqp:not-found"), ("x" * 2_000, "amqp:not-found"),
        ("$DeadLetterQueue", "amqp:not-found"), ("q/$Transfer/$DeadLetterQueue", "amqp:not-found"),
        ("q/$DeadLetterQueue/$DeadLetterQueue", "amqp:not-found"), ("..", "amqp:not-found"),
        ("nowhere/$management", "amqp:not-found"), ("s", "amqp:not-allowed"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(address: str, condition: str) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        client.link(address, sends=False)
        assert why(await client.pump()).condition == condition

    run(work)


@pytest.mark.parametrize("address", ["Q", "/q", "amqps://localhost:5672/q", "sb://h/Q/", "%71"])
def test_addresses_come_in_many_forms(address: str) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link(address, sends=True)
        await client.pump()
        sender.send(MESSAGE, b"1")
        assert outcome(await client.pump()) == "accepted"

    run(work)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (MESSAGE, "accepted"), (b"junk", "amqp:decode-error"),
        (described(0x73, encode(["x" * 200])), "com.microsoft:argument-error"),
        (described(0x75, encode(bytes(2_000))), "amqp:link:message-size-exceeded"),
    ],
)  # fmt: skip
def test_a_message_is_accepted_or_rejected_by_itself(payload: bytes, said: str) -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link("q", sends=True)
        await client.pump()
        sender.send(payload, b"1")
        assert outcome(await client.pump()) == said
        sender.send(MESSAGE, b"2")
        assert outcome(await client.pump()) == "accepted"

    run(work, message_bytes=1_000)


def test_a_range_is_completed_in_one_go_and_answered_in_one() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link("q", sends=True)
        receiver = client.link("q", sends=False)
        receiver.grant(100)
        await client.pump()
        for at in range(100):
            sender.send(MESSAGE, b"%d" % at)
        told = await client.pump()
        ids = [each.delivery_id for each in told if isinstance(each, Arrived)]
        assert len(ids) == 100
        receiver.settle(ids, ACCEPTED, settled=False)
        (answered,) = [each for each in await client.pump() if isinstance(each, Disposed)]
        assert answered.delivery_ids == ids

    run(work)


def test_one_message_that_is_refused_does_not_change_the_order_of_the_others() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link("s", sends=True)
        await client.pump()
        for at in range(900):
            group = None if at == 10 else "one"
            properties = [f"{at}", *[None] * 9, group]
            sender.send(
                described(0x73, encode(properties)) + described(0x75, encode(b"x")), b"%d" % at
            )
        told = await client.pump()
        rejected = [e for e in told if isinstance(e, Disposed) and e.state is not None
                    and e.state.descriptor == 0x25]  # fmt: skip
        assert [len(each.delivery_ids) for each in rejected] == [1]
        assert rig.engine is not None
        queue = state_of(rig.engine, "default").queues["s"]
        ids = [int(message_id(each.envelope)) for each in queue.messages.walk(0)]
        assert ids == [at for at in range(900) if at != 10]

    run(work)


@pytest.mark.parametrize("refused", [None, 3])
def test_what_comes_during_a_sync_is_taken_meanwhile_and_stays_behind(
    refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where one of those before is refused: then it waits until they have been looked at."""

    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link("s", sends=True)
        await client.pump()
        assert rig.engine is not None
        store, gate = rig.engine.store, asyncio.Event()
        queue = state_of(rig.engine, "default").queues["s"]
        sync = store.sync

        async def sync_when_let() -> None:
            await gate.wait()
            await sync()

        monkeypatch.setattr(store, "sync", sync_when_let)
        monkeypatch.setattr(store, "sync_at_once", lambda: False)
        told: list[Event] = []
        for at in range(30):
            properties = [f"{at}", *[None] * 9, None if at == refused else "one"]
            payload = described(0x73, encode(properties)) + described(0x75, encode(b"x"))
            sender.send(payload, b"%d" % at)
            if at % 10 == 9:
                told += await client.pump()
        taken = sum(queue.counts)
        gate.set()
        assert taken == (30 if refused is None else 9)
        assert not any(isinstance(each, Disposed) for each in told)
        answered = [
            id for e in await client.pump() if isinstance(e, Disposed) for id in e.delivery_ids
        ]
        assert len(set(answered)) == len(answered) == 30
        ids = [int(message_id(each.envelope)) for each in queue.messages.walk(0)]
        assert ids == [at for at in range(30) if at != refused]

    run(work)


def test_what_is_said_twice_of_a_delivery_counts_once() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender, receiver = client.link("q", sends=True), client.link("q", sends=False)
        receiver.grant(5)
        await client.pump()
        sender.send(MESSAGE, b"1")
        (arrived,) = [each for each in await client.pump() if isinstance(each, Arrived)]
        receiver.settle([arrived.delivery_id], ACCEPTED, settled=False)
        receiver.settle([arrived.delivery_id], RELEASED, settled=True)
        assert outcome(await client.pump()) == "accepted"
        status, _ = await client.manage("peek-message", {"from-sequence-number": 0})
        assert status == 204

    run(work)


@pytest.mark.parametrize("plain", [True, False])
def test_a_key_that_was_rotated_out_is_out(plain: bool) -> None:
    async def work(rig: Rig) -> None:
        await with_account(rig, "send")
        if plain:
            client = Client(rig, ("PLAIN", b"\0ann\0ann's key"))
            await client.pump()
        else:
            client = await client_of(rig)
            await client.put_token("", sas("sb://localhost/", key="ann's key", name="ann"))
        client.link("q", sends=True)
        await client.pump()
        assert rig.engine is not None
        grants = [Grant("default", "q", ["send"])]
        for keys, ends in ((["new", "ann's key"], False), (["newer", "new"], True)):
            sealed = [rig.peers.credentials.guard.seal("ann", each) for each in keys]
            await rig.engine.ask(BROKER, "", SetAccount("ann", grants, sealed, new=False))
            told = await client.pump()
            assert (Detached in [type(each) for each in told]) == ends

    run(work)


def test_who_is_refused_too_often_is_cut_off() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        told: list[Event] = []
        for _ in range(peers.REFUSALS_MAX):
            client.link("q", sends=True).session.end()
            told += await client.pump()
        assert Closed in [type(each) for each in told]

    run(work)


def test_a_client_that_does_not_read_is_given_no_more() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        sender = client.link("q", sends=True)
        await client.pump()
        large = described(0x75, encode(bytes(900_000)))
        for at in range(20):
            sender.send(large, b"%d" % at)
            await client.pump()
        client.peer.pause_writing()
        receiver = client.link("q", sends=False)
        receiver.grant(1_000)
        assert [each for each in await client.pump() if isinstance(each, Arrived)] == []
        client.peer.resume_writing()
        assert len([each for each in await client.pump() if isinstance(each, Arrived)]) == 20

    run(work)


def test_namespaces_go_by_the_host() -> None:
    async def work(rig: Rig) -> None:
        one = await client_of(rig, host="worker1.localhost")
        two = await client_of(rig, host="localhost")
        for client, host in ((one, "Worker1.localhost"), (two, "localhost")):
            assert await client.put_token("", sas(f"sb://{host}/")) == 202
            sender = client.link("mine", sends=True)
            await client.pump()
            sender.send(MESSAGE, b"1")
            assert outcome(await client.pump()) == "accepted"
        other = await client_of(rig, host="worker2.localhost")
        assert await other.put_token("", sas("sb://worker1.localhost/")) == 401
        assert await other.put_token("", sas("sb://worker2.localhost/")) == 202
        assert rig.engine is not None
        view = rig.engine.view
        assert view.namespaces() == ("default", "worker1")
        assert all(view.exists(namespace, "mine") for namespace in view.namespaces())

    run(work, namespace_from="host", auto_create=True)


def test_namespaces_go_by_the_key_s_name() -> None:
    async def work(rig: Rig) -> None:
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "", CreateNamespace("Worker2"))
        for name, fine in (("worker2", True), ("nobody", False)):
            client = await client_of(rig)
            token = sas("sb://localhost/", name=name)
            assert await client.put_token("", token) == 202
            client.link("q", sends=True)
            assert why(await client.pump()).condition == "amqp:not-found", fine
        client = await client_of(rig)
        assert await client.put_token("", sas("sb://localhost/", name="worker2", key="x")) == 401
        await client.put_token()
        client.link("q", sends=True)
        assert Attached in [type(each) for each in await client.pump()]

    run(work, namespace_from="key", dev=True)


def test_strictly_a_token_for_nothing_is_refused() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        assert await client.put_token("nowhere") == 404
        assert await client.put_token("q") == 202

    run(work, strict=True)


@pytest.mark.parametrize("strict", [True, False])
def test_strictly_what_is_idle_is_dropped(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "IDLE_LINK_SECONDS", 0)
    monkeypatch.setattr(peers, "IDLE_CONNECTION_SECONDS", 0)

    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        client.link("q", sends=False)
        await client.pump()
        for _ in range(2):
            client.peer.check(time.time())
        told = await client.pump()
        assert bool(told) == strict
        if strict:
            assert why(told).condition == "amqp:link:detach-forced"
            client.peer.check(time.time())
            assert Closed in [type(each) for each in await client.pump()]

    run(work, strict=strict)


def test_who_sends_to_a_queue_that_is_deleted_is_told() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        client.link("q", sends=True)
        await client.pump()
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "default", DeleteQueue("q"))
        client.peer.check(time.time())
        assert why(await client.pump()).condition == "amqp:not-found"

    run(work)


def test_what_management_does_not_know_is_said() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        assert (await client.manage("make-coffee", {}))[0] == 501
        for name, body in (
            ("peek-message", {}), ("peek-message", {"from-sequence-number": "x"}),
            ("peek-message", {"from-sequence-number": 0, "message-count": Int(0)}),
            ("schedule-message", {"messages": [5]}), ("schedule-message", {"messages": 5}),
            ("schedule-message", {"messages": [{"message": b"junk"}]}),
            ("update-disposition", {"disposition-status": "burnt", "lock-tokens": [UUID(int=1)]}),
            ("renew-lock", {"lock-tokens": Array(0x98)}), ("renew-lock", {"lock-tokens": [5]}),
            ("batch-delete-messages", {"message-count": Int(5_000)}),
            ("get-message-sessions", {"skip": Int(-1)}),
        ):  # fmt: skip
            assert (await client.manage(name, body))[0] == 400, name
        assert (await client.manage("peek-message", {"from-sequence-number": 0}))[0] == 204

    run(work)


def test_requests_are_answered_in_order_and_replies_are_bounded() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        asks = client.link("q/$management", sends=True)
        hears = client.link("q/$management", sends=False)
        await client.pump()

        def ask(at: int) -> None:
            body = {"from-sequence-number": 0, "message-count": Int(1)}
            asks.send(
                described(0x73, encode([f"{at}" * 500]))
                + described(0x74, encode({"operation": "com.microsoft:peek-message"}))
                + described(0x77, encode(body)), b"r",
            )  # fmt: skip

        for at in range(9):
            ask(at)
        await client.pump()
        hears.grant(9)
        replies = [each.payload for each in await client.pump() if isinstance(each, Arrived)]
        assert [f"{at}{at}".encode() in (reply or b"") for at, reply in enumerate(replies)] == (
            [True] * 9
        )
        for at in range(60):  # more than there may be, all at once
            ask(at % 10)
        assert why(await client.pump()).condition == "amqp:resource-limit-exceeded"
        assert len(client.peer.contexts) == 1  # the replies' link

    run(work)


def test_before_a_client_is_known_little_is_kept_for_it() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        asks, hears = client.link("$cbs", sends=True), client.link("$cbs", sends=False)
        await client.pump()
        told: list[Event] = []
        for _ in range(100):  # and there is no credit for a reply
            asks.send(described(0x73, encode(["x" * 1_000])) + described(0x77, encode("")), b"r")
            told += await client.pump()
        assert why(told).condition == "amqp:resource-limit-exceeded"
        assert hears.is_gone

    run(work)


def test_ids_of_requests_keep_their_types() -> None:
    """A reply's correlation id has the type of the request's message id."""

    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        await client.put_token()
        asks, hears = client.link("q/$management", sends=True), client.link("q/$management",
                                                                           sends=False)  # fmt: skip
        hears.grant(10)
        await client.pump()
        for id in (UUID(int=5), "text", b"\x01", None):
            asks.send(described(0x73, encode([id])) + described(0x77, encode({})), b"r")
            (reply,) = [each for each in await client.pump() if isinstance(each, Arrived)]
            assert reply.payload is not None
            from tests.dialects.servicebus.test_message import opened

            found = opened(reply.payload)[0x73][0][5]
            assert (found, type(found)) == (id, type(id))

    run(work)
