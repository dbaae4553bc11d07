"""Room: how much of a queue is used, and what gives way where there is none left."""

from collections.abc import Container, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from posthouse.core.commands import LOOK_MAX
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import ACTIVE, Message, size_bytes
from posthouse.core.model import LimitCounts, Queue

NOTHING: Mapping[int, int] = {}


class Used(NamedTuple):
    """Use of a queue; of a topic, by its subscriptions."""

    messages: int
    size_bytes: int


class Fit(NamedTuple):
    """How many of some new messages, from the first on, there is room for, and what goes."""

    taken: int
    dropped: Sequence[Message] = ()  # old ones
    arrived: Sequence[int] = ()  # of those that this command has brought


def used(queue: Queue, counts: LimitCounts | None = None) -> Used:
    """Returns the bytes of all messages, and the number of those that the queue's limit counts.

    `counts`: which messages are counted instead.
    """
    counts = counts or queue.properties.limit_counts
    messages, size = queue.counted(counts), queue.size_bytes
    for each in queue.subscriptions.values():
        messages += each.counted(counts)
        size += each.size_bytes
    return Used(messages, size)


def is_limited(queue: Queue) -> bool:
    properties = queue.properties
    return properties.max_messages is not None or properties.max_bytes is not None


def _excess(queue: Queue, now: Used, messages: int, size: int) -> QuotaExceeded | None:
    """Returns the limit that so many more messages would exceed; None if they fit."""
    properties = queue.properties
    most, most_bytes = properties.max_messages, properties.max_bytes
    if most is not None and now.messages + messages > most:
        return QuotaExceeded(queue.name, "max_messages", most, now.messages)
    if most_bytes is not None and now.size_bytes + size > most_bytes:
        return QuotaExceeded(queue.name, "max_bytes", most_bytes, now.size_bytes)
    return None


def check_room(queue: Queue, now: Used, messages: int, size: int) -> None:
    """Raises QuotaExceeded."""
    excess = _excess(queue, now, messages, size)
    if excess is not None:
        raise excess


def has_room(queue: Queue, now: Used, messages: int, size: int) -> bool:
    return _excess(queue, now, messages, size) is None


def make_room(
    queue: Queue,
    now: Used,
    sizes: Sequence[int],
    going: Container[int] = (),
    arrived: Mapping[int, int] = NOTHING,
    oldest: int = 0,
) -> Fit:
    """Makes room for new messages of these sizes, as the queue wants it.

    `going`: what leaves it anyway; `arrived`: the sizes of what has come before in this command,
    by sequence number; `oldest`: before that all that may give way does so. Raises QuotaExceeded.
    """
    excess = _excess(queue, now, len(sizes), sum(sizes))
    if excess is None:
        return Fit(len(sizes))
    overflow = queue.properties.overflow
    if overflow in ("reject", "block"):
        raise excess
    if overflow == "drop-oldest":
        fit = _without_oldest(queue, now, sizes, going, arrived, oldest)
        if fit is None:
            raise excess
        return fit
    taken = size = 0  # not all of them fit, so this ends
    while _excess(queue, now, taken + 1, size + sizes[taken]) is None:
        taken, size = taken + 1, size + sizes[taken]
    return Fit(taken)


def _without_oldest(
    queue: Queue,
    now: Used,
    sizes: Sequence[int],
    going: Container[int],
    arrived: Mapping[int, int],
    oldest: int,
) -> Fit | None:
    """Drops as few of the oldest as make room. None: all of them are too few."""
    count, size = len(sizes), sum(sizes)
    dropped: list[Message] = []
    late: list[int] = []

    def is_enough(gone_bytes: int) -> bool:
        nonlocal now
        now = Used(now.messages - 1, now.size_bytes - gone_bytes)
        return _excess(queue, now, count, size) is None

    for message in islice(queue.messages.walk(oldest), LOOK_MAX):
        if message.state == ACTIVE and message.sequence not in going:
            dropped.append(message)
            if is_enough(size_bytes(message)):
                return Fit(count, dropped)
    for sequence, gone_bytes in arrived.items():
        late.append(sequence)
        if is_enough(gone_bytes):
            return Fit(count, dropped, late)
    return None
