"""Refusals: the family, and what each of them says."""

import pytest

from posthouse.core.errors import (
    REFUSALS,
    AlreadyExists,
    Busy,
    Disabled,
    Duplicate,
    InvalidArgument,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    NotLeader,
    QuotaExceeded,
    Refused,
    SessionLocked,
    SessionLockLost,
    Throttled,
    TimedOut,
    TransactionLost,
    Unauthenticated,
    Unauthorized,
)

TOKEN = 0xABCDEF << 64 | 5

EVERY: list[tuple[Refused, str]] = [
    (
        NotFound("queue", "orders"),
        "There is no queue 'orders'; check the name, or create it first.",
    ),
    (
        AlreadyExists("queue", "orders"),
        "A queue 'orders' exists already; names that differ only in case clash.",
    ),
    (
        MessageNotFound("orders", 7, "deferred"),
        "Queue 'orders' has no deferred message with sequence 7.",
    ),
    (
        LockLost("orders", TOKEN),
        "The lock has expired or was settled already; receive the message again.",
    ),
    (
        SessionLocked("orders", "ann"),
        "Session 'ann' of 'orders' is held by another receiver; try later.",
    ),
    (
        SessionLockLost("orders", TOKEN),
        "The session lock on 'orders' has expired or was released; accept it again.",
    ),
    (
        QuotaExceeded("orders", "max_messages", 10, 9),
        "Queue 'orders' is full: max_messages is 10, and 9 are used;"
        " receive messages or raise the limit.",
    ),
    (
        QuotaExceeded("the broker", "the number of readers", 1_000, 1_000),
        "This would be too much for the broker: the number of readers is 1000 at most, and 1000"
        " now; delete or end some that are not needed, and ask again.",
    ),
    (
        QuotaExceeded("news", "the number of subscriptions", 2_000, 2_000),
        "This would be too much for 'news': the number of subscriptions is 2000 at most, and 2000"
        " now; delete or end some that are not needed, and ask again.",
    ),
    (
        QuotaExceeded("orders", "disk space", 0, 0),
        "There is no disk space left for 'orders'; free some, and send again.",
    ),
    (
        MessageTooLarge("orders", 300, 256),
        "The message has 300 bytes; 'orders' takes at most 256.",
    ),
    (
        Duplicate("orders", "k", 3),
        "'orders' has accepted a message with key 'k' already.",
    ),
    (
        Disabled("orders", "send-disabled"),
        "Queue 'orders' is send-disabled; resume it or set its status to active.",
    ),
    (InvalidArgument("limit", "must be from 1 to 10"), "limit must be from 1 to 10."),
    (
        NotAllowed("orders", "it has no sessions"),
        "Not allowed on 'orders': it has no sessions.",
    ),
    (TimedOut("orders"), "Nothing came from 'orders' before the deadline."),
    (
        TransactionLost(TOKEN),
        "The transaction is over, or its time was up; begin another.",
    ),
    (
        Unauthenticated(),
        "The credentials are missing, or not valid; check the name and the key.",
    ),
    (
        Unauthorized("ann", "send", "shop"),
        "'ann' has no right to send here; ask who manages the broker.",
    ),
    (Throttled(50), "Too much was asked for at a time; wait 50 ms, and ask again."),
    (
        NotLeader("b.example:5672"),
        "This broker follows b.example:5672, which leads; ask there, or try again shortly.",
    ),
    (
        NotLeader(""),
        "This broker follows another, and knows none that leads; try again shortly.",
    ),
    (Busy("too much waits"), "The broker is busy: too much waits. Try again shortly."),
]


@pytest.mark.parametrize(("refusal", "says"), EVERY, ids=lambda each: type(each).__name__)
def test_a_refusal_says_what_happened_and_what_to_do(refusal: Refused, says: str) -> None:
    assert str(refusal) == says


def test_no_text_and_no_fact_gives_a_token_away() -> None:
    for refusal, _ in EVERY:
        for told in (str(refusal), refusal.detail, str(refusal.facts)):
            assert str(TOKEN) not in told
            assert f"{TOKEN:x}" not in told


def test_every_refusal_has_a_code_of_its_own_and_facts_that_every_wire_can_carry() -> None:
    assert len({kind.code for kind in REFUSALS}) == len(REFUSALS)
    for refusal, _ in EVERY:
        assert all(type(fact) in (str, int) for fact in refusal.facts.values())


def test_facts_are_the_fields_that_say_something() -> None:
    assert NotFound("rule", "cheap").facts == {"kind": "rule", "name": "cheap"}
    assert LockLost(None, TOKEN).facts == {}
    assert MessageTooLarge("orders", 300, 256).facts == {
        "queue": "orders", "size_bytes": 300, "maximum": 256,
    }  # fmt: skip


def test_what_is_not_found_is_told_with_the_namespace_where_that_is_known() -> None:
    missing = NotFound("queue", "orders", "shop")
    assert missing.detail == (
        "There is no queue 'orders' in the namespace 'shop'; check the name, or create it first."
    )
    assert str(missing) == NotFound("queue", "orders").detail
    assert TimedOut("orders").detail == str(TimedOut("orders"))


def test_the_family_is_closed() -> None:
    assert set(REFUSALS) == set(Refused.__subclasses__())
    assert {type(refusal) for refusal, _ in EVERY} == set(REFUSALS)
    assert all(not each.__subclasses__() for each in REFUSALS)
