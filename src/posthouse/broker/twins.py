"""Arrow twins: each sealed segment once more, as rows in columns, for the feed.

Written by the folding process beside the segment, as `<number of its first frame>.arrow`, an Arrow
IPC stream with an index behind it; whole or not at all. It goes when its segment goes. Whatever is
missing can be made again from the segment, so a twin need not be durable.

PyArrow is imported here and by the clerk, never in the process that serves.
"""

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import astuple

from posthouse.broker import payload
from posthouse.broker.rows import Row, rows
from posthouse.broker.twin_index import END_OF_STREAM, SUFFIX, Batch, Index, encode, twin_of
from posthouse.store.frames import Frame

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20

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
    some: list[Row] = []
    size = 0
    for frame in frames:
        for row in rows(payload.entries(frame), frame.time_ms):
            some.append(row)
            size += 256 + len(row.body or b"") + len(row.native or b"") + len(row.properties or "")
            if len(some) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _batch(some)
                some, size = [], 0
    if some:
        yield _batch(some)


def _batch(some: Sequence[Row]) -> pa.RecordBatch:
    values = zip(*map(astuple, some), strict=True)
    columns = [_column(each, field.type) for each, field in zip(values, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _column(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    """Most columns have the same in every row, or nothing in any."""
    first = values[0]
    if values.count(first) == len(values):
        return (
            pa.nulls(len(values), kind)
            if first is None
            else pa.repeat(pa.scalar(first, kind), len(values))
        )
    return pa.array(values, kind)


def write_twin(segment: Path, frames: Iterable[Frame]) -> None:
    """Raises OSError."""
    unfinished = segment.with_suffix(SUFFIX + "-new")
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as raw:
        schema = SCHEMA.serialize()
        raw.write(schema)
        checksum = zlib.crc32(schema)
        places = []
        for each in batches(frames):
            message = each.serialize()
            first = each.column(0)[0].as_py()
            places.append(Batch(first, each.num_rows, raw.tell(), message.size))
            raw.write(message)
            checksum = zlib.crc32(message, checksum)
        raw.write(END_OF_STREAM)
        checksum = zlib.crc32(END_OF_STREAM, checksum)
        raw.write(encode(Index(schema.size, places, raw.tell(), checksum)))
        raw.flush()
        os.fsync(raw.fileno())
    unfinished.rename(twin_of(segment))


def read_batch(mapped: pa.MemoryMappedFile, place: Batch) -> pa.RecordBatch:
    """One batch of a twin."""
    return pa.ipc.read_record_batch(mapped.read_at(place.length, place.offset), SCHEMA)
