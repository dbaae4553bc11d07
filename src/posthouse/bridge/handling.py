"""One event and the function that handles it: the arguments it gets, and the outcome."""

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from posthouse.bridge.errors import ConfigurationError
from posthouse.bridge.event import Event
from posthouse.bridge.retries import (
    UNRECOVERABLE,
    DeadLetter,
    Decision,
    Drop,
    Retry,
    RetrySchedule,
    Unrecoverable,
)
from posthouse.bridge.transport import Ack, Bury, Delivery, Nak, Settlement
from posthouse.client.handling import describe

CONCURRENCY_MAX = 1_000
BATCH_MAX = 1_000

MALFORMED, UNRECOVERABLE_REASON, EXCEEDED = (
    "malformed_json", "unrecoverable", "max_deliver_exceeded"
)  # fmt: skip

Middleware: TypeAlias = Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
Ending = Literal["done", "seen", "dropped", "retry", "dead", "released"]


@dataclass(frozen=True)
class Options:
    """How the events of one source are handled."""

    source: str  # the service that they come from
    retry: RetrySchedule
    concurrency: int = 1
    ordered: bool = False
    batch: int = 0  # events in one transaction; 0: each has its own
    timeout: float | None = None
    unrecoverable: tuple[type[BaseException], ...] = UNRECOVERABLE
    max_deliver: int = 5

    def __post_init__(self) -> None:
        _check(1 <= self.concurrency <= CONCURRENCY_MAX, "concurrency",
               f"must be from 1 to {CONCURRENCY_MAX}")  # fmt: skip
        _check(0 <= self.batch <= BATCH_MAX, "batch", f"must be from 0 to {BATCH_MAX}")
        _check(self.timeout is None or self.timeout > 0, "timeout", "must be more than 0")


class Outcome(NamedTuple):
    """The outcome of one delivery of an event.

    `ending` is done, seen (a duplicate), dropped, retry, dead or released; `delay` the seconds
    until a retry; `reason` that of a dead letter; `error` what the handler raised.
    """

    ending: Ending
    delay: float = 0.0
    reason: str = ""
    error: BaseException | None = None


DONE, SEEN = Outcome("done"), Outcome("seen")


class Call(NamedTuple):
    """The values that a handler's arguments are made from."""

    events: Sequence[Event]
    deliveries: Sequence[Delivery]
    session: Any


Taking: TypeAlias = Callable[[Call], Any]


class Handler:
    """A function that handles events, and how."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self.wants_session = False
        self.session_kind: Any = None  # what the session's parameter is annotated with
        self._takes: list[Taking] | None = None

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def check(self) -> None:
        """Resolves the function's parameters. Raises ConfigurationError."""
        self._takes = self._resolve()

    def arguments(self, call: Call) -> list[Any]:
        """Returns the arguments for one call. Raises Unrecoverable for a payload of another type.

        Raises ConfigurationError where the function's parameters cannot be resolved.
        """
        if self._takes is None:
            self.check()
        assert self._takes is not None
        return [take(call) for take in self._takes]

    def _resolve(self) -> list[Taking]:
        try:
            kinds = typing.get_type_hints(self.function)
        except NameError as error:
            raise ConfigurationError(
                f"The handler {self.name} has an annotation that cannot be read: {error}"
            ) from error
        takes: list[Taking] = []
        has_event = False
        for parameter in inspect.signature(self.function).parameters.values():
            kind = kinds.get(parameter.name)
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                if (
                    parameter.kind is parameter.KEYWORD_ONLY
                    and parameter.default is parameter.empty
                ):
                    raise ConfigurationError(
                        f"The handler {self.name} has a keyword parameter {parameter.name} that"
                        " nobody gives; give it a default."
                    )
                break
            taking = self._take(parameter.name, kind)
            if taking is _payload_taking or taking is _event_taking:
                if has_event:
                    if parameter.default is not parameter.empty:
                        break
                    raise ConfigurationError(
                        f"The handler {self.name} takes {parameter.name} beside the event; an Event"
                        " has the rest."
                    )
                has_event = True
            takes.append(taking(self, kind))
        return takes

    def _take(self, name: str, kind: Any) -> "Callable[[Handler, Any], Taking]":
        if kind is Delivery or (self.options.batch and _inner(kind) is Delivery):
            return _delivery_taking
        if name == "session" or _is_session(kind):
            return _session_taking
        if kind in (None, Event) or (self.options.batch and _inner(kind) is Event):
            return _event_taking
        return _payload_taking

    def judge(self, error: BaseException, attempt: int) -> Outcome:
        """Returns the outcome of an event whose handler raised `error` at its n-th attempt."""
        options = self.options
        match error:
            case Drop():
                return Outcome("dropped", reason=error.reason, error=error)
            case DeadLetter():
                return Outcome("dead", reason=error.reason, error=error)
            case Retry(delay=float() | int() as delay) if attempt < options.max_deliver:
                return Outcome("retry", float(delay), error=error)
        if isinstance(error, Unrecoverable) or (
            isinstance(error, options.unrecoverable) and not isinstance(error, Retry)
        ):
            return Outcome("dead", reason=UNRECOVERABLE_REASON, error=error)
        if attempt >= options.max_deliver:
            return Outcome("dead", reason=EXCEEDED, error=error)
        return Outcome("retry", max(0.0, options.retry.delay(attempt, error)), error=error)


def settlement(outcome: Outcome, delivery: Delivery, event: Event | None) -> Settlement:
    """Returns how a delivery with this outcome is settled."""
    match outcome.ending:
        case "done" | "seen" | "dropped":
            return Ack()
        case "retry" | "released":
            return Nak(outcome.delay)
        case "dead":
            return Bury(outcome.reason, _context(outcome, delivery, event))


def _context(outcome: Outcome, delivery: Delivery, event: Event | None) -> dict[str, str | int]:
    """Returns what is told with a dead letter: no payload, and no secrets."""
    told: dict[str, str | int] = {
        "event_id": event.id if event is not None else delivery.id,
        "reason": outcome.reason, "deliveries": delivery.number,
        "original_subject": delivery.subject, "stream": delivery.stream,
        "consumer": delivery.consumer, "sequence": delivery.sequence,
    }  # fmt: skip
    if event is not None:
        told["event_type"] = event.type
        told["published_at"] = event.occurred_at.isoformat()
    if outcome.error is not None:
        # A payload that cannot be read is told with the class of what said so.
        cause = outcome.error.__cause__ if isinstance(outcome.error, Unrecoverable) else None
        told["error_class"] = type(cause or outcome.error).__name__
        told["error_message"] = describe(outcome.error)
    return told


def decision(answer: object) -> Decision | None:
    """Returns the decision that middleware has returned, if it is one."""
    return answer if isinstance(answer, Retry | Drop | DeadLetter) else None


# The ways to an argument.


def _event_taking(handler: Handler, kind: Any) -> Taking:
    return _events if handler.options.batch else _event


def _payload_taking(handler: Handler, kind: Any) -> Taking:
    if handler.options.batch:
        inner = _inner(kind)
        if inner is None:
            raise ConfigurationError(
                f"The handler {handler.name} has a batch, so it takes a list: list[Event], or"
                " list of a payload's type."
            )
        return lambda call: [read_payload(event, inner) for event in call.events]
    return lambda call: read_payload(call.events[0], kind)


def _session_taking(handler: Handler, kind: Any) -> Taking:
    handler.wants_session = True
    handler.session_kind = kind
    return _session


def _delivery_taking(handler: Handler, kind: Any) -> Taking:
    return _deliveries if handler.options.batch else _delivery


def _event(call: Call) -> Event:
    return call.events[0]


def _events(call: Call) -> list[Event]:
    return list(call.events)


def _delivery(call: Call) -> Delivery:
    return call.deliveries[0]


def _deliveries(call: Call) -> list[Delivery]:
    return list(call.deliveries)


def _session(call: Call) -> Any:
    return call.session


def read_payload(event: Event, kind: Any) -> Any:
    """Returns the payload as a value of a type: msgspec's, pydantic's, or a dataclass.

    Raises Unrecoverable.
    """
    try:
        if hasattr(kind, "model_validate"):
            return kind.model_validate(event.payload)
        return msgspec.convert(event.payload, type=kind)
    except (msgspec.ValidationError, ValueError) as error:
        name = getattr(kind, "__name__", str(kind))
        # Only msgspec's reason is told: others show the payload.
        why = error if isinstance(error, msgspec.ValidationError) else type(error).__name__
        raise Unrecoverable(f"The payload of {event.type} is no {name}: {why}") from error


def _inner(kind: Any) -> Any:
    """Returns what a list is annotated to hold; None for another annotation."""
    if typing.get_origin(kind) in (list, Sequence):
        return typing.get_args(kind)[0]
    return None


def _is_session(kind: Any) -> bool:
    """Whether an annotation is one of SQLAlchemy's sessions or connections, by their names."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return any(
        any(base.__module__.startswith("sqlalchemy.") and base.__name__ in _SESSIONS
            for base in getattr(option, "__mro__", ()))
        for option in options
    )  # fmt: skip


_SESSIONS = frozenset(("Session", "AsyncSession", "Connection", "AsyncConnection"))


def _check(right: bool, field: str, rule: str) -> None:
    if not right:
        raise ConfigurationError(f"{field} {rule}.")
