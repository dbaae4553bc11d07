"""Correlation filters."""

import math

import pytest

from posthouse.core.filters.correlation import compile_correlation
from posthouse.core.filters.problems import SyntaxProblem
from posthouse.core.message import Envelope, Value, timestamp, uuid
from tests.core.filters.views import a_view

A_MESSAGE = Envelope(
    id="i", correlation_id="c", to="t", reply_to="r", subject="l", session_id="s",
    reply_to_session_id="rs", content_type="ct", properties={"n": 1, "s": "x", "empty": None},
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("id", "i"), ("correlation_id", "c"), ("to", "t"), ("reply_to", "r"), ("subject", "l"),
        ("session_id", "s"), ("reply_to_session_id", "rs"), ("content_type", "ct"),
    ],
)  # fmt: skip
def test_a_field_must_be_exactly_this(field: str, text: str) -> None:
    view = a_view(A_MESSAGE)
    assert compile_correlation({field: text}, {})(view) is True
    assert compile_correlation({field: text.upper()}, {})(view) is False
    assert compile_correlation({field: text}, {})(a_view()) is False


def test_all_must_fit() -> None:
    view = a_view(A_MESSAGE)
    assert compile_correlation({"id": "i", "to": "t"}, {"n": 1, "s": "x"})(view) is True
    assert compile_correlation({"id": "i", "to": "x"}, {"n": 1, "s": "x"})(view) is False
    assert compile_correlation({"id": "i", "to": "t"}, {"n": 1, "s": "y"})(view) is False


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (1, 1, True), (1, 1.0, True), (1.0, 1, True), (1, 2, False), (1, True, False),
        (True, 1, False), (True, True, True), ("1", 1, False), (1, "1", False), ("x", "x", True),
        ("x", "X", False), ("x", b"x", False), (b"x", b"x", True), (None, None, True),
        (None, 1, False), (1, None, False), (timestamp(1), timestamp(1), True),
        (timestamp(1), timestamp(2), False), (timestamp(0), uuid(bytes(8)), False),
        (math.nan, math.nan, False), (timestamp(1), 1, False),
    ],
)  # fmt: skip
def test_a_property_must_have_this_value(wanted: Value, value: Value, expected: bool) -> None:
    assert compile_correlation({}, {"a": wanted})(a_view(a=value)) is expected


def test_a_property_that_is_absent_does_not_fit() -> None:
    assert compile_correlation({}, {"a": None})(a_view(b=1)) is False
    assert compile_correlation({}, {"A": 1})(a_view(a=1)) is False


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(SyntaxProblem, match="content_type, correlation_id"):
        compile_correlation({"nothing": "x"}, {})


def test_a_filter_of_nothing_is_refused() -> None:
    with pytest.raises(SyntaxProblem, match="at least one"):
        compile_correlation({}, {})
