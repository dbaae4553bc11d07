"""The messages of one queue by sequence number.

They are kept in chunks: a look-up is two dictionary reads, a peek can start at any number, and gaps
left by settled messages cost little. Numbers only rise, so the chunks and what is in them are
in order by themselves. A dictionary whose values are not tracked by the garbage collector is not
tracked either, so a million messages do not lengthen its pauses.
"""

from collections.abc import Iterator

from posthouse.core.message import Message

CHUNK = 1365  # numbers in a chunk: what a dictionary of 2,048 slots takes before it grows
SHRINK_AT = (0, 64)  # how full a chunk is when it is made smaller


class Index:
    """Messages by sequence number, in order. `chunks` is read directly on the hot paths."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: dict[int, dict[int, Message]] = {}

    def get(self, sequence: int) -> Message | None:
        chunk = self.chunks.get(sequence // CHUNK)
        return None if chunk is None else chunk.get(sequence)

    def __getitem__(self, sequence: int) -> Message:
        return self.chunks[sequence // CHUNK][sequence]

    def put(self, message: Message) -> None:
        """A message whose number is higher than any before."""
        self.chunks.setdefault(message.sequence // CHUNK, {})[message.sequence] = message

    def pop(self, sequence: int) -> Message:
        number = sequence // CHUNK
        chunk = self.chunks[number]
        message = chunk.pop(sequence)
        if len(chunk) in SHRINK_AT:
            self.shrink(number)
        return message

    def shrink(self, number: int) -> None:
        """Drops an empty chunk, or the unused room of one that only stragglers are left in."""
        chunk = self.chunks[number]
        if not chunk:
            del self.chunks[number]
        elif number != next(reversed(self.chunks)):  # into the newest one more may come
            self.chunks[number] = dict(chunk)

    def walk(self, first: int) -> Iterator[Message]:
        """Every message from sequence number `first` on."""
        for number, chunk in self.chunks.items():
            if number > first // CHUNK:
                yield from chunk.values()
            elif number == first // CHUNK:
                yield from (message for message in chunk.values() if message.sequence >= first)
