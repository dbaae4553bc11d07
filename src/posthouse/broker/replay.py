"""Replay of the journal into the state, shared by start, fold process and looks at the past."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy

import msgspec

from posthouse.broker import payload
from posthouse.core import evolve
from posthouse.core import namespaces as spaces
from posthouse.core.fit_record import fit_record
from posthouse.core.index import CHUNK
from posthouse.core.message import LOCKED, Message, size_bytes
from posthouse.core.model import Queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import (
    MessagesRestored,
    Missing,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    Sent,
    head,
    span,
)
from posthouse.core.snapshot import restore
from posthouse.store import Snapshot, Snapshots, Store
from posthouse.store.errors import NotThere, Unknown
from posthouse.store.frames import Frame

END = 1 << 63
_TELL_SECONDS = 0.05

Progress = Callable[[int], None]


class Replay:
    """A world, and frames that are made so in it, one after the other.

    Behind something that a repair found missing, records may speak of what is not there; from then
    on only what fits is made so.
    """

    def __init__(self, world: Namespaces) -> None:
        self.world = world
        self._has_gaps = False

    def apply(self, frame: Frame, keep_bytes: int = END) -> int:
        """Evolves a frame's records; returns the bytes of the bodies it keeps in memory.

        When it has kept as much as it may, bodies are left in the journal.
        """
        kept = 0
        for _, namespace, record in self.evolved(frame):
            if isinstance(record, Sent | MessagesRestored):
                size = body_bytes(record)
                if kept + size > keep_bytes:
                    evict_sent(self.world, namespace, record)
                else:
                    kept += size
        return kept

    def evolved(self, frame: Frame) -> Iterator[payload.Located]:
        """Makes a frame's records so, and gives each when it is."""
        for position, namespace, record in payload.entries(frame):
            self._has_gaps = self._has_gaps or isinstance(record, Missing)
            if not self._has_gaps:
                make_so(self.world, namespace, record, position)
                yield position, namespace, record
                continue
            for part in fitting(self.world, namespace, record):
                make_so(self.world, namespace, part, position)
                yield position, namespace, part
                position += span(part)


def make_so(world: Namespaces, namespace: str, record: payload.Record, position: int) -> None:
    if isinstance(record, OfNamespaces):
        spaces.evolve(world, record, position)
    else:
        evolve(world.states[namespace], record, position)


def fitting(world: Namespaces, namespace: str, record: payload.Record) -> Sequence[payload.Record]:
    """Records that cover the same positions and fit the world, whatever is missing before."""
    if isinstance(record, NamespaceCreated | NamespaceDeleted):
        fits = (record.name in world.states) == isinstance(record, NamespaceDeleted)
        return [record if fits else Missing(1)]
    if isinstance(record, OfNamespaces):  # nothing has to be there for the rest of them
        return [record]
    state = world.states.get(namespace)
    if state is None:
        return [Missing(span(record))]
    return fit_record(state, record)


def body_bytes(record: Sent | MessagesRestored) -> int:
    """The bytes of the messages in a record."""
    if isinstance(record, Sent):
        return record.size_bytes
    return sum(map(size_bytes, record.messages))


def evict_sent(world: Namespaces, namespace: str, record: Sent | MessagesRestored) -> None:
    queue = world.states[namespace].queues[record.queue]
    if isinstance(record, Sent):
        first = record.first_sequence
        evict(queue, range(first, first + len(record.messages)))
    else:
        evict(queue, record.sequences)


def evict(queue: Queue, sequences: Sequence[int]) -> int:
    """Drops the bodies of these messages from memory; returns their bytes.

    A message that somebody was just given keeps its own: the queue gets another in its place. Those
    that are locked are left alone.
    """
    dropped, chunks = 0, queue.messages.chunks
    for sequence in sequences:
        chunk = chunks.get(sequence // CHUNK)
        message = None if chunk is None else chunk.get(sequence)
        if chunk is None or message is None or message.state == LOCKED:
            continue
        body = message.body
        if isinstance(body, bytes) and body:
            bare = chunk[sequence] = copy(message)
            bare.body = len(body)
            dropped += len(body)
    queue.evicted_bytes += dropped
    return dropped


async def bodies_of(store: Store, messages: Sequence[Message]) -> list[bytes]:
    """The bodies of the messages: from memory, or from the journal where they are evicted."""
    evicted = [message.position for message in messages if isinstance(message.body, int)]
    found: dict[int, bytes] = {}
    for frame in {f.number: f for f in await store.get(evicted)}.values():
        contents = payload.contents(payload.entries(frame))
        found |= {content.position: content.message.body for content in contents}
    return [m.body if isinstance(m.body, bytes) else found[m.position] for m in messages]


def unfold(snapshot: Snapshot) -> Namespaces:
    """Raises Unknown."""
    try:
        return restore(snapshot.parts)
    except msgspec.DecodeError as error:
        raise Unknown(f"The snapshot up to {snapshot.last.end}", str(error)) from error


async def recover(
    store: Store,
    snapshots: Snapshots | None,
    end: int = END,
    keep_bytes: int = END,
    progress: Progress | None = None,
) -> Namespaces:
    """The world as it was when all positions below `end` had happened, and nothing else.

    Raises NotThere where neither a snapshot nor the journal goes back far enough, or Unknown.
    """
    snapshot = None if snapshots is None else await snapshots.load(end)
    replay = Replay(Namespaces() if snapshot is None else unfold(snapshot))
    first = 1 if snapshot is None else snapshot.last.end
    begin = next((extent.first for extent in store.extents()), first)
    if begin > first and end > first:
        raise NotThere(
            f"positions from {first} up to {begin} are gone, and no snapshot that can be read holds"
            " them"
        )
    expected = first
    due = time.monotonic() + _TELL_SECONDS
    async for frame in store.read(first, end):
        if frame.first > expected:
            raise NotThere(f"positions from {expected} up to {frame.first} were trimmed meanwhile")
        expected = frame.end
        if frame.end > end:
            frame = _cut(frame, end)
        keep_bytes -= replay.apply(frame, keep_bytes)
        if progress is not None and time.monotonic() > due:
            progress(frame.end)
            await asyncio.sleep(0)  # whoever asks meanwhile is answered
            due = time.monotonic() + _TELL_SECONDS
    return replay.world


def _cut(frame: Frame, end: int) -> Frame:
    """The part of a frame that lies before a position."""
    kept = [
        (namespace, head(record, end - position))
        for position, namespace, record in payload.entries(frame)
        if position < end
    ]
    return Frame(
        frame.epoch, frame.number, frame.first, end - frame.first, frame.durable, frame.time_ms,
        payload.encode(kept),
    )  # fmt: skip
