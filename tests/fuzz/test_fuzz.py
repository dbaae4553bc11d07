"""A short run; `make fuzz` is a long one."""

import asyncio

import pytest

from tests.fuzz import filters, http, pyqueue, texts, vibemq
from tests.fuzz.__main__ import run


@pytest.mark.parametrize("seed", [1, 2])
def test_a_peer_survives_what_is_changed_in_a_conversation(seed: int) -> None:
    assert asyncio.run(run(seed, cases=150, seconds=600)) == 150


@pytest.mark.parametrize("seed", [1, 2])
def test_a_pyqueue_peer_survives_it_too(seed: int) -> None:
    assert pyqueue.main(seed, cases=200, seconds=600) == 200


@pytest.mark.parametrize("seed", [1, 2])
def test_a_vibemq_peer_does_too(seed: int) -> None:
    assert asyncio.run(vibemq.run(seed, cases=150, seconds=600)) == 150


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_written_is_a_filter_or_a_mistake(seed: int) -> None:
    assert filters.run(seed, cases=1_000, seconds=600) == 1_000


def test_whatever_is_asked_in_http_is_answered_or_ended() -> None:
    assert http.run(1, cases=400, seconds=600) == 400


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_said_to_be_a_token_or_xml_is_read_or_refused(seed: int) -> None:
    assert texts.run_tokens(seed, cases=1_000, seconds=600) == 1_000
    assert texts.run_xml(seed, cases=1_000, seconds=600) == 1_000
