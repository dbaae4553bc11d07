"""Two services of a shop, api and worker, on SQLite databases of their own."""

from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, Event

TABLES = MetaData()
SHIPMENTS = Table(
    "shipments", TABLES, Column("id", Integer, primary_key=True), Column("order_id", String(40))
)


class Service:
    """A bridge, the engine of its database, and the table that its handlers write to."""

    def __init__(self, folder: Path, app: str, destination: str, **settings: Any) -> None:
        self.engine: Engine = create_engine(f"sqlite:///{folder / app}.db")
        TABLES.create_all(self.engine)
        settings = {"url": "memory://", "preset": "test", **settings}
        self.bridge = Bridge(app=app, destination=destination, database=self.engine, **settings)

    @property
    def orders(self) -> list[str]:
        """The orders that were shipped, as often as they were."""
        with Session(self.engine) as session:
            asked = sql.select(SHIPMENTS.c.order_id).order_by(SHIPMENTS.c.id)
            return list(session.scalars(asked))

    def publish(self, type: str, payload: Any, **how: Any) -> str:
        """Publishes in a transaction of its own."""
        with Session(self.engine) as session, session.begin():
            return self.bridge.publish(type, payload, session=session, **how)


def ship(session: Session, event: Event) -> None:
    session.execute(SHIPMENTS.insert().values(order_id=event.resource_id))
