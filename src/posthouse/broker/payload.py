"""The payload of a frame: runs of records, each with the namespace they belong to.

A MessagePack array of pairs [namespace, records]. The empty name stands for records about
namespaces themselves. Positions are given to records in this order, from the frame's first on.
"""

from collections.abc import Iterator, Sequence

import msgspec

from posthouse.core.records import Kept, OfNamespaces

Entry = tuple[str, Kept | OfNamespaces]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[Kept | OfNamespaces]]])


def encode(entries: Sequence[Entry]) -> bytes:
    runs: list[tuple[str, list[Kept | OfNamespaces]]] = []
    for namespace, record in entries:
        if not runs or runs[-1][0] != namespace:
            runs.append((namespace, []))
        runs[-1][1].append(record)
    return _encoder.encode(runs)


def decode(payload: bytes) -> Iterator[Entry]:
    """Raises msgspec.DecodeError for what this version does not know."""
    for namespace, records in _decoder.decode(payload):
        for record in records:
            yield namespace, record
