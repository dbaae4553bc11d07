"""`spark.readStream.format("posthouse")`: what comes, each position once, whatever happens."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.asking import Batches, bodies, events, last
from tests.server.running import Running, development

TRIM_SECONDS = 180
SMALL = ("--segment-size", "64K", "--fold-size", "64K", "--keep-size", "64K")


def trim(broker: Running, beyond: int) -> None:
    """Writes until retention has taken away what was up to a position."""
    end = time.monotonic() + TRIM_SECONDS
    while time.monotonic() < end:
        fill(broker)
        if int(broker.call("GET", "/feed/status").json["first"]) > beyond:
            return
        time.sleep(0.1)  # slept: who folds has little to do meanwhile, and others come first
    raise AssertionError("nothing was trimmed")


def fill(broker: Running) -> None:
    broker.send("filler", *["x" * 8_000] * 10)
    bodies(broker, "filler")


def end_offset(query: StreamingQuery) -> Any:
    """As the progress of a query shows it."""
    progress = query.lastProgress
    assert progress is not None
    [source] = progress["sources"]
    return json.loads(source["endOffset"])


def readers(broker: Running) -> dict[str, int]:
    told = broker.call("GET", "/api/v1/readers").json["readers"]
    return {each["name"]: each["position"] for each in told}


def test_batches_are_of_a_size_and_a_replayed_one_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On a broker of its own: locks that other tests left behind end at any time."""
    with development(tmp_path / "data") as broker:
        broker.send("batched", *map(str, range(25)))
        first, end = last(broker) - 24, last(broker) + 1
        options = {"view": "events", "from": str(first), "maxRowsPerBatch": "10", "partitions": "2"}
        batches = Batches(spark, broker.url, tmp_path, **options)
        batches.meanwhile = lambda: broker.send("batched", "more")  # what comes then is for later
        three = [
            (0, list(range(first, first + 10))),
            (1, list(range(first + 10, first + 20))),
            (2, list(range(first + 20, end))),
        ]
        assert batches.run() == three
        batches.meanwhile = None
        assert batches.forget() == 2
        assert batches.run() == [three[2], (3, [end, end + 1, end + 2])]


def test_a_batch_counts_rows_of_what_is_read_and_there_is_none_without_rows(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    first = last(broker) + 1
    for number in range(6):
        broker.send("noise", *["x"] * 50)
        broker.send("wanted-a" if number % 2 else "wanted-b", *["x"] * 5)
    options = {"queues": "wanted-a,wanted-*", "maxRowsPerBatch": "10", "from": str(first)}
    batches = Batches(spark, broker.url, tmp_path, **options)
    query = batches.start(availableNow=True)
    query.awaitTermination()
    sent = events(broker, f"namespace=default&entities=wanted-*&kinds=sent&after={first - 1}")
    assert [len(positions) for _, positions in batches.seen] == [10, 10, 10]
    assert batches.positions == [each["position"] for each in sent]
    assert end_offset(query) == {
        "reads": "messages of wanted-a, wanted-*", "position": batches.positions[-1] + 1, "lost": 0
    }  # fmt: skip
    broker.send("noise", *["x"] * 50)
    assert batches.run() == []
    broker.send("wanted-new", "x")
    assert batches.run() == [(3, [last(broker)])]


def test_messages_of_a_queue_are_streamed_into_another_once(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    broker.queue("PUT", "copies", {"duplicate_detection": True})
    broker.send("originals", *map(str, range(10)), properties={"a": "b"}, subject="s")
    begin = str(last(broker) - 9)

    def run() -> None:
        rows = spark.readStream.format("posthouse").options(
            url=broker.url, entity="originals", **{"from": begin}
        )
        chosen = rows.load().selectExpr("body", "properties", "subject",
                                        "concat('copy-', position) as message_id")  # fmt: skip
        chosen.writeStream.format("posthouse").options(
            url=broker.url, entity="copies", checkpointLocation=str(tmp_path)
        ).trigger(availableNow=True).start().awaitTermination()

    run()
    Batches(spark, broker.url, tmp_path).forget()
    broker.send("originals", "more")
    run()
    copies = events(broker, "namespace=default&entity=copies&kinds=sent")
    assert sorted(each["body"] for each in copies) == sorted([*map(str, range(10)), "more"])
    assert copies[0]["properties"] == {"a": "b"}
    assert copies[0]["message_id"].startswith("copy-")
    assert copies[0]["subject"] == "s"


def test_a_stream_goes_on_when_its_broker_is_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with development(data) as broker:
        broker.send("q", "a", "b")
        batches = Batches(spark, broker.url, tmp_path / "spark", entity="q")
        query = batches.start(processingTime="0 seconds")
        try:
            query.processAllAvailable()
            broker.kill()
            with development(data, "--port", str(broker.port)) as again:
                again.send("q", "c")
                query.processAllAvailable()
                sent = [each["position"] for each in events(again, "kinds=sent")]
        finally:
            query.stop()
    assert len(sent) == 3
    assert batches.positions == sent


def test_a_broker_that_is_gone_is_told_and_a_later_run_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with development(data) as broker:
        broker.send("q", "a", "b")
        options = {"entity": "q", "retrySeconds": "1"}
        batches = Batches(spark, broker.url, tmp_path / "spark", **options)
        query = batches.start(processingTime="0 seconds")
        query.processAllAvailable()
        broker.stop()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        told = f"There is no answer from {broker.url} after 1 s"
        assert told in str(caught.value)
        assert "Is the broker running" in str(caught.value)
        with pytest.raises(StreamingQueryException, match=told):
            batches.run()
        with development(data, "--port", str(broker.port)) as again:
            again.send("q", "c")
            batches.run()
            sent = [each["position"] for each in events(again, "kinds=sent")]
    assert batches.positions == sent


def test_a_stream_is_told_when_retention_has_overtaken_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with development(tmp_path / "data", *SMALL) as broker:
        broker.send("q", "a", "b")
        options = {"view": "events", "columns": "position", "from": "1"}
        held = Batches(spark, broker.url, tmp_path / "held", **options, to="3")
        held.run()
        trim(broker, beyond=last(broker))
        late = Batches(spark, broker.url, tmp_path / "late", **options)
        for each in (held, late):
            each.options.pop("to", None)
            with pytest.raises(StreamingQueryException, match="retention has overtaken"):
                each.run()
        begins = int(broker.call("GET", "/feed/status").json["first"])
        for each, lost in ((held, begins - 3), (late, begins - 1)):
            each.options["failOnDataLoss"] = "false"
            query = each.start(availableNow=True)
            query.awaitTermination()
            assert begins in each.positions
            assert end_offset(query)["lost"] == lost
        # Where it once began does not matter to one who has gone on from there.
        ahead = Batches(spark, broker.url, tmp_path / "ahead", **{**options, "from": "earliest"})
        ahead.run()
        ahead.options["from"] = "1"
        broker.send("q", "c")
        end = last(broker)
        ahead.run()
        assert ahead.positions[-1] >= end


def test_what_a_named_reader_has_not_read_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    with development(tmp_path / "data", *SMALL) as broker:
        broker.send("q", *map(str, range(20)))
        options = {"view": "events", "columns": "position", "reader": "spark"}
        batches = Batches(spark, broker.url, tmp_path / "spark", **options)
        batches.run()
        seen = batches.positions[-1]
        assert readers(broker) == {"spark": seen}
        for _ in range(30):
            fill(broker)
        batches.run()
        assert batches.positions == list(range(1, batches.positions[-1] + 1))
        acknowledged = readers(broker)["spark"]
        assert acknowledged > seen
        trim(broker, beyond=seen)
        # One who begins anew reads what there is, and takes nothing back.
        again = Batches(spark, broker.url, tmp_path / "again", **options)
        again.run()
        assert again.positions == list(range(again.positions[0], again.positions[-1] + 1))
        assert readers(broker)["spark"] > acknowledged


def test_a_named_reader_does_not_keep_itself_busy(spark: SparkSession, tmp_path: Path) -> None:
    """That it has read is written down too, which is more to be read."""
    with development(tmp_path / "data") as broker:
        broker.send("q", *map(str, range(20)))
        options = {"view": "events", "reader": "spark", "to": str(last(broker) + 20)}
        batches = Batches(spark, broker.url, tmp_path / "spark", **options)
        query = batches.start(processingTime="0 seconds")
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        acknowledged = events(broker, "kinds=reader-set")
        assert 1 <= len(acknowledged) <= 3


def test_two_named_readers_do_not_keep_each_other_busy(spark: SparkSession, tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("q", *map(str, range(20)))
        options = {"view": "events", "columns": "position"}
        both = [
            Batches(spark, broker.url, tmp_path / name, **options, reader=name)
            for name in ("one", "other")
        ]
        for each in (*both, *both):
            each.run()
        before = last(broker)
        for each in both:
            each.run()
        assert last(broker) == before
        broker.send("q", "more")
        for each in both:
            each.run()
        assert min(readers(broker).values()) >= before
