"""The warehouse: ships what was ordered, each order once.

posthouse bridge run examples.bridge.warehouse:bridge
"""

import os

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine
from sqlalchemy.orm import Session

from posthouse.bridge import Bridge, Delivery, Event, Unrecoverable

TABLES = MetaData()
SHIPMENTS = Table(
    "shipments", TABLES,
    Column("id", Integer, primary_key=True), Column("order_id", Integer),
    Column("item", String(100)),
)  # fmt: skip

engine = create_engine(os.environ.get("WAREHOUSE_DATABASE", "sqlite:///warehouse.db"))
bridge = Bridge(
    os.environ.get("NATS_URL", "nats://localhost:4222"), app="warehouse", destination="shop",
    database=engine, delays=(0.2, 1.0), ack_wait=2.0,  # short, so that the example ends soon
)  # fmt: skip


def prepare() -> None:
    """Creates the tables that are not there."""
    TABLES.create_all(engine)
    bridge.metadata.create_all(engine)


@bridge.consumer(concurrency=4)
def on_order(event: Event, session: Session, delivery: Delivery) -> None:
    item = event.payload["item"]
    if item == "a dragon":
        raise Unrecoverable("There are no dragons.")  # it goes to the dead letters
    if item == "a fragile vase" and delivery.number == 1:
        raise ConnectionError("the shelf did not answer")  # it is tried again
    session.execute(SHIPMENTS.insert().values(order_id=event.payload["id"], item=item))
    # In the same transaction: either the order is shipped and the shop hears of it, or neither.
    bridge.publish("shipment.sent", {"order": event.payload["id"]}, session=session)
