"""Purging: by state, by age, step by step."""

import pytest

from posthouse.core.commands import BATCH_MAX, Abandon, Complete, Counts, Defer, Progress, Purge
from posthouse.core.errors import InvalidArgument, LockLost, NotFound
from posthouse.core.message import ACTIVE, DEFERRED, DELAYED, LOCKED, SCHEDULED, STATES
from tests.core.world import World, a_message, bodies

ALL = frozenset(range(len(STATES)))


def one_of_each(world: World) -> str:
    queue = world.queue()
    world.send(queue, "delayed", "deferred", "locked", "active", a_message(due_ms=5_000))
    one, two, _ = world.receive(queue, 3)
    world.do(Abandon(queue, [one.token], delay_ms=500))
    world.do(Defer(queue, [two.token], properties={"n": 1}))
    return queue


@pytest.mark.parametrize("state", [ACTIVE, LOCKED, SCHEDULED, DELAYED, DEFERRED])
def test_a_purge_is_about_some_states(state: int) -> None:
    world = World()
    queue = one_of_each(world)
    assert world.do(Purge(queue, frozenset({state}))).answer == Progress(1, None)
    states = [name for _, name in world.peek(queue)]
    assert sorted(states) == sorted(set(STATES) - {STATES[state]})
    world.advance(100_000)


def test_a_purge_can_be_about_everything() -> None:
    world = World()
    queue = one_of_each(world)
    assert world.do(Purge(queue, ALL)).answer == Progress(5, None)
    assert world.counts(queue) == Counts(0, 0, 0, 0, 0, 0)
    assert world.info(queue).size_bytes == 0


def test_a_purged_lock_is_lost() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Purge(queue, frozenset({LOCKED})))
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))


def test_a_purge_goes_step_by_step() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c")
    assert world.do(Purge(queue, ALL, limit=2)).answer == Progress(2, 3)
    assert world.do(Purge(queue, ALL, first=3, limit=2)).answer == Progress(1, None)
    assert world.do(Purge(queue, ALL)).answer == Progress(0, None)


def test_a_purge_can_spare_what_is_new() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "old")
    world.now_ms += 10
    world.send(queue, "new")
    world.do(Purge(queue, ALL, before_ms=1_010))
    assert bodies(world.receive(queue, 5)) == ["new"]


def test_a_purge_of_nothing_does_nothing() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    assert world.do(Purge(queue, frozenset({LOCKED}))).records == []


def test_a_purge_that_makes_no_sense_is_refused() -> None:
    world = World()
    queue = world.queue()
    for limit in (0, BATCH_MAX + 1):
        with pytest.raises(InvalidArgument):
            world.do(Purge(queue, ALL, limit=limit))
    with pytest.raises(NotFound):
        world.do(Purge("none", ALL))


def test_only_states_that_there_are_can_be_purged() -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(Purge(queue, frozenset({5})))


def test_a_purge_can_be_about_some_messages_by_their_numbers() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c", "d")
    world.receive(queue)
    wanted = Purge(queue, frozenset({ACTIVE}), sequences=[3, 1, 3, 99])  # the first is locked
    assert world.do(wanted).answer == Progress(1, None)
    assert bodies(world.receive(queue, 5)) == ["b", "d"]
    with pytest.raises(InvalidArgument):
        world.do(Purge(queue, ALL, sequences=[]))
