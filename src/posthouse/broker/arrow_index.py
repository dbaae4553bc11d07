"""The index of an Arrow segment, by which its bytes are passed on without being parsed.

An Arrow segment is an Arrow IPC stream, as it goes over the wire: the schema, batches of rows, an
end mark. Behind that is an index, which readers of the stream do not see:

    MessagePack: [length of the schema, [[first position, rows, offset, length] for each batch],
                 length of the stream, CRC-32 of the stream]
    4 bytes      its length, big-endian
    8 bytes      "PHTWIN02"
"""

import zlib
from functools import lru_cache
from pathlib import Path

import msgspec

MAGIC = b"PHTWIN02"
SUFFIX = ".arrow"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_INDEX_BYTES_MAX = 16 << 20


class Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    first: int  # position
    rows: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.first + self.rows


class Index(msgspec.Struct, array_like=True, frozen=True):
    schema_bytes: int
    batches: list[Batch]
    stream_bytes: int
    checksum: int


def arrow_of(segment: Path) -> Path:
    return segment.with_suffix(SUFFIX)


def encode(index: Index) -> bytes:
    data = msgspec.msgpack.encode(index)
    return data + len(data).to_bytes(4, "big") + MAGIC


def checked_index(arrow_segment: Path) -> Index | None:
    """Returns the index, as `read_index` does, or None where the file does not match its checksum.

    The result is cached until the file changes.
    """
    try:
        return _checked(arrow_segment, arrow_segment.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(4_096)
def _checked(arrow_segment: Path, _: int) -> Index | None:
    index = read_index(arrow_segment)
    if index is None:
        return None
    with arrow_segment.open("rb") as file:
        checksum, left = 0, index.stream_bytes
        while left and (data := file.read(min(left, 1 << 20))):
            checksum, left = zlib.crc32(data, checksum), left - len(data)
    return index if not left and checksum == index.checksum else None


def read_index(arrow_segment: Path) -> Index | None:
    """Reads the index; None where there is no Arrow segment that this version has made."""
    try:
        with arrow_segment.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 12))
            tail = file.read(12)
            length = int.from_bytes(tail[:4], "big")
            if tail[4:] != MAGIC or length > min(_INDEX_BYTES_MAX, size):
                return None
            file.seek(size - 12 - length)
            return msgspec.msgpack.decode(file.read(length), type=Index)
    except (OSError, msgspec.DecodeError):
        return None
