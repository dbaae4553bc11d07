"""One message, many protocols: who sends, who receives and who counts need not speak the same."""

import json
from collections.abc import Iterator
from itertools import count

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

import posthouse
from tests.dialects.blackbox import pyqueue, vibemq
from tests.dialects.servicebus.bus import KEY, NOTHING, ROOT, WAIT, Bus, eventually, texts, together
from tests.server.running import running

_numbers = count(1)


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("across") / "data"
    with running("--data", str(folder), "--dev") as broker:
        made = Bus(broker)
        made.clock(frozen=True)  # locks do not end because a machine is busy
        yield made
        made.close()


@pytest.fixture
def tasks(bus: Bus) -> Iterator[pyqueue.Client]:
    with pyqueue.Client(bus.broker) as made:
        yield made


@pytest.fixture
def frames(bus: Bus) -> Iterator[vibemq.Client]:
    with vibemq.Client(bus.broker) as made:
        yield made


@pytest.fixture
def client(bus: Bus) -> Iterator[posthouse.SyncQueueClient]:
    url = f"posthouse://{ROOT}:{KEY}@127.0.0.1:{bus.broker.port}"
    with posthouse.create_sync_client(url) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"parcels{next(_numbers)}"


class Counts:
    """Of one queue, as every dialect tells them."""

    def __init__(self, bus: Bus, queue: str) -> None:
        self._bus, self._queue = bus, queue
        self._tasks, self._frames = pyqueue.Client(bus.broker), vibemq.Client(bus.broker)
        self._open: list[ServiceBusReceiver] = []

    def __enter__(self) -> "Counts":
        return self

    def __exit__(self, *error: object) -> None:
        self._tasks.close()
        self._frames.close()

    def open(self) -> None:
        """Azure's view: links that only look. The queue has to be there."""
        self._open = together(
            lambda: self._bus.receiver(self._queue),
            lambda: self._bus.receiver(self._queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
        )

    def are(self, ready: int = 0, held: int = 0, dead: int = 0) -> None:
        found = self._tasks.stats()["queues"][self._queue]
        assert found == {"depth": ready, "processing": held}
        letters = self._tasks.ok("ADMIN_GET_DLQ", {"queue": self._queue}).json
        assert letters["count"] == len(letters["tasks"]) == dead
        assert self._frames.info(self._queue)["messageCount"] == ready + held
        told = self._bus.counts(self._queue)
        assert (told["active"], told["locked"], told["dead"]) == (ready, held, dead)
        if self._open:
            seen = [len(each.peek_messages(100, sequence_number=1)) for each in self._open]
            assert seen == [ready + held, dead]


def test_a_task_is_dead_lettered_by_azure_and_requeued_by_pyqueue(
    bus: Bus, tasks: pyqueue.Client, queue: str
) -> None:
    with Counts(bus, queue) as counts:
        task = tasks.push("a parcel", queue, "HIGH")
        counts.open()
        counts.are(ready=1)

        receiver = bus.receiver(queue)
        [message] = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
        assert (str(message), message.message_id) == ("a parcel", task)
        counts.are(held=1)
        assert tasks.pull(queue) is None

        receiver.dead_letter_message(message, reason="torn", error_description="it is torn")
        eventually(lambda: bus.counts(queue)["dead"] == 1)
        counts.are(dead=1)
        [letter] = tasks.ok("ADMIN_GET_DLQ", {"queue": queue}).json["tasks"]
        assert (letter["task_id"], letter["payload"], letter["queue"]) == (task, "a parcel", queue)

        form = {"queue": queue, "task_ids": [task]}
        assert tasks.ok("ADMIN_REQUEUE_DLQ", form).json == {"requeued": 1}
        counts.are(ready=1)
        job = tasks.pull(queue)
        assert (job["task_id"], job["payload"], job["priority"]) == (task, "a parcel", 0)
        counts.are(held=1)
        tasks.ok("ACK", task)
        counts.are()


def test_a_task_that_failed_three_times_is_among_azures_dead_letters(
    bus: Bus, tasks: pyqueue.Client, queue: str
) -> None:
    with Counts(bus, queue) as counts:
        task = tasks.push("sour", queue)
        for _ in range(3):
            tasks.pull(queue)
            tasks.nack(task, "it is sour")
        counts.open()
        counts.are(dead=1)
        receiver = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        [message] = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
        assert (str(message), message.message_id) == ("sour", task)
        assert message.dead_letter_reason
        receiver.complete_message(message)
        eventually(lambda: bus.counts(queue)["dead"] == 0)
        counts.are()


def test_what_vibemq_publishes_is_pulled_by_pyqueue(
    bus: Bus, tasks: pyqueue.Client, frames: vibemq.Client, queue: str
) -> None:
    with Counts(bus, queue) as counts:
        published = frames.publish(queue, {"to": "Zürich"}, priority="critical")
        counts.open()
        counts.are(ready=1)
        job = tasks.pull(queue)
        assert (job["task_id"], json.loads(job["payload"])) == (published, {"to": "Zürich"})
        assert job["priority"] == 0
        counts.are(held=1)
        assert tasks.nack(published) == "Task retry scheduled"
        bus.advance(10)  # VibeMQ's queues wait between attempts
        counts.are(ready=1)
        frames.subscribe(queue)
        delivery = frames.deliver()
        assert (delivery.id, delivery.payload) == (published, {"to": "Zürich"})
        assert delivery.headers["priority"] == "critical"
        counts.are(held=1)
        frames.ack(delivery)
        eventually(lambda: bus.counts(queue)["locked"] == 0)
        counts.are()


def test_what_the_python_client_sends_is_delivered_by_vibemq(
    bus: Bus, client: posthouse.SyncQueueClient, frames: vibemq.Client, queue: str
) -> None:
    with Counts(bus, queue) as counts:
        frames.subscribe(queue)
        sent = client.send_message(queue, posthouse.Message.of({"to": "Zürich"}))
        delivery = frames.deliver()
        assert (delivery.id, delivery.payload) == (str(sent), {"to": "Zürich"})
        counts.open()
        counts.are(held=1)
        frames.ack(delivery)
        eventually(lambda: bus.counts(queue)["locked"] == 0)
        counts.are()


def test_what_vibemq_loses_with_its_connection_comes_to_the_python_client(
    bus: Bus, client: posthouse.SyncQueueClient, queue: str
) -> None:
    with Counts(bus, queue) as counts:
        with vibemq.Client(bus.broker) as leaving:
            leaving.subscribe(queue)
            published = leaving.publish(queue, "left behind")
            leaving.deliver()
            counts.are(held=1)
        eventually(lambda: bus.counts(queue)["active"] == 1)
        counts.are(ready=1)
        received = client.receive_message(queue, timeout=WAIT)
        assert received is not None
        assert (received.message_id, json.loads(received.body)) == (published, "left behind")
        client.complete_message(received)
        counts.are()


def test_a_queue_keeps_the_order_of_all_who_send(
    bus: Bus,
    tasks: pyqueue.Client,
    frames: vibemq.Client,
    client: posthouse.SyncQueueClient,
    queue: str,
) -> None:
    tasks.push('"0"', queue)
    sender = bus.sender(queue)
    for at in range(1, 13):
        payload = json.dumps(str(at))
        match at % 4:
            case 0:
                tasks.push(payload, queue)
            case 1:
                frames.publish(queue, str(at))
            case 2:
                sender.send_messages(ServiceBusMessage(payload))
            case _:
                client.send_message(queue, posthouse.Message(payload.encode()))
    with Counts(bus, queue) as counts:
        counts.are(ready=13)
        receiver = bus.receiver(queue)
        seen = texts(receiver.peek_messages(max_message_count=20))
        assert [json.loads(each) for each in seen] == [str(at) for at in range(13)]
        first = [json.loads(tasks.pull(queue)["payload"]) for _ in range(6)]
        counts.are(ready=7, held=6)
        frames.subscribe(queue)
        assert first + frames.take(7) == [str(at) for at in range(13)]
        eventually(lambda: bus.counts(queue)["locked"] == 6)
        counts.are(held=6)
        assert receiver.receive_messages(max_message_count=1, max_wait_time=NOTHING) == []


def test_receivers_of_every_kind_are_given_a_run_of_a_group(
    bus: Bus, tasks: pyqueue.Client, queue: str
) -> None:
    bus.ask("PUT", f"queues/{queue}", {"grouping": "run"})
    sender, receiver = bus.pair(queue)
    new = [ServiceBusMessage(json.dumps(text), partition_key="g") for text in "123456"]
    sender.send_messages(new)
    held: list[ServiceBusReceivedMessage] = []
    while len(held) < 3:
        held += receiver.receive_messages(max_message_count=3 - len(held), max_wait_time=WAIT)
    assert texts(held) == ['"1"', '"2"', '"3"']
    assert bus.broker.receive(queue, 10) == []
    for each in held:
        receiver.complete_message(each)
    task = tasks.pull(queue)
    assert task["payload"] == '"4"'
    assert bus.broker.receive(queue, 10) == []
    tasks.ok("ACK", task["task_id"])
    assert [each["body"] for each in bus.broker.receive(queue, 10)] == ['"5"', '"6"']


def test_a_topic_of_pyqueue_reaches_everybody(
    bus: Bus, tasks: pyqueue.Client, frames: vibemq.Client, queue: str
) -> None:
    queues = [f"{queue}-{each}" for each in "ab"]
    for each in queues:
        tasks.ok("SUBSCRIBE", {"topic": f"{queue}.#", "queue": each})
    frames.subscribe(queues[0])
    assert tasks.ok("PUBLISH", {"topic": f"{queue}.x.y", "message": "1"}).json["published"] == 2
    assert frames.take(1) == [1]
    [message] = bus.receiver(queues[1]).receive_messages(max_message_count=1, max_wait_time=WAIT)
    assert str(message) == "1"
