"""Handing on while room is short: what would be copied waits, and nothing of it is lost."""

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    FANOUT_LIMITED_MAX,
    Abandon,
    Complete,
    DeadLetter,
    DeleteQueue,
    Detach,
    SetFanout,
    Tick,
    UpdateQueue,
)
from posthouse.core.model import TRANSFER, Fanout, QueueProperties, dead_letter_queue
from posthouse.core.rules import Rule, SqlFilter
from tests.core.sound import held, sound
from tests.core.world import World, a_message, bodies


def limited(fanout: Fanout = "limited") -> World:
    world = World()
    world.do(SetFanout(fanout))
    return world


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def take(world: World, queue: str, limit: int = 100) -> list[str]:
    """Receives and settles what is there, and lets ticks do what that makes possible."""
    got = world.receive(queue, limit)
    if got:
        world.do(Complete(queue, [each.token for each in got]))
    settle_down(world)
    return bodies(got)


def settle_down(world: World) -> None:
    """Until nothing is due; that it comes to an end is part of the promise."""
    for _ in range(1_000):
        if next_deadline_ms(world.state) != 0:
            return
        world.tick()
    raise AssertionError("ticks go on for ever")


def test_copies_are_few_and_the_rest_waits_where_it_was() -> None:
    world = limited()
    topic = world.topic()
    queues = [world.subscribe(topic, name) for name in "ab"]
    world.send(topic, *numbers(50))
    settle_down(world)
    assert [held(world, each) for each in queues] == [numbers(FANOUT_LIMITED_MAX)] * 2
    assert world.counts(topic).active == 50 - FANOUT_LIMITED_MAX
    sound(world)
    world.send(topic, "late")  # does not overtake
    settle_down(world)
    assert take(world, queues[0]) == numbers(FANOUT_LIMITED_MAX)
    assert world.counts(queues[0]).active == 0  # the other has not been emptied
    take(world, queues[1])
    assert world.counts(queues[0]).active == FANOUT_LIMITED_MAX
    world.do(SetFanout("open"))
    settle_down(world)
    assert held(world, queues[1]) == [*numbers(50)[FANOUT_LIMITED_MAX:], "late"]
    assert world.counts(topic).active == 0
    sound(world)


def test_while_it_is_held_back_nothing_is_due() -> None:
    world = limited()
    topic = world.topic()
    queue = world.subscribe(topic, "a", lock_ms=5_000)
    world.send(topic, *numbers(50))
    settle_down(world)
    assert next_deadline_ms(world.state) is None
    assert world.do(Tick()).records == []
    [delivery] = world.receive(queue)
    settle_down(world)
    assert next_deadline_ms(world.state) == world.now_ms + 5_000
    world.do(Abandon(queue, [delivery.token]))
    settle_down(world)
    assert world.counts(topic).active == 50 - FANOUT_LIMITED_MAX


def test_what_a_tick_makes_room_for_is_not_forgotten_by_it() -> None:
    world = World()
    target = world.queue("target", ttl_ms=1_000)
    source = world.queue("source", forward_to=target)
    world.send(target, *numbers(FANOUT_LIMITED_MAX))
    world.do(SetFanout("limited"))
    world.send(source, "held")
    settle_down(world)
    world.do(SetFanout("limited"))  # it is looked at again in the tick in which they expire
    world.now_ms += 1_000
    settle_down(world)
    assert held(world, target) == ["held"]


def test_a_chain_that_is_full_in_the_middle_goes_on_as_its_end_is_received() -> None:
    world = World()
    last, first = world.topic("last"), world.topic("first")
    ends = [world.subscribe(last, f"s{n}") for n in range(5)]
    for n in range(4):
        world.subscribe(first, f"s{n}", forward_to=last)
    source = world.queue("source")
    world.send(source, *numbers(100))
    world.do(SetFanout("limited"))
    world.do(UpdateQueue(source, QueueProperties(forward_to=first)))
    settle_down(world)
    others = [queue for queue in world.state.queues.values() if queue.name != source]
    assert all(sum(queue.counts) <= FANOUT_LIMITED_MAX for queue in others)
    sound(world)
    got: dict[str, list[str]] = {end: [] for end in ends}
    for _ in range(200):
        for end in ends:
            got[end] += take(world, end)
        assert sum(sum(queue.counts) for queue in world.state.queues.values()) < 250
    for end in ends:
        assert sorted(got[end], key=int) == sorted(numbers(100) * 4, key=int)
    assert not world.state.dispatch_pending
    sound(world)


def test_without_any_room_nothing_is_handed_on() -> None:
    world = limited("stopped")
    topic, target = world.topic(), world.queue("target")
    queue = world.subscribe(topic, "a")
    source = world.queue("source", forward_to=target)
    world.send(topic, "a")
    world.send(source, "b")
    settle_down(world)
    assert (held(world, topic), held(world, queue)) == (["a"], [])
    assert (held(world, source), held(world, target)) == (["b"], [])
    sound(world)
    world.do(SetFanout("open"))
    settle_down(world)
    assert (held(world, queue), held(world, target)) == (["a"], ["b"])
    sound(world)


def test_a_start_begins_without_it() -> None:
    world = limited("stopped")
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.send(topic, "a")
    settle_down(world)
    world = world.restarted()
    settle_down(world)
    assert held(world, queue) == ["a"]
    sound(world)


def test_only_who_gets_a_copy_can_hold_it_back() -> None:
    world = World()
    topic = world.topic()
    many = world.subscribe(topic, "many", Rule("r", SqlFilter("n = 1")))
    few = world.subscribe(topic, "few", Rule("r", SqlFilter("n = 2")))
    world.send(topic, *(a_message(each, n=1) for each in numbers(50)))
    world.do(SetFanout("limited"))
    world.send(topic, a_message("x", n=2))
    assert held(world, few) == ["x"]
    world.send(topic, a_message("held", n=1), a_message("behind", n=2))
    settle_down(world)
    assert held(world, few) == ["x"]  # a topic hands on in order
    take(world, many)
    assert held(world, many) == ["held"]
    assert held(world, few) == ["x", "behind"]
    sound(world)


def test_what_comes_into_a_queue_that_was_put_off_in_the_same_command_stays_behind() -> None:
    world = World()
    last = world.topic("last")
    full = world.subscribe(last, "full", Rule("r", SqlFilter("n = 1")))
    free = world.subscribe(last, "free")
    first = world.topic("first")
    world.subscribe(first, "a", Rule("r", SqlFilter("n = 1")), forward_to=last)
    middle = world.queue("middle", forward_to=last)
    world.subscribe(first, "b", Rule("r", SqlFilter("n = 2")), forward_to=middle)
    world.send(last, *(a_message(each, n=1) for each in numbers(FANOUT_LIMITED_MAX)))
    take(world, free)
    world.do(SetFanout("limited"))
    world.send(first, a_message("one", n=1), a_message("two", n=2))
    assert held(world, last) == ["one", "two"]
    settle_down(world)
    assert held(world, free) == []
    take(world, full)
    assert held(world, free) == ["one", "two"]
    sound(world)


def test_dead_letters_count_as_what_the_queue_has() -> None:
    """Else who dead-letters everything would get, and keep, all there is."""
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    world.do(SetFanout("limited"))
    world.send(topic, *numbers(50))
    settle_down(world)
    for _ in range(5):
        got = world.receive(queue, 100)
        if got:
            world.do(DeadLetter(queue, [each.token for each in got]))
        settle_down(world)
    dead = dead_letter_queue(queue)
    assert (held(world, queue), held(world, dead)) == ([], numbers(FANOUT_LIMITED_MAX))
    take(world, dead)
    assert len(held(world, queue)) == FANOUT_LIMITED_MAX
    sound(world)


def test_what_could_not_be_forwarded_counts_too() -> None:
    world = World()
    target, topic = world.queue("target"), world.topic()
    queue = world.subscribe(topic, "a", forward_to=target)
    world.do(DeleteQueue(target))
    world.do(SetFanout("limited"))
    world.send(topic, *numbers(50))
    settle_down(world)
    assert held(world, queue + TRANSFER) == numbers(FANOUT_LIMITED_MAX)
    assert world.counts(topic).active == 50 - FANOUT_LIMITED_MAX
    sound(world)


def test_scheduled_messages_do_not_hold_others_back() -> None:
    world = World()
    target = world.queue("target")
    source = world.queue("source", forward_to=target)
    due_ms = world.now_ms + 5_000
    world.send(target, *(a_message("later", due_ms=due_ms) for _ in range(50)))
    world.do(SetFanout("limited"))
    world.send(source, "now")
    assert world.counts(target).active == 1


def test_dead_letters_of_who_is_attached_for_a_while_are_not_held_back() -> None:
    """They would be gone with him."""
    world = World()
    queue = world.queue("all", delivery="fan-out")
    receiver = world.attach(queue, 100)
    world.do(SetFanout("stopped"))
    world.send(queue, "a", "b")
    settle_down(world)
    assert (world.deliveries, held(world, queue)) == ([], ["a", "b"])
    world.do(SetFanout("limited"))
    world.tick()
    tokens = [each.token for each in world.deliveries]  # type: ignore[union-attr]
    mine = f"{queue}/$sub/~{receiver}"
    world.do(SetFanout("stopped"))
    world.do(DeadLetter(mine, tokens))
    world.do(Detach(receiver))
    assert held(world, dead_letter_queue(queue)) == ["a", "b"]
    sound(world)


def test_dead_letters_of_fan_out_count_where_they_go() -> None:
    world = World()
    queue = world.queue("all", delivery="fan-out")
    receiver = world.attach(queue, 100)
    world.do(SetFanout("limited"))
    world.send(queue, *numbers(50))
    mine = f"{queue}/$sub/~{receiver}"
    for _ in range(5):
        locks = [t for t, lock in world.state.locks.items() if lock.queue.name == mine]
        if locks:
            world.do(DeadLetter(mine, locks))
        settle_down(world)
    assert held(world, dead_letter_queue(queue)) == numbers(FANOUT_LIMITED_MAX)
    assert world.counts(queue).active == 50 - FANOUT_LIMITED_MAX
    sound(world)


def test_behind_dead_letters_that_stay_others_are_found_when_there_is_room() -> None:
    world = World()
    target = world.queue("target", max_message_bytes=40)
    queue = world.queue("orders", forward_dead_to=target)
    sizes = [*["x" * 100] * (FANOUT_LIMITED_MAX + 5), "small"]
    world.do(SetFanout("stopped"))
    world.send(queue, *sizes)
    got = world.receive(queue, 100)
    world.do(DeadLetter(queue, [each.token for each in got]))
    world.do(SetFanout("limited"))
    settle_down(world)
    assert next_deadline_ms(world.state) is None
    assert held(world, target) == []
    world.do(SetFanout("open"))
    settle_down(world)
    assert held(world, target) == ["small"]
    sound(world)


def test_who_has_something_to_hand_on_is_not_idle() -> None:
    world = limited("stopped")
    topic = world.topic(idle_delete_ms=60_000)
    queue = world.subscribe(topic, "a")
    world.send(topic, "a")
    world.advance(200_000)
    world.do(SetFanout("open"))
    world.advance(1)
    assert held(world, queue) == ["a"]
    world.do(UpdateQueue(topic, QueueProperties(delivery="topic", idle_delete_ms=60_000)))
    world.advance(200_000)
    assert topic not in world.state.queues


def test_who_is_deleted_or_changed_while_he_waits() -> None:
    world = limited()
    target, other = world.queue("target"), world.queue("other")
    source = world.queue("source", forward_to=target)
    world.send(source, *numbers(50))
    settle_down(world)
    assert world.state.dispatch_blocked == {source}
    world.do(UpdateQueue(source, QueueProperties(forward_to=other)))
    settle_down(world)
    assert held(world, other) == numbers(2 * FANOUT_LIMITED_MAX)[FANOUT_LIMITED_MAX:]
    sound(world)
    assert world.state.dispatch_blocked == {source}
    world.do(DeleteQueue(source))
    world.advance(1)
    sound(world)
