"""A client of the Azure SDK, as a process of its own: with the SDK's retries, and nothing beside.

    python -m tests.cluster.azure_client HOST PORT QUEUE

It says on its standard output, a JSON list a line, what it does and hears. It is told on its
standard input to pause, and says so when nothing is under way; and to go on. It ends with it.
"""

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusQuotaExceededError

PACE_SECONDS = 0.02
REFUSED_SECONDS = 0.2
WAIT_SECONDS = 5  # also for a link to open
RAISED = (AzureError, ValueError, OSError)  # what the SDK lets through to who uses it


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
        self._sent = 0
        self._threads = [threading.Thread(target=run) for run in (self._send, self._receive)]

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
            self._sent += 1
            name = f"azure-{self._sent:06}"
            self._say("sending", name)
            try:
                sender.send_messages(ServiceBusMessage(name * 3, message_id=name))
            except ServiceBusQuotaExceededError:  # the disk is full
                self._over.wait(REFUSED_SECONDS)
            else:
                self._say("sent", name)
                self._over.wait(PACE_SECONDS)

        self._repeat("sender", step)

    def _receive(self) -> None:
        receiver = self._client.get_queue_receiver(self._queue)

        def step() -> None:
            for message in receiver.receive_messages(10, max_wait_time=WAIT_SECONDS):
                name, token = str(message.message_id), str(message.lock_token)
                assert str(message) == name * 3
                self._say("delivered", name, token)
                self._say("completing", name, token)
                try:
                    receiver.complete_message(message)
                except MessageLockLostError:
                    self._say("lost", name, token)
                else:
                    self._say("completed", name, token)

        self._repeat("receiver", step)


if __name__ == "__main__":
    Client(*sys.argv[1:]).run()
