"""Compression of frames: gzip always; brotli where its library is there and keeps to a limit."""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from posthouse.dialects.vibemq.malformed import Malformed

UNSQUEEZED_BYTES_MAX = 64 << 20  # of one frame
SQUEEZE_BYTES_MIN = 1_024  # what is smaller is sent as it is
_LEVEL = 1  # most of the gain for a part of the time
_GZIP_WBITS = 31


class Method(NamedTuple):
    name: str  # as it is negotiated
    flag: int  # in front of a frame
    squeeze: Callable[[bytes], bytes]
    unsqueeze: Callable[[bytes], bytes]  # raises Malformed


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, _LEVEL, _GZIP_WBITS)


def _gunzip(data: bytes) -> bytes:
    stream = zlib.decompressobj(_GZIP_WBITS)
    try:
        found = stream.decompress(data, UNSQUEEZED_BYTES_MAX)
    except zlib.error:
        raise Malformed("what is compressed cannot be read") from None
    if not stream.eof or stream.unconsumed_tail or stream.unused_data:
        raise Malformed("what is compressed is too large, or not whole")
    return found


def _brotli() -> Method | None:
    """Only where the library says no more than is asked: else a few bytes could fill the memory."""
    try:
        made: Any = import_module("brotli")
    except ImportError:
        return None

    def unsqueeze(data: bytes) -> bytes:
        stream = made.Decompressor()
        try:
            found: bytes = stream.process(data, output_buffer_limit=UNSQUEEZED_BYTES_MAX)
        except made.error:
            raise Malformed("what is compressed cannot be read") from None
        if not stream.is_finished() or len(found) > UNSQUEEZED_BYTES_MAX:  # it counts in blocks
            raise Malformed("what is compressed is too large, or not whole")
        return found

    def squeeze(data: bytes) -> bytes:
        found: bytes = made.compress(data, quality=_LEVEL)
        return found

    try:
        unsqueeze(squeeze(b"x"))
    except TypeError:  # an old one
        return None
    return Method("brotli", 2, squeeze, unsqueeze)


_found = (Method("gzip", 1, _gzip, _gunzip), _brotli())
METHODS = {each.name: each for each in _found if each is not None}
BY_FLAG = {each.flag: each for each in METHODS.values()}


def agree(offered: str) -> Method | None:
    """The first of those that a client offers, in its order, that there is."""
    for each in offered.split(","):
        method = METHODS.get(each.strip().lower())
        if method is not None:
            return method
    return None
