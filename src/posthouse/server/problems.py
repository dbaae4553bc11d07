"""Refusals as HTTP says them: RFC 9457 problem documents that say what to do."""

from posthouse.core.errors import (
    AlreadyExists,
    Busy,
    Disabled,
    Duplicate,
    InvalidArgument,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    NotLeader,
    QuotaExceeded,
    Refused,
    SessionLocked,
    SessionLockLost,
    Throttled,
    TimedOut,
    TransactionLost,
    Unauthenticated,
    Unauthorized,
)
from posthouse.server.shapes import Problem

# The status, and a name that stays.
CODES: dict[type[Refused], tuple[int, str]] = {
    NotFound: (404, "not-found"),
    AlreadyExists: (409, "already-exists"),
    MessageNotFound: (404, "message-not-found"),
    LockLost: (410, "lock-lost"),
    SessionLocked: (409, "session-locked"),
    SessionLockLost: (410, "session-lock-lost"),
    QuotaExceeded: (429, "quota-exceeded"),
    MessageTooLarge: (413, "message-too-large"),
    Duplicate: (409, "duplicate"),
    Disabled: (409, "disabled"),
    InvalidArgument: (400, "invalid-argument"),
    NotAllowed: (409, "not-allowed"),
    TimedOut: (408, "timed-out"),
    TransactionLost: (410, "transaction-lost"),
    Unauthenticated: (401, "unauthenticated"),
    Unauthorized: (403, "unauthorized"),
    Busy: (503, "busy"),
    NotLeader: (503, "not-leader"),
    Throttled: (429, "throttled"),
}


class HttpProblem(Exception):
    """Something that HTTP itself turns down."""

    def __init__(self, status: int, name: str, detail: str, close: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.close = close  # what follows on this connection cannot be read any more


def problem(status: int, name: str, detail: str, correlation_id: str = "") -> Problem:
    title = name.replace("-", " ").capitalize()
    return Problem(f"urn:posthouse:problem:{name}", title, status, detail, correlation_id)
