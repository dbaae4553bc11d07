"""The few things the file store asks of a disk; tests put a failing one in its place."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from posthouse.store.errors import InUse

_VECTOR_MAX = 1024  # buffers that one call may take (IOV_MAX)
_CLEAR_BYTES = 1 << 20
_ZEROS = bytes(64 << 10)
_UNKNOWN = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # errors of kernels that lack the flag


def _write(file: int, offset: int, chunks: Sequence[bytes], flags: int = 0) -> int:
    written = os.pwritev(file, chunks, offset, flags)
    if written < sum(map(len, chunks)):
        raise OSError(errno.EIO, "a write was cut short")
    return written


def _open_itself(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


class Disk:
    """A real one. Errors are OSError, as they come.

    No file is a link to another: a folder that came from elsewhere leads to nothing outside of it.
    """

    def __init__(self) -> None:
        self._synced_by_writing = hasattr(os, "RWF_DSYNC")

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self, path: Path) -> int:
        """Locks a file for one process; the lock ends with the process, however that ends.

        Raises InUse.
        """
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InUse(path.parent) from None
        return file

    def names(self, folder: Path) -> list[str]:
        return sorted(entry.name for entry in folder.iterdir())

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def free(self, folder: Path) -> int:
        """The bytes that can still be claimed by who runs this."""
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize

    def read(self, path: Path, offset: int, length: int) -> bytes:
        with open(path, "rb", opener=_open_itself) as file:
            file.seek(offset)
            return file.read(length)

    def claim(self, path: Path, size: int) -> None:
        """A new file of zeros that has its space for sure, durable but for its name."""
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            os.fsync(file)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(file)

    def create(self, path: Path) -> int:
        """A new, empty file, in the place of an old one."""
        return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_NOFOLLOW)

    def write(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        """Writes all chunks. In claimed space a short write is a failure like any other."""
        for at in range(0, len(chunks), _VECTOR_MAX):
            offset += _write(file, offset, chunks[at : at + _VECTOR_MAX])

    def write_durably(self, file: int, offset: int, chunks: Sequence[bytes]) -> None:
        """Writes and syncs: by one call where that is possible, and other threads run meanwhile.

        After two calls it would wait for its turn twice.
        """
        if self._synced_by_writing and len(chunks) <= _VECTOR_MAX:
            try:
                _write(file, offset, chunks, os.RWF_DSYNC)
            except OSError as error:
                if error.errno not in _UNKNOWN:
                    raise
                self._synced_by_writing = False
            else:
                return
        self.write(file, offset, chunks)
        self.sync(file)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def clear(self, path: Path, offset: int, length: int) -> None:
        """Zeros at this place, durably. The file keeps its size whatever happens meanwhile."""
        file = self.open(path)
        try:
            for at in range(offset, offset + length, _CLEAR_BYTES):
                self.write(file, at, [bytes(min(_CLEAR_BYTES, offset + length - at))])
            os.fsync(file)
        finally:
            os.close(file)

    def truncate(self, path: Path, size: int) -> None:
        """Cuts a file off, durably."""
        file = self.open(path)
        try:
            os.ftruncate(file, size)
            os.fsync(file)
        finally:
            os.close(file)

    def prezero(self, path: Path, offset: int, length: int) -> None:
        """Zeros where nothing but zeros is, so that a later write there is synced sooner."""
        file = self.open(path)
        try:
            many, rest = divmod(length, len(_ZEROS))
            self.write_durably(file, offset, [*[_ZEROS] * many, _ZEROS[:rest]])
        finally:
            os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        """Makes names durable: files made, renamed or removed."""
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
