"""What a message may be made of."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from posthouse import Message, QueueName, SessionId, SubscriptionName, Unsupported, ValidationError
from posthouse.amqp.types import Timestamp
from posthouse.client import azure_words, memory, sqs_words
from posthouse.client.messages import ReceivedMessage
from posthouse.client.wire import messages as wire
from tests.client.messages import NOW, delivered

UID = UUID("12345678-1234-5678-1234-567812345678")


def test_text_is_a_body_in_utf_8() -> None:
    message = Message("caf\u00e9")
    assert message.body == b"caf\xc3\xa9"
    assert message.content_type == "text/plain; charset=utf-8"
    assert Message("<a/>", content_type="text/xml").content_type == "text/xml"
    assert Message(b"bytes").content_type is None
    assert Message(bytearray(b"x")).body == Message(memoryview(b"x")).body == b"x"


@pytest.mark.parametrize("body", [7, None, {"a": 1}, ["x"]])
def test_another_body_is_refused_with_what_to_do(body: Any) -> None:
    with pytest.raises(ValidationError, match=r"Message\.of\(value\)"):
        Message(body)


def test_plain_values_become_those_that_are_meant() -> None:
    message = Message(b"", session_id="s", message_id="m", time_to_live=1.5, delay=2)
    assert type(message.session_id) is SessionId
    assert message.time_to_live == timedelta(seconds=1.5)
    assert message.delay == timedelta(seconds=2)
    assert message.with_priority(9).with_subject("a").with_to("b").with_reply_to("c") == Message(
        b"", session_id="s", message_id="m", time_to_live=1.5, delay=2, priority=9, subject="a",
        to="b", reply_to="c",
    )  # fmt: skip
    assert message.with_partition_key("s").with_delay(3).delay == timedelta(seconds=3)


@pytest.mark.parametrize(
    "given",
    [
        {"priority": 10}, {"priority": -1}, {"priority": "high"}, {"delay": -1}, {"delay": "soon"},
        {"time_to_live": 0}, {"time_to_live": float("nan")}, {"partition_key": ""},
        {"partition_key": "k" * 129}, {"session_id": ""}, {"message_id": ""},
        {"delay": float("inf")},
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Message(b"x", **given)


def test_a_received_message_can_be_sent_on_with_all_it_has() -> None:
    message = Message(
        b"x", {"n": 1}, "s", "c", message_id="m", content_type="t", subject="a", to="b",
        reply_to="r", priority=7, partition_key="s",
    )  # fmt: skip
    received: ReceivedMessage = delivered(message)
    assert received.message() == message


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, timedelta(1), 1j])
def test_an_attribute_that_nobody_carries_is_refused_by_all(value: Any) -> None:
    message = Message(b"x", {"odd": value}, message_id="m")
    for write in (
        wire.write, lambda given: memory._new(given, 0), azure_words.outgoing,
        lambda given: sqs_words.entry_of(given, fifo=False),
    ):  # fmt: skip
        with pytest.raises(Unsupported, match="'odd'"):
            write(message)


def test_a_time_without_a_zone_and_a_number_too_large_are_refused() -> None:
    for value in (NOW.replace(tzinfo=None), 1 << 63):
        with pytest.raises(ValidationError, match="'odd'"):
            wire.write(Message(b"x", {"odd": value}, message_id="m"))


@pytest.mark.parametrize(
    ("given", "fifo"),
    [
        ({"priority": 5}, False), ({"partition_key": "k"}, False), ({"time_to_live": 5}, False),
        ({"session_id": "s"}, False), ({"delay": 901}, False), ({"delay": 1}, True),
    ],
)  # fmt: skip
def test_fields_that_sqs_lacks_are_refused(given: dict[str, Any], fifo: bool) -> None:
    with pytest.raises(Unsupported):
        sqs_words.entry_of(Message(b"x", **given), fifo=fifo)


def test_fields_that_azure_lacks_are_refused() -> None:
    for message in (
        Message(b"x", priority=5), Message(b"x", {"a": b"bytes"}), Message(b"x", {"a": NOW}),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            azure_words.outgoing(message)
    with pytest.raises(ValidationError):
        azure_words.outgoing(Message(b"x", session_id="s", partition_key="k"))


def test_attributes_of_sqs_have_types_that_others_can_read() -> None:
    message = Message(b"x", {"i": 1, "f": 1.5, "b": True, "y": b"\0", "u": UID, "t": NOW, "s": "x"})
    found = sqs_words.entry_of(message, fifo=False)["MessageAttributes"]
    assert {name: each["DataType"] for name, each in found.items() if name != "posthouse"} == {
        "i": "Number.int", "f": "Number.float", "b": "String.bool", "y": "Binary",
        "u": "String.uuid", "t": "String.datetime", "s": "String",
    }  # fmt: skip
    raw = {"MessageId": "1", "Body": "x", "MessageAttributes": found}
    assert sqs_words.incoming(raw, "h", NOW, dead=False).attributes == message.attributes


def test_attributes_that_sqs_cannot_read_as_their_label_says_stay_text() -> None:
    found = {
        "MessageId": "1", "Body": "x",
        "MessageAttributes": {
            "a": {"DataType": "String.uuid", "StringValue": "none"},
            "b": {"DataType": "Number", "StringValue": "12e3"},
            "c": {"DataType": "String.datetime", "StringValue": "soon"},
            "d": {"DataType": "Number", "StringValue": "-7"},
        },
    }  # fmt: skip
    read = sqs_words.incoming(found, "h", NOW, dead=False).attributes
    assert read == {"a": "none", "b": 12e3, "c": "soon", "d": -7}


def test_a_time_of_the_wire_that_python_does_not_have_is_a_number() -> None:
    assert wire._attribute(Timestamp(1 << 62)) == 1 << 62
    assert wire._attribute(Timestamp(-1)) == datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)


def test_a_subscription_has_a_name_that_no_queue_can_have() -> None:
    name = SubscriptionName("team/orders", "bills")
    assert name == "team/orders/$sub/bills" == QueueName("team/orders/$sub/bills")
    assert (name.topic, name.subscription) == ("team/orders", "bills")
    assert QueueName(name) is name
    assert (QueueName("team/orders").topic, QueueName("team/orders").subscription) == (None, None)
    copy = pickle.loads(pickle.dumps(name))
    assert (type(copy), copy) == (SubscriptionName, name)


@pytest.mark.parametrize(
    "name", ["a/$sub/", "/$sub/b", "a/$sub/b/c", "a/$sub/b/$sub/c", "a/$other/b", "a/$sub"]
)
def test_a_name_that_is_half_of_a_subscription_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        QueueName(name)
