"""Stores by the words that name them."""

import pytest

from posthouse.store.opening import is_there, open_store, parse_url


def test_the_journal_of_a_cluster_is_for_its_nodes() -> None:
    url = parse_url("nats://user:secret@h1,h2")
    assert not is_there(url)
    with pytest.raises(OSError, match=r"nats://h1,h2 is the journal of a cluster"):
        open_store(url)
