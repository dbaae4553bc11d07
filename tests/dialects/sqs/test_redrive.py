"""Dead letters: policies, the way into the dead-letter queue, and what is kept on it."""

import json
from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws, refused


def policy(aws: Aws, target: str, receives: Any = 2) -> dict[str, str]:
    given = {"deadLetterTargetArn": aws.arn(target), "maxReceiveCount": receives}
    return {"RedrivePolicy": json.dumps(given)}


def bury(aws: Aws, queue: str, times: int = 2) -> None:
    """Receives what is there until it has been received too often."""
    for _ in range(times):
        aws.receive(queue)
        aws.pass_time(31)
    assert aws.receive(queue) == []


def test_a_message_that_was_received_too_often_is_moved_with_all_that_is_its_own(aws: Aws) -> None:
    dead = aws.queue()
    queue = aws.queue(**policy(aws, dead))
    given = {"colour": {"DataType": "String.x", "StringValue": "blue"}}
    [id] = aws.send(queue, "a", MessageAttributes=given)
    [first] = aws.receive(queue)
    aws.pass_time(31)
    bury(aws, queue, 1)
    [found] = aws.receive(dead)
    assert (found["MessageId"], found["Body"], found["MessageAttributes"]) == (id, "a", given)
    told = found["Attributes"]
    before = first["Attributes"]
    assert told["SentTimestamp"] == before["SentTimestamp"]
    assert told["ApproximateReceiveCount"] == "3"
    assert told["ApproximateFirstReceiveTimestamp"] == before["ApproximateFirstReceiveTimestamp"]
    assert told["DeadLetterQueueSourceArn"] == aws.arn(queue)
    aws.client.delete_message(QueueUrl=dead, ReceiptHandle=found["ReceiptHandle"])


def test_a_dead_letter_of_a_fifo_queue_has_a_new_number_and_its_own_id(aws: Aws) -> None:
    more = {"ContentBasedDeduplication": "true"}
    dead = aws.queue(fifo=True)
    queue = aws.queue(fifo=True, **more, **policy(aws, dead))
    aws.send(dead, "before", MessageGroupId="g", MessageDeduplicationId="x")
    [id] = aws.send(queue, "a", MessageGroupId="g")
    bury(aws, queue)
    _, found = aws.receive(dead)
    assert found["Body"] == "a"
    told = found["Attributes"]
    assert (found["MessageId"], told["MessageDeduplicationId"], told["MessageGroupId"]) == (
        id, id, "g"
    )  # fmt: skip
    assert int(told["SequenceNumber"]) == 2
    assert told["ApproximateReceiveCount"] == "3"


def test_a_message_in_a_chain_of_queues_goes_all_the_way(aws: Aws) -> None:
    last = aws.queue()
    middle = aws.queue(**policy(aws, last, 4))
    queue = aws.queue(**policy(aws, middle, "2"))
    aws.send(queue, "a")
    bury(aws, queue)
    bury(aws, middle)
    [found] = aws.receive(last)
    assert found["Attributes"]["ApproximateReceiveCount"] == "5"


def test_a_policy_is_told_again_and_can_be_removed(aws: Aws) -> None:
    dead = aws.queue()
    queue = aws.queue(**policy(aws, dead, "7"))
    [told] = aws.attribute(queue, "RedrivePolicy").values()
    assert told == f'{{"deadLetterTargetArn":"{aws.arn(dead)}","maxReceiveCount":7}}'
    sources = aws.client.list_dead_letter_source_queues(QueueUrl=dead)
    assert sources["queueUrls"] == [queue]
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": ""})
    assert aws.attribute(queue, "RedrivePolicy") == {}
    assert aws.client.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", []) == []
    aws.send(queue, "a")
    for _ in range(15):
        aws.receive(queue)
        aws.pass_time(31)
    assert len(aws.receive(queue)) == 1


def test_sources_are_told_by_pages(aws: Aws) -> None:
    dead = aws.queue()
    queues = [aws.queue(**policy(aws, dead)) for _ in range(3)]
    pages = aws.client.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    found = [page["queueUrls"] for page in pages]
    assert [len(page) for page in found] == [2, 1]
    assert sorted(url for page in found for url in page) == sorted(queues)


@pytest.mark.parametrize(
    "given",
    [
        "[]", "{", '{"maxReceiveCount": 1}', '{"deadLetterTargetArn": "ARN"}',
        '{"deadLetterTargetArn": "ARN", "maxReceiveCount": 0}',
        '{"deadLetterTargetArn": "ARN", "maxReceiveCount": 1001}',
        '{"deadLetterTargetArn": "ARN", "maxReceiveCount": "x"}',
        '{"deadLetterTargetArn": "ARN", "maxReceiveCount": 1.5}',
        '{"deadLetterTargetArn": "ARN", "maxReceiveCount": true}',
        '{"deadLetterTargetArn": "ARNx", "maxReceiveCount": 1}',
        '{"deadLetterTargetArn": "orders", "maxReceiveCount": 1}',
        '{"deadLetterTargetArn": "FIFO", "maxReceiveCount": 1}',
        '{"deadLetterTargetArn": "DENIED", "maxReceiveCount": 1}',
        '{"deadLetterTargetArn": "ITSELF", "maxReceiveCount": 1}',
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused(aws: Aws, given: str) -> None:
    names = {"ARN": aws.queue()}
    if "FIFO" in given:
        names["FIFO"] = aws.queue(fifo=True)
    if "DENIED" in given:
        names["DENIED"] = aws.queue(RedriveAllowPolicy='{"redrivePermission": "denyAll"}')
    queue = names["ITSELF"] = aws.queue()
    for word, url in names.items():
        given = given.replace(word, aws.arn(url))
    told = refused(
        aws.client.set_queue_attributes, QueueUrl=queue, Attributes={"RedrivePolicy": given}
    )
    assert told.code in ("InvalidParameterValue", "InvalidAttributeValue")
    if given[0] == "{" and len(given) > 1:
        assert told.code == "InvalidParameterValue"
    assert aws.attribute(queue, "RedrivePolicy") == {}


def test_in_a_circle_of_policies_messages_go_round(aws: Aws) -> None:
    first = aws.queue()
    second = aws.queue(**policy(aws, first, 1))
    aws.client.set_queue_attributes(QueueUrl=first, Attributes=policy(aws, second, 1))
    aws.send(first, "a")
    for count in range(1, 6):
        queue = (second, first)[count % 2]
        [found] = aws.receive(queue)
        assert found["Attributes"]["ApproximateReceiveCount"] == str(count)
        aws.pass_time(31)


def test_a_queue_says_whose_dead_letters_it_takes(aws: Aws) -> None:
    allowed, other = aws.queue(), aws.queue()
    arns = [aws.arn(allowed)]
    given = {"redrivePermission": "byQueue", "sourceQueueArns": arns}
    dead = aws.queue(RedriveAllowPolicy=json.dumps(given))
    [told] = aws.attribute(dead, "RedriveAllowPolicy").values()
    assert json.loads(told) == given
    aws.client.set_queue_attributes(QueueUrl=allowed, Attributes=policy(aws, dead))
    refused(aws.client.set_queue_attributes, QueueUrl=other, Attributes=policy(aws, dead))
    aws.client.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": ""})
    aws.client.set_queue_attributes(QueueUrl=other, Attributes=policy(aws, dead))
    for wrong in (
        "{}", '{"redrivePermission": "some"}', '{"redrivePermission": "byQueue"}',
        '{"redrivePermission": "allowAll", "sourceQueueArns": []}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": ["x"]}',
        json.dumps({**given, "sourceQueueArns": arns * 11}),
    ):  # fmt: skip
        error = refused(
            aws.client.set_queue_attributes, QueueUrl=dead, Attributes={"RedriveAllowPolicy": wrong}
        )
        assert error.code == "InvalidParameterValue"


def test_the_dead_letters_of_a_queue_without_a_policy_are_read_at_their_own_address(
    aws: Aws,
) -> None:
    """Of a queue that another client has made, whose dead letters are beside it."""
    name = aws.name()
    form = {"max_delivery": 1, "lock_ms": 30_000}
    assert aws.broker.queue("PUT", name, form).status == 201
    url = f"{aws.broker.url}/000000000000/{name}"
    [id] = aws.send(url, "a")
    bury(aws, url, 1)
    [found] = aws.receive(f"{url}%2F$dead")
    assert (found["MessageId"], found["Body"]) == (id, "a")
    assert found["Attributes"]["DeadLetterQueueSourceArn"] == aws.arn(url)
    aws.client.delete_message(QueueUrl=f"{url}%2F%24dead", ReceiptHandle=found["ReceiptHandle"])
