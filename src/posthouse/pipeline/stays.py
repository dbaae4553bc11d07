"""Stays: a message's time in one queue, from when it came to when it was gone.

A message that is copied, forwarded, scheduled or dead-lettered has several, one behind another. A
stay is known by its namespace, entity and sequence number, and by its era: where a queue was
deleted and made again, numbers begin anew.
"""

from typing import TYPE_CHECKING

from posthouse.pipeline.events import owner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("namespace", "entity", "era", "sequence_number")
# How a stay ends. Their places are kept as numbers, which Spark adds up faster than words.
ENDS = (
    "completed", "taken", "dead-lettered", "expired", "cancelled", "purged", "dropped", "routed",
    "resubmitted", "activated", "deleted",
)  # fmt: skip
_OF_STAYS = (*ENDS, "sent", "delivered", "abandoned", "released", "copied")


def steps(events: "DataFrame", *more: str) -> "DataFrame":
    """The steps of messages, each in the entity where it happened.

    A message that came from elsewhere has a step of the kind `came` as well; `by` tells how.
    """
    from pyspark.sql import functions as f

    columns: list[Column | str] = [
        "position",
        "time",
        "namespace",
        f.col("kind").alias("by"),
        *more,
    ]
    own = events.where("sequence_number is not null").select(
        *columns, "entity", "sequence_number", "kind"
    )
    came = events.where("target_sequence_number is not null").select(
        *columns, f.col("target").alias("entity"),
        f.col("target_sequence_number").alias("sequence_number"), f.lit("came").alias("kind"),
    )  # fmt: skip
    return own.unionByName(came)


def stays(events: "DataFrame") -> "DataFrame":
    """A row for each stay: when it began, was delivered first and last, how often, how it ended.

    `released` counts the deliveries that were given back untried, as when a receiver closes.
    """
    return stays_of(events, deletions_in(events))


def stays_of(events: "DataFrame", deletions: "DataFrame | None") -> "DataFrame":
    """The stays, by sums of numbers and times alone, for which Spark needs no sorting."""
    from pyspark.sql import functions as f

    rows = with_era(steps(events.where(f.col("kind").isin(*_OF_STAYS))), deletions)
    code = f.expr(f"array_position(array({', '.join(map(repr, ENDS))}), kind)")
    is_delivery = f.expr("kind in ('delivered', 'taken')")
    found = rows.groupBy(*KEY).agg(
        f.min(f.when(f.expr("kind in ('sent', 'came')"), f.col("time"))).alias("came"),
        f.min(f.when(is_delivery, f.col("time"))).alias("first_delivered"),
        f.max(f.when(is_delivery, f.col("time"))).alias("last_delivered"),
        f.count(f.when(is_delivery, 1)).alias("deliveries"),
        f.count_if(f.expr("kind = 'released'")).alias("released"),
        f.max(f.when(code > 0, f.col("time"))).alias("ended"),
        f.max(f.when(code > 0, code)).alias("how"),
        f.max("position").alias("last_position"),
    )  # fmt: skip
    names = f.array(*map(f.lit, ENDS))
    named = found.withColumn("how", f.get(names, f.col("how").cast("int") - 1))
    return named if deletions is None else _deleted(named, deletions)


def with_era(rows: "DataFrame", deletions: "DataFrame | None") -> "DataFrame":
    """Adds the column `era`: how often the entity had been deleted before."""
    from pyspark.sql import functions as f

    if deletions is None:
        return rows.withColumn("era", f.lit(0))
    joined = rows.withColumn("owner", f.expr(owner("entity"))).join(
        f.broadcast(deletions), ["namespace", "owner"], "left"
    )
    era = f.expr("if(gone is null, 0, size(filter(gone, each -> each.position < position)))")
    return joined.withColumn("era", era).drop("owner", "gone")


def deletions_in(events: "DataFrame") -> "DataFrame | None":
    """The deletions of entities; None where there was none, as is most common."""
    from pyspark.sql import functions as f

    found = events.where("kind in ('queue-deleted', 'namespace-deleted')").select(
        "position", "time", "namespace", f.expr(f"{owner('entity')} as owner")
    )
    if found.isEmpty():
        return None
    owners = events.where("kind = 'queue-created'").select(
        "namespace", f.expr(f"{owner('entity')} as its_owner")
    ).distinct()  # fmt: skip
    whole = found.where("owner is null").drop("owner").join(owners, "namespace")
    every = found.where("owner is not null").unionByName(
        whole.withColumnRenamed("its_owner", "owner")
    )
    return every.groupBy("namespace", "owner").agg(
        f.array_sort(f.collect_list(f.struct("position", "time"))).alias("gone")
    )


def _deleted(found: "DataFrame", deletions: "DataFrame") -> "DataFrame":
    """A queue that is deleted takes what is in it along."""
    from pyspark.sql import functions as f

    joined = found.withColumn("owner", f.expr(owner("entity"))).join(
        f.broadcast(deletions), ["namespace", "owner"], "left"
    )
    at = f.expr("if(how is null, get(gone, era).time, null)")
    return (
        joined.withColumn("at", at).withColumn("ended", f.expr("coalesce(at, ended)"))
        .withColumn("how", f.expr("if(at is null, how, 'deleted')")).drop("owner", "gone", "at")
    )  # fmt: skip
