"""No hostile input holds the event loop of a running broker, so that others would have to wait.

What is measured is the broker's own: how late its loop was, as far as the CPU time of the loop's
thread explains it. A busy machine does not count.
"""

from collections.abc import Iterator

import pytest

from tests.security.hostile import ROWS
from tests.security.wire import held_seconds, pinged
from tests.server.running import Running, running

HELD_SECONDS_MAX = 0.1


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running("--memory", "--dev", "--auto-create") as broker:
        # What is imported when it is first used is not an input's doing.
        held_seconds(broker)
        ROWS["SQL filters"](broker)
        yield broker


@pytest.mark.parametrize("name", ROWS)
def test_nobody_waits_for(name: str, broker: Running) -> None:
    with pinged(broker) as waited:
        held_seconds(broker)
        ROWS[name](broker)
        held = held_seconds(broker)
    assert waited
    assert held < HELD_SECONDS_MAX, f"{name}: {held:.3f} s"
    assert not [each for each in broker.log if each.get("level") == "error"]
