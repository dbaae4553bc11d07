"""One principal holds no more than a share of what is limited in number."""

import sys
from typing import Any

import pytest

from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    Attach,
    Begin,
    Begun,
    CancelSchedule,
    Command,
    CreateQueue,
    CreateSubscription,
    DeleteQueue,
    Detach,
    RollBack,
    Send,
    SetSchedule,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.errors import QuotaExceeded
from posthouse.core.model import Grant, QueueProperties, subscription_queue
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    Namespaces,
    RemoveReader,
    RevokeAccount,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.core.records import AccountRevoked, ReaderRemoved
from posthouse.core.shares import Held, Holder, check_share, count, share_of
from posthouse.core.snapshot import restore, take
from tests.core.world import World, a_message
from tests.invariants import check

EVE, ANN = Holder("eve", 50), Holder("ann", 50)
LIMIT = 4  # instead of all those below; a share is two


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        ("subscriptions", "SUBSCRIPTIONS_MAX"), ("receiving", "SUBSCRIPTIONS_MAX"),
        ("schedules", "SCHEDULES_MAX"),
        ("transactions", "TRANSACTIONS_MAX"), ("sending", "BLOCKED_MAX"),
        ("namespaces", "NAMESPACES_MAX"), ("namespaces", "ACCOUNTS_MAX"),
        ("namespaces", "READERS_MAX"),
    ):  # fmt: skip
        monkeypatch.setattr(sys.modules[f"posthouse.core.{module}"], name, LIMIT)


def a_world() -> World:
    world = World()
    world.queue("full", overflow="block", max_messages=1)
    world.send("full", "x")
    world.queue("all", delivery="fan-out")
    world.do(CreateQueue("news", QueueProperties(delivery="topic")))
    return world


def a_subscription(number: int, by: Holder) -> Command:
    return CreateSubscription(subscription_queue("news", f"s{number}"), by=by)


def a_schedule(number: int, by: Holder) -> Command:
    return SetSchedule("full", f"s{number}", "every 1 hour", a_message("x"), by=by)


def a_transaction(_: int, by: Holder) -> Command:
    return Begin(by=by)


def a_blocked_send(number: int, by: Holder) -> Command:
    return Send("full", [a_message("x")], deadline_ms=9_000, sender=number, by=by)


def a_receiver(number: int, by: Holder) -> Command:
    return Attach("all", number, by=by)


MAKERS = [a_subscription, a_schedule, a_transaction, a_blocked_send, a_receiver]


@pytest.mark.parametrize("make", MAKERS)
def test_one_principal_takes_its_share_and_others_have_the_rest(make: Any) -> None:
    world = a_world()
    for number in (1, 2):
        world.do(make(number, EVE))
    with pytest.raises(QuotaExceeded) as refused:
        world.do(make(3, EVE))
    assert refused.value.holder == "eve"
    assert (refused.value.current, refused.value.maximum) == (2, 2)
    assert "'eve' has used up its share of" in str(refused.value)
    assert "principal_share" in str(refused.value)
    world.do(make(4, ANN))
    world.do(make(5, Holder()))  # nobody in particular: the root
    check(world.state, world.now_ms)


@pytest.mark.parametrize(("make", "end"), [
    (a_subscription, DeleteQueue(subscription_queue("news", "s1"))),
    (a_subscription, DeleteQueue("news")), (a_schedule, CancelSchedule("s1")),
    (a_blocked_send, Detach(1)), (a_blocked_send, DeleteQueue("full")), (a_receiver, Detach(1)),
])  # fmt: skip
def test_what_has_ended_does_not_count(make: Any, end: Command) -> None:
    world = a_world()
    for number in (1, 2):
        world.do(make(number, EVE))
    world.do(end)
    check(world.state, world.now_ms)
    if end != DeleteQueue("news") and end != DeleteQueue("full"):
        world.do(make(3, EVE))
    check(world.state, world.now_ms)
    check(world.replayed(), world.now_ms, handed_on=False)


def test_transactions_end_by_themselves_and_count_no_longer() -> None:
    world = a_world()
    begun = [world.do(Begin(1_000, by=EVE)).answer for _ in range(2)]
    assert isinstance(begun[0], Begun)
    world.do(RollBack(begun[0].transaction))
    world.do(Begin(5_000, by=EVE))
    world.advance(1_000)
    check(world.state, world.now_ms)
    world.do(Begin(by=EVE))


def test_bytes_have_shares_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["posthouse.core.transactions"], "TRANSACTIONS_BYTES_MAX", 1_000)
    monkeypatch.setattr(sys.modules["posthouse.core.sending"], "BLOCKED_BYTES_MAX", 1_000)
    world = a_world()
    world.queue("q")
    mine, others = world.do(Begin(by=EVE)).answer, world.do(Begin(by=ANN)).answer
    assert isinstance(mine, Begun)
    assert isinstance(others, Begun)
    large = Send("q", [a_message("x" * 450)])
    world.do(Work(mine.transaction, large))
    with pytest.raises(QuotaExceeded, match="bytes in open transactions"):
        world.do(Work(mine.transaction, large))
    world.do(Work(others.transaction, large))
    check(world.state, world.now_ms)
    wait = [
        Send("full", [a_message("x" * 300)], deadline_ms=9_000, sender=number, by=by)
        for number, by in ((1, EVE), (2, EVE), (3, ANN))
    ]
    world.do(wait[0])
    with pytest.raises(QuotaExceeded, match="bytes in sends that wait for room"):
        world.do(wait[1])
    world.do(wait[2])
    check(world.state, world.now_ms)


def test_each_topic_has_shares_of_its_own() -> None:
    world = a_world()
    world.do(CreateQueue("other", QueueProperties(delivery="topic")))
    for number in (1, 2):
        world.do(a_subscription(number, EVE))
    world.do(CreateSubscription(subscription_queue("other", "s"), by=EVE))


def test_a_schedule_that_another_replaces_stays_its_makers() -> None:
    world = a_world()
    world.do(a_schedule(1, EVE))
    again = SetSchedule("full", "s1", "every 2 hours", a_message("y"), new=False, by=ANN)
    world.do(again)
    assert world.state.schedules["s1"].by == "eve"
    check(world.state, world.now_ms)
    check(world.replayed(), world.now_ms, handed_on=False)


def test_who_made_what_is_in_the_journal_and_in_snapshots() -> None:
    world = a_world()
    for make in (a_subscription, a_schedule):
        world.do(make(1, EVE))
    world.do(CreateQueue("mine", by=EVE))
    replayed = world.replayed()
    assert dump(replayed) == dump(world.state)
    assert replayed.held == world.state.held
    state = restore(take(Namespaces({"test": world.state}, ["test"]))).states["test"]
    assert state.held == world.state.held
    assert dump(state, bodies=False) == dump(world.state, bodies=False)


# Beside the namespaces.


class Broker:
    def __init__(self) -> None:
        self.spaces, self.journal = Namespaces(), []  # type: ignore[var-annotated]

    def do(self, command: SpaceCommand) -> None:
        for record in spaces.decide(self.spaces, command, 1).records:
            self.journal.append(record)
            spaces.evolve(self.spaces, record, len(self.journal))

    def replayed(self) -> Namespaces:
        again = Namespaces()
        for position, record in enumerate(self.journal):
            spaces.evolve(again, record, position + 1)
        return again


def a_namespace(number: int, by: Holder) -> SpaceCommand:
    return CreateNamespace(f"n{number}", by=by)


def an_account(number: int, by: Holder) -> SpaceCommand:
    return SetAccount(f"a{number}", [Grant("*", "*", ["send"])], [b"key"], new=True, by=by)


def a_reader(number: int, by: Holder) -> SpaceCommand:
    return SetReader(f"r{number}", 1, by=by)


BESIDE = [
    (a_namespace, DeleteNamespace("n1")), (an_account, RevokeAccount("a1")),
    (a_reader, RemoveReader("r1")),
]  # fmt: skip


@pytest.mark.parametrize(("make", "end"), BESIDE)
def test_what_is_beside_the_namespaces_has_shares_too(make: Any, end: SpaceCommand) -> None:
    broker = Broker()
    for number in (1, 2):
        broker.do(make(number, EVE))
    with pytest.raises(QuotaExceeded, match="'eve' has used up its share"):
        broker.do(make(3, EVE))
    broker.do(make(3, ANN))
    broker.do(make(4, Holder()))
    with pytest.raises(QuotaExceeded, match="too much for the broker"):
        broker.do(make(5, Holder()))
    assert broker.replayed().held == broker.spaces.held
    assert restore(take(broker.spaces)).held == broker.spaces.held
    broker.do(end)
    broker.do(make(1, EVE))


def test_what_another_changes_stays_its_makers() -> None:
    broker = Broker()
    broker.do(an_account(1, EVE))
    broker.do(a_reader(1, EVE))
    broker.do(SetAccount("a1", [Grant("*", "*", ["listen"])], [b"key"], by=ANN))
    broker.do(SetReader("r1", 5, by=ANN))
    assert {key[2] for key in broker.spaces.held} == {"eve"}
    assert (broker.spaces.accounts["a1"].by, broker.spaces.readers["r1"].by) == ("eve", "eve")


@pytest.mark.parametrize(("most", "percent", "share"), [
    (10_000, 50, 5_000), (10_000, 1, 100), (10, 1, 1), (1, 50, 1), (7, 50, 3), (7, 100, 7),
])  # fmt: skip
def test_a_share_is_a_part_of_a_limit_and_one_at_least(most: int, percent: int, share: int) -> None:
    assert share_of(most, percent) == share


def test_nothing_is_counted_for_nobody() -> None:
    held: Held = {}
    count(held, "things", "", "", 5)
    count(held, "things", "", "eve", 0)
    assert not held
    check_share(held, Holder(), "things", "", 1, 99)
    with pytest.raises(QuotaExceeded, match=r"'eve' has used up its share of things of 'q': 0 of"):
        check_share(held, EVE, "things", "q", 1, 99)


def test_what_a_repair_has_lost_is_not_counted_when_it_ends() -> None:
    world = Namespaces()
    spaces.evolve(world, AccountRevoked("lost", 1), 1)
    spaces.evolve(world, ReaderRemoved("lost", 1), 2)
    assert world == Namespaces()
