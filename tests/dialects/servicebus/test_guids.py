"""Guids are those of Python's own class, made faster."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects.servicebus.guids import guid, number_of


@given(st.integers(0, (1 << 128) - 1))
def test_a_number_comes_back(number: int) -> None:
    assert guid(number) == str(UUID(int=number))
    assert number_of(guid(number)) == number


@given(st.text())
def test_what_is_none_is_nothing(text: str) -> None:
    try:
        expected = UUID(text).int
    except ValueError:
        expected = 0
    assert number_of(text) == expected
