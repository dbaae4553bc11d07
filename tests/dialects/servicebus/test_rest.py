"""Azure's REST messaging, by hand; what it sends the official SDK receives, and the reverse."""

import hmac
import http.client
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.dialects.servicebus.bus import DELETE, KEY, ROOT, WAIT, Bus, eventually, take, texts
from tests.dialects.servicebus.rest import ATOM, Answer, Rest, entry
from tests.dialects.servicebus.sas import token
from tests.dialects.servicebus.trust import trusting
from tests.server.running import running

BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
WHEN = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
HTTP_DATE = "Thu, 02 Jan 2020 03:04:05 GMT"
# What a header says, and what the SDK makes of it: texts are bytes to it, times milliseconds.
TYPED: dict[str, tuple[str, Any]] = {
    "Colour": ('"red"', b"red"), "Empty": ('""', b""), "Digits": ('"12"', b"12"),
    "Count": ("5", 5), "Less": ("-7", -7), "Long": (str(1 << 40), 1 << 40), "Ratio": ("1.5", 1.5),
    "Yes": ("true", True), "No": ("false", False), "Bare": ("two words", b"two words"),
    "When": (f'"{HTTP_DATE}"', int(WHEN.timestamp() * 1000)),
}  # fmt: skip

_numbers = count(1)


@pytest.fixture(scope="module")
def rest(bus: Bus) -> Rest:
    """Without TLS."""
    return Rest(bus.broker.port)


@pytest.fixture(scope="module")
def secure(bus: Bus) -> Rest:
    authority = trusting(bus.broker)["SSL_CERT_FILE"]
    return Rest(bus.broker.port, ssl.create_default_context(cafile=authority))


def now(bus: Bus) -> datetime:
    """For the broker."""
    return datetime.fromtimestamp(bus.clock() / 1000, UTC)


def send(rest: Rest, entity: str, body: bytes | str = b"x", **options: Any) -> None:
    answer = rest("POST", f"/{entity}/messages", body, **options)
    assert answer.status == 201, answer


def lock(rest: Rest, entity: str, seconds: int = WAIT) -> Answer:
    answer = rest("POST", f"/{entity}/messages/head?timeout={seconds}")
    assert answer.status == 201, answer
    return answer


def remove(rest: Rest, entity: str, seconds: int = WAIT) -> Answer:
    answer = rest("DELETE", f"/{entity}/messages/head?timeout={seconds}")
    assert answer.status == 200, answer
    return answer


def is_empty(rest: Rest, entity: str) -> bool:
    return rest("DELETE", f"/{entity}/messages/head?timeout=0").status == 204


def received(bus: Bus, queue: str, count: int = 1) -> list[ServiceBusReceivedMessage]:
    return take(bus.receiver(queue, receive_mode=DELETE), count)


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


def properties(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """By lower-case names: a header has no case of its own."""
    found = message.application_properties or {}
    return {
        (name.decode() if isinstance(name, bytes) else name).lower(): value
        for name, value in found.items()
    }


# Sending.


def test_a_message_is_sent(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    answer = rest(
        "POST", f"/{queue}/messages?timeout=60", b"\x00bytes\xff",
        headers={"Content-Type": "application/octet-stream"},
    )  # fmt: skip
    assert (answer.status, answer.body) == (201, b"")
    [got] = received(bus, queue)
    assert body_of(got) == b"\x00bytes\xff"
    assert got.content_type == "application/octet-stream"
    assert got.message_id
    assert not got.application_properties


def test_a_message_may_be_empty(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    send(rest, queue, b"")
    [got] = received(bus, queue)
    assert body_of(got) == b""


def test_broker_properties_are_those_of_the_message(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    given = {
        "CorrelationId": "c", "ForcePersistence": True, "Label": "läbel", "MessageId": "m",
        "PartitionKey": "p", "ReplyTo": "r", "ReplyToSessionId": "rs", "TimeToLive": 12.5,
        "To": "t", "Unheard": {"of": [1]},
    }  # fmt: skip
    send(rest, queue, broker=given)
    [got] = received(bus, queue)
    assert (got.correlation_id, got.subject, got.message_id) == ("c", "läbel", "m")
    assert (got.partition_key, got.reply_to, got.reply_to_session_id) == ("p", "r", "rs")
    assert (got.to, got.time_to_live) == ("t", timedelta(seconds=12.5))
    assert not got.application_properties


def test_a_message_goes_into_its_session(bus: Bus, rest: Rest) -> None:
    queue = bus.sessions()
    send(rest, queue, b"mine", broker={"SessionId": "s", "PartitionKey": "s"})
    [got] = take(bus.receiver(queue, session_id="s"), 1)
    assert (str(got), got.session_id, got.partition_key) == ("mine", "s", "s")


def test_a_session_and_another_partition_are_refused(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    both = {"SessionId": "s", "PartitionKey": "other"}
    assert rest("POST", f"/{queue}/messages", b"x", broker=both).status == 400
    assert is_empty(rest, queue)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"TimeToLive": 30}, 30),
        ({"TimeToLive": 30.5}, 30.5),
        ({"TimeToLiveTimeSpan": "00:01:30"}, 90),
        ({"TimeToLiveTimeSpan": "0.00:00:40"}, 40),
        ({"TimeToLiveTimeSpan": "1.02:03:04.5"}, 93_784.5),
    ],
    ids=str,
)
def test_a_message_lives_as_long_as_is_said(
    bus: Bus, rest: Rest, given: dict[str, Any], seconds: float
) -> None:
    queue = bus.queue(dead_letter_expired=True)
    send(rest, queue, broker=given)
    bus.advance(seconds - 10)
    assert bus.counts(queue)["active"] == 1
    bus.advance(10)
    assert is_empty(rest, queue)
    dead = remove(rest, f"{queue}/$DeadLetterQueue")
    assert dead.header("DeadLetterReason") == '"TTLExpiredException"'


def test_a_message_waits_until_it_is_due(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    due = now(bus).replace(microsecond=0) + timedelta(hours=1)
    send(rest, queue, b"due", broker={"ScheduledEnqueueTimeUtc": format_datetime(due, usegmt=True)})
    assert bus.counts(queue)["scheduled"] == 1
    assert is_empty(rest, queue)
    bus.advance(3_600)
    assert remove(rest, queue).body == b"due"


def test_headers_of_every_type_are_properties(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    usual = {
        "Accept": "*/*", "User-Agent": "by-hand/1", "Accept-Language": "en", "Date": HTTP_DATE,
        "Cache-Control": "no-cache", "x-ms-retrypolicy": "NoRetry", "Content-Type": "text/plain",
    }  # fmt: skip
    send(rest, queue, headers={**usual, **{name: text for name, (text, _) in TYPED.items()}})
    [got] = received(bus, queue)
    expected = {name.lower(): value for name, (_, value) in TYPED.items()}
    assert properties(got) == expected
    assert {name: type(value) for name, value in properties(got).items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_a_batch_is_sent_in_order(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    user = {"text": "ü", "n": 5, "ratio": 1.5, "yes": True}
    batch = [
        {"Body": "first", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "zweite ü", "UserProperties": user},
        {"Body": b64encode(b"\x00\xff").decode(), "IsBodyBase64": True,
         "BrokerProperties": {"MessageId": "m3", "CorrelationId": "c"}},
    ]  # fmt: skip
    headers = {**BATCH, "Ignored": "1"}
    answer = rest("POST", f"/{queue}/messages", json.dumps(batch), headers=headers)
    assert answer.status == 201, answer
    first, second, third = received(bus, queue, 3)
    assert [body_of(each) for each in (first, second, third)] == [
        b"first", "zweite ü".encode(), b"\x00\xff",
    ]  # fmt: skip
    assert (first.subject, first.time_to_live) == ("M1", timedelta(seconds=40))
    assert properties(second) == {"text": "ü".encode(), "n": 5, "ratio": 1.5, "yes": True}
    assert (third.message_id, third.correlation_id) == ("m3", "c")
    assert not first.application_properties  # headers are for single messages
    assert first.message_id != second.message_id


@pytest.mark.parametrize(
    "body",
    [
        "", "[{]", "{}", '"text"', '["text"]', '[{"Body": 1}]',
        '[{"Body": "good"}, {"Body": "bad", "BrokerProperties": {"TimeToLive": "long"}}]',
        '[{"Body": "good"}, {"Body": "bad", "BrokerProperties": []}]',
        '[{"Body": "good"}, {"Body": "b", "BrokerProperties": {"MessageId": "%s"}}]' % ("m" * 129),
        '[{"Body": "good"}, {"Body": "*", "IsBodyBase64": true}]',
    ],
    ids=range(10),
)  # fmt: skip
def test_a_batch_is_sent_as_a_whole_or_not(bus: Bus, rest: Rest, body: str) -> None:
    queue = bus.queue()
    assert rest("POST", f"/{queue}/messages", body, headers=BATCH).status == 400
    assert bus.counts(queue)["active"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "nonsense", "[]", '{"TimeToLive": "long"}', '{"TimeToLive": -1}', '{"MessageId": {}}',
        '{"TimeToLiveTimeSpan": "soon"}', '{"ScheduledEnqueueTimeUtc": "tomorrow"}',
        '{"ScheduledEnqueueTimeUtc": 20300101}', '{"ScheduledEnqueueTimeUtc": {}}',
        '{"SessionId": "%s"}' % ("s" * 129),
    ],
    ids=range(10),
)  # fmt: skip
def test_broker_properties_that_cannot_be_are_refused(bus: Bus, rest: Rest, text: str) -> None:
    queue = bus.queue()
    answer = rest("POST", f"/{queue}/messages", b"x", headers={"BrokerProperties": text})
    assert answer.status == 400
    assert b"<Code>400</Code>" in answer.body
    assert bus.counts(queue)["active"] == 0


def test_duplicates_are_taken_and_dropped(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(duplicate_detection=True)
    for _ in range(3):
        send(rest, queue, broker={"MessageId": "same"})
    assert bus.counts(queue)["active"] == 1


def test_what_is_not_there_is_not_found(bus: Bus, rest: Rest) -> None:
    topic = bus.topic("s")
    for method, path in (
        ("POST", "/gone/messages"),
        ("POST", "/gone/messages/head?timeout=0"),
        ("DELETE", "/gone/messages/head?timeout=0"),
        ("DELETE", f"/{topic}/subscriptions/gone/messages/head?timeout=0"),
        ("DELETE", "/gone/$DeadLetterQueue/messages/head?timeout=0"),
    ):
        assert rest(method, path, b"x").status in (404, 410), path
    for path in (f"/{topic}/messages/head?timeout=0", f"/{topic}/subscriptions/s/messages"):
        assert 400 <= rest("POST", path, b"x").status < 500, path


def test_what_is_too_large_or_too_much_is_refused(bus: Bus, rest: Rest) -> None:
    small, full = bus.queue(max_message_bytes=1_000), bus.queue(max_messages=1)
    assert rest("POST", f"/{small}/messages", b"x" * 2_000).status in (403, 413)
    send(rest, full)
    assert rest("POST", f"/{full}/messages", b"x").status == 403
    assert (bus.counts(small)["active"], bus.counts(full)["active"]) == (0, 1)


def test_a_disabled_queue_refuses(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(status="disabled")
    assert 400 <= rest("POST", f"/{queue}/messages", b"x").status < 500
    assert 400 <= rest("DELETE", f"/{queue}/messages/head?timeout=0").status < 500


# Receiving.


def test_a_message_is_received_and_deleted(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    headers |= {name: text for name, (text, _) in TYPED.items()}
    given = {"MessageId": "m", "Label": "läbel", "CorrelationId": "c", "TimeToLive": 90}
    send(rest, queue, "zwölf", headers=headers, broker=given)
    got = remove(rest, queue)
    assert got.body == "zwölf".encode()
    assert got.header("Content-Type") == "text/plain; charset=utf-8"
    assert {name: got.broker[name] for name in given} == given
    assert got.broker["SequenceNumber"] > 0
    assert got.broker["DeliveryCount"] in (0, 1)
    assert got.broker["State"] == "Active"
    assert "LockToken" not in got.broker
    enqueued = parsedate_to_datetime(got.broker["EnqueuedTimeUtc"])
    assert abs(enqueued - now(bus)) < timedelta(seconds=60)
    expected = {name: text for name, (text, _) in TYPED.items()} | {"Bare": '"two words"'}
    assert {name: got.header(name) for name in TYPED} == expected
    assert bus.counts(queue)["active"] == 0


def test_nothing_comes_where_nothing_is(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    for method in ("DELETE", "POST"):
        began = time.monotonic()
        answer = rest(method, f"/{queue}/messages/head?timeout=1")
        assert (answer.status, answer.body) == (204, b"")
        assert 0.9 < time.monotonic() - began < 5
        assert rest(method, f"/{queue}/messages/head?timeout=0").status == 204


def test_who_waits_gets_what_comes(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    sender = bus.sender(queue)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lock, rest, queue, 60), pool.submit(remove, rest, queue)]
        eventually(lambda: bus.receivers(queue) == 2)
        assert not any(each.done() for each in waiting)
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        found = [each.result(10) for each in waiting]
    assert sorted(each.body for each in found) == [b"1", b"2"]


def test_who_leaves_while_waiting_takes_nothing_away(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    headers = {"Authorization": token(f"{rest.url}/")}
    for method in ("DELETE", "POST"):
        with closing(http.client.HTTPConnection("localhost", bus.broker.port)) as leaving:
            leaving.request(method, f"/{queue}/messages/head?timeout=60", headers=headers)
            eventually(lambda: bus.receivers(queue) == 1)
        eventually(lambda: bus.receivers(queue) == 0)
    send(rest, queue, b"stays")
    assert remove(rest, queue).body == b"stays"


@pytest.mark.parametrize("text", ["soon", "-1"])
def test_a_timeout_that_cannot_be_is_refused(bus: Bus, rest: Rest, text: str) -> None:
    queue = bus.queue()
    send(rest, queue)
    assert rest("DELETE", f"/{queue}/messages/head?timeout={text}").status == 400
    assert bus.counts(queue)["active"] == 1


def test_a_timeout_is_a_minute_at_most(bus: Bus, rest: Rest) -> None:
    """More is no error; whoever says nothing waits as long."""
    queue = bus.queue()
    for path in ("head?timeout=600", "head"):
        send(rest, queue)
        assert rest("DELETE", f"/{queue}/messages/{path}").status == 200


def test_a_locked_message_is_completed(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(lock_ms=30_000)
    send(rest, queue, b"work", headers={"Content-Type": "text/plain"}, broker={"MessageId": "m"})
    got = lock(rest, queue)
    assert (got.body, got.header("Content-Type")) == (b"work", "text/plain")
    assert got.broker["DeliveryCount"] == 1
    UUID(got.broker["LockToken"])
    until = parsedate_to_datetime(got.broker["LockedUntilUtc"])
    assert timedelta(seconds=20) < until - now(bus) <= timedelta(seconds=31)
    assert got.location.startswith(f"{rest.url}/{queue}/messages/")
    assert got.location.endswith(got.broker["LockToken"])
    assert rest("POST", f"/{queue}/messages/head?timeout=0").status == 204
    assert bus.counts(queue)["locked"] == 1
    done = rest("DELETE", got.location)
    assert (done.status, done.body) == (200, b"")
    assert rest("DELETE", got.location).status == 404
    assert bus.counts(queue)["locked"] == bus.counts(queue)["active"] == 0


def test_an_unlocked_message_comes_again(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    send(rest, queue)
    first = lock(rest, queue)
    assert rest("PUT", first.location).status == 200
    second = lock(rest, queue)
    assert second.broker["DeliveryCount"] == 2
    assert second.broker["LockToken"] != first.broker["LockToken"]
    for method in ("PUT", "POST", "DELETE"):
        assert rest(method, first.location).status == 404
    assert rest("DELETE", second.location).status == 200


def test_a_renewed_lock_lasts_longer(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(lock_ms=10_000)
    send(rest, queue)
    got = lock(rest, queue)
    for _ in range(3):
        bus.advance(6)
        assert rest("POST", got.location).status == 200
    assert rest("DELETE", got.location).status == 200


def test_a_lock_that_has_expired_is_lost(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(lock_ms=10_000)
    send(rest, queue)
    got = lock(rest, queue)
    bus.advance(11)
    for method in ("POST", "PUT", "DELETE"):
        assert rest(method, got.location).status == 404
    assert lock(rest, queue).broker["DeliveryCount"] == 2


def test_a_message_is_settled_by_its_id_or_its_number(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    for name in ("MessageId", "SequenceNumber"):
        send(rest, queue, broker={"MessageId": "an id/with a slash"})
        got = lock(rest, queue).broker
        which = quote(str(got[name]), safe="")
        assert rest("POST", f"/{queue}/messages/{which}/{got['LockToken']}").status == 200
        assert rest("DELETE", f"/{queue}/messages/{which}/{got['LockToken']}").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "1/00000000-0000-0000-0000-000000000000",
        "gone/7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547",
        "1/nonsense",
    ],
)
def test_a_lock_that_never_was_is_not_found(bus: Bus, rest: Rest, path: str) -> None:
    queue = bus.queue()
    for method in ("POST", "PUT", "DELETE"):
        assert rest(method, f"/{queue}/messages/{path}").status in (400, 404)


def test_a_message_delivered_too_often_is_dead(bus: Bus, rest: Rest) -> None:
    queue = bus.queue(max_delivery=2)
    send(rest, queue, b"bad")
    for _ in range(2):
        assert rest("PUT", lock(rest, queue).location).status == 200
    assert is_empty(rest, queue)
    dead = remove(rest, f"{queue}/$DeadLetterQueue")
    assert dead.body == b"bad"
    assert dead.header("DeadLetterReason") == '"MaxDeliveryCountExceeded"'


def test_dead_letters_are_locked_and_completed(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    sender, receiver = bus.pair(queue)
    sender.send_messages(ServiceBusMessage("bad", application_properties={"n": 1}))
    [bad] = receiver.receive_messages(max_wait_time=WAIT)
    receiver.dead_letter_message(bad, reason="why", error_description="so")
    dead = f"{queue}/$DeadLetterQueue"
    got = lock(rest, dead)
    assert got.body == b"bad"
    names = ("DeadLetterReason", "DeadLetterErrorDescription", "n")
    assert [got.header(each) for each in names] == ['"why"', '"so"', "1"]
    assert rest("POST", got.location).status == 200
    assert rest("PUT", got.location).status == 200
    got = lock(rest, dead)
    assert rest("DELETE", got.location).status == 200
    assert is_empty(rest, dead)


def test_a_subscription_gets_what_is_sent_to_its_topic(bus: Bus, rest: Rest) -> None:
    topic = bus.topic("s", "other")
    chosen = {"kind": "sql", "expression": "n > 1 AND colour = 'red'"}
    bus.subscribe(topic, "red", {"name": "r", "filter": chosen, "action": ""})
    send(rest, topic, b"1", headers={"n": "1", "colour": '"red"'})
    send(rest, topic, b"2", headers={"n": "2", "colour": '"red"'})
    assert remove(rest, f"{topic}/subscriptions/red").body == b"2"
    assert is_empty(rest, f"{topic}/subscriptions/red")
    path = f"{topic}/Subscriptions/s"
    got = lock(rest, path)
    assert rest("POST", got.location).status == 200
    assert rest("PUT", got.location).status == 200
    assert rest("DELETE", lock(rest, path).location).status == 200
    assert remove(rest, path).body == b"2"
    assert [remove(rest, f"{topic}/subscriptions/other").body for _ in range(2)] == [b"1", b"2"]


def test_dead_letters_of_a_subscription_are_received(bus: Bus, rest: Rest) -> None:
    topic = bus.topic()
    bus.subscribe(topic, "s", max_delivery=1)
    send(rest, topic, b"bad")
    assert rest("PUT", lock(rest, f"{topic}/subscriptions/s").location).status == 200
    dead = f"{topic}/subscriptions/s/$DeadLetterQueue"
    got = lock(rest, dead)
    assert got.body == b"bad"
    assert rest("DELETE", got.location).status == 200
    assert is_empty(rest, dead)


def test_sessions_are_not_received_from(bus: Bus, rest: Rest) -> None:
    queue = bus.sessions()
    assert 400 <= rest("POST", f"/{queue}/messages", b"x").status < 500  # without one
    send(rest, queue, broker={"SessionId": "s"})
    for method in ("POST", "DELETE"):
        assert 400 <= rest(method, f"/{queue}/messages/head?timeout=0").status < 500
    assert bus.counts(queue)["active"] == 1


def test_what_the_sdk_sends_is_received_with_its_properties(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    names = [each for each in TYPED if each != "Bare"]
    typed: dict[str | bytes, Any] = {name: TYPED[name][1] for name in names}
    typed |= {name: each.decode() for name, each in typed.items() if isinstance(each, bytes)}
    typed["Long"] = {"TYPE": "LONG", "VALUE": typed["Long"]}  # the SDK makes an int of an int
    sent = ServiceBusMessage(
        "zwölf", application_properties=typed | {"When": WHEN},
        message_id="m", subject="läbel", correlation_id="c", content_type="text/plain", to="t",
        reply_to="r", reply_to_session_id="rs", session_id="s", partition_key="s",
        time_to_live=timedelta(seconds=90),
    )  # fmt: skip
    bus.sender(queue).send_messages([sent, ServiceBusMessage(b"\x00\xff")])
    got = remove(rest, queue)
    assert got.body == "zwölf".encode()
    assert got.header("Content-Type") == "text/plain"
    expected = {
        "MessageId": "m", "Label": "läbel", "CorrelationId": "c", "To": "t", "ReplyTo": "r",
        "ReplyToSessionId": "rs", "SessionId": "s", "PartitionKey": "s", "TimeToLive": 90,
    }  # fmt: skip
    assert {name: got.broker.get(name) for name in expected} == expected
    assert {name: got.header(name) for name in names} == {name: TYPED[name][0] for name in names}
    # The names are ours to write.
    assert {*names} <= {name for name, _ in got.headers}
    assert remove(rest, queue).body == b"\x00\xff"


def test_bodies_that_are_values_are_text_or_json(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(
        [
            AmqpAnnotatedMessage(value_body="text ü"),
            AmqpAnnotatedMessage(value_body={"n": 1, "list": ["a", None, True]}),
            AmqpAnnotatedMessage(value_body=12),
            AmqpAnnotatedMessage(data_body=[b"one ", b"two"]),
            AmqpAnnotatedMessage(value_body={b"\xff": b"\xfe", 2: [None, {b"k": 1}]}),
        ]
    )
    assert remove(rest, queue).body == "text ü".encode()
    assert json.loads(remove(rest, queue).body) == {"n": 1, "list": ["a", None, True]}
    assert remove(rest, queue).body == b"12"
    assert remove(rest, queue).body == b"one two"
    assert json.loads(remove(rest, queue).body) == {"\xff": "\xfe", "2": [None, {"k": 1}]}


def test_texts_that_do_not_fit_a_header_do_no_harm(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    hard = {"quoted": 'a "b" \\', "lines": "a\r\nEvil: 1", "wide": "äöü €"}
    bus.sender(queue).send_messages(
        ServiceBusMessage("x", application_properties=hard)  # type: ignore[arg-type]
    )
    got = remove(rest, queue)
    assert got.body == b"x"
    assert got.header("Evil") is None


def test_properties_cannot_pass_for_headers_of_the_answer(bus: Bus, rest: Rest) -> None:
    """The length of an answer is not for whoever sent the message to say."""
    queue = bus.queue()
    own = {"Content-Length": 2, "Transfer-Encoding": "chunked", "Location": 1, "Set-Cookie": 1,
           "Connection": "close", "BrokerProperties": 1, "Access-Control-Max-Age": 1, "": 1,
           "Mine": 1}  # fmt: skip
    messages = json.dumps([{"Body": "hello", "UserProperties": own}])
    send(rest, queue, messages, headers=BATCH)
    got = remove(rest, queue)
    assert got.body == b"hello"
    assert (got.header("Content-Length"), got.header("Mine")) == ("5", "1")
    assert got.broker["SequenceNumber"] == 1
    for name in ("Transfer-Encoding", "Location", "Set-Cookie", "Access-Control-Max-Age", ""):
        assert got.header(name) is None
    assert got.header("%43ontent-Length") == "2"


def test_one_entity_has_one_name_for_all(bus: Bus, rest: Rest) -> None:
    name = f"Deep/er/Queue{next(_numbers)}"
    made = rest(
        "PUT", f"/{name}?api-version=2021-05", entry("QueueDescription"),
        headers={"Content-Type": ATOM},
    )  # fmt: skip
    assert made.status == 201
    send(rest, name, b"1")
    send(rest, name.replace("/", "%2F"), b"2")
    send(rest, name.lower(), b"3")
    answer = rest("DELETE", f"/{name.upper()}/Messages/Head?timeout={WAIT}")
    assert (answer.status, answer.body) == (200, b"1")
    got = lock(rest, name)
    assert rest("DELETE", got.location).status == 200
    assert texts(received(bus, name)) == ["3"]


# Who may.


def statuses(rest: Rest, queue: str, text: str | None) -> tuple[int, int, int]:
    """Of sending, and of receiving in both ways."""
    head = f"/{queue}/messages/head?timeout=0"
    return (
        rest("POST", f"/{queue}/messages", b"x", token=text).status,
        rest("POST", head, token=text).status,
        rest("DELETE", head, token=text).status,
    )


def test_tokens_for_the_queue_or_what_is_above_it_are_good(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    scopes = (
        f"{rest.url}/", rest.url, f"{rest.url}/{queue}", f"{rest.url}/{queue}/messages",
        f"sb://localhost/{queue}", f"https://LOCALHOST/{queue.upper()}", "localhost",
        f"localhost:{bus.broker.port}", f"http://localhost/{queue}/",
    )  # fmt: skip
    for scope in scopes:
        send(rest, queue, token=token(scope))
    assert bus.counts(queue)["active"] == len(scopes)


def test_a_token_is_for_the_path_as_it_is_taken(bus: Bus, rest: Rest) -> None:
    """A lock was settled of the entity behind what looks like a host; names were decoded twice."""
    mine, other = bus.queue(), bus.queue()
    send(rest, other)
    path = urlsplit(lock(rest, other).location).path
    elsewhere = f"/{mine}%2Fx:%2F%2Fhost%2F{path.removeprefix('/')}"
    assert rest("DELETE", elsewhere, token=token(f"{rest.url}/{mine}")).status == 404
    twice = f"/%25{ord(other[0]):02x}{other[1:]}/messages"
    assert rest("POST", twice, b"x").status == 404
    assert rest("DELETE", path).status == 200


def test_a_token_may_be_written_in_other_ways(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    expires = int(time.time()) + 600
    for scope in (
        f"http%3a%2f%2flocalhost%2f{queue}",  # as .NET and JavaScript
        f"http%3A%2F%2Flocalhost%2F{queue}",
        f"http://localhost/{queue}",  # not escaped at all
    ):
        digest = hmac.new(KEY.encode(), f"{scope}\n{expires}".encode(), sha256).digest()
        signature = quote(b64encode(digest).decode(), safe="")
        name = "RootManageSharedAccessKey"
        text = f"SharedAccessSignature sig={signature}&se={expires}&skn={name}&sr={scope}"
        send(rest, queue, token=text)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: None,
        lambda _: "nonsense",
        lambda _: "SharedAccessSignature nonsense",
        lambda _: "Bearer eyJhbGciOiJub25lIn0.e30.",
        lambda url: token(url, key="WRONG_KEY"),
        lambda url: token(url, name="NobodyHere"),
        lambda url: token(url, seconds=-10),
        lambda url: token(url).replace("se=", "se=9"),
        lambda url: token(url).replace("sr=", "sr=x"),
        lambda url: token(f"{url}0"),
        lambda url: token(url[:-1]),
        lambda url: token(f"{url}/below"),
    ],
    ids=[
        "none", "no scheme", "no fields", "not ours", "wrong key", "unknown name", "expired",
        "later than signed", "other than signed", "longer name", "shorter name", "below it",
    ],
)  # fmt: skip
def test_tokens_that_cannot_be_are_refused(
    bus: Bus, rest: Rest, make: Callable[[str], str | None]
) -> None:
    queue = bus.queue()
    assert statuses(rest, queue, make(f"{rest.url}/{queue}")) == (401, 401, 401)
    assert bus.counts(queue)["active"] == 0
    answer = rest("POST", f"/{queue}/messages", b"x", token=make(f"{rest.url}/{queue}"))
    assert b"<Code>401</Code>" in answer.body


def test_who_may_only_send_or_listen_does_only_that(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    sends = token(rest.url, "rest-sends", bus.principal("rest-sends", "send"))
    listens = token(rest.url, "rest-listens", bus.principal("rest-listens", "listen"))
    assert statuses(rest, queue, sends) == (201, 401, 401)
    assert statuses(rest, queue, listens) == (401, 201, 204)
    send(rest, queue)
    head = f"/{queue}/messages/head?timeout=0"
    got = rest("POST", head, token=listens)
    assert got.status == 201
    assert rest("DELETE", got.location, token=sends).status == 401
    assert rest("DELETE", got.location, token=listens).status == 200


def test_rights_are_for_the_entities_that_they_name(bus: Bus, rest: Rest) -> None:
    mine, other = bus.queue(), bus.queue()
    key = bus.principal("rest-narrow", "send", "listen", entity=mine)
    text = token(rest.url, "rest-narrow", key)
    assert statuses(rest, mine, text) == (201, 201, 204)
    assert statuses(rest, other, text) == (401, 401, 401)


# How it is reached.


def test_it_is_the_same_with_tls(bus: Bus, secure: Rest) -> None:
    queue = bus.queue()
    send(secure, queue, b"x", headers={"n": "1"})
    got = lock(secure, queue)
    assert (got.body, got.header("n")) == (b"x", "1")
    assert got.location.startswith("https://")
    assert secure("POST", got.location).status == 200
    assert secure("DELETE", got.location).status == 200
    assert statuses(secure, queue, token(secure.url, key="WRONG_KEY")) == (401, 401, 401)


def test_many_requests_come_on_one_connection(bus: Bus, rest: Rest) -> None:
    queue = bus.queue()
    headers = {"Authorization": token(rest.url)}
    head = f"/{queue}/messages/head?timeout=0"
    with closing(http.client.HTTPConnection("localhost", bus.broker.port, timeout=30)) as made:

        def told(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
            made.request(method, path, body, headers)
            with made.getresponse() as answer:
                return answer.status, answer.read()

        for n in range(20):
            assert told("POST", f"/{queue}/messages", b"%d" % n) == (201, b"")
        assert [told("DELETE", head) for _ in range(20)] == [(200, b"%d" % n) for n in range(20)]
        assert told("DELETE", head) == (204, b"")


def test_entities_are_managed_without_tls_as_dotnet_does(bus: Bus, rest: Rest) -> None:
    """With `UseDevelopmentEmulator=true` it dials http and the port of the endpoint."""
    name = f"dotnet{next(_numbers)}"
    path, headers = f"/{name}?api-version=2021-05", {"Content-Type": ATOM}
    assert b"QueueDescription" not in rest("GET", path).body
    inside = "<LockDuration>PT30S</LockDuration><MaxDeliveryCount>7</MaxDeliveryCount>"
    made = rest("PUT", path, entry("QueueDescription", inside), headers=headers)
    assert made.status == 201
    assert b"<MaxDeliveryCount>7</MaxDeliveryCount>" in made.body
    assert f"<id>{rest.url}/{name}".encode() in made.body
    assert "application/atom+xml" in (made.header("Content-Type") or "")
    again = rest("PUT", path, entry("QueueDescription", inside), headers=headers)
    assert again.status == 409
    assert b"SubCode=40900" in again.body
    changed = entry("QueueDescription", inside.replace("7", "8"))
    updated = rest("PUT", path, changed, headers={**headers, "If-Match": "*"})
    assert updated.status == 200
    assert b"<MaxDeliveryCount>8</MaxDeliveryCount>" in rest("GET", path).body
    listed = rest("GET", "/$Resources/queues?api-version=2021-05&enrich=true&$skip=0&$top=100")
    assert listed.status == 200
    assert f'<title type="text">{name}</title>'.encode() in listed.body
    assert rest("DELETE", path).status == 200
    assert rest("DELETE", path).status == 404
    missing = rest("PUT", path, changed, headers={**headers, "If-Match": "*"})
    assert missing.status == 404


def test_an_update_of_another_version_is_refused(bus: Bus, rest: Rest) -> None:
    path, headers = f"/etag{next(_numbers)}?api-version=2021-05", {"Content-Type": ATOM}
    assert rest("PUT", path, entry("QueueDescription"), headers=headers).status == 201
    stale = {**headers, "If-Match": '"stale"'}
    assert rest("PUT", path, entry("QueueDescription"), headers=stale).status == 412


def test_the_emulator_s_health_is_told(rest: Rest) -> None:
    answer = rest("GET", "/health", token=None)
    assert answer.status == 200
    assert json.loads(answer.body)["status"].lower() == "healthy"


def test_a_namespace_is_made_by_who_has_a_right_in_it(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path), "--dev", "--auto-create", "--servicebus-namespace", "host")
    with running(*flags) as broker:
        rest = Rest(broker.port)
        grants = [{"namespace": "default", "entity": "*", "rights": ["manage", "send"]}]
        form = {"name": "bob", "grants": grants}
        key = broker.call("POST", "/api/v1/principals", form).json["key"]

        def ask(method: str, where: str, body: str, name: str = ROOT, key: str = KEY) -> int:
            headers = {"Host": "other.localhost"}
            signed = token("http://other.localhost/", name, key)
            return rest(method, where, body, token=signed, headers=headers).status

        assert ask("POST", "/q/messages", "x", "bob", key) == 401
        assert ask("PUT", "/q", entry("QueueDescription"), "bob", key) == 401
        assert "other" not in broker.call("GET", "/api/v1/namespaces").json["names"]
        assert ask("POST", "/q/messages", "x") == 201
        assert "other" in broker.call("GET", "/api/v1/namespaces").json["names"]
