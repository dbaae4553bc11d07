"""Looking back: the state as of a position, the life of one message, and sending a range again."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from posthouse.broker import payload
from posthouse.broker.access import Principal
from posthouse.broker.engine import Engine
from posthouse.broker.replay import END, recover
from posthouse.core.commands import SEND_BYTES_MAX, Enqueued, Send
from posthouse.core.message import NewMessage, message_id, size_bytes
from posthouse.core.model import dead_letter_queue, entity_of, topic_of
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import (
    Activated,
    Cancelled,
    Completed,
    DeadLettered,
    Deferred,
    Dropped,
    Expired,
    Kept,
    Locked,
    MessagesRestored,
    Moved,
    NamespaceDeleted,
    OfNamespaces,
    Purged,
    QueueDeleted,
    Relocked,
    Renewed,
    Resubmitted,
    Returned,
    Routed,
    Sent,
    Taken,
    Woken,
    span,
)
from posthouse.store import Readable, Snapshots, Store
from posthouse.store.errors import NotThere

_SEND_MESSAGES = 1_000
_GONE = (Cancelled, Completed, Dropped, Expired, Purged, Taken)


async def state_at(store: Store, snapshots: Snapshots | None, position: int) -> Namespaces:
    """The world when this position had just happened, without what concerns connections.

    Bodies are not in it. Raises NotThere where the journal does not go so far, back or forth.
    """
    if not 0 <= position < store.durable:
        raise NotThere(f"the journal goes from 0 to {store.durable - 1}, not to {position}")
    return await recover(store, snapshots, position + 1, keep_bytes=0)


# One message.


class Place(NamedTuple):
    """The queue and sequence number of a message, which has a new number in each queue."""

    queue: str
    sequence: int


class Event(NamedTuple):
    """An event in the life of a message."""

    position: int
    time_ms: int
    kind: str  # the name of the record
    queue: str
    sequence: int
    text: str


class _Entry(NamedTuple):
    position: int
    time_ms: int
    record: Kept | OfNamespaces


async def find(store: Readable, namespace: str, id: str) -> list[Place]:
    """Finds the places that messages with this id were sent to, the oldest first."""
    found: list[Place] = []
    async for entry in _entries(store, namespace, 0, END):
        located = (entry.position, namespace, entry.record)
        found += [
            Place(content.queue, content.sequence)
            for content in payload.contents([located], moved=False)
            if message_id(content.message.envelope) == id
        ]
    return found


async def life(store: Readable, namespace: str, place: Place) -> list[Event]:
    """Everything that happened to the message that stands, or stood last, in a place.

    From wherever it was sent to first, to its end or to now; of what a topic made several of, the
    copy that came to that place. Raises NotThere.
    """
    first, path = await _origin(store, namespace, place)
    place = path.pop()
    events: list[Event] = []
    async for entry in _entries(store, namespace, first, END):
        record = entry.record
        at = entry.position
        sequences = getattr(record, "sequences", ())
        if isinstance(record, Sent) and not events:
            at = first
            text = _say(record, first - entry.position)
        elif isinstance(record, Routed):
            found = _copies_of(record, place)
            leaves = place.sequence in sequences
            if record.queue != place.queue or not (leaves or (path and path[-1] in found)):
                continue  # or others got copies, where it was handed on in parts
            if leaves:
                at += span(record) - len(record.sequences) + sequences.index(place.sequence)
            text = _say_routed(found)
        elif getattr(record, "queue", None) == place.queue and place.sequence in sequences:
            index = sequences.index(place.sequence)
            at += index
            text = _say(record, index)
        elif _ends(record, namespace, place):
            text = _say(record, 0)
        else:
            continue
        events.append(Event(at, entry.time_ms, type(record).__name__, *place, text))
        if isinstance(record, _GONE) or _ends(record, namespace, place):
            break
        if isinstance(record, Routed):
            found = _copies_of(record, place)
            if path and path[-1] in found:
                place = path.pop()
            elif len(found) == 1:
                place = found[0]
            else:
                break
            continue
        before, place = place, _next(record, place)
        if place != before and path and path[-1] == place:
            path.pop()
    return events


def _copies_of(record: Routed, place: Place) -> list[Place]:
    """The places of the copies that were made of a routed message."""
    return [
        Place(copies.queue, copies.first_sequence + at)
        for copies in record.every()
        for at, sequence in enumerate(copies.sequences)
        if sequence == place.sequence
    ]


def _say_routed(found: list[Place]) -> str:
    if not found:
        return "nobody wanted it, and it is gone"
    places = ", ".join(f"{each.queue!r} as {each.sequence}" for each in found)
    return f"handed on to {places}"


async def _entries(store: Readable, namespace: str, first: int, end: int) -> AsyncIterator[_Entry]:
    async for frame in store.read(first, end):
        for position, name, record in payload.entries(frame):
            mine = name == namespace or isinstance(record, NamespaceDeleted)
            if mine and first < position + span(record) and position < end:
                yield _Entry(position, frame.time_ms, record)


async def _origin(store: Readable, namespace: str, place: Place) -> tuple[int, list[Place]]:
    """The position at which the message was sent, and the places it came by, the last first."""
    end = END
    path = [place]
    while True:
        made: tuple[int, Place] | None = None
        sent = False
        async for entry in _entries(store, namespace, 0, end):
            index, before = _made(entry.record, place)
            if before is not None:
                made = (entry.position + index, before)
                sent = isinstance(entry.record, Sent | MessagesRestored)
        if made is None:
            raise NotThere(
                f"the journal does not tell how message {place.sequence} came into"
                f" {place.queue!r}; check the numbers, or it was trimmed"
            )
        if sent:
            return made[0], path
        end, place = made[0], made[1]
        path.append(place)


def _made(record: Kept | OfNamespaces, place: Place) -> tuple[int, Place | None]:
    """The index of the message that a record put into a place, and its place before."""
    if isinstance(record, Sent):
        index = place.sequence - record.first_sequence
        here = record.queue == place.queue and 0 <= index < len(record.messages)
        return index, place if here else None
    if isinstance(record, MessagesRestored):
        here = record.queue == place.queue and place.sequence in record.sequences
        return (record.sequences.index(place.sequence), place) if here else (0, None)
    if isinstance(record, Activated | DeadLettered | Resubmitted):
        index = place.sequence - record.first_sequence
        if _target(record) == place.queue and 0 <= index < len(record.sequences):
            return index, Place(record.queue, record.sequences[index])
    if isinstance(record, Routed):
        before = 0
        for copies in record.every():
            index = place.sequence - copies.first_sequence
            if copies.queue == place.queue and 0 <= index < len(copies.sequences):
                return before + index, Place(record.queue, copies.sequences[index])
            before += len(copies.sequences)
    return 0, None


def _target(record: Activated | DeadLettered | Resubmitted) -> str:
    if isinstance(record, DeadLettered):
        return dead_letter_queue(record.queue)
    return record.target if isinstance(record, Resubmitted) else record.queue


def _next(record: Kept | OfNamespaces, place: Place) -> Place:
    """The place of the message after a record that touched it."""
    if isinstance(record, Activated | DeadLettered | Resubmitted):
        index = record.sequences.index(place.sequence)
        return Place(_target(record), record.first_sequence + index)
    return place


def _ends(record: Kept | OfNamespaces, namespace: str, place: Place) -> bool:
    """Whether a record deleted the entity or namespace of the place."""
    if isinstance(record, NamespaceDeleted):
        return record.name == namespace
    if not isinstance(record, QueueDeleted):
        return False
    entity = entity_of(place.queue)
    return record.queue in (entity, topic_of(entity))


def _say(record: Kept | OfNamespaces, index: int) -> str:
    """Describes what a record did to the message with the number `index` in it."""
    match record:
        case Sent():
            due_ms = record.messages[index].due_ms
            number = record.first_sequence + index
            later = f", scheduled for {moment(due_ms)}" if due_ms else ""
            return f"sent to {record.queue!r} as {number}{later}"
        case Activated():
            return f"was due, and is active as {record.first_sequence + index}"
        case Woken():
            return "is active again after its delay"
        case Locked():
            until = moment(record.until_ms)
            return f"delivered to receiver {record.receiver}, locked until {until}"
        case Taken():
            return f"delivered to receiver {record.receiver} and deleted"
        case Completed():
            return "completed"
        case Returned():
            when = f", ready at {moment(record.until_ms)}" if record.until_ms else ""
            counted = ", as if never delivered" if record.uncounted else ""
            return f"returned to its place{when}{counted}"
        case Deferred():
            return "deferred"
        case DeadLettered():
            why = f": {record.reason}" if record.reason else ""
            return f"dead-lettered as {record.first_sequence + index}{why}"
        case Renewed():
            return f"lock renewed until {moment(record.until_ms)}"
        case Relocked():
            return f"locked again until {moment(record.until_ms)}"
        case Resubmitted():
            return f"sent again to {record.target!r} as {record.first_sequence + index}"
        case Moved():
            return "its content was written again"
        case MessagesRestored():
            return f"copied from another journal, as {record.sequences[index]} in {record.queue!r}"
        case QueueDeleted():
            return f"gone with queue {record.queue!r}" + (", which was idle" if record.idle else "")
        case NamespaceDeleted():
            return f"gone with namespace {record.name!r}"
        case _:
            return type(record).__name__.lower()


def moment(unix_ms: int) -> str:
    """A time for people to read, in UTC."""
    try:
        text = datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError):  # beyond the years that have four digits
        return f"{unix_ms} ms"
    return text[:-6] + "Z"


# Sending again.


class Range(NamedTuple):
    """The messages sent at positions from `first` up to `end`, to one queue or to any."""

    first: int
    end: int
    queue: str | None = None


async def resend(
    engine: Engine, principal: Principal, namespace: str, what: Range, target: str
) -> int:
    """Sends it once more to the queue `target`; returns how many messages.

    In the order in which they were sent; as new messages, without their old schedules. Raises
    Refused or StoreError, with what was sent before that sent.
    """
    batch: list[NewMessage] = []
    size = sent = 0
    end = min(what.end, engine.store.durable)  # messages that this sends are not sent again
    async for frame in engine.store.read(what.first, end):
        for old in payload.contents(payload.entries(frame), moved=False):
            wanted = old.namespace == namespace and what.queue in (None, old.queue)
            if not wanted or not what.first <= old.position < end:
                continue
            new = msgspec.structs.replace(old.message, due_ms=0, expires_ms=0)
            if size + size_bytes(new) > SEND_BYTES_MAX // 8 or len(batch) >= _SEND_MESSAGES:
                sent += await _send(engine, principal, namespace, Send(target, batch))
                batch, size = [], 0
            batch.append(new)
            size += size_bytes(new)
    return sent + await _send(engine, principal, namespace, Send(target, batch))


async def _send(engine: Engine, principal: Principal, namespace: str, command: Send) -> int:
    """Sends messages; returns how many were not duplicates of earlier ones."""
    answer = await engine.ask(principal, namespace, command)
    assert isinstance(answer, Enqueued)
    return len(answer.sequences) - answer.duplicates
