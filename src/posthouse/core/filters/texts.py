"""Values as text, and text as values: for `+`, and for what SET finds of another type."""

import re
from itertools import pairwise

from msgspec.msgpack import Ext

from posthouse.core.message import SPAN, TIMESTAMP, UUID, Value, span, timestamp, uuid

INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1

_DAY_MS = 86_400_000
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
# Nothing that was read is read again (++): a text may be long, and is a sender's.
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
NUMBER_CHARS_MAX = 40  # of a text that is taken for one
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
TICKS = 10_000  # of a duration, in a millisecond
_SPAN = re.compile(  # days.hours:minutes:seconds.fraction
    r"(?:([0-9]{1,8})\.)?([01]?[0-9]|2[0-3]):([0-5]?[0-9]):([0-5]?[0-9])(?:\.([0-9]{1,7}))?",
    re.ASCII,
)
_MOMENT = re.compile(
    r"([0-9]{4})-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])"
    r"(?:[Tt ]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,7}))?)?)?"
    r"(?:[Zz]|([+-])([01][0-9]):([0-5][0-9]))?",
    re.ASCII,
)


def as_text(value: Value) -> str | None:
    """A value as text; None for what has none."""
    if type(value) is str:
        return value
    if type(value) is bool or type(value) is int:
        return str(value)
    if type(value) is float:
        return repr(value)
    if isinstance(value, Ext):
        data = bytes(value.data)
        if value.code == UUID:
            digits = data.hex()
            cuts = (0, 8, 12, 16, 20, 32)
            return "-".join(digits[a:b] for a, b in pairwise(cuts))
        if value.code == TIMESTAMP:
            return _moment_text(int.from_bytes(data, "big", signed=True))
        if value.code == SPAN:
            return _span_text(int.from_bytes(data, "big", signed=True))
    return None


def as_type_of(old: Value, value: Value) -> Value:
    """The value in the type of the old one where it has that; else as it is."""
    found = _in_type_of(old, value)
    return value if found is None else found


def _in_type_of(old: Value, value: Value) -> Value:
    if type(old) is str:
        return as_text(value)
    if type(old) is float and type(value) is int:
        return float(value)
    if type(old) is int and type(value) is float:
        return _whole(int(value)) if value.is_integer() else None
    return _read(old, value) if type(value) is str else None


def _read(old: Value, text: str) -> Value:
    """Parses the text as a value of the old value's type; None if it is not one."""
    if type(old) is bool:
        return {"true": True, "false": False}.get(text[:6].lower())
    if type(old) is int and _WHOLE.fullmatch(text):
        return _whole(int(text))
    if type(old) is float and _NUMBER.fullmatch(text):
        return float(text)
    if isinstance(old, Ext) and old.code == UUID and _UUID.fullmatch(text):
        return uuid(bytes.fromhex(text.replace("-", "")))
    if isinstance(old, Ext) and old.code == TIMESTAMP:
        unix_ms = moment_ms(text)
        return None if unix_ms is None else timestamp(unix_ms)
    if isinstance(old, Ext) and old.code == SPAN:
        ms = span_ms(text)
        return None if ms is None else span(ms * TICKS)
    return None


def as_number(text: str) -> Value:
    """The number that a text says; the text, where it says none, or is too long for one."""
    if len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
        return text
    if text.lstrip("+-").isdigit():
        whole = _whole(int(text))
        return text if whole is None else whole
    return float(text)


def _whole(number: int) -> int | None:
    return number if INTEGER_MIN <= number <= INTEGER_MAX else None


def span_ms(text: str) -> int | None:
    """A duration, [days.]hours:minutes:seconds[.fraction], in milliseconds."""
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds, fraction = found.groups()
    return int(days or 0) * _DAY_MS + _of_day(hours, minutes, seconds, fraction)


def moment_ms(text: str) -> int | None:
    """A date and time of ISO 8601 in milliseconds since 1970; UTC unless it says otherwise."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hours, minutes, seconds, fraction, sign, off_hours, off_minutes = (
        found.groups()
    )
    days = _days(int(year), int(month), int(day))
    if _date(days) != (int(year), int(month), int(day)):
        return None
    offset_ms = _of_day(off_hours, off_minutes, None, None)
    at = days * _DAY_MS + _of_day(hours, minutes, seconds, fraction)
    return at + offset_ms if sign == "-" else at - offset_ms


def _of_day(
    hours: str | None, minutes: str | None, seconds: str | None, fraction: str | None
) -> int:
    whole = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    return whole * 1_000 + int((fraction or "0").ljust(3, "0")[:3])


def _span_text(ticks: int) -> str:
    """Formats a time span exactly, in the form that `span_ms` parses."""
    seconds, fraction = divmod(abs(ticks), 1_000 * TICKS)
    days, rest = divmod(seconds, 86_400)
    sign, long = "-" if ticks < 0 else "", f"{days}." if days else ""
    clock = f"{rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{sign}{long}{clock}" + (f".{fraction:07}" if fraction else "")


def _moment_text(unix_ms: int) -> str:
    days, rest_ms = divmod(unix_ms, _DAY_MS)
    year, month, day = _date(days)
    seconds, ms = divmod(rest_ms, 1_000)
    hours, minutes, seconds = seconds // 3_600, seconds // 60 % 60, seconds % 60
    return f"{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z"


# Years begin in March here, so that a leap day is the last of its year; an era has 400 of them.
# The core has no clock, and so no calendar but this one.
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _date(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    turned = (5 * of_year + 2) // 153
    month = (turned + 2) % 12 + 1
    return year + era * 400 + (month <= 2), month, of_year - (153 * turned + 2) // 5 + 1
