"""Sending: bodies, attributes, digests, delays and batches."""

import json
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto.sqs.models import Message as MotoMessage

from posthouse.dialects.sqs.messages import attributes_digest
from posthouse.dialects.sqs.shapes import MessageAttributeValue
from tests.dialects.sqs.rig import Aws, path_of, refused

String = {"DataType": "String", "StringValue": "blue"}


# Digests. The first are AWS's own answers.


@pytest.mark.parametrize(
    ("attributes", "digest"),
    [
        ({"Foo": ("String", "Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        ({"color": ("String", "blue")}, "da1b33cc3cbfe8b1630921e78e6b9880"),
        (
            {"color": ("String", "blue"), "count": ("Number", "3"), "blob": ("Binary", b"\1\2\3")},
            "d838729972a4b70e2d2acd9d59ac847c",
        ),
        (
            {"AWSTraceHeader": ("String", "Root=1-5759e988-bd862e3fe1be46a994272793;"
                                "Parent=53995c3f42cd8ad8;Sampled=1")},
            "5ae4d5d7636402d80f4eb6d213245a88",
        ),
    ],
)  # fmt: skip
def test_attributes_have_the_digest_that_the_service_tells(
    attributes: dict[str, tuple[str, Any]], digest: str
) -> None:
    assert attributes_digest(values(attributes)).hex() == digest


def values(given: dict[str, tuple[str, Any]]) -> dict[str, MessageAttributeValue]:
    return {
        name: MessageAttributeValue(kind, value, None)
        if isinstance(value, str)
        else MessageAttributeValue(kind, None, value)
        for name, (kind, value) in given.items()
    }


NAMES = st.text("abcXYZ019_-.", min_size=1, max_size=20)
TYPED = st.one_of(
    st.tuples(st.sampled_from(["String", "String.label", "Number", "Number.x"]),
              st.text(st.characters(exclude_categories=["Cs"]), min_size=1)),
    st.tuples(st.sampled_from(["Binary", "Binary.gif"]), st.binary(min_size=1)),
)  # fmt: skip


@given(st.dictionaries(NAMES, TYPED, min_size=1, max_size=10))
def test_any_attributes_have_the_digest_that_another_maker_s_server_tells(
    attributes: dict[str, tuple[str, Any]],
) -> None:
    known = {
        name: {"DataType": kind, "StringValue": value}
        if isinstance(value, str)
        else {"DataType": kind, "BinaryValue": value}
        for name, (kind, value) in attributes.items()
    }
    moto = MotoMessage("id", "body")
    moto.message_attributes = known
    assert attributes_digest(values(attributes)).hex() == moto.attribute_md5


# Bodies.


@pytest.mark.parametrize("body", ["x", "ä€😀", "\t\n\r", "<&\"'>", " a ", "\ud7ff\ue000\ufffd"])
def test_a_body_comes_as_it_was_sent(aws: Aws, body: str) -> None:
    queue = aws.queue()
    sent = aws.client.send_message(QueueUrl=queue, MessageBody=body)
    digest = md5(body.encode(), usedforsecurity=False).hexdigest()
    assert sent["MD5OfMessageBody"] == digest
    [found] = aws.receive(queue)
    assert (found["Body"], found["MD5OfBody"], found["MessageId"]) == (
        body, digest, sent["MessageId"]
    )  # fmt: skip


def test_a_body_of_other_characters_or_none_is_refused(aws: Aws) -> None:
    queue = aws.queue()
    for body in ("\0", "a\x08", "\ufffe", "\x1f"):
        reply = aws.ask("SendMessage", {"QueueUrl": queue, "MessageBody": body})
        assert reply.json["__type"] == "com.amazonaws.sqs#InvalidMessageContents"
    for form in ({}, {"MessageBody": ""}, {"MessageBody": None}):
        reply = aws.ask("SendMessage", {"QueueUrl": queue, **form})
        assert reply.json == {
            "__type": "com.amazon.coral.service#MissingRequiredParameterException",
            "message": "The request must contain the parameter MessageBody.",
        }
    assert aws.bodies(queue) == []


def test_body_and_attributes_together_have_the_size_of_the_queue_at_most(aws: Aws) -> None:
    queue = aws.queue(MaximumMessageSize="1024")
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}  # 1 + 6 + 1 bytes
    aws.send(queue, "x" * 1_016, MessageAttributes=attributes)
    aws.send(queue, "ä" * 512)
    for body, more in (("x" * 1_017, {"MessageAttributes": attributes}), ("ä" * 513, {})):
        told = refused(aws.client.send_message, QueueUrl=queue, MessageBody=body, **more)
        assert told.code == "InvalidParameterValue"
        assert told.text.endswith("Reason: Message must be shorter than 1024 bytes.")
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x" * 900}}
    aws.send(queue, "x" * 1_024, MessageSystemAttributes=trace)  # these are not counted


def test_a_body_of_a_mebibyte_comes_through_however_it_is_escaped(aws: Aws) -> None:
    queue = aws.queue()
    body = "é" * (1 << 19)  # as botocore writes it, six bytes for each two
    aws.send(queue, body)
    assert aws.bodies(queue) == [body]


# Attributes.


def test_attributes_come_as_they_were_sent_with_their_labels(aws: Aws) -> None:
    queue = aws.queue()
    given = {
        "text": {"DataType": "String", "StringValue": "ä\n"},
        "label.ed-1_": {"DataType": "String.my label", "StringValue": "x"},
        "number": {"DataType": "Number", "StringValue": "01.50"},
        "big": {"DataType": "Number.long", "StringValue": "9" * 38},
        "small": {"DataType": "Number", "StringValue": "-1.5e-128"},
        "bytes": {"DataType": "Binary.gif", "BinaryValue": b"\0\xff"},
        "größe": {"DataType": "String", "StringValue": "1"},
    }
    sent = aws.client.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=given)
    [found] = aws.receive(queue)
    assert found["MessageAttributes"] == given
    assert found["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("AWS.x", String, "InvalidParameterValue"), ("amazon.x", String, "InvalidParameterValue"),
        (".x", String, "InvalidParameterValue"), ("x.", String, "InvalidParameterValue"),
        ("a..b", String, "InvalidParameterValue"), ("a b", String, "InvalidParameterValue"),
        ("x" * 257, String, "InvalidParameterValue"), ("", String, "InvalidParameterValue"),
        ("x", {"DataType": "Text", "StringValue": "x"}, "InvalidParameterValue"),
        ("x", {"DataType": "String." + "x" * 250, "StringValue": "x"}, "InvalidParameterValue"),
        ("x", {"DataType": "String", "StringValue": ""}, "InvalidParameterValue"),
        ("x", {"DataType": "String"}, "InvalidParameterValue"),
        ("x", {"DataType": "String", "BinaryValue": "eA=="}, "InvalidParameterValue"),
        ("x", {"DataType": "Binary", "StringValue": "x"}, "InvalidParameterValue"),
        ("x", {"DataType": "String", "StringValue": "\0"}, "InvalidParameterValue"),
        ("x", {"DataType": "Number", "StringValue": "one"}, "InvalidParameterValue"),
        ("x", {"DataType": "Number", "StringValue": "9" * 39}, "InvalidParameterValue"),
        ("x", {"DataType": "Number", "StringValue": "1e127"}, "InvalidParameterValue"),
        ("x", {"DataType": "Number", "StringValue": "nan"}, "InvalidParameterValue"),
        ("x", {**String, "StringListValues": ["x"]}, "UnsupportedOperation"),
        ("x", {"DataType": "Binary", "BinaryListValues": ["eA=="]}, "UnsupportedOperation"),
    ],
)  # fmt: skip
def test_an_attribute_that_cannot_be_is_refused(
    aws: Aws, name: str, value: dict[str, Any], code: str
) -> None:
    queue = aws.queue()
    form = {"QueueUrl": queue, "MessageBody": "x", "MessageAttributes": {name: value}}
    reply = aws.ask("SendMessage", form)
    assert reply.status == 400
    assert code in reply.headers["x-amzn-query-error"]


def test_a_message_has_ten_attributes_at_most(aws: Aws) -> None:
    queue = aws.queue()
    many = {str(number): String for number in range(11)}
    told = refused(aws.client.send_message, QueueUrl=queue, MessageBody="x", MessageAttributes=many)
    assert told.text == "Number of message attributes [11] exceeds the allowed maximum [10]."


def test_a_trace_is_told_to_receivers_whichever_way_it_came(aws: Aws) -> None:
    queue = aws.queue()
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}}
    sent = aws.client.send_message(
        QueueUrl=queue,
        MessageBody="x",
        MessageSystemAttributes=trace,
        MessageAttributes={"a": String},
    )
    assert sent["MD5OfMessageSystemAttributes"] != sent["MD5OfMessageAttributes"]
    form = {"QueueUrl": queue, "MessageBody": "y"}
    aws.ask("SendMessage", form, **{"X-Amzn-Trace-Id": "Root=4-5-6"})
    found = {each["Body"]: each["Attributes"]["AWSTraceHeader"] for each in aws.receive(queue)}
    assert found == {"x": "Root=1-2-3", "y": "Root=4-5-6"}
    for name, value in (
        ("Other", String),
        ("AWSTraceHeader", {"DataType": "Number", "StringValue": "1"}),
    ):
        wrong = {**form, "MessageSystemAttributes": {name: value}}
        assert aws.ask("SendMessage", wrong).status == 400


# Delays.


def test_a_message_comes_when_its_delay_is_over(aws: Aws) -> None:
    queue = aws.queue(DelaySeconds="100", VisibilityTimeout="43200")
    aws.send(queue, "queue's")
    aws.send(queue, "at once", DelaySeconds=0)
    aws.send(queue, "own", DelaySeconds=50)
    assert aws.counts(queue) == (1, 0, 2)
    assert aws.bodies(queue) == ["at once"]
    aws.pass_time(51)
    assert aws.bodies(queue) == ["own"]
    aws.pass_time(50)
    assert aws.bodies(queue) == ["queue's"]
    for wrong in (-1, 901):
        told = refused(aws.client.send_message, QueueUrl=queue, MessageBody="x", DelaySeconds=wrong)
        assert told.text == (
            f"Value {wrong} for parameter DelaySeconds is invalid."
            " Reason: DelaySeconds must be >= 0 and <= 900."
        )


def test_the_time_of_a_message_is_when_it_was_sent(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "x", DelaySeconds=300)
    before = aws.attribute(queue)["CreatedTimestamp"]
    aws.pass_time(301)
    [found] = aws.receive(queue)
    assert 0 <= int(found["Attributes"]["SentTimestamp"]) // 1_000 - int(before) < 60


# Batches.


def entries(*bodies: str, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(at), "MessageBody": body, **more} for at, body in enumerate(bodies)]


def test_a_batch_is_sent_but_for_what_is_wrong_with_some_of_it(aws: Aws) -> None:
    queue = aws.queue(MaximumMessageSize="1024")
    given = entries("good", "x" * 1_025, "bad\0", "late", "fine")
    given[3]["DelaySeconds"] = 901
    reply = aws.ask("SendMessageBatch", {"QueueUrl": queue, "Entries": given})
    assert reply.status == 200
    assert [each["Id"] for each in reply.json["Successful"]] == ["0", "4"]
    failed = {each["Id"]: (each["Code"], each["SenderFault"]) for each in reply.json["Failed"]}
    assert failed == {
        "1": ("InvalidParameterValue", True), "2": ("InvalidMessageContents", True),
        "3": ("InvalidParameterValue", True),
    }  # fmt: skip
    [too_large] = [each for each in reply.json["Failed"] if each["Id"] == "1"]
    assert too_large["Message"].startswith("One or more parameters cannot be validated. Reason:")
    assert sorted(aws.bodies(queue)) == ["fine", "good"]
    good = aws.ask("SendMessageBatch", {"QueueUrl": queue, "Entries": entries("a")})
    assert "Failed" not in good.json
    assert (
        "Successful"
        not in aws.ask("SendMessageBatch", {"QueueUrl": queue, "Entries": entries("\0")}).json
    )


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ([], "EmptyBatchRequest",
         "There should be at least one SendMessageBatchRequestEntry in the request."),
        (entries(*"x" * 11), "TooManyEntriesInBatchRequest",
         "Maximum number of entries per request are 10. You have sent 11."),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId",
         "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
         " It can be at most 80 letters long."),
        ([{"Id": "x" * 81, "MessageBody": "x"}], "InvalidBatchEntryId", None),
        (entries("x") * 2, "BatchEntryIdsNotDistinct", "Id 0 repeated."),
        (entries("x" * 1_048_570, "x" * 7), "BatchRequestTooLong",
         "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."),
    ],
)  # fmt: skip
def test_a_batch_that_is_none_is_refused_as_a_whole(
    aws: Aws, given: list[dict[str, Any]], kind: str, text: str | None
) -> None:
    queue = aws.queue()
    told = refused(aws.client.send_message_batch, QueueUrl=queue, Entries=given)
    assert (told.kind, told.code, told.status) == (
        kind, f"AWS.SimpleQueueService.{kind}", 400
    )  # fmt: skip
    assert text in (None, told.text)
    assert aws.bodies(queue) == []


# The other protocol.


def test_a_form_sends_a_batch_with_everything_that_is_numbered_in_it(aws: Aws) -> None:
    queue = aws.queue()
    reply = aws.form(path_of(queue), **{
        "Action": "SendMessageBatch",
        "SendMessageBatchRequestEntry.2.Id": "b",
        "SendMessageBatchRequestEntry.2.MessageBody": 'a "b" <c>\r\n',
        "SendMessageBatchRequestEntry.2.MessageAttribute.1.Name": "blob",
        "SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType": "Binary",
        "SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.BinaryValue": "AAE=",
        "SendMessageBatchRequestEntry.2.MessageAttribute.7.Name": "colour",
        "SendMessageBatchRequestEntry.2.MessageAttribute.7.Value.DataType": "String",
        "SendMessageBatchRequestEntry.2.MessageAttribute.7.Value.StringValue": "blue + 1",
        "SendMessageBatchRequestEntry.10.Id": "c",
        "SendMessageBatchRequestEntry.10.MessageBody": "\1",
    })  # fmt: skip
    text = reply.body.decode()
    assert reply.status == 200
    assert text.count("<SendMessageBatchResultEntry>") == text.count("<BatchResultErrorEntry>") == 1
    assert "<Id>c</Id><SenderFault>true</SenderFault><Code>InvalidMessageContents</Code>" in text
    reply = aws.form(path_of(queue), **{
        "Action": "ReceiveMessage", "MessageAttributeName": "All", "AttributeName.1": "All",
        "Version": "2012-11-05",
    })  # fmt: skip
    text = reply.body.decode()
    assert "<Body>a &quot;b&quot; &lt;c&gt;&#xD;\n</Body>" in text
    assert (
        "<MessageAttribute><Name>colour</Name><Value><DataType>String</DataType>"
        "<StringValue>blue + 1</StringValue></Value></MessageAttribute>"
    ) in text
    assert "<BinaryValue>AAE=</BinaryValue>" in text
    assert "<Attribute><Name>ApproximateReceiveCount</Name><Value>1</Value></Attribute>" in text
    assert f"<RequestId>{reply.headers['x-amzn-requestid']}</RequestId>" in text


def test_a_message_can_be_sent_by_an_address_alone(aws: Aws) -> None:
    queue = aws.queue()
    path = f"{path_of(queue)}?Action=SendMessage&MessageBody=by%20GET%2B+"
    assert aws.broker.call("GET", path).status == 200
    assert aws.bodies(queue) == ["by GET+ "]


@settings(max_examples=10, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_whatever_text_is_sent_comes_back_or_is_refused(aws: Aws, text: str) -> None:
    queue = aws.client.create_queue(QueueName="any-text")["QueueUrl"]
    reply = aws.ask("SendMessage", {"QueueUrl": queue, "MessageBody": text})
    if reply.status == 200:
        found = aws.receive(queue)
        assert [each["Body"] for each in found] == [text]
        aws.client.delete_message(QueueUrl=queue, ReceiptHandle=found[0]["ReceiptHandle"])
    else:
        assert json.loads(reply.body)["__type"] == "com.amazonaws.sqs#InvalidMessageContents"
