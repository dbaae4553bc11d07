"""Batches that are there as a whole or not at all, however often they are tried."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.pipeline.asking import Batches, bodies, events, last, write
from tests.server.running import Running, development

ONCE = {"duplicate_detection": True}


def test_a_batch_whose_last_row_is_refused_leaves_nothing(
    spark: SparkSession, broker: Running
) -> None:
    broker.queue("PUT", "whole-or-none", ONCE)
    before = last(broker)
    rows = spark.range(0, 3_000, 1, 3).selectExpr(
        "cast(id as string) as body", "if(id = 2999, 77, 4) as priority"
    )
    with pytest.raises(PySparkException, match="priority"):
        write(rows, broker, "whole-or-none", atomic="true")
    assert last(broker) == before
    for _ in range(2):  # each row once, by its content
        write(rows.selectExpr("body"), broker, "whole-or-none", atomic="true", once="true")
        found = events(broker, "namespace=default&entity=whole-or-none&kinds=sent")
        assert len(found) == 3_000
    assert len(bodies(broker, "whole-or-none")) == 3_000


def test_a_task_that_fails_leaves_nothing_of_the_others(
    spark: SparkSession, broker: Running
) -> None:
    broker.queue("PUT", "failing", ONCE)
    rows = spark.range(0, 4, 1, 2).selectExpr(
        "if(id = 3, raise_error('not this one'), cast(id as string)) as body"
    )
    with pytest.raises(PySparkException, match="not this one"):
        write(rows, broker, "failing", atomic="true")
    assert bodies(broker, "failing") == []


def test_a_batch_that_has_a_name_is_sent_once_whatever_is_in_it(
    spark: SparkSession, broker: Running
) -> None:
    broker.queue("PUT", "named", ONCE)
    for _ in range(2):
        rows = spark.sql("select 'x' as body, uuid() as message_id from range(3)")
        write(rows, broker, "named", atomic="true", batch="today")
    write(spark.sql("select 'y' as body"), broker, "named", atomic="true", batch="tomorrow")
    assert bodies(broker, "named") == ["x", "x", "x", "y"]


def test_what_is_more_than_a_broker_takes_as_one_is_refused_and_none_of_it_is_sent(
    spark: SparkSession, broker: Running
) -> None:
    broker.queue("PUT", "large", ONCE)
    before = last(broker)
    for rows in (
        spark.range(0, 10_002, 1, 3).selectExpr("cast(id as string) as body"),
        spark.range(0, 34, 1, 2).selectExpr("repeat(cast(id as string), 1000000) as body"),
    ):
        with pytest.raises(PySparkException, match=re.escape("at most 10,000 messages and 32 MiB")):
            write(rows, broker, "large", atomic="true")
    with pytest.raises(PySparkException, match="set atomic to true"):
        write(spark.sql("select 'x' as body"), broker, "large", batch="one")
    assert last(broker) == before
    most = spark.range(0, 10_000, 1, 2).selectExpr("cast(id as string) as body")
    write(most, broker, "large", atomic="true")
    assert len(bodies(broker, "large")) == 10_000


def test_a_batch_of_a_stream_that_is_tried_again_is_not_sent_again(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    broker.queue("PUT", "streamed", ONCE)
    broker.send("originals-of-streamed", *map(str, range(10)))
    begin = str(last(broker) - 9)

    def run() -> None:
        rows = spark.readStream.format("posthouse").options(
            url=broker.url, entity="originals-of-streamed", body="text", **{"from": begin}
        )
        made = rows.load().repartition(2).selectExpr("body", "uuid() as message_id")
        made.writeStream.format("posthouse").options(
            url=broker.url, entity="streamed", atomic="true", checkpointLocation=str(tmp_path)
        ).trigger(availableNow=True).start().awaitTermination()

    run()
    Batches(spark, broker.url, tmp_path).forget()
    broker.send("originals-of-streamed", "more")
    run()
    assert sorted(bodies(broker, "streamed")) == sorted([*map(str, range(10)), "more"])


@pytest.mark.skipif(
    os.environ.get("TORTURE") != "1", reason="it starts Spark three times: TORTURE=1, make torture"
)
def test_who_is_killed_before_or_after_a_batch_is_sent_has_sent_it_once(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "made", ONCE)
        broker.send("given", *map(str, range(250)))
        first = str(last(broker) - 249)
        seen = []
        for when, code in (("before", -signal.SIGKILL), ("after", -signal.SIGKILL), ("not", 0)):
            words = [sys.executable, "-m", "tests.pipeline.staged", when, broker.url]
            done = subprocess.run(
                [*words, str(tmp_path / "spark"), first], start_new_session=True, check=False,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == code
            seen.append(len(events(broker, "namespace=default&entity=made&kinds=sent")))
        assert seen == [0, 100, 250]
        assert sorted(bodies(broker, "made")) == sorted(map(str, range(250)))
