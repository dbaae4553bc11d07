"""Retry schedules, and what a handler raises to decide itself what becomes of an event."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

_random = random.Random()  # noqa: S311 (spreads retries out; guards nothing)
TRANSIENT: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError)
# The same call with the same event would fail again.
UNRECOVERABLE: tuple[type[Exception], ...] = (TypeError, ValueError, NameError)


class Unrecoverable(Exception):
    """Raised by a handler: the event can never be handled, and goes to the dead letters at once.

    Example:
        raise Unrecoverable("There is no customer 7.")
    """


class Retry(Exception):
    """Raised by a handler, or returned by middleware: the event is delivered again.

    `delay` is in seconds; without it, the retry schedule of the consumer says when.

    Example:
        raise Retry(10)
    """

    def __init__(self, delay: float | None = None) -> None:
        super().__init__("a retry was asked for" if delay is None else f"retry in {delay:g} s")
        self.delay = delay


class Drop(Exception):
    """Raised by a handler, or returned by middleware: the event is done, without its effects.

    `reason` is told in the log.

    Example:
        raise Drop("the order was cancelled")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "dropped")
        self.reason = reason


class DeadLetter(Exception):
    """Raised by a handler, or returned by middleware: the event goes to the dead letters at once.

    `reason` is told with the dead letter.

    Example:
        raise DeadLetter("unknown customer")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Decision: TypeAlias = Retry | Drop | DeadLetter


class RetrySchedule(Protocol):
    """Says how long to wait before an event is delivered again."""

    def delay(self, number: int, error: BaseException) -> float:
        """Returns the seconds to wait after delivery `number`, which ended with `error`."""
        ...


@dataclass(frozen=True)
class Delays:
    """A delay in `seconds` for each delivery; the last one for all that follow.

    Example:
        bridge.consumer(retry=Delays(1, 5, 15))
    """

    seconds: Sequence[float]

    def __init__(self, *seconds: float) -> None:
        object.__setattr__(self, "seconds", seconds or (1.0,))

    def delay(self, number: int, error: BaseException) -> float:
        """Returns the seconds to wait after delivery `number`, whatever the `error`.

        Example:
            wait = Delays(1, 5).delay(1, error)
        """
        return self.seconds[min(number, len(self.seconds)) - 1]


@dataclass(frozen=True)
class Exponential:
    """Delays that double: sooner after a lost connection or a time-out than after other errors.

    The delay is `transient` or `other` seconds, doubled with each delivery, from `least` to `most`
    seconds. `jitter` is the part of it that is added or taken off by chance.

    Example:
        bridge.consumer(retry=Exponential(most=30))
    """

    transient: float = 0.5
    other: float = 2.0
    least: float = 1.0
    most: float = 60.0
    jitter: float = 0.1

    def delay(self, number: int, error: BaseException) -> float:
        """Returns the seconds to wait after delivery `number`, which ended with `error`.

        Example:
            wait = Exponential().delay(1, error)
        """
        base = self.transient if is_transient(error) else self.other
        wait = min(self.most, max(self.least, base * 2.0 ** min(number - 1, 30)))
        return wait * (1 + self.jitter * _random.uniform(-1, 1))


def is_transient(error: BaseException) -> bool:
    """Whether an error comes of a connection or a time-out, be it by way of another error."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, TRANSIENT) or getattr(at, "is_transient", False) is True:
            return True
        seen.add(id(at))
        at = at.__cause__
    return False
