"""The statements of relays about the rows of an outbox, and of people who look into it."""

import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from posthouse.bridge.database import (
    ERROR_CHARS_MAX,
    age,
    as_json,
    later,
    literal,
    now,
    numbers_of,
    texts_of,
)
from posthouse.bridge.errors import PublishFailed
from posthouse.bridge.sending import Pending
from posthouse.bridge.tables import FAILED, IS_REFUSED, IS_UNSENT, PENDING, SENT, Tables

REFUSED_SECONDS = 2.0  # until a row is tried again that was refused once; then twice as long
REFUSED_SECONDS_MAX = 300.0


class OutboxRows:
    """The outbox as the relay `me` reads and marks it."""

    def __init__(self, tables: Tables, dialect: str, me: str) -> None:
        self._outbox = tables.outbox
        self._lanes = tables.lanes
        self._dialect = dialect
        self._me = me

    def read(
        self,
        connection: Connection,
        tokens: Mapping[int, int],
        lanes: Sequence[int],
        known: Sequence[int],
        held_keys: Sequence[str],
        limit: int,
    ) -> list[Pending]:
        """Reads the rows that are to be sent now, but for those that are known."""
        o = self._outbox.c
        asked = sql.select(
            o.id, o.event_id, o.lane, o.key, o.subject, o.payload, o.headers, o.attempts,
            age(o.enqueued_at).label("age"),
        ).where(
            sql.text(IS_UNSENT), o.status == literal(PENDING), o.lane.in_(lanes),
            o.next_at <= now(),
        )  # fmt: skip
        given: dict[str, object] = {}
        if known:
            asked = asked.where(
                o.id.not_in(sql.select(numbers_of("known", self._dialect, "known").c.known))
            )
            given["known"] = as_json([number] for number in known)
        if held_keys:
            keys = texts_of("held", self._dialect).c.item
            asked = asked.where(sql.or_(o.attempts > 0, o.key.not_in(sql.select(keys))))
            given["held"] = as_json(held_keys)
        rows = connection.execute(asked.order_by(o.id).limit(limit), given).all()
        at = time.monotonic()
        return [
            Pending(
                row.id, row.event_id, row.lane, tokens[row.lane], row.key, row.subject,
                row.payload, row.headers, row.attempts, at - row.age,
            )
            for row in rows
        ]  # fmt: skip

    def held_keys(self, connection: Connection, lanes: Sequence[int]) -> list[str]:
        """Returns the keys that a refused or failed row holds up."""
        o = self._outbox.c
        asked = sql.select(o.key).where(
            sql.text(IS_REFUSED), sql.text(IS_UNSENT), o.key != "", o.lane.in_(lanes)
        )
        return list(connection.scalars(asked.distinct()))

    def mark(
        self, connection: Connection, stored: Sequence[tuple[Pending, int]], *, delete: bool
    ) -> None:
        """Marks rows as sent, or deletes them, where their lane is still held."""
        rows = as_json([row.id, sequence, row.lane, row.token] for row, sequence in stored)
        given = numbers_of("rows", self._dialect, "row_id", "place", "lane_number", "lane_token")
        lanes = self._lanes.c
        mine = sql.and_(
            lanes.lane == given.c.lane_number, lanes.token == given.c.lane_token,
            lanes.owner == self._me,
        )  # fmt: skip
        held = sql.select(given.c.row_id, given.c.place).join(self._lanes, mine).subquery("held")
        if delete:
            gone = self._outbox.delete().where(self._outbox.c.id.in_(sql.select(held.c.row_id)))
            connection.execute(gone, {"rows": rows})
            return
        change = self._outbox.update().where(self._outbox.c.id == held.c.row_id)
        marked = change.values(status=SENT, sent_at=now(), stream_sequence=held.c.place)
        connection.execute(marked, {"rows": rows})

    def refuse(
        self,
        connection: Connection,
        refused: Sequence[tuple[Pending, PublishFailed]],
        attempts_max: int,
    ) -> None:
        """Notes the refusals of rows: they are tried again later, or failed."""
        o, lanes = self._outbox.c, self._lanes.c
        held = sql.exists().where(
            lanes.lane == o.lane, lanes.owner == self._me, lanes.token == sql.bindparam("token")
        )
        change = self._outbox.update().where(o.id == sql.bindparam("row"), held)
        for row, failure in refused:
            attempts = row.attempts + 1
            seconds = min(REFUSED_SECONDS * 2.0 ** min(row.attempts, 30), REFUSED_SECONDS_MAX)
            values = change.values(
                attempts=attempts, last_error=str(failure)[:ERROR_CHARS_MAX],
                status=FAILED if attempts >= attempts_max else PENDING, next_at=later("later_us"),
            )  # fmt: skip
            given = {"row": row.id, "token": row.token, "later_us": round(seconds * 1_000_000)}
            connection.execute(values, given)

    def count_due(self, connection: Connection) -> int:
        """Counts the rows of all lanes that are to be sent now."""
        o = self._outbox.c
        due = sql.select(sql.func.count()).where(
            sql.text(IS_UNSENT), o.status == literal(PENDING), o.next_at <= now()
        )
        return int(connection.scalar(due.select_from(self._outbox)) or 0)
