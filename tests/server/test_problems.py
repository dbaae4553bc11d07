"""Refusals as HTTP says them."""

from posthouse.core.errors import REFUSALS
from posthouse.server.problems import STATUS


def test_every_refusal_has_a_status() -> None:
    assert set(STATUS) == set(REFUSALS)
    assert all(400 <= status < 600 for status in STATUS.values())
