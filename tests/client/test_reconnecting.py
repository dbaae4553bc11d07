"""The broker is stopped and started under load: every receiver goes on, or says that it cannot."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import posthouse
from posthouse import Message, QueueClient, QueueError
from posthouse.amqp.connection import Connection
from tests.client.proxy import Proxy
from tests.pipeline.elsewhere import free_port
from tests.server.running import Running
from tests.waiting import until_async

RESTARTS = 50 if os.environ.get("TORTURE") else 4
RECEIVERS, SENDERS = 4, 2
AGAIN_SECONDS = 5.0  # within which each receiver has to be consuming again
LOCK_MS = 5_000  # for which messages stay away that a broker had handed out when it was killed


class Load:
    """Clients that send and receive for as long as they are let."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client
        self.sent: set[str] = set()  # what was acknowledged
        self.received: set[str] = set()
        self.last = [0.0] * RECEIVERS  # when each has last received something

    async def send(self, number: int) -> None:
        at = 0
        while True:
            name = f"{number}-{at}"
            at += 1
            try:
                await self._client.send_message("load", Message(name.encode()))
                self.sent.add(name)
            except QueueError:
                pass  # it may have come, and is not said to have
            await asyncio.sleep(0.001)  # slept: the pace of the load

    def is_back(self, since: float, sent: int, working: "Sequence[asyncio.Task[None]]") -> bool:
        """Everybody has received since then, and more than 10 messages were sent.

        Raises what has ended one of the workers.
        """
        for each in working:
            if each.done():
                each.result()
        return min(self.last) >= since and len(self.sent) > sent + 10

    async def receive(self, number: int) -> None:
        async with self._client.receiver("load", prefetch=10) as receiver:
            while True:
                for each in await receiver.next_batch(10):
                    self.received.add(each.body.decode())
                    self.last[number] = time.monotonic()
                    with suppress(QueueError):  # it comes again
                        await self._client.complete_message(each)


def start(folder: Path, port: int) -> Running:
    flags = ("--data", str(folder), "--dev", "--auto-create", "--port", str(port))
    return Running(*flags, "--stop-limit", "1")


def test_every_receiver_is_consuming_again_soon_after_each_restart(tmp_path: Path) -> None:
    asyncio.run(_restart_again_and_again(tmp_path))


async def _restart_again_and_again(folder: Path) -> None:
    port = free_port()
    broker = start(folder, port)
    assert broker.queue("PUT", "load", {"lock_ms": LOCK_MS}).status == 201
    url = f"posthouse://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{port}"
    client = posthouse.create_client(f"{url}?retry_base_delay=0.05&breaker_failures=0")
    load = Load(client)
    working = [asyncio.create_task(load.send(number)) for number in range(SENDERS)]
    working += [asyncio.create_task(load.receive(number)) for number in range(RECEIVERS)]
    try:
        for turn in range(RESTARTS):
            how = signal.SIGKILL if turn % 2 else signal.SIGTERM
            await asyncio.to_thread(broker.stop, how)
            broker = await asyncio.to_thread(start, folder, port)
            back, sent = time.monotonic(), len(load.sent)
            await until_async(
                partial(load.is_back, back, sent, working), "everybody goes on", AGAIN_SECONDS
            )
        for each in working[:SENDERS]:
            each.cancel()
        # What was locked when a broker was killed comes again.
        await until_async(lambda: not load.sent - load.received, "all is received", 90)
    finally:
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await client.close()
        await asyncio.to_thread(broker.stop)
    assert len(load.sent) > 10 * RESTARTS


def test_a_receiver_whose_broker_stays_away_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.client.wire.provider.RECONNECT_SECONDS", 0.5)

    async def run() -> None:
        broker = start(tmp_path, port := free_port())
        key = "RootManageSharedAccessKey:SAS_KEY_VALUE"
        async with (
            posthouse.create_client(f"posthouse://{key}@127.0.0.1:{port}") as client,
            client.receiver("load") as receiver,
        ):
            waiting = asyncio.create_task(receiver.next_batch())
            await asyncio.to_thread(broker.until_idle)
            assert not waiting.done()
            await asyncio.to_thread(broker.kill)
            with pytest.raises(posthouse.ConnectionFailed):
                await waiting

    asyncio.run(run())


DOWN_SECONDS = 3.0


def test_ten_sends_over_a_restart_of_the_broker_all_succeed(tmp_path: Path) -> None:
    """With the settings that a client has by default."""

    async def main() -> None:
        port = free_port()
        broker = await asyncio.to_thread(start, tmp_path, port)
        url = f"posthouse://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{port}"
        async with posthouse.create_client(url) as client:
            await client.send_message("over", Message(b"before"))
            await asyncio.to_thread(broker.stop)
            sending = [
                asyncio.create_task(client.send_message("over", Message(b"%d" % number)))
                for number in range(10)
            ]
            await asyncio.sleep(DOWN_SECONDS)  # slept: the broker is down for that long
            broker = await asyncio.to_thread(start, tmp_path, port)
            try:
                await asyncio.gather(*sending)
                assert client.breaker.state == "closed"
                received = await client.receive_messages("over", 20, 5)
                bodies = {each.body for each in received}
                assert bodies == {b"before", *(b"%d" % number for number in range(10))}
            finally:
                await client.close()
                await asyncio.to_thread(broker.stop)

    asyncio.run(main())


KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"
OUTAGE_SECONDS, PACE = 5.0, 0.05


def test_a_program_that_sends_all_the_time_loses_nothing_over_an_outage(tmp_path: Path) -> None:
    """And another that receives is told nothing of it. Both have the default settings."""

    async def main() -> None:
        port = free_port()
        url = f"posthouse://{KEY}@127.0.0.1:{port}"
        broker = await asyncio.to_thread(start, tmp_path, port)
        async with posthouse.create_client(url) as client, posthouse.create_client(url) as other:
            await client.send_message("over", Message(b"first"))
            received: set[bytes] = set()
            sending: list[asyncio.Task[object]] = []

            async def receive() -> None:
                while len(received) < len(sending) + 1 or not down.done():
                    for message in await other.receive_messages("over", 100, 1):
                        received.add(message.body)
                        with suppress(posthouse.MessageNotFound):  # its lock went with the broker
                            await other.complete_message(message)

            async def outage() -> None:
                nonlocal broker
                await asyncio.to_thread(broker.stop)
                await asyncio.sleep(OUTAGE_SECONDS)  # slept: the broker is down for that long
                broker = await asyncio.to_thread(start, tmp_path, port)

            down = asyncio.create_task(outage())
            receiving = asyncio.create_task(receive())
            try:
                while not down.done():
                    body = b"%d" % len(sending)
                    sending.append(asyncio.create_task(client.send_message("over", Message(body))))
                    await asyncio.sleep(PACE)  # slept: the pace of the program
                await down
                await asyncio.gather(*sending)
                assert client.breaker.state == "closed"
                await asyncio.wait_for(receiving, 60)
            finally:
                receiving.cancel()
                await client.close()
                await other.close()
                await asyncio.to_thread(broker.stop)
            assert len(sending) > OUTAGE_SECONDS / PACE / 2
            assert received == {b"first", *(b"%d" % number for number in range(len(sending)))}

    asyncio.run(main())


def test_calls_go_through_soon_after_an_outage_in_which_all_calls_had_ended(tmp_path: Path) -> None:
    """No call is under way that could close the breaker when the broker is back."""

    async def main() -> None:
        port = free_port()
        url = f"posthouse://{KEY}@127.0.0.1:{port}?operation_timeout=5"
        broker = await asyncio.to_thread(start, tmp_path, port)
        client = posthouse.create_client(url)
        try:
            await client.send_message("over", Message(b"before"))
            await asyncio.to_thread(broker.stop)
            sending = [client.send_message("over", Message(b"x")) for _ in range(10)]
            failed = await asyncio.gather(*sending, return_exceptions=True)
            ended = (posthouse.ConnectionFailed, posthouse.Timeout)
            assert all(isinstance(each, ended) for each in failed), failed

            async def send_until_refused() -> None:
                while True:  # on a busy machine a call may be let through first
                    with suppress(*ended):
                        await client.send_message("over", Message(b"x"))

            with pytest.raises(posthouse.CircuitOpen) as caught:
                await send_until_refused()
            wait = caught.value.retry_after
            assert wait is not None
            assert wait <= 1.0
            broker = await asyncio.to_thread(start, tmp_path, port)
            await asyncio.sleep(wait)  # slept: the client is told to wait so
            await client.send_message("over", Message(b"after"))
            assert client.breaker.state == "closed"
        finally:
            await client.close()
            await asyncio.to_thread(broker.stop)

    asyncio.run(main())


class Starting(Proxy):
    """A broker that cannot tell who anybody is when the first connections come."""

    starts = 6  # connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.accepted >= self.starts:
            await super()._serve(reader, writer)
            return
        self.accepted += 1
        amqp = Connection("b", authenticate=lambda *_: None, mechanisms=("PLAIN",))
        while not amqp.closed and (data := await reader.read(1 << 16)):
            list(amqp.receive(data))
            writer.write(amqp.take())
        writer.close()


class NeverThere(Starting):
    starts = 1_000_000


def test_a_broker_that_starts_is_waited_for_however_often_it_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await asyncio.to_thread(start, tmp_path, free_port())
        front = await Starting.open(broker.port)
        url = f"posthouse://{KEY}@127.0.0.1:{front.port}?retry_base_delay=0.01"
        try:
            async with posthouse.create_client(url) as client:
                await client.send_message("over", Message(b"x"))
            assert front.accepted == Starting.starts + 1
        finally:
            await front.close()
            await asyncio.to_thread(broker.stop)

    asyncio.run(main())


def test_many_calls_to_a_broker_that_is_away_are_no_storm_of_connections() -> None:
    calls = 200

    async def main() -> None:
        front = await NeverThere.open(1)
        settings = "operation_timeout=2&retry_base_delay=0.01&max_retry_attempts=1"
        url = f"posthouse://{KEY}@127.0.0.1:{front.port}?{settings}"
        client = posthouse.create_client(url)
        sending = [client.send_message("over", Message(b"x")) for _ in range(calls)]
        failed = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(each) for each in failed} <= {posthouse.ConnectionFailed, posthouse.Timeout}
        assert all("credentials now" in str(each) for each in failed)
        assert 1 < front.accepted < 20  # each call has tried that often
        await client.close()
        await front.close()

    asyncio.run(main())


def test_a_client_that_is_closed_ends_its_calls(tmp_path: Path) -> None:
    async def main() -> None:
        client = posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{free_port()}")
        sending = asyncio.create_task(client.send_message("over", Message(b"x")))
        await asyncio.sleep(0.2)  # slept: it has failed, and is about to be tried again
        await client.close()
        with pytest.raises(posthouse.ConnectionFailed, match="The client has been closed"):
            await sending
        with pytest.raises(posthouse.ConnectionFailed, match="The client has been closed"):
            await client.receive_message("over", 1)

    asyncio.run(main())


def test_a_transaction_whose_connection_was_lost_is_not_committed_again(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await asyncio.to_thread(start, tmp_path, free_port())
        front = await Proxy.open(broker.port)
        url = f"posthouse://{KEY}@127.0.0.1:{front.port}"
        try:
            async with posthouse.create_client(url) as client:

                async def transact() -> None:
                    async with client.transaction() as transaction:
                        await transaction.send_message("over", Message(b"x"))
                        front.cut()

                with pytest.raises(posthouse.ConnectionFailed, match="begin another") as caught:
                    await transact()
                assert not caught.value.is_transient
                assert await client.receive_message("over", 0.5) is None
        finally:
            await front.close()
            await asyncio.to_thread(broker.stop)

    asyncio.run(main())


def test_a_settlement_that_is_repeated_on_a_new_connection_succeeds_once(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await asyncio.to_thread(start, tmp_path, free_port())
        front = await Proxy.open(broker.port)
        try:
            async with posthouse.create_client(
                f"posthouse://{KEY}@127.0.0.1:{front.port}"
            ) as client:
                await client.send_message("over", Message(b"x"))
                message = await client.receive_message("over", 5)
                assert message is not None
                front.cut()
                await client.complete_message(message)
                front.cut()
                with pytest.raises(posthouse.MessageNotFound):
                    await client.complete_message(message)
        finally:
            await front.close()
            await asyncio.to_thread(broker.stop)

    asyncio.run(main())
