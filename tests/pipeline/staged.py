"""One queue into another, each batch as a whole, by a Spark that can be killed as it commits.

    python -m tests.pipeline.staged before|after|not URL CHECKPOINT FROM

It kills all of itself before the batch is sent, or after it was sent and before Spark knows.
"""

import os
import signal
import sys
from typing import Any

from posthouse.pipeline import register, session
from posthouse.pipeline.sink import Target

SETTINGS = {"spark.sql.shuffle.partitions": "1", "spark.log.level": "OFF"}


def deadly(when: str) -> None:
    commit, group = Target.commit, os.getpgid(0)

    def die() -> None:
        os.killpg(group, signal.SIGKILL)  # Spark and its JVM,
        os.killpg(0, signal.SIGKILL)  # and what runs Python for them

    def deadly_commit(self: Target, tasks: list[Any], number: int | None = None) -> None:
        if when == "before":
            die()
        commit(self, tasks, number)
        if when == "after":
            die()

    Target.commit = deadly_commit  # type: ignore[method-assign]


def main(when: str, url: str, checkpoint: str, first: str) -> None:
    deadly(when)
    spark = session("local[2]", settings=SETTINGS)
    register(spark)  # by value: with what is deadly about it
    rows = spark.readStream.format("posthouse").options(
        url=url, entity="given", body="text", maxRowsPerBatch="100", **{"from": first}
    )
    # What it is changes each time that it is tried.
    made = rows.load().repartition(2).selectExpr("body", "uuid() as message_id")
    made.writeStream.format("posthouse").options(
        url=url, entity="made", atomic="true", checkpointLocation=checkpoint
    ).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
