"""A broker as clients of Azure Service Bus have it, and short ways to open the SDK's own objects.

Opening a link takes the SDK half a second, most of it asleep, and closing it as long again: what a
test needs is opened at the same time, and everything is closed together when a module is through.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any, TypeVar

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    __version__,
)

from tests.server.running import Running
from tests.waiting import until

assert os.environ.get("SERVICEBUS", __version__) == __version__  # the one that is meant
ROOT = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
WAIT = 20  # seconds for what will come: long, for a machine that does other things as well
NOTHING = 0.2  # seconds for what will not come
HEARS = __version__ >= "7.15"  # before, the SDK does not wait to hear how settling went
STOCK = 6  # queues that are made ready ahead

Handler = TypeVar("Handler", ServiceBusSender, ServiceBusReceiver)
Made = TypeVar("Made")


def eventually(holds: Callable[[], bool], seconds: float = WAIT) -> None:
    """Until something that goes on elsewhere has happened."""
    until(holds, "it has happened", seconds)


def together(*work: Callable[[], Made]) -> list[Made]:
    """All at the same time; raises the first of what they raise."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [each.result() for each in [pool.submit(each) for each in work]]


def ids(messages: Iterable[ServiceBusReceivedMessage]) -> list[str | None]:
    return [each.message_id for each in messages]


def texts(messages: Iterable[ServiceBusReceivedMessage]) -> list[str]:
    return [str(each) for each in messages]


def take(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Receives so many, and completes them where they are locked."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=WAIT)
        assert some, f"only {len(found)} of {count} have come"
        found += some
        for each in some:
            if each.lock_token is not None:
                receiver.complete_message(each)
    return found


class Bus:
    """A running broker, its queues, and who is connected to it."""

    _numbers = count(1)

    def __init__(self, broker: Running) -> None:
        self.broker = broker
        self._opened: list[ServiceBusSender | ServiceBusReceiver] = []
        self._pool = ThreadPoolExecutor(STOCK)
        self._stock: deque[Future[tuple[str, ServiceBusSender, ServiceBusReceiver]]] = deque()

    def close(self) -> None:
        self._pool.shutdown()

        def close(handler: ServiceBusSender | ServiceBusReceiver) -> None:
            with suppress(Exception):  # a test may have left it in any state
                handler.close()

        if self._opened:
            with ThreadPoolExecutor(len(self._opened)) as pool:
                list(pool.map(close, self._opened))

    # Connections.

    def connection_string(self, name: str = ROOT, key: str = KEY, port: int = 0) -> str:
        return (
            f"Endpoint=sb://localhost:{port or self.broker.port};SharedAccessKeyName={name};"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
        )

    def client(
        self, name: str = ROOT, key: str = KEY, port: int = 0, **options: Any
    ) -> ServiceBusClient:
        text = self.connection_string(name, key, port)
        return ServiceBusClient.from_connection_string(text, **options)

    def closing(self, handler: Handler) -> Handler:
        """It is closed when the module is through."""
        self._opened.append(handler)
        return handler

    def sender(self, queue: str, retries: int = 3) -> ServiceBusSender:
        client = self.client(retry_total=retries)
        return self.closing(client.get_queue_sender(queue)).__enter__()

    def receiver(self, queue: str, retries: int = 3, **options: Any) -> ServiceBusReceiver:
        client = self.client(retry_total=retries)
        return self.closing(client.get_queue_receiver(queue, **options)).__enter__()

    def pair(
        self, queue: str, retries: int = 3, **options: Any
    ) -> tuple[ServiceBusSender, ServiceBusReceiver]:
        """A sender and a receiver. Options are the receiver's."""
        client = self.client(retry_total=retries)
        receiver = self.closing(client.get_queue_receiver(queue, **options))
        sender = self.closing(client.get_queue_sender(queue))
        opening: list[AbstractContextManager[Any]] = [sender, receiver]
        together(*(each.__enter__ for each in opening))
        return sender, receiver

    def ready(self, **properties: Any) -> tuple[str, ServiceBusSender, ServiceBusReceiver]:
        """A queue with a sender and a receiver: opened before, while others were being used."""
        while len(self._stock) < STOCK:
            self._stock.append(self._pool.submit(self._made))
        found = self._stock.popleft().result()
        if properties:
            self.update(found[0], **properties)
        return found

    def _made(self) -> tuple[str, ServiceBusSender, ServiceBusReceiver]:
        queue = self.queue()
        return (queue, *self.pair(queue))

    # The broker's own side.

    def queue(self, **properties: Any) -> str:
        """A new one."""
        name = f"q{next(self._numbers)}"
        reply = self.broker.queue("PUT", name, properties)
        assert reply.status == 201, reply
        return name

    def topic(self, *subscriptions: str, **properties: Any) -> str:
        """A new one, with subscriptions that get everything."""
        name = f"t{next(self._numbers)}"
        self.ask("PUT", f"topics/{name}", properties)
        for each in subscriptions:
            self.subscribe(name, each)
        return name

    def subscribe(self, topic: str, name: str, *rules: dict[str, Any], **properties: Any) -> None:
        form = {**properties, "rules": list(rules)} if rules else properties
        self.ask("PUT", f"topics/{topic}/subscriptions/{name}", form)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = self.broker.call(method, f"/api/v1/namespaces/default/{path}", body)
        assert reply.status < 300, reply
        return reply.json if reply.body else None

    def sessions(self, **properties: Any) -> str:
        return self.queue(requires_session=True, grouping="session", **properties)

    def update(self, queue: str, **properties: Any) -> None:
        reply = self.broker.queue("PATCH", queue, properties)
        assert reply.status == 200, reply

    def counts(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = self.broker.queue("GET", queue).json["counts"]
        return found

    def receivers(self, queue: str) -> int:
        found: int = self.broker.queue("GET", queue).json["receivers"]
        return found

    def leave(self, receiver: ServiceBusReceiver, queue: str) -> None:
        """Closes it. The SDK sleeps on for a second when that is done."""
        before = self.receivers(queue)
        self._pool.submit(receiver.close)
        eventually(lambda: self.receivers(queue) < before)

    def clock(self, **form: Any) -> int:
        reply = self.broker.call("POST", "/api/v1/namespaces/default/clock", form)
        assert reply.status == 200, reply
        now_ms: int = reply.json["now_ms"]
        return now_ms

    def advance(self, seconds: float) -> None:
        self.clock(advance_ms=int(seconds * 1000))

    def principal(self, name: str, *rights: str, entity: str = "*") -> str:
        """Its key."""
        grants = [{"rights": list(rights), "namespace": "default", "entity": entity}]
        reply = self.broker.call("POST", "/api/v1/principals", {"name": name, "grants": grants})
        assert reply.status == 201, reply
        key: str = reply.json["key"]
        return key
