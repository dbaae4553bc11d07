"""The command line, as a stranger would use it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from posthouse.broker.clock import VirtualClock
from posthouse.core.commands import Complete, CreateQueue, DeadLetter, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.store.disk import Disk
from posthouse.store.file import LOCK, FileStore
from posthouse.store.lane import Place
from posthouse.store.place_note import write_place
from tests.broker.desk import NS, Desk
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


# With a journal that an engine has written.


def a_broker_s_folder(folder: Path) -> None:
    """Two queues; one message was dead-lettered, one completed, one waits."""

    async def main() -> None:
        store = FileStore(folder, segment_bytes=4096)
        desk = await Desk.open(store, VirtualClock(1_700_000_000_000))
        await desk.do(CreateQueue("again"))
        for id in ("one", "two", "three"):
            envelope = encode_envelope(Envelope(id=id))
            await desk.do(Send("q", [NewMessage(envelope, id.encode() + bytes(2_000))]))
        first, second = await desk.receive(2)
        await desk.do(Complete("q", [first.token]))
        await desk.do(DeadLetter("q", [second.token], reason="bad"))
        await desk.engine.close()

    asyncio.run(main())


def test_the_life_of_a_message_is_shown(tmp_path: Path) -> None:
    a_broker_s_folder(tmp_path)
    arguments = ("store", "trace", "--data", str(tmp_path), "--namespace", NS)
    done = posthouse(*arguments, "--id", "two")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"{NS}/q, message 2:"
    assert lines[1].endswith("2023-11-14 22:13:20.000Z  sent to 'q' as 2")
    assert lines[-1].endswith("dead-lettered as 1: bad")
    (events,) = json.loads(
        posthouse(*arguments, "--queue", "q", "--sequence", "1", "--json").stdout
    )
    assert [event["kind"] for event in events] == ["Sent", "Locked", "Completed"]
    assert posthouse(*arguments, "--id", "none").returncode == 3
    assert posthouse(*arguments, "--queue", "q", "--sequence", "99").returncode == 3
    assert posthouse(*arguments).returncode == 2


def test_the_state_at_a_position_is_shown_and_nothing_is_changed(tmp_path: Path) -> None:
    a_broker_s_folder(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    arguments = ("store", "state", "--data", str(tmp_path))
    now = posthouse(*arguments)
    assert f"  {NS}/q: 1 active\n  {NS}/q/$dead: 1 active\n" in now.stdout
    then = json.loads(posthouse(*arguments, "--at", "5", "--json").stdout)
    assert then["position"] == 5
    assert [q["active"] for q in then["queues"] if q["queue"] == "q"] == [2]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_range_is_sent_again(tmp_path: Path) -> None:
    a_broker_s_folder(tmp_path)
    arguments = ("store", "resend", "--data", str(tmp_path), "--namespace", NS, "--first", "1")
    done = posthouse(*arguments, "--last", "99", "--from", "q", "--into", "again")
    assert (done.returncode, done.stdout) == (0, "3 messages were sent again.\n")
    assert f"{NS}/again: 3 active" in posthouse("store", "state", "--data", str(tmp_path)).stdout
    wrong = posthouse(*arguments, "--last", "99", "--into", "none")
    assert wrong.returncode == 3
    assert "create it first" in wrong.stderr
    assert "clean" in posthouse("store", "verify", "--data", str(tmp_path)).stdout


def test_nothing_is_written_to_a_node_s_folder_without_its_cluster(tmp_path: Path) -> None:
    """Its node could not follow the cluster's log any more, and nobody would know why."""
    alone, node, lines = tmp_path / "alone", tmp_path / "node", tmp_path / "lines"
    a_broker_s_folder(alone)
    a_broker_s_folder(node)
    write_place(Disk(), node, "a log", Place(7, 1, 2, 3, 0, 0))
    assert posthouse("store", "export", "--data", str(node), str(lines)).returncode == 0
    before = {path.name: path.read_bytes() for path in node.iterdir()}
    from_alone, to_node = f"file:{alone}", f"file:{node}"
    for arguments in (
        ("copy", from_alone, to_node),
        ("copy", "--namespace", NS, from_alone, to_node),
        ("copy", "--namespace", NS, "--move", to_node, from_alone),
        ("import", "--store", to_node, str(lines)),
        ("set-clock", "--data", str(node)),
        (
            "resend", "--data", str(node), "--namespace", NS, "--first", "1", "--last", "9",
            "--into", "again",
        ),
    ):  # fmt: skip
        done = posthouse("store", *arguments)
        assert (done.returncode, "is the folder of a node of a cluster" in done.stderr) == (1, True)
    assert {path.name: path.read_bytes() for path in node.iterdir()} == before
    copied = posthouse("store", "copy", to_node, f"file:{tmp_path / 'copy'}")
    assert copied.returncode == 0, copied.stderr


def test_a_folder_is_folded_damaged_and_repaired(tmp_path: Path) -> None:
    a_broker_s_folder(tmp_path)
    data = ("--data", str(tmp_path))
    assert "A snapshot holds all up to" in posthouse("store", "snapshot", *data).stdout
    assert "nothing more to fold" in posthouse("store", "snapshot", *data).stdout
    assert "1 snapshots" in posthouse("store", "verify", *data).stdout
    path = sorted(tmp_path.glob("*.journal"))[-1]
    spoiled = bytearray(path.read_bytes())
    spoiled[200] ^= 1
    path.write_bytes(spoiled)
    broken = posthouse("store", "verify", *data)
    assert broken.returncode == 1
    assert "posthouse store repair" in broken.stderr
    done = posthouse("store", "repair", *data)
    assert done.returncode == 0
    assert f"Not readable: {path.name} at byte" in done.stdout
    assert "positions missing" in done.stdout
    assert posthouse("store", "verify", *data).returncode == 0
    again = json.loads(posthouse("store", "repair", *data, "--json").stdout)
    assert (again["missing"], again["old_files"]) == (0, "damaged-2")


def test_when_the_journal_cannot_be_written_the_exit_code_says_so(tmp_path: Path) -> None:
    """A write that fails inside claimed space: the only way out is to stop."""
    a_broker_s_folder(tmp_path)
    program = """
import errno, os, sys
from posthouse.cli import main
from posthouse.broker.clock import VirtualClock
from posthouse.core.commands import Complete, CreateQueue, DeadLetter, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.store.disk import Disk
def fail(self, file):
    raise OSError(errno.EIO, "the disk is gone")
Disk.sync = fail
sys.exit(main(sys.argv[1:]))
"""
    arguments = ["resend", "--data", str(tmp_path), "--namespace", NS, "--first", "1"]
    command = [sys.executable, "-c", program, "store", *arguments, "--last", "9", "--into", "again"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr == ("the journal could not be written: [Errno 5] the disk is gone\n")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    for action in ("verify", "repair", "snapshot", "state"):
        done = posthouse("store", action, "--data", str(tmp_path))
        assert (done.returncode, "holds no journal" in done.stderr) == (3, True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
