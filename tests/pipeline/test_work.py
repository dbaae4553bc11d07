"""How long a job still takes, as far as that can be known."""

import pytest

from posthouse.pipeline.jobs import reconcile, report, triage
from posthouse.pipeline.work import Way


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_is_told_by_the_share_that_is_behind() -> None:
    clock = Clock()
    way = Way((0.2, 0.8, 1.0), clock=clock)
    assert way.seconds_left(5) is None  # nothing is known yet
    clock.now += 10
    way.step()
    assert (way.seconds, way.seconds_left(5)) == (10, 40)
    clock.now += 25
    assert way.seconds_left(5) == 15
    clock.now += 20
    assert way.seconds_left(5) is None  # it takes longer than was thought
    clock.now += 25
    way.step()
    assert way.seconds_left(5) == pytest.approx(20)
    way.step()
    assert way.seconds_left(5) == 0


def test_within_the_first_step_it_is_told_by_the_rows_that_were_read() -> None:
    clock = Clock()
    way = Way((0.2, 1.0), 1_000, clock)
    clock.now += 1
    assert way.seconds_left(0) is None
    assert way.seconds_left(None) is None
    assert way.seconds_left(100) == pytest.approx(49)
    assert way.seconds_left(2_000) == pytest.approx(4)  # of some there was more than one look
    alone = Way(rows=1_000, clock=clock)
    clock.now += 1
    assert alone.seconds_left(250) == 3
    assert alone.seconds_left(1_000) == 0


@pytest.mark.parametrize("shares", [report.SHARES, reconcile.SHARES, triage.SHARES])
def test_shares_go_up_to_the_whole(shares: tuple[float, ...]) -> None:
    assert list(shares) == sorted(shares)
    assert shares[-1] == 1
