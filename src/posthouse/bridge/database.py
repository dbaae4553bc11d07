"""Runs statements on the database of a service, through its own engine.

The engine is SQLAlchemy's, synchronous or asynchronous. All SQL that differs between PostgreSQL,
MySQL or MariaDB, and SQLite is in this module: the database's clock, lists as one parameter, and
whether rows can be locked. A list travels as JSON in one parameter, so that a statement has one
text whatever the length of its list.

A transaction of the bridge begins with a write wherever it has one. So SQLite locks its file at
once, as `BEGIN IMMEDIATE` does, and waits for other writers instead of refusing a stale snapshot.
"""

import asyncio
import json
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import DateTime, TypeDecorator

from posthouse.bridge.errors import ConfigurationError

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
DRIVERS = ("asyncpg", "psycopg", "pymysql", "aiomysql", "asyncmy", "sqlite3", "aiosqlite")
# Of a synchronous engine, begun as they are needed. There are more than transactions that wait for
# each other's locks, so that the one that holds a lock always has a thread to commit in.
THREADS_MAX = 1_100
MYSQL_DUPLICATE = 1062  # its error for a key that is there
ERROR_CHARS_MAX = 1_024  # of what is told of an error
RUN_SECONDS = 30.0  # after which a transaction of the bridge is given up

# What a database that is away, or busy, makes a statement raise. It may succeed later.
TROUBLE = (SQLAlchemyError, OSError)

T = TypeVar("T")


class Moment(TypeDecorator[datetime]):
    """A time in UTC, with a fraction of a second, also where the database has no time zones."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


class now(FunctionElement[datetime]):
    """The database's time at the start of the statement."""

    type = Moment()
    inherit_cache = True


class later(FunctionElement[datetime]):
    """The database's time and so many microseconds; a negative number is before it.

    They are a number, which stands in the statement, or the name of a parameter.
    """

    type = Moment()
    inherit_cache = True

    def __init__(self, micros: int | str) -> None:
        if isinstance(micros, str):
            super().__init__(sql.bindparam(micros, type_=sql.BigInteger()))
        else:
            super().__init__(sql.literal_column(str(int(micros)), sql.BigInteger()))


class age(FunctionElement[float]):
    """The seconds from a time until the database's time."""

    type = sql.Float()
    inherit_cache = True


def literal(text: str) -> "sql.ColumnElement[str]":
    """A word that stands in the statement: an index of some rows is used only where its condition
    is seen to hold, and many rows go in one statement only where nothing else is a parameter.
    """
    assert text.isalpha()
    return sql.literal_column(f"'{text}'", sql.String())


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **options: Any) -> str:
    return "statement_timestamp()"


@compiles(now, "mysql")
@compiles(now, "mariadb")
def _now_mysql(element: now, compiler: SQLCompiler, **options: Any) -> str:
    return "utc_timestamp(6)"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **options: Any) -> str:
    return f"(strftime({_sqlite_form(compiler)}, 'now') || '000')"


def _sqlite_form(compiler: SQLCompiler) -> str:
    """Returns the form in which SQLAlchemy keeps a time there, but for its last three digits."""
    form = "'%Y-%m-%d %H:%M:%f'"
    is_doubled = compiler.dialect.paramstyle in ("format", "pyformat")
    return form.replace("%", "%%") if is_doubled else form


@compiles(later, "postgresql")
def _later_postgresql(element: later, compiler: SQLCompiler, **options: Any) -> str:
    micros = compiler.process(element.clauses, **options)
    return f"(statement_timestamp() + {micros} * interval '1 microsecond')"


@compiles(later, "mysql")
@compiles(later, "mariadb")
def _later_mysql(element: later, compiler: SQLCompiler, **options: Any) -> str:
    return (
        f"(utc_timestamp(6) + interval {compiler.process(element.clauses, **options)} microsecond)"
    )


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **options: Any) -> str:
    micros = compiler.process(element.clauses, **options)
    step = f"(round({micros} / 1000000.0, 3) || ' seconds')"
    return f"(strftime({_sqlite_form(compiler)}, 'now', {step}) || '000')"


@compiles(age, "postgresql")
def _age_postgresql(element: age, compiler: SQLCompiler, **options: Any) -> str:
    since = compiler.process(element.clauses, **options)
    return f"cast(extract(epoch from statement_timestamp() - {since}) as double precision)"


@compiles(age, "mysql")
@compiles(age, "mariadb")
def _age_mysql(element: age, compiler: SQLCompiler, **options: Any) -> str:
    since = compiler.process(element.clauses, **options)
    return f"(timestampdiff(microsecond, {since}, utc_timestamp(6)) / 1000000.0)"


@compiles(age, "sqlite")
def _age_sqlite(element: age, compiler: SQLCompiler, **options: Any) -> str:
    since = compiler.process(element.clauses, **options)
    return f"((julianday('now') - julianday({since})) * 86400.0)"


# Lists as one parameter.


def numbers_of(parameter: str, dialect: str, *columns: str) -> sql.Subquery:
    """Returns a table of the named columns from a parameter, a JSON list of lists of numbers."""
    if dialect == "postgresql":
        names = ", ".join(f"cast(item ->> {at} as bigint) as {n}" for at, n in enumerate(columns))
        text = f"select {names} from json_array_elements(cast(:{parameter} as json)) as items(item)"
    elif dialect == "sqlite":
        names = ", ".join(f"json_extract(value, '$[{at}]') as {n}" for at, n in enumerate(columns))
        text = f"select {names} from json_each(:{parameter})"
    else:
        names = ", ".join(f"{n} bigint path '$[{at}]'" for at, n in enumerate(columns))
        text = f"select * from json_table(:{parameter}, '$[*]' columns ({names})) as items"
    typed = [sql.column(name, sql.BigInteger()) for name in columns]
    return sql.text(text).columns(*typed).subquery(f"numbers_of_{parameter}")


def texts_of(parameter: str, dialect: str) -> sql.Subquery:
    """Returns a table of the column `item` from a parameter, a JSON list of texts."""
    if dialect == "postgresql":
        text = (
            f"select item from json_array_elements_text(cast(:{parameter} as json)) as items(item)"
        )
    elif dialect == "sqlite":
        text = f"select value as item from json_each(:{parameter})"
    else:
        column = "item varchar(255) character set utf8mb4 collate utf8mb4_bin path '$'"
        text = f"select item from json_table(:{parameter}, '$[*]' columns ({column})) as items"
    return (
        sql.text(text).columns(sql.column("item", sql.String())).subquery(f"texts_of_{parameter}")
    )


def as_json(items: Iterable[Any]) -> str:
    return json.dumps(list(items))


# Inserting what may be there.


def insert_new(connection: Connection, table: sql.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows; leaves those that are there as they are."""
    if connection.dialect.name == "postgresql":
        connection.execute(postgresql.insert(table).on_conflict_do_nothing(), rows)
    elif connection.dialect.name == "sqlite":
        connection.execute(sqlite.insert(table).on_conflict_do_nothing(), rows)
    else:
        connection.execute(mysql.insert(table).prefix_with("IGNORE"), rows)


def is_duplicate(error: IntegrityError) -> bool:
    """Says whether MySQL has refused a row because its key is there."""
    return bool(error.orig is not None and error.orig.args[:1] == (MYSQL_DUPLICATE,))


# Running.


class Database:
    """Runs work on the database of an engine, each in a transaction of its own."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        """Raises ConfigurationError for an engine that the bridge cannot work with."""
        self.engine = engine
        sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        self.dialect = sync.dialect.name
        if self.dialect not in DIALECTS:
            raise ConfigurationError(
                f"The bridge knows PostgreSQL, MySQL, MariaDB and SQLite, not {self.dialect}."
            )
        if isinstance(sync.pool, StaticPool | SingletonThreadPool):
            raise ConfigurationError(
                "An SQLite database in memory has one connection, on which transactions would mix."
                " Give the engine a file, as in sqlite:////tmp/shop.db."
            )
        self._threads: ThreadPoolExecutor | None = None
        _databases.add(self)

    @property
    def is_async(self) -> bool:
        return isinstance(self.engine, AsyncEngine)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` with a connection, and commits; or rolls back what raises.

        Raises what is in TROUBLE when the database is away, busy, or takes more than RUN_SECONDS.
        """
        try:
            if isinstance(self.engine, AsyncEngine):
                async with asyncio.timeout(RUN_SECONDS), self.engine.begin() as connection:
                    return await connection.run_sync(work)
            return await self.in_thread(lambda: self.run_blocking(work))
        except TROUBLE:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in DRIVERS:  # it is not wrapped always
                raise ConnectionError(first_line(error)) from error
            raise

    def run_blocking(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` as `run` does, in the calling thread; for a synchronous engine."""
        assert isinstance(self.engine, Engine)
        with self.engine.begin() as connection:
            return work(connection)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs what blocks in a thread. Who is cancelled waits for it: it cannot be stopped."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="posthouse-bridge")
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # it is nobody's any more
            raise

    def forget(self) -> None:
        """Drops the threads and connections of the parent in a forked child, without touching them.

        The engine begins with a new pool, as SQLAlchemy asks of a child.
        """
        _parents.append(self._threads)
        self._threads = None
        sync = self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine
        sync.dispose(close=False)

    def close(self) -> None:
        """Ends the threads. The engine stays open: it is the user's."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def first_line(error: BaseException) -> str:
    """Returns the kind and the first line of an error; SQLAlchemy tells parameters below it."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:ERROR_CHARS_MAX] if text else type(error).__name__


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()
_parents: list[object] = []  # of a forked child: what is its parent's, and is never touched


def _forget_all() -> None:
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_forget_all)
