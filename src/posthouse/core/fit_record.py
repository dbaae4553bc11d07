"""Fitting a record to a state from which some of the records before it were lost.

After a repair the journal has gaps, and records behind a gap may speak of what was in it. `evolve`
cannot fail only on what fits the state, so what does not fit is replaced by `Missing`, position for
position. When in doubt a message stays: it may be delivered again, but is not lost.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.core.message import ACTIVE, DEFERRED, DELAYED, LOCKED, SCHEDULED, Message
from posthouse.core.model import Queue, State, topic_of
from posthouse.core.records import (
    Activated,
    Cancelled,
    ClockSet,
    ClockStepped,
    ClockTurnedBack,
    Completed,
    Copies,
    DeadLettered,
    Deferred,
    Dropped,
    Expired,
    Forgotten,
    Kept,
    Locked,
    MessagesRestored,
    Missing,
    Moved,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueRestored,
    QueueUpdated,
    Relocked,
    Renewed,
    Resubmitted,
    Returned,
    Routed,
    RuleRemoved,
    RuleSet,
    ScheduleCancelled,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    SubscriptionCreated,
    Taken,
    Woken,
    span,
)


def fit_record(state: State, record: Kept) -> list[Kept | Missing]:
    """Records that cover the same positions and fit the state."""
    if isinstance(record, Started | ClockStepped | ClockSet):
        return [record]
    if isinstance(record, ClockTurnedBack):
        there = [each for each in record.schedules if each[0] in state.schedules]
        return [msgspec.structs.replace(record, schedules=there)]
    if isinstance(record, QueueCreated):
        clash = record.queue.casefold() in state.folded
        return [Missing(1) if clash else record]
    if isinstance(record, ScheduleSet):
        return [record]
    if isinstance(record, ScheduleFired | SchedulePaused | ScheduleResumed | ScheduleCancelled):
        return [record if record.name in state.schedules else Missing(1)]
    if isinstance(record, SubscriptionCreated):
        topic = state.queues.get(topic_of(record.queue))
        fits_in = topic is not None and topic.properties.delivery != "competing"
        clash = record.queue.casefold() in state.folded
        return [record if fits_in and not clash else Missing(1)]
    queue = state.queues.get(record.queue)
    if queue is None:
        return [Missing(span(record))]
    if isinstance(record, Routed):
        return _fit_routed(state, queue, record)
    fits = _WHOLE.get(type(record))
    if fits is not None:
        return [record if fits(state, queue, record) else Missing(span(record))]
    if isinstance(record, QueueUpdated):
        return [_kept_in_kind(queue, record)]
    return [_fit_one(state, queue, each) for each in _singles(record)]


def _kept_in_kind(queue: Queue, record: QueueUpdated) -> QueueUpdated:
    """Leaves what cannot be changed of a queue as it was taken to be."""
    old = queue.properties
    properties = msgspec.structs.replace(
        record.properties,
        order=old.order,
        grouping=old.grouping,
        requires_session=old.requires_session,
        duplicate_detection=old.duplicate_detection,
        delivery=old.delivery,
    )
    return msgspec.structs.replace(record, properties=properties)


def _fits_sent(_: State, queue: Queue, record: Sent) -> bool:
    return record.first_sequence >= queue.next_sequence


def _fits_forgotten(_: State, queue: Queue, record: Forgotten) -> bool:
    return record.count <= len(queue.seen_order)


def _fits_accepted(state: State, queue: Queue, record: SessionAccepted) -> bool:
    group = queue.groups.get(record.session)
    free = group is None or not group.token
    return queue.properties.grouping == "session" and free and record.lock >= state.next_lock


def _fits_renewed(_: State, queue: Queue, record: SessionRenewed) -> bool:
    group = queue.groups.get(record.session)
    return group is not None and group.token != 0


def _fits_released(_: State, queue: Queue, record: SessionReleased) -> bool:
    group = queue.groups.get(record.session)
    return group is not None and group.token != 0 and not group.locks


def _fits_state_set(_: State, queue: Queue, record: SessionStateSet) -> bool:
    return record.session in queue.groups


def _fits_restored(_: State, queue: Queue, record: MessagesRestored) -> bool:
    return all(queue.messages.get(sequence) is None for sequence in record.sequences)


_WHOLE: dict[type[Kept], Callable[[State, Queue, Any], bool]] = {
    QueueDeleted: lambda *_: True,
    Sent: _fits_sent,
    Forgotten: _fits_forgotten,
    SessionAccepted: _fits_accepted,
    SessionRenewed: _fits_renewed,
    SessionReleased: _fits_released,
    SessionStateSet: _fits_state_set,
    QueueRestored: lambda *_: True,
    MessagesRestored: _fits_restored,
    RuleSet: lambda _, queue, __: queue.topic is not None,
    RuleRemoved: lambda _, queue, record: record.rule in queue.rules,
}


def _fit_routed(state: State, queue: Queue, record: Routed) -> list[Kept | Missing]:
    """A record for each copy, and for each message that leaves."""
    made: list[Kept | Missing] = []
    taken: dict[str, int] = {}  # numbers given by the records made here
    partly = {
        sequence: number
        for sequence, number in record.partly.items()
        if queue.messages.get(sequence) is not None
    }
    for copies in record.every():
        target = state.queues.get(copies.queue)
        for at, sequence in enumerate(copies.sequences):
            number = copies.first_sequence + at
            free = 0 if target is None else taken.get(target.name, target.next_sequence)
            if target is None or queue.messages.get(sequence) is None or number < free:
                made.append(Missing(1))
                continue
            taken[target.name] = number + 1
            one = _one_copy(copies, at)
            made.append(Routed(queue.name, record.time_ms, [], [one], partly=partly))
    for sequence in record.sequences:
        there = queue.messages.get(sequence) is not None
        made.append(Purged(queue.name, [sequence]) if there else Missing(1))
    return made


def _one_copy(copies: Copies, at: int) -> Copies:
    return Copies(
        copies.queue, copies.first_sequence + at, copies.sequences[at : at + 1],
        None if copies.expires_ms is None else copies.expires_ms[at : at + 1],
        None if copies.notes is None else copies.notes[at : at + 1],
        copies.same,
    )  # fmt: skip


def _singles(record: Kept) -> list[Any]:
    """A record for each message of one about several."""
    made = []
    for at in range(span(record)):
        changes: dict[str, object] = {}
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, list):
                changes[name] = value[at : at + 1]
            elif name in ("first_sequence", "first_lock"):
                changes[name] = value + at
        made.append(msgspec.structs.replace(record, **changes))
    return made


def _fit_one(state: State, queue: Queue, record: Any) -> Kept | Missing:
    message = queue.messages.get(record.sequences[0])
    if message is None:
        return Missing(1)
    if isinstance(record, Completed) and message.state != LOCKED and not record.late:
        return Purged(queue.name, record.sequences)  # it was done, whatever is missing between
    return record if _FITS[type(record)](state, queue, message, record) else Missing(1)


def _always(*_: object) -> bool:
    return True


def _in(*states: int) -> Callable[[State, Queue, Message, Any], bool]:
    return lambda _state, _queue, message, _record: message.state in states


def _fits_activated(_: State, queue: Queue, message: Message, record: Activated) -> bool:
    return message.state == SCHEDULED and record.first_sequence >= queue.next_sequence


def _fits_locked(state: State, queue: Queue, message: Message, record: Locked) -> bool:
    if message.state not in (ACTIVE, DEFERRED) or record.first_lock < state.next_lock:
        return False
    group = queue.group(message)
    if group is None:
        return True
    if queue.properties.grouping == "session":
        return group.token != 0
    if queue.gives_runs:  # what is in flight before it was given with it
        before = (each for each in group.held if each < message.sequence)
        held = (queue.messages[each] for each in before if queue.holds_back(each))
        return message.state == DEFERRED or all(
            each.state == LOCKED and state.locks[each.lock].since_ms == record.time_ms
            for each in held
        )
    return not group.locks and not group.delayed


def _fits_lock_renewed(state: State, _: Queue, message: Message, record: Renewed) -> bool:
    return message.state == LOCKED and state.locks[message.lock].session is None


def _fits_relocked(state: State, queue: Queue, message: Message, record: Relocked) -> bool:
    there = message.state in (ACTIVE, DELAYED) and queue.group(message) is None
    return there and record.first_lock >= state.next_lock


def _fits_dead(_: State, queue: Queue, message: Message, record: DeadLettered) -> bool:
    return queue.dead is not None and record.first_sequence >= queue.dead.next_sequence


def _fits_resubmitted(state: State, queue: Queue, message: Message, record: Resubmitted) -> bool:
    target = state.queues.get(record.target)
    return (
        target is not None
        and message.sequence in queue.notes
        and record.first_sequence >= target.next_sequence
    )


_FITS: dict[type[Kept], Callable[[State, Queue, Message, Any], bool]] = {
    Activated: _fits_activated,
    Woken: _in(DELAYED),
    Cancelled: _always,
    Locked: _fits_locked,
    Taken: _always,
    Completed: _always,
    Returned: _in(LOCKED),
    Deferred: _in(LOCKED),
    DeadLettered: _fits_dead,
    Expired: _always,
    Renewed: _fits_lock_renewed,
    Relocked: _fits_relocked,
    Resubmitted: _fits_resubmitted,
    Purged: _always,
    Dropped: _always,
    Moved: _always,
}
