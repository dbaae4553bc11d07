"""The client's errors, the same for every provider.

`is_transient`: the same call may succeed later. `retry_after`: how many seconds to wait before it,
where that is known. The provider's own error is the `__cause__`, and a `ProviderError` has its
code.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


class QueueError(Exception):
    """Everything that this library raises."""

    is_transient: bool = False
    retry_after: float | None = None  # seconds

    @property
    def should_retry(self) -> bool:
        return self.is_transient

    def __reduce__(self) -> tuple[Any, ...]:
        """Across processes, as it is: what it is about is not to be told a second time."""
        return _again, (type(self), self.args), vars(self)


def _again(kind: type[QueueError], args: tuple[Any, ...]) -> QueueError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class QueueNotFound(QueueError):
    def __init__(self, queue_name: str, namespace: str = "") -> None:
        self.queue_name, self.namespace = queue_name, namespace
        where = f" in the namespace {namespace!r}" if namespace else ""
        super().__init__(f"There is no queue {queue_name!r}{where}; check the name, or create it.")


class MessageNotFound(QueueError):
    """It was settled before, or its lock has expired."""

    def __init__(self, receipt: str) -> None:
        self.receipt = receipt
        super().__init__(f"There is no message for the receipt {receipt!r}, or it has expired.")


class SessionLocked(QueueError):
    is_transient = True
    retry_after = 5.0

    def __init__(self, session_id: str, locked_until: datetime | None = None) -> None:
        self.session_id = session_id
        self.locked_until = locked_until
        until = f" until {locked_until.isoformat()}" if locked_until is not None else ""
        super().__init__(f"The session {session_id!r} is held by another{until}.")


class SessionNotFound(QueueError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"The session {session_id!r} is not there, or has expired.")


class SessionLockLost(SessionNotFound):
    """It was held, and is not any more: another may have it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.args = (f"The lock of the session {session_id!r} was lost; accept it again.",)


class Timeout(QueueError, TimeoutError):
    is_transient = True
    retry_after = 1.0

    def __init__(self, duration: float, what: str = "The operation") -> None:
        self.duration = duration
        super().__init__(f"{what} was not done within {duration:g} s.")


class ConnectionFailed(QueueError, ConnectionError):
    is_transient = True
    retry_after = 5.0

    def __init__(self, message: str) -> None:
        super().__init__(message)


class AuthenticationFailed(QueueError):
    def __init__(self, message: str) -> None:
        super().__init__(message)


class PermissionDenied(QueueError):
    def __init__(self, operation: str, message: str | None = None) -> None:
        self.operation = operation
        super().__init__(message or f"It is not allowed to {operation}.")


class MessageTooLarge(QueueError):
    def __init__(self, size: int, max_size: int) -> None:
        self.size, self.max_size = size, max_size
        super().__init__(f"The message has {size} bytes; {max_size} are the most.")


class BatchTooLarge(QueueError):
    def __init__(self, size: int, max_size: int) -> None:
        self.size, self.max_size = size, max_size
        super().__init__(f"The batch has {size} messages; {max_size} are the most.")


class PartialFailure(QueueError):
    """Some messages of a batch went, and some did not.

    `failures` has what went wrong by the place in the batch, `ids` the ids of the others.
    """

    def __init__(self, failures: dict[int, QueueError], ids: Mapping[int, str]) -> None:
        self.failures, self.ids = failures, ids
        self.is_transient = all(each.is_transient for each in failures.values())
        first = next(iter(failures.values()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(ids)} messages did not go; the first: {first}"
        )


def check_went(failures: dict[int, QueueError], ids: Sequence[str]) -> None:
    """Checks that all of a batch was sent.

    Raises the first error if all failed, or PartialFailure if some did.
    """
    if not failures:
        return
    first = next(iter(failures.values()))
    if len(failures) == len(ids):
        raise first
    went = {place: str(id) for place, id in enumerate(ids) if place not in failures}
    raise PartialFailure(failures, went) from first


class ProviderError(QueueError):
    """An error of the provider that has no class of its own, with the provider's code."""

    is_transient = True

    def __init__(
        self, provider: str, code: str, message: str, *, is_transient: bool = True
    ) -> None:
        self.provider, self.code = provider, code
        self.is_transient = is_transient
        super().__init__(f"{provider} ({code}): {message}")


class Throttled(ProviderError):
    """The provider wants fewer calls."""

    def __init__(self, provider: str, code: str, message: str, retry_after: float = 60.0) -> None:
        super().__init__(provider, code, message)
        self.retry_after = retry_after


class CircuitOpen(QueueError):
    """Too many calls have failed lately. Nothing is tried until `retry_after` has passed."""

    is_transient = True

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(
            f"Calls fail at once for another {retry_after:.1f} s: too many have failed."
        )


class SerializationError(QueueError):
    """A value could not be written as a message's body, or read from it."""


class ConfigurationError(QueueError):
    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field} {message}.")


class ValidationError(QueueError, ValueError):
    def __init__(self, what: str, rule: str) -> None:
        self.what, self.rule = what, rule
        super().__init__(f"The {what} {rule}.")


class Unsupported(QueueError):
    """The provider cannot do this; docs/client.md says which can."""

    def __init__(self, provider: str, what: str) -> None:
        self.provider, self.what = provider, what
        super().__init__(f"{provider} cannot {what}.")
