"""Links on which messages come from the broker.

Fetched ahead, a link has a window of credit, which is told again as messages are taken. Asked one
by one, it has credit for those who wait, and what is left of that is drained, so that no message is
held for nobody.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count

from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.performatives import ACCEPTED, MODIFIED, RELEASED, error
from posthouse.amqp.runs import runs_of
from posthouse.amqp.session import Link
from posthouse.amqp.types import Symbol, Value
from posthouse.client.errors import ConnectionFailed, MessageNotFound, QueueError
from posthouse.client.messages import ReceiptHandle, ReceivedMessage
from posthouse.client.provider import Settlement
from posthouse.client.wire.connection import Wire
from posthouse.client.wire.messages import DESCRIPTION, REASON, LinkReceipt, Messages, Place
from posthouse.client.wire.problems import refusal_in

DRAIN_SECONDS = 5.0  # what the broker has to say that there is no more
PULL_MAX = 1_000  # messages that are asked for at a time
OPEN_MAX = 100_000  # deliveries of a link that are remembered; older ones are settled by their lock
LETTERS_MAX = 100_000  # dead letters that are remembered, to be sent again


_numbers = count(1)  # of links, so that a receipt need not hold its link


class DeadLetters:
    """Those that were received and are not settled, so that they can be sent again."""

    def __init__(self) -> None:
        self._letters: dict[str, ReceivedMessage] = {}

    def keep(self, messages: Iterable[ReceivedMessage]) -> None:
        letters = self._letters
        letters.update((each.receipt_handle.handle, each) for each in messages)
        while len(letters) > LETTERS_MAX:
            del letters[next(iter(letters))]

    def drop(self, receipts: Iterable[ReceiptHandle]) -> None:
        if self._letters:
            for each in receipts:
                self._letters.pop(each.handle, None)

    def find(self, handle: str) -> ReceivedMessage:
        """Raises MessageNotFound."""
        found = self._letters.get(handle)
        if found is None:
            raise MessageNotFound(handle)
        return found


class _Settling:
    """Deliveries that are settled together."""

    __slots__ = ("done", "left", "problem", "receipts")

    def __init__(self, receipts: Sequence[LinkReceipt], done: "asyncio.Future[None]") -> None:
        self.receipts = receipts
        self.left = len(receipts)
        self.done = done
        self.problem: QueueError | None = None

    def tell(self, ids: Sequence[int], refusal: QueueError | None) -> None:
        """Notes the result of some of the deliveries, and resolves `done` after the last."""
        if refusal is not None and self.problem is None:
            self.problem = refusal
            if isinstance(refusal, MessageNotFound):
                lost = next(each for each in self.receipts if each.delivery == ids[0])
                self.problem = MessageNotFound(lost.handle)
        self.left -= len(ids)
        if self.left or self.done.done():
            return
        if self.problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.problem)


class Receiving:
    """A receiving link, of one queue or session."""

    def __init__(
        self, wire: Wire, link: Link, what: str, place: Place, letters: DeadLetters, window: int
    ) -> None:
        self._wire = wire
        self.link = link
        self.what = what
        self.is_dead = place.is_dead
        self.number = next(_numbers)
        self._messages = Messages(place, self.number)
        self._letters = letters
        self._window = window  # 0: credit is for those who wait
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._came: deque[ReceivedMessage] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()  # how many each wants
        self._open: dict[int, None] = {}  # deliveries of which nothing was said, oldest first
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
        """Takes up to `most` messages: those available, else the first in time. Raises QueueError.

        Another caller may take the messages before one that waited for them runs. That one then
        waits on, first in the row.
        """
        end, again = self._loop.time() + seconds, False
        while not self._came and seconds >= 0:
            await self._wait(min(most, PULL_MAX), seconds, first=again)
            seconds, again = end - self._loop.time(), True
        if self._lost is not None and not self._came:
            raise self._lost
        came = self._came
        taken = [came.popleft() for _ in range(min(most, len(came)))]
        if self._window:
            self._top_up()
        return taken

    async def _wait(self, most: int, seconds: float, *, first: bool) -> None:
        if self._lost is not None:
            raise self._lost
        there: asyncio.Future[bool] = self._loop.create_future()  # whether something came in time
        waiter = most, there
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._ask()
        timer = self._loop.call_later(seconds, _tell, there, False)
        try:
            if not await there and not self._window:
                await self._drain()  # what is under way to us still comes
        finally:
            timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not self._window:
                self._ask()

    def _ask(self) -> None:
        """Adjusts the link's credit to the number of messages that callers wait for."""
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

    def holds(self, receipt: LinkReceipt) -> bool:
        return receipt.delivery in self._open

    def claim(self, receipts: list[LinkReceipt]) -> tuple[list[LinkReceipt], list[LinkReceipt]]:
        """Those that can be settled here, once; and the others."""
        held, ids = self._open, [each.delivery for each in receipts]
        if len(held.keys() & ids) == len(ids):
            for id in ids:
                del held[id]
            return receipts, []
        mine: list[LinkReceipt] = []
        others: list[LinkReceipt] = []
        for each in receipts:
            (mine if held.pop(each.delivery, self) is None else others).append(each)
        return mine, others

    def settle(self, receipts: Sequence[LinkReceipt], how: bytes) -> "asyncio.Future[None]":
        """Settles deliveries of this link, claimed before. Done when the broker has it on disk."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None:
            done.set_exception(self._lost)
            return done
        ids = [each.delivery for each in receipts]
        self._settling.update(dict.fromkeys(ids, _Settling(receipts, done)))
        self.link.settle(ids, how, settled=False)
        self._wire.flush_soon()
        return done

    def on_disposed(self, event: Disposed) -> None:
        refusal = refusal_in(event.state, "")
        ids = [each for each in event.delivery_ids if each in self._settling]
        settling = list(map(self._settling.pop, ids))
        for first, end in runs_of(settling):
            settling[first].tell(ids[first:end], refusal)

    # The end.

    async def close(self) -> None:
        """Closes the link, and releases the messages that nobody has taken.

        Others can then receive these messages, and accept the session.
        """
        self._window = 0
        if self._lost is None:
            await self._drain()
        self._give_back()
        over = self._wire.detach(self)
        if self._lost is None:
            self.on_lost(ConnectionFailed("The receiver has been closed."))
        await asyncio.wait([over], timeout=DRAIN_SECONDS)

    def _give_back(self) -> None:
        came, self._came = self._came, deque()
        receipts = (each.receipt_handle for each in came)
        mine, _ = self.claim([each for each in receipts if isinstance(each, LinkReceipt)])
        self._letters.drop(mine)
        if mine and self._lost is None:
            self.link.settle([each.delivery for each in mine], RELEASED)
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
        """Releases the messages that came while the link was drained and that nobody has taken."""
        if not self._waiting and not self._window:
            self._give_back()

    def on_arrived(self, event: Arrived | Run) -> None:
        if isinstance(event, Run):
            ids, tags, payloads = event.delivery_ids, event.tags, event.payloads
        else:
            assert event.payload is not None  # we take messages of any size
            ids, tags, payloads = [event.delivery_id], [event.tag], [event.payload]
        messages = self._messages.read_all(payloads, tags, ids)
        held = self._open
        held.update(dict.fromkeys(ids))
        while len(held) > OPEN_MAX:
            del held[next(iter(held))]
        if self.is_dead:
            self._letters.keep(messages)
        self._came.extend(messages)

    def settle_down(self) -> None:
        there = len(self._came)
        while self._waiting and there > 0:
            most, waiter = self._waiting.popleft()
            there -= most
            _tell(waiter, True)
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
            _tell(waiter, True)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        for settling in self._settling.values():
            if not settling.done.done():
                settling.done.set_exception(error)
                settling.done.exception()
        self._settling = {}
        self._open = {}
        self._came.clear()  # their locks are the broker's to end


def _tell(waiter: "asyncio.Future[bool]", came: bool) -> None:
    if not waiter.done():
        waiter.set_result(came)


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
