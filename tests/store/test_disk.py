"""The real disk."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from posthouse.store.disk import Disk
from posthouse.store.errors import InUse
from posthouse.store.file import FileStore


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    disk = Disk()
    held = disk.lock(tmp_path / "lock")
    with pytest.raises(InUse, match="in use by another process"):
        FileStore(tmp_path)
    disk.close(held)
    disk.close(disk.lock(tmp_path / "lock"))


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    FileStore(tmp_path / "data", segment_bytes=4096)
    for path in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    disk.claim(path, 100)
    file = disk.open(path)
    chunks = [b"%04d" % number for number in range(3_000)]
    disk.write(file, 10, chunks)
    disk.sync(file)
    disk.close(file)
    assert disk.read(path, 10, 12_000) == b"".join(chunks)
    disk.clear(path, 14, 6)
    assert disk.read(path, 0, 26) == bytes(10) + b"0000" + bytes(6) + b"020003"


def test_a_file_that_cannot_have_its_space_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"(?i)large|space") as failed:
        Disk().claim(tmp_path / "huge", 1 << 62)
    assert failed.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert list(tmp_path.iterdir()) == []


def test_a_short_write_is_a_failure(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    disk.claim(path, 4096)
    file = disk.open(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="cut short"):
            disk.write(file, 4000, [b"x" * 90, b"y" * 90])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    disk.close(file)


@pytest.mark.parametrize("count", [3, 3_000])
@pytest.mark.parametrize("known", [True, False])
def test_what_is_written_durably_is_synced_by_the_same_call_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, known: bool
) -> None:
    """A kernel that does not know the flag says so before it has written anything."""
    write, synced = os.pwritev, list[str]()

    def written(file: int, chunks: list[bytes], offset: int, flags: int = 0) -> int:
        if flags and not known:
            raise OSError(errno.EOPNOTSUPP, "unknown flag")
        synced.extend(["written"] * (flags == os.RWF_DSYNC))
        return write(file, chunks, offset, flags)

    monkeypatch.setattr(os, "pwritev", written)
    disk, path = Disk(), tmp_path / "file"
    monkeypatch.setattr(disk, "sync", lambda file: synced.append("synced"))
    disk.claim(path, 20_000)
    file = disk.open(path)
    chunks = [b"%04d" % number for number in range(count)]
    disk.write_durably(file, 10, chunks)
    disk.close(file)
    assert disk.read(path, 10, 4 * count) == b"".join(chunks)
    assert synced == ["written" if known and count == 3 else "synced"]


def test_a_failure_to_write_durably_is_told(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    disk.claim(path, 100)
    file = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file") as failed:
        disk.write_durably(file, 0, [b"x"])
    assert failed.value.errno == errno.EBADF
    disk.close(file)
