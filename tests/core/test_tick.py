"""Ticks: a limited number of steps, and whether there is more."""

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    STEPS_MAX,
    Abandon,
    Attach,
    Complete,
    DeleteQueue,
    Detach,
    Pause,
    Receive,
    ReleaseSession,
    RenewSession,
    Resume,
    Send,
    SetSessionState,
    Tick,
)
from posthouse.core.errors import InvalidArgument, SessionLockLost
from posthouse.core.model import dead_letter_queue
from posthouse.core.records import is_kept, span
from tests.core.world import World, a_message, bodies, given

MANY = STEPS_MAX + 5


def ticks(world: World) -> int:
    """How many ticks it takes until there is nothing more to do."""
    count = 1
    while world.tick():
        count += 1
    return count


def is_due(world: World) -> bool:
    due_ms = next_deadline_ms(world.state)
    return due_ms is not None and due_ms <= world.now_ms


def test_a_tick_with_nothing_to_do_does_nothing() -> None:
    world = World()
    assert not world.tick()
    assert world.do(Tick()).records == []
    assert next_deadline_ms(world.state) is None


def test_the_next_deadline_is_that_of_whatever_is_due_first() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, idle_delete_ms=9_000, lock_ms=700)
    sessions = world.queue("sessions", grouping="session", lock_ms=600)
    deadlines = [next_deadline_ms(world.state)]
    world.send(queue, a_message(id="1"))
    world.do(Receive(queue, 1))
    deadlines.append(next_deadline_ms(world.state))
    world.hold(sessions, "x")
    deadlines.append(next_deadline_ms(world.state))
    world.send(queue, a_message(ttl_ms=500))
    deadlines.append(next_deadline_ms(world.state))
    world.send(queue, a_message(due_ms=1_400))
    deadlines.append(next_deadline_ms(world.state))
    world.wait(dead_letter_queue(queue), ms=300)
    deadlines.append(next_deadline_ms(world.state))
    assert deadlines == [10_000, 1_700, 1_600, 1_500, 1_400, 1_300]


@pytest.mark.parametrize("kind", ["locks", "expiry", "schedules", "delays", "waits", "idle"])
def test_much_that_is_due_at_once_takes_several_ticks(kind: str) -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    if kind == "idle":
        for number in range(MANY):
            world.queue(f"q{number}", idle_delete_ms=100)
    elif kind == "waits":
        for _ in range(MANY):
            world.wait(queue, ms=100)
    else:
        due_ms, ttl_ms = 1_100 * (kind == "schedules"), 100 if kind == "expiry" else None
        world.send(queue, *[a_message(due_ms=due_ms, ttl_ms=ttl_ms)] * MANY)
        if kind in ("locks", "delays"):
            tokens = [each.token for each in world.receive(queue, MANY)]
            if kind == "delays":
                world.do(Abandon(queue, tokens, delay_ms=100))
    world.now_ms += 100
    assert world.tick()
    assert is_due(world)
    while world.tick():
        pass
    world.advance(0)
    counts = world.counts(queue)
    left = {"locks": MANY, "schedules": MANY, "delays": MANY}.get(kind, 0)
    assert (counts.active, counts.locked, counts.scheduled, counts.delayed) == (left, 0, 0, 0)
    assert world.info(queue).receivers == 0
    assert not is_due(world)


def test_many_keys_are_forgotten_in_several_ticks() -> None:
    world = World()
    queues = [
        world.queue(name, duplicate_detection=True, duplicate_window_ms=100) for name in "abc"
    ]
    messages = [a_message(id=str(number)) for number in range(600)]
    for queue in queues:
        world.do(Send(queue, messages))
    world.now_ms += 100
    assert world.tick()
    assert is_due(world)
    assert not world.tick()
    assert not is_due(world)
    assert list(world.send("c", messages[0])) == [601]


def test_many_sessions_end_in_several_ticks() -> None:
    world = World()
    queue = world.queue(grouping="session", lock_ms=100)
    for number in range(MANY):
        world.hold(queue, str(number))
    world.now_ms += 100
    assert ticks(world) == 2
    assert not is_due(world)


def test_a_tick_takes_at_most_so_many_steps_though_one_session_holds_more() -> None:
    world = World()
    queue = world.queue(grouping="session", lock_ms=100)
    world.do(Send(queue, [a_message(group="x")] * (2 * STEPS_MAX)))
    held = world.hold(queue, "x")
    world.receive(queue, 2 * STEPS_MAX, session=held.token)
    world.now_ms += 100
    while True:
        outcome = world.do(Tick())
        assert sum(span(record) for record in outcome.records if is_kept(record)) <= STEPS_MAX + 1
        if not is_due(world):
            break
    assert world.counts(queue).active == 2 * STEPS_MAX


def test_after_a_pause_the_waiting_are_fed_in_several_ticks() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 10_000)
    world.do(Pause(queue, receiving=True))
    world.send(queue, *["a"] * MANY)
    world.do(Resume(queue, receiving=True))
    assert world.tick()
    assert len(bodies(world.deliveries)) == STEPS_MAX
    world.send(queue, "late")
    assert world.deliveries == []
    assert given(world.advance(0)) == [(receiver, "a")] * 5 + [(receiver, "late")]
    assert not is_due(world)


def test_after_a_pause_sessions_are_fed_in_several_ticks() -> None:
    world = World()
    queue = world.queue(grouping="session")
    held = [world.hold(queue, name) for name in "xyz"]
    readers = [world.attach(queue, 10_000, session=each.token) for each in held]
    accepting = world.wait_for_session(queue)
    world.do(Pause(queue, receiving=True))
    for name in "xyzw":
        world.do(Send(queue, [a_message(group=name)] * 600))
    world.do(Resume(queue, receiving=True))
    assert world.tick()
    assert len(bodies(world.deliveries)) == STEPS_MAX
    got = [receiver for receiver, _ in given(world.advance(0))]
    assert got.count(readers[1]) == 200
    assert got.count(readers[2]) == 600
    assert got.count(accepting) == 1


def test_what_becomes_free_in_the_tick_that_dispatches_is_given_in_the_next() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a")
    world.receive(queue)
    receiver = world.attach(queue, 5)
    world.do(Pause(queue, receiving=True))
    world.do(Resume(queue, receiving=True))
    world.now_ms += 100
    assert given(world.advance(0)) == [(receiver, "a")]


def test_two_queues_are_fed_in_one_tick() -> None:
    world = World()
    queues = [world.queue(name) for name in "abc"]
    for queue in queues:
        world.attach(queue, 1_000)
        world.do(Pause(queue, receiving=True))
        world.send(queue, *["x"] * 600)
        world.do(Resume(queue, receiving=True))
    assert world.tick()
    assert len(world.deliveries) == STEPS_MAX
    assert len(world.advance(0)) == 800


# Deleted queues are freed bit by bit.


def a_full_queue(world: World, name: str) -> str:
    queue = world.queue(name, lock_ms=100, ttl_ms=150, dead_letter_expired=True)
    world.send(queue, *["a"] * MANY)
    locked = world.receive(queue, 300, by_id=True)
    world.do(Abandon(queue, [each.token for each in locked[:100]], delay_ms=50))
    world.send(queue, *[a_message(due_ms=1_100)] * 100)
    return queue


def test_a_deleted_queue_does_not_act() -> None:
    world = World()
    queue = a_full_queue(world, "a")
    world.do(DeleteQueue(queue))
    assert world.queue(queue) == "a"
    world.now_ms += 200
    world.advance(0)
    assert world.peek(queue) == []
    assert world.counts(queue).dead == 0
    assert next_deadline_ms(world.state) is None


def test_a_tick_says_that_there_is_more_of_a_deleted_queue_to_free() -> None:
    world = World()
    world.do(DeleteQueue(a_full_queue(world, "a")))
    assert world.tick()
    while world.tick():
        pass
    assert not is_due(world)


def test_other_queues_go_on_while_a_deleted_one_is_freed() -> None:
    world = World()
    world.do(DeleteQueue(a_full_queue(world, "a")))
    queue = world.queue("b", lock_ms=100)
    world.send(queue, "x")
    world.receive(queue)
    receiver = world.attach(queue, 1)
    world.now_ms += 100
    got = []
    for _ in range(5):
        world.tick()
        got += given(world.deliveries)
    assert got == [(receiver, "x")]


def test_the_sessions_of_a_deleted_queue_are_freed() -> None:
    world = World()
    queue = world.queue(grouping="session", lock_ms=100)
    reader = world.attach(queue, 1, session=world.hold(queue, "x").token)
    world.send(queue, a_message(group="x"))
    for number in range(MANY):
        held = world.hold(queue, str(number))
        world.do(SetSessionState(queue, held.token, b"s"))
    world.do(DeleteQueue(queue))
    assert given(world.deliveries) == [(reader, "deleted")]
    world.queue(queue, grouping="session")
    again = world.hold(queue, "x", lock_ms=10_000)
    world.now_ms += 100
    world.advance(0)
    assert world.receive(queue, session=again.token) == []
    assert next_deadline_ms(world.state) == again.until_ms


def test_a_queue_can_be_deleted_while_it_is_to_be_fed() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 1)
    world.do(Pause(queue, receiving=True))
    world.send(queue, "a")
    world.do(Resume(queue, receiving=True))
    world.do(DeleteQueue(queue))
    assert world.advance(10) == []
    assert next_deadline_ms(world.state) is None


def test_idle_queues_are_deleted_with_their_messages() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=100)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    world.send(queue, "b")
    world.advance(100)
    assert world.queue(queue) == "orders"
    assert world.peek(queue) == []


def test_sessions_with_state_alone_are_freed_with_their_queue() -> None:
    world = World()
    queue = world.queue(grouping="session")
    held = world.hold(queue, "x")
    world.do(SetSessionState(queue, held.token, b"s"))
    world.do(ReleaseSession(queue, held.token))
    world.do(DeleteQueue(queue))
    world.advance(0)
    assert next_deadline_ms(world.state) is None


def test_a_receiver_with_very_many_locks_ends_in_several_ticks() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 2_500, bound=True)
    world.do(Send(queue, [a_message()] * 2_500))
    world.do(Detach(receiver))
    assert world.counts(queue).active == STEPS_MAX
    assert next_deadline_ms(world.state) == 0
    assert world.tick()
    assert world.counts(queue).active == 2 * STEPS_MAX
    assert not world.tick()
    assert world.counts(queue).active == 2_500
    assert not world.state.orphans


def test_a_released_session_with_very_many_locks_ends_in_several_ticks() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.do(Send(queue, [a_message(group="x")] * 2_500))
    held = world.hold(queue, "x")
    world.receive(queue, 2_500, session=held.token)
    world.do(ReleaseSession(queue, held.token))
    with pytest.raises(SessionLockLost):
        world.do(RenewSession(queue, held.token))
    world.advance(0)
    assert world.counts(queue).active == 2_500
    world.hold(queue, "x")


def test_sessions_of_a_deleted_queue_do_not_disturb_those_that_expire_beside_them() -> None:
    world = World()
    gone = world.queue("gone", grouping="session")
    live = world.queue("live", grouping="session")
    world.do(Send(gone, [a_message(group="x")] * STEPS_MAX))
    held = world.hold(gone, "x", lock_ms=100)
    world.receive(gone, STEPS_MAX, session=held.token)
    other = world.hold(live, "y", lock_ms=200)
    world.do(DeleteQueue(gone))
    world.advance(1_000)
    with pytest.raises(SessionLockLost):
        world.do(RenewSession(live, other.token))
    world.hold(live, "y")


def test_a_receiver_number_is_free_again_only_when_its_locks_have_ended() -> None:
    world = World()
    queue = world.queue()
    world.do(Attach(queue, 5, 3_000, bound=True))
    world.do(Send(queue, [a_message()] * 3_000))
    world.do(Detach(5))
    with pytest.raises(InvalidArgument):
        world.do(Attach(queue, 5))
    world.advance(0)
    world.do(Attach(queue, 5))
    assert world.counts(queue).active == 3_000


def test_messages_behind_very_many_expired_ones_are_delivered_in_the_end() -> None:
    world = World()
    queue = world.queue()
    for _ in range(3):
        world.do(Send(queue, [a_message(ttl_ms=10)] * 10_000))
    world.send(queue, "live")
    world.now_ms += 10
    receiver = world.attach(queue, 5)
    assert given(world.advance(0)) == [(receiver, "live")]


def test_keys_are_forgotten_though_the_oldest_is_always_used_again() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    for window in range(20):
        world.send(queue, *[a_message(id=f"{window} {number}") for number in range(20)])
        world.now_ms += 100
        world.do(Send(queue, [a_message()], keys=["oldest"]))
        world.advance(0)
    assert len(world.state.queues[queue].seen) <= 41
