"""Data folders that earlier versions wrote: each opens, and holds what it held."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.replay import recover
from posthouse.core.commands import Receive, Received
from posthouse.store.disk import Disk
from posthouse.store.file import FileStore
from posthouse.store.look import look
from posthouse.store.snapshots import FileSnapshots
from tests.golden.make import EXPECTED, NS, described
from tests.inside import state_of

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob(f"*/{EXPECTED}"))
each_folder = pytest.mark.parametrize("golden", FOLDERS, ids=lambda path: path.name)


def test_there_is_one_for_each_version() -> None:
    assert [path.name for path in FOLDERS] == ["v1", "v2"]


@each_folder
def test_a_golden_folder_is_sound(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / "data")
    found = look(Disk(), folder)
    assert found.closed
    assert len(found.segments) > 1
    assert FileSnapshots(folder).verify() == 1


@each_folder
def test_a_golden_journal_gives_the_state_it_gave(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / "data")

    async def main() -> bytes:
        store = FileStore(folder, read_only=True)
        world = await recover(store, None)
        await store.close()
        return described(world)

    found = msgspec.json.decode(asyncio.run(main()))
    check_same(found, msgspec.json.decode((golden / EXPECTED).read_bytes()))


# What older folders know nothing of, and what that means for them.
NEW: dict[str, object] = {
    "topic": None, "temporary": False, "subscriptions": [], "rules": [], "transfer": None,
    "relays": False, "delivery": "competing", "dead_letter_filter_errors": True,
    "forward_to": None, "forward_dead_to": None, "backoff_ms": [], "overflow": "reject",
    "removed": [], "fields": {}, "schedules": [], "extras": {}, "by": "", "hops": 0, "turns": 0,
    "limit_counts": "all", "late_settling": False, "forward_dead_unchanged": False,
    "max_locked": None,
}  # fmt: skip

LEARNED = ("firsts", "seen_ids")  # what was not kept then, though old records tell it


def check_same(found: Any, expected: Any) -> None:
    if isinstance(found, dict) and isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for name, value in found.items():
            if name in expected:
                check_same(value, expected[name])
            elif name not in LEARNED:
                assert value == NEW[name], name
    elif isinstance(found, list) and isinstance(expected, list):
        assert len(found) >= len(expected)
        # A filter that is not loose, or something that was made by nobody in particular.
        assert found[len(expected) :] in ([], [False], [""])
        for one, other in zip(found, expected, strict=False):
            check_same(one, other)
    else:
        assert found == expected


@each_folder
def test_a_golden_folder_is_started_from_its_snapshot(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / "data")
    expected = msgspec.json.decode((golden / EXPECTED).read_bytes())

    async def main() -> None:
        store = FileStore(folder)
        engine = await Engine.open(store, VirtualClock(200_000), 9, snapshots=store.snapshots)
        state = state_of(engine, NS)
        counts = {name: queue.counts for name, queue in state.queues.items()}
        assert counts == {name: q["counts"] for name, q in expected[NS]["queues"].items()}
        command = Receive("plain", engine.new_receiver(), 3)
        answer = await engine.ask(BROKER, NS, command)
        assert isinstance(answer, Received)
        assert all(isinstance(each.message.body, bytes) for each in answer.deliveries)
        assert len(answer.deliveries) == 3
        await engine.close()

    asyncio.run(main())
