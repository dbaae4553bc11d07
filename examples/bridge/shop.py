"""The shop: takes orders, and notes which were shipped.

posthouse bridge run examples.bridge.shop:bridge
"""

import os

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, update
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, Event

TABLES = MetaData()
ORDERS = Table(
    "orders", TABLES,
    Column("id", Integer, primary_key=True), Column("item", String(100)),
    Column("state", String(20)),
)  # fmt: skip

engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))
bridge = Bridge(
    os.environ.get("NATS_URL", "nats://localhost:4222"), app="shop", destination="warehouse",
    database=engine,
)  # fmt: skip


def prepare() -> None:
    """Creates the tables that are not there."""
    TABLES.create_all(engine)
    bridge.metadata.create_all(engine)


def order(item: str) -> int:
    """Takes an order. The order and its event are committed together, or neither is."""
    with Session(engine) as session, session.begin():
        insert = ORDERS.insert().values(item=item, state="new").returning(ORDERS.c.id)
        number = session.execute(insert).scalar_one()
        bridge.publish("order.created", {"id": number, "item": item}, session=session)
        return int(number)


@bridge.consumer()
def on_shipment(event: Event, session: Session) -> None:
    number = event.payload["order"]
    session.execute(update(ORDERS).where(ORDERS.c.id == number).values(state="shipped"))
