"""Reading: `spark.read.format("posthouse")`, and `readStream`.

A reader asks the feed for ranges of positions. A position is never given to anything else, so the
same range is the same rows whenever it is read.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from posthouse.pipeline.bodies import from_json
from posthouse.pipeline.copies import Copies
from posthouse.pipeline.options import ANY, SUBSCRIPTION, TYPED, VIEWS, Options, Range, feed_column
from posthouse.pipeline.properties import converter
from posthouse.pipeline.wire import DATA_LOSS, FeedClient, Gone, PosthouseError

ROWS_OF_A_PARTITION = 250_000  # by default
NAMES_MAX = 100  # of entities that a condition names, for the broker to look at
IDLE_POSITIONS_MAX = 1_000_000  # without a row that is wanted, before an offset moves on

_log = logging.getLogger("posthouse.pipeline")


@dataclass(frozen=True)
class Wanted:
    """The selection of rows, and their schema."""

    broker: FeedClient
    view: str
    namespace: str | None
    entities: tuple[str, ...]  # names in the feed, and patterns; none: all
    kinds: tuple[str, ...]
    schema: pa.Schema
    part: dict[str, str]  # of the feed, about which is asked: whoever reads may know no more
    topic: str | None = None  # of a subscription whose messages are wanted
    fails_on_loss: bool = True

    @property
    def query(self) -> dict[str, str]:
        said = {"namespace": self.namespace, "kinds": ",".join(self.kinds)}
        return {name: value for name, value in said.items() if value} | chosen(self.entities)

    @property
    def description(self) -> str:
        of = ", ".join(told_name(each) for each in self.entities) or self.namespace or "all queues"
        kinds = f" ({', '.join(self.kinds)})" if self.kinds and self.view == "events" else ""
        return f"{self.view} of {of}{kinds}"

    def status(self) -> tuple[int, int]:
        """The first and the last position that there is."""
        said = self.broker.status(**self.part)
        return int(said["first"]), int(said["last"])

    def reach(self, first: int, end: int, rows: int) -> tuple[int, int]:
        """The position behind so many rows from the first on, and how many there are before it."""
        if self.topic is not None:
            query = {"entity": self.topic, "target": self.entities[0], "kinds": "copied"}
            return self.broker.reach(first, end, rows, **self.query | query)
        if self.query:
            return self.broker.reach(first, end, rows, **self.query)
        end = min(end, first + rows)
        return end, end - first

    def kept(self, position: int, first: int) -> int:
        """The first of these that there still is. Raises Gone where that is not good enough."""
        if position >= first:
            return position
        lost = f"The positions {position:,} to {first - 1:,} are gone, retention has overtaken"
        if self.fails_on_loss:
            raise Gone(f"{lost} the reader. {DATA_LOSS}")
        _log.warning("%s the reader of %s. It goes on without them.", lost, self.description)
        return first

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Raises PosthouseError."""
        while first < end:
            try:
                for batch in self._rows(first, end):
                    yield shaped(batch, self.schema)
                    first = batch.column("position")[-1].as_py() + 1
                first = end
            except Gone:
                if self.fails_on_loss:
                    raise
                kept = self.kept(first, min(end, self.status()[0]))
                if kept == first:
                    raise
                first = kept

    def _rows(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        columns = [feed_column(name) for name in self.schema.names]
        if self.topic is not None:
            assert self.namespace is not None
            copies = Copies(self.broker, self.namespace, self.topic, self.entities[0], columns)
            return copies.read(first, end)
        # Whole rows go as they lie there, which is fastest.
        is_whole = not self.query and set(VIEWS["events"]) <= set(self.schema.names)
        return self.broker.rows(first, end, None if is_whole else columns, **self.query)


def chosen(entities: Sequence[str]) -> dict[str, str]:
    """Entities, as the feed is asked for them."""
    if len(entities) == 1 and ANY not in entities[0]:
        return {"entity": entities[0]}
    return {"entities": ",".join(entities)} if entities else {}


def told_name(entity: str) -> str:
    """An entity's name as people know it."""
    return entity.replace(SUBSCRIPTION, "/")


def wanted(options: Options, schema: StructType) -> Wanted:
    """Raises PosthouseError."""
    options.check_columns(schema.names)
    broker, view = options.broker(), options.view()
    entities, arrow = options.entities(broker), to_arrow_schema(schema, timezone="UTC")
    subscriptions = [each for each in entities if SUBSCRIPTION in each]
    topic = None
    if subscriptions and view == "messages":
        if len(entities) > 1 or ANY in entities[0]:
            raise PosthouseError(
                "The messages of a subscription are read alone: name it with the option entity."
                " Several subscriptions can be read as events."
            )
        topic = entities[0].partition(SUBSCRIPTION)[0]
    space = options.namespace()
    part = ({"namespace": space} if space else {}) | chosen(entities)
    fails = options.one_of("failOnDataLoss", ("true", "false")) == "true"
    return Wanted(broker, view, space, entities, options.kinds(), arrow, part, topic, fails)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the feed, with these columns of these types."""
    columns = [_column(batch, each) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    column = batch.column(feed_column(field.name))
    if field.name == TYPED:
        return _by_value(column, field.type, converter(field.type))
    return _converted(column, field.type)


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_map(kind):
        return _by_value(column, kind, _as_map)
    if pa.types.is_binary(column.type) and pa.types.is_string(kind):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            return pa.array([_as_text(each) for each in column.to_pylist()], kind)
    if pa.types.is_binary(column.type):
        return from_json(column, kind)
    return column.cast(kind)


def _by_value(column: pa.Array, kind: pa.DataType, make: Any) -> pa.Array:
    """Converts a column by converting each distinct value once: there are mostly few."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    encoded = column.dictionary_encode()
    made = pa.array([make(each) for each in encoded.dictionary.to_pylist()], kind)
    return made.take(encoded.indices)


def _as_map(text: str) -> list[tuple[str, str | None]]:
    return [(name, _as_word(value)) for name, value in json.loads(text).items()]


def _as_word(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _as_text(body: bytes | None) -> str | None:
    return None if body is None else body.decode(errors="replace")


@dataclass
class Part(InputPartition):
    """Positions that one task reads."""

    first: int
    end: int


def parts(first: int, end: int, count: int) -> list[Part]:
    """Splits a range into `count` parts of equal size; into fewer if it has fewer rows."""
    count = max(1, min(count, end - first))
    cuts = [first + (end - first) * at // count for at in range(count + 1)]
    return [Part(cuts[at], cuts[at + 1]) for at in range(count)]


class Reader(DataSourceReader):
    """A reader of the rows that a range has when it is planned."""

    def __init__(self, wanted: Wanted, range: Range, partitions: int, *, pushes: bool) -> None:
        self._wanted = wanted
        self._range = range
        self._partitions = partitions
        self._pushes = pushes

    @property
    def pushFilters(self) -> "_Pushing":
        return _Pushing(self)

    def push(self, filters: list[Filter]) -> Iterator[Filter]:
        """Takes conditions to the broker; yields those that Spark has to evaluate itself."""
        if not self._pushes:
            yield from filters
            return
        pushed = Pushed(self._wanted, self._range)
        for each in sorted(filters, key=_order):
            if not pushed.takes(each):
                yield each
        self._wanted, self._range = pushed.wanted, pushed.range

    def partitions(self) -> Sequence[InputPartition]:
        kept, last = self._wanted.status()
        first, end = self._range.first, self._range.end
        end = last + 1 if end is None else min(end, last + 1)
        return _parts(self._wanted.kept(first, min(kept, end)), end, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):  # of an empty range Spark reads one that is not ours
            yield from self._wanted.read(partition.first, partition.end)


class _Pushing:
    """The method `pushFilters` of a reader, for sessions with pushdown and without.

    In a session of the user's own `spark.sql.python.filterPushdown.enabled` is false by default.
    There Spark fails a read whose reader overrides `pushFilters`. It tells that by comparing
    `reader.pushFilters.__func__` with the inherited function (pyspark/sql/worker,
    plan_data_source_read.py). Python is not told the setting before it makes a reader, so no class
    can be chosen by it. This object is called like a method and has the inherited `__func__`: with
    pushdown Spark calls it, without pushdown Spark evaluates the conditions itself. If a later
    Spark compares otherwise, such a session fails with Spark's own error, which names the setting;
    `test_spark_finds_it_by_itself_where_it_is_installed` fails then, too.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterator[Filter]:
        return self._reader.push(filters)


def _parts(first: int, end: int, wanted: int, rows: int | None = None) -> list[Part]:
    """Splits a range into partitions, by default of a size that keeps a task busy for seconds."""
    if end <= first:
        return []
    count = end - first if rows is None else rows
    return parts(first, end, wanted or round(count / ROWS_OF_A_PARTITION))


def _name(condition: Filter) -> str:
    """The column of a condition; "" where it is none of a column alone."""
    column: tuple[str, ...] = getattr(condition, "attribute", ())
    return column[0] if len(column) == 1 else ""


def _order(condition: Filter) -> tuple[bool, bool]:
    """The order in which conditions are taken.

    Entities are those of a namespace, and what is equal to something is not null.
    """
    return isinstance(condition, IsNotNull), _name(condition) != "namespace"


@dataclass
class Pushed:
    """A selection that conditions on position, time, entity, namespace and kind narrow down."""

    wanted: Wanted
    range: Range

    def takes(self, condition: Filter) -> bool:
        """Whether the broker evaluates a condition, so that Spark need not."""
        if isinstance(condition, IsNotNull):
            return self._has(_name(condition))
        match _name(condition):
            case "position":
                return self._takes_position(condition)
            case "time":
                self._narrow_to_time(condition)
                return False  # to the millisecond it is Spark who looks
            case "namespace":
                return self._takes_namespace(condition)
            case "entity":
                return self._takes_entities(condition)
            case "kind":
                return self._takes_kinds(condition)
            case _:
                return False

    def _takes_position(self, condition: Filter) -> bool:
        first, end = self.range.first, self.range.end
        match condition:
            case EqualTo(value=int(value)):
                self._narrow(value, value + 1)
            case GreaterThan(value=int(value)):
                self._narrow(value + 1, end)
            case GreaterThanOrEqual(value=int(value)):
                self._narrow(value, end)
            case LessThan(value=int(value)):
                self._narrow(first, value)
            case LessThanOrEqual(value=int(value)):
                self._narrow(first, value + 1)
            case _:
                return False
        return True

    def _has(self, column: str) -> bool:
        """Whether a column is not null in any row of the selection."""
        match column:
            case "namespace":
                return self.wanted.namespace is not None
            case "entity":
                return bool(self.wanted.entities)
            case _:
                return column in ("position", "time", "kind")

    def _narrow_to_time(self, condition: Filter) -> None:
        match condition:
            case (
                GreaterThan(value=datetime() as value)
                | GreaterThanOrEqual(value=datetime() as value)
            ):
                self._narrow(self._at(value), self.range.end)
            case LessThan(value=datetime() as value) | LessThanOrEqual(value=datetime() as value):
                later = value.replace(microsecond=0).timestamp() + 1
                self._narrow(self.range.first, self._at(datetime.fromtimestamp(later, UTC)))
            case _:
                pass

    def _takes_namespace(self, condition: Filter) -> bool:
        if not isinstance(condition, EqualTo) or not isinstance(condition.value, str):
            return False
        if self.wanted.namespace not in (None, condition.value):
            return False
        self.wanted = replace(self.wanted, namespace=condition.value)
        return True

    def _takes_entities(self, condition: Filter) -> bool:
        match condition:
            case EqualTo(value=str(value)):
                given = [value]
            case In(value=values):
                given = [each for each in values if each is not None]
            case StringStartsWith(value=str(value)):
                given = [value]
            case _:
                return False
        if any("," in each or ANY in each for each in given) or not 0 < len(given) <= NAMES_MAX:
            return False  # the feed cannot be asked for such names
        names = tuple(given)
        if isinstance(condition, StringStartsWith):
            # In a pattern * stands for no part of a name that begins with /$.
            names = (f"{given[0]}*", f"{given[0]}*/$*")
        if self.wanted.namespace is None or self.wanted.entities not in ((), names):
            return False
        self.wanted = replace(self.wanted, entities=names)
        return True

    def _takes_kinds(self, condition: Filter) -> bool:
        """A kind that the broker does not know, which it would refuse, is left to Spark."""
        match condition:
            case EqualTo(value=str(value)):
                kinds = [value]
            case In(value=values):
                kinds = [each for each in values if each is not None]
            case _:
                return False
        if self.wanted.kinds or not kinds or any("," in each for each in kinds):
            return False
        asked = {**self.wanted.part, "limit": "1", "kinds": ",".join(kinds)}
        try:
            self.wanted.broker.get(f"/feed?{urlencode(asked)}")
        except PosthouseError:
            return False
        self.wanted = replace(self.wanted, kinds=tuple(kinds))
        return True

    def _at(self, moment: datetime) -> int:
        return self.wanted.broker.first_at(moment, **self.wanted.part)

    def _narrow(self, first: int, end: int | None) -> None:
        before = self.range
        ends = [each for each in (before.end, end) if each is not None]
        self.range = Range(max(before.first, first), min(ends, default=None))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of rows from an offset on.

    An offset has the position of the next row. Spark shows offsets in the progress of a query, and
    of a source in Python nothing else; so an offset also says what is read, and how many positions
    were lost to retention in all.
    """

    def __init__(
        self, wanted: Wanted, range: Range, partitions: int, rows: int, reader: str | None
    ) -> None:
        self._wanted = wanted
        self._reader = reader  # under whose name the broker keeps what was not read
        self._acknowledged: int | None = None  # positions before it; None: not yet known
        self._range = range
        self._partitions = partitions
        self._rows = rows  # of a batch at most; 0: all that there are
        self._target: int | None = None  # where to stop, if that was fixed
        self._empty: tuple[int, int] | None = None  # a range that has no row that is wanted
        self._counted: dict[tuple[int, int], int] = {}  # the rows of the last range

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._range.first, 0)

    def _offset(self, position: int, lost: int) -> dict[str, Any]:
        return {"reads": self._wanted.description, "position": position, "lost": lost}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows) if self._rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = start["position"]
        if self._reader is not None:
            self._acknowledge(self._reader, begin)
        kept = self._wanted.status()[0]
        end = max(self._there(), begin)
        first = self._wanted.kept(begin, min(kept, end))
        if first == end == begin:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        reached, rows = self._reach(begin, first, end, most)
        if rows:
            end = reached if most else end
        elif begin == first and self._may_wait(begin, end, kept):
            self._empty = (begin, end)
            return start
        self._counted = {(begin, end): rows}
        return self._offset(end, start.get("lost", 0) + first - begin)

    def _reach(self, begin: int, first: int, end: int, most: int) -> tuple[int, int]:
        """The position behind so many rows, and how many there are.

        Without a most, rows are counted only where it depends on them how many tasks there are.
        """
        if self._empty is not None and self._empty[0] == begin:
            first = min(end, max(first, self._empty[1]))
        if most or end - first > ROWS_OF_A_PARTITION:
            return self._wanted.reach(first, end, most or end - first)
        return self._wanted.reach(first, end, 1)

    def _may_wait(self, begin: int, end: int, kept: int) -> bool:
        """Whether an offset may stay where it is, as nothing came that is wanted.

        A batch without rows is saved so. But it moves on long before retention comes near.
        """
        return end - begin <= min(IDLE_POSITIONS_MAX, begin - kept)

    def _acknowledge(self, reader: str, start: int) -> None:
        """Acknowledges the positions before the start: Spark has written down that they are done.

        Acknowledgements, of this reader or another, are rows themselves, and alone they are not
        acknowledged: there would be no end to it. A stream that begins anew, without a checkpoint,
        does not take back what was acknowledged before.
        """
        broker = self._wanted.broker
        if self._acknowledged is None:
            known = broker.acknowledged(reader)
            self._acknowledged = -1 if known is None else known + 1
        before = self._acknowledged
        if start > before + 1 and (before < 0 or not broker.is_idle(before, start)):
            broker.acknowledge(reader, start - 1)
            self._acknowledged = start

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of this run. Rows that it writes itself, once it has begun, come after it."""
        there = self._there()
        if self._empty is not None and self._empty[1] >= there:
            there = self._empty[0]  # nothing behind it is wanted
        return {"reads": self._wanted.description, "position": there}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, behind = start["position"], end["position"]
        rows = self._counted.get((first, behind))
        if not self._wanted.fails_on_loss:
            first = min(behind, max(first, self._wanted.status()[0]))
        return _parts(first, behind, self._partitions, rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):
            yield from self._wanted.read(partition.first, partition.end)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark commits late, and does not commit the last batch at all."""

    def _there(self) -> int:
        return self._end() if self._target is None else self._target

    def _end(self) -> int:
        last = self._wanted.status()[1]
        return last + 1 if self._range.end is None else min(self._range.end, last + 1)
