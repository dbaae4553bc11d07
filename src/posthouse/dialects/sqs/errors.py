"""Errors of Amazon SQS: one table of their names, in both protocols, and of their texts.

An error has two names. The JSON protocol tells one in the body (`__type`), by which SDKs find the
class, and the other in the header `x-amzn-query-error`, which is the only one of the Query protocol
and what Python's SDK shows as the code.
"""

from typing import NamedTuple

from posthouse.core import errors
from posthouse.core.errors import Refused

_SQS, _CORAL = "com.amazonaws.sqs", "com.amazon.coral.service"
_PREFIX = "AWS.SimpleQueueService."


class Kind(NamedTuple):
    """One error of the service's."""

    name: str
    space: str  # in which the JSON protocol has it
    code: str  # in the Query protocol
    status: int = 400

    @property
    def type(self) -> str:
        return f"{self.space}#{self.name}"

    @property
    def fault(self) -> str:
        """Whose fault it is."""
        return "Receiver" if self.status >= 500 else "Sender"


def _sqs(name: str, code: str = "", status: int = 400) -> Kind:
    return Kind(name, _SQS, code or name, status)


def _long(name: str, status: int = 400) -> Kind:
    return Kind(name, _SQS, _PREFIX + name, status)


def _coral(name: str, code: str, status: int = 400) -> Kind:
    return Kind(name, _CORAL, code, status)


NO_QUEUE = _sqs("QueueDoesNotExist", _PREFIX + "NonExistentQueue")
EXISTS = _sqs("QueueNameExists", "QueueAlreadyExists")
RECENTLY = _long("QueueDeletedRecently")
ATTRIBUTE_NAME = _sqs("InvalidAttributeName")
ATTRIBUTE_VALUE = _sqs("InvalidAttributeValue")
VALUE = _coral("InvalidParameterValueException", "InvalidParameterValue")
MISSING = _coral("MissingRequiredParameterException", "MissingParameter")
CONTENTS = _sqs("InvalidMessageContents")
HANDLE = _sqs("ReceiptHandleIsInvalid", status=404)
OVER_LIMIT = _sqs("OverLimit", status=403)
PURGING = _long("PurgeQueueInProgress", 403)
EMPTY = _long("EmptyBatchRequest")
TOO_MANY = _long("TooManyEntriesInBatchRequest")
BAD_ID = _long("InvalidBatchEntryId")
SAME_ID = _long("BatchEntryIdsNotDistinct")
TOO_LONG = _long("BatchRequestTooLong")
UNSUPPORTED = _long("UnsupportedOperation")
NO_RESOURCE = _sqs("ResourceNotFoundException", status=404)
THROTTLED = _sqs("RequestThrottled", status=403)
DENIED = _coral("AccessDeniedException", "AccessDenied", 403)
UNKNOWN_KEY = _coral("UnrecognizedClientException", "InvalidClientTokenId", 403)
BAD_SIGNATURE = _coral("InvalidSignatureException", "SignatureDoesNotMatch", 403)
INCOMPLETE = _coral("IncompleteSignatureException", "IncompleteSignature")
NO_ACTION = _coral("UnknownOperationException", "InvalidAction")
MALFORMED = _coral("SerializationException", "MalformedInput")
TOO_LARGE = _coral("RequestEntityTooLargeException", "RequestEntityTooLarge", 413)
AWAY = _coral("ServiceUnavailable", "ServiceUnavailable", 503)

KINDS: tuple[Kind, ...] = (
    NO_QUEUE, EXISTS, RECENTLY, ATTRIBUTE_NAME, ATTRIBUTE_VALUE, VALUE, MISSING, CONTENTS, HANDLE,
    OVER_LIMIT, PURGING, EMPTY, TOO_MANY, BAD_ID, SAME_ID, TOO_LONG, UNSUPPORTED, NO_RESOURCE,
    THROTTLED, DENIED, UNKNOWN_KEY, BAD_SIGNATURE, INCOMPLETE, NO_ACTION, MALFORMED, TOO_LARGE,
    AWAY,
)  # fmt: skip

# Refusals of the core. Where a refusal means one thing here and another there, an action has made
# an error of it before.
CODES: dict[type[Refused], Kind] = {
    errors.NotFound: NO_QUEUE,
    errors.AlreadyExists: EXISTS,
    errors.MessageNotFound: VALUE,
    errors.LockLost: VALUE,
    errors.SessionLocked: UNSUPPORTED,
    errors.SessionLockLost: UNSUPPORTED,
    errors.QuotaExceeded: OVER_LIMIT,
    errors.MessageTooLarge: VALUE,
    errors.Duplicate: VALUE,
    errors.Disabled: UNSUPPORTED,
    errors.InvalidArgument: VALUE,
    errors.NotAllowed: UNSUPPORTED,
    errors.TimedOut: AWAY,
    errors.TransactionLost: UNSUPPORTED,
    errors.Unauthenticated: UNKNOWN_KEY,
    errors.Unauthorized: DENIED,
    errors.Busy: AWAY,
    errors.NotLeader: AWAY,
    errors.Throttled: THROTTLED,
}

_NO_QUEUE_TEXT = "The specified queue does not exist"


class Failed(Exception):
    """An action that was not carried out, and why."""

    def __init__(self, kind: Kind, text: str, *, retry_seconds: int = 0, close: bool = False):
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.retry_seconds = retry_seconds
        self.close = close  # the connection is of no more use


def failed_by(refused: Refused) -> Failed:
    """The error for a refusal of the core."""
    kind = CODES[type(refused)]
    if isinstance(refused, errors.NotFound):
        return no_queue(refused.kind, refused.name)
    if isinstance(refused, errors.Throttled):
        return Failed(kind, str(refused), retry_seconds=-(-refused.wait_ms // 1_000))
    if isinstance(refused, errors.MessageNotFound | errors.LockLost):
        return invalid("", "ReceiptHandle", NOT_AVAILABLE)
    return Failed(kind, str(refused), retry_seconds=int(kind is AWAY))


# Texts that programs compare.

NOT_AVAILABLE = "Message does not exist or is not available for visibility timeout change."
EXPIRED = "The receipt handle has expired."


def no_queue(kind: str = "queue", name: str = "") -> Failed:
    """The text that the Query protocol has instead is `wsdl_text`."""
    more = "" if kind == "queue" or not name else f" There is no {kind} {name!r}."
    return Failed(NO_QUEUE, f"{_NO_QUEUE_TEXT}.{more}")


def wsdl_text(text: str) -> str:
    """The Query protocol's text for a missing queue."""
    return text.replace(f"{_NO_QUEUE_TEXT}.", f"{_NO_QUEUE_TEXT} for this wsdl version.", 1)


def invalid(value: object, parameter: str, reason: str) -> Failed:
    return Failed(VALUE, f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> Failed:
    return Failed(MISSING, f"The request must contain the parameter {parameter}.")


def no_handle(handle: str) -> Failed:
    return Failed(HANDLE, f'The input receipt handle "{handle}" is not a valid receipt handle.')


def unknown_attribute(name: str) -> Failed:
    return Failed(ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def attribute_value(name: str, reason: str = "") -> Failed:
    more = f" Reason: {reason}" if reason else ""
    return Failed(ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.{more}")
