"""`decide`: what a command should do. It changes nothing, and refuses what cannot be done.

Most commands turn into one record at once. Those that make messages available while receivers wait,
or end deliveries, are worked out on a `Plan`.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import islice
from typing import Any

import msgspec

from posthouse.core import schedules, transactions
from posthouse.core.checks import (
    check_count,
    check_duration,
    check_forwarding,
    check_moment,
    check_name,
    check_queue_properties,
    check_rule,
    check_text,
    check_update,
)
from posthouse.core.commands import (
    ANSWER_BYTES_MAX,
    BATCH_MAX,
    CREDIT_MAX,
    GROUP_CHARS_MAX,
    PAGE_MAX,
    RECEIVER_MAX,
    RULE_SQL_LEAST,
    RULES_EFFORT_MAX,
    RULES_MAX,
    RULES_SQL_MAX,
    SESSION_STATE_BYTES_MAX,
    STEPS_MAX,
    SUBSCRIPTIONS_MAX,
    Abandon,
    AcceptSession,
    Attach,
    Begin,
    Cancel,
    CancelSchedule,
    Command,
    Commit,
    Complete,
    Counts,
    CreateQueue,
    CreateSubscription,
    Credit,
    DeadLetter,
    Defer,
    DeleteQueue,
    Detach,
    GetQueue,
    GetSessionState,
    ListQueues,
    ListRules,
    ListSchedules,
    ListSessions,
    ListSubscriptions,
    Move,
    Notice,
    Pause,
    PauseSchedule,
    Peek,
    Peeked,
    Progress,
    Purge,
    QueueInfo,
    Receive,
    Received,
    ReceiveDeferred,
    Release,
    ReleaseSession,
    RemoveRule,
    Renew,
    RenewSession,
    Resubmit,
    Resume,
    ResumeSchedule,
    RollBack,
    Seen,
    Send,
    SetClock,
    SetCopying,
    SetRule,
    SetSchedule,
    SetSessionState,
    Start,
    StepClock,
    Tick,
    TurnClockBack,
    UpdateQueue,
    Waiting,
    Work,
)
from posthouse.core.delivering import deliver
from posthouse.core.dispatch import dispatch, grant
from posthouse.core.endings import by_queue, end, leave_groups, release
from posthouse.core.errors import (
    AlreadyExists,
    Disabled,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    SessionLocked,
)
from posthouse.core.lookup import own_queue, queue_of, session_of
from posthouse.core.message import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    NO_NOTE,
    SCHEDULED,
    STATES,
    Message,
    size_bytes,
)
from posthouse.core.model import (
    SUBSCRIPTION,
    Group,
    Queue,
    QueueProperties,
    Receiver,
    State,
    Status,
    dead_letter_queue,
    page,
    sent_life_ms,
    subscription_queue,
)
from posthouse.core.picking import (
    can_receive,
    can_send,
    free_sessions,
    is_expired,
    pick_in_session,
    pick_ready,
)
from posthouse.core.plan import Delivered, Outcome, Plan, as_active, sequences_of
from posthouse.core.records import (
    Cancelled,
    CreditSet,
    Hungry,
    Moved,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueUpdated,
    ReceiverAttached,
    ReceiverDetached,
    Record,
    Resubmitted,
    RuleRemoved,
    RuleSet,
    SessionRenewed,
    SessionStateSet,
    SubscriptionCreated,
    Touched,
    Unblocked,
)
from posthouse.core.room import check_room, used
from posthouse.core.routing import effort_of
from posthouse.core.rules import DEFAULT_RULE, Rule, sql_chars
from posthouse.core.sending import check_fit, expiry_ms, misfit, send
from posthouse.core.settling import complete, renew, settle
from posthouse.core.shares import SUBSCRIPTIONS, check_share
from posthouse.core.tick import set_clock, set_copying, start, step_clock, tick, turn_clock_back


def decide(state: State, command: Command, now_ms: int) -> Outcome:
    """What should happen; changes nothing. Raises Refused."""
    return _DECIDE[type(command)](state, command, now_ms)


# What several commands need.


def _reads(state: State, queue: Queue, session: int, now_ms: int) -> Group | None:
    """The session a receiver reads from, where the queue has sessions. Refuses a mismatch."""
    if queue.properties.grouping != "session":
        if session:
            raise NotAllowed(queue.name, "it has no sessions")
        return None
    if not session:
        raise NotAllowed(queue.name, "its messages are received through sessions; accept one")
    return session_of(state, queue, session, now_ms)


def _subscription(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None or queue.topic is None:
        raise NotFound("subscription", name)
    return queue


def _receivable(state: State, name: str) -> Queue:
    queue = queue_of(state, name)
    if queue.properties.delivery in FAN_OUT:
        raise NotAllowed(name, "it gives to all who are attached to it; attach a receiver")
    if queue.temporary:
        raise NotAllowed(name, "it is for one receiver alone")
    if queue.relays and queue.origin is None:
        what = "is a topic; receive from a subscription of it"
        if queue.properties.delivery != "topic":
            what = f"forwards to {queue.properties.forward_to!r}; receive from there"
        raise NotAllowed(name, f"it {what}")
    if not can_receive(queue.properties):
        raise Disabled(name, queue.properties.status)
    return queue


def _check_receiver(state: State, number: int) -> None:
    in_use = number in state.receivers or number in state.orphans or number in state.blocked
    if in_use or not 0 < number <= RECEIVER_MAX:
        raise InvalidArgument("receiver", "must be a positive number of 63 bits, not in use")


def _check_bound(state: State, command: Receive | ReceiveDeferred) -> None:
    if command.bound:
        holder = state.receivers.get(command.bound)
        if (
            holder is None
            or holder.once
            or (holder.queue, holder.session) != (command.queue, command.session)
        ):
            raise InvalidArgument("bound", "must be a receiver attached to this queue and session")


# Queues.


def _create_queue(state: State, command: CreateQueue, now_ms: int) -> Outcome:
    check_name("queue", command.queue)
    taken = state.folded.get(command.queue.casefold())
    if taken is not None:
        raise AlreadyExists("queue", taken)
    properties = check_queue_properties(command.properties)
    check_forwarding(state, command.queue, properties)
    return Outcome([QueueCreated(command.queue, now_ms, properties, command.by.name)])


def _create_subscription(state: State, command: CreateSubscription, now_ms: int) -> Outcome:
    topic_name, _, name = command.queue.partition(SUBSCRIPTION)
    topic = state.queues.get(topic_name)
    if topic is None or topic.properties.delivery != "topic":
        raise NotFound("topic", topic_name)
    check_name("subscription", name)
    if "/" in name:
        raise InvalidArgument("subscription", "must not have a / in its name")
    taken = state.folded.get(command.queue.casefold())
    if taken is not None:
        raise AlreadyExists("subscription", taken.partition(SUBSCRIPTION)[2])
    if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        most = len(topic.subscriptions)
        raise QuotaExceeded(topic.name, SUBSCRIPTIONS, most, most)
    check_share(state.held, command.by, SUBSCRIPTIONS, topic.name, SUBSCRIPTIONS_MAX)
    properties = check_queue_properties(command.properties)
    if properties.delivery != "competing" or properties.duplicate_detection:
        raise InvalidArgument("properties", "of a subscription cannot be those of a topic")
    check_forwarding(state, command.queue, properties)
    check_count("the number of rules", len(command.rules), 0, RULES_MAX)
    sql = sum(RULE_SQL_LEAST + chars for chars in map(sql_chars, command.rules) if chars)
    if sql > RULES_SQL_MAX:
        raise InvalidArgument("rules", "have too much SQL for one command; add them one by one")
    rules = [_checked_rule(rule, now_ms) for rule in command.rules]
    _check_effort(command.queue, rules)
    if len({rule.name.casefold() for rule in rules}) < len(rules):
        raise InvalidArgument("rules", "must have names that differ")
    by = command.by.name
    return Outcome([SubscriptionCreated(command.queue, now_ms, properties, rules, by=by)])


def _checked_rule(rule: Rule, now_ms: int) -> Rule:
    check_rule(rule)
    return msgspec.structs.replace(rule, created_ms=now_ms)


def _check_effort(queue: str, rules: Iterable[Rule]) -> None:
    """All that are asked of each message have to be asked in one command."""
    effort = effort_of(rules)
    if effort > RULES_EFFORT_MAX:
        raise QuotaExceeded(queue, "the length of its rules", RULES_EFFORT_MAX, effort)


def _list_subscriptions(state: State, command: ListSubscriptions, _: int) -> Outcome:
    topic = state.queues.get(command.queue)
    if topic is None or topic.properties.delivery == "competing":
        raise NotFound("topic", command.queue)
    check_count("limit", command.limit, 1, PAGE_MAX)
    names = page(sorted(topic.subscriptions), command.after, command.limit)
    return Outcome([], [_info(topic.subscriptions[name]) for name in names])


def _named_rule(queue: Queue, name: str) -> str | None:
    """The rule's exact name, if there is one of that name but for case."""
    if name in queue.rules:
        return name
    folded = name.casefold()
    return next((each for each in queue.rules if each.casefold() == folded), None)


def _set_rule(state: State, command: SetRule, now_ms: int) -> Outcome:
    queue = _subscription(state, command.queue)
    rule = _checked_rule(command.rule, now_ms)
    there = _named_rule(queue, rule.name)
    if command.new:
        if there is not None:
            raise AlreadyExists("rule", there)
        if len(queue.rules) >= RULES_MAX:
            raise QuotaExceeded(queue.name, "the number of rules", RULES_MAX, len(queue.rules))
    elif there is None:
        raise NotFound("rule", rule.name)
    else:
        made_ms = queue.rules[there].created_ms
        rule = msgspec.structs.replace(rule, name=there, created_ms=made_ms)
    _check_effort(queue.name, {**queue.rules, rule.name: rule}.values())
    return Outcome([RuleSet(queue.name, now_ms, rule)])


def _remove_rule(state: State, command: RemoveRule, now_ms: int) -> Outcome:
    queue = _subscription(state, command.queue)
    there = _named_rule(queue, command.rule)
    if there is None:
        raise NotFound("rule", command.rule)
    return Outcome([RuleRemoved(queue.name, now_ms, there)])


def _list_rules(state: State, command: ListRules, _: int) -> Outcome:
    queue = _subscription(state, command.queue)
    check_count("limit", command.limit, 1, PAGE_MAX)
    names = page(sorted(queue.rules), command.after, command.limit)
    return Outcome([], [queue.rules[name] for name in names])


def _update_queue(state: State, command: UpdateQueue, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    properties = check_queue_properties(command.properties)
    check_update(queue.properties, properties)
    old = queue.properties
    if (properties.forward_to, properties.forward_dead_to) != (old.forward_to, old.forward_dead_to):
        check_forwarding(state, queue.name, properties)
    return _change(queue, properties, now_ms)


def _change(queue: Queue, properties: QueueProperties, now_ms: int) -> Outcome:
    records: list[Record] = [QueueUpdated(queue.name, now_ms, properties)]
    notices: list[Delivered] = []
    was, now = can_receive(queue.properties), can_receive(properties)
    if was and not now:
        notices = [Notice(receiver, "paused") for receiver in queue.attached]
    elif now and not was and (queue.waiting or queue.accepting):
        records.append(Hungry(queue.name, more=True))
    before = queue.properties
    if properties.forward_to is not None and properties.forward_to != before.forward_to:
        notices = [Notice(receiver, "paused") for receiver in queue.attached]
        records.append(Hungry(queue.name, more=True))  # what is there already
    dead = queue.dead
    to = properties.forward_dead_to
    if dead is not None and to is not None and to != before.forward_dead_to:
        records.append(Hungry(dead.name, more=True))
    for each in queue.subscriptions.values():
        if each.temporary and each.properties != _of_one(queue, properties):
            change = _change(each, _of_one(queue, properties), now_ms)
            records += change.records
            notices += change.deliveries
    return Outcome(records, None, notices)


FAN_OUT = ("fan-out", "fan-out-unacknowledged")
_STATUS: dict[tuple[bool, bool], Status] = {
    (True, True): "active",
    (True, False): "receive-disabled",
    (False, True): "send-disabled",
    (False, False): "disabled",
}


def _pause(state: State, command: Pause | Resume, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    if not (command.sending or command.receiving):
        raise InvalidArgument("sending or receiving", "must be named")
    on = isinstance(command, Resume)
    sending = on if command.sending else can_send(queue.properties)
    receiving = on if command.receiving else can_receive(queue.properties)
    properties = msgspec.structs.replace(queue.properties, status=_STATUS[sending, receiving])
    return _change(queue, properties, now_ms)


def _delete_queue(state: State, command: DeleteQueue, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    going = [queue, *queue.subscriptions.values()]
    going += [each.dead for each in going if each.dead is not None]
    going += [each.transfer for each in going if each.transfer is not None]
    notices = [
        Notice(number, "deleted") for each in going for number in (*each.attached, *each.blocked)
    ]
    return Outcome([QueueDeleted(queue.name, now_ms)], None, notices)


def _info(queue: Queue) -> QueueInfo:
    dead = queue.dead
    dead_count = sum(dead.counts) if dead is not None else 0
    active, locked, scheduled, delayed, deferred = queue.counts
    transfer = queue.transfer
    return QueueInfo(
        queue.name,
        queue.properties,
        Counts(active, locked, scheduled, delayed, deferred, dead_count),
        used(queue).size_bytes,
        dead.size_bytes if dead is not None else 0,
        queue.created_ms,
        queue.updated_ms,
        max(queue.accessed_ms, queue.touched_ms),
        len(queue.attached),
        len(queue.subscriptions),
        len(queue.rules),
        sum(transfer.counts) if transfer is not None else 0,
    )


def _get_queue(state: State, command: GetQueue, _: int) -> Outcome:
    return Outcome([], _info(queue_of(state, command.queue)))


def _list_queues(state: State, command: ListQueues, _: int) -> Outcome:
    check_count("limit", command.limit, 1, PAGE_MAX)
    names, kind = state.names, command.kind
    if kind is not None:
        wanted, queues = kind == "topic", state.queues
        names = [n for n in names if (queues[n].properties.delivery == "topic") == wanted]
    found = page(names, command.after, command.limit)
    return Outcome([], [_info(state.queues[name]) for name in found])


def _purge(state: State, command: Purge, now_ms: int) -> Outcome:
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
        side = plan.side(queue)
        side.removed.update(sequences_of(chosen))
        leave_groups(side, chosen)
    if command.sequences is not None:
        return dispatch(plan, Progress(len(chosen), None))
    return dispatch(plan, _progress(len(chosen), looked, command.limit))


def _progress(done: int, looked: Sequence[Message], limit: int) -> Progress:
    return Progress(done, looked[-1].sequence + 1 if len(looked) == limit else None)


def _resubmit(state: State, command: Resubmit, now_ms: int) -> Outcome:
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
        chosen = _messages(queue, command.sequences, ACTIVE, now_ms)
        progress = Progress(len(chosen), None)
        for message in chosen:
            check_fit(target, size_bytes(message), message.group)
        check_room(target, used(target), len(chosen), sum(map(size_bytes, chosen)))
    if not chosen:
        return Outcome([], progress)
    plan = Plan(state, now_ms)
    side = plan.side(target)
    first = side.numbers(len(chosen))
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
            side.notes[sequence] = kept
        expiry = expires_ms[sequence - first]
        side.ready.append(
            as_active(message, sequence=sequence, count=0, enqueued_ms=now_ms, expires_ms=expiry)
        )
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


def _move(state: State, command: Move, _: int) -> Outcome:
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


def _messages(queue: Queue, sequences: Sequence[int], state: int, now_ms: int) -> list[Message]:
    """These messages, all of them in this state and none named twice."""
    found: dict[int, Message] = {}
    for sequence in sequences:
        message = queue.messages.get(sequence)
        if message is None or message.state != state or sequence in found:
            raise MessageNotFound(queue.name, sequence, STATES[state])
        if state != SCHEDULED and is_expired(message, now_ms):
            raise MessageNotFound(queue.name, sequence, STATES[state])
        found[sequence] = message
    return list(found.values())


# Sending.


def _cancel(state: State, command: Cancel, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    check_count("sequences", len(command.sequences), 1, BATCH_MAX)
    messages = _messages(queue, command.sequences, SCHEDULED, now_ms)
    return Outcome([Cancelled(queue.name, sequences_of(messages))])


# Receiving.


def _receive(state: State, command: Receive, now_ms: int) -> Outcome:
    queue = state.queues.get(command.queue)
    if queue is None or queue.properties.status != "active" or queue.relays or queue.temporary:
        queue = _receivable(state, command.queue)
    limit, number = command.limit, command.receiver
    if not 1 <= limit <= BATCH_MAX:
        raise InvalidArgument("limit", f"must be from 1 to {BATCH_MAX}")
    perhaps_used = number in state.receivers or state.orphans or state.blocked
    if perhaps_used or not 0 < number <= RECEIVER_MAX:
        _check_receiver(state, number)
    if command.lock_ms or command.bound or command.deadline_ms:
        check_duration("lock_ms", command.lock_ms)
        check_moment("deadline_ms", command.deadline_ms)
        _check_bound(state, command)
    group = None
    if command.session or queue.properties.grouping == "session":
        group = _reads(state, queue, command.session, now_ms)
    if group is None:
        messages = pick_ready(queue, limit, now_ms, delete=command.delete)
    else:
        messages = pick_in_session(queue, group, limit, now_ms)
    if messages:
        if queue.size_bytes > ANSWER_BYTES_MAX and len(messages) > 1:
            messages = messages[: _fit(messages)]
        note_of = queue.notes.get if queue.notes else None
        record, deliveries = deliver(
            state, queue, command, messages, note_of, state.next_lock, now_ms
        )
        return Outcome([record], Received(deliveries))
    if command.deadline_ms <= now_ms:
        return Outcome([Touched(queue.name, now_ms)], Received([]))
    receiver = Receiver(
        number, queue.name, limit, command.delete, command.lock_ms, command.bound,
        by_id=command.by_id, session=command.session, once=True, deadline_ms=command.deadline_ms,
    )  # fmt: skip
    plan = Plan(state, now_ms)
    plan.records.append(ReceiverAttached(receiver))
    _feed_later(plan, queue)
    return dispatch(plan, Waiting(number))


def _fit(messages: Sequence[Message]) -> int:
    """How many of them make one answer, at least one."""
    left = ANSWER_BYTES_MAX
    for count, message in enumerate(messages):
        left -= size_bytes(message)
        if left < 0:
            return max(1, count)
    return len(messages)


def _attach(state: State, command: Attach, now_ms: int) -> Outcome:
    found = state.queues.get(command.queue)
    if found is not None and found.properties.delivery in FAN_OUT:
        return _join(state, found, command, now_ms)
    queue = _receivable(state, command.queue)
    _check_receiver(state, command.receiver)
    check_duration("lock_ms", command.lock_ms)
    check_count("credit", command.credit, 0, CREDIT_MAX)
    _reads(state, queue, command.session, now_ms)
    receiver = Receiver(
        command.receiver, queue.name, command.credit, command.delete, command.lock_ms,
        command.receiver if command.bound else 0, by_id=command.by_id, session=command.session,
    )  # fmt: skip
    plan = Plan(state, now_ms)
    plan.records.append(ReceiverAttached(receiver))
    _fill(plan, queue, receiver, command.credit)
    return dispatch(plan)


def _join(state: State, queue: Queue, command: Attach, now_ms: int) -> Outcome:
    """To a fan-out queue: with a subscription of its own, that ends with the receiver."""
    if not can_receive(queue.properties):
        raise Disabled(queue.name, queue.properties.status)
    _check_receiver(state, command.receiver)
    _reads(state, queue, command.session, now_ms)
    check_duration("lock_ms", command.lock_ms)
    check_count("credit", command.credit, 0, CREDIT_MAX)
    if len(queue.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise QuotaExceeded(queue.name, "the number of receivers", SUBSCRIPTIONS_MAX,
                            SUBSCRIPTIONS_MAX)  # fmt: skip
    check_share(state.held, command.by, SUBSCRIPTIONS, queue.name, SUBSCRIPTIONS_MAX)
    name = subscription_queue(queue.name, f"~{command.receiver}")
    properties = _of_one(queue, queue.properties)
    delete = command.delete or queue.properties.delivery == "fan-out-unacknowledged"
    receiver = Receiver(
        command.receiver, name, command.credit, delete, command.lock_ms, command.receiver,
        by_id=command.by_id,
    )  # fmt: skip
    records: list[Record] = [
        SubscriptionCreated(
            name, now_ms, properties, [Rule(DEFAULT_RULE)], temporary=True, by=command.by.name
        ),
        ReceiverAttached(receiver),
    ]
    if not queue.subscriptions and queue.counts[ACTIVE]:
        records.append(Hungry(queue.name, more=True))  # what was kept is for the first
    return Outcome(records)


def _of_one(queue: Queue, mine: QueueProperties) -> QueueProperties:
    """What the subscription of one who is attached to a fan-out queue has of that."""
    return QueueProperties(
        lock_ms=mine.lock_ms, max_delivery=mine.max_delivery, counting=mine.counting,
        order=mine.order, backoff_ms=mine.backoff_ms, dead_letter_expired=mine.dead_letter_expired,
        forward_dead_to=dead_letter_queue(queue.name), status=_STATUS[True, can_receive(mine)],
    )  # fmt: skip


def _fill(plan: Plan, queue: Queue, receiver: Receiver, credit: int) -> None:
    """Hands what is ready to a receiver that has just got credit."""
    if not credit or not can_receive(queue.properties):
        return
    if receiver.session:
        _, group = plan.state.sessions[receiver.session]
        messages = pick_in_session(queue, group, credit, plan.now_ms)
    else:
        messages = pick_ready(queue, credit, plan.now_ms, delete=receiver.delete)
    if messages:
        plan.deliver(queue, receiver, messages)
    if len(messages) < credit:
        _feed_later(plan, queue)


def _feed_later(plan: Plan, queue: Queue) -> None:
    """Where messages that have expired but are still there may hide others from a receiver."""
    overdue_ms = plan.state.expiry_timers.first
    if overdue_ms is not None and overdue_ms <= plan.now_ms:
        plan.records.append(Hungry(queue.name, more=True))


def _credit(state: State, command: Credit, now_ms: int) -> Outcome:
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


def _receiver(state: State, number: int) -> Receiver:
    receiver = state.receivers.get(number)
    if receiver is None:
        raise NotFound("receiver", str(number))
    return receiver


def _detach(state: State, command: Detach, now_ms: int) -> Outcome:
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


def _receive_deferred(state: State, command: ReceiveDeferred, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if not can_receive(queue.properties):
        raise Disabled(queue.name, queue.properties.status)
    check_duration("lock_ms", command.lock_ms)
    _check_bound(state, command)
    check_count("sequences", len(command.sequences), 1, BATCH_MAX)
    group = _reads(state, queue, command.session, now_ms)
    messages = _messages(queue, command.sequences, DEFERRED, now_ms)
    for message in messages:
        if group is not None and message.group != group.key:
            raise MessageNotFound(queue.name, message.sequence, STATES[DEFERRED])
    if _fit(messages) < len(messages):
        raise NotAllowed(queue.name, "these are too large for one answer, ask for fewer")
    record, deliveries = deliver(
        state, queue, command, messages, queue.notes.get, state.next_lock, now_ms
    )
    return Outcome([record], Received(deliveries))


def _peek(state: State, command: Peek, _: int) -> Outcome:
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


# Sessions.


def _accept_session(state: State, command: AcceptSession, now_ms: int) -> Outcome:
    queue = _receivable(state, command.queue)
    _check_receiver(state, command.receiver)
    check_duration("lock_ms", command.lock_ms)
    check_moment("deadline_ms", command.deadline_ms)
    if queue.properties.grouping != "session":
        raise NotAllowed(queue.name, "it has no sessions")
    session = command.session
    if session is not None:
        check_text("session", session, GROUP_CHARS_MAX)
        group = queue.groups.get(session)
        if group is not None and group.token:
            raise SessionLocked(queue.name, session)
    else:
        session = next(free_sessions(queue, now_ms), None)
    receiver = Receiver(
        command.receiver, queue.name, 0, lock_ms=command.lock_ms, bound_session=command.bound,
        once=True, deadline_ms=command.deadline_ms,
    )  # fmt: skip
    if session is not None:
        plan = Plan(state, now_ms)
        granted = grant(plan, queue, session, receiver)
        return Outcome(plan.records, granted)
    if command.deadline_ms > now_ms:
        plan = Plan(state, now_ms)
        plan.records.append(ReceiverAttached(receiver, accepting=True))
        _feed_later(plan, queue)
        return dispatch(plan, Waiting(receiver.receiver))
    return Outcome([Touched(queue.name, now_ms)], None)


def _renew_session(state: State, command: RenewSession, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    check_duration("lock_ms", command.lock_ms)
    until_ms = now_ms + (command.lock_ms or queue.properties.lock_ms)
    plan = Plan(state, now_ms)
    plan.records.append(SessionRenewed(queue.name, group.key, until_ms))
    plan.touch(queue)
    return dispatch(plan, until_ms)


def _release_session(state: State, command: ReleaseSession, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    plan = Plan(state, now_ms)
    release(plan, queue, group)
    return dispatch(plan)


def _get_session_state(state: State, command: GetSessionState, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    return Outcome([], session_of(state, queue, command.session, now_ms).state)


def _set_session_state(state: State, command: SetSessionState, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    blob = command.state
    if blob is not None and (type(blob) is not bytes or len(blob) > SESSION_STATE_BYTES_MAX):
        raise InvalidArgument("state", f"must be at most {SESSION_STATE_BYTES_MAX} bytes")
    return Outcome([SessionStateSet(queue.name, group.key, now_ms, command.state)])


def _list_sessions(state: State, command: ListSessions, _: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if queue.properties.grouping != "session":
        raise NotAllowed(queue.name, "it has no sessions")
    check_count("limit", command.limit, 1, PAGE_MAX)
    check_count("skip", command.skip, 0, 1 << 31)
    since_ms = command.since_ms
    keys = (
        group.key
        for group in queue.groups.values()
        if (group.messages or group.state is not None)
        and (since_ms is None or (group.state is not None and group.state_ms > since_ms))
    )
    return Outcome([], list(islice(keys, command.skip, command.skip + command.limit)))


_DECIDE: dict[type[Command], Callable[[State, Any, int], Outcome]] = {
    Start: start,
    Tick: tick,
    StepClock: step_clock,
    SetClock: set_clock,
    TurnClockBack: turn_clock_back,
    SetCopying: set_copying,
    CreateQueue: _create_queue,
    UpdateQueue: _update_queue,
    DeleteQueue: _delete_queue,
    CreateSubscription: _create_subscription,
    ListSubscriptions: _list_subscriptions,
    SetRule: _set_rule,
    RemoveRule: _remove_rule,
    ListRules: _list_rules,
    GetQueue: _get_queue,
    ListQueues: _list_queues,
    Pause: _pause,
    Resume: _pause,
    Purge: _purge,
    Resubmit: _resubmit,
    Move: _move,
    Send: send,
    Cancel: _cancel,
    Receive: _receive,
    Attach: _attach,
    Credit: _credit,
    Detach: _detach,
    ReceiveDeferred: _receive_deferred,
    Peek: _peek,
    Complete: complete,
    Abandon: settle,
    Release: settle,
    Defer: settle,
    DeadLetter: settle,
    Renew: renew,
    AcceptSession: _accept_session,
    RenewSession: _renew_session,
    ReleaseSession: _release_session,
    GetSessionState: _get_session_state,
    SetSessionState: _set_session_state,
    ListSessions: _list_sessions,
    SetSchedule: schedules.set_schedule,
    PauseSchedule: schedules.pause,
    ResumeSchedule: schedules.resume,
    CancelSchedule: schedules.cancel,
    ListSchedules: schedules.list_all,
    Begin: transactions.begin,
    Work: transactions.work,
    Commit: transactions.commit,
    RollBack: transactions.roll_back,
}
