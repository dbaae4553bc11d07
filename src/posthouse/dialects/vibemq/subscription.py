"""One client's subscription to one queue: what it is given, and what it has acknowledged.

VibeMQ has no credit, so a subscriber is given messages as long as it has fewer than a window of
them that it has not acknowledged; of a queue that goes by priority one at a time, so that each is
the first there is. What is not acknowledged in time goes back, and is not counted any more.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from posthouse.core.commands import (
    Answer,
    Attach,
    Complete,
    Credit,
    DeadLetter,
    Delivery,
    Detach,
    Notice,
    Release,
)
from posthouse.core.errors import Busy, Refused
from posthouse.core.plan import Delivered
from posthouse.dialects.connections import guarded
from posthouse.dialects.vibemq.message import delivery
from posthouse.store.errors import StoreError

if TYPE_CHECKING:
    from posthouse.dialects.vibemq.peer import Peer

WINDOWS_BYTES = 16 << 20  # of messages that are asked for at a time for one client,
WINDOW_BYTES_MAX, WINDOW_BYTES_MIN = 4 << 20, 64 << 10  # and for one of its subscriptions
BUSY_SECONDS = 0.5
Reply = Answer | Refused | StoreError


def _ignore(_: object) -> None:
    """Nobody waits for it."""


class Subscription:
    def __init__(self, peer: "Peer", id: str, name: str) -> None:
        self._peer = peer
        self.id = id  # of the request that it was asked for with
        self.name = name  # of the queue, as the client has it,
        self.queue = name  # and as it is called here
        self._number = 0  # of the receiver; 0: not attached
        self._given = self._asked = 0  # messages, and credit that is left of what was asked for
        self._window, self._is_strict = 1, False  # strict: one at a time, the first there is
        self.held: dict[int, tuple[str, int]] = {}  # by token: the id, and until when
        self._completing: list[int] = []
        self.is_over = False  # no more is to be given; what was may still be acknowledged

    @property
    def is_attached(self) -> bool:
        return self._number != 0

    def start(self, queue: str, attached: Callable[[Reply], None]) -> None:
        """Calls back when it is attached, or refused; then `fill` it."""
        self.queue = queue
        deliver = guarded(self._deliver, self._peer.abort)
        number = self._number = self._peer.engine.new_receiver(deliver)
        self._given = self._asked = 0

        def reply(answer: Reply) -> None:
            if isinstance(answer, Refused | StoreError) and self._number == number:
                self._number = 0
            attached(answer)

        assert self._peer.principal is not None  # who has not logged in cannot subscribe
        client = f"{self._peer.principal.name}#{number} (VibeMQ)"
        self._peer.submit(Attach(queue, number, bound=True, client=client), reply)

    # Credit.

    def fill(self) -> None:
        """Asks for as much as there is room for in the window, now and then."""
        if not self._number or self.is_over:
            return
        if not self._given:
            self._window = self._first_window()
        wanted = 0 if self._peer.is_paused else max(0, self._window - len(self.held))
        if wanted - self._asked > self._window // 2 or (wanted > 0 and not self._asked):
            self._ask(wanted)

    def _ask(self, credit: int) -> None:
        self._asked = credit
        number = self._number

        def reply(answer: Reply) -> None:
            if isinstance(answer, Busy) and self._number == number:
                self._asked = 0
                asyncio.get_running_loop().call_later(BUSY_SECONDS, self.fill)

        self._peer.submit(Credit(number, credit, given=self._given), reply)

    def _first_window(self) -> int:
        """How many messages fit, as large as they are in the queue on the average."""
        view, namespace = self._peer.view, self._peer.namespace
        like = view.properties(namespace, self.queue)
        self._is_strict = like is None or like.order == "priority"
        if self._is_strict:
            return 1
        there = view.size(namespace, self.queue)
        return self._fit(there.messages, there.size_bytes)

    def _fit(self, count: int, size: int) -> int:
        """How many messages there may be, if so many are of this size."""
        most, mine = self._peer.settings.window, len(self._peer.subscriptions)
        share = WINDOWS_BYTES // max(1, mine)
        share = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, share))
        return max(1, min(most, share * count // size if size else most))

    # Deliveries.

    def _deliver(self, what: Sequence[Delivered]) -> None:
        given = [each for each in what if isinstance(each, Delivery)]
        if self.is_over or self._peer.is_over:
            self._release([each.token for each in given if each.token])
            return
        peer, size, said = self._peer, 0, []
        self._given += len(given)
        self._asked -= len(given)
        for each in given:
            token = each.token
            frame = delivery(each.message, each.note, self.name)
            if not frame.id:
                frame.id = f"{token:032x}"
            data = peer.encoder.frame(frame)
            if data is None:
                self._bury(token, frame.id)
                continue
            size += len(data if isinstance(data, bytes) else data.body)
            peer.say(data, partial(self._bury, token, frame.id))
            said.append(each)
            if token:
                self.held[token] = (frame.id, each.until_ms)
                peer.hold(frame.id, self, token)
        if said:
            peer.peers.count_deliveries(said, peer.engine.clock_ms(peer.namespace))
        if size and not self._is_strict:
            self._window = self._fit(len(given), size)
        for notice in what:
            if isinstance(notice, Notice) and notice.kind == "deleted":
                self._number = 0  # there may be a queue of that name again
                self.forget()
        self.fill()

    def _bury(self, token: int, id: str) -> None:
        """One that no frame can hold, which only another dialect's client can have sent."""
        if self.held.pop(token, None) is not None:
            self._peer.let_go(id, self, token)
        if token and not self._peer.is_over:
            self._peer.leave(
                DeadLetter(
                    self.queue, [token], partial=True, reason="DeserializationError",
                    description="The message does not fit into a frame of this connection.",
                )
            )  # fmt: skip

    def _release(self, tokens: list[int]) -> None:
        """Returns messages to their places for others, without counting a delivery."""
        if tokens:
            self._peer.leave(Release(self.queue, tokens, partial=True))

    # Acknowledgement.

    def acknowledge(self, token: int) -> None:
        del self.held[token]
        self._completing.append(token)
        self._peer.gather(self)

    def flush(self) -> None:
        """Completes the acknowledged messages in one command."""
        tokens, self._completing = self._completing, []
        if tokens:
            self._complete(tokens)
            if self.is_over and not self.held:
                self.end()
            else:
                self.fill()

    def _complete(self, tokens: list[int]) -> None:
        def reply(answer: Reply) -> None:
            if isinstance(answer, Busy):
                loop = asyncio.get_running_loop()
                loop.call_later(BUSY_SECONDS, self._complete, tokens)

        self._peer.submit(Complete(self.queue, tokens, partial=True), reply)

    def expire(self, now_ms: int) -> None:
        """Forgets the messages that were not acknowledged in time: their locks have expired."""
        late = []
        for token, (_, until_ms) in self.held.items():
            if until_ms > now_ms:
                break
            late.append(token)
        for token in late:
            self._peer.let_go(self.held.pop(token)[0], self, token)
        if late:
            self.fill()

    # The end.

    def stop(self, then: Callable[[object], None] = _ignore) -> None:
        """Nothing more is given; what the client has it may still acknowledge.

        Calls back when the queue has lost it, or at once where it waits for acknowledgements.
        """
        self.is_over = True
        if not self._is_shared or not self.held:
            self.end(then)
        else:
            if self._number:
                self._peer.leave(Credit(self._number, 0))
            then(None)

    def end(self, then: Callable[[object], None] = _ignore) -> None:
        """Ends the subscription. Its messages go back to their places.

        Calls `then` when the queue no longer has the subscriber.
        """
        self.is_over = True
        number, self._number = self._number, 0
        tokens, self._completing = self._completing, []
        if tokens:
            self._complete(tokens)
        if number and self._is_shared:
            # Without credit first, or what goes back would come again; and with what is under way
            # given back too before the receiver goes, which would count it as an attempt.
            self._peer.leave(Credit(number, 0), lambda _: self._detach_soon(number, then))
            self._release(list(self.held))
        elif number:
            self._peer.leave(Detach(number), then)
        else:
            then(None)
        self.forget()
        self._peer.ended(self)

    def _detach_soon(self, number: int, then: Callable[[object], None]) -> None:
        """Detaches the receiver after the deliveries that are being handed over."""
        asyncio.get_running_loop().call_soon(self._peer.leave, Detach(number), then)

    @property
    def _is_shared(self) -> bool:
        """Whether subscribers compete for the messages; else each has copies of its own."""
        like = self._peer.view.properties(self._peer.namespace, self.queue)
        return like is not None and like.delivery == "competing"

    def forget(self) -> None:
        for token, (id, _) in self.held.items():
            self._peer.let_go(id, self, token)
        self.held.clear()
