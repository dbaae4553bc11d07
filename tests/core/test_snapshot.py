"""Snapshots: the state as bytes and back. The histories of test_properties.py try the rest."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from posthouse.core.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    Send,
    SetClock,
    SetSchedule,
    SetSessionState,
    UpdateQueue,
)
from posthouse.core.dump import dump
from posthouse.core.model import Account, Grant, QueueProperties, Reader, State, dead_letter_queue
from posthouse.core.namespaces import Namespaces, add_account
from posthouse.core.rules import Rule, SqlFilter
from posthouse.core.snapshot import restore, take
from tests.core.world import KEY, World, a_message
from tests.invariants import check

GOLDEN = Path(__file__).with_name("golden_snapshot.txt")
BEFORE_TOPICS = Path(__file__).with_name("golden_snapshot_1.txt")
BEFORE_EXTRAS = Path(__file__).with_name("golden_snapshot_2.txt")
BEFORE_SINCE = Path(__file__).with_name("golden_snapshot_3.txt")
BEFORE_KEYS = Path(__file__).with_name("golden_snapshot_4.txt")
BEFORE_TURNING = Path(__file__).with_name("golden_snapshot_5.txt")
BEFORE_HOPS = Path(__file__).with_name("golden_snapshot_6.txt")
BEFORE_LIMIT_COUNTS = Path(__file__).with_name("golden_snapshot_7.txt")
BEFORE_LATE_SETTLING = Path(__file__).with_name("golden_snapshot_8.txt")
WITH_KEYS = (BEFORE_TURNING, BEFORE_HOPS, BEFORE_LIMIT_COUNTS, BEFORE_LATE_SETTLING)


def of(state: State) -> Namespaces:
    return Namespaces({state.name: state}, [state.name])


def a_full_world(key: bytes = KEY) -> World:
    """Something of everything that a namespace can hold."""
    world = World(key=key)
    world.queue("plain", dead_letter_expired=True, idle_delete_ms=90_000)
    world.queue("urgent", order="priority")
    world.queue("sessions", grouping="session")
    world.queue("groups", grouping="group", duplicate_detection=True)
    world.send("plain", *(a_message(f"{n}", id=f"id{n}", colour="red") for n in range(7)))
    world.send("plain", a_message("later", due_ms=50_000), a_message("brief", ttl_ms=20_000))
    world.send("urgent", a_message("low", priority=1), a_message("high", priority=9))
    world.send("sessions", *(a_message(f"{n}", group=f"s{n % 3}") for n in range(7)))
    world.send("groups", *(a_message(f"{n}", id=f"g{n}", group=f"g{n % 2}") for n in range(4)))
    first, second, third, fourth = world.receive("plain", 4, by_id=True)
    world.do(Abandon("plain", [first.token], delay_ms=5_000, properties={"tries": 1}))
    world.do(Defer("plain", [second.token]))
    world.do(DeadLetter("plain", [third.token], reason="bad"))
    world.do(Complete("plain", [fourth.token]))
    world.receive("plain", 1, by_id=True)
    world.receive("groups", 1)
    held = world.hold("sessions", "s1")
    world.receive("sessions", 1, session=held.token)
    world.do(SetSessionState("sessions", held.token, b"half way"))
    world.do(SetClock(60_000))
    return world


def a_world_with_topics(key: bytes = KEY) -> World:
    world = a_full_world(key)
    topic = world.topic(duplicate_detection=True)
    world.queue("far", status="disabled")
    world.subscribe(topic, "all", ttl_ms=50_000)
    world.subscribe(topic, "some", Rule("red", SqlFilter("colour = 'red'"), "SET n = 2"))
    world.subscribe(topic, "on", forward_to="far", forward_dead_to="plain")
    world.subscribe(topic, "none", default=False)
    world.send(topic, a_message("news", id="n1", colour="red", ttl_ms=70_000))
    world.send(topic, a_message("later", id="n2", due_ms=80_000))
    world.queue("all-of-us", delivery="fan-out")
    world.attach("all-of-us", 5)
    world.send("all-of-us", "for everybody")
    world.do(SetSchedule("plain", "beat", "at 14:30", a_message("tick"), "Europe/Berlin"))
    return world


@pytest.mark.parametrize("make", [a_full_world, a_world_with_topics])
def test_a_snapshot_restores_everything_but_bodies(make: Callable[[], World]) -> None:
    world = make()
    (state,) = restore(take(of(world.state))).states.values()
    check(state, world.now_ms)
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
    bodies = [message.body for message in state.queues["plain"].messages.walk(0)]
    assert bodies == [1, 1, 1, 1, 1, 5, 5]
    assert state.queues["plain"].evicted_bytes == state.queues["plain"].body_bytes == 15


def test_a_restored_state_goes_on_as_the_first_would() -> None:
    world, twin = a_full_world(), a_full_world()
    (twin.state,) = restore(take(of(twin.state))).states.values()
    for each in (world, twin):
        each.advance(100_000)
        each.send("sessions", a_message("new", group="s9"))
        each.do(Send("groups", [a_message("again", id="g1", group="g1")]))
    assert dump(twin.state, bodies=False) == dump(world.state, bodies=False)


def test_a_snapshot_of_a_restored_state_is_the_same() -> None:
    parts = list(take(of(a_full_world().state)))
    assert list(take(restore(parts))) == parts


def test_messages_whose_bodies_were_evicted_are_settled_like_others() -> None:
    world = World()
    world.queue()
    world.send("orders", "abc", "defg")
    (world.state,) = restore(take(of(world.state))).states.values()
    first, second = world.receive("orders", 2)
    assert first.message.body == 3
    world.do(Complete("orders", [first.token]))
    world.do(DeadLetter("orders", [second.token]))
    check(world.state, world.now_ms)
    assert world.state.queues["orders"].evicted_bytes == 0
    assert world.state.queues[dead_letter_queue("orders")].evicted_bytes == 4


def test_messages_whose_bodies_were_evicted_are_forwarded_like_others() -> None:
    world = World()
    target, queue = world.queue("target"), world.queue()
    world.send(queue, "abc", "defg")
    (world.state,) = restore(take(of(world.state))).states.values()
    world.do(UpdateQueue(queue, QueueProperties(forward_to=target)))
    world.advance(1)
    check(world.state, world.now_ms)
    assert world.state.queues[target].evicted_bytes == 7


def test_a_message_that_is_held_back_is_so_in_a_snapshot() -> None:
    world = World()
    queue = world.queue(backoff_ms=[500])
    world.send(queue, a_message("a", ttl_ms=5_000))
    [delivery] = world.receive(queue)
    world.do(Abandon(queue, [delivery.token]))
    (world.state,) = restore(take(of(world.state))).states.values()
    check(world.state, world.now_ms)
    assert world.peek(queue) == [(1, "delayed")]
    world.advance(500)
    assert world.peek(queue) == [(1, "active")]


def test_a_snapshot_leaves_out_deleted_queues_and_connections() -> None:
    world = World()
    world.queue("gone")
    world.send("gone", *("x" for _ in range(300)))
    world.receive("gone", 3)
    world.queue("stays")
    world.attach("stays", 5)
    world.do(DeleteQueue("gone"))
    assert world.state.doomed
    (state,) = restore(take(of(world.state))).states.values()
    check(state, world.now_ms)
    assert dump(state) == dump(world.state)
    assert not state.doomed
    assert not state.locks
    assert not state.receivers
    assert list(state.queues) == ["stays", dead_letter_queue("stays")]


def test_a_snapshot_holds_every_namespace_and_many_messages() -> None:
    world = World()
    world.queue("many")
    for _ in range(5):
        world.send("many", *("x" for _ in range(2_000)))
    world.receive("many", 5_000)
    other = State("other", 5)
    both = Namespaces({"test": world.state, "other": other}, ["other", "test"])
    parts = list(take(both))
    assert max(map(len, parts)) < 200_000
    restored = restore(parts)
    assert restored.names == ["other", "test"]
    for name, state in both.states.items():
        assert dump(restored.states[name], bodies=False) == dump(state, bodies=False)


def test_an_empty_body_is_there_again() -> None:
    world = World()
    world.queue()
    world.send("orders", "", "x")
    (state,) = restore(take(of(world.state))).states.values()
    assert [message.body for message in state.queues["orders"].messages.walk(0)] == [b"", 1]


def test_no_part_of_a_snapshot_is_large() -> None:
    world = World()
    world.queue(grouping="session")
    for number in range(8):
        world.send("orders", a_message("x", native=bytes(300_000), group=f"{number}"))
        held = world.hold("orders", f"{number}")
        world.do(SetSessionState("orders", held.token, bytes(250_000)))
    parts = list(take(of(world.state)))
    assert max(map(len, parts)) < 2 << 20
    (state,) = restore(parts).states.values()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
    check(state, world.now_ms)


def test_a_key_that_was_sent_again_is_remembered_as_often_as_before() -> None:
    """Until the tick that forgets it, its old entry stands beside the new one."""
    world = World()
    world.queue("once", duplicate_detection=True, duplicate_window_ms=1_000)
    world.send("once", a_message("x", id="a"), a_message("y", id="b"))
    world.now_ms += 1_500
    world.send("once", a_message("x", id="a"))
    (state,) = restore(take(of(world.state))).states.values()
    assert len(state.queues["once"].seen_order) == 3
    world.advance(600)
    twin = World()
    twin.state, twin.now_ms = state, world.now_ms
    twin.tick()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)


def test_the_bytes_of_a_snapshot_do_not_change() -> None:
    world = a_world_with_topics()
    data = [bytes.fromhex(line) for line in GOLDEN.read_text().splitlines()]
    (state,) = restore(data).states.values()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)
    assert list(take(of(world.state))) == data


@pytest.mark.parametrize(
    ("old", "make"),
    [
        (BEFORE_TOPICS, a_full_world), (BEFORE_EXTRAS, a_world_with_topics),
        (BEFORE_SINCE, a_world_with_topics), (BEFORE_KEYS, a_world_with_topics),
        (BEFORE_TURNING, a_world_with_topics), (BEFORE_HOPS, a_world_with_topics),
        (BEFORE_LIMIT_COUNTS, a_world_with_topics), (BEFORE_LATE_SETTLING, a_world_with_topics),
    ],
)  # fmt: skip
def test_a_snapshot_of_an_older_version_can_be_read(
    old: Path, make: Callable[[bytes], World]
) -> None:
    (state,) = restore(map(bytes.fromhex, old.read_text().splitlines())).states.values()
    world = make(KEY if old in WITH_KEYS else b"")  # tokens had no key before
    if old not in (BEFORE_KEYS, *WITH_KEYS):
        for lock in world.state.locks.values():
            lock.since_ms = 0  # that was not noted then
    for queue in world.state.queues.values():
        queue.firsts.clear()  # nor was this
        queue.seen_ids.clear()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)


def test_an_empty_world_has_a_snapshot_too() -> None:
    assert restore(take(Namespaces())) == Namespaces()


def test_other_bytes_are_no_snapshot() -> None:
    with pytest.raises(msgspec.DecodeError):
        restore([b"\x91\x09"])


def test_a_snapshot_holds_what_is_beside_the_namespaces() -> None:
    world = Namespaces()
    add_account(world, Account("ann", 5, 1, 2, [Grant("*", "q*", ["send"])], [b"sealed"]))
    add_account(world, Account("r@n/q", 6, 1, 2, [Grant("n", "q", ["send"])], [b"sealed"]))
    world.readers["spark"] = Reader("spark", 9, 3)
    assert restore(take(world)) == world
