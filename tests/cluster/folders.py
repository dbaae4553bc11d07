"""Whether the folders of all nodes are sound, and hold the same journal and the same state."""

import asyncio
import os
import shutil
import signal
import zlib
from collections.abc import Sequence
from pathlib import Path

from posthouse.broker.past import state_at
from posthouse.core.dump import dump
from posthouse.store.disk import Disk
from posthouse.store.file import LOCK
from posthouse.store.look import ARROW_SUFFIX, look
from posthouse.store.opening import Opening, StoreUrl, open_store
from posthouse.store.snapshots import UNFINISHED, FileSnapshots
from tests.cluster.machines import Machine
from tests.waiting import until

_LEFT_OUT = (LOCK, "tls", f"*{ARROW_SUFFIX}*", f"*{UNFINISHED}*")
Seen = dict[int, tuple[int, ...]]  # by a frame's number: all that is to be the same everywhere


def copy_of(machine: Machine, folder: Path) -> Path:
    """Copies a node's folder as it is at one moment: meanwhile its process stands still.

    Its fold process does not, so what that makes is left out while it is unfinished.
    """
    to = folder / machine.name
    shutil.rmtree(to, ignore_errors=True)
    processes = machine.processes("broker")
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        shutil.copytree(machine.data, to, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    return to


def end_of(folder: Path) -> int:
    """The position behind the last frame. Raises StoreError where the folder is not sound."""
    found = look(Disk(), folder)
    FileSnapshots(folder).verify()
    return found.end


def _wait_for(machine: Machine, end: int, folder: Path) -> None:
    """Waits until its folder has all positions below one; its copy has them, too."""
    until(lambda: end_of(copy_of(machine, folder)) >= end, f"{machine.name} has everything")


def check_agree(machines: Sequence[Machine], leader: Machine, folder: Path) -> int:
    """Waits until all nodes have what the leader has, and compares them.

    Returns the number of frames that all of them have.
    """
    folder.mkdir(exist_ok=True)
    end = end_of(copy_of(leader, folder))
    for machine in machines:
        _wait_for(machine, end, folder)
    copies = [folder / machine.name for machine in machines]
    common = min(map(end_of, copies))
    seen, states = [], []
    for copy in copies:
        frames, state = asyncio.run(_read(copy, common))
        seen.append(frames)
        states.append(state)
    shared = set.intersection(*map(set, seen))
    for number in sorted(shared):
        values = {each[number] for each in seen}
        assert len(values) == 1, f"frame {number} differs: {values}"
    assert all(state == states[0] for state in states), f"the states differ at {common - 1}"
    return len(shared)


async def _read(folder: Path, end: int) -> tuple[Seen, object]:
    store = open_store(StoreUrl("file", str(folder)), Opening(read_only=True))
    try:
        frames: Seen = {}
        async for frame in store.read(1, end):
            checksum = zlib.crc32(frame.payload)
            frames[frame.number] = (frame.epoch, frame.first, frame.count, frame.time_ms, checksum)
        world = await state_at(store, store.snapshots, end - 1)
        return frames, {name: dump(state, bodies=False) for name, state in world.states.items()}
    finally:
        await store.close()
