"""Looks into the tables of a bridge, and the changes that people make there, for health and CLI.

Each function takes a connection: `await database.run(lambda connection: outbox_state(...))`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from posthouse.bridge.database import age, literal, now
from posthouse.bridge.tables import FAILED, IS_REFUSED, IS_UNSENT, PENDING, PROCESSING, Tables

ROWS_MAX = 1_000  # that are listed at once


@dataclass(frozen=True, slots=True)
class OutboxState:
    """How an outbox is."""

    pending: int
    failed: int
    oldest_seconds: float | None  # the age of the oldest pending row; None: nothing is due
    lanes: dict[int, str]  # and the relay that has each; "": nobody
    relays: list[str]  # that are alive


@dataclass(frozen=True, slots=True)
class InboxState:
    """How an inbox is, of all consumers."""

    rows: int
    processing: int
    failed: int


@dataclass(frozen=True, slots=True)
class OutboxLine:
    """A row of the outbox, without its payload."""

    id: int
    event_id: str
    event_type: str
    subject: str
    key: str
    status: str
    attempts: int
    last_error: str
    enqueued_at: datetime
    next_at: datetime
    sent_at: datetime | None


@dataclass(frozen=True, slots=True)
class InboxLine:
    """A row of the inbox, without its payload."""

    consumer: str
    event_id: str
    event_type: str
    status: str
    attempts: int
    deliveries: int
    error: str
    received_at: datetime
    processed_at: datetime | None
    stream: str
    stream_sequence: int


def outbox_state(connection: Connection, tables: Tables) -> OutboxState:
    o, lanes, relays = tables.outbox.c, tables.lanes.c, tables.relays.c
    is_pending = sql.and_(sql.text(IS_UNSENT), o.status == literal(PENDING))
    pending = connection.scalar(
        sql.select(sql.func.count()).select_from(tables.outbox).where(is_pending)
    )
    failed = connection.scalar(
        sql.select(sql.func.count())
        .select_from(tables.outbox)
        .where(sql.text(IS_UNSENT), o.status == literal(FAILED))
    )
    # Rows are about as old as their ids, so the first is the oldest.
    oldest = connection.scalar(
        sql.select(age(o.enqueued_at)).where(is_pending, o.next_at <= now()).order_by(o.id).limit(1)
    )
    owner = sql.case((lanes.until >= now(), lanes.owner), else_="")
    held = connection.execute(sql.select(lanes.lane, owner.label("owner")).order_by(lanes.lane))
    alive = connection.scalars(
        sql.select(relays.relay).where(relays.until >= now()).order_by(relays.relay)
    )
    return OutboxState(
        pending or 0, failed or 0, None if oldest is None else max(0.0, float(oldest)),
        {row.lane: row.owner for row in held}, list(alive),
    )  # fmt: skip


def inbox_state(connection: Connection, tables: Tables) -> InboxState:
    i = tables.inbox.c
    asked = sql.select(i.status, sql.func.count()).group_by(i.status)
    counted: dict[str, int] = {row[0]: row[1] for row in connection.execute(asked)}
    return InboxState(sum(counted.values()), counted.get(PROCESSING, 0), counted.get(FAILED, 0))


def outbox_lines(
    connection: Connection, tables: Tables, *, status: str = "", limit: int = 100
) -> list[OutboxLine]:
    """Returns rows in the order of their ids, those of one status if it is given."""
    o = tables.outbox.c
    asked = sql.select(
        o.id, o.event_id, o.event_type, o.subject, o.key, o.status, o.attempts, o.last_error,
        o.enqueued_at, o.next_at, o.sent_at,
    )  # fmt: skip
    if status:
        asked = asked.where(o.status == status)
    rows = connection.execute(asked.order_by(o.id).limit(min(limit, ROWS_MAX)))
    return [
        OutboxLine(
            row.id, row.event_id, row.event_type, row.subject, row.key, row.status, row.attempts,
            row.last_error or "", row.enqueued_at, row.next_at, row.sent_at,
        )
        for row in rows
    ]  # fmt: skip


def inbox_lines(
    connection: Connection,
    tables: Tables,
    *,
    consumer: str = "",
    status: str = "",
    limit: int = 100,
) -> list[InboxLine]:
    """Returns rows, the last received first."""
    i = tables.inbox.c
    asked = sql.select(
        i.consumer, i.event_id, i.event_type, i.status, i.attempts, i.deliveries, i.error,
        i.received_at, i.processed_at, i.stream, i.stream_sequence,
    )  # fmt: skip
    if consumer:
        asked = asked.where(i.consumer == consumer)
    if status:
        asked = asked.where(i.status == status)
    rows = connection.execute(asked.order_by(i.received_at.desc()).limit(min(limit, ROWS_MAX)))
    return [
        InboxLine(
            row.consumer, row.event_id, row.event_type, row.status, row.attempts, row.deliveries,
            row.error or "", row.received_at, row.processed_at, row.stream, row.stream_sequence,
        )
        for row in rows
    ]  # fmt: skip


def retry(connection: Connection, tables: Tables, event_ids: Sequence[str] | None = None) -> int:
    """Lets refused and failed rows be sent again at once, all or these; returns how many."""
    change = tables.outbox.update().where(*_refused(tables, event_ids))
    return connection.execute(change.values(status=PENDING, attempts=0, next_at=now())).rowcount


def drop(connection: Connection, tables: Tables, event_ids: Sequence[str] | None = None) -> int:
    """Deletes refused and failed rows, all or these, which are never sent; returns how many."""
    return connection.execute(tables.outbox.delete().where(*_refused(tables, event_ids))).rowcount


def count_refused(connection: Connection, tables: Tables) -> int:
    """Counts the rows that `retry` and `drop` would change."""
    asked = sql.select(sql.func.count()).select_from(tables.outbox).where(*_refused(tables, None))
    return int(connection.scalar(asked) or 0)


def _refused(
    tables: Tables, event_ids: Sequence[str] | None
) -> list["sql.ColumnElement[bool] | sql.TextClause"]:
    conditions: list[sql.ColumnElement[bool] | sql.TextClause] = [
        sql.text(IS_REFUSED), sql.text(IS_UNSENT),
    ]  # fmt: skip
    if event_ids is not None:
        conditions.append(tables.outbox.c.event_id.in_(event_ids))
    return conditions
