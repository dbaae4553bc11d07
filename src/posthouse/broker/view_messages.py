"""The view of what is in queues: messages, and the locks, sessions and receivers they are with.

As the rest of the view (view.py) it returns values, and finds nothing where there is nothing.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec

from posthouse.core.message import Message
from posthouse.core.model import Lock, Queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.picking import pick_ready


class MessageHead(msgspec.Struct, frozen=True, gc=False):
    """A message without its body."""

    sequence: int
    state: int
    envelope: bytes


class LockView(msgspec.Struct, frozen=True, gc=False):
    """A lock, and the message it is on."""

    token: int
    queue: str
    message: MessageHead
    count: int  # deliveries of the message so far
    until_ms: int
    session: int  # the token of the session it belongs to; 0: of none
    enlisted: bool  # a transaction settles it


class MessagesView:
    def __init__(self, world: Namespaces) -> None:
        self._states = world.states

    # Messages.

    def get(self, namespace: str, queue: str, sequence: int) -> MessageHead | None:
        found = self._queue(namespace, queue)
        message = None if found is None else found.messages.get(sequence)
        return None if message is None else _head(message)

    def page(
        self, namespace: str, queue: str, first: int, limit: int, *, skip: int = 0
    ) -> list[MessageHead]:
        """At most `limit` messages in any state, from a sequence number on, but for the first few.

        For who looks through many: go on behind the last, and let others have their turn between.
        """
        found = self._queue(namespace, queue)
        if found is None:
            return []
        return [_head(each) for each in islice(found.messages.walk(first), skip, skip + limit)]

    def ready(self, namespace: str, queue: str, limit: int, now_ms: int) -> list[int]:
        """The sequence numbers of the messages that would be received next, in that order."""
        found = self._queue(namespace, queue)
        return [] if found is None else [m.sequence for m in pick_ready(found, limit, now_ms)]

    def oldest(self, namespace: str, queue: str, state: int, limit: int) -> list[int]:
        """The sequence numbers of the oldest messages in a state."""
        found = self._queue(namespace, queue)
        if found is None:
            return []
        return list(islice((m.sequence for m in found.messages.walk(0) if m.state == state), limit))

    def repeated(self, namespace: str, queue: str, key: str, now_ms: int) -> int | None:
        """The sequence number of the message that one with this duplicate-detection key repeats."""
        found = self._queue(namespace, queue)
        until_ms, sequence = (0, 0) if found is None else found.seen.get(key, (0, 0))
        return sequence if until_ms > now_ms else None

    # Locks.

    def lock(self, namespace: str, token: int) -> LockView | None:
        state = self._states.get(namespace)
        lock = None if state is None else state.locks.get(token)
        if state is None or lock is None:
            return None
        return _lock(token, lock, enlisted=token in state.enlisted)

    def tokens(self, namespace: str, id: str) -> tuple[int, ...]:
        """The tokens of the locks that can be settled by a message id."""
        state = self._states.get(namespace)
        return () if state is None else tuple(state.ids.get(id, ()))

    def sole_lock(self, namespace: str, id: str) -> tuple[int, str, int] | None:
        """The only lock that can be settled by a message id: its token, its queue, its end.

        None where there is none, or more than one.
        """
        state = self._states.get(namespace)
        tokens = None if state is None else state.ids.get(id)
        if state is None or tokens is None or len(tokens) != 1:
            return None
        [token] = tokens
        lock = state.locks[token]
        return token, lock.queue.name, lock.until_ms

    def sole_locks(self, namespace: str, queue: str, ids: Iterable[str]) -> dict[int, int]:
        """The ends of the sole locks of several messages of one queue, by token.

        It stops at the first id that has not exactly one lock, or one in another queue, or the lock
        of an id before it.
        """
        found: dict[int, int] = {}
        state = self._states.get(namespace)
        if state is None:
            return found
        for id in ids:
            tokens = state.ids.get(id)
            if tokens is None or len(tokens) != 1:
                break
            [token] = tokens
            lock = state.locks[token]
            if lock.queue.name != queue or token in found:
                break
            found[token] = lock.until_ms
        return found

    def is_shared(self, namespace: str, id: str) -> bool:
        """Whether several locks could be meant by a message id."""
        state = self._states.get(namespace)
        return state is not None and len(state.ids.get(id, ())) > 1

    # Sessions and receivers.

    def session_token(self, namespace: str, queue: str, session: str) -> int:
        """The token under which a session is held; 0: nobody holds it."""
        found = self._queue(namespace, queue)
        group = None if found is None else found.groups.get(session)
        return 0 if group is None else group.token

    def has_receiver(self, namespace: str, number: int) -> bool:
        state = self._states.get(namespace)
        return state is not None and number in state.receivers

    def receivers(self, namespace: str, queue: str) -> int:
        """The number of receivers attached to a queue or to its subscriptions."""
        found = self._queue(namespace, queue)
        if found is None:
            return 0
        return sum(len(each.attached) for each in (found, *found.subscriptions.values()))

    # Inside.

    def _queue(self, namespace: str, name: str) -> Queue | None:
        state = self._states.get(namespace)
        return None if state is None else state.queues.get(name)


def _head(message: Message) -> MessageHead:
    return MessageHead(message.sequence, message.state, message.envelope)


def _lock(token: int, lock: Lock, *, enlisted: bool) -> LockView:
    session = lock.session
    return LockView(
        token,
        lock.queue.name,
        _head(lock.message),
        lock.message.count,
        lock.until_ms if session is None else session.until_ms,
        0 if session is None else session.token,
        enlisted,
    )
