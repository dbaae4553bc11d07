"""No hostile input holds the event loop of a running broker, so that others would have to wait.

What is measured is the broker's own: how late its loop was, as far as the CPU time of the loop's
thread explains it. A busy machine does not count.
"""

from collections.abc import Iterator

import pytest

from tests.security.hostile import ROWS
from tests.security.wire import held_seconds, pinged
from tests.server.running import Running, running

pytestmark = pytest.mark.alone

HELD_SECONDS_MAX = 0.1
AGAIN = 2  # how often an input has to pass that has not: it may have met a garbage collection


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    # Where wrong credentials are limited, what comes after a flood of them would not be looked at.
    flags = ("--memory", "--dev", "--auto-create", "--auth-failures-max", "0")
    with running(*flags) as broker:
        # What is imported when it is first used is not an input's doing.
        held_seconds(broker)
        ROWS["SQL filters"](broker)
        yield broker


def held_by(name: str, broker: Running) -> float:
    """The longest turn of the loop while an input is dealt with, and somebody else is served."""
    with pinged(broker) as waited:
        held_seconds(broker)
        ROWS[name](broker)
        held = held_seconds(broker)
    assert waited
    return held


@pytest.mark.parametrize("name", ROWS)
def test_nobody_waits_for(name: str, broker: Running) -> None:
    first = held_by(name, broker)
    if first >= HELD_SECONDS_MAX:
        again = [held_by(name, broker) for _ in range(AGAIN)]
        assert max(again) < HELD_SECONDS_MAX, f"{name}: {first}, then {again}"
    assert not [each for each in broker.log if each.get("level") == "error"]
