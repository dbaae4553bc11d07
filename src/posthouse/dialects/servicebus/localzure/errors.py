"""Errors as LocalZure tells them: a code, a text, and details of which most are null."""

import msgspec

from posthouse.core import errors
from posthouse.core.errors import Refused
from posthouse.dialects.http import JSON, Answer, Header, retry_after, seconds_to_wait
from posthouse.dialects.servicebus.address import told_name

_DETAILS = (
    "entity_type", "entity_name", "message_id", "session_id", "correlation_id", "operation",
    "reason", "quota_type", "current_value", "max_value", "timeout_seconds", "actual_size",
    "max_size",
)  # fmt: skip

Details = dict[str, str | int | None]


class Failed(Exception):
    """A request that was not carried out."""

    def __init__(
        self, status: int, code: str, text: str, headers: tuple[Header, ...] = (), **details: object
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.headers = headers
        self.details = details


class Unprocessable(Exception):
    """A request that does not say what it should: 422, in the form that FastAPI gives it."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(text)
        self.where = where
        self.text = text


def told(failed: Failed, correlation_id: str) -> Answer:
    details = {name: failed.details.get(name) for name in _DETAILS}
    details["correlation_id"] = correlation_id
    error = {"code": failed.code, "message": failed.text, "details": details}
    return Answer(msgspec.json.encode({"error": error}), failed.status, (JSON, *failed.headers))


def told_unprocessable(wrong: Unprocessable) -> Answer:
    place = ["body", wrong.where] if wrong.where else ["body"]
    detail = [{"type": "value_error", "loc": place, "msg": wrong.text}]
    return Answer(msgspec.json.encode({"detail": detail}), 422, (JSON,))


CODES: dict[type[Refused], tuple[int, str]] = {
    errors.NotFound: (404, "EntityNotFound"),
    errors.AlreadyExists: (409, "EntityAlreadyExists"),
    errors.MessageNotFound: (404, "MessageNotFound"),
    errors.LockLost: (410, "MessageLockLost"),
    errors.SessionLocked: (409, "SessionAlreadyLocked"),
    errors.SessionLockLost: (410, "SessionLockLost"),
    errors.QuotaExceeded: (507, "QuotaExceeded"),
    errors.MessageTooLarge: (413, "MessageSizeExceeded"),
    errors.Duplicate: (409, "InvalidOperation"),
    errors.Disabled: (400, "InvalidOperation"),
    errors.InvalidArgument: (400, "InvalidOperation"),
    errors.NotAllowed: (400, "InvalidOperation"),
    errors.TimedOut: (504, "OperationTimeout"),
    errors.TransactionLost: (404, "TransactionNotFound"),
    errors.Unauthenticated: (401, "Unauthorized"),
    errors.Unauthorized: (403, "Forbidden"),
    errors.Busy: (503, "ConnectionError"),
    errors.NotLeader: (503, "ConnectionError"),
    errors.Throttled: (429, "QuotaExceeded"),
}


def failed_by(refused: Refused, **known: object) -> Failed:
    """A refusal of the core. What is known of the request is told as well."""
    status, code = CODES[type(refused)]
    details: dict[str, object] = {**known, "reason": str(refused)}
    headers = retry_after(refused)
    if isinstance(refused, errors.QuotaExceeded):
        details |= {"quota_type": refused.limit, "max_value": refused.maximum,
                    "current_value": refused.current}  # fmt: skip
    elif isinstance(refused, errors.MessageTooLarge):
        details |= {"actual_size": refused.size_bytes, "max_size": refused.maximum}
    elif isinstance(refused, errors.Throttled):
        details |= {"quota_type": "rate", "timeout_seconds": seconds_to_wait(refused)}
    elif isinstance(refused, errors.Unauthenticated):
        headers = ((b"www-authenticate", b'SharedAccessSignature realm="Posthouse"'),)
    elif isinstance(refused, errors.SessionLocked):
        details["session_id"] = refused.session
    return Failed(status, code, told_name(str(refused)), headers, **details)
