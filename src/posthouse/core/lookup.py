"""Finding what commands speak of, or refusing."""

from posthouse.core.errors import NotAllowed, NotFound, SessionLockLost
from posthouse.core.model import Group, Queue, State


def queue_of(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None:
        raise NotFound("queue", name)
    return queue


def own_queue(state: State, name: str) -> Queue:
    """One that is not a dead-letter queue."""
    queue = queue_of(state, name)
    if queue.origin is not None:
        raise NotAllowed(name, f"it belongs to {queue.origin!r}; use that")
    return queue


def session_of(state: State, queue: Queue, token: int, now_ms: int) -> Group:
    of, group = state.sessions.get(token, (None, None))
    if of is not queue or group is None or group.until_ms <= now_ms:
        raise SessionLockLost(queue.name, token)
    return group
