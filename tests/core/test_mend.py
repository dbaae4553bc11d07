"""What is left of a history when parts of it are lost."""

from random import Random

import pytest

from posthouse.core import State, evolve
from posthouse.core.commands import Abandon, Complete, DeadLetter, Resubmit, SetSessionState
from posthouse.core.dump import dump
from posthouse.core.mend import mend
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.records import (
    Completed,
    Forgotten,
    Kept,
    Missing,
    Purged,
    QueueCreated,
    QueueUpdated,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    span,
)
from tests.core.world import World, a_message
from tests.invariants import check
from tests.simulate.simulator import Simulator

Journal = list[tuple[int, Kept]]


def mended(journal: Journal, name: str = "test") -> State:
    """What a repair makes of what is left."""
    state = State(name)
    for position, record in journal:
        at = position
        for each in mend(state, record):
            if not isinstance(each, Missing):
                evolve(state, each, at)
            at += span(each)
        assert at == position + span(record), "positions have shifted"
    return state


def a_history(seed: int) -> Journal:
    simulator = Simulator(seed)
    simulator.run(250)
    return simulator.journal


@pytest.mark.parametrize("seed", range(10))
def test_a_whole_history_is_left_as_it_is(seed: int) -> None:
    journal = a_history(seed)
    state = State("sim")
    for position, record in journal:
        evolve(state, record, position)
    assert dump(mended(journal, "sim")) == dump(state)


@pytest.mark.parametrize("seed", range(40))
def test_with_any_part_lost_the_rest_makes_a_sound_state(seed: int) -> None:
    random = Random(seed)
    whole = a_history(seed % 10)
    journal = list(whole)
    for _ in range(random.randrange(1, 6)):
        first = random.randrange(len(journal))
        del journal[first : first + random.choice([1, 1, 3, 10, 50])]
    state = mended(journal, "sim")
    check(state, 1 << 50)
    sent = {
        (record.queue, record.first_sequence + at): new.body
        for _, record in whole
        if isinstance(record, Sent)
        for at, new in enumerate(record.messages)
    }
    known = set(sent.values())
    for queue in state.queues.values():
        assert all(message.body in known for message in queue.messages.walk(0))


def after(world: World, *lost: int) -> State:
    """What is made of the world's history without these of its records, counted from the last."""
    journal = list(world.journal)
    for at in sorted(lost):
        del journal[at]
    return mended(journal)


def test_what_was_completed_stays_so_though_its_lock_is_missing() -> None:
    world = World()
    world.queue()
    world.send("orders", "a", "b")
    first, _ = world.receive("orders", 2)
    world.do(Complete("orders", [first.token]))
    state = after(world, -2)
    assert [m.sequence for m in state.queues["orders"].messages.walk(0)] == [2]
    check(state, world.now_ms)
    lock, complete = mend(state, Completed("orders", [1, 2]))
    assert lock == Missing(1)
    assert complete == Purged("orders", [2])


def test_a_message_whose_return_is_missing_stays() -> None:
    world = World()
    world.queue()
    world.send("orders", "a")
    (held,) = world.receive("orders")
    world.do(Abandon("orders", [held.token]))
    world.receive("orders")
    state = after(world, -2)
    assert [m.sequence for m in state.queues["orders"].messages.walk(0)] == [1]


def test_messages_of_a_queue_that_is_missing_are_missing_too() -> None:
    world = World()
    world.queue()
    world.send("orders", "a", "b")
    position, record = world.journal[-1]
    assert mend(State("test"), record) == [Missing(2)]
    assert position


def test_a_dead_letter_goes_back_only_where_there_is_a_queue() -> None:
    world = World()
    world.queue()
    world.queue("other")
    world.send("orders", "a")
    (held,) = world.receive("orders")
    world.do(DeadLetter("orders", [held.token]))
    world.do(Resubmit(dead_letter_queue("orders"), target="other"))
    assert "other" in [r.queue for _, r in world.journal if isinstance(r, QueueCreated)]
    journal = [
        (at, r)
        for at, r in world.journal
        if not (isinstance(r, QueueCreated) and r.queue == "other")
    ]
    state = mended(journal)
    assert len(list(state.queues[dead_letter_queue("orders")].messages.walk(0))) == 1


def test_a_session_that_was_never_accepted_holds_nothing() -> None:
    world = World()
    world.queue(grouping="session")
    world.send("orders", a_message("x", group="s"))
    held = world.hold("orders", "s")
    world.receive("orders", session=held.token)
    world.do(SetSessionState("orders", held.token, b"x"))
    state = after(world, -3)
    assert not state.locks
    assert not state.sessions
    check(state, world.now_ms)
    for record in (
        SessionRenewed("orders", "none", 5),
        SessionReleased("orders", "none"),
        SessionStateSet("orders", "none", 5, b""),
        SessionAccepted("orders", 5, "s", 0, 50),
        Forgotten("orders", 5, 1),
        Sent("orders", 5, 1, 0, []),
    ):
        assert mend(state, record) == [Missing(span(record))]


def test_what_cannot_be_changed_of_a_queue_is_not_changed_by_an_update() -> None:
    state = mended([(1, Started(1, 1, 1)), (2, QueueCreated("q", 1, QueueProperties()))])
    (record,) = mend(state, QueueUpdated("q", 2, QueueProperties(grouping="session", lock_ms=7)))
    assert record == QueueUpdated("q", 2, QueueProperties(lock_ms=7))
    assert mend(state, QueueCreated("Q", 3, QueueProperties())) == [Missing(1)]
