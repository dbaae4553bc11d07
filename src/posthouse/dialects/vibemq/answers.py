"""How refusals are told to VibeMQ clients: a code and a text."""

from posthouse.core import errors
from posthouse.core.errors import Refused

AUTH_REQUIRED = "AUTH_REQUIRED"
AUTH_FAILED = "AUTH_FAILED"
NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
NOT_AUTHORIZED = "NOT_AUTHORIZED"
FORBIDDEN = "FORBIDDEN"
INVALID_MESSAGE = "INVALID_MESSAGE"
INVALID_PAYLOAD = "INVALID_PAYLOAD"
INVALID_QUEUE = "INVALID_QUEUE"
QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
QUEUE_EXISTS = "QUEUE_EXISTS"
QUEUE_FULL = "QUEUE_FULL"
USER_EXISTS = "USER_EXISTS"
USER_NOT_FOUND = "USER_NOT_FOUND"
UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
RATE_LIMITED = "RATE_LIMITED"
CONNECTION_LIMIT = "CONNECTION_LIMIT"
SERVER_BUSY = "SERVER_BUSY"
SERVER_ERROR = "SERVER_ERROR"

CODES: dict[type[Refused], tuple[str, int]] = {  # over TCP, and over HTTP
    errors.NotFound: (QUEUE_NOT_FOUND, 404),
    errors.AlreadyExists: (QUEUE_EXISTS, 409),
    errors.MessageNotFound: (INVALID_MESSAGE, 404),
    errors.LockLost: (INVALID_MESSAGE, 409),
    errors.SessionLocked: (INVALID_QUEUE, 409),
    errors.SessionLockLost: (INVALID_QUEUE, 409),
    errors.QuotaExceeded: (QUEUE_FULL, 507),
    errors.MessageTooLarge: (INVALID_PAYLOAD, 413),
    errors.Duplicate: (INVALID_MESSAGE, 409),
    errors.Disabled: (INVALID_QUEUE, 409),
    errors.InvalidArgument: (INVALID_PAYLOAD, 400),
    errors.NotAllowed: (INVALID_QUEUE, 409),
    errors.TimedOut: (SERVER_BUSY, 408),
    errors.TransactionLost: (SERVER_ERROR, 409),
    errors.Unauthenticated: (AUTH_FAILED, 401),
    errors.Unauthorized: (NOT_AUTHORIZED, 403),
    errors.Busy: (SERVER_BUSY, 503),
    errors.NotLeader: (SERVER_BUSY, 503),
    errors.Throttled: (RATE_LIMITED, 429),
}


class Wrong(ValueError):
    """The request cannot be carried out. The client is told why and may go on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def told(refused: Refused | Wrong) -> tuple[str, str]:
    """A code and a text."""
    if isinstance(refused, Wrong):
        return refused.code, str(refused)
    code, _ = CODES[type(refused)]
    if isinstance(refused, errors.NotFound | errors.AlreadyExists) and refused.kind == "principal":
        code = USER_NOT_FOUND if isinstance(refused, errors.NotFound) else USER_EXISTS
    return code, str(refused)
