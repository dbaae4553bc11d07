"""Many who receive from one queue with one client: each waits until its time is over."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from posthouse import Message, SyncQueueClient, create_sync_client
from tests.client.proxy import Proxy
from tests.server.running import Running, development

KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"
THREADS, EACH = 16, 50
SECONDS = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


def receive(client: SyncQueueClient, queue: str) -> tuple[list[bytes], int]:
    """What one thread got, and how often it was told that there was nothing before its time."""
    got: list[bytes] = []
    early = 0
    while len(got) < EACH:
        begun = time.monotonic()
        message = client.receive_message(queue, timeout=SECONDS)
        if message is not None:
            got.append(message.body)
            client.complete_message(message)
        elif time.monotonic() - begun < SECONDS:
            early += 1
        else:
            break
    return got, early


def send(client: SyncQueueClient, queue: str) -> None:
    """A few at a time, so that somebody always waits."""
    for first in range(0, THREADS * EACH, 8):
        client.send_messages(queue, [Message(b"%d" % n) for n in range(first, first + 8)])


@pytest.mark.parametrize("late_s", [0.0, 0.003], ids=["a fast wire", "a slow wire"])
def test_nobody_is_told_early_that_there_is_nothing(broker: Running, late_s: float) -> None:
    queue = f"shared-{late_s:g}".replace(".", "")

    async def run() -> list[tuple[list[bytes], int]]:
        proxy = await Proxy.open(broker.port)
        proxy.late_s = late_s
        client = create_sync_client(f"posthouse://{KEY}@127.0.0.1:{proxy.port}")
        try:
            waiting = [asyncio.to_thread(receive, client, queue) for _ in range(THREADS)]
            sending = asyncio.create_task(asyncio.to_thread(send, client, queue))
            found = await asyncio.gather(*waiting)
            await sending
            return found
        finally:
            await asyncio.to_thread(client.close)
            await proxy.close()

    async def with_threads() -> list[tuple[list[bytes], int]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS + 2))
        return await run()

    found = asyncio.run(with_threads())
    assert sum(early for _, early in found) == 0
    bodies = sorted(int(body) for got, _ in found for body in got)
    assert bodies == list(range(THREADS * EACH))
