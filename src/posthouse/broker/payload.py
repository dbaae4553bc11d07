"""The payload of a frame: runs of records, each with the namespace they belong to.

A MessagePack array of pairs [namespace, records]. The empty name stands for records about
namespaces themselves. Positions are given to records in this order, from the frame's first on.

It may be compressed. Then it begins with a byte that MessagePack never uses; whatever is set, any
journal can be read:

    c1   codec (1 gzip, 2 zstd)   length of what it was (4 bytes, highest first)   what it became
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from posthouse.core.message import NewMessage
from posthouse.core.records import Kept, MessagesRestored, Moved, OfNamespaces, Sent, span
from posthouse.store.errors import Unknown
from posthouse.store.frames import PAYLOAD_BYTES_MAX, Frame

Record = Kept | OfNamespaces
Entry = tuple[str, Record]
Located = tuple[int, str, Record]  # with its position

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[Kept | OfNamespaces]]])


_MARK = 0xC1
_HEAD_BYTES = 6
GZIP, ZSTD = 1, 2
CODECS = {"gzip": GZIP, "zstd": ZSTD}
_GZIP_LEVEL, _GZIP_BITS = 1, 31  # the quickest; 31: with gzip's head


class Compression(NamedTuple):
    """The way in which payloads are compressed from now on."""

    codec: int
    from_bytes: int = 1_024  # smaller ones are left as they are


def compressed(data: bytes, how: Compression) -> bytes:
    """The data compressed, or unchanged where that is shorter."""
    if len(data) < how.from_bytes:
        return data
    if how.codec == GZIP:
        packed = zlib.compress(data, _GZIP_LEVEL, _GZIP_BITS)
    else:
        packed = _zstd().compress(data, asbytes=True)
    made = bytes((_MARK, how.codec)) + len(data).to_bytes(4, "big") + packed
    return made if len(made) < len(data) else data


def plain(data: bytes) -> bytes:
    """Raises ValueError."""
    if data[:1] != b"\xc1":
        return data
    if len(data) < _HEAD_BYTES:
        raise ValueError("it is cut off")
    codec, length = data[1], int.from_bytes(data[2:_HEAD_BYTES], "big")
    if codec not in (GZIP, ZSTD) or length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"it is compressed in a way ({codec}) that is not known here")
    if codec == ZSTD:
        found: bytes = _zstd().decompress(data[_HEAD_BYTES:], length, asbytes=True)
        return found
    unpacking = zlib.decompressobj(_GZIP_BITS)
    try:
        found = unpacking.decompress(data[_HEAD_BYTES:], length)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) != length or not unpacking.eof:
        raise ValueError("it has another length than it says")
    return found


@cache
def _zstd() -> Any:
    from pyarrow import Codec  # not needed by every start

    return Codec("zstd")


def encode(entries: Sequence[Entry], compression: Compression | None = None) -> bytes:
    runs: list[tuple[str, list[Kept | OfNamespaces]]] = []
    for namespace, record in entries:
        if not runs or runs[-1][0] != namespace:
            runs.append((namespace, []))
        runs[-1][1].append(record)
    data = _encoder.encode(runs)
    return data if compression is None else compressed(data, compression)


def entries(frame: Frame) -> Iterator[Located]:
    """Yields every record with its position and namespace. Raises Unknown."""
    position = frame.first
    try:
        runs = _decoder.decode(plain(frame.payload)) if frame.payload else []
    except (msgspec.DecodeError, ValueError, OSError) as error:  # of which pyarrow's are
        raise Unknown(f"The frame at position {frame.first}", str(error)) from error
    for namespace, records in runs:
        for record in records:
            yield position, namespace, record
            position += span(record)


class Content(NamedTuple):
    """A message as it was written, and what it was written for."""

    position: int
    namespace: str
    queue: str
    sequence: int
    message: NewMessage


def contents(located: Iterable[Located], *, moved: bool = True) -> Iterator[Content]:
    """Yields the contents in these records; moved contents too, unless `moved` is False."""
    for position, namespace, record in located:
        if isinstance(record, Sent):
            first = record.first_sequence
            for at, message in enumerate(record.messages):
                yield Content(position + at, namespace, record.queue, first + at, message)
        elif isinstance(record, MessagesRestored) or (isinstance(record, Moved) and moved):
            for at, sequence in enumerate(record.sequences):
                message = record.messages[at]
                yield Content(position + at, namespace, record.queue, sequence, message)
