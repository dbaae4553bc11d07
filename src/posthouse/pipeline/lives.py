"""Lives: which stays belong to one message, from where it was sent to wherever it is now.

A message that is copied to subscriptions, forwarded, scheduled, dead-lettered or sent again goes on
from one stay to others. Whose life a stay belongs to is told by where and as which number its
message was sent.
"""

from functools import cached_property
from typing import TYPE_CHECKING

from posthouse.pipeline.events import owner, told_name
from posthouse.pipeline.stays import KEY, deletions_in, stays_of, steps, with_era

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = ("root_entity", "root_era", "root_number")  # beside the namespace
_LINKS_MAX = 100  # that a message is followed along


class Lives:
    """The lives of the messages that were sent in the course of some events.

    Messages that were sent before these events begin are left out. Costly results are cached.
    """

    def __init__(self, events: "DataFrame") -> None:
        self._events = events

    @cached_property
    def _deletions(self) -> "DataFrame | None":
        return deletions_in(self._events)

    @cached_property
    def sent(self) -> "DataFrame":
        """The messages that were sent, with their content and their keys."""
        rows = with_era(self._events.where("kind = 'sent'"), self._deletions)
        names = dict(zip(KEY[1:], ROOT, strict=True))
        return rows.withColumnsRenamed(names)

    @cached_property
    def stays(self) -> "DataFrame":
        """Every stay, with the life that it belongs to, and whether it went on elsewhere."""
        from pyspark.sql import functions as f

        found = stays_of(self._events, self._deletions)
        own = [f.col(root).alias(name) for root, name in zip(ROOT, KEY[1:], strict=True)]
        roots = self.sent.select("namespace", *own, *ROOT)
        links = self._links()
        if links is None:
            return found.join(roots, list(KEY)).withColumn("goes_on", f.lit(False)).persist()
        links = links.persist()
        every = self._reached(roots, links)
        onward = links.select(*KEY).distinct().withColumn("goes_on", f.lit(True))
        joined = found.join(every, list(KEY)).join(onward, list(KEY), "left")
        return joined.na.fill({"goes_on": False}).persist()

    def _reached(self, roots: "DataFrame", links: "DataFrame") -> "DataFrame":
        """The stays that messages begin with, and all that they come to from there."""
        names = {f"to_{name}": name for name in KEY[1:]}
        every, last = roots, roots
        for _ in range(_LINKS_MAX):
            onward = last.join(links, list(KEY)).drop(*KEY[1:]).withColumnsRenamed(names)
            last = onward.select(*KEY, *ROOT).distinct().localCheckpoint()
            if last.isEmpty():
                break
            every = every.unionByName(last)
        return every.distinct()

    def _links(self) -> "DataFrame | None":
        """The links from stays to those that messages went on to; None where there are none."""
        from pyspark.sql import functions as f

        moved = self._events.where("target_sequence_number is not null").select(
            "position", "namespace", "entity", "sequence_number", "target",
            "target_sequence_number",
        )  # fmt: skip
        if moved.isEmpty():
            return None
        source = with_era(moved, self._deletions).withColumnsRenamed(
            {"era": "from_era", "entity": "source", "target": "entity"}
        )
        return with_era(source, self._deletions).select(
            "namespace", f.col("source").alias("entity"), f.col("from_era").alias("era"),
            "sequence_number", f.col("entity").alias("to_entity"), f.col("era").alias("to_era"),
            f.col("target_sequence_number").alias("to_sequence_number"),
        )  # fmt: skip

    def dead(self) -> "DataFrame":
        """The dead letters that there are: why, and what was sent. `queue` is where they lie."""
        from pyspark.sql import functions as f

        deaths = self._events.where("kind = 'dead-lettered'").select(
            "position", "time", "namespace", "reason", "description",
            f.col("target").alias("entity"),
            f.col("target_sequence_number").alias("sequence_number"),
        )  # fmt: skip
        there = self.stays.where("how is null").select(*KEY, *ROOT)
        found = with_era(deaths, self._deletions).join(there, list(KEY)).drop("era")
        kept = ("position", "time", "entity", "kind", "reason", "description")
        sent = self.sent.withColumn("sent_time", f.col("time")).drop(*kept)
        whole = found.join(sent, ["namespace", *ROOT]).drop("root_era", "root_number")
        return whole.withColumnsRenamed({"entity": "queue", "root_entity": "sent_to"}).withColumn(
            "entity", f.expr(told_name(owner("queue")))
        )

    def lines(self, wanted: "DataFrame") -> "DataFrame":
        """The events of some lives in order. `wanted` has their namespaces and roots."""
        from pyspark.sql import functions as f

        keys = ["namespace", *ROOT]
        mine = self.stays.join(wanted.select(*keys).distinct(), keys).select(*KEY, *ROOT)
        happened = with_era(steps(self._events).where("kind <> 'came'"), self._deletions)
        told = f.struct("position", "time", "entity", "kind")
        together = happened.join(mine, list(KEY)).groupBy(*keys)
        return together.agg(f.array_sort(f.collect_set(told)).alias("life"))
