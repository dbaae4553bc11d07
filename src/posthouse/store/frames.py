"""Frames: the unit of the journal. One is written for each commit, and counts whole or not at all.

     0   4  magic, "PHF1"
     4   4  checksum: CRC-32 of all that follows, payload included, begun from the segment's salt
     8   4  length of the payload
    12   1  kind: 0 records, 1 closing (a clean stop; no payload)
    13   3  zero
    16   4  epoch: one higher at each start or takeover
    20   4  count of positions
    24   8  number: one higher with each frame
    32   8  first position
    40   8  durable: every position below was synced when this frame was written
    48   8  time, milliseconds since 1970
    56      payload

All numbers are unsigned and big-endian. A frame counts only if its epoch is not lower than that of
the frame before, its number is the next, and its first position is where that frame ended.

The salt is drawn at random for each segment. Without it a sender could put something that looks
like a frame into a message, where a search behind damage would find it.
"""

import struct
import zlib

import msgspec

MAGIC = b"PHF1"
RECORDS, CLOSING = 0, 1
PAYLOAD_BYTES_MAX = 256 << 20

_PREFIX = struct.Struct(">4sII")
_REST = struct.Struct(">B3xIIQQQQ")
HEADER_BYTES = _PREFIX.size + _REST.size


class Frame(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    number: int
    first: int
    count: int
    durable: int
    time_ms: int
    payload: bytes
    kind: int = RECORDS

    @property
    def end(self) -> int:
        """The position after its last."""
        return self.first + self.count

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.payload)

    def without_payload(self) -> "Frame":
        return msgspec.structs.replace(self, payload=b"")

    def follows(self, last: "Frame") -> bool:
        return (
            self.epoch >= last.epoch and self.number == last.number + 1 and self.first == last.end
        )


def encode(frame: Frame, salt: int = 0) -> bytes:
    return encode_header(frame, salt) + frame.payload


def encode_header(frame: Frame, salt: int) -> bytes:
    """Encodes the header of a frame, which comes before its payload."""
    rest = _REST.pack(
        frame.kind, frame.epoch, frame.count, frame.number, frame.first, frame.durable,
        frame.time_ms,
    )  # fmt: skip
    length = len(frame.payload)
    checksum = zlib.crc32(rest, zlib.crc32(length.to_bytes(4, "big"), salt))
    checksum = zlib.crc32(frame.payload, checksum)
    return _PREFIX.pack(MAGIC, checksum, length) + rest


def checksum_of(frame: Frame) -> int:
    """The checksum of a frame, for those who keep its fields one by one."""
    return int.from_bytes(encode_header(frame, 0)[4:8], "big")


def decode_time_ms(data: bytes) -> int:
    """The time at which a frame was written, from its header, which nobody has checked."""
    return int.from_bytes(data[HEADER_BYTES - 8 : HEADER_BYTES], "big")


def decode(data: bytes | memoryview, at: int = 0, salt: int = 0) -> Frame | None:
    """The frame that begins at an offset, or None if no whole, undamaged frame does."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, checksum, length = _PREFIX.unpack_from(data, at)
    end = at + HEADER_BYTES + length
    if magic != MAGIC or length > PAYLOAD_BYTES_MAX or end > len(data):
        return None
    if zlib.crc32(memoryview(data)[at + 8 : end], salt) != checksum:
        return None
    kind, epoch, count, number, first, durable, time_ms = _REST.unpack_from(data, at + _PREFIX.size)
    payload = bytes(memoryview(data)[at + HEADER_BYTES : end])
    return Frame(epoch, number, first, count, durable, time_ms, payload, kind)
