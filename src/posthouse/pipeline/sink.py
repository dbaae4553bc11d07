"""Writing: `df.write.format("posthouse")`, and `writeStream`, into a queue or a topic.

Every row is sent at least once: Spark repeats tasks, and batches after a crash. With the option
`once` each message has an idempotency key that follows from its row, and the queue, which must
detect duplicates, keeps the first.

Where a batch is to be there as a whole or not at all, tasks send nothing: they hand their messages
to the driver, which sends all of them in one request when every task has ended. Nothing of it is
with the broker before that, so there is nothing to clear away when Spark is killed. Such a batch is
known by its name, whatever its rows are when it is tried again.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
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
from posthouse.pipeline.wire import Duplicate, FeedClient, NotAllowed, PosthouseError

BATCH_CHARS_MAX = 200  # of a batch's name
WHOLE_ROWS_MAX, WHOLE_BYTES_MAX = 10_000, 32 << 20  # that a broker takes as one
SEND_ROWS, SEND_BYTES = 1_000, 4 << 20  # of one request
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TEXTS = (
    "message_id", "session_id", "partition_key", "subject", "correlation_id", "content_type", "to",
    "reply_to", "reply_to_session_id", "trace",
)  # fmt: skip
# The types that each column may have, and their name in errors.
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
    """The counts of messages that one task has sent."""

    rows: int = 0
    duplicates: int = 0


@dataclass
class Held(WriterCommitMessage):
    """The messages that one task holds until the commit, and the query they are of."""

    messages: list[dict[str, Any]]
    query: str | None


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
    """The queue or topic that messages are sent to, and how."""

    broker: FeedClient
    path: str
    is_once: bool  # they have keys by which the queue finds what came twice
    is_whole: bool  # all of a batch or nothing
    batch: str | None  # the name of a batch, where one was given
    detects: bool  # the queue is known to detect duplicates

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the batches of one task. Raises PosthouseError."""
        return self._hold(batches) if self.is_whole else self._send(batches)

    def commit(self, tasks: list[Any], number: int | None = None) -> None:
        """Ends a write when all tasks have ended; `number` is that of a stream's batch."""
        if self.is_whole:
            held: list[Held] = [each for each in tasks if each is not None]
            self._send_whole([message for each in held for message in each.messages],
                             self.batch or _name(held, number))  # fmt: skip

    def _send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        sent = Sent()
        waiting: list[dict[str, Any]] = []
        size = 0
        for message in self._messages(batches):
            size += _size(message)
            waiting.append(message)
            if len(waiting) >= SEND_ROWS or size >= SEND_BYTES:
                self._post(waiting, sent)
                waiting, size = [], 0
        if waiting:
            self._post(waiting, sent)
        return sent

    def _hold(self, batches: Iterator[pa.RecordBatch]) -> Held:
        held: list[dict[str, Any]] = []
        size = 0
        for message in self._messages(batches):
            held.append(message)
            size += _size(message)
            _check_whole(len(held), size)
        return Held(held, _query())

    def _send_whole(self, messages: list[dict[str, Any]], name: str | None) -> None:
        _check_whole(len(messages), sum(map(_size, messages)))
        if not messages:
            return
        is_named = name is not None and (self.is_once or self.detects)
        if is_named:
            for at, message in enumerate(messages):
                message["key"] = f"{name}/{at}"
        asked = {"messages": messages, "refuse_duplicates": is_named}
        with suppress(Duplicate):  # the batch was sent, and Spark had not noted it yet
            self.broker.post(f"{self.path}/messages", asked)

    def _messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for batch in batches:
            for row in _rows(batch):
                yield _message(row, keyed=self.is_once)

    def _post(self, messages: list[dict[str, Any]], sent: Sent) -> None:
        answer = self.broker.post(f"{self.path}/messages", {"messages": messages})
        sent.rows += len(messages)
        sent.duplicates += answer["duplicates"]


def _size(message: dict[str, Any]) -> int:
    """The approximate bytes of a message in a request."""
    return len(message.get("body") or message.get("body_base64") or "") + 200


def _check_whole(rows: int, size: int) -> None:
    if rows > WHOLE_ROWS_MAX or size > WHOLE_BYTES_MAX:
        raise PosthouseError(
            f"A broker takes at most {WHOLE_ROWS_MAX:,} messages and {WHOLE_BYTES_MAX >> 20} MiB as"
            " a whole, and this batch has more; nothing of it was sent. Make batches smaller, as"
            " with the option maxRowsPerBatch of a stream, or do without the option atomic."
        )


def _query() -> str | None:
    """The id of the stream that a task is part of. It is kept in the checkpoint."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty("sql.streaming.queryId")


def _name(held: list[Held], number: int | None) -> str | None:
    queries = {each.query for each in held}
    if number is None or not queries:
        return None
    if None in queries:
        raise PosthouseError("Spark does not tell which stream this is: write with foreachBatch,"
                             " and name each batch with the option batch.")  # fmt: skip
    return f"{queries.pop()}/{number}"


def target(options: Options, schema: StructType) -> Target:
    """Raises PosthouseError where it could not be written to as was asked for."""
    check_schema(schema)
    broker, named = options.broker(), options.named()
    if named is None:
        raise PosthouseError("Name the queue or topic to write to with the option entity.")
    is_whole = options.one_of("atomic", ("false", "true")) == "true"
    batch = options.text("batch")
    if batch is not None and not is_whole:
        raise PosthouseError("The option batch names what is sent as a whole: set atomic to true.")
    if batch is not None and not 0 < len(batch) <= BATCH_CHARS_MAX:
        raise PosthouseError(f"The option batch is a name of up to {BATCH_CHARS_MAX} characters.")
    is_once = options.one_of("once", ("false", "true")) == "true" or batch is not None
    space = f"/api/v1/namespaces/{quote(options.namespace() or 'default', safe='')}"
    path = f"{space}/queues/{quote(named, safe='')}"
    detects = _detects(broker, path, named, is_once=is_once)
    return Target(broker, path, is_once, is_whole, batch, detects)


def _detects(broker: FeedClient, path: str, named: str, *, is_once: bool) -> bool:
    """Whether a queue or topic is known to detect duplicates. Raises PosthouseError."""
    try:
        queue = broker.find(path)
    except NotAllowed:
        if not is_once:
            return False
        raise PosthouseError(
            f"To see whether {named!r} detects duplicates takes a key with the right to manage it."
            " Give one with the options accessKeyName and accessKey, or write without the option"
            " once: then a row may be there twice."
        ) from None
    if queue is None and not is_once and broker.find(f"{path}/messages?limit=1") is not None:
        return False  # with --auto-create the broker has made it at this look, its first use
    if queue is None:
        more = " --set duplicate_detection=true" if is_once else ""
        raise PosthouseError(
            f"There is no queue or topic {named!r} to write to. Create it:"
            f" posthouse queue create {named}{more}"
        )
    detects = bool(queue["properties"]["duplicate_detection"])
    if is_once and not detects:
        raise PosthouseError(
            f"To write each row once, {named!r} has to detect duplicates, and it does not. Have it"
            f" do so: posthouse queue update {named} --set duplicate_detection=true; or write"
            " without the options once and batch: then a row may be there twice."
        )
    return detects


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
    """The key of a row, made of its content: rows that are equal are one message."""
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
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.commit(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._target.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keeps the messages that were sent; a retry recognises them by their keys."""
