"""At most so many messages of a queue are locked at a time."""

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    Abandon,
    Attach,
    Command,
    Complete,
    Credit,
    Defer,
    Detach,
    Purge,
    ReceiveDeferred,
    Renew,
    UpdateQueue,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, QuotaExceeded
from posthouse.core.message import LOCKED, Attempt
from posthouse.core.model import QueueProperties
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message, bodies, given
from tests.invariants import check


def sound(world: World) -> bool:
    check(world.state, world.now_ms)
    return dump(world.replayed()) == dump(world.state)


def test_a_receive_gets_no_more_than_may_be_locked_and_the_next_is_refused() -> None:
    world = World()
    queue = world.queue(max_locked=2)
    world.send(queue, "a", "b", "c")
    held = world.receive(queue, 5)
    assert bodies(held) == ["a", "b"]
    with pytest.raises(QuotaExceeded, match="2 messages are locked, and max_locked is 2"):
        world.receive(queue)
    assert bodies(world.receive(queue, delete=True)) == ["c"]
    world.do(Complete(queue, [held[0].token]))
    assert world.receive(queue) == []
    assert sound(world)
    assert version_needed([each for _, each in world.journal]) == 2


def test_a_receive_that_may_wait_waits_until_a_lock_has_ended() -> None:
    world = World()
    queue = world.queue(max_locked=1)
    world.send(queue, "a", "b")
    [held] = world.receive(queue)
    waiting = world.wait(queue)
    world.advance(0)
    assert sound(world)
    due_ms = next_deadline_ms(world.state)
    assert due_ms is not None
    assert due_ms > world.now_ms  # nothing is looked at again and again
    world.do(Complete(queue, [held.token]))
    assert next_deadline_ms(world.state) == 0
    assert given(world.advance(0)) == [(waiting, "b")]
    assert sound(world)
    assert not world.state.dispatch_pending or world.advance(0) == []


@pytest.mark.parametrize("end", ["expire", "abandon", "defer", "purge", "raise"])
def test_whatever_ends_a_lock_makes_room_for_who_waits(end: str) -> None:
    world = World()
    queue = world.queue(max_locked=1, lock_ms=500)
    world.send(queue, "a", "b")
    [held] = world.receive(queue)
    waiting = world.wait(queue)
    world.advance(0)
    if end == "expire":
        found = world.advance(500)
    elif end == "raise":
        world.do(UpdateQueue(queue, QueueProperties(max_locked=2)))
        found = world.advance(0)
    else:
        ends: dict[str, Command] = {
            "abandon": Abandon(queue, [held.token]), "defer": Defer(queue, [held.token]),
            "purge": Purge(queue, frozenset((LOCKED,))),
        }  # fmt: skip
        world.do(ends[end])
        found = [*world.deliveries, *world.advance(0)]
    expected = "a" if end in ("expire", "abandon") else "b"
    assert given(found) == [(waiting, expected)]
    assert sound(world)


def test_a_send_to_a_full_queue_waits_in_it_and_who_deletes_gets_it() -> None:
    world = World()
    queue = world.queue(max_locked=1)
    holder = world.attach(queue, 5)
    world.send(queue, "a", "b")
    assert given(world.deliveries) == [(holder, "a")]
    assert world.advance(0) == []
    taker = world.attach(queue, 5, delete=True)
    assert given([*world.deliveries, *world.advance(0)]) == [(taker, "b")]
    world.send(queue, "c")
    assert given([*world.deliveries, *world.advance(0)]) == [(taker, "c")]
    assert sound(world)


def test_credit_is_filled_up_to_the_limit() -> None:
    world = World()
    queue = world.queue(max_locked=2)
    world.send(queue, "a", "b", "c", "d")
    first = world.attach(queue, 1)
    assert given(world.deliveries) == [(first, "a")]
    world.do(Credit(first, 5))
    assert given(world.deliveries) == [(first, "b")]
    world.advance(0)
    world.do(Attach(queue, 77, 3))
    assert world.deliveries == []
    assert world.advance(0) == []
    world.do(Detach(77))
    tokens = list(world.state.locks)
    world.do(Complete(queue, tokens))
    assert given([*world.deliveries, *world.advance(0)]) == [(first, "c"), (first, "d")]
    assert sound(world)


def test_deferred_messages_are_locked_within_the_limit() -> None:
    world = World()
    queue = world.queue(max_locked=1, lock_ms=100, late_settling=True)
    world.send(queue, "a", "b")
    [first] = world.receive(queue)
    world.do(Defer(queue, [first.token]))
    [second] = world.receive(queue)
    with pytest.raises(QuotaExceeded, match="max_locked"):
        world.do(ReceiveDeferred(queue, [1]))
    world.do(ReceiveDeferred(queue, [1], delete=True))
    world.do(Complete(queue, [second.token]))
    assert sound(world)


def test_a_late_renewal_beyond_the_limit_is_refused() -> None:
    world = World()
    queue = world.queue(lock_ms=100, late_settling=True)
    world.send(queue, "a", "b")
    world.receive(queue, 2)
    world.advance(100)
    world.do(UpdateQueue(queue, QueueProperties(max_locked=1, late_settling=True)))
    with pytest.raises(QuotaExceeded):
        world.do(Renew(queue, [Attempt(1, 1), Attempt(2, 1)]))
    world.do(Renew(queue, [Attempt(1, 1)]))
    with pytest.raises(QuotaExceeded):
        world.do(Renew(queue, [Attempt(2, 1)]))


def test_in_sessions_the_limit_is_for_all_of_them_together() -> None:
    world = World()
    queue = world.queue(requires_session=True, max_locked=2)
    for group in ("s", "t"):
        world.send(queue, *(a_message(f"{group}{n}", group=group) for n in range(2)))
    s, t = world.hold(queue, "s"), world.hold(queue, "t")
    [first, _] = world.receive(queue, 5, session=s.token)
    reader = world.attach(queue, 5, session=t.token)
    assert world.deliveries == []
    world.advance(0)
    world.do(Complete(queue, [first.token], session=s.token))
    assert given([*world.deliveries, *world.advance(0)]) == [(reader, "t0")]
    world.send(queue, a_message("t2", group="t"))
    assert [*world.deliveries, *world.advance(0)] == []
    assert sound(world)


def test_the_limit_is_a_positive_number_of_queues_with_competing_receivers() -> None:
    world = World()
    for wrong in (
        {"max_locked": 0}, {"max_locked": 1, "delivery": "topic"},
        {"max_locked": 1, "delivery": "fan-out"},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="max_locked"):
            world.queue("q", **wrong)


def test_several_who_wait_are_looked_at_together() -> None:
    world = World()
    queue = world.queue(max_locked=1)
    world.send(queue, "a", "b")
    [held] = world.receive(queue)
    first, second = world.wait(queue), world.wait(queue)
    assert world.advance(0) == []
    assert next_deadline_ms(world.state) == world.now_ms + 1_000
    world.do(Complete(queue, [held.token]))
    assert given(world.advance(0)) == [(first, "b")]
    assert second in world.state.receivers
    assert sound(world)


def test_the_limit_holds_for_runs_that_are_pushed() -> None:
    world = World()
    queue = world.queue(grouping="run", max_locked=2, requires_session=True)
    world.send(queue, *[a_message(name, group=name[0]) for name in ("a1", "a2", "a3", "b1")])
    receiver = world.attach(queue, credit=10)
    assert given(world.deliveries) == [(receiver, "a1"), (receiver, "a2")]
    world.advance(0)
    assert world.counts(queue).locked == 2
    world.send(queue, a_message("c1", group="c"))
    assert world.deliveries == []
    sound(world)


def test_the_limit_holds_for_runs_that_come_while_receivers_wait() -> None:
    world = World()
    queue = world.queue(grouping="run", max_locked=2)
    first, second = world.attach(queue, credit=10), world.attach(queue, credit=10)
    world.send(queue, *[a_message(name, group=name[0]) for name in ("a1", "a2", "a3", "b1")])
    assert given(world.deliveries) == [(first, "a1"), (first, "a2")]
    third = world.attach(queue, credit=1, delete=True)
    assert given(world.deliveries) == [(third, "b1")]  # it locks nothing
    assert given(world.advance(0)) == []
    assert world.counts(queue).locked == 2
    assert second
    sound(world)
