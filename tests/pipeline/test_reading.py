"""`spark.read.format("posthouse")`: what was sent, and what happened, as rows."""

import io
import json
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from posthouse.pipeline import register
from posthouse.pipeline.session import PUSHDOWN
from tests.pipeline.asking import Batches, events, last, read, write
from tests.server.running import Running, development
from tests.server.test_tls import certificate

DEV = {"accessKeyName": "RootManageSharedAccessKey", "accessKey": "SAS_KEY_VALUE"}


def positions(frame: DataFrame) -> list[int]:
    return sorted(row.position for row in frame.select("position").collect())


def plan(frame: DataFrame) -> str:
    """What Spark will do, and so what is left to it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def pushed(frame: DataFrame) -> str:
    """The conditions that `explain` shows as pushed down."""
    with redirect_stdout(io.StringIO()) as shown:
        frame.explain("formatted")
    return shown.getvalue().partition("PushedFilters: ")[2].partition("\n")[0]


def test_messages_are_rows_with_typed_columns(spark: SparkSession, broker: Running) -> None:
    said = {
        "id": "m1", "subject": "s", "correlation_id": "c", "content_type": "text/plain",
        "session_id": "one", "to": "t", "reply_to": "r", "reply_to_session_id": "two",
        "priority": 7, "ttl_ms": 60_000, "due_ms": 4_102_444_800_000,
        "properties": {"word": "x", "number": 1, "half": 0.5, "yes": True, "none": None},
    }  # fmt: skip
    declared = "number bigint, half double, yes boolean, word int, missing string"
    broker.queue("PUT", "typed", {"sessions": True})
    message = {"body_base64": "AP8=", **said}
    broker.queue("POST", "typed/messages", {"messages": [message]})
    [event] = events(broker, "namespace=default&entity=typed&kinds=sent")
    frame = read(spark, broker, entity="typed", typedProperties=declared)
    [row] = frame.collect()
    assert row.typed_properties == (1, 0.5, True, None, None)
    never = ["position", "time", "namespace", "entity", "sequence_number"]
    assert [each.name for each in frame.schema if not each.nullable] == never
    loose = read(spark, broker, entity="typed", typedProperties="variant")
    values = "typed_properties:number::bigint + 1, typed_properties:yes, typed_properties:word"
    [(number, yes, word)] = loose.selectExpr(*values.split(", ")).collect()
    assert (number, yes.toPython(), word.toPython()) == (2, True, "x")
    assert row.position == event["position"]
    assert (row.namespace, row.entity, row.sequence_number) == ("default", "typed", 1)
    assert row.body == b"\x00\xff"
    assert row.properties == {
        "word": "x", "number": "1", "half": "0.5", "yes": "true", "none": None
    }  # fmt: skip
    names = ("subject", "correlation_id", "content_type", "session_id", "to", "reply_to",
             "reply_to_session_id", "priority")  # fmt: skip
    assert {name: row[name] for name in names} == {name: said[name] for name in names}
    assert (row.message_id, row.time_to_live_ms) == ("m1", 60_000)
    # A row tells moments in the time of this machine, without saying so.
    assert row.time.timestamp() * 1000 == pytest.approx(event["time"])
    assert row.scheduled_time.timestamp() == 4_102_444_800
    assert "kind" not in row


def test_a_map_says_which_broker_has_the_namespace(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    broker.send("mapped", "a", "b")
    brokers = tmp_path / "namespaces.yaml"
    brokers.write_text(f"default: posthouse://127.0.0.1:{broker.port}")
    frame = spark.read.format("posthouse").options(map=str(brokers), queue="mapped").load()
    assert sorted(bytes(row.body) for row in frame.collect()) == [b"a", b"b"]


def test_events_are_one_row_for_each_position_in_equal_parts(
    spark: SparkSession, broker: Running
) -> None:
    broker.send("parted", *map(str, range(40)))
    broker.complete("parted", *broker.receive("parted", 10))
    every = events(broker)
    end = every[-1]["position"] + 1
    frame = read(spark, broker, view="events", partitions="3", to=str(end))
    rows = frame.withColumn("part", spark_partition_id()).collect()
    assert [(row.position, row.kind, row.entity) for row in rows] == [
        (each["position"], each["kind"], each.get("entity")) for each in every
    ]
    sizes = [sum(row.part == part for row in rows) for part in range(3)]
    assert sum(sizes) == len(every)
    assert max(sizes) - min(sizes) <= 1
    kinds = read(spark, broker, view="events", entity="parted", kinds="delivered,completed")
    found = kinds.collect()
    assert [row.kind for row in found] == ["delivered"] * 10 + ["completed"] * 10
    assert [row.delivery_count for row in found] == [1] * 20
    assert all(row.waited_ms >= 0 and row.settled_ms is None for row in found[:10])
    assert all(row.settled_ms >= 0 and row.waited_ms is None for row in found[10:])


def test_entities_are_queues_and_topics_of_a_namespace(
    spark: SparkSession, broker: Running
) -> None:
    shop = "/api/v1/namespaces/shop"
    broker.call("PUT", shop)
    broker.call("PUT", f"{shop}/topics/news", {})
    broker.call("PUT", f"{shop}/topics/news/subscriptions/mine", {})
    broker.call("PUT", f"{shop}/queues/a%2Fb", {})
    for name in ("news", "a%2Fb"):
        broker.call("POST", f"{shop}/queues/{name}/messages", {"messages": [{"body": name}]})
    columns = {"columns": "body,entity", "body": "text"}
    topic = read(spark, broker, namespace="shop", entity="news", **columns)
    assert topic.columns == ["body", "entity"]
    assert topic.collect() == [("news", "news")]
    assert read(spark, broker, namespace="shop", queue="a/b", **columns).collect() == [
        ("a%2Fb", "a/b")
    ]
    both = read(spark, broker, namespace="shop", **columns).collect()
    assert [row.entity for row in both] == ["news", "a/b"]
    for names in ("news,a/b", "a/b, n*"):
        assert read(spark, broker, namespace="shop", queues=names, **columns).collect() == both
    of_all = read(spark, broker, namespace="shop", entities="n*", view="events").collect()
    assert {row.entity for row in of_all} == {"news"}
    inner = read(spark, broker, namespace="shop", entities="n*/$sub/*", view="events").collect()
    assert {row.entity for row in inner} == {"news/$sub/mine"}
    some = read(spark, broker, namespace="shop", entity="news/mine", view="events")
    assert [row.kind for row in some.collect()] == ["subscription-created"]
    for options, told in (
        ({"entity": "nowhere"}, "There is no queue, topic or subscription 'nowhere'"),
        ({"namespace": "shop", "entity": "news/nobody"}, "subscription 'news/nobody'"),
        ({"colour": "red"}, "There is no option 'colour'"),
        ({"queue": "a", "queues": "b"}, "The options queue and queues mean the same"),
        ({"namespace": "shop", "queues": "news,nowhere"}, "subscription 'nowhere'"),
        ({"namespace": "shop", "queues": "news,news/mine"}, "of a subscription are read alone"),
        ({"view": "messages", "kinds": "sent"}, "The option kinds is for the view events"),
        ({"columns": "body,colour"}, "The view messages has no column 'colour'"),
        ({"from": "yesterday"}, "The option from is a position, a moment like"),
    ):
        with pytest.raises(PySparkException, match=re.escape(told)):
            read(spark, broker, **options).collect()


def test_ranges_are_of_positions_or_of_time(spark: SparkSession, broker: Running) -> None:
    for number in range(20):
        broker.send("ranged", str(number))
    every = events(broker)
    times = {each["position"]: each["time"] for each in every}
    first, end = every[-15]["position"], every[-5]["position"]
    options = {"view": "events", "columns": "position"}
    some = read(spark, broker, **options, **{"from": str(first), "to": str(end)})
    assert positions(some) == list(range(first, end))
    moments = {
        name: datetime.fromtimestamp(times[at] / 1000, UTC).isoformat()
        for name, at in (("from", first), ("to", end))
    }
    between = [at for at, time in times.items() if times[first] <= time < times[end]]
    assert positions(read(spark, broker, **options, **moments)) == between
    assert positions(read(spark, broker, **options, **{"from": "latest"})) == []
    early = read(spark, broker, **options, **{"from": "earliest", "to": "3"})
    assert positions(early) == [1, 2]


def test_bodies_are_text_or_json_where_they_can_be(spark: SparkSession, broker: Running) -> None:
    broker.send("worded", "é", '{"id": 1, "name": "a", "at": "2026-01-02T03:04:05Z", "more": []}')
    broker.send("worded", '{"id": "one", "name": "b"}', "[1]", "7", "null", '{"id": 2.5}')
    broker.queue("POST", "worded/messages", {"messages": [{"body_base64": "/w=="}]})
    options = {"entity": "worded", "columns": "body"}
    texts = [row.body for row in read(spark, broker, body="text", **options).collect()]
    assert texts[0] == "é"
    assert texts[3:] == ["[1]", "7", "null", '{"id": 2.5}', "\ufffd"]
    schema = "id bigint, name string, at timestamp, tags map<string, array<int>>"
    found = read(spark, broker, body="json", bodySchema=schema, **options)
    moment = "cast(body.at as double) as at"
    rows = found.selectExpr("body is null as none", "body.id", "body.name", moment).collect()
    whole = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert rows[:3] == [
        (True, None, None, None), (False, 1, "a", whole), (False, None, "b", None)
    ]  # fmt: skip
    assert rows[3:6] == [(True, None, None, None)] * 3
    assert rows[6] == (False, None, None, None)
    assert rows[7] == (True, None, None, None)


def test_conditions_are_taken_to_the_broker(spark: SparkSession, broker: Running) -> None:
    broker.send("pushed", *map(str, range(20)))
    end = last(broker) + 1
    every = events(broker)[: end - 1]
    options = {"view": "events", "to": str(end), "partitions": "10"}
    frame = read(spark, broker, **options)
    unpushed = read(spark, broker, pushdown="false", **options)
    told = f"position > {end - 9} and position <= {end - 3} and position != {end - 5}"
    narrow = frame.where(told)
    assert positions(narrow) == [at for at in range(end - 8, end - 2) if at != end - 5]
    assert narrow.rdd.getNumPartitions() == 6
    assert f"GreaterThan(position,{end - 9})" in pushed(narrow)
    assert unpushed.where(told).rdd.getNumPartitions() == 10
    assert frame.where(f"position = {end - 2}").rdd.getNumPartitions() == 1
    assert positions(frame.where("position < 1")) == []
    of_pushed = frame.where("namespace = 'default' and entity = 'pushed' and kind = 'sent'")
    assert " = pushed" not in plan(of_pushed)
    assert " = sent" not in plan(of_pushed)
    assert " = sent" in plan(unpushed.where("kind = 'sent'"))
    assert positions(of_pushed) == list(range(end - 20, end))
    for condition in ("entity in ('pushed', 'parted')", "entity like 'pu%'"):
        some = f"namespace = 'default' and {condition}"
        assert "- Filter " not in plan(frame.where(some))
        assert positions(frame.where(some)) == positions(unpushed.where(some))
    created = [each["position"] for each in every if each["kind"] == "queue-created"]
    sent = [each["position"] for each in every if each["kind"] == "sent"]
    kinds = frame.where("kind in ('sent', 'queue-created')")
    assert positions(kinds) == sorted(created + sent)
    moment = datetime.fromtimestamp(every[-1]["time"] / 1000, UTC)
    said = moment.strftime("timestamp'%Y-%m-%d %H:%M:%S.%f'")
    assert positions(frame.where(f"time >= {said}")) == [
        each["position"] for each in every if each["time"] >= every[-1]["time"]
    ]
    later = (moment + timedelta(days=1)).strftime("timestamp'%Y-%m-%d'")
    assert frame.where(f"time > {later}").rdd.getNumPartitions() <= 1
    assert positions(frame.where(f"time < {later}")) == [each["position"] for each in every]


@pytest.mark.parametrize("told", ["kind = 'odd'", "kind in ('odd', 'queer')", "namespace = 'odd'"])
def test_a_condition_that_nothing_fulfils_gives_nothing(
    spark: SparkSession, broker: Running, told: str
) -> None:
    frame = read(spark, broker, view="events")
    assert frame.where(told).collect() == []


def test_nulls_among_the_kinds_mean_nothing(spark: SparkSession, broker: Running) -> None:
    broker.send("kinds", "x")
    frame = read(spark, broker, view="events", to=str(last(broker) + 1))
    found = positions(frame.where("kind in ('sent', null)"))
    assert found == [each["position"] for each in events(broker, "kinds=sent")]


def test_a_broker_asks_for_keys_and_shows_its_certificate(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    with development(folder) as broker:
        broker.send("secret", "x")
        certificate(folder)
        options = {"url": broker.url.replace("http:", "https:"), "entity": "secret"}
        trust = {"caFile": str(folder / "tls" / "ca.pem")}
        reader = spark.read.format("posthouse")
        assert reader.options(**options, **trust, **DEV).load().count() == 1
        for more, told in (
            (DEV, "is not trusted.*caFile"),
            (trust, "does not let who gives no key in.*accessKeyName"),
            ({**trust, **DEV, "accessKey": "wrong"}, "does not let RootManage.* in"),
            ({**trust, "accessKey": "alone"}, "accessKeyName and accessKey go together"),
            ({"caFile": str(tmp_path / "none.pem")}, "caFile names what cannot be read"),
        ):
            with pytest.raises(PySparkException, match=told) as caught:
                spark.read.format("posthouse").options(**options, **more).load().collect()
            assert DEV["accessKey"] not in str(caught.value)


def test_a_key_for_one_queue_is_enough_to_read_it(
    spark: SparkSession, broker: Running, tmp_path: Path
) -> None:
    topic = "/api/v1/namespaces/default/topics/own-topic"
    broker.call("PUT", topic, {})
    broker.call("PUT", f"{topic}/subscriptions/all", {})
    for entity in ("own", "of-others", "own-topic"):
        broker.send(entity, "a", "b")
    grants = [{"rights": ["listen"], "namespace": "default", "entity": "own*"}]
    made = broker.call("POST", "/api/v1/principals", {"name": "narrow", "grants": grants})
    key = {"accessKeyName": "narrow", "accessKey": made.json["key"]}
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for entity in ("own", "own-topic", "own-topic/all"):
        found = read(spark, broker, entity=entity, body="text", **key, **{"from": yesterday})
        assert [row.body for row in found.orderBy("position").collect()] == ["a", "b"]
    pushed = read(spark, broker, entity="own", view="events", **key)
    today = f"time > timestamp'{yesterday}'"
    assert pushed.where(f"kind = 'sent' and position > 1 and {today}").count() == 2
    batches = Batches(spark, broker.url, tmp_path, entities="own*", maxRowsPerBatch="3", **key)
    assert [len(each) for _, each in batches.run()] == [3, 1]
    for more in (
        {"entity": "of-others"},
        {"entities": "o*"},
        {"entity": "unheard-of"},
        {"namespace": "default"},
        {},
    ):
        with pytest.raises(PySparkException, match="does not let narrow in"):
            read(spark, broker, **more, **key).collect()
    with pytest.raises(PySparkException, match="takes a key with the right to manage"):
        write(spark.sql("select 'x' as body"), broker, "own", once="true", **key)
    with pytest.raises(PySparkException, match="does not let narrow in"):
        write(spark.sql("select 'x' as body"), broker, "own", **key)


def test_the_same_range_is_the_same_rows_again(spark: SparkSession, broker: Running) -> None:
    broker.send("again", *map(str, range(10)), properties={"a": 1})
    end = last(broker) + 1
    before = read(spark, broker, view="events", to=str(end), partitions="2")
    rows = [json.dumps(row.asDict(), default=str) for row in before.collect()]
    broker.complete("again", *broker.receive("again", 5))
    after = read(spark, broker, view="events", to=str(end)).collect()
    assert [json.dumps(row.asDict(), default=str) for row in after] == rows


def test_spark_finds_it_by_itself_where_it_is_installed(
    spark: SparkSession, broker: Running
) -> None:
    """A session to which it was never made known, with Spark's own settings."""
    own = spark.newSession()
    own.conf.set(PUSHDOWN, "false")
    reader = own.read.format("posthouse").options(url=broker.url, view="events")
    some = reader.schema("position bigint, kind string").load().where("position < 3")
    assert "- Filter " in plan(some)
    assert [row.position for row in some.collect()] == [1, 2]
    own.conf.set(PUSHDOWN, "true")
    assert "LessThan(position,3)" in pushed(some.where("true"))
    assert "- Filter " not in plan(reader.load().where("position < 3"))
    own.conf.set(PUSHDOWN, "false")
    register(own)
    assert own.conf.get(PUSHDOWN) == "true"


def test_spark_offers_a_source_in_python_no_pruning_metrics_or_description(
    spark: SparkSession,
) -> None:
    """If this fails, a newer Spark offers more: use it, and change docs/pipeline.md."""
    package = "org.apache.spark.sql.execution.datasources.v2.python"

    def offered(name: str) -> set[str]:
        found: set[str] = set()
        kind = spark._jvm.java.lang.Class.forName(f"{package}.{name}")  # type: ignore[union-attr]
        while kind.getName().startswith(package):
            found |= {each.getSimpleName() for each in kind.getInterfaces()}
            found |= {each.getName() for each in kind.getDeclaredMethods()} & {"toString"}
            kind = kind.getSuperclass()
        return found

    builder, stream = offered("PythonScanBuilder"), offered("PythonMicroBatchStream")
    assert "SupportsPushDownFilters" in builder
    assert "SupportsPushDownRequiredColumns" not in builder
    assert "MicroBatchStream" in stream
    assert not stream & {"ReportsSourceMetrics", "toString"}
