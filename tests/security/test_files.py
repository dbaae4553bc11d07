"""Files of the data folder: for their owner alone, and never a way out of it."""

import asyncio
import contextlib
import json
import os
import stat
from pathlib import Path

import pytest

from posthouse.broker.repair import repair
from posthouse.store.errors import StoreError, Unknown
from posthouse.store.file import FileStore
from tests.server.running import development
from tests.store.test_conformance import frames
from tests.waiting import until


def modes(folder: Path) -> dict[str, int]:
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_every_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    """Segments, Arrow segments, snapshots, keys and certificates."""
    data = tmp_path / "data"
    old = os.umask(0)
    try:
        with development(data, "--segment-size", "64k", "--fold-size", "64k") as broker:
            for number in range(40):
                broker.send("q", f"{number}" * 5_000)
            until(
                lambda: any(data.glob("*.arrow")) and any(data.glob("*.snapshot")),
                "there are files of every kind",
            )
            broker.call("GET", "/feed?after=0&limit=10")
    finally:
        os.umask(old)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    found = modes(data)
    assert {Path(name).suffix for name in found} >= {".journal", ".arrow", ".snapshot"}
    public = {name: oct(mode) for name, mode in found.items() if mode & 0o077}
    assert {Path(name).name for name in public} <= {"ca.pem", "server.pem"}, public


async def write_some(folder: Path) -> None:
    """More than fits into the segment that was begun."""
    store = FileStore(folder, segment_bytes=4_096)
    first = store.last.end if store.last is not None else 1
    number = store.last.number + 1 if store.last is not None else 1
    for frame in frames(60, first=first, number=number):
        store.append(frame)
    await store.sync()
    await store.close()


@pytest.mark.parametrize("name", ["next", "reserve", "closed", "lock", "fold-lock"])
def test_a_link_in_a_folder_leads_nowhere(tmp_path: Path, name: str) -> None:
    """The folder was brought from elsewhere; a start or repair writes to nothing outside of it."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    asyncio.run(write_some(data))
    content = bytes(1 << 16)
    outside.write_bytes(content)
    (data / name).unlink(missing_ok=True)
    (data / name).symlink_to(outside)
    with contextlib.suppress(OSError, StoreError):
        asyncio.run(write_some(data))
    with contextlib.suppress(OSError, StoreError):
        repair(data)
    assert outside.read_bytes() == content


@pytest.mark.parametrize(
    "plan",
    [
        {"report": {"old_files": "../outside"}, "old": [], "new": []},
        {"report": {"old_files": "/tmp"}, "old": [], "new": []},
        {"report": {"old_files": "damaged-1"}, "old": ["../secret"], "new": []},
        {"report": {"old_files": "damaged-1"}, "old": [], "new": ["../../secret"]},
        {"report": {"old_files": "damaged-1"}, "old": ["root-key"], "new": []},
    ],
    ids=json.dumps,
)
def test_a_repair_moves_only_what_is_part_of_the_journal(
    tmp_path: Path, plan: dict[str, object]
) -> None:
    data = tmp_path / "data"
    FileStore(data, segment_bytes=4096)
    (tmp_path / "outside").mkdir()
    (tmp_path / "secret").write_text("kept")
    (data / "root-key").write_text("kept")
    (data / "damaged-1").mkdir()
    (data / "repaired").write_text(json.dumps(plan))
    (data / "lock").unlink()
    with pytest.raises(Unknown):
        repair(data)
    assert (tmp_path / "secret").read_text() == (data / "root-key").read_text() == "kept"


def test_a_repair_does_not_work_in_a_folder_elsewhere(tmp_path: Path) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    with development(data) as broker:
        broker.send("q", "one")
    outside.mkdir()
    (outside / "mine").write_text("kept")
    (data / "repairing").symlink_to(outside)
    repair(data)
    assert [each.name for each in outside.iterdir()] == ["mine"]
