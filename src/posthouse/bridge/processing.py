"""The way of a delivery: read, middleware, inbox, handler, commit, outcome.

Handlers run on the loop of who runs the bridge, and plain functions in threads; `Processing` takes
the events there and brings the outcomes back. It never raises: whatever happens is an outcome.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from posthouse.bridge import envelope
from posthouse.bridge.consuming import Held
from posthouse.bridge.errors import ConfigurationError, MalformedEvent
from posthouse.bridge.event import Event
from posthouse.bridge.figures import Figures
from posthouse.bridge.handling import (
    DONE,
    EXCEEDED,
    MALFORMED,
    SEEN,
    UNRECOVERABLE_REASON,
    Call,
    Handler,
    Middleware,
    Outcome,
    decision,
)
from posthouse.bridge.hooks import SimulatedCrash
from posthouse.bridge.tracing import find_tracing
from posthouse.bridge.transport import Delivery
from posthouse.client.handling import describe
from posthouse.client.loop_thread import LoopThread

_log = logging.getLogger("posthouse.bridge")
BUSY_SECONDS = 5.0  # until an event is delivered again that another process is at
_current: contextvars.ContextVar[Event | None] = contextvars.ContextVar("event", default=None)


def current_event() -> Event | None:
    """Returns the event that is being handled here; None outside of a handler, and in a batch.

    Example:
        event = current_event()
    """
    return _current.get()


State = Literal["new", "seen", "busy"]  # busy: another process is at it


class Room(Protocol):
    """The transaction of a handler: the state of each event, and the session to work with."""

    @property
    def states(self) -> Sequence[State]: ...
    @property
    def session(self) -> Any: ...


class Guard(Protocol):
    """Runs handlers in transactions, and knows the events that were handled before."""

    def check(self, handler: Handler) -> None: ...  # raises ConfigurationError

    # Commits at the end of the block; what is raised in it rolls all back.
    def handling(self, work: Sequence[Held]) -> AbstractAsyncContextManager[Room]: ...


@dataclass(frozen=True)
class PlainRoom:
    """Processing without a database: every event is new."""

    states: Sequence[State]
    session: Any = None


class NoInbox:
    """Neither transactions nor a memory of events."""

    def check(self, handler: Handler) -> None:
        if handler.wants_session:
            raise ConfigurationError(
                f"The handler {handler.name} takes a session, but the bridge has no database; give"
                " one: Bridge(..., database=engine)."
            )

    @asynccontextmanager
    async def handling(self, work: Sequence[Held]) -> AsyncIterator[Room]:
        yield PlainRoom(["new"] * len(work))


class Busy(Exception):
    """Another process handles the event now; it is delivered again later."""


async def in_thread(pool: Executor, work: Callable[[], Any]) -> Any:
    """Runs a function in a thread, where it sees the same context variables.

    A thread cannot be ended: who is cancelled waits for it, so that nothing is committed.
    """
    here = contextvars.copy_context()
    running = asyncio.get_running_loop().run_in_executor(pool, partial(here.run, work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # it is told by the cancellation already
        raise


class Processing:
    """The handler of one source's events, with its middleware."""

    def __init__(
        self,
        handler: Handler,
        middleware: Sequence[Middleware],
        guard: Guard,
        figures: Figures,
        hands: asyncio.AbstractEventLoop,
        pool: Executor,
        crash_point: Callable[[str], None],
    ) -> None:
        self._handler = handler
        self._middleware = middleware
        self._guard = guard
        self._figures = figures
        self._hands = hands
        self._pool = pool
        self._crash_point = crash_point

    def read(self, delivery: Delivery) -> Event | MalformedEvent:
        """Returns the event of a delivery, or why it has none that can be read."""
        try:
            return envelope.decode(delivery.body, delivery.headers)
        except MalformedEvent as error:
            return error

    async def handle(self, work: Sequence[Held]) -> list[Outcome]:
        """Handles the events of one transaction, from the transport's loop. Never raises.

        If a batch has an outcome that is not `done` or `seen`, nothing of it was done.
        """
        return await LoopThread(self._hands).call(self._attempt(work))

    async def _attempt(self, work: Sequence[Held]) -> list[Outcome]:
        first = work[0]
        if first.problem is not None:
            return [Outcome("dead", reason=MALFORMED, error=first.problem)]
        if first.attempt > self._handler.options.max_deliver:
            # Only crashes of the process come so far: a poison message does not kill for ever.
            return [Outcome("dead", reason=EXCEEDED)]
        begun = time.monotonic()
        try:
            outcomes = await self._decide(work)
        finally:
            self._figures.observe("bridge_handler_seconds", time.monotonic() - begun)
        return outcomes

    async def _decide(self, work: Sequence[Held]) -> list[Outcome]:
        task = asyncio.current_task()
        assert task is not None
        seen: set[Held] = set()
        try:
            with self._told(work):
                async with asyncio.timeout(self._handler.options.timeout):
                    answer = await self._chain(work, seen)
        except Busy:
            return [Outcome("released", BUSY_SECONDS)] * len(work)
        except SimulatedCrash:
            return [Outcome("released")] * len(work)
        except asyncio.CancelledError as cancelled:
            if task.cancelling():
                task.uncancel()
                return [Outcome("released", error=cancelled)] * len(work)
            return self._judge(work, cancelled)
        except Exception as error:  # noqa: BLE001 (it is the handler's own, and is told)
            return self._judge(work, error)
        made = decision(answer)
        if made is not None:
            return self._judge(work, made)
        return [SEEN if held in seen else DONE for held in work]

    def _judge(self, work: Sequence[Held], error: BaseException) -> list[Outcome]:
        return [self._handler.judge(error, held.attempt) for held in work]

    @contextmanager
    def _told(self, work: Sequence[Held]) -> Iterator[None]:
        """The context of a handler: which event it is, and a span."""
        events = [held.event for held in work if held.event is not None]
        token = _current.set(events[0] if len(events) == 1 else None)
        tracing = find_tracing()
        try:
            if tracing is None or not tracing.is_on:
                yield
            else:
                with tracing.processing(events, work[0].delivery.subject):
                    yield
        finally:
            _current.reset(token)

    async def _chain(self, work: Sequence[Held], seen: set[Held]) -> Any:
        async def innermost(_: Any) -> Any:
            seen.update(await self._transact(work))
            return None

        chain: Callable[[Any], Awaitable[Any]] = innermost
        for layer in reversed(self._middleware):
            chain = partial(_around, layer, chain)
        events = [held.event for held in work]
        return await chain(events if self._handler.options.batch else events[0])

    async def _transact(self, work: Sequence[Held]) -> set[Held]:
        handler = self._handler
        async with self._guard.handling(work) as room:
            states = dict(zip(work, room.states, strict=True))
            if "busy" in room.states:
                raise Busy
            fresh = [held for held in work if states[held] == "new"]
            if fresh:
                events = [held.event for held in fresh if held.event is not None]
                call = Call(events, [held.delivery for held in fresh], room.session)
                arguments = handler.arguments(call)
                if handler.is_async:
                    await handler.function(*arguments)
                else:
                    await in_thread(self._pool, partial(handler.function, *arguments))
                self._crash_point("commit")
            return {held for held in work if states[held] == "seen"}

    def note(self, held: Held, outcome: Outcome) -> None:
        """Counts and logs an outcome."""
        self._figures.count("bridge_events_total", outcome.ending)
        if outcome.ending == "seen":
            self._figures.count("bridge_inbox_duplicates_total")
        if outcome.ending in ("done", "seen", "released"):
            return
        if outcome.ending == "dead":
            known = outcome.reason in (MALFORMED, UNRECOVERABLE_REASON, EXCEEDED)
            self._figures.count("bridge_dead_letters_total", outcome.reason if known else "handler")
        level, text = _TEXTS[outcome.ending]
        error = outcome.error
        why = f": {type(error).__name__}: {describe(error)}" if error is not None else ""
        is_final = outcome.ending == "dead" and outcome.reason in (UNRECOVERABLE_REASON, EXCEEDED)
        _log.log(
            level, "%s of %s, delivery %d, %s%s",
            held.event.id if held.event is not None else held.delivery.id or "An event",
            held.delivery.subject, held.attempt,
            text.format(delay=outcome.delay, reason=outcome.reason), why,
            exc_info=error if is_final else None,
            extra={"event": f"bridge.{outcome.ending}", "subject": held.delivery.subject,
                   "attempt": held.attempt},
        )  # fmt: skip


_TEXTS = {
    "retry": (logging.WARNING, "failed and is tried again in {delay:.1f} s"),
    "dropped": (logging.INFO, "was dropped"),
    "dead": (logging.ERROR, "goes to the dead letters ({reason})"),
}


async def _around(layer: Middleware, inner: Callable[[Any], Awaitable[Any]], events: Any) -> Any:
    return await layer(events, inner)
