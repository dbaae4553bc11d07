"""Topics and subscriptions through the official Python client."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError

from tests.dialects.servicebus.bus import (
    DELETE,
    NOTHING,
    WAIT,
    Bus,
    eventually,
    take,
    texts,
    together,
)


def sql(expression: str, action: str = "", name: str = "rule") -> dict[str, Any]:
    found = {"kind": "sql", "expression": expression}
    return {"name": name, "filter": found, "action": action}


def receiver(bus: Bus, topic: str, subscription: str, **options: Any) -> ServiceBusReceiver:
    client = bus.client()
    opened = client.get_subscription_receiver(topic, subscription, **options)
    return bus.closing(opened).__enter__()


def publish(bus: Bus, topic: str, *messages: ServiceBusMessage) -> None:
    with bus.client() as client, client.get_topic_sender(topic) as sender:
        sender.send_messages(list(messages))


def locked(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """So many, and not settled."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = receiver.receive_messages(count - len(found), max_wait_time=WAIT)
        assert some
        found += some
    return found


def everything(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """So many, and no more."""
    found = take(receiver, count)
    assert not receiver.receive_messages(max_wait_time=NOTHING)
    return found


def test_every_subscription_gets_what_its_rules_want(bus: Bus) -> None:
    topic = bus.topic("all")
    bus.subscribe(topic, "red", sql("colour = 'red' AND size > 2"))
    correlation = {"kind": "correlation", "subject": "s", "properties": {"size": 5}}
    bus.subscribe(topic, "exact", {"name": "r", "filter": correlation})
    publish(
        bus, topic,
        ServiceBusMessage("1", application_properties={"colour": "red", "size": 3}),
        ServiceBusMessage("2", application_properties={"colour": "red", "size": 1}),
        ServiceBusMessage("3", subject="s", application_properties={"size": 5}),
        ServiceBusMessage("4", subject="S", application_properties={"size": 5}),
    )  # fmt: skip
    found = {
        name: texts(everything(receiver(bus, topic, name, receive_mode=DELETE), count))
        for name, count in (("all", 4), ("red", 1), ("exact", 1))
    }
    assert found == {"all": ["1", "2", "3", "4"], "red": ["1"], "exact": ["3"]}


def test_an_action_changes_the_copy_it_makes(bus: Bus) -> None:
    topic = bus.topic()
    action = "SET size = size + 1; REMOVE old; SET sys.Label = 'new'; SET sys.CorrelationId = 'c'"
    bus.subscribe(topic, "s", sql("1 = 1", action, "grow"))
    message = ServiceBusMessage(
        "body", message_id="m", subject="old", content_type="text/plain",
        application_properties={"size": 1, "old": True, "kept": 0.5},
    )  # fmt: skip
    publish(bus, topic, message)
    [got] = everything(receiver(bus, topic, "s"), 1)
    assert got.application_properties == {b"size": 2, b"kept": 0.5, b"RuleName": b"grow"}
    assert (got.subject, got.correlation_id) == ("new", "c")
    assert (got.message_id, got.content_type, str(got)) == ("m", "text/plain", "body")


def test_copies_are_settled_each_by_itself(bus: Bus) -> None:
    topic = bus.topic("a", "b")
    publish(bus, topic, ServiceBusMessage("x"))
    first, second = receiver(bus, topic, "a"), receiver(bus, topic, "b")
    [mine], [other] = locked(first, 1), locked(second, 1)
    first.dead_letter_message(mine, reason="why", error_description="so")
    second.complete_message(other)
    dead = receiver(bus, topic, "a", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    [letter] = locked(dead, 1)
    assert (letter.dead_letter_reason, letter.dead_letter_source) == (
        "why", f"{topic}/Subscriptions/a",
    )  # fmt: skip
    dead.complete_message(letter)
    eventually(lambda: bus.ask("GET", f"topics/{topic}/subscriptions/a")["counts"]["dead"] == 0)


def test_messages_are_peeked_deferred_and_received_by_number(bus: Bus) -> None:
    topic = bus.topic("s")
    publish(bus, topic, ServiceBusMessage("1"), ServiceBusMessage("2"))
    mine = receiver(bus, topic, "s")
    assert texts(mine.peek_messages(5)) == ["1", "2"]
    [first, _] = locked(mine, 2)
    mine.defer_message(first)
    assert first.sequence_number is not None
    [again] = mine.receive_deferred_messages(first.sequence_number)
    assert str(again) == "1"
    mine.complete_message(again)


def test_a_message_is_scheduled_on_a_topic_and_cancelled(bus: Bus) -> None:
    from datetime import UTC, datetime, timedelta

    topic = bus.topic("s")
    now = datetime.fromtimestamp(bus.clock() / 1000, UTC)
    with bus.client() as client, client.get_topic_sender(topic) as sender:
        later = now + timedelta(hours=1)
        messages = [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")]
        _, second = sender.schedule_messages(messages, later)
        sender.cancel_scheduled_messages(second)
    mine = receiver(bus, topic, "s")
    assert not mine.receive_messages(max_wait_time=NOTHING)
    bus.advance(3_600)
    assert texts(take(mine, 1)) == ["kept"]


def test_a_subscription_has_sessions(bus: Bus) -> None:
    topic = bus.topic()
    bus.subscribe(topic, "s", requires_session=True)
    publish(
        bus, topic, *(ServiceBusMessage(each, session_id=each[0]) for each in ("a1", "b1", "a2"))
    )
    mine = receiver(bus, topic, "s", session_id="a")
    assert mine.session is not None
    mine.session.set_state(b"half way")
    assert texts(take(mine, 2)) == ["a1", "a2"]
    assert mine.session.get_state() == b"half way"


def test_what_is_forwarded_comes_out_at_the_end(bus: Bus) -> None:
    end = bus.queue()
    topic = bus.topic()
    bus.subscribe(topic, "s", forward_to=end)
    source = bus.queue(forward_to=topic)
    sender, mine = bus.sender(source), bus.receiver(end)
    sender.send_messages(ServiceBusMessage("far", application_properties={"n": 1}))
    [got] = take(mine, 1)
    assert (str(got), got.application_properties) == ("far", {b"n": 1})


def test_what_could_not_be_forwarded_is_in_the_transfer_queue(bus: Bus) -> None:
    target = bus.queue(status="disabled")
    source = bus.queue(forward_to=target)
    bus.sender(source).send_messages(ServiceBusMessage("stuck"))
    sub_queue = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    client = bus.client()
    mine = bus.closing(client.get_queue_receiver(source, sub_queue=sub_queue)).__enter__()
    [got] = mine.receive_messages(max_wait_time=WAIT)
    assert (str(got), got.dead_letter_reason) == ("stuck", "TargetDisabled")
    mine.complete_message(got)


def test_what_is_not_there_or_not_meant_is_refused(bus: Bus) -> None:
    topic = bus.topic("s")
    client = bus.client(retry_total=0)
    with pytest.raises(MessagingEntityNotFoundError), client.get_subscription_receiver(topic, "no"):
        pass
    with pytest.raises(ServiceBusError), client.get_queue_receiver(topic) as mine:
        mine.receive_messages(max_wait_time=1)
    with (
        pytest.raises(ServiceBusError),
        client.get_queue_sender(f"{topic}/Subscriptions/s") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))


def test_rights_on_a_topic_are_rights_on_its_subscriptions(bus: Bus) -> None:
    topic = bus.topic("s")
    other = bus.topic("s")
    key = bus.principal("reader", "listen", entity=topic)
    client = bus.client("reader", key, retry_total=0)
    with client.get_subscription_receiver(topic, "s") as mine:
        assert mine.receive_messages(max_wait_time=NOTHING) == []
    with pytest.raises(ServiceBusError), client.get_subscription_receiver(other, "s") as mine:
        mine.receive_messages(max_wait_time=1)


def test_everybody_gets_what_is_sent_to_a_fan_out_queue(bus: Bus) -> None:
    queue = bus.queue(delivery="fan-out")
    first, second = together(lambda: bus.receiver(queue), lambda: bus.receiver(queue))
    eventually(lambda: bus.ask("GET", f"queues/{queue}")["subscriptions"] == 2)
    bus.sender(queue).send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    for mine in (first, second):
        found = locked(mine, 2)
        assert texts(found) == ["a", "b"]
        for each in found:
            mine.complete_message(each)
    eventually(lambda: bus.ask("GET", f"queues/{queue}")["size_bytes"] == 0)
    first.close()
    second.close()
    eventually(lambda: bus.ask("GET", f"queues/{queue}")["subscriptions"] == 0)


def test_a_sender_is_held_back_while_the_queue_is_full(bus: Bus) -> None:
    queue = bus.queue(max_messages=1, overflow="block")
    sender, mine = bus.pair(queue, receive_mode=DELETE)
    sender.send_messages(ServiceBusMessage("a"))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send_messages, ServiceBusMessage("b"))
        time.sleep(0.3)  # slept: within which a send that is not held back is done
        assert not sending.done()
        assert texts(take(mine, 2)) == ["a", "b"]
        sending.result(WAIT)
