"""The broker goes away under running clients, in order or not: they go on, and nothing is missing.

Every word that the clients say and hear is told to a history, which knows what must be so.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiver, ServiceBusSender

from tests.crash.history import History
from tests.dialects.servicebus.bus import HEARS, Bus, eventually, take, texts
from tests.server.running import Running

QUEUE = "load"
SENDERS = RECEIVERS = 2
RESTARTS = max(1, int(os.environ.get("KILLS", "10")) // 10)
GONE = (AzureError, ValueError)  # what the SDK says of a connection that has broken

# It leaves sockets of broken connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What is left behind is collected here, and not in a later test."""
    yield
    gc.collect()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Load:
    """Clients that send and receive for as long as they are let, whatever happens to the broker.

    They try nothing twice: what has failed may have happened, and is not said again.
    """

    def __init__(self, bus: Bus, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()  # a history hears one word at a time
        self._over = threading.Event()
        client = bus.client(retry_total=0)
        self._sent = 0
        self.threads = [
            *(
                threading.Thread(target=self._send, args=(client.get_queue_sender(QUEUE),))
                for _ in range(SENDERS)
            ),
            *(
                threading.Thread(target=self._receive, args=(client.get_queue_receiver(QUEUE),))
                for _ in range(RECEIVERS)
            ),
        ]
        self.problems: list[BaseException] = []

    def count(self, word: str) -> int:
        with self._lock:
            return self._history.counts[word]

    def more(self, count: int) -> None:
        """Until so many more were acknowledged, sent as well as completed."""
        for word in ("sent", "completed" if HEARS else "completing"):
            wanted = self.count(word) + count
            eventually(lambda w=word, n=wanted: self.count(w) >= n or bool(self.problems), 60)  # type: ignore[misc]
        assert not self.problems

    @contextmanager
    def running(self) -> Iterator[None]:
        for each in self.threads:
            each.start()
        try:
            yield
        finally:
            self._over.set()
            for each in self.threads:
                each.join()

    def killed(self) -> None:
        with self._lock:
            self._history.killed(now_ms())

    def _say(self, word: Callable[..., None], *what: Any) -> None:
        with self._lock:
            word(*what)

    def _until_over(self, step: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                step()
            except GONE:
                self._over.wait(0.05)  # the broker is away
            except BaseException as problem:
                self.problems.append(problem)
                raise

    def _send(self, sender: ServiceBusSender) -> None:
        def step() -> None:
            with self._lock:
                self._sent += 1
                name = f"m{self._sent:06}"
                self._history.sending([name])
            sender.send_messages(ServiceBusMessage(name * 3, message_id=name))
            self._say(self._history.sent, [name])

        self._until_over(step)
        with suppress(*GONE):
            sender.close()

    def _receive(self, receiver: ServiceBusReceiver) -> None:
        history = self._history

        def step() -> None:
            for each in receiver.receive_messages(10, max_wait_time=0.5):
                name, token = str(each.message_id), str(each.lock_token)
                assert str(each) == name * 3
                assert each.locked_until_utc is not None
                until_ms = int(each.locked_until_utc.timestamp() * 1000)
                self._say(history.delivered, name, token, until_ms, now_ms())
                self._say(history.completing, name, token)
                with suppress(*GONE):
                    receiver.complete_message(each)
                    if HEARS:
                        self._say(history.completed, name, token)

        self._until_over(step)
        with suppress(*GONE):
            receiver.close()


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers; none is left behind where a test fails."""
    started: list[Running] = []

    def start_one(*flags: str) -> Running:
        started.append(Running(*flags))
        return started[-1]

    yield start_one
    for each in started:
        if each.process.poll() is None:
            each.kill()


def names(broker: Running, queue: str) -> list[str]:
    first: int | None = 0
    found: list[str] = []
    while first is not None:
        page = broker.queue("GET", f"{queue}/messages?limit=1000&first={first}").json
        found += [each["id"] for each in page["messages"]]
        first = page["next"]
    return found


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nothing_acknowledged_is_missing_when_the_broker_comes_back(
    tmp_path: Path, start: Start, how: str
) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    broker = start(*flags)
    port = str(broker.port)
    broker.queue("PUT", QUEUE, {"lock_ms": 60_000})
    history = History()
    load = Load(Bus(broker), history)
    with load.running():
        for _ in range(RESTARTS):
            load.more(50)
            if how == "killed":
                broker.process.kill()
            assert broker.stop() == (-9 if how == "killed" else 0)
            load.killed()
            broker = start(*flags, "--port", port)
        load.more(50)
    assert not load.problems
    history.check(names(broker, QUEUE), names(broker, f"{QUEUE}%2F$dead"))
    assert broker.stop() == 0


def test_a_client_goes_on_by_itself_when_the_broker_comes_back(
    tmp_path: Path, start: Start
) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    broker = start(*flags)
    port = str(broker.port)
    bus = Bus(broker)
    queue = bus.queue()
    sender, receiver = bus.pair(queue)
    sender.send_messages([ServiceBusMessage("before"), ServiceBusMessage("kept")])
    assert texts(take(receiver, 1)) == ["before"]
    assert broker.stop() == 0
    broker = start(*flags, "--port", port)
    sender.send_messages(ServiceBusMessage("after"))
    assert texts(take(receiver, 2)) == ["kept", "after"]
    bus.close()
    assert broker.stop() == 0
