"""What a namespace makes of its clock being moved, and of its contents being moved."""

import pytest

from posthouse.core.commands import (
    BATCH_MAX,
    Complete,
    Content,
    Move,
    Progress,
    SetClock,
    StepClock,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, LockLost
from tests.core.world import World, a_message, given
from tests.invariants import check, check_positions


def test_when_the_clock_jumps_nobody_loses_a_lock() -> None:
    world = World()
    world.queue(lock_ms=1_000)
    world.send("orders", "a", "b")
    first, second = world.receive("orders", 2)
    world.now_ms += 7_000
    world.do(StepClock(6_500))
    world.do(Complete("orders", [first.token]))
    assert dump(world.replayed()) == dump(world.state)
    check(world.state, world.now_ms)
    world.advance(500)
    with pytest.raises(LockLost):
        world.do(Complete("orders", [second.token]))


def test_when_the_clock_jumps_sessions_and_waits_last_longer_too() -> None:
    world = World()
    world.queue(lock_ms=1_000, grouping="session")
    world.queue("other")
    world.hold("orders", "s")
    waiting = world.wait("other", ms=2_000)
    world.attach("other")
    world.now_ms += 6_000
    world.do(StepClock(6_000))
    assert given(world.advance(999)) == []
    assert world.state.sessions
    world.advance(1)
    assert not world.state.sessions
    assert given(world.advance(1_000)) == [(waiting, "timed-out")]


def test_a_message_expires_by_the_clock_though_it_jumped() -> None:
    world = World()
    world.queue()
    world.send("orders", a_message("x", ttl_ms=5_000))
    world.now_ms += 10_000
    world.do(StepClock(10_000))
    world.tick()
    assert world.counts("orders").active == 0


def test_a_clock_is_never_set_back() -> None:
    world = World()
    world.do(SetClock(5_000))
    assert world.state.clock_ms == 5_000
    assert world.replayed().clock_ms == 5_000
    world.do(SetClock(4_999))
    assert world.state.clock_ms == 5_000
    world.now_ms = 6_000
    world.do(SetClock(5_999))
    assert world.state.clock_ms == 6_000


def test_a_content_that_is_written_again_is_found_at_its_new_position() -> None:
    world = World()
    world.queue()
    new = a_message("x")
    (sequence,) = world.send("orders", new)
    old = world.state.queues["orders"].messages[sequence].position
    at = world.position
    answer = world.do(Move("orders", [Content(sequence, old, new)])).answer
    assert answer == Progress(1, None)
    assert world.state.queues["orders"].messages[sequence].position == at
    check_positions(world.state, world.journal)
    assert dump(world.replayed()) == dump(world.state)


def test_a_content_of_a_message_that_is_gone_or_was_moved_is_passed_over() -> None:
    world = World()
    world.queue()
    new = a_message("x")
    (sequence,) = world.send("orders", new)
    stale = [Content(sequence, 999, new), Content(sequence + 1, 1, new)]
    outcome = world.do(Move("orders", stale))
    assert outcome.answer == Progress(0, None)
    assert outcome.records == []
    with pytest.raises(InvalidArgument):
        world.do(Move("orders", stale * BATCH_MAX))
