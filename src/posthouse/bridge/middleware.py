"""Middleware that comes with the bridge. Yours is an async function of the same form.

    async def mine(event: Event, call_next: CallNext) -> object:
        return await call_next(event)

`call_next` runs the rest, and the transaction in which the handler works. With `batch`, middleware
gets the list of the events in the place of one. Each function here makes a middleware.
"""

import asyncio
import logging as python_logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from posthouse.bridge.event import Event
from posthouse.bridge.handling import Middleware
from posthouse.bridge.retries import Decision, Drop
from posthouse.bridge.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

CallNext: TypeAlias = Callable[[Any], Awaitable[Any]]
Events: TypeAlias = Event | Sequence[Event]


def logging(logger: python_logging.Logger | None = None, level: int = python_logging.INFO
            ) -> Middleware:  # fmt: skip
    """Logs each event that was handled, or failed, with its type, its id and the time it took.

    `logger` is posthouse.bridge.events unless given, and `level` INFO; a failure is a warning.

    Example:
        bridge.use(middleware.logging())
    """
    log = logger or python_logging.getLogger("posthouse.bridge.events")

    async def layer(events: Events, call_next: CallNext) -> object:
        begun = time.monotonic()
        try:
            answer = await call_next(events)
        except Exception as error:
            log.log(
                max(level, python_logging.WARNING), "%s failed after %.3f s: %s: %s",
                _title(events), time.monotonic() - begun, type(error).__name__, error,
                extra={"event": "bridge.failed", **_fields(events)},
            )  # fmt: skip
            raise
        log.log(level, "%s was handled in %.3f s.", _title(events), time.monotonic() - begun,
                extra={"event": "bridge.handled", **_fields(events)})  # fmt: skip
        return answer

    return layer


def metrics(record: Callable[[str, str, float], object]) -> Middleware:
    """Tells each handling to a metrics system of yours.

    `record` is called with the type of the event, the outcome and the seconds that it took.

    The outcome is `ok` or the class of the error. `bridge.metrics()` has the bridge's own figures
    without it.

    Example:
        bridge.use(middleware.metrics(lambda type, outcome, seconds: statsd.timing(type, seconds)))
    """

    async def layer(events: Events, call_next: CallNext) -> object:
        begun, outcome = time.monotonic(), "ok"
        try:
            return await call_next(events)
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            record(_type(events), outcome, time.monotonic() - begun)

    return layer


def tracing(tracers: "TracerProvider") -> Middleware:
    """Opens a span of OpenTelemetry around handling, by a provider of yours, `tracers`.

    The program's own provider, if it has set one, is used without it.

    Example:
        bridge.use(middleware.tracing(provider))
    """
    spans = Tracing(tracers)

    async def layer(events: Events, call_next: CallNext) -> object:
        given = [events] if isinstance(events, Event) else events
        with spans.processing(given, given[0].type):
            return await call_next(events)

    return layer


def timeout(seconds: float = 30.0) -> Middleware:
    """Ends what is inside of it after `seconds`, with TimeoutError, so that it is tried again.

    A plain function cannot be ended: its transaction is rolled back when it returns.

    Example:
        bridge.use(middleware.timeout(10))
    """

    async def layer(events: Events, call_next: CallNext) -> object:
        async with asyncio.timeout(seconds):
            return await call_next(events)

    return layer


def map_errors(decisions: Mapping[type[Exception], Decision]) -> Middleware:
    """Decides by the class of an error what becomes of the event.

    `decisions` has a Retry, Drop or DeadLetter for each class; the first that fits counts.

    Example:
        bridge.use(middleware.map_errors({RateLimited: Retry(30), Cancelled: Drop("cancelled")}))
    """

    async def layer(events: Events, call_next: CallNext) -> object:
        try:
            return await call_next(events)
        except Drop:
            raise
        except Exception as error:
            for kind, decision in decisions.items():
                if isinstance(error, kind):
                    raise _again(decision) from error
            raise

    return layer


def _again(decision: Decision) -> Decision:
    """Returns a new exception of the same content: one that was raised keeps its traceback."""
    made = type(decision).__new__(type(decision), *decision.args)
    made.args = decision.args
    vars(made).update(vars(decision))
    return made


def _type(events: Events) -> str:
    return events.type if isinstance(events, Event) else events[0].type


def _title(events: Events) -> str:
    if isinstance(events, Event):
        return f"{events.type} {events.id}"
    return f"A batch of {len(events)} events, the first {events[0].type} {events[0].id},"


def _fields(events: Events) -> dict[str, object]:
    if isinstance(events, Event):
        return {"event_id": events.id, "event_type": events.type, "trace_id": events.trace_id}
    return {"event_ids": [event.id for event in events]}
