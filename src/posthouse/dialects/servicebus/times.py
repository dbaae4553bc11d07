"""Durations and moments as Service Bus writes them."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

FOREVER = "P10675199DT2H48M5.4775807S"  # .NET's longest, by which Azure says: never
NEVER = "0001-01-01T00:00:00Z"
_DURATION = re.compile(
    r"P(?:(\d{1,8})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,8})M)?(?:(\d{1,8}(?:\.\d{1,7})?)S)?)?", re.ASCII
)
_TICKS = 10_000_000  # in a second
_FOREVER_DAYS = 3_650_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = -62_135_596_800_000  # the beginning of the year 1, before which there is none
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


def duration_ms(text: str) -> int | None:
    """An ISO 8601 duration of days and less; None for one that means for ever.

    Raises ValueError.
    """
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError(f"must be a duration like PT1M30S, not {text!r}")
    days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
    if days >= _FOREVER_DAYS:
        return None
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def duration(ms: int | None) -> str:
    """The shortest way to say it; None: for ever."""
    if ms is None or ms >= _FOREVER_DAYS * 86_400_000:
        return FOREVER
    days, rest = divmod(ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    parts = [f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value]
    if rest:
        parts.append(f"{seconds}S")
    day = f"{days}D" if days else ""
    if not parts:
        return f"P{day}" if day else "PT0S"
    return f"P{day}T{''.join(parts)}"


def duration_ticks(text: str) -> int:
    """An ISO 8601 duration, in ten-millionths of a second; .NET's longest at most.

    Raises ValueError.
    """
    found = _DURATION.fullmatch(text.removeprefix("-"))
    if found is None or text.endswith(("P", "T")):
        raise ValueError(f"must be a duration like PT1M30S, not {text!r}")
    days, hours, minutes = (int(each or 0) for each in found.groups()[:3])
    seconds, _, fraction = (found[4] or "0").partition(".")
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + int(seconds)
    ticks = whole * _TICKS + int(fraction.ljust(7, "0"))
    if ticks >= 1 << 63:
        raise ValueError(f"must be at most {FOREVER}, not {text!r}")
    return -ticks if text.startswith("-") else ticks


def ticks_duration(ticks: int) -> str:
    """Writes a duration as `duration_ticks` reads it, exactly."""
    seconds, fraction = divmod(abs(ticks), _TICKS)
    days, rest = divmod(seconds, 86_400)
    said = f"{rest % 60}.{fraction:07}".rstrip("0").rstrip(".")
    return f"{'-' if ticks < 0 else ''}P{days}DT{rest // 3_600}H{rest // 60 % 60}M{said}S"


@lru_cache(1_000)
def moment(unix_ms: int) -> str:
    """A moment; 0: never."""
    if not unix_ms:
        return NEVER
    seconds, ms = divmod(max(_FIRST_MS, min(unix_ms, _LAST_MS)), 1000)
    return f"{_second(seconds)}.{ms:03}0000Z"


@lru_cache(1_000)
def _second(seconds: int) -> str:
    when = _EPOCH + timedelta(seconds=seconds)
    return when.replace(tzinfo=None).isoformat(timespec="seconds")


def moment_ms(text: str) -> int:
    """Returns the time of an ISO 8601 moment. Raises ValueError."""
    found = _parsed(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round((found - _EPOCH).total_seconds() * 1000)


def is_zoneless(text: str) -> bool:
    """Whether a moment names no zone; it is taken for UTC. Raises ValueError."""
    return _parsed(text).tzinfo is None


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(_SEVENTH.sub(r"\1", text.strip()))


_SEVENTH = re.compile(r"(\.\d{6})\d+")  # .NET counts in tenths of microseconds
