"""What is changed in bytes that were well-formed, so that they are hostile."""

import random

LARGE = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\x7f\xff\xff\xff")


def changed(data: bytes, chance: random.Random, words: tuple[bytes, ...]) -> bytes:
    """A byte, a bit, a piece left out, doubled or moved, or a word that is known to be trouble."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(made) + 1)
        size = chance.choice((1, 1, 2, 8, 40))
        what = chance.randrange(8)
        if what < 2 and at < len(made):
            made[at] = chance.randrange(256)
        elif what == 2 and at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        elif what == 3:
            del made[at : at + size]
        elif what == 4:
            made[at:at] = made[at : at + size] * chance.choice((1, 1, 10, 500))
        elif what == 5:
            piece = made[at : at + size]
            del made[at : at + size]
            place = chance.randrange(len(made) + 1)
            made[place:place] = piece
        else:
            made[at : at + chance.choice((0, size))] = chance.choice(words)
    return bytes(made)
