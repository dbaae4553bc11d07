"""Traces and metrics for OpenTelemetry, where its API is installed; else there is none of this.

A message carries the trace in which it was sent, as W3C Trace Context, in two attributes. Who
receives it links to that trace, and who handles it within `processing` goes on with it. Names are
those of OpenTelemetry's conventions for messaging.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from posthouse.client.errors import QueueError
from posthouse.client.messages import Message, ReceivedMessage
from posthouse.client.names import SUBSCRIPTION
from posthouse.client.provider import ProviderType

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, TracerProvider
    from opentelemetry.util.types import AttributeValue

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
LINKS_MAX = 128  # of one span
ASK_SECONDS = 1.0
_SYSTEMS = {ProviderType.AZURE_SERVICE_BUS: "servicebus", ProviderType.AWS_SQS: "aws_sqs"}


class Telemetry:
    """The traces and metrics of the clients of one kind of provider."""

    def __init__(
        self,
        kind: ProviderType,
        tracers: "TracerProvider | None" = None,
        meters: "MeterProvider | None" = None,
    ) -> None:
        """Uses the program's own OpenTelemetry providers, unless others are given.

        Raises ImportError.
        """
        from opentelemetry import metrics, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._set = tracers is not None  # something that takes spans
        self._ask_at = 0.0
        self._context = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("posthouse", tracer_provider=tracers)
        self._system = _SYSTEMS.get(kind, kind.value.replace("-", "_"))
        self._durations = metrics.get_meter("posthouse", meter_provider=meters).create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long what a client was asked to do took.",
        )

    @property
    def is_tracing(self) -> bool:
        """Not where the API is installed and the program has set nothing that takes spans.

        To ask costs a tenth of a send, so it is asked once a second until something is set.
        """
        if not self._set and time.monotonic() >= self._ask_at:
            now = self._trace.get_tracer_provider()
            self._set = not isinstance(now, self._trace.ProxyTracerProvider)
            self._ask_at = time.monotonic() + ASK_SECONDS
        return self._set

    def record(self, operation: str, outcome: str, seconds: float) -> None:
        """One operation, for the metrics."""
        about = {"messaging.system": self._system, "messaging.operation.name": operation}
        if outcome != "ok":
            about["error.type"] = outcome
        self._durations.record(seconds, about)

    @contextmanager
    def sending(
        self, operation: str, queue: str, messages: Sequence[Message]
    ) -> Iterator[list[Message]]:
        """A span around a send; the messages carry it, unless they carry another already."""
        about = self._about(operation, "send", queue, messages)
        with self._tracer.start_as_current_span(
            f"{operation} {queue}", kind=self._trace.SpanKind.PRODUCER, attributes=about,
            links=self._links(messages),
        ) as span:  # fmt: skip
            carried: dict[str, str] = {}
            self._context.inject(carried)
            try:
                yield [_carrying(each, carried) for each in messages]
            except QueueError as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def received(
        self,
        queue: str,
        messages: Sequence[ReceivedMessage],
        begun_ns: int,
        error: QueueError | None = None,
    ) -> None:
        """A span of a receive that is over. One without messages or an error is not worth one."""
        if (not messages and error is None) or not self.is_tracing:
            return
        span = self._tracer.start_span(
            f"receive {queue}", kind=self._trace.SpanKind.CLIENT, start_time=begun_ns,
            attributes=self._about("receive", "receive", queue, messages),
            links=self._links(messages),
        )  # fmt: skip
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    @contextmanager
    def processing(self, queue: str, message: ReceivedMessage) -> Iterator[None]:
        """A span around the handling of a message: below the span of its send, and linked to it.

        OpenTelemetry's conventions want the link always, and allow the parent for one message.
        """
        with self._tracer.start_as_current_span(
            f"process {queue}".rstrip(), self._context.extract(_carried(message)),
            kind=self._trace.SpanKind.CONSUMER, links=self._links([message]),
            attributes=self._about("process", "process", queue, [message]),
        ) as span:  # fmt: skip
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def _about(
        self,
        operation: str,
        kind: str,
        queue: str,
        messages: Sequence[Message] | Sequence[ReceivedMessage],
    ) -> "dict[str, AttributeValue]":
        about: dict[str, AttributeValue] = {
            "messaging.system": self._system, "messaging.operation.name": operation,
            "messaging.operation.type": kind,
        }  # fmt: skip
        topic, _, subscription = queue.partition(SUBSCRIPTION)
        if queue:
            about["messaging.destination.name"] = topic
        if subscription:
            about["messaging.destination.subscription.name"] = subscription
        if len(messages) != 1:
            about["messaging.batch.message_count"] = len(messages)
            return about
        [message] = messages
        about["messaging.message.body.size"] = len(message.body)
        if message.message_id is not None:
            about["messaging.message.id"] = message.message_id
        if message.correlation_id:
            about["messaging.message.conversation_id"] = message.correlation_id
        return about

    def _links(self, messages: Sequence[Message] | Sequence[ReceivedMessage]) -> "list[Link]":
        found: list[Link] = []
        for each in messages:
            if TRACEPARENT in each.attributes and len(found) < LINKS_MAX:
                context = self._context.extract(_carried(each))
                sent_in = self._trace.get_current_span(context).get_span_context()
                if sent_in.is_valid:
                    found.append(self._trace.Link(sent_in))
        return found


@cache
def find_telemetry(kind: ProviderType) -> Telemetry | None:
    """None where OpenTelemetry's API is not installed."""
    try:
        return Telemetry(kind)
    except ImportError:
        return None


@contextmanager
def processing(message: ReceivedMessage, queue: str = "") -> Iterator[None]:
    """Around the handling of a message: what happens there belongs to the trace of its sender.

    Without OpenTelemetry it does nothing.
    """
    telemetry = find_telemetry(message.receipt_handle.provider)
    if telemetry is None or not telemetry.is_tracing:
        yield
    else:
        with telemetry.processing(queue, message):
            yield


def _carried(message: Message | ReceivedMessage) -> dict[str, str]:
    """Returns the trace that a message carries. Anybody may have written its attributes."""
    found = {name: message.attributes.get(name) for name in (TRACEPARENT, TRACESTATE)}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _carrying(message: Message, carried: dict[str, str]) -> Message:
    if not carried or TRACEPARENT in message.attributes:
        return message
    return msgspec.structs.replace(message, attributes={**message.attributes, **carried})
