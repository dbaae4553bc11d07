"""The lane's rule, by random histories, and by versions of it that are wrong."""

import os
from collections.abc import Callable
from random import Random

import pytest

from posthouse.store.errors import StoreError
from posthouse.store.lane import FENCE, MARK, Entry, Look, Publish, Reading, Writing
from tests.simulate.lane import Broken, Lanes, Node, simulate

HISTORIES = 100_000 if os.environ.get("TORTURE") else 1_000
OF_A_MUTANT = 300  # histories, of which one must break


def test_random_histories_break_no_promise() -> None:
    confirmed = leaderships = purges = newcomers = 0
    for seed in range(HISTORIES):
        lanes = simulate(seed)
        confirmed += lanes.confirmed
        leaderships += lanes.leaderships
        purges += lanes.purges
        newcomers += lanes.newcomers
    assert confirmed > 10 * HISTORIES
    assert leaderships > HISTORIES
    assert min(purges, newcomers) > HISTORIES // 10


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


def _a_mark_always_counts(patch: pytest.MonkeyPatch) -> None:
    def counts(self: Reading, entry: Entry) -> bool:
        return entry.kind == MARK or right(self, entry)

    right = Reading._counts
    patch.setattr(Reading, "_counts", counts)


def _a_run_begins_while_another_is_under_way(patch: pytest.MonkeyPatch) -> None:
    def poll(self: Writing, now: float) -> list[Publish | Look]:
        if self._index >= self._run_messages:
            self._run += 1
            self._index = 0
        return right(self, now)

    right = Writing.poll
    patch.setattr(Writing, "poll", poll)


def _an_acknowledgement_says_who_leads_now(patch: pytest.MonkeyPatch) -> None:
    def poll(self: Writing, now: float) -> list[Publish | Look]:
        polled[self] = now
        return right_poll(self, now)

    def acknowledged(self: Writing, run: int, index: int, sequence: int) -> None:
        before = self.confirmed
        right(self, run, index, sequence)
        if self.confirmed > before:
            self.led_at = polled[self]

    polled: dict[Writing, float] = {}
    right, right_poll = Writing.acknowledged, Writing.poll
    patch.setattr(Writing, "poll", poll)
    patch.setattr(Writing, "acknowledged", acknowledged)


def _it_is_purged_up_to_any_message(patch: pytest.MonkeyPatch) -> None:
    def purge(self: Lanes, node: Node) -> None:
        self.log.purge(min(self.log.last, node.reading.sequence))

    patch.setattr(Lanes, "_purge", purge)


@pytest.mark.parametrize(
    "mutate",
    [
        _any_acknowledgement_is_good,
        _no_fence_is_looked_at,
        _no_run_is_looked_at,
        _a_mark_always_counts,
        _a_run_begins_while_another_is_under_way,
        _an_acknowledgement_says_who_leads_now,
        _it_is_purged_up_to_any_message,
    ],
)
def test_a_wrong_version_of_the_rule_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert _breaks(None, range(OF_A_MUTANT))


def test_a_claim_that_is_a_nodes_name_is_found_wrong() -> None:
    """A node that comes back takes the fence of its former life for its own: one in thousands."""
    assert _breaks(lambda _, name: name + 1, range(10_000))
