"""Lanes: ready sequence numbers in order, against a sorted list."""

from heapq import heapify

from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.heaps import walk
from posthouse.core.lane import Lane


def a_lane(*sequences: int) -> Lane:
    lane = Lane()
    lane.extend(sequences)
    return lane


def test_an_empty_lane_has_no_first() -> None:
    assert Lane().first() is None
    assert list(Lane().walk()) == []
    assert list(Lane().head(3)) == []


def test_numbers_come_out_as_they_went_in() -> None:
    lane = a_lane(1, 2, 5)
    assert lane.first() == 1
    assert list(lane.head(2)) == [1, 2]
    assert list(lane.walk()) == [1, 2, 5]


def test_a_number_given_back_is_in_its_old_place() -> None:
    lane = a_lane(1, 2, 3)
    lane.take([1, 2])
    lane.give_back(2)
    assert lane.first() == 2
    assert list(lane.head(5)) == [2, 3]


def test_what_was_given_back_is_first_when_nothing_new_is_left() -> None:
    lane = a_lane(1)
    lane.take([1])
    lane.give_back(1)
    assert lane.first() == 1
    lane.take([1])
    assert lane.first() is None


def test_a_number_can_leave_from_the_middle_and_come_back() -> None:
    lane = a_lane(1, 2, 3)
    lane.take([2])
    assert list(lane.walk()) == [1, 3]
    lane.give_back(2)
    assert list(lane.walk()) == [1, 2, 3]


def test_a_number_given_back_can_leave_from_the_middle_again() -> None:
    lane = a_lane(1, 2, 3)
    lane.take([1, 2, 3])
    for sequence in (1, 2, 3):
        lane.give_back(sequence)
    lane.take([2])
    assert list(lane.walk()) == [1, 3]
    lane.take([1])
    assert lane.first() == 3


def test_a_long_lane_forgets_what_was_taken() -> None:
    lane = Lane()
    lane.extend(range(1, 3_001))
    lane.take(list(range(1, 2_001)))
    lane.give_back(1_000)
    assert list(lane.head(2)) == [1_000, 2_001]
    assert len(list(lane.walk())) == 1_001


@given(st.lists(st.tuples(st.sampled_from(["append", "take", "back", "head"]), st.integers(0, 9))))
def test_a_lane_is_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    lane, inside, taken, last = Lane(), list[int](), list[int](), 0
    for what, number in steps:
        if what == "append":
            new = range(last + 1, last + 1 + number)
            lane.extend(new)
            inside += new
            last += number
        elif what == "take" and inside:
            at = number % len(inside)
            lane.take(inside[at : at + 2])
            taken += inside[at : at + 2]
            del inside[at : at + 2]
        elif what == "head" and inside:
            lane.take(inside[:number])
            taken += inside[:number]
            del inside[:number]
        elif what == "back" and taken:
            sequence = taken.pop(number % len(taken))
            lane.give_back(sequence)
            inside = sorted([*inside, sequence])
        assert lane.first() == (inside[0] if inside else None)
        assert list(lane.head(3)) == inside[:3]
        assert list(lane.walk()) == inside


@given(st.lists(st.integers()))
def test_walking_a_heap_sorts_it_and_leaves_it_as_it_was(items: list[int]) -> None:
    heapify(items)
    before = list(items)
    assert list(walk(items)) == sorted(items)
    assert items == before


def test_what_left_from_behind_a_head_that_stays_is_dropped_in_the_end() -> None:
    lane = Lane()
    lane.extend(range(1, 1_001))
    lane.take([1])
    lane.give_back(1)
    for sequence in range(3, 1_001):
        lane.take([sequence])
    assert list(lane.walk()) == [1, 2]
    assert len(lane._fresh) < 300
    lane.take([1])
    assert lane.first() == 2


def test_an_empty_lane_takes_no_room() -> None:
    lane = Lane()
    lane.extend(range(1, 901))
    lane.take(list(range(1, 901)))
    assert len(lane._fresh) == 0
