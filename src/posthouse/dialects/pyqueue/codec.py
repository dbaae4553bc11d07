"""PyQueue's frames: bytes to frames and back.

    PUSH 5 hello        a word, a space, the payload's length in decimal, a space, the payload
    PUSH \\0\\0\\0\\5hello  a word, a space, the length in four bytes, highest first, the payload

Which of the two a frame is shows in the byte behind the word: a length in bytes begins with a zero,
since no frame is as long as 16 MiB. An answer has the form of what it answers.
"""

import re
from typing import NamedTuple

FRAME_BYTES_MAX = 10 << 20  # all of a frame
WORD_BYTES_MAX = 32
_DIGITS_MAX = 8
_HEAD = re.compile(rb"([A-Za-z_-]{1,%d}) ([0-9]{1,%d}) " % (WORD_BYTES_MAX, _DIGITS_MAX))
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-")


class Malformed(Exception):
    """What came is no frame, or one that is too large. Nothing behind it can be understood."""


class Frame(NamedTuple):
    word: bytes
    payload: bytes
    binary: bool = False  # its length is in four bytes


class Decoder:
    """Cuts what comes into frames, however the network has cut it."""

    __slots__ = ("_at", "_data", "_missing", "_more", "_more_bytes", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = b""
        self._at = 0  # where the next frame begins
        self._missing = 0  # bytes, at least, until there is a whole frame
        self._more: list[bytes] = []  # what came since that was known
        self._more_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Of what has come and was not taken."""
        return len(self._data) - self._at + self._more_bytes

    def feed(self, data: bytes) -> None:
        if self._missing > len(data):
            self._missing -= len(data)
            self._more.append(data)
            self._more_bytes += len(data)
            return
        self._data = b"".join((self._data[self._at :], *self._more, data))
        self._at = self._missing = self._more_bytes = 0
        self._more.clear()

    @property
    def rest(self) -> tuple[bytes, int]:
        """What has come, and where the next frame begins in it."""
        return self._data, self._at

    def skip_to(self, at: int) -> None:
        """Whole frames were taken from `rest` by who knows what they look like."""
        self._at = at

    def take(self) -> Frame | None:
        """The next frame; None until it is whole. Raises Malformed."""
        if self._missing:
            return None
        data, at = self._data, self._at
        head = _HEAD.match(data, at)
        if head is None:
            return self._take_oddly()
        begin = head.end()
        end = begin + int(head[2])
        return self._cut(head[1], begin, end, binary=False)

    def _cut(self, word: bytes, begin: int, end: int, *, binary: bool) -> Frame | None:
        data = self._data
        if end - self._at > self.frame_bytes_max:
            raise Malformed
        if len(data) < end:
            self._missing = end - len(data)
            return None
        self._at = end
        return Frame(word, data[begin:end], binary)

    def _take_oddly(self) -> Frame | None:
        """One whose length is in bytes, or of which too little has come to know."""
        data, at = self._data, self._at
        space = data.find(b" ", at, at + WORD_BYTES_MAX + 1)
        if space < 0:
            if len(data) - at > WORD_BYTES_MAX:
                raise Malformed
            self._wait(data[at:], 1)
            return None
        word = data[at:space]
        if len(data) == space + 1:
            self._wait(word, 1)
            return None
        if data[space + 1] != 0:
            digits = data[space + 1 : space + 2 + _DIGITS_MAX]
            if not digits.isdigit() or len(digits) > _DIGITS_MAX:
                raise Malformed
            self._wait(word, 1)
            return None
        begin = space + 5
        if len(data) < begin:
            self._wait(word, begin - len(data))
            return None
        if not word or not _LETTERS.issuperset(word):
            raise Malformed
        return self._cut(word, begin, begin + int.from_bytes(data[space + 1 : begin]), binary=True)

    def _wait(self, word: bytes, missing: int) -> None:
        """For so many bytes more, if what is there can be the beginning of a frame."""
        if not _LETTERS.issuperset(word):
            raise Malformed
        self._missing = missing


def encode(word: bytes, payload: bytes = b"", *, binary: bool = False) -> bytes:
    if binary:
        return b"%b %b%b" % (word, len(payload).to_bytes(4, "big"), payload)
    return b"%b %d %b" % (word, len(payload), payload)
