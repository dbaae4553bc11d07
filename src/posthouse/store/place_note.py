"""A note in a node's folder of where reading of the replicated log stands: the file `lanes`.

With it a start goes on behind what was read before. It is written about once a second and never
synced. Lost, old or unreadable it does no harm: reading begins at the log's first message then, and
skips the frames that the folder has.

A note must never be ahead of the folder, or frames would be missing: after a power cut the folder
may have lost its end, and the note may not. So it counts only where the folder has the frame that
it names. A note of another log, or of one that has lost its end, does not count either.
"""

import contextlib
import zlib
from pathlib import Path

import msgspec

from posthouse.store.disk import Disk
from posthouse.store.lane import BEGINNING, Place
from posthouse.store.log import Log

NOTE, UNFINISHED = "lanes", "lanes-new"
_BYTES_MAX = 4096


def write_place(disk: Disk, folder: Path, log: str, place: Place) -> None:
    """Writes the note whole or not at all; where the disk has no room for it, there is none."""
    content = msgspec.json.encode([log, *place])
    with contextlib.suppress(OSError):
        file = disk.create(folder / UNFINISHED)
        try:
            disk.write(file, 0, [b"%08x " % zlib.crc32(content), content, b"\n"])
        finally:
            disk.close(file)
        disk.rename(folder / UNFINISHED, folder / NOTE)


def read_place(disk: Disk, folder: Path, log: Log, number: int) -> Place:
    """The place to go on from, where a folder ends with this frame; else the log's beginning."""
    noted = _read(disk, folder)
    if noted is None:
        return BEGINNING
    identity, place = noted
    is_of_this_log = identity == log.identity and place.sequence <= log.end
    return place if is_of_this_log and place.number <= number else BEGINNING


def is_noted(folder: Path) -> bool:
    """Whether a folder is that of a node, because it has followed a log."""
    return (folder / NOTE).exists()


def forget_place(disk: Disk, folder: Path) -> None:
    """Removes the note. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(folder / NOTE)
        disk.sync_folder(folder)


def _read(disk: Disk, folder: Path) -> tuple[str, Place] | None:
    try:
        checksum, _, content = disk.read(folder / NOTE, 0, _BYTES_MAX).partition(b" ")
        content = content.removesuffix(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return None
        identity, sequence, epoch, claim, number, run, ordinal = msgspec.json.decode(
            content, type=tuple[str, int, int, int, int, int | None, int]
        )
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return identity, Place(sequence, epoch, claim, number, run, ordinal)
