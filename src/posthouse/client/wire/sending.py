"""Links on which messages go to the broker, as many under way as it gives credit for."""

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct

from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.session import Link
from posthouse.client.errors import MessageTooLarge, PartialFailure, QueueError
from posthouse.client.wire.connection import Wire, node
from posthouse.client.wire.problems import refusal_in

_tag = Struct(">Q").pack


class Group:
    """Messages that were handed in together; done when the broker has said what became of each."""

    __slots__ = ("count", "done", "failures", "first", "left", "payloads", "sent", "state")

    def __init__(
        self,
        payloads: Sequence[bytes],
        first: int,
        done: "asyncio.Future[None]",
        state: bytes | None,
    ) -> None:
        self.payloads = payloads
        self.first = first  # the number of its first message
        self.count = self.left = len(payloads)
        self.sent = 0
        self.state = state  # of a transaction
        self.done = done
        self.failures: dict[int, QueueError] = {}


class Sending:
    """To one queue, or another node that takes messages."""

    def __init__(self, wire: Wire, link: Link, what: str) -> None:
        self._wire = wire
        self.link = link
        self.what = what
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[Group] = deque()  # for credit
        self._under_way: dict[int, Group] = {}
        self._next = 0
        self._lost: QueueError | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def attached(self) -> "Sending":
        """Raises QueueError."""
        await asyncio.shield(self._attached)
        return self

    def send(self, payloads: Sequence[bytes], state: bytes | None = None) -> "asyncio.Future[None]":
        """Done when the broker has all of them, or has refused them with a QueueError."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None:
            done.set_exception(self._lost)
            return done
        attach = self.link.attach
        most = 0 if attach is None else attach.max_message_size or 0
        if most:
            large = max(map(len, payloads))
            if large > most:
                done.set_exception(MessageTooLarge(large, most))
                return done
        group = Group(payloads, self._next, done, state)
        self._next += group.count
        self._waiting.append(group)
        self._go_on()
        return done

    def _go_on(self) -> None:
        """As far as there is credit."""
        link, waiting = self.link, self._waiting
        while waiting and link.credit > 0:
            group = waiting[0]
            begin = group.sent
            end = min(group.count, begin + link.credit)
            first = group.first + begin
            numbers = range(first, group.first + end)
            self._under_way.update(dict.fromkeys(numbers, group))
            tags = [_tag(number) for number in numbers]
            if group.state is None:
                link.send_run(group.payloads[begin:end], tags, numbers)
            else:
                for number, payload, tag in zip(
                    numbers, group.payloads[begin:end], tags, strict=True
                ):
                    link.send(payload, tag, state=group.state, keep=number)
            group.sent = end
            if end == group.count:
                waiting.popleft()
        self._wire.flush_soon()

    def on_attached(self) -> None:
        if not self._attached.done():
            self._attached.set_result(None)

    def on_flowed(self) -> None:
        if self._waiting:
            self._go_on()

    def on_arrived(self, event: Arrived | Run) -> None:
        """Nothing comes in where it goes out."""

    def settle_down(self) -> None:
        pass

    def on_disposed(self, event: Disposed) -> None:
        refusal = refusal_in(event.state, self.what)
        under_way = self._under_way
        for number in event.kept:
            group = under_way.pop(number)
            if refusal is not None:
                group.failures[number - group.first] = refusal
            group.left -= 1
            if not group.left:
                _finish(group)

    def on_lost(self, error: QueueError) -> None:
        self._lost = error
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()
        groups = {id(each): each for each in (*self._under_way.values(), *self._waiting)}
        self._under_way, self._waiting = {}, deque()
        for group in groups.values():
            if not group.done.done():
                group.done.set_exception(error)
                group.done.exception()


def _finish(group: Group) -> None:
    if group.done.done():  # who sent it does not wait any more
        return
    if not group.failures:
        group.done.set_result(None)
    elif len(group.failures) == group.count:
        group.done.set_exception(next(iter(group.failures.values())))
    else:
        went = {at: "" for at in range(group.count) if at not in group.failures}
        group.done.set_exception(PartialFailure(group.failures, went))


def sending(wire: Wire, address: str, what: str) -> Sending:
    """Raises QueueError."""
    end = wire.attach(
        lambda link: Sending(wire, link, what), sends=True, target=node(address, sends=True)
    )
    assert isinstance(end, Sending)
    return end
