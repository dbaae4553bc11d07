"""What the official SDK sends arrives as it was sent, or is refused as it expects."""

import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.dialects.servicebus.bus import DELETE, NOTHING, WAIT, Bus, ids, take, texts
from tests.dialects.servicebus.tap import Tap

Sent = ServiceBusMessage | AmqpAnnotatedMessage
Pass = Callable[[Sent], ServiceBusReceivedMessage]


@pytest.fixture(scope="module")
def tier() -> str:
    return "premium"  # for large messages


@pytest.fixture(scope="module")
def there(bus: Bus) -> Iterator[Pass]:
    """Sends one message, and gives it as it was received."""
    sender, receiver = bus.pair(bus.queue(), receive_mode=DELETE)

    def there_and_back(message: Sent) -> ServiceBusReceivedMessage:
        sender.send_messages(message)
        [received] = receiver.receive_messages(max_wait_time=WAIT)
        return received

    yield there_and_back
    assert receiver.receive_messages(max_wait_time=NOTHING) == []


# How many.


def test_one_message_is_sent_and_received(there: Pass) -> None:
    received = there(ServiceBusMessage("hello"))
    assert str(received) == "hello"
    assert received.sequence_number
    assert received.delivery_count == 0


def test_a_list_is_sent_in_its_order(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])
    assert texts(take(receiver, 10)) == [f"{n}" for n in range(10)]


def test_a_batch_is_sent_in_its_order(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    batch = sender.create_message_batch()
    for n in range(10):
        batch.add_message(ServiceBusMessage(f"{n}", message_id=f"id-{n}"))
    sender.send_messages(batch)
    received = take(receiver, 10)
    assert texts(received) == [f"{n}" for n in range(10)]
    assert ids(received) == [f"id-{n}" for n in range(10)]


def test_a_thousand_messages_arrive_once_each_in_order(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, receive_mode=DELETE)
    names = [f"{n:04}" for n in range(1000)]
    for name in names[:200]:
        sender.send_messages(ServiceBusMessage(name))
    for at in range(200, 1000, 200):
        sender.send_messages([ServiceBusMessage(name) for name in names[at : at + 200]])
    received = take(receiver, 1000)
    assert texts(received) == names
    numbers = [each.sequence_number or 0 for each in received]
    assert numbers == sorted(set(numbers))
    assert bus.counts(queue)["active"] == 0


def test_an_empty_batch_sends_nothing(bus: Bus) -> None:
    queue, sender, _ = bus.ready()
    sender.send_messages(sender.create_message_batch())
    sender.send_messages([])
    assert bus.counts(queue)["active"] == 0


# How large.


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 1_000_000])
def test_a_body_of_any_size_arrives_whole(there: Pass, size: int) -> None:
    body = bytes(n * 31 % 251 for n in range(size))
    received = there(ServiceBusMessage(body))
    assert b"".join(received.body) == body


def test_a_message_that_is_too_large_is_refused_and_the_sender_goes_on(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * (2 << 20)))
    sender.send_messages(ServiceBusMessage("small"))
    assert texts(take(receiver, 1)) == ["small"]


def test_a_message_larger_than_its_queue_allows_is_refused(bus: Bus) -> None:
    queue = bus.queue(max_message_bytes=10_000)
    sender = bus.sender(queue)
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 10_000))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages([ServiceBusMessage(b"x" * 6_000) for _ in range(2)])
    sender.send_messages(ServiceBusMessage(b"x" * 9_000))
    assert bus.counts(queue)["active"] == 1


def test_a_batch_object_takes_as_much_as_the_link_allows(bus: Bus) -> None:
    queue, sender, _ = bus.ready()
    batch = sender.create_message_batch()
    for _ in range(20):
        batch.add_message(ServiceBusMessage(b"x" * 50_000))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 50_000))
    sender.send_messages(batch)
    assert bus.counts(queue)["active"] == 20


def test_a_full_queue_refuses_with_a_quota_error(bus: Bus) -> None:
    queue, sender, _ = bus.ready(max_messages=2)
    sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    with pytest.raises(ServiceBusQuotaExceededError):
        sender.send_messages(ServiceBusMessage("c"))
    assert bus.counts(queue)["active"] == 2


def test_a_batch_is_kept_whole_or_not_at_all(bus: Bus) -> None:
    queue, sender, _ = bus.ready(max_messages=3)
    with pytest.raises(ServiceBusQuotaExceededError):
        sender.send_messages([ServiceBusMessage(f"{n}") for n in range(4)])
    assert bus.counts(queue)["active"] == 0
    sender.send_messages([ServiceBusMessage(f"{n}") for n in range(3)])
    assert bus.counts(queue)["active"] == 3


# Where to.


def test_a_queue_that_is_not_there_is_told_at_once(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK asks once, and has its answer; it raises when its keep-alive thread has slept."""
    sender = bus.client(logging_enable=True).get_queue_sender("not-there")
    with (
        caplog.at_level(logging.DEBUG, "azure.servicebus"),
        pytest.raises(MessagingEntityNotFoundError, match="could not be found"),
    ):
        bus.closing(sender).send_messages(ServiceBusMessage("x"))
    told = [(record.created, record.getMessage()) for record in caplog.records]
    [asked] = [at for at, text in told if text.startswith("-> Attach") and "not-there" in text]
    [refused] = [at for at, text in told if text.startswith("<- Detach") and "not-found" in text]
    assert refused - asked < 1  # not a measure of speed: where it is not told, it waits for 30 s
    with pytest.raises(MessagingEntityNotFoundError, match="not-there"):
        bus.receiver("not-there")


def test_names_of_queues_do_not_tell_case_apart(bus: Bus) -> None:
    assert bus.broker.queue("PUT", "MixedCase", {}).status == 201
    bus.sender("mixedcase").send_messages(ServiceBusMessage("x"))
    assert texts(take(bus.receiver("MIXEDCASE"), 1)) == ["x"]


def test_a_queue_with_slashes_in_its_name_is_found(bus: Bus) -> None:
    assert bus.broker.queue("PUT", "shop%2Forders.eu-1_a", {}).status == 201
    sender, receiver = bus.pair("shop/orders.eu-1_a")
    sender.send_messages(ServiceBusMessage("x"))
    assert texts(take(receiver, 1)) == ["x"]


def test_a_deleted_queue_turns_its_sender_away(bus: Bus) -> None:
    queue, sender, _ = bus.ready()
    sender.send_messages(ServiceBusMessage("x"))
    assert bus.broker.queue("DELETE", queue).status == 204
    with pytest.raises(MessagingEntityNotFoundError):
        sender.send_messages(ServiceBusMessage("y"))


@pytest.mark.parametrize("status", ["disabled", "send-disabled"])
def test_a_disabled_queue_is_not_sent_to(bus: Bus, status: str) -> None:
    queue = bus.queue()
    sender = bus.sender(queue, retries=0)
    bus.update(queue, status=status)
    with pytest.raises(MessagingEntityDisabledError):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityDisabledError):
        bus.sender(queue, retries=0)
    bus.update(queue, status="active")
    bus.sender(queue).send_messages(ServiceBusMessage("y"))
    assert bus.counts(queue)["active"] == 1


def test_a_queue_that_is_disabled_for_receiving_is_sent_to(bus: Bus) -> None:
    queue = bus.queue(status="receive-disabled")
    bus.sender(queue).send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityDisabledError):
        bus.receiver(queue, retries=0)
    assert bus.counts(queue)["active"] == 1


def test_a_dead_letter_queue_cannot_be_sent_to(bus: Bus) -> None:
    with pytest.raises(ServiceBusError):
        bus.sender(f"{bus.queue()}/$DeadLetterQueue", retries=0)


# What a message says of itself.


def test_every_property_of_a_message_arrives(there: Pass) -> None:
    received = there(
        ServiceBusMessage(
            "body", message_id="an id", session_id="a session", subject="a subject",
            content_type="text/plain", correlation_id="a correlation", to="someone",
            reply_to="somewhere", reply_to_session_id="another session",
            partition_key="a session", time_to_live=timedelta(minutes=5),
            application_properties={"one": 1},
        )
    )  # fmt: skip
    assert received.message_id == "an id"
    assert received.session_id == "a session"
    assert received.subject == "a subject"
    assert received.content_type == "text/plain"
    assert received.correlation_id == "a correlation"
    assert received.to == "someone"
    assert received.reply_to == "somewhere"
    assert received.reply_to_session_id == "another session"
    assert received.partition_key == "a session"
    assert received.time_to_live == timedelta(minutes=5)
    assert received.application_properties == {b"one": 1}


def test_a_message_without_an_id_gets_one(there: Pass) -> None:
    nameless = AmqpAnnotatedMessage(
        data_body=b"x", properties=AmqpMessageProperties(subject="nameless")
    )
    first, second = there(nameless), there(nameless)
    assert first.message_id
    assert second.message_id
    assert first.message_id != second.message_id
    assert first.subject == "nameless"
    assert there(AmqpAnnotatedMessage(data_body=b"x")).message_id


@pytest.mark.parametrize(
    "id", ["text", uuid.UUID("12345678-1234-5678-1234-567812345678"), 7, 1 << 63, b"\x00\xff"]
)
def test_ids_keep_their_types(there: Pass, id: Any) -> None:
    sent = AmqpAnnotatedMessage(
        data_body=b"x", properties=AmqpMessageProperties(message_id=id, correlation_id=id)
    )
    properties = there(sent).raw_amqp_message.properties
    assert properties is not None
    expected = id.encode() if isinstance(id, str) else id
    assert properties.message_id == expected
    assert properties.correlation_id == expected


def test_every_field_of_the_properties_section_arrives(there: Pass) -> None:
    sent = AmqpMessageProperties(
        message_id="id", user_id=b"user", to="to", subject="subject", reply_to="reply-to",
        correlation_id="correlation", content_type="content/type", content_encoding="encoding",
        group_id="group", group_sequence=7, reply_to_group_id="reply-to-group",
    )  # fmt: skip
    received = there(AmqpAnnotatedMessage(data_body=b"x", properties=sent))
    properties = received.raw_amqp_message.properties
    assert properties is not None
    for name in sent.keys():  # noqa: SIM118 (it is not a mapping)
        value = getattr(sent, name)
        if value is not None:
            got = getattr(properties, name)
            assert got == (value.encode() if isinstance(value, str) else value), name


def test_a_header_arrives(there: Pass) -> None:
    sent = AmqpAnnotatedMessage(
        data_body=b"x", header=AmqpMessageHeader(durable=True, priority=7, time_to_live=60_000)
    )
    header = there(sent).raw_amqp_message.header
    assert header is not None
    assert header.durable is True
    assert header.priority == 7
    assert header.time_to_live == 60_000
    assert not header.delivery_count


# Values by their types, as the SDK writes them: its name for the type, the value, and the bytes
# that stand for it on the wire.
TYPED: list[tuple[str, Any, str]] = [
    ("NULL", None, "40"),
    ("BOOL", True, "5601"),
    ("BOOL", False, "5600"),
    ("UBYTE", 200, "50c8"),
    ("BYTE", -100, "519c"),
    ("USHORT", 60_000, "60ea60"),
    ("SHORT", -30_000, "618ad0"),
    ("UINT", 0, "43"),
    ("UINT", 7, "5207"),
    ("UINT", 4_000_000_000, "70ee6b2800"),
    ("INT", -7, "54f9"),
    ("INT", -2_000_000_000, "7188ca6c00"),
    ("ULONG", 0, "44"),
    ("ULONG", 7, "5307"),
    ("ULONG", (1 << 64) - 1, "80ffffffffffffffff"),
    ("LONG", -7, "55f9"),
    ("LONG", -(1 << 63), "818000000000000000"),
    ("FLOAT", 1.5, "723fc00000"),
    ("DOUBLE", 0.1, "823fb999999999999a"),
    ("TIMESTAMP", 1_700_000_000_123, "830000018bcfe5687b"),
    ("UUID", uuid.UUID(int=0x0123456789ABCDEF), "9800000000000000000123456789abcdef"),
    ("BINARY", b"\x00\xff", "a00200ff"),
    ("STRING", "höflich", "a10868c3b6666c696368"),
    ("SYMBOL", "symbol", "a30673796d626f6c"),
    ("DECIMAL128", Decimal(0), "9430400000000000000000000000000000"),  # others it cannot read
]


def named(prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}{n:02}": {"TYPE": kind, "VALUE": value}
        for n, (kind, value, _) in enumerate(TYPED)
    }


@pytest.mark.parametrize("peeked", [False, True])
def test_values_of_every_type_arrive_byte_for_byte(bus: Bus, *, peeked: bool) -> None:
    queue = bus.queue()
    message = AmqpAnnotatedMessage(
        data_body=b"x", application_properties=named("p-"), annotations=named("x-a-")
    )
    with Tap(bus.broker.port) as tap:
        with bus.client(port=tap.port).get_queue_sender(queue) as sender:
            sender.send_messages(message)
        said = bytes(tap.said)
        tap.heard.clear()
        client = bus.client(port=tap.port)
        with client.get_queue_receiver(queue, receive_mode=DELETE) as receiver:
            if peeked:
                [received] = receiver.peek_messages()
            else:
                [received] = receiver.receive_messages(max_wait_time=WAIT)
        heard = bytes(tap.heard)
    for n, (kind, _, encoded) in enumerate(TYPED):
        property = b"\xa1\x04" + f"p-{n:02}".encode() + bytes.fromhex(encoded)
        annotation = b"\xa3\x06" + f"x-a-{n:02}".encode() + bytes.fromhex(encoded)
        for each in (property, annotation):
            assert each in said, (kind, "is not what the SDK has sent")
            assert each in heard, kind
    assert received.application_properties is not None
    assert received.application_properties[b"p-03"] == 200


def test_values_come_back_as_the_sdk_gives_them(there: Pass) -> None:
    sent: dict[str | bytes, Any] = {
        "text": "höflich", "yes": True, "no": False, "nothing": None,
        "int": -5, "float": 0.1, "uuid": uuid.UUID(int=1),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "": "no name", "long": "x" * 3_000,
    }  # fmt: skip
    received = there(ServiceBusMessage("x", application_properties=sent)).application_properties
    expected = {str(key).encode(): value for key, value in sent.items()}
    expected |= {b"text": "höflich".encode(), b"": b"no name", b"long": b"x" * 3_000}
    expected[b"time"] = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)
    assert received == expected


def test_annotations_may_be_of_many_parts(there: Pass) -> None:
    annotations: dict[str, Any] = {
        "x-list": [1, "two", [3]], "x-map": {"a": {"b": 1}},
        "x-array": {"TYPE": "ARRAY", "VALUE": [1, 2, 3]},
    }  # fmt: skip
    received = there(AmqpAnnotatedMessage(data_body=b"x", annotations=annotations))
    found = received.raw_amqp_message.annotations
    assert found is not None
    assert found[b"x-list"] == [1, b"two", [3]]
    assert found[b"x-map"] == {b"a": {b"b": 1}}
    assert found[b"x-array"] == [1, 2, 3]


def test_what_the_broker_says_of_a_message_cannot_be_forged(there: Pass) -> None:
    forged: dict[str, Any] = {
        "x-opt-sequence-number": 999_999_999, "x-opt-enqueued-time": 1, "x-opt-locked-until": 1,
        "x-opt-deadletter-source": "elsewhere", "x-opt-message-state": 2, "x-mine": "kept",
    }  # fmt: skip
    received = there(AmqpAnnotatedMessage(data_body=b"x", annotations=forged))
    assert received.sequence_number != 999_999_999
    assert received.enqueued_time_utc is not None
    assert received.enqueued_time_utc.year > 2000
    assert received.locked_until_utc is None
    assert received.dead_letter_source is None
    found = received.raw_amqp_message.annotations
    assert found is not None
    assert found[b"x-mine"] == b"kept"


def test_a_received_message_can_be_sent_again(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    sender.send_messages(ServiceBusMessage("again"))
    [received] = take(receiver, 1)
    sender.send_messages(received)
    [again] = take(receiver, 1)
    assert str(again) == "again"
    assert again.message_id == received.message_id
    assert again.delivery_count == 0


# Bodies.


@pytest.mark.parametrize(
    "parts", [[b"one"], [b"one", b"two", b""], [b""], [b"x" * 300, b"y" * 70_000]]
)
def test_data_sections_arrive_one_by_one(there: Pass, parts: list[bytes]) -> None:
    received = there(AmqpAnnotatedMessage(data_body=parts))
    assert received.body_type == AmqpMessageBodyType.DATA
    assert list(received.body) == parts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", b"text"), (b"bytes", b"bytes"), (42, 42), (None, None), (True, True),
        (0.5, 0.5), ([1, [2, b"x"]], [1, [2, b"x"]]), ({"a": [1]}, {b"a": [1]}),
        ("x" * 70_000, b"x" * 70_000), (uuid.UUID(int=5), uuid.UUID(int=5)),
    ],
)  # fmt: skip
def test_a_value_of_any_type_arrives(there: Pass, value: Any, expected: Any) -> None:
    received = there(AmqpAnnotatedMessage(value_body=value))
    assert received.body_type == AmqpMessageBodyType.VALUE
    assert received.body == expected


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([1, "two", b"three"], [[1, b"two", b"three"]]),
        ([[1, 2], ["three"]], [[1, 2], [b"three"]]),
        ([[]], [[]]),
    ],
)
def test_sequences_arrive_one_by_one(there: Pass, sequences: Any, expected: Any) -> None:
    received = there(AmqpAnnotatedMessage(sequence_body=sequences))
    assert received.body_type == AmqpMessageBodyType.SEQUENCE
    assert list(received.body) == expected


def test_a_footer_arrives(there: Pass) -> None:
    received = there(AmqpAnnotatedMessage(data_body=b"x", footer={"x-sum": 7}))
    assert received.raw_amqp_message.footer == {b"x-sum": 7}


def test_delivery_annotations_arrive_beside_the_lock_token(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    given = {"x-hop": 1, "x-opt-lock-token": "not theirs to say"}
    message = AmqpAnnotatedMessage(data_body=b"x", delivery_annotations=given)
    sender.send_messages(message)
    sender.send_messages(ServiceBusMessage("bare"))
    for others in ({b"x-hop": 1}, {}):
        [received] = receiver.receive_messages(max_wait_time=WAIT)
        token = received.lock_token
        assert isinstance(token, uuid.UUID)
        annotations = received.raw_amqp_message.delivery_annotations
        assert annotations == {b"x-opt-lock-token": token, **others}
        receiver.complete_message(received)


def test_a_message_that_is_not_locked_has_delivery_annotations_without_a_token(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue, receive_mode=DELETE)
    message = AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={"x-hop": 1})
    sender.send_messages(message)
    sender.send_messages(ServiceBusMessage("bare"))
    found = [each.raw_amqp_message.delivery_annotations for each in take(receiver, 2)]
    assert found == [{b"x-hop": 1}, {}]


@pytest.mark.parametrize("kind", ["data_body", "value_body", "sequence_body"])
def test_annotated_messages_of_every_kind_travel_in_a_batch(bus: Bus, kind: str) -> None:
    _, sender, receiver = bus.ready()
    bodies: dict[str, Any] = {"data_body": [b"a", b"b"], "value_body": 7, "sequence_body": [[1]]}
    sender.send_messages([AmqpAnnotatedMessage(**{kind: bodies[kind]}) for _ in range(3)])
    for each in take(receiver, 3):
        body = each.body if kind == "value_body" else list(each.body)
        assert body == bodies[kind]


# Times, sessions and partitions.


def test_a_message_with_a_time_comes_when_it_is_due(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    due = datetime.fromtimestamp(bus.clock() // 1000 + 600, UTC)
    sender.send_messages(ServiceBusMessage("later", scheduled_enqueue_time_utc=due))
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    assert bus.counts(queue)["scheduled"] == 1
    bus.advance(590)
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    bus.advance(11)
    [received] = receiver.receive_messages(max_wait_time=WAIT)
    assert received.scheduled_enqueue_time_utc == due
    assert received.enqueued_time_utc is not None
    assert received.enqueued_time_utc >= due
    receiver.complete_message(received)


def test_a_time_that_is_over_is_no_reason_to_wait(there: Pass) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    assert str(there(ServiceBusMessage("now", scheduled_enqueue_time_utc=past))) == "now"


def test_a_message_is_not_delivered_after_its_time_to_live(bus: Bus) -> None:
    queue, sender, receiver = bus.ready()
    sender.send_messages(ServiceBusMessage("brief", time_to_live=timedelta(seconds=30)))
    sender.send_messages(ServiceBusMessage("lasting"))
    [peeked] = receiver.peek_messages()
    assert peeked.time_to_live == timedelta(seconds=30)
    assert peeked.expires_at_utc is not None
    assert peeked.enqueued_time_utc is not None
    assert peeked.expires_at_utc - peeked.enqueued_time_utc == timedelta(seconds=30)
    bus.advance(31)
    [received] = receiver.receive_messages(max_wait_time=WAIT)
    assert str(received) == "lasting"
    assert bus.counts(queue)["dead"] == 0


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(bus: Bus) -> None:
    queue, sender, receiver = bus.ready(dead_letter_expired=True, ttl_ms=30_000)
    sender.send_messages(ServiceBusMessage("brief"))
    bus.advance(31)
    assert receiver.receive_messages(max_wait_time=NOTHING) == []
    [dead] = bus.receiver(queue, sub_queue="deadletter").receive_messages(max_wait_time=WAIT)
    assert str(dead) == "brief"
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.dead_letter_error_description


def test_a_partition_key_must_be_the_session_id(bus: Bus) -> None:
    _, sender, receiver = bus.ready()
    unequal = AmqpAnnotatedMessage(
        data_body=b"x", annotations={"x-opt-partition-key": "one"},
        properties=AmqpMessageProperties(group_id="another"),
    )  # fmt: skip
    with pytest.raises(ServiceBusError, match="argument-error"):
        sender.send_messages(unequal)
    sender.send_messages(ServiceBusMessage("x", session_id="one", partition_key="one"))
    sender.send_messages(ServiceBusMessage("y", partition_key="two"))
    first, second = take(receiver, 2)
    assert (first.session_id, first.partition_key) == ("one", "one")
    assert (second.session_id, second.partition_key) == (None, "two")


@pytest.mark.parametrize("where", ["message_id", "group_id"])
def test_an_id_of_more_than_128_characters_is_refused(bus: Bus, where: str) -> None:
    queue, sender, _ = bus.ready()
    fields: dict[str, Any] = {where: "x" * 129}
    long = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**fields))
    with pytest.raises(ServiceBusError, match="argument"):
        sender.send_messages(long)
    fields[where] = "x" * 128
    fitting = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**fields))
    sender.send_messages(fitting)
    assert bus.counts(queue)["active"] == 1


def test_a_queue_with_sessions_takes_no_message_without_one(bus: Bus) -> None:
    queue = bus.sessions()
    sender = bus.sender(queue, retries=0)
    with pytest.raises(ServiceBusError, match="not-allowed"):
        sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages(ServiceBusMessage("x", session_id="s"))
    assert bus.counts(queue)["active"] == 1


def test_a_message_id_is_taken_once_where_duplicates_are_detected(bus: Bus) -> None:
    queue = bus.queue(duplicate_detection=True)
    sender, receiver = bus.pair(queue, receive_mode=DELETE)
    sender.send_messages(ServiceBusMessage("first", message_id="same"))
    sender.send_messages(ServiceBusMessage("second", message_id="same"))
    sender.send_messages([ServiceBusMessage(f"{n}", message_id="same") for n in range(3)])
    assert texts(take(receiver, 1)) == ["first"]
    assert bus.counts(queue)["active"] == 0
    bus.advance(601)
    sender.send_messages(ServiceBusMessage("third", message_id="same"))
    assert texts(take(receiver, 1)) == ["third"]
