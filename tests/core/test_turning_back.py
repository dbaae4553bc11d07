"""A clock that was ahead is turned back: what lasts a while lasts as long as before."""

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    PauseSchedule,
    SetClock,
    SetSchedule,
    SetSessionState,
    TurnClockBack,
)
from posthouse.core.dump import dump
from posthouse.core.fit_record import fit_record
from posthouse.core.model import Queue, State, dead_letter_queue
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import ClockTurnedBack
from posthouse.core.snapshot import restore, take
from tests.core.world import World, a_message
from tests.invariants import check

RIGHT_MS = 1_700_000_000_000
STEP_MS = 315_000_000_000  # ten years
HOUR_MS = 3_600_000


def ahead() -> World:
    """A world that was made when the clock was right; then that went ten years ahead."""
    world = World()
    world.now_ms = RIGHT_MS - HOUR_MS
    world.queue("before")
    world.send("before", a_message("old", ttl_ms=100 * STEP_MS))
    world.now_ms = RIGHT_MS - 1_000 + STEP_MS
    world.queue("orders", idle_delete_ms=HOUR_MS, duplicate_detection=True, backoff_ms=[5_000])
    return world


def turn_back(world: World, *, scheduled: bool = False) -> None:
    """A second later."""
    world.now_ms = RIGHT_MS
    world.do(TurnClockBack(STEP_MS, scheduled))
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    (restored,) = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert dump(restored, bodies=False) == dump(world.state, bodies=False)


def queue_of(world: World, name: str = "orders") -> Queue:
    return world.state.queues[name]


def test_moments_that_have_passed_are_right_again_and_those_noted_before_stay() -> None:
    world = ahead()
    world.send("orders", "new")
    turn_back(world)
    [old] = queue_of(world, "before").messages.walk(0)
    [new] = queue_of(world).messages.walk(0)
    assert old.enqueued_ms == RIGHT_MS - HOUR_MS
    assert old.expires_ms == old.enqueued_ms + 100 * STEP_MS
    assert new.enqueued_ms == queue_of(world).created_ms == RIGHT_MS - 1_000
    assert world.state.turned_back == world.position - 1


def test_locks_sessions_and_lives_last_as_long_as_they_would_have() -> None:
    world = ahead()
    world.queue("sessions", grouping="session")
    world.send("sessions", a_message("in it", group="s"), a_message("free", group="t"))
    session = world.hold("sessions", "s")
    world.do(SetSessionState("sessions", session.token, b"state"))
    world.send("orders", a_message("locked"), a_message("short", ttl_ms=30_000))
    [locked] = world.receive("orders")
    world.receive("sessions", session=session.token)
    turn_back(world)
    lock = world.state.locks[locked.token]
    assert lock.until_ms == RIGHT_MS - 1_000 + 60_000
    assert lock.since_ms == RIGHT_MS - 1_000
    assert queue_of(world, "sessions").groups["s"].until_ms == RIGHT_MS - 1_000 + 60_000
    assert next_deadline_ms(world.state) == RIGHT_MS - 1_000 + 30_000  # the short life
    world.now_ms += 29_000
    world.tick()
    assert len(list(queue_of(world).messages.walk(0))) == 1
    world.do(Complete("orders", [locked.token]))
    world.now_ms += 31_000
    world.tick()
    assert not world.state.sessions


def test_what_is_held_back_and_deferred_comes_when_it_would_have() -> None:
    world = ahead()
    world.send("orders", "again", "deferred")
    first, second = world.receive("orders", 2)
    world.do(Abandon("orders", [first.token]))
    world.do(Defer("orders", [second.token]))
    turn_back(world)
    assert world.receive("orders") == []
    world.now_ms += 4_000
    world.tick()
    assert [each.message.body for each in world.receive("orders")] == [b"again"]


def test_scheduled_messages_keep_the_moments_that_their_senders_gave() -> None:
    world = ahead()
    world.send("orders", a_message("later", due_ms=world.now_ms + HOUR_MS, ttl_ms=5_000))
    turn_back(world)
    [message] = queue_of(world).messages.walk(0)
    assert message.enqueued_ms == RIGHT_MS - 1_000 + STEP_MS + HOUR_MS


def test_scheduled_messages_are_due_earlier_where_that_is_asked_for() -> None:
    world = ahead()
    world.send("orders", a_message("later", due_ms=world.now_ms + HOUR_MS, ttl_ms=5_000))
    turn_back(world, scheduled=True)
    [message] = queue_of(world).messages.walk(0)
    assert message.enqueued_ms == RIGHT_MS - 1_000 + HOUR_MS
    assert message.expires_ms == message.enqueued_ms + 5_000
    world.now_ms += HOUR_MS
    world.tick()
    assert world.receive("orders")


def test_duplicates_are_known_and_forgotten_in_time() -> None:
    world = ahead()
    world.send("orders", a_message("x", id="one"))
    turn_back(world)
    world.send("orders", a_message("x", id="one"))
    assert len(list(queue_of(world).messages.walk(0))) == 1
    world.now_ms += 600_000
    world.tick()
    world.send("orders", a_message("x", id="one"))
    assert len(list(queue_of(world).messages.walk(0))) == 2


def test_schedules_go_on_from_now_and_paused_ones_stay_so() -> None:
    world = ahead()
    world.do(SetSchedule("orders", "beat", "every 10 minutes", a_message("tick")))
    world.do(SetSchedule("orders", "daily", "at 14:30", a_message("tick")))
    world.do(SetSchedule("orders", "rests", "every 10 minutes", a_message("tick")))
    world.do(PauseSchedule("rests"))
    turn_back(world)
    schedules = world.state.schedules
    assert schedules["beat"].next_ms == RIGHT_MS - 1_000 + 600_000
    assert RIGHT_MS < schedules["daily"].next_ms <= RIGHT_MS + 24 * HOUR_MS
    assert schedules["rests"].next_ms == 0


def test_dead_letters_and_idle_queues_have_right_times() -> None:
    world = ahead()
    world.send("orders", "dead")
    [dead] = world.receive("orders")
    world.do(DeadLetter("orders", [dead.token], reason="bad"))
    turn_back(world)
    [note] = queue_of(world, dead_letter_queue("orders")).notes.values()
    assert note.dead_ms == RIGHT_MS - 1_000
    assert queue_of(world).idle_due_ms == RIGHT_MS - 1_000 + HOUR_MS
    world.now_ms += HOUR_MS
    world.tick()
    assert "before" in world.state.queues


def test_what_was_deleted_is_freed_before() -> None:
    world = ahead()
    world.send("orders", *(a_message("x", ttl_ms=50_000) for _ in range(500)))
    world.receive("orders", 10)
    world.do(DeleteQueue("orders"))
    turn_back(world)
    assert not world.state.doomed
    assert world.state.expiry_timers.items() == [
        each for each in world.state.expiry_timers.items() if each[0] > 10 * STEP_MS
    ]


def test_a_namespace_with_its_own_clock_keeps_its_times() -> None:
    world = ahead()
    own_ms = world.now_ms + HOUR_MS
    world.do(SetClock(own_ms, world.now_ms))
    world.now_ms = own_ms
    world.send("orders", "by its own clock")
    world.do(SetSchedule("orders", "beat", "every 10 minutes", a_message("tick")))
    next_ms = world.state.schedules["beat"].next_ms
    world.now_ms = RIGHT_MS
    world.do(TurnClockBack(STEP_MS))
    [message] = queue_of(world).messages.walk(0)
    assert message.enqueued_ms == own_ms
    assert world.state.broker_ms == RIGHT_MS - 1_000
    assert world.state.schedules["beat"].next_ms == next_ms
    assert dump(world.replayed()) == dump(world.state)


def test_behind_a_repair_schedules_that_are_not_there_are_left_out() -> None:
    record = ClockTurnedBack(RIGHT_MS, STEP_MS, [("gone", RIGHT_MS)])
    assert fit_record(State("test"), record) == [ClockTurnedBack(RIGHT_MS, STEP_MS, [])]
