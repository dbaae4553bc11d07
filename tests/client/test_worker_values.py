"""Handlers that want a value, and get it read from the body by its type."""

from dataclasses import dataclass

import posthouse
from posthouse import Context, Message, QueueClient, Worker
from tests.client.test_worker import dead_in, left_in, until, with_a_broker


@dataclass
class Order:
    id: int
    item: str


@with_a_broker
async def test_a_handler_gets_the_value_that_it_asks_for(client: QueueClient) -> None:
    app = Worker(client)
    seen: list[tuple[Order, int]] = []

    @app.handler("orders")
    async def on_order(order: Order, context: Context) -> None:
        seen.append((order, context.attempt))

    async with app.running():
        await client.send_message("orders", Message.of(Order(1, "a pen")))
        await until(lambda: len(seen) == 1)
    assert seen == [(Order(1, "a pen"), 1)]
    assert await left_in(client) == []


@with_a_broker
async def test_a_body_that_cannot_be_read_is_dead_lettered_and_not_tried_again(
    client: QueueClient,
) -> None:
    app = Worker(client)
    seen: list[Order] = []

    @app.handler("orders")
    def on_order(order: Order) -> None:
        seen.append(order)

    async with app.running():
        await client.send_message("orders", Message(b'{"id": "seven"}'))
        await client.send_message("orders", Message.of(Order(2, "a book")))
        await until(lambda: len(seen) == 1)
    assert seen == [Order(2, "a book")]
    [dead] = await dead_in(client)
    assert dead.dead_letter_reason == posthouse.SerializationError.__name__
    assert dead.delivery_count == 2  # once to the worker, once here
    assert "Order" in (dead.dead_letter_description or "")
