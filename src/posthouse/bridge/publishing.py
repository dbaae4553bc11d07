"""Publishing: an event is made, encoded, and written to the outbox or sent to the transport."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from posthouse.bridge import envelope
from posthouse.bridge.connection import Connection
from posthouse.bridge.errors import ConfigurationError, PartialFailure, PublishFailed
from posthouse.bridge.event import Event
from posthouse.bridge.figures import Figures
from posthouse.bridge.names import Names, check_subject
from posthouse.bridge.processing import current_event
from posthouse.bridge.settings import Settings
from posthouse.bridge.tracing import TRACEPARENT, find_tracing
from posthouse.bridge.transport import Failure, Outgoing, Stored, Transport

AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.1, 5.0  # before a publish is tried again
EVENTS_MAX = 10_000  # of one publish_many


@dataclass(frozen=True, slots=True)
class Published:
    """An event that the transport has stored.

    `event_id` is its id, `subject` where it went, `sequence` its place in the stream; `duplicate`
    says that the transport had stored an event of this id before.

    Example:
        published = await bridge.publish("order.created", {"id": 7})
        print(published.event_id)
    """

    event_id: str
    subject: str
    sequence: int
    duplicate: bool


@dataclass(frozen=True)
class NewEvent:
    """An event to publish with others. The fields are the parameters of `Bridge.publish`.

    `type` and `payload` say what happened. Events of one `key` stay in order; without it, those of
    one `resource_type` and `resource_id` do. `event_id` makes a second publish of the same event no
    second event. `destination` is one of several services, `subject` another subject than theirs,
    `headers` go along, and `delay` is in seconds.

    Example:
        await bridge.publish_many([NewEvent("order.created", {"id": n}) for n in range(10)])
    """

    type: str
    payload: Any
    key: str = ""
    resource_type: str = ""
    resource_id: str = ""
    event_id: str = ""
    destination: str = ""
    subject: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """An event, and the form in which it is published."""

    event: Event
    outgoing: Outgoing


class Publisher:
    """Makes events, and sends them to the transport."""

    def __init__(
        self, settings: Settings, names: Names, connection: Connection, figures: Figures
    ) -> None:
        self._settings = settings
        self._names = names
        self._connection = connection
        self._figures = figures

    def prepare(self, new: NewEvent) -> Prepared:
        """Makes and encodes an event. Raises PublishFailed, TooLarge, ConfigurationError."""
        subject = self._subject(new)
        payload = _plain(new)
        now = current_event()
        id = new.event_id or envelope.new_event_id()
        carried = dict(new.headers)
        if now is not None and TRACEPARENT in now.headers and TRACEPARENT not in carried:
            carried[TRACEPARENT] = now.headers[TRACEPARENT]
        with _span(new.type, subject, carried, id):
            pass
        trace_id = envelope.trace_id_of(carried.get(TRACEPARENT, ""))
        if not trace_id:
            trace_id = now.trace_id if now is not None and now.trace_id else envelope.new_trace_id()
        resource_type = new.resource_type or envelope.resource_type_of(new.type)
        resource_id = new.resource_id
        if not resource_id and isinstance(payload, dict):
            resource_id = envelope.resource_id_of(payload)
        key = new.key or (f"{resource_type}/{resource_id}" if resource_id else "")
        event = Event(
            id, new.type, payload, self._settings.app, resource_type, resource_id,
            datetime.now(UTC), trace_id, key=key[: envelope.TEXT_CHARS_MAX], headers=carried,
        )  # fmt: skip
        if new.delay < 0:
            raise PublishFailed(f"The event {id}: delay must not be negative.", transient=False)
        outgoing = envelope.outgoing(event, subject, self._settings.envelope, delay=new.delay)
        self._check_size(outgoing)
        return Prepared(event, outgoing)

    def _subject(self, new: NewEvent) -> str:
        if new.subject:
            return check_subject(new.subject)
        if self._settings.topics:
            return self._names.subject_to("", new.type)
        destinations = self._names.destinations
        if new.destination:
            if new.destination not in destinations:
                raise ConfigurationError(
                    f"There is no destination {new.destination!r}; there are"
                    f" {', '.join(destinations)}."
                )
            return self._names.subject_to(new.destination)
        if len(destinations) > 1:
            raise ConfigurationError(
                "The bridge has several destinations: say which with publish(..., destination=...),"
                " or publish to all who want to know with Bridge(..., topics=True)."
            )
        return self._names.subject_to(destinations[0])

    def _check_size(self, outgoing: Outgoing) -> None:
        most = self._connection.body_bytes_max or self._settings.payload_bytes_max
        size = len(outgoing.body) + sum(
            len(name) + len(value) for name, value in outgoing.headers.items()
        )
        envelope.check_size(outgoing.id, size, most, "the transport")

    async def send(self, prepared: Sequence[Prepared]) -> list[Published]:
        """Publishes events to the transport. Raises PublishFailed, PartialFailure, BridgeError.

        What may succeed later is tried again, with the same ids.
        """
        if len(prepared) > EVENTS_MAX:
            raise PublishFailed(
                f"{len(prepared)} events are too many for one call; {EVENTS_MAX} are the most.",
                transient=False,
            )
        events = [each.outgoing for each in prepared]

        async def use(transport: Transport) -> list[Stored | Failure]:
            return await self._send(transport, events)

        answers = await self._connection.call(use)
        done: dict[int, Published] = {}
        failures: dict[int, PublishFailed] = {}
        for at, (event, answer) in enumerate(zip(events, answers, strict=True)):
            if isinstance(answer, Stored):
                done[at] = Published(event.id, event.subject, answer.sequence, answer.duplicate)
            else:
                failures[at] = answer
        self._figures.count("bridge_published_total", number=len(done))
        if failures and not done:
            raise next(iter(failures.values()))
        if failures:
            raise PartialFailure(failures, {at: event.event_id for at, event in done.items()})
        return [done[at] for at in range(len(events))]

    async def _send(
        self, transport: Transport, events: Sequence[Outgoing]
    ) -> list[Stored | Failure]:
        answers = await transport.publish(events)
        delay = AGAIN_SECONDS
        for _ in range(self._settings.publish_attempts - 1):
            left = [
                at for at, answer in enumerate(answers)
                if isinstance(answer, Failure) and answer.transient
            ]  # fmt: skip
            if not left:
                break
            await asyncio.sleep(delay)
            delay = min(AGAIN_SECONDS_MAX, delay * 4)
            again = await transport.publish([events[at] for at in left])
            for at, answer in zip(left, again, strict=True):
                answers[at] = answer
        return answers


@contextmanager
def _span(event_type: str, subject: str, carried: dict[str, str], id: str) -> Iterator[None]:
    tracing = find_tracing()
    if tracing is None or not tracing.is_on:
        yield
    else:
        with tracing.publishing(event_type, subject, carried, id):
            yield


def _plain(new: NewEvent) -> Any:
    """Returns the payload as JSON can say it. Raises PublishFailed."""
    payload = new.payload
    try:
        if hasattr(payload, "model_dump"):
            return payload.model_dump(mode="json")
        return msgspec.to_builtins(payload)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PublishFailed(
            f"The payload of {new.type} cannot be written as JSON: {error}", transient=False
        ) from error
