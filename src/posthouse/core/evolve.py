"""`evolve`: the only function that changes a state. Recovery is this function in a loop.

It cannot fail on what `decide` gave: everything that could be refused was refused there. It has no
clock; the times it needs are in the records.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from posthouse.core.delivering import first_ms_of
from posthouse.core.index import CHUNK, SHRINK_AT
from posthouse.core.message import (
    ACTIVE,
    DEFERRED,
    DELAYED,
    LOCKED,
    NO_NOTE,
    SCHEDULED,
    Message,
    NewMessage,
    Properties,
    bare_id,
    group_of,
    size_bytes,
)
from posthouse.core.model import (
    PRIORITIES,
    TRANSFER,
    Blocked,
    Group,
    Lock,
    Queue,
    QueueProperties,
    Receiver,
    Schedule,
    State,
    Transaction,
    before,
    dead_letter_queue,
    era,
    message_key,
    place_of,
    sent_life_ms,
    topic_of,
)
from posthouse.core.ready_list import ReadyList
from posthouse.core.records import (
    Activated,
    Cancelled,
    ClockSet,
    ClockStepped,
    ClockTurnedBack,
    Completed,
    Copies,
    CreditSet,
    DeadLettered,
    Deferred,
    DispatchBlocked,
    DispatchPending,
    Dropped,
    Enlisted,
    Expired,
    FanoutSet,
    Forgotten,
    IdleChecked,
    Locked,
    MessagesRestored,
    Moved,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueRestored,
    QueueUpdated,
    ReceiverAttached,
    ReceiverDetached,
    Record,
    Relocked,
    Renewed,
    Resubmitted,
    Returned,
    Routed,
    RuleRemoved,
    RuleSet,
    ScheduleCancelled,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
    SendBlocked,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    Stuck,
    SubscriptionCreated,
    Swept,
    Taken,
    Touched,
    TransactionBegun,
    TransactionEnded,
    Unblocked,
    Woken,
    epitaph,
    is_kept,
)
from posthouse.core.rules import bytes_of
from posthouse.core.shares import (
    BLOCKED,
    BLOCKED_BYTES,
    QUEUES,
    RECEIVERS,
    SCHEDULES,
    SUBSCRIPTIONS,
    TOPICS,
    TRANSACTION_BYTES,
    TRANSACTIONS,
    count,
)
from posthouse.core.timers import Timers
from posthouse.core.tokens import Tokens


def evolve(state: State, record: Record, position: int) -> None:
    """Makes it so. `position` is the record's first; it means nothing for a passing one."""
    _EVOLVE[type(record)](state, record, position)
    if state.dispatch_blocked and is_kept(record):
        state.dispatch_blocked.clear()
    if state.doomed:  # so that recovery, which has no ticks, frees what was deleted too
        _sweep(state, 100)


def _clock_stepped(state: State, record: ClockStepped, _: int) -> None:
    step_ms = record.step_ms
    for lock in state.locks.values():
        lock.until_ms += step_ms
    for _queue, group in state.sessions.values():
        group.until_ms += step_ms
    for receiver in state.receivers.values():
        if receiver.deadline_ms:
            receiver.deadline_ms += step_ms
    for transaction in state.transactions.values():
        transaction.until_ms += step_ms
    for blocked in state.blocked.values():
        blocked.deadline_ms += step_ms
    for timers in (
        state.lock_timers,
        state.session_timers,
        state.wait_timers,
        state.transaction_timers,
        state.block_timers,
    ):
        timers.shift(step_ms)


def _clock_set(state: State, record: ClockSet, _: int) -> None:
    state.clock_ms, state.broker_ms = record.time_ms, record.broker_ms


def _clock_turned_back(state: State, record: ClockTurnedBack, position: int) -> None:
    """Nobody is attached yet: it is done before a start serves anybody."""
    while state.doomed:
        _sweep(state, 10_000)
    state.turned_back = position
    now_ms, step_ms = record.time_ms, record.step_ms
    if state.clock_ms:  # everything in it goes by its own clock
        state.broker_ms = before(state.broker_ms, now_ms, step_ms)
        return
    state.started_ms = before(state.started_ms, now_ms, step_ms)
    for queue in state.queues.values():
        _turn_back(queue, record)
    for lock in state.locks.values():
        lock.until_ms = max(1, lock.until_ms - step_ms)
        lock.since_ms = before(lock.since_ms, now_ms, step_ms)
    following = dict(record.schedules)
    for schedule in state.schedules.values():
        schedule.created_ms = before(schedule.created_ms, now_ms, step_ms)
        schedule.last_ms = before(schedule.last_ms, now_ms, step_ms)
        schedule.next_ms = following.get(schedule.name, schedule.next_ms)
    _set_timers(state)


def _turn_back(queue: Queue, record: ClockTurnedBack) -> None:
    now_ms, step_ms = record.time_ms, record.step_ms
    queue.created_ms = before(queue.created_ms, now_ms, step_ms)
    queue.updated_ms = before(queue.updated_ms, now_ms, step_ms)
    queue.accessed_ms = before(queue.accessed_ms, now_ms, step_ms)
    for message in queue.messages.walk(0):
        scheduled = message.state == SCHEDULED  # so that it was not enqueued yet, but will be
        if record.scheduled if scheduled else message.enqueued_ms > now_ms:
            moved_ms = message.enqueued_ms - max(1, message.enqueued_ms - step_ms)
            message.enqueued_ms -= moved_ms
            if message.expires_ms:
                message.expires_ms -= moved_ms
        if message.state == DELAYED:
            message.lock = max(1, message.lock - step_ms)
    for sequence, first_ms in queue.firsts.items():
        queue.firsts[sequence] = before(first_ms, now_ms, step_ms)
    for sequence, note in list(queue.notes.items()):
        dead_ms = before(note.dead_ms, now_ms, step_ms)
        queue.notes[sequence] = msgspec.structs.replace(note, dead_ms=dead_ms)
    for group in queue.groups.values():
        if group.token:
            group.until_ms = max(1, group.until_ms - step_ms)
        group.state_ms = before(group.state_ms, now_ms, step_ms)
    queue.seen_order = deque(
        (key, max(1, until_ms - step_ms)) for key, until_ms in queue.seen_order
    )
    queue.seen = {
        key: (max(1, until_ms - step_ms), sequence)
        for key, (until_ms, sequence) in queue.seen.items()
    }


def _set_timers(state: State) -> None:
    """Sets all timers anew, but for passing ones."""
    state.lock_timers, state.session_timers = Timers(), Timers()
    state.expiry_timers, state.due_timers = Timers(), Timers()
    state.forget_timers, state.schedule_timers = Timers(), Timers()
    for token, lock in state.locks.items():
        if lock.session is None:
            state.lock_timers.add(lock.until_ms, token)
    for token, (_, group) in state.sessions.items():
        state.session_timers.add(group.until_ms, token)
    for schedule in state.schedules.values():
        if schedule.next_ms:
            state.schedule_timers.add(schedule.next_ms, schedule.number)
    for queue in state.queues.values():
        if queue.seen_order:
            state.forget_timers.add(queue.seen_order[0][1], queue.number)
        if queue.origin is None:
            watch_idleness(state, queue)
        for message in queue.messages.walk(0):
            key = message_key(queue, message.sequence)
            if message.state == SCHEDULED:
                state.due_timers.add(message.enqueued_ms, key)
            elif message.state == DELAYED:
                state.due_timers.add(message.lock, key)
            if message.expires_ms and message.state not in (LOCKED, SCHEDULED):
                state.expiry_timers.add(message.expires_ms, key)


def _started(state: State, record: Started, _: int) -> None:
    # Each namespace counts by itself, so the salt of a start is made its own.
    state.era = era(record.epoch, record.salt + state.number)
    state.tokens = Tokens(state.era, record.key, state.number)
    state.started_ms = record.time_ms


# Queues.


def _queue_created(state: State, record: QueueCreated, position: int) -> None:
    properties, time_ms = record.properties, record.time_ms
    queue = _new_queue(state, record.queue, position, properties, time_ms)
    insort(state.names, queue.name)
    queue.by = record.by
    count_queue(state, queue, 1)


def _new_queue(
    state: State, name: str, position: int, properties: QueueProperties, time_ms: int
) -> Queue:
    """Makes a queue with its dead-letter queue, and what else belongs to it."""
    times = (time_ms, time_ms, time_ms)
    ready_lists = [ReadyList() for _ in range(PRIORITIES if properties.order == "priority" else 1)]
    queue = Queue(name, 2 * position, None, properties, *times, ready_lists)
    dead = dead_letter_queue(name)
    of_the_dead = _of_the_dead(properties)
    queue.dead = Queue(dead, 2 * position + 1, name, of_the_dead, *times, [ReadyList()])
    for each in (queue, queue.dead):
        state.queues[each.name] = each
        state.numbered[each.number] = each
        each.relays, each.is_plain = relays(each), is_plain(each)
    state.folded[name.casefold()] = name
    watch_idleness(state, queue)
    _add_transfer(state, queue, position, time_ms)
    return queue


def is_plain(queue: Queue) -> bool:
    properties = queue.properties
    return (
        properties.status in ("active", "receive-disabled")
        and properties.ttl_ms is None
        and properties.max_messages is None
        and properties.max_bytes is None
        and properties.max_message_bytes is None
        and not properties.requires_session
        and properties.order == "arrival"
        and not relays(queue)
    )


def relays(queue: Queue) -> bool:
    properties = queue.properties
    return properties.delivery != "competing" or properties.forward_to is not None


def _add_transfer(state: State, queue: Queue, position: int, time_ms: int) -> None:
    """Adds the transfer queue, once a queue forwards: it keeps what could not be forwarded."""
    if queue.properties.forward_to is not None and queue.transfer is None:
        _make_transfer(state, queue, position, time_ms)


def _make_transfer(state: State, queue: Queue, position: int, time_ms: int) -> None:
    properties = _of_the_rest(queue.properties)
    number = _TRANSFER_NUMBERS | position
    name, times = queue.name + TRANSFER, (time_ms, time_ms, time_ms)
    queue.transfer = Queue(name, number, queue.name, properties, *times, [ReadyList()])
    state.queues[name] = state.numbered[number] = queue.transfer


_TRANSFER_NUMBERS = 1 << 62  # so that they are no other queue's


def _of_the_dead(properties: QueueProperties) -> QueueProperties:
    """A dead-letter queue locks as its owner does, and has no limits of its own."""
    return QueueProperties(
        lock_ms=properties.lock_ms, counting=properties.counting,
        forward_to=properties.forward_dead_to, late_settling=properties.late_settling,
    )  # fmt: skip


def _of_the_rest(properties: QueueProperties) -> QueueProperties:
    """A transfer queue locks as its owner does, and has no limits of its own."""
    return QueueProperties(
        lock_ms=properties.lock_ms, counting=properties.counting,
        late_settling=properties.late_settling,
    )  # fmt: skip


def _subscription_created(state: State, record: SubscriptionCreated, position: int) -> None:
    topic = state.queues[topic_of(record.queue)]
    queue = _new_queue(state, record.queue, position, record.properties, record.time_ms)
    queue.topic, queue.temporary = topic.name, record.temporary
    queue.rules = {rule.name: rule for rule in record.rules}
    queue.rule_bytes = bytes_of(record.rules)
    topic.subscriptions[queue.name] = queue
    topic.router = None
    queue.by = record.by
    count_queue(state, queue, 1)


def count_queue(state: State, queue: Queue, change: int) -> None:
    """Counts a queue for its maker: among queues, topics, or the subscriptions of its topic."""
    if queue.topic is not None:
        count(state.held, SUBSCRIPTIONS, queue.topic, queue.by, change)
    else:
        is_topic = queue.properties.delivery == "topic"
        state.topics += change * is_topic
        count(state.held, TOPICS if is_topic else QUEUES, "", queue.by, change)


def _rule_set(state: State, record: RuleSet, _: int) -> None:
    queue = state.queues[record.queue]
    before = queue.rules.get(record.rule.name)
    queue.rule_bytes += bytes_of([record.rule]) - (bytes_of([before]) if before else 0)
    queue.rules = {**queue.rules, record.rule.name: record.rule}
    _forget_routes(state, queue)
    queue.updated_ms = record.time_ms


def _rule_removed(state: State, record: RuleRemoved, _: int) -> None:
    queue = state.queues[record.queue]
    queue.rule_bytes -= bytes_of([queue.rules[record.rule]])
    queue.rules = {name: rule for name, rule in queue.rules.items() if name != record.rule}
    _forget_routes(state, queue)
    queue.updated_ms = record.time_ms


def _forget_routes(state: State, subscription: Queue) -> None:
    """Drops the router of the topic, which does not know the changed rules."""
    assert subscription.topic is not None
    state.queues[subscription.topic].router = None


def watch_idleness(state: State, queue: Queue, due_ms: int = 0) -> None:
    if queue.idle_due_ms:
        state.idle_timers.remove(queue.idle_due_ms, queue.number)
        queue.idle_due_ms = 0
    if queue.properties.idle_delete_ms is not None:
        queue.idle_due_ms = due_ms or queue.updated_ms + queue.properties.idle_delete_ms
        state.idle_timers.add(queue.idle_due_ms, queue.number)


def _queue_updated(state: State, record: QueueUpdated, position: int) -> None:
    queue = state.queues[record.queue]
    queue.properties = record.properties
    queue.updated_ms = queue.accessed_ms = record.time_ms
    assert queue.dead is not None
    queue.dead.properties = _of_the_dead(record.properties)
    queue.relays, queue.dead.relays = relays(queue), relays(queue.dead)
    queue.is_plain = is_plain(queue)
    watch_idleness(state, queue)
    if queue.transfer is not None:
        queue.transfer.properties = _of_the_rest(record.properties)
    _add_transfer(state, queue, position, record.time_ms)
    _crowd(state, queue)


def _queue_deleted(state: State, record: QueueDeleted, _: int) -> None:
    """The name is free at once; the messages are freed by the ticks that follow."""
    queue = state.queues[record.queue]
    if queue.topic is None:
        del state.names[bisect_left(state.names, queue.name)]
    else:
        topic = state.queues[queue.topic]
        del topic.subscriptions[queue.name]
        topic.router = None
    for each in queue.subscriptions.values():
        _delete(state, each)
    _delete(state, queue)


def _delete(state: State, queue: Queue) -> None:
    count_queue(state, queue, -1)
    del state.folded[queue.name.casefold()]
    for each in (queue, queue.dead, queue.transfer):
        if each is None:
            continue
        _detach_all(state, list(each.attached))
        for blocked in list(each.blocked.values()):
            _unblock(state, blocked)
        del state.queues[each.name]
        state.dispatch_pending.pop(each.name, None)
        if each.idle_due_ms:
            state.idle_timers.remove(each.idle_due_ms, each.number)
        if each.seen_order:
            state.forget_timers.remove(each.seen_order[0][1], each.number)
        state.doomed.append(each)


def _swept(state: State, record: Swept, _: int) -> None:
    _sweep(state, record.count)


def _sweep(state: State, left: int) -> None:
    """Frees part of what was deleted. Until then `decide` passes over its locks and timers."""
    while left > 0 and state.doomed:
        queue = state.doomed[-1]
        for message in list(islice(queue.messages.walk(0), left)):
            _remove(state, queue, message)
            left -= 1
        for group in list(islice(queue.groups.values(), left)):
            if group.token:
                _end_session(state, group)
            queue.groups.pop(group.key, None)
            left -= 1
        if not queue.messages.chunks and not queue.groups:
            del state.numbered[queue.number]
            state.doomed.pop()
            left -= 1


# Sending.


def _sent(state: State, record: Sent, position: int) -> None:
    queue = state.queues[record.queue]
    time_ms, messages = record.time_ms, record.messages
    first = sequence = record.first_sequence
    grouped, in_groups = queue.properties.grouping != "none", False
    in_place = queue.gives_runs  # what is due later keeps the place that it has now
    later = DELAYED if in_place else SCHEDULED
    chunks = queue.messages.chunks
    scheduled = bodies = 0
    for new in messages:
        due_ms, expires_ms, body = new.due_ms, new.expires_ms, new.body
        bodies += len(body)
        if new.ttl_ms is not None:
            queue.lives[sequence] = new.ttl_ms
        message = Message(
            sequence, position, new.envelope, new.native, body, new.priority, new.group,
            due_ms or time_ms, expires_ms, 0, later if due_ms else ACTIVE, 0,
        )  # fmt: skip
        chunk = chunks.get(sequence // CHUNK)
        if chunk is None:
            chunk = chunks[sequence // CHUNK] = {}
        chunk[sequence] = message
        if grouped and new.group is not None:
            _join_group(queue, message)
            in_groups = True
        if due_ms and in_place:
            scheduled += 1
            message.enqueued_ms = time_ms
            _watch_expiry(state, queue, message)
            _delay(state, queue, message, due_ms)
        elif due_ms:
            scheduled += 1
            state.due_timers.add(due_ms, message_key(queue, sequence))
        elif expires_ms:
            state.expiry_timers.add(expires_ms, message_key(queue, sequence))
        sequence += 1
        position += 1
    if scheduled or in_groups:
        for each in range(first, sequence):
            message = queue.messages[each]
            if message.state == ACTIVE:
                _make_ready(queue, message)
        queue.counts[later] += scheduled
    else:
        _extend_ready_lists(queue, messages, first)
    queue.counts[ACTIVE] += len(messages) - scheduled
    queue.size_bytes += record.size_bytes
    queue.body_bytes += bodies
    queue.next_sequence = sequence
    queue.accessed_ms = time_ms
    if record.keys is not None:
        _remember(state, queue, record)


def _extend_ready_lists(queue: Queue, messages: Sequence[NewMessage], first: int) -> None:
    """Adds new messages that are ready and in no group: all at a time where there is one list."""
    ready_lists = queue.ready_lists
    if len(ready_lists) == 1:
        ready_lists[0].extend(range(first, first + len(messages)))
    else:
        for sequence, new in enumerate(messages, first):
            ready_lists[queue.level(new)].append(sequence)


def _join_group(queue: Queue, message: Message) -> None:
    if message.group is not None:
        group = queue.groups.get(message.group)
        if group is None:
            group = queue.groups[message.group] = Group(message.group, ReadyList())
            if queue.gives_runs:
                group.since = message.sequence
        message.group = group.key  # one string for all
        group.messages += 1


def _make_ready(queue: Queue, message: Message) -> None:
    """A message that has just got its sequence number can be delivered."""
    group = queue.group(message)
    if group is None:
        queue.ready_lists[queue.level(message)].append(message.sequence)
    else:
        group.ready.append(message.sequence)
        _offer(queue, group)


def _make_ready_again(queue: Queue, message: Message) -> None:
    group = queue.group(message)
    if group is None:
        queue.ready_lists[queue.level(message)].give_back(message.sequence)
    else:
        group.ready.give_back(message.sequence)
        _offer(queue, group)


def _offer(queue: Queue, group: Group) -> None:
    """Keeps the heads true after a change to a group: each free group has its head among them."""
    if queue.gives_runs:
        _offer_run(queue, group)
        return
    heads, first = queue.heads, group.ready.first()
    if first is not None and group.offered != first and not queue.busy(group):
        group.offered = first
        heappush(heads, (queue.level(queue.messages[first]), first, group.key))
    while heads and not _is_free_head(queue, heads[0]):
        _, first, key = heappop(heads)
        stale = queue.groups.get(key)
        if stale is not None and stale.offered == first:
            stale.offered = 0
    if len(heads) > 2 * len(queue.groups) + 64:
        rebuild_heads(queue)


def _is_free_head(queue: Queue, head: tuple[int, int, str]) -> bool:
    group = queue.groups.get(head[2])
    return group is not None and group.ready.first() == head[1] and not queue.busy(group)


def _offer_run(queue: Queue, group: Group) -> None:
    """Does the same where a group is free though later messages of it are in flight."""
    held, heads = group.held, queue.heads
    while held and not queue.holds_back(held[0]):
        heappop(held)
    head = _free_run(queue, group)
    if head is not None and group.head != head:
        group.head = head
        heappush(heads, head)
    while heads and not _is_free_run(queue, heads[0]):
        head = heappop(heads)
        stale = queue.groups.get(head[2])
        if stale is not None and stale.head == head:
            stale.head = None
    if len(heads) > 2 * len(queue.groups) + 64:
        rebuild_heads(queue)


def _free_run(queue: Queue, group: Group) -> tuple[int, int, str] | None:
    """The entry of a group among the heads, if something of it can be taken."""
    first = group.ready.first()
    if first is None or queue.busy(group):
        return None
    return queue.level(queue.messages[first]), place_of(group), group.key


def _is_free_run(queue: Queue, head: tuple[int, int, str]) -> bool:
    group = queue.groups.get(head[2])
    return (
        group is not None
        and group.head == head
        and group.ready.first() is not None
        and not queue.busy(group)
    )


def rebuild_heads(queue: Queue) -> None:
    """Drops the heads that no longer are; rare enough to cost nothing per message."""
    heads = []
    gives_runs = queue.gives_runs
    for group in queue.groups.values():
        if gives_runs:
            group.head = _free_run(queue, group)
            if group.head is not None:
                heads.append(group.head)
            continue
        first = group.ready.first()
        group.offered = 0
        if first is not None and not queue.busy(group):
            group.offered = first
            heads.append((queue.level(queue.messages[first]), first, group.key))
    heapify(heads)
    queue.heads = heads


def hold_back(queue: Queue, group: Group, sequence: int) -> None:
    """Lets what stands behind a locked or delayed message wait, where a queue gives runs."""
    held = group.held
    heappush(held, sequence)
    if len(held) > 2 * (len(group.locks) + group.delayed) + 64:  # most have been let go since
        group.held = sorted({each for each in held if queue.holds_back(each)})


def _pass_turns(queue: Queue, sequences: Sequence[int]) -> None:
    """Puts the groups of these messages, which are delivered now, behind what waits in the queue.

    Those that were asked for by their numbers were not in line.
    """
    since, messages = queue.next_sequence - 1, queue.messages
    for sequence in sequences:
        message = messages[sequence]
        group = queue.group(message)
        if group is not None and message.state != DEFERRED:
            queue.turns += 1
            group.since, group.turn = since, queue.turns


def _remember(state: State, queue: Queue, record: Sent) -> None:
    assert record.keys is not None
    for sequence, key in enumerate(record.keys, record.first_sequence):
        if key is None:
            continue
        if not queue.seen_order:
            state.forget_timers.add(record.keys_until_ms, queue.number)
        queue.seen[key] = (record.keys_until_ms, sequence)
        queue.seen_order.append((key, record.keys_until_ms))
        id = bare_id(record.messages[sequence - record.first_sequence].envelope)
        if id != key:
            queue.seen_ids[key] = id
        elif queue.seen_ids:
            queue.seen_ids.pop(key, None)  # it was another's before


def _forgotten(state: State, record: Forgotten, _: int) -> None:
    queue = state.queues[record.queue]
    seen, order = queue.seen, queue.seen_order
    state.forget_timers.remove(order[0][1], queue.number)
    for _ in range(record.count):
        key, until_ms = order.popleft()
        if seen[key][0] == until_ms:  # else it was sent again since
            del seen[key]
            queue.seen_ids.pop(key, None)
    if order:
        state.forget_timers.add(order[0][1], queue.number)
    _crowd(state, queue)


def _activated(state: State, record: Activated, _: int) -> None:
    queue = state.queues[record.queue]
    for sequence, old in enumerate(record.sequences, record.first_sequence):
        message = queue.messages.pop(old)
        if old in queue.lives:
            queue.lives[sequence] = queue.lives.pop(old)
        state.due_timers.remove(message.enqueued_ms, message_key(queue, old))
        message.sequence, message.state, message.enqueued_ms = sequence, ACTIVE, record.time_ms
        queue.messages.put(message)
        _watch_expiry(state, queue, message)
        _make_ready(queue, message)
    queue.next_sequence = record.first_sequence + len(record.sequences)
    queue.accessed_ms = record.time_ms
    _count(queue, SCHEDULED, ACTIVE, len(record.sequences))


def _count(queue: Queue, old: int, new: int, messages: int) -> None:
    queue.counts[old] -= messages
    queue.counts[new] += messages


def _watch_expiry(state: State, queue: Queue, message: Message) -> None:
    if message.expires_ms:
        state.expiry_timers.add(message.expires_ms, message_key(queue, message.sequence))


def _unwatch_expiry(state: State, queue: Queue, message: Message) -> None:
    if message.expires_ms:
        state.expiry_timers.remove(message.expires_ms, message_key(queue, message.sequence))


def _woken(state: State, record: Woken, _: int) -> None:
    queue = state.queues[record.queue]
    for sequence in record.sequences:
        message = queue.messages[sequence]
        _end_delay(state, queue, message)
        message.state = ACTIVE
        _make_ready_again(queue, message)
    _count(queue, DELAYED, ACTIVE, len(record.sequences))


def _delay(state: State, queue: Queue, message: Message, until_ms: int) -> None:
    """Holds a message back, and in a group what stands behind it; it has no lock, but a time."""
    message.state, message.lock = DELAYED, until_ms
    state.due_timers.add(until_ms, message_key(queue, message.sequence))
    group = queue.group(message)
    if group is not None:
        group.delayed += 1
        if queue.gives_runs:
            hold_back(queue, group, message.sequence)


def _end_delay(state: State, queue: Queue, message: Message) -> None:
    state.due_timers.remove(message.lock, message_key(queue, message.sequence))
    message.lock = 0
    group = queue.group(message)
    if group is not None:
        group.delayed -= 1


# Removing.


def _removed(
    state: State, record: Cancelled | Completed | Expired | Purged | Dropped, _: int
) -> None:
    queue = state.queues[record.queue]
    for sequence in record.sequences:
        _remove(state, queue, queue.messages[sequence])


def _completed(state: State, record: Completed, position: int) -> None:
    """Fast path of `_removed`, in one loop without calls: most messages end here."""
    queue = state.queues[record.queue]
    if record.late or queue.groups or queue.notes or queue.lives:
        _removed(state, record, position)
        return
    locks, timers, chunks = state.locks, state.lock_timers, queue.messages.chunks
    size = bodies = until_ms = 0
    tokens: list[int] = []
    held: dict[int, list[int]] = {}  # tokens by when their locks would have ended
    for sequence in record.sequences:
        chunk = chunks[sequence // CHUNK]
        message = chunk.pop(sequence)
        if len(chunk) in SHRINK_AT:
            queue.messages.shrink(sequence // CHUNK)
        token = message.lock
        lock = locks.pop(token)
        if lock.until_ms != until_ms:
            until_ms = lock.until_ms
            tokens = held.setdefault(until_ms, [])
        tokens.append(token)
        if lock.bound or lock.id is not None:
            _unbind(state, lock, token)
        body, native = message.body, message.native
        if isinstance(body, bytes):
            bodies += len(body)
        else:
            bodies += body
            queue.evicted_bytes -= body
        size += len(message.envelope)
        if native is not None:
            size += len(native)
    if queue.firsts:
        for sequence in record.sequences:
            queue.firsts.pop(sequence, None)
    for until_ms, tokens in held.items():
        timers.remove_all(until_ms, tokens)
    queue.counts[LOCKED] -= len(record.sequences)
    queue.size_bytes -= size + bodies
    queue.body_bytes -= bodies


def _remove(state: State, queue: Queue, message: Message) -> None:
    """Removes a message from its queue, whatever its state."""
    _displace(state, queue, message)
    queue.counts[message.state] -= 1
    queue.messages.pop(message.sequence)
    _weigh(queue, message, -1)
    if queue.notes:
        queue.notes.drop(message.sequence)
    queue.lives.pop(message.sequence, None)
    queue.firsts.pop(message.sequence, None)
    group = queue.group(message)
    if group is not None:
        group.messages -= 1
        _offer(queue, group)
        _drop_if_empty(queue, group)


def _weigh(queue: Queue, message: Message, sign: int) -> None:
    body = message.body
    queue.size_bytes += sign * size_bytes(message)
    if isinstance(body, bytes):
        queue.body_bytes += sign * len(body)
    else:
        queue.body_bytes += sign * body
        queue.evicted_bytes += sign * body


def _moved(state: State, record: Moved, position: int) -> None:
    messages = state.queues[record.queue].messages
    for at, sequence in enumerate(record.sequences, position):
        messages[sequence].position = at


def _drop_if_empty(queue: Queue, group: Group) -> None:
    if not (group.messages or group.token or group.state is not None):
        del queue.groups[group.key]


def _displace(state: State, queue: Queue, message: Message) -> None:
    """Undoes what a message's present state had set up around it."""
    if message.state == ACTIVE:
        _unwatch_expiry(state, queue, message)
        _take(queue, [message])
    elif message.state == LOCKED:
        _unlock(state, queue, message)
    elif message.state == SCHEDULED:
        state.due_timers.remove(message.enqueued_ms, message_key(queue, message.sequence))
    elif message.state == DELAYED:
        _unwatch_expiry(state, queue, message)
        _end_delay(state, queue, message)
    else:
        _unwatch_expiry(state, queue, message)


def _take(queue: Queue, messages: Sequence[Message]) -> None:
    """Takes ready messages out of their ready lists."""
    taken: dict[int, list[int]] = {}  # by level
    for message in messages:
        group = queue.group(message)
        if group is None:
            taken.setdefault(queue.level(message), []).append(message.sequence)
        else:
            group.ready.take([message.sequence])
    for level, sequences in taken.items():
        queue.ready_lists[level].take(sequences)


# Locks.


def _locked(state: State, record: Locked, _: int) -> None:
    queue, sequences = state.queues[record.queue], record.sequences
    grouped = len(queue.groups) > 0
    if grouped and queue.gives_runs:
        _pass_turns(queue, sequences)
    until_ms, bound, since_ms = record.until_ms, record.bound, record.time_ms
    tokens = state.tokens.several(record.first_lock, len(sequences))
    locks, timers, chunks = state.locks, state.lock_timers, queue.messages.chunks
    from_deferred = 0
    for sequence, token in zip(sequences, tokens, strict=True):
        message = chunks[sequence // CHUNK][sequence]
        if message.expires_ms:  # it does not expire under its holder
            _unwatch_expiry(state, queue, message)
        deferred = message.state == DEFERRED
        from_deferred += deferred
        message.state = LOCKED
        message.lock = token
        message.count += 1
        lock = locks[token] = Lock(message, queue, until_ms, bound, deferred, None, None, since_ms)
        if grouped:
            _lock_in_group(queue, lock, token)
            if lock.session is None:
                timers.add(until_ms, token)
    if not grouped:
        timers.add_all(until_ms, tokens)
    state.next_lock = record.first_lock + len(sequences)
    counts = queue.counts
    counts[ACTIVE] -= len(sequences) - from_deferred
    counts[LOCKED] += len(sequences)
    if from_deferred:
        counts[DEFERRED] -= from_deferred
    queue.accessed_ms = record.time_ms
    if grouped or from_deferred or len(queue.ready_lists) > 1:
        messages = [chunks[sequence // CHUNK][sequence] for sequence in sequences]
        _take(queue, [message for message in messages if not locks[message.lock].deferred])
        if grouped:
            _offer_groups(queue, sequences)
    else:
        queue.ready_lists[0].take(sequences)
    if bound and bound in state.receivers:
        state.receivers[bound].locks.update(dict.fromkeys(tokens))
    if record.ids is not None:
        ids = state.ids
        for token, message_id in zip(tokens, record.ids, strict=True):
            if message_id:
                locks[token].id = message_id
                if message_id in ids:
                    ids[message_id][token] = None
                else:
                    ids[message_id] = {token: None}
    if record.receiver in state.receivers:
        _served(state, record, queue)


def _lock_in_group(queue: Queue, lock: Lock, token: int) -> None:
    group = queue.group(lock.message)
    if group is not None:
        group.locks[token] = None
        if queue.properties.grouping == "session":
            lock.session = group
        elif queue.gives_runs:
            hold_back(queue, group, lock.message.sequence)


def _relocked(state: State, record: Relocked, _: int) -> None:
    """Messages that had come back are held again. They stand in no group."""
    queue = state.queues[record.queue]
    tokens = state.tokens.several(record.first_lock, len(record.sequences))
    for sequence, token in zip(record.sequences, tokens, strict=True):
        message = queue.messages[sequence]
        _displace(state, queue, message)
        _count(queue, message.state, LOCKED, 1)
        message.state, message.lock = LOCKED, token
        state.locks[token] = Lock(
            message, queue, record.until_ms, 0, False, None, None, record.time_ms
        )
        state.lock_timers.add(record.until_ms, token)
    state.next_lock = record.first_lock + len(record.sequences)
    queue.accessed_ms = record.time_ms


def _offer_groups(queue: Queue, sequences: list[int]) -> None:
    for key in dict.fromkeys(queue.messages[sequence].group for sequence in sequences):
        if key is not None and key in queue.groups:
            _offer(queue, queue.groups[key])


def _served(state: State, record: Locked | Taken, queue: Queue) -> None:
    """Takes the credit that a delivery used, and passes the turn on."""
    receiver = state.receivers[record.receiver]
    if receiver.once:
        _detach(state, receiver)
        return
    receiver.credit -= len(record.sequences)
    receiver.given += len(record.sequences)
    if receiver.credit:
        queue.waiting.move_to_end(receiver.receiver)
    else:
        del queue.waiting[receiver.receiver]


def _unlock(state: State, queue: Queue, message: Message) -> Lock:
    token = message.lock
    lock = state.locks.pop(token)
    message.lock = 0
    if lock.session is None:
        state.lock_timers.remove(lock.until_ms, token)
    group = queue.group(message)
    if group is not None:
        del group.locks[token]
    if lock.bound or lock.id is not None:
        _unbind(state, lock, token)
    return lock


def _unbind(state: State, lock: Lock, token: int) -> None:
    if lock.id is not None:
        tokens = state.ids[lock.id]
        del tokens[token]
        if not tokens:
            del state.ids[lock.id]
    if not lock.bound:
        return
    receiver = state.receivers.get(lock.bound)
    locks = state.orphans.get(lock.bound) if receiver is None else receiver.locks
    if locks is not None:
        locks.pop(token, None)
        if not locks and receiver is None:
            del state.orphans[lock.bound]


def _taken(state: State, record: Taken, _: int) -> None:
    queue = state.queues[record.queue]
    if queue.gives_runs:
        _pass_turns(queue, record.sequences)
    for sequence in record.sequences:
        _remove(state, queue, queue.messages[sequence])
    queue.accessed_ms = record.time_ms
    if record.receiver in state.receivers:
        _served(state, record, queue)


def _returned(state: State, record: Returned, _: int) -> None:
    queue = state.queues[record.queue]
    for sequence in record.sequences:
        message = queue.messages[sequence]
        lock = _unlock(state, queue, message)
        message.count -= record.uncounted
        if lock.since_ms and not record.uncounted:
            queue.firsts.setdefault(sequence, lock.since_ms)
        _watch_expiry(state, queue, message)
        _amend(queue, message, record.properties)
        if lock.deferred:
            message.state = DEFERRED
        elif record.until_ms:
            _delay(state, queue, message, record.until_ms)
        else:
            message.state = ACTIVE
            _make_ready_again(queue, message)
        _count(queue, LOCKED, message.state, 1)
    _offer_groups(queue, record.sequences)


def _amend(queue: Queue, message: Message, properties: Properties) -> None:
    if properties:
        queue.notes[message.sequence] = queue.notes.get(message.sequence, NO_NOTE).amended(
            properties
        )


def _deferred(state: State, record: Deferred, _: int) -> None:
    queue = state.queues[record.queue]
    for sequence in record.sequences:
        message = queue.messages[sequence]
        lock = _unlock(state, queue, message)
        if lock.since_ms:
            queue.firsts.setdefault(sequence, lock.since_ms)
        message.state = DEFERRED
        _watch_expiry(state, queue, message)
        _amend(queue, message, record.properties)
    _count(queue, LOCKED, DEFERRED, len(record.sequences))
    _offer_groups(queue, record.sequences)


def _renewed(state: State, record: Renewed, _: int) -> None:
    queue = state.queues[record.queue]
    for sequence in record.sequences:
        token = queue.messages[sequence].lock
        lock = state.locks[token]
        state.lock_timers.remove(lock.until_ms, token)
        lock.until_ms = record.until_ms
        state.lock_timers.add(record.until_ms, token)


# Dead letters.


def _dead_lettered(state: State, record: DeadLettered, _: int) -> None:
    queue = state.queues[record.queue]
    assert queue.dead is not None
    for sequence, old in enumerate(record.sequences, record.first_sequence):
        note = epitaph(queue.name, old, queue.notes.get(old), queue.lives.get(old), record)
        message = queue.messages[old]
        first_ms = first_ms_of(state, queue, message)
        _move(state, queue, message, queue.dead, sequence)
        queue.dead.notes[sequence] = note
        if first_ms:
            queue.dead.firsts[sequence] = first_ms


def _move(state: State, queue: Queue, message: Message, target: Queue, sequence: int) -> Message:
    """Moves a message to another queue's end, as a new one: the old one may still be read."""
    _remove(state, queue, message)
    moved = Message(
        sequence, message.position, message.envelope, message.native, message.body,
        message.priority, message.group, message.enqueued_ms, 0, message.count, ACTIVE, 0,
    )  # fmt: skip
    target.messages.put(moved)
    target.next_sequence = sequence + 1
    _weigh(target, moved, 1)
    target.counts[ACTIVE] += 1
    if target.properties.grouping != "none":
        _join_group(target, moved)
    _make_ready(target, moved)
    return moved


def _resubmitted(state: State, record: Resubmitted, _: int) -> None:
    queue, target = state.queues[record.queue], state.queues[record.target]
    moves = zip(record.sequences, record.expires_ms, strict=True)
    for sequence, (old, expires_ms) in enumerate(moves, record.first_sequence):
        note, life_ms = queue.notes[old], sent_life_ms(queue, old)
        moved = _move(state, queue, queue.messages[old], target, sequence)
        moved.count, moved.enqueued_ms, moved.expires_ms = 0, record.time_ms, expires_ms
        _watch_expiry(state, target, moved)
        if life_ms is not None:
            target.lives[sequence] = life_ms
        kept = note.resubmitted(keep_reason=record.noted)
        if kept != NO_NOTE:
            target.notes[sequence] = kept
    target.accessed_ms = record.time_ms


# Handing on.


def _routed(state: State, record: Routed, _: int) -> None:
    source = state.queues[record.queue]
    if record.alike:
        _copy_alike(state, source, record)
    for copies in record.copies:
        _copy(state, source, record.time_ms, copies)
    if record.sequences:
        _leave(state, source, record.sequences)
    for sequence, number in record.partly.items():
        source.messages[sequence].lock = number


def _copy(state: State, source: Queue, time_ms: int, copies: Copies) -> None:
    target, sequence = state.queues[copies.queue], copies.first_sequence
    chunks, added, notes = target.messages.chunks, [], copies.notes
    grouped = target.properties.grouping != "none"
    size = bodies = evicted = 0
    for at, number in enumerate(copies.sequences):
        old = source.messages[number]
        group, expires_ms = old.group, 0
        if copies.expires_ms is not None:
            expires_ms = copies.expires_ms[at]
        if notes is not None and (note := notes[at]) is not None:
            target.notes[sequence] = note
            group = group_of(old, note)
        if number in source.lives or number in source.notes:
            life_ms = sent_life_ms(source, number)
            if life_ms is not None:
                target.lives[sequence] = life_ms
        body = old.body
        message = Message(
            sequence, old.position, old.envelope, old.native, body, old.priority, group, time_ms,
            expires_ms, 0, ACTIVE, 0,
        )  # fmt: skip
        if copies.same:
            message.enqueued_ms, message.count = old.enqueued_ms, old.count
            if number in source.firsts:
                target.firsts[sequence] = source.firsts[number]
        chunk = chunks.get(sequence // CHUNK)
        if chunk is None:
            chunk = chunks[sequence // CHUNK] = {}
        chunk[sequence] = message
        size += size_bytes(message)
        if isinstance(body, bytes):
            bodies += len(body)
        else:
            bodies += body
            evicted += body
        if expires_ms:
            state.expiry_timers.add(expires_ms, message_key(target, sequence))
        if grouped:
            _join_group(target, message)
        added.append(message)
        sequence += 1
    if grouped or len(target.ready_lists) > 1:
        for message in added:
            _make_ready(target, message)
    else:
        target.ready_lists[0].extend(range(copies.first_sequence, sequence))
    target.counts[ACTIVE] += len(added)
    target.size_bytes += size
    target.body_bytes += bodies
    target.evicted_bytes += evicted
    target.next_sequence = sequence
    target.accessed_ms = time_ms


def _copy_alike(state: State, source: Queue, record: Routed) -> None:
    """Copies messages to queues that take them as they come. Fast path of `_copy`, in one loop."""
    queues, time_ms = state.queues, record.time_ms
    for at, number in enumerate(record.sequences):
        old = source.messages[number]
        position, envelope, native, body = old.position, old.envelope, old.native, old.body
        priority, group, size = old.priority, old.group, size_bytes(old)
        bodies, evicted = (len(body), 0) if isinstance(body, bytes) else (body, body)
        for name, first in record.alike.items():
            target, sequence = queues[name], first + at
            chunks = target.messages.chunks
            chunk = chunks.get(sequence // CHUNK)
            if chunk is None:
                chunk = chunks[sequence // CHUNK] = {}
            chunk[sequence] = Message(
                sequence, position, envelope, native, body, priority, group, time_ms, 0, 0,
                ACTIVE, 0,
            )  # fmt: skip
            target.ready_lists[0].append(sequence)
            target.body_bytes += bodies
            target.size_bytes += size
            if evicted:
                target.evicted_bytes += evicted
            target.counts[ACTIVE] += 1
            target.next_sequence = sequence + 1
            target.accessed_ms = time_ms


def _leave(state: State, queue: Queue, sequences: list[int]) -> None:
    """Removes messages that were handed on."""
    if len(queue.ready_lists) > 1 or queue.groups or queue.notes or queue.lives:
        for sequence in sequences:
            _remove(state, queue, queue.messages[sequence])
        return
    queue.ready_lists[0].take(sequences)
    for sequence in sequences:
        queue.firsts.pop(sequence, None)
        message = queue.messages.pop(sequence)
        _unwatch_expiry(state, queue, message)
        _weigh(queue, message, -1)
    queue.counts[ACTIVE] -= len(sequences)


# Schedules.


def _schedule_set(state: State, record: ScheduleSet, position: int) -> None:
    old = state.schedules.get(record.name)
    if old is not None:
        _await_schedule(state, old, 0)
        del state.scheduled[old.number]
        state.schedule_bytes -= size_bytes(old.message)
    made = Schedule(
        record.name, position, record.queue, record.when, record.message,
        record.time_ms if old is None else old.created_ms, 0, record.paused, record.fired,
        record.last_ms, record.problem, record.by if old is None else old.by,
    )  # fmt: skip
    if old is None:
        count(state.held, SCHEDULES, "", made.by, 1)
    state.schedules[record.name] = state.scheduled[position] = made
    state.schedule_bytes += size_bytes(made.message)
    _await_schedule(state, made, record.next_ms)


def _await_schedule(state: State, schedule: Schedule, next_ms: int) -> None:
    if schedule.next_ms:
        state.schedule_timers.remove(schedule.next_ms, schedule.number)
    schedule.next_ms = next_ms
    if next_ms:
        state.schedule_timers.add(next_ms, schedule.number)


def _schedule_fired(state: State, record: ScheduleFired, _: int) -> None:
    schedule = state.schedules[record.name]
    schedule.fired += 1
    schedule.last_ms, schedule.problem = record.time_ms, record.problem
    _await_schedule(state, schedule, record.next_ms)


def _schedule_paused(state: State, record: SchedulePaused, _: int) -> None:
    schedule = state.schedules[record.name]
    schedule.paused = True
    _await_schedule(state, schedule, 0)


def _schedule_resumed(state: State, record: ScheduleResumed, _: int) -> None:
    schedule = state.schedules[record.name]
    schedule.paused = False
    _await_schedule(state, schedule, record.next_ms)


def _schedule_cancelled(state: State, record: ScheduleCancelled, _: int) -> None:
    schedule = state.schedules.pop(record.name)
    state.schedule_bytes -= size_bytes(schedule.message)
    _await_schedule(state, schedule, 0)
    del state.scheduled[schedule.number]
    count(state.held, SCHEDULES, "", schedule.by, -1)


# Sessions.


def _session_accepted(state: State, record: SessionAccepted, _: int) -> None:
    queue = state.queues[record.queue]
    group = queue.groups.get(record.session)
    if group is None:
        group = queue.groups[record.session] = Group(record.session, ReadyList())
    group.token = state.tokens.one(record.lock)
    group.until_ms, group.bound = record.until_ms, record.bound
    state.next_lock = record.lock + 1
    state.sessions[group.token] = (queue, group)
    state.session_timers.add(group.until_ms, group.token)
    queue.accessed_ms = record.time_ms
    _offer(queue, group)
    if record.receiver in state.receivers:
        _detach(state, state.receivers[record.receiver])  # its wait is over


def _session_renewed(state: State, record: SessionRenewed, _: int) -> None:
    group = state.queues[record.queue].groups[record.session]
    state.session_timers.remove(group.until_ms, group.token)
    group.until_ms = record.until_ms
    state.session_timers.add(group.until_ms, group.token)


def _session_released(state: State, record: SessionReleased, _: int) -> None:
    queue = state.queues[record.queue]
    group = queue.groups[record.session]
    _end_session(state, group)
    _offer(queue, group)
    _drop_if_empty(queue, group)


def _end_session(state: State, group: Group) -> None:
    state.session_timers.remove(group.until_ms, group.token)
    _detach_all(state, list(group.readers))
    del state.sessions[group.token]
    group.token = group.until_ms = 0
    group.bound = False


def _session_state_set(state: State, record: SessionStateSet, _: int) -> None:
    queue = state.queues[record.queue]
    group = queue.groups[record.session]
    queue.state_bytes += len(record.state or b"") - len(group.state or b"")
    group.state, group.state_ms = record.state, record.time_ms


# Copied from another journal.


def _queue_restored(state: State, record: QueueRestored, position: int) -> None:
    queue = state.queues[record.queue]
    queue.created_ms, queue.updated_ms = record.created_ms, record.updated_ms
    queue.accessed_ms, queue.next_sequence = record.accessed_ms, record.next_sequence
    if queue.origin is None:
        watch_idleness(state, queue)
    if record.transfer and queue.transfer is None:
        _make_transfer(state, queue, position, record.created_ms)
    for at, (key, content, content_ms) in enumerate(record.groups):
        group = queue.groups.get(key)
        if group is None:
            group = queue.groups[key] = Group(key, ReadyList())
        if record.turns:
            group.since, group.turn = record.turns[at]
            queue.turns = max(queue.turns, group.turn)
        queue.state_bytes += len(content or b"") - len(group.state or b"")
        group.state, group.state_ms = content, content_ms
    for key, until_ms, sequence in record.keys:
        if not queue.seen_order:
            state.forget_timers.add(until_ms, queue.number)
        queue.seen_order.append((key, until_ms))
        if sequence:
            queue.seen[key] = (until_ms, sequence)
    queue.seen_ids.update(record.ids)


def _messages_restored(state: State, record: MessagesRestored, position: int) -> None:
    queue = state.queues[record.queue]
    grouped = queue.properties.grouping != "none"
    for at, sequence in enumerate(record.sequences):
        new, status, mark = record.messages[at], record.states[at], record.marks[at]
        message = Message(
            sequence, position + at, new.envelope, new.native, new.body, new.priority, new.group,
            record.enqueued_ms[at], new.expires_ms, record.counts[at], status, mark,
        )  # fmt: skip
        queue.messages.put(message)
        queue.counts[status] += 1
        _weigh(queue, message, 1)
        if new.ttl_ms is not None:
            queue.lives[sequence] = new.ttl_ms
        if (note := record.notes[at]) is not None:
            queue.notes[sequence] = note
        if record.firsts is not None and record.firsts[at]:
            queue.firsts[sequence] = record.firsts[at]
        if grouped:
            _join_group(queue, message)
        key = message_key(queue, sequence)
        if status == ACTIVE:
            _make_ready(queue, message)
        elif status == SCHEDULED:
            state.due_timers.add(message.enqueued_ms, key)
        elif status == DELAYED:
            _delay(state, queue, message, mark)
        if status != SCHEDULED:
            _watch_expiry(state, queue, message)
        queue.next_sequence = max(queue.next_sequence, sequence + 1)
    _offer_groups(queue, record.sequences)


# Passing.


def _receiver_attached(state: State, record: ReceiverAttached, _: int) -> None:
    given = record.receiver
    receiver = Receiver(
        given.receiver, given.queue, given.credit, given.delete, given.lock_ms, given.bound,
        given.bound_session, given.by_id, given.session, given.once, given.deadline_ms, by=given.by,
        client=given.client,
    )  # fmt: skip
    count(state.held, RECEIVERS, "", receiver.by, 1)
    if receiver.once and receiver.bound in state.receivers:
        state.receivers[receiver.bound].waits[receiver.receiver] = None
    queue = state.queues[receiver.queue]
    state.receivers[receiver.receiver] = receiver
    queue.attached[receiver.receiver] = None
    if record.accepting:
        queue.accepting[receiver.receiver] = receiver
    elif receiver.credit:
        queue.waiting[receiver.receiver] = receiver
    if receiver.session:
        state.sessions[receiver.session][1].readers[receiver.receiver] = None
    if receiver.deadline_ms:
        state.wait_timers.add(receiver.deadline_ms, receiver.receiver)


def _credit_set(state: State, record: CreditSet, _: int) -> None:
    receiver = state.receivers[record.receiver]
    waiting = state.queues[receiver.queue].waiting
    receiver.credit = record.credit
    if not receiver.credit:
        waiting.pop(receiver.receiver, None)
    elif receiver.receiver not in waiting:
        waiting[receiver.receiver] = receiver


def _receiver_detached(state: State, record: ReceiverDetached, _: int) -> None:
    _detach(state, state.receivers[record.receiver])


def _detach_all(state: State, receivers: list[int]) -> None:
    for number in receivers:
        if number in state.receivers:  # one may have gone with another
            _detach(state, state.receivers[number])


def _detach(state: State, receiver: Receiver) -> None:
    queue = state.queues[receiver.queue]
    del state.receivers[receiver.receiver]
    count(state.held, RECEIVERS, "", receiver.by, -1)
    if receiver.locks:
        state.orphans[receiver.receiver] = receiver.locks
    _detach_all(state, list(receiver.waits))
    if receiver.bound in state.receivers:
        state.receivers[receiver.bound].waits.pop(receiver.receiver, None)
    del queue.attached[receiver.receiver]
    queue.waiting.pop(receiver.receiver, None)
    queue.accepting.pop(receiver.receiver, None)
    if receiver.session:
        del state.sessions[receiver.session][1].readers[receiver.receiver]
    if receiver.deadline_ms:
        state.wait_timers.remove(receiver.deadline_ms, receiver.receiver)


def _send_blocked(state: State, record: SendBlocked, _: int) -> None:
    blocked = record.blocked
    state.queues[blocked.queue].blocked[blocked.sender] = blocked
    state.blocked[blocked.sender] = blocked
    state.blocked_bytes += blocked.size_bytes
    state.crowded[blocked.queue] = None
    state.block_timers.add(blocked.deadline_ms, blocked.sender)
    count(state.held, BLOCKED, blocked.queue, blocked.by, 1)
    count(state.held, BLOCKED_BYTES, "", blocked.by, blocked.size_bytes)


def _unblocked(state: State, record: Unblocked, _: int) -> None:
    _unblock(state, state.blocked[record.sender])


def _unblock(state: State, blocked: Blocked) -> None:
    del state.blocked[blocked.sender]
    state.blocked_bytes -= blocked.size_bytes
    state.block_timers.remove(blocked.deadline_ms, blocked.sender)
    count(state.held, BLOCKED, blocked.queue, blocked.by, -1)
    count(state.held, BLOCKED_BYTES, "", blocked.by, -blocked.size_bytes)
    waiting = state.queues[blocked.queue].blocked
    del waiting[blocked.sender]
    if waiting:
        state.crowded[blocked.queue] = None
    else:
        state.crowded.pop(blocked.queue, None)


def _stuck(state: State, record: Stuck, _: int) -> None:
    state.crowded.pop(record.queue, None)


def _crowd(state: State, queue: Queue) -> None:
    """Has a tick look at the sends that wait for room in this queue."""
    if queue.blocked:
        state.crowded[queue.name] = None


def _transaction_begun(state: State, record: TransactionBegun, _: int) -> None:
    number = record.transaction
    state.transactions[number] = Transaction(number, record.until_ms, by=record.by)
    count(state.held, TRANSACTIONS, "", record.by.name, 1)
    state.next_transaction += 1
    state.transaction_timers.add(record.until_ms, number)


def _enlisted(state: State, record: Enlisted, _: int) -> None:
    transaction = state.transactions[record.transaction]
    transaction.work.append(record.command)
    transaction.messages += record.messages
    transaction.size_bytes += record.size_bytes
    state.transaction_bytes += record.size_bytes
    count(state.held, TRANSACTION_BYTES, "", transaction.by.name, record.size_bytes)
    for token in record.locks:
        transaction.locks[token] = None
        state.enlisted[token] = record.transaction


def _transaction_ended(state: State, record: TransactionEnded, _: int) -> None:
    transaction = state.transactions.pop(record.transaction)
    state.transaction_timers.remove(transaction.until_ms, transaction.number)
    state.transaction_bytes -= transaction.size_bytes
    count(state.held, TRANSACTIONS, "", transaction.by.name, -1)
    count(state.held, TRANSACTION_BYTES, "", transaction.by.name, -transaction.size_bytes)
    for token in transaction.locks:
        del state.enlisted[token]


def _touched(state: State, record: Touched, _: int) -> None:
    state.queues[record.queue].touched_ms = record.time_ms


def _idle_checked(state: State, record: IdleChecked, _: int) -> None:
    watch_idleness(state, state.queues[record.queue], record.due_ms)


def _dispatch_pending(state: State, record: DispatchPending, _: int) -> None:
    state.dispatch_pending.pop(record.queue, None)
    if record.more:  # behind the others
        state.dispatch_pending[record.queue] = None


def _dispatch_blocked(state: State, record: DispatchBlocked, _: int) -> None:
    state.dispatch_blocked.update(record.queues)


def _fanout_set(state: State, record: FanoutSet, _: int) -> None:
    state.fanout = record.fanout
    state.dispatch_blocked.clear()


_EVOLVE: dict[type[Record], Callable[[State, Any, int], None]] = {
    Started: _started,
    QueueCreated: _queue_created,
    QueueUpdated: _queue_updated,
    QueueDeleted: _queue_deleted,
    Sent: _sent,
    Activated: _activated,
    Woken: _woken,
    Cancelled: _removed,
    Locked: _locked,
    Taken: _taken,
    Completed: _completed,
    Returned: _returned,
    Deferred: _deferred,
    DeadLettered: _dead_lettered,
    Expired: _removed,
    Renewed: _renewed,
    SessionAccepted: _session_accepted,
    SessionRenewed: _session_renewed,
    SessionReleased: _session_released,
    SessionStateSet: _session_state_set,
    Resubmitted: _resubmitted,
    Purged: _removed,
    Forgotten: _forgotten,
    Moved: _moved,
    ClockStepped: _clock_stepped,
    ClockSet: _clock_set,
    ClockTurnedBack: _clock_turned_back,
    QueueRestored: _queue_restored,
    MessagesRestored: _messages_restored,
    Relocked: _relocked,
    Routed: _routed,
    SubscriptionCreated: _subscription_created,
    RuleSet: _rule_set,
    RuleRemoved: _rule_removed,
    Dropped: _removed,
    ScheduleSet: _schedule_set,
    ScheduleFired: _schedule_fired,
    SchedulePaused: _schedule_paused,
    ScheduleResumed: _schedule_resumed,
    ScheduleCancelled: _schedule_cancelled,
    ReceiverAttached: _receiver_attached,
    CreditSet: _credit_set,
    ReceiverDetached: _receiver_detached,
    SendBlocked: _send_blocked,
    Unblocked: _unblocked,
    Stuck: _stuck,
    TransactionBegun: _transaction_begun,
    Enlisted: _enlisted,
    TransactionEnded: _transaction_ended,
    Touched: _touched,
    IdleChecked: _idle_checked,
    DispatchPending: _dispatch_pending,
    DispatchBlocked: _dispatch_blocked,
    FanoutSet: _fanout_set,
    Swept: _swept,
}
