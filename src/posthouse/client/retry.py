"""Retry policies, the tries of a call, and the circuit breaker that stops trying.

A policy says how long to wait before the next try, or that there is none. A wait that the provider
itself has asked for comes first. A provider that is not available is tried until the call's
deadline. A breaker stops all calls of a client once enough have failed.
"""

import random
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Literal, Protocol

from posthouse.client.errors import (
    CircuitOpen,
    ConnectionFailed,
    ProviderError,
    QueueError,
    SessionLocked,
    Timeout,
)

_random = random.Random()  # noqa: S311 (spreads calls out; guards nothing)


class RetryPolicy(Protocol):
    """Decides whether a call that failed is tried again, and when.

    Any object with this method is one. `delay(tries, error)` returns the seconds until the next
    try, after `tries` of them of which this was the last; None if there is none.

    Example:
        class Twice:
            def delay(self, tries: int, error: QueueError) -> float | None:
                return 1.0 if tries < 2 else None
    """

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Seconds until the next, after so many tries of which this was the last; None: no more."""
        ...


@dataclass(frozen=True)
class NoRetry:
    """Nothing is tried again.

    Example:
        client = create_client("memory://", retry=NoRetry())
    """

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Returns the seconds until the next try; None if there is none.

        `tries` is how many were made, `error` how the last of them failed.

        Example:
            wait = policy.delay(1, error)
        """
        return None


@dataclass(frozen=True)
class ExponentialRetry:
    """Tries again after delays of which each is `factor` times the one before.

    `attempts` is the number of tries in all; `base` the first delay and `most` the longest, in
    seconds; `jitter` the part of each delay that is added or taken off by chance.

    Example:
        client = create_client("memory://", retry=ExponentialRetry(attempts=5, base=0.5))
    """

    attempts: int = 3  # tries in all, with the first
    base: float = 0.1
    factor: float = 2.0
    most: float = 60.0
    jitter: float = 0.2  # so much more or less of each delay, by chance

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Returns the seconds until the next try; None if there is none.

        `tries` is how many were made, `error` how the last of them failed.

        Example:
            wait = policy.delay(1, error)
        """
        wait = min(self.most, self.base * self.factor ** min(tries - 1, 60))
        return _delay(tries, error, self.attempts, wait, self.jitter)


@dataclass(frozen=True)
class LinearRetry:
    """Tries again after delays of which each is `step` longer than the one before.

    `attempts` is the number of tries in all; `base` the first delay and `most` the longest, in
    seconds; `jitter` the part of each delay that is added or taken off by chance.

    Example:
        client = create_client("memory://", retry=LinearRetry(attempts=5, step=1.0))
    """

    attempts: int = 3
    base: float = 0.1
    step: float = 0.1
    most: float = 60.0
    jitter: float = 0.2

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Returns the seconds until the next try; None if there is none.

        `tries` is how many were made, `error` how the last of them failed.

        Example:
            wait = policy.delay(1, error)
        """
        wait = min(self.most, self.base + self.step * (tries - 1))
        return _delay(tries, error, self.attempts, wait, self.jitter)


@dataclass(frozen=True)
class FixedRetry:
    """Tries again after the same delay each time.

    `attempts` is the number of tries in all, `wait` the delay in seconds, `jitter` the part of it
    that is added or taken off by chance.

    Example:
        client = create_client("memory://", retry=FixedRetry(attempts=3, wait=2.0))
    """

    attempts: int = 3
    wait: float = 1.0
    jitter: float = 0.0

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Returns the seconds until the next try; None if there is none.

        `tries` is how many were made, `error` how the last of them failed.

        Example:
            wait = policy.delay(1, error)
        """
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
    """Another policy for some kinds of error; the most specific that fits is asked.

    `policies` has them by error, `otherwise` is for all other errors.

    Example:
        policy = RetryByError({Throttled: FixedRetry(attempts=10, wait=5.0)})
    """

    policies: Mapping[type[QueueError], RetryPolicy]
    otherwise: RetryPolicy = field(default_factory=NoRetry)

    def delay(self, tries: int, error: QueueError) -> float | None:
        """Returns the seconds until the next try; None if there is none.

        `tries` is how many were made, `error` how the last of them failed.

        Example:
            wait = policy.delay(1, error)
        """
        for kind in type(error).__mro__:
            policy = self.policies.get(kind)
            if policy is not None:
                return policy.delay(tries, error)
        return self.otherwise.delay(tries, error)


OUTAGE_WAIT_MIN = 0.05  # seconds between tries of a call to a provider that is not there


class Tries:
    """The tries of one call, and when the next one is due.

    The policy is asked after a failure with the number of tries that have failed in this way: those
    that the provider has answered, or those where it was not available. Its attempts bound the
    first alone. While the provider is not available, the policy's longest delay is repeated until
    the call's deadline. A policy that refuses the first retry is obeyed. `operation` began at
    `begun` and has so many `seconds`.
    """

    def __init__(self, policy: RetryPolicy, operation: str, begun: float, seconds: float) -> None:
        self._policy = policy
        self._operation = operation
        self._begun = begun
        self._seconds = seconds
        self._answered = 0
        self._steps = 0  # delays that the policy has given for an outage
        self.made = 0
        self.last: QueueError | None = None

    def wait_after(self, error: QueueError) -> float | None:
        """Returns the seconds until the next try after this failure; None if there is none."""
        self.made, self.last = self.made + 1, error
        if isinstance(error, SessionLocked):  # who has it may keep it for long
            return None
        left = self._begun + self._seconds - time.monotonic()
        if error.is_transient and error.is_unavailable:
            wait = self._outage_delay(error)
            if wait is None or left <= OUTAGE_WAIT_MIN:
                return None
            # Near the deadline it is tried more often: the provider may be back just in time.
            return max(OUTAGE_WAIT_MIN, min(wait, left / 2))
        self._answered += 1
        wait = self._policy.delay(self._answered, error)
        return None if wait is None or wait >= left else wait  # a later one would never be made

    def _outage_delay(self, error: QueueError) -> float | None:
        wait = self._policy.delay(self._steps + 1, error)
        if wait is None:
            return self._policy.delay(self._steps, error) if self._steps else None
        self._steps += 1
        return wait

    def told(self, error: QueueError) -> QueueError:
        """Returns the error that ends the call. After an outage it says how often it was tried."""
        if self.made == 1 or not error.is_unavailable:
            return error
        told = copy(error)  # other calls may have failed with the same one
        seconds = time.monotonic() - self._begun
        told.args = (
            f"{error} To {self._operation} was tried {self.made} times in {seconds:.1f} s.",
        )
        return told

    def late(self) -> Timeout:
        """Returns the error of a call whose deadline has passed during a try."""
        late = Timeout(self._seconds, f"To {self._operation}")
        tries = self.made + 1
        late.args = (f"{late} It was tried {tries} times; the last failure: {self.last}",)
        return late


BreakerState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Stops the calls of a client once too many have failed.

    Closed: calls go through. Open: they fail at once. Half-open: one is let through, to see. It
    counts calls, each with all its tries; a call that went through is not stopped any more.
    `failures` in a row open it, for `seconds`; `clock` tells the time.

    Example:
        if client.breaker.state == "open":
            print("the provider is not there")
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
        """`closed`, `open` or `half-open`."""
        if not self._until:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    def check(self) -> bool:
        """Returns whether this call is the one that is to see. Raises CircuitOpen.

        Example:
            is_probe = breaker.check()
        """
        if not self._until:
            return False
        left = self._until - self._clock()
        if left > 0 or self._probing:
            raise CircuitOpen(max(left, 0.1))
        self._probing = True
        return True

    def note(self, error: BaseException | None, *, is_probe: bool = False) -> None:
        """Notes the result of a call that `check` let through.

        `error` is None if the call succeeded; `is_probe` is what `check` returned.

        Example:
            breaker.note(None)
        """
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
        """Forgets the call that was to see: it was cancelled, and has shown nothing.

        Example:
            breaker.give_up()
        """
        self._probing = False


def _is_outage(error: BaseException) -> bool:
    """The provider is not there, or cannot; not that it has refused something."""
    return isinstance(error, ConnectionFailed | Timeout) or (
        isinstance(error, ProviderError) and error.is_transient
    )
