"""The lane's rule, by random histories, and by versions of it that are wrong."""

import os
from collections.abc import Callable
from random import Random

import pytest

from posthouse.store.errors import StoreError
from posthouse.store.lane import FENCE, Entry, Reading, Writing
from tests.simulate.lane import Broken, simulate

HISTORIES = 100_000 if os.environ.get("TORTURE") else 1_000
OF_A_MUTANT = 60  # histories, of which one must break


def test_random_histories_break_no_promise() -> None:
    confirmed = leaderships = 0
    for seed in range(HISTORIES):
        lanes = simulate(seed)
        confirmed += lanes.confirmed
        leaderships += lanes.leaderships
    assert confirmed > 10 * HISTORIES
    assert leaderships > HISTORIES


def _breaks(claims: Callable[[Random, int], int] | None, seeds: range) -> bool:
    for seed in seeds:
        try:
            simulate(seed, claims=claims)
        except (Broken, StoreError, AssertionError):
            return True
    return False


def _any_acknowledgement_is_good(patch: pytest.MonkeyPatch) -> None:
    def acknowledged(self: Writing, run: int, index: int, sequence: int) -> None:
        sent = self._find(run, index)
        right(self, run, index, sequence)
        if sent is not None and sent.entry.part + 1 == sent.entry.parts:
            self.confirmed = max(self.confirmed, sent.entry.number)

    right = Writing.acknowledged
    patch.setattr(Writing, "acknowledged", acknowledged)


def _no_fence_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    def counts(self: Reading, entry: Entry) -> bool:
        return (
            entry.kind == FENCE
            or entry.ordinal == 0
            or (self._place == (entry.run, entry.ordinal - 1))
        )

    patch.setattr(Reading, "_counts", counts)


def _no_run_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    def counts(self: Reading, entry: Entry) -> bool:
        is_leaders = entry.epoch == self.epoch and entry.claim == self.claim
        return entry.kind == FENCE or is_leaders

    patch.setattr(Reading, "_counts", counts)


@pytest.mark.parametrize(
    "mutate", [_any_acknowledgement_is_good, _no_fence_is_looked_at, _no_run_is_looked_at]
)
def test_a_wrong_version_of_the_rule_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert _breaks(None, range(OF_A_MUTANT))


def test_a_claim_that_is_a_nodes_name_is_found_wrong() -> None:
    """A node that comes back takes the fence of its former life for its own."""
    seed = 3003
    simulate(seed)
    assert _breaks(lambda _, name: name + 1, range(seed, seed + 1))
