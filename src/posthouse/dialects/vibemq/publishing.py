"""Publishing: to a queue that is made where there is none, and what is told where there is no room.

Above the second mark of the memory limit publishers are blocked: it is tried again until there is
room, or their patience is over. Above the third the queue's overflow rule counts: of one that drops
its oldest, those go; to one that blocks, it is waited on; who publishes to another is told at once.
"""

import asyncio
from typing import TYPE_CHECKING

from posthouse.broker.memory import OVERFLOW, REFUSE
from posthouse.core.commands import Answer, CreateQueue, Enqueued, Purge, Send
from posthouse.core.errors import Busy, Refused
from posthouse.core.message import ACTIVE, NewMessage
from posthouse.core.model import QueueProperties
from posthouse.dialects.vibemq.answers import QUEUE_FULL, Wrong, told
from posthouse.dialects.vibemq.codec import NO_HEADERS, Frame, Type
from posthouse.dialects.vibemq.message import check_queue, published
from posthouse.dialects.vibemq.queues import properties_of, resolve
from posthouse.dialects.vibemq.users import PUBLISH
from posthouse.store.errors import StoreError

if TYPE_CHECKING:
    from posthouse.dialects.vibemq.peer import Peer

BLOCK_MS = 8_000  # that a publish waits for room: clients wait ten seconds
RETRY_SECONDS = 0.1
DROP_MAX = 100  # of the oldest at a time, where memory is used up
DEFAULT = properties_of(None)
_REDIRECTED = {"overflow": "redirected-to-dead-letter-queue"}


def publish(peer: "Peer", frame: Frame) -> None:
    """Raises Wrong."""
    check_queue(frame.queue)
    peer.check_right(PUBLISH, frame.queue)
    message = published(frame, peer.settings.message_bytes)
    queue = queue_for(peer, frame.queue)
    _Publish(peer, frame, queue, message).submit()


def queue_for(peer: "Peer", name: str, properties: QueueProperties = DEFAULT) -> str:
    """Returns the broker's name of a queue. Creates the queue if missing, as the protocol says."""
    view, namespace = peer.view, peer.namespace
    if view.exists(namespace, name):
        return name
    found = resolve(view, namespace, name)
    if not view.exists(namespace, found):
        peer.leave(CreateQueue(found, properties))  # what is asked next is decided behind it
    return found


class _Publish:
    """One that is under way."""

    __slots__ = ("_command", "_end", "_frame", "_peer", "_queue", "_size")

    def __init__(self, peer: "Peer", frame: Frame, queue: str, message: NewMessage) -> None:
        self._peer = peer
        self._frame = frame
        self._queue = queue
        self._size = len(message.body) + len(message.envelope)
        self._end = 0.0
        like = peer.view.properties(peer.namespace, queue)
        if like is None or like.overflow != "block":
            self._command = Send(queue, [message])
        else:
            number = peer.engine.new_receiver()
            peer.blocked[number] = frame.queue
            deadline_ms = peer.engine.clock_ms(peer.namespace) + BLOCK_MS
            self._command = Send(queue, [message], deadline_ms=deadline_ms, sender=number)
        peer.count_unanswered(self._size)

    def submit(self) -> None:
        self._peer.submit(self._command, self._reply)

    def _submit_again(self) -> None:
        """The right to do it may be gone since."""
        try:
            self._peer.check_right(PUBLISH, self._frame.queue)
        except Wrong as wrong:
            self._finish()
            if not self._peer.is_over:
                self._peer.refuse(self._frame.id, *told(wrong))
        else:
            self.submit()

    def _finish(self) -> None:
        self._peer.count_unanswered(-self._size)
        self._peer.blocked.pop(self._command.sender, None)

    def _reply(self, answer: Answer | Refused | StoreError) -> None:
        peer, frame = self._peer, self._frame
        if isinstance(answer, Busy) and self._waits():
            return
        self._finish()
        if peer.is_over:
            return
        if isinstance(answer, Enqueued):
            if answer.dropped:
                text = f"{frame.queue!r} is full, and the message was dropped."
                peer.refuse(frame.id, QUEUE_FULL, text)
                return
            headers = _REDIRECTED if answer.buried else NO_HEADERS
            peer.answer(Frame(Type.PUBLISH_ACK, frame.id, frame.queue, b"", headers))
        elif isinstance(answer, Refused):
            peer.refuse(frame.id, *told(answer))

    def _waits(self) -> bool:
        """Whether it is tried again, because memory is short."""
        peer, loop = self._peer, asyncio.get_running_loop()
        level = peer.engine.now().level
        if level < REFUSE or peer.is_over or peer.engine.is_over:
            return False
        like = peer.view.properties(peer.namespace, self._queue)
        overflow = "reject" if like is None else like.overflow
        if level >= OVERFLOW:
            if overflow == "drop-oldest":
                self._drop_oldest()
            elif overflow != "block":
                return False
        self._end = self._end or loop.time() + BLOCK_MS / 1_000
        if loop.time() >= self._end:
            return False
        loop.call_later(RETRY_SECONDS, self._submit_again)
        return True

    def _drop_oldest(self) -> None:
        peer, queue = self._peer, self._queue
        oldest = peer.view.messages.oldest(peer.namespace, queue, ACTIVE, DROP_MAX)
        if oldest:
            peer.leave(Purge(queue, frozenset((ACTIVE,)), sequences=oldest))
