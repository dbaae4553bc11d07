"""Requests that take several steps: pushes to several queues at once, transactions, schedules."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from posthouse.broker.access import Principal, vouched
from posthouse.core.commands import (
    Answer,
    Begin,
    Begun,
    Command,
    Commit,
    Committed,
    Enqueued,
    RollBack,
    Send,
    SetSchedule,
    Work,
)
from posthouse.core.errors import (
    AlreadyExists,
    Duplicate,
    InvalidArgument,
    Refused,
    TransactionLost,
)
from posthouse.core.message import NewMessage
from posthouse.core.model import Right
from posthouse.dialects.pyqueue import ledger
from posthouse.dialects.pyqueue.context import PyQueueContext
from posthouse.dialects.pyqueue.refusals import Failed
from posthouse.dialects.pyqueue.tasks import NewTask, PushForm, new_task, queue_in, read
from posthouse.uuids import new_uuid

_CRON = "cron:"


class Call:
    """One request: who asks, and for what."""

    __slots__ = ("address", "context", "is_gone", "on", "op", "payload", "principal")

    def __init__(
        self,
        context: PyQueueContext,
        principal: Principal,
        address: str,
        op: str,
        payload: bytes,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.context = context
        self.principal = principal
        self.address = address
        self.op = op
        self.payload = payload
        self.is_gone = is_gone  # whether the client is
        self.on = ""  # what it is about

    async def give_way(self) -> None:
        """Others have their turn. Raises ConnectionResetError where nobody waits any more."""
        await asyncio.sleep(0)
        if self.is_gone():
            raise ConnectionResetError

    def form(self, kind: type[Any]) -> Any:
        """Raises Failed."""
        return read(kind, self.payload)

    def name(self) -> str:
        """A payload that is a name and nothing else. Raises Failed."""
        try:
            self.on = self.payload.decode().strip()
        except UnicodeDecodeError:
            raise Failed("A name must be UTF-8") from None
        return self.on

    async def ask(self, command: Command) -> Answer:
        """Raises Refused or StoreError."""
        return await self.context.ask(self.principal, command)

    async def ask_vouched(self, command: Command) -> Answer:
        """Submits a command that other rights than its own have allowed.

        Raises Refused or StoreError.
        """
        return await self.context.ask(vouched(self.principal), command)

    def check(self, right: Right, entity: str) -> None:
        """Raises Unauthorized."""
        self.on = entity
        self.context.check(self.principal, right, entity)


Order = Callable[[Call], Awaitable[bytes]]
told = msgspec.json.Encoder().encode


# Many tasks at once.


def accepted(ids: Sequence[str], answer: Enqueued) -> list[str]:
    """Returns the ids of the tasks that were no duplicates: their sequence numbers are new."""
    new = len(answer.sequences) - answer.duplicates
    if new == len(ids):
        return list(ids)
    left = set(range(max(answer.sequences) - new + 1, max(answer.sequences) + 1) if new else ())
    found = []
    for id, sequence in zip(ids, answer.sequences, strict=True):
        if sequence in left:
            left.remove(sequence)
            found.append(id)
    return found


def batch_told(ids: list[str]) -> bytes:
    return told({"task_ids": ids, "count": len(ids)})


async def push_together(call: Call, tasks: Sequence[tuple[str, NewTask]]) -> list[str]:
    """All of them or none, each into its queue; the ids of those that are no duplicates."""
    if not tasks:
        return []
    by_queue: dict[str, list[NewTask]] = {}
    for queue, task in tasks:
        by_queue.setdefault(queue, []).append(task)
    sends = [
        Send(queue, [task.message for task in some], [task.key for task in some])
        for queue, some in by_queue.items()
    ]
    taken: set[str] = set()
    for send, enqueued in zip(sends, await send_together(call, sends), strict=True):
        taken.update(accepted([task.id for task in by_queue[send.queue]], enqueued))
    return [task.id for _, task in tasks if task.id in taken]


async def send_together(call: Call, sends: list[Send]) -> Sequence[Enqueued]:
    """Sends tasks to several queues in one commit. Raises Refused or Failed."""
    context, principal = call.context, call.principal
    for send in sends:
        context.charge_for(call.address, send)
    if len(sends) == 1:
        answer = await context.ask(principal, sends[0])
        assert isinstance(answer, Enqueued)
        return [answer]
    begun = await context.ask(principal, Begin(ledger.TIMEOUT_MS))
    assert isinstance(begun, Begun)
    try:
        for send in sends:
            call.on = send.queue
            await context.ask(principal, Work(begun.transaction, send))
    except Refused:
        await context.ask(principal, RollBack(begun.transaction))
        raise
    done = await context.ask(principal, Commit(begun.transaction))
    if isinstance(done, Committed):
        return done.sent
    for send in sends:
        _check_room(context, send.queue, send.messages)
    raise Failed(f"Failed to add batch: {getattr(done, 'reason', '')}")


def _check_room(context: PyQueueContext, name: str, messages: Sequence[NewMessage]) -> None:
    """Raises QuotaExceeded, which says more than that a transaction has failed."""
    if context.properties_of(name) is not None:
        context.view.check_room(context.namespace, name, len(messages))


def check_is_new(context: PyQueueContext, name: str, key: str) -> None:
    """Checks that a task is no duplicate before its commit, which leaves out duplicates itself.

    Raises Duplicate.
    """
    if key and context.properties_of(name) is not None:
        sequence = context.view.messages.repeated(context.namespace, name, key, context.now_ms)
        if sequence is not None:
            raise Duplicate(name, key, sequence)


async def push(call: Call, form: PushForm) -> str:
    """One task; its id. Raises Refused, StoreError or Failed."""
    context = call.context
    call.on = queue = queue_in(form)
    context.charge(call.address, 1)
    task = new_task(form, deduplicate=context.settings.deduplicate)
    context.make_queue(call.principal, "send", queue)
    await call.ask(Send(queue, [task.message], [task.key], refuse_duplicates=True))
    return task.id


# Transactions.


class _TransactionForm(msgspec.Struct):
    transaction_id: str


async def begin(call: Call) -> bytes:
    begun = await call.ask(Begin(ledger.TIMEOUT_MS))
    assert isinstance(begun, Begun)
    call.context.ledger.begun(begun.transaction, begun.until_ms)
    return told({"transaction_id": ledger.id_of(begun.transaction)})


async def commit(call: Call) -> bytes:
    id, number = _transaction(call)
    try:
        done = await call.ask(Commit(call.context.engine.owned(call.principal, number)))
    except TransactionLost:
        raise Failed(call.context.ledger.why_not(id, call.context.now_ms)) from None
    if not isinstance(done, Committed):
        call.context.ledger.ended(number, ledger.FAILED)
        reason = getattr(done, "reason", "")
        raise Failed(f"Transaction {id} could not be committed: {reason}")
    call.context.ledger.ended(number, ledger.COMMITTED)
    pushed = sum(len(each.sequences) - each.duplicates for each in done.sent)
    return told({"transaction_id": id, "operations": pushed + done.settled})


async def roll_back(call: Call) -> bytes:
    id, number = _transaction(call)
    try:
        await call.ask(RollBack(call.context.engine.owned(call.principal, number)))
    except TransactionLost:
        raise Failed(call.context.ledger.why_not(id, call.context.now_ms)) from None
    call.context.ledger.ended(number, ledger.ROLLED_BACK)
    return told({"transaction_id": id, "status": ledger.ROLLED_BACK})


def _transaction(call: Call) -> tuple[str, int]:
    form: _TransactionForm = call.form(_TransactionForm)
    return form.transaction_id, ledger.number_of(form.transaction_id)


# Schedules.


class _ScheduleForm(PushForm, kw_only=True):
    schedule: str
    timezone: str | None = None


async def schedule(call: Call) -> bytes:
    """A schedule has the id of its task; what it sends has that and the moment."""
    context = call.context
    form: _ScheduleForm = call.form(_ScheduleForm)
    call.on = queue = queue_in(form)
    context.charge(call.address, 1)
    name = new_uuid()
    if form.idempotency_key:  # as long as that schedule is there, there is no other
        name = "key-" + sha256(form.idempotency_key.encode()).hexdigest()
        form.idempotency_key = None
    task = new_task(form, id=name)
    context.make_queue(call.principal, "send", queue)
    zone = form.timezone or context.settings.zone
    try:
        await call.ask(SetSchedule(queue, name, when_in(form.schedule), task.message, zone))
    except AlreadyExists:
        raise Failed("Duplicate task detected") from None
    except InvalidArgument as wrong:
        if wrong.argument not in ("when", "zone"):
            raise
        raise Failed(f"Invalid schedule format: {form.schedule[:100]} ({wrong})") from None
    made = context.view.schedule(context.namespace, name)
    next_run = 0 if made is None else made.next_ms / 1_000
    return told({"task_id": name, "next_run": next_run})


def when_in(text: str) -> str:
    """Returns a schedule in the core's form: a cron line without the leading keyword."""
    words = text.strip()
    return words[len(_CRON) :].strip() if words.lower().startswith(_CRON) else words


ORDERS: dict[str, Order] = {
    "BEGIN_TX": begin,
    "COMMIT_TX": commit,
    "ROLLBACK_TX": roll_back,
    "SCHEDULE": schedule,
}
