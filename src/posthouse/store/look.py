"""Looking at a journal's files: every frame, without changing anything.

Opening a store and verifying one are the same look; only opening then cuts what no sync covered.
A start needs not look at what a snapshot holds already: what was durable and is not read at a start
is checked when it is read, and now and then by the folding process.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, HalfArrived, Unfinished
from posthouse.store.frames import HEADER_BYTES, Frame, decode_time_ms
from posthouse.store.segments import (
    NAME,
    SEGMENT_HEADER_BYTES,
    Header,
    Segment,
    check_size,
    decode_either_header,
    decode_header,
    frames_from,
    frames_within,
)
from posthouse.store.snapshots import NAME as SNAPSHOT_NAME
from posthouse.store.snapshots import UNFINISHED

NEXT, RESERVE, LARGE = "next", "reserve", "large"  # space that was claimed
CLOSED, CLOSING_NAME = "closed", "closing"  # the mark of a clean stop, and while it is made
ARROW_SUFFIX = ".arrow"
ARROW_NAME = re.compile(r"\d{20}\.arrow(-new)?")  # a segment once more, for who reads the feed
REPAIRED = "repaired"  # a repair is done but for putting its files in place
ARRIVED = "arrived"  # so is a copy of another folder


class Found(NamedTuple):
    """The journal that was found in a folder. It is sound; a tail may have to be cut."""

    segments: list[Segment]
    frames: int
    last: Frame | None  # without its payload
    tail: int  # bytes behind the last frame that no sync had covered
    closed: bool  # the last stop was clean

    @property
    def end(self) -> int:
        """The position after the last."""
        if self.last is not None:
            return self.last.end
        return self.segments[-1].first if self.segments else 1


def segment_paths(disk: Disk, folder: Path) -> list[Path]:
    return [folder / each for each in disk.names(folder) if NAME.fullmatch(each)]


def holds_journal(disk: Disk, folder: Path) -> bool:
    """Whether a folder is one of ours at all; a new one has nothing but claimed space."""
    names = set(disk.names(folder))
    parts = any(NAME.fullmatch(name) or SNAPSHOT_NAME.fullmatch(name) for name in names)
    return parts or REPAIRED in names or {NEXT, RESERVE} <= names


def is_part(name: str) -> bool:
    """Whether a file in such a folder is part of the journal."""
    others = (NEXT, RESERVE, LARGE, CLOSED, CLOSING_NAME, UNFINISHED)
    kinds = (NAME, SNAPSHOT_NAME, ARROW_NAME)
    return name in others or any(known.fullmatch(name) for known in kinds)


def look(disk: Disk, folder: Path, after: int = 0) -> Found:
    """Reads and checks all frames, or only segments with frames after number `after`.

    Raises Damaged, TooNew or Unfinished.
    """
    if REPAIRED in disk.names(folder):
        raise Unfinished(folder)
    if ARRIVED in disk.names(folder):
        raise HalfArrived(folder)
    paths = segment_paths(disk, folder)
    heads = [decode_header(path, disk.read(path, 0, SEGMENT_HEADER_BYTES)) for path in paths]
    segments: list[Segment] = []
    count, last, tail = 0, None, 0
    for at, (path, head) in enumerate(zip(paths, heads, strict=True)):
        following = heads[at + 1] if at + 1 < len(heads) else None
        if following is not None and following.number <= after + 1:
            segments.append(_unread(disk, path, head, following))
            continue
        data = disk.read(path, 0, disk.size(path))
        check_size(path, head, len(data))
        segment = Segment(path, head, len(data))
        segments.append(segment)
        for frame in frames_of(segment, data, last):
            last = frame.without_payload()
            count += 1
        if following is not None:
            check_next(segment, last, following, paths[at + 1].name)
        else:
            tail = _tail_bytes(segment, data, last)
    found = Found(segments, count, last, tail, CLOSED in disk.names(folder))
    if found.closed:
        _check_closed(disk, folder, found)
    return found


def frames_of(segment: Segment, data: bytes, last: Frame | None = None) -> Iterator[Frame]:
    """The frames that count from the segment's beginning on; it takes note of each."""
    for _, frame in frames_from(data, SEGMENT_HEADER_BYTES, segment.head.salt):
        if not (frame.follows(last) if last is not None else segment.head.begins_with(frame)):
            break
        segment.note(frame, frame.size_bytes)
        yield frame
        last = frame


def _unread(disk: Disk, path: Path, head: Header, following: Header) -> Segment:
    """A segment as its header and the next one's describe it."""
    segment = Segment(path, head, disk.size(path))
    check_size(path, head, segment.size)
    segment.end, segment.offset = following.first, segment.size
    segment.begun_ms = decode_time_ms(disk.read(path, SEGMENT_HEADER_BYTES, HEADER_BYTES))
    return segment


def check_next(segment: Segment, last: Frame | None, following: Header, name: str) -> None:
    """A segment is only begun when all before it is durable."""
    if last is None or not following.follows(last):
        raise Damaged(
            segment.path,
            segment.offset,
            f"{name} was begun when all up to frame {following.number} was durable",
        )


def _tail_bytes(segment: Segment, data: bytes, last: Frame | None) -> int:
    """The frames end here. Behind them may be nothing, a tail, or proof of damage.

    A frame proves it that says so, and one that begins at the position where the frames end, though
    it is not the next: between them was a closing frame, which is durable before another start.
    """
    end = last.end if last is not None else segment.first
    number = last.number if last is not None else segment.head.number - 1
    rest = data[segment.offset :]
    for _, frame in frames_within(rest, 0, segment.head.salt):
        behind_closing = frame.number > number + 1 and frame.first == end
        if frame.number > number and (frame.durable > end or behind_closing):
            raise Damaged(
                segment.path,
                segment.offset,
                f"frame {frame.number} was written when this place was durable",
            )
    return len(rest.rstrip(b"\0"))


def _check_closed(disk: Disk, folder: Path, found: Found) -> None:
    """Checks the journal against the mark of a clean stop, after which nothing may be missing."""
    path = folder / CLOSED
    words = disk.read(path, 0, 64).split()
    number = found.last.number if found.last is not None else 0
    if words != [b"%d" % found.end, b"%d" % number]:
        where = found.segments[-1] if found.segments else None
        raise Damaged(
            path if where is None else where.path,
            0 if where is None else where.offset,
            f"the journal was closed at {b' '.join(words)!r} (position, frame),"
            f" and is found to end at {found.end}, {number}",
        )


class Sealed(NamedTuple):
    """A segment that is complete, because the next one was begun."""

    path: Path
    head: Header
    following: Header


def sealed(disk: Disk, folder: Path) -> list[Sealed]:
    """The sealed segments, which another process may read. Raises Damaged or TooNew."""
    paths = segment_paths(disk, folder)
    heads = [decode_header(path, disk.read(path, 0, SEGMENT_HEADER_BYTES)) for path in paths]
    return [Sealed(*each) for each in zip(paths, heads, heads[1:], strict=False)]


def sealed_frames(disk: Disk, segment: Sealed) -> Iterator[Frame]:
    """Yields all frames of a sealed segment. Raises Damaged."""
    data = disk.read(segment.path, 0, disk.size(segment.path))
    found = Segment(segment.path, segment.head, len(data))
    last = None
    for last in frames_of(found, data):
        yield last
    check_next(found, last, segment.following, "the next segment")


class Hole(NamedTuple):
    """A place in a file where frames are missing, as far as can be told."""

    path: Path
    offset: int
    what: str


def salvage(disk: Disk, folder: Path) -> Iterator[Frame | Hole]:
    """Yields every readable frame that follows those before it, and the holes between them."""
    last = Frame(0, 0, 1, 0, 1, 0, b"")
    for path in segment_paths(disk, folder):
        data = disk.read(path, 0, disk.size(path))
        try:
            head = decode_either_header(path, data)
        except Damaged:
            yield Hole(path, 0, "neither of its headers can be read, so nothing in it can")
            continue
        expected = SEGMENT_HEADER_BYTES
        for at, frame in frames_within(data, SEGMENT_HEADER_BYTES, head.salt):
            behind = frame.number > last.number and frame.first >= last.end
            if not behind or frame.epoch < last.epoch:
                continue
            if at > expected:
                yield Hole(path, expected, f"{at - expected} bytes are not frames")
            yield frame
            expected, last = at + frame.size_bytes, frame
        rest = len(data[expected:].rstrip(b"\0"))
        if rest:
            yield Hole(path, expected, f"{rest} bytes at the end are not frames")


def closed_at(disk: Disk, folder: Path) -> int | None:
    """The position at which a clean stop left the journal, if the last stop was one."""
    if CLOSED not in disk.names(folder):
        return None
    words = disk.read(folder / CLOSED, 0, 64).split()
    end = int(words[0]) if words and words[0].isdigit() else 0
    return end if 0 < end < 1 << 62 else None
