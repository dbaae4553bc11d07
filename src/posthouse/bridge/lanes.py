"""Lanes: how relays divide the events of an outbox.

A lane is the hash of a key, and one relay at a time holds it, by a lease on the database's clock.
`divide` is the rule: relays that are alive have equal shares; who has too many gives lanes back,
when nothing of them is in flight, and who has too few takes those that nobody holds. A lane's token
is one higher with each owner, so what an earlier one still does to its rows has no effect.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from posthouse.bridge.database import Database, age, insert_new, later, now
from posthouse.bridge.tables import Tables

BEHIND_SECONDS = 0.05  # behind the end of another's lease its lanes are looked at
LEAVING_SECONDS = 0.25  # until lanes are looked at again that are to be given back
LACKING_SECONDS = 1.0  # the same, while others are to give some back


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as the database has it."""

    number: int
    owner: str
    token: int
    is_over: bool  # its lease has ended, by the database's clock


@dataclass(frozen=True, slots=True)
class Division:
    """The lanes that a relay takes, renews and gives up."""

    keep: frozenset[int]  # renews
    leave: frozenset[int]  # of these: sends nothing more of them, and gives them back when it can
    take: frozenset[int]
    release: frozenset[int]


def divide(
    lanes: Sequence[Lane], me: str, relays: Collection[str], in_flight: Collection[int]
) -> Division:
    """Returns what a relay does, with `relays` alive and rows of the lanes `in_flight` sent."""
    alive = sorted({*relays, me})
    share, rest = divmod(len(lanes), len(alive))
    share += alive.index(me) < rest
    mine = sorted(lane.number for lane in lanes if lane.owner == me)
    free = sorted(lane.number for lane in lanes if lane.owner != me and lane.is_over)
    given = frozenset(mine[share:])
    leave = given & frozenset(in_flight)
    return Division(
        keep=frozenset(mine) - given | leave,
        leave=leave,
        take=frozenset(free[: max(0, share - len(mine))]),
        release=given - leave,
    )


class Leases:
    """The lanes that a relay holds, and until when it may act on them."""

    def __init__(
        self, database: Database, tables: Tables, me: str, *, lanes: int, seconds: float,
        margin: float,
    ) -> None:  # fmt: skip
        self.me = me
        self.tokens: Mapping[int, int] = {}  # by lane; of those that are held
        self._leaving: frozenset[int] = frozenset()
        self._until = 0.0  # of the monotonic clock
        self._soonest = seconds  # from the last renewal until the next one has something to do
        self._database = database
        self._tables = tables
        self._lanes = lanes
        self._seconds = seconds
        self._margin = margin

    @property
    def usable(self) -> list[int]:
        """The lanes whose rows may be sent now."""
        if time.monotonic() >= self._until:
            return []
        return sorted(lane for lane in self.tokens if lane not in self._leaving)

    def may_send(self, lane: int, token: int) -> bool:
        return self.tokens.get(lane) == token and time.monotonic() < self._until

    def next_renewal(self, seconds: float) -> float:
        """Returns the seconds until the next renewal, at most so many."""
        return min(seconds, self._soonest)

    async def renew(self, in_flight: Collection[int]) -> None:
        """Renews the leases, takes and gives back lanes. Raises what is in TROUBLE."""
        begun = time.monotonic()
        tokens, leaving, self._soonest = await self._database.run(
            lambda connection: self._renew(connection, frozenset(in_flight))
        )
        # The lease is counted from before the database was asked, so it ends here first.
        self.tokens, self._leaving = tokens, leaving
        self._until = begun + self._seconds - self._margin

    async def release(self) -> None:
        """Gives all lanes back. Raises what is in TROUBLE."""
        self.tokens = {}
        await self._database.run(self._release)

    def _renew(
        self, connection: Connection, in_flight: frozenset[int]
    ) -> tuple[dict[int, int], frozenset[int], float]:
        # The first statement writes, so that SQLite locks its file, and others wait, from here on.
        self._tell_alive(connection)
        lanes = self._read(connection)
        missing = set(range(self._lanes)) - {lane.number for lane in lanes}
        if missing:
            rows = [{"lane": number, "owner": "", "token": 0} for number in sorted(missing)]
            insert_new(connection, self._tables.lanes, rows)
            lanes = self._read(connection)
        others, soonest = self._others(connection)
        division = divide(lanes, self.me, others, in_flight)
        table, until = self._tables.lanes, later(self._micros)
        self._change(connection, division.keep, until=until)
        self._change(connection, division.release, owner="", until=now())
        self._change(connection, division.take, owner=self.me, token=table.c.token + 1, until=until)
        tokens = {
            lane.number: lane.token + (lane.number in division.take)
            for lane in lanes
            if lane.number in division.keep or lane.number in division.take
        }
        if division.leave:
            soonest = min(soonest, LEAVING_SECONDS)
        elif len(tokens) < len(lanes) // (len(others) + 1):
            soonest = min(soonest, LACKING_SECONDS)
        return tokens, division.leave, soonest

    @property
    def _micros(self) -> int:
        return round(self._seconds * 1_000_000)

    def _tell_alive(self, connection: Connection) -> None:
        table = self._tables.relays
        until = later(self._micros)
        update = table.update().where(table.c.relay == self.me).values(until=until)
        if not connection.execute(update).rowcount:
            connection.execute(table.insert().values(relay=self.me, until=until))

    def _read(self, connection: Connection) -> list[Lane]:
        """Reads the lanes, and locks them, so that relays divide them one after the other."""
        table = self._tables.lanes
        asked = sql.select(
            table.c.lane, table.c.owner, table.c.token, (table.c.until < now()).label("is_over")
        ).order_by(table.c.lane).with_for_update()  # fmt: skip
        return [
            Lane(row.lane, row.owner, row.token, bool(row.is_over))
            for row in connection.execute(asked)
        ]

    def _others(self, connection: Connection) -> tuple[list[str], float]:
        """Returns the other relays that are alive, and the seconds to the first one's end."""
        table = self._tables.relays
        asked = sql.select(table.c.relay, (-age(table.c.until)).label("left")).where(
            table.c.relay != self.me, table.c.until >= now()
        )
        rows = connection.execute(asked).all()
        ends = [max(0.0, float(row.left)) + BEHIND_SECONDS for row in rows]
        return [row.relay for row in rows], min(ends, default=self._seconds)

    def _change(self, connection: Connection, lanes: Iterable[int], **values: object) -> None:
        numbers = sorted(lanes)
        if numbers:
            table = self._tables.lanes
            connection.execute(table.update().where(table.c.lane.in_(numbers)).values(**values))

    def _release(self, connection: Connection) -> None:
        relays, lanes = self._tables.relays, self._tables.lanes
        connection.execute(relays.delete().where(relays.c.relay == self.me))
        mine = lanes.update().where(lanes.c.owner == self.me)
        connection.execute(mine.values(owner="", until=now()))
