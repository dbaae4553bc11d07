"""Values as text and back."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from posthouse.core.filters.texts import as_text, as_type_of, moment_ms, span_ms
from posthouse.core.message import timestamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001


@given(MOMENTS)
def test_a_moment_reads_as_the_calendar_has_it(moment: datetime) -> None:
    unix_ms = (moment - EPOCH) // timedelta(milliseconds=1)
    text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert as_text(timestamp(unix_ms)) == text
    assert moment_ms(text) == unix_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01", 0), ("1970-01-01T00:01", 60_000), ("1970-01-01 00:00:01", 1_000),
        ("1970-01-01T00:00:00.1234567Z", 123), ("1970-01-01T00:00:00.5z", 500),
        ("1970-01-01T02:00:00+01:30", 1_800_000), ("1970-01-01T02:00:00-01:30", 12_600_000),
        ("2000-02-29", 951_782_400_000), ("2001-02-29", None), ("1970-13-01", None),
        ("1970-01-00", None), ("1970-01-01T24:00", None), ("soon", None), ("", None),
    ],
)  # fmt: skip
def test_a_moment_is_read(text: str, ms: int | None) -> None:
    assert moment_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("00:00:01", 1_000), ("1:2:3", 3_723_000), ("2.00:00:00", 172_800_000),
        ("00:00:00.25", 250), ("24:00:00", None), ("00:60:00", None), ("5", None), ("", None),
    ],
)  # fmt: skip
def test_a_span_of_time_is_read(text: str, ms: int | None) -> None:
    assert span_ms(text) == ms


def test_what_has_no_text_has_none() -> None:
    assert as_text(None) is None
    assert as_text(b"x") is None
    assert as_text(Ext(77, b"x")) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("-1.5", -1.5), ("1.", 1.0), (".5", 0.5), ("+2e-3", 0.002), ("1e99", 1e99)],
)
def test_a_number_is_read_where_one_was(text: str, number: float) -> None:
    assert as_type_of(0.5, text) == number


def test_a_long_text_that_is_no_number_is_read_once() -> None:
    text = "1" * 100_000 + "x"  # minutes, if each digit were tried again
    assert as_type_of(0.5, text) == text
