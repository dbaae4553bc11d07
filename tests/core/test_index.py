"""The index: messages by sequence number, against a dictionary."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.index import CHUNK, Index
from posthouse.core.message import ACTIVE, Message


def a_stored(sequence: int) -> Message:
    return Message(sequence, 0, b"", None, b"", 4, None, 0, 0, 0, ACTIVE, 0)


def an_index(*sequences: int) -> Index:
    index = Index()
    for sequence in sequences:
        index.put(a_stored(sequence))
    return index


def walked(index: Index, first: int) -> list[int]:
    return [message.sequence for message in index.walk(first)]


def test_a_message_is_found_by_its_number() -> None:
    index = an_index(1, 2_000)
    assert index[2_000].sequence == 2_000
    assert index.get(1) is index[1]


def test_a_number_that_is_not_there_is_not_found() -> None:
    index = an_index(1)
    assert index.get(2) is None
    assert index.get(5_000) is None
    with pytest.raises(KeyError):
        index[2]


def test_a_popped_message_is_gone() -> None:
    index = an_index(1, 2)
    assert index.pop(1).sequence == 1
    assert walked(index, 0) == [2]
    index.pop(2)
    assert walked(index, 0) == []


def test_a_walk_starts_anywhere() -> None:
    index = an_index(1, 2, 1_023, 1_024, 5_000)
    assert walked(index, 2) == [2, 1_023, 1_024, 5_000]
    assert walked(index, 1_024) == [1_024, 5_000]
    assert walked(index, 3_000) == [5_000]
    assert walked(index, 5_001) == []


@given(
    st.lists(st.integers(1, 700), max_size=20),
    st.lists(st.integers(0, 19)),
    st.integers(0, 10_000),
)
def test_an_index_is_a_dictionary_in_order(gaps: list[int], gone: list[int], first: int) -> None:
    sequence, index, inside = 0, Index(), list[int]()
    for gap in gaps:
        sequence += gap
        index.put(a_stored(sequence))
        inside.append(sequence)
    for at in gone:
        if at < len(inside):
            index.pop(inside.pop(at))
    assert walked(index, first) == [each for each in inside if each >= first]
    assert all(index.get(each) is not None for each in inside)


def test_a_chunk_with_few_messages_left_takes_little_room() -> None:
    index = Index()
    for sequence in range(2 * CHUNK):
        index.put(a_stored(sequence))
    for sequence in range(CHUNK):
        if sequence != 7:
            index.pop(sequence)
    assert [message.sequence for message in index.walk(0)][:2] == [7, CHUNK]
    assert sys.getsizeof(index.chunks[0]) < sys.getsizeof(index.chunks[1]) / 4
