"""Move tasks: dead letters go back to where they came from, or elsewhere, in the background."""

import base64
import json
from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws, refused
from tests.dialects.sqs.test_redrive import bury, policy


def tasks(aws: Aws, source: str, most: int = 10) -> list[dict[str, Any]]:
    answer = aws.client.list_message_move_tasks(SourceArn=aws.arn(source), MaxResults=most)
    found: list[dict[str, Any]] = answer.get("Results", [])
    return found


def start(aws: Aws, source: str, **more: Any) -> str:
    handle: str = aws.client.start_message_move_task(SourceArn=aws.arn(source), **more)[
        "TaskHandle"
    ]
    return handle


def test_dead_letters_go_back_to_where_they_came_from(aws: Aws) -> None:
    dead = aws.queue()
    queues = [aws.queue(**policy(aws, dead, 1)) for _ in range(2)]
    for queue in queues:
        aws.send(queue, f"of {queue}")
        bury(aws, queue, 1)
    handle = start(aws, dead)
    assert json.loads(base64.b64decode(handle))["sourceArn"] == aws.arn(dead)
    aws.pass_time(1)
    for queue in queues:
        [found] = aws.receive(queue)
        assert found["Body"] == f"of {queue}"
        told = found["Attributes"]
        assert told["ApproximateReceiveCount"] == "1"
        assert "DeadLetterQueueSourceArn" not in told
    [task] = tasks(aws, dead)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    assert task["ApproximateNumberOfMessagesToMove"] == 2
    assert task["SourceArn"] == aws.arn(dead)
    assert not {"TaskHandle", "DestinationArn", "FailureReason"} & task.keys()


def test_a_task_may_have_another_target_and_a_rate_and_be_cancelled(aws: Aws) -> None:
    dead, other = aws.queue(), aws.queue()
    queue = aws.queue(**policy(aws, dead, 1))
    aws.send(queue, *map(str, range(5)))
    aws.receive(queue)
    aws.pass_time(31)
    handle = start(aws, dead, DestinationArn=aws.arn(other), MaxNumberOfMessagesPerSecond=1)
    again = {"SourceArn": aws.arn(dead)}
    assert refused(aws.client.start_message_move_task, **again).code == "InvalidParameterValue"
    [task] = tasks(aws, dead)
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
    assert (task["DestinationArn"], task["MaxNumberOfMessagesPerSecond"]) == (aws.arn(other), 1)
    moved = aws.client.cancel_message_move_task(TaskHandle=handle)
    count = moved["ApproximateNumberOfMessagesMoved"]
    [task] = tasks(aws, dead)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("CANCELLED", count)
    assert len(aws.receive(other)) == count < 5
    gone = refused(aws.client.cancel_message_move_task, TaskHandle=handle)
    assert gone.code == "ResourceNotFoundException"


def test_a_task_fails_if_a_source_is_gone(aws: Aws) -> None:
    dead = aws.queue()
    queue, left = (aws.queue(**policy(aws, dead, 1)) for _ in range(2))
    aws.send(queue, "a")
    bury(aws, queue, 1)
    aws.client.delete_queue(QueueUrl=queue)
    start(aws, dead)
    aws.pass_time(1)
    [task] = tasks(aws, dead)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert left


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({"SourceArn": "nonsense"}, "InvalidParameterValue"),
        ({"SourceArn": "arn:aws:sqs:eu-central-1:000000000000:none"}, "ResourceNotFoundException"),
        ({"SourceArn": "arn:aws:sqs:eu-central-1:987654321098:none"}, "ResourceNotFoundException"),
        ({"DestinationArn": "arn:aws:sqs:x:000000000000:none"}, "ResourceNotFoundException"),
        ({"DestinationArn": "own"}, "InvalidParameterValue"),
        ({"DestinationArn": "fifo"}, "InvalidParameterValue"),
        ({"MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValue"),
    ],
)
def test_what_makes_no_task_is_refused(aws: Aws, form: dict[str, Any], code: str) -> None:
    dead = aws.queue()
    aws.queue(**policy(aws, dead, 1))
    known = {"own": dead, "fifo": aws.queue(fifo=True)}
    given = {
        name: aws.arn(known[value]) if value in known else value for name, value in form.items()
    }
    found = refused(aws.client.start_message_move_task, **{"SourceArn": aws.arn(dead)} | given)
    assert found.code == code


def test_only_dead_letter_queues_have_tasks(aws: Aws) -> None:
    queue = aws.queue()
    found = refused(aws.client.start_message_move_task, SourceArn=aws.arn(queue))
    assert "Source queue must be configured as a Dead Letter Queue." in found.text
    assert tasks(aws, queue) == []
    found = refused(aws.client.cancel_message_move_task, TaskHandle="!")
    assert "Value for parameter TaskHandle is invalid." in found.text
