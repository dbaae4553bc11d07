"""Reading: `spark.read.format("posthouse")`, and `readStream`.

A reader asks the feed for ranges of positions. A position is never given to anything else, so the
same range is the same rows whenever it is read.
"""

import json
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
    LessThan,
    LessThanOrEqual,
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
from posthouse.pipeline.options import COLUMNS, SUBSCRIPTION, Options, Range
from posthouse.pipeline.wire import FeedClient, PosthouseError

ROWS_OF_A_PARTITION = 250_000  # by default


@dataclass(frozen=True)
class Wanted:
    """The selection of rows, and their schema."""

    broker: FeedClient
    namespace: str | None
    entity: str | None
    kinds: tuple[str, ...]
    schema: pa.Schema
    part: dict[str, str]  # of the feed, about which is asked: whoever reads may know no more
    topic: str | None = None  # of a subscription whose messages are wanted

    @property
    def query(self) -> dict[str, str]:
        said = {
            "namespace": self.namespace, "entity": self.entity, "kinds": ",".join(self.kinds)
        }  # fmt: skip
        return {name: value for name, value in said.items() if value}

    def last(self) -> int:
        """The last position that there is."""
        return int(self.broker.status(**self.part)["last"])

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Raises PosthouseError."""
        columns = [COLUMNS[name][1] for name in self.schema.names]
        if self.topic is not None:
            assert self.namespace is not None
            assert self.entity is not None
            rows = Copies(self.broker, self.namespace, self.topic, self.entity, columns).read(
                first, end
            )
        else:
            # Whole rows go as they lie there, which is fastest.
            whole = not self.query and len(self.schema.names) == len(COLUMNS)
            rows = self.broker.rows(first, end, None if whole else columns, **self.query)
        for batch in rows:
            yield shaped(batch, self.schema)


def wanted(options: Options, schema: StructType) -> Wanted:
    """Raises PosthouseError."""
    options.check_columns(schema.names)
    broker = options.broker()
    entity, arrow = options.entity(broker), to_arrow_schema(schema, timezone="UTC")
    topic, is_subscription, _ = (entity or "").partition(SUBSCRIPTION)
    of = topic if is_subscription and options.view() == "messages" else None
    space = options.namespace()
    part = {name: each for name, each in (("namespace", space), ("entity", entity)) if each}
    return Wanted(broker, space, entity, options.kinds(), arrow, part, of)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the feed, with these columns of these types."""
    columns = [_converted(batch.column(COLUMNS[each.name][1]), each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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

    def __init__(self, wanted: Wanted, range: Range, partitions: int) -> None:
        self._wanted = wanted
        self._range = range
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        first, end = self._range.first, self._range.end
        last = self._wanted.last()
        end = last + 1 if end is None else min(end, last + 1)
        return _parts(first, end, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):  # of an empty range Spark reads one that is not ours
            yield from self._wanted.read(partition.first, partition.end)


def _parts(first: int, end: int, wanted: int) -> list[Part]:
    """Splits a range into partitions, by default of a size that keeps a task busy for seconds."""
    if end <= first:
        return []
    return parts(first, end, wanted or round((end - first) / ROWS_OF_A_PARTITION))


class PushingReader(Reader):
    """Takes conditions on position, time, entity, namespace and kind to the broker."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Gives back those that Spark has to look at itself."""
        for each in filters:
            if not self._takes(each):
                yield each

    def _takes(self, condition: Filter) -> bool:
        column: tuple[str, ...] = getattr(condition, "attribute", ())
        name = column[0] if len(column) == 1 else ""
        wanted, first, end = self._wanted, self._range.first, self._range.end
        match condition:
            case EqualTo(value=int(value)) if name == "position":
                self._narrow(value, value + 1)
            case GreaterThan(value=int(value)) if name == "position":
                self._narrow(value + 1, end)
            case GreaterThanOrEqual(value=int(value)) if name == "position":
                self._narrow(value, end)
            case LessThan(value=int(value)) if name == "position":
                self._narrow(first, value)
            case LessThanOrEqual(value=int(value)) if name == "position":
                self._narrow(first, value + 1)
            case GreaterThan(value=datetime()) | GreaterThanOrEqual(value=datetime()) if (
                name == "time"
            ):
                self._narrow(self._at(condition.value), end)
                return False  # to the millisecond it is Spark who looks
            case LessThan(value=datetime()) | LessThanOrEqual(value=datetime()) if name == "time":
                later = condition.value.replace(microsecond=0).timestamp() + 1
                self._narrow(first, self._at(datetime.fromtimestamp(later, UTC)))
                return False
            case EqualTo(value=str(value)) if name in ("namespace", "entity"):
                before = getattr(wanted, name)
                if before not in (None, value) or (name == "entity" and not wanted.namespace):
                    return False
                changed: dict[str, Any] = {name: value}
                self._wanted = replace(wanted, **changed)
            case EqualTo(value=str(value)) if name == "kind":
                return self._takes_kinds((value,))
            case In(value=values) if name == "kind":
                return self._takes_kinds([each for each in values if each is not None])
            case _:
                return False
        return True

    def _takes_kinds(self, kinds: Sequence[str]) -> bool:
        """A kind that the broker does not know, which it would refuse, is left to Spark."""
        if self._wanted.kinds or not kinds or any("," in each for each in kinds):
            return False
        asked = {**self._wanted.part, "limit": "1", "kinds": ",".join(kinds)}
        try:
            self._wanted.broker.get(f"/feed?{urlencode(asked)}")
        except PosthouseError:
            return False
        self._wanted = replace(self._wanted, kinds=tuple(kinds))
        return True

    def _at(self, moment: datetime) -> int:
        return self._wanted.broker.first_at(moment, **self._wanted.part)

    def _narrow(self, first: int, end: int | None) -> None:
        before = self._range
        ends = [each for each in (before.end, end) if each is not None]
        self._range = Range(max(before.first, first), min(ends, default=None))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of rows from an offset on. An offset is the position of the next row."""

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

    def initialOffset(self) -> dict[str, int]:
        return {"position": self._range.first}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows) if self._rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if self._reader is not None:
            self._acknowledge(self._reader, start["position"])
        end = self._there()
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["position"] + limit.max_rows)
        return {"position": max(end, start["position"])}

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

    def reportLatestOffset(self) -> dict[str, int]:
        """The end of this run. Rows that it writes itself, once it has begun, come after it."""
        return {"position": self._there()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _parts(start["position"], end["position"], self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):
            yield from self._wanted.read(partition.first, partition.end)

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: Spark commits late, and does not commit the last batch at all."""

    def _there(self) -> int:
        return self._end() if self._target is None else self._target

    def _end(self) -> int:
        last = self._wanted.last()
        return last + 1 if self._range.end is None else min(self._range.end, last + 1)
