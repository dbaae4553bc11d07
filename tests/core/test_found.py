"""Faults that reading and the comparison with the reference have found, each in a short history."""

from datetime import UTC, datetime
from typing import Any

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    HAND_ON_BYTES_MAX,
    HAND_ON_MAX,
    STEPS_MAX,
    Abandon,
    Admitted,
    Attach,
    Begin,
    Begun,
    Commit,
    Committed,
    Complete,
    DeadLetter,
    DeleteQueue,
    Delivery,
    Detach,
    Notice,
    Pause,
    PauseSchedule,
    Resubmit,
    Resume,
    ResumeSchedule,
    Send,
    SetRule,
    SetSchedule,
    UpdateQueue,
    Waiting,
    Work,
)
from posthouse.core.errors import InvalidArgument, NotAllowed, QuotaExceeded
from posthouse.core.message import Note, decode_envelope
from posthouse.core.model import TRANSFER, QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.records import Routed, encode
from posthouse.core.recurrence import following_ms, parse
from posthouse.core.rules import FalseFilter, PatternFilter, Rule, SqlFilter, TrueFilter
from tests.core.sound import held, notes, sound
from tests.core.world import World, a_message, bodies


def update(world: World, queue: str, **properties: Any) -> None:
    world.do(UpdateQueue(queue, QueueProperties(**properties)))


def settle_down(world: World, most: int = 20) -> None:
    """Ticks, as long as there is something to do at this moment, but not for ever."""
    for _ in range(most):
        if not world.state.dispatch_pending:
            return
        world.tick()
    raise AssertionError("there is always more to do")


def a_dead_letter(world: World, queue: str) -> None:
    world.send(queue, "bad")
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token]))


# Handing on what is there already.


def test_ticks_end_though_dead_letters_have_nowhere_to_go() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    a_dead_letter(world, queue)
    update(world, queue, forward_dead_to=target)
    world.do(DeleteQueue(target))
    settle_down(world)
    assert held(world, dead_letter_queue(queue)) == ["bad"]
    sound(world)


def test_who_waits_for_dead_letters_gets_those_that_cannot_be_forwarded() -> None:
    world = World()
    target = world.queue("target")
    queue = world.queue("orders", forward_dead_to=target)
    world.do(DeleteQueue(target))
    world.attach(dead_letter_queue(queue), credit=1)
    a_dead_letter(world, queue)
    assert bodies(world.deliveries) == ["bad"]
    sound(world)


def test_who_waits_for_dead_letters_gets_those_that_ticks_cannot_forward() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    world.attach(dead_letter_queue(queue), credit=1)
    update(world, queue, forward_dead_to=target)
    world.do(DeleteQueue(target))
    a_dead_letter(world, queue)
    world.tick()
    assert bodies(world.deliveries) == ["bad"]
    settle_down(world)
    sound(world)


def test_what_is_to_be_forwarded_follows_after_a_crash() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    world.send(queue, "a")
    update(world, queue, forward_to=target)
    world = world.restarted()
    settle_down(world)
    assert (held(world, queue), held(world, target)) == ([], ["a"])
    sound(world)


@pytest.mark.parametrize("grouping", ["group", "session"])
def test_what_waits_behind_others_of_its_group_is_forwarded(grouping: str) -> None:
    world = World()
    target, queue = world.queue("target"), world.queue(grouping=grouping)
    world.send(queue, a_message("1", group="g"), a_message("2", group="g"))
    session = world.hold(queue, "g").token if grouping == "session" else 0
    [delivery] = world.receive(queue, session=session)
    update(world, queue, grouping=grouping, requires_session=session > 0, forward_to=target)
    settle_down(world)
    assert held(world, target) == ["2"]
    world.do(Complete(queue, [delivery.token]))
    assert held(world, queue) == []
    sound(world)


def test_a_second_queue_that_forwards_has_its_turn_after_a_long_first() -> None:
    world = World()
    target, first, second = (world.queue(name) for name in ("target", "first", "second"))
    world.send(first, *map(str, range(STEPS_MAX)))
    world.send(second, "x")
    for queue in (first, second):
        update(world, queue, forward_to=target)
    settle_down(world)
    assert held(world, second) == []
    assert world.counts(target).active == STEPS_MAX + 1


def test_what_falls_due_while_ticks_forward_is_forwarded_too() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    world.send(queue, a_message("a", due_ms=world.now_ms + 10))
    world.now_ms += 10
    update(world, queue, forward_to=target)
    settle_down(world)
    assert (held(world, queue), held(world, target)) == ([], ["a"])
    sound(world)


def test_what_falls_due_does_not_overtake_what_is_to_be_forwarded() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    world.send(queue, *map(str, range(STEPS_MAX)), a_message("late", due_ms=world.now_ms + 10))
    world.now_ms += 10
    update(world, queue, forward_to=target)
    settle_down(world)
    assert bodies(world.receive(target, STEPS_MAX + 1))[-1] == "late"
    sound(world)


def test_what_is_dropped_to_make_room_is_not_forwarded() -> None:
    world = World()
    end, first = world.queue("end"), world.queue("first")
    full: dict[str, Any] = {"max_messages": 1, "overflow": "drop-oldest"}
    middle = world.queue("middle", **full)
    world.send(middle, "old")
    world.send(first, "new")
    update(world, first, forward_to=middle)
    update(world, middle, forward_to=end, **full)
    settle_down(world)
    assert held(world, end) == ["new"]
    sound(world)


def test_what_a_tick_has_handed_out_is_not_dropped_to_make_room() -> None:
    world = World()
    full: dict[str, Any] = {"max_messages": 1, "overflow": "drop-oldest"}
    queue, source = world.queue("orders", **full), world.queue("source")
    world.attach(queue, credit=1)
    world.do(Pause(queue, receiving=True))
    world.send(queue, "held")
    world.send(source, "new")
    world.do(Resume(queue, receiving=True))
    update(world, source, forward_to=queue)
    settle_down(world)
    assert (held(world, queue), held(world, source + TRANSFER)) == (["held"], ["new"])
    sound(world)


def test_who_waits_gets_what_comes_in_the_tick_that_ends_the_dispatch() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    world.attach(target, credit=1)
    world.do(Pause(target, receiving=True))
    world.send(source, a_message("a", due_ms=world.now_ms + 10))
    world.now_ms += 10
    world.do(Resume(target, receiving=True))
    world.tick()
    assert bodies(world.deliveries) == ["a"]
    settle_down(world)
    sound(world)


def test_what_a_tick_could_not_forward_is_not_tried_again_by_it() -> None:
    world = World()
    end = world.queue("end")
    middle = world.queue("middle", forward_to=end, max_messages=1)
    queue = world.queue("orders", forward_dead_to=middle, max_delivery=1)
    world.send(queue, "a", "b")
    world.receive(queue, 2)
    world.advance(60_000)
    assert (held(world, end), held(world, dead_letter_queue(queue))) == (["a"], ["b"])
    sound(world)


# Room.


def test_what_leaves_in_a_tick_leaves_room_for_what_comes_in_it() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_messages=1)
    world.send(topic, a_message("old", ttl_ms=5_000))
    world.send(topic, a_message("new", due_ms=world.now_ms + 5_000))
    world.advance(5_000)
    assert (held(world, queue), held(world, dead_letter_queue(queue))) == (["new"], [])
    sound(world)


def test_each_copy_that_comes_takes_the_place_of_an_old_one() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a", max_messages=2, overflow="drop-oldest")
    world.send(topic, "1", "2")
    world.send(topic, "3", "4")
    assert held(world, queue) == ["3", "4"]
    sound(world)


@pytest.mark.parametrize("relays", [False, True])
def test_of_many_that_are_forwarded_the_newest_stay_where_the_oldest_give_way(relays: bool) -> None:
    world = World()
    end = world.queue("end")
    full: dict[str, Any] = {"max_messages": 2, "overflow": "drop-oldest"}
    target = world.queue("target", **full)
    source = world.queue("source")
    world.send(source, *map(str, range(5)))
    update(world, source, forward_to=target)
    if relays:
        update(world, target, forward_to=end, **full)
    settle_down(world)
    assert held(world, end if relays else target) == ["3", "4"]
    assert held(world, source + TRANSFER) == []
    sound(world)


def test_what_can_have_no_room_at_all_drops_nothing() -> None:
    world = World()
    target = world.queue("target", max_bytes=30, overflow="drop-oldest")
    source = world.queue("source", forward_to=target)
    world.send(target, "old")
    world.send(source, "a", "b" * 100)
    assert (held(world, target), held(world, source + TRANSFER)) == (["old", "a"], ["b" * 100])
    sound(world)


def test_a_full_subscription_refuses_whatever_the_queue_on_the_way_would_drop() -> None:
    world = World()
    topic = world.topic()
    world.subscribe(topic, "a", max_messages=1)
    world.send(topic, "1")
    queue = world.queue("q", forward_to=topic, max_messages=1, overflow="drop-newest")
    for messages in (["2"], ["2", "3"]):
        with pytest.raises(QuotaExceeded):
            world.send(queue, *messages)


# Idleness.


def test_a_queue_to_which_something_is_forwarded_is_not_idle() -> None:
    world = World()
    target = world.queue("target", idle_delete_ms=5_000)
    source = world.queue("source", forward_to=target)
    world.send(source, a_message("a", due_ms=world.now_ms + 5_000))
    world.advance(5_000)
    assert held(world, target) == ["a"]
    sound(world)


def test_a_queue_is_idle_though_its_dead_letters_are_forwarded() -> None:
    world = World()
    graves = world.queue("graves")
    queue = world.queue(
        "orders", forward_dead_to=graves, dead_letter_expired=True, idle_delete_ms=1_000
    )
    world.send(queue, a_message("a", ttl_ms=1_000))
    world.advance(1_000)
    assert queue not in world.state.queues
    assert held(world, graves) == ["a"]
    sound(world)


def test_a_topic_and_its_subscription_may_be_idle_at_the_same_time() -> None:
    world = World()
    world.subscribe(world.topic(idle_delete_ms=1_000), "a", idle_delete_ms=1_000)
    world.advance(1_000)
    assert not world.state.queues
    sound(world)


def test_a_queue_is_in_use_while_somebody_reads_what_it_could_not_forward() -> None:
    world = World()
    target = world.queue("target", status="disabled")
    queue = world.queue("orders", forward_to=target, idle_delete_ms=1_000)
    world.attach(queue + TRANSFER, credit=1)
    world.advance(5_000)
    assert queue in world.state.queues


def test_settling_in_a_subscription_is_use_of_its_topic() -> None:
    world = World()
    topic = world.topic(idle_delete_ms=10_000)
    queue = world.subscribe(topic, "a")
    world.send(topic, "a")
    [delivery] = world.receive(queue)
    world.advance(9_000)
    world.do(Complete(queue, [delivery.token]))
    world.advance(9_999)
    assert topic in world.state.queues
    world.advance(1)
    assert topic not in world.state.queues


# What is kept of a message.


def lives(world: World, queue: str) -> list[int]:
    return [m.expires_ms - world.now_ms for m in world.state.queues[queue].messages.walk(0)]


def test_what_could_not_be_forwarded_has_its_life_when_it_is_sent_again() -> None:
    world = World()
    target = world.queue("target", status="disabled")
    queue = world.queue("orders", forward_to=target)
    world.send(queue, a_message("a", ttl_ms=500))
    world.do(Resume(target, sending=True, receiving=True))
    world.do(Resubmit(queue + TRANSFER))
    assert lives(world, target) == [500]
    sound(world)


def test_a_dead_letter_that_was_forwarded_has_its_life_when_it_is_sent_again() -> None:
    world = World()
    graves = world.queue("graves")
    queue = world.queue("orders", forward_dead_to=graves)
    world.send(queue, a_message("a", ttl_ms=500))
    for name in (queue, graves):
        [delivery] = world.receive(name)
        world.do(DeadLetter(name, [delivery.token]))
    world.do(Resubmit(dead_letter_queue(graves)))
    assert lives(world, graves) == [500]
    sound(world)


def test_a_dead_letter_is_as_a_rule_has_made_it() -> None:
    world = World()
    topic = world.topic()
    rule = Rule("r", TrueFilter(), "REMOVE gone; SET sys.Label = 'new'")
    queue = world.subscribe(topic, "a", rule)
    world.send(topic, a_message("a", gone=True))
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token], properties={"more": 1}))
    [delivery] = world.receive(dead_letter_queue(queue))
    found = (delivery.note or Note()).apply_to(decode_envelope(delivery.message.envelope))
    assert (found.subject, found.properties) == ("new", {"RuleName": "r", "more": 1})
    sound(world)


def test_what_could_not_be_forwarded_is_locked_as_the_queue_says() -> None:
    world = World()
    target = world.queue("target")
    queue = world.queue("orders", forward_to=target, counting="abandon")
    update(world, queue, forward_to=target, counting="abandon", lock_ms=7)
    properties = world.state.queues[queue + TRANSFER].properties
    assert (properties.lock_ms, properties.counting) == (7, "abandon")
    sound(world)


def test_a_rule_that_fails_is_told_of_wherever_it_stands() -> None:
    rules = [Rule("all"), Rule("bad", SqlFilter("n / 0 = 1"))]
    for given in (rules, rules[::-1]):
        world = World()
        topic = world.topic()
        queue = world.subscribe(topic, "a", *given)
        world.send(topic, a_message("a", n=1))
        assert (held(world, queue), held(world, dead_letter_queue(queue))) == (["a"], ["a"])


# Much at once.


def copies_written(world: World, since: int) -> list[int]:
    """How many copies each record of handing on makes."""
    routed = [record for _, record in world.journal[since:] if isinstance(record, Routed)]
    return [sum(len(each.sequences) for each in record.copies) for record in routed]


def test_what_is_sent_to_many_is_handed_on_in_parts() -> None:
    world = World()
    topic = world.topic()
    queues = [world.subscribe(topic, f"s{n}") for n in range(30)]
    since = len(world.journal)
    world.send(topic, *(f"{n}" for n in range(1_500)))
    assert world.counts(queues[0]).active < 1_500
    sound(world)
    world.send(topic, "later")  # does not overtake
    settle_down(world)
    assert max(copies_written(world, since)) <= HAND_ON_MAX + len(queues)
    assert held(world, queues[0]) == [f"{n}" for n in range(1_000)]  # a page
    assert {world.counts(each).active for each in queues} == {1_501}
    assert world.counts(topic).active == 0
    assert bodies(world.receive(queues[29], 2_000))[-1] == "later"
    sound(world)


GROWS = "; ".join(["SET a = a + a"] * 14)


def test_what_falls_due_is_handed_on_in_parts_where_actions_write_much() -> None:
    world = World()
    topic = world.topic()
    queues = [world.subscribe(topic, f"s{n}", Rule("r", TrueFilter(), GROWS)) for n in range(10)]
    due_ms = world.now_ms + 1
    world.send(topic, *(a_message(f"{n}", due_ms=due_ms, a="xx") for n in range(150)))
    world.now_ms = due_ms
    since = len(world.journal)
    world.tick()
    settle_down(world)
    sizes = [len(encode(record)) for _, record in world.journal[since:]]
    assert max(sizes) < HAND_ON_BYTES_MAX
    assert {world.counts(each).active for each in queues} == {150}
    sound(world)


def test_what_actions_write_for_one_subscription_is_bounded() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "s", Rule("r", TrueFilter(), GROWS))
    other = world.subscribe(topic, "other")
    for n in range(600):
        world.do(SetRule(queue, Rule(f"r{n}", TrueFilter(), GROWS)))
    world.send(topic, a_message("one", a="xx"))
    settle_down(world, 1_000)
    assert max(len(encode(record)) for _, record in world.journal) < HAND_ON_BYTES_MAX
    assert held(world, other) == ["one"]
    [note] = notes(world, dead_letter_queue(queue))
    assert note is not None
    assert note.reason == "FilterException"
    sound(world)


def test_slow_filters_do_not_look_at_a_message_for_ever() -> None:
    world = World()
    topic = world.topic()
    pattern = "%" + "_a" * 400 + "%"
    slow = SqlFilter(" OR ".join(["a LIKE @p"] * 5), {"p": pattern})
    queues = [world.subscribe(topic, f"s{n}", Rule("r", slow)) for n in range(10)]
    other = world.subscribe(topic, "other", Rule("r", SqlFilter("a LIKE 'b%'")))
    world.send(topic, *(a_message(f"{n}", a="b" * 16_000) for n in range(4)))
    assert world.state.dispatch_pending  # each is enough for one command
    settle_down(world, 100)
    assert held(world, other) == ["0", "1", "2", "3"]
    [note, *_] = notes(world, dead_letter_queue(queues[-1]))
    assert note is not None
    assert note.reason == "FilterException"
    sound(world)


def test_a_subject_of_very_many_levels_is_not_followed() -> None:
    world = World()
    topic = world.topic()
    queues = [
        world.subscribe(topic, "one", Rule("r", PatternFilter("#.a.#"))),
        world.subscribe(topic, "two", Rule("r", PatternFilter("#.a.#")), Rule("s", FalseFilter())),
    ]
    world.send(topic, a_message("fits", subject=".".join("a" * 256)))
    world.send(topic, a_message("long", subject=".".join("a" * 257)))
    for queue in queues:
        assert held(world, queue) == ["fits"]
        assert held(world, dead_letter_queue(queue)) == ["long"]
    sound(world)


# Transactions.


def begin(world: World) -> int:
    answer = world.do(Begin()).answer
    assert isinstance(answer, Begun)
    return answer.transaction


@pytest.mark.parametrize("topic", [False, True])
def test_what_a_transaction_completes_leaves_room_for_what_it_sends(topic: bool) -> None:
    world = World()
    entity = world.queue(max_messages=1, delivery="topic" if topic else "competing")
    queue = world.subscribe(entity, "a") if topic else entity
    world.send(entity, "old")
    [delivery] = world.receive(queue)
    number = begin(world)
    world.do(Work(number, Complete(queue, [delivery.token])))
    world.do(Work(number, Send(entity, [a_message("new")])))
    assert isinstance(world.do(Commit(number)).answer, Committed)
    assert held(world, queue) == ["new"]
    sound(world)


def test_a_session_lasts_as_long_as_a_transaction_though_no_tick_has_come() -> None:
    world = World()
    queue = world.queue(grouping="session", lock_ms=1_000)
    world.send(queue, a_message("a", group="s"))
    session = world.hold(queue, "s").token
    [delivery] = world.receive(queue, session=session)
    number = begin(world)
    world.do(Work(number, Complete(queue, [delivery.token], session=session)))
    world.now_ms += 1_500
    assert isinstance(world.do(Commit(number)).answer, Committed)
    assert held(world, queue) == []
    sound(world)


# Sends that wait for room.


def blocked(world: World, queue: str, body: str, ms: int = 5_000, **more: Any) -> int:
    """A sender that waits."""
    sender = world.new_receiver()
    message = a_message(body, id=body)
    command = Send(queue, [message], None, deadline_ms=world.now_ms + ms, sender=sender, **more)
    assert world.do(command).answer == Waiting(sender)
    return sender


def test_what_has_waited_for_room_is_forwarded() -> None:
    world = World()
    end = world.queue("end")
    queue = world.queue("orders", forward_to=end, max_messages=1, overflow="block")
    world.send(queue, a_message("a", due_ms=world.now_ms + 10))
    blocked(world, queue, "b")
    world.advance(10)
    assert held(world, end) == ["a", "b"]
    sound(world)


def test_nobody_looks_again_and_again_for_room_that_copies_take() -> None:
    world = World()
    queue = world.queue(delivery="fan-out", max_messages=1, overflow="block")
    world.attach(queue, 1)
    world.send(queue, "a")
    blocked(world, queue, "b", ms=1_000)
    assert next_deadline_ms(world.state) == world.now_ms + 1_000


def test_nobody_looks_again_and_again_at_a_send_that_would_be_refused() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block", duplicate_detection=True)
    world.send(queue, a_message("a", id="a"))
    first = blocked(world, queue, "a", ms=1_000, refuse_duplicates=True)
    second = blocked(world, queue, "b")
    world.receive(queue, delete=True)
    assert next_deadline_ms(world.state) == 0
    world.tick()
    assert next_deadline_ms(world.state) == world.now_ms + 1_000
    ended, admitted = world.advance(1_000)
    assert ended == Notice(first, "timed-out")
    assert (type(admitted), admitted.receiver) == (Admitted, second)
    sound(world)


def test_a_send_that_would_be_refused_is_looked_at_when_its_queue_has_changed() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    sender = blocked(world, queue, "b")
    update(world, queue, max_messages=5, overflow="block", max_message_bytes=1)
    world.tick()
    assert next_deadline_ms(world.state) == world.now_ms + 5_000
    update(world, queue, max_messages=5, overflow="block")
    [admitted] = world.advance(0)
    assert (type(admitted), admitted.receiver) == (Admitted, sender)


def test_a_send_that_would_be_refused_is_looked_at_when_a_key_is_forgotten() -> None:
    world = World()
    queue = world.queue(
        max_messages=1, overflow="block", duplicate_detection=True, duplicate_window_ms=700
    )
    world.send(queue, a_message("a", id="a"))
    sender = blocked(world, queue, "a", refuse_duplicates=True)
    world.receive(queue, delete=True)
    world.tick()
    assert next_deadline_ms(world.state) == world.now_ms + 700
    [admitted] = world.advance(700)
    assert (type(admitted), admitted.receiver) == (Admitted, sender)


def test_a_queue_is_in_use_while_somebody_waits_to_send_to_it() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block", idle_delete_ms=1_000)
    world.send(queue, "a")
    sender = blocked(world, queue, "b")
    assert world.advance(5_000) == [Notice(sender, "timed-out")]
    world.advance(999)
    assert queue in world.state.queues
    world.advance(1)
    assert queue not in world.state.queues


def test_a_receiver_cannot_have_the_id_of_a_sender_that_waits() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block")
    world.send(queue, "a")
    sender = blocked(world, queue, "b")
    with pytest.raises(InvalidArgument, match="receiver"):
        world.do(Attach(queue, sender))


# Fan-out.


def test_a_pause_of_a_fan_out_queue_holds_back_what_its_receivers_would_get() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    receiver = world.attach(queue, 5)
    world.do(Pause(queue, receiving=True))
    assert world.deliveries == [Notice(receiver, "paused")]
    world.send(queue, "a")
    assert world.advance(1_000) == []
    world.do(Resume(queue, receiving=True))
    assert bodies(world.advance(0)) == ["a"]
    sound(world)


def test_who_is_attached_to_a_fan_out_queue_sees_its_changes() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    world.attach(queue, 1)
    update(world, queue, delivery="fan-out", max_delivery=1)
    world.send(queue, "a")
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    world.do(Abandon(queue, [delivery.token]))
    assert held(world, dead_letter_queue(queue)) == ["a"]
    sound(world)


def test_nobody_receives_what_is_for_another_who_is_attached() -> None:
    world = World()
    queue = world.queue(delivery="fan-out")
    receiver = world.attach(queue)
    world.send(queue, "a")
    mine = subscription_queue(queue, f"~{receiver}")
    for receive in (world.receive, world.attach):
        with pytest.raises(NotAllowed):
            receive(mine)


def test_a_fan_out_queue_has_no_sessions_to_read() -> None:
    world = World()
    with pytest.raises(NotAllowed):
        world.attach(world.queue(delivery="fan-out"), session=77)


def test_who_is_attached_to_a_fan_out_queue_is_no_hop() -> None:
    world = World()
    world.attach(world.queue("e", delivery="fan-out"), 1)
    for name, target in ("de", "cd", "bc", "ab"):
        world.queue(name, forward_to=target)
    world.send("a", "far")
    assert bodies(world.deliveries) == ["far"]


def test_a_fan_out_queue_is_in_use_until_the_last_has_left() -> None:
    world = World()
    queue = world.queue(delivery="fan-out", idle_delete_ms=1_000)
    receiver = world.attach(queue)
    world.advance(1_500)
    world.do(Detach(receiver))
    world.advance(999)
    assert queue in world.state.queues
    world.advance(1)
    assert queue not in world.state.queues


def test_who_was_attached_before_a_start_leaves_the_room_that_was_his() -> None:
    world = World()
    target = world.queue("target", delivery="fan-out", max_messages=1)
    queue = world.queue("orders")
    a_dead_letter(world, queue)
    receiver = world.attach(dead_letter_queue(queue), 1, bound=True)
    assert [each.receiver for each in world.deliveries] == [receiver]
    update(world, queue, forward_dead_to=target)
    settle_down(world)
    world.attach(target)
    world.send(target, "a")
    world = world.restarted()
    settle_down(world)
    assert (held(world, target), held(world, dead_letter_queue(queue))) == (["bad"], [])
    sound(world)


# Schedules.


def beat(world: World, queue: str, *, new: bool = True) -> None:
    world.do(SetSchedule(queue, "beat", "every 10 seconds", a_message("tick"), new=new))


def test_a_schedule_that_was_replaced_keeps_its_beat_over_a_pause() -> None:
    world = World()
    queue = world.queue()
    beat(world, queue)
    world.advance(3_000)
    beat(world, queue, new=False)
    before = world.state.schedules["beat"].next_ms
    world.do(PauseSchedule("beat"))
    world.do(ResumeSchedule("beat"))
    assert world.state.schedules["beat"].next_ms == before == 11_000
    sound(world)


def test_a_time_of_day_is_not_found_again_when_its_hour_comes_a_second_time() -> None:
    second_hour = round(datetime.fromisoformat("2026-10-25T01:05Z").timestamp() * 1000)
    found = following_ms(parse("at 02:30", "Europe/Berlin"), second_hour, 0)
    assert datetime.fromtimestamp(found / 1000, UTC).isoformat() == "2026-10-26T01:30:00+00:00"


def test_a_queue_to_which_a_schedule_sends_is_not_idle() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=10_000)
    beat(world, queue)
    world.advance(10_000)
    assert held(world, queue) == ["tick"]


def test_a_queue_into_which_a_send_was_let_is_not_idle() -> None:
    world = World()
    queue = world.queue(max_messages=1, overflow="block", idle_delete_ms=1_000)
    world.send(queue, a_message("old", ttl_ms=1_000))
    blocked(world, queue, "new")
    world.advance(1_000)
    assert held(world, queue) == ["new"]
