"""Compression of frames: gzip always; brotli where its library is there and keeps to a limit.

Nothing is unpacked beyond what a frame may hold: a frame of 121 bytes can stand for 64 MiB. What
takes long is done in a thread, while the connection waits.
"""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from posthouse.dialects.vibemq.malformed import Malformed

SQUEEZE_BYTES_MIN = 1_024  # what is smaller is sent as it is
AT_ONCE_BYTES_MAX = 256 << 10  # that are packed or unpacked on the event loop
RATIO_MAX = 100  # how many times its size something may be unpacked,
RATIO_SPARE_BYTES = 64 << 10  # and so much more
_LEVEL = 1  # most of the gain for a part of the time
_GZIP_WBITS = 31


class Unsqueezing(Protocol):
    """Something that is being unpacked, part by part."""

    is_done: bool

    def more(self, most_bytes: int) -> bytes:
        """About so many bytes at most. Raises Malformed."""


class Method(NamedTuple):
    name: str  # as it is negotiated
    flag: int  # in front of a frame
    squeeze: Callable[[bytes], bytes]
    unsqueezing: Callable[[bytes], Unsqueezing]


class Squeezed:
    """A body that is compressed. Where it is large, `open` is to be called in a thread."""

    def __init__(self, method: Method, body: bytes, most_bytes: int) -> None:
        self._most_bytes = min(most_bytes, RATIO_SPARE_BYTES + RATIO_MAX * len(body))
        self._size = len(body)
        self._unsqueezing = method.unsqueezing(body)
        self._found: list[bytes] = []
        self._found_bytes = 0

    def open_at_once(self) -> bytes | None:
        """The body, if it is small; else None. Raises Malformed."""
        if self._size > AT_ONCE_BYTES_MAX:
            return None
        self._unpack(min(AT_ONCE_BYTES_MAX, self._most_bytes))
        return self._whole if self._unsqueezing.is_done else None

    def open(self) -> bytes:
        """The body, unpacked as far as it may be. Raises Malformed."""
        self._unpack(self._most_bytes)
        return self._whole

    def _unpack(self, most_bytes: int) -> None:
        unsqueezing = self._unsqueezing
        while not unsqueezing.is_done and self._found_bytes < most_bytes:
            part = unsqueezing.more(most_bytes - self._found_bytes)
            self._found.append(part)
            self._found_bytes += len(part)
        is_full = self._found_bytes >= self._most_bytes and not unsqueezing.is_done
        if is_full or self._found_bytes > self._most_bytes:
            raise Malformed(
                f"what is compressed is more than {RATIO_MAX} times as large as it is sent,"
                f" or larger than {self._most_bytes} bytes"
            )

    @property
    def _whole(self) -> bytes:
        return b"".join(self._found)


def _gzip(data: bytes) -> bytes:
    return zlib.compress(data, _LEVEL, _GZIP_WBITS)


class _Gunzipping:
    def __init__(self, data: bytes) -> None:
        self.is_done = False
        self._stream = zlib.decompressobj(_GZIP_WBITS)
        self._data = data

    def more(self, most_bytes: int) -> bytes:
        stream = self._stream
        try:
            # One byte more than asked for: the end of a stream may stand behind its last byte.
            found = stream.decompress(self._data, most_bytes + 1)
        except zlib.error:
            raise Malformed("what is compressed cannot be read") from None
        self._data, self.is_done = stream.unconsumed_tail, stream.eof
        if stream.unused_data or (not self.is_done and len(found) <= most_bytes):
            raise Malformed("what is compressed is not whole, or has something behind it")
        return found


def _brotli() -> Method | None:
    """Only where the library says no more than is asked: else a few bytes could fill the memory."""
    try:
        made: Any = import_module("brotli")
    except ImportError:
        return None

    class Unbrotling:
        def __init__(self, data: bytes) -> None:
            self.is_done = False
            self._stream = made.Decompressor()
            self._data = data

        def more(self, most_bytes: int) -> bytes:
            try:
                found: bytes = self._stream.process(self._data, output_buffer_limit=most_bytes)
            except made.error:
                raise Malformed("what is compressed cannot be read") from None
            self._data, self.is_done = b"", self._stream.is_finished()
            if not found and not self.is_done:
                raise Malformed("what is compressed is not whole")
            return found

    def squeeze(data: bytes) -> bytes:
        found: bytes = made.compress(data, quality=_LEVEL)
        return found

    try:
        Unbrotling(squeeze(b"x")).more(1)
    except TypeError:  # an old one
        return None
    return Method("brotli", 2, squeeze, Unbrotling)


_found = (Method("gzip", 1, _gzip, _Gunzipping), _brotli())
METHODS = {each.name: each for each in _found if each is not None}
BY_FLAG = {each.flag: each for each in METHODS.values()}


def agree(offered: str) -> Method | None:
    """The first of those that a client offers, in its order, that there is."""
    for each in offered.split(","):
        method = METHODS.get(each.strip().lower())
        if method is not None:
            return method
    return None
