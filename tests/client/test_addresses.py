"""Several hosts in a URL, and whose turn it is."""

import pytest

from posthouse import QueueConfig
from posthouse.client.addresses import Address, Turns, parse_addresses
from posthouse.client.config import PosthouseConfig
from posthouse.client.errors import ConfigurationError

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("h1", [("h1", 5)]),
        ("h1,h2:6,h3", [("h1", 5), ("h2", 6), ("h3", 5)]),
        ("h1:7", [("h1", 7)]),
        ("::1", [("::1", 5)]),
        ("[::1]:7,[::2]", [("::1", 7), ("::2", 5)]),
        ("h1, h2", [("h1", 5), ("h2", 5)]),
    ],
)
def test_hosts_have_ports_of_their_own_or_the_common_one(
    hosts: str, found: list[tuple[str, int]]
) -> None:
    assert list(parse_addresses(hosts, 5)) == found


@pytest.mark.parametrize(
    ("url", "addresses", "tls"),
    [
        ("posthouse://me:k%2Fy@h1,h2:5673,h3/shop", [("h1", 5672), ("h2", 5673), ("h3", 5672)], 0),
        ("posthouses://me:k%2Fy@h1,h2:7/shop", [("h1", 5671), ("h2", 7)], 1),
        ("posthouse://me:k%2Fy@[::1]:1,H2/shop", [("::1", 1), ("h2", 5672)], 0),
    ],
)
def test_a_url_names_the_nodes_of_a_cluster(
    url: str, addresses: list[tuple[str, int]], tls: int
) -> None:
    config = QueueConfig.from_url(f"{url}?prefetch=9").provider
    assert isinstance(config, PosthouseConfig)
    assert list(config.addresses) == addresses
    assert (config.namespace, config.prefetch, config.tls) == ("shop", 9, bool(tls))
    assert (config.key_name, config.key) == ("me", PosthouseConfig(key="k/y").key)


@pytest.mark.parametrize("hosts", ["h1,", "h1,h2:x", "h1,h2:0", "h1,h1", "h1,h2:70000", "a,b c"])
def test_hosts_that_make_no_sense_are_refused_without_the_key(hosts: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        QueueConfig.from_url(f"posthouse://me:secretkey@{hosts}")
    assert "secretkey" not in str(refused.value)


def test_an_address_that_is_lost_has_its_turn_again_when_the_others_had_theirs() -> None:
    turns = Turns([A, B, C])
    turns.lose(A)
    assert list(turns) == [B, C, A]
    turns.lose(B)
    assert list(turns) == [C, A, B]


def test_a_leader_that_was_told_is_first_if_it_is_known() -> None:
    turns = Turns([A, B, C])
    turns.prefer("c:3")
    assert list(turns) == [C, A, B]
    for told in ("", "c:4", "elsewhere.test:3", "\0"):
        turns.prefer(told)
        assert list(turns) == [C, A, B]
