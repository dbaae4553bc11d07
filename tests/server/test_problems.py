"""Refusals as HTTP says them."""

from posthouse.core.errors import REFUSALS
from posthouse.server.problems import CODES


def test_every_refusal_has_a_status_and_a_name_of_its_own() -> None:
    assert set(CODES) == set(REFUSALS)
    assert len({name for _, name in CODES.values()}) == len(CODES)
    assert all(400 <= status < 600 for status, _ in CODES.values())
