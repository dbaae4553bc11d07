"""Who may do what: keys, grants, and that every command asks."""

import asyncio
import logging
from typing import get_args

import pytest

from posthouse.broker.access import BROKER, ROOT, Guard, Principal, fits, new_key
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    AcceptSession,
    Begin,
    Command,
    Commit,
    Complete,
    CreateQueue,
    CreateSubscription,
    Credit,
    GetQueue,
    Granted,
    ListQueues,
    Look,
    Receive,
    Received,
    Resubmit,
    RollBack,
    Send,
    UpdateQueue,
    Work,
)
from posthouse.core.errors import InvalidArgument, NotFound, Unauthenticated, Unauthorized
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import Account, Grant, QueueProperties, Right
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    ListAccounts,
    ListNamespaces,
    RevokeAccount,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.store.memory import MemoryStore

GUARD = Guard("the root's own", b"s" * 32)
A_MESSAGE = NewMessage(b"\x80", b"x")


def an_account(*grants: tuple[str, str, str], keys: list[bytes] | None = None) -> Account:
    made: list[Right] = []
    return Account(
        "ann", 7, 0, 0,
        [Grant(space, entity, [*made, *rights.split()]) for space, entity, rights in grants],  # type: ignore[list-item]
        keys or [],
    )  # fmt: skip


def may(account: Account, namespace: str, command: Command | SpaceCommand) -> bool:
    try:
        GUARD.check({"ann": account}, Principal("ann", 7), namespace, command)
    except Unauthorized:
        return False
    return True


def test_every_command_says_what_it_takes() -> None:
    for command in (*get_args(Command), *get_args(SpaceCommand)):
        assert command.right in ("manage", "send", "listen", "any", "broker")
        assert command.reach in ("queue", "namespace", "broker", "receiver")
        assert command.reach != "queue" or "queue" in command.__struct_fields__


def test_a_right_is_on_the_entities_that_fit() -> None:
    ann = an_account(("shop", "orders", "send"), ("shop", "trips*", "listen send"))
    assert may(ann, "shop", Send("orders", []))
    assert may(ann, "shop", Send("trips/2026", []))
    assert may(ann, "shop", Receive("trips", 1))
    assert may(ann, "shop", Receive("trips/$dead", 1))
    assert not may(ann, "shop", Receive("orders", 1))
    assert not may(ann, "shop", Send("orders2", []))
    assert not may(ann, "other", Send("orders", []))
    assert not may(ann, "shop", CreateQueue("orders"))
    assert not may(ann, "shop", GetQueue("trips"))


def test_whoever_may_do_anything_with_a_queue_may_look_at_it() -> None:
    for right in ("manage", "send", "listen"):
        ann = an_account(("shop", "orders", right))
        assert may(ann, "shop", Look("orders"))
        assert may(ann, "shop", Look("orders/$dead"))
        assert not may(ann, "shop", Look("trips"))
        assert not may(ann, "other", Look("orders"))
        assert may(ann, "shop", GetQueue("orders")) == (right == "manage")


def test_what_names_no_queue_needs_the_right_on_all_of_them() -> None:
    some = an_account(("shop", "trips*", "listen manage"))
    all_of_it = an_account(("shop", "*", "listen manage"))
    for command in (ListQueues(), Complete(None, ["id"])):
        assert not may(some, "shop", command)
        assert may(all_of_it, "shop", command)
    assert may(some, "shop", Credit(1, 5))
    assert not may(some, "other", Credit(1, 5))


@pytest.mark.parametrize(
    ("pattern", "those", "not_those"),
    [
        ("orders", ["orders"], ["order", "orders2", "Orders", "*"]),
        ("orders*", ["orders", "orders.eu"], ["order", "*"]),
        ("*.eu", [".eu", "orders.eu", "a.b.eu"], ["eu", "orders.eu2", "*"]),
        ("a*b*c", ["abc", "axbxc", "abbcc", "abcbc"], ["ab", "acb", "abcd", "cba", "*"]),
        ("a*a", ["aa", "aba"], ["a", "ab", "*"]),
        ("*", ["", "anything", "*"], []),
    ],
)
def test_a_star_stands_for_anything(pattern: str, those: list[str], not_those: list[str]) -> None:
    assert all(fits(pattern, each) for each in those)
    assert not any(fits(pattern, each) for each in not_those)


def test_a_target_is_asked_for_too() -> None:
    ann = an_account(("shop", "trips", "manage"))
    assert may(ann, "shop", Resubmit("trips/$dead"))
    assert not may(ann, "shop", Resubmit("trips/$dead", target="orders"))


def test_where_a_queue_forwards_to_is_asked_for_too() -> None:
    ann = an_account(("shop", "trips", "manage"), ("shop", "news", "manage"))
    for which in ("forward_to", "forward_dead_to"):
        for target in ("trips", "orders"):
            properties = QueueProperties(**{which: target})  # type: ignore[arg-type]
            for command in (
                CreateQueue("trips", properties),
                UpdateQueue("trips", properties),
                CreateSubscription("news/$sub/a", properties),
            ):
                assert may(ann, "shop", command) == (target == "trips")


def test_rights_on_a_topic_are_rights_on_its_subscriptions() -> None:
    topic, one = (
        an_account(("shop", "news", "listen")),
        an_account(("shop", "news/$sub/a", "listen")),
    )
    for command in (Receive("news/$sub/a", 1), Receive("news/$sub/a/$dead", 1)):
        assert may(topic, "shop", command)
        assert may(one, "shop", command)
    assert may(topic, "shop", Receive("news/$sub/b", 1))
    assert not may(one, "shop", Receive("news/$sub/b", 1))
    assert not may(one, "shop", Receive("news", 1))


def test_a_transaction_needs_what_is_asked_in_it() -> None:
    ann = an_account(("shop", "orders", "send"))
    for command in (Begin(), Commit(1), RollBack(1), Work(1, Send("orders", []))):
        assert may(ann, "shop", command)
        assert not may(ann, "other", command)
    assert not may(ann, "shop", Work(1, Send("trips", [])))
    assert not may(ann, "shop", Work(1, Complete("orders", [1])))


def test_namespaces_are_for_who_manages_them_and_accounts_for_who_manages_all() -> None:
    one = an_account(("shop", "*", "manage listen send"))
    everything = an_account(("*", "*", "manage listen send"))
    assert may(one, "", CreateNamespace("shop"))
    assert may(one, "", DeleteNamespace("shop"))
    assert not may(one, "", DeleteNamespace("other"))
    assert not may(one, "shop", DeleteNamespace("other"))
    for command in (
        ListNamespaces(),
        ListAccounts(),
        SetAccount("x", [], []),
        RevokeAccount("x"),
        SetReader("r", 1),
    ):
        assert not may(one, "shop", command)
        assert may(everything, "", command)


def test_a_principal_is_known_by_its_name_and_either_of_its_keys() -> None:
    keys = [GUARD.seal("ann", "new one"), GUARD.seal("ann", "old one")]
    accounts = {"ann": an_account(("*", "*", "send"), keys=keys)}
    assert GUARD.identify(accounts, "ann", "new one") == Principal("ann", 7)
    assert GUARD.identify(accounts, "ann", "old one") == Principal("ann", 7)
    assert GUARD.identify(accounts, ROOT, "the root's own").everything
    for name, key in [
        ("ann", "the root's own"), ("ann", ""), ("bob", "new one"), (ROOT, "new one"), ("", ""),
        ("ann", "\ud800"), ("$broker", ""), ("$anybody", ""),
    ]:  # fmt: skip
        with pytest.raises(Unauthenticated):
            GUARD.identify(accounts, name, key)


def test_a_principal_is_known_by_a_key_alone_where_that_is_all_there_is() -> None:
    keys = [GUARD.seal("ann", "new one"), GUARD.seal("ann", "old one")]
    accounts = {"ann": an_account(("*", "*", "send"), keys=keys)}
    GUARD.note("ann", accounts["ann"])
    assert GUARD.identify_by_key(accounts, "new one") == Principal("ann", 7)
    assert GUARD.identify_by_key(accounts, "old one") == Principal("ann", 7)
    assert GUARD.identify_by_key(accounts, "the root's own") == Principal(ROOT, everything=True)
    for key in ("", "new", "\ud800", "ann"):
        with pytest.raises(Unauthenticated):
            GUARD.identify_by_key(accounts, key)
    accounts["ann"] = an_account(("*", "*", "send"), keys=keys[:1])
    GUARD.note("ann", accounts["ann"])
    assert GUARD.identify_by_key(accounts, "new one") == Principal("ann", 7)
    with pytest.raises(Unauthenticated):
        GUARD.identify_by_key(accounts, "old one")
    GUARD.note("ann", None)
    with pytest.raises(Unauthenticated):
        GUARD.identify_by_key(accounts, "new one")


def test_a_principal_may_do_nothing_with_a_key_that_was_rotated_away() -> None:
    old, new, newest = (GUARD.seal("ann", key) for key in ("old", "new", "newest"))
    before = {"ann": an_account(("*", "*", "send"), keys=[new, old])}
    after = {"ann": an_account(("*", "*", "send"), keys=[newest, new])}
    by_old, by_new = (GUARD.identify(before, "ann", key) for key in ("old", "new"))
    assert by_old == by_new
    for principal in (by_old, by_new):
        GUARD.check(before, principal, "shop", Send("q", []))
    GUARD.check(after, by_new, "shop", Send("q", []))
    assert not GUARD.knows(after, by_old)
    for command in (Send("q", []), Begin()):
        with pytest.raises(Unauthorized):
            GUARD.check(after, by_old, "shop", command)


def test_a_key_is_sealed_for_one_name_and_with_one_seal(caplog: pytest.LogCaptureFixture) -> None:
    sealed = GUARD.seal("ann", "secret")
    assert b"secret" not in sealed
    assert GUARD.seal("ann", "secret") != sealed
    stolen = {"bob": Account("bob", 1, 0, 0, [], [sealed])}
    with pytest.raises(Unauthenticated):
        GUARD.identify(stolen, "bob", "secret")
    with pytest.raises(Unauthenticated):
        Guard("x", b"t" * 32).identify({"ann": an_account(keys=[sealed])}, "ann", "secret")
    assert "cannot be opened" in caplog.text
    assert "secret" not in caplog.text


def test_a_new_key_is_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) >= 43 for key in keys)


async def an_engine(**options: bool) -> Engine:
    engine = await Engine.open(MemoryStore(), VirtualClock(1_000), 5, GUARD, **options)  # type: ignore[arg-type]
    await engine.ask(BROKER, "", CreateNamespace("shop"))
    return engine


def test_a_revoked_principal_is_out_at_once_and_another_of_its_name_is_not_it() -> None:
    async def main() -> None:
        engine = await an_engine()
        await engine.ask(BROKER, "shop", CreateQueue("q"))
        grants = [Grant("shop", "q", ["send"])]
        command = SetAccount("ann", grants, [GUARD.seal("ann", "k")], new=True)
        await engine.ask(BROKER, "", command)
        ann = GUARD.identify(engine.view.accounts, "ann", "k")
        await engine.ask(ann, "shop", Send("q", [A_MESSAGE]))
        await engine.ask(BROKER, "", RevokeAccount("ann"))
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await engine.ask(ann, "shop", Send("q", [A_MESSAGE]))
            await engine.ask(BROKER, "", SetAccount("ann", grants, command.keys, new=True))
            await engine.ask(BROKER, "", RevokeAccount("ann"))
        await engine.close()

    asyncio.run(main())


def test_who_waits_and_is_revoked_waits_no_more() -> None:
    async def main() -> None:
        engine = await an_engine()
        await engine.ask(BROKER, "shop", CreateQueue("q"))
        await engine.ask(BROKER, "shop", CreateQueue("s", QueueProperties(grouping="session")))
        keys = [GUARD.seal("ann", "k")]
        await engine.ask(BROKER, "", SetAccount("ann", [Grant("*", "*", ["listen"])], keys, True))
        ann = GUARD.identify(engine.view.accounts, "ann", "k")
        number = engine.new_receiver
        waits = [
            asyncio.create_task(engine.ask(ann, "shop", command))
            for command in (
                Receive("q", number(), deadline_ms=90_000),
                AcceptSession("s", number(), deadline_ms=90_000),
            )
        ]
        other = asyncio.create_task(
            engine.ask(BROKER, "shop", Receive("q", number(), deadline_ms=90_000))
        )
        await engine.flush()
        await engine.ask(BROKER, "", SetAccount("ann", [Grant("*", "*", ["send"])], keys))
        for wait in waits:
            with pytest.raises(Unauthorized):
                await wait
        await engine.ask(BROKER, "shop", Send("q", [A_MESSAGE]))
        received = await other
        assert isinstance(received, Received)
        assert len(received.deliveries) == 1
        await engine.close()

    asyncio.run(main())


def test_the_root_s_name_is_taken() -> None:
    for name in (ROOT, "a:b"):
        with pytest.raises(InvalidArgument):
            GUARD.seal(name, "k")


def test_changes_and_refusals_are_written_down(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = await an_engine()
        await engine.ask(BROKER, "shop", CreateQueue("q"))
        await engine.ask(BROKER, "shop", GetQueue("q"))
        await engine.ask(BROKER, "shop", Send("q", [A_MESSAGE]))
        with pytest.raises(Unauthorized):
            await engine.ask(Principal("ann"), "shop", Receive("q", 1))
        await engine.close()

    with caplog.at_level(logging.INFO, "posthouse.audit"):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if record.name == "posthouse.audit"]
    assert said == [
        "$broker: CreateNamespace /shop",
        "$broker: CreateQueue shop/q",
        "ann was refused: Receive shop/q",
    ]


def test_queues_come_into_being_on_first_use_where_that_is_wanted() -> None:
    async def main() -> None:
        engine = await an_engine(auto_create=True)
        await engine.ask(BROKER, "shop", Send("a", [A_MESSAGE]))
        await engine.ask(BROKER, "shop", Receive("b/$dead", engine.new_receiver()))
        await engine.ask(BROKER, "shop", Send("p", [NewMessage(b"\x80", b"x", group="g")]))
        envelope = encode_envelope(Envelope(session_id="g"))
        await engine.ask(BROKER, "shop", Send("s", [NewMessage(envelope, b"x", group="g")]))
        assert isinstance(
            await engine.ask(BROKER, "shop", Receive("p", engine.new_receiver())), Received
        )
        session = await engine.ask(BROKER, "shop", AcceptSession("s", engine.new_receiver()))
        assert isinstance(session, Granted)
        with pytest.raises(NotFound):
            await engine.ask(BROKER, "shop", GetQueue("c"))
        with pytest.raises(NotFound):
            await engine.ask(BROKER, "other", Send("a", [A_MESSAGE]))
        assert engine.view.names("shop") == ["a", "b", "p", "s"]
        await engine.close()
        engine = await an_engine()
        with pytest.raises(NotFound):
            await engine.ask(BROKER, "shop", Send("a", [A_MESSAGE]))
        await engine.close()

    asyncio.run(main())


def test_nobody_without_the_right_to_send_makes_a_queue_by_it() -> None:
    async def main() -> None:
        engine = await an_engine(auto_create=True)
        with pytest.raises(Unauthorized):
            await engine.ask(Principal("ann"), "shop", Send("a", [A_MESSAGE]))
        assert not engine.view.names("shop")
        await engine.close()

    asyncio.run(main())
