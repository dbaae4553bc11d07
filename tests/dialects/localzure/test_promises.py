"""What LocalZure promised: scheduling, expiry, duplicates, deferral, sessions, transactions."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.dialects.localzure.zure import Entity, Zure, bodies, moment, refused
from tests.server.running import Json

NOBODY = "00000000-0000-4000-8000-000000000000"
STATE_MAX = 256 * 1024


# Scheduling.


@pytest.mark.parametrize("key", ["scheduled_enqueue_time_utc", "scheduledEnqueueTimeUtc"])
def test_a_scheduled_message_comes_when_it_is_due(zure: Zure, kind: str, key: str) -> None:
    place = zure.place(kind)
    due = (zure.now() + timedelta(hours=1)).isoformat()
    place.send("later", **{key: due})
    place.send("now")
    assert place.take() == ["now"]
    zure.advance(3_590)
    assert place.receive() == []
    zure.advance(20)
    got = place.one()
    assert (got["Body"], got["DeliveryCount"]) == ("later", 1)


def test_a_scheduled_message_says_when_and_is_counted(zure: Zure) -> None:
    queue = zure.queue()
    due = zure.now() + timedelta(hours=1)
    sent = queue.send(scheduled_enqueue_time_utc=due.isoformat())
    found = moment(sent["ScheduledEnqueueTimeUtc"])
    assert abs(found - due) < timedelta(milliseconds=2)
    assert (queue.count("ScheduledMessageCount"), queue.count("ActiveMessageCount")) == (1, 0)
    assert len(queue.peek()) == 1
    zure.advance(3_601)
    assert (queue.count("ScheduledMessageCount"), queue.count("ActiveMessageCount")) == (0, 1)


def test_a_message_scheduled_for_the_past_comes_at_once(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send("past", scheduled_enqueue_time_utc="2001-01-01T00:00:00Z")
    assert place.take() == ["past"]


def test_a_scheduled_message_can_be_cancelled(zure: Zure) -> None:
    queue = zure.queue()
    due = (zure.now() + timedelta(hours=1)).isoformat()
    sequence = queue.send(scheduled_enqueue_time_utc=due)["SequenceNumber"]
    active = queue.send("now")["SequenceNumber"]
    cancel = f"/messages/scheduled/{sequence}"
    assert queue.ask("DELETE", cancel).status == 200
    assert refused(queue.ask("DELETE", cancel)) == (404, "MessageNotFound")
    missing = queue.ask("DELETE", f"/messages/scheduled/{active}")
    assert refused(missing) == (404, "MessageNotFound")
    zure.advance(3_601)
    assert queue.take() == ["now"]


# Expiry.


@pytest.mark.parametrize("key", ["time_to_live", "timeToLive"])
def test_an_expired_message_is_gone(zure: Zure, kind: str, key: str) -> None:
    place = zure.place(kind)
    place.send("short", **{key: 5})
    place.send("long")
    zure.advance(6)
    assert place.take() == ["long"]
    assert place.dead.peek() == []


def test_an_expired_message_is_dead_lettered_where_the_queue_has_it_so(zure: Zure) -> None:
    queue = zure.queue(EnableDeadLetteringOnMessageExpiration=True)
    subscription = zure.subscription(DeadLetteringOnMessageExpiration=True)
    for place in (queue, subscription):
        place.send("short", time_to_live=5)
    zure.advance(6)
    for place in (queue, subscription):
        assert place.receive() == []
        letter = place.dead.one()
        assert letter["Body"] == "short"
        assert letter["DeadLetterReason"].startswith("TTLExpired")


def test_a_message_lives_no_longer_than_its_queue_lets_it(zure: Zure, kind: str) -> None:
    place = zure.place(kind, DefaultMessageTimeToLive="PT10S")
    place.send("as the queue has it")
    place.send("longer", time_to_live=3_600)
    zure.advance(11)
    assert place.receive(5) == []


def test_a_locked_message_does_not_expire(zure: Zure, kind: str) -> None:
    place = zure.place(kind)
    place.send(time_to_live=5)
    got = place.one()
    zure.advance(30)
    assert place.complete(got).status == 200


# Duplicates.


def test_a_duplicate_is_accepted_and_dropped(zure: Zure) -> None:
    queue = zure.queue(RequiresDuplicateDetection=True)
    first = queue.send("first", message_id="m")
    again = queue.try_send("again", messageId="m")
    assert again.status == 200
    assert again.json["SequenceNumber"] == first["SequenceNumber"]
    assert queue.send("other", message_id="n")["SequenceNumber"] != first["SequenceNumber"]
    assert queue.take() == ["first", "other"]
    assert queue.send("late", message_id="m")["SequenceNumber"] == first["SequenceNumber"]
    assert queue.take() == []
    zure.advance(601)
    queue.send("much later", message_id="m")
    assert queue.take() == ["much later"]


def test_a_topic_drops_duplicates_too(zure: Zure) -> None:
    topic = zure.topic(RequiresDuplicateDetection=True)
    subscription = zure.subscription(topic)
    for body in ("first", "again"):
        assert topic.try_send(body, message_id="m").status == 201
    assert subscription.take() == ["first"]


def test_duplicates_are_kept_where_nobody_looks_for_them(zure: Zure) -> None:
    queue = zure.queue()
    queue.send("first", message_id="m")
    queue.send("again", message_id="m")
    assert queue.take() == ["first", "again"]


# Deferral.


@pytest.mark.parametrize("key", ["sequence_numbers", "sequenceNumbers"])
def test_a_deferred_message_is_received_by_its_number(zure: Zure, kind: str, key: str) -> None:
    place = zure.place(kind)
    place.send("a")
    place.send("b")
    got = place.one()
    assert place.defer(got).status == 200
    assert bodies(place.receive(5)) == ["b"]
    assert "a" in bodies(place.peek())
    form = {key: [got["SequenceNumber"]]}
    reply = place.ask("POST", "/messages/deferred", form)
    assert reply.status == 200
    [again] = reply.json
    assert (again["Body"], again["IsLocked"]) == ("a", True)
    assert place.complete(again).status == 200
    assert refused(place.ask("POST", "/messages/deferred", form)) == (404, "MessageNotFound")


# Sessions.


def sessions(zure: Zure, kind: str, **properties: Json) -> Entity:
    return zure.place(kind, RequiresSession=True, **properties)


def test_a_session_is_accepted_and_read_in_its_order(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind, LockDuration="PT30S")
    for number in range(3):
        for session in ("ann", "bob"):
            place.send(f"{session} {number}", session_id=session)
    reply = place.accept("bob")
    assert reply.status == 200
    assert reply.json["SessionId"] == "bob"
    assert reply.json["SessionLockToken"]
    left = moment(reply.json["LockedUntilUtc"]) - zure.now()
    assert timedelta(seconds=20) < left <= timedelta(seconds=30)
    got = place.receive(5, session_id="bob")
    assert bodies(got) == ["bob 0", "bob 1", "bob 2"]
    assert {each["SessionId"] for each in got} == {"bob"}
    assert [a["SequenceNumber"] < b["SequenceNumber"] for a, b in pairwise(got)] == [True, True]
    for message in got:
        assert place.complete(message).status == 200
    assert place.receive(5, session_id="bob") == []
    camel = place.ask("POST", "/sessions/accept", {"sessionId": "ann"})
    assert camel.status == 200
    form = {"maxCount": 1, "sessionId": "ann"}
    assert bodies(place.ask("POST", "/messages/receive", form).json) == ["ann 0"]


def test_a_session_has_one_holder(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.send(session_id="ann")
    assert place.accept("ann").status == 200
    busy = place.accept("ann")
    assert refused(busy) == (409, "SessionAlreadyLocked")
    assert busy.json["error"]["details"]["session_id"] == "ann"
    assert place.ask("DELETE", "/sessions/ann").status == 200
    assert place.accept("ann").status == 200


def test_the_next_session_is_one_that_is_free_and_has_messages(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    assert refused(place.accept()) == (404, "SessionNotFound")
    for session in ("ann", "bob"):
        place.send(session_id=session)
    found = {place.accept().json["SessionId"] for _ in range(2)}
    assert found == {"ann", "bob"}
    assert refused(place.accept()) == (404, "SessionNotFound")
    assert refused(place.ask("POST", "/sessions/accept", {})) == (404, "SessionNotFound")


def test_an_accept_waits_for_a_session(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(place.accept, None, 30)
        place.send(session_id="late")
        assert waiting.result(20).json["SessionId"] == "late"


def test_a_session_without_messages_can_be_accepted_by_name(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    assert place.accept("fresh").status == 200
    assert place.receive(session_id="fresh") == []
    place.send("x", session_id="fresh")
    assert bodies(place.receive(session_id="fresh")) == ["x"]


def test_a_session_is_read_by_its_holder_alone(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.send(session_id="ann")
    form = {"session_id": "ann"}
    lost = place.ask("POST", "/messages/receive", form)
    assert refused(lost) == (410, "SessionLockLost")
    assert lost.json["error"]["details"]["session_id"] == "ann"
    for method, path in (
        ("POST", "/sessions/ann/renewlock"),
        ("GET", "/sessions/ann/state"),
        ("DELETE", "/sessions/ann"),
    ):
        assert refused(place.ask(method, path)) == (410, "SessionLockLost")
    unnamed = place.ask("POST", "/messages/receive", {})
    assert refused(unnamed) == (400, "InvalidOperation")


def test_a_message_without_a_session_is_refused_where_they_are_required(zure: Zure) -> None:
    queue = sessions(zure, "queue")
    assert refused(queue.try_send()) == (400, "InvalidOperation")
    plain = zure.queue()
    assert refused(plain.accept("ann")) == (400, "InvalidOperation")


def test_a_session_lock_expires(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.send(session_id="ann")
    place.accept("ann")
    place.receive(session_id="ann")
    zure.advance(61)
    lost = place.ask("POST", "/messages/receive", {"session_id": "ann"})
    assert refused(lost) == (410, "SessionLockLost")
    assert place.accept().json["SessionId"] == "ann"
    assert place.one(session_id="ann")["DeliveryCount"] == 2


def test_a_session_lock_can_be_renewed(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.send(session_id="ann")
    until = moment(place.accept("ann").json["LockedUntilUtc"])
    got = place.one(session_id="ann")
    zure.advance(40)
    reply = place.ask("POST", "/sessions/ann/renewlock")
    assert reply.status == 200
    assert moment(reply.json["LockedUntilUtc"]) > until
    zure.advance(40)
    assert place.complete(got).status == 200


def test_a_session_keeps_its_state(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.accept("ann")
    where = f"{place.path}/sessions/ann/state"
    assert place.broker.call("GET", where).body == b""
    state = bytes(range(256)) * 1_024
    assert len(state) == STATE_MAX
    assert place.broker.call("PUT", where, raw=state).status in (200, 204)
    assert place.broker.call("GET", where).body == state
    place.ask("POST", "/sessions/ann/renewlock")
    assert place.broker.call("PUT", where, raw=state + b"x").status == 413
    place.ask("DELETE", "/sessions/ann")
    assert refused(place.broker.call("PUT", where, raw=b"x")) == (410, "SessionLockLost")
    place.accept("ann")
    found = place.broker.call("GET", where)
    assert (found.status, found.body) == (200, state)


def test_dead_letters_of_a_session_are_read_without_it(zure: Zure, kind: str) -> None:
    place = sessions(zure, kind)
    place.send("x", session_id="ann")
    place.accept("ann")
    assert place.dead_letter(place.one(session_id="ann"), reason="r").status == 200
    letter = place.dead.one()
    assert (letter["Body"], letter["SessionId"]) == ("x", "ann")
    assert place.dead.complete(letter).status == 200


# Transactions.


def test_a_transaction_happens_as_a_whole(zure: Zure) -> None:
    source, target, subscription = zure.queue(), zure.queue(), zure.subscription()
    for body in "abc":
        source.send(body)
    a, b, c = source.receive(3)
    begun = zure.transactions("", {"timeout_seconds": 60})
    assert begun.status == 201
    left = moment(begun.json["ExpiresAtUtc"]) - zure.now()
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)
    number = begun.json["TransactionId"]
    assert target.try_send("1", number).status == 200
    assert target.try_send("2", number).status == 200
    assert subscription.try_send("3", number).status == 201
    assert source.complete(a, transactionId=number).status == 200
    assert source.abandon(b, transactionId=number).status == 200
    assert source.dead_letter(c, transactionId=number, reason="r").status == 200
    assert target.peek() == subscription.peek() == source.dead.peek() == []
    assert source.count("MessageCount") == 3
    done = zure.transactions(f"/{number}/commit")
    assert (done.status, done.json) == (200, {"Sent": 3, "Settled": 3})
    assert target.take() == ["1", "2"]
    assert subscription.take() == ["3"]
    assert source.take() == ["b"]
    assert source.dead.one()["DeadLetterReason"] == "r"


def test_a_transaction_that_is_rolled_back_never_was(zure: Zure) -> None:
    queue = zure.queue()
    queue.send("a")
    got = queue.one()
    number = zure.begin()
    assert queue.try_send("b", number).status == 200
    assert queue.complete(got, transactionId=number).status == 200
    assert refused(queue.complete(got)) == (410, "MessageLockLost")
    assert zure.transactions(f"/{number}/rollback").status == 200
    assert queue.complete(got).status == 200
    assert queue.peek() == []


def test_a_transaction_ends_once(zure: Zure) -> None:
    queue = zure.queue()
    number = zure.begin()
    assert zure.transactions(f"/{number}/commit").json == {"Sent": 0, "Settled": 0}
    for lost in (number, NOBODY, "nonsense"):
        for reply in (
            zure.transactions(f"/{lost}/commit"),
            zure.transactions(f"/{lost}/rollback"),
            queue.try_send("x", lost),
        ):
            assert refused(reply) == (404, "TransactionNotFound")
    assert queue.peek() == []


def test_a_transaction_is_rolled_back_when_its_time_is_up(zure: Zure) -> None:
    queue = zure.queue()
    number = zure.transactions("", {"timeout_seconds": 10}).json["TransactionId"]
    assert queue.try_send("x", number).status == 200
    zure.advance(11)
    assert refused(zure.transactions(f"/{number}/commit")) == (404, "TransactionNotFound")
    assert queue.peek() == []


def test_a_transaction_that_cannot_be_committed_changes_nothing(zure: Zure) -> None:
    queue, narrow = zure.queue(), zure.queue()
    zure.broker.queue("PATCH", narrow.name, {"max_messages": 1})
    queue.send("a")
    got = queue.one()
    number = zure.begin()
    for place in (queue, narrow, narrow):
        place.try_send("x", number)
    queue.complete(got, transactionId=number)
    assert zure.transactions(f"/{number}/commit").status in (409, 507)
    assert narrow.peek() == []
    assert queue.abandon(got).status == 200
    assert queue.take() == ["a"]
