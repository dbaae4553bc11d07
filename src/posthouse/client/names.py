"""Names that are right once they exist: of queues, messages and sessions."""

import os
import re
from struct import Struct

from posthouse.client.errors import ValidationError

QUEUE_CHARS_MAX = 260
SESSION_CHARS_MAX = 128
MESSAGE_CHARS_MAX = 128

_QUEUE = re.compile(r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")


_READY = 256
_ready: list[str] = []  # ids that nobody has yet: one by one they take four times as long
_VERSION = bytes(each & 0x0F | 0x40 for each in range(256))
_VARIANT = bytes(each & 0x3F | 0x80 for each in range(256))
_digits = Struct("8s4s4s4s12s").iter_unpack


def _new_uuid() -> str:
    """RFC 9562, version 4."""
    if not _ready:
        chance = bytearray(os.urandom(16 * _READY))
        chance[6::16] = chance[6::16].translate(_VERSION)
        chance[8::16] = chance[8::16].translate(_VARIANT)
        digits = chance.hex().encode()
        _ready.extend([(b"%b-%b-%b-%b-%b" % each).decode() for each in _digits(digits)])
    return _ready.pop()


os.register_at_fork(after_in_child=_ready.clear)


class QueueName(str):
    """1 to 260 ASCII letters, digits, hyphens and underscores; no hyphen at an end or doubled."""

    __slots__ = ()

    def __new__(cls, name: str) -> "QueueName":
        """Raises ValidationError."""
        if type(name) is cls:
            return name
        known = _known.get(name)
        if known is not None:
            return known
        if not name:
            raise ValidationError("queue name", "must be text of 1 character or more")
        if len(name) > QUEUE_CHARS_MAX:
            raise ValidationError(
                "queue name", f"has {len(name)} characters; {QUEUE_CHARS_MAX} are the most"
            )
        if _QUEUE.fullmatch(name) is None:
            raise ValidationError(
                "queue name",
                f"{name!r} must be ASCII letters, digits, hyphens and underscores, without a hyphen"
                " at the beginning or the end and without two in a row",
            )
        made = super().__new__(cls, name)
        if cls is QueueName and len(_known) < _KNOWN_MAX:
            _known[name] = made
        return made

    @classmethod
    def with_prefix(cls, prefix: str, base_name: str) -> "QueueName":
        """Both with a hyphen between them. Raises ValidationError."""
        return cls(f"{prefix}-{base_name}")


_KNOWN_MAX = 1_000
_known: dict[
    str, QueueName
] = {}  # those that were looked at: a program has few, and names them often


class MessageId(str):
    """Not empty; a new one is a UUID."""

    __slots__ = ()

    def __new__(cls, value: str | None = None) -> "MessageId":
        """Raises ValidationError."""
        if value is None:
            return super().__new__(cls, _new_uuid())
        if not value or len(value) > MESSAGE_CHARS_MAX:
            raise ValidationError("message id", f"must have 1 to {MESSAGE_CHARS_MAX} characters")
        return super().__new__(cls, value)


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
