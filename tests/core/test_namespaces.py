"""Namespaces: isolated worlds."""

from collections.abc import Sequence
from typing import Any

import pytest

from posthouse.core import State, decide, evolve
from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    Attach,
    Command,
    Complete,
    CreateQueue,
    DeleteQueue,
    Notice,
    Peek,
    Peeked,
    Receive,
    Received,
    Send,
)
from posthouse.core.errors import AlreadyExists, InvalidArgument, LockLost, NotFound, QuotaExceeded
from posthouse.core.model import Account, Grant, Reader
from posthouse.core.namespaces import (
    ACCOUNTS_MAX,
    EXTRAS_CHARS_MAX,
    READERS_MAX,
    SEALED_BYTES_MAX,
    CreateNamespace,
    DeleteNamespace,
    ListAccounts,
    ListNamespaces,
    ListReaders,
    Namespaces,
    RemoveReader,
    RevokeAccount,
    SetAccount,
    SetReader,
    SpaceCommand,
    SpaceOutcome,
)
from posthouse.core.records import Missing, NamespaceCreated, NamespaceDeleted
from tests.core.world import a_message

GRANTS = [Grant("shop", "orders*", ["send"])]


def an_account(
    name: str, *, grants: Sequence[Grant] = GRANTS, keys: Sequence[bytes] = (b"k",)
) -> SetAccount:
    return SetAccount(name, grants, keys, new=True)


class Broker:
    """Namespaces, and commands to them and to what is in them."""

    def __init__(self, *names: str) -> None:
        self.spaces = Namespaces()
        self.position = 1
        for salt, name in enumerate(names):
            self.do(CreateNamespace(name, 1, salt))

    def do(self, command: SpaceCommand) -> SpaceOutcome:
        outcome = spaces.decide(self.spaces, command, 1_000)
        for record in outcome.records:
            spaces.evolve(self.spaces, record, self.position)
            self.position += 1
        return outcome

    def state(self, name: str) -> State:
        return self.spaces.states[name]

    def inside(self, name: str, command: Command) -> object:
        outcome = decide(self.state(name), command, 1_000)
        for record in outcome.records:
            evolve(self.state(name), record, self.position)
            self.position += 10
        return outcome.answer


def test_namespaces_are_created_and_listed_page_by_page() -> None:
    broker = Broker("b", "c", "a")
    assert broker.do(ListNamespaces()).answer == ["a", "b", "c"]
    assert broker.do(ListNamespaces(limit=2)).answer == ["a", "b"]
    assert broker.do(ListNamespaces(after="b")).answer == ["c"]


def test_a_deleted_namespace_is_gone() -> None:
    broker = Broker("a", "b")
    broker.do(DeleteNamespace("a"))
    assert broker.do(ListNamespaces()).answer == ["b"]
    with pytest.raises(NotFound):
        broker.do(DeleteNamespace("a"))
    broker.do(CreateNamespace("a", 1, 9))
    assert broker.state("a").queues == {}


def test_the_receivers_in_a_deleted_namespace_are_told() -> None:
    broker = Broker("a")
    broker.inside("a", CreateQueue("orders"))
    broker.inside("a", Attach("orders", 5))
    assert broker.do(DeleteNamespace("a")).deliveries == [Notice(5, "deleted")]


def test_a_name_is_taken_once_whatever_its_case() -> None:
    broker = Broker("Shop")
    with pytest.raises(AlreadyExists):
        broker.do(CreateNamespace("SHOP", 1, 1))


@pytest.mark.parametrize(
    "command",
    [
        CreateNamespace("", 1, 1),
        CreateNamespace("$a", 1, 1),
        CreateNamespace("a", -1, 1),
        CreateNamespace("a", 1, 1 << 32),
        ListNamespaces(limit=0),
        ListAccounts(limit=0),
        an_account("$ann"),
        an_account("ann", grants=[]),
        an_account("ann", grants=[Grant("*", "*", [])]),
        an_account("ann", grants=[Grant("*", "*", ["reign"])]),  # type: ignore[list-item]
        an_account("ann", grants=[Grant("x" * 261, "*", ["send"])]),
        an_account("ann", grants=[Grant("*", "x" * 261, ["send"])]),
        an_account("ann", keys=[]),
        an_account("ann", keys=[b"a", b"b", b"c"]),
        an_account("ann", keys=[b"x" * 1_025]),
        SetReader("$spark", 1),
        SetReader("spark", -1),
    ],
)
def test_what_makes_no_sense_is_refused(command: SpaceCommand) -> None:
    with pytest.raises(InvalidArgument):
        Broker().do(command)


def test_nothing_crosses() -> None:
    broker = Broker("a", "b")
    tokens = []
    for name in ("a", "b"):
        broker.inside(name, CreateQueue("orders"))
        broker.inside(name, Send("orders", [a_message(name, id="m")]))
        received = broker.inside(name, Receive("orders", 1, by_id=name == "a"))
        assert isinstance(received, Received)
        tokens += [delivery.token for delivery in received.deliveries]
    for lock in (tokens[0], "m"):
        with pytest.raises(LockLost):
            broker.inside("b", Complete("orders", [lock]))
    broker.inside("a", Complete("orders", [tokens[0]]))
    peeked = broker.inside("b", Peek("orders"))
    assert isinstance(peeked, Peeked)
    assert [seen.message.body for seen in peeked.messages] == [b"b"]


def test_tokens_differ_though_namespaces_have_one_salt() -> None:
    spaces_ = Namespaces()
    eras = []
    for position in (1, 2, 3):
        spaces.evolve(spaces_, NamespaceCreated("a", 0, 1, 7), position)
        eras.append(spaces_.states["a"].era)
        spaces.evolve(spaces_, NamespaceDeleted("a"), 9)
    assert len(set(eras)) == 3


def test_positions_that_a_repair_could_not_keep_change_nothing() -> None:
    world = Namespaces()
    spaces.evolve(world, Missing(5), 1)
    assert world == Namespaces()


def test_an_account_is_made_changed_listed_and_revoked() -> None:
    broker = Broker()
    broker.do(an_account("bob"))
    broker.do(an_account("ann"))
    other = [Grant("*", "*", ["manage"])]
    broker.do(SetAccount("bob", other, [b"new", b"k"]))
    ann = Account("ann", 2, 1_000, 1_000, GRANTS, [b"k"])
    bob = Account("bob", 1, 1_000, 1_000, other, [b"new", b"k"])
    assert broker.do(ListAccounts()).answer == [ann, bob]
    assert broker.do(ListAccounts(after="ann")).answer == [bob]
    broker.do(RevokeAccount("ann"))
    assert broker.do(ListAccounts()).answer == [bob]
    broker.do(an_account("ann"))
    assert broker.spaces.accounts["ann"].number == 5  # another one of that name


def test_a_password_and_extras_stay_until_they_are_changed() -> None:
    broker = Broker()
    broker.do(SetAccount("ann", [], [], new=True, password=b"hash", extras={"a": "b"}))
    broker.do(SetAccount("ann", GRANTS, [b"k"]))
    ann = Account("ann", 1, 1_000, 1_000, GRANTS, [b"k"], b"hash", {"a": "b"})
    assert broker.spaces.accounts["ann"] == ann
    broker.do(SetAccount("ann", GRANTS, [b"k"], password=b"", extras={}))
    assert broker.spaces.accounts["ann"] == Account("ann", 1, 1_000, 1_000, GRANTS, [b"k"])
    with pytest.raises(InvalidArgument, match="keys"):
        broker.do(SetAccount("ann", GRANTS, []))


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": bytes(SEALED_BYTES_MAX + 1)},
        {"extras": {"a": "x" * (EXTRAS_CHARS_MAX + 1)}},
        {"extras": {"a": "x" * (EXTRAS_CHARS_MAX // 2), "b": "x" * (EXTRAS_CHARS_MAX // 2)}},
    ],
)
def test_what_is_kept_of_an_account_has_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Broker().do(SetAccount("ann", GRANTS, [b"k"], new=True, **wrong))


def test_an_account_is_made_once_and_only_one_that_is_there_is_changed() -> None:
    broker = Broker()
    broker.do(an_account("ann"))
    with pytest.raises(AlreadyExists):
        broker.do(an_account("ann"))
    with pytest.raises(NotFound):
        broker.do(SetAccount("bob", GRANTS, [b"k"]))
    with pytest.raises(NotFound):
        broker.do(RevokeAccount("bob"))


KEY = "rule@shop/orders"
OF_ORDERS = [Grant("shop", "Orders", ["send"])]


def with_a_key() -> Broker:
    """Of a queue."""
    broker = Broker("shop", "other")
    broker.inside("shop", CreateQueue("Orders"))
    broker.do(an_account(KEY, grants=OF_ORDERS))
    return broker


def test_a_key_of_an_entity_is_known_as_such() -> None:
    broker = with_a_key()
    broker.do(an_account("ann", grants=OF_ORDERS))
    broker.do(an_account("ann@shop/orders.example", grants=OF_ORDERS))
    assert spaces.keys_of(broker.spaces, "shop", "ORDERS") == [KEY]
    assert spaces.keys_of(broker.spaces, "other", "Orders") == []
    broker.do(an_account(f"second{KEY}", grants=OF_ORDERS))
    broker.do(RevokeAccount(KEY))
    assert spaces.keys_of(broker.spaces, "shop", "Orders") == [f"second{KEY}"]
    broker.do(SetAccount(f"second{KEY}", GRANTS, [b"k"]))  # it is none any more
    assert broker.spaces.entity_accounts == {}


def test_a_key_is_made_only_for_an_entity_that_is_there() -> None:
    broker = Broker("shop")
    for name, grants in (
        (KEY, OF_ORDERS),
        ("rule@nowhere/orders", [Grant("nowhere", "orders", ["send"])]),
    ):
        with pytest.raises(NotFound):
            broker.do(an_account(name, grants=grants))


def test_the_keys_of_entities_go_with_their_namespace() -> None:
    broker = with_a_key()
    broker.inside("other", CreateQueue("Orders"))
    broker.do(an_account("rule@other/orders", grants=[Grant("other", "Orders", ["send"])]))
    broker.do(an_account("ann"))
    broker.do(DeleteNamespace("shop"))
    assert set(broker.spaces.accounts) == {"rule@other/orders", "ann"}
    assert spaces.void_accounts(broker.spaces) == []


def test_a_key_is_void_where_its_entity_is_gone_or_another() -> None:
    broker = with_a_key()
    assert spaces.void_accounts(broker.spaces) == []
    broker.inside("shop", DeleteQueue("Orders"))
    assert spaces.void_accounts(broker.spaces) == [KEY]
    broker.inside("shop", CreateQueue("Orders"))
    assert spaces.void_accounts(broker.spaces) == [KEY]
    spaces.evolve(broker.spaces, NamespaceDeleted("shop"), 999)  # as older brokers wrote it
    assert spaces.void_accounts(broker.spaces) == [KEY]


def test_a_reader_goes_forward_only() -> None:
    broker = Broker()
    broker.do(SetReader("spark", 7))
    broker.do(SetReader("audit", 3))
    broker.do(SetReader("spark", 9))
    with pytest.raises(InvalidArgument):
        broker.do(SetReader("spark", 8))
    assert broker.do(ListReaders()).answer == [Reader("audit", 3, 1_000), Reader("spark", 9, 1_000)]
    broker.do(RemoveReader("spark"))
    with pytest.raises(NotFound):
        broker.do(RemoveReader("spark"))
    assert broker.do(ListReaders()).answer == [Reader("audit", 3, 1_000)]


def test_there_are_only_so_many_accounts_and_readers() -> None:
    broker = Broker()
    for number in range(ACCOUNTS_MAX):
        name = f"p{number}"
        broker.spaces.accounts[name] = Account(name, number, 0, 0, GRANTS, [b"k"])
    for number in range(READERS_MAX):
        broker.spaces.readers[f"r{number}"] = Reader(f"r{number}", 0, 0)
    with pytest.raises(QuotaExceeded):
        broker.do(an_account("one more"))
    with pytest.raises(QuotaExceeded):
        broker.do(SetReader("one more", 1))
    broker.do(SetReader("r5", 1))
    broker.do(SetAccount("p5", GRANTS, [b"k"]))
