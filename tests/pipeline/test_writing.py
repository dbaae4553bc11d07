"""`df.write.format("posthouse")`: rows as messages, at least once, or each of them once."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.pipeline.asking import bodies, events, last, write
from tests.server.running import Running, running

ONCE = {"duplicate_detection": True}


def test_columns_are_what_messages_have(spark: SparkSession, broker: Running) -> None:
    broker.queue("PUT", "whole", ONCE)
    frame = spark.sql("""
        select cast('é' as binary) body, 'm1' message_id, 's1' session_id, 's1' partition_key,
            'sub' subject, 'c1' correlation_id, 'text/plain' content_type, 'there' to,
            'back' reply_to, 's2' reply_to_session_id, cast(7 as tinyint) priority,
            60000 time_to_live_ms, timestamp'2100-01-02 03:04:05Z' scheduled_time,
            map('a', 'b', 'n', null) properties
        union all
        select cast('plain' as binary), null, null, null, null, null, null, null, null, null, null,
            null, null, null
    """)
    write(frame, broker, "whole", once="true")
    found = {each["body"]: each for each in events(broker, "namespace=default&entity=whole")[1:]}
    whole = found["é"]
    due = datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000
    expected = {
        "message_id": "m1", "session_id": "s1", "partition_key": "s1", "subject": "sub",
        "correlation_id": "c1", "content_type": "text/plain", "to": "there", "reply_to": "back",
        "reply_to_session_id": "s2", "priority": 7, "ttl_ms": 60_000, "due": due,
        "properties": {"a": "b", "n": None},
    }  # fmt: skip
    assert {name: whole[name] for name in expected} == expected
    plain = found["plain"]
    assert plain["message_id"]
    assert not {"session_id", "subject", "ttl_ms", "due", "properties"} & set(plain)


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("'x' as text", "A message has no column 'text'"),
        ("'x' as subject", "There is no column body"),
        ("1 as body", "The column body is int; it must be binary, string"),
        ("'x' as body, 5 as subject", "The column subject is int; it must be string"),
        ("'x' as body, 'high' as priority", "The column priority is string; it must be a whole"),
        ("'x' as body, '2026' as scheduled_time", "scheduled_time is string; it must be timestamp"),
        ("'x' as body, map(1, 'x') as properties", "properties is map<int,string>; it must be"),
    ],
)
def test_a_column_that_is_not_right_is_named_and_nothing_is_written(
    spark: SparkSession, broker: Running, select: str, told: str
) -> None:
    broker.queue("PUT", "unwritten", ONCE)
    before = last(broker)
    with pytest.raises(PySparkException, match=re.escape(told)):
        write(spark.sql(f"select {select}"), broker, "unwritten")
    assert last(broker) == before


def test_where_it_cannot_be_written_is_told(spark: SparkSession, broker: Running) -> None:
    broker.queue("PUT", "forgetful", {})
    frame = spark.sql("select 'x' as body")
    for entity, options, told in (
        ("nowhere", {"once": "true"}, "queue create nowhere --set duplicate_detection=true"),
        ("forgetful", {"once": "true"}, "'forgetful' has to detect duplicates, and it does not"),
        ("forgetful", {"atomic": "true", "batch": "a"}, "'forgetful' has to detect duplicates"),
        ("forgetful", {"once": "perhaps"}, "The option once is one of false, true"),
        ("forgetful", {"view": "events"}, "There is no option 'view'"),
        ("forgetful", {"queue": "nowhere"}, "entity and queue mean the same"),
    ):
        with pytest.raises(PySparkException, match=re.escape(told)):
            write(frame, broker, entity, **options)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("posthouse").options(
            url=broker.url, entity="forgetful", once="false"
        ).mode("overwrite").save()
    assert bodies(broker, "forgetful") == []


def test_a_queue_that_is_not_there_is_made_where_the_broker_makes_queues(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    frame = spark.sql("select 'x' as body")
    write(frame, broker, "made")
    assert bodies(broker, "made") == ["x"]
    with running("--data", str(tmp_path), "--dev") as other:
        before = last(other)
        with pytest.raises(PySparkException, match="There is no queue or topic 'made' to write to"):
            write(frame, other, "made")
        assert last(other) == before


def test_every_row_is_written_by_default_and_once_what_was_written_twice_is_there_once(
    spark: SparkSession, broker: Running
) -> None:
    broker.queue("PUT", "once", ONCE)
    broker.queue("PUT", "often", {})
    # More than go in one request, from several tasks, and each row has an equal one.
    frame = spark.range(0, 5_000, 1, 2).selectExpr("cast(id % 2500 as string) body", "'s' subject")
    write(frame, broker, "often")
    write(frame, broker, "once")
    every = sorted(map(str, range(2_500)))
    assert sorted(bodies(broker, "often")) == sorted(bodies(broker, "once")) == sorted(every * 2)
    for _ in range(2):
        write(frame, broker, "once", once="true")
    assert sorted(bodies(broker, "once")) == every
    named = spark.sql("select 'first' as body, 'same' as message_id")
    write(named, broker, "once", once="true")
    write(named.selectExpr("'second' as body", "message_id"), broker, "once", once="true")
    assert bodies(broker, "once") == ["first"]


def test_structs_arrays_and_maps_are_written_as_json(spark: SparkSession, broker: Running) -> None:
    broker.queue("PUT", "json", ONCE)
    for made, expected in (
        ("named_struct('a', 1, 'm', map('k', array(1, 2)), 'none', null)",
         {"a": 1, "m": {"k": [1, 2]}, "none": None}),
        ("array(named_struct('d', date'2026-01-02'))", [{"d": "2026-01-02"}]),
        ("map('é', 1.5d)", {"é": 1.5}),
    ):  # fmt: skip
        write(spark.sql(f"select {made} as body"), broker, "json")
        [body] = bodies(broker, "json")
        assert json.loads(body) == expected


def test_a_topic_hands_on_what_is_written_to_it(spark: SparkSession, broker: Running) -> None:
    topic = "/api/v1/namespaces/default/topics/written"
    broker.call("PUT", topic, ONCE)
    broker.call("PUT", f"{topic}/subscriptions/all", {})
    write(spark.sql("select 'x' as body, map('n', 1, 'm', 2) as properties"), broker, "written")
    [copy] = broker.receive("written%2F$sub%2Fall", 1, delete=True)
    assert (copy["body"], copy["properties"]) == ("x", {"n": 1, "m": 2})


def test_a_message_that_the_broker_refuses_is_told(spark: SparkSession, broker: Running) -> None:
    broker.queue("PUT", "strict", ONCE)
    with pytest.raises(PySparkException, match="priority"):
        write(spark.sql("select 'x' as body, 77 as priority"), broker, "strict")
    assert bodies(broker, "strict") == []
