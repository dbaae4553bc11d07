"""Deliveries: the record that locks or takes messages, and what their receiver is given."""

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Protocol

from posthouse.core.commands import KEY_CHARS_MAX, Delivery
from posthouse.core.message import LOCKED, Message, Note, message_id
from posthouse.core.model import LOCK_MS, Queue, State
from posthouse.core.records import Locked, Taken

NO_FIRSTS: Mapping[int, int] = {}


class Taker(Protocol):
    """Somebody who gets a delivery: a receiver, or a command that asks once."""

    @property
    def receiver(self) -> int: ...
    @property
    def delete(self) -> bool: ...
    @property
    def lock_ms(self) -> int | None: ...
    @property
    def once(self) -> bool: ...
    @property
    def bound(self) -> int: ...
    @property
    def by_id(self) -> bool: ...
    @property
    def session(self) -> int: ...


def lock_time_ms(queue: Queue, to: Taker) -> int:
    """How long a receiver's locks last; 0 only for one that asks once."""
    if not to.once:
        return to.lock_ms or queue.properties.lock_ms or LOCK_MS
    return queue.properties.lock_ms if to.lock_ms is None else to.lock_ms


def deliver(
    state: State,
    queue: Queue,
    to: Taker,
    messages: list[Message],
    note_of: Callable[[int], Note | None] | None,
    first_lock: int,
    now_ms: int,
    firsts: Mapping[int, int] = NO_FIRSTS,
) -> tuple[Locked | Taken, list[Delivery]]:
    """Locks these messages, or takes them out where that was asked for.

    `firsts`: when messages were first delivered, of those that have come back.
    """
    receiver = to.receiver
    until_ms = 0
    tokens: Iterable[int] = repeat(0)
    if not to.delete:
        tokens = state.tokens.several(first_lock, len(messages))
        if to.session:
            until_ms = state.sessions[to.session][1].until_ms
        else:
            until_ms = now_ms + lock_time_ms(queue, to)
    sequences = [message.sequence for message in messages]
    counts = [message.count + 1 for message in messages]
    waited_ms = [now_ms - message.enqueued_ms for message in messages]
    notes = repeat(None) if note_of is None else map(note_of, sequences)
    delivered_ms: Iterable[int] = repeat(now_ms)
    if firsts:
        delivered_ms = [firsts.get(sequence, now_ms) for sequence in sequences]
    deliveries = [
        Delivery(receiver, token, until_ms, each, message, note, first_ms)
        for token, each, message, note, first_ms in zip(
            tokens, counts, messages, notes, delivered_ms, strict=False
        )
    ]
    if counts.count(1) == len(counts):
        counts = []
    if to.delete:
        return Taken(queue.name, now_ms, sequences, receiver, waited_ms, counts), deliveries
    ids = [_short_id(message) for message in messages] if to.by_id else None
    record = Locked(
        queue.name, now_ms, sequences, first_lock, until_ms, receiver, to.bound, ids, waited_ms,
        counts,
    )  # fmt: skip
    return record, deliveries


def counts_of(messages: list[Message]) -> list[int]:
    """How often each was delivered; nothing where each was once."""
    counts = [message.count for message in messages]
    return [] if counts.count(1) == len(counts) else counts


def settled_ms_of(state: State, messages: list[Message], now_ms: int) -> list[int | None]:
    """How long each has been with its receiver; None where that is not known, or it is not."""
    locks = state.locks
    return [
        now_ms - lock.since_ms
        if message.state == LOCKED and (lock := locks[message.lock]).since_ms
        else None
        for message in messages
    ]


def first_ms_of(state: State, queue: Queue, message: Message) -> int:
    """When a message was first delivered; 0 where it never was, or that is not known."""
    first_ms = queue.firsts.get(message.sequence, 0)
    if not first_ms and message.state == LOCKED:
        return state.locks[message.lock].since_ms
    return first_ms


def _short_id(message: Message) -> str:
    """The id by which a lock can be settled; one that is too long cannot serve."""
    id = message_id(message.envelope)
    return id if len(id) <= KEY_CHARS_MAX else ""
