"""What LocalZure's documents promise of speed, measured here, durable, and printed as met or not.

    python -m bench.seeds

Over its own HTTP API, one request after another for latencies and 32 connections for rates, by a
client in Python and, where it is installed, by wrk, then also beside a bare uvicorn application
that is driven alike; and in process, through the engine, with 256 requests outstanding. Filters are
measured alone.
"""

import asyncio
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from bench import wrk
from bench.http import APIS, CONNECTIONS, KIND, Api, both, load, request
from bench.limit import rate
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    AcceptSession,
    Complete,
    CreateQueue,
    CreateSubscription,
    Granted,
    Receive,
    Received,
    Send,
)
from posthouse.core.filters.correlation import compile_correlation
from posthouse.core.filters.sql import compile_filter
from posthouse.core.filters.view import MessageView
from posthouse.core.message import Envelope, NewMessage, Properties, encode_envelope
from posthouse.core.model import QueueProperties, subscription_queue
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

ROUNDS = 1_000
WRK_ROUNDS = 9  # of which the middle counts
OF_BARE = 0.7
OUTSTANDING = 256
NS = "bench"


def told(what: str, value: float, goal: float, unit: str, *, least: bool = False) -> None:
    met = value >= goal if least else value <= goal
    print(f"  {what}: {value:,.3g} {unit}, promised {goal:,g}: {'met' if met else 'NOT met'}")


def latencies(what: str, found: list[float], goals: tuple[float, float, float]) -> None:
    parts = statistics.quantiles(found, n=100)
    for name, at, goal in zip(("p50", "p95", "p99"), (49, 94, 98), goals, strict=True):
        told(f"{what} {name}", parts[at] * 1_000, goal, "ms")


# Over HTTP.


def one_by_one(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    path = "/servicebus/queues/seed/messages"

    def ask(method: str, where: str, body: bytes = b"") -> tuple[float, bytes]:
        begun = time.perf_counter()
        connection.request(method, where, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status in (200, 201), content
        return time.perf_counter() - begun, content

    ask("PUT", "/servicebus/queues/seed")
    sends, receives, completes = [], [], []
    for _ in range(ROUNDS):
        sends.append(ask("POST", path, b'{"body": "message"}')[0])
        seconds, content = ask("POST", f"{path}/receive")
        receives.append(seconds)
        [got] = json.loads(content)
        completes.append(ask("DELETE", f"{path}/{got['MessageId']}/{got['LockToken']}")[0])
    latencies("send", sends, (0.5, 1, 5))
    latencies("receive", receives, (1, 2, 10))
    latencies("complete", completes, (0.5, 1, 5))


def sending(name: str, path: str, **fields: str) -> Api:
    body = json.dumps({"body": "message", **fields}).encode()
    return APIS[2]._replace(name=name, send=request("POST", f"{path}/messages", body, KIND))


def by_wrk(port: int, bare_port: int) -> None:
    """Sends to one queue: how long one takes, and how many there are, beside the bare application.

    The bare one answers every path that ends as this one does.
    """
    path, body = "/servicebus/queues/wrk/messages", b'{"body": "message"}'
    times, rates, bare = [], [], []
    for _ in range(WRK_ROUNDS):
        times.append(wrk.drive(port, path, body, 1))
        rates.append(wrk.drive(port, path, body, CONNECTIONS).rate)
        bare.append(wrk.drive(bare_port, path, body, CONNECTIONS).rate)
    for name, goal in (("p50", 0.5), ("p95", 1.0), ("p99", 5.0)):
        found = statistics.median(getattr(each, name) for each in times)
        told(f"send by wrk {name}", found, goal, "ms")
    told("send by wrk, one queue", statistics.median(rates), 10_000, "a second", least=True)
    part = statistics.median(ours / other for ours, other in zip(rates, bare, strict=True))
    told("send by wrk, of the bare application", part, OF_BARE, "times", least=True)


def over_http() -> None:
    print("LocalZure's API, durable:")
    with both() as (port, bare_port):
        one_by_one(port)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        session = b"<QueueDescription><RequiresSession>true</RequiresSession></QueueDescription>"
        paths = [("queues/one", b""), ("topics/ten", b""), ("queues/sessions", session)]
        paths += [(f"topics/ten/subscriptions/s{number}", b"") for number in range(10)]
        for path, body in paths:
            connection.request("PUT", f"/servicebus/{path}", body)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 201
        for api, goal in (
            (sending("send, one queue", "/servicebus/queues/one"), 10_000),
            (sending("publish, 10 subscriptions", "/servicebus/topics/ten"), 5_000),
            (sending("send, sessions", "/servicebus/queues/sessions", session_id="s"), 5_000),
        ):
            found = uvloop.run(load(port, api, bare=False, sends=True))
            told(api.name, found, goal, "a second", least=True)
        if wrk.is_there():
            by_wrk(port, bare_port)
        else:
            print("  wrk is not installed, so the figures that a client in C gets are left out")


# In process.


async def in_process(folder: Path) -> None:
    print("The engine in process, durable:")
    engine = await Engine.open(FileStore(folder / "journal"), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    ask = partial(engine.ask, BROKER, NS)
    await ask(CreateQueue("one"))
    await ask(CreateQueue("sessions", QueueProperties(grouping="session")))
    await ask(CreateQueue("ten", QueueProperties(delivery="topic")))
    for number in range(10):
        await ask(CreateSubscription(subscription_queue("ten", f"s{number}")))
    envelope = encode_envelope(Envelope(id="a" * 32))
    message = NewMessage(envelope, b"message")
    in_session = NewMessage(envelope, b"message", group="s")

    sends, receives, completes = [], [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        await ask(Send("one", [message]))
        sent = time.perf_counter()
        answer = await ask(Receive("one", engine.new_receiver()))
        received = time.perf_counter()
        assert isinstance(answer, Received)
        await ask(Complete("one", [answer.deliveries[0].token]))
        sends.append(sent - begun)
        receives.append(received - sent)
        completes.append(time.perf_counter() - received)
    latencies("send", sends, (0.5, 1, 5))
    latencies("receive", receives, (1, 2, 10))
    latencies("complete", completes, (0.5, 1, 5))

    async def receive() -> None:
        await ask(Receive("one", engine.new_receiver(), delete=True))

    for what, work, goal in (
        ("send, one queue", partial(ask, Send("one", [message])), 10_000),
        ("receive, one queue", receive, 10_000),
        ("publish, 10 subscriptions", partial(ask, Send("ten", [message])), 5_000),
        ("send, sessions", partial(ask, Send("sessions", [in_session])), 5_000),
    ):
        found = await rate(work, 1, OUTSTANDING)
        told(what, found, goal, "a second", least=True)
    granted = await ask(AcceptSession("sessions", engine.new_receiver(), "s"))
    assert isinstance(granted, Granted)

    async def receive_in_session() -> None:
        command = Receive("sessions", engine.new_receiver(), delete=True, session=granted.token)
        await ask(command)

    found = await rate(receive_in_session, 1, OUTSTANDING)
    told("receive, sessions", found, 5_000, "a second", least=True)
    await engine.close()


# Filters.


def filters() -> None:
    print("Filters, for one message:")
    properties: Properties = {"region": "eu-west", "amount": 1_500, "vip": True}
    envelope = encode_envelope(Envelope(id="m", subject="order", properties=properties))
    text = "amount > 1000 AND region LIKE 'eu-%' AND (vip = TRUE OR region IN ('us', 'asia'))"
    sql = compile_filter(text, {})
    correlation = compile_correlation({"subject": "order"}, {"region": "eu-west"})

    def timed(fits: Callable[[MessageView], bool | None]) -> list[float]:
        found = []
        for _ in range(20_000):
            begun = time.perf_counter()
            assert fits(MessageView(envelope, new_id=lambda: b""))
            found.append(time.perf_counter() - begun)
        return found

    latencies("SQL", timed(sql), (0.1, 1, 5))
    latencies("correlation", timed(correlation), (0.01, 0.05, 0.1))


def main() -> None:
    over_http()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        asyncio.run(in_process(Path(folder)))
    filters()


if __name__ == "__main__":
    main()
