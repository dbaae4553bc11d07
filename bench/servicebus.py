"""What a message costs the server over AMQP, in CPU time, beside this machine's limit.

    python -m bench.servicebus

Clients hide a server that is faster than they are, so the server's own CPU time is measured: for
the official SDK (single sends, batches of 100, receive and complete with prefetch) and for our own
AMQP peer with as many messages under way as it has credit for. The limit is `bench.limit` over a
socket: the same number of messages, one in a request, group-synced, with no broker behind it. What
the SDK does one by one is beside the limit one by one, turn about. Then how long a single send of
the SDK takes, beside a bare round trip over TCP with an fdatasync.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import uvloop
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bench.limit import BODY, Client
from bench.start import POSTHOUSE, a_free_port
from posthouse.amqp.connection import Connection
from posthouse.amqp.encode import described, encode
from posthouse.amqp.events import Arrived, Attached, Disposed, Flowed
from posthouse.amqp.performatives import ACCEPTED
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, ULong

MESSAGES = 40_000  # of our own peer
SDK_MESSAGES = 500  # in a round
CREDIT = 1_000
GOAL_US, GOAL_LIMIT = 10.0, 2.0
GOAL_SDK = 1.3  # times the limit, one by one
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
ROUNDS = 11
SDK_ROUNDS = 9
IDLE_SECONDS = 0.002  # of CPU in a third of a second, and less


def cpu_seconds(pid: int) -> float:
    """Of all threads, by the scheduler: the other count is in hundredths of a second."""
    times = (each.read_text().split()[0] for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(map(int, times)) / 1e9


@contextmanager
def broker(*flags: str, source: Path | None = None) -> Iterator[tuple[int, int]]:
    """A port and a process id. `source`: the clone whose code it runs, if not this one's."""
    port = a_free_port()
    command = [POSTHOUSE, "serve", "--dev", "--auto-create", "--port", str(port), *flags]
    environment = {**os.environ, "PYTHONPATH": str(source / "src")} if source else None
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(1.5)  # the certificate is made after the start
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


class Driver(asyncio.Protocol):
    """Our own peer, in a hurry. `work` is called when a link may have something to do."""

    def __init__(self) -> None:
        self._amqp = Connection(
            "bench", hostname="localhost", sasl=("PLAIN", f"\0{KEY_NAME}\0{KEY}".encode())
        )
        self._link: Link | None = None
        self.done = 0
        self._sent = 0
        self._count = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def attach(self, *, sends: bool, count: int) -> None:
        self._count = count
        session = self._amqp.begin()
        name, terminus = ("out", 0x29) if sends else ("in", 0x28)
        node = Described(ULong(terminus), ["q"])
        self._link = session.attach(
            name, sends=sends, source=None if sends else node, target=node if sends else None,
            settled=False,
        )  # fmt: skip
        if not sends:
            self._link.grant(CREDIT)
        self._flush()

    def data_received(self, data: bytes) -> None:
        settled: list[int] = []
        for event in self._amqp.receive(data):
            if isinstance(event, Arrived):
                settled.append(event.delivery_id)
            elif isinstance(event, Disposed):
                self.done += len(event.delivery_ids)
            elif isinstance(event, Flowed | Attached):
                pass
        link = self._link
        if settled and link is not None:
            link.settle(settled, ACCEPTED, settled=False)
            if link.credit < CREDIT // 2:
                link.grant(CREDIT)
        if link is not None and link.sends:
            while link.credit > 0 and self._sent < self._count:
                self._sent += 1
                link.send(PAYLOAD % self._sent, b"%08d" % self._sent)
        self._flush()
        if 0 < self._count <= self.done and not self.finished.done():
            self.finished.set_result(None)

    def _flush(self) -> None:
        if self._amqp.has_output:
            self._transport.write(self._amqp.take())


PAYLOAD = b"\x00\x53\x73" + b"\xc0\x13\x01" + b"\xa1\x10%016d" + described(0x75, encode(BODY))


async def drive(port: int, *, sends: bool, count: int) -> None:
    loop = asyncio.get_running_loop()
    transport, driver = await loop.create_connection(Driver, "127.0.0.1", port)
    await asyncio.sleep(0.2)
    driver.attach(sends=sends, count=count)
    await driver.finished
    transport.close()


def own_peer(port: int, pid: int) -> tuple[float, float]:
    """Microseconds of the server's CPU for each message: sent, and received and completed."""
    found = []
    for sends in (True, False):
        before = cpu_seconds(pid)
        subprocess.run(
            [sys.executable, "-m", "bench.servicebus", "drive", str(port), str(int(sends))],
            check=True,
        )
        wait_until_idle(pid)
        found.append((cpu_seconds(pid) - before) / MESSAGES * 1e6)
    return found[0], found[1]


def wait_until_idle(pid: int) -> None:
    """What is left to do when the last is answered belongs to it."""
    before = -1.0
    while cpu_seconds(pid) - before > IDLE_SECONDS:
        before = cpu_seconds(pid)
        time.sleep(0.3)


def limit(folder: Path, outstanding: int = CREDIT, messages: int = MESSAGES) -> float:
    """The same for the limit, over a socket."""
    command = [sys.executable, "-m", "bench.limit", "--serve", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        async def ask() -> int:
            content = len(BODY).to_bytes(4, "big") + BODY
            request = len(content).to_bytes(4, "big") + content
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
            client.ask(outstanding)
            while client.answers < messages:  # noqa: ASYNC110 (its client knows no better)
                await asyncio.sleep(0.01)
            return client.answers

        before = cpu_seconds(server.pid)
        count = asyncio.run(ask())
        return (cpu_seconds(server.pid) - before) / count * 1e6
    finally:
        server.kill()
        server.wait()


def connect(port: int) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
        "UseDevelopmentEmulator=true;"
    )


class Costs(NamedTuple):
    """Microseconds of the server's CPU for each message of the SDK."""

    single_sends: float
    batches: float
    receive_and_complete: float


def sdk(port: int, pid: int) -> Costs:
    def cost(work: Callable[[], None]) -> float:
        before = cpu_seconds(pid)
        work()
        return (cpu_seconds(pid) - before) / SDK_MESSAGES * 1e6

    with connect(port) as client:
        with client.get_queue_sender("sdk") as sender:
            message = ServiceBusMessage(BODY)
            sender.send_messages(message)

            def singly() -> None:
                for _ in range(SDK_MESSAGES):
                    sender.send_messages(message)

            def in_batches() -> None:
                for _ in range(SDK_MESSAGES // 100):
                    sender.send_messages([ServiceBusMessage(BODY) for _ in range(100)])

            single_sends, batches = cost(singly), cost(in_batches)

        with client.get_queue_receiver("sdk", prefetch_count=200) as receiver:

            def receive() -> None:
                left = SDK_MESSAGES
                while left > 0:
                    for each in receiver.receive_messages(200, max_wait_time=5):
                        receiver.complete_message(each)
                        left -= 1

            return Costs(single_sends, batches, cost(receive))


def sdk_rounds(port: int, pid: int, folder: Path) -> None:
    """The SDK beside the limit, turn about."""
    rounds = []
    for _ in range(SDK_ROUNDS):
        least = limit(folder, 1, SDK_MESSAGES)
        rounds.append((sdk(port, pid), least))
    one = statistics.median(least for _, least in rounds)
    print(f"  the limit, one by one: {one:.0f} us of the server a message")
    for what in Costs._fields:
        cost = statistics.median(getattr(costs, what) for costs, _ in rounds)
        told = f"  SDK, {what.replace('_', ' ')}: {cost:.0f} us of the server a message"
        if what != "batches":
            times = statistics.median(getattr(costs, what) / least for costs, least in rounds)
            verdict = "reached" if times <= GOAL_SDK else "MISSED"
            told += f"; {times:.2f} times the limit, goal {GOAL_SDK} {verdict}"
        print(f"{told}; in the middle of {SDK_ROUNDS}", flush=True)


# How long one takes.


def bare_times(folder: Path, count: int) -> list[float]:
    """A round trip over TCP with an fdatasync in it."""
    listening = socket.create_server(("127.0.0.1", 0))
    file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(file, 0, 16 << 20)
    os.fsync(file)

    def serve() -> None:
        peer, _ = listening.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = 0
        while data := peer.recv(4096):
            os.pwrite(file, data, at)
            os.fdatasync(file)
            at = (at + len(data)) % (8 << 20)
            peer.sendall(b"done")

    threading.Thread(target=serve, daemon=True).start()
    with socket.create_connection(listening.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            client.sendall(BODY)
            client.recv(10)
            times.append(time.perf_counter() - begun)
    return times


def latency(port: int, folder: Path) -> None:
    with connect(port) as client, client.get_queue_sender("one") as sender:
        sender.send_messages(ServiceBusMessage(BODY))
        times = []
        for _ in range(500):
            message = ServiceBusMessage(BODY)
            begun = time.perf_counter()
            sender.send_messages(message)
            times.append(time.perf_counter() - begun)
    for what, each in (("SDK single send", times), ("bare round trip", bare_times(folder, 500))):
        cuts = statistics.quantiles(each, n=100)
        print(f"  {what}: p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        for what, flags in (
            ("durable", ("--data", str(folder / "data"))),
            ("memory", ("--memory",)),
        ):
            print(f"{what}:")
            with broker(*flags) as (port, pid):
                own_peer(port, pid)  # so that everything has been done once
                runs = []
                for _ in range(ROUNDS):
                    least = limit(folder) if what == "durable" else 0.0
                    sent, received = own_peer(port, pid)
                    runs.append((sent, received, least))
                    beside = f"; the limit {least:.1f} us" if least else ""
                    print(f"  our peer: send {sent:.1f} us, receive and complete {received:.1f} us"
                          f" of the server a message{beside}")  # fmt: skip
                if what == "durable":
                    tell(runs)
                if what == "durable":
                    sdk_rounds(port, pid, folder)
                    latency(port, folder)
                else:
                    costs = sdk(port, pid)
                    told = (
                        f"{name.replace('_', ' ')} {us:.0f}" for name, us in costs._asdict().items()
                    )
                    print(f"  SDK: {', '.join(told)} us of the server a message")


def tell(runs: list[tuple[float, float, float]]) -> None:
    for what, at in (("send", 0), ("receive and complete", 1)):
        cost = statistics.median(run[at] for run in runs)
        times = statistics.median(run[at] / run[2] for run in runs)
        fast = "reached" if cost < GOAL_US else "MISSED"
        near = "reached" if times <= GOAL_LIMIT else "MISSED"
        print(f"  {what}: {cost:.1f} us, goal {GOAL_US:.0f} {fast}; {times:.1f} times the limit,"
              f" goal {GOAL_LIMIT:.0f} {near}; in the middle of {ROUNDS}")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        uvloop.run(drive(int(sys.argv[2]), sends=sys.argv[3] == "1", count=MESSAGES))
    else:
        main()
