"""To look for tasks takes one pass, in slices, and ends with the client that asked."""

import asyncio
import time

from posthouse.core.commands import Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from tests.dialects.pyqueue.client import frame
from tests.dialects.pyqueue.rig import Client, Rig
from tests.waiting import turn

MESSAGES = 5_000
UNKNOWN = "0f4c9a51-0000-4000-8000-{:012}"


async def filled(rig: Rig) -> Client:
    client = rig.connect()
    await client.push("first", queue="q")
    assert rig.engine is not None
    messages = [
        NewMessage(encode_envelope(Envelope(id=f"task-{number}")), b"x")
        for number in range(MESSAGES)
    ]
    await rig.engine.ask(rig.context.stranger(is_tls=False), "default", Send("q", messages))  # type: ignore[arg-type]
    return client


async def cpu_seconds(client: Client, ids: list[str]) -> float:
    begun = time.process_time()
    client.peer.data_received(frame("ADMIN_PURGE_DLQ", {"task_ids": ids}))
    while not (heard := client.heard()):
        await client.rig.settle()
    assert heard[0].payload == b'{"purged":0}'
    return time.process_time() - begun


def test_to_look_for_many_ids_takes_no_longer_than_to_look_for_one() -> None:
    async def main() -> None:
        async with await Rig.open() as rig:
            client = await filled(rig)
            one = min([await cpu_seconds(client, [UNKNOWN.format(0)]) for _ in range(3)])
            many = [UNKNOWN.format(number) for number in range(1_000)]
            assert await cpu_seconds(client, many) < 30 * one + 0.05  # not a thousand times

    asyncio.run(main())


def test_more_ids_than_can_be_looked_for_at_once_are_refused() -> None:
    async def main() -> None:
        async with await Rig.open() as rig:
            client = await filled(rig)
            for word in ("ADMIN_PURGE_DLQ", "ADMIN_REQUEUE_DLQ"):
                ids = [UNKNOWN.format(number) for number in range(1_001)]
                text = await client.error(word, {"task_ids": ids})
                assert text == "task_ids are 1000 at most; name them in parts"

    asyncio.run(main())


def test_a_search_ends_when_its_client_has_gone() -> None:
    async def main() -> None:
        async with await Rig.open() as rig:
            client = await filled(rig)
            client.peer.data_received(frame("ADMIN_GET_TASK", "no-such-task"))
            [search] = [task for task in asyncio.all_tasks() if "_take_steps" in repr(task)]
            client.leave()
            for _ in range(4):  # of a dozen slices
                await turn()
            assert search.done()

    asyncio.run(main())
