"""Folding: the state at a position, written down so that a start need not read all frames.

A process of its own reads the segments that are complete, from the last snapshot on, runs the same
`evolve` as the engine, and writes the next snapshot. Then it reads some old segments again to see
that they are still what was written, and writes Arrow segments for the feed. It shares nothing with
the engine but files that do not change any more, and can be killed at any moment;
`fold_process.py` is how it is started.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posthouse.broker.replay import Replay, unfold
from posthouse.core.namespaces import Namespaces
from posthouse.core.snapshot import take
from posthouse.store import Snapshot, Store
from posthouse.store.disk import Disk
from posthouse.store.errors import NotThere, StoreError
from posthouse.store.file import MARK_SEGMENTS
from posthouse.store.frames import Frame
from posthouse.store.look import Sealed, sealed, sealed_frames
from posthouse.store.opening import Opening, open_store, parse_url
from posthouse.store.snapshots import FileSnapshots

LOCK = "fold-lock"
SCRUBBED = "scrubbed"  # holds the number of the frame up to which old segments were read again
SCRUB_BYTES = 256 << 20
_ROOM = 2 * MARK_SEGMENTS + 2  # an Arrow segment is begun where there is room for so many segments


class Folded(NamedTuple):
    position: int  # the newest snapshot holds all below
    frames: int  # that it holds more than the one before
    scrubbed: int  # old segments that were read again
    kept: list[int]  # up to where each snapshot goes that is whole, the newest first


def fold(folder: Path, disk: Disk | None = None, scrub_bytes: int = SCRUB_BYTES) -> Folded:
    """Writes the next snapshot, if there is more to hold. Raises InUse, Damaged or NotThere."""
    disk = disk or Disk()
    lock = disk.lock(folder / LOCK)
    try:
        return asyncio.run(_fold(folder, disk, scrub_bytes))
    finally:
        disk.close(lock)


async def _fold(folder: Path, disk: Disk, scrub_bytes: int) -> Folded:
    snapshots = FileSnapshots(folder, disk)
    segments = sealed(disk, folder)
    old = await snapshots.load(1 << 63)
    last = Frame(0, 0, 1, 0, 1, 0, b"") if old is None else old.last
    new = [each for each in segments if each.following.number > last.number + 1]
    if new and new[0].head.number > last.number + 1:
        raise NotThere(
            f"the journal begins at position {new[0].head.first}, and no snapshot that can be read"
            " goes that far"
        )
    frames = 0
    if new:
        replay = Replay(Namespaces() if old is None else unfold(old))
        for segment in new:
            for frame in sealed_frames(disk, segment):
                if frame.number > last.number:
                    replay.apply(frame, keep_bytes=0)
                    last = frame.without_payload()
                    frames += 1
        await snapshots.save(Snapshot(last, take(replay.world)))
    scrubbed = _scrub(folder, disk, [each for each in segments if each not in new], scrub_bytes)
    return Folded(last.end, frames, scrubbed, snapshots.whole())


async def fold_store(store: Store) -> Folded:
    """Does the same by the interface of any store: all but its last extent. Raises StoreError."""
    snapshots = store.snapshots
    old = await snapshots.load(1 << 63)
    extents = store.extents()
    first = 1 if old is None else old.last.end
    end = extents[-1].first if extents else 1
    last = Frame(0, 0, 1, 0, 1, 0, b"") if old is None else old.last
    frames = 0
    if end > first:
        if extents[0].first > first:
            raise NotThere(
                f"the journal begins at position {extents[0].first}, and no snapshot that can be"
                " read goes that far"
            )
        replay = Replay(Namespaces() if old is None else unfold(old))
        async for frame in store.read(first, end):
            replay.apply(frame, keep_bytes=0)
            last = frame.without_payload()
            frames += 1
        await snapshots.save(Snapshot(last, take(replay.world)))
    return Folded(last.end, frames, 0, snapshots.whole())


def _scrub(folder: Path, disk: Disk, segments: Sequence[Sealed], left: int) -> int:
    """Goes on where the last one ended, and begins again at the end. Raises Damaged."""
    mark = folder / SCRUBBED
    done = 0
    if SCRUBBED in disk.names(folder):
        words = disk.read(mark, 0, 20).split()
        done = int(words[0]) if words and words[0].isdigit() else 0
    rest = [each for each in segments if each.head.number > done] or segments
    count = 0
    for segment in rest:
        try:
            left -= disk.size(segment.path)
            for _ in sealed_frames(disk, segment):
                pass
        except FileNotFoundError:
            continue  # trimmed meanwhile
        count += 1
        file = disk.create(mark)
        disk.write(file, 0, [b"%d\n" % segment.head.number])
        disk.close(file)
        if left <= 0:
            break
    return count


def make_arrow_segments(folder: Path) -> int:
    """Writes the Arrow segments that are missing, and removes those whose segment is gone.

    Where the disk has little room left none is written: the feed can do without. Raises InUse,
    Damaged or OSError.
    """
    from posthouse.broker.arrow_index import SUFFIX, arrow_of, read_index
    from posthouse.broker.arrow_segments import write_arrow_segment  # it takes PyArrow

    disk = Disk()
    lock = disk.lock(folder / LOCK)
    made = 0
    try:
        segments = sealed(disk, folder)
        wanted = {arrow_of(each.path).name for each in segments}
        there = {name for name in disk.names(folder) if SUFFIX in name}
        for name in there - wanted:
            disk.remove(folder / name)
        for segment in segments:
            if (
                arrow_of(segment.path).name in there
                and read_index(arrow_of(segment.path)) is not None
            ):
                continue
            with contextlib.suppress(FileNotFoundError):  # trimmed meanwhile
                size = disk.size(segment.path)
                if disk.free(folder) < _ROOM * size:
                    break
                write_arrow_segment(
                    segment.path, sealed_frames(disk, segment), MARK_SEGMENTS * size
                )
                made += 1
    finally:
        disk.close(lock)
    return made


def work_on_store(url: str) -> int:
    """Folds a store that is not a folder of segments; returns the exit code."""

    async def run() -> Folded:
        store = open_store(parse_url(url), Opening(read_only=True))
        try:
            return await fold_store(store)
        finally:
            await store.close()

    try:
        folded = asyncio.run(run())
    except (StoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(folded._asdict()) + "\n")
    return 0


def work(folder: Path, *, only_arrow_segments: bool) -> int:
    """Folds, and makes Arrow segments; returns the exit code."""
    try:
        folded = None if only_arrow_segments else fold(folder)
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with contextlib.suppress(StoreError, OSError):  # the feed can do without, and the next is soon
        make_arrow_segments(folder)
    if folded is not None:
        sys.stdout.write(json.dumps(folded._asdict()) + "\n")
    return 0
