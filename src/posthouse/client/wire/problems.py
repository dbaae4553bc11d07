"""What the broker refuses, in the client's words."""

from collections.abc import Callable

from posthouse.amqp.performatives import Problem, code_of, problem_in
from posthouse.amqp.types import Described
from posthouse.client.errors import (
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
from posthouse.client.retry import wait_in

_PROVIDER = "posthouse"
_TRANSIENT = frozenset((
    "amqp:internal-error", "amqp:resource-limit-exceeded", "amqp:transaction:rollback",
    "amqp:transaction:timeout",
))  # fmt: skip

# For a condition: from what was told, and what it was about.
_ERRORS: dict[str, Callable[[Problem, str], QueueError]] = {
    "amqp:not-found": lambda told, what: QueueNotFound(what),
    "amqp:unauthorized-access": lambda told, what: PermissionDenied(f"use {what!r}", told.text),
    "amqp:link:message-size-exceeded": lambda told, what: _too_large(told),
    "com.microsoft:message-lock-lost": lambda told, what: MessageNotFound(what),
    "com.microsoft:message-not-found": lambda told, what: MessageNotFound(what),
    "com.microsoft:session-lock-lost": lambda told, what: SessionLockLost(what),
    "com.microsoft:session-cannot-be-locked": lambda told, what: SessionLocked(what),
    "com.microsoft:timeout": lambda told, what: Timeout(0.0),
    "com.microsoft:server-busy": lambda told, what: Throttled(
        _PROVIDER, told.condition, told.text, wait_in(told.text, 1.0)
    ),
    "com.microsoft:argument-error": lambda told, what: ValidationError("request", told.text),
    "amqp:connection:forced": lambda told, what: ConnectionFailed(told.text or "It was ended."),
    "amqp:link:detach-forced": lambda told, what: ConnectionFailed(told.text or "It was ended."),
}


def error_of(problem: Problem | None, what: str = "") -> QueueError:
    """`what` is the queue, the receipt or the session that was asked about."""
    if problem is None:
        return ConnectionFailed("The broker has ended the link.")
    make = _ERRORS.get(problem.condition)
    if make is not None:
        error = make(problem, what)
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


def _too_large(told: Problem) -> MessageTooLarge:
    numbers = [int(each) for each in told.text.replace(",", "").split() if each.isdigit()]
    size, most = (*numbers, 0, 0)[:2]
    return MessageTooLarge(size, most)
