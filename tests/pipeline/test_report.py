"""Reports of what really went through a broker."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from posthouse import create_client
from posthouse.cli import main
from posthouse.pipeline.events import events
from posthouse.pipeline.jobs import archive, report
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.pages import page
from posthouse.pipeline.stays import stays
from posthouse.pipeline.tables import write_table
from posthouse.pipeline.wire import FeedClient, PosthouseError
from tests.pipeline.asking import foretold, last, on_a_terminal, read_as_told
from tests.server.running import Running, development

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTITIES = ["gone", "news", "news/all", "orders"]
KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"
HOSTILE = "</script><script>alert(x)</script>"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker of which everything that happened is known."""
    with development(tmp_path_factory.mktemp("shop") / "data") as broker:
        make_traffic(broker)
        yield broker


def make_traffic(broker: Running) -> None:
    broker.queue("PUT", "orders", {"max_delivery": 5})
    broker.call("PUT", "/api/v1/namespaces/default/topics/news", {})
    broker.call("PUT", "/api/v1/namespaces/default/topics/news/subscriptions/all", {})
    broker.send("orders", *(f"{n}" for n in range(10)))
    first = broker.receive("orders", 4)
    broker.complete("orders", *first[:2])
    locks = [first[2]["token"]]
    broker.queue("POST", "orders/dead-letter", {"locks": locks, "reason": HOSTILE})
    broker.queue("POST", "orders/abandon", {"locks": [first[3]["token"]]})
    release_one(broker, "orders")
    again = broker.receive("orders", 1)
    assert again[0]["sequence"] == first[3]["sequence"]
    broker.complete("orders", *again)
    broker.receive("orders", 2, delete=True)
    broker.send("news", "a", "b")
    broker.receive("news%2F$sub%2Fall", 1, delete=True)
    broker.send("gone", "x", "y")
    broker.queue("DELETE", "gone")
    broker.send("gone", "z")


def release_one(broker: Running, queue: str) -> None:
    """Receives a message, and gives it back untried."""

    async def receive_and_release() -> None:
        async with create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as client:
            message = await client.receive_message(queue, 30.0)
            assert message is not None
            await client.release_message(message)

    asyncio.run(receive_and_release())


def rows(table: Any) -> dict[str, dict[str, Any]]:
    return {row["entity"]: row for row in table.toArrow().to_pylist()}


@pytest.fixture(scope="module")
def made(spark: "SparkSession", shop: Running) -> report.Report:
    return report.report(events(spark, FeedClient(shop.url), columns=report.COLUMNS))


def test_every_queue_is_counted(made: report.Report) -> None:
    found = rows(made.queues)
    assert set(found) == {"orders", "news", "news/all", "gone"}
    wanted = {
        "sent": 10, "arrived": 10, "delivered": 8, "completed": 5, "abandoned": 1,
        "dead_lettered": 1, "expired": 0, "retries": 1, "open": 4, "dead_now": 1,
    }  # fmt: skip
    assert {name: found["orders"][name] for name in wanted} == wanted
    assert (found["news"]["sent"], found["news"]["completed"]) == (2, 0)
    subscription = found["news/all"]
    counts = [subscription[name] for name in ("sent", "arrived", "completed", "open")]
    assert counts == [0, 2, 1, 1]


def test_what_is_published_once_is_sent_once_and_p50_is_of_all_messages(
    spark: "SparkSession", shop: Running, made: report.Report
) -> None:
    [overall] = made.overall.toArrow().to_pylist()
    assert (overall["sent"], overall["delivered"], overall["retries"]) == (15, 9, 1)
    found = stays(events(spark, FeedClient(shop.url))).where("first_delivered is not null")
    waited = sorted(
        (row["first_delivered"] - row["came"]).total_seconds()
        for row in found.toArrow().to_pylist()
    )
    assert len(waited) == 7
    assert overall["waited_p50_s"] == pytest.approx(waited[3])
    windows = made.overall_windows.toArrow().to_pylist()
    assert sum(row["sent"] for row in windows) == 15
    assert windows[0]["start"] <= windows[-1]["start"]


def test_a_report_of_one_queue_has_nothing_of_others(spark: "SparkSession", shop: Running) -> None:
    every = events(spark, FeedClient(shop.url), columns=report.COLUMNS)
    of_one = report.report(every, queues=["orders"])
    assert set(rows(of_one.queues)) == {"orders"}
    orders = rows(of_one.queues)["orders"]
    assert (orders["dead_now"], orders["open"], orders["sent"]) == (1, 4, 10)
    [overall] = of_one.overall.toArrow().to_pylist()
    assert overall == {name: orders[name] for name in overall}
    subscription = rows(report.report(every, queues=["news/all", "gone"]).queues)
    counts = {name: (row["arrived"], row["open"]) for name, row in subscription.items()}
    assert counts == {"news/all": (2, 1), "gone": (3, 1)}


def test_what_was_deleted_with_its_queue_is_not_there_any_more(made: report.Report) -> None:
    gone = rows(made.queues)["gone"]
    assert (gone["sent"], gone["open"]) == (3, 1)


def test_times_are_of_what_was_delivered(made: report.Report) -> None:
    found = rows(made.queues)
    assert 0 < found["orders"]["waited_p50_s"] <= found["orders"]["waited_p99_s"] < 60
    assert 0 <= found["orders"]["settled_p50_s"] < 60
    assert found["gone"]["waited_p50_s"] is None


def test_windows_hours_reasons_and_consumers_add_up(made: report.Report) -> None:
    for table in (made.windows, made.hours):
        of = [row for row in table.toArrow().to_pylist() if row["entity"] == "orders"]
        assert sum(row["sent"] for row in of) == 10
        assert sum(row["completed"] for row in of) == 5
    [reason] = made.reasons.toArrow().to_pylist()
    assert (reason["entity"], reason["reason"], reason["messages"]) == ("orders", HOSTILE, 1)
    consumers = rows(made.consumers)["orders"]
    assert consumers["delivered"] == 8
    assert 1 <= consumers["busiest"] <= 8
    assert 1 <= consumers["receivers"] <= 8


def test_windows_are_as_long_as_is_asked_for(spark: "SparkSession", shop: Running) -> None:
    short = report.report(events(spark, FeedClient(shop.url)), 1)
    starts = [row["start"] for row in short.windows.toArrow().to_pylist()]
    assert short.window_seconds == 1
    assert all(start.microsecond == 0 for start in starts)
    assert sum(row["arrived"] for row in short.windows.toArrow().to_pylist()) == 17


def test_a_report_of_nothing_is_empty(spark: "SparkSession", shop: Running) -> None:
    nothing = report.report(events(spark, FeedClient(shop.url), until="1"))
    assert nothing.first is None
    assert nothing.queues.toArrow().num_rows == 0


def test_a_lake_gives_the_same_report(
    spark: "SparkSession", shop: Running, made: report.Report, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    archive.archive(spark, FeedClient(shop.url), lake)
    again = report.report(events(spark, lake))
    assert rows(again.queues) == rows(made.queues)
    part = events(spark, lake, "3", "5").select("position").toArrow().to_pylist()
    assert sorted(row["position"] for row in part) == [3, 4]
    early = events(spark, lake, until="2020-01-01T00:00:00").count()
    late = events(spark, lake, since="2020-01-01T00:00:00+02:00").count()
    assert (early, late) == (0, events(spark, lake).count())
    with pytest.raises(PosthouseError, match="position or a moment"):
        events(spark, lake, "yesterday")


def test_eras_tell_messages_of_the_same_number_apart(spark: "SparkSession", shop: Running) -> None:
    found = (
        stays(events(spark, FeedClient(shop.url))).where("entity = 'gone'").toArrow().to_pylist()
    )
    keys = sorted((row["era"], row["sequence_number"], row["how"]) for row in found)
    assert keys == [(0, 1, "deleted"), (0, 2, "deleted"), (1, 1, None)]


@pytest.mark.usefixtures("watched_closely")
def test_the_command_writes_a_page_and_tables(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ["--url", shop.url, "--out", str(out), "--format", "json", "--json"]
    assert main(["pipeline", "report", *given]) == 0
    shown = capsys.readouterr()
    said = json.loads(shown.out)
    assert read_as_told(shown.err)["rows"] >= last(shop)
    assert foretold(shown.err)
    assert said["page"] == str(out / "report.html")
    assert {row["entity"]: row["sent"] for row in said["queues"]}["orders"] == 10
    assert said["overall"][0]["sent"] == 15
    lines = (out / "queues.json").read_text().splitlines()
    assert sorted(json.loads(line)["entity"] for line in lines) == ENTITIES
    shown_page = shown_in(out / "report.html")
    assert (shown_page["overall"][0]["sent"], len(shown_page["queues"])) == (15, 4)
    assert main(["pipeline", "report", *given, "--queue", "ordrs"]) == 3
    assert f"Nothing happened in 'ordrs' in {shop.url}" in capsys.readouterr().err
    screen = on_a_terminal("report", "--url", shop.url, "--out", str(out))
    assert re.search(r"\[KCounting: \d+ s, [\d,]+ rows, [\d,]+ a second.*, \d+ s left\r", screen)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_tables_are_written_as_anybody_reads_them(tmp_path: Path, form: str) -> None:
    path = tmp_path / "table"
    write_table(pa.table({"entity": ["a", "b"], "sent": [1, None]}), path, form)
    read = pq.read_table(path) if form == "parquet" else csv.read_csv(path)
    assert read.to_pydict() == {"entity": ["a", "b"], "sent": [1, None]}


def shown_in(path: Path) -> Any:
    """The data in a page, as a browser finds it."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text())
    assert found is not None
    return json.loads(found[1])


def test_what_is_in_a_page_cannot_become_a_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("report", {"queues": [{"entity": HOSTILE}]}))
    assert HOSTILE not in path.read_text()
    assert shown_in(path)["queues"][0]["entity"] == HOSTILE
    assert "http://" not in path.read_text().replace("http://www.w3.org/2000/svg", "")
