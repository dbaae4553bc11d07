"""How deliveries end."""

import pytest
from msgspec.msgpack import Ext

from posthouse.core.commands import (
    BATCH_MAX,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    Detach,
    Received,
    ReceiveDeferred,
    Release,
    Renew,
    Send,
    Settle,
    Settled,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, LockLost, NotFound, SessionLockLost
from posthouse.core.filters.values import compare
from posthouse.core.message import TIMESTAMP, NewMessage, Properties, timestamp, uuid
from posthouse.core.model import dead_letter_queue
from posthouse.core.records import Completed, DeadLettered, Locked, Returned
from tests.core.world import World, a_message, bodies, text
from tests.invariants import check

Settling = type[Settle]


def test_a_completed_message_is_gone() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    assert world.peek(queue) == []
    assert world.info(queue).size_bytes == 0


def test_an_expired_lock_cannot_be_completed() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.now_ms += 100
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))


def test_an_abandoned_message_returns_to_its_place_not_to_the_tail() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    [first] = world.receive(queue)
    world.do(Abandon(queue, [first.token]))
    assert [text(each) for each in world.receive(queue, 3)] == ["a", "b", "c"]


def test_release_takes_the_delivery_count_back() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [first] = world.receive(queue)
    world.do(Release(queue, [first.token]))
    [second] = world.receive(queue)
    assert (first.count, second.count) == (1, 1)


def test_a_message_is_dead_lettered_when_its_last_delivery_fails() -> None:
    world = World()
    queue = world.queue(max_delivery=2)
    world.send(queue, "a")
    for _ in range(2):
        [delivery] = world.receive(queue)
        world.do(Abandon(queue, [delivery.token]))
    assert world.receive(queue) == []
    [dead] = world.receive(dead_letter_queue(queue))
    assert dead.note is not None
    assert dead.note.reason == "MaxDeliveryCountExceeded"


def test_a_message_can_be_dead_lettered_with_a_reason_and_properties() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    command = DeadLetter(
        queue, [delivery.token], reason="bad", description="no colour", properties={"try": 1}
    )
    world.do(command)
    [dead] = world.receive(dead_letter_queue(queue))
    assert dead.note is not None
    assert (dead.note.reason, dead.note.description) == ("bad", "no colour")
    assert dead.note.properties == {"try": 1}
    assert (dead.note.source, dead.note.source_sequence) == (queue, 1)


def test_a_deferred_message_is_not_given_to_receivers() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    assert world.receive(queue) == []
    assert world.peek(queue) == [(1, "deferred")]


@pytest.mark.parametrize("settle", [Complete, Abandon, Release, Defer, DeadLetter, Renew])
def test_a_settled_lock_is_lost(settle: Settling) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    with pytest.raises(LockLost):
        world.do(settle(queue, [delivery.token]))


@pytest.mark.parametrize("settle", [Complete, Abandon, Release, Defer, DeadLetter, Renew])
def test_an_expired_lock_is_lost_before_the_tick_that_ends_it(settle: Settling) -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.now_ms += 100
    with pytest.raises(LockLost):
        world.do(settle(queue, [delivery.token]))


@pytest.mark.parametrize("settle", [Complete, Abandon, Release, Defer, DeadLetter, Renew])
def test_a_batch_is_settled_whole_or_not_at_all(settle: Settling) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    one, two = world.receive(queue, 2)
    for tokens in ([one.token, 5], [one.token, two.token, one.token]):
        with pytest.raises(LockLost):
            world.do(settle(queue, tokens))
    assert world.peek(queue) == [(1, "locked"), (2, "locked")]


@pytest.mark.parametrize("settle", [Complete, Abandon, Release, Defer, DeadLetter, Renew])
def test_a_batch_can_be_settled_in_part(settle: Settling) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    one, _ = world.receive(queue, 2)
    answer = world.do(settle(queue, [5, one.token, "no id"], partial=True)).answer
    assert isinstance(answer, Settled)
    assert list(answer.lost) == [5, "no id"]
    assert world.peek(queue)[-1] == (2, "locked")


@pytest.mark.parametrize("settle", [Complete, Abandon, Release, Defer, DeadLetter, Renew])
def test_a_lock_of_another_queue_is_lost(settle: Settling) -> None:
    world = World()
    queue, other = world.queue("a"), world.queue("b")
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(LockLost):
        world.do(settle(other, [delivery.token]))


@pytest.mark.parametrize("locks", [[], [1] * (BATCH_MAX + 1)])
def test_a_batch_has_a_size(locks: list[int]) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(Complete(queue, locks))


def test_settling_asks_for_the_queue_it_names() -> None:
    with pytest.raises(NotFound):
        World().do(Complete("none", [1]))


def test_the_queue_can_be_left_out() -> None:
    world = World()
    one, two = world.queue("a"), world.queue("b")
    world.send(one, "a")
    world.send(two, "b")
    tokens = [world.receive(queue)[0].token for queue in (one, two)]
    world.do(Complete(None, tokens))
    assert world.peek(one) == world.peek(two) == []


def test_a_lock_of_a_deleted_queue_is_lost() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(DeleteQueue(queue))
    with pytest.raises(LockLost):
        world.do(Complete(None, [delivery.token]))
    world.queue(queue)
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))


# By message id.


def test_a_lock_can_be_settled_by_message_id() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", id="m"), a_message("b", id="n"))
    world.receive(queue, 2, by_id=True)
    world.do(Complete(None, ["m"]))
    world.do(Complete(queue, ["n"]))
    assert world.peek(queue) == []


def test_only_those_who_asked_for_it_settle_by_message_id() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message(id="m"))
    world.receive(queue)
    with pytest.raises(LockLost):
        world.do(Complete(None, ["m"]))


def test_messages_of_one_id_are_settled_one_by_one() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message(id="m"), a_message(id="m"), a_message(id="m"))
    world.receive(queue, 3, by_id=True)
    world.do(Complete(None, ["m"]))
    assert world.peek(queue) == [(2, "locked"), (3, "locked")]
    world.do(Complete(None, ["m", "m"]))
    assert world.peek(queue) == []


def test_a_message_id_is_looked_for_in_the_queue_that_is_named() -> None:
    world = World()
    one, two = world.queue("a"), world.queue("b")
    for queue in (one, two):
        world.send(queue, a_message(id="m"))
        world.receive(queue, by_id=True)
    world.do(Complete(two, ["m"]))
    assert (world.peek(one), world.peek(two)) == ([(1, "locked")], [])


def test_a_message_id_is_looked_for_among_the_locks_that_hold() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message(id="m"), a_message(id="m"))
    world.receive(queue, by_id=True, lock_ms=10)
    world.receive(queue, by_id=True)
    world.now_ms += 10
    world.do(Complete(queue, ["m"]))
    assert [state for _, state in world.peek(queue)] == ["locked"]
    world.tick()
    assert world.peek(queue) == [(1, "active")]


def test_a_message_id_is_not_looked_for_in_deleted_queues() -> None:
    world = World()
    one, two = world.queue("a"), world.queue("b")
    for queue in (one, two):
        world.send(queue, a_message(id="m"))
        world.receive(queue, by_id=True)
    world.do(DeleteQueue(one))
    world.do(Complete(None, ["m"]))
    assert world.peek(two) == []


# Abandon.


def test_abandoning_changes_properties() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], properties={"n": 1, "m": 1}))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], properties={"n": 2}))
    [delivery] = world.receive(queue)
    assert delivery.note is not None
    assert delivery.note.properties == {"n": 2, "m": 1}


def test_an_abandoned_message_can_be_delayed() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=500))
    assert world.peek(queue) == [(1, "delayed"), (2, "active")]
    world.advance(499)
    assert world.peek(queue)[0] == (1, "delayed")
    world.advance(1)
    assert [text(each) for each in world.receive(queue, 2)] == ["a", "b"]


@pytest.mark.parametrize(
    "properties",
    [{"n": 1 << 70}, {"s": "\ud800"}, {"o": object()}, {"big": "x" * 70_000}],
    ids=["number", "text", "object", "size"],
)
@pytest.mark.parametrize("settle", [Abandon, Defer, DeadLetter])
def test_properties_must_be_such_as_a_message_can_carry(
    settle: type[Abandon | Defer | DeadLetter], properties: Properties
) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(InvalidArgument):
        world.do(settle(queue, [delivery.token], properties=properties))


def test_a_delay_must_make_sense() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(InvalidArgument):
        world.do(Abandon(queue, [delivery.token], delay_ms=-1))


# Counting.


def test_the_delivery_count_rises_at_each_delivery() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a")
    counts = []
    for _ in range(3):
        counts += [each.count for each in world.receive(queue)]
        world.advance(100)
    assert counts == [1, 2, 3]


def test_a_last_delivery_that_expires_is_dead_lettered() -> None:
    world = World()
    queue = world.queue(lock_ms=100, max_delivery=1)
    world.send(queue, "a", "b")
    world.receive(queue)
    world.advance(100)
    assert world.peek(queue) == [(2, "active")]
    assert world.counts(queue).dead == 1


def test_a_last_delivery_can_be_released() -> None:
    world = World()
    queue = world.queue(max_delivery=1)
    world.send(queue, "a")
    for _ in range(3):
        [delivery] = world.receive(queue)
        world.do(Release(queue, [delivery.token]))
    assert world.peek(queue) == [(1, "active")]


def test_an_expiry_counts_only_where_all_endings_do() -> None:
    world = World()
    queue = world.queue(lock_ms=100, max_delivery=2, counting="abandon")
    world.send(queue, "a")
    for _ in range(5):
        [delivery] = world.receive(queue)
        assert delivery.count == 1
        world.advance(100)
    for _ in range(2):
        [delivery] = world.receive(queue)
        world.do(Abandon(queue, [delivery.token]))
    assert world.counts(queue).dead == 1


def test_a_message_dead_lettered_by_its_last_abandon_keeps_what_was_changed() -> None:
    world = World()
    queue = world.queue(max_delivery=1)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], properties={"n": 1}))
    [dead] = world.receive(dead_letter_queue(queue))
    assert dead.note is not None
    assert dead.note.properties == {"n": 1}


# Defer and dead-letter.


def test_deferring_changes_properties() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token], properties={"n": 1}))
    answer = world.do(ReceiveDeferred(queue, [1])).answer
    assert isinstance(answer, Received)
    [delivery] = answer.deliveries
    assert delivery.note is not None
    assert (delivery.note.properties, delivery.count) == ({"n": 1}, 2)


@pytest.mark.parametrize("field", ["reason", "description"])
def test_the_texts_of_a_dead_letter_are_limited(field: str) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(InvalidArgument):
        world.do(DeadLetter(queue, [delivery.token], **{field: "x" * 5_000}))  # type: ignore[arg-type]


# Renew.


def test_a_renewed_lock_lives_longer() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.advance(60)
    assert world.do(Renew(queue, [delivery.token])).answer == Settled([], [1_160])
    world.advance(99)
    assert world.do(Renew(queue, [delivery.token], lock_ms=7)).answer == Settled([], [1_166])
    world.advance(6)
    assert world.peek(queue) == [(1, "locked")]
    world.advance(1)
    assert world.peek(queue) == [(1, "active")]


def test_a_session_cannot_be_named_without_its_queue() -> None:
    world = World()
    with pytest.raises(InvalidArgument):
        world.do(Complete(None, [1], session=1))


@pytest.mark.parametrize("settle", [Complete, Abandon])
def test_a_session_that_is_not_held_settles_nothing(settle: Settling) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(SessionLockLost):
        world.do(settle(queue, [delivery.token], session=1))


def test_completing_frees_bound_locks_and_native_bytes() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue)
    world.send(queue, a_message("a", native=b"123"))
    [delivery] = world.receive(queue, bound=receiver)
    world.do(Complete(queue, [delivery.token]))
    assert world.info(queue).size_bytes == 0
    world.do(Detach(receiver))
    assert world.peek(queue) == []


def test_a_message_with_a_note_can_be_completed() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], properties={"n": 1}))
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    assert world.peek(queue) == []
    assert world.info(queue).size_bytes == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"list": (1, 2)},
        {"large": 1 << 64},
        {"half": "\ud800"},
        {"n" * 300: 1},
        {"long": "x" * 70_000},
    ],
)
def test_properties_are_values_that_a_message_can_carry(properties: Properties) -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(InvalidArgument):
        world.do(Abandon(queue, [delivery.token], properties=properties))


def test_changes_to_a_message_cannot_pile_up_without_end() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    for name in "ab":
        first, second = world.receive(queue, 2)
        world.do(Abandon(queue, [second.token]))
        world.do(Abandon(queue, [first.token], properties={name: "x" * 30_000}))
    first, second = world.receive(queue, 2)
    with pytest.raises(InvalidArgument):
        world.do(Defer(queue, [second.token, first.token], properties={"c": "x" * 30_000}))


def test_times_and_uuids_are_property_values_and_other_extensions_are_not() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    with pytest.raises(InvalidArgument):
        world.do(Abandon(queue, [delivery.token], properties={"x": Ext(-1, b"1234")}))
    with pytest.raises(InvalidArgument):
        world.do(Abandon(queue, [delivery.token], properties={"x": Ext(TIMESTAMP, bytes(10))}))
    changes: Properties = {
        "at": timestamp(5), "local": timestamp(-5, zoneless=True), "id": uuid(bytes(16)),
    }  # fmt: skip
    assert compare("=", changes["local"], timestamp(-5))
    world.do(Abandon(queue, [delivery.token], properties=changes))
    [delivery] = world.receive(queue)
    assert delivery.note is not None
    assert delivery.note.properties == changes
    assert dump(world.replayed()) == dump(world.state)


def test_a_message_with_no_envelope_has_no_id() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.do(Send(queue, [NewMessage(b"", b"a"), NewMessage(b"\xff", b"b")]))
    assert len(world.receive(queue, 5, by_id=True)) == 2


def test_each_renewed_lock_lives_as_long_as_its_queue_says() -> None:
    world = World()
    for name, lock_ms in (("short", 10), ("long", 90)):
        world.queue(name, lock_ms=lock_ms)
        world.send(name, a_message(name, id=name))
        world.receive(name, by_id=True)
    now_ms = world.now_ms
    answer = world.do(Renew(None, ["long", "short"])).answer
    assert answer == Settled([], [now_ms + 90, now_ms + 10])


# Held back between attempts.


def test_a_message_is_held_back_longer_after_each_attempt() -> None:
    world = World()
    queue = world.queue(backoff_ms=[100, 500], lock_ms=1_000)
    world.send(queue, "m")
    for wait_ms in (100, 500, 500):
        [delivery] = world.receive(queue)
        world.do(Abandon(queue, [delivery.token]))
        world.advance(wait_ms - 1)
        assert world.receive(queue) == []
        world.advance(1)
    [delivery] = world.receive(queue)
    world.advance(1_000)  # the lock expires: an attempt too
    assert world.counts(queue).delayed == 1
    world.advance(500)
    [delivery] = world.receive(queue)
    world.do(Release(queue, [delivery.token]))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=50))
    world.advance(50)
    assert len(world.receive(queue)) == 1
    check(world.state, world.now_ms)


def test_messages_that_end_together_are_held_back_as_each_of_them_has_to_be() -> None:
    world = World()
    queue = world.queue(backoff_ms=[100, 500])
    world.send(queue, "often")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token]))
    world.advance(100)
    world.send(queue, "once")
    tokens = [each.token for each in world.receive(queue, 2)]
    world.do(Abandon(queue, tokens))
    world.advance(100)
    assert bodies(world.receive(queue, 2)) == ["once"]
    world.advance(400)
    assert bodies(world.receive(queue, 2)) == ["often"]


@pytest.mark.parametrize("backoff_ms", [[-1], [1] * 101, ["soon"]])
def test_a_list_of_delays_is_checked(backoff_ms: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="backoff_ms"):
        World().queue(backoff_ms=backoff_ms)


def test_records_tell_how_long_and_how_often() -> None:
    """For who reads along; the state knows it anyway."""
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    world.advance(500)
    first = world.receive(queue, 2)
    _, locked = world.journal[-1]
    assert isinstance(locked, Locked)
    assert (locked.waited_ms, locked.counts) == ([500, 500], [])
    world.advance(30)
    world.do(Abandon(queue, [first[0].token]))
    _, returned = world.journal[-1]
    assert isinstance(returned, Returned)
    assert (returned.settled_ms, returned.counts) == ([30], [])
    again = world.receive(queue, 1)
    world.advance(7)
    world.do(Complete(queue, [again[0].token, first[1].token]))
    _, completed = world.journal[-1]
    assert isinstance(completed, Completed)
    assert (completed.settled_ms, completed.counts) == ([7, 37], [2, 1])


def test_what_was_not_noted_is_not_told() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [held] = world.receive(queue)
    world.state.locks[held.token].since_ms = 0  # as in what an older version wrote
    world.do(DeadLetter(queue, [held.token]))
    _, dead = world.journal[-1]
    assert isinstance(dead, DeadLettered)
    assert dead.settled_ms == [None]
