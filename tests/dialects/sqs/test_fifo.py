"""FIFO queues: order and exclusion by groups, duplicates, sequence numbers, attempts."""

from hashlib import sha256
from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws, refused
from tests.dialects.sqs.test_receiving import delete, hide


def fifo(aws: Aws, **given: str) -> str:
    return aws.queue(fifo=True, **{"ContentBasedDeduplication": "true", **given})


def send(aws: Aws, queue: str, *names: str) -> None:
    """Each in the group that its name begins with, as in `g1-a`."""
    for name in names:
        aws.send(queue, name, MessageGroupId=name.partition("-")[0])


def taken(aws: Aws, queue: str, most: int = 10, **more: Any) -> dict[str, str]:
    """The handles of what is received, by their bodies."""
    return {each["Body"]: each["ReceiptHandle"] for each in aws.receive(queue, most, **more)}


# Order.


def test_one_receive_takes_what_is_in_a_row_in_a_group_and_goes_on_to_the_next(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g1-a", "g2-a", "g1-b", "g1-c", "g2-b")
    assert list(taken(aws, queue)) == ["g1-a", "g1-b", "g1-c", "g2-a", "g2-b"]
    send(aws, queue, "g1-d", "g2-c", "g3-a")
    assert list(taken(aws, queue)) == ["g3-a"]


def test_what_stands_behind_a_message_in_flight_waits_for_it(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a", "g-b", "g-c", "h-a")
    first = taken(aws, queue, 2)
    assert list(first) == ["g-a", "g-b"]
    assert list(taken(aws, queue)) == ["h-a"]
    delete(aws, queue, first["g-a"])
    assert taken(aws, queue) == {}
    delete(aws, queue, first["g-b"])
    assert list(taken(aws, queue)) == ["g-c"]


def test_what_stands_before_a_message_in_flight_does_not_wait_for_it(aws: Aws) -> None:
    queue = fifo(aws, VisibilityTimeout="100")
    send(aws, queue, "g-foo", "g-bar", "g-baz")
    held = taken(aws, queue)
    hide(aws, queue, held["g-bar"], 1_000)
    aws.pass_time(101)
    again = taken(aws, queue)
    assert list(again) == ["g-foo"]
    hide(aws, queue, again["g-foo"], 0)
    assert list(taken(aws, queue)) == ["g-foo"]


def test_what_timed_out_together_comes_back_in_its_order(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a", "g-b", "g-c")
    taken(aws, queue)
    aws.pass_time(31)
    assert list(taken(aws, queue)) == ["g-a", "g-b", "g-c"]


def test_groups_take_turns(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g1-a", "g1-b", "g2-a", "g2-b", "g3-a")
    assert list(taken(aws, queue, 2, VisibilityTimeout=0)) == ["g1-a", "g1-b"]
    assert list(taken(aws, queue, 2, VisibilityTimeout=0)) == ["g2-a", "g2-b"]
    assert list(taken(aws, queue)) == ["g3-a", "g1-a", "g1-b", "g2-a", "g2-b"]


def test_a_delayed_message_keeps_its_place_and_holds_back_what_is_behind(aws: Aws) -> None:
    queue = fifo(aws, DelaySeconds="100")
    sent = aws.client.send_message(QueueUrl=queue, MessageBody="g-a", MessageGroupId="g")
    assert aws.counts(queue) == (0, 0, 1)
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "0"})
    send(aws, queue, "g-b", "h-a")
    assert list(taken(aws, queue)) == ["h-a"]
    aws.pass_time(101)
    found = aws.receive(queue)
    assert [each["Body"] for each in found] == ["h-a", "g-a", "g-b"][-2:] or [
        each["Body"] for each in found
    ] == ["g-a", "g-b", "h-a"]
    [first] = [each for each in found if each["Body"] == "g-a"]
    assert first["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]


# Duplicates.


def test_a_duplicate_is_answered_as_the_first_and_not_kept(aws: Aws) -> None:
    queue = aws.queue(fifo=True)

    def sent(body: str, id: str) -> tuple[str, str, str]:
        told = aws.client.send_message(
            QueueUrl=queue, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=id
        )
        return told["MessageId"], told["SequenceNumber"], told["MD5OfMessageBody"]

    first = sent("one", "a")
    again = sent("two", "a")
    assert again[:2] == first[:2]
    assert again[2] != first[2]
    other = sent("three", "b")
    assert int(other[1]) > int(first[1])
    held = taken(aws, queue)
    assert list(held) == ["one", "three"]
    delete(aws, queue, held["one"])
    assert sent("four", "a")[:2] == first[:2]  # also when it was received and deleted
    aws.pass_time(301)
    assert sent("five", "a")[0] != first[0]


def test_duplicates_are_found_inside_one_batch(aws: Aws) -> None:
    queue = fifo(aws)
    entries = [{"Id": str(at), "MessageBody": "same", "MessageGroupId": "g"} for at in range(3)]
    told = aws.client.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]
    assert len({each["MessageId"] for each in told}) == 1
    assert len({each["SequenceNumber"] for each in told}) == 1
    assert aws.counts(queue) == (1, 0, 0)


def test_the_content_is_the_id_where_none_is_given(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a")
    [found] = aws.receive(queue)
    content = sha256(b"g-a").hexdigest()
    assert found["Attributes"]["MessageDeduplicationId"] == content
    aws.send(queue, "other", MessageGroupId="g", MessageDeduplicationId=content)
    assert aws.counts(queue) == (0, 1, 0)  # it was a duplicate


def test_duplicates_are_looked_for_in_a_group_where_the_queue_was_created_so(aws: Aws) -> None:
    by_group = fifo(aws, DeduplicationScope="messageGroup")
    by_queue = fifo(aws)
    scope = {"DeduplicationScope": "messageGroup"}
    aws.client.set_queue_attributes(QueueUrl=by_queue, Attributes=scope)  # shown, to no effect
    assert aws.attribute(by_queue, *scope) == scope
    for queue, expected in ((by_group, 2), (by_queue, 1)):
        for group in ("g", "h", "g"):
            aws.send(queue, "same", MessageGroupId=group)
        assert aws.counts(queue)[0] == expected


def test_purging_forgets_duplicates(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a")
    aws.client.purge_queue(QueueUrl=queue)
    send(aws, queue, "g-a")
    assert list(taken(aws, queue)) == ["g-a"]


# What is given and what is told.


def test_a_number_rises_and_is_told_to_sender_and_receiver_alike(aws: Aws) -> None:
    queue = fifo(aws)
    sent = [
        aws.client.send_message(QueueUrl=queue, MessageBody=str(at), MessageGroupId="g")[
            "SequenceNumber"
        ]
        for at in range(3)
    ]
    assert sent == sorted(sent)
    assert {len(each) for each in sent} == {20}
    received = aws.receive(queue)
    assert [each["Attributes"]["SequenceNumber"] for each in received] == sent
    assert {each["Attributes"]["MessageGroupId"] for each in received} == {"g"}


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ({}, "MissingParameter", "The request must contain the parameter MessageGroupId."),
        (
            {"MessageGroupId": "g"},
            "InvalidParameterValue",
            "The queue should either have"
            " ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        ),
        ({"MessageGroupId": ""}, "InvalidParameterValue", None),
        (
            {"MessageGroupId": "a b", "MessageDeduplicationId": "x"},
            "InvalidParameterValue",
            "Value a b for parameter MessageGroupId is invalid. Reason: MessageGroupId can only"
            " include alphanumeric and punctuation characters. 1 to 128 in length.",
        ),
        (
            {"MessageGroupId": "g" * 129, "MessageDeduplicationId": "x"},
            "InvalidParameterValue",
            None,
        ),
        ({"MessageGroupId": "g", "MessageDeduplicationId": ""}, "InvalidParameterValue", None),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "ä"}, "InvalidParameterValue", None),
        (
            {"MessageGroupId": "g", "MessageDeduplicationId": "x", "DelaySeconds": 1},
            "InvalidParameterValue",
            "Value 1 for parameter DelaySeconds is invalid. Reason: The request include parameter"
            " that is not valid for this queue type.",
        ),
    ],
)
def test_a_message_that_a_fifo_queue_cannot_take_is_refused(
    aws: Aws, given: dict[str, Any], code: str, text: str | None
) -> None:
    queue = aws.queue(fifo=True)
    told = refused(aws.client.send_message, QueueUrl=queue, MessageBody="x", **given)
    assert told.code == code
    assert text in (None, told.text)
    given = {**given, "Id": "0", "MessageBody": "x"}
    if "MessageDeduplicationId" not in given:  # then the whole batch fails, and with this
        told = refused(aws.client.send_message_batch, QueueUrl=queue, Entries=[given])
        assert told.code == "InvalidParameterValue"


def test_an_id_of_a_duplicate_is_for_fifo_queues_alone(aws: Aws) -> None:
    told = refused(
        aws.client.send_message, QueueUrl=aws.queue(), MessageBody="x", MessageDeduplicationId="x"
    )
    assert told.code == "InvalidParameterValue"


# Handles and attempts.


def test_a_handle_whose_time_is_over_is_no_more_good(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a")
    handle = taken(aws, queue)["g-a"]
    aws.pass_time(31)
    for call, more in (
        (aws.client.delete_message, {}),
        (aws.client.change_message_visibility, {"VisibilityTimeout": 10}),
    ):
        told = refused(call, QueueUrl=queue, ReceiptHandle=handle, **more)
        assert told.code == "InvalidParameterValue"
        assert told.text == (
            f"Value {handle} for parameter ReceiptHandle is invalid."
            " Reason: The receipt handle has expired."
        )
    new = taken(aws, queue)["g-a"]
    delete(aws, queue, new)
    delete(aws, queue, new)


def test_an_attempt_that_is_repeated_gets_the_same_messages_and_handles(aws: Aws) -> None:
    queue = fifo(aws)
    send(aws, queue, "g-a", "g-b", "h-a")

    def attempt(id: str) -> dict[str, str]:
        return taken(aws, queue, 2, ReceiveRequestAttemptId=id)

    first = attempt("one")
    assert len(first) == 2
    aws.pass_time(20)
    assert attempt("one") == first
    aws.pass_time(20)  # its time began anew
    assert attempt("one") == first
    assert list(attempt("two")) == ["h-a"]
    delete(aws, queue, first["g-a"])
    assert attempt("one") == {}  # an ordinary receive: g-b is in flight
    aws.pass_time(31)
    assert list(attempt("one")) == ["g-b", "h-a"]
    for wrong in ("", "a b", "x" * 129):
        told = refused(aws.client.receive_message, QueueUrl=queue, ReceiveRequestAttemptId=wrong)
        assert told.code == "InvalidParameterValue"
