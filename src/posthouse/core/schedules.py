"""Schedules: a message that is sent again and again.

What is due is sent once, however late it is noticed: occurrences that passed while nobody looked,
as when the broker was down, come to one. The next is behind now.
"""

import msgspec

from posthouse.core.checks import check_count, check_name
from posthouse.core.commands import (
    FIRE_BYTES_MAX,
    PAGE_MAX,
    SCHEDULED_BYTES_MAX,
    SCHEDULES_MAX,
    CancelSchedule,
    ListSchedules,
    PauseSchedule,
    ResumeSchedule,
    Send,
    SetSchedule,
)
from posthouse.core.errors import (
    AlreadyExists,
    Busy,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    Refused,
)
from posthouse.core.message import (
    Envelope,
    NewMessage,
    decode_envelope,
    encode_envelope,
    size_bytes,
)
from posthouse.core.model import Schedule, State, page
from posthouse.core.plan import Outcome, Plan
from posthouse.core.records import (
    ScheduleCancelled,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
)
from posthouse.core.recurrence import following_ms, parse
from posthouse.core.sending import checked_send, send_on
from posthouse.core.shares import SCHEDULES, check_share


def set_schedule(state: State, command: SetSchedule, now_ms: int) -> Outcome:
    check_name("schedule", command.name)
    there = state.schedules.get(command.name)
    if command.new and there is not None:
        raise AlreadyExists("schedule", command.name)
    if not command.new and there is None:
        raise NotFound("schedule", command.name)
    if len(state.schedules) >= SCHEDULES_MAX and there is None:
        raise QuotaExceeded(
            "the namespace", "the number of schedules", SCHEDULES_MAX, SCHEDULES_MAX
        )
    if there is None:
        check_share(state.held, command.by, SCHEDULES, "", SCHEDULES_MAX)
    message = command.message
    checked_send(state, Send(command.queue, [message]), now_ms)
    if size_bytes(message) > SCHEDULED_BYTES_MAX or message.due_ms:
        raise InvalidArgument(
            "message", f"must have at most {SCHEDULED_BYTES_MAX} bytes, and no time of its own"
        )
    when = parse(command.when, command.zone)
    # One that is replaced keeps its beat, as it does over a pause.
    next_ms = following_ms(when, now_ms, now_ms if there is None else there.created_ms)
    by = command.by.name if there is None else ""
    return Outcome([ScheduleSet(command.name, now_ms, command.queue, when, message, next_ms, by)])


def _schedule(state: State, name: str) -> Schedule:
    schedule = state.schedules.get(name)
    if schedule is None:
        raise NotFound("schedule", name)
    return schedule


def pause(state: State, command: PauseSchedule, now_ms: int) -> Outcome:
    schedule = _schedule(state, command.name)
    return Outcome([] if schedule.paused else [SchedulePaused(schedule.name, now_ms)])


def resume(state: State, command: ResumeSchedule, now_ms: int) -> Outcome:
    schedule = _schedule(state, command.name)
    if not schedule.paused:
        return Outcome([])
    next_ms = following_ms(schedule.when, now_ms, schedule.created_ms)
    return Outcome([ScheduleResumed(schedule.name, now_ms, next_ms)])


def cancel(state: State, command: CancelSchedule, now_ms: int) -> Outcome:
    return Outcome([ScheduleCancelled(_schedule(state, command.name).name, now_ms)])


def list_all(state: State, command: ListSchedules, _: int) -> Outcome:
    check_count("limit", command.limit, 1, PAGE_MAX)
    names = page(sorted(state.schedules), command.after, command.limit)
    return Outcome([], [msgspec.structs.replace(state.schedules[name]) for name in names])


def fire(plan: Plan, left: int) -> int:
    """Sends what is due, as much as one tick may. Where that is refused, the record says why."""
    done = sent_bytes = 0
    for number in plan.state.schedule_timers.due(plan.now_ms, left):
        if sent_bytes > FIRE_BYTES_MAX:
            return left  # the next tick goes on
        schedule = plan.state.scheduled[number]
        next_ms = following_ms(schedule.when, plan.now_ms, schedule.next_ms)
        problem = ""
        try:
            _send(plan, schedule)
            sent_bytes += size_bytes(schedule.message)
        except Refused as refused:
            problem = str(refused)
        fired = ScheduleFired(schedule.name, plan.now_ms, schedule.next_ms, next_ms, problem)
        plan.records.append(fired)
        done += 1
    return done


def _send(plan: Plan, schedule: Schedule) -> None:
    """Raises Refused."""
    if plan.state.fanout != "open":  # as senders are refused then
        raise Busy("it has no room for more messages")
    send = Send(schedule.queue, [_of_now(schedule)])
    queue, messages, _ = checked_send(plan.state, send, plan.now_ms)
    send_on(plan, queue, messages, send)


def _of_now(schedule: Schedule) -> NewMessage:
    """Gives the message an id of its own, so that it is not taken for the one before."""
    try:
        envelope = decode_envelope(schedule.message.envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope = Envelope()
    id = f"{envelope.id or schedule.name}@{schedule.next_ms}"
    envelope = msgspec.structs.replace(envelope, id=id)
    return msgspec.structs.replace(
        schedule.message, envelope=encode_envelope(envelope), native=None
    )
