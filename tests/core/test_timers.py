"""Timers: keys by the time they are due, against a set."""

from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.timers import Timers


def test_without_keys_nothing_is_due() -> None:
    timers = Timers()
    assert timers.first is None
    assert timers.due(1_000, 10) == []
    assert timers.items() == []


def test_the_earliest_are_due_first_and_no_more_than_asked_for() -> None:
    timers = Timers()
    for due_ms, key in ((30, 3), (10, 1), (20, 2)):
        timers.add(due_ms, key)
    assert timers.first == 10
    assert timers.due(20, 10) == [1, 2]
    assert timers.due(30, 2) == [1, 2]


def test_one_moment_holds_many_keys() -> None:
    timers = Timers()
    for key in (1, 2, 3):
        timers.add(10, key)
    timers.remove(10, 2)
    assert timers.due(10, 10) == [1, 3]
    assert timers.due(10, 1) == [1]
    timers.remove(10, 1)
    timers.remove(10, 3)
    assert timers.first is None


def test_a_moment_that_was_emptied_and_filled_again_is_due_once() -> None:
    timers = Timers()
    timers.add(10, 1)
    timers.add(20, 2)
    timers.remove(20, 2)
    timers.add(20, 3)
    assert timers.due(20, 10) == [1, 3]


def test_an_emptied_moment_is_passed_over() -> None:
    timers = Timers()
    for due_ms in (10, 20, 30):
        timers.add(due_ms, due_ms)
    timers.remove(20, 20)
    assert timers.due(30, 10) == [10, 30]
    timers.remove(10, 10)
    assert timers.first == 30


def test_many_removed_keys_leave_the_rest_in_order() -> None:
    timers = Timers()
    for due_ms in range(1, 301):
        timers.add(due_ms, due_ms)
    for due_ms in range(3, 301):
        timers.remove(due_ms, due_ms)
    assert timers.due(1_000, 10) == [1, 2]
    assert timers.items() == [(1, 1), (2, 2)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 8))))
def test_timers_are_a_sorted_set(steps: list[tuple[bool, int, int]]) -> None:
    timers, inside = Timers(), set[tuple[int, int]]()
    for add, due_ms, key in steps:
        if add:
            timers.add(due_ms, key)
            inside.add((due_ms, key))
        elif (due_ms, key) in inside:
            timers.remove(due_ms, key)
            inside.remove((due_ms, key))
        assert timers.items() == sorted(inside)
        assert timers.first == min((due for due, _ in inside), default=None)
        assert sorted(timers.due(10, 100)) == sorted(k for due, k in inside if due <= 10)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4))))
def test_many_at_a_time_are_as_one_by_one(steps: list[tuple[int, int, int]]) -> None:
    """Adds so many, then removes so many of what is there, at one of three moments."""
    together, singly = Timers(), Timers()
    there: dict[int, list[int]] = {1: [], 2: [], 3: []}
    next_key = 0
    for due_ms, more, fewer in steps:
        new = range(next_key, next_key + more)
        next_key += more
        together.add_all(due_ms, new)
        for key in new:
            singly.add(due_ms, key)
        there[due_ms] += new
        gone, there[due_ms] = there[due_ms][:fewer], there[due_ms][fewer:]
        if gone:
            together.remove_all(due_ms, gone)
        for key in gone:
            singly.remove(due_ms, key)
        assert together.items() == singly.items()
        assert together.first == singly.first
        assert together.due(3, 100) == singly.due(3, 100)
