"""Writing: `df.write.format("posthouse")`, and `writeStream`, into a queue or a topic.

Spark may try the same rows twice. So every message has an id that follows from its row, and the
queue, which must look for duplicates, keeps the first.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from posthouse.pipeline.options import Options
from posthouse.pipeline.wire import Broker, PosthouseError

SEND_ROWS, SEND_BYTES = 1_000, 4 << 20  # of one request
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TEXTS = (
    "message_id", "session_id", "partition_key", "subject", "correlation_id", "content_type", "to",
    "reply_to", "reply_to_session_id", "trace",
)  # fmt: skip
# What each column may be, and how that is called.
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    **dict.fromkeys(_TEXTS, ((StringType,), "string")),
    "body": ((BinaryType, StringType, StructType, ArrayType, MapType),
             "binary, string, or a struct, array or map, which is written as JSON"),
    "properties": ((MapType,), "map<string, ...>"),
    "priority": (_WHOLE, "a whole number"),
    "time_to_live_ms": (_WHOLE, "a whole number"),
    "scheduled_time": ((TimestampType,), "timestamp"),
}  # fmt: skip
_NAMES = {"message_id": "id", "time_to_live_ms": "ttl_ms"}  # as the broker's API has them


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    rows: int = 0
    duplicates: int = 0


def check_schema(schema: StructType) -> None:
    """Raises PosthouseError, which names the column."""
    for each in schema.fields:
        if each.name not in _TYPES:
            raise PosthouseError(
                f"A message has no column {each.name!r}. It has {', '.join(sorted(_TYPES))}: select"
                " those, or rename what is meant."
            )
        kinds, told = _TYPES[each.name]
        right = isinstance(each.dataType, kinds)
        if each.name == "properties" and isinstance(each.dataType, MapType):
            right = isinstance(each.dataType.keyType, StringType)
        if not right:
            raise PosthouseError(
                f"The column {each.name} is {each.dataType.simpleString()}; it must be {told}."
            )
    if "body" not in schema.names:
        raise PosthouseError("There is no column body, which is what a message is sent for.")


@dataclass(frozen=True)
class Target:
    """Where messages go."""

    broker: Broker
    path: str
    is_once: bool  # they have keys by which the queue finds what came twice

    def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Raises PosthouseError."""
        sent = Sent()
        waiting: list[dict[str, Any]] = []
        size = 0
        for batch in batches:
            for row in _rows(batch):
                message = _message(row, keyed=self.is_once)
                size += len(message.get("body") or message.get("body_base64") or "") + 200
                waiting.append(message)
                if len(waiting) >= SEND_ROWS or size >= SEND_BYTES:
                    self._post(waiting, sent)
                    waiting, size = [], 0
        if waiting:
            self._post(waiting, sent)
        return sent

    def _post(self, messages: list[dict[str, Any]], sent: Sent) -> None:
        answer = self.broker.post(f"{self.path}/messages", {"messages": messages})
        sent.rows += len(messages)
        sent.duplicates += answer["duplicates"]


def target(options: Options, schema: StructType) -> Target:
    """Raises PosthouseError where it could not be written to as was asked for."""
    check_schema(schema)
    broker, named = options.broker(), options.named()
    if named is None:
        raise PosthouseError("Name the queue or topic to write to with the option entity.")
    is_once = options.one_of("once", ("true", "false")) == "true"
    space = f"/api/v1/namespaces/{quote(options.namespace() or 'default', safe='')}"
    path = f"{space}/queues/{quote(named, safe='')}"
    queue = broker.find(path)
    if queue is None:
        raise PosthouseError(
            f"There is no queue or topic {named!r} to write to. Make one that finds what was sent"
            f" twice: posthouse queue create {named} --set duplicate_detection=true"
        )
    if is_once and not queue["properties"]["duplicate_detection"]:
        raise PosthouseError(
            f"{named!r} looks for no duplicates, so what Spark sends twice would be there"  # noqa: S608 (no SQL)
            f" twice. Have it look: posthouse queue update {named} --set duplicate_detection=true;"
            " or set the option once to false."
        )
    return Target(broker, path, is_once)


# Rows as messages.


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = {
        name: batch.column(name).to_pylist(maps_as_pydicts="strict") for name in batch.schema.names
    }
    for at in range(batch.num_rows):
        yield {name: values[at] for name, values in columns.items() if values[at] is not None}


def _message(row: dict[str, Any], *, keyed: bool) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for name, value in row.items():
        if name == "body":
            if isinstance(value, bytes):
                message["body_base64"] = base64.b64encode(value).decode()
            else:
                message["body"] = value if isinstance(value, str) else _json(value)
        elif name == "properties":
            message["properties"] = {key: _plain(each) for key, each in value.items()}
        elif name == "scheduled_time":
            message["due_ms"] = round(value.timestamp() * 1000)
        else:
            message[_NAMES.get(name, name)] = value
    if keyed:
        message["key"] = message.get("id") or _key(row)
        message.setdefault("id", message["key"])
    return message


def _key(row: dict[str, Any]) -> str:
    """What is in a row, as a name: rows that are equal are one message."""
    return hashlib.sha256(_json(sorted(row.items())).encode()).hexdigest()[:32]


def _json(value: Any) -> str:
    return json.dumps(value, default=_told, ensure_ascii=False)


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


# For Spark.


class Writer(DataSourceArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._target.send(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._target.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Each task's messages are there when it has ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays; when it is tried again it is known by its keys."""
