"""What is left of a history when parts of it are lost."""

from posthouse.core import State, evolve
from posthouse.core.commands import (
    Abandon,
    CancelSchedule,
    Complete,
    DeadLetter,
    PauseSchedule,
    RemoveRule,
    Renew,
    Resubmit,
    ResumeSchedule,
    SetRule,
    SetSchedule,
    SetSessionState,
    Start,
)
from posthouse.core.dump import dump
from posthouse.core.fit_record import fit_record
from posthouse.core.message import Attempt, Note
from posthouse.core.model import QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.records import (
    Activated,
    Completed,
    Copies,
    Dropped,
    Forgotten,
    Kept,
    Missing,
    Purged,
    QueueCreated,
    QueueUpdated,
    Relocked,
    Renewed,
    Routed,
    RuleRemoved,
    RuleSet,
    ScheduleSet,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    SubscriptionCreated,
    Woken,
    span,
)
from posthouse.core.rules import FalseFilter, Rule
from tests.core.world import World, a_message
from tests.invariants import check

Journal = list[tuple[int, Kept]]


def fitted(journal: Journal, name: str = "test") -> State:
    """What a repair makes of what is left."""
    state = State(name)
    for position, record in journal:
        at = position
        for each in fit_record(state, record):
            if not isinstance(each, Missing):
                evolve(state, each, at)
            at += span(each)
        assert at == position + span(record), "positions have shifted"
    return state


def after(world: World, *lost: int) -> State:
    """What is made of the world's history without these of its records, counted from the last."""
    journal = list(world.journal)
    for at in sorted(lost):
        del journal[at]
    return fitted(journal)


def test_what_was_completed_stays_so_though_its_lock_is_missing() -> None:
    world = World()
    world.queue()
    world.send("orders", "a", "b")
    first, _ = world.receive("orders", 2)
    world.do(Complete("orders", [first.token]))
    state = after(world, -2)
    assert [m.sequence for m in state.queues["orders"].messages.walk(0)] == [2]
    check(state, world.now_ms)
    lock, complete = fit_record(state, Completed("orders", [1, 2]))
    assert lock == Missing(1)
    assert complete == Purged("orders", [2])


def test_a_message_whose_return_is_missing_stays() -> None:
    world = World()
    world.queue()
    world.send("orders", "a")
    (held,) = world.receive("orders")
    world.do(Abandon("orders", [held.token]))
    world.receive("orders")
    state = after(world, -2)
    assert [m.sequence for m in state.queues["orders"].messages.walk(0)] == [1]


def test_messages_of_a_queue_that_is_missing_are_missing_too() -> None:
    world = World()
    world.queue()
    world.send("orders", "a", "b")
    position, record = world.journal[-1]
    assert fit_record(State("test"), record) == [Missing(2)]
    assert position


def test_a_dead_letter_goes_back_only_where_there_is_a_queue() -> None:
    world = World()
    world.queue()
    world.queue("other")
    world.send("orders", "a")
    (held,) = world.receive("orders")
    world.do(DeadLetter("orders", [held.token]))
    world.do(Resubmit(dead_letter_queue("orders"), target="other"))
    assert "other" in [r.queue for _, r in world.journal if isinstance(r, QueueCreated)]
    journal = [
        (at, r)
        for at, r in world.journal
        if not (isinstance(r, QueueCreated) and r.queue == "other")
    ]
    state = fitted(journal)
    assert len(list(state.queues[dead_letter_queue("orders")].messages.walk(0))) == 1


def test_a_session_that_was_never_accepted_holds_nothing() -> None:
    world = World()
    world.queue(grouping="session")
    world.send("orders", a_message("x", group="s"))
    held = world.hold("orders", "s")
    world.receive("orders", session=held.token)
    world.do(SetSessionState("orders", held.token, b"x"))
    state = after(world, -3)
    assert not state.locks
    assert not state.sessions
    check(state, world.now_ms)
    for record in (
        SessionRenewed("orders", "none", 5),
        SessionReleased("orders", "none"),
        SessionStateSet("orders", "none", 5, b""),
        SessionAccepted("orders", 5, "s", 0, 50),
        Forgotten("orders", 5, 1),
        Sent("orders", 5, 1, 0, []),
    ):
        assert fit_record(state, record) == [Missing(span(record))]


def test_what_cannot_be_changed_of_a_queue_is_not_changed_by_an_update() -> None:
    state = fitted([(1, Started(1, 1, 1)), (2, QueueCreated("q", 1, QueueProperties()))])
    (record,) = fit_record(
        state, QueueUpdated("q", 2, QueueProperties(grouping="session", lock_ms=7))
    )
    assert record == QueueUpdated("q", 2, QueueProperties(lock_ms=7))
    assert fit_record(state, QueueCreated("Q", 3, QueueProperties())) == [Missing(1)]


def test_of_a_group_only_one_is_held_whatever_is_missing() -> None:
    world = World()
    queue = world.queue(grouping="group")
    world.send(queue, a_message("1", group="g"), a_message("2", group="g"), "3")
    [first, _] = world.receive(queue, 2)
    world.do(Complete(queue, [first.token]))
    world.receive(queue)
    state = after(world, -2)  # the first is held still
    assert sorted(lock.message.sequence for lock in state.locks.values()) == [1, 3]
    check(state, world.now_ms)


def test_what_was_not_held_back_is_not_woken() -> None:
    world = World()
    queue = world.queue(backoff_ms=[500])
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token]))
    world.advance(500)
    _, woken = world.journal[-1]
    assert isinstance(woken, Woken)
    assert fit_record(after(world, -1), woken) == [woken]
    assert fit_record(after(world, -2, -1), woken) == [Missing(1)]


def test_a_message_falls_due_once_and_a_lock_is_renewed_while_it_is_held() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", due_ms=world.now_ms + 10))
    world.advance(10)
    _, activated = world.journal[-1]
    assert isinstance(activated, Activated)
    assert fit_record(after(world, -1), activated) == [activated]
    [delivery] = world.receive(queue)
    world.do(Renew(queue, [delivery.token]))
    _, renewed = world.journal[-1]
    assert isinstance(renewed, Renewed)
    assert fit_record(world.state, renewed) == [renewed]
    assert fit_record(after(world, -2, -1), renewed) == [Missing(1)]


def test_what_is_locked_again_has_come_back_before() -> None:
    world = World()
    queue = world.queue(lock_ms=100, late_settling=True)
    world.send(queue, "a")
    world.receive(queue)
    world.advance(100)
    world.do(Renew(queue, [Attempt(1, 1)]))
    _, relocked = world.journal[-1]
    assert isinstance(relocked, Relocked)
    assert fit_record(after(world, -1), relocked) == [relocked]
    assert fit_record(after(world, -2, -1), relocked) == [Missing(1)]
    assert fit_record(world.state, relocked) == [Missing(1)]


def test_what_was_completed_late_is_removed_whatever_its_state() -> None:
    world = World()
    queue = world.queue(lock_ms=100, late_settling=True)
    world.send(queue, "a")
    world.receive(queue)
    world.advance(100)
    world.do(Complete(queue, [Attempt(1, 1)]))
    _, completed = world.journal[-1]
    for state in (after(world, -1), after(world, -2, -1)):  # it has come back; it is locked
        assert fit_record(state, completed) == [completed]
        evolve(state, completed, 99)
        check(state, world.now_ms)
        assert not state.queues[queue].counts[0]


def test_a_lock_that_was_given_is_not_given_again() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    world.receive(queue)
    _, locked = world.journal[-1]
    assert fit_record(world.state, locked) == [Missing(1)]


def without(world: World, *kinds: type[Kept]) -> World:
    """The world that a repair leaves when these records are lost, started again."""
    journal = [(at, record) for at, record in world.journal if not isinstance(record, kinds)]
    left = World()
    left.state, left.now_ms = fitted(journal), world.now_ms
    left.position = world.position
    left.do(Start(2, 8))
    while left.state.dispatch_pending:
        left.tick()
    check(left.state, left.now_ms)
    return left


def held(state: State, queue: str) -> list[object]:
    return [message.body for message in state.queues[queue].messages.walk(0)]


def test_what_was_published_is_handed_on_again_if_that_is_missing() -> None:
    world = World()
    topic, target = world.topic(), world.queue("target")
    queue = world.subscribe(topic, "a")
    source = world.queue("source", forward_to=target)
    world.send(topic, "a")
    world.send(source, "b")
    left = without(world, Routed)
    assert (held(left.state, queue), held(left.state, target)) == ([b"a"], [b"b"])
    assert (held(left.state, topic), held(left.state, source)) == ([], [])


def test_copies_go_only_where_there_is_a_queue_and_a_message() -> None:
    world = World()
    topic = world.topic()
    first = world.subscribe(topic, "first", ttl_ms=5_000)
    second = world.subscribe(topic, "second")
    world.send(topic, "a", "b")
    position, routed = world.journal[-1]
    assert isinstance(routed, Routed)
    state = fitted(world.journal[:-1])
    state.queues[topic].messages.pop(2)  # as if it had not been sent
    state.queues.pop(second)
    assert fit_record(state, routed) == [
        Routed(topic, world.now_ms, [], [Copies(first, 1, [1], [world.now_ms + 5_000])]),
        Missing(1),
        Missing(1),
        Missing(1),
        Purged(topic, [1]),
        Missing(1),
    ]
    assert span(routed) == 6
    assert position


def test_copies_keep_what_is_different_about_them() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.send(topic, "a")
    state = fitted(world.journal[:-1])
    notes: list[Note | None] = [Note({"n": 1}), None]
    routed = Routed(topic, 5, [1], [Copies(queue, 1, [1, 1], None, notes)])
    assert fit_record(state, routed) == [
        Routed(topic, 5, [], [Copies(queue, 1, [1], None, notes[:1])]),
        Routed(topic, 5, [], [Copies(queue, 2, [1], None, notes[1:])]),
        Purged(topic, [1]),
    ]


def test_copies_do_not_take_numbers_that_were_given() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.send(topic, "a")
    state = fitted(world.journal)
    state.queues[topic].messages.put(next(state.queues[queue].messages.walk(0)))
    assert fit_record(state, Routed(topic, 5, [], [Copies(queue, 1, [1])])) == [Missing(1)]


def test_a_subscription_needs_its_topic_to_come_back() -> None:
    created = SubscriptionCreated(subscription_queue("news", "a"), 5, QueueProperties(), [])
    world = World()
    assert fit_record(world.state, created) == [Missing(1)]
    world.queue("news")
    assert fit_record(world.state, created) == [Missing(1)]
    world = World()
    topic = world.topic()
    assert fit_record(world.state, created) == [created]
    world.subscribe(topic, "A")
    assert fit_record(world.state, created) == [Missing(1)]


def test_rules_need_their_subscription_to_come_back() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", Rule("one"))
    world.do(SetRule(queue, Rule("two", FalseFilter())))
    world.do(RemoveRule(queue, "one"))
    rule_set, removed = (record for _, record in world.journal[-2:])
    assert isinstance(rule_set, RuleSet)
    assert isinstance(removed, RuleRemoved)
    assert fit_record(world.state, rule_set) == [rule_set]
    assert fit_record(world.state, removed) == [Missing(1)]  # it is gone already
    assert fit_record(State("test"), rule_set) == [Missing(1)]
    no_subscription = RuleSet(topic, 5, Rule("one"))
    assert fit_record(world.state, no_subscription) == [Missing(1)]
    state = after(world, -2)  # without the second rule
    assert list(state.queues[queue].rules) == []


def test_what_was_dropped_stays_so_if_it_is_there() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="drop-oldest")
    world.send(queue, "a")
    world.send(queue, "b")
    dropped = next(record for _, record in world.journal if isinstance(record, Dropped))
    assert held(fitted(world.journal), queue) == [b"b"]
    assert fit_record(world.state, dropped) == [Missing(1)]
    state = after(world, -2)
    assert held(state, queue) == [b"a", b"b"]
    check(state, world.now_ms)


def test_a_queue_that_was_a_topic_does_not_become_one_by_an_update() -> None:
    state = fitted([(1, Started(1, 1, 1)), (2, QueueCreated("q", 1, QueueProperties()))])
    (record,) = fit_record(
        state, QueueUpdated("q", 2, QueueProperties(delivery="topic", lock_ms=7))
    )
    assert record == QueueUpdated("q", 2, QueueProperties(lock_ms=7))


def test_schedules_are_fitted() -> None:
    world = World()
    queue = world.queue()
    world.do(SetSchedule(queue, "beat", "every 10 seconds", a_message("tick")))
    world.advance(10_000)
    world.do(PauseSchedule("beat"))
    world.do(ResumeSchedule("beat"))
    world.do(CancelSchedule("beat"))
    assert dump(fitted(world.journal)) == dump(world.state)
    without = [each for each in world.journal if not isinstance(each[1], ScheduleSet)]
    state = fitted(without)
    assert not state.schedules
    assert state.queues[queue].counts[0] == 1
