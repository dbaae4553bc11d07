"""The batch: what was decided since the last frame, and who is to be told of it."""

import asyncio
import logging
from collections.abc import Callable, Iterator, MutableSequence
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import msgspec

from posthouse.broker import payload
from posthouse.broker.memory import Memory
from posthouse.core.commands import Answer, Delivery, Peeked, Received, Seen
from posthouse.core.errors import Refused
from posthouse.core.plan import Delivered
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)

Reply = Callable[[Answer | Refused | StoreError], None]
_Items: TypeAlias = MutableSequence[Any]  # deliveries, or peeked messages

BATCH_BYTES = 8 << 20  # a batch ends when it holds this much; one send more may be in it
BATCH_COMMANDS = 10_000
# The disk is given work from here on: waiting for more would only leave it idle meanwhile.
LARGE_BYTES = 256 << 10
LARGE_COMMANDS = 128
_HOLDS = frozenset((Delivery, Seen))  # the items that hold a message


class Batch:
    """The content of one frame: records, the answers to be given after the sync, and deliveries."""

    __slots__ = (
        "answers", "bytes", "changed", "deliveries", "entries", "is_awaited", "messages", "probe",
        "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        self.entries: list[payload.Entry] = []
        self.answers: list[tuple[Reply, Answer | Refused]] = []
        self.deliveries: list[list[Delivered]] = []
        self.changed: set[str] = set()  # the namespaces in which something was done
        self.messages = 0  # that were sent
        self.bytes = 0  # of them
        self.weight = 0  # of all records, in bytes, at most
        self.probe = False  # a frame is to be written, even an empty one
        # Somebody waits for it. Else it holds locks at most, whose messages have left already, and
        # what fell due: it may be written together with what comes next.
        self.is_awaited = False

    def __bool__(self) -> bool:
        return bool(self.entries or self.answers or self.deliveries or self.probe)

    @property
    def is_full(self) -> bool:
        return self.weight > BATCH_BYTES or len(self.answers) >= BATCH_COMMANDS

    @property
    def is_large(self) -> bool:
        return len(self.answers) >= LARGE_COMMANDS or self.weight >= LARGE_BYTES

    @property
    def is_written(self) -> bool:
        """Whether it becomes a frame; refusals and peeked messages alone do not."""
        return bool(self.entries or self.probe)


class Bare(NamedTuple):
    """A message that is delivered and has no body in memory."""

    items: _Items
    at: int
    position: int  # of its content when the batch was closed; it may be moved meanwhile


def bare_messages(batch: Batch) -> list[Bare]:
    return [
        Bare(items, at, item.message.position)
        for items in _delivered(batch)
        for at, item in enumerate(items)
        if type(item) in _HOLDS and type(item.message.body) is int
    ]


def _delivered(batch: Batch) -> Iterator[_Items]:
    """Yields the deliveries and peeked messages of a batch."""
    for _, answer in batch.answers:
        if isinstance(answer, Received):
            yield answer.deliveries
        elif isinstance(answer, Peeked):
            yield answer.messages
    yield from batch.deliveries


async def fill_in(bare: list[Bare], memory: Memory) -> None:
    """Reads back the bodies of messages that are delivered, and puts in copies with them."""
    bodies = await memory.fetch({each.position for each in bare})
    for items, at, position in bare:
        full = copy(items[at].message)
        full.body = bodies[position]
        items[at] = msgspec.structs.replace(items[at], message=full)


def tell(callback: Callable[[Any], None], answer: object) -> None:
    """Calls somebody back. An exception of theirs is logged, and ends there."""
    try:
        callback(answer)
    except asyncio.InvalidStateError:  # the caller does not wait any more
        pass
    except Exception:  # noqa: BLE001 (a connection's code must not stop the others' broker)
        _log.exception("somebody who was told an answer has failed")


def ignore(_: object) -> None:
    """The reply of a command whose answer nobody waits for."""
