"""Pipelines that are declared in YAML, run on a real broker."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from posthouse.cli import main
from posthouse.pipeline.declared import Wrong, load
from posthouse.pipeline.jobs import archive, run
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.wire import FeedClient
from tests.pipeline.asking import forget
from tests.server.running import Running, development
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("shop") / "data") as broker:
        for queue in ("team-payments", "team-data", "big", "small"):
            broker.queue("PUT", queue, {"duplicate_detection": True})
        topic = {"duplicate_detection": True}
        broker.call("PUT", "/api/v1/namespaces/default/topics/revenue", topic)
        broker.call("PUT", "/api/v1/namespaces/default/topics/revenue/subscriptions/all", {})
        yield broker


def order(number: int, region: str = "north") -> str:
    return json.dumps({"id": number, "region": region, "amount": number + 0.5})


def taken(broker: Running, queue: str) -> list[dict[str, Any]]:
    return broker.receive(queue, 1000, delete=True)


def written(folder: Path, text: str) -> str:
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return str(path)


ORDERS = """
name: orders
checkpoint: {folder}/checkpoint
sources:
  given:
    queue: given
    schema: id bigint, region string, amount double
    rows: 15
steps:
  sums: SELECT message_id, body.id AS id, body.amount AS amount FROM given WHERE body.id IS NOT NULL
  big: SELECT message_id, to_json(struct(id)) AS body FROM sums WHERE amount > 5
  small: SELECT message_id, to_json(struct(id)) AS body FROM sums WHERE amount <= 5
sinks:
  - {{from: big, queue: big, once: true}}
  - {{from: small, queue: small, once: true}}
  - {{from: sums, files: {folder}/out, format: json}}
"""


def test_rows_go_from_a_queue_through_steps_to_several_sinks(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.send("given", *(order(n) for n in range(10)), "no order")
    path = written(tmp_path, ORDERS.format(folder=tmp_path))
    given = ["pipeline", "run", path, "--url", shop.url, "--once", "--json"]
    assert main(given) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"] == {"big-queue": 11, "small-queue": 11, "sums-files": 11}
    told = [json.loads(line) for line in said.err.splitlines()[1:]]
    assert {each["sink"] for each in told} == {"big-queue", "small-queue", "sums-files"}
    assert all(each["position"] > 0 for each in told)
    assert all("seconds_left" in each for each in told)
    ends = {each["sink"]: each["lag"] for each in told}
    assert set(ends.values()) == {0}  # what it has written itself is not for this run
    assert [json.loads(each["body"])["id"] for each in taken(shop, "big")] == [5, 6, 7, 8, 9]
    assert [json.loads(each["body"])["id"] for each in taken(shop, "small")] == [0, 1, 2, 3, 4]
    shop.send("given", order(20))
    forget(tmp_path / "checkpoint" / "big-queue")
    assert main(given) == 0  # what was not finished, and what is new, and no more
    assert [json.loads(each["body"])["id"] for each in taken(shop, "big")] == [20]
    assert taken(shop, "small") == []
    files = [each.read_text() for each in (tmp_path / "out").rglob("*.json")]
    rows = [json.loads(line) for each in files for line in each.splitlines()]
    assert sorted(row["id"] for row in rows) == [*range(10), 20]


def test_a_lake_and_files_are_read_and_joined(
    spark: "SparkSession", shop: Running, tmp_path: Path
) -> None:
    shop.send("lakeside", *(order(n, region) for n, region in enumerate(("north", "south", "up"))))
    lake = Lake(str(tmp_path / "lake"))
    archive.archive(spark, FeedClient(shop.url), lake)
    (tmp_path / "regions.csv").write_text("region,manager\nnorth,Ada\nsouth,Grace\n")
    path = written(tmp_path, f"""
sources:
  messages: {{lake: {lake.where}}}
  regions: {{files: {tmp_path}/regions.csv, format: csv}}
steps:
  managed: |
    SELECT get_json_object(cast(body AS string), '$.id') AS id, manager
    FROM messages JOIN regions ON get_json_object(cast(body AS string), '$.region') = region
    WHERE entity = 'lakeside'
sinks:
  - {{from: managed, lake: {tmp_path}/managed}}
""")  # fmt: skip
    assert run.run(spark, load(path), FeedClient(shop.url)) == {"managed-lake": 2}
    rows = ds.dataset(tmp_path / "managed").to_table().to_pylist()
    assert sorted((row["id"], row["manager"]) for row in rows) == [("0", "Ada"), ("1", "Grace")]


def example(name: str, folder: Path) -> str:
    """One of those that come along, with its files elsewhere."""
    text = (EXAMPLES / name).read_text()
    return written(folder, text.replace("checkpoints/", f"{folder}/c-").replace(
        "revenue-history", f"{folder}/history"
    ))  # fmt: skip


def test_the_example_of_revenue_per_region(
    spark: "SparkSession", shop: Running, tmp_path: Path
) -> None:
    """A window ends with the clock; here what there is of it is taken as soon as it is known."""
    shop.send("orders", *(order(n, ("north", "south")[n % 2]) for n in range(10)))
    path = Path(example("revenue.yaml", tmp_path))
    text = path.read_text().replace("topic: revenue", "topic: revenue\n    mode: update")
    path.write_text(text.replace("name: history", "name: history\n    mode: update"))
    run.run(spark, load(str(path)), FeedClient(shop.url), once=True)
    found = [json.loads(each["body"]) for each in taken(shop, "revenue%2F$sub%2Fall")]
    sums = {row["region"]: (row["amount"], row["orders"]) for row in found}
    assert sums == {"north": (22.5, 5), "south": (27.5, 5)}


def test_the_example_of_dead_letters_for_teams(
    spark: "SparkSession", shop: Running, tmp_path: Path
) -> None:
    shop.send("orders", "a", "b", "c")
    got = {each["body"]: each for each in shop.receive("orders", 1000)}
    for body, reason in (("a", "PaymentDeclined"), ("b", "ValidationError")):
        locks = [got[body]["token"]]
        shop.queue("POST", "orders/dead-letter", {"locks": locks, "reason": reason})
    run.run(spark, load(example("dead-letters.yaml", tmp_path)), FeedClient(shop.url), once=True)
    [payment], [other] = taken(shop, "team-payments"), taken(shop, "team-data")
    assert (payment["body"], payment["subject"]) == ("a", "PaymentDeclined")
    assert (other["body"], other["subject"]) == ("b", "ValidationError")


# Mistakes.

GOOD = """sources:
  q: {queue: orders}
steps:
  s: SELECT body FROM q
sinks:
  - {from: s, console: yes}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("sources:", "source:", 1, "no 'source'"), ("{queue: orders}", "{quue: x}", 2, "no 'quue'"),
        ("{queue: orders}", "{queue: x, topic: y}", 2, "is one of queue, topic, lake, files"),
        ("{queue: orders}", "{queue: x, format: csv}", 2, "no 'format' of a source of queue"),
        ("{queue: orders}", "{files: x, format: xls}", 2, "'xls' is none of parquet, json, csv"),
        ("{queue: orders}", "{queue: x, watermark: {column: time}}", 2, "a column and a delay"),
        ("{queue: orders}", "[1]", 2, "names and values"), ("  q:", "  1q:", 2, "a name in SQL"),
        ("{queue: orders}", "{queue: [x]}", 2, "single value"), ("  s:", "  q:", 4, "two of the"),
        ("{queue: orders}", "{queue: '${NOT_SET}'}", 2, "NOT_SET is not set"),
        ("from: s", "from: t", 6, "'t' is none of q, s"), ("from: s, ", "", 6, "from"),
        ("console: yes", "mode: append", 6, "is one of"), ("yes}", "yes, mode: best}", 6, "'best'"),
        ("console: yes", "queue: x, format: csv", 6, "no 'format' of a sink of queue"),
        ("  - {from", "  {from", 6, "a list"),
        ("SELECT body FROM q", "[", 6, "not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, text: str
) -> None:
    assert old in GOOD
    with pytest.raises(Wrong) as wrong:
        load(written(tmp_path, GOOD.replace(old, new, 1)))
    assert f"line {line}:" in str(wrong.value)
    assert text in str(wrong.value)


def test_a_file_that_is_not_there_or_empty_is_told(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="cannot be read"):
        load(str(tmp_path / "none.yaml"))
    with pytest.raises(Wrong, match="is empty"):
        load(written(tmp_path, ""))
    with pytest.raises(Wrong, match="no sinks"):
        load(written(tmp_path, GOOD.partition("sinks")[0]))
    with pytest.raises(Wrong, match="two sinks"):
        load(written(tmp_path, GOOD + "  - {from: s, console: yes}\n"))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("SELECT body FROM q", "SELECT nothing FROM q", "The step s, line 4: .*nothing"),
        ("SELECT body FROM q", "SELEC", "The step s, line 4: .*SELEC"),
        ("{queue: orders}", "{queue: unheard-of}", "The source q, line 2: .*unheard-of"),
        ("{queue: orders}", "{files: /nowhere}", "The source q, line 2: .*nowhere"),
        ("console: yes", "queue: new, once: true", "The sink s-queue, line 6: .*duplicate"),
        ("SELECT body FROM q", "SELECT 1 AS n FROM q", "needs a checkpoint"),
    ],
)
def test_what_spark_or_the_broker_does_not_take_is_told_before_it_starts(
    spark: "SparkSession", shop: Running, tmp_path: Path, old: str, new: str, text: str
) -> None:
    shop.send("orders", "x")
    checkpoint = "" if "checkpoint" in text else f"checkpoint: {tmp_path}/c\n"
    path = written(tmp_path, GOOD.replace(old, new, 1) + checkpoint)
    with pytest.raises(Wrong, match=text):
        run.plan(spark, load(path), FeedClient(shop.url))


def test_a_plan_can_be_looked_at(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.send("orders", "x")
    path = written(tmp_path, f"checkpoint: {tmp_path}/c\n{GOOD}")
    assert main(["pipeline", "run", path, "--url", shop.url, "--explain"]) == 0
    assert "Physical Plan" in capsys.readouterr().out
    assert not (tmp_path / "c").exists()


# Killed.

KILLED = """
checkpoint: {folder}/c
trigger: 0 seconds
sources:
  given: {{queue: given, body: text, rows: 200}}
steps:
  made: SELECT concat(body, '!') AS body, concat('m-', position) AS message_id FROM given
sinks:
  - {{from: made, queue: made, once: true, atomic: {atomic}}}
"""


@pytest.mark.skipif(
    os.environ.get("TORTURE") != "1", reason="it starts Spark four times: TORTURE=1, make torture"
)
@pytest.mark.parametrize("atomic", ["true", "false"])
def test_a_pipeline_that_is_killed_again_and_again_sends_each_once(
    spark: "SparkSession", tmp_path: Path, atomic: str
) -> None:
    """All of it, with its JVM and its workers, while it works; then what there is, to the end."""
    posthouse, chance = str(Path(sys.executable).with_name("posthouse")), random.Random(atomic)
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "made", {"duplicate_detection": True})
        for first in range(0, 4_000, 500):
            broker.send("given", *map(str, range(first, first + 500)))
        path = written(tmp_path, KILLED.format(folder=tmp_path, atomic=atomic))
        words = [posthouse, "pipeline", "run", path, "--url", broker.url]
        before = 0
        for _ in range(3):
            with subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True) as run:
                until(partial(is_further, broker, before), "some more was written", 600)
                time.sleep(chance.random())  # slept: it is killed at some moment
                os.killpg(run.pid, signal.SIGKILL)
            before = count(broker)
        deadline = time.monotonic() + 1_200
        while subprocess.run([*words, "--once"], check=False, stderr=subprocess.DEVNULL).returncode:
            assert time.monotonic() < deadline  # Spark gives up where its workers are slow to come
        every = sorted(f"{number}!" for number in range(4_000))
        rows = spark.read.format("posthouse").options(url=broker.url, queue="made", body="text")
        assert sorted(row.body for row in rows.load().select("body").collect()) == every
        answer = broker.call(
            "GET", "/feed?limit=1000000&namespace=default&entity=made&kinds=sent&columns=body",
            headers={"accept": "application/vnd.apache.arrow.stream"},
        )  # fmt: skip
        plain = pa.ipc.open_stream(answer.body).read_all().column("body").to_pylist()
        assert sorted(each.decode() for each in plain) == every


def is_further(broker: Running, before: int) -> bool:
    return not count(broker) == before < 4_000


def count(broker: Running) -> int:
    found = broker.queue("GET", "made").json["counts"]
    return int(found["active"])
