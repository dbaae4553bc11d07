"""Names that are right once they exist: of queues, messages and sessions."""

import re
from functools import lru_cache

from posthouse.client.errors import ValidationError
from posthouse.uuids import new_uuid, new_uuids

QUEUE_CHARS_MAX = 260
SESSION_CHARS_MAX = 128
MESSAGE_CHARS_MAX = 128

_PRINTABLE = re.compile(r"[\x20-\x7e]+")


@lru_cache(1_000)  # a program has few, and names them with every call
def _check_queue(name: str) -> None:
    """Whatever a broker takes as a name, the client takes. Raises ValidationError."""
    if not name:
        raise ValidationError("queue name", "must be text of 1 character or more")
    if len(name) > QUEUE_CHARS_MAX:
        raise ValidationError(
            "queue name", f"has {len(name)} characters; {QUEUE_CHARS_MAX} are the most"
        )
    if not name.isprintable() or name != name.strip() or "\\" in name:
        raise ValidationError(
            "queue name",
            f"{name!r} must be printable, without a space at an end and without a backslash",
        )
    if any(part in ("", ".", "..") or part.startswith("$") for part in name.split("/")):
        raise ValidationError(
            "queue name", f"{name!r} must have no part that is empty, . or .., or begins with $"
        )


class QueueName(str):
    """1 to 260 printable characters; parts between slashes are not empty, and begin with no $."""

    __slots__ = ()

    def __new__(cls, name: str) -> "QueueName":
        """Raises ValidationError."""
        if type(name) is cls:
            return name
        _check_queue(name)
        return super().__new__(cls, name)

    @classmethod
    def with_prefix(cls, prefix: str, base_name: str) -> "QueueName":
        """Both with a hyphen between them. Raises ValidationError."""
        return cls(f"{cls(prefix)}-{cls(base_name)}")


class MessageId(str):
    """Not empty; a new one is a UUID."""

    __slots__ = ()

    def __new__(cls, value: str | None = None) -> "MessageId":
        """Raises ValidationError."""
        if value is None:
            return str.__new__(cls, new_uuid())
        if not value or len(value) > MESSAGE_CHARS_MAX:
            raise ValidationError("message id", f"must have 1 to {MESSAGE_CHARS_MAX} characters")
        return super().__new__(cls, value)


def new_message_ids(count: int) -> list[MessageId]:
    """Many at a time take less than one by one."""
    new = str.__new__
    return [new(MessageId, each) for each in new_uuids(count)]


class SessionId(str):
    """1 to 128 printable ASCII characters."""

    __slots__ = ()

    def __new__(cls, value: str) -> "SessionId":
        """Raises ValidationError."""
        if not 1 <= len(value) <= SESSION_CHARS_MAX:
            raise ValidationError("session id", f"must have 1 to {SESSION_CHARS_MAX} characters")
        if _PRINTABLE.fullmatch(value) is None:
            raise ValidationError("session id", f"{value!r} must be printable ASCII")
        return super().__new__(cls, value)

    @classmethod
    def from_parts(cls, *parts: str) -> "SessionId":
        """The parts with slashes between them. Raises ValidationError."""
        return cls("/".join(parts))
