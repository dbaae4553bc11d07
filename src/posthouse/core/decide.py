"""`decide`: what a command should do. It changes nothing, and refuses what cannot be done.

Most commands turn into one record at once. Those that make messages available while receivers wait,
or end deliveries, are worked out on a `Plan`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any

import msgspec

from posthouse.core.checks import (
    check_count,
    check_duration,
    check_forwarding,
    check_name,
    check_properties,
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
    KEY_CHARS_MAX,
    PAGE_MAX,
    RECEIVER_MAX,
    RULES_MAX,
    SEND_BYTES_MAX,
    SESSION_STATE_BYTES_MAX,
    SETTLED,
    STEPS_MAX,
    SUBSCRIPTIONS_MAX,
    TEXT_CHARS_MAX,
    Abandon,
    AcceptSession,
    Attach,
    Cancel,
    Command,
    Complete,
    Counts,
    CreateQueue,
    CreateSubscription,
    Credit,
    DeadLetter,
    Defer,
    DeleteQueue,
    Detach,
    Enqueued,
    GetQueue,
    GetSessionState,
    ListQueues,
    ListRules,
    ListSessions,
    ListSubscriptions,
    Move,
    Notice,
    Pause,
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
    Seen,
    Send,
    SetClock,
    SetRule,
    SetSessionState,
    Settle,
    Settled,
    Start,
    StepClock,
    Tick,
    UpdateQueue,
    Waiting,
)
from posthouse.core.errors import (
    AlreadyExists,
    Disabled,
    Duplicate,
    InvalidArgument,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    Refused,
    SessionLocked,
    SessionLockLost,
)
from posthouse.core.message import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    NO_NOTE,
    SCHEDULED,
    STATES,
    Message,
    NewMessage,
    Properties,
    message_id,
    size_bytes,
)
from posthouse.core.model import (
    PRIORITIES,
    SUBSCRIPTION,
    Group,
    Lock,
    Queue,
    QueueProperties,
    Receiver,
    State,
    Status,
    page,
    sent_life_ms,
)
from posthouse.core.plan import (
    Delivered,
    Outcome,
    Plan,
    as_active,
    bury,
    by_queue,
    can_receive,
    can_send,
    deliver,
    drop,
    end,
    free_sessions,
    grant,
    is_expired,
    leave_groups,
    pick_in_session,
    pick_ready,
    release,
    sequences_of,
)
from posthouse.core.records import (
    Cancelled,
    Completed,
    CreditSet,
    Deferred,
    Hungry,
    Moved,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueUpdated,
    ReceiverAttached,
    ReceiverDetached,
    Record,
    Renewed,
    Resubmitted,
    RuleRemoved,
    RuleSet,
    Sent,
    SessionRenewed,
    SessionStateSet,
    SubscriptionCreated,
    Touched,
)
from posthouse.core.room import check_room, make_room, used
from posthouse.core.rules import Rule
from posthouse.core.tick import set_clock, start, step_clock, tick


def decide(state: State, command: Command, now_ms: int) -> Outcome:
    """What should happen; changes nothing. Raises Refused."""
    return _DECIDE[type(command)](state, command, now_ms)


# What several commands need.


def _queue(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None:
        raise NotFound("queue", name)
    return queue


def _own_queue(state: State, name: str) -> Queue:
    """One that is not a dead-letter queue."""
    queue = _queue(state, name)
    if queue.origin is not None:
        raise NotAllowed(name, f"it belongs to {queue.origin!r}; use that")
    return queue


def _session(state: State, queue: Queue, token: int, now_ms: int) -> Group:
    of, group = state.sessions.get(token, (None, None))
    if of is not queue or group is None or group.until_ms <= now_ms:
        raise SessionLockLost(queue.name, token)
    return group


def _reads(state: State, queue: Queue, session: int, now_ms: int) -> Group | None:
    """The session a receiver reads from, where the queue has sessions. Refuses a mismatch."""
    if queue.properties.grouping != "session":
        if session:
            raise NotAllowed(queue.name, "it has no sessions")
        return None
    if not session:
        raise NotAllowed(queue.name, "its messages are received through sessions; accept one")
    return _session(state, queue, session, now_ms)


def _subscription(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None or queue.topic is None:
        raise NotFound("subscription", name)
    return queue


def _receivable(state: State, name: str) -> Queue:
    queue = _queue(state, name)
    if queue.relays and queue.origin is None:
        what = "is a topic; receive from a subscription of it"
        if queue.properties.delivery != "topic":
            what = f"forwards to {queue.properties.forward_to!r}; receive from there"
        raise NotAllowed(name, f"it {what}")
    if not can_receive(queue.properties):
        raise Disabled(name, queue.properties.status)
    return queue


def _check_receiver(state: State, number: int) -> None:
    in_use = number in state.receivers or number in state.orphans
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
    return Outcome([QueueCreated(command.queue, now_ms, properties)])


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
        raise QuotaExceeded(topic.name, "the number of subscriptions", most, most)
    properties = check_queue_properties(command.properties)
    if properties.delivery != "competing" or properties.duplicate_detection:
        raise InvalidArgument("properties", "of a subscription cannot be those of a topic")
    check_forwarding(state, command.queue, properties)
    rules = [_checked_rule(rule, now_ms) for rule in command.rules]
    if len({rule.name.casefold() for rule in rules}) < len(rules):
        raise InvalidArgument("rules", "must have names that differ")
    check_count("the number of rules", len(rules), 0, RULES_MAX)
    return Outcome([SubscriptionCreated(command.queue, now_ms, properties, rules)])


def _checked_rule(rule: Rule, now_ms: int) -> Rule:
    check_rule(rule)
    return msgspec.structs.replace(rule, created_ms=now_ms)


def _list_subscriptions(state: State, command: ListSubscriptions, _: int) -> Outcome:
    topic = state.queues.get(command.queue)
    if topic is None or topic.properties.delivery != "topic":
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
    queue = _own_queue(state, command.queue)
    properties = check_queue_properties(command.properties)
    check_update(queue.properties, properties)
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
    return Outcome(records, None, notices)


_STATUS: dict[tuple[bool, bool], Status] = {
    (True, True): "active",
    (True, False): "receive-disabled",
    (False, True): "send-disabled",
    (False, False): "disabled",
}


def _pause(state: State, command: Pause | Resume, now_ms: int) -> Outcome:
    queue = _own_queue(state, command.queue)
    if not (command.sending or command.receiving):
        raise InvalidArgument("sending or receiving", "must be named")
    on = isinstance(command, Resume)
    sending = on if command.sending else can_send(queue.properties)
    receiving = on if command.receiving else can_receive(queue.properties)
    properties = msgspec.structs.replace(queue.properties, status=_STATUS[sending, receiving])
    return _change(queue, properties, now_ms)


def _delete_queue(state: State, command: DeleteQueue, now_ms: int) -> Outcome:
    queue = _own_queue(state, command.queue)
    going = [queue, *queue.subscriptions.values()]
    going += [each.dead for each in going if each.dead is not None]
    going += [each.transfer for each in going if each.transfer is not None]
    notices = [Notice(receiver, "deleted") for each in going for receiver in each.attached]
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
    return Outcome([], _info(_queue(state, command.queue)))


def _list_queues(state: State, command: ListQueues, _: int) -> Outcome:
    check_count("limit", command.limit, 1, PAGE_MAX)
    names, kind = state.names, command.kind
    if kind is not None:
        wanted, queues = kind == "topic", state.queues
        names = [n for n in names if (queues[n].properties.delivery == "topic") == wanted]
    found = page(names, command.after, command.limit)
    return Outcome([], [_info(state.queues[name]) for name in found])


def _purge(state: State, command: Purge, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    check_count("limit", command.limit, 1, BATCH_MAX)
    if not command.states <= set(range(len(STATES))):
        raise InvalidArgument("states", f"must be from 0 to {len(STATES) - 1}")
    looked = list(islice(queue.messages.walk(command.first), command.limit))
    chosen = [m for m in looked if m.state in command.states and m.enqueued_ms < command.before_ms]
    plan = Plan(state, now_ms)
    if chosen:
        plan.records.append(Purged(queue.name, sequences_of(chosen)))
        side = plan.side(queue)
        side.removed.update(sequences_of(chosen))
        leave_groups(side, chosen)
    return plan.outcome(_progress(len(chosen), looked, command.limit))


def _progress(done: int, looked: Sequence[Message], limit: int) -> Progress:
    return Progress(done, looked[-1].sequence + 1 if len(looked) == limit else None)


def _resubmit(state: State, command: Resubmit, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    if queue.origin is None:
        raise NotAllowed(queue.name, "only dead letters can be resubmitted")
    target = _own_queue(state, command.target or queue.origin)
    if not can_send(target.properties):
        raise Disabled(target.name, target.properties.status)
    if command.sequences is None:
        chosen, progress = _all_that_fit(queue, target, command.first)
    else:
        check_count("sequences", len(command.sequences), 1, BATCH_MAX)
        chosen = _messages(queue, command.sequences, ACTIVE, now_ms)
        progress = Progress(len(chosen), None)
        for message in chosen:
            _check_fit(target, size_bytes(message), message.group)
        check_room(target, used(target), len(chosen), sum(map(size_bytes, chosen)))
    if not chosen:
        return Outcome([], progress)
    plan = Plan(state, now_ms)
    side = plan.side(target)
    first = side.numbers(len(chosen))
    lives = [sent_life_ms(queue, m.sequence) for m in chosen]
    expires_ms = [_expiry_ms(target, now_ms, ttl_ms) for ttl_ms in lives]
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
    return plan.outcome(progress)


def _all_that_fit(queue: Queue, target: Queue, first: int) -> tuple[list[Message], Progress]:
    """The next dead letters that the target takes; those it never would take stay where they are.

    Raises QuotaExceeded where there is no room for any.
    """
    looked = list(islice(queue.messages.walk(first), STEPS_MAX))
    chosen: list[Message] = []
    size = 0
    for message in looked:
        if message.state != ACTIVE or _misfit(target, size_bytes(message), message.group):
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
    queue = _queue(state, command.queue)
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


def _send(state: State, command: Send, now_ms: int) -> Outcome:
    queue = state.queues.get(command.queue)
    if queue is None or queue.origin is not None or queue.topic is not None:
        topic = _own_queue(state, command.queue).topic
        raise NotAllowed(command.queue, f"it is fed by rules; send to the topic {topic!r}")
    properties = queue.properties
    if properties.status != "active" and not can_send(queue.properties):
        raise Disabled(queue.name, properties.status)
    messages = list(command.messages)
    if len(messages) > BATCH_MAX:
        raise InvalidArgument("messages", f"must be at most {BATCH_MAX} at a time")
    plain = properties.ttl_ms is None and not properties.requires_session
    most_bytes = properties.max_message_bytes
    total = 0
    for at, message in enumerate(messages):
        envelope, body, native = message.envelope, message.body, message.native
        if type(envelope) is not bytes or type(body) is not bytes:
            raise InvalidArgument("messages", "must have envelopes and bodies of bytes")
        size = len(envelope) + len(body)
        if native is not None:
            if type(native) is not bytes:
                raise InvalidArgument("messages", "must have native forms of bytes")
            size += len(native)
        if most_bytes is not None and size > most_bytes:
            raise MessageTooLarge(queue.name, size, most_bytes)
        total += size
        if (
            not plain
            or message.group is not None
            or message.ttl_ms is not None
            or message.due_ms
            or message.expires_ms
        ):
            messages[at] = _as_sent(queue, message, size, now_ms)
        priority = message.priority
        if type(priority) is not int or not 0 <= priority < PRIORITIES:
            raise InvalidArgument("priority", f"must be from 0 to {PRIORITIES - 1}")
    if total > SEND_BYTES_MAX:
        raise InvalidArgument("messages", f"must be at most {SEND_BYTES_MAX} bytes at a time")
    if command.keys is not None and len(command.keys) != len(messages):
        raise InvalidArgument("keys", "must be one for each message")
    if properties.duplicate_detection:
        return _send_unseen(state, queue, command, messages, now_ms)
    if not messages:
        return Outcome([], Enqueued(()))
    first = queue.next_sequence
    record = Sent(queue.name, now_ms, first, total, messages)
    answer = Enqueued(range(first, first + len(messages)))
    if properties.max_messages is not None or properties.max_bytes is not None:
        return _sent_with_room(state, queue, record, answer)
    if queue.waiting or queue.accepting or queue.relays:
        return _sent(state, queue, record, answer)
    return Outcome([record], answer)


def _sent_with_room(state: State, queue: Queue, record: Sent, answer: Enqueued) -> Outcome:
    """Into a queue with limits. Where it is full something gives way, or it is refused."""
    sizes = list(map(size_bytes, record.messages))
    fit = make_room(queue, used(queue), sizes)
    if fit.taken == len(sizes) and not fit.dropped:
        return _sent(state, queue, record, answer)
    plan = Plan(state, record.time_ms)
    plan.may_refuse = True
    if fit.dropped:
        drop(plan, queue, fit.dropped)
    elif queue.properties.overflow == "drop-newest":
        end = record.first_sequence + fit.taken
        sequences = [each if each < end else 0 for each in answer.sequences]
        answer = Enqueued(sequences, answer.duplicates, len(sizes) - fit.taken)
        if record.keys is not None:  # what was not taken may be sent again
            keys = record.keys[: fit.taken] + [None] * (len(sizes) - fit.taken)
            record = msgspec.structs.replace(record, keys=keys)
    plan.records.append(record)
    new = _as_messages(record)
    plan.side(queue).ready = [message for message in new[: fit.taken] if message.state == ACTIVE]
    late = new[fit.taken :]
    if late and queue.properties.overflow == "drop-newest":
        drop(plan, queue, late)
    elif late:
        bury(plan, queue, late, "QueueFull", "There was no room in the queue.", {})
    return plan.outcome(answer)


def _as_sent(queue: Queue, message: NewMessage, size: int, now_ms: int) -> NewMessage:
    """With the life it will have in this queue, and no schedule that has passed."""
    _check_fit(queue, size, message.group)
    if message.group is not None:
        check_text("group", message.group, GROUP_CHARS_MAX)
    check_duration("ttl_ms", message.ttl_ms or 0)
    check_duration("due_ms", message.due_ms)
    due_ms = message.due_ms if message.due_ms > now_ms else 0
    expires_ms = _expiry_ms(queue, due_ms or now_ms, message.ttl_ms)
    if due_ms == message.due_ms and expires_ms == message.expires_ms:
        return message
    return msgspec.structs.replace(message, due_ms=due_ms, expires_ms=expires_ms)


def _expiry_ms(queue: Queue, from_ms: int, ttl_ms: int | None) -> int:
    """When a message expires: the smaller of its own and its queue's time to live wins."""
    lives = [each for each in (ttl_ms, queue.properties.ttl_ms) if each is not None]
    return max(1, from_ms + min(lives)) if lives else 0


def _check_fit(queue: Queue, size: int, group: str | None) -> None:
    misfit = _misfit(queue, size, group)
    if misfit is not None:
        raise misfit


def _misfit(queue: Queue, size: int, group: str | None) -> Refused | None:
    """Why a queue would not take such a message, however empty it is."""
    most = queue.properties.max_message_bytes
    if most is not None and size > most:
        return MessageTooLarge(queue.name, size, most)
    if group is None and queue.properties.requires_session:
        return InvalidArgument("group", f"is needed: {queue.name!r} takes messages in sessions")
    return None


def _send_unseen(
    state: State, queue: Queue, command: Send, messages: list[NewMessage], now_ms: int
) -> Outcome:
    """Where duplicates are detected: those are left out, or the whole is refused."""
    given = command.keys if command.keys is not None else [None] * len(messages)
    sequence = queue.next_sequence
    fresh: dict[str, int] = {}
    keys: list[str | None] = []
    kept: list[NewMessage] = []
    sequences: list[int] = []
    for key, message in zip(given, messages, strict=True):
        name = key if key is not None else message_id(message.envelope)
        if name:
            check_text("key", name, KEY_CHARS_MAX)
            until_ms, before = queue.seen.get(name, (0, 0))
            before = fresh.get(name, before if until_ms > now_ms else 0)
            if before:
                if command.refuse_duplicates:
                    raise Duplicate(queue.name, name, before)
                sequences.append(before)
                continue
            fresh[name] = sequence
        sequences.append(sequence)
        keys.append(name or None)
        kept.append(message)
        sequence += 1
    answer = Enqueued(sequences, len(messages) - len(kept))
    if not kept:
        return Outcome([], answer)
    size = sum(map(size_bytes, kept))
    until_ms = now_ms + queue.properties.duplicate_window_ms
    first = queue.next_sequence
    record = Sent(queue.name, now_ms, first, size, kept, keys, until_ms)
    return _sent_with_room(state, queue, record, answer)


def _sent(state: State, queue: Queue, record: Sent, answer: Enqueued) -> Outcome:
    """With what those get who wait for it, or who it is handed on to."""
    waited = queue.waiting or queue.accepting or queue.relays
    if not waited or queue.name in state.hungry:
        return Outcome([record], answer)
    time_ms = record.time_ms
    messages = [message for message in _as_messages(record) if message.state == ACTIVE]
    receiver = None if queue.relays else _sole_taker(queue, messages, time_ms)
    if receiver is not None:
        hand = messages[: receiver.credit]
        locked, deliveries = deliver(state, queue, receiver, hand, None, state.next_lock, time_ms)
        return Outcome([record, locked], answer, deliveries)
    plan = Plan(state, time_ms)
    plan.may_refuse = True
    plan.records.append(record)
    plan.side(queue).ready = messages
    return plan.outcome(answer)


def _as_messages(record: Sent) -> list[Message]:
    """As they will stand in the queue."""
    return [
        Message(
            sequence, 0, new.envelope, new.native, new.body, new.priority, new.group,
            new.due_ms or record.time_ms, new.expires_ms, 0, SCHEDULED if new.due_ms else ACTIVE, 0,
        )
        for sequence, new in enumerate(record.messages, record.first_sequence)
    ]  # fmt: skip


def _sole_taker(queue: Queue, messages: list[Message], now_ms: int) -> Receiver | None:
    """Who gets new messages, in the common case that there is no choice and no order to keep."""
    if not messages or not queue.waiting or (len(messages) > 1 and len(queue.waiting) > 1):
        return None
    if (
        len(queue.lanes) > 1
        or queue.properties.grouping != "none"
        or not can_receive(queue.properties)
    ):
        return None
    if any(is_expired(message, now_ms) for message in messages):
        return None
    return next(iter(queue.waiting.values()))


def _cancel(state: State, command: Cancel, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    check_count("sequences", len(command.sequences), 1, BATCH_MAX)
    messages = _messages(queue, command.sequences, SCHEDULED, now_ms)
    return Outcome([Cancelled(queue.name, sequences_of(messages))])


# Receiving.


def _receive(state: State, command: Receive, now_ms: int) -> Outcome:
    queue = state.queues.get(command.queue)
    if queue is None or queue.properties.status != "active" or queue.relays:
        queue = _receivable(state, command.queue)
    limit, number = command.limit, command.receiver
    if not 1 <= limit <= BATCH_MAX:
        raise InvalidArgument("limit", f"must be from 1 to {BATCH_MAX}")
    if not 0 < number <= RECEIVER_MAX or number in state.receivers or state.orphans:
        _check_receiver(state, number)
    if command.lock_ms or command.bound or command.deadline_ms:
        check_duration("lock_ms", command.lock_ms)
        check_duration("deadline_ms", command.deadline_ms)
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
    return plan.outcome(Waiting(number))


def _fit(messages: Sequence[Message]) -> int:
    """How many of them make one answer, at least one."""
    left = ANSWER_BYTES_MAX
    for count, message in enumerate(messages):
        left -= size_bytes(message)
        if left < 0:
            return max(1, count)
    return len(messages)


def _attach(state: State, command: Attach, now_ms: int) -> Outcome:
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
    return plan.outcome()


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
        _session(state, queue, receiver.session, now_ms)
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
    return plan.outcome()


def _receiver(state: State, number: int) -> Receiver:
    receiver = state.receivers.get(number)
    if receiver is None:
        raise NotFound("receiver", str(number))
    return receiver


def _detach(state: State, command: Detach, now_ms: int) -> Outcome:
    receiver = _receiver(state, command.receiver)
    plan = Plan(state, now_ms)
    plan.leaving.add(receiver.receiver)
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
    return plan.outcome()


def _receive_deferred(state: State, command: ReceiveDeferred, now_ms: int) -> Outcome:
    queue = _receivable(state, command.queue)
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
    queue = _queue(state, command.queue)
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


# Settling.


def _held(state: State, command: Settle, now_ms: int) -> tuple[list[Lock], list[int | str]]:
    """The locks that a command names, and those among them that are lost."""
    queue = None if command.queue is None else _queue(state, command.queue)
    if not command.locks or len(command.locks) > BATCH_MAX:
        raise InvalidArgument("locks", f"must be from 1 to {BATCH_MAX}")
    session = None
    if command.session:
        if queue is None:
            raise InvalidArgument("queue", "is needed where a session is named")
        session = _session(state, queue, command.session, now_ms)
    found: dict[int, Lock] = {}
    lost: list[int | str] = []
    by_id: dict[str, Iterator[int]] = {}
    for name in command.locks:
        tokens: Iterable[int] = (name,) if isinstance(name, int) else ()
        if isinstance(name, str):  # one after the other, where several have the same id
            tokens = by_id.setdefault(name, iter(state.ids.get(name, ())))
        for token in tokens:
            lock = state.locks.get(token)
            if lock is None or token in found or not _holds(state, lock, queue, now_ms):
                continue
            if session is None or lock.session is session:
                found[token] = lock
                break
        else:
            if not command.partial:
                raise LockLost(command.queue, name)
            lost.append(name)
    return list(found.values()), lost


def _settled(lost: list[int | str]) -> Settled:
    return Settled(lost) if lost else SETTLED


def _holds(state: State, lock: Lock, queue: Queue | None, now_ms: int) -> bool:
    """Whether a lock is still held, in this queue or in any that is not deleted."""
    if queue is None:
        queue = state.queues.get(lock.queue.name)
    until_ms = lock.until_ms if lock.session is None else lock.session.until_ms
    return lock.queue is queue and until_ms > now_ms


def _check_amended(queue: Queue, messages: list[Message], properties: Properties) -> None:
    if properties and queue.notes:
        for message in messages:
            note = queue.notes.get(message.sequence)
            if note is not None:
                check_properties(note.properties | properties)


def _complete(state: State, command: Complete, now_ms: int) -> Outcome:
    queue = None if command.queue is None else state.queues.get(command.queue)
    if (
        queue is not None
        and not queue.groups
        and not command.session
        and queue.properties.idle_delete_ms is None
        and queue.origin is None
        and (queue.topic is None or state.queues[queue.topic].properties.idle_delete_ms is None)
        and len(command.locks) <= BATCH_MAX
    ):
        # The way of most: named by tokens that all hold, so none of what follows is needed.
        locks, tokens = state.locks, command.locks
        sequences = []
        for token in tokens:
            lock = locks.get(token)  # type: ignore[arg-type]  # a message id is not found
            if lock is None or lock.queue is not queue or lock.until_ms <= now_ms:
                break
            sequences.append(lock.message.sequence)
        else:
            if sequences and len(set(tokens)) == len(tokens):
                return Outcome([Completed(queue.name, sequences)], SETTLED)
    held, lost = _held(state, command, now_ms)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        plan.touch(queue)
        plan.records.append(Completed(queue.name, sequences_of(messages)))
        if queue.groups:
            leave_groups(plan.side(queue), messages)
    return plan.outcome(_settled(lost))


def _abandon(state: State, command: Abandon, now_ms: int) -> Outcome:
    held, lost = _held(state, command, now_ms)
    check_properties(command.properties)
    check_duration("delay_ms", command.delay_ms)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        _check_amended(queue, messages, command.properties)
        end(
            plan,
            queue,
            messages,
            counted=True,
            properties=command.properties,
            delay_ms=command.delay_ms,
        )
    return plan.outcome(_settled(lost))


def _release_messages(state: State, command: Release, now_ms: int) -> Outcome:
    held, lost = _held(state, command, now_ms)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        end(plan, queue, messages, counted=False)
    return plan.outcome(_settled(lost))


def _defer(state: State, command: Defer, now_ms: int) -> Outcome:
    held, lost = _held(state, command, now_ms)
    check_properties(command.properties)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        plan.touch(queue)
        _check_amended(queue, messages, command.properties)
        plan.records.append(Deferred(queue.name, sequences_of(messages), command.properties))
        leave_groups(plan.side(queue), messages)
    return plan.outcome(_settled(lost))


def _dead_letter(state: State, command: DeadLetter, now_ms: int) -> Outcome:
    held, lost = _held(state, command, now_ms)
    check_properties(command.properties)
    for name in ("reason", "description"):
        text = getattr(command, name)
        if text is not None:
            check_text(name, text, TEXT_CHARS_MAX)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        if queue.origin is not None:
            raise NotAllowed(queue.name, "its messages are dead letters already")
        plan.touch(queue)
        _check_amended(queue, messages, command.properties)
        leave_groups(plan.side(queue), messages)
        bury(plan, queue, messages, command.reason, command.description, command.properties)
    return plan.outcome(_settled(lost))


def _renew(state: State, command: Renew, now_ms: int) -> Outcome:
    held, lost = _held(state, command, now_ms)
    check_duration("lock_ms", command.lock_ms)
    plan = Plan(state, now_ms)
    for queue, messages in by_queue(state, held):
        if queue.properties.grouping == "session":
            raise NotAllowed(queue.name, "its locks last as long as the session's; renew that")
        until_ms = now_ms + (command.lock_ms or queue.properties.lock_ms)
        plan.records.append(Renewed(queue.name, sequences_of(messages), until_ms))
        plan.touch(queue)
    lives = [command.lock_ms or lock.queue.properties.lock_ms for lock in held]
    return plan.outcome(Settled(lost, [now_ms + life_ms for life_ms in lives]))


# Sessions.


def _accept_session(state: State, command: AcceptSession, now_ms: int) -> Outcome:
    queue = _receivable(state, command.queue)
    _check_receiver(state, command.receiver)
    check_duration("lock_ms", command.lock_ms)
    check_duration("deadline_ms", command.deadline_ms)
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
        return plan.outcome(Waiting(receiver.receiver))
    return Outcome([Touched(queue.name, now_ms)], None)


def _renew_session(state: State, command: RenewSession, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    group = _session(state, queue, command.session, now_ms)
    check_duration("lock_ms", command.lock_ms)
    until_ms = now_ms + (command.lock_ms or queue.properties.lock_ms)
    plan = Plan(state, now_ms)
    plan.records.append(SessionRenewed(queue.name, group.key, until_ms))
    plan.touch(queue)
    return plan.outcome(until_ms)


def _release_session(state: State, command: ReleaseSession, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    group = _session(state, queue, command.session, now_ms)
    plan = Plan(state, now_ms)
    release(plan, queue, group)
    return plan.outcome()


def _get_session_state(state: State, command: GetSessionState, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    return Outcome([], _session(state, queue, command.session, now_ms).state)


def _set_session_state(state: State, command: SetSessionState, now_ms: int) -> Outcome:
    queue = _queue(state, command.queue)
    group = _session(state, queue, command.session, now_ms)
    blob = command.state
    if blob is not None and (type(blob) is not bytes or len(blob) > SESSION_STATE_BYTES_MAX):
        raise InvalidArgument("state", f"must be at most {SESSION_STATE_BYTES_MAX} bytes")
    return Outcome([SessionStateSet(queue.name, group.key, now_ms, command.state)])


def _list_sessions(state: State, command: ListSessions, _: int) -> Outcome:
    queue = _queue(state, command.queue)
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
    Send: _send,
    Cancel: _cancel,
    Receive: _receive,
    Attach: _attach,
    Credit: _credit,
    Detach: _detach,
    ReceiveDeferred: _receive_deferred,
    Peek: _peek,
    Complete: _complete,
    Abandon: _abandon,
    Release: _release_messages,
    Defer: _defer,
    DeadLetter: _dead_letter,
    Renew: _renew,
    AcceptSession: _accept_session,
    RenewSession: _renew_session,
    ReleaseSession: _release_session,
    GetSessionState: _get_session_state,
    SetSessionState: _set_session_state,
    ListSessions: _list_sessions,
}
