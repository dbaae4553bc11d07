"""Errors of the broker, in the client's words.

The broker tells a code and facts beside each refusal's text. The text is for people alone.
"""

from collections.abc import Callable
from typing import NamedTuple

from posthouse.amqp.performatives import Problem, code_of, problem_in
from posthouse.amqp.types import Described, Value
from posthouse.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    MessageNotFound,
    MessageTooLarge,
    PermissionDenied,
    ProviderError,
    QueueError,
    QueueNotFound,
    SessionLocked,
    SessionLockLost,
    Throttled,
    Timeout,
    ValidationError,
)

_PROVIDER = "posthouse"
_PREFIX = "posthouse:"  # of the code and the facts, in the info of an error
BUSY_S = 1.0  # how long to wait where the broker is busy, and does not say it
_ENTITIES = frozenset(("queue", "topic", "subscription", "queue or topic"))
_TRANSIENT = frozenset((
    "amqp:internal-error", "amqp:resource-limit-exceeded", "amqp:transaction:rollback",
    "amqp:transaction:timeout",
))  # fmt: skip

# The code of a refusal, where the broker says none: by AMQP's condition. Also what is no refusal.
_CODES = {
    "amqp:not-found": "not-found",
    "amqp:unauthorized-access": "unauthorized",
    "amqp:link:message-size-exceeded": "message-too-large",
    "com.microsoft:message-lock-lost": "lock-lost",
    "com.microsoft:message-not-found": "message-not-found",
    "com.microsoft:session-lock-lost": "session-lock-lost",
    "com.microsoft:session-cannot-be-locked": "session-locked",
    "com.microsoft:timeout": "timed-out",
    "com.microsoft:server-busy": "busy",
    "com.microsoft:argument-error": "invalid-argument",
    "amqp:connection:forced": "ended",
    "amqp:link:detach-forced": "ended",
}


class _Told(NamedTuple):
    """A problem, with what there is for programs."""

    condition: str
    text: str
    what: str  # it was about
    info: dict[Value, Value]

    def fact(self, name: str) -> str:
        """Nothing where it was not told."""
        fact = self.info.get(_PREFIX + name)
        return str(fact) if isinstance(fact, str) else ""

    def number(self, name: str, otherwise: int = 0) -> int:
        fact = self.info.get(_PREFIX + name)
        return int(fact) if isinstance(fact, int) else otherwise


def _missing(told: _Told) -> QueueError:
    if told.fact("kind") in ("", *_ENTITIES):
        return QueueNotFound(told.what, told.fact("namespace"))
    return ProviderError(_PROVIDER, told.condition, told.text, is_transient=False)


def _throttled(told: _Told) -> QueueError:
    wait = told.number("wait_ms", round(BUSY_S * 1_000)) / 1_000
    error = Throttled(_PROVIDER, told.condition, told.text, wait)
    error.is_unavailable = bool(told.fact("state"))  # it starts, stops or has no quorum
    return error


def _not_serving(told: _Told) -> QueueError:
    """It starts, or follows a broker that leads: another one answers soon, or this one does."""
    error = Throttled(_PROVIDER, told.condition, told.text, BUSY_S)
    error.is_unavailable = True
    return error


def _invalid(told: _Told) -> QueueError:
    rule = told.fact("rule")
    return ValidationError(told.fact("argument") if rule else "request", rule or told.text)


_ERRORS: dict[str, Callable[[_Told], QueueError]] = {
    "not-found": _missing,
    "unauthorized": lambda told: PermissionDenied(f"use {told.what!r}", told.text),
    "unauthenticated": lambda told: AuthenticationFailed(told.text),
    "message-too-large": lambda told: MessageTooLarge(
        told.number("size_bytes"), told.number("maximum")
    ),
    "lock-lost": lambda told: MessageNotFound(told.what),
    "message-not-found": lambda told: MessageNotFound(told.what),
    "session-lock-lost": lambda told: SessionLockLost(told.what),
    "session-locked": lambda told: SessionLocked(told.what),
    "timed-out": lambda told: Timeout(0.0),
    "busy": _throttled,
    "not-leader": _not_serving,
    "starting": _not_serving,
    "throttled": _throttled,
    "invalid-argument": _invalid,
    "ended": lambda told: ConnectionFailed(told.text or "It was ended."),
}


def error_of(problem: Problem | None, what: str = "") -> QueueError:
    """Returns the client's error for a problem, chosen by its code alone.

    `what` is the queue, receipt or session of the request.
    """
    if problem is None:
        return ConnectionFailed("The broker has ended the link.")
    told = _Told(problem.condition, problem.text, what, problem.info)
    make = _ERRORS.get(told.fact("code") or _CODES.get(problem.condition, ""))
    if make is not None:
        error = make(told)
        error.add_note(problem.text)
        return error
    return ProviderError(
        _PROVIDER, problem.condition, problem.text, is_transient=problem.condition in _TRANSIENT
    )


def refusal_in(state: Described | None, what: str) -> QueueError | None:
    """Why a delivery, or what was said of one, was not taken; None where it was.

    A rejection without a problem is our own, which the broker repeats.
    """
    if state is None:
        return None
    code = code_of(state)
    if code == 0x34 and isinstance(state.value, list) and len(state.value) > 1:
        return refusal_in(state.value[1], what)  # within a transaction
    if code != 0x25:
        return None
    fields = state.value if isinstance(state.value, list) else []
    problem = problem_in(fields[0]) if fields else None
    return None if problem is None else error_of(problem, what)
