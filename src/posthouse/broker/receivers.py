"""Receivers: the callbacks of those who are pushed messages, and the waits of those who ask once.

A delivery may leave before its lock is durable, never before its message is. What has to wait for
the sync is *owed* to its receiver, and nothing overtakes it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from posthouse.broker.access import Principal
from posthouse.broker.batch import Reply, tell
from posthouse.core.commands import (
    AcceptSession,
    Admitted,
    Answer,
    Delivery,
    Granted,
    Notice,
    Receive,
    Received,
    Send,
)
from posthouse.core.errors import NotFound, QuotaExceeded, Refused, SessionLockLost
from posthouse.core.plan import Delivered

Deliver = Callable[[Sequence[Delivered]], None]
CanWait = Receive | AcceptSession | Send  # the commands that may have to wait


class Wait(NamedTuple):
    """A command that waits for its answer."""

    reply: Reply
    command: CanWait
    principal: Principal
    namespace: str

    @property
    def number(self) -> int:
        return self.command.sender if isinstance(self.command, Send) else self.command.receiver


class Receivers:
    """The receivers by number. `granted` is called when one that waited for a session has it."""

    def __init__(self, granted: Callable[[Wait, int], None]) -> None:
        self._granted = granted
        self._next = 1
        self._pushed: dict[int, Deliver] = {}
        self._waits: dict[int, Wait] = {}
        self._owed: Counter[int] = Counter()  # deliveries that wait for the sync
        self._leaving: set[int] = set()  # detached, and owed something
        self._pushing = False
        self.are_dismissed = False  # nobody is to wait for anything any more

    def new(self, deliver: Deliver | None) -> int:
        number = self._next
        self._next += 1
        if deliver is not None:
            self._pushed[number] = deliver
        return number

    def detach(self, number: int) -> None:
        """Detaches a receiver. It still gets what it is owed, to give that back."""
        if number in self._owed:
            self._leaving.add(number)
        else:
            self._pushed.pop(number, None)
        self._waits.pop(number, None)

    def forget(self, number: int) -> None:
        self._pushed.pop(number, None)

    # Waits.

    @property
    def waits(self) -> list[Wait]:
        return list(self._waits.values())

    def wait(self, number: int) -> Wait | None:
        return self._waits.get(number)

    def begin_wait(self, number: int, wait: Wait) -> None:
        self._waits[number] = wait

    def end_wait(self, number: int) -> bool:
        """Returns whether the wait is over; what is under way to it is its own, and comes."""
        if number in self._owed:
            return False
        self._waits.pop(number, None)
        return True

    def end_all_waits(self) -> list[Wait]:
        ended = self.waits
        self._waits.clear()
        return ended

    # Deliveries.

    def push_early(self, deliveries: Sequence[Delivered], safe: int) -> list[Delivered]:
        """Pushes what may leave before the sync; returns the rest, which is owed from now on.

        Every position below `safe` is durable.
        """
        if self._is_all_for_one(deliveries, safe):
            self._push(deliveries[0].receiver, deliveries)
            return []
        early: dict[int, list[Delivered]] = {}
        rest: list[Delivered] = []
        if self._pushing:
            safe = 0
        receivers, owed = self._pushed, self._owed
        last, leaving = -1, None  # the receiver of the delivery before, and what may leave to it
        for delivery in deliveries:
            if delivery.receiver != last:
                last = delivery.receiver
                is_free = last in receivers and last not in owed
                leaving = early.setdefault(last, []) if is_free else None
            if leaving is not None and may_leave((delivery,), safe):
                leaving.append(delivery)
            else:
                leaving = None
                rest.append(delivery)
                owed[last] += 1
        for number, batch in early.items():
            if batch:
                self._push(number, batch)
        return rest

    def _is_all_for_one(self, deliveries: Sequence[Delivered], safe: int) -> bool:
        """Whether all of it goes to the same receiver, as is most common, and may leave now."""
        receivers = {delivery.receiver for delivery in deliveries}
        if len(receivers) != 1 or self._pushing:
            return False
        [number] = receivers
        is_free = number in self._pushed and number not in self._owed
        return is_free and may_leave(deliveries, safe)

    def _push(self, number: int, deliveries: Sequence[Delivered]) -> None:
        """Calls a receiver's callback. Deliveries that it asks for are pushed after it returns."""
        deliver = self._pushed.get(number)
        if deliver is not None:  # else it was detached from within another's
            within, self._pushing = self._pushing, True
            tell(deliver, deliveries)
            self._pushing = within

    def hand_over(self, deliveries: Sequence[Delivered]) -> None:
        """Gives every receiver all that it is owed of one batch, in one call."""
        by_receiver: dict[int, list[Delivered]] = {}
        for delivery in deliveries:
            by_receiver.setdefault(delivery.receiver, []).append(delivery)
        for number, batch in by_receiver.items():
            self._owed[number] -= len(batch)
            if not self._owed[number]:
                del self._owed[number]
            if number in self._waits:
                self._answer(self._waits.pop(number), batch)
                continue
            self._push(number, batch)
            if any(isinstance(n, Notice) and n.kind not in ("drained", "paused") for n in batch):
                self._pushed.pop(number, None)
            if number in self._leaving and number not in self._owed:
                self._leaving.remove(number)
                self._pushed.pop(number, None)

    def _answer(self, wait: Wait, deliveries: Sequence[Delivered]) -> None:
        answer = _as_answer(deliveries, wait)
        tell(wait.reply, answer)
        if isinstance(answer, Granted):
            self._granted(wait, answer.token)


def may_leave(deliveries: Sequence[Delivered], safe: int) -> bool:
    """Whether all may leave before the sync: durable below that position, locked, with bodies.

    With 0 nothing may, not even that there is no message: perhaps another broker leads by now.
    """
    given = [each for each in deliveries if type(each) is Delivery and each.token]
    messages = [each.message for each in given]
    positions = [each.position for each in messages]
    return (
        safe > 0
        and len(given) == len(deliveries)
        and (
            not given
            or (
                min(positions) > 0
                and max(positions) < safe
                and {type(each.body) for each in messages} == {bytes}
            )
        )
    )


def _as_answer(deliveries: Sequence[Delivered], wait: Wait) -> Answer | Refused:
    """The answer to a command that has waited: its deliveries, or the refusal of a notice."""
    first, command = deliveries[0], wait.command
    if isinstance(first, Admitted):
        return first.enqueued
    if isinstance(first, Granted):
        return first
    if isinstance(first, Notice):
        if first.kind == "deleted":
            return NotFound("queue", command.queue, wait.namespace)
        if first.kind == "session-lost" and isinstance(command, Receive):
            return SessionLockLost(command.queue, command.session)
        return nothing_for(command)
    return Received([each for each in deliveries if isinstance(each, Delivery)])


def nothing_for(command: CanWait) -> Answer | Refused:
    """The answer to a command that has waited in vain."""
    if isinstance(command, Send):
        return QuotaExceeded(command.queue, "room", 0, 0)
    return Received([]) if isinstance(command, Receive) else None
