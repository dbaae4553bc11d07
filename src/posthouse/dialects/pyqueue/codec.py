"""PyQueue's frames: bytes to frames and back.

    PUSH 5 hello        a word, a space, the payload's length in decimal, a space, the payload
    PUSH \\0\\0\\0\\5hello  a word, a space, the length in four bytes, highest first, the payload

Which of the two a frame is shows in the byte behind the word: a length in bytes begins with a zero,
since no frame is as long as 16 MiB. An answer has the form of what it answers.
"""

from typing import NamedTuple

FRAME_BYTES_MAX = 10 << 20  # all of a frame
WORD_BYTES_MAX = 32
_DIGITS_MAX = 8
_USUAL = frozenset((b"PUSH", b"PULL", b"ACK", b"PULL_BATCH", b"PUSH_BATCH"))  # most frames
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

    def take(self) -> Frame | None:
        """The next frame; None until it is whole. Raises Malformed."""
        data, at = self._data, self._at
        if self._missing:
            return None
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
        binary = data[space + 1] == 0
        if binary:
            begin = space + 5
            if len(data) < begin:
                self._wait(word, begin - len(data))
                return None
            length = int.from_bytes(data[space + 1 : begin], "big")
        else:
            end = data.find(b" ", space + 1, space + 2 + _DIGITS_MAX)
            digits = data[space + 1 : end if end >= 0 else space + 2 + _DIGITS_MAX]
            if not digits.isdigit() or (end < 0 and len(digits) > _DIGITS_MAX):
                raise Malformed
            if end < 0:
                self._wait(word, 1)
                return None
            begin, length = end + 1, int(digits)
        end = begin + length
        if end - at > self.frame_bytes_max:
            raise Malformed
        if word not in _USUAL and (not word or not _LETTERS.issuperset(word)):
            raise Malformed
        if len(data) < end:
            self._missing = end - len(data)
            return None
        self._at = end
        return Frame(word, data[begin:end], binary)

    def _wait(self, word: bytes, missing: int) -> None:
        """For so many bytes more, if what is there can be the beginning of a frame."""
        if not _LETTERS.issuperset(word):
            raise Malformed
        self._missing = missing


def encode(word: bytes, payload: bytes = b"", *, binary: bool = False) -> bytes:
    if binary:
        return b"%b %b%b" % (word, len(payload).to_bytes(4, "big"), payload)
    return b"%b %d %b" % (word, len(payload), payload)
