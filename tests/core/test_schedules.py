"""Schedules: what is sent again and again, and when."""

import sys
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from posthouse.core import decide, evolve, next_deadline_ms
from posthouse.core.commands import (
    FIRE_BYTES_MAX,
    SCHEDULED_BYTES_MAX,
    CancelSchedule,
    ListSchedules,
    PauseSchedule,
    Peek,
    Peeked,
    Purge,
    ResumeSchedule,
    SetFanout,
    SetSchedule,
    StepClock,
    Tick,
    UpdateQueue,
)
from posthouse.core.dump import dump
from posthouse.core.errors import AlreadyExists, InvalidArgument, NotFound, QuotaExceeded
from posthouse.core.message import NewMessage, message_id
from posthouse.core.model import QueueProperties, Schedule
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import ScheduleFired, ScheduleSet, Sent
from posthouse.core.recurrence import Cron, Every, following_ms, parse, said
from posthouse.core.snapshot import restore, take
from tests.core.world import World, a_message
from tests.invariants import check

HOUR = 3_600_000


def ms(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def occurrences(when: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """In that zone, from a moment there on."""
    recurrence, moment_ms = parse(when, zone), ms(after, zone)
    found = []
    for _ in range(count):
        moment_ms = following_ms(recurrence, moment_ms, ms(after, zone))
        moment = datetime.fromtimestamp(moment_ms / 1000, ZoneInfo(zone))
        found.append(moment.isoformat(timespec="seconds"))
    return found


# When.


@pytest.mark.parametrize(
    ("text", "recurrence", "again"),
    [
        ("every 30 seconds", Every(30_000), "every 30 seconds"),
        ("Every  minute", Every(60_000), "every 1 minutes"),
        ("every 90 minutes", Every(5_400_000), "every 90 minutes"),
        ("every 2500 milliseconds", Every(2_500), "every 2500 milliseconds"),
        ("at 14:30", Cron("30 14 * * *"), "30 14 * * *"),
        ("daily at 7:05:09", Cron("9 5 7 * * *"), "at 7:05:09"),
        ("*/5 9-17 * * MON-FRI", Cron("*/5 9-17 * * mon-fri"), "*/5 9-17 * * mon-fri"),
    ],
)
def test_a_recurrence_is_said_in_words_or_as_cron(
    text: str, recurrence: object, again: str
) -> None:
    assert parse(text) == recurrence
    assert said(parse(text)) == again
    assert parse(again) == recurrence


@pytest.mark.parametrize(
    "text",
    ["", "often", "every 0 seconds", "every 999 milliseconds", "every 999999999 weeks", "at 24:00",
     "at 12:60", "* * * *", "* * * * * *", "61 * * * *", "* * * * sol", "0 0 30 2 *", "x" * 257,
     "every ٣ seconds"],
)  # fmt: skip
def test_what_is_no_recurrence_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="when"):
        parse(text)


@pytest.mark.parametrize("zone", ["", "Nowhere/There", "../etc/passwd", "/etc/passwd", "x" * 99])
def test_a_time_zone_has_to_be_one(zone: str) -> None:
    with pytest.raises(InvalidArgument, match="zone"):
        parse("at 12:00", zone)


def test_cron_knows_lists_ranges_steps_names_and_both_sundays() -> None:
    assert occurrences("0,30 8-9 * * *", "2026-01-01T08:15", 4) == [
        "2026-01-01T08:30:00+00:00", "2026-01-01T09:00:00+00:00", "2026-01-01T09:30:00+00:00",
        "2026-01-02T08:00:00+00:00",
    ]  # fmt: skip
    assert occurrences("0 0 1 */6 *", "2026-01-02", 2) == [
        "2026-07-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00",
    ]  # fmt: skip
    sundays = occurrences("0 0 * * 0", "2026-01-01", 2)
    assert sundays == occurrences("0 0 * * 7", "2026-01-01", 2)
    assert sundays == occurrences("0 0 * * SUN", "2026-01-01", 2)
    assert occurrences("0 12 29 feb *", "2026-01-01", 1) == ["2028-02-29T12:00:00+00:00"]


def test_a_time_of_day_follows_the_clocks_of_its_zone() -> None:
    assert occurrences("at 02:30", "2026-03-28T12:00", 2, "Europe/Berlin") == [
        "2026-03-29T03:00:00+02:00",  # half past two does not exist on that day
        "2026-03-30T02:30:00+02:00",
    ]
    assert occurrences("at 02:30", "2026-10-24T12:00", 2, "Europe/Berlin") == [
        "2026-10-25T02:30:00+02:00",  # and exists twice on this one
        "2026-10-26T02:30:00+01:00",
    ]


def test_what_recurs_every_so_often_keeps_its_beat() -> None:
    assert following_ms(Every(1_000), 5_400, 200) == 6_200
    assert following_ms(Every(1_000), 6_200, 200) == 7_200
    assert following_ms(Every(1_000), 100, 200) == 1_200


def test_there_is_nothing_after_the_end_of_time() -> None:
    assert following_ms(Cron("0 0 * * *"), 253_370_764_800_000, 0) == 0


# Schedules.


def ids(world: World, queue: str) -> list[str]:
    answer = world.do(Peek(queue, limit=100)).answer
    assert isinstance(answer, Peeked)
    return [message_id(seen.message.envelope) for seen in answer.messages]


def schedule(world: World, queue: str, when: str = "every 10 seconds", **more: object) -> None:
    options = {"name": "beat", "message": a_message("tick"), **more}
    world.do(SetSchedule(queue, when=when, **options))  # type: ignore[arg-type]


def listed(world: World) -> list[Schedule]:
    answer = world.do(ListSchedules()).answer
    assert isinstance(answer, list)
    return [each for each in answer if isinstance(each, Schedule)]


def sound(world: World) -> None:
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)
    [state] = restore(take(Namespaces({"test": world.state}, ["test"]))).states.values()
    assert dump(state, bodies=False) == dump(world.state, bodies=False)


def test_a_message_is_sent_each_time() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue)
    world.advance(35_000)
    assert ids(world, queue) == ["beat@11000", "beat@21000", "beat@31000"]
    [found] = listed(world)
    assert (found.fired, found.last_ms, found.next_ms, found.problem) == (3, 31_000, 41_000, "")
    sound(world)


def test_it_goes_to_topics_and_to_who_waits() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    schedule(world, topic, message=a_message("tick", id="mine"))
    receiver = world.attach(queue, credit=1)
    [delivery] = world.advance(10_000)
    assert delivery.receiver == receiver
    sound(world)


def test_duplicate_detection_does_not_take_one_for_the_other() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    schedule(world, queue, message=a_message("tick", id="same"))
    world.advance(20_000)
    assert ids(world, queue) == ["same@11000", "same@21000"]


def test_what_was_missed_comes_once() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue)
    world.now_ms += 12 * HOUR + 3_000
    again = world.restarted()
    again.advance(0)
    assert ids(again, queue) == ["beat@11000"]
    [found] = listed(again)
    assert found.next_ms - again.now_ms == 7_000  # on the beat
    again.advance(7_000)
    assert len(ids(again, queue)) == 2
    sound(again)


def test_a_step_of_the_clock_neither_loses_nor_doubles_one() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue)
    world.now_ms += 60_000
    world.do(StepClock(60_000))
    world.advance(0)
    world.advance(10_000)
    assert len(ids(world, queue)) == 2
    fired = [each for _, each in world.journal if isinstance(each, ScheduleFired)]
    assert [each.due_ms for each in fired] == [11_000, 71_000]


def test_a_restart_neither_loses_nor_doubles_one() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue)
    world.advance(10_000)
    again = world.restarted()
    again.advance(9_999)
    assert len(ids(again, queue)) == 1
    again.advance(1)
    assert len(ids(again, queue)) == 2


def test_it_can_be_paused_resumed_replaced_and_cancelled() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue)
    for _ in range(2):
        world.do(PauseSchedule("beat"))
    world.advance(60_000)
    assert ids(world, queue) == []
    for _ in range(2):
        world.do(ResumeSchedule("beat"))
    world.advance(10_000)
    assert ids(world, queue) == ["beat@71000"]
    schedule(world, queue, "every 1 second", new=False)
    world.advance(2_000)
    assert len(ids(world, queue)) == 3
    sound(world)
    world.do(CancelSchedule("beat"))
    world.advance(60_000)
    assert len(ids(world, queue)) == 3
    assert listed(world) == []
    for command in (PauseSchedule("beat"), ResumeSchedule("beat"), CancelSchedule("beat")):
        with pytest.raises(NotFound):
            world.do(command)
    sound(world)


def test_what_cannot_be_sent_is_told() -> None:
    world = World()
    queue = world.queue(max_messages=1)
    schedule(world, queue)
    world.advance(20_000)
    [found] = listed(world)
    assert "is full" in found.problem
    world.do(Purge(queue, frozenset((0,))))
    world.advance(10_000)
    assert listed(world)[0].problem == ""
    world.do(UpdateQueue(queue, QueueProperties(status="disabled")))
    world.advance(10_000)
    assert "disabled" in listed(world)[0].problem
    assert listed(world)[0].fired == 4
    sound(world)


def test_a_schedule_has_to_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(NotFound):
        schedule(world, "nothing")
    with pytest.raises(NotFound):
        schedule(world, queue, new=False)
    with pytest.raises(InvalidArgument):
        schedule(world, queue, "often")
    with pytest.raises(InvalidArgument):
        schedule(world, queue, message=a_message("x", due_ms=5_000))
    with pytest.raises(InvalidArgument):
        schedule(world, queue, message=a_message("x" * 300_000))
    with pytest.raises(InvalidArgument):
        schedule(world, queue, name="a//b")
    schedule(world, queue)
    with pytest.raises(AlreadyExists):
        schedule(world, queue)
    monkeypatch.setattr(sys.modules["posthouse.core.schedules"], "SCHEDULES_MAX", 1)
    with pytest.raises(QuotaExceeded):
        schedule(world, queue, name="more")


def test_an_envelope_that_is_none_is_replaced() -> None:
    world = World()
    queue = world.queue()
    schedule(world, queue, message=NewMessage(b"", b"bare"))
    world.advance(10_000)
    assert ids(world, queue) == ["beat@11000"]


def test_one_that_is_over_stays_without_a_next_time() -> None:
    world = World()
    queue = world.queue()
    world.now_ms = 253_370_764_800_000 - 1_000
    schedule(world, queue, "0 0 * * *")
    world.advance(1_000)
    [found] = listed(world)
    assert (found.fired, found.next_ms) == (1, 0)
    sound(world)


def test_a_tick_sends_large_scheduled_messages_a_few_at_a_time() -> None:
    world = World()
    queue = world.queue()
    large = a_message("x" * (SCHEDULED_BYTES_MAX - 200))
    for n in range(20):
        world.do(SetSchedule(queue, f"s{n}", "every 10 seconds", large))
    world.now_ms += 60_000
    ticks = 0
    while next_deadline_ms(world.state) <= world.now_ms:  # type: ignore[operator]
        records = world.do(Tick()).records
        sent = sum(record.size_bytes for record in records if isinstance(record, Sent))
        assert 0 < sent <= FIRE_BYTES_MAX + SCHEDULED_BYTES_MAX
        ticks += 1
    assert ticks > 3
    assert world.counts(queue).active == 20


def test_schedules_send_nothing_while_senders_are_refused() -> None:
    world = World()
    queue = world.queue()
    world.do(SetSchedule(queue, "beat", "every 10 seconds", a_message("tick")))
    world.do(SetFanout("limited"))
    world.advance(10_000)
    assert world.counts(queue).active == 0
    assert "room" in world.state.schedules["beat"].problem
    world.do(SetFanout("open"))
    world.advance(10_000)
    assert world.counts(queue).active == 1
    assert not world.state.schedules["beat"].problem


def test_a_quicker_schedule_of_an_older_journal_keeps_to_the_least_interval() -> None:
    assert following_ms(Every(300), 1_000, 1_000) == 2_200  # every fourth of its moments
    world = World()
    queue = world.queue()
    old = ScheduleSet("beat", 1_000, queue, Every(100), a_message("tick"), 1_100)
    evolve(world.state, old, world.position)
    for _ in range(100):
        world.now_ms += 100
        for record in decide(world.state, Tick(), world.now_ms).records:
            evolve(world.state, record, world.position)
    assert 10 <= world.counts(queue).active <= 11
