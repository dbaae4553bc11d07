"""What is left of histories that chance writes, when parts of them are lost."""

from functools import cache
from random import Random

import pytest

from posthouse.core import State, evolve
from posthouse.core.dump import dump
from posthouse.core.records import Sent
from tests.core.test_fit_record import Journal, fitted
from tests.invariants import check
from tests.simulate.simulator import Simulator

pytestmark = pytest.mark.untraced


@cache
def a_history(seed: int) -> Journal:
    simulator = Simulator(seed)
    simulator.run(250)
    return simulator.journal


@pytest.mark.parametrize("seed", range(10))
def test_a_whole_history_is_left_as_it_is(seed: int) -> None:
    journal = a_history(seed)
    state = State("sim")
    for position, record in journal:
        evolve(state, record, position)
    assert dump(fitted(journal, "sim")) == dump(state)


@pytest.mark.parametrize("seed", range(40))
def test_with_any_part_lost_the_rest_makes_a_sound_state(seed: int) -> None:
    random = Random(seed)
    whole = a_history(seed % 10)
    journal = list(whole)
    for _ in range(random.randrange(1, 6)):
        first = random.randrange(len(journal))
        del journal[first : first + random.choice([1, 1, 3, 10, 50])]
    state = fitted(journal, "sim")
    check(state, 1 << 50, handed_on=False)
    known = {new.body for _, record in whole if isinstance(record, Sent) for new in record.messages}
    for queue in state.queues.values():
        assert all(message.body in known for message in queue.messages.walk(0))
