"""When a schedule is due, worked out by looking at one moment after the other."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

# What schedules ask for. Those of every so often, with their milliseconds;
EVERY = {"every 4500 milliseconds": 4_500, "every 20 seconds": 20_000, "every minute": 60_000}
# minutes, with which of an hour they are;
MINUTES = {"* * * * *": range(60), "*/2 * * * *": range(0, 60, 2), "1,3,59 * * * *": (1, 3, 59)}
# and times of day.
TIMES = {
    "at 00:17": (0, 17, 0),
    "daily at 05:48:30": (5, 48, 30),
    "at 02:30": (2, 30, 0),
    "59 1 * * *": (1, 59, 0),
}
WHENS = (*EVERY, *MINUTES, *TIMES)
ZONES = ("UTC", "Asia/Kolkata", "Europe/Berlin")
# Where histories begin: a plain morning, and both nights on which Berlin moves its clocks.
MORNINGS = tuple(
    round(datetime.fromisoformat(moment).timestamp() * 1000)
    for moment in ("1970-01-01T00:16Z", "2026-03-29T00:58Z", "2026-10-25T00:57Z")
)


def following(when: str, zone: str, start: int, after: int) -> int:
    """The first moment behind `after` for a schedule that began at `start`."""
    if when in EVERY:
        moment = start
        while moment <= after:
            moment += EVERY[when]
        return moment
    if when in MINUTES:
        minute = datetime.fromtimestamp(after // 60_000 * 60, UTC)
        while True:
            minute += timedelta(minutes=1)
            if minute.astimezone(ZoneInfo(zone)).minute in MINUTES[when]:
                return _ms(minute)
    hour, minute_of, second = TIMES[when]
    day = datetime.fromtimestamp(after / 1000, ZoneInfo(zone)) - timedelta(days=1)
    while True:
        moment = _ms(_there(day.replace(hour=hour, minute=minute_of, second=second, microsecond=0)))
        if moment > after:
            return moment
        day += timedelta(days=1)


def _there(moment: datetime) -> datetime:
    """The first such moment; where the clocks leave it out, the first one behind."""
    moment = moment.replace(fold=0)
    while moment.astimezone(UTC).astimezone(moment.tzinfo).hour != moment.hour:
        moment = moment.replace(second=0) + timedelta(minutes=1)
    return moment


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
