"""Transactions: what is asked for together happens together, in one frame, or not at all.

An open transaction is passing: a crash rolls it back. What is asked for in it is checked at once
and kept until the commit, which plans it all as one command. Meanwhile the locks it settles are
lost to everybody else, and do not expire under it: ticks renew them up to its end.
"""

from typing import Any

import msgspec

from posthouse.core.checks import check_count
from posthouse.core.commands import (
    BATCH_MAX,
    SEND_BYTES_MAX,
    TRANSACTION_MS_MAX,
    TRANSACTIONS_BYTES_MAX,
    TRANSACTIONS_MAX,
    Begin,
    Begun,
    Commit,
    Committed,
    Complete,
    Enqueued,
    LockName,
    Release,
    RollBack,
    RolledBack,
    Send,
    Work,
)
from posthouse.core.dispatch import dispatch
from posthouse.core.errors import Busy, InvalidArgument, QuotaExceeded, Refused, TransactionLost
from posthouse.core.model import State, Transaction
from posthouse.core.plan import Outcome, Plan
from posthouse.core.records import Enlisted, TransactionBegun, TransactionEnded
from posthouse.core.room import is_limited
from posthouse.core.sending import checked_send, send_on
from posthouse.core.settling import Ending, check_ending, end_as, find_locks, settled_answer
from posthouse.core.shares import TRANSACTION_BYTES, TRANSACTIONS, check_share


def begin(state: State, command: Begin, now_ms: int) -> Outcome:
    check_count("timeout_ms", command.timeout_ms, 1, TRANSACTION_MS_MAX)
    if len(state.transactions) >= TRANSACTIONS_MAX:
        raise Busy(f"{TRANSACTIONS_MAX} transactions are open")
    check_share(state.held, command.by, TRANSACTIONS, "", TRANSACTIONS_MAX)
    number, until_ms = state.era + state.next_transaction, now_ms + command.timeout_ms
    return Outcome([TransactionBegun(number, until_ms, command.by)], Begun(number, until_ms))


def _transaction(state: State, number: int, now_ms: int) -> Transaction:
    transaction = state.transactions.get(number)
    if transaction is None or transaction.until_ms <= now_ms:
        raise TransactionLost(number)
    return transaction


def work(state: State, command: Work, now_ms: int) -> Outcome:
    transaction = _transaction(state, command.transaction, now_ms)
    asked = command.command
    if not isinstance(asked, Send | Ending):
        raise InvalidArgument("command", "cannot be part of a transaction")
    if isinstance(asked, Send):
        _, messages, size = checked_send(state, asked, now_ms)
        _check_few(state, transaction, len(messages), size)
        return Outcome([Enlisted(transaction.number, asked, len(messages), size, [])])
    found = find_locks(state, asked, now_ms)
    held = found.held
    check_ending(asked)
    if not held:
        return Outcome([], settled_answer(found))
    _check_few(state, transaction, len(held), 0)
    if not isinstance(asked, Complete | Release):
        end_as(Plan(state, now_ms), asked, held)  # it raises what it would raise then
    tokens = [lock.message.lock for lock in held]
    kept = msgspec.structs.replace(asked, locks=tokens)
    record = Enlisted(transaction.number, kept, len(held), 0, tokens)
    return Outcome([record], settled_answer(found))


def _check_few(state: State, transaction: Transaction, messages: int, size: int) -> None:
    if transaction.messages + messages > BATCH_MAX:
        raise QuotaExceeded(
            "the transaction", "the number of messages", BATCH_MAX, transaction.messages
        )
    if transaction.size_bytes + size > SEND_BYTES_MAX:
        raise QuotaExceeded(
            "the transaction", "the number of bytes", SEND_BYTES_MAX, transaction.size_bytes
        )
    if state.transaction_bytes + size > TRANSACTIONS_BYTES_MAX:
        raise Busy("too much waits to be committed")
    check_share(state.held, transaction.by, TRANSACTION_BYTES, "", TRANSACTIONS_BYTES_MAX, size)


def roll_back(state: State, command: RollBack, now_ms: int) -> Outcome:
    transaction = _transaction(state, command.transaction, now_ms)
    return Outcome([TransactionEnded(transaction.number)])


def commit(state: State, command: Commit, now_ms: int) -> Outcome:
    transaction = _transaction(state, command.transaction, now_ms)
    ended = TransactionEnded(transaction.number)
    plan = Plan(state, now_ms)
    plan.may_refuse = True
    plan.records.append(ended)
    try:
        sent, settled = _do_all(plan, transaction)
        return dispatch(plan, Committed(sent, settled))
    except Refused as refused:
        return Outcome([ended], RolledBack(str(refused)))


def _do_all(plan: Plan, transaction: Transaction) -> tuple[list[Enqueued], int]:
    """First what ends, then what is sent. Raises Refused."""
    settled = 0
    for asked in _completed_together(transaction.work):
        settled += _end(plan, asked, transaction.number)
    sends = [asked for asked in transaction.work if isinstance(asked, Send)]
    return _send_all(plan, sends), settled


def _completed_together(work: list[Any]) -> list[Ending]:
    """Returns the settlements of a transaction; completes of one queue and session are one."""
    found: list[Ending] = []
    completed: dict[tuple[str | None, int], list[LockName]] = {}
    for asked in work:
        if isinstance(asked, Complete):
            completed.setdefault((asked.queue, asked.session), []).extend(asked.locks)
        elif not isinstance(asked, Send):
            found.append(asked)
    for (queue, session), locks in completed.items():
        found.append(Complete(queue, locks, False, session))
    return found


def _send_all(plan: Plan, sends: list[Send]) -> list[Enqueued]:
    """Sends in order; sends that need no looking at go into a queue as one."""
    answers: list[Enqueued | None] = [None] * len(sends)
    plain: dict[str, list[int]] = {}  # which sends
    for at, asked in enumerate(sends):
        queue = plan.state.queues.get(asked.queue)
        if queue is not None and not queue.properties.duplicate_detection and not is_limited(queue):
            plain.setdefault(asked.queue, []).append(at)
        else:
            queue, messages, _ = checked_send(plan.state, asked, plan.now_ms)
            answers[at] = send_on(plan, queue, messages, asked)
    for name, which in plain.items():
        whole = Send(name, [message for at in which for message in sends[at].messages])
        queue, messages, _ = checked_send(plan.state, whole, plan.now_ms)
        number = plan.overlay(queue).next_sequence
        send_on(plan, queue, messages, whole)
        for at in which:
            count = len(sends[at].messages)
            answers[at] = Enqueued(range(number, number + count))
            number += count
    return [answer for answer in answers if answer is not None]


def _end(plan: Plan, asked: Ending, number: int) -> int:
    whole = msgspec.structs.replace(asked, partial=False)
    held = find_locks(plan.state, whole, plan.now_ms, number).held
    end_as(plan, whole, held)
    return len(held)
