"""Node links without I/O: who proves what, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.server.node_link import (
    CLIENT_BYTES_MAX,
    END_OF_INPUT,
    MAGIC,
    BadLink,
    LeaderEnd,
    NodeEnd,
    RelayedClient,
    Unframer,
    Verdict,
    frame,
    is_link,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
CLIENT = RelayedClient("192.0.2.7", True, "h1:5671", "b")


def ends(node_key: bytes = KEY, leader_key: bytes = KEY) -> tuple[NodeEnd, LeaderEnd]:
    return NodeEnd(node_key, CLIENT, b"n" * 32), LeaderEnd(leader_key, b"l" * 32)


def told(node: NodeEnd, leader: LeaderEnd) -> bytes:
    """What the node says when the leader has answered its first words."""
    return node.receive(leader.receive(node.begin()))


def test_both_ends_prove_that_they_know_the_secret() -> None:
    node, leader = ends()
    assert leader.receive(told(node, leader)) == b""
    assert leader.client == CLIENT
    node.receive(leader.answer(Verdict.WELCOME) + b"first words")
    assert (node.verdict, node.rest) == (Verdict.WELCOME, b"first words")


@given(st.lists(st.integers(1, 40), max_size=20))
def test_it_does_not_matter_how_the_network_cuts_the_bytes(cuts: list[int]) -> None:
    node, leader = ends()

    def pass_on(data: bytes, end: NodeEnd | LeaderEnd) -> bytes:
        answers = b""
        for cut in cuts:
            piece, data = data[:cut], data[cut:]
            answers += end.receive(piece) if piece else b""
        return answers + (end.receive(data) if data else b"")

    nonce = pass_on(node.begin(), leader)
    proof = pass_on(nonce, node)
    pass_on(proof, leader)
    assert leader.client == CLIENT
    pass_on(leader.answer(Verdict.NOT_LEADER), node)
    assert node.verdict == Verdict.NOT_LEADER


def test_a_node_with_another_secret_is_refused() -> None:
    node, leader = ends(node_key=OTHER_KEY)
    said = told(node, leader)
    with pytest.raises(BadLink, match="secret"):
        leader.receive(said)
    assert leader.client is None


def test_a_leader_with_another_secret_gets_none_of_the_clients_bytes() -> None:
    node, leader = ends(leader_key=OTHER_KEY)
    node.receive(leader.receive(node.begin()))
    with pytest.raises(BadLink, match="secret"):
        node.receive(leader.answer(Verdict.WELCOME))
    assert node.verdict is None


def test_a_proof_that_was_overheard_is_worth_nothing_a_second_time() -> None:
    node, leader = ends()
    overheard = told(node, leader)
    again = LeaderEnd(KEY, b"m" * 32)
    again.receive(MAGIC + b"n" * 32)
    with pytest.raises(BadLink, match="secret"):
        again.receive(overheard)


def test_a_leaders_proof_does_not_serve_as_a_nodes() -> None:
    node, leader = ends()
    leader.receive(told(node, leader))
    proof = leader.answer(Verdict.WELCOME)[1:]
    again = LeaderEnd(KEY, b"l" * 32)
    again.receive(MAGIC + b"n" * 32)
    with pytest.raises(BadLink, match="secret"):
        again.receive(proof + (1).to_bytes(2, "big") + b"\0")


@pytest.mark.parametrize("at", range(1, 34 + len(frame(b"")), 5))
def test_what_was_changed_on_its_way_is_refused(at: int) -> None:
    node, leader = ends()
    said = bytearray(told(node, leader))
    said[at if at < 32 else -1] ^= 1
    with pytest.raises(BadLink):
        leader.receive(bytes(said))


@pytest.mark.parametrize("length", [CLIENT_BYTES_MAX + 1, 65_535])
def test_a_length_is_bounded_before_anything_is_kept(length: int) -> None:
    node, leader = ends()
    leader.receive(node.begin())
    with pytest.raises(BadLink, match="too much"):
        leader.receive(bytes(32) + length.to_bytes(2, "big"))


def test_nothing_may_follow_before_the_verdict() -> None:
    node, leader = ends()
    said = told(node, leader)
    with pytest.raises(BadLink, match="too much"):
        leader.receive(said + b"x")


@pytest.mark.parametrize("address", ["", "localhost", "192.0.2.7:80", "192.0.2.7\n", "::1%\n"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    node = NodeEnd(KEY, RelayedClient(address, True, "h1:5671"), b"n" * 32)
    leader = LeaderEnd(KEY, b"l" * 32)
    said = told(node, leader)
    with pytest.raises(BadLink, match="cannot be read"):
        leader.receive(said)


def test_links_are_told_by_their_first_bytes() -> None:
    assert is_link(b"PHNODE1" + bytes(32)) is True
    assert is_link(b"PHN") is None
    assert is_link(b"PUT / HTTP/1.1") is False
    assert is_link(b"PHNODE2") is False


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.integers(1, 30))
def test_frames_give_the_clients_bytes_however_they_are_cut(chunks: list[bytes], size: int) -> None:
    data = b"".join(map(frame, chunks)) + END_OF_INPUT
    unframer = Unframer()
    found = b"".join(unframer.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert found == b"".join(chunks)
    assert unframer.is_over
    with pytest.raises(BadLink, match="behind the end"):
        unframer.feed(b"x")


def test_a_frame_has_a_largest_size() -> None:
    with pytest.raises(BadLink, match="too large"):
        Unframer().feed(b"\xff\xff\xff\xff")
