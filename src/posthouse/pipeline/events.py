"""The events that jobs work on: out of a lake, or of a broker itself.

A lake is what large jobs read: the broker then has to send its feed only once, to the archive.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake, Span
from posthouse.pipeline.wire import FeedClient, PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD, TRANSFER, SUBSCRIPTION = "/$dead", "/$transfer", "/$sub/"  # within the names of entities
_OWNED = ("", DEAD, TRANSFER, TRANSFER + DEAD, DEAD + TRANSFER)  # names of what belongs to a queue


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
    return where.read(spark, span(since, until))


def span(since: str | None, until: str | None) -> Span:
    """The span from one position or moment to before another. Raises PosthouseError."""
    first, since_time = _bound(since)
    end, until_time = _bound(until)
    return Span(first, end, since_time, until_time)


def _bound(given: str | None) -> tuple[int | None, datetime | None]:
    if given is None:
        return None, None
    if given.isascii() and given.isdigit():
        return int(given), None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise PosthouseError(
            f"A range begins and ends with a position or a moment like 2026-11-16T15:00:00Z, not"
            f" {given!r}."
        ) from None
    return None, (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def of_queues(column: str, queues: Sequence[str]) -> str:
    """SQL for whether an entity is one of these queues, topics or subscriptions, or belongs to it.

    A name that has a slash can be a queue's, or TOPIC/SUBSCRIPTION.
    """
    names = []
    for queue in queues:
        cuts = (at for at, letter in enumerate(queue) if letter == "/")
        names += [queue, *(queue[:at] + SUBSCRIPTION + queue[at + 1 :] for at in cuts)]
    whole = [f"{name}{ending}" for name in names for ending in _OWNED]
    return f"{column} in ({', '.join(map(sql_text, whole))})"


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def told_name(entity: str) -> str:
    """SQL for an entity's name as people know it."""
    return f"replace({entity}, '{SUBSCRIPTION}', '/')"


def owner(entity: str) -> str:
    """SQL for the name of whom a dead-letter or transfer queue belongs to."""
    return rf"regexp_replace({entity}, '({_quoted(DEAD)}|{_quoted(TRANSFER)})+$', '')"


def _quoted(name: str) -> str:
    return name.replace("$", r"\\$")
