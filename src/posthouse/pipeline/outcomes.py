"""The view `lives`: one row a message and queue, with what became of the message there.

    lives(spark.read.format("posthouse").option("view", "events").load()).createTempView("lives")

Events are folded in the order of their positions. A message begins where it is sent. It goes on
where it is activated, copied to a subscription, forwarded, dead-lettered or resubmitted, and each
queue in which it could be received is a row. What is remembered is bounded by the messages that are
there. A batch and a stream use the same fold; a stream keeps in Spark's state what a batch keeps in
memory.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from posthouse.pipeline.wire import PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

DEAD, TRANSFER, SUBSCRIPTION, INNER = "/$dead", "/$transfer", "/$sub/", "/$"
ENDS = ("completed", "taken", "expired", "cancelled", "purged", "dropped")
MOVES = ("activated", "copied", "dead-lettered", "resubmitted")
DELETIONS = ("queue-deleted", "namespace-deleted")
KINDS = ("sent", "delivered", "routed", *ENDS, *MOVES, *DELETIONS)
CONTENT = ("message_id", "session_id", "subject", "correlation_id", "properties")
_STEP = (
    "position", "time", "namespace", "entity", "kind", "sequence_number", "target",
    "target_sequence_number", "reason", "description",
)  # fmt: skip
COLUMNS = (*_STEP, *CONTENT)  # of the view events, that are looked at
_KEPT_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double",
               "map<string,string>")  # fmt: skip
_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Key = tuple[str, str, int]  # namespace, entity, sequence number


class Step(NamedTuple):
    """An event, as it is folded. Times are microseconds since 1970."""

    position: int
    time: int
    namespace: str
    entity: str
    kind: str
    sequence_number: int
    target: str
    target_sequence_number: int
    reason: str | None
    description: str | None
    content: list[Any]


class Stay(NamedTuple):
    """A message in a queue. Times are microseconds since 1970."""

    position: int  # at which it came
    sent_to: str
    sent: int
    came: int
    by: str  # the kind of the event with which it came
    content: list[Any]
    first_delivered: int | None = None
    last_delivered: int | None = None
    deliveries: int = 0
    goes_on: bool = False  # copies of it are elsewhere
    leaves: bool = False  # copies of it are where it is not followed


class Stays(Protocol):
    """The messages that are there, by namespace, entity and sequence number."""

    def get(self, key: Key) -> Stay | None: ...
    def put(self, key: Key, stay: Stay) -> None: ...
    def remove(self, key: Key) -> None: ...
    def keys(self) -> list[Key]: ...


class Remembered:
    """Stays in memory."""

    def __init__(self) -> None:
        self._stays: dict[Key, Stay] = {}

    def get(self, key: Key) -> Stay | None:
        return self._stays.get(key)

    def put(self, key: Key, stay: Stay) -> None:
        self._stays[key] = stay

    def remove(self, key: Key) -> None:
        del self._stays[key]

    def keys(self) -> list[Key]:
        return list(self._stays)


Life = tuple[Any, ...]  # a row as `_schema` declares it


class Fold:
    """Takes the events of messages in the order of positions, and gives lives that have ended.

    Events of messages whose sending was not seen are passed over.
    """

    def __init__(self, stays: Stays, *, follows: bool) -> None:
        self._stays = stays
        self._follows = follows  # from one queue or topic to another

    def take(self, step: Step) -> Iterator[Life]:
        key = (step.namespace, step.entity, step.sequence_number)
        if step.kind == "sent":
            self._stays.put(key, Stay(step.position, step.entity, step.time, step.time, "sent",
                                      step.content))  # fmt: skip
            return
        if step.kind in DELETIONS:
            yield from self._deleted(step)
            return
        stay = self._stays.get(key)
        if stay is None:
            return
        if step.kind in ("delivered", "taken"):
            first = step.time if stay.first_delivered is None else stay.first_delivered
            stay = stay._replace(
                first_delivered=first, last_delivered=step.time, deliveries=stay.deliveries + 1
            )
        if step.kind == "delivered":
            self._stays.put(key, stay)
        elif step.kind == "copied":
            followed = self._move(stay, step)
            goes_on, leaves = stay.goes_on or followed, stay.leaves or not followed
            self._stays.put(key, stay._replace(goes_on=goes_on, leaves=leaves))
        elif step.kind == "routed":
            self._stays.remove(key)
            if stay.leaves or not stay.goes_on:
                yield from _ended(key, stay, step, "forwarded" if stay.leaves else "unrouted")
        elif step.kind in MOVES:
            self._stays.remove(key)
            self._move(stay, step)
            if step.kind == "dead-lettered":
                yield from _ended(key, stay, step, step.kind)
        else:
            self._stays.remove(key)
            yield from _ended(key, stay, step, "completed" if step.kind == "taken" else step.kind)

    def open(self) -> Iterator[Life]:
        """Yields the lives that have not ended."""
        for key in self._stays.keys():  # noqa: SIM118 (it is no dictionary)
            stay = self._stays.get(key)
            assert stay is not None
            yield from _ended(key, stay, None, None)

    def _move(self, stay: Stay, step: Step) -> bool:
        """Lets a message go on elsewhere; whether it is followed there."""
        if not self._follows and root(step.target) != root(step.entity):
            return False
        key = (step.namespace, step.target, step.target_sequence_number)
        self._stays.put(key, Stay(step.position, stay.sent_to, stay.sent, step.time, step.kind,
                                  stay.content))  # fmt: skip
        return True

    def _deleted(self, step: Step) -> Iterator[Life]:
        """A queue that is deleted takes along what is in it and in the queues that belong to it."""
        whole = step.kind == "namespace-deleted"
        for key in self._stays.keys():  # noqa: SIM118 (it is no dictionary)
            if key[0] == step.namespace and (whole or _belongs(key[1], step.entity)):
                stay = self._stays.get(key)
                assert stay is not None
                self._stays.remove(key)
                yield from _ended(key, stay, step, "deleted")


def _ended(key: Key, stay: Stay, step: Step | None, outcome: str | None) -> Iterator[Life]:
    """Yields the row of a life; a dead letter's was given when it became one."""
    namespace, entity, number = key
    if entity.endswith((DEAD, TRANSFER)):
        return
    told = entity.replace(SUBSCRIPTION, "/")
    yield (
        namespace, told, number, stay.position, stay.by, stay.sent_to, stay.sent, stay.came,
        stay.first_delivered, stay.last_delivered, stay.deliveries, outcome,
        *((None, None, None) if step is None else (step.time, step.reason, step.description)),
        *stay.content,
    )  # fmt: skip


def root(entity: str) -> str:
    """The queue or topic that an entity belongs to."""
    return entity.partition(INNER)[0]


def _belongs(entity: str, owner: str) -> bool:
    return entity == owner or entity.startswith(f"{owner}{INNER}")


# On Spark.


def lives(
    events: "DataFrame", keep: Sequence[str] = CONTENT, *, follow: bool = True
) -> "DataFrame":
    """Returns the lives of the messages that were sent in the course of some events.

    Args:
        events: The view `events` of a broker or a lake. A stream gives each life when it ends; a
            batch also gives those that have not ended, with `outcome` null.
        keep: The columns of the event `sent` that lives have as well.
        follow: Messages are followed from queue to queue, along forwarding. Then one task folds a
            namespace. Otherwise one task folds a queue or a topic, and a message that comes from
            elsewhere is left out.

    Raises PosthouseError where the events lack a column, or the session cannot keep state.
    """
    from pyspark.sql import functions as f

    _check(events, keep)
    columns: list[Column | str] = [
        "position", f.unix_micros("time").alias("time"), *_STEP[2:],
        *(f.col(name).alias(f"kept_{at}") for at, name in enumerate(keep)),
    ]  # fmt: skip
    steps = events.where(f.col("kind").isin(*KINDS)).select(*columns)
    keys = ["namespace"]
    if not follow:
        steps = steps.withColumn("root", f.substring_index(f.col("entity"), INNER, 1))
        keys.append("root")
    types = [events.schema[name].dataType.simpleString() for name in keep]
    schema = _schema(types)
    if events.isStreaming:
        _check_state(events)
        folded = steps.groupBy(*keys).transformWithState(
            _processor(follow, types), schema, "Append", "None"
        )
    else:
        parts = steps.repartition(*keys).sortWithinPartitions("position").drop("root")
        folded = parts.mapInArrow(_folding(follow, types), schema)
    return folded.selectExpr(*_SELECT, *(f"kept_{at} as `{name}`" for at, name in enumerate(keep)))


_FOLDED = (
    "namespace string, entity string, sequence_number bigint, position bigint, came_by string,"
    " sent_to string, sent bigint, came bigint, first_delivered bigint, last_delivered bigint,"
    " deliveries int, outcome string, settled bigint, reason string, description string"
)
_SELECT = (
    "namespace", "entity", "sequence_number", "position", "came_by", "sent_to",
    "timestamp_micros(sent) as sent_time", "timestamp_micros(came) as came_time",
    "timestamp_micros(first_delivered) as first_delivered_time",
    "timestamp_micros(last_delivered) as last_delivered_time",
    "deliveries", "outcome", "timestamp_micros(settled) as settled_time", "reason", "description",
    "(first_delivered - came) div 1000 as waited_ms",
    "if(outcome in ('completed', 'dead-lettered'), (settled - last_delivered) div 1000, null)"
    " as handled_ms",
    "(settled - sent) div 1000 as total_ms",
)  # fmt: skip


def _schema(types: Sequence[str]) -> str:
    return ", ".join((_FOLDED, *(f"kept_{at} {kind}" for at, kind in enumerate(types))))


def _check(events: "DataFrame", keep: Sequence[str]) -> None:
    """Raises PosthouseError."""
    for name in (*_STEP, *keep):
        if name not in events.columns:
            raise PosthouseError(
                f"Lives are made of events, and these have no column {name!r}. Read the view"
                f" events, with the columns {', '.join(dict.fromkeys((*_STEP, *keep)))}."
            )
    for name in keep:
        kind = events.schema[name].dataType.simpleString()
        if kind not in _KEPT_TYPES:
            raise PosthouseError(
                f"The column {name} is {kind}, and cannot be kept for lives: make it one of"
                f" {', '.join(_KEPT_TYPES)}."
            )


def _check_state(events: "DataFrame") -> None:
    """Raises PosthouseError."""
    if events.sparkSession.conf.get(_STORE) != _ROCKSDB:
        raise PosthouseError(
            "Spark keeps the state of a stream of lives in RocksDB. Set that for the session:"
            f' spark.conf.set("{_STORE}", "{_ROCKSDB}")'
        )


def _step(values: Sequence[Any]) -> Step:
    count = len(_STEP)
    return Step._make([*values[:count], list(values[count:])])


def _folding(
    follow: bool, types: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that folds the events of a partition, which are in order."""

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folding = Fold(Remembered(), follows=follow)
        for batch in batches:
            columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
            ended = [
                life
                for values in zip(*columns, strict=True)
                for life in folding.take(_step(values))
            ]
            if ended:
                yield _batch(ended, schema)
        left = list(folding.open())
        for at in range(0, len(left), _BATCH_ROWS):
            yield _batch(left[at : at + _BATCH_ROWS], schema)

    schema = _arrow_schema(types)
    return fold


_BATCH_ROWS = 10_000


def _arrow_schema(types: Sequence[str]) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(_schema(types))
    assert isinstance(schema, StructType)
    return to_arrow_schema(schema, timezone="UTC")


def _batch(lives: Sequence[Life], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*lives, strict=True)
    arrays = [
        pa.array(map(_items, each), of.type) for each, of in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _items(value: Any) -> Any:
    """A map as Arrow takes it: as pairs. The state has pairs as lists."""
    if isinstance(value, dict):
        return list(value.items())
    return list(map(tuple, value)) if isinstance(value, list) else value


def _processor(follow: bool, types: Sequence[str]) -> Any:
    """Returns the processor of a stream."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import (
        StatefulProcessor,
        StatefulProcessorHandle,
        TimerValues,
    )

    row = Row(*(column.split()[0] for column in _schema(types).split(", ")))

    class Processor(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getMapState(
                "stays", "namespace string, entity string, sequence_number bigint", "stay string"
            )

        def handleInputRows(
            self, key: Any, rows: "Iterator[Row]", timerValues: TimerValues
        ) -> "Iterator[Row]":
            stays = Stored(self._state)
            folding = Fold(stays, follows=follow)
            for values in sorted(rows, key=lambda each: each.position):
                for life in folding.take(_step(values[: len(_STEP) + len(types)])):
                    yield row(*map(_items, life))
            stays.write()

        def close(self) -> None:
            pass

    return Processor()


class Stored:
    """Stays in Spark's state. It is asked for what is not known yet, and told at the end."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._known: dict[Key, Stay | None] = {}
        self._begun: set[Key] = set()  # that the state does not have

    def get(self, key: Key) -> Stay | None:
        if key not in self._known:
            found = self._state.getValue(key) if self._state.containsKey(key) else None
            self._known[key] = None if found is None else Stay(*json.loads(found[0]))
        return self._known[key]

    def put(self, key: Key, stay: Stay) -> None:
        if key not in self._known:
            self._begun.add(key)
        self._known[key] = stay

    def remove(self, key: Key) -> None:
        self._known[key] = None

    def keys(self) -> list[Key]:
        stored = [(str(a), str(b), int(c)) for a, b, c in self._state.keys()]  # noqa: SIM118
        every = dict.fromkeys([*stored, *self._known])
        return [key for key in every if self._known.get(key, self) is not None]

    def write(self) -> None:
        for key, stay in self._known.items():
            if stay is not None:
                self._state.updateValue(key, (json.dumps(stay),))
            elif key not in self._begun and self._state.containsKey(key):
                self._state.removeKey(key)
