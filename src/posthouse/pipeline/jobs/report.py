"""A report: what went through the queues, how fast, and what went wrong.

Everything is counted once, by the minute or less; only times in queues need each message looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.pipeline.causes import fingerprint
from posthouse.pipeline.events import DEAD, TRANSFER, of_queues, owner, told_name
from posthouse.pipeline.pages import page
from posthouse.pipeline.stays import stays, steps
from posthouse.pipeline.tables import write_table
from posthouse.pipeline.work import Step, nothing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOWS_MAX = 120  # at most, where their length is not given
WINDOWS = (60, 300, 900, 3_600, 6 * 3_600, 86_400)  # seconds
REASONS_MAX = 50  # of a queue
# The conditions by which steps are counted, by the name of the count.
COUNTED = {
    "sent": "kind = 'sent'",  # by a client: a message to a topic once, however many get a copy
    "arrived": "kind = 'sent' or kind = 'came' and by <> 'activated'",
    "delivered": "kind in ('delivered', 'taken')",
    "completed": "kind in ('completed', 'taken')",
    "abandoned": "kind = 'abandoned'",
    "dead_lettered": "kind = 'dead-lettered'",
    "expired": "kind = 'expired'",
    "dropped": "kind in ('dropped', 'purged', 'cancelled')",
}
STILL = ("open", "oldest", "dead_now")  # columns of messages that are there now, whenever they came
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
TIMES = tuple(f"{what}_{name}_s" for what in ("waited", "settled") for name, _ in QUANTILES)
COLUMNS = (  # of the events, that it looks at
    "position", "time", "namespace", "entity", "kind", "sequence_number", "reason", "description",
    "receiver", "target", "target_sequence_number",
)  # fmt: skip
TABLES = ("queues", "windows", "overall", "overall_windows", "hours", "reasons", "consumers")
# The shares of its time that are behind it after each step.
SHARES = (0.2, 0.8, 0.83, 0.85, 0.87, 0.88, 0.93, 1.0)


@dataclass(frozen=True)
class Report:
    """Tables, each small enough to be looked at, and the time that they are of (in UTC)."""

    first: datetime | None
    last: datetime | None
    window_seconds: int
    queues: "DataFrame"
    windows: "DataFrame"
    overall: "DataFrame"  # one row: the counts and times of all messages together
    overall_windows: "DataFrame"
    hours: "DataFrame"
    reasons: "DataFrame"
    consumers: "DataFrame"


def report(
    events: "DataFrame",
    window_seconds: int | None = None,
    queues: Sequence[str] = (),
    *,
    step: Step = nothing,
) -> Report:
    """Makes a report from the rows of a lake or a broker, of these queues or of all."""
    from pyspark.sql import functions as f

    mine = of_queues("entity", queues) if queues else "true"
    if queues:
        moved = of_queues("target", queues)
        events = events.where(f"{mine} or {moved} or kind = 'namespace-deleted'")
    minutes = _minutes(events, mine, min(60, window_seconds or 60)).persist()
    ends = minutes.agg(f.min("first").alias("first"), f.max("last").alias("last"))
    [span] = ends.toArrow().to_pylist()  # which knows that it is UTC
    step()
    first, last = span["first"], span["last"]
    seconds = window_seconds or _window(first, last)
    counted = _counted(minutes, _times(stays(events).where(mine), seconds), seconds).persist()
    of_queue, counts = ["namespace", "entity"], [*COUNTED, "retries"]

    def table(of: str, *columns: str) -> "DataFrame":
        return counted.where(f"of = '{of}'").select(*columns)

    return Report(
        first, last, seconds, _named(table("queues", *of_queue, *counts, *STILL, *TIMES)),
        _sorted(_named(table("windows", *of_queue, "start", *counts, *TIMES)), f.col("start")),
        table("overall", *counts, *STILL, *TIMES),
        _sorted(table("overall windows", "start", *counts, *TIMES), f.col("start")),
        _named(table("hours", *of_queue, "weekday", "hour", *COUNTED)),
        _named(_reasons(events.where(mine))), _named(_consumers(events.where(mine))),
    )  # fmt: skip


def _minutes(events: "DataFrame", mine: str, seconds: int) -> "DataFrame":
    """The counts of each kind of event by minute; dead-letter queues are not counted."""
    from pyspark.sql import functions as f

    rows = (
        steps(events)
        .where(mine)
        .where(f"not endswith(entity, '{DEAD}') and not endswith(entity, '{TRANSFER}')")
    )
    counts = [f.count(f.when(f.expr(which), 1)).alias(name) for name, which in COUNTED.items()]
    minute = f.window("time", f"{seconds} seconds").start.alias("minute")
    return rows.groupBy("namespace", "entity", minute).agg(
        *counts, f.min("time").alias("first"), f.max("time").alias("last")
    )


def _window(first: datetime | None, last: datetime | None) -> int:
    """The shortest of which there are not too many."""
    if first is None or last is None:
        return WINDOWS[0]
    span = (last - first).total_seconds()
    return next((each for each in WINDOWS if span / each <= WINDOWS_MAX), WINDOWS[-1])


# Which table a row of grouping sets belongs to.
_OF = """case when grouping(entity) = 0 and grouping(start) = 0 then 'windows'
  when grouping(entity) = 0 then 'queues' when grouping(start) = 0 then 'overall windows'
  else 'overall' end"""


def _counted(minutes: "DataFrame", times: "DataFrame", seconds: int) -> "DataFrame":
    """All tables of counts as one, so that Spark adds up once; `of` tells them apart."""
    from pyspark.sql import functions as f

    key = ["namespace", "entity"]
    rows = minutes.select(
        *key, f.window("minute", f"{seconds} seconds").start.alias("start"),
        f.expr("weekday(minute) as weekday"), f.expr("hour(minute) as hour"), *COUNTED,
    )  # fmt: skip
    sets: list[list[str]] = [key, [*key, "start"], [], ["start"], [*key, "weekday", "hour"]]
    summed = rows.groupingSets(sets, *key, "start", "weekday", "hour").agg(
        f.expr(f"if(grouping(hour) = 0, 'hours', {_OF}) as of"),
        *(f.sum(name).alias(name) for name in COUNTED),
    )
    same = summed["of"] == times["of"]
    for name in ("namespace", "entity", "start"):
        same &= summed[name].eqNullSafe(times[name])
    return summed.join(times, same, "left").select(
        *(summed[name] for name in summed.columns),
        *(times[name] for name in ("retries", *STILL, *TIMES)),
    )


def _times(found: "DataFrame", seconds: int) -> "DataFrame":
    """The times of each queue and of all, as a whole and by windows of first deliveries.

    They are the seconds in the queue until the first delivery, and from the last until it was
    settled; with them come the messages that are still there, the oldest of them, and the dead
    letters. All is added up in one go: there are as many stays as messages.
    """
    from pyspark.sql import functions as f

    rows = found.select(
        "namespace", f.expr(f"{owner('entity')} as entity"), "came", "how",
        f.expr("greatest(deliveries - released - 1, 0) as retries"),
        f.expr(f"timestamp_seconds(unix_seconds(first_delivered) div {seconds} * {seconds})")
        .alias("start"),
        f.expr(f"endswith(entity, '{DEAD}')").alias("dead"),
        f.expr(f"not endswith(entity, '{DEAD}') and not endswith(entity, '{TRANSFER}')")
        .alias("mine"),
        _between("came", "first_delivered").alias("waited"),
        f.when(f.expr("how in ('completed', 'dead-lettered')"), _between("last_delivered", "ended"))
        .alias("settled"),
    )  # fmt: skip
    share = [each for _, each in QUANTILES]
    key = ["namespace", "entity"]
    sets: list[list[str]] = [key, [*key, "start"], [], ["start"]]
    made = rows.groupingSets(sets, *key, "start").agg(
        f.expr(f"{_OF} as of"),
        f.percentile_approx(f.expr("if(mine, waited, null)"), share, 1_000).alias("waited"),
        f.percentile_approx(f.expr("if(mine, settled, null)"), share, 1_000).alias("settled"),
        f.sum(f.expr("if(mine, retries, 0)")).alias("retries"),
        f.count_if(f.expr("how is null and not dead")).alias("open"),
        f.min(f.expr("if(how is null and not dead, came, null)")).alias("oldest"),
        f.count_if(f.expr("how is null and dead")).alias("dead_now"),
    )  # fmt: skip
    for column in ("waited", "settled"):
        for at, (name, _) in enumerate(QUANTILES):
            made = made.withColumn(f"{column}_{name}_s", f.get(column, f.lit(at)))
        made = made.drop(column)
    return made


def _between(first: str, second: str) -> "Column":
    """The seconds between two times, null where one is null; 0 if a clock was set back."""
    from pyspark.sql import functions as f

    took = f"unix_micros({second}) - unix_micros({first})"
    return f.expr(f"if({took} < 0, 0, {took}) / 1e6")


def _reasons(events: "DataFrame") -> "DataFrame":
    """Why messages of a queue were dead-lettered; reasons that differ in a number are one."""
    from pyspark.sql import functions as f

    dead = events.where("kind = 'dead-lettered'").withColumn("reason", fingerprint(f.col("reason")))
    found = dead.groupBy("namespace", "entity", "reason").agg(
        f.count("*").alias("messages"), f.min("time").alias("first"), f.max("time").alias("last"),
        f.max("description").alias("example"),
    )  # fmt: skip
    return _most(found, "messages", REASONS_MAX)


def _consumers(events: "DataFrame") -> "DataFrame":
    """How many receivers a queue had, and how much the one got that was given the most.

    The broker gives every link and every request a number of its own, so they are not listed.
    """
    from pyspark.sql import functions as f

    found = events.where("kind in ('delivered', 'taken')")
    each = found.groupBy("namespace", "entity", "receiver").agg(
        f.count("*").alias("delivered"), f.min("time").alias("first"), f.max("time").alias("last")
    )
    counted = each.groupBy("namespace", "entity").agg(
        f.sum("delivered").alias("delivered"), f.count("receiver").alias("receivers"),
        f.max(f.expr("if(receiver is null, null, delivered)")).alias("busiest"),
        f.min("first").alias("first"), f.max("last").alias("last"),
    )  # fmt: skip
    return _sorted(counted, f.desc("delivered"))


def _most(found: "DataFrame", by: str, count: int) -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("namespace", "entity").orderBy(f.desc(by))
    ranked = found.withColumn("rank", f.row_number().over(order)).where(f"rank <= {count}")
    return _sorted(ranked.drop("rank"), f.desc(by))


def _sorted(table: "DataFrame", by: "Column") -> "DataFrame":
    """Sorts a small table in one partition; for several, Spark would sample it first."""
    return table.repartition(1).orderBy(by)


def _named(table: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return table.withColumn("entity", f.expr(told_name("entity")))


# Files.


def write(
    made: Report, folder: str, source: str, form: str = "parquet", *, step: Step = nothing
) -> str:
    """The page, and the tables beside it in Parquet, CSV or JSON; where the page is."""
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {
        "source": source, "made": datetime.now(UTC), "first": made.first, "last": made.last,
        "window_seconds": made.window_seconds,
    }  # fmt: skip
    for name in TABLES:
        table = getattr(made, name).toArrow()
        write_table(table, into / f"{name}.{form}", form)
        data[name] = table.to_pylist()
        step()
    shown = into / "report.html"
    shown.write_text(page("report", data))
    return str(shown)
