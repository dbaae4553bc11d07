"""Replay: dead letters, or what was once sent, sent again, each message once.

First a plan is made: which messages go where, as what. It can be looked at, and thrown away. Then
it is carried out, at a given rate. Who is stopped on the way goes on with the same plan: the
broker's own feed tells what has been done, so nothing is kept beside it that could be wrong.
"""

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow.parquet as pq

from posthouse.pipeline.causes import with_causes
from posthouse.pipeline.events import owner, told_name
from posthouse.pipeline.failures import sentence_of
from posthouse.pipeline.lives import Lives
from posthouse.pipeline.wire import FeedClient, PosthouseError, Unanswered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCES = ("dead", "sent")
FIELDS = (  # of a message, that can be set
    "body", "message_id", "session_id", "partition_key", "subject", "correlation_id",
    "content_type", "to", "reply_to", "reply_to_session_id", "properties", "priority",
    "time_to_live_ms",
)  # fmt: skip
COLUMNS = (  # of the events, that it looks at
    "position", "time", "namespace", "entity", "kind", "message_id", "sequence_number", "reason",
    "description", "session_id", "body", "properties", "content_type", "subject",
    "correlation_id", "partition_key", "to", "reply_to", "reply_to_session_id", "priority",
    "time_to_live_ms", "target", "target_sequence_number",
)  # fmt: skip
MARK = "posthouse-replay"  # the property that tells of which plan, and of which position, it is
BATCH = 500
SETTLE_SECONDS = 1.0  # in which a broker that was not heard from is done with what it was asked
_NAMES = {"message_id": "id", "time_to_live_ms": "ttl_ms"}  # as the broker's API has them


@dataclass(frozen=True)
class Plan:
    """The plan of a replay."""

    id: str
    source: str  # "dead" or "sent"
    begun: int  # the last position when it was made: what it did comes behind that
    moves: bool  # dead letters go as they are, and are moved
    messages: int
    queues: dict[str, int]  # how many go to each


def make(
    events: "DataFrame",
    broker: FeedClient,
    folder: str,
    *,
    source: str = "dead",
    where: str = "true",
    into: str | None = None,
    changes: Mapping[str, str] | None = None,
) -> Plan:
    """Writes a plan. Raises PosthouseError where it cannot be."""
    from pyspark.errors import AnalysisException

    changes = changes or {}
    unknown = [name for name in changes if name not in FIELDS]
    if unknown:
        raise PosthouseError(
            f"A message has no field {unknown[0]!r} to set; it has {', '.join(FIELDS)}."
        )
    path = Path(folder)
    if (path / "plan.json").exists():
        raise PosthouseError(f"There is a plan in {folder}; carry it out, or remove it.")
    begun = int(broker.status()["last"])
    try:
        # A mistake is told at once: of no events Spark finds no work to do before it.
        _ = _chosen(events.limit(0), source, where, into, changes).schema
        chosen = _chosen(events, source, where, into, changes)
        chosen.write.mode("overwrite").parquet(str(path / "messages"))
    except AnalysisException as error:
        raise PosthouseError(
            f"Spark does not understand --where or --set: {sentence_of(error)}"
        ) from None
    counts: dict[str, int] = {}
    for batch in _rows(path):
        counts[batch["target"]] = counts.get(batch["target"], 0) + 1
    moves = source == "dead" and not changes
    plan = Plan(uuid.uuid4().hex, source, begun, moves, sum(counts.values()), counts)
    (path / "plan.json").write_text(json.dumps(asdict(plan), indent=1))
    return plan


def _chosen(
    events: "DataFrame", source: str, where: str, into: str | None, changes: Mapping[str, str]
) -> "DataFrame":
    from pyspark.sql import functions as f

    lives = Lives(events)
    if source == "dead":
        rows = with_causes(lives.dead()).withColumn("origin", f.expr(owner("queue")))
    else:
        rows = (
            events.where("kind = 'sent'").withColumn("origin", f.col("entity"))
            .withColumn("queue", f.col("entity"))
            .withColumn("entity", f.expr(told_name("entity")))
        )  # fmt: skip
    rows = rows.withColumn("text", f.expr("try_validate_utf8(cast(body as string))")).where(where)
    made = [f.expr(changes.get(name, f"`{name}`")).alias(name) for name in FIELDS]
    target = f.col("origin") if into is None else f.lit(into)
    return rows.select(
        "position", "namespace", "queue", "sequence_number", target.alias("target"),
        *(each.cast("binary") if name == "body" and name in changes else each
          for name, each in zip(FIELDS, made, strict=True)),
    ).orderBy("position")  # fmt: skip


def load(folder: str) -> Plan | None:
    """Raises PosthouseError."""
    path = Path(folder) / "plan.json"
    if not path.exists():
        return None
    try:
        return Plan(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise PosthouseError(f"{path} is not a plan; remove it and make one anew.") from None


@dataclass
class Progress:
    """The progress of a replay."""

    messages: int
    done: int = 0
    already: int = 0  # before this run
    vanished: int = 0  # dead letters that somebody else has dealt with
    seconds: float = 0

    @property
    def left(self) -> int:
        return self.messages - self.done - self.already - self.vanished

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0


def run(
    broker: FeedClient,
    folder: str,
    *,
    rate: float | None = None,
    told: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Carries a plan out, or what is left of it. Raises PosthouseError."""
    plan = load(folder)
    if plan is None:
        raise PosthouseError(f"There is no plan in {folder}.")
    progress, begun = Progress(plan.messages), time.monotonic()
    done = _done(broker, plan)
    step = BATCH if rate is None else max(1, min(BATCH, round(rate)))
    for some in _batches(Path(folder), step):
        rest = [row for row in some if _name(plan, row) not in done]
        progress.already += len(some) - len(rest)
        if plan.source == "dead" and not plan.moves:
            _remove(broker, [row for row in some if _name(plan, row) in done])
        if rest:
            sent = _move(broker, rest) if plan.moves else _send(broker, plan, rest)
            progress.done += sent
            progress.vanished += len(rest) - sent
        progress.seconds = time.monotonic() - begun
        told(progress)
        if rate is not None and progress.done:
            time.sleep(max(0.0, progress.done / rate - (time.monotonic() - begun)))
    return progress


Name = tuple[str, str, int]


def _name(plan: Plan, row: dict[str, Any]) -> Name:
    """The name by which the feed identifies a message of the plan."""
    if plan.moves:
        return row["namespace"], row["queue"], row["sequence_number"]
    return "", "", row["position"]


def _done(broker: FeedClient, plan: Plan) -> set[Name]:
    """Messages of the plan of which the feed tells that they were dealt with."""
    first, end = plan.begun + 1, int(broker.status()["last"]) + 1
    found: set[Name] = set()
    if plan.moves:
        columns = ["namespace", "entity", "sequence_number"]
        for batch in broker.rows(first, end, columns, kinds="resubmitted"):
            found.update(zip(*(batch.column(each).to_pylist() for each in columns), strict=True))
        return found
    for batch in broker.rows(first, end, ["properties"], kinds="sent"):
        for text in batch.column("properties").to_pylist():
            mark = json.loads(text).get(MARK, "") if text and MARK in text else ""
            whose, _, position = str(mark).partition(":")
            if whose == plan.id:
                found.add(("", "", int(position)))
    return found


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of the plan in the order of their positions."""
    for file in sorted((folder / "messages").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(BATCH):
            yield from batch.to_pylist(maps_as_pydicts="strict")


def _batches(folder: Path, most: int) -> Iterator[list[dict[str, Any]]]:
    """Messages that are together in one queue, and go together to another."""

    def way(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["namespace"], row["queue"], row["target"]

    for _, run in groupby(_rows(folder), way):
        some: list[dict[str, Any]] = []
        for row in run:
            some.append(row)
            if len(some) == most:
                yield some
                some = []
        if some:
            yield some


def _path(namespace: str, queue: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/queues/{quote(queue, safe='')}"


def _move(broker: FeedClient, rows: list[dict[str, Any]]) -> int:
    """Lets the broker move dead letters, or send them again; returns how many it did."""
    path = _path(rows[0]["namespace"], rows[0]["queue"])
    asked = {"sequences": [row["sequence_number"] for row in rows], "target": rows[0]["target"]}
    try:
        return int(broker.post(f"{path}/resubmit", asked)["done"])
    except PosthouseError:  # perhaps one of them is gone
        if len(rows) == 1:
            number = rows[0]["sequence_number"]
            there = broker.get(f"{path}/messages?first={number}&limit=1")["messages"]
            if there and there[0]["sequence"] == number:
                raise
            return 0
    middle = len(rows) // 2
    return _move(broker, rows[:middle]) + _move(broker, rows[middle:])


def _send(broker: FeedClient, plan: Plan, rows: list[dict[str, Any]]) -> int:
    target, rest = _path(rows[0]["namespace"], rows[0]["target"]), rows
    while rest:
        messages = [_message(plan, row) for row in rest]
        try:
            broker.post_once(f"{target}/messages", {"messages": messages})
            break
        except Unanswered:
            time.sleep(SETTLE_SECONDS)
            done = _done(broker, plan)
            rest = [row for row in rest if _name(plan, row) not in done]
    if plan.source == "dead":
        _remove(broker, rows)
    return len(rows)


def _remove(broker: FeedClient, rows: list[dict[str, Any]]) -> None:
    """Removes dead letters that were sent again."""
    if rows:
        asked = {"sequences": [row["sequence_number"] for row in rows], "states": ["active"]}
        broker.post(f"{_path(rows[0]['namespace'], rows[0]['queue'])}/purge", asked)


def _message(plan: Plan, row: dict[str, Any]) -> dict[str, Any]:
    made = {
        _NAMES.get(name, name): row[name]
        for name in FIELDS
        if row[name] is not None and name not in ("body", "properties")
    }
    made["body_base64"] = base64.b64encode(row["body"] or b"").decode()
    mark = f"{plan.id}:{row['position']}"
    made["properties"] = {**(row["properties"] or {}), MARK: mark}
    made["key"] = mark  # so that a queue that looks for duplicates finds it as well
    return made
