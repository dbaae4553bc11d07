"""Archiving the feed into a lake, with a real broker and a real Spark."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from posthouse.cli import main
from posthouse.pipeline import iceberg, published
from posthouse.pipeline.events import events
from posthouse.pipeline.jobs import archive as jobs
from posthouse.pipeline.lake import Lake, LakeError
from posthouse.pipeline.wire import FeedClient, PosthouseError
from tests.pipeline.asking import on_a_terminal, read_as_told
from tests.server.running import Running, development
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSTHOUSE = str(Path(sys.executable).with_name("posthouse"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """A broker of its own: what is archived is everything."""
    with development(tmp_path / "data", "--segment-size", "64K") as broker:
        yield broker


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def at(broker: Running) -> FeedClient:
    return FeedClient(broker.url)


def positions(lake: Lake) -> list[int]:
    """As anybody reads Parquet, who knows of no manifest."""
    table = ds.dataset(lake.data, format="parquet", partitioning="hive").to_table(["position"])
    return sorted(table.column("position").to_pylist())


def times(lake: Lake) -> list[pa.Field]:
    """The columns of times, as every file has them."""
    paths = [Path(lake.where) / file.path for each in lake.manifests() for file in each.files]
    every = [field for path in paths for field in pq.read_schema(path)]
    return [field for field in every if pa.types.is_timestamp(field.type)]


def in_tables(lake: Lake) -> list[list[int]]:
    """The positions in the lake's tables of Iceberg and Delta, as their own libraries read them."""
    said = lake.setting("iceberg")
    assert said is not None
    catalog = load_catalog("posthouse", uri=said["uri"], type="sql")
    scanned = catalog.load_table(said["table"]).scan(selected_fields=("position",)).to_arrow()
    delta = pa.table(DeltaTable(lake.where).to_pyarrow_table(columns=["position"]))
    return [sorted(table.column("position").to_pylist()) for table in (scanned, delta)]


def test_everything_is_archived_once_and_the_broker_is_told(
    spark: "SparkSession", own: Running, lake: Lake
) -> None:
    for number in range(20):
        own.send("orders", *(f"{number}-{at}" for at in range(10)))
    told: list[jobs.Progress] = []
    rows = jobs.archive(spark, at(own), lake, rows=90, told=told.append)
    assert positions(lake) == list(range(1, rows + 1))
    assert [each.rows for each in lake.manifests()] == [90, 90, rows - 180]
    assert (told[-1].rows, told[-1].lag) == (rows, 0)
    [reader] = own.call("GET", "/api/v1/readers").json["readers"]
    assert (reader["name"], reader["position"]) == ("archive", rows)

    assert {each.type for each in times(lake)} == {pa.timestamp("us", "UTC")}
    files = {each.name: each.files[0].path for each in lake.manifests()}
    early, middle, _ = lake.manifests()
    for first, end, wanted in (("95", "120", middle), (None, "91", early)):
        [read] = events(spark, lake, first, end).inputFiles()
        assert read.endswith(files[wanted.name])
    assert events(spark, lake, "95", "120").count() == 25

    assert jobs.archive(spark, at(own), lake) == 0  # of what it did itself there is nothing to tell
    published.publish(lake, "delta", {})
    published.publish(lake, "iceberg", iceberg.settings(lake, None, None))
    own.send("orders", "late")
    more = jobs.archive(spark, at(own), lake)
    assert more > 0
    assert in_tables(lake) == [list(range(1, rows + more + 1))] * 2
    assert positions(lake) == list(range(1, rows + more + 1))

    other = Lake(f"{lake.where}-2")
    with pytest.raises(LakeError, match=f"up to position {rows + more}.*--reader NAME"):
        jobs.archive(spark, at(own), other)
    assert other.manifests() == []
    assert jobs.archive(spark, at(own), other, reader="second") >= rows + more

    verdict = jobs.verify(spark, lake)
    assert verdict.is_well
    assert (verdict.ranges, verdict.rows) == (4, rows + more)
    bodies = lake.read(spark).where("kind = 'sent'").selectExpr("cast(body as string) as b")
    assert {row.b for row in bodies.collect()} >= {"0-0", "19-9", "late"}

    assert jobs.compact(spark, lake) == 4
    assert [each.rows for each in lake.manifests()] == [rows + more]
    assert in_tables(lake) == [positions(lake)] * 2
    assert positions(lake) == list(range(1, rows + more + 1))
    assert jobs.verify(spark, lake).is_well


def test_what_was_left_half_done_is_done_anew(
    spark: "SparkSession", own: Running, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the files of a range are written, and before its manifest is."""
    own.send("orders", *map(str, range(50)))

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "add", ends)
        with pytest.raises(KeyboardInterrupt):
            jobs.archive(spark, at(own), lake)
    assert lake.unnamed()
    assert lake.manifests() == []
    own.send("orders", "more")  # so that the range would be another
    rows = jobs.archive(spark, at(own), lake)
    assert positions(lake) == list(range(1, rows + 1))
    assert lake.unnamed() == []


def test_a_lake_of_an_earlier_version_is_read_and_compacted(
    spark: "SparkSession", own: Running, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are INT96, which have no zone and no statistics."""
    own.send("orders", *map(str, range(50)))
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "int64_times", lambda _: nullcontext())
        jobs.write(spark, at(own), lake, 1, 30)
    [old] = lake.manifests()
    assert old.is_old
    assert {each.type for each in times(lake)} == {pa.timestamp("ns")}
    jobs.write(spark, at(own), lake, 30, 41)
    moments = {row.time for row in events(spark, lake, since="2020-01-01").collect()}
    assert moments == {row.time for row in lake.read(spark).collect()}
    assert jobs.compact(spark, lake, rows=30) == 1  # the old one alone
    assert [each.is_old for each in lake.manifests()] == [False, False]
    assert {each.type for each in times(lake)} == {pa.timestamp("us", "UTC")}
    assert positions(lake) == list(range(1, 41))
    assert moments == {row.time for row in lake.read(spark).collect()}


def test_what_is_missing_is_filled_in(spark: "SparkSession", own: Running, lake: Lake) -> None:
    own.send("orders", *map(str, range(50)))
    jobs.write(spark, at(own), lake, 20, 30)
    assert jobs.verify(spark, lake).is_well
    assert jobs.backfill(spark, at(own), lake, 5, 41, rows=12) == 26
    assert positions(lake) == list(range(5, 41))
    assert lake.gaps() == []


def test_a_row_that_is_there_twice_is_found(
    spark: "SparkSession", own: Running, lake: Lake
) -> None:
    own.send("orders", *map(str, range(20)))
    jobs.archive(spark, at(own), lake)
    [manifest] = lake.manifests()
    doubled = spark.read.parquet(f"{lake.where}/{manifest.files[0].path}")
    rows = doubled.where("position > 1").unionAll(doubled.where("position = 2")).collect()
    made = spark.createDataFrame(rows, doubled.schema).coalesce(1)
    path = Path(lake.where) / manifest.files[0].path
    made.write.parquet(str(path.with_name("anew")))
    [new] = path.with_name("anew").glob("*.parquet")
    size = new.stat().st_size
    new.rename(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Spark's own
    [said] = Path(lake.where).rglob("*.json")
    content = json.loads(said.read_text())
    content["files"][0]["size_bytes"] = size  # as if it had been written so
    said.write_text(json.dumps(content))
    verdict = jobs.verify(spark, lake)
    assert not verdict.is_well
    assert manifest.name in verdict.wrong[0]


def test_a_lake_that_is_not_there_and_a_broker_that_is_not(
    spark: "SparkSession", lake: Lake
) -> None:
    with pytest.raises(LakeError, match="There is nothing"):
        lake.read(spark)
    with pytest.raises(PosthouseError, match="no answer"):
        jobs.archive(spark, FeedClient("http://127.0.0.1:1", retry_seconds=0.2), lake)


def test_a_range_of_which_the_broker_has_a_part_is_not_taken(
    spark: "SparkSession", own: Running, lake: Lake
) -> None:
    own.send("orders", "x")
    with pytest.raises(LakeError, match="has 3 rows"):
        jobs.write(spark, at(own), lake, 1, 1_000)
    assert lake.manifests() == []


def test_the_command_line(
    spark: "SparkSession", own: Running, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *words: str) -> tuple[int, Any, str]:
        where = [] if name in ("verify", "compact") else ["--url", own.url]
        code = main(["pipeline", name, *words, "--lake", lake.where, *where, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    for name in ("verify", "compact"):
        code, _, err = run(name)
        assert (code, f"There is no lake {lake.where}" in err) == (3, True)
    assert (run("status")[1]["rows"], run("status")[1]["last"]) == (0, None)
    own.send("orders", *map(str, range(50)))
    code, said, err = run("archive", "--rows", "30")
    assert (code, said["rows"]) == (0, said["last"])
    told = [json.loads(line) for line in err.splitlines()]
    assert [each.get("lag") for each in told] == [None, said["last"] - 30, 0]
    assert run("status")[1]["rows"] == said["last"]
    code, compacted, err = run("compact")
    assert compacted == {"replaced": 2, "ranges": 1}
    assert read_as_told(err)["rows"] == said["last"]
    code, verified, err = run("verify")
    assert (code, verified) == (
        0,
        {
            "ranges": 1,
            "rows": said["last"],
            "gaps": [],
            "wrong": [],
            "unnamed": [],
            "is_well": True,
        },
    )
    read = read_as_told(err)
    assert (read["rows"], read["seconds_left"]) == (said["last"], 0)
    assert read["size_bytes"] > 0
    assert re.search(rf"\[KVerifying: \d+ s, {said['last']} of {said['last']} rows, \d+ a second\r",
                     on_a_terminal("verify", "--lake", lake.where))  # fmt: skip
    capsys.readouterr()
    next(Path(lake.where).rglob("part-*.parquet")).unlink()
    code, said, _ = run("verify")
    assert code == 1
    assert "cannot be read" in said["wrong"][0]
    code = main(["pipeline", "status", "--lake", lake.where, "--url", "http://127.0.0.1:1"])
    assert code == 1
    assert "Is the broker running" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run("archive", "--rows", "0")  # it would never end
    assert "--rows" in capsys.readouterr().err


@pytest.mark.skipif(
    os.environ.get("TORTURE") != "1", reason="it starts Spark ten times: TORTURE=1, make torture"
)
@pytest.mark.parametrize("kill_after", [0, 1, 2, 5, 9])
def test_an_archive_that_is_killed_is_exact(
    spark: "SparkSession", own: Running, lake: Lake, kill_after: int
) -> None:
    """The whole of it, with its JVM and its workers, when so many ranges were there; then again."""
    for number in range(20):
        own.send("orders", *(f"{number}-{at}" for at in range(100)))
    published.publish(lake, "delta", {})
    published.publish(lake, "iceberg", iceberg.settings(lake, None, None))
    words = [
        POSTHOUSE,
        "pipeline",
        "archive",
        "--lake",
        lake.where,
        "--url",
        own.url,
        "--rows",
        "100",
    ]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True) as killed:
        until(lambda: len(lake.manifests()) >= kill_after, "so much is archived", 600)
        time.sleep(random.uniform(0, 1))  # slept: it is killed at some moment
        os.killpg(killed.pid, signal.SIGKILL)
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    last = json.loads(done.stdout)["last"]
    assert positions(lake) == list(range(1, last + 1))
    assert jobs.verify(spark, lake).is_well
    found = lake.read(spark).select("position").toArrow().column("position").to_pylist()
    assert sorted(found) == list(range(1, last + 1))
    assert in_tables(lake) == [list(range(1, last + 1))] * 2
