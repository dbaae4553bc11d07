"""A feed worker: a process that reads the journal for whoever looks at the past, and writes it out.

So that no reader ever holds up the writer, and PyArrow stays out of the serving process. It takes
one request a line on its standard input, and answers with chunks: a length of 4 bytes, then that
many bytes; length 0 ends an answer, 0xFFFFFFFF is followed by one more chunk that says what went
wrong, and then it ends.

    python -m posthouse.server.feed_worker
"""

import asyncio
import gc
import io
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from posthouse.broker import payload
from posthouse.broker.access import fits
from posthouse.broker.arrow_index import END_OF_STREAM, Index, arrow_of, checked_index
from posthouse.broker.past import Event, Place, find, life
from posthouse.broker.rows import COLUMNS, Row, rows, runs
from posthouse.store.errors import NotThere, StoreError
from posthouse.store.frames import Frame
from posthouse.store.opening import Frames, open_frames, parse_url
from posthouse.store.reading import END, Reading
from posthouse.store.segments import frames_from

if TYPE_CHECKING:
    import pyarrow as pa

FAILED = 0xFFFFFFFF
_INNER = "/$"  # within the names of queues that belong to another
CHUNK_BYTES = 256 << 10
GARBAGE = 100_000  # lists and so on that are made before it is looked for; 700 is for longer lives


class Wanted(msgspec.Struct, frozen=True):
    """A selection of the feed: positions from `first` up to `end`, and filters on their rows."""

    first: int
    end: int
    arrow: bool = False
    namespace: str | None = None
    entity: str | None = None
    kinds: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # none: all
    bare: bool = False  # batches alone, to be put into a stream
    entities: tuple[str, ...] = ()  # names, or patterns with *
    target: str | None = None

    @property
    def is_whole(self) -> bool:
        return not (self.exactly or self.entities or self.kinds)

    @property
    def exactly(self) -> dict[str, str]:
        """The values that columns must have."""
        said = {"namespace": self.namespace, "entity": self.entity, "target": self.target}
        return {name: value for name, value in said.items() if value is not None}

    def fits(self, row: Row) -> bool:
        return self.first <= row.position < self.end and self.is_such(row)

    def is_such(self, row: Row) -> bool:
        """Whether a row passes the filters, wherever it is."""
        return (
            (self.namespace is None or row.namespace == self.namespace)
            and (self.entity is None or row.entity == self.entity)
            and (self.target is None or row.target == self.target)
            and (not self.kinds or row.kind in self.kinds)
            and (not self.entities or self.has(row.entity))
        )

    def has(self, entity: str | None) -> bool:
        """Whether it is one of the entities. * stands for no part of a name that begins with /$:
        dead-letter queues and subscriptions are had by patterns that name such a part."""
        return entity is not None and any(
            fits(each, entity) and (_INNER in each or _INNER not in entity)
            for each in self.entities
        )


class Lives(msgspec.Struct, frozen=True):
    """A request for the lives of messages: those with an id, or one by its queue and number."""

    namespace: str
    end: int
    id: str | None = None
    queue: str = ""
    sequence: int = 0


class Ask(msgspec.Struct, frozen=True):
    """One request. The journal is a folder, a store of another kind, or a file of frames."""

    folder: str | None = None
    store: str | None = None  # its name, with secrets
    spool: str | None = None
    feed: Wanted | None = None
    count: Wanted | None = None
    most: int = 0  # rows, after which counting ends
    lives: Lives | None = None


class Failure(msgspec.Struct, frozen=True):
    """The error of a request that failed."""

    gone: bool  # it was trimmed, or never there
    text: str


class _Out(io.RawIOBase):
    """Standard output, in chunks. What is still in a buffer when it is `dead` goes nowhere."""

    dead = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(data)
        if size and not self.dead:
            _write(size.to_bytes(4, "big"), data)
        return size


def _write(*parts: bytes) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


class Spool:
    """A file of frames, from a journal that is not in files."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()

    def all_frames(self, first: int, end: int) -> Iterator[Frame]:
        for _, frame in frames_from(self._data, 0, 0):
            if frame.end > first and frame.first < end:
                yield frame


class _Bounded:
    """A journal up to a position: what is behind it may not be durable."""

    def __init__(self, journal: Frames, end: int) -> None:
        self._journal = journal
        self._end = end

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        for frame in self._journal.all_frames(first, min(end, self._end)):
            yield frame


class JournalReader:
    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}
        self._stores: dict[str, Frames] = {}

    def answer(self, ask: Ask, out: IO[bytes]) -> None:
        """Raises StoreError or OSError."""
        journal: Frames
        if ask.spool is not None:
            journal = Spool(Path(ask.spool))
        elif ask.store is not None:
            if ask.store not in self._stores:
                self._stores[ask.store] = open_frames(parse_url(ask.store))
            journal = self._stores[ask.store]
        else:
            assert ask.folder is not None
            journal = self._readings.setdefault(ask.folder, Reading(Path(ask.folder)))
        if ask.lives is not None:
            out.write(asyncio.run(_lives(_Bounded(journal, ask.lives.end), ask.lives)))
        elif ask.count is not None:
            out.write(msgspec.json.encode(_counted(journal, ask.count, ask.most)))
        elif ask.feed is not None and ask.feed.arrow:
            _write_arrow(journal, ask.feed, out)
        elif ask.feed is not None:
            for line in _lines(journal, ask.feed):
                out.write(line)


async def _lives(journal: _Bounded, wanted: Lives) -> bytes:
    places = [Place(wanted.queue, wanted.sequence)]
    if wanted.id is not None:
        places = await find(journal, wanted.namespace, wanted.id)
    found: list[tuple[str, int, list[Event]]] = [
        (place.queue, place.sequence, await life(journal, wanted.namespace, place))
        for place in places
    ]
    return msgspec.json.encode(found)


# The feed.


def _rows(frames: Iterable[Frame], wanted: Wanted) -> Iterator[Row]:
    for frame in frames:
        for row in rows(payload.entries(frame), frame.time_ms):
            if wanted.fits(row):
                yield row


def _lines(journal: Frames, wanted: Wanted) -> Iterator[bytes]:
    """Newline-delimited JSON. Nulls are left out; a body that is not text is in `body_base64`."""
    encoder = msgspec.json.Encoder()
    names = wanted.columns or COLUMNS
    for row in _rows(journal.all_frames(wanted.first, wanted.end), wanted):
        line = {name: value for name in names if (value := getattr(row, name)) is not None}
        for name in ("body", "native"):
            if name in line:
                _as_text(line, name)
        for name in ("properties", "detail"):
            if name in line:
                line[name] = msgspec.Raw(line[name].encode())
        yield encoder.encode(line) + b"\n"


def _as_text(line: dict[str, Any], name: str) -> None:
    try:
        line[name] = line[name].decode()
    except UnicodeDecodeError:
        line[f"{name}_base64"] = line.pop(name)  # msgspec writes bytes so


def _write_arrow(journal: Frames, wanted: Wanted, out: IO[bytes]) -> None:
    import pyarrow as pa

    from posthouse.broker.arrow_segments import SCHEMA

    names = wanted.columns or COLUMNS
    schema = pa.schema([SCHEMA.field(name) for name in names])
    if not wanted.bare:
        out.write(schema.serialize())
    for batch in _batches(journal, wanted):
        if batch.num_rows:
            out.write(batch.select(list(names)).serialize())
    if not wanted.bare:
        out.write(END_OF_STREAM)


def _batches(journal: Frames, wanted: Wanted) -> "Iterator[pa.RecordBatch]":
    """Yields batches from Arrow segments where there are any, else from the frames."""
    from posthouse.broker.arrow_segments import batches

    for found in _parts(journal, wanted):
        if isinstance(found, _Sealed):
            yield from (_cut(batch, wanted) for batch in found.batches(wanted))
        else:
            yield from (_cut(batch, wanted) for batch in batches(found))


class _Sealed:
    """A segment that is there as an Arrow segment."""

    def __init__(self, arrow_segment: Path, index: Index) -> None:
        self._arrow_segment = arrow_segment
        self._index = index

    def batches(self, wanted: Wanted) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from posthouse.broker.arrow_segments import read_batch

        with pa.memory_map(str(self._arrow_segment)) as mapped:
            for place in self._index.batches:
                if place.end > wanted.first and place.first < wanted.end:
                    yield read_batch(mapped, place)


def _parts(journal: Frames, wanted: Wanted) -> "Iterator[_Sealed | Iterable[Frame]]":
    """Yields the segments of a range in their order: as Arrow segments, or as their frames."""
    if not isinstance(journal, Reading):
        yield journal.all_frames(wanted.first, wanted.end)
        return
    for segment, following in journal.with_ends():
        if following <= wanted.first or segment.first >= wanted.end:
            continue
        arrow_segment = arrow_of(segment.path)
        index = checked_index(arrow_segment) if following < END else None
        if index is not None:
            yield _Sealed(arrow_segment, index)
        else:
            yield journal.frames(segment, wanted.first, min(wanted.end, following))


def _cut(batch: "pa.RecordBatch", wanted: Wanted) -> "pa.RecordBatch":
    """Cuts a batch to the positions, rows and columns that are wanted. Positions have no gaps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = batch.column("position")[0].as_py()
    begin = max(0, wanted.first - first)
    batch = batch.slice(begin, max(0, wanted.end - first - begin))
    if wanted.is_whole:
        return batch
    masks = [pc.equal(batch.column(name), value) for name, value in wanted.exactly.items()]
    if wanted.kinds:
        masks.append(pc.is_in(batch.column("kind"), pa.array(wanted.kinds)))
    if wanted.entities:
        entities = batch.column("entity")
        chosen = [each for each in entities.unique().to_pylist() if wanted.has(each)]
        masks.append(pc.is_in(entities, pa.array(chosen, pa.string())))
    mask = masks[0]
    for each in masks[1:]:
        mask = pc.and_(mask, each)
    if wanted.columns:  # what nobody asked for need not be copied
        batch = batch.select([name for name in COLUMNS if name in wanted.columns])
    return batch.filter(mask)


def _counted(journal: Frames, wanted: Wanted, most: int) -> dict[str, int]:
    """Counts rows, `most` of them at most, and says up to which position."""
    found = 0
    for part in _parts(journal, wanted):
        if isinstance(part, _Sealed):
            for batch in part.batches(wanted):
                positions = _cut(batch, wanted).column("position")
                if found + len(positions) >= most:
                    return {"rows": most, "next": positions[most - found - 1].as_py()}
                found += len(positions)
            continue
        for frame in part:
            for row, length in runs(payload.entries(frame)):
                first = max(row.position, wanted.first)
                count = min(row.position + length, wanted.end) - first
                if count <= 0 or not wanted.is_such(row):
                    continue
                if found + count >= most:
                    return {"rows": most, "next": first + most - found - 1}
                found += count
    return {"rows": found, "next": wanted.end - 1}


def main() -> int:
    os.nice(10)
    gc.set_threshold(GARBAGE)
    reader, decoder = JournalReader(), msgspec.json.Decoder(Ask)
    for line in sys.stdin.buffer:
        raw = _Out()
        out = io.BufferedWriter(raw, CHUNK_BYTES)
        try:
            reader.answer(decoder.decode(line), out)
            out.flush()
        except (StoreError, OSError) as error:
            raw.dead = True
            failure = msgspec.json.encode(Failure(isinstance(error, NotThere), str(error)))
            _write(FAILED.to_bytes(4, "big"), len(failure).to_bytes(4, "big"), failure)
            return 1  # the next one begins with nothing of this
        _write(bytes(4))
    return 0


if __name__ == "__main__":
    sys.exit(main())
