"""Restarts: what the journal says is what there was."""

import pytest

from posthouse.core.commands import (
    Abandon,
    Cancel,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    GetSessionState,
    Purge,
    ReceiveDeferred,
    ReleaseSession,
    Renew,
    RenewSession,
    Resubmit,
    SetSessionState,
    Start,
    UpdateQueue,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, LockLost
from posthouse.core.message import ACTIVE
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.records import decode, encode
from tests.core.world import World, a_message, bodies


def a_history(world: World) -> None:
    """Something of everything that is kept."""
    queue = world.queue(
        "a", order="priority", duplicate_detection=True, lock_ms=100, dead_letter_expired=True
    )
    world.send(queue, *[a_message(str(n), id=str(n), priority=n % 10) for n in range(12)])
    world.send(queue, a_message(ttl_ms=150), a_message(due_ms=1_050), a_message(due_ms=5_000))
    one, two, three, four, five = world.receive(queue, 5, by_id=True)
    world.do(Complete(queue, [one.token]))
    world.do(Abandon(queue, [two.token], properties={"n": 1}))
    world.do(Abandon(queue, [three.token], delay_ms=120))
    world.do(Defer(queue, [four.token]))
    world.do(DeadLetter(queue, [five.token], reason="bad"))
    world.do(Renew(queue, [world.receive(queue)[0].token], lock_ms=7_000))
    world.do(ReceiveDeferred(queue, [four.message.sequence]))
    world.do(Cancel(queue, [15]))
    world.receive(queue, delete=True)
    world.do(Resubmit(dead_letter_queue(queue), keep_reason=True))
    sessions = world.queue("s", grouping="session", lock_ms=200)
    world.send(sessions, *[a_message(group=each) for each in "xyx"])
    held = world.hold(sessions, "x")
    world.do(SetSessionState(sessions, held.token, b"half"))
    world.receive(sessions, session=held.token)
    world.do(RenewSession(sessions, held.token))
    world.do(ReleaseSession(sessions, world.hold(sessions, "y").token))
    groups = world.queue("g", grouping="group", lock_ms=100)
    world.send(groups, *[a_message(group=each) for each in "xyxz"])
    world.receive(groups, 2)
    world.attach(groups, 2, bound=True)
    world.wait(groups)
    world.do(Purge(groups, frozenset({ACTIVE})))
    world.do(UpdateQueue(groups, QueueProperties(grouping="group", lock_ms=9)))
    gone = world.queue("gone", idle_delete_ms=10, grouping="session")
    world.send(gone, *[a_message(group="x", ttl_ms=700, due_ms=due_ms) for due_ms in (0, 9_000)])
    held = world.hold(gone, "x")
    world.receive(gone, session=held.token, by_id=True)
    plain = world.queue("plain")
    world.send(plain, "a")
    world.receive(plain, by_id=True)
    world.do(DeleteQueue(gone))
    world.do(DeleteQueue(plain))


@pytest.mark.parametrize("ms", [0, 60, 130, 250, 20_000, 700_000])
def test_a_replay_of_the_journal_equals_what_lives(ms: int) -> None:
    world = World()
    a_history(world)
    world.advance(ms)
    assert dump(world.replayed()) == dump(world.state)


def test_a_replay_through_bytes_equals_what_lives() -> None:
    world = World()
    a_history(world)
    world.journal = [(position, decode(encode(record))) for position, record in world.journal]  # type: ignore[misc]
    assert dump(world.replayed()) == dump(world.state)


def test_a_dump_can_show_what_passes() -> None:
    world = World()
    a_history(world)
    assert "passing" in dump(world.state, passing=True)
    assert "passing" not in dump(world.state)


def test_a_start_gives_back_what_was_bound_to_receivers() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "bound", "free")
    world.attach(queue, 1, bound=True)
    [free] = world.receive(queue)
    after = world.restarted()
    assert after.peek(queue) == [(1, "active"), (2, "locked")]
    after.do(Complete(queue, [free.token]))
    [again] = after.receive(queue)
    assert again.count == 2
    assert after.info(queue).receivers == 0


def test_a_start_counts_only_where_all_endings_do() -> None:
    world = World()
    queue = world.queue(counting="abandon", max_delivery=1)
    world.send(queue, "a")
    world.attach(queue, 1, bound=True)
    [again] = world.restarted().receive(queue)
    assert again.count == 1


def test_a_start_dead_letters_a_last_delivery() -> None:
    world = World()
    queue = world.queue(max_delivery=1)
    world.send(queue, "a")
    world.attach(queue, 1, bound=True)
    assert world.restarted().counts(queue).dead == 1


def test_a_start_ends_bound_sessions_and_leaves_the_others() -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.send(queue, a_message("1", group="bound"), a_message("2", group="free"))
    bound, free = world.hold(queue, "bound", bound=True), world.hold(queue, "free")
    world.receive(queue, session=bound.token)
    world.attach(queue, 5, session=free.token, bound=True)
    after = world.restarted()
    assert after.peek(queue) == [(1, "active"), (2, "active")]
    after.do(GetSessionState(queue, free.token))
    granted = after.accept(queue)
    assert granted is not None
    assert granted.session == "bound"


@pytest.mark.parametrize("again", [False, True])
def test_a_start_passes_over_what_was_deleted(again: bool) -> None:
    world = World()
    queue = world.queue(grouping="session")
    world.send(queue, a_message("1", group="x"))
    held = world.hold(queue, "x", bound=True)
    world.attach(queue, 5, session=held.token, bound=True)
    other = world.queue("other")
    world.send(other, "a")
    world.attach(other, 5, bound=True)
    for name in (queue, other):
        world.do(DeleteQueue(name))
        if again:
            world.queue(name, grouping="session" if name == queue else "none")
    after = world.restarted()
    after.advance(1_000)
    if again:
        assert after.peek(queue) == after.peek(other) == []


def test_an_unknown_token_of_an_older_start_is_lost() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    before = len(world.journal)
    [delivery] = world.receive(queue)
    del world.journal[before:]  # the crash came before it was on disk
    after = world.restarted()
    [again] = after.receive(queue)
    assert again.token != delivery.token
    with pytest.raises(LockLost):
        after.do(Complete(queue, [delivery.token]))
    after.do(Complete(queue, [again.token]))


def test_a_known_token_of_an_older_start_holds() -> None:
    world = World()
    queue = world.queue(lock_ms=100)
    world.send(queue, "a", "b")
    [delivery] = world.receive(queue)
    after = world.restarted()
    after.do(Complete(queue, [delivery.token]))
    assert bodies(after.receive(queue, 5)) == ["b"]


def test_messages_and_numbers_survive() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    after = world.restarted()
    assert list(after.send(queue, "c")) == [3]
    assert bodies(after.receive(queue, 5)) == ["a", "b", "c"]


def test_a_start_needs_numbers_that_fit_into_a_token() -> None:
    world = World()
    for epoch, salt in ((-1, 0), (0, -1), (1 << 32, 0), (0, 1 << 32)):
        with pytest.raises(InvalidArgument):
            world.do(Start(epoch, salt))


def test_a_restart_counts_as_use_of_a_queue_that_is_deleted_when_idle() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000)
    world.attach(queue)
    world.advance(5_000)
    world = world.restarted()
    world.advance(999)
    assert queue in world.state.queues
    world.advance(1)
    assert queue not in world.state.queues


def test_an_epoch_must_be_higher_than_the_last() -> None:
    world = World(epoch=3)
    for epoch in (2, 3):
        with pytest.raises(InvalidArgument):
            world.do(Start(epoch, 9))


def test_what_was_deleted_is_freed_while_a_journal_is_replayed() -> None:
    world = World()
    for _ in range(20):
        queue = world.queue()
        world.send(queue, *["a"] * 50)
        world.do(DeleteQueue(queue))
    assert sum(sum(each.counts) for each in world.replayed().doomed) <= 50
