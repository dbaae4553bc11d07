"""The tables of a bridge: made, printed, checked, and as models of the user's."""

import pytest
import sqlalchemy as sql
from sqlalchemy.orm import DeclarativeBase

from posthouse.bridge.database import DIALECTS, Database
from posthouse.bridge.errors import ConfigurationError
from posthouse.bridge.tables import InboxColumns, LanesColumns, OutboxColumns, RelaysColumns, Tables
from tests.bridge.database.places import Place


def problems(place: Place) -> list[str]:
    with place.engine.connect() as connection:
        return place.tables.check(connection)


def test_created_tables_miss_nothing_and_are_created_once(place: Place) -> None:
    assert problems(place) == []
    with place.engine.begin() as connection:
        place.tables.create(connection)


def test_the_printed_statements_create_the_same_tables(place: Place) -> None:
    tables = Tables.make(sql.MetaData(), prefix="shop_", keep_payload=True)
    dialect = {"mariadb": "mariadb"}.get(place.kind, place.kind)
    with place.engine.begin() as connection:
        for statement in tables.ddl(dialect).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        assert tables.check(connection) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_are_printed_without_a_driver(dialect: str) -> None:
    printed = Tables.make(sql.MetaData()).ddl(dialect)
    assert printed.count("CREATE TABLE") == 4
    assert printed.count("CREATE INDEX") == 3


def test_an_unknown_dialect_is_told() -> None:
    with pytest.raises(ConfigurationError, match="oracle"):
        Tables.make(sql.MetaData()).ddl("oracle")


def test_what_is_missing_is_named_with_the_statement_that_adds_it(place: Place) -> None:
    place.do(sql.text("ALTER TABLE posthouse_outbox DROP COLUMN last_error"))
    place.do(sql.text("DROP TABLE posthouse_outbox_relays"))
    place.do(sql.schema.DropIndex(next(iter(place.tables.inbox.indexes))))
    column, table, index = problems(place)
    assert "posthouse_outbox has no column last_error" in column
    place.do(sql.text(column.partition("Add it: ")[2].rstrip(";")))
    assert "no table posthouse_outbox_relays" in table
    assert "no index on (received_at)" in index
    assert len(problems(place)) == 2


def test_a_table_whose_key_is_another_is_told(sqlite: Place) -> None:
    sqlite.do(sql.text("DROP TABLE posthouse_inbox"))
    columns = ", ".join(f"{column.name} TEXT" for column in sqlite.tables.inbox.columns)
    sqlite.do(sql.text(f"CREATE TABLE posthouse_inbox ({columns}, PRIMARY KEY (event_id))"))
    assert "must be (consumer, event_id)" in problems(sqlite)[0]


def test_models_of_ones_own_take_the_columns_from_mixins(sqlite: Place) -> None:
    class Base(DeclarativeBase):
        pass

    class Outbox(OutboxColumns, Base):
        __tablename__ = "own_outbox"

    class Lanes(LanesColumns, Base):
        __tablename__ = "own_lanes"

    class Relays(RelaysColumns, Base):
        __tablename__ = "own_relays"

    class Inbox(InboxColumns, Base):
        __tablename__ = "own_inbox"

    made = [model.__table__ for model in (Outbox, Lanes, Relays, Inbox)]
    assert all(isinstance(table, sql.Table) for table in made)
    tables = Tables(*made)  # type: ignore[arg-type]
    Base.metadata.create_all(sqlite.engine)
    with sqlite.engine.connect() as connection:
        assert tables.check(connection) == []
        indexes = sql.inspect(connection).get_indexes("own_outbox")
    assert {index["name"] for index in indexes} >= {"ix_own_outbox_unsent", "ix_own_outbox_refused"}


def test_ids_of_the_outbox_are_never_given_twice(place: Place) -> None:
    """A consumer compares them, and with `delete_sent` the table is empty again and again."""
    row = {
        "lane": 0, "key": "", "subject": "s", "payload": b"", "headers": {}, "event_type": "",
        "resource_type": "", "resource_id": "", "status": "pending", "attempts": 0,
    }  # fmt: skip
    for id in ("a", "b"):
        place.do(place.tables.outbox.insert().values(event_id=id, **row))
        if id == "a":
            place.do(place.tables.outbox.delete())
    assert place.rows("id") == [2]


def test_ids_that_differ_in_case_or_accent_alone_are_different(place: Place) -> None:
    inbox = place.tables.inbox.c
    row = {
        "stream": "", "stream_sequence": 1, "status": "processed", "attempts": 1, "deliveries": 1,
        "event_type": "", "resource_type": "", "resource_id": "", "subject": "",
        "received_at": sql.func.current_timestamp(),
    }  # fmt: skip
    for id in ("a", "A", "é", "e"):
        statement = place.tables.inbox.insert().values(consumer="c", event_id=id, **row)
        place.do(statement)
    assert len(place.seen(inbox.event_id.name)) == 4


@pytest.mark.parametrize("url", ["sqlite://", "sqlite+aiosqlite://"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url) if "aio" in url else sql.create_engine(url)
    with pytest.raises(ConfigurationError, match="in memory"):
        Database(engine)
