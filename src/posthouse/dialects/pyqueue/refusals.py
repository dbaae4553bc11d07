"""How refusals are told to PyQueue clients: in its words where it has some, else in ours."""

from posthouse.core import errors
from posthouse.core.errors import NotFound, QuotaExceeded, Refused

# `op` is the word that was asked with, `on` what it was about, `text` what the refusal says itself.
CODES: dict[type[Refused], str] = {
    errors.NotFound: "Queue '{on}' not found",
    errors.AlreadyExists: "{begin}{text}",
    errors.MessageNotFound: "Task not found",
    errors.LockLost: "Task not found",
    errors.SessionLocked: "{begin}{text}",
    errors.SessionLockLost: "{begin}{text}",
    errors.QuotaExceeded: "Queue '{on}' is at capacity ({current}/{maximum})",
    errors.MessageTooLarge: "{begin}{text}",
    errors.Duplicate: "Duplicate task detected",
    errors.Disabled: "{begin}{text}",
    errors.InvalidArgument: "{begin}{text}",
    errors.NotAllowed: "{begin}{text}",
    errors.TimedOut: "Request timeout",
    errors.TransactionLost: "Invalid transaction ID",
    errors.Unauthenticated: "Authentication failed",
    errors.Unauthorized: "Unauthorized: {principal} cannot {op} on {on}",
    errors.Busy: "{begin}{text}",
    errors.NotLeader: "{begin}{text}",
    errors.Throttled: "Rate limit exceeded",
}
_BEGIN = {"PUSH": "Failed to add task: ", "PUSH_BATCH": "Failed to add batch: "}
NOT_FOUND = "Task not found"
NEEDS_AUTH = "Authentication required. Send AUTH command first."
MALFORMED = "Invalid message or message too large"
TOO_SLOW = "Request timeout"
TOO_MANY = "Server connection limit reached"
INVALID = "Invalid command"
NO_CLUSTER = "Clustering not enabled"
BAD_JSON = "Invalid JSON payload"


class Failed(Exception):
    """Something that was asked for cannot be; the text is for the client."""


class Missing(Failed):
    """It is not there."""


def told(refused: Refused, op: str, on: str) -> str:
    begin = _BEGIN.get(op, "")
    form = CODES[type(refused)]
    if isinstance(refused, NotFound) and op in ("ACK", "NACK"):
        return NOT_FOUND
    if isinstance(refused, NotFound) and refused.kind != "queue":
        form = "{begin}{text}"
    facts = {name: getattr(refused, name, "") for name in ("principal", "current", "maximum")}
    if isinstance(refused, QuotaExceeded):
        on = refused.queue
        if refused.limit != "max_messages":
            form = "{begin}{text}"
        elif op == "PUSH_BATCH":
            form = "{begin}" + form
    return form.format(begin=begin, text=refused, op=op, on=on, **facts)
