"""Handing on much, or to many: what takes long where every line is traced."""

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import FANOUT_LIMITED_MAX, HAND_ON_BYTES_MAX, HAND_ON_MAX, SetFanout
from posthouse.core.records import encode
from posthouse.core.rules import Rule, SqlFilter, TrueFilter
from tests.core.sound import held, sound
from tests.core.test_fanout_limited import numbers, take
from tests.core.test_fanout_limited import settle_down as settle_down_limited
from tests.core.test_found import GROWS, copies_written, settle_down
from tests.core.world import World, a_message

pytestmark = pytest.mark.untraced


def test_a_restart_goes_on_with_what_was_sent_to_many() -> None:
    world = World()
    topic = world.topic()
    queues = [world.subscribe(topic, f"s{n}") for n in range(50)]
    world.send(topic, *(f"{n}" for n in range(1_000)))
    world = world.restarted()
    settle_down(world)
    assert {world.counts(each).active for each in queues} == {1_000}
    sound(world)


def test_what_an_action_wrote_is_written_for_many_in_parts() -> None:
    world = World()
    many, first = world.topic("many"), world.topic("first")
    queues = [world.subscribe(many, f"s{n}") for n in range(1_500)]
    world.subscribe(first, "s", Rule("r", TrueFilter(), GROWS), forward_to=many)
    world.send(first, a_message("one", a="xx"))
    settle_down(world)
    assert max(len(encode(record)) for _, record in world.journal) < HAND_ON_BYTES_MAX // 4
    assert {(world.counts(q).active, world.counts(q).dead) for q in queues} == {(1, 0)}
    sound(world)


def test_what_is_forwarded_to_many_is_handed_on_in_parts() -> None:
    world = World()
    last, middle, first = world.topic("last"), world.topic("middle"), world.topic("first")
    ends = [world.subscribe(last, f"s{n}") for n in range(40)]
    for n in range(40):
        world.subscribe(middle, f"s{n}", forward_to=last)
        world.subscribe(first, f"s{n}", forward_to=middle)
    since = len(world.journal)
    world.send(first, "one")
    settle_down(world)
    assert max(copies_written(world, since)) <= HAND_ON_MAX + 40
    assert {world.counts(each).active for each in ends} == {1_600}
    sound(world)


def test_slow_rules_are_not_asked_over_and_over() -> None:
    world = World()
    topic = world.topic()
    slow = SqlFilter(" OR ".join(["a LIKE @p"] * 5), {"p": "%" + "_a" * 400 + "%"})
    for n in range(10):
        world.subscribe(topic, f"s{n}", Rule("r", slow))
    other = world.subscribe(topic, "other")
    world.send(topic, *(a_message(each, a="") for each in numbers(FANOUT_LIMITED_MAX)))
    world.do(SetFanout("limited"))
    world.send(topic, a_message("slow", a="b" * 16_000))
    settle_down_limited(world)
    assert next_deadline_ms(world.state) is None
    assert take(world, other) == numbers(FANOUT_LIMITED_MAX)
    assert held(world, other) == ["slow"]
