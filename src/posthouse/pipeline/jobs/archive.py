"""Archiving: the feed into a lake, every position once.

It goes on where the lake ends, range by range. A range is written, counted, named by a manifest,
and added to the tables that the lake is published as; only then is the broker told that it need not
keep it. Whoever is stopped on the way
leaves files that no manifest names, which the next one sweeps away. There is no checkpoint to lose.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake, LakeError, Manifest, Span, int64_times, range_name
from posthouse.pipeline.published import Tables
from posthouse.pipeline.wire import FeedClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 500_000  # of a range
SMALL_ROWS = 100_000  # a range below that is worth being put together with others
POLL_SECONDS = 2.0
READER = "archive"
# Their values are all different: Parquet need not look for those that come again.
_PLAIN = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("position", "sequence_number", "message_id", "body")
}


@dataclass(frozen=True)
class Progress:
    """The progress of an archive."""

    position: int  # behind the last that is archived
    last: int  # that there is
    rows: int  # archived so far
    seconds: float

    @property
    def lag(self) -> int:
        return max(0, self.last + 1 - self.position)

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        return self.lag / self.rate if self.rate else None


def archive(
    spark: "SparkSession",
    broker: FeedClient,
    lake: Lake,
    *,
    reader: str = READER,
    rows: int = ROWS,
    follow: bool = False,
    told: Callable[[Progress], None] = lambda _: None,
) -> int:
    """Archives the feed up to its end at the start, or for ever; returns how many rows.

    Raises PosthouseError or LakeError.
    """
    tables = _tidied(lake)
    begun, done = time.monotonic(), 0
    status = broker.status()
    position = lake.end() or int(status["first"])
    acknowledged = broker.acknowledged(reader)
    if acknowledged is None:
        broker.acknowledge(reader, position - 1)
    elif acknowledged >= position:
        raise LakeError(
            f"The reader {reader!r} has read up to position {acknowledged}, but {lake.where} ends"
            f" at {position - 1}: another lake uses that reader. Give this lake its own:"
            " --reader NAME."
            " If the end of this lake was removed, run: posthouse pipeline backfill --last"
            f" {acknowledged}"
        )
    last = int(status["last"])
    if broker.is_idle(position, last + 1):
        last = position - 1
    while True:
        while position <= last:
            left = last + 1 - position
            end = position + (left if left <= rows + rows // 10 else rows)  # no tiny one at the end
            tables.add(write(spark, broker, lake, position, end))
            broker.acknowledge(reader, end - 1)
            done += end - position
            position = end
            told(Progress(position, last, done, time.monotonic() - begun))
        if not follow:
            return done
        time.sleep(POLL_SECONDS)
        now = int(broker.status()["last"])
        last = last if broker.is_idle(position, now + 1) else now


def backfill(
    spark: "SparkSession",
    broker: FeedClient,
    lake: Lake,
    first: int,
    end: int,
    *,
    rows: int = ROWS,
    told: Callable[[Progress], None] = lambda _: None,
) -> int:
    """Archives those of these positions that are not in the lake yet; returns how many rows."""
    tables = _tidied(lake)
    begun, done = time.monotonic(), 0
    for gap_first, gap_end in missing(lake.manifests(), first, end):
        for at in range(gap_first, gap_end, rows):
            until = min(at + rows, gap_end)
            tables.add(write(spark, broker, lake, at, until))
            done += until - at
            told(Progress(until, end - 1, done, time.monotonic() - begun))
    return done


def _tidied(lake: Lake) -> Tables:
    """Finishes what a job that was stopped has left: tables first, while their files are there."""
    tables = Tables(lake)
    tables.sync()
    lake.sweep()
    return tables


def missing(there: list[Manifest], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of these positions that no manifest has."""
    for each in there:
        if each.end <= first:
            continue
        if each.first >= end:
            break
        if first < each.first:
            yield first, each.first
        first = each.end
    if first < end:
        yield first, end


def write(spark: "SparkSession", broker: FeedClient, lake: Lake, first: int, end: int) -> Manifest:
    """Archives one range. Raises PosthouseError or LakeError."""
    read = spark.read.format("posthouse").option("view", "events").options(**broker.options())
    rows = read.option("from", first).option("to", end).load()
    dates = {_date(broker, position) for position in (first, end - 1)}
    if len(dates) == 1 and None not in dates:  # as most: Spark need not sort it by days then
        where = f"{lake.data}/date={dates.pop()}/range={range_name(first, end)}"
        with int64_times(spark):
            rows.write.mode("append").options(**_PLAIN).parquet(where)
    else:
        _save(spark, rows, lake, first, end)
    return lake.add(first, end)


def _date(broker: FeedClient, position: int) -> date | None:
    """The date of the event at a position. Time does not go back along the feed."""
    if position > int(broker.status()["last"]):
        return None
    [batch] = broker.rows(position, position + 1, ["time"])
    moment: datetime = batch.column("time")[0].as_py()
    return moment.astimezone(UTC).date()


def _save(spark: "SparkSession", rows: "DataFrame", lake: Lake, first: int, end: int) -> None:
    from pyspark.sql import functions as f

    dated = rows.withColumn("date", f.to_date("time"))
    named = dated.withColumn("range", f.lit(range_name(first, end)))
    with int64_times(spark):
        write = named.write.partitionBy("date", "range").mode("append")
        write.options(**_PLAIN).parquet(lake.data)


@dataclass(frozen=True)
class Verdict:
    """The result of checking a lake."""

    ranges: int
    rows: int
    gaps: list[tuple[int, int]]
    wrong: list[str]
    unnamed: list[str]

    @property
    def is_well(self) -> bool:
        return not self.gaps and not self.wrong


def verify(spark: "SparkSession", lake: Lake) -> Verdict:
    """Checks that every file is as it was written, and every position is there once."""
    from pyspark.sql import functions as f

    there = lake.manifests()
    wrong = [text for each in there for text in lake.check(each)]
    wrong += Tables(lake).check(there)
    if there and not wrong:
        counted = lake.read(spark).groupBy("range").agg(
            f.count("*").alias("rows"), f.countDistinct("position").alias("positions"),
            f.min("position").alias("first"), f.max("position").alias("last"),
        )  # fmt: skip
        found = {row["range"]: row for row in counted.collect()}
        for each in there:
            row = found.get(each.name)
            told = (
                None if row is None else (row["rows"], row["positions"], row["first"], row["last"])
            )
            if told != (each.rows, each.rows, each.first, each.end - 1):
                wrong.append(f"the range {each.name} holds {told} (rows, positions, first, last)")
    rows = sum(each.rows for each in there)
    return Verdict(len(there), rows, lake.gaps(), wrong, lake.unnamed())


def compact(spark: "SparkSession", lake: Lake, *, rows: int = ROWS) -> int:
    """Merges small ranges that follow each other, and rewrites those of earlier versions.

    Returns how many ranges were replaced.
    """
    tables = _tidied(lake)
    replaced = 0
    for run in runs(lake.manifests(), rows):
        first, end = run[0].first, run[-1].end
        _save(spark, lake.read(spark, Span(first, end)), lake, first, end)
        lake.add(first, end)
        tables.sync()
        lake.sweep()  # those that it replaces
        replaced += len(run)
    return replaced


def runs(there: list[Manifest], rows: int) -> Iterator[list[Manifest]]:
    """Yields the runs of ranges that are to be rewritten as one.

    These are small ranges that follow each other and have no more than `rows` rows together, and
    ranges of an earlier version.
    """
    run: list[Manifest] = []
    for each in there:
        follows = bool(run) and run[-1].end == each.first
        is_large = each.rows > SMALL_ROWS
        if not follows or is_large or sum(one.rows for one in run) + each.rows > rows:
            if len(run) > 1 or any(one.is_old for one in run):
                yield run
            run = []
        if not is_large:
            run.append(each)
        elif each.is_old:
            yield [each]
    if len(run) > 1 or any(one.is_old for one in run):
        yield run
