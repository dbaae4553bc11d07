"""Names that are right once they exist: of queues, subscriptions, messages and sessions.

A subscription is named `TOPIC/$sub/SUBSCRIPTION`, as the broker itself names it. No part of another
name begins with a $, so that this can be no queue, however many slashes the names have.
"""

import re
from functools import lru_cache
from typing import Any

from posthouse.client.errors import ValidationError
from posthouse.uuids import new_uuid, new_uuids

QUEUE_CHARS_MAX = 260
SESSION_CHARS_MAX = 128
MESSAGE_CHARS_MAX = 128
SUBSCRIPTION = "/$sub/"  # between the names of a topic and of its subscription

_PRINTABLE = re.compile(r"[\x20-\x7e]+")


@lru_cache(1_000)  # a program has few, and names them with every call
def _check_queue(name: str) -> None:
    """Whatever a broker takes as a name, the client takes. Raises ValidationError."""
    if not name:
        raise ValidationError("queue name", "must be text of 1 character or more")
    topic, mark, subscription = name.partition(SUBSCRIPTION)
    _check_name(topic)
    if mark:
        _check_name(subscription)
        if "/" in subscription:
            raise ValidationError("queue name", f"{name!r} must end with a subscription without /")


def _check_name(name: str) -> None:
    if not name:
        raise ValidationError("queue name", "must name a topic and a subscription around /$sub/")
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
    """The name of a queue or topic, or `TOPIC/$sub/SUBSCRIPTION` for a subscription.

    A name has 1 to 260 printable characters. Its parts between slashes are not empty, and begin
    with no $.
    """

    __slots__ = ()

    def __new__(cls, name: str) -> "QueueName":
        """Raises ValidationError."""
        if isinstance(name, QueueName):
            return name
        _check_queue(name)
        return super().__new__(cls, name)

    @property
    def topic(self) -> str | None:
        """The topic of a subscription; None for any other name."""
        topic, mark, _ = self.partition(SUBSCRIPTION)
        return topic if mark else None

    @property
    def subscription(self) -> str | None:
        """The subscription's own name, without its topic; None for any other name."""
        return self.partition(SUBSCRIPTION)[2] or None

    @classmethod
    def with_prefix(cls, prefix: str, base_name: str) -> "QueueName":
        """Both with a hyphen between them. Raises ValidationError."""
        return cls(f"{cls(prefix)}-{cls(base_name)}")


class SubscriptionName(QueueName):
    """The name of a subscription of a topic. It can be used wherever a queue is received from."""

    __slots__ = ()

    def __new__(cls, topic: str, subscription: str) -> "SubscriptionName":
        """Raises ValidationError."""
        name = f"{topic}{SUBSCRIPTION}{subscription}"
        _check_queue(name)
        return str.__new__(cls, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the two names, of which it is made again."""
        return SubscriptionName, (self.topic, self.subscription)


@lru_cache(1_000)
def target_name(name: str) -> QueueName:
    """Returns the name of a queue or topic, to send to. Raises ValidationError."""
    found = QueueName(name)
    if found.topic is not None:
        raise ValidationError(
            "queue name", f"{name!r} is a subscription; send to its topic {found.topic!r}"
        )
    return found


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
