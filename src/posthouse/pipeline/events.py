"""The events that jobs work on: out of a lake, or of a broker itself.

A lake is what large jobs read: the broker then has to send its feed only once, to the archive.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.wire import FeedClient, PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD, TRANSFER, SUBSCRIPTION = "/$dead", "/$transfer", "/$sub/"  # within the names of entities


def events(
    spark: "SparkSession",
    where: Lake | FeedClient,
    since: str | None = None,
    until: str | None = None,
    columns: Sequence[str] = (),
) -> "DataFrame":
    """The view `events`, from one position or moment to before another.

    Raises PosthouseError or LakeError.
    """
    if isinstance(where, FeedClient):
        read = spark.read.format("posthouse").option("view", "events").options(**where.options())
        for name, given in (("from", since), ("to", until), ("columns", ",".join(columns))):
            read = read.option(name, given) if given else read
        return read.load().persist()  # it is asked once
    rows = where.read(spark)
    for symbol, given in ((">=", since), ("<", until)):
        rows = rows if given is None else rows.where(_bound(symbol, given))
    return rows


def _bound(symbol: str, given: str) -> str:
    if given.isascii() and given.isdigit():
        return f"position {symbol} {given}"
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise PosthouseError(
            f"A range begins and ends with a position or a moment like 2026-11-16T15:00:00Z, not"
            f" {given!r}."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return f"time {symbol} timestamp '{moment.astimezone(UTC).isoformat()}'"


def told_name(entity: str) -> str:
    """SQL for an entity's name as people know it."""
    return f"replace({entity}, '{SUBSCRIPTION}', '/')"


def owner(entity: str) -> str:
    """SQL for the name of whom a dead-letter or transfer queue belongs to."""
    return rf"regexp_replace({entity}, '({_quoted(DEAD)}|{_quoted(TRANSFER)})+$', '')"


def _quoted(name: str) -> str:
    return name.replace("$", r"\\$")
