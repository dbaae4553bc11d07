"""Places of requests: paths in every spelling, and the names that entities may have."""

import re
from typing import NamedTuple

from posthouse.core.model import DEAD, subscription_queue
from posthouse.dialects.servicebus.localzure.errors import Failed

NAME_CHARS_MAX, SUBSCRIPTION_CHARS_MAX = 260, 50
_RESERVED = frozenset((
    "system", "null", "true", "false", "exec", "drop", "delete", "insert", "update", "create",
    "alter", "grant", "revoke",
))  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_SHORT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", re.ASCII)
_DOUBLE = re.compile(r"--|__|\.\.")


class Place(NamedTuple):
    """A queue, a topic or a subscription, or the dead letters of one; or a namespace."""

    namespace: str  # as it is called in the path; empty: the default one
    kind: str  # "queue", "topic", "subscription" or "namespace"
    name: str  # its own
    queue: str  # as the core calls it
    rest: tuple[str, ...]  # of the path
    topic: str = ""  # of a subscription
    dead: bool = False


def place_of(parts: tuple[str, ...]) -> Place:
    """Returns the place of a path below /servicebus, which may name a namespace first."""
    namespace, rest = "", parts
    if parts and parts[0] not in ("queues", "topics", "transactions"):
        namespace, rest = parts[0], parts[1:]
    if len(rest) > 1 and rest[0] == "queues":
        return _queue(namespace, rest[1], rest[2:])
    if len(rest) > 1 and rest[0] == "topics":
        return _topic(namespace, rest[1], rest[2:])
    if not rest or rest[0] in ("queues", "topics", "transactions") or rest[0].startswith("$"):
        return Place(namespace, "namespace", namespace, "", rest)
    if len(rest) > 2 and rest[1].casefold() == "subscriptions":
        return _topic(namespace, rest[0], rest[1:])
    return _queue(namespace, rest[0], rest[1:])


def _queue(namespace: str, name: str, rest: tuple[str, ...]) -> Place:
    return _or_dead(Place(namespace, "queue", name, name, rest))


def _topic(namespace: str, name: str, rest: tuple[str, ...]) -> Place:
    if len(rest) > 1 and rest[0].casefold() == "subscriptions":
        queue = subscription_queue(name, rest[1])
        return _or_dead(Place(namespace, "subscription", rest[1], queue, rest[2:], name))
    return Place(namespace, "topic", name, name, rest)


def _or_dead(place: Place) -> Place:
    if place.rest and place.rest[0].casefold() == "$deadletterqueue":
        return place._replace(queue=place.queue + DEAD, rest=place.rest[1:], dead=True)
    return place


def check_name(place: Place) -> None:
    """Raises Failed."""
    name, why = place.name, ""
    if place.kind == "subscription":
        if len(name) > SUBSCRIPTION_CHARS_MAX or not _SHORT.fullmatch(name):
            why = (f"It is of letters, digits and - between them, and has at most"
                   f" {SUBSCRIPTION_CHARS_MAX} characters.")  # fmt: skip
    elif len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name) or _DOUBLE.search(name):
        why = (f"It is of letters, digits, and single - _ . between them, and has at most"
               f" {NAME_CHARS_MAX} characters.")  # fmt: skip
    elif name.lower() in _RESERVED:
        why = "The word is reserved."
    if why:
        raise Failed(
            400, f"Invalid{place.kind.capitalize()}Name", f"The name {name!r} cannot be: {why}",
            entity_type=place.kind, entity_name=name, reason=why,
        )  # fmt: skip
