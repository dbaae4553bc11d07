"""Messages: sent, received, peeked, settled, dead-lettered, and what is too much."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from tests.dialects.localzure.zure import Entity, Zure, bodies, fresh, moment, refused
from tests.server.running import Json, Running

FIELDS = {
    "MessageId", "SessionId", "CorrelationId", "ContentType", "Label", "To", "ReplyTo",
    "TimeToLive", "ScheduledEnqueueTimeUtc", "UserProperties", "Body", "EnqueuedTimeUtc",
    "SequenceNumber", "DeliveryCount", "LockToken", "LockedUntilUtc", "DeadLetterReason",
    "DeadLetterDescription", "IsLocked", "IsDeadLettered",
}  # fmt: skip
SNAKE = {
    "message_id": "m1", "session_id": "s", "correlation_id": "c", "content_type": "text/plain",
    "label": "l", "to": "t", "reply_to": "r", "time_to_live": 3600,
    "user_properties": {"colour": "red", "size_2": "5"},
}  # fmt: skip
CAMEL = {
    "messageId": "m1", "sessionId": "s", "correlationId": "c", "contentType": "text/plain",
    "label": "l", "to": "t", "replyTo": "r", "timeToLive": 3600,
    "userProperties": {"colour": "red", "size_2": "5"},
}  # fmt: skip
KB = 1024
SIZE_MAX = 256 * KB


# Sending.


@pytest.mark.parametrize("fields", [SNAKE, CAMEL], ids=["snake", "camel"])
def test_a_message_comes_back_as_it_was_sent(zure: Zure, kind: str, fields: Json) -> None:
    place = zure.place(kind)
    sent = place.send("größe", **fields)
    got = place.one()
    for message in (got,) if sent is None else (sent, got):
        assert set(message) == FIELDS
        assert message["Body"] == "größe"
        assert message["MessageId"] == "m1"
        assert (message["SessionId"], message["CorrelationId"]) == ("s", "c")
        assert (message["ContentType"], message["Label"]) == ("text/plain", "l")
        assert (message["To"], message["ReplyTo"], message["TimeToLive"]) == ("t", "r", 3600)
        assert message["UserProperties"] == {"colour": "red", "size_2": "5"}
        assert message["SequenceNumber"] == 1
        assert message["IsDeadLettered"] is False
        assert abs(moment(message["EnqueuedTimeUtc"]) - zure.now()) < timedelta(seconds=30)


def test_what_was_not_given_is_null(zure: Zure) -> None:
    sent = zure.queue().send()
    for name in (
        "SessionId", "CorrelationId", "ContentType", "Label", "To", "ReplyTo", "LockToken",
        "LockedUntilUtc", "ScheduledEnqueueTimeUtc", "DeadLetterReason", "DeadLetterDescription",
    ):  # fmt: skip
        assert sent[name] is None, name
    assert sent["UserProperties"] == {}
    assert (sent["DeliveryCount"], sent["IsLocked"]) == (0, False)


def test_ids_are_made_and_numbers_count_from_one(zure: Zure) -> None:
    queue = zure.queue()
    sent = [queue.send(body) for body in "abc"]
    assert [each["SequenceNumber"] for each in sent] == [1, 2, 3]
    assert {UUID(each["MessageId"]).version for each in sent} == {4}
    assert len({each["MessageId"] for each in sent}) == 3


def test_a_topic_answers_with_the_id_alone(zure: Zure) -> None:
    subscription = zure.subscription()
    reply = subscription.try_send("x", message_id="mine")
    assert (reply.status, reply.body) == (201, b"")
    assert json.loads(reply.headers["brokerproperties"])["MessageId"] == "mine"
    made = json.loads(subscription.try_send().headers["brokerproperties"])["MessageId"]
    assert [each["MessageId"] for each in subscription.receive(5)] == ["mine", made]


def test_every_subscription_gets_a_copy_of_its_own(zure: Zure) -> None:
    topic = zure.topic()
    topic.send("before anyone")
    first = zure.subscription(topic)
    topic.send("1")
    second = zure.subscription(topic)
    topic.send("2")
    mine, other = first.receive(5), second.receive(5)
    assert (bodies(mine), bodies(other)) == (["1", "2"], ["2"])
    assert [each["SequenceNumber"] for each in mine] == [1, 2]
    assert [each["SequenceNumber"] for each in other] == [1]
    assert first.complete(mine[1]).status == 200
    assert second.complete(other[0]).status == 200


def test_a_topic_can_be_sent_to_as_the_desktop_app_does(broker: Running) -> None:
    subscription = Zure(broker, "named").subscription()
    topic = subscription.inlet.rpartition("/")[2]
    sent = {"body": "x", "contentType": "application/json", "userProperties": {}}
    reply = broker.call("POST", f"/servicebus/localnamespace/{topic}/messages", sent)
    assert reply.status in (200, 201)
    assert subscription.take() == ["x"]


def test_a_batch_is_sent_as_a_whole(zure: Zure) -> None:
    queue = zure.queue()
    form = {"messages": [{"body": "a", "label": "l"}, {"body": "b", "messageId": "mine"}]}
    reply = queue.ask("POST", "/messages/batch", form)
    assert reply.status == 200
    assert bodies(reply.json) == ["a", "b"]
    assert [each["SequenceNumber"] for each in reply.json] == [1, 2]
    assert (reply.json[0]["Label"], reply.json[1]["MessageId"]) == ("l", "mine")
    assert set(reply.json[0]) == FIELDS
    form = {"messages": [{"body": "c"}, {"body": "d", "colour": "red"}]}
    assert queue.ask("POST", "/messages/batch", form).status == 422
    form = {"messages": [{"body": "e"}, {"body": "f" * (SIZE_MAX + 1)}]}
    assert queue.ask("POST", "/messages/batch", form).status == 413
    assert queue.take() == ["a", "b"]


# Receiving.


def test_a_received_message_is_locked(zure: Zure, kind: str) -> None:
    place = zure.place(kind, LockDuration="PT30S")
    place.send()
    got = place.one(receive_mode="PeekLock")
    assert UUID(got["LockToken"])
    assert (got["IsLocked"], got["DeliveryCount"]) == (True, 1)
    left = moment(got["LockedUntilUtc"]) - zure.now()
    assert timedelta(seconds=20) < left <= timedelta(seconds=30)
    assert place.receive() == []


def test_a_message_can_be_received_and_deleted(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send()
    got = place.one(receive_mode="ReceiveAndDelete")
    assert (got["LockToken"], got["LockedUntilUtc"], got["IsLocked"]) == (None, None, False)
    zure.advance(120)
    assert place.receive() == place.peek() == []


def test_several_are_received_in_their_order(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    for body in "abcde":
        place.send(body)
    assert bodies(place.receive(3)) == ["a", "b", "c"]
    camel = {"maxCount": 5, "receiveMode": "ReceiveAndDelete"}
    assert bodies(place.ask("POST", "/messages/receive", camel).json) == ["d", "e"]
    assert place.ask("POST", "/messages/receive", {}).json == []
    assert place.ask("POST", "/messages/receive").json == []


@pytest.mark.parametrize(
    "form",
    [{"max_count": 0}, {"max_count": "x"}, {"receive_mode": "Steal"}, {"colour": "red"}],
    ids=str,
)
def test_a_receive_that_makes_no_sense_is_refused(zure: Zure, kind: str, form: Json) -> None:
    place = zure.place(kind)
    place.send()
    assert place.ask("POST", "/messages/receive", form).status == 422
    assert place.one()["DeliveryCount"] == 1


def test_who_sends_is_told_how_long_a_message_lives_in_seconds(zure: Zure) -> None:
    queue = zure.queue()
    assert queue.send()["TimeToLive"] == 1_209_600
    assert queue.send(time_to_live=90)["TimeToLive"] == 90
    assert zure.queue(DefaultMessageTimeToLive="PT60S").send(time_to_live=90)["TimeToLive"] == 60
    assert [each["TimeToLive"] for each in queue.receive(2)] == [1_209_600, 90]


def test_the_head_of_a_queue_is_one_message_or_null(zure: Zure) -> None:
    place = zure.queue()
    empty = place.ask("POST", "/messages/head")
    assert (empty.status, empty.json) == (200, None)
    place.send("a")
    place.send("b")
    reply = place.ask("POST", "/messages/head")
    assert reply.status == 200
    got = reply.json
    assert (got["Body"], got["IsLocked"], got["DeliveryCount"]) == ("a", True, 1)
    told = json.loads(reply.headers["brokerproperties"])
    assert (told["MessageId"], told["LockToken"]) == (got["MessageId"], got["LockToken"])
    assert place.complete(got).status == 200
    got = place.ask("POST", "/messages/head", mode="ReceiveAndDelete").json
    assert (got["Body"], got["LockToken"]) == ("b", None)
    assert place.ask("POST", "/messages/head", mode="PeekLock").json is None
    assert place.ask("POST", "/messages/head", mode="Steal").status == 422


def test_the_head_of_a_subscription_may_be_several(zure: Zure) -> None:
    place = zure.subscription()
    for asked in ({"numofmessages": 1, "timeout": 0, "mode": "peeklock"}, {}):
        none = place.ask("POST", "/messages/head", **asked)
        assert (none.status, none.body) == (204, b"")
    for body in "zabc":
        place.send(body)
    [first] = place.ask("POST", "/messages/head").json
    assert (first["Body"], first["IsLocked"]) == ("z", True)
    assert place.complete(first).status == 200
    some = place.ask("POST", "/messages/head", numofmessages=2, timeout=5, mode="peeklock").json
    assert bodies(some) == ["a", "b"]
    assert place.complete(some[0]).status == 200
    rest = place.ask("POST", "/messages/head", numofmessages=9, mode="receiveanddelete").json
    assert [(each["Body"], each["LockToken"]) for each in rest] == [("c", None)]


def test_a_long_poll_gets_what_is_sent_meanwhile(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(place.ask, "POST", "/messages/head", None, timeout=30)
        place.send("here")
        found = waiting.result(20).json
        assert bodies(found if kind == "subscription" else [found]) == ["here"]


def test_azures_own_verbs_are_understood(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    assert place.ask("DELETE", "/messages/head", timeout=0).status == 204
    place.send("first", message_id="m1")
    place.send("second")
    reply = place.ask("DELETE", "/messages/head")
    assert reply.status == 200
    assert b"first" in reply.body
    assert json.loads(reply.headers["brokerproperties"])["MessageId"] == "m1"
    got = place.one()
    assert place.unlock(got).status == 200
    again = place.one()
    assert (again["Body"], again["DeliveryCount"]) == ("second", 2)
    assert place.complete(again).status == 200
    assert place.peek() == []


def test_a_subscription_is_read_as_the_desktop_app_does(broker: Running) -> None:
    zure = Zure(broker, "named")
    topic = zure.topic()
    mine = zure.subscription(topic)
    mine.send("dead")
    mine.send("alive")
    mine.dead_letter(mine.one(), reason="r")
    for path in (f"/servicebus/localnamespace/{topic.name}", topic.path):
        seen = Entity(broker, f"{path}/Subscriptions/{mine.name}")
        assert bodies(seen.peek()) == ["alive"]
        assert bodies(seen.dead.peek()) == ["dead"]
        [got] = seen.ask("POST", "/messages/head").json
        assert got["Body"] == "alive"
        assert mine.abandon(got).status == 200


# Peeking.


def test_a_peek_changes_nothing(zure: Zure, kind: str) -> None:
    place = zure.place(kind, MaxDeliveryCount=2)
    place.send("a")
    place.send("b")
    for _ in range(3):
        seen = place.peek()
        assert bodies(seen) == ["a", "b"]
        assert [(each["DeliveryCount"], each["LockToken"]) for each in seen] == [(0, None)] * 2
    assert bodies(place.peek(1)) == ["a"]
    assert place.one()["DeliveryCount"] == 1
    assert place.dead.peek() == []


@pytest.mark.parametrize("count", [0, 101, "x"])
def test_a_peek_is_of_one_to_a_hundred(zure: Zure, kind: str, count: object) -> None:
    reply = zure.place(kind).ask("POST", "/messages/head", maxMessages=count)
    assert reply.status == 422


# Settling.


def test_a_completed_message_is_gone(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send(message_id="with/slash and space?")
    got = place.one()
    assert place.complete(got).status == 200
    lost = place.complete(got)
    assert refused(lost) == (410, "MessageLockLost")
    assert got["LockToken"] in lost.json["error"]["message"]
    assert place.count() == 0


def test_an_abandoned_message_keeps_its_place(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    for body in "abc":
        place.send(body)
    first, second = place.receive(2)
    assert place.abandon(second).status == 200
    assert place.abandon(first).status == 200
    again = place.receive(5)
    assert [(each["Body"], each["DeliveryCount"]) for each in again] == [
        ("a", 2), ("b", 2), ("c", 1),
    ]  # fmt: skip
    assert refused(place.complete(first)) == (410, "MessageLockLost")


@pytest.mark.parametrize("key", ["lock_token", "lockToken"])
def test_a_lock_is_settled_by_its_token_alone(zure: Zure, kind: str, key: str) -> None:
    place = zure.place(kind)
    place.send()
    lock = place.one()["LockToken"]
    assert place.ask("POST", "/messages/abandon", {key: lock}).status == 200
    got = place.one()
    assert got["DeliveryCount"] == 2
    assert refused(place.ask("POST", "/messages/complete", {key: lock}))[0] == 410
    assert place.ask("POST", "/messages/complete", {key: got["LockToken"]}).status == 200
    again = place.ask("POST", "/messages/complete", {key: got["LockToken"]})
    assert refused(again) == (410, "MessageLockLost")
    assert place.ask("POST", "/messages/complete", {}).status == 422
    assert place.count() == 0


@pytest.mark.parametrize("how", ["complete", "abandon", "dead_letter", "defer", "renew", "unlock"])
def test_a_wrong_lock_settles_nothing(zure: Zure, kind: str, how: str) -> None:
    place = zure.place(kind)
    place.send("a")
    place.send("b")
    first, second = place.receive(2)
    settle = getattr(place, how)
    for token in ("fake-lock-token", "00000000-0000-4000-8000-000000000000"):
        lost = settle({**first, "LockToken": token})
        assert refused(lost) == (410, "MessageLockLost")
        assert lost.json["error"]["details"]["message_id"] == first["MessageId"]
    other = settle({**first, "LockToken": second["LockToken"]})
    assert refused(other) == (404, "MessageNotFound")
    assert settle(first).status == settle(second).status == 200


def test_a_lock_that_expires_gives_the_message_back(zure: Zure, kind: str) -> None:
    place = zure.place(kind, LockDuration="PT5S")
    place.send("a")
    place.send("b")
    got = place.one()
    zure.advance(6)
    for settle in (place.complete, place.abandon, place.dead_letter, place.renew):
        assert refused(settle(got)) == (410, "MessageLockLost")
    again = place.receive(2)
    assert [(each["Body"], each["DeliveryCount"]) for each in again] == [("a", 2), ("b", 1)]
    assert again[0]["LockToken"] != got["LockToken"]


def test_a_lock_can_be_renewed(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send()
    got = place.one()
    zure.advance(40)
    reply = place.renew(got)
    assert reply.status == 200
    assert moment(reply.json["LockedUntilUtc"]) > moment(got["LockedUntilUtc"])
    zure.advance(40)
    assert place.complete(got).status == 200


# Dead letters.


@pytest.mark.parametrize("dead", ["/$DeadLetterQueue", "/$deadletterqueue"])
def test_dead_letters_are_read_and_completed(zure: Zure, kind: str, dead: str) -> None:
    place = zure.place(kind)
    for body in "abcd":
        place.send(body, label=body)
    for message in place.receive(4):
        query = {"reason": "bad", "description": "no colour & no size"}
        assert place.dead_letter(message, **query).status == 200
    assert place.receive() == []
    letters = Entity(zure.broker, place.path + dead)
    assert bodies(letters.peek()) == ["a", "b", "c", "d"]
    head = letters.ask("POST", "/messages/receive").json[0]
    assert (head["Body"], head["Label"], head["IsDeadLettered"]) == ("a", "a", True)
    assert head["DeadLetterReason"] == "bad"
    assert head["DeadLetterDescription"] == "no colour & no size"
    assert letters.complete(head).status == 200
    got = letters.one()
    assert letters.abandon(got).status == 200
    got = letters.one()
    done = letters.ask("POST", "/messages/complete", {"lock_token": got["LockToken"]})
    assert done.status == 200
    assert letters.take() == ["c", "d"]
    assert letters.receive() == letters.peek() == []


def test_a_dead_letter_needs_no_reason(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send()
    assert place.dead_letter(place.one()).status == 200
    assert place.dead.one()["DeadLetterDescription"] is None


def test_what_is_delivered_too_often_is_dead_lettered(zure: Zure, kind: str) -> None:
    place = zure.place(kind, MaxDeliveryCount=2, LockDuration="PT5S")
    place.send("abandoned")
    place.abandon(place.one())
    place.abandon(place.one())
    place.send("forgotten")
    for _ in range(2):
        assert place.one()["Body"] == "forgotten"
        zure.advance(6)
    assert place.receive() == []
    letters = place.dead.receive(5)
    assert bodies(letters) == ["abandoned", "forgotten"]
    assert {each["DeadLetterReason"] for each in letters} == {"MaxDeliveryCountExceeded"}


# Limits.


def test_a_message_has_at_most_256_kb(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send("x" * (255 * KB))
    reply = place.try_send("x" * (SIZE_MAX + 1))
    assert refused(reply) == (413, "MessageSizeExceeded")
    details = reply.json["error"]["details"]
    assert details["max_size"] == SIZE_MAX
    assert details["actual_size"] > SIZE_MAX
    parts = {f"p{number}": "y" * (16 * KB) for number in range(16)}
    assert place.try_send("x" * KB, user_properties=parts).status == 413
    assert len(place.peek()) == 1


@pytest.mark.parametrize(
    "properties",
    [
        {f"p{number}": "x" for number in range(65)}, {"k" * 129: "x"}, {"1st": "x"}, {"a-b": "x"},
        {"sys.label": "x"}, {"": "x"}, {"big": "x" * (32 * KB + 1)},
    ],
    ids=["65", "long name", "digit", "dash", "sys", "no name", "long value"],
)  # fmt: skip
def test_user_properties_have_limits(zure: Zure, kind: str, properties: Json) -> None:
    place = zure.place(kind)
    reply = place.try_send(user_properties=properties)
    assert refused(reply) == (400, "InvalidOperation")
    assert reply.json["error"]["details"]["reason"]
    assert place.peek() == []


def test_user_properties_may_reach_their_limits(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    properties = {f"p{number}": "x" for number in range(62)}
    properties |= {"_" + "k" * 127: "x", "big": "x" * (32 * KB)}
    place.send(user_properties=properties)
    assert place.one()["UserProperties"] == properties


@pytest.mark.parametrize(
    "form",
    [
        {"body": "x", "colour": "red"}, {}, {"label": "l"}, {"body": 5}, {"body": None}, [], "x",
        {"body": "x", "time_to_live": "long"}, {"body": "x", "user_properties": []},
        {"body": "x", "scheduled_enqueue_time_utc": "soon"},
    ],
    ids=str,
)  # fmt: skip
def test_a_message_that_makes_no_sense_is_refused(zure: Zure, kind: str, form: Json) -> None:
    place = zure.place(kind)
    reply = zure.broker.call("POST", f"{place.inlet}/messages", form)
    assert reply.status == 422
    if isinstance(form, dict) and "colour" in form:
        assert b"colour" in reply.body
    assert place.peek() == []


def test_what_is_not_json_is_refused(zure: Zure) -> None:
    queue = zure.queue()
    headers = {"content-type": "application/json"}
    for raw in (b"", b"{", b"\xff"):
        reply = zure.broker.call("POST", f"{queue.path}/messages", raw=raw, headers=headers)
        assert reply.status == 422


def test_a_full_queue_is_told_of(zure: Zure) -> None:
    queue = zure.queue()
    limited = zure.broker.queue("PATCH", queue.name, {"max_messages": 1})
    assert limited.status == 200
    queue.send("a")
    reply = queue.try_send("b")
    assert refused(reply) == (507, "QuotaExceeded")
    details = reply.json["error"]["details"]
    assert (details["entity_name"], details["max_value"]) == (queue.name, 1)
    assert details["quota_type"]
    assert queue.take() == ["a"]


def test_what_is_not_there_is_not_found(zure: Zure) -> None:
    queue = zure.queue_at(fresh("queue"))
    lost = {"MessageId": "m", "LockToken": "00000000-0000-4000-8000-000000000000"}
    for reply in (
        queue.try_send(),
        queue.ask("POST", "/messages/receive", {}),
        queue.ask("POST", "/messages/head"),
        queue.ask("POST", "/messages/head", maxMessages=1),
        queue.dead.ask("POST", "/messages/receive", {}),
        queue.complete(lost),
        queue.abandon(lost),
        queue.renew(lost),
    ):
        assert refused(reply) == (404, "EntityNotFound")
        details = reply.json["error"]["details"]
        assert (details["entity_type"], details["entity_name"]) == ("queue", queue.name)
