"""Entities and principals that are to exist when the broker starts, whoever's file declares them.

Names and properties are checked when the values are made.
"""

from collections.abc import Callable, Sequence

import msgspec

from posthouse.core.checks import check_name, check_queue_properties, check_rule
from posthouse.core.errors import InvalidArgument
from posthouse.core.model import Grant, QueueProperties
from posthouse.core.rules import DEFAULT_RULE, Rule

KEY_CHARS_MIN = 16


class QueueDeclared(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    properties: QueueProperties = QueueProperties()


class SubscriptionDeclared(msgspec.Struct, frozen=True):
    name: str
    properties: QueueProperties = QueueProperties()
    rules: tuple[Rule, ...] = (Rule(DEFAULT_RULE),)


class TopicDeclared(QueueDeclared, frozen=True):
    subscriptions: tuple[SubscriptionDeclared, ...] = ()


class PrincipalDeclared(msgspec.Struct, frozen=True):
    name: str
    key: str | None  # None: it comes by other means than a key of its own
    grants: tuple[Grant, ...]

    def __repr__(self) -> str:
        return f"PrincipalDeclared({self.name!r})"  # the key is nobody's business


def declare_queue(name: str, namespace: str, properties: QueueProperties) -> QueueDeclared:
    """Raises ValueError."""
    what = f"queue {name!r}"
    checked(what, check_name, "name", name)
    checked(what, check_name, "namespace", namespace)
    checked(what, check_queue_properties, properties)
    return QueueDeclared(name, namespace, properties)


def declare_topic(
    name: str,
    namespace: str,
    properties: QueueProperties,
    subscriptions: tuple[SubscriptionDeclared, ...],
) -> TopicDeclared:
    """Raises ValueError."""
    declare_queue(name, namespace, properties)
    for subscription in subscriptions:
        what = f"subscription {subscription.name!r} of {name!r}"
        checked(what, check_name, "name", subscription.name)
        checked(what, check_queue_properties, subscription.properties)
        for rule in subscription.rules:
            checked(what, check_rule, rule)
    return TopicDeclared(name, namespace, properties, subscriptions)


def checked(what: str, check: Callable[..., object], *given: object) -> None:
    """Calls a check of the core's. Raises ValueError, which names what it refuses."""
    try:
        check(*given)
    except InvalidArgument as refused:
        raise ValueError(f"{what}: {refused}") from None


def every_right(namespace: str, patterns: Sequence[str]) -> tuple[Grant, ...]:
    """Grants of everything on the entities whose names fit."""
    return tuple(Grant(namespace, pattern, ["manage", "send", "listen"]) for pattern in patterns)
