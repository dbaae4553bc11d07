"""Deliveries of queues that are not settled yet, and the sessions that some of them belong to."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Hashable
from typing import Any

from posthouse.bridge.window import Window
from posthouse.client.client import QueueClient, SessionClient
from posthouse.client.errors import QueueError
from posthouse.client.messages import ReceivedMessage
from posthouse.client.provider import RELEASE
from posthouse.client.renewing import GONE, Renewal
from posthouse.client.running import seconds_left

FETCH = 16  # events of one session at a time


class Native:
    """A message that a consumer has: where it came from, and how it is settled."""

    def __init__(
        self, message: ReceivedMessage, queue: str, *,
        window: Window | None = None, session: SessionClient | None = None,
    ) -> None:  # fmt: skip
        self.message = message
        self.queue = queue
        self.session = session
        self._window = window
        # Seconds until it is to be delivered again; None: it is done.
        self.done: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        if window is not None:
            window.enter(self.key)

    @property
    def key(self) -> Hashable:
        return self.message.receipt_handle

    def finish(self, again: float | None) -> None:
        """Makes room for the next one."""
        if not self.done.done():
            self.done.set_result(again)
        if self._window is not None:
            self._window.leave(self.key)

    def settler(self, client: QueueClient) -> QueueClient | SessionClient:
        return client if self.session is None else self.session

    async def renew(self, client: QueueClient) -> None:
        """Raises QueueError."""
        if self.session is not None:
            await self.session.renew_session_lock()
        else:
            await client.renew_message_lock(self.message)
        if self._window is not None:
            self._window.extend(self.key)


class HeldSession:
    """A session that is held until it has no more events: one at a time is handed out."""

    def __init__(
        self,
        session: SessionClient,
        queue: str,
        ready: "asyncio.Queue[Native]",
        stop: asyncio.Event,
        closed: asyncio.Event,
    ) -> None:
        """With `stop`, the event that was handed out is waited for; with `closed`, not even it."""
        self._closed = closed
        self._session = session
        self._queue = queue
        self._ready = ready
        self._stop = stop
        self._lost = asyncio.Event()
        self._renewal: Renewal | None = None

    async def serve(self) -> None:
        """Raises QueueError where no more can be received."""
        try:
            while not (self._stop.is_set() or self._lost.is_set()):
                batch = await self._session.receive_messages(FETCH, 0.0)
                if not batch:
                    break
                self._begin_renewal(batch[0])
                await self._hand_out(batch)
        except GONE:
            self._lost.set()
        finally:
            if self._renewal is not None:
                self._renewal.stop()
            if not self._lost.is_set():
                with contextlib.suppress(QueueError):  # it ends by itself
                    await self._session.close_session()  # what it has left goes back

    def _begin_renewal(self, message: ReceivedMessage) -> None:
        if self._renewal is not None:
            return

        async def renew() -> float:
            return seconds_left(message, await self._session.renew_session_lock())

        name = f"the session {self._session.session_id}"
        self._renewal = Renewal(name, seconds_left(message), renew, self._lost.set)

    async def _hand_out(self, batch: list[ReceivedMessage]) -> None:
        """Hands out events in their order; one that is to be retried holds up those behind it."""
        waiting = deque(batch)
        while waiting:
            if self._stop.is_set():
                await self._session._settle(tuple(waiting), RELEASE)
                return
            native = Native(waiting[0], self._queue, session=self._session)
            self._ready.put_nowait(native)
            await self._settled_or_lost(native)
            if self._lost.is_set() or not native.done.done():
                return
            waiting.popleft()
            again = native.done.result()
            if again is not None:
                await self._wait(again)
                await self._session.abandon_message(native.message)
                # It is the first of its session again, unless its queue has had enough of it.
                waiting.extendleft(await self._session.receive_messages(1, 0.0))

    async def _settled_or_lost(self, native: Native) -> None:
        ends = [asyncio.ensure_future(each.wait()) for each in (self._lost, self._closed)]
        waited: list[asyncio.Future[Any]] = [native.done, *ends]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _wait(self, seconds: float) -> None:
        ends = [
            asyncio.ensure_future(each.wait()) for each in (self._stop, self._lost, self._closed)
        ]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
