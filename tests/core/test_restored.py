"""Messages that were copied from another journal, in the states that they may have there."""

import pytest

from posthouse.core import evolve
from posthouse.core.commands import Send, Tick
from posthouse.core.endings import let_go
from posthouse.core.fit_record import fit_record
from posthouse.core.message import ACTIVE, DELAYED
from posthouse.core.records import (
    MessagesRestored,
    Missing,
    QueueDeleted,
    QueueRestored,
    SessionReleased,
)
from tests.core.world import World, a_message


@pytest.mark.parametrize("grouping", ["none", "group"])
def test_a_delayed_message_comes_back_when_its_time_has_come(grouping: str) -> None:
    world = World()
    queue = world.queue(grouping=grouping)
    message = a_message("late", group="g")
    record = MessagesRestored(queue, [3], [message], [DELAYED], [1], [2], [5_000], [None])
    assert fit_record(world.state, record) == [record]
    evolve(world.state, record, world.position)
    assert isinstance(fit_record(world.state, record)[0], Missing)  # it is there already
    assert world.state.queues[queue].counts[DELAYED] == 1
    world.now_ms = 5_000
    world.do(Tick())
    assert world.state.queues[queue].counts[ACTIVE] == 1


def test_a_queue_has_its_sessions_keys_and_transfer_queue_again() -> None:
    world = World()
    queue = world.queue(grouping="session")
    keys = [("a", 601_000, 2), ("b", 602_000, 0)]
    for state in (b"begun", b"half way"):  # much of it comes in parts
        groups: list[tuple[str, bytes | None, int]] = [("s", state, 7)]
        record = QueueRestored(queue, 1, 2, 3, 24, True, groups, keys)
        evolve(world.state, record, world.position)
        keys = []
    restored = world.state.queues[queue]
    assert (restored.created_ms, restored.next_sequence) == (1, 24)
    assert restored.groups["s"].state == b"half way"
    assert restored.state_bytes == len(b"half way")
    assert restored.seen == {"a": (601_000, 2)}
    assert restored.transfer is not None


def test_the_sessions_of_what_ends_with_a_connection_are_not_released_apart() -> None:
    world = World()
    for name in ("stays", "ends"):
        world.queue(name, grouping="session")
        world.do(Send(name, [a_message(group="s")]))
        assert world.accept(name, "s") is not None
    world.state.queues["ends"].temporary = True
    records = let_go(world.state, world.now_ms)
    assert [record.queue for record in records if isinstance(record, QueueDeleted)] == ["ends"]
    assert [r.queue for r in records if isinstance(r, SessionReleased)] == ["stays"]
