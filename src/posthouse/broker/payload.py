"""The payload of a frame: runs of records, each with the namespace they belong to.

A MessagePack array of pairs [namespace, records]. The empty name stands for records about
namespaces themselves. Positions are given to records in this order, from the frame's first on.
"""

from collections.abc import Iterator, Sequence

import msgspec

from posthouse.core.message import NewMessage
from posthouse.core.records import Kept, Moved, OfNamespaces, Sent, span
from posthouse.store.errors import Unknown
from posthouse.store.frames import Frame

Record = Kept | OfNamespaces
Entry = tuple[str, Record]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[Kept | OfNamespaces]]])


def encode(entries: Sequence[Entry]) -> bytes:
    runs: list[tuple[str, list[Kept | OfNamespaces]]] = []
    for namespace, record in entries:
        if not runs or runs[-1][0] != namespace:
            runs.append((namespace, []))
        runs[-1][1].append(record)
    return _encoder.encode(runs)


def entries(frame: Frame) -> Iterator[tuple[int, str, Kept | OfNamespaces]]:
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


def contents(
    frame: Frame, *, moved: bool = True
) -> Iterator[tuple[int, str, str, int, NewMessage]]:
    """Every content: position, namespace, and the queue and sequence it was written for.

    Those that were written again are there too, unless `moved` is False.
    """
    for position, namespace, record in entries(frame):
        if isinstance(record, Sent):
            for at, message in enumerate(record.messages):
                yield position + at, namespace, record.queue, record.first_sequence + at, message
        elif isinstance(record, Moved) and moved:
            for at, sequence in enumerate(record.sequences):
                yield position + at, namespace, record.queue, sequence, record.messages[at]
