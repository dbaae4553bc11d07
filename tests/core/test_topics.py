"""Topics: what is published goes to the subscriptions whose rules want it."""

from typing import Any

import pytest

from posthouse.core import evolve, subscriptions
from posthouse.core.commands import (
    Complete,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    DeleteQueue,
    Enqueued,
    GetQueue,
    ListQueues,
    ListRules,
    ListSubscriptions,
    QueueInfo,
    RemoveRule,
    Resubmit,
    Send,
    SetRule,
    UpdateQueue,
)
from posthouse.core.errors import (
    AlreadyExists,
    Disabled,
    Duplicate,
    InvalidArgument,
    NotAllowed,
    NotFound,
    QuotaExceeded,
)
from posthouse.core.message import ACTIVE, Message, Note, Properties, decode_envelope, noted_bytes
from posthouse.core.model import QueueProperties, dead_letter_queue, find
from posthouse.core.records import Routed, Sent
from posthouse.core.rules import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from tests.core.sound import held, notes, sound
from tests.core.world import World, a_message, bodies


def sql(expression: str, action: str = "", name: str = "rule") -> Rule:
    return Rule(name, SqlFilter(expression), action)


# Publishing.


def test_every_subscription_gets_a_copy_of_its_own() -> None:
    world = World()
    topic = world.topic()
    first, second = world.subscribe(topic, "a"), world.subscribe(topic, "b")
    assert list(world.send(topic, "one", "two")) == [1, 2]
    [delivery, _] = world.receive(first, 2)
    world.do(Complete(first, [delivery.token]))
    assert held(world, first) == ["two"]
    assert held(world, second) == ["one", "two"]
    assert world.counts(topic).active == 0
    sound(world)


def test_a_rule_that_stays_is_not_compiled_again() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "s", sql("a = 1", name="first"), sql("a = 2", name="second"))
    world.send(topic, a_message("one", a=1))
    compiled: Any = world.state.queues[queue].router
    [first, _] = compiled.ready
    world.do(SetRule(queue, sql("a = 3", name="second"), new=False))
    world.send(topic, a_message("two", a=2), a_message("three", a=3))
    again: Any = world.state.queues[queue].router
    assert again.ready[0] is first
    assert held(world, queue) == ["one", "three"]


def test_a_body_is_written_once_whoever_gets_it() -> None:
    world = World()
    topic = world.topic()
    queues = [world.subscribe(topic, f"s{n}") for n in range(10)]
    world.send(topic, "the one body")
    written = [record for _, record in world.journal if isinstance(record, Sent)]
    assert [len(record.messages) for record in written] == [1]
    [(position, routed)] = [(at, r) for at, r in world.journal if isinstance(r, Routed)]
    assert [each.queue for each in routed.every()] == queues
    positions = {m.position for q in queues for m in world.state.queues[q].messages.walk(0)}
    assert len(positions) == 1
    assert positions.pop() == position - 1


def test_what_nobody_wants_is_gone() -> None:
    world = World()
    topic = world.topic()
    world.send(topic, "nobody is there")
    queue = world.subscribe(topic, "a", default=False)
    world.send(topic, "nobody wants it")
    assert (held(world, topic), held(world, queue)) == ([], [])
    sound(world)


def test_a_waiting_receiver_gets_its_copy_at_once() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    receiver = world.attach(queue, credit=1)
    world.send(topic, "now")
    assert [each.receiver for each in world.deliveries] == [receiver]
    assert bodies(world.deliveries) == ["now"]
    sound(world)


def test_a_scheduled_message_is_published_when_it_is_due() -> None:
    world = World()
    topic = world.topic()
    before = world.subscribe(topic, "before")
    world.send(topic, a_message("later", due_ms=5_000))
    after = world.subscribe(topic, "after")
    assert world.counts(topic).scheduled == 1
    world.advance(4_000)
    assert (held(world, before), held(world, after)) == (["later"], ["later"])
    assert world.counts(topic).scheduled == 0
    sound(world)


def test_the_smallest_time_to_live_wins() -> None:
    world = World()
    topic = world.topic(ttl_ms=5_000)
    long, short = world.subscribe(topic, "long"), world.subscribe(topic, "short", ttl_ms=1_000)
    world.send(topic, a_message("three", ttl_ms=3_000), "five")
    lives = {
        queue: [m.expires_ms - world.now_ms for m in world.state.queues[queue].messages.walk(0)]
        for queue in (long, short)
    }
    assert lives == {long: [3_000, 5_000], short: [1_000, 1_000]}
    world.advance(3_000)
    assert (held(world, long), held(world, short)) == (["five"], [])
    sound(world)


def test_duplicates_are_found_before_rules_are_asked() -> None:
    world = World()
    topic = world.topic(duplicate_detection=True)
    queue = world.subscribe(topic, "a")
    world.send(topic, a_message("first", id="m"))
    answer = world.do(Send(topic, [a_message("again", id="m")])).answer
    assert answer == Enqueued([1], 1, first_ids={0: "m"})
    with pytest.raises(Duplicate):
        world.do(Send(topic, [a_message("again", id="m")], refuse_duplicates=True))
    assert held(world, queue) == ["first"]
    sound(world)


def test_sessions_are_of_a_subscription() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", grouping="session")
    world.send(topic, a_message("in", group="s"), "out")
    granted = world.hold(queue, "s")
    assert bodies(world.receive(queue, 5, session=granted.token)) == ["in"]
    [note] = notes(world, dead_letter_queue(queue))
    assert note is not None
    assert note.reason == "Session id is null."
    sound(world)


def test_a_subscription_that_is_disabled_gets_nothing() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", status="disabled")
    paused = world.subscribe(topic, "b", status="receive-disabled")
    world.send(topic, "news")
    assert (held(world, queue), held(world, paused)) == ([], ["news"])


def test_a_topic_that_is_disabled_takes_nothing() -> None:
    world = World()
    topic = world.topic(status="send-disabled")
    with pytest.raises(Disabled):
        world.send(topic, "news")


def test_a_full_topic_refuses() -> None:
    world = World()
    topic = world.topic(max_messages=3)
    world.subscribe(topic, "a")
    world.subscribe(topic, "b")
    world.send(topic, "one")
    world.send(topic, "two")  # three is the most, and two were used
    with pytest.raises(QuotaExceeded):
        world.send(topic, "three")
    sound(world)


def test_a_full_subscription_refuses_for_all() -> None:
    world = World()
    topic = world.topic()
    full, other = world.subscribe(topic, "full", max_messages=1), world.subscribe(topic, "other")
    world.send(topic, "one")
    with pytest.raises(QuotaExceeded):
        world.send(topic, "two")
    assert (held(world, full), held(world, other)) == (["one"], ["one"])
    sound(world)


def test_what_falls_due_for_a_full_subscription_is_dead_lettered() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_messages=1)
    world.send(topic, "one", a_message("later", due_ms=5_000))
    world.advance(5_000)
    assert held(world, queue) == ["one"]
    [note] = notes(world, dead_letter_queue(queue))
    assert note is not None
    assert note.reason == "QuotaExceeded"
    sound(world)


@pytest.mark.parametrize(
    ("overflow", "left", "dead"),
    [
        ("drop-oldest", ["two", "three"], []),
        ("drop-newest", ["one", "two"], []),
        ("to-dead-letter", ["one", "two"], ["three"]),
    ],
)
def test_a_full_subscription_may_let_something_go(
    overflow: str, left: list[str], dead: list[str]
) -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_messages=2, overflow=overflow)
    world.send(topic, "one", "two")
    world.send(topic, "three")
    assert (held(world, queue), held(world, dead_letter_queue(queue))) == (left, dead)
    sound(world)


def test_a_topic_cannot_be_received_from_nor_a_subscription_sent_to() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    with pytest.raises(NotAllowed, match="it is a topic"):
        world.receive(topic)
    with pytest.raises(NotAllowed, match="it is a topic"):
        world.attach(topic)
    with pytest.raises(NotAllowed, match="send to the topic"):
        world.send(queue, "no")


def test_dead_letters_of_a_subscription_can_be_sent_again() -> None:
    world = World()
    topic = world.topic()
    queue, other = world.subscribe(topic, "a", max_delivery=1), world.subscribe(topic, "b")
    world.send(topic, "bad")
    world.receive(queue)
    world.advance(60_000)
    dead = dead_letter_queue(queue)
    assert held(world, dead) == ["bad"]
    world.do(Resubmit(dead))
    assert (held(world, queue), held(world, other)) == (["bad"], ["bad"])
    world.receive(queue)
    world.advance(60_000)
    world.do(Resubmit(dead, target=topic))
    assert (held(world, queue), held(world, other)) == (["bad"], ["bad", "bad"])
    sound(world)


# Rules.


def test_rules_say_who_gets_what() -> None:
    world = World()
    topic = world.topic()
    red = world.subscribe(topic, "red", sql("colour = 'red'"))
    large = world.subscribe(topic, "large", Rule("r", CorrelationFilter({}, {"size": 3})))
    events = world.subscribe(topic, "events", Rule("r", PatternFilter("events.#")))
    nats = world.subscribe(topic, "nats", Rule("r", PatternFilter("events.>", "nats")))
    none = world.subscribe(topic, "none", Rule("r", FalseFilter()))
    world.send(
        topic,
        a_message("1", colour="red"),
        a_message("2", size=3),
        a_message("3", subject="events.a.b"),
        a_message("4", subject="eventsfoo"),
        a_message("5", subject="events"),
    )
    assert held(world, red) == ["1"]
    assert held(world, large) == ["2"]
    assert held(world, events) == ["3", "5"]
    assert held(world, nats) == ["3"]
    assert held(world, none) == []
    sound(world)


def test_rules_without_an_action_make_one_copy_and_each_with_one_its_own() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(
        topic,
        "a",
        Rule("all"),
        sql("n = 1", name="one"),
        sql("n = 1", "SET n = 2; REMOVE gone; SET sys.Label = 'new'", "marked"),
        sql("n > 5", "SET n = 9", "never"),
        Rule("pattern", PatternFilter("x")),
    )
    world.send(topic, a_message("m", n=1, gone=True))
    deliveries = world.receive(queue, 10)
    found = []
    for each in deliveries:
        envelope = decode_envelope(each.message.envelope)
        found.append((each.note or Note()).apply_to(envelope))
    changed: Properties = {"n": 2, "RuleName": "marked"}
    assert [(each.properties, each.subject) for each in found] == [
        (changed, "new"),
        ({"n": 1, "gone": True}, ""),
    ]
    sound(world)


def test_an_action_may_change_the_session_and_the_life_of_its_copy() -> None:
    world = World()
    topic = world.topic()
    action = "SET sys.SessionId = 'other'; SET sys.TimeToLive = 500"
    queue = world.subscribe(topic, "a", sql("1 = 1", action), grouping="session")
    world.send(topic, a_message("m", group="first"))
    granted = world.hold(queue, "other")
    [delivery] = world.receive(queue, session=granted.token)
    assert delivery.message.expires_ms == world.now_ms + 500
    sound(world)


def test_an_action_may_give_each_copy_an_id_of_its_own() -> None:
    world = World()
    topic = world.topic()
    rules = [sql("1 = 1", "SET one = newid(); SET two = newid()", name) for name in ("a", "b")]
    queue = world.subscribe(topic, "a", *rules)
    world.send(topic, "first", "second")
    found = [
        note.properties[name] for note in notes(world, queue) if note for name in ("one", "two")
    ]
    assert len({repr(each) for each in found}) == 8
    sound(world)


@pytest.mark.parametrize("as_dead", [True, False])
def test_a_rule_that_fails_dead_letters_or_skips(as_dead: bool) -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", sql("n / 0 = 1"), dead_letter_filter_errors=as_dead)
    both = world.subscribe(
        topic, "b", sql("n / 0 = 1"), Rule("all"), dead_letter_filter_errors=as_dead
    )
    world.send(topic, a_message("m", n=1))
    dead = [held(world, dead_letter_queue(each)) for each in (queue, both)]
    assert dead == ([["m"], ["m"]] if as_dead else [[], []])
    assert (held(world, queue), held(world, both)) == ([], ["m"])
    if as_dead:
        [note] = notes(world, dead_letter_queue(queue))
        assert note is not None
        assert note.reason == "FilterException"
        assert note.source == queue
    sound(world)


def test_rules_see_what_other_rules_have_made_of_a_message() -> None:
    world = World()
    topic = world.topic()
    changed = world.subscribe(topic, "changed", sql("n = 1", "SET n = 2"))
    two = world.subscribe(topic, "two", sql("n = 2"))
    world.send(topic, a_message("m", n=1))
    [delivery] = world.receive(changed)
    world.do(DeadLetter(changed, [delivery.token]))
    assert held(world, two) == []
    world.do(Resubmit(dead_letter_queue(changed), target=topic))
    assert held(world, two) == ["m"]
    sound(world)


def test_a_change_of_rules_leaves_those_of_other_subscriptions() -> None:
    world = World()
    topic = world.topic()
    one = world.subscribe(topic, "one", Rule("r", CorrelationFilter({"subject": "events"})))
    both = world.subscribe(topic, "both", Rule("never", FalseFilter()), sql("n = 1"))
    world.send(topic, a_message("1", subject="events", n=1))
    world.do(RemoveRule(both, "rule"))
    world.send(topic, a_message("2", subject="events", n=1), a_message("3", subject="other"))
    assert (held(world, one), held(world, both)) == (["1", "2"], ["1"])
    sound(world)


def test_rules_can_be_added_replaced_listed_and_removed() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.do(SetRule(queue, sql("n = 1", name="one")))
    with pytest.raises(AlreadyExists):
        world.do(SetRule(queue, sql("n = 1", name="ONE")))
    world.do(RemoveRule(queue, "$default"))
    world.send(topic, a_message("1", n=1), a_message("2", n=2))
    world.now_ms += 5
    world.do(SetRule(queue, sql("n = 2", name="One"), new=False))
    world.send(topic, a_message("1", n=1), a_message("2", n=2))
    assert held(world, queue) == ["1", "2"]
    assert world.do(ListRules(queue)).answer == [
        Rule("one", SqlFilter("n = 2"), created_ms=world.now_ms - 5)
    ]
    world.do(RemoveRule(queue, "one"))
    assert world.do(ListRules(queue)).answer == []
    for command in (RemoveRule(queue, "one"), SetRule(queue, sql("1=1"), new=False)):
        with pytest.raises(NotFound, match="rule"):
            world.do(command)
    with pytest.raises(NotFound, match="subscription"):
        world.do(ListRules(topic))
    sound(world)


@pytest.mark.parametrize(
    "rule",
    [
        sql("colour ="),
        sql("1 = 1", "SET"),
        Rule("r", PatternFilter("a..b")),
        Rule("r", CorrelationFilter()),
        Rule("r", CorrelationFilter({"colour": "red"})),
        Rule("", TrueFilter()),
        Rule("a/b", TrueFilter()),
        Rule("x" * 51, TrueFilter()),
        Rule("r", SqlFilter("n = @p", {"p": object()})),  # type: ignore[dict-item]
    ],
)
def test_a_rule_that_is_not_well_formed_is_refused(rule: Rule) -> None:
    world = World()
    queue = world.subscribe(world.topic(), "a")
    with pytest.raises(InvalidArgument):
        world.do(SetRule(queue, rule))
    with pytest.raises(InvalidArgument):
        world.do(CreateSubscription("news/$sub/b", rules=[rule]))


def test_a_mistake_in_an_expression_is_shown() -> None:
    world = World()
    queue = world.subscribe(world.topic(), "a")
    with pytest.raises(InvalidArgument, match=r"filter is not well-formed: .*column 10[^.]*\.$"):
        world.do(SetRule(queue, sql("colour = = 'red'")))


def test_there_is_an_end_to_rules_and_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "RULES_MAX", 2)
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 1)
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", Rule("1"), Rule("2"))
    with pytest.raises(QuotaExceeded):
        world.do(SetRule(queue, Rule("3")))
    with pytest.raises(QuotaExceeded):
        world.subscribe(topic, "b")


# Keeping house.


def test_a_subscription_needs_a_topic_and_a_name_of_its_own() -> None:
    world = World()
    topic = world.topic()
    world.queue("orders")
    world.subscribe(topic, "a")
    for missing in ("orders", "nothing"):
        with pytest.raises(NotFound, match="topic"):
            world.subscribe(missing, "a")
    with pytest.raises(AlreadyExists):
        world.subscribe(topic, "A")
    for bad in ("", "a/b", "$a", "a\n"):
        with pytest.raises(InvalidArgument):
            world.subscribe(topic, bad)
    for properties in ({"delivery": "topic"}, {"duplicate_detection": True}):
        with pytest.raises(InvalidArgument):
            world.subscribe(topic, "b", **properties)
    with pytest.raises(InvalidArgument, match="differ"):
        world.subscribe(topic, "b", Rule("r"), Rule("R"))


@pytest.mark.parametrize(
    "properties",
    [
        {"grouping": "session"},
        {"requires_session": True},
        {"order": "priority"},
        {"overflow": "drop-oldest"},
        {"backoff_ms": [1]},
    ],
)
def test_a_topic_has_no_properties_of_subscriptions(properties: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="is for subscriptions"):
        World().topic(**properties)


def test_a_queue_does_not_become_a_topic() -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument, match="delivery"):
        world.do(UpdateQueue(queue, QueueProperties(delivery="topic")))


def names(answer: object) -> list[str]:
    assert isinstance(answer, list)
    return [each.name for each in answer if isinstance(each, QueueInfo)]


def test_topics_and_subscriptions_are_listed_and_counted() -> None:
    world = World()
    world.queue("orders")
    topic = world.topic()
    for name in ("b", "a", "c"):
        world.subscribe(topic, name, Rule("1"), Rule("2"))
    world.send(topic, "news")
    assert names(world.do(ListQueues()).answer) == ["news", "orders"]
    assert names(world.do(ListQueues(kind="topic")).answer) == ["news"]
    assert names(world.do(ListQueues(kind="queue")).answer) == ["orders"]
    first = names(world.do(ListSubscriptions(topic, limit=2)).answer)
    assert first == ["news/$sub/a", "news/$sub/b"]
    assert names(world.do(ListSubscriptions(topic, first[-1])).answer) == ["news/$sub/c"]
    for missing in ("orders", "nothing"):
        with pytest.raises(NotFound, match="topic"):
            world.do(ListSubscriptions(missing))
    info, of = world.info(topic), world.info("news/$sub/a")
    assert (info.subscriptions, of.rules, of.counts.active) == (3, 2, 1)
    assert info.size_bytes == 3 * of.size_bytes > 0
    assert find(world.state, "NEWS/$sub/A/$dead") == "news/$sub/a/$dead"


def test_a_topic_goes_with_its_subscriptions_and_they_without_it() -> None:
    world = World()
    topic = world.topic()
    queue, other = world.subscribe(topic, "a"), world.subscribe(topic, "b")
    receiver, reader = world.attach(queue, credit=1), world.attach(other)
    world.do(DeleteQueue(queue))
    assert [each.receiver for each in world.deliveries] == [receiver]
    world.send(topic, "news")
    assert held(world, other) == ["news"]
    sound(world)
    world.do(DeleteQueue(topic))
    assert [each.receiver for each in world.deliveries] == [reader]
    assert not world.state.queues
    sound(world)
    world.topic()
    assert held(world, world.subscribe(topic, "b")) == []
    sound(world)


def test_to_complete_a_message_is_access_to_its_subscription() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.send(topic, "one")
    [delivery] = world.receive(queue)
    world.now_ms += 1_000
    world.do(Complete(queue, [delivery.token]))
    info = world.do(GetQueue(queue)).answer
    assert isinstance(info, QueueInfo)
    assert info.accessed_ms == world.now_ms


def test_a_topic_is_idle_when_its_subscriptions_are() -> None:
    world = World()
    topic = world.topic(idle_delete_ms=10_000)
    queue = world.subscribe(topic, "a", idle_delete_ms=30_000)
    world.advance(9_000)
    world.receive(queue)
    world.advance(9_000)
    assert topic in world.state.queues
    world.advance(2_000)
    assert not world.state.queues


def test_a_subscription_is_idle_when_nothing_comes_and_nobody_asks() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", idle_delete_ms=10_000)
    world.advance(9_000)
    world.send(topic, "news")
    world.advance(9_000)
    assert queue in world.state.queues
    world.advance(1_001)
    assert queue not in world.state.queues
    assert topic in world.state.queues
    sound(world)


def test_default_rule_is_there() -> None:
    world = World()
    world.do(CreateQueue("news", QueueProperties(delivery="topic")))
    world.do(CreateSubscription("news/$sub/a"))
    [rule] = world.state.queues["news/$sub/a"].rules.values()
    assert (rule.name, rule.filter, rule.created_ms) == (DEFAULT_RULE, TrueFilter(), 1_000)


def test_a_subscription_may_take_small_messages_only() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_message_bytes=50)
    world.send(topic, "small", "x" * 100)
    assert held(world, queue) == ["small"]
    [note] = notes(world, dead_letter_queue(queue))
    assert note is not None
    assert note.reason == "MessageTooLarge"
    sound(world)


def test_several_messages_with_filters() -> None:
    """Who wants all of them, some of them, and none."""
    world = World()
    topic = world.topic()
    every = world.subscribe(topic, "every")
    some = world.subscribe(topic, "some", sql("sys.Label = 'b'"))
    none = world.subscribe(topic, "none", sql("sys.Label = 'x'"))
    world.send(topic, *(a_message(each, subject=each) for each in "abc"))
    assert [held(world, queue) for queue in (every, some, none)] == [["a", "b", "c"], ["b"], []]
    sound(world)


def test_copies_of_a_body_that_was_evicted_are_evicted() -> None:
    """As at a start, when bodies are not read before somebody wants them."""
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    source = world.state.queues[topic]
    source.messages.put(Message(1, 1, b"", None, 5, 4, None, 0, 0, 0, ACTIVE, 0))
    source.ready_lists[0].append(1)
    source.counts[ACTIVE] += 1
    evolve(world.state, Routed(topic, 7, [1], [], {queue: 1}), 2)
    assert world.state.queues[queue].evicted_bytes == world.state.queues[queue].body_bytes == 5


def test_what_was_noted_takes_memory() -> None:
    sizes = [noted_bytes(Note({"n": value})) for value in (1, "aa", "\u00e4", b"abc")]
    assert [size - sizes[0] for size in sizes] == [0, 2, 4, 3]
