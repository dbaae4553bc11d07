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

STATUS: dict[type[Refused], int] = {
    NotFound: 404,
    AlreadyExists: 409,
    MessageNotFound: 404,
    LockLost: 410,
    SessionLocked: 409,
    SessionLockLost: 410,
    QuotaExceeded: 429,
    MessageTooLarge: 413,
    Duplicate: 409,
    Disabled: 409,
    InvalidArgument: 400,
    NotAllowed: 409,
    TimedOut: 408,
    TransactionLost: 410,
    Unauthenticated: 401,
    Unauthorized: 403,
    Busy: 503,
    NotLeader: 503,
    Throttled: 429,
}


class HttpProblem(Exception):
    """An error that HTTP itself answers with, such as a path that does not exist."""

    def __init__(self, status: int, name: str, detail: str, close: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.close = close  # what follows on this connection cannot be read any more


def problem(
    status: int,
    name: str,
    detail: str,
    correlation_id: str = "",
    facts: dict[str, str | int] | None = None,
) -> Problem:
    """Makes a problem; `name` is its code, `facts` are those of a refusal."""
    title, type_ = name.replace("-", " ").capitalize(), f"urn:posthouse:problem:{name}"
    return Problem(type_, title, status, detail, correlation_id, name, facts or {})
