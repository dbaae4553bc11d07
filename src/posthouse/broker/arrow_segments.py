"""Arrow segments: each sealed segment once more, as rows in columns, for the feed.

Written by the folding process beside the segment, as `<number of its first frame>.arrow`, an Arrow
IPC stream with an index behind it; whole or not at all. It goes when its segment goes. Whatever is
missing can be made again from the segment, so an Arrow segment need not be durable.

PyArrow is imported here and by the feed worker, never in the process that serves.
"""

import errno
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import astuple

from posthouse.broker import payload
from posthouse.broker.arrow_index import END_OF_STREAM, SUFFIX, Batch, Index, arrow_of, encode
from posthouse.broker.rows import SOME, Row, columns, rows
from posthouse.core.records import Completed, Locked, Sent
from posthouse.store.disk import Disk
from posthouse.store.frames import Frame

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20
_MANY, _SMALL_BYTES = 8, 4_096  # messages of one record, and how small those are that are sent

_MS = pa.timestamp("ms", "UTC")
_TYPES = {"time": _MS, "due": _MS, "expires": _MS, "until": _MS, "body": pa.binary(),
          "native": pa.binary(), "position": pa.int64(), "sequence_number": pa.int64(),
          "delivery_count": pa.int32(), "priority": pa.int8(), "ttl_ms": pa.int64(),
          "receiver": pa.int64(), "target_sequence_number": pa.int64(), "waited_ms": pa.int64(),
          "settled_ms": pa.int64()}  # fmt: skip
_NEVER_NULL = ("position", "time", "kind")
SCHEMA = pa.schema(
    [
        pa.field(name, _TYPES.get(name, pa.string()), nullable=name not in _NEVER_NULL)
        for name in Row.__struct_fields__
    ]
)


def batches(frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
    """The rows of these frames, in batches that are neither long nor large."""
    some = _Columns()
    for frame in frames:
        for position, namespace, record in payload.entries(frame):
            if isinstance(record, Sent | Locked | Completed) and (many := _many(record)):
                for first in range(0, many, SOME):
                    some.add(columns(position, frame.time_ms, namespace, record, first))
                    if some.is_full:
                        yield some.batch()
                        some = _Columns()
                continue
            for row in rows([(position, namespace, record)], frame.time_ms):
                some.append(row)
                if some.is_full:
                    yield some.batch()
                    some = _Columns()
    if some.count:
        yield some.batch()


def _many(record: Sent | Locked | Completed) -> int:
    """The number of its messages, where they are worth being read by columns; else 0."""
    if isinstance(record, Sent):
        count = len(record.messages)
        return count if record.size_bytes < count * _SMALL_BYTES and count >= _MANY else 0
    return len(record.sequences) if len(record.sequences) >= _MANY else 0


class _Columns:
    """A batch as it grows."""

    def __init__(self) -> None:
        self.count = 0
        self._size = 0
        self._columns: list[list[Any]] = [[] for _ in SCHEMA]
        self._rows: list[Row] = []  # that are not among the columns yet

    @property
    def is_full(self) -> bool:
        return self.count >= BATCH_ROWS or self._size >= BATCH_BYTES

    def append(self, row: Row) -> None:
        self._rows.append(row)
        self.count += 1
        self._size += 256 + _bytes(row.body) + _bytes(row.native) + _bytes(row.properties)

    def add(self, columns: dict[str, Sequence[Any]]) -> None:
        self._take_rows()
        count = len(columns["position"])
        nothing = [None] * count
        for name, column in zip(Row.__struct_fields__, self._columns, strict=True):
            column += columns.get(name, nothing)
        self.count += count
        large = (columns.get(name, ()) for name in ("body", "native", "properties"))
        self._size += 256 * count + sum(sum(map(len, filter(None, each))) for each in large)

    def batch(self) -> pa.RecordBatch:
        self._take_rows()
        columns = [_column(each, of.type) for each, of in zip(self._columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _take_rows(self) -> None:
        if self._rows:
            values = zip(*map(astuple, self._rows), strict=True)
            for column, more in zip(self._columns, values, strict=True):
                column += more
            self._rows = []


def _bytes(value: bytes | str | None) -> int:
    return len(value) if value else 0


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Makes a column, quickly where all rows have the same value or none, as in most."""
    first = values[0]
    if values.count(first) == len(values):
        return (
            pa.nulls(len(values), kind)
            if first is None
            else pa.repeat(pa.scalar(first, kind), len(values))
        )
    return pa.array(values, kind)


def write_arrow_segment(segment: Path, frames: Iterable[Frame], free: int = 0) -> None:
    """Leaves so many bytes of the disk free: it may be many times as large as its segment.

    Raises OSError, and leaves nothing behind then.
    """
    unfinished = segment.with_suffix(SUFFIX + "-new")
    try:
        _write(unfinished, frames, free)
        unfinished.rename(arrow_of(segment))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _write(unfinished: Path, frames: Iterable[Frame], free: int) -> None:
    disk = Disk()
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "wb") as raw:
        schema = SCHEMA.serialize()
        raw.write(schema)
        checksum = zlib.crc32(schema)
        places = []
        for each in batches(frames):
            message = each.serialize()
            if disk.free(unfinished.parent) < free + message.size:
                raise OSError(errno.ENOSPC, "the disk has no room for an Arrow segment")
            first = each.column(0)[0].as_py()
            places.append(Batch(first, each.num_rows, raw.tell(), message.size))
            raw.write(message)
            checksum = zlib.crc32(message, checksum)
        raw.write(END_OF_STREAM)
        checksum = zlib.crc32(END_OF_STREAM, checksum)
        raw.write(encode(Index(schema.size, places, raw.tell(), checksum)))
        raw.flush()
        os.fsync(raw.fileno())


def read_batch(mapped: pa.MemoryMappedFile, place: Batch) -> pa.RecordBatch:
    """Reads one batch of an Arrow segment."""
    return pa.ipc.read_record_batch(mapped.read_at(place.length, place.offset), SCHEMA)
