"""Reading a journal that another process writes: it shares nothing with that but the files.

What is durable does not change any more, but may be trimmed at any moment. Where frames lie is
remembered from one reading to the next.
"""

from collections.abc import Iterator
from pathlib import Path

from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, NotThere
from posthouse.store.frames import MAGIC, Frame
from posthouse.store.look import segment_paths
from posthouse.store.segments import SEGMENT_HEADER_BYTES, Segment, decode_header, frames_from

_READ_BYTES = 1 << 20
END = 1 << 63


class Reading:
    """The frames of a folder."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._known: dict[Path, Segment] = {}

    def all_frames(self, first: int, end: int) -> Iterator[Frame]:
        """The frames that hold positions from `first` up to `end`, which must be durable.

        Raises NotThere or Damaged.
        """
        for segment, following in self.with_ends():
            if segment.first < end and following > first:
                yield from self.frames(segment, first, min(end, following))

    def with_ends(self) -> list[tuple[Segment, int]]:
        """The segments, and where the next begins; for the last one, infinity."""
        segments = self.segments()
        return list(zip(segments, [*(each.first for each in segments[1:]), END], strict=True))

    def segments(self) -> list[Segment]:
        """The segments there are now, the oldest first."""
        paths = segment_paths(self._disk, self._folder)
        self._known = {path: seg for path, seg in self._known.items() if path in set(paths)}
        for path in paths:
            if path not in self._known:
                try:
                    head = decode_header(path, self._disk.read(path, 0, SEGMENT_HEADER_BYTES))
                    self._known[path] = Segment(path, head, self._disk.size(path))
                except FileNotFoundError:
                    continue  # trimmed meanwhile
        return [self._known[path] for path in paths if path in self._known]

    def frames(self, segment: Segment, first: int, end: int) -> Iterator[Frame]:
        """Yields the frames of one segment that hold positions from `first` up to `end`."""
        at, last = segment.offset_before(first), None
        while last is None or last.end < end:
            for frame in self._frames_at(segment, at):
                if last is not None and not frame.follows(last):
                    raise Damaged(segment.path, at, f"this is not frame {last.number + 1}")
                if at == segment.offset:
                    segment.note(frame, frame.size_bytes)
                at, last = at + frame.size_bytes, frame
                if frame.end > first and frame.first < end:
                    yield frame

    def _frames_at(self, segment: Segment, at: int) -> list[Frame]:
        """Reads about a megabyte of frames, at least one. Raises NotThere or Damaged."""
        length = _READ_BYTES
        while True:
            try:
                data = self._disk.read(segment.path, at, length)
            except FileNotFoundError:
                raise NotThere(f"positions from {segment.first} on were trimmed") from None
            frames = [frame for _, frame in frames_from(data, 0, segment.head.salt)]
            if frames:
                return frames
            if len(data) < length or not data.startswith(MAGIC):
                raise Damaged(segment.path, at, "a frame was here, and is not any more")
            length *= 8
