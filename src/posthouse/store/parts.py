"""Snapshots in a system that keeps values by keys: a header, and parts by their numbers.

A part is stored behind its CRC-32 (4 bytes). The header is stored last, so that a snapshot without
one is unfinished:

     0   4  checksum: CRC-32 of all that follows
     4   4  version of the format
     8   8  position: it holds everything below
    16   8  number of the last frame in it
    24   8  time of that frame, milliseconds since 1970
    32   4  epoch of that frame
    36   4  count of parts
    40   4  CRC-32 of all the parts' checksums

Numbers are unsigned and big-endian.
"""

import contextlib
import logging
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from posthouse.store import Snapshot
from posthouse.store.errors import Damaged, TooNew
from posthouse.store.frames import Frame
from posthouse.store.snapshots import KEPT, PART_BYTES_MAX

_log = logging.getLogger(__name__)

VERSION = 1
_REST = struct.Struct(">IQQQIII")
_CHECKSUM_BYTES = 4
HEADER_BYTES = _CHECKSUM_BYTES + _REST.size


class Parts(Protocol):
    """Headers and parts of snapshots by the positions at which they end."""

    def headers(self) -> dict[int, bytes]:
        """All headers there are."""

    def put_header(self, end: int, header: bytes) -> None:
        """Stores a header durably, and with it all parts that were stored before."""

    def part(self, end: int, number: int) -> bytes | None:
        """One part, or None where it is missing."""

    def put_part(self, end: int, number: int, part: bytes) -> None:
        """Stores one part."""

    def remove(self, keep: set[int]) -> None:
        """Removes all headers and parts but those of these positions."""


class _Header(NamedTuple):
    last: Frame
    parts: int
    checksum: int


class PartSnapshots:
    """Snapshots made of parts. `positions` is as `load`, `save` or `whole` has last found it."""

    def __init__(self, name: str, parts: Parts) -> None:
        self._name, self._parts = name, parts
        self._ends = sorted(parts.headers(), reverse=True)

    def positions(self) -> list[int]:
        return self._ends

    def whole(self) -> list[int]:
        return [last.end for last in self._whole()][:KEPT]

    def _whole(self) -> Iterator[Frame]:
        for end, header in self._headers():
            with contextlib.suppress(Damaged):
                yield self._check(end, header)

    def _headers(self) -> list[tuple[int, bytes]]:
        """The newest first."""
        found = sorted(self._parts.headers().items(), reverse=True)
        self._ends = [end for end, _ in found]
        return found

    async def save(self, snapshot: Snapshot) -> None:
        last, parts = snapshot.last, self._parts
        parts.remove({end for end, _ in self._headers() if end != last.end})  # what is unfinished
        count = whole = 0
        for part in snapshot.parts:
            checksum = zlib.crc32(part).to_bytes(_CHECKSUM_BYTES, "big")
            whole = zlib.crc32(checksum, whole)
            parts.put_part(last.end, count, checksum + part)
            count += 1
        rest = _REST.pack(VERSION, last.end, last.number, last.time_ms, last.epoch, count, whole)
        parts.put_header(last.end, zlib.crc32(rest).to_bytes(_CHECKSUM_BYTES, "big") + rest)
        whole_ends = self.whole()
        least = min(whole_ends) if len(whole_ends) >= KEPT else 0
        parts.remove({end for end in self._ends if end >= least})
        self._headers()

    async def load(self, end: int) -> Snapshot | None:
        for at, header in self._headers():
            if at > end:
                continue
            try:
                last = self._check(at, header)
            except Damaged as damaged:
                _log.warning("%s An older snapshot serves, with more of the journal.", damaged)
            else:
                return Snapshot(last, _Read(self, at, header))
        return None

    def _check(self, end: int, data: bytes) -> Frame:
        """Reads all of it. Raises Damaged or TooNew."""
        for _ in self.parts(end, data):
            pass
        return self._header(end, data).last

    def _header(self, end: int, data: bytes) -> _Header:
        rest = data[_CHECKSUM_BYTES:]
        checksum = int.from_bytes(data[:_CHECKSUM_BYTES], "big")
        if len(data) != HEADER_BYTES or zlib.crc32(rest) != checksum:
            raise self._damaged(end, "its header is not that of a snapshot")
        version, at, number, time_ms, epoch, parts, whole = _REST.unpack(rest)
        if version > VERSION:
            raise TooNew(self._name, version, VERSION)
        if at != end:
            raise self._damaged(end, f"its header is that of the snapshot up to {at}")
        return _Header(Frame(epoch, number, end, 0, end, time_ms, b""), parts, whole)

    def parts(self, end: int, data: bytes) -> Iterator[bytes]:
        """Raises Damaged."""
        header, whole = self._header(end, data), 0
        for number in range(header.parts):
            part = self._parts.part(end, number) or b""
            checksum, content = part[:_CHECKSUM_BYTES], part[_CHECKSUM_BYTES:]
            is_sound = zlib.crc32(content) == int.from_bytes(checksum, "big")
            if not checksum or len(content) > PART_BYTES_MAX or not is_sound:
                raise self._damaged(end, f"part {number} is not what was written")
            whole = zlib.crc32(checksum, whole)
            yield content
        if whole != header.checksum:
            raise self._damaged(end, "its parts are not those that were written")

    def _damaged(self, end: int, what: str) -> Damaged:
        return Damaged(self._name, end, what, unit="the snapshot up to")


class _Read:
    """The parts of a snapshot, read each time they are iterated."""

    def __init__(self, snapshots: PartSnapshots, end: int, header: bytes) -> None:
        self._snapshots, self._end, self._header = snapshots, end, header

    def __iter__(self) -> Iterator[bytes]:
        return self._snapshots.parts(self._end, self._header)
