"""Receiving: polls, visibility, receipt handles, and messages whose receiver has gone."""

from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws, abandoned, refused
from tests.waiting import until


def handle_of(aws: Aws, queue: str, **more: Any) -> str:
    [found] = aws.receive(queue, 1, **more)
    return str(found["ReceiptHandle"])


def delete(aws: Aws, queue: str, handle: str) -> None:
    aws.client.delete_message(QueueUrl=queue, ReceiptHandle=handle)


def hide(aws: Aws, queue: str, handle: str, seconds: int) -> None:
    aws.client.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


# What is told.


def test_a_receiver_is_told_what_it_asks_for(aws: Aws) -> None:
    queue = aws.queue(VisibilityTimeout="0")
    colour = {"DataType": "String", "StringValue": "blue"}
    given = {"colour": colour, "col.our": colour, "other": colour}
    sent = aws.client.send_message(
        QueueUrl=queue, MessageBody="x", MessageAttributes=given, MessageGroupId="tenant"
    )

    def receive(**more: Any) -> Any:
        [found] = aws.client.receive_message(QueueUrl=queue, **more)["Messages"]
        return found

    plain = receive()
    assert plain.keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    all_of_it = receive(MessageAttributeNames=["All"], AttributeNames=["All"])
    assert all_of_it["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert all_of_it["Attributes"].keys() == {
        "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp",
        "MessageGroupId",
    }  # fmt: skip
    assert (all_of_it["Attributes"]["SenderId"], all_of_it["Attributes"]["MessageGroupId"]) == (
        "test", "tenant"
    )  # fmt: skip
    for names, expected in (
        (["colour"], {"colour"}), (["col.*"], {"colour", "col.our"}), ([".*"], set(given)),
        (["*"], set(given)), (["nothing", "a b"], set()), (["Colour"], set()),
    ):  # fmt: skip
        some = receive(MessageAttributeNames=names)
        assert set(some.get("MessageAttributes", {})) == expected, names
        assert ("MD5OfMessageAttributes" in some) == bool(expected)
    both = aws.ask("ReceiveMessage", {
        "QueueUrl": queue, "AttributeNames": ["senderid"],
        "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
    }).json["Messages"][0]  # fmt: skip
    assert both["Attributes"].keys() == {"SenderId", "ApproximateReceiveCount"}
    reply = aws.ask("ReceiveMessage", {"QueueUrl": queue, "AttributeNames": ["Nothing"]})
    assert "InvalidAttributeName" in reply.headers["x-amzn-query-error"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"MaxNumberOfMessages": 0}, "Value 0 for parameter MaxNumberOfMessages is invalid."
         " Reason: Must be between 1 and 10, if provided."),
        ({"MaxNumberOfMessages": 11}, None),
        ({"WaitTimeSeconds": 21}, "Value 21 for parameter WaitTimeSeconds is invalid."
         " Reason: Must be >= 0 and <= 20, if provided."),
        ({"WaitTimeSeconds": -1}, None),
        ({"VisibilityTimeout": 43_201}, None),
        ({"VisibilityTimeout": -1}, None),
        ({"ReceiveRequestAttemptId": "x"}, None),
    ],
)  # fmt: skip
def test_a_receive_that_is_out_of_range_is_refused(
    aws: Aws, given: dict[str, Any], text: str | None
) -> None:
    told = refused(aws.client.receive_message, QueueUrl=aws.queue(), **given)
    assert told.code == "InvalidParameterValue"
    assert text in (None, told.text)


# Visibility.


def test_a_message_is_hidden_for_as_long_as_its_receiver_or_its_queue_says(aws: Aws) -> None:
    queue = aws.queue(VisibilityTimeout="100")
    aws.send(queue, "a")
    aws.receive(queue)
    assert aws.counts(queue) == (0, 1, 0)
    aws.pass_time(101)
    [found] = aws.receive(queue, VisibilityTimeout=10)
    assert found["Attributes"]["ApproximateReceiveCount"] == "2"
    aws.pass_time(11)
    handle = handle_of(aws, queue)
    hide(aws, queue, handle, 1_000)
    aws.pass_time(999)
    assert aws.bodies(queue) == []
    aws.pass_time(2)
    hide(aws, queue, handle_of(aws, queue), 0)
    assert aws.bodies(queue) == ["a"]


def test_a_message_received_for_no_time_is_counted_and_its_handle_is_good(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    first = aws.receive(queue, VisibilityTimeout=0)
    second = aws.receive(queue, VisibilityTimeout=0)
    counts = [found["Attributes"]["ApproximateReceiveCount"] for [found] in (first, second)]
    assert counts == ["1", "2"]
    delete(aws, queue, second[0]["ReceiptHandle"])
    assert aws.counts(queue) == (0, 0, 0)


def test_a_message_is_hidden_for_twelve_hours_in_all(aws: Aws) -> None:
    queue = aws.queue(VisibilityTimeout="43200")
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    hide(aws, queue, handle, 43_200)
    aws.pass_time(100)
    hide(aws, queue, handle, 43_000)
    told = refused(
        aws.client.change_message_visibility, QueueUrl=queue, ReceiptHandle=handle,
        VisibilityTimeout=43_200,
    )  # fmt: skip
    assert told.text == (
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout"
        " for the message is beyond the limit [43200 seconds]"
    )
    for wrong in (-1, 43_201):
        told = refused(
            aws.client.change_message_visibility, QueueUrl=queue, ReceiptHandle=handle,
            VisibilityTimeout=wrong,
        )  # fmt: skip
        assert told.code == "InvalidParameterValue"


# The life of a handle in a standard queue.


def test_a_handle_deletes_its_message_after_its_time_and_again(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    aws.pass_time(31)
    assert aws.counts(queue) == (1, 0, 0)
    delete(aws, queue, handle)
    assert aws.counts(queue) == (0, 0, 0)
    delete(aws, queue, handle)


def test_an_older_handle_deletes_what_a_newer_delivery_holds(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    old = handle_of(aws, queue)
    aws.pass_time(31)
    new = handle_of(aws, queue)
    assert old != new
    delete(aws, queue, old)
    assert aws.counts(queue) == (0, 0, 0)
    delete(aws, queue, new)


def test_a_handle_hides_its_message_again_after_its_time(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    aws.pass_time(31)
    hide(aws, queue, handle, 100)
    assert aws.bodies(queue) == []
    aws.pass_time(101)
    new = handle_of(aws, queue)
    hide(aws, queue, handle, 0)  # the older one acts on what the newer delivery holds
    assert handle_of(aws, queue) != new


def test_nothing_is_to_be_hidden_of_a_deleted_message(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    delete(aws, queue, handle)
    for seconds in (0, 10):
        told = refused(
            aws.client.change_message_visibility, QueueUrl=queue, ReceiptHandle=handle,
            VisibilityTimeout=seconds,
        )  # fmt: skip
        assert (told.code, told.status) == ("InvalidParameterValue", 400)
        assert told.text == (
            f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist"
            " or is not available for visibility timeout change."
        )


def test_a_handle_is_good_for_its_own_queue_and_cannot_be_made_up(aws: Aws) -> None:
    queue, other = aws.queue(), aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    forged = [handle[:-1] + ("A" if handle[-1] != "A" else "Q"), "A" * 47, "x", "ü" * 47, "!" * 47]
    asked: list[tuple[str, str]] = [(other, handle), *((queue, each) for each in forged)]
    for where, given in asked:
        for call, more in (
            (aws.client.delete_message, {}),
            (aws.client.change_message_visibility, {"VisibilityTimeout": 1}),
        ):
            told = refused(call, QueueUrl=where, ReceiptHandle=given, **more)
            assert (told.kind, told.code, told.status) == (
                "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404
            )  # fmt: skip
            assert told.text == (
                f'The input receipt handle "{given}" is not a valid receipt handle.'
            )
    assert aws.counts(queue) == (0, 1, 0)


def test_a_handle_of_a_queue_that_was_created_again_is_not_its_own(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    aws.client.delete_queue(QueueUrl=queue)
    aws.client.create_queue(QueueName=queue.rpartition("/")[2])
    aws.send(queue, "b")
    aws.receive(queue)
    told = refused(aws.client.delete_message, QueueUrl=queue, ReceiptHandle=handle)
    assert told.code == "ReceiptHandleIsInvalid"


def test_a_handle_or_a_time_that_is_missing_is_named(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a")
    handle = handle_of(aws, queue)
    for action, form, name in (
        ("DeleteMessage", {}, "ReceiptHandle"),
        ("ChangeMessageVisibility", {"ReceiptHandle": handle}, "VisibilityTimeout"),
        ("ChangeMessageVisibility", {"VisibilityTimeout": 1}, "ReceiptHandle"),
    ):
        reply = aws.ask(action, {"QueueUrl": queue, **form})
        assert reply.json["message"] == f"The request must contain the parameter {name}."


def test_batches_of_handles_fail_one_by_one(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a", "b", "c")
    handles = [each["ReceiptHandle"] for each in aws.receive(queue)]
    entries = [
        {"Id": str(at), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
        for at, (handle, seconds) in enumerate(
            zip([*handles, "x", handles[0]], (0, 0, 50, 1, 43_201), strict=True)
        )
    ]
    told = aws.client.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in told["Successful"]] == ["0", "1", "2"]
    assert {each["Id"]: each["Code"] for each in told["Failed"]} == {
        "3": "ReceiptHandleIsInvalid", "4": "InvalidParameterValue"
    }  # fmt: skip
    assert aws.counts(queue) == (2, 1, 0)
    entries = [{"Id": str(at), "ReceiptHandle": each} for at, each in enumerate([*handles, "x"])]
    entries.append({"Id": "again", "ReceiptHandle": handles[0]})
    told = aws.client.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert {each["Id"] for each in told["Successful"]} == {"0", "1", "2", "again"}
    assert [(each["Id"], each["Code"]) for each in told["Failed"]] == [
        ("3", "ReceiptHandleIsInvalid")
    ]
    assert aws.counts(queue) == (0, 0, 0)
    for call in (aws.client.delete_message_batch, aws.client.change_message_visibility_batch):
        assert refused(call, QueueUrl=queue, Entries=[]).kind == "EmptyBatchRequest"


# Long polls.


def test_a_long_poll_ends_with_the_first_message(aws: Aws) -> None:
    queue = aws.queue(ReceiveMessageWaitTimeSeconds="20")
    waiting = abandoned(aws, "ReceiveMessage", {"QueueUrl": queue, "MaxNumberOfMessages": 10})
    until(lambda: receivers(aws, queue) == 1, "somebody waits")
    aws.send(queue, "now")
    assert b'"Body":"now"' in waiting.getresponse().read()
    waiting.close()
    assert aws.ask("ReceiveMessage", {"QueueUrl": queue, "WaitTimeSeconds": 0}).body == b"{}"


def receivers(aws: Aws, queue: str) -> int:
    name = queue.rpartition("/")[2]
    found: int = aws.broker.call("GET", f"/api/v1/namespaces/default/queues/{name}").json["waiting"]
    return found


def test_a_message_for_a_client_that_has_gone_goes_back_and_is_not_counted(aws: Aws) -> None:
    queue = aws.queue()
    waiting = abandoned(aws, "ReceiveMessage", {"QueueUrl": queue, "WaitTimeSeconds": 20})
    until(lambda: receivers(aws, queue) == 1, "somebody waits")
    waiting.close()
    until(lambda: receivers(aws, queue) == 0, "nobody waits any more")
    aws.send(queue, "a")
    [found] = aws.receive(queue)
    assert found["Attributes"]["ApproximateReceiveCount"] == "1"


def test_messages_of_an_answer_that_is_not_taken_go_back_and_are_not_counted(aws: Aws) -> None:
    """The answer is larger than what a socket holds, and its reader goes in the middle of it."""
    queue = aws.queue()
    for _ in range(10):
        aws.send(queue, "x" * 1_000_000)
    asked = abandoned(aws, "ReceiveMessage", {"QueueUrl": queue, "MaxNumberOfMessages": 10})
    until(lambda: aws.counts(queue)[1] == 10, "all are in flight")
    asked.close()
    until(lambda: aws.counts(queue) == (10, 0, 0), "all are back")
    [found] = aws.receive(queue, 1)
    assert found["Attributes"]["ApproximateReceiveCount"] == "1"
