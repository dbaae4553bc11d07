"""Duplicates are answered with the id and the sequence number of the message they repeat."""

import pytest

from posthouse.core import State, evolve
from posthouse.core.commands import (
    Begin,
    Begun,
    Commit,
    Committed,
    Complete,
    Enqueued,
    Purge,
    Send,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.message import ACTIVE, NewMessage
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import Forgotten, Kept, QueueCreated, QueueRestored, Started
from posthouse.core.snapshot import restore, take
from posthouse.core.versions import version_needed
from tests.core.world import World, a_message
from tests.invariants import check


def sent(world: World, *messages: tuple[str | None, str]) -> Enqueued:
    """Sends messages with these keys and ids."""
    new = [a_message("x", id=id) for _, id in messages]
    answer = world.do(Send("q", new, keys=[key for key, _ in messages])).answer
    assert isinstance(answer, Enqueued)
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    return answer


def a_world(**properties: object) -> World:
    world = World()
    world.queue("q", duplicate_detection=True, duplicate_window_ms=1_000, **properties)
    return world


def test_a_duplicate_is_answered_with_the_id_of_the_first_though_that_is_gone() -> None:
    world = a_world()
    assert sent(world, ("k", "one"), ("k2", "k2")) == Enqueued([1, 2])
    [first, _] = world.receive("q", 2)
    world.do(Complete("q", [first.token]))
    answer = sent(world, ("new", "three"), ("k", "two"), ("k2", "four"), (None, "k"))
    assert answer.sequences == [3, 1, 2, 1]
    assert answer.first_ids == {1: "one", 2: "k2", 3: "one"}
    assert world.state.queues["q"].seen_ids == {"k": "one", "new": "three"}


def test_the_first_may_be_in_the_same_send_and_may_have_no_id() -> None:
    world = a_world()
    answer = sent(
        world, ("k", "one"), ("k", "two"), (None, "id"), ("id", "x"), ("n", ""), ("n", "y")
    )
    assert answer.first_ids == {1: "one", 3: "id", 5: ""}
    assert sent(world, ("n", "z")).first_ids == {0: ""}


def test_the_ids_are_forgotten_with_their_keys() -> None:
    world = a_world()
    sent(world, ("k", "one"))
    world.advance(1_000)
    assert not world.state.queues["q"].seen_ids
    sent(world, ("k", "two"))
    world.now_ms += 1_500
    assert sent(world, ("k", "k")).first_ids == {}  # another, before a tick has forgotten the first
    assert not world.state.queues["q"].seen_ids
    world.advance(0)
    assert sent(world, ("k", "three")).first_ids == {0: "k"}


def test_in_a_transaction_the_sends_before_count() -> None:
    world = a_world()
    begun = world.do(Begin()).answer
    assert isinstance(begun, Begun)
    for id in ("one", "two"):
        world.do(Work(begun.transaction, Send("q", [a_message("x", id=id)], keys=["k"])))
    answer = world.do(Commit(begun.transaction)).answer
    assert isinstance(answer, Committed)
    assert [each.first_ids for each in answer.sent] == [{}, {0: "one"}]


def test_an_envelope_that_cannot_be_read_has_no_id() -> None:
    world = a_world()
    send = Send("q", [NewMessage(b"\xc1", b"")], keys=["k"])
    world.do(send)
    answer = world.do(send).answer
    assert isinstance(answer, Enqueued)
    assert answer.first_ids == {0: ""}


def test_what_is_dropped_for_want_of_room_tells_duplicates_too() -> None:
    world = a_world(max_messages=2, overflow="drop-newest")
    sent(world, ("k", "one"))
    answer = sent(world, ("k", "two"), ("l", "a"), ("m", "b"))
    assert answer == Enqueued([1, 2, 0], 1, 1, first_ids={0: "one"})


def test_a_snapshot_and_a_copy_have_them() -> None:
    world = a_world()
    sent(world, ("k", "one"), (None, "id"))
    (state,) = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
    copied = State("copy")
    records: list[Kept] = [
        Started(1, 1, 1), QueueCreated("q", 1, world.info("q").properties),
        QueueRestored("q", 1, 1, 1, 2, keys=[("k", 9_000, 1)], ids=[("k", "one")]),
    ]  # fmt: skip
    for position, record in enumerate(records, 1):
        evolve(copied, record, position)
    assert copied.queues["q"].seen_ids == {"k": "one"}
    assert version_needed(records) == 2


@pytest.mark.parametrize("keys", [False, True])
def test_a_purge_forgets_the_keys_where_that_is_asked_for(keys: bool) -> None:
    world = a_world()
    sent(world, ("k", "one"), (None, "id"))
    world.do(Purge("q", frozenset((ACTIVE,)), keys=keys))
    assert world.peek("q") == []
    answer = sent(world, ("k", "two"), (None, "id"))
    assert answer.duplicates == (0 if keys else 2)
    assert world.do(Purge("q", frozenset(), keys=True)).records[0] == Forgotten(
        "q", world.now_ms, 2
    )
    assert world.do(Purge("q", frozenset(), keys=True)).records == []


def test_keys_are_forgotten_step_by_step_too() -> None:
    world = a_world()
    sent(world, *((f"k{n}", f"{n}") for n in range(5)))
    first, steps = 0, 0
    while True:
        command = Purge("q", frozenset((ACTIVE,)), first, limit=2, keys=True)
        progress = world.do(command).answer
        check(world.state, world.now_ms)
        steps += 1
        if progress.next is None:  # type: ignore[union-attr]
            break
        first = progress.next  # type: ignore[union-attr]
    assert steps == 3
    assert not world.state.queues["q"].seen
    assert not world.state.forget_timers.items()
    sent(world, *((f"k{n}", f"{n}") for n in range(5)))
    done = world.do(Purge("q", frozenset((ACTIVE,)), 1_000, limit=2, keys=True)).answer
    assert done.next == world.state.queues["q"].next_sequence  # type: ignore[union-attr]
    assert dump(world.replayed()) == dump(world.state)
