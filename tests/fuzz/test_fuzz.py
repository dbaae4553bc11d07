"""A short run; `make fuzz` is a long one."""

import asyncio

import pytest

from tests.fuzz.__main__ import run


@pytest.mark.parametrize("seed", [1, 2])
def test_a_peer_survives_what_is_changed_in_a_conversation(seed: int) -> None:
    assert asyncio.run(run(seed, cases=150, seconds=600)) == 150
