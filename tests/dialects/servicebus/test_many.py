"""Many clients at once: the official SDK opens a connection for every sender and receiver."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from tests.dialects.servicebus.bus import WAIT, Bus, eventually

RECEIVERS = 100
CONNECTIONS = 300


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """Files enough for both ends; the broker has a limit of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_hundred_receivers_share_the_messages_of_a_queue(bus: Bus) -> None:
    queue = bus.queue()
    found: list[str] = []

    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_receiver(queue) as receiver:
            for message in await receiver.receive_messages(5, max_wait_time=WAIT):
                found.append(str(message))
                await receiver.complete_message(message)

    async def run() -> None:
        async with ServiceBusClient.from_connection_string(bus.connection_string()) as client:
            working = [asyncio.create_task(work(client)) for _ in range(RECEIVERS)]
            await asyncio.to_thread(eventually, lambda: bus.receivers(queue) == RECEIVERS)
            async with client.get_queue_sender(queue) as sender:
                names = [f"{n}" for n in range(RECEIVERS)]
                await sender.send_messages([ServiceBusMessage(each) for each in names])
                await asyncio.gather(*working)

    asyncio.run(run())
    assert sorted(found, key=int) == [f"{n}" for n in range(RECEIVERS)]
    assert set(bus.counts(queue).values()) == {0}


def test_three_hundred_connections_are_served_at_once(bus: Bus) -> None:
    queues = [bus.queue() for _ in range(CONNECTIONS // 2)]

    async def run() -> None:
        async with ServiceBusClient.from_connection_string(bus.connection_string()) as client:
            senders = [client.get_queue_sender(each) for each in queues]
            receivers = [client.get_queue_receiver(each) for each in queues]
            opening: list[AbstractAsyncContextManager[Any]] = [*senders, *receivers]
            await asyncio.gather(*(each.__aenter__() for each in opening))
            await asyncio.gather(
                *(
                    sender.send_messages(ServiceBusMessage(queue))
                    for sender, queue in zip(senders, queues, strict=True)
                )
            )

            async def one(receiver: ServiceBusReceiver) -> str:
                [message] = await receiver.receive_messages(max_wait_time=WAIT)
                await receiver.complete_message(message)
                return str(message)

            assert await asyncio.gather(*map(one, receivers)) == queues
            await asyncio.gather(*(each.close() for each in (*senders, *receivers)))

    asyncio.run(run())
