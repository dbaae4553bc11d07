"""Spans of OpenTelemetry, where its API is installed and the program has set a provider.

An event carries the trace in which it was published, as W3C Trace Context, in its headers; through
the outbox, too. The spans of its relay and of its handling are linked to it.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from posthouse.bridge.event import Event

if TYPE_CHECKING:
    from opentelemetry.trace import Link, TracerProvider

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
LINKS_MAX = 128  # of one span


class Tracing:
    """The spans of a bridge."""

    def __init__(self, tracers: "TracerProvider | None" = None) -> None:
        """Uses the program's own provider, unless another is given. Raises ImportError."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._given = tracers is not None
        self._context = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("posthouse.bridge", tracer_provider=tracers)

    @property
    def is_on(self) -> bool:
        """Whether something takes spans."""
        if self._given:
            return True
        return not isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider)

    @contextmanager
    def publishing(self, event_type: str, subject: str, carried: MutableMapping[str, str],
                   id: str) -> Iterator[None]:  # fmt: skip
        """A span around a publish; `carried` gets its trace context."""
        about = {**_about("publish", subject), "messaging.message.id": id,
                 "posthouse.event.type": event_type}  # fmt: skip
        with self._tracer.start_as_current_span(
            f"publish {subject}", kind=self._trace.SpanKind.PRODUCER, attributes=about
        ):
            self._context.inject(carried)
            yield

    @contextmanager
    def relaying(self, carried: Sequence[Mapping[str, str]]) -> Iterator[None]:
        """A span around the sending of rows, linked to the traces that wrote them."""
        about = {**_about("relay", ""), "messaging.batch.message_count": len(carried)}
        with self._tracer.start_as_current_span(
            "relay", kind=self._trace.SpanKind.PRODUCER, attributes=about,
            links=self._links(carried),
        ):  # fmt: skip
            yield

    @contextmanager
    def processing(self, events: Sequence[Event], subject: str) -> Iterator[None]:
        """A span around handling: below that of the publish of a single event, linked to all."""
        carried = [event.headers for event in events]
        parent = self._context.extract(_carried(carried[0])) if len(events) == 1 else None
        about = _about("process", subject)
        if len(events) == 1:
            about |= {"messaging.message.id": events[0].id,
                      "posthouse.event.type": events[0].type}  # fmt: skip
        else:
            about["messaging.batch.message_count"] = len(events)
        with self._tracer.start_as_current_span(
            f"process {subject}", parent, kind=self._trace.SpanKind.CONSUMER, attributes=about,
            links=self._links(carried),
        ) as span:  # fmt: skip
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def _links(self, carried: Sequence[Mapping[str, str]]) -> "list[Link]":
        found: list[Link] = []
        for headers in carried:
            if TRACEPARENT in headers and len(found) < LINKS_MAX:
                context = self._context.extract(_carried(headers))
                sent_in = self._trace.get_current_span(context).get_span_context()
                if sent_in.is_valid:
                    found.append(self._trace.Link(sent_in))
        return found


@cache
def find_tracing() -> Tracing | None:
    """Returns the spans of the program's own provider; None without OpenTelemetry's API."""
    try:
        return Tracing()
    except ImportError:
        return None


def _about(operation: str, subject: str) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "messaging.system": "posthouse_bridge", "messaging.operation.name": operation,
    }  # fmt: skip
    if subject:
        about["messaging.destination.name"] = subject
    return about


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
