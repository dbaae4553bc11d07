"""The command line, as a stranger would use it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from posthouse.store.disk import Disk
from posthouse.store.file import LOCK, FileStore
from tests.store.test_conformance import closing, frames


def posthouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("posthouse")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def a_journal(folder: Path, *, clean: bool) -> None:
    async def main() -> None:
        store = FileStore(folder, segment_bytes=4096)
        made = frames(100)
        for frame in made + ([closing(made[-1])] if clean else []):
            store.append(frame)
        await store.sync()
        await store.close()

    asyncio.run(main())


def test_a_sound_journal_is_told_so(tmp_path: Path) -> None:
    a_journal(tmp_path, clean=True)
    done = posthouse("store", "verify", "--data", str(tmp_path))
    assert done.returncode == 0
    assert "is sound: 101 frames" in done.stdout
    assert "The last stop was clean." in done.stdout
    assert posthouse("store", "verify", "--data", str(tmp_path)).stdout == done.stdout


def test_programs_get_json(tmp_path: Path) -> None:
    a_journal(tmp_path, clean=False)
    done = posthouse("store", "verify", "--data", str(tmp_path), "--json")
    report = json.loads(done.stdout)
    assert (report["sound"], report["frames"], report["closed"]) == (True, 100, False)
    assert report["end"] == frames(100)[-1].end


def test_a_tail_is_told_and_left_alone(tmp_path: Path) -> None:
    a_journal(tmp_path, clean=False)
    last = max(tmp_path.glob("*.journal"))
    content = bytearray(last.read_bytes())
    end = len(bytes(content).rstrip(b"\0"))
    content[end : end + 4] = b"torn"
    last.write_bytes(content)
    assert "was never synced" in posthouse("store", "verify", "--data", str(tmp_path)).stdout
    assert last.read_bytes() == content


def test_damage_is_named_with_file_and_offset(tmp_path: Path) -> None:
    a_journal(tmp_path, clean=True)
    first = min(tmp_path.glob("*.journal"))
    content = bytearray(first.read_bytes())
    content[500] ^= 1
    first.write_bytes(content)
    done = posthouse("store", "verify", "--data", str(tmp_path))
    assert done.returncode == 1
    assert str(first) in done.stderr
    assert "is damaged at byte" in done.stderr
    done = posthouse("store", "verify", "--data", str(tmp_path), "--json")
    assert json.loads(done.stdout)["sound"] is False


def test_a_folder_in_use_or_missing_is_told(tmp_path: Path) -> None:
    a_journal(tmp_path, clean=True)
    disk = Disk()
    held = disk.lock(tmp_path / LOCK)
    assert "in use" in posthouse("store", "verify", "--data", str(tmp_path)).stderr
    disk.close(held)
    done = posthouse("store", "verify", "--data", str(tmp_path / "none"))
    assert (done.returncode, "check the name" in done.stderr) == (3, True)


def test_help_needs_nothing_heavy() -> None:
    done = posthouse("--help")
    assert done.returncode == 0
    assert "store" in done.stdout
    code = "import posthouse.cli, sys; print('asyncio' in sys.modules, 'msgspec' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == (
        "False False\n"
    )
