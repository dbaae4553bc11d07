"""The inbox: what is delivered again has no second effect."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession

from posthouse.bridge.database import Database
from posthouse.bridge.errors import BridgeError
from posthouse.bridge.inbox import Inbox, InboxEntry, Mode, check_retention, inbox_key
from posthouse.bridge.outbox import Outbox
from posthouse.bridge.tables import Tables
from tests.bridge.database.places import Place, an_event
from tests.waiting import until_async

ASYNC = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


def an_entry(id: str, sequence: int = 1, **fields: Any) -> InboxEntry:
    return InboxEntry(id, "shop", sequence, **fields)


def an_inbox(
    database: Database, place: Place, consumer: str = "c", mode: Mode = "transactional"
) -> Inbox:
    return Inbox(database, place.tables, consumer, mode=mode)


async def write(session: Any, place: Place, id: str) -> None:
    """An effect of a handler: a row, which the outbox stands for."""
    Outbox(place.tables).write(session, [an_event(id)])


@ASYNC
async def test_an_event_has_its_effect_once(place: Place, is_async: bool) -> None:
    async with place.database(is_async=is_async) as database:
        inbox = an_inbox(database, place)
        for number in (1, 2, 3):
            async with inbox.handling(an_entry("a", deliveries=number)) as work:
                assert work.is_new == (number == 1)
                assert isinstance(work.session, AsyncSession) == is_async
                if work.is_new:
                    await write(work.session, place, "effect")
    assert place.rows("event_id") == ["effect"]
    assert place.seen("event_id", "status", "attempts") == [("a", "processed", 1)]


@ASYNC
async def test_a_failure_rolls_all_back_and_is_noted(place: Place, is_async: bool) -> None:
    async with place.database(is_async=is_async) as database:
        inbox = an_inbox(database, place)

        async def fail(number: int) -> None:
            async with inbox.handling(an_entry("a", deliveries=number)) as work:
                assert work.is_new, "what has failed is new again"
                await write(work.session, place, "effect")
                raise KeyError("missing\nand a second line")

        for number in (1, 2):
            with pytest.raises(KeyError):
                await fail(number)
        assert place.rows("event_id") == []
        [(status, attempts, error)] = place.seen("status", "attempts", "error")
        assert (status, attempts) == ("failed", 2)
        assert error.startswith("KeyError: ")
        async with inbox.handling(an_entry("a", deliveries=3)) as work:
            assert work.is_new
            await write(work.session, place, "effect")
    assert place.rows("event_id") == ["effect"]
    fields = "status", "attempts", "deliveries", "error"
    assert place.seen(*fields) == [("processed", 3, 3, None)]


@ASYNC
async def test_a_concurrent_duplicate_waits_and_is_found_to_be_one(
    place: Place, is_async: bool
) -> None:
    async with place.database(is_async=is_async) as database:
        inbox, begun, results = an_inbox(database, place), asyncio.Event(), []

        async def handle(name: str) -> None:
            async with inbox.handling(an_entry("a")) as work:
                results.append((name, work.is_new))
                if work.is_new:
                    begun.set()
                    await write(work.session, place, f"effect of {name}")
                    await until_async(lambda: second is not None, "the second begins")

        second: asyncio.Task[None] | None = None
        first = asyncio.create_task(handle("first"))
        await begun.wait()
        second = asyncio.create_task(handle("second"))
        await asyncio.gather(first, second)
    assert results == [("first", True), ("second", False)]
    assert place.rows("event_id") == ["effect of first"]


async def test_a_duplicate_handles_the_event_when_the_first_one_fails(place: Place) -> None:
    async with place.database() as database:
        inbox, begun = an_inbox(database, place), asyncio.Event()

        async def fail() -> None:
            async with inbox.handling(an_entry("a")):
                begun.set()
                raise KeyError

        failing = asyncio.create_task(fail())
        await begun.wait()
        async with inbox.handling(an_entry("a")) as work:
            assert work.is_new
            await write(work.session, place, "effect")
        with pytest.raises(KeyError):
            await failing
    assert place.rows("event_id") == ["effect"]
    assert place.seen("status") == ["processed"], "the failure does not undo what was done"


@ASYNC
async def test_a_batch_is_one_transaction_with_a_state_for_each(
    place: Place, is_async: bool
) -> None:
    async with place.database(is_async=is_async) as database:
        inbox = an_inbox(database, place)
        async with inbox.handling(an_entry("b")):
            pass
        entries = [an_entry(id, at) for at, id in enumerate("abacb")]

        async def fail() -> None:
            async with inbox.handling_many(entries) as work:
                await write(work.session, place, "rolled back")
                raise KeyError

        with pytest.raises(KeyError):
            await fail()
        assert place.seen("event_id") == ["b"], "who failed among them is not known"
        async with inbox.handling_many(entries) as work:
            assert list(work.states) == ["new", "seen", "seen", "new", "seen"]
            await write(work.session, place, "effect")
    assert place.rows("event_id") == ["effect"]
    assert place.seen("event_id", "stream_sequence") == [("a", 0), ("b", 1), ("c", 3)]


async def test_consumers_on_one_database_do_not_take_each_others_events(place: Place) -> None:
    async with place.database() as database:
        for consumer in ("worker", "mailer"):
            async with an_inbox(database, place, consumer).handling(an_entry("a")) as work:
                assert work.is_new


async def test_an_event_without_an_id_is_known_by_its_place(place: Place) -> None:
    async with place.database() as database:
        inbox = an_inbox(database, place)
        for sequence, is_new in ((1, True), (2, True), (1, False)):
            async with inbox.handling(an_entry("", sequence)) as work:
                assert work.is_new == is_new


async def test_a_stream_that_was_made_anew_does_not_make_its_events_seen(place: Place) -> None:
    """Its numbers begin anew, and events with ids are known by these."""
    async with place.database() as database:
        inbox = an_inbox(database, place)
        for id in ("a", "b"):
            async with inbox.handling(an_entry(id, 1)) as work:
                assert work.is_new


@pytest.mark.parametrize(
    "ids", [("a", "A"), ("a", "a "), ("e", "\u00e9"), ("x" * 300, "x" * 301), ("a", "a\0")]
)
async def test_ids_are_compared_byte_by_byte(place: Place, ids: tuple[str, str]) -> None:
    async with place.database() as database:
        inbox = an_inbox(database, place)
        for id in ids:
            async with inbox.handling(an_entry(id)) as work:
                assert work.is_new, id
    assert inbox_key("order-1", "s", 1) == "order-1"


@ASYNC
async def test_who_marks_has_no_session_and_its_crash_runs_the_handler_again(
    place: Place, is_async: bool
) -> None:
    async with place.database(is_async=is_async) as database:
        inbox = an_inbox(database, place, mode="marked")
        async with inbox.handling(an_entry("a")) as work:
            assert work.is_new
            assert work.session is None
            assert place.seen("status") == ["processing"], "it is committed before the handler"
            async with inbox.handling(an_entry("a")) as other:
                assert not other.is_new
                assert other.is_busy, "another is at it, so it must not be acknowledged"
        assert place.seen("status", "lease_until") == [("processed", None)]
        async with inbox.handling(an_entry("a")) as work:
            assert not work.is_new
            assert not work.is_busy
        crashed = {"status": "processing", "lease_until": sql.func.current_timestamp()}
        place.do(place.tables.inbox.update().values(**crashed))
        await asyncio.sleep(1.1)  # slept: the lease is over a second that the database tells
        async with inbox.handling(an_entry("a")) as work:
            assert work.is_new


async def test_a_failure_in_marked_mode_is_noted_once(place: Place) -> None:
    async with place.database() as database:
        inbox = an_inbox(database, place, mode="marked")
        with pytest.raises(KeyError):
            async with inbox.handling(an_entry("a")):
                raise KeyError
    assert place.seen("status", "attempts", "error") == [("failed", 1, "KeyError")]


async def test_without_an_inbox_every_delivery_is_handled_and_committed(sqlite: Place) -> None:
    async with sqlite.database() as database:
        inbox = an_inbox(database, sqlite, mode="off")
        for id in ("one", "two"):
            async with inbox.handling(an_entry("a")) as work:
                assert work.is_new
                await write(work.session, sqlite, id)
    assert sqlite.rows("event_id") == ["one", "two"]
    assert sqlite.seen("event_id") == []


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction_is_told(sqlite: Place, how: str) -> None:
    async with sqlite.database() as database:
        with pytest.raises(BridgeError, match="Leave commit and rollback to the bridge"):
            async with an_inbox(database, sqlite).handling(an_entry("a")) as work:
                await getattr(work.session, how)()


async def test_a_cancelled_handler_leaves_nothing(place: Place) -> None:
    async with place.database() as database:
        inbox, begun = an_inbox(database, place), asyncio.Event()

        async def handle() -> None:
            async with inbox.handling(an_entry("a")) as work:
                await write(work.session, place, "effect")
                begun.set()
                await asyncio.Event().wait()

        handling = asyncio.create_task(handle())
        await begun.wait()
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling
        async with inbox.handling(an_entry("a")) as work:
            assert work.is_new
    assert place.rows("event_id") == []


async def test_a_payload_is_kept_where_the_table_has_a_column_for_it(place: Place) -> None:
    place.tables = Tables.make(sql.MetaData(), prefix="kept_", keep_payload=True)
    with place.engine.begin() as connection:
        place.tables.create(connection)
    async with place.database() as database:
        entry = an_entry("a", payload=b"\x00\xff", headers={"x": "y"})
        async with an_inbox(database, place).handling(entry):
            pass
    assert place.seen("payload", "headers") == [(b"\x00\xff", {"x": "y"})]


def test_an_inbox_that_forgets_before_the_last_duplicate_is_told() -> None:
    assert check_retention(7 * 86_400, 3_600) == ""
    assert "would be handled again" in check_retention(3_600, 86_400)
