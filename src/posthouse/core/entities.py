"""Entities: queues and topics are made, changed, paused, deleted and listed."""

import msgspec

from posthouse.core.checks import (
    check_count,
    check_forwarding,
    check_name,
    check_queue_properties,
    check_update,
)
from posthouse.core.commands import (
    PAGE_MAX,
    Counts,
    CreateQueue,
    DeleteQueue,
    GetQueue,
    ListQueues,
    Look,
    Notice,
    Pause,
    QueueInfo,
    Resume,
    UpdateQueue,
)
from posthouse.core.errors import AlreadyExists, InvalidArgument
from posthouse.core.lookup import own_queue, queue_of
from posthouse.core.model import Queue, QueueProperties, State, Status, dead_letter_queue, page
from posthouse.core.picking import can_receive, can_send
from posthouse.core.plan import Delivered, Outcome
from posthouse.core.records import DispatchPending, QueueCreated, QueueDeleted, QueueUpdated, Record
from posthouse.core.room import used


def create_queue(state: State, command: CreateQueue, now_ms: int) -> Outcome:
    check_name("queue", command.queue)
    taken = state.folded.get(command.queue.casefold())
    if taken is not None:
        raise AlreadyExists("queue", taken)
    properties = check_queue_properties(command.properties)
    check_forwarding(state, properties)
    return Outcome([QueueCreated(command.queue, now_ms, properties, command.by.name)])


def update_queue(state: State, command: UpdateQueue, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    properties = check_queue_properties(command.properties)
    check_update(queue.properties, properties)
    old = queue.properties
    if (properties.forward_to, properties.forward_dead_to) != (old.forward_to, old.forward_dead_to):
        check_forwarding(state, properties)
    return _change(queue, properties, now_ms)


def pause(state: State, command: Pause | Resume, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    if not (command.sending or command.receiving):
        raise InvalidArgument("sending or receiving", "must be named")
    on = isinstance(command, Resume)
    sending = on if command.sending else can_send(queue.properties)
    receiving = on if command.receiving else can_receive(queue.properties)
    properties = msgspec.structs.replace(queue.properties, status=_STATUS[sending, receiving])
    return _change(queue, properties, now_ms)


_STATUS: dict[tuple[bool, bool], Status] = {
    (True, True): "active",
    (True, False): "receive-disabled",
    (False, True): "send-disabled",
    (False, False): "disabled",
}


def _change(queue: Queue, properties: QueueProperties, now_ms: int) -> Outcome:
    records: list[Record] = [QueueUpdated(queue.name, now_ms, properties)]
    notices: list[Delivered] = []
    was, now = can_receive(queue.properties), can_receive(properties)
    if was and not now:
        notices = [Notice(receiver, "paused") for receiver in queue.attached]
    elif now and not was and (queue.waiting or queue.accepting):
        records.append(DispatchPending(queue.name, more=True))
    before = queue.properties
    if properties.forward_to is not None and properties.forward_to != before.forward_to:
        notices = [Notice(receiver, "paused") for receiver in queue.attached]
        records.append(DispatchPending(queue.name, more=True))  # what is there already
    dead = queue.dead
    to = properties.forward_dead_to
    if dead is not None and to is not None and to != before.forward_dead_to:
        records.append(DispatchPending(dead.name, more=True))
    wanted = fan_out_properties(queue, properties)
    for subscription in queue.subscriptions.values():
        if subscription.temporary and subscription.properties != wanted:
            change = _change(subscription, wanted, now_ms)
            records += change.records
            notices += change.deliveries
    return Outcome(records, None, notices)


def fan_out_properties(queue: Queue, mine: QueueProperties) -> QueueProperties:
    """Properties of the subscription that one receiver of a fan-out queue gets."""
    return QueueProperties(
        lock_ms=mine.lock_ms, max_delivery=mine.max_delivery, counting=mine.counting,
        order=mine.order, backoff_ms=mine.backoff_ms, dead_letter_expired=mine.dead_letter_expired,
        forward_dead_to=dead_letter_queue(queue.name), status=_STATUS[True, can_receive(mine)],
    )  # fmt: skip


def delete_queue(state: State, command: DeleteQueue, now_ms: int) -> Outcome:
    queue = own_queue(state, command.queue)
    going = [queue, *queue.subscriptions.values()]
    going += [each.dead for each in going if each.dead is not None]
    going += [each.transfer for each in going if each.transfer is not None]
    notices = [
        Notice(number, "deleted") for each in going for number in (*each.attached, *each.blocked)
    ]
    return Outcome([QueueDeleted(queue.name, now_ms)], None, notices)


def get_queue(state: State, command: GetQueue | Look, _: int) -> Outcome:
    return Outcome([], info(queue_of(state, command.queue)))


def list_queues(state: State, command: ListQueues, _: int) -> Outcome:
    check_count("limit", command.limit, 1, PAGE_MAX)
    names, kind = state.names, command.kind
    if kind is not None:
        wanted, queues = kind == "topic", state.queues
        names = [n for n in names if (queues[n].properties.delivery == "topic") == wanted]
    names = page(names, command.after, command.limit)
    return Outcome([], [info(state.queues[name]) for name in names])


def info(queue: Queue) -> QueueInfo:
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
        len(queue.waiting) + len(queue.accepting),
    )
