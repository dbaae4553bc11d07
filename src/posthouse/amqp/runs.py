"""Deliveries that come one behind another, as a client in a hurry sends them.

Its transfers differ in their size, their id, their tag and what they carry, and in nothing else.
Once one was read field by field, those that follow are compared with it, all fields in one go.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, overload

from posthouse.amqp.performatives import TAG_BYTES_MAX

if TYPE_CHECKING:
    from posthouse.amqp.session import Link

_HANDLE_BYTES = {0x43: 1, 0x52: 2, 0x70: 5}
_LIST_AT = 8 + 3  # behind the frame's header and the descriptor, both in their short forms
_struct = lru_cache(64)(Struct)
_WIDTH_MIN = 8  # deliveries of one size that are worth being read all at once


class Alike(Sequence[bytes]):
    """Payloads of one size, cut out of what was read when they are asked for."""

    def __init__(self, data: memoryview, head: int, distance: int) -> None:
        self._data = data
        self._head = head  # bytes before each
        self._distance = distance
        self.size = distance - head

    def columns(self, layout: str) -> Iterator[tuple[Any, ...]]:
        """The columns of all payloads, for a format of `struct` that is as long as one payload."""
        return zip(*_struct(f">{self._head}x{layout}").iter_unpack(self._data), strict=True)

    def behind(self, count: int) -> "Alike":
        """The payloads behind the first `count`."""
        return Alike(self._data[count * self._distance :], self._head, self._distance)

    def __len__(self) -> int:
        return len(self._data) // self._distance

    def __iter__(self) -> Iterator[bytes]:
        [all] = self.columns(f"{self.size}s")
        return iter(all)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return list(self)[at]
        begin = range(len(self))[at] * self._distance + self._head
        return bytes(self._data[begin : begin + self.size])


def bytes_of(payloads: Sequence[bytes]) -> int:
    """The bytes of all payloads together."""
    if isinstance(payloads, Alike):
        return payloads.size * len(payloads)
    return sum(map(len, payloads))


def runs_of(given: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yields the first and the end index of each run of the same object."""
    first = 0
    for at in range(1, len(given)):
        if given[at] is not given[first]:
            yield first, at
            first = at
    if given:
        yield first, len(given)


class Shape:
    """The encoding that the transfers of one link have in common."""

    __slots__ = ("_fixed", "_layout", "_read", "_rest", "_size", "_tag_head", "link", "settled")

    def __init__(self, link: "Link", frame: bytes, *, settled: bool) -> None:
        """Takes the encoding from a frame that `shape_of` has accepted."""
        self.link = link
        self.settled = settled
        id_at = _LIST_AT + 3 + _HANDLE_BYTES[frame[_LIST_AT + 3]]
        tag_at, stop = id_at + 5, _LIST_AT + 2 + frame[_LIST_AT + 1]
        tag_bytes = frame[tag_at + 1]
        self._fixed = frame[4 : id_at + 1]
        self._tag_head = frame[tag_at : tag_at + 2]
        self._rest = frame[tag_at + 2 + tag_bytes : stop]
        self._size = stop
        self._layout = f">I{len(self._fixed)}sI2s{tag_bytes}s{len(self._rest)}s"
        self._read = _struct(self._layout).unpack_from

    @property
    def is_over(self) -> bool:
        return self.link.is_gone or self.link.session.ended

    def read(
        self, data: bytes, pos: int, frame_max: int
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[bytes], int]:
        """Ids, tags and payloads of the deliveries that begin here, and where they end.

        Many of one size are given by themselves; what comes before or behind them, by itself.
        """
        ids: list[int] = []
        tags: list[bytes] = []
        payloads: list[bytes] = []
        end, head, most = len(data), self._size, self.link.max_message_size or frame_max
        read, fixed, tag_head, rest = self._read, self._fixed, self._tag_head, self._rest
        singly = 0  # how many are read so before others are tried at once
        while end - pos >= head:
            size, given, number, given_head, tag, given_rest = read(data, pos)
            stop = pos + size
            if (
                given != fixed
                or given_rest != rest
                or given_head != tag_head
                or not head <= size <= frame_max
                or stop > end
                or size - head > most
            ):
                break
            if singly:
                singly -= 1
            elif data[stop : stop + 4] == data[pos : pos + 4]:
                count = _count_of(data, pos, size)
                if count >= _WIDTH_MIN:
                    if ids:
                        break
                    found = self._of_one_size(data, pos, size, count)
                    if found is not None:
                        return *found, pos + size * count
                singly = count - 1  # looked at once, and not again for each
            ids.append(number)
            tags.append(tag)
            payloads.append(data[pos + head : stop])
            pos = stop
        return ids, tags, payloads, pos

    def _of_one_size(
        self, data: bytes, pos: int, size: int, count: int
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[bytes]] | None:
        """Reads `count` deliveries of one size at once, column by column; None if they differ."""
        layout = _struct(f"{self._layout}{size - self._size}x")
        some = memoryview(data)[pos : pos + size * count]
        _, fixed, ids, heads, tags, rests = zip(*layout.iter_unpack(some), strict=True)
        if (
            fixed.count(self._fixed) == count
            and heads.count(self._tag_head) == count
            and rests.count(self._rest) == count
        ):
            return ids, tags, Alike(some, self._size, size)
        return None


def _count_of(data: bytes, pos: int, size: int) -> int:
    """The number of frames of this size that follow each other from here on."""
    count = (len(data) - pos) // size
    for at in range(pos, pos + 4):
        column = data[at : pos + count * size : size]
        count = min(count, len(column) - len(column.lstrip(column[:1])))
    return count


def shape_of(link: "Link", frame: bytes, *, settled: bool) -> Shape | None:
    """The shape of a frame with a whole delivery; None where it is encoded in another way."""
    if frame[4] != 2 or frame[_LIST_AT] != 0xC0:
        return None
    width = _HANDLE_BYTES.get(frame[_LIST_AT + 3])
    if width is None:
        return None
    id_at, stop = _LIST_AT + 3 + width, _LIST_AT + 2 + frame[_LIST_AT + 1]
    tag_at = id_at + 5
    if tag_at + 2 > stop or frame[id_at] != 0x70 or frame[tag_at] != 0xA0:
        return None
    if frame[tag_at + 1] > TAG_BYTES_MAX or tag_at + 2 + frame[tag_at + 1] > stop:
        return None
    return Shape(link, frame[:stop], settled=settled)
