"""The view `lives`: one row a message and queue, and the questions that it answers."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from posthouse.pipeline.outcomes import COLUMNS, CONTENT, Fold, Remembered, Step, Stored, lives
from posthouse.pipeline.wire import PosthouseError
from tests.pipeline.asking import events, forget, last, read
from tests.server.running import Running

DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"
SPACE = "/api/v1/namespaces/trade"
Json = dict[str, Any]


class Trade:
    """A namespace in which something of every kind happens to messages."""

    def __init__(self, broker: Running) -> None:
        self._broker = broker
        self.first = last(broker) + 1
        self.ask("PUT", "")
        self.middle = self._begin()
        self._go_on()
        self.end = last(broker) + 1

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = self._broker.call(method, f"{SPACE}{path}", body)
        assert reply.status < 300, (path, reply)
        return reply.json if reply.body else None

    def send(self, queue: str, *ids: str, **fields: Any) -> None:
        messages = [{"body": id, "id": id, **fields} for id in ids]
        self.ask("POST", f"/queues/{queue}/messages", {"messages": messages})

    def receive(self, queue: str, count: int, **more: Any) -> list[Json]:
        said = self.ask("POST", f"/queues/{queue}/receive", {"limit": count, **more})
        found: list[Json] = said["messages"]
        assert len(found) == count, found
        return found

    def settle(self, queue: str, how: str, *messages: Json, **more: Any) -> None:
        locks = {"locks": [each["token"] for each in messages]}
        self.ask("POST", f"/queues/{queue}/{how}", locks | more)

    def _begin(self) -> int:
        """Some lives end here; others go on over the middle."""
        self.ask("PUT", "/queues/orders", {"lock_ms": 60_000})
        self.ask("PUT", "/queues/archive", {})
        self.ask("PUT", "/queues/slow", {"forward_to": "archive"})
        for topic in ("news", "void"):
            self.ask("PUT", f"/topics/{topic}", {})
        for name in ("a", "b"):
            self.ask("PUT", f"/topics/news/subscriptions/{name}", {})
        now_ms = self.ask("GET", "/clock")["now_ms"]
        self.send("orders", "o1", "o2", "o3", subject="eu", properties={"n": 1})
        self.send("orders", "o4", "o5", subject="us")
        self.send("orders", "o6", ttl_ms=1_000)
        self.send("orders", "s1", due_ms=now_ms + 60_000)
        one, two, three, four = self.receive("orders", 4)
        self.settle("orders", "complete", one)
        self.settle("orders", "abandon", two, four)
        self.settle("orders", "dead-letter", three, reason="Payment", description="no money")
        self.send("news", "n1")
        self.send("slow", "f1")
        self.send("gone", "g1")
        return last(self._broker) + 1

    def _go_on(self) -> None:
        self.settle("orders", "complete", self.receive("orders", 1)[0])
        self.ask("POST", "/clock", {"advance_ms": 61_000})  # o6 expires, s1 is due
        self.ask("POST", "/queues/orders%2F$dead/resubmit", {})
        self.settle("news%2F$sub%2Fa", "complete", *self.receive("news%2F$sub%2Fa", 1))
        self.send("void", "v1")
        self.receive("archive", 1, delete=True)
        self.ask("DELETE", "/queues/gone")
        self.send("orders", "o7")


@pytest.fixture(scope="module")
def trade(broker: Running) -> Trade:
    return Trade(broker)


def rows(broker: Running, trade: Trade) -> list[Json]:
    every = events(broker, f"namespace=trade&after={trade.first - 1}")
    return [each for each in every if each["position"] < trade.end]


def truth(rows: list[Json]) -> list[Json]:
    """What became of each message, by looking for what is known of it in all that happened."""
    own: dict[Any, list[Json]] = defaultdict(list)
    came: dict[Any, Json] = {}
    for row in rows:
        own[row.get("entity"), row.get("sequence_number")].append(row)
        if "target_sequence_number" in row:
            came[row["target"], row["target_sequence_number"]] = row
    made = []
    for entity, number in dict.fromkeys([*own, *came]):
        if number is None or entity.endswith("$dead"):
            continue
        steps = own.get((entity, number), [])
        begins = came.get((entity, number)) or steps[0]
        sent = begins
        while sent["kind"] != "sent":
            before = own[sent["entity"], sent["sequence_number"]][0]
            sent = came.get((sent["entity"], sent["sequence_number"])) or before
        kinds = [step["kind"] for step in steps]
        if "activated" in kinds or ("routed" in kinds and "copied" in kinds):
            continue
        deleted = [row for row in own[entity, None] if row["kind"] == "queue-deleted"]
        ends = [s for s in steps if s["kind"] in ENDS] or deleted
        outcome = NAMES.get(ends[0]["kind"], ends[0]["kind"]) if ends else None
        delivered = [step["time"] for step in steps if step["kind"] in ("delivered", "taken")]
        ended = ends[0]["time"] if ends else None
        made.append({
            "entity": entity.replace("/$sub/", "/"), "position": begins["position"],
            "sequence_number": number, "message_id": sent["message_id"],
            "subject": sent.get("subject"), "came_by": begins["kind"], "sent_to": sent["entity"],
            "sent": sent["time"], "came": begins["time"], "deliveries": len(delivered),
            "waited_ms": delivered[0] - begins["time"] if delivered else None,
            "outcome": outcome, "settled": ended, "reason": ends[0].get("reason") if ends else None,
            "total_ms": ended - sent["time"] if ended else None,
        })  # fmt: skip
    return sorted(made, key=lambda each: each["position"])


ENDS = ("completed", "taken", "dead-lettered", "expired", "routed")
NAMES = {"taken": "completed", "routed": "unrouted", "queue-deleted": "deleted"}


def told(frame: DataFrame) -> list[Json]:
    chosen = frame.selectExpr(
        "entity", "position", "sequence_number", "message_id", "subject", "came_by", "sent_to",
        "unix_millis(sent_time) as sent", "unix_millis(came_time) as came", "deliveries",
        "waited_ms", "outcome", "unix_millis(settled_time) as settled", "reason", "total_ms",
    )  # fmt: skip
    return sorted((each.asDict() for each in chosen.collect()), key=lambda row: row["position"])


def found(spark: SparkSession, broker: Running, trade: Trade, **more: str) -> DataFrame:
    of = {"from": str(trade.first), "to": str(trade.end), "columns": ",".join(COLUMNS)}
    return read(spark, broker, view="events", namespace="trade", **of, **more)


@pytest.fixture(scope="module")
def made(spark: SparkSession, broker: Running, trade: Trade) -> DataFrame:
    return lives(found(spark, broker, trade)).persist()


def test_each_message_is_a_row_with_its_outcome(
    spark: SparkSession, broker: Running, trade: Trade, made: DataFrame
) -> None:
    expected = truth(rows(broker, trade))
    assert told(made) == expected
    assert Counter((e["message_id"], e["outcome"]) for e in expected) == Counter([
        ("o1", "completed"), ("o2", "completed"), ("o3", "dead-lettered"), ("o3", None),
        ("o4", None), ("o5", None), ("o6", "expired"), ("o7", None), ("s1", None),
        ("n1", "completed"), ("n1", None), ("f1", "completed"), ("g1", "deleted"),
        ("v1", "unrouted"),
    ])  # fmt: skip
    [o1] = made.where("message_id = 'o1'").collect()
    assert (o1.namespace, o1.properties, o1.description) == ("trade", {"n": "1"}, None)
    assert o1.handled_ms >= 0
    apart = told(lives(found(spark, broker, trade), follow=False))
    [f1] = [each for each in apart if each["message_id"] == "f1"]
    assert (f1["entity"], f1["outcome"], f1["deliveries"]) == ("slow", "forwarded", 0)
    others = [each for each in expected if each["message_id"] != "f1"]
    assert [each for each in apart if each is not f1] == others


def test_the_questions_of_the_docs_are_answered(
    spark: SparkSession, broker: Running, trade: Trade, made: DataFrame
) -> None:
    made.createOrReplaceTempView("lives")
    section = DOCS.read_text().partition("### Lives")[2].partition("\n## ")[0]
    asked = [spark.sql(query) for query in re.findall(r"```sql\n(.+?)```", section, re.DOTALL)]
    answers = [sorted(map(tuple, each.collect()), key=repr) for each in asked]
    expected = [sorted(each, key=repr) for each in answered(truth(rows(broker, trade)))]
    assert answers == expected


def answered(lives: list[Json]) -> Iterator[list[tuple[Any, ...]]]:
    """The answers, in the order in which the docs ask."""
    queues = sorted({each["entity"] for each in lives})

    def of(queue: str) -> list[Json]:
        return [each for each in lives if each["entity"] == queue]

    waited = {q: [e["waited_ms"] for e in of(q) if e["waited_ms"] is not None] for q in queues}
    yield [(q, len(w), percentile(w, 95)) for q, w in waited.items() if w]
    dead = Counter((e["entity"], e["reason"]) for e in lives if e["outcome"] == "dead-lettered")
    yield [(*key, count, len(of(key[0]))) for key, count in dead.items()]
    yield [(q, len([e for e in of(q) if e["deliveries"] > 1]), len(of(q))) for q in queues]
    is_open = Counter(e["entity"] for e in lives if e["outcome"] is None)
    yield [
        (q, count, min(e["sent"] for e in of(q) if e["outcome"] is None))
        for q, count in is_open.items()
    ]
    done = [each for each in lives if each["outcome"] == "completed"]
    yield [
        (subject, len(some), len([e for e in some if e["total_ms"] > 30_000]))
        for subject in {each["subject"] for each in done}
        for some in [[each for each in done if each["subject"] == subject]]
    ]
    yield [
        (e["entity"], e["message_id"], e["outcome"])
        for e in lives if e["outcome"] is not None and not e["deliveries"]
    ]  # fmt: skip


def percentile(values: list[int], of_100: int) -> float:
    if len(values) == 1:
        return float(values[0])
    return quantiles(values, n=100, method="inclusive")[of_100 - 1]


def test_a_stream_gives_each_life_when_it_ends_whatever_happens_to_the_stream(
    spark: SparkSession, broker: Running, trade: Trade, tmp_path: Path
) -> None:
    options = {"view": "events", "namespace": "trade", "columns": ",".join(COLUMNS),
               "from": str(trade.first), "maxRowsPerBatch": "25"}  # fmt: skip
    seen: dict[int, list[Json]] = {}

    def see(frame: DataFrame, number: int) -> None:
        seen[number] = told(frame)

    def run(end: int) -> None:
        read = spark.readStream.format("posthouse").options(url=broker.url, **options, to=str(end))
        query = lives(read.load()).writeStream.foreachBatch(see).outputMode("append")
        query.option("checkpointLocation", str(tmp_path)).trigger(
            availableNow=True
        ).start().awaitTermination()

    run(trade.middle)
    begun = sum(map(len, seen.values()))
    before = seen[forget(tmp_path)]
    run(trade.end)
    assert seen[max(each for each in seen if seen[each] == before)] == before
    expected = [each for each in truth(rows(broker, trade)) if each["outcome"] is not None]
    every = sorted((e for some in seen.values() for e in some), key=lambda e: e["position"])
    assert every == expected
    assert 0 < begun < len(expected)
    assert len(seen) > 2


class State:
    """What Spark keeps for a key, with a count of how often it is asked."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.asked = 0

    def containsKey(self, key: Any) -> bool:
        self.asked += 1
        return key in self.kept

    def getValue(self, key: Any) -> Any:
        return self.kept[key]

    def updateValue(self, key: Any, value: Any) -> None:
        self.kept[key] = value

    def removeKey(self, key: Any) -> None:
        del self.kept[key]

    def keys(self) -> list[Any]:
        return list(self.kept)


def step(position: int, kind: str, number: int = 1, entity: str | None = "q", **more: Any) -> Step:
    values: Json = {
        "target": None,
        "target_sequence_number": None,
        "reason": None,
        "description": None,
    }
    values |= {"position": position, "time": position, "namespace": "s", "entity": entity}
    values |= {"kind": kind, "sequence_number": number, "content": [f"m{number}"], **more}
    return Step(**values)


def test_state_has_what_is_there_and_nothing_that_has_ended() -> None:
    state = State()

    def take(*steps: Step) -> list[tuple[Any, ...]]:
        stays = Stored(state)
        folding = Fold(stays, follows=True)
        ended = [life for each in steps for life in folding.take(each)]
        stays.write()
        return ended

    ended = take(step(1, "sent"), step(2, "delivered"), step(3, "completed"), step(4, "sent", 2))
    assert ([life[2] for life in ended], list(state.kept)) == ([1], [("s", "q", 2)])
    before = state.asked
    assert len(take(step(5, "sent", 3), step(6, "taken", 3))) == 1
    assert state.asked == before  # what begins and ends in a batch is not looked for
    assert take(step(7, "delivered", 9), step(8, "completed", 9)) == []  # sent before it began
    dead: Json = {"target": "q/$dead", "target_sequence_number": 1}
    [life] = take(step(9, "dead-lettered", 2, reason="bad", **dead))
    assert (life[11], life[13]) == ("dead-lettered", "bad")
    assert list(state.kept) == [("s", "q/$dead", 1)]
    assert take(step(10, "queue-deleted", 0)) == []
    assert state.kept == {}


def test_lives_are_made_of_events_with_the_columns_that_they_need(
    spark: SparkSession, broker: Running
) -> None:
    messages = read(spark, broker)
    with pytest.raises(PosthouseError, match="these have no column 'kind'"):
        lives(messages)
    with pytest.raises(PosthouseError, match="The column body is binary, and cannot be kept"):
        lives(read(spark, broker, view="events"), keep=(*CONTENT, "body"))
    fold = Fold(Remembered(), follows=True)
    assert list(fold.open()) == []
