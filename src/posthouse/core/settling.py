"""Settling: how locks end, and how they are renewed."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from posthouse.core.checks import check_duration, check_properties, check_text
from posthouse.core.commands import (
    BATCH_MAX,
    SETTLED,
    TEXT_CHARS_MAX,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Release,
    Renew,
    Settle,
    Settled,
)
from posthouse.core.delivering import counts_of, settled_ms_of
from posthouse.core.dispatch import dispatch
from posthouse.core.endings import bury, by_queue, end, leave_groups
from posthouse.core.errors import InvalidArgument, LockLost, NotAllowed
from posthouse.core.lookup import queue_of, session_of
from posthouse.core.message import Message, Properties
from posthouse.core.model import Lock, Queue, State
from posthouse.core.plan import Outcome, Plan, sequences_of, use_matters
from posthouse.core.records import Completed, Deferred, Record, Renewed, Touched


def held_locks(
    state: State, command: Settle, now_ms: int, transaction: int = 0
) -> tuple[list[Lock], list[int | str]]:
    """The locks that a command names, and those among them that are lost.

    What a transaction settles is lost to everybody else.
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
    lost: list[int | str] = []
    by_id: dict[str, Iterator[int]] = {}
    for name in command.locks:
        tokens: Iterable[int] = (name,) if isinstance(name, int) else ()
        if isinstance(name, str):  # one after the other, where several have the same id
            tokens = by_id.setdefault(name, iter(state.ids.get(name, ())))
        for token in tokens:
            lock = state.locks.get(token)
            by = state.enlisted.get(token, 0) if state.enlisted else 0
            if lock is None or token in held or (by and by != transaction):
                continue
            if not _holds(state, lock, queue, 0 if by else now_ms):  # one that is enlisted does
                continue
            if session is None or lock.session is session:
                held[token] = lock
                break
        else:
            if not command.partial:
                raise LockLost(command.queue, name)
            lost.append(name)
    return list(held.values()), lost


def settled_answer(lost: list[int | str]) -> Settled:
    return Settled(lost) if lost else SETTLED


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
            if lock is None or lock.queue is not queue or lock.until_ms <= now_ms:
                break
            message, since_ms = lock.message, lock.since_ms
            sequences.append(message.sequence)
            counts.append(message.count)
            took_ms.append(now_ms - since_ms if since_ms else None)
        else:
            if sequences and len(set(tokens)) == len(tokens):
                if counts.count(1) == len(counts):
                    counts = []
                records: list[Record] = [Completed(queue.name, sequences, took_ms, counts)]
                if use_matters(queue):
                    records.insert(0, Touched(queue.name, now_ms))
                return Outcome(records, SETTLED)
    return settle(state, command, now_ms)


def settle(state: State, command: Ending, now_ms: int) -> Outcome:
    held, lost = held_locks(state, command, now_ms)
    check_ending(command)
    plan = Plan(state, now_ms)
    end_as(plan, command, held)
    return dispatch(plan, settled_answer(lost))


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
    held, lost = held_locks(state, command, now_ms)
    check_duration("lock_ms", command.lock_ms)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        if queue.properties.grouping == "session":
            raise NotAllowed(queue.name, "its locks last as long as the session's; renew that")
        until_ms = now_ms + (command.lock_ms or queue.properties.lock_ms)
        plan.records.append(Renewed(queue.name, sequences_of(messages), until_ms))
        plan.touch(queue)
    lives = [command.lock_ms or lock.queue.properties.lock_ms for lock in held]
    return dispatch(plan, Settled(lost, [now_ms + life_ms for life_ms in lives]))
