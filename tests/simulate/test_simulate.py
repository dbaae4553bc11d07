"""The simulator, in the short form that every run of the tests includes."""

import os
import subprocess
import sys

import pytest

from tests.simulate.cluster import simulate
from tests.simulate.simulator import Simulator

pytestmark = pytest.mark.long


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_the_core_agrees_with_the_reference(first: int) -> None:
    for seed in range(first, first + 10):
        Simulator(seed).run(300)


@pytest.mark.parametrize("first", range(0, 9, 3))
def test_followers_are_as_the_leader_was_and_can_take_over(first: int) -> None:
    clusters = [simulate(seed, 80) for seed in range(first, first + 3)]
    assert sum(cluster.takeovers for cluster in clusters) > 1


def test_a_seed_gives_the_same_history_under_any_hash_seed() -> None:
    histories = [_digests(hash_seed) for hash_seed in ("1", "4711")]
    assert histories[0].count("\n") > 10
    assert histories[0] == histories[1]


def _digests(hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulate", "--seeds", "12", "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return "".join(line for line in done.stdout.splitlines(keepends=True) if "seeds" not in line)
