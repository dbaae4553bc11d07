"""How messages go to subscribers: the four modes, acknowledgement, retries, dead letters."""

import itertools
from typing import Any

import pytest

from tests.dialects.vibemq.broker import Vibe
from tests.dialects.vibemq.client import (
    ACK,
    DELETE,
    DELIVER,
    ERROR,
    GENERATIONS,
    INFO,
    PING,
    PUBLISH_ACK,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Client,
    Said,
)

ROUND_ROBIN, FAN_OUT, FAN_OUT_UNACKNOWLEDGED, PRIORITY = range(4)
DROP_OLDEST, DROP_NEWEST, BLOCK, REDIRECT = range(4)


def drain(client: Client) -> list[Any]:
    """What is there, acknowledged."""
    found = []
    while not client.has_nothing():
        found.append(client.take())
    return found


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_message_comes_as_it_was_published(vibe: Vibe, generation: str) -> None:
    payload = {"title": "Grüße", "n": [1, 2.5, None, True], "nested": {"a": {}}}
    with vibe.client(generation) as client:
        queue = f"as-published.{generation}"
        client.subscribe(queue)
        said = client.publish(queue, payload, "msg_123", correlationId="c1", other="x y")
        assert (said.type, said.queue) == (PUBLISH_ACK, queue)
        got = client.delivery()
        assert (got.id, got.queue, got.json) == ("msg_123", queue, payload)
        assert got.headers == {"correlationId": "c1", "other": "x y"}


def test_generations_understand_each_other(vibe: Vibe) -> None:
    for sender, receiver in itertools.permutations(GENERATIONS, 2):
        with vibe.client(sender) as one, vibe.client(receiver) as other:
            other.subscribe("mixed")
            one.publish("mixed", {"from": sender}, priority="low")
            got = other.delivery()
            assert (got.json, got.headers) == ({"from": sender}, {"priority": "low"})
            other.ack(got)


def test_a_message_without_a_payload_has_none(vibe: Vibe) -> None:
    with vibe.client() as client:
        client.subscribe("bare")
        client.send(Said(20, "n1", "bare"))
        got = client.delivery()
        assert (got.id, got.payload) == ("n1", b"")


def test_round_robin_goes_around(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one, vibe.client() as other:
        queue = vibe.queue(publisher)
        for each in (one, other):
            each.subscribe(queue)
        for number in range(6):
            publisher.publish(queue, number)
        got = [sorted(client.take() for _ in range(3)) for client in (one, other)]
        assert sorted(got) == [[0, 2, 4], [1, 3, 5]]


def test_a_late_subscriber_gets_the_backlog_at_once_and_in_order(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client)
        for number in range(250):
            client.publish(queue, number)
        client.subscribe(queue)
        assert [client.take() for _ in range(250)] == list(range(250))


def test_fan_out_is_acknowledged_by_each(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one, vibe.client() as other:
        queue = vibe.queue(publisher, mode=FAN_OUT)
        for each in (one, other):
            each.subscribe(queue)
        publisher.publish(queue, "news", "n1")
        assert [each.delivery().id for each in (one, other)] == ["n1", "n1"]
        one.send(Said(ACK, "n1"))
        assert one.ask(PING).id
        assert vibe.count(publisher, queue) == 1  # the other has not
        vibe.advance(31)
        vibe.advance(3)
        assert other.delivery().id == "n1"
        assert one.has_nothing()
        other.send(Said(ACK, "n1"))
        assert other.ask(PING).id
        assert vibe.count(publisher, queue) == 0


def test_fan_out_without_acknowledgement_is_gone_with_the_delivery(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one, vibe.client() as other:
        queue = vibe.queue(publisher, mode=FAN_OUT_UNACKNOWLEDGED)
        for each in (one, other):
            each.subscribe(queue)
        for number in range(300):  # more than a window
            publisher.publish(queue, number)
        for each in (one, other):
            assert [each.delivery().json for _ in range(300)] == list(range(300))
        assert vibe.count(publisher, queue) == 0


def test_priority_comes_first_and_is_stable_inside_a_level(vibe: Vibe) -> None:
    words = ["normal", "LOW", "high", "Critical", "normal", "low", "high", "critical"]
    with vibe.client() as client:
        queue = vibe.queue(client, mode=PRIORITY)
        for number, word in enumerate(words):
            client.publish(queue, [word.lower(), number], priority=word)
        client.publish(queue, ["normal", 8])
        client.subscribe(queue)
        assert [client.take() for _ in range(9)] == [
            ["critical", 3], ["critical", 7], ["high", 2], ["high", 6],
            ["normal", 0], ["normal", 4], ["normal", 8], ["low", 1], ["low", 5],
        ]  # fmt: skip


def test_what_is_more_urgent_overtakes_what_is_waiting(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client, mode=PRIORITY)
        for number in range(3):
            client.publish(queue, number)
        client.subscribe(queue)
        first = client.delivery()
        client.publish(queue, "urgent", priority="critical")
        client.ack(first)
        assert [client.take() for _ in range(3)] == ["urgent", 1, 2]


def test_what_is_not_acknowledged_comes_again_and_then_is_a_dead_letter(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one:
        queue = vibe.queue(publisher)
        one.subscribe(queue)
        publisher.publish(queue, "poison", "p1")
        for wait in (0, 4):
            assert one.delivery().id == "p1"
            vibe.advance(29 + wait)  # the lock ends after 30
            assert one.has_nothing()
            vibe.advance(1)
        assert one.delivery().id == "p1"
        vibe.advance(30)
        assert one.has_nothing()
        assert vibe.count(publisher, queue) == 0
        with vibe.client() as mourner:
            assert vibe.count(mourner, f"{queue}-dlq") == 1
            mourner.subscribe(f"{queue}-dlq")
            got = mourner.delivery()
            assert (got.id, got.json, got.queue) == ("p1", "poison", f"{queue}-dlq")
            assert got.headers["deadLetterReason"] == "MaxRetriesExceeded"
            assert got.headers["deadLetterSource"] == queue
            mourner.ack(got)
            assert mourner.ask(PING).id
            assert vibe.count(mourner, f"{queue}-dlq") == 0


def test_a_retry_goes_to_any_subscriber(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one:
        queue = vibe.queue(publisher)
        one.subscribe(queue)
        publisher.publish(queue, "again", "a1")
        assert one.delivery().id == "a1"
        with vibe.client() as other:
            other.subscribe(queue)
            one.ask(UNSUBSCRIBE, queue)
            vibe.advance(33)
            assert other.take() == "again"


def test_dead_letters_go_where_it_was_declared(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(
            client, enableDeadLetterQueue=True, deadLetterQueueName="the.dead", maxRetryAttempts=1,
            messageTtl="00:00:10",
        )  # fmt: skip
        client.publish(queue, "late")
        vibe.advance(11)
        client.subscribe("the.dead")
        got = client.delivery()
        assert (got.json, got.headers["deadLetterReason"]) == ("late", "MessageExpired")
        client.ack(got)
        client.publish(queue, "unheard")
        client.subscribe(queue)
        client.until(lambda said: said.type == DELIVER and said.queue == queue)
        vibe.advance(30)
        client.take()
        info = client.ask(INFO, queue).json
        assert (info["deadLetterQueueName"], info["messageTtl"]) == ("the.dead", "00:00:10")


def test_without_dead_letters_what_expires_is_dropped(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client, messageTtl="00:00:01.5000000")
        client.publish(queue, "short")
        vibe.advance(2)
        assert vibe.count(client, queue) == vibe.count(client, f"{queue}-dlq") == 0


def test_what_a_client_has_goes_back_in_its_place_when_it_leaves(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as one:
        queue = vibe.queue(publisher)
        for number in range(5):
            publisher.publish(queue, number)
        one.subscribe(queue)
        got = [one.delivery() for _ in range(5)]
        one.ack(got[1])
        assert one.ask(PING).id
        one.close()
        with vibe.client() as other:
            other.subscribe(queue)
            assert [other.take() for _ in range(4)] == [0, 2, 3, 4]


def test_leaving_often_is_no_reason_to_be_dead_lettered(vibe: Vibe) -> None:
    with vibe.client() as publisher:
        queue = vibe.queue(publisher, maxRetryAttempts=1)
        publisher.publish(queue, "still here")
        for _ in range(4):
            with vibe.client() as client:
                client.subscribe(queue)
                assert client.delivery().json == "still here"
        with vibe.client() as client:
            client.subscribe(queue)
            assert client.take() == "still here"


def test_who_unsubscribes_may_still_acknowledge_what_he_has(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client)
        client.publish(queue, "held")
        client.subscribe(queue)
        got = client.delivery()
        assert client.ask(UNSUBSCRIBE, queue).type == UNSUBSCRIBE_ACK
        client.publish(queue, "later")
        client.ack(got)
        assert client.has_nothing()
        assert vibe.count(client, queue) == 1
        client.subscribe(queue)
        assert client.take() == "later"


def test_messages_of_the_same_id_are_acknowledged_one_by_one(vibe: Vibe) -> None:
    with vibe.client() as client:
        one, other = vibe.queue(client), vibe.queue(client)
        for queue in (one, other):
            client.subscribe(queue)
            for payload in ("a", "b"):
                client.publish(queue, payload, "same")
        got = [client.delivery() for _ in range(4)]
        assert {each.id for each in got} == {"same"}
        client.send(Said(ACK, "same", other))
        assert client.ask(PING).id
        assert (vibe.count(client, one), vibe.count(client, other)) == (2, 1)
        for left in (2, 1, 0):
            client.send(Said(ACK, "", "", b"", {"messageId": "same"}))
            assert client.ask(PING).id
            assert vibe.count(client, one) + vibe.count(client, other) == left
        client.send(Said(ACK, "same"))  # one too many
        client.send(Said(ACK, "never"))
        assert client.ask(PING).id


@pytest.mark.parametrize("mode", [ROUND_ROBIN, PRIORITY])
def test_the_oldest_gives_way(vibe: Vibe, mode: int) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client, mode=mode, maxQueueSize=3, overflowStrategy=DROP_OLDEST)
        for number in range(5):
            assert client.publish(queue, number).type == PUBLISH_ACK
        client.subscribe(queue)
        assert drain(client) == [2, 3, 4]


def test_the_newest_is_dropped_and_its_publisher_told(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
        said = [client.publish(queue, number) for number in range(3)]
        assert [each.type for each in said] == [PUBLISH_ACK, PUBLISH_ACK, ERROR]
        assert said[2].code == "QUEUE_FULL"
        client.subscribe(queue)
        assert drain(client) == [0, 1]


def test_a_publisher_is_blocked_until_there_is_room(vibe: Vibe) -> None:
    with vibe.client() as publisher, vibe.client() as client:
        queue = vibe.queue(publisher, maxQueueSize=1, overflowStrategy=BLOCK)
        publisher.publish(queue, 0)
        publisher.send(Said(20, "waits", queue, b"1"))
        assert publisher.ask(PING).id
        assert not publisher.heard
        client.subscribe(queue)
        assert [client.take() for _ in range(2)] == [0, 1]
        assert publisher.next() == Said(PUBLISH_ACK, "waits", queue)


def test_a_publisher_that_is_blocked_for_too_long_is_told(vibe: Vibe) -> None:
    with vibe.client() as publisher:
        queue = vibe.queue(publisher, maxQueueSize=1, overflowStrategy=BLOCK)
        publisher.publish(queue, 0)
        publisher.send(Said(20, "waits", queue, b"1"))
        assert publisher.ask(PING).id
        vibe.advance(10)
        said = publisher.next()
        assert (said.type, said.id, said.code) == (ERROR, "waits", "QUEUE_FULL")
        assert vibe.count(publisher, queue) == 1


def test_what_is_redirected_is_a_dead_letter_and_its_publisher_told(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client, maxQueueSize=1, overflowStrategy=REDIRECT)
        assert not client.publish(queue, 0).headers
        said = client.publish(queue, 1)
        assert said.type == PUBLISH_ACK
        assert said.headers == {"overflow": "redirected-to-dead-letter-queue"}
        client.subscribe(f"{queue}-dlq")
        got = client.delivery()
        assert (got.json, got.headers["deadLetterReason"]) == (1, "QueueFull")


def test_a_subscriber_outlives_its_queue(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client)
        client.subscribe(queue)
        assert client.ask(DELETE, queue).type == DELETE
        client.publish(queue, "anew")
        assert client.take() == "anew"


def test_other_dialects_see_messages_and_send_some(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client)
        client.publish(queue, {"a": 1}, "v1", correlationId="c", colour="red", priority="high")
        [seen] = vibe.broker.receive(queue)
        assert (seen["id"], seen["body"], seen["content_type"]) == (
            "v1", '{"a": 1}', "application/json",
        )  # fmt: skip
        assert (seen["correlation_id"], seen["priority"]) == ("c", 6)
        assert seen["properties"]["colour"] == "red"
        vibe.broker.complete(queue, seen)
        forms: list[dict[str, Any]] = [
            {"body": '{"b": 2}', "content_type": "application/json", "id": "h1"},
            {"body": "plain words", "content_type": "text/plain"},
            {"body": "123", "content_type": "text/plain"},
            {"body": "[1]"},
            {"body_base64": "/w==", "properties": {"n": 5, "t": True}, "subject": "s"},
            {"body": ""},
        ]
        reply = vibe.broker.queue("POST", f"{queue}/messages", {"messages": forms})
        assert reply.status == 201
        client.subscribe(queue)
        got = [client.delivery() for _ in forms]
        assert got[0].id == "h1"
        assert [each.json for each in got[:5]] == [{"b": 2}, "plain words", "123", [1], "/w=="]
        assert got[5].payload == b""
        assert got[4].headers == {
            "n": "5", "t": "true", "subject": "s", "contentEncoding": "base64",
        }  # fmt: skip
        assert len({each.id for each in got}) == len(got)
        for each in got:
            client.ack(each)
        assert client.ask(PING).id
        assert vibe.count(client, queue) == 0


def test_what_does_not_fit_into_a_frame_is_a_dead_letter(vibe: Vibe) -> None:
    with vibe.client() as client:
        queue = vibe.queue(client)
        vibe.broker.send(queue, "x" * (2 << 20))
        vibe.broker.send(queue, "small")
        client.subscribe(queue)
        assert client.take() == "small"
        assert vibe.count(client, f"{queue}-dlq") == 1
