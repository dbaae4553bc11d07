"""The tables of a bridge: an outbox, the lanes of its relays, and an inbox.

They are SQLAlchemy Core tables, made into a `MetaData` of the user's, so that Alembic migrates them
with the rest. Who wants models of their own takes the columns from the mixins.

    posthouse_outbox          a row an event; the relay reads those that are `pending`
    posthouse_outbox_lanes    a row a lane, with the relay that sends its events
    posthouse_outbox_relays   a row a relay that is alive
    posthouse_inbox           a row an event that a consumer has handled, or failed to
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.orm import declared_attr
from sqlalchemy.schema import CreateIndex, CreateTable

from posthouse.bridge.database import DIALECTS, ERROR_CHARS_MAX, Moment, now
from posthouse.bridge.errors import ConfigurationError

PREFIX = "posthouse_"
LANES = 16  # among which relays divide the events
TEXT_CHARS_MAX = 255  # of an id, a subject, a key, a type or a name

PENDING, SENT, FAILED = "pending", "sent", "failed"
PROCESSING, PROCESSED = "processing", "processed"

# Statuses stand in statements as they are: an index of some rows is used where its condition is
# seen to hold, and that of a parameter is not seen.
IS_UNSENT = "status <> 'sent'"
IS_REFUSED = "attempts > 0"


def _of_mysql(type_: Any, other: Any) -> Any:
    return type_.with_variant(other, "mysql", "mariadb")


def _text(chars: int = TEXT_CHARS_MAX) -> Any:
    """Compares byte by byte, also where the database would take `A` for `a`."""
    return _of_mysql(
        sql.String(chars), mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin")
    )


def _bytes() -> Any:
    return _of_mysql(sql.LargeBinary(), mysql.LONGBLOB())


def _number() -> Any:
    return sql.BigInteger().with_variant(sql.Integer(), "sqlite")  # or SQLite would not count on


def outbox_columns() -> list["sql.Column[Any]"]:
    return [
        sql.Column("id", _number(), primary_key=True, autoincrement=True),
        sql.Column("event_id", _text(), nullable=False, unique=True),
        sql.Column("lane", sql.SmallInteger(), nullable=False),
        sql.Column("key", _text(), nullable=False),  # "": of none
        sql.Column("subject", _text(), nullable=False),
        sql.Column("payload", _bytes(), nullable=False),  # the envelope
        sql.Column("headers", sql.JSON(), nullable=False),
        sql.Column("event_type", _text(), nullable=False),
        sql.Column("resource_type", _text(), nullable=False),
        sql.Column("resource_id", _text(), nullable=False),
        sql.Column("status", _text(16), nullable=False),  # pending, sent, failed
        sql.Column("attempts", sql.Integer(), nullable=False),  # that were refused
        sql.Column("last_error", _text(ERROR_CHARS_MAX), nullable=True),
        sql.Column("next_at", Moment(), nullable=False, default=now()),
        sql.Column("enqueued_at", Moment(), nullable=False, default=now()),
        sql.Column("sent_at", Moment(), nullable=True),
        sql.Column("stream_sequence", sql.BigInteger(), nullable=True),
    ]


def lanes_columns() -> list["sql.Column[Any]"]:
    return [
        sql.Column("lane", sql.SmallInteger(), primary_key=True, autoincrement=False),
        sql.Column("owner", _text(), nullable=False),  # "": nobody
        sql.Column("token", sql.BigInteger(), nullable=False),  # one higher with each owner
        sql.Column("until", Moment(), nullable=False, default=now()),
    ]


def relays_columns() -> list["sql.Column[Any]"]:
    return [
        sql.Column("relay", _text(), primary_key=True),
        sql.Column("until", Moment(), nullable=False),
        sql.Column("started_at", Moment(), nullable=False, default=now()),
    ]


def inbox_columns(*, keep_payload: bool = False) -> list["sql.Column[Any]"]:
    columns: list[sql.Column[Any]] = [
        sql.Column("consumer", _text(), primary_key=True),
        sql.Column("event_id", _text(), primary_key=True),
        sql.Column("stream", _text(), nullable=False),
        sql.Column("stream_sequence", sql.BigInteger(), nullable=False),
        sql.Column("status", _text(16), nullable=False),  # processing, processed, failed
        sql.Column("attempts", sql.Integer(), nullable=False),
        sql.Column("deliveries", sql.Integer(), nullable=False),
        sql.Column("error", _text(ERROR_CHARS_MAX), nullable=True),
        sql.Column("received_at", Moment(), nullable=False),
        sql.Column("processed_at", Moment(), nullable=True),
        sql.Column("failed_at", Moment(), nullable=True),
        sql.Column("lease_until", Moment(), nullable=True),  # while it is processed
        sql.Column("event_type", _text(), nullable=False),
        sql.Column("resource_type", _text(), nullable=False),
        sql.Column("resource_id", _text(), nullable=False),
        sql.Column("subject", _text(), nullable=False),
    ]
    if keep_payload:
        columns.append(sql.Column("payload", _bytes(), nullable=True))
        columns.append(sql.Column("headers", sql.JSON(), nullable=True))
    return columns


def _outbox_indexes(table: str) -> list[sql.Index]:
    unsent, refused = sql.text(IS_UNSENT), sql.text(IS_REFUSED)
    return [
        sql.Index(
            f"ix_{table}_unsent", "status", "id", "lane", "next_at",
            postgresql_where=unsent, sqlite_where=unsent,
        ),
        sql.Index(
            f"ix_{table}_refused", "attempts", postgresql_where=refused, sqlite_where=refused
        ),
    ]  # fmt: skip


def _inbox_indexes(table: str) -> list[sql.Index]:
    return [sql.Index(f"ix_{table}_received", "received_at")]


class OutboxColumns:
    """A mixin for a declarative model of the outbox. The model names its table."""

    if TYPE_CHECKING:
        __tablename__: str

    @declared_attr.directive
    def __table_args__(cls) -> Any:
        return (*_outbox_indexes(cls.__tablename__), {"sqlite_autoincrement": True})


class LanesColumns:
    """A mixin for a declarative model of the lanes."""


class RelaysColumns:
    """A mixin for a declarative model of the relays."""


class InboxColumns:
    """A mixin for a declarative model of the inbox."""

    if TYPE_CHECKING:
        __tablename__: str

    @declared_attr.directive
    def __table_args__(cls) -> Any:
        return tuple(_inbox_indexes(cls.__tablename__))


class InboxColumnsWithPayload(InboxColumns):
    """A mixin for a declarative model of an inbox that keeps payloads."""


for _mixin, _columns in (
    (OutboxColumns, outbox_columns()), (LanesColumns, lanes_columns()),
    (RelaysColumns, relays_columns()), (InboxColumns, inbox_columns()),
    (InboxColumnsWithPayload, inbox_columns(keep_payload=True)[-2:]),
):  # fmt: skip
    for _column in _columns:
        setattr(_mixin, _column.name, _column)


@dataclass(frozen=True)
class Tables:
    """The tables of a bridge. Any of them may be a model's `__table__`."""

    outbox: sql.Table
    lanes: sql.Table
    relays: sql.Table
    inbox: sql.Table

    @classmethod
    def make(
        cls,
        metadata: sql.MetaData,
        *,
        prefix: str = PREFIX,
        schema: str | None = None,
        keep_payload: bool = False,
    ) -> "Tables":
        """Makes the tables in the metadata; they are not in the database yet."""

        def table(name: str, columns: list["sql.Column[Any]"], *more: Any, **how: Any) -> sql.Table:
            return sql.Table(prefix + name, metadata, *columns, *more, schema=schema, **how)

        outbox, inbox = f"{prefix}outbox", f"{prefix}inbox"
        return cls(
            table("outbox", outbox_columns(), *_outbox_indexes(outbox), sqlite_autoincrement=True),
            table("outbox_lanes", lanes_columns()),
            table("outbox_relays", relays_columns()),
            table("inbox", inbox_columns(keep_payload=keep_payload), *_inbox_indexes(inbox)),
        )

    def __iter__(self) -> Iterator[sql.Table]:
        yield from (self.outbox, self.lanes, self.relays, self.inbox)

    @property
    def keep_payload(self) -> bool:
        return "payload" in self.inbox.columns

    def ddl(self, dialect: str) -> str:
        """Returns the statements that create the tables. Raises ConfigurationError."""
        if dialect not in DIALECTS:
            raise ConfigurationError(
                f"There is no dialect {dialect!r} of the bridge's tables; there are"
                f" {', '.join(DIALECTS)}."
            )
        made = sql.make_url(f"{dialect}://").get_dialect()()
        texts = []
        for table in self:
            texts.append(str(CreateTable(table).compile(dialect=made)).strip())
            texts += [
                str(CreateIndex(index).compile(dialect=made)).strip()
                for index in sorted(table.indexes, key=lambda index: str(index.name))
            ]
        return "".join(f"{text};\n\n" for text in texts).replace("\n\n\n", "\n\n")

    def create(self, connection: Connection) -> None:
        """Creates what is not there. It is for tests and for first steps; it changes no table."""
        for table in self:
            table.create(connection, checkfirst=True)

    def check(self, connection: Connection) -> list[str]:
        """Compares the tables with the database's; says in sentences what is missing there."""
        inspector = sql.inspect(connection)
        problems: list[str] = []
        for table in self:
            name = table.fullname
            if not inspector.has_table(table.name, schema=table.schema):
                problems.append(
                    f"There is no table {name}. Print its DDL with `posthouse bridge schema`, or"
                    " migrate with the bridge's metadata."
                )
                continue
            there = {column["name"] for column in inspector.get_columns(table.name, table.schema)}
            problems += [
                f"The table {name} has no column {column.name}. Add it:"
                f" {_column_ddl(column, connection.dialect)}"
                for column in table.columns
                if column.name not in there
            ]
            problems += _missing_keys(table, inspector)
        return problems


def _missing_keys(table: sql.Table, inspector: Any) -> Iterator[str]:
    name, schema = table.name, table.schema
    primary = set(inspector.get_pk_constraint(name, schema)["constrained_columns"])
    wanted = {column.name for column in table.primary_key}
    if primary != wanted:
        yield (
            f"The primary key of {table.fullname} must be ({', '.join(sorted(wanted))}); it is"
            f" ({', '.join(sorted(primary))}). Without it an event may be handled twice."
        )
    indexes = inspector.get_indexes(name, schema)
    uniques = {
        tuple(each["column_names"]) for each in inspector.get_unique_constraints(name, schema)
    } | {tuple(each["column_names"]) for each in indexes if each["unique"]}
    for column in table.columns:
        if column.unique and (column.name,) not in uniques:
            yield f"{column.name} must be unique in {table.fullname}; add a unique index."
    covered = [tuple(each["column_names"]) for each in indexes]
    for index in table.indexes:
        columns = tuple(column.name for column in index.columns)
        if not index.unique and not any(each[: len(columns)] == columns for each in covered):
            yield (
                f"{table.fullname} has no index on ({', '.join(columns)}); without it the bridge"
                " becomes slower as the table grows."
            )


def _column_ddl(column: "sql.Column[Any]", dialect: Dialect) -> str:
    made = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]
    table = dialect.identifier_preparer.format_table(column.table)
    return f"ALTER TABLE {table} ADD COLUMN {made.get_column_specification(column)};"
