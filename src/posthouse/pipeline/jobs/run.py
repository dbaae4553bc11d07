"""Running a declared pipeline: see `posthouse.pipeline.declared`."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posthouse.pipeline.declared import Declared, Sink, Source, Wrong
from posthouse.pipeline.failures import sentence_of
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.options import READING, WRITING, Options
from posthouse.pipeline.sink import target
from posthouse.pipeline.wire import FeedClient, PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 1.0
_OPTIONS = {  # of the format posthouse, as they are called in a file
    "view": "view", "body": "body", "schema": "bodySchema", "kinds": "kinds", "from": "from",
    "columns": "columns", "rows": "maxRowsPerBatch", "reader": "reader", "namespace": "namespace",
    "once": "once", "atomic": "atomic",
}  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """The progress of one sink."""

    sink: str
    batch: int
    rows: int  # that came in, in all
    rate: float
    position: int | None
    lag: int | None  # how far that is from the last there is

    @property
    def seconds_left(self) -> float | None:
        return self.lag / self.rate if self.lag is not None and self.rate else None


def plan(
    spark: "SparkSession", declared: Declared, broker: FeedClient, *, streams: bool = True
) -> dict[str, "DataFrame"]:
    """The frame that each sink gets. All of it is checked, and nothing is read. Raises Wrong.

    Without streams the frames are of the events there are now, which Spark can explain.
    """
    from pyspark.errors import AnalysisException, ParseException

    frames: dict[str, DataFrame] = {}
    for source in declared.sources:
        frames[source.name] = frame = _read(spark, source, broker, streams=streams)
        frame.createOrReplaceTempView(source.name)
    for step in declared.steps:
        try:
            frames[step.name] = frame = spark.sql(step.sql)
            frame.createOrReplaceTempView(step.name)
        except (AnalysisException, ParseException) as error:
            raise Wrong(f"The step {step.name}, line {step.line}: {sentence_of(error)}") from None
    for sink in declared.sinks:
        frame = frames[sink.source]
        if frame.isStreaming and declared.checkpoint is None:
            raise Wrong(
                "A pipeline that reads queues or topics needs a checkpoint: a folder in which Spark"
                " notes how far it is."
            )
        if sink.kind in ("queue", "topic"):
            try:
                target(Options(_sink_options(sink, broker), WRITING), frame.schema)
            except PosthouseError as error:
                raise Wrong(f"The sink {sink.name}, line {sink.line}: {error}") from None
    return {sink.name: frames[sink.source] for sink in declared.sinks}


def _read(
    spark: "SparkSession", source: Source, broker: FeedClient, *, streams: bool
) -> "DataFrame":
    from pyspark.errors import AnalysisException

    try:
        if source.kind in ("queue", "topic"):
            said = {_OPTIONS[name]: value for name, value in source.said.items()}
            if "bodySchema" in said:
                said.setdefault("body", "json")
            said |= {**broker.options(), "entity": source.where}
            Options(said, READING).entity(broker)
            read = (spark.readStream if streams else spark.read).format("posthouse")
            rows = read.options(**said).load()
        elif source.kind == "lake":
            rows = Lake(source.where).read(spark)
            if source.said.get("view", "messages") == "messages":
                rows = rows.where("kind = 'sent'")
        else:
            files = spark.read.format(source.said.get("format", "parquet"))
            if "schema" in source.said:
                files = files.schema(source.said["schema"])
            elif source.said.get("format") == "csv":
                files = files.option("header", "true")
            rows = files.load(source.where)
        if source.watermark is not None:
            rows = rows.withWatermark(*source.watermark)
        rows.schema  # noqa: B018 (it is now that it is found out)
    except (AnalysisException, PosthouseError) as error:
        said_ = sentence_of(error)
        raise Wrong(f"The source {source.name}, line {source.line}: {said_}") from None
    return rows


def _sink_options(sink: Sink, broker: FeedClient) -> dict[str, str]:
    said = {_OPTIONS[name]: value for name, value in sink.said.items()}
    return {**broker.options(), **said, "entity": sink.where}


def run(
    spark: "SparkSession",
    declared: Declared,
    broker: FeedClient,
    *,
    once: bool = False,
    told: Callable[[Progress], None] = lambda _: None,
) -> dict[str, int]:
    """Runs the pipeline once or for ever; returns how many rows came to each sink.

    Raises Wrong before it begins, and PosthouseError where it cannot go on.
    """
    frames = plan(spark, declared, broker)
    counts: dict[str, int] = {}
    queries: dict[str, StreamingQuery] = {}
    try:
        for sink in declared.sinks:
            frame = frames[sink.name]
            if frame.isStreaming:
                queries[sink.name] = _start(frame, sink, declared, broker, once=once)
            else:
                counts[sink.name] = frame.count()
                _write(frame, sink, broker, None)
        return counts | _wait(queries, told)
    finally:
        for query in queries.values():
            query.stop()


def _start(
    frame: "DataFrame", sink: Sink, declared: Declared, broker: FeedClient, *, once: bool
) -> "StreamingQuery":
    writer = frame.writeStream.outputMode(sink.mode).queryName(f"{declared.name}: {sink.name}")
    writer = writer.option("checkpointLocation", f"{declared.checkpoint}/{sink.name}")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(
        processingTime=declared.trigger
    )  # fmt: skip
    if sink.kind in ("queue", "topic") and sink.mode == "append":
        return writer.format("posthouse").options(**_sink_options(sink, broker)).start()
    if sink.kind == "console":
        return writer.format("console").option("truncate", "false").start()

    def write(rows: "DataFrame", batch: int) -> None:
        _write(rows, sink, broker, batch)

    return writer.foreachBatch(write).start()


def _write(rows: "DataFrame", sink: Sink, broker: FeedClient, batch: int | None) -> None:
    """Files of a batch have their own folder, so that one that is tried again is there once."""
    if sink.kind in ("queue", "topic"):
        rows.write.format("posthouse").options(**_sink_options(sink, broker)).mode("append").save()
    elif sink.kind == "console":
        rows.show(truncate=False)
    else:
        where = sink.where if batch is None else f"{sink.where}/batch={batch:08}"
        form = sink.said.get("format", "parquet")
        rows.write.mode("overwrite").format(form).option("header", "true").save(where)


def _wait(queries: dict[str, "StreamingQuery"], told: Callable[[Progress], None]) -> dict[str, int]:
    """Waits until all queries have ended, or one has failed; returns their rows."""
    rows = dict.fromkeys(queries, 0)
    seen: dict[str, int] = {}
    while True:
        active = [query for query in queries.values() if query.isActive]
        for name, query in queries.items():
            for progress in query.recentProgress:
                if progress["batchId"] > seen.get(name, -1):
                    seen[name] = progress["batchId"]
                    rows[name] += progress["numInputRows"]
                    told(_progress(name, rows[name], progress))
            error = query.exception()
            if error is not None:
                raise PosthouseError(f"The sink {name} cannot go on: {sentence_of(error)}")
        if not active:
            return rows
        time.sleep(POLL_SECONDS)


def _progress(name: str, rows: int, said: Any) -> Progress:
    ends, lags = [], []
    for source in said["sources"]:
        end, there = _position(source["endOffset"]), _position(source["latestOffset"])
        if end is not None:
            ends.append(end)
            lags += [] if there is None else [max(0, there - end)]
    rate = float(said["processedRowsPerSecond"] or 0)
    position, lag = max(ends, default=None), max(lags, default=None)
    return Progress(name, said["batchId"], rows, rate, position, lag)


def _position(offset: Any) -> int | None:
    """The position of an offset; None where the source is no broker, or it is not known yet."""
    said = json.loads(offset) if isinstance(offset, str) else offset
    return int(said["position"]) if isinstance(said, dict) and "position" in said else None
