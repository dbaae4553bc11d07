"""Retry policies, and the circuit breaker that stops trying.

A policy says how long to wait before the next try, or that there is none. A wait that the provider
itself has asked for comes first. A breaker stops all calls of a client once enough have failed.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from posthouse.client.errors import (
    CircuitOpen,
    ConnectionFailed,
    ProviderError,
    QueueError,
    Timeout,
)

_random = random.Random()  # noqa: S311 (spreads calls out; guards nothing)


class RetryPolicy(Protocol):
    def delay(self, tries: int, error: QueueError) -> float | None:
        """Seconds until the next, after so many tries of which this was the last; None: no more."""
        ...


@dataclass(frozen=True)
class NoRetry:
    def delay(self, tries: int, error: QueueError) -> float | None:
        return None


@dataclass(frozen=True)
class ExponentialRetry:
    """Each delay is `factor` times the one before."""

    attempts: int = 3  # tries in all, with the first
    base: float = 0.1
    factor: float = 2.0
    most: float = 60.0
    jitter: float = 0.2  # so much more or less of each delay, by chance

    def delay(self, tries: int, error: QueueError) -> float | None:
        wait = min(self.most, self.base * self.factor ** min(tries - 1, 60))
        return _delay(tries, error, self.attempts, wait, self.jitter)


@dataclass(frozen=True)
class LinearRetry:
    """Each delay is `step` longer than the one before."""

    attempts: int = 3
    base: float = 0.1
    step: float = 0.1
    most: float = 60.0
    jitter: float = 0.2

    def delay(self, tries: int, error: QueueError) -> float | None:
        wait = min(self.most, self.base + self.step * (tries - 1))
        return _delay(tries, error, self.attempts, wait, self.jitter)


@dataclass(frozen=True)
class FixedRetry:
    attempts: int = 3
    wait: float = 1.0
    jitter: float = 0.0

    def delay(self, tries: int, error: QueueError) -> float | None:
        return _delay(tries, error, self.attempts, self.wait, self.jitter)


def _delay(
    tries: int, error: QueueError, attempts: int, wait: float, jitter: float
) -> float | None:
    if not error.should_retry or tries >= attempts:
        return None
    wait *= 1 + _random.uniform(-jitter, jitter)
    told = vars(error).get("retry_after")  # by the provider, not by the kind of error
    return wait if told is None else max(wait, float(told))


@dataclass(frozen=True)
class RetryByError:
    """Another policy for some kinds of error; the most specific that fits is asked."""

    policies: Mapping[type[QueueError], RetryPolicy]
    otherwise: RetryPolicy = field(default_factory=NoRetry)

    def delay(self, tries: int, error: QueueError) -> float | None:
        for kind in type(error).__mro__:
            policy = self.policies.get(kind)
            if policy is not None:
                return policy.delay(tries, error)
        return self.otherwise.delay(tries, error)


BreakerState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Closed: calls go through. Open: they fail at once. Half-open: one is let through, to see.

    It counts calls, each with all its tries. A call that went through is not stopped any more.
    """

    def __init__(
        self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures
        self._seconds = seconds
        self._clock = clock
        self._failed = 0  # in a row
        self._until = 0.0  # when it was opened, until when
        self._probing = False

    @property
    def state(self) -> BreakerState:
        if not self._until:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    def check(self) -> bool:
        """Whether this call is the one that is to see. Raises CircuitOpen."""
        if not self._until:
            return False
        left = self._until - self._clock()
        if left > 0 or self._probing:
            raise CircuitOpen(max(left, 0.1))
        self._probing = True
        return True

    def note(self, error: BaseException | None, *, is_probe: bool = False) -> None:
        """Notes the result of a call that `check` let through; None if it succeeded."""
        if error is None or not _is_outage(error):
            if self._failed or self._until:
                self._failed, self._until, self._probing = 0, 0.0, False
            return
        if self._until and not is_probe:
            return  # it began before the breaker was opened, and shows nothing new
        self._failed += 1
        if self._most and (is_probe or self._failed >= self._most):
            self._until, self._probing = self._clock() + self._seconds, False

    def give_up(self) -> None:
        """The call that was to see was cancelled, and has shown nothing."""
        self._probing = False


def _is_outage(error: BaseException) -> bool:
    """The provider is not there, or cannot; not that it has refused something."""
    return isinstance(error, ConnectionFailed | Timeout) or (
        isinstance(error, ProviderError) and error.is_transient
    )
