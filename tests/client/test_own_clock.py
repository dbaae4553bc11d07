"""The clock of a client in memory, which tests move."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from posthouse import Message, create_client, create_sync_client, create_test_client
from posthouse.client.config import InMemoryConfig, QueueConfig
from posthouse.client.errors import (
    ConfigurationError,
    MessageNotFound,
    Unsupported,
    ValidationError,
)


def test_a_lock_runs_out_when_the_client_moves_its_clock() -> None:
    async def main() -> None:
        async with create_test_client(virtual_clock=True) as client:
            await client.send_message("orders", Message(b"a"))
            first = await client.receive_message("orders", 1)
            assert first is not None
            await client.advance(timedelta(hours=1))
            with pytest.raises(MessageNotFound):
                await client.complete_message(first)
            again = await client.receive_message("orders", 1)
            assert again is not None
            assert again.delivery_count == 2

    asyncio.run(main())


def test_a_scheduled_message_is_there_when_the_clock_has_come_so_far() -> None:
    async def main() -> None:
        async with create_test_client(virtual_clock=True) as client:
            begun = client.now()
            await client.schedule_message("orders", Message(b"a"), begun + timedelta(days=1))
            await client.advance(86_399)
            assert await client.receive_message("orders", 0) is None
            await client.advance(1)
            assert client.now() == begun + timedelta(days=1)
            assert await client.receive_message("orders", 0) is not None

    asyncio.run(main())


def test_a_client_without_a_loop_moves_its_clock_too() -> None:
    config = QueueConfig(InMemoryConfig(virtual_clock=True))
    with create_sync_client(config) as client:
        begun = client.now()
        client.advance(30)
        assert client.now() - begun == timedelta(seconds=30)


def test_a_clock_that_cannot_be_moved_says_why() -> None:
    async def main() -> None:
        async with create_test_client() as client:
            assert abs(client.now() - datetime.now(UTC)) < timedelta(minutes=1)
            with pytest.raises(ConfigurationError, match="virtual_clock"):
                await client.advance(1)
        async with create_test_client(virtual_clock=True) as client:
            with pytest.raises(ValidationError):
                await client.advance(-1)
        elsewhere = create_client("posthouse://localhost:1/default")
        with pytest.raises(Unsupported):
            await elsewhere.advance(1)
        with pytest.raises(Unsupported):
            elsewhere.now()

    asyncio.run(main())
