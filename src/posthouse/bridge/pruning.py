"""Pruning: rows of the outbox that were sent, and rows of the inbox, are deleted when they are old.

They are deleted in slices, each in a transaction of its own. The outbox is walked by id, which
needs no index by time; the walk ends at the first slice with a row that is young, since what comes
behind it is younger.
"""

import asyncio
import time
from collections.abc import Callable

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from posthouse.bridge.database import Database, insert_new, later
from posthouse.bridge.tables import IS_UNSENT, SENT, Tables

WALK_SECONDS = 3_600.0  # after which the outbox is walked from its first row again
DEAD_RELAY_SECONDS = 3_600.0  # after which a relay that has ended is forgotten


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


class Pruner:
    """Prunes the tables of a bridge. Several at a time do no harm."""

    def __init__(
        self, database: Database, tables: Tables, *, keep_sent: float, keep_seen: float, rows: int
    ) -> None:
        """Keeps sent rows and rows of the inbox so many seconds; deletes `rows` at a time."""
        self.pruned = 0
        self._database = database
        self._tables = tables
        self._keep_sent = keep_sent
        self._keep_seen = keep_seen
        self._rows = rows
        self._behind = 0  # up to this id everything was looked at
        self._walked_since = time.monotonic()

    async def prune(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Deletes what is old, until nothing is left or `goes_on` says no; returns how many rows.

        Raises what is in TROUBLE.
        """
        before = self.pruned
        if time.monotonic() - self._walked_since > WALK_SECONDS:
            self._behind, self._walked_since = 0, time.monotonic()
        for prune in (self._prune_outbox, self._prune_inbox):
            is_more = True
            while is_more and goes_on():
                count, is_more = await self._database.run(prune)
                self.pruned += count
                await asyncio.sleep(0)
        await self._database.run(self._prune_relays)
        return self.pruned - before

    async def prune_inbox(self) -> int:
        """Deletes old rows of the inbox alone, for a consumer beside which no relay runs.

        Raises what is in TROUBLE.
        """
        before, is_more = self.pruned, True
        while is_more:
            count, is_more = await self._database.run(self._prune_inbox)
            self.pruned += count
        return self.pruned - before

    def _prune_outbox(self, connection: Connection) -> tuple[int, bool]:
        table = self._tables.outbox
        o = table.c
        walk = (
            sql.select(o.id, o.enqueued_at)
            .where(o.id > self._behind).order_by(o.id).limit(self._rows).subquery("walk")
        )  # fmt: skip
        is_young = walk.c.enqueued_at >= later("keep_us")
        keep = {"keep_us": -_micros(self._keep_sent)}
        last, young = connection.execute(
            sql.select(sql.func.max(walk.c.id), sql.func.count(sql.case((is_young, 1)))), keep
        ).one()
        if last is None:
            return 0, False
        old = table.delete().where(
            o.id > self._behind, o.id <= last, o.status == SENT, o.sent_at < later("keep_us")
        )
        count = connection.execute(old, keep).rowcount
        if young:
            return count, False
        self._behind = last
        return count, True

    def _prune_inbox(self, connection: Connection) -> tuple[int, bool]:
        table = self._tables.inbox
        c = table.c
        keep = {"keep_us": -_micros(self._keep_seen)}
        if connection.dialect.name in ("mysql", "mariadb"):
            old = (
                table.delete().where(c.received_at < later("keep_us"))
                .with_dialect_options(mysql_limit=self._rows, mariadb_limit=self._rows)
            )  # fmt: skip
        else:
            slice_ = (
                sql.select(c.consumer, c.event_id).where(c.received_at < later("keep_us"))
                .order_by(c.received_at).limit(self._rows)
            )  # fmt: skip
            old = table.delete().where(sql.tuple_(c.consumer, c.event_id).in_(slice_))
        count = connection.execute(old, keep).rowcount
        return count, count >= self._rows

    def _prune_relays(self, connection: Connection) -> None:
        relays, lanes, o = self._tables.relays, self._tables.lanes, self._tables.outbox.c
        dead = relays.delete().where(relays.c.until < later("keep_us"))
        connection.execute(dead, {"keep_us": -_micros(DEAD_RELAY_SECONDS)})
        # Rows of lanes that nobody has: a process writes with more lanes than the relays know.
        foreign = sql.select(o.lane).where(
            sql.text(IS_UNSENT), o.lane.not_in(sql.select(lanes.c.lane))
        )
        numbers = connection.scalars(foreign.distinct()).all()
        if numbers:
            rows = [{"lane": number, "owner": "", "token": 0} for number in numbers]
            insert_new(connection, lanes, rows)
