"""Several engines on one journal in memory: one leads, the others follow."""

from typing import Any

from posthouse.broker.access import Access
from posthouse.broker.clock import Clock, VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.core.dump import dump
from posthouse.store.memory import MemoryJournal, MemoryStore


async def a_follower(
    journal: MemoryJournal,
    clock: Clock | None = None,
    access: Access | None = None,
    *,
    salt: int = 6,
    limits: Limits | None = None,
) -> Engine:
    store = MemoryStore(journal=journal)
    return await Engine.follow(store, clock or VirtualClock(1_000), salt, access, limits=limits)


def catch_up(follower: Engine, journal: MemoryJournal, most: int = 1 << 60) -> int:
    """Hands a follower the frames it does not have yet, at most so many; returns how many."""
    missing = [frame for frame in journal.frames if frame.number > follower.last.number][:most]
    for frame in missing:
        follower.apply(frame)
    return len(missing)


def whole(engine: Engine, *, bodies: bool = True) -> dict[str, Any]:
    """All that the journal keeps, of every namespace and beside them."""
    world = engine.world
    return {
        "states": {name: dump(each, bodies=bodies) for name, each in world.states.items()},
        "accounts": dict(world.accounts),
        "readers": dict(world.readers),
    }
