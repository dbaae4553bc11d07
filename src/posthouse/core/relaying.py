"""Relaying: topics and queues that forward hand on what has come to them."""

from posthouse.core.commands import FANOUT_LIMITED_MAX, HOPS_MAX
from posthouse.core.copies import Relay, counted, filled, hops_of
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import Message, group_of, size_bytes
from posthouse.core.model import Queue
from posthouse.core.picking import can_send
from posthouse.core.plan import Plan, QueueOverlay
from posthouse.core.publishing import hits_of, publish

# Rounds of handing on: each hop may be followed by one through a topic or a fan-out queue, and by
# one from the dead letters of a fan-out queue's receiver, which is not counted.
_ROUNDS_MAX = 3 * (HOPS_MAX + 1)


def relay(plan: Plan) -> None:
    """Hands on what has come into topics and into queues that forward, as far as it goes."""
    plan.relayed = True
    staying: list[tuple[QueueOverlay, list[Message]]] = []
    rounds = 0
    while overlays := _with_more(plan):
        rounds += 1
        assert rounds <= _ROUNDS_MAX, "it is forwarded for ever"
        staying += [(overlay, hand_on(plan, overlay)) for overlay in overlays]
    for overlay, messages in staying:
        overlay.ready += messages


def _with_more(plan: Plan) -> list[QueueOverlay]:
    """Topics and queues that forward in which something is ready."""
    return [
        overlay
        for overlay in plan.overlays.values()
        if overlay.ready and overlay.queue.relays and not plan.is_dispatch_pending(overlay.queue)
    ]


def hand_on(plan: Plan, overlay: QueueOverlay) -> list[Message]:
    """Hands on what is ready in a queue, as much as one command may. Returns what has to stay."""
    messages, overlay.ready = overlay.ready, []
    queue = overlay.queue
    if queue.properties.delivery not in ("competing", "topic") and not has_takers(plan, queue):
        return messages  # it keeps what comes while nobody is there
    handed = Relay(plan, overlay, same=_keeps_counts(plan, queue))
    leaving: list[Message] = []
    staying: list[Message] = []
    restricted = plan.state.fanout != "open"
    for message in messages:
        if plan.is_spent:
            plan.postpone(queue)
            break
        if restricted and not _has_place(plan, overlay, message):
            plan.postpone(queue)
            plan.dispatch_blocked.append(queue.name)
            break
        if queue.properties.delivery != "competing":
            if not publish(handed, message):
                plan.postpone(queue)
                break
            leaving.append(message)
        else:
            (leaving if _forward(handed, message) else staying).append(message)
    handed.close(leaving)
    return staying


def has_takers(plan: Plan, queue: Queue) -> bool:
    """Whether anybody is attached to a fan-out queue, and stays."""
    return any(name not in plan.ending for name in queue.subscriptions)


def _has_place(plan: Plan, overlay: QueueOverlay, message: Message) -> bool:
    """Whether a limited fanout lets a message go on: nobody who gets a copy has many.

    So what is held back in the middle of a chain goes on as its end is received, though that makes
    no room; and of copies there are never more than a few for each queue.
    """
    state, queue = plan.state, overlay.queue
    if _is_receivers_own(plan, queue):
        return True  # it ends with its receiver, and so would the dead letters in it
    if state.fanout == "stopped":
        return False
    if queue.properties.delivery != "competing":
        hits = hits_of(plan, overlay, message)
        if hits is None:
            return True  # that is looked at for each of them
        targets = [hit.queue for hit in hits if hit.queue.number > message.lock]
    else:
        target = state.queues.get(queue.properties.forward_to or "")
        targets = [] if target is None else [target]
    return all(filled(plan, each) < FANOUT_LIMITED_MAX for each in targets)


def _keeps_counts(plan: Plan, queue: Queue) -> bool:
    """Whether what a queue hands on are dead letters that are to stay as they are."""
    if queue.origin is None:
        return False
    return plan.state.queues[queue.origin].properties.forward_dead_unchanged


def _is_receivers_own(plan: Plan, queue: Queue) -> bool:
    """Whether it holds dead letters of one receiver of a fan-out queue."""
    return queue.origin is not None and plan.state.queues[queue.origin].temporary


def _forward(handed: Relay, message: Message) -> bool:
    """Whether it leaves: to where its queue forwards, or to what could not be forwarded."""
    plan, source = handed.plan, handed.source
    note = source.note(message.sequence)
    name = source.queue.properties.forward_to
    assert name is not None
    hops = hops_of(note) + (not _is_receivers_own(plan, source.queue))
    if hops > HOPS_MAX or name == source.queue.name:  # to itself: all hops would end here
        text = f"A message is forwarded at most {HOPS_MAX} times."
        return handed.turn_back(message, note, "MaxTransferHopCountExceeded", text)
    target = plan.state.queues.get(name)
    if target is None:
        return handed.turn_back(message, note, "TargetNotFound", f"There is no entity {name!r}.")
    properties, size = target.properties, size_bytes(message)
    if not can_send(properties):
        return handed.turn_back(message, note, "TargetDisabled", f"{name!r} is disabled.")
    if properties.requires_session and group_of(message, note) is None:
        text = f"{name!r} has sessions, and the message is of none."
        return handed.turn_back(message, note, "Session id is null.", text)
    if properties.max_message_bytes is not None and size > properties.max_message_bytes:
        return handed.turn_back(message, note, "MessageTooLarge", f"{name!r} takes smaller ones.")
    if name == source.queue.topic and source.queue.transfer is not None:
        source.remove([message])  # a topic is as full as its subscriptions: it counts once
    try:
        handed.copy(message, target, counted(note, hops, target), None)
    except QuotaExceeded as full:
        return handed.turn_back(message, note, "QuotaExceeded", str(full))
    return True
