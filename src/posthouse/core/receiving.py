"""Receiving: by asking once (pull), or by credit (push)."""

from collections.abc import Sequence
from itertools import islice

from posthouse.core.checks import check_count, check_duration, check_moment
from posthouse.core.commands import (
    ANSWER_BYTES_MAX,
    BATCH_MAX,
    CLIENT_CHARS_MAX,
    CREDIT_MAX,
    RECEIVER_MAX,
    STEPS_MAX,
    SUBSCRIPTIONS_MAX,
    Attach,
    Credit,
    Detach,
    Notice,
    Receive,
    Received,
    ReceiveDeferred,
    Waiting,
)
from posthouse.core.delivering import deliver
from posthouse.core.dispatch import dispatch
from posthouse.core.endings import by_queue, end, end_at_once, release
from posthouse.core.entities import fan_out_properties
from posthouse.core.errors import (
    Disabled,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    NotFound,
    QuotaExceeded,
)
from posthouse.core.lookup import messages_in, queue_of, receivable, session_of, session_read
from posthouse.core.message import ACTIVE, DEFERRED, LOCKED, STATES, Message, size_bytes
from posthouse.core.model import FAN_OUT, Queue, Receiver, State, subscription_queue
from posthouse.core.picking import can_receive, pick_in_session, pick_ready
from posthouse.core.plan import Outcome, Plan
from posthouse.core.records import (
    CreditSet,
    DispatchPending,
    Locked,
    QueueDeleted,
    ReceiverAttached,
    ReceiverDetached,
    Record,
    SubscriptionCreated,
    Touched,
    Unblocked,
)
from posthouse.core.rules import DEFAULT_RULE, Rule
from posthouse.core.shares import RECEIVERS, SUBSCRIPTIONS, check_share


def receive(state: State, command: Receive, now_ms: int) -> Outcome:
    queue = receivable(state, command.queue)
    limit, number = command.limit, command.receiver
    if not 1 <= limit <= BATCH_MAX:
        raise InvalidArgument("limit", f"must be from 1 to {BATCH_MAX}")
    check_receiver(state, number)
    if command.lock_ms or command.bound or command.deadline_ms:
        check_duration("lock_ms", command.lock_ms or 0)
        check_moment("deadline_ms", command.deadline_ms)
        _check_bound(state, command)
    group = session_read(state, queue, command.session, now_ms)
    if queue.properties.max_locked is not None and not command.delete:
        room = queue.lock_room() or 0
        if not room and command.deadline_ms <= now_ms:
            raise _too_many_locked(queue)
        limit = min(limit, room)
    if not limit:
        messages = []
    elif group is None:
        messages = pick_ready(queue, limit, now_ms, delete=command.delete)
    else:
        messages = pick_in_session(queue, group, limit, now_ms)
    if messages:
        if queue.size_bytes > ANSWER_BYTES_MAX and len(messages) > 1:
            messages = messages[: _fit(messages)]
        note_of = queue.notes.get if queue.notes else None
        record, deliveries = deliver(
            state, queue, command, messages, note_of, state.next_lock, now_ms, queue.firsts
        )
        if isinstance(record, Locked) and record.until_ms == now_ms and group is None:
            plan = Plan(state, now_ms)
            plan.records.append(record)
            end_at_once(plan, queue, messages)
            return dispatch(plan, Received(deliveries))
        return Outcome([record], Received(deliveries))
    if command.deadline_ms <= now_ms:
        return Outcome([Touched(queue.name, now_ms)], Received([]))
    receiver = Receiver(
        number, queue.name, command.limit, command.delete, command.lock_ms, command.bound,
        by_id=command.by_id, session=command.session, once=True, deadline_ms=command.deadline_ms,
    )  # fmt: skip
    plan = Plan(state, now_ms)
    plan.records.append(ReceiverAttached(receiver))
    dispatch_later(plan, queue)
    if not limit:
        plan.hold_back(queue)
    return dispatch(plan, Waiting(number))


def _too_many_locked(queue: Queue) -> QuotaExceeded:
    most = queue.properties.max_locked
    return QuotaExceeded(queue.name, "max_locked", most or 0, queue.counts[LOCKED])


def check_lock_room(queue: Queue, messages: int) -> None:
    """Raises QuotaExceeded where so many more may not be locked."""
    room = queue.lock_room()
    if room is not None and messages > room:
        raise _too_many_locked(queue)


def _fit(messages: Sequence[Message]) -> int:
    """How many of them make one answer, at least one."""
    left = ANSWER_BYTES_MAX
    for count, message in enumerate(messages):
        left -= size_bytes(message)
        if left < 0:
            return max(1, count)
    return len(messages)


def receive_deferred(state: State, command: ReceiveDeferred, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if not can_receive(queue.properties):
        raise Disabled(queue.name, queue.properties.status)
    check_duration("lock_ms", command.lock_ms)
    _check_bound(state, command)
    check_count("sequences", len(command.sequences), 1, BATCH_MAX)
    group = session_read(state, queue, command.session, now_ms)
    messages = messages_in(queue, command.sequences, DEFERRED, now_ms)
    for message in messages:
        if group is not None and message.group != group.key:
            raise MessageNotFound(queue.name, message.sequence, STATES[DEFERRED])
    if _fit(messages) < len(messages):
        raise NotAllowed(queue.name, "these are too large for one answer, ask for fewer")
    if not command.delete:
        check_lock_room(queue, len(messages))
    record, deliveries = deliver(
        state, queue, command, messages, queue.notes.get, state.next_lock, now_ms, queue.firsts
    )
    return Outcome([record], Received(deliveries))


def _check_bound(state: State, command: Receive | ReceiveDeferred) -> None:
    if command.bound:
        holder = state.receivers.get(command.bound)
        if (
            holder is None
            or holder.once
            or (holder.queue, holder.session) != (command.queue, command.session)
        ):
            raise InvalidArgument("bound", "must be a receiver attached to this queue and session")


def attach(state: State, command: Attach, now_ms: int) -> Outcome:
    fan_out = state.queues.get(command.queue)
    if fan_out is not None and fan_out.properties.delivery in FAN_OUT:
        return _join(state, fan_out, command, now_ms)
    queue = receivable(state, command.queue)
    check_receiver(state, command.receiver)
    check_duration("lock_ms", command.lock_ms)
    check_count("credit", command.credit, 0, CREDIT_MAX)
    session_read(state, queue, command.session, now_ms)
    receiver = Receiver(
        command.receiver, queue.name, command.credit, command.delete, command.lock_ms or None,
        command.receiver if command.bound else 0, by_id=command.by_id, session=command.session,
        by=command.by.name, client=command.client[:CLIENT_CHARS_MAX],
    )  # fmt: skip
    plan = Plan(state, now_ms)
    plan.records.append(ReceiverAttached(receiver))
    _fill(plan, queue, receiver, command.credit)
    return dispatch(plan)


def _join(state: State, queue: Queue, command: Attach, now_ms: int) -> Outcome:
    """Attaches to a fan-out queue, by a subscription that ends with the receiver."""
    if not can_receive(queue.properties):
        raise Disabled(queue.name, queue.properties.status)
    check_receiver(state, command.receiver)
    session_read(state, queue, command.session, now_ms)
    check_duration("lock_ms", command.lock_ms)
    check_count("credit", command.credit, 0, CREDIT_MAX)
    if len(queue.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise QuotaExceeded(queue.name, RECEIVERS, SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_MAX)
    check_share(state.held, command.by, SUBSCRIPTIONS, queue.name, SUBSCRIPTIONS_MAX)
    name = subscription_queue(queue.name, f"~{command.receiver}")
    properties = fan_out_properties(queue, queue.properties)
    delete = command.delete or queue.properties.delivery == "fan-out-unacknowledged"
    receiver = Receiver(
        command.receiver, name, command.credit, delete, command.lock_ms or None, command.receiver,
        by_id=command.by_id, by=command.by.name, client=command.client[:CLIENT_CHARS_MAX],
    )  # fmt: skip
    records: list[Record] = [
        SubscriptionCreated(
            name, now_ms, properties, [Rule(DEFAULT_RULE)], temporary=True, by=command.by.name
        ),
        ReceiverAttached(receiver),
    ]
    if not queue.subscriptions and queue.counts[ACTIVE]:
        records.append(DispatchPending(queue.name, more=True))  # what was kept is for the first
    return Outcome(records)


def credit(state: State, command: Credit, now_ms: int) -> Outcome:
    receiver = _receiver(state, command.receiver)
    if receiver.once:
        raise NotAllowed(receiver.queue, "a receiver that asks once has no credit to set")
    check_count("credit", command.credit, 0, CREDIT_MAX)
    queue = state.queues[receiver.queue]
    if receiver.session:
        session_of(state, queue, receiver.session, now_ms)
    credit = command.credit
    if command.given is not None:
        check_count("given", command.given, 0, receiver.given)
        credit = max(0, credit - (receiver.given - command.given))
    plan = Plan(state, now_ms)
    plan.records.append(CreditSet(receiver.receiver, credit))
    _fill(plan, queue, receiver, credit)
    if command.drain:
        plan.records.append(CreditSet(receiver.receiver, 0))
        plan.deliveries.append(Notice(receiver.receiver, "drained"))
    return dispatch(plan)


def _fill(plan: Plan, queue: Queue, receiver: Receiver, credit: int) -> None:
    """Hands what is ready to a receiver that has just got credit."""
    if not credit or not can_receive(queue.properties):
        return
    room = None if receiver.delete else plan.lock_room(queue)
    most = credit if room is None else min(credit, room)
    if not most:
        messages = []
    elif receiver.session:
        _, group = plan.state.sessions[receiver.session]
        messages = pick_in_session(queue, group, most, plan.now_ms)
    else:
        messages = pick_ready(queue, most, plan.now_ms, delete=receiver.delete)
    if messages:
        plan.deliver(queue, receiver, messages)
    if len(messages) < credit:
        dispatch_later(plan, queue)
        if len(messages) == room:
            plan.hold_back(queue)


def dispatch_later(plan: Plan, queue: Queue) -> None:
    """Leaves it to a tick, where messages that have expired may hide others from a receiver."""
    overdue_ms = plan.state.expiry_timers.first
    if overdue_ms is not None and overdue_ms <= plan.now_ms:
        plan.records.append(DispatchPending(queue.name, more=True))


def detach(state: State, command: Detach, now_ms: int) -> Outcome:
    blocked = state.blocked.get(command.receiver)
    if blocked is not None:
        return Outcome([Touched(blocked.queue, now_ms), Unblocked(blocked.sender)])
    receiver = _receiver(state, command.receiver)
    plan = Plan(state, now_ms)
    plan.leaving.add(receiver.receiver)
    queue = state.queues[receiver.queue]
    if queue.temporary and queue.topic is not None:
        plan.ending.add(queue.name)
        plan.records.append(QueueDeleted(queue.name, now_ms))  # with all that is its own
        plan.records.append(Touched(queue.topic, now_ms))
        return dispatch(plan)
    plan.records.append(ReceiverDetached(receiver.receiver))
    plan.records.append(Touched(receiver.queue, now_ms))
    locks = [state.locks[token] for token in islice(receiver.locks, STEPS_MAX)]
    plan.leaving.update(receiver.waits)
    plan.deliveries += [Notice(number, "timed-out") for number in receiver.waits]
    if receiver.session and not receiver.once:
        queue, group = state.sessions[receiver.session]
        if group.bound:
            release(plan, queue, group)
            locks = [lock for lock in locks if lock.session is not group]
    for queue, messages in by_queue(state, locks):
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    return dispatch(plan)


def _receiver(state: State, number: int) -> Receiver:
    receiver = state.receivers.get(number)
    if receiver is None:
        raise NotFound("receiver", str(number))
    return receiver


def check_receiver(state: State, number: int) -> None:
    in_use = number in state.receivers or number in state.orphans or number in state.blocked
    if in_use or not 0 < number <= RECEIVER_MAX:
        raise InvalidArgument("receiver", "must be a positive number of 63 bits, not in use")
