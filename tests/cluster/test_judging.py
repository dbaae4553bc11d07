"""What is judged of the clients of a cluster: nothing that is right is found, and all that is not.

Words are those of `azure_client.py`.
"""

import pytest

from tests.cluster.azure import PROPERTIES, Judge
from tests.crash.history import Broken

LOCK_MS = PROPERTIES["lock_ms"]
A, B = "azure-000001", "azure-000002"
NAMES = {"a": A, "b": B}


def judge(*said: str) -> Judge:
    """One that has heard these, a word and what goes with it each. Locks are of 60 seconds."""
    made = Judge()
    for name in (A, B):
        made.hear(["sending", name])
        made.hear(["sent", name])
    for each in said:
        hear(made, each)
    return made


def hear(made: Judge, said: str) -> None:
    """`MESSAGE to LINK at MS` is a delivery, whose token is `MESSAGE MS`."""
    match said.split():
        case [name, "to", link, "at", ms]:
            made.hear(["delivered", NAMES[name], f"{name} {ms}", link, int(ms) + LOCK_MS])
        case ["completing", name, token, "at", ms]:
            made.hear(["completing", NAMES[name], f"{name} {token}", int(ms)])
        case ["completed", name, token, *links]:
            made.hear(["completed", NAMES[name], f"{name} {token}", "".join(links)])
        case ["lost", name, token, requests]:
            made.hear(["lost", NAMES[name], f"{name} {token}", int(requests)])
        case words:
            raise ValueError(words)


# A completion whose answer was lost.


@pytest.mark.parametrize("live", [[A, B], [B]])
def test_a_completion_that_was_asked_twice_may_have_been_done_the_first_time(
    live: list[str],
) -> None:
    made = judge("a to x at 0", "completing a 0 at 10", "lost a 0 2")
    made.check(live, [])


@pytest.mark.parametrize("requests", [0, 1])
def test_a_message_whose_only_completion_was_refused_is_there(requests: int) -> None:
    said = "a to x at 0", "completing a 0 at 10", f"lost a 0 {requests}"
    judge(*said).check([A, B], [])
    with pytest.raises(Broken, match=f"acknowledged, and lost: .*{A}.*'lost'"):
        judge(*said).check([B], [])


def test_a_message_that_a_doubtful_completion_has_left_there_is_not_lost_later() -> None:
    made = judge("a to x at 0", "completing a 0 at 10", "lost a 0 2")
    made.check([A, B], [])
    with pytest.raises(Broken, match="acknowledged, and lost"):
        made.check([B], [])


def test_what_was_completed_is_neither_found_nor_delivered_again() -> None:
    made = judge("a to x at 0", "completing a 0 at 10", "completed a 0 x")
    with pytest.raises(Broken, match="gone, and found"):
        made.check([A, B], [])
    with pytest.raises(Broken, match="completed, and delivered"):
        hear(made, "a to y at 5000")


# Two holders.

VOUCHED_FOR = "a to x at 0", "b to x at 1", "completing b 1 at 20", "completed b 1 x"


def test_a_lock_that_is_vouched_for_is_held_by_one() -> None:
    made = judge(*VOUCHED_FOR)
    assert made.counts["lock vouched for"] == 2
    with pytest.raises(Broken, match=f"over x since 5000 ms, and given to another over y: {A}"):
        hear(made, "a to y at 5000")


def test_another_may_be_given_a_message_before_the_first_lock_is_vouched_for() -> None:
    made = judge("a to x at 0", "b to x at 1", "completing b 1 at 20", "a to y at 5000")
    with pytest.raises(Broken, match="given to another over y"):
        hear(made, "completed b 1 x")


def test_a_lock_for_which_nothing_vouches_may_be_a_deposed_leaders() -> None:
    made = judge("a to x at 0", "a to y at 5000", "completing a 0 at 6000", "lost a 0 1")
    # Neither does what was asked before it came, over another link, or over several.
    for said in (
        ("b to x at 1", "completing b 1 at 20", "a to x at 30", "completed b 1 x"),
        ("a to x at 0", "b to z at 1", "completing b 1 at 20", "completed b 1 z"),
        ("a to x at 0", "b to x at 1", "completing b 1 at 20", "completed b 1"),
    ):
        made = judge(*said)
        hear(made, "a to y at 5000")


def test_a_deposed_leader_delivers_for_half_a_second() -> None:
    hear(judge(*VOUCHED_FOR), "a to y at 500")
    with pytest.raises(Broken, match="given to another"):
        hear(judge(*VOUCHED_FOR), "a to y at 800")


def test_a_delivery_that_was_given_before_and_comes_late_is_not_a_second_holder() -> None:
    made = judge("a to x at 9000", "b to x at 9001", "completing b 9001 at 9020")
    hear(made, "completed b 9001 x")
    hear(made, "a to y at 2000")


def test_a_message_may_be_given_to_another_when_its_lock_is_over_or_its_holder_settles() -> None:
    made = judge(*VOUCHED_FOR)
    hear(made, f"a to y at {LOCK_MS}")
    made = judge(*VOUCHED_FOR, "completing a 0 at 3000")
    hear(made, "a to y at 3000")


def test_a_lock_that_is_vouched_for_is_not_lost() -> None:
    made = judge(*VOUCHED_FOR, "completing a 0 at 3000")
    with pytest.raises(Broken, match=f"held for 57000 ms more, and lost: {A}"):
        hear(made, "lost a 0 1")
    hear(judge(*VOUCHED_FOR, "completing a 0 at 3000"), "lost a 0 2")
    hear(judge(*VOUCHED_FOR, f"completing a 0 at {LOCK_MS}"), "lost a 0 0")
    hear(judge("a to x at 0", "completing a 0 at 3000"), "lost a 0 1")
