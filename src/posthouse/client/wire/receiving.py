"""Links on which messages come from the broker.

Fetched ahead, a link has a window of credit, which is told again as messages are taken. Asked one
by one, it has credit for those who wait, and what is left of that is drained, so that no message is
held for nobody.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.performatives import ACCEPTED, MODIFIED, RELEASED, error
from posthouse.amqp.session import Link
from posthouse.amqp.types import Symbol, Value
from posthouse.client.errors import ConnectionFailed, MessageNotFound, QueueError
from posthouse.client.messages import ReceivedMessage
from posthouse.client.provider import Settlement
from posthouse.client.wire.connection import Wire
from posthouse.client.wire.messages import DESCRIPTION, REASON, Messages, Place
from posthouse.client.wire.problems import refusal_in

if TYPE_CHECKING:
    from posthouse.client.wire.provider import Receipts

DRAIN_SECONDS = 5.0  # what the broker has to say that there is no more
PULL_MAX = 1_000  # messages that are asked for at a time


class _Settling:
    """Deliveries that are settled together."""

    __slots__ = ("done", "handles", "left", "problem")

    def __init__(self, handles: dict[int, str], done: "asyncio.Future[None]") -> None:
        self.handles = handles  # by delivery
        self.left = len(handles)
        self.done = done
        self.problem: QueueError | None = None


class Receiving:
    """From one queue or session."""

    def __init__(
        self, wire: Wire, link: Link, what: str, place: Place, receipts: "Receipts", window: int
    ) -> None:
        self._wire = wire
        self.link = link
        self.what = what
        self.is_dead = place.is_dead
        self._messages = Messages(place)
        self._receipts = receipts
        self._window = window  # 0: credit is for those who wait
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._came: deque[ReceivedMessage] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # how many each wants
        self._settling: dict[int, _Settling] = {}
        self._drained: asyncio.Future[None] | None = None  # while it is being drained
        self._lost: QueueError | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def attached(self) -> "Receiving":
        """Raises QueueError."""
        await asyncio.shield(self._attached)
        return self

    # Taking.

    async def take(self, most: int, seconds: float) -> list[ReceivedMessage]:
        """What is there, or what comes first within the time. Raises QueueError."""
        if not self._came and seconds >= 0:
            await self._wait(min(most, PULL_MAX), seconds)
        if self._lost is not None and not self._came:
            raise self._lost
        came = self._came
        taken = [came.popleft() for _ in range(min(most, len(came)))]
        if self._window:
            self._top_up()
        return taken

    async def _wait(self, most: int, seconds: float) -> None:
        if self._lost is not None:
            raise self._lost
        there: asyncio.Future[None] = self._loop.create_future()
        waiter = most, there
        self._waiting.append(waiter)
        self._ask()
        try:
            await asyncio.wait([there], timeout=seconds)
            if not there.done() and not self._window:
                await self._drain()  # what is under way to us still comes
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not self._window:
                self._ask()

    def _ask(self) -> None:
        """As much credit as there is somebody for."""
        link = self.link
        if self._lost is not None or not link.is_open or self._drained is not None:
            return
        if self._window:
            self._top_up()
            return
        wanted = min(PULL_MAX, sum(most for most, _ in self._waiting))
        if wanted > link.credit:
            link.grant(wanted)
            self._wire.flush_soon()
        elif wanted < link.credit:
            self._begin_drain()

    def _top_up(self) -> None:
        link, room = self.link, self._window - len(self._came)
        if self._lost is None and link.credit <= room // 2 and room > 0:
            link.grant(room)
            self._wire.flush_soon()

    def ask_again(self) -> None:
        """Tells the broker once more how much we take, in case it sees that otherwise."""
        if self._lost is None and self._attached.done():
            self.link.grant(max(self.link.credit, self._window - len(self._came)))
            self._wire.flush_soon()

    def _begin_drain(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()
            self.link.grant(self.link.credit, drain=True)
            self._wire.flush_soon()

    async def _drain(self) -> None:
        if self._lost is None and self.link.credit > 0:
            self._begin_drain()
        if self._drained is not None:
            await asyncio.wait([self._drained], timeout=DRAIN_SECONDS)

    # Settling.

    def settle(self, ids: dict[int, str], how: bytes) -> "asyncio.Future[None]":
        """Deliveries of this link, with their receipts. Done when the broker has it on disk."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None:
            done.set_exception(self._lost)
            return done
        settling = _Settling(ids, done)
        self._settling.update(dict.fromkeys(ids, settling))
        self.link.settle(list(ids), how, settled=False)
        self._wire.flush_soon()
        return done

    def on_disposed(self, event: Disposed) -> None:
        refusal = refusal_in(event.state, "")
        for id in event.delivery_ids:
            settling = self._settling.pop(id, None)
            if settling is None:
                continue
            if refusal is not None and settling.problem is None:
                lost = isinstance(refusal, MessageNotFound)
                settling.problem = MessageNotFound(settling.handles[id]) if lost else refusal
            settling.left -= 1
            if not settling.left and not settling.done.done():
                if settling.problem is None:
                    settling.done.set_result(None)
                else:
                    settling.done.set_exception(settling.problem)

    # The end.

    async def close(self) -> None:
        """What nobody has taken goes back as if it had never been delivered."""
        self._window = 0
        if self._lost is None:
            await self._drain()
        self._give_back()
        self._wire.detach(self)
        if self._lost is None:
            self.on_lost(ConnectionFailed("The receiver has been closed."))

    def _give_back(self) -> None:
        came, self._came = self._came, deque()
        ids = [id for each in came if (id := self._receipts.drop(each.receipt_handle.handle)) >= 0]
        if ids and self._lost is None:
            self.link.settle(ids, RELEASED)
            self._wire.flush_soon()

    # What is told.

    def on_attached(self) -> None:
        if not self._attached.done():
            self._attached.set_result(None)
        self._ask()

    def on_flowed(self) -> None:
        drained = self._drained
        if drained is not None and self.link.credit <= 0:
            self._drained = None
            drained.set_result(None)
            if not self._waiting and not self._window:
                self._loop.call_soon(self._leave_nothing)
            self._ask()

    def _leave_nothing(self) -> None:
        """What came while it was being drained, and nobody has taken."""
        if not self._waiting and not self._window:
            self._give_back()

    def on_arrived(self, event: Arrived | Run) -> None:
        if isinstance(event, Run):
            ids, tags, payloads = event.delivery_ids, event.tags, event.payloads
        else:
            assert event.payload is not None  # we take messages of any size
            ids, tags, payloads = [event.delivery_id], [event.tag], [event.payload]
        messages = self._messages.read_all(payloads, tags)
        self._receipts.hold(self, messages, ids)
        self._came.extend(messages)

    def settle_down(self) -> None:
        there = len(self._came)
        while self._waiting and there > 0:
            most, waiter = self._waiting.popleft()
            there -= most
            if not waiter.done():
                waiter.set_result(None)
        if not self._window and self.link.credit > 0:
            self._ask()
        if not self._window and self.link.credit <= 0 and self._drained is not None:
            self.on_flowed()

    def on_lost(self, error: QueueError) -> None:
        self._lost = error
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()
        waiting, self._waiting = self._waiting, deque()
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        for settling in self._settling.values():
            if not settling.done.done():
                settling.done.set_exception(error)
                settling.done.exception()
        self._settling = {}
        self._receipts.forget(self)
        self._came.clear()  # their locks are the broker's to end


def outcome(how: Settlement) -> bytes:
    """A settlement as AMQP has it (3.4)."""
    match how.ending:
        case "complete":
            return ACCEPTED
        case "release":
            return RELEASED
        case "abandon":
            return _modified(how.attributes, elsewhere=False) if how.attributes else MODIFIED
        case "defer":
            return _modified(how.attributes, elsewhere=True)
        case "dead-letter":
            info: dict[Value, Value] = {Symbol(n): str(v) for n, v in how.attributes.items()}
            if how.reason is not None:
                info[Symbol(REASON)] = str(how.reason)
            if how.description is not None:
                info[Symbol(DESCRIPTION)] = str(how.description)
            return described(0x25, encode_list((error("com.microsoft:dead-letter", "", info),)))


def _modified(attributes: Value, *, elsewhere: bool) -> bytes:
    changes = encode({Symbol(name): str(value) for name, value in attributes.items()})
    flags = (b"\x41" if not elsewhere else b"\x40", b"\x41" if elsewhere else b"\x40")
    return described(0x27, encode_list((*flags, changes)))
