"""Runs: several of a group at a time, and only what stands behind one in flight has to wait."""

import msgspec
import pytest

from posthouse.core import evolve
from posthouse.core.commands import (
    Abandon,
    Begin,
    Begun,
    Cancel,
    Commit,
    Complete,
    Credit,
    DeadLetter,
    Defer,
    Delivery,
    Detach,
    Pause,
    Purge,
    Received,
    ReceiveDeferred,
    Release,
    Renew,
    Resume,
    Send,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.errors import MessageNotFound
from posthouse.core.fit_record import fit_record
from posthouse.core.message import ACTIVE, DELAYED, LOCKED
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import Namespaces
from posthouse.core.plan import Delivered
from posthouse.core.records import Locked, Missing, QueueCreated, QueueRestored
from posthouse.core.snapshot import restore, take
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message, bodies, given
from tests.invariants import check


def a_run_queue(world: World, *messages: str, **properties: object) -> str:
    """Messages are given as group:body, or a body alone."""
    queue = world.queue("orders", **{"grouping": "run", "lock_ms": 100, **properties})
    send(world, queue, *messages)
    return queue


def send(world: World, queue: str, *messages: str, **fields: object) -> None:
    new = []
    for each in messages:
        group, _, body = each.rpartition(":")
        new.append(a_message(body, group=group or None, **fields))  # type: ignore[arg-type]
    world.send(queue, *new)


def tokens(deliveries: list[Delivery]) -> dict[str, int]:
    """Tokens by what they hold."""
    return dict(zip(bodies(deliveries), (each.token for each in deliveries), strict=True))


def complete(world: World, queue: str, *held: int) -> None:
    world.do(Complete(queue, list(held)))


def give_back(world: World, queue: str, deliveries: list[Delivery]) -> None:
    world.do(Release(queue, [each.token for each in deliveries]))


# What a receive takes.


def test_a_receive_takes_the_run_of_a_group_and_goes_on_with_the_next() -> None:
    world = World()
    queue = a_run_queue(world, "g1:1", "g1:2", "g2:1", "g1:3", "g2:2")
    assert bodies(world.receive(queue, 4)) == ["1", "2", "3", "1"]
    assert world.receive(queue, 5) == []


def test_a_group_is_left_where_the_limit_is_reached_and_waits_for_what_was_taken() -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2", "g:3")
    held = tokens(world.receive(queue, 2))
    assert world.receive(queue, 5) == []
    complete(world, queue, held["1"])
    assert world.receive(queue, 5) == []
    complete(world, queue, held["2"])
    assert bodies(world.receive(queue, 5)) == ["3"]


def test_new_messages_do_not_open_a_group_of_which_something_is_in_flight() -> None:
    world = World()
    queue = a_run_queue(world, "g:1")
    world.receive(queue)
    send(world, queue, "g:2", "other:3")
    assert bodies(world.receive(queue, 5)) == ["3"]


@pytest.mark.parametrize(
    ("prolonged", "free"),
    [("bar", ["foo"]), ("baz", ["foo", "bar"]), ("foo", []), ("", ["foo", "bar", "baz"])],
)
def test_only_what_stands_before_a_lock_that_was_prolonged_is_given_again(
    prolonged: str, free: list[str]
) -> None:
    world = World()
    queue = a_run_queue(world, "g:foo", "g:bar", "g:baz")
    held = tokens(world.receive(queue, 3))
    if prolonged:
        world.do(Renew(queue, [held[prolonged]], lock_ms=1_000))
    world.advance(100)
    assert bodies(world.receive(queue, 10)) == free
    assert world.receive(queue, 10) == []


@pytest.mark.parametrize("settle", [Abandon, Release])
def test_a_message_that_comes_back_is_given_again_while_later_ones_are_in_flight(
    settle: type[Abandon | Release],
) -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2", "g:3")
    held = tokens(world.receive(queue, 2))
    world.do(settle(queue, [held["1"]]))
    assert bodies(world.receive(queue, 10)) == ["1"]


def test_a_message_that_comes_back_waits_for_an_earlier_one_in_flight() -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2")
    held = tokens(world.receive(queue, 2))
    world.do(Abandon(queue, [held["2"]]))
    assert world.receive(queue, 10) == []
    complete(world, queue, held["1"])
    assert bodies(world.receive(queue, 10)) == ["2"]


def test_a_message_outside_groups_waits_for_none() -> None:
    world = World()
    queue = a_run_queue(world, "1", "g:2", "3", "g:4")
    one, *_ = world.receive(queue, 1)
    assert bodies(world.receive(queue, 10)) == ["2", "4", "3"]
    world.do(Abandon(queue, [one.token]))
    assert bodies(world.receive(queue, 10)) == ["1"]


def test_a_run_goes_no_further_than_a_message_that_has_expired() -> None:
    world = World()
    queue = a_run_queue(world, "g:1")
    send(world, queue, "g:2", ttl_ms=50)
    send(world, queue, "g:3", "h:4")
    world.now_ms += 50  # the tick is late
    assert bodies(world.receive(queue, 10)) == ["1", "4"]
    world.tick()
    assert world.receive(queue, 10) == []


def test_a_receive_that_deletes_takes_runs_too() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "y:2", "x:3")
    assert bodies(world.receive(queue, 2, delete=True)) == ["1", "3"]
    assert bodies(world.receive(queue, 2, delete=True)) == ["2"]
    assert not world.state.queues[queue].groups


def test_priority_chooses_among_groups_and_not_in_them() -> None:
    world = World()
    queue = a_run_queue(world, order="priority")
    send(world, queue, "x:1", priority=1)
    send(world, queue, "x:2", priority=9)
    send(world, queue, "y:3", "4", priority=5)
    assert bodies(world.receive(queue, 10)) == ["3", "4", "1", "2"]


def test_a_group_whose_head_comes_and_goes_keeps_the_priority_of_what_is_first() -> None:
    world = World()
    queue = a_run_queue(world, order="priority")
    send(world, queue, "x:1", priority=9)
    send(world, queue, "x:2", priority=1)
    send(world, queue, "y:3", priority=5)
    [one] = world.receive(queue)
    complete(world, queue, one.token)
    assert bodies(world.receive(queue, 10)) == ["3", "2"]
    check(world.state, world.now_ms)


# Those who wait.


def test_a_long_poll_gets_what_follows_when_all_of_the_run_is_settled() -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2", "g:3", "g:4")
    held = tokens(world.receive(queue, 2))
    waiting = world.wait(queue, 10)
    complete(world, queue, held["1"])
    assert world.deliveries == []
    complete(world, queue, held["2"])
    assert given(world.deliveries) == [(waiting, "3"), (waiting, "4")]


def test_a_long_poll_gets_a_message_whose_lock_expires_before_those_behind_it() -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2")
    held = tokens(world.receive(queue, 2))
    world.do(Renew(queue, [held["2"]], lock_ms=1_000))
    waiting = world.wait(queue, 10)
    assert given(world.advance(100)) == [(waiting, "1")]


def test_a_long_poll_gets_what_is_sent_as_a_run() -> None:
    world = World()
    queue = a_run_queue(world)
    waiting = world.wait(queue, 3)
    send(world, queue, "g:1", "h:2", "g:3", "g:4")
    assert given(world.deliveries) == [(waiting, "1"), (waiting, "3"), (waiting, "4")]
    assert bodies(world.receive(queue, 5)) == ["2"]


def test_receivers_with_credit_get_a_run_each_in_turn() -> None:
    world = World()
    queue = a_run_queue(world)
    one, two = world.attach(queue, 3), world.attach(queue, 3)
    send(world, queue, "x:1", "x:2", "y:3", "y:4", "z:5", "6")
    got = given(world.deliveries)
    assert [text for number, text in got if number == one] == ["1", "2", "5"]
    assert [text for number, text in got if number == two] == ["3", "4", "6"]


def test_a_receiver_with_credit_gets_a_run_as_far_as_its_credit_goes() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    receiver = world.attach(queue, 2)
    first = world.deliveries
    assert given(first) == [(receiver, "1"), (receiver, "2")]
    world.do(Credit(receiver, 5))
    assert world.deliveries == []  # the rest stands behind what it holds
    complete(world, queue, *(each.token for each in first if isinstance(each, Delivery)))
    assert given(world.deliveries) == [(receiver, "3")]


def test_what_a_receiver_with_little_credit_leaves_of_a_run_is_for_nobody_yet() -> None:
    world = World()
    queue = a_run_queue(world)
    one, two = world.attach(queue, 1), world.attach(queue, 5)
    send(world, queue, "x:1", "x:2", "y:3")
    assert sorted(given(world.deliveries)) == [(one, "1"), (two, "3")]


def test_what_a_receiver_that_deletes_leaves_of_a_run_is_for_the_next_behind_other_groups() -> None:
    world = World()
    queue = a_run_queue(world)
    one, two = world.attach(queue, 1, delete=True), world.attach(queue, 2, delete=True)
    send(world, queue, "x:1", "x:2", "y:3")
    assert sorted(given(world.deliveries)) == [(one, "1"), (two, "2"), (two, "3")]
    last = [text for number, text in given(world.deliveries) if number == two]
    assert last == ["3", "2"]


def test_a_run_that_is_handed_out_ends_before_a_message_that_has_expired() -> None:
    world = World()
    queue = a_run_queue(world, "g:1", "g:2")
    send(world, queue, "g:3", ttl_ms=50)
    send(world, queue, "g:4")
    held = tokens(world.receive(queue, 1))
    receiver = world.attach(queue, 10)
    world.now_ms += 50
    complete(world, queue, held["1"])
    assert given(world.deliveries) == [(receiver, "2")]


def test_an_expired_message_frees_what_stands_behind_it_for_who_waits() -> None:
    world = World()
    queue = a_run_queue(world)
    send(world, queue, "g:1", ttl_ms=50)
    [one] = world.receive(queue)
    send(world, queue, "g:2", "g:3")
    world.do(Defer(queue, [one.token]))
    receiver = world.attach(queue, 10)
    assert given(world.deliveries) == [(receiver, "2"), (receiver, "3")]


def test_runs_go_on_after_a_pause() -> None:
    world = World()
    queue = a_run_queue(world)
    receiver = world.attach(queue, 5)
    world.do(Pause(queue, receiving=True))
    send(world, queue, "x:1", "2", "3", "x:4", "y:5")
    world.do(Resume(queue, receiving=True))
    got = given(world.advance(0))
    assert got == [(receiver, text) for text in ("1", "4", "2", "3", "5")]


@pytest.mark.parametrize("state", [LOCKED, ACTIVE])
def test_a_run_goes_on_when_what_is_in_flight_before_it_is_purged(state: int) -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    held = tokens(world.receive(queue, 2))
    world.do(Abandon(queue, [held["2"]]))
    receiver = world.attach(queue, 5)
    world.do(Purge(queue, frozenset({state})))
    assert bodies(world.deliveries) == (["2", "3"] if state == LOCKED else [])
    assert all(each.receiver == receiver for each in world.deliveries)


def test_a_run_goes_on_when_what_is_in_flight_before_it_is_dead_lettered() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2")
    held = tokens(world.receive(queue, 1))
    receiver = world.attach(queue, 5)
    world.do(DeadLetter(queue, [held["1"]]))
    assert given(world.deliveries) == [(receiver, "2")]


def test_a_receiver_that_leaves_gives_its_run_to_the_next_in_order() -> None:
    world = World()
    queue = a_run_queue(world)
    one = world.attach(queue, 5, bound=True)
    send(world, queue, "x:1", "x:2")
    two = world.attach(queue, 5)
    world.do(Detach(one))
    assert given(world.deliveries) == [(two, "1"), (two, "2")]


def test_a_deferred_message_in_flight_holds_back_what_stands_behind_it() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    held = tokens(world.receive(queue, 2))
    world.do(Defer(queue, [held["2"]]))
    answer = world.do(ReceiveDeferred(queue, [2])).answer
    assert isinstance(answer, Received)
    world.do(Abandon(queue, [held["1"]]))
    assert bodies(world.receive(queue, 5)) == ["1"]
    world.do(Defer(queue, [answer.deliveries[0].token]))
    assert world.receive(queue, 5) == []  # it stands behind 1 as well
    world.advance(100)
    assert bodies(world.receive(queue, 5)) == ["1", "3"]


def test_a_deferred_message_that_was_received_often_leaves_no_trace() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    held = tokens(world.receive(queue, 2))
    token = held["2"]
    for _ in range(100):
        world.do(Defer(queue, [token]))
        answer = world.do(ReceiveDeferred(queue, [2])).answer
        assert isinstance(answer, Received)
        token = answer.deliveries[0].token
    assert len(world.state.queues[queue].groups["x"].held) < 80
    complete(world, queue, held["1"], token)
    assert bodies(world.receive(queue, 5)) == ["3"]


def test_a_transaction_that_empties_a_group_and_fills_it_puts_it_behind_the_others() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "y:2", "y:3")
    held = tokens(world.receive(queue, 2))
    begun = world.do(Begin()).answer
    assert isinstance(begun, Begun)
    number = begun.transaction
    world.do(Work(number, Complete(queue, [held["1"], held["2"]])))
    world.do(Work(number, Send(queue, [a_message("4", group="x")])))
    receiver = world.attach(queue, 1)
    world.do(Commit(number))
    assert given(world.deliveries) == [(receiver, "3")]
    world.do(Credit(receiver, 1))
    assert given(world.deliveries) == [(receiver, "4")]


# Delays.


@pytest.mark.parametrize("waits", [False, True])
def test_a_message_that_is_sent_with_a_delay_keeps_its_place_and_holds_the_rest_back(
    waits: bool,
) -> None:
    world = World()
    queue = a_run_queue(world, "x:1")
    if waits:
        world.attach(queue, 1)
    due_ms = world.now_ms + 50
    assert world.send(queue, a_message("2", group="x", due_ms=due_ms)) == range(2, 3)
    send(world, queue, "x:3", "y:4")
    states = ["locked" if waits else "active", "delayed", "active", "active"]
    assert world.peek(queue) == list(zip(range(1, 5), states, strict=True))
    assert bodies(world.receive(queue, 10)) == (["4"] if waits else ["1", "4"])
    receiver = world.wait(queue, 10)
    world.do(Purge(queue, frozenset({LOCKED})))
    got = [each for each in world.advance(50) if isinstance(each, Delivery)]
    assert given(got) == [(receiver, "2"), (receiver, "3")]
    assert [each.message.sequence for each in got] == [2, 3]
    assert got[0].message.enqueued_ms == due_ms - 50
    check(world.state, world.now_ms)


def test_a_delayed_message_of_a_batch_holds_back_the_rest_of_it_from_who_waits() -> None:
    world = World()
    queue = a_run_queue(world, max_messages=100)
    receiver = world.wait(queue, 10)
    due_ms = world.now_ms + 50
    late = a_message("2", group="x", due_ms=due_ms)
    later = a_message("3", group="x", due_ms=due_ms + 50)
    new = [a_message("1", group="x"), late, later, a_message("4", group="x"), a_message("5")]
    world.send(queue, *new)
    assert given(world.deliveries) == [(receiver, "1"), (receiver, "5")]


def test_a_message_outside_groups_that_is_delayed_comes_back_to_its_place() -> None:
    world = World()
    queue = a_run_queue(world)
    world.send(queue, a_message("1", due_ms=world.now_ms + 50), a_message("2"))
    assert bodies(world.receive(queue)) == ["2"]
    send(world, queue, "3")
    world.advance(50)
    assert bodies(world.receive(queue, 2)) == ["1", "3"]


def test_a_message_that_is_sent_with_a_delay_expires_a_life_after_it_is_due() -> None:
    world = World()
    queue = a_run_queue(world)
    world.send(queue, a_message("1", group="x", ttl_ms=20, due_ms=world.now_ms + 50))
    send(world, queue, "x:2")
    world.advance(69)
    assert world.peek(queue) == [(1, "active"), (2, "active")]
    world.advance(1)
    assert world.peek(queue) == [(2, "active")]


def test_a_message_that_is_sent_with_a_delay_can_be_cancelled() -> None:
    world = World()
    queue = a_run_queue(world)
    world.send(queue, a_message("1", group="x", due_ms=world.now_ms + 50))
    send(world, queue, "x:2")
    receiver = world.wait(queue, 10)
    world.do(Cancel(queue, [1]))
    assert given(world.deliveries) == [(receiver, "2")]


def test_a_message_that_came_back_with_a_delay_cannot_be_cancelled() -> None:
    world = World()
    queue = a_run_queue(world, "x:1")
    [one] = world.receive(queue)
    world.do(Abandon(queue, [one.token], delay_ms=50))
    with pytest.raises(MessageNotFound):
        world.do(Cancel(queue, [1]))


def test_a_message_that_comes_back_with_a_delay_holds_back_only_what_is_behind_it() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    held = tokens(world.receive(queue, 2))
    receiver = world.attach(queue, 10)
    world.do(Abandon(queue, [held["2"]], delay_ms=50))
    world.do(Release(queue, [held["1"]]))
    assert given(world.deliveries) == [(receiver, "1")]
    assert given(world.advance(50)) == []  # 1 is in flight again
    world.do(Purge(queue, frozenset({LOCKED})))
    assert given(world.deliveries) == [(receiver, "2"), (receiver, "3")]


def test_a_run_goes_on_when_a_delayed_message_before_it_is_purged() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2")
    [one] = world.receive(queue)
    world.do(Abandon(queue, [one.token], delay_ms=50))
    receiver = world.wait(queue)
    world.do(Purge(queue, frozenset({DELAYED})))
    assert given(world.deliveries) == [(receiver, "2")]


# Turns.


def test_a_group_that_was_served_goes_behind_the_others() -> None:
    world = World()
    queue = a_run_queue(world, "g1:11", "g2:21", "g1:12", "g2:22", "g3:31")
    give_back(world, queue, world.receive(queue, 4))
    assert bodies(world.receive(queue, 10)) == ["31", "11", "12", "21", "22"]


def test_a_group_that_was_served_goes_before_what_comes_later() -> None:
    world = World()
    queue = a_run_queue(world, "x:1")
    give_back(world, queue, world.receive(queue))
    send(world, queue, "y:2", "3")
    assert bodies(world.receive(queue, 10)) == ["1", "2", "3"]


def test_a_group_that_was_served_goes_behind_messages_outside_groups() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "2")
    give_back(world, queue, world.receive(queue))
    assert bodies(world.receive(queue, 10)) == ["2", "1"]


def test_one_busy_group_does_not_keep_others_waiting() -> None:
    world = World()
    queue = a_run_queue(world, *(f"busy:{number}" for number in range(6)), "x:a", "y:b")
    got = []
    for _ in range(5):
        [one] = world.receive(queue)
        got += bodies([one])
        complete(world, queue, one.token)
    assert got == ["0", "a", "b", "1", "2"]


def test_a_receive_by_number_costs_a_group_no_turn() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "y:2")
    give_back(world, queue, world.receive(queue, 2))
    [one] = world.receive(queue, 1)
    world.do(Defer(queue, [one.token]))
    send(world, queue, "x:3")
    answer = world.do(ReceiveDeferred(queue, [1], delete=True)).answer
    assert isinstance(answer, Received)
    assert bodies(world.receive(queue, 10)) == ["2", "3"]


def test_heads_that_are_no_more_are_cleared() -> None:
    world = World()
    queue = a_run_queue(world, "idle:1", "y:2", "z:3")
    for _ in range(200):
        *_, last = world.receive(queue, 3)
        give_back(world, queue, [*_, last])
        assert len(world.state.queues[queue].heads) <= 2 * 3 + 64
    held = tokens(world.receive(queue, 1))
    for number in range(200):
        sent = world.send(queue, a_message(group=f"short{number}"))
        world.do(Purge(queue, frozenset({ACTIVE}), first=sent[0]))
    check(world.state, world.now_ms)
    complete(world, queue, *held.values())
    assert sorted(bodies(world.receive(queue, 10)) + list(held)) == ["1", "2", "3"]


# What is kept.


def a_busy_world() -> World:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3", "y:4", "y:5", "6")
    held = tokens(world.receive(queue, 5))
    world.do(Abandon(queue, [held["2"]], delay_ms=500))
    world.do(Abandon(queue, [held["1"], held["4"]]))
    world.send(queue, a_message("7", group="z", due_ms=world.now_ms + 70))
    send(world, queue, "z:8")
    return world


def the_rest(world: World) -> list[Delivered]:
    world.attach("orders", 20, delete=True)
    return [*world.deliveries, *world.advance(1_000)]


def test_a_replay_and_a_snapshot_give_the_same_runs_in_the_same_order() -> None:
    world, other = a_busy_world(), a_busy_world()
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    spaces = Namespaces(states={"test": world.state})
    other.state = restore(take(spaces)).states["test"]
    check(other.state, world.now_ms)
    assert dump(other.state, bodies=False)["queues"] == dump(world.state, bodies=False)["queues"]
    numbers = [
        [each.message.sequence for each in the_rest(each) if isinstance(each, Delivery)]
        for each in (world, other)
    ]
    assert numbers[0] == numbers[1]
    assert sorted(numbers[0]) == [*range(1, 9)]


def test_a_restart_keeps_whose_turn_it_is() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "y:2", "z:3")
    give_back(world, queue, world.receive(queue, 2))
    assert bodies(world.restarted().receive(queue, 10)) == ["3", "1", "2"]


def test_groups_that_were_copied_keep_their_turns() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "y:2")
    groups: list[tuple[str, bytes | None, int]] = [("x", None, 0), ("y", None, 0)]
    record = QueueRestored(queue, 1, 1, 1, 3, groups=groups, turns=[(2, 8), (2, 7)])
    evolve(world.state, record, world.position)
    assert world.state.queues[queue].turns == 8


def test_records_of_runs_need_a_release_that_knows_them() -> None:
    assert version_needed([QueueCreated("q", 1, QueueProperties(grouping="group"))]) == 1
    assert version_needed([QueueCreated("q", 1, QueueProperties(grouping="run"))]) == 2
    assert version_needed([QueueRestored("q", 1, 1, 1, 1)]) == 1
    assert version_needed([QueueRestored("q", 1, 1, 1, 1, turns=[(1, 1)])]) == 2


def test_of_a_damaged_journal_only_deliveries_that_keep_the_order_are_left() -> None:
    world = World()
    queue = a_run_queue(world, "x:1", "x:2", "x:3")
    world.receive(queue, 2)
    lock = world.state.next_lock
    record = Locked(queue, world.now_ms, [3], lock, world.now_ms + 100)
    assert fit_record(world.state, record) == [record]  # of the same delivery
    late = msgspec.structs.replace(record, time_ms=world.now_ms + 1)
    assert isinstance(fit_record(world.state, late)[0], Missing)
    world.do(Purge(queue, frozenset({LOCKED})))
    assert fit_record(world.state, late) == [late]
    [three] = world.receive(queue)
    world.do(Defer(queue, [three.token]))
    by_number = msgspec.structs.replace(late, first_lock=world.state.next_lock)
    assert fit_record(world.state, by_number) == [by_number]


def test_a_delayed_message_before_it_keeps_a_delivery_from_being_fitted() -> None:
    world = World()
    queue = a_run_queue(world)
    world.send(queue, a_message("1", group="x", due_ms=world.now_ms + 50))
    send(world, queue, "x:2")
    record = Locked(queue, world.now_ms, [2], world.state.next_lock, world.now_ms + 100)
    assert isinstance(fit_record(world.state, record)[0], Missing)
