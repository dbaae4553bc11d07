"""The client's errors, the same for every provider.

`is_transient`: the same call may succeed later. `retry_after`: how many seconds to wait before it,
where that is known. The provider's own error is the `__cause__`, and a `ProviderError` has its
code.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


class QueueError(Exception):
    """Everything that this library raises.

    `is_transient` says whether the same call may succeed later, `retry_after` after how many
    seconds. `is_unavailable` says that the provider was not reached, or serves nobody for a while.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except QueueError as error:
            print(error, error.is_transient)
    """

    is_transient: bool = False
    is_unavailable: bool = False  # if it is transient, too, it is tried until the call's deadline
    retry_after: float | None = None  # seconds

    @property
    def should_retry(self) -> bool:
        """Whether a retry policy may try the call again."""
        return self.is_transient

    def __reduce__(self) -> tuple[Any, ...]:
        """Across processes, as it is: what it is about is not to be told a second time."""
        return _again, (type(self), self.args), vars(self)


def _again(kind: type[QueueError], args: tuple[Any, ...]) -> QueueError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class QueueNotFound(QueueError):
    """A queue, topic or subscription does not exist.

    `queue_name` is its name, `namespace` where it was looked for, if that is known.

    Example:
        try:
            await client.receive_message("orders")
        except QueueNotFound as error:
            await client.admin.ensure_queue(error.queue_name)
    """

    def __init__(self, queue_name: str, namespace: str = "") -> None:
        self.queue_name, self.namespace = queue_name, namespace
        where = f" in the namespace {namespace!r}" if namespace else ""
        super().__init__(f"There is no queue {queue_name!r}{where}; check the name, or create it.")


class MessageNotFound(QueueError):
    """A message was settled before, or its lock has expired. `receipt` is its handle.

    Example:
        try:
            await client.complete_message(message)
        except MessageNotFound:
            print("another receiver may have it")
    """

    def __init__(self, receipt: str) -> None:
        self.receipt = receipt
        super().__init__(f"There is no message for the receipt {receipt!r}, or it has expired.")


class SessionLocked(QueueError):
    """Another client holds a session.

    `session_id` is the session, `locked_until` when its lock expires, if that is known.

    Example:
        try:
            session = await client.accept_session("orders", "customer-7")
        except SessionLocked as error:
            print(error.session_id, error.locked_until)
    """

    is_transient = True
    retry_after = 5.0

    def __init__(self, session_id: str, locked_until: datetime | None = None) -> None:
        self.session_id = session_id
        self.locked_until = locked_until
        until = f" until {locked_until.isoformat()}" if locked_until is not None else ""
        super().__init__(f"The session {session_id!r} is held by another{until}.")


class SessionNotFound(QueueError):
    """The session `session_id` is not there, or has expired.

    Example:
        try:
            await session.renew_session_lock()
        except SessionNotFound as error:
            print(error.session_id)
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"The session {session_id!r} is not there, or has expired.")


class SessionLockLost(SessionNotFound):
    """The lock of the session `session_id` was lost; another client may hold it.

    Example:
        try:
            await session.receive_message()
        except SessionLockLost as error:
            session = await client.accept_session("orders", error.session_id)
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.args = (f"The lock of the session {session_id!r} was lost; accept it again.",)


class Timeout(QueueError, TimeoutError):
    """A call was not done within its time. It is a `TimeoutError` too.

    `duration` is the time in seconds, `what` the operation.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except Timeout as error:
            print(error.duration)
    """

    is_transient = True
    retry_after = 1.0

    def __init__(self, duration: float, what: str = "The operation") -> None:
        self.duration = duration
        super().__init__(f"{what} was not done within {duration:g} s.")


class ConnectionFailed(QueueError, ConnectionError):
    """There is no connection to the provider. It is a `ConnectionError` too.

    `message` says why.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except ConnectionFailed as error:
            print(error.retry_after)
    """

    is_transient = True
    is_unavailable = True
    retry_after = 5.0

    def __init__(self, message: str) -> None:
        super().__init__(message)


def lasting(error: ConnectionFailed) -> ConnectionFailed:
    """Marks a failure that no retry can mend, and returns it."""
    error.is_transient = error.is_unavailable = False
    return error


def client_closed() -> ConnectionFailed:
    return lasting(ConnectionFailed("The client has been closed."))


class AuthenticationFailed(QueueError):
    """The provider does not accept the credentials, or wants some. `message` says what to do.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except AuthenticationFailed as error:
            print(error)
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class PermissionDenied(QueueError):
    """The credentials do not allow an operation.

    `operation` is what was not allowed, `message` the text, where the provider gives one.

    Example:
        try:
            await client.receive_message("orders")
        except PermissionDenied as error:
            print(error.operation)
    """

    def __init__(self, operation: str, message: str | None = None) -> None:
        self.operation = operation
        super().__init__(message or f"It is not allowed to {operation}.")


class MessageTooLarge(QueueError):
    """A message has `size` bytes, and the provider takes `max_size` at most.

    Example:
        try:
            await client.send_message("orders", Message(bytes(10_000_000)))
        except MessageTooLarge as error:
            print(error.size, error.max_size)
    """

    def __init__(self, size: int, max_size: int) -> None:
        self.size, self.max_size = size, max_size
        super().__init__(f"The message has {size} bytes; {max_size} are the most.")


class BatchTooLarge(QueueError):
    """A batch has `size` messages, and the provider takes `max_size` at most.

    Example:
        try:
            await client.send_messages("orders", messages)
        except BatchTooLarge as error:
            print(error.max_size)
    """

    def __init__(self, size: int, max_size: int) -> None:
        self.size, self.max_size = size, max_size
        super().__init__(f"The batch has {size} messages; {max_size} are the most.")


class PartialFailure(QueueError):
    """Some messages of a batch were sent, and some were not.

    `failures` has the errors by index in the batch, `ids` the ids of the messages that were sent.

    Example:
        try:
            await client.send_messages("orders", messages)
        except PartialFailure as error:
            left = [messages[index] for index in error.failures]
    """

    def __init__(self, failures: dict[int, QueueError], ids: Mapping[int, str]) -> None:
        self.failures, self.ids = failures, ids
        self.is_transient = all(each.is_transient for each in failures.values())
        self.is_unavailable = all(each.is_unavailable for each in failures.values())
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
    """An error of the provider that has no class of its own.

    `provider` is its name, `code` its own code, `message` its text. `is_transient` says whether the
    call may succeed later.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except ProviderError as error:
            print(error.provider, error.code)
    """

    is_transient = True

    def __init__(
        self, provider: str, code: str, message: str, *, is_transient: bool = True
    ) -> None:
        self.provider, self.code = provider, code
        self.is_transient = is_transient
        super().__init__(f"{provider} ({code}): {message}")


class Throttled(ProviderError):
    """The provider wants fewer calls.

    `provider`, `code` and `message` are those of `ProviderError`; `retry_after` is how many seconds
    to wait.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except Throttled as error:
            await asyncio.sleep(error.retry_after or 1)
    """

    def __init__(self, provider: str, code: str, message: str, retry_after: float = 60.0) -> None:
        super().__init__(provider, code, message)
        self.retry_after = retry_after


class CircuitOpen(QueueError):
    """Too many calls have failed lately. Nothing is tried for another `retry_after` seconds.

    Example:
        try:
            await client.send_message("orders", Message("a book"))
        except CircuitOpen as error:
            print(error.retry_after)
    """

    is_transient = True

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(
            f"Calls fail at once for another {retry_after:.1f} s: too many have failed."
        )


class SerializationError(QueueError):
    """A value could not be written as a message's body, or read from it.

    Example:
        try:
            order = message.value(Order)
        except SerializationError as error:
            print(error.__cause__)
    """


class ConfigurationError(QueueError):
    """A setting is wrong or missing. `field` is its name, `message` the rule that it breaks.

    Example:
        try:
            client = create_client("posthouse://localhost:99999")
        except ConfigurationError as error:
            print(error.field)
    """

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field} {message}.")


class ValidationError(QueueError, ValueError):
    """A value is not valid. `what` names the value, `rule` the rule that it breaks.

    Example:
        try:
            Message("a book", priority=10)
        except ValidationError as error:
            print(error.what, error.rule)
    """

    def __init__(self, what: str, rule: str) -> None:
        self.what, self.rule = what, rule
        super().__init__(f"The {what} {rule}.")


class Unsupported(QueueError):
    """The provider cannot do this; docs/client.md says which can.

    `provider` is its name, `what` the operation.

    Example:
        try:
            await client.peek_messages("orders")
        except Unsupported as error:
            print(error.provider, error.what)
    """

    def __init__(self, provider: str, what: str) -> None:
        self.provider, self.what = provider, what
        super().__init__(f"{provider} cannot {what}.")
