"""What Spark reads from a broker and brings into a lake, beside what it does with Parquet alone.

    python -m bench.pipeline

Everything in one run, on `local[2]`: the feed as events into nothing, against Spark's own Parquet
reader on the same rows; then into a lake, against a copy from Parquet into partitioned Parquet. And
what a sender that sends at half of its full rate loses while Spark reads. Last, how long a report
takes over a million events and over ten, beside the same sums in plain SQL.

    python -m bench.pipeline report        that alone
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.start import POSTHOUSE, a_free_port
from posthouse.pipeline import session
from posthouse.pipeline.jobs.archive import archive
from posthouse.pipeline.jobs.report import report
from posthouse.pipeline.jobs.report import write as write_report
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.wire import FeedClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 1_000_000
BODY_BYTES = 200
ROUNDS = 5
READ_GOAL, LAKE_GOAL, GROWTH_GOAL = 0.6, 0.8, 12
SEND = "/api/v1/namespaces/default/queues/q/messages"


@contextmanager
def broker(folder: Path) -> Iterator[FeedClient]:
    port = a_free_port()
    command = [POSTHOUSE, "serve", "--data", str(folder / "data"), "--dev", "--auto-create",
               "--port", str(port), "--log-level", "error"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield FeedClient(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


def fill(where: FeedClient) -> None:
    where.get("/feed/status")
    connection = http.client.HTTPConnection(where.url.removeprefix("http://"))
    for first in range(0, MESSAGES, 5_000):
        messages = [
            {"id": f"{n:012}", "body": os.urandom(BODY_BYTES // 2).hex()}
            for n in range(first, first + 5_000)
        ]
        headers = {"content-type": "application/json"}
        connection.request("POST", SEND, json.dumps({"messages": messages}), headers)
        assert connection.getresponse().read()
    connection.close()


def until_folded(folder: Path) -> None:
    """Sealed segments have their Arrow segments."""
    while True:
        sealed = {each.stem for each in sorted((folder / "data").glob("*.journal"))[:-1]}
        if sealed <= {each.stem for each in (folder / "data").glob("*.arrow")}:
            return
        time.sleep(0.5)


def timed(work: Callable[..., object], *given: Any, **more: Any) -> float:
    begun = time.perf_counter()
    work(*given, **more)
    return time.perf_counter() - begun


def into_nothing(rows: "DataFrame") -> None:
    rows.write.format("noop").mode("overwrite").save()


def told(what: str, ratio: float, goal: float) -> None:
    verdict = "reached" if ratio >= goal else "MISSED"
    print(
        f"{what}: {ratio:.2f} of it, in the middle of {ROUNDS}; goal {goal} {verdict}", flush=True
    )


def reading(spark: "SparkSession", where: FeedClient, parquet: str) -> None:
    ratios = []
    for _ in range(ROUNDS):
        events = spark.read.format("posthouse").options(
            url=where.url, view="events", partitions="2"
        )
        ours = timed(into_nothing, events.load())
        theirs = timed(into_nothing, spark.read.parquet(parquet))
        ratios.append(theirs / ours)
        print(f"  {MESSAGES / ours:,.0f} rows a second from the broker, {MESSAGES / theirs:,.0f}"
              " from Parquet", flush=True)  # fmt: skip
    told("read from the broker, beside Parquet", median(ratios), READ_GOAL)


def into_a_lake(spark: "SparkSession", where: FeedClient, parquet: str, folder: Path) -> None:
    from pyspark.sql import functions as f

    ratios = []
    for at in range(ROUNDS):
        lake = Lake(str(folder / f"lake-{at}"))
        ours = timed(archive, spark, where, lake, reader=f"bench-{at}")
        rows = spark.read.parquet(parquet).withColumn("date", f.to_date("time"))
        copy = str(folder / f"copy-{at}")
        theirs = timed(rows.write.partitionBy("date").parquet, copy)
        for each in (lake.where, copy):
            shutil.rmtree(each)
        ratios.append(theirs / ours)
        print(f"  {MESSAGES / ours:,.0f} rows a second into a lake,"
              f" {MESSAGES / theirs:,.0f} copied", flush=True)  # fmt: skip
    told("archived into a lake, beside a copy of Parquet", median(ratios), LAKE_GOAL)


def beside(spark: "SparkSession", where: FeedClient) -> None:
    """A sender at half of its full rate, alone and while Spark reads all there is."""
    full = _rate(where, 3.0, None)
    alone = _rate(where, 5.0, full / 2)
    reads = threading.Event()

    def read() -> None:
        while not reads.is_set():
            events = spark.read.format("posthouse").options(url=where.url, view="events")
            into_nothing(events.load())

    reader = threading.Thread(target=read)
    reader.start()
    busy = _rate(where, 8.0, full / 2)
    reads.set()
    reader.join()
    print(f"a sender at half of its full rate ({full:,.0f} a second): {alone:,.0f} alone,"
          f" {busy:,.0f} while Spark reads: {busy / alone:.0%}")  # fmt: skip


REPORTED = """
    select namespace, entity, sum(sent) sent, sum(delivered) delivered, sum(completed) completed,
        percentile_approx(first - came, array(0.5, 0.95, 0.99), 1000) waited,
        percentile_approx(ended - last, array(0.5, 0.95, 0.99), 1000) settled
    from (
        select namespace, entity, sequence_number, count_if(kind = 'sent') sent,
            count_if(kind = 'delivered') delivered, count_if(kind = 'completed') completed,
            min(if(kind = 'sent', unix_micros(time), null)) came,
            min(if(kind = 'delivered', unix_micros(time), null)) first,
            max(if(kind = 'delivered', unix_micros(time), null)) last,
            max(if(kind = 'completed', unix_micros(time), null)) ended
        from reported group by namespace, entity, sequence_number
    ) group by namespace, entity
"""
EVENTS = """
    select id + 1 as position, timestamp_millis(1790000000000 + id) as time, 'default' as namespace,
        concat('q', (id div 3) % 10) as entity,
        element_at(array('sent', 'delivered', 'completed'), cast(id % 3 + 1 as int)) as kind,
        id div 3 + 1 as sequence_number, cast(null as string) as reason,
        cast(null as string) as description, if(id % 3 = 1, id % 7, null) as receiver,
        cast(null as string) as target, cast(null as bigint) as target_sequence_number
    from made
"""


def reporting(spark: "SparkSession", folder: Path) -> None:
    """Of messages that are sent, delivered and completed, in ten queues."""
    spent = []
    for events in (1_000, 1_000_000, 10_000_000):  # the first, so that all has been done once
        spark.range(events).createOrReplaceTempView("made")
        path = str(folder / f"events-{events}")
        spark.sql(EVENTS).write.parquet(path)
        spark.read.parquet(path).createOrReplaceTempView("reported")
        plain = timed(spark.sql(REPORTED).toArrow)
        ours = timed(_report, spark.read.parquet(path), folder / f"report-{events}")
        spark.catalog.clearCache()
        spent.append(ours)
        print(f"a report over {events:,} events: {ours:.1f} s, {ours / plain:.1f} times what"
              f" the same sums take in plain SQL ({plain:.1f} s)", flush=True)  # fmt: skip
    growth = spent[2] / spent[1]
    verdict = "reached" if growth <= GROWTH_GOAL else "MISSED"
    print(f"ten times the events take {growth:.1f} times as long; goal {GROWTH_GOAL} {verdict}")


def _report(events: "DataFrame", folder: Path) -> None:
    write_report(report(events), str(folder), "bench", "parquet")


def _rate(where: FeedClient, seconds: float, paced: float | None) -> float:
    """Sends a second over one connection, at most so many."""
    connection = http.client.HTTPConnection(where.url.removeprefix("http://"))
    body, headers = (
        json.dumps({"messages": [{"body": "x" * BODY_BYTES}]}),
        {"content-type": "application/json"},
    )
    begun, sent = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        if paced is not None and sent > paced * spent:
            time.sleep(0.0005)
            continue
        connection.request("POST", SEND, body, headers)
        connection.getresponse().read()
        sent += 1
    connection.close()
    return sent / (time.perf_counter() - begun)


def main(only: str = "") -> None:
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        if only == "report":
            reporting(session("local[2]"), folder)
            return
        with broker(folder) as where:
            fill(where)
            until_folded(folder)
            spark = session("local[2]")
            parquet = str(folder / "parquet")
            events = spark.read.format("posthouse").options(url=where.url, view="events")
            events.load().write.parquet(parquet)  # and both have been done once
            reading(spark, where, parquet)
            into_a_lake(spark, where, parquet, folder)
            beside(spark, where)
        reporting(spark, folder)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
