"""A client of the Azure SDK, as a process of its own: with the SDK's retries, and nothing beside.

    python -m tests.cluster.azure_client HOST PORT QUEUE

It says on its standard output, a JSON list a line, what it does and hears. It is told on its
standard input to pause, and says so when nothing is under way; and to go on. It ends with it.

    ["sending", NAME]                   ["sent", NAME]
    ["delivered", NAME, TOKEN, LINK, UNTIL_MS]
    ["completing", NAME, TOKEN, NOW_MS]
    ["completed", NAME, TOKEN, LINK]    LINK is "" where it was not asked over that link alone
    ["lost", NAME, TOKEN, ASKED]        ASKED: how many requests for it were made
    ["raised", TEXT]                    ["paused", THREAD]                 ["goes", THREAD]
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp.receiver import ReceiverLink
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusQuotaExceededError

PACE_SECONDS = 0.02
REFUSED_SECONDS = 0.2
WAIT_SECONDS = 5  # also for a link to open
BATCH = 10
KEEP_SHARE = 0.1  # of messages, which are kept for a while before they are completed
KEEP_SECONDS = 4.0  # at most
RAISED = (AzureError, ValueError, OSError)  # what the SDK lets through to who uses it


class Asked(threading.local):
    """The requests to settle that a thread has made, of which the SDK tells nobody."""

    tag: bytes | None = None  # of the message; others are released meanwhile
    over_link = 0
    by_management = 0

    def begin(self, message: ServiceBusReceivedMessage) -> None:
        self.tag, self.over_link, self.by_management = message._delivery_tag, 0, 0


ASKED = Asked()


def count_requests() -> None:
    """Has the SDK count them. There is no public way: it asks again by itself."""
    dispose = ReceiverLink._outgoing_disposition

    def disposing(link: Any, first: int, last: int | None, tag: bytes, *more: Any) -> None:
        # What the link does not know is not sent.
        ASKED.over_link += tag == ASKED.tag and tag in link._received_delivery_tags
        dispose(link, first, last, tag, *more)

    ReceiverLink._outgoing_disposition = disposing  # type: ignore[assignment,method-assign]


class Receiver:
    """A receiver with a connection of its own, which is another one after a reconnection."""

    def __init__(self, name: str, client: ServiceBusClient, queue: str) -> None:
        self._name = name
        self._receiver = client.get_queue_receiver(queue)
        self._handler: object = None
        self._links = 0
        ask = self._receiver._settle_message_via_mgmt_link

        def asking(*given: Any, **more: Any) -> Any:
            ASKED.by_management += 1
            return ask(*given, **more)

        self._receiver._settle_message_via_mgmt_link = asking  # type: ignore[method-assign]

    @property
    def link(self) -> str:
        if self._receiver._handler is not self._handler:
            self._handler = self._receiver._handler
            self._links += 1
        return f"{self._name} {self._links}"

    def receive(self) -> list[ServiceBusReceivedMessage]:
        return self._receiver.receive_messages(BATCH, max_wait_time=WAIT_SECONDS)

    def complete(self, message: ServiceBusReceivedMessage) -> str:
        """Returns the link over which alone it was asked and answered; "" for none."""
        ASKED.begin(message)
        before = self.link
        self._receiver.complete_message(message)
        is_sole = (ASKED.over_link, ASKED.by_management) == (1, 0)
        return before if is_sole and self.link == before else ""


class Client:
    def __init__(self, host: str, port: str, queue: str) -> None:
        text = (
            f"Endpoint=sb://{host}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        self._client = ServiceBusClient.from_connection_string(text)
        self._queue = queue
        self._lock = threading.Lock()
        self._goes = threading.Event()
        self._over = threading.Event()
        self._sent = count(1)
        runs: list[Callable[[], None]] = [
            self._send, lambda: self._receive("first"), lambda: self._receive("second")
        ]  # fmt: skip
        self._threads = [threading.Thread(target=run) for run in runs]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for line in sys.stdin:
            self._goes.set() if line.strip() == "go" else self._goes.clear()
        self._over.set()
        self._goes.set()

    def _say(self, *words: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(words) + "\n")
            sys.stdout.flush()

    def _repeat(self, name: str, step: Callable[[], None]) -> None:
        self._goes.wait()
        while not self._over.is_set():
            try:
                step()
            except RAISED as error:
                self._say("raised", f"{name}: {type(error).__name__}: {error}"[:300])
            if not self._goes.is_set():
                self._say("paused", name)
                self._goes.wait()
                self._say("goes", name)

    def _send(self) -> None:
        sender = self._client.get_queue_sender(self._queue)

        def step() -> None:
            name = f"azure-{next(self._sent):06}"
            self._say("sending", name)
            try:
                sender.send_messages(ServiceBusMessage(name * 3, message_id=name))
            except ServiceBusQuotaExceededError:  # the disk is full
                self._over.wait(REFUSED_SECONDS)
            else:
                self._say("sent", name)
                self._over.wait(PACE_SECONDS)

        self._repeat("sender", step)

    def _receive(self, name: str) -> None:
        """Completes what it has received, most of it at once and some a while later."""
        receiver, random = Receiver(name, self._client, self._queue), Random(name)
        held: list[tuple[float, ServiceBusReceivedMessage]] = []  # and when it is to be completed

        def step() -> None:
            if self._goes.is_set():
                given = receiver.receive()
                for message in given:
                    self._say_delivered(message, receiver.link)
                now = time.monotonic()
                held.extend(
                    (now + random.random() * KEEP_SECONDS * (random.random() < KEEP_SHARE), each)
                    for each in given
                )
            due = time.monotonic() if self._goes.is_set() else time.monotonic() + KEEP_SECONDS
            while ready := [each for each in held if each[0] <= due]:
                held.remove(ready[0])
                self._complete(receiver, ready[0][1])

        self._repeat(name, step)

    def _say_delivered(self, message: ServiceBusReceivedMessage, link: str) -> None:
        name, until = str(message.message_id), message.locked_until_utc
        assert str(message) == name * 3
        assert until is not None
        until_ms = round(until.timestamp() * 1_000)
        self._say("delivered", name, str(message.lock_token), link, until_ms)

    def _complete(self, receiver: Receiver, message: ServiceBusReceivedMessage) -> None:
        name, token = str(message.message_id), str(message.lock_token)
        self._say("completing", name, token, time.time_ns() // 1_000_000)
        try:
            link = receiver.complete(message)
        except MessageLockLostError:
            self._say("lost", name, token, ASKED.over_link + ASKED.by_management)
        else:
            self._say("completed", name, token, link)


if __name__ == "__main__":
    count_requests()
    Client(*sys.argv[1:]).run()
