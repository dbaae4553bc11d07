"""Links on which messages go to the broker, as many under way as it gives credit for."""

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct

from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.runs import runs_of
from posthouse.amqp.session import Link, Tags
from posthouse.client.errors import ConnectionFailed, MessageTooLarge, PartialFailure, QueueError
from posthouse.client.wire.connection import Wire, node
from posthouse.client.wire.problems import refusal_in

_tag = Struct(">Q").pack


class Group:
    """Messages that were handed in together; done when the broker has said what became of each."""

    __slots__ = ("count", "done", "failures", "first", "left")

    def __init__(self, count: int, first: int, done: "asyncio.Future[None]") -> None:
        self.first = first  # the number of its first message
        self.count = self.left = count
        self.done = done
        self.failures: dict[int, QueueError] = {}

    def tell(self, numbers: Sequence[int], refusal: QueueError | None) -> None:
        if refusal is not None:
            self.failures |= {number - self.first: refusal for number in numbers}
        self.left -= len(numbers)
        if self.left or self.done.done():
            return
        if not self.failures:
            self.done.set_result(None)
        elif len(self.failures) == self.count:
            self.done.set_exception(next(iter(self.failures.values())))
        else:
            went = {at: "" for at in range(self.count) if at not in self.failures}
            self.done.set_exception(PartialFailure(self.failures, went))


AT_ONCE = 64  # messages


class Sending:
    """A sending link, to one queue or another node that takes messages.

    Messages handed in within one turn of the loop go out together, as far as there is credit. From
    `AT_ONCE` on they are sent immediately, so that the broker works while more are made.
    """

    def __init__(self, wire: Wire, link: Link, what: str) -> None:
        self._wire = wire
        self.link = link
        self.what = what
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[bytes] = deque()  # payloads, of which the last is the newest
        self._answers: dict[int, asyncio.Future[None] | Group] = {}  # who is to be told, by number
        self._next = 0  # the number of the next that is handed in
        self._lost: QueueError | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def attached(self) -> "Sending":
        """Raises QueueError."""
        await asyncio.shield(self._attached)
        return self

    def send(self, payloads: Sequence[bytes]) -> "asyncio.Future[None]":
        """Done when the broker has all of them, or has refused them with a QueueError."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None or self._is_too_large(payloads, done):
            if self._lost is not None:
                done.set_exception(self._lost)
            return done
        first, count = self._next, len(payloads)
        self._next += count
        if count == 1:
            self._answers[first] = done
        else:
            group = Group(count, first, done)
            self._answers.update(dict.fromkeys(range(first, first + count), group))
        self._waiting.extend(payloads)
        self._wire.flush_soon(self)
        if len(self._waiting) >= AT_ONCE:
            self._wire.flush()
        return done

    def send_within(self, payloads: Sequence[bytes], state: bytes) -> "asyncio.Future[None]":
        """Sends messages in a transaction. `state` is the transaction's delivery state."""
        self.go_on()
        done: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None or self._waiting or self.link.credit < len(payloads):
            done.set_exception(self._lost or ConnectionFailed("The broker gives no credit."))
            return done
        group = Group(len(payloads), self._next, done)
        for payload in payloads:
            number, self._next = self._next, self._next + 1
            self._answers[number] = group
            self.link.send(payload, _tag(number), state=state, keep=number)
        self._wire.flush_soon()
        return done

    def _is_too_large(self, payloads: Sequence[bytes], done: "asyncio.Future[None]") -> bool:
        attach = self.link.attach
        most = 0 if attach is None else attach.max_message_size or 0
        large = max(map(len, payloads)) if most else 0
        if large > most:
            done.set_exception(MessageTooLarge(large, most))
        return large > most

    def go_on(self) -> None:
        """Sends the waiting messages, as far as there is credit."""
        waiting, count = self._waiting, min(len(self._waiting), self.link.credit)
        if count <= 0:
            return
        first = self._next - len(waiting)
        numbers = range(first, first + count)
        if count == len(waiting):
            payloads = list(waiting)
            waiting.clear()
        else:
            payloads = [waiting.popleft() for _ in numbers]
        self.link.send_run(payloads, Tags(b"", numbers), numbers)

    def on_attached(self) -> None:
        if not self._attached.done():
            self._attached.set_result(None)

    def on_flowed(self) -> None:
        if self._waiting:
            self._wire.flush_soon(self)

    def on_arrived(self, event: Arrived | Run) -> None:
        """Nothing comes in where it goes out."""

    def settle_down(self) -> None:
        pass

    def on_disposed(self, event: Disposed) -> None:
        refusal = refusal_in(event.state, self.what)
        waiters = list(map(self._answers.pop, event.kept))
        for first, end in runs_of(waiters):
            waiter = waiters[first]
            if isinstance(waiter, Group):
                waiter.tell(event.kept[first:end], refusal)
            elif not waiter.done():
                if refusal is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(refusal)

    def on_lost(self, error: QueueError) -> None:
        self._lost = error
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()
        answers, self._answers = self._answers, {}
        self._waiting.clear()
        for waiter in answers.values():
            done = waiter.done if isinstance(waiter, Group) else waiter
            if not done.done():
                done.set_exception(error)
                done.exception()


def sending(wire: Wire, address: str, what: str) -> Sending:
    """Raises QueueError."""
    end = wire.attach(
        lambda link: Sending(wire, link, what), sends=True, target=node(address, sends=True)
    )
    assert isinstance(end, Sending)
    return end
