"""Looks into the tables of a bridge, for health and for people, and changes by people."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from posthouse.bridge.database import age, now
from posthouse.bridge.tables import FAILED, IS_UNSENT, PENDING, Tables

ROWS_MAX = 10_000  # that one look returns
COUNT_MAX = 1_000_000  # rows of the inbox beyond which their number is not counted exactly
SLICE = 1_000  # rows that one statement changes


@dataclass(frozen=True)
class Chosen:
    """Which rows of the outbox are meant: by status, type, key and id, all of them together."""

    status: str = ""
    event_type: str = ""
    key: str = ""
    event_ids: Sequence[str] = ()

    def condition(self, table: sql.Table) -> sql.ColumnElement[bool]:
        c = table.c
        wanted: list[sql.ColumnElement[bool]] = [sql.true()]
        if self.status:
            wanted.append(c.status == self.status)
        if self.event_type:
            wanted.append(c.event_type == self.event_type)
        if self.key:
            wanted.append(c.key == self.key)
        if self.event_ids:
            wanted.append(c.event_id.in_(self.event_ids))
        return sql.and_(*wanted)


class Looker:
    """What people and health want to know of the tables, and do to the outbox."""

    def __init__(self, tables: Tables) -> None:
        self._outbox = tables.outbox
        self._lanes = tables.lanes
        self._inbox = tables.inbox

    def outbox(self, connection: Connection) -> dict[str, Any]:
        """Returns how many rows wait or failed, the age of the oldest, and who relays."""
        o, lanes = self._outbox.c, self._lanes.c
        counts: dict[str, int] = {}
        by_status = (
            sql.select(o.status, sql.func.count())
            .select_from(self._outbox)
            .where(sql.text(IS_UNSENT))
            .group_by(o.status)
        )
        for status, count in connection.execute(by_status):
            counts[status] = int(count)
        oldest = connection.scalar(
            sql.select(age(o.enqueued_at))
            .where(sql.text(IS_UNSENT), o.status == PENDING, o.next_at <= now())
            .order_by(o.id)
            .limit(1)
        )
        alive = sql.select(lanes.lane, lanes.owner).where(lanes.until > now(), lanes.owner != "")
        owners = {int(lane): owner for lane, owner in connection.execute(alive)}
        return {
            "pending": counts.get(PENDING, 0), "failed": counts.get(FAILED, 0),
            "oldest_seconds": None if oldest is None else round(float(oldest), 3),
            "lanes": owners, "relays": sorted(set(owners.values())),
        }  # fmt: skip

    def inbox(self, connection: Connection) -> dict[str, Any]:
        """Returns how many events the inbox knows, up to a million, and how many of them failed."""
        c = self._inbox.c
        some = sql.select(c.status).limit(COUNT_MAX).subquery("some")
        by_status = sql.select(some.c.status, sql.func.count()).group_by(some.c.status)
        counts = {status: int(count) for status, count in connection.execute(by_status)}
        return {"rows": sum(counts.values()), "failed": counts.get(FAILED, 0)}

    def outbox_rows(
        self, connection: Connection, chosen: Chosen, limit: int
    ) -> list[dict[str, Any]]:
        """Returns rows of the outbox without their payloads, the oldest first."""
        o = self._outbox.c
        asked = sql.select(
            o.id, o.event_id, o.status, o.event_type, o.key, o.subject, o.lane, o.attempts,
            o.last_error, o.enqueued_at, o.next_at, o.sent_at, o.stream_sequence,
        ).where(chosen.condition(self._outbox))  # fmt: skip
        rows = connection.execute(asked.order_by(o.id).limit(min(limit, ROWS_MAX)))
        return [_shown(row) for row in rows]

    def inbox_rows(
        self, connection: Connection, status: str, consumer: str, limit: int
    ) -> list[dict[str, Any]]:
        """Returns rows of the inbox without payloads, the latest first."""
        c = self._inbox.c
        asked = sql.select(
            c.consumer, c.event_id, c.status, c.event_type, c.subject, c.attempts, c.deliveries,
            c.error, c.received_at, c.processed_at, c.failed_at,
        )  # fmt: skip
        if status:
            asked = asked.where(c.status == status)
        if consumer:
            asked = asked.where(c.consumer == consumer)
        rows = connection.execute(asked.order_by(c.received_at.desc()).limit(min(limit, ROWS_MAX)))
        return [_shown(row) for row in rows]

    def count(self, connection: Connection, chosen: Chosen) -> int:
        """Counts the rows that are pending or failed among those that are chosen."""
        asked = sql.select(sql.func.count()).select_from(self._outbox)
        return int(connection.scalar(asked.where(self._unsent(chosen))) or 0)

    def retry(self, connection: Connection, chosen: Chosen) -> int:
        """Has up to a slice of rows sent again, with no attempts counted; returns how many."""
        ids = self._slice(connection, chosen, sql.or_(self._outbox.c.status == FAILED,
                                                      self._outbox.c.attempts > 0))  # fmt: skip
        if ids:
            change = self._outbox.update().where(self._outbox.c.id.in_(ids))
            connection.execute(
                change.values(status=PENDING, attempts=0, last_error=None, next_at=now())
            )
        return len(ids)

    def drop(self, connection: Connection, chosen: Chosen) -> int:
        """Removes up to a slice of rows that were not sent; returns how many."""
        ids = self._slice(connection, chosen, sql.true())
        if ids:
            connection.execute(self._outbox.delete().where(self._outbox.c.id.in_(ids)))
        return len(ids)

    def _slice(
        self, connection: Connection, chosen: Chosen, more: sql.ColumnElement[bool]
    ) -> list[int]:
        o = self._outbox.c
        asked = sql.select(o.id).where(self._unsent(chosen), more).order_by(o.id).limit(SLICE)
        return list(connection.scalars(asked))

    def _unsent(self, chosen: Chosen) -> sql.ColumnElement[bool]:
        return sql.and_(sql.text(IS_UNSENT), chosen.condition(self._outbox))


def _shown(row: Any) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row._mapping.items()
    }
