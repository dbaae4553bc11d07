"""Claims: the messages that producers say they have sent, or consumers that they have processed.

They are read from files (Parquet, CSV, JSON), or from a table of a database through SQLAlchemy.
"""

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from posthouse.pipeline.wire import PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ROWS = 50_000  # that are in memory at a time
# The names of columns here, and their usual names in outboxes and inboxes.
NAMES = {
    "message_id": ("message_id", "event_id", "id"),
    "entity": ("entity", "queue", "topic"),
    "body": ("body", "payload"),
}
_SEPARATOR = "::"


def read(
    spark: "SparkSession", where: str, columns: Mapping[str, str] | None = None,
    staging: str | None = None,
) -> "DataFrame":  # fmt: skip
    """A row a claim: `message_id`, and `entity` and `hash` (of the body) where they are known.

    `where` is a path, or a database's URL, :: and a table or a query. Raises PosthouseError.
    """
    if _SEPARATOR in where:
        url, _, query = where.partition(_SEPARATOR)
        given = spark.read.parquet(_staged(url, query, staging))
    else:
        given = _files(spark, where)
    return _named(given, columns or {}, where)


def missing_file(where: str) -> str | None:
    """The file of an SQLite database that is not there; to open it would create it."""
    url, is_table, _ = where.partition(_SEPARATOR)
    scheme, _, rest = url.partition(":///")
    path = rest.partition("?")[0]
    if not is_table or scheme.partition("+")[0] != "sqlite" or path.startswith("file:"):
        return None
    return None if Path(path).exists() else path


def _files(spark: "SparkSession", where: str) -> "DataFrame":
    if where.endswith(".csv"):
        return spark.read.option("header", "true").option("escape", '"').csv(where)
    if where.endswith((".json", ".jsonl", ".ndjson")):
        return spark.read.json(where)
    return spark.read.parquet(where)


def _named(given: "DataFrame", columns: Mapping[str, str], where: str) -> "DataFrame":
    from pyspark.sql import functions as f

    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise PosthouseError(
            f"There is no column {unknown[0]!r} to be told of; there are {', '.join(NAMES)}."
        )
    found: dict[str, str] = {}
    for name, usual in NAMES.items():
        named = columns.get(name)
        if named is not None and named not in given.columns:
            raise PosthouseError(
                f"{where} has no column {named!r}; it has {', '.join(given.columns)}."
            )
        chosen = named or next((each for each in usual if each in given.columns), None)
        if chosen is not None:
            found[name] = chosen
    if "message_id" not in found:
        raise PosthouseError(
            f"{where} has no column that names messages, such as message_id or event_id; it has"
            f" {', '.join(given.columns)}. Say which it is with message_id=COLUMN."
        )
    quoted = {name: f.col(f"`{each}`") for name, each in found.items()}
    made = [quoted["message_id"].cast("string").alias("message_id")]
    if "entity" in quoted:
        made.append(quoted["entity"].cast("string").alias("entity"))
    if "body" in quoted:
        made.append(f.sha2(quoted["body"].cast("binary"), 256).alias("hash"))
    return given.select(*made)


def _staged(url: str, query: str, staging: str | None) -> str:
    """Writes the rows of a database query to Parquet, chunk by chunk, so that it may be large.

    It is the user's data: the folder goes with the process, until when Spark may read it.
    """
    missing = missing_file(f"{url}{_SEPARATOR}")
    if missing is not None:
        raise PosthouseError(f"There is no database {missing}; check the name.")
    try:
        import sqlalchemy as sql
    except ImportError:
        raise PosthouseError(
            "To read a database takes SQLAlchemy. Install it with: pip install 'posthouse[sql]'"
        ) from None
    folder = tempfile.mkdtemp(prefix="posthouse-claims-", dir=staging)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wanted = query if " " in query.strip() else f"SELECT * FROM {query}"  # noqa: S608 (it is the user's)
    try:
        with sql.create_engine(url).connect() as connection:
            rows = connection.execution_options(stream_results=True, max_row_buffer=CHUNK_ROWS)
            answer = rows.execute(sql.text(wanted))
            names, writer = list(answer.keys()), None
            for chunk in _chunks(answer):
                table = _table(names, chunk)
                if writer is None:
                    writer = pq.ParquetWriter(Path(folder) / "claims.parquet", table.schema)
                writer.write_table(table)
            if writer is None:
                pq.write_table(_table(names, []), Path(folder) / "claims.parquet")
            else:
                writer.close()
    except sql.exc.SQLAlchemyError as error:
        said = str(error).splitlines()[0]
        raise PosthouseError(f"The database says: {said}") from None
    return folder


def _chunks(answer: Any) -> Iterator[list[Any]]:
    while chunk := answer.fetchmany(CHUNK_ROWS):
        yield chunk


def _table(names: list[str], rows: list[Any]) -> pa.Table:
    """Makes a table of bytes: one schema for every chunk, whatever is null in it."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    made = [pa.array([_bytes(value) for value in column], pa.binary()) for column in columns]
    return pa.table(made, names)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
