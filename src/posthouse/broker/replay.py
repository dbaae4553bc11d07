"""From the journal to the state: what a start, the folding process and a look at the past share."""

from copy import copy

import msgspec

from posthouse.broker import payload
from posthouse.core import evolve
from posthouse.core import namespaces as spaces
from posthouse.core.index import CHUNK
from posthouse.core.mend import mend
from posthouse.core.message import LOCKED
from posthouse.core.model import Queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import (
    Missing,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    Sent,
    encode,
    head,
    span,
)
from posthouse.core.snapshot import restore
from posthouse.store import Snapshot, Snapshots, Store
from posthouse.store.errors import NotThere, Unknown
from posthouse.store.frames import Frame

END = 1 << 63
_MISSING = encode(Missing(1))[:2]


def apply(world: Namespaces, frame: Frame, keep_bytes: int = END) -> int:
    """Evolves a frame's records; returns the bytes of the bodies it keeps in memory.

    When it has kept as much as it may, bodies are left in the journal.
    """
    kept = 0
    for position, namespace, record in payload.entries(frame):
        if isinstance(record, OfNamespaces):
            spaces.evolve(world, record, position)
            continue
        state = world.states[namespace]
        evolve(state, record, position)
        if isinstance(record, Sent):
            if kept + record.size_bytes > keep_bytes:
                put_aside(state.queues[record.queue], record.first_sequence, len(record.messages))
            else:
                kept += record.size_bytes
    return kept


def _is_repaired(frame: Frame) -> bool:
    """Whether something is missing; looking for how such a record begins is quick."""
    if _MISSING not in frame.payload:
        return False
    return any(isinstance(record, Missing) for _, _, record in payload.entries(frame))


def _apply_what_fits(world: Namespaces, frame: Frame) -> None:
    """As `apply`, behind something that a repair found missing. It keeps no bodies."""
    for position, namespace, record in payload.entries(frame):
        if isinstance(record, NamespaceCreated | NamespaceDeleted):
            if (record.name in world.states) == isinstance(record, NamespaceDeleted):
                spaces.evolve(world, record, position)
            continue
        state = world.states.get(namespace)
        if isinstance(record, Missing) or state is None:
            continue
        for part in mend(state, record):
            if not isinstance(part, Missing):
                evolve(state, part, position)
                if isinstance(part, Sent):
                    put_aside(state.queues[part.queue], part.first_sequence, len(part.messages))
            position += span(part)


def put_aside(queue: Queue, first: int, count: int) -> int:
    """Drops the bodies of these messages from memory; returns their bytes.

    A message that somebody was just given keeps its own: the queue gets another in its place. Those
    that are locked are left alone.
    """
    dropped, chunks = 0, queue.messages.chunks
    for sequence in range(first, first + count):
        chunk = chunks.get(sequence // CHUNK)
        message = None if chunk is None else chunk.get(sequence)
        if chunk is None or message is None or message.state == LOCKED:
            continue
        body = message.body
        if isinstance(body, bytes) and body:
            bare = chunk[sequence] = copy(message)
            bare.body = len(body)
            dropped += len(body)
    queue.aside_bytes += dropped
    return dropped


def unfold(snapshot: Snapshot) -> Namespaces:
    """Raises Unknown."""
    try:
        return restore(snapshot.parts)
    except msgspec.DecodeError as error:
        raise Unknown(f"The snapshot up to {snapshot.last.end}", str(error)) from error


async def recover(
    store: Store, snapshots: Snapshots | None, end: int = END, keep_bytes: int = END
) -> Namespaces:
    """The world as it was when all positions below `end` had happened, and nothing else.

    Raises NotThere where neither a snapshot nor the journal goes back far enough, or Unknown.
    """
    snapshot = None if snapshots is None else await snapshots.load(end)
    world = Namespaces() if snapshot is None else unfold(snapshot)
    first = 1 if snapshot is None else snapshot.last.end
    begin = next((extent.first for extent in store.extents()), first)
    if begin > first and end > first:
        raise NotThere(
            f"positions from {first} up to {begin} are gone, and no snapshot that can be read holds"
            " them"
        )
    expected, mending = first, False
    async for frame in store.read(first, end):
        if frame.first > expected:
            raise NotThere(f"positions from {expected} up to {frame.first} were trimmed meanwhile")
        expected = frame.end
        if frame.end > end:
            frame = _cut(frame, end)
        mending = mending or _is_repaired(frame)
        if mending:
            _apply_what_fits(world, frame)
        else:
            keep_bytes -= apply(world, frame, keep_bytes)
    return world


def _cut(frame: Frame, end: int) -> Frame:
    """As much of a frame as lies before a position."""
    kept = [
        (namespace, head(record, end - position))
        for position, namespace, record in payload.entries(frame)
        if position < end
    ]
    return Frame(
        frame.epoch, frame.number, frame.first, end - frame.first, frame.durable, frame.time_ms,
        payload.encode(kept),
    )  # fmt: skip
