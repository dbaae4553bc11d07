"""Lock tokens: 128-bit numbers that nobody can guess who was not given them.

    64 bits  a keyed hash of the lock number; the key is drawn at random for each start
    64 bits  the lock number, which rises with each lock of a namespace

A lock number may be given again after a crash, if its record was not durable. The key of the next
start is another one, so the old token does not open the new lock.

Journals of older versions have no key: there the upper half is epoch and salt of the start, called
its era, and a token of one start can be guessed from another.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct, unpack

KEY_BYTES = 16
_EACH = 8  # lock numbers that one hash serves
_unpack_one = Struct(f">{_EACH}Q").unpack


class Tokens:
    """The tokens of one namespace and one start.

    The last hash is kept, for numbers come in order. So are the last tokens: a delivery that is
    decided is evolved next, and asks for them again.
    """

    __slots__ = ("_block", "_digest", "_first", "_halves", "_last", "era", "key")

    def __init__(self, era: int, key: bytes, namespace: int) -> None:
        self.era = era
        self.key = key
        # Each namespace counts from one, so its own number is part of what is hashed.
        self._digest = blake2b(namespace.to_bytes(8, "big"), digest_size=8 * _EACH, key=key)
        self._block = self._first = -1
        self._halves: Sequence[int] = ()
        self._last: Sequence[int] = ()  # the tokens from `_first` on

    def one(self, number: int) -> int:
        return self.several(number, 1)[0]

    def several(self, first: int, count: int) -> Sequence[int]:
        """The tokens of so many consecutive lock numbers."""
        if first == self._first and count == len(self._last):
            return self._last
        self._first, self._last = first, self._make(first, count)
        return self._last

    def _make(self, first: int, count: int) -> Sequence[int]:
        if not self.key:
            return range(self.era + first, self.era + first + count)
        block, at = divmod(first, _EACH)
        if at + count <= _EACH:
            if block != self._block:
                self._block, self._halves = block, _unpack_one(self._hash(block))
            halves = self._halves[at : at + count]
        else:
            last = (first + count - 1) // _EACH
            hashes = b"".join([self._hash(each) for each in range(block, last + 1)])
            halves = unpack(f">{count}Q", memoryview(hashes)[8 * at : 8 * (at + count)])
        return [half << 64 | number for number, half in enumerate(halves, first)]

    def _hash(self, block: int) -> bytes:
        digest = self._digest.copy()
        digest.update(block.to_bytes(8, "big"))
        return digest.digest()
