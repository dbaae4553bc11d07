"""When to try again, and when to stop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from posthouse import (
    CircuitBreaker,
    CircuitOpen,
    ConnectionFailed,
    ExponentialRetry,
    FixedRetry,
    InMemoryConfig,
    LinearRetry,
    MessageTooLarge,
    NoRetry,
    ProviderError,
    QueueConfig,
    QueueError,
    QueueNotFound,
    RetryByError,
    RetryPolicy,
    SessionLocked,
    Throttled,
    Timeout,
)
from posthouse.client import client as client_module
from posthouse.client import retry
from posthouse.client.client import Calls
from posthouse.client.errors import PartialFailure, client_closed
from tests.waiting import turn

LOST = ConnectionFailed("gone")
BROKEN = ProviderError("AWS", "503", "broken")
MEMORY = InMemoryConfig()


class Chance:
    """Chance that is told what to be, from -1 to 1."""

    def __init__(self, where: float) -> None:
        self._where = where

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2 + self._where * (high - low) / 2


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_random", Chance(0))


def delays(policy: RetryPolicy, error: QueueError = LOST) -> list[float | None]:
    return [policy.delay(tries, error) for tries in range(1, 6)]


def test_exponential_delays_double_up_to_the_most() -> None:
    assert delays(ExponentialRetry(6, 0.1)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    assert delays(ExponentialRetry(6, 1, 10, most=50)) == [1, 10, 50, 50, 50]
    assert ExponentialRetry(10_000, 1).delay(9_999, LOST) == 60  # no number is too large


def test_linear_delays_grow_by_a_step() -> None:
    assert delays(LinearRetry(6, 1, 0.5, most=2.2)) == [1, 1.5, 2, 2.2, 2.2]


def test_three_attempts_are_three_tries_in_all() -> None:
    for policy in (FixedRetry(3, 2.0), LinearRetry(3, 2.0, 0.0), ExponentialRetry(3, 2.0, 1.0)):
        assert delays(policy) == [2, 2, None, None, None]


def test_no_retry_is_none() -> None:
    assert delays(NoRetry()) == [None] * 5


def test_what_cannot_succeed_is_not_tried_again() -> None:
    for error in (QueueNotFound("q"), MessageTooLarge(2, 1)):
        assert ExponentialRetry().delay(1, error) is None


def test_jitter_is_a_fifth_more_or_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, wait in ((-1, 0.8), (1, 1.2)):
        monkeypatch.setattr(retry, "_random", Chance(where))
        assert ExponentialRetry(base=1.0).delay(1, LOST) == pytest.approx(wait)
        assert LinearRetry(base=1.0).delay(1, LOST) == pytest.approx(wait)
        assert FixedRetry(wait=1.0).delay(1, LOST) == 1.0
    monkeypatch.undo()
    found = {ExponentialRetry(base=1.0).delay(1, LOST) for _ in range(100)}
    assert len(found) > 50
    assert all(each is not None and 0.8 <= each <= 1.2 for each in found)


def test_what_the_provider_says_about_waiting_goes_before_the_policy() -> None:
    throttled = Throttled("AWS", "429", "slower", 7.0)
    assert ExponentialRetry(base=1.0).delay(1, throttled) == 7.0
    assert ExponentialRetry(base=10.0).delay(1, throttled) == 10.0
    assert ExponentialRetry(base=1.0).delay(1, LOST) == 1.0  # a class's own hint does not


def test_kinds_of_error_can_have_policies_of_their_own() -> None:
    policy = RetryByError(
        {ProviderError: FixedRetry(wait=1), Throttled: FixedRetry(wait=90)}, FixedRetry(wait=5)
    )
    assert policy.delay(1, ProviderError("AWS", "500", "x")) == 1
    assert policy.delay(1, Throttled("AWS", "429", "x")) == 90
    assert policy.delay(1, LOST) == 5
    assert RetryByError({}).delay(1, LOST) is None


def state(breaker: CircuitBreaker) -> str:
    return breaker.state


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(3, 30.0, clock)
    for _ in range(3):
        assert state(breaker) == "closed"
        breaker.check()
        breaker.note(LOST)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    breaker = opened(Clock())
    assert state(breaker) == "open"
    with pytest.raises(CircuitOpen) as caught:
        breaker.check()
    assert caught.value.retry_after == 30.0


def test_a_success_in_between_begins_the_count_anew() -> None:
    breaker = CircuitBreaker(2, 30.0, Clock())
    for _ in range(5):
        breaker.note(LOST)
        breaker.note(None)
    assert state(breaker) == "closed"


def test_what_the_provider_refuses_is_no_outage() -> None:
    breaker = CircuitBreaker(2, 30.0, Clock())
    for refused in (QueueNotFound("q"), MessageTooLarge(2, 1), SessionLocked("s")):
        breaker.note(refused)
    assert state(breaker) == "closed"
    for error in (Timeout(1), ProviderError("AWS", "503", "x")):
        breaker.note(error)
    assert state(breaker) == "open"


def test_half_open_lets_one_call_through_and_a_success_closes() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    assert state(breaker) == "half-open"
    breaker.check()
    with pytest.raises(CircuitOpen):
        breaker.check()
    breaker.note(None)
    assert state(breaker) == "closed"
    breaker.check()
    breaker.check()


def test_half_open_opens_again_with_one_failure() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    breaker.note(LOST, is_probe=breaker.check())
    assert state(breaker) == "open"
    clock.now += 29.9
    with pytest.raises(CircuitOpen):
        breaker.check()


def test_a_probe_that_was_cancelled_leaves_the_place_to_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    assert breaker.check()
    breaker.give_up()
    assert breaker.check()


def test_only_the_probe_leaves_its_place_when_it_is_cancelled() -> None:
    clock = Clock()
    calls = Calls(QueueConfig(MEMORY), NoRetry())
    calls.breaker = CircuitBreaker(1, 30.0, clock)

    async def main() -> None:
        def begin(attempt: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
            return asyncio.create_task(calls.make("send", "orders", attempt))

        never = asyncio.Event().wait
        early = begin(never)  # while all is well
        await turn()
        with pytest.raises(ConnectionFailed):
            await begin(Failing(LOST))
        clock.now += 30
        probe = begin(never)
        await turn()
        early.cancel()
        await asyncio.wait([early])
        with pytest.raises(CircuitOpen):
            await begin(Failing())
        probe.cancel()
        await asyncio.wait([probe])
        assert await begin(Failing()) == "done"

    asyncio.run(main())


def test_a_probe_keeps_its_place_for_all_its_tries() -> None:
    clock = Clock()
    calls = Calls(QueueConfig(MEMORY, operation_timeout=999), FixedRetry(wait=100))
    calls.breaker = CircuitBreaker(1, 30.0, clock)
    calls.breaker.note(LOST)

    async def main() -> None:
        clock.now += 30
        failing = Failing(LOST)
        first = asyncio.create_task(calls.make("send", "orders", failing))
        await turn()
        assert failing.tries == 1
        clock.now += 30
        with pytest.raises(CircuitOpen):
            calls.breaker.check()
        first.cancel()  # while it waits for its next try
        await asyncio.wait([first])
        assert calls.breaker.check()

    asyncio.run(main())


def test_a_call_that_began_before_the_outage_was_known_does_not_prolong_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 29
    breaker.note(LOST)
    clock.now += 1
    assert breaker.check()
    breaker.note(LOST)  # nor does it take the place of the probe
    with pytest.raises(CircuitOpen):
        breaker.check()


def test_the_breaker_counts_calls_and_not_their_tries() -> None:
    calls = Calls(QueueConfig(MEMORY, breaker_failures=2), FixedRetry(attempts=10, wait=0.0))

    async def main() -> None:
        assert await calls.make("send", "orders", Failing(*[BROKEN] * 9)) == "done"
        for expected in ("closed", "open"):
            with pytest.raises(ProviderError):
                await calls.make("send", "orders", Failing(*[BROKEN] * 99))
            assert state(calls.breaker) == expected

    asyncio.run(main())


def test_a_call_in_its_tries_is_not_refused_by_a_breaker_that_opens_meanwhile() -> None:
    calls = Calls(QueueConfig(MEMORY, breaker_failures=1), FixedRetry(attempts=3, wait=0.01))

    async def main() -> None:
        tried = asyncio.create_task(calls.make("send", "orders", Failing(LOST, LOST)))
        await turn()
        calls.breaker.note(LOST)
        assert state(calls.breaker) == "open"
        assert await tried == "done"
        assert state(calls.breaker) == "closed"

    asyncio.run(main())


def test_a_breaker_can_be_off() -> None:
    breaker = CircuitBreaker(0, 30.0, Clock())
    for _ in range(100):
        breaker.note(LOST)
    assert state(breaker) == "closed"


class Failing:
    """Fails in the ways that are given, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Delays between tries, which take no time."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


def made(attempt: Callable[[], Awaitable[Any]], calls: Calls, limit: float | None = None) -> Any:
    return asyncio.run(calls.make("send", "orders", attempt, limit))


def test_a_call_is_tried_again_until_it_succeeds(slept: list[float]) -> None:
    calls = Calls(QueueConfig(MEMORY), None)
    assert made(Failing(LOST, Throttled("AWS", "429", "x", 7.0)), calls) == "done"
    assert slept == [1.0, 7.0]
    [figure] = calls.figures.all()
    assert (figure.operation, figure.outcome, figure.count) == ("send", "ok", 1)


def test_a_call_is_tried_so_often_and_then_fails_with_what_went_wrong(slept: list[float]) -> None:
    calls = Calls(QueueConfig(MEMORY, max_retry_attempts=2, breaker_failures=0), None)
    failing = Failing(*[ProviderError("AWS", "503", str(each)) for each in range(9)])
    with pytest.raises(ProviderError, match="2"):
        made(failing, calls)
    assert failing.tries == 3
    assert slept == [1.0, 2.0]


def test_a_wait_that_would_outlast_the_call_is_not_begun(slept: list[float]) -> None:
    with pytest.raises(Throttled):
        made(Failing(Throttled("AWS", "429", "x")), Calls(QueueConfig(MEMORY), None), 10.0)
    assert not slept


def test_a_session_that_another_holds_is_not_waited_for(slept: list[float]) -> None:
    with pytest.raises(SessionLocked):
        made(Failing(SessionLocked("s")), Calls(QueueConfig(MEMORY), None))
    assert not slept


def test_an_outage_makes_calls_fail_at_once_until_its_time_is_over(slept: list[float]) -> None:
    clock = Clock()
    calls = Calls(QueueConfig(MEMORY, breaker_failures=4), NoRetry())
    calls.breaker = CircuitBreaker(4, 30.0, clock)
    failing = Failing(*[LOST] * 4)
    for _ in range(4):
        with pytest.raises(ConnectionFailed):
            made(failing, calls)
    for _ in range(3):
        with pytest.raises(CircuitOpen):
            made(failing, calls)
    assert failing.tries == 4
    clock.now += 30
    assert made(failing, calls) == "done"
    assert state(calls.breaker) == "closed"
    counted = {each.outcome: each.count for each in calls.figures.all()}
    assert counted == {"ConnectionFailed": 4, "CircuitOpen": 3, "ok": 1}


def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    calls = Calls(QueueConfig(MEMORY, breaker_failures=1), None)

    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Timeout) as caught:
        made(never, calls, 0.001)
    assert caught.value.duration == 0.001
    assert state(calls.breaker) == "open"


def test_what_is_cancelled_is_no_failure() -> None:
    calls = Calls(QueueConfig(MEMORY, breaker_failures=1), None)

    async def main() -> None:
        begun = asyncio.Event()

        async def never() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(calls.make("send", "orders", never))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert state(calls.breaker) == "closed"
    assert [each.outcome for each in calls.figures.all()] == ["cancelled"]


class Outage:
    """A provider that is not there until a moment of a clock."""

    def __init__(self, clock: Clock, seconds: float, error: QueueError = LOST) -> None:
        self._clock, self._until, self._error = clock, clock.now + seconds, error
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self._clock.now < self._until:
            raise self._error
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock by which calls go. Their waits move it, and take no time."""
    clock = Clock()

    class Time:
        monotonic = clock

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(client_module, "time", Time)
    monkeypatch.setattr(retry, "time", Time)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


def unavailable() -> QueueError:
    error = Throttled("posthouse", "busy", "it is being stopped", 1.0)
    error.is_unavailable = True
    return error


@pytest.mark.parametrize("error", [LOST, unavailable(), PartialFailure({0: LOST}, {1: "m"})])
def test_a_call_within_its_deadline_outlasts_an_outage(clock: Clock, error: QueueError) -> None:
    for seconds in (10, 30, 55, 59.9):
        calls = Calls(QueueConfig(MEMORY), None)
        begun = clock.now
        assert made(Outage(clock, seconds, error), calls) == "done"
        assert clock.now - begun < 60
        assert state(calls.breaker) == "closed"


def test_in_an_outage_the_longest_delay_of_the_policy_is_repeated(slept: list[float]) -> None:
    assert made(Failing(*[LOST] * 6), Calls(QueueConfig(MEMORY), None)) == "done"
    assert slept == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0]


def test_attempts_count_the_tries_that_were_answered(slept: list[float]) -> None:
    calls = Calls(QueueConfig(MEMORY), FixedRetry(attempts=3, wait=0.2))
    mixed = [LOST, BROKEN, LOST, LOST, LOST, BROKEN, LOST]
    assert made(Failing(*mixed), calls) == "done"
    failing = Failing(*mixed, BROKEN, LOST)
    with pytest.raises(ProviderError) as caught:
        made(failing, calls)
    assert caught.value is BROKEN
    assert failing.tries == 8


def test_an_outage_that_outlasts_the_call_is_told_with_the_tries_and_the_cause(
    clock: Clock,
) -> None:
    calls, outage = Calls(QueueConfig(MEMORY), None), Outage(clock, 1_000)
    with pytest.raises(ConnectionFailed) as caught:
        made(outage, calls)
    assert str(caught.value) == f"gone To send was tried {outage.tries} times in 60.0 s."
    assert caught.value.is_transient
    assert str(LOST) == "gone"  # other calls have it, too


def test_a_deadline_of_a_second_ends_a_call_after_a_second() -> None:
    calls = Calls(QueueConfig(MEMORY, operation_timeout=1.0), None)
    begun = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"gone To send was tried \d+ times in 1\.0 s\."):
        made(Failing(*[LOST] * 99), calls)
    assert time.monotonic() - begun > 0.9


def test_a_try_that_hangs_until_the_deadline_is_told_with_the_failure_before_it() -> None:
    calls = Calls(QueueConfig(MEMORY), FixedRetry(wait=0.001))
    failing = Failing(LOST)

    async def hang() -> None:
        await failing()
        await asyncio.Event().wait()

    with pytest.raises(Timeout, match="It was tried 2 times; the last failure: gone") as caught:
        made(hang, calls, 0.3)
    assert caught.value.__cause__ is LOST


@pytest.mark.parametrize(
    "calls",
    [
        Calls(QueueConfig(MEMORY), NoRetry()),
        Calls(QueueConfig(MEMORY, max_retry_attempts=0), None),
        Calls(QueueConfig(MEMORY), RetryByError({Throttled: FixedRetry()})),
    ],
    ids=["NoRetry", "max_retry_attempts=0", "RetryByError"],
)
def test_who_wants_no_retry_gets_none_in_an_outage(calls: Calls, slept: list[float]) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        made(Failing(LOST), calls)
    assert caught.value is LOST
    assert not slept


def test_without_a_delay_an_outage_is_no_busy_loop(slept: list[float]) -> None:
    policy = FixedRetry(attempts=2, wait=0.0)
    assert made(Failing(*[LOST] * 5, BROKEN), Calls(QueueConfig(MEMORY), policy)) == "done"
    assert slept == [retry.OUTAGE_WAIT_MIN] * 5 + [0.0]


def test_a_closed_client_is_not_waited_for(slept: list[float]) -> None:
    with pytest.raises(ConnectionFailed, match="closed"):
        made(Failing(client_closed()), Calls(QueueConfig(MEMORY), None))
    assert not slept


def test_a_probe_goes_on_until_the_provider_is_back_and_closes_the_breaker(clock: Clock) -> None:
    calls = Calls(QueueConfig(MEMORY), None)
    calls.breaker = CircuitBreaker(1, 30.0, clock)
    calls.breaker.note(LOST)
    clock.now += 30
    assert made(Outage(clock, 20), calls) == "done"
    assert state(calls.breaker) == "closed"
