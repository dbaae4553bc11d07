"""Addresses of nodes: queues, topics, subscriptions, dead letters, and what manages them."""

from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import unquote

from posthouse.core.model import DEAD, SUBSCRIPTION, TRANSFER, subscription_queue

ADDRESS_CHARS_MAX = 1_024
CBS = "$cbs"
_MANAGEMENT, _DEAD, _TRANSFER = "$management", "$deadletterqueue", "$transfer"
_SUBSCRIPTIONS = "Subscriptions"


class Address(NamedTuple):
    kind: Literal["cbs", "entity", "management"]
    entity: str = ""  # as the core would call it, but for case
    dead: bool = False  # its dead-letter queue
    transfer: bool = False  # the one for what could not be forwarded

    @property
    def path(self) -> tuple[str, ...]:
        """The path to compare with a token's: dead letters and management are below an entity's."""
        return _path(self)


@lru_cache(1_000)
def _path(address: Address) -> tuple[str, ...]:
    below = (_TRANSFER,) if address.transfer else ()
    if address.dead:
        below = (*below, _DEAD)
    if address.kind == "management":
        below = (*below, _MANAGEMENT)
    return (*folded(told_name(address.entity)), *below)


def told_name(queue: str) -> str:
    """Returns the name that clients have for a queue."""
    queue = queue.replace(SUBSCRIPTION, f"/{_SUBSCRIPTIONS}/")
    return queue.replace(TRANSFER, "/$Transfer/$DeadLetterQueue").replace(DEAD, "/$DeadLetterQueue")


def folded(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.casefold().split("/") if part)


def queue_of(entity: str, address: Address) -> str:
    """Returns the core's name of a queue."""
    if address.transfer:
        return entity + TRANSFER
    return entity + DEAD if address.dead else entity


def parse(text: str) -> Address:
    """Reads an address in any of the forms that clients send. Raises ValueError."""
    if len(text) > ADDRESS_CHARS_MAX:
        raise ValueError(f"an address has at most {ADDRESS_CHARS_MAX} characters")
    return at(path_of(text))


@lru_cache(1_000)
def at(path: str) -> Address:
    """Returns the address of a path that is decoded already. Raises ValueError."""
    if path.casefold() == CBS:
        return Address("cbs")
    parts = path.split("/")
    kind: Literal["entity", "management"] = "entity"
    if parts[-1].casefold() == _MANAGEMENT:
        kind = "management"
        parts.pop()
    dead = transfer = False
    if parts and parts[-1].casefold() == _DEAD:
        dead = True
        parts.pop()
        if parts and parts[-1].casefold() == _TRANSFER:
            transfer = True
            parts.pop()
    if not any(parts):
        raise ValueError("an address names no entity")
    return Address(kind, entity_at(parts), dead, transfer)


def entity_at(parts: list[str]) -> str:
    """The core's name for the queue, topic or subscription at a path."""
    if len(parts) > 2 and parts[-2].casefold() == _SUBSCRIPTIONS.casefold():
        return subscription_queue("/".join(parts[:-2]), parts[-1])
    return "/".join(parts)


def path_of(text: str) -> str:
    """Without scheme, host, and slashes around it."""
    _, separator, rest = text.partition("://")
    if separator:
        text = rest.partition("/")[2]
    return unquote(text).strip("/")
