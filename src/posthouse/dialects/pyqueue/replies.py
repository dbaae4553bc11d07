"""Pending replies, which leave in the order of the requests that they answer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from posthouse.core.commands import Answer, Command, Delivery, Enqueued, Receive
from posthouse.core.errors import Refused, TransactionLost
from posthouse.dialects.pyqueue import orders
from posthouse.dialects.pyqueue.codec import Frame, encode
from posthouse.dialects.pyqueue.context import PyQueueContext
from posthouse.dialects.pyqueue.refusals import told
from posthouse.store.errors import StoreError

Result = Answer | Refused | StoreError


class Asker(Protocol):
    """A connection, as its replies see it."""

    context: PyQueueContext
    is_gone: bool

    def answered(self, replies: "Replies") -> None: ...

    def pulled(
        self, queue: str, deliveries: Sequence[Delivery], *, batch: bool
    ) -> tuple[bytes, bytes]:
        """The word and the payload of the answer."""

    def receive_of(self, queue: str, limit: int) -> Receive: ...

    def ask(self, command: Command, reply: Callable[[Result], None]) -> None:
        """The reply is called once, perhaps at once."""

    def end(self) -> None: ...


class Replies(Protocol):
    """Replies that leave together: a PendingReply of one request, or a batch of many."""

    frames: list[bytes]
    left: int  # that are not known yet
    size: int  # of the requests, in bytes


def refusal(peer: Asker, word: str, on: str, refused: Refused | StoreError) -> bytes:
    """Returns the error text for a request that was refused, or that the store failed."""
    if isinstance(refused, StoreError):
        peer.end()
        return refused.for_clients.encode()
    return told(refused, word, on).encode(errors="replace")


class PendingReply:
    """The reply to one request. It is itself what the engine calls with its answer."""

    __slots__ = ("binary", "frames", "left", "on", "peer", "size", "transaction", "word")

    def __init__(self, peer: "Asker", frame: Frame) -> None:
        self.peer = peer
        self.word = frame.word
        self.binary = frame.binary
        self.size = len(frame.payload)
        self.on = ""  # what it is about
        self.transaction = ""  # of which it is a part
        self.frames = [b""]  # the answer, where all goes well
        self.left = 1

    def says(self, payload: bytes, word: bytes = b"OK") -> None:
        """The answer, as soon as what it says is so."""
        self.frames = [encode(word, payload, binary=self.binary)]

    def is_filled(self) -> None:
        self.left = 0
        self.peer.answered(self)

    def fill(self, payload: bytes, word: bytes = b"OK") -> None:
        self.says(payload, word)
        self.is_filled()

    def fail(self, text: str) -> None:
        self.fill(text.encode(errors="replace"), b"ERROR")

    def refuse(self, refused: Refused | StoreError) -> None:
        if isinstance(refused, TransactionLost) and self.transaction:
            context = self.peer.context
            self.fail(context.ledger.why_not(self.transaction, context.now_ms))
        else:
            self.fill(refusal(self.peer, self.word.decode(), self.on, refused), b"ERROR")

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            self.refuse(answer)
        else:
            self.is_filled()


class PendingPushBatch(PendingReply):
    __slots__ = ("ids",)
    ids: list[str]

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Enqueued):
            self.fill(orders.batch_told(orders.accepted(self.ids, answer)))
        else:
            assert isinstance(answer, Refused | StoreError)
            self.refuse(answer)
