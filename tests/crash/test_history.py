"""The history finds what it is there to find, and nothing else."""

import pytest

from tests.crash.history import Broken, History


def a_history(*names: str, session: str | None = None) -> History:
    """These were sent one after the other and acknowledged."""
    history = History(margin_ms=5)
    for name in names:
        history.sending([name], session)
        history.sent([name])
    return history


# Lost, back and dead.


def test_an_acknowledged_message_that_is_not_there_is_lost() -> None:
    with pytest.raises(Broken, match=r"acknowledged, and lost: \['a'\]"):
        a_history("a", "b").check(live=["b"], dead=[])


def test_a_message_that_was_not_acknowledged_may_be_there_or_not() -> None:
    history = a_history()
    history.sending(["a", "b"])
    history.check(live=["a"], dead=[])


def test_a_delivered_message_is_lost_though_its_send_was_never_answered() -> None:
    history = a_history()
    history.sending(["a"])
    history.delivered("a", "t", until_ms=100, now_ms=0)
    with pytest.raises(Broken, match="lost"):
        history.check(live=[], dead=[])


def test_a_message_that_was_found_once_is_lost_later() -> None:
    history = a_history()
    history.sending(["a"])
    history.check(live=["a"], dead=[])
    with pytest.raises(Broken, match="lost"):
        history.check(live=[], dead=[])


def test_a_completion_without_an_answer_leaves_doubt_until_the_next_check() -> None:
    history = a_history("a", "b")
    history.completing("a")
    history.completing("b")
    history.check(live=["a"], dead=[])
    with pytest.raises(Broken, match="lost"):
        history.check(live=[], dead=[])
    with pytest.raises(Broken, match="gone, and found"):
        history.check(live=["b"], dead=[])


def test_a_refused_completion_leaves_no_doubt() -> None:
    history = a_history("a")
    history.delivered("a", "t", until_ms=100, now_ms=0)
    history.completing("a", "t")
    history.refused("t", now_ms=100, name="a")
    with pytest.raises(Broken, match="lost"):
        history.check(live=[], dead=[])


def test_a_completed_message_is_not_missed() -> None:
    history = a_history("a")
    history.completing("a")
    history.completed("a")
    history.check(live=[], dead=[])


def test_a_completed_message_that_is_found_is_back() -> None:
    history = a_history("a")
    history.completing("a")
    history.completed("a")
    with pytest.raises(Broken, match="gone, and found"):
        history.check(live=["a"], dead=[])


def test_a_completed_message_that_is_delivered_is_back() -> None:
    history = a_history("a")
    history.completing("a")
    history.completed("a")
    with pytest.raises(Broken, match="gone, and delivered"):
        history.delivered("a", "t", until_ms=100, now_ms=0)


def test_a_message_that_a_check_did_not_find_is_not_delivered_later() -> None:
    history = a_history()
    history.sending(["a"])
    history.check(live=[], dead=[])
    with pytest.raises(Broken, match="gone, and delivered"):
        history.delivered("a", "t", until_ms=100, now_ms=0)


@pytest.mark.parametrize(("live", "dead"), [("aa", ""), ("a", "a"), ("", "aa")])
def test_a_message_is_not_found_twice(live: str, dead: str) -> None:
    with pytest.raises(Broken, match="found twice"):
        a_history("a").check(live, dead)


def test_what_was_never_sent_is_neither_found_nor_delivered() -> None:
    with pytest.raises(Broken, match="never sent, and found"):
        a_history().check(live=["a"], dead=[])
    with pytest.raises(Broken, match="never sent, and delivered"):
        a_history().delivered("a", "t", until_ms=100, now_ms=0)


@pytest.mark.parametrize("live", ["a", ""])
def test_a_dead_lettered_message_is_among_the_dead(live: str) -> None:
    history = a_history("a")
    history.burying("a")
    history.check(live="a", dead="")
    history.buried("a")
    with pytest.raises(Broken, match=r"dead-lettered, and not there|lost"):
        history.check(live, dead="")
    history.check(live="", dead="a")


def test_a_dead_lettered_message_is_not_delivered() -> None:
    history = a_history("a")
    history.check(live="", dead="a")
    with pytest.raises(Broken, match="dead-lettered, and delivered"):
        history.delivered("a", "t", until_ms=100, now_ms=0)


def test_words_can_come_as_lines() -> None:
    history = History()
    for line in ("ready 1", "sending a", "sent a", "sending b", "burying a", "buried a"):
        history.hear(line)
    history.check(live=[], dead=["a"])
    assert history.said["sent"] == {"a"}
    with pytest.raises(Broken):
        history.check(live=["a"], dead=[])


# Scheduled.


def test_a_scheduled_message_does_not_come_early() -> None:
    history = a_history()
    history.sending(["a", "b"], due_ms=50)
    history.delivered("a", "1", until_ms=100, now_ms=50)
    with pytest.raises(Broken, match="10 ms before it was due"):
        history.delivered("b", "2", until_ms=100, now_ms=40)


# Order.


def test_a_session_is_delivered_in_the_order_of_its_sends() -> None:
    history = a_history("a", "b", "c", session="s")
    for at, name in enumerate("abac"):  # one that comes again has no place
        history.delivered(name, str(at), until_ms=10 * at + 10, now_ms=10 * at)
    assert history.counts["in order"] == 3


def test_a_message_that_overtakes_another_is_out_of_order() -> None:
    history = a_history("a", "b", session="s")
    with pytest.raises(Broken, match="out of order in s: b before a"):
        history.delivered("b", "t", until_ms=100, now_ms=0)


def test_the_messages_of_one_send_have_an_order_too() -> None:
    history = a_history()
    history.sending(["a", "b"], "s")
    with pytest.raises(Broken, match="out of order"):
        history.delivered("b", "t", until_ms=100, now_ms=0)


def test_sends_under_way_at_the_same_time_have_no_order() -> None:
    history = a_history()
    history.sending(["a"], "s")
    history.sending(["b"], "s")
    history.sent(["a"])
    history.sent(["b"])
    history.delivered("b", "t", until_ms=100, now_ms=0)


def test_other_sessions_and_scheduled_messages_have_no_order() -> None:
    history = a_history("a", session="s")
    history.sending(["b"], "other")
    history.delivered("b", "1", until_ms=100, now_ms=0)
    history.sending(["c"], "s", due_ms=10)
    history.delivered("c", "2", until_ms=100, now_ms=10)


def test_what_is_gone_or_dead_holds_nobody_back() -> None:
    history = a_history("a", "b", "c", session="s")
    history.completing("a")
    history.check(live="c", dead="b")
    history.delivered("c", "t", until_ms=100, now_ms=0)


# Locks.


def test_two_receivers_do_not_hold_one_message() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    with pytest.raises(Broken, match="held for 6 ms more, and given to another: a"):
        history.delivered("a", "2", until_ms=200, now_ms=94)


def test_a_message_may_come_again_when_its_lock_is_over_or_nearly() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.delivered("a", "2", until_ms=200, now_ms=95)
    assert history.counts["redelivered"] == 1


def test_a_message_may_come_again_once_its_holder_has_said_that_he_settles() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.abandoning("a", "1")
    history.delivered("a", "2", until_ms=100, now_ms=1)
    history.abandoned("a", "1")


def test_a_delivery_that_is_over_on_arrival_says_nothing() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=500, now_ms=400)
    history.delivered("a", "2", until_ms=100, now_ms=400)


def test_a_renewed_lock_is_held_for_longer() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.renewing("1")
    history.renewed("1", until_ms=300)
    with pytest.raises(Broken, match="given to another"):
        history.delivered("a", "2", until_ms=400, now_ms=200)


def test_what_is_held_is_not_lost() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.completing("a", "1")
    with pytest.raises(Broken, match="held for 50 ms more, and lost: a"):
        history.refused("1", now_ms=50, name="a")


def test_what_has_expired_or_was_settled_may_be_refused() -> None:
    history = a_history("a", "b")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.renewing("1")
    history.refused("1", now_ms=99)
    history.delivered("b", "2", until_ms=100, now_ms=0)
    history.abandoning("b", "2")
    history.abandoned("b", "2")
    history.completing("b", "2")
    history.refused("2", now_ms=10, name="b")


def test_two_receivers_do_not_hold_one_session() -> None:
    history = a_history()
    history.held("s", "1", until_ms=100, now_ms=0)
    history.renewing("1")
    history.held("other", "2", until_ms=100, now_ms=0)
    history.renewed("1", until_ms=200)
    with pytest.raises(Broken, match="held for 50 ms more, and given to another: s"):
        history.held("s", "3", until_ms=300, now_ms=150)


def test_a_session_may_be_held_by_another_once_its_holder_leaves() -> None:
    history = a_history("a", session="s")
    history.held("s", "1", until_ms=100, now_ms=0)
    history.delivered("a", "a1", until_ms=100, now_ms=0, under="1")
    history.leaving("1")
    history.held("s", "2", until_ms=100, now_ms=50)
    history.left("1")
    history.delivered("a", "a2", until_ms=100, now_ms=50, under="2")


def test_a_message_is_delivered_in_its_own_session() -> None:
    history = a_history("a", session="s")
    history.held("other", "1", until_ms=100, now_ms=0)
    with pytest.raises(Broken, match="of s, and delivered in other: a"):
        history.delivered("a", "a1", until_ms=100, now_ms=0, under="1")


# Crashes.


def test_the_lock_of_a_session_outlives_a_crash() -> None:
    history = a_history()
    history.held("s", "1", until_ms=100, now_ms=0)
    history.killed(now_ms=1)
    assert history.counts["outlived"] == 1
    with pytest.raises(Broken, match="given to another: s"):
        history.held("s", "2", until_ms=200, now_ms=50)


def test_a_lock_may_be_forgotten_in_a_crash() -> None:
    history = a_history("a", "b")
    history.sending(["c"])
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.delivered("b", "2", until_ms=100, now_ms=0)
    history.sent(["c"])  # which was asked before they came
    history.killed(now_ms=1)
    assert history.counts["outlived"] == 0
    history.delivered("a", "3", until_ms=100, now_ms=1)
    history.completing("b", "2")
    history.refused("2", now_ms=1, name="b")


def test_a_lock_outlives_a_crash_if_something_asked_later_was_acknowledged() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.sending(["c"])
    history.sent(["c"])
    history.killed(now_ms=1)
    assert history.counts["outlived"] == 1
    with pytest.raises(Broken, match="given to another"):
        history.delivered("a", "2", until_ms=100, now_ms=1)
    history.completing("a", "1")
    with pytest.raises(Broken, match="and lost: a"):
        history.refused("1", now_ms=50, name="a")


def test_what_is_bound_ends_with_its_receiver() -> None:
    history = a_history("a")
    history.attached("r")
    history.delivered("a", "1", until_ms=100, now_ms=0, under="r")
    with pytest.raises(Broken, match="given to another"):
        history.delivered("a", "2", until_ms=100, now_ms=1)
    history.leaving("r")
    history.delivered("a", "3", until_ms=100, now_ms=1)


def test_what_comes_to_one_who_has_left_says_nothing() -> None:
    history = a_history("a")
    history.attached("r")
    history.leaving("r")
    history.delivered("a", "2", until_ms=100, now_ms=0)
    history.delivered("a", "1", until_ms=100, now_ms=1, under="r")


def test_what_is_bound_ends_with_a_crash_however_durable() -> None:
    history = a_history("a")
    history.attached("r")
    history.delivered("a", "1", until_ms=100, now_ms=0, under="r")
    history.sending(["b"])
    history.sent(["b"])
    history.killed(now_ms=1)
    history.delivered("a", "2", until_ms=100, now_ms=1)


# Tokens.


def test_a_token_is_not_given_twice() -> None:
    history = a_history("a", "b")
    history.delivered("a", "t", until_ms=100, now_ms=0)
    history.killed(now_ms=200)
    with pytest.raises(Broken, match="given twice, for a and b"):
        history.delivered("b", "t", until_ms=300, now_ms=200)


def test_a_token_does_not_settle_twice() -> None:
    history = a_history("a")
    history.delivered("a", "t", until_ms=100, now_ms=0)
    history.abandoning("a", "t")
    history.abandoned("a", "t")
    history.completing("a", "t")
    with pytest.raises(Broken, match="settled, and completed with the same token: a"):
        history.completed("a", "t")


def test_a_delivery_that_is_over_when_it_arrives_may_be_the_older_one() -> None:
    history = a_history("a")
    history.delivered("a", "2", until_ms=400, now_ms=250)
    history.delivered("a", "1", until_ms=200, now_ms=250)
    history.completing("a", "2")
    history.completed("a", "2")


def test_a_delivery_to_a_receiver_that_has_left_may_be_the_older_one() -> None:
    history = a_history("a")
    history.attached("r")
    history.leaving("r")
    history.delivered("a", "2", until_ms=200, now_ms=0)
    history.delivered("a", "1", until_ms=200, now_ms=0, under="r")
    history.completing("a", "2")
    history.completed("a", "2")


def test_a_delivery_that_was_over_and_could_be_renewed_is_the_newer_one() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.delivered("a", "2", until_ms=200, now_ms=198)
    history.renewing("2")
    history.renewed("2", until_ms=400)
    history.completing("a", "1")
    with pytest.raises(Broken, match="given to another"):
        history.completed("a", "1")


def test_an_old_token_does_not_settle_what_is_held_by_another() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.delivered("a", "2", until_ms=200, now_ms=100)
    history.completing("a", "1")
    with pytest.raises(Broken, match="given to another, and completed with the old token: a"):
        history.completed("a", "1")


def test_an_old_token_may_settle_if_the_newer_was_forgotten_in_a_crash() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.abandoning("a", "1")
    history.delivered("a", "2", until_ms=100, now_ms=1)
    history.killed(now_ms=2)
    history.completing("a", "1")
    history.completed("a", "1")


def test_a_token_that_settled_another_message_is_found_by_the_loss_of_that() -> None:
    history = a_history("a", "b")
    history.delivered("a", "t", until_ms=100, now_ms=0)
    history.completing("a", "t")
    history.completed("a", "t")
    with pytest.raises(Broken, match=r"gone, and found: \['a'\]"):
        history.check(live=["a"], dead=[])
    with pytest.raises(Broken, match=r"lost: \['b'\]"):
        history.check(live=[], dead=[])


# Together.


@pytest.mark.parametrize("found", [["a"], ["b", "c"]])
def test_a_move_without_an_answer_has_happened_or_not(found: list[str]) -> None:
    history = a_history("a")
    history.moving("a", "1", ["b", "c"])
    history.check(found, [])


@pytest.mark.parametrize("found", [["a", "b", "c"], ["a", "b"], ["b"], []])
def test_a_move_that_has_happened_in_part_is_found(found: list[str]) -> None:
    history = a_history("a")
    history.moving("a", "1", ["b", "c"])
    with pytest.raises(Broken, match="moved in part"):
        history.check(found, [])


def test_what_a_move_has_made_may_be_received_before_the_move_is_looked_for() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.moving("a", "1", ["b", "c"])
    history.killed(now_ms=10)
    history.delivered("b", "2", until_ms=100, now_ms=20)
    history.completing("b", "2")
    history.completed("b", "2")
    history.check(live=["c"], dead=[])


def test_a_move_of_which_one_part_was_received_and_another_is_not_there_is_found() -> None:
    history = a_history("a")
    history.delivered("a", "1", until_ms=100, now_ms=0)
    history.moving("a", "1", ["b", "c"])
    history.killed(now_ms=10)
    history.delivered("b", "2", until_ms=100, now_ms=20)
    with pytest.raises(Broken, match="moved in part"):
        history.check(live=["b"], dead=[])


def test_a_move_that_was_answered_is_kept() -> None:
    history = a_history("a")
    history.moving("a", "1", ["b"])
    history.moved("a", "1", ["b"])
    history.check(["b"], [])
    with pytest.raises(Broken, match="lost"):
        history.check([], [])


def test_two_may_ask_to_move_a_message_whose_lock_has_expired() -> None:
    """The first was done and not answered, the second was refused: that is no half of a move."""
    history = History()
    history.sending(["a"])
    history.sent(["a"])
    history.delivered("a", "t1", 100, 0)
    history.moving("a", "t1", ["b", "c"])
    history.delivered("a", "t2", 300, 200)
    history.moving("a", "t2", ["d", "e"])
    history.killed(400)
    history.check(["b", "c"], [])


def test_an_answer_vouches_for_no_more_than_what_came_before_it_was_asked() -> None:
    """Two things are asked of a lock at a time, and a newer lock comes between them."""
    history = History()
    history.sending(["a"])
    history.sent(["a"])
    history.delivered("a", "t1", 100, 0)
    history.renewing("t1")
    history.delivered("a", "t2", 300, 200)
    history.completing("a", "t1")
    history.renewed("t1", 500)
    history.killed(400)
    history.check(["a"], [])
    history.renewing("t1")
    history.renewed("t1", 700)
