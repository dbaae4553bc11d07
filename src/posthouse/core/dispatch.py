"""Dispatch: what a plan makes available goes to those who wait for it, and closes the plan."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heappop, heappush, merge
from itertools import groupby, islice, takewhile

from posthouse.core.commands import Answer, Granted
from posthouse.core.message import Message
from posthouse.core.model import Group, Queue, Receiver, place_alone, place_of
from posthouse.core.picking import can_receive, is_expired
from posthouse.core.plan import Outcome, Plan, QueueOverlay
from posthouse.core.records import SessionAccepted
from posthouse.core.relaying import relay


def dispatch(plan: Plan, answer: Answer = None) -> Outcome:
    """Dispatches the messages that have become ready, and closes the plan."""
    if not plan.relayed:
        relay(plan)
    for overlay in list(plan.overlays.values()):
        queue = overlay.queue
        if (queue.waiting or queue.accepting) and not plan.is_dispatch_pending(queue):
            _hand_out(plan, overlay)
    return Outcome(plan.records, answer, plan.deliveries)


def _hand_out(plan: Plan, overlay: QueueOverlay) -> None:
    """Gives the messages that this plan makes ready in a queue to receivers that wait there."""
    queue = overlay.queue
    if not can_receive(queue.properties):
        return
    grouping = queue.properties.grouping
    if grouping == "session":
        _hand_out_sessions(plan, overlay)
        return
    if grouping == "run":
        _hand_out_runs(plan, overlay)
        return
    runs = [iter((m,)) for m in overlay.ready if m.group is None or grouping == "none"]
    if grouping == "group":
        in_groups = _by_group(m for m in overlay.ready if m.group is not None)
        for key in overlay.unlocked | dict.fromkeys(in_groups, 0):
            group, added = queue.groups.get(key), in_groups.get(key, [])
            if group is None:
                runs.append(_run(overlay, None, added))
            elif len(group.locks) == overlay.unlocked.get(key, 0) and not overlay.delayed(group):
                runs.append(_run(overlay, group, added))
    deal(plan, queue, runs)


def deal(plan: Plan, queue: Queue, runs: Iterable[Iterator[Message]]) -> None:
    """Gives one message each to the waiting receivers in turn, while they have credit.

    A run is what a group has, in order: its next message is free once one is taken out for good.
    """
    heap: list[tuple[int, int, Message, Iterator[Message]]] = []

    def offer(run: Iterator[Message]) -> None:
        message = next(run, None)
        if message is not None and not is_expired(message, plan.now_ms):
            heappush(heap, (queue.level(message), message.sequence, message, run))

    for run in runs:
        offer(run)
    room = plan.lock_room(queue)
    waiting = (r for r in queue.waiting.values() if r.receiver not in plan.leaving)
    again: deque[tuple[Receiver, int]] = deque()  # those served in this round, with credit left
    given: dict[int, tuple[Receiver, list[Message]]] = {}
    while heap:
        receiver = next(waiting, None)
        if receiver is not None:
            credit = receiver.credit
        elif again:
            receiver, credit = again.popleft()
        else:
            break
        if room is not None and not receiver.delete:
            if not room:  # others may take what they do not lock
                plan.hold_back(queue)
                continue
            room -= 1
        _, _, message, run = heappop(heap)
        _, hand = given.pop(receiver.receiver, (receiver, []))
        hand.append(message)
        given[receiver.receiver] = (receiver, hand)  # last served, last in the next turn
        if credit > 1:
            again.append((receiver, credit - 1))
        if receiver.delete:
            offer(run)
    for receiver, hand in given.values():
        plan.deliver(queue, receiver, hand)


def _hand_out_runs(plan: Plan, overlay: QueueOverlay) -> None:
    """Gives what this plan makes free: in groups as far as nothing in flight is before it."""
    queue = overlay.queue
    runs = [(place_alone(m.sequence), iter((m,))) for m in overlay.ready if m.group is None]
    in_groups = _by_group(m for m in overlay.ready if m.group is not None)
    gone = Counter(queue.messages[s].group for s in overlay.removed if queue.messages.get(s))
    for key in overlay.unlocked | dict.fromkeys(in_groups, 0):
        group, added = queue.groups.get(key), in_groups.get(key, [])
        run = _run(overlay, group, added)
        end = overlay.end_of_run(key)
        if end is not None:
            run = takewhile(partial(_is_before, end), run)
        if group is not None and group.messages > gone[key]:
            runs.append((place_of(group), run))
        elif added:  # it begins anew
            runs.append((place_alone(min(map(_sequence, added))), run))
    deal_runs(plan, queue, runs)


def _is_before(sequence: int, message: Message) -> bool:
    return message.sequence < sequence


def in_runs(queue: Queue, messages: Iterable[Message]) -> Iterator[tuple[int, Iterator[Message]]]:
    """Splits messages that can be taken together, each with its place in line."""
    for key, run in groupby(messages, key=_group):
        if key is None:
            for message in run:
                yield place_alone(message.sequence), iter((message,))
        else:
            yield place_of(queue.groups[key]), iter(list(run))


def deal_runs(plan: Plan, queue: Queue, runs: Iterable[tuple[int, Iterator[Message]]]) -> None:
    """Gives one run each to the waiting receivers in turn, as far as their credit goes.

    A message outside groups is a run by itself. What a receiver leaves of a run is behind messages
    in flight then, unless it took them out for good: then the rest waits behind the others.
    """
    heap: list[tuple[int, int, int, Message, Iterator[Message]]] = []

    def offer(place: int, message: Message | None, run: Iterator[Message]) -> None:
        if message is not None and not is_expired(message, plan.now_ms):
            heappush(heap, (queue.level(message), place, message.sequence, message, run))

    for place, run in runs:
        offer(place, next(run, None), run)
    waiting = (r for r in queue.waiting.values() if r.receiver not in plan.leaving)
    again: deque[tuple[Receiver, int]] = deque()
    given: dict[int, tuple[Receiver, list[Message]]] = {}
    behind, room = place_alone(plan.overlay(queue).next_sequence), plan.lock_room(queue)
    while heap:
        receiver = next(waiting, None)
        if receiver is not None:
            credit = receiver.credit
        elif again:
            receiver, credit = again.popleft()
        else:
            break
        most = credit
        if room is not None and not receiver.delete:
            if not room:  # others may take what they do not lock
                plan.hold_back(queue)
                continue
            most = min(credit, room)
        _, _, _, message, run = heappop(heap)
        fresh = takewhile(lambda each: not is_expired(each, plan.now_ms), run)
        taken = [message, *islice(fresh, most - 1)]
        if room is not None and not receiver.delete:
            room -= len(taken)
        _, hand = given.pop(receiver.receiver, (receiver, []))
        hand += taken
        given[receiver.receiver] = (receiver, hand)
        if credit > len(taken):
            again.append((receiver, credit - len(taken)))
        elif receiver.delete:
            behind += 1
            offer(behind, next(run, None), run)
    for receiver, hand in given.values():
        plan.deliver(queue, receiver, hand)


def _run(overlay: QueueOverlay, group: Group | None, added: list[Message]) -> Iterator[Message]:
    """Ready messages of a group as this plan leaves it, in order."""
    left = () if group is None else (s for s in group.ready.walk() if s not in overlay.removed)
    there = (overlay.queue.messages[sequence] for sequence in left)
    return merge(sorted(added, key=_sequence), there, key=_sequence)


def _hand_out_sessions(plan: Plan, overlay: QueueOverlay) -> None:
    """Gives new messages to the holders of sessions, and sessions set free to waiting accepts."""
    queue = overlay.queue
    by_group = _by_group(overlay.ready)
    free = []
    for key in overlay.unlocked | dict.fromkeys(by_group, 0):
        group = queue.groups.get(key)
        run = _run(overlay, group, by_group.get(key, []))
        if group is not None and overlay.delayed(group):
            continue
        if group is not None and group.token and key not in overlay.released:
            if group.until_ms > plan.now_ms:
                deal_in_session(plan, queue, group, run)
            continue
        head = next(run, None)
        if head is not None and not is_expired(head, plan.now_ms):
            free.append((queue.level(head), head.sequence, key))
    accepting = (r for r in queue.accepting.values() if r.receiver not in plan.leaving)
    for (_, _, key), receiver in zip(sorted(free), accepting, strict=False):
        plan.deliveries.append(grant(plan, queue, key, receiver))


def deal_in_session(plan: Plan, queue: Queue, group: Group, run: Iterator[Message]) -> None:
    """Gives the ready messages of a session to its readers."""
    fresh = (message for message in run if not is_expired(message, plan.now_ms))
    for reader in group.readers:
        receiver = queue.waiting.get(reader)
        if receiver is not None and reader not in plan.leaving:
            room = None if receiver.delete else plan.lock_room(queue)
            most = receiver.credit if room is None else min(receiver.credit, room)
            hand = list(islice(fresh, most))
            if room is not None and len(hand) == room < receiver.credit:
                plan.hold_back(queue)
            if hand:
                plan.deliver(queue, receiver, hand)


def grant(plan: Plan, queue: Queue, session: str, to: Receiver) -> Granted:
    until_ms = plan.now_ms + (to.lock_ms or queue.properties.hold_ms)
    lock = plan.next_lock
    plan.next_lock += 1
    plan.records.append(
        SessionAccepted(
            queue.name, plan.now_ms, session, lock, until_ms, to.receiver, to.bound_session
        )
    )
    return Granted(to.receiver, session, plan.state.tokens.one(lock), until_ms)


def _by_group(messages: Iterable[Message]) -> dict[str, list[Message]]:
    groups: dict[str, list[Message]] = {}
    for message in messages:
        assert message.group is not None
        groups.setdefault(message.group, []).append(message)
    return groups


def _sequence(message: Message) -> int:
    return message.sequence


def _group(message: Message) -> str | None:
    return message.group
