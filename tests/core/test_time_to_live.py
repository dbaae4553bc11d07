"""Time to live: an expired message is never delivered."""

import pytest

from posthouse.core.commands import (
    Abandon,
    Complete,
    Defer,
    Delivery,
    Pause,
    Purge,
    ReceiveDeferred,
    Release,
    Renew,
    Resume,
    Settle,
)
from posthouse.core.errors import MessageNotFound
from posthouse.core.message import ACTIVE, DEFERRED, DELAYED
from posthouse.core.model import dead_letter_queue
from tests.core.world import World, a_message, bodies, given


def test_an_expired_message_is_dropped() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=100), "b")
    world.advance(99)
    assert world.counts(queue).active == 2
    world.advance(1)
    assert world.peek(queue) == [(2, "active")]
    assert world.counts(queue).dead == 0


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so() -> None:
    world = World()
    queue = world.queue(dead_letter_expired=True)
    world.send(queue, a_message("a", ttl_ms=100))
    world.advance(100)
    [dead] = world.receive(dead_letter_queue(queue))
    assert dead.note is not None
    assert (dead.note.reason, dead.note.source) == ("TTLExpiredException", queue)


def test_dead_letters_do_not_expire() -> None:
    world = World()
    queue = world.queue(dead_letter_expired=True, ttl_ms=100)
    world.send(queue, "a")
    world.advance(100_000)
    assert world.counts(queue).dead == 1


@pytest.mark.parametrize(("message_ms", "queue_ms"), [(100, 200), (200, 100), (None, 100)])
def test_the_smaller_of_two_times_wins(message_ms: int | None, queue_ms: int) -> None:
    world = World()
    queue = world.queue(ttl_ms=queue_ms)
    world.send(queue, a_message(ttl_ms=message_ms))
    world.advance(99)
    assert world.counts(queue).active == 1
    world.advance(1)
    assert world.counts(queue).active == 0


def test_an_expired_message_is_not_delivered_before_the_tick_that_ends_it() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", a_message("b", ttl_ms=100), "c")
    world.now_ms += 100
    assert bodies(world.receive(queue, 5)) == ["a", "c"]


def test_a_message_with_no_life_at_all_is_not_delivered() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 5)
    world.send(queue, a_message(ttl_ms=0))
    assert world.deliveries == []
    assert world.advance(0) == []


def test_a_locked_message_does_not_expire_under_its_holder() -> None:
    world = World()
    queue = world.queue(lock_ms=200)
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.advance(150)
    assert world.peek(queue) == [(1, "locked")]
    world.do(Renew(queue, [delivery.token]))
    world.do(Complete(queue, [delivery.token]))
    assert world.counts(queue).dead == 0


@pytest.mark.parametrize("settle", [Abandon, Release])
@pytest.mark.parametrize("dead", [False, True])
def test_a_locked_message_expires_when_it_comes_back(settle: type[Settle], dead: bool) -> None:
    world = World()
    queue = world.queue(dead_letter_expired=dead)
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.advance(100)
    world.do(settle(queue, [delivery.token]))
    assert world.peek(queue) == []
    assert world.counts(queue).dead == dead


def test_a_locked_message_expires_when_its_lock_does() -> None:
    world = World()
    queue = world.queue(lock_ms=200)
    world.send(queue, a_message("a", ttl_ms=100))
    world.receive(queue)
    world.advance(200)
    assert world.peek(queue) == []


def test_a_message_that_comes_back_in_time_still_expires() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token]))
    world.advance(100)
    assert world.peek(queue) == []


def test_a_deferred_message_expires() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    world.now_ms += 100
    with pytest.raises(MessageNotFound):
        world.do(ReceiveDeferred(queue, [1]))
    world.tick()
    assert world.peek(queue) == []


def test_a_deferred_message_does_not_expire_under_its_holder() -> None:
    world = World()
    queue = world.queue(lock_ms=200)
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.do(Defer(queue, [delivery.token]))
    world.do(ReceiveDeferred(queue, [1]))
    world.advance(100)
    assert world.peek(queue) == [(1, "locked")]


def test_a_delayed_message_expires() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=500))
    world.advance(100)
    assert world.peek(queue) == []
    world.advance(1_000)


@pytest.mark.parametrize("dead", [False, True])
def test_a_message_may_expire_at_the_moment_it_would_wake(dead: bool) -> None:
    world = World()
    queue = world.queue(dead_letter_expired=dead)
    world.send(queue, a_message("a", ttl_ms=100))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=100))
    world.attach(queue, 1)
    assert world.advance(100) == []
    assert world.peek(queue) == []
    assert world.counts(queue).dead == dead


def test_a_message_may_expire_before_it_would_wake_and_be_found_late() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=50))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token], delay_ms=100))
    world.now_ms += 500
    world.tick()
    assert world.peek(queue) == []


def test_a_scheduled_message_lives_from_the_moment_it_is_due() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", due_ms=2_000, ttl_ms=100))
    world.advance(1_099)
    assert world.counts(queue).active == 1
    world.advance(1)
    assert world.peek(queue) == []


def test_a_scheduled_message_that_is_activated_too_late_is_not_delivered() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", due_ms=2_000, ttl_ms=100))
    world.attach(queue, 1)
    world.now_ms = 2_100
    world.tick()
    assert world.deliveries == []


@pytest.mark.parametrize("state", [ACTIVE, DELAYED, DEFERRED])
def test_a_purged_message_does_not_expire(state: int) -> None:
    world = World()
    queue = world.queue(dead_letter_expired=True)
    world.send(queue, a_message("a", ttl_ms=100))
    if state != ACTIVE:
        [delivery] = world.receive(queue)
        ending = Abandon(queue, [delivery.token], delay_ms=50)
        world.do(ending if state == DELAYED else Defer(queue, [delivery.token]))
    world.do(Purge(queue, frozenset({state})))
    world.advance(100)
    assert world.counts(queue).dead == 0


def test_one_that_waits_at_the_dead_letter_queue_gets_what_expires() -> None:
    world = World()
    queue = world.queue(dead_letter_expired=True)
    world.send(queue, a_message("a", ttl_ms=100))
    receiver = world.wait(dead_letter_queue(queue))
    assert given(world.advance(100)) == [(receiver, "a")]
    [dead] = world.deliveries
    assert isinstance(dead, Delivery)
    assert dead.note is not None
    assert dead.note.reason == "TTLExpiredException"


def test_a_session_whose_messages_have_expired_is_not_accepted() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.send(queue, a_message("a", group="x", ttl_ms=100))
    world.now_ms += 100
    assert world.accept(queue) is None


def test_the_next_message_of_a_session_makes_it_available_when_its_head_expires() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.send(queue, a_message("a", group="x", ttl_ms=100), a_message("b", group="x"))
    world.now_ms += 100
    receiver = world.wait_for_session(queue)
    assert given(world.advance(0)) == [(receiver, "x")]


def test_a_session_whose_messages_have_expired_is_not_granted_after_a_pause() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.wait_for_session(queue)
    world.do(Pause(queue, receiving=True))
    world.send(queue, a_message("a", group="x", ttl_ms=100))
    world.do(Resume(queue, receiving=True))
    world.now_ms += 100
    world.tick()
    assert world.deliveries == []


def test_a_message_without_any_life_is_gone_also_when_the_clock_begins_at_zero() -> None:
    world = World()
    world.now_ms = 0
    queue = world.queue()
    world.send(queue, a_message("a", ttl_ms=0))
    world.advance(1)
    assert world.peek(queue) == []
