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
    """The bytes are no frame, or the frame is too large. No later byte can be decoded."""


class Frame(NamedTuple):
    word: bytes
    payload: bytes
    binary: bool = False  # its length is in four bytes


class Pattern(NamedTuple):
    """Frames that come again and again, of two kinds."""

    head: bytes  # of one kind: its word and length,
    size: int  # the length of its payload,
    barred: int  # and a byte with which that does not begin
    same: bytes  # the other kind, byte for byte
    mark: int  # what that is known by, not 0; or 0, where there is none


class Repeats(NamedTuple):
    """Frames that were found to be as a pattern has them."""

    marks: list[int]  # in their order: 0 where it is of the first kind, or the mark of the other
    payloads: list[bytes]  # of those of the first kind
    end: int  # where the last of them ends


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
        """The number of bytes that have been fed and not taken."""
        return len(self._data) - self._at + self._more_bytes

    def feed(self, data: bytes) -> None:
        if self._missing > len(data):
            self._missing -= len(data)
            self._more.append(data)
            self._more_bytes += len(data)
            return
        if self._at == len(self._data) and not self._more:
            self._data = data
        else:
            self._data = b"".join((self._data[self._at :], *self._more, data))
            self._more.clear()
        self._at = self._missing = self._more_bytes = 0

    def repeats(self, pattern: Pattern, most: int, sized_max: int, same_max: int) -> Repeats:
        """The next frames, as far as they are as the pattern has it: at most so many, in all and
        of either kind. They are taken only by `skip_to`."""
        data, at = self._data, self._at
        head, size, barred, same, mark = pattern
        marks: list[int] = []
        payloads: list[bytes] = []
        while most > 0 and sized_max > 0 and same_max > 0:
            if data.startswith(head, at):
                begin = at + len(head)
                end = begin + size
                if end > len(data) or data[begin] == barred:
                    break
                payloads.append(data[begin:end])
                marks.append(0)
                sized_max -= 1
                at = end
            elif mark and data.startswith(same, at):
                marks.append(mark)
                same_max -= 1
                at += len(same)
            else:
                break
            most -= 1
        return Repeats(marks, payloads, at)

    def skip_to(self, end: int) -> None:
        """Takes the frames that `repeats` has found, up to `end`."""
        self._at = end

    def take(self) -> Frame | None:
        """The next frame; None until it is whole. Raises Malformed."""
        data, at = self._data, self._at
        if self._missing or at == len(data):
            return None
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
        """Waits for `missing` more bytes. Raises Malformed if the bytes so far begin no frame."""
        if not _LETTERS.issuperset(word):
            raise Malformed
        self._missing = missing


def encode(word: bytes, payload: bytes = b"", *, binary: bool = False) -> bytes:
    if binary:
        return b"%b %b%b" % (word, len(payload).to_bytes(4, "big"), payload)
    return b"%b %d %b" % (word, len(payload), payload)
