"""The time of a node that takes over: it goes on with the old leader's."""

import asyncio

import pytest

from posthouse.broker.clock import STEP_MS, VirtualClock
from posthouse.broker.cluster_clock import WINDOW, ClockOffset, ClusterClock
from posthouse.core.commands import Complete
from posthouse.core.errors import LockLost
from posthouse.store.memory import MemoryJournal, MemoryStore
from tests.broker.cluster import a_follower, catch_up
from tests.broker.desk import Desk


def test_the_offset_is_that_of_the_beat_which_was_quickest() -> None:
    assert ClockOffset().ms is None
    offset = ClockOffset()
    for own_ms, delay_ms in ((1_000, 30), (1_200, 4), (1_400, 90)):
        offset.hear(("a", 1), own_ms - delay_ms + 500, own_ms)
    assert offset.ms == 496
    offset.hear(("a", 2), 2_000, 2_010)  # of another leader nothing is known before
    assert offset.ms == -10


def test_an_old_measurement_is_forgotten() -> None:
    offset = ClockOffset()
    offset.hear(("a", 1), 9_000, 1_000)
    for _ in range(WINDOW):
        offset.hear(("a", 1), 1_100, 1_000)
    assert offset.ms == 100


@pytest.mark.parametrize(
    ("offset_ms", "part"), [(3_000, 10), (-3_000, 10), (STEP_MS, 10), (60_000, 2), (3_600_000, 2)]
)
def test_a_difference_is_worn_off_and_time_never_goes_back(offset_ms: int, part: int) -> None:
    base = VirtualClock(1_000_000)
    clock = ClusterClock(base)
    clock.go_on(offset_ms)
    clock.settle()
    assert clock.now_ms() == 1_000_000 + offset_ms
    before_ms = clock.now_ms()
    steps = 100
    for _ in range(steps):
        base.move_to(base.now_ms() + abs(offset_ms) * part // steps)
        assert clock.now_ms() >= before_ms
        gone_ms = clock.now_ms() - before_ms
        passed_ms = abs(offset_ms) * part // steps
        assert abs(gone_ms - passed_ms) <= passed_ms // part + 1
        before_ms = clock.now_ms()
    base.move_to(base.now_ms() + 100)
    assert clock.now_ms() == base.now_ms()
    assert clock.take_step_ms() == 0


def test_a_clock_that_is_far_ahead_jumps_and_says_by_how_much() -> None:
    base = VirtualClock(1_000_000)
    clock = ClusterClock(base)
    clock.go_on(-60_000)
    assert clock.now_ms() == 940_000
    base.move_to(1_000_500)
    assert clock.now_ms() == 940_500  # until it is told to
    clock.settle()
    assert clock.now_ms() == 1_000_500
    assert clock.take_step_ms() == 60_000
    assert clock.take_step_ms() == 0


def test_waits_are_not_too_long_while_time_runs_faster() -> None:
    base = VirtualClock(0, VirtualClock(0))
    clock = ClusterClock(base)
    assert clock.seconds_until(11_000) == 11.0
    clock.go_on(-4_000)
    assert clock.seconds_until(clock.now_ms() + 11_000) == 10.0
    assert clock.seconds_until(clock.now_ms() - 1) == 0
    assert clock.machine_ms() == base.machine_ms()


LOCK_MS = 30_000


async def _taken_over(offset_ms: int) -> tuple[Desk, VirtualClock, int]:
    """A new leader whose clock is off by this, and the token of a lock with 29 seconds left."""
    journal = MemoryJournal()
    old_clock = VirtualClock(10_000_000)
    old = await Desk.open(MemoryStore(journal=journal), old_clock, lock_ms=LOCK_MS)
    await old.send("one")
    (delivery,) = await old.receive(1)
    machine = VirtualClock(old_clock.now_ms() + offset_ms)
    clock = ClusterClock(machine)
    follower = await a_follower(journal, clock)
    old_clock.move_to(old_clock.now_ms() + 1_000)
    machine.move_to(machine.now_ms() + 1_000)
    await old.engine.flush()
    catch_up(follower, journal)
    offset = ClockOffset()
    offset.hear(("a", 1), old.engine.time_ms(), machine.now_ms())
    assert offset.ms is not None
    clock.go_on(offset.ms)
    await follower.promote()
    clock.settle()
    return Desk(follower), machine, delivery.token


@pytest.mark.parametrize("offset_ms", [0, -4_000, 4_000, -70_000, 70_000, 3_600_000, -3_600_000])
def test_a_takeover_ends_no_lock_whatever_the_clock_is(offset_ms: int) -> None:
    async def main() -> None:
        desk, machine, token = await _taken_over(offset_ms)
        # Nine tenths: where time runs a tenth faster for a while, a lock is that much shorter.
        machine.move_to(machine.now_ms() + 25_000)
        await desk.engine.flush()
        await desk.do(Complete("q", [token]))

    asyncio.run(main())


@pytest.mark.parametrize("offset_ms", [0, -4_000, 4_000, 70_000, 3_600_000])
def test_and_a_lock_still_ends(offset_ms: int) -> None:
    async def main() -> None:
        desk, machine, token = await _taken_over(offset_ms)
        machine.move_to(machine.now_ms() + 2 * LOCK_MS + 2_000)
        await desk.engine.flush()
        with pytest.raises(LockLost):
            await desk.do(Complete("q", [token]))

    asyncio.run(main())
