"""Messages of a subscription, which are copies of what its topic was sent."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline import copies as room
from posthouse.pipeline.wire import FeedClient
from tests.pipeline.asking import Batches
from tests.server.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = "/api/v1/namespaces/default/topics"
RULE = {
    "filter": {"kind": "sql", "expression": "n > 2"},
    "action": "SET seen = 'yes'; REMOVE region",
}


def publish(broker: Running, topic: str) -> None:
    """Six messages to a topic, of which one subscription gets all, and another changes three."""
    subscriptions = f"{TOPICS}/{topic}/subscriptions"
    sent = [
        {"id": f"m{n}", "body": f"b{n}", "properties": {"n": n, "region": "eu"}} for n in range(6)
    ]
    for method, path, form in (
        ("PUT", f"{TOPICS}/{topic}", {}), ("PUT", f"{subscriptions}/all", {}),
        ("PUT", f"{subscriptions}/some", {}),
        ("DELETE", f"{subscriptions}/some/rules/$Default", None),
        ("PUT", f"{subscriptions}/some/rules/late", RULE),
    ):  # fmt: skip
        reply = broker.call(method, path, form)
        assert reply.status < 300, reply
    assert broker.call("POST", f"{TOPICS}/{topic}/messages", {"messages": sent}).status == 201


def test_a_subscription_has_what_it_got_as_actions_have_it(
    spark: "SparkSession", broker: Running, tmp_path: Path
) -> None:
    publish(broker, "news")
    read = spark.read.format("posthouse").options(url=broker.url, body="text", partitions="3")

    def rows(name: str) -> list[tuple[str, str, str, dict[str, str]]]:
        found = read.option("entity", f"news/{name}").load().orderBy("sequence_number")
        return [(r.message_id, r.body, r.entity, r.properties) for r in found.collect()]

    everything = rows("all")
    assert [each[:2] for each in everything] == [(f"m{n}", f"b{n}") for n in range(6)]
    assert everything[5][2:] == ("news/$sub/all", {"n": "5", "region": "eu"})
    assert rows("some") == [
        (f"m{n}", f"b{n}", "news/$sub/some", {"n": str(n), "seen": "yes", "RuleName": "late"})
        for n in (3, 4, 5)
    ]
    batches = Batches(spark, broker.url, tmp_path, entity="news/some", maxRowsPerBatch="2")
    assert [len(positions) for _, positions in batches.run()] == [2, 1]  # of its own copies alone


@pytest.mark.parametrize("step", [1, 4, 1_000])
def test_messages_are_found_however_the_feed_is_cut(
    broker: Running, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    topic = f"cut-{step}"
    begin = broker.call("GET", "/feed/status").json["last"] + 1  # what others did is theirs
    publish(broker, topic)
    monkeypatch.setattr(room, "REMEMBERED", 2)
    monkeypatch.setattr(room, "LOOK_BACK", 3)
    last = broker.call("GET", "/feed/status").json["last"]
    found = []
    for first in range(begin, last + 1, step):
        copies = room.Copies(
            FeedClient(broker.url), "default", topic, f"{topic}/$sub/some", ["message_id", "body"]
        )
        for batch in copies.read(first, min(first + step, last + 1)):
            found += batch.to_pylist()
    assert [(each["message_id"], each["body"]) for each in found] == [
        (f"m{n}", f"b{n}".encode()) for n in (3, 4, 5)
    ]
    assert [json.loads(each["properties"])["seen"] for each in found] == ["yes"] * 3
    assert len({each["position"] for each in found}) == 3
