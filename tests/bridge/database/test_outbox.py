"""Writing to the outbox, through all that a user's transaction may be in."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from posthouse.bridge.errors import ConfigurationError, PublishFailed
from posthouse.bridge.outbox import Outbox
from tests.bridge.database.places import Place, an_event


class Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@contextmanager
def inserts(engine: sql.Engine) -> Iterator[list[str]]:
    """The inserts that are executed meanwhile."""
    found: list[str] = []

    def heard(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("INSERT"):
            found.append(statement)

    event.listen(engine, "before_cursor_execute", heard)
    yield found
    event.remove(engine, "before_cursor_execute", heard)


def test_events_of_a_session_are_rows_when_it_commits(place: Place) -> None:
    wakes = Wakes()
    outbox = Outbox(place.tables, wake=wakes)
    with Session(place.engine) as session:
        outbox.write(session, [an_event("rolled back")])
        session.rollback()
        outbox.write(session, [an_event("a", key="k", headers={"x": "y"}, payload=b"\x00\xff")])
        assert place.rows("event_id") == []
        assert wakes.count == 0
        session.commit()
    assert wakes.count == 1
    fields = "event_id", "key", "subject", "headers", "payload", "status", "attempts"
    assert place.rows(*fields) == [
        ("a", "k", "shop.sync.worker", {"x": "y"}, b"\x00\xff", "pending", 0)
    ]


def test_many_events_of_a_session_are_one_insert_in_their_order(place: Place) -> None:
    outbox = Outbox(place.tables)
    ids = [f"e{number}" for number in range(200)]
    with inserts(place.engine) as seen, Session(place.engine) as session, session.begin():
        outbox.write(session, [an_event(id) for id in ids])
    assert len(seen) == 1
    assert place.rows("event_id") == ids


def test_a_savepoint_that_is_rolled_back_takes_its_events_along(place: Place) -> None:
    wakes = Wakes()
    outbox = Outbox(place.tables, wake=wakes)
    with Session(place.engine) as session, session.begin():
        outbox.write(session, [an_event("a")])
        with session.begin_nested():
            outbox.write(session, [an_event("b")])
        assert wakes.count == 0, "nobody else sees the rows of a savepoint"
        with session.begin_nested() as savepoint:
            outbox.write(session, [an_event("c")])
            savepoint.rollback()
    assert place.rows("event_id") == ["a", "b"]
    assert wakes.count == 1


def test_a_scoped_session_is_the_session_of_its_thread(sqlite: Place) -> None:
    outbox = Outbox(sqlite.tables)
    sessions = scoped_session(sessionmaker(sqlite.engine))
    outbox.write(sessions, [an_event("a")])
    sessions.commit()
    sessions.remove()
    assert sqlite.rows("event_id") == ["a"]


async def test_events_of_an_asynchronous_session_need_no_await(place: Place) -> None:
    wakes = Wakes()
    outbox = Outbox(place.tables, wake=wakes)
    async with place.async_engine() as engine:
        async with AsyncSession(engine) as session, session.begin():
            outbox.write(session, [an_event("a"), an_event("b")])
            async with session.begin_nested() as savepoint:
                outbox.write(session, [an_event("c")])
                await savepoint.rollback()
        async with AsyncSession(engine) as session:
            outbox.write(session, [an_event("d")])
    assert place.rows("event_id") == ["a", "b"]
    assert wakes.count == 1


def test_events_of_a_connection_are_one_insert(place: Place) -> None:
    wakes = Wakes()
    outbox = Outbox(place.tables, wake=wakes)
    ids = [f"e{number}" for number in range(50)]
    with inserts(place.engine) as seen, place.engine.begin() as connection:
        outbox.write(connection, [an_event(id) for id in ids])
    assert len(seen) == 1
    assert wakes.count == 1
    with place.engine.connect() as connection:
        outbox.write(connection, [an_event("rolled back")])
    assert place.rows("event_id") == ids
    assert wakes.count == 1


async def test_events_of_an_asynchronous_connection_are_inserted_as_it_commits(
    place: Place,
) -> None:
    wakes = Wakes()
    outbox = Outbox(place.tables, wake=wakes)
    async with place.async_engine() as engine, engine.connect() as connection:
        async with connection.begin():
            outbox.write(connection, [an_event("a")])
            async with connection.begin_nested():
                outbox.write(connection, [an_event("b")])
            savepoint = await connection.begin_nested()
            outbox.write(connection, [an_event("c")])
            await savepoint.rollback()
        with pytest.raises(ConfigurationError, match="in no transaction"):
            outbox.write(connection, [an_event("d")])
        await connection.execute(sql.text("SELECT 1"))
        outbox.write(connection, [an_event("d")])
        await connection.rollback()
        async with connection.begin():
            outbox.write(connection, [an_event("e")])
        await connection.run_sync(lambda sync: outbox.write(sync, [an_event("f")]))
        await connection.commit()
    assert place.rows("event_id") == ["a", "b", "e", "f"]
    assert wakes.count == 3


def test_events_of_a_drivers_cursor_are_part_of_its_transaction(place: Place) -> None:
    outbox = Outbox(place.tables)
    raw = place.engine.raw_connection()
    try:
        cursor = raw.cursor()
        outbox.write(
            cursor, [an_event("a", headers={"x": "y"}), an_event("b", payload=b"\x00%\xff")]
        )
        raw.commit()
        outbox.write(cursor, [an_event("c")])
        raw.rollback()
        cursor.close()
    finally:
        raw.close()
    assert place.rows("event_id", "headers", "payload") == [
        ("a", {"x": "y"}, b"{}"), ("b", {}, b"\x00%\xff"),
    ]  # fmt: skip


def test_a_cursor_of_django_tells_of_the_commit(sqlite: Place) -> None:
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db import connection, transaction

    name = str(sqlite.engine.url.database)
    database = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name}}
    settings.configure(DATABASES=database)
    django.setup()
    wakes = Wakes()
    outbox = Outbox(sqlite.tables, wake=wakes)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            outbox.write(cursor, [an_event("a", key="100%")])
            assert wakes.count == 0
        assert wakes.count == 1
        with transaction.atomic(), connection.cursor() as cursor:
            outbox.write(cursor, [an_event("b")])
            transaction.set_rollback(True)
    finally:
        connection.close()
    assert sqlite.rows("event_id", "key") == [("a", "100%")]
    assert wakes.count == 1


def test_a_delay_is_kept_by_the_databases_clock(place: Place) -> None:
    outbox = Outbox(place.tables)
    with Session(place.engine) as session, session.begin():
        outbox.write(session, [an_event("a", delay=90.5)])
    with place.engine.begin() as connection:
        outbox.write(connection, [an_event("b", delay=90.5), an_event("c")])
    raw = place.engine.raw_connection()
    cursor = raw.cursor()
    outbox.write(cursor, [an_event("d", delay=90.5)])
    raw.commit()
    cursor.close()
    raw.close()
    delays = {
        id: (next_at - enqueued_at).total_seconds()
        for id, next_at, enqueued_at in place.rows("event_id", "next_at", "enqueued_at")
    }
    assert delays["c"] == pytest.approx(0, abs=0.01)
    assert all(delays[id] == pytest.approx(90.5, abs=0.01) for id in "abd")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": "k" * 256}, "its key must be a text of at most 255"),
        ({"subject": "a\0b"}, "its subject"),
        ({"subject": ""}, "an id and a subject"),
        ({"delay": -1}, "its delay"),
        ({"delay": float("nan")}, "its delay"),
        ({"delay": 1e12}, "its delay"),
    ],
)
def test_an_event_that_does_not_fit_is_refused_before_the_database(
    sqlite: Place, fields: dict[str, object], said: str
) -> None:
    with Session(sqlite.engine) as session, pytest.raises(PublishFailed, match=said) as refused:
        Outbox(sqlite.tables).write(session, [an_event("good"), an_event("a", **fields)])
    assert not refused.value.transient
    assert sqlite.rows("event_id") == []


@pytest.mark.parametrize("target", ["session", 3, None, object()])
def test_a_target_that_is_no_transaction_is_told(sqlite: Place, target: object) -> None:
    with pytest.raises(ConfigurationError, match="Give the Session"):
        Outbox(sqlite.tables).write(target, [an_event("a")])


def test_a_cursor_of_an_unknown_driver_is_told(sqlite: Place) -> None:
    class Cursor:
        def executemany(self, *given: object) -> None: ...

    with pytest.raises(ConfigurationError, match="is not known"):
        Outbox(sqlite.tables).write(Cursor(), [an_event("a")])


def test_a_duplicate_id_fails_the_users_transaction(place: Place) -> None:
    outbox = Outbox(place.tables)
    with place.engine.begin() as connection:
        outbox.write(connection, [an_event("a")])
    with pytest.raises(sql.exc.IntegrityError), place.engine.begin() as connection:
        outbox.write(connection, [an_event("b"), an_event("a")])
    assert place.rows("event_id") == ["a"]


def test_a_plain_cursor_of_sqlite_works_in_a_subclass_too(sqlite: Place) -> None:
    class Cursor(sqlite3.Cursor):
        pass

    connection = sqlite3.connect(str(sqlite.engine.url.database))
    Outbox(sqlite.tables).write(connection.cursor(Cursor), [an_event("a")])
    connection.commit()
    connection.close()
    assert sqlite.rows("event_id") == ["a"]
