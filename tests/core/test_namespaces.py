"""Namespaces: isolated worlds."""

import pytest

from posthouse.core import State, decide, evolve
from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    Attach,
    Command,
    Complete,
    CreateQueue,
    Notice,
    Peek,
    Peeked,
    Receive,
    Received,
    Send,
)
from posthouse.core.errors import AlreadyExists, InvalidArgument, LockLost, NotFound
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    ListNamespaces,
    Namespaces,
    SpaceCommand,
    SpaceOutcome,
)
from posthouse.core.records import Missing, NamespaceCreated, NamespaceDeleted
from tests.core.world import a_message


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
