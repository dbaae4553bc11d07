"""What must hold of a state after any history. Slow and obvious on purpose."""

from collections import Counter
from itertools import pairwise

from posthouse.core.message import ACTIVE, DEFERRED, DELAYED, LOCKED, SCHEDULED, Message, size_bytes
from posthouse.core.model import Group, Lock, Queue, State, message_key
from posthouse.core.picking import can_receive, free_heads, pick_ready
from posthouse.core.records import Kept, Locked, Moved, Sent, Taken
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
    Held,
)
from posthouse.core.timers import Timers


def check(state: State, now_ms: int, *, handed_on: bool = True) -> None:
    """Raises AssertionError where a state contradicts itself.

    `handed_on`: what came into topics and queues that forward is not there any more. Of a part of
    a history that cannot be said; the start that follows sees to it.
    """
    live = list(state.queues.values())
    mains = [q for q in live if q.origin is None]
    assert sorted(q.name for q in mains if q.topic is None) == state.names
    assert state.folded == {q.name.casefold(): q.name for q in mains}
    assert state.topics == sum(q.properties.delivery == "topic" for q in mains if not q.topic)
    for queue in mains:
        if queue.topic is not None:
            assert state.queues[queue.topic].subscriptions[queue.name] is queue
        assert all(state.queues[name] is each for name, each in queue.subscriptions.items())
        assert queue.dead is not None
        if queue.transfer is not None:
            assert state.queues[queue.transfer.name] is queue.transfer
    expiring, due = _by_key(state.expiry_timers), _by_key(state.due_timers)
    for queue in live:
        _check_messages(state, queue)
        _check_timers(queue, expiring, due)
        _check_groups(state, queue)
        _check_waiting(state, queue, now_ms)
        _check_blocked(queue)
        if handed_on:
            _check_handed_on(state, queue, now_ms)
    assert state.dispatch_blocked <= state.dispatch_pending.keys()
    assert state.held == _held(state)
    locked = sum(queue.counts[LOCKED] for queue in (*live, *state.doomed))
    assert len(state.locks) == locked
    assert {token for token, lock in state.locks.items() if lock.id} == {
        token for tokens in state.ids.values() for token in tokens
    }
    for number, receiver in state.receivers.items():
        assert number in state.queues[receiver.queue].attached
        assert all(state.locks[token].bound == number for token in receiver.locks)
        assert all(state.receivers[wait].bound == number for wait in receiver.waits)


def _held(state: State) -> Held:
    """What principals hold, counted one by one."""
    held: Counter[tuple[str, str, str]] = Counter()
    for queue in state.queues.values():
        if queue.topic is not None:
            held[SUBSCRIPTIONS, queue.topic, queue.by] += 1
        elif queue.origin is None:
            held[TOPICS if queue.properties.delivery == "topic" else QUEUES, "", queue.by] += 1
    for schedule in state.schedules.values():
        held[SCHEDULES, "", schedule.by] += 1
    for receiver in state.receivers.values():
        held[RECEIVERS, "", receiver.by] += 1
    for transaction in state.transactions.values():
        held[TRANSACTIONS, "", transaction.by.name] += 1
        held[TRANSACTION_BYTES, "", transaction.by.name] += transaction.size_bytes
    for blocked in state.blocked.values():
        held[BLOCKED, blocked.queue, blocked.by] += 1
        held[BLOCKED_BYTES, "", blocked.by] += blocked.size_bytes
    return {key: count for key, count in held.items() if count and key[2]}


def check_positions(state: State, journal: list[tuple[int, Kept]]) -> None:
    """Every message's position leads to its content in the journal."""
    contents = {
        first + at: new
        for first, record in journal
        if isinstance(record, Sent | Moved)
        for at, new in enumerate(record.messages)
    }
    for queue in state.queues.values():
        for message in queue.messages.walk(0):
            content = contents[message.position]
            assert (message.envelope, message.body) == (content.envelope, content.body)


def _check_messages(state: State, queue: Queue) -> None:
    """Each message is in exactly one place, and the counts equal reality."""
    messages = list(queue.messages.walk(0))
    sequences = [message.sequence for message in messages]
    assert sequences == sorted(set(sequences))
    assert not sequences or sequences[-1] < queue.next_sequence
    counts = [0] * 5
    for message in messages:
        counts[message.state] += 1
    assert counts == queue.counts
    assert queue.counted("all") == len(messages)
    assert queue.counted("waiting") == sum(message.state != LOCKED for message in messages)
    assert sum(map(size_bytes, messages)) == queue.size_bytes
    bodies = [m.body if isinstance(m.body, int) else len(m.body) for m in messages]
    assert sum(bodies) == queue.body_bytes
    assert sum(m.body for m in messages if isinstance(m.body, int)) == queue.evicted_bytes
    states = [group.state for group in queue.groups.values() if group.state is not None]
    assert sum(map(len, states)) == queue.state_bytes
    assert set(queue.notes) <= set(sequences)
    assert set(queue.lives) <= set(sequences)
    assert set(queue.firsts) <= set(sequences)

    ready = [sequence for ready_list in queue.ready_lists for sequence in ready_list.walk()]
    ready += [sequence for group in queue.groups.values() for sequence in group.ready.walk()]
    assert sorted(ready) == [m.sequence for m in messages if m.state == ACTIVE]
    for level, ready_list in enumerate(queue.ready_lists):
        order = list(ready_list.walk())
        assert order == sorted(order)
        assert ready_list.first() == (order[0] if order else None)
        assert all(queue.level(queue.messages[sequence]) == level for sequence in order)

    for message in messages:
        if message.state == LOCKED:
            lock = state.locks[message.lock]
            assert lock.message is message
            assert lock.queue is queue
        elif message.state == ACTIVE and queue.relays:
            assert message.lock < 1 << 64  # a subscription's number, where it was handed on in part
        elif message.state != DELAYED:
            assert message.lock == 0


def _check_timers(queue: Queue, expiring: dict[int, int], due: dict[int, int]) -> None:
    for message in queue.messages.walk(0):
        key = message_key(queue, message.sequence)
        lives = message.state in (ACTIVE, DELAYED, DEFERRED) and message.expires_ms != 0
        assert expiring.get(key) == (message.expires_ms if lives else None)
        assert due.get(key) == {
            SCHEDULED: message.enqueued_ms,
            DELAYED: message.lock,
        }.get(message.state)


def _by_key(timers: Timers) -> dict[int, int]:
    return {key: due_ms for due_ms, key in timers.items()}


def _check_groups(state: State, queue: Queue) -> None:
    grouping = queue.properties.grouping
    if grouping == "none":
        assert not queue.groups
    for key, group in queue.groups.items():
        mine = [m for m in queue.messages.walk(0) if m.group == key]
        assert group.messages == len(mine)
        assert group.delayed == sum(m.state == DELAYED for m in mine)
        assert set(group.locks) == {m.lock for m in mine if m.state == LOCKED}
        assert mine or group.token or group.state is not None
        assert (group.token != 0) == (state.sessions.get(group.token) == (queue, group))
        if grouping == "group":
            in_flight = [t for t in group.locks if not state.locks[t].deferred]
            assert len(in_flight) <= 1
        elif grouping == "run":
            _check_run(state, queue, group, mine)
        else:
            assert not group.locks or group.token
    free = {
        key
        for key, group in queue.groups.items()
        if group.ready.first() is not None and not queue.busy(group)
    }
    heads = list(free_heads(queue))
    assert {key for _, _, key in heads} == free
    assert len(heads) == len(free)
    for level, place, key in heads:
        group = queue.groups[key]
        first = group.ready.first()
        assert first is not None
        assert level == queue.level(queue.messages[first])
        assert place == (first if grouping != "run" else group.since << 64 | group.turn)


def _check_run(state: State, queue: Queue, group: Group, mine: list[Message]) -> None:
    """What is in flight was given in one run, or stands before what was given earlier."""
    held = [m.sequence for m in mine if m.state in (LOCKED, DELAYED)]
    ready = [m.sequence for m in mine if m.state == ACTIVE]
    assert group.held[:1] == held[:1]
    assert set(held) <= set(group.held)
    assert queue.busy(group) == (held != [] and ready != [] and held[0] < ready[0])
    assert group.turn <= queue.turns
    assert group.since < queue.next_sequence
    in_flight = [state.locks[m.lock] for m in mine if m.state == LOCKED]
    for one, behind in pairwise(lock for lock in in_flight if not lock.deferred):
        later = _lock_number(one) > _lock_number(behind)
        assert later or (one.since_ms, one.bound) == (behind.since_ms, behind.bound)


def _lock_number(lock: Lock) -> int:
    return lock.message.lock & (1 << 64) - 1


def check_delivery(state: State, record: Locked | Taken) -> None:
    """No message overtakes one of its group. Called before the record has changed the state."""
    queue = state.queues[record.queue]
    grouping = queue.properties.grouping
    if grouping not in ("group", "run"):
        return
    delivered = [queue.messages[sequence] for sequence in record.sequences]
    for at, message in enumerate(delivered):
        if message.group is None or message.state == DEFERRED:
            continue
        others = [m for m in queue.messages.walk(0) if m.group == message.group]
        before = [m for m in others if m.sequence < message.sequence]
        held = [m for m in others if m.state in (LOCKED, DELAYED)]
        with_it = [m for m in delivered[:at] if m.group == message.group]
        if grouping == "group":
            assert not held
            assert isinstance(record, Taken) or not with_it
        else:
            assert not any(m in before for m in held)
            assert [m for m in before if m.state == ACTIVE] == with_it


def _check_waiting(state: State, queue: Queue, now_ms: int) -> None:
    """Nobody waits for what could be given."""
    for number, receiver in queue.waiting.items():
        assert receiver is state.receivers[number]
        assert receiver.credit > 0
    if queue.temporary:
        assert len(queue.attached) == 1 or not queue.attached
    if queue.name in state.dispatch_pending or not can_receive(queue.properties):
        return
    if queue.properties.grouping == "session":
        for receiver in queue.waiting.values():
            _, group = state.sessions[receiver.session]
            if group.until_ms > now_ms and not group.delayed:
                ready = [queue.messages[sequence] for sequence in group.ready.walk()]
                assert all(0 < message.expires_ms <= now_ms for message in ready)
        if queue.accepting:
            heads = [queue.messages[sequence] for _, sequence, _ in free_heads(queue)]
            assert all(0 < m.expires_ms <= now_ms for m in heads)
    elif queue.waiting:
        assert pick_ready(queue, 1, now_ms) == []


def _check_blocked(queue: Queue) -> None:
    """A tick is due where there is room for the first who waits for it, and only there."""
    if not queue.blocked or queue.properties.status not in ("active", "receive-disabled"):
        return
    first, properties = next(iter(queue.blocked.values())), queue.properties
    parts = (queue, *queue.subscriptions.values())
    there = [message for part in parts for message in part.messages.walk(0)]
    counted = [m for m in there if properties.limit_counts == "all" or m.state != LOCKED]
    room = properties.max_messages is None or (
        len(counted) + len(first.command.messages) <= properties.max_messages
    )
    if properties.max_bytes is not None:
        room &= sum(map(size_bytes, there)) + first.size_bytes <= properties.max_bytes
    assert queue.has_room_again == room


def _check_handed_on(state: State, queue: Queue, now_ms: int) -> None:
    """Dead letters may have to stay, and what has expired waits for a tick."""
    assert queue.relays == (
        queue.properties.delivery != "competing" or queue.properties.forward_to is not None
    )
    keeps = queue.properties.delivery not in ("competing", "topic") and not queue.subscriptions
    if (
        queue.relays
        and not keeps
        and queue.origin is None
        and queue.name not in state.dispatch_pending
    ):
        left = [m for m in queue.messages.walk(0) if m.state == ACTIVE]
        assert all(0 < m.expires_ms <= now_ms for m in left)
