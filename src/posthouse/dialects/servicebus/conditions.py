"""How refusals are told to Service Bus clients: AMQP conditions, and numbers on $management.

The conditions are what the clients make their exceptions of, and some look at the text as well.
Our own client goes by the refusal's code and facts, which are beside them: in the info of an error
(2.8.14), and among the properties of an answer of $management.
"""

from posthouse.amqp.performatives import error, rejected
from posthouse.amqp.types import Symbol, Value
from posthouse.core import errors
from posthouse.core.errors import InvalidArgument, NotFound, Refused
from posthouse.dialects.servicebus.address import told_name
from posthouse.store.errors import StoreError

NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
NOT_ALLOWED = "amqp:not-allowed"
TOO_LARGE = "amqp:link:message-size-exceeded"
INTERNAL = "amqp:internal-error"
NOT_IMPLEMENTED = "amqp:not-implemented"
FORCED = "amqp:connection:forced"
DETACH_FORCED = "amqp:link:detach-forced"
DEAD_LETTER = "com.microsoft:dead-letter"
ARGUMENT = "com.microsoft:argument-error"
DISABLED = "com.microsoft:entity-disabled"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOST = "com.microsoft:session-lock-lost"
SESSION_LOCKED = "com.microsoft:session-cannot-be-locked"
TIMEOUT = "com.microsoft:timeout"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
BUSY = "com.microsoft:server-busy"
UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
PREFIX = "posthouse:"  # of the code and the facts

# A smaller frame has room for the condition and the text alone.
INFO_FRAME_BYTES_MIN = 4_096
FACT_CHARS_MAX = 500

# Of a link whose client was allowed to have it, and is not any more.
LAPSED = "The token has expired, or may not be used for this any more. Put a new one."

CODES: dict[type[Refused], tuple[str, int]] = {
    errors.NotFound: (NOT_FOUND, 404),
    errors.AlreadyExists: ("com.microsoft:entity-already-exists", 409),
    errors.MessageNotFound: (MESSAGE_NOT_FOUND, 404),
    errors.LockLost: (LOCK_LOST, 410),
    errors.SessionLocked: (SESSION_LOCKED, 410),
    errors.SessionLockLost: (SESSION_LOST, 410),
    errors.QuotaExceeded: ("amqp:resource-limit-exceeded", 403),
    errors.MessageTooLarge: (TOO_LARGE, 403),
    errors.Duplicate: ("com.microsoft:entity-already-exists", 409),
    errors.Disabled: (DISABLED, 400),
    errors.InvalidArgument: (ARGUMENT, 400),
    errors.NotAllowed: (NOT_ALLOWED, 400),
    errors.TimedOut: (TIMEOUT, 408),
    errors.TransactionLost: (UNKNOWN_TRANSACTION, 410),
    errors.Unauthenticated: (UNAUTHORIZED, 401),
    errors.Unauthorized: (UNAUTHORIZED, 401),
    errors.Busy: (BUSY, 503),
    errors.NotLeader: (BUSY, 503),
    errors.Throttled: (BUSY, 503),
}


def missing(entity: str) -> str:
    """Clients look for these words."""
    name = told_name(entity)
    return f"The messaging entity '{name}' could not be found. Check the name, or create it first."


def told_any(answer: Refused | StoreError) -> tuple[str, str]:
    """The condition and the text of a refusal, or of a journal that failed."""
    if isinstance(answer, StoreError):
        return INTERNAL, answer.for_clients
    condition, text, _ = told(answer)
    return condition, text


def told(refused: Refused) -> tuple[str, str, int]:
    """The condition, the text and the number of a refusal."""
    condition, status = CODES[type(refused)]
    if isinstance(refused, NotFound) and refused.kind != "receiver":
        return condition, missing(refused.name), status
    if isinstance(refused, InvalidArgument) and refused.argument == "group":
        return NOT_ALLOWED, "The entity takes messages with a session id only; set one.", status
    return condition, told_name(str(refused)), status


def facts_of(refused: Refused) -> dict[str, str | int]:
    """The code and the facts of a refusal, as they are told beside the text."""
    told: dict[str, str | int] = {f"{PREFIX}code": refused.code}
    for name, fact in refused.facts.items():
        told[PREFIX + name] = fact if isinstance(fact, int) else fact[:FACT_CHARS_MAX]
    return told


def error_of(answer: Refused | StoreError, frame_bytes: int, text: str | None = None) -> bytes:
    """An AMQP error, for a client that takes such frames; `text` stands for the refusal's own."""
    return error(*_said(answer, frame_bytes, text))


def rejection_of(answer: Refused | StoreError, frame_bytes: int, text: str | None = None) -> bytes:
    return rejected(*_said(answer, frame_bytes, text))


def _said(
    answer: Refused | StoreError, frame_bytes: int, text: str | None
) -> tuple[str, str, dict[Value, Value] | None]:
    condition, own = told_any(answer)
    info: dict[Value, Value] | None = None
    if isinstance(answer, Refused) and frame_bytes >= INFO_FRAME_BYTES_MIN:
        info = {Symbol(name): fact for name, fact in facts_of(answer).items()}
    return condition, own if text is None else text, info
