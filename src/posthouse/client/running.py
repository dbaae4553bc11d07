"""One run of a worker, and what becomes of the messages that it holds.

Two loops: the client lives on one (`loop_thread`), with everything that must go on while a handler
computes: fetching, renewing locks, settling. Handlers run on the other, the loop of who runs the
worker. Where that has given a client of his own, both are the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from posthouse.client.client import QueueClient, SessionClient
from posthouse.client.errors import (
    AuthenticationFailed,
    ConfigurationError,
    PermissionDenied,
    QueueError,
    QueueNotFound,
    Unsupported,
    ValidationError,
)
from posthouse.client.figures import Figures
from posthouse.client.handling import Context, HandlingFailed, Middleware, Outcome, Route
from posthouse.client.loop_thread import LoopThread
from posthouse.client.messages import ReceivedMessage
from posthouse.client.renewing import GONE
from posthouse.client.retry import ExponentialRetry

_log = logging.getLogger("posthouse.worker")

T = TypeVar("T")
POLL_SECONDS = 30.0  # how long one fetch waits for messages
# Who begins with one of these would not get further by waiting.
HOPELESS = (
    AuthenticationFailed, ConfigurationError, PermissionDenied, QueueNotFound, Unsupported,
    ValidationError,
)  # fmt: skip
# A queue that is asked so seldom is not overloaded by it, and is read soon after it is back.
_PATIENCE = ExponentialRetry(attempts=1 << 30, base=0.5, most=5.0)
_NAMES = {
    "complete": "ok", "retry": "retried", "abandon": "requeued", "dead-letter": "dead-lettered",
    "lost": "lost",
}  # fmt: skip


class Run:
    """The state that all queues of a worker share while it runs. Only for the client's loop."""

    def __init__(
        self,
        client: QueueClient,
        loop_thread: LoopThread,
        hands: asyncio.AbstractEventLoop,
        queues: Iterable[str],
        middleware: Sequence[Middleware],
        pool: Executor,
    ) -> None:
        self.client = client
        self.loop_thread = loop_thread
        self.stop = asyncio.Event()
        self.is_over = False  # nothing is settled or counted any more
        self.figures = {each: Figures() for each in queues}
        self._hands = hands
        self._middleware = middleware
        self._pool = pool

    async def handle(self, route: Route, context: Context) -> Outcome:
        """Handles a message on the handlers' loop, and returns when the handler has ended."""
        work = route.handle(context, self._middleware, self._pool)
        if self._hands is self.loop_thread.loop:
            outcome = await work
        else:
            outcome = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._hands))
        if not self.is_over:
            self._note(route, context, outcome)
        return outcome

    def cancel(self, route: Route, context: Context) -> None:
        """An async handler; a function in a thread can only look at its context."""
        if route.is_async:
            self._hands.call_soon_threadsafe(_cancel, context)

    def _note(self, route: Route, context: Context, outcome: Outcome) -> None:
        queue, name = route.options.queue, _NAMES[outcome.ending]
        for figures in (self.client.figures, self.figures[queue]):
            figures.note("handle", name, outcome.seconds)
        if outcome.ending == "complete":
            return
        level = logging.ERROR if outcome.ending == "dead-letter" else logging.WARNING
        texts = {
            "retry": f"failed and is tried again in {outcome.delay:.1f} s",
            "abandon": "was given back", "dead-letter": "is dead-lettered",
            "lost": "was lost while it was handled: its lock has ended",
        }  # fmt: skip
        why = f": {outcome.reason}: {outcome.description}" if outcome.reason else ""
        _log.log(
            level, "%s of %s, attempt %d, %s%s", context.message.message_id, queue, context.attempt,
            texts[outcome.ending], why, exc_info=_trace(outcome),
            extra={"event": f"worker.{name}", "queue": queue, "attempt": context.attempt,
                   "message_id": context.message.message_id},
        )  # fmt: skip

    async def settle(
        self, settling: QueueClient | SessionClient, message: ReceivedMessage, outcome: Outcome
    ) -> None:
        """A message that cannot be settled is delivered again when its lock ends."""
        if self.is_over:
            return
        try:
            match outcome.ending:
                case "complete":
                    await settling.complete_message(message)
                case "retry" | "abandon":
                    await settling.abandon_message(message)
                case "dead-letter":
                    reason = outcome.reason or "rejected"
                    await settling.dead_letter_message(message, reason, outcome.description)
                case "lost":
                    pass
        except GONE:
            _log.warning(
                "%s was handled, but its lock had ended: it may be delivered again.",
                message.message_id, extra={"event": "worker.lost"},
            )  # fmt: skip
        except QueueError as error:
            _log.error(
                "%s could not be settled (%s) and is delivered again: %s", message.message_id,
                outcome.ending, error, extra={"event": "worker.unsettled"},
            )  # fmt: skip

    async def release(self, message: ReceivedMessage) -> None:
        """It was not begun, and is as if it had never been delivered."""
        with contextlib.suppress(*GONE):
            try:
                await self.client.release_message(message)
            except QueueError as error:
                if isinstance(error, GONE):
                    raise
                _log.warning("%s could not be given back: %s", message.message_id, error,
                             extra={"event": "worker.unsettled"})  # fmt: skip

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Runs the work and returns its result; None if the worker is stopped first.

        Raises the work's errors.
        """
        doing = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not doing.done():
                doing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await doing
        return None

    async def fetch_first(
        self, queue: str, fetch: Callable[[float], Coroutine[Any, Any, T]]
    ) -> T | None:
        """Fetches once, without waiting; None if the queue cannot be read yet.

        Raises one of HOPELESS.
        """
        try:
            return await self.unless_stopped(fetch(0.0))
        except HOPELESS:
            raise
        except QueueError as error:
            _log.warning("%s cannot be read from yet: %s", queue, error,
                         extra={"event": "worker.waiting", "queue": queue})  # fmt: skip
            return None

    async def keep_fetching(self, queue: str, round: Callable[[], Awaitable[None]]) -> None:
        """Again and again until it is stopped, whatever the provider says."""
        tries = 0
        while not self.stop.is_set():
            try:
                await round()
                tries = 0
            except QueueError as error:
                tries += 1
                wait = _PATIENCE.delay(tries, HandlingFailed()) or 0.0
                _log.warning(
                    "%s cannot be read from, and is tried again in %.1f s: %s", queue, wait, error,
                    extra={"event": "worker.waiting", "queue": queue},
                )  # fmt: skip
                await self.unless_stopped(asyncio.sleep(wait))


def seconds_left(message: ReceivedMessage, until: datetime | None = None) -> float:
    """Returns the seconds until a lock expires, by the clock of the provider that gave it."""
    receipt = message.receipt_handle
    if until is not None:
        receipt = msgspec.structs.replace(receipt, expires_at=until)
    return receipt.time_until_expiry().total_seconds()


def _cancel(context: Context) -> None:
    if context._task is not None:
        context._task.cancel()


def _trace(outcome: Outcome) -> BaseException | None:
    """Returns the error of a handler that has failed for good; None for a rejected message."""
    failed = outcome.ending == "dead-letter" and outcome.reason == type(outcome.error).__name__
    return outcome.error if failed else None
