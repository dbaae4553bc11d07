"""A disk in memory that keeps what is not synced apart, and can fail or lose its power.

What a power cut leaves of unsynced writes and names is chosen at random: nothing, the first of
them, or any of them, and a write may be torn at a sector's border.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from posthouse.store.disk import Disk
from posthouse.store.errors import InUse

SECTOR = 512


class PowerCut(BaseException):
    """The machine stops here. Not an Exception: nothing may catch it and go on."""


@dataclass
class File:
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # writes since the last sync

    def now(self) -> bytes:
        return _applied(self.durable, self.pending)


def _applied(data: bytes, writes: Sequence[tuple[int, bytes]]) -> bytes:
    content = bytearray(data)
    for offset, chunk in writes:
        if len(content) < offset + len(chunk):
            content.extend(bytes(offset + len(chunk) - len(content)))
        content[offset : offset + len(chunk)] = chunk
    return bytes(content)


class FaultyDisk(Disk):
    """`cut_at`, `fail_at`: the number of the operation at which it happens; `room`: free bytes."""

    def __init__(self, *, cut_at: int = -1, fail_at: int = -1, failure: int = errno.EIO) -> None:
        super().__init__()
        self.names_now: dict[str, File] = {}
        self.names_durable: dict[str, File] = {}
        self.open_files: dict[int, File] = {}
        self.operations = 0
        self.room: int | None = None
        self._cut_at, self._fail_at, self._failure = cut_at, fail_at, failure

    def _operate(self) -> None:
        self.operations += 1
        if self.operations == self._cut_at:
            raise PowerCut
        if self.operations == self._fail_at:
            raise OSError(self._failure, "injected")

    def after_power_cut(self, random: Random) -> "FaultyDisk":
        """The disk as it is found when the power comes back."""
        disk = FaultyDisk()
        names = self.names_now if random.random() < 0.5 else self.names_durable
        for name, file in names.items():
            kept = _some(random, file.pending)
            content = _applied(file.durable, kept)
            disk.names_now[name] = disk.names_durable[name] = File(content)
        return disk

    def copy(self) -> "FaultyDisk":
        """The files as they are, as another process would find them."""
        disk = FaultyDisk()
        for name, file in self.names_now.items():
            disk.names_now[name] = disk.names_durable[name] = File(file.now())
        return disk

    # What the store asks for.

    def make_folder(self, folder: Path) -> None:
        pass

    def lock(self, path: Path) -> int:
        if -1 in self.open_files:
            raise InUse(path.parent)
        self.open_files[-1] = File()
        return -1

    def names(self, folder: Path) -> list[str]:
        return sorted(self.names_now)

    def size(self, path: Path) -> int:
        return len(self.names_now[path.name].now())

    def read(self, path: Path, offset: int, length: int) -> bytes:
        if path.name not in self.names_now:
            raise FileNotFoundError(path)
        return self.names_now[path.name].now()[offset : offset + length]

    def claim(self, path: Path, size: int) -> None:
        if self.room is not None:
            if size > self.room:
                raise OSError(errno.ENOSPC, "no space left")
            self.room -= size
        self._operate()
        self.names_now[path.name] = File(bytes(size))

    def create(self, path: Path) -> int:
        self._operate()
        self.names_now[path.name] = File()
        return self.open(path)

    def open(self, path: Path) -> int:
        number = len(self.open_files) + 1
        self.open_files[number] = self.names_now[path.name]
        return number

    def write(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        target = self.open_files[file]
        for chunk in chunks:
            target.pending.append((offset, chunk))
            offset += len(chunk)
        self._operate()

    def write_durably(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        self.write(file, offset, chunks)
        self.sync(file)

    def sync(self, file: int) -> None:
        self._operate()
        target = self.open_files[file]
        target.durable, target.pending = target.now(), []

    def close(self, file: int) -> None:
        self.open_files.pop(file)

    def clear(self, path: Path, offset: int, length: int) -> None:
        file = self.names_now[path.name]
        file.pending.append((offset, bytes(length)))
        self._operate()
        file.durable, file.pending = file.now(), []

    def truncate(self, path: Path, size: int) -> None:
        self._operate()
        file = self.names_now[path.name]
        file.durable, file.pending = file.now()[:size], []

    def prezero(self, path: Path, offset: int, length: int) -> None:
        """It happens at any moment, so it does not count as an operation."""
        assert not any(self.names_now[path.name].now()[offset : offset + length])

    def rename(self, old: Path, new: Path) -> None:
        self._operate()
        self.names_now[new.name] = self.names_now.pop(old.name)

    def remove(self, path: Path) -> None:
        self._operate()
        if path.name not in self.names_now:
            raise FileNotFoundError(path)
        if self.room is not None:
            self.room += self.size(path)
        del self.names_now[path.name]

    def free(self, folder: Path) -> int:
        return 1 << 60 if self.room is None else self.room

    def sync_folder(self, folder: Path) -> None:
        self._operate()
        self.names_durable = dict(self.names_now)


def _some(random: Random, writes: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """What reached the platter of writes that no sync has covered."""
    choice = random.randrange(4)
    if choice == 0 or not writes:
        return []
    if choice == 1:
        return writes[: random.randrange(len(writes) + 1)]
    kept = [write for write in writes if random.random() < 0.5]
    if choice == 3 and kept:
        offset, chunk = kept.pop()
        kept.append((offset, chunk[: random.randrange(len(chunk) // SECTOR + 1) * SECTOR]))
    return kept
