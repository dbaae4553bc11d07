"""The simulator, in the short form that every run of the tests includes."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from posthouse.store.errors import StoreError
from posthouse.store.frames import CLOSING
from posthouse.store.lane import Writing
from posthouse.store.replicated import ReplicatedStore
from tests.simulate import nodes
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


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_nodes_on_a_replicated_log_lose_and_double_nothing(first: int) -> None:
    worlds = [nodes.simulate(seed, 120) for seed in range(first, first + 25)]
    assert sum(world.takeovers for world in worlds) > 25
    assert sum(world.acknowledged for world in worlds) > 500
    assert sum(world.copies for world in worlds) > 0


def test_a_seed_gives_the_same_history_of_nodes() -> None:
    first, second = (nodes.simulate(3, 60) for _ in range(2))
    assert [frame.without_payload() for frame in first.frames] == [
        frame.without_payload() for frame in second.frames
    ]
    assert (first.answered, first.crashes) == (second.answered, second.crashes)


def _a_fence_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader goes on behind the fence of another."""

    def is_won(self: Writing) -> bool:
        won[self] = won.get(self, False) or right.fget(self)
        return won[self]

    won: dict[Writing, bool] = {}
    right = vars(Writing)["is_won"]
    patch.setattr(Writing, "is_won", property(is_won))


def _every_answer_is_fresh(patch: pytest.MonkeyPatch) -> None:
    """Who was deposed believes that nobody else leads."""
    patch.setattr(ReplicatedStore, "is_fresh", True)


def _a_frame_is_kept_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A folder has what the log may never have."""

    async def sync(self: ReplicatedStore) -> None:
        frames = [frame for frame in self._pending if frame.kind != CLOSING]
        await self._keep(frames)
        await right(self)

    async def keep_confirmed(*_: object) -> None: ...

    right = ReplicatedStore.sync
    patch.setattr(ReplicatedStore, "sync", sync)
    patch.setattr(ReplicatedStore, "_keep_confirmed", keep_confirmed)


@pytest.mark.parametrize(
    "mutate",
    [_a_fence_is_not_looked_at, _every_answer_is_fresh, _a_frame_is_kept_before_it_is_confirmed],
)
def test_a_node_that_breaks_a_promise_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(60):
        try:
            nodes.simulate(seed, 120)
        except (AssertionError, StoreError):
            return
    raise AssertionError("nothing was found")


def test_a_seed_gives_the_same_history_under_any_hash_seed() -> None:
    histories = [_digests(hash_seed) for hash_seed in ("1", "4711")]
    assert histories[0].count("\n") > 10
    assert histories[0] == histories[1]


def _digests(hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulate", "--seeds", "12", "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return "".join(line for line in done.stdout.splitlines(keepends=True) if "seeds" not in line)
