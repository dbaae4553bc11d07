"""Finding what commands speak of, or refusing."""

from collections.abc import Sequence

from posthouse.core.errors import Disabled, MessageNotFound, NotAllowed, NotFound, SessionLockLost
from posthouse.core.message import SCHEDULED, STATES, Message
from posthouse.core.model import FAN_OUT, Group, Queue, State
from posthouse.core.picking import can_receive, is_expired


def queue_of(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None:
        raise NotFound("queue", name)
    return queue


def own_queue(state: State, name: str) -> Queue:
    """Finds a queue that is not a dead-letter queue."""
    queue = queue_of(state, name)
    if queue.origin is not None:
        raise NotAllowed(name, f"it belongs to {queue.origin!r}; use that")
    return queue


def session_of(state: State, queue: Queue, token: int, now_ms: int) -> Group:
    of, group = state.sessions.get(token, (None, None))
    if of is not queue or group is None or group.until_ms <= now_ms:
        raise SessionLockLost(queue.name, token)
    return group


def session_read(state: State, queue: Queue, session: int, now_ms: int) -> Group | None:
    """The session a receiver reads from, where the queue has sessions. Refuses a mismatch."""
    if queue.properties.grouping != "session":
        if session:
            raise NotAllowed(queue.name, "it has no sessions")
        return None
    if not session:
        raise NotAllowed(queue.name, "its messages are received through sessions; accept one")
    return session_of(state, queue, session, now_ms)


def receivable(state: State, name: str) -> Queue:
    queue = queue_of(state, name)
    if queue.properties.delivery in FAN_OUT:
        raise NotAllowed(name, "it gives to all who are attached to it; attach a receiver")
    if queue.temporary:
        raise NotAllowed(name, "it is for one receiver alone")
    if queue.relays and queue.origin is None:
        what = "is a topic; receive from a subscription of it"
        if queue.properties.delivery != "topic":
            what = f"forwards to {queue.properties.forward_to!r}; receive from there"
        raise NotAllowed(name, f"it {what}")
    if not can_receive(queue.properties):
        raise Disabled(name, queue.properties.status)
    return queue


def messages_in(queue: Queue, sequences: Sequence[int], state: int, now_ms: int) -> list[Message]:
    """Finds these messages, all of them in this state and none named twice."""
    messages: dict[int, Message] = {}
    for sequence in sequences:
        message = queue.messages.get(sequence)
        if message is None or message.state != state or sequence in messages:
            raise MessageNotFound(queue.name, sequence, STATES[state])
        if state != SCHEDULED and is_expired(message, now_ms):
            raise MessageNotFound(queue.name, sequence, STATES[state])
        messages[sequence] = message
    return list(messages.values())
