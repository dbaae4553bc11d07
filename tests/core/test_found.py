"""Faults that reading and the comparison with the reference have found, each in a short history."""

from typing import Any

from posthouse.core.commands import DeadLetter, Peek, Peeked, Resubmit, Resume, UpdateQueue
from posthouse.core.dump import dump
from posthouse.core.message import Note, decode_envelope
from posthouse.core.model import TRANSFER, QueueProperties, dead_letter_queue
from posthouse.core.rules import Rule, SqlFilter, TrueFilter
from tests.core.world import World, a_message
from tests.invariants import check, check_positions


def held(world: World, queue: str) -> list[str]:
    answer = world.do(Peek(queue, limit=100)).answer
    assert isinstance(answer, Peeked)
    return [bytes(seen.message.body).decode() for seen in answer.messages]


def sound(world: World) -> None:
    check(world.state, world.now_ms)
    check_positions(world.state, world.journal)
    assert dump(world.replayed()) == dump(world.state)


def update(world: World, queue: str, **properties: Any) -> None:
    world.do(UpdateQueue(queue, QueueProperties(**properties)))


def settle_down(world: World) -> None:
    """Ticks, as long as there is something to do at this moment, but not for ever."""
    for _ in range(20):
        if not world.state.hungry:
            return
        world.tick()
    raise AssertionError("there is always more to do")


def a_dead_letter(world: World, queue: str) -> None:
    world.send(queue, "bad")
    [delivery] = world.receive(queue)
    world.do(DeadLetter(queue, [delivery.token]))


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
