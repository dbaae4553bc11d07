"""When something recurs: every so often, or at the moments that cron knows.

Moments are worked out here and nowhere else, when a schedule is made and each time it is due; what
came of it is in the records. So a journal reads the same whatever becomes of time zones. This is
the one module of the core that knows calendars. It has no clock: it is told after which moment.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import TypeAlias

import msgspec

from posthouse.core.errors import InvalidArgument

# How often something may recur; cron knows nothing quicker than a minute. What an older journal has
# that is quicker recurs at every so many of its moments.
EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 366 * 86_400_000
CRON_CHARS_MAX = 256
ZONE_CHARS_MAX = 64
_FAR_MS = 253_370_764_800_000  # the year 9999


# In the journal an array that begins with its kind. Fields are only ever added at the end.
class _Recurrence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class Every(_Recurrence, frozen=True, tag=0):
    ms: int


class Cron(_Recurrence, frozen=True, tag=1):
    """Five fields, or six that begin with seconds."""

    expression: str
    zone: str = "UTC"


Recurrence: TypeAlias = Every | Cron

_EVERY = re.compile(r"every(?: (\d{1,9}))? (millisecond|second|minute|hour|day|week)s?", re.ASCII)
_UNITS = {
    "millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000,
    "week": 604_800_000,
}  # fmt: skip
_AT = re.compile(r"(?:daily )?at (\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)


def parse(text: str, zone: str = "UTC") -> Recurrence:
    """`every 30 seconds`, `at 14:30`, or five fields of cron. Raises InvalidArgument."""
    if type(text) is not str or len(text) > CRON_CHARS_MAX or not text.isascii():
        raise InvalidArgument("when", f"must be text of at most {CRON_CHARS_MAX} characters")
    words = " ".join(text.split()).casefold()
    _zone(zone)
    if found := _EVERY.fullmatch(words):
        ms = int(found[1] or 1) * _UNITS[found[2]]
        if not EVERY_MS_MIN <= ms <= EVERY_MS_MAX:
            raise InvalidArgument(
                "when", f"must be every {EVERY_MS_MIN} milliseconds or less often, once a year at"
                " least",
            )  # fmt: skip
        return Every(ms)
    if found := _AT.fullmatch(words):
        hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
        if hour > 23 or minute > 59 or second > 59:
            raise InvalidArgument("when", "must be at a time from 00:00 to 23:59:59")
        seconds = f"{second} " if second else ""
        return Cron(f"{seconds}{minute} {hour} * * *", zone)
    if len(words.split()) != 5:
        raise InvalidArgument(
            "when", "must be `every N seconds`, `at HH:MM` or five fields of cron"
        )
    recurrence = Cron(words, zone)
    _moments(recurrence, datetime(2000, 1, 1, tzinfo=UTC))
    return recurrence


def said(recurrence: Recurrence) -> str:
    """Formats a recurrence in the form that can be parsed again."""
    if isinstance(recurrence, Cron):
        fields = recurrence.expression.split()
        if len(fields) == 5:
            return recurrence.expression
        second, minute, hour, *_ = map(str.strip, fields)
        return f"at {hour}:{minute:0>2}:{second:0>2}"
    unit = next(name for name, ms in reversed(_UNITS.items()) if recurrence.ms % ms == 0)
    return f"every {recurrence.ms // _UNITS[unit]} {unit}s"


def following_ms(recurrence: Recurrence, after_ms: int, from_ms: int) -> int:
    """The first moment behind `after_ms`; 0: there is none.

    What recurs every so often does so from `from_ms` on.
    """
    if isinstance(recurrence, Every):
        every_ms = recurrence.ms
        if every_ms < EVERY_MS_MIN:
            every_ms *= -(-EVERY_MS_MIN // every_ms)
        passed_ms = max(0, after_ms - from_ms)
        return from_ms + (passed_ms // every_ms + 1) * every_ms
    if after_ms >= _FAR_MS:
        return 0
    after = datetime.fromtimestamp(after_ms / 1000, _zone(recurrence.zone))
    found = (round(moment.timestamp() * 1000) for moment in _moments(recurrence, after))
    # Where an hour comes twice, what was in it the first time is found in the second too.
    return next((moment_ms for moment_ms in found if moment_ms > after_ms), 0)


def _moments(recurrence: Cron, after: datetime) -> "Iterator[datetime]":
    """Raises InvalidArgument."""
    from cronsim import CronSim, CronSimError  # not needed by every start

    try:
        return CronSim(recurrence.expression, after)
    except CronSimError as error:
        raise InvalidArgument("when", f"is not what cron knows: {error}") from None


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # not needed by every start

    try:
        return ZoneInfo(name[:ZONE_CHARS_MAX])
    except (KeyError, ValueError, OSError, TypeError):  # not found is a KeyError
        raise InvalidArgument("zone", "must be a time zone such as Europe/Berlin") from None
