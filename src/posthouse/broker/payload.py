"""The payload of a frame: runs of records, each with the namespace they belong to.

A MessagePack array of pairs [namespace, records]. The empty name stands for records about
namespaces themselves. Positions are given to records in this order, from the frame's first on.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from posthouse.core.message import NewMessage
from posthouse.core.records import Kept, Moved, OfNamespaces, Sent, span
from posthouse.store.errors import Unknown
from posthouse.store.frames import Frame

Record = Kept | OfNamespaces
Entry = tuple[str, Record]
Located = tuple[int, str, Record]  # with its position

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[Kept | OfNamespaces]]])


def encode(entries: Sequence[Entry]) -> bytes:
    runs: list[tuple[str, list[Kept | OfNamespaces]]] = []
    for namespace, record in entries:
        if not runs or runs[-1][0] != namespace:
            runs.append((namespace, []))
        runs[-1][1].append(record)
    return _encoder.encode(runs)


def entries(frame: Frame) -> Iterator[Located]:
    """Every record with its position and namespace. Raises Unknown."""
    position = frame.first
    try:
        runs = _decoder.decode(frame.payload) if frame.payload else []
    except msgspec.DecodeError as error:
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
    """Those in these records; what was written again is there too, unless `moved` is False."""
    for position, namespace, record in located:
        if isinstance(record, Sent):
            first = record.first_sequence
            for at, message in enumerate(record.messages):
                yield Content(position + at, namespace, record.queue, first + at, message)
        elif isinstance(record, Moved) and moved:
            for at, sequence in enumerate(record.sequences):
                message = record.messages[at]
                yield Content(position + at, namespace, record.queue, sequence, message)
