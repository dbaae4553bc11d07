"""The official JavaScript client, @azure/service-bus, as it comes from npm."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dialects.servicebus.javascript import (
    Json,
    Scripts,
    connection_string,
    need_node,
    run_script,
)
from tests.server.running import development, running
from tests.server.test_tls import certificate

EMPTY = {"active": 0, "locked": 0, "scheduled": 0, "delayed": 0, "deferred": 0, "dead": 0}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """By a broker that makes no queues by itself."""
    need_node()
    with running(
        "--data", str(tmp_path_factory.mktemp("data")), "--dev", "--servicebus-tier", "premium"
    ) as broker:
        yield Scripts(connection_string(broker.port))
    assert not broker.events("amqp.failed")


def codes(refusals: dict[str, Json]) -> dict[str, str]:
    return {name: each.get("code") for name, each in refusals.items()}


# Sending.


def test_a_message_is_sent_and_comes_back(told: Scripts) -> None:
    assert told("sending", "single") == [["m-1", "one"]]


def test_an_array_is_sent_in_order(told: Scripts) -> None:
    assert told("sending", "array") == [1, 2, 3]


def test_a_batch_is_sent_in_order(told: Scripts) -> None:
    batch = told("sending", "batch")
    assert batch["most"] == 1 << 20
    assert batch["found"] == [[at, f"s{at}"] for at in range(100)]


def test_a_batch_takes_as_much_as_the_queue_allows(told: Scripts) -> None:
    assert told("sending", "fullBatch") == {"most": 50_000, "added": 4, "active": 4}


def test_a_message_without_an_id_gets_one_of_its_own(told: Scripts) -> None:
    ids = told("sending", "noId")
    assert all(ids)
    assert len(set(ids)) == 3


def test_a_message_that_is_too_large_is_refused_and_the_sender_goes_on(told: Scripts) -> None:
    oversize = told("sending", "oversize")
    assert oversize["refused"]["code"] == "MessageSizeExceeded"
    assert oversize["bodies"] == ["goes on"]


def test_an_array_that_is_too_large_is_refused_as_a_whole(told: Scripts) -> None:
    oversize = told("sending", "oversizeBatch")
    assert oversize["refused"]["code"] == "MessageSizeExceeded"
    assert oversize["active"] == 0


def test_a_queue_that_is_not_there_is_not_found(told: Scripts) -> None:
    assert set(codes(told("sending", "missing")).values()) == {"MessagingEntityNotFound"}


def test_a_disabled_queue_is_said_to_be_disabled(told: Scripts) -> None:
    assert set(codes(told("sending", "disabled")).values()) == {"MessagingEntityDisabled"}


def test_a_wrong_key_is_unauthorized(told: Scripts) -> None:
    assert set(codes(told("sending", "wrongKey")).values()) == {"UnauthorizedAccess"}


def test_a_thousand_sends_at_once_keep_their_order(told: Scripts) -> None:
    assert told("sending", "thousand") == list(range(1_000))


def test_twenty_queues_are_used_on_one_connection(told: Scripts) -> None:
    assert told("sending", "atOnce") == [f"at-once-{at}" for at in range(20)]


# Receiving.


def test_what_is_received_and_deleted_is_gone(told: Scripts) -> None:
    deleting = told("receiving", "deleting")
    assert deleting == {"told": [[1, 0, None], [2, 0, None]], "counts": EMPTY}


def test_a_message_is_locked_until_it_is_completed(told: Scripts) -> None:
    completing = told("receiving", "completing")
    assert completing["before"] == {**EMPTY, "locked": 1}
    assert completing["after"] == EMPTY
    assert (completing["state"], completing["count"], completing["sequence"]) == ("active", 0, "1")
    assert completing["left"] >= 60_000
    assert "already settled" in completing["again"]["message"]


def test_an_abandoned_message_comes_back_first_with_its_changes(told: Scripts) -> None:
    assert told("receiving", "abandoning") == ["first", 1, {"why": "later", "times": 2}]


def test_a_message_delivered_too_often_is_dead_lettered(told: Scripts) -> None:
    assert told("receiving", "tooOften") == {
        "body": "first", "reason": "MaxDeliveryCountExceeded", "counts": {**EMPTY, "dead": 1},
    }  # fmt: skip


def test_a_deferred_message_comes_by_its_number_only(told: Scripts) -> None:
    deferring = told("receiving", "deferring")
    assert deferring["nobody"] == 0
    assert (deferring["peeked"], deferring["state"]) == ("deferred", "deferred")
    assert (deferring["body"], deferring["properties"]) == ("first", {"step": "one"})
    assert deferring["again"] == 2
    assert deferring["missing"]["code"] == "MessageNotFound"
    assert deferring["counts"] == EMPTY


def test_a_deferred_message_can_be_received_and_deleted(told: Scripts) -> None:
    assert told("receiving", "deferredDeleting") == {"body": "first", "counts": EMPTY}


def test_a_dead_lettered_message_says_why(told: Scripts) -> None:
    dead = told("receiving", "deadLettering")
    assert dead["id"] == "m-first"
    assert dead["body"] == "first"
    assert (dead["reason"], dead["text"]) == ("bad address", "no such street")
    assert dead["properties"]["seen"] == 3
    assert dead["counts"] == EMPTY


def test_a_message_is_dead_lettered_without_a_reason(told: Scripts) -> None:
    assert told("receiving", "deadLetteringWithoutReason") == ["first", None, None]


def test_a_lock_that_has_expired_is_lost(told: Scripts) -> None:
    lost = told("receiving", "lockLost")
    assert lost["complete"]["code"] == lost["renew"]["code"] == "MessageLockLost"
    assert lost["count"] == 1
    assert lost["counts"] == EMPTY


def test_a_renewed_lock_lasts_longer(told: Scripts) -> None:
    renewing = told("receiving", "renewing")
    assert renewing["longer"] >= 4_000
    assert renewing["set"] == 0


def test_a_lock_outlives_its_receiver(told: Scripts) -> None:
    assert told("receiving", "settlingElsewhere") == {"told": {}, "counts": EMPTY}


def test_a_batch_receive_drains_and_leaves_the_rest_to_others(told: Scripts) -> None:
    draining = told("receiving", "draining")
    assert draining["first"] == [1, 2]
    assert draining["between"] == {**EMPTY, "active": 1, "locked": 2}
    assert draining["second"] == [3]
    assert draining["none"] == 0
    assert draining["after"] == EMPTY
    assert draining["warnings"] == []


def test_a_stream_completes_what_its_handler_has_seen(told: Scripts) -> None:
    streaming = told("receiving", "streaming")
    assert sorted(streaming["found"]) == list(range(50))
    assert streaming["errors"] == []
    assert streaming["counts"] == EMPTY


def test_a_stream_abandons_what_its_handler_fails_on(told: Scripts) -> None:
    failing = told("receiving", "failingHandler")
    assert failing["seen"] == [0, 1, 2]
    assert failing["errors"] == [["processMessageCallback", "not yet"]] * 2
    assert failing["counts"] == EMPTY


def test_messages_are_iterated_over(told: Scripts) -> None:
    assert told("receiving", "iterating") == {"found": [1, 2], "counts": EMPTY}


def test_peeking_shows_messages_in_every_state(told: Scripts) -> None:
    peeking = told("receiving", "peeking")
    assert [each[:2] for each in peeking["all"]] == [
        ["a", "active"], ["b", "deferred"], ["c", "active"], ["d", "scheduled"],
    ]  # fmt: skip
    assert peeking["turns"] == ["a", "b", "c", "d"]
    assert peeking["nothing"] == []


def test_two_streams_share_a_queue(told: Scripts) -> None:
    competing = told("receiving", "competing")
    first, second = competing["found"]
    assert sorted(first + second) == list(range(20))
    assert first
    assert second
    assert competing["counts"] == EMPTY


# Time.


def test_scheduled_messages_come_when_they_are_due(told: Scripts) -> None:
    assert told("scheduling", "scheduling") == {
        "numbers": ["1", "2"], "early": 0, "peeked": ["scheduled", "1"], "due": 0,
        "found": ["a", "b"], "late": True,
    }  # fmt: skip


def test_a_message_sent_with_a_time_waits_for_it(told: Scripts) -> None:
    sent = told("scheduling", "sentWithATime")
    assert sent["before"] == {**EMPTY, "active": 1, "scheduled": 2}
    assert sent["after"] == {**EMPTY, "active": 3}


def test_scheduled_messages_are_cancelled_all_or_none(told: Scripts) -> None:
    cancelling = told("scheduling", "cancelling")
    assert cancelling["again"]["code"] == cancelling["both"]["code"] == "MessageNotFound"
    assert cancelling["left"] == {**EMPTY, "scheduled": 1}
    assert cancelling["after"] == EMPTY


def test_an_expired_message_is_dead_lettered_where_the_queue_wants_it(told: Scripts) -> None:
    assert told("scheduling", "timeToLive") == {
        "life": 5_000, "expires": 5_000, "body": "short", "reason": "TTLExpiredException",
    }  # fmt: skip


def test_a_message_sent_twice_is_kept_once(told: Scripts) -> None:
    assert told("scheduling", "duplicates") == {**EMPTY, "active": 2}


# Sessions.


def test_a_session_is_received_in_order(told: Scripts) -> None:
    session = told("sessions", "inOrder")
    assert session["id"] == "red"
    assert session["first"] == [["red", 1], ["red", 2]]
    assert session["rest"] == [[1, 1], [3, 0], [4, 0]]
    assert session["counts"] == {**EMPTY, "active": 3}


def test_the_next_session_is_one_that_nobody_holds(told: Scripts) -> None:
    assert told("sessions", "nextAvailable") == [["red", 1], ["blue", 2]]


def test_who_asks_for_any_session_waits_for_one(told: Scripts) -> None:
    assert told("sessions", "heldUntilThereIsOne") == ["late", "here"]


def test_who_asks_for_any_session_does_not_wait_for_ever(told: Scripts) -> None:
    none = told("sessions", "noneInTime")
    assert none["refused"]["code"] == "ServiceTimeout"
    assert none["then"] == "s"


def test_a_session_that_another_holds_cannot_be_locked(told: Scripts) -> None:
    held = told("sessions", "heldByAnother")
    assert held["refused"]["code"] == "SessionCannotBeLocked"
    assert held["then"] == "red"


def test_a_session_can_be_held_before_it_has_messages(told: Scripts) -> None:
    assert told("sessions", "unseen") == {"id": "new", "nothing": 0}


def test_a_session_keeps_its_state_until_it_is_cleared(told: Scripts) -> None:
    state = {"step": 2, "names": ["a", "ü"]}
    assert told("sessions", "state") == {
        "before": None, "set": state, "after": state, "cleared": None,
    }  # fmt: skip


def test_a_renewed_session_lock_lasts_longer(told: Scripts) -> None:
    renewing = told("sessions", "renewing")
    assert renewing["longer"] >= 4_000
    assert renewing["set"] == 0
    assert renewing["counts"] == EMPTY


def test_a_session_lock_that_has_expired_is_lost(told: Scripts) -> None:
    lost = told("sessions", "lost")
    assert lost.pop("count") == 1
    assert set(codes(lost).values()) == {"SessionLockLost"}


def test_a_message_of_a_session_is_deferred_and_received(told: Scripts) -> None:
    assert told("sessions", "deferring") == {"body": 1, "peeked": [2]}


def test_a_session_is_peeked_by_itself(told: Scripts) -> None:
    assert told("sessions", "peeking") == [["red", 1], ["red", 2]]


def test_dead_letters_of_sessions_are_received_without_one(told: Scripts) -> None:
    assert told("sessions", "deadLettering") == [1, "s", "bad"]


def test_a_session_is_streamed_in_order(told: Scripts) -> None:
    assert told("sessions", "streaming") == {"found": list(range(30)), "counts": EMPTY}


def test_a_session_is_received_and_deleted(told: Scripts) -> None:
    assert told("sessions", "deleting") == {"found": [1, 2], "counts": EMPTY}


def test_a_queue_with_sessions_takes_nothing_without_one(told: Scripts) -> None:
    wrong = told("sessions", "wrongKind")
    assert wrong["send"]["message"].startswith("InvalidOperationError")
    assert wrong["receive"]["message"].startswith("InvalidOperationError")
    assert wrong["session"]["code"] == "SessionCannotBeLocked"  # the client says so of any refusal


def test_ten_sessions_are_held_on_one_connection(told: Scripts) -> None:
    assert told("sessions", "manyAtOnce") == [f"s{at}" for at in range(10)]


# Values.


def test_properties_of_every_type_come_back_as_they_were(told: Scripts) -> None:
    assert told("values", "properties") == {"differ": {}, "names": 17}
    assert told("values", "batchProperties") == []


def test_the_fields_of_a_message_come_back_as_they_were(told: Scripts) -> None:
    assert told("values", "fields") == []


def test_ids_keep_their_types(told: Scripts) -> None:
    uuid = ["Buffer", "00112233445566778899aabbccddeeff"]
    ids = [["string", "text"], ["number", "42"], ["number", "0"], uuid]
    assert told("values", "identifiers") == [[each, each] for each in ids]


def test_bodies_of_every_type_come_back_as_they_were(told: Scripts) -> None:
    assert told("values", "bodies") == [
        ["string", "text"], ["string", ""], ["number", "0"], ["number", "1.5"], ["boolean", True],
        ["boolean", False], ["null", None], ["object", {"deep": {"list": [1, "a", None]}}],
        ["object", [1, 2]], ["Buffer", b"bytes".hex()], ["Buffer", ""], ["Buffer", "07" * 1000],
    ]  # fmt: skip


def test_annotated_messages_keep_their_sections(told: Scripts) -> None:
    kept = {"header": [True, 7, 60_000], "annotation": "kept", "properties": {"n": 1}}
    bodies = [
        ("value", "text"), ("value", {"a": 1, "b": [True, None]}), ("value", 12.5),
        ("sequence", [[1, "two"], [3]]), ("data", "raw"),
    ]  # fmt: skip
    assert told("values", "annotated") == [
        {"kind": kind, "body": body, "sequence": str(at), **kept}
        for at, (kind, body) in enumerate(bodies, 1)
    ]


def test_large_messages_come_back_as_they_were(told: Scripts) -> None:
    assert told("values", "large") == [True, True]


def test_a_received_message_can_be_sent_again(told: Scripts) -> None:
    assert told("values", "sentAgain") == ["x", {"n": 1}, True]


# TLS.


def test_a_client_that_trusts_the_broker_uses_tls(tmp_path: Path) -> None:
    need_node()
    with development(tmp_path) as broker:
        certificate(tmp_path)
        text = connection_string(broker.port, plain=False)
        lines = subprocess.run(
            [sys.executable, "-m", "posthouse.cli", "tls", "env", "--data", str(tmp_path)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        given = dict(line.removeprefix("export ").split("=", 1) for line in lines.splitlines())
        trusting = run_script("tls", text, environment=given)
        assert trusting == {"secure": {"returned": "by TLS"}}
        doubting = run_script("tls", text)
        assert "certificate" in doubting["secure"]["message"]


# Topics.


def test_rules_are_managed_by_the_client(told: Scripts) -> None:
    rules = told("topics", "rules")
    assert rules["before"] == [["$Default", {"sqlExpression": "1=1"}]]
    assert rules["none"] == 0
    assert [name for name, *_ in rules["after"]] == ["exact", "red"]
    exact, red = rules["after"]
    assert exact[1]["subject"] == "s"
    assert exact[1]["applicationProperties"] == {"n": 5}
    assert red[1]["sqlExpression"] == "colour = 'red'"
    assert red[2]["sqlExpression"] == "SET seen = TRUE"
    assert rules["found"] == [
        ["red", {"colour": "red", "seen": True, "RuleName": "red"}],
        ["exact", {"n": 5}],
    ]


def test_rules_that_cannot_be_are_refused(told: Scripts) -> None:
    refusals = told("topics", "refusals")
    assert refusals["taken"]["code"] == "MessagingEntityAlreadyExists"
    assert "column" in refusals["wrong"]["message"]
    assert refusals["missing"]["code"] == "MessagingEntityNotFound"


def test_messages_of_a_subscription_are_settled(told: Scripts) -> None:
    reason = "MaxDeliveryCountExceeded"
    assert told("topics", "settling") == [2, reason, "settling/Subscriptions/s"]
