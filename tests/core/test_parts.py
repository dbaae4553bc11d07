"""A topic hands a message on in parts where all its subscriptions are too many for one command."""

from typing import Any

import pytest

from posthouse.core import evolve, next_deadline_ms, plan, publishing
from posthouse.core.commands import (
    FANOUT_LIMITED_MAX,
    RULE_PATTERNS_MAX,
    RULES_EFFORT_MAX,
    RULES_SQL_MAX,
    CreateSubscription,
    SetFanout,
    SetRule,
)
from posthouse.core.errors import InvalidArgument, QuotaExceeded
from posthouse.core.filters import view as views
from posthouse.core.fit_record import fit_record
from posthouse.core.message import ACTIVE
from posthouse.core.model import State, dead_letter_queue, subscription_queue
from posthouse.core.records import Routed, RuleSet, head
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from tests.core.sound import held, sound
from tests.core.test_found import settle_down
from tests.core.world import World, a_message

MANY = 1_000
SLOW = Rule("r", SqlFilter("a LIKE @p", {"p": "%" + "_a" * 200 + "b%"}))


def parts(world: World) -> list[Routed]:
    records = [record for _, record in world.journal]
    return [each for each in records if isinstance(each, Routed)]


def many(world: World, topic: str, **properties: Any) -> list[str]:
    """Subscriptions with a limit of their own, so that each copy is planned."""
    return [world.subscribe(topic, f"s{n}", max_messages=99, **properties) for n in range(MANY)]


def test_each_subscription_gets_one_copy_of_a_message_that_goes_on_in_parts() -> None:
    world = World()
    topic = world.topic()
    queues = many(world, topic)
    world.send(topic, "one")
    assert world.counts(topic).active == 1
    assert 0 < sum(world.counts(each).active for each in queues) < MANY
    settle_down(world)
    assert [held(world, each) for each in queues] == [["one"]] * MANY
    assert world.counts(topic).active == 0
    sound(world)


def test_what_was_handed_on_in_part_goes_on_there_after_a_restart() -> None:
    world = World()
    topic = world.topic()
    queues = many(world, topic)
    world.send(topic, "one", "two")
    sound(world)  # a snapshot and a replay know how far it has come
    world = world.restarted()
    settle_down(world)
    assert [held(world, each) for each in queues] == [["one", "two"]] * MANY
    sound(world)


def test_a_subscription_that_comes_meanwhile_gets_what_is_still_in_the_topic() -> None:
    world = World()
    topic = world.topic()
    many(world, topic)
    world.send(topic, "one")
    late = world.subscribe(topic, "late", max_messages=99)
    settle_down(world)
    assert held(world, late) == ["one"]


def test_all_that_take_everything_as_it_comes_get_it_at_once_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (plan, publishing):
        monkeypatch.setattr(module, "HAND_ON_MAX", 50)
    world = World()
    topic = world.topic()
    queues = [world.subscribe(topic, f"s{n}") for n in range(60)]
    world.send(topic, "one")
    settle_down(world, 100)
    assert [held(world, each) for each in queues] == [["one"]] * 60
    sound(world)


def test_rules_that_take_long_are_asked_a_few_at_a_time() -> None:
    world = World()
    topic = world.topic()
    slow = [world.subscribe(topic, f"s{n}", SLOW) for n in range(30)]
    some = world.subscribe(topic, "some", Rule("r", SqlFilter("a LIKE 'a%'")))
    world.send(topic, a_message("one", a="a" * 16_000))
    assert world.state.dispatch_pending
    settle_down(world, 100)
    assert held(world, some) == ["one"]
    assert [held(world, each) for each in slow] == [[]] * 30  # they did not fit, nor take too long
    assert [held(world, dead_letter_queue(each)) for each in slow] == [[]] * 30
    assert any(each.partly for each in parts(world))
    sound(world)


def test_more_rules_than_one_command_can_ask_are_asked_in_parts() -> None:
    world = World()
    topic = world.topic()
    long = " OR ".join(["a = 1"] * 110)
    queues = [world.subscribe(topic, f"s{n}", Rule("r", SqlFilter(long))) for n in range(180)]
    for body in ("one", "two"):  # the second time they are compiled
        world.send(topic, a_message(body, a=1))
        settle_down(world, 500)
    assert [held(world, each) for each in queues] == [["one", "two"]] * 180
    sound(world)


def test_rules_are_compiled_a_few_at_a_time() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "s", Rule("none", FalseFilter()))
    for n in range(100):
        text = " OR ".join([f"a{n} = 1"] * 40)
        world.do(SetRule(queue, Rule(f"r{n}", SqlFilter(text))))
    world = world.restarted()
    world.send(topic, a_message("one", a99=1), a_message("two"))
    assert world.state.dispatch_pending
    settle_down(world, 200)
    assert held(world, queue) == ["one"]
    world.send(topic, a_message("three", a5=1))
    assert not world.state.dispatch_pending
    assert held(world, queue) == ["one", "three"]
    sound(world)


def test_while_copies_are_to_be_few_it_waits_where_one_has_many() -> None:
    world = World()
    topic = world.topic()
    first, *_, last = [world.subscribe(topic, f"s{n}", SLOW) for n in range(30)]
    full = world.subscribe(topic, "full", Rule("r", SqlFilter("a LIKE 'a%'")))
    behind = world.subscribe(topic, "behind", Rule("r", SqlFilter("a LIKE 'a%'")))
    world.send(topic, *(a_message(str(n), a="a") for n in range(FANOUT_LIMITED_MAX)))
    world.do(SetFanout("limited"))
    world.send(topic, a_message("one", a="a" * 16_000))
    for _ in range(100):
        if next_deadline_ms(world.state) is None:
            break
        world.tick()
    assert next_deadline_ms(world.state) is None
    assert world.counts(topic).active == 1
    assert world.counts(behind).active == FANOUT_LIMITED_MAX
    world.do(SetFanout("open"))
    settle_down(world, 100)
    assert [world.counts(each).active for each in (first, last, full, behind)] == [
        0, 0, FANOUT_LIMITED_MAX + 1, FANOUT_LIMITED_MAX + 1,
    ]  # fmt: skip
    sound(world)


def test_while_copies_are_to_be_few_those_before_the_full_one_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "LOOKS_MAX", 10_000)
    world = World()
    topic = world.topic()
    starts = Rule("r", SqlFilter("a LIKE 'a%'"))
    first, full = world.subscribe(topic, "first", starts), world.subscribe(topic, "full", starts)
    slow = world.subscribe(topic, "slow", SLOW)
    world.send(topic, *(a_message(str(n), a="a") for n in range(FANOUT_LIMITED_MAX)))
    settle_down(world)
    world.receive(first, FANOUT_LIMITED_MAX, delete=True)
    world.receive(dead_letter_queue(slow), FANOUT_LIMITED_MAX, delete=True)
    world.do(SetFanout("limited"))
    world.send(topic, a_message("one", a="a" * 16_000))
    for _ in range(10):
        world.tick()
    assert next_deadline_ms(world.state) is None
    assert held(world, first) == ["one"]
    assert world.counts(full).active == FANOUT_LIMITED_MAX
    world.receive(full, delete=True)
    for _ in range(5):
        world.tick()
    assert world.counts(full).active == FANOUT_LIMITED_MAX
    assert held(world, dead_letter_queue(slow)) == ["one"]
    sound(world)


def test_a_subscription_whose_rules_take_too_long_has_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "LOOKS_MAX", 100_000)
    world = World()
    topic = world.topic()
    slow = world.subscribe(topic, "slow", SLOW)
    several = world.subscribe(topic, "several", SLOW, Rule("f", FalseFilter()))
    patterns = ".".join(["#", "a"] * 30)
    named = world.subscribe(topic, "named", Rule("p", PatternFilter(patterns)))
    other = world.subscribe(topic, "other")
    world.send(topic, a_message("one", a="a" * 16_000, subject=".".join("a" * 200)))
    settle_down(world, 100)
    assert held(world, other) == ["one"]
    for queue in (slow, several, named):
        assert held(world, dead_letter_queue(queue)) == ["one"]
        assert held(world, queue) == []
    sound(world)


def test_rules_that_take_too_long_together_are_refused() -> None:
    world = World()
    queue = world.subscribe(world.topic(), "s", Rule("none", FalseFilter()))
    wide = CorrelationFilter({}, {f"k{n}": n for n in range(5_000)})
    for n in range(7):
        world.do(SetRule(queue, Rule(f"r{n}", wide)))
    with pytest.raises(QuotaExceeded, match=str(RULES_EFFORT_MAX)):
        world.do(SetRule(queue, Rule("more", wide)))
    wide_rule = Rule("r1", CorrelationFilter({}, {f"k{n}": n for n in range(5_001)}))
    world.do(SetRule(queue, wide_rule, new=False))  # in place of another


def test_a_subscription_is_not_created_with_too_much_sql() -> None:
    world = World()
    topic = world.topic()
    rules = [Rule(f"r{n}", SqlFilter("a = 1"), "SET b = 1") for n in range(RULES_SQL_MAX // 46)]
    world.subscribe(topic, "s", *rules)
    with pytest.raises(InvalidArgument, match="one by one"):
        world.subscribe(topic, "t", *rules, Rule("one more", SqlFilter("a = 1")))


def test_the_patterns_of_a_rule_have_a_limit_that_older_journals_do_not_know() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "s", Rule("none", FalseFilter()))
    long = SqlFilter(" OR ".join(["a LIKE @p"] * 5), {"p": "a%" + "b" * 900})
    assert RULE_PATTERNS_MAX < 5 * 902
    with pytest.raises(InvalidArgument, match=str(RULE_PATTERNS_MAX)):
        world.do(SetRule(queue, Rule("r", long)))
    old = RuleSet(queue, 1_000, Rule("r", long, "SET b = 1"))
    evolve(world.state, old, world.position)
    world.position += 1
    world.send(topic, a_message("one", a="a" + "b" * 900))
    assert held(world, queue) == ["one"]


def test_a_damaged_journal_keeps_how_far_a_message_has_come() -> None:
    world = World()
    topic = world.topic()
    queues = many(world, topic)
    world.send(topic, "one")
    [routed] = parts(world)
    state = State("test")
    before = [each for each in world.journal if each[1] is not routed]
    for position, record in before:
        evolve(state, record, position)
    for fitted in fit_record(state, routed):
        assert isinstance(fitted, Routed)
        evolve(state, fitted, 0)
    assert state.queues[topic].messages[1].lock == routed.partly[1]
    assert sum(state.queues[each].counts[0] for each in queues) == len(routed.copies)
    shorter = head(routed, 3)
    assert isinstance(shorter, Routed)
    assert not shorter.partly


def test_what_the_rules_of_one_subscription_note_with_its_copies_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (plan, publishing):
        monkeypatch.setattr(module, "HAND_ON_BYTES_MAX", 1_000)
    world = World()
    topic = world.topic()
    rules = [Rule(f"r{n}", TrueFilter(), f"SET x = '{'x' * 400}'") for n in range(4)]
    queue = world.subscribe(topic, "s", *rules)
    world.send(topic, "one")
    settle_down(world)
    counts = world.counts(queue)
    assert (counts.active, counts.dead) == (2, 2)
    sound(world)


def test_a_subscription_is_created_with_rules_of_every_kind() -> None:
    world = World()
    topic = world.topic()
    name = subscription_queue(topic, "s")
    rules = [Rule("a", TrueFilter()), Rule("b", PatternFilter("x.*"))]
    world.do(CreateSubscription(name, rules=rules))
    world.send(topic, a_message("one", subject="x.y"))
    assert held(world, name) == ["one"]


def test_messages_that_are_too_much_for_one_command_wait_for_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (plan, publishing):
        monkeypatch.setattr(module, "HAND_ON_MAX", 3)
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "all", Rule("red", SqlFilter("colour = 'red'")))
    world.send(topic, *(a_message(f"{n}", colour="red") for n in range(6)))
    assert 0 < world.state.queues[queue].counts[ACTIVE] < 6
    while world.state.queues[topic].counts[ACTIVE]:
        world.tick()
    assert world.state.queues[queue].counts[ACTIVE] == 6
