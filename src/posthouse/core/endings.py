"""Endings: what becomes of a message when its delivery, its life or its session ends.

It goes back to its place, to the dead-letter queue, or out.
"""

from collections.abc import Iterable, Sequence

from posthouse.core.commands import STEPS_MAX, Notice
from posthouse.core.delivering import counts_of, first_ms_of, settled_ms_of
from posthouse.core.message import DELAYED, LOCKED, NO_NOTE, NO_PROPERTIES, Message, Properties
from posthouse.core.model import Group, Lock, Queue, State
from posthouse.core.picking import is_expired
from posthouse.core.plan import Plan, QueueOverlay, as_active, sequences_of
from posthouse.core.records import (
    DeadLettered,
    Dropped,
    Expired,
    QueueDeleted,
    Record,
    Returned,
    SessionReleased,
    SessionRenewed,
    Touched,
    epitaph,
)


def by_queue(state: State, locks: Iterable[Lock]) -> list[tuple[Queue, list[Message]]]:
    """The locked messages of each queue, those of deleted queues left out."""
    queues: dict[str, tuple[Queue, list[Message]]] = {}
    for lock in locks:
        if state.queues.get(lock.queue.name) is lock.queue:
            _, messages = queues.setdefault(lock.queue.name, (lock.queue, []))
            messages.append(lock.message)
    return list(queues.values())


def leave_groups(overlay: QueueOverlay, messages: Iterable[Message]) -> None:
    """Notes that these messages no longer hold the rest of their groups back."""
    if overlay.queue.groups:
        gives_runs = overlay.queue.gives_runs
        for message in messages:
            key = message.group
            if key is not None:
                locked, delayed = message.state == LOCKED, message.state == DELAYED
                overlay.unlocked[key] = overlay.unlocked.get(key, 0) + locked
                overlay.undelayed[key] = overlay.undelayed.get(key, 0) + delayed
                if gives_runs:
                    overlay.freed.add(message.sequence)


def end(
    plan: Plan,
    queue: Queue,
    messages: list[Message],
    *,
    counted: bool,
    properties: Properties = NO_PROPERTIES,
    delay_ms: int = 0,
) -> None:
    """Ends deliveries unsettled: back to their places, or out where they may not come back."""
    overlay, now_ms = plan.overlay(queue), plan.now_ms
    plan.touch(queue)
    leave_groups(overlay, messages)
    properties_of = queue.properties
    most = properties_of.max_delivery if counted and queue.origin is None else 0
    worn = [m for m in messages if most and m.count >= most]
    rest = [m for m in messages if not most or m.count < most]
    back = [m for m in rest if not is_expired(m, now_ms)]
    stale = [m for m in rest if is_expired(m, now_ms)]
    overlay.locked -= len(back)
    backoff_ms = properties_of.backoff_ms if counted and not delay_ms else []
    for wait_ms, batch in _by_attempt(back, backoff_ms) if backoff_ms else [(delay_ms, back)]:
        if batch:
            until_ms = now_ms + wait_ms if wait_ms else 0
            record = Returned(
                queue.name, sequences_of(batch), not counted, until_ms, properties,
                settled_ms_of(plan.state, batch, now_ms), counts_of(batch),
            )  # fmt: skip
            plan.records.append(record)
            for message in batch:
                _give_back(plan, overlay, message, record)
    if worn:
        text = f"Message could not be consumed after {most} delivery attempts."
        bury(plan, queue, worn, "MaxDeliveryCountExceeded", text, properties)
    if stale:
        _drop(plan, queue, stale)


def _by_attempt(
    messages: list[Message], backoff_ms: list[int]
) -> Iterable[tuple[int, list[Message]]]:
    """Sorts messages by how long they are held back: the longer, the more often delivered."""
    delayed: dict[int, list[Message]] = {}
    for message in messages:
        attempt = max(1, min(message.count, len(backoff_ms)))
        delayed.setdefault(backoff_ms[attempt - 1], []).append(message)
    return delayed.items()


def _give_back(plan: Plan, overlay: QueueOverlay, message: Message, record: Returned) -> None:
    if record.properties:
        note = overlay.note(message.sequence) or NO_NOTE
        overlay.notes[message.sequence] = note.amended(record.properties)
    lock = plan.state.locks.get(message.lock)  # none where the same plan has delivered it
    if lock is not None:
        if lock.deferred:
            return
        if lock.since_ms and not record.uncounted and overlay.queue.waiting:
            first_ms = overlay.queue.firsts.get(message.sequence, lock.since_ms)
            overlay.firsts[message.sequence] = first_ms
    if not record.until_ms:
        overlay.ready.append(as_active(message, count=message.count - record.uncounted))
    elif message.group is not None:
        overlay.undelayed[message.group] = overlay.undelayed.get(message.group, 0) - 1
        overlay.hold(message)


def end_at_once(plan: Plan, queue: Queue, messages: list[Message]) -> None:
    """Ends deliveries that this plan has just made, whose locks last no time."""
    given = [as_active(message, count=message.count + 1) for message in messages]
    overlay = plan.overlay(queue)
    locked = overlay.locked
    end(plan, queue, given, counted=queue.properties.counting == "all")
    overlay.locked = locked


def expire(plan: Plan, queue: Queue, messages: list[Message]) -> None:
    """Ends messages whose time to live is over."""
    leave_groups(plan.overlay(queue), messages)
    _drop(plan, queue, messages)


def _drop(plan: Plan, queue: Queue, messages: list[Message]) -> None:
    if queue.properties.dead_letter_expired:
        text = "The message expired and was dead lettered."
        bury(plan, queue, messages, "TTLExpiredException", text, NO_PROPERTIES)
    else:
        plan.overlay(queue).remove(messages)
        plan.records.append(Expired(queue.name, sequences_of(messages)))


def drop(plan: Plan, queue: Queue, messages: Sequence[Message]) -> None:
    """Drops messages out of a full queue."""
    overlay = plan.overlay(queue)
    leave_groups(overlay, messages)
    overlay.remove(messages)
    plan.records.append(Dropped(queue.name, sequences_of(messages)))


def bury(
    plan: Plan,
    queue: Queue,
    messages: list[Message],
    reason: str | None,
    description: str | None,
    properties: Properties,
) -> None:
    """Moves messages into the dead-letter queue. The caller has seen to the groups they leave."""
    assert queue.dead is not None
    overlay, dead = plan.overlay(queue), plan.overlay(queue.dead)
    first = dead.numbers(len(messages))
    overlay.remove(messages)
    record = DeadLettered(
        queue.name, plan.now_ms, sequences_of(messages), first, reason, description, properties,
        settled_ms_of(plan.state, messages, plan.now_ms), counts_of(messages),
    )  # fmt: skip
    plan.records.append(record)
    if queue.dead.waiting or queue.dead.relays:
        for sequence, message in enumerate(messages, first):
            old = message.sequence
            dead.notes[sequence] = epitaph(
                queue.name, old, overlay.note(old), queue.lives.get(old), record
            )
            dead.ready.append(as_active(message, sequence=sequence, expires_ms=0))
            first_ms = first_ms_of(plan.state, queue, message)
            if first_ms:
                dead.firsts[sequence] = first_ms


def let_go(state: State, now_ms: int) -> list[Record]:
    """Ends every delivery as if its lock had expired, and what ends with a connection.

    For a copy of a namespace, where nobody is attached: the tokens mean nothing there.
    """
    plan = Plan(state, now_ms)
    temporary = [queue for queue in state.queues.values() if queue.temporary]
    names = {part.name for queue in temporary for part in queue.parts()}
    plan.records += [QueueDeleted(queue.name, now_ms) for queue in temporary]
    locks = [lock for lock in state.locks.values() if lock.queue.name not in names]
    for queue, messages in by_queue(state, locks):
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    for queue, group in state.sessions.values():
        if state.queues.get(queue.name) is queue and queue.name not in names:
            plan.records.append(SessionReleased(queue.name, group.key, expired=True))
    return plan.records


def release(plan: Plan, queue: Queue, group: Group, *, expired: bool = False) -> None:
    """Ends a session's lock, and with it the locks on the session's messages and its readers."""
    overlay = plan.overlay(queue)
    if len(group.locks) > STEPS_MAX:  # too much for one command: it expires now, and ticks end it
        plan.records.append(SessionRenewed(queue.name, group.key, plan.now_ms))
        return
    messages = [plan.state.locks[token].message for token in group.locks]
    overlay.released.add(group.key)
    overlay.unlocked.setdefault(group.key, 0)
    if messages:
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    plan.records.append(SessionReleased(queue.name, group.key, expired))
    readers = [number for number in group.readers if number not in plan.leaving]
    plan.leaving.update(readers)
    plan.deliveries += [Notice(number, "session-lost") for number in readers]
    if group.readers:
        plan.records.append(Touched(queue.name, plan.now_ms))
