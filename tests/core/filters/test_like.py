"""LIKE against its plain definition, and how its work grows."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.filters.like import PATTERN_CHARS_MAX, Fits, compile_like
from posthouse.core.filters.problems import EvaluationProblem


def plainly_fits(text: str, pattern: str, escape: str | None) -> bool:
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and plainly_fits(text[1:], rest[1:], escape)
    if head == "%":
        return any(plainly_fits(text[at:], rest, escape) for at in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and plainly_fits(text[1:], rest, escape)


@given(
    st.text("ab\n", max_size=12),
    st.lists(st.sampled_from(["a", "b", "_", "%", "!a", "!%", "!_", "!!", "ab", "\n"]), max_size=8),
)
def test_it_fits_what_it_should(text: str, parts: list[str]) -> None:
    pattern = "".join(parts)
    assert compile_like(pattern, "!").fits(text) is plainly_fits(text, pattern, "!")
    if "!" not in pattern:
        assert compile_like(pattern, None).fits(text) is plainly_fits(text, pattern, None)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a%b%c", "a-b-c", True), ("a%b%c", "a-c-b", False), ("a%b%c", "a-b-", False),
        ("a%bb%c", "abc", False), ("%_b%", "b-ab", True), ("%_b%", "b", False),
        ("%_b%", "bcbd", True), ("%a_a%", "abba", False), ("_%_", "ab", True), ("_%_", "a", False),
        ("a_%", "a", False), ("%_a", "ba", True), ("%_a", "ab", False), ("__", "ab", True),
        ("_b", "aa", False), ("a%%b", "ab", True), ("%a%b%", "b-a", False),
    ],
)  # fmt: skip
def test_runs_are_found_one_after_the_other(pattern: str, text: str, expected: bool) -> None:
    assert compile_like(pattern, None).fits(text) is expected


def test_an_escape_can_be_a_wildcard_itself() -> None:
    assert compile_like("%%a%_", "%").fits("%a_")
    assert compile_like("__%", "_").fits("_x")


def steps(fits: Fits, text: str) -> int:
    """How many lines are run to fit a text."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fits(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "pattern",
    ["%a%a%a%a%b", "%" + "a%" * 400 + "b", "%" + "_a" * 400 + "b%", "%_%_%_%b%", "%" + "_" * 900,
     "%" + "a_" * 300 + "%b%", "_" * 1_000 + "%"],
)  # fmt: skip
def test_its_work_grows_with_the_text_and_no_faster(pattern: str) -> None:
    fits = compile_like(pattern, None).fits
    short, long = steps(fits, "a" * 2_000), steps(fits, "a" * 8_000)
    assert long <= 4 * short
    assert long <= 4 * 8_000 + 4 * len(pattern)


def test_patterns_that_mean_nothing_are_a_problem() -> None:
    for pattern, escape in (("a!", "!"), ("a", ""), ("a", "ab"), ("a" * 1_025, None)):
        with pytest.raises(EvaluationProblem):
            compile_like(pattern, escape)
    assert compile_like("a" * PATTERN_CHARS_MAX, None).fits("a" * PATTERN_CHARS_MAX)


@pytest.mark.parametrize("length", [7, 8, 50, 99, 100, 500])
def test_a_run_of_any_length_is_found_where_it_first_is(length: int) -> None:
    run = "a" * (length - 2) + "b" + "."
    for pattern in (f"%{run}%", f"x%{run}%{run}%y"):
        fits = compile_like(pattern, None).fits
        assert fits(f"x{'a' * 50}{run}{run}y")
        assert not fits(f"x{run[:-1]}{'a' * 50}{run[:-1]}y")


def test_what_it_takes_is_known_beforehand() -> None:
    assert compile_like("a%", None).per_char == 0
    assert compile_like("%abc%", None).per_char == 1
    slow = compile_like("%a_c%", None)
    assert slow.per_char > 10
    assert compile_like("%" + "_a" * 300 + "%", None).per_char > slow.per_char
    assert compile_like("%a%a%a%", None).base > compile_like("%a%", None).base
