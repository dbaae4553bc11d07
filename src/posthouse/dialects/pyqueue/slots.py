"""Slots: the places of answers, which leave in the order of what they answer."""

from collections.abc import Sequence
from typing import Protocol

from posthouse.core.commands import Answer, Command, Delivery, Enqueued, Received
from posthouse.core.errors import Refused, TransactionLost
from posthouse.dialects.pyqueue import orders
from posthouse.dialects.pyqueue.codec import Frame, encode
from posthouse.dialects.pyqueue.desk import Desk
from posthouse.dialects.pyqueue.refusals import told
from posthouse.store.errors import StoreError

Result = Answer | Refused | StoreError


class Asker(Protocol):
    """A connection, as its slots see it."""

    desk: Desk

    def answered(self, slot: "Slot") -> None: ...

    def pulled(self, slot: "Slot", deliveries: Sequence[Delivery]) -> None: ...

    def submit(self, slot: "Slot", command: Command) -> None: ...

    def pull_again(self, slot: "PullSlot") -> None: ...

    def end(self) -> None: ...


class Slot:
    """The place of one answer. It is itself what the engine calls with its answer."""

    __slots__ = ("binary", "frame", "is_done", "on", "peer", "size", "transaction", "word")

    def __init__(self, peer: "Asker", frame: Frame) -> None:
        self.peer = peer
        self.word = frame.word
        self.binary = frame.binary
        self.size = len(frame.payload)
        self.on = ""  # what it is about
        self.transaction = ""  # of which it is a part
        self.frame = b""  # the answer, where all goes well
        self.is_done = False

    def says(self, payload: bytes, word: bytes = b"OK") -> None:
        """The answer, as soon as what it says is so."""
        self.frame = encode(word, payload, binary=self.binary)

    def is_filled(self) -> None:
        self.is_done = True
        self.peer.answered(self)

    def fill(self, payload: bytes, word: bytes = b"OK") -> None:
        self.says(payload, word)
        self.is_filled()

    def fail(self, text: str) -> None:
        self.fill(text.encode(errors="replace"), b"ERROR")

    def refuse(self, refused: Refused | StoreError) -> None:
        if isinstance(refused, StoreError):
            self.peer.end()
            self.fail("The journal cannot be written; what was asked may be done or not")
        elif isinstance(refused, TransactionLost) and self.transaction:
            desk = self.peer.desk
            self.fail(desk.ledger.why_not(self.transaction, desk.now_ms))
        else:
            self.fail(told(refused, self.word.decode(), self.on))

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            self.refuse(answer)
        else:
            self.is_filled()


class AckSlot(Slot):
    __slots__ = ("since_ms",)
    since_ms: int  # when the task was pulled

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            self.refuse(answer)
        else:
            if not self.transaction:
                self.peer.desk.acknowledged(self.peer.desk.now_ms - self.since_ms)
            self.is_filled()


class PullSlot(Slot):
    __slots__ = ("limit",)
    limit: int  # how many tasks it is for

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Received):
            self.peer.pulled(self, answer.deliveries)
        else:
            assert isinstance(answer, Refused | StoreError)
            self.refuse(answer)


class BatchSlot(Slot):
    __slots__ = ("ids",)
    ids: list[str]

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Enqueued):
            self.fill(orders.batch_told(orders.accepted(self.ids, answer)))
        else:
            assert isinstance(answer, Refused | StoreError)
            self.refuse(answer)
