"""Settling: how locks end, and how they are renewed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from posthouse.core.checks import check_duration, check_properties, check_text
from posthouse.core.commands import (
    BATCH_MAX,
    SETTLED,
    TEXT_CHARS_MAX,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    LockName,
    Release,
    Renew,
    Settle,
    Settled,
    SettleResult,
)
from posthouse.core.delivering import counts_of, settled_ms_of
from posthouse.core.dispatch import dispatch
from posthouse.core.endings import bury, by_queue, end, leave_groups
from posthouse.core.errors import InvalidArgument, LockLost, MessageNotFound, NotAllowed
from posthouse.core.lookup import queue_of, session_of
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, Attempt, Message, Properties
from posthouse.core.model import Lock, Queue, State
from posthouse.core.picking import is_expired
from posthouse.core.plan import Outcome, Plan, sequences_of, use_matters
from posthouse.core.receiving import check_lock_room
from posthouse.core.records import Completed, Deferred, Record, Relocked, Renewed, Touched


class Found(NamedTuple):
    """The messages that the names in a settlement stand for."""

    held: list[Lock]
    late: list[Message]  # of the command's queue; not locked any more, and settled nevertheless
    queues: list[Queue]  # of each name that stands for something to settle, in order
    lost: list[LockName]
    results: list[SettleResult]  # of each name, where attempts are named


def find_locks(
    state: State, command: Settle, now_ms: int, transaction: int = 0, *, may_be_late: bool = False
) -> Found:
    """Finds the locks that a command names, and those that are lost.

    What a transaction settles is lost to everybody else. Raises Refused.
    """
    queue = None if command.queue is None else queue_of(state, command.queue)
    if not command.locks or len(command.locks) > BATCH_MAX:
        raise InvalidArgument("locks", f"must be from 1 to {BATCH_MAX}")
    session = None
    if command.session:
        if queue is None:
            raise InvalidArgument("queue", "is needed where a session is named")
        # It lasts as long as a transaction that settles what is in it.
        session = session_of(state, queue, command.session, 0 if transaction else now_ms)
    held: dict[int, Lock] = {}
    late: dict[int, Message] = {}
    queues: list[Queue] = []
    lost: list[LockName] = []
    results: list[SettleResult] = []
    by_id: dict[str, Iterator[int]] = {}
    for name in command.locks:
        tokens: Iterable[int] = ()
        from_ms, is_removed = now_ms, False
        if isinstance(name, int):
            tokens = (name,)
        elif isinstance(name, str):  # one after the other, where several have the same id
            tokens = by_id.setdefault(name, iter(state.ids.get(name, ())))
        else:
            if queue is None:
                raise InvalidArgument("queue", "is needed where a delivery is named by its number")
            is_late = may_be_late and queue.properties.late_settling
            message = queue.messages.get(name.sequence)
            is_removed = _is_removed(queue, name, message, now_ms)
            if message is not None and not is_removed and _fits(name, message, late=is_late):
                if is_late and (message.state != LOCKED or message.lock in held):
                    if message.state != LOCKED:
                        late[message.sequence] = message
                    queues.append(queue)
                    results.append("settled")
                    continue
                from_ms, tokens = 0 if is_late else now_ms, (message.lock,)
        for token in tokens:
            lock = state.locks.get(token)
            by = state.enlisted.get(token, 0) if state.enlisted else 0
            if lock is None or token in held or (by and by != transaction):
                continue
            if not _holds(state, lock, queue, 0 if by else from_ms):  # one that is enlisted does
                continue
            if session is None or lock.session is session:
                held[token] = lock
                queues.append(lock.queue)
                results.append("settled")
                break
        else:
            if not command.partial:
                if is_removed and isinstance(name, Attempt):
                    raise MessageNotFound(command.queue or "", name.sequence, "delivered")
                raise LockLost(command.queue, name)
            lost.append(name)
            results.append("removed" if is_removed else "lost")
    if not any(isinstance(name, Attempt) for name in command.locks):
        results = []
    return Found(list(held.values()), list(late.values()), queues, lost, results)


def _is_removed(queue: Queue, name: Attempt, message: Message | None, now_ms: int) -> bool:
    """Whether a message was there and is gone, or is about to go because it has expired."""
    if message is None:
        return 0 < name.sequence < queue.next_sequence
    return message.state in (ACTIVE, DELAYED) and is_expired(message, now_ms)


def _fits(name: Attempt, message: Message, *, late: bool) -> bool:
    """Whether an attempt stands for a message as it is: its last one; if late, an older one too."""
    if late:
        there = message.state in (ACTIVE, DELAYED, LOCKED)
        return there and 0 < name.count <= message.count
    return message.state == LOCKED and name.count == message.count


def settled_answer(found: Found, until_ms: Sequence[int] = ()) -> Settled:
    if not found.lost and not until_ms:
        return SETTLED
    return Settled(found.lost, until_ms, (found.lost and found.results) or ())


def _holds(state: State, lock: Lock, queue: Queue | None, now_ms: int) -> bool:
    """Whether a lock is still held, in this queue or in any that is not deleted."""
    if queue is None:
        queue = state.queues.get(lock.queue.name)
    until_ms = lock.until_ms if lock.session is None else lock.session.until_ms
    is_there = lock.queue is queue
    if not is_there and queue is not None and lock.queue.temporary:
        # A receiver of a fan-out queue holds it in its own subscription.
        is_there = lock.queue.topic == queue.name
    return is_there and until_ms > now_ms


def _check_amended(queue: Queue, messages: list[Message], properties: Properties) -> None:
    if properties and queue.notes:
        for message in messages:
            note = queue.notes.get(message.sequence)
            if note is not None:
                check_properties(note.properties | properties)


Ending: TypeAlias = Complete | Abandon | Release | Defer | DeadLetter


def complete(state: State, command: Complete, now_ms: int) -> Outcome:
    queue = None if command.queue is None else state.queues.get(command.queue)
    if (
        queue is not None
        and not queue.groups
        and not command.session
        and len(command.locks) <= BATCH_MAX
        and not state.enlisted
    ):
        # Fast path: the tokens all hold, and nothing waits behind their messages.
        locks, tokens = state.locks, command.locks
        sequences, took_ms, counts = [], [], []
        for token in tokens:
            lock = locks.get(token)  # type: ignore[arg-type]  # a message id is not found
            if lock is None and isinstance(token, Attempt):
                lock = _lock_of(state, queue, token)
            if lock is None or lock.queue is not queue or lock.until_ms <= now_ms:
                break
            message, since_ms = lock.message, lock.since_ms
            sequences.append(message.sequence)
            counts.append(message.count)
            took_ms.append(now_ms - since_ms if since_ms else None)
        else:
            if sequences and len(set(sequences)) == len(sequences):
                if counts.count(1) == len(counts):
                    counts = []
                records: list[Record] = [Completed(queue.name, sequences, took_ms, counts)]
                if use_matters(queue):
                    records.insert(0, Touched(queue.name, now_ms))
                return Outcome(records, SETTLED)
    return settle(state, command, now_ms)


def _lock_of(state: State, queue: Queue, name: Attempt) -> Lock | None:
    """The lock that an attempt holds."""
    message = queue.messages.get(name.sequence)
    if message is None or message.state != LOCKED or message.count != name.count:
        return None
    return state.locks[message.lock]


def settle(state: State, command: Ending, now_ms: int) -> Outcome:
    may_be_late = isinstance(command, Complete | Abandon)
    found = find_locks(state, command, now_ms, may_be_late=may_be_late)
    check_ending(command)
    plan = Plan(state, now_ms)
    end_as(plan, command, found.held)
    if found.late:
        queue = found.queues[0]  # all that is named is of one queue
        plan.touch(queue)
        if isinstance(command, Complete):  # what is to be abandoned is back already
            sequences, counts = sequences_of(found.late), counts_of(found.late)
            plan.records.append(Completed(queue.name, sequences, None, counts, late=True))
            plan.overlay(queue).remove(found.late)
    return dispatch(plan, settled_answer(found))


def check_ending(command: Ending) -> None:
    if isinstance(command, Abandon | Defer | DeadLetter):
        check_properties(command.properties)
    if isinstance(command, Abandon):
        check_duration("delay_ms", command.delay_ms)
    if isinstance(command, DeadLetter):
        for name in ("reason", "description"):
            text = getattr(command, name)
            if text is not None:
                check_text(name, text, TEXT_CHARS_MAX)


def end_as(plan: Plan, command: Ending, held: list[Lock]) -> None:
    """Ends these locks as a command says."""
    for queue, messages in by_queue(plan.state, held):
        took_ms = settled_ms_of(plan.state, messages, plan.now_ms)
        sequences, counts = sequences_of(messages), counts_of(messages)
        match command:
            case Complete():
                plan.touch(queue)
                plan.records.append(Completed(queue.name, sequences, took_ms, counts))
                overlay = plan.overlay(queue)
                leave_groups(overlay, messages)
                overlay.remove(messages)
            case Abandon(properties=properties, delay_ms=delay_ms):
                _check_amended(queue, messages, properties)
                end(plan, queue, messages, counted=True, properties=properties, delay_ms=delay_ms)
            case Release():
                end(plan, queue, messages, counted=False)
            case Defer(properties=properties):
                plan.touch(queue)
                _check_amended(queue, messages, properties)
                plan.records.append(Deferred(queue.name, sequences, properties, took_ms, counts))
                overlay = plan.overlay(queue)
                leave_groups(overlay, messages)
                overlay.locked -= len(messages)
            case _:
                if queue.origin is not None:
                    raise NotAllowed(queue.name, "its messages are dead letters already")
                plan.touch(queue)
                _check_amended(queue, messages, command.properties)
                leave_groups(plan.overlay(queue), messages)
                bury(plan, queue, messages, command.reason, command.description, command.properties)


def renew(state: State, command: Renew, now_ms: int) -> Outcome:
    found = find_locks(state, command, now_ms, may_be_late=True)
    check_duration("lock_ms", command.lock_ms)
    plan = Plan(state, now_ms)

    def until_ms(queue: Queue) -> int:
        return now_ms + (command.lock_ms or queue.properties.hold_ms)

    for queue, messages in by_queue(state, found.held):
        if queue.properties.grouping == "session":
            raise NotAllowed(queue.name, "its locks last as long as the session's; renew that")
        plan.records.append(Renewed(queue.name, sequences_of(messages), until_ms(queue)))
        plan.touch(queue)
    if found.late:
        _lock_again(plan, found.queues[0], found.late, until_ms(found.queues[0]))
    return dispatch(plan, settled_answer(found, [until_ms(queue) for queue in found.queues]))


def _lock_again(plan: Plan, queue: Queue, messages: list[Message], until_ms: int) -> None:
    """Locks messages again that have come back."""
    check_lock_room(queue, len(messages))
    plan.touch(queue)
    first, sequences = plan.next_lock, sequences_of(messages)
    plan.records.append(Relocked(queue.name, plan.now_ms, sequences, first, until_ms))
    plan.next_lock += len(messages)
    plan.overlay(queue).locked += len(messages)
