"""When a node that follows is to try to lead."""

from math import inf

import pytest

from posthouse.broker.standby import (
    ALIVE_SECONDS,
    ASK_SECONDS,
    BEHIND_FRAMES_MAX,
    CANDIDATE_SECONDS,
    PATIENCE_SECONDS,
    RANK_SECONDS,
    Beat,
    Hello,
    Role,
    Standby,
)


def a_beat(node: str = "a", role: Role = "leader", epoch: int = 1, to: str = "") -> Beat:
    return Beat(node, f"sb://{node}", role, epoch, 10, 100, 1_000, to)


def a_hello(
    node: str,
    number: int = 10,
    heard_ms: int | None = None,
    prefer: int = 0,
    trouble: str = "",
    free_bytes: int = 0,
) -> Hello:
    return Hello(
        node, f"sb://{node}", number, number, "1", 1_000, prefer, heard_ms, None, free_bytes, 1,
        trouble,
    )  # fmt: skip


def test_while_the_leader_is_heard_nobody_tries() -> None:
    standby = Standby("b", now=0)
    for tenth in range(50):
        standby.hear_beat(a_beat(), tenth / 10)
        assert standby.step(10, tenth / 10) == "wait"
    assert standby.leader == a_beat()
    assert standby.epoch == 1
    assert standby.heard_ms(5.0) == 100


def test_after_silence_the_others_are_asked_and_then_it_leads() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    assert standby.step(10, 0.99) == "wait"
    assert standby.step(10, 1.0) == "ask"
    assert standby.step(10, 1.0 + ASK_SECONDS / 2) == "wait"
    assert standby.step(10, 1.0 + ASK_SECONDS) == "lead"


def test_one_that_others_still_hear_is_left_alone_for_a_while() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    standby.hear_hello(a_hello("c", number=1, heard_ms=100), 0.5)
    assert standby.step(10, 1.0) == "ask"  # what was said before does not count
    standby.hear_hello(a_hello("c", number=1, heard_ms=100), 1.05)
    assert standby.step(10, 1.2) == "wait"
    standby.hear_hello(a_hello("c", number=1, heard_ms=1_300), 1.3)
    assert standby.step(10, 1.4) == "lead"
    standby.hear_hello(a_hello("c", number=1, heard_ms=100), 1.5)
    assert standby.step(10, 1.5) == "wait"
    assert standby.step(10, 1.0 + PATIENCE_SECONDS) == "lead"


def test_who_has_most_tries_first_then_who_is_preferred_then_by_name() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    standby.hear_hello(a_hello("c", number=11), 0.9)
    assert standby.step(10, 1.0) == "wait"
    assert standby.step(10, 1.01 + RANK_SECONDS) == "ask"
    equal = Standby("b", now=0)
    equal.hear_hello(a_hello("c", number=10), 0.9)
    assert equal.step(10, 1.0) == "ask"  # by name
    preferred = Standby("b", now=0)
    preferred.hear_hello(a_hello("c", number=10, prefer=-1), 0.9)
    assert preferred.step(10, 1.0) == "wait"


def test_a_node_that_says_nothing_any_more_is_not_waited_for() -> None:
    standby = Standby("b", now=0)
    standby.hear_hello(a_hello("a", number=99), 0)
    standby.hear_beat(a_beat("c"), ALIVE_SECONDS)
    assert standby.nodes(1.0) == [a_hello("a", number=99)]
    assert standby.nodes(ALIVE_SECONDS) == []
    assert standby.step(10, ALIVE_SECONDS + 1.0) == "ask"
    standby.hear_hello(a_hello("a"), ALIVE_SECONDS + 1)
    assert standby.forget("a")
    assert standby.nodes(ALIVE_SECONDS + 1) == []
    assert not standby.forget("a")


def test_who_is_named_by_a_leader_that_leaves_leads_at_once() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(role="leaving", to="b"), 1.0)
    assert standby.step(10, 1.0) == "lead"
    other = Standby("c", now=0)
    other.hear_beat(a_beat(role="leaving", to="b"), 1.0)
    assert other.step(10, 1.0) == "wait"


def test_a_candidate_is_waited_for_and_is_not_the_leader() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    standby.hear_beat(a_beat("c", role="candidate", epoch=2), 1.0)
    assert standby.step(10, 1.9) == "wait"
    assert standby.leader == a_beat()


def waited_for(standby: Standby, node: str, begin: float) -> float:
    """How long a node waits for a candidate that is heard ten times a second, and never leads."""
    for tenth in range(1, 1_000):
        now = begin + tenth / 10
        if standby.step(10, now) == "ask":
            return now - begin
        standby.hear_beat(a_beat(node, role="candidate", epoch=2), now)
    return inf


def test_a_candidate_that_is_heard_and_never_leads_is_waited_for_no_longer() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    failover = 1.0
    assert waited_for(standby, "c", 0) == pytest.approx(CANDIDATE_SECONDS + failover, abs=0.3)
    assert standby.step(10, 13.5) == "lead"
    # Another one has a turn of its own; so has the first when it begins anew, or somebody has led.
    assert waited_for(standby, "a", 14) == pytest.approx(CANDIDATE_SECONDS + failover, abs=0.3)
    later = 30.0
    standby.hear_beat(a_beat("c", role="candidate", epoch=2), later)
    assert waited_for(standby, "c", later) == pytest.approx(CANDIDATE_SECONDS + failover, abs=0.3)
    later = 43.5
    standby.hear_beat(a_beat("a", epoch=2), later)
    assert waited_for(standby, "c", later) == pytest.approx(CANDIDATE_SECONDS + failover, abs=0.3)


def test_an_older_leader_and_oneself_are_not_listened_to() -> None:
    standby = Standby("b", now=0)
    assert standby.heard_ms(1) is None
    standby.hear_beat(a_beat(epoch=5), 0)
    standby.hear_beat(a_beat("c", epoch=4), 1.0)
    standby.hear_beat(a_beat("b", epoch=6), 1.0)
    standby.hear_hello(a_hello("b"), 1.0)
    assert standby.leader == a_beat(epoch=5)
    assert standby.nodes(1.0) == []
    assert standby.step(10, 1.0) == "ask"


def test_a_node_in_trouble_leads_only_if_no_other_can() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    standby.hear_hello(a_hello("c", number=1), 0.9)
    assert standby.step(10, 1.0, is_candidate=False) == "wait"
    assert standby.step(10, 1.0) == "ask"
    alone = Standby("b", now=0)
    alone.hear_hello(a_hello("c", trouble="its clock is 90 seconds off"), 0.9)
    assert alone.step(10, 1.0, is_candidate=False) == "ask"
    assert alone.step(10, 1.0 + ASK_SECONDS, is_candidate=False) == "lead"


def test_a_node_in_trouble_is_not_waited_for() -> None:
    standby = Standby("b", now=0)
    standby.hear_beat(a_beat(), 0)
    standby.hear_hello(a_hello("c", number=99, trouble="its disk is full"), 0.9)
    assert standby.step(10, 1.0) == "ask"


def test_while_an_operator_holds_the_cluster_nobody_else_leads() -> None:
    standby = Standby("b", now=0)
    held = Beat("a", "sb://a", "leader", 1, 10, 100, 1_000, held_ms=60_000)
    standby.hear_beat(held, 0)
    assert standby.step(10, 59.0) == "wait"
    assert standby.held_seconds(59.0) == 1.0
    assert standby.step(10, 60.0) == "ask"
    standby.hear_beat(held, 60.0)
    standby.release()
    assert standby.held_seconds(60.0) == 0
    assert standby.step(10, 61.0) == "ask"
    standby.hear_beat(held, 62.0)
    standby.hear_beat(a_beat(), 63.0)  # the leader has released it
    assert standby.step(10, 64.0) == "ask"


def test_the_node_that_has_most_takes_over_then_by_preference_and_name() -> None:
    leader = Standby("a", now=0)
    assert leader.successor(10, 0) == ""
    leader.hear_hello(a_hello("d", number=9), 0)
    assert leader.successor(10, 0) == "d"
    leader.hear_hello(a_hello("c", number=10), 0)
    leader.hear_hello(a_hello("b", number=10), 0)
    assert leader.successor(10, 0) == "b"
    leader.hear_hello(a_hello("c", number=10, prefer=-1, free_bytes=5), 0)
    assert leader.successor(10, 0) == "c"
    leader.hear_hello(a_hello("d", number=9, free_bytes=7), 0)
    assert leader.successor(10, 0, room_bytes=6) == "d"
    assert leader.successor(10, ALIVE_SECONDS) == ""


def test_a_node_that_cannot_take_over_is_refused_with_the_reason() -> None:
    leader = Standby("a", now=0)
    leader.hear_hello(a_hello("b", number=10), 0)
    leader.hear_hello(a_hello("c", trouble="its disk is full"), 0)
    number = 11 + BEHIND_FRAMES_MAX
    assert leader.unfit("b", number - 1, 0) == ""
    assert leader.unfit("b", number, 0) == f"node b is {BEHIND_FRAMES_MAX + 1} frames behind"
    assert leader.unfit("c", 10, 0) == "node c cannot lead: its disk is full"
    assert leader.unfit("d", 10, 0) == "node d is not there"
    assert leader.unfit("b", 10, ALIVE_SECONDS) == "node b is not there"
    assert leader.successor(number, 0) == ""
