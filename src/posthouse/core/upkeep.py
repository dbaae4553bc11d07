"""Upkeep: commands on messages where they stand, whatever their state.

They are peeked at, cancelled, purged, resubmitted from a dead-letter queue, or moved to the end of
the journal.
"""

from collections.abc import Sequence
from copy import copy
from itertools import islice

from posthouse.core.checks import check_count
from posthouse.core.commands import (
    ANSWER_BYTES_MAX,
    BATCH_MAX,
    PAGE_MAX,
    STEPS_MAX,
    Cancel,
    Move,
    Peek,
    Peeked,
    Progress,
    Purge,
    Resubmit,
    Seen,
)
from posthouse.core.dispatch import dispatch
from posthouse.core.endings import leave_groups
from posthouse.core.errors import (
    Disabled,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    QuotaExceeded,
)
from posthouse.core.lookup import messages_in, own_queue, queue_of
from posthouse.core.message import (
    ACTIVE,
    DEFERRED,
    DELAYED,
    LOCKED,
    NO_NOTE,
    SCHEDULED,
    STATES,
    Message,
    size_bytes,
)
from posthouse.core.model import Queue, State, sent_life_ms
from posthouse.core.picking import can_send
from posthouse.core.plan import Outcome, Plan, as_active, sequences_of
from posthouse.core.records import Cancelled, Forgotten, Moved, Purged, Record, Resubmitted
from posthouse.core.room import check_room, used
from posthouse.core.sending import check_fit, expiry_ms, misfit


def peek(state: State, command: Peek, _: int) -> Outcome:
    queue = queue_of(state, command.queue)
    check_count("limit", command.limit, 1, PAGE_MAX)
    seen: list[Seen] = []
    left = ANSWER_BYTES_MAX
    for looked, message in enumerate(queue.messages.walk(command.first)):
        left -= size_bytes(message)
        if len(seen) == command.limit or looked == BATCH_MAX or (seen and left < 0):
            return Outcome([], Peeked(seen, message.sequence))
        if command.group is None or message.group == command.group:
            deferred = message.state == DEFERRED
            if message.state == LOCKED:
                deferred = state.locks[message.lock].deferred
            note = queue.notes.get(message.sequence)
            seen.append(Seen(copy(message), STATES[message.state], deferred, note))
    return Outcome([], Peeked(seen, None))


def cancel(state: State, command: Cancel, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    check_count("sequences", len(command.sequences), 1, BATCH_MAX)
    if not queue.gives_runs:
        messages = messages_in(queue, command.sequences, SCHEDULED, now_ms)
        return Outcome([Cancelled(queue.name, sequences_of(messages))])
    messages = messages_in(queue, command.sequences, DELAYED, now_ms)
    for message in messages:
        if message.count:  # it was delivered before, and came back with a delay
            raise MessageNotFound(queue.name, message.sequence, STATES[SCHEDULED])
    plan = Plan(state, now_ms)
    plan.records.append(Cancelled(queue.name, sequences_of(messages)))
    overlay = plan.overlay(queue)
    overlay.remove(messages)
    leave_groups(overlay, messages)
    return dispatch(plan)


def purge(state: State, command: Purge, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    check_count("limit", command.limit, 1, BATCH_MAX)
    if not command.states <= set(range(len(STATES))):
        raise InvalidArgument("states", f"must be from 0 to {len(STATES) - 1}")
    if command.sequences is None:
        looked = list(islice(queue.messages.walk(command.first), command.limit))
    else:
        check_count("sequences", len(command.sequences), 1, BATCH_MAX)
        # Only those that are there are keys of a dict: others may be chosen to make it slow.
        found = (queue.messages.get(each) for each in command.sequences)
        looked = list({each.sequence: each for each in found if each is not None}.values())
    chosen = [m for m in looked if m.state in command.states and m.enqueued_ms < command.before_ms]
    plan = Plan(state, now_ms)
    if chosen:
        plan.records.append(Purged(queue.name, sequences_of(chosen)))
        overlay = plan.overlay(queue)
        overlay.removed.update(sequences_of(chosen))
        leave_groups(overlay, chosen)
    progress = Progress(len(chosen), None)
    if command.sequences is None:
        progress = _progress(len(chosen), looked, command.limit)
    if command.keys and queue.seen_order:
        count = min(command.limit, len(queue.seen_order))
        plan.records.append(Forgotten(queue.name, now_ms, count))
        if progress.next is None and count < len(queue.seen_order):
            progress = Progress(progress.done, queue.next_sequence)
    return dispatch(plan, progress)


def resubmit(state: State, command: Resubmit, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if queue.origin is None:
        raise NotAllowed(queue.name, "only dead letters can be resubmitted")
    target = own_queue(state, command.target or queue.origin)
    if not can_send(target.properties):
        raise Disabled(target.name, target.properties.status)
    if command.sequences is None:
        chosen, progress = _all_that_fit(queue, target, command.first)
    else:
        check_count("sequences", len(command.sequences), 1, BATCH_MAX)
        chosen = messages_in(queue, command.sequences, ACTIVE, now_ms)
        progress = Progress(len(chosen), None)
        for message in chosen:
            check_fit(target, size_bytes(message), message.group)
        check_room(target, used(target), len(chosen), sum(map(size_bytes, chosen)))
    if not chosen:
        return Outcome([], progress)
    plan = Plan(state, now_ms)
    overlay = plan.overlay(target)
    first = overlay.numbers(len(chosen))
    lives = [sent_life_ms(queue, m.sequence) for m in chosen]
    expires_ms = [expiry_ms(target, now_ms, ttl_ms) for ttl_ms in lives]
    plan.records.append(
        Resubmitted(
            queue.name, now_ms, sequences_of(chosen), target.name, first, expires_ms,
            command.keep_reason,
        )
    )  # fmt: skip
    for sequence, message in enumerate(chosen, first):
        note = queue.notes[message.sequence]
        kept = note.resubmitted(keep_reason=command.keep_reason)
        if kept != NO_NOTE:
            overlay.notes[sequence] = kept
        expiry = expires_ms[sequence - first]
        overlay.ready.append(
            as_active(message, sequence=sequence, count=0, enqueued_ms=now_ms, expires_ms=expiry)
        )
        if overlay.counted:
            size = overlay.arrived[sequence] = size_bytes(message)
            overlay.added, overlay.added_bytes = overlay.added + 1, overlay.added_bytes + size
    return dispatch(plan, progress)


def _all_that_fit(queue: Queue, target: Queue, first: int) -> tuple[list[Message], Progress]:
    """The next dead letters that the target takes; those it never would take stay where they are.

    Raises QuotaExceeded where there is no room for any.
    """
    looked = list(islice(queue.messages.walk(first), STEPS_MAX))
    chosen: list[Message] = []
    size = 0
    for message in looked:
        if message.state != ACTIVE or misfit(target, size_bytes(message), message.group):
            continue
        size += size_bytes(message)
        try:
            check_room(target, used(target), len(chosen) + 1, size)
        except QuotaExceeded:
            if not chosen:
                raise
            return chosen, Progress(len(chosen), message.sequence)
        chosen.append(message)
    return chosen, _progress(len(chosen), looked, STEPS_MAX)


def _progress(done: int, looked: Sequence[Message], limit: int) -> Progress:
    return Progress(done, looked[-1].sequence + 1 if len(looked) == limit else None)


def move(state: State, command: Move, _: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if len(command.contents) > BATCH_MAX:
        raise InvalidArgument("contents", f"must be at most {BATCH_MAX} at a time")
    sequences, contents = [], []
    for content in command.contents:
        message = queue.messages.get(content.sequence)
        if message is not None and message.position == content.position:
            sequences.append(content.sequence)
            contents.append(content.message)
    records: list[Record] = [Moved(queue.name, sequences, contents)] if sequences else []
    return Outcome(records, Progress(len(sequences), None))
