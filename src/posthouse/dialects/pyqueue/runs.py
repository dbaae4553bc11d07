"""Runs: requests of one kind, on one queue, that came together and are asked of the engine as one.

It makes no difference but for what it costs: a run is of what cannot be refused one by one, and
what comes behind it is asked behind it. A run is itself what the engine calls with its answer.
"""

from posthouse.core.commands import Command, Complete, Delivery, Receive, Received, Send, Settled
from posthouse.core.errors import LockLost, QuotaExceeded, Refused
from posthouse.core.message import NewMessage, size_bytes
from posthouse.dialects.pyqueue.slots import AckSlot, Asker, PullSlot, Result, Slot
from posthouse.store.errors import StoreError

RUN_MAX = 250
RUN_BYTES_MAX = 1 << 20  # of tasks that are pushed as one
_CUT_BYTES = 8 << 20  # of tasks that were pulled: then there may be more than came


class Run:
    def __init__(self, peer: Asker, queue: str) -> None:
        self.peer = peer
        self.queue = queue

    def command(self) -> Command:
        raise NotImplementedError

    def __call__(self, answer: Result) -> None:
        raise NotImplementedError


class PushRun(Run):
    def __init__(self, peer: Asker, queue: str) -> None:
        super().__init__(peer, queue)
        self.slots: list[Slot] = []
        self.messages: list[NewMessage] = []
        self.size = 0

    def add(self, slot: Slot, message: NewMessage) -> None:
        self.slots.append(slot)
        self.messages.append(message)
        self.size += size_bytes(message)

    @property
    def is_full(self) -> bool:
        return len(self.slots) >= RUN_MAX or self.size >= RUN_BYTES_MAX

    def command(self) -> Send:
        return Send(self.queue, self.messages, [""] * len(self.messages))

    def __call__(self, answer: Result) -> None:
        if not isinstance(answer, Refused | StoreError):
            for slot in self.slots:
                slot.is_filled()
        elif isinstance(answer, QuotaExceeded) and len(self.slots) > 1:  # some of them may fit
            for slot, message in zip(self.slots, self.messages, strict=True):
                self.peer.submit(slot, Send(self.queue, [message], [""]))
        else:
            for slot in self.slots:
                slot.refuse(answer)


class AckRun(Run):
    def __init__(self, peer: Asker, queue: str) -> None:
        super().__init__(peer, queue)
        self.slots: dict[int, AckSlot] = {}  # by token

    def command(self) -> Complete:
        return Complete(self.queue, list(self.slots), partial=True)

    def __call__(self, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            for slot in self.slots.values():
                slot.refuse(answer)
            return
        assert isinstance(answer, Settled)
        lost, desk = set(answer.lost), self.peer.desk
        now_ms = desk.now_ms
        for token, slot in self.slots.items():
            if token in lost:
                slot.refuse(LockLost(self.queue, token))
            else:
                desk.acknowledged(now_ms - slot.since_ms)
                slot.is_filled()


class PullRun(Run):
    def __init__(self, peer: Asker, queue: str, receiver: int, bound: int) -> None:
        super().__init__(peer, queue)
        self.slots: list[PullSlot] = []
        self.limit = 0
        self.receiver = receiver
        self.bound = bound

    def add(self, slot: PullSlot) -> None:
        self.slots.append(slot)
        self.limit += slot.limit

    def command(self) -> Receive:
        return Receive(self.queue, self.receiver, self.limit, bound=self.bound, by_id=True)

    def __call__(self, answer: Result) -> None:
        if not isinstance(answer, Received):
            for slot in self.slots:
                slot(answer)
            return
        given, at = answer.deliveries, 0
        is_cut = sum(map(_body_bytes, given)) > _CUT_BYTES
        for slot in self.slots:
            mine, at = given[at : at + slot.limit], at + slot.limit
            if mine or not is_cut:
                slot(Received(mine))
            else:
                self.peer.pull_again(slot)


def _body_bytes(delivery: Delivery) -> int:
    return size_bytes(delivery.message)
