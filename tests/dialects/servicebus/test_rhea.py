"""rhea, an AMQP library for JavaScript that knows nothing of Service Bus."""

from collections.abc import Iterator

import pytest

from tests.dialects.servicebus.javascript import Json, Scripts, connection_string, need_node
from tests.server.running import running

REFUSED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    need_node()
    with running(
        "--data", str(tmp_path_factory.mktemp("data")), "--dev", "--servicebus-tier", "premium"
    ) as broker:
        yield Scripts(connection_string(broker.port))
    assert not broker.events("amqp.failed")


class Told:
    """What the scenarios of rhea.js told."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def __call__(self, scenario: str) -> Json:
        return self._scripts("rhea", scenario)


@pytest.fixture
def told(scripts: Scripts) -> Told:
    return Told(scripts)


# Who it is.


def test_a_name_and_a_key_open_everything(told: Told) -> None:
    assert told("plain") == [["accepted"], "m", "hello"]


def test_a_wrong_key_opens_no_connection(told: Told) -> None:
    event, _ = told("wrongPassword")
    assert event == "connection_error"


def test_who_says_nothing_of_himself_needs_a_token_for_each_queue(told: Told) -> None:
    answer = [REFUSED, ["1", 202], "open", REFUSED, REFUSED]
    assert told("anonymous") == {"anonymous": answer, "without": answer}


def test_a_token_that_is_not_right_opens_nothing(told: Told) -> None:
    tokens = told("tokens")
    assert tokens.pop("attached") == REFUSED
    assert tokens.pop("garbage") == 400
    assert set(tokens.values()) == {401}


# Frames.


def test_a_message_goes_in_small_frames_both_ways(told: Told) -> None:
    small = told("smallFrames")
    assert small["outcomes"] == ["accepted"] * 3
    assert small["same"] == [True, "between", True]
    assert small["widest"] <= 512
    assert small["frames"] > 3_500


def test_frames_of_two_messages_come_by_turns(told: Told) -> None:
    turns = told("interleaved")
    assert min(turns["lengths"]) > 10
    assert turns["told"] == [["accepted"], ["accepted"]]
    assert turns["same"] == [True, True]


def test_a_message_that_is_aborted_was_never_sent(told: Told) -> None:
    assert told("aborted") == {"answers": ["accepted"], "active": 1}


def test_a_batch_is_sent_with_its_message_format(told: Told) -> None:
    assert told("batch") == ["accepted", [[1, "s1"], [2, "s2"], [3, "s3"]]]


def test_a_message_that_cannot_be_read_is_rejected_and_the_sender_goes_on(told: Told) -> None:
    unreadable = told("unreadable")
    refusals = {hex: each for hex, each in unreadable["told"].items() if hex not in ("", "batch")}
    assert {event for event, _ in refusals.values()} == {"rejected"}
    assert {condition for _, condition in refusals.values()} == {
        "amqp:decode-error", "com.microsoft:argument-error",
    }  # fmt: skip
    assert unreadable["outcomes"] == ["accepted"]


# Links.


def test_settled_messages_are_sent_and_received_without_answers(told: Told) -> None:
    presettled = told("presettled")
    assert presettled["found"] == list(range(50))
    assert presettled["settled"]
    assert presettled["answers"] == 0
    assert not any(presettled["counts"].values())


def test_sessions_and_links_on_one_connection_do_not_mix(told: Told) -> None:
    many = told("manySessions")
    assert many["told"] == [
        ",".join(f"many-{session}-{link} {at}" for at in (1, 2, 3))
        for session in range(4)
        for link in range(5)
    ]
    assert many["outcomes"] == ["accepted"]


def test_a_window_of_credit_is_filled_again_and_again(told: Told) -> None:
    window = told("window")
    assert window["found"] == list(range(100))
    assert not any(window["counts"].values())


def test_no_more_comes_than_there_is_credit_for(told: Told) -> None:
    assert told("credit") == [[[0, 1, 2], 7, 3], [[3, 4], 5, 5]]


def test_credit_may_be_as_large_as_the_protocol_allows(told: Told) -> None:
    assert told("largeCredit") == [2**31 - 1, 2**31, 2**32 - 1]


def test_a_session_window_may_be_as_large_as_the_protocol_allows(told: Told) -> None:
    assert told("largeWindow") == [2**31 - 1, 2**31, 2**32 - 1]


def test_a_drain_gives_what_there_is_and_takes_the_credit(told: Told) -> None:
    assert told("drain") == {"drained": [[1, 2], 0], "active": 1, "then": [1, 2, 3]}


def test_an_outcome_is_answered_with_the_same_outcome(told: Told) -> None:
    assert told("outcomes") == {
        "accepted": ["accepted", 0, 0, 0],
        "released": ["released", 1, 0, 0, 0],
        "modified": ["modified", 1, 0, 0, 1],
        "deferred": ["modified", 0, 1, 0],
        "rejected": ["rejected", 0, 1, 1],
    }


def test_a_link_of_the_same_name_can_be_attached_again(told: Told) -> None:
    assert told("reattached") == {"told": ["accepted"] * 5, "active": 5}


def test_a_refused_link_leaves_the_connection_open(told: Told) -> None:
    assert told("refusals") == {
        "sender": "amqp:not-found",
        "receiver": "amqp:not-found",
        "dead": "amqp:not-allowed",
        "still": "open",
    }


def test_a_session_id_is_text(told: Told) -> None:
    ids = told("sessionIds")
    assert ids.pop("symbol") in ("open: symbol", "com.microsoft:argument-error")
    assert ids == {
        "text": "open: text",
        "empty": "open: ",
        "described": "open: described",
        "number": "com.microsoft:argument-error",
        "list": "com.microsoft:argument-error",
        "long": "com.microsoft:argument-error",
    }


# $management.


def test_a_request_may_be_as_large_as_a_message(told: Told) -> None:
    assert told("largeRequest") == 200


def test_messages_are_deleted_in_bulk(told: Told) -> None:
    assert told("deleting") == [[200, 10], [200, 20], [204, 0]]


def test_an_operation_that_is_not_known_is_said_to_be(told: Told) -> None:
    assert told("unknownOperation") == [501, "amqp:not-implemented"]
