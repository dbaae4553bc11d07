"""A short run; `make fuzz` is a long one."""

import pytest

from tests.fuzz import filters, http, pyqueue, servicebus, texts, vibemq


@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_bus_peer_survives_what_is_changed_in_a_conversation(seed: int) -> None:
    assert servicebus.run(seed, cases=1_000, seconds=600) == 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_a_pyqueue_peer_survives_it_too(seed: int) -> None:
    assert pyqueue.run(seed, cases=1_000, seconds=600) == 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_a_vibemq_peer_does_too(seed: int) -> None:
    assert vibemq.run(seed, cases=1_000, seconds=600) == 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_asked_in_http_is_answered_or_ended(seed: int) -> None:
    assert http.run(seed, cases=1_000, seconds=600) == 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_written_is_a_filter_or_a_mistake(seed: int) -> None:
    assert filters.run(seed, cases=1_000, seconds=600) == 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_said_to_be_a_token_or_xml_is_read_or_refused(seed: int) -> None:
    assert texts.run_tokens(seed, cases=1_000, seconds=600) == 1_000
    assert texts.run_xml(seed, cases=1_000, seconds=600) == 1_000
