"""What producers sent, the journal saw and consumers processed, held against each other."""

import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from posthouse.cli import main
from posthouse.pipeline import claims
from posthouse.pipeline.events import events
from posthouse.pipeline.jobs.reconcile import COLUMNS, FAULTS, Verdict, reconcile
from posthouse.pipeline.wire import FeedClient, PosthouseError
from tests.pipeline.asking import foretold, last, read_as_told
from tests.server.running import Running, development

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES, PLANTED = 1_000_000, 1_000


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("shop") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With an outbox and an inbox, not all of which is true."""
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE outbox (event_id TEXT, payload TEXT)")
    sent = [(f"m{n}", "changed" if n == 5 else f"body {n}") for n in range(12)]
    made.executemany("INSERT INTO outbox VALUES (?, ?)", [*sent, ("n1", "news")])
    made.execute("CREATE TABLE inbox (event_id TEXT)")
    processed = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m6", "nobody's", "n1", "n1"]
    made.executemany("INSERT INTO inbox VALUES (?)", [(each,) for each in processed])
    made.commit()
    made.close()
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def verdict(spark: "SparkSession", shop: Running, database: str) -> Verdict:
    shop.call("PUT", "/api/v1/namespaces/default/topics/news", {})
    for name in ("one", "two"):
        shop.call("PUT", f"/api/v1/namespaces/default/topics/news/subscriptions/{name}", {})
    for number in range(10):
        shop.send("orders", f"body {number}", id=f"m{number}")
    shop.send("orders", "body 3", id="m3")
    shop.send("news", "news", id="n1")
    shop.send("trash", "x", id="t1")
    shop.queue("POST", "trash/purge", {})
    got = shop.receive("orders", 9)
    shop.complete("orders", *got[:8])
    shop.queue("POST", "orders/dead-letter", {"locks": [got[8]["token"]], "reason": "bad"})
    for name in ("one", "two"):
        shop.receive(f"news%2F$sub%2F{name}", 1, delete=True)
    rows = events(spark, FeedClient(shop.url), columns=COLUMNS)
    outbox = claims.read(spark, f"{database}::outbox")
    inbox = claims.read(spark, f"{database}::SELECT event_id FROM inbox")
    return reconcile(rows, outbox, inbox)


def found_in(verdict: Verdict) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in verdict.faults.toArrow().to_pylist():
        found.setdefault(row["fault"], set()).add(row["message_id"])
    return found


def test_every_fault_is_found_and_no_other(verdict: Verdict) -> None:
    assert found_in(verdict) == {
        "missing": {"m10", "m11"}, "unclaimed": {"t1"}, "duplicated": {"m3"}, "altered": {"m5"},
        "unprocessed": {"m7"}, "doubled": {"m6"}, "invented": {"nobody's"}, "open": {"m3", "m9"},
        "dead": {"m8"}, "gone": {"t1"},
    }  # fmt: skip
    assert verdict.messages == 12
    assert verdict.counts == {n: len(found_in(verdict).get(n, ())) for n in FAULTS}
    assert not verdict.is_well()
    assert verdict.is_well(tuple(FAULTS))


def test_faults_are_listed_with_those_that_are_missing_first(verdict: Verdict) -> None:
    listed = [row["fault"] for row in verdict.faults.toArrow().to_pylist()]
    assert listed == sorted(listed, key=list(FAULTS).index)
    assert listed[:3] == ["missing", "missing", "unclaimed"]


def test_one_queue_is_compared_without_the_claims_about_others(
    spark: "SparkSession", verdict: Verdict, shop: Running, database: str
) -> None:
    rows = events(spark, FeedClient(shop.url), columns=COLUMNS)
    outbox = claims.read(spark, f"{database}::SELECT *, 'orders' AS queue FROM outbox")
    inbox = claims.read(spark, f"{database}::SELECT event_id FROM inbox")
    found = found_in(reconcile(rows, outbox.where("message_id <> 'n1'"), inbox, queues=["orders"]))
    wanted = found_in(verdict)
    del wanted["gone"], wanted["unclaimed"]  # which are in another queue
    assert found == wanted


def test_a_fault_has_the_life_of_its_message(verdict: Verdict) -> None:
    lives = {
        (row["fault"], row["message_id"]): row["life"]
        for row in verdict.faults.toArrow().to_pylist()
    }
    dead = [(step["kind"], step["entity"]) for step in lives["dead", "m8"]]
    assert dead == [("sent", "orders"), ("delivered", "orders"), ("dead-lettered", "orders")]
    twice = [step["kind"] for step in lives["duplicated", "m3"]]
    assert twice == ["sent", "sent", "delivered", "completed"]
    assert lives["missing", "m10"] is None


@pytest.mark.usefixtures("watched_closely")
def test_the_command_tells_by_its_exit_code_whether_all_is_well(
    spark: "SparkSession", verdict: Verdict, shop: Running, database: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = ["--url", shop.url, "--out", str(tmp_path), "--outbox", f"{database}::outbox"]
    assert main(["pipeline", "reconcile", *given, "--format", "json"]) == 1
    said = capsys.readouterr()
    assert "2 missing" in said.out
    examples = [line for line in said.out.splitlines() if ": " in line and ", m" in line]
    assert examples[0] == "missing, m10: no message of that id came"
    assert said.out.splitlines()[-1] == "NOT all is well."
    assert read_as_told(said.err)["rows"] >= last(shop)
    assert foretold(said.err)
    lines = (tmp_path / "faults.json").read_text().splitlines()
    assert {json.loads(line)["fault"] for line in lines} >= {"missing", "dead"}
    nowhere = ["--url", shop.url, "--out", str(tmp_path), "--queue", "ordrs"]
    assert main(["pipeline", "reconcile", *nowhere]) == 3
    assert "Nothing was sent to 'ordrs'" in capsys.readouterr().err
    assert main(["pipeline", "reconcile", *given, "--json", "--allow", *FAULTS]) == 0
    assert json.loads(capsys.readouterr().out)["is_well"]
    assert main(["pipeline", "reconcile", *given, "--allow", "nonsense"]) == 1
    assert "There is no fault 'nonsense'" in capsys.readouterr().err


# Claims.


def test_claims_are_read_from_files(spark: "SparkSession", tmp_path: Path) -> None:
    table = pa.table({"event_id": ["a", "b"], "payload": ["x, y", 'say "z"']})
    pq.write_table(table, tmp_path / "o.parquet")
    csv.write_csv(table, tmp_path / "o.csv")
    lines = (json.dumps(row) for row in table.to_pylist())
    (tmp_path / "o.json").write_text("\n".join(lines))
    read = [claims.read(spark, str(tmp_path / f"o.{form}")) for form in ("parquet", "csv", "json")]
    first, *others = (sorted(each.toArrow().to_pylist(), key=str) for each in read)
    assert [row["message_id"] for row in first] == ["a", "b"]
    assert all(each == first for each in others)


def test_columns_are_named_where_they_are_called_otherwise(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path = str(tmp_path / "o.parquet")
    pq.write_table(pa.table({"nr": [1], "what": ["x"], "where": ["q"]}), path)
    read = claims.read(spark, path, {"message_id": "nr", "entity": "where"})
    assert read.toArrow().to_pylist() == [{"message_id": "1", "entity": "q"}]
    with pytest.raises(PosthouseError, match=r"no column that names messages.*nr, what, where"):
        claims.read(spark, path)
    with pytest.raises(PosthouseError, match="no column 'n'"):
        claims.read(spark, path, {"message_id": "n"})
    with pytest.raises(PosthouseError, match="message_id, entity, body"):
        claims.read(spark, path, {"id": "nr"})


def test_a_database_that_has_no_such_table_is_told(spark: "SparkSession", database: str) -> None:
    with pytest.raises(PosthouseError, match="no such table: unheard_of"):
        claims.read(spark, f"{database}::unheard_of")


def test_a_mistyped_path_of_a_database_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shp.db"
    given = ["--outbox", f"sqlite:///{path}::outbox", "--url", "http://127.0.0.1:1"]
    assert main(["pipeline", "reconcile", *given]) == 3
    assert capsys.readouterr().err == f"There is no database {path}; check the name.\n"
    with pytest.raises(PosthouseError, match="There is no database"):
        claims._staged(f"sqlite+pysqlite:///{path}?timeout=5", "outbox", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert claims.missing_file("postgresql:///shop::outbox") is None
    assert claims.missing_file("outbox.parquet") is None


def test_a_table_of_several_chunks_is_read_whole(
    spark: "SparkSession", database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHUNK_ROWS", 5)
    assert claims.read(spark, f"{database}::outbox").count() == 13
    assert claims.read(spark, f"{database}::SELECT * FROM outbox WHERE 1 = 0").count() == 0


# Many.

_STEPS = """
  CASE fault
    WHEN 'missing' THEN array()
    WHEN 'invented' THEN array()
    WHEN 'open' THEN array(sent(0))
    WHEN 'gone' THEN array(sent(0), step(1, 'purged', 0))
    WHEN 'dead' THEN array(sent(0), step(1, 'delivered', 0), step(2, 'dead-lettered', 0))
    WHEN 'duplicated' THEN array(sent(0), sent(1), step(2, 'completed', 0), step(3, 'completed', 1))
    ELSE array(sent(0), step(1, 'delivered', 0), step(2, 'completed', 0))
  END"""


def planted(spark: "SparkSession", faults: dict[int, str]) -> tuple["DataFrame", ...]:
    """Events, outbox and inbox of many messages, and these faults among them."""
    from pyspark.sql import functions as f

    plan = spark.createDataFrame(list(faults.items()), "id bigint, fault string")
    ids = spark.range(MESSAGES).join(f.broadcast(plan), "id", "left").na.fill("none", ["fault"])
    sql = _STEPS
    for number in (0, 1):
        sql = sql.replace(f"sent({number})", f"step({number}, 'sent', {number})")
    for at in range(4):
        for kind in ("sent", "delivered", "completed", "purged", "dead-lettered"):
            for which in (0, 1):
                sql = sql.replace(
                    f"step({at}, '{kind}', {which})",
                    f"struct(id * 4 + {at} AS position, '{kind}' AS kind,"
                    f" id * 2 + {which} AS sequence_number)",
                )
    sql = sql.replace("THEN array()", "THEN null")
    happened = ids.select("id", f.inline(f.expr(sql))).select(
        "position", f.timestamp_seconds(f.lit(1_700_000_000)).alias("time"),
        f.lit("default").alias("namespace"), f.lit("q").alias("entity"), "kind",
        f.expr("if(kind = 'sent', concat('m', id), null)").alias("message_id"), "sequence_number",
        f.expr("if(kind = 'sent', cast(concat('body ', id) as binary), null)").alias("body"),
        f.expr("if(kind = 'dead-lettered', 'q/$dead', null)").alias("target"),
        f.expr("if(kind = 'dead-lettered', id, null)").alias("target_sequence_number"),
    )  # fmt: skip
    name = f.expr("concat('m', id)").alias("message_id")
    body = f.expr("concat('body ', id, if(fault = 'altered', '!', ''))").cast("binary")
    outbox = ids.where("fault not in ('unclaimed', 'invented')").select(
        name, f.sha2(body, 256).alias("hash")
    )
    times = f.expr("if(fault in ('doubled', 'duplicated'), array(1, 2), array(1))")
    inbox = ids.where("fault not in ('missing', 'open', 'gone', 'dead', 'unprocessed')").select(
        name, f.explode(times)
    )
    return happened, outbox, inbox.select("message_id")


@pytest.mark.skipif(
    os.environ.get("TORTURE") != "1", reason="it takes minutes: TORTURE=1, make torture"
)
def test_planted_faults_are_found_none_missed_none_invented(spark: "SparkSession") -> None:
    chance = random.Random(7)
    chosen = chance.sample(range(MESSAGES), PLANTED)
    faults = {id: list(FAULTS)[at % len(FAULTS)] for at, id in enumerate(chosen)}
    found = found_in(reconcile(*planted(spark, faults)))
    wanted: dict[str, set[Any]] = {}
    for id, fault in faults.items():
        wanted.setdefault(fault, set()).add(f"m{id}")
    assert found == wanted


def test_what_was_taken_from_a_database_is_not_left_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("create table outbox (id text)")
    job = f"""if True:
        from pathlib import Path
        from posthouse.pipeline.claims import _staged
        print(*Path(_staged({url!r}, "outbox", {str(tmp_path)!r})).iterdir())
    """
    said = subprocess.check_output([sys.executable, "-c", job], text=True)
    assert said.endswith("claims.parquet\n")
    assert [each.name for each in tmp_path.iterdir()] == ["shop.db"]
