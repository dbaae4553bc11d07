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
TRIES = 3  # an input that holds the loop does so each time; the machine's other doings do not


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    # Where wrong credentials are limited, what comes after a flood of them would not be looked at.
    flags = ("--memory", "--dev", "--auto-create", "--auth-failures-max", "0")
    with running(*flags) as broker:
        # What is imported when it is first used is not an input's doing.
        held_seconds(broker)
        ROWS["SQL filters"](broker)
        yield broker


@pytest.mark.parametrize("name", ROWS)
def test_nobody_waits_for(name: str, broker: Running) -> None:
    held: list[float] = []
    while not held or (min(held) >= HELD_SECONDS_MAX and len(held) < TRIES):
        with pinged(broker) as waited:
            held_seconds(broker)
            ROWS[name](broker)
            held.append(held_seconds(broker))
        assert waited
    assert min(held) < HELD_SECONDS_MAX, f"{name}: {held}"
    assert not [each for each in broker.log if each.get("level") == "error"]
