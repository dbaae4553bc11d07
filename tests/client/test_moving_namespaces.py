"""Namespaces on two brokers behind one map, and one that moves from the one to the other."""

import asyncio
import subprocess
import sys
from pathlib import Path

from posthouse import Message, QueueClient, create_client, create_sync_client
from posthouse.pipeline.options import READING, Options
from tests.pipeline.elsewhere import free_port
from tests.server.running import Running
from tests.waiting import until_async

QUEUE = "orders"
KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"  # of every broker with --dev
MORE = 20  # messages that are sent before the move, and behind it


class TwoBrokers:
    """Brokers `a` and `b`, with a namespace each, and a map of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {name: free_port() for name in "ab"}
        self.running = {name: self._start(name) for name in "ab"}
        self.map = folder / "namespaces.yaml"
        self.place(shop="a", billing="b")
        for name, namespace in (("a", "shop"), ("b", "billing")):
            self._make(name, f"/api/v1/namespaces/{namespace}", None)
            self._make(name, f"/api/v1/namespaces/{namespace}/queues/{QUEUE}", {})

    def _start(self, name: str) -> Running:
        data, port = str(self._folder / name), str(self._ports[name])
        return Running("--dev", "--data", data, "--port", port)

    def _make(self, name: str, path: str, form: object) -> None:
        assert self.running[name].call("PUT", path, form).status == 201

    def place(self, **brokers: str) -> None:
        urls = {name: f"posthouse://{KEY}@127.0.0.1:{port}" for name, port in self._ports.items()}
        lines = (f"{namespace}: {urls[name]}" for namespace, name in brokers.items())
        new = self.map.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.rename(self.map)

    def move_to_b(self, namespace: str) -> None:
        """As docs/scaling.md says."""
        for broker in self.running.values():
            assert broker.stop() == 0
        command = [
            sys.executable, "-m", "posthouse.cli", "store", "copy", "--namespace", namespace,
            "--move", f"file:{self._folder / 'a'}", f"file:{self._folder / 'b'}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"The namespace '{namespace}' was moved" in done.stdout
        self.place(shop="b", billing="b")
        self.running = {name: self._start(name) for name in "ba"}

    def status(self, name: str, namespace: str) -> int:
        path = f"/api/v1/namespaces/{namespace}/queues/{QUEUE}"
        return self.running[name].call("GET", path).status

    def close(self) -> None:
        for broker in self.running.values():
            broker.stop()


def test_namespaces_are_found_where_the_map_says(tmp_path: Path) -> None:
    brokers = TwoBrokers(tmp_path)
    try:
        asyncio.run(_send_and_receive(f"posthouse:///shop?map={brokers.map}"))
        with create_sync_client(f"posthouse:///billing?map={brokers.map}") as client:
            client.send_message(QUEUE, Message("a bill"))
            bill = client.receive_message(QUEUE)
            assert bill is not None
            assert bill.body == b"a bill"
        for name, namespace, other in (("a", "shop", "billing"), ("b", "billing", "shop")):
            assert brokers.status(name, namespace) == 200
            assert brokers.status(name, other) == 404
    finally:
        brokers.close()


async def _send_and_receive(url: str) -> None:
    async with create_client(url) as client:
        await client.send_message(QUEUE, Message("a book"))
        message = await client.receive_message(QUEUE)
        assert message is not None
        assert message.body == b"a book"
        await client.complete_message(message)
        assert (await client.admin.counts(QUEUE)).active == 0


def test_a_namespace_moves_and_a_sender_goes_on_by_itself(tmp_path: Path) -> None:
    asyncio.run(_move(TwoBrokers(tmp_path)))


async def _move(brokers: TwoBrokers) -> None:
    acknowledged: list[str] = []

    async def send(client: QueueClient) -> None:
        while True:
            name = f"{len(acknowledged)}"
            await client.send_message(QUEUE, Message(name))  # which waits while nobody answers
            acknowledged.append(name)

    try:
        async with create_client(f"posthouse:///shop?map={brokers.map}") as client:
            sending = asyncio.create_task(send(client))
            await until_async(lambda: len(acknowledged) >= MORE, "it sends")
            await asyncio.to_thread(brokers.move_to_b, "shop")
            before = len(acknowledged)
            await until_async(lambda: len(acknowledged) >= before + MORE, "it sends again")
            assert not sending.done()
            sending.cancel()
            received = await _all_of(client)
        assert list(dict.fromkeys(received))[: len(acknowledged)] == acknowledged
        assert brokers.status("a", "shop") == 404
        _check_feed(brokers, len(received))
    finally:
        await asyncio.to_thread(brokers.close)


async def _all_of(client: QueueClient) -> list[str]:
    received: list[str] = []
    count = (await client.admin.counts(QUEUE)).active
    while len(received) < count:
        message = await client.receive_message(QUEUE)
        assert message is not None
        received.append(message.body.decode())
        await client.complete_message(message)
    return received


def _check_feed(brokers: TwoBrokers, count: int) -> None:
    """What Spark would read of the namespace is where the map says."""
    given = {"map": str(brokers.map), "namespace": "shop", "queue": QUEUE}
    options = Options(given, READING)
    broker = options.broker()
    assert options.entity(broker) == QUEUE
    rows = broker.get(f"/feed/count?namespace=shop&entity={QUEUE}&kinds=sent,restored")
    assert rows["rows"] >= count
