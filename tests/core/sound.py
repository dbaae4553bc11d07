"""What tests of topics, forwarding and overflow look at: what is in a queue, and that all fits."""

from posthouse.core.commands import PAGE_MAX, Peek, Peeked
from posthouse.core.dump import dump
from posthouse.core.message import Note
from posthouse.core.namespaces import Namespaces
from posthouse.core.snapshot import restore, take
from tests.core.world import World
from tests.invariants import check, check_positions


def _peeked(world: World, queue: str) -> Peeked:
    answer = world.do(Peek(queue, limit=PAGE_MAX)).answer
    assert isinstance(answer, Peeked)
    return answer


def held(world: World, queue: str) -> list[str]:
    """The bodies of its messages, in any state."""
    return [bytes(seen.message.body).decode() for seen in _peeked(world, queue).messages]


def notes(world: World, queue: str) -> list[Note | None]:
    return [seen.note for seen in _peeked(world, queue).messages]


def sound(world: World) -> None:
    """The state does not contradict itself, nor the journal, nor a snapshot."""
    check(world.state, world.now_ms)
    check_positions(world.state, world.journal)
    assert dump(world.replayed()) == dump(world.state)
    [state] = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
