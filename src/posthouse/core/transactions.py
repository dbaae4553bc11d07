"""Transactions: what is asked for together happens together, in one frame, or not at all.

An open transaction is passing: a crash rolls it back. What is asked for in it is checked at once
and kept until the commit, which plans it all as one command. Meanwhile the locks it settles are
renewed up to its end, so that they do not expire under it, and are lost to everybody else.
"""

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
    Enqueued,
    RollBack,
    RolledBack,
    Send,
    Work,
)
from posthouse.core.errors import Busy, InvalidArgument, QuotaExceeded, Refused, TransactionLost
from posthouse.core.model import Lock, State, Transaction
from posthouse.core.plan import Outcome, Plan, by_queue, sequences_of
from posthouse.core.records import (
    Enlisted,
    Record,
    Renewed,
    SessionRenewed,
    TransactionBegun,
    TransactionEnded,
)
from posthouse.core.sending import checked_send, send_on
from posthouse.core.settling import Ending, check_ending, end_as, held_locks, settled_answer


def begin(state: State, command: Begin, now_ms: int) -> Outcome:
    check_count("timeout_ms", command.timeout_ms, 1, TRANSACTION_MS_MAX)
    if len(state.transactions) >= TRANSACTIONS_MAX:
        raise Busy(f"{TRANSACTIONS_MAX} transactions are open")
    number, until_ms = state.era + state.next_transaction, now_ms + command.timeout_ms
    return Outcome([TransactionBegun(number, until_ms)], Begun(number, until_ms))


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
    held, lost = held_locks(state, asked, now_ms)
    check_ending(asked)
    if not held:
        return Outcome([], settled_answer(lost))
    _check_few(state, transaction, len(held), 0)
    end_as(Plan(state, now_ms), asked, held)  # it raises what it would raise then
    tokens = [lock.message.lock for lock in held]
    kept = msgspec.structs.replace(asked, locks=tokens)
    records = _renewed(state, held, transaction.until_ms)
    records.append(Enlisted(transaction.number, kept, len(held), 0, tokens))
    return Outcome(records, settled_answer(lost))


def _check_few(state: State, transaction: Transaction, messages: int, size: int) -> None:
    if transaction.messages + messages > BATCH_MAX:
        raise QuotaExceeded(
            "the transaction", "the number of messages", BATCH_MAX, transaction.messages
        )
    if transaction.size_bytes + size > SEND_BYTES_MAX:
        raise QuotaExceeded("the transaction", "bytes", SEND_BYTES_MAX, transaction.size_bytes)
    if state.transaction_bytes + size > TRANSACTIONS_BYTES_MAX:
        raise Busy("too much waits to be committed")


def _renewed(state: State, held: list[Lock], until_ms: int) -> list[Record]:
    """So that they do not expire before the transaction ends."""
    records: list[Record] = []
    sessions: dict[tuple[str, str], None] = {}
    for lock in held:
        if lock.session is not None and lock.session.until_ms < until_ms:
            sessions[lock.queue.name, lock.session.key] = None
    records += [SessionRenewed(queue, key, until_ms) for queue, key in sessions]
    brief = [lock for lock in held if lock.session is None and lock.until_ms < until_ms]
    for queue, messages in by_queue(state, brief):
        records.append(Renewed(queue.name, sequences_of(messages), until_ms))
    return records


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
        return plan.outcome(Committed(sent, settled))
    except Refused as refused:
        return Outcome([ended], RolledBack(str(refused)))


def _do_all(plan: Plan, transaction: Transaction) -> tuple[list[Enqueued], int]:
    """First what ends, then what is sent. Raises Refused."""
    settled = 0
    for asked in transaction.work:
        if not isinstance(asked, Send):
            settled += _end(plan, asked, transaction.number)
    sent = []
    for asked in transaction.work:
        if isinstance(asked, Send):
            queue, messages, _ = checked_send(plan.state, asked, plan.now_ms)
            sent.append(send_on(plan, queue, messages, asked))
    return sent, settled


def _end(plan: Plan, asked: Ending, number: int) -> int:
    whole = msgspec.structs.replace(asked, partial=False)
    held, _ = held_locks(plan.state, whole, plan.now_ms, number)
    end_as(plan, whole, held)
    return len(held)
