"""Looking at a journal's files: every frame, without changing anything.

Opening a store and verifying one are the same look; only opening then cuts what no sync covered.
"""

from pathlib import Path
from typing import NamedTuple

from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged
from posthouse.store.frames import Frame
from posthouse.store.segments import (
    SEGMENT_HEADER_BYTES,
    SUFFIX,
    Segment,
    decode_header,
    frames_from,
    frames_within,
)

CLOSED = "closed"


class Found(NamedTuple):
    """What there is. All of it is sound; a tail may have to be cut."""

    segments: list[Segment]
    frames: int
    last: Frame | None  # without its payload
    tail: bool  # behind the last frame is something that no sync had covered
    closed: bool  # the last stop was clean

    @property
    def end(self) -> int:
        """The position after the last."""
        if self.last is not None:
            return self.last.end
        return self.segments[-1].first if self.segments else 1


def look(disk: Disk, folder: Path) -> Found:
    """Raises Damaged or TooNew."""
    names = disk.names(folder)
    paths = [folder / each for each in names if each.endswith(SUFFIX)]
    segments: list[Segment] = []
    count, last, tail = 0, None, False
    for number, path in enumerate(paths):
        data = disk.read(path, 0, disk.size(path))
        header = decode_header(path, data)
        segment = Segment(path, header.first, len(data))
        for at, frame in frames_from(data, SEGMENT_HEADER_BYTES):
            begins = at == SEGMENT_HEADER_BYTES and header == (frame.first, frame.number)
            if not (frame.follows(last) if last is not None else begins):
                break
            segment.note(frame, frame.size_bytes)
            last = frame.without_payload()
            count += 1
        segments.append(segment)
        if number + 1 < len(paths):
            _check_next(disk, segment, last, paths[number + 1])
        else:
            tail = _is_tail(segment, data, last)
    found = Found(segments, count, last, tail, CLOSED in names)
    if found.closed:
        _check_closed(disk, folder, found)
    return found


def _check_next(disk: Disk, segment: Segment, last: Frame | None, path: Path) -> None:
    """A segment is only begun when all before it is durable."""
    header = decode_header(path, disk.read(path, 0, SEGMENT_HEADER_BYTES))
    if last is None or header != (last.end, last.number + 1):
        raise Damaged(
            segment.path,
            segment.offset,
            f"{path.name} was begun when all up to frame {header.number} was durable",
        )


def _is_tail(segment: Segment, data: bytes, last: Frame | None) -> bool:
    """The frames end here. Behind them may be nothing, a tail, or proof of damage."""
    end = last.end if last is not None else segment.first
    number = last.number if last is not None else 0
    rest = data[segment.offset :]
    for frame in frames_within(rest, 0):
        if frame.number > number and frame.durable > end:
            raise Damaged(
                segment.path,
                segment.offset,
                f"frame {frame.number} was written when this place was durable",
            )
    return rest.count(0) < len(rest)


def _check_closed(disk: Disk, folder: Path, found: Found) -> None:
    """After a clean stop there is no tail: what is missing was there."""
    path = folder / CLOSED
    words = disk.read(path, 0, 64).split()
    number = found.last.number if found.last is not None else 0
    if words != [b"%d" % found.end, b"%d" % number] or found.tail:
        where = found.segments[-1] if found.segments else None
        raise Damaged(
            path if where is None else where.path,
            0 if where is None else where.offset,
            f"the journal was closed at {b' '.join(words)!r} (position, frame),"
            f" and is found to end at {found.end}, {number}",
        )
