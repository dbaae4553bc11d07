"""Rate limits."""

from collections.abc import Callable

import pytest

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.throttle import BUCKETS_MAX, Buckets, Throttle, cost_of
from posthouse.core.commands import (
    Begin,
    Command,
    Complete,
    CreateQueue,
    Credit,
    Detach,
    Peek,
    Receive,
    Renew,
    Send,
    Work,
)
from posthouse.core.errors import Throttled
from posthouse.core.message import NewMessage


class Bucket(Buckets):
    def take(self, name: str, cost: int) -> None:
        self.check(name)
        super().take(name, cost)


ANN, BEN = Principal("ann"), Principal("ben")


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def a_send(count: int = 1, queue: str = "q") -> Send:
    return Send(queue, [NewMessage(b"", b"")] * count)


def refused(work: Callable[[], None]) -> int:
    """For how long."""
    with pytest.raises(Throttled) as raised:
        work()
    return raised.value.wait_ms


def test_as_much_as_may_be_is_let_through_and_then_it_waits() -> None:
    now = Hand()
    buckets = Bucket(10, now)
    for _ in range(10):
        buckets.take("ann", 1)
    assert refused(lambda: buckets.take("ann", 1)) == 101
    buckets.take("ben", 1)
    now.seconds += 0.1
    buckets.take("ann", 1)
    now.seconds += 60
    for _ in range(10):
        buckets.take("ann", 1)
    refused(lambda: buckets.take("ann", 1))


def test_many_at_once_are_let_through_and_paid_for_later() -> None:
    now = Hand()
    buckets = Bucket(10, now)
    buckets.take("ann", 50)
    assert refused(lambda: buckets.take("ann", 1)) == 4_101
    now.seconds += 4.2
    buckets.take("ann", 1)


def test_principals_addresses_and_entities_have_limits_of_their_own() -> None:
    now = Hand()
    throttle = Throttle(2, 1, 3, now)
    throttle.check(ANN, "shop", a_send(2))
    refused(lambda: throttle.check(ANN, "shop", a_send()))
    throttle.check(BEN, "shop", a_send())
    refused(lambda: throttle.check(BEN, "shop", Receive("q/$dead", 1)))
    throttle.check(BEN, "other", Receive("q", 1))
    throttle.check(BROKER, "shop", a_send())
    throttle.check_address("10.0.0.1")
    refused(lambda: throttle.check_address("10.0.0.1"))
    throttle.check_address("10.0.0.1", 0)
    throttle.check_address("10.0.0.2")


def test_without_limits_nothing_is_held_up() -> None:
    throttle = Throttle()
    assert not throttle.is_on
    for _ in range(1_000):
        throttle.check(ANN, "shop", a_send(100))
        throttle.check_address("10.0.0.1")


@pytest.mark.parametrize(
    ("command", "cost"),
    [
        (a_send(3), 3), (Work(1, a_send(2)), 2), (Receive("q", 1, 100), 1), (Peek("q"), 1),
        (CreateQueue("q"), 1), (Complete("q", [1]), 0), (Work(1, Complete("q", [1])), 0),
        (Renew("q", [1]), 0), (Detach(1), 0), (Credit(1, 5), 0),
    ],
)  # fmt: skip
def test_what_ends_something_costs_nothing(command: Command, cost: int) -> None:
    assert cost_of(command) == cost


def test_buckets_that_are_full_are_forgotten() -> None:
    now = Hand()
    buckets = Bucket(10, now)
    for number in range(BUCKETS_MAX):
        buckets.take(str(number), 1)
    buckets.take("in debt", 500)
    now.seconds += 10
    buckets.take("one more", 1)
    buckets.take("and another", 1)
    assert len(buckets._levels) <= 4
    refused(lambda: buckets.take("in debt", 1))


def test_a_transaction_is_not_begun_for_nothing() -> None:
    throttle = Throttle(principal=2, now=Hand())
    throttle.check(ANN, "default", Begin())
    throttle.check(ANN, "default", Begin())
    assert refused(lambda: throttle.check(ANN, "default", Begin())) > 0


def test_names_in_debt_are_not_looked_through_for_each_new_one() -> None:
    looked = 0

    class Counting(Buckets):
        def _forget(self, now: float) -> None:
            nonlocal looked
            looked += 1
            super()._forget(now)

    buckets = Counting(1, Hand())
    for n in range(BUCKETS_MAX + 1_000):
        buckets.take(f"{n}", 1_000)
    assert looked == 1


def test_a_bucket_may_hold_more_than_a_second_s_worth() -> None:
    hand = Hand()
    bucket = Bucket(10, hand, burst=20)
    for _ in range(20):
        bucket.take("a", 1)
    with pytest.raises(Throttled):
        bucket.take("a", 1)
    hand.seconds += 1.0
    for _ in range(10):
        bucket.take("a", 1)
    with pytest.raises(Throttled):
        bucket.take("a", 1)
