"""Deliveries that come one behind another, as a client in a hurry sends them.

Its transfers differ in their size, their id, their tag and what they carry, and in nothing else.
Once one was read field by field, those that follow are compared with it, all fields in one go.
"""

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from posthouse.amqp.performatives import TAG_BYTES_MAX

if TYPE_CHECKING:
    from posthouse.amqp.session import Link

_HANDLE_BYTES = {0x43: 1, 0x52: 2, 0x70: 5}
_LIST_AT = 8 + 3  # behind the frame's header and the descriptor, both in their short forms
_struct = lru_cache(64)(Struct)
_WIDTH_MIN, _WIDTH_MAX = 8, 1_024  # deliveries of one size that are read at once


class Shape:
    """How the transfers of one link are written."""

    __slots__ = ("_fixed", "_layout", "_read", "_rest", "_size", "_tag_head", "link", "settled")

    def __init__(self, link: "Link", frame: bytes, *, settled: bool) -> None:
        """From a frame that `shape_of` has found to be of the kind."""
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
    ) -> tuple[list[int], list[bytes], list[bytes], int]:
        """Ids, tags and payloads of the deliveries that begin here, and where they end."""
        ids: list[int] = []
        tags: list[bytes] = []
        payloads: list[bytes] = []
        end, head, most = len(data), self._size, self.link.max_message_size or frame_max
        read, fixed, tag_head, rest = self._read, self._fixed, self._tag_head, self._rest
        width, singly = _WIDTH_MIN, 0  # how many are tried at once; how many are not before that
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
            if not singly and data[stop : stop + 4] == data[pos : pos + 4]:
                found = self._of_one_size(data, pos, size, min(width, (end - pos) // size))
                if found is not None:
                    ids += found[0]
                    tags += found[1]
                    payloads += found[2]
                    pos += size * len(found[0])
                    width = min(2 * width, _WIDTH_MAX)
                    continue
                width, singly = _WIDTH_MIN, _WIDTH_MIN
            singly = max(0, singly - 1)
            ids.append(number)
            tags.append(tag)
            payloads.append(data[pos + head : stop])
            pos = stop
        return ids, tags, payloads, pos

    def _of_one_size(
        self, data: bytes, pos: int, size: int, count: int
    ) -> tuple[tuple[int, ...], tuple[bytes, ...], tuple[bytes, ...]] | None:
        """So many deliveries of this size, if they are: read all at once, field by field."""
        layout = _struct(f"{self._layout}{size - self._size}s")
        some = memoryview(data)[pos : pos + size * count]
        sizes, fixed, ids, heads, tags, rests, payloads = zip(
            *layout.iter_unpack(some), strict=True
        )
        if (
            sizes.count(size) == count
            and fixed.count(self._fixed) == count
            and heads.count(self._tag_head) == count
            and rests.count(self._rest) == count
        ):
            return ids, tags, payloads
        return None


def shape_of(link: "Link", frame: bytes, *, settled: bool) -> Shape | None:
    """Of a frame that holds a whole delivery; None where it is written in another way."""
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
