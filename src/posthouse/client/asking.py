"""Messages as they come, of a provider that is asked for them again and again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from posthouse.client.errors import QueueError
from posthouse.client.messages import ReceivedMessage
from posthouse.client.retry import ExponentialRetry

WAIT_S = 60.0  # that one question waits
_RETRY = ExponentialRetry(attempts=1_000_000, base=0.2, most=10.0)  # it goes on until it is closed


class Asking:
    """Deliveries. What fails for a while is asked for again."""

    def __init__(
        self,
        receive: Callable[[int, float], Awaitable[list[ReceivedMessage]]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._end = close
        self._closed = asyncio.Event()
        self._asked: asyncio.Future[list[ReceivedMessage]] | None = None

    async def next(self, most: int) -> list[ReceivedMessage]:
        tries = 0
        while not self._closed.is_set():
            self._asked = asyncio.ensure_future(self._receive(most, WAIT_S))
            try:
                received = await self._asked
            except asyncio.CancelledError:
                if self._closed.is_set():
                    return []
                raise
            except QueueError as error:
                tries += 1
                wait = _RETRY.delay(tries, error)
                if wait is None:
                    raise
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), wait)
                continue
            if received:
                return received
        return []

    async def close(self) -> None:
        self._closed.set()
        if self._asked is not None and not self._asked.done():
            self._asked.cancel()
        await self._end()
