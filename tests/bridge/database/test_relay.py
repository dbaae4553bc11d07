"""The relay: what was committed is sent, in the order of each key, whatever happens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sql

from posthouse.bridge.database import Database, Moment, now
from posthouse.bridge.outbox import Outbox
from posthouse.bridge.relay import Relay, RelaySettings
from posthouse.bridge.views import drop, outbox_lines, outbox_state, retry
from tests.bridge.database.places import Place, RecordingTransport, an_event
from tests.waiting import until_async

QUICK: dict[str, Any] = {"poll_seconds": 0.01, "poll_seconds_max": 0.05, "renew_seconds": 0.1}


async def write(place: Place, *ids: str, **fields: Any) -> None:
    """Commits events, in a thread: a relay on this loop may be in a transaction."""
    rows = [an_event(id, **fields) for id in ids]

    def work() -> None:
        with place.engine.begin() as connection:
            Outbox(place.tables).write(connection, rows)

    await asyncio.to_thread(work)


@asynccontextmanager
async def relaying(
    database: Database, place: Place, transport: RecordingTransport, **settings: Any
) -> AsyncIterator[Relay]:
    relay = Relay(database, place.tables, transport, RelaySettings(**{**QUICK, **settings}))  # type: ignore[arg-type]
    running = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        await relay.stop()
        await asyncio.wait([running])
        running.result()


async def test_committed_events_are_sent_with_their_number_and_marked(place: Place) -> None:
    transport = RecordingTransport()
    async with place.database() as database:
        await write(place, *(f"a{number}" for number in range(30)), key="a", headers={"x": "y"})
        await write(place, *(f"b{number}" for number in range(30)))
        async with relaying(database, place, transport, batch_rows=20) as relay:
            await relay.settle()
            assert relay.figures.relayed == 60
    assert [id for id in transport.ids if id[0] == "a"] == [f"a{number}" for number in range(30)]
    assert len(transport.ids) == 60
    assert transport.at_once == 1, "of a key the next is sent when the last was stored"
    assert transport.events[0].headers == {"x": "y", "x-event-sequence": "1"}
    assert set(place.rows("status")) == {"sent"}
    places = {event.id: at for at, event in enumerate(transport.events, 1)}
    assert place.rows("stream_sequence") == [places[id] for id in place.rows("event_id")]


async def test_a_relay_of_a_synchronous_engine_does_the_same(place: Place) -> None:
    transport = RecordingTransport()
    async with place.database(is_async=False) as database:
        await write(place, "a", "b", key="k")
        async with relaying(database, place, transport) as relay:
            await relay.settle()
    assert transport.ids == ["a", "b"]
    assert place.rows("status") == ["sent", "sent"]


async def test_an_event_that_is_committed_behind_later_ones_is_sent(place: Place) -> None:
    """Its id is lower than theirs, so it is not found behind the last one seen."""
    if place.kind == "sqlite":
        return  # it has one writer at a time
    transport = RecordingTransport()
    async with place.database() as database, relaying(database, place, transport) as relay:
        with place.engine.begin() as late:
            Outbox(place.tables).write(late, [an_event("late")])
            await write(place, "early")
            await until_async(lambda: transport.ids == ["early"], "the later one is sent")
        await until_async(lambda: transport.ids == ["early", "late"], "the late one is sent")
        await relay.settle()


async def test_a_commit_wakes_a_relay_that_looks_seldom(place: Place) -> None:
    transport = RecordingTransport()
    async with place.database() as database:
        slow = {"poll_seconds": 3_000.0, "poll_seconds_max": 3_000.0}
        async with relaying(database, place, transport, **slow) as relay:
            await until_async(lambda: relay.figures.reads > 1, "it looks for the first time")
            outbox = Outbox(place.tables, wake=relay.wake)
            async with place.async_engine() as engine:
                async with engine.begin() as connection:
                    outbox.write(connection, [an_event("a")])
                await until_async(lambda: transport.ids == ["a"], "it is sent")
                async with engine.begin() as connection:
                    outbox.write(connection, [an_event("b")])
                await until_async(lambda: transport.ids == ["a", "b"], "so is the next")


async def test_while_the_transport_is_away_nothing_is_lost_or_counted(place: Place) -> None:
    transport = RecordingTransport()
    transport.is_down = True
    async with place.database() as database:
        await write(place, "a", "b", key="k")
        quick = {"retry_seconds": 0.001, "retry_seconds_max": 0.01}
        async with relaying(database, place, transport, attempts_max=1, **quick) as relay:
            await until_async(lambda: transport.calls > 5, "it is tried again")
            figures = relay.figures
            assert figures.transport_down_since
            assert place.rows("status", "attempts") == [("pending", 0), ("pending", 0)]
            transport.is_down = False
            await relay.settle()
            assert not relay.figures.transport_down_since
    assert transport.ids == ["a", "b"]


async def test_a_refused_event_is_tried_again_then_failed_and_its_key_goes_on(
    place: Place,
) -> None:
    transport = RecordingTransport()
    transport.refused = {"bad"}
    async with place.database() as database:
        await write(place, "bad", "good", key="k")
        async with relaying(database, place, transport, attempts_max=2) as relay:
            await relay.settle()
            assert transport.ids == ["good"]
            [(status, attempts, error, _, waits)] = [
                row for row in place.rows("status", "attempts", "last_error", "event_id", "next_at")
                if row[3] == "bad"
            ]  # fmt: skip
            assert (status, attempts, error) == ("pending", 1, "nobody may publish this")
            with place.engine.connect() as connection:
                assert waits > connection.scalar(sql.select(now()))
            await place.change(
                place.tables.outbox.update().values(next_at=now()).where(sql.text("attempts > 0"))
            )
            await relay.settle()
            assert place.rows("status", "attempts") == [("failed", 2), ("sent", 0)]
            assert (relay.figures.refused, relay.figures.failed) == (2, 1)
            # A person lets it go on.
            transport.refused = set()
            assert await database.run(lambda c: retry(c, place.tables, ["bad"])) == 1
            await relay.settle()
    assert transport.ids == ["good", "bad"]


async def test_in_strict_order_a_key_waits_for_a_person(place: Place) -> None:
    transport = RecordingTransport()
    transport.refused = {"bad"}
    async with place.database() as database:
        await write(place, "bad", "good", key="k")
        await write(place, "other", key="l")
        strict = {"attempts_max": 1, "strict_order": True}
        async with relaying(database, place, transport, **strict) as relay:
            await until_async(lambda: "failed" in place.rows("status"), "it is failed")
            await write(place, "later", key="k")
            await until_async(lambda: relay.figures.reads > 10, "the relay looks again")
            assert transport.ids == ["other"]
            assert await database.run(lambda c: drop(c, place.tables)) == 1
            await relay.settle()
    assert transport.ids == ["other", "good", "later"]


async def test_relays_share_the_lanes_and_take_over_those_of_a_dead_one(place: Place) -> None:
    one, other = RecordingTransport(), RecordingTransport()
    short = {"lease_seconds": 1.0, "margin_seconds": 0.2}
    async with place.database() as database, place.database() as far:
        relay = Relay(far, place.tables, other, RelaySettings(**{**QUICK, **short}))  # type: ignore[arg-type]
        dying = asyncio.create_task(relay.run())
        async with relaying(database, place, one, **short) as living:
            await until_async(lambda: len(living.figures.lanes) == 8, "the lanes are shared")
            await until_async(lambda: len(relay.figures.lanes) == 8, "by both")
            assert set(living.figures.lanes).isdisjoint(relay.figures.lanes)
            await write(place, *(str(number) for number in range(100)))
            await living.settle()
            assert len(one.ids) > 10
            assert len(other.ids) > 10
            assert not set(one.ids) & set(other.ids)
            dying.cancel()  # it gives nothing back
            await asyncio.wait([dying])
            await until_async(lambda: len(living.figures.lanes) == 16, "its lanes are taken over")


async def test_a_relay_that_stops_gives_its_lanes_back_at_once(place: Place) -> None:
    transport = RecordingTransport()
    long = {"lease_seconds": 3_000.0}
    async with place.database() as database:
        for _ in range(2):
            async with relaying(database, place, transport, **long) as relay:
                await until_async(lambda: len(relay.figures.lanes) == 16, "it has all lanes")
                with place.engine.connect() as connection:
                    state = outbox_state(connection, place.tables)
                assert state.relays == [relay.name]
                assert set(state.lanes.values()) == {relay.name}
        with place.engine.connect() as connection:
            assert outbox_state(connection, place.tables).relays == []


async def test_a_relay_without_its_database_sends_nothing_after_its_lease(place: Place) -> None:
    """Another may have its lanes by then."""
    transport = RecordingTransport()
    transport.gate.clear()
    short = {"lease_seconds": 0.5, "margin_seconds": 0.1}
    async with place.database() as database:
        await write(place, "a", "b", key="k")
        async with relaying(database, place, transport, **short) as relay:
            await until_async(lambda: transport.calls == 1, "the first is in flight")
            await place.change(sql.text("ALTER TABLE posthouse_outbox_lanes RENAME TO away"))
            await until_async(lambda: not relay._leases.usable, "its lease is over")
            transport.gate.set()
            await until_async(lambda: transport.ids == ["a"], "what was in flight is stored")
            assert transport.calls == 1, "the next of the key is not sent"
            await place.change(sql.text("ALTER TABLE away RENAME TO posthouse_outbox_lanes"))
            await relay.settle()
    assert transport.ids == ["a", "b"]


async def test_a_relay_marks_nothing_in_a_lane_that_another_has_taken(place: Place) -> None:
    transport = RecordingTransport()
    transport.gate.clear()
    async with place.database() as database:
        await write(place, "a", key="k")
        async with relaying(database, place, transport, renew_seconds=3_000.0):
            await until_async(lambda: transport.calls == 1, "it is in flight")
            lanes = place.tables.lanes
            taken = lanes.update().values(owner="other", token=lanes.c.token + 1)
            await place.change(taken)
            transport.gate.set()
            await until_async(lambda: transport.ids == ["a"], "it is stored")
    assert place.rows("status") == ["pending"], "the other sends it again, with the same id"


async def test_sent_rows_are_deleted_where_that_is_set(place: Place) -> None:
    transport = RecordingTransport()
    async with place.database() as database:
        await write(place, "a", "b")
        async with relaying(database, place, transport, delete_sent=True) as relay:
            await relay.settle()
    assert place.rows("id") == []


async def test_old_rows_are_pruned_and_young_pending_and_failed_ones_stay(place: Place) -> None:
    transport = RecordingTransport()
    transport.refused = {"bad"}
    outbox = place.tables.outbox
    async with place.database() as database:
        await write(place, *(str(number) for number in range(25)), "bad")
        pruning = {"prune_rows": 10, "prune_seconds": 0.02, "attempts_max": 1}
        async with relaying(database, place, transport, **pruning) as relay:
            await relay.settle()
            await until_async(lambda: "failed" in place.rows("status"), "one is failed")
            assert len(place.rows("id")) == 26
            old = sql.literal(datetime(2020, 1, 1, tzinfo=UTC), Moment())
            await place.change(
                outbox.update().values(sent_at=old, enqueued_at=old).where(outbox.c.id <= 26)
            )
            await write(place, "young")
            await until_async(lambda: place.rows("event_id") == ["bad", "young"], "they are pruned")
            await until_async(lambda: relay.figures.pruned == 25, "they are counted")


async def test_rows_of_more_lanes_than_the_relay_was_told_of_are_sent(place: Place) -> None:
    transport = RecordingTransport()
    async with place.database() as database:
        with place.engine.begin() as connection:
            wide = Outbox(place.tables, lanes=64)
            wide.write(connection, [an_event(str(number)) for number in range(100)])
        async with relaying(database, place, transport, prune_seconds=0.05):
            await until_async(lambda: len(transport.ids) == 100, "all of them are sent")


async def test_a_relay_outlives_its_connections(place: Place) -> None:
    if place.server is None:
        return
    transport = RecordingTransport()
    async with place.database() as database, relaying(database, place, transport):
        for round in range(3):
            await write(place, f"before {round}", f"behind {round}", key="k")
            await asyncio.to_thread(place.cut_connections)
        await until_async(lambda: len(set(transport.ids)) == 6, "all are sent")
    assert transport.ids == [
        f"{name} {round}" for round in range(3) for name in ("before", "behind")
    ]


async def test_the_outbox_can_be_looked_into(place: Place) -> None:
    await write(place, "a", key="k", event_type="order.created")
    with place.engine.connect() as connection:
        state = outbox_state(connection, place.tables)
        [line] = outbox_lines(connection, place.tables, status="pending")
    assert (state.pending, state.failed, state.relays) == (1, 0, [])
    assert state.oldest_seconds is not None
    assert 0 <= state.oldest_seconds < 600
    assert (line.event_id, line.event_type, line.key) == ("a", "order.created", "k")
