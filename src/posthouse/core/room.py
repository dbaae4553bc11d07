"""Room: how much of a queue is used, and what gives way where there is none left."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from posthouse.core.commands import LOOK_MAX
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import ACTIVE, Message, size_bytes
from posthouse.core.model import Queue


class Used(NamedTuple):
    """Of a queue; of a topic, by its subscriptions."""

    messages: int
    size_bytes: int


class Fit(NamedTuple):
    """How many of some new messages, from the first on, there is room for, and what goes."""

    taken: int
    dropped: Sequence[Message] = ()  # old ones


def used(queue: Queue) -> Used:
    messages, size = sum(queue.counts), queue.size_bytes
    for each in queue.subscriptions.values():
        messages += sum(each.counts)
        size += each.size_bytes
    return Used(messages, size)


def is_limited(queue: Queue) -> bool:
    properties = queue.properties
    return properties.max_messages is not None or properties.max_bytes is not None


def check_room(queue: Queue, now: Used, messages: int, size: int) -> None:
    """Raises QuotaExceeded."""
    properties = queue.properties
    most, most_bytes = properties.max_messages, properties.max_bytes
    if most is not None and now.messages + messages > most:
        raise QuotaExceeded(queue.name, "max_messages", most, now.messages)
    if most_bytes is not None and now.size_bytes + size > most_bytes:
        raise QuotaExceeded(queue.name, "max_bytes", most_bytes, now.size_bytes)


def has_room(queue: Queue, now: Used, messages: int, size: int) -> bool:
    try:
        check_room(queue, now, messages, size)
    except QuotaExceeded:
        return False
    return True


def make_room(queue: Queue, now: Used, sizes: Sequence[int], going: set[int]) -> Fit:
    """For new messages of these sizes, as the queue wants it. `going`: what leaves it anyway.

    Raises QuotaExceeded.
    """
    overflow = queue.properties.overflow
    try:
        check_room(queue, now, len(sizes), sum(sizes))
    except QuotaExceeded:
        if overflow in ("reject", "block"):
            raise
    else:
        return Fit(len(sizes))
    if overflow == "drop-oldest":
        return Fit(len(sizes), _oldest(queue, now, sizes, going))
    taken = size = 0
    for each in sizes:
        try:
            check_room(queue, now, taken + 1, size + each)
        except QuotaExceeded:
            break
        taken, size = taken + 1, size + each
    return Fit(taken)


def _oldest(queue: Queue, now: Used, sizes: Sequence[int], going: set[int]) -> list[Message]:
    """As few of the oldest as make room. Raises QuotaExceeded where that is not enough."""
    count, size = len(sizes), sum(sizes)
    dropped: list[Message] = []
    for message in islice(queue.messages.walk(0), LOOK_MAX):
        if message.state != ACTIVE or message.sequence in going:
            continue
        dropped.append(message)
        now = Used(now.messages - 1, now.size_bytes - size_bytes(message))
        try:
            check_room(queue, now, count, size)
        except QuotaExceeded:
            continue
        return dropped
    check_room(queue, now, count, size)
    raise AssertionError("there was room after all")
