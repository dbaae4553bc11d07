"""Dead letters: triage, and replay."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.cli import main
from posthouse.pipeline.causes import shape
from posthouse.pipeline.events import events
from posthouse.pipeline.jobs import replay
from posthouse.pipeline.jobs.triage import triage as job_triage
from posthouse.pipeline.wire import FeedClient, PosthouseError
from tests.pipeline.asking import foretold, last, read_as_told
from tests.server.running import Running, development

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAUSES = (
    ("Timeout", "TimeoutError: no answer from 10.0.0.{n}:80 after {n} s at 2026-11-16T10:00:0{n}Z"),
    ("Bad", "ValueError: 'field{n}' of order 1234{n} is -{n}.5"),
    ("MaxDeliveryCountExceeded", None),
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Running]:
    with development(tmp_path / "data") as broker:
        yield broker


def bury(broker: Running, count: int, queue: str = "orders") -> None:
    """So many dead letters, of every cause in turn."""
    bodies = [json.dumps({"id": n, "name": "x"}) for n in range(count)]
    broker.send(queue, *bodies, properties={"colour": "red"})
    for number, message in enumerate(broker.receive(queue, count)):
        reason, text = CAUSES[number % 3]
        why = {"reason": reason} | ({"description": text.format(n=number)} if text else {})
        broker.queue("POST", f"{queue}/dead-letter", {"locks": [message["token"]], **why})


def dead(broker: Running, queue: str = "orders") -> list[int]:
    page = broker.queue("GET", f"{queue}%2F$dead/messages?limit=1000").json
    return [each["sequence"] for each in page["messages"]]


def taken(broker: Running, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while some := broker.receive(queue, 1000, delete=True):
        found += some
    return found


def made(spark: "SparkSession", broker: Running, folder: Path, **wanted: Any) -> replay.Plan:
    at = FeedClient(broker.url)
    rows = events(spark, at, columns=replay.COLUMNS)
    return replay.make(rows, at, str(folder), **wanted)


# Triage.


@pytest.mark.usefixtures("watched_closely")
def test_dead_letters_are_grouped_by_cause(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(shop, 9)
    shop.queue("POST", "orders%2F$dead/resubmit", {"sequences": [1]})  # which is dead no more
    bury(shop, 3, "mails")
    given = ["--url", shop.url, "--out", str(tmp_path / "out"), "--format", "json", "--json"]
    assert main(["pipeline", "triage", *given]) == 0
    shown = capsys.readouterr()
    said = json.loads(shown.out)
    assert read_as_told(shown.err)["rows"] >= last(shop)
    assert foretold(shown.err)
    causes = {each["reason"]: each for each in said["causes"]}
    assert {name: each["messages"] for name, each in causes.items()} == {
        "Timeout": 3, "Bad": 4, "MaxDeliveryCountExceeded": 4,
    }  # fmt: skip
    timeout = causes["Timeout"]
    assert timeout["queues"] == [
        {"messages": 2, "entity": "orders"}, {"messages": 1, "entity": "mails"},
    ]  # fmt: skip
    text = "TimeoutError: no answer from <address> after <n> s at <time>"
    assert (timeout["error"], timeout["fingerprint"]) == ("TimeoutError", text)
    assert causes["Bad"]["fingerprint"] == "ValueError: <text> of order <n> is <n>"
    assert {each["shape"] for each in causes.values()} == {"{id: number, name: string}"}
    assert {name: each["plan"] for name, each in causes.items()} == {
        "Timeout": "wait", "Bad": "data", "MaxDeliveryCountExceeded": "silent",
    }  # fmt: skip
    assert [json.loads(each["body"])["id"] for each in causes["Bad"]["examples"]] == [1, 4, 7]
    assert (tmp_path / "out" / "triage.html").read_text().count("<address>") == 0  # it is escaped
    assert len((tmp_path / "out" / "causes.json").read_text().splitlines()) == 3
    # What it proposes does what it says.
    command = causes["Timeout"]["command"]
    words = subprocess.run(
        ["sh", "-c", f'for word in {command.removeprefix("posthouse ")}; do echo "$word"; done'],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    where = ["--url", shop.url, "--plan", str(tmp_path / "plan"), "--yes", "--json"]
    assert main([*words, *where]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 3
    rest = job_triage(events(spark, FeedClient(shop.url)), ["mails"]).toArrow().to_pylist()
    assert {(row["reason"], row["messages"]) for row in rest} == {
        ("Bad", 1), ("MaxDeliveryCountExceeded", 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "empty"), (b"", "empty"), (b"plain", "text"), (b"\xff\xfe", "binary"),
        (b"5", "number"), (b"null", "null"), (b'{"b": [1, "x"], "a": true}',
        "{a: boolean, b: [number | string]}"), (b'{"a": {"b": {"c": {"d": 1}}}}',
        "{a: {b: {c: {...}}}}"), (b"[" * 100_000, "json"), (b"[]", "[]"),
    ],
)  # fmt: skip
def test_the_shape_of_a_body(body: bytes | None, expected: str) -> None:
    assert shape(body) == expected


# Replay.


def test_dead_letters_go_back_as_they_were(
    spark: "SparkSession", shop: Running, tmp_path: Path
) -> None:
    bury(shop, 9)
    plan = made(spark, shop, tmp_path / "plan", where="reason = 'Bad' and text like '%id%'")
    assert (plan.messages, plan.queues, plan.moves) == (3, {"orders": 3}, True)
    assert len(dead(shop)) == 9  # so far it is a plan
    shop.queue("POST", "orders%2F$dead/purge", {"sequences": [5]})  # somebody deals with one
    found = replay.run(FeedClient(shop.url), str(tmp_path / "plan"))
    assert (found.done, found.vanished, found.left) == (2, 1, 0)
    again = taken(shop, "orders")
    assert [json.loads(each["body"])["id"] for each in again] == [1, 7]
    assert all(each["properties"] == {"colour": "red"} for each in again)
    assert len(dead(shop)) == 6
    twice = replay.run(FeedClient(shop.url), str(tmp_path / "plan"))
    assert (twice.done, twice.already) == (0, 2)
    assert taken(shop, "orders") == []
    with pytest.raises(PosthouseError, match="There is a plan"):
        made(spark, shop, tmp_path / "plan")


def test_dead_letters_can_be_changed_on_their_way(
    spark: "SparkSession", shop: Running, tmp_path: Path
) -> None:
    bury(shop, 6)
    shop.queue("PUT", "mended", {})
    changes = {
        "body": "concat('{\"was\": ', get_json_object(text, '$.id'), '}')", "subject": "reason",
        "properties": "map_concat(properties, map('by', 'replay'))",
    }  # fmt: skip
    plan = made(spark, shop, tmp_path / "plan", where="entity = 'orders'", into="mended",
                changes=changes)  # fmt: skip
    assert not plan.moves
    found = replay.run(FeedClient(shop.url), str(tmp_path / "plan"), rate=50)
    assert (found.done, found.vanished) == (6, 0)
    again = taken(shop, "mended")
    assert [json.loads(each["body"])["was"] for each in again] == list(range(6))
    assert [each["subject"] for each in again[:2]] == ["Timeout", "Bad"]
    assert {each["properties"]["by"] for each in again} == {"replay"}
    assert dead(shop) == []
    twice = replay.run(FeedClient(shop.url), str(tmp_path / "plan"))
    assert (twice.done, twice.already) == (0, 6)


def test_what_was_sent_can_be_sent_again(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.send("orders", *map(str, range(10)), id="same")
    shop.queue("PUT", "copies", {})
    wanted = {"source": "sent", "where": "cast(text as int) >= 7", "into": "copies"}
    assert made(spark, shop, tmp_path / "plan", **wanted).queues == {"copies": 3}
    plan = str(tmp_path / "plan")
    assert main(["pipeline", "replay", "--url", shop.url, "--plan", plan, "--yes"]) == 0
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (told["rows"], told["left"], told["seconds_left"]) == (3, 0, 0)
    assert [each["body"] for each in taken(shop, "copies")] == ["7", "8", "9"]
    assert len(taken(shop, "orders")) == 10


def jobs_run(spark: "SparkSession") -> int:
    return int(spark._jsc.sc().dagScheduler().numTotalJobs())


def test_a_plan_that_makes_no_sense_is_refused(
    spark: "SparkSession", shop: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.send("orders", "x")
    with pytest.raises(PosthouseError, match="no field 'colour'"):
        made(spark, shop, tmp_path / "plan", changes={"colour": "1"})
    for where, said in (("nonsense = 1", "`nonsense`"), ("reason = = 1", "at or near '='")):
        given = ["--url", shop.url, "--plan", str(tmp_path / "none"), "--where", where]
        logging.Logger.manager.loggerDict.pop("SQLQueryContextLogger", None)
        before = jobs_run(spark)
        assert main(["pipeline", "replay", *given]) == 1
        *progress, told = capsys.readouterr().err.splitlines()
        assert all("doing" in json.loads(line) for line in progress), progress
        assert jobs_run(spark) == before
        assert told.startswith("Spark does not understand --where or --set: ")
        assert said in told
        assert "SQLSTATE" not in told
    with pytest.raises(PosthouseError, match="no plan"):
        replay.run(FeedClient(shop.url), str(tmp_path / "plan"))
    (tmp_path / "plan").mkdir(exist_ok=True)
    (tmp_path / "plan" / "plan.json").write_text("[]")
    assert main(["pipeline", "replay", "--url", shop.url, "--plan", str(tmp_path / "plan")]) == 1
    assert "is not a plan" in capsys.readouterr().err


RUN = """
import sys
from posthouse.pipeline.jobs.replay import run
from posthouse.pipeline.wire import FeedClient
run(FeedClient(sys.argv[1]), sys.argv[2], rate=400, told=lambda now: print(now.done, flush=True))
"""


# Messages, and how often it is killed.
MANY, KILLS = (600, 6) if os.environ.get("TORTURE") == "1" else (240, 2)


@pytest.mark.parametrize("changes", [{}, {"subject": "'again'"}])
def test_a_replay_that_is_killed_again_and_again_sends_each_once(
    spark: "SparkSession", shop: Running, tmp_path: Path, changes: dict[str, str]
) -> None:
    bury(shop, MANY)
    plan = str(tmp_path / "plan")
    made(spark, shop, Path(plan), changes=changes)
    chance = random.Random(3)
    for _ in range(KILLS):
        running = subprocess.Popen([sys.executable, "-c", RUN, shop.url, plan])
        time.sleep(0.4 + chance.random() / 2)  # slept: it is killed at some moment
        running.send_signal(signal.SIGKILL)
        running.wait()
    replay.run(FeedClient(shop.url), plan)
    ids = Counter(json.loads(each["body"])["id"] for each in taken(shop, "orders"))
    assert ids == Counter(range(MANY))
    assert dead(shop) == []
