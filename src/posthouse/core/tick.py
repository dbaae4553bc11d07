"""Time: the start of the broker, its clock, and the tick that does what is due."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import get_args

from posthouse.core.checks import check_duration, check_moment, check_start
from posthouse.core.commands import (
    FANOUT_LIMITED_MAX,
    STEPS_MAX,
    Admitted,
    Delivery,
    Notice,
    SetClock,
    SetFanout,
    Start,
    StepClock,
    Tick,
    Ticked,
    TurnClockBack,
)
from posthouse.core.dispatch import deal, deal_in_session, deal_runs, dispatch, grant, in_runs
from posthouse.core.endings import by_queue, end, expire, leave_groups, release
from posthouse.core.errors import InvalidArgument, Refused
from posthouse.core.message import ACTIVE, SCHEDULED, Message
from posthouse.core.model import SEQUENCE_BITS, Blocked, Fanout, Queue, State, before
from posthouse.core.picking import can_receive, free_sessions, pick_all, pick_in_session, pick_ready
from posthouse.core.plan import Outcome, Plan, as_active, sequences_of
from posthouse.core.records import (
    Activated,
    ClockSet,
    ClockStepped,
    ClockTurnedBack,
    DispatchBlocked,
    DispatchPending,
    FanoutSet,
    Forgotten,
    IdleChecked,
    QueueDeleted,
    ReceiverDetached,
    Renewed,
    SessionRenewed,
    Started,
    Stuck,
    Swept,
    Touched,
    TransactionEnded,
    Unblocked,
    Woken,
)
from posthouse.core.recurrence import following_ms
from posthouse.core.relaying import hand_on, relay
from posthouse.core.room import has_room
from posthouse.core.schedules import fire
from posthouse.core.sending import checked_send, send_on

_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
_SHARE = 20  # steps that each kind of work has in every tick, however much is due of another


def start(state: State, command: Start, now_ms: int) -> Outcome:
    plan = Plan(state, now_ms)
    check_start(command.epoch, command.salt, command.key)
    if command.epoch <= state.era >> 96:
        raise InvalidArgument("epoch", "must be higher than that of the start before")
    plan.records.append(Started(command.epoch, command.salt, now_ms, command.key))
    for queue in state.queues.values():
        if queue.temporary:
            plan.ending.add(queue.name)
            plan.records.append(QueueDeleted(queue.name, now_ms))
        elif queue.relays and queue.counts[ACTIVE] and queue.origin not in plan.ending:
            # The ticks that handed it on are forgotten.
            plan.records.append(DispatchPending(queue.name, more=True))
    for queue, group in list(state.sessions.values()):
        if group.bound and state.queues.get(queue.name) is queue:
            release(plan, queue, group)
    bound = [
        lock
        for lock in state.locks.values()
        if lock.bound
        and not (lock.session is not None and lock.session.bound)
        and lock.queue.name not in plan.ending
    ]
    for queue, messages in by_queue(state, bound):
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    return dispatch(plan)


def step_clock(_: State, command: StepClock, now_ms: int) -> Outcome:
    check_duration("step_ms", command.step_ms)
    return Outcome([ClockStepped(now_ms, command.step_ms)])


def set_clock(state: State, command: SetClock, now_ms: int) -> Outcome:
    check_moment("time_ms", command.time_ms)
    check_moment("broker_ms", command.broker_ms)
    time_ms = max(command.time_ms, state.clock_ms, now_ms)  # never back
    return Outcome([ClockSet(time_ms, command.broker_ms)])


def turn_clock_back(state: State, command: TurnClockBack, now_ms: int) -> Outcome:
    """`now_ms` is right already."""
    step_ms = command.step_ms
    check_duration("step_ms", step_ms)
    schedules = [
        (each.name, following_ms(each.when, now_ms, before(each.created_ms, now_ms, step_ms)))
        for each in state.schedules.values()
        if each.next_ms and not state.clock_ms
    ]
    return Outcome([ClockTurnedBack(now_ms, step_ms, schedules, command.scheduled)])


def set_fanout(_: State, command: SetFanout, __: int) -> Outcome:
    if command.fanout not in get_args(Fanout):
        raise InvalidArgument("fanout", f"must be one of {', '.join(get_args(Fanout))}")
    return Outcome([FanoutSet(command.fanout)])


def tick(state: State, _: Tick, now_ms: int) -> Outcome:
    plan = Plan(state, now_ms)
    left = STEPS_MAX
    for step in _STEPS:
        left -= step(plan, max(left, _SHARE))
    outcome = dispatch(plan, Ticked(more=left <= 0 or _to_sweep(state) > STEPS_MAX // 2))
    if plan.dispatch_blocked:
        # Before the rest: if something happens in this tick they are looked at again.
        outcome.records.insert(0, DispatchBlocked(plan.dispatch_blocked))
    return outcome


def _to_sweep(state: State) -> int:
    """Counts what is left of deleted queues."""
    return sum(1 + sum(queue.counts) + len(queue.groups) for queue in state.doomed)


def _sweep(plan: Plan, left: int) -> int:
    """Frees part of them, leaving half of the steps for what is due elsewhere."""
    count = min(left // 2, _to_sweep(plan.state))
    if count:
        plan.records.append(Swept(count))
    return count


def _end_waits(plan: Plan, left: int) -> int:
    receivers = plan.state.wait_timers.due(plan.now_ms, left)
    for receiver in receivers:
        plan.records.append(Touched(plan.state.receivers[receiver].queue, plan.now_ms))
        plan.records.append(ReceiverDetached(receiver))
        plan.deliveries.append(Notice(receiver, "timed-out"))
        plan.leaving.add(receiver)
    return len(receivers)


def _end_blocks(plan: Plan, left: int) -> int:
    senders = plan.state.block_timers.due(plan.now_ms, left)
    for sender in senders:
        plan.records.append(Touched(plan.state.blocked[sender].queue, plan.now_ms))
        plan.records.append(Unblocked(sender))
        plan.deliveries.append(Notice(sender, "timed-out"))
        plan.leaving.add(sender)
    return len(senders)


def _admit(plan: Plan, left: int) -> int:
    """Admits sends that wait for room, in turn, as far as there is some."""
    done = 0
    for name in plan.state.crowded:
        for blocked in plan.state.queues[name].blocked.values():
            if blocked.sender in plan.leaving:
                continue
            if done >= left or not _admit_one(plan, blocked):
                break
            done += max(1, len(blocked.command.messages))
    return done


def _admit_one(plan: Plan, blocked: Blocked) -> bool:
    queue, send = plan.state.queues[blocked.queue], blocked.command
    if not has_room(queue, plan.occupied(queue), len(send.messages), blocked.size_bytes):
        return False
    try:
        _, messages, _ = checked_send(plan.state, send, plan.now_ms)
        answer = send_on(plan, queue, messages, send)
    except Refused:  # the queue has changed meanwhile; its deadline tells
        plan.records.append(Stuck(queue.name))
        return False
    plan.records.append(Unblocked(blocked.sender))
    plan.deliveries.append(Admitted(blocked.sender, answer))
    return True


def _end_transactions(plan: Plan, left: int) -> int:
    numbers = plan.state.transaction_timers.due(plan.now_ms, left)
    plan.records += [TransactionEnded(number) for number in numbers]
    return len(numbers)


def _end_sessions(plan: Plan, left: int) -> int:
    done = 0
    for token in plan.state.session_timers.due(plan.now_ms, left):
        queue, group = plan.state.sessions[token]
        if plan.state.queues.get(queue.name) is not queue:
            done += 1
            continue
        until_ms = _enlisted_until_ms(plan.state, group.locks)
        if until_ms > plan.now_ms:
            plan.records.append(SessionRenewed(queue.name, group.key, until_ms))
            done += 1
            continue
        done += 1 + len(group.locks)
        if done > left:  # part of its messages now, the session itself in the next tick
            tokens = islice(group.locks, left - done + 1 + len(group.locks))
            messages = [plan.state.locks[token].message for token in tokens]
            end(plan, queue, messages, counted=queue.properties.counting == "all")
            return left
        release(plan, queue, group, expired=True)
    return done


def _end_orphans(plan: Plan, left: int) -> int:
    """Locks of receivers that held too many to end with them."""
    tokens = list(islice((t for held in plan.state.orphans.values() for t in held), left))
    locks = [plan.state.locks[token] for token in tokens]
    # Those in a session that has just expired end with it.
    locks = [k for k in locks if k.session is None or k.session.until_ms > plan.now_ms]
    for queue, messages in by_queue(plan.state, locks):
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    return len(tokens)


def _enlisted_until_ms(state: State, tokens: Iterable[int]) -> int:
    """How long the transactions last that settle some of these locks."""
    numbers = {state.enlisted[token] for token in tokens if token in state.enlisted}
    return max((state.transactions[number].until_ms for number in numbers), default=0)


def _renew_enlisted(plan: Plan, tokens: list[int]) -> None:
    """Renews locks that a transaction settles: they do not expire before it ends."""
    state = plan.state
    for queue, messages in by_queue(
        state, (state.locks[token] for token in tokens if token in state.enlisted)
    ):
        for message in messages:
            until_ms = max(_enlisted_until_ms(state, (message.lock,)), plan.now_ms + 1)
            plan.records.append(Renewed(queue.name, [message.sequence], until_ms))


def _end_locks(plan: Plan, left: int) -> int:
    tokens = plan.state.lock_timers.due(plan.now_ms, left)
    if plan.state.enlisted:
        _renew_enlisted(plan, tokens)
        tokens = [token for token in tokens if token not in plan.state.enlisted]
    locks = [plan.state.locks[token] for token in tokens]
    locks = [lock for lock in locks if lock.bound not in plan.state.orphans]  # ended already
    for queue, messages in by_queue(plan.state, locks):
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    return len(tokens)


def _due_messages(state: State, keys: list[int]) -> list[tuple[Queue, list[Message]]]:
    """Messages by their keys, those of deleted queues left out."""
    queues: dict[str, tuple[Queue, list[Message]]] = {}
    for key in keys:
        queue = state.numbered[key >> SEQUENCE_BITS]
        if state.queues.get(queue.name) is queue:
            _, messages = queues.setdefault(queue.name, (queue, []))
            messages.append(queue.messages[key & _SEQUENCE_MASK])
    return list(queues.values())


def _end_lives(plan: Plan, left: int) -> int:
    keys = plan.state.expiry_timers.due(plan.now_ms, left)
    for queue, messages in _due_messages(plan.state, keys):
        expire(plan, queue, messages)
    return len(keys)


def _wake(plan: Plan, left: int) -> int:
    """Scheduled messages go to the end of their queue, delayed ones to their old places."""
    now_ms = plan.now_ms
    keys = plan.state.due_timers.due(now_ms, left)
    for queue, messages in _due_messages(plan.state, keys):
        overlay = plan.overlay(queue)
        left_alive = [m for m in messages if m.sequence not in overlay.removed]
        scheduled = [m for m in left_alive if m.state == SCHEDULED]
        delayed = [m for m in left_alive if m.state != SCHEDULED]
        if scheduled:
            overlay.used = True
            first = overlay.numbers(len(scheduled))
            plan.records.append(Activated(queue.name, now_ms, sequences_of(scheduled), first))
            for sequence, message in enumerate(scheduled, first):
                overlay.ready.append(as_active(message, sequence=sequence, enqueued_ms=now_ms))
        if delayed:
            plan.records.append(Woken(queue.name, sequences_of(delayed)))
            leave_groups(overlay, delayed)
            overlay.ready += map(as_active, delayed)
    return len(keys)


def _forget(plan: Plan, left: int) -> int:
    done = 0
    for number in plan.state.forget_timers.due(plan.now_ms, left):
        queue = plan.state.numbered[number]
        count = 0
        for _, until_ms in islice(queue.seen_order, left - done):
            if until_ms > plan.now_ms:
                break
            count += 1
        plan.records.append(Forgotten(queue.name, plan.now_ms, count))
        done += count
        if done >= left:
            break
    return done


def _delete_idle(plan: Plan, left: int) -> int:
    numbers = plan.state.idle_timers.due(plan.now_ms, left)
    gone: set[str] = set()
    for number in numbers:
        queue = plan.state.numbered[number]
        if queue.topic in gone:
            continue
        idle_ms = queue.properties.idle_delete_ms
        assert idle_ms is not None
        every = queue.parts()
        uses = [max(each.accessed_ms, each.touched_ms) for each in every]
        idle_at_ms = max(*uses, plan.state.started_ms) + idle_ms
        for each in every:
            # Who has something to hand on is not idle either, though he may have to wait.
            if each.is_in_use or plan.overlay(each).used or plan.is_dispatch_pending(each):
                idle_at_ms = plan.now_ms + idle_ms
        if idle_at_ms > plan.now_ms:
            plan.records.append(IdleChecked(queue.name, idle_at_ms))
        else:
            plan.records.append(QueueDeleted(queue.name, plan.now_ms, idle=True))
            gone.add(queue.name)
    return len(numbers)


def _dispatch_pending(plan: Plan, left: int) -> int:
    """Goes on with queues in which messages are ready though somebody could have them."""
    done = 0
    for name in plan.state.dispatch_pending:
        if done >= left:
            break
        if name in plan.state.dispatch_blocked:
            continue
        queue = plan.state.queues[name]
        step = _hand_on_more if queue.relays else _dispatch_ready
        done += step(plan, queue, left - done)
    return done


def _end_dispatch(plan: Plan, queue: Queue) -> None:
    plan.records.append(DispatchPending(queue.name, more=False))
    plan.dispatched.add(queue.name)


def _dispatch_ready(plan: Plan, queue: Queue, left: int) -> int:
    """Gives what is ready to receivers that wait though there is something, as after a pause."""
    before = len(plan.deliveries)
    changed = queue.name in plan.overlays
    if can_receive(queue.properties):
        if queue.properties.grouping == "session":
            _dispatch_in_sessions(plan, queue, left)
        else:
            ready = _still_there(plan, queue, pick_ready(queue, left, plan.now_ms))
            if queue.gives_runs:
                deal_runs(plan, queue, in_runs(queue, ready))
            else:
                deal(plan, queue, [iter((message,)) for message in ready])
    deliveries = plan.deliveries[before:]
    # Who holds a message keeps it, whatever is forwarded to the queue in this tick.
    given = [each.message.sequence for each in deliveries if isinstance(each, Delivery)]
    if given:
        plan.overlay(queue).removed.update(given)
    if not deliveries and not changed:
        if queue.name in plan.postponed:  # too much is locked
            plan.dispatch_blocked.append(queue.name)
        else:
            _end_dispatch(plan, queue)
    return len(deliveries)


def _still_there(plan: Plan, queue: Queue, messages: list[Message]) -> list[Message]:
    overlay = plan.overlays.get(queue.name)
    return (
        messages if overlay is None else [m for m in messages if m.sequence not in overlay.removed]
    )


def _hand_on_more(plan: Plan, queue: Queue, left: int) -> int:
    """Hands on what was there before the queue forwarded, then what has come in this tick."""
    overlay = plan.overlay(queue)
    most = left if plan.state.fanout == "open" else min(left, FANOUT_LIMITED_MAX)
    picked = pick_all(queue, most, plan.now_ms)
    later, overlay.ready = overlay.ready, _still_there(plan, queue, picked)
    if len(picked) < most:
        overlay.ready += later
        later = []
    count, before = len(overlay.ready), len(plan.deliveries)
    staying = hand_on(plan, overlay)
    if staying:  # they are dead letters, and can be received
        deal(plan, queue, [iter((message,)) for message in staying])
    if len(staying) == count and len(plan.deliveries) == before and not later:
        if len(picked) == most < left:  # behind those there may be some that do not stay
            plan.dispatch_blocked.append(queue.name)
        else:
            _end_dispatch(plan, queue)
    return count


def _hand_on(plan: Plan, _: int) -> int:
    """Relays, before it is asked who is idle."""
    relay(plan)
    return 0


def _dispatch_in_sessions(plan: Plan, queue: Queue, left: int) -> None:
    sessions = dict.fromkeys(receiver.session for receiver in queue.waiting.values())
    most = len(plan.deliveries) + left
    for session in sessions:
        _, group = plan.state.sessions[session]
        left = most - len(plan.deliveries)
        if left and group.until_ms > plan.now_ms:
            ready = pick_in_session(queue, group, left, plan.now_ms)
            ready = _still_there(plan, queue, ready)
            deal_in_session(plan, queue, group, iter(ready))
    accepting = [r for r in queue.accepting.values() if r.receiver not in plan.leaving]
    for receiver, key in zip(
        accepting[: most - len(plan.deliveries)], free_sessions(queue, plan.now_ms), strict=False
    ):
        plan.deliveries.append(grant(plan, queue, key, receiver))


_STEPS: tuple[Callable[[Plan, int], int], ...] = (
    _sweep,
    _end_waits,
    _end_blocks,
    _end_transactions,
    _end_sessions,
    _end_orphans,
    _end_locks,
    _end_lives,
    _wake,
    fire,
    _forget,
    _dispatch_pending,
    _admit,
    _hand_on,
    _delete_idle,
)
