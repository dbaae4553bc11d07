"""Segments: the files of the journal. Each begins with a header, then come frames, then zeros.

The header is there twice, for a repair: without its salt no frame can be told from noise.

     0   8  magic, "PHJOURNL"
     8   4  checksum: CRC-32 of bytes 12 to 63
    12   4  version of the format
    16   8  position of the first frame
    24   8  number of the first frame
    32   8  size of the file
    40   4  salt: drawn at random; the frames' checksums begin from it
    44  20  zero
    64  64  the same once more

Numbers are unsigned and big-endian. A segment is called `<number of its first frame, 20
digits>.journal`, and has that name only once its header is durable.
"""

import re
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from posthouse.store.errors import Damaged, TooNew
from posthouse.store.frames import HEADER_BYTES, MAGIC, Frame, decode

SEGMENT_MAGIC = b"PHJOURNL"
VERSION = 1
_COPY_BYTES = 64
SEGMENT_HEADER_BYTES = 2 * _COPY_BYTES
SUFFIX = ".journal"
NAME = re.compile(r"\d{20}\.journal")
_INDEX_EVERY = 64 << 10

_HEADER = struct.Struct(">IQQQI20x")


class Header(NamedTuple):
    first: int
    number: int
    size: int
    salt: int

    def begins_with(self, frame: Frame) -> bool:
        return (self.first, self.number) == (frame.first, frame.number)

    def follows(self, last: Frame) -> bool:
        return (self.first, self.number) == (last.end, last.number + 1)


def encode_header(header: Header) -> bytes:
    rest = _HEADER.pack(VERSION, *header)
    return 2 * (SEGMENT_MAGIC + zlib.crc32(rest).to_bytes(4, "big") + rest)


def decode_header(path: Path, data: bytes) -> Header:
    """Raises Damaged or TooNew."""
    header = _decode_copy(path, data[:_COPY_BYTES])
    if data[_COPY_BYTES:SEGMENT_HEADER_BYTES] != data[:_COPY_BYTES]:
        raise Damaged(path, _COPY_BYTES, "the copy of its header differs from it")
    return header


def check_size(path: Path, header: Header, size: int) -> None:
    """Files of segments do not shrink. Raises Damaged."""
    if size < header.size:
        raise Damaged(path, size, f"the file ends here, and was made with {header.size} bytes")


def decode_either_header(path: Path, data: bytes) -> Header:
    """Decodes whichever of the two headers is sound. Raises Damaged or TooNew."""
    try:
        return _decode_copy(path, data[:_COPY_BYTES])
    except Damaged:
        return _decode_copy(path, data[_COPY_BYTES:SEGMENT_HEADER_BYTES])


def _decode_copy(path: Path, data: bytes) -> Header:
    rest = data[12:]
    checksum = int.from_bytes(data[8:12], "big")
    if len(data) < _COPY_BYTES or data[:8] != SEGMENT_MAGIC or zlib.crc32(rest) != checksum:
        raise Damaged(path, 0, "its header is not that of a segment")
    version, *fields = _HEADER.unpack(rest)
    header = Header(*fields)
    if version > VERSION:
        raise TooNew(path, version, VERSION)
    if name(header.number) != path.name:
        raise Damaged(path, 0, f"its name does not fit its first frame, {header.number}")
    return header


def name(number: int) -> str:
    """The file name of the segment whose first frame has this number."""
    return f"{number:020}{SUFFIX}"


class Segment:
    """A segment as the store knows it: its file, its end, and an index of its frames."""

    def __init__(self, path: Path, head: Header, size: int) -> None:
        self.path = path
        self.head = head
        self.first = head.first
        self.size = size
        self.end = head.first  # the position after its last
        self.offset = SEGMENT_HEADER_BYTES  # where the next frame goes
        self.begun_ms = 0  # when its first frame was written
        self.is_known = False  # whether its frames were looked at since the start
        self._positions = array("Q")
        self._offsets = array("Q")

    def note(self, frame: Frame, size_bytes: int) -> None:
        """A frame has been written or found at `offset`."""
        if not self._offsets:
            self.begun_ms = frame.time_ms
        if not self._offsets or self.offset - self._offsets[-1] >= _INDEX_EVERY:
            self._offsets.append(self.offset)  # first: another thread may look for a position
            self._positions.append(frame.first)
        self.offset += size_bytes
        self.end = frame.end
        self.is_known = True

    def take_index(self, found: "Segment") -> None:
        """Takes over what another look at the same file has found."""
        self.offset, self.begun_ms = found.offset, found.begun_ms
        self._positions, self._offsets = found._positions, found._offsets
        self.is_known = True

    def offset_before(self, position: int) -> int:
        """An offset at which a frame begins, at or before the one that holds a position."""
        at = bisect_right(self._positions, position) - 1
        return self._offsets[max(at, 0)] if self._offsets else SEGMENT_HEADER_BYTES


def frames_from(data: bytes, at: int, salt: int) -> Iterator[tuple[int, Frame]]:
    """Yields good frames one behind the other, with their offsets, up to the first bad one."""
    while (frame := decode(data, at, salt)) is not None:
        yield at, frame
        at += frame.size_bytes


def frames_within(data: bytes, at: int, salt: int) -> Iterator[tuple[int, Frame]]:
    """Yields every good frame behind an offset, also behind damage, with its offset."""
    while (at := data.find(MAGIC, at)) >= 0:
        frame = decode(data, at, salt)
        if frame is not None:
            yield at, frame
        at += 1 if frame is None else HEADER_BYTES + len(frame.payload)
