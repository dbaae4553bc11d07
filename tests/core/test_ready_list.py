"""Ready lists: ready sequence numbers in order, against a sorted list."""

from heapq import heapify

from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.heaps import walk
from posthouse.core.ready_list import ReadyList


def a_ready_list(*sequences: int) -> ReadyList:
    ready = ReadyList()
    ready.extend(sequences)
    return ready


def test_an_empty_ready_list_has_no_first() -> None:
    assert ReadyList().first() is None
    assert list(ReadyList().walk()) == []
    assert list(ReadyList().head(3)) == []


def test_numbers_come_out_as_they_went_in() -> None:
    ready = a_ready_list(1, 2, 5)
    assert ready.first() == 1
    assert list(ready.head(2)) == [1, 2]
    assert list(ready.walk()) == [1, 2, 5]


def test_a_number_given_back_is_in_its_old_place() -> None:
    ready = a_ready_list(1, 2, 3)
    ready.take([1, 2])
    ready.give_back(2)
    assert ready.first() == 2
    assert list(ready.head(5)) == [2, 3]


def test_what_was_given_back_is_first_when_nothing_new_is_left() -> None:
    ready = a_ready_list(1)
    ready.take([1])
    ready.give_back(1)
    assert ready.first() == 1
    ready.take([1])
    assert ready.first() is None


def test_a_number_can_leave_from_the_middle_and_come_back() -> None:
    ready = a_ready_list(1, 2, 3)
    ready.take([2])
    assert list(ready.walk()) == [1, 3]
    ready.give_back(2)
    assert list(ready.walk()) == [1, 2, 3]


def test_a_number_given_back_can_leave_from_the_middle_again() -> None:
    ready = a_ready_list(1, 2, 3)
    ready.take([1, 2, 3])
    for sequence in (1, 2, 3):
        ready.give_back(sequence)
    ready.take([2])
    assert list(ready.walk()) == [1, 3]
    ready.take([1])
    assert ready.first() == 3


def test_a_long_ready_list_forgets_what_was_taken() -> None:
    ready = ReadyList()
    ready.extend(range(1, 3_001))
    ready.take(list(range(1, 2_001)))
    ready.give_back(1_000)
    assert list(ready.head(2)) == [1_000, 2_001]
    assert len(list(ready.walk())) == 1_001


@given(st.lists(st.tuples(st.sampled_from(["append", "take", "back", "head"]), st.integers(0, 9))))
def test_a_ready_list_is_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    ready, inside, taken, last = ReadyList(), list[int](), list[int](), 0
    for what, number in steps:
        if what == "append":
            new = range(last + 1, last + 1 + number)
            ready.extend(new)
            inside += new
            last += number
        elif what == "take" and inside:
            at = number % len(inside)
            ready.take(inside[at : at + 2])
            taken += inside[at : at + 2]
            del inside[at : at + 2]
        elif what == "head" and inside:
            ready.take(inside[:number])
            taken += inside[:number]
            del inside[:number]
        elif what == "back" and taken:
            sequence = taken.pop(number % len(taken))
            ready.give_back(sequence)
            inside = sorted([*inside, sequence])
        assert ready.first() == (inside[0] if inside else None)
        assert list(ready.head(3)) == inside[:3]
        assert list(ready.walk()) == inside


@given(st.lists(st.integers()))
def test_walking_a_heap_sorts_it_and_leaves_it_as_it_was(items: list[int]) -> None:
    heapify(items)
    before = list(items)
    assert list(walk(items)) == sorted(items)
    assert items == before


def test_what_left_from_behind_a_head_that_stays_is_dropped_in_the_end() -> None:
    ready = ReadyList()
    ready.extend(range(1, 1_001))
    ready.take([1])
    ready.give_back(1)
    for sequence in range(3, 1_001):
        ready.take([sequence])
    assert list(ready.walk()) == [1, 2]
    assert len(ready._fresh) < 300
    ready.take([1])
    assert ready.first() == 2


def test_an_empty_ready_list_takes_no_room() -> None:
    ready = ReadyList()
    ready.extend(range(1, 901))
    ready.take(list(range(1, 901)))
    assert len(ready._fresh) == 0
