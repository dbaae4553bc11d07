"""Power cuts at every operation, and damage at every byte: what recovery makes of each."""

import asyncio
from random import Random

import pytest

from posthouse.store.errors import Damaged
from posthouse.store.frames import Frame
from posthouse.store.look import CLOSED
from tests.store.faulty_disk import FaultyDisk, File, PowerCut
from tests.store.test_recovery import batches, recovered, segments, until_cut, written

pytestmark = pytest.mark.untraced


def test_a_power_cut_at_any_operation_loses_nothing_acknowledged() -> None:
    work = batches(60)
    every = [frame for batch in work for frame in batch]
    counting = FaultyDisk()
    asyncio.run(until_cut(counting, work, []))
    random = Random(1)
    for cut_at in range(1, counting.operations + 1):
        disk, acknowledged = FaultyDisk(cut_at=cut_at), list[Frame]()
        asyncio.run(until_cut(disk, work, acknowledged))
        for _ in range(3):
            found = recovered(disk.after_power_cut(random))
            assert found == every[: len(found)], "what is found is what was written, in order"
            assert len(found) >= len(acknowledged), f"lost by a power cut at operation {cut_at}"


def test_a_recovery_that_is_cut_short_loses_nothing_either() -> None:
    work = batches(20)
    random = Random(2)
    for cut_at in range(5, 60):
        disk, acknowledged = FaultyDisk(cut_at=cut_at), list[Frame]()
        asyncio.run(until_cut(disk, work, acknowledged))
        disk = disk.after_power_cut(random)
        for again_at in (1, 2, 3, 4):
            second = disk.copy()
            second._cut_at = again_at
            try:
                recovered(second)
            except PowerCut:
                found = recovered(second.after_power_cut(random))
                assert len(found) >= len(acknowledged)


def test_a_journal_cut_at_any_byte_gives_a_prefix_or_a_named_error() -> None:
    disk, every = written(12)
    for victim in segments(disk):
        content = disk.names_now[victim].now()
        for length in range(0, len(content), 7):
            cut = disk.copy()
            cut.names_now[victim] = File(content[:length].ljust(len(content), b"\0"))
            _check_prefix_or_named(cut, every)


def test_any_changed_byte_is_found_or_lies_behind_what_was_durable() -> None:
    disk, every = written(12)
    durable = every[-1].durable
    for victim in segments(disk):
        content = disk.names_now[victim].now()
        end = len(content.rstrip(b"\0"))
        for at in range(end):
            changed = bytearray(content)
            changed[at] ^= 0x40
            flipped = disk.copy()
            flipped.names_now[victim] = File(bytes(changed))
            found = _check_prefix_or_named(flipped, every)
            if found is not None:
                assert found == every or found[-1].end >= durable, f"{victim} at {at}"


def _check_prefix_or_named(disk: FaultyDisk, every: list[Frame]) -> list[Frame] | None:
    try:
        found = recovered(disk)
    except Damaged:
        return None
    assert found == every[: len(found)]
    return found


def test_after_a_clean_stop_every_damage_is_named() -> None:
    disk, every = written(12, clean=True)
    assert recovered(disk.copy()) == every
    for victim in segments(disk):
        content = disk.names_now[victim].now()
        for at in range(len(content.rstrip(b"\0"))):
            changed = bytearray(content)
            changed[at] ^= 0x40
            flipped = disk.copy()
            flipped.names_now[victim] = File(bytes(changed))
            with pytest.raises(Damaged):
                recovered(flipped)
            assert flipped.names_now[victim].now() == changed, "evidence was destroyed"
            assert CLOSED in flipped.names_now
