"""Messages cross: what other clients send is received by AWS's, and the other way round."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage

from tests.dialects.blackbox import pyqueue
from tests.dialects.servicebus.bus import WAIT, Bus
from tests.dialects.sqs.rig import Aws, refused


@pytest.fixture(scope="module")
def bus(aws: Aws) -> Iterator[Bus]:
    made = Bus(aws.broker)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tasks(aws: Aws) -> Iterator[pyqueue.Client]:
    with pyqueue.Client(aws.broker) as made:
        yield made


def test_attributes_are_properties_for_azure_with_their_types(aws: Aws, bus: Bus) -> None:
    queue = aws.queue()
    given = {
        "text": {"DataType": "String.label", "StringValue": "grün"},
        "whole": {"DataType": "Number", "StringValue": "42"},
        "part": {"DataType": "Number", "StringValue": "2.5"},
        "exact": {"DataType": "Number", "StringValue": "0.1000000000000000000001"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }
    [id] = aws.send(queue, "grüße", MessageAttributes=given, MessageGroupId="tenant")
    receiver = bus.receiver(queue.rpartition("/")[2])
    [found] = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
    assert (str(found), found.message_id, found.partition_key) == ("grüße", id, "tenant")
    assert found.application_properties == {  # the SDK has texts as bytes
        b"text": "grün".encode(),
        b"whole": 42,
        b"part": 2.5,
        b"exact": b"0.1000000000000000000001",
        b"bytes": b"\0\xff",
    }
    receiver.abandon_message(found)
    [again] = aws.receive(queue)  # with all that only AWS's clients know of
    assert again["MessageAttributes"] == given
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


def test_properties_of_azure_are_attributes(aws: Aws, bus: Bus) -> None:
    queue = aws.queue()
    sender = bus.sender(queue.rpartition("/")[2])
    number = UUID(int=7)
    properties: Any = {
        "text": "grün", "whole": 42, "part": 2.5, "yes": True, "bytes": b"\0a", "id": number,
        "when": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "nothing": None,
    }  # fmt: skip
    message = ServiceBusMessage("grüße", application_properties=properties, message_id="m-1")
    sender.send_messages(message)
    [found] = aws.receive(queue)
    assert (found["Body"], found["MessageId"]) == ("grüße", "m-1")
    assert found["MessageAttributes"] == {
        "text": {"DataType": "String", "StringValue": "grün"},
        "whole": {"DataType": "Number", "StringValue": "42"},
        "part": {"DataType": "Number", "StringValue": "2.5"},
        "yes": {"DataType": "String.bool", "StringValue": "true"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\0a"},
        "id": {"DataType": "String.uuid", "StringValue": str(number)},
        "when": {"DataType": "String.datetime", "StringValue": "2030-01-02T03:04:05.000+00:00"},
    }
    assert "SenderId" not in found["Attributes"]


def test_a_body_that_is_no_text_is_told_in_base64(aws: Aws, bus: Bus) -> None:
    queue = aws.queue()
    bus.sender(queue.rpartition("/")[2]).send_messages(ServiceBusMessage(b"\0\xff"))
    [found] = aws.receive(queue)
    assert found["Body"] == "AP8="
    assert found["MessageAttributes"] == {
        "posthouse.encoding": {"DataType": "String", "StringValue": "base64"}
    }
    aws.client.delete_message(QueueUrl=queue, ReceiptHandle=found["ReceiptHandle"])


def test_tasks_cross_and_their_queues_are_listed(aws: Aws, tasks: pyqueue.Client) -> None:
    name = aws.name("-tasks")
    task = tasks.push("a parcel", name)
    assert f"{aws.broker.url}/000000000000/{name}" in aws.client.list_queues()["QueueUrls"]
    url = aws.client.get_queue_url(QueueName=name)["QueueUrl"]
    [found] = aws.receive(url)
    assert (found["Body"], found["MessageId"]) == ("a parcel", task)
    aws.client.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    [id] = aws.send(url, '{"to": "Zürich"}')
    job = tasks.pull(name)
    assert (job["task_id"], job["payload"]) == (id, '{"to": "Zürich"}')
    assert aws.counts(url) == (0, 1, 0)
    found = aws.attribute(url)
    assert found["VisibilityTimeout"] == "10"  # as PyQueue makes its queues


def test_a_queue_of_sessions_is_not_received_from(aws: Aws) -> None:
    name = aws.name()
    form = {"requires_session": True, "grouping": "session"}
    assert aws.broker.queue("PUT", name, form).status == 201
    url = f"{aws.broker.url}/000000000000/{name}"
    aws.send(url, "x", MessageGroupId="s")
    told = refused(aws.client.receive_message, QueueUrl=url)
    assert (told.kind, told.code, told.status) == (
        "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400
    )  # fmt: skip
    assert "sessions" in told.text
