"""How relays divide the lanes: the rule, without a database."""

from hypothesis import given
from hypothesis import strategies as st

from posthouse.bridge.lanes import Lane, divide
from posthouse.bridge.outbox import lane_of

names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


def after(lanes: list[Lane], me: str, relays: list[str], in_flight: frozenset[int]) -> list[Lane]:
    """The lanes when a relay has done what the rule says."""
    division = divide(lanes, me, relays, in_flight)
    changed = []
    for lane in lanes:
        if lane.number in division.keep:
            lane = Lane(lane.number, me, lane.token, is_over=False)
        elif lane.number in division.take:
            lane = Lane(lane.number, me, lane.token + 1, is_over=False)
        elif lane.number in division.release:
            lane = Lane(lane.number, "", lane.token, is_over=True)
        changed.append(lane)
    return changed


@given(names, st.integers(1, 40), st.data())
def test_relays_come_to_equal_shares_from_any_beginning(
    relays: list[str], count: int, data: st.DataObject
) -> None:
    owners = st.sampled_from(["", "dead", *relays])
    lanes = []
    for number in range(count):
        owner = data.draw(owners)
        lanes.append(Lane(number, owner, 0, is_over=owner in ("", "dead")))
    for _ in range(3):
        for relay in relays:
            lanes = after(lanes, relay, relays, frozenset())
    shares = [sum(lane.owner == relay for lane in lanes) for relay in relays]
    assert sum(shares) == count, "every lane is somebody's"
    assert max(shares) - min(shares) <= 1


@given(names, st.integers(1, 20), st.data())
def test_a_relay_never_takes_what_another_holds(
    relays: list[str], count: int, data: st.DataObject
) -> None:
    lanes = [
        Lane(number, data.draw(st.sampled_from(["", *relays])), 3, data.draw(st.booleans()))
        for number in range(count)
    ]
    me = relays[0]
    for before, lane in zip(lanes, after(lanes, me, relays, frozenset()), strict=True):
        if lane.owner == me and before.owner != me:
            assert before.is_over
            assert lane.token == before.token + 1
        elif lane.owner != "":
            assert lane == before or (lane.owner == before.owner == me)


def test_a_lane_is_not_given_back_while_its_events_are_in_flight() -> None:
    lanes = [Lane(number, "a", 1, is_over=False) for number in range(4)]
    division = divide(lanes, "a", ["b"], in_flight={3})
    assert division.release == {2}
    assert division.leave == {3}
    assert division.keep == {0, 1, 3}


def test_a_relay_keeps_a_lane_that_nobody_took_after_its_lease() -> None:
    division = divide([Lane(0, "a", 7, is_over=True)], "a", [], in_flight=())
    assert division.keep == {0}
    assert not division.take


def test_a_key_has_one_lane_and_events_without_a_key_are_spread() -> None:
    assert lane_of("order 1", "x", 16) == lane_of("order 1", "y", 16)
    assert len({lane_of("", str(number), 16) for number in range(500)}) == 16
    assert lane_of("order 1", "x", 16) == 2, "the same in every process, and in every version"
