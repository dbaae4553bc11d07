"""Names that are right once they exist."""

import pickle
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse import MessageId, QueueName, SessionId, ValidationError
from posthouse.core.checks import check_name
from posthouse.core.errors import InvalidArgument


@pytest.mark.parametrize(
    "name",
    ["a", "orders", "a-b-c", "A_1", "_", "9", "x" * 260, "-a-", "orders.created", "team/orders",
     "ä", "a b", "100%", "a$b"],
)  # fmt: skip
def test_a_good_queue_name_is_itself(name: str) -> None:
    assert QueueName(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a ",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/.",
        "a\\b",
        "$a",
        "a/$dead",
        "a\n",
        "a\x00",
        "a\ud800",
        "x" * 261,
    ],
)
def test_a_bad_queue_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="queue name"):
        QueueName(name)


@given(st.text(st.sampled_from("aä. /\\$%-\n\ud800"), max_size=8))
def test_the_client_takes_the_names_that_a_broker_takes(name: str) -> None:
    try:
        check_name("queue", name)
    except InvalidArgument:
        with pytest.raises(ValidationError):
            QueueName(name)
    else:
        assert QueueName(name) == name


def test_a_queue_name_can_have_a_prefix() -> None:
    assert QueueName.with_prefix("prod", "orders") == "prod-orders"
    for prefix, base in (("", "orders"), ("prod/", "orders"), ("prod", "")):
        with pytest.raises(ValidationError):
            QueueName.with_prefix(prefix, base)


def test_a_new_message_id_is_a_uuid_of_its_own() -> None:
    first, second = MessageId(), MessageId()
    assert first != second
    assert uuid.UUID(first).version == 4


def test_a_message_id_is_not_empty_and_not_endless() -> None:
    assert MessageId("m 1") == "m 1"
    assert len(MessageId("x" * 128)) == 128
    for bad in ("", "x" * 129):
        with pytest.raises(ValidationError, match="message id"):
            MessageId(bad)


def test_a_session_id_is_printable_ascii() -> None:
    assert SessionId("tenant 1~") == "tenant 1~"
    assert len(SessionId("x" * 128)) == 128
    for bad in ("", "x" * 129, "a\n", "ä", "a\x7f"):
        with pytest.raises(ValidationError, match="session id"):
            SessionId(bad)


def test_a_session_id_can_be_made_of_parts() -> None:
    assert SessionId.from_parts("owner", "repo", "issue", "7") == "owner/repo/issue/7"


def test_names_keep_their_kind_when_they_are_pickled() -> None:
    for name in (QueueName("orders"), MessageId("m"), SessionId("s")):
        again = pickle.loads(pickle.dumps(name))
        assert again == name
        assert type(again) is type(name)
